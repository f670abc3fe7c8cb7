"""A server that is down while a consumer is created again: no server of an interest stream is ever
without one of the two consumers that hold what is not committed.

The servers have CONSUMER.RESET, and `Progress` is told that none of them has. (While it does not
know their versions, no consumer is moved: test_mixed_versions.py.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from spark_jetstream.client.pool import close_all
from spark_jetstream.errors import JetStreamError
from spark_jetstream.protocol.features import CONSUMER_RESET
from spark_jetstream.source.durable import consumer_state
from spark_jetstream.source.durable.consumer_state import ConsumerState, metadata_of
from spark_jetstream.source.durable.consumers import DurableConsumers
from spark_jetstream.source.durable.moves import Way
from spark_jetstream.source.durable.replicas import Replicas
from spark_jetstream.testing import NatsCluster
from spark_jetstream.testing.process import poll
from tests.support.features import for_none
from tests.support.progress import (
    Run,
    consumers,
    kept,
    make_consumer,
    position,
    replica,
    replicated,
)
from tests.support.publish import Refused
from tests.support.streams import Stream

STAND_IN = "query-spark-moving"


@pytest.fixture(scope="module")
def cluster() -> Iterator[NatsCluster]:
    with NatsCluster() as running:
        yield running
    close_all()


@pytest.fixture(autouse=True)
def _old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_state, "CONSUMER_RESET", for_none(CONSUMER_RESET))
    monkeypatch.setattr(DurableConsumers, "way", lambda *_: Way.AGAIN)


@pytest.fixture
def made(cluster: NatsCluster) -> Iterator[Callable[..., Stream]]:
    with replicated(cluster.servers[0].url) as make:
        yield make


@contextmanager
def killed(cluster: NatsCluster, stream: Stream) -> Iterator[None]:
    """A follower of the stream is down. The tests are connected to the first server."""
    leader = cluster.leader_of(stream.name)
    index = next(index for index in (1, 2) if index != leader)
    cluster.kill(index)
    try:
        yield
    finally:
        cluster.servers[index].start()
        # A server that was down while a consumer was created again may never call itself healthy.
        poll(lambda: has_all(cluster, stream) or None, 60.0, lambda: TimeoutError("not current"))


def has_all(cluster: NatsCluster, stream: Stream) -> bool:
    """Whether all servers have the same messages and consumers of the stream."""
    return len({repr(replica(server)) for server in cluster.servers}) == 1


def until(run: Run, sequence: int, check: Callable[[], bool]) -> None:
    """Commit up to a sequence until something is so.

    Requests fail until the servers have elected other leaders.
    """

    def moved() -> bool | None:
        with contextlib.suppress(JetStreamError, Refused):
            run.move(sequence)
            return check() or None
        return None

    poll(moved, 120.0, lambda: TimeoutError(f"at {sequence}: {consumers(run.stream)}"))


def is_moved(run: Run, sequence: int, *more: str) -> Callable[[], bool]:
    """Whether the consumer is at a sequence, with these others beside it."""
    return lambda: position(run.stream) == sequence and consumers(run.stream) == ["query", *more]


def test_the_consumer_stays_while_a_server_lacks_the_stand_in(
    made: Callable[..., Stream], cluster: NatsCluster, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(made()).begin(12)
    requests = run.wire.subjects
    with killed(cluster, run.stream):
        until(run, 3, lambda: f"of consumer {STAND_IN} have it" in caplog.text)
        created = requests.count(f"CONSUMER.CREATE.S.{STAND_IN}")
        for sequence in (3, 5):
            run.move(sequence)
            assert is_moved(run, 1, STAND_IN)()
            assert run.held(1, 13)
        assert requests.count(f"CONSUMER.CREATE.S.{STAND_IN}") == created
        assert "CONSUMER.DELETE.S.query" not in requests
    (told,) = [text for text in caplog.messages if f"of consumer {STAND_IN}" in text]
    assert "commits wait" in told
    assert "have it (down or behind: test-" in told
    until(run, 7, is_moved(run, 7))


def test_the_stand_in_stays_while_a_server_lacks_the_consumer(
    made: Callable[..., Stream], cluster: NatsCluster
) -> None:
    run = Run(made()).begin(12)
    with ExitStack() as down:

        def kill(subject: str) -> None:
            if subject == "CONSUMER.DELETE.S.query":
                run.wire.after = lambda subject: None
                down.enter_context(killed(cluster, run.stream))

        run.wire.after = kill
        until(run, 5, lambda: position(run.stream) == 5)
        assert consumers(run.stream) == ["query", STAND_IN]
        run.move(7)
        assert consumers(run.stream) == ["query", STAND_IN]
        assert run.held(5, 13)
    # The server that was down has lost nothing.
    assert all(replica(server)[0] <= 5 for server in cluster.servers)
    until(run, 7, is_moved(run, 7))


def test_a_stream_with_limits_needs_no_consumer(
    made: Callable[..., Stream], cluster: NatsCluster
) -> None:
    run = Run(made("limits")).begin(12)
    with killed(cluster, run.stream):
        until(run, 5, is_moved(run, 5))


def test_servers_of_2_10_delete_no_consumer(
    made: Callable[..., Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even the stand-in that a run of an earlier version has left."""

    def of_2_10(config: Mapping[str, Any]) -> dict[str, Any]:
        known = metadata_of(config)
        return {key: value for key, value in known.items() if key != "_nats.level"}

    monkeypatch.setattr(consumer_state, "metadata_of", of_2_10)
    run = Run(made()).begin(12)
    make_consumer(run.stream, STAND_IN)
    resumed = Run(run.stream).open(fresh=False)
    for sequence in (3, 5):
        until(resumed, sequence, is_moved(resumed, sequence, STAND_IN))
        assert kept(run.stream) == (sequence, 12, 13 - sequence)
    assert not [subject for subject in resumed.wire.subjects if "CONSUMER.DELETE" in subject]


