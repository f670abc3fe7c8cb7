"""A work queue whose consumer a query shares with others, without Spark: `SharedQuery` lives as a query does.

A query is killed at any step, and started again from its checkpoint. Its messages go to others when
their time is up, which `Pool.lapse` brings about at once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.options import SourceOptions
from spark_jetstream.schema import COLUMNS
from spark_jetstream.source.offsets import Offset
from spark_jetstream.source.shared.planner import SharedPlanner
from spark_jetstream.source.shared.rows import SharedRows
from tests.model.rows import Wrong
from tests.support.progress import left
from tests.support.reading import QUICK, connecting, wait_until
from tests.support.streams import MakeStream, Stream

POOL = "pool"
HOUR = 3600 * 10**9  # ns


class Pool:
    """A work queue with one consumer, and clients that take messages from it."""

    def __init__(self, make: MakeStream, admin: JetStreamAdmin, **config: Any) -> None:
        stream_config = config.pop("stream", {})
        self.stream: Stream = make(retention="workqueue", **stream_config)
        self.admin = admin
        self.name = self.stream.name
        self.create_consumer(**config)

    def create_consumer(self, **config: Any) -> None:
        asked = {
            "durable_name": POOL,
            "name": POOL,
            "ack_policy": "explicit",
            "ack_wait": HOUR,
            "max_ack_pending": 100_000,
            **config,
        }
        body = {"stream_name": self.name, "config": asked}
        self.stream.publisher.api(f"CONSUMER.CREATE.{self.name}.{POOL}", body)

    def info(self) -> dict[str, Any]:
        return self.stream.publisher.api(f"CONSUMER.INFO.{self.name}.{POOL}")

    def planner(self, **options: object) -> SharedPlanner:
        given = {"stream": self.name, "share": POOL, **options}
        texts = {name: str(value) for name, value in given.items()}
        parsed = SourceOptions.from_spark(
            {**QUICK, "servers": self.stream.url, **texts}, streaming=True
        )
        names = [column.name for column in COLUMNS]
        return SharedPlanner(parsed, connecting(parsed.connection), names, wait=0.5)

    def take(self, count: int) -> list[int]:
        """The sequences that a worker is given; it acknowledges nothing yet."""
        given = self.admin.consumers.next(self.name, POOL, count, ack="none", no_wait=True)
        return [each.message.seq for each in given]

    def acknowledge(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            self.admin.consumers.ack(f"$JS.ACK.{self.name}.{POOL}.1.{sequence}.1.1.0")

    def lapse(self, sequences: Iterable[int]) -> None:
        """Have these messages delivered again, as after `ack_wait`."""
        delivered = self.info()["delivered"]["consumer_seq"]
        for sequence in sequences:
            # The server wants the number of a delivery that is not acknowledged yet, and confirms.
            reply = f"$JS.ACK.{self.name}.{POOL}.1.{sequence}.{delivered}.1.0"
            self.admin.consumers.nak(reply)

    def holds(self, *sequences: int) -> None:
        """Wait until the stream has just these."""
        wait_until(lambda: left(self.stream) == list(sequences), f"{sequences} in the stream")

    @property
    def left(self) -> list[int]:
        return left(self.stream)


def sequences_of(parts: Iterable[SharedRows]) -> list[int]:
    """The sequences of rows that tasks hand out."""
    return [
        sequence
        for part in parts
        for batch in part.batches()
        for sequence in batch.column("sequence").to_pylist()
    ]


def table_of(parts: Iterable[SharedRows]) -> pa.Table:
    return pa.Table.from_batches([batch for part in parts for batch in part.batches()])


class Killed(Exception):
    """The process of a query ends here."""


class SharedQuery:
    """Micro-batches as Spark makes them, with a sink that skips a batch that it has, and one that
    appends.

    The checkpoint (offsets as text, commits) and the sinks outlive a kill.
    """

    def __init__(self, pool: Pool, batch: int = 20) -> None:
        self.pool = pool
        self.batch = batch
        self.offsets: dict[int, str] = {}
        self.commits: set[int] = set()
        self.idempotent: dict[int, list[int]] = {}
        self.plain: list[int] = []
        self.start()

    def start(self) -> None:
        self.planner = self.pool.planner(maxMessagesPerTrigger=self.batch)

    def kill(self) -> None:
        self.planner.close()

    @property
    def last(self) -> int:
        return max(self.offsets, default=-1)

    def offset(self, batch: int) -> Offset:
        """Where a batch ends; -1 is where the query begins."""
        if batch < 0:
            return self.planner.initial()
        return Offset.from_json(json.loads(self.offsets[batch]))

    def held(self) -> tuple[int, ...]:
        """The messages of the last batch."""
        return self.offset(self.last).held[self.pool.name].sequences

    def run_batch(self, kill_at: str = "") -> None:
        """Run a batch, as `trigger` does: a busy server may bring no message in time."""
        wait_until(lambda: self.trigger(kill_at), "a batch")

    def trigger(self, kill_at: str = "") -> bool:
        """Run the next batch, or the last one again; False if there is nothing to read."""

        def reached(step: str) -> None:
            if step == kill_at:
                self.kill()
                raise Killed(step)

        if self.last >= 0 and self.last not in self.commits:
            self._run(reached)
            return True
        start = self.offset(self.last)
        end = self.planner.latest(start, limited=True)
        if end == start:
            return False
        reached("reserved")
        self.offsets[self.last + 1] = json.dumps(end.to_json())
        self._run(reached)
        return True

    def _run(self, reached: Callable[[str], None]) -> None:
        batch = self.last
        reached("offset written")
        parts = self.planner.ranges(self.offset(batch - 1), self.offset(batch))
        rows = sequences_of(parts)
        reached("rows read")
        half = len(rows) // 2
        self.plain += rows[:half]
        reached("half in the plain sink")
        self.plain += rows[half:]
        self.idempotent.setdefault(batch, rows)
        reached("in the sink")
        self.commits.add(batch)
        reached("committed")


class Outcome:
    """Which messages were lost, and how many were processed twice, with either sink."""

    def __init__(self, queries: Iterable[SharedQuery], foreign: Iterable[int], all_: Iterable[int]):
        skipping, appending = Counter(foreign), Counter(foreign)
        for query in queries:
            skipping.update(row for batch in query.idempotent.values() for row in batch)
            appending.update(query.plain)
        owed = Counter(all_)
        wrong = [Wrong(found, owed, owed) for found in (skipping, appending)]
        self.lost = sorted(sequence for each in wrong for sequence in each.missing)
        self.twice, self.twice_plain = (len(each.repeated) for each in wrong)
