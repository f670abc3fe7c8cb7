"""Kinds of values: numbers, durations, sizes, times, flags, choices, texts. Pure.

A kind is used in two places:

- for an option, with `Kind.parse`. Spark hands every option over as text. An error repeats the value, unless the option
  is a secret or the text looks like one (`like_a_secret`), which was given for the wrong option.
- for a field of a pydantic model, as ``Annotated[int, Whole(1)]``. An error repeats the value. What a server sent is
  read and not checked, because a newer server may have wider ranges and further choices.

`names` has the kinds of names and of lists. No arithmetic on times goes through floating point.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import functools
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, ParamSpec, TypeVar

from pydantic import GetCoreSchemaHandler, SecretStr, ValidationInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from spark_jetstream.errors import OptionError, closest
from spark_jetstream.protocol.units import (
    A_TIME,
    INT64_MAX,
    Bytes,
    Nanoseconds,
    Timestamp,
    duration_seconds,
    integer,
    minutes_or_months,
    shown,
    time_nanoseconds,
)

P = ParamSpec("P")
T = TypeVar("T")

UINT64_MAX = 2**64 - 1
TRUST = {"trusted": True}
"""The validation context for what a server sent."""
NOT_SHOWN = "given, not shown"

_LIKE_A_SECRET = re.compile(
    r"S[ACNOPUX][A-Z2-7]{20}"  # an NKey seed
    r"|eyJ[\w-]{10}"  # a JWT
    r"|-----"  # a block of a PEM or .creds file
    r"|@"  # a login and a host
    r"|(?i:authorization|bearer)\b"
    r"|(?i:passw\w*|pass|pwd|secret|token|seed|jwt)[\"']?\s*[=:]"
)
_SERVER_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}")
_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?"
    r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_TOO_LONG = ": a server counts nanoseconds in 64 bits, at most 292y"
_WHOLE_VALUE = object()


def hidden(options: Mapping[str, object]) -> dict[str, SecretStr | None]:
    """Return options in a form that no ``repr``, log or traceback with local variables reveals.

    All values stay hidden until they are parsed. A list becomes one text with commas.
    """
    return {name: _hidden(value) for name, value in options.items()}


def _hidden(value: object) -> SecretStr | None:
    if value is None or isinstance(value, SecretStr):
        return value
    return SecretStr(",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))


def revealed(value: object) -> object:
    """Return the text of a hidden value, and any other value as it is."""
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def unseen(work: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that handles revealed values.

    The `OptionError` that it raises loses the frames it came from and the error that it was raised for, which hold
    these values. The function's own arguments stay visible and must be hidden values.
    """

    @functools.wraps(work)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return work(*args, **kwargs)
        except OptionError as error:
            without_frames = error
        without_frames.__context__ = None
        raise without_frames.with_traceback(None)

    return call


def like_a_secret(text: str) -> bool:
    """Return whether a text may hold a login: a seed, a JWT, a key, a password with its name, a URL with a user."""
    return _LIKE_A_SECRET.search(text) is not None


def quoted_unless_secret(text: str) -> str:
    """Return a blank and the quoted text, to be read after a noun; "" when it looks like a secret."""
    return "" if like_a_secret(text) else f" {shown(text)}"


def did_you_mean(given: str, known: Iterable[str], cutoff: float = 0.6, *, quoted: bool = False) -> str:
    """Return the end of an error, ``; did you mean NAME``, for a name that is not known; "" when none is like it."""
    name = closest(given, known, cutoff)
    return f"; did you mean {shown(name) if quoted else name}" if name else ""


class UnfitError(ValueError):
    """A value that its kind refuses.

    `expects` is what it must be, where `Kind.expects` is too general, and `hint` the end of the sentence. `value` is
    the part that is wrong (None for one that no error may repeat), and `where` says which part, to be read after the
    name. `problem` is the whole sentence after the name, in place of "must be ..."; a `value` beside it follows it.
    """

    def __init__(
        self, expects: str = "", hint: str = "", *, value: object = _WHOLE_VALUE, where: str = "", problem: str = ""
    ) -> None:
        super().__init__(expects, hint, where, problem)
        self.expects, self.hint, self.value, self.where, self.problem = expects, hint, value, where, problem


