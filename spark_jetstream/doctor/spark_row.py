"""Starts a local Spark and reads one row through the connector. `spark.check_spark` runs it in another process."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main() -> None:
    """Read options as JSON from standard input, and write the number of rows as the last line of standard output."""
    options = json.load(sys.stdin)
    builder = SparkSession.builder.master("local[1]").appName("spark-jetstream doctor")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    session = builder.getOrCreate()
    try:
        frame = session.read.format("jetstream").options(**options).load()
        sys.stdout.write(f"\n{len(frame.limit(1).collect())}\n")
    finally:
        session.stop()


if __name__ == "__main__":
    main()
