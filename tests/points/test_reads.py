"""Every end of a query that keeps its position on the server: see docs/reliability.md."""

from __future__ import annotations

import logging

import pytest

from spark_jetstream.protocol.features import CONSUMER_RESET
from spark_jetstream.source.durable import consumer_state
from spark_jetstream.source.durable.lazy_commit import LazyCommit
from tests.points.enumeration import visit_all
from tests.points.reads import Reading
from tests.points.writes import World
from tests.support.features import for_none

log = logging.getLogger(__name__)


@pytest.mark.parametrize("resets", [True, pytest.param(False, marks=pytest.mark.full)])
@pytest.mark.parametrize("shared", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize("retention", ["limits", "interest", "workqueue"])
def test_each_end_of_a_query(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    retention: str,
    shared: bool,
    resets: bool,
) -> None:
    """`resets`: the server can move a consumer (CONSUMER.RESET)."""
    if not resets:
        monkeypatch.setattr(consumer_state, "CONSUMER_RESET", for_none(CONSUMER_RESET))
    # Each commit ends within its call, so that no other request comes between those of a commit.
    defaults = LazyCommit.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "wait", 300.0)
    whose = "shared with another client" if shared else "alone"
    how = "with CONSUMER.RESET" if resets else "without CONSUMER.RESET"
    visited = visit_all(
        world,
        f"durable, {retention}, {whose}, {how}",
        lambda stops: Reading(world, stops, retention=retention, shared=shared),
    )
    log.warning("%s", visited)
