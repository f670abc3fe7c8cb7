"""A streaming query as Spark runs it, step by step in this process, compared with a model at each
step.

The model knows the messages (`kept`), docs/data-loss.md, and the offsets and ranges that are
planned.
"""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from spark_jetstream.errors import DataLossError, OptionError, StreamNotFound
from spark_jetstream.protocol.stream import SequenceRange
from tests.model.losses import loss_at, names_loss
from tests.model.query import Position, positions, shown, written
from tests.model.stream import LAST, Kept, Life
from tests.support import calls
from tests.support.reading import QUICK
from tests.support.streams import Stored, iso

FILTERS = ("a", "a,b", "*.x", "c", ">", "none", "*")
#: What a user may give, and change between two runs.
OPTIONS: dict[str, tuple[Any, ...]] = {
    "maxMessagesPerTrigger": ("", "", 1, 2, 5, 20),
    "maxBytesPerTrigger": ("", "", "", "1000", "100k"),
    "minPartitions": ("", "", 2, 3, 10),
    "maxMessagesPerPartition": ("", "", 1, 3, 10),
    "readWith": ("auto", "consumer", "direct"),
    "fetchBatch": ("", 1, 3),
    "fetchMaxBytes": ("", "64k"),
    "includeHeaders": ("true", "true", "false"),
}

Row = tuple[Any, ...]


class Difference(AssertionError):
    """The query does not do what the model says."""


class Stopped(Exception):
    """The query ends with an error, as it has to."""


