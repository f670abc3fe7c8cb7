"""What Spark calls: the stream reader and the batch reader of the data source (pyspark.sql.datasource).

Both are built and pickled by Spark, possibly several times; they hold nothing but options until the first call, so that
an error in an option is raised where Spark reports it well (a failing constructor hides it behind another error).

The batch reader that takes predicates from Spark (option filterPushdown; pyspark.sql.datasource, Spark 4.1).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import connect
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.options.values import hidden
from spark_jetstream.schema import select_columns
from spark_jetstream.source.offsets import Offset
from spark_jetstream.source.planner import Planner
from spark_jetstream.source.pushdown import Pushdown
from spark_jetstream.source.tasks import TaskInput, pull_settings, read_part, table_parts, with_subjects
from spark_jetstream.spark_files import find_file

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter


try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    ADMISSION_CONTROL = True
except ImportError:  # Spark 4.0 and 4.1
    ADMISSION_CONTROL = False

log = logging.getLogger(__name__)


class TaskPartition(InputPartition):
    """One task: what it reads. A batch without tasks still has one partition, with None."""

    def __init__(self, part: TaskInput) -> None:
        super().__init__(part)
        self.part = part


class _Source:
    """Options, columns and reading, the same for batch and stream."""

    streaming: bool
    narrowed: Pushdown | None = None
    """What predicates left of a batch."""

    def __init__(self, options: Mapping[str, object], schema: StructType) -> None:
        self._raw = hidden(options)
        self._fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        self._parsed: SourceOptions | None = None
        self._columns: tuple[str, ...] | None = None
        self._planner: Planner | None = None
        self._prepare: Callable[[SourceOptions], None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # What executors get has its options read on the driver, where a context file is; nothing open crosses.
        _ = self.options, self.columns
        return {**self.__dict__, "_planner": None, "_prepare": None}

    @property
    def options(self) -> SourceOptions:
        """The options, read once. Raises `OptionError`."""
        if self._parsed is None:
            self._parsed = SourceOptions.from_spark(self._raw, streaming=self.streaming)
        return self._parsed

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to read, in the schema's order. Raises `SchemaError`."""
        if self._columns is None:
            self._columns = select_columns(self._fields, self.options.row_columns)
        return self._columns

    @property
    def driver(self) -> Planner:
        """The plan of this query; only on the driver."""
        if self._planner is None:
            _ = self.columns
            if self._prepare is not None:
                self._prepare(self.options)
            self._planner = Planner(with_subjects(self._connect, self.planned), self._connect)
        return self._planner

    @property
    def planned(self) -> SourceOptions:
        """The options that the read is planned with."""
        return self.options

    def _connect(self, patience: float) -> Connection:
        return connect(self.options.connection, patience=patience, find_file=find_file)

    @staticmethod
    def _partitions(parts: Sequence[TaskInput]) -> list[InputPartition]:
        return [TaskPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, as record batches with just the columns of the schema. Runs on an executor."""
        if isinstance(partition, TaskPartition):
            yield from read_part(self._connect, partition.part, self.options, self.columns, task_label(), self.narrowed)


def task_label() -> str:
    """Query, batch, partition and attempt of the running task: the beginning of its consumer's name."""
    context = TaskContext.get()
    if context is None:
        return "spark-0-0-0-0"
    query = (context.getLocalProperty("sql.streaming.queryId") or "batch")[:8]
    batch = context.getLocalProperty("streaming.sql.batchId") or "0"
    return f"spark-{query}-{batch}-{context.partitionId()}-{context.attemptNumber()}"


class JetStreamBatchReader(_Source, DataSourceReader):
    """`spark.read.format("jetstream")`."""

    streaming = False

    def __init__(self, options: Mapping[str, object], schema: StructType) -> None:
        options = hidden(options)
        super().__init__(options, schema)
        self.narrowed: Pushdown = Pushdown.of(self.options)

    @property
    def planned(self) -> SourceOptions:
        """As `options`, with the filters that are left."""
        return self.narrowed.options(self.options)

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read: one partition for each sequence range, or for each part of a bucket as it is now."""
        options = self.planned
        if options.table:
            settings = pull_settings(options, self.columns)
            with_content = "content" in self.columns and not options.content_off
            parts = table_parts(
                self._connect, options, self.narrowed, settings, task_label(), with_content=with_content
            )
            return self._partitions(parts)
        return self._partitions(self.driver.batch_ranges(self.narrowed))


class _StreamReader(_Source, DataSourceStreamReader):
    streaming = True

    def __init__(
        self, options: Mapping[str, object], schema: StructType, prepare: Callable[[SourceOptions], None] | None = None
    ) -> None:
        """``prepare`` is called on the driver, before the first look at a stream."""
        super().__init__(options, schema)
        self._prepare = prepare
        self._cursor: Offset | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint starts."""
        self._cursor = self.driver.initial()
        return self._cursor.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan a micro-batch between two offsets: the same messages however often it is planned."""
        self._cursor = Offset.from_json(end)
        if start == end:
            return []
        return self._partitions(self.driver.ranges(Offset.from_json(start), self._cursor))

    def commit(self, end: dict[str, Any]) -> None:
        """A batch is in the sink. Spark's checkpoint holds the position; with `durable` the server shows it too."""
        self.driver.commit(Offset.from_json(end))


if ADMISSION_CONTROL:

    class JetStreamStreamReader(_StreamReader, SupportsTriggerAvailableNow):
        """`spark.readStream.format("jetstream")` with admission control (Spark 4.2 and newer)."""

        def getDefaultReadLimit(self) -> ReadLimit:
            """What Spark is told of the limits; the options themselves are applied in `latestOffset`."""
            options = self.options
            if options.max_messages_per_trigger:
                return ReadMaxRows(options.max_messages_per_trigger)
            if options.max_bytes_per_trigger:
                return ReadMaxBytes(options.max_bytes_per_trigger)
            if options.min_messages_per_trigger:
                return ReadMinRows(options.min_messages_per_trigger)
            return ReadAllAvailable()

        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
            """The end of the next micro-batch. Spark asks for everything, whatever the options say, by its limit."""
            limited = not isinstance(limit, ReadAllAvailable)
            return self.driver.latest(Offset.from_json(start), limited=limited).to_json()

        def prepareForTriggerAvailableNow(self) -> None:
            """Fix the end of a query that reads what is there and stops."""
            self.driver.prepare_available_now()

        def reportLatestOffset(self) -> dict[str, Any]:
            """`latestOffset` of the query's progress: the end of the streams, whatever the limits."""
            return self.driver.report_latest().to_json()

else:

    class JetStreamStreamReader(_StreamReader):  # type: ignore[no-redef]
        """`spark.readStream.format("jetstream")` on Spark 4.0 and 4.1, which say neither start nor limit."""

        def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # as Spark 4.0 and 4.1 have it
            """The end of the next micro-batch, counted from the last one planned in this run."""
            return self.driver.latest(self._cursor, limited=True).to_json()


try:
    from pyspark.sql.datasource import (
        EqualNullSafe,
        EqualTo,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        IsNotNull,
        LessThan,
        LessThanOrEqual,
        StringStartsWith,
    )

    PUSHDOWN = True  # of predicates
except ImportError:  # Spark 4.0
    PUSHDOWN = False


_SIGNS = {"LessThan": "<", "LessThanOrEqual": "<=", "GreaterThan": ">", "GreaterThanOrEqual": ">="}


class FilteredBatchReader(JetStreamBatchReader):
    """`spark.read.format("jetstream").option("filterPushdown", "true")`.

    A class of its own because Spark refuses any reader that has `pushFilters` unless
    `spark.sql.python.filterPushdown.enabled` is true.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what the server can do, and hand back the rest."""
        return list(self._left(filters))

    def _left(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        for each in filters:
            narrowed = _pushed(self.narrowed, each)
            if narrowed is None:
                yield each
            else:
                self.narrowed = narrowed


def _pushed(so_far: Pushdown, predicate: Filter) -> Pushdown | None:
    attribute: tuple[str, ...] = getattr(predicate, "attribute", ())
    if len(attribute) != 1:
        return None
    column = attribute[0]
    if isinstance(predicate, IsNotNull):
        return so_far.and_not_null(column)
    if isinstance(predicate, (EqualTo, EqualNullSafe)):
        return so_far.and_among(column, [predicate.value])
    if isinstance(predicate, In):
        return so_far.and_among(column, predicate.value)
    if isinstance(predicate, StringStartsWith):
        return so_far.and_prefix(column, predicate.value)
    if isinstance(predicate, (LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual)):
        return so_far.and_compared(column, _SIGNS[type(predicate).__name__], predicate.value)
    return None
