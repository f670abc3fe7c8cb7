"""The Spark session and the queries of the demo."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pandas as pd
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_jetstream.demo.figures import LATE, Batches, Stored
from spark_jetstream.java import ensure_java

STREAM = "FLIGHTS"

Tell = Callable[[int], None]
"""Takes how many messages or rows are done."""


@contextlib.contextmanager
def spark_session(folder: Path) -> Iterator[SparkSession]:
    """Yield a local Spark session.

    Its JVM writes its log to ``folder``; the end of the log is printed after an error. Sets
    ``JAVA_HOME``, ``PYSPARK_PYTHON`` and ``PYSPARK_DRIVER_PYTHON`` of this process. For its main
    thread: Ctrl-C raises `KeyboardInterrupt` once Spark has started.
    """
    os.environ["JAVA_HOME"] = ensure_java()
    # Spark takes python3 from the PATH otherwise, which may lack pyarrow and this package.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    log = folder / "spark.log"
    builder = (
        SparkSession.builder.appName("spark-jetstream demo")
        .master("local[*]")
        .config("spark.ui.enabled", "false")
        # All files of Spark go to the folder, which the demo removes.
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        # 16 carriers and 20 hours: more partitions would only cost time.
        .config("spark.sql.shuffle.partitions", "2")
    )
    try:
        with _CtrlC() as ctrl_c:
            # The JVM starts in here, and keeps the standard error that it has then.
            with warnings.catch_warnings(), _stderr_into(log):
                # Nothing here uses Spark's pandas functions.
                warnings.filterwarnings(
                    "ignore",
                    message="PySpark does not yet fully support pandas",
                )
                spark = builder.getOrCreate()
            with spark:
                ctrl_c.release()
                spark.sparkContext.setLogLevel("ERROR")
                yield spark
    except Exception:
        # The JVM has written its reasons to the file alone.
        if log.is_file():
            sys.stderr.write("The end of Spark's log:\n")
            sys.stderr.writelines(log.read_text(errors="replace").splitlines(keepends=True)[-30:])
        raise


class _CtrlC:
    """Handles Ctrl-C: holds it back until `release`, and from then on raises `KeyboardInterrupt`.

    A JVM whose start is interrupted never ends: PySpark removes the folder in which it was to write
    its port.
    """

    def __init__(self) -> None:
        self._holding = True
        self._came = False

    def release(self) -> None:
        """Raise `KeyboardInterrupt` if the user has pressed Ctrl-C, or presses it from now on."""
        # PySpark's own handler calls the JVM in the middle of another call, which breaks both.
        # Set again, because the start of Spark has set another one.
        signal.signal(signal.SIGINT, self._handle)
        self._holding = False
        # A Ctrl-C during the start counts now, when the JVM can be ended.
        if self._came:
            self._interrupt()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._came = True
        if not self._holding:
            self._interrupt()

    def _interrupt(self) -> None:
        logging.disable()  # py4j logs the call that this ends as an error
        raise KeyboardInterrupt

    def __enter__(self) -> _CtrlC:
        self._former = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        signal.signal(signal.SIGINT, self._former)
        logging.disable(logging.NOTSET)


@contextlib.contextmanager
def _stderr_into(path: Path) -> Iterator[None]:
    """Processes started inside write their standard error to ``path``, as long as they live."""
    # A child inherits descriptor 2, whatever `sys.stderr` is: only `dup2` redirects the JVM.
    sys.stderr.flush()
    ours = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


def hourly_delays(messages: DataFrame) -> DataFrame:
    """Return delays by carrier and scheduled hour, for each hour in which messages were stored."""
    # `from_json` skips the other fields.
    flight = sf.from_json(
        sf.col("data").cast("string"),
        "carrier string, hour int, dep_delay double, arr_delay double",
    )
    return (
        messages.select("timestamp", flight.alias("flight"))
        # It bounds the state of the query: Spark drops the sums of a window that it has passed.
        .withWatermark("timestamp", "1 minute")
        .groupBy(sf.window("timestamp", "1 hour").alias("stored"), "flight.carrier", "flight.hour")
        .agg(
            sf.count("*").alias("flights"),
            sf.count("flight.dep_delay").alias("departed"),
            # Where all flights of a group were cancelled, Spark's sum is null and that of pandas 0:
            # test_demo.py, test_sums_leave_out_cancelled_flights.
            sf.coalesce(sf.sum("flight.dep_delay"), sf.lit(0.0)).alias("departure_minutes"),
            sf.count("flight.arr_delay").alias("arrived"),
            sf.coalesce(sf.sum("flight.arr_delay"), sf.lit(0.0)).alias("arrival_minutes"),
        )
        .withColumn("stored", sf.col("stored.start").cast("long"))
    )


def read_flights_stream(spark: SparkSession, url: str, columns: str) -> DataFrame:
    """Return the stream of flights, in limited micro-batches.

    The source reads and decodes only ``columns``.
    """
    return (
        spark.readStream.format("jetstream")
        .schema(columns)
        # Spark before 4.2 reads everything in one micro-batch.
        .options(servers=url, stream=STREAM, maxMessagesPerTrigger=100_000)
        # A task has 50,000 messages by default (docs/tuning.md), so other cores would be idle.
        .option("minPartitions", spark.sparkContext.defaultParallelism)
        .load()
    )


def run_to_end(writer: DataStreamWriter, checkpoint: Path, tell: Tell) -> Batches:
    """Run a query until it has read everything. Raises its error.

    ``tell`` gets the number of rows that it has read.
    """
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    while not query.awaitTermination(1):
        tell(sum(progress.numInputRows for progress in query.recentProgress))
    rows = []
    seconds = []
    watermark = ""
    for progress in query.recentProgress:
        # Spark also runs micro-batches without rows, to move the watermark on.
        if progress.numInputRows:
            rows.append(progress.numInputRows)
            # Spark reports milliseconds.
            seconds.append(progress.batchDuration / 1000)
        if progress.eventTime:
            watermark = progress.eventTime["watermark"]
    batches = Batches(rows, seconds, watermark)
    tell(batches.total_rows)
    return batches


def run_query(
    spark: SparkSession,
    url: str,
    folder: Path,
    tell: Tell,
) -> tuple[pd.DataFrame, Batches]:
    """Read the stream, and return the newest sums of every group, and the micro-batches."""
    newest: dict[tuple[int, str, int], Row] = {}

    def keep(batch: DataFrame, _batch_id: int) -> None:
        for row in batch.collect():
            # In update mode a micro-batch has only the groups that it has changed, with their whole
            # sums: the last row of a group counts. A batch that comes again changes nothing.
            newest[row["stored"], row["carrier"], row["hour"]] = row

    sums = hourly_delays(read_flights_stream(spark, url, "timestamp timestamp, data binary"))
    writer = sums.writeStream.outputMode("update").foreachBatch(keep)
    batches = run_to_end(writer, folder / "delays-checkpoint", tell)
    rows = pd.DataFrame.from_records([*newest.values()], columns=sums.columns)
    # Messages that were stored before and after a full hour are in two windows, and so a group may
    # have two rows.
    return rows.groupby(["carrier", "hour"]).sum().drop(columns="stored"), batches


COPIES = "DELAYS"

#: The header that names the sequence which a flight has in the stream of flights.
FLIGHT_SEQUENCE = "Flight-Sequence"

#: The fields of a flight that the query uses. The JSON of pandas has minutes with a point.
COPIED_FLIGHT = (
    "year int, month int, day int, carrier string, flight int, origin string, dest string, "
    "dep_delay double, arr_delay double"
)


def late_flights(messages: DataFrame) -> DataFrame:
    """Return a row for the sink for each flight that arrived `LATE` minutes late or later.

    The subject is ``delays.<origin>.<carrier>``; ``lost`` is by how many minutes its delay grew on
    the way.
    """
    flight = sf.from_json(sf.col("data").cast("string"), COPIED_FLIGHT)
    delay = sf.struct(
        sf.concat_ws(" ", "carrier", "flight").alias("flight"),
        sf.make_date("year", "month", "day").alias("date"),
        sf.col("dest").alias("to"),
        sf.col("arr_delay").cast("bigint").alias("minutes"),
        (sf.col("arr_delay") - sf.col("dep_delay")).cast("bigint").alias("lost"),
    )
    return (
        messages.select("sequence", flight.alias("read"))
        .select("sequence", "read.*")
        # A cancelled flight has null, which is left out.
        .where(sf.col("arr_delay") >= LATE)
        .select(
            sf.concat_ws(".", sf.lit("delays"), "origin", "carrier").alias("subject"),
            sf.create_map(sf.lit(FLIGHT_SEQUENCE), sf.col("sequence").cast("string")).alias(
                "headers",
            ),
            sf.to_json(delay).alias("data"),
        )
    )


def write_late(spark: SparkSession, url: str, folder: Path, tell: Tell) -> Batches:
    """Write the late flights to the second stream, each exactly once."""
    writer = (
        late_flights(read_flights_stream(spark, url, "sequence bigint, data binary"))
        .writeStream.format("jetstream")
        .outputMode("append")
        # `read_back` compares the number of messages with that of flights, so a row that is stored
        # twice would show.
        .options(servers=url, stream=COPIES, delivery="exactly-once")
        .option("ensureStream", json.dumps({"name": COPIES, "subjects": ["delays.>"]}))
    )
    return run_to_end(writer, folder / "late-checkpoint", tell)


def read_back(spark: SparkSession, url: str) -> Stored:
    """Read the second stream and add it up by subject.

    ``flights`` counts a flight once, however often it is stored.
    """
    began = time.monotonic()
    delay = sf.from_json(sf.col("data").cast("string"), "minutes bigint, lost bigint")
    sums = (
        spark.read.format("jetstream")
        .schema("subject string, sequence bigint, headers map<string,array<string>>, data binary")
        .options(servers=url, stream=COPIES)
        .option("minPartitions", spark.sparkContext.defaultParallelism)
        .load()
        .withColumn("delay", delay)
        .groupBy("subject")
        .agg(
            sf.count("*").alias("messages"),
            # The column headers has a list of values for each name.
            sf.countDistinct(sf.element_at(sf.element_at("headers", FLIGHT_SEQUENCE), 1)).alias(
                "flights",
            ),
            sf.sum("delay.minutes").alias("minutes"),
            sf.sum("delay.lost").alias("lost"),
            # Tasks read the stream side by side, so the first row of a group is any of its
            # messages.
            sf.min_by(sf.col("data").cast("string"), "sequence").alias("example"),
        )
    )
    rows = pd.DataFrame.from_records(sums.collect(), columns=sums.columns, index="subject")
    examples = {str(subject): text for subject, text in rows.pop("example").items()}
    return Stored(rows, examples, time.monotonic() - began)
