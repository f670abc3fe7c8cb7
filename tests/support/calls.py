"""The data source called in this process as Spark calls it: what a query would run into, without a
query.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import LongType, StructType

from spark_jetstream.client.pool import close_all
from spark_jetstream.datasource import JetStreamDataSource
from spark_jetstream.schema import (
    BUCKET_COLUMNS,
    COLUMNS,
    COUNTER_COLUMNS,
    DEAD_LETTER_COLUMNS,
    OBJECT_COLUMNS,
    Column,
    arrow_schema,
)
from tests.model.query import written
from tests.support.queries import Run, as_stored, refusal_in
from tests.support.streams import Stored, Stream

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable
except ImportError:  # Spark 4.0 and 4.1
    ADMISSION_CONTROL = False
else:
    ADMISSION_CONTROL = True
"""Whether Spark gives a source the start and the limit of a micro-batch. Without, the first one of
a query has no limits, and a run with Trigger.AvailableNow or Trigger.Once has one micro-batch.
"""


def _struct(columns: Sequence[Column]) -> StructType:
    return from_arrow_schema(arrow_schema([column.name for column in columns], columns))


SEQUENCE = StructType().add("sequence", LongType())
ROWS = _struct(COLUMNS)
BUCKET_ROWS = _struct(BUCKET_COLUMNS)
COUNTER_ROWS = _struct(COUNTER_COLUMNS)
DEAD_LETTER_ROWS = _struct(DEAD_LETTER_COLUMNS)
OBJECT_ROWS = _struct(OBJECT_COLUMNS)
QUERY = "11111111-2222-3333-4444-555555555555"

Writer = DataSourceWriter | DataSourceStreamWriter


def data_source(options: Mapping[str, object]) -> JetStreamDataSource:
    """The data source with options as Spark hands them over: names in lower case, values as text."""
    return JetStreamDataSource({name.lower(): str(value) for name, value in options.items()})


def refusal_of(failure: BaseException, *, in_task: bool = False) -> tuple[str, str]:
    """Return the same as `queries.refusal`, of an error that was raised in this process.

    An error of the driver must have no cause, which Spark would show as well. If a task raises an
    error, Spark shows the last one alone.
    """
    return refusal_in("".join(traceback.format_exception(failure, chain=not in_task)))


# Reading


def planned(
    mode: str, options: Mapping[str, object], schema: StructType | None = None
) -> list[InputPartition]:
    """Return the plan of the driver for a batch (mode b), or for the first micro-batch of a query
    (mode s).
    """
    source = data_source(options)
    if schema is None:
        source.schema()
    if mode == "b":
        return list(source.reader(schema or SEQUENCE).partitions())
    reader: Any = source.streamReader(schema or SEQUENCE)
    if ADMISSION_CONTROL:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
    else:
        end = reader.latestOffset()
        start = reader.initialOffset()
    return list(reader.partitions(start, end))


def sequences(mode: str, options: Mapping[str, object]) -> list[int]:
    """The sequences that the tasks of `planned` read."""
    source = data_source(options)
    reader: Any = source.reader(SEQUENCE) if mode == "b" else source.streamReader(SEQUENCE)
    partitions = planned(mode, options)
    return [
        number
        for part in partitions
        for rows in reader.read(part)
        for number in rows.column(0).to_pylist()
    ]


def tasks(options: Mapping[str, object], schema: StructType = SEQUENCE) -> list[list[Row]]:
    """The rows that each task of a batch reads, in all columns of the schema."""
    reader = data_source(options).reader(schema)
    return [list(rows_of(reader, [part])) for part in reader.partitions()]


def rows(options: Mapping[str, object], schema: StructType = ROWS) -> list[Row]:
    """The rows of a batch, task after task."""
    return [row for task in tasks(options, schema) for row in task]


def reading(options: Mapping[str, object]) -> Iterator[Stored]:
    """The rows of a batch of a stream in plain Python, as they come; it is planned at once."""
    reader = data_source(options).reader(ROWS)
    return map(as_stored, rows_of(reader, reader.partitions()))


def stored(stream: Stream, /, **options: object) -> list[Stored]:
    """The rows of a batch of a stream in plain Python, task after task."""
    return list(reading({"servers": stream.url, "stream": stream.name, **options}))


class Query:
    """A streaming query: `run` reads what is there and stops, as with the trigger availableNow.

    Its checkpoint, `end`, is the end of its last micro-batch; `ends` are those of the last run.
    After `resume` it can also be read by single micro-batches.
    """

    def __init__(self, url: str, stream: str | None = None, /, **options: Any) -> None:
        self.options = {"servers": url, **({} if stream is None else {"stream": stream}), **options}
        self.schema = (
            BUCKET_ROWS
            if "bucket" in options
            else OBJECT_ROWS
            if "objectBucket" in options
            else ROWS
        )
        if options.get("counters"):
            self.schema = COUNTER_ROWS
        self.end: dict[str, Any] | None = None
        self.ends: list[dict[str, Any]] = []

    def resume(self, **changed: Any) -> Query:
        """Begin, or go on from the checkpoint as a new process would, with other options if some
        have changed.
        """
        self.options |= changed
        self._reader = self._started(self.options)
        if self.end is None and ADMISSION_CONTROL:
            self.end = written(self._reader.initialOffset())
        return self

    def step(self) -> list[Stored]:
        """The rows of the next micro-batch of a stream; none when there is nothing to read."""
        start, end = self._next(self._reader)
        new_rows = [
            as_stored(row) for row in rows_of(self._reader, self._reader.partitions(start, end))
        ]
        self.end = end
        return new_rows

    def _started(self, options: Mapping[str, object]) -> Any:
        """The reader of a new process."""
        reader: Any = data_source(options).streamReader(self.schema)
        if self.end is not None and not ADMISSION_CONTROL:
            # So Spark plans the last batch once more, which tells the reader where the query is.
            reader.partitions(self.end, self.end)
        return reader

    def _next(self, reader: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start and end of the next micro-batch, asked for in the order of this Spark."""
        if ADMISSION_CONTROL:
            start = self.end or written(reader.initialOffset())
            return start, written(reader.latestOffset(start, reader.getDefaultReadLimit()))
        end = written(reader.latestOffset())
        return self.end or written(reader.initialOffset()), end

    def rest(self) -> list[Stored]:
        """The rows of all micro-batches until there is nothing left to read."""
        new_rows: list[Stored] = []
        before = None
        while before != self.end:
            before = self.end
            new_rows += self.step()
        return new_rows

    def commit(self) -> None:
        """Commit what was read, and wait for the thread that does it."""
        self._reader.commit(self.end)
        self._reader.open_planner().progress.settle()

    def run(self, after_batch: Callable[[int], object] | None = None, /, **changed: object) -> Run:
        """Read it as a new process would, with other options if some have changed."""
        run = Run()
        self.ends = []
        try:
            reader = self._started({**self.options, **changed})
            if ADMISSION_CONTROL:
                reader.prepareForTriggerAvailableNow()
            while ADMISSION_CONTROL or not run.batches:
                start, end = self._next(reader)
                # Spark makes one batch of a new query even when there is nothing to read.
                if end == start and self.end is not None:
                    break
                number = len(run.batches)
                if number:
                    # Of the last batch of a run Spark tells nobody.
                    reader.commit(start)
                parts = reader.partitions(start, end)
                run.batches[number] = list(rows_of(reader, parts))
                if after_batch is not None:
                    after_batch(number)
                self.end = end
                self.ends.append(end)
        finally:
            close_all()
        return run

    def runs(self, **changed: object) -> Run:
        """All runs until one finds nothing to read, as one.

        Before Spark 4.2 a run has one batch, which may only find that the streams are others.
        """
        runs = Run()
        while batches := self.run(**changed).batches:
            runs.batches |= {len(runs.batches) + number: rows for number, rows in batches.items()}
        return runs


