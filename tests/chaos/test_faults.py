"""No message is lost and none comes twice, whatever goes wrong: faults that a seed chooses, under
load.

    make chaos                                  some three minutes
    make chaos CHAOS_FAULTS=500 CHAOS_SEED=7    as many faults as it says, from this seed on

A run prints its seed, which repeats it: the same servers, queries and faults in the same order.
When exactly a fault hits a query, the machine decides. docs/reliability.md has the faults, and what
is checked.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from spark_jetstream.options import SinkOptions, SourceOptions
from tests.chaos.losses import LosingWorld
from tests.chaos.model import unjustified
from tests.chaos.scenario import (
    FAULTS,
    LEVELS,
    NEWEST,
    ROWS,
    SOURCES,
    SPREADS,
    Fault,
    Query,
    Scenario,
)
from tests.chaos.world import OLDER, World, function_of
from tests.support.project import ROOT
from tests.support.servers import version_of

log = logging.getLogger(__name__)

SEED = int(os.environ.get("CHAOS_SEED", "1"))
COUNT = int(os.environ.get("CHAOS_FAULTS", "20"))
#: Of one run; then other servers and queries have their turn.
MOST = 7
LONGEST = float(os.environ.get("CHAOS_LONGEST", "8"))  # seconds, of a server that is frozen
#: A fault, or several, as the page has them.
NAME = re.compile(r"`([a-z]+(?:_[a-z]+)+)`")


#: Each moment when a query lets go of messages, or takes its consumer over; seeds seldom choose
#: them.
LETTING_GO = Scenario(
    seed=0,
    servers=1,
    executors=False,
    queries=(
        Query("A", "interest"),
        Query("B", "queue"),
        Query("C", "shared", "exactly-once", writes="groups"),
    ),
    faults=tuple(
        Fault("planners_killed_committing", 0.0, True, target)
        for target in (0, 4, 2, 6, 10, 14, 12, 16, 17)
    ),
)


#: Rows that come in other partitions again and again; seeds seldom choose that for a query that has
#: stored some rows.
LAYOUTS = Scenario(
    seed=-1,
    servers=1,
    executors=False,
    queries=(
        Query("A", "consumer", "exactly-once", spread="copied"),
        Query("B", "files", "exactly-once", writes="counters", spread="shuffled"),
        Query("C", "auto", "deduplicated", writes="groups", spread="united", origins=True),
    ),
    faults=tuple(Fault("layout_changed", 0.0, True, target) for target in (0, 1, 2, 5)),
)


#: A cluster whose servers begin as older ones. After the first fault one of them is a present one,
#: after `rolling_update` all.
UPDATED = Scenario(
    seed=-2,
    servers=3,
    executors=False,
    queries=(
        Query("A", "interest"),
        Query("B", "auto"),
        Query("C", "queue", "exactly-once"),
    ),
    faults=(
        Fault("leader_shut_down", 2.0, True, 0),
        Fault("workers_killed", 0.0, True, 0),
        Fault("leader_killed", 2.0, True, 0),
        Fault("driver_killed_between_commits", 0.0, True, 2),
        Fault("leader_steps_down", 0.0, True, 1),
        Fault("leader_frozen", 6.0, True, 2),
        Fault("planners_killed", 0.0, True, 2),
        Fault("rolling_update", 0.0, True, 0),
        Fault("options_changed", 0.0, True, 3),
        Fault("leader_killed", 2.0, True, 2),
    ),
)


def scenarios() -> Iterator[Scenario]:
    """Runs that have the faults between them, and some with faults of their own."""
    yield LETTING_GO
    yield LAYOUTS
    if OLDER:
        yield UPDATED
    for number, begun in enumerate(range(0, COUNT, MOST)):
        yield Scenario.of(SEED + number, min(MOST, COUNT - begun), longest=LONGEST)


def test_a_seed_makes_the_same_scenario_each_time() -> None:
    assert Scenario.of(7, 20) == Scenario.of(7, 20)
    assert len({Scenario.of(seed, 20) for seed in range(20)}) == 20


def test_every_fault_can_happen_and_every_kind_of_query_is_tried() -> None:
    chosen = [Scenario.of(seed, 20) for seed in range(200)]
    assert {fault.name for scenario in chosen for fault in scenario.faults} == FAULTS
    assert all(hasattr(LosingWorld, name) or callable(function_of(name)) for name in FAULTS)
    assert {query.kind for scenario in chosen for query in scenario.queries} == SOURCES.keys()
    sinks = {scenario.queries[-1] for scenario in chosen}
    assert {(query.writes, query.level, query.own_ids) for query in sinks} == {
        *product(ROWS, LEVELS, (False, True))
    }
    assert {(query.spread, query.level) for query in sinks} == {*product(SPREADS, LEVELS)}
    dead = {(query.writes, query.level) for query in sinks if query.dead_letters}
    assert dead == {*product(("plain", "routed"), LEVELS)}


def test_a_scenario_leaves_out_what_its_server_does_not_know() -> None:
    chosen = [Scenario.of(seed, 20) for seed in range(200)]
    assert [scenario.on(NEWEST) for scenario in chosen] == chosen
    for version, lacks in (((2, 11, 0), {"counters", "groups"}), ((2, 10, 0), {"direct", "queue"})):
        queries = [query for scenario in chosen for query in scenario.on(version).queries]
        assert lacks.isdisjoint({word for query in queries for word in (query.kind, query.writes)})
    reads = {change.get("readWith") for query in queries for change in query.changes()}
    assert reads == {None, "consumer", "auto"}


def test_the_page_has_every_fault_and_every_kind_of_query() -> None:
    """docs/reliability.md explains each fault, source and sink, names no other, and each fault
    tests a promise.
    """
    page = (ROOT / "docs/reliability.md").read_text()
    run, faults, promises = (
        page.split(f"\n## {title}")[1].split("\n## ")[0]
        for title in ("Steps of a run", "Faults", "Promises")
    )
    sources, levels, rows, spreads = (
        re.findall(r"`([a-z-]+)`", "".join(re.findall(r"^\|([^|]*)", table, re.MULTILINE)))
        for table in run.split("\n\n|")[1:]
    )
    assert [{*sources}, {*levels}, {*rows}] == [SOURCES.keys(), LEVELS.keys(), ROWS.keys()]
    assert spreads == [*SPREADS]
    # The names are in the first column of the one, and in the last column of the other.
    explained = {
        name
        for row in re.findall(r"^\|([^|]*)", faults, re.MULTILINE)
        for name in NAME.findall(row)
    }
    named = {
        name
        for row in re.findall(r"([^|]*)\|$", promises, re.MULTILINE)
        for name in NAME.findall(row)
    }
    assert explained == named == FAULTS


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("writes", ROWS)
def test_every_change_of_options_has_a_meaning(kind: str, level: str, writes: str) -> None:
    query = Query("C", kind, level, own_ids=True, dead_letters=True, writes=writes)
    for changed in (None, *range(len(query.changes()))):
        options = query.options("nats://127.0.0.1:4222", changed)
        sink = {
            name.removeprefix("sink."): value
            for name, value in options.items()
            if name.startswith("sink.")
        }
        source = {
            name: value
            for name, value in options.items()
            if not name.startswith(("sink.", "select", "spread"))
        }
        if kind != "files":
            SourceOptions.from_spark(source, streaming=True)
        SinkOptions.from_spark(sink, streaming=True)


def test_a_query_may_fail_of_a_full_disk_and_of_nothing_else() -> None:
    full = (
        "ApiError: cannot remove what was committed from stream A0: 1.blk: file too large (code "
        "500, error 10051)"
    )
    counts = "ProtocolError: cannot read stream A0: the server's reply makes no sense: %s"
    held, other = (
        counts % why
        for why in ('640 messages and "0" deleted ones in the sequences 1 to 2', "no sequence")
    )
    assert unjustified([full, held, other], {"disk_full"}) == [other]
    assert unjustified([held], {"server_killed"}) == [held]
    assert unjustified([full, "OutageError: gone"], {"server_killed"}) == [
        full,
        "OutageError: gone",
    ]
    assert unjustified(["OutageError: gone"], {"disk_full"}) == ["OutageError: gone"]


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "scenario", list(scenarios()), ids=lambda scenario: f"seed-{scenario.seed}"
)
def test_nothing_is_lost_and_nothing_comes_twice(scenario: Scenario, tmp_path: Path) -> None:
    scenario = scenario.on(version_of(OLDER))
    log.warning("%s", scenario)
    with (LosingWorld if scenario.losing else World)(scenario, tmp_path / "job") as world:
        for number, fault in enumerate(scenario.faults, start=1):
            log.warning("%d: %s", number, fault)
            world.run(fault)
        wrong = world.violations()
        stored = sum(map(len, world.load.stored.values()))
        restarts, returned = len(world.job.failures()), world.clients.returned
        seen = (
            f"{stored} messages, {dict(world.applied)}, {restarts} restarts, {returned} streams "
            "that came again"
        )
        log.warning("%s: %s", scenario, seen)
    assert wrong == [], "\n".join([str(scenario), world.job.log[-4000:], *wrong])
