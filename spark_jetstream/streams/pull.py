"""Reads a range of sequences to its end with pull consumers.

docs/architecture.md has the rules ("How a range is read", "What happens in an outage"); requests follow ADR-37
"JetStream Simplification".
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from spark_jetstream.client.connection import ASK_AGAIN, Connection
from spark_jetstream.client.deadline import Backoff, Deadline, Outage
from spark_jetstream.client.inbox import Inbox
from spark_jetstream.client.requests import Connect, info_of
from spark_jetstream.errors import (
    ApiError,
    ConsumerLimitReached,
    ConsumerLost,
    DataLossError,
    JetStreamError,
    PermissionDenied,
    StreamNotFound,
)
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.columns import Acks, Delivered
from spark_jetstream.protocol.conventions import reader_consumer
from spark_jetstream.protocol.stream import SequenceRange, StreamSummary
from spark_jetstream.protocol.wire import MAX_FRAME, ApiReply, Frames, Status

log = logging.getLogger(__name__)

_CONFIRMATIONS = 3  # consumers that must find nothing before messages that were planned are taken to be gone
_QUIET_HEARTBEATS = 2
_UNHEARD = 100  # requests that nobody hears before the consumer is taken to be gone
_UNHEARD_PAUSE = 0.01  # seconds between two of them
_FRUITLESS = 8  # requests in a row that the server ends without a message, though it counts some

_LOOK = "look"  # token of that request; those of pulls are numbers

_ADVICE = "set failOnDataLoss to false to go on without them"

#: Error code -> the setting of a consumer that the stream wants to decide itself.
_LEFT_TO_STREAM = {10134: "replicas", 10153: "inactive_threshold"}


@dataclass(frozen=True)
class PullSettings:
    """How to pull: messages and bytes of one request; times in seconds."""

    batch: int
    max_bytes: int
    expires: float
    retry_timeout: float
    fail_on_data_loss: bool
    headers_only: bool = False

    @property
    def heartbeat(self) -> float:
        """Interval of the server's heartbeats; the server allows at most half of `expires`."""
        return min(5.0, self.expires / 2)


def read_range(connect: Connect, part: SequenceRange, settings: PullSettings, label: str) -> Iterator[Delivered]:
    """Yield the messages of `part`, in stream order, each exactly once, whatever fails in between.

    The names of the consumers begin with `label`. Raises `DataLossError` if messages that were planned are gone,
    `OutageError` after `settings.retry_timeout`, and `JetStreamError` for another error that no retry can mend.
    """
    reader = RangeReader(connect, part, settings, label)
    with accepted_loss(settings):
        yield from reader.read()
        check_count(part, reader.count)


@contextlib.contextmanager
def accepted_loss(settings: PullSettings) -> Iterator[None]:
    """Log a `DataLossError` where `settings` accept one."""
    try:
        yield
    except DataLossError as error:
        if settings.fail_on_data_loss:
            raise
        log.warning("%s", str(error).removesuffix(f"; {_ADVICE}"))


def check_count(part: SequenceRange, count: int) -> None:
    """Raise `DataLossError` if `count`, the number of messages that were read, is less than was planned."""
    if part.count is not None and count < part.count:
        raise DataLossError(
            f"{part.count - count} of {part.count} messages of stream {part.stream}, sequences {part.first} to "
            f"{part.end - 1}, were removed (expired, purged or deleted) after this read was planned; {_ADVICE}"
        )


def look(connection: Connection, part: SequenceRange, first: int) -> StreamSummary:
    """Return the stream's state now. Raises `DataLossError` unless the stream is the one that was planned."""
    try:
        state = info_of(connection, part.stream, part.created, f"look at stream {part.stream}")
    except StreamNotFound as error:
        raise DataLossError(
            f"stream {part.stream} was deleted while sequences {first} to {part.end - 1} were to be read; {_ADVICE}"
        ) from error
    if state.created != part.created:
        raise DataLossError(
            f"stream {part.stream} was deleted and created again (at {state.created}) while sequences {first} to "
            f"{part.end - 1} of the one created at {part.created} were to be read; {_ADVICE}"
        )
    return state


