"""What the connector does to the Spark process that it runs in."""

from __future__ import annotations

import gc

import pytest
from pyspark import TaskContext

from spark_jetstream import spark_process
from spark_jetstream.spark_process import freeze_imports


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
