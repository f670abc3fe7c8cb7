"""Read a stream in a Spark session of its own, and write what came, and what was said, into a file as JSON.

python session_script.py (connect|classic) URL STREAM FOLDER

First without registering the data source, then after `spark_jetstream.register(spark)`. Run with another working
directory than the project's, so that only what is installed is found.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_jetstream


def attempt(work: Callable[[], Any]) -> Any:
    """What `work` returns, or the text of Spark's error."""
    try:
        return work()
    except (PySparkException, Py4JJavaError) as error:
        return str(error)


def main(mode: str, url: str, stream: str, folder: Path) -> dict[str, Any]:
    """What each way to read gave."""
    builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
    spark = (builder.remote("local[2]") if mode == "connect" else builder.master("local[2]")).getOrCreate()

    def rows(**options: str) -> list[list[Any]]:
        frame = spark.read.format("jetstream").options(servers=url, stream=stream, **options).load()
        columns = frame.select("subject", "sequence", F.hex("data"), "headers")
        return [list(row) for row in columns.collect()]

    def streamed() -> list[list[Any]]:
        reader = spark.readStream.format("jetstream").options(servers=url, stream=stream, maxMessagesPerTrigger="4")
        query = (
            reader.schema("sequence bigint, data binary")
            .load()
            .writeStream.format("parquet")
            .option("path", str(folder / "rows"))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        written = spark.read.parquet(str(folder / "rows")).select("sequence", F.hex("data"))
        batches = [each.numInputRows for each in query.recentProgress]
        return [batches, sorted(list(row) for row in written.collect())]

    result: dict[str, Any] = {"session": type(spark).__module__, "discovered": attempt(rows)}
    spark_jetstream.register(spark)
    result["registered"] = attempt(rows)
    result["streamed"] = attempt(streamed)
    result["refused"] = attempt(lambda: rows(startingOfsets="earliest"))
    spark.stop()
    return result


if __name__ == "__main__":
    found = main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
    Path(sys.argv[4], "result.json").write_text(json.dumps(found))
