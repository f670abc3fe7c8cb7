"""Readers for the latest message of each subject: of what was there, and of what was stored meanwhile.

Both are `pulling.RangeReader`s, with its rules for cuts, lost consumers, silence and outages. What they know of the
server (nats-server: server/consumer.go, `getNextMsg`, `loopAndGatherMsgs`, `processWaiting`; seen with 2.15.1):

- A consumer that delivers `last_per_subject` has a list of sequences, made when it is created, and then goes on with
  everything stored later. `num_pending` is exact at that moment and is not later, when messages that are not on the
  list go. A message that is on the list and went makes it wait until the next request, message or heartbeat.
- A request with `no_wait` ends with 404 where the consumer has nothing more to deliver: at the end of the stream once
  it works off no list. If it brought something before, nothing else ends it so.

The current table of a bucket: the latest message of each subject, each subject exactly once.

Nothing stops others from writing during the read, and a subject that is written again loses the message that was to be
read. So a read has two parts. First what was there when it began, without what was overwritten before its turn. Then
everything stored since, up to a moment at which the stream held nothing more, and of that only subjects that did not
come yet. A subject that was there all the time comes once, in one of the two, by a message that was its latest at some
time during the read.

- Where each subject has one message only (`max_msgs_per_subject` 1), what was there is a plain range of sequences: it
  is read on from where an outage stopped it. Otherwise it is the list of a consumer that delivers `last_per_subject`.
- Subjects that came are remembered by hashes (`hashing.HashSet`): 16 to 32 bytes of memory for each. Nothing else
  grows.
- A bucket that is deleted, or created again, is an error, whatever `failOnDataLoss` says: half a table is none.
- Where the stream ends a consumer says, however fast others write. With Direct Get an end is only known when nothing
  was overwritten for a moment: of a bucket with hot keys that never happens, and the read fails instead of guessing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.client.inbox import Inbox
from spark_jetstream.client.pool import retrying
from spark_jetstream.errors import ConsumerLost, DataLossError, OptionError, OutageError, StreamNotFound
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.columns import Acks, Delivered, Messages
from spark_jetstream.protocol.direct_get import MergedReplies
from spark_jetstream.protocol.hashing import HashSet, subject_hashes
from spark_jetstream.protocol.stream import SequenceRange, StreamState, stream_state
from spark_jetstream.protocol.wire import Frames, Status
from spark_jetstream.streams.direct import read_direct
from spark_jetstream.streams.lookup import next_message
from spark_jetstream.streams.pull import Pulls, PullSettings, RangeReader

_END = 2**63 - 1  # behind every sequence
_HEARTBEAT = 0.5
LEAST_BATCH = 5000  # who asks for few messages at a time never sees the end of a stream that others write to


class BoundedReader(RangeReader):
    """Reads a range whose messages may go by design, so that its count says nothing.

    `replicas` are those of the stream, and `known` is its last sequence by the leader: a single replica is believed
    when it says that nothing more matches, others only behind `known`, or after some have said so.
    """

    def __init__(
        self,
        connect: Callable[[float], Connection],
        part: SequenceRange,
        settings: PullSettings,
        label: str,
        *,
        replicas: int,
        known: int,
    ) -> None:
        super().__init__(connect, part, settings, label)
        self.replicas = replicas
        self.known = known

    def nothing_more(self) -> None:
        """Believe it, or look again with another consumer."""
        if self.replicas == 1 or self.next > self.known:
            self.next = self.part.end
        else:
            super().nothing_more()


class LatestPerSubject(RangeReader):
    """The last message of each subject in a range that begins at 1 and whose end is that of the stream.

    Messages that were overwritten before they came are missing. A new consumer in place of a lost one delivers all from
    the beginning; what is in front of `next` is passed over: it is the latest of its subject now, so it was before, and
    came.
    """

    def start(self) -> dict[str, Any]:
        """As `RangeReader` has it."""
        return {"last_per_subject": True}

    def pulls(self, connection: Connection, inbox: Inbox, name: str, pending: int) -> Pulls:
        """As `RangeReader` has it."""
        return _ListPulls(self, connection, inbox, name, pending)

    def take(self, frames: Frames, acks: Acks) -> Delivered | None:
        """As `RangeReader` has it, without what a consumer before this one delivered."""
        sequences = acks.sequences()
        if not (sequences[1:] > sequences[:-1]).all():
            raise ConsumerLost("the consumer delivered messages out of order")
        known = int(sequences.searchsorted(self.next))
        if known == len(frames):
            return None
        new = frames[known:] if known else frames
        return super().take(new, Acks(new) if known else acks)

    def nothing_more(self) -> None:
        """The list is through."""
        self.next = self.part.end


class _ListPulls(Pulls):
    """Pulls for a list of messages: as many as it had at first, whatever the server counts later."""

    quiet_heartbeats = 1  # a message of the list went, and maybe more of them: a new list lacks them all

    def __init__(self, owner: RangeReader, connection: Connection, inbox: Inbox, name: str, pending: int) -> None:
        super().__init__(owner, connection, inbox, name, pending)
        self.heartbeat = min(self.heartbeat, _HEARTBEAT)

    def left(self, came: int, acks: Acks) -> int:
        return max(0, self.pending - came)

    def possible(self) -> int:
        return self.pending


class CatchUpReader(BoundedReader):
    """All messages from a sequence on, up to a moment when the stream held nothing more.

    It ends as soon as a consumer has caught up once with those who write. `part` is to be made by `followed`.
    """

    def __init__(
        self,
        connect: Callable[[float], Connection],
        part: SequenceRange,
        settings: PullSettings,
        label: str,
        *,
        replicas: int,
        known: int,
    ) -> None:
        super().__init__(connect, part, settings, label, replicas=replicas, known=known)
        self.confirming = Backoff(0.02, 0.1)  # a longer pause would let the end run away

    def pulls(self, connection: Connection, inbox: Inbox, name: str, pending: int) -> Pulls:
        """As `RangeReader` has it."""
        return _PullsToTheEnd(self, connection, inbox, name, pending)


class _PullsToTheEnd(Pulls):
    """One request after the other, each until the end of the stream."""

    def __init__(self, owner: RangeReader, connection: Connection, inbox: Inbox, name: str, pending: int) -> None:
        super().__init__(owner, connection, inbox, name, pending)
        self.expires = min(self.expires, 2 * _HEARTBEAT)
        self.heartbeat = self.expires / 2

    def left(self, came: int, acks: Acks) -> int:
        # What the server says here may be too low by what it is just storing.
        return 1

    def ask(self) -> None:
        if not self.outstanding:
            self.request(max(self.owner.settings.batch, LEAST_BATCH), no_wait=True)

    def on_status(self, status: Status) -> None:
        end = jsapi.pull_status(status, self.owner.part.stream)
        if end.outcome is not jsapi.PullOutcome.GOES_ON:
            self.outstanding = 0
        if status.code == jsapi.NOT_FOUND and self.since_request:
            self.owner.nothing_more()
            self.over = True
        elif end.too_large and not self.since_request:
            self.ended_without_message(end, status)
        elif not self.since_request:
            # Nothing came: how much there is now a new consumer says exactly.
            self.over = True


def followed(part: SequenceRange) -> SequenceRange:
    """The same range without an end."""
    return SequenceRange(part.stream, part.first, _END, None, part.created, part.subjects)


@dataclass(frozen=True)
class TablePart:
    """The latest message of each subject that one of the filters `subjects` matches (empty: of all).

    `created` is the stream's creation time as the server prints it. `direct`: read with Direct Get, not with consumers.
    Plain data that pickles.
    """

    stream: str
    created: str
    subjects: tuple[str, ...] = ()
    direct: bool = False


def read_table(
    connect: Callable[[float], Connection], part: TablePart, settings: PullSettings, label: str
) -> Iterator[Messages]:
    """The messages of `part`, deletions and purges included; runs in stream order, the later part behind the first.

    `connect(patience)` gives the connection, waiting up to so many seconds for it; `label` begins the consumers' names.
    Holds 16 to 32 bytes of memory for each subject, beside a run of messages. Raises `DataLossError` when the stream is
    another one than that of `part`, `OptionError` (readWith) where Direct Get cannot tell the latest message of a
    subject, `OutageError`, and errors that no retry can mend as they are.
    """
    try:
        yield from _Table(connect, part, replace(settings, fail_on_data_loss=True), label).read()
    except DataLossError:
        raise DataLossError(
            f"stream {part.stream}, created at {part.created}, was deleted or created again while the latest messages "
            "of its subjects were read; read it again"
        ) from None


def check_direct(state: StreamState) -> None:
    """Raises `OptionError` when the latest messages of the stream's subjects cannot be had by Direct Get."""
    if state.max_msgs_per_subject != 1:
        raise OptionError(
            f"option readWith cannot be direct for the current table of {state.name}, which keeps more than one "
            "revision of a key: set readWith to consumer, or read all revisions with history=true",
            option="readWith",
        )


