"""Each server of the option ``servers`` by itself: its name, the port, what it says of itself, and TLS."""

from __future__ import annotations

import datetime
import json
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from spark_jetstream.client.auth import connect_arguments, mistrust
from spark_jetstream.doctor.findings import Finding, failed, ok, unknown, version_of, warning
from spark_jetstream.errors import OptionError
from spark_jetstream.options.connection import ConnectionOptions

OLDEST = (2, 10)
_LONGEST_INFO = 1 << 20
_SOON = 30  # days before a certificate expires
_PORTS = {"nats": 4222, "tls": 4222, "ws": 80, "wss": 443}
_NO_CLIENT = frozenset({"tlsCertFile", "tlsCertPem"})
_EXPIRED, _NOT_YET, _OTHER_NAME, _OTHER_ADDRESS = 10, 9, 62, 64  # verify_code of OpenSSL


@dataclass(frozen=True)
class Looked:
    """What looking at one server gave. ``info`` is what it says of itself, None when it was not reached."""

    url: str
    findings: tuple[Finding, ...]
    info: dict[str, Any] | None


class _Stop(Exception):
    """There is nothing more to be looked at; holds the last finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.said)
        self.finding = finding


def look_at(url: str, options: ConnectionOptions) -> Looked:
    """Reach for one server, without saying who we are. At most `connectTimeout` for each step."""
    findings: list[Finding] = []
    info: dict[str, Any] | None = None
    try:
        tls = _context(options)
        with _reached(url, options.connect_timeout, findings) as wire:
            info = _listen(url, options, wire, tls, findings)
    except _Stop as stop:
        findings.append(stop.finding)
    return Looked(url, tuple(findings), info)


def _context(options: ConnectionOptions) -> ssl.SSLContext:
    try:
        context = connect_arguments(options).get("tls")
    except OptionError as error:
        said = f"cannot be reached with option {error.option} as it is"
        raise _Stop(unknown("tls", said, "see the options above")) from None
    return context if context is not None else ssl.create_default_context()


def _reached(url: str, timeout: float, findings: list[Finding]) -> socket.socket:
    parts = urlsplit(url)
    host, port = str(parts.hostname), parts.port or _PORTS[parts.scheme]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        said = f"{host} has no address: {(error.strerror or str(error)).lower()}"
        raise _Stop(failed("name", said, "correct option servers, or the DNS of this machine")) from None
    addresses = sorted({str(each[4][0]) for each in found})
    if addresses != [host]:
        findings.append(ok("name", f"{host} is {', '.join(addresses)}"))
    try:
        wire = socket.create_connection((host, port), timeout)
    except OSError as error:
        why = "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
        said = f"port {port} of {host} cannot be reached: {why}"
        advice = "start the server, open the port in the firewall, or correct option servers"
        raise _Stop(failed("port", said, advice)) from None
    findings.append(ok("port", f"{port} is open"))
    return wire


def _listen(
    url: str, options: ConnectionOptions, wire: socket.socket, tls: ssl.SSLContext, findings: list[Finding]
) -> dict[str, Any] | None:
    scheme = urlsplit(url).scheme
    if scheme == "wss":
        with _encrypted(url, options, wire, tls) as secured:
            findings += _certificate(secured)
    if scheme in {"ws", "wss"}:
        findings.append(ok("server", "listens for WebSocket clients; what it is, logging in says"))
        return {}
    if options.tls_handshake_first:
        with _encrypted(url, options, wire, tls) as secured:
            info = _hello(secured)
            findings += [*_about(info), *_certificate(secured)]
        return info
    info = _hello(wire)
    findings += _about(info)
    wanted = options.requires_tls
    if info.get("tls_required") or (info.get("tls_available") and wanted):
        if info.get("tls_verify") and not _NO_CLIENT & options.given():
            said = "the server asks for the certificate of the client"
            raise _Stop(failed("tls", said, "set options tlsCertFile and tlsKeyFile"))
        with _encrypted(url, options, wire, tls) as secured:
            findings += _certificate(secured)
    elif wanted:
        said = "TLS is asked for (a tls:// URL or a tls option), and the server offers none"
        raise _Stop(failed("tls", said, "configure tls on the server, or use nats:// without tls options"))
    else:
        findings.append(_plain(url, options, info))
    return info


def _plain(url: str, options: ConnectionOptions, info: dict[str, Any]) -> Finding:
    offered = "offered, and not used" if info.get("tls_available") else "not offered"
    secret = {"password", "token"} & options.given()
    if secret and not _is_here(str(urlsplit(url).hostname)):
        said = f"{offered}: option {min(secret)} crosses the network as it is"
        return warning("tls", said, "configure tls on the server, and use tls:// in option servers")
    return ok("tls", offered)


def _is_here(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "::1"


def _hello(wire: socket.socket) -> dict[str, Any]:
    """The INFO line, with which a server greets."""
    data = b""
    try:
        while b"\r\n" not in data and len(data) < _LONGEST_INFO:
            piece = wire.recv(65536)
            if not piece:
                said = "closes the connection without a word"
                raise _Stop(failed("server", said, "look into its log; is the port that of its clients?"))
            data += piece
    except TimeoutError:
        advice = "set option tlsHandshakeFirst to true if the server wants TLS first, or correct the port"
        raise _Stop(failed("server", "says nothing: no NATS server, or one with TLS first", advice)) from None
    except OSError as error:
        said = f"breaks the connection: {(error.strerror or str(error)).lower()}"
        raise _Stop(failed("server", said, "look into its log")) from None
    line = data.partition(b"\r\n")[0]
    try:
        info = json.loads(line.removeprefix(b"INFO ")) if line.startswith(b"INFO ") else None
    except ValueError:
        info = None
    if not isinstance(info, dict):
        advice = "correct the port in option servers (4222 is that of clients, 8222 that of monitoring)"
        raise _Stop(failed("server", "is no NATS server: it does not begin with INFO", advice))
    return info


def _about(info: dict[str, Any]) -> Iterator[Finding]:
    version = str(info.get("version", ""))
    # A server that nobody named is called by its id.
    name = f" {info['server_name']}" if info.get("server_name") != info.get("server_id") else ""
    cluster = f", cluster {info['cluster']}" if info.get("cluster") else ""
    said = f"nats-server {version}{name}{cluster}, max_payload {info.get('max_payload', 0):,}"
    if version_of(version) < OLDEST:
        yield failed("server", said, "upgrade to nats-server 2.10 or newer: older ones lack what the connector uses")
    elif info.get("ldm"):
        yield warning("server", f"{said}; it is shutting down (lame duck)", "wait for it, or use another server")
    else:
        yield ok("server", said)
    if not info.get("jetstream"):
        advice = "enable jetstream in its configuration, unless other servers of its cluster have it"
        yield warning("jetstream", "this server has none itself", advice)


def _encrypted(url: str, options: ConnectionOptions, wire: socket.socket, tls: ssl.SSLContext) -> ssl.SSLSocket:
    """The connection with TLS, as the connector would make it."""
    host = options.tls_hostname or str(urlsplit(url).hostname)
    try:
        return tls.wrap_socket(wire, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise _Stop(failed("tls", *_mistrust(error, host, options))) from None
    except TimeoutError:
        said = "nothing came back when TLS began"
        advice = "if the server wants to say hello first, leave option tlsHandshakeFirst out"
        raise _Stop(failed("tls", said, advice)) from None
    except OSError as error:
        why = getattr(error, "reason", None) or error.strerror or str(error)
        said = f"the handshake failed: {str(why).replace('_', ' ').lower()}"
        advice = "is TLS configured on the server, and TLS first on both sides or on none (option tlsHandshakeFirst)?"
        raise _Stop(failed("tls", said, advice)) from None


def _mistrust(error: ssl.SSLCertVerificationError, host: str, options: ConnectionOptions) -> tuple[str, str]:
    """What is wrong with a certificate, and what to do."""
    said = f"the certificate is not trusted: {mistrust(error, options)}"
    if error.verify_code == _EXPIRED:
        return said, "renew the certificate of the server"
    if error.verify_code == _NOT_YET:
        return said, "set the clock of this machine, or wait"
    if error.verify_code in {_OTHER_NAME, _OTHER_ADDRESS}:
        name = host if options.tls_hostname is None else "that name"
        return said, f"put {name} into the certificate, or the certificate's name into option tlsHostname"
    return said, "set option tlsCaFile (or tlsCaPem) to the authority that signed it"


def _certificate(secured: ssl.SSLSocket) -> Iterator[Finding]:
    """When the certificate of the server expires; it has been checked already."""
    version = secured.version() or "TLS"
    found = secured.getpeercert() or {}
    text = found.get("notAfter")
    if not isinstance(text, str):
        yield unknown("tls", f"{version}, the certificate is trusted, and does not say until when")
        return
    end = datetime.datetime.fromtimestamp(ssl.cert_time_to_seconds(text), datetime.timezone.utc)
    days = (end - datetime.datetime.now(datetime.timezone.utc)).days
    names = ", ".join(str(each[1]) for each in found.get("subjectAltName", ()) if isinstance(each, tuple))
    said = f"{version}, the certificate is trusted, for {names or 'no names'}, until {end:%Y-%m-%d}"
    if days < _SOON:
        yield warning("tls", f"{said}: {days} days", "renew the certificate of the server")
    else:
        yield ok("tls", said)


def compare(looked: list[Looked]) -> Iterator[Finding]:
    """What is odd about several servers beside each other."""
    reached = [each.info for each in looked if each.info]
    for name, words in (("cluster", "clusters"), ("max_payload", "values of max_payload")):
        found = {str(info.get(name, "")) for info in reached}
        if len(found) > 1:
            said = f"the servers have different {words}: {', '.join(sorted(each or 'none' for each in found))}"
            yield warning(name, said, "name servers of one cluster in option servers, configured alike")
