"""Checks of each server of the option ``servers``, of the login, and of the JetStream account."""

from __future__ import annotations

import contextlib
import datetime
import json
import socket
import ssl
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from spark_jetstream.admin.client import JetStreamAdmin
from spark_jetstream.admin.models.account import AccountInfo, Tier
from spark_jetstream.client.auth import connect_arguments, mistrust
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import connect_at_once
from spark_jetstream.client.reasons import NO_ANSWER, error_text
from spark_jetstream.doctor.findings import Finding, failed, ok, unknown, version_of, warning
from spark_jetstream.doctor.permissions import Identity
from spark_jetstream.errors import (
    AuthenticationFailed,
    JetStreamError,
    JetStreamNotEnabled,
    NoResponders,
    OptionError,
    PermissionDenied,
    brief,
)
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.options.servers import WEB_SCHEMES
from spark_jetstream.protocol.features import (
    CONSUMER_RESET,
    DIRECT_BATCHES,
    FILTERED_PURGE,
    LEVELS,
    shown_version,
    since,
)
from spark_jetstream.protocol.server_info import checked_info
from spark_jetstream.protocol.units import counted, parse_time

OLDEST = (2, 10)
_MAX_INFO = 1 << 20
_EXPIRES_SOON = 30  # days before a certificate or a JWT expires
_DAY = 86_400 * 1_000_000_000  # ns
_PORTS = {"nats": 4222, "tls": 4222, "ws": 80, "wss": 443}
_CLIENT_CERTIFICATE = frozenset({"tlsCertFile", "tlsCertPem"})
# OpenSSL's codes for a certificate that it does not trust.
_NOT_YET = 9
_EXPIRED = 10
_OTHER_NAME = 62
_OTHER_ADDRESS = 64
_ROUNDS = 5
_SLOW = 0.1  # seconds for a round trip
_CLOCK_TOLERANCE = 5.0  # seconds
_FULL = 0.9
LEADERLESS = "is a leader being elected? try again; then look into the server's log"
#: API level, and a feature that a server with a lower one does not have.
_FEATURES = (
    (DIRECT_BATCHES.level, "readWith=direct"),
    (CONSUMER_RESET.level, "moving a consumer (durable makes it anew instead)"),
    (FILTERED_PURGE.level, "several filters on a work queue (durable)"),
)


class _ProbeError(Exception):
    """Ends the probe of a server; the arguments are those of its failed `Finding`."""


