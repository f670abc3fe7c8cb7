"""Rows that remove others: roll-ups (column `rollup`), and schedules, of which a subject keeps the last one. Pure.

- The task sends such a row when the rows before it have their answers, and the rows after it when it has its own: a row
  that is sent again after a timeout or a cut could otherwise be stored after a later one, and remove it. `sub` and
  schedules concern the rows of their subject, `all` concerns all rows.
- The stream may have forgotten the message id of an earlier attempt's roll-up, and still know those of the rows after
  it: it would store the roll-up again, which removes these rows, and drop them as duplicates. The task therefore sends
  a row once more, without an id, when it was stored before a roll-up that it follows.
- With delivery exactly-once a task has one row for each schedule's subject: of two, a second attempt would not find the
  first, and put it in the place of the second. Column `rollup` is refused for the same reason (`sink.preflight`).

The server publishes the message of a schedule without its `Nats-Msg-Id`, and removes the schedule if it does not repeat
(nats-server: server/scheduler.go). `Scheduled-Msg-Id` says which row it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.protocol.conventions import SCHEDULED_ID
from spark_jetstream.protocol.hashing import HashMap, subject_hashes
from spark_jetstream.sink.kv import rounds
from spark_jetstream.sink.rows import ROLLUP, SCHEDULE, IntArray, Rows, with_header
from spark_jetstream.sink.window import InFlight

Mask = npt.NDArray[np.bool_]


class Rollups:
    """Knows the roll-ups and schedules of one task, which may be `alone` at their subjects."""

    def __init__(self, *, alone: bool) -> None:
        self._alone = alone
        self._subjects: dict[bytes, bool] = {}  # those of the task, and whether a schedule has it; only if `alone`
        self._last = HashMap()  # as which message the last roll-up of each subject is stored
        self._last_of_all = 0  # the same of the last one of the whole stream

    def check(self, rows: Rows) -> None:
        """Note a fault for each row whose subject is that of an earlier row, if one of the two has a schedule."""
        for index, timed in enumerate(_scheduled(rows).tolist()) if self._alone else ():
            subject = rows.subject[index].as_py()
            if index not in rows.faults and (timed or self._subjects.get(subject)) and subject in self._subjects:
                rows.faults[index] = (
                    "an earlier row of the task has its subject, and with delivery exactly-once a schedule must be the "
                    "only row there: give each one its own (column subject), or set delivery to deduplicated"
                )
            if index not in rows.faults:
                self._subjects[subject] = timed

    def named(self, rows: Rows, ids: pa.BinaryArray | None) -> Rows:
        """Return the rows, those with a schedule with a header that has their message id."""
        if ids is None:
            return rows
        ids = pc.if_else(pa.array(_scheduled(rows)), ids, pa.scalar(None, pa.binary()))
        return replace(rows, lines=with_header(rows.lines, SCHEDULED_ID, ids))

    def turns(self, rows: Rows) -> Iterator[IntArray]:
        """Yield the indices of rows in turns: those of one may be in flight together."""
        rolling, at = _rolling(rows), 0
        for cut in [*np.flatnonzero(_of_all(rows)).tolist(), len(rows)]:
            for some in rounds(rows.subject.slice(at, cut - at), rolling[at:cut]):
                yield at + some
            if cut < len(rows):
                yield np.array([cut])
            at = cut + 1

    def removed(self, flight: InFlight) -> IntArray:
        """Return the indices of rows that a roll-up before them has removed. Every row of `flight` has its answer."""
        rows, stored = flight.portion.rows, flight.sequences
        keys = subject_hashes(rows.subject)
        removed: Mask = flight.known & (stored < np.maximum(self._last.get(keys), self._last_of_all))
        rolling = _rolling(rows) & ~removed & (stored > 0)
        self._last.put(keys[rolling], stored[rolling])
        self._last_of_all = max(self._last_of_all, *stored[_of_all(rows) & rolling], 0)
        return np.flatnonzero(removed)


def _scheduled(rows: Rows) -> Mask:
    return _with(rows, SCHEDULE)


def _rolling(rows: Rows) -> Mask:
    return _scheduled(rows) | _with(rows, ROLLUP)


def _of_all(rows: Rows) -> Mask:
    return _with(rows, ROLLUP, "all\r")


def _with(rows: Rows, header: bytes, value: str = "") -> Mask:
    """Mark the rows with a header whose value begins so."""
    marks = pc.match_substring_regex(rows.lines, f"(?m)^{header.decode()}: {value}")
    return np.asarray(marks.to_numpy(zero_copy_only=False), np.bool_)
