"""Predicates that a batch read takes over from Spark: what is left to read is just what Spark would keep."""

from __future__ import annotations

import datetime
import re
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
    found, left = Pushdown.of(options(**given)), []
    for predicate in predicates:
        name, *arguments = predicate
        step = getattr(found, f"and_{name}")(*arguments)
        if step is None:
            left.append(predicate)
        else:
            found = step
    return found, left


def test_without_predicates_everything_is_left() -> None:
    found, _ = narrowed(subjects="a.*,b.>")
    assert (found.filters, found.first, found.end, found.timed) == (("a.*", "b.>"), 1, INT64_MAX, False)
    assert found.reads("A")
    assert found.reads("B")
    assert found.options(options(subjects="a.*,b.>")) == options(subjects="a.*,b.>")
    assert narrowed()[0].options(options()).subjects == ()


@pytest.mark.parametrize(
    ("predicates", "bounds"),
    [
        ([("compared", "sequence", ">", 10)], (11, INT64_MAX)),
        ([("compared", "sequence", ">=", 10)], (10, INT64_MAX)),
        ([("compared", "sequence", "<", 10)], (1, 10)),
        ([("compared", "sequence", "<=", 10)], (1, 11)),
        ([("among", "sequence", [10])], (10, 11)),
        ([("compared", "sequence", ">=", 5), ("compared", "sequence", "<", 9)], (5, 9)),
        ([("compared", "sequence", "<", -3)], (1, -3)),
        ([("compared", "sequence", ">", 7), ("compared", "sequence", ">", 3)], (8, INT64_MAX)),
    ],
)
def test_sequences(predicates: list[tuple[Any, ...]], bounds: tuple[int, int]) -> None:
    found, left = narrowed(*predicates)
    assert left == []
    assert (found.first, found.end) == bounds
    assert found.reads("A") is (bounds[0] < bounds[1])


@pytest.mark.parametrize(
    ("comparison", "bounds"),
    [
        (">", (NANOS + 1000, INT64_MAX)),
        (">=", (NANOS, INT64_MAX)),
        ("<", (-INT64_MAX, NANOS)),
        ("<=", (-INT64_MAX, NANOS + 1000)),
    ],
)
def test_a_time_stands_for_the_nanoseconds_that_a_row_shows_as_it(comparison: str, bounds: tuple[int, int]) -> None:
    found, left = narrowed(("compared", "timestamp", comparison, MOMENT))
    assert left == []
    assert (found.since, found.until) == bounds
    assert found.timed


def test_times_hold_together() -> None:
    later = MOMENT + datetime.timedelta(seconds=1)
    found, left = narrowed(("compared", "timestamp", ">=", MOMENT), ("compared", "timestamp", "<", later))
    assert (found.since, found.until, left) == (NANOS, NANOS + 10**9, [])
    found, _ = narrowed(("among", "timestamp", [MOMENT]))
    assert (found.since, found.until) == (NANOS, NANOS + 1000)


def test_streams() -> None:
    found, left = narrowed(("among", "stream", ["B", "C"]))
    assert ([name for name in ("A", "B") if found.reads(name)], left) == (["B"], [])
    found, _ = narrowed(("among", "stream", ["A", "B"]), ("among", "stream", ["A"]))
    assert [name for name in ("A", "B") if found.reads(name)] == ["A"]


@pytest.mark.parametrize(
    ("subjects", "predicates", "filters"),
    [
        ("", [("among", "subject", ["a.b"])], ("a.b",)),
        ("", [("among", "subject", ["b", "a", "b"])], ("a", "b")),
        ("", [("prefix", "subject", "a.")], ("a.>",)),
        ("", [("prefix", "subject", "a.b.")], ("a.b.>",)),
        ("a.*,c.>", [("among", "subject", ["a.b", "b.a", "c.d.e"])], ("a.b", "c.d.e")),
        ("a.*,c.>", [("prefix", "subject", "a.")], ("a.*",)),
        ("*.x", [("prefix", "subject", "a.")], ("a.x",)),
        ("a.*", [("prefix", "subject", "b.")], ()),
        ("a.*", [("prefix", "subject", "a.b.")], ()),
        ("", [("prefix", "subject", "a."), ("among", "subject", ["a.b", "c"])], ("a.b",)),
        ("", [("among", "subject", [])], ()),
    ],
)
def test_subjects(subjects: str, predicates: list[tuple[Any, ...]], filters: tuple[str, ...]) -> None:
    given = {"subjects": subjects} if subjects else {}
    found, left = narrowed(*predicates, **given)
    assert (found.filters, left) == (filters, [])
    assert found.reads("A") is bool(filters)
    assert found.options(options(**given)).subjects == filters


@pytest.mark.parametrize(
    "predicate",
    [
        ("prefix", "subject", "a"),
        ("prefix", "subject", ""),
        ("prefix", "subject", "."),
        ("prefix", "subject", "a.*."),
        ("prefix", "stream", "A."),
        ("among", "subject", ["a.*"]),
        ("among", "subject", ["a b"]),
        ("among", "subject", ["a.."]),
        ("among", "subject", ["a\ufffd"]),
        ("among", "subject", ["a", None]),
        ("among", "sequence", [1, 2]),
        ("among", "sequence", [None]),
        ("among", "stream", [None]),
        ("compared", "sequence", ">", 1.5),
        ("compared", "sequence", ">", True),
        ("compared", "timestamp", ">", MOMENT.replace(tzinfo=None)),
        ("compared", "timestamp", ">", 5),
        ("compared", "subject", ">", "a"),
        ("among", "data", [b"x"]),
        ("among", "key", ["a"]),
        ("compared", "revision", ">", 1),
        ("not_null", "headers"),
        ("not_null", "data"),
    ],
    ids=str,
)
def test_what_is_left_to_spark(predicate: tuple[Any, ...]) -> None:
    found, left = narrowed(predicate)
    assert left == [predicate]
    assert found == Pushdown.of(options())


def test_columns_without_nulls() -> None:
    for name in ("stream", "subject", "sequence", "timestamp"):
        assert narrowed(("not_null", name)) == (Pushdown.of(options()), [])


def test_a_bucket_has_keys_and_revisions() -> None:
    predicates = [("among", "key", ["eu.a"]), ("compared", "revision", ">", 4), ("among", "bucket", ["b"])]
    found, left = narrowed(*predicates, bucket="b", history="true", keys="eu.*")
    assert (left, found.filters, found.first, found.reads("b")) == ([], ("eu.a",), 5, True)
    assert found.options(options(bucket="b", history="true", keys="eu.*")).keys == ("eu.a",)
    assert not narrowed(("among", "bucket", ["c"]), bucket="b")[0].reads("b")


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
