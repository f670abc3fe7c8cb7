"""A consumer is moved only where all servers that keep it can do that.

A server before 2.14 in the same cluster crashes when it reads of the move in the log of the
consumer. `make suites SUITES=update` runs such clusters. Here the servers are of one version,
and a proxy changes the version that they tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import cast

import pytest

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import close_all
from spark_jetstream.protocol.jsapi import ASK_SERVERS
from spark_jetstream.source.durable.consumer_state import ConsumerState
from spark_jetstream.source.durable.moves import Moves, Way
from spark_jetstream.testing import NatsCluster
from tests.support.mixed import tells
from tests.support.progress import Run, consumer, consumers, position, replicated
from tests.support.proxy import WireProxy
from tests.support.streams import Stream


@pytest.fixture(scope="module")
def cluster() -> Iterator[NatsCluster]:
    """A cluster where the user `silent` may not ask servers for their versions."""
    users = f"""authorization {{ users: [
        {{user: spark, password: spark}},
        {{user: silent, password: silent, permissions: {{publish: {{deny: "{ASK_SERVERS}"}}}}}}
    ]}}"""
    with NatsCluster(config=users) as running:
        yield running
    close_all()


def url_of(cluster: NatsCluster, user: str) -> str:
    return cluster.servers[0].url.replace("//", f"//{user}:{user}@")


@pytest.fixture
def server(cluster: NatsCluster) -> Iterator[WireProxy]:
    """A proxy before the first server."""
    with WireProxy(url_of(cluster, "spark")) as proxy:
        yield proxy


@pytest.fixture
def made(cluster: NatsCluster) -> Iterator[Callable[..., Stream]]:
    with replicated(url_of(cluster, "spark")) as make:
        yield make


def followers(stream: Stream) -> list[str]:
    return sorted(each["name"] for each in consumer(stream)["cluster"]["replicas"])


def move(run: Run, sequence: int) -> str:
    """Commit up to a sequence, and say what became of the consumer."""
    before = consumer(run.stream)
    run.move(sequence)
    assert consumers(run.stream) == ["query"]
    after = consumer(run.stream)
    if position(run.stream) != sequence:
        assert after["delivered"] == before["delivered"]
        return "stayed"
    return "moved" if after["created"] == before["created"] else "created again"


@pytest.mark.parametrize("retention", ["limits", "interest"])
def test_a_consumer_stays_until_all_servers_can_move_it(
    made: Callable[..., Stream],
    server: WireProxy,
    retention: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = Run(made(retention), url=server.url).begin(12)
    one, other = followers(run.stream)
    tells(server, {one: b"2.12.8", other: b"2.10.5"})
    assert move(run, 3) == "stayed"
    tells(server, {one: b"2.13.9"})
    assert move(run, 5) == "stayed"
    assert run.held(1, 13)
    tells(server, {})
    assert move(run, 7) == "moved"
    # Their versions are known now.
    tells(server, {one: b"", other: b""})
    assert move(run, 9) == "moved"
    told = [text for text in caplog.messages if "commits wait" in text]
    assert f"older or silent: {one} (2.12.8), {other} (2.10.5))" in told[0]
    assert f"older or silent: {one} (2.13.9))" in told[1]


def test_a_server_that_does_not_answer_may_be_an_old_one(
    made: Callable[..., Stream], server: WireProxy, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(made(), url=server.url).begin(12)
    one, _ = followers(run.stream)
    tells(server, {one: b""})
    assert move(run, 3) == "stayed"
    assert f"older or silent: {one} (does not answer))" in caplog.text
    tells(server, {})
    assert move(run, 5) == "moved"


def test_a_server_that_is_silent_for_long_is_not_waited_for(
    made: Callable[..., Stream], server: WireProxy
) -> None:
    run = Run(made(), url=server.url).begin(12)
    state = ConsumerState.from_reply(consumer(run.stream), "look")
    one, other = state.followers
    tells(server, {one: b""})
    assert Moves(silent=0).way(run.wire.real, state, 3) is Way.RESET
    tells(server, {one: b"", other: b"2.12.8"})
    assert Moves(silent=0).way(run.wire.real, state, 3) is Way.LATER


def test_a_server_that_no_longer_answers_may_become_a_newer_one(
    made: Callable[..., Stream], server: WireProxy
) -> None:
    run = Run(made(), url=server.url).begin(12)
    older = replace(ConsumerState.from_reply(consumer(run.stream), "look"), level=2)
    one, other = older.followers
    moves = Moves()
    tells(server, {one: b"2.12.8", other: b"2.12.8"})
    assert moves.way(run.wire.real, older, 3) is Way.AGAIN
    tells(server, {one: b"2.12.8", other: b""})
    assert moves.way(run.wire.real, older, 3) is Way.LATER


def test_an_older_leader_waits_for_its_followers_too(made: Callable[..., Stream]) -> None:
    run = Run(made()).begin(12)
    state = ConsumerState.from_reply(consumer(run.stream), "look")
    older = replace(state, level=2)
    moves = Moves()
    assert moves.way(run.wire.real, state, 3) is Way.RESET
    assert moves.way(run.wire.real, older, 3) is Way.LATER


def test_servers_that_are_all_older_create_a_consumer_again(
    made: Callable[..., Stream], server: WireProxy
) -> None:
    run = Run(made(), url=server.url).begin(12)
    state = ConsumerState.from_reply(consumer(run.stream), "look")
    tells(server, dict.fromkeys(state.followers, b"2.12.8"))
    assert Moves().way(run.wire.real, replace(state, level=2), 3) is Way.AGAIN


def test_a_leader_that_becomes_a_follower_is_known(made: Callable[..., Stream]) -> None:
    run = Run(made()).begin(12)
    state = ConsumerState.from_reply(consumer(run.stream), "look")
    moves = Moves()
    assert moves.way(run.wire.real, state, 3) is Way.RESET
    first, *rest = state.followers
    after = replace(state, leader=first, followers=(state.leader, *rest), offline=(state.leader,))
    assert moves.way(cast(Connection, None), after, 3) is Way.RESET


def test_servers_that_are_known_to_be_down_are_not_asked(made: Callable[..., Stream]) -> None:
    run = Run(made()).begin(12)
    state = ConsumerState.from_reply(consumer(run.stream), "look")
    assert len(state.followers) == 2
    down = replace(state, offline=state.followers)
    nobody = cast(Connection, None)
    assert Moves().way(nobody, down, 3) is Way.LATER


def test_a_work_queue_leaves_its_consumer_at_the_next_message_meanwhile(
    made: Callable[..., Stream], server: WireProxy
) -> None:
    run = Run(made("workqueue"), "s.a", url=server.url).open()
    run.stream.fill_in_turn(12, "ab")
    one, _ = followers(run.stream)
    tells(server, {one: b"2.11.0"})
    run.move(4)
    assert position(run.stream) == 5
    tells(server, {})
    run.move(8)
    assert position(run.stream) == 8


def test_where_the_user_may_not_ask_the_version_of_the_leader_decides(
    made: Callable[..., Stream], cluster: NatsCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    run = Run(made(), url=url_of(cluster, "silent")).begin(12)
    assert move(run, 3) == "moved"
    assert move(run, 5) == "moved"
    (told,) = [text for text in caplog.messages if ASK_SERVERS in text]
    assert "would not be noticed" in told


def test_behind_a_leaf_node_the_version_of_the_leader_decides(
    made: Callable[..., Stream], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    run = Run(made()).begin(12)
    state = ConsumerState.from_reply(consumer(run.stream), "look")
    assert Moves().way(run.wire.real, replace(state, cluster="hub"), 3) is Way.RESET
    assert "no server of cluster hub tells its version" in caplog.text


def test_a_silent_server_of_another_cluster_is_waited_for_if_one_was_heard(
    made: Callable[..., Stream], server: WireProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(made(), url=server.url).begin(12)
    state = ConsumerState.from_reply(consumer(run.stream), "look")
    monkeypatch.setattr(Connection, "server_info", {"cluster": "west"})
    moves = Moves()
    one, other = state.followers
    tells(server, {one: b"2.12.8"})
    assert moves.way(run.wire.real, state, 3) is Way.LATER
    tells(server, {one: b"", other: b""})
    assert moves.way(run.wire.real, state, 3) is Way.LATER
