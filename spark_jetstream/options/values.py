"""Kinds of values: numbers, durations, sizes, times, flags, choices, texts. Pure.

A kind is used in two places:

- for an option, with `Kind.parse`. Spark hands every option over as text. An error repeats the
  value, unless the option is a secret or the text looks like one (`like_a_secret`), which was given
  for the wrong option.
- for a field of a pydantic model, as ``Annotated[int, Whole(1)]``. An error repeats the value. Values
  from a server are not checked, because a newer server may have wider ranges and further choices.

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
    if isinstance(value, (list, tuple)):
        # The text of an option holds several values as a comma list.
        return SecretStr(",".join(map(str, value)))
    return SecretStr(str(value))


def revealed(value: object) -> object:
    """Return the text of a hidden value, and any other value as it is."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return value


def unseen(work: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that handles revealed values.

    The `OptionError` that it raises loses its frames and its cause, which hold these values. The
    function's own arguments stay visible and must be hidden
    values.
    """

    @functools.wraps(work)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return work(*args, **kwargs)
        except OptionError as error:
            without_frames = error
        # Raised outside of the `except`, where the caught error would become its context again. The
        # frames of the context hold the value as well.
        without_frames.__context__ = None
        raise without_frames.with_traceback(None)

    return call


def like_a_secret(text: str) -> bool:
    """Return whether a text may hold a login.

    It may be a seed, a JWT, a key, a password with its name, or a URL with a user.
    """
    return _LIKE_A_SECRET.search(text) is not None


def quoted_unless_secret(text: str) -> str:
    """Return a blank and the quoted text, to follow a noun; "" if it looks like a secret."""
    if like_a_secret(text):
        return ""
    return f" {shown(text)}"


def did_you_mean(
    given: str,
    known: Iterable[str],
    cutoff: float = 0.6,
    *,
    quoted: bool = False,
) -> str:
    """Return ``; did you mean NAME``, the end of an error; "" if no known name is similar."""
    name = closest(given, known, cutoff)
    if not name:
        return ""
    if quoted:
        name = shown(name)
    return f"; did you mean {name}"


class UnfitError(ValueError):
    """A value that its kind refuses.

    `expects` is what it must be, where `Kind.expects` is too general, and `hint` the end of the
    sentence. `value` is the part that is wrong (None for one that no error may repeat), and `where`
    says which part, to be read after the name. `problem` is the whole sentence after the name, in
    place of "must be ..."; a `value` beside it follows it.
    """

    def __init__(
        self,
        expects: str = "",
        hint: str = "",
        *,
        value: object = _WHOLE_VALUE,
        where: str = "",
        problem: str = "",
    ) -> None:
        # Without `value`, which may be a secret: tracebacks show the arguments of an error.
        super().__init__(expects, hint, where, problem)
        self.expects = expects
        self.hint = hint
        self.value = value
        self.where = where
        self.problem = problem

    def repeated(self, whole: object) -> str:
        """Return the part of the ``whole`` value that the sentence repeats, "" for none."""
        if self.value is not _WHOLE_VALUE:
            return "" if self.value is None else shown(self.value)
        # A problem of its own repeats nothing by default. No error says "not None".
        if self.problem or whole is None:
            return ""
        return shown(whole)


def _sentence(error: ValueError, expects: str, value: object, *, guarded: bool) -> str:
    """Return the end of a sentence that begins with a name and says why the value is wrong.

    With ``guarded`` it does not repeat a value that looks like a secret.
    """
    unfit = error if isinstance(error, UnfitError) else UnfitError()
    repeated = unfit.repeated(value)
    # The whole value counts: the part after a comma may be the second half of a password.
    if guarded and like_a_secret(str(value)):
        repeated = ""
    if unfit.problem:
        given = f" (given: {repeated})" if repeated else ""
        return f"{unfit.where} {unfit.problem}{given}"
    instead = f", not {repeated}" if repeated else ""
    return f"{unfit.where} must be {unfit.expects or expects}{instead}{unfit.hint}"


def trusted(info: ValidationInfo) -> bool:
    """Return whether the values come from a server, or were checked before."""
    return bool(info.context and info.context.get("trusted"))


def field_error(kind: str, message: str) -> PydanticCustomError:
    """Return an error of a model's field with this text; escape characters without UTF-8."""
    printable = message.encode(errors="backslashreplace").decode()
    # A template of its own, since pydantic would replace names in braces in the message.
    return PydanticCustomError(kind, "{message}", {"message": printable})


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
        """The values allowed, as text after "must be". Kinds without parameters assign a text."""

    @abstractmethod
    def _read(self, value: Any) -> Any:
        """Return the Python value. Raises `UnfitError`, or any other `ValueError`."""

    def display(self, value: Any) -> Any:
        """Return the value of an option, or None, as logs and ``repr`` may show it."""
        if self.displayed or value is None:
            return value
        return NOT_SHOWN

    def read(self, value: object) -> Any:
        """Return the Python value.

        The text of the `ValueError` for another one follows a name, and repeats the value.
        """
        try:
            return self._read(value)
        except ValueError as error:
            raise ValueError(_sentence(error, self.expects, value, guarded=False).strip()) from None

    def parse(self, option: str, value: object) -> Any:
        """Return the value of an option.

        The `OptionError` repeats a value that does not look like a secret.
        """
        # Blanks are part of a secret and of a text.
        given = value.strip() if self.strips and isinstance(value, str) else value
        try:
            return self._read(given)
        except ValueError as error:
            problem = _sentence(error, self.expects, given, guarded=True)
        # Raised here, because the caught error would be its context, with frames that hold the
        # value.
        raise OptionError(f"option {option}{problem}", option=option)

    def check(self, value: Any, info: ValidationInfo) -> Any:
        """Return the value of a model's field; raise the error of that field."""
        if trusted(info):
            return self._trusted(value)
        try:
            return self.read(value)
        except ValueError as error:
            raise field_error("wrong_value", str(error)) from None

    def _trusted(self, value: Any) -> Any:
        """Return a server's value as the Python type; raise the field's error for another type."""
        # To Python a boolean is an integer; to a server it is none.
        is_other_type = isinstance(value, bool) and self.wire is not bool
        if is_other_type or not isinstance(value, self.wire):
            raise field_error("wrong_type", f"must be {self.expects}, not {shown(value)}")
        if isinstance(value, self.python):
            return value
        return self.python(value)

    def __get_pydantic_core_schema__(
        self,
        source: Any,
        handler: GetCoreSchemaHandler,
    ) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(self.check)


def text_of(value: Any) -> str:
    """Return the text. Raises `ValueError` for another type, and for text without UTF-8."""
    if not isinstance(value, str):
        raise UnfitError
    value.encode()  # halves of surrogate pairs raise `UnicodeEncodeError`
    return value


_POWERS = {INT64_MAX: "2^63-1", UINT64_MAX: "2^64-1"}


def _count(number: int) -> str:
    return _POWERS.get(number, f"{number:,}")


@dataclass(frozen=True)
class Flag(Kind):
    """``true`` or ``false`` in any case -> bool. A mistyped word must not mean false."""

    python: ClassVar[type[Any]] = bool
    wire: ClassVar[type[Any]] = bool

    expects = "true or false"

    def _read(self, value: Any) -> bool:
        if isinstance(value, bool):
            return value
        word = text_of(value).lower()
        if word not in ("true", "false"):
            raise UnfitError
        return word == "true"


@dataclass(frozen=True)
class Choice(Kind):
    """One of ``words``, in any case -> that word.

    With ``empty`` an empty text means the first one.
    """

    words: tuple[str, ...]
    empty: bool = False

    @property
    def expects(self) -> str:
        return f"{', '.join(self.words[:-1])} or {self.words[-1]}"

    def _read(self, value: Any) -> str:
        if value == "" and self.empty:
            return self.words[0]
        word = value.strip().lower() if isinstance(value, str) else ""
        if word not in self.words:
            # The words are few and short: this cutoff still finds the one that was meant.
            raise UnfitError(hint=did_you_mean(word, self.words, 0.5))
        return word


@dataclass(frozen=True)
class Whole(Kind):
    """A whole number from ``low`` to ``high`` -> int.

    ``unlimited`` says that 0 and -1 are allowed too, and what they mean; servers store -1 for both,
    or nothing.
    """

    low: int = 0
    high: int = INT64_MAX
    unlimited: str = ""
    python: ClassVar[type[Any]] = int
    wire: ClassVar[type[Any]] = int

    @property
    def expects(self) -> str:
        bounds = f"from {_count(self.low)} to {_count(self.high)}"
        return f"a whole number {bounds}{self._or_unlimited()}"

    def _or_unlimited(self) -> str:
        if not self.unlimited:
            return ""
        return f", or 0 or -1 ({self.unlimited})"

    def _read(self, value: Any) -> int:
        number = self._number(value)
        means_unlimited = self.unlimited != "" and number in (0, -1)
        if means_unlimited or self.low <= number <= self.high:
            return number
        raise UnfitError

    def _number(self, value: Any) -> int:
        number = integer(value.strip()) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, int):
            raise UnfitError
        return number


