"""The source: throughput through Spark beside its references, memory of a worker, latency at the
end of a stream.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

import spark_jetstream
from benchmarks import references
from benchmarks.load import fill
from benchmarks.processes import Cpu, PeakMemory, spark_jvm
from benchmarks.ready_made import ROWS, ReadyMade
from benchmarks.scale import Scale
from benchmarks.tables import Table
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import connect
from spark_jetstream.options import ConnectionOptions, SourceOptions
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.source.planner import Planner
from spark_jetstream.streams.pull import PullSettings, read_range
from spark_jetstream.testing import NatsServer

PARTITION = 100_000


class _Seconds(NamedTuple):
    """Seconds of one query: all of it, its micro-batches with rows, and their tasks (`addBatch`)."""

    query: float
    batches: float
    tasks: float


def _run(spark: SparkSession, name: str, options: dict[str, str], messages: int) -> _Seconds:
    """One query over all of these messages into the noop sink."""
    with tempfile.TemporaryDirectory() as checkpoint:
        began = time.perf_counter()
        source = spark.readStream.format(name).options(**options).load()
        writer = source.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        elapsed = time.perf_counter() - began
        batches: list[Any] = [each for each in query.recentProgress if each["numInputRows"]]
        rows = sum(each["numInputRows"] for each in batches)
        if rows != messages:
            raise RuntimeError(f"{rows} rows came of {messages}")
        triggers, tasks = (
            sum(each["durationMs"][name] for each in batches) / 1000
            for name in ("triggerExecution", "addBatch")
        )
        return _Seconds(elapsed, triggers, tasks)


def throughput(spark: SparkSession, server: NatsServer, scale: Scale) -> None:
    """Messages of 200 bytes with `availableNow` into `noop`, references in the same run, round by
    round.
    """
    messages = scale.messages
    jetstream = {
        "servers": server.url,
        "stream": "BENCH",
        "maxMessagesPerPartition": str(PARTITION),
    }
    steady = {**jetstream, "maxMessagesPerPartition": str(messages // 2)}
    ready = {"partitions": str(messages // PARTITION), "batches": str(PARTITION // ROWS)}
    jvm = spark_jvm()
    rates = dict.fromkeys(
        ("tasks", "micro-batch", "query", "two tasks", "(a) bytes", "(c) ready"), ",.0f"
    )
    ratios = dict.fromkeys(
        ("tasks/(a)", "two/(a)", "tasks/(c)", "server us", "Spark us", "Python us"), ".2f"
    )
    table = Table(
        "source",
        f"{messages:,} messages of 200 B into noop, {scale.rounds} rounds after {scale.warm_up} "
        "that warm up; rows a second, and microseconds of CPU a message",
        **{"round": "s", **rates, **ratios},
    )
    for number in range(1 - scale.warm_up, scale.rounds + 1):
        cpu = Cpu(jvm, server.pid)
        took = _run(spark, "jetstream", jetstream, messages)
        cost = [seconds / messages * 1e6 for seconds in cpu.used()]
        two = messages / _run(spark, "jetstream", steady, messages).tasks
        raw = references.count_bytes(server.url, "BENCH", messages)
        made = messages / _run(spark, "readymade", ready, messages).tasks
        rate = messages / took.tasks
        shown = (
            rate,
            messages / took.batches,
            messages / took.query,
            two,
            raw,
            made,
            rate / raw,
            two / raw,
        )
        label = str(number) if number > 0 else "warm-up"
        table.add(label, *shown, rate / made, *cost, counted=number > 0)
    table.summarize()
    single = Table("fetch", "(b) nats-py's fetch, one connection, messages a second", fetch=",.0f")
    single.add(references.fetch(server.url, "BENCH", messages // 20))


def without_spark(server: NatsServer, scale: Scale) -> None:
    """One partition read to Arrow, without Spark: messages a second."""
    options = SourceOptions.from_spark({"servers": server.url, "stream": "BENCH"}, streaming=True)
    connection = connect(options.connection)
    created = Planner(options, lambda _: connection).report_latest().streams["BENCH"].created
    table = Table(
        "one connection",
        "one connection to sequences, without Spark, messages a second",
        messages=",.0f",
    )
    for _ in range(scale.rounds):
        began = time.perf_counter()
        rows = sum(
            len(pulled.sequences) for pulled in _pull(options, created, 1, scale.messages + 1)
        )
        table.add(rows / (time.perf_counter() - began))
    table.summarize()


def _pull(options: SourceOptions, created: str, first: int, end: int) -> Any:
    part = SequenceRange(options.streams[0], first, end, end - first, created)
    settings = PullSettings(
        options.fetch_batch, options.fetch_max_bytes, options.fetch_timeout, 60, True
    )
    return read_range(lambda _: connect(options.connection), part, settings, "bench")


def memory(spark: SparkSession, server: NatsServer, messages: int) -> None:
    """Measure the peak memory of the Python worker that reads one partition of `messages` messages."""
    fill(server.url, "LONG", messages)
    source = spark.read.format("jetstream").option("servers", server.url).option("stream", "LONG")
    began = time.perf_counter()
    with PeakMemory(spark_jvm()) as peak:
        source.option("maxMessagesPerPartition", messages).load().write.format("noop").mode(
            "overwrite"
        ).save()
        elapsed = time.perf_counter() - began
    table = Table(
        "one partition",
        "one partition, rows a second and peak memory of its Python worker in MB",
        messages=",.0f",
        rate=",.0f",
        memory=",.0f",
    )
    table.add(messages, messages / elapsed, peak.megabytes)


def latency(server: NatsServer, rounds: int) -> None:
    """Time to plan and read the last ten messages of a short and of a long stream."""
    fill(server.url, "SHORT", 1_000)
    table = Table(
        "last ten",
        "planning and reading the last ten messages of a stream, without Spark, median "
        "milliseconds",
        messages=",.0f",
        median=".1f",
    )
    for stream in ("SHORT", "BENCH", "LONG"):
        options = SourceOptions.from_spark(
            {"servers": server.url, "stream": stream}, streaming=True
        )

        def connected(_: float, chosen: ConnectionOptions = options.connection) -> Connection:
            return connect(chosen)

        taken = []
        for _ in range(rounds):
            driver = Planner(options, connected)
            state = driver.report_latest().streams[stream]
            began = time.perf_counter()
            driver.report_latest()
            rows = sum(
                len(p.sequences) for p in _pull(options, state.created, state.next - 10, state.next)
            )
            taken.append((time.perf_counter() - began) * 1000)
            if rows != 10:
                raise RuntimeError(f"{rows} of 10 messages came")
        table.add(state.next - 1, statistics.median(taken))


@contextlib.contextmanager
def session(master: str = "local[2]", *, unix: bool = True) -> Iterator[SparkSession]:
    """A session on two cores, as the figures say, with Unix sockets to the Python workers unless
    `unix` is False.
    """
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.python.unix.domain.socket.enabled", str(unix).lower())
    spark: SparkSession = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark_jetstream.register(spark)
    spark.dataSource.register(ReadyMade)
    try:
        yield spark
    finally:
        spark.stop()


def run(spark: SparkSession, scale: Scale) -> None:
    """All figures of the source."""
    with NatsServer() as server:
        fill(server.url, "BENCH", scale.messages)
        throughput(spark, server, scale)
        without_spark(server, scale)
        memory(spark, server, scale.long)
        latency(server, 5 * scale.rounds)
