"""Makes ``format("jetstream")`` work after ``pip install`` alone.

At its first use of a Python data source, Spark (4.0 and later) imports the top-level modules whose names begin with
``pyspark_``, and registers the class ``DefaultSource`` of each.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec

__all__ = ["DefaultSource"]

#: Why the data source cannot be imported. It is raised when the format is used: Spark only logs what is raised in its
#: look-up, and then says that there is no such format.
error: ImportError | None = None

try:
    # Spark's worker imports from the working directory first. What stands there must not run in place of the package.
    spec = find_spec("spark_jetstream")
    if spec is not None and spec.origin is not None and os.path.isfile(spec.origin):
        place = (spec.submodule_search_locations or [spec.origin])[0]
        if not os.path.isdir(os.path.join(place, "source")):
            raise ImportError(
                f"{place} hides the installed package spark_jetstream: give it another name"
            )
    from spark_jetstream.datasource import JetStreamDataSource as DefaultSource
except ImportError as problem:
    from pyspark.sql.datasource import DataSource

    error = problem

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """Stands for the data source, and says why there is none."""

        def __init__(self, options: Mapping[str, str]) -> None:
            assert error is not None
            raise error

        @classmethod
        def name(cls) -> str:
            """Return the name that `format` is called with."""
            return "jetstream"