class ServerProbe:
    """Connects to one server without logging in, to find the step that fails.

    Each takes at most `connectTimeout`.
    """

    def __init__(self, url: str, options: ConnectionOptions) -> None:
        parts = urlsplit(url)
        self.url = url
        self._scheme = parts.scheme
        self._host = str(parts.hostname)
        self._port = parts.port or _PORTS[parts.scheme]
        self._options = options
        self.findings: list[Finding] = []
        """What the steps have shown; the last one failed if ``info`` is None."""
        self.info: dict[str, Any] | None = None
        """The server's INFO, empty for WebSocket, None if it was not reached."""
        try:
            # The context of the options, which verifies as a task does; reading its files may fail.
            self._tls = connect_arguments(options).get("tls") or ssl.create_default_context()
            with self._open() as wire:
                self.info = self._read_greeting(wire)
        except OptionError as error:
            text = f"cannot be reached with option {error.option} as it is"
            self.findings.append(unknown("tls", text, "see the options above"))
        except _ProbeError as error:
            self.findings.append(failed(*error.args))

    def _open(self) -> socket.socket:
        host = self._host
        port = self._port
        try:
            resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            text = f"{host} has no address: {error_text(error)}"
            raise _ProbeError(
                "name",
                text,
                "correct option servers, or the DNS of this machine",
            ) from None
        addresses = sorted({str(entry[4][0]) for entry in resolved})
        if addresses != [host]:
            self.findings.append(ok("name", f"{host} is {', '.join(addresses)}"))
        try:
            wire = socket.create_connection((host, port), self._options.connect_timeout)
        except OSError as error:
            why = NO_ANSWER if isinstance(error, TimeoutError) else error_text(error)
            advice = "start the server, open the port in the firewall, or correct option servers"
            raise _ProbeError(
                "port",
                f"port {port} of {host} cannot be reached: {why}",
                advice,
            ) from None
        self.findings.append(ok("port", f"{port} is open"))
        return wire

    def _read_greeting(self, wire: socket.socket) -> dict[str, Any]:
        # Their INFO comes in a frame, after a request over HTTP that nats-py makes.
        if self._scheme in WEB_SCHEMES:
            if self._scheme == "wss":
                self._check_tls(wire)
            self.findings.append(
                ok("server", "listens for WebSocket clients; what it is, logging in says"),
            )
            return {}
        if self._options.tls_handshake_first:
            with self._start_tls(wire) as secured:
                info = self._read_info(secured)
                self.findings += _check_info(info)
                self.findings += _check_certificate(secured)
            return info
        # The server speaks first, and says whether it wants TLS.
        info = self._read_info(wire)
        self.findings += _check_info(info)
        self._check_encryption(wire, info)
        return info

    def _check_encryption(self, wire: socket.socket, info: dict[str, Any]) -> None:
        """Begin TLS if the server and the options want it."""
        is_wanted = self._options.requires_tls
        is_offered = info.get("tls_required") or info.get("tls_available")
        if is_wanted and not is_offered:
            text = "TLS is asked for (a tls:// URL or a tls option), and the server offers none"
            advice = "configure tls on the server, or use nats:// without tls options"
            raise _ProbeError("tls", text, advice)
        if not is_wanted and not info.get("tls_required"):
            self.findings.append(self._plain(info))
            return
        if info.get("tls_verify") and _CLIENT_CERTIFICATE.isdisjoint(self._options.given()):
            text = "the server asks for the certificate of the client"
            raise _ProbeError("tls", text, "set options tlsCertFile and tlsKeyFile")
        self._check_tls(wire)

    def _read_info(self, wire: socket.socket) -> dict[str, Any]:
        """Return the INFO with which a server begins."""
        line = b""
        # A server that says nothing is looked at below, as any other text.
        with contextlib.suppress(OSError):
            line = wire.makefile("rb").readline(_MAX_INFO)
        try:
            if line.startswith(b"INFO"):
                checked_info(line, first=True)
                info: dict[str, Any] = json.loads(line.removeprefix(b"INFO"))
                return info
            # The error of connecting names the other thing that answers.
            connect_at_once(self._options.model_copy(update={"servers": (self.url,)}))
            text = "is a NATS server now, and was none before"
        except JetStreamError as error:
            text = str(error)
        advice = (
            "look into its log, or correct the port in option servers (4222 is that of clients, "
            "8222 of monitoring)"
        )
        raise _ProbeError("server", text, advice)

    def _plain(self, info: dict[str, Any]) -> Finding:
        offered = "offered, and not used" if info.get("tls_available") else "not offered"
        secrets = {"password", "token"} & self._options.given()
        is_local = self._host in ("localhost", "::1") or self._host.startswith("127.")
        if secrets and not is_local:
            text = f"{offered}: option {min(secrets)} crosses the network as it is"
            advice = "configure tls on the server, and use tls:// in option servers"
            return warning("tls", text, advice)
        return ok("tls", offered)

    def _check_tls(self, wire: socket.socket) -> None:
        with self._start_tls(wire) as secured:
            self.findings += _check_certificate(secured)

    def _start_tls(self, wire: socket.socket) -> ssl.SSLSocket:
        """Begin TLS as the connector does."""
        host = self._options.tls_hostname or self._host
        try:
            return self._tls.wrap_socket(wire, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            text = f"the certificate is not trusted: {mistrust(error, self._options)}"
            advice = self._certificate_advice(error)
        except TimeoutError:
            text = "the server sent nothing when TLS began"
            advice = "if the server wants to say hello first, leave option tlsHandshakeFirst out"
        except OSError as error:
            text = f"the handshake failed: {error_text(error)}"
            first = "TLS first on both sides or on none (option tlsHandshakeFirst)"
            advice = f"is TLS configured on the server, and {first}?"
        raise _ProbeError("tls", text, advice)

    def _certificate_advice(self, error: ssl.SSLCertVerificationError) -> str:
        if error.verify_code == _EXPIRED:
            return "renew the certificate of the server"
        if error.verify_code == _NOT_YET:
            return "set the clock of this machine, or wait"
        if error.verify_code in (_OTHER_NAME, _OTHER_ADDRESS):
            name = self._host if self._options.tls_hostname is None else "that name"
            return (
                f"put {name} into the certificate, or the certificate's name into option "
                "tlsHostname"
            )
        return "set option tlsCaFile (or tlsCaPem) to the authority that signed it"


def _description(info: dict[str, Any]) -> str:
    """Return version, name, cluster and limit of a server."""
    text = f"nats-server {info['version']}"
    # Without server_name in its configuration a server uses its id as its name.
    if info.get("server_name", "") not in ("", info.get("server_id")):
        text += f" {brief(str(info['server_name']))}"
    if info.get("cluster"):
        text += f", cluster {brief(str(info['cluster']))}"
    return f"{text}, max_payload {info['max_payload']:,}"


def _check_info(info: dict[str, Any]) -> Iterator[Finding]:
    text = _description(info)
    if version_of(info["version"]) < OLDEST:
        yield failed(
            "server",
            text,
            "upgrade to nats-server 2.10 or newer: older ones lack what the connector uses",
        )
    elif info.get("ldm"):
        yield warning(
            "server",
            f"{text}; it is shutting down (lame duck)",
            "wait for it, or use another server",
        )
    else:
        yield ok("server", text)
    if not info.get("jetstream"):
        advice = (
            "enable jetstream in its configuration, unless other servers of its cluster have it"
        )
        yield warning("jetstream", "this server has none itself", advice)


def _check_certificate(secured: ssl.SSLSocket) -> Iterator[Finding]:
    """Check when the certificate of the server expires. TLS has verified it already."""
    certificate: dict[str, Any] = secured.getpeercert() or {}
    seconds = ssl.cert_time_to_seconds(certificate["notAfter"])
    end = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    days = (end - datetime.datetime.now(datetime.timezone.utc)).days
    names = ", ".join(str(name) for _, name in certificate.get("subjectAltName", ()))
    text = (
        f"{secured.version()}, the certificate is trusted, for {names or 'no names'}, until "
        f"{end:%Y-%m-%d}"
    )
    if days < _EXPIRES_SOON:
        yield warning("tls", f"{text}: {days} days", "renew the certificate of the server")
    else:
        yield ok("tls", text)


def compare_servers(probes: Sequence[ServerProbe]) -> Iterator[Finding]:
    """Check that the servers belong to one cluster and have the same limits."""
    reached = [probe.info for probe in probes if probe.info]
    for name, noun in (("cluster", "clusters"), ("max_payload", "values of max_payload")):
        values = {brief(str(info.get(name, ""))) for info in reached}
        if len(values) > 1:
            differing = ", ".join(sorted(value or "none" for value in values))
            text = f"the servers have different {noun}: {differing}"
            advice = "name servers of one cluster in option servers, configured alike"
            yield warning(name, text, advice)


def check_login(options: ConnectionOptions) -> Finding:
    """Check that the server accepts the credentials."""
    who = options.authentication_options
    try:
        connection = connect_at_once(options)
    except AuthenticationFailed as error:
        advice = "set options user and password, or those of another way to log in"
        if who.startswith("option"):
            advice = f"correct {who}, or the users in the server's configuration"
        return failed("login", str(error), advice)
    except JetStreamError as error:
        return failed("login", str(error), "see above; the server's log knows more")
    version = shown_version(connection.server_version)
    limit = f"max_payload {connection.max_payload:,}"
    return ok("login", f"accepted by nats-server {version} ({who}), {limit}")


def check_round_trip(connection: Connection) -> Finding:
    """Check how long a PONG takes."""
    seconds = []
    for _ in range(_ROUNDS):
        began = time.monotonic()
        connection.check(connection.options.request_timeout)
        seconds.append(time.monotonic() - began)
    # One slow answer among them says little.
    median = statistics.median(seconds)
    text = f"{median * 1000:.1f} ms (median of {_ROUNDS})"
    if median > _SLOW:
        return warning(
            "round trip",
            text,
            "run Spark nearer to the servers, or raise fetchBatch and maxInFlight",
        )
    return ok("round trip", text)


def check_user(identity: Identity, before: int, options: ConnectionOptions) -> Iterator[Finding]:
    """Check what the server says of the user, and its clock.

    ``before``: when it was asked, in ns since the epoch.
    """
    user = identity.data
    yield ok("account", f"{user.account}, user {user.user or 'not named'}")
    nanoseconds = user.expires or 0  # Go writes a duration so
    if 0 < nanoseconds < _EXPIRES_SOON * _DAY:
        left = datetime.timedelta(seconds=nanoseconds // 1_000_000_000)
        yield warning(
            "credentials",
            f"expire in {left}",
            f"renew them ({options.authentication_options})",
        )
    yield check_clock(parse_time(str(identity.server.time)), before, time.time_ns())


def check_clock(server: int, before: int, after: int) -> Finding:
    """Check the server's clock against two times of this machine's; all are ns since the epoch."""
    # The server read its clock at some time between the two.
    off = max(before - server, server - after, 0) / 1e9
    if off < _CLOCK_TOLERANCE:
        return ok("clock", "agrees with the server's")
    ahead = "behind" if server > after else "ahead of"
    text = f"this machine is {off:,.0f} s {ahead} the server"
    return warning(
        "clock",
        text,
        "set both by NTP: startingTimestamp and endingTimestamp mean the server's clock",
    )


def account_of(admin: JetStreamAdmin) -> AccountInfo | Finding:
    """Return the JetStream account, or why that is not known.

    It is failed if all that needs JetStream would fail.
    """
    options = admin.options
    try:
        return admin.account.info()
    except JetStreamNotEnabled as error:
        return failed(
            "jetstream",
            str(error),
            "enable jetstream for the account, in the server's configuration",
        )
    except PermissionDenied as error:
        return unknown("limits", f"{error}, which is optional")
    except NoResponders:
        text = f"nobody answers at {options.api_prefix_resolved}.INFO"
        return failed("jetstream", text, _prefix_advice(options))
    except JetStreamError as error:
        return failed("jetstream", str(error), LEADERLESS)


def _prefix_advice(options: ConnectionOptions) -> str:
    for name in ("domain", "apiPrefix"):
        if name in options.given():
            return f"correct option {name}"
    return "enable jetstream on the server, or set domain or apiPrefix"


def check_account(info: AccountInfo) -> Iterator[Finding]:
    """Check what of the account's limits is used, and the server's API level."""
    text = f"{counted(info.streams, 'stream')}, {counted(info.consumers, 'consumer')}"
    if info.domain:
        text += f", domain {info.domain}"
    yield ok("jetstream", text)
    yield from _limits(info)
    yield _level(info)


def _limits(info: AccountInfo) -> list[Finding]:
    full = []
    # An account with tiers has no limits of its own.
    for name, tier in (info.tiers or {"": info}).items():
        # The limits of a tier are for streams with that number of replicas.
        of_tier = f" of {name}" if name else ""
        for noun, amount, most in _used(tier):
            if most > 0 and amount > most * _FULL:
                text = f"{amount:,} of {most:,} {noun}{of_tier} are used or reserved"
                advice = "remove what is not needed, or raise the limits of the account"
                full.append(warning("limits", text, advice))
    return full or [ok("limits", "less than 90 % of each is used")]


def _used(tier: Tier) -> tuple[tuple[str, int, int], ...]:
    """Return the name, the used amount and the limit of each thing that is limited."""
    limits = tier.limits
    memory = max(tier.memory, tier.reserved_memory)
    storage = max(tier.storage, tier.reserved_storage)
    return (
        ("bytes of memory", memory, limits.max_memory),
        ("bytes of storage", storage, limits.max_storage),
        ("streams", tier.streams, limits.max_streams),
    )


def _level(info: AccountInfo) -> Finding:
    level = info.api.level
    text = f"level {level} (nats-server {since(level)})"
    lacking = {feature: needed for needed, feature in _FEATURES if level < needed}
    if not lacking:
        return ok("api", f"{text}: all options work")
    features = "; ".join(f"{feature}: {LEVELS[needed]}" for feature, needed in lacking.items())
    if level < 1:
        newest = LEVELS[max(lacking.values())]
        advice = f"upgrade to nats-server {newest}, or leave these options out"
        return warning("api", f"{text} lacks {features}", advice)
    return ok("api", f"{text}; newer servers have {features}")
