"""Rows for a Key-Value bucket: its columns, and its keys and operations as messages (ADR-8). Pure.

A PUT is a message with the value; DELETE and PURGE have headers alone. `buckets.kv` has the rest of
the layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.buckets.kv import OPERATION_HEADERS, OPERATIONS, PUT, operation
from spark_jetstream.protocol.arrow import (
    NOTHING,
    BoolArray,
    IntArray,
    as_arrow,
    as_bytes,
    as_vector,
    binaries,
    flags,
    lengths,
    piece,
    repeated,
)
from spark_jetstream.protocol.headers import block_headers
from spark_jetstream.protocol.subjects import KEY_PATTERN, MAX_SUBJECT, key_fault
from spark_jetstream.sink.columns import BYTES, LEFT_OUT_TIME, NUMBER, TEXT, Columns, Types
from spark_jetstream.sink.commands import Commands
from spark_jetstream.sink.faults import note, shown_bytes
from spark_jetstream.sink.header_lines import expected_sequences, with_expected, with_ttl
from spark_jetstream.sink.rows import Rows

_PUT, _DELETE, _PURGE, _UNKNOWN = range(4)
_OPERATIONS = {b"PUT": _PUT, b"DELETE": _DELETE, b"PURGE": _PURGE}
_OPERATION_LINES = binaries(
    [
        "".join(f"{header}: {value}\r\n" for header, value in headers.items()).encode()
        for headers in (*(OPERATION_HEADERS[name] for name in OPERATIONS), {})
    ]
)


class BucketColumns(Columns):
    """The columns of a DataFrame that is written to a Key-Value bucket."""

    accepted: ClassVar[Types] = {
        "key": TEXT,
        "value": BYTES,
        "operation": TEXT,
        "expected_revision": NUMBER,
        "ttl": TEXT,
    }
    ignored: ClassVar[Types] = {"bucket": TEXT, "revision": NUMBER, "timestamp": LEFT_OUT_TIME}
    required: ClassVar[Mapping[str, str]] = {
        "key": ", which says where in the bucket a row goes (string)",
        "value": ", which holds what is put (binary or string)",
    }
    empty_beside: ClassVar[Mapping[str, str]] = {"value": "operation"}
    payload: ClassVar[str] = "value"


def rows_of(
    batch: pa.RecordBatch,
    columns: Columns,
    prefix: str,
    first_number: int,
    *,
    history: bool = False,
) -> Rows:
    """Return the rows of a record batch whose columns `BucketColumns.check` has checked.

    `prefix` begins subjects. With `history` the bucket keeps more than one revision of a key.
    """
    count = batch.num_rows
    faults: dict[int, str] = {}
    given = columns.of(batch)
    key = as_bytes(given["key"])
    _check_keys(key, MAX_SUBJECT - len(prefix), faults)
    data = as_bytes(given["value"])
    lines = repeated(b"", count)
    if "operation" in given:
        operations = _operations(as_bytes(given["operation"]), faults)
        # `operations` (int64) has one of the four numbers above for each row.
        if (operations != _PUT).any():
            lines = _OPERATION_LINES.take(as_arrow(operations))
            # A row with an unknown operation keeps its value: its dead letter shows it.
            removed = as_arrow((operations == _DELETE) | (operations == _PURGE))
            data = pc.if_else(removed, NOTHING, data)
        if history and "ttl" in given:
            # When the mark expires, the value before it is the key's again.
            mortal = pc.and_(
                as_arrow(operations == _DELETE),
                pc.not_equal(as_bytes(given["ttl"]), piece(b"never")),
            )
            note(
                faults,
                mortal,
                "operation DELETE can have no ttl in a bucket that keeps older revisions: use "
                "PURGE",
            )
    note(
        faults,
        pc.is_null(data),
        "column value is null, which only a row with operation DELETE or PURGE may be",
    )
    lines = with_ttl(lines, given, faults)
    # A revision of a key is the sequence of its message (ADR-8).
    expected = expected_sequences(given, "expected_revision", faults)
    lines = with_expected(lines, expected)
    subject = pc.binary_join_element_wise(
        piece(prefix.encode()), pc.fill_null(key, NOTHING), NOTHING
    )
    numbers = np.arange(first_number, first_number + count, dtype=np.int64)
    return Rows(
        numbers,
        subject,
        pc.fill_null(data, NOTHING),
        lines,
        None,
        faults,
        commands=Commands(expected=expected),
    )


def _check_keys(key: pa.BinaryArray, most: int, faults: dict[int, str]) -> None:
    """Note the rows with an invalid key, or one of more than `most` bytes."""
    note(faults, pc.is_null(key), "column key is null")
    # Keys that match need no closer look. Bytes that are not UTF-8 do not match: a key is ASCII.
    doubtful = flags(pc.invert(pc.match_substring_regex(key, KEY_PATTERN))) | (lengths(key) > most)
    for index in np.flatnonzero(doubtful).tolist():
        value = key[index].as_py()
        problem = key_fault(value.decode("utf-8", "replace"))
        long = f"its key has {len(value)} bytes, more than {most}"
        faults.setdefault(index, f"in its key {shown_bytes(value)} {problem}" if problem else long)


def _operations(operation: pa.BinaryArray, faults: dict[int, str]) -> IntArray:
    """Return the operation of each row, and note unknown ones. Looks at each distinct word once."""
    coded = operation.dictionary_encode("encode")
    distinct: list[bytes | None] = coded.dictionary.to_pylist()
    kinds = np.array(
        [_PUT if word is None else _OPERATIONS.get(word.upper(), _UNKNOWN) for word in distinct],
        np.int64,
    )
    codes = as_vector(coded.indices)
    operations: IntArray = kinds[codes]
    for index in np.flatnonzero(operations == _UNKNOWN).tolist():
        word = shown_bytes(distinct[codes[index]])
        faults.setdefault(index, f"column operation is {word}, but must be PUT, DELETE or PURGE")
    return operations


def is_marker(headers: bytes) -> bool:
    """Return whether a message with this header block marks its key as deleted, purged or expired."""
    return operation(block_headers(headers)) != OPERATIONS[PUT]


def rounds(subject: pa.BinaryArray, alone: BoolArray | None = None) -> Iterator[IntArray]:
    """Yield the indices of rows in rounds: each round has a subject once, and each subject has its rows in their order.

    With `alone` only the marked rows must have their subject for themselves: others with the same
    one share a round. Without equal subjects there is one round with all rows; without rows there
    is none.
    """
    coded = subject.dictionary_encode()
    codes = as_vector(coded.indices)
    if len(coded.dictionary) == len(codes):
        # The usual case: no subject comes twice, and no row waits for another.
        yield from [np.arange(len(codes))] if len(codes) else ()
        return
    # Rows sorted by subject, in their own order within each. `codes` has the number
    # of each subject.
    order = np.argsort(codes, kind="stable")
    ranked = codes[order]
    same = ranked[1:] == ranked[:-1]
    # Whether a row must wait for the row before it with the same subject.
    apart = same if alone is None else same & (alone[order[1:]] | alone[order[:-1]])
    count = np.concatenate(([0], np.cumsum(apart)))
    heads = np.flatnonzero(np.concatenate(([True], ~same)))
    # The round of a row is how many rows of its subject had to wait up to it.
    # `heads` are the places of the first row of each subject, whose counts are taken away.
    turn = np.empty(len(codes), np.int64)
    turn[order] = count - np.repeat(count[heads], np.diff(np.append(heads, len(codes))))
    # Stable, so that the rows of a round keep their order.
    by_turn = np.argsort(turn, kind="stable")
    yield from np.split(by_turn, np.cumsum(np.bincount(turn))[:-1])
