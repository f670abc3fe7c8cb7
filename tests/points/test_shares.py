"""Every end of a query that shares a consumer: see docs/reliability.md."""

from __future__ import annotations

import logging

import pytest

from tests.points import one_thread
from tests.points import pairs as second_ends
from tests.points.enumeration import visit_all
from tests.points.shares import Between, Sharing
from tests.points.writes import World

log = logging.getLogger(__name__)


QUICK = (Between.NOTHING, Between.RESET)
BETWEEN = [
    pytest.param(each, id=each.value, marks=() if each in QUICK else second_ends.LONG)
    for each in Between
    if second_ends.ALL or each in QUICK
]


@pytest.fixture(autouse=True)
def _in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    one_thread.shares(monkeypatch)


@pytest.mark.parametrize("pairs", second_ends.once_or_twice())
@pytest.mark.parametrize("between", BETWEEN)
def test_each_end_of_a_query_that_shares(
    world: World, request: pytest.FixtureRequest, between: Between, pairs: bool
) -> None:
    """`pairs`: the next run ends as well."""
    visited = visit_all(
        world,
        f"share, {request.node.callspec.id}",
        lambda stops: Sharing(world, stops, between=between),
        pairs=pairs,
    )
    log.warning("%s", visited)
