"""Tasks and runs that stand still at one of their requests while a second writer does all its work.

A stop is a pause here. The process goes on afterwards, as one does that was suspended.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, TypeVar

from spark_jetstream.client.pool import connect
from spark_jetstream.errors import JetStreamError
from spark_jetstream.options import SinkOptions
from spark_jetstream.sink.kinds.kind import SinkKind
from spark_jetstream.sink.message_ids import WriteTask
from spark_jetstream.sink.report import TaskReport
from tests.points.wire import Moment, Stop
from tests.points.writes import LEASE, PATIENT, History, World, Write, named, none_lost
from tests.support.sinking import dataset_of

T = TypeVar("T")


class Second(Enum):
    """The second writer at a stop."""

    ATTEMPT = "another attempt of the task"
    RUN = "another run of the batch"
    QUERY = "another query of the same ledger"


class Overtaken(History):
    """A micro-batch with a second writer at its only stop.

    With `forgets` the stream has lost all message ids when the first writer goes on.
    """

    def __init__(
        self,
        world: World,
        write: Write,
        stops: Sequence[Stop] = (),
        *,
        second: Second,
        forgets: bool = False,
    ) -> None:
        whole_run = second is not Second.ATTEMPT
        super().__init__(world, write, stops, tasks_end=not whole_run, forgets=forgets)
        self._second = second
        self._overtaken = False
        self._partition = 0  # of the task that runs

    def check(self) -> None:
        """Check that the first writer has stored nothing more but the rows that it had sent."""
        if self.forgets and self._has_rows_under_way():
            none_lost(self, self._stored())
        else:
            super().check()

    def _has_rows_under_way(self) -> bool:
        """Whether rows may be on their way to the stream, or a reply that lets them go there."""
        if not self.stops:
            return False
        is_row = self.ends[0].request.startswith(".")
        return is_row or self.stops[0].moment is Moment.AFTER

    def _begin(self) -> None:
        self.places = []
        stop = self._left.pop(0) if self._left else None
        self.world.wire.begin(stop, self._work_of_second, pauses=True)

    def _do(self, process: str, work: Callable[[], T]) -> T | None:
        if process.startswith("task "):
            self._partition = int(process.removeprefix("task "))

        def refusable() -> T | None:
            try:
                return work()
            except JetStreamError:
                # Another query is no reason to fail.
                if not self._overtaken or self._second is Second.QUERY:
                    raise
                return None
            finally:
                # The process must not close the connections of the second writer.
                self.world.wire.rest()

        return super()._do(process, refusable)

    def _work_of_second(self) -> None:
        """Do all that the second writer does. The first one stands still for longer than a lease."""
        self._overtaken = True
        self.world.clock.now += LEASE
        self._settle()
        if self._second is Second.ATTEMPT:
            writer = SecondWriter(self, "run-1")
            # As the driver has done, whose writer the attempt gets.
            writer.start()
            writer.write(self._partition)
        elif self._second is Second.RUN:
            SecondWriter(self, "run-of-another-driver").write_batch()
        else:
            self._write_other_query()
        self._settle()
        if self.forgets:
            self.world.forget({self.stream: self.config})

    def _write_other_query(self) -> None:
        """Write the same rows as another query, to another stream, and check them."""
        other = History(self.world, self.write)
        self.world.admin.api(f"STREAM.CREATE.{other.stream}", other.config)
        SecondWriter(other, "run-1").write_batch()
        other.check()
        self.world.admin.api(f"STREAM.DELETE.{other.stream}")


class SecondWriter:
    """Writes the batch of a history in this run. It reaches the server past the wire."""

    def __init__(self, history: History, run: str) -> None:
        self._history = history
        self._run = run
        write = history.write
        options = named(write.options, history.name)
        servers = history.world.wire.server_url
        self._options = SinkOptions.from_spark(
            {**PATIENT, "servers": servers, **options}, streaming=True
        )
        names = write.tasks[0](history.name)[0].schema.names
        self._dataset = dataset_of(self._options, names)

    def start(self) -> None:
        """Do what the driver does before the first task."""
        self._dataset.start(self._connect)

    def write_batch(self) -> None:
        """Do all that a run does."""
        self.start()
        reports = [self.write(partition) for partition in range(len(self._history.write.tasks))]
        self._dataset.finish(self._connect, self._task(0), reports, repeatable=True)

    def write(self, partition: int) -> TaskReport:
        """Do all that an attempt of a task does."""
        sent: SinkKind = pickle.loads(pickle.dumps(self._dataset))
        rows = self._history.rows(self._history.write.tasks[partition])
        return sent.write(rows, self._connect, self._task(partition))

    def _task(self, partition: int) -> WriteTask:
        return WriteTask(f"q{self._history.name}", 0, partition, run=self._run)

    def _connect(self, patience: float) -> Any:
        return connect(self._options.connection, patience=patience)
