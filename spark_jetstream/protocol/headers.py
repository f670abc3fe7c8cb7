"""NATS message headers (ADR-4) of many messages at once, to one Arrow map column. Pure.

A header block is `NATS/1.0` and an optional inline status, then lines `Name: value`, each ended by CR LF, then an empty
line. Blanks around a name or a value do not belong to it. A line without a colon or without a name is passed over: the
server stores whatever block a publisher sends, and one malformed block must not stop a stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_jetstream.protocol.vectors import BoolArray
from spark_jetstream.protocol.wire import IntArray, as_arrow, as_vector, gather, joined

HEADERS_TYPE = pa.map_(pa.string(), pa.list_(pa.string()))
_RAW_TYPE = pa.map_(pa.binary(), pa.list_(pa.binary()))

_LF, _CR, _COLON, _SPACE, _TAB = 10, 13, 58, 32, 9
_USUAL = 4  # blanks around names and values that are passed over one by one


def decode_headers(data: Any, start: IntArray, length: IntArray, *, raw: bool = False) -> pa.MapArray:
    """Header blocks data[start[i]:start[i]+length[i]] as map<string, list<string>>; null where there is none.

    Bytes that are not UTF-8 become U+FFFD; with `raw` names and values are bytes as they came. Never fails: whatever is
    not a header line is passed over.
    """
    count = len(start)
    rows = np.flatnonzero(length)
    if not len(rows):
        return pa.nulls(count, _RAW_TYPE if raw else HEADERS_TYPE)
    octets, bounds = joined(gather(data, start[rows], start[rows] + length[rows]))
    begin, end = _lines(octets, bounds)
    block = np.searchsorted(bounds, begin, side="right") - 1
    useful = (begin != bounds[block]) & (end > begin)  # neither the version line nor the empty one
    begin, end, block = begin[useful], end[useful], block[useful]
    colons = np.append(np.flatnonzero(octets == _COLON), len(octets))
    colon = colons[np.searchsorted(colons, begin)]
    has_colon = colon < end
    begin, end, colon, block = begin[has_colon], end[has_colon], colon[has_colon], block[has_colon]
    name_begin, name_end = _stripped(octets, begin, colon)
    named = name_end > name_begin
    value_begin, value_end = _stripped(octets, (colon + 1)[named], end[named])
    names, values = gather(octets, name_begin[named], name_end[named]), gather(octets, value_begin, value_end)
    if raw:
        return _assemble(count, rows[block[named]], names, values, _RAW_TYPE)
    return _assemble(count, rows[block[named]], to_text(names), to_text(values), HEADERS_TYPE)


def block_headers(block: bytes) -> dict[str, list[str]]:
    """The headers of one block: every value of every name, in their order, as `decode_headers` reads them."""
    length = np.array([len(block)], np.int64)
    # A block without headers is null.
    return dict(decode_headers(block, np.zeros(1, np.int64), length).to_pylist()[0] or ())


def _lines(octets: npt.NDArray[np.uint8], bounds: IntArray) -> tuple[IntArray, IntArray]:
    """Where the lines of all blocks begin and end; only CR LF ends one, and a block does."""
    feeds = np.flatnonzero(octets == _LF)
    feeds = feeds[(feeds > 0) & (octets[feeds - 1] == _CR)]
    if len(feeds) and np.isin(bounds[1:] - 1, feeds, assume_unique=True).all():
        return np.concatenate((bounds[:1], feeds[:-1] + 1)), feeds - 1
    # A block that begins with a line feed ends no line of the block before it, which may end with a carriage return.
    feeds = feeds[~np.isin(feeds, bounds, assume_unique=True)]
    ends = np.union1d(feeds + 1, bounds[1:])
    begin = np.concatenate((bounds[:1], ends[:-1]))
    return begin, np.where(np.isin(ends - 1, feeds), ends - 2, ends)


def _stripped(octets: npt.NDArray[np.uint8], begin: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
    """Move both ends inwards over spaces and tabs."""
    begin, end = begin.copy(), end.copy()
    last = len(octets) - 1  # a value without text may begin after it
    steps = 0
    while steps < _USUAL and (blank := (begin < end) & _is_blank(octets[np.minimum(begin, last)])).any():
        begin += blank
        steps += 1
    while steps < _USUAL and (blank := (begin < end) & _is_blank(octets[end - 1])).any():
        end -= blank
        steps += 1
    if steps == _USUAL:
        # Not step by step: a publisher may put 64 KiB of blanks into one value.
        solid = np.flatnonzero(~_is_blank(octets))
        begin = np.minimum(np.append(solid, last + 1)[np.searchsorted(solid, begin)], end)
        end = np.maximum(np.append(-1, solid)[np.searchsorted(solid, end)] + 1, begin)
    return begin, end


def _is_blank(octets: npt.NDArray[np.uint8]) -> BoolArray:
    blank: BoolArray = (octets == _SPACE) | (octets == _TAB)
    return blank


def _assemble(count: int, row: IntArray, names: pa.Array, values: pa.Array, kind: pa.DataType) -> pa.MapArray:
    """One map a row from (row, name, value) in wire order; repeated names of a row become one list."""
    total = len(row)
    codes = as_vector(names.dictionary_encode().indices).astype(np.int64)
    distinct = int(codes.max()) + 1 if total else 1
    key = row * distinct + codes
    order = np.argsort(key, kind="stable")
    grouped = key[order]
    heads = np.flatnonzero(np.concatenate((np.ones(min(total, 1), np.bool_), grouped[1:] != grouped[:-1])))
    if len(heads) == total:
        list_bounds = np.arange(total + 1, dtype=np.int32)
        entry_row = row
    else:
        # Groups in the order in which their names came first, their values in wire order.
        first = order[heads]
        arrangement = np.argsort(first, kind="stable")
        sizes = np.diff(np.append(heads, total))[arrangement]
        list_bounds = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
        source = np.repeat(heads[arrangement] - list_bounds[:-1], sizes) + np.arange(total)
        values = values.take(as_arrow(order[source]))
        names = names.take(as_arrow(first[arrangement]))
        entry_row = row[first[arrangement]]
    per_row = np.bincount(entry_row, minlength=count)
    offsets = np.concatenate(([0], np.cumsum(per_row))).astype(np.int32)
    lists = pa.ListArray.from_arrays(as_arrow(list_bounds), values)
    return pa.MapArray.from_arrays(as_arrow(offsets), names, lists, type=kind, mask=as_arrow(per_row == 0))


def to_text(raw: pa.BinaryArray) -> pa.StringArray:
    """Bytes as UTF-8 text; whatever is not valid UTF-8 becomes U+FFFD."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in raw.to_pylist()], pa.string())
