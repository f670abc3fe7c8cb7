"""The notebooks: both formats hold the same cells, and every cell runs, on its own server and on a given one."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode
from pyspark.sql import SparkSession

from notebooks import build
from spark_jetstream.java import ensure_java
from spark_jetstream.testing import NatsServer
from tests.support.jobs import run_python
from tests.support.publish import Publisher

QUICKSTART = Path(build.__file__).with_name("quickstart.py")
CELLS = list(build.cells(QUICKSTART.read_text(encoding="utf-8")))
CODE = [cell.text for cell in CELLS if cell.kind == "code"]
SETTINGS = ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_PATH", "JUPYTER_RUNTIME_DIR", "MPLCONFIGDIR")
CELL_TIMEOUT = 200  # seconds; the cell that starts Spark is the slowest


def read_notebook(path: Path) -> NotebookNode:
    """Read a notebook in Jupyter's format without converting it."""
    notebook: NotebookNode = nbformat.read(path, as_version=nbformat.NO_CONVERT)  # type: ignore[no-untyped-call]
    return notebook


# -- both formats --


def test_the_notebooks_are_those_of_this_folder() -> None:
    assert build.sources() == [QUICKSTART]
    assert sorted(QUICKSTART.parent.glob("*.ipynb")) == [QUICKSTART.with_suffix(".ipynb")]


def test_the_jupyter_notebook_is_made_from_the_source() -> None:
    written = QUICKSTART.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert written == build.text_of(QUICKSTART.read_text(encoding="utf-8")), "run `python notebooks/build.py`"


def test_the_jupyter_notebook_is_valid_and_was_never_executed() -> None:
    notebook = read_notebook(QUICKSTART.with_suffix(".ipynb"))
    nbformat.validate(notebook)
    assert [build.Cell(cell.cell_type, cell.source) for cell in notebook.cells] == CELLS
    assert {cell.execution_count for cell in notebook.cells if cell.cell_type == "code"} == {None}
    assert not [cell for cell in notebook.cells if cell.get("outputs")]


