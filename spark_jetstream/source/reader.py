"""The readers that Spark calls (pyspark.sql.datasource): of a stream, and of a batch.

Spark builds and pickles them, possibly several times. They hold nothing but options until the first
call. So an error in an option is raised where Spark reports it well; another error hides that of a
failing constructor.
"""

from __future__ import annotations

import functools
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import connect
from spark_jetstream.client.requests import Requests
from spark_jetstream.engines.running import running_engine
from spark_jetstream.errors import DataLossError
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.options.values import hidden
from spark_jetstream.protocol import conventions
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.schema import as_declared, declared_schema
from spark_jetstream.source.advice import advice
from spark_jetstream.source.kinds.choice import kind_of
from spark_jetstream.source.kinds.kind import Access, Driver, ReadKind, TaskInput
from spark_jetstream.source.limits import PLAN_LIMITS, PlanLimits
from spark_jetstream.source.offsets import REMEDY, Offset, OffsetError
from spark_jetstream.source.planner import Planner
from spark_jetstream.source.shared.planner import SharedPlanner
from spark_jetstream.spark_process import ease_next_tasks, find_file, log_as_spark

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # Spark 4.0 and 4.1, which have no admission control
    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]

_PLANNED_ONCE = (
    "Spark plans a DataFrame or view once: if it was used before, call load() again (in a "
    "streaming query, in the function of foreachBatch)"
)

Prepare = Callable[[SourceOptions, bool], None]
"""Does what the options ask for before the first request about a stream.

The flag: the query has a checkpoint.
"""


