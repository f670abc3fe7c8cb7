"""One task of a write: takes record batches, and returns when every row is stored."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable
from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_jetstream.client.requests import Connect
from spark_jetstream.errors import JetStreamError
from spark_jetstream.options import SinkOptions
from spark_jetstream.sink.columns import Columns, SinkColumns
from spark_jetstream.sink.commands import COMMAND_COLUMNS, COMMANDS
from spark_jetstream.sink.grouped import Grouped
from spark_jetstream.sink.ledger import USUAL_TIMES, Ledger, LedgerTimes
from spark_jetstream.sink.message_ids import MessageIds, Scheme, WriteTask
from spark_jetstream.sink.order import Free, Order
from spark_jetstream.sink.portions import PORTION_ROWS, portions
from spark_jetstream.sink.report import TaskReport
from spark_jetstream.sink.rollups import Rollups
from spark_jetstream.sink.row_reading import rows_of
from spark_jetstream.sink.rows import RefusedRow, Rows
from spark_jetstream.sink.sender import Sender
from spark_jetstream.sink.target import Target
from spark_jetstream.sink.timing import WRITE_TIMING, WriteTiming
from spark_jetstream.sink.turns import Turns


class ReadRows(Protocol):
    """Makes rows of a record batch."""

    def __call__(self, batch: pa.RecordBatch, /, *, first_number: int) -> Rows:
        """Return the rows, numbered from `first_number`."""


def write_task(
    batches: Iterable[pa.RecordBatch],
    connect: Connect,
    options: SinkOptions,
    columns: SinkColumns,
    task: WriteTask,
    ledger_times: LedgerTimes = USUAL_TIMES,
    *,
    timing: WriteTiming = WRITE_TIMING,
) -> TaskReport:
    """Store all rows of a task, and return what is stored.

    `ledger_times` are for delivery exactly-once, `timing` for the publisher.

    Raises `RowRefused` for a row without a `deadLetterSubject`, `OutageError`, `DeliveryError` if
    the task cannot keep what option delivery promises, and `JetStreamError` for another error that
    no retry can mend.
    """
    begun = time.monotonic()
    scheme = Scheme.of(options.delivery, options.message_ids, columns.names)
    ledger = None
    if options.delivery == "exactly-once":
        assert scheme is not None
        ledger = Ledger(connect, options, task, ledger_times)
        own_ids = "msg_id" in columns.names
        finished = ledger.open(own_ids=own_ids, scheduled="schedule" in columns.names)
        if finished is not None:
            return _compared(batches, columns, ledger, finished, MessageIds(task, scheme))
    target = Target(options.stream, options.connection.domain)
    sender = Sender(
        connect,
        options,
        target,
        task,
        scheme,
        stream=options.stream,
        ledger=ledger,
        timing=timing,
    )
    order = _order_of(columns, sender, alone=ledger is not None)
    read = functools.partial(rows_of, columns=columns)
    refuses_commands = options.server_headers == "error"
    writer = TaskWriter(sender, order, columns, read, refuses_commands=refuses_commands)
    report = writer.run(batches, begun)
    if ledger is not None:
        ledger.finish(report)
    return report


def _compared(
    batches: Iterable[pa.RecordBatch],
    columns: SinkColumns,
    ledger: Ledger,
    finished: TaskReport,
    ids: MessageIds,
) -> TaskReport:
    """Return the report of a task whose rows are stored already, if these are its rows."""
    count = 0
    for batch in batches:
        for part in portions(batch, columns, PORTION_ROWS):
            ids.add(rows_of(part, columns, 1))
            count += part.num_rows
    return ledger.compare(finished, count, ids)


def _order_of(columns: SinkColumns, sender: Sender, *, alone: bool) -> Order:
    """Return the order in which rows with these columns are sent.

    `alone`: a row with a schedule must be the only one of its subject.
    """
    if "atomic_group" in columns.names:
        return Grouped(sender)
    if not {"schedule", "rollup"}.isdisjoint(columns.names):
        return Turns(sender, Rollups(alone=alone))
    return Free(sender)


class TaskWriter:
    """Writes the rows of one task through `sender`, in `order`.

    `read` makes rows of a record batch with `columns`. `refuses_commands`: a row fails the task if
    its column headers holds a command for the server. Otherwise the header is left out.
    """

    def __init__(
        self,
        sender: Sender,
        order: Order,
        columns: Columns,
        read: ReadRows,
        *,
        refuses_commands: bool = False,
    ) -> None:
        self._sender = sender
        self._order = order
        self._columns = columns
        self._read = read
        self._refuses_commands = refuses_commands
        self._count = 0  # rows that were read
        self._lost_ttl = False  # whether a TTL in column headers was left out

    def run(self, batches: Iterable[pa.RecordBatch], begun: float) -> TaskReport:
        """Store all rows, and return what is stored.

        `begun` is when the task began, on the monotonic clock.
        """
        sender = self._sender
        with sender.publisher:
            for batch in batches:
                for part in portions(batch, self._columns, sender.most):
                    self._write(self._read(part, first_number=self._count + 1))
            self._order.finish()
        done = sender.totals.done
        # Not "!=": a stored row that is sent once more may become a dead letter as well.
        if done < self._count:
            raise JetStreamError(
                f"of {self._count} rows only {done} count as stored or as dead letters: this is a "
                "bug of spark-jetstream, and the task does not count as done"
            )
        return self._report(time.monotonic() - begun)

    def _write(self, rows: Rows) -> None:
        sender = self._sender
        order = self._order
        if self._refuses_commands:
            self._check_left_out(rows)
        self._count += len(rows)
        rows = order.accept(rows)
        if rows.faults:
            if sender.message_ids is not None:
                sender.message_ids.add(rows.take(np.flatnonzero(rows.faulty)))
            for index, reason in sorted(rows.faults.items()):
                sender.refuse([RefusedRow(rows, index, None, reason, 0)])
            order.settle()
            rows = rows.take(np.flatnonzero(~rows.faulty))
        ids = sender.ids(rows)
        rows, ids = sender.without_stored(rows, ids, sender.totals.skipped)
        order.settle()
        order.send(rows, ids)

    def _check_left_out(self, rows: Rows) -> None:
        """Raise `RowRefused` for a header in column headers on which the server would act."""
        left_out = rows.left_out
        if b"Nats-TTL" in left_out and "ttl" not in self._columns.names:
            self._lost_ttl = True
        for name in filter(COMMANDS.fullmatch, left_out):
            column = COMMAND_COLUMNS.get(name)
            instead = f"use column {column} instead" if column else "remove it from there"
            why = (
                f"column headers holds {name.decode()}, on which the server would act: {instead}; "
                "or set option serverHeaders to drop, which stores the rows without these headers"
            )
            raise self._sender.publisher.failure(RefusedRow(rows, left_out[name], None, why, 0))

    def _report(self, seconds: float) -> TaskReport:
        totals = self._sender.totals
        ids = self._sender.message_ids
        claims = totals.claims
        return TaskReport(
            partition=self._sender.task.partition,
            rows=self._count,
            stored=totals.stored.stored + totals.skipped.stored,
            duplicates=totals.stored.duplicates + totals.skipped.duplicates,
            dead_letters=totals.dead_letters.stored,
            streams=totals.streams,
            seconds=seconds,
            lost_ttl=self._lost_ttl,
            content=None if ids is None else ids.content,
            own=0 if ids is None else ids.own,
            groups=frozenset(self._order.groups),
            claims={} if claims is None else claims.packed(),
            subjects={} if claims is None else claims.subjects,
            resumed=self._sender.resumed,
            partitioned=ids is not None and ids.partitioned,
        )


__all__ = ["TaskWriter", "WriteTask", "portions", "write_task"]