def _sentence(error: ValueError, expects: str, value: object, *, guarded: bool) -> str:
    """Return what is wrong, to be read after a name. With ``guarded`` nothing is repeated that looks like a secret."""
    unfit = error if isinstance(error, UnfitError) else UnfitError()
    part = value
    if unfit.value is not _WHOLE_VALUE:
        part = unfit.value
    elif unfit.problem:
        part = None
    # The whole value counts: the part after a comma may be the second half of a password.
    withheld = part is None or (guarded and like_a_secret(str(value)))
    repeated = "" if withheld else shown(part)
    if unfit.problem:
        given = f" (given: {repeated})" if repeated else ""
        return f"{unfit.where} {unfit.problem}{given}"
    instead = f", not {repeated}" if repeated else ""
    return f"{unfit.where} must be {unfit.expects or expects}{instead}{unfit.hint}"


def trusted(info: ValidationInfo) -> bool:
    """Return whether the values come from a server, or were checked before."""
    return bool(info.context and info.context.get("trusted"))


def field_error(kind: str, message: str) -> PydanticCustomError:
    """Return an error of a model's field. Its message is taken literally, but for what cannot be printed."""
    return PydanticCustomError(kind, "{message}", {"message": message.encode(errors="backslashreplace").decode()})


class Kind(ABC):
    """One kind of value, for options and for fields of models."""

    python: ClassVar[type[Any]] = str
    wire: ClassVar[type[Any]] = str
    strips: ClassVar[bool] = True
    """Whether blanks around the text of an option mean nothing."""
    displayed: ClassVar[bool] = True
    """Whether logs and ``repr`` may show the value of an option."""

    @property
    @abstractmethod
    def expects(self) -> str:
        """What is allowed, to be read after "must be". Kinds without parameters assign a text."""

    @abstractmethod
    def _read(self, value: Any) -> Any:
        """Return the Python value; raise `UnfitError`, or any other `ValueError`, when there is none."""

    def display(self, value: Any) -> Any:
        """Return the value of an option, or None, as logs and ``repr`` may show it."""
        return value if self.displayed or value is None else NOT_SHOWN

    def read(self, value: object) -> Any:
        """Return the Python value.

        The text of the `ValueError` for another one follows a name, and repeats the value.
        """
        try:
            return self._read(value)
        except ValueError as error:
            raise ValueError(_sentence(error, self.expects, value, guarded=False).strip()) from None

    def parse(self, option: str, value: object) -> Any:
        """Return the value of an option. The `OptionError` repeats a value that does not look like a secret."""
        given = value.strip() if self.strips and isinstance(value, str) else value
        try:
            return self._read(given)
        except ValueError as error:
            problem = _sentence(error, self.expects, given, guarded=True)
        # Raised here, because the caught error would be its context, with frames that hold the value.
        raise OptionError(f"option {option}{problem}", option=option)

    def check(self, value: Any, info: ValidationInfo) -> Any:
        """Return the value of a model's field; raise the error of that field."""
        if trusted(info):
            if isinstance(value, self.wire) and (self.wire is bool or not isinstance(value, bool)):
                return value if isinstance(value, self.python) else self.python(value)
            raise field_error("wrong_type", f"must be {self.expects}, not {shown(value)}")
        try:
            return self.read(value)
        except ValueError as error:
            raise field_error("wrong_value", str(error)) from None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(self.check)


def text_of(value: Any) -> str:
    """Return the text; raise `ValueError` for another type, and for halves of surrogate pairs, which UTF-8 lacks."""
    if not isinstance(value, str):
        raise UnfitError
    value.encode()
    return value


def _count(number: int) -> str:
    return {INT64_MAX: "2^63-1", UINT64_MAX: "2^64-1"}.get(number, f"{number:,}")


@dataclass(frozen=True)
class Flag(Kind):
    """``true`` or ``false`` in any case -> bool; nothing else, because a mistyped word must not mean false."""

    python: ClassVar[type[Any]] = bool
    wire: ClassVar[type[Any]] = bool

    expects = "true or false"

    def _read(self, value: Any) -> bool:
        if isinstance(value, bool):
            return value
        if text_of(value).lower() not in ("true", "false"):
            raise UnfitError
        return bool(value.lower() == "true")


@dataclass(frozen=True)
class Choice(Kind):
    """One of ``words``, in any case -> that word. With ``empty`` an empty text means the first one."""

    words: tuple[str, ...]
    empty: bool = False

    @property
    def expects(self) -> str:
        return f"{', '.join(self.words[:-1])} or {self.words[-1]}"

    def _read(self, value: Any) -> str:
        word = value.strip().lower() if isinstance(value, str) else ""
        if value == "" and self.empty:
            return self.words[0]
        if word not in self.words:
            raise UnfitError(hint=did_you_mean(word, self.words, 0.5))
        return word


