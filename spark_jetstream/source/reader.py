"""The readers that Spark calls (pyspark.sql.datasource): of a stream, and of a batch.

Spark builds and pickles them, possibly several times. They hold nothing but options until the first call, so that an
error in an option is raised where Spark reports it well (another error hides that of a failing constructor).
"""

from __future__ import annotations

import functools
import json
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructField, StructType

from spark_jetstream.buckets.kv import bucket_batch
from spark_jetstream.buckets.stream import find_bucket
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import connect
from spark_jetstream.client.requests import Requests
from spark_jetstream.errors import DataLossError, OptionError, StreamNotFound
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.options.values import hidden
from spark_jetstream.protocol import conventions, jsapi
from spark_jetstream.protocol.columns import MessageRun, record_batch
from spark_jetstream.protocol.counters import counter_batch
from spark_jetstream.protocol.stream import SequenceRange, StreamSummary
from spark_jetstream.schema import GivenField, as_declared, declared_schema
from spark_jetstream.source.advice import READERS, advice
from spark_jetstream.source.as_of import PastTable, plan_past, read_past
from spark_jetstream.source.object_reader import ObjectRows
from spark_jetstream.source.objects import ObjectGroup, plan_objects
from spark_jetstream.source.offsets import REMEDY, Offset, OffsetError
from spark_jetstream.source.planner import Planner
from spark_jetstream.source.positions import (
    check_retention,
    read_use,
    warn_of_filters,
    warn_of_own_traffic,
)
from spark_jetstream.source.selection import Selection
from spark_jetstream.spark_process import ease_next_tasks, find_file, log_as_spark
from spark_jetstream.streams.dead_letters import read_dead_letters
from spark_jetstream.streams.latest import TablePart, read_table
from spark_jetstream.streams.lookup import nearest_stream
from spark_jetstream.streams.pull import PullSettings

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

T = TypeVar("T")

TaskInput = SequenceRange | ObjectGroup | TablePart
"""What one task reads: a range of a stream, the objects of a group, or the latest message of each key or counter."""

_PLANNED_ONCE = (
    "Spark plans a DataFrame or view once: if it was used before, call load() again (in a streaming query, in the "
    "function of foreachBatch)"
)

_TOO_MUCH = (
    "if its log says Slow Consumer, a task asks for more at a time than the server's max_pending: set option "
    "fetchMaxBytes lower"
)

Prepare = Callable[[SourceOptions, bool], None]
"""Does what the options ask for before the first request about a stream. The flag: the query has a checkpoint."""


