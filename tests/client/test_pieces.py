"""`PieceReader`, fed as a protocol of asyncio feeds it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from spark_jetstream.client.pieces import PieceReader

GREETING = b"INFO {}\r\n"
REST = b"PING\r\nMSG S.a 1 3\r\nabc\r\n"


class Source(asyncio.ReadTransport):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def pause_reading(self) -> None:
        self.asked.append("pause")

    def resume_reading(self) -> None:
        self.asked.append("resume")


def run(work: Callable[[PieceReader, Source], Awaitable[None]], most: int = 100) -> None:
    async def main() -> None:
        reader, source = PieceReader(most), Source()
        reader.set_transport(source)
        await asyncio.wait_for(work(reader, source), 60)

    asyncio.run(main())


@pytest.mark.parametrize("size", [1, 2, 7, len(GREETING), len(GREETING) + 3, 1000])
def test_a_line_and_what_follows_it(size: int) -> None:
    sent = GREETING + REST

    async def work(reader: PieceReader, source: Source) -> None:
        async def feed() -> None:
            for at in range(0, len(sent), size):
                reader.feed_data(sent[at : at + size])
                await asyncio.sleep(0)
            reader.feed_eof()

        feeding = asyncio.ensure_future(feed())
        assert await reader.readline() == GREETING
        assert await reader.readline() == b"PING\r\n"
        rest = b""
        while not reader.at_eof():
            rest += await reader.read()
        assert rest == REST.removeprefix(b"PING\r\n")
        assert await reader.read() == await reader.readline() == b""
        await feeding

    run(work)


def test_a_single_piece_is_not_copied() -> None:
    async def work(reader: PieceReader, source: Source) -> None:
        piece = bytes(50)
        reader.feed_data(piece)
        assert await reader.read() is piece

    run(work)


def test_the_source_pauses_while_much_is_unread() -> None:
    async def work(reader: PieceReader, source: Source) -> None:
        reader.feed_data(bytes(100))
        assert source.asked == []
        reader.feed_data(b"x")
        assert source.asked == ["pause"]
        assert await reader.read() == bytes(100) + b"x"
        assert source.asked == ["pause", "resume"]
        reader.feed_data(b"y" * 99 + b"\n" + b"z")
        assert await reader.readline() == b"y" * 99 + b"\n"
        assert source.asked == ["pause", "resume"] * 2
        assert await reader.read() == b"z"
        assert source.asked == ["pause", "resume"] * 2

    run(work)


def test_a_line_that_does_not_end() -> None:
    async def work(reader: PieceReader, source: Source) -> None:
        reader.feed_data(bytes(101))
        with pytest.raises(ValueError, match="more than 100 bytes"):
            await reader.readline()
        reader.feed_data(b"half")
        reader.feed_eof()
        assert await reader.readline() == b"half"

    run(work)


def test_a_failure_comes_behind_what_was_received() -> None:
    async def work(reader: PieceReader, source: Source) -> None:
        waiting = asyncio.ensure_future(reader.read())
        await asyncio.sleep(0)
        reader.feed_data(b"last")
        reader.set_exception(ConnectionResetError("cut"))
        assert await waiting == b"last"
        for ask in (reader.read, reader.readline):
            with pytest.raises(ConnectionResetError, match="cut"):
                await ask()
        assert isinstance(reader.exception(), ConnectionResetError)

    run(work)
