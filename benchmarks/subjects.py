"""Part of `benchmarks.growth`: what many filters cost, and many subjects.

A batch with many filters is compared with a consumer that has them. A stream of a million subjects
is planned, read, and its subjects are listed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from benchmarks.load import fill
from benchmarks.processes import cpu_seconds, resident_megabytes
from benchmarks.tables import Table
from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.client.pool import connect
from spark_jetstream.options import SourceOptions
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.source.advice import READERS
from spark_jetstream.source.planner import Planner
from spark_jetstream.streams.pull import PullSettings, RangeReader
from spark_jetstream.testing import NatsServer

FILTERS = (1, 30, 300, 3_000)
FILTERED, GROUPS = 200_000, 4_000  # subjects of a stream that is read with many filters
SUBJECTS, SPREAD_GROUPS = 1_000_000, 1_000  # of a stream with one message of each
_PAYLOAD = 20
_WARM_UP = 1  # rounds that do not count


def many_filters(server: NatsServer, rounds: int, counts: Sequence[int]) -> None:
    """Print what planning and reading a batch takes, by the number of its filters, beside a
    consumer that has them.
    """
    ways = ("consumer", "direct")
    table = Table(
        "filters",
        f"a batch with wildcard filters on a stream of {FILTERED:,} messages and as many subjects, "
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
        FILTERED,
        subjects=FILTERED,
        payload_bytes=_PAYLOAD,
        allow_direct=True,
        subject_transform=moved,
    )
    for number in range(1 - _WARM_UP, rounds + 1):
        for count in counts:
            subjects = tuple(f"FILTERED.{group}.*" for group in range(count))
            alone = _seconds(partial(_consumed, server.url, replace(whole, subjects=subjects)))
            taken = [
                _seconds(partial(_batch, server.url, "FILTERED", subjects, way)) for way in ways
            ]
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


def _batch(url: str, stream: str, subjects: Sequence[str], read_with: str) -> int:
    """Plan and read a batch, and return how many messages it has."""
    options = _batch_options(url, stream, subjects, read_with)
    settings = PullSettings(
        options.fetch_batch, options.fetch_max_bytes, options.fetch_timeout, 60, True
    )
    connection = connect(options.connection)
    messages = 0
    for part in Planner(options, lambda _: connection).batch_ranges():
        for run in READERS[part.read_with](lambda _: connection, part, settings, "bench"):
            messages += len(run)
    return messages


def _batch_options(url: str, stream: str, subjects: Sequence[str], read_with: str) -> SourceOptions:
    given = {
        "servers": url,
        "stream": stream,
        "subjects": ",".join(subjects),
        "readWith": read_with,
    }
    return SourceOptions.from_spark(
        {key: value for key, value in given.items() if value}, streaming=False
    )


def many_subjects(server: NatsServer, rounds: int, count: int) -> None:
    """Print what a stream of many subjects costs: to plan, to read, and to list its subjects."""
    table = Table(
        "subjects",
        f"a stream of {count:,} subjects with one message each, {rounds} rounds; tasks or messages "
        "that were found, seconds by the clock, and of the server's CPU",
        what="s",
        found=",.0f",
        seconds=".2f",
        server=".2f",
    )
    resident = resident_megabytes(server.pid)
    moved = {
        "src": "SPREAD.*",
        "dest": f"SPREAD.{{{{partition({SPREAD_GROUPS},1)}}}}.{{{{wildcard(1)}}}}",
    }
    fill(
        server.url,
        "SPREAD",
        count,
        subjects=count,
        payload_bytes=_PAYLOAD,
        allow_direct=True,
        subject_transform=moved,
    )
    print(f"the server holds {resident_megabytes(server.pid) - resident:.0f} MB more", flush=True)
    filters_by_name = {
        "no filter": (),
        "a group": ("SPREAD.7.*",),
        "a middle wildcard": ("SPREAD.*.7",),
    }
    cases: dict[str, Callable[[], int]] = {}
    for name, chosen in filters_by_name.items():
        cases[f"plan, {name}"] = partial(_tasks, server.url, chosen)
    for name, chosen in filters_by_name.items():
        cases[f"read, {name}"] = partial(_batch, server.url, "SPREAD", chosen, "consumer")
    cases["list, all"] = partial(_listed, server.url, ">")
    cases["list, a group"] = partial(_listed, server.url, "SPREAD.7.*")
    for number in range(1 - _WARM_UP, rounds + 1):
        for name, work in cases.items():
            cpu, began = cpu_seconds(server.pid), time.perf_counter()
            found = work()
            seconds = time.perf_counter() - began
            table.add(name, found, seconds, cpu_seconds(server.pid) - cpu, counted=number > 0)
    table.summarize(by="what")


def _tasks(url: str, subjects: Sequence[str]) -> int:
    """Plan a batch, and return its number of tasks."""
    options = _batch_options(url, "SPREAD", subjects, "consumer")
    connection = connect(options.connection)
    return len(Planner(options, lambda _: connection).batch_ranges())


def _listed(url: str, subject: str) -> int:
    """List the subjects of the stream with their messages, and return how many these are."""
    # A server that counts a million subjects replies after seconds.
    with JetStreamAdmin(servers=url, requestTimeout="300s") as admin:
        return sum(messages for _, messages in admin.streams.subjects("SPREAD", subject))
