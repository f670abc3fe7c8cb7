"""What makes ``format("jetstream")`` work after ``pip install`` alone.

Spark (4.0 and later) looks, at its first use of a Python data source, for top-level modules whose name begins
with ``pyspark_`` and registers the class that each of them calls ``DefaultSource``.
"""

from __future__ import annotations

from spark_jetstream.datasource import JetStreamDataSource as DefaultSource

__all__ = ["DefaultSource"]
