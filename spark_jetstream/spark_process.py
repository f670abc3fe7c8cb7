"""What the connector finds in the Spark process that it runs in, and does to it."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os

from pyspark import TaskContext

try:
    from pyspark import SparkFiles
except ImportError:  # pyspark-client, which runs no Spark process
    SparkFiles = None  # type: ignore[assignment,misc]

_frozen = False
_asked: set[str] = set()


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


def first_time(what: str) -> bool:
    """Whether no process of this Spark application has asked about `what` before, on this node.

    Spark's driver asks a Python worker to check and to commit a micro-batch, which is a new process after a pause: a
    file in the application's own folder, which Spark removes at its end, remembers what was said.
    """
    new = what not in _asked
    _asked.add(what)
    with contextlib.suppress(OSError, RuntimeError, AttributeError, AssertionError):  # outside a Spark process
        name = f"spark-jetstream-{hashlib.sha256(what.encode()).hexdigest()[:16]}"
        try:
            os.close(os.open(os.path.join(SparkFiles.getRootDirectory(), name), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
    return new


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
