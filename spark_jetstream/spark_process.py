"""The Spark process in which the connector runs: what it offers, and how the connector adapts it."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import hashlib
import logging
import os
import socket
import sys
from importlib.util import find_spec
from types import FrameType

import pyspark
from pyspark import TaskContext

try:
    from pyspark import SparkFiles
except ImportError:  # pyspark-client, which runs no Spark process
    SparkFiles = None  # type: ignore[assignment,misc]

#: Errors of `SparkFiles` outside of a Spark process, where there are no such files.
_OUTSIDE_SPARK = (RuntimeError, AttributeError, AssertionError)

_eased = False
_asked: set[str] = set()


class _SparkForm(logging.Formatter):
    """A log line in the form of Spark's own (its pattern layout): time, level, logger, text."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%y/%m/%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        shown = copy.copy(record)  # other handlers get the record as well
        if record.levelno == logging.WARNING:
            shown.levelname = "WARN"
        return super().format(shown)


@functools.cache
def log_as_spark() -> bool:
    """Give the log lines of this package the form of Spark's own.

    Return False, and do nothing, if the process has set up logging.
    """
    log = logging.getLogger(__package__)
    # The program has set up logging, and decides the form of its lines.
    if log.hasHandlers():
        return False
    # Spark's Python processes set up no logging: a warning would stand among Spark's lines without
    # time, level and origin.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_SparkForm())
    log.addHandler(handler)
    return True


def refuse_spark_3() -> None:
    """Raise `ImportError` for a Spark without Python data sources.

    Databricks Runtime 15.4 calls its Spark 3.5 and has them.
    """
    # The version would not do: Databricks Runtime 15.4 calls its Spark 3.5, and has data sources.
    if find_spec("pyspark.sql.datasource") is None:
        raise ImportError(
            f"this Spark is {pyspark.__version__}, and Python data sources begin with Spark 4.0: "
            "use one of the versions in docs/compatibility.md",
            name="pyspark.sql.datasource",
        )


def find_file(path: str) -> str:
    """Return the path of a file on this node.

    It is the named one, or that of a file sent with `--files` or `addArtifacts`.
    """
    if os.path.exists(path):
        return path
    name = os.path.basename(path)
    try:
        sent = SparkFiles.get(name)
    except _OUTSIDE_SPARK:
        return path
    if os.path.exists(sent):
        return sent
    # The driver of a streaming query is given a folder of its own, `streaming_job`, below the one
    # with the files.
    above = os.path.join(os.path.dirname(os.path.dirname(sent)), name)
    if os.path.exists(above):
        return above
    return path


def first_time(what: str) -> bool:
    """Whether no process of this Spark application has asked about `what` before, on this node.

    A file in the application's own folder remembers what was said.
    """
    # Outside of a Spark process there is no folder, and the process alone remembers.
    new = what not in _asked
    _asked.add(what)
    # The text may hold characters that a file name cannot have.
    name = f"spark-jetstream-{hashlib.sha256(what.encode()).hexdigest()[:16]}"
    with contextlib.suppress(*_OUTSIDE_SPARK, OSError):
        # Spark's driver checks and commits a micro-batch in a Python worker, which is a new process
        # after a pause. Spark removes the folder at the end of the application.
        note = os.path.join(SparkFiles.getRootDirectory(), name)
        try:
            # If several processes ask at once, one of them makes the file.
            os.close(os.open(note, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
    return new


def ease_next_tasks() -> None:
    """Make later tasks of this worker cheaper. The first task calls it at its end.

    Does nothing in later tasks, nor outside of a task.
    """
    global _eased  # noqa: PLW0603  # the process has one heap
    # A process of the driver runs no tasks.
    if not _eased and TaskContext.get() is not None:
        _acknowledge_at_once()
        _freeze_imports()
        _eased = True


def _freeze_imports() -> None:
    """Take what this worker has imported out of garbage collection."""
    gc.collect()  # or the present garbage would stay
    # Spark's worker collects garbage after each task (pyspark/daemon.py), among all objects of
    # pyarrow, pandas and nats-py: a third of the CPU of a small task.
    gc.freeze()


def _acknowledge_at_once() -> None:
    """Let this worker's kernel acknowledge the beginning of each task at once."""
    # Spark sends a task in two writes. Its kernel holds the second one back until the first is
    # acknowledged (Nagle's algorithm), and this kernel puts that off for 40 ms after an answer:
    # it expects another answer to carry the acknowledgement.
    connection = _worker_connection()
    option = getattr(socket, "TCP_QUICKACK", None)  # Linux has it
    if connection is None or option is None:
        return

    def collected(phase: str, info: dict[str, int]) -> None:
        # `gc.collect()` of the worker collects generation 2; the others are collected at any time.
        if phase == "stop" and info["generation"] == 2:
            with contextlib.suppress(OSError):  # Spark has closed it
                connection.setsockopt(socket.IPPROTO_TCP, option, 1)

    # The option holds until the next answer (tcp(7)), so it must be set after each task: the worker
    # collects garbage then (pyspark/daemon.py).
    gc.callbacks.append(collected)


def _worker_connection() -> socket.socket | None:
    """Return the TCP socket over which Spark sends tasks to this worker, None without one."""
    # It is a local variable of pyspark/daemon.py.
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "worker":
        frame = frame.f_back
    if frame is None:
        return None
    connection = frame.f_locals.get("sock")
    # A Unix socket delays no acknowledgement: test_spark_process.py,
    # test_nothing_is_set_on_a_unix_socket.
    if not isinstance(connection, socket.socket) or connection.family == socket.AF_UNIX:
        return None
    return connection
