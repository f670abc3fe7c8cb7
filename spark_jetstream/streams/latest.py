"""Reads the latest message of each subject exactly once: the current table of a bucket.

Other writers may store messages during the read, and a subject that is written again loses the
message that the reader has not read yet. So a read has two parts. First the messages that the
stream held at the beginning, without those that were overwritten before their turn. Then all
messages stored since, until the stream holds nothing more, and of these only subjects that have not
come yet. docs/buckets.md has the promise ("The table").

- If each subject has one message only (`max_msgs_per_subject` 1), the first part is a plain range
  of sequences, and the reader continues it after an outage. Otherwise it is the list of a consumer
  that delivers `last_per_subject`.
- A subject whose last message is removed alone has the one before it again, which the list lacks.
  Another list has it.
- The reader keeps a hash of each subject (`hashing.HashSet`); nothing else grows.
- A bucket that is deleted, or created again, is an error also where a loss is accepted.
- A replica that lags may have messages which newer ones had replaced before the read began. The
  reader gets the newer ones too, since the leader says that they are missing. A subject that is
  read twice is an error, unless the caller takes the last message of each.
- Only a consumer says where the stream ends, however fast others write (docs/buckets.md, "The
  table").

The readers rely on this behaviour (nats-server 2.15.1: server/consumer.go, `getNextMsg`,
`loopAndGatherMsgs`, `processWaiting`):

- A consumer that delivers `last_per_subject` has a list of sequences, made when it is created, and
  then delivers everything stored later. `num_pending` is exact at that moment; it is not once
  messages of the list are removed. After a message of the list was removed the consumer waits for
  the next request, message or heartbeat.
- A request with `no_wait` ends with 404 if the consumer has nothing more to deliver: at the end of
  the stream, once it has no list. If the request brought messages before, nothing else ends it with
  404.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.client.requests import Connect, Requests
from spark_jetstream.errors import DataLossError, JetStreamError, OutageError
from spark_jetstream.protocol.arrow import BoolArray
from spark_jetstream.protocol.columns import Delivered, MessageRun
from spark_jetstream.protocol.direct_get import MergedReplies
from spark_jetstream.protocol.hashing import Hashes, HashSet, subject_hashes
from spark_jetstream.protocol.stream import SequenceRange, StreamSummary
from spark_jetstream.streams.direct import read_direct, sifts
from spark_jetstream.streams.leader import look
from spark_jetstream.streams.lookup import next_sequence
from spark_jetstream.streams.pull import Messages, PullSettings, RangeReader
from spark_jetstream.streams.session import Ends

END = 2**63 - 1
"""One past every sequence: the end of a range without an end."""
_HEARTBEAT = 0.5
LEAST_BATCH = 5000
"""The fewest messages of a request of `read_to_end`, and of a Direct Get for the end of a table.

