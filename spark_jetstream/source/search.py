"""The search for the n-th matching message, which only asks the server for counts.

Planning needs the sequence of the n-th matching message; the server only counts those from a
sequence on. `source.splits` and `source.admission` say how many questions a search may cost.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import NamedTuple, Protocol


class Probe(Protocol):
    """Requests about the messages of one stream that match the filter, answered as of now.

    Each costs the server about 0.5 ms, and up to 85 ms for a wildcard in the middle of a large
    stream. The stream may change between two calls, so two answers may disagree.
    """

    def pending(self, first: int) -> int:
        """Return the number of messages with a sequence >= ``first``."""

    def peek(self, first: int) -> tuple[int, int] | None:
        """Return sequence and timestamp (ns) of the first message from ``first`` on, or None."""


class Point(NamedTuple):
    """A sequence, and how many matching messages of the range are below it."""

    sequence: int
    below: int


class Bracket(NamedTuple):
    """The result of `find_cut` after ``used`` probes.

    ``low`` is the cut if its count is in the window.
    """

    low: Point
    high: Point
    used: int


def find_cut(
    below: Callable[[int], int],
    probe: Probe,
    low: Point,
    high: Point,
    *,
    window: tuple[int, int],
    probes: int,
) -> Bracket:
    """Look for a sequence with ``window[0] <= below(sequence) <= window[1]`` between two points.

    ``below`` counts the messages below a sequence; counts that disagree are forced between the two
    points. ``low.below <= window[1]`` and ``high.below > window[1]`` must hold. The closest points
    are returned if no sequence fits, or ``probes`` questions are used up (of ``below`` and to
    ``probe`` together).

    Regula falsi finds the cut within a few steps where messages are spread evenly. Where messages
    are in runs, with gaps between them, other methods follow a step that hardly reduced the error:

    - from the lower point at the density last seen there;
    - on a logarithmic scale, which finds a run in a range of any size;
    - by bisection.

    A lower point inside a gap is moved to the end of the gap.
    """
    least, most = window
    aim = (least + most) // 2
    used = 0
    poor_steps = 0  # one after the other
    error = high.below - low.below
    # Distance and messages of the last move of the lower point; at first as if every sequence
    # matched.
    step = Point(1, 1)
    while low.below < least and used < probes and high.sequence - low.sequence > 1:
        sequence = _guess(low, high, aim, step, method=poor_steps % 4)
        point = Point(sequence, min(max(below(sequence), low.below), high.below))
        used += 1
        if least <= point.below <= most:
            return Bracket(point, point, used)
        distance = abs(point.below - aim)
        # A good step halves the error.
        poor_steps = 0 if distance <= error // 2 else poor_steps + 1
        error = min(error, distance)
        if point.below > most:
            high = point
        elif point.below > low.below:
            step = Point(point.sequence - low.sequence, point.below - low.below)
            low = point
        elif used < probes:
            used += 1
            low = Point(_end_of_gap(probe, sequence, high), low.below)
    return Bracket(low, high, used)


def _end_of_gap(probe: Probe, sequence: int, high: Point) -> int:
    """Return the sequence of the next message, below `high`."""
    found = probe.peek(sequence)
    if found is None:
        return sequence
    return min(max(found[0], sequence), high.sequence - 1)


def _guess(low: Point, high: Point, aim: int, step: Point, *, method: int) -> int:
    """Return a sequence between two points where `aim` messages may be below."""
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
    # There is at most one message per sequence: nearer to either end the count cannot be `aim`.
    guess = min(max(guess, low.sequence + need), high.sequence - surplus)
    return min(max(guess, low.sequence + 1), high.sequence - 1)
