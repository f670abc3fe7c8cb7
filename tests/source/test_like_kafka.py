"""The tests of Spark's Kafka source (connector/kafka-0-10-sql, branch master), done with this one.

A topic is a stream here, an offset a sequence. A stream has no partitions: the offset of a query
has one sequence for each stream. A test has the name of its counterpart, shortened. The table has
the counterparts with another name. docs/migrating.md has the differences for users.

```
KafkaMicroBatchSourceSuite, KafkaMicroBatchV2SourceSuite, KafkaContinuousSourceSuite
  assign, subscribing topic by ...            test_subscribing_topic_by_name
  ... with non-matching starting offset       test_no_matched_offset_for_timestamp
  ... when offset(s) got unavailable          test_available_now_should_throw_error_when_partitions_got_unavailable
  topic-level offsets                         test_bad_source_options: one sequence for each stream, no words
  subscribing topic by pattern       source/test_selection.py test_new_streams_are_read_from_their_first_message
  ... with topic deletions           source/test_selection.py test_nothing_is_lost_and_nothing_comes_twice
  initial offsets (SPARK-19517)               source/durable/test_durable_spark.py test_a_first_batch_that_is_planned_again
  ... written by future version               source/test_offsets.py test_refuses_in_one_sentence
  delete a topic when a job is running        streams/test_readers.py test_a_stream_that_is_gone
  allow group.id override                     source/durable/test_durable_spark.py test_rows_and_lag
  null key/values, Kafka column types         source/test_rows.py test_thousands_of_messages_of_all_sizes
  KafkaSource with watermark                  docs/test_docs.py test_examples_of_the_reading_guide
  custom metrics: no limit; cannot stop       test_input_row_metrics
  ... corner cases, SPARK-57438               monitoring/test_stream_lag.py test_one_stream
  case insensitive parameters                 options/test_values.py test_a_value_is_parsed_to_the_type_of_its_option
  stress test with multiple topics            chaos/test_faults.py test_nothing_is_lost_and_nothing_comes_twice
KafkaRelationSuite
  ... offsets, with headers                   test_explicit_offsets, source/test_rows.py test_headers_can_be_left_out
  timestamp provided for ..., preferences     test_timestamp_provided_for_starting_and_ending
  late binding of offsets, minPartitions      source/test_planned_once.py test_a_frame_that_is_read_again_keeps_its_first_plan
  bad batch query options, start and end      test_bad_source_options
  resolved start offset greater than end      source/test_errors.py test_options_that_the_server_contradicts_are_clear_errors
KafkaOffsetRangeCalculatorSuite               source/test_ranges.py test_shares_by_messages
KafkaOffsetReaderSuite   source/test_planner.py test_a_batch_read, test_start_offset_does_not_match_assigned
KafkaSourceOffsetSuite                        source/test_offsets.py test_the_golden_text
  comparison of offsets                       source/test_continuity.py test_something_is_missing
KafkaSourceProviderSuite    options/test_sides.py test_every_option_of_a_source_reaches_its_field_in_any_case
KafkaOffsetRangeLimitSuite, JsonUtilsSuite    options/test_values.py test_a_wrong_value_is_an_error_that_names_the_option
KafkaDontFailOnDataLossSuite, stress test     chaos/test_faults.py test_nothing_is_lost_and_nothing_comes_twice
KafkaDataConsumerSuite, task retry            chaos/test_faults.py test_nothing_is_lost_and_nothing_comes_twice
ConsumerStrategySuite, patterns               source/test_selection.py test_which_names_match
  invalid partitions                          source/test_planner.py test_a_stream_that_never_was
KafkaExceptionsSuite                          test_errors.py test_every_class_pickles
```

Without a counterpart is what Spark has for no Python source: continuous and real-time modes, V1
sources, async progress tracking. So are partitions that are added, prefixes of group ids, isolation
levels, timestamps of producers, delegation tokens, pools of consumers and of fetched data, and
share groups.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jetstream.errors import DataLossError, OptionError
from spark_jetstream.monitoring import StreamLag, lag
from spark_jetstream.options import SourceOptions
from tests.support import calls, planning
from tests.support.calls import ADMISSION_CONTROL, Query
from tests.support.project import ROOT
from tests.support.publish import Message
from tests.support.queries import Run, available_now, batch, offsets, start, streaming
from tests.support.reading import between, wait_until
from tests.support.streams import MakeStream, Stored, Stream, iso
from tests.support.versions import ATOMIC_BATCHES, BATCHES_OF_ONE_RUN, LAG

ONLY = "stream string, sequence bigint"
BOOLEANS = pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])


def read(s: Stream, **options: object) -> list[int]:
    """The sequences that a batch read brings, task after task.

    `NAME` in an option stands for the stream's name.
    """
    given = {name: str(value).replace("NAME", s.name) for name, value in options.items()}
    return calls.sequences("b", {"servers": s.url, "stream": s.name, **given})


def of(run: Run, s: Stream) -> list[int]:
    """The sequences of one stream in a run."""
    return [row["sequence"] for row in run.rows if row["stream"] == s.name]


def by_stream(rows: list[Any], *streams: Stream) -> list[int]:
    """How many rows each stream has."""
    names = [row[0] for row in rows]
    return [names.count(s.name) for s in streams]


# KafkaMicroBatchSourceSuite: limits


def test_trigger_available_now(spark: SparkSession, stream: MakeStream, tmp_path: Path) -> None:
    s = stream()
    s.fill(60)
    s.send(*(Message(f"{s.subject}.h", b"", [("A", "1"), ("A", "2")]) for _ in range(40)))
    run = available_now(streaming(spark, s.url, s.name, maxMessagesPerTrigger=30), tmp_path)
    counts = [30, 30, 30, 10] if ADMISSION_CONTROL else [100]
    ends = [1 + read for read in accumulate(counts)]
    assert run.counts == counts
    assert run.stored == s.rows()
    # The progress tells where the query is. Spark leaves the start of a query's first batch empty.
    assert [each["numInputRows"] for each in run.progress] == counts
    assert run.progress[0]["sources"][0]["startOffset"] is None
    assert [offsets(each, "startOffset", s.name) for each in run.progress[1:]] == ends[:-1]
    assert [offsets(each, "endOffset", s.name) for each in run.progress] == ends
    assert [offsets(each, "latestOffset", s.name) for each in run.progress] == [101] * len(ends)
    end = run.progress[-1]["sources"][0]["endOffset"]
    info = s.publisher.api(f"STREAM.INFO.{s.name}")
    assert (json.loads(end) if isinstance(end, str) else end)["streams"] == {
        s.name: {"next": 101, "created": info["created"], "last_timestamp": s.stored_time(100)}
    }
    # Nothing new: no batch, not even an empty one.
    assert available_now(streaming(spark, s.url, s.name), tmp_path).batches == {}
    assert sum(path.name.isdigit() for path in (tmp_path / "offsets").iterdir()) == len(ends)


def test_default_config_of_include_header_does_not_break_existing_query(
    spark: SparkSession, stream: MakeStream, tmp_path: Path
) -> None:
    """A restart with fewer columns, other limits and another stream; and `Trigger.Once`, which has
    no limits where Spark lets a source know.
    """
    s, other = stream(), stream()
    s.send(*(Message(f"{s.subject}.h", b"x", [("A", "1")]) for _ in range(20)))
    counts, at_once = ([15, 5], 50) if ADMISSION_CONTROL else ([20], 20)
    run = available_now(streaming(spark, s.url, s.name, maxMessagesPerTrigger=15), tmp_path)
    assert (run.counts, run.stored) == (counts, s.rows())
    s.fill(50)
    limits = {"maxMessagesPerTrigger": 20, "minMessagesPerTrigger": 20}
    once = available_now(streaming(spark, s.url, s.name, ONLY, **limits), tmp_path, once=True)
    assert (once.counts, once.sequences) == ([at_once], between(21, 21 + at_once))
    assert [set(row.asDict()) for row in once.rows[:1]] == [{"stream", "sequence"}]
    s.fill(5)
    other.fill(5)
    both = streaming(
        spark,
        s.url,
        f"{s.name},{other.name}",
        "sequence bigint, stream string",
        maxMessagesPerTrigger=4,
    )
    run = Run()
    query = start(both, tmp_path, run)
    query.processAllAvailable()
    query.stop()
    assert (of(run, s), of(run, other)) == (between(21 + at_once, 76), between(1, 6))
    assert max(run.counts) == 4


def test_max_offsets_per_trigger(stream: MakeStream) -> None:
    """Streams share the limit by what waits in each; those that have anything get a message at
    least.
    """
    large, middle, small, empty = streams = [stream() for _ in range(4)]
    query = Query(large.url, ",".join(s.name for s in streams), maxMessagesPerTrigger=10)
    # Before Spark 4.2 the first batch has no limits.
    assert query.run().counts == [0]
    for s, count in zip(streams, (101, 11, 1, 0), strict=True):
        s.fill(count)
    found = []
    for _ in range(2):
        query.resume()
        found += [query.step(), query.step()]
    assert [by_stream(rows, *streams) for rows in found] == [
        [7, 2, 1, 0],
        [8, 2, 0, 0],
        [8, 2, 0, 0],
        [9, 1, 0, 0],
    ]
    rest = query.rest()
    assert sorted(chain(*found, rest)) == sorted(chain(*(s.rows() for s in (large, middle, small))))
    assert query.end is not None
    assert query.end["streams"][empty.name]["next"] == 1
    # Once: Spark asks for all that is available. The limits say nothing then.
    limits = {"maxMessagesPerTrigger": 20, "minMessagesPerTrigger": 20}
    assert calls.sequences("s", {"servers": large.url, "stream": large.name, **limits}) == between(
        1, 102
    )


def test_rate_limit_set_to_long_max_should_not_overflow(stream: MakeStream) -> None:
    s = stream()
    s.fill(30)
    start = json.dumps({s.name: 6})
    query = Query(
        s.url,
        s.name,
        startingOffsets=start,
        maxMessagesPerTrigger=2**63 - 1,
        maxBytesPerTrigger="1024t",
    )
    assert query.run().counts == [25]


@pytest.mark.usefixtures("no_connection_left")
def test_min_offsets_per_trigger(stream: MakeStream) -> None:
    """With a clock of the test's own.

    Kafka's first batch does not wait, and its delay counts from the last batch.
    """
    s = stream()
    now = 1000.0
    planner = planning.driver(
        s.url, s.name, clock=lambda: now, minMessagesPerTrigger=10, maxTriggerDelay="60s"
    )
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
    query = Query(s.url, s.name, minMessagesPerTrigger=21)
    assert query.run().counts == [20]
    query.resume()
    s.fill(20)
    assert query.step() == []
    s.fill(1)
    assert len(query.step()) == 21


@pytest.mark.usefixtures("no_connection_left")
def test_composite_read_limit(stream: MakeStream) -> None:
    streams = [stream() for _ in range(3)]
    url, names = streams[0].url, ",".join(s.name for s in streams)
    now = 0.0
    limits: dict[str, Any] = {
        "minMessagesPerTrigger": 15,
        "maxMessagesPerTrigger": 20,
        "maxTriggerDelay": "5s",
    }
    planner = planning.driver(url, names, clock=lambda: now, **limits)
    at = planner.initial()
    for seconds, messages, expected in (
        (0, (21, 11, 1), 20),
        # Less than the minimum is left, and the delay begins.
        (4, (0, 0, 0), 0),
        # More than the maximum waits.
        (0, (8, 10, 1), 20),
        (0, (0, 0, 0), 0),
        (4, (0, 0, 0), 0),
        (1, (0, 0, 0), 12),
    ):
        now += seconds
        for s, count in zip(streams, messages, strict=True):
            s.fill(count)
        end = planner.latest(at, limited=True)
        assert sum(end.streams[s.name].next - at.streams[s.name].next for s in streams) == expected
        at = end
    # The smaller one of two limits counts.
    for count, size, given, counts in (
        (40, 1000, {"maxMessagesPerTrigger": 25, "maxBytesPerTrigger": "1m"}, [25, 15]),
        (2, 0, {"maxMessagesPerTrigger": 25, "maxBytesPerTrigger": "1"}, [1, 1]),
        (2, 0, {"maxBytesPerTrigger": "1"}, [1, 1]),
    ):
        s = stream()
        query = Query(s.url, s.name, **given)
        assert query.run().counts == [0]
        s.fill(count, size=size)
        assert query.runs().counts == counts


@pytest.mark.parametrize("subjects", ["*.a", None])
def test_fetched_data_reset_should_reset_all_fields(
    stream: MakeStream, subjects: str | None
) -> None:
    """Messages that come while a batch is read belong to a later one; with `Trigger.AvailableNow`
    to the next run.
    """
    s = stream()
    s.fill(25)
    if subjects is not None:
        s.fill(5, "b")
    # What is there is less than the minimum in the end, and is not waited for.
    limits = {"minMessagesPerTrigger": 10, "maxMessagesPerTrigger": 10}
    query = Query(s.url, s.name, **limits, **({} if subjects is None else {"subjects": subjects}))
    run = query.run(lambda number: s.fill(10))
    assert run.counts == ([10, 10, 5] if ADMISSION_CONTROL else [25])
    assert run.sequences == between(1, 26)
    first = s.state()["last_seq"] + 1 - 10 * len(run.counts)
    assert query.run().sequences == between(first, first + 10 * len(run.counts))


# Progress


def test_input_row_metrics(spark: SparkSession, stream: MakeStream, tmp_path: Path) -> None:
    """Messages that come while the query runs; nothing waits after a batch without a limit.

    And it can be stopped.
    """
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
        wait_until(
            lambda: sum(each.numInputRows for each in query.recentProgress) == expected,
            "the last progress",
        )
        last = {each.stream: each.messages for each in lag(query.lastProgress).values()}
    finally:
        query.stop()
    assert sorted(run.stored) == sorted(s.rows() + other.rows())
    assert (of(run, s), of(run, other)) == (between(1, 29), between(1, 7))
    assert 0 not in run.counts
    assert last == dict.fromkeys((s.name, other.name), 0 if ADMISSION_CONTROL else None)


@LAG
def test_custom_metrics_with_rate_limit(
    spark: SparkSession, stream: MakeStream, tmp_path: Path
) -> None:
    """The end of the stream is the one at which Spark planned the micro-batch."""
    s = stream()
    s.fill(40)
    begun = threading.Event()

    def write(frame: DataFrame, number: int) -> None:
        if number == 0:
            assert begun.wait(60)
            s.fill(10)
            s.fill(5, "other")

    frame = streaming(spark, s.url, s.name, subjects=f"{s.subject}.a", maxMessagesPerTrigger=15)
    query = (
        frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path)).start()
    )
    assert lag(query.lastProgress) == {}
    begun.set()
    query.processAllAvailable()

    def seconds(last: int, read: int) -> float:
        return (s.stored_time(last) - s.stored_time(read)) / 1e9

    # With a filter the end is one past the last message that matches.
    found = [lag(progress)[s.name] for progress in query.recentProgress]
    assert [(each.next, each.messages, each.seconds) for each in found[:4]] == [
        (16, 25, seconds(40, 15)),
        (31, 20, seconds(50, 30)),
        (46, 5, seconds(50, 45)),
        (51, 0, 0.0),
    ]
    assert lag(query.lastProgress) == {s.name: StreamLag(s.name, 51, 51, 0, 0.0)}
    query.stop()


def check_sources(run: Run, sources: int, rows: list[int]) -> None:
    """The query has this number of sources and positions, and read this number of rows in each
    batch.
    """
    assert [each["numInputRows"] for each in run.progress if each["numInputRows"]] == rows
    assert {len(each["sources"]) for each in run.progress} == {sources}


@pytest.mark.full
@pytest.mark.parametrize(
    ("column", "reuse", "sources", "rows"),
    [
        ("sequence + 0 AS number", "false", 1, 4),
        ("sequence + 0 AS number", "true", 1, 2),
        ("sequence", "true", 2, 4),
    ],
)
def test_stream_stream_self_join_generates_only_one_offset_in_log_and_correct_metrics(
    spark: SparkSession,
    stream: MakeStream,
    tmp_path: Path,
    column: str,
    reuse: str,
    sources: int,
    rows: int,
) -> None:
    """One frame is one source, if all columns of the join are computed ones; with others Spark
    makes two sources.
    """
    s = stream()
    s.fill(4)
    frame = streaming(spark, s.url, s.name, maxMessagesPerTrigger=2).selectExpr(
        "sequence % 2 AS key", column
    )
    spark.conf.set("spark.sql.exchange.reuse", reuse)
    try:
        run = available_now(frame.join(frame, "key").toDF("key", "one", "other"), tmp_path)
    finally:
        spark.conf.set("spark.sql.exchange.reuse", "true")
    pairs = sorted((row["one"], row["other"]) for row in run.rows)
    assert pairs == [(1, 1), (1, 3), (2, 2), (2, 4), (3, 1), (3, 3), (4, 2), (4, 4)]
    check_sources(run, sources, [rows, rows] if ADMISSION_CONTROL else [2 * rows])


@pytest.mark.full
def test_current_partition_offsets_should_be_set_when_no_new_data_comes_in(
    spark: SparkSession, stream: MakeStream, tmp_path: Path
) -> None:
    """A union of one frame is one source; one of two frames has two, each with its own limit and
    position.
    """
    short, long = stream(), stream()
    short.fill(10)
    long.fill(25)
    one, two = (
        streaming(spark, s.url, s.name, ONLY, maxMessagesPerTrigger=5) for s in (short, long)
    )
    batches = [[5, 5], [5, 5], [0, 5], [0, 5], [0, 5]] if ADMISSION_CONTROL else [[10, 25]]
    run = available_now(one.union(one), tmp_path / "one")
    assert Counter(run.sequences) == dict.fromkeys(between(1, 11), 2)
    check_sources(run, 1, [2 * rows for rows, _ in batches if rows])
    run = available_now(one.union(two), tmp_path / "two")
    assert [by_stream(rows, short, long) for _, rows in sorted(run.batches.items())] == batches
    check_sources(run, 2, [sum(each) for each in batches])
    long.fill(5)
    assert by_stream(available_now(one.union(two), tmp_path / "two").rows, short, long) == [0, 5]


# Where a query starts, and how it goes on


@BOOLEANS
@pytest.mark.parametrize("at", ["latest", "earliest", "specific offsets", "global timestamp"])
def test_subscribing_topic_by_name(stream: MakeStream, at: str, fail_on_data_loss: str) -> None:
    """A restarted query goes on exactly, wherever its options say that it starts, and keeps to
    other limits.
    """
    s = stream()
    s.fill(25)
    options, first = {
        "latest": ({"startingOffsets": "latest"}, 26),
        "earliest": ({"startingOffsets": "earliest"}, 1),
        "specific offsets": ({"startingOffsets": json.dumps({s.name: 8})}, 8),
        "global timestamp": ({"startingTimestamp": iso(s.stored_time(20))}, 20),
    }[at]
    query = Query(s.url, s.name, failOnDataLoss=fail_on_data_loss, **options)
    assert query.run().stored == s.rows()[first - 1 :]
    s.fill(12)
    run = query.runs(startingOffsets=json.dumps({s.name: 1}), maxMessagesPerTrigger=10)
    assert run.stored == s.rows()[25:]
    assert run.counts == [10, 2]


def test_topic_level_offsets_tolerate_a_new_topic(
    stream: MakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    """An added stream is read from where the options say, and a removed one is forgotten, with a
    word.
    """
    old, new = stream(), stream()
    old.fill(10)
    new.fill(6)
    both = f"{new.name},{old.name}"
    query = Query(old.url, old.name)
    assert query.run().sequences == between(1, 11)
    old.fill(3)
    run = query.runs(stream=both)
    assert of(run, old) == between(11, 14)
    assert of(run, new) == between(1, 7)
    assert query.run(stream=both).rows == []
    new.fill(4)
    old.fill(4)
    dropped = (
        f"stream {new.name} is in the checkpoint and not in option stream: its position is dropped"
    )
    assert dropped not in caplog.text
    run = query.run()
    assert (of(run, old), of(run, new)) == (between(14, 18), [])
    assert caplog.text.count(dropped) == 1
    with pytest.raises(
        OptionError,
        match=f"of another query: it has {old.name}, and option stream names {new.name};",
    ):
        query.run(stream=new.name)
    # Back again, it is a new stream for the query.
    run = query.runs(stream=both)
    assert of(run, new) == between(1, 11)
    assert of(run, old) == []


@pytest.mark.usefixtures("no_connection_left")
def test_no_crash_looping_during_uncommitted_batch_retry_in_available_now_trigger(
    stream: MakeStream,
) -> None:
    """A batch that failed is planned again as it was, although a stream was added and the limits
    are others.
    """
    s, added = stream(), stream()
    s.fill(7)
    failed = planning.driver(s.url, s.name, maxMessagesPerTrigger=5)
    failed.prepare_available_now()
    [(begin, end)] = planning.run(failed, batches=1)
    added.fill(2)
    s.fill(3)
    again = planning.driver(s.url, f"{s.name},{added.name}", maxMessagesPerTrigger=3)
    again.prepare_available_now()
    assert planning.read(s.url, again.ranges(begin, end)) == {s.name: between(1, 6)}
    rest = [planning.read(s.url, again.ranges(*each)) for each in planning.run(again, end)]
    assert [name for found in rest for name in sorted(found) for _ in found[name]].count(
        added.name
    ) == 2
    assert [sequence for found in rest for sequence in found.get(s.name, [])] == between(6, 11)


# Streams that are deleted, created again, purged


def create_again(s: Stream) -> None:
    s.delete()
    s.create()
    s.fill(6)


def purge(s: Stream) -> None:
    s.purge(seq=25)


GONE = "messages 11 to 24 of stream NAME went before being read"
DAMAGES = pytest.mark.parametrize(
    ("damage", "text", "expected"),
    [
        (purge, f"{GONE} (likely purged or deleted)", range(25, 31)),
        (create_again, "stream NAME was deleted and created again", range(1, 7)),
    ],
    ids=["purge", "create again"],
)


@DAMAGES
def test_subscribe_topic_by_pattern_with_topic_recreation_between_batches(
    stream: MakeStream,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Stream], None],
    text: str,
    expected: range,
) -> None:
    """A loss fails the query unless it is accepted."""
    s = stream()
    s.fill(10)
    query = Query(s.url, s.name)
    assert query.run().sequences == between(1, 11)
    s.fill(20)
    damage(s)
    text = text.replace("NAME", s.name)
    with pytest.raises(DataLossError) as caught:
        query.run()
    assert text in str(caught.value)
    assert f"set failOnDataLoss=false to go on at sequence {expected[0]}" in str(caught.value)
    assert text not in caplog.text
    # Failing has not moved the query.
    assert query.runs(failOnDataLoss="false").stored == s.rows(*expected)
    assert text in caplog.text
    assert "failOnDataLoss is false" in caplog.text
    # An accepted loss is over.
    following = s.fill(2)
    assert query.run().sequences == following


@BATCHES_OF_ONE_RUN
@DAMAGES
def test_available_now_should_throw_error_when_partitions_got_unavailable(
    stream: MakeStream, damage: Callable[[Stream], None], text: str, expected: range
) -> None:
    """During the run. Kafka's query fails whatever `failOnDataLoss` is; here the option decides."""

    def query() -> tuple[Stream, Query]:
        s = stream()
        s.fill(30)
        return s, Query(s.url, s.name, maxMessagesPerTrigger=10)

    s, failing = query()
    with pytest.raises(DataLossError, match=re.escape(text.replace("NAME", s.name))):
        failing.run(lambda _: damage(s))
    assert [end["streams"][s.name]["next"] for end in failing.ends] == [11]
    s, accepting = query()

    def once(number: int) -> None:
        if number == 0:
            damage(s)

    run = accepting.run(once, failOnDataLoss="false")
    # What takes the place of the stream is left to the next run.
    assert run.sequences == [*between(1, 11), *(expected if damage is purge else ())]
    assert accepting.run().sequences == ([] if damage is purge else list(expected))


