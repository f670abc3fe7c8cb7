"""Queries whose position is kept on the server (option durable), as the user and the server see them."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_jetstream.errors import JetStreamError, OptionError
from tests.support import calls
from tests.support.calls import Query, refusal_of
from tests.support.planning import driver
from tests.support.publish import Publisher
from tests.support.queries import Run, available_now, offsets, refusal, start, streaming, wait_until
from tests.support.reading import consumers
from tests.support.streams import Stream

MakeStream = Callable[..., Stream]

RETENTIONS = ["limits", "interest", "workqueue"]
DURABLE = "committed"


@pytest.fixture
def kept(stream: MakeStream) -> MakeStream:
    """A function that makes a stream of a retention, which answers Direct Gets."""

    def make(retention: str, **config: Any) -> Stream:
        return stream(retention=retention, **{"allow_direct": True, **config})

    return make


def position(s: Stream, durable: str = DURABLE) -> tuple[int, int]:
    """Up to which sequence the consumer is acknowledged, and how many messages wait behind it, its lag."""
    info = s.publisher.api(f"CONSUMER.INFO.{s.name}.{durable}")
    assert info["num_ack_pending"] == 0
    assert info["delivered"]["stream_seq"] == info["ack_floor"]["stream_seq"]
    return int(info["ack_floor"]["stream_seq"]), int(info["num_pending"])


def reaches(expected: tuple[int, int], s: Stream, durable: str = DURABLE) -> None:
    """Wait until `position` is that: the server counts what was just published, or purged, a moment later."""
    wait_until(lambda: position(s, durable) == expected, f"{expected} of consumer {durable}", 20)


def left(s: Stream) -> list[int]:
    """The sequences that the stream still holds."""
    state = s.publisher.api(f"STREAM.INFO.{s.name}", {"deleted_details": True})["state"]
    gone = set(state.get("deleted") or ())
    return [sequence for sequence in range(state["first_seq"], state["last_seq"] + 1) if sequence not in gone]


def held(s: Stream, *subjects: str, durable: str = "other") -> None:
    """Make another consumer, which holds what comes."""
    config = {"durable_name": durable, "ack_policy": "explicit"}
    if subjects:
        config["filter_subject"] = subjects[0]
    s.publisher.api(f"CONSUMER.DURABLE.CREATE.{s.name}.{durable}", {"stream_name": s.name, "config": config})


def run(spark: SparkSession, s: Stream, folder: Path, **options: object) -> Run:
    """One run of the query, to the end of the stream."""
    return available_now(streaming(spark, s.url, s.name, **{"durable": DURABLE, **options}), folder)


def fails(query: Query, **options: object) -> tuple[str, str]:
    """Class and sentence of what stops a query that cannot run."""
    with pytest.raises(JetStreamError) as caught:
        query.run(**options)
    return refusal_of(caught.value)


# Rows, positions, lag


@pytest.mark.full
@pytest.mark.parametrize(("retention", "by_spark"), [("limits", False), ("interest", True), ("workqueue", False)])
def test_rows_and_lag(
    request: pytest.FixtureRequest, kept: MakeStream, tmp_path: Path, retention: str, by_spark: bool
) -> None:
    s = kept(retention)
    query = Query(s.url, s.name, durable=DURABLE)

    def once(**options: object) -> Run:
        return run(request.getfixturevalue("spark"), s, tmp_path, **options) if by_spark else query.run(**options)

    assert once().counts == [0]
    reaches((0, 0), s)
    s.fill(100)
    rows = s.rows()
    reaches((0, 100), s)
    second = once(maxMessagesPerTrigger=30)
    assert second.counts == [30, 30, 30, 10]
    assert second.stored == rows
    if by_spark:
        assert [each["numInputRows"] for each in second.progress] == [30, 30, 30, 10]
        assert [offsets(each, "startOffset", s.name) for each in second.progress] == [1, 31, 61, 91]
        assert [offsets(each, "endOffset", s.name) for each in second.progress] == [31, 61, 91, 101]
        assert [offsets(each, "latestOffset", s.name) for each in second.progress] == [101] * 4
    # A run to the end asks once more whether there is anything, which tells that the last batch is through.
    reaches((100, 0), s)
    # A reader whose process has ended stays until the server removes it, and holds messages as well.
    kept_messages = list(range(1, 101)) if retention == "limits" else []
    wait_until(lambda: left(s) == kept_messages, "what is left of the stream", 60)
    s.fill(20)
    reaches((100, 20), s)
    third = once()
    assert third.sequences == list(range(101, 121))
    reaches((120, 0), s)
    wait_until(lambda: consumers(s.url, s.name) == [DURABLE], "the end of the other consumers", 60)


def test_the_last_commit_is_caught_up(spark: SparkSession, kept: MakeStream, tmp_path: Path) -> None:
    s = kept("interest")
    run(spark, s, tmp_path)
    s.fill(10)
    frame = streaming(spark, s.url, s.name, durable=DURABLE)
    assert available_now(frame, tmp_path, once=True).counts == [10]
    # Spark does not report the last batch of such a run.
    reaches((0, 10), s)
    assert left(s) == list(range(1, 11))
    assert run(spark, s, tmp_path).counts == []
    reaches((10, 0), s)
    wait_until(lambda: left(s) == [], "what is left of the stream", 60)


class SinkFailed(Exception):
    pass


def test_a_batch_that_fails_is_read_again(spark: SparkSession, kept: MakeStream, tmp_path: Path) -> None:
    s = kept("workqueue")
    run(spark, s, tmp_path)
    s.fill(50)
    rows = s.rows()
    frame = streaming(spark, s.url, s.name, durable=DURABLE, maxMessagesPerTrigger=20)
    seen = Run()

    def fail(batch_frame: Any, number: int) -> None:
        seen.take(batch_frame, number)
        if number == 2:
            raise SinkFailed

    writer = frame.writeStream.option("checkpointLocation", str(tmp_path)).foreachBatch(fail)
    with pytest.raises(StreamingQueryException, match="SinkFailed"):
        writer.trigger(availableNow=True).start().awaitTermination()
    assert seen.counts == [20, 20]
    reaches((20, 30), s)
    assert left(s) == list(range(21, 51))
    s.fill(5)
    again = run(spark, s, tmp_path)
    assert again.counts == [20, 15]
    assert again.stored[:30] == rows[20:]
    reaches((55, 0), s)


def test_a_batch_that_fails_is_held(kept: MakeStream) -> None:
    s = kept("interest")
    query = Query(s.url, s.name, durable=DURABLE, maxMessagesPerTrigger=20)
    query.run()
    s.fill(50)

    def fail(number: int) -> None:
        if number == 1:
            raise SinkFailed

    with pytest.raises(SinkFailed):
        query.run(fail)
    reaches((20, 30), s)
    assert left(s) == list(range(21, 51))
    assert query.run().sequences == list(range(21, 51))
    reaches((50, 0), s)


@pytest.mark.parametrize("retention", RETENTIONS)
def test_other_subjects_stay(kept: MakeStream, retention: str) -> None:
    s = kept(retention)
    query = Query(s.url, s.name, durable=DURABLE)
    if retention == "interest":
        held(s, f"{s.subject}.c")
    options = {"subjects": f"{s.subject}.a,{s.subject}.b.*", "maxMessagesPerTrigger": 8}
    query.run(**options)
    s.fill_in_turn(40, ["a", "c", "b.x", "c"])
    second = query.run(**options)
    assert second.sequences == list(range(1, 41, 2))
    assert second.counts == [8, 8, 4]
    assert position(s)[1] == 0
    assert left(s) == list(range(1, 41) if retention == "limits" else range(2, 41, 2))


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
    assert [position(s) for s in made] == [(40, 0)] * 3
    assert [len(left(s)) for s in made] == [40, 0, 0]
    added = kept("interest")
    names += f",{added.name}"
    query.run(stream=names)
    added.fill(5)
    assert sorted(row["stream"] for row in query.run(stream=names).rows) == [added.name] * 5
    wait_until(lambda: left(added) == [], "what is left of the stream", 60)


@contextlib.contextmanager
def publishing(s: Stream) -> Iterator[None]:
    """A thread publishes with a connection of its own until the block ends."""
    end = threading.Event()

    def publish() -> None:
        with Publisher(s.url) as publisher:
            own = Stream.__new__(Stream)
            own.__dict__ |= {**s.__dict__, "publisher": publisher}
            while not end.wait(0.05):
                own.fill(20)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def test_publishers_at_work(kept: MakeStream) -> None:
    s = kept("workqueue")
    query = Query(s.url, s.name, durable=DURABLE, maxMessagesPerTrigger=100)
    query.run()
    rows: list[Any] = []
    with publishing(s):
        while len(rows) < 300:
            rows += query.run().rows
    rows += query.run().rows
    assert position(s) == (len(s.messages), 0)
    assert [(row["sequence"], bytes(row["data"])) for row in rows] == [
        (at, s.messages[at].data) for at in sorted(s.messages)
    ]
    assert left(s) == []


@pytest.mark.full
def test_publishers_at_work_beside_a_running_query(spark: SparkSession, kept: MakeStream, tmp_path: Path) -> None:
    s = kept("interest")
    run(spark, s, tmp_path)
    seen = Run()
    with publishing(s):
        query = start(streaming(spark, s.url, s.name, durable=DURABLE, maxMessagesPerTrigger=100), tmp_path, seen)
        seen.wait_for(300, query)
    query.processAllAvailable()
    wait_until(lambda: position(s) == (len(s.messages), 0), "the commit of the last batch")
    query.stop()
    assert seen.sequences == sorted(s.messages)
    assert [bytes(row["data"]) for row in seen.rows] == [s.messages[at].data for at in sorted(s.messages)]
    wait_until(lambda: left(s) == [], "what is left of the stream", 60)


def test_a_limits_stream_read_by_direct_gets(kept: MakeStream) -> None:
    s = kept("limits")
    query = Query(s.url, s.name, durable=DURABLE)
    s.fill(50)
    done = query.run(readWith="direct", maxMessagesPerTrigger=20)
    assert done.stored == s.rows()
    assert done.counts == [20, 20, 10]
    reaches((50, 0), s)
    wait_until(lambda: consumers(s.url, s.name) == [DURABLE], "the end of the other consumers", 60)


# Where a query begins


@pytest.mark.parametrize("retention", ["limits", "interest"])
@pytest.mark.parametrize("latest", [True, False])
def test_a_beginning_within_the_stream(kept: MakeStream, retention: str, latest: bool) -> None:
    s = kept(retention)
    query = Query(s.url, s.name, durable=DURABLE)
    held(s)
    s.fill(10)
    given = "latest" if latest else json.dumps({s.name: 5})
    first = query.run(startingOffsets=given)
    s.fill(2)
    second = query.run(startingOffsets=given)
    begin = 11 if latest else 5
    assert first.sequences + second.sequences == list(range(begin, 13))
    reaches((12, 0), s)


@pytest.mark.parametrize("given", ["latest", "json", "timestamp"])
def test_a_work_queue_is_read_from_its_first_message(kept: MakeStream, given: str) -> None:
    s = kept("workqueue")
    query = Query(s.url, s.name, durable=DURABLE)
    s.fill(4)
    last = s.publisher.api(f"STREAM.MSG.GET.{s.name}", {"seq": 4})["message"]["time"]
    options = {
        "latest": {"startingOffsets": "latest"},
        "json": {"startingOffsets": json.dumps({s.name: 3})},
        "timestamp": {"startingTimestamp": last},
    }[given]
    kind, said = fails(query, **options)
    assert kind == "OptionError"
    assert f"stream {s.name}, a work queue: what a query passes over would be removed from it unread" in said
    assert left(s) == [1, 2, 3, 4]
    assert consumers(s.url, s.name) == []


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
def test_a_new_checkpoint_with_an_old_consumer(kept: MakeStream, retention: str) -> None:
    s = kept(retention)
    query = Query(s.url, s.name, durable=DURABLE)
    query.run()
    s.fill(10)
    query.run()
    s.fill(5)
    reaches((10, 5), s)
    again = Query(s.url, s.name, durable=DURABLE).run()
    assert again.sequences == list(range(1 if retention == "limits" else 11, 16))
    reaches((15, 0), s)


def test_the_option_is_new_for_a_query(kept: MakeStream, caplog: pytest.LogCaptureFixture) -> None:
    s = kept("limits")
    query = Query(s.url, s.name)
    s.fill(10)
    query.run()
    s.fill(5)
    query.options["durable"] = DURABLE
    assert query.run().sequences == list(range(11, 16))
    reaches((15, 0), s)
    assert f"consumer {DURABLE} of stream {s.name} (option durable) does not exist" in caplog.text


def test_the_option_is_new_for_a_query_of_an_interest_stream(kept: MakeStream) -> None:
    s = kept("interest")
    query = Query(s.url, s.name)
    held(s)
    s.fill(10)
    query.run()
    s.fill(5)
    query.options["durable"] = DURABLE
    kind, said = fails(query)
    assert kind == "DataLossError"
    assert f"consumer {DURABLE} of stream {s.name} (option durable) does not exist" in said
    assert "set failOnDataLoss=false" in said
    assert query.run(failOnDataLoss="false").sequences == list(range(11, 16))
    reaches((15, 0), s)
    s.fill(1)
    assert query.run().sequences == [16]


# What is wrong


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_the_consumer_is_deleted_while_the_query_is_down(kept: MakeStream, retention: str) -> None:
    s = kept(retention)
    query = Query(s.url, s.name, durable=DURABLE)
    query.run()
    s.fill(10)
    query.run()
    s.publisher.api(f"CONSUMER.DELETE.{s.name}.{DURABLE}")
    s.fill(5)
    if retention == "interest":
        kind, said = fails(query)
        assert kind == "DataLossError"
        assert f"consumer {DURABLE} of stream {s.name}" in said
        # The server counts what nobody was interested in, and keeps none of it.
        done = query.run(failOnDataLoss="false")
        assert done.sequences == []
    else:
        assert query.run().sequences == list(range(11, 16))
    s.fill(2)
    assert query.run().sequences == [16, 17]
    reaches((17, 0), s)


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_the_consumer_is_deleted_while_the_query_runs(kept: MakeStream, retention: str) -> None:
    s = kept(retention)
    query = Query(s.url, s.name, durable=DURABLE, maxMessagesPerTrigger=5)
    query.run()
    s.fill(10)

    def delete(number: int) -> None:
        if number == 0:
            s.publisher.api(f"CONSUMER.DELETE.{s.name}.{DURABLE}")

    if retention == "interest":
        with pytest.raises(JetStreamError) as caught:
            query.run(delete)
        assert refusal_of(caught.value)[0] == "DataLossError"
    else:
        assert query.run(delete).sequences == list(range(1, 11))
        assert consumers(s.url, s.name) == [DURABLE]


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
def test_a_consumer_with_another_configuration(kept: MakeStream, retention: str) -> None:
    s = kept(retention)
    query = Query(s.url, s.name, durable=DURABLE)
    held(s, f"{s.subject}.b", durable=DURABLE)
    kind, said = fails(query, subjects=f"{s.subject}.a,{s.subject}.c")
    assert kind == "OptionError"
    assert f"consumer {DURABLE} of stream {s.name} (option durable) has another configuration" in said
    assert f"filter_subjects: wanted {s.subject}.a, {s.subject}.c, is {s.subject}.b" in said


def test_another_consumer_has_the_work(kept: MakeStream) -> None:
    s = kept("workqueue")
    query = Query(s.url, s.name, durable=DURABLE)
    held(s)
    kind, said = fails(query)
    assert kind == "OptionError"
    assert "other (all subjects) already has what this query reads" in said


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_two_queries_on_one_consumer(kept: MakeStream, retention: str) -> None:
    s = kept(retention)
    first, second = (Query(s.url, s.name, durable=DURABLE, maxMessagesPerTrigger=5) for _ in range(2))
    first.run()
    s.fill(10)
    rows: list[int] = []
    with pytest.raises(JetStreamError) as caught:
        first.run(lambda number: rows.extend(second.run().sequences))
    kind, said = refusal_of(caught.value)
    assert kind == "JetStreamError"
    assert f"another run has taken over consumer {DURABLE} of stream {s.name} (option durable)" in said
    assert rows == list(range(1, 11))
    s.fill(5)
    assert second.run().sequences == list(range(11, 16))


@pytest.mark.full
def test_one_frame_twice_in_a_query(spark: SparkSession, kept: MakeStream, tmp_path: Path) -> None:
    """Spark makes one source of it."""
    s = kept("workqueue")
    s.fill(5)
    frame = streaming(spark, s.url, s.name, durable=DURABLE)
    assert sorted(available_now(frame.union(frame), tmp_path).sequences) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    wait_until(lambda: left(s) == [], "what is left of the stream", 60)


@pytest.mark.full
def test_two_frames_in_a_query(spark: SparkSession, kept: MakeStream, tmp_path: Path) -> None:
    """Spark makes two sources of them, and each wants the consumer."""
    s = kept("workqueue")
    s.fill(5)
    one, two = (streaming(spark, s.url, s.name, durable=DURABLE) for _ in range(2))
    with pytest.raises(StreamingQueryException) as caught:
        available_now(one.union(two), tmp_path)
    kind, said = refusal(caught.value)
    assert kind == "JetStreamError"
    assert "another run has taken over" in said
    assert left(s) == [1, 2, 3, 4, 5]


def test_a_work_queue_needs_a_name(kept: MakeStream) -> None:
    s = kept("workqueue")
    query = Query(s.url, s.name)
    kind, said = fails(query)
    assert kind == "OptionError"
    assert f"stream {s.name} has work-queue retention: reading it needs the option durable" in said


def test_a_work_queue_without_direct_gets(kept: MakeStream) -> None:
    s = kept("workqueue", allow_direct=False)
    query = Query(s.url, s.name, durable=DURABLE)
    s.fill(2)
    kind, said = fails(query)
    assert kind == "OptionError"
    assert f"set allow_direct on the stream (nats stream edit {s.name} --allow-direct" in said
    assert consumers(s.url, s.name) == []


def test_a_batch_takes_nothing_from_a_work_queue(kept: MakeStream) -> None:
    s = kept("workqueue")
    s.fill(20)
    held(s)
    given = {"servers": s.url, "stream": s.name}
    assert calls.stored(s, readWith="direct", minPartitions=2) == s.rows()
    assert left(s) == list(range(1, 21))
    with pytest.raises(OptionError, match="a batch can look at its messages with readWith=direct, and removes none"):
        calls.planned("b", given)


@pytest.mark.parametrize("retention", [None, "limits", "interest"])
def test_a_first_batch_that_is_planned_again(kept: MakeStream, retention: str | None) -> None:
    """Spark asks again where to begin when a query dies in its first batch, whose end is in the checkpoint by then."""
    s = kept(retention or "limits")
    given: dict[str, Any] = {"startingOffsets": "latest", **({"durable": DURABLE} if retention else {})}
    if retention == "interest":
        held(s)
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
