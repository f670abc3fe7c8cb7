"""`NatsCluster` with real servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_jetstream.errors import ServerStartError
from spark_jetstream.testing import NatsCluster
from tests.support.client import server_info, stored
from tests.support.reading import create, fill


@pytest.fixture(scope="module")
def cluster() -> Iterator[NatsCluster]:
    with NatsCluster() as running:
        yield running


class TestCluster:
    def test_three_servers_form_a_cluster(self, cluster: NatsCluster) -> None:
        assert [server.name for server in cluster.servers] == ["test-0", "test-1", "test-2"]
        assert cluster.url == ",".join(cluster.urls)
        assert len(set(cluster.urls)) == 3
        assert {server_info(url)["cluster"] for url in cluster.urls} == {"test"}
        assert all("connect_urls" in server_info(url) for url in cluster.urls)
        assert repr(cluster).count(" up>") == 3

    def test_leader_of_counts_accounts_apart(self, cluster: NatsCluster) -> None:
        create(cluster.urls[0], "ONE")
        assert cluster.leader_of("ONE") == cluster.leader_of("ONE", account="$G")
        with pytest.raises(TimeoutError, match="no server leads a stream ONE after 0"):
            cluster.leader_of("ONE", account="OTHER", timeout=0.05)

    @pytest.mark.full
    def test_a_minority_is_not_ready(self, cluster: NatsCluster) -> None:
        for server in cluster.servers[:2]:
            server.pause()
        with pytest.raises(
            ServerStartError, match=r"not ready after 0\.05 s: 1 of 3 servers are up"
        ):
            cluster.wait_ready(0.05)
        for server in cluster.servers[:2]:
            server.resume()
        cluster.wait_ready()

    @pytest.mark.full
    def test_a_cluster_that_was_killed_starts_again_with_its_messages(self, tmp_path: Path) -> None:
        with NatsCluster(name="again", store_dir=tmp_path, max_payload=4096) as cluster:
            create(cluster.urls[0], "S", storage="file", num_replicas=3)
            cluster.wait_ready()
            fill(cluster.urls[cluster.leader_of("S")], "S", 3)
            urls = cluster.urls
            for index, server in enumerate(cluster.servers):
                cluster.kill(index)
                assert not server.running
            cluster.restart(1)  # alone: nothing to wait for
            cluster.start()
            assert cluster.urls == urls
            assert stored(cluster.url) == 3
            assert server_info(cluster.urls[0])["max_payload"] == 4096
        assert sorted(path.name for path in tmp_path.iterdir()) == ["again-0", "again-1", "again-2"]

    def test_one_server_is_no_cluster(self) -> None:
        with pytest.raises(ValueError, match="use NatsServer"):
            NatsCluster(1)

    def test_a_configuration_error_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        with pytest.raises(ServerStartError, match="unknown field"):
            NatsCluster(config="foo: 1").start()
        assert list(tmp_path.iterdir()) == []
