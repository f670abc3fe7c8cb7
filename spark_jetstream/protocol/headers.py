"""NATS message headers (ADR-4) of many messages at once, to one Arrow map column. Pure.

A header block is `NATS/1.0` and an optional inline status, then lines `Name: value`, each ended by
CR LF, then an empty line. Blanks around a name or a value do not belong to it. A line without a
colon or without a name is passed over: the server stores whatever block a publisher sends, and one
malformed block must not stop a stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.protocol.arrow import IntArray, as_arrow, as_vector, gather, joined, texts

HEADERS_TYPE = pa.map_(pa.string(), pa.list_(pa.string()))
_RAW_TYPE = pa.map_(pa.binary(), pa.list_(pa.binary()))


def decode_headers(
    data: Any, start: IntArray, length: IntArray, *, raw: bool = False
) -> pa.MapArray:
    """Return header blocks as map<string, list<string>>; null for an empty block.

    Block i is data[start[i]:start[i]+length[i]]. Bytes that are not UTF-8 become U+FFFD; with `raw`
    names and values are the bytes of the block. Never fails: it passes over whatever is not a
    header line.
    """
    count = len(start)
    # int64, the rows in the result of all vectors below; messages without a block have none.
    rows = np.flatnonzero(length)  # those with a block
    if not len(rows):
        return pa.nulls(count, _RAW_TYPE if raw else HEADERS_TYPE)
    # The lines of each block; line first[i] is the first one of block i.
    blocks = pc.split_pattern(gather(data, start[rows], start[rows] + length[rows]), "\r\n")
    first = np.frombuffer(blocks.buffers()[1], np.int32, len(rows) + 1)
    octets, bounds = joined(blocks.values)
    # A header line has a colon that is not its first byte. The version line is none.
    colon = as_vector(pc.find_substring(blocks.values, ":"))
    is_header = colon > 0
    # The first line of a block is `NATS/1.0`, perhaps with a status that has a colon.
    is_header[first[:-1]] = False
    # int64, one for each header line: the row of its message.
    row = np.repeat(rows, np.diff(first))[is_header]
    # The name is in front of the colon, and the value behind it.
    begin = bounds[:-1][is_header]
    end = bounds[1:][is_header]
    colon_at = begin + colon[is_header]
    names = _stripped(gather(octets, begin, colon_at))
    values = _stripped(gather(octets, colon_at + 1, end))
    named = as_vector(pc.binary_length(names)) > 0
    if not named.all():
        # A name of nothing but blanks is none.
        row = row[named]
        names = names.filter(as_arrow(named))
        values = values.filter(as_arrow(named))
    if raw:
        return _assemble(count, row, names, values, _RAW_TYPE)
    return _assemble(count, row, to_text(names), to_text(values), HEADERS_TYPE)


def block_headers(block: bytes) -> dict[str, list[str]]:
    """Return all values of all names of one block, in their order, as `decode_headers` does."""
    length = np.array([len(block)], np.int64)
    # A block without headers is null.
    return dict(decode_headers(block, np.zeros(1, np.int64), length).to_pylist()[0] or ())


def _stripped(pieces: pa.BinaryArray) -> pa.BinaryArray:
    """Return the pieces without spaces and tabs at their ends."""
    # Arrow does that for text, whatever its bytes are.
    return pc.ascii_trim(pieces.view(pa.string()), characters=" \t").view(pa.binary())


def _assemble(
    count: int, row: IntArray, names: pa.Array, values: pa.Array, kind: pa.DataType
) -> pa.MapArray:
    """Return a map for each row of triples (row, name, value) in wire order.

    The values of a name that a row repeats become one list.
    """
    total = len(row)
    # Lines with the same key are values of one header: rows ascend, and each name has a code.
    codes = as_vector(names.dictionary_encode().indices).astype(np.int64)
    # The key of a row begins where that of the row before cannot reach.
    distinct = int(codes.max()) + 1 if total else 1
    key = row * distinct + codes
    # Stable, so that the values of a repeated name keep the order of the wire.
    order = np.argsort(key, kind="stable")
    grouped = key[order]
    # Where each group of equal keys begins.
    is_head = np.ones(total, np.bool_)
    is_head[1:] = grouped[1:] != grouped[:-1]
    heads = np.flatnonzero(is_head)
    if len(heads) == total:
        # No name is repeated: each list has one value, and nothing moves.
        list_bounds = np.arange(total + 1, dtype=np.int32)
        entry_row = row
    else:
        # Groups in the order in which their names came first, their values in wire order.
        first = order[heads]  # the line that has each name first
        arrangement = np.argsort(first, kind="stable")
        sizes = np.diff(np.append(heads, total))[arrangement]
        list_bounds = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
        # For each value, where it is in the order of keys.
        source = np.repeat(heads[arrangement] - list_bounds[:-1], sizes) + np.arange(total)
        values = values.take(as_arrow(order[source]))
        names = names.take(as_arrow(first[arrangement]))
        entry_row = row[first[arrangement]]
    # The maps: as many entries as each row has names.
    per_row = np.bincount(entry_row, minlength=count)
    offsets = np.concatenate(([0], np.cumsum(per_row))).astype(np.int32)
    lists = pa.ListArray.from_arrays(as_arrow(list_bounds), values)
    # A message without any header line has null, not an empty map.
    return pa.MapArray.from_arrays(
        as_arrow(offsets), names, lists, type=kind, mask=as_arrow(per_row == 0)
    )


def to_text(raw: pa.BinaryArray) -> pa.StringArray:
    """Bytes as UTF-8 text; whatever is not valid UTF-8 becomes U+FFFD."""
    try:
        return raw.cast(pa.string())
    # Some value is not UTF-8. Arrow cannot replace its bytes by U+FFFD, and Python can.
    except pa.ArrowInvalid:
        return texts([value.decode("utf-8", "replace") for value in raw.to_pylist()])