class PullSession:
    """Sends the pull requests of one consumer, receives its messages, and counts what may still come."""

    over = False
    quiet_heartbeats = _QUIET_HEARTBEATS
    most_fruitless = _FRUITLESS
    longest = longest_heartbeat = math.inf  # seconds that a request is open, and between its heartbeats

    def __init__(self, owner: RangeReader, connection: Connection, inbox: Inbox, name: str, pending: int) -> None:
        self.owner = owner
        self.connection = connection
        self.inbox = inbox
        self.subject = jsapi.subject(connection.prefix, jsapi.CONSUMER_NEXT, owner.part.stream, name)
        self.name = name
        self.pending = pending
        self.outstanding = 0
        self.bytes_left = 0  # of all requests under way
        self.number = 0
        self.consumed = 0
        self.limit_bytes(owner.settings.max_bytes)
        self.heartbeats = 0
        self.fruitless = 0
        self.unheard = 0
        self.first_requests: dict[str, bytes] = {}  # number -> body, until a message comes
        self.expires = min(owner.settings.expires, self.longest)
        self.heartbeat = min(owner.settings.heartbeat, self.expires / 2, self.longest_heartbeat)
        self.early: list[Frames | Status] = []

    def begin(self) -> None:
        """Send the first requests, and in the same write look whether the stream is the one that was planned.

        Raises what `look` raises. What comes before the reply is kept for `drain`.
        """
        owner, context = self.owner, f"look at stream {self.owner.part.stream}"
        subject = jsapi.subject(self.connection.prefix, jsapi.STREAM_INFO, owner.part.stream)
        self.inbox.publish(subject, b"", _LOOK)
        self.ask()
        patience = min(ASK_AGAIN, self.connection.options.request_timeout)
        try:
            # Behind the consumer: what that reads must be the stream that was planned.
            while (event := self.inbox.receive(patience, _LOOK)) is not None:
                if isinstance(event, ApiReply):
                    created = jsapi.field(jsapi.reply(event.payload, context), "created", str, context)
                    if created == owner.part.created:
                        return
                    break
                if isinstance(event, Status) and self.inbox.token(event) == _LOOK:  # nobody answers
                    break
                self.early.append(event)
        except StreamNotFound:
            pass  # by the word of one server
        except (ApiError, PermissionDenied):
            look(self.connection, owner.part, owner.next)  # which names what failed
            raise
        look(self.connection, owner.part, owner.next)

    def drain(self) -> Iterator[Delivered]:
        """Yield what the consumer delivers, until the range ends, nothing is pending, or `over` is set."""
        owner = self.owner
        silence = 2 * owner.settings.heartbeat + 1.0
        while not self.over:
            self.ask()
            event = self.early.pop(0) if self.early else self.inbox.get(silence)
            if event is None:
                self.connection.check()
                raise ConsumerLost(f"no message and no heartbeat came for {silence:g} s")
            if not isinstance(event, Frames):
                self.on_status(event)
                continue
            acks = Acks(event)
            self._account(event, acks)
            self.pending = self.left(len(event), acks)
            pulled = owner.take(event, acks)
            if pulled is not None:
                yield pulled
            if owner.next >= owner.part.end:
                return
            if self.pending == 0:
                owner.nothing_more()
                return

    def left(self, came: int, acks: Acks) -> int:
        """Return how many messages the consumer still has to deliver after the last one that came."""
        return acks.pending()

    def possible(self) -> int:
        """Return how many messages of the range may still come."""
        owner = self.owner
        possible = min(owner.part.end - owner.next, self.pending)
        if owner.part.count is not None:
            # The planned count can be too low, so it bounds the requests and not the reading: behind it the reader
            # requests one message (most likely one behind the range, which ends it), then more and more.
            planned = owner.part.count - owner.count
            possible = min(possible, planned if planned > 0 else 1 << min(-planned, 20))
        return possible

    def ask(self) -> None:
        """Keep up to two full requests in flight, but never request more than the range can hold."""
        batch, possible = self.owner.settings.batch, self.possible()
        while self.outstanding <= batch and (missing := possible - self.outstanding) > 0:
            self.request(min(batch, missing))

    def request(self, batch: int, *, no_wait: bool = False) -> None:
        """Request up to `batch` messages."""
        self.number += 1
        body = jsapi.next_request(
            batch, max_bytes=self.max_bytes, expires=self.expires, heartbeat=self.heartbeat, no_wait=no_wait
        )
        if not self.consumed:
            self.first_requests[str(self.number)] = body
        self.inbox.publish(self.subject, body, self.number)
        self.bytes_left = self.max_bytes + (self.bytes_left if self.outstanding else 0)
        self.outstanding += batch

    def limit_bytes(self, most: int) -> None:
        """Limit each request from now on to `most` bytes."""
        self.max_bytes = most
        self.inbox.expect(2 * most)

    def on_status(self, status: Status) -> None:
        """Send a request again that nobody heard, and handle any other status by `on_end`."""
        if status.code == jsapi.NO_RESPONDERS and self._repeated(status):
            return
        end = jsapi.pull_status(status, self.owner.part.stream)
        if end.outcome is not jsapi.PullOutcome.GOES_ON:
            self.first_requests.pop(self.inbox.token(status), None)
        self.on_end(end, status)

    def on_end(self, end: jsapi.PullEnd, status: Status) -> None:
        """Handle a heartbeat, or the end of a request that did not bring all of its messages."""
        if end.outcome is jsapi.PullOutcome.GOES_ON:
            self.heartbeats += 1
            if self.heartbeats >= self.quiet_heartbeats:
                # The next message was removed, or the consumer is stuck: a new consumer shows which.
                raise ConsumerLost("the server has sent nothing but heartbeats")
            return
        if end.undelivered is None or end.unused_bytes is None:
            raise ConsumerLost(f"a pull request ended without an account: {status.code} {status.description}")
        self.outstanding = max(0, self.outstanding - end.undelivered)
        self._use(end.unused_bytes)
        if end.unused_bytes >= self.max_bytes:
            self.ended_without_message(end, status)

    def _repeated(self, status: Status) -> bool:
        """Send a request again that nobody heard; whether that was done.

        The servers of a cluster hear of a new consumer one after the other, and ours may be late.
        """
        number = self.inbox.token(status)
        body = self.first_requests.get(number)
        self.unheard += 1
        if body is None or self.unheard > _UNHEARD:
            return False
        time.sleep(_UNHEARD_PAUSE)
        self.inbox.publish(self.subject, body, number)
        return True

    def ended_without_message(self, end: jsapi.PullEnd, status: Status) -> None:
        """Request more bytes if the next message is too large, and give up after some requests."""
        if end.too_large and self.max_bytes < MAX_FRAME:
            self.limit_bytes(min(2 * self.max_bytes, MAX_FRAME))
            return
        self.fruitless += 1
        if self.fruitless >= self.most_fruitless:
            raise ConsumerLost(f"the server ends each request without a message: {status.code} {status.description}")

    def _use(self, size: int) -> None:
        """Take bytes off what the requests under way may bring; without any left, none is under way.

        The server says nothing when it ends a request whose last byte was used (server/consumer.go, `nextWaiting`).
        """
        self.bytes_left -= size
        if not self.bytes_left:
            self.outstanding = 0

    def _account(self, frames: Frames, acks: Acks) -> None:
        """Check that no delivery is missing, and count what may still come."""
        first, last = acks.consumer_sequences()
        if first != self.consumed + 1 or last - first != len(frames) - 1:
            raise ConsumerLost(f"deliveries {self.consumed + 1} to {last} of the consumer have a hole")
        self.consumed = last
        self.first_requests.clear()
        self.heartbeats = self.fruitless = 0
        self.outstanding = max(0, self.outstanding - len(frames))
        self._use(frames.pull_bytes())


