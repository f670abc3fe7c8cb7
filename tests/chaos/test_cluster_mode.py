"""Executors in processes of their own: what the driver plans must cross to them, and nothing else is shared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_jetstream.testing import NatsServer
from tests.support.jobs import Job, spark_home
from tests.support.reading import consumers, create, fill, wait_until

COUNT = 3000
SECRET = "only-the-options-know"


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """A server that wants a password, with a stream S."""
    with NatsServer(config=f'authorization {{ user: spark, password: "{SECRET}" }}') as running:
        admin = running.url.replace("//", f"//spark:{SECRET}@")
        create(admin, "S")
        fill(admin, "S", COUNT, lambda i: f"part.{i % 5}")
        yield running


@pytest.mark.full
def test_a_stream_and_a_batch_on_executors_of_their_own(server: NatsServer, tmp_path: Path) -> None:
    options = {"servers": server.url, "user": "spark", "password": SECRET, "stream": "S"}
    options |= {"maxMessagesPerTrigger": "1000", "minPartitions": "4"}
    conf = {"spark.master": "local-cluster[2,1,1024]"}
    home = spark_home(tmp_path / "home")
    with Job(tmp_path / "job", {"S": options}, conf=conf, environment=home) as job:
        result = job.result()["S"]
        log = job.log
    assert job.errors() == []
    assert result["rows"] == [[i + 1, f"S.part.{i % 5}", str(i).ljust(100, ".")] for i in range(COUNT)]
    assert result["batch"] == list(range(1, COUNT + 1))
    assert [rows for rows in result["ran"] if rows] == [1000, 1000, 1000]
    # Each executor has a folder to work in.
    folders = {path.name for path in (tmp_path / "home" / "work").glob("app-*/*")}
    assert folders >= {"0", "1"}, log[-3000:]
    assert SECRET not in log
    admin = server.url.replace("//", f"//spark:{SECRET}@")
    # Those of executors that ended with their application before they were done are deleted by the server.
    wait_until(lambda: not consumers(admin, "S"), "the end of all consumers", 60)
