"""Inboxes: subscriptions that receive the replies to pull requests and to publishes, in bulk."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Protocol

from spark_jetstream.errors import ConnectionFailed, ConsumerLost, JetStreamError, PermissionDenied, ProtocolError
from spark_jetstream.protocol.wire import ApiReply, Frames, Status

_Event = Frames | Status | ApiReply | JetStreamError

MOST_WAITING = 96 << 20
"""Bytes of memory that may wait in an inbox beside what its reader expects: a limit for servers that send more than was
requested. The largest message has as many."""
_EVENT = 1000  # bytes that an event takes, beside its messages
_MESSAGE = 160  # and that each message takes, beside what came over the wire


class Link(Protocol):
    """What an inbox needs of its connection."""

    reconnects: int

    def publish_for(self, inbox: Inbox, subject: str, payload: bytes, reply: str) -> None:
        """Send a request."""

    def write_for(self, inbox: Inbox, frames: bytes | memoryview, generation: int) -> None:
        """Send complete frames."""

    def resume(self, inbox: Inbox, patience: float) -> None:
        """Wait until the connection is up, and let the inbox use it."""

    def spellings(self, subject: str) -> tuple[str, ...]:
        """Return the names that the server may have for a subject."""

    def close_inbox(self, inbox: Inbox) -> None:
        """Unsubscribe."""


class Inbox:
    """Made by `Connection.inbox`, for one reader at a time; use it as a context manager.

    Everything published through it is answered to `<subject>.<token>`, so an answer tells by its own subject which
    request it belongs to. `get` hands out what came, in the order of the wire; `receive` also replies of the API. With
    `replies` everything comes as `Frames`, and with `whole`, where messages have no reply subject; without, those are
    read as `Status` if they have headers, and as `ApiReply` if not. As long as `paced` is true, answers come a few
    milliseconds late, as is good for many.
    """

    def __init__(
        self, link: Link, subject: str, replies: bool = False, whole: bool = False, paced: bool = True
    ) -> None:
        self.subject = subject
        self.replies = replies
        self.whole = whole or replies
        self.paced = replies and paced
        self.generation = link.reconnects
        self._link = link
        self._events: queue.SimpleQueue[tuple[_Event, int]] = queue.SimpleQueue()
        self._most_bytes = MOST_WAITING
        self._came = 0  # bytes of memory: counted on the connection's thread
        self._taken = 0  # counted on the reader's thread
        self._buffer: bytes | None = None
        self._full = False
        self._published: set[str] = set()

    def publish(self, subject: str, payload: bytes, token: int | str) -> None:
        """Send a request whose answers come to this inbox; does not wait. Failures come out of `get`.

        What is published in a row goes out in this order, most often in one write.
        """
        self._published.add(subject)
        self._link.publish_for(self, subject, payload, f"{self.subject}.{token}")

    def token(self, answer: Status | ApiReply) -> str:
        """Return the token of the request that is answered."""
        return answer.subject.decode("utf-8", "replace").removeprefix(f"{self.subject}.")

    def send(self, frames: bytes | memoryview | Sequence[bytes | memoryview]) -> None:
        """Send complete PUB and HPUB frames, built with the reply subjects `<subject>.<number>`; does not wait.

        What is given must not change any more. It goes out in the order of the calls, once or not at all: over the
        connection as it was when the inbox was made or last resumed. When that is gone nothing is sent, and a
        `ConnectionFailed` comes out of `get` until `resume` is called. For an inbox with `replies`.
        """
        if not self.replies:
            raise ValueError("only an inbox with replies=True sends frames")
        whole = frames if isinstance(frames, (bytes, memoryview)) else b"".join(frames)
        self._link.write_for(self, memoryview(whole).cast("B"), self.generation)

    def resume(self, patience: float) -> None:
        """Wait up to `patience` seconds until the connection is up, and send over that one from now on.

        What was sent before and has no answer yet may be stored or not, unless the connection was never cut. `get`
        still hands out answers that came before the cut. Raises `ConnectionFailed` if the connection does not come back
        in time, at once if it was closed for good (`Connection.usable` is false).
        """
        self._link.resume(self, patience)

    def get(self, timeout: float) -> Frames | Status | None:
        """The next run of messages or status; None when nothing came within `timeout` seconds.

        Raises what `receive` raises.
        """
        event = self.receive(timeout)
        assert not isinstance(event, ApiReply)
        return event

    def receive(self, timeout: float, token: str | None = None) -> Frames | Status | ApiReply | None:
        """The next run of messages or status, or the reply to the request that was published with `token`.

        None when nothing came within `timeout` seconds. Raises `ProtocolError` if the server sent too much;
        `ConsumerLost` for a reply to another request, and after a cut, with `replies` `ConnectionFailed`; and
        `PermissionDenied` for a request, with `replies` for any publish of the connection (`subject` in lower case).
        """
        try:
            event, size = self._events.get(timeout=timeout) if timeout > 0 else self._events.get_nowait()
        except queue.Empty:
            return None
        self._taken += size
        if isinstance(event, JetStreamError):
            raise event
        if isinstance(event, ApiReply) and self.token(event) != token:
            raise ConsumerLost("a message without a reply subject, and not a status, came for a pull request")
        return event

    def expect(self, most_bytes: int) -> None:
        """The reader asks for so many bytes at a time; more of them may wait here from now on."""
        self._most_bytes = MOST_WAITING + most_bytes

    def close(self) -> None:
        """Unsubscribe. What comes later is dropped."""
        self._link.close_inbox(self)

    def __enter__(self) -> Inbox:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # Called by the connection, on its own thread

    def put(self, event: _Event) -> None:
        """Let `get` hand this out or raise it, unless too much waits already."""
        if self._full:
            return
        size = self._memory_of(event)
        self._came += size
        if self._came - self._taken > self._most_bytes:
            self._full = True
            event = ProtocolError(f"the server sent more than {self._most_bytes:,} bytes that nobody has asked for")
        self._events.put((event, size))

    def _memory_of(self, event: _Event) -> int:
        """About how many bytes an event keeps; a buffer that several events share counts once."""
        if isinstance(event, ApiReply):
            return _EVENT + len(event.payload)
        if isinstance(event, Status):
            return _EVENT + sum(len(name) + len(value) for name, value in event.headers.items())
        if isinstance(event, JetStreamError):
            return _EVENT
        shared = event.data is self._buffer
        self._buffer = event.data
        return _EVENT + _MESSAGE * len(event) + (0 if shared else len(event.data))

    def put_cut(self, message: str) -> None:
        """The connection was cut, or was not there to send something."""
        self.put(ConnectionFailed(message) if self.replies else ConsumerLost(message))

    def adopt(self, generation: int) -> None:
        """Go on with this generation of the connection, and forget that the ones before it were cut."""
        if generation == self.generation:
            return
        self.generation = generation
        for _ in range(self._events.qsize()):
            event, size = self._events.get_nowait()
            if not isinstance(event, ConnectionFailed):
                self._events.put((event, size))

    def put_denied(self, publishing: bool, subject: str, inboxes: PermissionDenied) -> bool:
        """The server refused a publish or a subscription to `subject` (in lower case); whether that is told here.

        `inboxes` is the error for a subscription that concerns this inbox.
        """
        own_subjects = (name for own in (*self._published, self.subject) for name in self._link.spellings(own))
        own = next((name for name in own_subjects if subject.startswith(name.lower())), None)
        if own is None and not (publishing and self.replies):
            return False
        named = subject if own is None or self.replies else own
        error = PermissionDenied(f"the account may not publish to {named}", subject=named)
        self.put(error if publishing else inboxes)
        return True
