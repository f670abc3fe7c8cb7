"""One task of a write: record batches in, every row stored when it returns.

`TaskWriter` is what writing to subjects and to keys (`kv_task`) have in common.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.client.connection import Connection
from spark_jetstream.options import SinkOptions
from spark_jetstream.protocol.pub_ack import NO_STREAM, Target
from spark_jetstream.sink.dead_letters import dead_letters
from spark_jetstream.sink.encode import own_lines, tails
from spark_jetstream.sink.ledger import Ledger
from spark_jetstream.sink.message_ids import MessageIds
from spark_jetstream.sink.publisher import Publisher, PublishSettings
from spark_jetstream.sink.report import TaskReport
from spark_jetstream.sink.rows import Rows, SinkColumns, rows_of
from spark_jetstream.sink.window import RefusedRow, Totals

_PORTION_ROWS = 2000
_PORTION_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class WriteTask:
    """Which write the rows belong to: the same for every attempt of a task, and for no other task.

    ``write`` is the query's id or the batch write's, ``batch`` the number of the micro-batch (0 for a batch write).
    ``expires`` is for how many seconds the ledger remembers the task, None for good.
    """

    write: str
    batch: int
    partition: int
    expires: float | None = None

    @property
    def prefix(self) -> str:
        """What its message ids begin with."""
        return f"{self.write}.{self.batch}.{self.partition}"


class Columns(Protocol):
    """The columns of a DataFrame: their names, and the one that is most of a row."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def payload(self) -> str: ...


def write_task(
    batches: Iterable[pa.RecordBatch],
    connect: Callable[[float], Connection],
    options: SinkOptions,
    columns: SinkColumns,
    task: WriteTask,
) -> TaskReport:
    """Store all rows of a task; what is stored.

    ``connect(patience)`` gives the connection. Raises `RowRefused` for a row that cannot be stored when there is no
    `deadLetterSubject`, `OutageError`, `DeliveryError`, and errors that no retry can mend as they are.
    """
    begun = time.monotonic()
    ledger = None
    if options.delivery == "exactly-once":
        ledger = Ledger(connect, options, task.write, task.batch, task.partition, task.expires, task.prefix)
        finished = ledger.open(own_ids="msg_id" in columns.names)
        if finished is not None:
            for _ in batches:
                continue
            return finished
    report = _SubjectWriter(connect, options, columns, task, ledger).run(batches, begun)
    if ledger is not None:
        ledger.finish(report)
    return report


