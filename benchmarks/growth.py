"""`python -m benchmarks.growth`: what planning and reading cost when streams, filters and queries
grow.

Planning is measured without Spark, over ten new messages in each stream. It is the work of the
driver for a micro-batch: where the streams end, and which tasks that makes. A batch with many
filters is compared with a consumer that has them. A stream of a million subjects is planned, read
and listed. Reading is measured through Spark, in a stream of ten million messages, and so is
the memory of the Python processes of a query with many micro-batches.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks import source, subjects
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
from benchmarks.tables import Table, write
from spark_jetstream.bench import percentile
from spark_jetstream.client.pool import connect
from spark_jetstream.options import SourceOptions
from spark_jetstream.source.offsets import Offset, StreamPosition
from spark_jetstream.source.planner import Planner
from spark_jetstream.testing import NatsServer

SMALL, LARGE = 10_000, 10_000_000
STREAMS = (1, 10, 50, 300)
PLANNED_FILTERS = (0, 1, 100, 300, 3_000)
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


def fill_long(server: NatsServer, stream: str, messages: int, filters: Sequence[int]) -> None:
    """Make a stream that is planned with as many filters; as many subjects again match none."""
    fill(server.url, stream, messages, subjects=2 * max(*filters, 1), payload_bytes=_PAYLOAD)


def planning(
    server: NatsServer, times: int, large: int, filters: Sequence[int], streams: Sequence[int]
) -> None:
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
    several = [f"MANY{number}" for number in range(max(streams))]
    for name in several:
        fill(server.url, name, 1_000, payload_bytes=_PAYLOAD)
    fill_long(server, "SMALL", SMALL, filters)
    cases = [
        ([stream], messages, [f"{stream}.{number}" for number in range(count)])
        for stream, messages in (("SMALL", SMALL), ("LARGE", large))
        for count in filters
    ]
    cases += [(several[:count], 1_000, []) for count in streams]
    for names, messages, chosen in cases:
        taken = _planning(server, names, chosen, times)
        table.add(
            len(names), messages, len(chosen), statistics.median(taken), percentile(taken, 99)
        )


def reading(spark: SparkSession, server: NatsServer, rounds: int, large: int) -> None:
    """Print what a message costs, by how many are read and by where in the stream they are."""
    table = Table(
        "reading",
        f"batch reads of a stream of {large:,} messages of {_PAYLOAD} B into noop, {rounds} rounds "
        f"after {_WARM_UP} that warm up; microseconds a message by the clock, and of CPU",
        **{"read": "s", **dict.fromkeys(("wall", "server", "Spark", "Python"), ".2f")},
    )
    ranges = {"the first": (1, large // 100), "the last": (large - large // 100 + 1, large)}
    ranges |= {"a tenth": (1, large // 10), "all": (1, large)}
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


PARTS = ("planning", "filters", "subjects", "reading", "memory")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=PARTS,
        default=PARTS,
        help="the tables to measure (default all)",
    )
    parser.add_argument(
        "--times", type=int, default=100, help="how often each case is planned (default 100)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of reading (default 3)")
    parser.add_argument(
        "--batches", type=int, default=2_000, help="micro-batches of the query (default 2000)"
    )
    parser.add_argument(
        "--messages",
        type=int,
        default=LARGE,
        help=f"of the long stream (default {LARGE:,})",
    )
    parser.add_argument(
        "--streams",
        type=int,
        nargs="+",
        default=STREAMS,
        help=f"of a planned query (default {' '.join(map(str, STREAMS))})",
    )
    parser.add_argument(
        "--filters",
        type=int,
        nargs="+",
        help="of a planned micro-batch and of a batch "
        f"(default {' '.join(map(str, PLANNED_FILTERS))}, and {' '.join(map(str, subjects.FILTERS))})",
    )
    parser.add_argument(
        "--subjects",
        type=int,
        default=subjects.SUBJECTS,
        help=f"of the stream with many (default {subjects.SUBJECTS:,})",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the tables to this file"
    )
    return parser.parse_args()


def main() -> None:
    """Read the arguments and measure."""
    arguments = _arguments()
    parts, rounds, large = arguments.only, arguments.rounds, arguments.messages
    prepare_spark()
    with NatsServer() as server:
        given = arguments.filters or PLANNED_FILTERS
        if "planning" in parts or "reading" in parts:
            fill_long(server, "LARGE", large, given)
            time.sleep(30)  # the server writes its index of a long stream for a while
        if "planning" in parts:
            planning(server, arguments.times, large, given, arguments.streams)
        if "filters" in parts:
            subjects.many_filters(server, rounds, arguments.filters or subjects.FILTERS)
        if "subjects" in parts:
            subjects.many_subjects(server, rounds, arguments.subjects)
        if "reading" in parts or "memory" in parts:
            with source.session() as spark:
                if "reading" in parts:
                    reading(spark, server, rounds, large)
                if "memory" in parts:
                    memory(spark, server, arguments.batches)
    if arguments.json is not None:
        write(arguments.json)


if __name__ == "__main__":
    main()
