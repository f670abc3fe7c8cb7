"""What each delivery level promises holds whoever is killed: the driver, a Python worker, the server, a lone task.

Killed is with SIGKILL, at moments all over a task and a micro-batch. In the end, at-least-once has every row,
deduplicated has each of them once within the duplicate window, and exactly-once after it as well, so its streams
remember message ids for a second and no restart comes sooner.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import re
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_jetstream.errors import DeliveryError
from spark_jetstream.sink.report import TaskReport
from spark_jetstream.sink.task import WriteTask
from spark_jetstream.testing import NatsCluster, NatsServer
from tests.support import write_job
from tests.support.client import full
from tests.support.jobs import Job, kill
from tests.support.proxy import Acks, WireProxy
from tests.support.publish import Publisher
from tests.support.reading import create
from tests.support.sinking import Sink, forget, numbers, stored
from tests.support.sinking import rows as sink_rows
from tests.support.write_job import COUNT, run_apart, values

log = logging.getLogger(__name__)

SEED = 20260
KILLS = int(os.environ.get("SPARK_JETSTREAM_KILLS", "0"))
SECOND = 1_000_000_000  # nanoseconds, as JetStream counts
HOUR = 3600 * SECOND  # on a busy machine a test may well outlast the default of two minutes
#: How long a stream remembers message ids, for each level.
WINDOWS = {"at-least-once": HOUR, "deduplicated": HOUR, "exactly-once": SECOND}
LEDGER = "KV_spark_jetstream_ledger"

pytestmark = pytest.mark.usefixtures("no_connection_left")


def rows(url: str, stream: str) -> Counter[str]:
    """The payloads of all rows in a stream, and how often each is there."""
    return Counter(data.decode() for data in stored(url, stream))


def check(delivery: str, found: Counter[str], expected: list[str]) -> None:
    """What the level promises; and at-least-once has shown that there was something to keep from happening."""
    missing = [row for row in expected if row not in found]
    assert missing == []
    repeated = {row: times for row, times in found.items() if times > 1}
    if delivery == "at-least-once":
        assert repeated, "no kill came between a row and its answer: this test shows nothing"
    else:
        assert repeated == {}
    assert found.keys() == set(expected)


def passed_window(url: str, stream: str) -> None:
    """Let the duplicate window of a stream pass."""
    with Publisher(url) as publisher:
        forget(publisher, stream)


# -- a task --


class Target:
    """A stream of a test's own, and the options to write to it: one row after the other, nearly."""

    def __init__(self, server: NatsServer, delivery: str, window: int | None = None) -> None:
        self.url = server.url
        self.delivery = delivery
        self.stream = f"K{next(_numbers)}"
        self.write = f"write{self.stream}"
        create(self.url, self.stream, storage="file", duplicate_window=window or WINDOWS[delivery])
        self.options = {
            "servers": server.url,
            "stream": self.stream,
            "subject": f"{self.stream}.row",
            "delivery": delivery,
            "maxInFlight": "20",
        }
        Sink(**self.options).started()

    def attempt(self, partition: int, **more: str) -> TaskReport:
        return write_job.write({**self.options, **more}, self.write, partition)


_numbers = iter(range(1, 1000))


@pytest.mark.parametrize("delivery", [*full("at-least-once", "deduplicated"), "exactly-once"])
def test_a_task_killed_at_every_step(nats_server: NatsServer, delivery: str) -> None:
    target = Target(nats_server, delivery)
    moments = json.loads(run_apart(options=target.options, write_name=target.write))
    steps = COUNT // 10
    assert [moments.count(f"{when} publish {steps}") for when in ("before", "after", "received")] == [1, 1, 1]
    assert len(moments) >= 3 * steps
    if delivery == "exactly-once":
        # Taken, noted where the stream stands, done.
        entries = [re.sub(r" .*ledger\..*", "", moment) for moment in moments if "$KV." in moment]
        assert entries == ["before", "after"] * 3
        passed_window(target.url, target.stream)
    partitions = range(1, len(moments) + 2)
    # All at once: each that takes over waits until it may.
    with ThreadPoolExecutor(len(partitions)) as pool:
        reports = list(pool.map(target.attempt, partitions))
    assert [(report.rows, report.stored) for report in reports] == [(COUNT, COUNT)] * len(reports)
    check(delivery, rows(target.url, target.stream), [row for each in partitions for row in values(each)])


