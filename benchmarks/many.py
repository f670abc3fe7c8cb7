"""`python -m benchmarks.many`: what the queries of one driver use when they read 300 streams in all.

The same streams are read by one query, by ten and by fifty. All queries wait for messages at first.
Then each stream gets a message, so that each query has one micro-batch.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.environment import prepare_spark
from benchmarks.idle import running
from benchmarks.load import fill
from benchmarks.processes import (
    children,
    command,
    descriptors,
    proportional_megabytes,
    python_workers,
    resident_megabytes,
    spark_jvm,
    threads,
)
from benchmarks.tables import Table, write
from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.testing import NatsServer
from spark_jetstream.testing.process import poll

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

QUERIES = (1, 10, 50)
STREAMS = 300
INTERVAL = 10
"""Seconds of the `processingTime` trigger of each query."""
_TIMEOUT = 300.0
_STARTS = 10
"""How often a query is started until its planner is in time."""
_PAUSE = 0.1
"""Seconds between two looks at a query."""


class Used(NamedTuple):
    """The processes of a driver, and the connections to a server, at one moment."""

    jvm_threads: int
    jvm_megabytes: float
    planners: int
    planner_megabytes: float
    """The proportional set size of all planners: a page that several share counts once."""
    planner_threads: int
    jvm_descriptors: int
    planner_descriptors: int
    server_descriptors: int
    server_megabytes: float
    connections: int

    @classmethod
    def now(cls, server: NatsServer) -> Used:
        """Look at all processes."""
        jvm = spark_jvm()
        planners = planners_of(jvm)
        return cls(
            threads(jvm),
            resident_megabytes(jvm),
            len(planners),
            sum(map(proportional_megabytes, planners)),
            sum(map(threads, planners)),
            descriptors(jvm),
            sum(map(descriptors, planners)),
            descriptors(server.pid),
            resident_megabytes(server.pid),
            server.monitor("/varz")["connections"],
        )


_USED = {
    "JVM threads": ".0f",
    "JVM MB": ".0f",
    "planners": ".0f",
    "planners MB": ".0f",
    "their threads": ".0f",
    "JVM files": ".0f",
    "planner files": ".0f",
    "server files": ".0f",
    "server MB": ".0f",
    "connections": ".0f",
}


class Tables(NamedTuple):
    """The tables of a run, with a row for each number of queries."""

    waiting: Table
    plans: Table
    stopped: Table

    @classmethod
    def of(cls, streams: int, interval: int, seconds: float) -> Tables:
        """Begin the tables, and print the first title."""
        read = f"{streams} streams in all, processingTime {interval} s"
        return cls(
            Table(
                "many",
                f"queries that wait, {read}; requests a second for {seconds:.0f} s",
                queries="s",
                **_USED,
                **{"daemons, workers": ".0f", "requests/s": ".1f"},
            ),
            Table(
                "many_plans",
                "the same: seconds until each query has ended its first micro-batch, and the next "
                "one after a message was published to each stream; milliseconds of latestOffset "
                "of queries that wait, and of those micro-batches",
                queries="s",
                **{"first s": ".1f", "next s": ".1f"},
                **dict.fromkeys(("idle plan", "most", "plan", "most of these"), ".0f"),
            ),
            Table(
                "many_stopped",
                "the same, when all queries have stopped",
                queries="s",
                **_USED,
            ),
        )


def planners_of(jvm: int) -> list[int]:
    """The Python processes of streaming sources, in which the connector plans."""
    return [pid for pid in children(jvm) if "streaming_source_runner" in command(pid)]


@contextmanager
def all_running(
    spark: SparkSession, server: NatsServer, shares: Iterable[Sequence[str]], interval: int
) -> Iterator[list[StreamingQuery]]:
    """A query for each share of the streams, started one after the other."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(planned(spark, server, ",".join(share), interval))
            for share in shares
        ]


@contextmanager
def planned(
    spark: SparkSession, server: NatsServer, streams: str, interval: int
) -> Iterator[StreamingQuery]:
    """A query that has its planner.

    Spark fails a query whose planner does not connect to the JVM within ten seconds. The query is
    then started again.
    """
    with ExitStack() as stack:
        for _ in range(_STARTS):
            query = stack.enter_context(running(spark, server, streams, interval))
            if poll(partial(has_planner, query), _TIMEOUT, no_planner):
                break
            stack.close()
        else:
            raise RuntimeError(f"the planner of a query was too slow {_STARTS} times")
        yield query


def has_planner(query: StreamingQuery) -> bool | None:
    """Whether the planner of a query has started in time; None if that is not known yet."""
    # Before the error, which Spark sets before the status of a query that has failed.
    status = query.status["message"]
    if (error := query.exception()) is not None:
        if "failed to connect back" in str(error):
            print("a planner was too slow, so its query starts again", flush=True)
            return False
        raise error
    return None if status.startswith("Initializing") else True


