# Databricks notebook source
# MAGIC %md
# MAGIC # Monitoring: how far behind is the query?
# MAGIC
# MAGIC A streaming query falls behind if publishers send more messages than it reads. This notebook watches a query
# MAGIC while it catches up: with `lag`, with a listener that logs, with metrics for Prometheus, and in a plot.
# MAGIC
# MAGIC All numbers come from the progress that Spark reports, on Spark 4.2 or newer. They cost no request to the
# MAGIC server. The notebook takes a minute or two. For the metrics also install the extra `prometheus`:
# MAGIC `pip install '.[notebook,prometheus,spark]'`. The guide is `docs/monitoring.md` in the project, with alerts.

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
# MAGIC ## 2. A stream, and a listener
# MAGIC
# MAGIC The stream holds 6,000 messages before the query starts.

# COMMAND ----------

MESSAGES = 6000
stream = f"EVENTS_{run}"
admin.streams.create(stream, subjects=[f"events.{run}"])


def publish(count):
    (
        spark.range(count, numPartitions=1)
        .selectExpr("CAST(id AS STRING) AS data")
        .write.format("jetstream")
        .options(servers=nats_url, stream=stream, subject=f"events.{run}")
        .mode("append")
        .save()
    )


publish(MESSAGES)
print(admin.streams.load(stream).state.messages, "messages")

# COMMAND ----------

# MAGIC %md
# MAGIC `JetStreamListener` reports every query of the session, without a change to the query. It logs to
# MAGIC `spark_jetstream.monitoring`; here these lines appear below the cells. With `port` it also serves metrics by
# MAGIC HTTP, from this Python process; port 0 takes a free one.

# COMMAND ----------

import logging

from spark_jetstream.monitoring import JetStreamListener, lag

log = logging.getLogger("spark_jetstream.monitoring")
log.addHandler(logging.StreamHandler(sys.stdout))
log.setLevel(logging.INFO)

listener = JetStreamListener(port=0, address="127.0.0.1")
spark.streams.addListener(listener)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. Lag
# MAGIC
# MAGIC The query reads 1,000 messages per micro-batch. It starts a micro-batch every two seconds, and runs until it is
# MAGIC stopped. `lag(query.lastProgress)` computes how many messages, and how many seconds, the query is behind.

# COMMAND ----------

import time

query = (
    spark.readStream.format("jetstream")
    .options(servers=nats_url, stream=stream, maxMessagesPerTrigger=1000)
    .load()
    .writeStream.format("noop")
    .queryName("events")
    .option("checkpointLocation", f"{work_dir}/checkpoint")
    .trigger(processingTime="2 seconds")
    .start()
)


