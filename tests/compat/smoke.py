"""Read a stream in every basic way on whichever Spark the environment holds, and print what was read as JSON.

    python smoke.py URL STREAM FOLDER MESSAGES_PER_TRIGGER

Nothing registers the data source here: Spark finds it by the module `pyspark_jetstream`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession


def describe(rows: DataFrame) -> dict[str, Any]:
    """What identifies these rows: how many, which, and a digest over everything in them but the time."""
    collected = sorted(rows.collect(), key=lambda row: int(row["sequence"]))
    digest = hashlib.sha256()
    for row in collected:
        headers = sorted(row["headers"].items()) if row["headers"] is not None else None
        content = [row["stream"], row["subject"], row["sequence"], headers, bytes(row["data"]).hex()]
        digest.update(json.dumps(content).encode())
    return {
        "count": len(collected),
        "sequences": [row["sequence"] for row in collected],
        "digest": digest.hexdigest(),
        "without_time": sum(row["timestamp"] is None for row in collected),
    }


def run_available(spark: SparkSession, url: str, stream: str, folder: str, limit: int) -> list[int]:
    """One run of the query with ``availableNow``; the number of rows of each micro-batch that had any."""
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


def main(url: str, stream: str, folder: str, limit: int) -> dict[str, Any]:
    """Batch, stream into files, and the same query started again when there is nothing new."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .getOrCreate()
    )
    try:
        table = spark.read.format("jetstream").option("servers", url).option("stream", stream).load()
        filtered = (
            spark.read.format("jetstream")
            .schema("data binary, sequence bigint")
            .option("servers", url)
            .option("stream", stream)
            .option("subjects", "*.odd")
            .load()
        )
        return {
            "spark": spark.version,
            "schema": table.schema.simpleString(),
            "batch": describe(table),
            "filtered": {"schema": filtered.schema.simpleString(), "count": filtered.count()},
            "micro_batches": run_available(spark, url, stream, folder, limit),
            "again": run_available(spark, url, stream, folder, limit),
            "streamed": describe(spark.read.parquet(f"{folder}/rows")),
        }
    finally:
        spark.stop()


if __name__ == "__main__":
    print("RESULT " + json.dumps(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))))
