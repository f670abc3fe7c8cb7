"""Kinds of names, subjects and positions, and lists of them. Pure.

The rules are the server's own (nats-server: server/stream.go, server/sublist.go). `values` has the
other kinds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from spark_jetstream.options.values import Kind, UnfitError, text_of
from spark_jetstream.protocol.subjects import (
    FilterIndex,
    key_fault,
    publishing_fault,
    subject_fault,
)
from spark_jetstream.protocol.units import INT64_MAX, shown

# A server cannot create the store of a consumer with a longer name (error 10012).
_NAME_BYTES = 255


def _refuse(problem: str) -> None:
    """Raise `UnfitError` that ends with this problem, unless it is empty."""
    if problem:
        raise UnfitError(hint=f": {problem}")


@dataclass(frozen=True)
class Name(Kind):
    """The name of a stream or a consumer -> str. ``optional``: it may be empty.

    ``single``: a list is a mistake.
    """

    of: str
    optional: bool = False
    single: bool = False

    @property
    def expects(self) -> str:
        article = "one" if self.single else "a"
        return f"the name of {article} {self.of}"

    def _read(self, value: Any) -> str:
        name = text_of(value)
        if not name:
            if self.optional:
                return ""
            raise UnfitError
        if self.single and "," in name:
            raise UnfitError(problem=f"must name one {self.of}, not a list", value=name)
        # The server makes a folder of a stream's name, and a token of a subject of it.
        if re.search(r"[\s.*>/\\]", name) or not name.isprintable():
            raise UnfitError(f"{self.expects}, without blanks, dots, *, >, / or \\")
        if len(name.encode()) > _NAME_BYTES:
            raise UnfitError(f"{self.expects} of at most {_NAME_BYTES} bytes")
        return name


@dataclass(frozen=True)
class Identifier(Kind):
    """1 to ``most`` ASCII letters, digits, ``_`` and ``-`` -> str."""

    most: int

    @property
    def expects(self) -> str:
        return f"1 to {self.most} letters (a to z), digits, _ and -"

    def _read(self, value: Any) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", str(value)) or len(str(value)) > self.most:
            raise UnfitError
        return str(value)


@dataclass(frozen=True)
class Prefix(Kind):
    """A subject, or one token of a subject, without wildcards -> str without a dot at the end."""

    tokens: int | None = None

    @property
    def expects(self) -> str:
        prefix = "a name without dots" if self.tokens == 1 else "a subject prefix"
        return f"{prefix}, without blanks, * or >"

    def _read(self, value: Any) -> str:
        prefix = text_of(value)
        if self.tokens is None:
            prefix = prefix.removesuffix(".")
        elif "." in prefix:
            raise UnfitError
        if subject_fault(prefix) or re.search(r"[*>]", prefix):
            raise UnfitError
        return prefix


@dataclass(frozen=True)
class Subject(Kind):
    """A subject -> str, with ``*`` and ``>`` unless ``literal``, or empty if ``optional``."""

    literal: bool = False
    optional: bool = False

    @property
    def expects(self) -> str:
        if self.literal:
            return "a subject without * and >"
        return "a subject, possibly with * and >"

    def _read(self, value: Any) -> str:
        subject = text_of(value)
        if subject == "" and self.optional:
            return ""
        # First: of a malformed subject this error says why.
        _refuse(subject_fault(subject))
        if self.literal and re.search(r"[*>]", subject):
            raise UnfitError
        return subject


@dataclass(frozen=True)
class PublishSubject(Kind):
    """A subject that one can publish to -> str, by the rules for the column ``subject`` of a sink.

    Only a whole token ``*`` or ``>`` is a wildcard. Unlike a filter, a subject may have these
    characters inside of a token, as the server allows it.
    """

    expects = "a subject without blanks and wildcards"

    def _read(self, value: Any) -> str:
        _refuse(publishing_fault(str(value)))
        return str(value)


@dataclass(frozen=True)
class KeyFilter(Kind):
    """A key of a Key-Value bucket, or a filter of keys -> str.

    The rules are those of ADR-8, "JetStream based Key-Value Stores".
    """

    expects = "a key, possibly with * and >"

    def _read(self, value: Any) -> str:
        _refuse(key_fault(value, filters=True))
        return text_of(value)


_WILDCARDS = {"*": ".*", "?": "."}
# Outside of a group these two match themselves.
_IN_GROUP = {",": "|", "}": ")"}


@dataclass(frozen=True)
class NamePattern(Kind):
    """A pattern of names, as Spark's file sources have it (``pathGlobFilter``) -> str."""

    strips: ClassVar[bool] = False
    displayed: ClassVar[bool] = False  # a password in the wrong option is a pattern, too

    expects = "a pattern of names with *, ?, [a-z] and {a,b}"

    def _read(self, value: Any) -> str:
        try:
            name_pattern(text_of(value))
        # A sentence of its own already, which must not follow "because".
        except UnfitError:
            raise
        except ValueError as error:
            raise UnfitError(hint=f", because {error}") from None
        return str(value)


