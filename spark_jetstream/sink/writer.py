"""Writers that Spark calls: which write and batch rows belong to, and how long that is remembered.

They are the writers of pyspark.sql.datasource, for batch writes and for queries.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyspark
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import WriterCommitMessage

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import connect
from spark_jetstream.engines.running import running_engine
from spark_jetstream.errors import JetStreamError, OptionError
from spark_jetstream.options import SinkOptions
from spark_jetstream.options.values import hidden
from spark_jetstream.sink.kinds.kind import SinkKind
from spark_jetstream.sink.kinds.table import sink_kind
from spark_jetstream.sink.layout import ADVICE, is_adaptive
from spark_jetstream.sink.ledger import FORGOTTEN, REMEMBERED
from spark_jetstream.sink.message_ids import UNKNOWN, WriteTask
from spark_jetstream.sink.portions import record_batches
from spark_jetstream.sink.report import BatchReport, TaskReport
from spark_jetstream.spark_process import ease_next_tasks, find_file, first_time, log_as_spark

try:
    from pyspark.sql.datasource import DataSourceArrowWriter as BatchWriter
except ImportError:  # Databricks Runtime 15.4: older than Spark 4.0.0
    from pyspark.sql.datasource import DataSourceWriter as BatchWriter  # type: ignore[assignment]
try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamWriter
except ImportError:  # Spark 4.0
    from pyspark.sql.datasource import DataSourceStreamWriter as StreamWriter  # type: ignore[assignment]

log = logging.getLogger(__name__)


@dataclass
class Committed(WriterCommitMessage):
    """The message of a finished task to the driver: its report, the task, and the run of its query.

    `adaptive`: Spark may give the rows other partitions when it runs the job again (adaptive query
    execution).
    """

    report: TaskReport
    task: WriteTask
    run: str
    adaptive: bool


class _Sink:
    """Options, columns and writing, the same for a batch write and a streaming query."""

    streaming: bool
    arrow: bool
    """Whether Spark hands over record batches; older releases hand over Python rows."""

    def __init__(
        self,
        options: Mapping[str, object],
        schema: Any,
        overwrite: bool,
        prepare: Callable[[SinkOptions], None],
    ) -> None:
        """Check options, columns and server. `schema` has the form of the running engine.

        Call `prepare` before the first request about a stream. `overwrite` of a streaming query
        means output mode "complete": each micro-batch stores the whole result again.
        """
        options = hidden(options)
        kind = sink_kind(options)
        if overwrite and not self.streaming:
            raise OptionError(
                f'mode "overwrite" is not possible: a {kind.noun} is only ever added to; use mode '
                f'"append", and purge the {kind.noun} first if you do not want its messages',
                option="mode",
            )
        self.options = SinkOptions.from_spark(options, streaming=self.streaming)
        self._engine = running_engine()
        self.fields = self._engine.given_types(schema)
        # Spark builds the writer of a batch write once, on the driver: its tasks and their retries
        # share the name.
        self.write_name = self.options.write_id or uuid.uuid4().hex[:16]
        # Spark also builds the writer that goes to the tasks of a micro-batch once: they share the
        # name of its run.
        self.run = uuid.uuid4().hex[:16]
        # Spark sends the dataset to the executors, with the results of the checks.
        self.dataset: SinkKind = kind(self.options, self.fields)
        if not self._engine.numbers_tasks:
            self.dataset.refuse_ids_of_partitions(self._engine.name)
        prepare(self.options)
        self.dataset.start(self._connect)

    def _connect(self, patience: float) -> Connection:
        return connect(self.options.connection, patience=patience, find_file=find_file)

    # Runs on executors

    def write(self, iterator: Iterator[Any]) -> Committed:
        """Store the rows of one task. Runs on an executor."""
        log_as_spark()
        context = self._engine.task()
        task, run = self._task(context)
        if not self.arrow:
            iterator = record_batches(iterator, self.fields, self.dataset.batch_rows)
        report = self.dataset.write(iterator, self._connect, task)
        # Spark makes an array of the result, for which pyarrow imports pandas: now, so that
        # `ease_next_tasks` covers it.
        pa.array([b""])
        ease_next_tasks()
        # Rows of a task without an identity have no partition in their ids.
        adaptive = context is not None and is_adaptive(
            context.getLocalProperty, streaming=self.streaming, spark=pyspark.__version__
        )
        return Committed(report, task, run, adaptive)

    def _task(self, context: TaskContext | None) -> tuple[WriteTask, str]:
        """Return the identity of a task, and that of the run of its query."""
        if context is None:
            return self._unnumbered_task(), ""
        partition = context.partitionId()
        if not self.streaming:
            return self._batch_task(partition), ""
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise JetStreamError("Spark does not say which query and batch the rows belong to")
        # The job group is named by the run's id.
        run = context.getLocalProperty("spark.jobGroup.id") or query
        task = WriteTask(query.replace("-", "")[:16], int(batch), partition, run=self.run)
        return task, run

    def _unnumbered_task(self) -> WriteTask:
        """Return the identity that all tasks have on an engine that does not number them."""
        if self.streaming or self._engine.numbers_tasks:
            raise JetStreamError("rows are written by Spark's tasks, and there is none here")
        return self._batch_task(UNKNOWN)

    def _batch_task(self, partition: int) -> WriteTask:
        """Return the identity of a task of a batch write."""
        write = f"w-{self.write_name}"
        return WriteTask(write, 0, partition, self._remembered_for, self.run)

    @property
    def _remembered_for(self) -> float | None:
        """Seconds for which the ledger remembers the write, None for good."""
        if self.streaming:
            return None
        if self.options.write_id:
            return REMEMBERED
        return FORGOTTEN

    # Runs on the driver

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int = 0) -> None:
        """End the batch: every row of a task was stored when the task ended.

        Only a streaming query has a `batchId`. Equal rows of several tasks may lack copies, which
        are stored now. With delivery exactly-once the ledger notes that the batch is done, if it
        can be run again.
        """
        tasks = [message for message in messages if isinstance(message, Committed)]
        reports = [task.report for task in tasks]
        copies = 0
        if tasks:
            copies = self.dataset.finish(
                self._connect, tasks[0].task, reports, repeatable=self._repeatable
            )
        report = BatchReport(reports, copies)
        _driver_log().info("jetstream sink, %s: %s", self._name(tasks, batchId), report)
        self._warn_of_lost_ttl(tasks)
        if not tasks:
            return
        self._warn_of_layout(tasks)
        if self.streaming:
            query = tasks[0].task.write
            self.dataset.warn_of_interval(self._connect, query, batchId, report.streams)

    def _warn_of_lost_ttl(self, tasks: Sequence[Committed]) -> None:
        """Log that tasks have left out a TTL, once for each run of a query or for a batch write."""
        if not any(task.report.lost_ttl for task in tasks):
            return
        if self.streaming and not first_time(f"ttl of run {tasks[0].run}"):
            return
        _driver_log().warning(
            "rows are stored without the Nats-TTL of their column headers, so they do not expire: "
            "put it into column ttl, or remove it (serverHeaders=drop does so without this warning)"
        )

    def _warn_of_layout(self, tasks: Sequence[Committed]) -> None:
        """Log that another layout stores rows twice.

        Once for a run of a query, or for batch writes to a target.
        """
        if not self._repeatable or not self._may_depend_on_layout(tasks):
            return
        if tasks and self.streaming:
            writer = tasks[0].run
        else:
            # Each write of a query with foreachBatch has a writeId of its own.
            writer = f"{self.options.stream} {self.options.subject}"
        if first_time(f"layout of {writer}"):
            _driver_log().warning("%s", ADVICE)

    def _may_depend_on_layout(self, tasks: Sequence[Committed]) -> bool:
        """Whether rows have their partition in their ids, and Spark may give them another one."""
        if tasks:
            return any(task.adaptive and task.report.partitioned for task in tasks)
        # Without a task that has ended nobody knows whether Spark is adaptive.
        return self.dataset.depends_on_layout()

    @property
    def _repeatable(self) -> bool:
        """Whether the batch may be written again by a later run."""
        return self.streaming or self.options.write_id is not None

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int = 0) -> None:
        """Log that a task failed.

        The rows that other tasks have stored stay; Spark will write a micro-batch again.
        """
        tasks = [message for message in messages if isinstance(message, Committed)]
        _driver_log().warning(
            "jetstream sink, %s failed; tasks that ended before it did have stored: %s",
            self._name(tasks, batchId),
            BatchReport(task.report for task in tasks),
        )
        self._warn_of_layout(tasks)

    def _name(self, tasks: Sequence[Committed], batch: int) -> str:
        if not self.streaming:
            return f"write {self.write_name}"
        query = tasks[0].task.write if tasks else "?"
        return f"batch {batch} of query {query}"


class JetStreamBatchWriter(_Sink, BatchWriter):
    """`df.write.format("jetstream")`."""

    streaming = False
    arrow = hasattr(datasource, "DataSourceArrowWriter")


class JetStreamStreamWriter(_Sink, StreamWriter):
    """`df.writeStream.format("jetstream")`."""

    streaming = True
    arrow = hasattr(datasource, "DataSourceStreamArrowWriter")


def _driver_log() -> logging.Logger:
    """Return the log of the driver, where a batch is worth a line, unless logging is set up."""
    if log_as_spark():
        log.setLevel(logging.INFO)
    return log
