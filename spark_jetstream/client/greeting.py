"""How a connection begins: a server's lines up to its PONG, checked, or another answer."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from typing import Any

from spark_jetstream.client.deadline import Deadline
from spark_jetstream.client.socket_reader import SocketReader
from spark_jetstream.errors import ProtocolError, printable
from spark_jetstream.options import advice
from spark_jetstream.protocol.commands import PONG
from spark_jetstream.protocol.server_info import parsed_info

Address = tuple[str, int]
"""Host or address, and port."""

# Bytes of a line with -ERR: some name a subject, and a line of a client has 4096.
_LONGEST_ERROR = 8192
# The monitoring port of a nats-server answers with its figures.
_REQUEST = b"GET /varz HTTP/1.0\r\n\r\n"
_MOST_LINES = 1000  # before the PONG; an honest server sends a few
_HINT = f"; one that begins with TLS needs {advice.TLS_FIRST}"
_MONITORING = re.compile(rb'HTTP/.*"server_id":.*?"port": ?(\d{1,5})\b', re.DOTALL)
_WEBSOCKET = re.compile(rb"HTTP/.*\nsec-websocket-version:", re.DOTALL | re.IGNORECASE)
_MAY_PASS = re.compile(
    rb"-ERR|HTTP/\S+ 5|\s*$"
)  # what a proxy says while the server behind it is away


class NotEncrypted(ConnectionRefusedError):
    """The server does not offer TLS, or not at once. An OSError, so that nats-py tries again."""


class NotNats(ConnectionRefusedError):
    """The peer does not speak NATS. An OSError, so that nats-py counts a failed attempt."""

    final = False  # whether it speaks something else, so that no attempt will succeed


def not_nats(server: str, line: bytes, answer: bytes = b"", *, web: bool = False) -> NotNats:
    """Return the error for a server (host:port) whose first line is no INFO.

    `answer` is that of `answer_of`.
    """
    what = "NATS"
    if port := _MONITORING.match(answer):
        what = f"NATS but the monitoring of a nats-server, whose clients use port {int(port[1])}"
    elif web and answer.startswith(b"INFO"):
        what = "a WebSocket but needs a nats:// URL"
    elif not web and _WEBSOCKET.match(answer):
        what = "NATS but a WebSocket, which needs a ws:// URL"
    elif line.startswith(b"\x15\x03"):  # a TLS alert
        what = f"NATS but TLS, which needs {advice.TLS_FIRST}"
    shown = line.partition(b"\n")[0][:60].decode("utf-8", "replace").strip()
    error = NotNats(f"the server at {server} answered {shown!r}, which is not {what}")
    error.final = not _MAY_PASS.match(line)
    return error


async def answer_of(address: Address, patience: float) -> bytes:
    """Return how the server at an address answers `_REQUEST`, over another connection.

    Return nothing if it does not answer.
    """
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        reader, writer = await asyncio.wait_for(asyncio.open_connection(*address), patience / 2)
        try:
            writer.write(_REQUEST)
            return await asyncio.wait_for(reader.read(4096), patience / 2)
        finally:
            writer.transport.abort()
    return b""


async def first_line(
    reader: SocketReader,
    server: str,
    address: Address,
    patience: float,
    *,
    plain: bool,
    quiet: float,
) -> bytes:
    """Return the first line of a server (host:port).

    A NATS server speaks first, most others wait for a request. A server that is silent for `quiet`
    seconds is asked what it is, unless TLS has begun. Raises `NotNats` if it says nothing within
    `patience` seconds.
    """
    deadline = Deadline(0.9 * patience)  # before nats-py gives up
    line = asyncio.ensure_future(reader.readline())
    try:
        await asyncio.wait([line], timeout=min(quiet, patience / 4))
        if plain and not line.done():
            answer = await answer_of(address, deadline.left / 2)
            if not line.done() and answer[:4] not in (b"", b"INFO"):
                raise not_nats(server, answer, answer)
        await asyncio.wait([line], timeout=deadline.left)
        if not line.done():
            silent = f"the server at {server} accepts connections and says nothing"
            raise NotNats(_with_hint(silent, plain=plain))
        return await line
    finally:
        line.cancel()


def _with_hint(problem: str, *, plain: bool) -> str:
    """Return a problem with silence, which may be that of a server that waits for TLS."""
    return f"{problem}{_HINT}" if plain else problem


class Greeting:
    """Reads the lines with which a connection begins, for nats-py.

    nats-py knows only INFO and then PONG or -ERR. `send` sends bytes to the server. `learn` is
    called with each line of an INFO after the first one, and may raise `ProtocolError`.
    """

    def __init__(
        self,
        server: str,
        send: Callable[[bytes], Awaitable[None]],
        learn: Callable[[bytes], None],
    ) -> None:
        self._server = server  # host:port
        self._send = send
        self._learn = learn
        self.greeted = False  # INFO was read; the answer to the login follows

    def check(self, line: bytes, *, plain: bool = False) -> dict[str, Any]:
        """Return the INFO in the first line, which is `plain` before TLS.

        Raises `NotNats` for another line.
        """
        if not line:
            raise NotNats(_with_hint("the server closed the connection", plain=plain))
        if not line.startswith(b"INFO"):
            raise not_nats(self._server, line)
        self.greeted = True
        try:
            return parsed_info(line, first=True)
        except ProtocolError as error:
            raise NotNats(str(error)) from error

    async def login(self, readline: Callable[[], Awaitable[bytes]], seconds: float) -> bytes:
        """Return the server's answer to CONNECT and PING, PONG or -ERR, as nats-py may read it.

        A server that needs more than two seconds for a login (an authorization callout, load) sends
        its own first PING before that. A server may send INFO at any time. Raises `NotNats` for a
        line that does not belong there, and `TimeoutError` without an answer within `seconds`.
        """
        try:
            return await asyncio.wait_for(self._answer(readline), seconds)
        except asyncio.TimeoutError:
            late = f"the server at {self._server} did not confirm the login in time"
            raise TimeoutError(f"{late} {advice.CONNECT_TIMEOUT}") from None

    async def _answer(self, readline: Callable[[], Awaitable[bytes]]) -> bytes:
        for _ in range(_MOST_LINES):
            line = await readline()
            if line.startswith(b"PONG"):
                return PONG
            if line.startswith(b"-ERR"):
                return plain_error(line)
            await self._handle(line)
        raise NotNats(f"the server at {self._server} sent {_MOST_LINES:,} lines and no PONG")

    async def _handle(self, line: bytes) -> None:
        """Handle a line that may come before the answer to the login."""
        if not line:
            raise NotNats("the server closed the connection")
        if line.startswith(b"PING"):
            await self._send(PONG)
        elif line.startswith(b"INFO"):
            try:
                self._learn(line)
            except ProtocolError as error:
                raise NotNats(str(error)) from error
        elif not line.startswith(b"+OK"):
            raise NotNats(f"the server sent {line[:40]!r} in place of PONG")


def error_of(line: bytes) -> str:
    """Return the text of a line with -ERR: printable, and not endlessly long."""
    text = line[len(b"-ERR") : _LONGEST_ERROR].decode("utf-8", "replace")
    return printable(text.strip().strip("'")) or "no reason was given"


def plain_error(line: bytes) -> bytes:
    """Return a line with -ERR in the form in which nats-py reads it."""
    return f"-ERR '{error_of(line)}'\r\n".encode()