def name_pattern(pattern: str) -> re.Pattern[str]:
    """Return a regular expression for whole names; raise `ValueError`, a clause, without one.

    The syntax is that of Hadoop's GlobPattern: ``*``, ``?``, ``[a-z]``, ``[^a-z]``, ``{a,b}`` and a
    backslash before a character that matches itself. A name is one text here: ``*`` also matches
    slashes.
    """
    expression = _expression(pattern)
    try:
        return re.compile(expression, re.DOTALL)
    except re.error as error:
        raise ValueError(f"a range in it is wrong ({error.msg})") from None


def _expression(pattern: str) -> str:
    """Return the regular expression for a pattern, as text."""
    parts: list[str] = []
    open_groups = 0
    at = 0
    while at < len(pattern):
        sign = pattern[at]
        at += 1
        if sign == "\\":
            if at == len(pattern):
                raise ValueError("it ends with a backslash")
            parts.append(re.escape(pattern[at]))
            at += 1
        elif sign == "[":
            characters, at = _character_class(pattern, at)
            parts.append(characters)
        elif sign == "{":
            open_groups += 1
            parts.append("(?:")
        elif open_groups and sign in _IN_GROUP:
            parts.append(_IN_GROUP[sign])
            if sign == "}":
                open_groups -= 1
        else:
            parts.append(_WILDCARDS.get(sign, re.escape(sign)))
    if open_groups:
        raise ValueError("a { is not closed")
    return "".join(parts)


def _character_class(pattern: str, start: int) -> tuple[str, int]:
    """Return a regular expression for ``[...]``, whose content begins at ``start``, and its end."""
    first = start
    negation = ""
    if pattern[start : start + 1] in ("^", "!"):
        first += 1
        negation = "^"
    # A ] that comes first is one of the characters.
    end = pattern.find("]", first + 1)
    if end < 0:
        raise ValueError("a [ is not closed")
    # To a regular expression these characters have a meaning of their own, also in brackets.
    characters = pattern[first:end].replace("\\", "\\\\").replace("[", "\\[")
    return f"[{negation}{characters}]", end + 1


def list_items(value: object, what: str) -> tuple[str, ...]:
    """Return the elements of a comma list, or of a sequence of str, without blanks around them.

    Raises `UnfitError`, which calls the elements ``what``.
    """
    # Spark has text, Python code may have a list.
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, Sequence):
        raise UnfitError(f"a comma list of {what}", value=None)
    elements = []
    for part in parts:
        if not isinstance(part, str):
            raise UnfitError(f"a comma list of {what}", value=None)
        elements.append(part.strip())
    if "" in elements:
        number = elements.index("") + 1
        problem = f"holds an empty element (number {number}) where {what} are listed"
        raise UnfitError(problem=problem)
    return tuple(elements)


def _checked_element(kind: Kind, element: object, where: str) -> None:
    """Raise `UnfitError` that says which element of a list is wrong."""
    try:
        kind._read(element)
    except ValueError as error:
        unfit = error if isinstance(error, UnfitError) else UnfitError()
        raise UnfitError(
            unfit.expects or kind.expects,
            unfit.hint,
            value=element,
            where=where,
        ) from None


def _refuse_overlaps(filters: Sequence[str]) -> None:
    """Raise `UnfitError` if a subject can match two of the filters. There may be thousands."""
    index = FilterIndex(filters)
    for each in filters:
        other = index.overlapping(each, other=True)
        if other is not None:
            problem = (
                f"holds {shown(each)} and {shown(other)}, which overlap: "
                "a message could match both, and the server refuses that"
            )
            raise UnfitError(problem=problem)


@dataclass(frozen=True)
class Pair(Kind):
    """A key of metadata and its value, with = between them -> str."""

    expects = "key=value"

    def _read(self, value: Any) -> str:
        if not re.fullmatch(r"[^=]+=.*", text_of(value), re.DOTALL):
            raise UnfitError
        return text_of(value)


@dataclass(frozen=True)
class CommaList(Kind):
    """A comma list of different elements of one kind -> tuple of str.

    ``what`` is what the elements are called, ``more`` describes them in the reference. ``apart``:
    elements are filters, and no two may match the same subject, which the server refuses (error
    10138).
    """

    element: Kind
    what: str
    more: str = ""
    apart: bool = False

    @property
    def expects(self) -> str:
        return f"a comma list of {self.what}{self.more}"

    def _read(self, value: Any) -> tuple[str, ...]:
        # An empty list would mean the same as no list, and is a mistake.
        if value in ("", ()):
            raise UnfitError(problem="must not be empty")
        elements = list_items(value, self.what)
        seen: set[str] = set()
        for number, element in enumerate(elements, start=1):
            where = f" (element {number})" if len(elements) > 1 else ""
            _checked_element(self.element, element, where)
            if element in seen:
                raise UnfitError(problem=f"names {shown(element)} twice")
            seen.add(element)
        # In one pass for all of them: thousands were compared pair by pair for half a minute.
        if self.apart:
            _refuse_overlaps(elements)
        return elements


