"""What planning knows of one stream of a query, and what it asks about it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from spark_jetstream.client.requests import Requests, settled_info
from spark_jetstream.errors import DataLossError, StreamNotFound
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol.features import PURGE_OF_LONG_STREAMS
from spark_jetstream.protocol.stream import ReadWith, SequenceRange, StreamSummary
from spark_jetstream.protocol.units import INT64_MAX
from spark_jetstream.source.continuity import (
    Evidence,
    check_continuity,
    contradicts,
    idle_position,
    latest_position,
)
from spark_jetstream.source.durable.lazy_commit import LazyCommit
from spark_jetstream.source.gets import Gets
from spark_jetstream.source.interest_streams import is_long
from spark_jetstream.source.offsets import StreamPosition
from spark_jetstream.source.positions import (
    check_retention,
    check_start,
    needs_direct,
    starting_position,
    warn_of_filters,
    warn_of_interest,
    warn_of_own_traffic,
)
from spark_jetstream.source.probes import probe_of
from spark_jetstream.source.ranges import Split, Survey, cut_at, split
from spark_jetstream.streams.direct import sifts

log = logging.getLogger(__name__)

# Nanoseconds for which it counts that a replica, which may lag, has found nothing.
_DOUBTED = 5_000_000_000
# Nanoseconds. The server skips what no consumer of an interest stream wants, and takes the time of that, with which the
# stream then ends, from a clock of tenths of a second (seen with 2.15.1: server/filestore.go, `SkipMsg`). So what was
# stored before may have a later time: test_the_time_of_a_skipped_message.
_COARSE = 300_000_000


class StreamPlan:
    """One stream of a query. For one thread at a time; those of different streams share only what is thread-safe.

    Except for `see` and `note_deleted` the methods need a state that `see` has taken. They raise what `Requests.call`
    raises. Nine of the sixteen attributes are what it remembers (docs/architecture.md, "Processes").
    """

    def __init__(
        self, name: str, options: SourceOptions, requests: Requests, progress: LazyCommit
    ) -> None:
        self.name = name
        self.context = f"read stream {name} (option {options.chosen_by})"
        self.known: StreamSummary | None = None
        """The state as last seen; None before that, and after the stream was deleted."""
        self._options = options
        self._requests = requests
        self._progress = progress
        self._gets = Gets(requests, options)
        self.probe = probe_of(
            requests, name, options.subjects, direct=options.read_with == "direct"
        )
        self._deleted = False  # and logged
        self._warned = False  # of its retention
        # The position whose last message was looked up, and the state of the stream then.
        self._verified: tuple[StreamPosition, StreamSummary] | None = None
        # When the stream was created, and from which to below which sequence nothing matches: after the position, and
        # after the end that was found last.
        self._unmatched: list[tuple[str, int, int]] = []
        # Of the filter ">" a server looks at the last sequence alone, and finds nothing if that message was deleted.
        self._all_match = not options.subjects or ">" in options.subjects
        # Where the last message that matches was found last. Creation and end of the stream for which that counts, and
        # until when, by the server's clock.
        self._last_match = StreamPosition(1, "none")
        self._counts: tuple[tuple[str, int], int] = ("", 0), 0
        # Where a stream that lost its tail goes back to from the last position: what is stored since was not read.
        self._back: int | None = None

    # The state

    @property
    def state(self) -> StreamSummary:
        """The state as last seen."""
        assert self.known is not None
        return self.known

    def see(self, reply: StreamSummary | StreamNotFound, position: StreamPosition | None) -> None:
        """Take the server's reply to STREAM.INFO, check that the query can read the stream, and choose how.

        `position` is that of the query: a state that contradicts it, and one without any, must come from a leader that
        a majority follows. Raises `StreamNotFound`, and `OptionError`.
        """
        state = self._settled(reply, position)
        self.probe.check(state)
        endangered = is_long(state) and self._requests.can(PURGE_OF_LONG_STREAMS)
        check_retention(state, self._options, endangered=endangered)
        if needs_direct(state, self._options, endangered=endangered) and not self.probe.direct:
            if endangered:
                log.warning(
                    "stream %s is read with Direct Get: it has interest retention and many messages",
                    self.name,
                )
            self.probe = probe_of(self._requests, self.name, self._options.subjects, direct=True)
        if state.retention == "interest" and not self._warned:
            self._warned = True
            warn_of_interest(state, held=self._options.durable is not None)
        if self.known is None:
            warn_of_filters(state, self._options)
            warn_of_own_traffic(state, self._options)
        self._deleted = False
        self.known = state

    def _settled(
        self, reply: StreamSummary | StreamNotFound, position: StreamPosition | None
    ) -> StreamSummary:
        """Return a state that no former leader gave."""
        if isinstance(reply, StreamSummary):
            doubtful = contradicts(position, reply) if position is not None else not reply.followed
            if not (doubtful and reply.clustered):
                return reply
        elif position is None or self._deleted:
            raise reply
        return self._requests.call(partial(settled_info, name=self.name, context=self.context))

    def note_deleted(self) -> None:
        """Forget the state of a stream that does not exist any more, and log that once."""
        self.known = None
        if not self._deleted:
            self._deleted = True
            log.warning(
                "stream %s was deleted; failOnDataLoss is false, so the query goes on without it, and reads it from "
                "its first message on when it is created again",
                self.name,
            )

    def has_unread(self, position: StreamPosition) -> bool:
        """Whether the stream, when it was seen last, had a message from a position on that the query must read."""
        state = self.known
        if state is None or state.created != position.created:
            return False
        end = state.last_seq + 1 if self._all_match else self._last_match.next
        return max(position.next, state.first_kept) < end

    # Where it continues

    def begin(self) -> StreamPosition:
        """Return where a stream without a position begins. The durable consumer must exist before that is decided."""
        if self._options.durable is not None:
            check_start(self.state, self._options)
            if self._progress.open(self.state, fresh=True):
                self.see(self._requests.stream(self.name, self.context), None)
        # Nothing is committed yet: Spark asks again where to begin if its first batch fails.
        return starting_position(self._options, self.probe, self.state)

    def continued(self, position: StreamPosition | None, read: Evidence | None) -> StreamPosition:
        """Return the position if the stream still continues there, and where to continue otherwise.

        `read` is the result of `look_up`, None if that is not due. Raises `DataLossError`.
        """
        if position is None:
            return self.begin()
        state = self.state
        self._progress.hold(state, position.next if position.created == state.created else 0)
        following = self._checked(position, read)
        self._back = following.next if following.next < position.next else None
        # When a batch begins, everything before it is in the sink. Spark calls `commit` later, when the next batch has
        # rows, and never for the last batch of a run.
        if following == position:
            self._progress.commit(state, position.next)
        return following

    def commit(self, position: StreamPosition) -> None:
        """Move the durable consumer to a position up to which everything is in the sink.

        If `continued` went back from there, the consumer goes no further than that: Spark commits where the last batch
        ended after it has asked for the end of the next one.
        """
        if self.known is not None and position.created == self.known.created:
            safe = position.next if self._back is None else min(position.next, self._back)
            self._progress.commit(self.known, safe)

    def _checked(self, position: StreamPosition, read: Evidence | None) -> StreamPosition:
        state = self.state
        evidence = replace(
            read or Evidence(),
            matched_up_to=self._matched_up_to(position),
            held=self._progress.holds(state, position.next),
        )
        filtered, bucket = bool(self._options.subjects), self._options.of_bucket
        following, missing = check_continuity(
            position, state, evidence, filtered=filtered, bucket=bucket
        )
        if following == position and read is not None:
            self._verified = position, state
        if missing is not None and following == position:
            # Logged once.
            log.warning("%s", missing)
            self._unmatched = [(state.created, position.next, state.first_seq)]
        elif missing is not None and self._options.fail_on_data_loss:
            raise DataLossError(
                f"{missing}; set failOnDataLoss=false to go on at sequence {following.next}"
            )
        elif missing is not None:
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
        state = self.state
        if position is None or position.created != state.created or position.last_timestamp == 0:
            return False
        looked_up, then = self._verified or (None, state)
        if (state.last_seq, state.last_timestamp) == (position.next - 1, position.last_timestamp):
            # The state shows it, and there is nothing to read.
            self._verified = position, state
            return False
        if looked_up is None or state.last_seq < position.next - 1:
            return True
        same_end = (state.last_seq, state.last_timestamp) == (then.last_seq, then.last_timestamp)
        if looked_up == position and (planned or same_end):
            return False
        return not state.term or state.term != then.term

    def will_be_due(self, position: StreamPosition) -> bool:
        """Whether `is_due` will be true of a position of the next look, as after each batch without a term."""
        if self.known is None or self.known.term or position.last_timestamp == 0:
            return False
        return self._verified is None or self._verified[0] != position

    def look_up(self, position: StreamPosition, known: Mapping[str, int | None]) -> Evidence:
        """Return `Evidence.reread` and `Evidence.later` of a position.

        `known` has, by stream, the time of the last message read where it was looked up already, None if it is gone.
        """
        last_read, state = position.next - 1, self.state
        reread = known.get(self.name)
        if self.name not in known and state.first_seq <= last_read <= state.last_seq:
            reread = self.probe.stored_at(last_read)
        later = None
        if reread != position.last_timestamp:
            later = self.probe.first_of_all_after(position.last_timestamp + 1)
        if (
            later is not None
            and reread is None
            and last_read <= state.last_seq
            and state.retention == "interest"
        ):
            certain = self.probe.first_of_all_after(position.last_timestamp + _COARSE)
            later = later if certain is not None and certain[0] < position.next else None
        return Evidence(reread=reread, later=later)

    # What waits

    def last_matching(self) -> StreamPosition:
        """Return the position after the last message that matches (others make no batch); sequence 1 if none does.

        What was found in the same state is not asked for again.
        """
        state = self.state
        if self._all_match:
            return latest_position(state)
        if (
            self._counts[0] != (state.created, state.last_seq)
            or state.server_time >= self._counts[1]
        ):
            sequence, stored_at = self.probe.last() or (0, 0)
            until = INT64_MAX if self.probe.certain else state.server_time + _DOUBTED
            self._last_match = StreamPosition(sequence + 1, state.created, stored_at)
            self._counts = (state.created, state.last_seq), until
        return self._last_match

    def end(self, position: StreamPosition, *, later: bool = True) -> StreamPosition:
        """Return how far the stream could be read now; never before `position`.

        Without `later` messages that match are left for a later run: only the position of a quiet filter may move.
        """
        state = self.state
        if state.last_seq < position.next:
            return position
        end = self.last_matching()
        # A batch that ends there still begins at the position. What is known of messages that are
        # gone stays true, also where the whole batch is gone.
        lasting = max(end.next, state.first_kept + 1)
        covering = [known for known in self._unmatched if known[1] <= position.next]
        before = [known for known in covering if known[2] < lasting]
        self._unmatched = [
            *before[-1:],
            (state.created, end.next, max(end.next, state.last_seq + 1)),
        ]
        if end.next > position.next:
            self._counts = (
                ("", 0),
                0,
            )  # the next batch looks again: a replica may not have known the last one yet
            return end if later else position
        # Also of a stream with nothing new, whose first messages go by their age.
        return (
            idle_position(position, state, held=self._progress.holds(state, position.next))
            or position
        )

    def _matched_up_to(self, position: StreamPosition) -> int:
        """Return `Evidence.matched_up_to` of a position; 0 when the tail was lost since."""
        state = self.state
        ends = [
            end
            for created, first, end in self._unmatched
            if created == state.created and first <= position.next
        ]
        return max((end for end in ends if end <= state.last_seq + 1), default=0)

    def backlog(self, position: StreamPosition, end: StreamPosition) -> int:
        """Return how many messages wait, only as exactly as the limits need it."""
        options, state = self._options, self.state
        if end.next <= position.next:
            return 0
        first = max(position.next, state.first_kept)
        counted = (
            options.max_messages_per_trigger
            or options.max_bytes_per_trigger
            or options.min_messages_per_trigger
        )
        if options.subjects and end.next == self._matched_up_to(position) == state.last_seq + 1:
            return 0
        if not counted or not (options.subjects or state.num_deleted):
            return max(0, end.next - first)
        # Messages published between the answers raise the later ones; the mean takes half of them for the second.
        probe = self.probe
        before, waiting, after = (
            probe.pending(end.next),
            probe.pending(first),
            probe.pending(end.next),
        )
        counted = max(0, waiting - (before + after) // 2)
        # Replicas that lag may count no messages where the end shows that there are some.
        return counted or (end.next - first if probe.direct else 0)

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
        """Cut the range of a survey into at least so many tasks, of at most so many messages each."""
        cut = split(survey, max_messages=most, tasks=tasks)
        number = sum(cut.cuts[1::2])
        largest = -(-survey.count // number)
        if largest > self._options.max_messages_per_partition:
            log.warning(
                "a batch of stream %s has so many messages that each of its %d tasks reads up to %d of them, more than "
                "option maxMessagesPerPartition says",
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
        options, state, dense = self._options, self.state, self.is_dense(whole)
        pieces = cut_at(whole, split)
        direct = self.probe.direct
        read_with: ReadWith = "direct" if direct else "consumer"
        # A task must not report messages as lost that newer ones replace, or that only the replica which counted them
        # still had.
        replaced = state.replaces or options.of_bucket
        uncounted = replaced or (direct and not dense)
        largest = max(piece.count or 0 for piece in pieces)
        if (
            options.read_with == "auto"
            and not direct
            and dense
            and not replaced
            and self._gets.suit(state, largest)
        ):
            read_with = "auto"
        return [
            replace(piece, read_with=read_with, count=None if uncounted else piece.count)
            for piece in pieces
        ]
