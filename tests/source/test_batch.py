"""Batch reads: where they start and end, what they filter, and how they are cut into tasks."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.conftest import SparkLog
from tests.support.queries import batch, stored, wait_until
from tests.support.streams import Stored, Stream

MakeStream = Callable[..., Stream]

ONLY = "sequence bigint"


def sequences(frame: DataFrame) -> list[int]:
    """The sequences of all rows, in the order in which they come."""
    return [row["sequence"] for row in frame.select("sequence").collect()]


def tasks(frame: DataFrame) -> list[list[int]]:
    """The sequences that each task read, in the order of the tasks; those of an empty task are not seen."""
    found: dict[int, list[int]] = defaultdict(list)
    for row in frame.select("sequence", F.spark_partition_id().alias("task")).collect():
        found[row["task"]].append(row["sequence"])
    return [found[task] for task in sorted(found)]


def in_order(rows: list[Stored]) -> list[Stored]:
    """Stream after stream, by name."""
    return sorted(rows, key=lambda row: (row.stream, row.sequence))


def between(first: int, end: int) -> list[int]:
    return list(range(first, end))


def iso(nanoseconds: int) -> str:
    """A time as an option takes it, to the nanosecond, in another zone than UTC."""
    seconds, fraction = divmod(nanoseconds, 1_000_000_000)
    moment = datetime.fromtimestamp(seconds, timezone(timedelta(hours=2)))
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{fraction:09d}+02:00"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, between(1, 21)),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, between(1, 21)),
        ({"startingOffsets": '{"NAME": 1}'}, between(1, 21)),
        ({"startingOffsets": '{"NAME": 15}'}, between(15, 21)),
        ({"startingOffsets": '{"NAME": 20}'}, [20]),
        ({"startingOffsets": '{"NAME": 21}'}, []),
        ({"endingOffsets": '{"NAME": 5}'}, between(1, 5)),
        ({"endingOffsets": '{"NAME": 21}'}, between(1, 21)),
        ({"endingOffsets": '{"NAME": 1}'}, []),
        ({"startingOffsets": '{"NAME": 7}', "endingOffsets": '{"NAME": 12}'}, between(7, 12)),
        ({"startingOffsets": ' {"NAME" : 7 } ', "endingOffsets": '{"NAME": 7}'}, []),
    ],
)
def test_positions_by_sequence(
    spark: SparkSession, stream: MakeStream, options: dict[str, str], expected: list[int]
) -> None:
    s = stream()
    s.fill(20)
    given = {name: text.replace("NAME", s.name) for name, text in options.items()}
    assert sequences(batch(spark, s.url, s.name, ONLY, **given)) == expected


def test_starting_where_messages_are_missing_reads_on_behind_the_gap(spark: SparkSession, stream: MakeStream) -> None:
    s = stream()
    s.fill(20)
    s.remove(7, 8, 9, 12)
    start, end = json.dumps({s.name: 8}), json.dumps({s.name: 13})
    assert sequences(batch(spark, s.url, s.name, ONLY, startingOffsets=start)) == [10, 11, *between(13, 21)]
    assert sequences(batch(spark, s.url, s.name, ONLY, startingOffsets=start, endingOffsets=end)) == [10, 11]
    end = json.dumps({s.name: 10})
    assert sequences(batch(spark, s.url, s.name, ONLY, startingOffsets=start, endingOffsets=end)) == []


def test_positions_by_time(spark: SparkSession, stream: MakeStream) -> None:
    s = stream()
    for _ in range(10):
        s.fill(1)
    times = {sequence: s.stored_time(sequence) for sequence in s.messages}
    assert len(set(times.values())) == 10

    def read(**options: object) -> list[int]:
        return sequences(batch(spark, s.url, s.name, ONLY, **options))

    # To the nanosecond: at or after, and before.
    assert read(startingTimestamp=iso(times[4])) == between(4, 11)
    assert read(startingTimestamp=iso(times[4] + 1)) == between(5, 11)
    assert read(endingTimestamp=iso(times[8])) == between(1, 8)
    assert read(endingTimestamp=iso(times[8] + 1)) == between(1, 9)
    assert read(startingTimestamp=iso(times[4]), endingTimestamp=iso(times[8])) == between(4, 8)
    assert read(startingTimestamp=iso(times[4]), endingTimestamp=iso(times[4])) == []
    # Outside of what is there.
    day = 86_400_000_000_000
    assert read(startingTimestamp=iso(times[1] - day)) == between(1, 11)
    assert read(startingTimestamp=iso(times[10] + 1)) == []
    assert read(startingTimestamp=iso(times[10] + day)) == []
    assert read(endingTimestamp=iso(times[10] + day)) == between(1, 11)
    assert read(endingTimestamp=iso(times[1])) == []
    # Epoch milliseconds, and the time wins over the sequence.
    milliseconds = times[4] // 1_000_000
    expected = [number for number, ns in times.items() if ns >= milliseconds * 1_000_000]
    assert read(startingTimestamp=milliseconds) == expected
    start = json.dumps({s.name: 9})
    assert read(startingTimestamp=iso(times[4]), startingOffsets=start) == between(4, 11)
    assert read(startingOffsets=start, endingTimestamp=iso(times[10])) == [9]
    assert read(startingTimestamp=iso(times[7]), endingOffsets=json.dumps({s.name: 9})) == [7, 8]


def test_times_and_filters_together(spark: SparkSession, stream: MakeStream) -> None:
    s = stream()
    for number in range(12):
        s.fill(1, "ab"[number % 2])
    times = {sequence: s.stored_time(sequence) for sequence in s.messages}
    options = {"startingTimestamp": iso(times[4]), "endingTimestamp": iso(times[9])}
    assert sequences(batch(spark, s.url, s.name, ONLY, subjects=f"{s.subject}.a", **options)) == [5, 7]
    assert sequences(batch(spark, s.url, s.name, ONLY, subjects=f"{s.subject}.b", **options)) == [4, 6, 8]


@pytest.mark.parametrize(
    ("subjects", "chosen"),
    [
        ("NAME.a.x", {"a.x"}),
        ("NAME.a.*", {"a.x", "a.y"}),
        ("NAME.*.x", {"a.x", "b.x"}),
        ("NAME.>", {"a.x", "a.y", "b.x", "b.y.z"}),
        ("NAME.b.>", {"b.x", "b.y.z"}),
        (">", {"a.x", "a.y", "b.x", "b.y.z"}),
        ("NAME.a.x,NAME.b.>", {"a.x", "b.x", "b.y.z"}),
        (" NAME.a.x , NAME.a.y , NAME.b.x ", {"a.x", "a.y", "b.x"}),
        ("NAME.*.*.z,NAME.a.*", {"a.x", "a.y", "b.y.z"}),
        ("NAME.none", set()),
        ("elsewhere.>", set()),
    ],
)
def test_subject_filters(spark: SparkSession, stream: MakeStream, subjects: str, chosen: set[str]) -> None:
    s = stream()
    s.fill_in_turn(40, ["a.x", "a.y", "b.x", "b.y.z"])
    expected = [row for row in s.rows() if row.subject.removeprefix(f"{s.subject}.") in chosen]
    frame = batch(spark, s.url, s.name, subjects=subjects.replace("NAME", s.subject))
    assert stored(frame) == expected


def test_several_streams_in_one_query(spark: SparkSession, stream: MakeStream) -> None:
    one, two, empty = stream(), stream(), stream()
    one.fill(15)
    two.fill_in_turn(20, ["a", "b"])
    names = f"{two.name}, {empty.name},{one.name}"
    assert stored(batch(spark, one.url, names)) == in_order(one.rows() + two.rows())
    start = json.dumps({one.name: 10, two.name: 5, empty.name: 1})
    end = json.dumps({one.name: 12, two.name: 21, empty.name: 1})
    found = stored(batch(spark, one.url, names, startingOffsets=start, endingOffsets=end))
    assert found == in_order(one.rows(10, 11) + two.rows(*between(5, 21)))
    # A filter applies to each of them.
    subjects = f"{two.subject}.b,{one.subject}.none"
    assert stored(batch(spark, one.url, names, subjects=subjects)) == two.rows(*range(2, 21, 2))


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, [100]),
        ({"maxMessagesPerPartition": 100}, [100]),
        ({"maxMessagesPerPartition": 99}, [50, 50]),
        ({"maxMessagesPerPartition": 30}, [25, 25, 25, 25]),
        ({"maxMessagesPerPartition": 1, "endingOffsets": '{"NAME": 6}'}, [1, 1, 1, 1, 1]),
        ({"minPartitions": 3}, [33, 33, 34]),
        ({"minPartitions": 2, "maxMessagesPerPartition": 25}, [25, 25, 25, 25]),
        ({"minPartitions": 5, "maxMessagesPerPartition": 50}, [20, 20, 20, 20, 20]),
        ({"minPartitions": 8, "endingOffsets": '{"NAME": 4}'}, [1, 1, 1]),
    ],
)
def test_tasks_of_a_stream_without_gaps(
    spark: SparkSession, stream: MakeStream, options: dict[str, object], sizes: list[int]
) -> None:
    s = stream()
    s.fill(100)
    given = {name: str(value).replace("NAME", s.name) for name, value in options.items()}
    frame = batch(spark, s.url, s.name, ONLY, **given)
    assert frame.rdd.getNumPartitions() == len(sizes)
    found = tasks(frame)
    assert [len(task) for task in found] == sizes
    # Each task has a range of its own, and they follow each other.
    assert [number for task in found for number in task] == between(1, sum(sizes) + 1)


def test_tasks_of_a_stream_with_gaps_are_about_equal(spark: SparkSession, stream: MakeStream) -> None:
    s = stream()
    s.fill(40)
    s.fill(400, "b")
    s.fill(60)
    s.purge(filter=f"{s.subject}.b")
    s.remove(3, 4, 450, 499)
    kept = [number for number in s.messages if number <= 40 or number > 440]
    found = tasks(batch(spark, s.url, s.name, ONLY, maxMessagesPerPartition=20))
    assert sorted(number for task in found for number in task) == kept
    assert all(task == sorted(task) for task in found)
    assert max(len(task) for task in found) <= 20
    assert len(found) in {5, 6}


def test_tasks_of_a_filtered_read_are_counted_in_matches(spark: SparkSession, stream: MakeStream) -> None:
    s = stream()
    s.fill(600, "noise")
    s.fill_in_turn(400, ["noise", "wanted", "noise", "noise"])
    wanted = [number for number, each in s.messages.items() if each.subject.endswith("wanted")]
    assert len(wanted) == 100
    found = tasks(batch(spark, s.url, s.name, ONLY, subjects=f"{s.subject}.wanted", maxMessagesPerPartition=25))
    assert [number for task in found for number in task] == wanted
    assert max(len(task) for task in found) <= 25
    assert len(found) in {4, 5, 6}
    found = tasks(batch(spark, s.url, s.name, ONLY, subjects=f"*.wanted,{s.subject}.other", minPartitions=4))
    assert [number for task in found for number in task] == wanted
    assert len(found) == 4
    assert all(15 <= len(task) <= 35 for task in found)


def test_tasks_of_several_streams(spark: SparkSession, stream: MakeStream) -> None:
    one, two = sorted((stream(), stream()), key=lambda each: each.name)
    one.fill(50)
    two.fill(20)
    found = tasks(batch(spark, one.url, f"{one.name},{two.name}", ONLY, maxMessagesPerPartition=25))
    assert found == [between(1, 26), between(26, 51), between(1, 21)]


def test_nothing_to_read(spark: SparkSession, stream: MakeStream) -> None:
    s = stream()
    frame = batch(spark, s.url, s.name)
    assert frame.collect() == []
    assert frame.count() == 0
    # Emptied by a purge, and with sequences that go on behind it.
    s.fill(10)
    s.purge()
    assert batch(spark, s.url, s.name).collect() == []
    assert batch(spark, s.url, s.name, subjects=f"{s.subject}.a", minPartitions=3).collect() == []
    start = json.dumps({s.name: 11})
    assert batch(spark, s.url, s.name, startingOffsets=start).collect() == []
    s.fill(2)
    assert sequences(batch(spark, s.url, s.name, ONLY, startingOffsets=start)) == [11, 12]


def test_a_frame_gives_the_same_rows_each_time(spark: SparkSession, stream: MakeStream) -> None:
    """Spark plans a frame once, so what comes later is seen by the next `load`."""
    s = stream()
    s.fill(3)
    frame = batch(spark, s.url, s.name)
    assert stored(frame) == s.rows()
    expected = s.rows()
    s.fill(2)
    assert stored(frame) == expected
    assert frame.filter("sequence % 2 = 0").count() == 1
    assert stored(batch(spark, s.url, s.name)) == s.rows()


@pytest.mark.parametrize(
    "options",
    [
        {"fetchBatch": 1},
        {"fetchBatch": 7},
        {"fetchMaxBytes": "64k"},
        {"fetchTimeout": "1s"},
        {"fetchBatch": 100_000, "fetchMaxBytes": "512m", "fetchTimeout": "10m"},
    ],
)
def test_how_messages_are_fetched_makes_no_difference(
    spark: SparkSession, stream: MakeStream, options: dict[str, object]
) -> None:
    s = stream()
    s.fill(60, size=4000)
    assert stored(batch(spark, s.url, s.name, **options)) == s.rows()


def test_no_consumer_is_left_behind(spark: SparkSession, stream: MakeStream) -> None:
    s = stream()
    s.fill(500)
    assert batch(spark, s.url, s.name, subjects=f"{s.subject}.a", minPartitions=3).count() == 500
    # A task that is not read to its end.
    assert len(batch(spark, s.url, s.name, fetchBatch=5).limit(7).collect()) == 7
    wait_until(lambda: s.state()["consumer_count"] == 0, "the consumers are gone", 10)


def test_an_interest_stream_is_read_with_a_warning(
    spark: SparkSession, stream: MakeStream, spark_log: SparkLog
) -> None:
    s = stream(retention="interest")
    holder = {"durable_name": "holder", "ack_policy": "explicit"}
    s.publisher.api(f"CONSUMER.CREATE.{s.name}.holder", {"stream_name": s.name, "config": holder})
    s.fill(10)
    assert stored(batch(spark, s.url, s.name)) == s.rows()
    assert stored(batch(spark, s.url, s.name, subjects=f"{s.subject}.a", maxMessagesPerPartition=3)) == s.rows()
    warning = f"stream {s.name} keeps messages only as long as its consumers are interested"
    wait_until(lambda: warning in spark_log.text, "the warning in Spark's log", 10)
    # Reading took nothing away.
    assert s.state()["messages"] == 10
