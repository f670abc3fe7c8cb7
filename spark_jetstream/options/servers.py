"""Server URLs in the text of an option, and the user info that they may hold. Pure."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote

from pydantic import SecretStr

from spark_jetstream.errors import OptionError
from spark_jetstream.options.values import items

SCHEMES = ("nats", "tls", "ws", "wss")
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


@dataclass(frozen=True)
class Servers:
    """A comma list of ``nats://``, ``tls://``, ``ws://``, ``wss://`` URLs -> tuple of URLs without user info.

    ``host`` and ``host:port`` stand for ``nats://`` URLs. ``login`` gives the user info that the URLs held.
    No error repeats a URL: a stray comma may have cut a password in two, and a query may hold one.
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
        found = []
        for number, item in enumerate(items(option, value, "server URLs"), start=1):
            match = _SERVER.fullmatch(item)
            fault = _server_fault(match)
            if match is None or fault:
                hint = " (inside a URL, a password is percent-encoded)" if "@" in str(value) else ""
                raise OptionError(f"option {option} holds URL number {number}, in which {fault}{hint}", option=option)
            scheme = (match["scheme"] or "nats").lower()
            port = f":{int(match['port'])}" if match["port"] else ""
            path = match["path"] if match["path"] not in {None, "/"} else ""
            found.append((f"{scheme}://{match['host']}{port}{path}", match["login"]))
        return found


def address(url: str) -> str:
    """A parsed URL as errors and log lines show it: without the path, which a proxy may take for a key."""
    return "/".join(url.split("/", 3)[:3])


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
