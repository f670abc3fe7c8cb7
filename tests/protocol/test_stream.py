"""Replies to STREAM.INFO as data; times as the server prints them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol.stream import StreamSummary, stream_summary, subject_pattern
from spark_jetstream.protocol.units import parse_time
from spark_jetstream.testing import NatsServer
from tests.support.reading import api
from tests.support.streams import MakeStream, Stream

CREATED = "2026-02-03T04:05:06.123456789Z"
LEAST: dict[str, Any] = {
    "config": {"name": "ORDERS", "retention": "limits"},
    "created": CREATED,
    "state": {"messages": 3, "bytes": 300, "first_seq": 5, "last_seq": 7},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """`LEAST` with another value at a dotted path; None takes the field out."""
    body = {name: dict(part) if isinstance(part, dict) else part for name, part in LEAST.items()}
    *above, last = path.split(".")
    target = body[above[0]] if above else body
    if value is None:
        del target[last]
    else:
        target[last] = value
    return body


def test_streams_as_the_server_makes_them(nats_server: NatsServer, stream: MakeStream) -> None:
    def state_of(made: Stream) -> StreamSummary:
        return stream_summary(api(nats_server.url, f"STREAM.INFO.{made.name}"), "look")

    made = stream(subjects=["plain.a", "plain.b.*"])
    plain = state_of(made)
    assert (plain.name, plain.first_kept, plain.last_seq, plain.retention) == (
        made.name,
        1,
        0,
        "limits",
    )
    assert (plain.subjects, plain.duplicate_window) == (("plain.a", "plain.b.*"), 120.0)
    assert (plain.max_msg_size, plain.discard, plain.storage) == (-1, "old", "file")
    flags = (plain.no_ack, plain.sealed, plain.mirror, plain.allow_msg_ttl, plain.allow_direct)
    assert not any((*flags, plain.expires, plain.evicts))
    assert plain.last_timestamp == 0
    assert plain.server_time > parse_time(plain.created) > 0
    texts = {"discard": "new", "storage": "memory"}
    flags_set = dict.fromkeys(("no_ack", "allow_msg_ttl", "allow_direct"), True)
    limits = {"max_msg_size": 4096, "max_msgs_per_subject": 2, "max_msgs": 10}
    special = state_of(stream(duplicate_window=500_000_000, **limits, **texts, **flags_set))
    assert special.duplicate_window == 0.5
    for name, value in {**limits, **texts, **flags_set}.items():
        assert getattr(special, name) == value, name
    assert (special.expires, special.evicts) == (True, False)
    origin = stream()
    mirror = state_of(stream(subjects=None, mirror={"name": origin.name}))
    assert (mirror.mirror, mirror.subjects) == (True, ())
    origin.update(sealed=True)
    sealed = state_of(origin)
    assert (sealed.sealed, sealed.mirror) == (True, False)


def test_fields_that_a_reply_omits_have_defaults() -> None:
    assert stream_summary(LEAST, "look") == StreamSummary(
        name="ORDERS",
        created=CREATED,
        first_seq=5,
        last_seq=7,
        messages=3,
        bytes=300,
        num_deleted=0,
        last_timestamp=0,
        retention="limits",
    )


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("config.duplicate_window", "2m"),
        ("config.subjects", "a.b"),
        ("config.max_msg_size", True),
        ("config.discard", 1),
        ("config.sealed", 1),
        ("config.mirror", "ORIGIN"),
        ("state.num_deleted", "7"),
        ("state.last_ts", "0001-01-01T00:00:00Z"),
        ("ts", 5),
    ],
)
def test_a_setting_of_another_type_counts_as_left_out(path: str, value: Any) -> None:
    assert stream_summary(changed(path, value), "look") == stream_summary(LEAST, "look")


@pytest.mark.parametrize(
    "path", ["config.name", "config.retention", "created", "state.first_seq", "state.last_seq"]
)
@pytest.mark.parametrize("value", [None, 1.5])
def test_a_reply_without_a_required_field_is_a_protocol_error(path: str, value: Any) -> None:
    with pytest.raises(ProtocolError, match=rf"cannot look: .* no usable field {path}"):
        stream_summary(changed(path, value), "look")


def test_a_name_that_no_stream_can_have_is_refused() -> None:
    assert stream_summary(changed("config.name", "x" * 255), "look").name == "x" * 255
    with pytest.raises(ProtocolError, match=r'cannot look: .* has "x{80}\.\.\." for config.name'):
        stream_summary(changed("config.name", "x" * 256), "look")


def cluster(leader: str, *active: int, since: str = "", **first: Any) -> dict[str, Any]:
    """A reply of a server of a cluster, with the silence of each other one in ns."""
    peers: list[Any] = [{"name": f"n{n}", "active": ns} for n, ns in enumerate(active, start=2)]
    if first:
        peers[0] |= first
    return {
        **LEAST,
        "cluster": {"name": "C", "leader": leader, "leader_since": since, "replicas": peers},
    }


NOW, LATE = 1, 4_000_000_000
#: A reply, and `led`, `followed` and `term`.
LEADERS: dict[str, tuple[dict[str, Any], tuple[bool, bool, str]]] = {
    "no cluster": (LEAST, (True, True, "")),
    "no replicas": (cluster("n1"), (True, True, "")),
    "both others hear": (cluster("n1", NOW, NOW), (True, True, "")),
    "one of two hears": (cluster("n1", NOW, LATE), (True, True, "")),
    "none hears": (cluster("n1", LATE, LATE), (True, False, "")),
    "just in time": (cluster("n1", LATE - 1, LATE), (True, True, "")),
    "the only other is silent": (cluster("n1", LATE), (True, False, "")),
    "one of three hears": (cluster("n1", NOW, LATE, LATE), (True, False, "")),
    "never heard": (cluster("n1", 0, 0), (True, False, "")),
    "offline": (cluster("n1", NOW, LATE, offline=True), (True, False, "")),
    "two of four hear": (cluster("n1", NOW, NOW, LATE, LATE), (True, True, "")),
    "one of four hears": (cluster("n1", NOW, LATE, LATE, LATE), (True, False, "")),
    "a follower replies": (cluster("n2", NOW, NOW), (False, False, "")),
    "nobody leads": (cluster("", NOW, NOW), (False, False, "")),
    "a term": (cluster("n1", NOW, NOW, since=CREATED), (True, True, f"n1 {CREATED}")),
    "a silence that is no number": (cluster("n1", NOW, LATE, active="1"), (True, False, "")),
}


@pytest.mark.parametrize(("body", "expected"), LEADERS.values(), ids=LEADERS)
def test_a_leader_is_followed_where_a_majority_heard_it_lately(
    body: dict[str, Any], expected: tuple[bool, bool, str]
) -> None:
    found = stream_summary(body, "look")
    assert (found.led, found.followed, found.term) == expected
    assert found.removals == ((4, found.term) if found.term else None)


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("state.messages", 4, "makes no sense: 4 messages and \"0\" deleted ones in the sequences 5 to 7"),
        ("state.num_deleted", 4, "makes no sense: 3 messages and \"4\" deleted ones in the sequences 5 to 7"),
        ("state.num_deleted", -1, "makes no sense: 3 messages and \"-1\" deleted ones in the sequences 5 to 7"),
        ("state.first_seq", 6, "makes no sense: 3 messages and \"0\" deleted ones in the sequences 6 to 7"),
        ("state.last_seq", 2**63 - 1, f"makes no sense: 3 messages and \"0\" deleted ones in the sequences 5 to {2**63 - 1}"),
        ("state.last_seq", -1, 'has "-1" for state.last_seq'),
        ("state.bytes", 2**63, f'has "{2**63}" for state.bytes'),
        ("created", "0001-01-01T00:00:00Z", "does not say when the stream was created"),
        ("created", "2026-02-30T00:00:00Z", 'has "2026-02-30T00:00:00Z" for created, which is no time'),
        ("ts", "1969-12-31T23:59:59Z", 'has "1969-12-31T23:59:59Z" for ts, which is no time'),
        ("state.last_ts", "2026-02-03 x", 'has "2026-02-03 x" for state.last_ts, which is no time'),
    ],
)  # fmt: skip
def test_a_reply_that_contradicts_itself_is_refused(path: str, value: Any, fault: str) -> None:
    with pytest.raises(
        ProtocolError, match=f"^cannot look: the server's reply {re.escape(fault)}$"
    ):
        stream_summary(changed(path, value), "look")


@pytest.mark.parametrize(
    ("first", "last", "messages", "first_kept"),
    [(0, 0, 0, 1), (1, 0, 0, 1), (8, 7, 0, 8), (7, 7, 1, 7), (1, 2**63 - 2, 2**63 - 2, 1)],
)
def test_an_empty_or_full_range_of_sequences_is_taken(
    first: int, last: int, messages: int, first_kept: int
) -> None:
    state = {"messages": messages, "bytes": 0, "first_seq": first, "last_seq": last}
    found = stream_summary({**LEAST, "state": state}, "look")
    assert (found.first_kept, found.last_seq, found.messages) == (first_kept, last, messages)


@pytest.mark.parametrize(
    ("filters", "subject", "matches"),
    [
        *(([], "a", False), (["a.*"], "a.b", True), (["a.*"], "a.", False), (["a.*"], "a", False)),
        *((["a.>"], "a.b.c", True), (["a.>"], "a", False), (["a+"], "aa", False)),
        *((["a", "b.>"], "b.\n", True), (["a.b"], "axb", False), (["A"], "a", False)),
    ],
)
def test_a_pattern_matches_the_whole_subjects_of_its_filters(
    filters: list[str], subject: str, matches: bool
) -> None:
    assert bool(subject_pattern(filters).fullmatch(subject)) is matches
