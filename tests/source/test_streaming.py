"""Streaming reads: what goes into which micro-batch, and that a restarted query goes on exactly where it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_jetstream.errors import DataLossError, OptionError
from spark_jetstream.source.planner import Planner
from tests.conftest import SparkLog
from tests.support import calls, planning
from tests.support.calls import Query
from tests.support.proxy import WireProxy
from tests.support.publish import Message
from tests.support.queries import Run, available_now, offsets, refusal, start, streaming
from tests.support.reading import between, wait_until
from tests.support.streams import MakeStream, Stream

ONLY = "stream string, sequence bigint"


def of(run: Run, name: str) -> list[int]:
    """The sequences of one stream in a run."""
    return [row["sequence"] for row in run.rows if row["stream"] == name]


# Limits


def test_available_now_reads_everything_in_limited_batches(
    spark: SparkSession, stream: MakeStream, tmp_path: Path
) -> None:
    s = stream()
    s.fill(60)
    s.send(*(Message(f"{s.subject}.h", b"", [("A", "1"), ("A", "2")]) for _ in range(40)))
    run = available_now(streaming(spark, s.url, s.name, maxMessagesPerTrigger=30), tmp_path)
    assert run.counts == [30, 30, 30, 10]
    assert run.stored == s.rows()
    # The progress tells where the query is. Spark leaves the start of a query's first batch empty.
    assert [each["numInputRows"] for each in run.progress] == [30, 30, 30, 10]
    assert run.progress[0]["sources"][0]["startOffset"] is None
    assert [offsets(each, "startOffset", s.name) for each in run.progress[1:]] == [31, 61, 91]
    assert [offsets(each, "endOffset", s.name) for each in run.progress] == [31, 61, 91, 101]
    assert [offsets(each, "latestOffset", s.name) for each in run.progress] == [101] * 4
    end = run.progress[-1]["sources"][0]["endOffset"]
    info = s.publisher.api(f"STREAM.INFO.{s.name}")
    assert (json.loads(end) if isinstance(end, str) else end) == {
        "version": 1,
        "streams": {s.name: {"next": 101, "created": info["created"], "last_timestamp": s.stored_time(100)}},
    }
    # Nothing new: no batch, not even an empty one.
    assert available_now(streaming(spark, s.url, s.name), tmp_path).batches == {}
    assert sum(path.name.isdigit() for path in (tmp_path / "offsets").iterdir()) == 4


def test_several_streams_share_the_limit(stream: MakeStream) -> None:
    long, short, empty = stream(), stream(), stream()
    long.fill(60)
    short.fill(30)
    names = f"{long.name},{short.name},{empty.name}"
    query = Query(long.url, names, maxMessagesPerTrigger=30)
    run = query.run()
    assert run.counts == [30, 30, 30]
    # In proportion to what waits in each.
    shares = [[row["stream"] for row in rows].count(short.name) for _, rows in sorted(run.batches.items())]
    assert shares == [10, 10, 10]
    assert of(run, long.name) == between(1, 61)
    assert of(run, short.name) == between(1, 31)
    assert [end["streams"][empty.name]["next"] for end in query.ends] == [1, 1, 1]


def test_a_limit_in_bytes_is_kept_roughly(stream: MakeStream) -> None:
    s = stream()
    s.fill(60, size=10_000)
    run = Query(s.url, s.name, maxBytesPerTrigger="250k").run()
    assert run.sequences == between(1, 61)
    # 256,000 bytes hold 25 messages with their subjects and what storage adds.
    assert all(22 <= count <= 26 for count in run.counts[:-1])
    assert len(run.counts) == 3


def test_the_smaller_of_two_limits_counts(stream: MakeStream) -> None:
    s = stream()
    s.fill(40, size=1000)
    query = Query(s.url, s.name, maxMessagesPerTrigger=25)
    assert query.run(maxBytesPerTrigger="1m").counts == [25, 15]
    query = Query(s.url, s.name, maxMessagesPerTrigger=25, startingOffsets=json.dumps({s.name: 39}))
    assert query.run(maxBytesPerTrigger="1").counts == [1, 1]


def test_once_reads_everything_whatever_the_limit(stream: MakeStream) -> None:
    """With the trigger once Spark asks for all that is available."""
    s = stream()
    s.fill(50)
    limits = {"maxMessagesPerTrigger": 20, "minMessagesPerTrigger": 20}
    assert calls.sequences("s", {"servers": s.url, "stream": s.name, **limits}) == between(1, 51)


@pytest.mark.parametrize("subjects", ["*.a", None])
def test_available_now_stops_at_what_was_there_when_it_began(stream: MakeStream, subjects: str | None) -> None:
    s = stream()
    s.fill(25)
    if subjects is not None:
        s.fill(5, "b")
    # What is there is less than the minimum in the end, and is not waited for.
    limits = {"minMessagesPerTrigger": 10, "maxMessagesPerTrigger": 10}
    query = Query(s.url, s.name, **limits, **({} if subjects is None else {"subjects": subjects}))
    run = query.run(lambda number: s.fill(10))
    assert run.counts == [10, 10, 5]
    assert run.sequences == between(1, 26)
    # The next run reads what was published during the first one.
    behind = 26 if subjects is None else 31
    assert query.run().sequences == between(behind, behind + 30)


def test_tasks_of_a_micro_batch(stream: MakeStream) -> None:
    s = stream()
    s.fill(60)
    options = {"servers": s.url, "stream": s.name, "minPartitions": 2}
    assert len(calls.planned("s", {**options, "maxMessagesPerPartition": 20})) == 3
    assert len(calls.planned("s", {**options, "maxMessagesPerPartition": 60})) == 2


# When a batch starts


@pytest.mark.usefixtures("no_connection_left")
def test_a_minimum_is_waited_for_no_longer_than_the_delay(stream: MakeStream) -> None:
    """The decision itself, with a clock of the test's own."""
    s = stream()
    now = 1000.0
    planner = planning.driver(s.url, s.name, clock=lambda: now, minMessagesPerTrigger=10, maxTriggerDelay="60s")
    begin = end = planner.initial()
    # Seconds that pass, messages that come, and where the query is then.
    for seconds, messages, expected in (
        (0, 0, 1),
        # While nothing is there no time runs.
        (1000, 9, 1),
        (59, 0, 1),
        (1, 0, 10),
        # The clock starts again with the next message.
        (1000, 0, 10),
        (0, 1, 10),
        (0, 8, 10),
        # Enough: at once.
        (0, 1, 20),
    ):
        now += seconds
        s.fill(messages)
        end = planner.latest(end, limited=True)
        assert end.streams[s.name].next == expected
        assert (end == begin) == (expected == 1)
    # Asked for everything, whatever the options say.
    s.fill(1)
    assert planner.latest(end, limited=False).streams[s.name].next == 21
    # A reader that has no other limit waits as well, whatever it names to Spark as its default.
    query = Query(s.url, s.name, minMessagesPerTrigger=21).resume()
    assert query.step() == []
    s.fill(1)
    assert len(query.step()) == 21


