"""SchemaRegistry: the address of a schema registry, and the login to it."""

from __future__ import annotations

import base64
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from spark_jetstream.errors import OptionError


@dataclass(frozen=True, init=False, repr=False)
class SchemaRegistry:
    """A schema registry that `decode` and `encode` ask over HTTP, with the API of Confluent's.

    The object holds the login and the certificates of ``ca_file``. Spark sends it to its workers
    inside of a function. No text has its secrets: no ``repr``, no error, no plan of a query.

    Args:
        url: An ``http`` or ``https`` URL, which may have a path. A login in it
            (``https://user:password@host``) stands for ``user`` and ``password``.
        user: The user for HTTP Basic; of Confluent Cloud an API key.
        password: The password for HTTP Basic; of Confluent Cloud the secret of the key.
        token: A bearer token, in place of ``user`` and ``password``.
        ca_file: A PEM file of the certificates to trust, in place of the system's. It is read where
            the object is made: the workers need no file.
        timeout: The seconds that one request may take.
        retry_timeout: The seconds for which a request is sent again while the registry cannot be
            reached, or answers 408, 429 or 5xx. A `RegistryError` fails the task afterwards.

    Raises:
        OptionError: An argument is malformed, or contradicts another one.
    """

    url: str
    timeout: float
    retry_timeout: float
    authorization: str | None
    ca_pem: str | None

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        ca_file: str | Path | None = None,
        timeout: float = 10.0,
        retry_timeout: float = 60.0,
    ) -> None:
        parts = _parts(url)
        if parts.username is not None:
            if user is not None or password is not None:
                raise _refused("url", "has a login, and user or password is given, too")
            user, password = unquote(parts.username), unquote(parts.password or "")
        # The class is frozen: only its constructor sets attributes.
        values: dict[str, Any] = {
            "url": parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/"),
            "timeout": _seconds("timeout", timeout, zero=False),
            "retry_timeout": _seconds("retry_timeout", retry_timeout, zero=True),
            "authorization": _authorization(user, password, token),
            "ca_pem": None if ca_file is None else _certificates(ca_file),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"SchemaRegistry({self.url!r})"


def registry_of(given: object) -> SchemaRegistry:
    """Return the registry of an argument ``registry``: itself, or one without a login.

    Raises `OptionError`.
    """
    if isinstance(given, SchemaRegistry):
        return given
    if isinstance(given, str):
        return SchemaRegistry(given)
    kind = type(given).__name__
    raise OptionError(
        f"argument registry must be a URL or a SchemaRegistry, but it is a {kind}",
        option="registry",
    )


def _refused(argument: str, problem: str) -> OptionError:
    # No error repeats a value: it may hold a secret.
    return OptionError(f"argument {argument} of SchemaRegistry {problem}", option=argument)


def _parts(url: str) -> SplitResult:
    form = "must be the URL of one server, such as https://registry.example:8081"
    try:
        parts = urlsplit(url)
        # Reading the port checks it.
        is_server = bool(parts.hostname) and parts.port != 0 and "," not in url
    except (ValueError, TypeError, AttributeError):
        raise _refused("url", form) from None
    if not is_server or parts.scheme not in ("http", "https") or not _is_visible(url):
        raise _refused("url", form)
    if parts.query or parts.fragment:
        raise _refused("url", "has a part after ? or #, which a registry does not have")
    return parts


def _seconds(argument: str, given: object, *, zero: bool) -> float:
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not 0 <= float(given) < 1e6:  # type: ignore[arg-type]  # it is a number
        raise _refused(argument, f"must be a number of seconds, but it is {given!r}")
    if given == 0 and not zero:
        raise _refused(argument, "must be more than 0 seconds")
    return float(given)  # type: ignore[arg-type]  # it is a number


def _authorization(user: str | None, password: str | None, token: str | None) -> str | None:
    """Return the header of a login, None without one."""
    has_user = user is not None or password is not None
    if token is not None:
        if has_user:
            raise _refused("token", "excludes user and password")
        if not token or not _is_visible(token):
            raise _refused("token", "has a character that no token has, or is empty")
        return f"Bearer {token}"
    if has_user:
        return _basic(user, password)
    return None


def _basic(user: str | None, password: str | None) -> str:
    if user is None or password is None:
        raise _refused("user", "and password belong together, and one of them is missing")
    if ":" in user:
        # RFC 7617: the first colon ends the user.
        raise _refused("user", "has a colon, which HTTP Basic does not allow")
    login = base64.b64encode(f"{user}:{password}".encode()).decode()
    return f"Basic {login}"


def _is_visible(text: str) -> bool:
    """Return whether a text has ASCII characters without blanks alone."""
    return all("!" <= character <= "~" for character in text)


def _certificates(ca_file: str | Path) -> str:
    try:
        # Comments between certificates may be in any language, which OpenSSL does not take.
        text = Path(ca_file).read_bytes().decode("ascii", "replace").replace("\ufffd", "?")
        ssl.create_default_context(cadata=text)
    except (OSError, ValueError) as error:
        # An error of OpenSSL is an OSError. Its number says nothing to a user.
        reason = getattr(error, "strerror", None) or type(error).__name__
        problem = f"must name a PEM file of certificates, and {str(ca_file)!r} is none ({reason})"
        raise _refused("ca_file", problem) from None
    return text
