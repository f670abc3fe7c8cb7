"""Keeps on the server how far Spark has committed: a durable consumer for each stream of a query (option durable).

How it works (docs/progress.md is for users). Nobody pulls from the consumer: it stands at the first sequence that is
not committed, and an interest stream holds what follows. Its metadata has the token of the run that owns it. A commit
goes

- on a work queue: by a purge of the query's filters below the position. The server moves the consumer on to the first
  message that still matches; CONSUMER.RESET moves it back to the position, or else a later run would take what lies
  between for messages that another client purged. A note in the consumer's metadata
  (`durable.Purge`) tells a run that begins between the two requests: (1) write the note,
  (2) purge, (3) move the consumer back, (4) delete the note. If the server cannot move the
  consumer (before 2.14), step 4 notes where it is;
- elsewhere: by CONSUMER.RESET; or where the server cannot do that (before 2.14, or before the sequence at which the
  consumer began) by creating it again, with a stand-in that holds its place meanwhile: (1) create the stand-in at the
  position, (2) delete the consumer, (3) create it at the position, (4) delete the stand-in;
- in a long interest stream without CONSUMER.RESET (`durable.LONG`): by a purge below what all other consumers need.

Each step may be repeated. What the server has shows what a crash left:

| consumer | stand-in | after | a new run (`open`) | the same run (`check`, `commit`) |
|---|---|---|---|---|
| this run's | no | a commit | | continues |
| this run's | yes | (1) or (3) | | continues; the next commit deletes the stand-in |
| another run's, or nobody's | no | a run that ended | takes it over | raises: another run continues |
| another run's | yes | (1) or (3) | takes it over; the first commit deletes the stand-in | raises |
| none | yes | (2) | creates it where the stand-in is | creates it there; raises if the stand-in is another run's |
| none | no | its deletion | creates it; a loss on an interest stream, unless the query is new | creates it; a loss |
| with another configuration, or deliveries that no run knows | | another client's use | raises | raises |

A work queue has no stand-in. There a new run (`open`) finds the note of a purge, and the consumer

| consumer | after | the new run |
|---|---|---|
| at the position, or before it | (1) or (3) | continues; the purge may still arrive |
| where the purge moves it | (2), or (4) before 2.14 | continues as if it were at the position |
| perhaps there: the stream ended before it | (2) | the same, with a warning |
| further on | a purge by another client | does not hold what lies between |

The first commit of the new run finishes the earlier one.
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import uuid
from concurrent.futures import Future
from dataclasses import dataclass

from spark_jetstream.client.requests import Requests
from spark_jetstream.errors import (
    ApiError,
    DataLossError,
    JetStreamError,
    OptionError,
    PermissionDenied,
    RequestTimeout,
    StreamNotFound,
)
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.conventions import stand_in
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.protocol.units import INT64_MAX, rfc3339
from spark_jetstream.source.durable import (
    ConsumerState,
    DurableConsumers,
    Purge,
    is_long,
    several_filters,
    taken,
)
from spark_jetstream.source.probes import probe_of

log = logging.getLogger(__name__)

_ANYWHERE = INT64_MAX  # where a purge may have moved a consumer, until a reply says where it is


@dataclass
class _Held:
    """What this run knows of its consumer on one stream."""

    created: str
    """When the stream was created: in one that was created again nothing is committed."""
    since: str
    """When this run began, by the server's clock. It goes into the metadata of each consumer that is created again."""
    next: int
    """The position as last seen, or as last set. Another client has moved a consumer that is beyond it."""
    deliveries: int
    """How many messages were pulled when the consumer was last created or moved: more are another client's."""
    resumed: bool
    """The run resumes from a checkpoint, and has committed nothing yet: the consumer may be ahead of the checkpoint."""
    held_from: int
    """The consumer has held each matching message from this sequence on; later if it had to be created again."""
    leftover: bool = False
    """A stand-in may exist that an earlier run, or attempt, did not delete; until a commit deletes it."""
    removed: int = 0
    """Up to where a work queue is known to have nothing for this query any more; each purge raises it."""
    trying: int = 0
    """Where the last request moves the consumer; the server may have moved it although no reply came. On a work queue
    where the last purge has left it: the server may not move it back to `next`. `_ANYWHERE` until that is known."""
    done: int = 0
    """Everything below is in Spark's sink. The last request of an earlier run may move the consumer so far."""
    earlier: str | None = None
    """The token of the run that had the consumer before. Its last note may be late, and has it."""
    purge: Purge | None = None
    """The last purge of that run on a work queue, which may be late; until this run commits."""