def test_messages_that_come_while_the_query_runs(spark: SparkSession, stream: MakeStream, tmp_path: Path) -> None:
    s, other = stream(), stream()
    run = Run()
    frame = streaming(spark, s.url, f"{s.name},{other.name}")
    query = start(frame, tmp_path, run, processingTime="100 milliseconds")
    expected = 0
    try:
        for count in (1, 7, 20):
            s.fill(count)
            other.fill(2)
            expected += count + 2
            run.wait_for(expected, query)
    finally:
        query.stop()
    assert sorted(run.stored) == sorted(s.rows() + other.rows())
    assert of(run, s.name) == between(1, 29)
    assert of(run, other.name) == between(1, 7)
    assert 0 not in run.counts


# Restarts


def test_a_restarted_query_goes_on_exactly(stream: MakeStream) -> None:
    s = stream()
    s.fill(25)
    query = Query(s.url, s.name, maxMessagesPerTrigger=10)
    assert query.run().stored == s.rows()
    s.fill(12)
    # Where the query once was to start does not matter any more.
    run = query.run(startingOffsets=json.dumps({s.name: 1}))
    assert run.stored == s.rows()[25:]
    assert run.counts == [10, 2]


def test_a_stream_added_and_removed_on_restart(stream: MakeStream, caplog: pytest.LogCaptureFixture) -> None:
    """An added stream is read from where the options say, and a removed one is forgotten, with a word."""
    old, new = stream(), stream()
    old.fill(10)
    new.fill(6)
    both = f"{new.name},{old.name}"
    query = Query(old.url, old.name)
    assert query.run().sequences == between(1, 11)
    old.fill(3)
    run = query.run(stream=both)
    assert of(run, old.name) == between(11, 14)
    assert of(run, new.name) == between(1, 7)
    assert query.run(stream=both).rows == []
    new.fill(4)
    old.fill(4)
    dropped = f"stream {new.name} is in the checkpoint and not in option stream: its position is dropped"
    assert dropped not in caplog.text
    assert [(row["stream"], row["sequence"]) for row in query.run().rows] == [(old.name, n) for n in between(14, 18)]
    assert caplog.text.count(dropped) == 1
    with pytest.raises(OptionError, match=f"of another query: it has {old.name}, and option stream names {new.name};"):
        query.run(stream=new.name)
    # Back again, it is a new stream for the query.
    run = query.run(stream=both)
    assert of(run, new.name) == between(1, 11)
    assert of(run, old.name) == []


