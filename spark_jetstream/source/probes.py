"""The questions of planning about one stream: `StreamProbe`, by consumers or by Direct Gets."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Deadline
from spark_jetstream.client.requests import Requests, stream_info
from spark_jetstream.errors import JetStreamError, NoResponders, PermissionDenied
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.direct_get import DirectBatch, EndOfBatch, read_answers
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.protocol.units import rfc3339
from spark_jetstream.source.advice import advice
from spark_jetstream.streams.consumers import FEW_FILTERS, Peeked, first_at_leader, peek
from spark_jetstream.streams.direct import (
    AnswerRejected,
    check_ending,
    check_server,
    next_at_leader,
    not_the_stream,
    receive,
)
from spark_jetstream.streams.lookup import (
    RawMessage,
    first_messages,
    last_messages,
    message,
    next_messages,
    search_time,
)
from spark_jetstream.streams.pull import CONFIRMATIONS

log = logging.getLogger(__name__)

_MIRROR_ANSWERS = 20  # one after the other, before the first pause
_MAX_BYTES = 1 << 20
_AT_ONCE = 16  # Direct Gets under way: a server may take a tenth of a second for each


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
        """Whether the stream lacks each message that was not found.

        The stream may have it if a replica that lags has the last word.
        """
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

        Without filters, and with the filter ``>``, also None if the message at the last sequence
        was deleted.
        """
        return self._find(self._filters)

    def first_after(self, nanoseconds: int, state: StreamSummary) -> tuple[int, int] | None:
        """Return sequence and timestamp (ns) of the first message stored at that time or later.

        None if there is none. `state` is that of the stream.
        """
        # With several filters servers pass over messages: up to the first message of a filter that
        # has none before that time (`selectStartingSeqNo` in server/consumer.go, seen from 2.10.26
        # to 2.15.1). So they are asked without.
        filters = self._filters if len(self._filters) < 2 else ()
        first = self._first_since(filters, nanoseconds, state)
        if first is None or filters == self._filters:
            return first
        return self.peek(first[0])

    def _first_since(
        self, filters: tuple[str, ...], nanoseconds: int, state: StreamSummary
    ) -> tuple[int, int] | None:
        if not state.num_deleted:
            return self._since(filters, nanoseconds)

        # Where sequences are missing, servers before 2.12 may answer with a message far before or
        # after the right one (seen with 2.10.26 and 2.11.11), so the probe looks for it itself.
        def look(sequence: int) -> tuple[int, int] | None:
            return self._find(filters, sequence=sequence)

        _, first = search_time(look, nanoseconds, state.first_kept, state.last_seq + 1)
        return first

    def first_of_all_after(self, nanoseconds: int) -> tuple[int, int] | None:
        """Return what the server takes for the first message stored at that time or later.

        It may be a later one. It is one of the messages on all subjects, or a matching one if the
        account may see no others.
        """
        return self._since((), nanoseconds)

    def _since(self, filters: tuple[str, ...], nanoseconds: int) -> tuple[int, int] | None:
        found = self._find(filters, nanoseconds=nanoseconds)
        # Servers before 2.12 may answer with an earlier message where there is none.
        if found is None or found[1] < nanoseconds:
            return None
        return found

    @abstractmethod
    def _find(self, filters: tuple[str, ...], **start: int) -> tuple[int, int] | None:
        """Return the first message that matches from a ``sequence`` or time (``nanoseconds``) on.

        Without a start the last one that matches.
        """


def probe_of(
    requests: Requests, stream: str, filters: tuple[str, ...], *, direct: bool
) -> StreamProbe:
    """Return a probe that creates consumers; or with `direct` none."""
    if direct:
        return DirectProbe(requests, stream, filters)
    return ConsumerProbe(requests, stream, filters)