def test_the_databricks_source_is_python_around_its_markdown() -> None:
    lines = QUICKSTART.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# Databricks notebook source"
    code = "\n".join(line for line in lines[1:] if not line.startswith(("# MAGIC", "# COMMAND")))
    assert ast.dump(ast.parse(code)) == ast.dump(ast.parse("\n".join(CODE)))
    compile(code, str(QUICKSTART), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("x = 1\n\n# COMMAND ----------\n\n# COMMAND ----------\n\ny = 2\n", "cell 2 is empty"),
        ("# MAGIC %md\n# MAGIC text\nx = 1\n", "cell 1 mixes code with # MAGIC"),
        ("# MAGIC %sql\n# MAGIC SELECT 1\n", "cell 1 does not begin with '# MAGIC %md'"),
    ],
)
def test_cells_that_jupyter_does_not_have_are_refused(body: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build.notebook(f"{build.FIRST_LINE}{body}")
    with pytest.raises(ValueError, match="first line"):
        build.notebook(body)


# -- in Jupyter, on a server of its own --


def executed(folder: Path) -> NotebookNode:
    """Run the Jupyter notebook in a kernel of this Python without any settings, and return it with its outputs."""
    kept_out = ("NATS_URL", "WORK_DIR", "MPLBACKEND", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    environment = {
        **{name: value for name, value in os.environ.items() if name not in kept_out},
        "JAVA_HOME": ensure_java(),
        "TMPDIR": str(folder),
        # The JVM's second compiler is too slow for queries that run once.
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
        # A kernel called python3 that the user has installed may be another Python.
        "JUPYTER_PREFER_ENV_PATH": "1",
        **{name: str(folder / name) for name in SETTINGS},
    }
    result = folder / "result.ipynb"
    shutil.copy(QUICKSTART.with_suffix(".ipynb"), result)
    # A process of its own: the Jupyter client leaves sockets to the garbage collector, which warns of them.
    execute = Path(sys.executable).with_name("jupyter-execute")
    run_python(execute, "--inplace", "--kernel_name=python3", f"--timeout={CELL_TIMEOUT}", result, env=environment)
    # The server's folder and the files of the queries are removed.
    assert not list(folder.glob("spark-jetstream-*"))
    return read_notebook(result)


@pytest.mark.full
def test_the_quickstart_runs_in_jupyter_on_a_server_of_its_own(tmp_path: Path) -> None:
    outputs = [output for cell in executed(tmp_path).cells for output in cell.get("outputs", [])]
    printed = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    assert "on a server of its own" in printed
    assert "6000 messages, sequences 1 to 6000" in printed
    assert "6000 orders copied" in printed
    assert "500 orders copied" in printed
    assert printed.count("180 messages in RESULTS_") == 2  # three countries, sixty minutes; written twice, stored once
    assert "|subject|sequence|" in printed.replace(" ", "")
    assert "|minute|country|orders|amount|" in printed.replace(" ", "")
    plots = [output.data["image/png"] for output in outputs if output.output_type == "display_data"]
    assert len(plots) == 1


# -- as on Databricks: a given session, settings in widgets, a server elsewhere --


def code_under(*headings: str) -> list[str]:
    """Return the code cells directly under these headings; a heading is given with the heading above it, if any."""
    cells: dict[str, list[str]] = {}
    path: list[str] = []
    for cell in CELLS:
        if cell.kind == "code":
            cells.setdefault("/".join(path), []).append(cell.text)
        for marks, title in re.findall(r"^##(#*) (.+)$", cell.text if cell.kind == "markdown" else "", re.MULTILINE):
            path = [*path[: len(marks)], title]
    return [text for heading in headings for text in cells[heading]]


@pytest.fixture
def run_cells() -> Iterator[Callable[[list[str], dict[str, Any]], None]]:
    """Return a function that runs cells in order, with `await` outside of functions, as notebooks do."""
    loop = asyncio.new_event_loop()

    def run(cells: list[str], names: dict[str, Any]) -> None:
        for cell in cells:
            code: CodeType = compile(cell, cell.splitlines()[0], "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            coroutine = eval(code, names)
            if coroutine is not None:
                loop.run_until_complete(coroutine)

    yield run
    loop.close()


@pytest.mark.full
def test_the_quickstart_runs_on_a_given_server_and_session(
    run_cells: Callable[[list[str], dict[str, Any]], None],
    nats_server: NatsServer,
    publisher: Publisher,
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")  # the widget wins
    streams = publisher.api("STREAM.NAMES")["streams"]
    filled = {"NATS_URL": nats_server.url, "WORK_DIR": str(tmp_path)}
    widgets = SimpleNamespace(text=filled.setdefault, get=filled.__getitem__)
    names: dict[str, Any] = {"spark": spark, "dbutils": SimpleNamespace(widgets=widgets)}
    cells = code_under("1. Set-up", "2. Create a stream", "3. Read it/As a batch", "5. Write results back")
    run_cells(cells, names)
    assert names["server"] is None
    assert names["spark"] is spark
    output = capsys.readouterr().out
    assert "on the server of NATS_URL" in output
    assert "orders from Germany" in output
    created = {f"ORDERS_{names['run']}", f"RESULTS_{names['run']}"}
    assert set(publisher.api("STREAM.NAMES")["streams"]) - set(streams) == created
    files = Path(names["work_dir"])
    assert files.parent == tmp_path
    files.mkdir()
    # The clean-up leaves nothing behind, and does not stop the given server and session.
    run_cells(code_under("6. Clean up"), names)
    assert publisher.api("STREAM.NAMES")["streams"] == streams
    assert list(tmp_path.iterdir()) == []
    assert spark.range(3).count() == 3


def test_the_server_is_that_of_the_environment(
    run_cells: Callable[[list[str], dict[str, Any]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")
    names: dict[str, Any] = {}
    run_cells(CODE[:1], names)
    assert (names["nats_url"], names["server"]) == ("nats://127.0.0.1:1", None)
