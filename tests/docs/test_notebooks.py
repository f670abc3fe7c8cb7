"""The notebooks: both formats hold the same cells, and the quick start runs on a given server and
session.

`make docs` executes every notebook in Jupyter, on a server of its own, and fails when a cell does:
the cells check what they claim by themselves.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from pyspark.sql import SparkSession

from spark_jetstream.testing import NatsServer
from tests.support.publish import Publisher
from tools.site import build

QUICKSTART = build.FOLDER / "quickstart.py"


def cells_of(path: Path) -> list[build.Cell]:
    """Return the cells of a notebook in Databricks' source format."""
    return list(build.cells(path.read_text(encoding="utf-8")))


# -- both formats --


def test_the_jupyter_notebooks_are_made_from_the_sources_and_valid() -> None:
    assert sorted(build.FOLDER.glob("*.ipynb")) == [
        path.with_suffix(".ipynb") for path in build.sources()
    ]
    for path in build.sources():
        written = path.with_suffix(".ipynb").read_text(encoding="utf-8")
        assert written == build.text_of(path.read_text(encoding="utf-8")), "run `make generate`"
        nbformat.validate(json.loads(written))


# -- as on Databricks: a given session, settings in widgets, a server elsewhere --


def code_under(*headings: str) -> list[str]:
    """Return the quick start's code cells directly under headings, each given with the heading
    above it, if any.
    """
    cells: dict[str, list[str]] = {}
    path: list[str] = []
    for cell in cells_of(QUICKSTART):
        if cell.kind == "code":
            cells.setdefault("/".join(path), []).append(cell.text)
        for marks, title in re.findall(
            r"^##(#*) (.+)$", cell.text if cell.kind == "markdown" else "", re.MULTILINE
        ):
            path = [*path[: len(marks)], title]
    return [text for heading in headings for text in cells[heading]]


def run_cells(cells: list[str], names: dict[str, Any]) -> None:
    """Run code cells in one namespace."""
    for cell in cells:
        exec(compile(cell, cell.splitlines()[0], "exec"), names)


@pytest.mark.full
def test_the_quickstart_runs_on_a_given_server_and_session(
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
    cells = code_under(
        "1. Set-up", "2. Create a stream", "3. Read it/As a batch", "5. Write results back"
    )
    run_cells(cells, names)
    assert names["server"] is None
    assert names["spark"] is spark
    output = capsys.readouterr().out
    assert "on the server of NATS_URL" in output
    assert "6000 messages, sequences 1 to 6000" in output
    assert "|subject|sequence|" in output.replace(" ", "")
    assert "orders from Germany" in output
    created = {f"ORDERS_{names['run']}", f"RESULTS_{names['run']}"}
    assert set(publisher.api("STREAM.NAMES")["streams"]) - set(streams) == created
    assert [path.name for path in tmp_path.iterdir()] == [
        f"spark-jetstream-quickstart-{names['run']}"
    ]
    # The clean-up leaves nothing behind, and does not stop the given server and session.
    run_cells(code_under("6. Clean up"), names)
    assert publisher.api("STREAM.NAMES")["streams"] == streams
    assert list(tmp_path.iterdir()) == []
    assert spark.range(3).count() == 3
