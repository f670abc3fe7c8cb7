"""A subscription whose messages are collected in bulk: where answers to pull requests and to publishes arrive."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spark_jetstream.errors import ConnectionFailed, ConsumerLost, JetStreamError, PermissionDenied
from spark_jetstream.wire import Frames, Status

if TYPE_CHECKING:
    from spark_jetstream.connection import Connection

_Event = Frames | Status | JetStreamError


class Inbox:
    """Made by `Connection.inbox`, for one reader at a time; use it as a context manager.

    Everything published through it is answered to `<subject>.<number>`, so an answer tells by its own subject which
    request it belongs to. `get` hands out what came, in the order of the wire. With `replies` everything comes as
    `Frames`, and with `whole`, where messages have no reply subject; without, those are read as `Status`.
    """

    def __init__(
        self, connection: Connection, subject: str, replies: bool = False, whole: bool = False, paced: bool = True
    ) -> None:
        self.subject = subject
        self.replies = replies
        self.whole = whole or replies
        self.paced = replies and paced
        self.generation = connection.reconnects
        self._connection = connection
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._published: set[str] = set()

    def publish(self, subject: str, payload: bytes, number: int) -> None:
        """Send a request whose answers come to this inbox; does not wait. Failures come out of `get`."""
        self._published.add(subject)
        self._connection.publish_for(self, subject, payload, f"{self.subject}.{number}")

    def send(self, frames: bytes | memoryview | Sequence[bytes | memoryview]) -> None:
        """Send complete PUB and HPUB frames, built with the reply subjects `<subject>.<number>`; does not wait.

        What is given must not change any more. It goes out in the order of the calls, once or not at all: over the
        connection as it was when the inbox was made or last resumed. When that is gone nothing is sent, and a
        `ConnectionFailed` comes out of `get` until `resume` is called. For an inbox with `replies`.
        """
        if not self.replies:
            raise ValueError("only an inbox with replies=True sends frames")
        whole = frames if isinstance(frames, (bytes, memoryview)) else b"".join(frames)
        self._connection.write_for(self, memoryview(whole).cast("B"), self.generation)

    def resume(self, patience: float) -> None:
        """Wait up to `patience` seconds until the connection is up, and send over that one from now on.

        What was sent before and has no answer yet may be stored or not, unless the connection was never cut. Answers
        that came before the cut are still to be had from `get`. Raises `ConnectionFailed` when the connection does
        not come back in time; at once when it was closed for good (`Connection.usable` is false then, and only a new
        connection helps).
        """
        self._connection.resume(self, patience)

    def get(self, timeout: float) -> Frames | Status | None:
        """The next run of messages or status; None when nothing came within `timeout` seconds.

        When the connection was cut raises `ConsumerLost`, or `ConnectionFailed` with `replies`. Raises
        `PermissionDenied` when the server refused a request; with `replies` when it refused any publish of the
        connection, and `subject` is then in lower case.
        """
        try:
            event = self._events.get(timeout=timeout) if timeout > 0 else self._events.get_nowait()
        except queue.Empty:
            return None
        if isinstance(event, JetStreamError):
            raise event
        return event

    def pace(self, paced: bool) -> None:
        """From now on answers come a few milliseconds late, as is good for many, or at once."""
        if paced != self.paced:
            self._connection.pace_for(self, paced)

    def close(self) -> None:
        """Unsubscribe. What comes later is dropped."""
        self._connection.close_inbox(self)

    def __enter__(self) -> Inbox:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # Called by the connection, on its own thread

    def put(self, event: _Event) -> None:
        """Let `get` hand this out or raise it."""
        self._events.put(event)

    def put_cut(self, message: str) -> None:
        """The connection was cut, or was not there to send something."""
        self.put(ConnectionFailed(message) if self.replies else ConsumerLost(message))

    def adopt(self, generation: int) -> None:
        """Go on with this generation of the connection, and forget that the ones before it were cut."""
        if generation == self.generation:
            return
        self.generation = generation
        kept: list[_Event] = []
        while not self._events.empty():
            kept.append(self._events.get_nowait())
        for event in kept:
            if not isinstance(event, ConnectionFailed):
                self.put(event)

    def put_denied(self, publishing: bool, subject: str, inboxes: PermissionDenied) -> bool:
        """The server refused a publish or a subscription to `subject` (in lower case); whether that is told here.

        `inboxes` is the error for a subscription that concerns this inbox.
        """
        own_subjects = (each for one in (*self._published, self.subject) for each in self._connection.spellings(one))
        own = next((each for each in own_subjects if subject.startswith(each.lower())), None)
        if own is None and not (publishing and self.replies):
            return False
        named = subject if own is None or self.replies else own
        error = PermissionDenied(f"the account may not publish to {named}", subject=named)
        self.put(error if publishing else inboxes)
        return True
