"""Use the installed package as a newcomer does: a server, a stream, rows written, read, and written
back.

`tools/release_check.py` runs it in an environment that holds nothing but the package and what it
asks for.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_jetstream
from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.java import ensure_java
from spark_jetstream.testing import NatsServer

COUNT = 1000


def command(*arguments: str) -> str:
    """Run the installed command and return what it prints."""
    script = Path(sys.executable).with_name("spark-jetstream")
    return subprocess.run(
        [script, *arguments], stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def main() -> None:
    assert Path(spark_jetstream.__file__).is_relative_to(sys.prefix), spark_jetstream.__file__
    assert spark_jetstream.__version__ in command("--version")
    os.environ["JAVA_HOME"] = ensure_java()
    with NatsServer() as server, tempfile.TemporaryDirectory() as folder:
        for stream, subjects in (("ORDERS", "orders.>"), ("PICKED", "picked.>")):
            command("stream", "add", stream, "--subjects", subjects, "--server", server.url)
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .getOrCreate()
        )
        try:
            number = F.col("id").cast("string")
            orders = spark.range(COUNT).select(
                F.concat(F.lit("orders."), number).alias("subject"), number.alias("data")
            )
            # Spark finds the format by itself.
            orders.write.format("jetstream").options(servers=server.url, stream="ORDERS").mode(
                "append"
            ).save()
            query = (
                spark.readStream.format("jetstream")
                .options(servers=server.url, stream="ORDERS")
                .load()
                .where("CAST(data AS STRING) % 10 = 0")
                .selectExpr("data", "concat('picked.', subject) AS subject")
                .writeStream.format("jetstream")
                .options(
                    servers=server.url, stream="PICKED", checkpointLocation=f"{folder}/checkpoint"
                )
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        finally:
            spark.stop()
        with JetStreamAdmin(servers=server.url) as admin:
            stored = {message.subject: message.data for message in admin.messages.read("PICKED")}
    assert stored == {f"picked.orders.{i}": str(i).encode() for i in range(0, COUNT, 10)}, len(
        stored
    )


if __name__ == "__main__":
    main()
