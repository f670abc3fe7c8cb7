"""What a field of a model may hold: whole numbers, durations, sizes, times, words, names, subjects.

Each class here is one kind of value, used as ``Annotated[int, Whole(low=1)]``. It reads what a user gives, checks it,
and describes it in the JSON Schema. ``expects`` says what is allowed, to be read after "must be". What a server says
is never checked, only read: a newer one may have wider ranges and further words. Pure.
"""

from __future__ import annotations

import base64
import datetime as dt
import difflib
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from spark_jetstream.protocol.subjects import subject_fault
from spark_jetstream.protocol.units import INT64_MAX, Bytes, Nanoseconds, Timestamp, minutes_or_months, shown

UINT64_MAX = 2**64 - 1
_TRUSTED = "trusted"
_NAME_BYTES = 255
_SERVER_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}")
_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?"
    r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_SPAN_PATTERN = r"^\s*(0|([0-9]+(\.[0-9]+)?\s*[a-zµ]+\s*)+)\s*$"
_SIZE_PATTERN = r"^\s*[0-9]+\s*([kmgtKMGT]([iI]?[bB])?|[bB])?\s*$"


def trusted(info: ValidationInfo) -> bool:
    """Whether the values come from a server, or were checked before."""
    return bool(info.context and info.context.get(_TRUSTED))


TRUST = {_TRUSTED: True}
"""Validation context for what a server said."""


def fault(kind: str, words: str) -> PydanticCustomError:
    """An error of one field; its words are taken as they are, but for what cannot be printed."""
    printable = words.encode(errors="backslashreplace").decode()
    return PydanticCustomError(kind, "{words}", {"words": printable})


class Kind(ABC):
    """Base of all kinds: how pydantic calls them."""

    python: ClassVar[type[Any]] = str
    wire: ClassVar[type[Any]] = str

    @property
    @abstractmethod
    def expects(self) -> str:
        """What is allowed, to be read after "must be"."""

    @abstractmethod
    def read(self, value: Any) -> Any:
        """The value that a user's one stands for; `ValueError` when there is none, `_Words` to say why."""

    @abstractmethod
    def json_schema(self) -> dict[str, Any]:
        """What a user may write, as JSON Schema."""

    def check(self, value: Any, info: ValidationInfo) -> Any:
        """The value of a field, or the error of it."""
        wrong = f"must be {self.expects}, not {shown(value)}"
        if trusted(info):
            if not isinstance(value, self.wire) or (isinstance(value, bool) and self.wire is not bool):
                raise fault("wrong_type", wrong)
            return value if isinstance(value, self.python) else self.python(value)
        try:
            return self.read(value)
        except ValueError as error:
            said = str(error) if isinstance(error, _Words) else wrong
        raise fault("wrong_value", said)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return self.json_schema()


class _Words(ValueError):
    """A complaint that says it all."""


def _integer(value: Any) -> int:
    text = value.strip() if isinstance(value, str) else ""
    if isinstance(value, bool) or not (isinstance(value, int) or re.fullmatch(r"[+-]?[0-9]{1,20}", text)):
        raise ValueError
    return int(value)


def _text(value: Any) -> str:
    """The text; `ValueError` for anything else, and for halves of surrogate pairs, which cannot be sent."""
    if not isinstance(value, str):
        raise ValueError
    value.encode()
    return value


def _is_rfc3339(text: str) -> bool:
    """Whether Go reads this as a time."""
    found = _RFC3339.fullmatch(text)
    if found is None:
        return False
    year, month, day = (int(part) for part in found.groups()[:3])
    try:
        dt.date(year or 4, month, day)  # Python has no year 0, a leap year like 4
    except ValueError:
        return False
    return True


def _count(number: int) -> str:
    return {INT64_MAX: "2^63-1", UINT64_MAX: "2^64-1"}.get(number, f"{number:,}")


@dataclass(frozen=True)
class Whole(Kind):
    """A whole number from ``low`` to ``high``.

    ``unlimited`` says that 0 and -1 are allowed too, and what they mean; servers store -1 for both, or nothing.
    """

    low: int = 0
    high: int = INT64_MAX
    unlimited: str = ""
    python: ClassVar[type[Any]] = int
    wire: ClassVar[type[Any]] = int

    @property
    def expects(self) -> str:
        words = f"a whole number from {_count(self.low)} to {_count(self.high)}"
        return f"{words}, or 0 or -1 ({self.unlimited})" if self.unlimited else words

    def read(self, value: Any) -> int:
        number = _integer(value)
        if not self.low <= number <= self.high and not (self.unlimited and number in (0, -1)):
            raise ValueError
        return number

    def json_schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": -1 if self.unlimited else self.low, "maximum": self.high}


