"""Server URLs in the text of an option, and the user info that they may hold. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import unquote

from pydantic import SecretStr

from spark_jetstream.options.names import list_items
from spark_jetstream.options.values import Kind, UnfitError, like_a_secret
from spark_jetstream.protocol.units import shown

SCHEMES = ("nats", "tls", "ws", "wss")
WEB_SCHEMES = {"ws", "wss"}
_SERVER = re.compile(
    r"(?:(?P<scheme>[^:/@]*)://)?"
    r"(?:(?P<login>[^/]*)@)?"
    r"(?P<host>\[[^\]]*\]|[^:/]*)"
    r"(?::(?P<port>[^/]*))?"
    r"(?P<path>/.*)?",
    re.DOTALL,
)
#: A URL, right or wrong, up to its port. The text before the last @ is a login, and letters after a
#: colon a password.
_HARMLESS = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)?"
    r"(?:.*@)?"
    r"(?P<host>\[[^\]/?#]*\]?|[^:/?#]*)"
    r"(?P<port>:[0-9]{1,6}\b)?",
    re.DOTALL,
)
_HOST = re.compile(r"[\w-]{1,63}(?:\.[\w-]{1,63})*\.?")
_PORT = re.compile(r"[0-9]{1,5}")


class UserInfo(NamedTuple):
    """The user info of a server URL, percent-decoded; a lone ``text@`` is a token."""

    user: str | None
    password: SecretStr | None
    token: SecretStr | None

    def given(self) -> dict[str, str | SecretStr]:
        """Return the values that the URL has, by the names of their options and fields."""
        return {name: value for name, value in self._asdict().items() if value is not None}


@dataclass(frozen=True)
class Servers(Kind):
    """A comma list of URLs -> tuple of URLs without user info.

    ``host`` and ``host:port`` stand for ``nats://`` URLs. `ServerLogin` reads the user info in
    them. Errors repeat only the part of a URL that `_harmless_part` returns.
    """

    expects = "a comma list of nats://, tls://, ws:// or wss:// URLs"

    def _read(self, value: Any) -> tuple[str, ...]:
        urls = tuple(url for url, _ in _split(value))
        schemes = schemes_of(urls)
        web = schemes & WEB_SCHEMES
        if web and web != schemes:
            raise UnfitError(problem="mixes nats:// or tls:// URLs with ws:// or wss:// ones")
        # Half of the logins would send the password in the clear.
        if schemes == {"ws", "wss"}:
            raise UnfitError(problem="mixes wss:// URLs with ws:// ones, which are not encrypted")
        return urls

    def display(self, value: Any) -> Any:
        """Return the URLs without their paths."""
        if not isinstance(value, tuple):
            return value
        # The path of a WebSocket URL may hold a key.
        return tuple(map(address, value))


class ServerLogin(Servers):
    """The user info of server URLs -> `UserInfo`, None without any.

    It must be complete, and the same in all of them.
    """

    def _read(self, value: Any) -> Any:
        logins = {text for _, text in _split(value) if text is not None}
        if not logins:
            return None
        # The client has one login for all servers, also for those that the cluster announces.
        if len(logins) > 1:
            raise UnfitError(problem="gives different credentials in different URLs")
        user, colon, password = logins.pop().partition(":")
        if not user or (colon and not password):
            raise UnfitError(
                problem="has a URL in which the user or the password before the @ is empty",
            )
        # A lone text before the @ is a token, as in the Go client.
        if not colon:
            return UserInfo(None, None, SecretStr(unquote(user)))
        return UserInfo(unquote(user), SecretStr(unquote(password)), None)


def _split(value: Any) -> list[tuple[str, str | None]]:
    """Return each URL without its user info, and the user info; raise `UnfitError`."""
    urls: list[tuple[str, str | None]] = []
    items = list_items(value, "server URLs")
    for index, item in enumerate(items):
        match = _SERVER.fullmatch(item)
        assert match is not None  # a host may be empty here, and a path takes the rest
        if problem := _server_fault(match):
            # A slash or an @ in a password
            # that is not percent-encoded makes another part of the URL of it.
            hint = " (inside a URL, a password is percent-encoded)" if "@" in str(value) else ""
            part = _harmless_part(items, index)
            url = f" ({shown(part)})" if part else ""
            raise UnfitError(problem=f"holds URL number {index + 1}{url}, in which {problem}{hint}")
        urls.append((_without_login(match), match["login"]))
    return urls


def _without_login(match: re.Match[str]) -> str:
    """Return a URL in one form for all ways to write it, without its user info."""
    url = f"{_scheme(match)}://{match['host']}"
    if match["port"]:
        url += f":{int(match['port'])}"  # without leading zeros
    if _has_path(match):
        url += match["path"]
    return url


def _scheme(match: re.Match[str]) -> str:
    return (match["scheme"] or "nats").lower()


def _has_path(match: re.Match[str]) -> bool:
    return match["path"] not in {None, "/"}


def _harmless_part(items: Sequence[str], index: int) -> str:
    """Return scheme, host and port of a URL in a list, "" if an error may not repeat them."""
    if any("@" in later for later in items[index + 1 :]):
        return ""  # a comma inside of a password may have cut it in two
    match = _HARMLESS.match(items[index])
    assert match is not None  # each part may be missing
    if not match["host"] or like_a_secret(match["host"]):
        return ""
    return "".join(filter(None, match.group("scheme", "host", "port")))


def schemes_of(urls: Iterable[str]) -> set[str]:
    """Return the schemes of parsed URLs."""
    return {url.partition(":")[0] for url in urls}


def address(url: str) -> str:
    """Return a parsed URL as errors and log lines show it, without its path."""
    # A proxy may take the path for a key.
    return "/".join(url.split("/", 3)[:3])


def _server_fault(match: re.Match[str]) -> str:
    """Return the fault of a server URL, in words that reveal nothing of it; "" without one."""
    if match["scheme"] is not None and _scheme(match) not in SCHEMES:
        return "the scheme is not one of nats, tls, ws and wss"
    if match["scheme"] is None and match["login"] is not None:
        # Otherwise the second half of a password with a comma in it would pass for a host and its
        # token.
        return "a scheme is missing before the user"
    return _host_fault(match["host"]) or _port_fault(match["port"]) or _path_fault(match)


def _host_fault(host: str) -> str:
    if host.startswith("["):
        return _ipv6_fault(host[1:-1])
    if not _HOST.fullmatch(host):
        return "the host is missing or malformed"
    return ""


def _ipv6_fault(address: str) -> str:
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return "the address in brackets is not an IPv6 address"
    return ""


def _port_fault(port: str | None) -> str:
    if port is None:
        return ""
    # Few digits: `int` refuses thousands of them with a message of its own.
    if _PORT.fullmatch(port) and 1 <= int(port) <= 65535:
        return ""
    return "the port is not a number from 1 to 65535"


def _path_fault(match: re.Match[str]) -> str:
    # WebSocket servers may be behind a proxy that tells them apart by the path.
    if _has_path(match) and _scheme(match) not in WEB_SCHEMES:
        return "a path follows the host"
    if re.search(r"[\s?#]", match["path"] or ""):
        return "blanks, ? or # follow the host"
    return ""
