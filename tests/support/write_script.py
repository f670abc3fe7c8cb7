"""Write into a stream through Spark Connect, in every basic way, and what was said into a file as JSON.

    python write_script.py URL SOURCE TARGET FOLDER

Subjects of TARGET begin with its name in lower case. Run with another working directory than the project's, so that
only what is installed is found.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def said(work: Callable[[], Any]) -> str:
    """The text of the error that `work` raises, "" when there is none."""
    try:
        work()
    except PySparkException as error:
        return str(error)
    return ""


def main(url: str, source: str, target: str, folder: Path) -> dict[str, Any]:
    """A batch write, a streaming query, and two that are refused."""
    builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    spark = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1").remote("local[2]").getOrCreate()
    prefix = target.lower()

    def write(frame: DataFrame, mode: str = "append", **options: str) -> None:
        frame.write.format("jetstream").options(servers=url, **options).mode(mode).save()

    table = spark.read.format("jetstream").options(servers=url, stream=source).load()
    write(table, subject=f"{prefix}.batch", stream=target)
    query = (
        spark.readStream.format("jetstream")
        .options(servers=url, stream=source)
        .load()
        .writeStream.format("jetstream")
        .options(servers=url, subject=f"{prefix}.stream", delivery="exactly-once")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    subject = F.when(F.col("id") == 1, "nowhere.x").otherwise(f"{prefix}.refused")
    bad = spark.range(0, 3, 1, 1).select(subject.alias("subject"), F.col("id").cast("string").alias("data"))
    result = {
        "session": type(spark).__module__,
        "rows": sum(each.numInputRows for each in query.recentProgress),
        "overwrite": said(lambda: write(table, "overwrite", subject=f"{prefix}.batch")),
        "refused": said(lambda: write(bad, maxRetries="1")),
    }
    spark.stop()
    return result


if __name__ == "__main__":
    found = main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
    Path(sys.argv[4], "result.json").write_text(json.dumps(found))