def test_offsets_of_another_query(stream: MakeStream) -> None:
    """None of them is read as an empty batch, whichever end of it has the stranger."""
    s, other = stream(), stream()
    s.fill(10)
    other.fill(10)
    ours, theirs = (next(planning.run(planning.driver(s.url, each.name))) for each in (s, other))
    planner = planning.driver(s.url, s.name)
    assert len(planner.ranges(*ours)) == 1
    for batch in ((ours[0], theirs[1]), (theirs[0], ours[1]), theirs):
        with pytest.raises(OptionError, match=f"it has {other.name}, and option stream names {s.name};"):
            planner.ranges(*batch)
    with pytest.raises(OptionError, match="option bucket names KV_settings;"):
        planning.driver(s.url, bucket="settings").latest(ours[1], limited=True)


def test_spark_shows_what_is_wrong_with_an_offset(spark: SparkSession, stream: MakeStream, tmp_path: Path) -> None:
    s = stream()
    for _ in range(2):
        s.fill(3)
        available_now(streaming(spark, s.url, s.name, ONLY), tmp_path)
    file = tmp_path / "offsets" / "1"
    (tmp_path / "offsets" / ".1.crc").unlink()
    whole = file.read_text()
    position = whole.splitlines()[2]
    file.write_text(whole.replace(position, position[:30]))
    with pytest.raises(StreamingQueryException) as caught:
        available_now(streaming(spark, s.url, s.name, ONLY), tmp_path)
    kind, sentence = refusal(caught.value)
    assert kind == "OffsetError"
    assert sentence.startswith("an offset in the checkpoint is not JSON: ")
    assert sentence.endswith("; restore the checkpoint from a backup, or start the query with a new one")
    file.write_text(whole)
    assert available_now(streaming(spark, s.url, s.name, ONLY), tmp_path).rows == []


# Data loss


GONE = "messages 11 to 24 of stream NAME went before being read"


def purge(s: Stream) -> None:
    s.fill(20)
    s.purge(seq=25)


def create_again(s: Stream) -> None:
    s.delete()
    s.create()
    s.fill(6)


@pytest.mark.parametrize(
    ("damage", "text", "expected"),
    [
        (purge, f"{GONE} (likely purged or deleted)", range(25, 31)),
        (create_again, "stream NAME was deleted and created again", range(1, 7)),
    ],
    ids=["purge", "create again"],
)
def test_data_loss_fails_the_query_unless_it_is_accepted(
    stream: MakeStream, caplog: pytest.LogCaptureFixture, damage: Callable[[Stream], None], text: str, expected: range
) -> None:
    s = stream()
    s.fill(10)
    query = Query(s.url, s.name)
    assert query.run().sequences == between(1, 11)
    damage(s)
    text = text.replace("NAME", s.name)
    with pytest.raises(DataLossError) as caught:
        query.run()
    assert text in str(caught.value)
    assert f"set failOnDataLoss=false to go on at sequence {expected[0]}" in str(caught.value)
    assert text not in caplog.text
    # Failing has not moved the query.
    assert query.run(failOnDataLoss="false").stored == s.rows(*expected)
    assert text in caplog.text
    assert "failOnDataLoss is false" in caplog.text
    # An accepted loss is over.
    following = s.fill(2)
    assert query.run().sequences == following


