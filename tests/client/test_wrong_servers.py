"""Addresses at which something answers that is no NATS server: the error says what, and comes at
once.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlparse

import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.client import greeting
from spark_jetstream.client.pool import connect
from spark_jetstream.client.socket_reader import SocketReader
from spark_jetstream.errors import ConnectionFailed, JetStreamError, WrongServer
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.testing import NatsServer
from spark_jetstream.testing.process import PortLease
from tests.client.logins import SILENT
from tests.support.calls import planned, writer_of
from tests.support.client import set_timing
from tests.support.command import run_command
from tests.support.sinking import rows

pytestmark = pytest.mark.usefixtures("no_connection_left")

LOOPBACK = "127.0.0.1"
PATIENT = {"connectTimeout": "10m", "retryTimeout": "10m"}


class Ports(NamedTuple):
    """Where servers listen: a nats-server for clients, for monitoring and for WebSocket, and others
    by their names.
    """

    clients: int
    monitoring: int
    web: int
    http: int
    broken: int
    ssh: int
    silent: int


def _http(status: int, leaving: ExitStack) -> int:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = leaving.enter_context(ThreadingHTTPServer((LOOPBACK, 0), Handler))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    leaving.callback(server.shutdown)
    return int(server.server_address[1])


def _listener(greeting: bytes, leaving: ExitStack) -> int:
    listener = leaving.enter_context(socket.create_server((LOOPBACK, 0)))

    def serve() -> None:
        while True:
            try:
                wire, _ = listener.accept()
            except OSError:
                return
            leaving.callback(wire.close)
            with suppress(OSError):
                wire.sendall(greeting)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    leaving.callback(thread.join)
    leaving.callback(listener.shutdown, socket.SHUT_RDWR)
    return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def ports() -> Iterator[Ports]:
    with ExitStack() as leaving:
        lease = PortLease()
        leaving.callback(lease.release)
        web = f"websocket {{ host: {LOOPBACK}, port: {lease.port}, no_tls: true }}"
        server = leaving.enter_context(NatsServer(http_monitor=True, config=web))
        monitoring = int(server.monitor_url.rpartition(":")[2])
        others = (
            _http(404, leaving),
            _http(502, leaving),
            _listener(b"SSH-2.0-x\r\n", leaving),
            _listener(b"", leaving),
        )
        yield Ports(server.port, monitoring, lease.port, *others)


@pytest.fixture(autouse=True)
def in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    set_timing(monkeypatch, greeting_quiet=0.1, refused_for=0.1)
    monkeypatch.setattr(
        "nats.aio.client.shuffle", lambda pool: None
    )  # servers are tried in the order of the option


def options(*urls: str, **given: str) -> ConnectionOptions:
    return ConnectionOptions.from_spark({**PATIENT, "servers": ",".join(urls), **given})


HTTP = r"answered 'HTTP/1\.\d 404.*', which is not NATS \(option servers\)"
MONITORING = (
    r"answered 'HTTP/1\.\d 200.*', which is not NATS but the monitoring .* use port {clients} "
    r"\(option servers\)"
)


@pytest.mark.parametrize(
    ("scheme", "port", "says"),
    [
        ("nats", "http", HTTP),
        ("tls", "http", HTTP),
        ("ws", "http", HTTP),
        ("nats", "ssh", "answered 'SSH-2.0-x', which is not NATS "),
        ("ws", "ssh", "answered 'SSH-2.0-x', which is not NATS "),
        ("nats", "monitoring", MONITORING),
        ("ws", "monitoring", MONITORING),
        (
            "nats",
            "web",
            "answered 'HTTP/1.0 400 Bad Request', .* but a WebSocket, which needs a ws:// URL ",
        ),
        ("ws", "clients", "answered 'INFO .*', which is not a WebSocket but needs a nats:// URL "),
    ],
)
def test_the_error_names_the_kind_of_server_that_answers(
    ports: Ports, scheme: str, port: str, says: str
) -> None:
    number = getattr(ports, port)
    with pytest.raises(
        WrongServer,
        match=f"^the server at {LOOPBACK}:{number} {says.format(clients=ports.clients)}",
    ):
        connect(options(f"{scheme}://{LOOPBACK}:{number}"))


@pytest.mark.parametrize(
    ("scheme", "port", "says"),
    [
        ("ws", "silent", "no answer in time"),
        (
            "nats",
            "broken",
            "the server at .* answered 'HTTP/1.0 502 Bad Gateway', which is not NATS",
        ),
        ("ws", "broken", "the server at .* answered 'HTTP/1.1 502', which is not NATS"),
    ],
)
@pytest.mark.usefixtures("no_second_attempt")
def test_connecting_waits_for_a_server_that_may_be_starting(
    ports: Ports, scheme: str, port: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{scheme}://{LOOPBACK}:{getattr(ports, port)}"
    # An attempt with a silent server takes half of the time: the rest is for its error.
    set_timing(monkeypatch, attempt_share=0.5)
    seconds = 4 if port == "silent" else 600
    with pytest.raises(ConnectionFailed) as caught:
        connect(options(url, connectTimeout=f"{seconds}s"))
    assert caught.value.retriable
    reached = f"no NATS server could be reached at {url} within {seconds} s (option servers): "
    assert re.fullmatch(re.escape(reached) + says, str(caught.value)), caught.value


@pytest.mark.parametrize(("plain", "hint"), [(True, SILENT), (False, "")])
def test_a_server_that_says_nothing_may_be_one_that_starts(
    ports: Ports, plain: bool, hint: str
) -> None:
    uri = urlparse(f"nats://{LOOPBACK}:{ports.silent}")

    async def wait() -> None:
        await greeting.first_line(
            SocketReader(100), uri.netloc, (LOOPBACK, ports.silent), 0.5, plain=plain, quiet=0.1
        )

    with pytest.raises(greeting.NotNats) as caught:
        asyncio.run(wait())
    assert (
        str(caught.value)
        == f"the server at {uri.netloc} accepts connections and says nothing{hint}"
    )
    assert not caught.value.final


@pytest.mark.usefixtures("no_second_attempt")
def test_a_proxy_whose_server_is_away_is_an_outage(ports: Ports) -> None:
    """It may say anything: an ingress whose routes are made anew says 404."""
    url = f"ws://{LOOPBACK}:{ports.http}"
    with pytest.raises(
        ConnectionFailed, match=r"within 900 s .*answered 'HTTP/1\.1 404', which is not NATS"
    ) as caught:
        connect(options(url, connectTimeout="10m"), patience=900.0)
    assert type(caught.value) is ConnectionFailed


@pytest.mark.parametrize("wrong", ["http", "silent"])
@pytest.mark.parametrize(("scheme", "right"), [("nats", "clients"), ("ws", "web")])
def test_other_servers_are_tried(ports: Ports, scheme: str, right: str, wrong: str) -> None:
    first, second = (f"{scheme}://{LOOPBACK}:{getattr(ports, port)}" for port in (wrong, right))
    given = options(first, second, connectTimeout="4s" if wrong == "silent" else "10m")
    assert connect(given, patience=600.0).server_version


def _admin(given: dict[str, str]) -> None:
    with JetStreamAdmin(
        **{name: value for name, value in given.items() if name != "stream"}
    ) as admin:
        admin.account.info()


USES: dict[str, Callable[[dict[str, str]], object]] = {
    "admin": _admin,
    "batch": lambda given: planned("b", given),
    "query": lambda given: planned("s", given),
    "write": lambda given: writer_of("b", given, rows("s.a", 0, 1).schema),
    "writing query": lambda given: writer_of("s", given, rows("s.a", 0, 1).schema),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_every_use_fails_alike(ports: Ports, use: Callable[[dict[str, str]], object]) -> None:
    with pytest.raises(JetStreamError, match=HTTP) as caught:
        use({**PATIENT, "servers": f"nats://{LOOPBACK}:{ports.http}", "stream": "S"})
    assert type(caught.value) is WrongServer


def test_a_command_ends_with_3(
    ports: Ports, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    ran = run_command(
        "stream", "ls", "-o", "connectTimeout=10m", url=f"nats://{LOOPBACK}:{ports.http}"
    )
    assert (ran.code, ran.out) == (3, "")
    assert re.search(HTTP, ran.err)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    ran = run_command("stream", "ls", "-o", "connectTimeout=10m", url="nats://nowhere.invalid")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.endswith("nats://nowhere.invalid (option servers): no host has this name\n")
