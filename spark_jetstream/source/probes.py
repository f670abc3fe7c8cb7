"""What planning asks about one stream: `StreamProbe`, by consumers or by Direct Gets."""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Deadline
from spark_jetstream.client.requests import Requests, stream_info
from spark_jetstream.errors import JetStreamError, NoResponders, PermissionDenied
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.columns import Acks
from spark_jetstream.protocol.conventions import plan_consumer
from spark_jetstream.protocol.direct_get import EndOfBatch, read_answers
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.protocol.units import rfc3339
from spark_jetstream.protocol.wire import Frames
from spark_jetstream.source.advice import advice
from spark_jetstream.streams.direct import (
    AnswerRejected,
    MirrorAnswered,
    check_ending,
    check_server,
    next_at_leader,
    not_the_stream,
    receive,
)
from spark_jetstream.streams.lookup import RawMessage, first_message, last_message, message, next_message, search_time
from spark_jetstream.streams.pull import CONFIRMATIONS, create_reader, delete_reader

log = logging.getLogger(__name__)

_PEEK_SECONDS = 2.0
_MIRROR_ANSWERS = 20  # one after the other, before the first pause
_MAX_BYTES = 1 << 20


class StreamProbe(ABC):
    """A `Probe` of one stream, seen through the subject filters of a query.

    All methods raise what `Requests.call` raises.
    """

    direct: ClassVar[bool]
    """Whether Direct Gets answer, which any replica may, and no consumer is created."""

    def __init__(self, requests: Requests, stream: str, filters: tuple[str, ...]) -> None:
        self._requests = requests
        self._stream = stream
        self._filters = filters

    @property
    def certain(self) -> bool:
        """Whether no replica that lags has the last word: what was not found is not there."""
        return True

    @abstractmethod
    def check(self, state: StreamSummary) -> None:
        """Note the state of the stream. Raise `JetStreamError` if the server cannot answer."""

    @abstractmethod
    def pending(self, first: int) -> int:
        """See `Probe.pending`."""

    def peek(self, first: int) -> tuple[int, int] | None:
        """See `Probe.peek`."""
        return self._find(self._filters, sequence=first)

    def stored_at(self, sequence: int) -> int | None:
        """Return the timestamp (ns) of the message at a sequence, None if it is gone."""
        found = self._requests.call(partial(message, stream=self._stream, sequence=sequence))
        return None if found is None else found.time

    def last(self) -> tuple[int, int] | None:
        """Return sequence and timestamp (ns) of the last message that matches, or None.

        Without filters, and with the filter ``>``, also None if the message at the last sequence was deleted.
        """
        return self._find(self._filters)

    def first_after(self, nanoseconds: int, state: StreamSummary) -> tuple[int, int] | None:
        """Return sequence and timestamp (ns) of the first message stored at that time or later, or None.

        `state` is that of the stream. Where sequences are missing, servers before 2.12 may answer with a message far
        before or after that one (seen with 2.10.26 and 2.11.11), so the probe looks for it itself. With several filters
        servers pass over messages: up to the first message of a filter that has none before that time
        (`selectStartingSeqNo` in server/consumer.go, seen from 2.10.26 to 2.15.1). So they are asked without.
        """
        if state.num_deleted:
            return search_time(self.peek, nanoseconds, state.first_kept, state.last_seq + 1)[1]
        if len(self._filters) < 2:
            return self._since(self._filters, nanoseconds)
        first = self._since((), nanoseconds)
        return first and self.peek(first[0])

    def first_of_all_after(self, nanoseconds: int) -> tuple[int, int] | None:
        """Return what the server takes for the same, of the messages on all subjects; it may be a later one.

        Of those that match if the account may see no others.
        """
        return self._since((), nanoseconds)

    def _since(self, filters: tuple[str, ...], nanoseconds: int) -> tuple[int, int] | None:
        found = self._find(filters, nanoseconds=nanoseconds)
        # Servers before 2.12 may answer with an earlier message where there is none.
        return None if found is None or found[1] < nanoseconds else found

    @abstractmethod
    def _find(self, filters: tuple[str, ...], **start: int) -> tuple[int, int] | None:
        """Return the first message that matches from a ``sequence`` or time (``nanoseconds``) on, else the last one."""


def probe_of(requests: Requests, stream: str, filters: tuple[str, ...], *, direct: bool) -> StreamProbe:
    """Return a probe that creates consumers; or with `direct` none."""
    return (DirectProbe if direct else ConsumerProbe)(requests, stream, filters)