def no_planner() -> RuntimeError:
    """The error for a query that has no planner."""
    return RuntimeError(f"a planner did not start within {_TIMEOUT:.0f} s")


def wait_for_all(queries: Iterable[StreamingQuery], number: int) -> None:
    """Wait until each query has ended the micro-batch with this number."""
    deadline = time.monotonic() + _TIMEOUT
    for query in queries:
        while not has_ended(query, number):
            if time.monotonic() > deadline:
                raise RuntimeError(f"micro-batch {number} did not end within {_TIMEOUT:.0f} s")
            time.sleep(_PAUSE)


def has_ended(query: StreamingQuery, number: int) -> bool:
    """Whether a query has ended this micro-batch. Its last progress may be of a later trigger."""
    if (error := query.exception()) is not None:
        raise error
    return any(
        progress["batchId"] >= number and progress["numInputRows"]
        for progress in query.recentProgress
    )


def requests_a_second(server: NatsServer, seconds: float) -> float:
    """Messages that the server receives in a second, without those of this process."""
    before: int = server.monitor("/varz")["in_msgs"]
    began = time.perf_counter()
    time.sleep(seconds)
    received: int = server.monitor("/varz")["in_msgs"]
    return (received - before) / (time.perf_counter() - began)


def plan_milliseconds(queries: Iterable[StreamingQuery], *, rows: bool) -> list[float]:
    """How long `latestOffset` took: of micro-batches but the first one, or of triggers without."""
    taken: list[float] = []
    for query in queries:
        for progress in query.recentProgress:
            duration = progress["durationMs"].get("latestOffset")
            has_rows = progress["numInputRows"] > 0
            is_first = has_rows and progress["batchId"] == 0
            if duration is not None and has_rows == rows and not is_first:
                taken.append(duration)
    return taken


def publish(server: NatsServer, names: Iterable[str]) -> None:
    """Publish a message to each stream."""
    with JetStreamAdmin(servers=server.url) as admin:
        for name in names:
            admin.publish(f"{name}.0", b"new")


def measure(
    spark: SparkSession,
    server: NatsServer,
    names: Sequence[str],
    count: int,
    interval: int,
    seconds: float,
    tables: Tables,
) -> None:
    """Add a row to each table, for `count` queries of all streams."""
    shares = [names[number::count] for number in range(count)]
    began = time.perf_counter()
    with all_running(spark, server, shares, interval) as queries:
        wait_for_all(queries, 0)
        first = time.perf_counter() - began
        # Triggers fire at multiples of the interval: each query has waited for one since.
        time.sleep(2 * interval)
        rate = requests_a_second(server, seconds)
        used = Used.now(server)
        workers = len(python_workers(spark_jvm()))
        idle = plan_milliseconds(queries, rows=False)
        published = time.perf_counter()
        publish(server, names)
        wait_for_all(queries, 1)
        following = time.perf_counter() - published
        plans = plan_milliseconds(queries, rows=True)
    tables.waiting.add(str(count), *used, workers, rate)
    most = (max(idle, default=0.0), max(plans))
    middle = (statistics.median(idle or [0.0]), statistics.median(plans))
    tables.plans.add(str(count), first, following, middle[0], most[0], middle[1], most[1])
    jvm = spark_jvm()
    with contextlib.suppress(TimeoutError):
        poll(lambda: None if planners_of(jvm) else True, 30, TimeoutError)
    tables.stopped.add(str(count), *Used.now(server))


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many", description=__doc__)
    parser.add_argument(
        "--queries", type=int, nargs="+", default=QUERIES, help="of the driver (default 1 10 50)"
    )
    parser.add_argument(
        "--streams", type=int, default=STREAMS, help=f"of all queries (default {STREAMS})"
    )
    parser.add_argument(
        "--interval", type=int, default=INTERVAL, help="seconds of the trigger (default 10)"
    )
    parser.add_argument("--seconds", type=float, default=60, help="to count requests (default 60)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the tables to this file"
    )
    arguments = parser.parse_args()
    prepare_spark()
    from benchmarks import source  # noqa: PLC0415  # Spark reads the environment when it is imported

    names = [f"MANY{number}" for number in range(arguments.streams)]
    with source.session() as spark, NatsServer(http_monitor=True) as server:
        for name in names:
            fill(server.url, name, 1)
        # The first query starts processes, and the JVM compiles what all queries run.
        with all_running(spark, server, [names], 1) as queries:
            wait_for_all(queries, 0)
        tables = Tables.of(arguments.streams, arguments.interval, arguments.seconds)
        for count in arguments.queries:
            measure(spark, server, names, count, arguments.interval, arguments.seconds, tables)
    if arguments.json is not None:
        write(arguments.json)


if __name__ == "__main__":
    main()
