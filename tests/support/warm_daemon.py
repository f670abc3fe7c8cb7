"""Spark's daemon for Python workers, with what they need imported before it forks them.

A job that is killed again and again, or whose workers are, spends most of its time on these imports
otherwise. Named by `spark.python.daemon.module`.
"""

from __future__ import annotations

import pyspark.sql.worker.plan_data_source_read  # each import is for the workers
import pyspark.sql.worker.write_into_data_source  # noqa: F401
from pyspark import daemon

import spark_jetstream.sink.writer
import spark_jetstream.source.reader  # noqa: F401

if __name__ == "__main__":
    daemon.manager()
