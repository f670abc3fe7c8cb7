"""Queries with the option share, by runs that end at requests, and events between the runs."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from pyspark.sql.types import BinaryType, StructType

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.source import offsets
from tests.model.query import Offset, written
from tests.points.reads import Checkpoint, Reading
from tests.points.wire import Stop
from tests.points.writes import SECOND, World
from tests.support.calls import data_source
from tests.support.publish import Message
from tests.support.reading import wait_until
from tests.support.sinking import seen_in

POOL = "pool"
HOUR = 3600 * SECOND
DATA = StructType().add("data", BinaryType())
ROWS = [b"1", b"2", b"3", b"4"]
#: The row of the message that a stream loses.
LOST = ROWS[3:]


class Between(Enum):
    """The event between the end of a run and the next run."""

    NOTHING = "the query goes on within ack_wait"
    OTHERS = "another client has its messages"
    RESET = "the consumer is reset"
    CREATED_AGAIN = "the consumer is created again"
    SHORTER = "the stream loses its last message"
    LOST_TAIL = "the stream loses its last message, and stores others"


class Sharing(Reading):
    """One query on a work queue, from its first run until the queue is empty.

    Messages that a run has taken, and that are in no offset, go to the next run. A message is lost
    after the first end only, and each other event happens after each end.
    """

    def __init__(self, world: World, stops: Sequence[Stop] = (), *, between: Between) -> None:
        super().__init__(world, stops, retention="workqueue")
        self._between = between
        self._loses = between in (Between.SHORTER, Between.LOST_TAIL)
        self._instead = [b"4, again", b"5"] if between is Between.LOST_TAIL else []
        # Only a stream of files can be restored.
        storage = "file" if self._loses else "memory"
        self.config |= {"storage": storage, "allow_direct": False}
        for name in ("durable", "readWith"):
            del self._options[name]
        self._options["share"] = POOL
        self.foreign: list[bytes] = []  # the rows that another client has processed
        self.lost: list[bytes] = []

    def play(self) -> Iterator[None]:
        """Read all messages, with the event after each end, and check what was read."""
        admin = self.world.admin
        admin.api(f"STREAM.CREATE.{self.name}", self.config)
        self._create_consumer()
        with tempfile.TemporaryDirectory() as folder:
            self._publish_rows(ROWS[: -len(LOST)])
            self._copy = f"{folder}/copy"
            if self._loses:
                with self._administration() as administration:
                    administration.streams.backup(self.name, self._copy)
            self._publish_rows(LOST)
            self._begin()
            while not self._run():
                yield
                self._settle_consumer()
                self._happen()
                self._begin()
        assert len(self.ends) == len(self.stops), f"a stop was not reached: {self.places}"
        self._check()
        admin.api(f"STREAM.DELETE.{self.name}")

    def _create_consumer(self) -> None:
        wanted = {"durable_name": POOL, "ack_policy": "explicit", "ack_wait": HOUR}
        body = {"stream_name": self.name, "config": {"max_ack_pending": 1000, **wanted}}
        self.world.admin.api(f"CONSUMER.CREATE.{self.name}.{POOL}", body)

    def _publish_rows(self, rows: Sequence[bytes]) -> None:
        self.world.admin.publish([Message(f"{self.name}.a", row) for row in rows])

    def _administration(self) -> JetStreamAdmin:
        return JetStreamAdmin(servers=self.world.wire.server_url)

    def _check(self) -> None:
        rows = self._checkpoint.rows
        assert self._wanted_rows - set(rows) <= {*self.foreign}
        assert seen_in(self.world.admin, self.name) == []
        if not self.lost:
            # The query itself has no message twice.
            assert max(Counter(rows).values(), default=1) == 1, self._checkpoint

    @property
    def _wanted_rows(self) -> set[bytes]:
        """The rows that the server must not lose."""
        if not self.lost:
            return set(ROWS)
        return {*ROWS, *self._instead} - {*self.lost}

    # A run

    def _run_spark(self, options: Mapping[str, str], known: Checkpoint) -> None:
        """Do what one run of Spark does. It ends when nothing but its last batch is left."""
        reader: Any = data_source(options).streamReader(DATA)
        try:
            if len(known.planned) > len(known.committed):
                self._read_batch(reader, known)
            # A process that has ended may make no request at which it would notice.
            while not self.world.processes.dead and not self._is_done(reader, known):
                self._read_next(reader, known)
        finally:
            reader.stop()

    def _read_next(self, reader: Any, known: Checkpoint) -> None:
        """Plan the next batch, and read it."""
        start = known.planned[-1][1] if known.planned else written(reader.initialOffset())
        end = written(reader.latestOffset(start, reader.getDefaultReadLimit()))
        assert end != start
        if self.world.processes.dead:
            return
        known.planned.append((start, end))
        if len(known.planned) > 1:
            reader.commit(start)
        self._read_batch(reader, known)

    def _is_done(self, reader: Any, known: Checkpoint) -> bool:
        """Commit the last batch if the stream has no other messages. Return whether that is all."""
        last = known.committed[-1] if known.committed else []
        if self._stored_rows - set(last):
            return False
        if known.committed:
            reader.commit(known.planned[-1][1])
        # A batch with a lost message is not acknowledged, and what is left of it comes again.
        return not self.lost or not self._stored_rows

    @property
    def _stored_rows(self) -> set[bytes]:
        return {each.data for each in seen_in(self.world.admin, self.name)}

    def _check_kept(self) -> None:
        """The stream has all messages that neither Spark nor another client has."""
        stored = self._stored_rows
        done = {*self._checkpoint.rows, *self.foreign}
        assert self._wanted_rows - stored <= done, (stored, self._checkpoint)

    # Between two runs

    def _happen(self) -> None:
        """Let the event between two runs happen, and give back the messages of the ended run."""
        if self._between is Between.RESET:
            self.world.admin.api(f"CONSUMER.RESET.{self.name}.{POOL}", {})
        elif self._between is Between.CREATED_AGAIN:
            self.world.admin.api(f"CONSUMER.DELETE.{self.name}.{POOL}")
            self._create_consumer()
        elif self._loses and not self.lost:
            self._lose_tail()
        else:
            self._give_back()

    def _lose_tail(self) -> None:
        """Restore the stream without its last message, and publish others in its place."""
        self.lost = LOST
        admin = self.world.admin
        kept = {each.sequence for each in seen_in(admin, self.name)}
        admin.api(f"STREAM.DELETE.{self.name}")
        with self._administration() as administration:
            administration.streams.restore(self._copy)
        for each in seen_in(admin, self.name):
            if each.sequence not in kept:
                # The stream had removed it before, for an acknowledgement.
                admin.api(f"STREAM.MSG.DELETE.{self.name}", {"seq": each.sequence})
        self._publish_rows(self._instead)
        self._adopt()

    def _adopt(self) -> None:
        """Let the checkpoint know the restored stream and its consumer as the ones before.

        A server that has lost messages keeps the times when both were created. A restore makes
        them anew.
        """
        admin = self.world.admin
        created = admin.api(f"STREAM.INFO.{self.name}")["created"]
        consumer = admin.api(f"CONSUMER.INFO.{self.name}.{POOL}")["created"]
        for offset in (each for ends in self._checkpoint.planned for each in ends):
            offset["streams"][self.name]["created"] = created
            offset["held"][self.name]["consumer"] = consumer

    def _give_back(self) -> None:
        """Let the server deliver the messages of the ended run again, or another client have them.

        The query keeps those of its checkpoint.
        """
        admin = self.world.admin
        info = admin.api(f"CONSUMER.INFO.{self.name}.{POOL}")
        delivered = info["delivered"]
        held = set()
        # The checkpoint's sequences may belong to other messages after a loss.
        if self._checkpoint.planned and not self.lost:
            held = set(_sequences(self._checkpoint.planned[-1][1], self.name))
        for each in seen_in(admin, self.name):
            if each.sequence > delivered["stream_seq"]:
                continue
            # The server wants the number of a delivery that is not acknowledged yet.
            number = delivered["consumer_seq"]
            reply = f"$JS.ACK.{self.name}.{POOL}.1.{each.sequence}.{number}.1.0"
            if self._between is Between.OTHERS:
                admin.request(reply, b"+ACK")
                self.foreign.append(each.data)
            elif each.sequence not in held:
                admin.request(reply, b"-NAK")

    def _settle_consumer(self) -> None:
        """Return when the consumer has handled all that the ended run has sent."""
        admin = self.world.admin
        # It comes after all acknowledgements, and changes nothing.
        admin.request(f"$JS.ACK.{self.name}.{POOL}.1.1.1.1.0", b"+WPI")

        def without_pulls() -> bool:
            info = admin.api(f"CONSUMER.INFO.{self.name}.{POOL}")
            waiting: int = info["num_waiting"]
            return waiting == 0

        wait_until(without_pulls, "no pull is left")


def _sequences(offset: Offset, stream: str) -> tuple[int, ...]:
    """The sequences of the messages that an offset holds."""
    return offsets.Offset.from_json(offset).held[stream].sequences