@dataclass(frozen=True)
class Whole(Kind):
    """A whole number from ``low`` to ``high`` -> int.

    ``unlimited`` says that 0 and -1 are allowed too, and what they mean; servers store -1 for both, or nothing.
    """

    low: int = 0
    high: int = INT64_MAX
    unlimited: str = ""
    python: ClassVar[type[Any]] = int
    wire: ClassVar[type[Any]] = int

    @property
    def expects(self) -> str:
        return f"a whole number from {_count(self.low)} to {_count(self.high)}{self._or_unlimited()}"

    def _or_unlimited(self) -> str:
        return f", or 0 or -1 ({self.unlimited})" if self.unlimited else ""

    def _read(self, value: Any) -> int:
        number = self._number(value)
        if not self.low <= number <= self.high and not (self.unlimited and number in (0, -1)):
            raise UnfitError
        return number

    def _number(self, value: Any) -> int:
        number = integer(value.strip()) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, int):
            raise UnfitError
        return number


@dataclass(frozen=True)
class Size(Whole):
    """A size from ``low`` to ``high`` -> `Bytes`: ``65536``, ``512k``, ``8m``, ``8mb``, ``8MiB``, ``1g``.

    Units are powers of 1,024. ``unlimited`` as for `Whole`.
    """

    python: ClassVar[type[Any]] = Bytes

    @property
    def expects(self) -> str:
        low, high = _short_size(self.low) or self.low, _short_size(self.high) or f"{_count(self.high)} bytes"
        return f"a size from {low} to {high} such as 65536, 512k, 8m or 1g{self._or_unlimited()}"

    def parse(self, option: str, value: object) -> int:
        """Return the number of bytes, as a plain int."""
        return int(super().parse(option, value))

    def _number(self, value: Any) -> Bytes:
        is_negative = isinstance(value, str) and value.strip() == "-1"
        return Bytes(-1) if is_negative else Bytes.of(value)


def _short_size(size: int) -> str:
    """Return a size with the largest unit that it is a multiple of, as options have it; "" when there is none."""
    text = str(Bytes(size))
    return text.removesuffix("iB").lower() if text.endswith("iB") else ""


@dataclass(frozen=True)
class Seconds(Kind):
    """``500ms``, ``10s``, ``5m``, ``2h``, ``1d``, ``2w``, ``1y``, ``10 seconds``, ``1m 30s`` -> float seconds.

    ``low`` and ``high`` are durations too. A text without unit is refused: Spark's own options disagree about whether
    that means seconds or milliseconds. A number that is not text is taken as seconds.
    """

    low: str
    high: str

    @property
    def expects(self) -> str:
        return f"a duration from {self.low} to {self.high} such as 500ms, 30s, 5m or 2h"

    def _read(self, value: Any) -> float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            seconds = Fraction(value) if abs(value) <= INT64_MAX else None
        else:
            seconds = duration_seconds(str(value))
        low, high = duration_seconds(self.low), duration_seconds(self.high)
        if seconds is None or low is None or high is None or not low <= seconds <= high:
            raise UnfitError(hint=minutes_or_months(value))
        return float(seconds)


@dataclass(frozen=True)
class Span(Kind):
    """A duration of at least ``low``, or 0 -> `Nanoseconds`. A number is nanoseconds, as the server has it.

    ``zero`` says what 0 means; empty when 0 is not allowed. ``negative``: servers store any negative number, which
    means the same as 0. ``high`` is the longest one, if it is shorter than what a server can count.
    """

    low: str = "1ns"
    high: str = ""
    zero: str = "none"
    negative: bool = False
    python: ClassVar[type[Any]] = Nanoseconds
    wire: ClassVar[type[Any]] = int

    @property
    def expects(self) -> str:
        least = "" if self.low == "1ns" else f" of at least {self.low}"
        least = f" from {self.low} to {self.high}" if self.high else least
        zero = f", or {'0 or -1' if self.negative else '0'} ({self.zero})" if self.zero else ""
        return f"a duration{least} such as 10s, 5m, 1h30m, or an integer of nanoseconds{zero}"

    def _read(self, value: Any) -> Nanoseconds:
        try:
            duration = Nanoseconds.of(value)
        except ValueError:
            raise UnfitError(hint=minutes_or_months(value)) from None
        if abs(duration) > INT64_MAX:
            raise UnfitError(hint=_TOO_LONG)
        is_zero = (self.zero and duration == 0) or (self.negative and duration < 0)
        if duration < Nanoseconds.of(self.low) and not is_zero:
            raise UnfitError
        if self.high and duration > Nanoseconds.of(self.high):
            raise UnfitError
        return duration


