"""The model of the fault suite finds each thing that must not happen, and nothing else."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.losses import LosingWorld
from tests.chaos.model import (
    Loss,
    Step,
    counted,
    false_alarms,
    repeatable,
    unreported,
    violations,
    whole_copies,
    whole_groups,
)
from tests.chaos.scenario import LEVELS, Scenario
from tests.model.losses import names_loss

SENT = ["a", "b", "c", "d"]
WENT = (
    "spark_jetstream.errors.DataLossError: messages 3 to 4 of stream A0 went before being read "
    "(likely purged)"
)
REFUSED = (
    "spark_jetstream.errors.DeliveryError: partition 0 of batch 12 of q was written before with "
    "other rows"
)
LOST = Loss("A0", gone=frozenset("cd"), loud=frozenset("d"), may=True)
WHOLE = Loss("A0")


def rows(bodies: str) -> Counter[str]:
    return Counter(bodies)


@pytest.mark.parametrize("level", [None, *LEVELS])
@pytest.mark.parametrize(
    ("bodies", "excused", "again", "wrong"),
    [
        ("abc", "", "", []),
        ("abcd", "", "", []),  # the server may have stored it without an answer
        ("ab", "", "", ["1 missing, such as ['c']"]),
        ("ab", "c", "", []),
        ("a", "c", "", ["1 missing, such as ['b']"]),
        ("abcx", "", "", ["1 never sent, such as ['x']"]),
        ("aabc", "", "a", []),
        ("aabbc", "", "a", ["1 repeated, such as ['b']"]),
        ("aabb", "", "", ["1 missing, such as ['c']", "2 repeated, such as ['a', 'b']"]),
    ],
)
def test_rows(level: str | None, bodies: str, excused: str, again: str, wrong: list[str]) -> None:
    if level == "at-least-once":
        wrong = [text for text in wrong if "repeated" not in text]
    assert violations("abc", SENT, rows(bodies), level, excused=excused, again=again) == wrong


@pytest.mark.parametrize(
    ("stream", "found"),
    [
        ("a/0 a/1 b/0 b/1 a/0 a/1", "a a b"),
        ("a/0 b/0 b/1", "a/0 b"),  # a part alone
        ("a/0 b/0 a/1 b/1", "a/0 a/1 b/0 b/1"),  # not side by side
        ("a/1 a/0", "a/0 a/1"),
        ("", ""),
    ],
)
def test_groups_in_a_stream(stream: str, found: str) -> None:
    assert whole_groups(stream.split(), 2) == Counter(found.split())


@pytest.mark.parametrize(
    ("stream", "exact", "found"),
    [
        ("aabb", True, "ab"),
        ("aab", True, ["a", "b (1 of 2)"]),
        ("aaab", True, ["a", "a (1 of 2)", "b (1 of 2)"]),
        ("aaaab", True, ["a", "a", "b (1 of 2)"]),
        ("aaab", False, "a"),  # b is missing
        ("", True, ""),
    ],
)
def test_copies_in_a_stream(stream: str, exact: bool, found: list[str]) -> None:
    assert whole_copies(rows(stream), 2, exact=exact) == Counter(found)


def test_messages_in_counters() -> None:
    values = {"A0 1": "10001", "A0 2": "200", "A0 3": "0"}
    assert counted(values) == {"A0 1 0": 1, "A0 1 2": 1, "A0 2 1": 2}


@pytest.mark.parametrize(
    ("errors", "warnings", "level", "own_ids", "repeated"),
    [
        ([], [], None, False, "t"),
        ([], [], "at-least-once", False, "t"),
        ([], [], "deduplicated", False, "at"),
        ([], [], "deduplicated", True, "t"),
        ([], [], "exactly-once", False, "t"),
        ([REFUSED], [], "exactly-once", False, "at"),
        ([], [f"Caused by: {REFUSED}"], "exactly-once", False, "at"),  # of a task, in the log
        ([WENT], [], "exactly-once", False, "t"),
    ],
)
def test_repeatable_returns_the_rows_that_a_sink_may_store_again(
    errors: list[str], warnings: list[str], level: str | None, own_ids: bool, repeated: str
) -> None:
    step = Step("x", errors=errors, warnings=warnings, again=frozenset("a"), twice=frozenset("t"))
    # A refusal counts for its own step alone.
    other = Step("y", again=frozenset("b")) if level == "exactly-once" else Step("y")
    assert repeatable([step, other], level, own_ids=own_ids) == set(repeated)


@pytest.mark.parametrize(
    ("loss", "bodies", "silent"),
    [
        (LOST, "abcd", False),  # read in time
        (LOST, "abd", False),  # of what the reader cannot see
        (LOST, "abc", True),
        (Loss("A0", must=True), "abcd", True),
        (WHOLE, "ab", False),
    ],
)
def test_a_loss_must_be_reported(loss: Loss, bodies: str, silent: bool) -> None:
    reports = {
        "errors": Step("x", [loss], errors=[WENT]),
        "warnings": Step("x", [loss], warnings=[WENT]),
        "of another stream": Step(
            "x", [loss], errors=[WENT.replace("A0", "A1")], warnings=[WENT.replace("A0", "A")]
        ),
    }
    for how, accepts, enough in (
        ("errors", False, True),
        ("errors", True, False),
        ("warnings", True, True),
        ("warnings", False, False),
        ("of another stream", False, False),
        ("of another stream", True, False),
    ):
        assert bool(unreported(reports[how], rows(bodies), accepts=accepts)) == (
            silent and not enough
        )


def test_a_query_fails_with_one_of_several_losses() -> None:
    losses = [LOST, Loss("A1", must=True)]
    other = WENT.replace("A0", "A1")
    assert (
        unreported(Step("x", losses, errors=[WENT], warnings=[other]), rows("abc"), accepts=False)
        == []
    )
    assert len(unreported(Step("x", losses, errors=[WENT]), rows("abc"), accepts=False)) == 1
    assert (
        len(unreported(Step("x", losses, warnings=[WENT, other]), rows("abc"), accepts=False)) == 2
    )


@pytest.mark.parametrize(
    ("step", "accepts", "level", "alarms"),
    [
        (Step("x", [LOST], errors=[WENT]), False, None, 0),
        (Step("x", [LOST], errors=[WENT]), True, None, 1),  # it was told to go on
        (Step("x", [LOST], warnings=[WENT]), True, None, 0),
        (Step("x", [WHOLE], errors=[WENT]), False, None, 1),
        (Step("x", [WHOLE], warnings=[WENT]), True, None, 1),
        (Step("x", [WHOLE, LOST], warnings=[WENT]), True, None, 0),
        (
            Step("x", [WHOLE], errors=["spark_jetstream.errors.OutageError: no answer"]),
            False,
            None,
            1,
        ),
        (
            Step("x", [LOST], errors=["spark_jetstream.errors.OutageError: no answer"]),
            False,
            None,
            1,
        ),
        (
            Step(
                "x",
                [WHOLE],
                errors=["spark_jetstream.source.offsets.OffsetError: cut"],
                damaged=True,
            ),
            False,
            None,
            0,
        ),
        (Step("x", [LOST], errors=[REFUSED], again=frozenset("a")), False, "exactly-once", 0),
        (Step("x", [LOST], errors=[REFUSED]), False, "exactly-once", 1),
        (Step("x", [LOST], errors=[REFUSED], again=frozenset("a")), False, "deduplicated", 1),
    ],
)
def test_nothing_healthy_may_fail(
    step: Step, accepts: bool, level: str | None, alarms: int
) -> None:
    assert len(false_alarms(step, accepts=accepts, level=level)) == alarms


def test_sentences_of_losses() -> None:
    for line in (
        "messages 11 to 24 of stream A0 went before being read (likely purged)",
        "stream A0 was deleted and created again (at 2026-01-01T00:00:00Z) while",
        "stream A0 was deleted; failOnDataLoss is false",
        "stream A0 lost its tail: it was read up to sequence 10, and now ends at 6",
        "3 of 500 messages of stream A0, sequences 1 to 500, were removed (purged) after this read "
        "was planned",
        "cannot read stream A0 (option stream): stream not found",
    ):
        assert names_loss(line, "A0"), line
        assert not names_loss(line, "A"), line
    assert not names_loss("reading stream A0 with consumers", "A0")


def test_scenarios_of_losses() -> None:
    scenarios = [Scenario.of(seed, 30) for seed in range(1, 40)]
    assert [scenario.seed for scenario in scenarios if scenario.losing] == list(range(3, 40, 3))
    losing = [scenario for scenario in scenarios if scenario.losing]
    drawn = {fault.name for scenario in losing for fault in scenario.faults}
    assert all(callable(getattr(LosingWorld, name)) for name in drawn)
    # Each twice in 30, and none in the runs that must lose nothing.
    assert {
        Counter(fault.name for fault in scenario.faults)[name]
        for scenario in losing
        for name in drawn
    } == {2}
    others = {
        fault.name for scenario in scenarios if not scenario.losing for fault in scenario.faults
    }
    assert drawn.isdisjoint(others)
    assert {query.accepts for scenario in losing for query in scenario.queries} == {True, False}
    assert {
        query.accepts for scenario in scenarios if not scenario.losing for query in scenario.queries
    } == {False}
