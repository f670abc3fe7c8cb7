"""A table of docs/compatibility.md that a tool writes, with a row for each combination of versions."""

from __future__ import annotations

import datetime
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tests.support.project import ROOT

PAGE = ROOT / "docs" / "compatibility.md"


@dataclass(frozen=True)
class VersionTable:
    """The table between the comments `<!-- NAME -->` and `<!-- /NAME -->` of the page.

    Its first columns are an axis and the versions of Python, Spark and nats-server, its last ones
    those of `stamp`. The rows of `not_run`, one for each combination, say that nothing was run.
    """

    name: str
    columns: Sequence[str]
    not_run: Callable[[], Iterable[list[str]]]

    def rows(self, page: str) -> list[list[str]]:
        """The rows in the text of the page, without the head of the table."""
        (table,) = self._place.findall(page)
        return [
            [value.strip() for value in line.split("|")[1:-1]] for line in table.splitlines()[2:]
        ]

    def put(self, page: str, *new: list[str]) -> str:
        """Return the text of the page with these rows in place of the rows of the same combinations.

        Every other combination has its old row, or one that says that it was not run.
        """
        known = {key(row): row for row in [*self.rows(page), *new]}
        rows = [known.get(key(row), row) for row in self.not_run()]
        head = [list(self.columns), ["---"] * len(self.columns)]
        lines = [f"| {' | '.join(row)} |" for row in [*head, *rows]]
        return self._place.sub(lambda _: "\n".join([*lines, ""]), page)

    @property
    def _place(self) -> re.Pattern[str]:
        """The text between the comments."""
        return re.compile(rf"(?<=<!-- {self.name} -->\n).*?(?=<!-- /{self.name} -->)", re.DOTALL)


def key(row: list[str]) -> tuple[str, ...]:
    """Return the axis of a row, and the minor versions of its Python, Spark and server.

    No other row of the table has the same.
    """
    return (row[0], *map(minor, row[1:4]))


def minor(version: str) -> str:
    """The first two numbers of a version, or of each in a text."""
    return re.sub(r"(\d+\.\d+)\.[\w.]+", r"\1", version)


def stamp() -> list[str]:
    """The last two columns of a row: today, and the newest commit that this run contains."""
    day = datetime.datetime.now(datetime.timezone.utc).date()
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [str(day), commit.strip()]
