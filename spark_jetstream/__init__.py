"""NATS JetStream for Apache Spark: `spark.readStream.format("jetstream")`, `df.writeStream.format("jetstream")`.

Where this package is installed, Spark 4 finds the format by itself (through the module
`pyspark_jetstream`), also over Spark Connect if the server has it. `register(spark)` makes it known
by hand, as on Databricks.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_jetstream.decoding.decode import decode
    from spark_jetstream.decoding.encode import encode
    from spark_jetstream.decoding.registry import SchemaRegistry
    from spark_jetstream.lookups.lookup import lookup
    from spark_jetstream.sql import attach, schema_of

__version__ = "0.1.0"

__all__ = [
    "SchemaRegistry",
    "__version__",
    "attach",
    "decode",
    "encode",
    "lookup",
    "register",
    "schema_of",
]


#: Packages that are imported here or by these, as a script of a user may be called -> a folder in
#: it, where one may be, too.
_PACKAGES = {
    "nats": "aio",
    **dict.fromkeys(("numpy", "pyarrow", "pydantic", "aiohttp", "pandas", "pyspark"), ""),
}


def _refuse_hidden_packages() -> None:
    """Raise `ImportError` where Python would run a user's own ``nats.py``, say, from the working directory.

    It often starts Spark, whose worker would import it again, and so on. Nothing is imported to
    find out.
    """
    for name, folder in _PACKAGES.items():
        # `find_spec` of a package runs nothing of it. The packages that are imported already are
        # left out.
        spec = None if name in sys.modules else find_spec(name)
        # A package in an archive has no file of its own, and a folder without __init__.py no
        # origin: neither hides anything.
        if spec is not None and spec.origin is not None and os.path.isfile(spec.origin):
            place = (spec.submodule_search_locations or [spec.origin])[0]
            if not os.path.isdir(os.path.join(place, folder)):
                raise ImportError(
                    f"{place} hides the package {name}, which spark-jetstream needs: give it "
                    "another name"
                )


# Before anything else is imported: Spark's worker looks into the working directory first, and would
# run a script nats.py that starts Spark, whose worker would run it again.
_refuse_hidden_packages()


def __getattr__(name: str) -> Any:
    # All but the last need pyspark, without which the rest of this package works.
    if name in ("attach", "schema_of"):
        from spark_jetstream import sql  # noqa: PLC0415

        return getattr(sql, name)
    if name == "decode":
        from spark_jetstream.decoding.decode import decode  # noqa: PLC0415

        return decode
    if name == "encode":
        from spark_jetstream.decoding.encode import encode  # noqa: PLC0415

        return encode
    if name == "SchemaRegistry":
        from spark_jetstream.decoding.registry import SchemaRegistry  # noqa: PLC0415

        return SchemaRegistry
    if name == "lookup":
        from spark_jetstream.lookups.lookup import lookup  # noqa: PLC0415

        return lookup
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(spark: Any) -> None:
    """Register `format("jetstream")` with a `SparkSession`, classic or Spark Connect, unless Spark knows it already.

    Raises `ImportError` if this Spark is from before 4.0 and has no Python data sources. Raises
    `WorkerPythonError` if Spark's workers run a Python that cannot use this package. Only a classic
    session tells which Python that is; if it is another than this one, a worker tries it, which
    takes a second or two.
    """
    # This package works without pyspark.
    from spark_jetstream.spark_process import refuse_spark_3  # noqa: PLC0415

    refuse_spark_3()
    from spark_jetstream.datasource import JetStreamDataSource  # noqa: PLC0415

    try:
        spark.dataSource.register(JetStreamDataSource)
    except Exception as error:
        # Spark 4.0 does not register again a format that it has found by itself. It says so with an
        # error of the JVM.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
    # Over Spark Connect a session has no SparkContext: reading the attribute raises an
    # AttributeError there.
    python = getattr(getattr(spark, "sparkContext", None), "pythonExec", None)
    # With the same Python the workers have this package.
    if python is not None and shutil.which(python) != sys.executable:
        _try_in_a_worker(spark, python)


def _try_in_a_worker(spark: Any, python: str) -> None:
    from spark_jetstream.errors import WorkerPythonError  # noqa: PLC0415

    try:
        # `load` asks the data source for its schema, in a worker and without a connection.
        spark.read.format("jetstream").option("stream", "S").load()
    except Exception as error:
        # The text has the traces of the JVM and of the worker. The last line that names an error is
        # the cause.
        reasons = re.findall(
            r"^(?:Caused by: )?((?:\w+\.)*\w*(?:Error|Exception)\b.*)", str(error), re.MULTILINE
        )
        reason = reasons[-1] if reasons else type(error).__name__
        raise WorkerPythonError(
            f"Spark's workers run {python}, which cannot use spark-jetstream ({reason}): set the "
            f"environment variable PYSPARK_PYTHON to {sys.executable} before the Spark session "
            "starts"
        ) from error