class _Source:
    streaming: bool

    def __init__(
        self, options: Mapping[str, object], schema: StructType, prepare: Prepare | None = None
    ) -> None:
        """Take what Spark gives; ``prepare`` is called on the driver, before the first request about a stream."""
        self._raw = hidden(options)
        self._fields = [_given(field) for field in schema.fields]
        self._planner: Planner | None = None
        self._prepare = prepare

    def __getstate__(self) -> dict[str, Any]:
        # The options are read on the driver, where the context file is. Executors get no connection.
        _ = self.options, self.columns
        return {**self.__dict__, "_planner": None, "_prepare": None}

    @functools.cached_property
    def options(self) -> SourceOptions:
        """The options, read once. Raises `OptionError`."""
        return SourceOptions.from_spark(self._raw, streaming=self.streaming)

    @functools.cached_property
    def schema(self) -> pa.Schema:
        """The columns to read as Spark expects them. Raises `SchemaError`."""
        return declared_schema(self._fields, self.options.row_columns)

    @functools.cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns to read, in the schema's order. Raises `SchemaError`."""
        return tuple(self.schema.names)

    def open_planner(self, *, resumed: bool = False) -> Planner:
        """Return the planner. The first call connects, ensures the streams, and looks a bucket up.

        With `resumed` the query has a checkpoint: it has reached its server before, and waits for the end of an outage.
        """
        if self._planner is None:
            _ = self.columns
            if self._prepare is not None:
                self._prepare(self.options, resumed)
            options = self.options
            if options.of_bucket:
                _, subjects = find_bucket(self._requests(resumed=resumed), *_bucket_of(options))
                options = options.model_copy(update={"subjects": subjects})
            self._planner = Planner(options, self._connect)
        return self._planner

    def _existing(self, plan: Callable[[], T], read: Collection[str] = ()) -> T:
        """Return what `plan` returns. The error that a stream does not exist says which one was meant.

        But not of those that the query has ``read``: they were deleted.
        """
        try:
            return plan()
        except StreamNotFound as error:
            of = self.options.dead_letters_of
            new = (
                [name for name in self.options.read_streams if name not in read]
                if of is None
                else [of]
            )
            hint = nearest_stream(self._connect, new, options=of is None)
            if of is not None and not hint:
                hint = f"; spark-jetstream dead-letters keep {of} makes it"
            # Spark prints the trace of this process: that of the requests says no more.
            raise jsapi.reworded(error, f"{error}{hint}") from None

    def _requests(self, *, resumed: bool = False) -> Requests:
        times = self.options.connection
        return Requests(
            self._connect, times.retry_timeout, None if resumed else times.connect_timeout
        )

    def _connect(self, patience: float) -> Connection:
        return connect(self.options.connection, patience=patience, find_file=find_file)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one task, as record batches with just the columns of the schema. Runs on an executor."""
        log_as_spark()
        part: TaskInput | None = partition.value
        if part is None:  # Spark's own partition, where nothing was planned
            return
        with advice():
            for batch in self._read(part):
                yield as_declared(batch, self.schema)
        ease_next_tasks()

    def _read(self, part: TaskInput) -> Iterator[pa.RecordBatch]:
        options, columns = self.options, self.columns
        settings, label = self._pull_settings(), task_label()
        if isinstance(part, PastTable):
            yield from self._rows(read_past(self._connect, part, settings, label), part.stream)
        elif isinstance(part, TablePart):
            yield from self._rows(read_table(self._connect, part, settings, label), part.stream)
        elif isinstance(part, SequenceRange) and options.object_bucket is None:
            # By what the planner chose: a work queue is always read directly.
            read = READERS[part.read_with]
            yield from self._rows(read(self._connect, part, settings, label), part.stream)
        else:
            objects = ObjectRows(self._connect, settings, label, options, columns)
            yield from (
                objects.of_group(part) if isinstance(part, ObjectGroup) else objects.of_range(part)
            )

    def _rows(self, pulled: Iterator[MessageRun], stream: str) -> Iterator[pa.RecordBatch]:
        options, columns = self.options, self.columns
        if options.dead_letters_of is not None:
            kept = (
                m
                for run in pulled
                for m in zip(run.sequences.tolist(), run.payloads().to_pylist(), strict=True)
            )
            yield from read_dead_letters(
                self._requests(resumed=True), options.dead_letters_of, kept, columns
            )
            return
        for messages in pulled:
            if options.bucket is not None:
                batch = bucket_batch(
                    messages, bucket=options.bucket, columns=columns, live_only=options.table
                )
            elif options.counters:
                batch = counter_batch(messages, stream=stream, columns=columns)
            else:
                batch = record_batch(
                    messages, columns=columns, with_headers=options.include_headers, stream=stream
                )
            if len(batch):
                yield batch

    def _pull_settings(self) -> PullSettings:
        options = self.options
        described = options.object_bucket or options.dead_letters_of  # by the payload of a message
        return PullSettings(
            batch=options.fetch_batch,
            max_bytes=options.fetch_max_bytes,
            expires=options.fetch_timeout,
            retry_timeout=options.connection.retry_timeout,
            fail_on_data_loss=options.fail_on_data_loss,
            headers_only=not (described or {"data", "headers", "value"} & {*self.columns}),
            too_much=_TOO_MUCH,
        )


def _given(field: StructField) -> GivenField:
    kind = field.dataType
    return GivenField(field.name, kind.simpleString(), field.nullable, kind.jsonValue())


def _bucket_of(options: SourceOptions) -> tuple[str, Sequence[str] | None]:
    """Return the bucket of the options and the keys to read, None for an Object Store bucket."""
    keys = None if options.bucket is None else options.keys
    return options.named(options.read_streams[0]), keys


def task_label() -> str:
    """Return query, batch, partition and attempt of the running task: the beginning of its consumers' names."""
    context = TaskContext.get()
    if context is None:
        return conventions.task_label("0", "0", 0, 0)
    query = (context.getLocalProperty("sql.streaming.queryId") or "batch")[:8]
    batch = context.getLocalProperty("streaming.sql.batchId") or "0"
    return conventions.task_label(query, batch, context.partitionId(), context.attemptNumber())


