"""What the text of an option names: servers, streams, subjects and filters of them, prefixes, positions, ids.

The counterpart of `values` for names and lists of them; pure. Lists are separated by commas. The rules for
stream names and subjects are the server's own (nats-server: server/stream.go, server/sublist.go), checked
here so that a mistake is found before anything connects.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote

from pydantic import SecretStr

from spark_jetstream.errors import OptionError
from spark_jetstream.values import INT64_MAX, shown, wrong

SCHEMES = ("nats", "tls", "ws", "wss")
_NAME_BYTES = 255
_SUBJECT_BYTES = 1024  # the control line, in which a reply subject and headers follow, has at most 4 KiB
_OWN_SUBJECTS = ("$JS", "$SYS")
_SERVER = re.compile(
    r"(?:(?P<scheme>[^:/@]*)://)?(?:(?P<login>[^/]*)@)?(?P<host>\[[^\]]*\]|[^:/]*)(?::(?P<port>[^/]*))?(?P<path>/.*)?",
    re.DOTALL,
)
_HOST = re.compile(r"[\w.-]+")
_PORT = re.compile(r"[0-9]{1,5}")


class Login(NamedTuple):
    """The user info of a server URL, percent-decoded.

    NATS reads ``user:password@`` as just that, and a lone ``text@`` as a token.
    """

    user: str | None
    password: SecretStr | None
    token: SecretStr | None


def _items(option: str, value: object, what: str) -> tuple[str, ...]:
    """The elements of a comma list, or of a sequence of str, without blanks around them."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
        raise wrong(option, f"a comma list of {what}", value)
    items = tuple(part.strip() for part in parts)
    if not all(items):
        raise OptionError(f"option {option} holds an empty element where {what} are listed", option=option)
    return items


@dataclass(frozen=True)
class Servers:
    """A comma list of ``nats://``, ``tls://``, ``ws://``, ``wss://`` URLs -> tuple of URLs without user info.

    ``host`` and ``host:port`` stand for ``nats://`` URLs. ``login`` gives the user info that the URLs held.
    No error repeats a URL when there is user info anywhere: a stray comma may have cut a password in two.
    """

    @property
    def expects(self) -> str:
        return "a comma list of nats://, tls://, ws:// or wss:// URLs"

    def parse(self, option: str, value: object) -> tuple[str, ...]:
        urls = tuple(url for url, _ in self._split(option, value))
        if len({url.startswith("ws") for url in urls}) > 1:
            raise OptionError(f"option {option} mixes nats:// or tls:// URLs with ws:// or wss:// ones", option=option)
        return urls

    def login(self, option: str, value: object) -> Login | None:
        """The user info of the URLs, which must be the same wherever it is given; None when there is none."""
        logins = {text for _, text in self._split(option, value) if text is not None}
        if not logins:
            return None
        if len(logins) > 1:
            raise OptionError(f"option {option} gives different credentials in different URLs", option=option)
        user, colon, password = logins.pop().partition(":")
        if not user or (colon and not password):
            raise OptionError(
                f"option {option} has a URL in which the user or the password before the @ is empty",
                option=option,
            )
        if not colon:
            return Login(None, None, SecretStr(unquote(user)))
        return Login(unquote(user), SecretStr(unquote(password)), None)

    def _split(self, option: str, value: object) -> list[tuple[str, str | None]]:
        private = "@" in str(value)
        items = _items(option, value, "server URLs") if not private else _items_unseen(option, value)
        found = []
        for number, item in enumerate(items, start=1):
            match = _SERVER.fullmatch(item)
            fault = _server_fault(match)
            if match is None or fault:
                which = f"URL number {number}" if private else shown(item)
                hint = " (inside a URL, a password is percent-encoded)" if private else ""
                raise OptionError(f"option {option} holds {which}, in which {fault}{hint}", option=option)
            scheme = (match["scheme"] or "nats").lower()
            port = f":{int(match['port'])}" if match["port"] else ""
            path = match["path"] if match["path"] not in {None, "/"} else ""
            found.append((f"{scheme}://{match['host']}{port}{path}", match["login"]))
        return found


def _items_unseen(option: str, value: object) -> tuple[str, ...]:
    try:
        return _items(option, value, "server URLs")
    except OptionError:
        fault = f"option {option} must be a comma list of server URLs without empty elements"
    raise OptionError(fault, option=option)


