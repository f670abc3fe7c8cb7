"""Readers for the latest message of each subject: of what was there, and of what was stored meanwhile.

Both are `pulling.RangeReader`s, with its rules for cuts, lost consumers, silence and outages. What they know of the
server (nats-server: server/consumer.go, `getNextMsg`, `loopAndGatherMsgs`, `processWaiting`; seen with 2.15.1):

- A consumer that delivers `last_per_subject` has a list of sequences, made when it is created, and then goes on with
  everything stored later. `num_pending` is exact at that moment and is not later, when messages that are not on the
  list go. A message that is on the list and went makes it wait until the next request, message or heartbeat.
- A request with `no_wait` ends with 404 where the consumer has nothing more to deliver: at the end of the stream once
  it works off no list. If it brought something before, nothing else ends it so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_jetstream import jsapi
from spark_jetstream.columns import Acks, Delivered
from spark_jetstream.connection import Connection, Inbox
from spark_jetstream.deadline import Backoff
from spark_jetstream.errors import ConsumerLost
from spark_jetstream.pulling import Pulls, PullSettings, RangeReader
from spark_jetstream.streams import SequenceRange
from spark_jetstream.wire import Frames, Status

_END = 2**63 - 1  # behind every sequence
_HEARTBEAT = 0.5
LEAST_BATCH = 5000  # who asks for few messages at a time never sees the end of a stream that others write to


class StretchReader(RangeReader):
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


class LatestReader(RangeReader):
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


class FollowingReader(StretchReader):
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
