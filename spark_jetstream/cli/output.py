"""What commands print: tables for people, JSON for programs, and how far long work is."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from spark_jetstream.admin.models.base import Model
from spark_jetstream.admin.models.text import readable
from spark_jetstream.errors import LAYOUT, printable

T = TypeVar("T")

_WIDE = 10**9  # nothing is cut: a terminal that is too narrow goes on in its next line by itself


class Output:
    """Where a command prints to. With ``as_json`` only JSON goes to standard output; notes and progress never do."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        if isinstance(sys.stdout, io.TextIOWrapper):
            # JSON is UTF-8 whatever the locale says; else what the locale cannot write is shown as ``\u65e5``.
            sys.stdout.reconfigure(encoding="utf-8" if as_json else None, errors="backslashreplace")
        self._console = Console(file=sys.stdout, width=_WIDE, soft_wrap=True, highlight=False, markup=False)
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

        ``columns`` are the headings, each with what gives the value. Numbers stand on the right. Nothing is ever cut.
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
        self._put(table)

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
            self.text(title, style="bold underline")
        self._put(table, shutil.get_terminal_size().columns)

    def lines(self, items: Iterable[T], line: Callable[[T], str], *, data: Callable[[T], Any]) -> None:
        """A line for each item as soon as it is there; as JSON, an object a line."""
        for item in items:
            if self.as_json:
                sys.stdout.write(json.dumps(data(item), ensure_ascii=False) + "\n")
            else:
                self.text(line(item))
            sys.stdout.flush()

    def done(self, said: str, **data: Any) -> None:
        """What was done, in a sentence; as JSON, ``data``."""
        if self.as_json:
            self._write(data)
        else:
            self.text(said)

    def text(self, said: str, style: str | None = None) -> None:
        """A line for people, in a style of rich; nothing with JSON."""
        if not self.as_json:
            self._console.print(printable(said, LAYOUT), style=style)

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
        self._notes.print(printable(said, LAYOUT))

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
        """Ask before something is removed. Without a terminal ``force`` must say yes: exit code 2.

        Whoever says no gets exit code 1, and 130 with Ctrl-C.
        """
        if force:
            return
        if not sys.stdin.isatty():
            raise typer.BadParameter(f"{question} Nobody is there to answer: say yes with --force.")
        try:
            agreed = typer.confirm(question, err=True)
        except typer.Abort as aborted:  # Ctrl-C, or the end of what is typed
            self.note("")
            raise typer.Exit(130 if isinstance(aborted.__context__, KeyboardInterrupt) else 1) from None
        if not agreed:
            raise typer.Exit(1)

    def _put(self, table: Table, width: int = _WIDE) -> None:
        """Print a table, on a terminal of that width; where there is none, without blanks at the ends of its lines."""
        if self._console.is_terminal:
            self._console.print(table, width=width)
            return
        with self._console.capture() as caught:
            self._console.print(table)
        sys.stdout.write("\n".join(line.rstrip(" ") for line in caught.get().split("\n")))
        sys.stdout.flush()

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
    return printable(readable(value), LAYOUT)


def as_data(model: Model) -> dict[str, Any]:
    """A configuration or a reply as the API has it: durations in nanoseconds, sizes in bytes."""
    return model.model_dump(mode="json", exclude_unset=True)
