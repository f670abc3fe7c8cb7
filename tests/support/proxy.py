"""A TCP proxy that breaks the wire between a client and a NATS server, on command.

```
with NatsServer() as server, WireProxy(server.url) as proxy:
    client = connect(proxy.url)
    proxy.cut_after(10_000)       # the connection breaks in the middle of what the server sends
    proxy.stall()                 # nothing moves, nothing closes
    proxy.refuse()                # "connection refused"
```

Behind a cluster the client also learns the servers' own addresses, and may go round the proxy.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from spark_jetstream.testing.process import LOOPBACK, PortLease
from tests.support.wire import frame

_CHUNK = 65536
_CALL_SECONDS = 60.0
_STORED = re.compile(rb'\r\n\{"stream":"OBJ_\w+",("domain":"\w+",)? ?"seq":')

Hook = Callable[[bytes], bytes]


class WireProxy:
    """Forwards bytes between any number of clients and the server at `target_url`, from a thread of
    its own.

    Every method returns after it has taken effect. Counters only grow:

    connections         connections accepted
    bytes_from_client   bytes read from clients
    bytes_to_client     bytes from the server that were forwarded
    dropped             frames that a hook turned into nothing
    """

    def __init__(self, target_url: str) -> None:
        self._target = urlsplit(target_url)
        self._lease = PortLease()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="wire-proxy", daemon=True
        )
        self._changed = threading.Condition()
        self._listener: asyncio.Server | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._links: set[Link] = set()
        self._hook: Hook | None = None
        self._hook_error: Exception | None = None
        self._left: dict[str, int] = {}
        self._piece = _CHUNK
        self._pause = 0.0
        self._awaited: tuple[bytes, threading.Event] | None = None
        self._cut_done = threading.Event()
        self._client_bytes = bytearray()
        self.connections = 0
        self.bytes_to_client = 0
        self.dropped = 0

    @property
    def url(self) -> str:
        """The target's URL with the proxy's address: same scheme, same credentials."""
        user, at, _ = self._target.netloc.rpartition("@")
        return urlunsplit(self._target._replace(netloc=f"{user}{at}{LOOPBACK}:{self._lease.port}"))

    @property
    def client_bytes(self) -> bytes:
        """All that clients have sent, in order of arrival:
        `proxy.client_bytes.count(b"CONSUMER.CREATE")`.
        """
        return bytes(self._client_bytes)

    @property
    def bytes_from_client(self) -> int:
        return len(self._client_bytes)

    @property
    def open_connections(self) -> int:
        return len(self._links)

    def wait(self, check: Callable[[], bool], timeout: float = 60.0) -> None:
        """Wait until `check` is true.

        It is called whenever bytes have moved, or connections have opened or closed.
        """
        with self._changed:
            if not self._changed.wait_for(check, timeout):
                raise TimeoutError(f"{self!r}: not seen within {timeout:g} s")

    def cut(self) -> None:
        """Close all connections now; bytes under way are lost. New ones are still accepted."""
        self._call(self._cut)

    def cut_after(self, count: int, *, to: str = "clients") -> threading.Event:
        """Cut all connections once that many further bytes have been forwarded to clients or
        `server`, not one more.

        Happens once; returns an event that is set when it has happened.
        """
        done = threading.Event()
        self._set(_left={to: count}, _cut_done=done)
        return done

    def pieces(self, size: int = _CHUNK, pause: float = 0.0) -> None:
        """Forward in pieces of at most `size` bytes from now on, each after `pause` seconds, in
        both directions.
        """
        self._set(_piece=size, _pause=pause)

    def stall(self) -> None:
        """Stop to forward, in both directions and for new connections too, without closing
        anything.
        """
        self._loop.call_soon_threadsafe(self._flowing.clear)
        self._set()

    def unstall(self) -> None:
        """Forward again, beginning with what was held back.

        This also ends the wait of `stall_at` for its bytes.
        """
        self._loop.call_soon_threadsafe(self._flowing.set)
        self._set(_awaited=None)

    def stall_at(self, containing: bytes) -> threading.Event:
        """Stall as soon as a client sends these bytes; they are the first that are held back.

        Happens once; returns an event that is set when it has happened. `cut` before `unstall`
        throws them away.
        """
        reached = threading.Event()
        self._set(_awaited=(containing, reached))
        return reached

    def stall_after(self, containing: bytes, count: int) -> threading.Event:
        """Stall when the server has sent `count` frames that contain these bytes.

        Frames that TCP delivers together with the last one pass. Happens once; returns an event
        that is set when it has happened.
        """
        seen = itertools.count(1)

        def look(frame: bytes) -> bytes:
            if next(seen) == count:
                self._flowing.clear()
            return frame

        return self.replace_frames(containing, count, look)

    def drop(self, pattern: Hook | None) -> None:
        """Let `pattern` rewrite what the server sends; None ends that.

        It is given one whole protocol frame at a time, however TCP cut them. A frame is a `MSG` or
        `HMSG` with its payload, or any other line by itself, line ends included. `pattern` returns
        the bytes to forward instead; `b""` drops the frame. Only plain NATS can be rewritten, not
        TLS and not WebSocket.
        """
        self._set(_hook=pattern)

    def replace_frames(self, containing: bytes, count: int, by: Hook) -> threading.Event:
        """Let `by` rewrite the next `count` frames from the server that contain these bytes.

        Returns an event that is set when it has happened.
        """
        done = threading.Event()
        left = count

        def pattern(frame: bytes) -> bytes:
            nonlocal left
            if not left or containing not in frame:
                return frame
            left -= 1
            if not left:
                done.set()
            return by(frame)

        self.drop(pattern)
        return done

    def drop_frames(self, containing: bytes, count: int = 1) -> None:
        """Drop the next `count` frames from the server that contain these bytes."""
        self.replace_frames(containing, count, lambda frame: b"")

    def awaiting(self, containing: bytes) -> threading.Event:
        """Return an event that is set when the server sends these bytes in a frame, which is
        forwarded.
        """
        return self.replace_frames(containing, 1, lambda frame: frame)

    def refuse(self) -> None:
        """Refuse new connections, as a port does where nobody listens. Those that exist stay."""
        self._call(self._refuse)

    def accept(self) -> None:
        self._call(self._accept)

    def start(self) -> WireProxy:
        self._thread.start()
        self.accept()
        return self

    def close(self) -> None:
        """Close everything.

        Raises what a hook has raised: its connection was cut, the test must know why.
        """
        self.refuse()
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._lease.release()
        if self._hook_error is not None:
            raise self._hook_error

    def __enter__(self) -> WireProxy:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<WireProxy port {self._lease.port}, {len(self._links)} of {self.connections} "
            f"connections open, {self.bytes_from_client} bytes from clients, "
            f"{self.bytes_to_client} to clients>"
        )

    def _call(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run_coroutine_threadsafe(step(), self._loop).result(_CALL_SECONDS)

    def _set(self, **fields: object) -> None:
        """Set these fields on the thread of the loop, after what was asked of it before."""

        async def update() -> None:
            self.__dict__.update(fields)

        self._call(update)

    async def _accept(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, LOOPBACK, self._lease.port)

    async def _refuse(self) -> None:
        if self._listener is not None:
            # A connection that was accepted just before is one of `_links` only when its task has
            # begun: four turns of the loop later (`_accept_connection2` in
            # asyncio/selector_events.py). It would stay open if the listener were closed in
            # between.
            for sock in self._listener.sockets:
                self._loop.remove_reader(sock)
            for _ in range(10):
                await asyncio.sleep(0)
            self._listener.close()
            self._listener = None

    async def _cut(self, flush: bool = False) -> None:
        links = list(self._links)
        for link in links:
            link.close(flush)
        if links:
            await asyncio.wait([link.task for link in links])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        link = Link(task, writer)
        self._links.add(link)
        self._count(connections=1)
        try:
            host, port = self._target.hostname or LOOPBACK, self._target.port or 4222
            server_reader, link.server = await asyncio.open_connection(host, port)
            pumps = self._pumps(link, reader, server_reader)
            link.pumps = [asyncio.create_task(pump) for pump in pumps]
            # Neither side lives on when the other one is gone.
            await asyncio.wait(link.pumps, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, asyncio.CancelledError):
            # The server is down, or `cut` came while it was asked: the client sees its connection
            # closed at once.
            self._count()
        finally:
            try:
                await link.finish()
            finally:  # `cut` may come here too
                self._links.discard(link)
                self._count()

    def _pumps(
        self, link: Link, reader: asyncio.StreamReader, server: asyncio.StreamReader
    ) -> list[Coroutine[Any, Any, None]]:
        """Return the coroutines that forward the bytes of the client, and those of the server."""
        return [self._from_client(reader, link.server), self._from_server(server, link.client)]

    async def _from_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                self._client_bytes += data
                if self._awaited is not None and self._awaited[0] in data:
                    self._flowing.clear()
                    self._awaited[1].set()
                    self._awaited = None
                self._count()
                await self._flowing.wait()
                if not await self._forward(data, writer, "server"):
                    return

    async def _from_server(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        frames = Frames()
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self._flowing.wait()
                out = frames.feed(data, self._rewrite if self._hook is not None else None)
                if self._hook_error is not None:
                    return
                if not await self._forward(out, writer, "clients"):
                    return

    async def _forward(self, data: bytes, writer: asyncio.StreamWriter, to: str) -> bool:
        """Write bytes, and cut all connections if `cut_after` says so: then the result is false."""
        if to in self._left:
            data = data[: self._left[to]]
            self._left[to] -= len(data)
        last = self._left.get(to) == 0
        for start in range(0, len(data), self._piece):
            if self._pause:
                await asyncio.sleep(self._pause)
            piece = data[start : start + self._piece]
            writer.write(piece)
            if to == "clients":
                self._count(bytes_to_client=len(piece))
            if not last:
                await writer.drain()
        if last:
            self._left = {}
            cutting = asyncio.create_task(self._cut(flush=True))
            cutting.add_done_callback(lambda _: self._cut_done.set())
        return not last

    def _rewrite(self, frame: bytes) -> bytes:
        if self._hook is None or self._hook_error is not None:
            return frame
        try:
            out = self._hook(frame)
        except Exception as error:  # noqa: BLE001 - `close` raises it in the test
            self._hook_error = error
            return b""
        self.dropped += not out
        return out

    def _count(self, connections: int = 0, bytes_to_client: int = 0) -> None:
        with self._changed:
            self.connections += connections
            self.bytes_to_client += bytes_to_client
            self._changed.notify_all()


class Link:
    """One client's connection and the one to the server that belongs to it."""

    server: asyncio.StreamWriter

    def __init__(self, task: asyncio.Task[None], client: asyncio.StreamWriter) -> None:
        self.task = task
        self.client = client
        self.pumps: list[asyncio.Task[None]] = []
        self.closing = False

    def close(self, flush: bool) -> None:
        """Begin to close; the task of the link ends soon.

        `flush` lets both sides have what is buffered.
        """
        if not self.closing:
            self.closing = True
            for writer in self._writers():
                if flush:
                    writer.close()
                else:
                    writer.transport.abort()
            for pump in self.pumps:
                pump.cancel()
            if not self.pumps:
                self.task.cancel()

    async def finish(self) -> None:
        for pump in self.pumps:
            pump.cancel()
        await asyncio.gather(*self.pumps, return_exceptions=True)
        for writer in self._writers():
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _writers(self) -> list[asyncio.StreamWriter]:
        """The connections that are open: the server may be down."""
        return [self.client, *([self.server] if hasattr(self, "server") else [])]


