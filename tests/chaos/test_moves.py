"""Commits that create a consumer of an interest stream again, while servers are killed in turn.

A server that was down meanwhile must not remove messages from its replica that are not committed:
it may lead the stream next. Servers since 2.14 have the same danger, and `Progress` is told that
they cannot move a consumer.

    MOVES_KILLS=40 MOVES_SEED=2 python -m pytest tests/chaos/test_moves.py

With `CHAOS_SERVER` it runs on another nats-server.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from random import Random

import pytest

from spark_jetstream.client.pool import close_all
from spark_jetstream.errors import JetStreamError
from spark_jetstream.protocol.features import CONSUMER_RESET
from spark_jetstream.source.durable import consumer_state
from spark_jetstream.source.durable.consumers import DurableConsumers
from spark_jetstream.source.durable.moves import Way
from spark_jetstream.testing import NatsCluster
from spark_jetstream.testing.process import poll
from tests.support.features import for_none
from tests.support.progress import Run, consumers, position, repeated, replica
from tests.support.publish import Message, Publisher, Refused
from tests.support.servers import version_of
from tests.support.streams import Stream

SERVER = os.environ.get("CHAOS_SERVER")
KILLS = int(os.environ.get("MOVES_KILLS", "8"))
SEED = int(os.environ.get("MOVES_SEED", "1"))
_DOWN = (0.0, 0.3, 2.0, 8.0, 15.0)  # seconds for which a server is down
_UP = (1.0, 3.0, 6.0)  # seconds until the next one is
_END = 120.0  # seconds in which the last commit must succeed


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[NatsCluster]:
    with NatsCluster(binary=SERVER) as running:
        if CONSUMER_RESET.is_in(version_of(SERVER)):
            monkeypatch.setattr(consumer_state, "CONSUMER_RESET", for_none(CONSUMER_RESET))
            monkeypatch.setattr(DurableConsumers, "way", lambda *_: Way.AGAIN)
        yield running
    close_all()


class Query:
    """A query that commits some of the last messages again and again."""

    def __init__(self, cluster: NatsCluster, random: Random) -> None:
        self._cluster = cluster
        self._random = random
        with self._publisher() as publisher:
            url = cluster.servers[0].url
            stream = Stream(url, "S", publisher, retention="interest", num_replicas=3)
            self.run = Run(stream, url=cluster.url).open()
        #: Everything below may be gone.
        self.begun = 1

    def publish(self) -> None:
        """Publish a few messages, on a connection to a server that is up."""
        with self._publisher() as publisher:
            publisher.publish([Message("s.a")] * 20)

    def commit(self) -> None:
        """Commit all messages but a few."""
        with self._publisher() as self.run.stream.publisher:
            last = self.run.stream.state()["last_seq"]
            self.run.check(self.begun)
            self.begun = max(self.begun, last - self._random.randint(5, 60))
            self.run.commit(self.begun)

    def has_committed(self) -> bool:
        """Whether the consumer is at the position, and no other one is left."""
        self.commit()
        with self._publisher() as self.run.stream.publisher:
            is_there = position(self.run.stream) == self.begun
            return is_there and consumers(self.run.stream) == ["query"]

    def _publisher(self) -> Publisher:
        for server in self._cluster.servers:
            with contextlib.suppress(OSError):
                return Publisher(server.url)
        raise OSError("no server is up")


def through_outages(act: Callable[[], None]) -> Callable[[], None]:
    """The function without its errors while servers are down."""

    def call() -> None:
        with contextlib.suppress(OSError, JetStreamError, Refused):
            act()

    return call


def lost(cluster: NatsCluster, query: Query) -> list[str]:
    """The servers whose replicas begin after a message that is not committed, in words."""
    wrong = []
    for server in cluster.servers:
        with contextlib.suppress(OSError):
            first, last, _ = replica(server)
            if first > query.begun:
                wrong.append(f"{server.name} has {first} to {last}, after {query.begun}")
    return wrong


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_no_replica_loses_a_message_that_is_not_committed(cluster: NatsCluster) -> None:
    random = Random(SEED)
    query = Query(cluster, random)
    publish, commit = through_outages(query.publish), through_outages(query.commit)
    with repeated(publish, 0.1), repeated(commit, 0.2):
        for number in range(KILLS):
            server = random.choice(cluster.servers)
            server.kill()
            time.sleep(random.choice(_DOWN))
            server.start()
            up = time.monotonic() + random.choice(_UP)
            while time.monotonic() < up:
                time.sleep(0.5)
                assert lost(cluster, query) == [], f"seed {SEED}, after {number + 1} kills"
    poll(lambda: query.has_committed() or None, _END, lambda: TimeoutError("no commit"))
    assert lost(cluster, query) == []
