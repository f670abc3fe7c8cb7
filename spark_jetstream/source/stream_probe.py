"""The probe of a stream that is read by pull consumers (`probe.StreamQuestions`).

It needs no more than the permissions of a reader (STREAM.INFO, CONSUMER.CREATE, MSG.NEXT): counts are the exact
`num_pending` of a consumer that is created for one question, and times come from one message without its payload.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Deadline
from spark_jetstream.client.requests import Requests
from spark_jetstream.errors import PermissionDenied
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.columns import Acks
from spark_jetstream.protocol.conventions import plan_consumer
from spark_jetstream.protocol.stream import StreamState
from spark_jetstream.protocol.units import rfc3339
from spark_jetstream.protocol.wire import Frames
from spark_jetstream.streams.consumers import create_reader, delete_reader

log = logging.getLogger(__name__)

_PEEK_SECONDS = 2.0


class _Answer(NamedTuple):
    pending: int
    message: tuple[int, int] | None


class StreamProbe:
    """One stream, seen through the subject filters of a query.

    All methods raise what `Requests.call` raises, and `ConsumerLost`.
    """

    def __init__(self, requests: Requests, stream: str, filters: tuple[str, ...]) -> None:
        self._requests = requests
        self._stream = stream
        self._filters = filters
        self._sees_all = True
        self._left_to_stream: dict[str, Any] = {}

    def state(self) -> StreamState:
        """See `StreamQuestions.state`."""
        return self._requests.stream(self._stream, f"read stream {self._stream} (option stream)")

    def pending(self, first: int) -> int:
        """See `Probe.pending`."""
        return self._ask({"start_sequence": first}).pending

    def peek(self, first: int) -> tuple[int, int] | None:
        """See `Probe.peek`."""
        return self._ask({"start_sequence": first}, look=True).message

    def last(self) -> tuple[int, int] | None:
        """See `StreamQuestions.last`."""
        return self._ask({"last": True}, look=True).message

    def first_after(self, nanoseconds: int) -> tuple[int, int] | None:
        """See `StreamQuestions.first_after`."""
        return self._ask({"start_time": rfc3339(nanoseconds)}, look=True).message

    def first_of_all_after(self, nanoseconds: int) -> tuple[int, int] | None:
        """See `StreamQuestions.first_of_all_after`."""
        if self._sees_all:
            try:
                return self._ask({"start_time": rfc3339(nanoseconds)}, look=True, filters=()).message
            except PermissionDenied as error:
                if not self._filters:
                    raise
                log.info("stream %s: %s; only messages that match are looked at", self._stream, error)
                self._sees_all = False
        return self.first_after(nanoseconds)

    def _ask(self, start: Mapping[str, Any], *, look: bool = False, filters: tuple[str, ...] | None = None) -> _Answer:
        """Create a consumer, take its count (and with `look` its first message), and delete it."""
        wanted = self._filters if filters is None else filters
        return self._requests.call(lambda connection: self._ask_once(connection, start, look, wanted))

    def _ask_once(
        self, connection: Connection, start: Mapping[str, Any], look: bool, filters: tuple[str, ...]
    ) -> _Answer:
        name = plan_consumer()
        pending = create_reader(
            connection,
            self._stream,
            name,
            filters,
            {"headers_only": True, **start},
            left_to_stream=self._left_to_stream,
            patience=Deadline(self._requests.retry_timeout),
        )
        try:
            return _Answer(pending, self._first_message(connection, name) if look and pending else None)
        finally:
            delete_reader(connection, self._stream, name)

    def _first_message(self, connection: Connection, name: str) -> tuple[int, int] | None:
        with connection.inbox() as inbox:
            body = jsapi.next_request(1, max_bytes=1 << 30, expires=_PEEK_SECONDS, heartbeat=_PEEK_SECONDS / 2)
            inbox.publish(jsapi.subject(connection.prefix, jsapi.CONSUMER_NEXT, self._stream, name), body, 1)
            while (event := inbox.get(2 * _PEEK_SECONDS)) is not None:
                if isinstance(event, Frames):
                    acks = Acks(event)
                    return int(acks.sequences()[0]), int(acks.timestamps()[0])
                if jsapi.pull_status(event, self._stream).outcome is jsapi.PullOutcome.ENDED:
                    return None  # removed between the count and the delivery
        raise jsapi.no_reply(f"look at a message of stream {self._stream}", 2 * _PEEK_SECONDS)
