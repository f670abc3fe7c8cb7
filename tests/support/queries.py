"""Reading through Spark: rows in plain Python, streaming queries run to their end, what was said to
the user.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.reading import wait_until
from tests.support.streams import Stored

_SECONDS = 300.0  # a busy machine takes a minute for a run of a query


def plain(frame: DataFrame) -> DataFrame:
    """The frame with its timestamps as microseconds, which no time zone on the way can move."""
    if "timestamp" not in frame.columns:
        return frame
    return frame.withColumn("timestamp", F.expr("unix_micros(timestamp)"))


def stored(frame: DataFrame) -> list[Stored]:
    """All rows of a frame with all columns, in the order in which they come."""
    return [as_stored(row) for row in plain(frame).collect()]


def as_stored(row: Row) -> Stored:
    return Stored(
        row["stream"],
        row["subject"],
        row["sequence"],
        row["timestamp"],
        row["headers"],
        bytes(row["data"]),
    )


@contextmanager
def kept_settings(spark: SparkSession, *names: str) -> Iterator[None]:
    """Afterwards these settings of the session are as before."""
    former = {name: spark.conf.get(name, None) for name in names}
    try:
        yield
    finally:
        for name, value in former.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)


def batch(
    spark: SparkSession, url: str, stream: str, schema: str | None = None, /, **options: object
) -> DataFrame:
    return _load(spark.read, schema, servers=url, stream=stream, **options)


def streaming(
    spark: SparkSession,
    url: str,
    stream: str | None,
    schema: str | None = None,
    /,
    **options: object,
) -> DataFrame:
    return _load(spark.readStream, schema, servers=url, stream=stream, **options)


def _load(reader: Any, schema: str | None, **options: object) -> DataFrame:
    made = reader.format("jetstream").options(
        **{name: str(value) for name, value in options.items() if value is not None}
    )
    frame: DataFrame = (made if schema is None else made.schema(schema)).load()
    return frame


@dataclass
class Run:
    """One run of a streaming query: the rows of each micro-batch by its id, and Spark's progress."""

    batches: dict[int, list[Row]] = field(default_factory=dict)
    progress: list[dict[str, Any]] = field(default_factory=list)

    @property
    def counts(self) -> list[int]:
        """The number of rows of each micro-batch, in order; those without rows included."""
        return [len(rows) for _, rows in sorted(self.batches.items())]

    @property
    def rows(self) -> list[Row]:
        """All rows, batch after batch, in the order of the batch."""
        return [row for _, rows in sorted(self.batches.items()) for row in rows]

    @property
    def sequences(self) -> list[int]:
        return [row["sequence"] for row in self.rows]

    @property
    def stored(self) -> list[Stored]:
        """All rows in plain Python; the columns must all have been read."""
        return [as_stored(row) for row in self.rows]

    def take(self, frame: DataFrame, number: int) -> None:
        self.batches[number] = frame.collect()

    def wait_for(self, rows: int, query: StreamingQuery) -> None:
        """Wait until `rows` rows have arrived in all; a query that fails instead raises."""

        def came() -> bool:
            if len(self.rows) >= rows:
                return True
            failure = query.exception()
            if failure is not None:
                raise failure
            return False

        wait_until(came, f"{rows} rows", _SECONDS)


def start(frame: DataFrame, checkpoint: Path, run: Run, **trigger: Any) -> StreamingQuery:
    writer = (
        plain(frame)
        .writeStream.option("checkpointLocation", str(checkpoint))
        .foreachBatch(run.take)
    )
    return (writer.trigger(**trigger) if trigger else writer).start()


def available_now(frame: DataFrame, checkpoint: Path, **trigger: Any) -> Run:
    """One run with `availableNow`, or another trigger that ends by itself."""
    run = Run()
    query = start(frame, checkpoint, run, **(trigger or {"availableNow": True}))
    assert query.awaitTermination(int(_SECONDS)), "the query did not end"
    run.progress = [json.loads(progress.json) for progress in query.recentProgress]
    return run


def offsets(progress: Mapping[str, Any], which: str, stream: str) -> int:
    """`next` of a stream in an offset of a progress event."""
    offset = progress["sources"][0][which]
    position: dict[str, Any] = (json.loads(offset) if isinstance(offset, str) else offset)[
        "streams"
    ][stream]
    return int(position["next"])


def refusal(failure: BaseException) -> tuple[str, str]:
    """Class and sentence of the error of this package that the user is shown; there must be just
    one, on one line.

    Spark shows the traceback of the Python process in which it was raised. A chain of errors would
    be two.
    """
    return refusal_in(str(failure))


def refusal_in(text: str) -> tuple[str, str]:
    """Class and sentence of the one error that a traceback, as text, ends in."""
    assert text.count("Traceback (most recent call last)") == 1, text
    errors = re.findall(r"^spark_jetstream\.[\w.]+\.(\w+): (.+)$", text, re.MULTILINE)
    assert len(errors) == 1, text
    kind, sentence = errors[0]
    return kind, sentence
