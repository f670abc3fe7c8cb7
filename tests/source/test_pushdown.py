"""Predicates that a batch read takes over from Spark: what is left to read is just what Spark would keep."""

from __future__ import annotations

import datetime
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jetstream.options import SourceOptions
from spark_jetstream.protocol.stream import subject_pattern
from spark_jetstream.protocol.subjects import common_subjects
from spark_jetstream.protocol.units import INT64_MAX
from spark_jetstream.source.pushdown import Pushdown

UTC = datetime.timezone.utc
MOMENT = datetime.datetime(2026, 3, 1, 12, 0, 0, 5, tzinfo=UTC)
NANOS = 1_772_366_400_000_005_000


def options(**given: str) -> SourceOptions:
    stream = {} if "bucket" in given else {"stream": "A,B"}
    return SourceOptions.from_spark({**stream, "filterPushdown": "true", **given}, streaming=False)


def narrowed(*predicates: tuple[Any, ...], **given: str) -> tuple[Pushdown, list[tuple[Any, ...]]]:
    """What is left, and the predicates that Spark has to check."""
    pushdown, left = Pushdown.of(options(**given)), []
    for predicate in predicates:
        name, *arguments = predicate
        step = getattr(pushdown, f"and_{name}")(*arguments)
        if step is None:
            left.append(predicate)
        else:
            pushdown = step
    return pushdown, left


LATER = MOMENT + datetime.timedelta(seconds=1)
FILTERED = {"subjects": "a.*,c.>"}
BUCKET = {"bucket": "b", "history": "true", "keys": "eu.*"}

#: Options beside the streams A and B, predicates, what they change of a `Pushdown`, and which names are read then.
PUSHED: list[tuple[dict[str, str], list[tuple[Any, ...]], dict[str, Any], str]] = [
    ({"subjects": "a.*,b.>"}, [], {"filters": ("a.*", "b.>")}, "AB"),
    ({}, [], {"filters": (">",), "first": 1, "end": INT64_MAX, "since": -INT64_MAX, "until": INT64_MAX}, "AB"),
    ({}, [("compared", "sequence", ">", 10)], {"first": 11}, "AB"),
    ({}, [("compared", "sequence", ">=", 10)], {"first": 10}, "AB"),
    ({}, [("compared", "sequence", "<", 10)], {"end": 10}, "AB"),
    ({}, [("compared", "sequence", "<=", 10)], {"end": 11}, "AB"),
    ({}, [("among", "sequence", [10])], {"first": 10, "end": 11}, "AB"),
    ({}, [("compared", "sequence", "<", -3)], {"end": -3}, ""),
    ({}, [("compared", "sequence", ">", 7), ("compared", "sequence", ">", 3)], {"first": 8}, "AB"),
    # A time represents the nanoseconds that a row shows as it.
    ({}, [("compared", "timestamp", ">", MOMENT)], {"since": NANOS + 1000, "until": INT64_MAX}, "AB"),
    ({}, [("compared", "timestamp", "<=", MOMENT)], {"since": -INT64_MAX, "until": NANOS + 1000}, "AB"),
    ({}, [("among", "timestamp", [MOMENT])], {"since": NANOS, "until": NANOS + 1000}, "AB"),
    (
        {},
        [("compared", "timestamp", ">=", MOMENT), ("compared", "timestamp", "<", LATER)],
        {"since": NANOS, "until": NANOS + 10**9},
        "AB",
    ),
    ({}, [("among", "stream", ["A", "B"]), ("among", "stream", ["A"])], {"names": frozenset("A")}, "A"),
    ({}, [("among", "subject", ["b", "a", "b"])], {"filters": ("a", "b")}, "AB"),
    ({}, [("prefix", "subject", "a.b.")], {"filters": ("a.b.>",)}, "AB"),
    (FILTERED, [("among", "subject", ["a.b", "b.a", "c.d.e"])], {"filters": ("a.b", "c.d.e")}, "AB"),
    (FILTERED, [("prefix", "subject", "a.")], {"filters": ("a.*",)}, "AB"),
    ({"subjects": "*.x"}, [("prefix", "subject", "a.")], {"filters": ("a.x",)}, "AB"),
    ({"subjects": "a.*"}, [("prefix", "subject", "b.")], {"filters": ()}, ""),
    ({}, [("prefix", "subject", "a."), ("among", "subject", ["a.b", "c"])], {"filters": ("a.b",)}, "AB"),
    ({}, [("among", "subject", [])], {"filters": ()}, ""),
    *(({}, [("not_null", name)], {}, "AB") for name in ("stream", "subject", "sequence", "timestamp")),
    (
        BUCKET,
        [("among", "key", ["eu.a"]), ("compared", "revision", ">", 4), ("among", "bucket", ["b"])],
        {"filters": ("eu.a",), "first": 5, "names": frozenset("b")},
        "b",
    ),
    ({"bucket": "b"}, [("among", "bucket", ["c"])], {"names": frozenset("c")}, ""),
]


