"""NATS JetStream for Apache Spark: `spark.readStream.format("jetstream")`, `df.writeStream.format("jetstream")`.

Where this package is installed, Spark 4 finds the format by itself (through the module `pyspark_jetstream`);
`register(spark)` makes it known by hand, over Spark Connect and on Databricks too.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

__all__ = ["__version__", "register"]


def register(spark: Any) -> None:
    """Register `format("jetstream")` with a `SparkSession`, classic or Spark Connect, unless Spark knows it already."""
    from spark_jetstream.datasource import JetStreamDataSource  # noqa: PLC0415  # this package works without pyspark

    try:
        spark.dataSource.register(JetStreamDataSource)
    except Exception as error:
        # Spark 4.0 does not register again what it has found by itself, and says so with an error of the JVM.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
