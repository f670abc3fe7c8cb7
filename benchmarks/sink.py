"""The sink: throughput through Spark for each delivery level, beside single publishes in a loop that counts; memory."""

from __future__ import annotations

import statistics
import threading
import time

from pyspark.sql import DataFrame, SparkSession

from benchmarks.processes import cpu_seconds, peak_megabytes, python_workers, spark_jvm
from benchmarks.publishing import SUBJECTS, Way, create, delete, publish, stored
from spark_jetstream.options import SinkOptions
from spark_jetstream.testing import NatsServer

ROWS = 2_000_000
PARTITIONS = 10
WARM_UP = 1
LEVELS = ("at-least-once", "deduplicated", "exactly-once")
WINDOW = int(next(spec.default for spec in SinkOptions.specs if spec.name == "maxInFlight") or 0)


def rows(spark: SparkSession, count: int, partitions: int) -> DataFrame:
    """Rows of 200 bytes for ten subjects, kept in memory, so that making them is no part of what is measured."""
    numbers = spark.range(0, count, 1, partitions)
    made = numbers.selectExpr("rpad(cast(id AS STRING), 200, 'x') AS data", f"concat('P.', id % {SUBJECTS}) AS subject")
    made = made.persist()
    made.count()
    return made


def write(frame: DataFrame, server: NatsServer, delivery: str) -> float:
    """Write rows into a new stream; seconds from the call to its return."""
    create(server.url, "P")
    began = time.perf_counter()
    # Without option stream, whose header is not in the frames of single publishes.
    writer = frame.write.format("jetstream").option("servers", server.url)
    writer.option("delivery", delivery).mode("append").save()
    return time.perf_counter() - began


def throughput(spark: SparkSession, server: NatsServer, rounds: int) -> None:
    """2,000,000 rows of 200 bytes into a new file-backed stream, the reference in the same round."""
    frame = rows(spark, ROWS, PARTITIONS)
    jvm = spark_jvm()
    ratios: dict[str, list[float]] = {level: [] for level in LEVELS}
    rates: dict[str, list[float]] = {level: [] for level in LEVELS}
    print(
        f"\n{ROWS:,} rows of 200 B into a file-backed stream, {rounds} rounds after {WARM_UP} that warm up; "
        "rows a second"
    )
    columns = ("round", "delivery", "sink", "single", "sink/single", "server us", "Spark us", "Python us")
    print("".join(f"{column:>15}" for column in columns))
    for number in range(1 - WARM_UP, rounds + 1):
        for level in LEVELS:
            workers = python_workers(jvm)
            before = {pid: cpu_seconds(pid) for pid in {server.pid, jvm, *workers}}
            rate = ROWS / write(frame, server, level)
            living = {server.pid, jvm, *python_workers(jvm)}
            used = {pid: cpu_seconds(pid) - since for pid, since in before.items() if pid in living}
            if stored(server.url, "P") != ROWS:
                raise RuntimeError("rows are missing in the stream")
            delete(server.url, "P")
            create(server.url, "P")
            single = publish(server.url, "P", ROWS, Way("single", WINDOW, level != "at-least-once", 1)).rate
            delete(server.url, "P")
            cost = (used[server.pid], used[jvm], sum(used.get(pid, 0.0) for pid in workers))
            label = str(number) if number > 0 else "warm-up"
            print(f"{label:>15}{level:>15}{rate:15,.0f}{single:15,.0f}{rate / single:15.2f}", end="")
            print("".join(f"{each / ROWS * 1e6:15.2f}" for each in cost), flush=True)
            if number > 0:
                ratios[level].append(rate / single)
                rates[level].append(rate)
    for level in LEVELS:
        rate, ratio = statistics.median(rates[level]), statistics.median(ratios[level])
        print(f"median, {level}: {rate:,.0f} rows/s, {ratio:.2f} of single publishes")
    frame.unpersist()


def memory(spark: SparkSession, server: NatsServer) -> None:
    """Peak memory of the Python worker that writes one partition, for three lengths of it."""
    jvm = spark_jvm()
    print("\npeak memory of the Python worker that writes one partition (delivery deduplicated)")
    for count in (100_000, 1_000_000, 3_000_000):
        peaks: dict[int, float] = {}
        finished = threading.Event()

        def watch(peaks: dict[int, float] = peaks, finished: threading.Event = finished) -> None:
            while not finished.wait(0.1):
                for pid in python_workers(jvm):
                    peaks[pid] = max(peaks.get(pid, 0.0), peak_megabytes(pid))

        frame = spark.range(0, count, 1, 1).selectExpr("rpad(cast(id AS STRING), 200, 'x') AS data", "'P.0' AS subject")
        watcher = threading.Thread(target=watch)
        watcher.start()
        seconds = write(frame, server, "deduplicated")
        finished.set()
        watcher.join()
        delete(server.url, "P")
        print(f"{count:>12,} rows: {max(peaks.values()):,.0f} MB, {count / seconds:,.0f} rows/s", flush=True)


def run(spark: SparkSession, rounds: int) -> None:
    """All figures of the sink."""
    with NatsServer() as server:
        memory(spark, server)
        throughput(spark, server, rounds)
