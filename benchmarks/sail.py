"""`python -m benchmarks.sail`: batch reads and a write on Sail beside Spark, on the same streams.

Each engine runs in a process of its own, with two threads. Spark has the packages of the
environment. Sail has those of `.spark` in front of them (`make compat-sparks` fetches `.spark`).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.load import fill
from benchmarks.tables import Table
from spark_jetstream import register
from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.testing import NatsServer
from tests.compat import test_sail
from tests.support.jobs import run_script
from tests.support.project import ROOT

MESSAGES = 1_000_000
SMALL = 1000
PARTITION = 125_000
THREADS = 2

#: The columns of the table: seconds, and rows a second.
SECONDS = ("start", "first read", "small read")
RATES = ("count", "all columns", "two columns", "write")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    run(given.messages, given.rounds)


def run(messages: int, rounds: int) -> None:
    """Print what each engine takes."""
    table = Table(
        "sail",
        f"start of a session, first read and median of 5 reads of {SMALL:,} messages, in seconds; "
        f"reads and a write of {messages:,} messages of 200 B, in rows a second, medians of "
        f"{rounds} rounds; {THREADS} threads",
        engine="s",
        **dict.fromkeys(SECONDS, ".2f"),
        **dict.fromkeys(RATES, ",.0f"),
    )
    environments = {
        "Spark": {"PYTHONPATH": str(ROOT)},
        "Sail": {"SAIL_EXECUTION__DEFAULT_PARALLELISM": str(THREADS), **test_sail.environment()},
    }
    with (
        NatsServer() as server,
        TemporaryDirectory() as folder,
        JetStreamAdmin(servers=server.url) as admin,
    ):
        fill(server.url, "BENCH", messages)
        fill(server.url, "SMALL", SMALL)
        for engine, environment in environments.items():
            admin.streams.create("WRITTEN", subjects=["written"])
            result = run_script(
                *("-m", "benchmarks.sail", "--engine", engine, server.url, messages, rounds),
                folder=Path(folder),
                **environment,
            )
            admin.streams.delete("WRITTEN")
            table.add(engine, *(result[name] for name in (*SECONDS, *RATES)))


# In the process of an engine


def measure(engine: str, url: str, messages: int, rounds: int) -> dict[str, float]:
    """Return the figures of an engine by the names of their columns."""
    begin = time.perf_counter()
    spark = spark_session() if engine == "Spark" else sail_session()
    register(spark)
    spark.range(1).count()
    result = {"start": time.perf_counter() - begin}

    def read(stream: str, schema: str | None = None) -> Any:
        reader = spark.read.format("jetstream").options(servers=url, stream=stream)
        reader = reader.option("maxMessagesPerPartition", PARTITION)
        return (reader if schema is None else reader.schema(schema)).load()

    def all_columns() -> None:
        most = [f"max({name})" for name in ("stream", "subject", "sequence", "timestamp")]
        read("BENCH").selectExpr(*most, "sum(length(data))").collect()

    def two_columns() -> None:
        rows = read("BENCH", "subject string, sequence bigint")
        rows.selectExpr("max(subject)", "max(sequence)").collect()

    def write() -> None:
        writer = read("BENCH", "data binary").repartition(THREADS).write.format("jetstream")
        writer = writer.options(servers=url, subject="written", delivery="at-least-once")
        writer.mode("append").save()

    def small_read() -> None:
        read("SMALL").collect()

    result["first read"] = timed(small_read)
    result["small read"] = median(timed(small_read) for _ in range(5))
    works: tuple[Callable[[], object], ...] = (
        lambda: read("BENCH").count(),
        all_columns,
        two_columns,
        write,
    )
    for name, work in zip(RATES, works, strict=True):
        work()
        result[name] = messages / median(timed(work) for _ in range(rounds))
    return result


def spark_session() -> SparkSession:
    builder = SparkSession.builder.master(f"local[{THREADS}]").config("spark.ui.enabled", "false")
    return builder.config("spark.sql.shuffle.partitions", THREADS).getOrCreate()


def sail_session() -> SparkSession:
    server = importlib.import_module("pysail.spark").SparkConnectServer("127.0.0.1", 0)
    server.start()
    host, port = server.listening_address
    session = SparkSession.builder.remote(f"sc://{host}:{port}").getOrCreate()
    session.server = server  # type: ignore[attr-defined]  # it lives as long as the session
    return session


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


if __name__ == "__main__":
    if sys.argv[1:2] == ["--engine"]:
        engine, url, messages, rounds = sys.argv[2:]
        print("RESULT " + json.dumps(measure(engine, url, int(messages), int(rounds))), flush=True)
        # The threads of Sail's server would keep the process alive.
        os._exit(0)
    main()
