"""A Spark job of its own process, which a test may kill: a stream into files, with a checkpoint.

    python stream_job.py '{"folder": ..., "options": {...}, "format": "parquet", "trigger": {...}, "conf": {...}}'

`options` are those of the source. Rows go to `folder/rows` by Spark's own transactional file sink, the checkpoint is
`folder/checkpoint`. When the query has ended by itself (`availableNow`), `folder/result.json` tells what the files of
the sink hold, by its own log of them, and what a batch read finds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def session(conf: dict[str, str]) -> SparkSession:
    """A session without user interface and with little to say."""
    builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def run(folder: str, options: dict[str, str], format: str, trigger: dict[str, Any], conf: dict[str, str]) -> None:
    """Run the query to its end."""
    spark = session({"spark.sql.warehouse.dir": f"{folder}/warehouse", **conf})
    rows = spark.readStream.format("jetstream").options(**options).load().select("sequence", "subject", "data")
    query = (
        rows.writeStream.format(format)
        .queryName("job")
        .option("path", f"{folder}/rows")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(**trigger)
        .start()
    )
    query.awaitTermination()
    # Read as a table of the sink: only the files in its log count.
    files = spark.read.schema("sequence bigint, subject string, data binary").format(format).load(f"{folder}/rows")
    both = {name: value for name, value in options.items() if not name.endswith("PerTrigger")}
    table = spark.read.format("jetstream").options(**both).load()
    result = {
        "rows": sorted([row["sequence"], row["subject"], bytes(row["data"]).decode()] for row in files.collect()),
        "batch": sorted(row["sequence"] for row in table.select("sequence").collect()),
        "ran": [progress["numInputRows"] for progress in query.recentProgress],
    }
    spark.stop()
    Path(folder, "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    run(**json.loads(sys.argv[1]))
