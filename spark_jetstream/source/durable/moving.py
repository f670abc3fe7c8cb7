"""Commits that move the consumer: on streams with limits and interest retention.

A commit goes

- by CONSUMER.RESET;
- by creating the consumer again, where the server cannot do that (before 2.14, or before the
  sequence at which the consumer began). A stand-in holds its position meanwhile: (1) create the
  stand-in at the position, (2) delete the consumer, (3) create it at the position, (4) delete the
  stand-in. In an interest stream (2) and (4) wait until all servers have taken up (1) and (3)
  (`replicas.py`);
- in a long interest stream without CONSUMER.RESET (`interest_streams.LONG`), and in any interest
  stream of a cluster of 2.10: by a purge below what all other consumers need. A stand-in that is
  left stays;
- later, while only some of the consumer's servers have CONSUMER.RESET (`moves.py`).

Each step may be repeated. The server's consumers show after which step a crash was. "Loss" is one
on an interest stream.

| consumer | stand-in | after | a new run (`open`) | the same run (`check`, `commit`) |
|---|---|---|---|---|
| this run's | no | a commit | | continues |
| this run's | yes | (1) or (3) | | continues; a commit deletes the stand-in |
| another's, or nobody's | no | a run that ended | takes it over | raises |
| another's | yes | (1) or (3) | takes it over; a commit deletes the stand-in, later | raises |
| none | yes | (2) | creates it at the stand-in | the same; raises if that is another run's |
| none | no | its deletion | creates it; a loss unless `fresh` | creates it; a loss |
| with another configuration | | another client's use | raises | raises |
| with unknown deliveries | | another client's use | raises | raises |

"Later" is when the stand-in is a minute old. A run that was suspended before (2) deletes the
consumer when it wakes up, even that of a new run. Then its stand-in holds the position. Until then
the new run commits nothing.
"""

from __future__ import annotations

import logging

from spark_jetstream.errors import ApiError, JetStreamError, RequestTimeout
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.conventions import stand_in
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.protocol.units import SECOND
from spark_jetstream.source.durable.consumer_state import ConsumerState
from spark_jetstream.source.durable.consumers import DurableConsumers, taken
from spark_jetstream.source.durable.moves import Way
from spark_jetstream.source.durable.replicas import Replicas
from spark_jetstream.source.durable.stream_progress import StreamProgress
from spark_jetstream.source.interest_streams import LONG, is_long
from spark_jetstream.source.probes import probe_of

log = logging.getLogger(__name__)

SUSPENDED = 60.0
"""Seconds for which an earlier run may be suspended between two requests of a commit."""


