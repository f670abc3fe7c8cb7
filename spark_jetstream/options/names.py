"""What the text of an option names: streams, consumers, buckets, prefixes, ids, and lists of names.

The counterpart of `values` for names and lists of them; pure. Lists are separated by commas. The rules are the
server's own (nats-server: server/stream.go), checked here so that a mistake is found before anything connects.
Subjects are in `subjects`, server URLs in `server_urls`, positions in `positions`.

Positions in the text of an option: a word, or a sequence for each stream. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from spark_jetstream.errors import OptionError
from spark_jetstream.options.values import items, place, refuse_twice, wrong
from spark_jetstream.protocol.subjects import key_fault, publishing_fault, subject_fault, subjects_overlap
from spark_jetstream.protocol.units import INT64_MAX, shown

_NAME_BYTES = 255


@dataclass(frozen=True)
class StreamNames:
    """A comma list of different stream names -> tuple of str."""

    @property
    def expects(self) -> str:
        return "a comma list of stream names"

    def parse(self, option: str, value: object) -> tuple[str, ...]:
        if value == "" or not value:
            raise OptionError(f"option {option} must name at least one stream", option=option)
        names = items(option, value, "stream names")
        for index, name in enumerate(names):
            check_name(option, name, "a stream name", place(names, index))
        refuse_twice(option, names)
        return names


@dataclass(frozen=True)
class StreamName:
    """The name of one stream -> str."""

    @property
    def expects(self) -> str:
        return "the name of one stream"

    def parse(self, option: str, value: object) -> str:
        name = str(value).strip()
        if not name:
            raise OptionError(f"option {option} must name a stream", option=option)
        if "," in name:
            raise OptionError(f"option {option} must name one stream, not a list", option=option)
        check_name(option, name, "a stream name")
        return name


def check_name(option: str, name: str, what: str, where: str = "") -> None:
    """Raise `OptionError` when the server would refuse the name. ``where`` is what `lists.place` returns."""
    if re.search(r"[\s.*>/\\]", name) or not name.isprintable():
        fault = f"{what} has no blanks, dots, *, >, / or \\"
    elif len(name.encode()) > _NAME_BYTES:
        fault = f"it is longer than {_NAME_BYTES} bytes"
    else:
        return
    raise OptionError(f"option {option}{where} is not valid: {fault}", option=option)


@dataclass(frozen=True)
class ConsumerName:
    """The name of a consumer -> str."""

    @property
    def expects(self) -> str:
        return "the name of a consumer"

    def parse(self, option: str, value: object) -> str:
        name = str(value).strip()
        if not name:
            raise OptionError(f"option {option} must name a consumer", option=option)
        check_name(option, name, "a consumer name")
        return name


@dataclass(frozen=True)
class NamePattern:
    """A pattern of names, as Spark's file sources have it (``pathGlobFilter``) -> str."""

    @property
    def expects(self) -> str:
        return "a pattern of names with *, ?, [a-z] and {a,b}"

    def parse(self, option: str, value: object) -> str:
        pattern = str(value)
        try:
            name_pattern(pattern)
        except ValueError as error:
            raise OptionError(f"option {option} must be {self.expects}, but {error}", option=option) from None
        return pattern


