"""`make bench-cluster`: three executors beside a cluster of three servers, and what the model for a
cluster predicts.

The model (docs/tuning.md) adds up the CPU that a message costs server, JVM and Python worker. Here
all of them share the cores of one machine. So the model predicts cores / (server + JVM + Python)
messages a second, whatever the number of servers, streams and executors. The costs are those of one
server and one JVM in the same run.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.environment import prepare_spark
from benchmarks.load import fill
from benchmarks.processes import Cpu, spark_jvm
from benchmarks.tables import Table, write
from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.testing import NatsCluster, NatsServer

MESSAGES = 3_000_000
PARTITION = 250_000
STREAMS = 6
_WARM_UP = 2


class Place(NamedTuple):
    """Servers, and the streams there that hold all messages."""

    servers: Sequence[NatsServer]
    streams: list[str]

    @property
    def url(self) -> str:
        """The URL of one of the servers."""
        return self.servers[0].url


@contextmanager
def places(messages: int) -> Iterator[list[Place]]:
    """Start one server with one stream, and a cluster with six, whose leaders are spread; fill
    them.
    """
    with NatsServer() as server, NatsCluster(3) as cluster:
        one, three = (
            Place([server], ["BENCH"]),
            Place(cluster.servers, [f"BENCH{number}" for number in range(STREAMS)]),
        )
        for place, config in ((one, {}), (three, {"num_replicas": 3})):
            for stream in place.streams:
                fill(place.url, stream, messages // len(place.streams), **config)
        with JetStreamAdmin(servers=three.url) as admin:
            admin.streams.balance()
            leaders = [admin.streams.load(stream).cluster for stream in three.streams]
        names = sorted(each.leader for each in leaders if each)
        if sorted(map(names.count, set(names))) != [STREAMS // 3] * 3:
            raise RuntimeError(f"the leaders are not spread: {names}")
        yield [one, three]


def run(rounds: int, messages: int) -> None:
    """Print rows a second and CPU of each set-up beside what the model predicts."""
    from benchmarks import source  # noqa: PLC0415  # Spark reads the environment when it is imported

    rates = {"rows/s": ",.0f", "predicted": ",.0f", "rows/predicted": ".2f"}
    costs = dict.fromkeys(("servers us", "Spark us", "Python us"), ".2f")
    table = Table(
        "cluster",
        f"batch reads of {messages:,} messages of 200 B into noop, {messages // PARTITION} tasks, "
        f"medians of {rounds} rounds; rows a second, and microseconds of CPU a message",
        **{"executors": "s", "servers": "s", "streams": "s", **rates, **costs},
    )
    cost: float | None = None
    with places(messages) as all_places:
        for executors, master in (("0", "local[2]"), ("3", "local-cluster[3,1,1024]")):
            with source.session(master) as spark:
                jvm = spark_jvm()
                for place in all_places:
                    options = {"servers": place.url, "stream": ",".join(place.streams)}
                    rows = (
                        spark.read.format("jetstream")
                        .options(**options, maxMessagesPerPartition=PARTITION)
                        .load()
                    )
                    taken: list[tuple[float, ...]] = []
                    for _ in range(_WARM_UP + rounds):
                        cpu, began = (
                            Cpu(jvm, *(server.pid for server in place.servers)),
                            time.perf_counter(),
                        )
                        rows.write.format("noop").mode("overwrite").save()
                        elapsed = time.perf_counter() - began
                        taken.append(
                            (
                                messages / elapsed,
                                *(seconds / messages * 1e6 for seconds in cpu.used()),
                            )
                        )
                    rate, *own = map(median, zip(*taken[_WARM_UP:], strict=True))
                    if cost is None:
                        cost = sum(own)
                    predicted = (os.cpu_count() or 1) * 1e6 / cost
                    servers, streams = (str(len(each)) for each in place)
                    table.add(executors, servers, streams, rate, predicted, rate / predicted, *own)


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds (default 5)")
    parser.add_argument(
        "--messages",
        type=int,
        default=MESSAGES,
        help=f"messages of all streams (default {MESSAGES:,})",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the table to this file"
    )
    arguments = parser.parse_args()
    prepare_spark()
    run(arguments.rounds, arguments.messages)
    if arguments.json is not None:
        write(arguments.json)


if __name__ == "__main__":
    main()
