"""What the connector does to the Spark process that it runs in."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from pyspark import SparkFiles, TaskContext

from spark_jetstream import spark_process
from spark_jetstream.spark_process import first_time, freeze_imports
from tests.support.jobs import run_python

#: What pyspark-client lacks of pyspark; `make matrix` runs it.
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


def test_imports_are_frozen_by_the_first_task_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: done.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: done.append("freeze"))
    monkeypatch.setattr(spark_process, "_frozen", False)
    freeze_imports()
    assert done == []
    monkeypatch.setattr(TaskContext, "get", object)
    freeze_imports()
    freeze_imports()
    assert done == ["collect", "freeze"]


def test_what_is_said_once_in_an_application(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
