"""The output of commands: tables for people, JSON for programs, progress bars; values and messages as text."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from typer import BadParameter, Exit

from spark_jetstream.errors import LAYOUT, printable
from spark_jetstream.protocol.units import Bytes, Nanoseconds, Timestamp, rough

if TYPE_CHECKING:
    from rich.console import JustifyMethod
    from rich.table import Table

    from spark_jetstream.admin.models.base import Model
    from spark_jetstream.admin.models.messages import StoredMessage
    from spark_jetstream.admin.models.streams import Replica

T = TypeVar("T")

_SECOND = 1_000_000_000
_WIDE = 10**9  # rich must not cut or wrap; the terminal wraps
_LONG_WORD = 24  # more than a time has
_ISO_TIME = re.compile(r"^(\d{4}-\d\d-\d\d)T(?=[\d:]+Z$)")


class Output:
    """The output of a command. ``as_json``: standard output has only JSON; notes and progress go to standard error."""

    def __init__(self, *, as_json: bool) -> None:
        from rich.console import Console

        self.as_json = as_json
        if isinstance(sys.stdout, io.TextIOWrapper):
            # JSON is UTF-8 whatever the locale says; else what the locale cannot write is shown as
            # ``\u65e5``.
            sys.stdout.reconfigure(encoding="utf-8" if as_json else None, errors="backslashreplace")
        # Else rich takes a pipe for a terminal where FORCE_COLOR is set, and tables break.
        terminal = sys.stdout.isatty()
        self._console = Console(
            file=sys.stdout,
            force_terminal=terminal,
            width=_WIDE,
            soft_wrap=True,
            highlight=False,
            markup=False,
        )
        self._notes = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)

    def table(
        self,
        items: Iterable[T],
        columns: Mapping[str, Callable[[T], object]],
        *,
        data: Callable[[T], Any] | None = None,
        empty: str = "",
    ) -> None:
        """Print a row for each item; as JSON, an array of ``data(item)``, or nothing without ``data``.

        ``columns`` are headings, each with the function that returns the value. Without rows,
        ``empty`` is a note. On a terminal that is too narrow, headings and texts break between
        words, and words of more than 24 characters.
        """
        from rich.table import Table

        if self.as_json:
            if data is not None:
                self.json([data(item) for item in items])
            return
        rows = [[give(item) for give in columns.values()] for item in items]
        if not rows:
            self.note(empty)
            return
        wraps, width = self._console.is_terminal, shutil.get_terminal_size().columns
        shown: dict[str, list[str]] = {}
        numbers: set[str] = set()
        for name, values in zip(columns, zip(*rows, strict=True), strict=True):
            cells = [_ISO_TIME.sub(r"\1 ", text(value)) if wraps else text(value) for value in values]
            if name or any(cells):
                shown[name] = cells
            if all(isinstance(value, (int, float)) for value in values):
                numbers.add(name)
        least = [min(_LONG_WORD, _longest(" ".join([name, *cells]).split())) for name, cells in shown.items()]
        spare = width - sum(least) - 2 * (len(shown) - 1)
        table = Table(
            box=None,
            pad_edge=False,
            header_style="bold",
            collapse_padding=wraps and spare < 0,
        )
        spare += (len(shown) - 1) * table.collapse_padding
        for (name, cells), room in zip(shown.items(), least, strict=True):
            more = max(0, min(spare, _longest([name, *cells]) - room))
            spare -= more
            justify: JustifyMethod = "right" if name in numbers else "left"
            table.add_column(
                name,
                justify=justify,
                no_wrap=not wraps,
                overflow="fold",
                width=room + more if wraps else None,
            )
        for row in zip(*shown.values(), strict=True):
            table.add_row(*row)
        self._put(table)

    def record(self, pairs: Mapping[str, object], *, data: Any = None, title: str = "") -> None:
        """Print a line for each property that has a value; as JSON, ``data``, or nothing without it."""
        from rich.table import Table

        if self.as_json:
            if data is not None:
                self.json(data)
            return
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in pairs.items():
            if shown := text(value):
                table.add_row(name, shown)
        if title:
            self.text(title, style="bold underline")
        self._put(table, shutil.get_terminal_size().columns)

    def lines(
        self,
        items: Iterable[T],
        line: Callable[[T], str],
        *,
        data: Callable[[T], Any],
    ) -> int:
        """Print a line for each item as soon as it comes; as JSON, an object a line. Return how many there were."""
        count = 0
        for item in items:
            if self.as_json:
                sys.stdout.write(json.dumps(data(item), ensure_ascii=False) + "\n")
            else:
                self.text(line(item))
            sys.stdout.flush()
            count += 1
        return count

    def done(self, sentence: str, **data: Any) -> None:
        """Print what was done, in a sentence; as JSON, ``data``."""
        self.text(sentence)
        self.json(data)

    def names(self, names: Iterable[str], empty: str = "") -> None:
        """Print names, a line each as they come; as JSON, a list. Without names, ``empty`` is a note."""
        if self.as_json:
            self.json(list(names))
        elif not self.lines(names, str, data=str) and empty:
            self.note(empty)

    def message(self, message: StoredMessage, more: str = "", *, raw: bool) -> None:
        """Print sequence, subject and time, the headers and the content. ``more`` ends the first line.

        ``raw`` is the content alone, unchanged. With JSON nothing is printed.
        """
        if raw:
            self.raw(message.data)
            return
        self.text(
            f"{message.seq:,} {printable(message.subject)} {message.time}{more}",
            style="bold",
        )
        self.text("".join(header_lines(message.headers)))
        self.text(content_text(message.data))
        self.text("")

    def text(self, line: str, style: str | None = None) -> None:
        """Print a line in a style of rich; nothing with JSON."""
        if not self.as_json:
            self._console.print(printable(line, LAYOUT), style=style)

    def json(self, data: Any) -> None:
        """Print data with JSON, models as `as_data` has them; else nothing."""
        if self.as_json:
            sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False, default=as_data) + "\n")
            sys.stdout.flush()

    def clear(self) -> None:
        """Clear a terminal."""
        if not self.as_json and self._console.is_terminal:
            self._console.clear()

    def check_raw(self, raw: bool) -> None:
        """Refuse ``--raw`` beside ``--json``."""
        if raw and self.as_json:
            raise BadParameter("--raw and --json contradict each other")

    def raw(self, data: bytes) -> None:
        """Print bytes unchanged: the content of a message or an object."""
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def note(self, line: str) -> None:
        """Print a line on standard error."""
        self._notes.print(printable(line, LAYOUT))

    @contextlib.contextmanager
    def progress(
        self,
        title: str,
        *,
        in_bytes: bool = True,
    ) -> Iterator[Callable[[int, int], None]]:
        """Show a progress bar on a terminal. Yields a function that takes what is done and the total."""
        if self.as_json or not sys.stderr.isatty():
            yield lambda done, total: None
            return

        from rich import progress

        amount = progress.DownloadColumn(binary_units=True) if in_bytes else progress.MofNCompleteColumn()
        what = progress.TextColumn("{task.description}")
        columns = (what, progress.BarColumn(), amount, progress.TimeRemainingColumn())
        with progress.Progress(*columns, console=self._notes, transient=True) as bar:
            task = bar.add_task(title, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=max(total, done))

    def confirm(self, question: str, *, force: bool) -> None:
        """Ask before something is removed, unless ``force``.

        The command ends with 1 after a no, and 2 without a terminal.
        """
        if force:
            return
        if not sys.stdin.isatty():
            raise BadParameter(f"{question} There is no terminal to ask on: say yes with --force.")
        if not self.asked(question):
            raise Exit(1)

    def asked(self, question: str, *, default: bool = False) -> bool:
        """Ask, and return the answer. The command ends with 130 after Ctrl-C, and 1 at the end of what is typed."""
        try:
            return typer.confirm(question, default, err=True)
        except typer.Abort as aborted:
            self.note("")
            raise Exit(130 if isinstance(aborted.__context__, KeyboardInterrupt) else 1) from None

    def _put(self, table: Table, width: int = _WIDE) -> None:
        """Print a table as wide as the terminal; without a terminal, without blanks at the ends of lines."""
        if self._console.is_terminal:
            self._console.print(table, width=width)
            return
        with self._console.capture() as caught:
            self._console.print(table)
        sys.stdout.write("\n".join(line.rstrip(" ") for line in caught.get().split("\n")))
        sys.stdout.flush()


def _longest(texts: Iterable[str]) -> int:
    """Return how many columns of a terminal the longest of these takes."""
    from rich.cells import cell_len

    return max(map(cell_len, texts), default=0)


def text(value: object) -> str:
    """Return a value as text for people: separators in numbers, units for durations and sizes, "" for nothing."""
    from spark_jetstream.admin.models.base import readable

    if value in (None, "", (), [], {}):
        return ""
    if type(value) is int:
        return f"{value:,}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Bytes):
        return rough(value)
    if isinstance(value, float):
        return f"{value:,.2f}"
    return printable(readable(value), LAYOUT)


def as_data(model: Model) -> dict[str, Any]:
    """Return a configuration or a reply as the API has it: durations in nanoseconds, sizes in bytes."""
    return model.model_dump(mode="json", exclude_unset=True)


def listed(value: object) -> object:
    """Return lists without brackets, and mappings as on a command line; anything else unchanged."""
    from spark_jetstream.admin.models.base import readable

    if isinstance(value, tuple):
        return ", ".join(map(readable, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}={readable(field)}" for name, field in value.items())
    return value


def server_text(replica: Replica) -> str:
    """Return a server of a cluster with its state."""
    if replica.leader:
        return f"{replica.server} (leader)"
    if replica.offline:
        return f"{replica.server} (offline)"
    return f"{replica.server} ({'current' if replica.current else 'outdated'}, {replica.lag:,} behind)"


def to_the_second(time: Timestamp) -> str:
    """Return a time without its fraction; "" for the zero time."""
    return "" if time.never else str(time).partition(".")[0].removesuffix("Z") + "Z"


def rounded(span: Nanoseconds) -> Nanoseconds:
    """Return a duration rounded to seconds from a minute on, else to milliseconds."""
    unit = _SECOND if span >= 60 * _SECOND else 1_000_000
    return Nanoseconds((span + unit // 2) // unit * unit)


def ago(span: Nanoseconds | None) -> str:
    """Return how long ago something was; None and -1 (of the API) are never."""
    return "never" if span is None or span < 0 else f"{rounded(span)} ago"


def header_lines(headers: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """Yield a line for each value of each header."""
    for name, values in headers.items():
        yield from (f"{printable(name)}: {printable(value, LAYOUT)}\n" for value in values)


def message_data(message: StoredMessage) -> dict[str, Any]:
    """Return a message for JSON. ``encoding`` says whether ``data`` is text or base64."""
    return {
        "subject": message.subject,
        "seq": message.seq,
        "time": message.time,
        "headers": message.headers,
        **content_data("data", message.data),
    }


def content_data(name: str, content: bytes) -> dict[str, str]:
    """Return bytes for JSON: the field ``name`` is text if they are UTF-8, else base64; ``encoding`` says which."""
    try:
        return {name: content.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError:
        return {name: base64.b64encode(content).decode(), "encoding": "base64"}


def content_text(content: bytes) -> str:
    """Return bytes for people: their text, or their number."""
    try:
        return printable(content.decode(), LAYOUT)
    except UnicodeDecodeError:
        return f"({len(content):,} bytes that are not text)"
