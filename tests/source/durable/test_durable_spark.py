"""Queries whose position is kept on the server (option durable), as the user and the server see
them.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_jetstream.errors import OptionError
from tests.support import calls
from tests.support.calls import Query
from tests.support.planning import driver
from tests.support.progress import RETENTIONS, consumers, left, make_consumer, pending
from tests.support.reading import wait_until
from tests.support.streams import MakeStream, Stream

DURABLE = "committed"


@pytest.fixture
def kept(stream: MakeStream) -> MakeStream:
    """A function that makes a stream of a retention, which answers Direct Gets."""

    def make(retention: str, **config: Any) -> Stream:
        return stream(retention=retention, **{"allow_direct": True, **config})

    return make


def position(s: Stream) -> tuple[int, int]:
    """Up to which sequence the consumer is acknowledged, and how many messages wait behind it, its
    lag.
    """
    info = s.publisher.api(f"CONSUMER.INFO.{s.name}.{DURABLE}")
    assert info["num_ack_pending"] == 0
    assert info["delivered"]["stream_seq"] == info["ack_floor"]["stream_seq"]
    return int(info["ack_floor"]["stream_seq"]), int(info["num_pending"])


def reaches(expected: tuple[int, int], s: Stream) -> None:
    """Wait until `position` is that: the server counts what was just published, or purged, a moment
    later.
    """
    wait_until(lambda: position(s) == expected, f"{expected} of consumer {DURABLE}", 20)


def holds(s: Stream, *sequences: int) -> None:
    """Wait until the stream holds just these: a reader whose process has ended holds messages for a
    while.
    """
    wait_until(lambda: left(s) == list(sequences), f"only {sequences} in the stream", 60)


def query_of(s: Stream, **options: object) -> Query:
    return Query(s.url, s.name, durable=DURABLE, **options)


# Rows, positions, lag


class SinkFailed(Exception):
    pass


@pytest.mark.parametrize("retention", RETENTIONS)
def test_rows_and_lag(kept: MakeStream, retention: str) -> None:
    s = kept(retention)
    query = query_of(s)
    assert query.run().counts == [0]
    reaches((0, 0), s)
    s.fill(50)
    rows = s.rows()
    # A work queue is always read by Direct Gets, and others if the option says so.
    second = query.run(
        maxMessagesPerTrigger=20, readWith="direct" if retention == "limits" else "consumer"
    )
    assert second.counts == [20, 20, 10]
    assert second.stored == rows
    reaches((50, 0), s)
    holds(s, *(range(1, 51) if retention == "limits" else ()))
    s.fill(20)
    reaches((50, 20), s)

    def fail(number: int) -> None:
        if number == 1:
            raise SinkFailed

    with pytest.raises(SinkFailed):
        query.run(fail, maxMessagesPerTrigger=10)
    reaches((60, 10), s)
    assert query.run().sequences == list(range(61, 71))
    reaches((70, 0), s)
    wait_until(lambda: consumers(s) == [DURABLE], "the end of the other consumers", 60)


def test_several_streams(kept: MakeStream) -> None:
    made = [kept(retention) for retention in RETENTIONS]
    names = ",".join(s.name for s in made)
    query = Query(made[0].url, names, durable=DURABLE)
    query.run()
    for s in made:
        s.fill(40)
    done = query.run(maxMessagesPerTrigger=30)
    assert done.counts == [30, 30, 30, 30]
    assert sorted(row["sequence"] for row in done.rows) == sorted(list(range(1, 41)) * 3)
    for s in made:
        reaches((40, 0), s)
        holds(s, *(range(1, 41) if s is made[0] else ()))
    added = kept("interest")
    names += f",{added.name}"
    query.run(stream=names)
    added.fill(5)
    assert sorted(row["stream"] for row in query.run(stream=names).rows) == [added.name] * 5
    holds(added)


# Where a query begins


@pytest.mark.parametrize("retention", ["limits", "interest"])
@pytest.mark.parametrize("latest", [True, False])
def test_a_beginning_within_the_stream(kept: MakeStream, retention: str, latest: bool) -> None:
    s = kept(retention)
    make_consumer(s, "other")
    s.fill(10)
    query = query_of(s, startingOffsets="latest" if latest else json.dumps({s.name: 5}))
    first = query.run()
    s.fill(2)
    assert first.sequences + query.run().sequences == list(range(11 if latest else 5, 13))
    reaches((12, 0), s)


# What is wrong


def test_a_work_queue_is_read_from_its_first_message(kept: MakeStream) -> None:
    s = kept("workqueue")
    s.fill(4)
    for name, value in (
        ("startingOffsets", "latest"),
        ("startingOffsets", json.dumps({s.name: 3})),
        ("startingTimestamp", "2026-01-01T00:00:00Z"),
    ):
        with pytest.raises(
            OptionError,
            match=f"stream {s.name}, a work queue: messages that a query passes over would be rem",
        ):
            query_of(s, **{name: value}).run()
        assert left(s) == [1, 2, 3, 4]
        assert consumers(s) == []


def test_a_batch_takes_nothing_from_a_work_queue(kept: MakeStream) -> None:
    s = kept("workqueue")
    s.fill(20)
    make_consumer(s, "other")
    assert calls.stored(s, readWith="direct", minPartitions=2) == s.rows()
    assert left(s) == list(range(1, 21))
    assert pending(s, "other") == 20


@pytest.mark.parametrize("retention", [None, "limits", "interest"])
def test_a_first_batch_that_is_planned_again(kept: MakeStream, retention: str | None) -> None:
    """Spark asks again where to begin when a query dies in its first batch, whose end is in the
    checkpoint by then.
    """
    s = kept(retention or "limits")
    given: dict[str, Any] = {
        "startingOffsets": "latest",
        **({"durable": DURABLE} if retention else {}),
    }
    if retention == "interest":
        make_consumer(s, "other")
    s.fill(5)
    first = driver(s.url, s.name, **given)
    begin = first.initial()
    s.fill(10)
    end = first.latest(begin, limited=False)
    s.fill(10)
    second = driver(s.url, s.name, **given)
    ranges = second.ranges(second.initial(), end)
    ranges += second.ranges(end, second.latest(end, limited=False))
    assert [(each.first, each.end) for each in ranges] == [(6, 26)]
