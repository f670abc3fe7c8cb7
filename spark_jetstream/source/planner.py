"""Plans a query on Spark's driver: where it starts, where a micro-batch ends, and which ranges its tasks read.

Knows no class of Spark. What a planner remembers only saves requests (docs/architecture.md, "Processes").
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.requests import Connect, Requests, settled_info
from spark_jetstream.errors import DataLossError, JetStreamError, OptionError, StreamNotFound
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.stream import ReadWith, SequenceRange, StreamSummary, stream_summary
from spark_jetstream.source.admission import bytes_to_messages, limit_end, share
from spark_jetstream.source.continuity import (
    Evidence,
    check_continuity,
    contradicts,
    idle_position,
    latest_position,
)
from spark_jetstream.source.durable import PURGING_SERVERS, is_long
from spark_jetstream.source.offsets import Offset, StreamPosition
from spark_jetstream.source.positions import (
    check_retention,
    check_start,
    ending_position,
    needs_direct,
    starting_position,
    warn_of_interest,
)
from spark_jetstream.source.probes import DirectProbe, StreamProbe, StreamQuestions
from spark_jetstream.source.progress import LazyCommit, Progress
from spark_jetstream.source.ranges import Survey, ranges_between, shares, split
from spark_jetstream.streams.direct import read_direct
from spark_jetstream.streams.lookup import nearest_stream
from spark_jetstream.streams.pull import PullSettings

log = logging.getLogger(__name__)

T = TypeVar("T")

_AT_A_TIME = 8  # streams of a query about which the server is asked at the same time

_GET_AT_MOST = 400  # messages of a task with Direct Gets; docs/benchmarks.md, "Consumers on a cluster"


class Planner:
    """Plans one query. All methods raise what the connection and the server raise, and `OptionError`.

    The options of a bucket must have the filters of its stream. `clock` gives seconds, for waiting times.
    """

    def __init__(self, options: SourceOptions, connect: Connect, clock: Callable[[], float] = time.monotonic) -> None:
        self.options = options
        self._connect = connect
        self._clock = clock
        self._requests = first_requests(self._reconnected, options)
        # Its own requests: a commit may continue in a thread.
        self._progress_requests = first_requests(connect, options)
        direct = options.read_with == "direct"
        self._probes = {name: self._probe(name, direct=direct) for name in options.read_streams}
        progress = None
        if options.durable is not None:
            progress = Progress(
                self._progress_requests,
                options.durable,
                options.subjects,
                fail_on_data_loss=options.fail_on_data_loss,
                direct=direct,
            )
        self.progress = LazyCommit(progress)
        self._unwritten: Offset | None = None
        self._states: dict[str, StreamSummary] = {}
        # Stream -> the position whose last message was looked up, and the state of the stream then.
        self._verified: dict[str, tuple[StreamPosition, StreamSummary]] = {}
        self._gets: dict[str, bool] = {}
        self._known = (0, 0)
        self._warned: set[str] = set()
        self._deleted: set[str] = set()
        self._unmatched: dict[tuple[str, str], tuple[int, int]] = {}
        self._idle: dict[str, tuple[int, str, int]] = {}
        self._target: Offset | None = None
        self._waiting_since: float | None = None

    def _probe(self, name: str, *, direct: bool) -> StreamQuestions:
        return (DirectProbe if direct else StreamProbe)(self._requests, name, self.options.subjects)

    def _reconnected(self, seconds: float) -> Connection:
        connection = self._connect(seconds)
        if self._known != (id(connection), connection.reconnects):
            self._known = (id(connection), connection.reconnects)
            self._gets.clear()
        return connection

    def _look(
        self,
        streams: Iterable[str] | None = None,
        positions: Mapping[str, StreamPosition] | None = None,
        *,
        reporting: bool = False,
    ) -> dict[str, StreamSummary]:
        """Return the states of streams (None: of the query), which the server is asked for in one go.

        `positions` are those of the query: a state that contradicts one, and one without any, come from a leader that a
        majority follows. With failOnDataLoss=false streams that have one and were deleted since are left out; with
        `reporting` all that do not exist.
        """
        names = self._probes if streams is None else streams
        contexts = {name: f"read stream {name} (option stream)" for name in names}
        replies = self._requests.streams(contexts)
        self._requests.retry_timeout = self._progress_requests.retry_timeout = self.options.connection.retry_timeout
        found: dict[str, StreamSummary] = {}
        for name, reply in replies.items():
            position = (positions or {}).get(name)
            try:
                state = self._settled(name, reply, position, contexts[name])
            except StreamNotFound:
                if self.options.fail_on_data_loss or (position is None and not reporting):
                    raise
                self._note_deleted(name)
                continue
            self._check(name, state)
            self._deleted.discard(name)
            found[name] = state
        self._states.update(found)
        return found

    def _settled(
        self, name: str, reply: StreamSummary | StreamNotFound, position: StreamPosition | None, context: str
    ) -> StreamSummary:
        """Return a state that no former leader gave, as `_look` promises it. Raises `StreamNotFound`."""
        if isinstance(reply, StreamSummary):
            doubtful = contradicts(position, reply) if position is not None else not reply.followed
            if not (doubtful and reply.clustered):
                return reply
        elif position is None or name in self._deleted:
            raise reply
        return self._requests.call(partial(settled_info, name=name, context=context))

    def _note_deleted(self, name: str) -> None:
        self._states.pop(name, None)
        if name not in self._deleted:
            self._deleted.add(name)
            log.warning(
                "stream %s was deleted; failOnDataLoss is false, so the query goes on without it, and reads it from "
                "its first message on when it is created again",
                name,
            )

    def _check(self, name: str, state: StreamSummary) -> None:
        """Check that the query can read the stream, and choose how."""
        probe = self._probes[name]
        if isinstance(probe, DirectProbe):
            probe.check(state)
        endangered = is_long(state) and self._requests.call(lambda to: to.server_version) >= PURGING_SERVERS
        check_retention(state, self.options, endangered=endangered)
        if needs_direct(state, self.options, endangered=endangered) and not isinstance(probe, DirectProbe):
            if endangered:
                log.warning("stream %s is read with Direct Get: it has interest retention and many messages", name)
            self._probes[name] = self._probe(name, direct=True)
        if state.retention == "interest" and name not in self._warned:
            self._warned.add(name)
            warn_of_interest(state, held=self.options.durable is not None)

    def _each(self, ask: Callable[[str], T], streams: Collection[str] | None = None) -> dict[str, T]:
        """Return what `ask` returns for each stream (None: of the query). It runs for several streams at a time.

        Raises what it raises for the first of them.
        """
        names = list(self._probes if streams is None else streams)
        if len(names) <= 1:
            return {name: ask(name) for name in names}
        pool = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="spark-jetstream-plan")
        try:
            return dict(zip(names, pool.map(ask, names), strict=True))
        finally:
            pool.shutdown(cancel_futures=True)

    # Positions

    def initial(self) -> Offset:
        """Return where the query starts, by `startingTimestamp` or `startingOffsets`."""
        begin = Offset({name: self._begin(name, state) for name, state in self._look().items()})
        if self.options.starting_timestamp is None and self.options.starting_offsets == "latest":
            self._unwritten = begin
        return begin

    def _begin(self, name: str, state: StreamSummary) -> StreamPosition:
        """Return where a stream without a position begins. The durable consumer must exist before that is decided."""
        if self.options.durable is not None:
            check_start(state, self.options)
            if self.progress.open(state, fresh=True):
                state = self._look([name])[name]
        # Nothing is committed yet: Spark asks again where to begin if its first batch fails.
        return starting_position(self.options, self._probes[name], state)

    # Progress on the server

    def commit(self, end: Offset) -> None:
        """Move the durable consumers (option durable) to `end`: everything before is in the sink."""
        for name, position in end.streams.items():
            state = self._states.get(name)
            if state is not None and position.created == state.created:
                self.progress.commit(state, position.next)

    # Streaming

    def prepare_available_now(self) -> None:
        """Fix the end of a query with `Trigger.AvailableNow`: what the streams hold now."""
        self._target = self.report_latest()

    def report_latest(self) -> Offset:
        """Return where the query would be if it had read everything, for its progress. The limits do not apply."""
        states = self._look(reporting=True)
        return Offset(self._each(lambda name: self._last_matching(name, states[name]), states))

    def latest(self, start: Offset | None, *, limited: bool) -> Offset:
        """Return the end of the next micro-batch, `start` itself when there is nothing to read (yet).

        With `limited` the options per trigger apply. With a `start` of None the batch reads everything: Spark 4.0 and
        4.1 do not pass it, and ask for the first end before the start.
        """
        if start is None:
            # The end of the stream, because an offset must never go back.
            return Offset({name: latest_position(state) for name, state in self._look().items()})
        self._check_streams(start)
        return _twice(lambda: self._latest(start, limited=limited))

    def _latest(self, start: Offset, *, limited: bool) -> Offset:
        with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="spark-jetstream-plan") as pool:
            # In one round trip with the states: after each batch the last message read is another one.
            asked = {
                name: pool.submit(self._probes[name].stored_at, start.streams[name].next - 1)
                for name, state in self._states.items()
                if name in start.streams and not state.term and self._is_new(name, start.streams[name])
            }
            states = self._look(positions=start.streams)
        read = self._last_read(start, states, {name: answer.result() for name, answer in asked.items()})
        known = {name: self._continued(name, start, states[name], read.get(name)) for name in states}

        def look(name: str) -> tuple[StreamPosition, int]:
            end = self._end(name, known[name], states[name])
            return end, self._backlog(name, known[name], end, states[name])

        found = self._each(look, states)
        # A deleted stream keeps its position, which shows that the one that is created later is another.
        deleted = {name: start.streams[name] for name in self._probes if name not in states}
        known |= deleted
        found |= {name: (position, 0) for name, position in deleted.items()}
        ends = {name: end for name, (end, _) in found.items()}
        backlogs = {name: backlog for name, (_, backlog) in found.items()}
        moved = any(position != start.streams.get(name) for name, position in known.items())
        if start == self._unwritten:
            # Spark stores where a batch ends, and not where the first one begins, which is planned again after a crash.
            # A first batch that ends where it begins stores the beginning.
            self._unwritten = None
            return start
        available = sum(backlogs.values())
        if moved or not self._admitted(available, limited):
            idle = {} if moved else {name: end for name, end in ends.items() if not backlogs[name]}
            end = Offset({**known, **idle})
            if end == start:
                # No batch follows, and with `availableNow` nothing at all: Spark ends this process.
                self.progress.settle()
            return end
        self._waiting_since = None
        if limited:
            ends = self._within_limits(known, ends, backlogs, states)
        return Offset(ends)

    def _check_streams(self, offset: Offset) -> None:
        """Refuse the offset of another query, and log which streams the query no longer reads."""
        gone = [name for name in offset.streams if name not in self._probes]
        if gone and len(gone) == len(offset.streams):
            kind = "stream" if self.options.streams else "bucket" if self.options.bucket else "objectBucket"
            raise OptionError(
                f"the checkpoint is of another query: it has {', '.join(gone)}, and option {kind} names "
                f"{', '.join(self.options.read_streams)}; correct the option, or start the query with a new checkpoint",
                option=kind,
            )
        for name in gone:
            if name not in self._warned:
                self._warned.add(name)
                log.warning("stream %s is in the checkpoint and not in option stream: its position is dropped", name)

    def _continued(self, name: str, start: Offset, state: StreamSummary, read: Evidence | None) -> StreamPosition:
        """Return the position of `start` if the stream still continues there, and where to continue otherwise."""
        position = start.streams.get(name)
        if position is None:
            return self._begin(name, state)
        self.progress.hold(state)
        following = self._checked(position, state, read)
        # When a batch begins, everything before it is in the sink. Spark calls `commit` later, when the next batch has
        # rows, and never for the last batch of a run.
        if following == position:
            self.progress.commit(state, position.next)
        return following

    def _checked(self, position: StreamPosition, state: StreamSummary, read: Evidence | None) -> StreamPosition:
        evidence = replace(
            read or Evidence(),
            matched_up_to=self._matched_up_to(position, state),
            held=self.progress.holds(state, position.next),
        )
        filtered, bucket = bool(self.options.subjects), not self.options.streams
        following, missing = check_continuity(position, state, evidence, filtered=filtered, bucket=bucket)
        if following == position and read is not None:
            self._verified[state.name] = position, state
        if missing is not None and following == position:
            # Logged once.
            log.warning("%s", missing)
            self._unmatched[state.name, state.created] = position.next, state.first_seq
        elif missing is not None and self.options.fail_on_data_loss:
            raise DataLossError(f"{missing}; set failOnDataLoss=false to go on at sequence {following.next}")
        elif missing is not None:
            log.warning("%s; failOnDataLoss is false, so reading goes on at sequence %d", missing, following.next)
        return following

    def _last_read(
        self,
        start: Offset,
        states: Mapping[str, StreamSummary],
        known: Mapping[str, int | None],
        *,
        planned: bool = False,
    ) -> dict[str, Evidence]:
        """Look up the last message read of each stream that may have lost it since that was done before.

        `known` is the time of those that were looked up already, None if gone. With `planned` once is enough for each
        position: its batch was planned after that.
        """
        due = [name for name in states if self._is_due(start.streams.get(name), states[name], planned=planned)]
        return self._each(lambda name: self._look_up(start.streams[name], states[name], known), due)

    def _is_due(self, position: StreamPosition | None, state: StreamSummary, *, planned: bool) -> bool:
        if position is None or position.created != state.created or position.last_timestamp == 0:
            return False
        looked_up, then = self._verified.get(state.name, (None, state))
        if (state.last_seq, state.last_timestamp) == (position.next - 1, position.last_timestamp):
            # The state shows it, and there is nothing to read.
            self._verified[state.name] = position, state
            return False
        if looked_up is None or state.last_seq < position.next - 1:
            return True
        same_end = (state.last_seq, state.last_timestamp) == (then.last_seq, then.last_timestamp)
        if looked_up == position and (planned or same_end):
            return False
        return not state.term or state.term != then.term

    def _is_new(self, name: str, position: StreamPosition) -> bool:
        return position.last_timestamp > 0 and self._verified.get(name, (None,))[0] != position

    def _look_up(self, position: StreamPosition, state: StreamSummary, known: Mapping[str, int | None]) -> Evidence:
        """Return `Evidence.reread` and `Evidence.later` of a position."""
        last_read, probe = position.next - 1, self._probes[state.name]
        reread = known.get(state.name)
        if state.name not in known and state.first_seq <= last_read <= state.last_seq:
            reread = probe.stored_at(last_read)
        later = None if reread == position.last_timestamp else probe.first_of_all_after(position.last_timestamp + 1)
        return Evidence(reread=reread, later=later)

    def _last_matching(self, name: str, state: StreamSummary) -> StreamPosition:
        """Return the position behind the last message that matches (others make no batch); sequence 1 if none does."""
        # Of the filter ">" a server looks at the last sequence alone, and finds nothing if that message was deleted.
        if not self.options.subjects or ">" in self.options.subjects:
            return latest_position(state)
        message = self._probes[name].last()
        if message is None:
            return StreamPosition(1, state.created)
        return StreamPosition(message[0] + 1, state.created, message[1])

    def _end(self, name: str, position: StreamPosition, state: StreamSummary) -> StreamPosition:
        """Return how far the stream could be read now; never before `position`."""
        if self._target is not None:
            target = self._target.streams.get(name, position)
            behind = target.created != position.created or target.next <= position.next
            return position if behind else target
        looked_at = position.next, state.created, state.last_seq
        if state.last_seq < position.next or self._idle.get(name) == looked_at:
            return position
        end = self._last_matching(name, state)
        self._unmatched[name, state.created] = end.next, max(end.next, state.last_seq + 1)
        if end.next > position.next:
            return end
        self._idle[name] = looked_at
        return idle_position(position, state, held=self.progress.holds(state, position.next)) or position

    def _matched_up_to(self, position: StreamPosition, state: StreamSummary) -> int:
        """Return `Evidence.matched_up_to` of a position; 0 when the tail was lost since."""
        first, end = self._unmatched.get((state.name, state.created), (0, 0))
        return end if first <= position.next and end <= state.last_seq + 1 else 0

    def _backlog(self, name: str, position: StreamPosition, end: StreamPosition, state: StreamSummary) -> int:
        """Return how many messages wait, only as exactly as the limits need it."""
        options = self.options
        if end.next <= position.next:
            return 0
        first = max(position.next, state.first_kept)
        counted = options.max_messages_per_trigger or options.max_bytes_per_trigger or options.min_messages_per_trigger
        if options.subjects and end.next == self._matched_up_to(position, state) == state.last_seq + 1:
            return 0
        if not counted or not (options.subjects or state.num_deleted):
            return max(0, end.next - first)
        # Messages published between the answers raise the later ones; the mean takes half of them for the second.
        probe = self._probes[name]
        before, waiting, after = probe.pending(end.next), probe.pending(first), probe.pending(end.next)
        counted = max(0, waiting - (before + after) // 2)
        # Replicas that lag may count no messages where the end shows that there are some.
        return counted or (end.next - first if isinstance(probe, DirectProbe) else 0)

    def _admitted(self, available: int, limited: bool) -> bool:
        """Whether a batch starts now (``minMessagesPerTrigger``, ``maxTriggerDelay``)."""
        if available <= 0:
            self._waiting_since = None
            return False
        if self._waiting_since is None:
            self._waiting_since = self._clock()
        # With Trigger.AvailableNow and Trigger.Once no batch waits.
        if not limited or self._target is not None or available >= (self.options.min_messages_per_trigger or 1):
            return True
        return self._clock() - self._waiting_since >= self.options.max_trigger_delay

    def _within_limits(
        self,
        known: dict[str, StreamPosition],
        ends: dict[str, StreamPosition],
        backlogs: dict[str, int],
        states: dict[str, StreamSummary],
    ) -> dict[str, StreamPosition]:
        options = self.options
        shares = share(options.max_messages_per_trigger or sum(backlogs.values()), backlogs)
        if options.max_bytes_per_trigger:
            if options.object_bucket is not None:
                # An object has many messages, and only one of them is counted.
                states = {
                    name: replace(state, messages=self._probes[name].pending(state.first_kept))
                    for name, state in states.items()
                }
            waiting = {
                name: backlogs[name] * state.bytes // state.messages if state.messages else backlogs[name]
                for name, state in states.items()
            }
            for name, limit in share(options.max_bytes_per_trigger, waiting).items():
                shares[name] = min(shares[name], bytes_to_messages(limit, states[name]) if limit else 0)
        limited: dict[str, StreamPosition] = {}
        for name, end in ends.items():
            if backlogs[name] <= shares[name]:
                limited[name] = end
            elif shares[name] == 0:
                limited[name] = known[name]
            else:
                cut = limit_end(known[name].next, end.next, shares[name], self._probes[name], backlogs[name])
                limited[name] = end if cut.end == end.next else StreamPosition(cut.end, end.created, cut.last_timestamp)
        return limited

    # Ranges

    def ranges(
        self, start: Offset, end: Offset, states: Mapping[str, StreamSummary] | None = None
    ) -> list[SequenceRange]:
        """Return the tasks between two offsets: always the same messages. `states` are those the offsets come from."""
        self._check_streams(start)
        self._check_streams(end)
        wholes = {whole.stream: whole for whole in ranges_between(start, end, self.options.subjects)}
        for name in wholes:
            if name not in self._probes:
                raise OptionError(
                    f"the checkpoint has a batch with stream {name}, which the option stream does not name",
                    option="stream",
                )
        if states is None:
            begins = {
                name: at if at.created == wholes[name].created else StreamPosition(1, wholes[name].created)
                for name, at in start.streams.items()
                if name in wholes
            }
            return _twice(lambda: self._ranges(start, wholes, self._look(wholes, begins)))
        return self._ranges(start, wholes, states)

    def _ranges(
        self, start: Offset, wholes: Mapping[str, SequenceRange], found: Mapping[str, StreamSummary]
    ) -> list[SequenceRange]:
        read = self._last_read(start, found, {}, planned=True)
        left: dict[str, SequenceRange] = {}
        for name, whole in wholes.items():
            if name not in found:
                continue
            first = whole.first
            if start.streams[name].created == whole.created:
                position = self._continued(name, start, found[name], read.get(name))
                if position.created != whole.created or position.next >= whole.end:
                    continue
                first = max(first, position.next)
            left[name] = replace(whole, first=first)
        # All counts before the first cut: a stream's tasks depend on what the others hold.
        surveys = self._each(lambda name: self._survey(left[name], found[name]), left)
        tasks, most = shares(
            {name: survey.count for name, survey in surveys.items()},
            max_messages=self.options.max_messages_per_partition,
            min_partitions=self.options.min_partitions,
        )
        pieces = self._each(lambda name: self._split(surveys[name], found[name], tasks[name], most), left)
        return [piece for parts in pieces.values() for piece in parts]

    def _survey(self, whole: SequenceRange, state: StreamSummary) -> Survey:
        return Survey(whole, None if _dense(whole, state) else self._probes[whole.stream])

    def _split(self, survey: Survey, state: StreamSummary, tasks: int, most: int) -> list[SequenceRange]:
        options, whole, dense = self.options, survey.whole, _dense(survey.whole, state)
        pieces = split(survey, max_messages=most, tasks=tasks)
        largest = max((piece.count or 0 for piece in pieces), default=0)
        if largest > options.max_messages_per_partition:
            log.warning(
                "a batch of stream %s has so many messages that each of its %d tasks reads up to %d of them, more than "
                "option maxMessagesPerPartition says",
                whole.stream,
                len(pieces),
                largest,
            )
        direct = isinstance(self._probes[whole.stream], DirectProbe)
        read_with: ReadWith = "direct" if direct else "consumer"
        # A task must not report messages as lost that newer ones on their subject replace, or that only the replica
        # which counted them still had.
        keyed = state.max_msgs_per_subject > 0 or not options.streams
        uncounted = keyed or (direct and not dense)
        if options.read_with == "auto" and not direct and dense and not keyed and self._may_get(state, largest):
            read_with = "auto"
        return [replace(piece, read_with=read_with, count=None if uncounted else piece.count) for piece in pieces]

    def _may_get(self, state: StreamSummary, messages: int) -> bool:
        """Whether tasks of so many messages read this stream, which has no gaps, with Direct Gets.

        A consumer is work for each server of a cluster, and Direct Gets are slower for many messages.
        """
        size = messages * state.bytes // max(1, state.messages)
        if not (state.clustered and state.allow_direct and state.messages >= 2):
            return False
        if messages > _GET_AT_MOST or size > self.options.fetch_max_bytes:
            return False
        if state.name not in self._gets:
            self._gets[state.name] = self._can_get(state)
        return self._gets[state.name]

    def _can_get(self, state: StreamSummary) -> bool:
        """Whether this account gets the last two messages: where it gets one, its import may allow one reply alone."""
        once, end = Requests(self._reconnected, 0.0), state.last_seq + 1
        part = SequenceRange(state.name, end - 2, end, 2, state.created)
        settings = PullSettings(
            2, self.options.fetch_max_bytes, self.options.fetch_timeout, 0.0, fail_on_data_loss=True
        )
        try:
            DirectProbe(once, state.name, ()).peek(state.last_seq)
            return sum(len(run) for run in read_direct(self._reconnected, part, settings, "plan")) == 2
        except JetStreamError as error:
            log.info("stream %s is read with consumers: %s", state.name, error)
            return False

    def batch_ranges(self) -> list[SequenceRange]:
        """Return the tasks of a batch read."""
        states = self._look()

        def bounds(name: str) -> tuple[StreamPosition, StreamPosition]:
            probe, state = self._probes[name], states[name]
            start = starting_position(self.options, probe, state)
            return start, ending_position(self.options, probe, state, start)

        found = self._each(bounds)
        starts, ends = ({name: both[side] for name, both in found.items()} for side in (0, 1))
        return self.ranges(Offset(starts), Offset(ends), states)


def _dense(whole: SequenceRange, state: StreamSummary) -> bool:
    """Whether all messages of a range are read, and none of its sequences is missing."""
    kept = state.first_kept <= whole.first and whole.end <= state.last_seq + 1
    return kept and not whole.subjects and state.num_deleted == 0


def _twice(plan: Callable[[], T]) -> T:
    """Return what `plan` returns. Where a stream was deleted meanwhile, the second time begins with a look at that."""
    try:
        return plan()
    except StreamNotFound:
        return plan()


# Buckets: the layouts are those of ADR-8 and ADR-20


def find_bucket(requests: Requests, options: SourceOptions) -> tuple[StreamSummary, tuple[str, ...]]:
    """Return the state of the stream of the options' bucket, and the subject filters of the read (empty: all).

    Sends one STREAM.INFO. Raises `OptionError` if there is no such bucket.
    """
    key_value = options.bucket is not None
    option, kind = ("bucket", "Key-Value bucket") if key_value else ("objectBucket", "Object Store bucket")
    stream = options.read_streams[0]
    name = options.named(stream)
    context = f"read {kind} {name} (option {option})"
    try:
        body = requests.ask(jsapi.STREAM_INFO, stream, context=context)
    except StreamNotFound:
        hint = nearest_stream(requests.connect, [stream], stream.removesuffix(name))
        text = f"there is no {kind} {name} (option {option}): no stream {stream}{hint}"
        raise OptionError(text, option=option) from None
    state = stream_summary(body, context)
    subjects = _subjects(body.get("config", {}), state, name, options.keys if key_value else None)
    if subjects is None:
        raise OptionError(f"stream {stream} is no {kind} (option {option}): read it with option stream", option=option)
    return state, subjects


def _subjects(
    config: dict[str, Any], state: StreamSummary, name: str, keys: Sequence[str] | None
) -> tuple[str, ...] | None:
    """Return the filters of a bucket, None if the stream is none. ``keys``: of a Key-Value bucket, empty for all."""
    begin = "$O" if keys is None else "$KV"
    mirrored = config.get("mirror") or {}
    if mirrored:
        is_bucket = str(mirrored.get("name", "")).startswith("OBJ_" if keys is None else "KV_")
    else:
        # A bucket that is filled from others may have no subjects of its own.
        own = all(subject.startswith(f"{begin}.{name}.") for subject in state.subjects)
        is_bucket = own and bool(state.subjects or config.get("sources"))
        is_bucket = is_bucket and (keys is None or state.max_msgs_per_subject > 0)
    if not is_bucket:
        return None
    # Messages from another bucket keep the subjects they have there, and that bucket may have them from a third one.
    prefix = f"{begin}.{'*' if mirrored or config.get('sources') else name}"
    return (f"{prefix}.M.>",) if keys is None else tuple(f"{prefix}.{key}" for key in keys)


def first_requests(connect: Connect, options: SourceOptions) -> Requests:
    """Return the requests to a server not reached before: it is more likely the wrong one than one that restarts."""
    return Requests(connect, min(options.connection.connect_timeout, options.connection.retry_timeout))