@pytest.mark.usefixtures("no_election")
def test_empty_partitions_should_not_record_to_latest_offset(stream: MakeStream) -> None:
    """The only stream of a query is deleted: its position stays, and its end is unknown, which is
    no error.
    """
    s = stream()
    s.fill(10)
    query = Query(s.url, s.name, failOnDataLoss="false")
    query.run()
    before = query.end
    s.delete()
    assert query.run().batches == {}
    assert query.end == before
    latest = query.resume()._reader.reportLatestOffset()
    progress = {
        "sources": [
            {"description": "", "startOffset": before, "endOffset": before, "latestOffset": latest}
        ]
    }
    assert lag(json.dumps(progress)) == {s.name: StreamLag(s.name, 11, None, None, None)}
    s.create()
    s.fill(4)
    assert query.runs().sequences == between(1, 5)


@pytest.mark.parametrize("mode", ["b", "s"])
def test_fail_on_data_loss_false_should_not_return_duplicated_records(
    stream: MakeStream, mode: str
) -> None:
    """The first of the named messages are gone."""
    s = stream()
    s.fill(20)
    s.purge(seq=11)
    options = {"servers": s.url, "stream": s.name, "startingOffsets": json.dumps({s.name: 3})}
    assert calls.sequences(mode, {**options, "failOnDataLoss": "false"}) == between(11, 21)
    if mode == "b":
        # All of them: nothing is left to read, which is the same loss.
        for end in (6, 11, 12):
            bounds = {
                **options,
                "endingOffsets": json.dumps({s.name: end}),
                "failOnDataLoss": "false",
            }
            assert calls.sequences(mode, bounds) == between(11, end)
    kept = "the first message kept has sequence 11; set failOnDataLoss to false to begin there"
    with pytest.raises(OptionError, match=f"begins stream {s.name} at sequence 3, but {kept}"):
        calls.sequences(mode, options)


