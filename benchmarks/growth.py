"""`python -m benchmarks.growth`: what planning and reading cost when streams, filters and queries
grow.

Planning is measured without Spark, over ten new messages in each stream. It is the work of the
driver for a micro-batch: where the streams end, and which tasks that makes. A batch with many
filters is compared with a consumer that has them. Reading is measured through Spark, in a stream of
ten million messages, and so is the memory of the Python processes of a query with many
micro-batches.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession

from benchmarks import source
from benchmarks.environment import prepare_spark
from benchmarks.load import fill
from benchmarks.processes import (
    Cpu,
    children,
    command,
    python_workers,
    resident_megabytes,
    spark_jvm,
)
from benchmarks.tables import Table
from spark_jetstream.bench import percentile
from spark_jetstream.client.pool import connect
from spark_jetstream.options import SourceOptions
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.source.advice import READERS
from spark_jetstream.source.offsets import Offset, StreamPosition
from spark_jetstream.source.planner import Planner
from spark_jetstream.streams.pull import PullSettings, RangeReader
from spark_jetstream.testing import NatsServer

SMALL, LARGE = 10_000, 10_000_000
FILTERS, STREAMS = 100, 50
SUBJECTS, GROUPS = 200_000, 4_000  # of a stream that is read with many filters
NEW = 10  # messages of a micro-batch
_PAYLOAD = 20
_WARM_UP = 2
_SAMPLES = 10  # of memory in a query
_TIMEOUT = 1800.0


def _planning(
    server: NatsServer, streams: Sequence[str], subjects: Sequence[str], times: int
) -> list[float]:
    """Milliseconds that it takes to plan a micro-batch of the last ten messages of each stream,
    each time anew.
    """
    given = {"servers": server.url, "stream": ",".join(streams), "subjects": ",".join(subjects)}
    options = SourceOptions.from_spark(
        {key: value for key, value in given.items() if value}, streaming=True
    )
    connection = connect(options.connection)
    planner = Planner(options, lambda _: connection)
    ends = planner.report_latest().streams
    taken = []
    for _ in range(times):
        start = Offset(
            {name: StreamPosition(end.next - NEW, end.created, 0) for name, end in ends.items()}
        )
        began = time.perf_counter()
        end = planner.latest(start, limited=True)
        parts = planner.ranges(start, end)
        taken.append((time.perf_counter() - began) * 1000)
        if len(parts) != len(streams):
            raise RuntimeError(f"{len(parts)} tasks for {len(streams)} streams")
    return taken


def planning(server: NatsServer, times: int) -> None:
    """Print how long planning takes, by length of the stream, number of filters, and number of
    streams.
    """
    table = Table(
        "planning",
        f"planning a micro-batch of {NEW} messages for each stream, {times} times; milliseconds",
        **{
            "streams": ",.0f",
            "messages in each": ",.0f",
            "filters": ",.0f",
            "median": ".1f",
            "p99": ".1f",
        },
    )
    several = [f"MANY{number}" for number in range(STREAMS)]
    for name in several:
        fill(server.url, name, 1_000, payload_bytes=_PAYLOAD)
    for stream, messages in (("SMALL", SMALL), ("LARGE", LARGE)):
        fill(server.url, stream, messages, subjects=2 * FILTERS, payload_bytes=_PAYLOAD)
    time.sleep(30)  # the server writes its index of a long stream for a while
    cases = [
        ([stream], messages, [f"{stream}.{number}" for number in range(filters)])
        for stream, messages in (("SMALL", SMALL), ("LARGE", LARGE))
        for filters in (0, 1, FILTERS)
    ]
    cases += [(several[:count], 1_000, []) for count in (1, 10, STREAMS)]
    for streams, messages, subjects in cases:
        taken = _planning(server, streams, subjects, times)
        table.add(
            len(streams), messages, len(subjects), statistics.median(taken), percentile(taken, 99)
        )


def filters(server: NatsServer, rounds: int) -> None:
    """Print what planning and reading a batch takes, by the number of its filters, beside a
    consumer that has them.
    """
    ways = ("consumer", "direct")
    table = Table(
        "filters",
        f"a batch with wildcard filters on a stream of {SUBJECTS:,} messages and as many subjects, "
        f"planned and read, {rounds} rounds; seconds",
        **{
            "filters": "s",
            "a consumer alone": ".2f",
            **dict.fromkeys(ways, ".2f"),
            "consumer/alone": ".2f",
        },
    )
    moved = {
        "src": "FILTERED.*",
        "dest": f"FILTERED.{{{{partition({GROUPS},1)}}}}.{{{{wildcard(1)}}}}",
    }
    whole = fill(
        server.url,
        "FILTERED",
        SUBJECTS,
        subjects=SUBJECTS,
        payload_bytes=_PAYLOAD,
        allow_direct=True,
        subject_transform=moved,
    )
    for number in range(1 - _WARM_UP, rounds + 1):
        for count in (1, 30, 300, 3_000):
            subjects = tuple(f"FILTERED.{group}.*" for group in range(count))
            alone = _seconds(partial(_consumed, server.url, replace(whole, subjects=subjects)))
            taken = [_seconds(partial(_batch, server.url, subjects, way)) for way in ways]
            table.add(str(count), alone, *taken, taken[0] / alone, counted=number > 0)
    table.summarize(by="filters")


def _seconds(work: Callable[[], int]) -> float:
    began = time.perf_counter()
    if not work():
        raise RuntimeError("no message came")
    return time.perf_counter() - began


def _consumed(url: str, part: SequenceRange) -> int:
    """Read what a consumer with the filters of a range delivers, and ask nobody whether that is
    all.
    """
    options = SourceOptions.from_spark({"servers": url, "stream": part.stream}, streaming=False)
    settings = PullSettings(
        options.fetch_batch, options.fetch_max_bytes, options.fetch_timeout, 60, True
    )
    connection = connect(options.connection)
    part = replace(part, count=None)
    reader = RangeReader(lambda _: connection, part, settings, "bench", confirm=lambda *_: True)
    return sum(len(run) for run in reader.read())


def _batch(url: str, subjects: Sequence[str], read_with: str) -> int:
    """Plan and read a batch, and return how many messages it has."""
    given = {
        "servers": url,
        "stream": "FILTERED",
        "subjects": ",".join(subjects),
        "readWith": read_with,
    }
    options = SourceOptions.from_spark(given, streaming=False)
    settings = PullSettings(
        options.fetch_batch, options.fetch_max_bytes, options.fetch_timeout, 60, True
    )
    connection = connect(options.connection)
    messages = 0
    for part in Planner(options, lambda _: connection).batch_ranges():
        for run in READERS[part.read_with](lambda _: connection, part, settings, "bench"):
            messages += len(run)
    return messages


def reading(spark: SparkSession, server: NatsServer, rounds: int) -> None:
    """Print what a message costs, by how many are read and by where in the stream they are."""
    table = Table(
        "reading",
        f"batch reads of a stream of {LARGE:,} messages of {_PAYLOAD} B into noop, {rounds} rounds "
        f"after {_WARM_UP} that warm up; microseconds a message by the clock, and of CPU",
        **{"read": "s", **dict.fromkeys(("wall", "server", "Spark", "Python"), ".2f")},
    )
    ranges = {"the first": (1, LARGE // 100), "the last": (LARGE - LARGE // 100 + 1, LARGE)}
    ranges |= {"a tenth": (1, LARGE // 10), "all": (1, LARGE)}
    for number in range(1 - _WARM_UP, rounds + 1):
        for label, (first, last) in ranges.items():
            options = {
                "servers": server.url,
                "stream": "LARGE",
                "startingOffsets": f'{{"LARGE": {first}}}',
            }
            rows = (
                spark.read.format("jetstream")
                .options(**options, endingOffsets=f'{{"LARGE": {last + 1}}}')
                .load()
            )
            cpu, began, messages = (
                Cpu(spark_jvm(), server.pid),
                time.perf_counter(),
                last - first + 1,
            )
            rows.write.format("noop").mode("overwrite").save()
            seconds = (time.perf_counter() - began, *cpu.used())
            table.add(
                f"{label} {messages:,}",
                *(each / messages * 1e6 for each in seconds),
                counted=number > 0,
            )
    table.summarize(by="read")


def memory(spark: SparkSession, server: NatsServer, batches: int) -> None:
    """Print the memory of the Python processes of one query, as its micro-batches of ten messages
    go by.
    """
    fill(server.url, "BATCHES", batches * NEW, payload_bytes=_PAYLOAD)
    table = Table(
        "memory",
        f"resident memory during {batches:,} micro-batches of {NEW} messages in two tasks, MB: the "
        "process that plans, and the largest in which tasks run",
        **{"micro-batches": ",.0f", "planner": ".1f", "largest worker": ".1f"},
    )
    options = {
        "servers": server.url,
        "stream": "BATCHES",
        "maxMessagesPerTrigger": str(NEW),
        "minPartitions": "2",
    }
    rows = spark.readStream.format("jetstream").options(**options).load()
    jvm = spark_jvm()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        deadline = time.monotonic() + _TIMEOUT
        for sample in range(1, _SAMPLES + 1):
            due = batches * sample // _SAMPLES
            while (progress := query.lastProgress) is None or progress["batchId"] + 1 < due:
                if (error := query.exception()) is not None:
                    raise error
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{due} micro-batches were not done within {_TIMEOUT:.0f} s")
                time.sleep(0.1)
            planner = [pid for pid in children(jvm) if "streaming_source_runner" in command(pid)]
            sizes = [max(map(resident_megabytes, pids)) for pids in (planner, python_workers(jvm))]
            table.add(progress["batchId"] + 1, *sizes)
        query.stop()


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument(
        "--times", type=int, default=100, help="how often each case is planned (default 100)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of reading (default 3)")
    parser.add_argument(
        "--batches", type=int, default=2_000, help="micro-batches of the query (default 2000)"
    )
    arguments = parser.parse_args()
    prepare_spark()
    with NatsServer() as server:
        planning(server, arguments.times)
        filters(server, arguments.rounds)
        with source.session() as spark:
            reading(spark, server, arguments.rounds)
            memory(spark, server, arguments.batches)


if __name__ == "__main__":
    main()
