"""lookup: what it adds to a frame, and what it refuses."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
from pyspark.sql import SparkSession, functions
from pyspark.sql import functions as F

from spark_jetstream import lookup
from spark_jetstream.buckets.key_lookup import FOUND
from spark_jetstream.errors import OptionError, SchemaError
from spark_jetstream.lookups import lookup as module
from spark_jetstream.testing import NatsServer
from tests.compat import sql_job
from tests.support.keyed import make_bucket, name_of
from tests.support.proxy import WireProxy
from tests.support.publish import Message
from tests.support.streams import MakeStream

LOOKED_UP: dict[str, Any] = {
    "schema": "struct<sequence:bigint,city.key:string,at:timestamp,value:binary,revision:bigint,"
    "since:timestamp>",
    "batch": [
        [1, "Aachen", 1],
        [2, "Bonn", 2],
        [3, None, None],
        [4, None, None],
        [5, "Aachen", 1],
    ],
    "times": [[3, 2]],
    "streamed": [[1, "Aachen"], [2, "Bonn"], [3, None], [4, None], [5, "Aachen"]],
}


def check_looked_up(result: dict[str, Any], *, newer: bool) -> None:
    if not newer:
        assert result == {"refused": "lookup needs Spark 4.1 or later"}
        return
    assert "there is no Key-Value bucket NOWHERE" in result.pop("failed")
    assert result == LOOKED_UP


def test_a_batch_and_a_streaming_query(spark: SparkSession, server: NatsServer) -> None:
    check_looked_up(sql_job.looked_up(spark.newSession(), server.url), newer=True)


def test_each_arrow_batch_names_its_keys_once(
    spark: SparkSession, stream: MakeStream, proxy: WireProxy
) -> None:
    bucket = make_bucket(stream)
    bucket.send(*(Message(f"$KV.{name_of(bucket)}.{n}", b"%d" % n) for n in range(10)))
    keys = spark.range(0, 30_000, 1, 1).select((F.col("id") % 20).cast("string").alias("key"))
    found = lookup(keys, name_of(bucket), "key", servers=proxy.url)
    # The value is used twice, and looked up once.
    same = (F.col("value").cast("string") == F.col("key")) & F.col("value").isNotNull()
    counts = found.groupBy(same.alias("same"), F.col("revision").isNull().alias("missing")).count()
    assert sorted(map(tuple, counts.collect())) == [(False, True, 15_000), (True, False, 15_000)]
    # 10,000 rows are an Arrow batch.
    assert proxy.client_bytes.count(b"multi_last") == 3
    assert proxy.client_bytes.count(f'"$KV.{name_of(bucket)}.7"'.encode()) == 3


def test_an_outage_fails_the_task(
    spark: SparkSession, stream: MakeStream, proxy: WireProxy
) -> None:
    bucket = make_bucket(stream)
    proxy.refuse()
    options: dict[str, Any] = {"servers": proxy.url, "connectTimeout": "1s", "retryTimeout": "1s"}
    found = lookup(sql_job.frame_of_keys(spark), name_of(bucket), "key", **options)
    with pytest.raises(Exception, match=r"OutageError: looking up keys of bucket .* retryTimeout"):
        found.collect()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bucket": "a.b"}, "argument bucket must be 1 to 252 letters (a to z), digits, _ and -"),
        ({"key": "id"}, 'argument key: the frame has no column "id" that is a string (key string'),
        ({"key": "none"}, 'argument key: the frame has no column "none" that is a string'),
        ({}, "argument value: the frame has a column VALUE already; give the new column another"),
        ({"value": "v", "revision": "ID"}, "argument revision: the frame has a column id already"),
        ({"value": "v", "updated": "key"}, "argument updated: the frame has a column key already"),
        ({"value": "v", "revision": "V"}, "arguments value and revision name the same column V"),
        ({"value": None, "revision": None}, "arguments value, revision and updated are all None"),
        ({"value": "v", "retryTimeout": "soon"}, "option retryTimeout must be"),
        ({"value": "v", "server": "x"}, "there is no option server; did you mean servers"),
        ({"value": "v", "startingOffsets": "latest"}, "there is no option startingOffsets"),
    ],
)
def test_arguments_that_are_refused(spark: SparkSession, given: dict[str, Any], said: str) -> None:
    frame = spark.createDataFrame([("a", 1, 2)], "key string, id int, VALUE int")
    with pytest.raises((OptionError, SchemaError)) as caught:
        lookup(frame, **{"bucket": "b", "key": "key", **given})
    assert str(caught.value).startswith(said)


def test_a_secret_is_in_no_traceback(spark: SparkSession) -> None:
    frame = sql_job.frame_of_keys(spark)
    with pytest.raises(OptionError) as caught:
        lookup(frame, "b", "key", user="u", password="hidden-text", token="t")
    shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    frames = [line for line in shown.format() if "lookups/lookup.py" in line]
    assert frames
    assert not any("hidden-text" in line for line in frames)
    found = lookup(frame, "b", "key", user="u", password="hidden-text")
    assert "hidden-text" not in found._jdf.queryExecution().toString()


def test_spark_has_the_types_of_what_is_found() -> None:
    from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415

    assert from_arrow_type(FOUND) == module._FOUND


def test_a_spark_before_4_1_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(functions, "arrow_udf")
    with pytest.raises(OptionError, match=r"lookup needs Spark 4\.1"):
        lookup(sql_job.frame_of_keys(spark), "b", "key")
