"""Lists in the text of an option, separated by commas."""

from __future__ import annotations

from collections.abc import Sequence

from spark_jetstream.errors import OptionError
from spark_jetstream.units import shown
from spark_jetstream.values import wrong


def items(option: str, value: object, what: str) -> tuple[str, ...]:
    """The elements of a comma list, or of a sequence of str, without blanks around them.

    Raises `OptionError`.
    """
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
        raise wrong(option, f"a comma list of {what}")
    items = tuple(part.strip() for part in parts)
    if not all(items):
        raise OptionError(f"option {option} holds an empty element where {what} are listed", option=option)
    return items


def place(names: Sequence[str], index: int) -> str:
    """Which element of a list an error is about; errors never repeat the element itself.

    To be read after the option's name.
    """
    return "" if len(names) == 1 else f" (element {index + 1})"


def refuse_twice(option: str, names: Sequence[str]) -> None:
    """Raise `OptionError` when a name is listed twice."""
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f"option {option} names {shown(name)} twice", option=option)
