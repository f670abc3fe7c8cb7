"""Fixtures of the tests of all ends: one server for all cases, the wire to it, and processes."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from spark_jetstream.sink.kinds.messages import MessageSink
from spark_jetstream.sink.ledger import LedgerTimes
from spark_jetstream.testing import NatsServer
from tests.points.process import Processes
from tests.points.wire import PointWire
from tests.points.writes import LEASE, Clock, World
from tests.support.client import set_timing
from tests.support.publish import Publisher
from tests.support.sinking import set_write_timing


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    # A case may take minutes, in which the connection of the administrator answers no PING.
    with NatsServer(config='ping_interval: "1h"') as running:
        yield running


@pytest.fixture
def world(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    clock = Clock()
    monkeypatch.setattr(MessageSink, "ledger_times", LedgerTimes(lease=LEASE, clock=clock))
    set_write_timing(monkeypatch, pauses=(0.0,), last_answers=0.0, clock=clock)
    # No request is sent again because the machine is slow.
    patient = {"ask_again": 300.0, "greeting_quiet": 300.0, "sign_of_life": 300.0}
    set_timing(monkeypatch, between_attempts=0.001, look_again=0.001, **patient)
    # Each of thousands of cuts would be logged, beside the counts.
    package = logging.getLogger("spark_jetstream")
    level = package.level
    package.setLevel(logging.ERROR)
    try:
        with Publisher(server.url) as admin, PointWire(server.url) as wire:
            yield World(wire, admin, Processes(wire, monkeypatch), clock)
    finally:
        package.setLevel(level)
