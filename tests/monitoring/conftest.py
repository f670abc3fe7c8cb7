"""Fixtures of the tests of monitoring."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.monitoring.collector import Collector, collecting


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector
