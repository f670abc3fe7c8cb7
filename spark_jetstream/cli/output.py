"""The output of commands: tables for people, JSON for programs, progress bars; values as text."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import typer
from typer import BadParameter, Exit

from spark_jetstream.cli import tables
from spark_jetstream.errors import LAYOUT, printable
from spark_jetstream.protocol.units import SECOND, Bytes, Nanoseconds, Timestamp, rough

if TYPE_CHECKING:
    from rich.table import Table
    from rich.tree import Tree

    from spark_jetstream.admin.models.base import Model
    from spark_jetstream.admin.models.messages import StoredMessage
    from spark_jetstream.admin.models.streams import Replica

T = TypeVar("T")

_WIDE = 10**9  # rich must not cut or wrap; the terminal wraps


class Branch(NamedTuple):
    """A line of a tree, in a style of rich, and the lines below it."""

    text: str
    branches: Sequence[Branch] = ()
    style: str = ""


class Output:
    """The output of a command.

    ``as_json``: standard output has only JSON; notes and progress go to standard error.
    """

    def __init__(self, *, as_json: bool) -> None:
        from rich.console import Console

        self.as_json = as_json
        if isinstance(sys.stdout, io.TextIOWrapper):
            # JSON is UTF-8 in every locale. In text, a character that the locale cannot write is
            # shown as ``\u65e5``.
            encoding = "utf-8" if as_json else None
            sys.stdout.reconfigure(encoding=encoding, errors="backslashreplace")
        # Else rich takes a pipe for a terminal where FORCE_COLOR is set, and tables break.
        terminal = sys.stdout.isatty()
        # Without markup and highlights rich prints the text of a publisher unchanged.
        self._console = Console(
            file=sys.stdout,
            force_terminal=terminal,
            width=_WIDE,
            soft_wrap=True,
            highlight=False,
            markup=False,
        )
        # Standard output belongs to results, which a program may read.
        self._notes = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)

    def table(
        self,
        items: Iterable[T],
        row: Callable[[T], Mapping[str, object]],
        *,
        data: Callable[[T], Any] | None = None,
        empty: str = "",
    ) -> None:
        """Print a row for each item; as JSON, an array of ``data(item)``, or nothing without it.

        ``row`` returns the values of an item by their headings. Without rows, ``empty`` is a note.
        On a terminal that is too narrow, headings and texts break between words, and words of more
        than 24 characters.
        """
        if self.as_json:
            if data is not None:
                self.json([data(item) for item in items])
            return
        # The widths of the columns depend on all rows.
        rows = [row(item) for item in items]
        if not rows:
            self.note(empty)
            return
        # A pipe gets each row on one line: programs such as grep and cut read it.
        columns = tables.columns_of(rows, text, breaks=self._console.is_terminal)
        self._put(self._table(columns))

    def _table(self, columns: Sequence[tables.TableColumn]) -> Table:
        """Return a table that fits a terminal; without a terminal, each cell is on one line."""
        from rich.table import Table

        widths: list[int | None] = [None] * len(columns)
        narrow = False
        wraps = self._console.is_terminal
        if wraps:
            widths[:], narrow = tables.fit(columns, shutil.get_terminal_size().columns)
        table = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=narrow)
        for column, width in zip(columns, widths, strict=True):
            table.add_column(
                column.heading,
                justify="right" if column.numeric else "left",
                no_wrap=not wraps,
                overflow="fold",
                width=width,
            )
        for cells in zip(*(column.cells for column in columns), strict=True):
            table.add_row(*cells)
        return table

    def tree(self, root: Branch) -> None:
        """Print a tree; nothing with JSON."""
        if not self.as_json:
            self._put(_rendered(root), shutil.get_terminal_size().columns)

    def record(self, pairs: Mapping[str, object], *, data: Any = None, title: str = "") -> None:
        """Print a line for each property with a value; as JSON, ``data``, or nothing without it."""
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
        """Print a line for each item at once; as JSON, an object a line. Return the number."""
        count = 0
        for item in items:
            if self.as_json:
                sys.stdout.write(json.dumps(data(item), ensure_ascii=False) + "\n")
            else:
                self.text(line(item))
            # The next item may come much later, and a reader of the pipe waits for this one.
            sys.stdout.flush()
            count += 1
        return count

    def done(self, sentence: str, **data: Any) -> None:
        """Print a sentence about the result; as JSON, ``data``."""
        self.text(sentence)
        self.json(data)

    def names(self, names: Iterable[str], empty: str = "") -> None:
        """Print names, a line each at once; as JSON, a list. Without names, ``empty`` is a note."""
        if self.as_json:
            self.json(list(names))
        elif not self.lines(names, str, data=str) and empty:
            self.note(empty)

    def message(self, message: StoredMessage, more: str = "", *, raw: bool) -> None:
        """Print sequence, subject and time, headers and content. ``more`` ends the first line.

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
            # Texts of publishers and servers may hold control characters that a terminal obeys:
            # test_main.py, test_tables_are_never_cut_and_obey_nobody.
            self._console.print(printable(line, LAYOUT), style=style)

    def json(self, data: Any) -> None:
        """Print data with JSON, models as `as_data` has them; else nothing."""
        if self.as_json:
            sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False, default=as_data) + "\n")
            sys.stdout.flush()

    @contextlib.contextmanager
    def screen(self) -> Iterator[Callable[[Iterable[str | Sequence[Mapping[str, object]]]], None]]:
        """Take the terminal, and give it back at the end.

        Yields a function that replaces what is on it: a text is a line, rows are a table. Lines
        that do not fit are cut.
        """
        from rich.console import Console, Group
        from rich.live import Live
        from rich.text import Text

        # Its width is that of the terminal: `Live` counts the lines that it has to replace.
        console = Console(file=sys.stdout, highlight=False, markup=False)
        with Live(console=console, screen=True, auto_refresh=False) as shown:

            def draw(parts: Iterable[str | Sequence[Mapping[str, object]]]) -> None:
                lines: list[Text | Table] = []
                for part in parts:
                    if isinstance(part, str):
                        lines.append(Text(printable(part), no_wrap=True, overflow="ellipsis"))
                    elif part:
                        lines.append(self._table(tables.columns_of(part, text, breaks=True)))
                shown.update(Group(*lines), refresh=True)

            yield draw

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
        """Show a progress bar on a terminal.

        Yields a function that takes the amount that is done, and the total.
        """
        if self.as_json or not sys.stderr.isatty():
            yield _no_progress
            return

        from rich import progress

        amount: progress.ProgressColumn = progress.MofNCompleteColumn()
        if in_bytes:
            amount = progress.DownloadColumn(binary_units=True)
        description = progress.TextColumn("{task.description}")
        columns = (description, progress.BarColumn(), amount, progress.TimeRemainingColumn())
        with progress.Progress(*columns, console=self._notes, transient=True) as bar:
            # The total comes with the first step.
            task = bar.add_task(title, total=None)

            def update(done: int, total: int) -> None:
                # A stream may grow while it is saved: the bar never has more than all of it.
                bar.update(task, completed=done, total=max(total, done))

            yield update

    def confirm(self, question: str, *, force: bool) -> None:
        """Ask before something is removed, unless ``force``.

        The command ends with 1 after a no, and 2 without a terminal.
        """
        if force:
            return
        # A script without a terminal must not hang, and no answer must not count as a yes.
        if not sys.stdin.isatty():
            raise BadParameter(f"{question} There is no terminal to ask on: say yes with --force.")
        if not self.asked(question):
            raise Exit(1)

    def asked(self, question: str, *, default: bool = False) -> bool:
        """Ask, and return the answer.

        The command ends with 130 after Ctrl-C, with 1 after Ctrl-D.
        """
        try:
            # On standard error: standard output may go to a file.
            return typer.confirm(question, default, err=True)
        except typer.Abort as aborted:
            self.note("")
            # typer raises the same error for Ctrl-C and for the end of standard input.
            if isinstance(aborted.__context__, KeyboardInterrupt):
                raise Exit(130) from None
            raise Exit(1) from None  # the end of standard input

    def _put(self, table: Table | Tree, width: int = _WIDE) -> None:
        """Print a table or a tree as wide as the terminal.

        Without a terminal no line ends with blanks.
        """
        if self._console.is_terminal:
            self._console.print(table, width=width)
            return
        with self._console.capture() as caught:
            self._console.print(table)
        # rich fills the last column with blanks.
        sys.stdout.write("\n".join(line.rstrip(" ") for line in caught.get().split("\n")))
        sys.stdout.flush()


