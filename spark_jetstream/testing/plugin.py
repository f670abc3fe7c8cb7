"""The pytest plugin: real nats-servers as fixtures.

pytest loads it only on demand: `pytest_plugins = ["spark_jetstream.testing.plugin"]` in the top
`conftest.py`, or `pytest -p spark_jetstream.testing.plugin`. An entry point would load it in every
project whose environment has this package.

All tests of a session share `nats_server` and `nats_cluster`: each test must choose its own names
of streams, and take a server from `nats_server_factory` if it stops the server. To start the shared
servers with options, override the fixture that holds them:

    @pytest.fixture(scope="session")
    def nats_server_options():
        return {"max_payload": 8 * 1024 * 1024}

Only this module of `spark_jetstream.testing` needs pytest.
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
    """Keyword arguments of `NatsServer` for `nats_server`: none, for you to override."""
    return {}


@pytest.fixture(scope="session")
def nats_cluster_options() -> dict[str, Any]:
    """Keyword arguments of `NatsCluster` for `nats_cluster`: none, for you to override."""
    return {}


@pytest.fixture(scope="session")
def nats_server(nats_server_options: dict[str, Any]) -> Iterator[NatsServer]:
    """A running `NatsServer`, one for the whole session."""
    with NatsServer(**nats_server_options) as server:
        yield server


@pytest.fixture(scope="session")
def nats_cluster(nats_cluster_options: dict[str, Any]) -> Iterator[NatsCluster]:
    """A running `NatsCluster` of three servers, one for the whole session."""
    with NatsCluster(**nats_cluster_options) as cluster:
        yield cluster


@pytest.fixture
def nats_server_factory() -> Iterator[Callable[..., NatsServer]]:
    """A function with the arguments of `NatsServer` that returns a running one.

    All are closed after the test.

    For example:

        def test_survives_a_restart(nats_server_factory):
            server = nats_server_factory(max_payload=65536)
            server.restart()
    """
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(NatsServer(**options))
