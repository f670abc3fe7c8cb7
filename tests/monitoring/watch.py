"""Run two queries with a `JetStreamListener` on whichever Spark the environment holds; print what
it found as JSON.

    python watch.py (classic|connect) URL STREAM FOLDER COLLECTOR

The first query reads the stream in micro-batches of 15 messages, the second fails.
"""

from __future__ import annotations

import contextlib
import json
import logging.handlers
import re
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_jetstream.monitoring import JetStreamListener, OpenLineage, lag
from spark_jetstream.testing.process import poll

COUNT = 40


def scrape_when(listener: JetStreamListener, ready: Callable[[str], bool]) -> str:
    """Return the metrics that the HTTP server sends, as soon as they are `ready`.

    Events arrive a moment after what they report.
    """
    said = ""

    def check() -> str | None:
        nonlocal said
        with urllib.request.urlopen(
            f"http://127.0.0.1:{listener.port}/metrics", timeout=60
        ) as reply:
            said = reply.read().decode()
        return said if ready(said) else None

    return poll(check, 120, lambda: TimeoutError(f"not what was waited for:\n{said}"))


def last_heard(text: str) -> float:
    [seconds] = re.findall(
        r"^spark_jetstream_last_progress_timestamp_seconds{.*} (.+)$", text, re.MULTILINE
    )
    return float(seconds)


def lags_in(progress: Any) -> dict[str, Any]:
    return {name: asdict(each) for name, each in lag(progress).items()}


def main(mode: str, url: str, stream: str, folder: str, collector: str) -> dict[str, Any]:
    log, handler = (
        logging.getLogger("spark_jetstream.monitoring"),
        logging.handlers.BufferingHandler(1000),
    )
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    builder = (
        SparkSession.builder.config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.streaming.noDataProgressEventInterval", "500")  # milliseconds
    )
    spark = (
        builder.remote("local[2]") if mode == "connect" else builder.master("local[2]")
    ).getOrCreate()
    listener = JetStreamListener(port=0, openlineage=OpenLineage(collector, servers=url))
    spark.streams.addListener(listener)

    def start(name: str, stream: str) -> Any:
        options = {"servers": url, "stream": stream, "maxMessagesPerTrigger": "15"}
        writer = spark.readStream.format("jetstream").options(**options).load().writeStream
        return (
            writer.format("noop")
            .queryName(name)
            .option("checkpointLocation", f"{folder}/{name}")
            .start()
        )

    try:
        query = start("orders", stream)
        early = lags_in(query.lastProgress)
        all_read = (
            f'spark_jetstream_rows_read_total{{query="orders",query_id="{query.id}"}} {COUNT}'
        )
        running = scrape_when(listener, lambda text: all_read in text)
        last = query.lastProgress
        result = {
            "spark": spark.version,
            "early": early,
            "id": str(query.id),
            "run": str(query.runId),
            "offset": type(last["sources"][0]["endOffset"]).__name__,
            "json_offset": type(json.loads(last.json)["sources"][0]["endOffset"]).__name__,
            "lags": [
                lags_in(progress) for progress in query.recentProgress if progress.numInputRows
            ],
            "from_text": lags_in(last.json),
            "running": running,
            "idle": scrape_when(listener, lambda text: last_heard(text) > last_heard(running)),
        }
        query.stop()
        result["stopped"] = scrape_when(
            listener, lambda text: 'query_up{query="orders"' not in text
        )
        with contextlib.suppress(PySparkException):
            start("broken", "NOWHERE").awaitTermination()
        result["failed"] = scrape_when(
            listener, lambda text: 'failures_total{query="broken"} 1' in text
        )
        return result | {
            "log": [f"{record.levelname} {record.getMessage()}" for record in handler.buffer]
        }
    finally:
        # Over Spark Connect a thread waits for events as long as there is a listener, and Python
        # for the thread.
        spark.streams.removeListener(listener)
        listener.close()
        spark.stop()


if __name__ == "__main__":
    result = main(*sys.argv[1:])
    print("RESULT " + json.dumps(result))
