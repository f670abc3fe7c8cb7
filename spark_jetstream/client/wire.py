"""The wire of a connection: a transport of nats-py that keeps what the server sends.

nats-py uses a transport to open a connection, to log in, and to end it. It sends CONNECT and PING
itself. Everything else passes it by: a task of the wire reads the messages, answers pings, and
hears of errors. nats-py reads only the answers to its own pings, and the reason for the end of the
connection. After an `OSError` or nats-py's `ProtocolError` it connects again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import ssl
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import nats.errors
from nats.aio.transport import Transport

from spark_jetstream.client.addresses import Addresses
from spark_jetstream.client.auth import login_fields
from spark_jetstream.client.deadline import Deadline
from spark_jetstream.client.greeting import Greeting, error_of
from spark_jetstream.client.timing import Timing
from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol.commands import PING, PONG
from spark_jetstream.protocol.incoming import Incoming
from spark_jetstream.protocol.server_info import info_line, parsed_info
from spark_jetstream.protocol.wire import ApiReply, Event, Frames, Scanner, Status

log = logging.getLogger(__name__)

MOST_UNREAD = 2 << 20
"""Bytes that may wait before the connection stops receiving, and those of the longest line."""
LONG_LINE = f"the server sent a line of more than {MOST_UNREAD:,} bytes, which is not NATS"
_CONNECT = b"CONNECT "


class Owner(Protocol):
    """The login of a wire, which the wire informs and asks."""

    timing: Timing

    def begin(self, uri: Any) -> dict[str, Any]:
        """Return the arguments of this attempt (`auth.connect_arguments`) to log in at a URL.

        Raises `CancelledError` if nobody wants the connection any more, and `OptionError` for a
        file that cannot be used.
        """

    def check_wanted(self) -> None:
        """Raise `CancelledError` if nobody wants the connection any more."""

    def greet(self, info: dict[str, Any]) -> None:
        """Note the first INFO of a connection."""

    def learn(self, info: dict[str, Any]) -> None:
        """Note another INFO."""

    def confirm(self) -> None:
        """Note that the server has answered a ping."""

    def hear(self, text: str) -> bool:
        """Note an error that the server sent; return whether the connection goes on."""

    def complain(self, error: ProtocolError) -> None:
        """Note that the server's bytes are malformed."""


class _ForLibrary:
    """The lines and errors that nats-py reads of one connection."""

    def __init__(self) -> None:
        self._said: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self._ended = False

    @property
    def at_eof(self) -> bool:
        """Whether nats-py has read everything, and nothing follows."""
        return self._ended and self._said.empty()

    def pong(self) -> None:
        """Let nats-py read the answer to a ping."""
        self._said.put_nowait(PONG)

    def end(self, why: Exception | None = None) -> None:
        """Let nats-py read the end; only the first end counts."""
        if not self._ended:
            self._ended = True
            self._said.put_nowait(why or b"")

    async def read(self) -> bytes:
        """Return the next bytes, or raise why the connection ended."""
        said = await self._said.get()
        if isinstance(said, Exception):
            raise said
        return said


