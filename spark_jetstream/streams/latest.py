"""Reads the latest message of each subject, each subject exactly once: the current table of a bucket.

Other writers may store messages during the read, and a subject that is written again loses the message that the reader
has not read yet. So a read has two parts. First the messages that the stream held at the beginning, without those that
were overwritten before their turn. Then all messages stored since, until the stream holds nothing more, and of these
only subjects that have not come yet. docs/buckets.md has the promise ("The table").

- If each subject has one message only (`max_msgs_per_subject` 1), the first part is a plain range of sequences, and the
  reader continues it after an outage. Otherwise it is the list of a consumer that delivers `last_per_subject`.
- The reader keeps a hash of each subject (`hashing.HashSet`); nothing else grows.
- A bucket that is deleted, or created again, is an error also if `failOnDataLoss` is false.
- Only a consumer says where the stream ends, however fast others write (docs/buckets.md, "The table").

What the readers rely on (nats-server 2.15.1: server/consumer.go, `getNextMsg`, `loopAndGatherMsgs`, `processWaiting`):

- A consumer that delivers `last_per_subject` has a list of sequences, made when it is created, and then delivers
  everything stored later. `num_pending` is exact at that moment; it is not once messages of the list are removed. After
  a message of the list was removed the consumer waits for the next request, message or heartbeat.
- A request with `no_wait` ends with 404 if the consumer has nothing more to deliver: at the end of the stream, once it
  has no list. If such a request brought messages before, nothing else ends it with 404.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from spark_jetstream.client.deadline import Deadline
from spark_jetstream.client.requests import Connect, Requests
from spark_jetstream.errors import ConsumerLost, DataLossError, OptionError, OutageError
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.columns import Acks, Delivered, MessageRun
from spark_jetstream.protocol.direct_get import MergedReplies
from spark_jetstream.protocol.hashing import HashSet, subject_hashes
from spark_jetstream.protocol.stream import SequenceRange, StreamSummary
from spark_jetstream.protocol.wire import Frames, Status
from spark_jetstream.streams.direct import read_direct
from spark_jetstream.streams.lookup import next_message
from spark_jetstream.streams.pull import PullSession, PullSettings, RangeReader, look

_END = 2**63 - 1  # behind every sequence
_HEARTBEAT = 0.5
LEAST_BATCH = 5000  # small requests never reach the end of a stream that others write to


class _ListSession(PullSession):
    """Pulls the messages of a list: as many as it had at first, whatever the server counts later."""

    quiet_heartbeats = 1  # a message of the list was removed, and maybe more: a new list lacks them all
    longest_heartbeat = _HEARTBEAT

    def left(self, came: int, acks: Acks) -> int:
        return max(0, self.pending - came)

    def possible(self) -> int:
        return self.pending


class _SessionToTheEnd(PullSession):
    """Sends one request after the other, each until the end of the stream."""

    longest = 2 * _HEARTBEAT
    before = 0  # `consumed` when the request was sent

    def left(self, came: int, acks: Acks) -> int:
        # The number of the server may lack messages that it is about to store.
        return 1

    def ask(self) -> None:
        if not self.outstanding:
            self.before = self.consumed
            self.request(max(self.owner.settings.batch, LEAST_BATCH), no_wait=True)

    def on_end(self, end: jsapi.PullEnd, status: Status) -> None:
        if end.outcome is not jsapi.PullOutcome.GOES_ON:
            self.outstanding = 0
        came = self.consumed > self.before
        if status.code == jsapi.NOT_FOUND and came:
            self.owner.nothing_more()
            self.over = True
        elif end.too_large and not came:
            self.ended_without_message(end, status)
        elif not came:
            # Nothing came. A new consumer says exactly how much there is.
            self.over = True


class BoundedReader(RangeReader):
    """Reads a range whose messages may be removed at any time, so that it has no count.

    `state` is what the leader says of the stream. The reader believes a single replica that nothing more matches;
    others only behind the stream's last sequence, or after several consumers said so.
    """

    def __init__(
        self, connect: Connect, part: SequenceRange, settings: PullSettings, label: str, state: StreamSummary
    ) -> None:
        super().__init__(connect, part, settings, label)
        self._state = state

    def nothing_more(self) -> None:
        """End the range, or ask again with another consumer."""
        if self._state.num_replicas == 1 or self.next > self._state.last_seq:
            self.next = self.part.end
        else:
            super().nothing_more()


class LatestPerSubject(RangeReader):
    """Reads the last message of each subject in a range that begins at 1 and ends where the stream does.

    Messages that were overwritten before they came are missing. A consumer that replaces a lost one delivers its list
    from the beginning; messages before `next` are skipped, because they came.
    """

    session: ClassVar[type[PullSession]] = _ListSession

    def start(self) -> dict[str, Any]:
        """As `RangeReader` has it."""
        return {"last_per_subject": True}

    def take(self, frames: Frames, acks: Acks) -> Delivered | None:
        """As `RangeReader` has it, without messages that an earlier consumer delivered."""
        sequences = acks.sequences()
        if not (sequences[1:] > sequences[:-1]).all():
            raise ConsumerLost("the consumer delivered messages out of order")
        known = int(sequences.searchsorted(self.next))
        if known == len(frames):
            return None
        new = frames[known:] if known else frames
        return super().take(new, Acks(new) if known else acks)

    def nothing_more(self) -> None:
        """End the range: the list has ended."""
        self.next = self.part.end


class CatchUpReader(BoundedReader):
    """Reads a range without an end, until a consumer has caught up once with the writers."""

    session: ClassVar[type[PullSession]] = _SessionToTheEnd
    pauses: ClassVar[tuple[float, float]] = (0.02, 0.1)  # a longer pause would let the end run away


@dataclass(frozen=True)
class TablePart:
    """The latest message of each subject that one of the filters `subjects` matches (empty: of all subjects).

    `created` is the stream's creation time as the server prints it. With `direct` the reader uses Direct Get, not
    consumers. Plain data that pickles.
    """

    stream: str
    created: str
    subjects: tuple[str, ...] = ()
    direct: bool = False


def read_table(
    connect: Connect, part: TablePart, settings: PullSettings, label: str, *, rolled_up: bool = False
) -> Iterator[MessageRun]:
    """Yield the messages of `part`, deletions and purges included, each of the two parts in stream order.

    The names of the consumers begin with `label`. `rolled_up`: each subject has one message, whatever the stream's
    limit is, because its writers replace the message before. Raises `DataLossError` if the stream was deleted,
    `OptionError` (readWith), `OutageError` if others wrote faster than this reader, and what `read_range` raises.
    """
    try:
        yield from _TableReader(connect, part, replace(settings, fail_on_data_loss=True), label, rolled_up).read()
    except DataLossError:
        raise DataLossError(
            f"stream {part.stream}, created at {part.created}, was deleted or created again after this read was "
            "planned; read it again"
        ) from None


def check_direct(state: StreamSummary) -> None:
    """Raise `OptionError` if Direct Get cannot tell the latest messages of the stream's subjects."""
    if state.max_msgs_per_subject != 1:
        raise OptionError(
            f"option readWith cannot be direct for the current table of {state.name}, which keeps more than one "
            "revision of a key: set readWith to consumer, or read all revisions with history=true",
            option="readWith",
        )


