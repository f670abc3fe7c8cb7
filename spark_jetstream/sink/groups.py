"""Rows that are stored whole or not at all: the groups of column `atomic_group` (ADR-50, atomic batches). Pure.

The rows of a group may come anywhere in a task, which holds all rows with a group until it has got its last row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.buckets.kv import EXPECTED
from spark_jetstream.protocol.arrow import IntArray, as_vector, flags, lengths
from spark_jetstream.sink.rows import GROUP, RefusedRow, Rows, shown_bytes

_LARGEST = 1000  # rows of a group: no server takes more messages in a batch (ADR-50)
_EXPECTS = f"(?m)^{EXPECTED}:"
_NAME = rf"(?m)^{GROUP.decode()}(?P<name>[^\r]*)"


def group_names(rows: Rows) -> pa.BinaryArray:
    """Return the group of each row, null for a row without one."""
    return pc.struct_field(pc.extract_regex(rows.lines, _NAME), "name")


def _codes(rows: Rows) -> npt.NDArray[np.int32]:
    """Return a number for the group of each row, all of which have one."""
    return as_vector(group_names(rows).dictionary_encode().indices)


def whole_groups(held: Sequence[Rows], most: int, size: int) -> Iterator[Rows]:
    """Yield the rows in whole groups: about `most` rows, or `size` bytes, at a time, and never a part of a group."""
    subject, data, lines = (
        pa.concat_arrays([vars(one)[key] for one in held]) for key in ("subject", "data", "lines")
    )
    msg_id = None if held[0].msg_id is None else pa.concat_arrays([part.msg_id for part in held])
    starts = np.cumsum([0, *map(len, held)]).tolist()
    faults = {
        start + at: why
        for start, part in zip(starts, held, strict=False)
        for at, why in part.faults.items()
    }
    origin = None if held[0].origin is None else pa.concat_arrays([part.origin for part in held])
    numbers = np.concatenate([part.number for part in held])
    rows = Rows(numbers, subject, data, lines, msg_id, faults, origin=origin)
    codes = _codes(rows)
    order, ends = np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))
    sizes = lengths(subject) + lengths(data) + lengths(lines)
    cuts = ends[
        np.flatnonzero(np.diff(ends // most + np.cumsum(sizes[order])[ends - 1] // size, append=-1))
    ]
    for begin, end in pairwise([0, *cuts.tolist()]):
        yield rows.take(order[begin:end])


def sorted_out(rows: Rows, missing: IntArray) -> tuple[list[RefusedRow], Rows]:
    """Return the rows of groups that can never be stored, and those to send (`Rows.ends`), without those stored.

    `rows` are whole groups with their ids, and `missing` the numbers of the rows that no earlier attempt has stored.
    """
    edges = np.flatnonzero(np.diff(_codes(rows), prepend=-1, append=-1)).tolist()
    ids = [None] * len(rows) if rows.msg_id is None else rows.msg_id.to_pylist()
    expecting = frozenset(
        np.flatnonzero(flags(pc.match_substring_regex(rows.lines, _EXPECTS))).tolist()
    )
    refused, kept, ends = list[RefusedRow](), list[int](), list[int]()
    for at in map(range, edges, edges[1:]):
        left, fault = (
            int(np.isin(rows.number[at], missing).sum()),
            next(filter(rows.faults.get, at), None),
        )
        if len(at) > _LARGEST:
            why = f"a group has at most {_LARGEST:,} rows"
        elif fault is not None:
            why = f"row {rows.number[fault]} of it: {rows.faults[fault]}"
        elif (late := _late(rows, at, expecting)) is not None:
            why = (
                f"row {rows.number[late]} of it: column expected_last_subject_sequence, on a subject that an earlier "
                "row of the group has: the server compares with what was there before the group"
            )
        elif 0 < left < len(at):
            why = f"the stream has {len(at) - left} of its message ids already"
        else:
            if left:
                kept += at
                ends.append(len(kept))
            continue
        why = of_group(rows, at, why)
        refused += [RefusedRow(rows, index, ids[index], why, 0) for index in at]
    return refused, replace(rows.take(np.array(kept, np.int64)), ends=np.array(ends, np.int64))


def _late(rows: Rows, at: Sequence[int], expecting: frozenset[int]) -> int | None:
    """Return the first row of a group that expects a sequence of a subject which an earlier row of the group has."""
    earlier = set[bytes]()
    for index in at if not expecting.isdisjoint(at) else ():
        subject = rows.subject[index].as_py()
        if index in expecting and subject in earlier:
            return index
        earlier.add(subject)
    return None


def of_group(rows: Rows, at: Sequence[int], why: str) -> str:
    """Return why none of the rows of a group is stored, with its name."""
    name = shown_bytes(group_names(rows.take(np.array(at[:1])))[0].as_py())
    return f"its group {name} of {len(at):,} rows is stored whole or not at all: {why}"
