# Databricks notebook source
# MAGIC %md
# MAGIC # Failures: what is stored, and what is reported
# MAGIC
# MAGIC This notebook breaks things on purpose:
# MAGIC
# MAGIC - a write that fails in the middle and runs again, with each level of the option `delivery`
# MAGIC - a query whose driver is killed after a micro-batch is stored, and before Spark has recorded that
# MAGIC - messages that are removed before a query has read them
# MAGIC
# MAGIC The notebook takes a minute or two. `docs/delivery.md` and `docs/data-loss.md` in the project have the rules.

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
# MAGIC ## 2. A write that fails in the middle
# MAGIC
# MAGIC Spark writes a thousand orders to a stream that takes at most 1,000 bytes in a message. The order in the middle
# MAGIC is larger, so the job fails there. By then the stream holds the orders before it and some after it. Then the
# MAGIC notebook makes this order smaller, and runs the whole job again. Option `writeId` stays the same: it says that
# MAGIC both runs are the same write.

# COMMAND ----------

import json
import time

ROWS, LARGE = 1000, 500


def make_orders(large):
    """A thousand orders, of which one has a note of 2,000 characters, or none."""
    for number in range(1, ROWS + 1):
        yield (json.dumps({"id": number, "note": "x" * 2000 if large and number == LARGE else ""}),)


def write(stream, delivery, *, large):
    # `writeId` becomes a part of the message ids; `at-least-once` gives none.
    name = {} if delivery == "at-least-once" else {"writeId": f"{stream}-orders"}
    (
        spark.createDataFrame(list(make_orders(large)), "data string")
        .coalesce(1)  # one task writes them in this order
        .write.format("jetstream")
        .options(
            servers=nats_url, stream=stream, subject=f"failures.{stream}", delivery=delivery, **name
        )
        .option(
            "maxInFlight", 100
        )  # of a thousand rows the default would send all before the first answer
        .mode("append")
        .save()
    )


def error_of(work):
    """Do work that must fail; return the one line of the error's long text that says what happened."""
    try:
        work()
    except Exception as error:
        return next(line for line in str(error).splitlines() if "spark_jetstream.errors." in line)
    raise AssertionError("it did not fail")


def fail_and_repeat(delivery, window, pause):
    """Return what is stored after the failure and after the repetition, and how many different orders these are."""
    stream = f"{delivery.upper()}_{window}_{run}"
    admin.streams.create(
        stream, subjects=[f"failures.{stream}"], max_msg_size=1000, duplicate_window=window
    )
    print(error_of(lambda: write(stream, delivery, large=True)))
    first = admin.streams.load(stream).state.messages
    time.sleep(pause)
    write(stream, delivery, large=False)
    messages = list(admin.messages.read(stream))
    admin.streams.delete(stream)
    return first, len(messages), len({json.loads(message.data)["id"] for message in messages})


# COMMAND ----------

# MAGIC %md
# MAGIC `at-least-once` stores orders again that were stored before the failure. `deduplicated` gives each message an id
# MAGIC made of the write, the partition and the content. The server does not store a second message with the same id
# MAGIC within the stream's duplicate window, two minutes here.

# COMMAND ----------

outcomes = {
    ("at-least-once", "within the window"): fail_and_repeat("at-least-once", "2m", pause=0),
    ("deduplicated", "within the window"): fail_and_repeat("deduplicated", "2m", pause=0),
}

# COMMAND ----------

# MAGIC %md
# MAGIC Real failures last longer than that. Here the duplicate window is 100 milliseconds, and the job runs again after
# MAGIC a second. `exactly-once` does not depend on the duplicate window. Its ledger, the Key-Value bucket
# MAGIC `spark_jetstream_ledger`, records where in the stream the first attempt began. The second attempt looks up what
# MAGIC the first has stored.

# COMMAND ----------

outcomes |= {
    ("deduplicated", "after the window"): fail_and_repeat("deduplicated", "100ms", pause=1),
    ("exactly-once", "after the window"): fail_and_repeat("exactly-once", "100ms", pause=1),
}

# COMMAND ----------

# MAGIC %md
# MAGIC The table shows how many messages the stream holds after the first attempt and at the end, and how many
# MAGIC different orders these are:

# COMMAND ----------

columns = "delivery string, repeated string, first int, in_the_end int, different int"
rows = [(*case, *stored) for case, stored in outcomes.items()]
spark.createDataFrame(rows, columns).show(truncate=False)

for (delivery, repeated), (first, total, different) in outcomes.items():
    once = delivery == "exactly-once" or (delivery, repeated) == (
        "deduplicated",
        "within the window",
    )
    assert 0 < first < ROWS
    assert different == ROWS
    assert total == (ROWS if once else ROWS + first)

