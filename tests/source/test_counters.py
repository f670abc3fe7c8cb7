"""Counters as rows (ADR-49): the value of each, all changes, the change feed; and what is no
counter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_jetstream.errors import OptionError, ProtocolError
from tests.support.calls import COUNTER_ROWS, Query, data_source, rows, rows_of
from tests.support.pages import DEFAULT_URL, FOLDER, ROOT, blocks
from tests.support.publish import Message
from tests.support.streams import MakeStream, Stream

pytestmark = pytest.mark.usefixtures("no_connection_left")

HUGE = "9" * 60


def add(s: Stream, suffix: str, *increments: object) -> None:
    s.send(
        *(
            Message(f"{s.subject}.{suffix}", headers=[("Nats-Incr", str(each))])
            for each in increments
        )
    )


def options(*streams: Stream, **given: object) -> dict[str, object]:
    return {
        "servers": streams[0].url,
        "stream": ",".join(s.name for s in streams),
        "counters": "true",
        **given,
    }


def values(found: list[Row]) -> list[tuple[str, str]]:
    """Last tokens of the subjects, and values, in the order in which they come."""
    return [(row["subject"].rpartition(".")[2], row["value"]) for row in found]


@pytest.fixture
def s(stream: MakeStream) -> Stream:
    """Six changes of three counters."""
    made = stream(storage="memory", allow_msg_counter=True, allow_direct=True)
    add(made, "a", 5, "-3")
    add(made, "b", f"+{HUGE}")
    add(made, "a", 1)
    add(made, "c", "-7", 0)
    return made


def test_a_batch_has_the_value_of_each(s: Stream) -> None:
    found = rows(options(s), COUNTER_ROWS)
    assert values(found) == [("b", HUGE), ("a", "3"), ("c", "-7")]
    assert found[1].asDict() == {
        "stream": s.name,
        "subject": f"{s.subject}.a",
        "value": "3",
        "incr": "1",
        "sources": None,
        "sequence": 4,
        "timestamp": s.stored_time(4) // 1000,
    }
    filtered = rows(options(s, subjects=f"{s.subject}.b,{s.subject}.c"), COUNTER_ROWS)
    assert values(filtered) == [("b", HUGE), ("c", "-7")]


def test_a_batch_with_history_has_every_change(s: Stream) -> None:
    found = rows(options(s, history="true"), COUNTER_ROWS)
    assert values(found) == [
        ("a", "5"),
        ("a", "2"),
        ("b", HUGE),
        ("a", "3"),
        ("c", "-7"),
        ("c", "-7"),
    ]
    assert [row["incr"] for row in found] == ["5", "-3", f"+{HUGE}", "1", "-7", "0"]
    part = options(
        s, history="true", startingOffsets=f'{{"{s.name}": 2}}', minPartitions=3, readWith="direct"
    )
    assert [row["sequence"] for row in rows(part, COUNTER_ROWS)] == [2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "names", [["value"], ["incr", "subject"], ["timestamp", "sources", "stream"]]
)
def test_some_columns(s: Stream, names: list[str]) -> None:
    whole = rows(options(s), COUNTER_ROWS)
    some = StructType([COUNTER_ROWS[name] for name in names])
    assert rows(options(s), some) == [Row(**{name: row[name] for name in names}) for row in whole]


def test_a_streaming_query_has_every_change(s: Stream) -> None:
    query = Query(s.url, s.name, counters="true")
    assert values(query.run().rows) == values(rows(options(s, history="true"), COUNTER_ROWS))
    add(s, "c", 3, 4)
    assert values(query.run().rows) == [("c", "-4"), ("c", "0")]


def test_several_streams(s: Stream, stream: MakeStream) -> None:
    other = stream(storage="memory", allow_msg_counter=True, max_msgs_per_subject=1)
    add(other, "x", 1, 1, 1)
    empty = stream(storage="memory", allow_msg_counter=True)
    found = rows(options(s, other, empty), COUNTER_ROWS)
    assert [row["stream"] for row in found] == [s.name] * 3 + [other.name]
    assert values(found)[-1] == ("x", "3")


@pytest.mark.parametrize("given", [{}, {"history": "true"}])
def test_streams_that_are_found(stream: MakeStream, given: dict[str, str]) -> None:
    some = [
        stream(f"FOUND{number}", storage="memory", allow_msg_counter=True) for number in range(2)
    ]
    for each in some:
        add(each, "a", 3)
    chosen = {"servers": some[0].url, "streamPattern": "FOUND*", "counters": "true", **given}
    assert [(row["stream"], row["value"]) for row in rows(chosen, COUNTER_ROWS)] == [
        ("FOUND0", "3"),
        ("FOUND1", "3"),
    ]


def test_a_value_that_changes_after_planning_comes_once(s: Stream) -> None:
    reader = data_source(options(s)).reader(COUNTER_ROWS)
    parts = reader.partitions()
    add(s, "a", 10)
    assert values(list(rows_of(reader, parts))) == [("b", HUGE), ("c", "-7"), ("a", "13")]


def test_the_sum_of_sources(s: Stream, stream: MakeStream) -> None:
    other = stream(storage="memory", allow_msg_counter=True)
    add(other, "a", 100)
    sources = [
        {"name": each.name, "subject_transforms": [{"src": f"{each.subject}.>", "dest": "all.>"}]}
        for each in (s, other)
    ]
    total = stream(storage="memory", allow_msg_counter=True, subjects=[], sources=sources)
    total.wait_for(7)
    [row] = rows(options(total, subjects="all.a"), COUNTER_ROWS)
    assert row["value"] == "103"
    assert {name: dict(each) for name, each in row["sources"]} == {
        s.name: {f"{s.subject}.a": "3"},
        other.name: {f"{other.subject}.a": "100"},
    }


def test_a_mirror(s: Stream, stream: MakeStream) -> None:
    mirror = stream(storage="memory", subjects=[], mirror={"name": s.name}, mirror_direct=True)
    mirror.wait_for(6)
    assert values(rows(options(mirror), COUNTER_ROWS)) == [("b", HUGE), ("a", "3"), ("c", "-7")]


def test_sources_that_a_publisher_has_made_up(s: Stream) -> None:
    s.send(
        Message(
            f"{s.subject}.d",
            headers=[("Nats-Incr", "1"), ("Nats-Counter-Sources", '{"S":{"a":1}}')],
        )
    )
    row = rows(options(s, subjects=f"{s.subject}.d"), COUNTER_ROWS)[0]
    assert (row["value"], row["sources"]) == ("1", None)


def test_a_stream_without_counters(stream: MakeStream) -> None:
    plain = stream(storage="memory")
    said = f"option counters: stream {plain.name} holds no counters"
    for read in (
        lambda: rows(options(plain), COUNTER_ROWS),
        lambda: rows(options(plain, history="true"), COUNTER_ROWS),
        lambda: Query(plain.url, plain.name, counters="true").resume(),
    ):
        with pytest.raises(OptionError, match=said):
            read()


def test_a_message_that_is_of_no_counter(stream: MakeStream) -> None:
    plain = stream(storage="memory")
    plain.send(
        Message(f"{plain.subject}.a", b'{"val": "3", "more": 1}'),
        Message(f"{plain.subject}.b", b"{}"),
    )
    mirror = stream(storage="memory", subjects=[], mirror={"name": plain.name})
    mirror.wait_for(2)
    assert values(rows(options(mirror, subjects=f"{plain.subject}.a"), COUNTER_ROWS)) == [
        ("a", "3")
    ]
    said = (
        f"message 2 of stream {mirror.name} is that of no counter: its payload holds no value of a "
        "counter"
    )
    with pytest.raises(ProtocolError, match=said):
        rows(options(mirror), COUNTER_ROWS)


def test_direct_gets(s: Stream, stream: MakeStream) -> None:
    with pytest.raises(
        OptionError,
        match="keeps more than one change of a counter: set readWith to consumer, or read",
    ):
        rows(options(s, readWith="direct"), COUNTER_ROWS)
    last = stream(
        storage="memory", allow_msg_counter=True, allow_direct=True, max_msgs_per_subject=1
    )
    add(last, "a", 5, 6)
    assert values(rows(options(last, readWith="direct"), COUNTER_ROWS)) == [("a", "11")]


@pytest.mark.full
def test_the_guide(spark: SparkSession, stream: MakeStream, tmp_path: Path) -> None:
    visits = stream("VISITS", allow_msg_counter=True)
    names: dict[str, Any] = {"spark": spark}
    try:
        for block in blocks(ROOT / "docs" / "counters.md", "python"):
            block.run({DEFAULT_URL: visits.url, FOLDER: str(tmp_path)}, names)
    finally:
        for query in spark.streams.active:
            query.stop()


def test_in_spark(spark: SparkSession, s: Stream) -> None:
    """Rows of Spark count, and values are numbers in SQL."""
    ones = spark.range(30).selectExpr(
        f"'{s.subject}.' || chr(cast(97 + id % 3 as int)) as subject", "id as incr"
    )
    ones.write.format("jetstream").options(servers=s.url, delivery="exactly-once").mode(
        "append"
    ).save()
    table = (
        spark.read.format("jetstream")
        .options(**{name: str(each) for name, each in options(s).items()})
        .load()
    )
    assert table.schema.simpleString() == (
        "struct<stream:string,subject:string,value:string,incr:string,sources:map<string,map<string,string>>,"
        "sequence:bigint,timestamp:timestamp>"
    )
    small = table.where(F.length("value") < 38).select(
        "subject", F.col("value").cast("decimal(38,0)").alias("value")
    )
    assert {row["subject"][-1]: int(row["value"]) for row in small.collect()} == {
        "a": 138,
        "c": 148,
    }
    with pytest.raises(ArithmeticException):
        table.select(F.col("value").cast("decimal(38,0)")).collect()
