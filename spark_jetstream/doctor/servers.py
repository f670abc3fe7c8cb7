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
from spark_jetstream.admin.models.account import AccountInfo
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
_EXPIRES_SOON = 30  # days before a certificate expires
_PORTS = {"nats": 4222, "tls": 4222, "ws": 80, "wss": 443}
_CLIENT_CERTIFICATE = frozenset({"tlsCertFile", "tlsCertPem"})
_EXPIRED, _NOT_YET, _OTHER_NAME, _OTHER_ADDRESS = 10, 9, 62, 64  # verify_code of OpenSSL
_ROUNDS = 5
_SLOW = 0.1  # seconds for a round trip
_CLOCK_TOLERANCE = 5.0  # seconds
_FULL = 0.9
LEADERLESS = "is a leader being elected? try again; then look into the server's log"
_FEATURES = (
    (DIRECT_BATCHES.level, "readWith=direct"),
    (CONSUMER_RESET.level, "moving a consumer (durable makes it anew instead)"),
    (FILTERED_PURGE.level, "several filters on a work queue (durable)"),
)
"""API level -> what a server with a lower one cannot do."""


class _ProbeError(Exception):
    """Ends the probe of a server with a failed check: its name, what it has found, and what to do."""


class ServerProbe:
    """Connects to one server without logging in, to find the step that fails. Each takes at most `connectTimeout`."""

    def __init__(self, url: str, options: ConnectionOptions) -> None:
        parts = urlsplit(url)
        self.url = url
        self._scheme, self._host, self._port = parts.scheme, str(parts.hostname), parts.port or _PORTS[parts.scheme]
        self._options = options
        self.findings: list[Finding] = []
        """What the steps have shown; the last one failed if ``info`` is None."""
        self.info: dict[str, Any] | None = None
        """The server's INFO, empty for WebSocket, None if it was not reached."""
        try:
            self._tls = connect_arguments(options).get("tls") or ssl.create_default_context()
            with self._open() as wire:
                self.info = self._read_greeting(wire)
        except OptionError as error:
            text = f"cannot be reached with option {error.option} as it is"
            self.findings.append(unknown("tls", text, "see the options above"))
        except _ProbeError as error:
            self.findings.append(failed(*error.args))

    def _open(self) -> socket.socket:
        host, port = self._host, self._port
        try:
            resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            text = f"{host} has no address: {error_text(error)}"
            raise _ProbeError("name", text, "correct option servers, or the DNS of this machine") from None
        addresses = sorted({str(entry[4][0]) for entry in resolved})
        if addresses != [host]:
            self.findings.append(ok("name", f"{host} is {', '.join(addresses)}"))
        try:
            wire = socket.create_connection((host, port), self._options.connect_timeout)
        except OSError as error:
            why = NO_ANSWER if isinstance(error, TimeoutError) else error_text(error)
            advice = "start the server, open the port in the firewall, or correct option servers"
            raise _ProbeError("port", f"port {port} of {host} cannot be reached: {why}", advice) from None
        self.findings.append(ok("port", f"{port} is open"))
        return wire

    def _read_greeting(self, wire: socket.socket) -> dict[str, Any]:
        options = self._options
        if self._scheme in {"ws", "wss"}:
            if self._scheme == "wss":
                self._check_tls(wire)
            self.findings.append(ok("server", "listens for WebSocket clients; what it is, logging in says"))
            return {}
        if options.tls_handshake_first:
            with self._start_tls(wire) as secured:
                info = self._read_info(secured)
                self.findings += [*_check_info(info), *_check_certificate(secured)]
            return info
        info = self._read_info(wire)
        self.findings += _check_info(info)
        if info.get("tls_required") or (info.get("tls_available") and options.requires_tls):
            if info.get("tls_verify") and not _CLIENT_CERTIFICATE & options.given():
                text = "the server asks for the certificate of the client"
                raise _ProbeError("tls", text, "set options tlsCertFile and tlsKeyFile")
            self._check_tls(wire)
        elif options.requires_tls:
            text = "TLS is asked for (a tls:// URL or a tls option), and the server offers none"
            raise _ProbeError("tls", text, "configure tls on the server, or use nats:// without tls options")
        else:
            self.findings.append(self._plain(info))
        return info

    def _read_info(self, wire: socket.socket) -> dict[str, Any]:
        """Return the INFO with which a server begins."""
        line = b""
        with contextlib.suppress(OSError):
            line = wire.makefile("rb").readline(_MAX_INFO)
        try:
            if line.startswith(b"INFO"):
                checked_info(line, first=True)
                info: dict[str, Any] = json.loads(line.removeprefix(b"INFO"))
                return info
            # It says what is there.
            connect_at_once(self._options.model_copy(update={"servers": (self.url,)}))
            text = "is a NATS server now, and was none before"
        except JetStreamError as error:
            text = str(error)
        advice = (
            "look into its log, or correct the port in option servers (4222 is that of clients, 8222 of monitoring)"
        )
        raise _ProbeError("server", text, advice)

    def _plain(self, info: dict[str, Any]) -> Finding:
        offered = "offered, and not used" if info.get("tls_available") else "not offered"
        secret = {"password", "token"} & self._options.given()
        if secret and not (self._host in ("localhost", "::1") or self._host.startswith("127.")):
            text = f"{offered}: option {min(secret)} crosses the network as it is"
            return warning("tls", text, "configure tls on the server, and use tls:// in option servers")
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
            name = host if self._options.tls_hostname is None else "that name"
            other_name = f"put {name} into the certificate, or the certificate's name into option tlsHostname"
            advice = {
                _EXPIRED: "renew the certificate of the server",
                _NOT_YET: "set the clock of this machine, or wait",
                _OTHER_NAME: other_name,
                _OTHER_ADDRESS: other_name,
            }.get(error.verify_code, "set option tlsCaFile (or tlsCaPem) to the authority that signed it")
        except TimeoutError:
            text = "nothing came back when TLS began"
            advice = "if the server wants to say hello first, leave option tlsHandshakeFirst out"
        except OSError as error:
            text = f"the handshake failed: {error_text(error)}"
            first = "TLS first on both sides or on none (option tlsHandshakeFirst)"
            advice = f"is TLS configured on the server, and {first}?"
        raise _ProbeError("tls", text, advice)


