"""Rows that are stored whole or not at all: groups, as atomic batches (ADR-50). Pure.

The rows of a group may come anywhere in a task, which holds all rows with a group until it has got
its last row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from spark_jetstream.protocol.arrow import BoolArray, IntArray, as_vector, lengths
from spark_jetstream.sink.faults import shown_bytes
from spark_jetstream.sink.rows import RefusedRow, Rows

_LARGEST = 1000  # rows of a group: no server takes more messages in a batch (ADR-50)


def _codes(rows: Rows) -> npt.NDArray[np.int32]:
    """Return a number for the group of each row, all of which have one."""
    assert rows.commands.group is not None
    return as_vector(rows.commands.group.dictionary_encode().indices)


def whole_groups(held: Sequence[Rows], most: int, size: int) -> Iterator[Rows]:
    """Yield the rows in whole groups, about `most` rows, or `size` bytes, at a time."""
    rows = Rows.joined(held)
    codes = _codes(rows)
    # Sorted by group, with the rows of each in their order; group i ends before `ends[i]`.
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes))
    sizes = lengths(rows.subject) + lengths(rows.data) + lengths(rows.lines)
    bytes_at_ends = np.cumsum(sizes[order])[ends - 1]
    # A portion ends with the group in which rows or bytes reach the next multiple of the limit.
    limits_reached = ends // most + bytes_at_ends // size
    cuts = ends[np.flatnonzero(np.diff(limits_reached, append=-1))]
    for begin, end in pairwise([0, *cuts.tolist()]):
        yield rows.take(order[begin:end])


def sorted_out(rows: Rows, missing: IntArray) -> tuple[list[RefusedRow], Rows]:
    """Return the rows of groups that can never be stored, and those to send (`Rows.ends`).

    `rows` are whole groups with their ids, and `missing` the numbers of the rows that no earlier
    attempt has stored.
    """
    # The rows of a group are neighbours, so a group begins where the code changes. -1 is no code,
    # and makes an edge at both ends.
    edges = np.flatnonzero(np.diff(_codes(rows), prepend=-1, append=-1)).tolist()
    ids = [None] * len(rows) if rows.msg_id is None else rows.msg_id.to_pylist()
    is_missing = np.isin(rows.number, missing)
    expecting = rows.expecting
    refused: list[RefusedRow] = []
    kept: list[int] = []
    ends: list[int] = []
    for begin, end in pairwise(edges):
        at = range(begin, end)
        left = int(np.count_nonzero(is_missing[begin:end]))
        why = _group_fault(rows, at, expecting)
        if why is None and 0 < left < len(at):
            # A server refuses a group of which it has one id (error 10201),
            # so this one can never be whole.
            why = f"the stream has {len(at) - left} of its message ids already"
        if why is not None:
            why = of_group(rows, at, why)
            # A group that is stored as a whole is in neither list.
            refused += [RefusedRow(rows, index, ids[index], why, 0) for index in at]
        elif left:
            kept += at
            ends.append(len(kept))
    return refused, replace(rows.take(np.array(kept, np.int64)), ends=np.array(ends, np.int64))


def _group_fault(rows: Rows, at: range, expecting: BoolArray) -> str | None:
    """Return why no server can store a group, or None."""
    if len(at) > _LARGEST:
        return f"a group has at most {_LARGEST:,} rows"
    for index in at:
        if index in rows.faults:
            return f"row {rows.number[index]} of it: {rows.faults[index]}"
    # A server answers it as it answers a subject with a message under way,
    # for which the sink would wait (test_a_group_that_expects_the_sequence_of_its_own_row).
    late = _late(rows, at, expecting)
    if late is None:
        return None
    return (
        f"row {rows.number[late]} of it: column expected_last_subject_sequence, on a subject that "
        "an earlier row of the group has: the server compares with what was there before the group"
    )


def _late(rows: Rows, at: range, expecting: BoolArray) -> int | None:
    """Return the first row of a group that expects a sequence of the subject of an earlier row."""
    if not expecting[at.start : at.stop].any():
        return None
    earlier: set[bytes] = set()
    for index in at:
        subject = rows.subject[index].as_py()
        if expecting[index] and subject in earlier:
            return index
        earlier.add(subject)
    return None


def of_group(rows: Rows, at: range, why: str) -> str:
    """Return why none of the rows of a group is stored, with its name."""
    assert rows.commands.group is not None
    name = shown_bytes(rows.commands.group[at.start].as_py())
    return f"its group {name} of {len(at):,} rows is stored whole or not at all: {why}"
