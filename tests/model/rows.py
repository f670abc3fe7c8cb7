"""The rows that a sink must hold, and how often: one rule for all suites that count rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Generic, TypeVar

T = TypeVar("T")


class Wrong(Generic[T]):
    """The rows that are wrong in a sink, each with how often it is: `missing`, `repeated`, `foreign`.

    `found` is how often the sink has each row. It must have each of `owed` that often, and none
    that was not `asked` for. It has a row no more often than it was asked for, unless the row may
    be there `again`, or with `exact` false.
    """

    def __init__(
        self,
        found: Counter[T],
        owed: Counter[T],
        asked: Counter[T],
        *,
        exact: bool = True,
        again: Collection[T] = (),
    ) -> None:
        self.missing = owed - found
        self.foreign = Counter({row: times for row, times in found.items() if row not in asked})
        self.repeated: Counter[T] = Counter()
        if exact:
            more = found - asked - self.foreign
            self.repeated = Counter({row: times for row, times in more.items() if row not in again})

    def __bool__(self) -> bool:
        return bool(self.missing or self.repeated or self.foreign)

    def lines(self) -> list[str]:
        """Return a line for each kind of fault, in words."""
        kinds = {"missing": self.missing, "repeated": self.repeated, "never sent": self.foreign}
        return [f"{len(rows)} {what}, such as {few(rows)}" for what, rows in kinds.items() if rows]


def few(rows: Collection[T], most: int = 5) -> list[T]:
    """Return the first of some rows."""
    return list(rows)[:most]
