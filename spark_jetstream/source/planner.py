"""Plans a query on Spark's driver: where it starts, where a micro-batch ends, and which ranges its tasks read.

Knows no class of Spark. A `StreamPlan` has what concerns one stream; what they have in common is here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple, TypeVar

from spark_jetstream.client.requests import Connect, Requests
from spark_jetstream.errors import DataLossError, OptionError, StreamNotFound
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.source.admission import bytes_to_messages, limit_end, share
from spark_jetstream.source.continuity import Evidence, latest_position
from spark_jetstream.source.offsets import Cuts, Offset, StreamPosition
from spark_jetstream.source.positions import ending_position, starting_position
from spark_jetstream.source.progress import LazyCommit, Progress
from spark_jetstream.source.ranges import Split, count_again, cut_at, ranges_between, shares
from spark_jetstream.source.selection import Selection
from spark_jetstream.source.stream_plan import StreamPlan

log = logging.getLogger(__name__)

T = TypeVar("T")

_AT_A_TIME = 8  # streams of a query about which the server is asked at the same time


class _Waiting(NamedTuple):
    """The `backlog` messages of one stream, from `start` to `end`, that wait for the next micro-batch."""

    start: StreamPosition
    end: StreamPosition
    backlog: int


class Planner:
    """Plans one query. All methods raise what the connection and the server raise, and `OptionError`.

    The options of a bucket must have the filters of its stream. `clock` gives seconds, for waiting times. Of its many
    methods a reader calls seven, each of which is over all streams of the query; what concerns one is in `StreamPlan`.
    """

    def __init__(self, options: SourceOptions, connect: Connect, clock: Callable[[], float] = time.monotonic) -> None:
        self.options = options
        self._clock = clock
        self._requests = requests = Requests(
            connect, options.connection.retry_timeout, first=options.connection.connect_timeout
        )
        self.progress = LazyCommit(None if options.durable is None else Progress(requests, options))
        self._plans: dict[str, StreamPlan] = {}
        self._take_up(options.read_streams)
        self._selection = Selection(options, requests, clock) if options.finds_streams else None
        # A beginning that no batch has stored yet.
        self._unwritten: Offset | None = None
        # The batch that `latest` has decided last, and what was counted for its cuts.
        self._decided: tuple[tuple[Offset, Offset] | None, Mapping[str, Split]] = None, {}
        self._dropped: set[str] = set()  # streams of the checkpoint that are logged as no longer read
        self._met = False  # whether the query is new, or this run has seen a stream of its offset that was found
        self._target: Offset | None = None
        self._waiting_since: float | None = None

    def _take_up(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._plans:
                self._plans[name] = StreamPlan(name, self.options, self._requests, self.progress)

    def _find(self, known: Iterable[str] = (), *, complete: bool = False) -> None:
        """Take up the streams that streamPattern and streamMetadata choose now, and let go of those that they do not.

        `known` are the streams of the query's offset; `complete` is that of `Selection.look`.
        """
        selection = self._selection
        if selection is None:
            return
        if complete or self._target is None:
            selection.look(complete=complete)
        names = {name for name in known if selection.may_have(name)} - selection.others | selection.chosen
        for name in sorted(self._plans.keys() - names):
            if name in selection.others:
                log.warning("stream %s does not match any more: the query forgets it", name)
            del self._plans[name]
        self._take_up(sorted(names))

    def _look(
        self, positions: Mapping[str, StreamPosition], *, only: bool = False, reporting: bool = False
    ) -> dict[str, StreamPlan]:
        """Ask the server for the states of all streams in one go, or `only` of those with a position.

        `positions` are those of the query, see `StreamPlan.see`. With failOnDataLoss=false the result lacks streams
        that have one and were deleted since; with `reporting` all that do not exist. Streams that were found
        (`_find`) and deleted leave the query. With `only` the positions are where a batch ends.
        """
        asked = {name: plan for name, plan in self._plans.items() if name in positions or not only}
        replies = self._requests.streams({name: plan.context for name, plan in asked.items()})

        def see(plan: StreamPlan) -> StreamNotFound | None:
            try:
                plan.see(replies[plan.name], positions.get(plan.name))
            except StreamNotFound as error:
                return error
            return None

        missing = {name: error for name, error in self._by_stream(see, asked).items() if error is not None}
        known = [] if self._selection is None or reporting or only else sorted(asked.keys() & positions)
        if known and missing.keys() >= set(known) and self.options.fail_on_data_loss and not self._met:
            raise DataLossError(
                f"none of the streams in the checkpoint exists ({', '.join(known)}): is this another server, account "
                "or domain? If they were deleted, set failOnDataLoss=false to go on without them"
            )
        self._met |= bool(known)
        for name, error in missing.items():
            if self._selection is not None:
                if not reporting:
                    self._leave(asked[name], positions.get(name), planned=only)
            elif self.options.fail_on_data_loss or (name not in positions and not reporting):
                raise error
            else:
                asked[name].note_deleted()
        return {name: plan for name, plan in asked.items() if name not in missing}

    def _leave(self, plan: StreamPlan, position: StreamPosition | None, *, planned: bool) -> None:
        """Let go of a stream that was deleted. `planned`: before a batch that ends at the position was read."""
        if position is not None and (planned or plan.has_unread(position)):
            what = f"stream {plan.name} was deleted, and had messages that were not read"
            if self.options.fail_on_data_loss:
                raise DataLossError(f"{what}; set failOnDataLoss=false to go on without them")
            log.warning("%s; failOnDataLoss is false, so the query goes on without them", what)
        elif position is not None:
            log.warning("stream %s was deleted: the query forgets it, and has read all that it knew of", plan.name)
        del self._plans[plan.name]

    def _begun(
        self, offset: Offset, streams: Mapping[str, StreamPosition], cuts: Mapping[str, Cuts] | None = None
    ) -> Offset:
        """Return an offset with those of the `streams`, if they are found ones, that it lacks, each at sequence 1.

        Without a pattern the streams are found ones that the batch has `cuts` of: it was planned with a pattern.
        """
        found = streams if self._selection is not None else cuts or {}
        new = {name: StreamPosition(1, streams[name].created) for name in found if name not in offset.streams}
        return Offset({**offset.streams, **new}, offset.cuts) if new else offset

    def _by_stream(self, ask: Callable[[StreamPlan], T], names: Iterable[str]) -> dict[str, T]:
        """Return what `ask` returns for each stream. It runs for several streams at a time.

        Raises what it raises for the first of them.
        """
        plans = {name: self._plans[name] for name in names}
        if len(plans) <= 1:
            return {name: ask(plan) for name, plan in plans.items()}
        pool = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="spark-jetstream-plan")
        try:
            return dict(zip(plans, pool.map(ask, plans.values()), strict=True))
        finally:
            pool.shutdown(cancel_futures=True)

    # Positions

    def initial(self) -> Offset:
        """Return where the query starts, by `startingTimestamp` or `startingOffsets`."""
        self._find(complete=True)
        begin = _twice(lambda: Offset({name: plan.begin() for name, plan in self._look({}).items()}))
        # Spark asks once more when it plans the tasks of the first batch.
        latest = self.options.starting_timestamp is None and self.options.starting_offsets == "latest"
        if latest and not self._met:
            self._unwritten = begin
        self._met = True
        return begin

    # Progress on the server

    def commit(self, end: Offset) -> None:
        """Move the durable consumers (option durable) to `end`: everything before is in the sink."""
        for name, position in end.streams.items():
            if name in self._plans:
                self._plans[name].commit(position)

    # Streaming

    def prepare_available_now(self) -> None:
        """Fix the end of a query with `Trigger.AvailableNow`: what the streams hold now."""
        self._find()
        self._target = self.report_latest()

    def report_latest(self) -> Offset:
        """Return where the query would be if it had read everything, for its progress. The limits do not apply."""
        return Offset(self._by_stream(StreamPlan.last_matching, self._look({}, reporting=True)))

    def latest(self, start: Offset | None, *, limited: bool) -> Offset:
        """Return the end of the next micro-batch and its cuts, `start` itself when there is nothing to read (yet).

        With `limited` the options per trigger apply. With a `start` of None the batch reads everything: Spark 4.0 and
        4.1 do not pass it, and ask for the first end before the start. Only `ranges` can cut that batch.
        """
        if start is None:
            self._find(complete=True)
            # The end of the stream, because an offset must never go back.
            return Offset({name: latest_position(plan.state) for name, plan in self._look({}).items()})
        self._resume(start)
        end = _twice(lambda: self._latest(start, limited=limited))
        # Spark compares texts, and would make a batch of other cuts.
        return start if end == start else end

    def _latest(self, start: Offset, *, limited: bool) -> Offset:
        self._find(start.streams)
        with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="spark-jetstream-plan") as pool:
            # In one round trip with the states: after each batch the last message read is another one.
            asked = {
                name: pool.submit(plan.probe.stored_at, start.streams[name].next - 1)
                for name, plan in self._plans.items()
                if name in start.streams and plan.will_be_due(start.streams[name])
            }
            found = self._look(start.streams)
        begun = self._begun(start, {name: latest_position(plan.state) for name, plan in found.items()})
        read = self._last_read(begun, found, {name: asked[name].result() for name in asked if name in found})
        known = {name: plan.continued(begun.streams.get(name), read.get(name)) for name, plan in found.items()}

        def look(plan: StreamPlan) -> _Waiting:
            end = self._end(plan, known[plan.name])
            return _Waiting(known[plan.name], end, plan.backlog(known[plan.name], end))

        waiting = self._by_stream(look, found)
        # A deleted stream keeps its position, which shows that the one that is created later is another.
        deleted = {name: start.streams[name] for name in self._plans if name not in found}
        waiting |= {name: _Waiting(position, position, 0) for name, position in deleted.items()}
        starts = Offset({name: each.start for name, each in waiting.items()})
        unwritten, self._unwritten = self._unwritten, None
        if start == unwritten:
            # Spark stores where a batch ends, and not where the first one begins, which is planned again after a crash.
            # A first batch that ends where it begins stores the beginning.
            return start
        if not all(_follows(each.start, begun.streams.get(name)) for name, each in waiting.items()):
            return starts
        if not self._admitted(sum(each.backlog for each in waiting.values()), limited):
            ends = {name: each.start if each.backlog else each.end for name, each in waiting.items()}
        elif limited:
            ends = self._within_limits(waiting)
        else:
            ends = {name: each.end for name, each in waiting.items()}
        # What was counted as nothing may be something: also such a batch must run again with the same tasks.
        splits = self._split(self._wholes(starts, Offset(ends)))
        end = Offset(ends, {name: split.cuts for name, split in splits.items()})
        if end == start:
            # No batch follows, and with `availableNow` nothing at all: Spark ends this process.
            self.progress.settle()
        self._decided = (starts, end), splits
        return end

    def _resume(self, offset: Offset) -> None:
        """Refuse the offset of another query, and log which streams the query no longer reads.

        A query that has an offset has reached its server before: one that does not answer now has an outage.
        """
        self._requests.first = None
        ours = self._plans.__contains__ if self._selection is None else self._selection.may_have
        gone, kind = [name for name in offset.streams if not ours(name)], self.options.chosen_by
        # Only a query that finds its streams may have none.
        if len(gone) == len(offset.streams) and (gone or self._selection is None):
            had, names = ", ".join(gone) or "no stream", ", ".join(self.options.read_streams) or "none of them"
            raise OptionError(
                f"the checkpoint is of another query: it has {had}, and option {kind} names {names}; correct the "
                "option, or start the query with a new checkpoint",
                option=kind,
            )
        for name in gone:
            if name not in self._dropped:
                self._dropped.add(name)
                log.warning("stream %s is in the checkpoint and not in option %s: its position is dropped", name, kind)

    def _last_read(
        self, start: Offset, found: Mapping[str, StreamPlan], known: Mapping[str, int | None], *, planned: bool = False
    ) -> dict[str, Evidence]:
        """Look up the last message read of each stream that may have lost it (`StreamPlan.is_due`)."""
        due = [name for name, plan in found.items() if plan.is_due(start.streams.get(name), planned=planned)]
        return self._by_stream(lambda plan: plan.look_up(start.streams[plan.name], known), due)

    def _end(self, plan: StreamPlan, position: StreamPosition) -> StreamPosition:
        """Return how far the stream could be read now, or up to the target; never before `position`."""
        if self._target is None:
            return plan.end(position)
        target = self._target.streams.get(plan.name, position)
        if target.created != position.created:
            return position
        if target.next <= position.next:
            return plan.end(position, later=False)
        lost = plan.state.followed and target.next > plan.state.last_seq + 1  # the tail, since the target was fixed
        return plan.end(position) if lost else target

    def _admitted(self, available: int, limited: bool) -> bool:
        """Whether a batch starts now (``minMessagesPerTrigger``, ``maxTriggerDelay``)."""
        if available <= 0:
            self._waiting_since = None
            return False
        if self._waiting_since is None:
            self._waiting_since = self._clock()
        # With Trigger.AvailableNow and Trigger.Once no batch waits.
        enough = not limited or self._target is not None or available >= (self.options.min_messages_per_trigger or 1)
        if not enough and self._clock() - self._waiting_since < self.options.max_trigger_delay:
            return False
        self._waiting_since = None
        return True

    def _within_limits(self, waiting: Mapping[str, _Waiting]) -> dict[str, StreamPosition]:
        options = self.options
        backlogs = {name: each.backlog for name, each in waiting.items()}
        most = share(options.max_messages_per_trigger or sum(backlogs.values()), backlogs)
        if options.max_bytes_per_trigger:
            states = {name: self._plans[name].state for name, backlog in backlogs.items() if backlog}
            if options.object_bucket is not None:
                # An object has many messages, and only one of them is counted.
                states = {
                    name: replace(state, messages=self._plans[name].probe.pending(state.first_kept))
                    for name, state in states.items()
                }
            waiting_bytes = {
                name: -(-backlogs[name] * state.bytes // state.messages) if state.messages else backlogs[name]
                for name, state in states.items()
            }
            for name, limit in share(options.max_bytes_per_trigger, waiting_bytes).items():
                most[name] = min(most[name], bytes_to_messages(limit, states[name]) if limit else 0)
        limited: dict[str, StreamPosition] = {}
        for name, (start, end, backlog) in waiting.items():
            if backlog <= most[name]:
                limited[name] = end
            elif most[name] == 0:
                limited[name] = start
            else:
                cut, read_at = limit_end(start.next, end.next, most[name], self._plans[name].probe, backlog)
                limited[name] = end if cut == end.next else StreamPosition(cut, end.created, read_at)
        return limited

    # Ranges

    def ranges(self, start: Offset, end: Offset) -> list[SequenceRange]:
        """Return the tasks between two offsets: always the same messages, and in the same tasks if `end` has cuts.

        A task of these whose messages are gone has an empty range.
        """
        self._resume(start)
        self._resume(end)
        start = self._begun(start, end.streams, end.cuts)
        wholes = self._wholes(start, end)
        if self._selection is not None:
            self._take_up(filter(self._selection.may_have, wholes))
        for name in wholes:
            if name not in self._plans:
                kind = self.options.chosen_by
                raise OptionError(
                    f"the checkpoint has a batch with stream {name}, which the option {kind} does not name", option=kind
                )
        # A state without the end of the batch must come from the leader.
        ends = {name: end.streams[name] for name in start.streams if name in wholes}
        return _twice(lambda: self._ranges(start, end, wholes, self._look(ends, only=True)))

    def _wholes(self, start: Offset, end: Offset) -> dict[str, SequenceRange]:
        return {whole.stream: whole for whole in ranges_between(start, end, self.options.subjects)}

    def _ranges(
        self, start: Offset, end: Offset, wholes: Mapping[str, SequenceRange], found: Mapping[str, StreamPlan]
    ) -> list[SequenceRange]:
        read = self._last_read(start, found, {}, planned=True)

        def left(name: str, whole: SequenceRange) -> int:
            """Return the first sequence of a range that the stream still has."""
            if name not in found:
                return whole.end
            if start.streams[name].created != whole.created:
                return whole.first
            begin = start.streams[name]
            position = found[name].continued(begin, read.get(name))
            if position.created != whole.created or position.next < begin.next:
                # It lost its tail: these sequences have no messages, or others, which a later batch reads.
                return whole.end
            return max(whole.first, position.next)

        def kept(task: SequenceRange) -> SequenceRange:
            """Leave out a task past the end of a stream that lost its tail (`durable.PAST_THE_END`)."""
            past = task.stream in found and task.first > found[task.stream].state.last_seq + 1
            return replace(task, first=task.end, count=None) if past else task

        rest = {name: kept(replace(whole, first=min(left(name, whole), whole.end))) for name, whole in wholes.items()}
        counted = self._decided[1] if self._decided[0] == (start, end) else {}
        splits = {
            name: split
            for name, split in counted.items()
            if split.cuts == end.cuts.get(name) and rest[name] == wholes[name]
        }
        others = {
            name: replace(whole, end=min(whole.end, found[name].state.last_seq + 1))
            for name, whole in rest.items()
            # Without cuts a range that lies past the end has no task, and none that could be cut. A batch that has cuts
            # of other streams alone reads nothing of this one: what was there had gone before.
            if whole.width
            and name not in splits
            and (name in end.cuts if end.cuts else whole.first <= found[name].state.last_seq)
        }
        splits |= self._split(others, end.cuts)
        # What went before the server counted is no message that a task misses.
        again = {
            name: start.streams[name]
            for name, whole in others.items()
            if start.streams[name].created == whole.created and not found[name].is_dense(whole)
        }
        for name, plan in self._look({name: end.streams[name] for name in again}, only=True).items():
            plan.continued(again[name], read.get(name))
        return [kept(task) for task in self._tasks(rest, splits, end.cuts)]

    def _split(self, wholes: Mapping[str, SequenceRange], cuts: Mapping[str, Cuts] | None = None) -> dict[str, Split]:
        """Cut ranges that are not empty into tasks, at `cuts` where these are decided."""
        decided = cuts or {}
        # All counts before the first cut: a stream's tasks depend on what the others hold.
        surveys = self._by_stream(lambda plan: plan.survey(wholes[plan.name]), wholes)
        tasks, most = shares(
            {name: survey.count for name, survey in surveys.items() if name not in decided},
            max_messages=self.options.max_messages_per_partition,
            min_partitions=self.options.min_partitions,
        )

        def split(plan: StreamPlan) -> Split:
            survey = surveys[plan.name]
            if plan.name in decided:
                return count_again(survey, decided[plan.name])
            return plan.split(survey, tasks[plan.name], most)

        return self._by_stream(split, wholes)

    def _tasks(
        self, wholes: Mapping[str, SequenceRange], splits: Mapping[str, Split], cuts: Mapping[str, Cuts]
    ) -> list[SequenceRange]:
        tasks = self._by_stream(lambda plan: plan.tasks(wholes[plan.name], splits[plan.name]), splits)
        gone = {name: Split(cuts[name], [None] * (len(cuts[name]) // 2)) for name in cuts if name not in tasks}
        tasks |= {name: cut_at(wholes[name], split) for name, split in gone.items()}
        return [task for name in sorted(tasks) for task in tasks[name]]

    def batch_ranges(self) -> list[SequenceRange]:
        """Return the tasks of a batch read."""
        self._find(complete=True)
        return _twice(self._batch_ranges)

    def _batch_ranges(self) -> list[SequenceRange]:
        def bounds(plan: StreamPlan) -> tuple[StreamPosition, StreamPosition]:
            start = starting_position(self.options, plan.probe, plan.state)
            return start, ending_position(self.options, plan.probe, plan.state, start)

        found = self._by_stream(bounds, self._look({}))
        starts, ends = ({name: both[side] for name, both in found.items()} for side in (0, 1))
        wholes = self._wholes(Offset(starts), Offset(ends))
        return self._tasks(wholes, self._split(wholes), {})


def _follows(following: StreamPosition, position: StreamPosition | None) -> bool:
    """Whether reading from one position on continues at the other: no message that is still there lies between them."""
    return position is not None and position.created == following.created and position.next <= following.next


def _twice(plan: Callable[[], T]) -> T:
    """Return what `plan` returns. Where a stream was deleted meanwhile, the second time begins with a look at that."""
    try:
        return plan()
    except StreamNotFound:
        return plan()