def _rendered(branch: Branch) -> Tree:
    """Return a branch and all below it, for rich."""
    from rich.text import Text
    from rich.tree import Tree

    # The text may be that of a publisher or a server: no markup, and no control characters.
    tree = Tree(Text(printable(branch.text, LAYOUT), branch.style))
    for each in branch.branches:
        tree.children.append(_rendered(each))
    return tree


def _no_progress(done: int, total: int) -> None:
    """Show nothing: there is no terminal."""


def text(value: object) -> str:
    """Return a value as text for people: numbers with separators, units; "" for nothing."""
    from spark_jetstream.admin.models.base import readable

    if value in (None, "", (), [], {}):
        return ""
    # Not `isinstance`: sizes, durations and true are ints as well, with texts of their own.
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
    """Return a model as the API has it: durations in nanoseconds, sizes in bytes."""
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
    state = "current" if replica.current else "outdated"
    return f"{replica.server} ({state}, {replica.lag:,} behind)"


def to_the_second(time: Timestamp) -> str:
    """Return a time without its fraction; "" for the zero time."""
    if time.never:
        return ""
    whole, _, _ = str(time).partition(".")
    return whole.removesuffix("Z") + "Z"


def seconds(span: Nanoseconds | None) -> float | None:
    """Return a duration in seconds, for the Python API; None for None."""
    return None if span is None else span / SECOND


def were(count: int) -> str:
    """Return the verb that goes with a number of things."""
    return "was" if count == 1 else "were"


def rounded(span: Nanoseconds) -> Nanoseconds:
    """Return a duration rounded to seconds from a minute on, else to milliseconds."""
    unit = SECOND if span >= 60 * SECOND else 1_000_000
    # Half a unit is added to round to the nearest one.
    return Nanoseconds((span + unit // 2) // unit * unit)


def ago(span: Nanoseconds | None) -> str:
    """Return how long ago something was; None and -1 (of the API) are never."""
    if span is None or span < 0:
        return "never"
    return f"{rounded(span)} ago"


def header_lines(headers: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """Yield a line for each value of each header."""
    for name, values in headers.items():
        for value in values:
            yield f"{printable(name)}: {printable(value, LAYOUT)}\n"


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
    """Return bytes for JSON: ``name`` is text or, if it is no UTF-8, base64; see ``encoding``."""
    try:
        return {name: content.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError:
        # JSON has no bytes.
        return {name: base64.b64encode(content).decode(), "encoding": "base64"}


def content_text(content: bytes) -> str:
    """Return bytes for people: their text, or their number."""
    try:
        return printable(content.decode(), LAYOUT)
    except UnicodeDecodeError:
        return f"({len(content):,} bytes that are not text)"