Small requests never reach the end of a stream that others write to.
"""


class Came:
    """The subjects of messages that were read, by their hashes: 8 bytes for each."""

    def __init__(self) -> None:
        self._hashes = bytearray()

    def noting(self, runs: Iterator[Messages]) -> Iterator[Messages]:
        """Yield `runs`, and add the subjects of each."""
        for run in runs:
            self._hashes += subject_hashes(run.raw_subjects()).tobytes()
            yield run

    def new(self, runs: Iterator[Delivered]) -> Iterator[Delivered]:
        """Yield the messages of `runs`, one of each subject, whose subjects have not come.

        Their subjects are added at the end.
        """
        before = self.sort()
        added = bytearray()
        for run in runs:
            hashes = subject_hashes(run.raw_subjects())
            rows = np.flatnonzero(~_contains(before, hashes))
            if len(rows):
                added += hashes[rows].tobytes()
                yield run[rows]
        # While an array refers to the bytearray, Python lets nothing be added (BufferError).
        del before
        self._hashes += added

    def sort(self) -> Hashes:
        """Return the hashes, ascending; nothing can be added while the caller keeps them."""
        # uint64 (n,): it shares the memory of the bytearray, so sorting needs no second copy.
        hashes = np.frombuffer(self._hashes, np.uint64)
        hashes.sort()
        return hashes


def read_list(
    connect: Connect,
    part: SequenceRange,
    settings: PullSettings,
    label: str,
    came: Came | None = None,
) -> Iterator[Delivered]:
    """Yield the last message of each subject in a range from 1 to the end of the stream.

    Messages that were overwritten before their turn are missing. Where one was removed alone, the
    message before it comes after the list. Its subjects are added to `came`. `part` must have a
    filter. Raises what `read_range` raises.
    """
    came = came or Came()
    # After a message of the list was removed, and maybe more, a new list lacks them all.
    policy = settings.policy(Ends.LIST, heartbeat=_HEARTBEAT, quiet_heartbeats=1)
    requests = Requests(connect, settings.retry_timeout)
    looking = partial(look, part=part, first=1, settled=True)
    # This look precedes the list, so the next one differs if a message is removed in between.
    before = requests.call(looking)
    yield from came.noting(RangeReader(connect, part, settings, label, policy).read())
    # Without `deny_delete`, with TTLs or with schedules a message may go while an older one of its
    # subject stays.
    incomplete = not before.deny_delete or before.allow_msg_ttl or before.allow_msg_schedules
    while incomplete:
        after = requests.call(looking)
        if _missing(after) == _missing(before):
            return
        before = after
        # Hot subjects lose messages all the time, so a list that brings no new subject is the last.
        incomplete = False
        for run in came.new(RangeReader(connect, part, settings, label, policy).read()):
            incomplete = True
            yield run


def _missing(state: StreamSummary) -> tuple[int, str]:
    """Return what changes when the stream loses a message, or another server leads it."""
    # With another term the stream may have lost its tail (`StreamSummary.term`).
    return state.last_seq - state.messages, state.term


def _contains(ascending: Hashes, hashes: Hashes) -> BoolArray:
    """Return for each hash whether it is among the ascending ones."""
    contained: BoolArray = ascending.searchsorted(hashes) < ascending.searchsorted(
        hashes, side="right"
    )
    return contained


def _ends_with(state: StreamSummary) -> Callable[[Connection, int], bool]:
    """Return what confirms the end of a range without a count, whose messages may be removed.

    `state` is what the leader says of the stream. A single replica is believed that nothing more
    matches; others only past the stream's last sequence.
    """

    def is_end(connection: Connection, sequence: int) -> bool:
        # With several replicas the consumer may be on one that lags.
        return state.num_replicas == 1 or sequence > state.last_seq

    return is_end


def read_to_end(
    connect: Connect,
    part: SequenceRange,
    settings: PullSettings,
    label: str,
    check: Callable[[], None] = lambda: None,
    *,
    least_batch: int = LEAST_BATCH,
) -> Iterator[Delivered]:
    """Yield the messages of a range without an end, until a consumer has caught up once.

    A request is for at least `least_batch` messages. `check` is that of `RangeReader`. Raises what
    `read_range` raises.
    """
    state = Requests(connect, settings.retry_timeout).call(
        partial(look, part=part, first=part.first, settled=True)
    )
    if state.last_seq < part.first:
        return
    batch = max(settings.batch, least_batch)
    policy = settings.policy(
        Ends.CAUGHT_UP, expires=2 * _HEARTBEAT, heartbeat=_HEARTBEAT, batch=batch
    )
    confirm = _ends_with(state)
    confirming = Backoff(0.02, 0.1)  # a longer pause would let the end run away
    reader = RangeReader(
        connect, part, settings, label, policy, confirm=confirm, check=check, confirming=confirming
    )
    yield from reader.read()


@dataclass(frozen=True)
class TablePart:
    """The latest message of each subject that a filter of `subjects` matches (empty: all).

    `created` is the stream's creation time as the server prints it. With `direct` the reader uses
    Direct Get, not consumers. Plain data that pickles.
    """

    stream: str
    created: str
    subjects: tuple[str, ...] = ()
    direct: bool = False


def read_table(
    connect: Connect,
    part: TablePart,
    settings: PullSettings,
    label: str,
    *,
    rolled_up: bool = False,
) -> Iterator[MessageRun]:
    """Yield the messages of `part`, deletions and purges included.

    Each of the two parts is in stream order; after the first one come messages that `read_list` has
    after its list. The names of the consumers begin with `label`. `rolled_up`: each subject has one
    message, whatever the stream's limit is, because its writers replace the message before. A
    subject may still have several: in a copy of a bucket, of a replica that lags, or stored during
    the read. The caller takes the last one. Raises `DataLossError` if the stream was deleted,
    `OutageError` if others wrote faster than this reader, and what `read_range` raises.
    """
    try:
        # A bucket that was created again is another table, also where a loss is accepted.
        yield from _TableReader(
            connect, part, replace(settings, fail_on_data_loss=True), label, rolled_up
        ).read()
    except DataLossError:
        raise DataLossError(
            f"stream {part.stream}, created at {part.created}, was deleted or created again after "
            "this read was planned; read it again"
        ) from None


class _TableReader:
    def __init__(
        self, connect: Connect, part: TablePart, settings: PullSettings, label: str, rolled_up: bool
    ) -> None:
        self.connect = connect
        self.requests = Requests(connect, settings.retry_timeout)
        self.part = SequenceRange(part.stream, 1, END, None, part.created, part.subjects)
        self.direct = part.direct
        self.settings = settings
        self.label = label
        self.rolled_up = rolled_up

    def read(self) -> Iterator[MessageRun]:
        begun = time.monotonic()
        came = Came()
        state = self._look()
        whole = replace(
            self.part, first=state.first_kept, end=max(state.last_seq + 1, state.first_kept)
        )
        last = whole.first - 1
        for messages in self._present(whole, state, came):
            last = max(last, int(messages.sequences[-1]))
            yield messages
        # uint64 (n,), ascending: the hashes of all subjects of the first part.
        present = came.sort()
        # Equal hashes are neighbours. The leader keeps one message of each subject. A replica that
        # lags has delivered an older one, and later the newer one as well.
        if not self.rolled_up and state.num_replicas > 1 and (present[1:] == present[:-1]).any():
            raise self._lagging()
        later = HashSet()
        # A reader that takes longer for the second part than for the first one is slower than the
        # writers.
        patience = Deadline(time.monotonic() - begun + self.settings.retry_timeout)
        first = whole.end if self.direct else last + 1
        for messages in self._stored_since(first):
            if patience.expired:
                raise OutageError(
                    f"stream {self.part.stream} was written to faster than it could be read: what "
                    "was stored during the read of its latest messages took more than "
                    f"{patience.seconds:.3g} s"
                )
            if self.rolled_up:
                yield messages
                continue
            rows = self._new_rows(messages, present, later, whole.end)
            if len(rows):
                yield MergedReplies((messages,), rows, messages.sequences[rows])

    def _new_rows(
        self, messages: MessageRun, present: Hashes, later: HashSet, end: int
    ) -> npt.NDArray[np.int64]:
        """Return the rows whose subjects have not come, neither in the first part nor later.

        `end` is where the first part ended. `later` receives the subjects.
        """
        # uint64 (n,), one hash for each message; `rows` are int64 positions among them.
        hashes = subject_hashes(messages.raw_subjects())
        rows = later.take_new(hashes)
        # bool (n,): whether the first part had the subject.
        known = _contains(present, hashes)
        if (known & (messages.sequences < end)).any():
            # An account that may not ask the leader for the messages that the first part lacks.
            raise self._lagging()
        return rows[~known[rows]]

    def _present(
        self, whole: SequenceRange, state: StreamSummary, came: Came
    ) -> Iterator[MessageRun]:
        """Return the messages that the stream held at the beginning, each subject once at most.

        See `read_list`.
        """
        if self.direct:
            if not self.rolled_up and state.max_msgs_per_subject != 1:
                raise JetStreamError(
                    f"stream {state.name} keeps more than one message of a subject, so that direct "
                    "gets cannot tell which is the last: read it with consumers"
                )
            whole = replace(whole, sifted=sifts(state, whole))
            return came.noting(read_direct(self.connect, whole, self.settings, self.label))
        if state.max_msgs_per_subject == 1:
            reader = RangeReader(
                self.connect, whole, self.settings, self.label, confirm=_ends_with(state)
            )
            return came.noting(reader.read())
        # The server makes no consumer with `last_per_subject` that has no filter.
        whole = replace(whole, subjects=whole.subjects or (">",))
        return read_list(self.connect, whole, self.settings, self.label, came)

    def _stored_since(self, first: int) -> Iterator[MessageRun]:
        """Yield all messages from a sequence on, until there are no more."""
        if not self.direct:
            yield from read_to_end(
                self.connect, replace(self.part, first=first), self.settings, self.label
            )
            return
        # Range by range, until a range lacks no message, or the leader knows of none after it.
        stream, filters = self.part.stream, self.part.subjects
        settings = replace(self.settings, batch=max(self.settings.batch, LEAST_BATCH))
        while True:
            state = self._look()
            end = state.last_seq + 1
            if end <= first:
                return
            count = 0
            part = replace(self.part, first=first, end=end)
            part = replace(part, sifted=sifts(state, part))
            for messages in read_direct(self.connect, part, settings, self.label):
                count += len(messages)
                yield messages
            # Each sequence had a message, so none can be missing.
            if count == end - first:
                return
            following = partial(next_sequence, stream=stream, subjects=filters, sequence=end)
            if self.requests.call(following) is None:
                return
            first = end

    def _lagging(self) -> OutageError:
        return OutageError(
            f"stream {self.part.stream} was read from a replica that lags: it still had messages "
            "that newer ones have replaced; read it again"
        )

    def _look(self) -> StreamSummary:
        """Return the stream's state.

        Raises `DataLossError` if the stream was deleted or created again.
        """
        return self.requests.call(partial(look, part=self.part, first=1, settled=True))
