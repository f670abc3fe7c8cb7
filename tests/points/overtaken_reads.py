"""Queries that stand still at one of their requests while another run or query does all its work."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

from spark_jetstream.errors import JetStreamError
from tests.points.reads import Checkpoint, Reading
from tests.points.shares import DATA, POOL, ROWS, Between, Sharing
from tests.points.wire import Stop
from tests.points.writes import World
from tests.support.calls import data_source
from tests.support.publish import Message

T = TypeVar("T")


class NotOurs(Exception):
    """Another run has written this entry of the checkpoint."""


class Log(list[T]):
    """Entries of a checkpoint. Spark ends a run whose next entry another run has written.

    An entry is written after `wait` has returned.
    """

    closed = False

    def __init__(self, entries: Sequence[T], wait: Callable[[], None]) -> None:
        super().__init__(entries)
        self._wait = wait

    def append(self, entry: T) -> None:
        self._wait()
        if self.closed:
            raise NotOurs
        super().append(entry)


class OvertakenReading(Reading):
    """A query with `durable`. At its only stop another run goes on from the same checkpoint.

    More messages are published before the first run goes on.
    """

    _theirs: Checkpoint | None = None
    _second_thread = 0
    _more = 0

    def _begin(self) -> None:
        self.places = []
        stop = self._left.pop(0) if self._left else None
        self.world.wire.begin(stop, self._work_of_second, pauses=True)

    def _read_all(self) -> None:
        ours = self._checkpoint
        ours.planned = Log(ours.planned, self._wait)
        ours.committed = Log(ours.committed, self._wait)
        try:
            super()._read_all()
        except (JetStreamError, NotOurs):
            if self._theirs is None:
                raise
        finally:
            # The process must not close the connections of the second run.
            self.world.wire.rest()
        if self._theirs is not None and (ours.planned.closed or ours.committed.closed):
            self._checkpoint = self._theirs

    def _wait(self) -> None:
        """Wait in the first run until the second one has ended, if it has begun.

        The first run may go on for a step, when it stands still after a reply.
        """
        if threading.get_ident() != self._second_thread:
            self.world.wire.rest()

    def _publish(self) -> None:
        self._wait()
        if not self._published:
            super()._publish()

    def _work_of_second(self) -> None:
        self._second_thread = threading.get_ident()
        ours = self._checkpoint
        theirs = Checkpoint(list(ours.planned), list(ours.committed))
        self._run_second({**self._options, "servers": self.world.wire.server_url}, theirs)
        assert isinstance(ours.planned, Log)
        assert isinstance(ours.committed, Log)
        ours.planned.closed = len(theirs.planned) > len(ours.planned)
        ours.committed.closed = len(theirs.committed) > len(ours.committed)
        self._theirs = theirs
        self._publish_more()

    def _run_second(self, options: Mapping[str, str], theirs: Checkpoint) -> None:
        self._run_spark(options, theirs)

    def _publish_more(self) -> None:
        self._more = 2
        self.world.admin.publish([Message(f"{self.name}.a", b"x")] * self._more)

    def _wanted(self) -> list[int]:
        return list(range(1, self._count + self._more + 1))


class SecondReader(Enum):
    """The second reader of a shared consumer."""

    RUN = "another run of the query"
    QUERY = "another query that shares the consumer"


class OvertakenSharing(OvertakenReading, Sharing):
    """A query with `share`, and a second reader of its consumer at its only stop."""

    def __init__(self, world: World, stops: Sequence[Stop] = (), *, second: SecondReader) -> None:
        Sharing.__init__(self, world, stops, between=Between.NOTHING)
        self._second = second

    def _run_second(self, options: Mapping[str, str], theirs: Checkpoint) -> None:
        if self._second is SecondReader.QUERY:
            own = Checkpoint()
            self._take_rest(options, own)
            self.foreign = own.rows
        else:
            self._take_rest(options, theirs)

    def _take_rest(self, options: Mapping[str, str], known: Checkpoint) -> None:
        """Do what a run does until the consumer has delivered all messages."""
        reader: Any = data_source(options).streamReader(DATA)
        try:
            if len(known.planned) > len(known.committed):
                self._read_batch(reader, known)
            while self._has_pending():
                self._read_next(reader, known)
            if known.committed:
                reader.commit(known.planned[-1][1])
        finally:
            reader.stop()

    def _has_pending(self) -> bool:
        pending: int = self.world.admin.api(f"CONSUMER.INFO.{self.name}.{POOL}")["num_pending"]
        return pending > 0

    def _publish_more(self) -> None:
        self._publish_rows([b"5", b"6"])
        self._more = 2

    @property
    def _stored_rows(self) -> set[bytes]:
        self._wait()
        return super()._stored_rows

    @property
    def _wanted_rows(self) -> set[bytes]:
        return {*ROWS, *((b"5", b"6") if self._more else ())}

    def _check(self) -> None:
        super()._check()
        # Nobody was silent for longer than ack_wait.
        assert max(Counter([*self._checkpoint.rows, *self.foreign]).values()) == 1
