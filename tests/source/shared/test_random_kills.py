"""Queries and workers that share a consumer, in random turns: kills, restarts, lapses, new consumers.

A lapse takes messages from whoever holds them, also from a query that lives, as an outage does.
"""

from __future__ import annotations

import contextlib
import random

import pytest

from spark_jetstream.admin import JetStreamAdmin
from tests.support.sharing import POOL, Killed, Outcome, Pool, SharedQuery
from tests.support.streams import MakeStream

STEPS = (
    "reserved",
    "offset written",
    "rows read",
    "half in the plain sink",
    "in the sink",
    "committed",
)
TURNS = 120


class Crowd:
    """Three queries, a worker, and a queue. Each method but `drain` is one turn."""

    def __init__(self, pool: Pool, rng: random.Random) -> None:
        self.pool = pool
        self.rng = rng
        self.published: list[int] = []
        self.foreign: list[int] = []
        self.held: list[int] = []  # by the worker, which processes it when it acknowledges
        self.kills = 0
        self.queries = [SharedQuery(pool, rng.randint(5, 15)) for _ in range(3)]

    def publish(self) -> None:
        self.published += self.pool.stream.fill(self.rng.randint(1, 40))

    def run_query(self) -> None:
        query = self.rng.choice(self.queries)
        step = self.rng.choice((*STEPS, "", "", ""))
        with contextlib.suppress(Killed):
            query.trigger(kill_at=step)
            return
        self.kills += 1
        query.start()

    def acknowledge_half(self) -> None:
        """A query dies while it acknowledges."""
        query = self.rng.choice(self.queries)
        if query.last in query.commits:
            held = query.held()
            self.pool.acknowledge(sorted({*held[::2]} & {*self.pool.left}))
            query.kill()
            query.start()

    def take(self) -> None:
        self.held += self.pool.take(self.rng.randint(1, 20))

    def finish(self) -> None:
        self.pool.acknowledge(self.held)
        self.foreign += self.held
        self.held = []

    def lapse(self) -> None:
        left = self.pool.left
        if left and self.pool.info()["num_ack_pending"]:
            self.pool.lapse(self.rng.sample(left, self.rng.randint(1, len(left))))

    def create_consumer(self) -> None:
        self.pool.stream.publisher.api(f"CONSUMER.DELETE.{self.pool.name}.{POOL}")
        self.pool.create_consumer()
        self.held = []

    def turn(self) -> None:
        turns = {
            self.publish: 3,
            self.run_query: 10,
            self.acknowledge_half: 1,
            self.take: 2,
            self.finish: 2,
            self.lapse: 3,
            self.create_consumer: 0.3,
        }
        (chosen,) = self.rng.choices(list(turns), list(turns.values()))
        chosen()

    def drain(self) -> None:
        self.finish()
        while self.pool.left:
            busy = [query.trigger() for query in self.queries]
            if not any(busy) and self.pool.left:
                self.pool.lapse(self.pool.left)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost(stream: MakeStream, admin: JetStreamAdmin, seed: int) -> None:
    crowd = Crowd(Pool(stream, admin), random.Random(seed))
    for _ in range(TURNS):
        crowd.turn()
    crowd.drain()
    for query in crowd.queries:
        query.kill()
    outcome = Outcome(crowd.queries, crowd.foreign, crowd.published)
    assert outcome.lost == []
    assert crowd.kills > TURNS // 10
    assert outcome.twice > 0
