"""Plain subscriptions: the messages of some subjects, in the order of the wire."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from typing import NamedTuple

from spark_jetstream.client.inbox import Carries, Inbox, Inboxes
from spark_jetstream.errors import ConnectionFailed, JetStreamError, PermissionDenied
from spark_jetstream.protocol.wire import ApiReply, Frames, Status

MOST_BYTES = 64 * 1024 * 1024
"""Bytes that may wait before the listener drops messages: a limit for readers that are too slow."""
_OVERHEAD = 200
"""Bytes of memory that a message takes beside its subject and its content."""


class Message(NamedTuple):
    """A message: its subject, with U+FFFD for what is no UTF-8, and its content."""

    subject: str
    data: bytes

    @property
    def size(self) -> int:
        """Bytes of memory that it takes while it waits, about."""
        return len(self.subject) + len(self.data) + _OVERHEAD


class Dropped(NamedTuple):
    """The number of messages that the listener dropped because its reader was too slow."""

    messages: int


class Subscribed(Inbox):
    """Made by `Connection.subscribe`: an inbox that has all messages of some subjects of the account, as `Frames`."""

    exclusive = True

    def __init__(self, registry: Inboxes, subjects: Sequence[str]) -> None:
        super().__init__(registry, subjects[0], Carries.MESSAGES)
        self.subjects = tuple(subjects)
        self.answered = ""
        """The subject of the last answer that its reader published: a refusal of it comes out of `get`."""
        self.denied: PermissionDenied | None = None
        """The first refused subscription, for `Connection.listen`."""

    def put_denied(self, publishing: bool, subject: str, inboxes: PermissionDenied) -> bool:
        """The server refused a publish or subscription to `subject` (in lower case); whether it is one of these."""
        subjects = (self.answered,) if publishing else self.subjects
        own = next((name for name in subjects if name.lower() == subject), None)
        if own is None:
            return False
        verb = "publish" if publishing else "subscribe"
        error = PermissionDenied(f"the account may not {verb} to {own}", subject=own)
        self.denied = self.denied or error
        self.put(error)
        return True


class Listener(Subscribed):
    """Made by `Connection.listen`; for one reader at a time. Any thread may close it.

    A reader that sets `generation` forgets that earlier generations (`Connection.reconnects`) were cut. It has a queue
    of its own, because it drops messages where an inbox fails.
    """

    def __init__(self, registry: Inboxes, subjects: Sequence[str]) -> None:
        super().__init__(registry, subjects)
        self._waiting: queue.SimpleQueue[Message | Dropped | JetStreamError | _Disconnect | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # of the two numbers below
        self._size = 0  # bytes of memory that wait
        self._missed = 0  # messages dropped since the reader was last told of some

    def hear(self, timeout: float) -> Message | Dropped | None:
        """Return the next message; None when none came within ``timeout`` seconds, or when the listener was closed.

        Raises `ConnectionFailed` if messages may be lost by a cut, and `PermissionDenied`.
        """
        while True:
            try:
                event = self._waiting.get(timeout=timeout) if timeout > 0 else self._waiting.get_nowait()
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
                    event, self._missed = Dropped(self._missed), 0
                elif event is not None:
                    self._size -= event.size
            return event

    def close(self) -> None:
        """Unsubscribe. The reader still gets the messages that came before, then None."""
        super().close()
        self._waiting.put(None)

    # Called by the connection, on its own thread

    def put(self, event: Frames | Status | ApiReply | JetStreamError) -> None:
        """Make `hear` return or raise this."""
        if isinstance(event, JetStreamError):
            self._waiting.put(event)
        elif isinstance(event, Frames):
            lines = event.lines.tobytes()
            for at in range(len(event)):
                start, end = int(event.line_end[at] + event.head[at]), int(event.line_end[at] + event.size[at])
                subject = lines[int(event.subject_start[at]) : int(event.subject_end[at])]
                self._put_message(Message(subject.decode("utf-8", "replace"), event.data[start:end]))

    def put_cut(self, message: str) -> None:
        """Note that the connection was cut."""
        self._waiting.put(_Disconnect(message, self._registry.login.reconnects))

    def _put_message(self, message: Message) -> None:
        with self._lock:
            fits = not self._missed and self._size + message.size <= MOST_BYTES
            self._size += message.size if fits else 0
            self._missed += 0 if fits else 1
            first = self._missed == 1
        if fits or first:
            self._waiting.put(message if fits else Dropped(0))


class _Disconnect(NamedTuple):
    message: str
    generation: int
