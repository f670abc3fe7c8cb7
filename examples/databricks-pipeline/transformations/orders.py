"""Orders from a stream into a table, and the large orders into another stream."""

from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_jetstream

spark = SparkSession.active()
spark_jetstream.register(spark)
login = {
    "servers": spark.conf.get("orders.servers"),
    # The content: executors need not read the volume. Spark Connect returns no value under a name
    # that holds "credential".
    "credentialsSecret": Path(spark.conf.get("orders.creds")).read_text(encoding="utf-8"),
}

dp.create_sink("large_orders", "jetstream", {**login, "stream": "LARGE"})


@dp.table
def orders() -> DataFrame:
    """Every message of stream ORDERS, once, decoded."""
    order = F.from_json(F.col("data").cast("string"), "id bigint, amount double")
    messages = spark.readStream.format("jetstream").options(**login).option("stream", "ORDERS")
    return (
        messages.load()
        .select("subject", "sequence", "timestamp", order.alias("order"))
        .select("*", "order.*")
        .drop("order")
    )


@dp.append_flow(target="large_orders")
def large_orders() -> DataFrame:
    """Orders of 100 and more, as messages of stream LARGE."""
    large = spark.readStream.table("orders").where("amount >= 100")
    return large.select(
        F.concat(F.lit("large."), "subject").alias("subject"),
        F.to_json(F.struct("id", "amount")).alias("data"),
    )
