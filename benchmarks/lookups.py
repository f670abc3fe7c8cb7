"""`python -m benchmarks.lookups`: a batch whose rows name some keys of a large bucket, by a lookup
and by joins with the bucket's table; and the whole table.

Server and Spark share the machine. A round measures all ways one after the other. The memory of a
way is measured before, in Python workers of its own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.environment import prepare_spark
from benchmarks.processes import (
    PeakMemory,
    cpu_seconds,
    peak_megabytes,
    resident_megabytes,
    spark_jvm,
)
from benchmarks.tables import Table, write
from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.testing import NatsServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BUCKET = "BENCH"
KEYS = 1_000_000
WANTED = 1_000
VALUE_BYTES = 200
_WARM_UP = 2  # rounds that do not count


WAYS = ("lookup", "leader", "table", "join, table sent", "join, rows sent")


def fill(spark: SparkSession, url: str, keys: int, value_bytes: int) -> None:
    """Make the bucket, with one revision of each of the keys 0, 1, ..."""
    from pyspark.sql import functions as F  # noqa: PLC0415  # after the environment is set

    with JetStreamAdmin(servers=url) as admin:
        admin.kv.create(BUCKET, history=1)
    rows = spark.range(keys).select(
        F.col("id").cast("string").alias("key"),
        F.rpad(F.col("id").cast("string"), value_bytes, ".").alias("value"),
    )
    (rows.write.format("jetstream").options(servers=url, bucket=BUCKET).mode("append").save())


def frames(spark: SparkSession, url: str, keys: int, wanted: int) -> Mapping[str, DataFrame]:
    """The same rows by each way: keys that are spread over the bucket, with their values.

    The way ``table`` is the whole bucket.
    """
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
        "table": table,
        "join, table sent": rows.join(F.broadcast(table), "key", "left"),
        "join, rows sent": table.join(F.broadcast(rows), "key"),
    }


def memory(server: NatsServer, arguments: argparse.Namespace) -> None:
    """Print the memory that each way needs, and check how many values it finds.

    Each way has a session of its own, so that no worker has memory of another way.
    """
    from benchmarks import source  # noqa: PLC0415  # Spark reads the environment when it is imported

    table = Table(
        "lookup_memory",
        f"{arguments.wanted:,} keys of a bucket with {arguments.keys:,}, values of "
        f"{arguments.value_bytes} B; MB: the most that a Python worker held, the server after it, "
        "and the most that the server held",
        way="s",
        worker=".0f",
        server=".0f",
        most=".0f",
    )
    for name in arguments.ways:
        with source.session() as spark, PeakMemory(spark_jvm()) as peak:
            frame = frames(spark, server.url, arguments.keys, arguments.wanted)[name]
            found = frame.where("value IS NOT NULL AND revision IS NOT NULL").count()
        expected = arguments.keys if name == "table" else arguments.wanted
        if found != expected:
            raise RuntimeError(f"{name} found {found} of {expected} keys")
        of_server = (resident_megabytes(server.pid), peak_megabytes(server.pid))
        table.add(name, peak.megabytes, *of_server)


def compare(spark: SparkSession, server: NatsServer, arguments: argparse.Namespace) -> None:
    """Print the seconds of each way, and the server's CPU."""
    chosen = frames(spark, server.url, arguments.keys, arguments.wanted)
    table = Table(
        "lookups",
        f"{arguments.wanted:,} keys of a bucket with {arguments.keys:,}, values of "
        f"{arguments.value_bytes} B; seconds, and seconds of CPU in the server",
        way="s",
        seconds=".3f",
        server=".3f",
    )
    for number in range(1 - _WARM_UP, arguments.rounds + 1):
        for name in arguments.ways:
            seconds, cpu = _timed(server, _run(chosen[name]))
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
    parser.add_argument(
        "--value-bytes",
        type=int,
        default=VALUE_BYTES,
        help=f"of each value (default {VALUE_BYTES})",
    )
    parser.add_argument(
        "--ways", nargs="+", choices=WAYS, default=WAYS, help="to compare (default all)"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="that count (default 5); 0 measures memory alone"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the tables to this file"
    )
    arguments = parser.parse_args()
    prepare_spark()
    from benchmarks import source  # noqa: PLC0415  # Spark reads the environment when it is imported

    with NatsServer() as server:
        with source.session() as spark:
            fill(spark, server.url, arguments.keys, arguments.value_bytes)
        memory(server, arguments)
        if arguments.rounds:
            with source.session() as spark:
                compare(spark, server, arguments)
    if arguments.json is not None:
        write(arguments.json)


if __name__ == "__main__":
    main()
