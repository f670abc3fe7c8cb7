"""A second writer at every request of a write: see docs/reliability.md."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.points import pairs
from tests.points.enumeration import visit_all
from tests.points.overtaken import Overtaken, Second
from tests.points.test_writes import WRITES, memory
from tests.points.writes import World

log = logging.getLogger(__name__)

#: The one that `make test` visits.
QUICK = ("exactly-once", Second.ATTEMPT, True)


def _cases() -> Iterator[Any]:
    for name, second, forgets in itertools.product(WRITES, Second, (False, True)):
        has_ledger = name.startswith("exactly-once")
        if (forgets or second is Second.QUERY) and not has_ledger:
            continue
        if forgets and second is Second.QUERY:
            continue  # the ids of another stream
        quick = (name, second, forgets) == QUICK
        if quick or pairs.ALL:
            named = f"{name}, {second.value}, {memory(forgets)}"
            yield pytest.param(name, second, forgets, id=named, marks=() if quick else pairs.LONG)


@pytest.mark.parametrize(("name", "second", "forgets"), list(_cases()))
def test_a_second_writer_at_each_request(
    world: World, request: pytest.FixtureRequest, name: str, second: Second, forgets: bool
) -> None:
    """`forgets`: the stream has lost all message ids when the first writer goes on."""
    visited = visit_all(
        world,
        request.node.callspec.id,
        lambda stops: Overtaken(world, WRITES[name], stops, second=second, forgets=forgets),
        within="task" if second is Second.ATTEMPT else "",
    )
    log.warning("%s", visited)
