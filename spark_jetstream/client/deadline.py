"""The time that something may take: deadlines, and pauses between attempts."""

from __future__ import annotations

import time

_LEAST = 2.0  # seconds


def share(seconds: float, count: int) -> float:
    """Return the seconds that each of `count` attempts has: at least two, if there are as many."""
    return max(seconds / count, min(seconds, _LEAST))


class Deadline:
    """A moment that many seconds from now, on the monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self._end - time.monotonic())

    @property
    def expired(self) -> bool:
        """Whether no time is left."""
        return time.monotonic() >= self._end

    def within(self, seconds: float) -> float:
        """Return `seconds`, or the seconds left if that is less."""
        return min(seconds, self.left)


class Backoff:
    """Pauses between attempts: `first` seconds, then twice as long each time, up to `most` seconds.

    With `at_once` the second attempt follows the first one without a pause. For one thread; `pause`
    blocks it.
    """

    def __init__(self, first: float = 0.05, most: float = 1.0, *, at_once: bool = False) -> None:
        self._first = first
        self._most = most
        self._at_once = at_once
        self.reset()

    def reset(self) -> None:
        """Begin again with the shortest pause."""
        self._next = 0.0 if self._at_once else self._first  # seconds of the next pause

    def pause(self, deadline: Deadline | None = None) -> None:
        """Sleep for the next pause, but not longer than the deadline allows."""
        seconds = min(self._next, self._most)
        self._next = 2 * seconds or self._first
        time.sleep(seconds if deadline is None else deadline.within(seconds))
