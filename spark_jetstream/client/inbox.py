"""Inboxes: subscriptions that receive the replies to pull requests and to publishes, in bulk."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import nats.errors

from spark_jetstream.client.reasons import error_text
from spark_jetstream.client.registry import Carries, Event, Registry
from spark_jetstream.errors import (
    ConnectionFailed,
    ConsumerLost,
    JetStreamError,
    PermissionDenied,
    ProtocolError,
)
from spark_jetstream.protocol.wire import ApiReply, Frames, Status

Pairs = Sequence[tuple[str, str]]
"""Headers: each name with a value; a name may be repeated."""
_Own = TypeVar("_Own", bound="Inbox")

MOST_WAITING = 96 << 20
"""Bytes of memory that may wait in an inbox beside what its reader expects: a limit for servers that send more than was
requested. The largest message has as many."""
_EVENT = 1000  # bytes that an event takes, beside its messages
_MESSAGE = 160  # and that each message takes, beside what came over the wire
_SMALL = 4  # where much waits, messages that are less than this part of the memory they came into get their own


class Inbox:
    """Made by `Connection.inbox`, for one reader at a time; use it as a context manager.

    Everything published through it is answered to `<subject>.<token>`, so an answer tells by its own subject which
    request it belongs to. `get` hands out what came, in the order of the wire; `receive` also replies of the API. It
    has thirteen attributes because two threads use it, the loop's and the reader's, and each counts what it does.
    """

    exclusive: bool = False
    """Whether a refused subscription of the inbox concerns no other inbox and no request."""

    def __init__(
        self, registry: Registry, subject: str, carries: Carries = Carries.ANSWERS
    ) -> None:
        self.subject = subject
        self.carries = carries
        self.pace = 0.0
        """Seconds between two reads of the connection, set by the reader while many answers are to come: each read
        costs the same, for one answer or for hundreds."""
        self.generation = registry.login.reconnects
        """The login whose connection the inbox uses: of the time when it was made, or last resumed."""
        self._registry = registry
        self._events: queue.SimpleQueue[tuple[Event, int]] = (
            queue.SimpleQueue()
        )  # each with its bytes of memory
        self._most_bytes = MOST_WAITING  # that may wait in `_events`
        self._came = 0  # bytes that were put: counted on the loop's thread
        self._taken = 0  # bytes that were taken: counted on the reader's thread
        self._buffer: bytes | bytearray | None = (
            None  # of the last frames, which may share it with the next ones
        )
        self._full = False  # too much has waited: nothing is put any more
        self._published: set[str] = set()  # subjects of requests, which the server may refuse

    def publish(
        self, subject: str, payload: bytes, token: int | str | None, headers: Pairs = ()
    ) -> None:
        """Send a request whose answers come to this inbox; does not wait. Failures come out of `get`.

        Without a token it asks for no answer. What is published in a row goes out in this order.
        """
        self._published.add(subject)
        reply = "" if token is None else f"{self.subject}.{token}"
        self._registry.loop.soon(self._publish, subject, payload, reply, headers)

    def token(self, answer: Status | ApiReply) -> str:
        """Return the token of the request that is answered."""
        return answer.subject.decode("utf-8", "replace").removeprefix(f"{self.subject}.")

    def send(self, frames: bytes | memoryview | Sequence[bytes | memoryview]) -> None:
        """Send complete PUB and HPUB frames, built with the reply subjects `<subject>.<number>`; does not wait.

        What is given must not change any more. It goes out in the order of the calls, once or not at all: over the
        connection as it was when the inbox was made or last resumed. When that is gone nothing is sent, and a
        `ConnectionFailed` comes out of `get` until `resume` is called. For an inbox that carries `REPLIES`.
        """
        if self.carries is not Carries.REPLIES:
            raise ValueError("only an inbox with replies=True sends frames")
        whole = frames if isinstance(frames, (bytes, memoryview)) else b"".join(frames)
        self._registry.loop.soon(
            self._registry.write, self, memoryview(whole).cast("B"), self.generation
        )

    def resume(self, patience: float) -> None:
        """Wait up to `patience` seconds until the connection is up, and send over that one from now on.

        What was sent before and has no answer yet may be stored or not, unless the connection was never cut. `get`
        still hands out answers that came before the cut. Raises `ConnectionFailed` if the connection does not come back
        in time, at once if it was closed for good (`Connection.usable` is false).
        """
        self._registry.loop.run(self._adopt(patience), patience + 5)

    def get(self, timeout: float) -> Frames | Status | None:
        """The next run of messages or status; None when nothing came within `timeout` seconds.

        Raises what `receive` raises.
        """
        event = self.receive(timeout)
        assert not isinstance(event, ApiReply)
        return event

    def receive(
        self, timeout: float, token: str | None = None
    ) -> Frames | Status | ApiReply | None:
        """The next run of messages or status, or the reply to the request that was published with `token`.

        None when nothing came within `timeout` seconds. Raises `ProtocolError` if the server sent too much;
        `ConsumerLost` for a reply to another request, and after a cut (`REPLIES`: `ConnectionFailed`); and
        `PermissionDenied` for a request (`REPLIES`: for any publish of the connection, `subject` in lower case).
        """
        try:
            event, size = (
                self._events.get(timeout=timeout) if timeout > 0 else self._events.get_nowait()
            )
        except queue.Empty:
            return None
        self._taken += size
        if isinstance(event, JetStreamError):
            raise event
        if isinstance(event, ApiReply) and self.token(event) != token:
            raise ConsumerLost(
                "a message without a reply subject, and not a status, came for a pull request"
            )
        return event

    def expect(self, most_bytes: int) -> None:
        """The reader asks for so many bytes at a time; more of them may wait here from now on."""
        self._most_bytes = MOST_WAITING + most_bytes

    def close(self) -> None:
        """Unsubscribe. What comes later is dropped."""
        self._registry.loop.soon(self._registry.remove, self)

    def __enter__(self: _Own) -> _Own:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # On the loop's thread

    def _publish(self, subject: str, payload: bytes, reply: str, headers: Pairs) -> None:
        try:
            self._registry.login.publish(subject, payload, reply, headers)
        except (nats.errors.Error, OSError, ValueError) as error:
            self.put(ConsumerLost(f"a request could not be sent: {error_text(error)}"))

    def put(self, event: Event) -> None:
        """Let `get` hand this out or raise it, unless too much waits already."""
        if self._full:
            return
        much = (
            2 * (self._came - self._taken) > self._most_bytes
        )  # a reader that keeps up has no use for a copy
        if much and isinstance(event, Frames) and event.data is not self._buffer:
            event = _apart(event)
        size = self._memory_of(event)
        self._came += size
        if self._came - self._taken > self._most_bytes:
            self._full = True
            event = ProtocolError(
                f"the server sent more than {self._most_bytes:,} bytes that nobody has asked for"
            )
        self._events.put((event, size))

    def _memory_of(self, event: Event) -> int:
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
        self.put(
            ConnectionFailed(message) if self.carries is Carries.REPLIES else ConsumerLost(message)
        )

    async def _adopt(self, patience: float) -> None:
        """Go on with the connection that is up next, and forget that the ones before it were cut."""
        await self._registry.login.wait(patience)
        if self.generation == self._registry.login.reconnects:
            return
        self.generation = self._registry.login.reconnects
        for _ in range(self._events.qsize()):
            event, size = self._events.get_nowait()
            if isinstance(event, ConnectionFailed):
                self._taken += size
            else:
                self._events.put((event, size))

    def put_denied(self, publishing: bool, subject: str, inboxes: PermissionDenied) -> bool:
        """The server refused a publish or a subscription to `subject` (in lower case); whether that is told here.

        `inboxes` is the error for a subscription that concerns this inbox.
        """
        error: PermissionDenied | None = None
        if publishing:
            published = (
                name for own in self._published for name in self._registry.login.spellings(own)
            )
            own = next((name for name in published if name.lower() == subject), None)
            named = subject if self.carries is Carries.REPLIES else own
            if named is not None:
                error = PermissionDenied(f"the account may not publish to {named}", subject=named)
        elif subject.startswith(f"{self.subject.lower()}."):
            error = inboxes
        if error is not None:
            self.put(error)
        return error is not None


def _apart(frames: Frames) -> Frames:
    """Return messages without what came before and after them for others, unless they are much of the memory."""
    first, end = int(frames.begin[0]), int(frames.line_end[-1] + frames.size[-1]) + 2
    if _SMALL * (end - first) >= len(frames.data):
        return frames
    begin, line_end = frames.begin - first, frames.line_end - first
    return replace(frames, data=frames.data[first:end], begin=begin, line_end=line_end)
