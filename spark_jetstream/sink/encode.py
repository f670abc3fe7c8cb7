r"""Rows to PUB and HPUB frames, in bulk. Pure: Arrow in, bytes out.

::

    PUB  <subject> <inbox>.<number> <size>\r\n<payload>\r\n
    HPUB <subject> <inbox>.<number> <header size> <total size>\r\n<header><payload>\r\n

    header: NATS/1.0\r\n<Name: value\r\n>*\r\n
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.protocol.arrow import (
    NOTHING,
    BoolArray,
    IntArray,
    as_arrow,
    decimal,
    lengths,
    piece,
)
from spark_jetstream.sink.rows import Rows

_CR_LF = b"\r\n"
_VERSION = b"NATS/1.0\r\n"
_PUB = piece(b"PUB ")
_HPUB = piece(b"HPUB ")
_BLANK = piece(b" ")
_LINE_END = piece(_CR_LF)
_FRONT = piece(_CR_LF + _VERSION)


@dataclass(frozen=True)
class Encoded:
    """The frames of n rows in `data`. `bounds` (int64, length n + 1) holds where each begins.

    `size` is the size of header and payload of each row in bytes, which counts against the server's
    `max_payload`. Row i has the reply subject of number `first` + i, or each row that of number
    `first` if they are `shared`. A group (`Rows.ends`) counts as one row: its frames together, the
    size of its largest row, and one reply subject for all.
    """

    data: Any
    bounds: IntArray
    size: IntArray
    first: int
    shared: bool

    def frames(self, first: int, last: int) -> memoryview:
        """Return the frames of rows `first` to `last` - 1."""
        return memoryview(self.data)[int(self.bounds[first]) : int(self.bounds[last])]


def _own_lines(
    rows: Rows, ids: pa.BinaryArray | None, stream: str | None
) -> pa.BinaryArray | bytes:
    """Return the sink's own header lines: bytes if they are the same for every row."""
    expected = b"" if stream is None else f"Nats-Expected-Stream: {stream}\r\n".encode()
    before = piece(expected)
    counting = rows.counting
    if expected and counting.any():
        # A server refuses an increment with this header (error 10171). The acknowledgement names
        # the stream.
        before = pc.if_else(as_arrow(counting), NOTHING, before)
    if ids is None:
        return before if isinstance(before, pa.Array) else expected
    named = pc.binary_join_element_wise(before, piece(b"Nats-Msg-Id: "), ids, _LINE_END, NOTHING)
    return pc.coalesce(named, before) if named.null_count else named


