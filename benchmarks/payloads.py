"""Source and sink by the size of messages, in two tasks.

The source stands beside two readers that only count bytes, and beside batches that were made
before: these tell how much of the CPU in Python is Spark's.
"""

from __future__ import annotations

import time

from pyspark.sql import DataFrame, SparkSession

from benchmarks import references, sink
from benchmarks.load import fill
from benchmarks.processes import Cpu, spark_jvm
from benchmarks.ready_made import ReadyMade
from benchmarks.scale import Scale
from benchmarks.tables import Table
from spark_jetstream.testing import NatsServer

#: Bytes of a payload, headers of each message, and messages of a million in the scale.
SHAPES = ((200, 0, 1.0), (200, 2, 1.0), (1_000, 0, 0.6), (16_000, 0, 0.08))
#: Bytes of the payloads of a ready-made batch: about what one read of the connection brings.
_BATCH_BYTES = 600_000


def _ready_made(spark: SparkSession, messages: int, size: int) -> tuple[DataFrame, int]:
    """Return rows like those of a stream without headers, from batches that exist, and their number."""
    rows = _BATCH_BYTES // size
    batches = messages // 2 // rows
    source = spark.read.format("readymade").options(partitions=2, batches=batches)
    return source.options(rows=rows, payload=size).load(), 2 * batches * rows


def _cost(rows: DataFrame, messages: int, cpu: Cpu) -> tuple[float, list[float]]:
    """Return the seconds of a batch read, and the CPU of each kind of process in us a message."""
    began = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - began
    return seconds, [used / messages * 1e6 for used in cpu.used()]


def run(spark: SparkSession, scale: Scale) -> None:
    """Print rows a second and CPU of the source, by size of the payload and number of headers, and
    of the sink.
    """
    jvm = spark_jvm()
    spark.dataSource.register(ReadyMade)
    rates = dict.fromkeys(("messages", "source", "(a) bytes"), ",.0f")
    ratios = dict.fromkeys(
        ("source/(a)", "MB/s", "server us", "Spark us", "Python us", "(c) us"), ".2f"
    )
    table = Table(
        "payloads",
        f"batch reads in two tasks into noop, {scale.rounds} rounds after {scale.warm_up} that "
        "warm up; messages a second, and microseconds of CPU a message",
        **{"message": "s", **rates, **ratios},
    )
    with NatsServer() as server:
        shapes = {
            f"{size:,} B, {headers} headers": (
                f"P{number}",
                int(scale.messages * share) // 2 * 2,
                size,
                headers,
            )
            for number, (size, headers, share) in enumerate(SHAPES)
        }
        for stream, messages, size, headers in shapes.values():
            fill(server.url, stream, messages, payload_bytes=size, headers=headers)
        for number in range(1 - scale.warm_up, scale.rounds + 1):
            for label, (stream, messages, size, headers) in shapes.items():
                source = (
                    spark.read.format("jetstream")
                    .option("servers", server.url)
                    .option("stream", stream)
                )
                rows = source.option("maxMessagesPerPartition", messages // 2).load()
                seconds, cost = _cost(rows, messages, Cpu(jvm, server.pid))
                rate = messages / seconds
                made, made_rows = _ready_made(spark, messages, size)
                _, (*_, made_python) = _cost(made, made_rows, Cpu(jvm, server.pid))
                raw = references.count_bytes(
                    server.url, stream, messages, message_bytes=size + 20 * headers
                )
                megabytes = rate * size / 1e6
                table.add(
                    label,
                    messages,
                    rate,
                    raw,
                    rate / raw,
                    megabytes,
                    *cost,
                    made_python,
                    counted=number > 0,
                )
    table.summarize(by="message")
    with NatsServer() as server:
        sink.payloads(spark, server, scale)
