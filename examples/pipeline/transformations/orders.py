"""Orders from a stream into a table, totals by subject, and the large orders into another stream."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()
servers = spark.conf.get("orders.servers")

dp.create_sink("large_orders", "jetstream", {"servers": servers, "stream": "LARGE"})


@dp.table
def orders() -> DataFrame:
    """Every message of stream ORDERS, once, decoded."""
    order = F.from_json(F.col("data").cast("string"), "id bigint, amount double")
    messages = (
        spark.readStream.format("jetstream")
        .option("servers", servers)
        .option("stream", "ORDERS")
        .load()
    )
    return (
        messages.select("subject", "sequence", "timestamp", order.alias("order"))
        .select("*", "order.*")
        .drop("order")
    )


@dp.materialized_view
def totals() -> DataFrame:
    """The sum of the amounts of each subject."""
    return spark.read.table("orders").groupBy("subject").agg(F.sum("amount").alias("amount"))


@dp.append_flow(target="large_orders")
def large_orders() -> DataFrame:
    """Orders of 100 and more, as messages of stream LARGE."""
    large = spark.readStream.table("orders").where("amount >= 100")
    return large.select(
        F.concat(F.lit("large."), "subject").alias("subject"),
        F.to_json(F.struct("id", "amount")).alias("data"),
    )
