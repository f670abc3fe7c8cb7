"""Effects of the connector on the Spark process that it runs in."""

from __future__ import annotations

import gc
import re
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import SparkFiles, TaskContext
from pyspark.sql import SparkSession

from spark_jetstream import spark_process
from spark_jetstream.spark_process import ease_next_tasks, first_time
from tests.support.jobs import run_python

#: The names that pyspark-client lacks of pyspark; `make matrix` runs it.
THIN_CLIENT = """
import pyspark
del pyspark.SparkFiles
from spark_jetstream.datasource import find_file
from spark_jetstream.spark_process import first_time
assert find_file("user.creds") == "user.creds"
assert first_time("a")
"""


def test_the_thin_client_of_spark_connect() -> None:
    run_python("-c", THIN_CLIENT)


#: Logs a warning of one module in a Spark process, once a reader or a writer was made.
LOGGING = """
import logging, sys
sys.stderr = sys.stdout
from pyspark.sql.types import BinaryType, StructType
from spark_jetstream.datasource import JetStreamDataSource
{before}
schema = StructType().add("data", BinaryType())
JetStreamDataSource({{"stream": "S"}}).streamReader(schema)
log = logging.getLogger("spark_jetstream.source.positions")
log.info("that is all right")
log.warning("that is %s", "odd")
"""


def test_log_lines_in_a_spark_process_have_sparks_own_form() -> None:
    time = r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d"
    said = run_python("-c", LOGGING.format(before=""))
    assert re.fullmatch(rf"{time} WARN spark_jetstream\.source\.positions: that is odd\n", said), (
        said
    )
    own = "logging.basicConfig(format='%(levelname)s %(message)s')"
    assert run_python("-c", LOGGING.format(before=own)) == "WARNING that is odd\n"


linux = pytest.mark.skipif(
    not hasattr(socket, "TCP_QUICKACK"),
    reason="a kernel without TCP_QUICKACK: nothing is set, as a test below shows",
)


@pytest.fixture
def first_task(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The first task of a worker.

    Returns what was done to the garbage collector; its callbacks are restored.
    """
    done: list[str] = []
    before = list(gc.callbacks)
    monkeypatch.setattr(gc, "freeze", lambda: done.append("freeze"))
    monkeypatch.setattr(spark_process, "_eased", False)
    monkeypatch.setattr(TaskContext, "get", object)
    yield done
    gc.callbacks[:] = before


def test_imports_are_frozen_by_the_first_task_of_a_worker(
    monkeypatch: pytest.MonkeyPatch, first_task: list[str]
) -> None:
    monkeypatch.setattr(gc, "collect", lambda: first_task.append("collect"))
    with monkeypatch.context() as driver:
        driver.setattr(TaskContext, "get", lambda: None)
        ease_next_tasks()
    assert first_task == []
    ease_next_tasks()
    ease_next_tasks()
    assert first_task == ["collect", "freeze"]


def worker(sock: socket.socket) -> int:
    """Run a task as the function of this name in pyspark/daemon.py does.

    Returns how many callbacks it added.
    """
    before = len(gc.callbacks)
    ease_next_tasks()
    return len(gc.callbacks) - before


@pytest.mark.usefixtures("first_task")
@linux
def test_the_beginning_of_the_next_task_is_acknowledged_at_once() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as spark,
    ):
        connection, _ = listening.accept()
        assert worker(connection) == 1
        for _ in range(2):
            connection.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0
            )  # as an answer leaves it
            gc.collect(1)
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 0
            gc.collect()
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1
        spark.close()
        connection.close()
        gc.collect()


@pytest.mark.usefixtures("first_task")
def test_nothing_is_set_on_a_unix_socket() -> None:
    connection, spark = socket.socketpair()
    with connection, spark:
        assert worker(connection) == 0


@pytest.mark.usefixtures("first_task")
def test_nothing_is_set_where_the_kernel_has_no_such_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(socket, "TCP_QUICKACK", raising=False)
    with socket.socket() as connection:
        assert worker(connection) == 0


@linux
def test_a_worker_of_spark_acknowledges_at_once(spark: SparkSession) -> None:
    def added(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        before = len(gc.callbacks)
        spark_process._eased = False
        ease_next_tasks()
        ease_next_tasks()
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"added": [len(gc.callbacks) - before]})

    rows = spark.range(1, numPartitions=1).mapInArrow(added, "added long").collect()
    assert [row.added for row in rows] == [1]


def test_first_time_is_true_once_in_an_application(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def process() -> list[bool]:
        """The answers that a new process of the driver gets."""
        monkeypatch.setattr(spark_process, "_asked", set())
        return [first_time(what) for what in ("a", "b", "a")]

    def away() -> str:
        raise RuntimeError("there is no SparkContext here")

    monkeypatch.setattr(SparkFiles, "getRootDirectory", away)
    assert process() == process() == [True, True, False]
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: str(tmp_path))
    assert [process(), process()] == [[True, True, False], [False, False, False]]
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: str(tmp_path / "none"))
    assert process() == [True, True, False]
