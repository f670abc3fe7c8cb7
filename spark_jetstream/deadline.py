"""A moment on the monotonic clock until which something may take."""

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
