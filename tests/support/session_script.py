"""Use the data source in a Spark session of its own; what came, and what was said, goes into a file as JSON.

    python session_script.py (connect|classic) URL STREAM FOLDER
    python session_script.py write URL SOURCE TARGET FOLDER

Run with another working directory than the project's, so that only what is installed is found.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_jetstream


def attempt(work: Callable[[], Any]) -> Any:
    """What `work` returns, or the text of Spark's error."""
    try:
        return work()
    except (PySparkException, Py4JJavaError) as error:
        return str(error)


def session(mode: str, folder: Path) -> SparkSession:
    """A session by Spark Connect, or a classic one."""
    builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
    return (builder.master("local[2]") if mode == "classic" else builder.remote("local[2]")).getOrCreate()


def finish(rows: DataFrame, format: str, folder: Path, **options: str) -> list[int]:
    """Run a query on streaming rows to its end; how many rows each micro-batch had."""
    writer = rows.writeStream.format(format).options(**options).option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return [progress.numInputRows for progress in query.recentProgress]


def read(spark: SparkSession, folder: Path, url: str, stream: str) -> dict[str, Any]:
    """What each way to read gives: first without registering the data source, then after `register`."""

    def rows(**options: str) -> list[list[Any]]:
        frame = spark.read.format("jetstream").options(servers=url, stream=stream, **options).load()
        columns = frame.select("subject", "sequence", F.hex("data"), "headers")
        return [list(row) for row in columns.collect()]

    def streamed() -> list[list[Any]]:
        reader = spark.readStream.format("jetstream").options(servers=url, stream=stream, maxMessagesPerTrigger="4")
        source = reader.schema("sequence bigint, data binary").load()
        batches = finish(source, "parquet", folder, path=str(folder / "rows"))
        written = spark.read.parquet(str(folder / "rows")).select("sequence", F.hex("data"))
        return [batches, sorted(list(row) for row in written.collect())]

    discovered = attempt(rows)
    spark_jetstream.register(spark)
    refused = attempt(lambda: rows(startingOfsets="earliest"))
    return {"discovered": discovered, "registered": attempt(rows), "streamed": attempt(streamed), "refused": refused}


def write(spark: SparkSession, folder: Path, url: str, source: str, target: str) -> dict[str, Any]:
    """A batch write, a streaming query, and two that are refused. Subjects begin with TARGET in lower case."""
    prefix = target.lower()

    def save(frame: DataFrame, mode: str = "append", **options: str) -> None:
        frame.write.format("jetstream").options(servers=url, **options).mode(mode).save()

    table = spark.read.format("jetstream").options(servers=url, stream=source).load()
    save(table, subject=f"{prefix}.batch", stream=target)
    rows = spark.readStream.format("jetstream").options(servers=url, stream=source).load()
    sink = {"servers": url, "subject": f"{prefix}.stream", "delivery": "exactly-once"}
    batches = finish(rows, "jetstream", folder, **sink)
    subject = F.when(F.col("id") == 1, "nowhere.x").otherwise(f"{prefix}.refused")
    bad = spark.range(0, 3, 1, 1).select(subject.alias("subject"), F.col("id").cast("string").alias("data"))
    return {
        "rows": sum(batches),
        "overwrite": attempt(lambda: save(table, "overwrite", subject=f"{prefix}.batch")),
        "refused": attempt(lambda: save(bad, maxRetries="1")),
    }


def main(mode: str, *names: str) -> None:
    folder = Path(names[-1])
    spark = session(mode, folder)
    work: Callable[..., dict[str, Any]] = write if mode == "write" else read
    result = {"session": type(spark).__module__, **work(spark, folder, *names[:-1])}
    spark.stop()
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
