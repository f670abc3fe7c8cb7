"""How much is measured: enough for figures to quote, or little for a check between two changes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Counted rounds, those before them that warm up, and messages or rows of a round.

    The source reads `messages` in a round, and `long` once as one partition; the sink writes
    `rows`. The latency is that of `seconds` after `warm_up_seconds`.
    """

    rounds: int = 5
    warm_up: int = 3
    messages: int = 1_000_000
    long: int = 5_000_000
    rows: int = 2_000_000
    seconds: float = 20
    warm_up_seconds: float = 5


QUICK = Scale(
    rounds=2, warm_up=1, messages=300_000, long=600_000, rows=300_000, seconds=8, warm_up_seconds=3
)