def wait_for(done, seconds=120):
    """Wait until `done()` is true."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, (
            f"still waiting after {seconds} s: {query.exception() or query.lastProgress}"
        )
        time.sleep(0.2)


def behind():
    """How many messages the query is behind; None before its first micro-batch."""
    position = lag(query.lastProgress).get(stream)
    return position and position.messages


wait_for(lambda: behind() == 0)

# COMMAND ----------

# MAGIC %md
# MAGIC The query has caught up. Spark keeps the progress of the last hundred micro-batches, so `lag` can also show the
# MAGIC past.

# COMMAND ----------

history = [(progress["timestamp"], lag(progress)[stream]) for progress in query.recentProgress]
for timestamp, position in history[:6]:
    print(
        timestamp,
        f"next {position.next}, {position.messages} messages and {position.seconds:.3f} s behind",
    )
assert history[0][1].messages == MESSAGES - 1000

# COMMAND ----------

# MAGIC %md
# MAGIC `seconds` compares the times at which the server stored two messages: the last one that the query has read, and
# MAGIC the last one of the stream. Here the server stored all messages within a moment, so it is small.
# MAGIC
# MAGIC ## 4. Metrics
# MAGIC
# MAGIC Prometheus would fetch these lines: `lag` as gauges, rows as counters, and the time of the last progress.

# COMMAND ----------

import urllib.request


def metrics():
    """The metrics of the query, by name without prefix."""
    with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    values = [
        line.rsplit(" ", 1)
        for line in lines
        if line.startswith("spark_jetstream_") and 'query="events"' in line
    ]
    return {
        name.split("{")[0].removeprefix("spark_jetstream_"): float(value) for name, value in values
    }


# Spark tells its listeners a little after the query itself knows.
wait_for(lambda: metrics()["rows_read_total"] == MESSAGES)
for name, value in metrics().items():
    print(f"{name:35} {value:,.1f}")
assert metrics()["lag_messages"] == 0
assert metrics()["query_up"] == 1

# COMMAND ----------

# MAGIC %md
# MAGIC ## 5. Falling behind
# MAGIC
# MAGIC While the query runs, 5,000 more messages are published at once. The listener logs how the query catches up.

# COMMAND ----------

publish(5000)
wait_for(lambda: metrics()["rows_read_total"] == MESSAGES + 5000)
wait_for(lambda: behind() == 0)

# COMMAND ----------

import base64
import io
from datetime import datetime

import matplotlib.dates as mdates
import matplotlib.pyplot as plt
from IPython import display

history = [
    (progress["timestamp"], lag(progress)[stream].messages) for progress in query.recentProgress
]
times = [datetime.fromisoformat(timestamp.replace("Z", "+00:00")) for timestamp, _ in history]
lags = [messages for _, messages in history]

figure, axes = plt.subplots(figsize=(9, 3))
axes.step(times, lags, where="post", marker="o")
axes.set_title("Messages behind the stream, after each micro-batch")
axes.set_xlabel("start of the micro-batch (UTC)")
axes.set_ylabel("messages")
axes.set_ylim(bottom=0)
axes.xaxis.set_major_formatter(mdates.DateFormatter("%H:%M:%S"))
image = io.BytesIO()
figure.savefig(image, format="png", bbox_inches="tight")
plt.close(figure)
alt = "The lag falls in steps of 1,000 messages from 5,000 to 0, jumps up when more messages come, and falls to 0 again."
data = base64.b64encode(image.getvalue()).decode()
display.display(display.HTML(f'<img alt="{alt}" src="data:image/png;base64,{data}">'))

assert lags[0] == 5000
assert max(lags[lags.index(0) :]) > 0
assert lags[-1] == 0

# COMMAND ----------

# MAGIC %md
# MAGIC ## 6. A query that fails
# MAGIC
# MAGIC This cell deletes the stream while the query runs. The listener would log the whole error, which is long, so the
# MAGIC cell turns the log off. The metrics count the failure. `query_up` stays at 0 until a query of this name starts
# MAGIC again: set an alert on it.

# COMMAND ----------

log.setLevel(logging.CRITICAL)
admin.streams.delete(stream)
wait_for(lambda: metrics()["query_up"] == 0)
print(
    next(line for line in str(query.exception()).splitlines() if "spark_jetstream.errors." in line)
)
print({name: metrics()[name] for name in ("query_up", "query_failures_total")})
assert metrics()["query_failures_total"] == 1

# COMMAND ----------

# MAGIC %md
# MAGIC ## 7. Clean up
# MAGIC
# MAGIC Streams stay until you delete them. This cell deletes them and the files, and stops the server and the Spark
# MAGIC session if this notebook has started them.

# COMMAND ----------

import shutil

spark.streams.removeListener(listener)
listener.close()
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
# MAGIC - `docs/monitoring.md` in the project: each metric, rules for alerts, a dashboard for Grafana
# MAGIC - `docs/tuning.md`: limits per micro-batch, tasks, and what they cost
# MAGIC - `docs/progress.md`: option `durable`, which tells the query's position to the server and to
# MAGIC   `spark-jetstream lag`
