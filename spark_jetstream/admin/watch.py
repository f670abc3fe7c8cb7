"""An endless read of a stream: each message once, in order, across reconnects, restarts of servers, lost consumers.

First comes what the stream has when the watch begins, by readers of `streams.latest` and `streams.pull`. Then one
ephemeral consumer follows the stream, in whose deliveries no sequence may be missing; a lost one is replaced.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.consumers import stored_messages
from spark_jetstream.admin.models.messages import StoredMessage
from spark_jetstream.admin.models.streams import StreamInfo
from spark_jetstream.admin.streams import Streams
from spark_jetstream.client.deadline import Backoff, Deadline, Outage
from spark_jetstream.errors import ConsumerLost, DataLossError, JetStreamError, OptionError, PermissionDenied
from spark_jetstream.protocol.columns import Acks, Delivered
from spark_jetstream.protocol.conventions import reader_consumer
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.protocol.units import shown
from spark_jetstream.protocol.wire import Frames
from spark_jetstream.streams.latest import LatestPerSubject
from spark_jetstream.streams.lookup import next_message
from spark_jetstream.streams.pull import PullSession, PullSettings, RangeReader, delete_reader

LABEL = "spark-jetstream-admin"
"""The beginning of the names of the consumers that the administration creates."""

Begin = Literal["all", "latest", "new"]
"""What comes first: all that the stream has, the last message of each subject, or only what is stored from now on."""

_END = 2**63 - 1  # beyond every sequence
BATCH = 500
_BATCH_BYTES = 4 * 1024 * 1024
_EXPIRES = 30.0
_SOON = 0.5  # seconds between heartbeats, until the messages from before the watch are read
_SLACK = 1.0


def settings(api: Api, batch: int = BATCH, *, headers_only: bool = False) -> PullSettings:
    """Return the settings with which the administration reads streams; ``batch`` is the messages of one request."""
    timeout = api.options.retry_timeout
    return PullSettings(batch, _BATCH_BYTES, _EXPIRES, timeout, fail_on_data_loss=True, headers_only=headers_only)


def watch(
    api: Api, stream: str, filters: Sequence[str], begin: Begin, *, timeout: float | None = None, follow: bool = True
) -> Iterator[StoredMessage | None]:
    """Return the messages of a stream in order, each once, without an end; and None once, before the first new one.

    Closing the iterator ends it. Messages that the stream removes first (limits, a purge) are not returned.
    ``filters`` are subjects. After the None, it ends when no message came for ``timeout`` seconds; without ``follow``,
    before the None.

    Raises:
        StreamNotFound: At once: there is no such stream.
        DataLossError: The stream was deleted or created again, or a server lost data that it had.
        OutageError: The server was away for longer than option ``retryTimeout``.
        ApiError: Error 10138: the filters overlap; and other errors that do not pass.
    """
    if timeout is not None and not timeout > 0:
        raise OptionError(f"timeout must be a number of seconds above 0, or None, not {shown(timeout)}")
    info = Streams(api).load(stream)
    end = info.state.last_seq + 1
    part = SequenceRange(stream, end if begin == "new" else 1, end, None, info.created, tuple(filters))
    how = settings(api)

    def messages() -> Iterator[StoredMessage | None]:
        try:
            yield from (_latest if begin == "latest" else _present)(api, part, how, info)
            if follow:
                follower = _Follower(api, replace(part, first=part.end, end=_END), how, info)
                yield from follower.follow(math.inf if timeout is None else timeout)
        except DataLossError as error:
            raise DataLossError(
                f"stream {stream} was deleted, or created again, while it was watched, or a server came back without "
                "what it had"
            ) from error

    return messages()


def _present(api: Api, part: SequenceRange, how: PullSettings, info: StreamInfo) -> Iterator[StoredMessage]:
    for delivered in _PresentReader(api, part, how, info.config.num_replicas).read():
        yield from stored_messages(delivered.frames, delivered.acks, part.stream)


def _latest(api: Api, part: SequenceRange, how: PullSettings, info: StreamInfo) -> Iterator[StoredMessage]:
    """Return the last message of each subject, without those that are overwritten before they come."""
    last = 0
    for delivered in LatestPerSubject(api.connect, part, how, LABEL).read():
        last = int(delivered.sequences[-1])
        yield from stored_messages(delivered.frames, delivered.acks, part.stream)
    if info.config.num_replicas > 1:
        # The list of a replica that lags ends too early.
        rest = {message.subject: message for message in _present(api, replace(part, first=last + 1), how, info)}
        yield from sorted(rest.values(), key=lambda message: message.seq)


class _PresentSession(PullSession):
    # For a message that was removed before its delivery the server waits. The count of another consumer lacks it.
    quiet_heartbeats = 1
    longest_heartbeat = _SOON


class _PresentReader(RangeReader):
    """Reads what a stream has. A consumer on a replica that lags may not know all of it."""

    session: ClassVar[type[PullSession]] = _PresentSession

    def __init__(self, api: Api, part: SequenceRange, how: PullSettings, replicas: int) -> None:
        super().__init__(api.connect, part, how, LABEL)
        self._replicas = replicas

    def nothing_more(self) -> None:
        """End the range, or ask again with another consumer if the leader has more of it."""
        connection, part = self.connect(0.0), self.part
        subjects = part.subjects if self._replicas > 1 else ()
        try:
            following = [next_message(connection, part.stream, subject, self.next) for subject in subjects]
        except PermissionDenied:
            super().nothing_more()
            return
        if any(message is not None and message.sequence < part.end for message in following):
            raise ConsumerLost("a replica that lags says that there is nothing more")
        self.next = part.end


class _Follower(RangeReader):
    """Reads a range without an end. ``info`` is how the stream was before."""

    def __init__(self, api: Api, part: SequenceRange, how: PullSettings, info: StreamInfo) -> None:
        super().__init__(api.connect, part, how, LABEL)
        self._streams = Streams(api)
        self._begun = False
        self._progressed = False  # the consumer has delivered a message, or answered a pull
        self._seen, self._seen_time = info.state.last_seq, info.state.last_ts.nanoseconds

    def follow(self, timeout: float) -> Iterator[StoredMessage | None]:
        """Return None, then the messages, until no message came for so many seconds."""
        outage = Outage(self.settings.retry_timeout, Backoff(at_once=True))
        while True:
            self._progressed = False
            try:
                yield from self._follow_with_one(timeout)
                return
            except JetStreamError as error:
                if not error.retriable:
                    raise
                outage.begin()  # the time before the failure does not count: the watch may have been quiet
                doing = f"watching stream {self.part.stream} at sequence {self.next}"
                outage.failed(error, doing, progressed=self._progressed)
                outage.pause()

    def _follow_with_one(self, timeout: float) -> Iterator[StoredMessage | None]:
        connection = self.connect(0.0)
        name = reader_consumer(self.label)
        with connection.inbox() as inbox:
            try:
                pending = self._create(connection, name, Deadline(self.settings.retry_timeout))
                self._check_stream()
                session = _EndlessSession(self, connection, inbox, name, pending)
                session.ask()
                if not self._begun:
                    # From here on the consumer keeps what is overwritten before the caller asks for it.
                    self._begun = True
                    yield None
                for delivered in session.follow(timeout):
                    self._progressed = True
                    if delivered is not None:
                        self._seen = int(delivered.sequences[-1])
                        self._seen_time = int(delivered.timestamps()[-1])
                        yield from stored_messages(delivered.frames, delivered.acks, self.part.stream)
            finally:
                delete_reader(connection, self.part.stream, name)

    def _check_stream(self) -> None:
        info = self._streams.load(self.part.stream)
        if info.created != self.part.created:
            raise DataLossError(f"created again at {info.created}")
        state = info.state
        if state.messages and state.first_seq <= self._seen and state.first_ts.nanoseconds > self._seen_time:
            # A server came back with fewer messages, and has used sequences a second time.
            raise DataLossError(f"it begins anew with sequence {state.first_seq}, stored at {state.first_ts}")
        if state.last_seq < self._seen:
            # A replica lags; or the server has lost messages.
            raise ConsumerLost(f"the stream ends at sequence {state.last_seq}, before {self._seen}, which it had")


class _EndlessSession(PullSession):
    """Always two requests under way. The server may have no message to send for any time."""

    quiet_heartbeats = most_fruitless = sys.maxsize

    def possible(self) -> int:
        """Return how many messages may be requested."""
        return 2 * self.owner.settings.batch

    def follow(self, timeout: float) -> Iterator[Delivered | None]:
        """Yield what the consumer delivers, and None for a status, until no message came for so many seconds."""
        silence = 2 * self.heartbeat + _SLACK
        silent, quiet = Deadline(silence), Deadline(timeout)
        while True:
            self.ask()
            event = self.inbox.get(min(silent.left, quiet.left))
            if event is None:
                if quiet.expired:
                    return
                if silent.expired:
                    self.connection.check()
                    raise ConsumerLost(f"no message and no heartbeat came for {silence:g} s")
                continue
            silent = Deadline(silence)
            if not isinstance(event, Frames):
                self.on_status(event)
                yield None
                continue
            acks = Acks(event)
            self._account(event, acks)
            yield self.owner.take(event, acks)
            # The caller may have taken some time for the messages.
            silent, quiet = Deadline(silence), Deadline(timeout)
