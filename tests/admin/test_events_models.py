"""Events from bytes: every type with all of its fields, what is cut short, and what is no event at
all.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_jetstream.admin import (
    NEVER,
    Event,
    EventTemplate,
    UnknownEvent,
    cloud_event,
    event_details,
    event_json,
    event_line,
    parse_event,
)
from spark_jetstream.admin.event_parsing import PREFIX, event_subjects, stored_event
from spark_jetstream.admin.models import events
from spark_jetstream.admin.models.events import EVENT_TYPES, ClientInfo
from spark_jetstream.admin.models.messages import StoredMessage
from spark_jetstream.errors import OptionError, printable
from spark_jetstream.protocol.subjects import subjects_overlap
from spark_jetstream.protocol.units import Timestamp

START, END = "2026-03-01T12:00:00.5Z", "2026-03-01T12:00:01.123456789Z"
CLIENT = {
    "start": START,
    "stop": END,
    "host": "10.0.0.1",
    "id": 2**64 - 1,
    "acc": "APP",
    "svc": "SHOP",
    "user": "ann",
    "name": "spark-jetstream",
    "lang": "python3",
    "ver": "2.16.0",
    "rtt": 522_714,
    "server": "test-0",
    "cluster": "test",
    "alts": ["east"],
    "jwt": "ey",
    "issuer_key": "AB",
    "name_tag": "ann",
    "tags": ["a", "b"],
    "kind": "Client",
    "client_type": "mqtt",
    "client_id": "m1",
    "nonce": "n",
}
PEERS = [
    {
        "name": "test-1",
        "current": True,
        "offline": False,
        "active": 12_000_000,
        "lag": 0,
        "peer": "p1",
    },
    {
        "name": "test-2",
        "current": False,
        "offline": True,
        "active": 12_000_000_000,
        "lag": 3,
        "peer": "p2",
    },
]
STATE = {
    "messages": 1500,
    "bytes": 4096,
    "first_seq": 1,
    "first_ts": START,
    "last_seq": 1500,
    "last_ts": END,
    "num_subjects": 2,
    "consumer_count": 1,
}
STREAM = {"stream": "ORDERS", "domain": "hub"}
CONSUMER = {**STREAM, "consumer": "billing"}
DELIVERY = {**CONSUMER, "consumer_seq": 3, "stream_seq": 2**64 - 1, "deliveries": 2}
SERVER = {"server": "test-0", "server_id": "NABC", "cluster": "test", "domain": "hub"}
SUMMARY = {
    "name": "test-0",
    "id": "NABC",
    "host": "h",
    "cluster": "c",
    "domain": "d",
    "ver": "2.15",
    "jetstream": True,
}
TRAFFIC = {"sent": {"msgs": 1, "bytes": 2}, "received": {"msgs": 3, "bytes": 4}}
COUNTS = {
    "conns": 1200,
    "leafnodes": 0,
    "total_conns": 1200,
    "num_subscriptions": 5,
    "slow_consumers": 1,
}
WAIT = {"start": START, "service": 2_000_000, "system": 1_000_000, "total": 4_000_000}
GROUP = {**CONSUMER, "account": "APP", "group": "g"}
REPLICAS = {"account": "APP", "replicas": PEERS}
TRANSFER = {**STREAM, "start": START, "end": END, "client": CLIENT}
REFUSAL = json.dumps({"error": {"code": 404, "err_code": 10059, "description": "stream not found"}})
AUDIT = {
    "server": "NABC",
    "client": CLIENT,
    "subject": "$JS.API.STREAM.INFO.ORDERS",
    "domain": "hub",
}

MESSAGE = f"message {2**64 - 1} of stream ORDERS (delivery 2 to consumer billing)"
BILLING = "consumer billing of stream ORDERS"
ANN = "ann at 10.0.0.1 (account APP)"
LEADS = "now, servers test-1, test-2"
STALLED = "has no leader, most of its servers are away: servers test-1, test-2 (away)"

#: kind -> its fields, all of them, and what it is in words
SAMPLES: dict[str, tuple[dict[str, Any], str]] = {
    "account_connections": (
        {"server": SUMMARY, "acc": "AAPP", "name": "APP", **COUNTS, **TRAFFIC},
        "account AAPP has 1,200 connections to server test-0",
    ),
    "client_connect": ({"server": SUMMARY, "client": CLIENT}, f"{ANN} connected to server test-0"),
    "client_disconnect": (
        {"server": SUMMARY, "client": CLIENT, **TRAFFIC, "reason": "Client Closed"},
        f"{ANN} left server test-0: Client Closed",
    ),
    "service_latency": (
        {"status": 503, "description": "gone", "requestor": CLIENT, "responder": CLIENT, **WAIT},
        f"{ANN} waited 4ms, 2ms of it for {ANN}: gone",
    ),
    "api_audit": (
        {**AUDIT, "request": "{}", "response": REFUSAL},
        f"{ANN} asked $JS.API.STREAM.INFO.ORDERS, refused: stream not found",
    ),
    "api_limit_reached": (
        {"server": "test-0", "dropped": 10_000, "domain": "hub"},
        "server test-0 dropped 10,000 requests to the JetStream API",
    ),
    "consumer_ack": (
        {**DELIVERY, "ack_time": 1_500_000},
        f"{MESSAGE} was acknowledged after 1.5ms",
    ),
    "consumer_action": ({**CONSUMER, "action": "delete"}, f"{BILLING} was deleted"),
    "consumer_leader_elected": (
        {**CONSUMER, **REPLICAS, "leader": "test-1"},
        f"test-1 leads {BILLING} {LEADS}",
    ),
    "consumer_pause": (
        {**CONSUMER, "paused": True, "pause_until": END},
        f"{BILLING} is paused until {END}",
    ),
    "consumer_group_pinned": (
        {**GROUP, "pinned_id": "p"},
        f"group g of {BILLING} goes to client p",
    ),
    "consumer_quorum_lost": ({**CONSUMER, **REPLICAS}, f"{BILLING} {STALLED}"),
    "consumer_group_unpinned": (
        {**GROUP, "reason": "timeout"},
        f"group g of {BILLING} goes to no client any more (timeout)",
    ),
    "domain_leader_elected": (
        {"leader": "p1", "replicas": PEERS, "cluster": "test", "domain": "hub"},
        f"test-1 leads the JetStream of cluster test {LEADS}",
    ),
    "max_deliver": (
        {**CONSUMER, "stream_seq": 7, "deliveries": 1},
        "message 7 of stream ORDERS (first delivery to consumer billing) is given up",
    ),
    "meta_rescue": (
        {**SERVER, "prev_quorum": 2, "new_quorum": 1},
        "server test-0 lowered how many servers must agree from 2 to 1",
    ),
    "nak": (DELIVERY, f"{MESSAGE} was refused, and will be delivered again"),
    "restore_complete": (
        {**TRANSFER, "bytes": 123_456},
        "the restore of stream ORDERS ended, with 123,456 bytes",
    ),
    "restore_create": (
        {**STREAM, "client": CLIENT},
        f"a restore of stream ORDERS was begun by {ANN}",
    ),
    "server_out_of_space": (
        {**SERVER, "stream": "ORDERS"},
        "server test-0 has no room left on its disk for stream ORDERS",
    ),
    "server_removed": (SERVER, "server test-0 was removed from cluster test"),
    "snapshot_complete": (
        {**TRANSFER, "error": "no flow"},
        "the backup of stream ORDERS that began at 2026-03-01T12:00:00.500Z failed: no flow",
    ),
    "snapshot_create": (
        {**STREAM, "state": STATE, "client": CLIENT},
        f"a backup of stream ORDERS (1,500 messages) was begun by {ANN}",
    ),
    "stream_action": ({**STREAM, "action": "modify"}, "stream ORDERS was changed"),
    "stream_batch_abandoned": (
        {**STREAM, "account": "APP", "batch": "b1", "reason": "incomplete"},
        "batch b1 for stream ORDERS was not stored (incomplete)",
    ),
    "stream_leader_elected": (
        {**STREAM, **REPLICAS, "leader": "test-1"},
        f"test-1 leads stream ORDERS {LEADS}",
    ),
    "stream_quorum_lost": ({**STREAM, **REPLICAS}, f"stream ORDERS {STALLED}"),
    "terminated": ({**DELIVERY, "reason": "bad"}, f"{MESSAGE} was refused for good: bad"),
}


def sample(kind: str) -> dict[str, Any]:
    """An event of a type with all its fields, as a server writes it."""
    (found,) = [type for type in EVENT_TYPES if type.endswith(f".{kind}")]
    return {"type": found, "id": "bmPpyCXBrfZ7iAi6D2qj1w", "timestamp": END, **SAMPLES[kind][0]}


def encoded(body: object) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def test_there_is_a_sample_of_every_type() -> None:
    assert {type.rpartition(".")[2] for type in EVENT_TYPES} == SAMPLES.keys()
    assert ClientInfo.model_fields.keys() == CLIENT.keys()


@pytest.mark.parametrize("kind", SAMPLES)
def test_an_event_with_all_fields(kind: str) -> None:
    body = sample(kind)
    event = parse_event("$JS.EVENT.X", encoded(body))
    assert type(event) is EVENT_TYPES[body["type"]]
    # Every field of the model is in the sample, every field of the sample in the model, and none
    # changes.
    assert set(type(event).model_fields) == body.keys()
    assert not event.model_extra
    assert event.model_dump(mode="json", exclude_unset=True) == body
    assert event_json(event) == body
    assert (event.kind, event.metric) == (kind, kind in ("consumer_ack", "service_latency"))
    assert (event.published_on, event.raw) == ("$JS.EVENT.X", encoded(body))
    assert event_line(event) == f"2026-03-01T12:00:01.123Z {kind} {SAMPLES[kind][1]}"
    assert cloud_event(event) == {
        "specversion": "1.0",
        "id": body["id"],
        "source": "urn:nats:jetstream",
        "type": body["type"],
        "subject": "$JS.EVENT.X",
        "time": END,
        "datacontenttype": "application/json",
        "data": body,
    }
    # Fields that newer servers add are kept.
    newer = {**body, "new": {"x": [1, None]}, "other": None}
    event = parse_event("s", encoded(newer))
    assert type(event) is EVENT_TYPES[body["type"]]
    assert event.model_extra == {"new": {"x": [1, None]}}
    assert event_json(event) == newer


def test_an_event_of_an_unknown_type_keeps_its_fields() -> None:
    body = {
        "type": "io.nats.jetstream.advisory.v9.flood",
        "id": "1",
        "timestamp": START,
        "stream": "S",
        "depth": 3,
    }
    event = parse_event("$JS.EVENT.ADVISORY.FLOOD", encoded(body))
    assert type(event) is Event
    assert event.model_extra == {"stream": "S", "depth": 3}
    assert event_json(event) == body
    assert event_line(event) == '2026-03-01T12:00:00.500Z flood {"stream": "S", "depth": 3}'
    assert event_details(event).splitlines()[-2:] == ["  stream: S", "  depth: 3"]


def test_an_event_with_its_fields() -> None:
    event = parse_event("s", encoded(sample("client_connect")))
    lines = event_details(event).splitlines()
    assert lines[0] == event_line(event)
    assert {
        "  type: io.nats.server.advisory.v1.client_connect",
        f"  client.user: {CLIENT['user']}",
    } <= {*lines}
    template = EventTemplate(
        "{{{kind:>16}}} {client.user!r} {client.nothing}|{type.__class__}|{line}"
    )
    assert template(event) == f"{{  client_connect}} {CLIENT['user']!r} ||{event_line(event)}"
    assert EventTemplate("plain")(event) == "plain"


@pytest.mark.parametrize("text", ["{", "}", "{kind", "{}", "{kind:{type}}", "{kind:d}", "{kind!x}"])
def test_a_malformed_event_template_is_an_option_error(text: str) -> None:
    with pytest.raises(OptionError, match="is not possible") as refused:
        EventTemplate(text)
    assert refused.value.option == "template"


def test_event_lines_describe_events_with_null_clients_and_replicas() -> None:
    audit = parse_event("s", encoded({**sample("api_audit"), "client": None, "response": "[]"}))
    assert isinstance(audit, events.ApiAudit)
    assert audit.client is None
    assert event_line(audit).endswith(
        "api_audit an unknown client asked $JS.API.STREAM.INFO.ORDERS"
    )
    led = parse_event(
        "s", encoded({**sample("stream_leader_elected"), "replicas": None, "leader": ""})
    )
    assert event_line(led).endswith("no server leads stream ORDERS now, no other servers")


def assert_no_event(subject: str, data: bytes, received: Timestamp = NEVER) -> UnknownEvent:
    event = parse_event(subject, data, received)
    assert isinstance(event, UnknownEvent)
    assert (event.data, event.raw, event.subject) == (data, data, subject)
    assert event.reason
    # All ways to show it work, and give text that can be written.
    assert "\n" not in event_line(event)
    assert event_details(event).startswith(event_line(event))
    assert EventTemplate("{line}")(event) == event_line(event)
    json.dumps(
        [event_json(event), cloud_event(event)], ensure_ascii=False, allow_nan=False
    ).encode()
    event_line(event).encode()
    return event


def test_an_event_cut_short_or_with_more_behind_it_is_none() -> None:
    data = encoded(sample("api_audit"))
    for end in range(len(data)):
        assert_no_event("s", data[:end])
    for more in (b"{}", b"x", b"\0", b"]"):
        assert_no_event("s", data + more)
    assert type(parse_event("s", b"\n" + data + b" \r\n")) is type(parse_event("s", data))


@pytest.mark.parametrize("kind", SAMPLES)
def test_an_event_without_a_required_field_or_with_a_wrong_one_is_none(kind: str) -> None:
    body = sample(kind)
    required = {
        name
        for name, field in EVENT_TYPES[body["type"]].model_fields.items()
        if field.is_required()
    }
    assert {"type", "id", "timestamp"} <= required
    for name in required:
        found = assert_no_event(
            "s", encoded({key: value for key, value in body.items() if key != name})
        )
        assert found.reason.startswith("cannot read an event on s: ")
        assert name in found.reason
    for name in body.keys() - {"type"}:
        assert name in assert_no_event("s", encoded({**body, name: 1.5})).reason


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is not JSON"),
        (b"\xff\xfe", "it is not JSON"),
        (b"[]", "it is not a JSON object"),
        (b'"type"', "it is not a JSON object"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b'{"type":' + b"9" * 5000 + b"}", "it is not JSON"),
        (b'{"a": NaN}', "it is not JSON"),
        (b'{"a": -1e999}', "it is not JSON"),
        (b'{"type": "t", "id": "\\ud800", "timestamp": "2026-03-01T12:00:00Z"}', "it is not JSON"),
        (b'{"type": [], "id": "1", "timestamp": "2026-03-01T12:00:00Z"}', "type must be a string"),
        (b'{"type": "t", "id": "1", "timestamp": "yesterday"}', "timestamp must be a time"),
    ],
    ids=lambda value: value[:20],
)
def test_malformed_event_data_gives_an_unknown_event_with_the_reason(
    data: bytes, reason: str
) -> None:
    assert reason in assert_no_event("$JS.EVENT.ADVISORY.X", data, Timestamp(END)).reason


def test_a_pair_of_surrogates_is_text() -> None:
    event = parse_event("s", encoded({**sample("terminated"), "reason": "no \U0001f600"}))
    assert b"\\ud83d" in event.raw
    assert event_line(event).endswith("no \U0001f600")


def test_nothing_in_an_event_moves_the_cursor_of_a_terminal() -> None:
    event = parse_event("s", encoded({**sample("terminated"), "reason": "\x1b[2J\r\nfine\u202e"}))
    assert event_line(event).endswith(r"was refused for good: \x1b[2J\r\nfine\u202e")
    assert printable("\ud800 ä\u00a0'") == "\\ud800 ä\\xa0'"


def test_a_message_of_a_stream_is_an_event() -> None:
    body = encoded(sample("nak"))
    stored = StoredMessage(subject="$JS.EVENT.ADVISORY.X", seq=1, time=Timestamp(START), data=body)
    assert stored_event(stored) == parse_event("$JS.EVENT.ADVISORY.X", body)
    broken = stored_event(stored.changed(data=b"?"))
    assert (type(broken), broken.timestamp) == (UnknownEvent, START)


# -- CloudEvents 1.0:
# https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md --


def test_a_message_that_is_no_event_as_a_cloud_event() -> None:
    event = parse_event("$JS.EVENT.ADVISORY.X", b"\xff", Timestamp(END))
    found = cloud_event(event)
    assert (found["data_base64"], found["datacontenttype"]) == ("/w==", "application/octet-stream")
    assert (found["type"], found["time"]) == (UnknownEvent.TYPE, END)
    assert (
        found["id"] == event.id != parse_event("$JS.EVENT.ADVISORY.X", b"\xfe", Timestamp(END)).id
    )
    # Attributes that have no value are left out: an empty text is none.
    assert not {"time", "subject"} & cloud_event(parse_event("", b"\xff")).keys()


# -- subjects --


def choose(*wanted: str | type[Event], **given: Any) -> list[str]:
    rest: dict[str, Any] = {
        "advisories": True,
        "metrics": True,
        "stream": None,
        "consumer": None,
        "prefix": PREFIX,
    }
    return [each.removeprefix(f"{PREFIX}.") for each in event_subjects(wanted, **{**rest, **given})]


def test_subjects_of_all_events() -> None:
    assert choose() == ["ADVISORY.>", "METRIC.>"]
    assert choose(metrics=False) == ["ADVISORY.>"]
    assert choose(advisories=False) == ["METRIC.>"]
    assert choose(stream="S") == [
        "ADVISORY.STREAM.*.S",
        "ADVISORY.CONSUMER.*.S.*",
        "METRIC.CONSUMER.*.S.*",
    ]
    assert choose(stream="S", consumer="c", advisories=False) == ["METRIC.CONSUMER.*.S.c"]
    assert choose(consumer="c") == ["ADVISORY.CONSUMER.*.*.c", "METRIC.CONSUMER.*.*.c"]
    assert event_subjects(
        (), advisories=True, metrics=False, stream=None, consumer=None, prefix="a.b"
    ) == ("a.b.ADVISORY.>",)


def test_subjects_of_some_kinds() -> None:
    assert choose("max_deliver", stream="S") == ["ADVISORY.CONSUMER.MAX_DELIVERIES.S.*"]
    assert choose(events.Nak, events.Terminated.TYPE) == [
        "ADVISORY.CONSUMER.MSG_NAKED.*.*",
        "ADVISORY.CONSUMER.MSG_TERMINATED.*.*",
    ]
    assert choose("stream_action") == [
        f"ADVISORY.STREAM.{done}.*" for done in ("CREATED", "UPDATED", "DELETED")
    ]
    assert choose("$JS.EVENT.ADVISORY.API") == choose("api_audit") == ["ADVISORY.API"]
    # A subject that another one covers is left out.
    assert choose("nak", "ADVISORY.CONSUMER.>", "terminated", "nak") == ["ADVISORY.CONSUMER.>"]
    assert choose("consumer_ack", "api_audit") == ["METRIC.CONSUMER.ACK.*.*", "ADVISORY.API"]
    assert choose("ADVISORY.{x") == ["ADVISORY.{x"]
    # Those of a server have no prefix.
    assert choose("client_connect", "$SYS.ACCOUNT.APP.DISCONNECT", prefix="a") == [
        *("$SYS.ACCOUNT.*.CONNECT", "$SYS.ACCOUNT.APP.DISCONNECT")
    ]
    assert choose("latency.a", prefix="latency") == ["latency.a"]


def test_no_two_kinds_share_a_subject() -> None:
    subjects = [
        subject for kind in SAMPLES.keys() - {"service_latency"} for subject in choose(kind)
    ]
    for place, one in enumerate(subjects):
        assert not any(subjects_overlap(one, other) for other in subjects[place + 1 :]), one


@pytest.mark.parametrize(
    ("wanted", "given", "said"),
    [
        (("max_delivery",), {}, "did you mean max_deliver"),
        (("orders.new",), {}, "not on orders.new"),
        (("ADVISORY..X",), {}, "ADVISORY..X"),
        ((Event,), {}, "Event is not a kind of event"),
        (
            (events.ServiceLatency,),
            {},
            "give that in place of the kind, and its first token as prefix",
        ),
        (("client_connect",), {"stream": "S"}, "name no stream, so they cannot be limited"),
        (("api_audit",), {"stream": "S"}, "name no stream, so they cannot be limited"),
        (("stream_action",), {"consumer": "c"}, "name no consumer, so they cannot be limited"),
        (("nak",), {"advisories": False}, "as the kinds need"),
        (("nak", "consumer_ack"), {"advisories": False}, "as the kinds need"),
        ((), {"advisories": False, "metrics": False}, "nothing is left to watch"),
        (("ADVISORY.*.X", "ADVISORY.Y.*"), {}, "have subjects in common"),
    ],
)
def test_subjects_that_do_not_exist_or_fit(wanted: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said.replace(".", r"\.").replace("*", r"\*")):
        choose(*wanted, **given)
