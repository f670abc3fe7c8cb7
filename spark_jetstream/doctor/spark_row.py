"""Starts a local Spark and reads one row through the connector. Run in a process of its own by `spark.check_spark`."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main() -> None:
    """Options come on standard input, as JSON; how many rows there were goes to standard output, on the last line."""
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
