"""What tests of the sink share."""

from __future__ import annotations

import math

import pytest

from spark_jetstream.sink import publisher
from tests.support.proxy import WireProxy


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that fails waits for the last answers, many of which never come: not for long."""
    monkeypatch.setattr(publisher, "_LAST_ANSWERS", 0.5)


@pytest.fixture
def never_late(monkeypatch: pytest.MonkeyPatch, proxy: WireProxy) -> None:
    """Let `ackTimeout` pass when the sink has all answers but those that `proxy` has dropped, once for each of these.

    With a long `ackTimeout` nothing else is sent again then, however slow the machine is.
    """
    resend_due = publisher.Publisher._resend_due
    known = 0

    def pass_by(self: publisher.Publisher) -> None:
        nonlocal known
        lost, left = proxy.dropped, sum(portion.left for portion in self._portions)
        if left and known + left == lost:
            known = lost
            for portion in self._portions:
                portion.sent = -math.inf
        resend_due(self)

    monkeypatch.setattr(publisher.Publisher, "_resend_due", pass_by)
