"""The questions that the doctor answers in other processes.

As a script it prints the versions of a Python and of its libraries as JSON. A Python of Spark's
workers may lack all of them, so this module imports the standard library alone. With the argument
``row`` it reads one row by a local Spark, and with ``row Sail`` by Sail.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any

DISTRIBUTIONS = (
    "spark-jetstream",
    "pyspark",
    "pyarrow",
    "nats-py",
    "numpy",
    "pydantic",
    "pandas",
    "pyspark-client",
    "pysail",
    "nkeys",
    "aiohttp",
)


def look_around() -> dict[str, Any]:
    """Return the fields of `doctor.spark.Python` for the Python that runs this."""
    versions = {}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    try:
        module = importlib.import_module("pyspark_jetstream")
        if module.__dict__.get("error") is not None:
            raise module.error
        has_source = hasattr(module, "DefaultSource")
        problem = "" if has_source else "pyspark_jetstream has no DefaultSource"
    # The doctor reports anything that hinders an import.
    except Exception as error:  # noqa: BLE001
        problem = f"{type(error).__name__}: {error}"
    version = ".".join(map(str, sys.version_info[:3]))
    return {"version": version, "versions": versions, "import_error": problem}


def read_row() -> None:
    """Read options as JSON from stdin; write the number of rows as the last line of stdout."""
    options = json.load(sys.stdin)
    local = _local_sail() if sys.argv[2:] == ["Sail"] else _local_spark()
    with local as session:
        frame = session.read.format("jetstream").options(**options).load()
        sys.stdout.write(f"\n{len(frame.limit(1).collect())}\n")


@contextmanager
def _local_spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the Python of a worker may lack it

    builder = SparkSession.builder.master("local[1]").appName("spark-jetstream doctor")
    builder = builder.config("spark.ui.enabled", "false").config(
        "spark.ui.showConsoleProgress",
        "false",
    )
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def _local_sail() -> Iterator[Any]:
    sail = importlib.import_module("pysail.spark")
    from pyspark.sql import SparkSession  # noqa: PLC0415

    server = sail.SparkConnectServer("127.0.0.1", 0)
    server.start()
    # Until the server stops, its threads keep the process alive.
    try:
        host, port = server.listening_address
        session = SparkSession.builder.remote(f"sc://{host}:{port}").getOrCreate()
        yield session
        session.stop()
    finally:
        server.stop()


if __name__ == "__main__":
    if sys.argv[1:2] == ["row"]:
        read_row()
    else:
        # Python puts the folder of a script first, unless told not to; for Spark's workers, the
        # working directory.
        if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
            sys.path[0] = os.getcwd()
        sys.stdout.write(json.dumps(look_around()) + "\n")
