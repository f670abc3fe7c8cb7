"""NATS message headers (ADR-4) of many messages at once, to one Arrow map column. Pure.

A header block is `NATS/1.0` and an optional inline status, then lines `Name: value`, each ended by CR LF, then an empty
line. Blanks around a name or a value do not belong to it. A line without a colon or without a name is passed over: the
server stores whatever block a publisher sends, and one malformed block must not stop a stream.
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
    """Header blocks data[start[i]:start[i]+length[i]] as map<string, list<string>>; null where there is none.

    Bytes that are not UTF-8 become U+FFFD; with `raw` names and values are bytes as they came. Never fails: whatever is
    not a header line is passed over.
    """
    count = len(start)
    rows = np.flatnonzero(length)
    if not len(rows):
        return pa.nulls(count, _RAW_TYPE if raw else HEADERS_TYPE)
    blocks = pc.split_pattern(gather(data, start[rows], start[rows] + length[rows]), "\r\n")
    first = np.frombuffer(blocks.buffers()[1], np.int32, len(rows) + 1)
    octets, bounds = joined(blocks.values)
    colon = as_vector(pc.find_substring(blocks.values, ":"))
    is_header = colon > 0
    is_header[first[:-1]] = False  # the version line
    row = np.repeat(rows, np.diff(first))[is_header]
    begin, end, colon = (
        bounds[:-1][is_header],
        bounds[1:][is_header],
        (bounds[:-1] + colon)[is_header],
    )
    names, values = (
        _stripped(gather(octets, begin, colon)),
        _stripped(gather(octets, colon + 1, end)),
    )
    named = as_vector(pc.binary_length(names)) > 0
    if not named.all():
        row, names, values = (
            row[named],
            names.filter(as_arrow(named)),
            values.filter(as_arrow(named)),
        )
    if raw:
        return _assemble(count, row, names, values, _RAW_TYPE)
    return _assemble(count, row, to_text(names), to_text(values), HEADERS_TYPE)


def block_headers(block: bytes) -> dict[str, list[str]]:
    """The headers of one block: every value of every name, in their order, as `decode_headers` reads them."""
    length = np.array([len(block)], np.int64)
    # A block without headers is null.
    return dict(decode_headers(block, np.zeros(1, np.int64), length).to_pylist()[0] or ())


def _stripped(pieces: pa.BinaryArray) -> pa.BinaryArray:
    """The pieces without spaces and tabs at their ends; Arrow does that for text, whatever its bytes are."""
    return pc.ascii_trim(pieces.view(pa.string()), characters=" \t").view(pa.binary())


def _assemble(
    count: int, row: IntArray, names: pa.Array, values: pa.Array, kind: pa.DataType
) -> pa.MapArray:
    """One map a row from (row, name, value) in wire order; repeated names of a row become one list."""
    total = len(row)
    codes = as_vector(names.dictionary_encode().indices).astype(np.int64)
    distinct = int(codes.max()) + 1 if total else 1
    key = row * distinct + codes
    order = np.argsort(key, kind="stable")
    grouped = key[order]
    heads = np.flatnonzero(
        np.concatenate((np.ones(min(total, 1), np.bool_), grouped[1:] != grouped[:-1]))
    )
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
    return pa.MapArray.from_arrays(
        as_arrow(offsets), names, lists, type=kind, mask=as_arrow(per_row == 0)
    )


def to_text(raw: pa.BinaryArray) -> pa.StringArray:
    """Bytes as UTF-8 text; whatever is not valid UTF-8 becomes U+FFFD."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return texts([value.decode("utf-8", "replace") for value in raw.to_pylist()])
