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
from collections.abc import Callable, Coroutine
from contextlib import suppress
from enum import Enum
from typing import Any, NamedTuple

from tests.support.proxy import Frames, Link, WireProxy

_CHUNK = 65536
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


class PointWire(WireProxy):
    """Forwards frames between clients and the server at `url`.

    requests   the subjects of the requests that clients have made since `begin`
    stop       where the run ends, or None
    stopped    whether it has
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.stop: Stop | None = None
        self.stopped = False
        self.requests: list[str] = []
        self.pauses = False
        self._then: Callable[[], None] | None = None
        self._error: BaseException | None = None

    @property
    def replied(self) -> bool:
        """Whether the client has the reply to the request of the stop."""
        return self.stopped and self.stop is not None and self.stop.moment is Moment.AFTER

    @property
    def server_url(self) -> str:
        """The way to the server past this wire."""
        return self._target.geturl()

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

    def __enter__(self) -> PointWire:
        self.start()
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flowing.wait()
        if self.dead:
            writer.transport.abort()
            return
        await super()._serve(reader, writer)

    def _pumps(
        self, link: Link, reader: asyncio.StreamReader, server: asyncio.StreamReader
    ) -> list[Coroutine[Any, Any, None]]:
        talk = _Talk(self, link)
        return [talk.from_client(reader), talk.from_server(server)]

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
            link.close(flush=True)
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


class _Talk:
    """The frames of one client's connection, and of the one to the server that belongs to it."""

    def __init__(self, wire: PointWire, link: Link) -> None:
        self._wire = wire
        self._link = link
        self._numbers: dict[str, str] = {}  # of subscriptions, by subject
        self._asked: dict[str, int] = {}  # requests by their reply subject
        self._replied: dict[str, int] = {}  # replies by subject
        self._awaited: _Request | None = None
        self._pings = 0  # pings of clients that the server has not answered
        self._paused = asyncio.Event()  # set when the pause at a stop is over

    async def from_client(self, reader: asyncio.StreamReader) -> None:
        frames = Frames((b"PUB ", b"HPUB "))
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                for frame in frames.cut(data):
                    if self._link.closing:
                        return
                    await self._take(frame)
                await self._link.server.drain()

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
        self._link.server.write(frame)

    async def _stop_at(self, frame: bytes, reply: str, moment: Moment) -> None:
        """Forward the request of the stop, if the server is to have it. Returns after a pause."""
        before = self._asked.get(reply, 0)
        self._asked[reply] = before + 1
        awaited = "" if moment is Moment.BEFORE else reply
        if moment is not Moment.BEFORE:
            self._link.server.write(frame)
        self._awaited = _Request(awaited, before, moment)
        if not awaited:
            # The server reads in order: its answer says that it has all that was sent.
            self._link.server.write(_PING)
        await self._paused.wait()
        if moment is Moment.BEFORE:
            self._link.server.write(frame)

    async def from_server(self, reader: asyncio.StreamReader) -> None:
        frames = Frames((b"MSG ", b"HMSG "))
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                for frame in frames.cut(data):
                    if self._link.closing:
                        return
                    await self._pass_on(frame)
                await self._link.client.drain()

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
            self._link.client.write(frame)
            return
        # A pong answers the ping of the wire, which the client has not sent.
        is_reply = bool(awaited.reply)
        # Before the client has the reply: it may have nothing more to do.
        self._wire.stopped = True
        if is_reply and awaited.moment is Moment.AFTER:
            self._link.client.write(frame)
        if not self._wire.pauses:
            self._wire.end()
            return
        self._awaited = None
        await self._wire.pause()
        if is_reply and awaited.moment is Moment.HELD:
            self._link.client.write(frame)
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
