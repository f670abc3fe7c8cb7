"""Reads with many filters: how much is asked does not grow with them, and only the leader ends a
range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from spark_jetstream.client.pool import close_all
from spark_jetstream.client.requests import Requests
from spark_jetstream.errors import OutageError
from spark_jetstream.protocol.stream import SequenceRange, stream_summary
from spark_jetstream.source.probes import ConsumerProbe, DirectProbe
from spark_jetstream.streams.direct import sifts
from spark_jetstream.streams.lookup import last_messages, next_messages, next_sequence
from spark_jetstream.streams.pull import RangeReader
from spark_jetstream.testing import NatsCluster, NatsServer
from tests.support.fake_jetstream import CREATED, FakeJetStream, Honest
from tests.support.planning import STATE, driver, read
from tests.support.reading import (
    SETTINGS,
    connecting,
    create,
    direct,
    fill,
    part_of,
    pulls,
    sequences,
)

COUNT = 100
ALL = list(range(1, COUNT + 1))
MANY = tuple(f"S.{number}" for number in range(300))


@pytest.fixture
def fake() -> Iterator[FakeJetStream]:
    """A stream with ten messages on each of ten subjects."""
    with FakeJetStream() as running:
        running.store(COUNT, lambda sequence: f"S.{sequence % 10}")
        yield running
        close_all()


def whole(subjects: tuple[str, ...], **fields: Any) -> SequenceRange:
    return replace(SequenceRange("S", 1, 200, None, CREATED, subjects), **fields)


def kinds(fake: FakeJetStream) -> list[str]:
    """Return the requests, in order, without names."""
    return [subject.partition(".S")[0] for subject, _ in fake.asked]


# Consumers


@pytest.mark.parametrize("filters", [9, 300], ids=str)
@pytest.mark.parametrize("more", [0, 1], ids=["at the end", "before the end"])
def test_a_second_consumer_ends_a_range_with_many_filters(
    fake: FakeJetStream, filters: int, more: int
) -> None:
    fake.store(more, lambda _: "S.none")
    assert sequences(pulls(fake.url, whole(MANY[:filters]))) == [s for s in ALL if s % 10 < filters]
    asked = kinds(fake)
    # The stream's last message proves it too.
    assert (asked.count("CONSUMER.CREATE"), asked.count("STREAM.MSG.GET")) == (1 + more, 0)
    assert asked.count("STREAM.INFO") <= 4


@pytest.mark.parametrize("read", [pulls, direct], ids=["consumer", "direct"])
def test_filters_are_read_as_one_by_one(server: NatsServer, read: Callable[..., Any]) -> None:
    create(server.url, "G", allow_direct=True)
    fill(server.url, "G", 600, lambda i: f"{i % 40}.x")
    for filters in (range(20), range(0, 40, 2), range(30, 60)):
        part = part_of(server.url, "G", subjects=tuple(f"G.{n}.*" for n in filters), count=None)
        wanted = [i + 1 for i in range(600) if i % 40 in filters]
        for some in (part, replace(part, sifted=True), replace(part, first=100, end=500)):
            inside = [sequence for sequence in wanted if some.first <= sequence < some.end]
            assert sequences(read(server.url, some)) == inside


def test_a_stream_with_room_for_one_consumer_is_read_with_many_filters(server: NatsServer) -> None:
    create(server.url, "ONE", max_consumers=1)
    fill(server.url, "ONE", 30, lambda i: f"{i % 10}.x")
    subjects = tuple(f"ONE.{n}.*" for n in range(9))
    part = part_of(server.url, "ONE", subjects=subjects, count=27)
    assert sequences(pulls(server.url, part)) == [i + 1 for i in range(30) if i % 10 < 9]


def clustered(fake: FakeJetStream, *leaders: str, silent: int = 1) -> None:
    """Let a cluster of A, B and C have the stream.

    The replies to the next lookups name `leaders`, those after them A.
    """
    left = list(leaders)

    def look() -> dict[str, Any]:
        leader = left.pop(0) if left else "A"
        peers = [
            {"name": name, "current": True, "active": silent * 10**9}
            for name in {*"ABC"} - {leader}
        ]
        group = {"name": "test", "leader": leader, "leader_since": CREATED, "replicas": peers}
        return {**fake.info(num_replicas=3), "cluster": group}

    fake.look = look


@pytest.mark.parametrize(
    ("leaders", "second"),
    [([], "C"), (["A", "B"], "A")],
    ids=["of a follower", "of one that did not lead before"],
)
def test_a_consumer_beside_the_leader_does_not_end_a_range(
    fake: FakeJetStream, leaders: list[str], second: str
) -> None:
    clustered(fake, *leaders)
    # The first reads, the next two are asked whether the leader has more, and the last reads the
    # rest.
    fake.placed = ["B", second, "A", "B"]
    fake.lagging = [40, 40]
    part = whole(MANY, end=COUNT + 1)
    assert sequences(pulls(fake.url, part)) == ALL
    assert (kinds(fake).count("CONSUMER.CREATE"), kinds(fake).count("STREAM.MSG.GET")) == (4, 0)


@pytest.mark.parametrize(
    "leaders", [["A", "A", "B"], ["A", "B"]], ids=["leads no more", "did not lead before"]
)
def test_a_server_that_may_not_lead_does_not_end_a_range(
    fake: FakeJetStream, leaders: list[str]
) -> None:
    """The reader looks up the leader for itself, and before and after the consumer that is asked."""
    clustered(fake, *leaders)
    fake.placed = ["B", "A", "B", "B"]
    fake.lagging = [40, 40]
    reader = RangeReader(
        connecting(fake.url),
        whole(MANY, end=COUNT + 1),
        replace(SETTINGS, retry_timeout=0.0),
        "test",
        leader_tries=3,
    )
    with pytest.raises(
        OutageError, match="none of 3 consumers was on the server that leads stream S"
    ):
        sequences(reader.read())


def test_no_consumer_is_asked_while_no_majority_follows_the_leader(fake: FakeJetStream) -> None:
    """The stream may be shorter than what was read of it, and a consumer past its end may purge it."""
    clustered(fake, silent=60)
    fake.placed, fake.lagging = ["B"], [40]
    read_with = replace(SETTINGS, retry_timeout=0.0)
    with pytest.raises(OutageError, match="no server leads stream S that a majority follows"):
        sequences(pulls(fake.url, whole(MANY, end=COUNT + 1), read_with))
    assert kinds(fake).count("CONSUMER.CREATE") == 1


def test_the_leader_has_the_last_word_about_many_filters(fake: FakeJetStream) -> None:
    clustered(fake)
    view = ConsumerProbe(Requests(connecting(fake.url), 30.0), "S", MANY)
    view.check(stream_summary(fake.look(), "look"))
    # The first is on a replica that lags, and what the second lacks does not count.
    fake.placed, fake.lagging = ["B", "C", "A"], [40, 40]
    found = view.peek(41)
    assert found is not None
    assert found[0] == 41
    fake.placed, fake.lagging = ["B", "A", "A"], [40]
    found = view.last()
    assert found is not None
    assert found[0] == COUNT
    # No consumer is asked after the one that is with the leader.
    assert (kinds(fake).count("CONSUMER.CREATE"), kinds(fake).count("STREAM.MSG.GET")) == (6, 0)


def test_nothing_is_counted_past_the_end_of_the_stream(fake: FakeJetStream) -> None:
    view = ConsumerProbe(Requests(connecting(fake.url), 30.0), "S", MANY)
    view.check(stream_summary(fake.info(), "look"))
    assert view.pending(COUNT + 1) == 0
    assert kinds(fake) == ["STREAM.INFO"]
    # A message that was stored since, and a server that nobody follows.
    fake.store(1, lambda _: "S.1")
    assert view.pending(COUNT + 1) == 1
    del fake.messages[COUNT + 1]
    clustered(fake, silent=60)
    fake.asked.clear()
    assert view.pending(COUNT + 1) == 0
    assert kinds(fake)[:2] == ["STREAM.INFO", "CONSUMER.CREATE"]


def test_a_cluster_is_read_with_many_filters(cluster: NatsCluster) -> None:
    create(cluster.url, "MANY", num_replicas=3, storage="file", allow_direct=True)
    cluster.wait_ready()
    fill(cluster.urls[cluster.leader_of("MANY")], "MANY", 600, lambda i: f"{i % 40}.x")
    part = part_of(cluster.url, "MANY", subjects=tuple(f"MANY.{n}.*" for n in range(20)), count=300)
    wanted = [i + 1 for i in range(600) if i % 40 < 20]
    for first in (1, 590, 601):
        some = replace(part, first=first, count=None)
        assert sequences(pulls(cluster.url, some)) == [each for each in wanted if each >= first]


# Single messages and Direct Gets


def held(fake: FakeJetStream, stage: str, count: int) -> None:
    """Answer no request of this kind before `count` have arrived: those that follow one another
    hang.
    """
    waiting: list[bytes] = []

    def answer(honest: Honest) -> Iterable[bytes]:
        waiting.append(honest.frames)
        if len(waiting) == count:
            yield from waiting
            waiting.clear()

    fake.lies[stage] = answer


def test_messages_of_several_filters_are_asked_for_together(fake: FakeJetStream) -> None:
    held(fake, "STREAM.MSG.GET", 16)
    connection = connecting(fake.url)(30.0)
    assert [found.sequence for found in next_messages(connection, "S", MANY[:32], 41)] == [
        50,
        *range(41, 50),
    ]
    assert next_sequence(connection, "S", MANY[3:19], 45) == 45
    assert {found.sequence for found in last_messages(connection, "S", MANY[:16])} == set(
        range(91, 101)
    )
    assert next_sequence(connection, "S", MANY[10:26], 1) is None


def test_messages_of_several_filters_are_counted_together(fake: FakeJetStream) -> None:
    held(fake, "DIRECT.GET", 16)
    assert DirectProbe(Requests(connecting(fake.url), 30.0), "S", MANY[:32]).pending(41) == 60


def test_a_mirror_that_answers_for_some_filters_is_asked_again(fake: FakeJetStream) -> None:
    left = ["S.1", "S.1", "S.7"]

    def answer(request: dict[str, Any]) -> list[Any]:
        mirrored = request["next_by_subj"] in left
        if mirrored:
            left.remove(request["next_by_subj"])
        return fake.batch(request, stream="MIRROR" if mirrored else "S")

    fake.direct = answer
    assert DirectProbe(Requests(connecting(fake.url), 0.0), "S", MANY[:10]).pending(1) == COUNT
    assert (left, fake.count("DIRECT.GET")) == ([], 13)


def test_a_few_filters_are_read_together(fake: FakeJetStream) -> None:
    held(fake, "DIRECT.GET", 8)
    # Each answer holds a message behind the range, so that there is one for each filter.
    part = SequenceRange("S", 1, 61, None, CREATED, MANY[:8])
    assert sequences(direct(fake.url, part)) == [s for s in ALL[:60] if s % 10 < 8]
    assert fake.count("DIRECT.GET") == 8


@pytest.mark.parametrize("filters", [2, 300], ids=str)
def test_a_sifted_range_costs_what_all_its_messages_cost(fake: FakeJetStream, filters: int) -> None:
    part = whole(MANY[:filters], sifted=True)
    assert sequences(direct(fake.url, part)) == [s for s in ALL if s % 10 < filters]
    asked = kinds(fake)
    assert (asked.count("DIRECT.GET"), asked.count("STREAM.MSG.GET")) == (1, 1)


SMALL, LARGE = 100, 100_000  # bytes of a message
WILD = tuple(f"{number}.*" for number in range(3000))


@pytest.mark.parametrize(
    ("messages", "size", "subjects", "count", "sifted"),
    [
        (200_000, SMALL, (), None, False),
        (200_000, SMALL, WILD[:1], 50, False),
        (200_000, SMALL, WILD[:30], None, False),
        (200_000, SMALL, WILD[:30], 1500, True),
        (200_000, SMALL, WILD[:30], 0, False),
        (200_000, SMALL, WILD[:300], None, True),
        (200_000, SMALL, MANY, None, False),
        (20_000, SMALL, MANY, None, True),
        (10_000_000, SMALL, WILD, None, False),
        (10_000_000, SMALL, WILD, 15_000, True),
        (1_000_000_000, SMALL, WILD[:300], 1_000, False),
        (200_000, LARGE, WILD[:300], None, False),
    ],
)
def test_a_range_is_sifted_where_that_costs_less(
    messages: int, size: int, subjects: tuple[str, ...], count: int | None, sifted: bool
) -> None:
    state = replace(STATE, messages=messages, bytes=messages * size)
    part = SequenceRange("S", 1, messages + 1, None, CREATED, subjects)
    assert sifts(state, part, count) is sifted
    # A part of it has fewer messages.
    assert sifts(state, replace(part, end=2), count) is (len(subjects) > 1)


@pytest.mark.parametrize("gaps", [False, True])
def test_planning_a_sifted_range_asks_about_no_filter(fake: FakeJetStream, gaps: bool) -> None:
    if gaps:
        for sequence in range(20, 40):
            del fake.messages[sequence]
        info = fake.info()
        state = {**info["state"], "num_deleted": 20}
        fake.look = lambda: {**info, "state": state}
    given: dict[str, Any] = {
        "readWith": "direct",
        "subjects": ",".join(MANY),
        "maxMessagesPerPartition": 40,
    }
    planner = driver(fake.url, streaming=False, **given)
    parts = planner.batch_ranges()
    assert {part.sifted for part in parts} == {True}
    assert len(parts) > 1
    assert fake.count("DIRECT.GET") < 20
    assert read(fake.url, parts) == {"S": sorted(fake.messages)}
    assert fake.count("DIRECT.GET") + fake.count("MSG.GET") < 40
