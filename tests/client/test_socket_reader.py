"""`SocketReader`, as a transport of asyncio fills it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from spark_jetstream.client.socket_reader import SocketProtocol, SocketReader

GREETING = b"INFO {}\r\n"
REST = b"PING\r\nMSG S.a 1 3\r\nabc\r\n"


class Source(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.closed = False
        self.protocol: SocketProtocol

    def receive(self, data: bytes) -> None:
        self.protocol.get_buffer(-1)[: len(data)] = data
        self.protocol.buffer_updated(len(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.asked.append("pause")

    def resume_reading(self) -> None:
        self.asked.append("resume")


def run(work: Callable[[SocketReader, Source], Awaitable[None]], most: int = 100) -> None:
    async def main() -> None:
        reader, source = SocketReader(most), Source()
        source.protocol = SocketProtocol(reader)
        source.protocol.connection_made(source)
        await asyncio.wait_for(work(reader, source), 60)

    asyncio.run(main())


@pytest.mark.parametrize("size", [1, 2, 7, len(GREETING), len(GREETING) + 3, 1000])
def test_a_line_and_what_follows_it(size: int) -> None:
    sent = GREETING + REST

    async def work(reader: SocketReader, source: Source) -> None:
        async def feed() -> None:
            for at in range(0, len(sent), size):
                source.receive(sent[at : at + size])
                await asyncio.sleep(0)
            source.protocol.eof_received()

        feeding = asyncio.ensure_future(feed())
        assert await reader.readline() == GREETING
        assert await reader.readline() == b"PING\r\n"
        rest = b""
        while not reader.at_eof():
            rest += (await reader.read()).rest()
        assert rest == REST.removeprefix(b"PING\r\n")
        assert (await reader.read()).rest() == await reader.readline() == b""
        await feeding

    run(work)


def test_the_source_pauses_while_much_is_unread() -> None:
    async def work(reader: SocketReader, source: Source) -> None:
        source.receive(bytes(100))
        assert source.asked == []
        source.receive(b"x")
        source.receive(b"y")
        assert source.asked == ["pause"]
        writer = asyncio.StreamWriter(source, source.protocol, None, asyncio.get_running_loop())
        await writer.drain()  # which waits for nothing
        writer.close()
        assert (await reader.read()).rest() == bytes(100) + b"xy"
        waiting = asyncio.ensure_future(reader.readline())
        await asyncio.sleep(0)
        assert source.asked == ["pause", "resume"]
        source.receive(b"y" * 99 + b"\n" + b"z")
        assert await waiting == b"y" * 99 + b"\n"
        assert source.asked == ["pause", "resume", "pause"]
        assert (await reader.read()).rest() == b"z"

    run(work)


def test_a_frame_that_is_larger_than_what_may_wait_is_received() -> None:
    async def work(reader: SocketReader, source: Source) -> None:
        source.receive(b"MSG S.a 1 500\r\n")
        incoming = await reader.read()
        incoming.use(incoming.begin, 1000)
        waiting = asyncio.ensure_future(reader.read())
        for _ in range(10):
            assert source.asked == []
            source.receive(bytes(100))
            await asyncio.sleep(0)
        assert source.asked == ["pause"]
        assert len(await waiting) == 1015

    run(work)


def test_a_line_that_does_not_end() -> None:
    async def work(reader: SocketReader, source: Source) -> None:
        source.receive(bytes(101))
        with pytest.raises(ValueError, match="more than 100 bytes"):
            await reader.readline()
        assert reader.incoming.rest() == bytes(101)
        source.receive(b"half")
        source.protocol.eof_received()
        assert await reader.readline() == b"half"

    run(work)


def test_a_failure_comes_behind_what_was_received() -> None:
    async def work(reader: SocketReader, source: Source) -> None:
        waiting = asyncio.ensure_future(reader.read())
        await asyncio.sleep(0)
        source.receive(b"last")
        source.protocol.connection_lost(ConnectionResetError("cut"))
        assert not reader.at_eof()
        assert (await waiting).rest() == b"last"
        for ask in (reader.read, reader.readline):
            with pytest.raises(ConnectionResetError, match="cut"):
                await ask()

    run(work)
