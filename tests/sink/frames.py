"""Rows of all columns as they go over the wire, and as dead letters: the text of `frames.txt`.

A change of a byte gives rows other message ids, so that a task that runs again stores them twice.
After a change that is meant, run `python -m tests.sink.frames > tests/sink/frames.txt`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from spark_jetstream.protocol.arrow import as_arrow
from spark_jetstream.sink.dead_letters import dead_letters
from spark_jetstream.sink.encode import encode
from spark_jetstream.sink.groups import sorted_out, whole_groups
from spark_jetstream.sink.kv import BucketColumns
from spark_jetstream.sink.kv import rows_of as rows_of_keys
from spark_jetstream.sink.message_ids import MessageIds, Scheme, WriteTask
from spark_jetstream.sink.rollups import Rollups
from spark_jetstream.sink.rows import RefusedRow, Rows
from tests.support.sinking import batch, read_rows


def keyed(**columns: Any) -> Rows:
    given = batch(**columns)
    return rows_of_keys(given, BucketColumns(tuple(given.schema.names)), "$KV.b.", 1)


TASK = WriteTask("query", 7, 0)
HEADERS = [
    [("A", ["1", "2"]), ("Nats-Rollup", ["all"])],
    [("Atomic-Group", ["other"]), ("B", [""])],
    None,
    [("Dead-Letter-Reason", ["old"]), ("KV-Operation", ["PURGE"])],
    [("A", ["größe"]), ("Nats-Expected-Stream", ["S"])],
    [("KV-Operation", [""]), ("KV-Operation", ["DEL"])],
]
#: Columns by case. Each has rows that can never be stored.
CASES: Mapping[str, Rows] = {
    "headers": read_rows(
        data=[b"0", None, b"2", b"3", b"", b"5"],
        subject=["a", "b.c", "a b", "d", "größe", None],
        headers=HEADERS,
        msg_id=["x", None, "y", "z z", None, ""],
    ),
    "ttl, expected": read_rows(
        data=[b"0", b"1", b"2", b"3", b"4", b"5"],
        subject=["a"] * 6,
        headers=HEADERS,
        ttl=["5s", None, "never", "99999999h", "", "1m"],
        expected_last_subject_sequence=[0, 7, None, 1, 2, -1],
        stream=["S", None, "S", "S", "S", "S"],
        sequence=[1, 2, 3, 4, 5, 6],
    ),
    "schedule, rollup": read_rows(
        data=[b"0", b"1", b"2", b"3", b"4", b"5"],
        subject=["a", "b", "c", "d", "e", "f"],
        headers=HEADERS,
        schedule=["@hourly", None, "", "@at 9999-01-01T00:00:00Z", "2030-01-01T00:00:00Z", None],
        schedule_target=["due", "due", "due", "a b", "due", None],
        schedule_ttl=[None, "x y", "5m", "99999999h", "1h", ""],
        rollup=["sub", "all", "sub", "sub", None, "some"],
    ),
    "rollup": read_rows(
        data=[b"0", b"1", b"2", b"3", b"4", b"5"],
        subject=["a", "a", "b", "a", "c", "a"],
        headers=HEADERS,
        rollup=["sub", None, "all", "sub", "", "ALL"],
    ),
    "incr": read_rows(
        data=[b"", None, b"2", b"", None, None],
        subject=["a"] * 6,
        headers=HEADERS,
        incr=["1", "-003", None, "x\r\ny", None, "+5"],
        ttl=[None, None, "5s", None, None, "5s"],
    ),
    "atomic_group": read_rows(
        data=[b"0", b"1", b"2", None, b"4", b"5"],
        subject=["a", "b", "a", "a", "b", "c"],
        headers=HEADERS,
        expected_last_subject_sequence=[3, None, None, None, 1, 0],
        atomic_group=["x", "y", "x", "größe", "y", "a b"],
    ),
    "keys": keyed(
        key=["a", "b", "c", "d", "e", "a..b"],
        value=[b"0", None, b"2", None, b"4", b"5"],
        operation=[None, "DELETE", "purge", "PURGE", "put", "none"],
        expected_revision=[0, 7, None, 9, -1, 1],
        ttl=["5m", None, "never", None, None, "5m"],
    ),
}


def lines() -> Iterator[str]:
    """Yield the outcome of each case, in lines."""
    for name, rows in CASES.items():
        yield f"== {name}"
        yield from lines_of(rows)


def lines_of(rows: Rows) -> Iterator[str]:
    """The rows as read, those that can be stored as frames, and all as dead letters."""
    for number, (subject, block) in enumerate(
        zip(rows.subject.to_pylist(), rows.lines.to_pylist(), strict=True)
    ):
        yield f"row {number}: {subject} {block} {rows.faults.get(number, 'good')}"
    good = np.array([at for at in range(len(rows)) if at not in rows.faults], np.int64)
    sent = rows.take(good)
    ids = MessageIds(TASK, Scheme(origin=True)).ids(sent)
    rollups = Rollups(alone=False)
    named = rollups.named(sent, ids)
    yield f"turns: {[turn.tolist() for turn in rollups.turns(sent)]}"
    yield from _frames(named, ids, "ORDERS")
    yield from _frames(sent, None, None)
    yield from _letters(
        [RefusedRow(rows, at, None, rows.faults.get(at, "why"), 0) for at in range(len(rows))]
    )
    yield from _letters(
        [RefusedRow(sent, at, ids[at].as_py(), "why", 10071) for at in range(len(sent))]
    )
    yield from _groups(rows)


def _groups(rows: Rows) -> Iterator[str]:
    at = np.flatnonzero(
        [b"\r\nAtomic-Group: " in b"\r\n" + block for block in rows.lines.to_pylist()]
    )
    if not len(at):
        return
    for whole in whole_groups([rows.take(at[:2]), rows.take(at[2:])], 100, 1000):
        named = replace(whole, msg_id=MessageIds(TASK, Scheme()).ids(whole))
        refused, sent = sorted_out(named, named.number)
        for row in refused:
            yield f"refused {row.number}: {row.reason}"
        yield from _letters(refused)
        yield from _frames(sent, sent.msg_id, "ORDERS")


def _frames(rows: Rows, ids: pa.BinaryArray | None, stream: str | None) -> Iterator[str]:
    count = len(rows) if rows.ends is None else len(rows.ends)
    frames = encode(rows, ids, stream, inbox="_INBOX.abc", first_number=1)
    for at in range(count):
        yield f"frame: {bytes(frames.frames(at, at + 1))!r}"


def _letters(refused: list[RefusedRow]) -> Iterator[str]:
    letters, ids = dead_letters(refused, "dead", 1 << 20, MessageIds(TASK, dead=True))
    assert ids is not None
    columns = (letters.lines, letters.data, ids.take(as_arrow(np.arange(len(letters)))))
    for block, data, message_id in zip(*(each.to_pylist() for each in columns), strict=True):
        yield f"letter: {block!r} {data!r} {message_id!r}"


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in lines())