class TaskWriter(ABC):
    """Writes the record batches of one task.

    ``stream`` is the one that must store the rows, or None, and ``target`` says what their subjects mean.
    """

    def __init__(
        self,
        connect: Callable[[float], Connection],
        options: SinkOptions,
        columns: Columns,
        task: WriteTask,
        *,
        stream: str | None,
        target: Target,
        domain: str | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.options = options
        self.task = task
        self.most = max(1, min(_PORTION_ROWS, options.max_in_flight // 2))
        self.count = 0
        self.dead = Totals()
        self.skipped = Totals()
        has_ids = options.delivery != "at-least-once"
        self.identifier = MessageIds(task.prefix) if has_ids else None
        self.dead_identifier = MessageIds(f"{task.prefix}.dead") if has_ids else None
        settings = PublishSettings(
            max_in_flight=options.max_in_flight,
            ack_timeout=options.ack_timeout,
            max_retries=options.max_retries,
            retry_timeout=options.connection.retry_timeout,
            stream=stream,
            domain=domain,
            where=f"partition {task.partition}",
            target=target,
        )
        guard = _nothing if ledger is None else ledger.check
        recall = None if ledger is None else ledger.recall
        self._columns = columns
        self.publisher = Publisher(connect, settings, self._refused, guard, recall)

    def run(self, batches: Iterable[pa.RecordBatch], begun: float) -> TaskReport:
        """Store all rows of the task, which began at ``begun`` on the monotonic clock; what is stored."""
        with self.publisher:
            for batch in batches:
                self._write(batch)
            self._finish()
        return self._report(time.monotonic() - begun)

    def _write(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a record batch; what can never be stored goes to `deadLetterSubject`, or fails."""
        for part in portions(batch, self._columns, self.most):
            rows = self._read(part)
            self.count += len(rows)
            if rows.faults:
                self._refused(
                    [RefusedRow(rows, index, None, reason, 0) for index, reason in sorted(rows.faults.items())]
                )
                rows = rows.take(np.array([index for index in range(len(rows)) if index not in rows.faults], np.int64))
            self._publish(rows)

    def _finish(self) -> None:
        """Wait for every answer."""
        self.publisher.flush()

    def _report(self, seconds: float) -> TaskReport:
        found = self.publisher.totals
        for stream, (first, last) in self.skipped.streams.items():
            found.note(stream, first, last)
        return TaskReport(
            partition=self.task.partition,
            rows=self.count,
            stored=found.stored + self.skipped.stored,
            duplicates=found.duplicates + self.skipped.duplicates,
            dead_letters=self.dead.stored,
            streams=dict(found.streams),
            seconds=seconds,
        )

    @abstractmethod
    def _read(self, part: pa.RecordBatch) -> Rows:
        """The rows of a portion; `count` have been read before."""

    @abstractmethod
    def _publish(self, rows: Rows) -> None:
        """Send rows that have no faults."""

    def _refused(self, refused: list[RefusedRow]) -> None:
        """Send rows that can never be stored to `deadLetterSubject`, or fail."""
        subject = self.options.dead_letter_subject
        if subject is None or any(row.rows.subject[row.index].as_py() == subject.encode() for row in refused):
            raise self.publisher.failure(refused[0])
        for at in range(0, len(refused), self.most):
            some = refused[at : at + self.most]
            rows, ids = dead_letters(some, subject, self.publisher.max_payload, self.dead_identifier)
            self._publish_dead(rows, ids)

    def _publish_dead(self, rows: Rows, ids: pa.BinaryArray | None) -> None:
        self.publisher.publish(rows, own_lines(ids, None), ids, self.dead)


class _SubjectWriter(TaskWriter):
    def __init__(
        self,
        connect: Callable[[float], Connection],
        options: SinkOptions,
        columns: SinkColumns,
        task: WriteTask,
        ledger: Ledger | None,
    ) -> None:
        self.columns = columns
        self.ledger = ledger
        where = options.connection.domain
        super().__init__(
            connect, options, columns, task, stream=options.stream, target=Target(), domain=where, ledger=ledger
        )

    def _read(self, part: pa.RecordBatch) -> Rows:
        return rows_of(part, self.columns, self.count + 1)

    def _publish(self, rows: Rows) -> None:
        ids = None
        if self.identifier is not None:
            ids = self.identifier.ids(rows, tails(rows))
        elif rows.msg_id is not None:
            ids = rows.msg_id
        if self.ledger is not None and ids is not None:
            rows, ids = self._without_stored(rows, ids, self.options.stream, self.skipped)
        if len(rows):
            self.publisher.publish(rows, own_lines(ids, self.options.stream), ids, self.publisher.totals)

    def _without_stored(
        self, rows: Rows, ids: pa.BinaryArray, stream: str | None, skipped: Totals
    ) -> tuple[Rows, pa.BinaryArray]:
        """Leave out what an earlier attempt has stored; make sure that the ledger knows where the others will go."""
        assert self.ledger is not None
        lost = self.ledger.begin(rows.subject, stream)
        if lost:
            captured = np.array([subject not in lost for subject in rows.subject.to_pylist()])
            self._refused(
                [
                    RefusedRow(rows, index, ids[index].as_py(), "no stream captures this subject", NO_STREAM)
                    for index in np.flatnonzero(~captured).tolist()
                ]
            )
            kept = np.flatnonzero(captured)
            rows, ids = rows.take(kept), ids.take(pa.array(kept))
        known = self.ledger.stored
        if not known:
            return rows, ids
        places = [known.get(each) for each in ids.to_pylist()]
        for place in places:
            if place is not None:
                skipped.stored += 1
                skipped.duplicates += 1
                skipped.note(place[0], place[1], place[1])
        missing = np.array([index for index, place in enumerate(places) if place is None], np.int64)
        if len(missing) == len(rows):
            return rows, ids
        return rows.take(missing), ids.take(pa.array(missing))

    def _publish_dead(self, rows: Rows, ids: pa.BinaryArray | None) -> None:
        if self.ledger is not None and ids is not None:
            rows, ids = self._without_stored(rows, ids, None, self.dead)
        if len(rows):
            super()._publish_dead(rows, ids)


def _nothing() -> None:
    """Nothing has to be looked at before sending."""


def portions(batch: pa.RecordBatch, columns: Columns, most: int) -> Iterator[pa.RecordBatch]:
    """Slices of a batch with at most ``most`` rows and, but for single rows, not much more than 4 MB of payload."""
    data = batch.column(columns.names.index(columns.payload))
    sizes = pc.fill_null(pc.binary_length(data), 0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(sizes, dtype=np.int64)
    if batch.num_rows:
        # Headers and subjects by their mean: they are seldom much larger in some rows than in others.
        most = max(1, min(most, _PORTION_BYTES * batch.num_rows // max(1, batch.nbytes)))
    at = 0
    while at < batch.num_rows:
        before = int(ends[at - 1]) if at else 0
        fitting = int(np.searchsorted(ends, before + _PORTION_BYTES, side="right"))
        stop = min(at + most, max(fitting, at + 1), batch.num_rows)
        yield batch.slice(at, stop - at)
        at = stop
