"""Nothing is lost and nothing comes twice when Spark itself is what dies: two moments (test_faults.py has the others).

A job of its own processes streams into Spark's transactional file sink; what is on disk in the end, by the sink's own
log, must be every message once.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from spark_jetstream.testing import NatsServer
from tests.support.jobs import Job, kill
from tests.support.proxy import Acks, WireProxy
from tests.support.reading import consumers, create, fill
from tests.support.sinking import stored

LIMIT = 400
COUNT = 3 * LIMIT


@pytest.fixture
def server(server: NatsServer) -> NatsServer:
    """A server with a stream S on disk."""
    create(server.url, "S", storage="file")
    return server


def options(url: str) -> dict[str, dict[str, str]]:
    """Options of the query: short times, and micro-batches of three tasks."""
    times = {"connectTimeout": "5s", "requestTimeout": "5s", "retryTimeout": "60s", "fetchTimeout": "2s"}
    limits = {"maxMessagesPerTrigger": str(LIMIT), "minPartitions": "3", "fetchBatch": "50"}
    return {"S": {**times, **limits, "servers": url, "stream": "S"}}


def check(job: Job) -> None:
    """Every message is there once, and what it holds is right."""
    result = job.result()["S"]
    sequences = [row[0] for row in result["rows"]]
    assert len(sequences) == len(set(sequences)), "messages came twice"
    assert sequences == list(range(1, COUNT + 1)), "messages are missing"
    assert result["rows"] == [[i + 1, f"S.part.{i % 5}", str(i).ljust(100, ".")] for i in range(COUNT)]
    assert result["batch"] == sequences
    assert job.errors() == []


class Hold:
    """Holds a batch up when it has been read in part: what the server sends for the last message of a task is lost.

    The task then waits for a heartbeat that does not come, which is the time to strike.
    """

    def __init__(self, proxy: WireProxy, batch: int) -> None:
        self._proxy = proxy
        self._from = batch
        self.reached = threading.Event()
        proxy.drop(self._frame)

    def _frame(self, frame: bytes) -> bytes:
        """Lets pass what belongs to other batches, and the first 30 messages of each consumer."""
        at = re.search(rb" \$JS\.ACK\.S\.spark-[0-9a-f]{8}-(\d+)-\d+-\d+-[0-9a-f]{8}\.1\.\d+\.(\d+)\.", frame[:300])
        if self.reached.is_set() and b"NATS/1.0 100" in frame[:300]:
            return b""
        if at is None or int(at[1]) < self._from or int(at[2]) <= 30:
            return frame
        self.reached.set()
        return b""

    def end(self) -> None:
        """Let everything pass."""
        self._proxy.drop(None)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_batch_that_runs_again_with_other_options_and_messages(server: NatsServer, tmp_path: Path) -> None:
    """From a filtered stream into a sink of exactly-once, whose message ids name the tasks."""
    create(server.url, "T", storage="file")

    def store_some() -> None:
        fill(server.url, "S", 900, lambda i: "wanted" if i % 3 == 0 else "else")

    def job(url: str, **changed: str) -> Job:
        to = {"servers": url, "stream": "T", "subject": "T.row", "delivery": "exactly-once", "maxInFlight": "20"}
        given = {**options(server.url)["S"], "maxMessagesPerTrigger": "300", "subjects": "S.wanted", **changed}
        return Job(tmp_path / "job", {"S": {**given, **{f"sink.{name}": value for name, value in to.items()}}})

    store_some()
    with WireProxy(server.url) as proxy, job(proxy.url) as killed:
        acks = Acks(proxy, {"T": 120})
        killed.wait(acks.lost.is_set, "a batch that is stored in part")
        killed.kill()
    assert (killed.latest("S/offsets"), killed.latest("S/commits")) == (0, -1)
    store_some()
    with job(server.url, minPartitions="7", maxMessagesPerPartition="30") as again:
        again.result()
        assert again.errors() == []
    expected = [str(i).ljust(100, ".").encode() for i in range(0, 900, 3)]
    assert sorted(stored(server.url, "T")) == sorted(2 * expected)


@pytest.mark.timeout(600)
def test_tasks_that_are_killed(server: NatsServer, tmp_path: Path) -> None:
    fill(server.url, "S", COUNT, lambda i: f"part.{i % 5}")
    conf = {"spark.master": "local[2,4]"}
    with WireProxy(server.url) as proxy, Job(tmp_path / "job", options(proxy.url), conf=conf) as job:
        hold = Hold(proxy, 1)
        job.wait(hold.reached.is_set, "batch 1 in mid-read")
        workers = job.workers()
        assert workers
        kill(workers)
        hold.end()
        check(job)
        again = re.findall(rb"CONSUMER\.CREATE\.S\.spark-[0-9a-f]{8}-(\d+)-\d+-[1-9]-[0-9a-f]{8} ", proxy.client_bytes)
        assert b"1" in again, "no task was tried again"
        assert not [name for name in consumers(server.url, "S") if name.startswith("spark-plan")]
