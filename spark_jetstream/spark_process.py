"""What the connector finds in the Spark process that it runs in, and does to it."""

from __future__ import annotations

import gc
import os

from pyspark import SparkFiles, TaskContext

_frozen = False


def find_file(path: str) -> str:
    """The place of a file on this node: as named, or as sent along with `--files` or `addArtifacts`."""
    if os.path.exists(path):
        return path
    name = os.path.basename(path)
    try:
        sent = SparkFiles.get(name)
    except (RuntimeError, AttributeError, AssertionError):  # outside a Spark process there are no such files
        return path
    # The driver of a streaming query is given a folder of its own, `streaming_job`, below the one with the files.
    above = os.path.join(os.path.dirname(os.path.dirname(sent)), name)
    return next((place for place in (sent, above) if os.path.exists(place)), path)


def freeze_imports() -> None:
    """Take what this worker has imported out of garbage collection. The first task calls it at its end.

    Spark's worker looks for garbage after each task (pyspark/daemon.py), among all objects of pyarrow, pandas and
    nats-py: a third of the CPU of a small task. Does nothing in later tasks, nor outside of a task.
    """
    global _frozen  # noqa: PLW0603  # the process has one heap
    if not _frozen and TaskContext.get() is not None:
        gc.collect()  # or what is garbage now would stay
        gc.freeze()
        _frozen = True