@dataclass(frozen=True)
class Size(Whole):
    """A size from ``low`` to ``high`` -> `Bytes`.

    Examples: ``65536``, ``512k``, ``8m``, ``8mb``, ``8MiB``, ``1g``.
    Units are powers of 1,024. ``unlimited`` as for `Whole`.
    """

    python: ClassVar[type[Any]] = Bytes

    @property
    def expects(self) -> str:
        low = _short_size(self.low) or self.low
        high = _short_size(self.high) or f"{_count(self.high)} bytes"
        return f"a size from {low} to {high} such as 65536, 512k, 8m or 1g{self._or_unlimited()}"

    def parse(self, option: str, value: object) -> int:
        """Return the number of bytes, as a plain int."""
        return int(super().parse(option, value))

    def _number(self, value: Any) -> Bytes:
        if isinstance(value, str) and value.strip() == "-1":
            return Bytes(-1)
        return Bytes.of(value)


def _short_size(size: int) -> str:
    """Return a size as options write it, in its largest unit; "" if it is a multiple of no unit."""
    text = str(Bytes(size))
    if not text.endswith("iB"):
        return ""
    return text.removesuffix("iB").lower()


@dataclass(frozen=True)
class Seconds(Kind):
    """A duration -> float seconds.

    Examples: ``500ms``, ``10s``, ``5m``, ``2h``, ``1d``, ``2w``, ``1y``, ``10 seconds``, ``1m
    30s``. ``low`` and ``high`` are durations too. A text without unit is refused: Spark's own
    options disagree about whether that means seconds or milliseconds. A number that is not text is
    taken as seconds.
    """

    low: str
    high: str

    @property
    def expects(self) -> str:
        return f"a duration from {self.low} to {self.high} such as 500ms, 30s, 5m or 2h"

    def _read(self, value: Any) -> float:
        # An exact fraction: it becomes a float once it is known to be within the bounds.
        seconds = _exact_seconds(value)
        low = duration_seconds(self.low)
        high = duration_seconds(self.high)
        assert low is not None  # the declaration of an option has durations
        assert high is not None
        if seconds is None or not low <= seconds <= high:
            raise UnfitError(hint=minutes_or_months(value))
        return float(seconds)


