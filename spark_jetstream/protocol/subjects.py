"""Subjects and filters (nats-server: server/sublist.go): what is wrong with one, what two have in common. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import NamedTuple

MAX_SUBJECT = 1024
"""How many bytes a subject may have: the control line, in which a reply subject follows, has at most 4 KiB."""
_OWN_SUBJECTS = ("$JS", "$SYS")


def publishing_fault(subject: str) -> str:
    """Return what is wrong with a subject to publish to, to be read after "in which"; "" when nothing is."""
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
    return f"there are {length:,} bytes, more than {MAX_SUBJECT:,}" if length > MAX_SUBJECT else ""


def subject_fault(subject: str) -> str:
    """Return what is wrong with a subject filter, to be read after "in which"; "" when nothing is."""
    tokens = subject.split(".")
    if re.search(r"\s", subject) or "\0" in subject:
        return "there are blanks"
    if not all(tokens):
        return "a token between the dots is empty"
    if ">" in tokens[:-1]:
        return "> is not the last token"
    if any(("*" in token or ">" in token) and len(token) > 1 for token in tokens):
        return "a * or > is not a token of its own"
    return ""


def is_wild(name: str) -> bool:
    """Whether a filter has a character of a wildcard. Without one it matches only the subject that it is."""
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
        if ">" in (a, b):
            # The rest of the other filter; both have at least these tokens.
            return ".".join([*tokens, *(right[index:] if a == ">" else left[index:])])
        if a != b and "*" not in (a, b):
            return None
        tokens.append(b if a == "*" else a)
    return ".".join(tokens) if len(left) == len(right) else None


class _Shape(NamedTuple):
    """Where a filter has wildcards: what filters that differ in other tokens have in common."""

    tokens: int
    """How many there are, without a last ``>``."""
    stars: frozenset[int]
    """The positions of ``*``."""
    rest: bool
    """Whether the last token is ``>``."""


class FilterIndex:
    """Filters in which others, and subjects, are looked up by a few comparisons for each shape of filter."""

    def __init__(self, filters: Iterable[str]) -> None:
        self._groups: dict[_Shape, list[tuple[str, list[str]]]] = {}
        self._by_tokens: dict[tuple[_Shape, tuple[int, ...]], dict[tuple[str, ...], str]] = {}
        for each in filters:
            tokens = each.split(".")
            self._groups.setdefault(_shape_of(tokens), []).append((each, tokens))

    def overlapping(self, text: str, *, other: bool = False) -> str | None:
        """Return a filter that matches some subject which the filter `text` matches as well, or None.

        With `other` it is not `text` itself.
        """
        tokens = text.split(".")
        return self._find(tokens, _shape_of(tokens), text if other else None)

    def matching(self, subject: str) -> str | None:
        """Return a filter that matches a subject, or None. A ``*`` in the subject is a plain token."""
        tokens = subject.split(".")
        return self._find(tokens, _Shape(len(tokens), frozenset(), rest=False), None)

    def _find(self, tokens: list[str], shape: _Shape, apart: str | None) -> str | None:
        for group in self._groups:
            positions = _compared(shape, group)
            if positions is None:
                continue
            found = self._grouped(group, positions).get(tuple([tokens[at] for at in positions]))
            if found is not None and found != apart:
                return found
        return None

    def _grouped(self, shape: _Shape, positions: tuple[int, ...]) -> dict[tuple[str, ...], str]:
        """Return the filters of a shape by their tokens at these positions: one filter for each."""
        found = self._by_tokens.get((shape, positions))
        if found is None:
            found = {}
            for text, tokens in self._groups[shape]:
                found[tuple([tokens[at] for at in positions])] = text
            self._by_tokens[shape, positions] = found
        return found


def _shape_of(tokens: list[str]) -> _Shape:
    rest = tokens[-1] == ">"
    stars = frozenset(at for at, token in enumerate(tokens) if token == "*")
    return _Shape(len(tokens) - 1 if rest else len(tokens), stars, rest)


@functools.lru_cache(1024)
def _compared(one: _Shape, other: _Shape) -> tuple[int, ...] | None:
    """Return the positions at which filters of two shapes must agree to match a subject both.

    None: they match no subject both, because their numbers of tokens differ.
    """
    if one.tokens < other.tokens and not one.rest:
        return None
    if other.tokens < one.tokens and not other.rest:
        return None
    if one.tokens == other.tokens and one.rest != other.rest:
        return None
    wild = one.stars | other.stars
    return tuple(at for at in range(min(one.tokens, other.tokens)) if at not in wild)


def key_fault(key: str, *, filters: bool = False) -> str:
    """Return what is wrong with a key (with ``filters``: a filter), to be read after "in which"; "" when nothing is."""
    tokens = key.split(".")
    if not all(tokens):
        return "a token between the dots is empty"
    if filters and ">" in tokens[:-1]:
        return "> is not the last token"
    for token in tokens:
        if not (re.fullmatch(r"[-/_=A-Za-z0-9]+", token) or (filters and token in ("*", ">"))):
            return "a character is not a letter, a digit, a dot or one of - / _ ="
    return ""
