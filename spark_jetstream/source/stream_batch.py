"""One stream in a micro-batch: what waits in it when the batch is decided, and what is left when tasks are planned."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.source.admission import bytes_to_messages, limit_end
from spark_jetstream.source.continuity import Evidence
from spark_jetstream.source.offsets import Cuts, StreamPosition
from spark_jetstream.source.ranges import Split, ceiling
from spark_jetstream.source.stream_plan import StreamPlan


@dataclass(frozen=True)
class StreamBatch:
    """The messages of one stream that wait for the micro-batch to be decided.

    `read_up_to` is the position of the query, None for a stream that it did not know. The messages
    lie from `start`, where the stream continues, to `end`. `backlog` is their number.
    """

    plan: StreamPlan
    read_up_to: StreamPosition | None
    start: StreamPosition
    end: StreamPosition
    backlog: int

    @classmethod
    def of_deleted(cls, plan: StreamPlan, position: StreamPosition) -> StreamBatch:
        """Return the batch of a stream that was deleted.

        It keeps its position, which shows that the stream that is created later is another one.
        """
        return cls(plan, position, position, position, 0)

    @property
    def continues(self) -> bool:
        """Whether it begins where the query is: no message that is still there lies in between."""
        before = self.read_up_to
        if before is None or before.created != self.start.created:
            return False
        return before.next <= self.start.next

    @property
    def end_unread(self) -> StreamPosition:
        """Where a micro-batch ends that leaves the messages for a later one.

        A position may move on also where nothing waits, as that of a quiet filter does.
        """
        return self.start if self.backlog else self.end

    def end_within(self, most: int) -> StreamPosition:
        """Return where a micro-batch ends that reads `most` of the messages."""
        if self.backlog <= most:
            return self.end
        if most == 0:
            return self.start
        cut, read_at = limit_end(
            self.start.next, self.end.next, most, self.plan.probe, self.backlog
        )
        if cut == self.end.next:
            return self.end
        return StreamPosition(cut, self.end.created, read_at)


class BatchBytes:
    """The bytes of the messages that wait in one stream, by the mean size of all its messages."""

    def __init__(self, batch: StreamBatch, *, objects: bool) -> None:
        state = batch.plan.state
        if objects:
            # An object has many messages, and only one of them is counted.
            state = replace(state, messages=batch.plan.probe.pending(state.first_kept))
        self._state = state
        self.waiting = batch.backlog
        if state.messages:
            self.waiting = ceiling(batch.backlog * state.bytes, state.messages)

    def messages(self, limit: int) -> int:
        """Return the number of messages in a number of bytes."""
        if not limit:
            return 0
        return bytes_to_messages(limit, self._state)


class PlannedRange:
    """The range of one stream in a micro-batch whose end is decided, while its tasks are planned.

    `whole` is the range by the offsets, and `rest` the part of it that the stream still has. `plan`
    is None if the stream was deleted. `start` is where the batch begins in the stream, and `cuts`
    are those of the offset, if it has any.
    """

    def __init__(
        self,
        whole: SequenceRange,
        plan: StreamPlan | None,
        start: StreamPosition,
        cuts: Cuts | None,
    ) -> None:
        self.whole = whole
        self.rest = whole
        self.start = start
        self.cuts = cuts
        self._plan = plan

    @property
    def plan(self) -> StreamPlan:
        """The plan of a stream that was not deleted."""
        assert self._plan is not None
        return self._plan

    @property
    def of_same_stream(self) -> bool:
        """Whether the batch begins in the same stream, which was not created again meanwhile."""
        return self.start.created == self.whole.created

    def trim(self, read: Evidence | None) -> None:
        """Set `rest`. `read` is the evidence of `StreamPlan.continued`. Raises `DataLossError`."""
        first = min(self._first_left(read), self.whole.end)
        self.rest = self.within_stream(replace(self.whole, first=first))

    def _first_left(self, read: Evidence | None) -> int:
        if self._plan is None:
            return self.whole.end
        if not self.of_same_stream:
            return self.whole.first
        if self.start.next > self.whole.end:
            # A new query that crashed in this batch would begin behind it now. It goes on at the
            # end of the batch, so that nothing from there on may be committed.
            return self.whole.end
        position = self._plan.continued(self.start, read)
        lost_tail = position.created != self.whole.created or position.next < self.start.next
        if lost_tail:
            # These sequences have no messages, or others, which a later batch reads.
            return self.whole.end
        return max(self.whole.first, position.next)

    def within_stream(self, task: SequenceRange) -> SequenceRange:
        """Return a task, empty if it lies past the end of a stream that lost its tail.

        Consumers that begin there are a danger (`interest_streams.PAST_THE_END`).
        """
        if self._plan is None or task.first <= self._plan.state.last_seq + 1:
            return task
        return replace(task, first=task.end, count=None)

    def counted_part(self, *, has_cuts: bool) -> SequenceRange | None:
        """Return the part of `rest` that is counted and cut into tasks, None if there is none.

        `has_cuts`: the batch has cuts, of this stream or of others.
        """
        if not self.rest.width:
            return None
        last = self.plan.state.last_seq
        if has_cuts and self.cuts is None:
            # The batch reads nothing of this stream: its messages had gone before.
            return None
        if not has_cuts and self.rest.first > last:
            # Past the end there is no task, and nothing to cut.
            return None
        return replace(self.rest, end=min(self.rest.end, last + 1))


@dataclass(frozen=True)
class CountedRange:
    """The range of one stream in the micro-batch that a run has decided, as the run has counted it.

    `read_up_to` is the position of the query. `counted` begins where the stream continued: between
    the two lies the gap, if there was one, which the run has reported. `split` has the cuts and the
    counts.
    """

    read_up_to: StreamPosition | None
    counted: SequenceRange
    split: Split

    def is_of(self, planned: PlannedRange) -> bool:
        """Whether a range that is planned is this one, and has lost nothing since it was counted."""
        if (planned.start, planned.cuts) != (self.read_up_to, self.split.cuts):
            return False
        # The range may begin in the gap, which may be no loss as the stream is now. No message was
        # in the gap when the rest was counted.
        return planned.rest.first <= self.counted.first and planned.rest.end == self.counted.end
