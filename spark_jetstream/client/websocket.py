"""The wire over WebSocket, with TLS or without. aiohttp comes with the extra `websocket`."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any

from spark_jetstream.client.greeting import NotNats, answer_of, not_nats
from spark_jetstream.client.wire import LONG_LINE, MOST_UNREAD, Owner, Wire
from spark_jetstream.protocol.incoming import Incoming
from spark_jetstream.protocol.wire import MAX_FRAME, ApiReply, Frames, Scanner, Status

_LONGEST_MESSAGE = 2 * MAX_FRAME


class WebSocketWire(Wire):
    """Checks the greeting, and bounds what the server may send in one message."""

    _session: Any = None  # aiohttp's ClientSession, one for each connection
    _socket: Any = None  # aiohttp's ClientWebSocketResponse
    _sending: asyncio.Task[None] | None = None  # sends what waits, in its order
    _closing: asyncio.Task[None] | None = None

    def __init__(
        self,
        owner: Owner,
        scanner: Scanner,
        deliver: Callable[[Frames | Status | ApiReply], None],
    ) -> None:
        super().__init__(owner, scanner, deliver)
        # Here and not at an attempt, whose errors nats-py takes for those of a server: it would try
        # again until the end of an outage.
        from aiohttp import ClientResponseError, ClientSession, WSMsgType  # noqa: PLC0415

        self._new_session = ClientSession
        self._response_error = ClientResponseError
        self._message_type = WSMsgType

    # Used by nats-py

    async def connect(self, uri: Any, buffer_size: int, connect_timeout: float) -> None:
        """Open the WebSocket, without TLS."""
        await self._open(uri, connect_timeout)

    async def connect_tls(
        self, uri: Any, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: float
    ) -> None:
        """Open the WebSocket with TLS; nats-py asks once more after INFO."""
        if self._socket is None or self._socket.closed:
            await self._open(uri, connect_timeout, ssl_context)

    async def drain(self) -> None:
        """Wait until everything is sent."""
        if self._sending is not None:
            await asyncio.wait([self._sending])

    def close(self) -> None:
        """Close the WebSocket and its session."""
        super().close()
        self._closing = asyncio.create_task(self._close(self._socket, self._session))

    async def wait_closed(self) -> None:
        """Wait for the end of `close`."""
        if self._closing is not None:
            await asyncio.wait([self._closing])

    # Used by the connection

    def send(self, frames: bytes | memoryview) -> None:
        """Send frames, as one WebSocket message."""
        self._unsent.append(frames)
        # `send_bytes` of aiohttp must be awaited, so one task sends all frames in their order.
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_all(self._socket, self._unsent))

    def abort(self) -> None:
        """Leave the connection to `close`: aiohttp has no other way to end it."""

    def end(self) -> None:
        """Close what nats-py has not closed."""
        if self._session is not None and not self._session.closed:
            self.close()

    # Steps

    async def _open(
        self, uri: Any, connect_timeout: float, context: ssl.SSLContext | None = None
    ) -> None:
        if self._session is not None:
            # nats-py leaves the session of a refused login open.
            await self._session.close()
        patience = self._begin(uri, connect_timeout)
        connector, self._most_quiet = await self._addresses.connector(uri, patience)
        self._session = self._new_session(connector=connector)
        tls = {} if context is None else {"ssl": self._tls(context)}
        opening = self._session.ws_connect(uri.geturl(), max_msg_size=_LONGEST_MESSAGE, **tls)
        try:
            self._socket = await asyncio.wait_for(opening, self._most_quiet)
        except ssl.SSLError as error:
            # aiohttp's own, without what the one below it says of the certificate
            raise (error.__cause__ or error) from None
        except self._response_error as error:
            if tls:
                answer = b""
            else:
                answer = await answer_of((uri.hostname, uri.port), patience)
            status = answer or error.message.encode()
            if error.headers:
                status = b"HTTP/1.1 %d" % error.status
            raise not_nats(uri.netloc, status, answer, web=True) from None
        self._incoming = Incoming()
        self._unsent: deque[bytes | memoryview] = deque()
        self._owner.check_wanted()

    @staticmethod
    async def _send_all(socket: Any, unsent: deque[bytes | memoryview]) -> None:
        # A lost connection is noticed where it is read.
        with contextlib.suppress(OSError, RuntimeError):
            while unsent:
                await socket.send_bytes(unsent.popleft())

    @staticmethod
    async def _close(*opened: Any) -> None:
        for each in filter(None, opened):
            await each.close()

    async def _first_line(self) -> bytes:
        return await asyncio.wait_for(self._line(), self._most_quiet)

    async def _line(self) -> bytes:
        """Return the next line, which several messages may hold."""
        while (line := self._incoming.line()) is None:
            if len(self._incoming) > MOST_UNREAD:
                raise NotNats(LONG_LINE)
            message = await self._message()
            if message is None:
                return self._incoming.rest()
            self._incoming.add(message)
        return line

    async def _more(self) -> Incoming | None:
        if not self._incoming.ready:
            message = await self._message()
            if message is None:
                return None
            self._incoming.add(message)
        return self._incoming

    async def _message(self) -> bytes | None:
        """Return the content of the next WebSocket message, or None at the end."""
        message = await self._socket.receive()
        if message.type == self._message_type.BINARY:
            return bytes(message.data)
        if message.type == self._message_type.ERROR:
            raise ConnectionError("the WebSocket has failed") from message.data
        # A server of NATS sends no text: anything else is the end.
        return None
