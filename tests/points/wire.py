"""A wire that counts the requests of a run, and ends the run at one of them.

    with PointWire(server.url) as wire:
        wire.begin(Stop(3, Moment.HELD))   # the server gets three requests; no reply to the third
        ...                                # a client connects to wire.url and works
        assert wire.stopped

It owns the order of things: no request passes while it waits for a reply, and nothing passes in
either direction after the stop. So it does not matter when the client notices.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from enum import Enum
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from spark_jetstream.testing.process import LOOPBACK, PortLease

_CHUNK = 65536
_SECONDS = 60.0
_PING, _PONG = b"PING\r\n", b"PONG\r\n"


class Moment(Enum):
    """When a run ends, by one of its requests."""

    BEFORE = "before the request is sent"
    HELD = "when the server has the request, before a reply arrives"
    AFTER = "after the reply"


class Stop(NamedTuple):
    """The end of a run at its request `point`, which counts from 1."""

    point: int
    moment: Moment


class PointWire:
    """Forwards frames between clients and the server at `url`, from a thread of its own.

    requests   the subjects of the requests that clients have made since `begin`
    stop       where the run ends, or None
    stopped    whether it has
    """

    def __init__(self, url: str) -> None:
        self._server = urlsplit(url)
        self._lease = PortLease()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="point-wire", daemon=True
        )
        self._listener: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self.stop: Stop | None = None
        self._then: Callable[[], None] | None = None
        self.pauses = False
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._error: BaseException | None = None
        self.stopped = False
        self.requests: list[str] = []

    @property
    def replied(self) -> bool:
        """Whether the client has the reply to the request of the stop."""
        return self.stopped and self.stop is not None and self.stop.moment is Moment.AFTER

    @property
    def url(self) -> str:
        return f"nats://{LOOPBACK}:{self._lease.port}"

    @property
    def server_url(self) -> str:
        """The way to the server past this wire."""
        return self._server.geturl()

    @property
    def dead(self) -> bool:
        """Whether the stop has happened, and nothing passes any more."""
        return self.stopped and self._then is None

    def begin(
        self,
        stop: Stop | None,
        then: Callable[[], None] | None = None,
        *,
        pauses: bool = False,
    ) -> None:
        """Count from 0 again, and end at this stop.

        With `then` only the connections end: it is called while no client can connect, and
        afterwards they can. With `pauses` they do not end: nothing passes until `then` has
        returned, and everything afterwards. Without `then`, nothing passes until the next `begin`.
        """

        async def begin() -> None:
            self.stop, self._then = stop, then
            self.pauses = pauses
            self.stopped = False
            self.requests = []

        self._call(begin)

    def rest(self) -> None:
        """Wait until `then` of a stop that has happened has returned. Raises what it has raised."""

        async def rest() -> None:
            await self._flowing.wait()

        self._call(rest)
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Close everything."""

        async def end() -> None:
            if self._listener is not None:
                self._listener.close()
            for link in list(self._links):
                link.close()

        self._call(end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._lease.release()

    def __enter__(self) -> PointWire:
        self._thread.start()

        async def listen() -> None:
            self._listener = await asyncio.start_server(self._serve, LOOPBACK, self._lease.port)

        self._call(listen)
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _call(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run_coroutine_threadsafe(step(), self._loop).result(_SECONDS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flowing.wait()
        if self.dead:
            writer.transport.abort()
            return
        host, port = self._server.hostname or LOOPBACK, self._server.port or 4222
        from_server, to_server = await asyncio.open_connection(host, port)
        link = _Link(self, writer, to_server)
        self._links.add(link)
        pumps = [
            asyncio.ensure_future(link.from_client(reader)),
            asyncio.ensure_future(link.from_server(from_server)),
        ]
        with suppress(asyncio.CancelledError):
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        link.close()
        self._links.discard(link)

    def count(self, subject: str) -> Moment | None:
        """Note a request. Return when the run ends, if it ends at this one."""
        self.requests.append(subject)
        stop = self.stop
        if stop is None or self.stopped or len(self.requests) != stop.point:
            return None
        return stop.moment

    def end(self) -> None:
        """Let nothing pass from now on."""
        self.stopped = True
        if self._then is not None:
            self._flowing.clear()
        for link in list(self._links):
            link.close()
        if self._then is not None:
            then = self._then

            async def go_on() -> None:
                try:
                    await asyncio.to_thread(then)
                except BaseException as error:  # noqa: BLE001 - `rest` raises it
                    self._error = error
                self._flowing.set()

            self._going_on = self._loop.create_task(go_on())

    async def pause(self) -> None:
        """Let nothing pass until `then` has returned."""
        assert self._then is not None
        self.stopped = True
        self._flowing.clear()
        try:
            await asyncio.to_thread(self._then)
        except BaseException as error:  # noqa: BLE001 - `rest` raises it
            self._error = error
        self._flowing.set()


class _Request(NamedTuple):
    """A request under way whose reply is awaited."""

    reply: str
    before: int  # replies to this subject, or at this subscription, that come before its own
    moment: Moment


class _Link:
    """One client's connection, and the one to the server that belongs to it."""

    def __init__(
        self, wire: PointWire, client: asyncio.StreamWriter, server: asyncio.StreamWriter
    ) -> None:
        self._wire = wire
        self._client = client
        self._server = server
        self._numbers: dict[str, str] = {}  # of subscriptions, by subject
        self._asked: dict[str, int] = {}  # requests by their reply subject
        self._replied: dict[str, int] = {}  # replies by subject
        self._awaited: _Request | None = None
        self._pings = 0  # pings of clients that the server has not answered
        self._paused = asyncio.Event()  # set when the pause at a stop is over
        self._closed = False

    def close(self) -> None:
        """Close both connections; what was written still goes out."""
        self._closed = True
        self._client.close()
        self._server.close()

    async def from_client(self, reader: asyncio.StreamReader) -> None:
        frames = Frames((b"PUB ", b"HPUB "))
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                for frame in frames.feed(data):
                    if self._closed:
                        return
                    await self._take(frame)
                await self._server.drain()

    async def _take(self, frame: bytes) -> None:
        """Forward a frame of the client. Does not return if the run ends at it."""
        words = _words(frame)
        if words[0] == "SUB":
            self._numbers[words[1]] = words[-1]
        elif words[0] == "PING":
            self._pings += 1
        elif words[0] in ("PUB", "HPUB"):
            sizes = 1 if words[0] == "PUB" else 2
            reply = words[2] if len(words) == 3 + sizes else ""
            if moment := self._wire.count(words[1]):
                await self._stop_at(frame, reply, moment)
                return
            self._asked[reply] = self._asked.get(reply, 0) + 1
        self._server.write(frame)

    async def _stop_at(self, frame: bytes, reply: str, moment: Moment) -> None:
        """Forward the request of the stop, if the server is to have it. Returns after a pause."""
        before = self._asked.get(reply, 0)
        self._asked[reply] = before + 1
        awaited = "" if moment is Moment.BEFORE else reply
        if moment is not Moment.BEFORE:
            self._server.write(frame)
        self._awaited = _Request(awaited, before, moment)
        if not awaited:
            # The server reads in order: its answer says that it has all that was sent.
            self._server.write(_PING)
        await self._paused.wait()
        if moment is Moment.BEFORE:
            self._server.write(frame)

    async def from_server(self, reader: asyncio.StreamReader) -> None:
        frames = Frames((b"MSG ", b"HMSG "))
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                for frame in frames.feed(data):
                    if self._closed:
                        return
                    await self._pass_on(frame)
                await self._client.drain()

    async def _pass_on(self, frame: bytes) -> None:
        """Forward a frame of the server, and stop after it or in its place."""
        awaited = self._awaited
        is_awaited = awaited is not None and self._is_reply(frame, awaited)
        words = _words(frame)
        if words[0] in ("MSG", "HMSG"):
            self._replied[words[1]] = self._replied.get(words[1], 0) + 1
        if awaited is None or not is_awaited:
            if frame == _PONG:
                self._pings -= 1
            self._client.write(frame)
            return
        # A pong answers the ping of the wire, which the client has not sent.
        is_reply = bool(awaited.reply)
        # Before the client has the reply: it may have nothing more to do.
        self._wire.stopped = True
        if is_reply and awaited.moment is Moment.AFTER:
            self._client.write(frame)
        if not self._wire.pauses:
            self._wire.end()
            return
        self._awaited = None
        await self._wire.pause()
        if is_reply and awaited.moment is Moment.HELD:
            self._client.write(frame)
        self._paused.set()

    def _is_reply(self, frame: bytes, request: _Request) -> bool:
        """Whether a frame says that the server has the request at which the run ends."""
        if not request.reply:
            return frame == _PONG and self._pings == 0
        words = _words(frame)
        if words[0] not in ("MSG", "HMSG"):
            return False
        if words[1] == request.reply:
            return self._replied.get(request.reply, 0) == request.before
        # Messages that a request asks for have subjects of their own.
        inbox = request.reply.rpartition(".")[0] + ".*"
        return words[1] not in self._asked and words[2] == self._numbers.get(inbox)


def _words(frame: bytes) -> list[str]:
    return frame.partition(b"\r\n")[0].decode("utf-8", "replace").split(" ")


class Frames:
    """Cuts one connection's bytes into protocol frames; those with a payload begin with `sized`."""

    def __init__(self, sized: tuple[bytes, ...]) -> None:
        self._sized = sized
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._buffer += data
        while (end := self._end()) is not None:
            frame = bytes(self._buffer[:end])
            del self._buffer[:end]
            yield frame

    def _end(self) -> int | None:
        line_end = self._buffer.find(b"\r\n")
        if line_end < 0:
            return None
        end = line_end + 2
        line = bytes(self._buffer[:line_end])
        if line.startswith(self._sized):
            end += int(line.rpartition(b" ")[2]) + 2
        return end if end <= len(self._buffer) else None
