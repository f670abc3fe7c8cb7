"""What the text of an option means: numbers, durations, sizes, times, yes and no, choices, secrets.

Spark hands every option over as text. Each class here is one kind of value: ``expects`` says in words what
is allowed, and ``parse(option, value)`` turns text into a Python value or raises `OptionError` in one
sentence that names the option and repeats no text that could be a secret. A value that already has its
Python type (seconds, bytes, nanoseconds) is checked and passed on.

Nothing here knows which options exist, and no arithmetic on times goes through floating point.

Lists in the text of an option, separated by commas.
"""

from __future__ import annotations

import difflib
import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ParamSpec, Protocol, TypeVar

from pydantic import SecretStr

from spark_jetstream.errors import OptionError
from spark_jetstream.protocol.units import (
    A_TIME,
    INT64_MAX,
    MAX_SHOWN,
    duration_seconds,
    minutes_or_months,
    shown,
    size_bytes,
    time_nanoseconds,
)

P = ParamSpec("P")
T = TypeVar("T")

_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_HARMLESS = re.compile(r"[0-9TZ .:+-]{1,40}|[0-9]{1,20} ?([num]?s|[mhd]|[kmgt](i?b)?)")


class Kind(Protocol):
    """One kind of option value."""

    @property
    def expects(self) -> str:
        """What is allowed, to be read after "must be"."""

    def parse(self, option: str, value: object) -> object:
        """The Python value, or `OptionError` naming ``option``."""


def hidden(options: Mapping[str, object]) -> dict[str, SecretStr | None]:
    """Options as they were given, in a form that no ``repr``, log or traceback with local variables reveals.

    Any value may be a secret that the caller put into the wrong option, so all are hidden until they are parsed. A list
    becomes one text with commas.
    """
    return {name: _hidden(value) for name, value in options.items()}


