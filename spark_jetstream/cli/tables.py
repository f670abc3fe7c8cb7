"""Columns of a table: the texts of their cells, and how wide each is on a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_LONG_WORD = 24  # more than a time has
_GAP = 2  # blanks between two columns, where the terminal has room
_ISO_TIME = re.compile(r"^(\d{4}-\d\d-\d\d)T(?=[\d:]+Z$)")


@dataclass(frozen=True)
class TableColumn:
    """A column of a table. ``numeric``: all of its values are numbers, or None."""

    heading: str
    cells: Sequence[str]
    numeric: bool

    @property
    def least_width(self) -> int:
        """The width of the longest word, or `_LONG_WORD` if that is less: longer words break."""
        words = " ".join([self.heading, *self.cells]).split()
        # Longer words, such as keys, may break anywhere, so that one of them does not push the
        # others out.
        return min(_LONG_WORD, _longest(words))

    @property
    def full_width(self) -> int:
        """The width at which no cell breaks."""
        return _longest([self.heading, *self.cells])


class Layout(NamedTuple):
    """The width of each column; ``narrow``: one blank between two columns, in place of two."""

    widths: list[int]
    narrow: bool


def columns_of(
    rows: Sequence[Mapping[str, object]],
    text: Callable[[object], str],
    *,
    breaks: bool,
) -> list[TableColumn]:
    """Return the columns of rows that have the same headings.

    A column without a heading is left out if all of its cells are empty. ``breaks``: cells may
    break, so a time has a blank where it may break.
    """
    columns = []
    for heading in rows[0]:
        values = [row[heading] for row in rows]
        cells = [text(value) for value in values]
        if breaks:
            cells = [_ISO_TIME.sub(r"\1 ", cell) for cell in cells]
        # A column of remarks has no heading.
        if heading or any(cells):
            # Numbers stand to the right, so their digits are in columns.
            columns.append(TableColumn(heading, cells, _are_numbers(values)))
    return columns


def _are_numbers(values: Iterable[object]) -> bool:
    """Return whether all values are numbers, apart from None, which stands for an unknown one."""
    return all(value is None or isinstance(value, (int, float)) for value in values)


def fit(columns: Sequence[TableColumn], width: int) -> Layout:
    """Return the layout of columns on a terminal that is ``width`` wide."""
    least = [column.least_width for column in columns]
    gaps = len(columns) - 1
    # Columns of the terminal that are left when each has its least width. It may be negative.
    spare = width - sum(least) - _GAP * gaps
    narrow = spare < 0
    if narrow:
        spare += gaps
    widths = []
    # From the left, each column takes of the spare room as much as its cells lack.
    for column, room in zip(columns, least, strict=True):
        more = max(0, min(spare, column.full_width - room))
        spare -= more
        widths.append(room + more)
    return Layout(widths, narrow)


def _longest(texts: Iterable[str]) -> int:
    """Return how many columns of a terminal the longest of these texts takes."""
    from rich.cells import cell_len

    # A character of Chinese takes two columns of the terminal.
    return max(map(cell_len, texts), default=0)
