"""Questions to the server that planning asks: a stream's state, and where its matching messages lie.

All of them need no more than the permissions of a reader (JETSTREAM: STREAM.INFO, CONSUMER.CREATE, MSG.NEXT): counts
come from the `num_pending` of a consumer that is made for the question, which the server keeps exact, and times from a
single message delivered without its payload.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Deadline
from spark_jetstream.client.pool import retrying
from spark_jetstream.errors import PermissionDenied
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.columns import Acks
from spark_jetstream.protocol.conventions import plan_consumer
from spark_jetstream.protocol.stream import StreamState, stream_state
from spark_jetstream.protocol.units import rfc3339
from spark_jetstream.protocol.wire import Frames
from spark_jetstream.streams.consumers import create_reader, delete_reader

log = logging.getLogger(__name__)

_PEEK_SECONDS = 2.0


class StreamProbe:
    """One stream, seen through the subject filters of a query. Implements `probe.View`.

    `connect()` gives the connection; `patience()` says for how many seconds errors that may pass are tried again.
    Raises what `Connection.api` raises, `ConsumerLost`, and what `connect` raises.
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
        self._sees_all = True
        self._left_to_stream: dict[str, Any] = {}

    def state(self) -> StreamState:
        """What STREAM.INFO says now."""
        context = f"read stream {self.stream} (option stream)"

        def ask() -> dict[str, Any]:
            connection = self._connect()
            return connection.ask(jsapi.stream_info(connection.prefix, self.stream), b"", context=context)

        return stream_state(retrying(ask, self._patience()), context)

    def pending(self, first: int) -> int:
        """The number of matching messages with a sequence >= `first`."""
        return self._ask({"start_sequence": first}).pending

    def peek(self, first: int) -> tuple[int, int] | None:
        """Sequence and time (ns) of the first matching message with a sequence >= `first`, or None."""
        return self._ask({"start_sequence": first}, look=True).message

    def last(self) -> tuple[int, int] | None:
        """Sequence and time (ns) of the last matching message, or None."""
        return self._ask({"last": True}, look=True).message

    def first_after(self, nanoseconds: int) -> tuple[int, int] | None:
        """Sequence and time (ns) of the first matching message stored at that time or later, or None."""
        return self._ask({"start_time": rfc3339(nanoseconds)}, look=True).message

    def first_of_all_after(self, nanoseconds: int) -> tuple[int, int] | None:
        """As `first_after`, of the messages on all subjects.

        Where the account may create consumers with the query's filter only, of those that match.
        """
        if self._sees_all:
            try:
                return self._ask({"start_time": rfc3339(nanoseconds)}, look=True, filters=()).message
            except PermissionDenied as error:
                if not self._filters:
                    raise
                log.info("stream %s: %s; only messages that match are looked at", self.stream, error)
                self._sees_all = False
        return self.first_after(nanoseconds)

    def _ask(self, start: Mapping[str, Any], *, look: bool = False, filters: tuple[str, ...] | None = None) -> _Answer:
        """Make a consumer, take its count (and with `look` its first message), delete it."""
        shown = self._filters if filters is None else filters
        return retrying(lambda: self._ask_once(start, look, shown), self._patience())

    def _ask_once(self, start: Mapping[str, Any], look: bool, filters: tuple[str, ...]) -> _Answer:
        connection = self._connect()
        name = plan_consumer()
        pending = create_reader(
            connection,
            self.stream,
            name,
            filters,
            {"headers_only": True, **start},
            left_to_stream=self._left_to_stream,
            patience=Deadline(self._patience()),
        )
        try:
            message = self._first_message(connection, name) if look and pending else None
            return _Answer(pending, message)
        finally:
            delete_reader(connection, self.stream, name)

    def _first_message(self, connection: Connection, name: str) -> tuple[int, int] | None:
        with connection.inbox() as inbox:
            body = jsapi.next_request(1, max_bytes=1 << 30, expires=_PEEK_SECONDS, heartbeat=_PEEK_SECONDS / 2)
            inbox.publish(jsapi.consumer_next(connection.prefix, self.stream, name), body, 1)
            while (event := inbox.get(2 * _PEEK_SECONDS)) is not None:
                if isinstance(event, Frames):
                    acks = Acks(event)
                    return int(acks.sequences()[0]), int(acks.timestamps()[0])
                end = jsapi.pull_status(event, self.stream)
                if end.outcome is jsapi.PullOutcome.ENDED:
                    return None  # removed between the count and the delivery
        raise jsapi.no_reply(f"look at a message of stream {self.stream}", 2 * _PEEK_SECONDS)


class _Answer:
    def __init__(self, pending: int, message: tuple[int, int] | None) -> None:
        self.pending = pending
        self.message = message