def encode(
    rows: Rows,
    ids: pa.BinaryArray | None,
    stream: str | None,
    *,
    inbox: str,
    first_number: int,
    shared: bool = False,
) -> Encoded:
    """Return the frames of rows.

    Row i asks for its acknowledgement at `<inbox>.<first_number + i>`.

    With `shared` all rows ask for it at `<inbox>.<first_number>`. `ids` are message ids, null for a
    row without one. Only `stream` may store the rows, if it is given; increments of counters do not
    say so.
    """
    # The rows of a group have the number of their group. Its messages ask at one reply subject:
    # the server names the reason of a refusal in the answer to the message that it refuses,
    # and answers each later one with "incomplete".
    number = first_number + np.arange(len(rows))
    if rows.ends is not None:
        number = first_number + np.searchsorted(rows.ends, np.arange(len(rows)), side="right")
        rows = _as_batches(rows, number, inbox)
    # All vectors have one value for each row, in bytes (int64). `own` is one text for all rows
    # where their lines are the same, so that Arrow joins a constant.
    own = _own_lines(rows, ids, stream)
    line_size = lengths(rows.lines)
    own_size = len(own) if isinstance(own, bytes) else lengths(own)
    # A row without header lines is a PUB frame, and the server stores no header block for it.
    headed = own_size + line_size > 0
    head_size = np.where(headed, len(_VERSION) + own_size + line_size + len(_CR_LF), 0)
    size = head_size + lengths(rows.data)
    if shared:
        address = [rows.subject, piece(f" {inbox}.{first_number} ".encode())]
    else:
        reply = piece(f" {inbox}.".encode())
        address = [rows.subject, reply, decimal(as_arrow(number)), _BLANK]
    # Most portions have headers in all rows or in none. Their control lines are made
    # of fewer parts.
    if not headed.any():
        parts = [_PUB, *address, _number(size), _LINE_END]
    elif headed.all():
        parts = [_HPUB, *address, _number(head_size), _BLANK, _number(size)]
        parts += [piece(_CR_LF + _VERSION + own)] if isinstance(own, bytes) else [_FRONT, own]
        parts += [rows.lines, _LINE_END] if line_size.any() else [_LINE_END]
    else:
        parts = _mixed_parts(rows, address, own, headed, head_size, size)
    joined = pc.binary_join_element_wise(*parts, rows.data, _LINE_END, NOTHING)
    # The value buffer goes to the connection without a copy. The offsets (int32) say where the
    # frame of each row begins, so that the row can be sent again.
    _, offsets, data = joined.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(rows) + 1).astype(np.int64)
    if rows.ends is not None:
        edges = np.concatenate(([0], rows.ends))
        bounds = bounds[edges]
        # The server compares each message of a group with `max_payload`.
        size = np.maximum.reduceat(size, edges[:-1])
    # Arrow has no value buffer for an array without rows.
    return Encoded(data or b"", bounds, size, first_number, shared)


def _as_batches(rows: Rows, number: IntArray, inbox: str) -> Rows:
    """Return the rows of groups with the header lines of atomic batches.

    `number` is that of each row's group.
    """
    assert rows.ends is not None
    places = np.arange(1, len(rows) + 1)
    sizes = np.diff(rows.ends, prepend=0)
    before = np.repeat(rows.ends - sizes, sizes)  # rows of earlier groups
    is_last = as_arrow(np.isin(places, rows.ends))
    # The id is the same each time: the first message of a batch that is sent again ends what the
    # server still has of an earlier try. All copies hold the same bytes, so no mixture of two can
    # be stored. Sequences in a batch begin at 1 (ADR-50).
    lines = pc.binary_join_element_wise(
        rows.lines,
        piece(f"Nats-Batch-Id: {inbox.rpartition('.')[2]}.".encode()),
        decimal(as_arrow(number)),
        piece(b"\r\nNats-Batch-Sequence: "),
        decimal(as_arrow(places - before)),
        pc.if_else(is_last, piece(b"\r\nNats-Batch-Commit: 1\r\n"), _LINE_END),
        NOTHING,
    )
    return replace(rows, lines=lines)


def _mixed_parts(
    rows: Rows,
    address: list[Any],
    own: pa.BinaryArray | bytes,
    headed: BoolArray,
    head_size: IntArray,
    size: IntArray,
) -> list[Any]:
    """Return the parts of frames before the payload. Only those of `headed` rows have headers."""
    has = as_arrow(headed)

    def only_headed(part: Any) -> pa.BinaryArray:
        return pc.if_else(has, part, NOTHING)

    return [
        pc.if_else(has, _HPUB, _PUB),
        *address,
        only_headed(decimal(as_arrow(head_size))),
        only_headed(_BLANK),
        _number(size),
        _LINE_END,
        only_headed(piece(_VERSION)),
        # Rows without headers have no lines of either kind, so these parts are empty for them.
        piece(own) if isinstance(own, bytes) else own,
        rows.lines,
        only_headed(_LINE_END),
    ]


def _number(values: IntArray) -> Any:
    """Sizes as digits: one constant if they are all the same, which is frequent."""
    if len(values) and (values == values[0]).all():
        return piece(b"%d" % values[0])
    return decimal(as_arrow(values))
