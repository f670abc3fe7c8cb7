"""The plan of one stream of a query: its known state, and the questions about it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from spark_jetstream.client.requests import Requests, settled_info, stream_info
from spark_jetstream.errors import DataLossError, StreamNotFound
from spark_jetstream.protocol.features import PURGE_OF_LONG_STREAMS
from spark_jetstream.protocol.fitness import needs_direct
from spark_jetstream.protocol.stream import ReadWith, SequenceRange, StreamSummary
from spark_jetstream.source.consumer_start import ConsumerStart
from spark_jetstream.source.continuity import (
    Evidence,
    check_continuity,
    contradicts,
    idle_position,
    latest_position,
)
from spark_jetstream.source.durable.lazy_commit import LazyCommit
from spark_jetstream.source.gets import Gets
from spark_jetstream.source.interest_streams import LONG, is_long
from spark_jetstream.source.kinds.kind import ReadKind
from spark_jetstream.source.last_read import LastRead, look_up_last_read
from spark_jetstream.source.matches import LastMatch, UnmatchedRanges
from spark_jetstream.source.offsets import StreamPosition
from spark_jetstream.source.positions import (
    check_retention,
    check_start,
    read_use,
    starting_position,
    warn_of_filters,
    warn_of_interest,
    warn_of_own_traffic,
)
from spark_jetstream.source.probes import probe_of
from spark_jetstream.source.ranges import Split, ceiling, cut_at
from spark_jetstream.source.splits import Survey, split
from spark_jetstream.streams.direct import sifts

log = logging.getLogger(__name__)


class StreamPlan:
    """One stream of a query. For one thread at a time.

    The plans of different streams share only what is thread-safe. Except for `see` and
    `note_deleted` the methods need a state that `see` has taken. They raise what `Requests.call`
    raises. `longest` is that of `interest_streams.is_long`.
    """

    def __init__(
        self,
        name: str,
        kind: ReadKind,
        requests: Requests,
        progress: LazyCommit,
        *,
        longest: int = LONG,
    ) -> None:
        options = kind.options
        self.name = name
        self._longest = longest
        self.context = f"read stream {name} (option {options.chosen_by})"
        #: The state as last seen; None before that, and after the stream was deleted.
        self.known: StreamSummary | None = None
        self.probe = probe_of(
            requests, name, options.subjects, direct=options.read_with == "direct"
        )
        self._kind = kind
        self._options = options
        self._requests = requests
        self._progress = progress
        self._gets = Gets(requests, options)
        self._consumer_start = ConsumerStart.of(name, kind, requests)
        # Whether it is logged that the stream was deleted.
        self._deletion_is_logged = False
        # Whether it is logged what its retention removes.
        self._retention_is_logged = False
        # Of the filter ">" a server looks at the last sequence alone, and finds nothing if that
        # message was deleted.
        self._all_match = not options.subjects or ">" in options.subjects
        self._last_read = LastRead()
        self._last_match = LastMatch()
        self._unmatched = UnmatchedRanges()
        # Where a stream that lost its tail goes back to from the last position: what is stored
        # since was not read.
        self._back: int | None = None

    # The state

    @property
    def state(self) -> StreamSummary:
        """The state as last seen."""
        assert self.known is not None
        return self.known

    def see(self, reply: StreamSummary | StreamNotFound, position: StreamPosition | None) -> None:
        """Take the server's reply to STREAM.INFO, if the query can read the stream; choose how.

        `position` is that of the query: a state that contradicts it, and one without any, must come
        from a leader that a majority follows. Raises `StreamNotFound`, and `OptionError`.
        """
        state = self._settled(reply, position)
        self.probe.check(state)
        endangered = is_long(state, self._longest) and self._requests.can(PURGE_OF_LONG_STREAMS)
        self._kind.check(state)
        use = read_use(self._options, endangered=endangered)
        check_retention(state, self._options, use)
        if needs_direct(state, use) and not self.probe.direct:
            if endangered:
                log.warning(
                    "stream %s is read with Direct Get: it has interest retention and many "
                    "messages",
                    self.name,
                )
            self.probe = probe_of(self._requests, self.name, self._options.subjects, direct=True)
        if state.retention == "interest" and not self._retention_is_logged:
            self._retention_is_logged = True
            warn_of_interest(state, held=self._options.durable is not None)
        if self.known is None:
            warn_of_filters(state, self._options)
            warn_of_own_traffic(state, self._options)
        self._deletion_is_logged = False
        self.known = state

    def _settled(
        self, reply: StreamSummary | StreamNotFound, position: StreamPosition | None
    ) -> StreamSummary:
        """Return a state that no former leader gave."""
        if isinstance(reply, StreamNotFound):
            if position is None or self._deletion_is_logged:
                raise reply
        else:
            doubtful = not reply.followed
            if position is not None:
                doubtful = contradicts(position, reply)
            if not (doubtful and reply.clustered):
                return reply
        return self._requests.call(partial(settled_info, name=self.name, context=self.context))

    def note_deleted(self) -> None:
        """Forget the state of a stream that does not exist any more, and log that once."""
        self.known = None
        if not self._deletion_is_logged:
            self._deletion_is_logged = True
            log.warning(
                "stream %s was deleted; failOnDataLoss is false, so the query goes on without it, "
                "and reads it from its first message on when it is created again",
                self.name,
            )

    def has_unread(self, position: StreamPosition) -> bool:
        """Whether the stream had an unread message from a position on, when it was seen last."""
        state = self.known
        if state is None or state.created != position.created:
            return False
        end = state.last_seq + 1 if self._all_match else self._last_match.position.next
        return max(position.next, state.first_kept) < end

    # Where it continues

    def begin(self) -> StreamPosition:
        """Return where a stream without a position begins."""
        if self._options.durable is not None:
            check_start(self.state, self._options)
            # The durable consumer must exist before that is decided.
            if self._progress.open(self.state, fresh=True):
                self.see(self._requests.stream(self.name, self.context), None)
        # Nothing is committed yet: Spark asks again where to begin if its first batch fails.
        return self.start()

    def start(self) -> StreamPosition:
        """Return where a read without checkpoint starts, by its options. Raise `OptionError`."""
        after = self._consumer_start
        if after is None:
            return starting_position(self._kind, self.probe, self.state)
        return after.start(self.state, self._look_again)

    def _look_again(self) -> StreamSummary:
        """Return the state as the leader of the stream has it now."""
        look = settled_info if self.state.clustered else stream_info
        again = partial(look, name=self.name, context=self.context)
        self.see(self._requests.call(again), None)
        return self.state

    def continued(self, position: StreamPosition | None, read: Evidence | None) -> StreamPosition:
        """Return the position if the stream still continues there, and where to continue if not.

        `read` is the result of `look_up`, None if that is not due. Raises `DataLossError`.
        """
        if position is None:
            return self.begin()
        state = self.state
        same_stream = position.created == state.created
        self._progress.hold(state, position.next if same_stream else 0)
        following = self._checked(position, read)
        self._back = following.next if following.next < position.next else None
        # When a batch begins, everything before it is in the sink. Spark calls `commit` later, when
        # the next batch has rows, and never for the last batch of a run.
        if following == position:
            self._progress.commit(state, position.next)
        return following

    def commit(self, position: StreamPosition) -> None:
        """Move the durable consumer to a position up to which everything is in the sink.

        If `continued` went back from there, the consumer goes no further than that. Spark commits
        the end of the last batch after it has asked for the end of the next one.
        """
        if self.known is None or position.created != self.known.created:
            return
        next_sequence = position.next
        if self._back is not None:
            next_sequence = min(next_sequence, self._back)
        self._progress.commit(self.known, next_sequence)

    def _checked(self, position: StreamPosition, read: Evidence | None) -> StreamPosition:
        """Return where to continue; raise, or log, what the stream has lost."""
        state = self.state
        evidence = replace(
            read or Evidence(),
            matched_up_to=self._unmatched.up_to(position, state),
            held=self._progress.holds(state, position.next),
        )
        following, missing = check_continuity(
            position,
            state,
            evidence,
            filtered=bool(self._options.subjects),
            bucket=self._kind.replaces,
        )
        if following == position and read is not None:
            self._last_read.remember(position, state)
        if missing is None:
            return following
        if following == position:
            log.warning("%s", missing)
            # So it is logged once.
            self._unmatched.replace(state.created, position.next, state.first_seq)
            return following
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{missing}; set failOnDataLoss=false to go on at sequence {following.next}"
            )
        log.warning(
            "%s; failOnDataLoss is false, so reading goes on at sequence %d",
            missing,
            following.next,
        )
        return following

    def is_due(self, position: StreamPosition | None, *, planned: bool) -> bool:
        """Whether the stream may have lost the last message read since that was looked up.

        With `planned` once is enough for each position: its batch was planned after that.
        """
        if position is None:
            return False
        return self._last_read.is_due(position, self.state, planned=planned)

    def will_be_due(self, position: StreamPosition) -> bool:
        """Whether `is_due` will be true of a position in the next state, as far as is known."""
        return self.known is not None and self._last_read.will_be_due(position, self.known)

    def look_up(self, position: StreamPosition, known: Mapping[str, int | None]) -> Evidence:
        """Return what `look_up_last_read` does, of this stream."""
        return look_up_last_read(self.probe, self.state, position, known)

    # What waits

    def last_matching(self) -> StreamPosition:
        """Return the position after the last message that matches; sequence 1 if none does.

        Messages that do not match make no batch.
        """
        if self._all_match:
            return latest_position(self.state)
        return self._last_match.find(self.state, self.probe)

    def end(self, position: StreamPosition, *, later: bool = True) -> StreamPosition:
        """Return how far the stream could be read now; never before `position`.

        Without `later` messages that match are left for a later run: only the position of a quiet
        filter may move.
        """
        state = self.state
        if state.last_seq < position.next:
            return position
        end = self.last_matching()
        self._unmatched.add(position, end.next, state)
        if end.next > position.next:
            # The next batch looks again: a replica may not have known the last one yet.
            self._last_match.forget()
            return end if later else position
        # Also of a stream with nothing new, whose first messages go by their age.
        held = self._progress.holds(state, position.next)
        return idle_position(position, state, held=held) or position

    def backlog(self, position: StreamPosition, end: StreamPosition) -> int:
        """Return how many messages wait, only as exactly as the limits need it."""
        state = self.state
        if end.next <= position.next or self._all_are_read(position, end):
            return 0
        first = max(position.next, state.first_kept)
        may_be_fewer = bool(self._options.subjects) or state.num_deleted != 0
        if not (self._has_limit and may_be_fewer):
            return max(0, end.next - first)
        # Messages published between the answers raise the later ones; the mean takes half of them
        # for the second.
        before = self.probe.pending(end.next)
        waiting = self.probe.pending(first)
        after = self.probe.pending(end.next)
        backlog = max(0, waiting - (before + after) // 2)
        if backlog == 0 and self.probe.direct:
            # Replicas that lag may count no messages where the end shows that there are some. All up
            # to the end of a query with `Trigger.AvailableNow` may have gone.
            return max(0, end.next - first)
        return backlog

    def _all_are_read(self, position: StreamPosition, end: StreamPosition) -> bool:
        """Whether nothing matches from the position to the end of the stream, which is `end`."""
        if not self._options.subjects or end.next != self.state.last_seq + 1:
            return False
        return self._unmatched.up_to(position, self.state) == end.next

    @property
    def _has_limit(self) -> bool:
        """Whether an option limits a micro-batch, so that messages must be counted."""
        return bool(
            self._options.max_messages_per_trigger
            or self._options.max_bytes_per_trigger
            or self._options.min_messages_per_trigger
        )

    # Tasks

    def survey(self, whole: SequenceRange) -> Survey:
        """Count what is in a range."""
        if self.is_dense(whole):
            return Survey(whole)
        counted = replace(whole, removals=self.state.removals)
        if not self.probe.direct:
            return Survey(counted, self.probe)
        if not sifts(self.state, whole):
            survey = Survey(counted, self.probe)
            if not sifts(self.state, whole, survey.count):
                return survey
        # A task takes as long as there are messages, whether they match or not.
        probe = probe_of(self._requests, self.name, (), direct=True)
        dense = self.is_dense(replace(whole, subjects=()))
        return Survey(replace(counted, sifted=True), None if dense else probe)

    def split(self, survey: Survey, tasks: int, most: int) -> Split:
        """Cut the range of a survey into at least `tasks` tasks, of at most `most` messages each."""
        cut = split(survey, max_messages=most, tasks=tasks)
        number = sum(cut.cuts[1::2])
        largest = ceiling(survey.count, number)
        if largest > self._options.max_messages_per_partition:
            log.warning(
                "a batch of stream %s is so large that each of its %d tasks reads up to "
                "%d messages, more than option maxMessagesPerPartition says",
                self.name,
                number,
                largest,
            )
        return cut

    def is_dense(self, whole: SequenceRange) -> bool:
        """Whether all messages of a range are read, and none of its sequences is missing."""
        state = self.state
        kept = state.first_kept <= whole.first and whole.end <= state.last_seq + 1
        return kept and not whole.subjects and state.num_deleted == 0

    def tasks(self, whole: SequenceRange, split: Split) -> list[SequenceRange]:
        """Return the pieces of a range, with the reader of each."""
        dense = self.is_dense(whole)
        # A task must not report messages as lost that newer ones replace, or that only the replica
        # which counted them still had.
        replaced = self.state.replaces or self._kind.replaces
        uncounted = replaced or (self.probe.direct and not dense)
        pieces = cut_at(whole, split)
        read_with = self._reader_of(pieces, can_choose=dense and not replaced)
        tasks: list[SequenceRange] = []
        for piece in pieces:
            count = None if uncounted else piece.count
            tasks.append(replace(piece, read_with=read_with, count=count))
        return tasks

    def _reader_of(self, pieces: Sequence[SequenceRange], *, can_choose: bool) -> ReadWith:
        """Return how tasks read. `can_choose`: each task knows how many messages it must find."""
        if self.probe.direct:
            return "direct"
        if self._options.read_with == "auto" and can_choose:
            largest = max(piece.count or 0 for piece in pieces)
            if self._gets.suit(self.state, largest):
                return "auto"
        return "consumer"