# Other semantics of the source


@ATOMIC_BATCHES
def test_read_kafka_transactional_messages_read_uncommitted(stream: MakeStream) -> None:
    """Messages of an atomic batch are there when it is committed."""
    s = stream(allow_atomic=True)
    query = Query(s.url, s.name)
    for number in (1, 2, 3):
        assert query.run().rows == []
        headers = [("Nats-Batch-Id", "x"), ("Nats-Batch-Sequence", str(number))]
        s.publisher.request(
            f"{s.subject}.a", b"", headers + [("Nats-Batch-Commit", "1")] * (number == 3)
        )
    assert query.run().sequences == [1, 2, 3]


def test_read_kafka_transactional_messages_read_committed(stream: MakeStream) -> None:
    """Messages that are not there do not count for a limit: gaps at the beginning, in the middle
    and at the end of what is read, and wider ones than the limit.
    """
    s = stream()
    query = Query(s.url, s.name, maxMessagesPerTrigger=3)
    s.fill(3)
    assert query.run().sequences == [1, 2, 3]
    s.fill(17)
    s.remove(4, 5, 6, 7, 9, 12, 14, 15, 16, 17, 20)
    run = query.runs()
    assert [[row["sequence"] for row in rows] for rows in run.batches.values()] == [
        [8, 10, 11],
        [13, 18, 19],
    ]
    assert query.end is not None
    assert query.end["streams"][s.name]["next"] == 21


