"""Filters of subjects, compared with the regular expression of each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_jetstream.protocol.stream import subject_pattern
from spark_jetstream.protocol.subjects import common_subjects

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
