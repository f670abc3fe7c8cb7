"""What was measured. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Rate:
    """Messages that went through in some seconds. ``size`` is in bytes, payloads only."""

    what: str
    messages: int
    size: int
    seconds: float

    @property
    def messages_per_second(self) -> float:
        return self.messages / self.seconds

    @property
    def megabytes_per_second(self) -> float:
        """In units of 1,000,000 bytes."""
        return self.size / self.seconds / 1e6


@dataclass(frozen=True)
class Latencies:
    """How long single requests took, in seconds, the quickest first; at least one."""

    seconds: tuple[float, ...]

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latencies:
        """In any order. ValueError for none."""
        if not seconds:
            raise ValueError("nothing was measured")
        return cls(tuple(sorted(seconds)))

    def percentile(self, percent: float) -> float:
        """The time within which that many of a hundred were done (nearest rank)."""
        rank = -(-len(self.seconds) * percent // 100)
        return self.seconds[min(max(int(rank), 1), len(self.seconds)) - 1]
