"""A streaming query as Spark runs it, step by step in this process, compared with a model at each
step."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any, NoReturn

from spark_jetstream.errors import OptionError, StreamNotFound
from tests.model.query import Position, positions, shown, written
from tests.source.expected import Difference, Expected, Stopped
from tests.support import calls
from tests.support.streams import Stored, iso


class Query(Expected):
    """A query with random options: each step is one of Spark's, or a batch."""

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

    def _start_run(self) -> None:
        chance = self.chance
        if not self.fails and chance.random() < 0.5:
            self.options["failOnDataLoss"] = "true"
        if chance.random() < 0.4 and not self.draining:
            self._change_options(between_batches=self.end is None)
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
            # Up to its target, unless all of that has gone.
            bounded = (
                self.target is not None
                and name in begin
                and kept.life is not None
                and self.target[name].next > max(begin[name].next, kept.life.first)
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
