"""What a check has found, as data. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "failed", "unknown"]


@dataclass(frozen=True)
class Finding:
    """What one check has found.

    ``said`` is one short line, and ``what_to_do`` another one, empty where there is nothing to do: it names the option,
    the variable or the setting of the server to change. ``unknown``: it could not be looked at, and ``said`` tells why.
    No text holds a secret.
    """

    check: str
    status: Status
    said: str
    what_to_do: str = ""


def ok(check: str, said: str) -> Finding:
    """As it should be."""
    return Finding(check, "ok", said)


def warning(check: str, said: str, what_to_do: str) -> Finding:
    """It works, and may not for long, or not well."""
    return Finding(check, "warning", said, what_to_do)


def failed(check: str, said: str, what_to_do: str) -> Finding:
    """It does not work."""
    return Finding(check, "failed", said, what_to_do)


def unknown(check: str, said: str, what_to_do: str = "") -> Finding:
    """It could not be looked at."""
    return Finding(check, "unknown", said, what_to_do)


def healthy(findings: Iterable[Finding], *, strict: bool) -> bool:
    """Whether nothing failed, and with ``strict`` also whether all is known and nothing is a warning."""
    bad = {"failed", "warning", "unknown"} if strict else {"failed"}
    return not any(finding.status in bad for finding in findings)


def version_of(text: str) -> tuple[int, ...]:
    """The numbers of a version, for comparing: ``4.0.5.dev1`` -> (4, 0, 5). Empty for what begins with no number."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(number) for number in found[0].split(".")) if found else ()


def within(version: str, specifiers: str) -> bool:
    """Whether a version is in a range such as ``<2.17,>=2.16``. ValueError for operators other than
    <, <=, >=, > and ==.

    Numbers only: a release candidate counts as the release.
    """
    mine = version_of(version)
    for each in filter(None, specifiers.replace(" ", "").split(",")):
        found = re.fullmatch(r"(<=|>=|==|<|>)(\d+(?:\.\d+)*)", each)
        if found is None:
            raise ValueError(f"{each} is no range of versions that can be read here")
        other = version_of(found[2])
        width = max(len(mine), len(other))
        here, there = (numbers + (0,) * (width - len(numbers)) for numbers in (mine, other))
        held = {"<": here < there, "<=": here <= there, ">": here > there, ">=": here >= there, "==": here == there}
        if not held[found[1]]:
            return False
    return True
