"""Plain subscriptions: the messages of some subjects, in the order of the wire."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from spark_jetstream.client.inbox import Inbox, Pairs
from spark_jetstream.client.limits import LIMITS, MemoryLimits
from spark_jetstream.client.registry import Carries, Registry
from spark_jetstream.errors import ConnectionFailed, JetStreamError, PermissionDenied
from spark_jetstream.protocol.headers import block_headers
from spark_jetstream.protocol.wire import ApiReply, Frames, Status

_OVERHEAD = 200
"""Bytes of memory that a message takes beside its subject and its content."""


class CoreMessage(NamedTuple):
    """A message of core NATS. Its subjects have U+FFFD for what is no UTF-8."""

    subject: str
    data: bytes
    reply: str = ""
    """The subject on which its publisher expects replies; empty for none."""
    hdrs: bytes = b""
    """Its header block, as it is; empty without one."""

    @property
    def headers(self) -> dict[str, list[str]]:
        """The headers: every value of every name, in their order.

        Bytes that are not UTF-8 become U+FFFD.
        """
        return block_headers(self.hdrs)


def _memory(message: CoreMessage) -> int:
    """Return about how many bytes of memory a message takes while it waits."""
    return sum(map(len, message)) + _OVERHEAD


def messages(frames: Frames) -> Iterator[CoreMessage]:
    """Yield the messages of a run."""
    lines = frames.lines.tobytes()
    for at, (hdrs, data) in enumerate(frames.parts()):
        subject = lines[int(frames.subject_start[at]) : int(frames.subject_end[at])]
        text = subject.decode("utf-8", "replace")
        yield CoreMessage(text, data, frames.reply_subject(at), hdrs)


class Dropped(NamedTuple):
    """The number of messages that the listener dropped because its reader was too slow."""

    messages: int


class _Disconnect(NamedTuple):
    message: str
    generation: int


_Heard = CoreMessage | Dropped | JetStreamError | _Disconnect | None


class Subscribed(Inbox):
    """Made by `Connection.subscribe`: an inbox for all messages of some subjects, as `Frames`."""

    exclusive = True

    def __init__(
        self, registry: Registry, subjects: Sequence[str], limits: MemoryLimits = LIMITS
    ) -> None:
        super().__init__(registry, subjects[0], Carries.MESSAGES, limits)
        self.subjects = tuple(subjects)
        self.answered = ""
        """The subject of the last answer that its reader published: `get` raises its refusal."""
        self.denied: PermissionDenied | None = None
        """The first refused subscription, or the refused message of `publish_confirmed`."""

    def put_denied(self, publishing: bool, subject: str, inboxes: PermissionDenied) -> bool:
        """Hear that the server has refused a publish or a subscription; whether it is of here."""
        subjects, verb = self.subjects, "subscribe"
        if publishing:
            subjects, verb = (self.answered,), "publish"
        for own in subjects:
            if own.lower() == subject:
                error = PermissionDenied(f"the account may not {verb} to {own}", subject=own)
                self.denied = self.denied or error
                self.put(error)
                return True
        return False


class Listener(Subscribed):
    """Made by `Connection.listen`; for one reader at a time. Any thread may close it.

    A reader that sets `generation` forgets that earlier generations (`Connection.reconnects`) were
    cut. The listener has a queue of its own, because it drops messages where an inbox fails.
    """

    def __init__(
        self, registry: Registry, subjects: Sequence[str], limits: MemoryLimits = LIMITS
    ) -> None:
        super().__init__(registry, subjects, limits)
        self._waiting: queue.SimpleQueue[_Heard] = queue.SimpleQueue()
        self._lock = threading.Lock()  # of the two numbers below
        self._size = 0  # bytes of memory that wait
        self._missed = 0  # messages dropped since the reader was last told of some

    def hear(self, timeout: float) -> CoreMessage | Dropped | None:
        """Return the next message; None if none comes within ``timeout`` seconds.

        None also when the listener was closed. Raises `ConnectionFailed` if messages may be lost by
        a cut, and `PermissionDenied`.
        """
        while True:
            try:
                event = self._waiting.get(timeout > 0, timeout)
            except queue.Empty:
                return None
            if isinstance(event, _Disconnect):
                if event.generation < self.generation:
                    continue
                raise ConnectionFailed(event.message)
            if isinstance(event, JetStreamError):
                raise event
            with self._lock:
                if isinstance(event, Dropped):
                    event = Dropped(self._missed)
                    self._missed = 0
                elif event is not None:
                    self._size -= _memory(event)
            return event

    def publish_confirmed(self, subject: str, payload: bytes, headers: Pairs) -> None:
        """Publish a message. When this returns, the server has it.

        Raises `PermissionDenied` and `ConnectionFailed`.
        """
        self.answered = subject
        self.denied = None
        login = self._registry.login
        generation = login.reconnects
        self.publish(subject, payload, None, headers)
        # The answer comes after everything that the server says about the message.
        seconds = login.options.request_timeout
        self._registry.loop.run(login.ping(seconds), seconds + 5)
        self._published.clear()
        if self.denied is not None:
            raise self.denied
        # An answer over a later connection does not confirm a message that was sent over the
        # earlier one: test_a_message_that_a_cut_may_have_lost_is_not_confirmed.
        if login.reconnects != generation:
            raise ConnectionFailed(
                f"the connection was cut: the server may not have the message to {subject}"
            )

    def close(self) -> None:
        """Unsubscribe. The reader still gets the messages received before, then None."""
        super().close()
        self._waiting.put(None)

    # Called by the connection, on its own thread

    def put(self, event: Frames | Status | ApiReply | JetStreamError) -> None:
        """Make `hear` return or raise this."""
        if isinstance(event, JetStreamError):
            # `publish_confirmed` raises a refusal of its own message.
            own = isinstance(event, PermissionDenied) and event.subject == self.answered
            if not own:
                self._waiting.put(event)
        elif isinstance(event, Frames):
            for message in messages(event):
                self._put_message(message)

    def put_cut(self, message: str) -> None:
        """Note that the connection was cut."""
        self._waiting.put(_Disconnect(message, self._registry.login.reconnects))

    def _put_message(self, message: CoreMessage) -> None:
        with self._lock:
            size = _memory(message)
            # Once one is missed, the next ones are too, until the reader was told.
            fits = not self._missed and self._size + size <= self._limits.listener
            if fits:
                self._size += size
            else:
                self._missed += 1
            first_missed = self._missed == 1
        if fits:
            self._waiting.put(message)
        elif first_missed:
            self._waiting.put(Dropped(0))  # `hear` counts
