"""Filters of subjects, compared with the regular expression of each."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jetstream.protocol.stream import subject_pattern
from spark_jetstream.protocol.subjects import (
    FilterIndex,
    common_subjects,
    covers,
    key_fault,
    publishing_fault,
    subject_fault,
    subjects_overlap,
)

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


EMPTY = "a token between the dots is empty"
BLANKS = "there are blanks"
CONTROLS = "there are blanks or control characters"
OWN_TOKEN = "a * or > is not a token of its own"
NOT_LAST = "> is not the last token"
CHARACTER = "a character is not a letter, a digit, a dot or one of - / _ ="
#: A text, and its fault as a subject to publish to, as a filter, as a key and as a filter of keys.
FAULTS: dict[str, tuple[str, str, str, str]] = {
    "a": ("", "", "", ""),
    "a.B-/_=9": ("", "", "", ""),
    "größe.$x": ("", "", CHARACTER, CHARACTER),
    "": (EMPTY, EMPTY, EMPTY, EMPTY),
    ".": (EMPTY, EMPTY, EMPTY, EMPTY),
    ".a": (EMPTY, EMPTY, EMPTY, EMPTY),
    "a.": (EMPTY, EMPTY, EMPTY, EMPTY),
    "a..b": (EMPTY, EMPTY, EMPTY, EMPTY),
    "*": ("there is a wildcard", "", CHARACTER, ""),
    "a.>": ("there is a wildcard", "", CHARACTER, ""),
    "a.>.b": ("there is a wildcard", NOT_LAST, CHARACTER, NOT_LAST),
    ">.>": ("there is a wildcard", NOT_LAST, CHARACTER, NOT_LAST),
    "a*": ("", OWN_TOKEN, CHARACTER, CHARACTER),
    "a.b>": ("", OWN_TOKEN, CHARACTER, CHARACTER),
    "**": ("", OWN_TOKEN, CHARACTER, CHARACTER),
    "a b": (CONTROLS, BLANKS, CHARACTER, CHARACTER),
    "a\r\nPING": (CONTROLS, BLANKS, CHARACTER, CHARACTER),
    "a\n": (CONTROLS, BLANKS, CHARACTER, CHARACTER),
    "a\x00": (CONTROLS, BLANKS, CHARACTER, CHARACTER),
    "a\x7f": (CONTROLS, "", CHARACTER, CHARACTER),
    "\ud800": (CONTROLS, "", CHARACTER, CHARACTER),
    "$JS.API.INFO": ("everything below $JS belongs to the server", "", CHARACTER, CHARACTER),
    "$SYS": ("everything below $SYS belongs to the server", "", CHARACTER, CHARACTER),
    "$JSX.a": ("", "", CHARACTER, CHARACTER),
    "$js.a": ("", "", CHARACTER, CHARACTER),
    "x" * 1024: ("", "", "", ""),
    "x" * 1025: ("there are 1,025 bytes, more than 1,024", "", "", ""),
    "ö" * 513: ("there are 1,026 bytes, more than 1,024", "", CHARACTER, CHARACTER),
}


@pytest.mark.parametrize("text", FAULTS, ids=lambda text: ascii(text[:20]))
def test_a_text_has_the_fault_of_its_use_or_none(text: str) -> None:
    uses = (publishing_fault(text), subject_fault(text), key_fault(text))
    assert (*uses, key_fault(text, filters=True)) == FAULTS[text]


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ("a.*", "*.b", "a.b"),
        ("a.>", "a.b.c", "a.b.c"),
        ("a.>", "*.*.>", "a.*.>"),
        (">", "*", "*"),
        ("*.>", "a", None),
        ("a.>", "a", None),
        ("a.*", "a.b.c", None),
        ("A", "a", None),
        ("a.b", "a.b.>", None),
    ],
)
def test_two_filters_have_one_filter_in_common_or_none(
    one: str, other: str, common: str | None
) -> None:
    assert common_subjects(one, other) == common_subjects(other, one) == common
    assert (covers(one, other), covers(other, one)) == (common == other, common == one)
