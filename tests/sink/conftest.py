"""What tests of the sink share."""

from __future__ import annotations

import pytest

from spark_jetstream.sink import publisher


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that fails waits for the last answers, many of which never come: not for long."""
    monkeypatch.setattr(publisher, "_LAST_ANSWERS", 0.5)