def _check_info(info: dict[str, Any]) -> Iterator[Finding]:
    version = info["version"]
    # Without server_name in its configuration a server uses its id as its name.
    named = info.get("server_name", "") not in ("", info.get("server_id"))
    name = f" {brief(str(info['server_name']))}" if named else ""
    cluster = f", cluster {brief(str(info['cluster']))}" if info.get("cluster") else ""
    text = f"nats-server {version}{name}{cluster}, max_payload {info['max_payload']:,}"
    if version_of(version) < OLDEST:
        yield failed("server", text, "upgrade to nats-server 2.10 or newer: older ones lack what the connector uses")
    elif info.get("ldm"):
        yield warning("server", f"{text}; it is shutting down (lame duck)", "wait for it, or use another server")
    else:
        yield ok("server", text)
    if not info.get("jetstream"):
        advice = "enable jetstream in its configuration, unless other servers of its cluster have it"
        yield warning("jetstream", "this server has none itself", advice)


def _check_certificate(secured: ssl.SSLSocket) -> Iterator[Finding]:
    """Check when the certificate of the server expires. TLS has verified it already."""
    certificate: dict[str, Any] = secured.getpeercert() or {}
    seconds = ssl.cert_time_to_seconds(certificate["notAfter"])
    end = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    days = (end - datetime.datetime.now(datetime.timezone.utc)).days
    names = ", ".join(str(name) for _, name in certificate.get("subjectAltName", ()))
    text = f"{secured.version()}, the certificate is trusted, for {names or 'no names'}, until {end:%Y-%m-%d}"
    if days < _EXPIRES_SOON:
        yield warning("tls", f"{text}: {days} days", "renew the certificate of the server")
    else:
        yield ok("tls", text)


def compare_servers(probes: Sequence[ServerProbe]) -> Iterator[Finding]:
    """Check that the servers belong to one cluster and have the same limits."""
    reached = [probe.info for probe in probes if probe.info]
    for name, what in (("cluster", "clusters"), ("max_payload", "values of max_payload")):
        values = {brief(str(info.get(name, ""))) for info in reached}
        if len(values) > 1:
            text = f"the servers have different {what}: {', '.join(sorted(value or 'none' for value in values))}"
            yield warning(name, text, "name servers of one cluster in option servers, configured alike")


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
    return ok("login", f"accepted by nats-server {version} ({who}), max_payload {connection.max_payload:,}")


