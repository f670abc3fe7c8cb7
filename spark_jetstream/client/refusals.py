"""Refusals: the meaning of an error of the server, be it a login, a denied subject or an outage."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Any

import nats.errors

from spark_jetstream.client.auth import Credentials, mistrust
from spark_jetstream.client.greeting import NotEncrypted, NotNats
from spark_jetstream.client.tcp import PLAIN
from spark_jetstream.errors import (
    AuthenticationFailed,
    JetStreamError,
    UntrustedServer,
    WrongServer,
)
from spark_jetstream.options import advice
from spark_jetstream.options.connection import ConnectionOptions

_REFUSED = re.compile(
    r"authorization violation|((?:user|account) authentication (?:expired|revoked))", re.IGNORECASE
)
_TOO_MANY = re.compile(r"maximum (account active )?connections exceeded", re.IGNORECASE)
_STALE = "stale connection"
_ALERT = re.compile(
    r"\[SSL: \w*alert[ _](unknown[ _]ca|[a-z_ ]*certificate[a-z_ ]*)", re.IGNORECASE
)
_NO_TLS = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"}
"""What OpenSSL calls an answer in plain text; the second since 3.2."""
_VIOLATION = "permissions violation"
_DENIED = re.compile(rf'{_VIOLATION} for (publish|subscription) to "([^"]*)"', re.IGNORECASE)


def ends_nothing(text: str) -> bool:
    """Whether a connection goes on after this error of the server."""
    return _VIOLATION in text


def may_pass(text: str) -> bool:
    """Whether another login may succeed after this error of the server, perhaps elsewhere."""
    return bool(_REFUSED.search(text) or _TOO_MANY.fullmatch(text) or _STALE in text)


def denied(text: str) -> tuple[bool, str] | None:
    """Return whether a server refuses a publish (or else a subscription), and to which subject.

    The subject is in lower case. None for another error.
    """
    match = _DENIED.search(text)
    if match is None:
        return None
    return (match[1].lower() == "publish", match[2].lower())


def refusal(
    error: Exception, options: ConnectionOptions, login: Mapping[str, Any], info: Mapping[str, Any]
) -> JetStreamError | None:
    """Return the error for a refused connection; None when `error` stands for no refusal.

    `login` has the arguments of the attempt (`auth.connect_arguments`), `info` is the INFO of the
    server.
    """
    untrusted = _mistrusted(error, options)
    if untrusted is not None:
        return untrusted
    server = f"the NATS server at {options.display_servers}"
    problem = _certificate_problem(error, options, info)
    if problem:
        return AuthenticationFailed(f"{server} {problem}")
    if isinstance(error, NotNats) and error.final:
        return WrongServer(f"{error} {advice.SERVERS}")
    refused = _REFUSED.search(str(error))
    if refused is None and not isinstance(error, nats.errors.AuthorizationError):
        return None
    why = _reason(login, refused)
    ways = options.authentication_options
    return AuthenticationFailed(f"{server} refused the credentials ({ways}){why}")


def _reason(login: Mapping[str, Any], refused: re.Match[str] | None) -> str:
    """Return why the server has refused credentials, as the end of an error; "" if nothing says so.

    `refused` is the match of `_REFUSED` in the server's error.
    """
    given = login.get("user_credentials")
    if isinstance(given, Credentials) and given.ended:
        # The server does not say that they have expired.
        return given.ended
    return f": {refused[1].lower()}" if refused and refused[1] else ""


def _mistrusted(error: Exception, options: ConnectionOptions) -> UntrustedServer | None:
    """Return the error for a server that the client does not trust; None when it does."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return UntrustedServer(
            f"the certificate of {options.display_servers} is not trusted {advice.AUTHORITY}: "
            f"{mistrust(error, options)}"
        )
    if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
        return UntrustedServer(f"cannot connect to {options.display_servers}: {PLAIN}")
    if isinstance(error, NotEncrypted):
        return UntrustedServer(f"cannot connect to {options.display_servers}: {error}")
    return None


def _certificate_problem(
    error: Exception, options: ConnectionOptions, info: Mapping[str, Any]
) -> str:
    """Return how a server has refused the client's certificate, or the lack of one; "" if not.

    TLS 1.3 completes on the client's side before the server has looked at the client's certificate.
    The server's refusal arrives as an alert, or as nothing but a broken connection when data is on
    its way.
    """
    # Not only `ssl.SSLError`: aiohttp has its own class.
    alert = _ALERT.search(str(error)) if isinstance(error, OSError) else None
    if options.tls_cert_file is not None or options.tls_cert_pem is not None:
        if alert is None:
            return ""
        words = alert[1].replace("_", " ").lower()
        return f"refused the client certificate {advice.CLIENT_CERTIFICATE}: {words}"
    broken = isinstance(error, (BrokenPipeError, ConnectionResetError))
    if alert or (info.get("tls_verify") and broken):
        return f"demands a client certificate {advice.CLIENT_CERTIFICATE}"
    return ""
