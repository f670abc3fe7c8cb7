"""The limits of planning: how often streams are looked for, and which interest streams are long."""

from __future__ import annotations

from dataclasses import dataclass

from spark_jetstream.source.interest_streams import LONG
from spark_jetstream.source.selection import FIND_EVERY


@dataclass(frozen=True)
class PlanLimits:
    """Limits that a user chooses are fields of `SourceOptions`."""

    find_every: float = FIND_EVERY
    """Seconds between two looks for the streams that options choose."""
    longest: int = LONG
    """Sequences of an interest stream in which consumers are created and deleted freely."""


PLAN_LIMITS = PlanLimits()
