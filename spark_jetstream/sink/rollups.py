"""Rows that remove others: roll-ups (column `rollup`), and schedules, of which a subject keeps the last one. Pure.

- The task sends such a row when the rows before it have their answers, and the rows after it when it has its own: a row
  that is sent again after a timeout or a cut could otherwise be stored after a later one, and remove it. `sub` and
  schedules concern the rows of their subject, `all` concerns all rows.
- The stream may have forgotten the message ids of an earlier attempt's first rows, and still know those of its later
  rows: it would store the first rows again and drop the later ones as duplicates. The task therefore sends a row once
  more, without an id, when it was stored before a roll-up that it follows, and a roll-up also when it was stored before
  any row that it must remove.
- With delivery exactly-once a task has one row for each schedule's subject: of two, a second attempt would not find the
  first, and put it in the place of the second. Column `rollup` is refused for the same reason (`sink.preflight`).

The server publishes the message of a schedule without its `Nats-Msg-Id`, and removes the schedule if it does not repeat
(nats-server: server/scheduler.go). `Scheduled-Msg-Id` says which row it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.protocol.arrow import (
    BoolArray,
    IntArray,
    as_arrow,
    decimal,
    flags,
    piece,
    without,
)
from spark_jetstream.protocol.conventions import SCHEDULED_ID
from spark_jetstream.protocol.hashing import HashMap, subject_hashes
from spark_jetstream.sink.kv import rounds
from spark_jetstream.sink.rows import Rows, with_header
from spark_jetstream.sink.window import InFlight

# Header lines of rows, as patterns.
_SCHEDULE, _ROLLING, _OF_ALL = "Nats-Schedule: ", "Nats-(Schedule|Rollup): ", "Nats-Rollup: all\r"


class Rollups:
    """Knows the roll-ups and schedules of one task, which may be `alone` at their subjects."""

    def __init__(self, *, alone: bool) -> None:
        self._alone = alone
        self._subjects: dict[
            bytes, bool
        ] = {}  # those of the task, and whether a schedule has it; only if `alone`
        self._last = (
            HashMap()
        )  # the last message of each subject that the task has stored, by its sequence
        self._last_of_all = 0  # the same of all subjects
        self._rolled = HashMap()  # those of them that are the last roll-up of each subject
        self._rolled_all = 0  # the last roll-up of all subjects

    def check(self, rows: Rows) -> None:
        """Note a fault for each row whose subject is that of an earlier row, if one of the two has a schedule."""
        for index, timed in enumerate(_having(rows, _SCHEDULE).tolist()) if self._alone else ():
            subject = rows.subject[index].as_py()
            if (
                index not in rows.faults
                and (timed or self._subjects.get(subject))
                and subject in self._subjects
            ):
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
        return replace(
            rows,
            lines=with_header(
                rows.lines, SCHEDULED_ID.encode(), without(ids, ~_having(rows, _SCHEDULE))
            ),
        )

    def turns(self, rows: Rows) -> Iterator[IntArray]:
        """Yield the indices of rows in turns: those of one may be in flight together."""
        rolling, at = _having(rows, _ROLLING), 0
        for cut in [*np.flatnonzero(_having(rows, _OF_ALL)).tolist(), len(rows)]:
            for some in rounds(rows.subject.slice(at, cut - at), rolling[at:cut]):
                yield at + some
            if cut < len(rows):
                yield np.array([cut])
            at = cut + 1

    def too_early(self, flight: InFlight) -> tuple[IntArray, IntArray]:
        """Note which messages the rows of a turn are. Every row has its answer.

        Return the indices of those that must be sent once more, and the sequence after which each must be stored.
        """
        rows, stored = flight.portion.rows, flight.sequences
        keys, rolling, whole = (
            subject_hashes(rows.subject),
            _having(rows, _ROLLING),
            _having(rows, _OF_ALL),
        )
        before = np.where(rolling, self._last.get(keys), self._rolled.get(keys))
        before = np.where(whole, self._last_of_all, np.maximum(before, self._rolled_all))
        early = flight.known & (stored < before)
        kept = np.flatnonzero(~early & (stored > 0))
        latest = kept[np.argsort(-stored[kept])]
        subjects, first = np.unique(keys[latest], return_index=True)
        self._last.put(subjects, np.maximum(self._last.get(subjects), stored[latest[first]]))
        self._last_of_all = int(stored[kept].max(initial=self._last_of_all))
        rolls = kept[rolling[kept]]
        self._rolled.put(keys[rolls], stored[rolls])
        self._rolled_all = int(stored[kept[whole[kept]]].max(initial=self._rolled_all))
        return np.flatnonzero(early), before[early]


def ids_of_copies(ids: pa.BinaryArray, after: IntArray) -> pa.BinaryArray:
    """Return the message ids of rows that are sent once more, each to be stored after a sequence."""
    return pc.binary_join_element_wise(ids, decimal(as_arrow(after)), piece(b".after"))


def _having(rows: Rows, line: str) -> BoolArray:
    """Mark the rows with a header line that begins so."""
    return flags(pc.match_substring_regex(rows.lines, f"(?m)^{line}"))
