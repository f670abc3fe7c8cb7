"""Object Store buckets as users read them: batches, streams, options and errors."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_jetstream.buckets.objects import digest_text
from spark_jetstream.errors import DataLossError, JetStreamError, OptionError
from spark_jetstream.schema import OBJECT_COLUMNS
from spark_jetstream.source.objects import LARGEST_CONTENT
from spark_jetstream.testing import NatsServer
from tests.support import calls
from tests.support.calls import OBJECT_ROWS, Query, refusal_of
from tests.support.objects import Bucket, buckets, by_name
from tests.support.pages import DEFAULT_URL, FOLDER, ROOT, blocks
from tests.support.publish import Publisher

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


def options(bucket: Bucket, **given: object) -> dict[str, object]:
    return {"servers": bucket.url, "objectBucket": bucket.name, **given}


def contents(bucket: Bucket, **given: object) -> dict[str, bytes]:
    """Name and content of each row of a batch; no name comes twice."""
    return by_name([row.asDict() for row in calls.rows(options(bucket, **given), OBJECT_ROWS)])


def run(query: Query, **given: object) -> dict[str, bytes]:
    """The same of what a query reads when it is started again."""
    return by_name([row.asDict() for row in query.run(**given).rows])


def test_a_batch(spark: SparkSession, bucket: Bucket) -> None:
    bucket.put(("headed", b"x"), headers={"A": ["1", "2"]})
    frame = (
        spark.read.format("jetstream").options(servers=bucket.url, objectBucket=bucket.name).load()
    )
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        (column.name, column.spark) for column in OBJECT_COLUMNS
    ]
    rows = frame.selectExpr(
        "*",
        "unix_micros(modified) AS micros",
        "digest = concat('SHA-256=', translate(base64(unhex(sha2(content, 256))), '+/', '-_')) AS "
        "right",
    ).collect()
    assert {row["name"]: bytes(row["content"]) for row in rows} == {**CONTENTS, "headed": b"x"}
    assert len(rows) == 5
    assert all(row["right"] for row in rows)
    (row,) = (row for row in rows if row["name"] == "headed")
    assert (row["bucket"], row["size"], row["chunks"], row["headers"]) == (
        bucket.name,
        1,
        1,
        {"A": ["1", "2"]},
    )
    assert row["micros"] == bucket.time("headed") // 1000
    assert row["digest"] == "SHA-256=LXEWQrcmsEQBYnyp-6wy9chTD7GQPMTbAiWHF5IaSIE="


def test_options_of_a_batch(bucket: Bucket) -> None:
    assert contents(bucket, pathGlobFilter="*.csv").keys() == {"a/b.csv", "c.csv"}
    assert contents(bucket, pathGlobFilter="{c,a/b}.csv").keys() == {"a/b.csv", "c.csv"}
    assert contents(bucket, pathGlobFilter="none") == {}
    assert len(calls.tasks(options(bucket, minPartitions=3), OBJECT_ROWS)) == 3
    assert len(calls.tasks(options(bucket, maxMessagesPerPartition=1), OBJECT_ROWS)) == 4
    assert contents(bucket, readWith="direct", minPartitions=2) == CONTENTS
    bucket.store("huge", b"", size=LARGEST_CONTENT + 1)
    assert contents(bucket, contentOff="true") == dict.fromkeys([*CONTENTS, "huge"])
    sizes = calls.rows(options(bucket), StructType([OBJECT_ROWS["size"], OBJECT_ROWS["name"]]))
    assert {row["name"]: row["size"] for row in sizes}["huge"] == LARGEST_CONTENT + 1
    with pytest.raises(JetStreamError, match="object 'huge' has 2,147,483,648 bytes"):
        contents(bucket)


def test_damage_and_a_bucket_that_is_not_there(bucket: Bucket) -> None:
    bucket.store("broken", b"content", digest=digest_text(b"\0" * 32))
    with pytest.raises(DataLossError, match="another digest") as caught:
        contents(bucket)
    kind, sentence = refusal_of(caught.value, in_task=True)
    assert kind == "DataLossError"
    assert sentence.startswith(f"bucket {bucket.name}, object 'broken' is damaged")
    assert contents(bucket, failOnDataLoss="false") == CONTENTS
    with pytest.raises(OptionError, match="there is no Object Store bucket NO_SUCH_BUCKET"):
        contents(bucket, objectBucket="NO_SUCH_BUCKET")


def test_a_stream(bucket: Bucket) -> None:
    query = Query(bucket.url, objectBucket=bucket.name)
    assert run(query) == CONTENTS
    bucket.put(("c.csv", b"new"), ("more", b"2"), ("gone", b"3"))
    bucket.delete("gone")
    bucket.delete("empty")
    assert run(query, readWith="direct") == {"c.csv": b"new", "more": b"2"}
    bucket.put(("more", b"3"))
    assert run(query, contentOff="true") == dict.fromkeys(["more"])
    bucket.put(*((f"n{at}", b"%d" % at) for at in range(10)), ("other", b""))
    assert run(query, minPartitions=2, pathGlobFilter="n*") == {
        f"n{at}": b"%d" % at for at in range(10)
    }


def test_a_stream_whose_beginning_was_replaced(bucket: Bucket) -> None:
    """An object that gave way to a newer version is no loss, wherever the query stands."""
    starting = f'{{"{bucket.name}": 1}}'
    query = Query(
        bucket.url, objectBucket=bucket.name, startingOffsets=starting, maxMessagesPerTrigger=2
    )
    assert run(query) == CONTENTS
    bucket.put(("last", b"1"), ("x", b"1"))
    # Everything that the query has read goes, and what it has not read yet as well.
    bucket.put(*((name, b"again") for name in (*CONTENTS, "last", "x")))
    assert bucket.info()["state"]["first_seq"] > 8
    again = dict.fromkeys([*CONTENTS, "last", "x"], b"again")
    assert run(query) == again
    # A new query finds a gap in front.
    assert run(Query(bucket.url, objectBucket=bucket.name)) == again


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
        images.put(
            ("2026/cat.jpg", b"cat" * 1000), ("2026/dog.png", b"dog"), ("2025/cow.jpg", b"cow")
        )
        names: dict[str, Any] = {"spark": spark}
        for block in blocks(ROOT / "docs" / "objects.md", "python"):
            block.run({DEFAULT_URL: nats_server.url, FOLDER: str(tmp_path)}, names)
    finally:
        images.remove()
        for query in spark.streams.active:
            query.stop()
    assert capsys.readouterr().out.count("2026/cat.jpg") >= 2  # the batch and the stream
    assert names["sizes"].columns == ["name", "size"]
