# Databricks notebook source
# MAGIC %md
# MAGIC # NATS JetStream from Spark: quick start
# MAGIC
# MAGIC This notebook creates a stream, reads it with Spark in a batch and in a streaming query, plots it, and writes
# MAGIC results back. The notebook takes a minute or two.
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
# MAGIC **To install**, from a clone of the project: `pip install '.[notebook,spark]'`, and a Jupyter of your choice.
# MAGIC Without Java 17 or newer: `pip install '.[java,notebook,spark]'`. On Databricks, where Spark is installed, leave
# MAGIC `spark` out: install `.[notebook]` as a library of the cluster, or with `%pip`.

# COMMAND ----------

# MAGIC %md
# MAGIC ## 1. Set-up
# MAGIC
# MAGIC The notebook has two settings. They are environment variables or, on Databricks, widgets:
# MAGIC
# MAGIC | setting | meaning | if empty |
# MAGIC |---|---|---|
# MAGIC | `NATS_URL` | a server with JetStream, `nats://nats.example.com` | the notebook starts and stops one |
# MAGIC | `WORK_DIR` | a folder for files and checkpoints | a temporary folder |
# MAGIC
# MAGIC The defaults are for Spark on one machine. A cluster needs both: a server that its workers can reach, and a
# MAGIC folder that all of them see. On Databricks that is a volume such as `/Volumes/main/default/quickstart`.

# COMMAND ----------

"""A server, and names of this run's own."""

NAME = "quickstart"

import os
import sys
import tempfile
import uuid
import warnings

from spark_jetstream.admin import JetStreamAdmin
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
admin = JetStreamAdmin(servers=nats_url)

# Every run has streams, subjects and files of its own, so that runs do not disturb each other.
run = uuid.uuid4().hex[:4]
# "file:", since a bare path may mean a place in the cluster's own storage.
work_dir = f"{setting('WORK_DIR') or 'file:' + tempfile.gettempdir()}/spark-jetstream-{NAME}-{run}"
folder = work_dir.removeprefix("file:")
os.makedirs(folder)
print("run", run, "on", "a server of its own" if server else "the server of NATS_URL")

# COMMAND ----------

# MAGIC %md
# MAGIC Databricks has a Spark session already; `register` makes `format("jetstream")` known to it. Elsewhere the
# MAGIC notebook starts a small session, which finds the installed package by itself. The log of that session goes to
# MAGIC the file `spark.log` in the folder of this run.

# COMMAND ----------

from pyspark.sql import SparkSession

import spark_jetstream
from spark_jetstream.java import ensure_java

own_spark = "spark" not in globals()
if not own_spark:
    spark_jetstream.register(spark)
else:
    os.environ["JAVA_HOME"] = ensure_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
    # Spark logs to the standard error that it inherits. Let that be a file, and not the space below the cells.
    stderr = os.dup(2)
    with open(f"{folder}/spark.log", "w") as spark_log:
        os.dup2(spark_log.fileno(), 2)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName(NAME)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    os.dup2(stderr, 2)
    os.close(stderr)
print("Spark", spark.version)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 2. Create a stream
# MAGIC
# MAGIC `JetStreamAdmin` creates streams and reads their state. It needs no other tool, and no `await`.

# COMMAND ----------

orders_stream = f"ORDERS_{run}"
orders_subject = f"orders.{run}"
info = admin.streams.create(orders_stream, subjects=[f"{orders_subject}.>"])
print(info.config.name, "captures", *info.config.subjects)

# COMMAND ----------

# MAGIC %md
# MAGIC Spark publishes 6,000 made-up orders of the last hour. The subject names the country and the channel of an
# MAGIC order, the payload is JSON. A row with the columns `subject` and `data` becomes a message. The write is complete
# MAGIC when the server has acknowledged every row.
# MAGIC
# MAGIC The server stores the orders within seconds. So the column `timestamp`, the time at which the server stored an
# MAGIC order, is not the time of the order. The payload has that time, as `placed_at`.

# COMMAND ----------

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
        order = {
            "id": number,
            "placed_at": placed_at.isoformat(),
            "amount": chance.randrange(500, 30_000) / 100,
        }
        yield f"{orders_subject}.{country}.{chance.choice(['web', 'app'])}", json.dumps(order)


def publish(orders):
    (
        spark.createDataFrame(list(orders), "subject string, data string")
        .coalesce(1)  # one task writes them in this order
        .write.format("jetstream")
        .option("servers", nats_url)
        .option("stream", orders_stream)
        .mode("append")
        .save()
    )


