"""Keeps on the server how far Spark has committed: a durable consumer for each stream of a query (option durable).

On streams with limits or interest retention a commit moves the consumer (CONSUMER.RESET, server 2.14), or makes it
anew where the server cannot do that; the messages of an interest stream are held until then. On a work queue the
consumer reserves the filter, and a commit purges what was read. All of it may be done twice, and whatever a crash
leaves is put right by the next `Progress.open`.

When the position on the server is opened, looked at and moved, so that a query does not wait for it.
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import retrying
from spark_jetstream.errors import ApiError, DataLossError, JetStreamError, OptionError, RequestTimeout
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.conventions import stand_in
from spark_jetstream.protocol.stream import StreamState
from spark_jetstream.protocol.units import rfc3339
from spark_jetstream.source import durable as pure
from spark_jetstream.source.direct_probe import DirectProbe
from spark_jetstream.source.durable import ConsumerState, Requests
from spark_jetstream.source.stream_probe import StreamProbe

log = logging.getLogger(__name__)


@dataclass
class _Held:
    """What this run knows of its consumer on one stream."""

    created: str
    """When the stream was created."""
    since: str
    next: int
    """The position as last seen, or as last set."""
    deliveries: int
    going_on: bool
    """From a checkpoint, and nothing was committed in this run yet."""
    since_sequence: int
    """From this sequence on, no message that matches has come or gone without the consumer."""
    leftover: bool = False
    """A stand-in may be there that an earlier run, or attempt, did not delete."""
    removed: int = 0
    """Up to where this run has purged a work queue."""
    trying: int = 0
    """Where the position was to be moved; it may have been, although no reply came."""


class Progress:
    """The consumers of one name (option durable), one on each stream of a query: how far Spark has committed.

    One object belongs to one run of a query, and to one thread. `connect()` gives the connection; `patience()` says for
    how many seconds errors that may pass are tried again; with `direct` messages are looked at without a consumer. All
    methods raise what `Connection.api` raises (`PermissionDenied` names the subject that is missing), and

    - `OptionError` (durable) when the consumer is there with another configuration, or belongs to an application;
    - `OptionError` (subjects) when another consumer of a work queue has the filter;
    - `DataLossError`, unless `fail_on_data_loss` is false, when messages of an interest stream were not held;
    - `JetStreamError` when another run has taken the consumer over, or somebody else uses it or moved it.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        durable: str,
        filters: tuple[str, ...],
        patience: Callable[[], float],
        *,
        fail_on_data_loss: bool,
        direct: bool = False,
    ) -> None:
        self._connect = connect
        self._durable = durable
        self._stand_in = stand_in(durable)
        self._filters = filters
        self._patience = patience
        self._fail = fail_on_data_loss
        self._view = DirectProbe if direct else StreamProbe
        self._run = uuid.uuid4().hex
        self._ask = Requests(connect, filters, self._run)
        self._held: dict[str, _Held] = {}

    # What the driver calls

    def open(self, state: StreamState, *, fresh: bool) -> None:
        """Make the consumer if it is missing, check it if it is there, and take it over for this run.

        Call it once for each stream and run, before the first position on the stream is decided: from here on an
        interest stream holds what comes. `fresh`: the query has no checkpoint yet. Otherwise it goes on from one, and
        a consumer that is missing on an interest stream has not held what was published meanwhile.
        """
        if state.retention == "workqueue" and state.deny_purge:
            raise OptionError(
                f"stream {state.name} is a work queue that cannot be purged (deny_purge, or sealed), so what Spark has "
                "committed cannot be removed from it (option durable): read a stream that was made without deny_purge",
                option="durable",
            )
        retrying(lambda: self._open(state, fresh), self._patience())

    def commit(self, state: StreamState, next_sequence: int) -> None:
        """Everything below `next_sequence` is in Spark's sink for good: let the server know, and let go of it.

        May be called again for a position that was reached, and with one that lies further back. `state` is of the
        stream that the position belongs to (`created`), and need not be new. In a stream that was created again
        meanwhile, or that is shorter than the position, nothing is committed and a warning is logged: those sequences
        belong to other messages.
        """
        held = self._held[state.name]
        if state.created == held.created:
            retrying(lambda: self._commit(state, held, next_sequence), self._patience())
        else:
            self._log_other_stream(state.name)

    def holds(self, state: StreamState, sequence: int) -> bool:
        """Whether the consumer was there all the time since ``sequence`` was next, and was not moved past it.

        Then no purge that may concern the query has removed a message from there on, and no other consumer's
        acknowledgement one that matches: a purge moves the consumers whose filter it may concern, whether it finds a
        message that matches or not (tried on 2.10.26, 2.12.8 and 2.15.1).
        """
        held = self._held.get(state.name)
        return held is not None and held.created == state.created and max(held.next, held.since_sequence) <= sequence

    def check(self, state: StreamState) -> None:
        """Is the consumer still there, and still this run's? One request. `state` is what the stream is now."""
        held = self._held[state.name]
        if state.created == held.created:
            retrying(lambda: self._look(state, held), self._patience())
            return
        self._not_held(state, f"stream {state.name} was deleted and created again, and its consumer went with it")
        self.open(state, fresh=True)

    # Opening

    def _open(self, state: StreamState, fresh: bool) -> None:
        since = rfc3339(state.server_time) if state.server_time else ""
        found = self._ask.info(state.name, self._durable)
        moving = None if state.retention == "workqueue" else self._ask.info(state.name, self._stand_in)
        # A consumer that no query has had yet may be younger than the checkpoint.
        begun = state.first_kept if fresh else state.last_seq + 1
        if found is None:
            if moving is None and not fresh:
                self._not_held(state, pure.missing(self._durable, state.name))
            # There is only a stand-in when a run ended between deleting the consumer and making it anew.
            found = self._ask.create(state.name, self._durable, since, moving.next if moving else None)
            begun = moving.next if moving else begun
            if self._purges_badly(state, found):
                self._ask.delete(state.name, self._durable)
        else:
            self._compare(found, state)
            if found.run is None and found.deliveries:
                raise pure.of_an_application(self._durable, state.name)
            begun = begun if found.run is None else 0
            if found.run != self._run:
                found = self._take_over(state, since, found)
        if self._purges_badly(state, found):
            raise pure.several_filters(state.name, self._filters)
        if found.inactive_threshold and state.retention == "interest":
            log.warning("%s", pure.may_be_deleted(self._durable, state.name, found))
        self._held[state.name] = _Held(
            state.created,
            since,
            found.next,
            found.deliveries,
            going_on=not fresh,
            since_sequence=begun,
            leftover=moving is not None,
        )

    def _take_over(self, state: StreamState, since: str, found: ConsumerState) -> ConsumerState:
        log.info(
            "stream %s: this run goes on with consumer %s (option durable) at sequence %d%s",
            state.name,
            self._durable,
            found.next,
            f", which another run has had since {found.since}" if found.since else "",
        )
        return self._ask.take_over(state.name, self._durable, found, since)

    def _compare(self, found: ConsumerState, state: StreamState) -> None:
        differing = pure.differences(found, self._filters, in_memory=state.storage == "memory")
        if differing:
            raise pure.unfit(self._durable, state.name, differing)

    def _purges_badly(self, state: StreamState, found: ConsumerState) -> bool:
        several = state.retention == "workqueue" and len(self._filters) > 1
        return several and found.level < pure.SEVERAL_FILTERS_LEVEL

    # Committing

    def _commit(self, state: StreamState, held: _Held, next_sequence: int) -> None:
        found = self._look(state, held)
        if found is None:
            return
        if held.leftover:
            # Only now: had an earlier run still been alive, `_look` would have shown it.
            self._ask.delete(state.name, self._stand_in)
            held.leftover = False
        if next_sequence > state.last_seq + 1:
            state = self._ask.state(state.name)
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
            if self._purges_badly(state, found):
                raise pure.several_filters(state.name, self._filters)
            # Messages that others read keep the beginning of the stream where it is.
            if next_sequence > max(state.first_kept, held.removed):
                self._ask.purge(state.name, next_sequence)
                held.removed = next_sequence
        elif found.next < next_sequence or found.next > max(next_sequence, state.first_kept):
            if held.going_on and found.next > next_sequence:
                self._not_held(
                    state,
                    f"consumer {self._durable} of stream {state.name} is ahead of the checkpoint, at sequence "
                    f"{found.next}, and has not held the messages from sequence {next_sequence} on",
                )
            held.trying = next_sequence
            found = self._move(state, held, found, next_sequence)
            held.next, held.deliveries = found.next, found.deliveries
        held.going_on = False

    def _move(self, state: StreamState, held: _Held, found: ConsumerState, to: int) -> ConsumerState:
        if found.level < pure.RESET_LEVEL or to < found.lowest:
            return self._make_anew(state, held, to)
        try:
            return self._ask.reset(state.name, self._durable, to)
        except RequestTimeout:
            # For a missing consumer no reply comes at all, and one that was moved needs no second request.
            again = self._look(state, held)
            if again is None or again.next != to:
                raise
            return again
        except ApiError as error:
            if error.err_code != jsapi.RESET_REFUSED:
                raise
            return self._make_anew(state, held, to)

    def _make_anew(self, state: StreamState, held: _Held, to: int) -> ConsumerState:
        """Move the consumer on a server that cannot: at each moment one of two consumers holds what is not committed.

        A crash between two steps leaves the consumer, or the stand-in, or both; `_open` and `_look` put that right.
        """
        name = state.name
        held.leftover = True  # until it is deleted below, or by the next commit
        self._ask.create(state.name, self._stand_in, held.since, to)
        found = self._ask.info(name, self._durable)
        if found is not None and found.run != self._run:
            self._ask.delete(name, self._stand_in)
            raise pure.taken(self._durable, name, found)
        self._ask.delete(name, self._durable)
        found = self._ask.create(state.name, self._durable, held.since, to)
        self._ask.delete(name, self._stand_in)
        held.leftover = False
        if state.retention == "interest":
            self._ask.sweep(name)
        return found

    # Looking

    def _look(self, state: StreamState, held: _Held) -> ConsumerState | None:
        """The consumer, if it is this run's; made again if it was missing. None: the stream was created again."""
        found = self._ask.info(state.name, self._durable)
        if found is None:
            return self._missing(state, held)
        if found.run != self._run:
            raise pure.taken(self._durable, state.name, found)
        self._compare(found, state)
        if found.deliveries > held.deliveries:
            raise JetStreamError(
                f"somebody else pulls messages from consumer {self._durable} of stream {state.name} (option durable), "
                "which only this query may use"
            )
        if state.retention != "workqueue":
            self._notice_a_move(state, held, found)
        if found.inactive_threshold:
            self._ask.touch(state.name, self._durable)
        return found

    def _notice_a_move(self, state: StreamState, held: _Held, found: ConsumerState) -> None:
        """Raise if somebody else let go of messages that Spark has not committed."""
        if found.next < held.next:
            # A server that crashed may have forgotten the last move. What it holds too long does no harm.
            log.info("stream %s: consumer %s is back at sequence %d", state.name, self._durable, found.next)
        elif held.next < found.next != held.trying and found.next > state.first_kept:
            passed_over = self._view(self._connect, state.name, self._filters, self._patience).peek(held.next)
            what = (
                f"consumer {self._durable} of stream {state.name} (option durable) was moved from sequence {held.next} "
                f"to {found.next}"
            )
            if passed_over is not None and passed_over[0] < found.next:
                raise JetStreamError(f"{what} by somebody else, past messages that Spark has not committed")
            # The server moves it itself when matching messages are purged.
            self._not_held(state, f"{what}, by a purge or by somebody else: the messages between are gone")
        held.next = found.next

    def _missing(self, state: StreamState, held: _Held) -> ConsumerState | None:
        now = self._ask.state(state.name)
        if now.created != held.created:
            self._log_other_stream(state.name)
            return None
        moving = None if state.retention == "workqueue" else self._ask.info(state.name, self._stand_in)
        if moving is not None:
            # This run was interrupted between deleting the consumer and making it anew.
            if moving.run != self._run:
                raise pure.taken(self._durable, state.name, moving)
            found = self._ask.create(state.name, self._durable, held.since, moving.next)
            self._ask.delete(state.name, self._stand_in)
        else:
            self._not_held(state, pure.missing(self._durable, state.name))
            found = self._ask.create(state.name, self._durable, held.since)
            held.since_sequence = now.last_seq + 1
        held.next, held.deliveries = found.next, found.deliveries
        return found

    def _not_held(self, state: StreamState, what: str) -> None:
        """Messages may have gone unread from an interest stream: an error, or a warning if that is allowed.

        On other streams messages stay without a consumer.
        """
        if state.retention != "interest":
            log.warning("%s; going on with consumer %s (option durable)", what, self._durable)
            return
        what += f"; messages of stream {state.name} (interest retention) that no consumer held are gone unread"
        if self._fail:
            raise DataLossError(
                f"{what}; set failOnDataLoss=false to go on with what is there, and to have consumer {self._durable} "
                "(option durable) hold what comes from then on"
            )
        log.warning("%s; failOnDataLoss is false, so reading goes on", what)

    @staticmethod
    def _log_other_stream(name: str) -> None:
        log.warning("stream %s was deleted and created again: nothing is committed in the new one", name)