def test_concurrent_use_of_kafka_data_consumer(stream: MakeStream) -> None:
    """Tasks of one process, which share its connection, read the same range and others of the
    stream.
    """
    s = stream()
    s.fill_in_turn(1000, ["a", "b"])
    choices: list[dict[str, object]] = [
        {},
        {"subjects": f"{s.subject}.a"},
        {"endingOffsets": '{"NAME": 301}'},
    ]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda given: read(s, fetchBatch=50, **given), choices * 8))
    assert found == [between(1, 1001), list(range(1, 1001, 2)), between(1, 301)] * 8


# KafkaRelationSuite: batch reads


def test_explicit_offsets(stream: MakeStream) -> None:
    s = stream()
    s.fill(20)
    for options, expected in (
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, between(1, 21)),
        ({}, between(1, 21)),
        ({"startingOffsets": '{"NAME": 20}'}, [20]),
        ({"startingOffsets": '{"NAME": 21}'}, []),
        ({"endingOffsets": '{"NAME": 5}'}, between(1, 5)),
        ({"endingOffsets": '{"NAME": 1}'}, []),
        ({"startingOffsets": '{"NAME": 7}', "endingOffsets": '{"NAME": 12}'}, between(7, 12)),
        ({"startingOffsets": ' {"NAME" : 7 } ', "endingOffsets": '{"NAME": 7}'}, []),
    ):
        assert read(s, **options) == expected
    # Where messages are missing, reading goes on after the gap.
    s.remove(7, 8, 9, 12)
    assert read(s, startingOffsets='{"NAME": 8}') == [10, 11, *between(13, 21)]
    assert read(s, startingOffsets='{"NAME": 8}', endingOffsets='{"NAME": 13}') == [10, 11]
    assert read(s, startingOffsets='{"NAME": 8}', endingOffsets='{"NAME": 10}') == []


