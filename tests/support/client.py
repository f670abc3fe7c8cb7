"""A few things done with a server through nats-py, and a client of a few lines that sees every
byte.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import json
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import nats
import pytest
import trustme
from nats.js.client import JetStreamContext

from spark_jetstream.client import pool
from spark_jetstream.client.tcp import TcpWire
from spark_jetstream.client.timing import TIMING
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.protocol.wire import Scanner
from spark_jetstream.testing.process import LOOPBACK
from tests.support.publish import Publisher

T = TypeVar("T")


def ask(url: str, work: Callable[[JetStreamContext], Awaitable[T]], **options: Any) -> T:
    """Return the result of `work`, on a connection of its own."""

    async def run() -> T:
        how = {
            "allow_reconnect": False,
            "max_reconnect_attempts": 1,
            "connect_timeout": 60,
            **options,
        }
        client = await nats.connect(url.split(","), **how)
        try:
            return await work(client.jetstream(timeout=60))
        finally:
            await client.close()

    return asyncio.run(run())


def take(url: str, stream: str, consumer: str, count: int) -> list[int]:
    """Let an application pull messages and acknowledge them; return their sequences."""

    async def work(js: JetStreamContext) -> list[int]:
        subscription = await js.pull_subscribe_bind(consumer=consumer, stream=stream)
        taken = await subscription.fetch(count, timeout=60)
        for message in taken:
            await message.ack_sync(timeout=60)
        await subscription.unsubscribe()
        return [message.metadata.sequence.stream for message in taken]

    return ask(url, work)


def set_timing(monkeypatch: pytest.MonkeyPatch, **fields: float) -> None:
    """Give connections that are made from now on other times than those of `pool.timing`."""
    changed: dict[str, Any] = dict(fields)
    monkeypatch.setattr(pool, "timing", dataclasses.replace(pool.timing, **changed))


def set_limits(monkeypatch: pytest.MonkeyPatch, **fields: int) -> None:
    """Give connections that are made from now on other limits than those of `pool.limits`."""
    monkeypatch.setattr(pool, "limits", dataclasses.replace(pool.limits, **fields))


def close_lost() -> None:
    """Close the connections whose servers are gone.

    They would try to connect for the rest of the session, also to the servers of later tests that
    get the same ports.
    """
    with pool._lock:
        lost = [options for options, each in pool._pool.items() if not each._login.is_up]
        connections = [pool._pool.pop(options) for options in lost]
    for connection in connections:
        connection.close()


class _Nobody:
    """The owner of a wire that no login uses."""

    timing = TIMING

    def begin(self, uri: Any) -> dict[str, Any]:
        return {}

    def check_wanted(self) -> None:
        pass


def unowned_wire(url: str) -> TcpWire:
    """A wire to a server that says nothing of a login."""
    owner: Any = _Nobody()
    options = ConnectionOptions.from_spark({"servers": url})
    return TcpWire(options, owner, Scanner(), lambda event: None, lambda: 0.0)


def stored(url: str, stream: str = "S") -> int:
    return ask(url, lambda js: js.stream_info(stream)).state.messages


def server_info(url: str) -> dict[str, Any]:
    """Return the server's INFO for a client that connects."""
    with Publisher(url) as publisher:
        return publisher.info


def tls_config(
    folder: Path,
    more: str = "",
    name: str = LOOPBACK,
    authority: trustme.CA | None = None,
    days: float = 400,
) -> str:
    """The `tls` block of a server with this name; its authority is in `ca.pem`, a client in
    `client.pem`.

    The certificates expire in `days` days.
    """
    end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=days)
    authority = authority or trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    for file, host in (("server", name), ("client", "client@example.org")):
        cert = authority.issue_cert(host, not_after=end)
        cert.private_key_and_cert_chain_pem.write_to_path(str(folder / f"{file}.pem"))
    files = (
        f'cert_file: "{folder}/server.pem", key_file: "{folder}/server.pem", ca_file: '
        f'"{folder}/ca.pem"'
    )
    return f"tls {{ {files}, timeout: 5, {more} }}"


class Raw:
    """A NATS client of a few lines, to see every byte."""

    def __init__(self, url: str) -> None:
        self.sock = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=60)
        self.file = self.sock.makefile("rb")

    def hello(self, subjects: str = ">") -> None:
        """Connect and subscribe, by default to everything."""
        self.file.readline()
        self.send(
            b'CONNECT {"verbose":false,"headers":true}\r\nSUB %s 1\r\nPING\r\n' % subjects.encode()
        )
        assert self.file.readline() == b"PONG\r\n"

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def close(self) -> None:
        self.file.close()
        self.sock.close()


def in_child(work: Callable[[], object]) -> Any:
    """Return the result of `work` in a forked child; it must be JSON."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        # The child never comes back into pytest.
        try:
            os.write(into, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(into)
    with open(out, "rb") as file:
        result = file.read()
    assert os.waitpid(pid, 0)[1] == 0
    return json.loads(result)


forks = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def full(*values: object) -> list[Any]:
    """Parameters of tests that only `make test-all` runs."""
    return [pytest.param(value, marks=pytest.mark.full) for value in values]