class _Table:
    def __init__(
        self, connect: Callable[[float], Connection], part: TablePart, settings: PullSettings, label: str
    ) -> None:
        self.connect = connect
        self.part = part
        self.settings = settings
        self.label = label

    def read(self) -> Iterator[Messages]:
        begun = time.monotonic()
        seen = HashSet()
        state, replicas = self._look()
        whole = self._range(state.first_kept, max(state.last_seq + 1, state.first_kept))
        last = whole.first - 1
        for messages in self._present(whole, state, replicas):
            seen.add(subject_hashes(messages.subjects()))
            last = int(messages.sequences[-1])
            yield messages
        # Who needs longer for what was written meanwhile than for everything before it is slower than the writers.
        patience = Deadline(time.monotonic() - begun + self.settings.retry_timeout)
        for messages in self._stored_since(whole.end if self.part.direct else last + 1):
            if patience.expired:
                raise OutageError(
                    f"stream {self.part.stream} was written to faster than it could be read: what was stored during "
                    f"the read of its latest messages took more than {patience.seconds:.3g} s (option retryTimeout; "
                    "readWith=consumer and a larger fetchBatch are faster)"
                )
            rows = seen.take_new(subject_hashes(messages.subjects()))
            if len(rows):
                yield MergedReplies((messages,), rows, messages.sequences[rows])

    def _present(self, whole: SequenceRange, state: StreamState, replicas: int) -> Iterator[Messages]:
        """What was there, in stream order, each subject once at most."""
        if self.part.direct:
            check_direct(state)
            return read_direct(self.connect, whole, self.settings, self.label)
        if state.max_msgs_per_subject == 1:
            return BoundedReader(
                self.connect, whole, self.settings, self.label, replicas=replicas, known=state.last_seq
            ).read()
        whole = replace(whole, subjects=whole.subjects or (">",))
        return LatestPerSubject(self.connect, whole, self.settings, self.label).read()

    def _stored_since(self, first: int) -> Iterator[Messages]:
        """All messages from a sequence on, up to a moment when there were no more."""
        if self.part.direct:
            yield from self._stored_since_by_direct_get(first)
            return
        state, replicas = self._look()
        yield from CatchUpReader(
            self.connect,
            followed(self._range(first, first)),
            self.settings,
            self.label,
            replicas=replicas,
            known=state.last_seq,
        ).read()

    def _stored_since_by_direct_get(self, first: int) -> Iterator[Messages]:
        # Range by range: done when none of the messages of one had gone, or when the leader knows of none behind it.
        settings = replace(self.settings, batch=max(self.settings.batch, LEAST_BATCH))
        while True:
            end = self._look()[0].last_seq + 1
            if end <= first:
                return
            count = 0
            for messages in read_direct(self.connect, self._range(first, end), settings, self.label):
                count += len(messages)
                yield messages
            if count == end - first or not self._any_from(end):
                return
            first = end

    def _any_from(self, sequence: int) -> bool:
        """Whether the leader has a message that matches from there on."""
        deadline = Deadline(self.settings.retry_timeout)

        def ask() -> bool:
            connection = self.connect(deadline.left)
            filters = self.part.subjects or (">",)
            return any(next_message(connection, self.part.stream, each, sequence) is not None for each in filters)

        return retrying(ask, self.settings.retry_timeout)

    def _look(self) -> tuple[StreamState, int]:
        """The stream's state and the number of its replicas. `DataLossError` if it is another one."""
        name = self.part.stream
        context = f"look at stream {name}"
        deadline = Deadline(self.settings.retry_timeout)

        def ask() -> tuple[StreamState, int]:
            connection = self.connect(deadline.left)
            body = connection.ask(jsapi.stream_info(connection.prefix, name), b"", context=context)
            return stream_state(body, context), int(jsapi.field(body, "config.num_replicas", int, context))

        try:
            state, replicas = retrying(ask, self.settings.retry_timeout)
        except StreamNotFound:
            raise DataLossError(f"stream {name} was deleted") from None
        if state.created != self.part.created:
            raise DataLossError(f"stream {name} was deleted and created again at {state.created}")
        return state, replicas

    def _range(self, first: int, end: int) -> SequenceRange:
        part = self.part
        return SequenceRange(part.stream, first, end, None, part.created, part.subjects, part.direct)


__all__ = ["TablePart", "check_direct", "read_table"]