def test_timestamp_provided_for_starting_and_ending(stream: MakeStream) -> None:
    """A time counts for all streams: the first message stored then or later is the first one, or
    the first one not.
    """
    s = stream()
    for _ in range(10):
        s.fill(1)
    times = {sequence: s.stored_time(sequence) for sequence in s.messages}
    assert len(set(times.values())) == 10
    at = partial(read, s)
    # To the nanosecond: at or after, and before.
    assert at(startingTimestamp=iso(times[4])) == between(4, 11)
    assert at(startingTimestamp=iso(times[4] + 1)) == between(5, 11)
    assert at(endingTimestamp=iso(times[8])) == between(1, 8)
    assert at(endingTimestamp=iso(times[8] + 1)) == between(1, 9)
    assert at(startingTimestamp=iso(times[4]), endingTimestamp=iso(times[8])) == between(4, 8)
    assert at(startingTimestamp=iso(times[4]), endingTimestamp=iso(times[4])) == []
    # Epoch milliseconds.
    milliseconds = times[4] // 1_000_000
    expected = [number for number, ns in times.items() if ns >= milliseconds * 1_000_000]
    assert at(startingTimestamp=milliseconds) == expected
    # A time beside a sequence. If they leave nothing between them, nothing is read: Kafka's source
    # fails then.
    assert at(startingOffsets='{"NAME": 9}', endingTimestamp=iso(times[10])) == [9]
    assert at(startingTimestamp=iso(times[7]), endingOffsets='{"NAME": 9}') == [7, 8]
    assert at(startingOffsets='{"NAME": 9}', endingTimestamp=iso(times[4])) == []
    # Preferences on offset related options: the time wins over the sequence.
    assert at(startingTimestamp=iso(times[4]), startingOffsets='{"NAME": 9}') == between(4, 11)