def _exact_seconds(value: Any) -> Fraction | None:
    """Return the seconds of a number, or of a text with units; None for any other value."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return duration_seconds(str(value))
    # Also false for "not a number", of which there is no fraction, nor of an infinite one.
    if abs(value) <= INT64_MAX:
        return Fraction(value)
    return None


@dataclass(frozen=True)
class Span(Kind):
    """A duration of at least ``low``, or 0 -> `Nanoseconds`.

    A number is nanoseconds, as the server has it. ``zero`` says what 0 means; empty when 0 is not
    allowed. ``negative``: servers store any negative number, which means the same as 0. ``high`` is
    the longest one, if it is shorter than what a server can count.
    """

    low: str = "1ns"
    high: str = ""
    zero: str = "none"
    negative: bool = False
    python: ClassVar[type[Any]] = Nanoseconds
    wire: ClassVar[type[Any]] = int

    @property
    def expects(self) -> str:
        bounds = self._bounds()
        zero = ""
        if self.zero:
            numbers = "0 or -1" if self.negative else "0"
            zero = f", or {numbers} ({self.zero})"
        return f"a duration{bounds} such as 10s, 5m, 1h30m, or an integer of nanoseconds{zero}"

    def _bounds(self) -> str:
        if self.high:
            return f" from {self.low} to {self.high}"
        if self.low == "1ns":
            return ""
        return f" of at least {self.low}"

    def _read(self, value: Any) -> Nanoseconds:
        try:
            duration = Nanoseconds.of(value)
        except ValueError:
            raise UnfitError(hint=minutes_or_months(value)) from None
        # Python counts further than a server.
        if abs(duration) > INT64_MAX:
            raise UnfitError(hint=_TOO_LONG)
        # 0 means what `zero` says, and need not be within the bounds.
        if duration == 0:
            is_allowed = self.zero != "" or self._is_within(duration)
        elif duration < 0:
            is_allowed = self.negative
        else:
            is_allowed = self._is_within(duration)
        if not is_allowed:
            raise UnfitError
        return duration

    def _is_within(self, duration: Nanoseconds) -> bool:
        if self.high and duration > Nanoseconds.of(self.high):
            return False
        return duration >= Nanoseconds.of(self.low)


@dataclass(frozen=True)
class Time(Kind):
    """A time -> int nanoseconds since the epoch.

    The text is ISO-8601 with a zone, down to nanoseconds, or a number of milliseconds since the
    epoch. A time without zone is refused, because driver and executors may be in different ones. So
    is a number that is too small for the milliseconds of any stream: it is nearly always seconds.
    An `int` is nanoseconds.
    """

    expects = A_TIME

    def _read(self, value: Any) -> int:
        try:
            return time_nanoseconds(value)
        except ValueError as error:
            raise UnfitError(str(error)) from None


@dataclass(frozen=True)
class When(Kind):
    """A time -> `Timestamp`.

    Text in the form that servers write (RFC 3339) stays as it is, whatever its year and zone. A
    server compares the text of times, and returns any year: the year 1 means "never" (Go's zero
    time).
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
    if match is None:
        return False
    year, month, day = map(int, match.group(1, 2, 3))
    try:
        # Python has no year 0, a leap year like 4.
        dt.date(year or 4, month, day)
    except ValueError:
        return False
    return True


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
        if self.words:
            return self.words
        if self.most:
            return f"a string of at most {self.most:,} bytes"
        return "a string"

    def _read(self, value: Any) -> str:
        text = text_of(value)
        if self.required and not text.strip():
            raise UnfitError(problem="must not be empty")
        if self.most and len(text.encode()) > self.most:
            raise UnfitError
        if self.pattern and not re.fullmatch(self.pattern, text):
            raise UnfitError
        return text


