# Databricks notebook source
# MAGIC %md
# MAGIC Copies the stream ORDERS into a table. The credentials are in the secret scope `nats`.

# COMMAND ----------

"""Copies the stream ORDERS into a table."""

import spark_jetstream

spark_jetstream.register(spark)

orders = (
    spark.readStream.format("jetstream")
    .option("servers", dbutils.widgets.get("servers"))
    .option("credentialsSecret", dbutils.secrets.get("nats", "creds"))
    .option("stream", "ORDERS")
    .option("maxMessagesPerTrigger", 100_000)
    .load()
)
(
    orders.selectExpr("subject", "sequence", "timestamp", "CAST(data AS STRING) AS body")
    .writeStream.queryName("copy-orders")
    .option("checkpointLocation", dbutils.widgets.get("checkpoint"))
    .trigger(processingTime="10 seconds")
    .toTable("main.default.orders")
)