publish(make_orders(ORDERS))
state = admin.streams.load(orders_stream).state
print(f"{state.messages} messages, sequences {state.first_seq} to {state.last_seq}")
assert state.messages == ORDERS

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. Read it
# MAGIC
# MAGIC ### As a batch
# MAGIC
# MAGIC `spark.read` reads what the stream holds when the frame is first used; the next `load()` sees newer messages.
# MAGIC `startingOffsets`, `endingOffsets`, `startingTimestamp` and `endingTimestamp` select a part.

# COMMAND ----------

from pyspark.sql import functions as F

messages = (
    spark.read.format("jetstream")
    .option("servers", nats_url)
    .option("stream", orders_stream)
    .load()
)
messages.printSchema()
(
    messages.withColumn("data", F.col("data").cast("string"))  # bytes until here
    .drop("stream", "headers")
    .orderBy("sequence")
    .show(5)
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
# MAGIC ### As a streaming query
# MAGIC
# MAGIC `readStream` takes the same options. This query parses the orders and copies them to Parquet files. It keeps the
# MAGIC sequence of the next message in its checkpoint.
# MAGIC
# MAGIC `availableNow` reads what the stream holds and ends, which suits scheduled jobs and notebooks. Without it the
# MAGIC query reads every new message until you stop it. `maxMessagesPerTrigger` limits a micro-batch.

# COMMAND ----------

ORDER = "id long, placed_at timestamp, amount double"


def read_orders(**options):
    """The orders as a streaming DataFrame, with a column for each of their fields."""
    return (
        spark.readStream.format("jetstream")
        .options(servers=nats_url, stream=orders_stream, **options)
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
    """Append the messages published since the last run to the files; return the query, which has ended."""
    query = (
        read_orders(maxMessagesPerTrigger=2000)
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{work_dir}/copy-checkpoint")
        .trigger(availableNow=True)
        .start(f"{work_dir}/orders")
    )
    query.awaitTermination()
    return query


query = copy_new_orders()
first = sum(progress["numInputRows"] for progress in query.recentProgress)
print(first, "orders copied")
assert first == ORDERS

# COMMAND ----------

# MAGIC %md
# MAGIC `lag` computes how far the query was behind the stream, from the progress that Spark keeps of each micro-batch.
# MAGIC It sends no request to the server. Before Spark 4.2 `messages` is None, because Spark does not report the end of
# MAGIC the stream.

# COMMAND ----------

from spark_jetstream.monitoring import lag

for progress in query.recentProgress:
    print(f"batch {progress['batchId']}: {lag(progress)[orders_stream].messages} messages behind")

behind = lag(query.lastProgress)[orders_stream]
print(f"at the end {behind.messages} messages and {behind.seconds} seconds behind")
assert not behind.messages

# COMMAND ----------

# MAGIC %md
# MAGIC Publish 500 more orders, and run the query again. It continues where it ended.

# COMMAND ----------

publish(make_orders(500, first_id=ORDERS + 1))
second = sum(progress["numInputRows"] for progress in copy_new_orders().recentProgress)
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
per_minute.show(6)

# COMMAND ----------

# MAGIC %md
# MAGIC ... and as a plot.

# COMMAND ----------

import base64
import io

import matplotlib.dates as mdates
import matplotlib.pyplot as plt
from IPython import display

counted = {(row["minute"], row["country"]): row["orders"] for row in per_minute.collect()}
minutes = sorted({minute for minute, _ in counted})

figure, axes = plt.subplots(figsize=(9, 3.5))
axes.stackplot(
    minutes,
    [[counted.get((minute, country), 0) for minute in minutes] for country in COUNTRIES],
    labels=list(COUNTRIES),
)
axes.set_title(f"{sum(counted.values())} orders by the minute in which they were placed")
axes.set_xlabel("minute")
axes.set_ylabel("orders per minute")
axes.set_ylim(bottom=0)
axes.xaxis.set_major_formatter(mdates.DateFormatter("%H:%M"))
axes.margins(x=0)
axes.legend(title="country", loc="upper left", bbox_to_anchor=(1, 1))


def show(figure, alt):
    """Show a figure with a text for readers who do not see it."""
    image = io.BytesIO()
    figure.savefig(image, format="png", bbox_inches="tight")
    plt.close(figure)
    data = base64.b64encode(image.getvalue()).decode()
    display.display(display.HTML(f'<img alt="{alt}" src="data:image/png;base64,{data}">'))


show(
    figure,
    "Orders per minute over an hour, stacked by country. Most are from DE. The busiest minutes are those after a "
    "quarter of the hour and those at its end.",
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 5. Write results back
# MAGIC
# MAGIC A second stream stores the results. Column `data` of a row is the payload, `subject` is its subject, and
# MAGIC `headers` is optional.

# COMMAND ----------

results_stream = f"RESULTS_{run}"
results_subject = f"results.{run}"
info = admin.streams.create(results_stream, subjects=[f"{results_subject}.>"])
print(info.config.name, "captures", *info.config.subjects)

# COMMAND ----------

# MAGIC %md
# MAGIC ### Write a batch
# MAGIC
# MAGIC The rows are the counts of each minute, with one subject for each country. Option `stream` names the stream that
# MAGIC must store the rows: if another stream captures a subject, or none does, the write fails.
# MAGIC
# MAGIC The stream does not store a row again if it has seen its `msg_id` within its duplicate window (two minutes by
# MAGIC default). So you can repeat this write. The sink logs one line for each write; the second line says
# MAGIC `180 of 180 rows stored, 180 were stored already`.

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
    stored = admin.streams.load(results_stream).state.messages
    print(stored, "messages in", results_stream)
    assert stored == len(counted)

# COMMAND ----------

# MAGIC %md
# MAGIC ### Write from a streaming query
# MAGIC
# MAGIC This query reads the stream of orders and counts the orders of each ten minutes, by the time at which they were
# MAGIC placed. The watermark says how late an order may come. When it has passed the end of a window, the window is
# MAGIC complete, and the query stores it once, as one message. The last windows stay in the checkpoint until later
# MAGIC orders come.
# MAGIC
# MAGIC Option `delivery` says what happens to rows that Spark sends twice, because a task failed or the query was
# MAGIC restarted:
# MAGIC
# MAGIC | `delivery` | |
# MAGIC |---|---|
# MAGIC | `at-least-once` | may be stored twice |
# MAGIC | `deduplicated`, the default | stored once, if they are sent again within the stream's duplicate window |
# MAGIC | `exactly-once` | stored once, however long the query was down |

# COMMAND ----------

windows = (
    read_orders()
    .withWatermark("placed_at", "5 minutes")
    .groupBy(F.window("placed_at", "10 minutes"), "country")
    .agg(F.count("*").alias("orders"))
    .select(
        F.to_json(F.struct("window.start", "orders")).alias("data"),
        F.concat(F.lit(f"{results_subject}.windows."), "country").alias("subject"),
    )
)
query = (
    windows.writeStream.format("jetstream")
    .option("servers", nats_url)
    .option("stream", results_stream)
    .option("delivery", "deduplicated")
    .option("checkpointLocation", f"{work_dir}/windows-checkpoint")
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
        .select(
            F.element_at(F.split("subject", r"\."), -1).alias("country"),
            F.col("headers")["Content-Type"][0].alias("content_type"),
            "result.*",
        )
    )


minutes_back = read_results("minutes", "minute timestamp, orders long, amount double")
minutes_back.show(3)
stored = {(row["minute"], row["country"]): row["orders"] for row in minutes_back.collect()}
assert stored == counted
assert sum(stored.values()) == ORDERS + 500

windows_back = read_results("windows", "start timestamp, orders long").drop("content_type")
windows_back.orderBy("start", "country").show(6)
in_files = orders.groupBy(
    F.window("placed_at", "10 minutes")["start"].alias("start"), "country"
).count()
expected = {(row["start"], row["country"]): row["count"] for row in in_files.collect()}
complete = {(row["start"], row["country"]): row["orders"] for row in windows_back.collect()}
print(len(complete), "windows of", len(expected), "are complete")
assert complete
assert complete.items() <= expected.items()

# COMMAND ----------

# MAGIC %md
# MAGIC ## 6. Clean up
# MAGIC
# MAGIC Streams stay until you delete them. This cell deletes them and the files, and stops the server and the Spark
# MAGIC session if this notebook has started them.

# COMMAND ----------

import shutil

admin.streams.delete(orders_stream)
admin.streams.delete(results_stream)
assert not [name for name in admin.streams.names() if name.endswith(f"_{run}")]
if own_spark:
    spark.stop()
shutil.rmtree(folder)
admin.close()
if server:
    server.close()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Next
# MAGIC
# MAGIC - `notebooks/exactly_once.ipynb`: messages stored after a failure, and the error of a query whose messages are
# MAGIC   gone
# MAGIC - `notebooks/buckets.ipynb`: Key-Value buckets as tables and change feeds, Object Store buckets as files
# MAGIC - `notebooks/monitoring.ipynb`: lag, log lines and Prometheus metrics
# MAGIC - `docs/reading.md` in the project: positions, several streams, limits
# MAGIC - `docs/writing.md`: columns, delivery, rows that the server refuses
# MAGIC - `docs/options.md`: every option