def test_no_matched_offset_for_timestamp(stream: MakeStream) -> None:
    """Before all messages is the first one, after all is the end: there is no strategy `error` as
    in Kafka's source.
    """
    s = stream()
    s.fill(10)
    first, last = (s.stored_time(sequence) for sequence in (1, 10))
    day = 86_400_000_000_000
    assert read(s, startingTimestamp=iso(first - day)) == between(1, 11)
    assert read(s, startingTimestamp=iso(last + 1)) == []
    assert read(s, startingTimestamp=iso(last + day)) == []
    assert read(s, endingTimestamp=iso(last + day)) == between(1, 11)
    assert read(s, endingTimestamp=iso(first)) == []
    query = Query(s.url, s.name, startingTimestamp=iso(last + 1))
    assert query.run().rows == []
    assert s.fill(2) == query.run().sequences


def test_subscribe_strategy_must_give_back_all_assigned(stream: MakeStream) -> None:
    def in_order(rows: list[Stored]) -> list[Stored]:
        return sorted(rows, key=lambda row: (row.stream, row.sequence))

    one, two, empty = stream(), stream(), stream()
    one.fill(15)
    two.fill_in_turn(20, ["a", "b"])
    names = f"{two.name}, {empty.name},{one.name}"
    assert calls.stored(one, stream=names) == in_order(one.rows() + two.rows())
    begin = json.dumps({one.name: 10, two.name: 5, empty.name: 1})
    end = json.dumps({one.name: 12, two.name: 21, empty.name: 1})
    expected = in_order(one.rows(10, 11) + two.rows(*between(5, 21)))
    assert calls.stored(one, stream=names, startingOffsets=begin, endingOffsets=end) == expected
    # A filter applies to each of them.
    subjects = f"{two.subject}.b,{one.subject}.none"
    assert calls.stored(one, stream=names, subjects=subjects) == two.rows(*range(2, 21, 2))


