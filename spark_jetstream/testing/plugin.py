"""The pytest plugin: real nats-servers as fixtures.

One for all tests::

    def test_orders_arrive(spark, nats_server):
        source = spark.read.format("jetstream").option("servers", nats_server.url)

All tests of a session share `nats_server` and `nats_cluster`: give streams names of their own in each test,
and take a server from `nats_server_factory` where a test stops it. To start the shared ones with options,
override the fixture that holds them::

    @pytest.fixture(scope="session")
    def nats_server_options():
        return {"max_payload": 8 * 1024 * 1024}

This module alone of `spark_jetstream.testing` needs pytest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_jetstream.testing.cluster import NatsCluster
from spark_jetstream.testing.server import NatsServer


@pytest.fixture(scope="session")
def nats_server_options() -> dict[str, Any]:
    """Keyword arguments of `NatsServer` for `nats_server`; none unless you override this fixture."""
    return {}


@pytest.fixture(scope="session")
def nats_cluster_options() -> dict[str, Any]:
    """Keyword arguments of `NatsCluster` for `nats_cluster`; none unless you override this fixture."""
    return {}


@pytest.fixture(scope="session")
def nats_server(nats_server_options: dict[str, Any]) -> Iterator[NatsServer]:
    """A running `NatsServer`, one for the whole session."""
    with NatsServer(**nats_server_options) as server:
        yield server


@pytest.fixture(scope="session")
def nats_cluster(nats_cluster_options: dict[str, Any]) -> Iterator[NatsCluster]:
    """A running `NatsCluster` of three, one for the session, started when the first test asks for it."""
    with NatsCluster(**nats_cluster_options) as cluster:
        yield cluster


@pytest.fixture
def nats_server_factory() -> Iterator[Callable[..., NatsServer]]:
    """A function with the arguments of `NatsServer` that returns it running; all are closed after the test.

    For example::

    def test_survives_a_restart(nats_server_factory):
        server = nats_server_factory(max_payload=65536)
        server.restart()
    """
    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> NatsServer:
            return stack.enter_context(NatsServer(**options))

        yield make
