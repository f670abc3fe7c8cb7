"""Rows that remove others: roll-ups, and schedules, of which a subject keeps the last one. Pure.

- The task sends a row that removes others when the rows before it have their answers, and the rows
  after it when it has its own. `sub` and schedules concern the rows of their subject, `all`
  concerns all rows.
- It sends a row once more, under another id, when the row was stored before a roll-up that it
  follows. It also sends a roll-up once more that was stored before any row that it must remove.
- With delivery exactly-once a task has one row for each schedule's subject, and no schedule that
  is published once as a copy of its source. Columns `rollup` and `schedule_rollup` are refused for
  the same reason (`sink.kinds.messages`).
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
    as_vector,
    decimal,
    flags,
    piece,
    without,
)
from spark_jetstream.protocol.conventions import SCHEDULED_ID
from spark_jetstream.protocol.hashing import HashMap, subject_hashes
from spark_jetstream.sink.faults import note
from spark_jetstream.sink.header_lines import with_header
from spark_jetstream.sink.kv import rounds
from spark_jetstream.sink.lifetimes import PUBLISHED_ONCE
from spark_jetstream.sink.rows import Rows
from spark_jetstream.sink.window import InFlight


class Rollups:
    """Knows the roll-ups and schedules of one task, which may be `alone` at their subjects."""

    def __init__(self, *, alone: bool) -> None:
        self._alone = alone
        # The subjects of the task, and whether a schedule has each; only if `alone`.
        self._subjects: dict[bytes, bool] = {}
        # Of the messages that the task has stored, by sequence: the last one of each subject, and
        # of all.
        self._last = HashMap()
        self._last_of_all = 0
        # The last roll-up of each subject, and of all subjects.
        self._rolled = HashMap()
        self._rolled_all = 0

    def check(self, rows: Rows) -> None:
        """Note a fault for each row that a second attempt of an exactly-once task would not find.

        It is at the subject of an earlier one, and either is a schedule; or it is a schedule whose
        message has the headers of another.
        """
        if not self._alone:
            return
        _note_copies(rows)
        # A second attempt would not find a schedule that a later row has replaced,
        # and would put it in the place of that row
        # (test_exactly_once_has_one_row_for_each_subject_of_a_schedule).
        for index, is_timed in enumerate(rows.scheduled.tolist()):
            if index in rows.faults:
                continue
            subject = rows.subject[index].as_py()
            is_taken = subject in self._subjects
            if is_taken and (is_timed or self._subjects[subject]):
                rows.faults[index] = (
                    "an earlier row of the task has its subject: with delivery exactly-once a "
                    "schedule must be the only row there; give each schedule its own subject "
                    "(column subject), or set delivery to deduplicated"
                )
            else:
                self._subjects[subject] = is_timed

    def named(self, rows: Rows, ids: pa.BinaryArray | None) -> Rows:
        """Return the rows, those with a schedule with a header that has their message id."""
        if ids is None:
            return rows
        # The server publishes the message of a schedule without its `Nats-Msg-Id`,
        # and removes the schedule if it does not repeat (nats-server: server/scheduler.go).
        # `Scheduled-Msg-Id` says which row it was.
        names = without(ids, ~rows.scheduled)
        return replace(rows, lines=with_header(rows.lines, SCHEDULED_ID.encode(), names))

    def turns(self, rows: Rows) -> Iterator[IntArray]:
        """Yield the indices of rows in turns: those of one may be in flight together."""
        rolling = rows.rolling
        # A row that is sent again after a timeout or a cut could be stored after a later one,
        # and remove it. So no roll-up is in flight with a row that it concerns.
        at = 0
        # A roll-up of all subjects is a turn by itself.
        for cut in np.flatnonzero(rows.rolling_all).tolist():
            yield from self._turns_between(rows, rolling, at, cut)
            yield np.array([cut])
            at = cut + 1
        yield from self._turns_between(rows, rolling, at, len(rows))

    def _turns_between(
        self, rows: Rows, rolling: BoolArray, begin: int, end: int
    ) -> Iterator[IntArray]:
        for some in rounds(rows.subject.slice(begin, end - begin), rolling[begin:end]):
            yield begin + some

    def too_early(self, flight: InFlight) -> tuple[IntArray, IntArray]:
        """Note which messages the rows of a turn are. Every row has its answer.

        Return the indices of the rows that must be sent once more, and the sequence after which
        each must be stored.
        """
        # The stream may have forgotten the ids of an earlier attempt's first rows,
        # and still know those of its later rows. It then stores the first rows again,
        # and drops the later ones as duplicates (test_a_roll_up_whose_id_the_stream_has_forgotten).
        rows = flight.portion.rows
        stored = flight.sequences
        # Each vector has one value for each row: `stored` sequences (0: refused),
        # `before` the sequence that the row must follow, `early` whether it does not.
        keys = subject_hashes(rows.subject)
        rolling = rows.rolling
        whole = rows.rolling_all
        # A roll-up must follow all rows that it removes, and another row only the roll-ups before
        # it.
        before = np.where(rolling, self._last.get(keys), self._rolled.get(keys))
        # A roll-up of all subjects removes every message before it, whatever the subject.
        before = np.where(whole, self._last_of_all, np.maximum(before, self._rolled_all))
        early = flight.known & (stored < before)
        kept = np.flatnonzero(~early & (stored > 0))
        # The last message of each subject in the turn: the first one of each in descending order.
        latest = kept[np.argsort(-stored[kept])]
        subjects, first = np.unique(keys[latest], return_index=True)
        # `HashMap.put` takes distinct hashes only.
        self._last.put(subjects, np.maximum(self._last.get(subjects), stored[latest[first]]))
        self._last_of_all = int(stored[kept].max(initial=self._last_of_all))
        # A turn has at most one roll-up of each subject.
        rolls = kept[rolling[kept]]
        self._rolled.put(keys[rolls], stored[rolls])
        self._rolled_all = int(stored[kept[whole[kept]]].max(initial=self._rolled_all))
        return np.flatnonzero(early), before[early]


def _note_copies(rows: Rows) -> None:
    """Note a fault for each schedule that is published once, as a copy of its source."""
    commands = rows.commands
    if commands.schedule_source is None:
        return
    # The server removes a schedule that does not repeat. Its message then has the headers of the
    # last message at the source, and so no `Scheduled-Msg-Id` of the row (nats-server:
    # server/scheduler.go, getScheduledMessages).
    once = flags(pc.match_substring_regex(commands.schedule, PUBLISHED_ONCE))
    copied = once & as_vector(commands.schedule_source.is_valid())
    note(
        rows.faults,
        copied,
        "with delivery exactly-once a schedule that does not repeat can have no column "
        "schedule_source: its message has the headers of the source; a second attempt could not "
        "recognise the row; set delivery to deduplicated, or leave schedule_source null",
    )


def ids_of_copies(ids: pa.BinaryArray, after: IntArray) -> pa.BinaryArray:
    """Return the message ids of rows that are sent once more, to be stored after sequences."""
    return pc.binary_join_element_wise(ids, decimal(as_arrow(after)), piece(b".after"))