def test_empty_ranges_ignored(spark: SparkSession, stream: MakeStream) -> None:
    s = stream()
    assert batch(spark, s.url, s.name).collect() == []
    # Emptied by a purge, and with sequences that go on after it.
    s.fill(10)
    s.purge()
    assert calls.stored(s) == []
    assert calls.stored(s, subjects=f"{s.subject}.a", minPartitions=3) == []
    begin = json.dumps({s.name: 11})
    assert calls.stored(s, startingOffsets=begin) == []
    s.fill(2)
    assert read(s, startingOffsets=begin) == [11, 12]


@pytest.mark.usefixtures("no_connection_left")
def test_start_offset_does_not_match_assigned(stream: MakeStream) -> None:
    """Offsets of another query: none of them is read as an empty batch, whichever end of it has the
    stranger.
    """
    s, other = stream(), stream()
    s.fill(10)
    other.fill(10)
    ours, theirs = (next(planning.run(planning.driver(s.url, each.name))) for each in (s, other))
    planner = planning.driver(s.url, s.name)
    assert len(planner.ranges(*ours)) == 1
    for each in ((ours[0], theirs[1]), (theirs[0], ours[1]), theirs):
        with pytest.raises(
            OptionError, match=f"it has {other.name}, and option stream names {s.name};"
        ):
            planner.ranges(*each)
    with pytest.raises(OptionError, match="option bucket names KV_settings;"):
        planning.driver(s.url, bucket="settings").latest(ours[1], limited=True)


