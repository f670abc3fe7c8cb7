"""The source: throughput through Spark beside its references, memory of a worker, latency at the end of a stream."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

import spark_jetstream
from benchmarks import references
from benchmarks.load import fill
from benchmarks.processes import cpu_seconds, peak_megabytes, python_workers, spark_jvm
from benchmarks.ready_made import ROWS, ReadyMade
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import connect
from spark_jetstream.options import ConnectionOptions, SourceOptions
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.source.planner import Planner
from spark_jetstream.streams.pull import PullSettings, read_range
from spark_jetstream.testing import NatsServer

MESSAGES = 1_000_000
PARTITION = 100_000
WARM_UP = 3  # rounds until the compilers of the JVM have seen what there is to see


class _Seconds(NamedTuple):
    """What one query took: all of it, its micro-batches with rows, and the tasks of those (`addBatch`)."""

    query: float
    batches: float
    tasks: float


def _run(spark: SparkSession, name: str, options: dict[str, str]) -> _Seconds:
    """One query over everything there is into the noop sink."""
    with tempfile.TemporaryDirectory() as checkpoint:
        began = time.perf_counter()
        source = spark.readStream.format(name).options(**options).load()
        writer = source.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        elapsed = time.perf_counter() - began
        batches: list[Any] = [each for each in query.recentProgress if each["numInputRows"]]
        rows = sum(each["numInputRows"] for each in batches)
        if rows != MESSAGES:
            raise RuntimeError(f"{rows} rows came of {MESSAGES}")
        triggers, tasks = (
            sum(each["durationMs"][name] for each in batches) / 1000 for name in ("triggerExecution", "addBatch")
        )
        return _Seconds(elapsed, triggers, tasks)


def throughput(spark: SparkSession, server: NatsServer, rounds: int) -> None:
    """1,000,000 messages of 200 bytes with `availableNow` into `noop`, references in the same run, round by round."""
    jetstream = {"servers": server.url, "stream": "BENCH", "maxMessagesPerPartition": str(PARTITION)}
    steady = {**jetstream, "maxMessagesPerPartition": str(MESSAGES // 2)}
    ready = {"partitions": str(MESSAGES // PARTITION), "batches": str(PARTITION // ROWS)}
    jvm = spark_jvm()
    print(f"\n1,000,000 messages of 200 B into noop, {rounds} rounds after {WARM_UP} that warm up; rows a second")
    columns = (
        "round",
        "tasks",
        "micro-batch",
        "query",
        "two tasks",
        "(a) bytes",
        "(c) ready",
        "tasks/(a)",
        "tasks/(c)",
    )
    print("".join(f"{column:>12}" for column in columns))
    ratios: list[float] = []
    rates: list[float] = []
    long: list[float] = []
    cost: dict[str, list[float]] = {"server": [], "Spark": [], "Python": []}
    for number in range(1 - WARM_UP, rounds + 1):
        workers = python_workers(jvm)
        before = {pid: cpu_seconds(pid) for pid in {server.pid, jvm, *workers}}
        took = _run(spark, "jetstream", jetstream)
        if number > 0 and set(workers) <= set(python_workers(jvm)):
            used = {pid: cpu_seconds(pid) - since for pid, since in before.items()}
            cost["server"].append(used[server.pid])
            cost["Spark"].append(used[jvm])
            cost["Python"].append(sum(used[pid] for pid in workers))
        two = MESSAGES / _run(spark, "jetstream", steady).tasks
        raw = references.count_bytes(server.url, "BENCH", MESSAGES)
        made = MESSAGES / _run(spark, "readymade", ready).tasks
        rate = MESSAGES / took.tasks
        label = str(number) if number > 0 else "warm-up"
        shown = (rate, MESSAGES / took.batches, MESSAGES / took.query, two, raw, made)
        print(f"{label:>12}" + "".join(f"{each:12,.0f}" for each in shown), end="")
        print(f"{rate / raw:12.2f}{rate / made:12.2f}", flush=True)
        if number > 0:
            ratios.append(rate / raw)
            rates.append(rate)
            long.append(two)
    plain = references.fetch(server.url, "BENCH", MESSAGES // 20)
    print(f"(b) nats-py's fetch: {plain:,.0f} messages a second")
    print(
        f"median: {statistics.median(rates):,.0f} rows/s, {statistics.median(ratios):.2f} of (a), "
        f"{statistics.median(rates) / plain:.1f} times (b)"
    )
    print(
        f"median of two tasks of {MESSAGES // 2:,}: {statistics.median(long):,.0f} rows/s, "
        f"{statistics.median(long) / plain:.1f} times (b)"
    )
    if cost["server"]:
        words = ", ".join(f"{name} {statistics.median(each):.2f}" for name, each in cost.items())
        print(f"CPU, microseconds a message: {words}")


def without_spark(server: NatsServer, rounds: int) -> None:
    """One partition read to Arrow, without Spark: messages a second."""
    options = SourceOptions.from_spark({"servers": server.url, "stream": "BENCH"}, streaming=True)
    connection = connect(options.connection)
    created = Planner(options, lambda _: connection).report_latest().streams["BENCH"].created
    rates = []
    for _ in range(rounds):
        began = time.perf_counter()
        rows = sum(len(pulled.sequences) for pulled in _pull(options, created, 1, MESSAGES + 1))
        rates.append(rows / (time.perf_counter() - began))
    print(f"\none connection to sequences, without Spark: {statistics.median(rates):,.0f} messages/s")


def _pull(options: SourceOptions, created: str, first: int, end: int) -> Any:
    part = SequenceRange(options.streams[0], first, end, end - first, created)
    settings = PullSettings(options.fetch_batch, options.fetch_max_bytes, options.fetch_timeout, 60, True)
    return read_range(lambda _: connect(options.connection), part, settings, "bench")


def memory(spark: SparkSession, server: NatsServer, messages: int) -> None:
    """Peak memory of the Python worker that reads one partition of so many messages."""
    fill(server.url, "LONG", messages)
    jvm = spark_jvm()
    known = set(python_workers(jvm))
    peaks: dict[int, float] = {}
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(0.2):
            for pid in python_workers(jvm):
                peaks[pid] = max(peaks.get(pid, 0.0), peak_megabytes(pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    source = spark.read.format("jetstream").option("servers", server.url).option("stream", "LONG")
    source.option("maxMessagesPerPartition", messages).load().write.format("noop").mode("overwrite").save()
    elapsed = time.perf_counter() - began
    finished.set()
    watcher.join()
    print(
        f"\none partition of {messages:,} messages: {messages / elapsed:,.0f} rows/s, "
        f"peak memory of a worker {max(peaks.values()):,.0f} MB ({len(set(peaks) - known)} new workers)"
    )


def latency(server: NatsServer, rounds: int) -> None:
    """Time to plan and read the last ten messages of a short and of a long stream."""
    fill(server.url, "SHORT", 1_000)
    print("\nplanning and reading the last ten messages, without Spark (median, milliseconds)")
    for stream in ("SHORT", "BENCH", "LONG"):
        options = SourceOptions.from_spark({"servers": server.url, "stream": stream}, streaming=True)

        def connected(_: float, chosen: ConnectionOptions = options.connection) -> Connection:
            return connect(chosen)

        taken = []
        for _ in range(rounds):
            driver = Planner(options, connected)
            state = driver.report_latest().streams[stream]
            began = time.perf_counter()
            driver.report_latest()
            rows = sum(len(p.sequences) for p in _pull(options, state.created, state.next - 10, state.next))
            taken.append((time.perf_counter() - began) * 1000)
            if rows != 10:
                raise RuntimeError(f"{rows} of 10 messages came")
        print(f"{stream:>8} of {state.next - 1:>9,}: {statistics.median(taken):.1f}")


@contextlib.contextmanager
def session(cores: int = 2) -> Iterator[SparkSession]:
    """A session on two cores, as the figures say, with Unix sockets to the Python workers where Spark has them."""
    builder = SparkSession.builder.master(f"local[{cores}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.python.unix.domain.socket.enabled", "true")
    spark: SparkSession = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark_jetstream.register(spark)
    spark.dataSource.register(ReadyMade)
    try:
        yield spark
    finally:
        spark.stop()


def run(spark: SparkSession, rounds: int, long: int) -> None:
    """All figures of the source."""
    with NatsServer() as server:
        fill(server.url, "BENCH", MESSAGES)
        throughput(spark, server, rounds)
        without_spark(server, rounds)
        memory(spark, server, long)
        latency(server, 5 * rounds)