def _server_fault(match: re.Match[str] | None) -> str:
    """What is wrong with one server URL, in words that reveal nothing of it; "" when nothing is."""
    if match is None:
        return "no host can be made out"
    scheme, host, port, path = match["scheme"], match["host"], match["port"], match["path"]
    if scheme is not None and scheme.lower() not in SCHEMES:
        return "the scheme is not one of nats, tls, ws and wss"
    if scheme is None and match["login"] is not None:
        # Otherwise the second half of a password with a comma in it would pass for a host and its token.
        return "a scheme is missing before the user"
    if host.startswith("["):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            return "the address in brackets is not an IPv6 address"
    elif not _HOST.fullmatch(host):
        return "the host is missing or malformed"
    if port is not None and not (_PORT.fullmatch(port) and 1 <= int(port) <= 65535):
        return "the port is not a number from 1 to 65535"
    if path not in {None, "/"} and (scheme or "nats").lower() in {"nats", "tls"}:
        return "a path follows the host"
    if path is not None and re.search(r"[\s?#]", path):
        return "blanks, ? or # follow the host"
    return ""


@dataclass(frozen=True)
class StreamNames:
    """A comma list of different stream names -> tuple of str."""

    @property
    def expects(self) -> str:
        return "a comma list of stream names"

    def parse(self, option: str, value: object) -> tuple[str, ...]:
        if value == "" or not value:
            raise OptionError(f"option {option} must name at least one stream", option=option)
        names = _items(option, value, "stream names")
        for name in names:
            _check_stream_name(option, name)
        _refuse_twice(option, names)
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
            raise OptionError(f"option {option} must name one stream, not a list such as {shown(name)}", option=option)
        _check_stream_name(option, name)
        return name


def _check_stream_name(option: str, name: str) -> None:
    if re.search(r"[\s.*>/\\]", name) or not name.isprintable():
        fault = "a stream name has no blanks, dots, *, >, / or \\"
        raise OptionError(f"option {option} holds {shown(name)}, but {fault}", option=option)
    if len(name.encode()) > _NAME_BYTES:
        raise OptionError(
            f"option {option} holds {shown(name)}, which is longer than {_NAME_BYTES} bytes", option=option
        )


@dataclass(frozen=True)
class SubjectFilters:
    """A comma list of subject filters that do not overlap -> tuple of str (server error 10138)."""

    @property
    def expects(self) -> str:
        return "a comma list of subject filters with * and >"

    def parse(self, option: str, value: object) -> tuple[str, ...]:
        filters = _items(option, value, "subject filters")
        for subject in filters:
            fault = subject_fault(subject)
            if fault:
                raise OptionError(f"option {option} holds {shown(subject)}, in which {fault}", option=option)
        _refuse_twice(option, filters)
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
        fault = _publishing_fault(subject)
        if fault:
            raise OptionError(
                f"option {option} must be a subject to publish to, but in {shown(subject)} {fault}", option=option
            )
        return subject


def _publishing_fault(subject: str) -> str:
    tokens = subject.split(".")
    # Halves of surrogate pairs cannot be encoded.
    if re.search(r"[\x00-\x20\x7f\ud800-\udfff]", subject):
        return "there are blanks or control characters"
    if not all(tokens):
        return "a token between the dots is empty"
    if "*" in tokens or ">" in tokens:
        return "there is a wildcard"
    if tokens[0] in _OWN_SUBJECTS:
        return f"everything below {tokens[0]} belongs to the server"
    length = len(subject.encode())
    return f"there are {length:,} bytes, more than {_SUBJECT_BYTES:,}" if length > _SUBJECT_BYTES else ""


def subject_fault(subject: str) -> str:
    """What is wrong with a subject filter, to be read after "in which"; "" when nothing is."""
    tokens = subject.split(".")
    if re.search(r"\s", subject) or "\0" in subject:
        return "there are blanks"
    if not all(tokens):
        return "a token between the dots is empty"
    if ">" in tokens[:-1]:
        return "> is not the last token"
    if any(("*" in token or ">" in token) and len(token) > 1 for token in tokens):
        return "a * or > is not a token of its own"
    return ""


def subjects_overlap(one: str, other: str) -> bool:
    """Whether some subject matches both filters."""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(left) == len(right)


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
        for stream, sequence in pairs:
            if isinstance(sequence, bool) or not isinstance(sequence, int) or not 1 <= sequence <= INT64_MAX:
                given = json.dumps(dict(sequence) if isinstance(sequence, _JsonObject) else sequence, default=str)
                raise wrong(option, f"a sequence from 1 to 2^63-1 for stream {shown(stream)}", given)
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


def _refuse_twice(option: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f"option {option} names {shown(name)} twice", option=option)
