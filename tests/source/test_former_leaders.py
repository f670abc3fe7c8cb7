"""Servers that led a stream once: what they answer is no loss, and moves no position.

A server that was frozen, or cut off from the others, answers as the leader that it was until it
hears its successor.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from spark_jetstream.buckets.stream import find_bucket
from spark_jetstream.client.pool import connect
from spark_jetstream.client.requests import Requests
from spark_jetstream.errors import DataLossError, OptionError, ServerBusy
from spark_jetstream.options import SourceOptions
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.source.as_of import PastTable, plan_past, read_past
from spark_jetstream.source.offsets import Offset, StreamPosition
from spark_jetstream.streams.dead_letters import read_dead_letters
from spark_jetstream.streams.latest import TablePart, read_table
from tests.support.fake_jetstream import CREATED, FakeJetStream
from tests.support.planning import driver
from tests.support.reading import (
    QUICK,
    SETTINGS,
    auto,
    connecting,
    direct,
    options,
    pulls,
    sequences,
)

pytestmark = pytest.mark.usefixtures("no_connection_left")

SECOND = 1_000_000_000
AGO = "2023-11-13T00:00:00Z"
READ = 100
NOT_FOUND = {"error": {"code": 404, "err_code": 10059, "description": "stream not found"}}
NO_MESSAGE = {"error": {"code": 404, "err_code": 10037, "description": "no message found"}}


@pytest.fixture
def fake(no_election: None) -> Iterator[FakeJetStream]:
    """A stream of 200 messages, which a cluster of three has; the query has read half of them, and
    no one waits.
    """
    with FakeJetStream() as running:
        running.store(2 * READ)
        answers(running)
        yield running


def group(
    leader: str = "A", silent: tuple[int, ...] = (1, 1), since: str = CREATED, **others: Any
) -> dict[str, Any]:
    """Return the cluster as A describes it.

    It says who leads, and for how many seconds each of the others has been silent.
    """
    peers = [
        {"name": name, "current": True, "active": seconds * SECOND // 2, **others}
        for name, seconds in zip("BC", silent, strict=True)
    ]
    return {"name": "test", "leader": leader, "leader_since": since, "replicas": peers}


def answers(fake: FakeJetStream, *first: dict[str, Any]) -> None:
    """Let the leader's requests for the stream's state be answered with these, and then as they
    should be.
    """
    left = list(first)
    fake.look = lambda: left.pop(0) if left else state_of(fake)


def state_of(fake: FakeJetStream) -> dict[str, Any]:
    """Return the state of the stream as its leader describes it."""
    info = fake.info()
    gaps = info["state"]["last_seq"] - info["state"]["messages"]
    return {**info, "state": {**info["state"], "num_deleted": gaps}, "cluster": group()}


def shorter(fake: FakeJetStream, last: int = 30, **fields: Any) -> dict[str, Any]:
    """An old state of the stream."""
    info = fake.info()
    return {
        **info,
        "state": {**info["state"], "messages": last, "last_seq": last},
        "cluster": group(),
        **fields,
    }


#: What a server answers that leads no more.
FORMER: dict[str, Callable[[FakeJetStream], dict[str, Any]]] = {
    "it knows of no leader": lambda fake: shorter(fake, cluster=group("")),
    "it names its successor": lambda fake: shorter(fake, cluster=group("B")),
    "it has heard nobody": lambda fake: shorter(fake, cluster=group(silent=(140, 140))),
    "it takes itself for the leader": shorter,
    "a stream that was there before": lambda fake: shorter(fake, created=AGO),
    "no stream yet": lambda _: NOT_FOUND,
}


@pytest.mark.parametrize("former", FORMER.values(), ids=FORMER)
@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_position_does_not_move(
    fake: FakeJetStream,
    caplog: pytest.LogCaptureFixture,
    former: Callable[[FakeJetStream], dict[str, Any]],
    fail: str,
) -> None:
    caplog.set_level(logging.WARNING, "spark_jetstream")
    start = Offset({"S": StreamPosition(READ + 1, CREATED)})
    end = Offset({"S": StreamPosition(2 * READ + 1, CREATED)})
    answers(fake, former(fake))
    assert (
        driver(fake.url, failOnDataLoss=fail).latest(start, limited=True).streams["S"].next
        == 2 * READ + 1
    )
    answers(fake, former(fake))
    assert driver(fake.url, failOnDataLoss=fail).ranges(start, end)[-1].end == 2 * READ + 1
    assert caplog.messages == []


@pytest.mark.parametrize("former", FORMER.values(), ids=FORMER)
@pytest.mark.parametrize("read", [pulls, direct, auto])
def test_a_task_reads_on(
    fake: FakeJetStream, former: Callable[[FakeJetStream], dict[str, Any]], read: Any
) -> None:
    """The task has its consumer, or its answer, and looks up what the stream is now."""
    [part] = driver(fake.url, streaming=False, readWith="consumer").batch_ranges()
    answers(fake, former(fake))
    assert sequences(read(options(fake.url), part)) == list(range(1, 2 * READ + 1))


def test_the_leader_is_asked_twice_for_what_a_replica_lacks(fake: FakeJetStream) -> None:
    """The end of a range without a count would be left out in silence."""
    [part] = driver(fake.url, streaming=False, readWith="direct").batch_ranges()
    lagging, former = iter([READ]), iter([NO_MESSAGE])
    fake.direct = lambda request: fake.batch(request, up_to=next(lagging, None))
    fake.leader = lambda request: next(former, None) or fake.message(request)
    assert sequences(direct(options(fake.url), replace(part, count=None))) == list(
        range(1, 2 * READ + 1)
    )
    assert next(former, None) is None


@pytest.mark.parametrize("read", [pulls, direct])
@pytest.mark.parametrize("lost", [False, True])
def test_a_leader_that_has_not_applied_its_log(fake: FakeJetStream, read: Any, lost: bool) -> None:
    """Its stream ends within the range: it is asked again later, and believed then."""
    [part] = driver(fake.url, streaming=False, readWith="consumer").batch_ranges()
    looks = 0

    def look() -> dict[str, Any]:
        nonlocal looks
        looks += 1
        # The first look shows that this is the stream, the second one is between the leader's
        # answers.
        return (
            shorter(fake, READ)
            if looks == 2 or (lost and looks > 2)
            else {**fake.info(), "cluster": group()}
        )

    def leader(request: dict[str, Any]) -> dict[str, Any]:
        return NO_MESSAGE if looks <= 2 or lost else fake.message(request)

    fake.look, fake.leader = look, leader
    fake.lagging, lagging = [READ], iter([READ])
    fake.direct = lambda request: fake.batch(request, up_to=next(lagging, None))
    there = READ if lost else 2 * READ
    assert sequences(read(options(fake.url), replace(part, count=None))) == list(
        range(1, there + 1)
    )
    assert not lost or (looks, fake.count("STREAM.MSG.GET")) == (3, 2)


@pytest.fixture
def gapped(fake: FakeJetStream) -> FakeJetStream:
    """The same stream without message 10, so that tasks have counts."""
    del fake.messages[10]
    answers(fake)
    return fake


def counted(fake: FakeJetStream) -> SequenceRange:
    """The task that reads the first half, where the replica that counted what follows lacked some
    of it.
    """
    end = Offset({"S": StreamPosition(READ + 1, CREATED)})
    fake.lagging = [2 * READ, 2 * READ - 50]
    [part] = driver(fake.url).ranges(Offset({"S": StreamPosition(1, CREATED)}), end)
    assert (part.count, fake.lagging) == (READ, [])
    return part


def test_a_count_that_is_too_high_is_no_loss(gapped: FakeJetStream) -> None:
    there = sorted(gapped.messages)[: READ - 1]
    assert sequences(pulls(gapped.url, counted(gapped))) == there


def deleted(fake: FakeJetStream) -> None:
    del fake.messages[50]


def led_by_another(fake: FakeJetStream) -> None:
    fake.look = lambda: {**state_of(fake), "cluster": group("D")}


def deleted_and_told_late(fake: FakeJetStream) -> None:
    before = state_of(fake)
    deleted(fake)
    # What the consumer reads is looked at first.
    answers(fake, before, before)


def refused_to_ask(fake: FakeJetStream) -> None:
    """Three consumers end the range, and each of them lacks its last message."""
    refusal = b"-ERR 'Permissions Violation for Publish to \"$JS.API.STREAM.MSG.GET.S\"'\r\n"
    fake.lies["STREAM.MSG.GET"] = lambda _: [refusal]
    fake.lagging = [READ - 1] * 3


@pytest.mark.parametrize(
    ("happens", "lost"),
    [(deleted, 2), (led_by_another, 1), (deleted_and_told_late, 2), (refused_to_ask, 2)],
)
def test_a_count_that_nothing_disproves_is_a_loss(
    gapped: FakeJetStream, happens: Callable[[FakeJetStream], None], lost: int
) -> None:
    part = counted(gapped)
    happens(gapped)
    with pytest.raises(
        DataLossError, match=f"^{lost} of {READ} messages of stream S, sequences 1 to {READ}, were"
    ):
        sequences(pulls(gapped.url, part))


def test_a_server_that_names_no_term_disproves_no_count(gapped: FakeJetStream) -> None:
    gapped.look = lambda: {**state_of(gapped), "cluster": group(since="")}
    with pytest.raises(DataLossError, match=f"^1 of {READ} messages"):
        sequences(pulls(gapped.url, counted(gapped)))


def test_a_leader_that_nobody_follows_disproves_no_count(gapped: FakeJetStream) -> None:
    part = counted(gapped)
    gapped.look = lambda: {**state_of(gapped), "cluster": group(silent=(140, 140))}
    with pytest.raises(ServerBusy, match="a majority of the stream's servers does not follow"):
        sequences(pulls(gapped.url, part, replace(SETTINGS, retry_timeout=0.1)))


def test_a_message_removed_between_the_end_of_a_batch_and_its_tasks_is_a_loss(
    gapped: FakeJetStream,
) -> None:
    """The tasks have the counts of the first step: a state of the second one would show no removal
    since.
    """
    planner = driver(gapped.url, maxMessagesPerTrigger=READ)
    start = Offset({"S": StreamPosition(1, CREATED)})
    end = planner.latest(start, limited=True)
    deleted(gapped)
    [part] = planner.ranges(start, end)
    with pytest.raises(DataLossError, match=r"^1 of "):
        sequences(pulls(gapped.url, part))


@pytest.mark.parametrize("stage", ["CONSUMER.CREATE", "STREAM.MSG.GET"])
def test_a_server_that_does_not_know_the_stream_yet(fake: FakeJetStream, stage: str) -> None:
    read = pulls if stage == "CONSUMER.CREATE" else direct
    [part] = driver(fake.url, streaming=False, readWith="consumer").batch_ranges()
    former = iter([NOT_FOUND])
    lagging = iter([READ])
    fake.direct = lambda request: fake.batch(request, up_to=next(lagging, None))
    fake.lies[stage] = lambda honest: [
        honest.frames
        if (lie := next(former, None)) is None
        else honest.saying(json.dumps(lie).encode())
    ]
    assert sequences(read(options(fake.url), part)) == list(range(1, 2 * READ + 1))


@pytest.mark.parametrize("silent", [(1, 140), (1, 1)])
def test_a_loss_that_the_leader_confirms(fake: FakeJetStream, silent: tuple[int, int]) -> None:
    start = Offset({"S": StreamPosition(3 * READ, CREATED)})
    fake.look = lambda: {**fake.info(), "cluster": group(silent=silent)}
    with pytest.raises(DataLossError, match="was read up to sequence 299, and now ends at 200"):
        driver(fake.url).latest(start, limited=True)
    moved = driver(fake.url, failOnDataLoss="false").latest(start, limited=True)
    assert moved.streams["S"].next == 2 * READ + 1


@pytest.mark.parametrize(
    "servers", [group(silent=(140, 140)), group(offline=True), group("B"), group("")]
)
def test_a_loss_that_no_leader_confirms(fake: FakeJetStream, servers: dict[str, Any]) -> None:
    """Nobody is asked to accept a loss that may be none: the error is one of an outage."""
    fake.look = lambda: {**fake.info(), "cluster": servers}
    for fail in ("true", "false"):
        planner = driver(fake.url, failOnDataLoss=fail, retryTimeout="100ms")
        with pytest.raises(ServerBusy, match="cannot read stream S"):
            planner.latest(Offset({"S": StreamPosition(3 * READ, CREATED)}), limited=True)


def test_without_a_position_the_leader_must_be_followed(fake: FakeJetStream) -> None:
    """A batch of a former leader's state would be too short, and the first end in Spark 4.0 would
    go back.
    """
    old = shorter(fake, cluster=group(silent=(140, 140)))
    answers(fake, old)
    assert driver(fake.url, streaming=False).batch_ranges()[-1].end == 2 * READ + 1
    for first in (
        driver(fake.url).report_latest,
        lambda: driver(fake.url).latest(None, limited=True),
    ):
        answers(fake, old)
        assert first().streams["S"].next == 2 * READ + 1


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("last", [READ, 2 * READ])
def test_a_table_has_what_a_leader_that_nobody_follows_has_not(
    fake: FakeJetStream, monkeypatch: pytest.MonkeyPatch, direct: bool, last: int
) -> None:
    """Neither of its two parts ends where that server takes the end of the stream to be."""
    monkeypatch.setattr(fake, "info", partial(fake.info, max_msgs_per_subject=1))
    fake.messages.clear()
    fake.store(2 * READ, lambda sequence: f"S.{sequence}")
    first = [state_of(fake)] if last == 2 * READ else []
    subject = fake.messages.pop(50)
    fake.store(1, lambda _: subject)
    answers(fake, *first, *[shorter(fake, last, cluster=group(silent=(140, 140)))] * 4)
    runs = read_table(
        connecting(fake.url), TablePart("S", CREATED, direct=direct), SETTINGS, "test"
    )
    assert sorted(sequences(runs)) == [*range(1, 50), *range(51, 2 * READ + 2)]


@pytest.mark.parametrize("servers", [group(silent=(140, 140)), group("B"), group("")])
def test_a_bucket_has_the_revisions_that_its_leader_has(
    fake: FakeJetStream, servers: dict[str, Any]
) -> None:
    """By a former leader's state this revision would not be there yet."""
    config = {
        "name": "KV_b",
        "subjects": ["$KV.b.>"],
        "max_msgs_per_subject": 5,
        "retention": "limits",
    }
    answers(fake, *[shorter(fake, cluster=servers)] * 2)
    fake.lies["STREAM.INFO.KV_b"] = lambda honest: [
        honest.saying(json.dumps({**fake.look(), "config": config}).encode())
    ]
    given = {**QUICK, "servers": fake.url, "bucket": "b", "asOfRevision": str(READ)}
    parsed = SourceOptions.from_spark(given, streaming=False)
    asked = Requests(connecting(fake.url), 10.0)
    state, subjects = find_bucket(asked, str(parsed.bucket), parsed.keys)
    assert state.last_seq == 2 * READ
    assert plan_past(TablePart("KV_b", CREATED, subjects), asked, state, parsed).revision == READ


