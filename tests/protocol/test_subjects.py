"""Filters of subjects, compared with the regular expression of each."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jetstream.protocol.stream import subject_pattern
from spark_jetstream.protocol.subjects import FilterIndex, common_subjects, subjects_overlap

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


@given(st.lists(filters, max_size=6, unique=True), filters)
def test_an_index_finds_the_filters_that_overlap(several: list[str], one: str) -> None:
    beside = {each for each in several if subjects_overlap(each, one)}
    found, other = (FilterIndex(several).overlapping(one, other=other) for other in (False, True))
    assert found in beside or found is None
    assert (found is None) is (not beside)
    # Of filters that do not overlap, as options have them.
    if not any(subjects_overlap(*pair) for pair in itertools.combinations(several, 2)):
        assert other in beside - {one} or other is None
        assert (other is None) is (not beside - {one})


@pytest.mark.parametrize(
    "filters",
    [
        [f"orders.{number}.*" for number in range(20_000)],
        [f"*.{number}.>" for number in range(20_000)],
        [f"*.{n}.x" if n % 2 else f"orders{n}.*.y" for n in range(20_000)],
    ],
    ids=["at the end", "at the beginning", "of both kinds"],
)
def test_thousands_of_filters_are_compared_by_their_tokens(filters: list[str]) -> None:
    # Each of them with each other would be 200 million comparisons.
    index = FilterIndex(filters)
    assert not any(index.overlapping(each, other=True) for each in filters)
