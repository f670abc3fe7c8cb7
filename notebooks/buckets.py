# Databricks notebook source
# MAGIC %md
# MAGIC # Buckets: tables, change data, and files
# MAGIC
# MAGIC JetStream has two kinds of buckets. Each is a stream with conventions of its own:
# MAGIC
# MAGIC - A **Key-Value bucket** has a value for each key. To Spark it is a table, a history, or a feed of changes.
# MAGIC - An **Object Store bucket** has files of any size under names. To Spark it is like a folder.
# MAGIC
# MAGIC The notebook takes a minute or two. The guides are `docs/buckets.md` and `docs/objects.md` in the project.

# COMMAND ----------

# MAGIC %md
# MAGIC ## 1. Set-up
# MAGIC
# MAGIC This cell starts a server and a small Spark session; the last cell stops them. On Databricks it uses the session
# MAGIC of the notebook. There, and for a server of your own, first set `os.environ["NATS_URL"]` and
# MAGIC `os.environ["WORK_DIR"]`. `notebooks/quickstart.ipynb` explains both, and says how to install the package.

# COMMAND ----------

"""A server, a Spark session, and names of this run's own."""

import os
import sys
import tempfile
import uuid
import warnings

from pyspark.sql import SparkSession

import spark_jetstream
from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.java import ensure_java
from spark_jetstream.testing import NatsServer

nats_url = os.environ.get("NATS_URL")
server = None if nats_url else NatsServer().start()
nats_url = nats_url or server.url
admin = JetStreamAdmin(servers=nats_url)
run = uuid.uuid4().hex[
    :4
]  # in the names of this run's streams and files, so that runs do not disturb each other
work_dir = f"{os.environ.get('WORK_DIR') or 'file:' + tempfile.gettempdir()}/spark-jetstream-{run}"
folder = work_dir.removeprefix("file:")
os.makedirs(folder)

own_spark = "spark" not in globals()
if own_spark:
    os.environ["JAVA_HOME"] = ensure_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
    stderr = os.dup(2)
    with open(
        f"{folder}/spark.log", "w"
    ) as spark_log:  # Spark's log goes there, not below the cells
        os.dup2(spark_log.fileno(), 2)
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    os.dup2(stderr, 2)
    os.close(stderr)
else:
    spark_jetstream.register(spark)
print("run", run, "on Spark", spark.version)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 2. A Key-Value bucket as a table
# MAGIC
# MAGIC The bucket has the prices of some products, and keeps five revisions of each key. Spark fills it: each row puts
# MAGIC the value of a key.

# COMMAND ----------

from pyspark.sql import functions as F

bucket = f"prices_{run}"
admin.kv.create(bucket, history=5)
prices = {"servers": nats_url, "bucket": bucket}


def put(*rows):
    """Put (key, price) into the bucket."""
    (
        spark.createDataFrame(list(rows), "key string, price double")
        .select("key", F.format_string("%.2f", "price").alias("value"))
        .coalesce(1)
        .write.format("jetstream")
        .options(**prices)
        .mode("append")
        .save()
    )


put(("fruit.apple", 1.2), ("fruit.pear", 1.5), ("bread.rye", 3.8), ("bread.toast", 2.1))

# Single keys are written by JetStreamAdmin, or by any client of NATS.
client = admin.kv.bucket(bucket)
print(client.get("fruit.pear").text)
client.put("fruit.apple", "1.30")
client.put("fruit.apple", "1.35")
client.delete("bread.toast")

# COMMAND ----------

# MAGIC %md
# MAGIC A batch has one row for each key that exists, with its latest value. Option `keys` filters on the server.

# COMMAND ----------

price = F.col("value").cast("string").cast("double").alias("price")
table = spark.read.format("jetstream").options(**prices).load()
table.select("key", price, "revision", "operation").orderBy("key").show()
current = {row["key"]: row["price"] for row in table.select("key", price).collect()}
assert current == {"fruit.apple": 1.35, "fruit.pear": 1.5, "bread.rye": 3.8}

fruit = spark.read.format("jetstream").options(**prices, keys="fruit.*").load()
print(fruit.count(), "kinds of fruit")
assert fruit.count() == 2

# COMMAND ----------

# MAGIC %md
# MAGIC This table is small and always current, so it suits lookups from a stream. This join looks up the prices of the
# MAGIC products that were sold.

# COMMAND ----------

sold = spark.createDataFrame(
    [("fruit.apple", 10), ("bread.rye", 2), ("fruit.apple", 5)], "key string, pieces int"
)
turnover = (
    sold.join(table.select("key", price), "key")
    .groupBy("key")
    .agg(F.round(F.sum(F.col("pieces") * F.col("price")), 2).alias("turnover"))
    .orderBy("key")
)
turnover.show()
assert {row["key"]: row["turnover"] for row in turnover.collect()} == {
    "bread.rye": 7.6,
    "fruit.apple": 20.25,
}

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. Its history
# MAGIC
# MAGIC With `history=true` a batch has a row for each revision that the bucket still has, deletions included.

# COMMAND ----------

revisions = (
    spark.read.format("jetstream")
    .options(**prices, history="true")
    .load()
    .select("key", price, "revision", "operation")
)
revisions.orderBy("revision").show()
assert revisions.where("key = 'fruit.apple'").count() == 3
assert [row["key"] for row in revisions.where("operation = 'DELETE'").collect()] == ["bread.toast"]

