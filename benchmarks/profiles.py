"""`python -m benchmarks.profiles`: what Python spends its time on when one connection reads,
without Spark.

The connection's thread receives and cuts what the server sends; the thread of the task makes record
batches of it. Each is profiled in a read of its own, after some that tell the CPU of both. Times in
a profile are those of the clock: while both threads work, each contains waiting for the other one.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.direct import readers
from benchmarks.load import fill
from benchmarks.tables import Table
from spark_jetstream.bench import read
from spark_jetstream.client.pool import connect
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.testing import NatsServer

_WAITING = ("poll", "get")  # for the server, and for the other thread
_SHOWN = 12
_READS = 7  # the median leaves aside the first ones, which warm up


def _print(thread: str, profile: cProfile.Profile, messages: int) -> None:
    """Print the functions that took longest themselves, in microseconds a message."""
    table = Table(
        thread,
        f"{thread}, microseconds a message",
        function="s",
        itself=".2f",
        **{"with calls": ".2f"},
    )
    found = pstats.Stats(profile).get_stats_profile().func_profiles
    ranked = sorted(found.items(), key=lambda item: item[1].tottime, reverse=True)
    shown = [
        (name, each) for name, each in ranked if not any(f"'{word}'" in name for word in _WAITING)
    ]
    for name, each in shown[:_SHOWN]:
        place = f"{Path(each.file_name).name}: " if each.line_number else ""
        table.add(f"{place}{name}", each.tottime / messages * 1e6, each.cumtime / messages * 1e6)


def compare(payload_bytes: int, messages: int) -> None:
    """Print both profiles of reads of a stream of `messages` messages."""
    with NatsServer() as server:
        whole = fill(server.url, "BENCH", messages, payload_bytes=payload_bytes)
        connection = connect(ConnectionOptions.from_spark({"servers": server.url}))

        def read_all() -> None:
            read("consumer", readers(server.url)["consumer"](whole), whole)

        def on_its_thread(work: Callable[[], None]) -> None:
            async def run() -> None:
                work()

            asyncio.run_coroutine_threadsafe(run(), connection._loop.loop).result()

        taken = []
        for _ in range(_READS):
            began = time.process_time()
            read_all()
            taken.append((time.process_time() - began) / messages * 1e6)
        print(
            f"{statistics.median(taken):.2f} microseconds of CPU a message, median of {_READS} "
            "reads by both threads"
        )
        profile = cProfile.Profile()
        on_its_thread(profile.enable)
        read_all()
        on_its_thread(profile.disable)
        _print("the connection's thread", profile, messages)
        profile = cProfile.Profile()
        profile.runcall(read_all)
        _print("the task's thread", profile, messages)


def main() -> None:
    """Read the arguments and print the profiles."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiles", description=__doc__)
    parser.add_argument("--payload", type=int, default=200, help="bytes of a message (default 200)")
    parser.add_argument(
        "--messages", type=int, default=1_000_000, help="messages of the stream (default 1,000,000)"
    )
    arguments = parser.parse_args()
    compare(arguments.payload, arguments.messages)


if __name__ == "__main__":
    main()