@dataclass(frozen=True)
class Span(Kind):
    """A duration from ``low`` on, or 0 (``zero`` says what that means; empty when 0 is not allowed).

    ``negative``: servers store any negative number, which means the same as 0.
    """

    low: str = "1ns"
    zero: str = "none"
    negative: bool = False
    python: ClassVar[type[Any]] = Nanoseconds
    wire: ClassVar[type[Any]] = int

    @property
    def expects(self) -> str:
        least = "" if self.low == "1ns" else f" of at least {self.low}"
        zero = f", or {'0 or -1' if self.negative else '0'} ({self.zero})" if self.zero else ""
        return f"a duration{least} such as 10s, 5m, 1h30m, or an integer of nanoseconds{zero}"

    def read(self, value: Any) -> Nanoseconds:
        try:
            span = Nanoseconds.of(value)
        except ValueError:
            raise _Words(f"must be {self.expects}, not {shown(value)}{minutes_or_months(value)}") from None
        if abs(span) > INT64_MAX:
            raise ValueError
        if span < Nanoseconds.of(self.low) and not (self.zero and span == 0) and not (self.negative and span < 0):
            raise ValueError
        return span

    def json_schema(self) -> dict[str, Any]:
        least = -1 if self.negative else 0 if self.zero else int(Nanoseconds.of(self.low))
        text = {"type": "string", "pattern": _SPAN_PATTERN, "examples": ["10s", "5m", "1h30m"]}
        return {"anyOf": [text, {"type": "integer", "minimum": least, "description": "nanoseconds"}]}


@dataclass(frozen=True)
class Size(Kind):
    """A size in bytes from ``low`` to ``high``, or 0 or -1 when ``unlimited`` says what they mean."""

    low: int = 0
    high: int = INT64_MAX
    unlimited: str = ""
    python: ClassVar[type[Any]] = Bytes
    wire: ClassVar[type[Any]] = int

    @property
    def expects(self) -> str:
        words = f"a size from {Bytes(self.low)} to {_count(self.high)} bytes such as 65536, 512k, 8m or 1g"
        return f"{words}, or 0 or -1 ({self.unlimited})" if self.unlimited else words

    def read(self, value: Any) -> Bytes:
        text = value.strip() if isinstance(value, str) else ""
        size = Bytes(-1) if text == "-1" else Bytes.of(value)
        if not self.low <= size <= self.high and not (self.unlimited and size in (0, -1)):
            raise ValueError
        return size

    def json_schema(self) -> dict[str, Any]:
        number = {"type": "integer", "minimum": -1 if self.unlimited else self.low, "maximum": self.high}
        text = {"type": "string", "pattern": _SIZE_PATTERN, "examples": ["512k", "8m", "1g"]}
        return {"anyOf": [{**number, "description": "bytes"}, text]}


@dataclass(frozen=True)
class When(Kind):
    """A time. Text in the form that servers write (RFC 3339) stays as it is, whatever its year and zone.

    A server compares the text of times, and returns any year: the year 1 stands for "never" (Go's zero time).
    """

    python: ClassVar[type[Any]] = Timestamp

    @property
    def expects(self) -> str:
        return "a time with its zone such as 2026-03-01T12:00:00Z, or an aware datetime"

    def check(self, value: Any, info: ValidationInfo) -> Any:
        found = super().check(value, info)
        if not re.match(_SERVER_TIME, found):
            raise fault("wrong_value", f"must be {self.expects}, not {shown(value)}")
        return found

    def read(self, value: Any) -> Timestamp:
        if isinstance(value, str) and _is_rfc3339(value):
            return Timestamp(value)
        try:
            return Timestamp.of(value)
        except ValueError as error:
            raise _Words(f"must be {error}, not {shown(value)}") from None

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "format": "date-time"}