# COMMAND ----------

# MAGIC %md
# MAGIC ## 4. Change data
# MAGIC
# MAGIC `readStream` gives the same rows as a feed: first the revisions that the bucket has, then each new one. The
# MAGIC query below keeps a table of files equal to the bucket. If a micro-batch has several changes of one key, only
# MAGIC the last one counts: a `PUT` inserts or updates, every other operation deletes. Each micro-batch writes the
# MAGIC table anew, from the table before it. So a micro-batch that Spark runs again writes the same files. With Delta
# MAGIC Lake a `MERGE` does this.

# COMMAND ----------

from pyspark.sql import Window


def latest(rows):
    """The row of each key with the highest revision."""
    newest = Window.partitionBy("key").orderBy(F.desc("revision"))
    return rows.withColumn("place", F.row_number().over(newest)).where("place = 1").drop("place")


def merge(changes, batch_id):
    merged = latest(changes)
    if batch_id:
        before = changes.sparkSession.read.parquet(f"{work_dir}/prices/{batch_id - 1}")
        merged = latest(before.unionByName(merged))
    merged.where("operation = 'PUT'").write.mode("overwrite").parquet(
        f"{work_dir}/prices/{batch_id}"
    )


def follow():
    """Merge what has changed since the last time; return the table, and the number of changes."""
    query = (
        spark.readStream.format("jetstream")
        .options(**prices)
        .load()
        .select("key", price, "revision", "operation")
        .writeStream.foreachBatch(merge)
        .option("checkpointLocation", f"{work_dir}/prices-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    changes = sum(progress["numInputRows"] for progress in query.recentProgress)
    return spark.read.parquet(f"{work_dir}/prices/{query.lastProgress['batchId']}"), changes


merged, changes = follow()
print(changes, "changes")
merged.orderBy("key").show()
assert {row["key"]: row["price"] for row in merged.collect()} == current

# COMMAND ----------

# MAGIC %md
# MAGIC Some prices change. The next run gets only these changes.

# COMMAND ----------

put(("fruit.pear", 1.45), ("fruit.plum", 2.9), ("bread.toast", 2.2), ("fruit.pear", 1.4))
client.purge("bread.rye")
merged, changes = follow()
print(changes, "changes")
merged.orderBy("key").show()
in_bucket = {entry.key: float(entry.text) for entry in client.entries()}
assert {row["key"]: row["price"] for row in merged.collect()} == in_bucket

# COMMAND ----------

# MAGIC %md
# MAGIC ## 5. An Object Store bucket as a folder
# MAGIC
# MAGIC Spark stores files there, one for each row. `JetStreamAdmin` stores a file of any size, in chunks.

# COMMAND ----------

files_bucket = f"FILES_{run}"
admin.objects.create(files_bucket)
files = {"servers": nats_url, "objectBucket": files_bucket}

reports = [
    ("reports/january.csv", "product,pieces\napple,10\npear,4\n"),
    ("reports/february.csv", "product,pieces\napple,7\nplum,12\n"),
]
spark.createDataFrame(reports, "name string, content string").write.format("jetstream").options(
    **files
).mode("append").save()
info = admin.objects.bucket(files_bucket).put("images/noise.bin", os.urandom(1_000_000))
print(info.name, info.size, "bytes in", info.chunks, "chunks")

# COMMAND ----------

# MAGIC %md
# MAGIC A batch has a row for each object. With `contentOff` it is a listing, and no content crosses the network.

# COMMAND ----------

listing = spark.read.format("jetstream").options(**files, contentOff="true").load()
listing.select("name", "size", "chunks", "modified").orderBy("name").show(truncate=30)
assert {row["name"]: row["size"] for row in listing.collect()}["images/noise.bin"] == 1_000_000

# COMMAND ----------

# MAGIC %md
# MAGIC `pathGlobFilter` selects names. The reader checks size and digest of each content before it returns the row.

# COMMAND ----------

import csv

contents = spark.read.format("jetstream").options(**files, pathGlobFilter="reports/*.csv").load()
pieces = {}
for row in contents.select("name", F.col("content").cast("string").alias("text")).collect():
    for line in csv.DictReader(row["text"].splitlines()):
        pieces[line["product"]] = pieces.get(line["product"], 0) + int(line["pieces"])
print(pieces)
assert pieces == {"apple": 17, "pear": 4, "plum": 12}

# COMMAND ----------

# MAGIC %md
# MAGIC ## 6. Clean up
# MAGIC
# MAGIC Streams stay until you delete them. This cell deletes them and the files, and stops the server and the Spark
# MAGIC session if this notebook has started them.

# COMMAND ----------

import shutil

admin.kv.delete(bucket)
admin.objects.delete(files_bucket)
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
# MAGIC - `docs/buckets.md` in the project: tables while others write, losses, `MERGE` with Delta Lake
# MAGIC - `docs/objects.md`: streaming queries over objects, links, leftovers of a killed writer
# MAGIC - `docs/writing.md`: deletions, expected revisions and expiry when Spark writes a Key-Value bucket
# MAGIC - `docs/admin-buckets.md`: buckets from Python and on the command line
