"""A server for the cases of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_jetstream.sink import ledger
from tests.support.permissions import Trial


@pytest.fixture(scope="module")
def trial(request: pytest.FixtureRequest) -> Iterator[Trial]:
    """A server with the accounts of ``CASES`` of the module, and with ``CONFIG``, if there is one."""
    with Trial(request.module.CASES, getattr(request.module, "CONFIG", "")).running() as running:
        yield running


@pytest.fixture(autouse=True)
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a task that runs again wait less for the one before it."""
    monkeypatch.setattr(ledger, "_LEASE", 0.3)
