"""An endless read of a stream: each message once, in order, whatever happens to connections, servers and consumers.

It works as `pulling` does: an ephemeral consumer without acknowledgements, in whose deliveries no hole may be, and in
place of a lost one another at the next sequence. Only that nothing ends it.
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
from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.client.inbox import Inbox
from spark_jetstream.errors import (
    ConsumerLost,
    DataLossError,
    JetStreamError,
    OptionError,
    OutageError,
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
"""What the names of consumers begin with that are made here."""

_END = 2**63 - 1  # behind every sequence
_BATCH = 500
_BATCH_BYTES = 4 * 1024 * 1024
_EXPIRES = 30.0
_SOON = 0.5  # between heartbeats, while what was there at the beginning comes
_SLACK = 1.0
_CONFIRMATIONS = 3  # consumers that must bring nothing more where the leader may not be asked


def settings(api: Api, *, headers_only: bool = False) -> PullSettings:
    """How administration pulls."""
    patience = api.options.retry_timeout
    return PullSettings(_BATCH, _BATCH_BYTES, _EXPIRES, patience, fail_on_data_loss=True, headers_only=headers_only)


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
    """The messages of a stream that match one of ``filters`` (none: all), in order, each once, without an end.

    From sequence ``start`` on; None: only what is stored after this call. With ``latest`` the last message of each
    subject comes first, and then all that is stored later; ``start`` does not count. None comes once, when all that was
    there at the beginning has come (with ``start=None`` at once). With ``headers_only`` the messages have no data.

    Behind that None it ends when nothing came for ``timeout`` seconds. Closing the iterator ends it at any time.

    The stream is looked at before this returns: `StreamNotFound`. The iterator raises `DataLossError` when the stream
    is deleted or created again, or a server came back without what it had; `OutageError` when the server is away for
    longer than ``retryTimeout``; and what no retry can mend. Messages that the stream loses before they
    come (by its limits, or a purge) do not come. The server refuses filters that overlap (`ApiError` 10138).
    """
    subjects = tuple(subject_filter(each) for each in filters)
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
    """A reader whose range has no end. It begins with a list of latest messages, or at a sequence like any other."""

    def __init__(
        self, api: Api, part: SequenceRange, settings: PullSettings, info: StreamInfo, *, latest: bool
    ) -> None:
        super().__init__(lambda _: api.connection, part, settings, LABEL)
        self._api = api
        self._listing = latest
        self._list_end = info.state.last_seq  # what is stored behind it is no list's to leave out
        self._listed = False  # a consumer was lost
        self._believed = 0  # how many found nothing more, where that is all that can be known
        self._begun = False  # all that was there at the beginning has come
        self._lived = False  # the consumer has brought something, or was there to wait for something
        self._seen, self._seen_time = info.state.last_seq, info.state.last_ts.nanoseconds
        self._info = info

    def watch(self, timeout: float, *, begun: bool) -> Iterator[StoredMessage | None]:
        """The messages, and None once."""
        self._begun = begun
        if begun:
            yield None
        outage: Deadline | None = None
        backoff = Backoff(at_once=True)
        while True:
            self._lived = False
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
                self._listed = True
                if self._lived:
                    outage = None
                    backoff.reset()
                outage = outage or Deadline(self.settings.retry_timeout)
                if outage.expired:
                    raise OutageError(
                        f"watching stream {self.part.stream} at sequence {self.next} got no further for "
                        f"{outage.seconds:g} s (option retryTimeout): {error}"
                    ) from error
                backoff.pause(outage)

    def start(self) -> dict[str, Any]:
        """As `RangeReader` has it."""
        return super().start() if self._listing else {"start_sequence": self.next}

    def take(self, frames: Frames, acks: Acks) -> Delivered | None:
        """As `LatestPerSubject` has it. Of a list that was made anew only what was there at the beginning counts."""
        run = super().take(frames, acks)
        if run is None or not (self._listing and self._listed) or int(run.sequences[-1]) <= self._list_end:
            return run
        # It lacks what was stored after the beginning and has been overwritten since.
        self._listing, self.next = False, self._list_end + 1
        inside = int(run.sequences.searchsorted(self.next))
        inner = run.frames[:inside]
        return Delivered(inner, Acks(inner), run.sequences[:inside]) if inside else None

    def session(self, connection: Connection, inbox: Inbox, name: str, pending: int) -> _EndlessPulls:
        """As `RangeReader` has it."""
        return _EndlessPulls(self, connection, inbox, name, pending, patient=self._begun)

    def _check_stream(self, connection: Connection) -> None:
        self._info = info = Streams(self._api).load(self.part.stream)
        if info.created != self.part.created:
            raise DataLossError(f"created again at {info.created}")
        state = info.state
        if state.messages and state.first_seq <= self._seen and state.first_ts.nanoseconds > self._seen_time:
            # A server came back with less, and has given sequences away a second time.
            raise DataLossError(f"it begins anew with sequence {state.first_seq}, stored at {state.first_ts}")
        if state.last_seq < self._seen:
            # A replica that has not caught up; or the server has forgotten what it had.
            raise ConsumerLost(f"the stream ends at sequence {state.last_seq}, before {self._seen}, which it had")

    def _watch_with_one(self, timeout: float) -> Iterator[StoredMessage | None]:
        """What one consumer brings, until nothing came for so many seconds. Raises `ConsumerLost` and the like."""
        connection = self.connect(0.0)
        name = reader_consumer(self.label)
        with connection.inbox() as inbox:
            try:
                pending = self._create(connection, name, Deadline(self.settings.retry_timeout))
                # Behind the beginning nothing is left out, by whatever consumer.
                self._listing = self._listing and self.next <= max(self._list_end, 1)
                yield from self._follow(self.session(connection, inbox, name, pending), timeout)
            finally:
                delete_reader(connection, self.part.stream, name)

    def _follow(self, pulls: _EndlessPulls, timeout: float) -> Iterator[StoredMessage | None]:
        last, listing = self._info.state.last_seq, self._listing
        if not self._begun and pulls.pending == 0 and self._nothing_left(pulls.connection, last):
            self._begin(pulls)
            yield None
        silence = 2 * self.settings.heartbeat + _SLACK
        silent, quiet = Deadline(silence), Deadline(timeout)
        while True:
            pulls.ask()
            event = pulls.inbox.get(min(silent.left, quiet.left if self._begun else silence))
            if event is None:
                if self._begun and quiet.expired:
                    return
                if silent.expired:
                    pulls.connection.check()
                    raise ConsumerLost(f"no message and no heartbeat came for {silence:g} s")
                continue
            silent = Deadline(silence)
            if not isinstance(event, Frames):
                pulls.on_status(event)
                self._lived = self._lived or self._begun
                continue
            run = self.take(event, pulls.account(event))
            self._lived = self._lived or run is not None
            if listing and not (self._listing or self._begun):
                if run is not None:
                    yield from self._messages(run, slice(0, len(run)))
                raise ConsumerLost("the list is through, and what was stored since comes from another consumer")
            inside = 0 if run is None else int(run.sequences.searchsorted(last, side="right"))
            through = not self._begun and (
                (run is not None and inside < len(run))
                or (pulls.left() == 0 and self._nothing_left(pulls.connection, last))
            )
            if run is not None:
                yield from self._messages(run, slice(0, inside if through else len(run)))
            if through:
                self._begin(pulls)
                yield None
                if run is not None:
                    yield from self._messages(run, slice(inside, len(run)))
            # Whoever takes the messages may have needed some time.
            silent, quiet = Deadline(silence), Deadline(timeout)

    def _begin(self, pulls: _EndlessPulls) -> None:
        """What was there at the beginning has come: from now on every message counts, and silence is no wonder."""
        self._begun = True
        self._listing = False
        pulls.wait_patiently()

    def _messages(self, run: Delivered, rows: slice) -> Iterator[StoredMessage]:
        if rows.stop > rows.start:
            frames = run.frames[rows]
            acks = Acks(frames)
            if int(acks.sequences()[-1]) > self._seen:
                self._seen, self._seen_time = int(acks.sequences()[-1]), int(acks.timestamps()[-1])
            yield from stored_messages(frames, acks, self.part.stream)

    def _nothing_left(self, connection: Connection, last: int) -> bool:
        """Whether there is no more to come up to a sequence, which a replica that has not caught up may not know."""
        if self._info.config.num_replicas == 1 or self.next > last:
            return True
        try:
            found = [next_message(connection, self.part.stream, each, self.next) for each in self.part.subjects]
        except PermissionDenied:
            self._believed += 1
            if self._believed < _CONFIRMATIONS:
                raise ConsumerLost("it is not sure that there is nothing more") from None
            return True
        return all(each is None or each.sequence > last for each in found)


class _EndlessPulls(PullSession):
    """Always two requests under way. ``pending`` is what the consumer had to deliver when it was made."""

    def __init__(
        self, owner: _Watcher, connection: Connection, inbox: Inbox, name: str, pending: int, *, patient: bool
    ) -> None:
        super().__init__(owner, connection, inbox, name, pending)
        # A message that should come and was removed makes the server wait: another consumer's count lacks it.
        self.quiet_heartbeats = 1
        self.heartbeat = _SOON
        if patient:
            self.wait_patiently()

    def wait_patiently(self) -> None:
        """Nothing may come for any time."""
        self.quiet_heartbeats = self.most_fruitless = sys.maxsize
        self.heartbeat = self.owner.settings.heartbeat

    def possible(self) -> int:
        """As `PullSession` has it."""
        return 2 * self.owner.settings.batch

    def account(self, frames: Frames) -> Acks:
        """Check that no delivery is missing; the numbers of these."""
        acks = Acks(frames)
        self._account(frames, acks)
        return acks

    def left(self, came: int = 0, acks: Acks | None = None) -> int:
        """How many of those are still to come that there were when the consumer was made."""
        return max(0, self.pending - self.consumed)