def test_the_duplicate_window_has_passed_in_these_tests(nats_server: NatsServer) -> None:
    # Where it has, ids alone do not help: what exactly-once is for.
    target = Target(nats_server, "deduplicated", SECOND)
    target.attempt(1)
    passed_window(target.url, target.stream)
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
            # Connection options that differ give the attempts connections of their own, as processes have.
            target.attempt(partition, connectTimeout=f"{5 + number}s")
        except DeliveryError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(attempts)) as pool:
        ended = list(pool.map(attempt, *zip(*attempts, strict=True)))
    failed = [why for why in ended if why]
    assert all("another attempt" in why for why in failed)
    assert len(failed) <= (0 if delivery == "deduplicated" else len(partitions))
    check(delivery, rows(target.url, target.stream), [row for each in partitions for row in values(each)])


# -- a Spark job --

BATCH = 300
STREAMS = {"at-least-once": "A", "deduplicated": "D", "exactly-once": "E"}


@pytest.fixture
def server(server: NatsServer) -> NatsServer:
    """A server with a stream for each level."""
    for delivery, stream in STREAMS.items():
        create(server.url, stream, storage="file", duplicate_window=WINDOWS[delivery])
    return server


def start(folder: Path, url: str, master: str) -> Job:
    """A job with a query for each level, which runs until it is killed."""
    common = {"servers": url, "maxInFlight": "60", "connectTimeout": "5s", "requestTimeout": "5s"}
    options = {
        delivery: {**common, "delivery": delivery, "stream": stream, "subject": f"{stream}.row"}
        for delivery, stream in STREAMS.items()
    }
    return Job(folder, options, rows=BATCH, trigger={"processingTime": "0 seconds"}, conf={"spark.master": master})


def catch_up(job: Job) -> None:
    """Wait until each query has done the batch that it is at, and one more."""
    planned = {delivery: job.latest(f"{delivery}/offsets") for delivery in WINDOWS}
    job.wait(
        lambda: all(job.latest(f"{delivery}/commits") > planned[delivery] for delivery in WINDOWS),
        f"batches after {planned}",
    )


def check_streams(job: Job, url: str) -> None:
    """What the streams hold: the rows of committed batches, and perhaps some of the one that the last kill hit."""
    for delivery, stream in STREAMS.items():
        committed = (job.latest(f"{delivery}/commits") + 1) * BATCH
        found = rows(url, stream)
        begun = sorted(number for number in map(int, found) if number >= committed)
        assert not begun or begun[-1] < committed + BATCH
        check(delivery, found, [str(number) for number in [*range(committed), *begun]])


def answers(chance: random.Random, ledger: int | None) -> dict[str, int]:
    """How many answers each stream may give before one is lost; a batch has 300, and four from the ledger."""
    passing = {stream: chance.randrange(2 * BATCH) for stream in STREAMS.values()}
    if ledger is not None:
        # There exactly-once stands still, and its stream loses none.
        del passing[STREAMS["exactly-once"]]
        passing[LEDGER] = ledger
    return passing


