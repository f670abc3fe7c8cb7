"""Durations, sizes and times as JetStream has them: exact numbers that print as people write them. Pure.

`Nanoseconds` and `Bytes` are integers, and travel as such; `Timestamp` is the text of a time. Nothing is rounded: the
server counts nanoseconds, and `datetime` would lose the last three digits.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from pydantic_core import CoreSchema, core_schema

from spark_jetstream.errors import OptionError
from spark_jetstream.streams import parse_time, rfc3339
from spark_jetstream.values import Time, duration_seconds, size_bytes

_SECOND = 1_000_000_000
_UNITS = (
    ("d", 86_400 * _SECOND),
    ("h", 3600 * _SECOND),
    ("m", 60 * _SECOND),
)
_BELOW_A_MINUTE = (("s", _SECOND), ("ms", 1_000_000), ("us", 1000), ("ns", 1))
_SIZES = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_NEVER = "0001-01-01T00:00:00Z"


class Nanoseconds(int):
    """A duration: the number of its nanoseconds, which prints as ``1h30m``, ``1.5s`` or ``250ms``."""

    @classmethod
    def of(cls, value: object) -> Nanoseconds:
        """From ``10s``, ``5m``, ``1h30m``, ``1d``, ``2w``, ``1y``, a `timedelta`, or an integer of nanoseconds.

        `ValueError` for anything else, floating point numbers included: whether they count seconds is anybody's guess.
        Text without a unit is refused for the same reason, except ``0``.
        """
        if isinstance(value, dt.timedelta):
            microseconds = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
            return cls(microseconds * 1000)
        if isinstance(value, int) and not isinstance(value, bool):
            return cls(value)
        seconds = duration_seconds(value) if isinstance(value, str) else None
        if isinstance(value, str) and value.strip() == "0":
            return cls(0)
        if seconds is None:
            raise ValueError("not a duration")
        nanoseconds = seconds * _SECOND
        if nanoseconds.denominator != 1:
            raise ValueError("finer than a nanosecond")
        return cls(nanoseconds.numerator)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(cls.of)

    @property
    def timedelta(self) -> dt.timedelta:
        """The same as a `timedelta`, cut to microseconds."""
        return dt.timedelta(microseconds=int(self) // 1000)

    def __str__(self) -> str:
        left = abs(int(self))
        text = "-" if self < 0 else ""
        for unit, size in _UNITS:
            count, left = divmod(left, size)
            text += f"{count}{unit}" if count else ""
        for unit, size in _BELOW_A_MINUTE:
            if left >= size:
                whole, part = divmod(left, size)
                digits = f"{part:0{len(str(size)) - 1}d}".rstrip("0") if part else ""
                return f"{text}{whole}{'.' if digits else ''}{digits}{unit}"
        return text or "0s"


class Bytes(int):
    """A size: the number of its bytes, which prints as ``64KiB`` or ``1GiB`` when it is a round one."""

    @classmethod
    def of(cls, value: object) -> Bytes:
        """From ``65536``, ``512k``, ``8m``, ``1g``, ``8MiB`` (powers of 1,024), or an integer; else `ValueError`."""
        if isinstance(value, int) and not isinstance(value, bool):
            return cls(value)
        size = size_bytes(value) if isinstance(value, str) else None
        if size is None:
            raise ValueError("not a size")
        return cls(size)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(cls.of)

    def __str__(self) -> str:
        for unit, size in _SIZES:
            if self >= size and self % size == 0:
                return f"{int(self) // size}{unit}"
        return int.__repr__(self)


class Timestamp(str):
    """A time, as RFC 3339 text with up to nine digits after the second.

    What a server wrote stays as it is. What a user gives becomes UTC. Compare by `nanoseconds`: the same moment can be
    written in several ways.
    """

    __slots__ = ()

    @classmethod
    def of(cls, value: object) -> Timestamp:
        """From an aware `datetime`, text with a zone, or an integer of nanoseconds since the epoch.

        `ValueError`, in words to be read after "must be", for anything else: no zone, before 1970, after 2262.
        """
        if isinstance(value, dt.datetime):
            if value.utcoffset() is None:
                raise ValueError("a time with its zone (tzinfo), or text such as 2026-03-01T12:00:00Z")
            since = value - _EPOCH
            value = (since.days * 86_400 + since.seconds) * _SECOND + since.microseconds * 1000
        if not isinstance(value, (str, int)) or isinstance(value, bool):
            raise ValueError("a time such as 2026-03-01T12:00:00Z")
        try:
            return cls(_shortest(Time().parse("time", value)))
        except OptionError as error:
            words = str(error).removeprefix("option time must be ")
        # The error repeats a value only where that cannot be a secret.
        raise ValueError(words.partition(", not ")[0])

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(cls.of)

    @property
    def nanoseconds(self) -> int:
        """Nanoseconds since the epoch; 0 for the year 1 ("never", as the server says it) and outside 1970 to 2262."""
        return parse_time(self)

    @property
    def never(self) -> bool:
        """Whether this stands for no time at all."""
        return self.startswith("0001-") or not self

    @property
    def datetime(self) -> dt.datetime:
        """The same in UTC, cut to microseconds; the year 1 for `never`."""
        if self.never:
            return dt.datetime(1, 1, 1, tzinfo=dt.timezone.utc)
        return _EPOCH + dt.timedelta(microseconds=self.nanoseconds // 1000)


NEVER = Timestamp(_NEVER)
"""What the server writes for a time that never was."""


def _shortest(nanoseconds: int) -> str:
    """A time as Go prints it: no zeros at the end of the fraction, and no point when nothing follows."""
    return rfc3339(nanoseconds).removesuffix("Z").rstrip("0").rstrip(".") + "Z"
