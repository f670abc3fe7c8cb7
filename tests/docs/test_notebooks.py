"""The notebooks: both formats hold the same cells, and every cell runs, on its own server and on somebody else's."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import subprocess
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
from tests.support.publish import Publisher

ROOT = Path(__file__).parents[2]
QUICKSTART = Path(build.__file__).with_name("quickstart.py")
CELLS = list(build.cells(QUICKSTART.read_text(encoding="utf-8")))
CODE = [cell.text for cell in CELLS if cell.kind == "code"]


def read_notebook(path: Path) -> NotebookNode:
    """A notebook in Jupyter's format, as it is."""
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
    # A comment that is none of Databricks' own stays with the code.
    code = "\n".join(line for line in lines[1:] if not line.startswith(("# MAGIC", "# COMMAND")))
    assert ast.dump(ast.parse(code)) == ast.dump(ast.parse("\n".join(CODE)))
    compile(code, str(QUICKSTART), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("x = 1\n\n# COMMAND ----------\n\n# COMMAND ----------\n\ny = 2\n", "cell 2 is empty"),
        ("# MAGIC %md\n# MAGIC text\nx = 1\n", "cell 1 mixes code with # MAGIC"),
        ("# MAGIC %sql\n# MAGIC SELECT 1\n", "cell 1 does not begin with '# MAGIC %md'"),
    ],
)
def test_what_jupyter_has_no_cell_for_is_refused(body: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build.notebook(f"{build.FIRST_LINE}{body}")
    with pytest.raises(ValueError, match="first line"):
        build.notebook(body)


# -- in Jupyter, on a server of its own --


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> NotebookNode:
    """The Jupyter notebook with the outputs of a kernel of this Python, where nothing is set up for it."""
    folder = tmp_path_factory.mktemp("jupyter")
    kept_out = ("NATS_URL", "WORK_DIR", "MPLBACKEND", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    environment = {
        **{name: value for name, value in os.environ.items() if name not in kept_out},
        "JAVA_HOME": ensure_java(),
        "TMPDIR": str(folder),
        # What the JVM's second compiler makes of queries that run once is never used.
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
    }
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.run_notebook", QUICKSTART.with_suffix(".ipynb"), folder / "result.ipynb"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    # Neither the server's folder, nor the files of the queries.
    assert not list(folder.glob("spark-jetstream-*"))
    return read_notebook(folder / "result.ipynb")


def printed(notebook: NotebookNode) -> str:
    """What the cells wrote to standard output."""
    return "".join(
        output.text
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "stream" and output.name == "stdout"
    )


def test_the_quickstart_runs_in_jupyter_on_a_server_of_its_own(executed: NotebookNode) -> None:
    said = printed(executed)
    assert "on a server of its own" in said
    assert "6000 messages, sequences 1 to 6000" in said
    assert "6000 orders copied" in said
    assert "500 orders copied" in said
    assert said.count("180 messages in RESULTS_") == 2  # three countries, sixty minutes; written twice, stored once


def test_the_quickstart_shows_tables_and_a_plot(executed: NotebookNode) -> None:
    said = printed(executed)
    assert "|subject|sequence|" in said.replace(" ", "")
    assert "|minute|country|orders|amount|" in said.replace(" ", "")
    pictures = [
        output.data["image/png"]
        for cell in executed.cells
        for output in cell.get("outputs", [])
        if output.output_type == "display_data"
    ]
    assert len(pictures) == 1


# -- as on Databricks: a session that is there, settings in widgets, a server elsewhere --


class Widgets:
    """`dbutils.widgets`, as far as the notebook uses it, where a person has filled some of them in."""

    def __init__(self, **filled: str) -> None:
        self._values = filled
        self._defaults: dict[str, str] = {}

    def text(self, name: str, default: str) -> None:
        self._defaults[name] = default

    def get(self, name: str) -> str:
        return self._values.get(name, self._defaults[name])


def code_under(*headings: str) -> list[str]:
    """The code cells that stand right under these headings; each is given with the heading above it, if it has one."""
    found: dict[str, list[str]] = {}
    path: list[str] = []
    for cell in CELLS:
        if cell.kind == "code":
            found.setdefault("/".join(path), []).append(cell.text)
        for marks, title in re.findall(r"^##(#*) (.+)$", cell.text if cell.kind == "markdown" else "", re.MULTILINE):
            path = [*path[: len(marks)], title]
    return [text for heading in headings for text in found[heading]]


@pytest.fixture
def run_cells() -> Iterator[Callable[[list[str], dict[str, Any]], None]]:
    """A function that runs cells one after the other, with `await` outside of functions, as notebooks do."""
    loop = asyncio.new_event_loop()

    def run(cells: list[str], names: dict[str, Any]) -> None:
        for cell in cells:
            code: CodeType = compile(cell, cell.splitlines()[0], "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            waiting = eval(code, names)
            if waiting is not None:
                loop.run_until_complete(waiting)

    yield run
    loop.close()


def test_the_quickstart_runs_on_a_server_and_a_session_that_are_there(
    run_cells: Callable[[list[str], dict[str, Any]], None],
    nats_server: NatsServer,
    publisher: Publisher,
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")  # a widget is asked first
    streams = publisher.api("STREAM.NAMES")["streams"]
    widgets = Widgets(NATS_URL=nats_server.url, WORK_DIR=str(tmp_path))
    names: dict[str, Any] = {"spark": spark, "dbutils": SimpleNamespace(widgets=widgets)}
    # The rest is the same wherever the server and the session come from.
    began = code_under("1. Set-up", "2. Create a stream", "3. Read it/As a batch", "5. Write results back")
    run_cells(began, names)
    assert names["server"] is None
    assert names["spark"] is spark
    said = capsys.readouterr().out
    assert "on the server of NATS_URL" in said
    assert "orders from Germany" in said
    made = {f"ORDERS_{names['run']}", f"RESULTS_{names['run']}"}
    assert set(publisher.api("STREAM.NAMES")["streams"]) - set(streams) == made
    files = Path(names["work_dir"])
    assert files.parent == tmp_path
    files.mkdir()
    # It leaves nothing behind, and what it did not start goes on.
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