def test_a_past_table_is_proven_by_all_that_the_leader_has(
    fake: FakeJetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key whose revision at that time was replaced later is not a key that did not exist."""
    monkeypatch.setattr(fake, "info", partial(fake.info, max_msgs_per_subject=1, deny_delete=True))
    fake.messages.clear()
    fake.store(READ, lambda sequence: f"$KV.b.{sequence}")
    before = {**state_of(fake), "cluster": group(silent=(140, 140))}
    subject = fake.messages.pop(50)
    fake.store(1, lambda _: subject)
    answers(fake, state_of(fake), *[before] * 4)
    part = PastTable("S", CREATED, revision=READ, option="asOfRevision")
    with pytest.raises(OptionError, match="key 50 has 1 later ones, and 1 are sure to be kept"):
        list(read_past(connecting(fake.url), part, SETTINGS, "test"))


def test_the_leader_is_asked_twice_for_a_dead_letter(fake: FakeJetStream) -> None:
    """A message that its server has not got yet is not gone; one that the stream never had is."""
    given_up = {
        "stream": "S",
        "consumer": "c",
        "deliveries": 1,
        "timestamp": "2030-01-01T00:00:00Z",
    }
    body = {**given_up, "type": "io.nats.jetstream.advisory.v1.max_deliver"}
    advisories = [
        (number, json.dumps({**body, "stream_seq": number}).encode()) for number in (READ, 3 * READ)
    ]
    former = iter([{"error": {"code": 404, "err_code": 10037, "description": "no message found"}}])
    fake.leader = lambda request: next(former, None) or fake.message(request)
    answers(fake, shorter(fake))
    asked = Requests(lambda patience: connect(options(fake.url), patience=patience), 10.0)
    [batch] = read_dead_letters(asked, "S", advisories, ("sequence", "gone"))
    assert batch.to_pylist() == [
        {"sequence": READ, "gone": False},
        {"sequence": 3 * READ, "gone": True},
    ]
    assert next(former, None) is None
