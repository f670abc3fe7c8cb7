"""Key-Value buckets through Spark: the current table, all revisions, the change feed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StructField, StructType

from spark_jetstream.schema import BUCKET_COLUMNS
from tests.support import calls
from tests.support.calls import BUCKET_ROWS, Query, refusal_of
from tests.support.keyed import make_bucket, name_of
from tests.support.pages import DEFAULT_URL, FOLDER, ROOT, blocks
from tests.support.publish import Message
from tests.support.queries import plain
from tests.support.streams import MakeStream, Stream, iso

Entry = tuple[str, bytes | None, str]

DELETED = (("KV-Operation", "DEL"),)
PURGED = (("KV-Operation", "PURGE"), ("Nats-Rollup", "sub"))


def put(
    bucket: Stream, key: str, value: bytes = b"", headers: tuple[tuple[str, str], ...] | None = None
) -> int:
    """Store a revision; its number."""
    return bucket.send(Message(f"$KV.{name_of(bucket)}.{key}", value, headers))[0]


def options(bucket: Stream, /, **given: object) -> dict[str, str]:
    return {"servers": bucket.url, "bucket": name_of(bucket)} | {
        name: str(value) for name, value in given.items()
    }


def table(spark: SparkSession, bucket: Stream, /, **given: object) -> DataFrame:
    return spark.read.format("jetstream").options(**options(bucket, **given)).load()


def feed(bucket: Stream, /, **given: object) -> Query:
    return Query(bucket.url, bucket=name_of(bucket), **given)


def rows(bucket: Stream, /, **given: object) -> list[Row]:
    return calls.rows(options(bucket, **given), BUCKET_ROWS)


def entries(rows: list[Row]) -> list[Entry]:
    """Key, value and operation of all rows, in the order in which they come."""
    return [(row["key"], row["value"], row["operation"]) for row in rows]


@pytest.fixture
def prices(stream: MakeStream) -> Stream:
    """Seven revisions of three keys, one of them deleted, one put again after a purge."""
    bucket = make_bucket(stream)
    put(bucket, "fruit.apple", b"1")
    put(bucket, "fruit.pear", b"2")
    put(bucket, "milk", b"3")
    put(bucket, "fruit.apple", b"4")
    put(bucket, "milk", headers=DELETED)
    put(bucket, "fruit.pear", headers=PURGED)
    put(bucket, "fruit.pear", b"")
    return bucket


# Batches


@pytest.mark.parametrize("given", [{}, {"asOfRevision": 3}, {"readWith": "direct"}], ids=str)
def test_a_table_may_have_values_not_null(stream: MakeStream, given: dict[str, object]) -> None:
    bucket = make_bucket(stream, allow_direct=True, max_msgs_per_subject=1)
    put(bucket, "milk", b"1")
    put(bucket, "bread", b"2")
    put(bucket, "milk", headers=DELETED)
    schema = StructType([StructField("value", BinaryType(), nullable=False)])
    reader: Any = calls.data_source(options(bucket, **given)).reader(schema)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert all(batch.schema.equals(to_arrow_schema(schema, timezone="UTC")) for batch in batches)
    assert [value for batch in batches for value in batch.to_pydict()["value"]] == [b"2"]


def test_the_current_table(spark: SparkSession, prices: Stream) -> None:
    frame = table(spark, prices)
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        (column.name, column.spark) for column in BUCKET_COLUMNS
    ]
    name = name_of(prices)
    assert [tuple(row) for row in plain(frame).collect()] == [
        (name, "fruit.apple", b"4", 4, "PUT", prices.stored_time(4) // 1000),
        (name, "fruit.pear", b"", 7, "PUT", prices.stored_time(7) // 1000),
    ]
    assert table(spark, prices, readWith="consumer", keys="milk").collect() == []


def test_all_revisions(prices: Stream) -> None:
    revisions = rows(prices, history="true")
    assert [(row.revision, row.key, row.operation) for row in revisions] == [
        (1, "fruit.apple", "PUT"),
        (3, "milk", "PUT"),
        (4, "fruit.apple", "PUT"),
        (5, "milk", "DELETE"),
        (6, "fruit.pear", "PURGE"),
        (7, "fruit.pear", "PUT"),
    ]
    assert [row.value for row in revisions if row.operation != "PUT"] == [None, None]
    part = rows(
        prices, history="true", startingOffsets=f'{{"{name_of(prices)}": 4}}', readWith="direct"
    )
    assert [row.revision for row in part] == [4, 5, 6, 7]


def test_some_columns(prices: Stream) -> None:
    some = StructType([BUCKET_ROWS["revision"], BUCKET_ROWS["key"]])
    assert [tuple(row) for row in calls.rows(options(prices), some)] == [
        (4, "fruit.apple"),
        (7, "fruit.pear"),
    ]
    values = calls.rows(options(prices, history="true"), StructType([BUCKET_ROWS["value"]]))
    assert [row.value for row in values] == [b"1", b"3", b"4", None, None, b""]


@pytest.mark.parametrize(
    ("keys", "current", "revisions"),
    [
        ("fruit.*", ["fruit.apple", "fruit.pear"], [1, 4, 6, 7]),
        ("fruit.apple,milk", ["fruit.apple"], [1, 3, 4, 5]),
        (">", ["fruit.apple", "fruit.pear"], [1, 3, 4, 5, 6, 7]),
        ("fruit", [], []),
    ],
)
def test_filters_of_keys(
    prices: Stream, keys: str, current: list[str], revisions: list[int]
) -> None:
    assert [row.key for row in rows(prices, keys=keys)] == current
    assert [row.revision for row in rows(prices, keys=keys, history="true")] == revisions
    run = feed(prices, keys=keys).run()
    assert [row["revision"] for row in run.rows] == revisions


def test_a_mirrored_bucket(stream: MakeStream, prices: Stream) -> None:
    mirror = stream(
        name=f"KV_{name_of(prices)}_copy",
        subjects=None,
        mirror={"name": prices.name},
        allow_direct=True,
    )
    mirror.wait_for(6)
    assert [(row.bucket, row.key, row.revision) for row in rows(mirror, keys="fruit.*")] == [
        (name_of(mirror), "fruit.apple", 4),
        (name_of(mirror), "fruit.pear", 7),
    ]
    for how in ("consumer", "direct"):
        assert [row.revision for row in rows(mirror, history="true", readWith=how)] == [
            1,
            3,
            4,
            5,
            6,
            7,
        ]
    run = feed(mirror, keys="milk").run()
    assert entries(run.rows) == [("milk", b"3", "PUT"), ("milk", None, "DELETE")]


# The change feed


@pytest.mark.parametrize("way", ["consumer", "direct"])
def test_the_change_feed(stream: MakeStream, way: str) -> None:
    bucket = make_bucket(stream)
    put(bucket, "a", b"1")
    put(bucket, "b", b"2")
    frame = feed(bucket, readWith=way)
    assert entries(frame.run().rows) == [("a", b"1", "PUT"), ("b", b"2", "PUT")]
    put(bucket, "a", b"3")
    put(bucket, "b", headers=DELETED)
    put(bucket, "a", headers=PURGED)
    run = frame.run()
    assert entries(run.rows) == [
        ("b", None, "DELETE"),
        ("a", None, "PURGE"),
    ]  # the purge took the put with it
    assert {row["bucket"] for row in run.rows} == {name_of(bucket)}
    assert entries(frame.run().rows) == []


def test_where_a_feed_begins(prices: Stream) -> None:
    name = name_of(prices)
    run = feed(prices, startingOffsets=json.dumps({name: 5})).run()
    assert [row["revision"] for row in run.rows] == [5, 6, 7]
    run = feed(prices, startingTimestamp=iso(prices.stored_time(6))).run()
    assert [row["revision"] for row in run.rows] == [6, 7]


# What goes by design


def test_expired_revisions_are_no_loss(stream: MakeStream) -> None:
    bucket = make_bucket(stream, allow_msg_ttl=True)
    frame = feed(bucket, startingOffsets="latest")
    assert entries(frame.run().rows) == []
    put(bucket, "a", b"1", (("Nats-TTL", "1s"),))
    put(bucket, "b", b"2", (("Nats-TTL", "1s"),))
    bucket.wait_for(0)
    assert entries(frame.run().rows) == []
    put(bucket, "c", b"3")
    assert entries(frame.run().rows) == [("c", b"3", "PUT")]
    assert entries(rows(bucket)) == [("c", b"3", "PUT")]


# The guide


@pytest.mark.full
def test_the_examples_of_the_guide(spark: SparkSession, stream: MakeStream, tmp_path: Path) -> None:
    bucket = make_bucket(stream, "prices")
    put(bucket, "fruit.apple", b"1")
    put(bucket, "fruit.apple", b"2")
    put(bucket, "milk", b"3")
    put(bucket, "bread", b"4")
    for number in range(3):
        names: dict[str, Any] = {"spark": spark}
        for block in blocks(ROOT / "docs" / "buckets.md", "python"):
            block.run({DEFAULT_URL: bucket.url, FOLDER: str(tmp_path)}, names)
        current = {row.key: row.value for row in names["current"].collect()}
        assert {row.key for row in names["fruit"].collect()} == {"fruit.apple"}
        priced = {row["product"]: row.value for row in names["priced"].collect()}
        assert priced == {"fruit.apple": current["fruit.apple"], "tea": None}
        assert {(row.key, row.revision) for row in names["earlier"].collect()} == {
            ("fruit.apple", 2),
            ("milk", 3),
        }
        assert names["revisions"].count() == int(bucket.state()["messages"])
        merged = spark.read.parquet(str(tmp_path / "prices" / str(number)))
        assert {row.key: row.value for row in merged.collect()} == current
        assert merged.count() == len(current) == (3, 2, 2)[number]
        # So does a batch that is run again, or holds what was merged before.
        before = merged.orderBy("key").collect()
        names["merge"](names["revisions"], number)
        assert (
            spark.read.parquet(str(tmp_path / "prices" / str(number))).orderBy("key").collect()
            == before
        )
        if number == 0:
            put(bucket, "milk", b"5")
            put(bucket, "milk", headers=DELETED)
            put(bucket, "fruit.apple", b"6")
        else:
            put(bucket, "bread", headers=PURGED)
            put(bucket, "milk", b"7")


# Errors


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"bucket": "nowhere"},
            r"there is no Key-Value bucket nowhere \(option bucket\): no stream KV_nowhere",
        ),
        (
            {"history": "true", "startingOffsets": '{"OTHER": 5}'},
            "names bucket .OTHER., which option bucket does not",
        ),
        ({"readWith": "direct"}, "option readWith cannot be direct for the current table of KV_"),
    ],
)
def test_errors_name_the_option(prices: Stream, given: dict[str, Any], said: str) -> None:
    with pytest.raises(Exception, match=said) as caught:
        rows(prices, **given)
    assert refusal_of(caught.value)[0] == "OptionError"
