"""Queries whose requests follow one another, as threads of their own would not have them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from spark_jetstream.source.durable.lazy_commit import LazyCommit
from spark_jetstream.source.shared.keeping import Keeping
from spark_jetstream.source.shared.planner import SharedPlanner

_LONG = 300.0  # seconds that do not pass


def commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each commit end within its call, so that no other request comes between its own."""
    defaults = LazyCommit.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "wait", _LONG)


def shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a pull wait for its messages, and send signs of life in the call that asks for them."""
    defaults = SharedPlanner.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "wait", _LONG)
    keep = Keeping.keep

    def keep_at_once(
        keeping: Keeping, subjects: Sequence[str], lapse: float, delivered: float | None = None
    ) -> None:
        # The thread then has nothing to send for a quarter of an hour.
        keep(keeping, subjects, lapse, time.monotonic())
        if delivered is None:
            keeping.send_signs()

    monkeypatch.setattr(Keeping, "keep", keep_at_once)
