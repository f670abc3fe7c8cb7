"""Make each ``.ipynb`` of ``notebooks/`` from the ``.py`` beside it, the same notebook in Databricks' source format.

``python tools/site/build.py`` writes them. In the source format a line ``# COMMAND ----------``
ends a cell, and the lines of a Markdown cell begin with ``# MAGIC``, the first of them with ``#
MAGIC %md``. The results have no outputs, and are the same, byte for byte, whenever the sources are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[2] / "notebooks"
FIRST_LINE = "# Databricks notebook source\n"
SEPARATOR = "\n# COMMAND ----------\n"
MAGIC = "# MAGIC"


class Cell(NamedTuple):
    """One cell: ``markdown`` or ``code``, and its text without blank lines around it."""

    kind: str
    text: str


def sources() -> list[Path]:
    """The notebooks in Databricks' source format."""
    return [
        path
        for path in sorted(FOLDER.glob("*.py"))
        if path.read_text(encoding="utf-8").startswith(FIRST_LINE)
    ]


def cells(source: str) -> Iterator[Cell]:
    """The cells of a notebook in Databricks' source format.

    Raises:
        ValueError: it is not one, or it has an empty cell, or one that mixes code with ``# MAGIC`` lines, or a magic
            command other than ``%md``, for which Jupyter has no cell.
    """
    if not source.startswith(FIRST_LINE):
        raise ValueError(f"the first line is not {FIRST_LINE.strip()!r}")
    for number, part in enumerate(source.removeprefix(FIRST_LINE).split(SEPARATOR), start=1):
        lines = part.strip().splitlines()
        marked = [line.startswith(MAGIC) for line in lines]
        if not lines:
            raise ValueError(f"cell {number} is empty")
        if not any(marked):
            yield Cell("code", "\n".join(lines))
        elif not all(marked):
            raise ValueError(f"cell {number} mixes code with {MAGIC}")
        elif lines[0] != f"{MAGIC} %md":
            raise ValueError(f"cell {number} does not begin with '{MAGIC} %md'")
        else:
            yield Cell(
                "markdown",
                "\n".join(line.removeprefix(MAGIC).removeprefix(" ") for line in lines[1:]),
            )


def notebook(source: str) -> dict[str, Any]:
    """The notebook in Jupyter's format (nbformat 4.5), never executed.

    Raises `ValueError` as `cells` does.
    """
    return {
        "cells": [
            _jupyter_cell(number, cell) for number, cell in enumerate(cells(source), start=1)
        ],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _jupyter_cell(number: int, cell: Cell) -> dict[str, Any]:
    made: dict[str, Any] = {"cell_type": cell.kind, "id": f"cell-{number:02}", "metadata": {}}
    if cell.kind == "code":
        made |= {"execution_count": None, "outputs": []}
    return made | {"source": cell.text.splitlines(keepends=True)}


def text_of(source: str) -> str:
    """The content of the ``.ipynb`` file, written as Jupyter writes it.

    Raises `ValueError` as `cells` does.
    """
    return json.dumps(notebook(source), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write an ``.ipynb`` beside every source."""
    for path in sources():
        path.with_suffix(".ipynb").write_text(
            text_of(path.read_text(encoding="utf-8")), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
