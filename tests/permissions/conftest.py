"""What the cases of all modules have in common."""

import pytest

from spark_jetstream.sink import ledger


@pytest.fixture(autouse=True)
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a task that runs again wait less for the one before it."""
    monkeypatch.setattr(ledger, "_LEASE", 0.3)
