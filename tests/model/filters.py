"""The messages that subject filters match, as the server's documentation says it."""

from __future__ import annotations


def contains(wide: str, narrow: str) -> bool:
    """Whether a filter matches a subject, or each subject that another filter matches."""
    ours, theirs = wide.split("."), narrow.split(".")
    for number, token in enumerate(ours):
        if number == len(theirs) or (theirs[number] == ">" and token != ">"):
            return False
        if token == ">":
            return True
        if token not in ("*", theirs[number]):
            return False
    return len(ours) == len(theirs)


def matches(subject: str, filters: str) -> bool:
    """Whether one of the filters matches; none are all."""
    return not filters or any(contains(each, subject) for each in filters.split(","))
