"""Kinds of names, subjects and positions, and lists of them. Pure.

The rules are the server's own (nats-server: server/stream.go, server/sublist.go). `values` has the other kinds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from spark_jetstream.options.values import Kind, UnfitError, text_of
from spark_jetstream.protocol.subjects import FilterIndex, key_fault, publishing_fault, subject_fault
from spark_jetstream.protocol.units import INT64_MAX, shown

_NAME_BYTES = 255


def _refuse(problem: str) -> None:
    """Raise `UnfitError` that ends with this problem, unless it is empty."""
    if problem:
        raise UnfitError(hint=f": {problem}")


@dataclass(frozen=True)
class Name(Kind):
    """The name of a stream or a consumer -> str. ``optional``: it may be empty. ``single``: a list is a mistake."""

    of: str
    optional: bool = False
    single: bool = False

    @property
    def expects(self) -> str:
        return f"the name of {'one' if self.single else 'a'} {self.of}"

    def _read(self, value: Any) -> str:
        name = text_of(value)
        if not name and not self.optional:
            raise UnfitError
        if self.single and "," in name:
            raise UnfitError(problem=f"must name one {self.of}, not a list", value=name)
        if re.search(r"[\s.*>/\\]", name) or (name and not name.isprintable()):
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
        return f"{'a name without dots' if self.tokens == 1 else 'a subject prefix'}, without blanks, * or >"

    def _read(self, value: Any) -> str:
        prefix = text_of(value) if self.tokens else text_of(value).removesuffix(".")
        if subject_fault(prefix) or re.search(r"[*>]", prefix) or (self.tokens and "." in prefix):
            raise UnfitError
        return prefix


@dataclass(frozen=True)
class Subject(Kind):
    """A subject -> str; with ``*`` and ``>`` unless ``literal``, and possibly empty when ``optional``."""

    literal: bool = False
    optional: bool = False

    @property
    def expects(self) -> str:
        return "a subject without * and >" if self.literal else "a subject, possibly with * and >"

    def _read(self, value: Any) -> str:
        subject = text_of(value)
        if subject == "" and self.optional:
            return ""
        _refuse(subject_fault(subject))
        if self.literal and re.search(r"[*>]", subject):
            raise UnfitError
        return subject


@dataclass(frozen=True)
class PublishSubject(Kind):
    """A subject that one can publish to -> str, by the rules for the column ``subject`` of a sink.

    Only a whole token ``*`` or ``>`` is a wildcard. Unlike a filter, a subject may have these characters inside of a
    token, as the server allows it.
    """

    expects = "a subject without blanks and wildcards"

    def _read(self, value: Any) -> str:
        _refuse(publishing_fault(str(value)))
        return str(value)


@dataclass(frozen=True)
class KeyFilter(Kind):
    """A key of a Key-Value bucket, or a filter of keys -> str (ADR-8 "JetStream based Key-Value Stores")."""

    expects = "a key, possibly with * and >"

    def _read(self, value: Any) -> str:
        _refuse(key_fault(value, filters=True))
        return text_of(value)


@dataclass(frozen=True)
class NamePattern(Kind):
    """A pattern of names, as Spark's file sources have it (``pathGlobFilter``) -> str."""

    strips: ClassVar[bool] = False
    displayed: ClassVar[bool] = False  # most texts are patterns

    expects = "a pattern of names with *, ?, [a-z] and {a,b}"

    def _read(self, value: Any) -> str:
        try:
            name_pattern(text_of(value))
        except UnfitError:
            raise
        except ValueError as error:
            raise UnfitError(hint=f", because {error}") from None
        return str(value)


def name_pattern(pattern: str) -> re.Pattern[str]:
    """Return what matches whole names. The `ValueError` for a malformed pattern is a clause.

    The syntax is that of Hadoop's GlobPattern: ``*``, ``?``, ``[a-z]``, ``[^a-z]``, ``{a,b}`` and a backslash before a
    character that matches itself. A name is one text here: ``*`` also matches slashes.
    """
    parts: list[str] = []
    groups, at = 0, 0
    while at < len(pattern):
        sign = pattern[at]
        at += 1
        if sign == "\\":
            if at == len(pattern):
                raise ValueError("it ends with a backslash")
            parts.append(re.escape(pattern[at]))
            at += 1
        elif sign == "[":
            end = pattern.find("]", at + 2 if pattern[at : at + 1] in ("^", "!") else at + 1)
            if end < 0:
                raise ValueError("a [ is not closed")
            inner = pattern[at:end].replace("\\", "\\\\").replace("[", "\\[")
            parts.append(f"[{'^' + inner[1:] if inner[0] in '^!' else inner}]")
            at = end + 1
        elif sign == "{":
            groups += 1
            parts.append("(?:")
        elif sign == "}" and groups:
            groups -= 1
            parts.append(")")
        elif sign == "," and groups:
            parts.append("|")
        else:
            parts.append({"*": ".*", "?": "."}.get(sign, re.escape(sign)))
    if groups:
        raise ValueError("a { is not closed")
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error as error:
        raise ValueError(f"a range in it is wrong ({error.msg})") from None


