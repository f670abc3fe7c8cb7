"""Receives the bytes of a connection into a buffer, without copies, by a protocol of asyncio."""

from __future__ import annotations

import asyncio

from spark_jetstream.protocol.incoming import Incoming


class SocketReader:
    """Reads what a transport puts into `incoming`.

    It takes the place of asyncio's `StreamReader`, which copies each byte twice. While more than
    `most` bytes wait, and all that is needed, the transport pauses.
    """

    def __init__(self, most: int) -> None:
        self.incoming = Incoming()
        self.source: asyncio.ReadTransport | None = None
        self._most = most
        self._news = asyncio.Event()  # set by what comes, cleared before a read waits
        self._over = False  # nothing more comes
        # Why nothing more comes: raised once the buffered bytes are used.
        self._failure: Exception | None = None
        self._paused = False  # whether the source is

    def came(self, count: int) -> None:
        """Take `count` bytes that the transport has put into the room of `incoming`."""
        self.incoming.filled(count)
        if self.incoming.ready:
            self._news.set()
            if len(self.incoming) > self._most and self.source is not None and not self._paused:
                self._paused = True
                # The peer has to wait then, also over TLS:
                # test_a_peer_that_sends_more_over_tls_than_is_read_must_wait.
                self.source.pause_reading()

    def end(self, failure: Exception | None = None) -> None:
        """Note that nothing more comes, and why."""
        self._over = True
        self._failure = failure
        self._news.set()

    def at_eof(self) -> bool:
        """Whether everything was read, and nothing more comes."""
        return self._over and self._failure is None and not self.incoming.ready

    async def read(self) -> Incoming:
        """Return what is not used yet, once it is all that is needed, or nothing more comes.

        Once the buffered bytes are used up, raises the error that cut the connection.
        """
        await self._wait()
        return self.incoming

    async def readline(self) -> bytes:
        """Use a line, and return it with its line feed, without one at the end.

        Raises what `read` raises, and `ValueError` for a line longer than `most`.
        """
        while (line := self.incoming.line()) is None:
            if len(self.incoming) > self._most:
                raise ValueError(f"a line of more than {self._most:,} bytes")
            if not await self._wait():
                return self.incoming.rest()
        return line

    async def _wait(self) -> bool:
        """Wait for what is needed; whether it has come."""
        while not self.incoming.ready:
            # Only now: the reader gets the bytes from before the failure first
            # (test_a_failure_comes_behind_what_was_received).
            if self._failure is not None:
                raise self._failure
            if self._over:
                return False
            if self._paused and self.source is not None:
                self._paused = False
                self.source.resume_reading()
            self._news.clear()
            await self._news.wait()
        return True


class SocketProtocol(asyncio.StreamReaderProtocol, asyncio.BufferedProtocol):
    """Receives for a `SocketReader`, and is a protocol for `StreamWriter`.

    A connection begins TLS with another one, which keeps the writer of the `plain` connection:
    asyncio would close it, with a warning, if nobody held it while TLS says goodbye.
    """

    def __init__(self, reader: SocketReader, plain: asyncio.StreamWriter | None = None) -> None:
        super().__init__(None)  # type: ignore[arg-type]  # asyncio has no other word for no reader
        self.reader = reader
        self.plain = plain

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Receive from this transport. `start_tls` does not call it."""
        super().connection_made(transport)
        assert isinstance(transport, asyncio.ReadTransport)
        self.reader.source = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        return self.reader.incoming.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Take the bytes that the transport has received."""
        self.reader.came(nbytes)

    def eof_received(self) -> bool:
        """Note that the peer has ended."""
        self.reader.end()
        return self.plain is None  # TLS cannot be half open: asyncio warns otherwise

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection has ended, and why."""
        self.reader.end(exc)
        super().connection_lost(exc)