class RangeReader:
    """Reads one range. Subclasses override where it begins and when it ends.

    `next` is the first sequence that was not handed out yet, `count` is the number of messages that were.
    """

    session: ClassVar[type[PullSession]] = PullSession
    pauses: ClassVar[tuple[float, float]] = (0.1, 1.0)
    """The shortest and the longest pause between two consumers that find nothing."""

    def __init__(self, connect: Connect, part: SequenceRange, settings: PullSettings, label: str) -> None:
        self.connect = connect
        self.part = part
        self.settings = settings
        self.label = label
        self.next = part.first
        self.count = 0
        self.found_nothing = 0
        self.confirming = Backoff(*self.pauses)
        self.left_to_stream: dict[str, Any] = {}

    def read(self) -> Iterator[Delivered]:
        """Yield the messages in stream order. Raises what `read_range` raises, without a look at `part.count`."""
        outage = Outage(self.settings.retry_timeout, Backoff(at_once=True))
        while self.next < self.part.end:
            before = self.next
            try:
                for pulled in self._consume(outage.begin()):
                    outage.over()
                    yield pulled
                outage.over()
                if self.next < self.part.end:
                    self.confirming.pause()
            except JetStreamError as error:
                doing = f"reading stream {self.part.stream} at sequence {self.next}"
                outage.failed(error, doing, progressed=self.next > before)
                log.warning("stream %s, going on at sequence %d: %s", self.part.stream, self.next, error)
                outage.pause()

    def _consume(self, patience: Deadline) -> Iterator[Delivered]:
        """Read with one new consumer until the range ends or nothing seems to be left of it."""
        connection = self.connect(patience.left)
        name = reader_consumer(self.label)
        with connection.inbox() as inbox:
            try:
                pending = self._create(connection, name, patience)
                session = self.session(self, connection, inbox, name, pending)
                session.begin()
                if pending == 0:
                    self.nothing_more()
                    return
                yield from session.drain()
            finally:
                delete_reader(connection, self.part.stream, name)

    def _create(self, connection: Connection, name: str, patience: Deadline) -> int:
        """Create a consumer and return how many messages it has to deliver, those behind the range included."""
        part = self.part
        settings = {**self.start(), "headers_only": self.settings.headers_only}
        try:
            return create_reader(
                connection,
                part.stream,
                name,
                part.subjects,
                settings,
                left_to_stream=self.left_to_stream,
                patience=patience,
            )
        except StreamNotFound as error:
            look(connection, part, self.next)
            raise ConsumerLost(f"{error}, which exists") from None

    def start(self) -> dict[str, Any]:
        """Return where a new consumer begins, as arguments of `jsapi.reader_config`."""
        return {"start_sequence": self.next}

    def take(self, frames: Frames, acks: Acks) -> Delivered | None:
        """Return the messages of `frames` that belong to the range, None if none does, and move `next` behind them."""
        sequences = acks.sequences()
        if int(sequences[0]) < self.next or not (sequences[1:] > sequences[:-1]).all():
            raise ConsumerLost("the consumer delivered messages out of order")
        inside = int(sequences.searchsorted(self.part.end))
        self.next = min(int(sequences[-1]) + 1, self.part.end)
        self.found_nothing = 0
        self.confirming.reset()
        if not inside:
            return None
        self.count += inside
        if inside == len(frames):
            return Delivered(frames, acks, sequences)
        inner = frames[:inside]
        return Delivered(inner, Acks(inner), sequences[:inside])

    def nothing_more(self) -> None:
        """Note that the server says that nothing from `next` on matches, and believe it if nothing is missing."""
        expected = self.part.count
        if expected is not None and self.count >= expected:
            self.next = self.part.end
            return
        self.found_nothing += 1
        # A replica that lags says the same: the reader asks again, with a new consumer.
        if self.found_nothing >= _CONFIRMATIONS:
            self.next = self.part.end


