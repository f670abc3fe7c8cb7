"""The few questions to the server that planning asks about a stream, and how to make do with them.

Planning asks "where does the n-th matching message lie?" of a server that only answers "how many match from
here on?". `find_cut` answers the first by a handful of the second.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import NamedTuple, Protocol

from spark_jetstream.protocol.stream import StreamState


class Probe(Protocol):
    """Questions about the messages of one stream that match the filter, answered as of now.

    Each costs the server about 0.5 ms, and up to 85 ms for a wildcard in the middle of a large stream. The
    stream moves between two calls: two answers need not fit together.
    """

    def pending(self, first: int) -> int:
        """The number of messages with a sequence >= ``first``."""

    def peek(self, first: int) -> tuple[int, int] | None:
        """Sequence and timestamp (ns) of the first message with a sequence >= ``first``, or None."""

    def last(self) -> tuple[int, int] | None:
        """Sequence and timestamp (ns) of the last message, or None."""


class StreamQuestions(Probe, Protocol):
    """One stream, seen through the subject filters of a query: its state besides what a `Probe` answers."""

    def state(self) -> StreamState:
        """What STREAM.INFO says now."""

    def first_after(self, nanoseconds: int) -> tuple[int, int] | None:
        """Sequence and timestamp (ns) of the first message stored at that time or later, or None."""

    def first_of_all_after(self, nanoseconds: int) -> tuple[int, int] | None:
        """As `first_after`, of the messages on all subjects; of those that match where the account sees no others."""


class CachedProbe:
    """Asks another probe each question once. Make a new one for every plan: answers grow old.

    ``calls`` counts the questions that went to the other probe, ``uncached``.
    """

    def __init__(self, probe: Probe) -> None:
        self.calls = 0
        self.uncached = probe
        self._pending: dict[int, int] = {}
        self._peek: dict[int, tuple[int, int] | None] = {}
        self._last: list[tuple[int, int] | None] = []

    def pending(self, first: int) -> int:
        """As `Probe.pending`, when first asked."""
        if first not in self._pending:
            self.calls += 1
            self._pending[first] = self.uncached.pending(first)
        return self._pending[first]

    def peek(self, first: int) -> tuple[int, int] | None:
        """As `Probe.peek`, when first asked."""
        if first not in self._peek:
            self.calls += 1
            self._peek[first] = self.uncached.peek(first)
        return self._peek[first]

    def last(self) -> tuple[int, int] | None:
        """As `Probe.last`, when first asked."""
        if not self._last:
            self.calls += 1
            self._last.append(self.uncached.last())
        return self._last[0]


class Point(NamedTuple):
    """A sequence, and how many matching messages of the range in question lie below it."""

    sequence: int
    below: int


class Bracket(NamedTuple):
    """Where `find_cut` ended, after ``used`` probes: ``low`` is the answer if its count is in the window."""

    low: Point
    high: Point
    used: int


def find_cut(
    below: Callable[[int], int],
    following: Callable[[int], int | None],
    low: Point,
    high: Point,
    *,
    window: tuple[int, int],
    probes: int,
) -> Bracket:
    """Looks for a sequence with ``window[0] <= below(sequence) <= window[1]`` between two known points.

    ``low.below <= window[1]`` and ``high.below > window[1]`` must hold. ``following`` gives the first
    matching sequence that is not below its argument. At most ``probes`` calls of the two. Their answers need
    not be consistent: they are forced between the two points. If nothing was found, the closest points come
    back.

    Regula falsi finds the place within a few steps where messages are spread evenly. Where they come in runs,
    with gaps between them, a step that hardly came nearer is followed by others: on from the lower point at
    the density seen there last, a step on a logarithmic scale (which finds a run in a range of any size),
    bisection. A lower point that fell into a gap is moved to the end of the gap.
    """
    least, most = window
    aim = (least + most) // 2
    used = poor = 0
    error = high.below - low.below
    # Distance and messages of the last move of the lower point; at first as if every sequence matched.
    step = Point(1, 1)
    while low.below < least and used < probes and high.sequence - low.sequence > 1:
        sequence = _guess(low, high, aim, step, poor % 4)
        point = Point(sequence, min(max(below(sequence), low.below), high.below))
        used += 1
        if least <= point.below <= most:
            return Bracket(point, point, used)
        nearer = abs(point.below - aim)
        poor = 0 if nearer <= error // 2 else poor + 1
        error = min(error, nearer)
        if point.below > most:
            high = point
        elif point.below > low.below:
            step = Point(point.sequence - low.sequence, point.below - low.below)
            low = point
        elif used < probes:
            used += 1
            end = following(sequence) or 0
            low = Point(min(max(end, sequence), high.sequence - 1), low.below)
    return Bracket(low, high, used)


def _guess(low: Point, high: Point, aim: int, step: Point, method: int) -> int:
    need = max(1, aim - low.below)
    surplus = max(1, high.below - aim)
    width = high.sequence - low.sequence
    if method == 0:
        guess = low.sequence + width * need // (need + surplus)
    elif method == 1:
        guess = low.sequence + need * step.sequence // step.below
    elif method == 2:
        guess = low.sequence + isqrt(width * need)
    else:
        guess = low.sequence + width // 2
    # There is at most one message per sequence: nearer to either end the count cannot be what is looked for.
    guess = min(max(guess, low.sequence + need), high.sequence - surplus)
    return min(max(guess, low.sequence + 1), high.sequence - 1)
