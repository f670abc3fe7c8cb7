"""The two probes of a stream (`search.Probe`): by consumers, and by Direct Gets."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Deadline
from spark_jetstream.client.requests import Requests, stream_info
from spark_jetstream.errors import ConnectionFailed, JetStreamError, NoResponders, PermissionDenied, ServerBusy
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.columns import Acks
from spark_jetstream.protocol.conventions import plan_consumer
from spark_jetstream.protocol.direct_get import EndOfBatch, read_answers
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.protocol.units import rfc3339
from spark_jetstream.protocol.wire import Frames
from spark_jetstream.streams.direct import (
    AnswerRejected,
    MirrorAnswered,
    check_server,
    next_at_leader,
    not_the_stream,
    receive,
    refuse_indirect,
)
from spark_jetstream.streams.lookup import RawMessage, first_message, last_message, message, next_message
from spark_jetstream.streams.pull import create_reader, delete_reader

log = logging.getLogger(__name__)

_PEEK_SECONDS = 2.0
_MIRROR_ANSWERS = 20  # one after the other, before the first pause
_MAX_BYTES = 1 << 20


class StreamProbe:
    """One stream, seen through the subject filters of a query.

    All methods raise what `Requests.call` raises, and `ConsumerLost`. They need the permissions of a reader:
    STREAM.INFO, CONSUMER.CREATE and MSG.NEXT.
    """

    def __init__(self, requests: Requests, stream: str, filters: tuple[str, ...]) -> None:
        self._requests = requests
        self._stream = stream
        self._filters = filters
        self._sees_all = True
        self._gets = True
        self._left_to_stream: dict[str, Any] = {}

    def pending(self, first: int) -> int:
        """See `Probe.pending`."""
        return self._ask({"start_sequence": first}, look=False)[0]

    def peek(self, first: int) -> tuple[int, int] | None:
        """See `Probe.peek`."""
        return self._ask({"start_sequence": first})[1]

    def stored_at(self, sequence: int) -> int | None:
        """Return the timestamp (ns) of the message at a sequence, None if it is gone.

        Where the account may not get single messages, a consumer is asked, and a message that does not match is None.
        """
        if self._gets:
            try:
                return _stored_at(Requests(self._requests.connect, 0.0), self._stream, sequence)
            except JetStreamError as error:
                # The account may not; or there is an outage, in which only the consumer is tried again.
                self._gets = isinstance(error, ConnectionFailed | ServerBusy)
                log.info("stream %s: %s; a consumer is asked", self._stream, error)
        found = self.peek(sequence)
        return found[1] if found is not None and found[0] == sequence else None

    def last(self) -> tuple[int, int] | None:
        """Return sequence and timestamp (ns) of the last message that matches, or None.

        Without filters, and with the filter ``>``, also None if the message at the last sequence was deleted.
        """
        return self._ask({"last": True})[1]

    def first_after(self, nanoseconds: int) -> tuple[int, int] | None:
        """Return sequence and timestamp (ns) of the first message stored at that time or later, or None."""
        return self._ask({"start_time": rfc3339(nanoseconds)})[1]

    def first_of_all_after(self, nanoseconds: int) -> tuple[int, int] | None:
        """Return the same of the messages on all subjects, or of those that match if the account may see no others."""
        if self._sees_all:
            try:
                return self._ask({"start_time": rfc3339(nanoseconds)}, filters=())[1]
            except PermissionDenied as error:
                if not self._filters:
                    raise
                log.info("stream %s: %s; only messages that match are looked at", self._stream, error)
                self._sees_all = False
        return self.first_after(nanoseconds)

    def _ask(
        self, start: Mapping[str, Any], *, look: bool = True, filters: tuple[str, ...] | None = None
    ) -> tuple[int, tuple[int, int] | None]:
        """Create a consumer, take its count (and with `look` its first message), and delete it."""

        def ask_once(connection: Connection) -> tuple[int, tuple[int, int] | None]:
            name = plan_consumer()
            pending = create_reader(
                connection,
                self._stream,
                name,
                self._filters if filters is None else filters,
                {"headers_only": True, **start},
                left_to_stream=self._left_to_stream,
                patience=Deadline(self._requests.retry_timeout),
            )
            try:
                return pending, self._first_message(connection, name) if look and pending else None
            finally:
                delete_reader(connection, self._stream, name)

        return self._requests.call(ask_once)

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


class DirectProbe:
    """One stream, seen through the subject filters of a query.

    The stream's leader is asked for the position of a message: a replica or mirror may answer a Direct Get from an
    older state, or from other messages. All methods raise what `Requests.call` raises, and `JetStreamError` where the
    stream cannot be read by Direct Gets. They need the permissions STREAM.INFO, STREAM.MSG.GET and DIRECT.GET.
    """

    def __init__(self, requests: Requests, stream: str, filters: tuple[str, ...]) -> None:
        self._requests = requests
        self._stream = stream
        self._filters = filters
        self._context = f"read stream {stream} (option stream)"

    def check(self, state: StreamSummary) -> None:
        """Raise `JetStreamError` unless the stream, in this state, can be read by Direct Gets."""
        self._requests.call(check_server)
        refuse_indirect(state)

    def pending(self, first: int) -> int:
        """See `Probe.pending`. Return 0 only when the leader confirms it.

        Only a Direct Get counts without a consumer. The replica that answers may lack the latest messages, and still
        have removed ones: two answers may disagree.
        """
        return sum(
            self._requests.call(partial(self._pending, subject=subject, first=first))
            for subject in self._filters or (">",)
        )

    def peek(self, first: int) -> tuple[int, int] | None:
        """See `Probe.peek`."""
        return min(self._find(next_message, sequence=first), default=None)

    def stored_at(self, sequence: int) -> int | None:
        """See `StreamProbe.stored_at`."""
        return _stored_at(self._requests, self._stream, sequence)

    def last(self) -> tuple[int, int] | None:
        """See `StreamProbe.last`."""
        return max(self._find(last_message), default=None)

    def first_after(self, nanoseconds: int) -> tuple[int, int] | None:
        """See `StreamProbe.first_after`."""
        return min(self._find(first_message, nanoseconds=nanoseconds), default=None)

    def first_of_all_after(self, nanoseconds: int) -> tuple[int, int] | None:
        """See `StreamProbe.first_of_all_after`."""
        return min(self._find(first_message, (">",), nanoseconds=nanoseconds), default=None)

    def _find(
        self, lookup: Callable[..., RawMessage | None], filters: tuple[str, ...] = (), **where: int
    ) -> list[tuple[int, int]]:
        """Return sequence and timestamp (ns) of what a function of `lookup` finds for each filter."""
        subjects = filters or self._filters or (">",)
        messages = [
            self._requests.call(partial(lookup, stream=self._stream, subject=subject, **where)) for subject in subjects
        ]
        return [(message.sequence, message.time) for message in messages if message is not None]

    def _pending(self, connection: Connection, subject: str, first: int) -> int:
        check_server(connection)
        for _ in range(_MIRROR_ANSWERS):
            with contextlib.suppress(MirrorAnswered):
                return self._pending_once(connection, subject, first)
        return self._pending_once(connection, subject, first)

    def _pending_once(self, connection: Connection, subject: str, first: int) -> int:
        """Return how many messages match from the first message of an answer on."""
        with connection.inbox(whole=True) as inbox:
            filtered = subject if self._filters else None
            body = jsapi.direct_request(first, filtered, batch=1, max_bytes=_MAX_BYTES)
            inbox.publish(jsapi.subject(connection.prefix, jsapi.DIRECT_GET, self._stream), body, 1)
            frames = receive(connection, inbox, f"count messages of stream {self._stream} by direct gets")
            answer = next(read_answers(frames, inbox.subject))
        if not isinstance(answer, EndOfBatch):
            if answer.stream != self._stream:
                raise not_the_stream(self._stream, answer.stream)
            return answer.pending() + 1
        if answer.code == jsapi.NO_RESPONDERS:
            refuse_indirect(stream_info(connection, self._stream, self._context))
            raise NoResponders(f"no server answers direct gets of stream {self._stream}")
        if answer.code != jsapi.NOT_FOUND:
            status = f"{answer.code} {answer.description}".rstrip()
            raise JetStreamError(f"the server refused a direct get of stream {self._stream}: {status}")
        sequence = next_at_leader(connection, self._stream, subject, first)
        if sequence is None:
            return 0
        raise AnswerRejected(f"a server that answered does not have message {sequence} of stream {self._stream} (yet)")


def _stored_at(requests: Requests, stream: str, sequence: int) -> int | None:
    found = requests.call(partial(message, stream=stream, sequence=sequence))
    return None if found is None else found.time


StreamQuestions = StreamProbe | DirectProbe
"""Either of them: whatever planning asks about a stream."""
