r"""Turns replies to batched Direct Gets into Arrow columns, in bulk. Pure.

See ADR-31 "JetStream Direct Get".

The server sends each message as it is stored, with six lines after its own header lines::

    NATS/1.0\r\n<its own lines>
    Nats-Stream: S\r\n   Nats-Subject: a.0\r\n   Nats-Sequence: 4\r\n
    Nats-Time-Stamp: 2026-11-21T10:22:23.56442039Z\r\n
    Nats-Num-Pending: 6\r\n   Nats-Last-Sequence: 3\r\n   \r\n

Its own lines may have the same names, so only the last six count. The server cuts the last two
bytes off a stored header block, whatever they are, and appends the six lines. If the block does not
end with an empty line, the first of the six continues the last line of the block. If the block has
no line end at all, it loses its last two bytes.

A status ends an answer: a first line with a code, few lines after it, no payload. A message always
has the six lines, and a publisher cannot write anything after them, so no message is mistaken for a
status.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol.arrow import BoolArray, IntArray, as_arrow, as_vector, gather, joined
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.protocol.headers import decode_headers, to_text
from spark_jetstream.protocol.units import whole_number
from spark_jetstream.protocol.vectors import begins_with, parse_unsigned
from spark_jetstream.protocol.wire import Frames, parse_status

# The six lines, by their places.
_STREAM, _SUBJECT, _SEQUENCE, _TIME, _PENDING, _PREVIOUS = range(6)
_NAMES = (
    b"Nats-Stream: ",
    b"Nats-Subject: ",
    b"Nats-Sequence: ",
    b"Nats-Time-Stamp: ",
    b"Nats-Num-Pending: ",
    b"Nats-Last-Sequence: ",
)
Apply = Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]]
"""Calls a function for each number, and returns what it returns in the same order."""

_SHORTEST = sum(map(len, _NAMES))
_NO_LINES = b"NATS/1.0\r\n"
_LF, _CR = 10, 13


@dataclass(frozen=True)
class EndOfBatch:
    """The status that ends the answer to request `number`; fields that it does not have are None.

    With 204, `last` is the sequence of the last message of the answer, and `pending` the number of
    messages that match after it. `up_to` is the last sequence that an answer about the last message
    of each subject takes into account.
    """

    number: int
    code: int
    description: str
    last: int | None
    pending: int | None
    up_to: int | None = None


@dataclass(frozen=True)
class DirectBatch:
    """Messages that answer request `number`; implements `MessageRun`.

    `stream` is the one that has answered, which may be a mirror.
    `previous` is for each message the sequence of the one before it in the same answer, 0 for the
    first (int64).
    """

    number: int
    stream: str
    sequences: IntArray
    previous: IntArray
    _frames: Frames
    _heads: npt.NDArray[np.uint8]
    _begin: IntArray  # where the header block begins
    _own_end: IntArray  # and where the six lines do
    _line_ends: IntArray  # the line feeds of the six lines, 7 * n with that of the empty line

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, part: slice) -> DirectBatch:
        """The messages of a slice with step 1; shares the buffers."""
        return replace(
            self,
            sequences=self.sequences[part],
            previous=self.previous[part],
            _frames=self._frames[part],
            _begin=self._begin[part],
            _own_end=self._own_end[part],
            _line_ends=self._line_ends[:, part],
        )

    def pending(self) -> int:
        """How many messages matched after the last of these, in the store that answered."""
        return int(_numbers(self._heads, self._line_ends[:, -1:], _PENDING)[0])

    def timestamps(self) -> IntArray:
        """Implements `MessageRun`. Raises `ProtocolError` where a time is no RFC 3339 text."""
        try:
            # Arrow reads integers: up to nine digits of a fraction, none of them lost.
            times = self._value(_TIME).cast(pa.string()).cast(pa.timestamp("ns", tz="UTC"))
        except pa.ArrowInvalid:
            raise ProtocolError(
                "a direct get was answered with a time that cannot be read"
            ) from None
        nanoseconds: IntArray = as_vector(times.cast(pa.int64()))
        return nanoseconds

    def subjects(self) -> pa.StringArray:
        return to_text(self.raw_subjects())

    def raw_subjects(self) -> pa.BinaryArray:
        return self._value(_SUBJECT)

    def headers(self) -> pa.MapArray:
        """Implements `MessageRun`, without the lines that the server added."""
        length = self._own_end - self._begin
        # A block that is only the version line has no headers: its map is null.
        plain = length == len(_NO_LINES)
        plain[plain] = begins_with(self._heads, self._begin[plain], _NO_LINES[:8])
        return decode_headers(self._heads, self._begin, np.where(plain, 0, length))

    def payloads(self) -> pa.BinaryArray:
        return self._frames.payloads()

    def raw(self) -> Iterator[tuple[bytes, bytes]]:
        """The header block, with the lines that the server added, and the payload of each."""
        return self._frames.parts()

    def _value(self, line: int) -> pa.BinaryArray:
        start = self._line_ends[line - 1] + 1 + len(_NAMES[line])
        return gather(self._heads, start, self._line_ends[line] - 1)


def read_answers(frames: Frames, inbox: str) -> Iterator[DirectBatch | EndOfBatch]:
    """Yield the answers on `<inbox>.<number>`, by request, in the order of the wire.

    Raises `ProtocolError`.
    """
    number, good = parse_unsigned(
        frames.lines, frames.subject_start + len(inbox) + 1, frames.subject_end
    )
    if not good.all():
        raise ProtocolError("an answer arrived at a subject that belongs to no request")
    # The header blocks, one after the other.
    heads, bounds = joined(gather(frames.data, frames.line_end, frames.line_end + frames.head))
    line_ends, message = _find_lines(heads, bounds)
    # Neighbours with the same key are messages, or statuses, for the same request.
    key = number * 2 + message
    cuts = [0, *(np.flatnonzero(key[1:] != key[:-1]) + 1).tolist(), len(key)]
    for first, last in pairwise(cuts):
        some = slice(first, last)
        if message[first]:
            yield _answered(
                int(number[first]), frames[some], heads, bounds[:-1][some], line_ends[:, some]
            )
            continue
        for at in range(first, last):
            yield _ending(int(number[at]), frames, at)


def _find_lines(heads: npt.NDArray[np.uint8], bounds: IntArray) -> tuple[IntArray, BoolArray]:
    """Find the lines that make a message.

    Returns the line feeds of the last seven lines of each block (7 * n), and for each block
    whether they are those of a message.
    """
    count = len(bounds) - 1
    lines = len(_NAMES) + 1  # with the empty one at the end of a block
    feeds = np.flatnonzero(heads == _LF)
    if len(heads) < _SHORTEST or len(feeds) < lines:
        return np.zeros((lines, count), np.int64), np.zeros(count, np.bool_)
    last = bounds[1:] - 1  # where the last line feed of each block must be
    per_block = len(feeds) // count
    # The fast path: a reshape in place of a search for each block.
    same = per_block >= lines and len(feeds) == per_block * count
    if same and np.array_equal(feeds[per_block - 1 :: per_block], last):
        # Every block has the same number of lines, as blocks without headers of their own have.
        ends = np.ascontiguousarray(feeds.reshape(count, per_block)[:, -lines:].T)
        message: BoolArray = ends[_STREAM] > bounds[:-1]
    else:
        # Look for the last line feed of each block; the others are those before it.
        at = np.minimum(np.searchsorted(feeds, last), len(feeds) - 1)
        ends = feeds[np.maximum(at + np.arange(1 - lines, 1)[:, None], 0)]
        message = (feeds[at] == last) & (at >= lines - 1) & (ends[_STREAM] > bounds[:-1])
    # Each line ends with CR LF, and the last one is empty.
    message &= (heads[np.maximum(ends - 1, 0)] == _CR).all(axis=0) & (ends[-1] == ends[-2] + 2)
    # The line of the stream may go on from a line of the publisher: `_answered` looks at its name.
    for line, name in enumerate(_NAMES[1:], start=1):
        start = ends[line - 1] + 1 + len(name)
        message &= start < ends[line] - 1  # it has a value
        # The last eight bytes of a name tell it well enough: only a server writes here.
        message &= begins_with(heads, np.where(message, start - 8, 0), name[-8:])
    return ends, message


def _answered(
    number: int, frames: Frames, heads: npt.NDArray[np.uint8], begin: IntArray, line_ends: IntArray
) -> DirectBatch:
    """Return messages whose header blocks begin, and have lines, at these places."""
    stop = line_ends[_STREAM] - 1
    first = heads[int(begin[0]) : int(stop[0])].tobytes()
    # A stream's name has no blank, so whatever a publisher wrote, the last word is the server's.
    name = first[first.rfind(b" ") + 1 :]
    added = _NAMES[_STREAM] + name + b"\r\n"
    # The publisher's lines end where the line with the stream begins.
    own_end = stop + 2 - len(added)
    has_room = bool(name) and (own_end >= begin).all()
    # One server answers a request, so all messages of a run name the same stream.
    if not (has_room and begins_with(heads, own_end, added).all()):
        raise ProtocolError(
            "a direct get was answered without the name of the stream, or by more than one stream"
        )
    return DirectBatch(
        number,
        name.decode("utf-8", "replace"),
        _numbers(heads, line_ends, _SEQUENCE),
        _numbers(heads, line_ends, _PREVIOUS),
        frames,
        heads,
        begin,
        own_end,
        line_ends,
    )


def _numbers(heads: npt.NDArray[np.uint8], line_ends: IntArray, line: int) -> IntArray:
    """Return the values of one of the six lines of each block."""
    start = line_ends[line - 1] + 1 + len(_NAMES[line])
    value, good = parse_unsigned(heads, start, line_ends[line] - 1)
    if not good.all():
        raise ProtocolError("a direct get was answered with sequences that are not numbers")
    return value


def _ending(number: int, frames: Frames, at: int) -> EndOfBatch:
    start = int(frames.line_end[at])
    status = parse_status(frames.data[start : start + int(frames.size[at])])
    has_payload = frames.head[at] != frames.size[at]
    # A server adds the time to messages, and not to statuses.
    if status is None or has_payload or _text(_TIME) in status.headers:
        raise ProtocolError(
            "a direct get was answered neither with a message of a batch nor with a status: is the "
            "stream on a server older than 2.11?"
        )
    return EndOfBatch(
        number,
        status.code,
        status.description,
        last=whole_number(status.headers.get(_text(_PREVIOUS), "")),
        pending=whole_number(status.headers.get(_text(_PENDING), "")),
        up_to=whole_number(status.headers.get("Nats-UpTo-Sequence", "")),
    )


def _text(line: int) -> str:
    """Return the name of a header that the server adds."""
    return _NAMES[line].removesuffix(b": ").decode()


@dataclass(frozen=True)
class MergedReplies:
    """Several runs of messages as one; implements `MessageRun`.

    `order` holds the index of each message in `parts`.
    """

    parts: Sequence[MessageRun]
    order: IntArray
    sequences: IntArray

    def __len__(self) -> int:
        return len(self.order)

    def timestamps(self) -> IntArray:
        times: IntArray = np.concatenate([part.timestamps() for part in self.parts])[self.order]
        return times

    def subjects(self) -> pa.StringArray:
        return self._in_order([part.subjects() for part in self.parts])

    def raw_subjects(self) -> pa.BinaryArray:
        return self._in_order([part.raw_subjects() for part in self.parts])

    def headers(self) -> pa.MapArray:
        return self._in_order([part.headers() for part in self.parts])

    def payloads(self) -> pa.BinaryArray:
        return self._in_order([part.payloads() for part in self.parts])

    def _in_order(self, arrays: list[pa.Array]) -> pa.Array:
        return pa.concat_arrays(arrays).take(as_arrow(self.order))


def merge(readers: Sequence[Iterator[DirectBatch]], apply: Apply = map) -> Iterator[MessageRun]:
    """Yield the messages of all readers in the order of sequences.

    Holds one run of each reader at a time. The runs of a reader ascend, and no two readers have the
    same message. `apply` is `map`, or calls the function for several readers at the same time.
    """
    # What is left of the run of each reader.
    heads: list[DirectBatch | None] = [None] * len(readers)

    def head_of(number: int) -> DirectBatch | None:
        # A reader yields its next run only when its last one is used up.
        head = heads[number]
        return next(readers[number], None) if head is None else head

    while True:
        heads = list(apply(head_of, range(len(readers))))
        ends = [int(head.sequences[-1]) for head in heads if head is not None]
        if not ends:
            return
        # Everything is known up to the end of the run that ends first.
        known = min(ends)
        parts: list[DirectBatch] = []
        for number, head in enumerate(heads):
            if head is None:
                continue
            inside = int(head.sequences.searchsorted(known, side="right"))
            if inside:
                parts.append(head[:inside])
                heads[number] = head[inside:] if inside < len(head) else None
        yield parts[0] if len(parts) == 1 else _in_order(parts)


def _in_order(parts: Sequence[DirectBatch]) -> MergedReplies:
    """Return the messages of several runs by their sequences."""
    sequences = np.concatenate([part.sequences for part in parts])
    # No two readers have the same message, so sequences are distinct.
    order = np.argsort(sequences, kind="stable")
    return MergedReplies(parts, order, sequences[order])
