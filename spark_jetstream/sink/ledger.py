"""The ledger of delivery exactly-once: where each batch and each task began to write, and its end.

Its Key-Value bucket has one key for each partition of a write: `<query id>.<partition>`, or
`w-<writeId>.<partition>` for a batch write. Its value is JSON (`ledger_entry.TaskEntry`)::

    {"version": 2, "batch": 12, "run": "<random>", "attempt": "<random>", "lease": 2.0,
     "done": false, "streams": {"ORDERS": {"created": "<time>", "next": 1001}}, "report": null}

`report` is a `TaskReport` once the task is done. `<query id>.batch` is the entry of the batch
(`ledger_batch`).

docs/delivery.md ("How `exactly-once` works") and docs/architecture.md ("Exactly once") have the
rules. An attempt owns its task as long as the entry of the task has its name, and that of the
batch the name of its run. It reads both at least once in half a lease, and sends nothing when it
has not seen its names for a lease. An attempt takes these steps:

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
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.client.requests import Connect, Requests
from spark_jetstream.errors import DeliveryError, OutageError, StreamNotFound
from spark_jetstream.options import SinkOptions
from spark_jetstream.protocol.arrow import binaries
from spark_jetstream.sink.fitness import refuse_unfit
from spark_jetstream.sink.ledger_batch import (
    TRIES,
    BatchRecord,
    begun_already,
    begun_by_old_release,
)
from spark_jetstream.sink.ledger_entry import (
    BUCKET,
    OLD_RUN,
    STREAM,
    LedgerSlot,
    TaskEntry,
    fought_over,
)
from spark_jetstream.sink.ledger_search import BatchSearch, EarlierRows, StoredRows
from spark_jetstream.sink.ledger_streams import NotedStreams, end_of
from spark_jetstream.sink.message_ids import MessageIds, WriteTask
from spark_jetstream.sink.report import TaskReport
from spark_jetstream.sink.stored_ids import StoredIds
from spark_jetstream.streams.lookup import streams_of

__all__ = [
    "BUCKET",
    "FORGOTTEN",
    "REMEMBERED",
    "STREAM",
    "USUAL_TIMES",
    "Ledger",
    "LedgerTimes",
    "other_rows",
]

log = logging.getLogger(__name__)

REMEMBERED = 30 * 86400.0
"""Seconds for which the ledger remembers a batch write with a writeId."""
FORGOTTEN = 86400.0
"""The same for one without, which cannot be run again."""


@dataclass(frozen=True)
class LedgerTimes:
    """How long the ledger waits, in seconds of `clock`, which is monotonic.

    Within `lease` an attempt knows that another one has taken over. For `stragglers` a stream may
    still store what an earlier attempt has sent. `wall_clock` has the time of day, in seconds since
    the epoch.
    """

    lease: float = 2.0
    stragglers: float = 60.0
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time


USUAL_TIMES = LedgerTimes()


class Ledger:
    """The entry of one task, seen by one attempt.

    Methods raise `DeliveryError` if exactly-once is not possible, and what `Requests.call` raises.
    `resumed` says whether an earlier attempt or run may have stored rows of the task. `batch` is
    the entry of the batch.
    """

    def __init__(
        self,
        connect: Connect,
        options: SinkOptions,
        task: WriteTask,
        times: LedgerTimes,
    ) -> None:
        self.resumed = False
        self._stream = options.stream
        self._task = task
        self._clock = times.clock
        self._requests = Requests(connect, options.connection.retry_timeout)
        self.batch = BatchRecord(self._requests, task, times.lease, times.clock, times.wall_clock)
        key = f"{task.write}.{task.key_part}"
        self._slot = LedgerSlot(self._requests, key, task.expires, TaskEntry.from_json)
        # The entry as this attempt writes it.
        self._entry = TaskEntry(task.batch, task.run, secrets.token_hex(8), times.lease)
        # When this attempt last asked for the entry and found its own name there, or wrote it.
        self._seen = 0.0
        self._written = 0.0
        self._streams = NotedStreams(self._requests)
        self._search = BatchSearch(self._requests, self._streams, task, self._entry.attempt)
        self._earlier = EarlierRows(self._search, self._streams, times.stragglers, times.clock)

    @property
    def renaming(self) -> set[str]:
        """The noted streams that store messages under other subjects than theirs."""
        return self._streams.renaming

    def open(self, *, own_ids: bool, scheduled: bool = False) -> TaskReport | None:
        """Take the task over. Return its report if it is done, or if its whole batch is.

        `own_ids`: rows may have ids of the user's. `scheduled`: rows may be schedules, which the
        server removes.
        """
        self._search.own_ids = own_ids
        self._search.scheduled = scheduled
        known = self._take()
        if self.batch.entry.done:
            return self._report_of_batch_done(known)
        if known is not None and _is_finished(known):
            return self._known_report(known)
        self._resume(known)
        return None

    def _take(self) -> TaskEntry | None:
        """Make this attempt the owner of the task, unless the task or its batch is done.

        Return the entry of the task before. An entry of another run does not count, unless the
        batch is done: the rows may be in other partitions now.
        """
        batch = self.batch.join()
        for _ in range(TRIES):
            known = self._entry_of_batch()
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

    def _entry_of_batch(self) -> TaskEntry | None:
        """Return the stored entry of the task, None if it is of an earlier batch, or there is none.

        Raises `DeliveryError` if it is of a later batch.
        """
        known, self._slot.revision = self._slot.read()
        if known is None or known.batch < self._task.batch:
            return None
        if known.batch > self._task.batch:
            raise begun_already(self._task, known.batch)
        if known.run == OLD_RUN:
            raise begun_by_old_release(self._task)
        return known

    def _report_of_batch_done(self, known: TaskEntry | None) -> TaskReport:
        """Return the report of a task whose batch is done.

        Its counts are right if the partitions are the same.
        """
        batch_report = self.batch.entry.report or {}
        self._refuse_other_target(list(batch_report.get("streams", {})))
        return self._known_report(known)

    def _known_report(self, known: TaskEntry | None) -> TaskReport:
        """Return the report in an entry, for a task that stores nothing more."""
        if known is None or known.report is None:
            return TaskReport(self._task.partition, claims=None, resumed=True)
        report = TaskReport.from_json(known.report)
        return replace(report, duplicates=report.stored, resumed=True)

    def compare(self, finished: TaskReport, rows: int, made: MessageIds) -> TaskReport:
        """Return the report of a task that has stored nothing, since its rows are stored already.

        `finished` is the report that `open` returned, and `made` has got the `rows` rows of this
        attempt. Raises `DeliveryError` if a task of the same run had other rows. The driver
        compares the rows of a batch that is done.
        """
        same = (finished.rows, finished.content, finished.own) == (rows, made.content, made.own)
        if not self.batch.entry.done:
            self._refuse_other_target(list(finished.streams))
            if rows != finished.rows:
                raise self._other_rows(
                    f"it was done with {finished.rows} rows, and this attempt has {rows}"
                )
            if not same:
                raise self._other_rows(
                    f"it was done with {rows} rows, and this attempt has as many, but not the same ones"
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
        """Note where `stream` ends, or the streams that capture these subjects, unless it is noted.

        Return the subjects that no stream captures: the ledger could not find what is stored there
        later.
        """
        self._earlier.search_again(self._entry.streams)
        if stream is not None:
            self._note_streams([stream])
            return frozenset()
        names: list[str] = []
        uncaptured: set[bytes] = set()
        for raw in pc.unique(subjects).to_pylist():
            subject = raw.decode("utf-8", "replace")
            if self._streams.any_captures(subject):
                continue
            capturing = self._requests.call(partial(streams_of, subject=subject))
            names += capturing
            if not capturing:
                uncaptured.add(raw)
        self._note_streams(names)
        return frozenset(uncaptured)

    def check(self) -> None:
        """Return if this attempt owns the task, and will own it for half a lease.

        Raises `DeliveryError` if another attempt owns it, and `OutageError` if no answer is current
        within `retryTimeout`. Entries that expire are written again when half of their time is
        over.
        """
        expires = self._task.expires
        if expires is not None and self._clock() - self._written > expires / 2:
            self.batch.renew()
            self._write_or_fail()
        # Last: the answers must be current when the caller sends.
        self._wait_for_current_answers()

    def _wait_for_current_answers(self) -> None:
        """Read both entries until the answers are current, unless that was half a lease ago."""
        lease = self._entry.lease
        patience = self._requests.retry_timeout
        deadline = Deadline(patience)
        backoff = Backoff()
        while self._clock() - min(self._seen, self.batch.seen) > lease / 2:
            if deadline.expired:
                raise OutageError(
                    f"bucket {BUCKET} gave no current answer within {lease / 2:g} s, for "
                    f"{patience:g} s (option retryTimeout): nothing is sent without knowing that "
                    "no other attempt has taken over"
                )
            asked = self._clock()
            if self._still_owned() and self.batch.still_owned():
                self._seen = asked
            else:
                backoff.pause(deadline)

    def _still_owned(self) -> bool:
        """Read the entry, and return whether the answer is current.

        Raises `DeliveryError` if the entry is another attempt's.
        """
        entry, revision = self._slot.read()
        if revision < self._slot.revision:
            # A server that was just elected leader may not have applied this attempt's last write
            # yet.
            return False
        if entry is None or entry.attempt != self._entry.attempt:
            raise self._superseded()
        self._slot.revision = revision
        return True

    def find(self, ids: pa.BinaryArray, subjects: pa.BinaryArray, stream: str | None) -> StoredRows:
        """Return which of these rows are stored, as far as this attempt has read the streams.

        `stream` is the only one that may store them, if that is known. A row is in one stream at
        most.
        """
        return self._earlier.find(ids, subjects, stream)

    def remembers(self, age: float) -> bool:
        """Whether the streams surely know, for a while yet, the ids of rows that they have stored.

        They have stored the rows in the last `age` seconds. The limit is half a duplicate window:
        the other half is for rows on their way to the stream.
        """
        return age < self._streams.duplicate_window / 2

    def recall(
        self, after: Mapping[str, int], rows: Sequence[tuple[bytes, bytes, str | None]]
    ) -> list[tuple[str, int] | None]:
        """Return the stream and sequence of each of these rows, None for a row that is not stored.

        A row is its id, its subject and its stream as for `find`. `after` holds the last sequence
        of each stream that was known when the task got the rows; this attempt can only have stored
        them after it.
        """
        stored: dict[str, StoredIds] = {}
        for name, note in self._entry.streams.items():
            stored[name] = self._search.nothing()
            # A row that an earlier attempt had under way may be stored before the rows that
            # this attempt knows of.
            first = 1 if self.resumed else after.get(name, 0) + 1
            self._search.read_since(name, note, first, stored[name])
        messages = self._messages_of(rows, stored)
        log.info(
            "ledger entry %s: %d of %d rows without an answer are stored",
            self._slot.key,
            len(rows) - messages.count(None),
            len(rows),
        )
        return messages

    def _messages_of(
        self,
        rows: Sequence[tuple[bytes, bytes, str | None]],
        stored: Mapping[str, StoredIds],
    ) -> list[tuple[str, int] | None]:
        """Return the stream and sequence of each row that is among the stored ids."""
        messages: list[tuple[str, int] | None] = [None] * len(rows)
        for stream in {stream for _, _, stream in rows}:
            at = [index for index, row in enumerate(rows) if row[2] == stream]
            ids = binaries([rows[index][0] for index in at])
            subjects = binaries([rows[index][1] for index in at])
            found = self._search.rows_in(stored, ids, subjects, stream)
            for name, (indices, sequences) in found.items():
                for index, sequence in zip(indices.tolist(), sequences.tolist(), strict=True):
                    messages[at[index]] = name, sequence
        return messages

    def survey(self, *, own_ids: bool, scheduled: bool) -> dict[str, tuple[str, StoredIds]]:
        """Take the driver's part of the batch. Return the ids of the batch that each stream has.

        By stream: when it was created, and the ids. The result leaves out streams that were deleted
        since the batch began; messages that a stream has removed are missing. `own_ids` and
        `scheduled` are those of `open`.
        """
        self._search.scheduled = scheduled
        self._wait(self._take())
        prefix = self._task.prefix.encode()
        found: dict[str, tuple[str, StoredIds]] = {}
        for name, note in self.batch.entry.streams.items():
            try:
                state = self._streams.state(name)
            except StreamNotFound:
                state = None
            if state is None or state.created != note["created"]:
                log.warning(
                    "stream %s was deleted since %s was begun: its rows are not compared",
                    name,
                    self._task.where,
                )
                continue
            stored = StoredIds(prefix, own=own_ids)
            self._search.read(state, max(int(note["next"]), state.first_kept), stored)
            self._entry.streams[name] = end_of(state)
            self._streams.add(state)
            found[name] = state.created, stored
        return found

    def finish(self, report: TaskReport) -> None:
        """Note that the task is done."""
        self._entry.done = True
        self._entry.report = report.to_json()
        self._write_or_fail()

    # Taking over

    def _wait(self, known: TaskEntry | None) -> None:
        """Wait until earlier attempts of the task and runs of the batch send nothing more."""
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
        self._earlier.begin()
        # Rows of an earlier run may have been in any partition.
        notes = batch.streams if batch.earlier else self._entry.streams
        self._entry.streams = {}
        for name, note in notes.items():
            stored = self._search.nothing()
            try:
                state, first = self._search.read_since(name, note, 1, stored)
            except StreamNotFound:
                log.warning("stream %s was deleted since, and what was stored in it is gone", name)
                continue
            stored.use_doubled()
            self._earlier.add(name, stored, state.last_seq)
            self._entry.streams[name] = {"created": state.created, "next": first}
            self._streams.add(state)
            if state.created != note["created"]:
                self.batch.note_anew({name: self._entry.streams[name]})
        log.info("ledger entry %s: %d rows are stored already", self._slot.key, len(self._earlier))

    def _note_streams(self, names: Sequence[str]) -> None:
        """Note where streams end that were not noted before."""
        new = [name for name in names if name not in self._entry.streams]
        if not new:
            return
        for name in new:
            state = self._streams.state(name)
            refuse_unfit(state)
            self._entry.streams[name] = end_of(state)
            self._streams.add(state)
        # First for the batch: an attempt that has other rows must find what this task stores, too.
        self.batch.note_streams({name: self._entry.streams[name] for name in new})
        self._write_or_fail()

    # The entry

    def _write(self) -> bool:
        """Write the entry. Return false if another attempt has written since it was read."""
        asked = self._clock()
        written = self._slot.write(self._entry)
        if written:
            self._seen = asked
            self._written = asked
        return written

    def _write_or_fail(self) -> None:
        if not self._write():
            raise self._superseded()

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
            "the batch was planned anew, because its checkpoint is older or has lost its newest "
            "files, or the query makes other rows each time, as with rand() and uuid(). Go on with "
            "the newest checkpoint, or run this batch alone (trigger(once=True))"
        )
    else:
        cause = "a write that runs again must have the same rows. Take another writeId, or write"
    return DeliveryError(
        f"{what} of {task.write} was written before with other rows ({why}): {cause} "
        "with deduplicated (option delivery), which loses no row but may store rows twice"
    )


def _is_finished(known: TaskEntry) -> bool:
    """Whether a task is done, and its report has claims.

    Without claims the driver cannot compare the rows with those of other tasks. The next attempt
    then looks the rows up in the streams, as if the task were not done.
    """
    return known.done and known.report is not None and known.report.get("claims") is not None
