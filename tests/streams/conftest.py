"""One server for the tests of a module, with a stream that each of them finds whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_jetstream.testing import NatsCluster, NatsServer
from tests.support.client import set_timing
from tests.support.proxy import WireProxy
from tests.support.publish import Publisher
from tests.support.reading import COUNT, api, create, fill


@pytest.fixture(autouse=True)
def no_election(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No reader waits for the end of an election, unless the test has a cluster."""
    if not {"cluster", "nats_cluster"} & {*request.fixturenames}:
        set_timing(monkeypatch, election=0.01)


@pytest.fixture(scope="module")
def running() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture
def server(running: NatsServer, no_connection_left: None) -> NatsServer:
    """A server with nothing but the stream S of `COUNT` messages, on disk, that answers direct
    gets.
    """
    if not running.running:
        running.start()
    streams = {
        info["config"]["name"]: info
        for info in api(running.url, "STREAM.LIST").get("streams") or []
    }
    config = {"allow_direct": True, "storage": "file"}
    whole = {"messages": COUNT, "first_seq": 1, "last_seq": COUNT, "consumer_count": 0}
    with Publisher(running.url) as publisher:
        publisher.store = (
            running.store_dir
        )  # or a stream S could begin with the messages of an earlier one
        for name, info in streams.items():
            kept = (
                name == "S"
                and config.items() <= info["config"].items()
                and whole.items() <= info["state"].items()
            )
            if not kept:
                publisher.api(f"STREAM.DELETE.{name}")
                streams[name] = {}
    if not streams.get("S"):
        create(running.url, "S", **config)
        fill(running.url, "S", COUNT)
    return running


@pytest.fixture
def proxy(server: NatsServer) -> Iterator[WireProxy]:
    """Between the reader and the server."""
    with WireProxy(server.url) as between:
        yield between


@pytest.fixture(scope="module")
def cluster() -> Iterator[NatsCluster]:
    with NatsCluster() as running:
        yield running
