"""Micro-batches that are written as Spark writes them, by processes that end at requests."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import pickle
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from spark_jetstream.client.pool import connect
from spark_jetstream.options import SinkOptions
from spark_jetstream.sink.kinds.kind import SinkKind
from spark_jetstream.sink.ledger_entry import BUCKET
from spark_jetstream.sink.message_ids import WriteTask
from spark_jetstream.sink.report import TaskReport
from tests.model.rows import Wrong
from tests.points.process import Processes
from tests.points.wire import PointWire, Stop
from tests.support.publish import Message, Publisher, Refused
from tests.support.sinking import (
    Seen,
    await_forgotten,
    batches_of,
    dataset_of,
    message_with_id,
    seen_in,
)

T = TypeVar("T")

SECOND = 10**9  # nanoseconds
WINDOW = 3600  # the duplicate window of streams, in seconds
LEASE = 0.01
_numbers = itertools.count(1)
#: So long that none of them passes, on any machine.
PATIENT = {
    "ackTimeout": "10m",
    "connectTimeout": "300s",
    "requestTimeout": "300s",
    "retryTimeout": "1d",
}


class Clock:
    """A clock that stands still but where a history lets it go on; in seconds."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


Check = Callable[["History", list[Seen]], object]


@dataclass(frozen=True)
class Write:
    """A micro-batch for a stream of its own: for each task its portions of rows.

    `{name}` stands for the name of the case in `stream`, in options and in the configuration, and
    `{subject}` for the same in lower case, with which its subjects begin. `check` raises
    `AssertionError` if the stream does not hold what it must at the end, and `check_end` at the end
    of each process. The tasks run one after the other, in the `order` of their partitions if given.
    """

    tasks: Sequence[Callable[[str], list[pa.RecordBatch]]]
    check: Check
    options: Mapping[str, str]
    config: Mapping[str, Any] = field(default_factory=dict)
    check_end: Check | None = None
    stream: str = "{name}"
    order: Sequence[int] = ()


class World:
    """The parts that all histories share: the server behind the wire, processes, the clock."""

    def __init__(
        self, wire: PointWire, admin: Publisher, processes: Processes, clock: Clock
    ) -> None:
        self.wire = wire
        self.admin = admin
        self.processes = processes
        self.clock = clock

    def name(self) -> str:
        """Return a name that no other history has."""
        return f"P{next(_numbers)}"

    def settle(self, subjects: Sequence[str]) -> None:
        """Return when streams have handled all that was sent to them, at these subjects."""
        for subject in subjects:
            # The message comes after all others, and the stream refuses it.
            with suppress(Refused):
                self.admin.publish([Message(subject, headers=[("Nats-Expected-Stream", "none")])])

    def forget(self, streams: Mapping[str, Mapping[str, Any]]) -> None:
        """Let streams forget all message ids, by name and configuration."""
        for name, config in streams.items():
            self._shorten(name, config, 0)

        def shorten_again(name: str, look: int) -> None:
            # Seldom, on a busy machine, the server goes on with the longer window.
            if look % 100 == 0:
                self._shorten(name, streams[name], look)

        probes = {
            name: message_with_id(f"{_subject(config)}.probe") for name, config in streams.items()
        }
        await_forgotten(self.admin, probes, shorten_again)
        for name, probe in probes.items():
            self.admin.api(f"STREAM.UPDATE.{name}", streams[name])
            self.admin.api(f"STREAM.PURGE.{name}", {"filter": probe.subject})
        self.clock.now += WINDOW

    def _shorten(self, name: str, config: Mapping[str, Any], more: int) -> None:
        """Give a stream the shortest window that the server takes, and `more` nanoseconds."""
        window = SECOND // 10 + more
        self.admin.api(f"STREAM.UPDATE.{name}", {**config, "duplicate_window": window})


class Place(NamedTuple):
    """A request: the process that makes it, and the kind of request."""

    process: str
    request: str


