"""The wire over TCP, with TLS or without."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from spark_jetstream.client.greeting import NotEncrypted, NotNats, first_line
from spark_jetstream.client.socket_reader import SocketProtocol, SocketReader
from spark_jetstream.client.wire import LONG_LINE, MOST_UNREAD, Owner, Wire
from spark_jetstream.options import advice
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.protocol.incoming import Incoming
from spark_jetstream.protocol.wire import ApiReply, Frames, Scanner, Status

PLAIN = f"the server does not begin with TLS, which {advice.TLS_FIRST} or a wss:// URL asks for"


class TcpWire(Wire):
    """Receives in place: reads of 32 KiB, as those of nats-py, cost five times the CPU.

    With a `tls://` URL or an option for TLS it sends nothing before the connection is encrypted.
    nats-py would send credentials in plain text if the server did not ask for TLS. `pace` returns
    the seconds between two reads.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        owner: Owner,
        scanner: Scanner,
        deliver: Callable[[Frames | Status | ApiReply], None],
        pace: Callable[[], float],
    ) -> None:
        super().__init__(owner, scanner, deliver)
        self._requires_tls = options.requires_tls
        self._given = frozenset(urlsplit(url).netloc for url in options.servers)
        self.pace = pace
        self._last_read = 0.0  # when, on the monotonic clock: for the pace
        self._name: str | None = None  # the host name of the last given server that has begun TLS
        self._reader: SocketReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._secured = False  # whether TLS has begun

    # Used by nats-py

    async def connect(self, uri: Any, buffer_size: int, connect_timeout: float) -> None:
        """Open the connection, without TLS."""
        self.abort()  # nats-py leaves what a failed attempt has opened
        patience = self._begin(uri, connect_timeout)
        self._netloc = uri.netloc
        protocol = SocketProtocol(SocketReader(MOST_UNREAD))
        wire, self._most_quiet = await self._addresses.connect(uri, patience)
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: protocol, sock=wire
        )
        self._secured = False
        self._take_over(protocol, transport)
        self._owner.check_wanted()

    async def connect_tls(
        self, uri: Any, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: float
    ) -> None:
        """Begin TLS over the open connection. Raises `NotEncrypted` if the server spoke first."""
        assert self._writer is not None
        assert self._reader is not None
        plain, before = self._writer, self._reader
        protocol = SocketProtocol(SocketReader(MOST_UNREAD), plain)
        name = self._certified_name(uri if isinstance(uri, str) else uri.hostname)

        async def start() -> asyncio.Transport | None:
            # In the task of `wait_for`, since a greeting may come before it begins.
            if len(before.incoming) and not self._greeting.greeted:
                raise NotEncrypted(PLAIN)
            return await asyncio.get_running_loop().start_tls(
                plain.transport, protocol, self._tls(ssl_context), server_hostname=name
            )

        # A server that has greeted has the whole attempt;
        # one that begins with TLS has only its share.
        patience = self._attempt.left if self._greeting.greeted else self._most_quiet
        try:
            transport: Any = await asyncio.wait_for(start(), patience)
        except BaseException:
            self.abort()
            # Nobody tells the plain connection of its end.
            self._reader = None
            self._writer = None
            raise
        protocol.connection_made(transport)
        self._take_over(protocol, transport)
        self._secured = True
        if self._netloc in self._given:
            self._name = name

    async def drain(self) -> None:
        """Wait until the buffer has room."""
        # Receiving notices a lost connection too. Raised here it would stop nats-py in the middle
        # of closing: test_a_wire_that_went_dead.
        if self._writer is not None:
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()

    def close(self) -> None:
        """Close the connection once the buffer is sent."""
        super().close()
        if self._writer is not None:
            self._writer.close()

    async def wait_closed(self) -> None:
        """Wait until the buffer is sent, but not for long: a peer may read nothing.

        For that, test_closing_does_not_wait_for_a_peer_that_takes_nothing.
        """
        if self._writer is None:
            return
        closing = asyncio.ensure_future(self._writer.wait_closed())
        # asyncio complains on standard error about a task whose exception was not retrieved.
        closing.add_done_callback(_retrieve)
        goodbye = self._owner.timing.goodbye
        try:
            await asyncio.wait([closing], timeout=goodbye)
            if not closing.done():
                self.abort()
                await asyncio.wait([closing], timeout=goodbye)
        finally:
            closing.cancel()
        if closing.done():
            closing.result()

    # Used by the connection

    def send(self, frames: bytes | memoryview) -> None:
        """Send frames. Raises `NotEncrypted` when TLS is required and has not begun."""
        # nats-py writes its buffer when it is closed, also before a login has begun TLS:
        # test_closing_during_a_login_sends_nothing_in_the_clear.
        if self._requires_tls and not self._secured:
            raise NotEncrypted(
                "TLS is asked for (a tls:// URL or a tls option), and the server offers none"
            )
        assert self._writer is not None
        self._writer.write(frames)

    def abort(self) -> None:
        """Close at once: over a dead wire TLS would wait half a minute for the peer's goodbye."""
        if self._writer is not None:
            self._writer.transport.abort()

    def end(self) -> None:
        """Close what is still open, at once."""
        self._stop_receiving()
        self.abort()

    # Steps

    def _take_over(self, protocol: SocketProtocol, transport: asyncio.WriteTransport) -> None:
        """Read and write with these from now on."""
        self._reader = protocol.reader
        loop = asyncio.get_running_loop()
        self._writer = asyncio.StreamWriter(transport, protocol, None, loop)

    def _certified_name(self, host: str) -> str:
        """Return the name that the certificate of a server must have.

        Servers of a cluster announce each other by address. Their certificates have the host name
        by which the user knows the cluster.
        """
        if self._netloc in self._given or self._name is None or not _is_address(host):
            return host
        return self._name

    @property
    def _plain(self) -> bool:
        return not self._secured

    async def _first_line(self) -> bytes:
        assert self._reader is not None
        address = self._addresses.last[:2]
        try:
            return await first_line(
                self._reader,
                self._netloc,
                address,
                self._most_quiet,
                plain=self._plain,
                quiet=self._owner.timing.greeting_quiet,
            )
        except ValueError as error:  # for a line of more than `MOST_UNREAD` bytes
            raise NotNats(LONG_LINE) from error

    async def _line(self) -> bytes:
        assert self._reader is not None
        try:
            return await self._reader.readline()
        except ValueError as error:
            raise NotNats(LONG_LINE) from error

    async def _more(self) -> Incoming | None:
        assert self._reader is not None
        pace = self.pace()
        early = self._last_read + pace - time.monotonic() if pace else 0.0
        # A read costs the same for one message as for hundreds. The pause lets more of them arrive.
        if early > 0:
            await asyncio.sleep(early)
        incoming = await self._reader.read()
        self._last_read = time.monotonic()
        # Nothing that is complete, although the read has ended: the connection is over.
        return incoming if incoming.ready else None


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _retrieve(done: asyncio.Future[None]) -> None:
    if not done.cancelled():
        done.exception()