@pytest.mark.timeout(900)  # seven drivers, one after the other
@pytest.mark.full
def test_a_driver_killed_again_and_again(server: NatsServer, tmp_path: Path) -> None:
    chance = random.Random(f"{SEED} driver")
    with WireProxy(server.url) as proxy:
        for ledger in (None, 0, 1, None, 2, 3):
            passing = answers(chance, ledger)
            log.warning("seed %d: killed when so many answers have come, and no more: %s", SEED, passing)
            acks = Acks(proxy, passing)
            connections = proxy.connections
            with start(tmp_path / "job", proxy.url, "local[3]") as job:
                passed_window(server.url, STREAMS["exactly-once"])
                assert proxy.connections == connections, "the job was back before the duplicate window had passed"
                job.wait(acks.lost.is_set, f"answers lost: {passing}")
                job.kill()
            under_way = {
                delivery: job.latest(f"{delivery}/offsets") - job.latest(f"{delivery}/commits") for delivery in WINDOWS
            }
            assert under_way == dict.fromkeys(WINDOWS, 1)
        acks.end()
        with start(tmp_path / "job", proxy.url, "local[3]") as job:
            catch_up(job)
            job.kill()
            check_streams(job, server.url)


def kill_workers(job: Job, _: NatsServer) -> None:
    workers = job.workers()
    assert len(workers) == len(STREAMS)
    kill(workers)


def kill_server(_: Job, server: NatsServer) -> None:
    server.kill()
    server.start()


@pytest.mark.timeout(600)
@pytest.mark.full
@pytest.mark.parametrize("kill", [kill_workers, kill_server])
def test_killed_again_and_again(server: NatsServer, tmp_path: Path, kill: Callable[[Job, NatsServer], object]) -> None:
    """Ten times, each while all queries are in the middle of a batch."""
    chance = random.Random(f"{SEED} {kill.__name__}")
    # A task for each query, which may fail often.
    with WireProxy(server.url) as proxy, start(tmp_path / "job", proxy.url, "local[3,30]") as job:
        for ledger in (None, 0, None, 1, None, 2, None, 3, 4, None):
            passing = answers(chance, ledger)
            log.warning("seed %d: struck when so many answers have come, and no more: %s", SEED, passing)
            acks = Acks(proxy, passing)
            job.wait(acks.lost.is_set, f"answers lost: {passing}")
            passed_window(server.url, STREAMS["exactly-once"])
            acks.end()
            kill(job, server)
        catch_up(job)
        job.kill()
        check_streams(job, server.url)


# -- a cluster --


@pytest.mark.timeout(300 + 60 * KILLS)
@pytest.mark.full
def test_leaders_that_are_killed(nats_cluster: NatsCluster) -> None:
    """An election is an outage that retryTimeout covers: no attempt of a task of exactly-once fails.

    The variable SPARK_JETSTREAM_KILLS asks for more kills than the suite has time for.
    """
    url = nats_cluster.url
    create(url, "LEADERS", storage="file", num_replicas=3)
    sink = Sink(url, stream="LEADERS", subject="LEADERS.row", delivery="exactly-once", retryTimeout="60s").started()
    ended = threading.Event()

    def write() -> int:
        """Batch after batch, in small portions; how many rows."""
        for number in itertools.count():
            first = 200 * number
            portions = (sink_rows("LEADERS.row", at, 5) for at in range(first, first + 200, 5))
            sink.write(portions, task=WriteTask("leaders", number, 0))
            if ended.is_set():
                return first + 200
        raise AssertionError

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        chance = random.Random(SEED)
        for number in range(KILLS or 2):
            killed = nats_cluster.leader_of(LEDGER if number % 2 else "LEADERS")
            nats_cluster.kill(killed)
            # An election takes 4 to 9 seconds: another server goes before, during and after it.
            threading.Event().wait(chance.uniform(0.1, 8))
            nats_cluster.restart(killed)
            if writing.done():
                break
        ended.set()
        count = writing.result()
    nats_cluster.wait_ready()
    # Rows that were sent again stand behind others.
    found = numbers(nats_cluster.urls[nats_cluster.leader_of("LEADERS")], "LEADERS")
    assert sorted(found) == list(range(count))
