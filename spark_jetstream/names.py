"""What the text of an option names: streams, consumers, buckets, prefixes, ids, and lists of names.

The counterpart of `values` for names and lists of them; pure. Lists are separated by commas. The rules are the
server's own (nats-server: server/stream.go), checked here so that a mistake is found before anything connects.
Subjects are in `subjects`, server URLs in `server_urls`, positions in `positions`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from spark_jetstream.errors import OptionError
from spark_jetstream.lists import items, place, refuse_twice
from spark_jetstream.subjects import subject_fault
from spark_jetstream.values import wrong

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
