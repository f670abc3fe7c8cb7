"""What the text of an option means: numbers, durations, sizes, times, yes and no, choices, secrets.

Spark hands every option over as text. Each class here is one kind of value: ``expects`` says in words what
is allowed, and ``parse(option, value)`` turns text into a Python value or raises `OptionError` in one
sentence that names the option and repeats no text that could be a secret. A value that already has its
Python type (seconds, bytes, nanoseconds) is checked and passed on.

Nothing here knows which options exist, and no arithmetic on times goes through floating point.
"""

from __future__ import annotations

import difflib
import functools
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from typing import ParamSpec, Protocol, TypeVar

from pydantic import SecretStr

from spark_jetstream.errors import OptionError

P = ParamSpec("P")
T = TypeVar("T")

INT64_MAX = 2**63 - 1
_SHOWN = 80  # characters of a wrong value that an error repeats
_SECOND = 1_000_000_000
_HARMLESS = re.compile(r"[0-9TZ .:+-]{1,40}|[0-9]{1,20} ?([num]?s|[mhd]|[kmgt](i?b)?)")
_EPOCH_DAY = date(1970, 1, 1).toordinal()

_UNITS = {  # nanoseconds
    "ns": 1,
    "nanosecond": 1,
    "us": 1_000,
    "µs": 1_000,
    "microsecond": 1_000,
    "ms": 1_000_000,
    "millisecond": 1_000_000,
    "s": _SECOND,
    "sec": _SECOND,
    "second": _SECOND,
    "m": 60 * _SECOND,
    "min": 60 * _SECOND,
    "minute": 60 * _SECOND,
    "h": 3600 * _SECOND,
    "hour": 3600 * _SECOND,
    "d": 86_400 * _SECOND,
    "day": 86_400 * _SECOND,
    "w": 604_800 * _SECOND,
    "week": 604_800 * _SECOND,
    "y": 365 * 86_400 * _SECOND,
    "year": 365 * 86_400 * _SECOND,
}
# `\d` would let digits of other scripts in; the bound keeps `int` away from absurd lengths.
_AMOUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-zµ]+)\s*")
_CAPITAL_M = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*M(?![A-Za-z])")
_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_SIZE = re.compile(r"([0-9]{1,19})\s*(?:([kmgt])(?:i?b)?|b)?")
_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]+))?)?)?"
    r"\s*([Zz]|UTC|GMT|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)


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


def shown(value: object) -> str:
    """A value as errors repeat it: quoted, on one line, cut when long. Not for options: see `wrong`."""
    text = " ".join(str(value).split())
    return f'"{text}"' if len(text) <= _SHOWN else f'"{text[:_SHOWN]}..."'


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
        closest = difflib.get_close_matches(word[:_SHOWN], self.words, n=1, cutoff=0.5)
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


def duration_seconds(text: str) -> Fraction | None:
    """The seconds that a text like ``1m 30s`` stands for, exactly; None when it is not a duration.

    Units match in any case, except ``M``, which is no unit: the ``nats`` command reads it as 30 days. A day has 24
    hours and a year has 365 days, as for that command. `minutes_or_months` tells the user.
    """
    text = text.strip()
    position, nanoseconds = 0, Fraction(0)
    while match := _AMOUNT.match(text, position):
        unit = match[2].lower() if match[2] != "M" else ""
        scale = _UNITS.get(unit) or _UNITS.get(unit[:-1] if unit.endswith("s") and len(unit) > 3 else "")
        if scale is None:
            return None
        nanoseconds += Fraction(match[1]) * scale
        position = match.end()
    return nanoseconds / _SECOND if position and position == len(text) else None


def minutes_or_months(value: object) -> str:
    """What an error adds, behind the wrong value, for a duration with the unit ``M``; empty for any other."""
    match = _CAPITAL_M.search(str(value))
    if match is None:
        return ""
    days = Fraction(match[1]) * 30
    number = days.numerator if days.denominator == 1 else f"{float(days):g}"
    return (
        f": M could mean minutes, or months as in the nats command; write {match[1]}m for minutes, and days instead of "
        f"months, such as {number}d"
    )


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


def size_bytes(text: str) -> int | None:
    """The bytes that a text like ``8m`` stands for; None when it is not a size."""
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None:
        return None
    return int(match[1]) << (10 * " kmgt".index(match[2] or " "))


@dataclass(frozen=True)
class Time:
    """ISO-8601 with a zone, down to nanoseconds, or epoch milliseconds -> int nanoseconds since the epoch.

    A time without zone is refused, because driver and executors may stand in different ones. So is a number
    too small to be milliseconds in any stream's lifetime: it is nearly always seconds. An `int` is
    nanoseconds.
    """

    @property
    def expects(self) -> str:
        return "a time such as 2026-03-01T12:00:00Z, 2026-03-01T12:00:00.5+01:00, or epoch milliseconds"

    def parse(self, option: str, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            nanoseconds: int | None = value
        else:
            nanoseconds = self._text(option, str(value).strip())
        if nanoseconds is None:
            raise wrong(option, self.expects, value)
        if not 0 <= nanoseconds <= INT64_MAX:
            raise wrong(option, "a time between 1970 and 2262", value)
        return nanoseconds

    @staticmethod
    def _text(option: str, text: str) -> int | None:
        if _INTEGER.fullmatch(text):
            milliseconds = int(text)
            if 0 < milliseconds < 10**11:
                raise wrong(option, "in epoch milliseconds when it is a number (is this seconds?)", text)
            return milliseconds * 1_000_000
        match = _TIME.fullmatch(text)
        if match is None:
            return None
        year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
        fraction, zone = match[7] or "", match[8]
        try:
            days = date(year, month, day).toordinal() - _EPOCH_DAY
        except ValueError:
            return None
        if hour > 23 or minute > 59 or second > 59 or (zone and match[4] is None):
            return None
        if zone is None:
            raise wrong(option, "a time with its zone (Z or +01:00 at the end)", text)
        if len(fraction) > 9:
            raise wrong(option, "a time of at most nine digits after the second", text)
        offset = _zone_minutes(zone)
        if offset is None:
            return None
        minutes = (days * 24 + hour) * 60 + minute - offset
        return (minutes * 60 + second) * _SECOND + int(fraction.ljust(9, "0"))


def _zone_minutes(zone: str) -> int | None:
    if zone[0] not in "+-":
        return 0
    hours, minutes = int(zone[1:3]), int(zone[3:].lstrip(":") or 0)
    if hours > 18 or minutes > 59:
        return None
    return (hours * 60 + minutes) * (-1 if zone[0] == "-" else 1)


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
