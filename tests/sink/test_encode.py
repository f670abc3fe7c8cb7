"""Rows to frames: byte for byte what the plain client of the tests sends for the same messages."""

from __future__ import annotations

from itertools import accumulate

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jetstream.sink.encode import Encoded, encode
from spark_jetstream.sink.rows import Rows
from tests.support.publish import Message
from tests.support.sinking import read_rows

INBOX = "_INBOX.abcdef.7"
Plain = tuple[str, list[tuple[str, str]], bytes]  # subject, headers, payload


def encoded(
    some: Rows, ids: list[bytes | None] | None = None, stream: str | None = None, first: int = 1
) -> Encoded:
    message_ids = None if ids is None else pa.array(ids, pa.binary())
    return encode(some, message_ids, stream, inbox=INBOX, first_number=first)


def expected(
    some: list[Plain], ids: list[bytes | None] | None, stream: str | None
) -> list[Message]:
    """The messages with the header lines that the sink adds in front."""
    own = [] if stream is None else [("Nats-Expected-Stream", stream)]
    messages = []
    for (subject, headers, payload), message_id in zip(
        some, ids or [None] * len(some), strict=True
    ):
        named = [] if message_id is None else [("Nats-Msg-Id", message_id.decode())]
        messages.append(Message(subject, payload, [*own, *named, *headers] or None))
    return messages


def made(some: list[Plain]) -> Rows:
    maps = [
        None if not headers else [(name, [value]) for name, value in headers]
        for _, headers, _ in some
    ]
    return read_rows(subject=[row[0] for row in some], headers=maps, data=[row[2] for row in some])


@pytest.mark.parametrize("ids", [None, []])
def test_no_rows_are_no_frames(ids: list[bytes | None] | None) -> None:
    frames = encoded(read_rows(subject=[], data=[]), ids)
    assert frames.size.tolist() == []
    assert bytes(frames.frames(0, 0)) == b""


# -- properties --

HOSTILE = st.sampled_from(
    [
        b"PUB a b 5\r\nhello\r\n",
        b"HPUB a b 12 12\r\n",
        b"NATS/1.0\r\n\r\n",
        b"\r\n",
        b"\r",
        b"\n",
        b" ",
        b"\x00",
        b"-ERR",
    ]
)
PAYLOAD = st.lists(HOSTILE | st.binary(max_size=12), max_size=5).map(b"".join)
SUBJECT = st.sampled_from(
    ["a", "orders.new", "a*b.c>", "größe.日本.🙂", "x" * 1024, "PUB", "$KV.b.k", "1.2.3"]
)
NAME = st.sampled_from(["A", "a", "X-Y", "größe", "Nats-Foo", "PUB", "a b"])
VALUE = st.sampled_from(["", "1", "a: b", "::", " x ", "日本", "PUB a b 5", "NATS/1.0", "x" * 300])
ROW = st.tuples(SUBJECT, st.lists(st.tuples(NAME, VALUE), max_size=3), PAYLOAD)
IDS = (
    st.none()
    | st.just(b"query.7.0.abc")
    | st.binary(min_size=1, max_size=9).map(lambda raw: raw.hex().encode())
)
STREAM = st.sampled_from([None, "ORDERS", "Straße"])


@settings(max_examples=100, deadline=None)
@given(
    st.data(), st.lists(ROW, min_size=1, max_size=12), STREAM, st.integers(1, 2**40), st.booleans()
)
def test_a_server_reads_what_the_rows_hold(
    data: st.DataObject, some: list[Plain], stream: str | None, first: int, with_ids: bool
) -> None:
    ids = data.draw(st.lists(IDS, min_size=len(some), max_size=len(some))) if with_ids else None
    frames = encoded(made(some), ids, stream, first)
    messages = expected(some, ids, stream)
    wanted = [message.frame(f"{INBOX}.{number}") for number, message in enumerate(messages, first)]
    assert bytes(frames.data) == b"".join(wanted)
    assert frames.size.tolist() == [
        len(message.head or b"") + len(message.data) for message in messages
    ]
    assert frames.bounds.tolist() == [0, *accumulate(map(len, wanted))]
    begin = data.draw(st.integers(0, len(some)))
    end = data.draw(st.integers(begin, len(some)))
    part = frames.frames(begin, end)
    assert isinstance(part, memoryview)
    assert bytes(part) == b"".join(wanted[begin:end])