@dataclass(frozen=True)
class Flag(Kind):
    """Yes or no. Nothing but true and false: a mistyped word must not count as false."""

    python: ClassVar[type[Any]] = bool
    wire: ClassVar[type[Any]] = bool

    @property
    def expects(self) -> str:
        return "true or false"

    def read(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value

    def json_schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Choice(Kind):
    """One of some words, as the server writes them. With ``empty`` an empty text stands for the first one."""

    words: tuple[str, ...]
    empty: bool = False

    @property
    def expects(self) -> str:
        return f"{', '.join(self.words[:-1])} or {self.words[-1]}"

    def read(self, value: Any) -> str:
        word = value.strip().lower() if isinstance(value, str) else ""
        if value == "" and self.empty:
            return self.words[0]
        if word not in self.words:
            raise _Words(f"must be {self.expects}, not {shown(value)}{closest(word, self.words)}")
        return word

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.words)}


@dataclass(frozen=True)
class Text(Kind):
    """A text of at most so many bytes, or one that fits a pattern."""

    most: int = 0
    pattern: str = ""
    words: str = ""

    @property
    def expects(self) -> str:
        return self.words or (f"a text of at most {self.most:,} bytes" if self.most else "a text")

    def read(self, value: Any) -> str:
        if self.most and len(_text(value).encode()) > self.most:
            raise ValueError
        if self.pattern and not re.fullmatch(self.pattern, _text(value)):
            raise ValueError
        return _text(value)

    def json_schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "string"}
        if self.most:
            schema["maxLength"] = self.most
        return {**schema, "pattern": f"^({self.pattern})$"} if self.pattern else schema


@dataclass(frozen=True)
class Name(Kind):
    """The name of a stream or a consumer; ``optional`` when it may be empty."""

    of: str
    optional: bool = False
    _forbidden: ClassVar[str] = r"[\s.*>/\\]"

    @property
    def expects(self) -> str:
        return f"the name of a {self.of}"

    def read(self, value: Any) -> str:
        name = _text(value)
        if not name and not self.optional:
            raise ValueError
        if re.search(self._forbidden, name) or (name and not name.isprintable()):
            raise _Words(f"must be {self.expects}, without blanks, dots, *, >, / or \\, not {shown(name)}")
        if len(name.encode()) > _NAME_BYTES:
            raise _Words(f"must be {self.expects} of at most {_NAME_BYTES} bytes, not {shown(name)}")
        return name

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": rf"^[^\s.*>/\\]{{{0 if self.optional else 1},{_NAME_BYTES}}}$"}


@dataclass(frozen=True)
class Subject(Kind):
    """A subject; with ``*`` and ``>`` unless ``literal``, and possibly empty when ``optional``."""

    literal: bool = False
    optional: bool = False

    @property
    def expects(self) -> str:
        return "a subject without * and >" if self.literal else "a subject, possibly with * and >"

    def read(self, value: Any) -> str:
        subject = _text(value)
        if subject == "" and self.optional:
            return ""
        wrong = subject_fault(subject)
        if wrong:
            raise _Words(f"must be {self.expects}, but in {shown(subject)} {wrong}")
        if self.literal and re.search(r"[*>]", subject):
            raise ValueError
        return subject

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "examples": ["orders.new" if self.literal else "orders.>"]}


@dataclass(frozen=True)
class Octets(Kind):
    """Bytes, which travel as base64."""

    python: ClassVar[type[Any]] = bytes

    @property
    def expects(self) -> str:
        return "base64"

    def read(self, value: Any) -> bytes:
        return value if isinstance(value, bytes) else base64.b64decode(value, validate=True)

    def check(self, value: Any, info: ValidationInfo) -> bytes:
        try:
            return self.read(value)
        except (ValueError, TypeError):
            raise fault("wrong_value", f"must be {self.expects}") from None

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "contentEncoding": "base64"}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(_base64, when_used="json")
        return core_schema.with_info_plain_validator_function(self.check, serialization=written)


def _base64(octets: bytes) -> str:
    return base64.b64encode(octets).decode()


def closest(word: str, words: tuple[str, ...]) -> str:
    """`` (did you mean ...?)`` when a word looks like a mistyped one of these, else nothing."""
    found = difflib.get_close_matches(word[:80], words, n=1, cutoff=0.6)
    return f" (did you mean {found[0]}?)" if found else ""


Boolean = Annotated[bool, Flag()]
String = Annotated[str, Text()]
Count = Annotated[int, Whole()]
Sequence64 = Annotated[int, Whole(0, UINT64_MAX)]
Time = Annotated[Timestamp, When()]
Duration = Annotated[Nanoseconds, Span()]
Content = Annotated[bytes, Octets()]
Volume = Annotated[Bytes, Size()]


OptionalSubject = Annotated[str, Subject(optional=True)]
