"""`make bench-idle`: requests and CPU of a waiting streaming query and of its micro-batches.

Server, driver and tasks share one machine. The CPU is that of Spark, of the Python process in which
the connector plans, and of the server. Spark is a JVM with driver and executor, and the Python
workers that run tasks.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.environment import prepare_spark
from benchmarks.load import fill
from benchmarks.processes import children, command, own_cpu_seconds, spark_jvm
from benchmarks.tables import Table, write
from spark_jetstream.testing import NatsServer
from spark_jetstream.testing.process import poll

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

STREAMS = (1, 50, 300)
INTERVALS = ((1, 30), (10, 6), (60, 2))
"""Seconds of a `processingTime` trigger, and micro-batches that count."""
RATE = 1_000
"""Messages a second, so a micro-batch has as many as come in its interval."""
_TRIGGER = 1
"""Seconds of the trigger of an idle query."""
_TIMEOUT = 120.0
_PAUSE = 0.2
"""Seconds between two readings of the processes' times."""


class Spent(NamedTuple):
    """Seconds of CPU by those that used them, and the messages that the server has received."""

    spark: float
    planner: float
    server: float
    requests: int


class Meter:
    """Measures what Spark, the planner and a server use, from its creation on.

    Spark ends idle workers, and nothing tells the time of a worker that has ended. So the meter
    reads the time of each process again and again (`watch`), and keeps the last one that it has
    read.
    """

    def __init__(self, server: NatsServer) -> None:
        self._jvm = spark_jvm()
        self._server = server
        self._planners: set[int] = set()
        self._seconds: dict[int, float] = {}
        self._read()
        self._before = dict(self._seconds)
        self._received = self._requests()

    def watch(self, seconds: float) -> None:
        """Read the times again and again for `seconds`."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            time.sleep(min(_PAUSE, left))
            self._read()

    def used(self) -> Spent:
        """CPU and messages up to now."""
        self._read()
        used = {pid: seconds - self._before.get(pid, 0.0) for pid, seconds in self._seconds.items()}
        server = used.pop(self._server.pid)
        planner = sum(used.pop(pid, 0.0) for pid in self._planners)
        return Spent(sum(used.values()), planner, server, self._requests() - self._received)

    def _read(self) -> None:
        for pid in [self._server.pid, self._jvm, *children(self._jvm)]:
            # A process that ends meanwhile keeps the time that was read before.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                self._seconds[pid] = own_cpu_seconds(pid)
            if "streaming_source_runner" in command(pid):
                self._planners.add(pid)

    def _requests(self) -> int:
        received: int = self._server.monitor("/varz")["in_msgs"]
        return received


@contextmanager
def running(
    spark: SparkSession, server: NatsServer, stream: str, interval: int, limit: int | None = None
) -> Iterator[StreamingQuery]:
    """A query into `noop` whose `processingTime` trigger fires every `interval` seconds.

    `limit` is the most messages of a micro-batch.
    """
    source = spark.readStream.format("jetstream").option("servers", server.url)
    if limit is not None:
        source = source.option("maxMessagesPerTrigger", limit)
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = source.load(stream).writeStream.format("noop")
        writer = writer.option("checkpointLocation", checkpoint)
        query = writer.trigger(processingTime=f"{interval} seconds").start()
        try:
            yield query
        finally:
            query.stop()


def wait_for_batch(query: StreamingQuery, number: int) -> None:
    """Wait for the end of the micro-batch with this number, from 0 on, with rows in it."""

    def has_ended() -> bool | None:
        if (error := query.exception()) is not None:
            raise error
        last = query.lastProgress
        if last is None or last["batchId"] < number or not last["numInputRows"]:
            return None
        return True

    text = f"micro-batch {number} did not end within {_TIMEOUT:.0f} s"
    poll(has_ended, _TIMEOUT, lambda: RuntimeError(text))


def warm_up(spark: SparkSession) -> None:
    """Run a query of many small micro-batches, so that the JVM has compiled what follows."""
    with NatsServer() as server:
        fill(server.url, "WARM", 10_000)
        with running(spark, server, "WARM", 0, limit=500) as query:
            wait_for_batch(query, 19)


def idle(spark: SparkSession, seconds: float) -> None:
    """Print what a query costs that has read everything, by its number of streams."""
    percents = dict.fromkeys(("Spark %", "planner %", "server %"), ".1f")
    table = Table(
        "idle",
        f"an idle query with processingTime of {_TRIGGER} s, for {seconds:.0f} s; requests a "
        "second, and percent of a core",
        **{"streams": "s", "requests/s": ".1f", **percents},
    )
    with NatsServer(http_monitor=True) as server:
        for number in range(max(STREAMS)):
            fill(server.url, f"IDLE{number}", 1)
        for count in STREAMS:
            names = ",".join(f"IDLE{number}" for number in range(count))
            with running(spark, server, names, _TRIGGER) as query:
                wait_for_batch(query, 0)
                # The JVM compiles what it runs for the first time.
                time.sleep(seconds / 2)
                meter = Meter(server)
                began = time.perf_counter()
                meter.watch(seconds)
                used = meter.used()
                took = time.perf_counter() - began
            shares = (used.spark, used.planner, used.server)
            percent = (100 * share / took for share in shares)
            table.add(str(count), used.requests / took, *percent)


def triggers(spark: SparkSession) -> None:
    """Print what a micro-batch costs, and a query in an hour, by the interval of its trigger."""
    costs = dict.fromkeys(("Spark ms", "planner ms", "server ms"), ".0f")
    table = Table(
        "triggers",
        f"a query that reads {RATE:,} messages of 200 B a second, by its processingTime; "
        "milliseconds of CPU for a micro-batch, and CPU minutes in an hour",
        **{"seconds": "s", "messages": ",.0f", **costs, "requests": ".1f", "minutes/h": ".1f"},
    )
    with NatsServer(http_monitor=True) as server:
        longest = max(interval * (count + 2) for interval, count in INTERVALS)
        fill(server.url, "TRIGGERS", RATE * longest)
        for interval, count in INTERVALS:
            messages = RATE * interval
            with running(spark, server, "TRIGGERS", interval, messages) as query:
                # The first micro-batches start processes and compile code.
                wait_for_batch(query, 1)
                meter = Meter(server)
                # Each look at the query costs the JVM time, so none before the last micro-batch.
                meter.watch(interval * count - 0.5)
                wait_for_batch(query, 1 + count)
                used = meter.used()
            seconds = (used.spark, used.planner, used.server)
            milliseconds = (1000 * each / count for each in seconds)
            minutes = sum(seconds) / 60 * 3600 / (interval * count)
            table.add(str(interval), messages, *milliseconds, used.requests / count, minutes)


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.idle", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=30, help="to watch each idle query (default 30)"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the tables to this file"
    )
    arguments = parser.parse_args()
    prepare_spark()
    from benchmarks import source  # noqa: PLC0415  # Spark reads the environment when it is imported

    with source.session() as spark:
        warm_up(spark)
        idle(spark, arguments.seconds)
        triggers(spark)
    if arguments.json is not None:
        write(arguments.json)


if __name__ == "__main__":
    main()