def rows_of(reader: Any, partitions: Iterable[InputPartition]) -> Iterator[Row]:
    """The rows of tasks as they come, with times and headers as `queries.plain` gives them."""
    for batch in (batch for part in partitions for batch in reader.read(part)):
        columns = {name: batch.column(name) for name in batch.schema.names}
        values = {
            name: (array.cast(pa.int64()) if name == "timestamp" else array).to_pylist()
            for name, array in columns.items()
        }
        if "headers" in values:
            values["headers"] = [
                None if headers is None else dict(headers) for headers in values["headers"]
            ]
        yield from (
            Row(**dict(zip(values, row, strict=True))) for row in zip(*values.values(), strict=True)
        )


# Writing


def writer_of(mode: str, options: Mapping[str, object], schema: pa.Schema) -> Writer:
    """The writer of a batch (mode b) or of a micro-batch (mode s); raises what is known before any
    task starts.
    """
    source = data_source(options)
    struct = from_arrow_schema(schema)
    return (
        source.writer(struct, overwrite=False)
        if mode == "b"
        else source.streamWriter(struct, overwrite=False)
    )


def store(writer: Writer, batches: Iterable[pa.RecordBatch], batch: int = 0, run: str = "") -> None:
    """Run the only task of a write, and commit it; abort and raise what the task raises.

    `run` is that of the query.
    """
    anything: Any = writer
    number = (batch,) if isinstance(writer, DataSourceStreamWriter) else ()
    try:
        with _task(batch, run):
            message = anything.write(iter(batches) if anything.arrow else _rows_of(batches))
    except BaseException:
        anything.abort([None], *number)
        raise
    anything.commit([message], *number)


def _rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """The rows that Spark makes of batches for a writer of Python objects."""
    for batch in batches:
        schema = from_arrow_schema(batch.schema)
        yield from ArrowTableToRowsConversion.convert(pa.Table.from_batches([batch]), schema)


@contextmanager
def _task(batch: int, run: str) -> Iterator[None]:
    """Code in it finds itself in the task of partition 0 of a query's micro-batch."""
    context = TaskContext._getOrCreate()
    context._partitionId = 0
    names = ("sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id")
    context._localProperties = dict(zip(names, (QUERY, str(batch), run), strict=True))
    try:
        yield
    finally:
        TaskContext._setTaskContext(None)
