"""The tests of this folder start a JVM each time, so they run after all others."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move what is in this folder to the end; the order is kept otherwise."""
    items.sort(key=lambda item: HERE in item.path.parents)
