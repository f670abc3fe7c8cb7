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

from spark_jetstream.protocol.arrow import NOTHING, IntArray, as_arrow, decimal, lengths, piece
from spark_jetstream.sink.rows import INCREMENT, Rows

_CR_LF = b"\r\n"
_VERSION = b"NATS/1.0\r\n"
_PUB, _HPUB, _BLANK, _LINE_END = (piece(part) for part in (b"PUB ", b"HPUB ", b" ", _CR_LF))
_FRONT = piece(_CR_LF + _VERSION)


@dataclass(frozen=True)
class Encoded:
    """The frames of n rows, one after the other in `data`; `bounds` (int64, length n + 1) holds where each begins.

    `size` is the size of header and payload of each row in bytes, which counts against the server's `max_payload`. Row
    i has the reply subject of number `first` + i, or each row that of number `first` if they are `shared`. A group
    (`Rows.ends`) counts as one row: its frames together, the size of its largest row, and one reply subject for all.
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
    """The sink's own header lines: bytes if they are the same for every row, empty if there are none."""
    expected = b"" if stream is None else f"Nats-Expected-Stream: {stream}\r\n".encode()
    before = piece(expected)
    if expected and pc.any(counting := pc.starts_with(rows.lines, INCREMENT)).as_py():
        # A server refuses an increment with this header (error 10171). The acknowledgement names the stream.
        before = pc.if_else(counting, NOTHING, before)
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
    """Return the frames of rows. Row i asks for its acknowledgement at `<inbox>.<first_number + i>`.

    With `shared` all rows ask for it at `<inbox>.<first_number>`. `ids` are message ids, null for a row without one.
    Only `stream` may store the rows, if it is given; increments of counters do not say so.
    """
    count = len(rows)
    number, parts = first_number + np.arange(count), list[Any]()
    if rows.ends is not None:
        # Sent again, a batch has the same id: its first message ends what the server still has of an earlier try.
        edges = np.concatenate(([0], rows.ends))
        at = np.repeat(edges[:-1], np.diff(edges))
        number = first_number + np.searchsorted(edges, at)
        parts = [
            piece(f"Nats-Batch-Id: {inbox.rpartition('.')[2]}.".encode()),
            decimal(as_arrow(number)),
        ]
        parts += [
            piece(b"\r\nNats-Batch-Sequence: "),
            decimal(as_arrow(np.arange(1, count + 1) - at)),
        ]
        last = as_arrow(np.isin(np.arange(1, count + 1), edges))
        parts += [pc.if_else(last, piece(b"\r\nNats-Batch-Commit: 1\r\n"), _LINE_END), NOTHING]
        rows = replace(rows, lines=pc.binary_join_element_wise(rows.lines, *parts))
    own = _own_lines(rows, ids, stream)
    line_size = lengths(rows.lines)
    own_size = len(own) if isinstance(own, bytes) else lengths(own)
    headed = own_size + line_size > 0
    head_size = np.where(headed, len(_VERSION) + own_size + line_size + len(_CR_LF), 0)
    size = head_size + lengths(rows.data)
    if shared:
        parts = [rows.subject, piece(f" {inbox}.{first_number} ".encode())]
    else:
        parts = [rows.subject, piece(f" {inbox}.".encode()), decimal(as_arrow(number)), _BLANK]
    if not headed.any():
        parts = [_PUB, *parts, _number(size), _LINE_END]
    elif headed.all():
        parts = [_HPUB, *parts, _number(head_size), _BLANK, _number(size)]
        parts += [piece(_CR_LF + _VERSION + own)] if isinstance(own, bytes) else [_FRONT, own]
        parts += [rows.lines, _LINE_END] if line_size.any() else [_LINE_END]
    else:
        has = as_arrow(headed)

        def where(part: Any) -> pa.BinaryArray:
            return pc.if_else(has, part, NOTHING)

        parts = [
            pc.if_else(has, _HPUB, _PUB),
            *parts,
            where(decimal(as_arrow(head_size))),
            where(_BLANK),
        ]
        parts += [_number(size), _LINE_END, where(piece(_VERSION))]
        parts += [piece(own) if isinstance(own, bytes) else own, rows.lines, where(_LINE_END)]
    joined = pc.binary_join_element_wise(*parts, rows.data, _LINE_END, NOTHING)
    _, offsets, data = joined.buffers()
    bounds = np.frombuffer(offsets, np.int32, count + 1).astype(np.int64)
    if rows.ends is not None:
        bounds, size = bounds[edges], np.maximum.reduceat(size, edges[:-1])
    return Encoded(data or b"", bounds, size, first_number, shared)


def _number(values: IntArray) -> Any:
    """Sizes as digits: one constant if they are all the same, which is frequent."""
    if len(values) and (values == values[0]).all():
        return piece(b"%d" % values[0])
    return decimal(as_arrow(values))