@pytest.mark.parametrize(("given", "predicates", "changed", "names"), PUSHED)
def test_what_is_pushed(
    given: dict[str, str], predicates: list[tuple[Any, ...]], changed: dict[str, Any], names: str
) -> None:
    pushdown, left = narrowed(*predicates, **given)
    parsed = options(**given)
    assert left == []
    assert pushdown == replace(Pushdown.of(parsed), **changed)
    assert pushdown.timed is bool(predicates and "since" in changed)
    assert [name for name in "ABb" if pushdown.reads(name) and (name == "b") is ("bucket" in given)] == list(names)
    field = "keys" if "bucket" in given else "subjects"
    wanted = () if pushdown.filters == (">",) else pushdown.filters
    assert pushdown.options(parsed) == parsed.model_copy(update={field: wanted})


@pytest.mark.parametrize(
    "predicate",
    [
        ("prefix", "subject", "a"),
        ("prefix", "subject", ""),
        ("prefix", "subject", "."),
        ("prefix", "subject", "a.*."),
        ("prefix", "stream", "A."),
        ("among", "subject", ["a.*"]),
        ("among", "subject", ["a.."]),
        ("among", "subject", ["a\ufffd"]),
        ("among", "subject", ["a", None]),
        ("among", "sequence", [1, 2]),
        ("among", "stream", [None]),
        ("compared", "sequence", ">", True),
        ("compared", "sequence", ">", 1.5),
        ("compared", "revision", ">", 1),
        ("compared", "timestamp", ">", MOMENT.replace(tzinfo=None)),
        ("compared", "timestamp", ">", 5),
        ("compared", "subject", ">", "a"),
        ("among", "data", [b"x"]),
        ("among", "key", ["a"]),
        ("not_null", "data"),
        ("not_null", "headers"),
    ],
    ids=str,
)
def test_what_is_left_to_spark(predicate: tuple[Any, ...]) -> None:
    found, left = narrowed(predicate)
    assert left == [predicate]
    assert found == Pushdown.of(options())


def test_the_current_table_of_a_bucket_is_made_of_its_latest_revisions_wherever_they_lie() -> None:
    predicates = [("compared", "revision", ">", 4), ("compared", "timestamp", ">", MOMENT), ("among", "key", ["a"])]
    found, left = narrowed(*predicates, bucket="b")
    assert left == predicates[:2]
    assert (found.filters, found.first, found.timed) == (("a",), 1, False)


tokens = st.sampled_from(["a", "b", "*", ">"])
filters = st.lists(tokens, min_size=1, max_size=4).map(
    lambda found: ".".join(found[: found.index(">") + 1] if ">" in found else found)
)
plain = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=5).map(".".join)


@given(filters, filters, plain)
def test_two_filters_have_in_common_what_matches_both(one: str, other: str, subject: str) -> None:
    both = all(subject_pattern([each]).fullmatch(subject) for each in (one, other))
    common = common_subjects(one, other)
    assert bool(common and subject_pattern([common]).fullmatch(subject)) is both
    assert (common is None) is (common_subjects(other, one) is None)


@given(st.lists(plain, max_size=3), st.sampled_from(["a.", "b.", "a.b."]), plain)
def test_what_is_left_of_subjects_is_what_the_predicates_say(names: list[str], prefix: str, subject: str) -> None:
    found, left = narrowed(("among", "subject", names), ("prefix", "subject", prefix), subjects="a.>,b.*")
    assert left == []
    kept = subject in names and subject.startswith(prefix) and re.fullmatch(r"a\..+|b\.[^.]+", subject) is not None
    assert bool(subject_pattern(found.filters).fullmatch(subject)) is kept