def check_round_trip(connection: Connection) -> Finding:
    """Check how long a PONG takes."""
    seconds = []
    for _ in range(_ROUNDS):
        began = time.monotonic()
        connection.check(connection.options.request_timeout)
        seconds.append(time.monotonic() - began)
    median = statistics.median(seconds)
    text = f"{median * 1000:.1f} ms (median of {_ROUNDS})"
    if median > _SLOW:
        return warning("round trip", text, "run Spark nearer to the servers, or raise fetchBatch and maxInFlight")
    return ok("round trip", text)


def check_user(identity: Identity, before: int, options: ConnectionOptions) -> Iterator[Finding]:
    """Check what the server says of the user, and its clock. ``before``: when it was asked, in ns since the epoch."""
    user = identity.data
    yield ok("account", f"{user.account}, user {user.user or 'not named'}")
    # Go writes a duration in nanoseconds.
    expires = user.expires or 0
    if 0 < expires < 30 * 86_400 * 1_000_000_000:
        left = datetime.timedelta(seconds=expires // 1_000_000_000)
        yield warning("credentials", f"expire in {left}", f"renew them ({options.authentication_options})")
    yield check_clock(parse_time(str(identity.server.time)), before, time.time_ns())


def check_clock(server: int, before: int, after: int) -> Finding:
    """Check that the server's clock was between two times of this machine's clock, all in ns since the epoch."""
    off = max(before - server, server - after, 0) / 1e9
    if off < _CLOCK_TOLERANCE:
        return ok("clock", "agrees with the server's")
    ahead = "behind" if server > after else "ahead of"
    text = f"this machine is {off:,.0f} s {ahead} the server"
    return warning("clock", text, "set both by NTP: startingTimestamp and endingTimestamp mean the server's clock")


def account_of(admin: JetStreamAdmin) -> AccountInfo | Finding:
    """Return the JetStream account, or why that is not known. It is failed if all that needs JetStream would fail."""
    options = admin.options
    try:
        return admin.account.info()
    except JetStreamNotEnabled as error:
        return failed("jetstream", str(error), "enable jetstream for the account, in the server's configuration")
    except PermissionDenied as error:
        return unknown("limits", f"{error}, which is optional")
    except NoResponders:
        named = [name for name in ("domain", "apiPrefix") if name in options.given()]
        text = f"nobody answers at {options.api_prefix_resolved}.INFO"
        advice = f"correct option {named[0]}" if named else "enable jetstream on the server, or set domain or apiPrefix"
        return failed("jetstream", text, advice)
    except JetStreamError as error:
        return failed("jetstream", str(error), LEADERLESS)


def check_account(info: AccountInfo) -> Iterator[Finding]:
    """Check what of the account's limits is used, and the server's API level."""
    where = f", domain {info.domain}" if info.domain else ""
    yield ok("jetstream", f"{counted(info.streams, 'stream')}, {counted(info.consumers, 'consumer')}{where}")
    yield from _limits(info)
    yield _level(info)


def _limits(info: AccountInfo) -> list[Finding]:
    full = []
    for name, tier in (info.tiers or {"": info}).items():
        used = {
            "bytes of memory": (max(tier.memory, tier.reserved_memory), tier.limits.max_memory),
            "bytes of storage": (max(tier.storage, tier.reserved_storage), tier.limits.max_storage),
            "streams": (tier.streams, tier.limits.max_streams),
        }
        for what, (amount, most) in used.items():
            if most > 0 and amount > most * _FULL:
                text = f"{amount:,} of {most:,} {what}{f' of {name}' if name else ''} are used or reserved"
                advice = "remove what is not needed, or raise the limits of the account"
                full.append(warning("limits", text, advice))
    return full or [ok("limits", "less than 90 % of each is used")]


def _level(info: AccountInfo) -> Finding:
    level = info.api.level
    text = f"level {level} (nats-server {since(level)})"
    lacking = [(needed, what) for needed, what in _FEATURES if level < needed]
    if not lacking:
        return ok("api", f"{text}: all options work")
    features = "; ".join(f"{what}: {LEVELS[needed]}" for needed, what in lacking)
    if level < 1:
        advice = f"upgrade to nats-server {LEVELS[lacking[-1][0]]}, or leave these options out"
        return warning("api", f"{text} lacks {features}", advice)
    return ok("api", f"{text}; newer servers have {features}")