class Progress:
    """The consumers of one name (option durable), one on each stream of a query: how far Spark has committed.

    One object belongs to one run of a query with the option, and to one thread. With ``readWith=direct`` messages are
    looked at without a consumer. All methods raise what `Requests.call` raises (`PermissionDenied` names the subject
    that is missing), and

    - `OptionError` (durable) when the consumer has another configuration, or belongs to an application;
    - `OptionError` (subjects) when another consumer of a work queue has the filter;
    - `DataLossError`, unless ``failOnDataLoss`` is false, when messages of an interest stream were not held;
    - `JetStreamError` when another run has taken the consumer over, or another client uses or moved it.
    """

    def __init__(self, requests: Requests, options: SourceOptions) -> None:
        assert options.durable is not None
        self._requests = requests
        self._options = options
        self._durable = options.durable
        self._stand_in = stand_in(options.durable)
        self._filters = options.subjects
        #: The token of this run: new with each object, so that an earlier run notices it.
        self._run = uuid.uuid4().hex
        self._consumers = DurableConsumers(requests, options.subjects, self._run)
        #: What is known of each stream's consumer, from `open` on.
        self._held: dict[str, _Held] = {}

    def open(self, state: StreamSummary, *, fresh: bool) -> None:
        """Create the consumer if it is missing, check it if it exists, and take it over for this run.

        Must be called once for each stream and run, before the first position on the stream is decided: from here on
        an interest stream holds what is published. `fresh`: the query has no checkpoint yet. Otherwise it resumes from
        one, and a consumer that is missing on an interest stream has not held what was published since.
        """
        if state.retention == "workqueue" and state.deny_purge:
            raise OptionError(
                f"stream {state.name} is a work queue that cannot be purged (deny_purge, or sealed), so what Spark has "
                "committed cannot be removed from it (option durable): read a stream that was made without deny_purge",
                option="durable",
            )
        self._requests.call(lambda _: self._open(state, fresh))

    def commit(self, state: StreamSummary, next_sequence: int) -> None:
        """Tell the server that everything below `next_sequence` is in Spark's sink, and need not be held any more.

        May be called again for a position that was reached, and for an earlier one. `state` is of the stream that the
        position belongs to (`created`), and need not be new. In a stream that was created again since, or that is
        shorter than the position, nothing is committed and a warning is logged: those sequences belong to other
        messages.
        """
        held = self._held[state.name]
        if state.created == held.created:
            try:
                self._requests.call(lambda _: self._commit(state, held, next_sequence))
            except StreamNotFound as error:
                # Whether this is a loss is for the next look to say.
                log.warning("%s: nothing is committed", error)
        else:
            self._log_other_stream(state.name)

    def holds(self, state: StreamSummary, sequence: int) -> bool:
        """Whether the consumer has existed since ``sequence`` was next, and was not moved past it.

        Then no purge of the query's subjects has removed a message from ``sequence`` on, and no other consumer's
        acknowledgement has removed a matching one: a purge moves the consumers whose filter contains its own or is in
        it, whether it finds a matching message or not (tried on 2.10.26, 2.12.8 and 2.15.1). It does not move those
        whose filter overlaps its own in part (2.15.1).
        """
        held = self._held.get(state.name)
        return (
            held is not None
            and held.created == state.created
            and max(held.next, held.held_from) <= sequence
        )

    def check(self, state: StreamSummary, done: int) -> None:
        """Check with one request that the consumer exists and is this run's. `state` is what the stream is now.

        Everything below sequence `done` is in Spark's sink.
        """
        held = self._held[state.name]
        if state.created == held.created:
            held.done = max(held.done, done)
            self._requests.call(lambda _: self._look(state, held))
            return
        self._not_held(
            state,
            f"stream {state.name} was deleted and created again, and its consumer went with it",
        )
        self.open(state, fresh=True)

    # Opening

    def _open(self, state: StreamSummary, fresh: bool) -> None:
        name, durable = state.name, self._durable
        since = rfc3339(state.server_time) if state.server_time else ""
        consumer = self._consumers.info(name, durable)
        moving = (
            None if state.retention == "workqueue" else self._consumers.info(name, self._stand_in)
        )
        # A consumer that no query has had yet may be younger than the checkpoint.
        held_from = state.first_kept if fresh else state.last_seq + 1
        earlier = None
        if consumer is None:
            if moving is None and not fresh:
                self._not_held(state, self._missing_text(name))
            # There is only a stand-in when a run ended between deleting the consumer and creating it again.
            consumer = self._consumers.create(name, durable, since, moving.next if moving else None)
            held_from = moving.next if moving else held_from
            self._undo_if_it_loses_messages(state, consumer)
        else:
            self._check_existing(consumer, state)
            earlier = consumer.run
            held_from = held_from if earlier is None else 0
            consumer = self._taken_over(name, consumer, since)
        if self._consumers.loses_messages(state, consumer):
            raise several_filters(name, self._filters)
        if state.retention == "interest":
            self._warn_of_inactivity(name, consumer)
        self._held[name] = held = _Held(
            state.created,
            since,
            consumer.next,
            consumer.deliveries,
            resumed=not fresh,
            held_from=held_from,
            leftover=moving is not None,
            earlier=earlier,
        )
        if state.retention == "workqueue" and consumer.purge is not None:
            held.purge = consumer.purge
            held.next = min(consumer.next, consumer.purge.below)
            self._see_moved(name, held, consumer)

    def _undo_if_it_loses_messages(self, state: StreamSummary, consumer: ConsumerState) -> None:
        """Delete a consumer that was created in vain (`_open` raises why)."""
        name, durable = state.name, self._durable
        if self._consumers.loses_messages(state, consumer):
            try:
                self._consumers.delete(name, durable)
            except PermissionDenied as error:  # what cannot be read counts more
                log.warning(
                    "stream %s: consumer %s (option durable) is left behind: %s",
                    name,
                    durable,
                    error,
                )

    def _check_existing(self, consumer: ConsumerState, state: StreamSummary) -> None:
        self._compare(consumer, state)
        if consumer.run is None and consumer.deliveries:
            raise OptionError(
                f"consumer {self._durable} of stream {state.name} (option durable) has delivered "
                "messages to an application; give durable a name that no application uses",
                option="durable",
            )

    def _taken_over(self, name: str, consumer: ConsumerState, since: str) -> ConsumerState:
        if consumer.run == self._run:
            return consumer
        log.info(
            "stream %s: this run continues with consumer %s (option durable) at sequence %d%s",
            name,
            self._durable,
            consumer.next,
            f", which another run has had since {consumer.since}" if consumer.since else "",
        )
        return self._consumers.take_over(name, self._durable, consumer, since)

    def _warn_of_inactivity(self, name: str, consumer: ConsumerState) -> None:
        if consumer.inactive_threshold:
            log.warning(
                "stream %s: its limits (consumer_limits), or its account's, let the server delete "
                "consumer %s (option durable) after %g s without a sign of life. The query gives "
                "one at each trigger; if it is down for longer, messages are lost: raise "
                "inactive_threshold",
                name,
                self._durable,
                consumer.inactive_threshold,
            )

    def _compare(self, consumer: ConsumerState, state: StreamSummary) -> None:
        differences = consumer.differences(self._filters, in_memory=state.storage == "memory")
        if differences:
            raise OptionError(
                f"consumer {self._durable} of stream {state.name} (option durable) has another configuration than this "
                f"query needs: {'; '.join(differences)}. Give durable another name (a query with other subjects needs "
                "one of its own), or delete the consumer, which lets go of what only it holds",
                option="durable",
            )

    # Committing

    def _commit(self, state: StreamSummary, held: _Held, next_sequence: int) -> None:
        held.done = next_sequence
        consumer = self._look(state, held)
        if consumer is None:
            return
        if not held.leftover and next_sequence == (
            held.removed if state.retention == "workqueue" else consumer.next
        ):
            held.resumed = False
            return
        # The state of the caller may be from before an outage, in which the stream lost its tail.
        state = self._consumers.stream(state.name)
        if held.leftover:
            # Only now: `_look` has shown that no earlier run is alive.
            self._delete_stand_in(state.name, held, long=is_long(state))
        if state.created != held.created:
            self._log_other_stream(state.name)
            return
        if next_sequence > state.last_seq + 1:
            log.warning(
                "stream %s ends at sequence %d, before the position %d that was read up to: nothing is committed",
                state.name,
                state.last_seq,
                next_sequence,
            )
            return
        if state.retention == "workqueue":
            self._remove(state, held, consumer, next_sequence)
        elif consumer.next < next_sequence or consumer.next > max(next_sequence, state.first_kept):
            if held.resumed and consumer.next > next_sequence:
                self._not_held(
                    state,
                    f"consumer {self._durable} of stream {state.name} is ahead of the checkpoint, at sequence "
                    f"{consumer.next}, and has not held the messages from sequence {next_sequence} on",
                )
            held.trying = next_sequence
            consumer = self._move(state, held, consumer, next_sequence)
            held.next, held.deliveries = consumer.next, consumer.deliveries
        held.resumed = False

    def _remove(self, state: StreamSummary, held: _Held, consumer: ConsumerState, to: int) -> None:
        """Remove from a work queue the messages of the query below sequence `to`."""
        name = state.name
        if self._consumers.loses_messages(state, consumer):
            raise several_filters(name, self._filters)
        # A purge had no answer, or an earlier run ended before it had moved the consumer back.
        noted = consumer.purge is not None and held.next <= to
        unfinished = noted or held.trying == _ANYWHERE
        # Other consumers may still hold older messages, so `first_kept` need not move.
        if to > max(state.first_kept, held.removed):
            passes_over = bool(self._filters) or state.replaces
            if passes_over:
                consumer = self._note_purge(state, consumer, to)
            held.trying = _ANYWHERE
            self._consumers.purge(name, to)
            if passes_over or consumer.purge is not None:
                held.trying = self._move_back(name, consumer, to)
            else:
                held.trying = to
            held.next = to
        elif unfinished:
            held.trying = self._move_back(name, consumer, to)
        held.removed = max(held.removed, to)
        held.purge = None

    def _note_purge(self, state: StreamSummary, consumer: ConsumerState, to: int) -> ConsumerState:
        """Note where the purge below sequence `to` moves the consumer, if not just there."""
        end = state.last_seq + 1
        following = None
        if to < end:
            # The leader answers: what it does not find up to the end is not there.
            probe = probe_of(self._requests, state.name, self._filters, direct=True)
            following = probe.peek(to)
        purge = Purge(to, end, certain=False)
        if following is not None and following[0] < end:
            purge = Purge(to, following[0], certain=True)
        if purge.certain and purge.next == to:
            return consumer
        return self._consumers.note(state.name, self._durable, consumer, purge)

    def _move_back(self, stream: str, consumer: ConsumerState, to: int) -> int:
        """Move the consumer of a work queue back to where its messages were purged.

        Return where it is then. If that is further on, because the server cannot move it, the note
        of the purge says so. Otherwise the note goes.
        """
        moved = self._reset_or_look(stream, consumer, to)
        if moved is None:
            return to
        left = Purge(to, moved.next, certain=True) if moved.next > to else None
        if left != moved.purge:
            self._consumers.note(stream, self._durable, moved, left)
        return moved.next

    def _reset_or_look(self, stream: str, consumer: ConsumerState, to: int) -> ConsumerState | None:
        if consumer.can_move_to(to):
            try:
                return self._consumers.reset(stream, self._durable, to)
            except PermissionDenied as error:
                log.info("stream %s: %s", stream, error)
        return self._consumers.info(stream, self._durable)

    def _move(
        self, state: StreamSummary, held: _Held, consumer: ConsumerState, to: int
    ) -> ConsumerState:
        if not consumer.can_move_to(to):
            return self._create_again(state, held, consumer, to)
        try:
            return self._consumers.reset(state.name, self._durable, to)
        except RequestTimeout:
            # The server does not reply for a missing consumer, and one that was moved needs no second request.
            again = self._look(state, held)
            if again is None or again.next != to:
                raise
            return again
        except ApiError as error:
            if error.err_code != jsapi.RESET_REFUSED:
                raise
            return self._create_again(state, held, consumer, to)

    def _create_again(
        self, state: StreamSummary, held: _Held, consumer: ConsumerState, to: int
    ) -> ConsumerState:
        """Create the consumer again where the server cannot move it.

        At each moment one of two consumers holds what is not committed. A crash between two steps leaves the consumer,
        or the stand-in, or both; `_open` and `_look` repair that. In a long interest stream a purge moves the consumer
        instead (see `LONG`), only as far as other consumers are: what is held for too long does no harm.
        """
        name = state.name
        long = is_long(state)
        if long and to > consumer.next:
            self._consumers.sweep(name, to, (self._durable, self._stand_in))
            return self._consumers.info(name, self._durable) or consumer
        held.leftover = True  # until it is deleted below, or by the next commit
        self._consumers.create(name, self._stand_in, held.since, to)
        now = self._consumers.info(name, self._durable)
        if now is not None and now.run != self._run:
            self._delete_stand_in(name, held, long=long)
            raise taken(self._durable, name, now)
        self._consumers.delete(name, self._durable)
        consumer = self._consumers.create(name, self._durable, held.since, to)
        self._delete_stand_in(name, held, long=long)
        return consumer

    def _delete_stand_in(self, name: str, held: _Held, *, long: bool) -> None:
        """Delete the stand-in; in a long interest stream leave that to a later commit."""
        held.leftover = True
        if not long:
            self._consumers.delete(name, self._stand_in)
            held.leftover = False

    # Looking

    def _look(self, state: StreamSummary, held: _Held) -> ConsumerState | None:
        """Return this run's consumer, created again if it was missing; None if the stream was created again."""
        consumer = self._consumers.info(state.name, self._durable)
        if consumer is None:
            return self._missing(state, held)
        if consumer.run != self._run:
            consumer = self._take_back(state, held, consumer)
        self._compare(consumer, state)
        if consumer.deliveries > held.deliveries:
            raise JetStreamError(
                f"another client pulls messages from consumer {self._durable} of stream {state.name} (option durable), "
                "which only this query may use"
            )
        if state.retention != "workqueue":
            self._check_position(state, held, consumer)
        else:
            self._see_moved(state.name, held, consumer)
        if consumer.inactive_threshold:
            self._consumers.touch(state.name, self._durable)
        return consumer

    def _take_back(
        self,
        state: StreamSummary,
        held: _Held,
        consumer: ConsumerState,
    ) -> ConsumerState:
        """Take the consumer over again after a late note of the run before.

        A note has the token of the run that writes it. The run before had looked at the consumer
        before this run began. If it still lives, its next look finds the token of this run.

        Raises `JetStreamError` if another run has the consumer.
        """
        late = held.earlier is not None and consumer.run == held.earlier
        if not late or state.retention != "workqueue":
            raise taken(self._durable, state.name, consumer)
        log.info("stream %s: consumer %s has a late note of another run", state.name, self._durable)
        consumer = self._consumers.take_over(state.name, self._durable, consumer, held.since)
        held.purge = consumer.purge
        return consumer

    def _see_moved(self, stream: str, held: _Held, consumer: ConsumerState) -> None:
        """Take up where the consumer of a work queue is, if this run has not moved it there."""
        if consumer.next <= max(held.next, held.trying):
            return
        purge = held.purge
        if purge is None or not purge.may_move_to(consumer.next):
            # Another client has purged the messages before; `holds` says so.
            held.next = consumer.next
            return
        held.trying = consumer.next
        if purge.is_doubtful(consumer.next):
            log.warning(
                "stream %s: an earlier run of the query ended while it removed what it had "
                "committed, below sequence %d (option durable). Whether another client has purged "
                "messages below sequence %d since then cannot be known, and reading goes on",
                stream,
                purge.below,
                consumer.next,
            )

    def _check_position(self, state: StreamSummary, held: _Held, consumer: ConsumerState) -> None:
        """Raise if another client moved the consumer past messages that Spark has not committed."""
        if consumer.next < held.next:
            # A server that crashed may have lost the last move. To hold messages for too long does no harm.
            log.info(
                "stream %s: consumer %s is back at sequence %d",
                state.name,
                self._durable,
                consumer.next,
            )
        elif held.next < consumer.next != held.trying and consumer.next > max(
            state.first_kept, held.done
        ):
            direct = self._options.read_with == "direct"
            passed_over = probe_of(self._requests, state.name, self._filters, direct=direct).peek(
                held.next
            )
            what = (
                f"consumer {self._durable} of stream {state.name} (option durable) was moved from sequence {held.next} "
                f"to {consumer.next}"
            )
            if passed_over is not None and passed_over[0] < consumer.next:
                raise JetStreamError(
                    f"{what} by another client, past messages that Spark has not committed"
                )
            # The server moves the consumer when matching messages are purged.
            self._not_held(
                state, f"{what}, by a purge or by another client: the messages between are gone"
            )
        held.next = consumer.next

    def _missing(self, state: StreamSummary, held: _Held) -> ConsumerState | None:
        now = self._consumers.stream(state.name)
        if now.created != held.created:
            self._log_other_stream(state.name)
            return None
        moving = (
            None
            if state.retention == "workqueue"
            else self._consumers.info(state.name, self._stand_in)
        )
        if moving is not None:
            # This run was interrupted between deleting the consumer and creating it again.
            if moving.run != self._run:
                raise taken(self._durable, state.name, moving)
            consumer = self._consumers.create(state.name, self._durable, held.since, moving.next)
            self._delete_stand_in(state.name, held, long=is_long(now))
        else:
            self._not_held(state, self._missing_text(state.name))
            consumer = self._consumers.create(state.name, self._durable, held.since)
            held.held_from = now.last_seq + 1
            held.purge = None
        held.next, held.deliveries = consumer.next, consumer.deliveries
        return consumer

    def _not_held(self, state: StreamSummary, what: str) -> None:
        """Raise, or warn, that an interest stream may have removed unread messages; other streams keep them."""
        if state.retention != "interest":
            log.warning("%s; going on with consumer %s (option durable)", what, self._durable)
            return
        what += f"; messages of stream {state.name} (interest retention) that no consumer held are gone unread"
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{what}; set failOnDataLoss=false to go on with what is there, and to have consumer {self._durable} "
                "(option durable) hold what comes from then on"
            )
        log.warning("%s; failOnDataLoss is false, so reading goes on", what)

    def _missing_text(self, stream: str) -> str:
        return (
            f"consumer {self._durable} of stream {stream} (option durable) does not exist: it was deleted, or the "
            "option is new for this checkpoint"
        )

    @staticmethod
    def _log_other_stream(name: str) -> None:
        log.warning(
            "stream %s was deleted and created again: nothing is committed in the new one", name
        )