@dataclass(frozen=True)
class Secret(Kind):
    """Any text that is not empty -> `SecretStr`. No error repeats it."""

    strips: ClassVar[bool] = False
    displayed: ClassVar[bool] = False

    expects = "a secret string"

    def _read(self, value: Any) -> SecretStr:
        # A value is hidden before it is parsed (`hidden`).
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
        if isinstance(value, bytes):
            return value
        return base64.b64decode(value, validate=True)

    def check(self, value: Any, info: ValidationInfo) -> bytes:
        """Return the bytes; a server's text is decoded as well."""
        try:
            return self._read(value)
        # `TypeError` is that of a value that is no text.
        except (ValueError, TypeError):
            raise field_error("wrong_value", f"must be {self.expects}") from None

    def __get_pydantic_core_schema__(
        self,
        source: Any,
        handler: GetCoreSchemaHandler,
    ) -> CoreSchema:
        to_json = core_schema.plain_serializer_function_ser_schema(_base64_text, when_used="json")
        return core_schema.with_info_plain_validator_function(self.check, serialization=to_json)


def _base64_text(octets: bytes) -> str:
    return base64.b64encode(octets).decode()


def file_path(what: str, path: str | os.PathLike[str]) -> str:
    """Return a path as text.

    Raises an `OptionError` that begins with ``what`` for a path that no file can have.
    """
    text = os.fspath(path)
    with contextlib.suppress(UnicodeEncodeError):
        # Unix has no NUL in names of files.
        if b"\0" not in os.fsencode(text):
            return text
    raise OptionError(
        f"{what} must be a path that a file can have: a character of it cannot be in one",
        option=what,
    )
