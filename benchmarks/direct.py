"""Direct reads (`readWith=direct`) beside reads by pull consumers, below Spark, turn by turn on the
same server.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

from benchmarks import references
from benchmarks.load import fill
from benchmarks.tables import Table
from spark_jetstream.bench import percentile, read
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import connect
from spark_jetstream.options import SourceOptions
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.streams.direct import read_direct
from spark_jetstream.streams.pull import PullSettings, read_range
from spark_jetstream.testing import NatsServer

MESSAGES = 500_000
RANGES = 200  # of ten messages


def readers(url: str) -> dict[str, Callable[[SequenceRange], Iterator[MessageRun]]]:
    """Return what reads a range by a pull consumer, and by Direct Gets."""
    options = SourceOptions.from_spark({"servers": url, "stream": "BENCH"}, streaming=True)
    settings = PullSettings(
        options.fetch_batch, options.fetch_max_bytes, options.fetch_timeout, 60, True
    )

    def connected(_: float) -> Connection:
        return connect(options.connection)

    return {
        "consumer": lambda part: read_range(connected, part, settings, "bench"),
        "direct": lambda part: read_direct(connected, part, settings, "bench"),
    }


def throughput(url: str, whole: SequenceRange, rounds: int) -> None:
    """All messages to record batches, in one partition."""
    ways = readers(url)
    filtered = SequenceRange(
        "BENCH", 1, MESSAGES + 1, MESSAGES // 5, whole.created, ("BENCH.3", "BENCH.7")
    )
    forms = {"consumer": ",.0f", "direct": ",.0f", "bytes only": ",.0f", "direct/consumer": ".2f"}
    filtered_forms = {
        "consumer, two filters": ",.0f",
        "direct, two filters": ",.0f",
        "direct/consumer, filters": ".2f",
    }
    table = Table(
        "direct",
        f"{MESSAGES:,} messages of 200 B to record batches, without Spark, {rounds} rounds; rows a "
        "second",
        **{"round": "s", **forms, **filtered_forms},
    )
    for number in range(rounds + 1):
        rates = [
            read(name, reader(whole), whole).messages_per_second for name, reader in ways.items()
        ]
        raw: float = references.count_bytes(url, "BENCH", MESSAGES)
        some = [
            read(name, reader(filtered), filtered).messages_per_second
            for name, reader in ways.items()
        ]
        label = str(number) if number else "warm-up"
        table.add(
            label, *rates, raw, rates[1] / rates[0], *some, some[1] / some[0], counted=number > 0
        )
    table.summarize()


def latency(url: str, whole: SequenceRange) -> None:
    """The last ten messages, again and again."""
    part = SequenceRange("BENCH", MESSAGES - 9, MESSAGES + 1, 10, whole.created)
    ways = readers(url)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(RANGES + 20):
        for name, reader in ways.items():
            began = time.perf_counter()
            rows = sum(len(run) for run in reader(part))
            elapsed = (time.perf_counter() - began) * 1000
            if rows != 10:
                raise RuntimeError(f"{rows} of 10 messages came")
            if number >= 20:
                taken[name].append(elapsed)
    title = f"a range of ten messages, {RANGES} times each, by turns; milliseconds"
    table = Table("ten messages", title, **{"read with": "s", "median": ".2f", "p99": ".2f"})
    for name, each in taken.items():
        table.add(name, statistics.median(each), percentile(each, 99))


def run(rounds: int) -> None:
    """All figures of direct reads."""
    with NatsServer() as server:
        whole = fill(server.url, "BENCH", MESSAGES, allow_direct=True)
        throughput(server.url, whole, rounds)
        latency(server.url, whole)
