"""Each delivery level holds when a task is killed at any step, or runs twice at the same time.

In the end, at-least-once has every row. Within the duplicate window deduplicated has each of them
once. With exactly-once each is stored once after the window as well. Its streams remember message
ids for a second, and no attempt begins sooner.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from spark_jetstream.errors import DeliveryError
from spark_jetstream.sink.report import TaskReport
from spark_jetstream.testing import NatsServer
from tests.chaos.scenario import LEVELS
from tests.support import write_job
from tests.support.publish import Publisher
from tests.support.reading import create, wait_until
from tests.support.sinking import Sink, batches_of, forget, seen_in, stored
from tests.support.write_job import COUNT, DELAYED, run_apart, values

pytestmark = pytest.mark.usefixtures("no_connection_left")


def rows(url: str, stream: str) -> Counter[str]:
    """The payloads of all rows in a stream, with the number of each."""
    return Counter(data.decode() for data in stored(url, stream))


def check(delivery: str, found: Counter[str], expected: list[str]) -> None:
    """Check the promise of a level.

    at-least-once must have repeated a row: otherwise the kills were too early to prove anything.
    """
    missing = [row for row in expected if row not in found]
    assert missing == []
    repeated = {row: times for row, times in found.items() if times > 1}
    if delivery == "at-least-once":
        assert repeated, "no kill came between a row and its answer: this test shows nothing"
    else:
        assert repeated == {}
    assert found.keys() == set(expected)


class Target:
    """A stream of a test's own, and the options to write to it: one row after the other, nearly."""

    def __init__(
        self, server: NatsServer, delivery: str, window: int | None = None, *, delayed: bool = False
    ) -> None:
        self.url = server.url
        self.stream = f"K{next(_numbers)}"
        self.write = f"write{self.stream}"
        self.count = DELAYED if delayed else COUNT
        config: dict[str, Any] = (
            {"allow_msg_schedules": True} if delayed else {"allow_atomic": True}
        )
        create(
            self.url,
            self.stream,
            storage="file",
            duplicate_window=window or LEVELS[delivery],
            **config,
        )
        self.options = {
            "servers": server.url,
            "stream": self.stream,
            **({} if delayed else {"subject": f"{self.stream}.row"}),
            "delivery": delivery,
            "maxInFlight": str(self.count),
        }
        Sink(**self.options).started()

    def attempt(self, partition: int, *, groups: int = 0, **more: str) -> TaskReport:
        return write_job.write({**self.options, **more}, self.write, partition, groups)


_numbers = iter(range(1, 1000))


@pytest.mark.parametrize(
    ("delivery", "delayed"),
    [
        *(
            pytest.param(level, False, marks=pytest.mark.full)
            for level in ("at-least-once", "deduplicated")
        ),
        ("exactly-once", False),
        *(
            pytest.param(level, True, marks=pytest.mark.full)
            for level in ("deduplicated", "exactly-once")
        ),
    ],
)
def test_a_task_killed_at_every_step(
    nats_server: NatsServer, publisher: Publisher, delivery: str, delayed: bool
) -> None:
    """Delayed rows are schedules, which the server publishes and removes while tasks are killed."""
    target = Target(nats_server, delivery, delayed=delayed)
    moments = json.loads(run_apart(options=target.options, write_name=target.write))
    steps = 2
    assert [
        moments.count(f"{when} publish {steps}") for when in ("before", "after", "received")
    ] == [1, 1, 1]
    assert len(moments) >= 3 * steps
    if delivery == "exactly-once":
        # Batch and task are taken, then both note where the stream stands, then the task is done.
        entries = [re.sub(r" .*ledger\..*", "", moment) for moment in moments if "$KV." in moment]
        assert entries == ["before", "after"] * 5
        forget(publisher, target.stream)
    partitions = range(1, len(moments) + 2)
    # All at once: each that takes over waits until it may.
    with ThreadPoolExecutor(len(partitions)) as pool:
        reports = list(pool.map(target.attempt, partitions))
    assert [(report.rows, report.stored) for report in reports] == [
        (target.count, target.count)
    ] * len(reports)
    expected = [row for each in partitions for row in values(each, target.count)]
    if delayed:
        assert len(expected) > 1000
        info = f"STREAM.INFO.{target.stream}"
        wait_until(
            lambda: publisher.api(info)["state"]["num_subjects"] == 1, "all rows are published"
        )
    check(delivery, rows(target.url, target.stream), expected)


@pytest.mark.full
@pytest.mark.parametrize("delivery", ["at-least-once", "deduplicated", "exactly-once"])
def test_a_task_killed_between_the_messages_of_its_groups(
    nats_server: NatsServer, publisher: Publisher, delivery: str
) -> None:
    """No part of a group is stored, neither before the task runs again nor then."""
    target, groups = Target(nats_server, delivery), 5
    moments = json.loads(run_apart(options=target.options, write_name=target.write, groups=groups))
    assert f"received publish {COUNT}" in moments
    stored_before = batches_of(seen_in(publisher, target.stream))
    assert {size for _, size in stored_before} == {COUNT // groups}
    assert len(stored_before) > groups
    if delivery == "exactly-once":
        forget(publisher, target.stream)
    partitions = range(1, len(moments) + 2)
    with ThreadPoolExecutor(8) as pool:
        reports = list(pool.map(partial(target.attempt, groups=groups), partitions))
    assert [(report.rows, report.stored) for report in reports] == [(COUNT, COUNT)] * len(reports)
    found = batches_of(seen_in(publisher, target.stream))
    assert found.keys() == {
        (f"{one}-{group}", COUNT // groups) for one in partitions for group in range(groups)
    }
    check(
        delivery,
        rows(target.url, target.stream),
        [row for each in partitions for row in values(each)],
    )


def test_the_duplicate_window_has_passed_in_these_tests(
    nats_server: NatsServer, publisher: Publisher
) -> None:
    # Where it has, ids alone do not help: what exactly-once is for.
    target = Target(nats_server, "deduplicated", LEVELS["exactly-once"])
    target.attempt(1)
    forget(publisher, target.stream)
    target.attempt(1)
    assert rows(target.url, target.stream) == Counter(values(1) * 2)


@pytest.mark.parametrize("delivery", ["deduplicated", "exactly-once"])
def test_two_attempts_at_the_same_time(nats_server: NatsServer, delivery: str) -> None:
    target = Target(nats_server, delivery)
    partitions = range(1, 6)
    attempts = [(partition, number) for partition in partitions for number in (1, 2)]
    together = threading.Barrier(len(attempts))

    def attempt(partition: int, number: int) -> str:
        """Why it failed, if it did."""
        together.wait(60)
        try:
            # Connection options that differ give the attempts connections of their own, as
            # processes have.
            target.attempt(partition, connectTimeout=f"{5 + number}s")
        except DeliveryError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(attempts)) as pool:
        ended = list(pool.map(attempt, *zip(*attempts, strict=True)))
    failed = [why for why in ended if why]
    assert all("another attempt" in why for why in failed)
    assert len(failed) <= (0 if delivery == "deduplicated" else len(partitions))
    check(
        delivery,
        rows(target.url, target.stream),
        [row for each in partitions for row in values(each)],
    )
