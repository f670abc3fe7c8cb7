"""The result of a check, and comparisons of versions. Pure."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from spark_jetstream.errors import (
    LONGEST_MESSAGE,
    ConsumerNotFound,
    JetStreamError,
    PermissionDenied,
    brief,
)

Status = Literal["ok", "warning", "failed", "unknown"]
_COMPARISONS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
}


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    ``said`` is one short line. ``what_to_do`` names the option, the variable or the setting of the
    server to change, and is empty if there is nothing to do. ``unknown``: the check was not
    possible, and ``said`` gives the reason. No text holds a secret, and servers' texts are cut.
    """

    check: str
    status: Status = field(kw_only=True)
    said: str
    what_to_do: str = ""

    def __post_init__(self) -> None:
        for name in ("said", "what_to_do"):
            # A frozen dataclass allows no other way.
            object.__setattr__(self, name, brief(getattr(self, name), LONGEST_MESSAGE))


ok = partial(Finding, status="ok")
warning = partial(Finding, status="warning")
"""Something works now, but badly or not for long."""
failed = partial(Finding, status="failed")
unknown = partial(Finding, status="unknown")


def version_of(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: ``4.0.5.dev1`` -> (4, 0, 5).

    Empty if there are none.
    """
    numbers = re.match(r"\d+(?:\.\d+)*", text)
    if numbers is None:
        return ()
    return tuple(map(int, numbers[0].split(".")))


def within(version: str, specifiers: str) -> bool:
    """Return whether a version is in a range such as ``<2.17,>=2.16``.

    A release candidate counts as the release. Raises `ValueError` for other operators.
    """
    mine = version_of(version)
    for specifier in filter(None, specifiers.replace(" ", "").split(",")):
        parts = re.fullmatch(r"(<=|>=|==|<|>)(\d+(?:\.\d+)*)", specifier)
        if parts is None:
            raise ValueError(f"{specifier} is no range of versions that can be read here")
        other = version_of(parts[2])
        # Missing numbers are zeros: 2.16 is 2.16.0.
        width = max(len(mine), len(other))
        compare = _COMPARISONS[parts[1]]
        if not compare(_padded(mine, width), _padded(other, width)):
            return False
    return True


def _padded(numbers: tuple[int, ...], width: int) -> tuple[int, ...]:
    return numbers + (0,) * (width - len(numbers))


def unread_consumer(check: str, error: JetStreamError, missing: str) -> Finding:
    """Return the finding for a consumer whose state could not be read.

    `missing` is the advice for a consumer that does not exist.
    """
    if isinstance(error, ConsumerNotFound):
        return failed(check, str(error), missing)
    if isinstance(error, PermissionDenied):
        return unknown(check, str(error), "see the permissions below")
    return failed(check, str(error), "is its server there?")
