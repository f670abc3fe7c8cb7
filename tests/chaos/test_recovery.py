"""Nothing is lost and nothing comes twice when Spark itself is what dies.

A job of its own processes streams into Spark's transactional file sink; what is on disk in the end, by the sink's own
log, must be every message once.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_jetstream.testing import NatsServer
from tests.support.jobs import Job
from tests.support.proxy import WireProxy
from tests.support.reading import consumers, create, fill

COUNT = 6000
LIMIT = 400
PARTITIONS = 3
EXPECTED = [[i + 1, f"S.part.{i % 5}", str(i).ljust(100, ".")] for i in range(COUNT)]


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """A server with a stream S on disk."""
    with NatsServer() as running:
        create(running.url, "S", storage="file")
        fill(running.url, "S", COUNT, lambda i: f"part.{i % 5}")
        yield running


def options(url: str) -> dict[str, str]:
    """Options of the source: short times, and micro-batches of three tasks."""
    times = {"connectTimeout": "5s", "requestTimeout": "5s", "retryTimeout": "60s", "fetchTimeout": "2s"}
    return {
        **times,
        "servers": url,
        "stream": "S",
        "maxMessagesPerTrigger": str(LIMIT),
        "minPartitions": str(PARTITIONS),
        "fetchBatch": "50",
    }


def check(result: dict[str, Any]) -> None:
    """Every message is there once, and what it holds is right."""
    sequences = [row[0] for row in result["rows"]]
    assert len(sequences) == len(set(sequences)), "messages came twice"
    assert sequences == [row[0] for row in EXPECTED], "messages are missing"
    assert result["rows"] == EXPECTED
    assert result["batch"] == sequences


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


def files(job: Job) -> int:
    """How many files tasks have written, committed or not."""
    return len(list((job.folder / "rows").glob("part-*")))


@pytest.mark.full
@pytest.mark.timeout(900)  # six drivers, one after the other
def test_a_driver_that_is_killed_again_and_again(server: NatsServer, tmp_path: Path) -> None:
    # When to kill, by the state that the job started with: last committed batch, files, batches in the sink's log.
    moments: dict[str, Callable[[Job, int, int, int], bool]] = {
        "a batch is planned": lambda job, last, *_: job.latest("offsets") >= last + 2,
        "a batch is read in part": lambda *_: hold is not None and hold.reached.is_set(),
        "a task has written its file": lambda job, last, written, logged: (
            job.latest("commits") > last and files(job) > written + PARTITIONS * (job.latest("rows") - logged)
        ),
        "the sink has the batch, the query not": lambda job, last, *_: job.latest("rows") >= last + 2,
        "the reader has connected": lambda *_: proxy.connections > connections,
    }
    unfinished = 0
    with WireProxy(server.url) as proxy:
        for moment, there in moments.items():
            job = Job(tmp_path / "job", options(proxy.url), trigger={"processingTime": "0 seconds"})
            with job:
                before = job.latest("commits"), files(job), job.latest("rows")
                connections = proxy.connections
                hold = Hold(proxy, before[0] + 2) if moment == "a batch is read in part" else None
                job.wait(lambda there=there, job=job, before=before: there(job, *before), moment)  # type: ignore[misc]
                job.kill()
                proxy.drop(None)
            unfinished += job.latest("offsets") > job.latest("commits")
            assert job.latest("commits") * LIMIT < COUNT - 2 * LIMIT, "the job was too quick for this test"
        assert unfinished >= 3
        with Job(tmp_path / "job", options(proxy.url)) as job:
            check(job.result())


def kill_workers(job: Job) -> int:
    """SIGKILL for the processes of running tasks; how many there were."""
    workers = job.workers()
    for pid in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(workers)


@pytest.mark.timeout(600)
def test_tasks_and_servers_that_are_killed(server: NatsServer, tmp_path: Path) -> None:
    conf = {"spark.master": "local[2,4]"}
    with WireProxy(server.url) as proxy, Job(tmp_path / "job", options(proxy.url), format="json", conf=conf) as job:
        for batch in (1, 4):
            hold = Hold(proxy, batch)
            job.wait(hold.reached.is_set, f"batch {batch} in mid-read")
            assert kill_workers(job) >= 1
            hold.end()
        hold = Hold(proxy, 6)
        job.wait(hold.reached.is_set, "batch 6 in mid-read")
        server.kill()
        hold.end()
        server.start()
        job.wait(lambda: job.latest("commits") >= 8, "two more batches")
        server.kill()
        server.start()
        check(job.result())
        again = re.findall(
            rb"CONSUMER\.CREATE\.S\.spark-[0-9a-f]{8}-(\d+)-\d+-([1-9])-[0-9a-f]{8} ", proxy.client_bytes
        )
        assert {int(batch) for batch, _ in again} >= {1, 4}, "no task was tried again"
        assert not [name for name in consumers(server.url, "S") if name.startswith("spark-plan")]
