"""Features that only a cluster has: replicas, leaders that step down, servers that are removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from spark_jetstream.admin import DEFAULT_CONSUMER, JetStreamAdmin, Replica, StreamInfo
from spark_jetstream.admin.models.streams import replicas
from spark_jetstream.errors import (
    ApiError,
    ConsumerNotFound,
    JetStreamError,
    OptionError,
    RequestTimeout,
    ServerBusy,
    StreamNotFound,
)
from spark_jetstream.testing import NatsCluster
from spark_jetstream.testing.process import poll
from tests.admin.configs import read
from tests.admin.conftest import knowing_admin
from tests.support.mixed import tells
from tests.support.proxy import WireProxy
from tests.support.publish import Message, Publisher

SERVERS = {"test-0", "test-1", "test-2"}
Placed = Callable[[], tuple[Replica, ...]]


@pytest.fixture(scope="module")
def clustered(nats_cluster: NatsCluster) -> Iterator[JetStreamAdmin]:
    """A cluster of three with a stream R3 on all of its servers, and R1 on one."""
    with knowing_admin(nats_cluster.url) as admin, Publisher(nats_cluster.urls[0]) as publisher:
        admin.streams.create(name="R3", subjects=["r3.*"], num_replicas=3)
        admin.streams.create(name="R1", subjects=["r1.*"], num_replicas=1)
        publisher.publish(Message(f"r3.{number % 3}", b"%d" % number) for number in range(30))
        yield admin
        for name in ("R3", "R1"):
            admin.streams.delete(name)


def settled(
    placed: Placed, servers: set[str], leader: str | None = None, other_than: str | None = None
) -> str:
    """Wait for a leader (that one, or another than that one) and for replicas that are up to date;
    the leader.
    """

    def look() -> str | None:
        try:
            found = placed()
        except ServerBusy:
            return None
        leads = [each.server for each in found if each.leader]
        whole = {each.server for each in found} == servers and all(
            each.current and not each.lag for each in found
        )
        fits = leads and leader in (None, leads[0]) and leads[0] != other_than
        return leads[0] if whole and fits else None

    return poll(look, 30, lambda: TimeoutError(f"{placed()}"))


def test_replicas(clustered: JetStreamAdmin) -> None:
    leader = settled(lambda: clustered.streams.replicas("R3"), SERVERS)
    found = clustered.streams.replicas("R3")
    assert found[0] == Replica(leader, True, True, False, 0, found[0].active)
    assert [each.leader for each in found] == [True, False, False]
    assert [each.server for each in found[1:]] == sorted(SERVERS - {leader})
    (only,) = clustered.streams.replicas("R1")
    assert only.server in SERVERS
    made = {each.config.name: each.config.num_replicas for each in clustered.streams.infos()}
    assert (made["R1"], made["R3"]) == (1, 3)


def test_find_by_servers(clustered: JetStreamAdmin) -> None:
    leader = settled(lambda: clustered.streams.replicas("R3"), SERVERS)
    (only,) = clustered.streams.replicas("R1")

    def names(**criteria: Any) -> list[str]:
        return [
            info.config.name
            for info in clustered.streams.find(**criteria)
            if info.config.name in ("R1", "R3")
        ]

    assert names(server_name="test-?") == names(cluster="*", offline=False) == ["R1", "R3"]
    assert names(server_name=only.server, replicas=1) == names(replicas=1) == ["R1"]
    assert names(replicas=2, invert=True) == ["R3"]
    assert "R3" in names(leader=leader)
    assert names(leader="test") == names(cluster="nowhere") == names(offline=True) == []
    clustered.consumers.create("R3", DEFAULT_CONSUMER, durable_name="c")
    settled(
        partial(clustered.consumers.replicas, "R3", "c"), SERVERS
    )  # until then no server answers for it
    (consumer,) = clustered.consumers.find(
        "R3", server_name=leader, replicas=3, expression="info.cluster.leader != ''"
    )
    assert (consumer.name, list(clustered.consumers.find("R3", replicas=2))) == ("c", [])
    clustered.consumers.delete("R3", "c")


def test_leaders_step_down(clustered: JetStreamAdmin) -> None:
    clustered.consumers.create("R3", DEFAULT_CONSUMER, durable_name="c")
    of_stream, of_consumer = (clustered.streams, ("R3",)), (clustered.consumers, ("R3", "c"))
    manager: Any
    for manager, names in (of_stream, of_consumer):
        placed = partial(manager.replicas, *names)
        first = settled(placed, SERVERS)
        manager.step_down(*names)
        second = settled(placed, SERVERS, other_than=first)
        manager.step_down(*names, preferred=first)
        assert settled(placed, SERVERS, leader=first) != second
    assert [each.message.data for each in clustered.consumers.next("R3", "c", 2)] == [b"0", b"1"]
    assert [each.name for each in clustered.consumers.infos("R3")] == ["c"]
    clustered.consumers.delete("R3", "c")
    with pytest.raises(ApiError, match="let the leader of stream R3 step down"):
        clustered.streams.step_down("R3", preferred="nobody")
    with pytest.raises(StreamNotFound, match="leader of stream NOWHERE"):
        clustered.streams.step_down("NOWHERE")
    with pytest.raises(StreamNotFound, match="from stream NOWHERE"):
        clustered.streams.remove_peer("NOWHERE", first)


def test_leaders_are_balanced(clustered: JetStreamAdmin) -> None:
    streams = [f"SPREAD{number}" for number in range(3)]
    for stream in streams:
        clustered.streams.create(
            stream, subjects=f"spread.{stream}", num_replicas=3, storage="memory"
        )
    for consumer in "cde":
        clustered.consumers.create(streams[0], consumer, DEFAULT_CONSUMER)
    manager: Any
    for manager, only, every in (
        (clustered.streams, "spread.*", [(stream,) for stream in streams]),
        (clustered.consumers, streams[0], [(streams[0], consumer) for consumer in "cde"]),
    ):
        for names in every:
            if settled(partial(manager.replicas, *names), SERVERS) != "test-0":
                manager.step_down(*names, preferred="test-0")
        for names in every:
            settled(partial(manager.replicas, *names), SERVERS, leader="test-0")
        moves = manager.balance(only, dry_run=True)
        assert [move.leader for move in moves] == ["test-0", "test-0"]
        assert {move.preferred for move in moves} == {"test-1", "test-2"}
        assert manager.balance(only) == moves
        for move in moves:
            settled(partial(manager.replicas, *move.names), SERVERS, leader=move.preferred)
        assert manager.balance(only) == []
    for stream in streams:
        clustered.streams.delete(stream)


def test_a_stream_of_several_replicas_is_read_directly(clustered: JetStreamAdmin) -> None:
    clustered.streams.update("R3", allow_direct=True)
    found = list(clustered.messages.read("R3", direct=True))
    assert [each.data for each in found] == [b"%d" % number for number in range(30)]
    assert dict(clustered.streams.subjects("R3")) == {f"r3.{number}": 10 for number in range(3)}


def test_the_only_replica_is_evacuated(clustered: JetStreamAdmin) -> None:
    clustered.streams.create("MOVED", subjects="moved")
    for number in range(5):
        clustered.publish("moved", b"%d" % number)
    (before,) = clustered.streams.replicas("MOVED")
    with pytest.raises(ApiError, match="remove server nobody from stream MOVED"):
        clustered.streams.remove_peer("MOVED", "nobody", evacuate=True)
    clustered.streams.remove_peer("MOVED", before.server, evacuate=True)

    def moved() -> str | None:
        servers = [
            replica.server for replica in clustered.streams.replicas("MOVED") if replica.leader
        ]
        return servers[0] if servers and servers != [before.server] else None

    assert poll(moved, 30, lambda: AssertionError("the stream has not moved")) in SERVERS
    assert [message.data for message in clustered.messages.read("MOVED")] == [
        b"%d" % number for number in range(5)
    ]
    clustered.streams.delete("MOVED")


def test_the_replica_of_a_consumer_moves(clustered: JetStreamAdmin) -> None:
    consumers = clustered.consumers
    clustered.streams.create("WIDE", subjects="wide", num_replicas=3)
    clustered.publish("wide", b"x")
    consumers.create("WIDE", DEFAULT_CONSUMER, durable_name="c", num_replicas=1)
    assert [each.message.data for each in consumers.next("WIDE", "c", 1, ack="ack")] == [b"x"]
    with pytest.raises(ApiError, match="remove server nobody from consumer c of stream WIDE"):
        consumers.remove_peer("WIDE", "c", "nobody", evacuate=True)
    with pytest.raises(OptionError, match="server must not be empty"):
        consumers.remove_peer("WIDE", "c", "")
    for evacuate in (True, False):
        before = poll(
            lambda: next((r.server for r in _placed(consumers) if r.leader), None),
            120,
            lambda: AssertionError("the consumer has no leader"),
        )
        consumers.remove_peer("WIDE", "c", before, evacuate=evacuate)

        def moved(before: str = before) -> bool | None:
            servers = [replica.server for replica in _placed(consumers) if replica.leader]
            return (bool(servers) and servers != [before]) or None

        poll(moved, 120, lambda: AssertionError("the consumer has not moved"))
        floor = poll(
            partial(_floor, consumers), 120, lambda: AssertionError("the consumer is not back")
        )
        # Without a copy the acknowledgement may go with the only replica, or not.
        assert floor == "1" or not evacuate
    clustered.streams.delete("WIDE")


def _floor(consumers: Any) -> str | None:
    """The sequence up to which the consumer c of stream WIDE has acknowledgements."""
    try:
        return str(consumers.load("WIDE", "c").ack_floor.stream_seq)
    except (ServerBusy, RequestTimeout, ConsumerNotFound):
        return None


def _placed(consumers: Any) -> tuple[Replica, ...]:
    """The replicas of the consumer c of stream WIDE; none while no server answers for it."""
    try:
        found: tuple[Replica, ...] = consumers.replicas("WIDE", "c")
    except (ServerBusy, RequestTimeout, ConsumerNotFound):
        return ()
    return found


def test_a_change_is_taken_back(clustered: JetStreamAdmin, nats_cluster: NatsCluster) -> None:
    """It cannot end while one of the servers does not answer."""
    clustered.streams.create("BACK", subjects="back")
    leader = clustered.streams.replicas("BACK")[0].server
    with pytest.raises(ApiError, match="cancel the change of stream BACK"):
        clustered.streams.cancel_move("BACK")
    meta = nats_cluster.servers[0].monitor("/jsz")["meta_cluster"]["leader"]
    names = dict(zip(sorted(SERVERS), nats_cluster.servers, strict=True))
    frozen = next(server for name, server in names.items() if name not in (leader, meta))
    with JetStreamAdmin(servers=names[leader].url) as admin:
        frozen.pause()
        try:
            admin.streams.update("BACK", num_replicas=3)
            assert admin.streams.cancel_move("BACK").config.num_replicas == 1
        finally:
            frozen.resume()
        settled(lambda: admin.streams.replicas("BACK"), {leader})
        nats_cluster.wait_ready()  # the frozen server may have begun an election
        admin.streams.delete("BACK")


@pytest.mark.full
def test_a_stream_gives_up_its_other_replicas(
    clustered: JetStreamAdmin, nats_cluster: NatsCluster
) -> None:
    streams = clustered.streams
    streams.create("R", subjects="r", num_replicas=3)
    streams.create("M", mirror="R")
    # The server hears of the mirror, and later of the end of the change, a moment after.
    poll(
        lambda: streams.load("R").alternates or None,
        20,
        lambda: AssertionError("the stream has no alternates"),
    )
    info = streams.load("R")
    assert {each.name for each in info.alternates} == {"R", "M"}
    with Publisher(nats_cluster.servers[0].url) as publisher:
        before = publisher.api("STREAM.INFO.R")["config"]
        publisher.api("STREAM.UPDATE.R", info.config.body())
        assert publisher.api("STREAM.INFO.R")["config"] == before
        smaller = read(
            StreamInfo, publisher.api("STREAM.UPDATE.R", info.config.changed(num_replicas=1).body())
        )
    assert smaller.cluster is not None
    assert smaller.cluster.desired is not None
    assert smaller.cluster.desired.origin is not None
    assert smaller.cluster.desired.origin.replicas == 3

    def settled() -> StreamInfo | None:
        now = streams.load("R")
        return now if now.cluster is not None and now.cluster.desired is None else None

    alone = poll(settled, 20, lambda: AssertionError("the stream still has its other replicas"))
    assert [each.leader for each in replicas(alone.cluster)] == [True]
    assert [each.field for each in streams.update("R", num_replicas=2)] == ["num_replicas"]
    poll(
        lambda: len(streams.replicas("R")) == 2 or None,
        30,
        lambda: AssertionError("the stream has one replica"),
    )
    for name in ("M", "R"):
        streams.delete(name)


def test_a_reset_that_would_crash_an_older_server_is_refused(
    clustered: JetStreamAdmin, nats_cluster: NatsCluster
) -> None:
    clustered.streams.create(name="MIXED", num_replicas=3)
    info = clustered.consumers.create("MIXED", durable_name="d", ack_policy="explicit")
    assert info.cluster is not None
    follower = info.cluster.replicas[0].name
    with WireProxy(nats_cluster.urls[0]) as proxy, knowing_admin(proxy.url) as admin:
        tells(proxy, {follower: b"2.12.8"})
        with pytest.raises(
            JetStreamError, match=f"server {follower} is nats-server 2.12.8, .*2.14"
        ):
            admin.consumers.reset("MIXED", "d", 1)
        tells(proxy, {})
        assert admin.consumers.reset("MIXED", "d", 1).name == "d"
    clustered.streams.delete("MIXED")
