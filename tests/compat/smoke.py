"""Read and write in every basic way on whichever Spark the environment holds, and print what was
read as JSON.

    python smoke.py (classic|connect|managed|sc://...) URL STREAM FOLDER MESSAGES_PER_TRIGGER TARGET TIMES

The rows go to subjects that begin with the name of the stream TARGET in lower case, and to a bucket
TARGET. With 2 as TIMES everything runs once more from its checkpoint, a query writes files, and
errors are tried out.

Spark finds the data source by the module `pyspark_jetstream`; registering it by hand after that
does no harm. With `managed` it is a session as with `classic`, which also decodes Protobuf, by the
library that the runtime has. With the address of a Spark Connect server it is registered from here,
and the environment may have the thin client alone.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jetstream import decode, register
from spark_jetstream.admin import JetStreamAdmin


def describe(rows: DataFrame) -> dict[str, Any]:
    """Return the number and sequences of these rows, and a digest over all of them but the time."""
    collected = sorted(rows.collect(), key=lambda row: int(row["sequence"]))
    digest = hashlib.sha256()
    for row in collected:
        headers = sorted(row["headers"].items()) if row["headers"] is not None else None
        content = [
            row["stream"],
            row["subject"],
            row["sequence"],
            headers,
            bytes(row["data"]).hex(),
        ]
        digest.update(json.dumps(content).encode())
    return {
        "count": len(collected),
        "sequences": [row["sequence"] for row in collected],
        "digest": digest.hexdigest(),
        "without_time": sum(row["timestamp"] is None for row in collected),
    }


def run_available(spark: SparkSession, url: str, stream: str, folder: str, limit: int) -> list[int]:
    """One run of the query with ``availableNow``; the number of rows of each micro-batch that had
    any.
    """
    query = (
        spark.readStream.format("jetstream")
        .option("servers", url)
        .option("stream", stream)
        .option("maxMessagesPerTrigger", limit)
        .load()
        .writeStream.format("parquet")
        .option("path", f"{folder}/rows")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def error_of(work: Callable[[], Any]) -> str:
    """The text of the error that `work` raises, "" when there is none."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - PySparkException, or Py4JJavaError, which the thin client lacks
        return str(error)
    return ""


