"""A host name with several addresses: where one of them is dead, another is used."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from spark_jetstream.client import addresses
from spark_jetstream.client.pool import connect
from spark_jetstream.errors import ConnectionFailed
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.testing import NatsServer
from spark_jetstream.testing.process import LOOPBACK
from tests.support.client import tls_config

pytestmark = pytest.mark.usefixtures("no_connection_left")

DEAD = "127.0.0.2"
HOST = "nats.example.org"


@contextlib.contextmanager
def full(port: int) -> Iterator[None]:
    """An address that drops each SYN: the queue of its listener is full."""
    with socket.create_server((DEAD, port), backlog=0), socket.create_connection((DEAD, port)):
        yield


@contextlib.contextmanager
def silent(port: int) -> Iterator[None]:
    """An address that accepts connections and says nothing."""
    with socket.create_server((DEAD, port), backlog=100):
        yield


@contextlib.contextmanager
def closing(port: int) -> Iterator[None]:
    """An address that accepts connections and closes them, as a proxy does whose server is away."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                listener.accept()[0].close()

    with socket.create_server((DEAD, port)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture(autouse=True)
def two_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """`HOST` is `DEAD` and `LOOPBACK`. An address has a second if there is another one."""
    ask = socket.getaddrinfo

    def answer(host: Any, *more: Any, **named: Any) -> list[Any]:
        if host == HOST and named.get("flags", 0) & socket.AI_NUMERICHOST:
            raise socket.gaierror("a name")
        hosts = [DEAD, LOOPBACK] if host == HOST else [host]
        return [entry for each in hosts for entry in ask(each, *more, **named)]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    monkeypatch.setattr(addresses, "share", lambda seconds, count: seconds if count == 1 else 1.0)


@pytest.mark.parametrize("dead", [full, silent, closing])
@pytest.mark.parametrize("way", ["nats", "tls", "TLS first", "ws"])
def test_another_address_is_used(
    dead: Callable[[int], contextlib.AbstractContextManager[None]], way: str, tmp_path: Path
) -> None:
    config = (
        ""
        if way in ("nats", "ws")
        else tls_config(tmp_path, "handshake_first: true" * (way == "TLS first"), HOST)
    )
    with NatsServer(config=config, websocket=way == "ws", jetstream=False) as server:
        url = server.websocket_url if way == "ws" else server.url
        given = {"servers": url.replace(LOOPBACK, HOST), "connectTimeout": "30s"}
        if config:
            given |= {
                "tlsCaFile": str(tmp_path / "ca.pem"),
                "tlsHandshakeFirst": str(way == "TLS first"),
            }
        with dead(int(url.rpartition(":")[2])):
            assert connect(ConnectionOptions.from_spark(given)).server_version


@pytest.mark.parametrize("host", [LOOPBACK, "[::1]"])
def test_an_address_is_looked_up_without_a_thread(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(asyncio.BaseEventLoop, "run_in_executor")
    found = asyncio.run(addresses.Addresses().resolve(urlsplit(f"nats://{host}:4222"), 10.0))
    assert {entry[-1][:2] for entry in found} == {(host.strip("[]"), 4222)}


def test_a_host_at_which_nothing_listens_is_given_up_at_once() -> None:
    given = ConnectionOptions.from_spark({"servers": f"{HOST}:1", "connectTimeout": "10m"})
    with pytest.raises(ConnectionFailed, match="the connection was refused, nothing listens there"):
        connect(given, starting=False)