class _Source:
    streaming: bool
    limits: ClassVar[PlanLimits] = PLAN_LIMITS

    def __init__(
        self, options: Mapping[str, object], schema: Any, prepare: Prepare | None = None
    ) -> None:
        """Take what Spark gives; `schema` has the form of the running engine.

        ``prepare`` is called on the driver, before the first request about a stream.
        """
        self._raw = hidden(options)
        self._fields = running_engine().given_fields(schema)
        self._planner: Planner | SharedPlanner | None = None
        self._prepare = prepare

    def __getstate__(self) -> dict[str, Any]:
        # The options are read on the driver, where the context file is. Executors get no
        # connection.
        _ = self.kind, self.columns
        return {**self.__dict__, "_planner": None, "_prepare": None}

    @functools.cached_property
    def options(self) -> SourceOptions:
        """The options, read once. Raises `OptionError`."""
        return SourceOptions.from_spark(self._raw, streaming=self.streaming)

    @functools.cached_property
    def kind(self) -> ReadKind:
        """The kind of data that the options choose to read. Raises `OptionError`."""
        return kind_of(self.options)

    @functools.cached_property
    def schema(self) -> pa.Schema:
        """The columns to read as Spark expects them. Raises `SchemaError`."""
        return declared_schema(self._fields, self.options.row_columns)

    @functools.cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns to read, in the schema's order. Raises `SchemaError`."""
        return tuple(self.schema.names)

    def open_planner(self, *, resumed: bool = False) -> Planner | SharedPlanner:
        """Return the planner. The first call connects, ensures the streams, and looks a bucket up.

        With `resumed` the query has a checkpoint: it has reached its server before, and waits for
        the end of an outage.
        """
        if self._planner is None:
            _ = self.columns
            if self._prepare is not None:
                self._prepare(self.options, resumed)
            options = self.kind.with_filters(self._requests(resumed=resumed))
            if options.share is not None:
                self._planner = SharedPlanner(options, self._connect, self.columns)
            else:
                self._planner = Planner(options, self._connect, limits=self.limits)
        return self._planner

    def _requests(self, *, resumed: bool = False) -> Requests:
        times = self.options.connection
        return Requests(
            self._connect, times.retry_timeout, None if resumed else times.connect_timeout
        )

    def _connect(self, patience: float) -> Connection:
        return connect(self.options.connection, patience=patience, find_file=find_file)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read the rows of one task, as record batches with just the columns of the schema.

        Runs on an executor.
        """
        log_as_spark()
        # Where nothing was planned, Spark reads a partition of its own, and Spark 4.0 and 4.1 None.
        part: TaskInput | None = None if partition is None else partition.value
        if part is None:
            return
        access = Access(self._requests(resumed=True), self.columns, task_label())
        with advice():
            batches = self.kind.read(part, access)
            declared = (as_declared(batch, self.schema) for batch in batches)
            yield from running_engine().hand_over(declared)
        ease_next_tasks()


def task_label() -> str:
    """Return the beginning of the names of the running task's consumers.

    It has the query, the batch, the partition and the attempt.
    """
    context = running_engine().task()
    if context is None:
        return conventions.task_label("0", "0", 0, 0)
    query = (context.getLocalProperty("sql.streaming.queryId") or "batch")[:8]
    batch = context.getLocalProperty("streaming.sql.batchId") or "0"
    return conventions.task_label(query, batch, context.partitionId(), context.attemptNumber())


class JetStreamBatchReader(_Source, DataSourceReader):
    """`spark.read.format("jetstream")`."""

    streaming = False

    def pruneColumns(self, schema: Any) -> None:
        """Read only the columns of `schema`, in its order. Called before `partitions`, if at all.

        Raise `NotImplementedError` for a schema without columns: rows of an Arrow batch without
        columns cannot be counted. Spark does not call this.
        """
        fields = running_engine().given_fields(schema)
        if not fields:
            raise NotImplementedError("a read needs at least one column")
        self._fields = fields
        for known in ("schema", "columns"):
            self.__dict__.pop(known, None)

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read: one partition for each sequence range, or for each part of a table."""
        driver = Driver(self._requests(), self.columns, task_label(), self._plan_ranges)
        return [InputPartition(part) for part in self.kind.plan_batch(driver)]

    def _plan_ranges(self) -> list[SequenceRange]:
        with self.kind.suggesting(self._connect):
            planner = self.open_planner()
            # Option share belongs to streaming queries.
            assert isinstance(planner, Planner)
            return planner.batch_ranges()

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read the rows of one task.

        Spark may have planned it long ago, which a `DataLossError` says.
        """
        try:
            yield from super().read(partition)
        except DataLossError as error:
            raise DataLossError(f"{error}; {_PLANNED_ONCE}") from None


class JetStreamStreamReader(_Source, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("jetstream")`, with admission control in Spark 4.2 and newer."""

    streaming = True
    # Where the next micro-batch begins, which Spark 4.0 and 4.1 do not say.
    _cursor: Offset | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return where a query without a checkpoint starts."""
        with self.kind.suggesting(self._connect):
            return self.open_planner().initial().to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan a micro-batch between two offsets: the same messages whenever it is planned."""
        self._cursor = Offset.from_json(end)
        if start == end:
            return []
        parts = self.open_planner(resumed=True).ranges(Offset.from_json(start), self._cursor)
        # A task without messages keeps its number.
        return [InputPartition(part if part.width else None) for part in parts]

    def commit(self, end: dict[str, Any]) -> None:
        """Tell the server that everything before `end` is in the sink (options durable, share)."""
        self.open_planner(resumed=True).commit(Offset.from_json(end))

    def stop(self) -> None:
        """Let go of reserved messages (option share).

        Replaces the error of an offset that Spark's process cannot parse: Spark calls this while
        the error passes.
        """
        if isinstance(self._planner, SharedPlanner):
            self._planner.close()
        error = sys.exc_info()[1]
        if not isinstance(error, (ValueError, RecursionError)):
            return
        modules = [
            str(frame.f_globals.get("__name__"))
            for frame, _ in traceback.walk_tb(error.__traceback__)
        ]
        if modules[-1].partition(".")[0] == "json" and __name__ not in modules:
            # A huge number is a `ValueError` too, whose text has an advice that would not help.
            fault = (
                f": {error}"
                if isinstance(error, json.JSONDecodeError)
                else ", or its parts are too large"
            )
            raise OffsetError(f"an offset in the checkpoint is not JSON{fault}; {REMEDY}") from None

    # Admission control

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that Spark shows; `latestOffset` applies the options themselves."""
        options = self.options
        if options.max_messages_per_trigger:
            return ReadMaxRows(options.max_messages_per_trigger)
        if options.max_bytes_per_trigger:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_messages_per_trigger:
            return ReadMinRows(options.min_messages_per_trigger)
        return ReadAllAvailable()

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the end of the next micro-batch.

        `limit` says whether the options per trigger apply.
        Spark 4.0 and 4.1 pass neither: they apply, and the end that was planned last in this run is
        the start.
        """
        limited = limit is None or not isinstance(limit, ReadAllAvailable)
        begin = self._cursor if start is None else Offset.from_json(start)
        known = () if begin is None else begin.streams
        with self.kind.suggesting(self._connect, known):
            end = self.open_planner(resumed=begin is not None).latest(begin, limited=limited)
        if start is None and begin is not None:
            # Spark runs the batch, although it plans no task if the query does not use its rows.
            self._cursor = end
        return end.to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of a query that reads what the streams hold now and stops."""
        with self.kind.suggesting(self._connect):
            self.open_planner().prepare_available_now()

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the end of what the query can read, whatever the limits, for its progress."""
        return self.open_planner().report_latest().to_json()
