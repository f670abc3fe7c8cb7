"""Measures tasks beside those of a source without I/O, micro-batches, and rows/s by messages a task."""

from __future__ import annotations

import statistics
import tempfile
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.load import fill
from benchmarks.processes import Cpu, spark_jvm
from benchmarks.tables import Table
from spark_jetstream.testing import NatsServer

ROWS = 10
_SOURCES = ("ready-made", "consumer", "direct")
_MANY, _FEW = 220, 20  # tasks; the difference leaves out what a job costs
_WARM_UP = 4
_TOTAL = 2_000_000
_BATCHES = ((100, 30), (10_000, 30), (1_000_000, 5))
"""Messages of a micro-batch, and micro-batches of a query."""
_SIZES = (1_000_000, 500_000, 200_000, 100_000, 50_000, 25_000, 10_000)


def run(spark: SparkSession, rounds: int, sockets: str) -> None:
    """Print the cost of a task of ten messages, by source; `sockets` says how Spark reaches its
    Python workers.
    """
    with NatsServer() as server:
        fill(server.url, "TASKS", _MANY * ROWS, allow_direct=True)
        forms = dict.fromkeys(("wall", "server", "Spark", "Python"), ".1f")
        table = Table(
            f"tasks over {sockets}",
            f"cost of a task of {ROWS} messages over {sockets} sockets, one at a time, {rounds} "
            "rounds; milliseconds: wall time and CPU",
            **{"source": "s", **forms},
        )
        for source in _SOURCES:
            found = _rows(spark, server.url, source, _MANY).count()
            if found != _MANY * ROWS:
                raise RuntimeError(f"{found} rows came of {_MANY * ROWS}")
        for number in range(-_WARM_UP, rounds):
            for source in _SOURCES:
                few, many = (_job(spark, server, source, tasks) for tasks in (_FEW, _MANY))
                cost = [
                    1000 * (long - short) / (_MANY - _FEW)
                    for short, long in zip(few, many, strict=True)
                ]
                table.add(source, *cost, counted=number >= 0)
        table.summarize(by="source")


def _job(spark: SparkSession, server: NatsServer, source: str, tasks: int) -> list[float]:
    """Return the seconds that a job took by the clock, and of CPU in the server, in Spark's JVM and
    in Python.
    """
    rows = _rows(spark, server.url, source, tasks)
    cpu = Cpu(spark_jvm(), server.pid)
    began = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    return [time.perf_counter() - began, *cpu.used()]


def _rows(spark: SparkSession, url: str, source: str, tasks: int) -> DataFrame:
    if source == "ready-made":
        return spark.read.format("readymade").options(partitions=tasks, rows=ROWS).load()
    options: dict[str, str | int] = {
        "servers": url,
        "stream": "TASKS",
        "readWith": source,
        "maxMessagesPerPartition": ROWS,
    }
    end = f'{{"TASKS": {tasks * ROWS + 1}}}'
    return spark.read.format("jetstream").options(**options, endingOffsets=end).load()


def micro_batches(spark: SparkSession, rounds: int, sockets: str) -> None:
    """Print what a micro-batch takes, by its messages; `sockets` says how Spark reaches its Python
    workers.
    """
    with NatsServer() as server:
        total = max(size * count for size, count in _BATCHES)
        fill(server.url, "BATCHES", total)
        table = Table(
            f"micro-batches over {sockets}",
            f"micro-batches of 200 B messages in one task over {sockets} sockets into noop, "
            f"{rounds} rounds; milliseconds: medians of a query by the clock, and of them what the "
            "tasks take",
            **{"messages": "s", "micro-batch": ",.0f", "tasks": ",.0f"},
        )
        for number in range(-1, rounds):
            for size, count in _BATCHES:
                first = total - size * count + 1
                options = {
                    "servers": server.url,
                    "stream": "BATCHES",
                    "startingOffsets": f'{{"BATCHES": {first}}}',
                }
                limits = dict.fromkeys(
                    ("maxMessagesPerTrigger", "maxMessagesPerPartition"), str(size)
                )
                took = _durations(spark, {**options, **limits})[
                    1:
                ]  # the first one plans without a cache
                medians = [statistics.median(column) for column in zip(*took, strict=True)]
                table.add(f"{size:,}", *medians, counted=number >= 0)
        table.summarize(by="messages")


def _durations(spark: SparkSession, options: dict[str, str]) -> list[tuple[int, int]]:
    """Return what each micro-batch of a query with `availableNow` took, and its tasks, in
    milliseconds.
    """
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = (
            spark.readStream.format("jetstream")
            .options(**options)
            .load()
            .writeStream.format("noop")
        )
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        batches: list[Any] = [
            each["durationMs"] for each in query.recentProgress if each["numInputRows"]
        ]
        return [(each["triggerExecution"], each["addBatch"]) for each in batches]


def sizes(spark: SparkSession, rounds: int) -> None:
    """Print the rows a second that a job reads, by messages a task."""
    with NatsServer() as server:
        fill(server.url, "SIZES", _TOTAL)
        rates = {f"{size:,}": ",.0f" for size in _SIZES}
        master = spark.sparkContext.master
        title = (
            f"{_TOTAL:,} messages of 200 B into noop on {master}, rows a second by messages a task"
        )
        table = Table(f"sizes of tasks on {master}", title, **{"round": "s", **rates})
        for number in range(-2, rounds):
            row: list[float] = []
            for size in _SIZES:
                options = {
                    "servers": server.url,
                    "stream": "SIZES",
                    "maxMessagesPerPartition": str(size),
                }
                rows = spark.read.format("jetstream").options(**options).load()
                began = time.perf_counter()
                rows.write.format("noop").mode("overwrite").save()
                row.append(_TOTAL / (time.perf_counter() - began))
            table.add(str(number + 1) if number >= 0 else "warm-up", *row, counted=number >= 0)
        table.summarize()
