"""Subjects, filters and keys of buckets: the fault of one, what two filters have in common. Pure.

nats-server has them in server/sublist.go.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

KEY_PATTERN = r"^[-/_=A-Za-z0-9]+(\.[-/_=A-Za-z0-9]+)*\z"
"""The keys without a fault (`key_fault`), as RE2, the engine of Arrow, reads a pattern."""
MAX_SUBJECT = 1024
"""Most bytes of a subject: the control line, with the reply subject, has at most 4 KiB."""
_OWN_SUBJECTS = ("$JS", "$SYS")


def publishing_fault(subject: str) -> str:
    """Return the fault of a subject to publish to, to be read after "in which"; "" for none."""
    tokens = subject.split(".")
    # Halves of surrogate pairs cannot be encoded.
    if re.search(r"[\x00-\x20\x7f\ud800-\udfff]", subject):
        return "there are blanks or control characters"
    if not all(tokens):
        return "a token between the dots is empty"
    if "*" in tokens or ">" in tokens:
        return "there is a wildcard"
    if tokens[0] in _OWN_SUBJECTS:
        return f"everything below {tokens[0]} belongs to the server"
    length = len(subject.encode())
    if length > MAX_SUBJECT:
        return f"there are {length:,} bytes, more than {MAX_SUBJECT:,}"
    return ""


def subject_fault(subject: str) -> str:
    """Return the fault of a subject filter, to be read after "in which"; "" for none."""
    tokens = subject.split(".")
    if re.search(r"\s", subject) or "\0" in subject:
        return "there are blanks"
    if not all(tokens):
        return "a token between the dots is empty"
    if ">" in tokens[:-1]:
        return "> is not the last token"
    if any(len(token) > 1 and is_wild(token) for token in tokens):
        return "a * or > is not a token of its own"
    return ""


def is_wild(name: str) -> bool:
    """Whether a filter has a character of a wildcard.

    Without one it matches only the subject that it is.
    """
    return not set("*>").isdisjoint(name)


def subjects_overlap(one: str, other: str) -> bool:
    """Whether some subject matches both filters."""
    return common_subjects(one, other) is not None


def covers(one: str, other: str) -> bool:
    """Whether a filter matches each subject that another one matches."""
    return common_subjects(one, other) == other


def common_subjects(one: str, other: str) -> str | None:
    """Return the filter of the subjects that match both filters; None when none does."""
    left, right = one.split("."), other.split(".")
    tokens: list[str] = []
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        # After `>` comes the rest of the other filter; both have at least these tokens.
        if a == ">":
            return ".".join(tokens + right[index:])
        if b == ">":
            return ".".join(tokens + left[index:])
        if a != b and "*" not in (a, b):
            return None
        tokens.append(b if a == "*" else a)
    if len(left) != len(right):
        return None
    return ".".join(tokens)


class Shape(NamedTuple):
    """Where a filter has wildcards: filters of one shape differ in the other tokens alone."""

    tokens: int
    """How many there are, without a last ``>``."""
    literal: tuple[int, ...]
    """The positions of tokens that are not ``*``."""
    rest: bool
    """Whether the last token is ``>``."""


def by_shape(filters: Iterable[str]) -> dict[Shape, list[list[str]]]:
    """Return the tokens of filters by their shapes, of which there are few."""
    groups: dict[Shape, list[list[str]]] = {}
    for each in filters:
        tokens = each.split(".")
        groups.setdefault(_shape_of(tokens), []).append(tokens)
    return groups


def _shape_of(tokens: Sequence[str]) -> Shape:
    rest = tokens[-1] == ">"
    count = len(tokens) - 1 if rest else len(tokens)
    literal = tuple(at for at in range(count) if tokens[at] != "*")
    return Shape(count, literal, rest)


class FilterIndex:
    """Filters among which others are looked up by one comparison for each shape."""

    def __init__(self, filters: Iterable[str]) -> None:
        self._groups = by_shape(filters)
        self._by_tokens: dict[tuple[Shape, tuple[int, ...]], dict[tuple[str, ...], str]] = {}

    def overlapping(self, text: str, *, other: bool = False) -> str | None:
        """Return a filter that matches some subject of the filter `text` as well, or None.

        With `other` it is not `text` itself.
        """
        tokens = text.split(".")
        shape = _shape_of(tokens)
        for group in self._groups:
            positions = _compared(shape, group)
            if positions is None:
                continue
            found = self._grouped(group, positions).get(tuple([tokens[at] for at in positions]))
            if found is not None and not (other and found == text):
                return found
        return None

    def _grouped(self, shape: Shape, positions: tuple[int, ...]) -> dict[tuple[str, ...], str]:
        """Return the filters of a shape by their tokens at these positions: one filter for each."""
        found = self._by_tokens.get((shape, positions))
        if found is None:
            found = {}
            for tokens in self._groups[shape]:
                found[tuple([tokens[at] for at in positions])] = ".".join(tokens)
            self._by_tokens[shape, positions] = found
        return found


@functools.lru_cache(1024)
def _compared(one: Shape, other: Shape) -> tuple[int, ...] | None:
    """Return the positions at which filters of two shapes must agree to match a subject both.

    None: they match no subject both, because their numbers of tokens differ.
    """
    # Only a last `>` matches further tokens, and it matches at least one.
    one_ends = one.tokens < other.tokens and not one.rest
    other_ends = other.tokens < one.tokens and not other.rest
    only_one_goes_on = one.tokens == other.tokens and one.rest != other.rest
    if one_ends or other_ends or only_one_goes_on:
        return None
    # Where one of the two has `*`, any token of the other matches.
    return tuple(at for at in one.literal if at in other.literal)


def key_fault(key: str, *, filters: bool = False) -> str:
    """Return the fault of a key, to be read after "in which"; "" for none.

    With ``filters`` it may have wildcards.
    """
    tokens = key.split(".")
    if not all(tokens):
        return "a token between the dots is empty"
    if filters and ">" in tokens[:-1]:
        return "> is not the last token"
    for token in tokens:
        is_wildcard = filters and token in ("*", ">")
        if not is_wildcard and not re.fullmatch(r"[-/_=A-Za-z0-9]+", token):
            return "a character is not a letter, a digit, a dot or one of - / _ ="
    return ""
