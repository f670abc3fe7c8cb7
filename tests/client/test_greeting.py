"""Lines of a server between CONNECT and its PONG: each login goes on, however long the server
takes.
"""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from spark_jetstream.client import login
from spark_jetstream.client.greeting import Greeting, NotNats
from spark_jetstream.client.pool import connect
from spark_jetstream.errors import AuthenticationFailed
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.testing import NatsServer
from spark_jetstream.testing.process import LOOPBACK, PortLease
from tests.client.logins import SILENT
from tests.support.callout import Callout
from tests.support.fake_jetstream import FakeJetStream, Honest

pytestmark = pytest.mark.usefixtures("no_connection_left")

MAX_PAYLOAD = 12_345
INFO = b'INFO {"max_payload":%d}\r\n' % MAX_PAYLOAD
EARLY = {
    "a PING": b"PING\r\n",
    "several PINGs": b"PING\r\n" * 3,
    "an INFO": INFO,
    "a +OK": b"+OK\r\n",
    "all of them": b"+OK\r\nPING\r\n" + INFO + b"PING\r\n+OK\r\n",
}
"""What may come before the PONG."""


def options(url: str, **given: str) -> ConnectionOptions:
    return ConnectionOptions.from_spark({"servers": url, "connectTimeout": "60s", **given})


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


# A real server that asks a service about each login


def test_a_login_answers_the_ping_of_a_server_whose_callout_is_slow() -> None:
    callout, clients = Callout(), list[int]()
    with NatsServer(config=callout.config, args=["-DV"]) as server:

        def wait(asked: dict[str, Any]) -> None:
            clients.append(asked["client_info"]["id"])
            server.wait_for_log(f"cid:{clients[-1]} - ->> [PING]", timeout=60)

        with callout.serving(server, wait):
            connect(options(server.url, user="ann", password="y")).check()
        assert len(clients) == 1  # no attempt has failed
        assert re.search(rf"cid:{clients[0]} - .*<<- \[PONG\]", server.log)


# A server that says what a test wants


@pytest.fixture
def server() -> Iterator[FakeJetStream]:
    with FakeJetStream() as running:
        yield running


@pytest.mark.parametrize("size", [10_000, 1], ids=["at once", "byte by byte"])
@pytest.mark.parametrize("early", EARLY.values(), ids=EARLY.keys())
def test_a_login_goes_on_after_what_comes_before_the_pong(
    server: FakeJetStream, early: bytes, size: int
) -> None:
    server.lies["pong"] = lambda honest: cut(early + honest.frames, size)
    expected = MAX_PAYLOAD if INFO in early else 1 << 20
    assert connect(options(server.url)).max_payload == expected


def test_a_refusal_counts_that_comes_after_a_ping(server: FakeJetStream) -> None:
    server.lies["pong"] = lambda _: [b"PING\r\n" + INFO + b"-ERR 'Authorization Violation'\r\n"]
    with pytest.raises(AuthenticationFailed):
        connect(options(server.url))


def test_a_login_may_take_longer_than_the_share_of_a_server(
    server: FakeJetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The servers share the time until they greet, because a silent one may be down."""
    monkeypatch.setattr(login, "share", lambda seconds, count: 0.5)

    def late(honest: Honest) -> Iterable[bytes]:
        honest.ended.wait(1.0)
        yield honest.frames

    server.lies["pong"] = late
    assert connect(options(server.url)).usable


# Over WebSocket


@contextmanager
def web_server(talk: Callable[[web.WebSocketResponse], Awaitable[None]]) -> Iterator[str]:
    """The URL of a server that talks to each client over WebSocket."""
    loop, lease = asyncio.new_event_loop(), PortLease()

    async def handle(request: web.Request) -> web.WebSocketResponse:
        wire = web.WebSocketResponse()
        await wire.prepare(request)
        await talk(wire)
        return wire

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, LOOPBACK, lease.port).start()
        return runner

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    try:
        yield f"ws://{LOOPBACK}:{lease.port}"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        lease.release()


@pytest.mark.parametrize("size", [10_000, 1], ids=["one message", "a message a byte"])
def test_a_login_over_websocket_answers_an_early_ping(size: int) -> None:
    heard: list[bytes] = []

    async def say(wire: web.WebSocketResponse, text: bytes) -> None:
        for piece in cut(text, size):
            await wire.send_bytes(piece)

    async def talk(wire: web.WebSocketResponse) -> None:
        await say(wire, b'INFO {"version":"2.15.1","max_payload":1048576}\r\n')
        async for message in wire:
            assert message.type == WSMsgType.BINARY
            heard.append(message.data)
            if message.data == b"PING\r\n":
                early = EARLY["all of them"] if heard.count(b"PING\r\n") == 1 else b""
                await say(wire, early + b"PONG\r\n")

    with web_server(talk) as url:
        connection = connect(options(url))
        assert connection.max_payload == MAX_PAYLOAD
        assert heard.count(b"PONG\r\n") == EARLY["all of them"].count(b"PING")
        connection.close()


# The lines themselves


async def say_nothing(_: bytes) -> None:
    pass


def learn_nothing(_: bytes) -> None:
    pass


@pytest.mark.parametrize(("plain", "hint"), [(True, SILENT), (False, "")])
def test_a_server_that_wants_tls_first_is_a_cause_of_silence(plain: bool, hint: str) -> None:
    with pytest.raises(NotNats) as caught:
        Greeting("h:1", say_nothing, learn_nothing).check(b"", plain=plain)
    assert str(caught.value) == f"the server closed the connection{hint}"


def answered(*lines: bytes) -> tuple[bytes, list[bytes]]:
    """The answer to the login among these lines, and what was sent meanwhile."""
    sent: list[bytes] = []
    left = iter(lines)

    async def send(data: bytes) -> None:
        sent.append(data)

    async def readline() -> bytes:
        return next(left)

    return asyncio.run(Greeting("h:1", send, learn_nothing).login(readline, 60.0)), sent


def test_each_ping_is_answered() -> None:
    assert answered(b"PING\r\n", b"+OK\r\n", b"PING\r\n", b"PONG \n") == (
        b"PONG\r\n",
        [b"PONG\r\n", b"PONG\r\n"],
    )


def test_a_login_without_an_answer_names_the_option() -> None:
    async def never() -> bytes:
        await asyncio.Event().wait()
        return b""

    with pytest.raises(TimeoutError) as caught:
        asyncio.run(Greeting("h:1", say_nothing, learn_nothing).login(never, 0.0))
    assert (
        str(caught.value)
        == "the server at h:1 did not confirm the login in time (option connectTimeout)"
    )


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ((b"PING\r\n", b""), "the server closed the connection"),
        ((b"PING\r\n", b"MSG a 1 0\r\n"), r"the server sent b'MSG a 1 0\r\n' in place of PONG"),
        ((b"PING\r\n",) * 5000, "the server at h:1 sent 1,000 lines and no PONG"),
    ],
)
def test_unexpected_lines_before_pong_end_the_attempt(lines: tuple[bytes, ...], says: str) -> None:
    with pytest.raises(NotNats) as caught:
        answered(*lines)
    assert str(caught.value) == says


def test_a_missing_library_for_websocket_is_an_error_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(ImportError, match="aiohttp"):
        connect(options("ws://127.0.0.1:1"))