# Options


@pytest.mark.parametrize(
    ("mode", "options", "text"),
    [
        (
            "s",
            {"endingOffsets": "latest"},
            "no meaning in a streaming query: stop the query, or use trigger(availab",
        ),
        (
            "s",
            {"endingTimestamp": "0"},
            "option endingTimestamp has no meaning in a streaming query",
        ),
        (
            "s",
            {"minMessagesPerTrigger": "6", "maxMessagesPerTrigger": "5"},
            "minMessagesPerTrigger (6) is larger",
        ),
        (
            "b",
            {"startingOffsets": "latest"},
            "option startingOffsets cannot be latest in a batch read",
        ),
        ("b", {"startingOffsets": '{"A": -1}'}, "a sequence from 1 to 2^63-1 for stream"),
        ("b", {"endingOffsets": '{"A": -2}'}, "a sequence from 1 to 2^63-1 for stream"),
        (
            "b",
            {"startingOffsets": '{"A": 5}', "endingOffsets": '{"A": 4}'},
            "before 4, but startingOffsets begins at",
        ),
        (
            "b",
            {"stream": "A,B", "endingOffsets": '{"A": 5}'},
            'endingOffsets gives no sequence for stream "B"',
        ),
        (
            "bs",
            {"stream": "A,B", "startingOffsets": '{"A": 5}'},
            'startingOffsets gives no sequence for stream "B"',
        ),
        (
            "bs",
            {"startingOffsets": '{"A": 5, "B": 5}'},
            'names stream "B", which option stream does not',
        ),
        ("bs", {"startingOffsets": '{"A": "earliest"}'}, "a sequence from 1 to 2^63-1 for stream"),
        ("bs", {"stream": None}, "option stream is required: the name of the stream to read"),
        ("bs", {"minPartitions": "0"}, "minPartitions must be a whole number"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_bad_source_options(mode: str, options: dict[str, Any], text: str) -> None:
    for each in mode:
        with pytest.raises(OptionError) as caught:
            SourceOptions.from_spark({"stream": "A", **options}, streaming=each == "s")
        assert text in str(caught.value)


def options_of_kafka() -> list[tuple[str, list[str]]]:
    """The options in the table of docs/migrating.md, each with those that do the same here."""
    page = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
    table = re.search(
        r"^### Options of the source\n\n\|.*\n\|.*\n((?:\|.*\n)+)", page, re.MULTILINE
    )
    assert table is not None
    cells = [row.split("|")[1:3] for row in table[1].splitlines()]
    return [
        (name, re.findall(r"`(\w+)`", ours))
        for theirs, ours in cells
        for name in re.findall("`(.+?)`", theirs)
    ]


@pytest.mark.parametrize(("theirs", "ours"), options_of_kafka(), ids=str)
def test_unsupported_kafka_configs(theirs: str, ours: list[str]) -> None:
    """An option of Kafka's source is refused, and the error names what the page names; or it is one
    here too.
    """
    if theirs in {spec.name for spec in SourceOptions.specs}:
        assert ours == [theirs]
        return
    with pytest.raises(OptionError) as caught:
        SourceOptions.from_spark({"stream": "A", theirs.lower(): "1"}, streaming=True)
    said = re.fullmatch(
        rf"there is no option {theirs}(?:; did you mean ([\w ]+))?",
        str(caught.value),
        re.IGNORECASE,
    )
    assert said is not None
    assert (said[1].split(" and ") if said[1] else []) == ours


def test_the_tests_of_the_table_exist() -> None:
    """In the head of this file, and of the one of the sink."""
    for file in ("source", "sink"):
        path = ROOT / "tests" / file / "test_like_kafka.py"
        own = path.read_text(encoding="utf-8")
        for where, name in re.findall(
            r"(?:([\w/]+\.py)\s+)?(test_\w+)\b(?!\.py)", own.split('"""')[1]
        ):
            text = (ROOT / "tests" / where).read_text(encoding="utf-8") if where else own
            assert f"\ndef {name}(" in text, name
