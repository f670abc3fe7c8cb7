"""Object Store buckets through Spark: batches, streams, options and errors as users meet them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jetstream.buckets.objects import digest_text
from spark_jetstream.schema import OBJECT_COLUMNS
from spark_jetstream.source.objects import LARGEST_CONTENT
from spark_jetstream.testing import NatsServer
from tests.docs.test_docs import DEFAULT_URL, FOLDER, ROOT, blocks
from tests.support.objects import Bucket, buckets
from tests.support.publish import Publisher
from tests.support.queries import available_now, refusal

CONTENTS = {
    "empty": b"",
    "a/b.csv": b"1,2\r\n",
    "Ünïcödé ☃ ": random.Random(1).randbytes(700_000),
    "c.csv": random.Random(2).randbytes(100_000),
}


@pytest.fixture
def bucket(nats_server: NatsServer, publisher: Publisher) -> Iterator[Bucket]:
    """A bucket with the objects of `CONTENTS`."""
    with buckets(nats_server.url, publisher) as new:
        made = new()
        made.put(*CONTENTS.items())
        yield made


def load(reader: Any, bucket: Bucket, **given: object) -> DataFrame:
    """What `spark.read` or `spark.readStream` makes of the bucket."""
    options = {
        "servers": bucket.url,
        "objectBucket": bucket.name,
        **{name: str(value) for name, value in given.items()},
    }
    frame: DataFrame = reader.format("jetstream").options(**options).load()
    return frame


def contents(frame: DataFrame) -> dict[str, bytes]:
    """Name and content of each row; no name comes twice."""
    rows = frame.select("name", "content").collect()
    found = {row["name"]: bytes(row["content"]) for row in rows}
    assert len(found) == len(rows)
    return found


def test_a_batch(spark: SparkSession, bucket: Bucket) -> None:
    bucket.put(("headed", b"x"), headers={"A": ["1", "2"]})
    frame = load(spark.read, bucket)
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        (column.name, column.spark) for column in OBJECT_COLUMNS
    ]
    assert contents(frame) == {**CONTENTS, "headed": b"x"}
    (row,) = frame.where("name = 'headed'").selectExpr("*", "unix_micros(modified) AS micros").collect()
    assert (row["bucket"], row["size"], row["chunks"], row["headers"]) == (bucket.name, 1, 1, {"A": ["1", "2"]})
    assert row["micros"] == bucket.time("headed") // 1000
    assert row["digest"] == "SHA-256=LXEWQrcmsEQBYnyp-6wy9chTD7GQPMTbAiWHF5IaSIE="
    wrong = frame.where("digest != concat('SHA-256=', translate(base64(unhex(sha2(content, 256))), '+/', '-_'))")
    assert wrong.count() == 0


def test_options_of_a_batch(spark: SparkSession, bucket: Bucket) -> None:
    assert contents(load(spark.read, bucket, pathGlobFilter="*.csv")).keys() == {"a/b.csv", "c.csv"}
    assert load(spark.read, bucket, pathGlobFilter="none").count() == 0
    assert load(spark.read, bucket, minPartitions=3).rdd.getNumPartitions() == 3
    assert load(spark.read, bucket, maxMessagesPerPartition=1).rdd.getNumPartitions() == 4
    assert contents(load(spark.read, bucket, readWith="direct", minPartitions=2)) == CONTENTS
    bucket.store("huge", b"", size=LARGEST_CONTENT + 1)
    listing = load(spark.read, bucket, contentOff="true")
    assert {row["name"]: row["content"] for row in listing.collect()} == dict.fromkeys([*CONTENTS, "huge"])
    sizes = load(spark.read.schema("size bigint, name string"), bucket)
    assert {row["name"]: row["size"] for row in sizes.collect()}["huge"] == LARGEST_CONTENT + 1
    with pytest.raises(Exception, match="object 'huge' has 2,147,483,648 bytes"):
        load(spark.read, bucket).count()


def test_damage_and_a_bucket_that_is_not_there(spark: SparkSession, bucket: Bucket) -> None:
    bucket.store("broken", b"content", digest=digest_text(b"\0" * 32))
    with pytest.raises(Exception, match="another digest") as caught:
        load(spark.read, bucket).collect()
    kind, sentence = refusal(caught.value)
    assert kind == "DataLossError"
    assert sentence.startswith(f"bucket {bucket.name}, object 'broken' is damaged")
    assert contents(load(spark.read, bucket, failOnDataLoss="false")) == CONTENTS
    bucket.name = "NO_SUCH_BUCKET"
    with pytest.raises(Exception, match="NO_SUCH_BUCKET") as caught:
        load(spark.read, bucket).collect()


def test_a_stream(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    def run(**given: object) -> list[tuple[str, bytes]]:
        frame = load(spark.readStream, bucket, **given).select("name", "content")
        return sorted((row["name"], bytes(row["content"])) for row in available_now(frame, tmp_path).rows)

    assert run() == sorted(CONTENTS.items())
    bucket.put(("c.csv", b"new"), ("more", b"2"), ("gone", b"3"))
    bucket.delete("gone")
    bucket.delete("empty")
    assert run(readWith="direct") == [("c.csv", b"new"), ("more", b"2")]
    bucket.put(*((f"n{at}", b"%d" % at) for at in range(10)), ("other", b""))
    assert run(minPartitions=2, pathGlobFilter="n*") == [(f"n{at}", b"%d" % at) for at in range(10)]


@pytest.mark.full
def test_a_stream_whose_beginning_was_replaced(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    """What gave way to a newer version is no loss, wherever the query stands."""

    def run() -> dict[str, bytes]:
        frame = load(spark.readStream, bucket, startingOffsets=f'{{"{bucket.name}": 1}}', maxMessagesPerTrigger=2)
        rows = available_now(frame.select("name", "content"), tmp_path).rows
        return {row["name"]: bytes(row["content"]) for row in rows}

    assert run() == CONTENTS
    bucket.put(("last", b"1"), ("x", b"1"))
    # Everything that the query has read goes, and what it has not read yet as well.
    bucket.put(*((name, b"again") for name in (*CONTENTS, "last", "x")))
    assert bucket.info()["state"]["first_seq"] > 8
    assert run() == dict.fromkeys([*CONTENTS, "last", "x"], b"again")


def test_a_new_stream_of_a_bucket_with_a_gap_in_front(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    bucket.put(*((name, b"again") for name in CONTENTS))
    frame = load(spark.readStream, bucket).select("name")
    assert sorted(row["name"] for row in available_now(frame, tmp_path).rows) == sorted(CONTENTS)


@pytest.mark.full
def test_the_guide(
    spark: SparkSession,
    nats_server: NatsServer,
    publisher: Publisher,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    images = Bucket(nats_server.url, publisher, "IMAGES")
    try:
        images.put(("2026/cat.jpg", b"cat" * 1000), ("2026/dog.png", b"dog"), ("2025/cow.jpg", b"cow"))
        names: dict[str, Any] = {"spark": spark}
        for block in blocks(ROOT / "docs" / "objects.md", "python"):
            block.run({DEFAULT_URL: nats_server.url, FOLDER: str(tmp_path)}, names)
    finally:
        images.remove()
        for query in spark.streams.active:
            query.stop()
    assert capsys.readouterr().out.count("2026/cat.jpg") >= 2  # the batch and the stream
    assert names["sizes"].columns == ["name", "size"]