def list_items(value: object, what: str) -> tuple[str, ...]:
    """Return the elements of a comma list, or of a sequence of str, without blanks around them; raise `UnfitError`."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
        raise UnfitError(f"a comma list of {what}", value=None)
    elements = tuple(part.strip() for part in parts)
    for number, element in enumerate(elements, start=1):
        if not element:
            raise UnfitError(problem=f"holds an empty element (number {number}) where {what} are listed")
    return elements


def _checked_element(kind: Kind, element: object, where: str) -> None:
    """Raise `UnfitError` that says which element of a list is wrong."""
    try:
        kind._read(element)
    except ValueError as error:
        unfit = error if isinstance(error, UnfitError) else UnfitError()
        raise UnfitError(unfit.expects or kind.expects, unfit.hint, value=element, where=where) from None


def _refuse_overlaps(filters: Sequence[str]) -> None:
    """Raise `UnfitError` if a subject can match two of the filters, of which there may be thousands."""
    index = FilterIndex(filters)
    for each in filters:
        other = index.overlapping(each, other=True)
        if other is not None:
            raise UnfitError(
                problem=f"holds {shown(each)} and {shown(other)}, which overlap: a message could match "
                "both, and the server refuses that"
            )


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

    ``what`` is what the elements are called, ``more`` describes them in the reference. ``apart``: elements are filters,
    and no two may match the same subject, which the server refuses (error 10138).
    """

    element: Kind
    what: str
    more: str = ""
    apart: bool = False

    @property
    def expects(self) -> str:
        return f"a comma list of {self.what}{self.more}"

    def _read(self, value: Any) -> tuple[str, ...]:
        if value in ("", ()):
            raise UnfitError(problem="must not be empty")
        elements = list_items(value, self.what)
        seen: set[str] = set()
        for index, element in enumerate(elements):
            where = f" (element {index + 1})" if len(elements) > 1 else ""
            _checked_element(self.element, element, where)
            if element in seen:
                raise UnfitError(problem=f"names {shown(element)} twice")
            seen.add(element)
        if self.apart:
            _refuse_overlaps(elements)
        return elements


@dataclass(frozen=True)
class Positions(Kind):
    """One of ``words``, or JSON like ``{"ORDERS": 1001}`` -> the word, or sorted (stream, sequence) pairs."""

    words: tuple[str, ...]

    @property
    def expects(self) -> str:
        return f'{", ".join(self.words)} or JSON such as {{"ORDERS": 1001}}'

    def _read(self, value: Any) -> str | tuple[tuple[str, int], ...]:
        if isinstance(value, str) and value.lower() in self.words:
            return value.lower()
        positions: dict[str, int] = {}
        for index, (stream, sequence) in enumerate(self._pairs(value)):
            _checked_element(Name("stream"), stream, f" (name {index + 1})")
            if isinstance(sequence, (_JsonObject, Mapping)):
                raise UnfitError(
                    problem=f"gives {shown(stream)} partitions: a stream has one sequence, and no partitions"
                )
            if isinstance(sequence, bool) or not isinstance(sequence, int) or not 1 <= sequence <= INT64_MAX:
                raise UnfitError(f"a sequence from 1 to 2^63-1 for stream {shown(stream)}", value=sequence)
            if stream in positions:
                raise UnfitError(problem=f"names {shown(stream)} twice")
            positions[stream] = sequence
        if not positions:
            raise UnfitError(problem="names no stream in its JSON")
        return tuple(sorted(positions.items()))

    def _pairs(self, value: Any) -> Iterator[tuple[str, object]]:
        if isinstance(value, Mapping):
            return iter(value.items())
        if isinstance(value, str):
            if value.startswith(("{", "[")):
                return iter(_json_pairs(value))
            raise UnfitError
        if isinstance(value, tuple) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
            return iter(value)
        raise UnfitError(problem="must be text or pairs of a stream and a sequence")


class _JsonObject(list[tuple[str, object]]):
    """The members of a JSON object in their order, repeated names included."""


def _json_pairs(text: str) -> _JsonObject:
    try:
        # `int` refuses thousands of digits with a message of its own; any number that long is out of range anyway.
        document = json.loads(
            text, object_pairs_hook=_JsonObject, parse_int=lambda digits: int(digits) if len(digits) <= 20 else 2**64
        )
    except json.JSONDecodeError as error:
        problem = f"is not valid JSON: {error.msg.lower()} at character {error.pos + 1}"
        raise UnfitError(problem=problem, value=text) from None
    except RecursionError:
        raise UnfitError(problem="is not valid JSON: it is nested too deeply") from None
    if not isinstance(document, _JsonObject):
        raise UnfitError(problem='must be an object such as {"ORDERS": 1001} when it is JSON', value=text)
    return document
