"""Copy the messages that a stream stored since the last run into a table, and end.

The exit code is 1 if the query failed. `databricks.yml` has the arguments.
"""

from __future__ import annotations

import argparse

from databricks.sdk.runtime import dbutils
from pyspark.sql import SparkSession

import spark_jetstream


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--secret", required=True, help="SCOPE/KEY of the content of a .creds file")
    parser.add_argument("--stream", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--checkpoint", required=True)
    arguments = parser.parse_args()

    spark = SparkSession.builder.getOrCreate()
    spark_jetstream.register(spark)
    scope, key = arguments.secret.split("/")
    orders = (
        spark.readStream.format("jetstream")
        .option("servers", arguments.servers)
        .option("credentialsSecret", dbutils.secrets.get(scope, key))
        .option("stream", arguments.stream)
        .load()
    )
    # No maxMessagesPerTrigger: Spark before 4.2 would end after one limited micro-batch.
    query = (
        orders.selectExpr("subject", "sequence", "timestamp", "CAST(data AS STRING) AS body")
        .writeStream.queryName("copy-orders")
        .option("checkpointLocation", arguments.checkpoint)
        .trigger(availableNow=True)
        .toTable(arguments.table)
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