#: Seconds that a commit may keep its caller. An interest stream removes each message before it answers, so a commit
#: takes longer the larger its batch was.
WAIT = 0.008


class LazyCommit:
    """A `Progress` whose commits may outlast the call; without a `Progress` nothing happens.

    Used by one thread. A commit that takes longer than `WAIT` continues in a thread. The next call of any method waits
    for it, and raises what it raised. All methods raise what `Progress` raises.
    """

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        #: Streams that `Progress.open` was called for: once in a run.
        self._opened: set[str] = set()
        #: The commit in progress, until `settle` has waited for it.
        self._committing: Future[None] | None = None

    def open(self, state: StreamSummary, *, fresh: bool) -> bool:
        """Call `Progress.open`, the first time for each stream; return whether this was the first time."""
        if self._progress is None or state.name in self._opened:
            return False
        self.settle()
        self._progress.open(state, fresh=fresh)
        self._opened.add(state.name)
        return True

    def hold(self, state: StreamSummary, done: int) -> None:
        """Make sure that the consumer exists and is this run's, for a query that resumes or continues.

        Everything below sequence `done` is in Spark's sink.
        """
        if self._progress is not None and not self.open(state, fresh=False):
            self.settle()
            self._progress.check(state, done)

    def holds(self, state: StreamSummary, sequence: int) -> bool:
        """Return what `Progress.holds` returns; False without a position on the server."""
        return self._progress is not None and self._progress.holds(state, sequence)

    def commit(self, state: StreamSummary, next_sequence: int) -> None:
        """Call `Progress.commit` for a stream that was opened."""
        progress = self._progress
        if progress is None or state.name not in self._opened:
            return
        self.settle()
        self._committing = committing = Future[None]()

        def work() -> None:
            try:
                progress.commit(state, next_sequence)
            except BaseException as error:  # noqa: BLE001 - raised by `settle`
                committing.set_exception(error)
            else:
                committing.set_result(None)

        # The thread does not keep the process alive: the next run repeats what it leaves undone.
        threading.Thread(target=work, name="spark-jetstream-commit", daemon=True).start()
        concurrent.futures.wait([committing], WAIT)
        if committing.done():
            self.settle()
        else:
            committing.add_done_callback(_log_failure)

    def settle(self) -> None:
        """Wait for the commit in progress; raise what it raised."""
        committing, self._committing = self._committing, None
        if committing is not None:
            committing.result()


def _log_failure(committing: Future[None]) -> None:
    """Log why a commit failed whose caller no longer waited: a query that ends now makes no call that would raise."""
    error = committing.exception()
    if error is not None:
        log.warning(
            "a commit on the server failed (option durable); the next run of the query repeats it: %s",
            error,
        )