class MovingProgress(StreamProgress):
    """A `StreamProgress` whose commits move the consumer.

    `longest` is that of `interest_streams.is_long`. `suspended` is how old the stand-in of another
    run must be, in seconds, before it is deleted.
    """

    def __init__(
        self,
        consumers: DurableConsumers,
        options: SourceOptions,
        state: StreamSummary,
        *,
        longest: int = LONG,
        suspended: float = SUSPENDED,
    ) -> None:
        super().__init__(consumers, options, state)
        self._longest = longest
        self._stand_in = stand_in(self._name)
        self._replicas = Replicas(consumers, self._stream)
        #: The run resumes from a checkpoint, and has committed nothing yet: the consumer may be
        #: ahead of the checkpoint.
        self._resumed = False
        #: A stand-in may exist that an earlier run, or attempt, did not delete; until a commit
        #: deletes it.
        self._stand_in_is_left = False
        self._suspended = int(suspended * SECOND)
        #: When another run created the stand-in that this run found beside the consumer, in ns by
        #: the server's clock; 0 without one.
        self._others_since = 0
        #: Where the last request moves the consumer. The server may have moved it although no reply
        #: came.
        self._moved_to = 0
        #: Everything below is in Spark's sink. The last request of an earlier run may move the
        #: consumer so far.
        self._done = 0

    def open(self, state: StreamSummary, *, fresh: bool) -> None:
        """See `StreamProgress.open`."""
        self._resumed = not fresh
        consumer = self._consumers.info(self._stream, self._name)
        standing_in = self._consumers.info(self._stream, self._stand_in)
        self._stand_in_is_left = standing_in is not None
        if consumer is not None:
            # Other streams keep a message that no consumer holds.
            if standing_in is not None and state.retention == "interest":
                self._others_since = standing_in.created
            consumer = self._take_over(state, consumer, fresh=fresh)
        elif standing_in is not None:
            # A run has ended between deleting the consumer and creating it again.
            consumer = self._create(standing_in.next)
            self._held_from = standing_in.next
        else:
            # The consumer held nothing while it did not exist;
            # a query without a checkpoint has missed nothing.
            if not fresh:
                self.report_not_held(state, self._missing_text())
            consumer = self._create()
            self._held_from = self._unheld_before(state, fresh=fresh)
        self._remember(consumer)
        if state.retention == "interest" and consumer.inactive_threshold:
            self._warn_of_inactivity(consumer)

    def check(self, state: StreamSummary, done: int) -> None:
        """See `StreamProgress.check`."""
        self._done = max(self._done, done)
        super().check(state, done)

    def commit(self, state: StreamSummary, next_sequence: int) -> None:
        """See `StreamProgress.commit`."""
        self._done = next_sequence
        consumer = self._look(state)
        if consumer is None:
            return
        # The position was reached before; a commit may be called again for it.
        if consumer.next == next_sequence and not self._stand_in_is_left:
            self._resumed = False
            return
        # A move, or another stand-in, might harm the older ones among its servers.
        way = self._consumers.way(consumer, next_sequence)
        if way is Way.LATER:
            return
        # The caller's state may be from before an outage, in which the stream lost its tail.
        state = self._consumers.stream(self._stream)
        if not (self._without_stand_in(state, consumer) and self._can_commit(state, next_sequence)):
            return
        self._move_to(state, consumer, next_sequence, way)
        self._resumed = False

    def _without_stand_in(self, state: StreamSummary, consumer: ConsumerState) -> bool:
        """Delete a stand-in that is left. Return whether a commit may go on.

        `consumer` is the state of the consumer that it stands in for.
        """
        if not self._stand_in_is_left:
            return True
        if self._others_may_delete(state):
            return False
        if self._is_in_danger(state, consumer):
            return True
        if consumer.followers:
            standing_in = self._consumers.info(self._stream, self._stand_in)
            # The request to create it has failed, or that to delete it has succeeded.
            if standing_in is None:
                self._stand_in_is_left = False
                return True
            # Otherwise each commit would create it again until the servers are back.
            if not self._all_servers_have(self._stand_in, state, standing_in):
                return False
        # Only now: `_look` has shown that no earlier run is alive.
        return self._delete_stand_in(state, consumer)

    def _others_may_delete(self, state: StreamSummary) -> bool:
        """Whether a suspended run may still delete the consumer in a commit that it has begun.

        The messages that its stand-in holds stay until then, which does no harm.
        """
        if not self._others_since or not state.server_time:
            return False
        return state.server_time - self._others_since < self._suspended

    def _create(self, start: int | None = None) -> ConsumerState:
        return self._consumers.create(self._stream, self._name, self._since, start)

    def _warn_of_inactivity(self, consumer: ConsumerState) -> None:
        log.warning(
            "stream %s: its limits (consumer_limits), or its account's, let the server delete "
            "consumer %s (option durable) after %g s without a sign of life. The query gives "
            "one at each trigger; if it is down for longer, messages are lost: raise "
            "inactive_threshold",
            self._stream,
            self._name,
            consumer.inactive_threshold,
        )

    # Looking

    def _see_moved(self, state: StreamSummary, consumer: ConsumerState) -> None:
        """Raise if another client moved the consumer past messages that Spark has not committed."""
        if consumer.next < self._next:
            # A server that crashed may have lost the last move. To hold messages for too long does
            # no harm.
            log.info(
                "stream %s: consumer %s is back at sequence %d",
                self._stream,
                self._name,
                consumer.next,
            )
        elif self._was_moved_by_others(state, consumer):
            self._report_moved_on(state, consumer)
        self._next = consumer.next

    def _was_moved_by_others(self, state: StreamSummary, consumer: ConsumerState) -> bool:
        if consumer.next in (self._next, self._moved_to):
            return False
        # The reader's own check finds what the stream has lost at its beginning.
        return consumer.next > max(state.first_kept, self._done)

    def _report_moved_on(self, state: StreamSummary, consumer: ConsumerState) -> None:
        """Raise, or warn, that the consumer was moved on."""
        moved = (
            f"consumer {self._name} of stream {self._stream} (option durable) was moved from "
            f"sequence {self._next} to {consumer.next}"
        )
        probe = probe_of(
            self._consumers.requests,
            self._stream,
            self._consumers.filters,
            direct=self._options.read_with == "direct",
        )
        passed_over = probe.peek(self._next)
        if passed_over is not None and passed_over[0] < consumer.next:
            raise JetStreamError(
                f"{moved} by another client, past messages that Spark has not committed"
            )
        # The server moves the consumer when matching messages are purged.
        self.report_not_held(
            state, f"{moved}, by a purge or by another client: the messages between are gone"
        )

    def _restored(self, state: StreamSummary, now: StreamSummary) -> ConsumerState:
        standing_in = self._consumers.info(self._stream, self._stand_in)
        if standing_in is None:
            return super()._restored(state, now)
        # This run was interrupted between deleting the consumer and creating it again.
        if standing_in.run != self._consumers.run:
            raise taken(self._name, self._stream, standing_in)
        consumer = self._create(standing_in.next)
        self._delete_stand_in(now, consumer)
        return consumer

    # Moving

    def _move_to(self, state: StreamSummary, consumer: ConsumerState, to: int, way: Way) -> None:
        """Move the consumer on to a sequence, or back to it, and remember it."""
        # Below `first_kept` nothing is left that the consumer could have passed over.
        is_ahead = consumer.next > max(to, state.first_kept)
        if is_ahead and self._resumed:
            self.report_not_held(
                state,
                f"consumer {self._name} of stream {self._stream} is ahead of the checkpoint, at "
                f"sequence {consumer.next}, and has not held the messages from sequence {to} on",
            )
        if is_ahead or consumer.next < to:
            # Before the request: if its reply is lost,
            # `_look` finds the consumer there (test_a_commit_whose_reply_was_lost).
            self._moved_to = to
            self._remember(self._move(state, consumer, to, way))

    def _move(
        self, state: StreamSummary, consumer: ConsumerState, to: int, way: Way
    ) -> ConsumerState:
        """Return the consumer after it was moved to a sequence."""
        if way is not Way.RESET:
            return self._move_by_stand_in(state, consumer, to)
        try:
            return self._consumers.reset(self._stream, self._name, to)
        except RequestTimeout:
            # The server does not reply for a missing consumer, and one that was moved needs no
            # second request.
            again = self._look(state)
            if again is None or again.next != to:
                raise
            return again
        except ApiError as error:
            # The server moves no consumer before its `opt_start_seq`.
            if error.err_code != jsapi.RESET_REFUSED:
                raise
            return self._move_by_stand_in(state, consumer, to)

    def _move_by_stand_in(
        self, state: StreamSummary, consumer: ConsumerState, to: int
    ) -> ConsumerState:
        """Create the consumer again where the server cannot move it.

        At each moment one of two consumers holds what is not committed. A crash between two steps
        leaves the consumer, or the stand-in, or both; `open` and `_look` repair that. The consumer
        stays where it is while a server of an interest stream lacks the stand-in.
        """
        if to > consumer.next and self._is_in_danger(state, consumer):
            return self._move_by_purge(consumer, to)
        self._stand_in_is_left = True  # until it is deleted below, or by the next commit
        standing_in = self._consumers.create(self._stream, self._stand_in, self._since, to)
        # The stand-in holds the position now.
        if not self._all_servers_have(self._stand_in, state, standing_in):
            return consumer
        # Another run may have taken the consumer over since the look.
        now = self._consumers.info(self._stream, self._name)
        if now is not None and now.run != self._consumers.run:
            self._delete_stand_in(state, now)
            raise taken(self._name, self._stream, now)
        # Not before the stand-in exists: an interest stream removes messages that no consumer
        # holds.
        self._consumers.delete(self._stream, self._name)
        consumer = self._create(to)
        self._delete_stand_in(state, consumer)
        return consumer

    def _is_in_danger(self, state: StreamSummary, consumer: ConsumerState) -> bool:
        """Whether deleting a consumer may remove messages that others hold.

        Commits purge then, and a stand-in stays. That is so in long interest streams, and in those
        with replicas on servers of 2.10: they lose messages even when all servers have the stand-in
        (test_moves.py).
        """
        is_before_2_11 = not consumer.level
        is_replicated = bool(consumer.followers)
        return is_long(state, self._longest) or (
            state.retention == "interest" and is_replicated and is_before_2_11
        )

    def _move_by_purge(self, consumer: ConsumerState, to: int) -> ConsumerState:
        """Purge an interest stream, which moves the consumer, as far as other consumers are.

        To hold messages for too long does no harm.
        """
        self._consumers.sweep(self._stream, to, (self._name, self._stand_in))
        moved = self._consumers.info(self._stream, self._name)
        return consumer if moved is None else moved

    def _delete_stand_in(self, state: StreamSummary, consumer: ConsumerState) -> bool:
        """Delete the stand-in, or leave it to a later commit. Return whether it is deleted.

        It stays where a deletion is a danger, and while a server lacks the consumer.
        """
        self._stand_in_is_left = True
        if self._is_in_danger(state, consumer):
            return False
        if not self._all_servers_have(self._name, state, consumer):
            return False
        self._consumers.delete(self._stream, self._stand_in)
        self._stand_in_is_left = False
        return True

    def _all_servers_have(self, name: str, state: StreamSummary, consumer: ConsumerState) -> bool:
        """Whether a consumer may take the place of another one: see `replicas.py`.

        `consumer` is its state as the last reply had it.
        """
        # Other streams keep messages that no consumer needs.
        return state.retention != "interest" or self._replicas.have(name, consumer)
