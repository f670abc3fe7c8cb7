"""Queries that share a consumer, in Spark."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jetstream.admin import JetStreamAdmin
from tests.support.jobs import Job
from tests.support.queries import Run, available_now, start, streaming
from tests.support.reading import wait_until
from tests.support.sharing import POOL, Pool
from tests.support.streams import MakeStream

ONLY = "stream string, sequence bigint"


@pytest.fixture
def pool(stream: MakeStream, admin: JetStreamAdmin) -> Pool:
    return Pool(stream, admin)


def planners() -> set[int]:
    """The Python processes that plan queries of this test process, and of no other test process."""
    parents, found = {}, set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The name of the process is in parentheses, and its state and its parent follow.
            parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
            parents[int(path.name)] = int(parent)
            if b"python_streaming_source_runner" in (path / "cmdline").read_bytes():
                found.add(int(path.name))

    def ancestors(process: int) -> Iterator[int]:
        while process := parents.get(process, 0):
            yield process

    return {process for process in found if os.getpid() in ancestors(process)}


def test_two_queries_and_a_service_empty_a_queue(
    spark: SparkSession, pool: Pool, tmp_path: Path
) -> None:
    published = pool.stream.fill(600)
    runs, queries, foreign = [Run(), Run()], [], []
    for number, run in enumerate(runs):
        rows = streaming(
            spark, pool.stream.url, pool.name, ONLY, share=POOL, maxMessagesPerTrigger=100
        )
        queries.append(start(rows, tmp_path / str(number), run))

    def empty() -> bool:
        given = pool.take(5)
        foreign.extend(given)
        pool.acknowledge(given)
        for query in queries:
            assert query.exception() is None
        return not pool.left

    try:
        wait_until(empty, "an empty queue", 120)
    finally:
        for query in queries:
            query.stop()
    assert sorted([*runs[0].sequences, *runs[1].sequences, *foreign]) == published
    assert all(runs[0].counts + runs[1].counts)


def test_a_stopped_query_keeps_nothing_and_its_next_run_acknowledges(
    spark: SparkSession, pool: Pool, tmp_path: Path
) -> None:
    published = pool.stream.fill(20)
    before = planners()
    rows = streaming(spark, pool.stream.url, pool.name, ONLY, share=POOL)
    run = Run()
    query = start(rows, tmp_path, run, processingTime="1 hour")
    run.wait_for(20, query)
    wait_until((tmp_path / "commits" / "0").exists, "a committed batch")
    assert planners() - before
    query.stop()
    wait_until(lambda: not planners() - before, "the end of the process that plans")
    # Spark has not said yet that the batch is committed, and others get its messages.
    pool.lapse(published)
    assert pool.take(100) == published
    assert available_now(rows, tmp_path).sequences == []
    assert pool.left == []


@pytest.mark.full
def test_a_driver_that_is_killed_in_a_batch(pool: Pool, tmp_path: Path) -> None:
    """Spark runs the batch again from its log, and no row is in the sink twice or missing."""
    published = pool.stream.fill(400)
    texts = sorted(message.data.decode() for message in pool.stream.messages.values())
    options = {
        "servers": pool.stream.url,
        "stream": pool.name,
        "share": POOL,
        "maxMessagesPerTrigger": "40",
    }
    trigger = {"processingTime": "0 seconds"}
    with Job(tmp_path, {"q": options}, trigger=trigger, conf={}) as job:
        job.wait(
            lambda: job.latest("q/offsets") > max(1, job.latest("q/commits")), "a running batch"
        )
        job.kill()
    assert pool.left
    # Also messages that were reserved, and that no offset has.
    pool.lapse(pool.left)
    with Job(tmp_path, {"q": options}, trigger=trigger, conf={}) as job:
        result = job.finish()
        assert job.errors() == []
    assert result["q"]["rows"] == texts
    assert len(texts) == len(published)
    assert pool.left == []
