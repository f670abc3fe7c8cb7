"""Filters applied to many subjects, compared with the regular expression of each filter."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_jetstream.protocol.arrow import binaries
from spark_jetstream.protocol.matching import Matcher
from spark_jetstream.protocol.stream import subject_pattern
from tests.protocol.test_subjects import filters, plain


def matched(several: list[str], *subjects: bytes) -> list[bool]:
    found: list[bool] = Matcher(several).matches(binaries(subjects)).tolist()
    return found


@given(st.lists(filters, max_size=6), st.lists(plain, max_size=6))
def test_a_subject_matches_as_one_of_the_filters_says(
    several: list[str], subjects: list[str]
) -> None:
    pattern = subject_pattern(several or [">"])
    expected = [pattern.fullmatch(subject) is not None for subject in subjects]
    assert matched(several, *(subject.encode() for subject in subjects)) == expected


def test_a_wildcard_in_a_subject_is_a_plain_token() -> None:
    assert matched(["a.b", "a.*.c"], b"a.*", b"a.>", b"a.>.c") == [False, False, True]


def test_bytes_that_are_not_utf8_match_wildcards_alone() -> None:
    assert matched(["a.*"], b"a.\xff", b"b.\xff") == [True, False]
    assert matched(["a.\ufffd", "\ufffd"], b"a.\xff", b"\xff") == [False, False]


def test_a_part_of_a_column_is_matched_as_the_whole() -> None:
    subjects = binaries([b"b", b"a.b", b"a", b"a.c.d"]).slice(1, 3)
    assert Matcher(["a.>"]).matches(subjects).tolist() == [True, False, True]
