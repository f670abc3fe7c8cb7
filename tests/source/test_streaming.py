"""Streaming reads for which Spark's Kafka source has no tests, and what Spark itself shows of
errors.

tests/source/test_like_kafka.py has limits, restarts and losses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_jetstream.source.planner import Planner
from tests.conftest import SparkLog
from tests.support import calls, planning
from tests.support.calls import Query
from tests.support.proxy import WireProxy
from tests.support.publish import Message
from tests.support.queries import available_now, batch, refusal, streaming
from tests.support.reading import wait_until
from tests.support.streams import MakeStream

ONLY = "stream string, sequence bigint"


# What Spark shows


def test_spark_shows_what_is_wrong_with_an_offset(
    spark: SparkSession, stream: MakeStream, tmp_path: Path
) -> None:
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
    assert sentence.endswith(
        "; restore the checkpoint from a backup, or start the query with a new one"
    )
    file.write_text(whole)
    assert available_now(streaming(spark, s.url, s.name, ONLY), tmp_path).rows == []


def test_spark_shows_a_warning_of_the_planner_among_its_own_lines(
    spark: SparkSession, stream: MakeStream, spark_log: SparkLog, tmp_path: Path
) -> None:
    s = stream()
    says = (
        r"/\d\d \d\d:\d\d:\d\d WARN spark_jetstream\.source\.positions: no subject of stream "
        rf"{s.name} "
    )
    assert batch(spark, s.url, s.name, ONLY, subjects="misspelt.b").collect() == []
    spark_log.wait_for(rf"{says}.*\(misspelt\.b\)")
    available_now(streaming(spark, s.url, s.name, ONLY, subjects="misspelt.q"), tmp_path)
    spark_log.wait_for(rf"{says}.*\(misspelt\.q\)")


@pytest.mark.usefixtures("no_connection_left")
def test_a_batch_whose_rows_are_not_used_moves_on_without_a_start(stream: MakeStream) -> None:
    """As on Spark 4.0 and 4.1 with a `foreachBatch` that skips a batch: no task of it is planned."""
    s = stream()
    s.fill(25)
    source = calls.data_source({"servers": s.url, "stream": s.name, "maxMessagesPerTrigger": 10})
    reader: Any = source.streamReader(calls.SEQUENCE)
    first = reader.latestOffset()
    assert len(reader.partitions(reader.initialOffset(), first)) == 1
    s.fill(25)
    ends = [first, *(reader.latestOffset() for _ in range(4))]
    assert [end["streams"][s.name]["next"] for end in ends] == [26, 36, 46, 51, 51]
    # A batch that is used begins where Spark says, which is where the last one ended.
    s.fill(5)
    reader.partitions(ends[-1], end := reader.latestOffset())
    assert end["streams"][s.name]["next"] == 56
    # A run that goes on is told where by an empty batch.
    again: Any = source.streamReader(calls.SEQUENCE)
    again.partitions(ends[1], ends[1])
    assert again.latestOffset()["streams"][s.name]["next"] == 46


# Filters


def test_a_filter_that_matches_one_message_in_10_000(stream: MakeStream) -> None:
    s = stream(storage="memory")
    straw = Message(f"{s.subject}.straw", b"x" * 20).frame()
    for _ in range(20):
        s.publisher.pour(straw, 9_999, Message(f"{s.subject}.needle", b"needle"))
    needles = list(range(10_000, 200_001, 10_000))
    with WireProxy(s.url) as proxy:
        run = Query(
            proxy.url, s.name, subjects=f"{s.subject}.needle", maxMessagesPerTrigger=8
        ).run()
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
    """Messages that do not match are stored and removed all the time.

    The offset keeps up, or a restart could not tell their removal from a loss.
    """
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
        assert end == offset or all(part.count == 0 for part in planner.ranges(offset, end))
        moves += end != offset
        offset = end
        assert (
            new_planner().latest(offset, limited=True).streams[s.name].next
            >= offset.streams[s.name].next
        )
    assert 0 < moves <= 15
    [last] = s.fill(1, "wanted")
    assert planner.latest(offset, limited=True).streams[s.name].next == last + 1


def test_filters_that_match_no_subject_of_the_stream(
    stream: MakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    s = stream()
    s.fill(3)
    query = Query(s.url, s.name, subjects=f"{s.subject}x.>")
    assert query.run().counts == [0]
    query.run(subjects=f"{s.subject}.>")
    warning = (
        f"no subject of stream {s.name} ({s.subject}.>) matches option subjects ({s.subject}x.>)"
    )
    assert caplog.messages.count(warning) == 1
    # Messages of a source keep their subjects.
    copy = stream(subjects=[f"{s.subject}_copy"], sources=[{"name": s.name}])
    wait_until(lambda: copy.state()["messages"] == 3, "the copies")
    assert sum(Query(s.url, copy.name, subjects=f"{s.subject}.>").run().counts) == 3
    assert "no subject of stream" not in "".join(
        message for message in caplog.messages if message != warning
    )


# Streams whose messages go when they are acknowledged


def test_an_interest_stream_is_read_with_a_warning(
    stream: MakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    s = stream(retention="interest")
    holder = {"durable_name": "holder", "ack_policy": "explicit"}
    s.publisher.api(f"CONSUMER.CREATE.{s.name}.holder", {"stream_name": s.name, "config": holder})
    s.fill(10)
    run = Query(s.url, s.name, maxMessagesPerTrigger=4).run()
    assert run.counts == [4, 4, 2]
    assert run.stored == s.rows()
    assert (
        caplog.text.count(f"stream {s.name} keeps messages only as long as its consumers need them")
        == 1
    )
    assert s.state()["messages"] == 10