class _TableReader:
    def __init__(self, connect: Connect, part: TablePart, settings: PullSettings, label: str, rolled_up: bool) -> None:
        self.connect = connect
        self.requests = Requests(connect, settings.retry_timeout)
        self.part = SequenceRange(part.stream, 1, _END, None, part.created, part.subjects)
        self.direct = part.direct
        self.settings = settings
        self.label = label
        self.rolled_up = rolled_up

    def read(self) -> Iterator[MessageRun]:
        begun = time.monotonic()
        present = bytearray()  # hashes of 8 bytes
        state = self._look()
        whole = replace(self.part, first=state.first_kept, end=max(state.last_seq + 1, state.first_kept))
        last = whole.first - 1
        for messages in self._present(whole, state):
            present += subject_hashes(messages.subjects()).tobytes()
            last = int(messages.sequences[-1])
            yield messages
        came = np.frombuffer(present, np.uint64)
        came.sort()
        later = HashSet()
        # A reader that takes longer for the second part than for the first one is slower than the writers.
        patience = Deadline(time.monotonic() - begun + self.settings.retry_timeout)
        for messages in self._stored_since(whole.end if self.direct else last + 1):
            if patience.expired:
                raise OutageError(
                    f"stream {self.part.stream} was written to faster than it could be read: what was stored during "
                    f"the read of its latest messages took more than {patience.seconds:.3g} s (option retryTimeout; "
                    "readWith=consumer and a larger fetchBatch are faster)"
                )
            hashes = subject_hashes(messages.subjects())
            rows = later.take_new(hashes)
            rows = rows[came.searchsorted(hashes[rows]) == came.searchsorted(hashes[rows], side="right")]
            if len(rows):
                yield MergedReplies((messages,), rows, messages.sequences[rows])

    def _present(self, whole: SequenceRange, state: StreamSummary) -> Iterator[MessageRun]:
        """Return the messages that the stream held at the beginning, in stream order, each subject once at most."""
        if self.direct:
            if not self.rolled_up:
                check_direct(state)
            return read_direct(self.connect, whole, self.settings, self.label)
        if state.max_msgs_per_subject == 1:
            return BoundedReader(self.connect, whole, self.settings, self.label, state).read()
        whole = replace(whole, subjects=whole.subjects or (">",))
        return LatestPerSubject(self.connect, whole, self.settings, self.label).read()

    def _stored_since(self, first: int) -> Iterator[MessageRun]:
        """Yield all messages from a sequence on, until there are no more."""
        if not self.direct:
            state = self._look()
            part = replace(self.part, first=first)
            yield from CatchUpReader(self.connect, part, self.settings, self.label, state).read()
            return
        # Range by range, until a range lacks no message, or the leader knows of none behind it.
        stream, filters = self.part.stream, self.part.subjects or (">",)
        settings = replace(self.settings, batch=max(self.settings.batch, LEAST_BATCH))
        while True:
            end = self._look().last_seq + 1
            if end <= first:
                return
            count = 0
            for messages in read_direct(self.connect, replace(self.part, first=first, end=end), settings, self.label):
                count += len(messages)
                yield messages
            if count == end - first:
                return
            following = (
                self.requests.call(partial(next_message, stream=stream, subject=name, sequence=end)) for name in filters
            )
            if not any(following):
                return
            first = end

    def _look(self) -> StreamSummary:
        """Return the stream's state. Raises `DataLossError` if the stream was deleted or created again."""
        return self.requests.call(partial(look, part=self.part, first=1))
