"""Makes ``format("jetstream")`` work after ``pip install`` alone.

At its first use of a Python data source, Spark (4.0 and later) imports the top-level modules whose names begin with
``pyspark_``, and registers the class ``DefaultSource`` of each.
"""

from __future__ import annotations

from spark_jetstream.datasource import JetStreamDataSource as DefaultSource

__all__ = ["DefaultSource"]
