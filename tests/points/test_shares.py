"""Every end of a query that shares a consumer: see docs/reliability.md."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import pytest

from spark_jetstream.source.shared.keeping import Keeping
from spark_jetstream.source.shared.planner import SharedPlanner
from tests.points import pairs as second_ends
from tests.points.enumeration import visit_all
from tests.points.shares import Between, Sharing
from tests.points.writes import World

log = logging.getLogger(__name__)


#: Each takes seconds.
QUICK = (Between.NOTHING, Between.RESET)
BETWEEN = [
    pytest.param(each, id=each.value, marks=() if each in QUICK else pytest.mark.full)
    for each in Between
]


@pytest.fixture(autouse=True)
def _in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pull waits for its messages, and signs of life are sent in the call that asks for them."""
    defaults = SharedPlanner.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "wait", 300.0)
    keep = Keeping.keep

    def keep_at_once(
        keeping: Keeping, subjects: Sequence[str], lapse: float, delivered: float | None = None
    ) -> None:
        # The thread then has nothing to send for a quarter of an hour.
        keep(keeping, subjects, lapse, time.monotonic())
        if delivered is None:
            keeping.send_signs()

    monkeypatch.setattr(Keeping, "keep", keep_at_once)


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
