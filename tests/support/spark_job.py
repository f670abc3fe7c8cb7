"""A Spark job of its own processes, which a test may kill, all or some: several queries, each with its own stream.

    python spark_job.py (read|write) '{"folder": ..., "options": {"<query>": {...}}, "format": ..., ...}'

`options` are of the source or the sink, for each query; the other fields are arguments of `run_reads` and `run_writes`.
Checkpoints are `folder/checkpoint/<query>`.
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
    return spark.readStream.format("jetstream").options(**options).load().select("sequence", "subject", "data")


def start(rows: DataFrame, folder: str, name: str, format: str, trigger: Mapping[str, Any]) -> StreamingQuery:
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
    with Path(folder, "failures").open("a") as file:
        file.write(json.dumps([name, why]) + "\n")


def run_reads(
    folder: str, options: dict[str, dict[str, str]], format: str, trigger: dict[str, Any], conf: dict[str, str]
) -> None:
    """Read streams into files, whatever happens to the queries, until the test has seen enough.

    Rows go to `folder/rows/<query>` by Spark's own transactional file sink. A query that fails is started again, and
    why it failed is a line of `folder/failures`. Once `folder/finish` exists, or queries with `availableNow` have
    ended, each query reads to the end without limits, and `folder/result.json` has for each query the rows of its sink
    by the sink's own log, the sequences of a batch read (not of a durable one, whose messages go), and the rows that
    each batch of the last run read.
    """
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


def run_writes(
    folder: str, options: dict[str, dict[str, str]], format: str, trigger: dict[str, Any], conf: dict[str, str]
) -> None:
    """Write the same rows into several streams until a query fails.

    `format` is ``<rows of a micro-batch>/<partitions>``. A row is a number, from 0 upwards: micro-batch b holds those
    from b * rows on.
    """
    spark = session({"spark.sql.warehouse.dir": f"{folder}/warehouse", **conf})
    count, _, partitions = format.partition("/")
    for name, given in options.items():
        rate = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=count, numPartitions=partitions)
        rows = rate.load().selectExpr("cast(value as string) as data")
        query = rows.writeStream.format("jetstream").options(**given).queryName(name).trigger(**trigger)
        query.option("checkpointLocation", f"{folder}/checkpoint/{name}").start()
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    {"read": run_reads, "write": run_writes}[sys.argv[1]](**json.loads(sys.argv[2]))