class Query:
    """A query with random options on streams of one retention.

    `what` is the option that names the streams.
    """

    def __init__(
        self, chance: random.Random, url: str, name: str, what: str, retention: str, log: list[str]
    ) -> None:
        self.chance = chance
        self.url = url
        self.name = name
        self.what = what
        self.retention = retention
        self.log = log
        self.streams: Sequence[Kept] = ()
        self.warnings: list[str] = []  # of the connector
        self.first = chance.choice([1, 3, 5])  # where `startingOffsets` may begin
        self.options = self._options()
        self.left_out: set[str] = set()  # streams that the option does not name now
        # The checkpoint: where the last finished batch ended, and where the one ends that is not
        # finished.
        self.start: dict[str, Any] | None = None
        self.end: dict[str, Any] | None = None
        # What the sink has. Tasks of the batch that is not finished, and how many: they are always
        # the same.
        self.sink: set[tuple[str, str, int]] = set()
        self.task_of: dict[tuple[str, int], int] = {}
        self.tasks: int | None = None
        # The run.
        self.reader: Any = None
        self.draining = False  # the query reads the rest
        self.legacy = False  # Spark 4.0 does not say where a batch begins
        self.target: dict[str, Position] | None = None  # of Trigger.AvailableNow
        self.decided = False  # by this run, which has not planned its tasks yet
        # a run that has not decided its first batch by a start reads nothing at its next look
        self.anew = False
        self.looks: dict[
            str, list[tuple[str, int, int]]
        ] = {}  # creation, end and last match of each look
        self.seen: dict[str, tuple[str, set[int]]] = {}  # of the streams that a pattern finds
        self.met = False  # the run has seen streams of its checkpoint
        self.beginning: dict[
            str, Position
        ] = {}  # where a new query begins, which lets go of what is before
        self.begin: dict[str, Position] = {}
        self.parts: list[Any] | None = None
        self.counted: list[
            dict[str, set[int]]
        ] = []  # when the batch was decided, and when it was cut
        self.unread: list[int] = []
        self.rows: dict[int, list[Stored]] = {}
        self.to_commit: dict[str, Any] | None = None

    def say(self, text: object) -> None:
        self.log.append(str(text))

    def check(self, holds: object, what: str) -> None:
        if not holds:
            raise Difference(what)

    # Options

    def _options(self) -> dict[str, Any]:
        chance = self.chance
        options: dict[str, Any] = {"failOnDataLoss": "true", "startingTimestamp": "", "durable": ""}
        options["startingOffsets"] = chance.choice(
            ["earliest", "earliest", "earliest", "latest", "sequences"]
        )
        self.filter = chance.choice(["", "", chance.choice(FILTERS)])
        if self.retention != "limits" or (self.what == "stream" and chance.random() < 0.15):
            options["durable"] = "spark"
        # An application that takes what the query does not read, or also what it reads of an
        # interest stream.
        apart = self.retention == "interest" or self.filter in ("a", "a,b", "*.x", "none")
        self.other = self.retention != "limits" and apart and chance.random() < 0.5
        if self.retention == "workqueue" or (
            options["startingOffsets"] == "sequences" and self.what != "stream"
        ):
            options["startingOffsets"] = "earliest"
        return options | {name: chance.choice(values) for name, values in OPTIONS.items()}

    @property
    def filters(self) -> str:
        """The subjects that the query reads, as the server takes them; "" for all."""
        if self.what == "bucket":
            return ",".join(f"$KV.{self.name}.{each}" for each in (self.filter or ">").split(","))
        return (
            ",".join(f"{self.name}.*.{each}" for each in self.filter.split(","))
            if self.filter
            else ""
        )

    @property
    def fails(self) -> bool:
        return bool(self.options["failOnDataLoss"] == "true")

    def given(self) -> dict[str, Any]:
        """The options of a run."""
        what = {
            "bucket": self.name,
            "streamPattern": f"{self.name}-*",
            "stream": ",".join(self.by_name()),
        }
        options = {**self.options, self.what: what[self.what], "servers": self.url, **QUICK}
        if self.what == "bucket":
            options["keys"] = self.filter
            del options["includeHeaders"]
        else:
            options["subjects"] = self.filters
        if options["startingOffsets"] == "sequences":
            options["startingOffsets"] = json.dumps(dict.fromkeys(self.by_name(), self.first))
        return {name: value for name, value in options.items() if value != ""}

    def _named_others(self) -> bool:
        """Whether the option names none of the streams in the checkpoint."""
        known = self.start["streams"] if self.start is not None else {}
        return self.what == "stream" and bool(known) and not known.keys() & self.by_name().keys()

    def _correct_names(self, ask: Callable[[], object]) -> NoReturn:
        """Spark asks a query whose option names other streams than the checkpoint has."""
        try:
            ask()
        except OptionError as error:
            self.say(f"other streams: {error}")
            told = "the checkpoint is of another query" in str(error)
            self.check(told, "it is refused for another reason")
            self.left_out = set()
            self._end_run()
            raise Stopped from None
        raise Difference("a query must not go on with the checkpoint of another one")

    def _change_options(self) -> None:
        chance = self.chance
        self.options |= {name: chance.choice(values) for name, values in OPTIONS.items()}
        if chance.random() < 0.3 and not self.options["durable"]:
            self.filter = chance.choice(["", chance.choice(FILTERS)])
        if (
            self.what == "stream"
            and len(self.streams) > 1
            and self.end is None
            and chance.random() < 0.3
        ):
            name = chance.choice(self.streams).name
            self.left_out = set() if self.left_out else {name}

    # What must hold

    def by_name(self) -> dict[str, Kept]:
        """The streams of the query."""
        return {kept.name: kept for kept in self.streams if kept.name not in self.left_out}

    def loss(self, kept: Kept, position: Position) -> str:
        """Return the loss at a position, as `loss_at` does, unless the run has reported it."""
        life = kept.life
        if any(
            (life.created, position.created) == (created, created)
            and last_match < position.next
            and life.first <= end
            for created, end, last_match in self.looks.get(kept.name, ())
            if life is not None
        ):
            return ""  # the run knows, or has said, what is gone
        kind = "bucket" if self.what == "bucket" else self.retention
        return loss_at(life, position, kind, self.filters)

    @contextmanager
    def expecting(self, doing: str, losses: Mapping[str, str] | None = None) -> Iterator[None]:
        """Errors and warnings of losses, and no others; and that no message goes that is not in the
        sink.
        """
        losses = losses or {}
        sure = {name: loss for name, loss in losses.items() if loss[:1] not in ("", "?", "~")}
        self.warnings.clear()
        before = self._uncommitted()
        try:
            yield
        except (DataLossError, StreamNotFound) as error:
            self.say(f"{doing}: {error}")
            self.check(self.fails and (sure or "~" in losses.values()), f"{doing} must not fail")
            # Another stream of the query may have been committed before the loss was found.
            self._check_removed(doing, before)
            self._end_run()
            raise Stopped from None
        self.check(not sure or not self.fails, f"{doing} does not report {losses}")
        for name, loss in sure.items():
            # A run says once of a stream that it was deleted.
            said = self._warned(name, loss)
            self.check(
                said or loss == "was deleted",
                f"{doing} does not warn of {losses}, only of {self.warnings}",
            )
        for name, loss in losses.items():
            life = self.by_name()[name].life
            doubted = self._warned(name, "are gone")
            self.check(doubted or loss[:1] != "?", f"{doing} does not warn: {self.warnings}")
            if doubted and life is not None:  # a run says once of a gap that it may be a loss
                self.looks.setdefault(name, []).append((life.created, life.first, 0))
        self._check_removed(doing, before)

    def _check_removed(self, doing: str, before: set[tuple[str, int]]) -> None:
        """No message that `_uncommitted` had before is gone; the model knows what commits removed."""
        if self.options["durable"] and self.reader is not None:
            self.reader.open_planner(resumed=True).progress.settle()
        self._look()
        gone = before - self._uncommitted()
        self.check(not gone, f"{doing} removes {sorted(gone)}")

    def _warned(self, stream: str, text: str) -> bool:
        return any(names_loss(line, stream, text) for line in self.warnings)

    def _look(self) -> None:
        for kept in self.streams:
            if self.retention != "limits" and kept.life is not None:
                kept.look()

    def _uncommitted(self) -> set[tuple[str, int]]:
        at = positions(self.start) if self.start is not None else self.beginning
        return {
            (name, n)
            for name, kept in self.by_name().items()
            if kept.life is not None and (name not in at or at[name].created == kept.life.created)
            for n in kept.life.matching(self.filters, at[name].next if name in at else 1)
        }

    # Spark's steps

    def step(self) -> None:
        """The next of Spark's steps. After an error the user may accept losses."""
        try:
            if self.reader is None:
                self._start_run()
            if self.end is None:
                self._decide()
            elif self.parts is None:
                self._cut()
            elif self.unread:
                self._read()
            else:
                self._finish()
        except Stopped:
            if self.chance.random() < 0.6:
                self.options["failOnDataLoss"] = "false"

    def crash(self) -> None:
        self.say("crash")
        self._end_run()

    def read_the_rest(self) -> None:
        """Read without limits, in as many runs as it takes."""
        self.crash()
        self.draining = True
        self.options["maxMessagesPerTrigger"] = self.options["maxBytesPerTrigger"] = ""
        # A batch that fails is planned again until the user accepts losses, in three of ten runs.
        for _ in range(1000):
            new_run, before = self.reader is None, (self.start, self.end)
            self.step()
            if (
                not new_run
                and self.reader is not None
                and (self.start, self.end) == before
                and self.end is None
            ):
                return
        raise Difference("the query does not come to an end")

    def _end_run(self) -> None:
        self.reader = self.parts = self.target = self.to_commit = None
        self.decided = self.met = False
        self.beginning = {}
        self.looks.clear()
        self.seen.clear()

    def _start_run(self) -> None:
        chance = self.chance
        if not self.fails and chance.random() < 0.5:
            self.options["failOnDataLoss"] = "true"
        if chance.random() < 0.4 and not self.draining:
            self._change_options()
        times = [
            time
            for kept in self.streams
            if kept.life is not None
            for time in kept.life.times.values()
        ]
        if (
            self.start is self.end is None
            and times
            and self.retention != "workqueue"
            and chance.random() < 0.15
        ):
            self.time = chance.choice(times) + chance.choice([0, 0, 1])
            self.options["startingTimestamp"] = iso(self.time)
        given = self.given()
        self.say(f"start {given}")
        source = pickle.loads(pickle.dumps(calls.data_source(given)))
        self.reader = source.streamReader(
            calls.BUCKET_ROWS if self.what == "bucket" else calls.ROWS
        )
        self._look()
        # Spark 4.0 asks for the first end before anything holds messages.
        self.legacy = chance.random() < 0.1 and not (self.options["durable"] and self.start is None)
        if self.legacy and self.start is not None and self.end is None:
            if self._named_others():
                self._correct_names(lambda: self.reader.partitions(self.start, self.start))
            self.check(
                self.reader.partitions(self.start, self.start) == [], "tasks of an empty batch"
            )
        elif not self.legacy and chance.random() < 0.3:
            deleted = {
                name: "was deleted" for name, kept in self.by_name().items() if kept.life is None
            }
            with self.expecting(
                "available now", deleted if self.fails and self.what == "stream" else {}
            ):
                self.reader.prepareForTriggerAvailableNow()
            self.target = {
                name: Position(kept.life.last_match(self.filters) + 1, kept.life.created)
                for name, kept in self.by_name().items()
                if kept.life is not None
            }
            self._see(self.by_name(), matches_too=True)
            self.say(f"available now: {self.target}")

    def _initial(self) -> dict[str, Any]:
        """Spark asks where the query begins."""
        self._look()
        given, lives = self.given(), {name: kept.life for name, kept in self.by_name().items()}
        deleted = None in lives.values() and self.what != "streamPattern"
        refused = (
            self.options["startingOffsets"] == "sequences" and not self.options["startingTimestamp"]
        )
        if refused:
            sequences = json.loads(given["startingOffsets"])
            refused = any(
                sequences[name] > max(life.last + 1, life.first)
                or (self.fails and sequences[name] < life.first)
                for name, life in lives.items()
                if life is not None
            )
        try:
            offset = written(self.reader.initialOffset())
        except (StreamNotFound, OptionError) as error:
            self.say(f"initial: {error}")
            self.check(deleted or refused, "a new query must begin")
            if refused:
                self.options["startingOffsets"] = "earliest"
            self._end_run()
            raise Stopped from None
        self.check(not deleted and not refused, "a new query must not begin")
        self.met = True
        self.say(f"initial {shown(offset)}")
        at = self.beginning = positions(offset)
        for name, life in lives.items():
            self.check((life is None) == (name not in at), f"{name} is not in {at}")
            if life is not None:
                self._check_beginning(life, at[name].next, given)
        return offset

    def _check_beginning(self, life: Life, first: int, given: Mapping[str, Any]) -> None:
        name, starting = life.info["config"]["name"], given["startingOffsets"]
        if "startingTimestamp" in given:
            wanted = {n for n in life.matching(self.filters) if life.times[n] >= self.time}
            self.check(life.matching(self.filters, first) == wanted, f"begins {name} at {first}")
            return
        begin = {"earliest": life.first, "latest": max(life.first, life.last + 1)}.get(starting)
        if begin is None:
            begin = max(json.loads(starting)[name], life.first)
        self.check(first == begin, f"begins {name} at {first}, not {begin}")

    def _decide(self) -> None:
        """Spark asks for the end of the next micro-batch, and writes it down."""
        start = self.start or (None if self.legacy else self._initial())
        self._look()
        if self._named_others():
            limit = self.reader.getDefaultReadLimit()
            self._correct_names(lambda: self.reader.latestOffset(start, limit))
        begin = {} if start is None else self._begun(positions(start))
        arguments = () if self.legacy else (start, self.reader.getDefaultReadLimit())
        missing = {name for name, kept in self.by_name().items() if kept.life is None}
        if missing - begin.keys() and self.what != "streamPattern":
            self._refuse_to_begin(arguments)
        losses = self._losses(begin, positions(start) if start is not None else ())
        with self.expecting(f"decide {begin}", losses):
            end = written(self.reader.latestOffset(*arguments))
        self.say(f"decide {shown(start)} -> {shown(end)} {losses}")
        if start is not None:
            self._check_end(begin, positions(end), losses)
        for name, kept in self.by_name().items():
            bounded = (
                self.target is not None
                and name in begin
                and self.target[name].next > begin[name].next
            )
            if kept.life is not None and not bounded:
                look = kept.life.created, kept.life.last + 1, kept.life.last_match(self.filters)
                self.looks.setdefault(name, []).append(look)
        self._see(self.by_name(), matches_too=self.target is None)
        self.met = True
        if end == start and self.start is not None:
            if self.target is not None:
                self._end_run()
            return
        self.end, self.begin, self.decided = end, begin, True
        self.counted = [self._count()]
        if self.to_commit is not None:
            with self.expecting("commit"):
                self.reader.commit(self.to_commit)
            self.to_commit = None

    def _refuse_to_begin(self, arguments: tuple[Any, ...]) -> None:
        """Spark asks for the end of a micro-batch of a query to which a stream is new that does not
        exist.
        """
        try:
            self.reader.latestOffset(*arguments)
        except StreamNotFound as error:
            self.say(f"decide: {error}")
            self._end_run()
            raise Stopped from None
        raise Difference("a stream that does not exist must not begin")

    def _begun(self, at: dict[str, Position]) -> dict[str, Position]:
        """Positions with those of the streams that a query with a pattern has found since."""
        if self.what == "streamPattern":
            for name, kept in self.by_name().items():
                if (
                    kept.life is not None
                    and name not in at
                    and (self.target is None or name in self.target)
                ):
                    at[name] = Position(1, kept.life.created)
        return at

    def _losses(self, begin: Mapping[str, Position], known: Collection[str]) -> dict[str, str]:
        """Return the losses at these positions; `known` are the streams of the checkpoint."""
        named = {
            name: self.loss(kept, begin[name])
            for name, kept in self.by_name().items()
            if name in begin
        }
        if self.what == "streamPattern":
            deleted = {name for name, loss in named.items() if loss == "was deleted"}
            if self.fails and deleted and deleted >= set(known) and not self.met:
                return dict.fromkeys(deleted, "none of the streams in the checkpoint exists")
            named |= {name: self._left(self.by_name()[name], begin[name]) for name in deleted}
        return {name: loss for name, loss in named.items() if loss}

    def _left(self, kept: Kept, position: Position) -> str:
        """Return the loss with a stream that was found and is deleted.

        It is what this run has seen of the stream and not read.
        """
        created, messages = self.seen.get(kept.name, ("", set[int]()))
        if created != position.created:
            return ""
        unread = {n for n in messages & kept.lives[created].present if n >= position.next}
        return "had messages that were not read" if unread else "~"

    def _see(self, names: Collection[str], *, matches_too: bool) -> None:
        for name in names:
            kept = self.by_name()[name]
            if kept.life is not None and (matches_too or not self.filters):
                self.seen[name] = kept.life.created, kept.life.matching(self.filters)

    def _check_end(
        self, begin: Mapping[str, Position], end: Mapping[str, Position], losses: Mapping[str, str]
    ) -> None:
        """A micro-batch ends where the next one must begin, and reads as much as it may."""
        given, total, waiting = self.given(), 0, 0
        limited = "maxMessagesPerTrigger" in given or "maxBytesPerTrigger" in given
        starts_latest = (
            self.start is None
            and given["startingOffsets"] == "latest"
            and "startingTimestamp" not in given
        )
        # A batch that says where streams begin, or begin again, has no rows.
        no_rows = starts_latest or self.anew or "deleted and created again" in losses.values()
        no_rows |= any(
            kept.life is not None and name not in begin for name, kept in self.by_name().items()
        )
        self.anew = False
        for name, kept in self.by_name().items():
            life, since, to = kept.life, begin.get(name), end.get(name)
            if life is None:
                self.check(to in (None, since), f"{name} moves from {since} to {to}")
                continue
            if since is None:
                if to is not None:
                    self._check_beginning(life, to.next, given)
                continue
            assert to is not None
            self.check(to.created == life.created, f"{name} is read to {to}")
            if since.created != life.created:
                self.check(to.next <= life.first, f"{name} goes on at {to}, after {life.first}")
                continue
            self.check(to.next >= since.next, f"{name} goes back from {since} to {to}")
            last = life.last_match(self.filters)
            if self.target is not None:
                target = self.target.get(name, since)
                last = max(target.next, life.first) - 1 if target.created == life.created else 0
            read, there = (
                life.matching(self.filters, since.next, stop) for stop in (to.next, last + 1)
            )
            total, waiting = total + len(read), waiting + len(there)
            self.check(read <= there, f"{name} is read to {to}, past {last}")
            self.check(
                read == there or limited or no_rows, f"{name} is read to {to}, not up to {last}"
            )
        if not no_rows:
            most = given.get("maxMessagesPerTrigger", LAST)
            self.check(total <= most, f"{total} messages in a batch of {most}")
            self.check(total or not waiting, "nothing is read although messages wait")

    def _ranges(self) -> dict[str, tuple[Life, int, int]]:
        """Return the range of the micro-batch in each stream that is still the one that was
        planned.
        """
        assert self.end is not None
        found = {}
        for name, to in positions(self.end).items():
            life, since = self.by_name()[name].life, self.begin.get(name)
            if self.what == "streamPattern" and since is None:
                since = Position(1, to.created)
            if life is not None and life.created == to.created and since is not None:
                found[name] = life, since.next if since.created == to.created else 1, to.next
        return {name: each for name, each in found.items() if each[1] < each[2]}

    def _count(self) -> dict[str, set[int]]:
        return {
            name: life.matching(self.filters, *span)
            for name, (life, *span) in self._ranges().items()
        }

    def _cut(self) -> None:
        """Spark asks for the tasks of the micro-batch."""
        start, self.anew = self.start, self.start is None and (self.legacy or not self.decided)
        if start is None:
            start = self._initial()
        assert self.end is not None
        self._look()
        self.begin, end = positions(start), positions(self.end)
        losses = {}
        looked_at = set[str]()
        for name, to in end.items():
            kept, since = self.by_name()[name], self.begin.get(name)
            if self.what == "streamPattern" and since is None:
                since = Position(1, to.created)
            planned = (
                since is not None and (since.next if since.created == to.created else 1) < to.next
            )
            if planned or name in self.end.get("cuts", {}):
                looked_at.add(name)
            if since is not None and planned and (since.created == to.created or kept.life is None):
                losses[name] = self.loss(kept, since)
                if self.what == "streamPattern" and losses[name] == "was deleted":
                    losses[name] = "had messages that were not read"
            elif since is not None and name in self.end.get("cuts", {}) and kept.life is None:
                losses[name] = "~"
        losses = {name: loss for name, loss in losses.items() if loss}
        with self.expecting(f"cut {self.begin} {end}", losses):
            self.parts = list(self.reader.partitions(start, self.end))
        self._see(looked_at, matches_too=False)
        ranges = [
            part.value and (part.value.stream, part.value.first, part.value.end)
            for part in self.parts
        ]
        self.say(f"cut {ranges} {losses}")
        if not self.decided:  # an earlier run has decided, and this one counts by itself
            self.counted = []
        self.counted.append(self._count())
        self._check_tasks()
        self.decided = False
        self.unread = list(range(len(self.parts)))
        self.chance.shuffle(self.unread)
        self.unread += self.unread[: self.chance.choice([0, 0, 1])]
        self.rows = {}

    def _check_tasks(self) -> None:
        """Each message has one task, always the same, and there are as many tasks as the options
        ask for.
        """
        assert self.parts is not None
        assert self.end is not None
        cut = self.end["version"] == 2
        if cut:
            self.check(
                self.tasks in (None, len(self.parts)),
                f"{len(self.parts)} tasks instead of {self.tasks}",
            )
            self.tasks = len(self.parts)
        if self.decided and cut:
            messages = min(sum(map(len, counted.values())) for counted in self.counted)
            least = min(self.options["minPartitions"] or 1, messages)
            self.check(len(self.parts) >= least, f"{len(self.parts)} tasks for {messages} messages")
        for part in self.parts:
            if part.value is not None and part.value.count is not None:
                self._check_promise(part.value)
        for name, (life, first, end) in self._ranges().items():
            spans = [
                (number, part.value.first, part.value.end)
                for number, part in enumerate(self.parts)
                if part.value is not None and part.value.stream == name
            ]
            for sequence in life.matching(self.filters, first, end):
                of = [number for number, low, high in spans if low <= sequence < high]
                self.check(len(of) == 1, f"message {sequence} of {name} is in tasks {of}")
                before = self.task_of.setdefault((name, sequence), of[0])
                self.check(
                    before == of[0] or not cut,
                    f"message {sequence} is in task {of[0]}, and was in {before}",
                )

    def _check_promise(self, task: SequenceRange) -> None:
        """A task promises as many messages as its range had when the batch was decided or cut."""
        assert task.count is not None
        had = [
            sum(task.first <= n < task.end for n in counted.get(task.stream, ()))
            for counted in self.counted
        ]
        self.check(min(had) <= task.count <= max(had), f"{task}: its range had {had} messages")
        # Newer messages replace others, and these are no loss.
        life = self.by_name()[task.stream].life
        replaces = life is not None and life.setting("max_msgs_per_subject") > 0
        self.check(not replaces, f"{task} promises messages that may be replaced")

    def _read(self) -> None:
        """An executor reads one of the tasks."""
        assert self.parts is not None
        assert self.end is not None
        number = self.unread.pop()
        part, reader = pickle.loads(pickle.dumps((self.parts[number], self.reader)))
        value, wanted, losses = part.value, list[Stored](), dict[str, str]()
        if value is not None:
            life = self.by_name()[value.stream].life
            if life is None or life.created != value.created:
                losses[value.stream] = "was deleted"
            else:
                wanted = [
                    life.stored[n]
                    for n in sorted(life.matching(self.filters, value.first, value.end))
                ]
                if value.count is not None and len(wanted) < value.count:
                    losses[value.stream] = "after this read was planned"
        with self.expecting(f"read {number}", losses):
            rows = [tuple(row) for row in calls.rows_of(reader, [part])]
        self.say(f"read {number}: {[row.sequence for row in wanted]} {losses}")
        self.check(
            rows == [self._row(each) for each in wanted], f"task {number} has other rows: {rows}"
        )
        self.rows[number] = wanted

    def _row(self, message: Stored) -> Row:
        """A message as the row that it must be."""
        headers = message.headers or {}
        if self.what == "bucket":
            key, operation = (
                message.subject.removeprefix(f"$KV.{self.name}."),
                headers.get("KV-Operation", ["PUT"])[0],
            )
            operation = operation.replace("DEL", "DELETE")
            value = message.data if operation == "PUT" else None
            return self.name, key, value, message.sequence, operation, message.micros
        shown = message.headers if self.options["includeHeaders"] == "true" else None
        return (
            message.stream,
            message.subject,
            message.sequence,
            message.micros,
            shown,
            message.data,
        )

    def _finish(self) -> None:
        """The micro-batch is in the sink, and Spark writes that down."""
        assert self.end is not None
        for row in (row for rows in self.rows.values() for row in rows):
            message = row.stream, self.end["streams"][row.stream]["created"], row.sequence
            self.check(message not in self.sink, f"{message} comes twice")
            self.sink.add(message)
        self.say("finish")
        # What the option has left out meanwhile is read again from where new streams begin.
        self.sink = {row for row in self.sink if row[0] in self.end["streams"]}
        self.start = self.to_commit = self.end
        self.end = self.parts = self.tasks = None
        self.task_of = {}

    # Batches

    def read_batch(self) -> None:
        """A batch, from anywhere to anywhere."""
        chance, filters = self.chance, self.filters
        if self.what == "bucket" or any(kept.life is None for kept in self.streams):
            return
        lives = {kept.name: kept.look() for kept in self.streams}
        options = {
            name: self.options[name]
            for name in ("minPartitions", "maxMessagesPerPartition", "fetchBatch")
        }
        options |= {"stream": ",".join(lives), "subjects": filters, "servers": self.url}
        options["readWith"] = (
            "direct" if self.retention == "workqueue" else self.options["readWith"]
        )
        wanted = {(name, n) for name, life in lives.items() for n in life.matching(filters)}
        times = sorted({time for life in lives.values() for time in life.times.values()})
        kind = chance.choice(["all", "sequences", "times"])
        if kind == "sequences":
            spans = {
                name: sorted(
                    chance.randint(life.first, max(life.first, life.last + 1)) for _ in "12"
                )
                for name, life in lives.items()
            }
            for number, option in enumerate(("startingOffsets", "endingOffsets")):
                options[option] = json.dumps({name: span[number] for name, span in spans.items()})
            wanted = {(name, n) for name, n in wanted if spans[name][0] <= n < spans[name][1]}
        elif kind == "times" and times:
            since, until = sorted(chance.choice(times) + chance.choice([0, 1]) for _ in "12")
            options |= {"startingTimestamp": iso(since), "endingTimestamp": iso(until)}
            wanted = {(name, n) for name, n in wanted if since <= lives[name].times[n] < until}
        self.say(f"batch {options}")
        rows = list(calls.reading({name: value for name, value in options.items() if value != ""}))
        expected = [lives[name].stored[n] for name, n in sorted(wanted)]
        self.check(
            sorted(rows, key=lambda row: row[0:3:2]) == expected,
            f"it has {[row[0:3:2] for row in rows]}",
        )