class Frames:
    """Cuts one connection's bytes into protocol frames; those with a payload begin with `sized`."""

    def __init__(self, sized: tuple[bytes, ...] = (b"MSG ", b"HMSG ")) -> None:
        self._sized = sized
        self._buffer = bytearray()
        self._sent = (
            0  # how much of the unfinished frame at the head of the buffer was forwarded already
        )

    def cut(self, data: bytes) -> Iterator[bytes]:
        """The frames that are whole with these bytes."""
        self._buffer += data
        while (end := self._end_of_frame(0)) is not None:
            frame = bytes(self._buffer[:end])
            del self._buffer[:end]
            yield frame

    def feed(self, data: bytes, hook: Hook | None) -> bytes:
        """The bytes to forward: whole frames for the hook, and all bytes while there is none."""
        self._buffer += data
        out: list[bytes] = []
        start = 0
        while (end := self._end_of_frame(start)) is not None:
            frame = bytes(self._buffer[start:end])
            if self._sent:
                out.append(frame[self._sent :])
                self._sent = 0
            else:
                out.append(frame if hook is None else hook(frame))
            start = end
        del self._buffer[:start]
        if hook is None or self._sent:
            out.append(bytes(self._buffer[self._sent :]))
            self._sent = len(self._buffer)
        return b"".join(out)

    def _end_of_frame(self, start: int) -> int | None:
        line_end = self._buffer.find(b"\r\n", start)
        if line_end < 0:
            return None
        line = bytes(self._buffer[start:line_end])
        end = line_end + 2
        if line.startswith(self._sized):
            size = line.rpartition(b" ")[2]
            end += int(size) + 2 if size.isdigit() else 0
        return end if end <= len(self._buffer) else None


