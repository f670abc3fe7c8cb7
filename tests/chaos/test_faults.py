"""No message is lost and none comes twice, whatever goes wrong: faults that a seed chooses, under load.

    make chaos                                  some three minutes
    make chaos CHAOS_FAULTS=500 CHAOS_SEED=7    as many faults as it says, from this seed on

A run prints its seed, which repeats it: the same servers, queries and faults in the same order. When exactly a fault
hits a query, the machine decides.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.losses import LosingWorld
from tests.chaos.scenario import Scenario
from tests.chaos.world import World

log = logging.getLogger(__name__)

SEED = int(os.environ.get("CHAOS_SEED", "1"))
FAULTS = int(os.environ.get("CHAOS_FAULTS", "20"))
#: Of one run; then other servers and queries have their turn.
MOST = 7
LONGEST = float(os.environ.get("CHAOS_LONGEST", "8"))  # seconds


def scenarios() -> Iterator[Scenario]:
    """Runs with so many faults together."""
    for number, begun in enumerate(range(0, FAULTS, MOST)):
        yield Scenario.of(SEED + number, min(MOST, FAULTS - begun), longest=LONGEST)


def test_a_seed_makes_the_same_scenario_each_time() -> None:
    assert Scenario.of(7, 20) == Scenario.of(7, 20)
    assert len({Scenario.of(seed, 20) for seed in range(20)}) == 20


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", list(scenarios()), ids=lambda scenario: f"seed-{scenario.seed}")
def test_nothing_is_lost_and_nothing_comes_twice(scenario: Scenario, tmp_path: Path) -> None:
    log.warning("%s", scenario)
    with (LosingWorld if scenario.losing else World)(scenario, tmp_path / "job") as world:
        for number, fault in enumerate(scenario.faults, start=1):
            log.warning("%d: %s", number, fault)
            world.run(fault)
        wrong = world.violations()
        stored = sum(map(len, world.load.stored.values()))
        log.warning(
            "%s: %d messages, %s, %d restarts", scenario, stored, dict(world.applied), len(world.job.failures())
        )
    assert wrong == [], f"{scenario}\n{world.job.log[-4000:]}"
