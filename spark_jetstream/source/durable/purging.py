"""Commits that purge: on work queues.

A commit purges the messages of the query's filters below the position. The server moves the
consumer on to the first message that still matches, and CONSUMER.RESET moves it back to the
position. Otherwise a later run would conclude that another client had purged the messages in
between. A note in the consumer's metadata (`Purge`) informs a run that begins between the two
requests. The steps are (1) write the note, (2) purge, and in a cluster wait until that has moved
the consumer, (3) move the consumer back, (4) delete the note. If the server cannot move the
consumer (before 2.14), step 4 notes where it is.

Each step may be repeated. A new run (`open`) finds the note of a purge, and the consumer

| consumer | after | the new run |
|---|---|---|
| at the position, or before it | (1) or (3) | continues; the purge may still arrive |
| where the purge moves it | (2), or (4) before 2.14 | continues as if it were at the position |
| perhaps there: the stream ended before it | (2) | the same, with a warning |
| further on | a purge by another client | does not hold what lies between |

The first commit of the new run finishes the earlier one.
"""

from __future__ import annotations

import logging

from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.errors import OptionError, PermissionDenied
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol.features import FILTERED_PURGE
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.protocol.units import INT64_MAX
from spark_jetstream.source.durable.consumer_state import ConsumerState, Purge, listed
from spark_jetstream.source.durable.consumers import DurableConsumers
from spark_jetstream.source.durable.moves import Way
from spark_jetstream.source.durable.stream_progress import StreamProgress
from spark_jetstream.source.probes import probe_of

log = logging.getLogger(__name__)

# Seconds in which the leader of a consumer hears of a purge, unless the leader changes.
_MOVES_WITHIN = 5.0
_ANYWHERE = INT64_MAX  # where a purge may have moved a consumer, until a reply says where it is


