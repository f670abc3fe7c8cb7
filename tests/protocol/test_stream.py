"""Replies to STREAM.INFO as data; times as the server prints them."""

from __future__ import annotations

from typing import Any

import pytest

from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol.stream import StreamSummary, stream_summary
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