@pytest.mark.full
def test_spark_shows_a_data_loss_and_the_warning(
    spark: SparkSession, stream: MakeStream, tmp_path: Path, spark_log: SparkLog
) -> None:
    s = stream()
    s.fill(10)
    assert available_now(streaming(spark, s.url, s.name, ONLY), tmp_path).sequences == between(1, 11)
    purge(s)
    said = GONE.replace("NAME", s.name)
    with pytest.raises(StreamingQueryException, match="DataLossError") as caught:
        available_now(streaming(spark, s.url, s.name, ONLY), tmp_path)
    assert said in str(caught.value)
    run = available_now(streaming(spark, s.url, s.name, failOnDataLoss="false"), tmp_path)
    assert run.stored == s.rows(*between(25, 31))
    wait_until(lambda: said in spark_log.text and "failOnDataLoss is false" in spark_log.text, "the warning", 10)


def test_messages_purged_while_the_query_runs(stream: MakeStream) -> None:
    s = stream()
    s.fill(30)
    query = Query(s.url, s.name, maxMessagesPerTrigger=10)
    with pytest.raises(DataLossError, match=f"messages 11 to 17 of stream {s.name} went before being read"):
        query.run(lambda number: s.purge(seq=18))
    assert [end["streams"][s.name]["next"] for end in query.ends] == [11]
    assert query.run(failOnDataLoss="false").sequences == between(18, 31)


# Filters


def test_a_filter_that_matches_one_message_in_10_000(stream: MakeStream) -> None:
    s = stream(storage="memory")
    straw = Message(f"{s.subject}.straw", b"x" * 20).frame()
    for _ in range(20):
        s.publisher.pour(straw, 9_999, Message(f"{s.subject}.needle", b"needle"))
    needles = list(range(10_000, 200_001, 10_000))
    with WireProxy(s.url) as proxy:
        run = Query(proxy.url, s.name, subjects=f"{s.subject}.needle", maxMessagesPerTrigger=8).run()
        assert run.counts == [8, 8, 4]
        assert run.sequences == needles
        # All messages are more than 12 MB on the wire; the needles are less than 4 KB.
        assert proxy.bytes_to_client < 200_000
        run = Query(proxy.url, s.name, subjects="*.needle").run()
        assert run.counts == [20]
        assert run.sequences == needles
        assert proxy.bytes_to_client < 400_000


def test_a_filter_that_nothing_matches_yet(stream: MakeStream) -> None:
    s = stream()
    s.fill(50, "noise")
    query = Query(s.url, s.name, subjects=f"{s.subject}.wanted")
    # A new query runs one batch even when there is nothing to read, whatever the source.
    assert query.run().counts == [0]
    s.fill(50, "noise")
    assert query.run().batches == {}
    s.fill(1, "wanted")
    s.fill(50, "noise")
    run = query.run()
    assert (run.sequences, run.counts) == ([101], [1])
    s.fill(50, "noise")
    assert query.run().batches == {}


@pytest.mark.usefixtures("no_connection_left")
def test_a_quiet_filter_is_not_taken_for_data_loss(stream: MakeStream) -> None:
    """What does not match comes and goes; the offset keeps up, or a restart could not tell it from a loss."""
    s = stream(max_msgs=100)

    def new_planner() -> Planner:
        return planning.driver(s.url, s.name, subjects=f"{s.subject}.wanted")

    s.fill(3, "wanted")
    planner = new_planner()
    offset = planner.latest(planner.initial(), limited=True)
    assert offset.streams[s.name].next == 4
    moves = 0
    for _ in range(30):
        s.fill(20, "noise")
        end = planner.latest(offset, limited=True)
        assert all(part.count == 0 for part in planner.ranges(offset, end))
        moves += end != offset
        offset = end
        assert new_planner().latest(offset, limited=True).streams[s.name].next >= offset.streams[s.name].next
    assert 0 < moves <= 15
    [last] = s.fill(1, "wanted")
    assert planner.latest(offset, limited=True).streams[s.name].next == last + 1


# Streams whose messages go when they are acknowledged


def test_an_interest_stream_is_read_with_a_warning(stream: MakeStream, caplog: pytest.LogCaptureFixture) -> None:
    s = stream(retention="interest")
    holder = {"durable_name": "holder", "ack_policy": "explicit"}
    s.publisher.api(f"CONSUMER.CREATE.{s.name}.holder", {"stream_name": s.name, "config": holder})
    s.fill(10)
    run = Query(s.url, s.name, maxMessagesPerTrigger=4).run()
    assert run.counts == [4, 4, 2]
    assert run.stored == s.rows()
    assert caplog.text.count(f"stream {s.name} keeps messages only as long as its consumers are interested") == 1
    assert s.state()["messages"] == 10
