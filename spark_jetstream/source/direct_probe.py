"""What planning asks the server of a stream that is read by Direct Gets: the questions of `view.StreamView`, with no
consumer made.

Where a message lies is asked of the stream's leader, since any replica or mirror may answer a Direct Get, with an older
state or another one. Numbers of messages come from Direct Gets all the same, as nothing else tells them without a
consumer: they are those of a replica that may lag.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import retrying
from spark_jetstream.errors import JetStreamError, NoResponders
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.direct_get import EndOfBatch, read_answers
from spark_jetstream.protocol.stream import StreamState, stream_state
from spark_jetstream.protocol.wire import Frames
from spark_jetstream.streams.direct import (
    AnswerRejected,
    MirrorAnswered,
    check_server,
    next_at_leader,
    not_the_stream,
    refuse_indirect,
)
from spark_jetstream.streams.lookup import StoredMessage, first_message, last_message, next_message

T = TypeVar("T")

_TRIES = 20  # answers of mirrors, one after the other, before the first pause
_MAX_BYTES = 1 << 20


class DirectProbe:
    """One stream, seen through the subject filters of a query. Implements `probe.Probe`.

    `connect()` gives the connection; `patience()` says for how many seconds errors that may pass are tried again.
    Raises what `Connection.api` raises, `JetStreamError` where the stream cannot be read this way, and what `connect`
    raises. Needs the permissions STREAM.INFO, STREAM.MSG.GET and DIRECT.GET.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        stream: str,
        filters: tuple[str, ...],
        patience: Callable[[], float],
    ) -> None:
        self.stream = stream
        self._connect = connect
        self._filters = filters
        self._patience = patience

    def state(self) -> StreamState:
        """What STREAM.INFO says now. Raises `JetStreamError` for a stream that does not allow Direct Gets."""

        def ask() -> StreamState:
            connection = self._connect()
            check_server(connection)
            return self._look(connection)

        state = retrying(ask, self._patience())
        refuse_indirect(state)
        return state

    def pending(self, first: int) -> int:
        """The number of matching messages with a sequence >= `first`, in the replica that answers.

        That one may lack the latest messages, and still have some that were removed: two answers need not fit
        together. 0 only when the leader says so.
        """
        return sum(self._for_each(lambda connection, subject: self._pending(connection, subject, first)))

    def peek(self, first: int) -> tuple[int, int] | None:
        """Sequence and time (ns) of the first matching message with a sequence >= `first`, or None."""
        found = self._for_each(lambda connection, subject: next_message(connection, self.stream, subject, first))
        return min(_places(found), default=None)

    def last(self) -> tuple[int, int] | None:
        """Sequence and time (ns) of the last matching message, or None."""
        found = self._for_each(lambda connection, subject: last_message(connection, self.stream, subject))
        return max(_places(found), default=None)

    def first_after(self, nanoseconds: int) -> tuple[int, int] | None:
        """Sequence and time (ns) of the first matching message stored at that time or later, or None."""
        found = self._for_each(lambda connection, subject: first_message(connection, self.stream, subject, nanoseconds))
        return min(_places(found), default=None)

    def first_of_all_after(self, nanoseconds: int) -> tuple[int, int] | None:
        """As `first_after`, of the messages on all subjects."""

        def ask() -> StoredMessage | None:
            return first_message(self._connect(), self.stream, ">", nanoseconds)

        return min(_places([retrying(ask, self._patience())]), default=None)

    def _for_each(self, ask: Callable[[Connection, str], T]) -> list[T]:
        """What `ask` says of each filter."""

        def one(subject: str) -> T:
            return retrying(lambda: ask(self._connect(), subject), self._patience())

        return [one(subject) for subject in self._filters or (">",)]

    def _look(self, connection: Connection) -> StreamState:
        context = f"read stream {self.stream} (option stream)"
        return stream_state(
            connection.ask(jsapi.stream_info(connection.prefix, self.stream), b"", context=context), context
        )

    def _pending(self, connection: Connection, subject: str, first: int) -> int:
        check_server(connection)
        for _ in range(_TRIES):
            with contextlib.suppress(MirrorAnswered):
                return self._pending_once(connection, subject, first)
        return self._pending_once(connection, subject, first)

    def _pending_once(self, connection: Connection, subject: str, first: int) -> int:
        """How many match behind the first message of an answer, and that one."""
        with connection.inbox(whole=True) as inbox:
            filtered = subject if self._filters else None
            body = jsapi.direct_request(first, filtered, batch=1, max_bytes=_MAX_BYTES)
            inbox.publish(jsapi.direct_get(connection.prefix, self.stream), body, 1)
            seconds = connection.options.request_timeout
            event = inbox.get(seconds)
            if not isinstance(event, Frames):
                connection.check()
                raise jsapi.no_reply(f"count messages of stream {self.stream} by direct gets", seconds)
            answer = next(read_answers(event, inbox.subject))
        if not isinstance(answer, EndOfBatch):
            if answer.stream != self.stream:
                raise not_the_stream(self.stream, answer.stream)
            return answer.pending() + 1
        if answer.code == jsapi.NO_RESPONDERS:
            refuse_indirect(self._look(connection))
            raise NoResponders(f"nobody answers direct gets of stream {self.stream}")
        if answer.code != jsapi.NOT_FOUND:
            said = f"{answer.code} {answer.description}".rstrip()
            raise JetStreamError(f"the server refused a direct get of stream {self.stream}: {said}")
        found = next_at_leader(connection, self.stream, subject, first)
        if found is None:
            return 0
        raise AnswerRejected(f"a server that answered does not have message {found} of stream {self.stream} (yet)")


def _places(messages: list[StoredMessage | None]) -> Iterator[tuple[int, int]]:
    return ((message.sequence, message.time) for message in messages if message is not None)
