"""NATS JetStream for Apache Spark: `spark.readStream.format("jetstream")`, `df.writeStream.format("jetstream")`.

Where this package is installed, Spark 4 finds the format by itself (through the module `pyspark_jetstream`);
`register(spark)` makes it known by hand, over Spark Connect and on Databricks too.
"""

from __future__ import annotations

import re
import shutil
import sys
from typing import Any

__version__ = "0.1.0"

__all__ = ["__version__", "register"]


def register(spark: Any) -> None:
    """Register `format("jetstream")` with a `SparkSession`, classic or Spark Connect, unless Spark knows it already.

    Raises `WorkerPythonError` if Spark's workers run a Python that cannot use this package. Only a classic session
    tells which Python that is; if it is another than this one, a worker tries it, which takes a second or two.
    """
    from spark_jetstream.datasource import JetStreamDataSource  # noqa: PLC0415  # this package works without pyspark

    try:
        spark.dataSource.register(JetStreamDataSource)
    except Exception as error:
        # Spark 4.0 does not register again what it has found by itself, and says so with an error of the JVM.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
    # Over Spark Connect a session has no SparkContext: reading the attribute raises an AttributeError there.
    python = getattr(getattr(spark, "sparkContext", None), "pythonExec", None)
    if python is not None and shutil.which(python) != sys.executable:
        _try_in_a_worker(spark, python)


def _try_in_a_worker(spark: Any, python: str) -> None:
    from spark_jetstream.errors import WorkerPythonError  # noqa: PLC0415

    try:
        # `load` asks the data source for its schema, in a worker and without a connection.
        spark.read.format("jetstream").option("stream", "S").load()
    except Exception as error:
        reasons = re.findall(r"^(?:Caused by: )?((?:\w+\.)*\w*(?:Error|Exception)\b.*)", str(error), re.MULTILINE)
        reason = reasons[-1] if reasons else type(error).__name__
        raise WorkerPythonError(
            f"Spark's workers run {python}, which cannot use spark-jetstream ({reason}): set the environment variable "
            f"PYSPARK_PYTHON to {sys.executable} before the Spark session starts"
        ) from error
