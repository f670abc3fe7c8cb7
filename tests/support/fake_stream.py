"""A stream as planning sees it: the sequences of the messages that match, and questions about them."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterable


def timestamp(sequence: int) -> int:
    """The timestamp that a `FakeStream` gives a message."""
    return 1_000 * sequence + 1


class FakeStream:
    """Implements `Probe` exactly. ``calls`` counts the questions."""

    def __init__(self, matching: Iterable[int]) -> None:
        self.matching = sorted(set(matching))
        self.calls = 0

    @property
    def end(self) -> int:
        """One past the last match; 1 when there is none."""
        return self.matching[-1] + 1 if self.matching else 1

    def count(self, first: int, end: int) -> int:
        """The matches in [first, end), without asking."""
        return bisect_left(self.matching, end) - bisect_left(self.matching, first)

    def pending(self, first: int) -> int:
        self.calls += 1
        return len(self.matching) - bisect_left(self.matching, first)

    def peek(self, first: int) -> tuple[int, int] | None:
        self.calls += 1
        at = bisect_left(self.matching, first)
        return (self.matching[at], timestamp(self.matching[at])) if at < len(self.matching) else None


class MovingStream(FakeStream):
    """Changes before each answer: messages are published behind it, and with ``removes`` some go anywhere."""

    def __init__(self, matching: Iterable[int], seed: int, *, most: int = 20, removes: bool = False) -> None:
        super().__init__(matching)
        self._random = random.Random(seed)
        self._most = most
        self._removes = removes

    def _move(self) -> None:
        for _ in range(self._random.randint(0, self._most)):
            self.matching.append(self.end + self._random.randint(0, 3))
        if self._removes:
            for _ in range(min(len(self.matching), self._random.randint(0, self._most))):
                del self.matching[self._random.randrange(len(self.matching))]

    def pending(self, first: int) -> int:
        self._move()
        return super().pending(first)

    def peek(self, first: int) -> tuple[int, int] | None:
        self._move()
        return super().peek(first)


def evenly(width: int, step: int) -> list[int]:
    """One match in ``step`` sequences, up to and including ``width``."""
    return list(range(step, width + 1, step))


def runs(width: int, number: int, length: int, seed: int = 7) -> list[int]:
    """``number`` dense runs of ``length`` matches each, anywhere below ``width``."""
    chosen = random.Random(seed)
    starts = [chosen.randrange(1, width - length) for _ in range(number)]
    return sorted({start + i for start in starts for i in range(length)})


def scattered(width: int, number: int, seed: int = 7) -> list[int]:
    """``number`` matches at random sequences up to ``width``."""
    return sorted(random.Random(seed).sample(range(1, width + 1), number))


def at_the_end(width: int, number: int) -> list[int]:
    """Nothing but the last ``number`` of ``width`` sequences."""
    return list(range(width - number + 1, width + 1))
