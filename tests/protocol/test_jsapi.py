"""The JetStream API as data: subjects, bodies, replies, and what each status of a pull request
means.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_jetstream.errors import (
    ApiError,
    ConsumerLost,
    ConsumerNotFound,
    JetStreamError,
    PinMismatch,
    ProtocolError,
    PullRefused,
    ServerBusy,
    StreamNotFound,
)
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.incoming import Incoming
from spark_jetstream.protocol.jsapi import PullEnd, pull_status
from spark_jetstream.protocol.wire import Frames, Scanner, Status
from spark_jetstream.testing import NatsServer
from tests.support.publish import Message, Publisher
from tests.support.wire import frame, scanned


def status(code: int, description: str, **headers: str) -> Status:
    """A status as the scanner reads it off the wire."""
    lines = [
        f"NATS/1.0 {code} {description}".rstrip(),
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    [event] = scanned(
        [frame("_INBOX.x.1", 7, b"", ("\r\n".join(lines) + "\r\n\r\n").encode())], {7}
    )
    assert isinstance(event, Status)
    return event


PENDING = {"Nats-Pending-Messages": "12", "Nats-Pending-Bytes": "3456"}

# Statuses as server 2.15.1 writes them, and what is to be done: `PullEnd`, or the error.
STATUSES: list[tuple[int, str, dict[str, str], PullEnd | type[JetStreamError]]] = [
    (
        100,
        "Idle Heartbeat",
        {"Nats-Last-Consumer": "5", "Nats-Last-Stream": "9"},
        PullEnd(False, None, None, False),
    ),
    (404, "No Messages", {}, PullEnd(True, None, None, False)),
    (408, "Request Timeout", PENDING, PullEnd(True, 12, 3456, False)),
    (408, "Requests Pending", {}, PullEnd(True, None, None, False)),
    (408, "Interest Expired", PENDING, PullEnd(True, 12, 3456, False)),
    (409, "Message Size Exceeds MaxBytes", PENDING, PullEnd(True, 12, 3456, True)),
    (
        409,
        "Batch Completed",
        {**PENDING, "Nats-Pending-Messages": "0"},
        PullEnd(True, 0, 3456, False),
    ),
    (409, "Exceeded MaxWaiting", {}, PullEnd(True, None, None, False)),
    (409, "Consumer Deleted", {}, ConsumerLost),
    (409, "Leadership Change", {}, ConsumerLost),
    (409, "Server Shutdown", {}, ConsumerLost),
    (503, "", {}, ConsumerLost),
    (503, "", {"Nats-Subject": "$JS.API.CONSUMER.MSG.NEXT.S.c"}, ConsumerLost),
    (409, "Consumer is push based", {}, PullRefused),
    (409, "Exceeded MaxRequestBatch of 10", {}, PullRefused),
    (400, "Bad Request", {}, PullRefused),
    (412, "Required Api Level", {}, PullRefused),
    (423, "Nats-Pin-Id mismatch", {}, PinMismatch),
    (423, "Nats-Wrong-Pin-Id", {}, PinMismatch),
    # Statuses that the connector does not know.
    (409, "Something New", {}, PullRefused),
    (410, "Gone", {}, PullRefused),
    (204, "EOB", {}, PullRefused),
]


@pytest.mark.parametrize(
    ("code", "description", "headers", "meaning"),
    STATUSES,
    ids=lambda value: value if isinstance(value, str | int) else "",
)
def test_every_status(
    code: int, description: str, headers: dict[str, str], meaning: PullEnd | type
) -> None:
    # However it is written: the code and the first words count, in any case.
    for text in (description, description.upper(), description.lower()):
        check_meaning(status(code, text, **headers), meaning)


def check_meaning(received: Status, meaning: PullEnd | type) -> None:
    if isinstance(meaning, PullEnd):
        assert pull_status(received, "ORDERS") == meaning
        return
    with pytest.raises(JetStreamError) as caught:
        pull_status(received, "ORDERS")
    assert type(caught.value) is meaning
    assert "stream ORDERS" in str(caught.value)
    if isinstance(caught.value, PullRefused):
        assert (caught.value.code, caught.value.description) == (
            received.code,
            received.description,
        )
    assert str(caught.value).endswith(f"{received.code} {received.description}".strip())


@pytest.mark.parametrize("text", ["", "-1", "+3", "1e3", "²", "9" * 19, "x"])
def test_a_count_that_is_none(text: str) -> None:
    received = Status(1, b"i", 408, "Request Timeout", dict.fromkeys(PENDING, text))
    end = pull_status(received, "S")
    assert end.undelivered is None
    assert end.unused_bytes is None


#: A request, how many messages there are, and what the status that answers it means.
REAL: list[tuple[dict[str, Any], int, PullEnd | type[JetStreamError]]] = [
    ({"batch": 1, "no_wait": True}, 0, PullEnd(True, None, None, False)),
    ({"batch": 5, "expires": 50_000_000}, 0, PullEnd(True, 5, 0, False)),
    ({"batch": 5, "max_bytes": 10, "expires": 1_000_000_000}, 3, PullEnd(True, 5, 10, True)),
    ({"batch": 5, "max_bytes": 400, "expires": 1_000_000_000}, 3, PullEnd(True, 4, 160, True)),
    ({"batch": 1, "expires": 1_000_000_000, "idle_heartbeat": 900_000_000}, 0, PullRefused),
    ({"batch": 51, "expires": 1_000_000_000}, 0, PullRefused),
]


def test_the_status_table_matches_the_replies_of_a_real_server() -> None:
    config = {"name": "c", "ack_policy": "none", "mem_storage": True, "max_batch": 50}
    pull = "$JS.API.CONSUMER.MSG.NEXT.S.c"
    with (
        NatsServer() as server,
        Publisher(server.url) as publisher,
        Publisher(server.url) as listener,
    ):
        publisher.api("STREAM.CREATE.S", {"name": "S", "subjects": ["S"], "storage": "memory"})
        for request, messages, meaning in REAL:
            publisher.api("STREAM.PURGE.S")
            publisher.publish([Message("S", b"x" * 200)] * messages)
            publisher.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
            check_meaning(_first_status(listener, pull, request), meaning)
            publisher.api("CONSUMER.DELETE.S.c")
        check_meaning(_first_status(listener, pull, {"batch": 1}), ConsumerLost)


def _first_status(listener: Publisher, subject: str, body: dict[str, Any]) -> Status:
    """Send a pull request and read frames off the socket until a status comes."""
    scanner, incoming = Scanner(), Incoming()
    scanner.collect = {1}
    listener._send(Message(subject, json.dumps(body).encode()).frame(f"{listener._inbox}.1"))
    while True:
        incoming.add(listener._socket.recv(65536))
        for event in scanner.read(incoming):
            if isinstance(event, Status):
                return event
            assert isinstance(event, Frames)


# Subjects and bodies


def test_durations_are_whole_microseconds() -> None:
    seconds = (0, 1e-6, 0.1, 1.1, 30.0)
    assert [jsapi.nanoseconds(each) for each in seconds] == [
        0,
        1000,
        10**8,
        1_100_000_000,
        30 * 10**9,
    ]


@pytest.mark.parametrize(
    ("payload", "fault"), [(b"", "is not JSON"), (b"[1]", "is not a JSON object")]
)
def test_a_reply_that_is_no_object(payload: bytes, fault: str) -> None:
    with pytest.raises(ProtocolError, match=rf"^cannot look: the server's reply {fault}$"):
        jsapi.reply(payload, "look")


def test_a_purge_of_a_subject_names_no_sequence() -> None:
    # A server of 2.15 counts up to the sequence, one by one, where the stream is in memory.
    assert json.loads(jsapi.purge_subject_request("a.b")) == {"filter": "a.b"}
    with pytest.raises(ValueError, match="all messages would be removed"):
        jsapi.purge_subject_request("")


@pytest.mark.parametrize(
    ("config", "filters"),
    [
        ({"filter_subject": ""}, ()),
        ({"filter_subject": 5}, ()),
        ({"filter_subjects": None, "filter_subject": "a"}, ("a",)),
        ({"filter_subjects": [], "filter_subject": "a"}, ("a",)),
        ({"filter_subjects": ["a", 5]}, ("a", "5")),
    ],
)
def test_filters_of_other_types_count_as_none(
    config: dict[str, Any], filters: tuple[str, ...]
) -> None:
    assert jsapi.filters_of(config) == filters


BODY = {"a": {"n": 2**64 - 1, "t": "x", "f": True, "z": None, "big": 2**64, "neg": -1}}


@pytest.mark.parametrize(
    ("path", "kind", "value"),
    [
        ("a.n", int, 2**64 - 1),
        ("a.neg", int, -1),
        ("a.t", str, "x"),
        ("a.f", bool, True),
        ("a", dict, BODY["a"]),
        *(("a.f", int, None), ("a.big", int, None), ("a.t", int, None), ("a.n", bool, None)),
        *(("a.z", str, None), ("a.none", str, None), ("a.t.x", str, None), ("A.t", str, None)),
        *(("", str, None), ("a.", dict, None)),
    ],
)
def test_a_field_of_a_reply_has_its_type_or_is_refused(path: str, kind: type, value: Any) -> None:
    if value is not None:
        assert jsapi.field(BODY, path, kind, "look") == value
        return
    assert jsapi.field(BODY, path, kind, "look", kind()) == kind()
    with pytest.raises(ProtocolError, match=rf"^cannot look: it has no usable field {path}$"):
        jsapi.field(BODY, path, kind, "look", what="it")


@pytest.mark.parametrize(
    ("number", "least", "fault"),
    [
        *((0, 0, None), (1, 1, None), (2**63 - 1, 0, None)),
        (-1, 0, 'has "-1" for n'),
        (0, 1, 'has "0" for n'),
        (2**63, 0, 'has "9223372036854775808" for n'),
        (2**64, 0, "has no usable field n"),
        (1.0, 0, "has no usable field n"),
        ("1", 0, "has no usable field n"),
    ],
)
def test_a_number_of_a_reply_is_in_its_range_or_refused(
    number: Any, least: int, fault: str | None
) -> None:
    if fault is None:
        assert jsapi.whole({"n": number}, "n", "look", least=least) == number
        return
    with pytest.raises(ProtocolError, match=f"^cannot look: the server's reply {fault}$"):
        jsapi.whole({"n": number}, "n", "look", least=least)


NOT_FOUND = b'"error":{"code":404,"err_code":10059,"description":"stream not found"}'
REPLIES: dict[str, tuple[bytes, type[Exception], str]] = {
    "a stream that is none": (
        b'{"type":"io.nats.jetstream.api.v1.stream_info_response",%s,"total":0}' % NOT_FOUND,
        StreamNotFound,
        "cannot look: stream not found (code 404, error 10059)",
    ),
    "a consumer that is none": (
        b'{"error":{"code":404,"err_code":10014,"description":"consumer not found"}}',
        ConsumerNotFound,
        "cannot look: consumer not found (code 404, error 10014)",
    ),
    "a busy cluster": (
        b'{"error":{"code":503,"err_code":10008,"description":"temporarily unavailable"}}',
        ServerBusy,
        "cannot look: temporarily unavailable (code 503, error 10008)",
    ),
    "fields of other types": (
        b'{"error":{"code":true,"err_code":"10059","description":5}}',
        ApiError,
        "cannot look: the server gave no reason (code 0, error 0)",
    ),
    "an empty error": (
        b'{"error":{}}',
        ApiError,
        "cannot look: the server gave no reason (code 0, error 0)",
    ),
    "an unknown code": (
        b'{"error":{"code":500,"err_code":10999,"description":"new\r"}}'.replace(b"\r", b"\\r"),
        ApiError,
        "cannot look: new\\r (code 500, error 10999)",
    ),
    "cut off": (
        b'{"error":{"code":404',
        ProtocolError,
        "cannot look: the server's reply is not JSON",
    ),
    "bytes behind": (b"{}x", ProtocolError, "cannot look: the server's reply is not JSON"),
}


@pytest.mark.parametrize(("payload", "kind", "text"), REPLIES.values(), ids=REPLIES)
def test_an_error_of_the_api_has_its_type_and_words(
    payload: bytes, kind: type[Exception], text: str
) -> None:
    with pytest.raises(JetStreamError) as caught:
        jsapi.reply(payload, "look")
    assert (type(caught.value), str(caught.value)) == (kind, text)


@pytest.mark.parametrize("payload", [b"{}", b'{"error":null}', b'{"error":"x"}', b' {"a":1}\r\n'])
def test_a_reply_without_an_error_object_is_returned_as_it_is(payload: bytes) -> None:
    assert jsapi.reply(payload, "look") == json.loads(payload)