#: Seconds that a commit may keep its caller. An interest stream removes each message before it answers, so a commit
#: takes longer the larger its batch was.
WAIT = 0.008


class LazyCommit:
    """The position of one run of a query on the server; without a `Progress` nothing happens.

    For one thread. A commit that takes longer than `WAIT` goes on behind the caller's back. The next call, whichever it
    is, waits for it, and raises what it raised. All methods raise what `Progress` raises.
    """

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._opened: set[str] = set()
        self._committing: Future[None] | None = None

    @property
    def wanted(self) -> bool:
        """Whether there is a position on the server."""
        return self._progress is not None

    def open(self, state: StreamState, *, fresh: bool) -> bool:
        """`Progress.open`, the first time for each stream; whether this was the first time."""
        if self._progress is None or state.name in self._opened:
            return False
        self.settle()
        self._progress.open(state, fresh=fresh)
        self._opened.add(state.name)
        return True

    def hold(self, state: StreamState) -> None:
        """Make sure that the position is there and ours, for a query that goes on."""
        if self._progress is not None and not self.open(state, fresh=False):
            self.settle()
            self._progress.check(state)

    def holds(self, state: StreamState, sequence: int) -> bool:
        """`Progress.holds`; False without a position on the server."""
        return self._progress is not None and self._progress.holds(state, sequence)

    def commit(self, state: StreamState, next_sequence: int) -> None:
        """`Progress.commit`, on a stream that was opened."""
        progress = self._progress
        if progress is None or state.name not in self._opened:
            return
        self.settle()
        self._committing = _later(lambda: progress.commit(state, next_sequence))
        concurrent.futures.wait([self._committing], WAIT)
        if self._committing.done():
            self.settle()

    def settle(self) -> None:
        """Wait for the commit that is under way; raises what it raised."""
        committing, self._committing = self._committing, None
        if committing is not None:
            committing.result()


def _later(work: Callable[[], None]) -> Future[None]:
    """Do this in a thread that does not keep the process alive: what it leaves undone is caught up by the next run."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:  # raised where the result is asked for
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=run, name="spark-jetstream-commit", daemon=True).start()
    return future
