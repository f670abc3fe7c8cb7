"""Inboxes: subscriptions that receive the replies to pull requests and to publishes, in bulk."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import nats.errors

from spark_jetstream.client.limits import LIMITS, MemoryLimits
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

_EVENT = 1000  # bytes that an event takes, beside its messages
_MESSAGE = 160  # and that each message takes, beside what came over the wire
# Where much waits, messages that fill less than this part of their memory get their own.
_SMALL = 4


class Inbox:
    """Made by `Connection.inbox`, for one reader at a time; use it as a context manager.

    Everything published through it is answered to `<subject>.<token>`, so the subject of an answer
    tells which request it belongs to. `get` returns answers in the order of the wire; `receive`
    also replies of the API.
    """

    exclusive: bool = False
    """Whether a refused subscription of the inbox concerns no other inbox and no request."""

    def __init__(
        self,
        registry: Registry,
        subject: str,
        carries: Carries = Carries.ANSWERS,
        limits: MemoryLimits = LIMITS,
    ) -> None:
        self.subject = subject
        self.carries = carries
        self.pace = 0.0
        """Seconds between two reads of the connection. The reader sets it while it expects many
        answers: each read costs the same, for one answer or for hundreds."""
        self.generation = registry.login.reconnects
        """The login whose connection the inbox uses: since it was made, or last resumed."""
        self._registry = registry
        self._limits = limits
        # Each event has its bytes of memory.
        self._events: queue.SimpleQueue[tuple[Event, int]] = queue.SimpleQueue()
        self._most_bytes = limits.inbox  # that may wait in `_events`
        # Bytes that were put and taken. Each thread counts its own.
        self._came = 0  # on the loop's thread
        self._taken = 0  # on the reader's thread
        # The memory of the last frames, which may share it with the next ones.
        self._buffer: bytes | bytearray | None = None
        self._full = False  # too much has waited: nothing is put any more
        self._published: set[str] = set()  # subjects of requests, which the server may refuse

    def publish(
        self, subject: str, payload: bytes, token: int | str | None, headers: Pairs = ()
    ) -> None:
        """Send a request whose answers come to this inbox; does not wait.

        Without a token it asks for no answer. Requests go out in the order of the calls. `get`
        raises their failures.
        """
        self._published.add(subject)
        reply = "" if token is None else f"{self.subject}.{token}"
        self._registry.loop.soon(self._publish, subject, payload, reply, headers)

    def token(self, answer: Status | ApiReply) -> str:
        """Return the token of the request that is answered."""
        return answer.subject.decode("utf-8", "replace").removeprefix(f"{self.subject}.")

    def send(self, frames: bytes | memoryview | Sequence[bytes | memoryview]) -> None:
        """Send complete PUB and HPUB frames; does not wait.

        Their reply subjects are `<subject>.<number>`, and they must not change any more. They go
        out in the order of the calls, once or not at all: over the connection as it was when the
        inbox was made or last resumed. When that is gone nothing is sent, and `get` raises
        `ConnectionFailed` until `resume` is called. For an inbox that carries `REPLIES`.
        """
        if self.carries is not Carries.REPLIES:
            raise ValueError("only an inbox with replies=True sends frames")
        whole = frames if isinstance(frames, (bytes, memoryview)) else b"".join(frames)
        self._registry.loop.soon(
            self._registry.write, self, memoryview(whole).cast("B"), self.generation
        )

    def resume(self, patience: float) -> None:
        """Wait until the connection is up, and send over that one from now on.

        Frames without an answer may be stored or not, unless the connection was never cut. `get`
        still returns answers received before the cut. Raises `ConnectionFailed` if the connection
        does not come back within `patience` seconds, and at once if it was closed for good
        (`Connection.usable` is false).
        """
        self._registry.loop.run(self._adopt(patience), patience + 5)

    def get(self, timeout: float) -> Frames | Status | None:
        """Return the next run of messages or status; None if none comes within `timeout` seconds.

        Raises what `receive` raises.
        """
        event = self.receive(timeout)
        assert not isinstance(event, ApiReply)
        return event

    def receive(
        self, timeout: float, token: str | None = None
    ) -> Frames | Status | ApiReply | None:
        """Return the next run of messages or status, or the reply to the request with `token`.

        None if nothing arrives within `timeout` seconds.

        Raises:
            ProtocolError: The server sent too much.
            ConsumerLost: The reply is that of another request, or the connection was cut.
            ConnectionFailed: The connection of an inbox for `REPLIES` was cut.
            PermissionDenied: The account may not send the request. An inbox for `REPLIES` raises it
                for any publish of the connection, with `subject` in lower case.
        """
        try:
            event, size = self._events.get(timeout > 0, timeout)
        except queue.Empty:
            return None
        self._taken += size
        if isinstance(event, JetStreamError):
            raise event
        if isinstance(event, ApiReply) and self.token(event) != token:
            raise ConsumerLost(
                "the server answered a pull request with a message that has no reply subject and is "
                "not a status"
            )
        return event

    def expect(self, most_bytes: int) -> None:
        """Let `most_bytes` more wait here, since the reader asks for them in one request."""
        self._most_bytes = self._limits.inbox + most_bytes

    def close(self) -> None:
        """Unsubscribe, and drop all that arrives later."""
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
        # The error is the last event: a server that goes on sending fills no memory.
        if self._full:
            return
        # A reader that keeps up has no use for a copy.
        much = 2 * (self._came - self._taken) > self._most_bytes
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
        """Return about how many bytes an event keeps; memory that several share counts once."""
        if isinstance(event, ApiReply):
            return _EVENT + len(event.payload)
        if isinstance(event, Status):
            return _EVENT + sum(len(name) + len(value) for name, value in event.headers.items())
        if isinstance(event, JetStreamError):
            return _EVENT
        size = _EVENT + _MESSAGE * len(event)
        # Runs of one read share their memory, and come one after the other.
        if event.data is not self._buffer:
            self._buffer = event.data
            size += len(event.data)
        return size

    def put_cut(self, message: str) -> None:
        """Hear that the connection was cut, or was not there to send something."""
        if self.carries is Carries.REPLIES:
            self.put(ConnectionFailed(message))
        else:
            self.put(ConsumerLost(message))

    async def _adopt(self, patience: float) -> None:
        """Go on with the connection that is up next, and forget the cuts before it."""
        await self._registry.login.wait(patience)
        # No cut since: the answers that wait are those of this connection.
        if self.generation == self._registry.login.reconnects:
            return
        self.generation = self._registry.login.reconnects
        for _ in range(self._events.qsize()):
            event, size = self._events.get_nowait()
            # Answers from before the cut are kept: test_answers_from_before_the_cut_are_kept.
            if isinstance(event, ConnectionFailed):
                self._taken += size
            else:
                self._events.put((event, size))

    def put_denied(self, publishing: bool, subject: str, inboxes: PermissionDenied) -> bool:
        """Hear that the server has refused a publish or a subscription; whether it is of here."""
        if publishing:
            # The subject must be the same in full:
            # a refusal for stream ORDERS_EU must not fail a reader of ORDERS.
            named = self._published_name(subject)
            if named is None:
                return False
            self.put(PermissionDenied(f"the account may not publish to {named}", subject=named))
            return True
        if not subject.startswith(f"{self.subject.lower()}."):
            return False
        self.put(inboxes)
        return True

    def _published_name(self, subject: str) -> str | None:
        """Return the inbox's own name of a subject (in lower case) that it publishes to."""
        if self.carries is Carries.REPLIES:
            return subject  # nobody knows the subjects of the frames that it has sent
        for own in self._published:
            for name in self._registry.login.spellings(own):
                if name.lower() == subject:
                    return name
        return None


def _apart(frames: Frames) -> Frames:
    """Copy messages out of a shared buffer, unless they fill most of it."""
    first = int(frames.begin[0])
    # After the payload of the last message and its CR LF.
    end = int(frames.line_end[-1] + frames.size[-1]) + 2
    if _SMALL * (end - first) >= len(frames.data):
        return frames
    return replace(
        frames,
        data=frames.data[first:end],
        begin=frames.begin - first,
        line_end=frames.line_end - first,
    )
