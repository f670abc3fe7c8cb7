"""Time that something may take: a moment on the monotonic clock, and the pauses between attempts before it."""

from __future__ import annotations

import time


class Deadline:
    """`Deadline(seconds)` expires that many seconds from now; the wall clock does not move it."""

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
        """`seconds`, or what is left if that is less: for a time-out inside a longer one."""
        return min(seconds, self.left)


class Backoff:
    """Pauses between attempts: `first` seconds, then twice as long each time, but no longer than `most`.

    With `at_once` the second attempt follows the first without a pause, as it should where what failed is most likely
    whole again, and the pauses begin behind it. For one thread; `pause` blocks it.
    """

    def __init__(self, first: float = 0.05, most: float = 1.0, *, at_once: bool = False) -> None:
        self._first = first
        self._most = most
        self._at_once = at_once
        self.reset()

    def reset(self) -> None:
        """Begin anew: something succeeded."""
        self._skip = self._at_once
        self._next = self._first

    def seconds(self) -> float:
        """How long the next pause is to be; each call is one attempt."""
        if self._skip:
            self._skip = False
            return 0.0
        seconds = min(self._next, self._most)
        self._next = 2 * seconds
        return seconds

    def pause(self, deadline: Deadline | None = None) -> None:
        """Sleep for the next pause, but not beyond the deadline."""
        seconds = self.seconds()
        time.sleep(seconds if deadline is None else deadline.within(seconds))
