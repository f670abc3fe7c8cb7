"""Queries with the option durable that are read as Spark reads them, by runs that end at requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.model.query import Offset, written
from tests.model.stream import look_at, present_in
from tests.points.wire import Stop
from tests.points.writes import Place, World, kind_of_request
from tests.support.calls import SEQUENCE, data_source
from tests.support.publish import Message

MESSAGES = 3
#: So long that none of them passes, on any machine.
PATIENT = {"connectTimeout": "300s", "requestTimeout": "300s", "retryTimeout": "1d"}


@dataclass
class Checkpoint:
    """Spark's record of a query: the ends of planned batches, and the rows of committed ones.

    A row is a value of its first column.
    """

    planned: list[tuple[Offset, Offset]] = field(default_factory=list)
    committed: list[list[Any]] = field(default_factory=list)

    @property
    def rows(self) -> list[Any]:
        return [row for batch in self.committed for row in batch]


class Reading:
    """One query on a stream with this retention, from its first run until it has read all messages.

    The messages are published when the query has read the empty stream. Each stop counts from the
    one before. With `shared` the query reads every second message, and the consumer of another
    client has the others.
    """

    forgets = False

    def __init__(
        self,
        world: World,
        stops: Sequence[Stop] = (),
        *,
        retention: str,
        shared: bool = False,
        messages: int = MESSAGES,
    ) -> None:
        self.world = world
        self.stops = list(stops)
        self.name = self.stream = world.name()
        self.places: list[Place] = []  # the requests since the last stop
        self.ends: list[Place] = []  # the requests of the stops
        self.noted: list[object] = []  # at each stop, the state that outlives the run
        self._left = list(stops)
        self._checkpoint = Checkpoint()
        self._published = False
        self._shared = shared
        self._count = messages
        self.config: dict[str, Any] = {
            "name": self.name,
            "subjects": [f"{self.name}.>"],
            "storage": "memory",
            "retention": retention,
            "allow_direct": True,
        }
        self._options: dict[str, str] = {
            **PATIENT,
            "servers": world.wire.url,
            "stream": self.name,
            "durable": "query",
            "maxMessagesPerTrigger": "2",
            "readWith": "direct",
        }
        if shared:
            self._options["subjects"] = f"{self.name}.a"

    def play(self) -> Iterator[None]:
        """Read all messages, and check what was read."""
        admin = self.world.admin
        admin.api(f"STREAM.CREATE.{self.name}", self.config)
        if self._shared:
            wanted = {"durable_name": "other", "filter_subject": f"{self.name}.b"}
            body = {"stream_name": self.name, "config": {**wanted, "ack_policy": "explicit"}}
            admin.api(f"CONSUMER.CREATE.{self.name}.other.{self.name}.b", body)
        self._begin()
        while not self._run():
            yield
            self._begin()
        assert len(self.ends) == len(self.stops), f"a stop was not reached: {self.places}"
        assert self._checkpoint.rows == self._wanted()
        admin.api(f"STREAM.DELETE.{self.name}")

    def _wanted(self) -> list[int]:
        """The sequences of the messages that the query reads."""
        step = 2 if self._shared else 1
        return list(range(1, step * self._count + 1, step))

    def _begin(self) -> None:
        self.places = []
        self.world.wire.begin(self._left.pop(0) if self._left else None)

    def _run(self) -> bool:
        """Run the query once, until nothing is left. Return false if the run has ended before."""
        wire = self.world.wire
        finished = False
        with self.world.processes.one():
            self._read_all()
            finished = True
        self.places = [Place("run", kind_of_request(each, self.name)) for each in wire.requests]
        if wire.stopped:
            assert wire.stop is not None
            self.ends.append(self.places[wire.stop.point - 1])
            self.noted.append(self._outside())
        self._check_kept()
        return finished and not wire.stopped

    def _outside(self) -> object:
        """The state that outlives a run, but for that of the server."""
        known = self._checkpoint
        return self._published, len(known.planned), list(known.committed)

    def _read_all(self) -> None:
        self._run_spark(self._options, self._checkpoint)

    def _run_spark(self, options: Mapping[str, str], known: Checkpoint) -> None:
        """Do what one run of Spark does, as MicroBatchExecution.scala has it."""
        reader: Any = data_source(options).streamReader(SEQUENCE)
        end: Offset
        if not known.planned:
            start = written(reader.initialOffset())
            end = written(reader.latestOffset(start, reader.getDefaultReadLimit()))
            known.planned.append((start, end))
        if len(known.planned) > len(known.committed):
            self._read_batch(reader, known)
        while True:
            start = known.planned[-1][1]
            end = written(reader.latestOffset(start, reader.getDefaultReadLimit()))
            if end == start and self._published:
                return
            if end == start:
                self._publish()
                continue
            known.planned.append((start, end))
            # Spark tells the source of a batch when it has planned the next one.
            reader.commit(start)
            reader.open_planner().progress.settle()
            self._read_batch(reader, known)

    def _read_batch(self, reader: Any, known: Checkpoint) -> None:
        """Read the last batch that was planned, and note that it is in the sink."""
        parts = reader.partitions(*known.planned[-1])
        found = [
            row
            for part in parts
            for rows in reader.read(part)
            for row in rows.column(0).to_pylist()
        ]
        if not self.world.processes.dead:
            known.committed.append(found)

    def _publish(self) -> None:
        tokens = ("a", "b") if self._shared else ("a",)
        messages = [Message(f"{self.name}.{token}", b"x") for token in tokens]
        self.world.admin.publish(messages * self._count)
        self._published = True

    def _check_kept(self) -> None:
        """The stream has all messages that Spark has not noted."""
        if not self._published:
            return
        info = look_at(self.world.admin.api, self.name)
        gone = {*range(1, info["state"]["last_seq"] + 1)} - present_in(info)
        assert gone <= set(self._checkpoint.rows), (gone, self._checkpoint)
