"""Checks the INFO of a server before nats-py reads it.

nats-py does not check the fields. With a `max_payload` that is a text it raises `TypeError` in the
user's code. With a `connect_urls` that is no list its task that reads the connection ends. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol.features import Version
from spark_jetstream.protocol.json_text import json_object
from spark_jetstream.protocol.units import shown

MOST_URLS = 1000
"""How many URLs of other servers an INFO has for nats-py."""
_MOST_PAYLOAD = 2**31 - 1
_LONGEST_TEXT = 1024
_NEEDED = ("version", "max_payload")  # in the first INFO of a connection
_NUMBER = r"(?:0|[1-9][0-9]{0,8})"
_VERSION = re.compile(rf"({_NUMBER}\.{_NUMBER}\.{_NUMBER})(?:[-+][0-9A-Za-z.+-]*)?")


def checked_info(line: bytes, *, first: bool = False) -> bytes:
    """Return an INFO line that nats-py may read, as `parsed_info` checks it."""
    return info_line(parsed_info(line, first=first))


def info_line(info: Mapping[str, Any]) -> bytes:
    """Return the line of an INFO with these fields."""
    return b"INFO %s\r\n" % json.dumps(info).encode()


def parsed_info(line: bytes, *, first: bool = False) -> dict[str, Any]:
    """Return the fields of an INFO line, with at most `MOST_URLS` URLs of other servers.

    The `first` one of a connection must have version and payload limit. Raises `ProtocolError` for
    a field of a wrong type.
    """
    try:
        info = json_object(line.removeprefix(b"INFO"))
    except ValueError as error:
        raise ProtocolError(f"the server's INFO {error}") from None
    for name in _NEEDED if first else ():
        if name not in info:
            raise ProtocolError(f"the server's INFO has no {name}")
    for name in info.keys() & _CHECKS.keys():
        if not _CHECKS[name](info[name]):
            raise ProtocolError(f"the server's INFO has no usable {name}: {shown(info[name])}")
    if "version" in info:
        # nats-py raises an error for some forms of what may follow the three numbers.
        info["version"] = _VERSION.sub(r"\1", info["version"])
    if info.get("connect_urls"):
        # nats-py tries each of them in an outage.
        info["connect_urls"] = info["connect_urls"][:MOST_URLS]
    return info


def version_of(text: str) -> Version | None:
    """Return the three numbers of a server's version, None for another text."""
    found = _VERSION.fullmatch(text)
    if found is None:
        return None
    major, minor, patch = map(int, found[1].split("."))
    return major, minor, patch


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT


def _is_url(value: Any) -> bool:
    try:
        return _is_text(value) and bool(urlsplit(f"nats://{value}").port)
    except ValueError:
        return False


def _are_urls(value: Any) -> bool:
    # Go writes null for a list without elements.
    return value is None or (isinstance(value, list) and all(map(_is_url, value)))


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    # To Python a truth value is a number, too.
    return type(value) is int


def _is_payload_limit(value: Any) -> bool:
    return _is_number(value) and 0 < value <= _MOST_PAYLOAD


def _is_version(value: Any) -> bool:
    return _is_text(value) and _VERSION.fullmatch(value) is not None


_CHECKS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("nonce", "client_ip"), _is_text),
    **dict.fromkeys(("headers", "auth_required", "tls_required", "ldm"), _is_flag),
    "version": _is_version,
    "max_payload": _is_payload_limit,
    "client_id": _is_number,
    "connect_urls": _are_urls,
}
