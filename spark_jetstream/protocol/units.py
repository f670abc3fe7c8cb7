"""Durations, sizes and times: how people and the server write them, as exact numbers. Pure.

Nothing is rounded: the server counts nanoseconds, and `datetime` would lose the last three digits.
"""

from __future__ import annotations

import datetime as dt
import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from spark_jetstream.errors import brief

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

SECOND = 1_000_000_000
"""Nanoseconds."""
INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1
MAX_SHOWN = 80
"""How many characters of a wrong value an error repeats."""
A_TIME = "a time such as 2026-03-01T12:00:00Z, 2026-03-01T12:00:00.5+01:00, or epoch milliseconds"
CLOCK_RANGE = "from 1677-09-22 to 2262-04-11"
"""The days that a server's clock has (`beyond_clock`), for errors."""
_FIRST_YEAR = 1677
_LAST_YEAR = 2262
_MICROSECOND = dt.timedelta(microseconds=1)

_UNITS = (  # nanoseconds, what prints, and what is read as well
    (365 * 86_400 * SECOND, "y", "year"),
    (604_800 * SECOND, "w", "week"),
    (86_400 * SECOND, "d", "day"),
    (3600 * SECOND, "h", "hour"),
    (60 * SECOND, "m", "min", "minute"),
    (SECOND, "s", "sec", "second"),
    (1_000_000, "ms", "millisecond"),
    (1_000, "us", "µs", "microsecond"),
    (1, "ns", "nanosecond"),
)
_UNIT_NANOSECONDS = {name: size for size, *names in _UNITS for name in names}
_UNIT_NANOSECONDS |= {f"{name}s": size for name, size in _UNIT_NANOSECONDS.items() if len(name) > 2}
_AMOUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-zµ]+)\s*")
_CAPITAL_M = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*M(?![A-Za-z])")
_SIZE = re.compile(r"([0-9]{1,19})\s*(?:([kmgt])(?:i?b)?|b)?")
# Digits that make no difference are left out; Go also writes the letter mu in two ways.
_GO_NUMBER = r"([0-9]{1,19}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})[0-9]*"
_GO_AMOUNT = re.compile(_GO_NUMBER + "(ns|us|µs|μs|ms|s|m|h)")
_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]+))?)?"
    r"\s*([Zz]|UTC|GMT|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)
_YEAR = re.compile(r"([0-9]{4})-")
_SIZES = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


def _read_by(kind: Any, source: Any, handler: Any) -> CoreSchema:
    """Return the schema of a field of this type, which its method ``of`` reads."""
    # `spark-jetstream --help` has no use for it.
    from pydantic_core import core_schema  # noqa: PLC0415

    return core_schema.no_info_plain_validator_function(kind.of)


def shown(value: object) -> str:
    """A value as errors repeat it: quoted, on one line, cut when long.

    Not for options, which may be secrets.
    """
    try:
        text = " ".join(str(value).split())
    except ValueError:  # of Python: YAML can write what it does not print
        text = "a number of thousands of digits"
    return f'"{brief(text, MAX_SHOWN)}"'


def integer(text: str) -> int | None:
    """Return the number of a text of at most 30 ASCII digits, perhaps with a sign; else None."""
    # `\d` would let digits of other scripts in; the bound keeps `int` away from absurd lengths.
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,30}", text) else None


def whole_number(text: str | bytes) -> int | None:
    """Return the number from 0 to 2^63-1 of a text of at most 19 ASCII digits; else None."""
    # `int` would also take digits of other scripts, and would take long for thousands of them.
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        return None
    number = int(text)
    return number if number <= INT64_MAX else None


def duration_seconds(text: str) -> Fraction | None:
    """The seconds that a text like ``1m 30s`` denotes, exactly; None when it is not a duration.

    Units match in any case, except ``M``, which is no unit: the ``nats`` command reads it as 30
    days. A day has 24 hours and a year has 365 days, as for that command. `minutes_or_months` tells
    the user.
    """
    text = text.strip()
    position = 0
    nanoseconds = Fraction(0)
    while match := _AMOUNT.match(text, position):
        scale = _UNIT_NANOSECONDS.get(match[2].lower())
        if scale is None or match[2] == "M":
            return None
        nanoseconds += Fraction(match[1]) * scale
        position = match.end()
    if not text or position != len(text):
        return None
    return nanoseconds / SECOND


def go_duration(text: str) -> Fraction | None:
    """Return the nanoseconds of a duration such as ``1h30m``, as a server reads it.

    None for a text that is no duration. Servers read it with Go's `time.ParseDuration`, whose
    longest unit is the hour.
    """
    start = 1 if text[:1] in ("+", "-") else 0
    position = start
    nanoseconds = Fraction(0)
    while match := _GO_AMOUNT.match(text, position):
        unit = "µs" if match[2] == "μs" else match[2]
        nanoseconds += Fraction(match[1].rstrip(".")) * _UNIT_NANOSECONDS[unit]
        position = match.end()
    if position == start or position != len(text):
        return None
    return -nanoseconds if text[0] == "-" else nanoseconds


