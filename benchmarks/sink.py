"""The sink: throughput through Spark for each delivery level, beside single publishes in a loop
that counts; memory.
"""

from __future__ import annotations

import time

from pyspark.sql import DataFrame, SparkSession

from benchmarks.processes import Cpu, PeakMemory, spark_jvm
from benchmarks.publishing import SUBJECTS, Way, create, delete, publish, stored
from benchmarks.scale import Scale
from benchmarks.tables import Table
from spark_jetstream.options import SinkOptions
from spark_jetstream.testing import NatsServer

PARTITIONS = 10
WARM_UP = 1
LEVELS = ("at-least-once", "deduplicated", "exactly-once")
WINDOW = int(next(spec.default for spec in SinkOptions.specs if spec.name == "maxInFlight") or 0)


def rows(spark: SparkSession, count: int, partitions: int, size: int = 200) -> DataFrame:
    """Rows of `size` bytes for ten subjects, kept in memory, so that making them is no part of what
    is measured.
    """
    data = f"rpad(cast(id AS STRING), {size}, 'x') AS data"
    made = (
        spark.range(0, count, 1, partitions)
        .selectExpr(data, f"concat('P.', id % {SUBJECTS}) AS subject")
        .persist()
    )
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


def throughput(spark: SparkSession, server: NatsServer, scale: Scale) -> None:
    """Rows of 200 bytes into a new file-backed stream, the reference in the same round."""
    frame = rows(spark, scale.rows, PARTITIONS)
    jvm = spark_jvm()
    rates = dict.fromkeys(("sink", "single"), ",.0f")
    ratios = dict.fromkeys(("sink/single", "server us", "Spark us", "Python us"), ".2f")
    table = Table(
        "sink",
        f"{scale.rows:,} rows of 200 B into a file-backed stream, {scale.rounds} rounds after "
        f"{WARM_UP} that warms up; rows a second, and microseconds of CPU a row",
        **{"round": "s", "delivery": "s", **rates, **ratios},
    )
    for number in range(1 - WARM_UP, scale.rounds + 1):
        for level in LEVELS:
            cpu = Cpu(jvm, server.pid)
            rate = scale.rows / write(frame, server, level)
            cost = [seconds / scale.rows * 1e6 for seconds in cpu.used()]
            if stored(server.url, "P") != scale.rows:
                raise RuntimeError("rows are missing in the stream")
            delete(server.url, "P")
            create(server.url, "P")
            single = publish(
                server.url, "P", scale.rows, Way("single", WINDOW, level != "at-least-once", 1)
            ).rate
            delete(server.url, "P")
            label = str(number) if number > 0 else "warm-up"
            table.add(label, level, rate, single, rate / single, *cost, counted=number > 0)
    table.summarize(by="delivery")
    frame.unpersist()


def payloads(spark: SparkSession, server: NatsServer, scale: Scale) -> None:
    """Rows a second and CPU of the sink, by size of the payload, in two tasks."""
    jvm = spark_jvm()
    ratios = dict.fromkeys(("MB/s", "server us", "Spark us", "Python us"), ".2f")
    table = Table(
        "sink payloads",
        f"rows from two tasks into a file-backed stream, {scale.rounds} rounds after {WARM_UP} "
        "that warms up; rows a second, and microseconds of CPU a row",
        **{"rows of": "s", "rows": ",.0f", "sink": ",.0f", **ratios},
    )
    for size, share in ((200, 1.0), (1_000, 0.6), (16_000, 0.08)):
        count = int(scale.messages * share) // 2 * 2
        frame = rows(spark, count, 2, size)
        for number in range(1 - WARM_UP, scale.rounds + 1):
            for level in LEVELS[:2]:
                cpu = Cpu(jvm, server.pid)
                rate = count / write(frame, server, level)
                cost = [seconds / count * 1e6 for seconds in cpu.used()]
                delete(server.url, "P")
                table.add(
                    f"{size:,} B, {level}",
                    count,
                    rate,
                    rate * size / 1e6,
                    *cost,
                    counted=number > 0,
                )
        frame.unpersist()
    table.summarize(by="rows of")


def memory(spark: SparkSession, server: NatsServer, most: int) -> None:
    """Peak memory of the Python worker that writes one partition, for three lengths of it."""
    jvm = spark_jvm()
    table = Table(
        "one partition written",
        "one partition, delivery deduplicated: rows a second, and peak memory of its Python worker "
        "in MB",
        rows=",.0f",
        rate=",.0f",
        memory=",.0f",
    )
    for count in (most // 30, most // 3, most):
        frame = spark.range(0, count, 1, 1).selectExpr(
            "rpad(cast(id AS STRING), 200, 'x') AS data", "'P.0' AS subject"
        )
        with PeakMemory(jvm) as peak:
            seconds = write(frame, server, "deduplicated")
        delete(server.url, "P")
        table.add(count, count / seconds, peak.megabytes)


def run(spark: SparkSession, scale: Scale) -> None:
    """All figures of the sink."""
    with NatsServer() as server:
        memory(spark, server, scale.rows * 3 // 2)
        throughput(spark, server, scale)
