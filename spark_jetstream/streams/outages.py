"""Attempts of a reader, one after the other, until its range has ended: `through_outages`.

docs/architecture.md has the rules ("Outages"). All readers of this package and a watch use it.

| an attempt | `through_outages` |
|---|---|
| yields something | ends the outage |
| ends, and `next` is before the end of the range | makes another attempt |
| raises an error that may pass | makes another one after a pause; `OutageError` after `retry_timeout` |
| raises another error | raises it |
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from typing import Protocol, TypeVar

from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.client.reasons import HUNG_UP
from spark_jetstream.errors import ConnectionFailed, ConsumerLost, JetStreamError, OutageError
from spark_jetstream.options import advice
from spark_jetstream.protocol.stream import SequenceRange

Run_co = TypeVar("Run_co", covariant=True)


class Cuts:
    """Counts how often the server has closed the connection of a reader without a word.

    It does that to a client for which more bytes wait than its `max_pending`. A server that is shut
    down says nothing either; but that a reader meets this twice is unlikely.
    """

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy
        self._count = 0

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count a cut inside of the block.

        From the second one on its error ends with the remedy, if there is one.
        """
        try:
            yield
        except ConsumerLost as error:
            # Other losses of a consumer come with a reason,
            # and say nothing of the server's `max_pending`.
            if not str(error).endswith(HUNG_UP):
                raise
            self._count += 1
            # A server that is restarted closes a connection once.
            if self._count < 2 or not self._remedy:
                raise
            raise ConsumerLost(f"{error}; {self._remedy}") from None


class Reader(Protocol[Run_co]):
    """The reader that `through_outages` runs: it owns its position."""

    part: SequenceRange
    next: int

    def attempt(self, patience: Deadline) -> Iterator[Run_co]:
        """Yield the messages from `next` on, over one connection, and move `next` past them.

        The connection may take as long as `patience`.
        """

    def failed(self, error: JetStreamError) -> bool:
        """Log the failure of an attempt that may pass, or raise it.

        Return whether to pause before the next attempt.
        """


def through_outages(
    reader: Reader[Run_co], retry_timeout: float, backoff: Backoff, doing: str = "reading stream"
) -> Generator[Run_co, None, None]:
    """Yield what the attempts of a reader yield, until `next` is the end of its range.

    Raises `OutageError`, which begins with `doing` and the name of the stream, and errors that do
    not pass.
    """
    outage: Deadline | None = None  # from the first failure to the next progress
    while reader.next < reader.part.end:
        before = reader.next
        progressed = False
        attempt = Deadline(retry_timeout)
        try:
            for run in reader.attempt(outage or attempt):
                progressed = True
                yield run
        except JetStreamError as error:
            if not error.retriable:
                raise
            if progressed or reader.next > before:
                # `retry_timeout` counts from the last message:
                # test_retry_timeout_begins_anew_with_every_message.
                outage = Deadline(retry_timeout)
                backoff.reset()
            elif outage is None:
                outage = begun_outage(error, attempt)
            _check_time(outage, reader, doing, error)
            if reader.failed(error):
                backoff.pause(outage)
        else:
            outage = None
            backoff.reset()


def _check_time(
    outage: Deadline, reader: Reader[object], doing: str, error: JetStreamError
) -> None:
    """Raise `OutageError` for an outage of which no time is left; `error` is its last one."""
    if outage.expired:
        raise OutageError(
            f"{doing} {reader.part.stream} at sequence {reader.next} got no further for "
            f"{outage.seconds:g} s {advice.RETRY_TIMEOUT}: {error}"
        ) from error


def begun_outage(error: JetStreamError, attempt: Deadline) -> Deadline:
    """Return the outage that begins with a failed attempt."""
    # Waiting for a connection is part of the outage; waiting for a reply came before it.
    if isinstance(error, ConnectionFailed):
        return attempt
    return Deadline(attempt.seconds)