class Looks:
    """Answers looks at a consumer with states in their order."""

    def __init__(self, *states: ConsumerState | None) -> None:
        self.states = list(states)

    def info(self, stream: str, name: str) -> ConsumerState | None:
        return self.states.pop(0)


def state(**replicas: dict[str, Any]) -> ConsumerState:
    body: dict[str, Any] = {
        "config": {},
        "delivered": {"consumer_seq": 0, "stream_seq": 0},
        "ack_floor": {"stream_seq": 0},
        "cluster": {"replicas": [{"name": name, **each} for name, each in replicas.items()]},
    }
    return ConsumerState.from_reply(body, "look")


COMPLETE = state(one={"current": True}, two={"current": True})
BEHIND = state(one={"current": True}, two={"current": False, "lag": 1})
DOWN = state(one={"current": True}, two={"current": True, "offline": True})


@pytest.mark.parametrize(
    ("first", "looks", "result", "left"),
    [
        (COMPLETE, [], True, 0),
        (BEHIND, [BEHIND, COMPLETE], True, 0),
        (BEHIND, [DOWN, COMPLETE], False, 1),
        (DOWN, [COMPLETE], False, 1),
        (BEHIND, [None], False, 0),
        (state(), [], True, 0),
    ],
    ids=["all have it", "later", "down meanwhile", "down", "deleted", "no replicas"],
)
def test_all_servers_must_have_it(
    first: ConsumerState, looks: list[ConsumerState | None], result: bool, left: int
) -> None:
    answers = Looks(*looks)
    # Far longer than three looks take.
    replicas = Replicas(cast(DurableConsumers, answers), "S", patience=60.0)
    assert replicas.have("query", first) is result
    assert len(answers.states) == left


def test_a_server_that_stays_behind_is_waited_for_once(caplog: pytest.LogCaptureFixture) -> None:
    # Eleven times this would be eleven minutes.
    replicas = Replicas(cast(DurableConsumers, Looks()), "S", patience=60.0)
    assert not replicas.have("query", DOWN)
    assert not any(replicas.have("query", BEHIND) for _ in range(10))
    assert replicas.have("query", COMPLETE)
    assert not replicas.have("query", replace(DOWN, behind=("three",)))
    told = [text.partition("behind: ")[2] for text in caplog.messages]
    assert [text.partition(")")[0] for text in told] == ["two", "three"]