def minutes_or_months(value: object) -> str:
    """Return what an error adds to a duration with the unit ``M``; "" for any other value."""
    match = _CAPITAL_M.search(str(value))
    if match is None:
        return ""
    days = Fraction(match[1]) * 30
    number = days.numerator if days.denominator == 1 else f"{float(days):g}"
    return (
        f": M could mean minutes, or months as in the nats command; write {match[1]}m for minutes, "
        f"and days instead of months, such as {number}d"
    )


def time_nanoseconds(value: object) -> int:
    """Return a time from 1970 to 2262 as nanoseconds since the epoch.

    Text has a zone, or is a number of milliseconds since the epoch. An integer is nanoseconds. The
    `ValueError` for anything else says what the value must be, and does not repeat it.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        nanoseconds = value
    else:
        nanoseconds = _text_nanoseconds(str(value).strip())
    if not 0 <= nanoseconds <= INT64_MAX:
        raise ValueError("a time between 1970 and 2262")
    return nanoseconds


def _text_nanoseconds(text: str) -> int:
    """Return a time in one of the forms of `A_TIME` as nanoseconds. Raises `ValueError`."""
    milliseconds = integer(text)
    if milliseconds is not None:
        # 10**11 ms are in 1973.
        if 0 < milliseconds < 10**11:
            raise ValueError("in epoch milliseconds when it is a number (is this seconds?)")
        return milliseconds * 1_000_000
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(A_TIME)
    return _moment_nanoseconds(match)


def _moment_nanoseconds(match: re.Match[str]) -> int:
    """Return the time of a match of `_TIME` as nanoseconds. Raises `ValueError`."""
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    fraction = match[7] or ""
    zone = match[8]
    try:
        moment = dt.datetime(year, month, day, hour, minute, second, tzinfo=dt.timezone.utc)
    except ValueError:
        raise ValueError(A_TIME) from None
    if zone is None:
        raise ValueError("a time with its zone (Z or +01:00 at the end)")
    if len(fraction) > 9:
        raise ValueError("a time of at most nine digits after the second")
    return Nanoseconds.of(moment - _EPOCH - _offset(zone)) + int(fraction.ljust(9, "0"))


def _offset(zone: str) -> dt.timedelta:
    """Return how far a zone such as ``+01:00`` is before UTC. Raises `ValueError`."""
    if zone[0] not in "+-":
        return dt.timedelta(0)
    hours = int(zone[1:3])
    minutes = int(zone[3:].lstrip(":") or 0)
    if hours > 18 or minutes > 59:
        raise ValueError(A_TIME)
    offset = dt.timedelta(hours=hours, minutes=minutes)
    return -offset if zone[0] == "-" else offset


def beyond_clock(text: str) -> bool:
    """Return whether RFC 3339 text is a time that a server's clock does not have.

    A server counts the nanoseconds since 1970 in 64 bits, which is from 1677-09-21 to 2262-04-11.
    It takes a time of any year, and counts one beyond these as if it were between them. False for a
    text that is no time, unless it begins with one of these two years.
    """
    begin = _YEAR.match(text)
    if begin is None or _FIRST_YEAR < int(begin[1]) < _LAST_YEAR:
        return False
    if int(begin[1]) not in (_FIRST_YEAR, _LAST_YEAR):
        return True
    try:
        return not INT64_MIN <= _text_nanoseconds(text) <= INT64_MAX
    except ValueError:
        return True


def parse_time(text: str) -> int:
    """Return a time that the server printed, as nanoseconds since the epoch.

    0 for its year 1 ("never") and for text that is no time.
    """
    try:
        return time_nanoseconds(text)
    except ValueError:
        return 0


def rfc3339(nanoseconds: int) -> str:
    """Return a time in ns since the epoch as text, with nine digits after the second."""
    seconds, fraction = divmod(nanoseconds, SECOND)
    moment = dt.datetime.fromtimestamp(seconds, dt.timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{fraction:09d}Z"


class Nanoseconds(int):
    """A duration: the number of its nanoseconds; prints as ``1h30m``, ``1.5s`` or ``250ms``."""

    @classmethod
    def of(cls, value: object) -> Nanoseconds:
        """From text such as ``1h30m`` or ``2w``, a `timedelta`, or an integer of nanoseconds.

        `ValueError` for anything else, floating point numbers included: whether they count seconds
        is anybody's guess. Text without a unit is refused for the same reason, except ``0``.
        """
        if isinstance(value, dt.timedelta):
            return cls(value // _MICROSECOND * 1000)
        if isinstance(value, int) and not isinstance(value, bool):
            return cls(value)
        if not isinstance(value, str):
            raise ValueError("not a duration")
        if value.strip() == "0":
            return cls(0)
        seconds = duration_seconds(value)
        if seconds is None:
            raise ValueError("not a duration")
        nanoseconds = seconds * SECOND
        if nanoseconds.denominator != 1:
            raise ValueError("finer than a nanosecond")
        return cls(nanoseconds.numerator)

    __get_pydantic_core_schema__ = classmethod(_read_by)

    @property
    def timedelta(self) -> dt.timedelta:
        """The same as a `timedelta`, cut to microseconds."""
        return dt.timedelta(microseconds=int(self) // 1000)

    def __str__(self) -> str:
        left = abs(int(self))
        text = "-" if self < 0 else ""
        for size, unit, *_ in _UNITS[2:]:  # years and weeks print as days
            whole, left = divmod(left, size)
            if not whole:
                continue
            text += str(whole)
            if size <= SECOND:
                # The rest is a decimal fraction: 1.5s, and not 1s500ms.
                return f"{text}{_fraction(left, size)}{unit}"
            text += unit
        return text or "0s"


def _fraction(part: int, size: int) -> str:
    """Return ``.5`` for a part of 500 of a size of 1,000; "" for none."""
    if not part:
        return ""
    places = len(str(size)) - 1
    return f".{part:0{places}d}".rstrip("0")


class Bytes(int):
    """A size: the number of its bytes; a round one prints as ``64KiB`` or ``1GiB``."""

    @classmethod
    def of(cls, value: object) -> Bytes:
        """From ``65536``, ``512k``, ``8m``, ``1g``, ``8MiB`` (powers of 1,024), or an integer.

        Raises `ValueError` for anything else.
        """
        if isinstance(value, int) and not isinstance(value, bool):
            return cls(value)
        if not isinstance(value, str):
            raise ValueError("not a size")
        match = _SIZE.fullmatch(value.strip().lower())
        if match is None:
            raise ValueError("not a size")
        power = " kmgt".index(match[2] or " ")
        return cls(int(match[1]) << (10 * power))

    __get_pydantic_core_schema__ = classmethod(_read_by)

    def __str__(self) -> str:
        for unit, size in _SIZES:
            if self >= size and self % size == 0:
                return f"{int(self) // size}{unit}"
        return int.__repr__(self)


def rough(size: int) -> str:
    """Return a number of bytes for people: ``512B``, ``67.3KiB``, ``1GiB``.

    It is exact where it has no point.
    """
    for unit, unit_size in _SIZES:
        if size < unit_size:
            continue
        if size % unit_size:
            return f"{size / unit_size:.1f}{unit}"
        return f"{size // unit_size}{unit}"
    return f"{size}B"


def sized(size: int) -> str:
    """Return a number of bytes exactly, from 1 KiB on also `rough`: ``68,890 bytes (67.3KiB)``."""
    exact = counted(size, "byte")
    return f"{exact} ({rough(size)})" if size >= 1 << 10 else exact


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: ``1 message``, ``2,000 messages``."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}s"


class Timestamp(str):
    """A time, as RFC 3339 text with up to nine digits after the second.

    The text of a server stays as it is. The time of a user becomes UTC. Compare by `nanoseconds`:
    the same moment can be written in several ways.
    """

    __slots__ = ()

    @classmethod
    def of(cls, value: object) -> Timestamp:
        """From an aware `datetime`, text with a zone, or an integer of nanoseconds since the epoch.

        `ValueError`, in words to be read after "must be", for anything else: no zone, before 1970,
        after 2262.
        """
        if isinstance(value, dt.datetime):
            if value.utcoffset() is None:
                raise ValueError(
                    "a time with its zone (tzinfo), or text such as 2026-03-01T12:00:00Z"
                )
            value = Nanoseconds.of(value - _EPOCH)
        if not isinstance(value, (str, int)) or isinstance(value, bool):
            raise ValueError("a time such as 2026-03-01T12:00:00Z")
        # As Go prints it: no zeros at the end of the fraction, and no point when nothing follows.
        return cls(rfc3339(time_nanoseconds(value)).removesuffix("Z").rstrip("0").rstrip(".") + "Z")

    __get_pydantic_core_schema__ = classmethod(_read_by)

    @property
    def nanoseconds(self) -> int:
        """Nanoseconds since the epoch; 0 outside 1970 to 2262, such as for "never", the year 1."""
        return parse_time(self)

    @property
    def never(self) -> bool:
        """Whether this means "never"."""
        return self.startswith("0001-") or not self

    @property
    def datetime(self) -> dt.datetime:
        """The same in UTC, cut to microseconds; the year 1 for `never`."""
        if self.never:
            return dt.datetime(1, 1, 1, tzinfo=dt.timezone.utc)
        return _EPOCH + dt.timedelta(microseconds=self.nanoseconds // 1000)


LONGEST_TTL = Nanoseconds(200 * 365 * 86_400 * SECOND)
"""The longest TTL of a message, and the longest time between messages of a schedule: 200 years.

A server adds it to the time of the message. If the sum is after 2262-04-11 (`beyond_clock`), it
removes the message at once.
"""

NEVER = Timestamp("0001-01-01T00:00:00Z")
"""The server's text for a time that never was."""