class JetStreamBatchReader(_Source, DataSourceReader):
    """`spark.read.format("jetstream")`."""

    streaming = False

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read: one partition for each sequence range, or for each part of a bucket as it is now."""
        parts = (
            self._table()
            if self.options.table
            else self._existing(lambda: self.open_planner().batch_ranges())
        )
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one task. Spark may have planned it long ago, which a `DataLossError` says."""
        try:
            yield from super().read(partition)
        except DataLossError as error:
            raise DataLossError(f"{error}; {_PLANNED_ONCE}") from None

    def _table(self) -> Sequence[TaskInput]:
        """Return one task for the table of a Key-Value bucket, now or as it was; several for counters and objects."""
        options, requests = self.options, self._requests()
        if options.counters:
            names = options.streams
            if options.finds_streams:
                selection = Selection(options, requests, time.monotonic)
                selection.look(complete=True)
                names = tuple(sorted(selection.chosen))
            contexts = {name: f"read stream {name} (option {options.chosen_by})" for name in names}
            states = self._existing(
                lambda: [requests.stream(name, context) for name, context in contexts.items()]
            )
            return [self._table_of(state, options.subjects) for state in states]
        state, subjects = find_bucket(requests, *_bucket_of(options))
        part = self._table_of(state, subjects)
        if options.as_of is not None:
            return [plan_past(part, requests, state, options)]
        if options.object_bucket is None:
            return [part]
        with advice():
            return plan_objects(
                self._connect, part, self._pull_settings(), task_label(), options, self.columns
            )

    def _table_of(self, state: StreamSummary, subjects: tuple[str, ...]) -> TablePart:
        options = self.options
        check_retention(state, options, read_use(options))
        warn_of_filters(state, options)
        warn_of_own_traffic(state, options)
        direct = options.read_with == "direct"
        now = options.object_bucket is None and options.as_of is None
        if direct and now and state.max_msgs_per_subject != 1:
            raise OptionError(
                f"option readWith cannot be direct for the current table of {state.name}, which keeps more than one "
                f"{'change of a counter' if options.counters else 'revision of a key'}: set readWith to consumer, or "
                "read all of them with history=true",
                option="readWith",
            )
        return TablePart(state.name, state.created, subjects, direct)


class JetStreamStreamReader(_Source, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("jetstream")`, with admission control in Spark 4.2 and newer."""

    streaming = True
    # Where the next micro-batch begins, which Spark 4.0 and 4.1 do not say.
    _cursor: Offset | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return where a query without a checkpoint starts."""
        return self._existing(lambda: self.open_planner().initial()).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan a micro-batch between two offsets: the same messages whenever it is planned."""
        self._cursor = Offset.from_json(end)
        if start == end:
            return []
        parts = self.open_planner(resumed=True).ranges(Offset.from_json(start), self._cursor)
        # A task without messages keeps its number.
        return [InputPartition(part if part.width else None) for part in parts]

    def commit(self, end: dict[str, Any]) -> None:
        """Move the durable consumers (option durable): everything before `end` is in the sink."""
        self.open_planner(resumed=True).commit(Offset.from_json(end))

    def stop(self) -> None:
        """Replace the error of an offset that Spark's process cannot parse: it calls this while the error passes."""
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
        """Return the end of the next micro-batch; `limit` says whether the options per trigger apply.

        Spark 4.0 and 4.1 pass neither: they apply, and the end that was planned last in this run is the start.
        """
        limited = limit is None or not isinstance(limit, ReadAllAvailable)
        begin = self._cursor if start is None else Offset.from_json(start)

        def plan() -> Offset:
            return self.open_planner(resumed=begin is not None).latest(begin, limited=limited)

        end = self._existing(plan, () if begin is None else begin.streams)
        if start is None and begin is not None:
            # Spark runs the batch, although it plans no task if the query does not use its rows.
            self._cursor = end
        return end.to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of a query that reads what the streams hold now and stops."""
        self._existing(lambda: self.open_planner().prepare_available_now())

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the end of what the query can read, whatever the limits, for its progress."""
        return self.open_planner().report_latest().to_json()
