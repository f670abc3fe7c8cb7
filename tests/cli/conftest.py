"""What tests of commands share: no settings of whoever runs them, and names of streams that are gone after a test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.testing import NatsServer
from tests.support.command import Ran, run_command, succeed
from tests.support.publish import Publisher

Command = Callable[..., Ran]

_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def without_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither variables nor contexts of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith("NATS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def admin(nats_server: NatsServer) -> Iterator[JetStreamAdmin]:
    """Administers the shared server."""
    with JetStreamAdmin(servers=nats_server.url) as admin:
        yield admin


@pytest.fixture
def name(publisher: Publisher) -> Iterator[str]:
    """A name for a stream; what has it, or begins with it, is gone after the test."""
    chosen = f"COMMAND{next(_numbers)}x"
    yield chosen
    for each in publisher.api("STREAM.NAMES").get("streams") or []:
        if each.startswith(chosen):
            publisher.api(f"STREAM.DELETE.{each}")


@pytest.fixture
def run(nats_server: NatsServer) -> Command:
    """`run_command` on the shared server."""
    return partial(run_command, url=nats_server.url)


@pytest.fixture
def do(nats_server: NatsServer) -> Command:
    """`succeed` on the shared server."""
    return partial(succeed, url=nats_server.url)
