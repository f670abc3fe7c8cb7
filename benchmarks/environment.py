"""The environment of a Spark that a benchmark starts."""

from __future__ import annotations

import os
import sys

from spark_jetstream.java import ensure_java


def prepare_spark() -> None:
    """Let Spark find a Java, and workers with this Python. Call it before pyspark is imported."""
    os.environ["JAVA_HOME"] = ensure_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
