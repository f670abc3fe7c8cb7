"""An endless read of a stream: each message once, in order, across reconnects, restarts of servers, lost consumers.

It reads as `streams.pull` does: by an ephemeral consumer without acknowledgements, in whose deliveries no sequence may
be missing. A lost consumer is replaced by another one that begins at the next sequence. The read has no end.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from spark_jetstream.admin.api import Api, positive, subject_filter
from spark_jetstream.admin.consumers import stored_messages
from spark_jetstream.admin.models.messages import StoredMessage
from spark_jetstream.admin.models.streams import StreamInfo
from spark_jetstream.admin.streams import Streams
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Backoff, Deadline, Outage
from spark_jetstream.client.inbox import Inbox
from spark_jetstream.errors import (
    ConsumerLost,
    DataLossError,
    JetStreamError,
    OptionError,
    PermissionDenied,
)
from spark_jetstream.protocol.columns import Acks, Delivered
from spark_jetstream.protocol.conventions import reader_consumer
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.protocol.units import shown
from spark_jetstream.protocol.wire import Frames
from spark_jetstream.streams.consumers import delete_reader
from spark_jetstream.streams.latest import LatestPerSubject
from spark_jetstream.streams.lookup import next_message
from spark_jetstream.streams.pull import PullSession, PullSettings

LABEL = "spark-jetstream-admin"
"""The beginning of the names of the consumers that the administration creates."""

_END = 2**63 - 1  # beyond every sequence
_BATCH = 500
_BATCH_BYTES = 4 * 1024 * 1024
_EXPIRES = 30.0
_SOON = 0.5  # seconds between heartbeats, until the messages from before the watch are read
_SLACK = 1.0
_CONFIRMATIONS = 3  # consumers that must find no more messages, where the account may not ask the leader


def settings(api: Api, *, headers_only: bool = False) -> PullSettings:
    """Return the settings with which the administration session."""
    timeout = api.options.retry_timeout
    return PullSettings(_BATCH, _BATCH_BYTES, _EXPIRES, timeout, fail_on_data_loss=True, headers_only=headers_only)


def watch(
    api: Api,
    stream: str,
    filters: Sequence[str] = (),
    *,
    start: int | None = 1,
    latest: bool = False,
    headers_only: bool = False,
    timeout: float | None = None,
) -> Iterator[StoredMessage | None]:
    """Return the messages of a stream in order, each once, without an end; and None once, before the first new one.

    Closing the iterator ends it. Messages that the stream removes first (limits, a purge) are not returned.

    Args:
        api: The API.
        stream: The stream.
        filters: Only messages that match one of these subjects; by default all.
        start: Begin with this sequence; None: with what is stored after this call.
        latest: Begin with the last message of each subject, then what is stored later; ``start`` does not count.
        headers_only: Return messages without data.
        timeout: After the None, end when no message came for so many seconds.

    Raises:
        StreamNotFound: At once: there is no such stream.
        DataLossError: The stream was deleted or created again, or a server lost data that it had.
        OutageError: The server was away for longer than option ``retryTimeout``.
        ApiError: Error 10138: the filters overlap; and other errors that do not pass.
    """
    subjects = tuple(map(subject_filter, filters))
    if timeout is not None and not timeout > 0:
        raise OptionError(f"timeout must be a number of seconds above 0, or None, not {shown(timeout)}")
    first = 1 if start is None or latest else positive(start)
    info = Streams(api).load(stream)
    only_new = start is None and not latest
    part = SequenceRange(
        stream, info.state.last_seq + 1 if only_new else first, _END, None, info.created, subjects or (">",)
    )
    watcher = _Watcher(api, part, settings(api, headers_only=headers_only), info, latest=latest)
    return watcher.watch(math.inf if timeout is None else timeout, begun=only_new)


class _Watcher(LatestPerSubject):
    """A reader whose range has no end. It begins with the last message of each subject (the list), or at a sequence."""

    def __init__(
        self, api: Api, part: SequenceRange, settings: PullSettings, info: StreamInfo, *, latest: bool
    ) -> None:
        super().__init__(api.connect, part, settings, LABEL)
        self._api = api
        self._listing = latest
        self._list_end = info.state.last_seq  # every message after it must be returned
        self._relisted = False  # a consumer was lost, and another one makes the list again
        self._empty_consumers = 0  # consumers that found no more messages, where the leader may not be asked
        self._begun = False  # all messages from before the watch were returned
        self._progressed = False  # the consumer has delivered a message, or answered a pull after the beginning
        self._seen, self._seen_time = info.state.last_seq, info.state.last_ts.nanoseconds
        self._info = info

    def watch(self, timeout: float, *, begun: bool) -> Iterator[StoredMessage | None]:
        """Return the messages, and None once."""
        self._begun = begun
        if begun:
            yield None
        outage = Outage(self.settings.retry_timeout, Backoff(at_once=True))
        while True:
            self._progressed = False
            try:
                yield from self._watch_with_one(timeout)
                return
            except DataLossError as error:
                raise DataLossError(
                    f"stream {self.part.stream} was deleted, or created again, while it was watched, or a server came "
                    "back without what it had"
                ) from error
            except JetStreamError as error:
                if not error.retriable:
                    raise
                self._relisted = True
                outage.begin()  # the time before the failure does not count: the watch may have been quiet
                doing = f"watching stream {self.part.stream} at sequence {self.next}"
                outage.failed(error, doing, progressed=self._progressed)
                outage.pause()

    def start(self) -> dict[str, Any]:
        """Return the fields of the consumer's configuration that say where it begins."""
        return super().start() if self._listing else {"start_sequence": self.next}

    def take(self, frames: Frames, acks: Acks) -> Delivered | None:
        """Return what `LatestPerSubject` does; of a list that is made again only messages from before the watch."""
        messages = super().take(frames, acks)
        if messages is None or not (self._listing and self._relisted) or int(messages.sequences[-1]) <= self._list_end:
            return messages
        # That list lacks messages that were stored since the beginning, and overwritten since.
        self._listing, self.next = False, self._list_end + 1
        count = int(messages.sequences.searchsorted(self.next))
        before = messages.frames[:count]
        return Delivered(before, Acks(before), messages.sequences[:count]) if count else None

    def session(self, connection: Connection, inbox: Inbox, name: str, pending: int) -> _EndlessSession:
        """Return the pull session of a consumer."""
        return _EndlessSession(self, connection, inbox, name, pending, patient=self._begun)

    def _check_stream(self, connection: Connection) -> None:
        self._info = info = Streams(self._api).load(self.part.stream)
        if info.created != self.part.created:
            raise DataLossError(f"created again at {info.created}")
        state = info.state
        if state.messages and state.first_seq <= self._seen and state.first_ts.nanoseconds > self._seen_time:
            # A server came back with fewer messages, and has used sequences a second time.
            raise DataLossError(f"it begins anew with sequence {state.first_seq}, stored at {state.first_ts}")
        if state.last_seq < self._seen:
            # A replica lags; or the server has lost messages.
            raise ConsumerLost(f"the stream ends at sequence {state.last_seq}, before {self._seen}, which it had")

    def _watch_with_one(self, timeout: float) -> Iterator[StoredMessage | None]:
        """Return what one consumer delivers, until no message came for so many seconds."""
        connection = self.connect(0.0)
        name = reader_consumer(self.label)
        with connection.inbox() as inbox:
            try:
                pending = self._create(connection, name, Deadline(self.settings.retry_timeout))
                # After the list every message counts, whichever consumer delivers it.
                self._listing = self._listing and self.next <= max(self._list_end, 1)
                yield from self._follow(self.session(connection, inbox, name, pending), timeout)
            finally:
                delete_reader(connection, self.part.stream, name)

    def _follow(self, session: _EndlessSession, timeout: float) -> Iterator[StoredMessage | None]:
        last, listing = self._info.state.last_seq, self._listing
        if not self._begun and session.pending == 0 and self._nothing_left(session.connection, last):
            self._begin(session)
            yield None
        silence = 2 * self.settings.heartbeat + _SLACK
        silent, quiet = Deadline(silence), Deadline(timeout)
        while True:
            session.ask()
            event = session.inbox.get(min(silent.left, quiet.left if self._begun else silence))
            if event is None:
                if self._begun and quiet.expired:
                    return
                if silent.expired:
                    session.connection.check()
                    raise ConsumerLost(f"no message and no heartbeat came for {silence:g} s")
                continue
            silent = Deadline(silence)
            if not isinstance(event, Frames):
                session.on_status(event)
                self._progressed = self._progressed or self._begun
                continue
            messages = self.take(event, session.account(event))
            self._progressed = self._progressed or messages is not None
            if listing and not (self._listing or self._begun):
                if messages is not None:
                    yield from self._messages(messages, slice(0, len(messages)))
                raise ConsumerLost("the list is through, and what was stored since comes from another consumer")
            old = 0 if messages is None else int(messages.sequences.searchsorted(last, side="right"))
            caught_up = not self._begun and (
                (messages is not None and old < len(messages))
                or (session.left() == 0 and self._nothing_left(session.connection, last))
            )
            if messages is not None:
                yield from self._messages(messages, slice(0, old if caught_up else len(messages)))
            if caught_up:
                self._begin(session)
                yield None
                if messages is not None:
                    yield from self._messages(messages, slice(old, len(messages)))
            # The caller may have taken some time for the messages.
            silent, quiet = Deadline(silence), Deadline(timeout)

    def _begin(self, session: _EndlessSession) -> None:
        """Begin with the new messages: from now on the server may have none to send for any time."""
        self._begun = True
        self._listing = False
        session.wait_patiently()

    def _messages(self, delivered: Delivered, rows: slice) -> Iterator[StoredMessage]:
        if rows.stop > rows.start:
            frames = delivered.frames[rows]
            acks = Acks(frames)
            if int(acks.sequences()[-1]) > self._seen:
                self._seen, self._seen_time = int(acks.sequences()[-1]), int(acks.timestamps()[-1])
            yield from stored_messages(frames, acks, self.part.stream)

    def _nothing_left(self, connection: Connection, last: int) -> bool:
        """Return whether no message up to a sequence is left. A consumer on a replica that lags may not know."""
        if self._info.config.num_replicas == 1 or self.next > last:
            return True
        try:
            stream, subjects = self.part.stream, self.part.subjects
            following = [next_message(connection, stream, subject, self.next) for subject in subjects]
        except PermissionDenied:
            self._empty_consumers += 1
            if self._empty_consumers < _CONFIRMATIONS:
                raise ConsumerLost("it is not sure that there is nothing more") from None
            return True
        return all(message is None or message.sequence > last for message in following)


class _EndlessSession(PullSession):
    """Always two requests under way. ``pending`` messages were to deliver when the consumer was created."""

    def __init__(
        self, owner: _Watcher, connection: Connection, inbox: Inbox, name: str, pending: int, *, patient: bool
    ) -> None:
        super().__init__(owner, connection, inbox, name, pending)
        # For a message that was removed before its delivery the server waits. The count of another consumer lacks it.
        self.quiet_heartbeats = 1
        self.heartbeat = _SOON
        if patient:
            self.wait_patiently()

    def wait_patiently(self) -> None:
        """Accept that no message comes for any time."""
        self.quiet_heartbeats = self.most_fruitless = sys.maxsize
        self.heartbeat = self.owner.settings.heartbeat

    def possible(self) -> int:
        """Return how many messages may be requested."""
        return 2 * self.owner.settings.batch

    def account(self, frames: Frames) -> Acks:
        """Check that no delivery is missing; return the ack subjects, parsed."""
        acks = Acks(frames)
        self._account(frames, acks)
        return acks

    def left(self, came: int = 0, acks: Acks | None = None) -> int:
        """Return how many of the ``pending`` messages were not delivered yet."""
        return max(0, self.pending - self.consumed)
