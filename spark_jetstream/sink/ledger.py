"""The ledger of delivery exactly-once: where each batch and each task began to write, and what they finished.

Its Key-Value bucket has one key for each partition of a write: `<query id>.<partition>`, or `w-<writeId>.<partition>`
for a batch write. Its value is JSON (`ledger_entry.TaskEntry`)::

    {"version": 2, "batch": 12, "run": "<random>", "attempt": "<random>", "lease": 2.0, "done": false,
     "streams": {"ORDERS": {"created": "<time>", "next": 1001}}, "report": null}

`report` is a `TaskReport` once the task is done. `<query id>.batch` is the entry of the batch (`ledger_batch`).

docs/delivery.md ("How `exactly-once` outlives it") and docs/architecture.md ("Exactly once") have the rules. An attempt
owns its task as long as the entry of the task has its name, and that of the batch the name of its run. It reads both at
least once in half a lease, and sends nothing when it has not seen its names for a lease. What an attempt does:

| the entries | step | what the attempt does | then |
|---|---|---|---|
| are missing, or of an earlier batch | `open` | writes its own | owns the task |
| of the batch: is another run's | `open` | takes it over, waits, reads what the batch has stored | owns the task |
| of the batch: is done | `open` | takes the task's report; the driver compares the rows | stores nothing |
| of the task: is another attempt's, of this run | `open` | waits for its end, reads what it stored | owns the task |
| of the task: is done, by its run | `open` | takes its report, and compares the rows with it | stores nothing |
| of the task: is done, and has no claims | `open` | reads what the task has stored | owns the task |
| are of a later batch | `open` | raises `DeliveryError` | fails |
| are its own | `begin` | notes where a stream ends before the first row goes there; looks for late rows | owns it |
| | `check` | reads both entries before it sends | owns it, or fails if another attempt has written |
| | `recall` | reads what the streams have stored, before it sends a row again | owns it |
| | `finish` | notes its report | has done the task |
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.client.requests import Connect, Requests, settled_info
from spark_jetstream.errors import DeliveryError, OutageError, StreamNotFound
from spark_jetstream.options import SinkOptions
from spark_jetstream.protocol.arrow import IntArray, binaries
from spark_jetstream.protocol.conventions import ledger_label
from spark_jetstream.protocol.stream import StreamSummary, subject_pattern
from spark_jetstream.sink.fitness import refuse_unfit
from spark_jetstream.sink.id_reader import IdReader
from spark_jetstream.sink.ledger_batch import (
    TRIES,
    BatchRecord,
    begun_already,
    begun_by_old_release,
)
from spark_jetstream.sink.ledger_entry import BUCKET, OLD_RUN, STREAM, Slot, TaskEntry, fought_over
from spark_jetstream.sink.message_ids import MessageIds, WriteTask
from spark_jetstream.sink.report import TaskReport
from spark_jetstream.sink.stored_ids import StoredIds
from spark_jetstream.streams.lookup import streams_of

__all__ = ["BUCKET", "FORGOTTEN", "REMEMBERED", "STREAM", "Ledger", "other_rows"]

log = logging.getLogger(__name__)

REMEMBERED = 30 * 86400.0
"""Seconds for which the ledger remembers a batch write with a writeId."""
FORGOTTEN = 86400.0
"""The same for one without, which cannot be run again."""

_LEASE = 2.0  # seconds
_STRAGGLERS = 60.0  # seconds for which a stream may still store what an earlier attempt has sent

Places = dict[str, tuple[IntArray, IntArray]]
"""By stream: the indices of rows that it has stored, and the sequences of their messages."""


class Ledger:
    """The entry of one task, seen by one attempt.

    Methods raise `DeliveryError` if exactly-once is not possible, and what `Requests.call` raises. `resumed` says
    whether an earlier attempt or run may have stored rows of the task. `renaming` has the noted streams that store
    messages under other subjects than theirs.
    """

    def __init__(self, connect: Connect, options: SinkOptions, task: WriteTask) -> None:
        self.resumed = False
        self.renaming: set[str] = set()
        self._requests = Requests(connect, options.connection.retry_timeout)
        self.batch = BatchRecord(self._requests, task, _LEASE, time.monotonic)
        self._stream = options.stream
        self._task = task
        self._slot = Slot(
            self._requests, f"{task.write}.{task.place}", task.expires, TaskEntry.from_json
        )
        self._entry = TaskEntry(
            task.batch, task.run, secrets.token_hex(8), _LEASE
        )  # as this attempt writes it
        self._reader = IdReader(self._requests, ledger_label(self._entry.attempt))
        self._prefix = task.prefix.encode()
        self._own_ids = False  # whether rows may have ids of the user's
        self._scheduled = False  # whether rows may be schedules
        self._seen = 0.0  # when the entry was last asked for and had this attempt's name
        self._written = 0.0  # when this attempt last wrote its entry
        self._window = float(
            "inf"
        )  # the shortest duplicate window of the noted streams, in seconds
        self._patterns: dict[str, re.Pattern[str]] = {}  # the subjects of the noted streams
        self._stored: dict[
            str, StoredIds
        ] = {}  # what earlier attempts have stored, and some of what this one has
        self._taken_over = float("inf")  # when this attempt took the task over from another one
        self._looked = float("inf")  # when it last looked for what that one has stored
        self._scanned: dict[str, int] = {}  # up to which sequence of each stream it has looked

    def open(self, *, own_ids: bool, scheduled: bool = False) -> TaskReport | None:
        """Take the task over. Return its report if it is done, or if its whole batch is.

        `own_ids`: rows may have ids of the user's. `scheduled`: rows may be schedules, which the server removes.
        """
        self._own_ids = own_ids
        self._scheduled = scheduled
        known = self._take()
        if self.batch.entry.done:
            return self._of_batch_done(known)
        if known is not None and _is_finished(known):
            return self._known_report(known)
        self._resume(known)
        return None

    def _take(self) -> TaskEntry | None:
        """Make this attempt the owner of the task, unless the task or its batch is done.

        Return what was noted of the task before. An entry of another run is passed over, unless the batch is done: the
        rows may be in other partitions now.
        """
        batch = self.batch.join()
        for _ in range(TRIES):
            known = self._known_of_batch()
            if batch.done:
                return known
            if known is not None and known.run != self._task.run:
                known = None
            if known is not None:
                if _is_finished(known):
                    return known
                self._entry.streams = dict(known.streams)
            if self._write():
                return known
        raise fought_over(self._slot)

    def _known_of_batch(self) -> TaskEntry | None:
        """Return the entry of the task, None if there is none of this batch. Raise for one of a later batch."""
        known, self._slot.revision = self._slot.read()
        if known is None or known.batch < self._task.batch:
            return None
        if known.batch > self._task.batch:
            raise begun_already(self._task, known.batch)
        if known.run == OLD_RUN:
            raise begun_by_old_release(self._task)
        return known

    def _of_batch_done(self, known: TaskEntry | None) -> TaskReport:
        """Return the report of a task whose batch is done; its counts are right if the partitions are the same."""
        stored_elsewhere = dict(self.batch.entry.report or {}).get("streams", {})
        self._refuse_other_target(list(stored_elsewhere))
        return self._known_report(known)

    def _known_report(self, known: TaskEntry | None) -> TaskReport:
        """Return the report in an entry, for a task that stores nothing more."""
        if known is None or known.report is None:
            return TaskReport(self._task.partition, claims=None, resumed=True)
        report = TaskReport.from_json(known.report)
        return replace(report, duplicates=report.stored, resumed=True)

    def compare(self, finished: TaskReport, rows: int, made: MessageIds) -> TaskReport:
        """Return the report of a task that has stored nothing, since its rows are stored already.

        `finished` is what `open` returned, and `made` has got the `rows` rows of this attempt. Raises `DeliveryError`
        if a task of the same run had other rows. The driver compares the rows of a batch that is done.
        """
        same = (finished.rows, finished.content, finished.own) == (rows, made.content, made.own)
        if not self.batch.entry.done:
            self._refuse_other_target(list(finished.streams))
            if rows != finished.rows:
                raise self._other_rows(
                    f"it was done with {finished.rows} rows, and {rows} came now"
                )
            if not same:
                raise self._other_rows(
                    f"it was done with {rows} rows, and as many came now, but not the same ones"
                )
        if same:
            return finished
        return TaskReport(
            partition=self._task.partition,
            rows=rows,
            stored=rows,
            duplicates=rows,
            content=made.content,
            own=made.own,
            claims=None,
            resumed=True,
        )

    def _refuse_other_target(self, streams: Sequence[str]) -> None:
        if self._stream is not None and streams and self._stream not in streams:
            stored = f"they are in stream {', '.join(streams)}"
            raise self._other_rows(f"{stored}, and option stream names {self._stream}")

    def begin(self, subjects: pa.BinaryArray, stream: str | None) -> frozenset[bytes]:
        """Note the next sequence of `stream`, or of the streams that capture these subjects, unless it is noted.

        Return the subjects that no stream captures: the ledger could not find what is stored there later.
        """
        self._look_again()
        if stream is not None:
            self._note([stream])
            return frozenset()
        names: list[str] = []
        lost: set[bytes] = set()
        for raw in pc.unique(subjects).to_pylist():
            subject = raw.decode("utf-8", "replace")
            if any(pattern.fullmatch(subject) for pattern in self._patterns.values()):
                continue
            capturing = self._requests.call(partial(streams_of, subject=subject))
            names += capturing
            if not capturing:
                lost.add(raw)
        self._note(names)
        return frozenset(lost)

    def check(self) -> None:
        """Return if this attempt owns the task, and will own it for half a lease. Raise `DeliveryError` if not.

        Entries that expire are written again when half of their time is over.
        """
        lease = self._entry.lease
        patience = self._requests.retry_timeout
        deadline, backoff = Deadline(patience), Backoff()
        while time.monotonic() - min(self._seen, self.batch.seen) > lease / 2:
            if deadline.expired:
                raise OutageError(
                    f"bucket {BUCKET} gave no current answer within {lease / 2:g} s, for {patience:g} s (option "
                    "retryTimeout): nothing is sent without knowing that no other attempt has taken over"
                )
            asked = time.monotonic()
            if self._still_owned() and self.batch.still_owned():
                self._seen = asked
            else:
                backoff.pause(deadline)
        expires = self._task.expires
        if expires is not None and time.monotonic() - self._written > expires / 2:
            self.batch.renew()
            if not self._write():
                raise self._superseded()

    def _still_owned(self) -> bool:
        """Read the entry, and return whether the answer is current. Raise if it is another attempt's."""
        entry, revision = self._slot.read()
        if revision < self._slot.revision:
            # A server that was just elected leader may not have applied this attempt's last write yet.
            return False
        if entry is None or entry.attempt != self._entry.attempt:
            raise self._superseded()
        self._slot.revision = revision
        return True

    def find(self, ids: pa.BinaryArray, subjects: pa.BinaryArray, stream: str | None) -> Places:
        """Return which of these rows are stored, as far as it was read. `stream` is the only one that may store them.

        A row is in one stream at most.
        """
        return self._places(self._stored, ids, subjects, stream)

    def _places(
        self,
        stored: Mapping[str, StoredIds],
        ids: pa.BinaryArray,
        subjects: pa.BinaryArray,
        stream: str | None,
    ) -> Places:
        places: Places = {}
        left = np.ones(len(ids), np.bool_)
        for name, known in stored.items():
            sequences = known.find(ids)
            found = (sequences > 0) & left
            if self._own_ids:
                for index in np.flatnonzero(found).tolist():
                    found[index] = self._is_row(
                        ids[index].as_py(), subjects[index].as_py(), name, stream
                    )
            left &= ~found
            indices = np.flatnonzero(found)
            if len(indices):
                places[name] = indices, sequences[indices]
        return places

    def _is_row(self, message_id: bytes, subject: bytes, name: str, stream: str | None) -> bool:
        """Whether the message that stream `name` has with an id is a row with this id: users use ids in two streams."""
        if self._task.has_made(message_id):
            return True
        if stream is not None:
            return name == stream
        return self._patterns[name].fullmatch(subject.decode("utf-8", "replace")) is not None

    def recall(
        self, age: float, after: Mapping[str, int], rows: Sequence[tuple[bytes, bytes, str | None]]
    ) -> list[tuple[str, int] | None]:
        """Return where each of these rows is stored, given by id, subject and stream as for `find`; None if it is not.

        It is None for all as long as the streams surely remember the ids: until `age`, the seconds since the rows were
        first sent, is half a window. `after` holds the last sequence of each stream that was known then; the rows can
        only be after it.
        """
        places: list[tuple[str, int] | None] = [None] * len(rows)
        if age < self._window / 2:
            return places
        stored: dict[str, StoredIds] = {}
        for name in self._entry.streams:
            stored[name] = StoredIds(self._prefix, own=self._own_ids)
            self._read_since(name, self._entry.streams[name], after.get(name, 0) + 1, stored[name])
        for stream in {stream for _, _, stream in rows}:
            at = [index for index, row in enumerate(rows) if row[2] == stream]
            ids = binaries([rows[index][0] for index in at])
            subjects = binaries([rows[index][1] for index in at])
            for name, (found, sequences) in self._places(stored, ids, subjects, stream).items():
                for index, sequence in zip(found.tolist(), sequences.tolist(), strict=True):
                    places[at[index]] = name, sequence
        count = sum(place is not None for place in places)
        log.info(
            "ledger entry %s: %d of %d rows without an answer are stored",
            self._slot.key,
            count,
            len(rows),
        )
        return places

    def survey(self, *, own_ids: bool, scheduled: bool) -> dict[str, tuple[str, StoredIds]]:
        """Take the driver's part of the batch, and return what each stream has stored of the whole batch.

        By stream: when it was created, and the ids. Left out are streams that were deleted since the batch began; what
        a stream has removed is missing. `own_ids` and `scheduled` are those of `open`.
        """
        self._scheduled = scheduled
        self._wait(self._take())
        found: dict[str, tuple[str, StoredIds]] = {}
        for name, note in self.batch.entry.streams.items():
            stored = StoredIds(self._prefix, own=own_ids)
            try:
                state = self._state(name)
            except StreamNotFound:
                state = None
            if state is None or state.created != note["created"]:
                log.warning(
                    "stream %s was deleted since %s was begun: its rows are not compared",
                    name,
                    self._task.where,
                )
                continue
            self._reader.read(state, max(int(note["next"]), state.first_kept), stored)
            self._entry.streams[name] = {"created": state.created, "next": state.last_seq + 1}
            self._remember(state)
            found[name] = state.created, stored
        return found

    def finish(self, report: TaskReport) -> None:
        """Note that the task is done."""
        self._entry.done = True
        self._entry.report = report.to_json()
        if not self._write():
            raise self._superseded()

    # Taking over

    def _wait(self, known: TaskEntry | None) -> None:
        """Wait until earlier attempts of the task and earlier runs of the batch send nothing more."""
        if known is not None:
            threading.Event().wait(known.lease)
        self.batch.wait()

    def _resume(self, known: TaskEntry | None) -> None:
        """Wait until earlier attempts send nothing more, then read what they have stored."""
        batch = self.batch.entry
        if known is None and not batch.earlier:
            return
        self.resumed = True
        log.info(
            "ledger entry %s: another attempt has begun this task, or another run this batch",
            self._slot.key,
        )
        self._wait(known)
        self._looked = self._taken_over = time.monotonic()
        # Rows of an earlier run may have been in any partition.
        notes = batch.streams if batch.earlier else self._entry.streams
        self._entry.streams = {}
        for name, note in notes.items():
            stored = StoredIds(self._prefix, own=self._own_ids)
            try:
                state, first = self._read_since(name, note, 1, stored)
            except StreamNotFound:
                log.warning("stream %s was deleted since, and what was stored in it is gone", name)
                continue
            stored.use_doubled()
            self._stored[name] = stored
            self._entry.streams[name] = {"created": state.created, "next": first}
            self._scanned[name] = state.last_seq
            self._remember(state)
            if state.created != note["created"]:
                self.batch.note_anew({name: self._entry.streams[name]})
        count = sum(map(len, self._stored.values()))
        log.info("ledger entry %s: %d rows are stored already", self._slot.key, count)

    def _look_again(self) -> None:
        """Look for rows that the earlier attempt had in flight, before this one sends what streams may have forgotten.

        The last look is so late that no row can come after it.
        """
        now = time.monotonic()
        if (
            now - self._looked < self._window / 2
            or self._looked - self._taken_over > self._window + _STRAGGLERS
        ):
            return
        self._looked = now
        for name, last in self._scanned.items():
            state, _ = self._read_since(
                name, self._entry.streams[name], last + 1, self._stored[name]
            )
            self._scanned[name] = state.last_seq

    def _read_since(
        self, name: str, note: Mapping[str, Any], first: int, stored: StoredIds
    ) -> tuple[StreamSummary, int]:
        """Add what is stored from the noted sequence on, or `first`; return the state and where reading began."""
        state = self._state(name)
        first = max(first, int(note["next"]))
        if state.created != note["created"]:
            # The stream was deleted and made again: it has lost what was stored.
            first = 1
        elif state.first_kept > first and not self._published_only(state):
            raise DeliveryError(
                f"stream {name} has removed messages from sequence {first} to {state.first_kept - 1} since "
                f"{self._task.where} was begun, so nobody can tell which of its rows are stored (option delivery): "
                "keep messages longer, or let this batch through with deduplicated"
            )
        self._reader.read(state, first, stored)
        if self._scheduled:
            # A schedule that was published meanwhile, before it was read, is gone: its message comes after the end.
            end = state.last_seq
            state = self._state(name)
            self._reader.read(state, end + 1, stored)
        return state, first

    def _published_only(self, state: StreamSummary) -> bool:
        """Whether only schedules can be missing before the first message, which the server has published since."""
        return self._scheduled and state.max_age <= 0 and not state.evicts

    # Streams

    def _note(self, names: Sequence[str]) -> None:
        """Note where streams end that were not noted before."""
        new = [name for name in names if name not in self._entry.streams]
        if not new:
            return
        for name in new:
            state = self._state(name)
            refuse_unfit(state)
            self._entry.streams[name] = {"created": state.created, "next": state.last_seq + 1}
            self._remember(state)
        # First for the batch: what this task stores must be found also by an attempt that has other rows.
        self.batch.note({name: self._entry.streams[name] for name in new})
        if not self._write():
            raise self._superseded()

    def _remember(self, state: StreamSummary) -> None:
        self._window = min(self._window, state.duplicate_window)
        self._patterns[state.name] = subject_pattern(state.subjects)
        if state.transforms:
            self.renaming.add(state.name)

    def _state(self, name: str) -> StreamSummary:
        context = f"read the state of stream {name}, which delivery exactly-once needs"
        state = self._requests.stream(name, context)
        # A server that led the stream before names an end that is too early.
        return (
            state
            if state.followed
            else self._requests.call(partial(settled_info, name=name, context=context))
        )

    # The entry

    def _write(self) -> bool:
        asked = time.monotonic()
        written = self._slot.write(self._entry)
        if written:
            self._seen = self._written = asked
        return written

    def _other_rows(self, why: str) -> DeliveryError:
        return other_rows(self._task, self._task.where, why)

    def _superseded(self) -> DeliveryError:
        return DeliveryError(
            f"another attempt of {self._task.where} has taken over; this one stores nothing more"
        )


def other_rows(task: WriteTask, what: str, why: str) -> DeliveryError:
    """Return the error for a batch, or a part of it, that is written again with other rows."""
    if task.expires is None:
        cause = (
            "the batch was planned anew, because its checkpoint is older or has lost its newest files, or the query "
            "makes other rows each time, as with rand() and uuid(). Go on with the newest checkpoint, or run this "
            "batch alone (trigger(once=True))"
        )
    else:
        cause = "a write that runs again must have the same rows. Take another writeId, or write"
    return DeliveryError(
        f"{what} of {task.write} was written before with other rows ({why}): {cause} "
        "with deduplicated (option delivery), which loses no row but may store rows twice"
    )


def _is_finished(known: TaskEntry) -> bool:
    """Whether a task is done, and its report has claims.

    Without claims the driver cannot compare the rows with those of other tasks. The next attempt then looks the rows up
    in the streams, as if the task were not done.
    """
    return known.done and known.report is not None and known.report.get("claims") is not None
