"""The time that something may take: deadlines, pauses between attempts, and outages."""

from __future__ import annotations

import time

from spark_jetstream.errors import ConnectionFailed, JetStreamError, OutageError
from spark_jetstream.options import advice


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
    """Pauses between attempts: `first` seconds, then twice as long each time, but at most `most` seconds.

    With `at_once` the second attempt follows the first one without a pause. For one thread; `pause` blocks it.
    """

    def __init__(self, first: float = 0.05, most: float = 1.0, *, at_once: bool = False) -> None:
        self._first = first
        self._most = most
        self._at_once = at_once
        self.reset()

    def reset(self) -> None:
        """Begin again with the shortest pause."""
        self._next = 0.0 if self._at_once else self._first  # seconds of the next pause

    def seconds(self) -> float:
        """Return the length of the next pause; each call counts as one attempt."""
        seconds = min(self._next, self._most)
        self._next = 2 * seconds or self._first
        return seconds

    def pause(self, deadline: Deadline | None = None) -> None:
        """Sleep for the next pause, but not longer than the deadline allows."""
        seconds = self.seconds()
        time.sleep(seconds if deadline is None else deadline.within(seconds))


class Outage:
    """Failures in a row, which may last `patience` seconds, counted from the last success.

    Call `begin` before each attempt, `over` after each success, and `failed` after each failure.
    """

    def __init__(self, patience: float, backoff: Backoff) -> None:
        self._patience = patience
        self._backoff = backoff
        self._deadline: Deadline | None = None  # the end of the outage, from its first failure to the next success
        self._attempt = Deadline(patience)  # what the deadline will be if this attempt finds no connection

    def begin(self) -> Deadline:
        """Begin an attempt and return the time that it may wait for a connection."""
        self._attempt = Deadline(self._patience)
        return self._deadline or self._attempt

    def over(self) -> None:
        """End the outage: something succeeded."""
        self._deadline = None
        self._backoff.reset()

    def failed(self, error: JetStreamError, doing: str, *, progressed: bool = False) -> None:
        """Count a failure; raise `OutageError` with the participle `doing` after too long an outage.

        Raises `error` itself if it cannot pass. With `progressed` the attempt succeeded in part: a new outage begins.
        """
        if not error.retriable:
            raise error
        if progressed:
            self.over()
            self._deadline = Deadline(self._patience)
        elif self._deadline is None:
            # Waiting for a connection is part of the outage; waiting for a reply came before it.
            self._deadline = self._attempt if isinstance(error, ConnectionFailed) else Deadline(self._patience)
        if self._deadline.expired:
            raise OutageError(
                f"{doing} got no further for {self._patience:g} s {advice.RETRY_TIMEOUT}: {error}"
            ) from error

    def pause(self) -> None:
        """Sleep before the next attempt."""
        self._backoff.pause(self._deadline)
