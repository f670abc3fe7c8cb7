"""What commands print: tables for people, JSON for programs, and how far long work is."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from spark_jetstream.admin.model import Model
from spark_jetstream.admin.rendering import readable

T = TypeVar("T")

_WIDE = 10_000  # what is read by a program is not cut


class Output:
    """Where a command prints to. With ``as_json`` only JSON goes to standard output; notes and progress never do."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        terminal = sys.stdout.isatty()
        self._console = Console(
            file=sys.stdout, width=None if terminal else _WIDE, soft_wrap=True, highlight=False, markup=False
        )
        self._notes = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)

    def table(
        self,
        items: Iterable[T],
        columns: Mapping[str, Callable[[T], object]],
        *,
        data: Callable[[T], Any],
        empty: str,
    ) -> None:
        """A row for each item; as JSON one array, with what ``data`` makes of each. ``empty`` is said of no rows.

        ``columns`` are the headings, each with what gives the value. Numbers stand on the right.
        """
        if self.as_json:
            self._write([data(item) for item in items])
            return
        rows = [[give(item) for give in columns.values()] for item in items]
        if not rows:
            self.note(empty)
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for place, name in enumerate(columns):
            numbers = all(isinstance(row[place], (int, float)) for row in rows)
            table.add_column(name, justify="right" if numbers else "left", no_wrap=True)
        for row in rows:
            table.add_row(*map(text, row))
        self._console.print(table)

    def record(self, pairs: Mapping[str, object], *, data: Any, title: str = "") -> None:
        """One thing, a line for each of its properties; as JSON, ``data``. What has no value is left out."""
        if self.as_json:
            self._write(data)
            return
        shown = {name: value for name, value in pairs.items() if value not in (None, "", (), [], {})}
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in shown.items():
            table.add_row(name, text(value))
        if title:
            self._console.print(title, style="bold underline")
        self._console.print(table)

    def lines(self, items: Iterable[T], line: Callable[[T], str], *, data: Callable[[T], Any]) -> None:
        """A line for each item as soon as it is there; as JSON, an object a line."""
        for item in items:
            if self.as_json:
                sys.stdout.write(json.dumps(data(item), ensure_ascii=False) + "\n")
            else:
                self._console.print(line(item))
            sys.stdout.flush()

    def done(self, said: str, **data: Any) -> None:
        """What was done, in a sentence; as JSON, ``data``."""
        if self.as_json:
            self._write(data)
        else:
            self._console.print(said)

    def text(self, said: str, style: str | None = None) -> None:
        """A line for people, in a style of rich; nothing with JSON."""
        if not self.as_json:
            self._console.print(said, style=style)

    def clear(self) -> None:
        """Wipe a terminal, for what is shown again and again."""
        if not self.as_json and self._console.is_terminal:
            self._console.clear()

    def raw(self, data: bytes) -> None:
        """Bytes as they are, for commands whose output is the content of a message or an object."""
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def note(self, said: str) -> None:
        """A line on standard error."""
        self._notes.print(said)

    @contextlib.contextmanager
    def progress(self, title: str, *, in_bytes: bool = True) -> Iterator[Callable[[int, int], None]]:
        """Show how far something is, on a terminal; to be called with what is done and how much there is in all."""
        if self.as_json or not sys.stderr.isatty():
            yield lambda done, total: None
            return
        amount = DownloadColumn(binary_units=True) if in_bytes else MofNCompleteColumn()
        columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
        with Progress(*columns, console=self._notes, transient=True) as bar:
            task = bar.add_task(title, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=max(total, done))

    def confirm(self, question: str, *, force: bool) -> None:
        """Ask before something is removed. Without a terminal ``force`` must say yes: exit code 2."""
        if force:
            return
        if not sys.stdin.isatty():
            raise typer.BadParameter(f"{question} Nobody is there to answer: say yes with --force.")
        if not typer.confirm(question, err=True):
            raise typer.Exit(1)

    def _write(self, data: Any) -> None:
        sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
        sys.stdout.flush()


def text(value: object) -> str:
    """A value in a table: numbers with separators, nothing for what is not there, units for durations and sizes."""
    if value in (None, "", (), [], {}):
        return ""
    if type(value) is int:
        return f"{value:,}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return readable(value)


def as_data(model: Model) -> dict[str, Any]:
    """A configuration or a reply as the API has it: durations in nanoseconds, sizes in bytes."""
    return model.model_dump(mode="json", exclude_unset=True)