def is_answer(frame: bytes) -> bool:
    """Whether a frame answers a published row: it comes to `<inbox>.<number>`."""
    words = frame.partition(b"\r\n")[0].split(b" ")
    return words[0] in (b"MSG", b"HMSG") and words[1].rpartition(b".")[2].isdigit()


def answer(asked: bytes, body: bytes, head: bytes = b"") -> bytes:
    """The frame with another payload and header block."""
    _, subject, sid, *_ = asked.partition(b"\r\n")[0].split(b" ")
    return frame(subject, sid.decode(), body, head)


def is_ack(frame: bytes) -> bool:
    """Whether a frame says that a message is stored in the stream of an Object Store bucket."""
    return _STORED.search(frame[:400]) is not None


class Acks:
    """Lets `passing` acknowledgements of an Object Store bucket's stream pass, and loses the later
    ones.

    `lost` is set when one is lost: the task that waits for it stands still, with rows stored that
    it does not know of.
    """

    def __init__(self, proxy: WireProxy, passing: int) -> None:
        self.lost = threading.Event()
        self._left = passing
        self._proxy = proxy
        proxy.drop(self._frame)

    def _frame(self, frame: bytes) -> bytes:
        self._left -= is_ack(frame)
        if self._left >= 0 or not is_ack(frame):
            return frame
        self.lost.set()
        return b""

    def end(self) -> None:
        self._proxy.drop(None)
