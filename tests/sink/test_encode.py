"""Rows to frames, read back by a plain parser that takes them apart as a server does."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jetstream.sink.encode import Encoded, encode
from spark_jetstream.sink.rows import Rows
from tests.support.sinking import read_rows

INBOX = "_INBOX.abcdef.7"
Plain = tuple[str, list[tuple[str, str]], bytes]  # subject, headers, payload


@dataclass(frozen=True)
class Published:
    """What a server understands of one frame; ``headers`` is None for PUB."""

    subject: bytes
    reply: bytes
    headers: list[tuple[bytes, bytes]] | None
    payload: bytes
    size: int


def parsed(data: bytes) -> list[Published]:
    """Frames as the client protocol describes them; fails on anything else."""
    found = []
    while data:
        line, end, data = data.partition(b"\r\n")
        assert end
        verb, subject, reply, *sizes = line.split(b" ")
        assert len(sizes) == {b"PUB": 1, b"HPUB": 2}[verb]
        assert [b"%d" % int(size) for size in sizes] == sizes
        head, total = int(sizes[0]) if verb == b"HPUB" else 0, int(sizes[-1])
        block, payload = data[:head], data[head:total]
        assert len(block) + len(payload) == total
        assert data[total : total + 2] == b"\r\n"
        data = data[total + 2 :]
        headers = None
        if verb == b"HPUB":
            version, *lines, last, nothing = block.split(b"\r\n")
            assert (version, last, nothing) == (b"NATS/1.0", b"", b"")
            headers = [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]
        found.append(Published(subject, reply, headers, payload, total))
    return found


def encoded(some: Rows, ids: list[bytes | None] | None = None, stream: str | None = None, first: int = 1) -> Encoded:
    message_ids = None if ids is None else pa.array(ids, pa.binary())
    return encode(some, message_ids, stream, inbox=INBOX, first_number=first)


def expected(some: list[Plain], ids: list[bytes | None] | None, stream: str | None, first: int) -> list[Published]:
    found = []
    for index, (subject, headers, payload) in enumerate(some):
        lines = [] if stream is None else [(b"Nats-Expected-Stream", stream.encode())]
        message_id = None if ids is None else ids[index]
        lines += [] if message_id is None else [(b"Nats-Msg-Id", message_id)]
        lines += [(name.encode(), value.encode()) for name, value in headers]
        block = b"NATS/1.0\r\n%b\r\n" % b"".join(b"%b: %b\r\n" % line for line in lines) if lines else b""
        reply = f"{INBOX}.{first + index}".encode()
        found.append(Published(subject.encode(), reply, lines or None, payload, len(block) + len(payload)))
    return found


def made(some: list[Plain]) -> Rows:
    maps = [None if not headers else [(name, [value]) for name, value in headers] for _, headers, _ in some]
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
SUBJECT = st.sampled_from(["a", "orders.new", "a*b.c>", "größe.日本.🙂", "x" * 1024, "PUB", "$KV.b.k", "1.2.3"])
NAME = st.sampled_from(["A", "a", "X-Y", "größe", "Nats-Foo", "PUB", "a b"])
VALUE = st.sampled_from(["", "1", "a: b", "::", " x ", "日本", "PUB a b 5", "NATS/1.0", "x" * 300])
ROW = st.tuples(SUBJECT, st.lists(st.tuples(NAME, VALUE), max_size=3), PAYLOAD)
IDS = st.none() | st.just(b"query.7.0.abc") | st.binary(min_size=1, max_size=9).map(lambda raw: raw.hex().encode())
STREAM = st.sampled_from([None, "ORDERS", "Straße"])


@settings(max_examples=100, deadline=None)
@given(st.data(), st.lists(ROW, min_size=1, max_size=12), STREAM, st.integers(1, 2**40), st.booleans())
def test_a_server_reads_what_the_rows_hold(
    data: st.DataObject, some: list[Plain], stream: str | None, first: int, with_ids: bool
) -> None:
    ids = data.draw(st.lists(IDS, min_size=len(some), max_size=len(some))) if with_ids else None
    frames = encoded(made(some), ids, stream, first)
    wanted = expected(some, ids, stream, first)
    assert parsed(bytes(frames.data)) == wanted
    assert frames.size.tolist() == [row.size for row in wanted]
    assert frames.bounds.tolist()[0] == 0
    assert frames.bounds.tolist()[-1] == len(bytes(frames.data))
    begin = data.draw(st.integers(0, len(some)))
    end = data.draw(st.integers(begin, len(some)))
    part = frames.frames(begin, end)
    assert isinstance(part, memoryview)
    assert parsed(bytes(part)) == wanted[begin:end]