@dataclass(frozen=True)
class Time(Kind):
    """ISO-8601 with a zone, down to nanoseconds, or epoch milliseconds -> int nanoseconds since the epoch.

    A time without zone is refused, because driver and executors may be in different ones. So is a number that is too
    small for the milliseconds of any stream: it is nearly always seconds. An `int` is nanoseconds.
    """

    expects = A_TIME

    def _read(self, value: Any) -> int:
        try:
            return time_nanoseconds(value)
        except ValueError as error:
            raise UnfitError(str(error)) from None


@dataclass(frozen=True)
class When(Kind):
    """A time -> `Timestamp`. Text in the form that servers write (RFC 3339) stays as it is, whatever its year and zone.

    A server compares the text of times, and returns any year: the year 1 means "never" (Go's zero time).
    """

    python: ClassVar[type[Any]] = Timestamp

    expects = "a time with its zone such as 2026-03-01T12:00:00Z, or an aware datetime"

    def check(self, value: Any, info: ValidationInfo) -> Any:
        """Return the time; even a server's text must look like one."""
        time = super().check(value, info)
        if not _SERVER_TIME.match(time):
            raise field_error("wrong_value", f"must be {self.expects}, not {shown(value)}")
        return time

    def _read(self, value: Any) -> Timestamp:
        if isinstance(value, str) and _is_rfc3339(value):
            return Timestamp(value)
        try:
            return Timestamp.of(value)
        except ValueError as error:
            raise UnfitError(str(error)) from None


def _is_rfc3339(text: str) -> bool:
    """Return whether Go reads this as a time."""
    match = _RFC3339.fullmatch(text)
    try:
        # Python has no year 0, a leap year like 4.
        return match is not None and bool(dt.date(int(match[1]) or 4, int(match[2]), int(match[3])))
    except ValueError:
        return False


@dataclass(frozen=True)
class Text(Kind):
    """A text of at most ``most`` bytes, or one that fits a pattern -> str, as it is.

    ``required``: the text must not be blank. ``words`` says what fits the pattern.
    """

    most: int = 0
    pattern: str = ""
    words: str = ""
    required: bool = False
    strips: ClassVar[bool] = False
    displayed: ClassVar[bool] = False  # a password given in the place of a path passes for a text

    @property
    def expects(self) -> str:
        return self.words or (f"a string of at most {self.most:,} bytes" if self.most else "a string")

    def _read(self, value: Any) -> str:
        text = text_of(value)
        if self.required and not text.strip():
            raise UnfitError(problem="must not be empty")
        if (self.most and len(text.encode()) > self.most) or (self.pattern and not re.fullmatch(self.pattern, text)):
            raise UnfitError
        return text


@dataclass(frozen=True)
class Secret(Kind):
    """Any text that is not empty -> `SecretStr`. No error repeats it."""

    strips: ClassVar[bool] = False
    displayed: ClassVar[bool] = False

    expects = "a secret string"

    def _read(self, value: Any) -> SecretStr:
        secret = value if isinstance(value, SecretStr) else SecretStr(str(value))
        if not secret.get_secret_value().strip():
            raise UnfitError(problem="must not be empty")
        return secret


@dataclass(frozen=True)
class Octets(Kind):
    """Base64, as JSON has it -> bytes."""

    python: ClassVar[type[Any]] = bytes

    expects = "base64"

    def _read(self, value: Any) -> bytes:
        return value if isinstance(value, bytes) else base64.b64decode(value, validate=True)

    def check(self, value: Any, info: ValidationInfo) -> bytes:
        """Return the bytes; a server's text is decoded as well."""
        try:
            return self._read(value)
        except (ValueError, TypeError):
            raise field_error("wrong_value", f"must be {self.expects}") from None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        base64_text = core_schema.plain_serializer_function_ser_schema(
            lambda octets: base64.b64encode(octets).decode(), when_used="json"
        )
        return core_schema.with_info_plain_validator_function(self.check, serialization=base64_text)


def file_path(what: str, path: str | os.PathLike[str]) -> str:
    """Return a path as text. Raises an `OptionError` that begins with ``what`` for a path that no file can have."""
    text = os.fspath(path)
    with contextlib.suppress(UnicodeEncodeError):
        if b"\0" not in os.fsencode(text):
            return text
    raise OptionError(f"{what} must be a path that a file can have: a character of it cannot be in one", option=what)
