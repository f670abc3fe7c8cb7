"""`make bench-idle`: requests and CPU of a waiting streaming query and of its micro-batches.

Server, driver and tasks share one machine. The CPU is that of Spark, which is a JVM with driver and
executor and the Python workers that run tasks, of the Python process in which the connector plans,
and of the server.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.load import fill
from benchmarks.processes import children, command, cpu_seconds, spark_jvm
from benchmarks.tables import Table, write
from spark_jetstream.java import ensure_java
from spark_jetstream.testing import NatsServer

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
_POLL = 0.02
_TIMEOUT = 120.0


class Spent(NamedTuple):
    """Seconds of CPU by those that used them, and the messages that the server has received."""

    spark: float
    planner: float
    server: float
    requests: int

    def since(self, before: Spent) -> Spent:
        """The difference to `before`."""
        return Spent(
            self.spark - before.spark,
            self.planner - before.planner,
            self.server - before.server,
            self.requests - before.requests,
        )


def spent(jvm: int, server: NatsServer) -> Spent:
    """CPU and messages of all processes so far."""
    below = list(children(jvm))
    planner = sum(
        cpu_seconds(child) for child in below if "streaming_source_runner" in command(child)
    )
    # Workers come and go. The time of one that has ended is a part of that of its parent.
    everything = sum(map(_cpu_seconds_if_there, [jvm, *below]))
    sent = server.monitor("/varz")["in_msgs"]
    return Spent(everything - planner, planner, cpu_seconds(server.pid), sent)


def _cpu_seconds_if_there(pid: int) -> float:
    try:
        return cpu_seconds(pid)
    except FileNotFoundError:
        return 0.0


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
    deadline = time.monotonic() + _TIMEOUT
    while True:
        if (error := query.exception()) is not None:
            raise error
        last = query.lastProgress
        if last is not None and last["batchId"] >= number and last["numInputRows"]:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"micro-batch {number} did not end within {_TIMEOUT:.0f} s")
        time.sleep(_POLL)


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
                before = spent(spark_jvm(), server)
                began = time.perf_counter()
                time.sleep(seconds)
                used = spent(spark_jvm(), server).since(before)
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
                before = spent(spark_jvm(), server)
                # Each look at the query costs the JVM time, so none before the last micro-batch.
                time.sleep(interval * count - 0.5)
                wait_for_batch(query, 1 + count)
                used = spent(spark_jvm(), server).since(before)
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
    os.environ["JAVA_HOME"] = ensure_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from benchmarks import source  # noqa: PLC0415  # Spark reads the environment when it is imported

    with source.session() as spark:
        warm_up(spark)
        idle(spark, arguments.seconds)
        triggers(spark)
    if arguments.json is not None:
        write(arguments.json)


if __name__ == "__main__":
    main()