@dataclass(frozen=True)
class Positions(Kind):
    """A word, or JSON like ``{"ORDERS": 1001}`` -> the word, or sorted (stream, sequence) pairs."""

    words: tuple[str, ...]

    @property
    def expects(self) -> str:
        return f'{", ".join(self.words)} or JSON such as {{"ORDERS": 1001}}'

    def _read(self, value: Any) -> str | tuple[tuple[str, int], ...]:
        if isinstance(value, str) and value.lower() in self.words:
            return value.lower()
        return _by_stream(value, "sequence", _sequence)


@dataclass(frozen=True)
class ConsumerNames(Kind):
    """The name of a consumer, or JSON like ``{"ORDERS": "billing"}`` -> it, or sorted pairs."""

    expects = 'the name of a consumer, or JSON such as {"ORDERS": "billing"}'

    def _read(self, value: Any) -> str | tuple[tuple[str, str], ...]:
        if isinstance(value, str) and not value.startswith(("{", "[")):
            return Name("consumer", single=True)._read(value)
        return _by_stream(value, "consumer", _consumer)


Value = TypeVar("Value", int, str)


def _by_stream(
    value: Any, noun: str, read: Callable[[str, object], Value]
) -> tuple[tuple[str, Value], ...]:
    """Return (stream, value) pairs, sorted by stream; raise `UnfitError`.

    `read` takes a stream and its value, which an error calls by the noun.
    """
    values: dict[str, Value] = {}
    for number, (stream, given) in enumerate(_pairs(value, noun), start=1):
        _checked_element(Name("stream"), stream, f" (name {number})")
        parsed = read(stream, given)
        if stream in values:
            raise UnfitError(problem=f"names {shown(stream)} twice")
        values[stream] = parsed
    if not values:
        raise UnfitError(problem="names no stream in its JSON")
    # Sorted: the same values in another order make equal options.
    return tuple(sorted(values.items()))


def _pairs(value: Any, noun: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        return iter(value.items())
    if isinstance(value, str):
        if value.startswith(("{", "[")):
            return iter(_json_pairs(value))
        raise UnfitError
    # Pairs that were parsed before are a tuple of tuples.
    if isinstance(value, tuple) and all(map(_is_pair, value)):
        return iter(value)
    raise UnfitError(problem=f"must be text or pairs of a stream and a {noun}")


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2


def _sequence(stream: str, value: Any) -> int:
    """Return the position of a stream; raise `UnfitError` for a value that is no sequence."""
    if isinstance(value, (_JsonObject, Mapping)):
        # Kafka's positions have this form: {"topic": {"0": 23, "1": 5}}.
        problem = f"gives {shown(stream)} partitions: a stream has one sequence, and no partitions"
        raise UnfitError(problem=problem)
    is_boolean = isinstance(value, bool)  # an integer to Python, but not in JSON
    if isinstance(value, int) and not is_boolean and 1 <= value <= INT64_MAX:
        return value
    raise UnfitError(f"a sequence from 1 to 2^63-1 for stream {shown(stream)}", value=value)


def _consumer(stream: str, value: object) -> str:
    """Return the name of a stream's consumer; raise `UnfitError`."""
    _checked_element(Name("consumer", single=True), value, f" for stream {shown(stream)}")
    return str(value)


class _JsonObject(list[tuple[str, object]]):
    """The members of a JSON object in their order, repeated names included."""


def _bounded_integer(digits: str) -> int:
    """Return the number, or 2^64, which no sequence can be, for a longer one."""
    # `int` refuses thousands of digits with a message of its own.
    if len(digits) > len(str(2**64)):
        return 2**64
    return int(digits)


def _json_pairs(text: str) -> _JsonObject:
    try:
        # Python's dictionaries would keep the last of repeated names in silence.
        document = json.loads(text, object_pairs_hook=_JsonObject, parse_int=_bounded_integer)
    except json.JSONDecodeError as error:
        problem = f"is not valid JSON: {error.msg.lower()} at character {error.pos + 1}"
        raise UnfitError(problem=problem, value=text) from None
    except RecursionError:
        raise UnfitError(problem="is not valid JSON: it is nested too deeply") from None
    if not isinstance(document, _JsonObject):
        raise UnfitError(
            problem='must be an object such as {"ORDERS": 1001} when it is JSON',
            value=text,
        )
    return document