class PurgingProgress(StreamProgress):
    """A `StreamProgress` whose commits purge what they commit."""

    def __init__(
        self, consumers: DurableConsumers, options: SourceOptions, state: StreamSummary
    ) -> None:
        super().__init__(consumers, options, state)
        #: Up to where the work queue is known to have nothing for this query any more; each purge
        #: raises it.
        self._purged_below = 0
        #: Where the last purge has left the consumer: the server may not move it back to the
        #: position. `_ANYWHERE` until that is known.
        self._left_at = 0
        #: The token of the run that had the consumer before. Its last note may be late, and has it.
        self._earlier_run: str | None = None
        #: The last purge of that run, which may be late; until this run commits.
        self._earlier_purge: Purge | None = None

    def open(self, state: StreamSummary, *, fresh: bool) -> None:
        """See `StreamProgress.open`."""
        consumer = self._consumers.info(self._stream, self._name)
        if consumer is None:
            consumer = self._create_first(state, fresh=fresh)
        else:
            self._earlier_run = consumer.run
            consumer = self._take_over(state, consumer, fresh=fresh)
        self._refuse_several_filters(consumer)
        self._remember(consumer)
        self._earlier_purge = consumer.purge
        if consumer.purge is not None:
            self._next = min(consumer.next, consumer.purge.below)
            self._see_moved(state, consumer)

    def commit(self, state: StreamSummary, next_sequence: int) -> None:
        """See `StreamProgress.commit`."""
        consumer = self._look(state)
        if consumer is None or next_sequence == self._purged_below:
            return
        # The caller's state may be from before an outage, in which the stream lost its tail.
        state = self._consumers.stream(self._stream)
        if self._can_commit(state, next_sequence):
            self._purge(state, consumer, next_sequence)

    def _create_first(self, state: StreamSummary, *, fresh: bool) -> ConsumerState:
        if not fresh:
            self.report_not_held(state, self._missing_text())
        consumer = self._consumers.create(self._stream, self._name, self._since)
        self._held_from = self._unheld_before(state, fresh=fresh)
        if self._loses_messages(consumer):
            self._delete_useless()
        return consumer

    def _delete_useless(self) -> None:
        """Delete the consumer that was created before it showed that it cannot be used."""
        try:
            self._consumers.delete(self._stream, self._name)
        except PermissionDenied as error:
            # That the stream cannot be read counts more, and is raised.
            log.warning(
                "stream %s: consumer %s (option durable) is left behind: %s",
                self._stream,
                self._name,
                error,
            )

    def _loses_messages(self, consumer: ConsumerState) -> bool:
        """Whether the purge of one filter takes messages of the others (`FILTERED_PURGE`)."""
        return len(self._consumers.filters) > 1 and not FILTERED_PURGE.is_at(consumer.level)

    def _refuse_several_filters(self, consumer: ConsumerState) -> None:
        if self._loses_messages(consumer):
            raise OptionError(
                f"stream {self._stream} is a work queue on a server before 2.15 (option subjects: "
                f"{listed(self._consumers.filters)}): when committed messages of one filter are "
                "removed, it may lose unread messages of the others; read with one filter, with "
                "one query for each, or upgrade the server",
                option="subjects",
            )

    # Looking

    def _take_back(self, consumer: ConsumerState) -> ConsumerState:
        """Take the consumer over again after a late note of the run before.

        A note has the token of the run that writes it. The run before had checked the consumer
        before this run began. If it still lives, its next check finds the token of this run.

        Raises `JetStreamError` if another run has the consumer.
        """
        if self._earlier_run is None or consumer.run != self._earlier_run:
            return super()._take_back(consumer)
        log.info("stream %s: consumer %s has a late note of another run", self._stream, self._name)
        consumer = self._consumers.take_over(self._stream, self._name, consumer, self._since)
        self._earlier_purge = consumer.purge
        return consumer

    def _see_moved(self, state: StreamSummary, consumer: ConsumerState) -> None:
        """Take up where the consumer is, if this run has not moved it there."""
        if consumer.next <= max(self._next, self._left_at):
            return
        purge = self._earlier_purge
        if purge is None or not purge.may_move_to(consumer.next):
            # Another client has purged the messages before; `holds` says so.
            self._next = consumer.next
            return
        self._left_at = consumer.next
        if purge.is_doubtful(consumer.next):
            log.warning(
                "stream %s: an earlier run of the query ended while it removed what it had "
                "committed, below sequence %d (option durable). Whether another client has purged "
                "messages below sequence %d since then cannot be known, and reading goes on",
                self._stream,
                purge.below,
                consumer.next,
            )

    def _restored(self, state: StreamSummary, now: StreamSummary) -> ConsumerState:
        consumer = super()._restored(state, now)
        self._earlier_purge = None
        return consumer

    # Purging

    def _purge(self, state: StreamSummary, consumer: ConsumerState, end: int) -> None:
        """Remove the messages of the query below the sequence `end`, unless that is done."""
        self._refuse_several_filters(consumer)
        # A purge had no answer.
        unanswered = self._left_at == _ANYWHERE
        # An earlier run ended before it had moved the consumer back.
        unfinished = consumer.purge is not None and self._next <= end
        # That purge has moved the consumer, so it was carried out. With several filters there is one
        # purge for each, and the others may be missing.
        is_carried_out = unanswered and consumer.next >= end and len(self._consumers.filters) < 2
        # Other consumers may still hold older messages, so `first_kept` need not move.
        has_rest = end > max(state.first_kept, self._purged_below)
        if has_rest and not is_carried_out:
            self._purge_and_move_back(state, consumer, end)
        elif unanswered or unfinished:
            self._left_at = self._move_back(consumer, end)
        self._purged_below = max(self._purged_below, end)
        self._earlier_purge = None

    def _purge_and_move_back(self, state: StreamSummary, consumer: ConsumerState, end: int) -> None:
        # Where all messages match, and none is replaced, the purge leaves the consumer at `end`.
        passes_over = bool(self._consumers.filters) or state.replaces
        if passes_over:
            consumer = self._note_purge(state, consumer, end)
        # Until the reply comes: a purge without an answer may have moved the consumer anywhere.
        self._left_at = _ANYWHERE
        self._consumers.purge(state, end)
        if passes_over or consumer.purge is not None:
            if state.clustered:
                self._wait_until_moved(end)
            self._left_at = self._move_back(consumer, end)
        else:
            self._left_at = end
        self._next = end

    def _wait_until_moved(self, end: int) -> None:
        """Wait until the consumer's leader has carried out a purge below `end` as well.

        The stream's leader has replied to it. The consumer's leader may be another server, which
        moves the consumer when it carries the purge out itself (nats-server: server/consumer.go,
        purge). If the consumer was moved back before that, the purge would move it on again, and
        the next check would take this for a purge by another client.
        """
        deadline = Deadline(_MOVES_WITHIN)
        backoff = Backoff()
        while not deadline.expired:
            consumer = self._consumers.info(self._stream, self._name)
            if consumer is None or consumer.next >= end:
                return
            backoff.pause(deadline)
        # A server that was elected the consumer's leader after the purge does not move it any more.
        log.info("stream %s: the purge has not moved consumer %s", self._stream, self._name)

    def _note_purge(self, state: StreamSummary, consumer: ConsumerState, end: int) -> ConsumerState:
        """Note where the purge below `end` moves the consumer, if not just there."""
        stream_end = state.last_seq + 1
        following = None
        if end < stream_end:
            # The leader answers: what it does not find up to the end of the stream is not there.
            probe = probe_of(
                self._consumers.requests, self._stream, self._consumers.filters, direct=True
            )
            following = probe.peek(end)
        purge = Purge(end, stream_end, certain=False)
        if following is not None and following[0] < stream_end:
            purge = Purge(end, following[0], certain=True)
        if purge.certain and purge.next == end:
            return consumer
        return self._consumers.note(self._stream, self._name, consumer, purge)

    def _move_back(self, consumer: ConsumerState, to: int) -> int:
        """Move the consumer back to where its messages were purged; return where it is then.

        If that is further on, because the server cannot move it, the note of the purge says so.
        Otherwise the note goes.
        """
        moved = self._reset_or_look(consumer, to)
        if moved is None:
            return to
        remaining = None
        if moved.next > to:
            remaining = Purge(to, moved.next, certain=True)
        if remaining != moved.purge:
            self._consumers.note(self._stream, self._name, moved, remaining)
        return moved.next

    def _reset_or_look(self, consumer: ConsumerState, to: int) -> ConsumerState | None:
        if self._consumers.way(consumer, to) is Way.RESET:
            try:
                return self._consumers.reset(self._stream, self._name, to)
            except PermissionDenied as error:
                log.info("stream %s: %s", self._stream, error)
        return self._consumers.info(self._stream, self._name)