class History:
    """One micro-batch, from its first run to the commit, with these ends on the way.

    Each stop counts from the one before. With `tasks_end`, a stop in a task ends the process of the
    task alone, and Spark makes another attempt of it. Otherwise Spark runs the batch again. With
    `cuts` only the connections end. With `forgets` the stream has lost its message ids at each
    stop.
    """

    def __init__(
        self,
        world: World,
        write: Write,
        stops: Sequence[Stop] = (),
        *,
        tasks_end: bool = False,
        cuts: bool = False,
        forgets: bool = False,
    ) -> None:
        self.world = world
        self.write = write
        self.stops = list(stops)
        self.forgets = forgets
        self.name = world.name()
        self.stream = write.stream.format(name=self.name)
        self.places: list[Place] = []  # the requests since the last stop
        self.ends: list[Place] = []  # the requests of the stops
        self.noted: list[object] = []  # nothing outlives a run but the server's state
        self._left = list(stops)
        self._tasks_end = tasks_end
        self._cuts = cuts
        self.config: dict[str, Any] = {
            "name": self.stream,
            "subjects": [f"{self.name.lower()}.>"],
            "storage": "memory",
            "duplicate_window": WINDOW * SECOND,
            **named(write.config, self.name),
        }
        options = named(write.options, self.name)
        self.options = SinkOptions.from_spark(
            {**PATIENT, "servers": world.wire.url, **options}, streaming=True
        )
        self.subject = _subject(self.config)

    def play(self) -> Iterator[None]:
        """Write the batch, and check the stream. Yields where the stream is to forget its ids."""
        self.world.admin.api(f"STREAM.CREATE.{self.stream}", self.config)
        if self.forgets:
            # It stays, so that no message is missing before those of the write.
            self.world.admin.publish([Message(f"{self.subject}.kept")])
        self._begin()
        run = 1
        while not (yield from self._run(f"run-{run}")):
            run += 1
            yield
            self._begin()
        assert len(self.ends) == len(self.stops), f"a stop was not reached: {self.places}"
        self.check()
        self.world.admin.api(f"STREAM.DELETE.{self.stream}")

    def check(self) -> None:
        """Check that the stream holds what it must at the end."""
        self.write.check(self, self._stored())

    def _stored(self) -> list[Seen]:
        messages = seen_in(self.world.admin, self.stream)
        return [each for each in messages if each.subject != f"{self.subject}.kept"]

    def _begin(self) -> None:
        """Begin to count requests, up to the next stop."""
        self.places = []
        stop = self._left.pop(0) if self._left else None
        self.world.wire.begin(stop, self._after_cut if self._cuts else None)

    def _after_cut(self) -> None:
        """Do what happens while no client can connect."""
        self._settle()
        if self.forgets:
            self.world.forget({self.stream: self.config})

    def _settle(self) -> None:
        subjects = [f"{self.subject}.x"]
        if self.options.delivery == "exactly-once":
            subjects.append(f"$KV.{BUCKET}.x")
        self.world.settle(subjects)
        if self.write.check_end is not None:
            self.write.check_end(self, self._stored())

    def _run(self, run: str) -> Generator[None, None, bool]:
        """Run the batch once. Return whether it is committed."""
        names = self.write.tasks[0](self.name)[0].schema.names
        dataset = dataset_of(self.options, names)

        def start() -> bytes:
            dataset.start(self._connect)
            return pickle.dumps(dataset)

        writer = self._do("start", start)
        if writer is None:
            return False
        reports: dict[int, TaskReport] = {}
        for partition in self.write.order or range(len(self.write.tasks)):
            batches = self.write.tasks[partition]
            task = WriteTask(f"q{self.name}", 0, partition, run=run)

            def attempt() -> TaskReport:
                sent: SinkKind = pickle.loads(writer)
                return sent.write(self.rows(batches), self._connect, task)  # noqa: B023

            while (report := self._do(f"task {partition}", attempt)) is None:
                if not self._tasks_end:
                    return False
                yield
                self._begin()
            reports[partition] = pickle.loads(pickle.dumps(report))

        def commit() -> int:
            in_order = [reports[each] for each in sorted(reports)]
            return dataset.finish(self._connect, task, in_order, repeatable=True)

        return self._do("commit", commit) is not None

    def rows(self, batches: Callable[[str], list[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """Yield the portions of a task, each a lease after the one before."""
        for number, batch in enumerate(batches(self.name)):
            if number:
                # An attempt has to look again whether it owns its task, before the next portion.
                self.world.clock.now += LEASE
            yield batch

    def _connect(self, patience: float) -> Any:
        return connect(self.options.connection, patience=patience)

    def _do(self, process: str, work: Callable[[], T]) -> T | None:
        """Return the result of a process, None if it has ended before."""
        wire = self.world.wire
        before = len(wire.requests)
        result = None
        with self.world.processes.one():
            result = work()
        wire.rest()
        new = [
            Place(process, kind_of_request(subject, self.name))
            for subject in wire.requests[before:]
        ]
        self.places += new
        if wire.stopped and len(self.ends) < len(self.stops) - len(self._left):
            assert wire.stop is not None
            self.ends.append(self.places[wire.stop.point - 1])
        if not wire.dead:
            return result
        self._settle()
        if result is not None and not wire.replied:
            # The process has not waited for the reply: Spark may have its result.
            self._begin()
            return result
        return None


def kind_of_request(subject: str, name: str) -> str:
    """Return a subject without the parts that are the case's own, or random."""
    words = subject.removeprefix("$JS.API.").split(".")
    if subject.startswith("$JS.API."):
        kept = [word for word in words if word.isupper() and word.rpartition("_")[2] != name]
        return ".".join(kept)
    if words[0] == "$O":
        return f"$O.{words[2]}"
    return subject.replace(name, "").replace(name.lower(), "")


def _subject(config: Mapping[str, Any]) -> str:
    """Return the beginning of the subjects of a stream."""
    return str(config["subjects"][0]).removesuffix(".>")


def named(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return options or a configuration of the case with this name."""

    def filled(value: Any) -> Any:
        if isinstance(value, list):
            return [filled(each) for each in value]
        if isinstance(value, str):
            return value.format(name=name, subject=name.lower())
        return value

    return {key: filled(value) for key, value in given.items()}


def each_once(history: History, messages: list[Seen], copies: int = 1) -> None:
    """The stream holds each row one time, or up to `copies` times, and nothing else."""
    stored = Counter(message.data for message in messages)
    owed = Counter(rows_of(history))
    asked = Counter({row: count * copies for row, count in owed.items()})
    wrong = Wrong(stored, owed, asked)
    assert not wrong, wrong.lines()


def none_lost(history: History, messages: list[Seen]) -> None:
    """The stream holds each row, and at most one more copy of it for each end."""
    each_once(history, messages, copies=1 + len(history.stops))


def once_if_remembered(history: History, messages: list[Seen]) -> None:
    """The stream holds each row one time, unless it has forgotten message ids."""
    check = none_lost if history.forgets else each_once
    check(history, messages)


def whole_groups(history: History, messages: list[Seen]) -> None:
    """The stream holds no part of a group without the others."""
    batches_of(messages)


def last_values(history: History, messages: list[Seen]) -> None:
    """Each key of the bucket has the value of its last row."""
    once_if_remembered(history, messages)
    wanted: dict[str, bytes] = {}
    for part in _parts(history):
        for key, value in zip(part["key"].to_pylist(), part["value"].to_pylist(), strict=True):
            wanted[f"{history.subject}.{key}"] = value
    assert {message.subject: message.data for message in messages} == wanted


def whole_objects(history: History, messages: list[Seen]) -> dict[str, bytes]:
    """Each object that the bucket names is whole. Return their contents by name."""
    found = {}
    for meta in messages:
        if meta.subject.startswith(f"$O.{history.name}.M."):
            about = json.loads(meta.data)
            place = f"$O.{history.name}.C.{about['nuid']}"
            content = b"".join(each.data for each in messages if each.subject == place)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
            assert (len(content), f"SHA-256={digest}") == (about["size"], about["digest"])
            found[about["name"]] = content
    return found


def all_objects(history: History, messages: list[Seen]) -> None:
    """The bucket has the objects of all rows."""
    wanted: dict[str, bytes] = {}
    for part in _parts(history):
        names, contents = part["name"].to_pylist(), part["content"].to_pylist()
        wanted.update(zip(names, contents, strict=True))
    assert whole_objects(history, messages) == wanted


def rows_of(history: History) -> list[bytes]:
    """The payloads of all rows."""
    column = "value" if history.options.bucket is not None else "data"
    return [data for part in _parts(history) for data in part[column].to_pylist()]


def _parts(history: History) -> list[pa.RecordBatch]:
    """The portions of all tasks."""
    return [part for task in history.write.tasks for part in task(history.name)]
