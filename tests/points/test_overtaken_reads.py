"""A second run or reader at every request of a query: see docs/reliability.md."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from spark_jetstream.protocol.features import CONSUMER_RESET
from spark_jetstream.source.durable import consumer_state
from tests.points import one_thread, pairs
from tests.points.enumeration import visit_all
from tests.points.overtaken_reads import OvertakenReading, OvertakenSharing, SecondReader
from tests.points.test_reads import RETENTIONS
from tests.points.writes import World
from tests.support.features import for_none

log = logging.getLogger(__name__)


@pytest.fixture(autouse=True)
def _in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    one_thread.commits(monkeypatch)
    one_thread.shares(monkeypatch)


def _cases() -> Iterator[Any]:
    for retention, resets in itertools.product(RETENTIONS, (True, False)):
        named = f"{retention}, {'with' if resets else 'without'} CONSUMER.RESET"
        quick = resets and retention == "interest"
        if quick or pairs.ALL:
            yield pytest.param(retention, resets, id=named, marks=() if quick else pairs.LONG)


@pytest.mark.parametrize(("retention", "resets"), list(_cases()))
def test_another_run_at_each_request(
    world: World,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    retention: str,
    resets: bool,
) -> None:
    if not resets:
        monkeypatch.setattr(consumer_state, "CONSUMER_RESET", for_none(CONSUMER_RESET))
    visited = visit_all(
        world,
        f"durable, {request.node.callspec.id}, another run",
        lambda stops: OvertakenReading(world, stops, retention=retention),
    )
    log.warning("%s", visited)


@pytest.mark.parametrize("second", SecondReader, ids=lambda second: second.value)
def test_a_second_reader_at_each_request(world: World, second: SecondReader) -> None:
    visited = visit_all(
        world,
        f"share, {second.value}",
        lambda stops: OvertakenSharing(world, stops, second=second),
    )
    log.warning("%s", visited)
