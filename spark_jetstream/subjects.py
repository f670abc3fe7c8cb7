"""Subjects and filters of them: what is wrong with one, what two have in common. Pure.

The rules are the server's own (nats-server: server/sublist.go).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from spark_jetstream.errors import OptionError
from spark_jetstream.lists import items, place, refuse_twice
from spark_jetstream.units import shown

MAX_SUBJECT = 1024
"""How many bytes a subject may have: the control line, in which a reply subject follows, has at most 4 KiB."""
_OWN_SUBJECTS = ("$JS", "$SYS")


@dataclass(frozen=True)
class SubjectFilters:
    """A comma list of subject filters that do not overlap -> tuple of str (server error 10138)."""

    @property
    def expects(self) -> str:
        return "a comma list of subject filters with * and >"

    def parse(self, option: str, value: object) -> tuple[str, ...]:
        filters = items(option, value, "subject filters")
        for index, subject in enumerate(filters):
            fault = subject_fault(subject)
            if fault:
                where = place(filters, index)
                raise OptionError(f"option {option}{where} holds a subject in which {fault}", option=option)
        refuse_twice(option, filters)
        for index, one in enumerate(filters):
            for other in filters[:index]:
                if subjects_overlap(one, other):
                    raise OptionError(
                        f"option {option} holds {shown(other)} and {shown(one)}, which overlap: "
                        "a message could match both, and the server refuses that",
                        option=option,
                    )
        return filters


@dataclass(frozen=True)
class Subject:
    """A subject that one can publish to -> str.

    The same rules as for the column ``subject`` of a sink. Only a whole token ``*`` or ``>`` is a wildcard;
    unlike a filter, a subject may have these signs inside of a token, as the server allows it.
    """

    @property
    def expects(self) -> str:
        return "a subject without blanks and wildcards"

    def parse(self, option: str, value: object) -> str:
        subject = str(value).strip()
        fault = _publishing_fault(subject)
        if fault:
            raise OptionError(
                f"option {option} must be a subject to publish to, but in this one {fault}", option=option
            )
        return subject


def _publishing_fault(subject: str) -> str:
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
    """What is wrong with a subject filter, to be read after "in which"; "" when nothing is."""
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


def subjects_overlap(one: str, other: str) -> bool:
    """Whether some subject matches both filters."""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(left) == len(right)


def common_subjects(one: str, other: str) -> str | None:
    """The filter of just those subjects that match both filters; None when none does."""
    left, right = one.split("."), other.split(".")
    tokens: list[str] = []
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if ">" in (a, b):
            # What the other one still asks for; both reach at least this far.
            return ".".join([*tokens, *(right[index:] if a == ">" else left[index:])])
        if a != b and "*" not in (a, b):
            return None
        tokens.append(b if a == "*" else a)
    return ".".join(tokens) if len(left) == len(right) else None


@dataclass(frozen=True)
class KeyFilters:
    """A comma list of filters of the keys of a Key-Value bucket, that do not overlap -> tuple of str (ADR-8)."""

    @property
    def expects(self) -> str:
        return "a comma list of keys, or of filters of them with * and >"

    def parse(self, option: str, value: object) -> tuple[str, ...]:
        keys = items(option, value, "keys")
        for index, one in enumerate(keys):
            fault = key_fault(one, filters=True)
            if fault:
                where = place(keys, index)
                raise OptionError(f"option {option}{where} holds a key in which {fault}", option=option)
        return SubjectFilters().parse(option, value)


def key_fault(key: str, *, filters: bool = False) -> str:
    """What is wrong with a key, to be read after "in which"; "" when nothing is. With ``filters`` wildcards may be."""
    tokens = key.split(".")
    if not all(tokens):
        return "a token between the dots is empty"
    for token in tokens:
        if not (re.fullmatch(r"[-/_=A-Za-z0-9]+", token) or (filters and token in ("*", ">"))):
            return "there is something else than letters, digits, dots and - / _ ="
    return ""
