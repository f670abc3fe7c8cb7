"""`python -m benchmarks.lookups`: a batch whose rows name some keys of a large bucket, by a lookup
and by joins with the bucket's table.

Server and Spark share the machine. A round measures all ways one after the other.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.processes import cpu_seconds
from benchmarks.tables import Table, write
from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.java import ensure_java
from spark_jetstream.testing import NatsServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BUCKET = "BENCH"
KEYS = 1_000_000
WANTED = 1_000
VALUE_BYTES = 200
_WARM_UP = 2  # rounds that do not count


def fill(spark: SparkSession, url: str, keys: int) -> None:
    """Make the bucket, with one revision of each of the keys 0, 1, ..."""
    from pyspark.sql import functions as F  # noqa: PLC0415  # after the environment is set

    with JetStreamAdmin(servers=url) as admin:
        admin.kv.create(BUCKET, history=1)
    rows = spark.range(keys).select(
        F.col("id").cast("string").alias("key"),
        F.rpad(F.col("id").cast("string"), VALUE_BYTES, ".").alias("value"),
    )
    (rows.write.format("jetstream").options(servers=url, bucket=BUCKET).mode("append").save())


def ways(spark: SparkSession, url: str, keys: int, wanted: int) -> Mapping[str, DataFrame]:
    """The same rows by each way: keys that are spread over the bucket, with their values."""
    from pyspark.sql import functions as F  # noqa: PLC0415  # after the environment is set

    from spark_jetstream.lookups.lookup import lookup  # noqa: PLC0415  # after the environment is set

    step = keys // wanted
    rows = spark.range(wanted).select((F.col("id") * step).cast("string").alias("key"))
    bucket = {"servers": url, "bucket": BUCKET}
    table = spark.read.format("jetstream").options(**bucket).load()
    table = table.select("key", "value", "revision")
    return {
        "lookup": lookup(rows, BUCKET, "key", servers=url),
        "leader": lookup(rows, BUCKET, "key", leader=True, servers=url),
        "join, table sent": rows.join(F.broadcast(table), "key", "left"),
        "join, rows sent": table.join(F.broadcast(rows), "key"),
    }


def compare(spark: SparkSession, server: NatsServer, keys: int, wanted: int, rounds: int) -> None:
    """Print the seconds of each way, and the server's CPU."""
    fill(spark, server.url, keys)
    frames = ways(spark, server.url, keys, wanted)
    for name, frame in frames.items():
        found = frame.where("value IS NOT NULL AND revision IS NOT NULL").count()
        if found != wanted:
            raise RuntimeError(f"{name} found {found} of {wanted} keys")
    table = Table(
        "lookups",
        f"{wanted:,} keys of a bucket with {keys:,}, values of {VALUE_BYTES} B; seconds, and "
        "seconds of CPU in the server",
        way="s",
        seconds=".3f",
        server=".3f",
    )
    for number in range(1 - _WARM_UP, rounds + 1):
        for name, frame in frames.items():
            seconds, cpu = _timed(server, _run(frame))
            table.add(name, seconds, cpu, counted=number > 0)
    table.summarize(by="way")


def _run(frame: DataFrame) -> Callable[[], Any]:
    return lambda: frame.write.format("noop").mode("overwrite").save()


def _timed(server: NatsServer, work: Callable[[], Any]) -> tuple[float, float]:
    cpu = cpu_seconds(server.pid)
    began = time.perf_counter()
    work()
    return time.perf_counter() - began, cpu_seconds(server.pid) - cpu


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lookups", description=__doc__)
    parser.add_argument("--keys", type=int, default=KEYS, help=f"of the bucket (default {KEYS:,})")
    parser.add_argument(
        "--wanted", type=int, default=WANTED, help=f"keys of the batch (default {WANTED:,})"
    )
    parser.add_argument("--rounds", type=int, default=5, help="that count (default 5)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the table to this file"
    )
    arguments = parser.parse_args()
    os.environ["JAVA_HOME"] = ensure_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from benchmarks import source  # noqa: PLC0415  # Spark reads the environment when it is imported

    with NatsServer() as server, source.session() as spark:
        compare(spark, server, arguments.keys, arguments.wanted, arguments.rounds)
    if arguments.json is not None:
        write(arguments.json)


if __name__ == "__main__":
    main()
