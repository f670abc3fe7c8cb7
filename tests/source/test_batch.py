"""Batch reads: where they start and end, what they filter, and how they are cut into tasks.

The data source is called as Spark calls it. The tests with a `spark` show what Spark makes of its rows and tasks.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.support import calls
from tests.support.queries import batch
from tests.support.reading import between, wait_until
from tests.support.streams import MakeStream, Stored, Stream, iso


def sequences(s: Stream, **options: object) -> list[int]:
    """The sequences of all rows, task after task."""
    return calls.sequences("b", {"servers": s.url, "stream": s.name, **options})


def tasks(s: Stream, **options: object) -> list[list[int]]:
    """The sequences that each task reads."""
    found = calls.tasks({"servers": s.url, "stream": s.name, **options})
    return [[row["sequence"] for row in task] for task in found]


def in_order(rows: list[Stored]) -> list[Stored]:
    """Stream after stream, by name."""
    return sorted(rows, key=lambda row: (row.stream, row.sequence))


def test_positions_by_sequence(stream: MakeStream) -> None:
    s = stream()
    s.fill(20)
    for options, expected in (
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, between(1, 21)),
        ({"startingOffsets": '{"NAME": 20}'}, [20]),
        ({"startingOffsets": '{"NAME": 21}'}, []),
        ({"endingOffsets": '{"NAME": 5}'}, between(1, 5)),
        ({"endingOffsets": '{"NAME": 1}'}, []),
        ({"startingOffsets": '{"NAME": 7}', "endingOffsets": '{"NAME": 12}'}, between(7, 12)),
        ({"startingOffsets": ' {"NAME" : 7 } ', "endingOffsets": '{"NAME": 7}'}, []),
    ):
        assert sequences(s, **{name: text.replace("NAME", s.name) for name, text in options.items()}) == expected


def test_starting_where_messages_are_missing_reads_on_behind_the_gap(stream: MakeStream) -> None:
    s = stream()
    s.fill(20)
    s.remove(7, 8, 9, 12)
    start, end = json.dumps({s.name: 8}), json.dumps({s.name: 13})
    assert sequences(s, startingOffsets=start) == [10, 11, *between(13, 21)]
    assert sequences(s, startingOffsets=start, endingOffsets=end) == [10, 11]
    end = json.dumps({s.name: 10})
    assert sequences(s, startingOffsets=start, endingOffsets=end) == []


def test_positions_by_time(stream: MakeStream) -> None:
    s = stream()
    for _ in range(10):
        s.fill(1)
    times = {sequence: s.stored_time(sequence) for sequence in s.messages}
    assert len(set(times.values())) == 10

    read = partial(sequences, s)
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


def test_subject_filters(stream: MakeStream) -> None:
    s = stream()
    s.fill_in_turn(40, ["a.x", "a.y", "b.x", "b.y.z"])
    for subjects, chosen in (
        ("NAME.a.x", {"a.x"}),
        ("NAME.*.x", {"a.x", "b.x"}),
        ("NAME.b.>", {"b.x", "b.y.z"}),
        (">", {"a.x", "a.y", "b.x", "b.y.z"}),
        ("NAME.a.x,NAME.b.>", {"a.x", "b.x", "b.y.z"}),
        ("NAME.*.*.z,NAME.a.*", {"a.x", "a.y", "b.y.z"}),
        ("NAME.none", set()),
        ("elsewhere.>", set()),
    ):
        expected = [row for row in s.rows() if row.subject.removeprefix(f"{s.subject}.") in chosen]
        assert calls.stored(s, subjects=subjects.replace("NAME", s.subject)) == expected


def test_several_streams_in_one_query(stream: MakeStream) -> None:
    one, two, empty = stream(), stream(), stream()
    one.fill(15)
    two.fill_in_turn(20, ["a", "b"])
    names = f"{two.name}, {empty.name},{one.name}"
    assert calls.stored(one, stream=names) == in_order(one.rows() + two.rows())
    start = json.dumps({one.name: 10, two.name: 5, empty.name: 1})
    end = json.dumps({one.name: 12, two.name: 21, empty.name: 1})
    expected = in_order(one.rows(10, 11) + two.rows(*between(5, 21)))
    assert calls.stored(one, stream=names, startingOffsets=start, endingOffsets=end) == expected
    # A filter applies to each of them.
    subjects = f"{two.subject}.b,{one.subject}.none"
    assert calls.stored(one, stream=names, subjects=subjects) == two.rows(*range(2, 21, 2))


def test_tasks_of_a_stream_without_gaps(spark: SparkSession, stream: MakeStream) -> None:
    s = stream()
    s.fill(100)
    for options, sizes in (
        ({}, [100]),
        ({"maxMessagesPerPartition": 99}, [50, 50]),
        ({"minPartitions": 3}, [33, 33, 34]),
        ({"minPartitions": 2, "maxMessagesPerPartition": 25}, [25, 25, 25, 25]),
        ({"minPartitions": 8, "endingOffsets": '{"NAME": 4}'}, [1, 1, 1]),
    ):
        read = tasks(s, **{name: str(value).replace("NAME", s.name) for name, value in options.items()})
        assert [len(task) for task in read] == sizes
        # Each task has a range of its own, and they follow each other.
        assert [number for task in read for number in task] == between(1, sum(sizes) + 1)
    frame = batch(spark, s.url, s.name, "sequence bigint", minPartitions=3)
    assert frame.rdd.getNumPartitions() == 3
    rows = frame.select(F.spark_partition_id().alias("task")).collect()
    assert Counter(row["task"] for row in rows) == {0: 33, 1: 33, 2: 34}


def test_tasks_of_several_streams(stream: MakeStream) -> None:
    one, two = sorted((stream(), stream()), key=lambda each: each.name)
    one.fill(50)
    two.fill(20)
    read = tasks(one, stream=f"{one.name},{two.name}", maxMessagesPerPartition=25)
    assert read == [between(1, 26), between(26, 51), between(1, 21)]


def test_nothing_to_read(spark: SparkSession, stream: MakeStream) -> None:
    s = stream()
    assert batch(spark, s.url, s.name).collect() == []
    # Emptied by a purge, and with sequences that go on behind it.
    s.fill(10)
    s.purge()
    assert calls.stored(s) == []
    assert calls.stored(s, subjects=f"{s.subject}.a", minPartitions=3) == []
    start = json.dumps({s.name: 11})
    assert calls.stored(s, startingOffsets=start) == []
    s.fill(2)
    assert sequences(s, startingOffsets=start) == [11, 12]


def test_no_consumer_is_left_behind(spark: SparkSession, stream: MakeStream) -> None:
    s = stream()
    s.fill(500)
    assert len(calls.stored(s, subjects=f"{s.subject}.a", minPartitions=3)) == 500
    # A task that is not read to its end.
    assert len(batch(spark, s.url, s.name, fetchBatch=5).limit(7).collect()) == 7
    wait_until(lambda: s.state()["consumer_count"] == 0, "the consumers are gone", 10)
