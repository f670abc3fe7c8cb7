"""Shared by tests of the sink."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_jetstream.sink.window import InFlight, Window
from spark_jetstream.testing import NatsServer
from tests.support.proxy import WireProxy
from tests.support.publish import Publisher
from tests.support.sinking import WINDOW, pass_ack_timeout, set_write_timing
from tests.support.streams import MakeStream, Stream


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    """A server of the module's own.

    A test that stops its server takes one from `nats_server_factory`.
    """
    with NatsServer(http_monitor=True) as running:
        yield running


@pytest.fixture
def admin(server: NatsServer) -> Iterator[Publisher]:
    """A connection to look after streams; there are none at the beginning, but one that keeps the
    account's folder.
    """
    with Publisher(server.url) as publisher:
        publisher.store = (
            server.store_dir
        )  # or a stream could begin with the messages of an earlier one
        publisher.api("STREAM.CREATE.KEPT", {"name": "KEPT", "subjects": ["kept"]})
        for name in publisher.api("STREAM.NAMES")["streams"]:
            if name != "KEPT":
                publisher.api(f"STREAM.DELETE.{name}")
        yield publisher


@pytest.fixture
def make(server: NatsServer, admin: Publisher) -> MakeStream:
    """A function that makes a stream with a short duplicate window, unless told otherwise."""

    def made(name: str = "S", **config: Any) -> Stream:
        return Stream(
            server.url, name, admin, **{"storage": "memory", "duplicate_window": WINDOW, **config}
        )

    return made


@pytest.fixture
def s(make: MakeStream) -> Stream:
    return make()


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that fails waits for the last answers, many of which never come: not for long."""
    set_write_timing(monkeypatch, last_answers=0.5)


@pytest.fixture
def never_late(monkeypatch: pytest.MonkeyPatch, proxy: WireProxy) -> None:
    """Let `ackTimeout` pass when the sink has all answers but those that `proxy` has dropped, once
    for each of these.

    With a long `ackTimeout` nothing else is sent again then, however slow the machine is.
    """
    known = 0

    def late(window: Window) -> list[InFlight]:
        nonlocal known
        lost, missing = proxy.dropped, window.unanswered
        if not missing or known + missing != lost:
            return []
        known = lost
        return window.portions

    pass_ack_timeout(monkeypatch, late)