def _hidden(value: object) -> SecretStr | None:
    if value is None or isinstance(value, SecretStr):
        return value
    return SecretStr(",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))


def revealed(value: object) -> object:
    """The text of a hidden value; other values as they are."""
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def unseen(work: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that handles revealed values.

    The `OptionError` that it raises loses the frames it came from, whose local variables hold these values. The
    function's own arguments stay visible and must be hidden values.
    """

    @functools.wraps(work)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return work(*args, **kwargs)
        except OptionError as error:
            fault = error
        fault.__context__ = None
        raise fault.with_traceback(None)

    return call


def wrong(option: str, expects: str, value: object = None, hint: str = "") -> OptionError:
    """The error for a value that is not what ``expects`` says; ``hint`` ends it.

    It repeats a number, also with a unit, or a time. Any other text may be a secret that was given by mistake.
    """
    harmless = _HARMLESS.fullmatch(str(value))
    said = f", not {shown(value)}" if harmless else ""
    return OptionError(f"option {option} must be {expects}{said}{hint}", option=option)


@dataclass(frozen=True)
class Flag:
    """``true`` or ``false`` in any case -> bool; nothing else, since a mistyped word must not mean false."""

    @property
    def expects(self) -> str:
        return "true or false"

    def parse(self, option: str, value: object) -> bool:
        if isinstance(value, bool):
            return value
        text = str(value).strip().lower()
        if text not in {"true", "false"}:
            raise wrong(option, self.expects, value)
        return text == "true"


@dataclass(frozen=True)
class Choice:
    """One of ``words``, in any case -> the word as it stands there. ``words`` are in lower case."""

    words: tuple[str, ...]

    @property
    def expects(self) -> str:
        return f"{', '.join(self.words[:-1])} or {self.words[-1]}"

    def parse(self, option: str, value: object) -> str:
        word = str(value).strip().lower()
        if word in self.words:
            return word
        # Longer texts are no typing errors, and comparing them takes time that grows with their length.
        closest = difflib.get_close_matches(word[:MAX_SHOWN], self.words, n=1, cutoff=0.5)
        hint = f"; did you mean {closest[0]}" if closest else ""
        raise wrong(option, self.expects, value, hint)


@dataclass(frozen=True)
class Whole:
    """A whole number from ``low`` to ``high`` -> int."""

    low: int = 1
    high: int = INT64_MAX

    @property
    def expects(self) -> str:
        high = "2^63-1" if self.high == INT64_MAX else f"{self.high:,}"
        return f"a whole number from {self.low:,} to {high}"

    def parse(self, option: str, value: object) -> int:
        text = str(value).strip()
        if isinstance(value, bool) or not _INTEGER.fullmatch(text) or not self.low <= int(text) <= self.high:
            raise wrong(option, self.expects, value)
        return int(text)


@dataclass(frozen=True)
class Duration:
    """``500ms``, ``10s``, ``5m``, ``2h``, ``1d``, ``2w``, ``1y``, ``10 seconds``, ``1m 30s`` -> float seconds.

    ``low`` and ``high`` are durations too. A number without unit is refused: Spark's own options disagree
    about whether that means seconds or milliseconds. A number that is not text is taken as seconds.
    """

    low: str
    high: str

    @property
    def expects(self) -> str:
        return f"a duration from {self.low} to {self.high} such as 500ms, 30s, 5m or 2h"

    def parse(self, option: str, value: object) -> float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            seconds: Fraction | None = Fraction(value) if abs(value) <= INT64_MAX else None
        else:
            seconds = duration_seconds(str(value))
        low, high = duration_seconds(self.low), duration_seconds(self.high)
        if seconds is None or low is None or high is None or not low <= seconds <= high:
            raise wrong(option, self.expects, value, minutes_or_months(value))
        return float(seconds)


@dataclass(frozen=True)
class Size:
    """``65536``, ``512k``, ``8m``, ``8mb``, ``8MiB``, ``1g`` -> int bytes; units are powers of 1,024."""

    low: str
    high: str

    @property
    def expects(self) -> str:
        return f"a size from {self.low} to {self.high} such as 65536, 512k, 8m or 1g"

    def parse(self, option: str, value: object) -> int:
        size = None if isinstance(value, bool) else size_bytes(str(value))
        low, high = size_bytes(self.low), size_bytes(self.high)
        if size is None or low is None or high is None or not low <= size <= high:
            raise wrong(option, self.expects, value)
        return size


@dataclass(frozen=True)
class Time:
    """ISO-8601 with a zone, down to nanoseconds, or epoch milliseconds -> int nanoseconds since the epoch.

    A time without zone is refused, because driver and executors may stand in different ones. So is a number
    too small to be milliseconds in any stream's lifetime: it is nearly always seconds. An `int` is
    nanoseconds.
    """

    @property
    def expects(self) -> str:
        return A_TIME

    def parse(self, option: str, value: object) -> int:
        try:
            return time_nanoseconds(value)
        except ValueError as error:
            expected = str(error)
        # Raised out here: inside, the caught error would be its context, and hold frames with the value.
        raise wrong(option, expected, value)


@dataclass(frozen=True)
class Text:
    """Any text that is not empty -> str, as it is."""

    @property
    def expects(self) -> str:
        return "a text"

    def parse(self, option: str, value: object) -> str:
        text = str(value)
        if not text.strip():
            raise OptionError(f"option {option} must not be empty", option=option)
        return text


@dataclass(frozen=True)
class Secret:
    """Any text that is not empty -> `SecretStr`. No error repeats it."""

    @property
    def expects(self) -> str:
        return "a text that is kept secret"

    def parse(self, option: str, value: object) -> SecretStr:
        secret = value if isinstance(value, SecretStr) else SecretStr(str(value))
        if not secret.get_secret_value().strip():
            raise OptionError(f"option {option} must not be empty", option=option)
        return secret


def file_path(what: str, path: str | os.PathLike[str]) -> str:
    """A path as text. `OptionError` that begins with ``what`` for one that no file can have.

    Python raises a bare `ValueError` for a path with a NUL character or with half of a surrogate pair.
    """
    text = os.fspath(path)
    try:
        possible = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        possible = False
    if not possible:
        raise OptionError(f"{what} must be a path that a file can have: this one has a character of none", option=what)
    return text


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