def create_reader(
    connection: Connection,
    stream: str,
    name: str,
    filters: tuple[str, ...],
    settings: Mapping[str, Any],
    *,
    left_to_stream: dict[str, Any],
    patience: Deadline,
) -> int:
    """Create a consumer by `jsapi.reader_config` and return how many messages it has to deliver.

    While the stream has as many consumers as it may have, the request is repeated until `patience` expires: other
    readers end, and their consumers go. A setting that the stream wants to decide itself is added to `left_to_stream`,
    for the next consumer. Raises what `Connection.api` raises.
    """
    context = f"create a consumer on stream {stream}"
    subject = jsapi.consumer_create(connection.prefix, stream, name, filters)
    backoff, waiting = Backoff(), False
    while True:
        request = jsapi.create_request(stream, jsapi.reader_config(name, filters, **settings, **left_to_stream))
        try:
            body = connection.api(subject, request, context=context)
        except ConsumerLimitReached as error:
            if patience.expired:
                raise jsapi.reworded(
                    error,
                    f"{error}, and no other consumer went within {patience.seconds:g} s (option retryTimeout); let "
                    "fewer tasks read at the same time (a larger maxMessagesPerPartition, a smaller minPartitions), or "
                    "raise the stream's max_consumers",
                ) from error
            if not waiting:
                log.warning("waiting for up to %.3g s until another consumer is gone: %s", patience.left, error)
                waiting = True
            backoff.pause(patience)
        except ApiError as error:
            setting = _LEFT_TO_STREAM.get(error.err_code)
            if setting is None or setting in left_to_stream:
                raise
            left_to_stream[setting] = None
        else:
            return jsapi.whole(body, "num_pending", context)


def delete_reader(connection: Connection, stream: str, name: str) -> None:
    """Delete a consumer that `create_reader` has, or may have, created; does not wait and raises nothing."""
    connection.post(jsapi.subject(connection.prefix, jsapi.CONSUMER_DELETE, stream, name))
