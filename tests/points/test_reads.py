"""Every end of a query that keeps its position on the server: see docs/reliability.md."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from spark_jetstream.protocol.features import CONSUMER_RESET
from spark_jetstream.source.durable import consumer_state
from tests.points import one_thread
from tests.points import pairs as second_ends
from tests.points.enumeration import visit_all
from tests.points.reads import MESSAGES, Reading
from tests.points.writes import World
from tests.support.features import for_none

log = logging.getLogger(__name__)

RETENTIONS = ("limits", "interest", "workqueue")


def _cases() -> Iterator[Any]:
    for retention, shared, resets in itertools.product(RETENTIONS, (False, True), (True, False)):
        named = f"{retention}, {_whose(shared)}, {_how(resets)}"
        marks = () if resets and not shared else pytest.mark.full
        yield pytest.param(retention, shared, resets, False, id=named, marks=marks)
        if second_ends.VISITED and not shared:
            named += ", twice"
            yield pytest.param(retention, False, resets, True, id=named, marks=second_ends.MARKS)


def _whose(shared: bool) -> str:
    return "shared with another client" if shared else "alone"


def _how(resets: bool) -> str:
    return "with CONSUMER.RESET" if resets else "without CONSUMER.RESET"


@pytest.mark.parametrize(("retention", "shared", "resets", "pairs"), list(_cases()))
def test_each_end_of_a_query(
    world: World,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    retention: str,
    shared: bool,
    resets: bool,
    pairs: bool,
) -> None:
    """`resets`: the server can move a consumer (CONSUMER.RESET).

    `pairs`: the next run ends as well, and has one batch less to read.
    """
    if not resets:
        monkeypatch.setattr(consumer_state, "CONSUMER_RESET", for_none(CONSUMER_RESET))
    one_thread.commits(monkeypatch)
    messages = 2 if pairs else MESSAGES
    visited = visit_all(
        world,
        f"durable, {request.node.callspec.id}",
        lambda stops: Reading(world, stops, retention=retention, shared=shared, messages=messages),
        pairs=pairs,
    )
    log.warning("%s", visited)
