"""Every end of a write: see docs/reliability.md."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.points import pairs as second_ends
from tests.points.enumeration import visit_all
from tests.points.writes import (
    Check,
    History,
    World,
    Write,
    all_objects,
    each_once,
    last_values,
    none_lost,
    once_if_remembered,
    whole_groups,
    whole_objects,
)
from tests.support.keyed import CONFIG
from tests.support.sinking import batch

log = logging.getLogger(__name__)


def portions(*sizes: int, first: int = 1) -> Callable[[str], list[pa.RecordBatch]]:
    """Portions of these sizes, at two subjects; each row has its number as payload."""

    def make(name: str) -> list[pa.RecordBatch]:
        made = []
        number = first
        for size in sizes:
            rows = range(number, number + size)
            subjects = [f"{name.lower()}.{'ab'[row % 2]}" for row in rows]
            made.append(batch(data=[f"{row}".encode() for row in rows], subject=subjects))
            number += size
        return made

    return make


def in_portions(*columns: dict[str, list[Any]]) -> Callable[[str], list[pa.RecordBatch]]:
    """Portions with these columns; `{subject}` in a text begins the subjects of the case."""

    def make(name: str) -> list[pa.RecordBatch]:
        return [
            batch(**{column: _filled(values, name) for column, values in portion.items()})
            for portion in columns
        ]

    return make


def _filled(values: list[Any], name: str) -> list[Any]:
    subject = name.lower()
    return [value.format(subject=subject) if isinstance(value, str) else value for value in values]


GROUPS = in_portions(
    {
        "data": [b"1", b"2", b"3"],
        "subject": ["{subject}.a", "{subject}.b", "{subject}.c"],
        "atomic_group": ["g", "g", None],
    },
    {
        "data": [b"4", b"5"],
        "subject": ["{subject}.a", "{subject}.b"],
        "atomic_group": ["h", "h"],
    },
)
# One portion: nobody owns the order of an answer and of the next portion.
DEAD_LETTERS = in_portions(
    {
        "data": [b"1", b"2", b"3", b"4"],
        "subject": ["{subject}.a", "{subject}.*", "{subject}.b", "{subject}.c"],
        # The sink refuses the second row, and the server the third.
        "ttl": [None, None, "0s", None],
    },
)
LATER = "@at 2199-01-01T00:00:00Z"
SCHEDULES = in_portions(
    {
        "data": [b"1", b"2"],
        "subject": ["{subject}.at.1", "{subject}.a"],
        "schedule": [LATER, None],
        "schedule_target": ["{subject}.due", None],
    },
    {
        "data": [b"3"],
        "subject": ["{subject}.at.3"],
        "schedule": [LATER],
        "schedule_target": ["{subject}.due"],
    },
)
TO = {"stream": "{name}"}
LEVELS: dict[str, Check] = {
    "exactly-once": each_once,
    "deduplicated": once_if_remembered,
    "at-least-once": none_lost,
}
WRITES = {
    level: Write([portions(2, 2)], check, {**TO, "delivery": level})
    for level, check in LEVELS.items()
}
for level in ("exactly-once", "deduplicated"):
    WRITES |= {
        f"{level}, groups": Write(
            [GROUPS],
            LEVELS[level],
            {**TO, "delivery": level},
            {"allow_atomic": True},
            check_end=whole_groups,
        ),
        f"{level}, dead letters": Write(
            [DEAD_LETTERS],
            LEVELS[level],
            {"delivery": level, "deadLetterSubject": "{subject}.dead"},
            {"allow_msg_ttl": True},
        ),
        f"{level}, schedules": Write(
            [SCHEDULES],
            LEVELS[level],
            {**TO, "delivery": level},
            {"allow_msg_schedules": True, "allow_msg_ttl": True},
        ),
    }
WRITES["exactly-once, two tasks"] = Write(
    [portions(1, 1), portions(1, 1, first=3)], each_once, {**TO, "delivery": "exactly-once"}
)
WRITES["exactly-once, equal rows"] = Write(
    [portions(1, 1), portions(1, first=2)], each_once, {**TO, "delivery": "exactly-once"}
)
# A task ends when the others have done nothing yet, or everything.
for order in ((0, 1, 2), (2, 1, 0)):
    backwards = ", the last one first" if order[0] else ""
    WRITES[f"exactly-once, three tasks{backwards}"] = Write(
        [portions(1), portions(1, first=2), portions(1, first=3)],
        each_once,
        {**TO, "delivery": "exactly-once"},
        order=order,
    )
VALUES = in_portions(
    {"key": ["a", "b"], "value": [b"1", b"2"]}, {"key": ["a", "c"], "value": [b"3", b"4"]}
)
for level in ("deduplicated", "at-least-once"):
    WRITES[f"{level}, keys"] = Write(
        [VALUES],
        last_values if level == "deduplicated" else none_lost,
        {"bucket": "{name}", "delivery": level},
        {**CONFIG, "subjects": ["$KV.{name}.>"]},
        stream="KV_{name}",
    )
OBJECTS = in_portions(
    {"name": ["a"], "content": [b"1" * 200_000]},
    {"name": ["b"], "content": [b"2"]},
    {"name": ["b"], "content": [b"3" * 10]},
)
WRITES["objects"] = Write(
    [OBJECTS],
    all_objects,
    {"objectBucket": "{name}"},
    {
        "subjects": ["$O.{name}.C.>", "$O.{name}.M.>"],
        "discard": "new",
        "allow_rollup_hdrs": True,
        "allow_direct": True,
    },
    check_end=whole_objects,
    stream="OBJ_{name}",
)
ENDS: dict[str, dict[str, bool]] = {
    "a run ends": {},
    "a task ends": {"tasks_end": True},
    "the connection ends": {"cuts": True},
}
#: Those of exactly-once for `make test`; each takes seconds.
QUICK = {
    ("exactly-once", "a run ends", False),
    ("exactly-once", "a task ends", True),
    ("exactly-once", "the connection ends", True),
    ("exactly-once, groups", "a run ends", True),
    ("exactly-once, dead letters", "a run ends", True),
    ("exactly-once, schedules", "a run ends", True),
}


def _in_pairs() -> Iterator[tuple[str, str, bool]]:
    """The cases whose pairs of ends `make points POINTS=pairs` visits."""
    for name in WRITES:
        if "tasks" not in name and "equal rows" not in name:
            yield name, "a run ends", False
        if name.startswith("exactly-once") and "equal rows" not in name:
            yield name, "a task ends", False
    for end in ("a run ends", "a task ends"):
        yield "exactly-once", end, True


def _cases() -> Iterator[Any]:
    for name, end, forgets in itertools.product(WRITES, ENDS, (False, True)):
        if forgets and name.startswith(("at-least-once", "objects")):
            continue  # they have no message ids
        quick = (name, end, forgets) in QUICK
        if not name.startswith("exactly-once"):
            quick = not forgets or name == "deduplicated"
        marks = () if quick else pytest.mark.full
        named = f"{name}, {end}, {memory(forgets)}"
        yield pytest.param(name, end, forgets, False, id=named, marks=marks)
    if second_ends.VISITED:
        for name, end, forgets in _in_pairs():
            named = f"{name}, {end} twice, {memory(forgets)}"
            yield pytest.param(name, end, forgets, True, id=named, marks=second_ends.MARKS)


def memory(forgets: bool) -> str:
    return "the stream forgets" if forgets else "the stream remembers"


@pytest.mark.parametrize(("name", "end", "forgets", "pairs"), list(_cases()))
def test_each_end_of_a_write(
    world: World, request: pytest.FixtureRequest, name: str, end: str, forgets: bool, pairs: bool
) -> None:
    """`forgets`: the stream has lost all message ids when the write goes on.

    `pairs`: the run that goes on ends as well.
    """
    visited = visit_all(
        world,
        request.node.callspec.id,
        lambda stops: History(world, WRITES[name], stops, **ENDS[end], forgets=forgets),
        within="task" if end == "a task ends" else "",
        pairs=pairs,
    )
    log.warning("%s", visited)
