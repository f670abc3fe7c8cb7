"""A stream reader of asyncio that hands on what a socket gave, without copying it."""

from __future__ import annotations

import asyncio
from typing import Any


class PieceReader(asyncio.StreamReader):
    """Reads as `asyncio.StreamReader` does, which copies each byte into a buffer and out of it again.

    It holds up to `most` bytes, and one piece more; then the transport pauses until they are read.
    """

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._most = most
        self._pieces: list[bytes] = []  # what has come and was not read
        self.held = 0  # bytes of them; the source pauses while these are more than `most`
        self._news = asyncio.Event()  # set by what comes, cleared before a read waits
        self._over = False  # the peer has ended
        self._failure: Exception | None = None  # why nothing more comes, raised once the pieces are read
        self._source: asyncio.ReadTransport | None = None

    def set_transport(self, transport: asyncio.BaseTransport) -> None:
        """Take what comes from `transport`."""
        assert isinstance(transport, asyncio.ReadTransport)
        self._source = transport

    def feed_data(self, data: Any) -> None:
        """Take a piece of bytes. The protocol calls it."""
        self._pieces.append(bytes(data))
        self.held += len(data)
        self._news.set()
        if self.held > self._most and self._source is not None:
            self._source.pause_reading()

    def feed_eof(self) -> None:
        """Note that nothing more comes."""
        self._over = True
        self._news.set()

    def set_exception(self, exc: Exception) -> None:
        """Note why nothing more comes: what is read next raises it."""
        self._failure = exc
        self._news.set()

    def exception(self) -> Exception | None:
        """Return why nothing more comes, None if it is not known."""
        return self._failure

    def at_eof(self) -> bool:
        """Whether everything was read and nothing more comes."""
        return self._over and not self._pieces

    async def read(self, n: int = -1) -> bytes:
        """Return what has come, whatever `n` is; nothing at the end. Raises what `set_exception` got."""
        if await self._wait():
            return self._take()
        return b""

    async def readline(self) -> bytes:
        """Return a line with its line feed, without one at the end. `ValueError` for a line longer than `most`."""
        line = b""
        while await self._wait():
            line += self._take()
            end = line.find(b"\n") + 1
            if end:
                if len(line) > end:
                    self.feed_data(line[end:])
                return line[:end]
            if len(line) > self._most:
                raise ValueError(f"a line of more than {self._most:,} bytes")
        return line

    async def _wait(self) -> bool:
        """Wait for a piece; whether there is one."""
        while not self._pieces:
            if self._failure is not None:
                raise self._failure
            if self._over:
                return False
            self._news.clear()
            await self._news.wait()
        return True

    def _take(self) -> bytes:
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        if self.held > self._most and self._source is not None:
            self._source.resume_reading()
        self.held = 0
        return data
