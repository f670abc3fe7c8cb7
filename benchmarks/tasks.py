"""What a task costs: tasks of ten messages beside those of a source that does no I/O, and rows/s by messages a task."""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from benchmarks.load import fill
from benchmarks.processes import cpu_seconds, python_workers, spark_jvm
from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.testing import NatsServer

ROWS = 10
_MANY, _FEW = 220, 20  # tasks; the difference leaves out what a job costs
_WARM_UP = 4
_TOTAL = 2_000_000
_SIZES = (1_000_000, 500_000, 200_000, 100_000, 50_000, 25_000, 10_000)


class _Cost(NamedTuple):
    """Milliseconds a task: wall time, and CPU of the Python worker, of Spark's JVM and of the server."""

    wall: float
    python: float
    jvm: float
    server: float


def run(spark: SparkSession, rounds: int) -> None:
    """Print the cost of a task of ten messages, by source."""
    with NatsServer() as server:
        fill(server.url, "TASKS", _MANY * ROWS)
        with JetStreamAdmin(servers=server.url) as admin:
            admin.streams.update("TASKS", allow_direct=True)
        print(f"\ncost of a task of {ROWS} messages, one task at a time, milliseconds (median of {rounds} rounds)")
        print("".join(f"{column:>14}" for column in ("source", "wall", "Python", "Spark", "server")))
        costs: dict[str, list[_Cost]] = {"ready-made": [], "consumer": [], "direct": []}
        for source in costs:
            found = _rows(spark, server.url, source, _MANY).count()
            if found != _MANY * ROWS:
                raise RuntimeError(f"{found} rows came of {_MANY * ROWS}")
        for number in range(-_WARM_UP, rounds):
            for source, measured in costs.items():
                cost = _cost(spark, server, source)
                if number >= 0:
                    measured.append(cost)
        for source, measured in costs.items():
            medians = [statistics.median(column) for column in zip(*measured, strict=True)]
            print(f"{source:>14}" + "".join(f"{each:14.1f}" for each in medians), flush=True)


def _cost(spark: SparkSession, server: NatsServer, source: str) -> _Cost:
    jvm = spark_jvm()
    few, many = (_job(spark, server, jvm, source, tasks) for tasks in (_FEW, _MANY))
    return _Cost(*(1000 * (long - short) / (_MANY - _FEW) for short, long in zip(few, many, strict=True)))


def _job(spark: SparkSession, server: NatsServer, jvm: int, source: str, tasks: int) -> list[float]:
    """Return the seconds that a job took, by the clock and of CPU, in the order of `_Cost`."""
    rows = _rows(spark, server.url, source, tasks)
    kinds = {"python": python_workers(jvm), "jvm": [jvm], "server": [server.pid]}
    before = {pid: cpu_seconds(pid) for pids in kinds.values() for pid in pids}
    began = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    took = time.perf_counter() - began
    kinds["python"] = python_workers(jvm)
    used = [sum(cpu_seconds(pid) - before.get(pid, 0.0) for pid in pids) for pids in kinds.values()]
    return [took, *used]


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
        print(f"\n{_TOTAL:,} messages of 200 B into noop on two cores, rows/s by messages a task, {rounds} rounds")
        print("".join(f"{size:>12,}" for size in _SIZES))
        rates: list[list[float]] = []
        for number in range(-2, rounds):
            row = []
            for size in _SIZES:
                options = {"servers": server.url, "stream": "SIZES", "maxMessagesPerPartition": str(size)}
                rows = spark.read.format("jetstream").options(**options).load()
                began = time.perf_counter()
                rows.write.format("noop").mode("overwrite").save()
                row.append(_TOTAL / (time.perf_counter() - began))
            if number >= 0:
                rates.append(row)
                print("".join(f"{rate:12,.0f}" for rate in row), flush=True)
        print("median, and of that of the largest tasks:")
        medians = [statistics.median(column) for column in zip(*rates, strict=True)]
        print("".join(f"{rate:12,.0f}" for rate in medians))
        print("".join(f"{rate / medians[0]:12.2f}" for rate in medians))
