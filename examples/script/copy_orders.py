"""Copy a stream into Parquet files until SIGTERM or Ctrl-C.

With --once it copies the messages that the stream holds, and ends. The exit code is 0, also after
a signal, and 1 if the query failed.

    python copy_orders.py --servers nats://127.0.0.1:4222 --stream ORDERS --to /tmp/orders --once
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading

from pyspark.sql import SparkSession


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--servers", default="nats://127.0.0.1:4222")
    parser.add_argument("--stream", required=True)
    parser.add_argument("--to", required=True, help="folder; its checkpoint is beside it")
    parser.add_argument("--credentials", help="a .creds file, at the same path on every node")
    parser.add_argument(
        "--once", action="store_true", help="end when everything that is there has been copied"
    )
    arguments = parser.parse_args()

    # Spark's workers must run the Python that has spark-jetstream. A cluster sets this itself.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName("copy-orders").getOrCreate()
    ended = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: ended.set())

    login = {"credentialsFile": arguments.credentials} if arguments.credentials else {}
    messages = (
        spark.readStream.format("jetstream")
        .options(**login)
        .option("servers", arguments.servers)
        .option("stream", arguments.stream)
        .option("maxMessagesPerTrigger", 100_000)
        .load()
    )
    writer = (
        messages.selectExpr("subject", "sequence", "timestamp", "CAST(data AS STRING) AS body")
        .writeStream.queryName("copy-orders")
        .format("parquet")
        .option("checkpointLocation", f"{arguments.to}-checkpoint")
    )
    trigger = {"availableNow": True} if arguments.once else {"processingTime": "5 seconds"}
    query = writer.trigger(**trigger).start(arguments.to)

    # A query that is killed loses nothing: the next run repeats its last micro-batch. This only
    # ends it tidily.
    while not ended.is_set() and not query.awaitTermination(1):
        pass
    if ended.is_set():
        spark.sparkContext.setLogLevel("OFF")  # or Spark prints where it interrupted a micro-batch
        query.stop()
        print("stopped; the next run continues after the last micro-batch")
    else:
        # After a signal Spark stops when this process is gone: tasks of the micro-batch may still
        # be ending, and a task that ends while Spark stops makes PySpark print a traceback.
        spark.stop()


if __name__ == "__main__":
    main()
