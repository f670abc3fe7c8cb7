"""Header lines of rows (`Name: value` CR LF), made of columns in bulk.

Pure: Arrow in, Arrow out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.protocol.arrow import (
    NOTHING,
    ZERO,
    BoolArray,
    IntArray,
    as_arrow,
    as_bytes,
    as_vector,
    binary,
    decimal,
    piece,
    without,
)
from spark_jetstream.sink.commands import EXPECTED_HEADER, SERVER_HEADERS
from spark_jetstream.sink.faults import BLANK_OR_CONTROL, Faults, note, shown_bytes
from spark_jetstream.sink.lifetimes import ttl_faults

LINE_END = piece(b"\r\n")
_COLON = piece(b": ")
_HEADER_NAME = re.compile(rb"[^\x00-\x20\x7f:]([^\x00-\x1f\x7f:]*[^\x00-\x20\x7f:])?")
_CR_OR_LF = r"[\r\n]"
_NO_VALUE = rf"^\z|{BLANK_OR_CONTROL}"


def header_lines(headers: pa.Array, faults: Faults) -> tuple[pa.BinaryArray, dict[bytes, int]]:
    """Return the header lines of each map, without `SERVER_HEADERS`, and `Rows.left_out`.

    Values of a repeated name follow each other in their order. An invalid header (a null, a name
    with a colon, a line end in a value) is left out, and noted in `faults` by row.
    """
    count = len(headers)
    given = np.flatnonzero(as_vector(headers.is_valid()))
    headers = headers.drop_null()  # a null map may have entries in the child array
    # All entries of all maps, one after the other: name, value (or values), and row of each.
    offsets = as_vector(headers.offsets).astype(np.int64)
    # A slice of a column keeps the child arrays whole: its first entry is at its first offset.
    base = int(offsets[0]) if len(given) else 0
    sizes = np.diff(offsets)
    total = int(sizes.sum())
    names = as_bytes(headers.keys.slice(base, total))
    values = headers.items.slice(base, total)
    row = np.repeat(given, sizes)

    allowed, left_out = _allowed(names, row, faults)
    if not allowed.all():
        names = names.filter(as_arrow(allowed))
        values = values.filter(as_arrow(allowed))
        row = row[allowed]

    # From here on `names` and `values` have one entry for each header line,
    # and `row` (int64, in ascending order) has the index of its row.
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        # One entry for each value of a list.
        note(faults, pc.is_null(values), "column headers holds a null list of values", row)
        counts = as_vector(pc.coalesce(pc.list_value_length(values), ZERO))
        parents = np.repeat(np.arange(len(row)), counts)
        names = names.take(as_arrow(parents))
        row = row[parents]
        values = pc.list_flatten(values)

    values = as_bytes(values)
    # A CR or LF in a value would end the line, and begin another header.
    bad = note(faults, pc.is_null(values), "column headers holds a null value", row)
    broken = pc.match_substring_regex(values, _CR_OR_LF)
    bad |= note(faults, broken, "a value in column headers holds a line end", row)
    if bad.any():
        good = as_arrow(~bad)
        names = names.filter(good)
        values = values.filter(good)
        row = row[~bad]

    # `row` ascends, so the lines of each row are neighbours.
    lines = pc.binary_join_element_wise(names, _COLON, values, LINE_END, NOTHING)
    return _by_row(lines, np.searchsorted(row, np.arange(count + 1))), left_out


def _allowed(
    names: pa.BinaryArray, row: IntArray, faults: Faults
) -> tuple[BoolArray, dict[bytes, int]]:
    """Mark the headers that may be written, note invalid names, and return `Rows.left_out`.

    Looks at each distinct name once.
    """
    coded = names.dictionary_encode()
    distinct: list[bytes] = coded.dictionary.to_pylist()
    # `codes` has the index in `distinct` for each header; `bad` and `drop` have a flag
    # for each name.
    codes = as_vector(coded.indices)
    bad = np.array([not _HEADER_NAME.fullmatch(name) for name in distinct], np.bool_)
    drop = np.array([bool(SERVER_HEADERS.fullmatch(name)) for name in distinct], np.bool_)
    if bad.any():
        for at in np.flatnonzero(bad[codes]):
            name = shown_bytes(distinct[codes[at]])
            reason = f"column headers holds the name {name}, which is not possible"
            faults.setdefault(int(row[at]), reason)
    left_out: dict[bytes, int] = {}
    if drop.any():
        # The values of a dictionary are in the order in which they come first.
        first = row[np.unique(codes, return_index=True)[1]]
        left_out = {distinct[code]: int(first[code]) for code in np.flatnonzero(drop)}
    return ~(bad | drop)[codes], left_out


def _by_row(lines: pa.BinaryArray, bounds: IntArray) -> pa.BinaryArray:
    """Join neighbours without a copy: element i of the result is lines[bounds[i]:bounds[i+1]]."""
    _, offsets, content = lines.buffers()
    if len(lines):
        ends = np.frombuffer(offsets, np.int32, len(lines) + 1)
    else:
        ends = np.zeros(1, np.int32)  # there may be no buffer
    return binary(len(bounds) - 1, ends[bounds], content or b"")


def header_values(values: pa.Array, column: str, faults: Faults) -> pa.BinaryArray:
    """Return the values of a column that becomes a header.

    Invalid ones are noted, and null in the result.
    """
    values = as_bytes(values)
    broken = pc.match_substring_regex(values, _NO_VALUE)
    bad = note(faults, broken, f"column {column} is empty or holds a blank or a control character")
    return without(values, bad)


def ttl_values(values: pa.Array, column: str, faults: Faults) -> pa.BinaryArray:
    """Return the values of a column with TTLs; invalid ones are noted, and null in the result."""
    ttls = header_values(values, column, faults)
    return without(ttls, ttl_faults(ttls, column, faults))


def header(name: bytes, values: pa.BinaryArray) -> pa.BinaryArray:
    """Return a header line for each row whose value is not null, and nothing for the others."""
    lines = pc.binary_join_element_wise(piece(name + b": "), values, LINE_END, NOTHING)
    return pc.fill_null(lines, NOTHING)


def with_header(lines: pa.BinaryArray, name: bytes, values: pa.BinaryArray) -> pa.BinaryArray:
    """Add a header line to the rows whose value is not null."""
    return pc.binary_join_element_wise(lines, header(name, values), NOTHING)


def with_ttl(
    lines: pa.BinaryArray, given: Mapping[str, pa.Array], faults: Faults
) -> pa.BinaryArray:
    """Add the header line of column `ttl`, if there is one. Invalid values are noted."""
    if "ttl" not in given:
        return lines
    return with_header(lines, b"Nats-TTL", ttl_values(given["ttl"], "ttl", faults))


def expected_sequences(
    given: Mapping[str, pa.Array], column: str, faults: Faults
) -> pa.Array | None:
    """Return the column with expected sequences, if there is one.

    Negative ones are noted, and null.
    """
    if column not in given:
        return None
    bad = note(faults, pc.less(given[column], ZERO), f"column {column} is negative")
    return without(given[column], bad)


def with_expected(lines: pa.BinaryArray, expected: pa.Array | None) -> pa.BinaryArray:
    """Add the header lines of expected sequences."""
    if expected is None:
        return lines
    return with_header(lines, EXPECTED_HEADER, decimal(expected))