class Wire(Transport):
    """A wire serves one connection after the other. On the event loop's thread.

    `most` is the time in seconds for an attempt to connect and to log in, `patience` the time for
    the greeting of a server. nats-py gives up later, and cannot say why.
    """

    most: float = math.inf
    patience: float = math.inf

    def __init__(
        self,
        owner: Owner,
        scanner: Scanner,
        deliver: Callable[[Frames | Status | ApiReply], None],
    ) -> None:
        self._owner = owner
        self._scanner = scanner
        self._deliver = deliver
        self._addresses = Addresses()
        self._library = _ForLibrary()
        self._receiving: asyncio.Task[None] | None = None  # from the login to the end
        self._pings: deque[asyncio.Future[None] | None] = deque()  # None: one of nats-py
        self._unanswered = 0  # pings of nats-py since the last answer to any ping

    def __bool__(self) -> bool:
        return True  # or nats-py puts one of its own in its place

    # The parts that TCP and WebSocket have of their own

    @abstractmethod
    def send(self, frames: bytes | memoryview) -> None:
        """Send complete frames now; does not wait. They must not change any more."""

    @abstractmethod
    def abort(self) -> None:
        """Close at once, without waiting for the peer."""

    @abstractmethod
    def end(self) -> None:
        """Close what is still open: nats-py forgets the wire of a refused login."""

    @abstractmethod
    async def _first_line(self) -> bytes:
        """Return the first line of the server, checked by the greeting."""

    @abstractmethod
    async def _line(self) -> bytes:
        """Return the next line of the login; at the end of the connection, what is left."""

    @abstractmethod
    async def _more(self) -> Incoming | None:
        """Return the bytes that the server has sent since the last call, or None at the end."""

    # Used by the connection

    async def ping(self, timeout: float) -> None:
        """Wait for the server's answer to a ping.

        With the answer the server has everything that was sent before. Raises
        `asyncio.TimeoutError`, and an error of nats-py once the connection is closed.
        """
        pong = asyncio.get_running_loop().create_future()
        # Before the PING goes out. PONGs have no token: the first one answers the first ping.
        self._pings.append(pong)
        self.send(PING)
        await asyncio.wait_for(pong, timeout)

    # Used by nats-py

    def write(self, payload: bytes) -> None:
        """Send what nats-py says: CONNECT, with the login of this attempt, and its pings."""
        if payload.startswith(_CONNECT):
            payload = self._with_login(payload)
        elif payload == PING and self._receiving is not None:
            self._ping_for_library()
        self.send(payload)

    def writelines(self, payload: list[bytes]) -> None:
        """Send all of these."""
        self.write(b"".join(payload))

    async def readline(self) -> bytes:
        """Return a line of the greeting as nats-py may read it: INFO, then PONG or -ERR."""
        if self._greeting.greeted:
            line = await self._greeting.login(self._line, self._attempt.left)
            if line == PONG:
                # From the PONG on nats-py reads no line any more.
                self._receiving = asyncio.create_task(self._receive(self._library))
            return line
        self._info = self._greeting.check(await self._first_line(), plain=self._plain)
        self._addresses.greeted()
        self._owner.greet(self._info)
        # nats-py would keep servers that leave the cluster, and know them as nats:// URLs.
        return info_line({**self._info, "connect_urls": None})

    async def read(self, buffer_size: int) -> bytes:
        """Return the answer to a ping of nats-py, or raise why the connection ended."""
        return await self._library.read()

    def at_eof(self) -> bool:
        """Whether the connection has ended."""
        return self._library.at_eof

    def close(self) -> None:
        """Stop receiving, and end the pings whose answers cannot come any more."""
        self._stop_receiving()

    # The connection that is open

    @property
    def _plain(self) -> bool:
        """Whether TLS may begin but has not: it is a cause of silence."""
        return False

    def _begin(self, uri: Any, seconds: float) -> float:
        """Begin an attempt, as long as nats-py allows; return the time for the greeting."""
        self._stop_receiving()
        self._library = _ForLibrary()
        self._unanswered = 0
        self._login = self._owner.begin(uri)
        self._attempt = Deadline(min(seconds, self.most))
        self._greeting = Greeting(uri.netloc, self._say, self._learn)
        return min(seconds, self.patience)

    def _tls(self, given: ssl.SSLContext) -> ssl.SSLContext:
        """Return the TLS settings of this attempt: those of nats-py may be outdated."""
        renewed: ssl.SSLContext | None = self._login.get("tls")
        return given if renewed is None else renewed

    async def _say(self, payload: bytes) -> None:
        """Send an answer during the login."""
        self.send(payload)
        await self.drain()  # type: ignore[no-untyped-call]

    def _learn(self, line: bytes) -> None:
        """Note an INFO that follows the greeting. Raises `ProtocolError`."""
        self._owner.learn(parsed_info(line))

    def _with_login(self, command: bytes) -> bytes:
        """Return CONNECT with the JWT or key of this attempt, and with the signature."""
        fields = login_fields(self._login, self._info.get("nonce"))
        if not fields:
            return command
        options = json.loads(command.removeprefix(_CONNECT))
        return b"%s%s\r\n" % (_CONNECT, json.dumps({**options, **fields}, sort_keys=True).encode())

    def _ping_for_library(self) -> None:
        """Answer a ping of nats-py at once, and count whether the server answers.

        nats-py cannot bear an answer that comes after it has given up, and leaves tasks behind when
        it gives up: test_a_login_that_is_not_confirmed_leaves_no_task.
        """
        self._unanswered += 1
        if self._unanswered > self._owner.timing.unanswered_pings:
            self._fail(ConnectionAbortedError("the server answers no ping"))
        self._pings.append(None)
        self._library.pong()

    def _fail(self, error: Exception) -> None:
        """End the connection for an error, which nats-py reads."""
        self._library.end(error)
        self.abort()

    def _stop_receiving(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None
        for pong in self._pings:
            if pong is not None and not pong.done():
                # A ping that timed out later would cut the next connection:
                # test_a_ping_over_a_former_connection_cuts_no_other.
                pong.set_exception(nats.errors.ConnectionClosedError())
                pong.exception()  # or asyncio complains about one that nobody awaits
        self._pings.clear()

    async def _receive(self, library: _ForLibrary) -> None:
        """Read what the server sends until the connection ends."""
        try:
            while (incoming := await self._more()) is not None:
                refused = self._handle(self._scanner.read(incoming))
                if refused:
                    # At once, or what breaks next hides what the server said.
                    self._fail(ConnectionAbortedError(refused))
                    return
        except ProtocolError as error:
            log.warning("closing the connection: %s", error)
            self._owner.complain(error)
            # nats-py connects again after its own class of this error.
            library.end(nats.errors.ProtocolError())
        except OSError as error:
            library.end(error)
        finally:
            library.end()

    def _handle(self, events: list[Event]) -> str:
        """Handle the events of one read; return the error for which the connection ends, or ""."""
        pinged, refused = False, ""
        for event in events:
            if not isinstance(event, bytes):
                self._deliver(event)
            elif event.startswith(b"PONG"):
                self._answered()
            elif event.startswith(b"PING"):
                pinged = True
            elif event.startswith(b"INFO"):
                self._learn(event)
            elif event.startswith(b"-ERR"):
                text = error_of(event).lower()
                if not self._owner.hear(text):
                    refused = text
            # Others are +OK, and messages of subscriptions that have ended.
        if pinged:
            # One for all, or a server that reads nothing and sends pings would fill the memory.
            self.send(PONG)
        return refused

    def _answered(self) -> None:
        """Note the answer to the first ping that has none yet."""
        self._unanswered = 0
        self._owner.confirm()
        pong = self._pings.popleft() if self._pings else None
        if pong is not None and not pong.done():
            pong.set_result(None)
