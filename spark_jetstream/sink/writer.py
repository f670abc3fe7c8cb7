"""The writers of the data source, for batch writes and streaming queries (pyspark.sql.datasource)."""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyspark
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import connect
from spark_jetstream.errors import JetStreamError, OptionError
from spark_jetstream.options import SinkOptions
from spark_jetstream.options.values import hidden
from spark_jetstream.schema import TYPES
from spark_jetstream.sink.batch_commit import BatchCommit
from spark_jetstream.sink.columns import SinkColumns, plain_type
from spark_jetstream.sink.kv import BucketColumns
from spark_jetstream.sink.kv_task import write_bucket
from spark_jetstream.sink.layout import ADVICE, depends_on_layout, is_adaptive
from spark_jetstream.sink.ledger import FORGOTTEN, REMEMBERED
from spark_jetstream.sink.objects import ObjectColumns, write_objects
from spark_jetstream.sink.preflight import check_start
from spark_jetstream.sink.report import BatchReport, TaskReport
from spark_jetstream.sink.stream_warnings import check_interval
from spark_jetstream.sink.task import WriteTask, write_task
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

# Of a record batch that is made from Python rows; Arrow has no column of 2 GiB.
_ROWS = 2000
_BYTES = 4 * 1024 * 1024


@dataclass
class Committed(WriterCommitMessage):
    """The message of a finished task to the driver: its `TaskReport`, the task, and the run of its query.

    `adaptive`: Spark may give the rows other partitions when it runs the job again (adaptive query execution).
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
        schema: StructType,
        overwrite: bool,
        prepare: Callable[[SinkOptions], None],
    ) -> None:
        """Check options, columns and server. Call `prepare` before the first request about a stream.

        `overwrite` of a streaming query means output mode "complete": each micro-batch stores the whole result again.
        """
        options = hidden(options)
        if overwrite and not self.streaming:
            what = (
                "stream"
                if {"bucket", "objectbucket"}.isdisjoint(name.lower() for name in options)
                else "bucket"
            )
            raise OptionError(
                f'mode "overwrite" is not possible: a {what} is only ever added to; use mode "append", and purge the '
                f"{what} first if you do not want its messages",
                option="mode",
            )
        self.options = SinkOptions.from_spark(options, streaming=self.streaming)
        self.fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        # Spark builds the writer of a batch write once, on the driver: its tasks and their retries share the name.
        self.write_name = self.options.write_id or uuid.uuid4().hex[:16]
        # Spark also builds the writer that goes to the tasks of a micro-batch once: they share the name of its run.
        self.run = uuid.uuid4().hex[:16]
        # Spark sends the function that stores rows to the executors, with the results of the checks.
        self.store = self._store(prepare)

    def _store(self, prepare: Callable[[SinkOptions], None]) -> Callable[..., TaskReport]:
        """Check columns and server. Return the function that stores the rows of a task."""
        if self.options.bucket is not None:
            keyed = BucketColumns.check(self.fields)
            return functools.partial(
                write_bucket,
                columns=keyed,
                bucket=check_start(self._connect, self.options, keyed.names),
            )
        if self.options.object_bucket is not None:
            named = ObjectColumns.check(self.fields)
            check_start(self._connect, self.options)
            return functools.partial(write_objects, columns=named)
        columns = SinkColumns.check(self.fields, self.options.subject)
        prepare(self.options)
        check_start(self._connect, self.options, columns.names)
        return functools.partial(write_task, columns=columns)

    def _connect(self, patience: float) -> Connection:
        return connect(self.options.connection, patience=patience, find_file=find_file)

    def _task(self, context: TaskContext) -> tuple[WriteTask, str]:
        """Return the identity of a task, and that of the run of its query."""
        if not self.streaming:
            return WriteTask(
                f"w-{self.write_name}", 0, context.partitionId(), self._kept, self.run
            ), ""
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise JetStreamError("Spark does not say which query and batch the rows belong to")
        run = (
            context.getLocalProperty("spark.jobGroup.id") or query
        )  # the job group is named by the run's id
        return WriteTask(
            query.replace("-", "")[:16], int(batch), context.partitionId(), run=self.run
        ), run

    @property
    def _kept(self) -> float | None:
        """Seconds for which the ledger remembers the write, None for good."""
        return None if self.streaming else REMEMBERED if self.options.write_id else FORGOTTEN

    def write(self, iterator: Iterator[Any]) -> Committed:
        """Store the rows of one task. Runs on an executor."""
        log_as_spark()
        context = TaskContext.get()
        if context is None:
            raise JetStreamError("rows are written by Spark's tasks, and there is none here")
        task, run = self._task(context)
        if not self.arrow:
            iterator = record_batches(
                iterator, self.fields, _ROWS if self.options.object_bucket is None else 1
            )
        report = self.store(iterator, self._connect, self.options, task=task)
        # Spark makes an array of the result, for which pyarrow imports pandas: now, so `ease_next_tasks` covers it.
        pa.array([b""])
        ease_next_tasks()
        adaptive = is_adaptive(
            context.getLocalProperty, streaming=self.streaming, spark=pyspark.__version__
        )
        return Committed(report, task, run, adaptive)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int = 0) -> None:
        """End the batch: every row of a task was stored when the task ended. Only a streaming query has a `batchId`.

        Equal rows of several tasks may lack copies, which are stored now. With delivery exactly-once the ledger notes
        that the batch is done, if it can be run again.
        """
        tasks = [message for message in messages if isinstance(message, Committed)]
        copies = self._finish(tasks)
        report = BatchReport((task.report for task in tasks), copies)
        _driver_log().info("jetstream sink, %s: %s", self._name(tasks, batchId), report)
        self._warn(tasks)
        subjects = self.options.bucket is None and self.options.object_bucket is None
        if tasks and self.streaming and subjects:
            check_interval(
                self._connect, self.options, tasks[0].task.write, batchId, report.streams
            )

    def _finish(self, tasks: Sequence[Committed]) -> int:
        """Store what tasks have left to the driver. Return how many rows that were."""
        to_bucket = self.options.bucket is not None or self.options.object_bucket is not None
        if to_bucket or not tasks:
            return 0
        names = [name for name, _ in self.fields]
        commit = BatchCommit(self._connect, self.options, tasks[0].task, names, self._repeatable)
        return commit.finish([task.report for task in tasks])

    def _warn(self, tasks: Sequence[Committed]) -> None:
        """Log once for each run of a query, or for a batch write, what its tasks have noticed."""
        run = tasks[0].run if tasks else ""
        if any(task.report.lost_ttl for task in tasks) and (
            not self.streaming or first_time(f"ttl of run {run}")
        ):
            _driver_log().warning(
                "rows are stored without the Nats-TTL of their column headers, so they do not expire: put it into "
                "column ttl, or remove it (serverHeaders=drop does so without this warning)"
            )
        if tasks:
            self._warn_of_layout(tasks)

    def _warn_of_layout(self, tasks: Sequence[Committed]) -> None:
        """Log once for a run of a query, or for batch writes to a target, that another layout stores rows twice."""
        if not self._repeatable:
            return
        if tasks:
            in_danger = any(task.adaptive and task.report.partitioned for task in tasks)
        else:
            # Without a task that has ended nobody knows whether Spark is adaptive.
            in_danger = depends_on_layout(self.options, [name for name, _ in self.fields])
        # Each write of a query with foreachBatch has a writeId of its own.
        whose = (
            tasks[0].run
            if tasks and self.streaming
            else f"{self.options.stream} {self.options.subject}"
        )
        if in_danger and first_time(f"layout of {whose}"):
            _driver_log().warning("%s", ADVICE)

    @property
    def _repeatable(self) -> bool:
        """Whether the batch may be written again by a later run."""
        return self.streaming or self.options.write_id is not None

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int = 0) -> None:
        """Log that a task failed. What the others have stored stays; Spark will write a micro-batch again."""
        tasks = [message for message in messages if isinstance(message, Committed)]
        what, report = self._name(tasks, batchId), BatchReport(task.report for task in tasks)
        _driver_log().warning(
            "jetstream sink, %s failed; tasks that ended before it did have stored: %s",
            what,
            report,
        )
        self._warn_of_layout(tasks)

    def _name(self, tasks: Sequence[Committed], batch: int) -> str:
        if not self.streaming:
            return f"write {self.write_name}"
        return f"batch {batch} of query {tasks[0].task.write if tasks else '?'}"


class JetStreamBatchWriter(_Sink, BatchWriter):
    """`df.write.format("jetstream")`."""

    streaming = False
    arrow = hasattr(datasource, "DataSourceArrowWriter")


class JetStreamStreamWriter(_Sink, StreamWriter):
    """`df.writeStream.format("jetstream")`."""

    streaming = True
    arrow = hasattr(datasource, "DataSourceStreamArrowWriter")


def record_batches(
    rows: Iterable[Sequence[Any]], fields: Sequence[tuple[str, str]], most: int = _ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield Python rows as record batches of at most `most` rows and about 4 MB.

    `fields` are names and Spark `simpleString` types.
    """
    types = {**TYPES, "map<string,string>": pa.map_(pa.string(), pa.string())}
    remaining = iter(rows)
    while some := list(_fitting(itertools.islice(remaining, most))):
        arrays = []
        for index, (name, kind) in enumerate(fields):
            values = [row[index] for row in some]
            plain = plain_type(kind)
            if plain.startswith("map"):
                values = [None if value is None else list(value.items()) for value in values]
            elif (name, plain) == ("schedule", "timestamp"):
                # Spark makes a time in the zone of the process, without saying so.
                values = [None if value is None else _aware(value) for value in values]
            # A column of other integers has the type of its values.
            arrays.append(pa.array(values, types.get(plain)))
        yield pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in fields])


def _aware(time: dt.datetime) -> dt.datetime:
    """Return a time with the zone of the process.

    In the years 1 and 9999, where Python may not be able to do that, return it with UTC.
    """
    try:
        return time.astimezone()
    except (OverflowError, ValueError):
        return time.replace(tzinfo=dt.timezone.utc)


def _fitting(rows: Iterator[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """Yield rows until they have `_BYTES` of text and bytes."""
    size = 0
    while size < _BYTES and (row := next(rows, None)) is not None:
        yield row
        size += sum(len(value) for value in row if isinstance(value, (str, bytes, bytearray)))


def _driver_log() -> logging.Logger:
    """The log of the driver. What is stored is worth a line there, unless logging is set up."""
    if log_as_spark():
        log.setLevel(logging.INFO)
    return log