class ConsumerProbe(StreamProbe):
    """A `StreamProbe` whose answers come from consumers; it may also raise `ConsumerLost`.

    It needs the permissions of a reader: STREAM.INFO, CONSUMER.CREATE and MSG.NEXT. A consumer has one replica, which
    may lag, so where it finds no message, or the last one, the leader has the last word (STREAM.MSG.GET); unless the
    account may not ask it. Counts may be too low.
    """

    direct = False

    def __init__(self, requests: Requests, stream: str, filters: tuple[str, ...]) -> None:
        super().__init__(requests, stream, filters)
        #: Whether the account may see messages of other subjects; false once it was refused.
        self._sees_all = True
        #: Whether the account may get single messages; false once it was refused.
        self._gets = True
        #: Whether the stream has several replicas, as `check` saw it last.
        self._replicated = False
        #: Settings that the stream wants to decide itself: a refusal adds one, for all consumers that follow.
        self._left_to_stream: dict[str, Any] = {}

    @property
    def certain(self) -> bool:
        """See `StreamProbe.certain`; only the leader knows that of a stream with several replicas."""
        return self._gets or not self._replicated

    def check(self, state: StreamSummary) -> None:
        """Note what the stream is like; every stream has consumers."""
        self._replicated = state.num_replicas > 1

    def pending(self, first: int) -> int:
        """See `Probe.pending`."""
        return self._ask(self._filters, {"start_sequence": first}, look=False)[0]

    def stored_at(self, sequence: int) -> int | None:
        """See `StreamProbe.stored_at`; where a consumer must be asked, a message that does not match is None."""
        if self._gets:
            try:
                return DirectProbe(Requests(self._requests.connect, 0.0), self._stream, ()).stored_at(sequence)
            except JetStreamError as error:
                # The account may not; or there is an outage, in which only the consumer is tried again.
                self._gets = not isinstance(error, PermissionDenied)
                log.info("stream %s: %s; a consumer is asked", self._stream, error)
        found = self.peek(sequence)
        return found[1] if found is not None and found[0] == sequence else None

    def last(self) -> tuple[int, int] | None:
        """See `StreamProbe.last`."""
        last = super().last()
        if last is not None and self._by_leader(self._filters, sequence=last[0] + 1) is not None:
            return self._by_leader(self._filters) or last
        return last

    def first_of_all_after(self, nanoseconds: int) -> tuple[int, int] | None:
        """See `StreamProbe.first_of_all_after`."""
        if self._sees_all:
            try:
                return super().first_of_all_after(nanoseconds)
            except PermissionDenied as error:
                if not self._filters:
                    raise
                log.info("stream %s: %s; only messages that match are looked at", self._stream, error)
                self._sees_all = False
        return self._since(self._filters, nanoseconds)

    def _find(self, filters: tuple[str, ...], **start: int) -> tuple[int, int] | None:
        where: dict[str, Any] = {"last": True}
        if "sequence" in start:
            where = {"start_sequence": start["sequence"]}
        elif "nanoseconds" in start:
            where = {"start_time": rfc3339(start["nanoseconds"])}
        found = self._ask(filters, where)[1] or self._by_leader(filters, **start)
        for _ in range(CONFIRMATIONS - 1):
            if found is not None or self.certain:
                break
            found = self._ask(filters, where)[1]
        return found

    def _by_leader(self, filters: tuple[str, ...], **start: int) -> tuple[int, int] | None:
        """Return what the leader of a stream with several replicas finds; None also if the account may not ask it."""
        if not (self._replicated and self._gets):
            return None
        try:
            return DirectProbe(self._requests, self._stream, ())._find(filters, **start)
        except (PermissionDenied, NoResponders) as error:
            log.info("stream %s: %s; consumers have the last word", self._stream, error)
            self._gets = False
            return None

    def _ask(
        self, filters: tuple[str, ...], start: Mapping[str, Any], *, look: bool = True
    ) -> tuple[int, tuple[int, int] | None]:
        """Create a consumer, take its count (and with `look` its first message), and delete it."""

        def ask_once(connection: Connection) -> tuple[int, tuple[int, int] | None]:
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
                return pending, self._first_message(connection, name) if look and pending else None
            finally:
                delete_reader(connection, self._stream, name)

        with advice():
            return self._requests.call(ask_once)

    def _first_message(self, connection: Connection, name: str) -> tuple[int, int] | None:
        with connection.inbox() as inbox:
            body = jsapi.next_request(1, max_bytes=1 << 30, expires=_PEEK_SECONDS, heartbeat=_PEEK_SECONDS / 2)
            inbox.publish(jsapi.subject(connection.prefix, jsapi.CONSUMER_NEXT, self._stream, name), body, 1)
            while (event := inbox.get(2 * _PEEK_SECONDS)) is not None:
                if isinstance(event, Frames):
                    acks = Acks(event)
                    return int(acks.sequences()[0]), int(acks.timestamps()[0])
                if jsapi.pull_status(event, self._stream).over:
                    return None  # removed between the count and the delivery
        raise jsapi.no_reply(f"look at a message of stream {self._stream}", 2 * _PEEK_SECONDS)


class DirectProbe(StreamProbe):
    """A `StreamProbe` without a consumer. `JetStreamError` is raised where the stream cannot be read by Direct Gets.

    The stream's leader is asked for the position of a message: a replica or mirror may answer a Direct Get from an
    older state, or from other messages. It needs the permissions STREAM.INFO, STREAM.MSG.GET and DIRECT.GET.
    """

    direct = True

    def check(self, state: StreamSummary) -> None:
        """Raise `JetStreamError` if the server is too old; `check_retention` knows whether the stream allows it."""
        self._requests.call(check_server)

    def pending(self, first: int) -> int:
        """See `Probe.pending`. Return 0 only when the leader confirms it.

        Only a Direct Get counts without a consumer. The replica that answers may lack the latest messages, and still
        have removed ones: two answers may disagree.
        """
        ask_for = [partial(self._pending, subject=subject, first=first) for subject in self._filters or (">",)]
        with advice():
            return sum(map(self._requests.call, ask_for))

    def _find(self, filters: tuple[str, ...], **start: int) -> tuple[int, int] | None:
        lookup: Callable[..., RawMessage | None] = last_message
        if start:
            lookup = next_message if "sequence" in start else first_message
        found = [
            self._requests.call(partial(lookup, stream=self._stream, subject=subject, **start))
            for subject in filters or (">",)
        ]
        positions = [(message.sequence, message.time) for message in found if message is not None]
        return (min if start else max)(positions, default=None)

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
        context = f"read stream {self._stream} (option stream)"
        check_ending(answer, self._stream, partial(stream_info, connection, self._stream, context))
        sequence = next_at_leader(connection, self._stream, subject, first)
        if sequence is None:
            return 0
        raise AnswerRejected(f"a server that answered does not have message {sequence} of stream {self._stream} (yet)")
