"""What the doctor runs in other processes.

As a script it prints the versions of a Python and of its libraries as JSON. A Python of Spark's
workers may lack all of them, so this module imports the standard library alone. With the argument
``row`` it reads one row by a local Spark.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
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
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the Python of a worker may lack it

    options = json.load(sys.stdin)
    builder = SparkSession.builder.master("local[1]").appName("spark-jetstream doctor")
    builder = builder.config("spark.ui.enabled", "false").config(
        "spark.ui.showConsoleProgress",
        "false",
    )
    session = builder.getOrCreate()
    try:
        frame = session.read.format("jetstream").options(**options).load()
        sys.stdout.write(f"\n{len(frame.limit(1).collect())}\n")
    finally:
        session.stop()


if __name__ == "__main__":
    if sys.argv[1:] == ["row"]:
        read_row()
    else:
        # Python puts the folder of a script first, unless told not to; for Spark's workers, the
        # working directory.
        if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
            sys.path[0] = os.getcwd()
        sys.stdout.write(json.dumps(look_around()) + "\n")