class ConsumerProbe(StreamProbe):
    """A `StreamProbe` whose answers come from consumers; it may also raise `ConsumerLost`.

    It needs the permissions of a reader: STREAM.INFO, CONSUMER.CREATE and MSG.NEXT. A consumer has
    one replica, which may lag. So where it finds no message, or the last one, the leader has the
    last word (STREAM.MSG.GET), unless the account may not ask it. Counts may be too low.
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
        #: The last sequence of the stream, as `check` saw it last.
        self._last_seq = 0
        #: Settings that the stream wants to decide itself: a refusal adds one, for all consumers
        #: that follow.
        self._left_to_stream: dict[str, Any] = {}

    @property
    def certain(self) -> bool:
        """See `StreamProbe.certain`.

        If the stream has several replicas, only the leader knows it.
        """
        return self._gets or not self._replicated

    def check(self, state: StreamSummary) -> None:
        """Note what the stream is like; every stream has consumers."""
        self._replicated = state.num_replicas > 1
        self._last_seq = state.last_seq

    def pending(self, first: int) -> int:
        """See `Probe.pending`."""
        if len(self._filters) > FEW_FILTERS and first > self._last_seq:
            # To create a consumer, a server compares each filter with each.
            state = self._requests.stream(self._stream, f"look at stream {self._stream}")
            if state.followed and first > state.last_seq:
                return 0
        return self._ask(self._filters, {"start_sequence": first}, look=False).pending

    def stored_at(self, sequence: int) -> int | None:
        """See `StreamProbe.stored_at`.

        Where a consumer must be asked, also None for a message that does not match.
        """
        if self._gets:
            once = Requests(self._requests.connect, 0.0)
            try:
                return DirectProbe(once, self._stream, ()).stored_at(sequence)
            except JetStreamError as error:
                # The account may not; or there is an outage, in which only the consumer is tried
                # again.
                self._gets = not isinstance(error, PermissionDenied)
                log.info("stream %s: %s; a consumer is asked", self._stream, error)
        found = self.peek(sequence)
        if found is None or found[0] != sequence:
            return None
        return found[1]

    def last(self) -> tuple[int, int] | None:
        """See `StreamProbe.last`."""
        last = super().last()
        if last is None:
            return None
        # The replica of the consumer lags if the leader has a later one.
        if self._by_leader(self._filters, sequence=last[0] + 1) is None:
            return last
        return self._by_leader(self._filters) or last

    def first_of_all_after(self, nanoseconds: int) -> tuple[int, int] | None:
        """See `StreamProbe.first_of_all_after`."""
        if self._sees_all:
            try:
                return super().first_of_all_after(nanoseconds)
            except PermissionDenied as error:
                if not self._filters:
                    raise
                problem = "stream %s: %s; only messages that match are looked at"
                log.info(problem, self._stream, error)
                self._sees_all = False
        return self._since(self._filters, nanoseconds)

    def _find(self, filters: tuple[str, ...], **start: int) -> tuple[int, int] | None:
        where = _beginning(start)
        found = self._ask(filters, where).first or self._by_leader(filters, **start)
        if found is not None:
            return found
        # As many consumers in a row must find nothing.
        for _ in range(CONFIRMATIONS - 1):
            if self.certain:
                return None
            found = self._ask(filters, where).first
            if found is not None:
                return found
        return None

    def _by_leader(self, filters: tuple[str, ...], **start: int) -> tuple[int, int] | None:
        """Return what the leader of a stream with several replicas finds.

        None also if the account may not ask it.
        """
        if not self._replicated:
            return None
        if len(filters) > FEW_FILTERS:
            return self._ask_leader(filters, start)
        if not self._gets:
            return None
        try:
            return DirectProbe(self._requests, self._stream, ())._find(filters, **start)
        except (PermissionDenied, NoResponders) as error:
            log.info("stream %s: %s; consumers have the last word", self._stream, error)
            self._gets = False
            return None

    def _ask_leader(
        self, filters: tuple[str, ...], start: Mapping[str, int]
    ) -> tuple[int, int] | None:
        context = f"look at stream {self._stream}"

        def ask_once(connection: Connection) -> tuple[int, int] | None:
            return first_at_leader(
                connection,
                self._stream,
                filters,
                _beginning(start),
                partial(stream_info, connection, self._stream, context),
                left_to_stream=self._left_to_stream,
                patience=Deadline(self._requests.retry_timeout),
            )

        with advice():
            return self._requests.call(ask_once)

    def _ask(
        self, filters: tuple[str, ...], start: Mapping[str, Any], *, look: bool = True
    ) -> Peeked:
        """Create a consumer, take its count (and with `look` its first message), and delete it."""

        def ask_once(connection: Connection) -> Peeked:
            return peek(
                connection,
                self._stream,
                filters,
                start,
                left_to_stream=self._left_to_stream,
                patience=Deadline(self._requests.retry_timeout),
                look=look,
            )

        with advice():
            return self._requests.call(ask_once)


def _beginning(start: Mapping[str, int]) -> dict[str, Any]:
    """Return where a consumer begins, in the fields of a consumer.

    At a ``sequence``, a time (``nanoseconds``), or the last message.
    """
    if "sequence" in start:
        return {"start_sequence": start["sequence"]}
    if "nanoseconds" in start:
        return {"start_time": rfc3339(start["nanoseconds"])}
    return {"last": True}


class DirectProbe(StreamProbe):
    """A `StreamProbe` without a consumer.

    It raises `JetStreamError` where the stream cannot be read by Direct Gets. It asks the stream's
    leader for the position of a message: a replica or mirror may answer a Direct Get from an older
    state, or from other messages. It needs the permissions STREAM.INFO, STREAM.MSG.GET and
    DIRECT.GET.
    """

    direct = True

    def check(self, state: StreamSummary) -> None:
        """Raise `JetStreamError` if the server is too old.

        `check_retention` knows whether the stream allows Direct Gets.
        """
        self._requests.call(check_server)

    def pending(self, first: int) -> int:
        """See `Probe.pending`. Return 0 only when the leader confirms it.

        Only a Direct Get counts without a consumer. The replica that answers may lack the latest
        messages, and still have removed ones: two answers may disagree.
        """
        subjects = self._filters or (">",)
        total = 0
        with advice():
            for at in range(0, len(subjects), _AT_ONCE):
                some = subjects[at : at + _AT_ONCE]
                total += self._requests.call(partial(self._pending, subjects=some, first=first))
        return total

    def _find(self, filters: tuple[str, ...], **start: int) -> tuple[int, int] | None:
        lookup: Callable[..., list[RawMessage]] = last_messages
        if "sequence" in start:
            lookup = next_messages
        elif "nanoseconds" in start:
            lookup = first_messages
        found = self._requests.call(partial(lookup, stream=self._stream, subjects=filters, **start))
        # One for each filter.
        positions = [(message.sequence, message.time) for message in found]
        if start:
            return min(positions, default=None)
        return max(positions, default=None)

    def _pending(self, connection: Connection, subjects: Sequence[str], first: int) -> int:
        """Return how many messages match one of the subjects from a sequence on."""
        check_server(connection)
        total = 0
        left = subjects
        mirror = ""  # that answered last in place of the stream
        for _ in range(1 + _MIRROR_ANSWERS):
            mirrored: list[str] = []
            endings: dict[str, EndOfBatch] = {}
            for subject, answer in self._answers(connection, left, first).items():
                if isinstance(answer, EndOfBatch):
                    endings[subject] = answer
                elif answer.stream != self._stream:
                    mirrored.append(subject)
                    mirror = answer.stream
                else:
                    # The message of the answer, and those that follow.
                    total += answer.pending() + 1
            self._confirm(connection, endings, first)
            left = mirrored
            if not left:
                return total
        raise not_the_stream(self._stream, mirror)

    def _answers(
        self, connection: Connection, subjects: Sequence[str], first: int
    ) -> dict[str, DirectBatch | EndOfBatch]:
        """Return the first answer to a Direct Get of one message of each subject."""
        answers: dict[int, DirectBatch | EndOfBatch] = {}
        request = jsapi.subject(connection.prefix, jsapi.DIRECT_GET, self._stream)
        context = f"count messages of stream {self._stream} by direct gets"
        with connection.inbox(whole=True) as inbox:
            for number, subject in enumerate(subjects):
                filtered = subject if self._filters else None
                body = jsapi.direct_request(first, filtered, batch=1, max_bytes=_MAX_BYTES)
                inbox.publish(request, body, number)
            while len(answers) < len(subjects):
                frames = receive(connection, inbox, context)
                for answer in read_answers(frames, inbox.subject):
                    answers.setdefault(answer.number, answer)
        return {subject: answers[number] for number, subject in enumerate(subjects)}

    def _confirm(
        self, connection: Connection, endings: Mapping[str, EndOfBatch], first: int
    ) -> None:
        """Raise `JetStreamError` unless no message matches, by the statuses and by the leader."""
        if not endings:
            return
        context = f"read stream {self._stream} (option stream)"
        look = partial(stream_info, connection, self._stream, context)
        for ending in endings.values():
            check_ending(ending, self._stream, look)
        sequence = next_at_leader(connection, self._stream, tuple(endings), first)
        if sequence is not None:
            raise AnswerRejected(
                f"a server that answered does not have message {sequence} of stream "
                f"{self._stream} (yet)"
            )
