"""Read a stream through a Spark Connect server.

The server and its executors need spark-jetstream too. The client needs the extra connect, or
pyspark-client in place of pyspark. To start a server on this machine:

    export PYSPARK_PYTHON=$(which python) JAVA_HOME=$(python -m spark_jetstream.java)
    spark-submit --master 'local[2]' --class org.apache.spark.sql.connect.service.SparkConnectServer spark-internal

To read stream ORDERS through it:

    python read_orders.py sc://127.0.0.1:15002 nats://127.0.0.1:4222 ORDERS
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main() -> None:
    remote, servers, stream = sys.argv[1:]
    spark = SparkSession.builder.remote(remote).getOrCreate()
    orders = (
        spark.read.format("jetstream").option("servers", servers).option("stream", stream).load()
    )
    orders.groupBy("subject").count().orderBy("subject").show(truncate=False)
    spark.stop()


if __name__ == "__main__":
    main()
