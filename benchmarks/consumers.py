"""Measures the load of short micro-batches on a cluster: by pull consumers, and by Direct Gets.

A task that reads with a consumer creates it and deletes it, which the cluster's metadata leader has
to agree on with the other servers. `python -m benchmarks.consumers` starts micro-batches of several
tasks at a fixed rate, without Spark. It measures the CPU of each server, and how long the metadata
leader takes to answer a request.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from benchmarks.direct import readers
from benchmarks.load import fill
from benchmarks.processes import cpu_seconds
from benchmarks.tables import Table
from spark_jetstream.bench import percentile
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import connect
from spark_jetstream.options import SourceOptions
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.testing import NatsCluster

MESSAGES = 100_000
ASK_EVERY = 0.02  # seconds
Reader = Callable[[SequenceRange], Iterator[MessageRun]]


class Taken(NamedTuple):
    """Milliseconds of each micro-batch and of each request; seconds of CPU in a second of each
    server, and here.
    """

    batches: list[float]
    requests: list[float]
    servers: list[float]
    here: float


def _nothing(part: SequenceRange) -> Iterator[MessageRun]:
    return iter(())


def _measured(
    cluster: NatsCluster, connection: Connection, reader: Reader, whole: SequenceRange, rate: float, tasks: int,
    messages: int, seconds: float,
) -> Taken:  # fmt: skip
    """Run micro-batches at `rate` a second, each as soon as it is due and the one before is done."""
    batches: list[float] = []
    requests: list[float] = []
    finished = threading.Event()

    def ask() -> None:
        while not finished.wait(ASK_EVERY):
            began = time.perf_counter()
            connection.api(
                f"{connection.prefix}.STREAM.NAMES", b"{}", context="ask the metadata leader"
            )
            requests.append((time.perf_counter() - began) * 1000)

    def task(first: int) -> None:
        part = SequenceRange(whole.stream, first, first + messages, messages, whole.created)
        rows = sum(len(run) for run in reader(part))
        if rows != messages and reader is not _nothing:
            raise RuntimeError(f"{rows} of {messages} messages came")

    asking = threading.Thread(target=ask)
    asking.start()
    used, used_here = [cpu_seconds(server.pid) for server in cluster.servers], time.process_time()
    began = time.perf_counter()
    with ThreadPoolExecutor(tasks) as pool:
        number = 0
        while (due := began + number / rate) < began + seconds:
            time.sleep(max(0.0, due - time.perf_counter()))
            start = time.perf_counter()
            list(
                pool.map(
                    task,
                    [1 + (number * tasks + index) * messages % MESSAGES for index in range(tasks)],
                )
            )
            batches.append((time.perf_counter() - start) * 1000)
            number += 1
    elapsed = time.perf_counter() - began
    here = (time.process_time() - used_here) / elapsed
    finished.set()
    asking.join()
    servers = [
        (cpu_seconds(server.pid) - since) / elapsed
        for server, since in zip(cluster.servers, used, strict=True)
    ]
    return Taken(batches, requests, servers, here)


def compare(rate: float, tasks: int, messages: int, seconds: float, rounds: int) -> None:
    """Print what the servers do without reads, with consumers, and with Direct Gets, by turns."""
    with NatsCluster() as cluster:
        whole = fill(cluster.urls[0], "BENCH", MESSAGES, allow_direct=True, num_replicas=3)
        options = SourceOptions.from_spark(
            {"servers": cluster.url, "stream": "BENCH"}, streaming=True
        )
        connection = connect(options.connection)
        cluster.wait_ready()
        ways: dict[str, Reader] = {"no reads": _nothing, **readers(cluster.url)}
        leader = str(cluster.servers[0].monitor("/jsz")["meta_cluster"]["leader"])
        meta = next(
            index for index, server in enumerate(cluster.servers) if str(server.name) == leader
        )
        times = ("micro-batch", "p99", "request", "p99 of requests")
        percent = ("metadata leader", "stream leader", "others", "reader")
        table = Table(
            "consumers",
            f"{rate:g} micro-batches/s of {tasks} tasks with {messages:,} messages each, from a "
            f"stream with three replicas, {rounds} rounds of {seconds:g} s; milliseconds, and CPU "
            "in percent of a core",
            **{"reads": "s", **dict.fromkeys(times, ".2f"), **dict.fromkeys(percent, ".1f")},
        )
        for _ in range(rounds):
            for name, reader in ways.items():
                taken = _measured(
                    cluster, connection, reader, whole, rate, tasks, messages, seconds
                )
                stream = cluster.leader_of("BENCH")
                others = [
                    cpu for index, cpu in enumerate(taken.servers) if index not in (meta, stream)
                ]
                cpu = (
                    taken.servers[meta],
                    taken.servers[stream],
                    statistics.mean(others),
                    taken.here,
                )
                used = [each * 100 for each in cpu]
                took = [
                    figure
                    for times in taken[:2]
                    for figure in (statistics.median(times), percentile(times, 99))
                ]
                table.add(name, *took, *used)
        table.summarize(by="reads")


def main() -> None:
    """Read the arguments and compare."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.consumers", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--rate", type=float, default=10, help="micro-batches a second (default 10)"
    )
    parser.add_argument("--tasks", type=int, default=8, help="tasks of a micro-batch (default 8)")
    parser.add_argument("--messages", type=int, default=10, help="messages of a task (default 10)")
    parser.add_argument(
        "--seconds", type=float, default=20, help="how long each measurement takes (default 20)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds over all ways (default 3)")
    arguments = parser.parse_args()
    compare(
        arguments.rate, arguments.tasks, arguments.messages, arguments.seconds, arguments.rounds
    )


if __name__ == "__main__":
    main()
