"""Read and write in every way that Sail has, and print what was seen as JSON.

    python sail_job.py URL STREAM FOLDER TARGET

The process is both Sail and its client. Rows go to subjects that begin with the name
of the stream TARGET in lower case, and to buckets TARGET. Sail finds the format by the entry point
of the installed package. Where the package runs from a folder, it is registered by hand.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from pysail.spark import SparkConnectServer  # type: ignore[import-not-found]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jetstream import register
from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.testing.process import poll

# Python finds it beside this script, which also runs where only the package is installed.
from smoke import describe, error_of  # type: ignore[import-not-found]  # isort: skip

MANY = 60_000
Rows = list[list[Any]]


class Job:
    """A session of Sail, and the server that it reads and writes."""

    def __init__(self, spark: SparkSession, admin: JetStreamAdmin, url: str) -> None:
        self.spark = spark
        self.admin = admin
        self.url = url

    def read(self, schema: str | None = None, **options: Any) -> DataFrame:
        reader = self.spark.read.format("jetstream").options(servers=self.url, **options)
        return (reader if schema is None else reader.schema(schema)).load()

    def rows(self, columns: str, **options: Any) -> Rows:
        """These columns of a table, in order of the first one."""
        table = self.read(**options).selectExpr(*columns.split(", "))
        return sorted(list(row) for row in table.collect())

    def write(
        self, frame: DataFrame, mode: str = "append", partitions: int = 4, **options: Any
    ) -> None:
        # Sail counts the partitions of another frame too early (`unequal`).
        frame = frame.repartition(partitions) if partitions else frame
        writer = frame.write.format("jetstream").options(servers=self.url, **options)
        writer.mode(mode).save()

    def error(self, work: Callable[[], Any]) -> str:
        """The first line of the error that `work` raises. A trace follows it."""
        return str(error_of(work)).partition("\n")[0]


def messages(job: Job, stream: str) -> dict[str, Any]:
    """The stream, as a whole, in parts, and with every kind of schema."""
    table = job.read(stream=stream)
    job.spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    zoned = job.read("timestamp timestamp, headers map<string,array<string>>", stream=stream)
    text = F.to_utc_timestamp("timestamp", "Europe/Berlin").cast("string")
    zones = [zoned.select(text).count(), zoned.filter("headers is not null").count()]
    job.spark.conf.set("spark.sql.session.timeZone", "UTC")
    strict = job.read("data binary NOT NULL, sequence bigint NOT NULL", stream=stream)
    job.spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    renamed = job.read(stream=stream)
    given = job.error(job.read("timestamp timestamp", stream=stream).collect)
    job.spark.conf.unset("spark.sql.timestampType")
    table.createOrReplaceTempView("messages")
    query = "SELECT count(*), max(sequence) FROM messages WHERE subject LIKE '%odd'"
    return {
        "schema": table.schema.simpleString(),
        "batch": describe(table),
        "parts": describe(job.read(stream=stream, maxMessagesPerPartition=100)),
        "zones": zones,
        "strict": [strict.schema.simpleString(), strict.count()],
        "filtered": table.filter("sequence > 990").select("sequence").count(),
        "subjects": job.read(stream=stream, subjects="*.odd").count(),
        "ntz": [renamed.schema.simpleString(), renamed.count(), given],
        "sql": list(job.spark.sql(query).first() or ()),
        "path": job.spark.read.format("jetstream").option("servers", job.url).load(stream).count(),
        "misspelt": job.error(lambda: job.read(stream=stream, steam="x").count()),
        "absent": job.error(lambda: job.read(stream="ABSENT").count()),
        "not null": job.error(
            job.read("headers map<string,array<string>> NOT NULL", stream=stream).collect
        ),
    }


def buckets(job: Job, target: str) -> dict[str, Any]:
    """A Key-Value bucket with two values of each key, as it is and as it was, and objects."""
    job.admin.kv.create(target, history=3)
    values = job.spark.range(20).selectExpr(
        "concat('key.', id % 10) AS key", "CAST(id AS STRING) AS value"
    )
    # The last value of a key is in the last row.
    job.write(values.coalesce(1), partitions=0, bucket=target, delivery="at-least-once")
    refused = job.error(lambda: job.write(values, bucket=target))
    job.admin.objects.create(target)
    content = job.spark.range(3).selectExpr(
        "concat('object.', id) AS name",
        "CAST(repeat(CAST(id AS STRING), 300000) AS BINARY) AS content",
    )
    job.write(content, objectBucket=target)
    return {
        "current": job.rows("key, CAST(value AS STRING)", bucket=target),
        "history": job.read(bucket=target, history="true").count(),
        "as of": job.rows("key, CAST(value AS STRING)", bucket=target, asOfRevision=10),
        "delivery": refused,
        "objects": job.rows("name, size, length(content)", objectBucket=target),
        "listed": job.rows("name, content IS NULL", objectBucket=target, contentOff="true"),
    }


def write(job: Job, stream: str, target: str) -> dict[str, Any]:
    """The stream written to another one in every way, twice where that stores nothing more."""
    prefix = target.lower()
    table = job.read(stream=stream, maxMessagesPerPartition=100)

    def renamed(kind: str) -> DataFrame:
        subject = F.concat(F.lit(f"{prefix}.{kind}."), "subject").alias("subject")
        return table.select("data", "headers", "sequence", subject)

    def counted(kind: str, frame: DataFrame, **options: Any) -> list[int]:
        """How many rows two writes have stored."""
        counts = []
        for _ in range(2):
            job.write(frame, stream=target, **options)
            counts.append(job.read(stream=target, subjects=f"{prefix}.{kind}.>").count())
        return counts

    own = F.concat(F.lit("id-"), F.col("sequence").cast("string")).alias("msg_id")
    content = renamed("content").filter("length(data) > 0").drop("sequence")
    origin = renamed("origin").withColumn("stream", F.lit(stream))
    with_null = renamed("null").withColumn(
        "msg_id", F.when(F.col("sequence") > 5, F.lit("x")).otherwise(F.lit(None).cast("string"))
    )
    plain = renamed("plain").drop("sequence")
    nowhere = plain.withColumn("subject", F.lit("nowhere.x"))
    return {
        "plain": counted("plain", plain, delivery="at-least-once"),
        "msg_id": counted("id", renamed("id").withColumn("msg_id", own)),
        "content": counted("content", content, messageIds="content", writeId=f"w-{prefix}"),
        "origin": counted("origin", origin, writeId=f"o-{prefix}"),
        "default": job.error(lambda: job.write(plain, stream=target)),
        "exactly": job.error(lambda: job.write(plain, stream=target, delivery="exactly-once")),
        "null": job.error(lambda: job.write(with_null, stream=target)),
        "null stored": job.read(stream=target, subjects=f"{prefix}.null.>").count(),
        "unequal": job.error(
            lambda: job.write(
                job.spark.range(10).filter("id > 5").selectExpr("CAST(id AS STRING) AS data"),
                partitions=0,
                subject=f"{prefix}.unequal",
                delivery="at-least-once",
            )
        ),
        "unequal stored": job.read(stream=target, subjects=f"{prefix}.unequal").count(),
        "overwrite": job.error(lambda: job.write(plain, "overwrite", delivery="at-least-once")),
        "refused": job.error(
            lambda: job.write(nowhere.limit(1), delivery="at-least-once", maxRetries=0)
        ),
        "column": job.error(lambda: job.write(plain.withColumn("extra", F.lit(1)))),
        "types": job.error(lambda: job.write(plain.withColumn("data", F.lit(1)))),
    }


def copied(job: Job, target: str) -> dict[str, Any]:
    """A stream of which a task reads hundreds of batches, more than Sail's channel has room for,
    written to another one by the same process.
    """
    for suffix in ("FROM", "TO"):
        job.admin.streams.create(f"{target}_{suffix}", subjects=[f"{target}_{suffix}.>"])
    rows = job.spark.range(MANY).selectExpr("CAST(id AS STRING) AS data")
    job.write(rows, subject=f"{target}_FROM.a", delivery="at-least-once")
    table = job.read(stream=f"{target}_FROM", fetchBatch=100)
    job.write(table.select("data"), subject=f"{target}_TO.a", delivery="at-least-once")
    stored = job.read(stream=f"{target}_TO").selectExpr("CAST(CAST(data AS STRING) AS BIGINT)")
    return {"copied": stored.distinct().count(), "collected": len(table.collect())}


def counters(job: Job, target: str) -> dict[str, Any]:
    """A stream of counters, written to and read."""
    name = f"{target}_COUNTERS"
    job.admin.streams.create(
        name, subjects=[f"{name}.>"], allow_msg_counter=True, allow_direct=True
    )
    rows = job.spark.range(10).selectExpr(
        f"concat('{name}.', id % 2) AS subject", "CAST(id AS STRING) AS incr"
    )
    job.write(rows, stream=name, delivery="at-least-once")
    return {"counters": job.rows("subject, value", stream=name, counters="true")}


def dead_letters(job: Job, target: str) -> dict[str, Any]:
    """A message that a consumer has given up."""
    name = f"{target}_GIVEN_UP"
    job.admin.streams.create(name, subjects=[f"{name}.>"])
    kept = job.admin.streams.keep_dead_letters(name).config.name
    job.admin.publish(f"{name}.a", b"bad", headers={"Why": "it is"})
    job.admin.consumers.create(name, durable_name="c", ack_policy="explicit")
    [delivered] = job.admin.consumers.next(name, "c", ack="none")
    job.admin.consumers.term(delivered, reason="unreadable")
    poll(
        lambda: job.admin.streams.load(kept).state.messages or None,
        timeout=20,
        give_up=lambda: AssertionError("the advisory is not there"),
    )
    columns = "stream, consumer, reason, CAST(data AS STRING), headers['Why'][0], gone, msg_id"
    return {"dead letters": job.rows(columns, deadLettersOf=name)}


def files(job: Job, folder: str, target: str) -> dict[str, Any]:
    """Rows that Sail has read from a Parquet file, with other Arrow types than those of a query."""
    path = f"{folder}/rows.parquet"
    frame = job.spark.range(100).selectExpr(
        f"concat('{target.lower()}.file.', id) AS subject",
        "CAST(id AS BINARY) AS data",
        "map('Number', array(CAST(id AS STRING))) AS headers",
        "concat('file-', id) AS msg_id",
    )
    frame.write.mode("overwrite").parquet(path)
    job.write(job.spark.read.parquet(path), stream=target)
    back = job.read(stream=target, subjects=f"{target.lower()}.file.>")
    written = back.selectExpr("headers['Number'][0] AS number").distinct().count()
    whole = job.read(stream=target)
    whole.write.mode("overwrite").parquet(f"{path}.whole")
    saved = job.spark.read.parquet(f"{path}.whole").count()
    return {"written": written, "saved": saved == whole.count()}


def streaming(job: Job, stream: str, folder: str) -> dict[str, Any]:
    """The errors that streaming queries end with."""
    options = {"servers": job.url, "stream": stream}
    source = job.spark.readStream.format("jetstream").options(**options)
    rate = job.spark.readStream.format("rate").load().selectExpr("'x' AS data", "'a' AS subject")

    def sink() -> None:
        writer = rate.writeStream.format("jetstream").options(servers=job.url)
        writer.option("checkpointLocation", f"{folder}/sink").start().awaitTermination(10)

    def read() -> None:
        writer = source.load().writeStream.format("console")
        writer.option("checkpointLocation", f"{folder}/source").start().awaitTermination(10)

    return {"read": error_of(read), "written": error_of(sink)}


def main(url: str, stream: str, folder: str, target: str) -> dict[str, Any]:
    server = SparkConnectServer("127.0.0.1", 0)
    server.start()
    assert server.listening_address is not None
    _, port = server.listening_address
    spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
    try:
        found = {entry.name for entry in entry_points(group="pysail.datasources")}
        if "jetstream" not in found:
            register(spark)
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        with JetStreamAdmin(servers=url) as admin:
            job = Job(spark, admin, url)
            return {
                "version": spark.version,
                "found": "jetstream" in found,
                **messages(job, stream),
                "buckets": buckets(job, target),
                "writes": write(job, stream, target),
                **copied(job, target),
                **counters(job, target),
                **dead_letters(job, target),
                "files": files(job, folder, target),
                "streaming": streaming(job, stream, folder),
            }
    finally:
        spark.stop()
        server.stop()


if __name__ == "__main__":
    print("RESULT " + json.dumps(main(*sys.argv[1:])))
