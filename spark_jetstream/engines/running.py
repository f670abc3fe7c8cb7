"""Which engine this process belongs to."""

from __future__ import annotations

import sys

from spark_jetstream.engines.engine import Engine
from spark_jetstream.engines.sail import Sail
from spark_jetstream.engines.spark import Spark

SPARK = Spark()
SAIL = Sail()


def running_engine() -> Engine:
    """Return the engine that calls the data source in this process."""
    # Sail calls it in the process that has loaded Sail's native module. Spark calls it in Python
    # workers of its own, which import only what a query needs.
    return SAIL if "pysail._native" in sys.modules else SPARK