def write(
    spark: SparkSession, url: str, stream: str, folder: str, target: str, times: int
) -> dict[str, Any]:
    """The stream written to another one: as a batch under one name, and by a query; errors with the
    second time.
    """
    prefix = target.lower()
    subject = F.concat(F.lit(f"{prefix}.batch."), "subject").alias("subject")
    table = spark.read.format("jetstream").option("servers", url).option("stream", stream).load()
    before = spark.read.format("jetstream").options(servers=url, stream=target).load().count()
    for _ in range(times):
        empty = F.lit(None).alias("msg_id")
        rows = table.select("data", "headers", "stream", "sequence", "timestamp", subject, empty)
        writer = (
            rows.write.format("jetstream")
            .option("servers", url)
            .option("stream", target)
            .mode("append")
        )
        writer.option("writeId", f"once-{prefix}").save()

    written = spark.read.format("jetstream").options(servers=url, stream=target).load()
    count = written.count()

    def run(**options: str) -> None:
        source = (
            spark.readStream.format("jetstream")
            .option("servers", url)
            .option("stream", stream)
            .load()
        )
        single = F.map_from_arrays(
            F.array(F.lit("Single")), F.array(F.col("sequence").cast("string"))
        ).alias("headers")
        names = F.concat(F.lit("id-"), "sequence").alias("msg_id")
        text = F.collate(F.col("data").cast("string"), "UTF8_LCASE").alias("data")
        # A column without any value, which Spark gives the type void.
        rows = source.select(text, single, names, F.lit(None).alias("ttl"))
        rows = rows if "subject" in options else rows.withColumn("subject", F.lit("nowhere.x"))
        query = (
            rows.writeStream.format("jetstream")
            .options(servers=url, maxRetries="1", **options)
            .option("checkpointLocation", f"{folder}/written-{options.get('subject')}")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    for _ in range(times):
        run(subject=f"{prefix}.stream.x", delivery="exactly-once")
    planned = {"before": before, "planned_again": written.count() > count}
    if times == 1:
        return planned
    return {
        **planned,
        "refused": error_of(run),
        "overwrite": error_of(lambda: writer.mode("overwrite").save()),
    }


def fill_bucket(spark: SparkSession, url: str, bucket: str) -> dict[str, Any]:
    """Make a bucket and write two values of each key; what queries and the administration see of
    it.
    """
    options = {"servers": url, "bucket": bucket}
    with JetStreamAdmin(servers=url) as admin:
        admin.kv.create(bucket, history=3)
        rows = spark.range(0, 20, 1, 1).selectExpr(
            "concat('key.', id % 10) AS key", "CAST(id AS STRING) AS value"
        )
        rows.write.format("jetstream").options(**options).mode("append").save()
        table = spark.read.format("jetstream").options(**options).load()
        values = table.selectExpr("key", "CAST(value AS STRING) AS value", "revision")
        return {
            "current": sorted(map(list, values.collect())),
            "messages": admin.streams.load(f"KV_{bucket}").state.messages,
        }


def decode_protobuf(spark: SparkSession) -> dict[str, Any]:
    """The fields of a Protobuf message that a worker has decoded, and the version of the library."""
    # Only runtimes need it.
    from google.protobuf import __version__ as version  # noqa: PLC0415
    from google.protobuf.source_context_pb2 import SourceContext  # noqa: PLC0415

    payload = SourceContext(file_name="ü.proto").SerializeToString()
    rows = spark.createDataFrame([(payload,)], "data binary")
    [row] = decode(rows, "protobuf", SourceContext).collect()
    return {"version": version, "decoded": row["decoded"].asDict()}


def main(
    mode: str, url: str, stream: str, folder: str, limit: int, target: str, times: int
) -> dict[str, Any]:
    """Batch, what `write` does, a bucket, a filter; the second time a stream into files, twice, and
    errors.
    """
    builder = (
        SparkSession.builder.config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
    )
    if mode.startswith("sc://"):
        spark = (
            SparkSession.builder.remote(mode)
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )
        register(spark)
    else:
        spark = (
            builder.remote("local[2]") if mode == "connect" else builder.master("local[2]")
        ).getOrCreate()
    try:
        table = (
            spark.read.format("jetstream").option("servers", url).option("stream", stream).load()
        )
        result = {
            "session": type(spark).__module__,
            "spark": spark.version,
            "schema": table.schema.simpleString(),
            "batch": describe(table),
            **write(spark, url, stream, folder, target, times),
            "bucket": fill_bucket(spark, url, target),
        }
        # Under this setting DDL calls another type "timestamp".
        spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
        renamed = spark.read.format("jetstream").options(servers=url, stream=stream).load()
        result["renamed"] = {"schema": renamed.schema.simpleString(), "count": renamed.count()}
        spark.conf.unset("spark.sql.timestampType")
        filtered = spark.read.format("jetstream")
        filtered = filtered.schema("data binary NOT NULL, sequence bigint NOT NULL")
        filtered = filtered.options(servers=url, stream=stream, subjects="*.odd")
        if mode == "managed":
            result["protobuf"] = decode_protobuf(spark)
        rows = filtered.load()
        result["filtered"] = {"schema": rows.schema.simpleString(), "count": rows.count()}
        if times == 1:
            return result
        for again in ("", "again_"):
            result[f"{again}micro_batches"] = run_available(spark, url, stream, folder, limit)
            result[f"{again}streamed"] = describe(spark.read.parquet(f"{folder}/rows"))
        result["registered"] = error_of(lambda: register(spark))
        result["misspelt"] = error_of(
            lambda: filtered.option("startingOfsets", "earliest").load().count()
        )
        return result
    finally:
        spark.stop()


if __name__ == "__main__":
    mode, url, stream, folder, limit, target, times = sys.argv[1:]
    print("RESULT " + json.dumps(main(mode, url, stream, folder, int(limit), target, int(times))))
