"""Commands about the servers that keep a stream."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.testing import NatsCluster
from tests.cli.conftest import Command
from tests.support.command import run_command, succeed
from tests.support.reading import wait_until

STREAM = "PLACED"


@pytest.fixture
def cluster(nats_cluster: NatsCluster) -> Iterator[str]:
    """Where a cluster of three is that has a stream on two of its servers."""
    url = nats_cluster.url
    succeed("stream", "add", STREAM, "--subjects", "placed.>", "--num-replicas", 2, url=url)
    yield url
    succeed("stream", "rm", STREAM, "--force", url=url)


def test_on_a_cluster(cluster: str) -> None:
    with JetStreamAdmin(servers=cluster) as admin:

        def servers() -> list[str]:
            found = admin.streams.replicas(STREAM)
            whole = len(found) == 2 and found[0].leader and all(each.current for each in found)
            return [each.server for each in found] if whole else []

        wait_until(lambda: bool(servers()), "two replicas that are up to date", 30)
        leader, other = servers()
        rows = {row[0]: row[1:] for row in succeed("stream", "info", STREAM, url=cluster).rows if row}
        assert rows["servers"][:3] == [leader, "(leader),", other]

        said = succeed("stream", "step-down", STREAM, "--preferred", other, "--json", url=cluster).json
        assert said == {"stream": STREAM, "leader_before": leader, "preferred": other}
        wait_until(lambda: servers()[:1] == [other], f"{other} leads", 30)

        ran = run_command("stream", "peer-remove", STREAM, leader, url=cluster)
        assert (ran.code, ran.out) == (2, "")
        said = succeed("stream", "peer-remove", STREAM, leader, "--force", "--json", url=cluster).json
        assert said == {"stream": STREAM, "removed": leader}
        wait_until(lambda: bool(servers()) and leader not in servers(), "another server keeps it", 30)

        ran = run_command("stream", "peer-remove", STREAM, "nobody", "--force", url=cluster)
        assert (ran.code, ran.out) == (1, "")
        assert f"remove server nobody from stream {STREAM}" in ran.err


def test_outside_of_a_cluster(do: Command, run: Command, name: str) -> None:
    do("stream", "add", name, "--subjects", name)
    for given in (["step-down", name], ["peer-remove", name, "somebody", "--force"]):
        ran = run("stream", *given)
        assert (ran.code, ran.out) == (1, "")
        assert "10010" in ran.err
    assert run("stream", "step-down", f"{name}nowhere").code == 1
    assert run("stream", "peer-remove", name).code == 2
