"""What tests of the sink share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_jetstream.sink import publisher
from spark_jetstream.testing import NatsServer
from tests.support.proxy import WireProxy


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that fails waits for the last answers, many of which never come: not for long."""
    monkeypatch.setattr(publisher, "_LAST_ANSWERS", 0.5)


@pytest.fixture
def proxy(nats_server: NatsServer) -> Iterator[WireProxy]:
    """A wire to the shared server that a test can break."""
    with WireProxy(nats_server.url) as running:
        yield running
