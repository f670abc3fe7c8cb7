"""Plans a query on Spark's driver: where it starts, where a micro-batch ends, and which ranges its tasks read.

Knows no class of Spark. A `StreamPlan` has what concerns one stream; what they have in common is
here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NoReturn, TypeVar

from spark_jetstream.client.requests import Connect, Requests
from spark_jetstream.errors import DataLossError, OptionError, StreamNotFound
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.source.admission import share
from spark_jetstream.source.continuity import Evidence, latest_position
from spark_jetstream.source.durable.lazy_commit import LazyCommit
from spark_jetstream.source.durable.progress import Progress
from spark_jetstream.source.kinds.choice import kind_of
from spark_jetstream.source.limits import PLAN_LIMITS, PlanLimits
from spark_jetstream.source.offsets import Cuts, Offset, StreamPosition
from spark_jetstream.source.positions import ending_position
from spark_jetstream.source.ranges import Split, cut_at, ranges_between, shares
from spark_jetstream.source.selection import Selection
from spark_jetstream.source.splits import count_again
from spark_jetstream.source.stream_batch import (
    BatchBytes,
    CountedRange,
    PlannedRange,
    StreamBatch,
)
from spark_jetstream.source.stream_plan import StreamPlan

log = logging.getLogger(__name__)

T = TypeVar("T")

_AT_A_TIME = 8  # streams of a query about which the server is asked at the same time


class Planner:
    """Plans one query. All methods raise what the connection and the server raise, and `OptionError`.

    The options of a bucket must have the filters of its stream. `clock` gives seconds, for waiting
    times. A reader calls seven of the methods, each of which is about all streams of the query;
    `StreamPlan` is about one.
    """

    def __init__(
        self,
        options: SourceOptions,
        connect: Connect,
        clock: Callable[[], float] = time.monotonic,
        *,
        limits: PlanLimits = PLAN_LIMITS,
    ) -> None:
        self.options = options
        self._limits = limits
        self._kind = kind_of(options)
        self._clock = clock
        self._requests = requests = Requests(
            connect, options.connection.retry_timeout, first=options.connection.connect_timeout
        )
        progress = None
        if options.durable is not None:
            progress = Progress(requests, options, longest=limits.longest)
        self.progress = LazyCommit(progress)
        self._plans: dict[str, StreamPlan] = {}
        self._take_up(options.read_streams)
        self._selection: Selection | None = None
        if options.finds_streams:
            self._selection = Selection(options, requests, clock, find_every=limits.find_every)
        # A beginning that no batch has stored yet.
        self._unwritten: Offset | None = None
        # The end of the batch that `latest` has decided last, and what was counted for its cuts.
        self._decided: Offset | None = None
        self._counted: Mapping[str, CountedRange] = {}
        self._dropped: set[str] = (
            set()
        )  # streams of the checkpoint that are logged as no longer read
        # whether the query is new, or this run has seen a stream of its offset that was found
        self._met = False
        self._target: Offset | None = None
        self._waiting_since: float | None = None

    def _take_up(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._plans:
                self._plans[name] = StreamPlan(
                    name,
                    self._kind,
                    self._requests,
                    self.progress,
                    longest=self._limits.longest,
                )

    def _find(self, known: Iterable[str] = (), *, complete: bool = False) -> None:
        """Take up the streams that streamPattern and streamMetadata choose now, and let go of all others.

        `known` are the streams of the query's offset; `complete` is that of `Selection.look`.
        """
        selection = self._selection
        if selection is None:
            return
        if complete or self._target is None:
            selection.look(complete=complete)
        names = {
            name for name in known if selection.may_have(name)
        } - selection.others | selection.chosen
        for name in sorted(self._plans.keys() - names):
            if name in selection.others:
                log.warning("stream %s does not match any more: the query forgets it", name)
            del self._plans[name]
        self._take_up(sorted(names))

    def _look(
        self,
        positions: Mapping[str, StreamPosition],
        *,
        only: bool = False,
        reporting: bool = False,
    ) -> dict[str, StreamPlan]:
        """Ask the server for the states of all streams in one go, or `only` of streams with a position.

        `positions` are those of the query, see `StreamPlan.see`. With failOnDataLoss=false the
        result lacks streams that have one and were deleted since; with `reporting` all that do not
        exist. Streams that were found (`_find`) and deleted leave the query. With `only` the
        positions are where a batch ends.
        """
        asked = {name: plan for name, plan in self._plans.items() if name in positions or not only}
        found, missing = self._see(asked, positions)
        if self._selection is None:
            for name, error in missing.items():
                self._miss(asked[name], error, expected=reporting or name in positions)
        elif not reporting:
            if not only:
                self._meet(sorted(asked.keys() & positions), missing)
            for name in missing:
                self._leave(asked[name], positions.get(name), planned=only)
        return found

    def _see(
        self, plans: Mapping[str, StreamPlan], positions: Mapping[str, StreamPosition]
    ) -> tuple[dict[str, StreamPlan], dict[str, StreamNotFound]]:
        """Give each plan the state of its stream, and return the plans of streams that exist.

        Also the error of each stream that does not.
        """
        replies = self._requests.streams({name: plan.context for name, plan in plans.items()})

        def see(plan: StreamPlan) -> StreamNotFound | None:
            try:
                plan.see(replies[plan.name], positions.get(plan.name))
            except StreamNotFound as error:
                return error
            return None

        errors = self._by_stream(see, plans)
        missing = {name: error for name, error in errors.items() if error is not None}
        return {name: plan for name, plan in plans.items() if name not in missing}, missing

    def _meet(self, known: Sequence[str], missing: Collection[str]) -> None:
        """Check that this is the server of the checkpoint, once in a run.

        `known` are the found streams that the checkpoint has, `missing` the streams that do not
        exist. When none of the known ones exists, they were all deleted, or this is another server.
        """
        if not known:
            return
        none_exists = set(known).issubset(missing)
        if none_exists and not self._met and self.options.fail_on_data_loss:
            raise DataLossError(
                f"none of the streams in the checkpoint exists ({', '.join(known)}): is this "
                "another server, account or domain? If they were deleted, set failOnDataLoss=false "
                "to go on without them"
            )
        self._met = True

    def _miss(self, plan: StreamPlan, error: StreamNotFound, *, expected: bool) -> None:
        """Raise the error of a stream that an option names, or with failOnDataLoss=false note that it was deleted.

        `expected`: the stream was there before, so somebody has deleted it.
        """
        if self.options.fail_on_data_loss or not expected:
            raise error
        plan.note_deleted()

    def _leave(self, plan: StreamPlan, position: StreamPosition | None, *, planned: bool) -> None:
        """Let go of a stream that was deleted.

        `planned`: before a batch that ends at the position was read.
        """
        if position is not None and (planned or plan.has_unread(position)):
            what = f"stream {plan.name} was deleted, and had messages that were not read"
            if self.options.fail_on_data_loss:
                raise DataLossError(f"{what}; set failOnDataLoss=false to go on without them")
            log.warning("%s; failOnDataLoss is false, so the query goes on without them", what)
        elif position is not None:
            log.warning(
                "stream %s was deleted: the query forgets it, and has read all that it knew of",
                plan.name,
            )
        if not planned:
            # The next look, which comes before the next batch, still has to know what was not read.
            del self._plans[plan.name]

    def _begun(
        self,
        offset: Offset,
        streams: Mapping[str, StreamPosition],
        cuts: Mapping[str, Cuts] | None = None,
    ) -> Offset:
        """Return an offset with those of the `streams`, if they are found ones, that it lacks, each at sequence 1.

        Without a pattern the streams are found ones that the batch has `cuts` of: it was planned
        with a pattern.
        """
        found = streams if self._selection is not None else cuts or {}
        new = {
            name: StreamPosition(1, streams[name].created)
            for name in found
            if name not in offset.streams
        }
        if new:
            return Offset({**offset.streams, **new}, offset.cuts)
        return offset

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
        """Return where the query starts, by the options that begin with ``starting``."""
        self._find(complete=True)
        begin = _twice(
            lambda: Offset({name: plan.begin() for name, plan in self._look({}).items()})
        )
        # Spark asks once more when it plans the tasks of the first batch.
        if self._start_may_move and not self._met:
            self._unwritten = begin
        self._met = True
        return begin

    @property
    def _start_may_move(self) -> bool:
        """Whether a later run, which finds no checkpoint, may begin elsewhere."""
        # The consumer goes on to acknowledge, or is deleted.
        if self.options.starting_consumer is not None:
            return True
        by_time = self.options.starting_timestamp is not None
        return self.options.starting_offsets == "latest" and not by_time

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
        """Return where the query would be if it had read everything, for its progress.

        The limits do not apply.
        """
        return Offset(self._by_stream(StreamPlan.last_matching, self._look({}, reporting=True)))

    def latest(self, start: Offset | None, *, limited: bool) -> Offset:
        """Return the end of the next micro-batch and its cuts, `start` itself when there is nothing to read (yet).

        With `limited` the options per trigger apply. With a `start` of None the batch reads
        everything: Spark 4.0 and 4.1 do not pass it, and ask for the first end before the start.
        Only `ranges` can cut that batch.
        """
        if start is None:
            self._find(complete=True)
            # The end of the stream, because an offset must never go back.
            return Offset(
                {name: latest_position(plan.state) for name, plan in self._look({}).items()}
            )
        self._resume(start)
        end = _twice(lambda: self._latest(start, limited=limited))
        # Spark compares texts, and would make a batch of other cuts.
        return start if end == start else end

    def _latest(self, start: Offset, *, limited: bool) -> Offset:
        self._find(start.streams)
        batches = self._batches(start)
        starts = Offset({name: batch.start for name, batch in batches.items()})
        unwritten = self._unwritten
        self._unwritten = None
        if start == unwritten:
            # Spark stores where a batch ends, and not where the first one begins, which is planned
            # again after a crash. A first batch that ends where it begins stores the beginning.
            return start
        if not all(batch.continues for batch in batches.values()):
            # The next batch begins at what is there now.
            return starts
        ends = Offset(self._ends(batches, limited=limited))
        # What was counted as nothing may be something: also such a batch must run again with the
        # same tasks.
        wholes = self._wholes(starts, ends)
        splits = self._split(wholes)
        end = Offset(ends.streams, {name: split.cuts for name, split in splits.items()})
        if end == start:
            # No batch follows, and with `availableNow` nothing at all: Spark ends this process.
            self.progress.settle()
        self._decided = end
        self._counted = {
            name: CountedRange(batches[name].read_up_to, wholes[name], split)
            for name, split in splits.items()
        }
        return end

    def _batches(self, start: Offset) -> dict[str, StreamBatch]:
        """Return what waits in each stream of the query, whose position is `start`."""
        found, times = self._look_with_times(start)
        ends = {name: latest_position(plan.state) for name, plan in found.items()}
        begun = self._begun(start, ends).streams
        read = self._last_read(begun, found, times)
        following: dict[str, StreamPosition] = {}
        for name, plan in found.items():
            following[name] = plan.continued(begun.get(name), read.get(name))

        def batch_of(plan: StreamPlan) -> StreamBatch:
            position = following[plan.name]
            end = self._end(plan, position)
            backlog = plan.backlog(position, end)
            return StreamBatch(plan, begun.get(plan.name), position, end, backlog)

        batches = self._by_stream(batch_of, found)
        for name, plan in self._plans.items():
            if name not in found:
                batches[name] = StreamBatch.of_deleted(plan, start.streams[name])
        return batches

    def _look_with_times(
        self, start: Offset
    ) -> tuple[dict[str, StreamPlan], dict[str, int | None]]:
        """Return what `_look` returns, and the times at which the last messages read were stored, by stream.

        Only some streams have a time, None if the message is gone. It is asked for in one round
        trip with the states: after each batch the last message read is another one.
        """
        with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="spark-jetstream-plan") as pool:
            asked: dict[str, Future[int | None]] = {}
            for name, plan in self._plans.items():
                position = start.streams.get(name)
                if position is not None and plan.will_be_due(position):
                    asked[name] = pool.submit(plan.probe.stored_at, position.next - 1)
            found = self._look(start.streams)
        times = {name: future.result() for name, future in asked.items() if name in found}
        return found, times

    def _ends(
        self, batches: Mapping[str, StreamBatch], *, limited: bool
    ) -> dict[str, StreamPosition]:
        """Return where the next micro-batch ends in each stream."""
        available = sum(batch.backlog for batch in batches.values())
        if not self._admitted(available, limited):
            return {name: batch.end_unread for name, batch in batches.items()}
        if not limited:
            return {name: batch.end for name, batch in batches.items()}
        most = self._most_messages(batches)
        return {name: batch.end_within(most[name]) for name, batch in batches.items()}

    def _may_read(self, name: str) -> bool:
        """Whether a stream is, or may be found to be, one of the query's."""
        if self._selection is None:
            return name in self._plans
        return self._selection.may_have(name)

    def _resume(self, offset: Offset) -> None:
        """Refuse the offset of another query, and log which streams the query no longer reads.

        A query that has an offset has reached its server before: one that does not answer now has
        an outage.
        """
        self._requests.first = None
        if offset.held:
            raise OptionError(
                "the checkpoint is that of a query with option share, which cannot be left out "
                "later: set it again, or start the query with a new checkpoint",
                option="share",
            )
        gone = [name for name in offset.streams if not self._may_read(name)]
        # Only a query that finds its streams may have none.
        if len(gone) == len(offset.streams) and (gone or self._selection is None):
            self._refuse_streams_of(gone)
        for name in gone:
            if name not in self._dropped:
                self._dropped.add(name)
                log.warning(
                    "stream %s is in the checkpoint and not in option %s: its position is dropped",
                    name,
                    self.options.chosen_by,
                )

    def _refuse_streams_of(self, checkpoint: Sequence[str]) -> NoReturn:
        """Raise the error of a checkpoint with these streams, of which the query reads none."""
        option = self.options.chosen_by
        had = ", ".join(checkpoint) or "no stream"
        names = ", ".join(self.options.read_streams) or "none of them"
        raise OptionError(
            f"the checkpoint is of another query: it has {had}, and option {option} names "
            f"{names}; correct the option, or start the query with a new checkpoint",
            option=option,
        )

    def _last_read(
        self,
        positions: Mapping[str, StreamPosition],
        found: Mapping[str, StreamPlan],
        times: Mapping[str, int | None],
        *,
        planned: bool = False,
    ) -> dict[str, Evidence]:
        """Look up the last message read of each stream that may have lost it (`StreamPlan.is_due`).

        `times` are those that were looked up already.
        """
        due = [
            name
            for name, plan in found.items()
            if plan.is_due(positions.get(name), planned=planned)
        ]

        def look_up(plan: StreamPlan) -> Evidence:
            return plan.look_up(positions[plan.name], times)

        return self._by_stream(look_up, due)

    def _end(self, plan: StreamPlan, position: StreamPosition) -> StreamPosition:
        """Return how far the stream could be read now, or up to the target; never before `position`."""
        if self._target is None:
            return plan.end(position)
        target = self._target.streams.get(plan.name, position)
        if target.created != position.created:
            return position
        if target.next <= position.next:
            return plan.end(position, later=False)
        lost = (
            plan.state.followed and target.next > plan.state.last_seq + 1
        )  # the tail, since the target was fixed
        return plan.end(position) if lost else target

    def _admitted(self, available: int, limited: bool) -> bool:
        """Whether a batch starts now (``minMessagesPerTrigger``, ``maxTriggerDelay``)."""
        if available <= 0:
            self._waiting_since = None
            return False
        if self._waiting_since is None:
            self._waiting_since = self._clock()
        # With Trigger.AvailableNow and Trigger.Once no batch waits.
        enough = (
            not limited
            or self._target is not None
            or available >= (self.options.min_messages_per_trigger or 1)
        )
        if not enough and self._clock() - self._waiting_since < self.options.max_trigger_delay:
            return False
        self._waiting_since = None
        return True

    def _most_messages(self, batches: Mapping[str, StreamBatch]) -> dict[str, int]:
        """Share `maxMessagesPerTrigger` and `maxBytesPerTrigger` among the streams, in messages."""
        options = self.options
        backlogs = {name: batch.backlog for name, batch in batches.items()}
        most = share(options.max_messages_per_trigger or sum(backlogs.values()), backlogs)
        if not options.max_bytes_per_trigger:
            return most
        sizes = {
            name: BatchBytes(batch, objects=self._kind.chunked)
            for name, batch in batches.items()
            if batch.backlog
        }
        limits = share(
            options.max_bytes_per_trigger, {name: size.waiting for name, size in sizes.items()}
        )
        for name, size in sizes.items():
            most[name] = min(most[name], size.messages(limits[name]))
        return most

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
                    f"the checkpoint has a batch with stream {name}, which the option {kind} does "
                    "not name",
                    option=kind,
                )
        # A state without the end of the batch must come from the leader.
        ends = {name: end.streams[name] for name in start.streams if name in wholes}
        return _twice(lambda: self._ranges(start, end, wholes, self._look(ends, only=True)))

    def _wholes(self, start: Offset, end: Offset) -> dict[str, SequenceRange]:
        return {whole.stream: whole for whole in ranges_between(start, end, self.options.subjects)}

    def _ranges(
        self,
        start: Offset,
        end: Offset,
        wholes: Mapping[str, SequenceRange],
        found: Mapping[str, StreamPlan],
    ) -> list[SequenceRange]:
        read = self._last_read(start.streams, found, {}, planned=True)
        streams: dict[str, PlannedRange] = {}
        for name, whole in wholes.items():
            planned = PlannedRange(whole, found.get(name), start.streams[name], end.cuts.get(name))
            planned.trim(read.get(name))
            streams[name] = planned
        splits = self._decided_splits(end, streams)
        uncounted: dict[str, SequenceRange] = {}
        for name, planned in streams.items():
            part = planned.counted_part(has_cuts=bool(end.cuts))
            if part is not None and name not in splits:
                uncounted[name] = part
        splits |= self._split(uncounted, end.cuts)
        self._report_lost_since(streams, uncounted, end, read)
        rests = {name: planned.rest for name, planned in streams.items()}
        tasks = self._tasks(rests, splits, end.cuts)
        return [streams[task.stream].within_stream(task) for task in tasks]

    def _decided_splits(self, end: Offset, streams: Mapping[str, PlannedRange]) -> dict[str, Split]:
        """Return the splits that `latest` has counted, of the streams that have lost nothing since."""
        splits: dict[str, Split] = {}
        if end == self._decided:
            for name, planned in streams.items():
                counted = self._counted.get(name)
                if counted is not None and counted.is_of(planned):
                    splits[name] = counted.split
        return splits

    def _report_lost_since(
        self,
        streams: Mapping[str, PlannedRange],
        counted: Mapping[str, SequenceRange],
        end: Offset,
        read: Mapping[str, Evidence],
    ) -> None:
        """Look again at streams with missing sequences, after the server has counted their messages.

        The count lacks a message that was removed before it, so no task would report that message.
        """
        again = [
            name
            for name, part in counted.items()
            if streams[name].of_same_stream and not streams[name].plan.is_dense(part)
        ]
        found = self._look({name: end.streams[name] for name in again}, only=True)
        for name, plan in found.items():
            plan.continued(streams[name].start, read.get(name))

    def _split(
        self, wholes: Mapping[str, SequenceRange], cuts: Mapping[str, Cuts] | None = None
    ) -> dict[str, Split]:
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
        self,
        wholes: Mapping[str, SequenceRange],
        splits: Mapping[str, Split],
        cuts: Mapping[str, Cuts],
    ) -> list[SequenceRange]:
        tasks = self._by_stream(
            lambda plan: plan.tasks(wholes[plan.name], splits[plan.name]), splits
        )
        gone = {
            name: Split(cuts[name], [None] * (len(cuts[name]) // 2))
            for name in cuts
            if name not in tasks
        }
        tasks |= {name: cut_at(wholes[name], split) for name, split in gone.items()}
        return [task for name in sorted(tasks) for task in tasks[name]]

    def batch_ranges(self) -> list[SequenceRange]:
        """Return the tasks of a batch read."""
        self._find(complete=True)
        return _twice(self._batch_ranges)

    def _batch_ranges(self) -> list[SequenceRange]:
        def bounds(plan: StreamPlan) -> tuple[StreamPosition, StreamPosition]:
            start = plan.start()
            return start, ending_position(self.options, plan.probe, plan.state, start)

        found = self._by_stream(bounds, self._look({}))
        starts, ends = ({name: both[side] for name, both in found.items()} for side in (0, 1))
        wholes = self._wholes(Offset(starts), Offset(ends))
        return self._tasks(wholes, self._split(wholes), {})


def _twice(plan: Callable[[], T]) -> T:
    """Return what `plan` returns.

    If a stream was deleted meanwhile, `plan` is called again, and begins by asking for the streams'
    states.
    """
    try:
        return plan()
    except StreamNotFound:
        return plan()