# COMMAND ----------

# MAGIC %md
# MAGIC No level loses an order. All but `at-least-once` need the same rows in the same partitions when a job runs
# MAGIC again.
# MAGIC
# MAGIC ## 3. A driver that is killed
# MAGIC
# MAGIC A streaming query needs no `writeId`: its id and the number of the micro-batch are in its checkpoint. The query
# MAGIC below copies a stream to another one.

# COMMAND ----------

source, copy = f"SOURCE_{run}", f"COPY_{run}"
for stream in (source, copy):
    admin.streams.create(stream, subjects=[f"failures.{stream}"], duplicate_window="100ms")
write(source, "deduplicated", large=False)


def copy_stream():
    query = (
        spark.readStream.format("jetstream")
        .options(servers=nats_url, stream=source)
        .load()
        .select("data")
        .writeStream.format("jetstream")
        .options(servers=nats_url, stream=copy, subject=f"failures.{copy}", delivery="exactly-once")
        .option("checkpointLocation", f"{work_dir}/copy-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


copy_stream()
assert admin.streams.load(copy).state.messages == ROWS

# COMMAND ----------

# MAGIC %md
# MAGIC Spark records a finished micro-batch in a file of the folder `commits` of the checkpoint. A driver that is
# MAGIC killed after the last acknowledgement and before this record leaves a checkpoint without the file. This cell
# MAGIC removes the file and starts the query again. The query writes micro-batch 0 a second time, and nothing is stored
# MAGIC twice.

# COMMAND ----------

from pathlib import Path

for note in (Path(folder) / "copy-checkpoint" / "commits").glob("*0*"):
    note.unlink()

query = copy_stream()
stored = admin.streams.load(copy).state.messages
written = sum(progress["numInputRows"] for progress in query.recentProgress)
print(f"{written} rows written again, {stored} messages in the stream")
assert (written, stored) == (ROWS, ROWS)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 4. Messages that are gone
# MAGIC
# MAGIC A stream with a limit removes its oldest messages, whether or not a query has read them. A purge does the same.
# MAGIC Here a query has read 1,000 messages. Then 100 more are published, and a purge leaves only the last 40.

# COMMAND ----------


def read_ids(**options):
    """Read what is new; return the ids."""
    ids = []
    query = (
        spark.readStream.format("jetstream")
        .options(servers=nats_url, stream=source, **options)
        .load()
        .selectExpr("get_json_object(CAST(data AS STRING), '$.id') AS id")
        .writeStream.foreachBatch(
            lambda batch, _: ids.extend(int(row["id"]) for row in batch.collect())
        )
        .option("checkpointLocation", f"{work_dir}/read-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return ids


print(len(read_ids()), "messages read")
for number in range(ROWS + 1, ROWS + 101):
    admin.publish(f"failures.{source}", json.dumps({"id": number}))
print(admin.streams.purge(source, sequence=ROWS + 61), "messages purged")

# COMMAND ----------

# MAGIC %md
# MAGIC The query does not skip the missing messages silently. It fails, and the error names their sequences.

# COMMAND ----------

loss = error_of(read_ids)
print(loss)
assert f"messages {ROWS + 1} to {ROWS + 60} of stream {source}" in loss

# COMMAND ----------

# MAGIC %md
# MAGIC The position in the checkpoint has not changed. You can read the messages from elsewhere, such as a mirror, or
# MAGIC continue without them. With `failOnDataLoss=false` the query continues, and logs the sentence of the error as a
# MAGIC warning.

# COMMAND ----------

ids = read_ids(failOnDataLoss="false")
print(len(ids), "messages read, from", ids[0], "to", ids[-1])
assert ids == list(range(ROWS + 61, ROWS + 101))

# COMMAND ----------

# MAGIC %md
# MAGIC ## 5. Clean up
# MAGIC
# MAGIC Streams stay until you delete them. This cell deletes them and the files, and stops the server and the Spark
# MAGIC session if this notebook has started them.

# COMMAND ----------

import shutil

admin.streams.delete(source)
admin.streams.delete(copy)
assert not [name for name in admin.streams.names() if name.endswith(f"_{run}")]
if own_spark:
    spark.stop()
shutil.rmtree(folder)
admin.close()
if server:
    server.close()

# COMMAND ----------

# MAGIC %md
# MAGIC On a server of your own the bucket `spark_jetstream_ledger` stays, because other queries may need it. Its
# MAGIC entries of this run do no harm.
# MAGIC
# MAGIC ## Next
# MAGIC
# MAGIC - `docs/delivery.md` in the project: what each level stores after which failure, and what it needs
# MAGIC - `docs/data-loss.md`: what each sentence means, and what to do
# MAGIC - `docs/runbook.md`: outages, and other errors
