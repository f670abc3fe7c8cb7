"""Frames as a server sends them, cut at any place, and what the scanner makes of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise

from hypothesis import strategies as st

from spark_jetstream.protocol.wire import Event, Scanner


def frame(subject: str | bytes, sid: object, payload: bytes, head: bytes = b"", reply: bytes = b"") -> bytes:
    """An HMSG frame, or a MSG frame where there is no header block."""
    name = subject.encode() if isinstance(subject, str) else subject
    line = b" ".join(filter(None, (name, str(sid).encode(), reply)))
    if head:
        return b"HMSG %s %d %d\r\n%s%s\r\n" % (line, len(head), len(head) + len(payload), head, payload)
    return b"MSG %s %d\r\n%s\r\n" % (line, len(payload), payload)


def scanned(chunks: Iterable[bytes], collect: Collection[int], whole: Collection[int] = ()) -> Iterator[Event]:
    """What a new scanner finds in these bytes."""
    scanner = Scanner()
    scanner.collect, scanner.whole = set(collect), set(whole)
    for chunk in chunks:
        yield from scanner.feed(chunk)


def by_byte(data: bytes) -> list[bytes]:
    """Every byte by itself."""
    return [data[at : at + 1] for at in range(len(data))]


@st.composite
def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The same bytes in some pieces."""
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    return [data[start:end] for start, end in pairwise([0, *places, len(data)])]