def name_pattern(pattern: str) -> re.Pattern[str]:
    """What matches whole names; raises `ValueError` with a sentence when the pattern cannot be read.

    The signs of Hadoop's GlobPattern: ``*``, ``?``, ``[a-z]``, ``[^a-z]``, ``{a,b}`` and a backslash before a sign that
    stands for itself. A name is one text here: ``*`` also matches slashes.
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


@dataclass(frozen=True)
class Prefix:
    """A subject, or one token of a subject, without wildcards -> str without a dot at the end."""

    tokens: int | None = None

    @property
    def expects(self) -> str:
        what = "a name without dots" if self.tokens == 1 else "a subject prefix"
        return f"{what}, without blanks, * or >"

    def parse(self, option: str, value: object) -> str:
        text = str(value).strip()
        prefix = text[:-1] if self.tokens is None and text.endswith(".") else text
        if subject_fault(prefix) or re.search(r"[*>]", prefix) or (self.tokens and "." in prefix):
            raise wrong(option, self.expects, value)
        return prefix


@dataclass(frozen=True)
class Identifier:
    """1 to ``most`` ASCII letters, digits, ``_`` and ``-`` -> str."""

    most: int

    @property
    def expects(self) -> str:
        return f"1 to {self.most} letters (a to z), digits, _ and -"

    def parse(self, option: str, value: object) -> str:
        text = str(value).strip()
        if not re.fullmatch(r"[A-Za-z0-9_-]+", text) or len(text) > self.most:
            raise wrong(option, self.expects, value)
        return text


@dataclass(frozen=True)
class Positions:
    """One of ``words``, or JSON like ``{"ORDERS": 1001}`` -> the word, or sorted (stream, sequence) pairs."""

    words: tuple[str, ...]

    @property
    def expects(self) -> str:
        return f'{", ".join(self.words)} or JSON such as {{"ORDERS": 1001}}'

    def parse(self, option: str, value: object) -> str | tuple[tuple[str, int], ...]:
        if isinstance(value, str):
            text = value.strip()
            if text.lower() in self.words:
                return text.lower()
            if not text.startswith(("{", "[")):
                raise wrong(option, self.expects, value)
            pairs = _json_pairs(option, text)
        else:
            pairs = list(value.items()) if isinstance(value, Mapping) else _pairs(option, value)
        positions: dict[str, int] = {}
        for index, (stream, sequence) in enumerate(pairs):
            check_name(option, stream, "a stream name", f" (name {index + 1})")
            if isinstance(sequence, bool) or not isinstance(sequence, int) or not 1 <= sequence <= INT64_MAX:
                raise wrong(option, f"a sequence from 1 to 2^63-1 for stream {shown(stream)}", sequence)
            if stream in positions:
                raise OptionError(f"option {option} names {shown(stream)} twice", option=option)
            positions[stream] = sequence
        if not positions:
            raise OptionError(f"option {option} names no stream in its JSON", option=option)
        return tuple(sorted(positions.items()))


class _JsonObject(list[tuple[str, object]]):
    """The members of a JSON object in their order, repeated names included."""


def _json_pairs(option: str, text: str) -> list[tuple[str, object]]:
    fault = f'option {option} must be an object such as {{"ORDERS": 1001}} when it is JSON'
    try:
        found = json.loads(text, object_pairs_hook=_JsonObject, parse_int=_json_integer)
    except json.JSONDecodeError as error:
        fault = f"option {option} is not valid JSON: {error.msg.lower()} at character {error.pos + 1}"
    except RecursionError:
        fault = f"option {option} is not valid JSON: it is nested too deeply"
    else:
        if isinstance(found, _JsonObject):
            return list(found)
    raise OptionError(fault, option=option)


def _json_integer(digits: str) -> int:
    # `int` refuses thousands of digits with words of its own; any number that long is out of range anyway.
    return int(digits) if len(digits) <= 20 else 2**64


def _pairs(option: str, value: object) -> list[tuple[str, object]]:
    if not isinstance(value, tuple) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
        raise OptionError(f"option {option} must be text or pairs of a stream and a sequence", option=option)
    return list(value)


@dataclass(frozen=True)
class SubjectFilters:
    """A comma list of subject filters that do not overlap -> tuple of str (server error 10138)."""

    @property
    def expects(self) -> str:
        return "a comma list of subject filters with * and >"

    def parse(self, option: str, value: object) -> tuple[str, ...]:
        filters = items(option, value, "subject filters")
        for index, subject in enumerate(filters):
            fault = subject_fault(subject)
            if fault:
                where = place(filters, index)
                raise OptionError(f"option {option}{where} holds a subject in which {fault}", option=option)
        refuse_twice(option, filters)
        for index, one in enumerate(filters):
            for other in filters[:index]:
                if subjects_overlap(one, other):
                    raise OptionError(
                        f"option {option} holds {shown(other)} and {shown(one)}, which overlap: "
                        "a message could match both, and the server refuses that",
                        option=option,
                    )
        return filters


@dataclass(frozen=True)
class Subject:
    """A subject that one can publish to -> str.

    The same rules as for the column ``subject`` of a sink. Only a whole token ``*`` or ``>`` is a wildcard;
    unlike a filter, a subject may have these signs inside of a token, as the server allows it.
    """

    @property
    def expects(self) -> str:
        return "a subject without blanks and wildcards"

    def parse(self, option: str, value: object) -> str:
        subject = str(value).strip()
        fault = publishing_fault(subject)
        if fault:
            raise OptionError(
                f"option {option} must be a subject to publish to, but in this one {fault}", option=option
            )
        return subject


@dataclass(frozen=True)
class KeyFilters:
    """A comma list of filters of the keys of a Key-Value bucket, that do not overlap -> tuple of str (ADR-8)."""

    @property
    def expects(self) -> str:
        return "a comma list of keys, or of filters of them with * and >"

    def parse(self, option: str, value: object) -> tuple[str, ...]:
        keys = items(option, value, "keys")
        for index, one in enumerate(keys):
            fault = key_fault(one, filters=True)
            if fault:
                where = place(keys, index)
                raise OptionError(f"option {option}{where} holds a key in which {fault}", option=option)
        return SubjectFilters().parse(option, value)
