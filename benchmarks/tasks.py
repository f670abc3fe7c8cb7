"""What a task costs: tasks of ten messages beside those of a source that does no I/O, and rows/s by messages a task."""

from __future__ import annotations

import time

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
_SIZES = (1_000_000, 500_000, 200_000, 100_000, 50_000, 25_000, 10_000)


def run(spark: SparkSession, rounds: int, sockets: str) -> None:
    """Print the cost of a task of ten messages, by source; `sockets` says how Spark reaches its Python workers."""
    with NatsServer() as server:
        fill(server.url, "TASKS", _MANY * ROWS, allow_direct=True)
        forms = dict.fromkeys(("wall", "server", "Spark", "Python"), ".1f")
        table = Table(
            f"tasks over {sockets}",
            f"cost of a task of {ROWS} messages over {sockets} sockets, one at a time, {rounds} rounds; milliseconds: "
            "wall time and CPU",
            **{"source": "s", **forms},
        )
        for source in _SOURCES:
            found = _rows(spark, server.url, source, _MANY).count()
            if found != _MANY * ROWS:
                raise RuntimeError(f"{found} rows came of {_MANY * ROWS}")
        for number in range(-_WARM_UP, rounds):
            for source in _SOURCES:
                few, many = (_job(spark, server, source, tasks) for tasks in (_FEW, _MANY))
                cost = [1000 * (long - short) / (_MANY - _FEW) for short, long in zip(few, many, strict=True)]
                table.add(source, *cost, counted=number >= 0)
        table.summarize(by="source")


def _job(spark: SparkSession, server: NatsServer, source: str, tasks: int) -> list[float]:
    """Return the seconds that a job took by the clock, and of CPU in the server, in Spark's JVM and in Python."""
    rows = _rows(spark, server.url, source, tasks)
    cpu = Cpu(server.pid, spark_jvm())
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


def sizes(spark: SparkSession, rounds: int) -> None:
    """Print the rows a second that a job reads, by messages a task."""
    with NatsServer() as server:
        fill(server.url, "SIZES", _TOTAL)
        rates = {f"{size:,}": ",.0f" for size in _SIZES}
        master = spark.sparkContext.master
        title = f"{_TOTAL:,} messages of 200 B into noop on {master}, rows a second by messages a task"
        table = Table(f"sizes of tasks on {master}", title, **{"round": "s", **rates})
        for number in range(-2, rounds):
            row: list[float] = []
            for size in _SIZES:
                options = {"servers": server.url, "stream": "SIZES", "maxMessagesPerPartition": str(size)}
                rows = spark.read.format("jetstream").options(**options).load()
                began = time.perf_counter()
                rows.write.format("noop").mode("overwrite").save()
                row.append(_TOTAL / (time.perf_counter() - began))
            table.add(str(number + 1) if number >= 0 else "warm-up", *row, counted=number >= 0)
        table.summarize()
