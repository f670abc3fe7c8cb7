"""A Spark job of its own processes, which a test may kill, all or some: several streams into files, each by a query.

    python read_job.py '{"folder": ..., "options": {"<query>": {...}}, "format": ..., "trigger": ..., "conf": {...}}'

`options` are of the source, for each query. Rows go to `folder/rows/<query>` by Spark's own transactional file
sink, checkpoints are `folder/checkpoint/<query>`. A query that fails is started again, and why it failed is a line of
`folder/failures`. Once `folder/finish` exists, or queries with `availableNow` have ended, each query reads to the end
without limits, and `folder/result.json` has for each query the rows of its sink by the sink's own log, the sequences of
a batch read (not of a durable one, whose messages go), and the rows that each batch of the last run read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

_SECONDS = 0.2  # between two looks at the queries
_COLUMNS = "sequence bigint, subject string, data binary"
_TO_THE_END = {"availableNow": True}


def session(conf: dict[str, str]) -> SparkSession:
    """A session without user interface and with little to say."""
    builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def read(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """The rows of a stream."""
    return spark.readStream.format("jetstream").options(**options).load().select("sequence", "subject", "data")


def start(rows: DataFrame, folder: str, name: str, format: str, trigger: Mapping[str, Any]) -> StreamingQuery:
    """Start a query, or start it again."""
    writer = rows.writeStream.format(format).queryName(name).trigger(**trigger)
    return (
        writer.option("path", f"{folder}/rows/{name}")
        .option("checkpointLocation", f"{folder}/checkpoint/{name}")
        .start()
    )


def ended(query: StreamingQuery, seconds: float) -> str | None:
    """Wait for a query's end; why it failed, "" if it did not. None: it still runs."""
    try:
        return "" if query.awaitTermination(seconds) else None  # type: ignore[arg-type]  # Spark takes fractions
    except PySparkException as error:
        return str(error)


def note(folder: str, name: str, why: str) -> None:
    """Write down why a query failed."""
    with Path(folder, "failures").open("a") as file:
        file.write(json.dumps([name, why]) + "\n")


def run(
    folder: str, options: dict[str, dict[str, str]], format: str, trigger: dict[str, Any], conf: dict[str, str]
) -> None:
    """Run the queries, whatever happens to them, until the test has seen enough."""
    spark = session({"spark.sql.warehouse.dir": f"{folder}/warehouse", **conf})
    finish = Path(folder, "finish")
    # Not for each start: who runs the tasks may be killed at any time, and is needed for this.
    frames = {name: read(spark, given) for name, given in options.items()}
    queries = {name: start(rows, folder, name, format, trigger) for name, rows in frames.items()}
    running = set(queries)
    while running and not finish.exists():
        for name in sorted(running):
            why = ended(queries[name], _SECONDS)
            if why == "" and trigger == _TO_THE_END:
                running.remove(name)
            elif why is not None:
                note(folder, name, why)
                queries[name] = start(frames[name], folder, name, format, trigger)
    for name in running:
        queries[name].stop()
    result = {}
    for name, given in options.items():
        unlimited = {option: value for option, value in given.items() if not option.endswith("PerTrigger")}
        if name in running:
            rows = read(spark, unlimited)
            queries[name] = start(rows, folder, name, format, _TO_THE_END)
            while why := ended(queries[name], 600):
                note(folder, name, why)
                queries[name] = start(rows, folder, name, format, _TO_THE_END)
        # Read as a table of the sink: only the files in its log count.
        files = spark.read.schema(_COLUMNS).format(format).load(f"{folder}/rows/{name}")
        result[name] = {
            "rows": sorted([row["sequence"], row["subject"], bytes(row["data"]).decode()] for row in files.collect()),
            "ran": [progress["numInputRows"] for progress in queries[name].recentProgress],
        }
        if "durable" not in given:
            table = spark.read.format("jetstream").options(**unlimited).load()
            result[name]["batch"] = sorted(row["sequence"] for row in table.select("sequence").collect())
    spark.stop()
    Path(folder, "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    run(**json.loads(sys.argv[1]))
