"""Connections to NATS for code that does not use asyncio: the only module that imports the client library.

nats-py opens the connection and keeps it open: TLS, WebSocket, NKeys, JWTs, server discovery, reconnects. One event
loop runs in a background thread of each process, and one connection for each set of connection options, so a
worker that Spark uses again for the next task finds it open. A forked child starts with none of its own.

Messages that answer pull requests do not go through nats-py's parser, which handles them one at a time, keeps only
the last of repeated header names and takes a stored message with a header `Status` for a status. A `wire.Scanner`
stands in front of it: what belongs to an `Inbox` goes there in bulk, everything else goes on to nats-py.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import itertools
import logging
import os
import queue
import re
import ssl
import threading
import warnings
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport

from spark_jetstream import jsapi
from spark_jetstream.auth import connect_arguments
from spark_jetstream.deadline import Deadline
from spark_jetstream.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    ConsumerLost,
    JetStreamError,
    NoResponders,
    PermissionDenied,
    ProtocolError,
    RequestTimeout,
    UntrustedServer,
)
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.wire import Event, Frames, Scanner, Status

log = logging.getLogger(__name__)

T = TypeVar("T")

_PARSER = "_ps"  # nats-py 2.16: the attribute that holds the parser; replaced by ours
_TRANSPORT = "_transport"  # and the one that holds the transport, filled in before it would do so itself
_SUBSCRIPTION_ID = "_id"  # and the number of a subscription on the wire
_READ_SIZE = 1 << 19
_DENIED = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"', re.IGNORECASE)
_SIGN_OF_LIFE = 2.0  # seconds for the answer to a ping
_RETRY_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)


class _BulkParser:
    """Takes the place of nats-py's parser: same two methods, `parse` and `reset`."""

    def __init__(self, library: Any, scanner: Scanner, deliver: Callable[[Frames | Status], None]) -> None:
        self._library = library
        self._scanner = scanner
        self._deliver = deliver

    def reset(self) -> None:
        self._scanner.reset()
        self._library.reset()

    async def parse(self, data: bytes = b"") -> None:
        try:
            events: list[Event] = self._scanner.feed(data)
        except ProtocolError as error:
            # nats-py closes a connection whose bytes make no sense and opens it again; readers start over there.
            log.warning("closing the connection: %s", error)
            raise nats.errors.ProtocolError() from error
        for event in events:
            if isinstance(event, bytes):
                await self._library.parse(event)
            else:
                self._deliver(event)


class _NotEncrypted(ConnectionRefusedError):
    """The server would have us go on in plain text. An OSError, so that nats-py treats it as a failed attempt."""


class _BulkTransport(TcpTransport):
    """nats-py's TCP and TLS transport with larger reads: 32 KiB at a time cost five times the CPU of 512 KiB.

    With `requires_tls` it says nothing of us before the connection is encrypted: nats-py goes on in plain text,
    credentials included, when a `tls://` server does not ask for TLS.
    """

    def __init__(self, requires_tls: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._requires_tls = requires_tls
        self._secured = False

    def __bool__(self) -> bool:
        return True  # or nats-py takes it for one that is missing, before it is connected

    async def connect(self, uri: Any, buffer_size: int, connect_timeout: float) -> None:
        self.abort()  # nats-py leaves what a failed attempt has opened
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(host=uri.hostname, port=uri.port, limit=_READ_SIZE), connect_timeout
        )
        if hasattr(writer.transport, "max_size"):  # asyncio's own limit of one read, 256 KiB
            writer.transport.max_size = _READ_SIZE
        self._secured = False
        self._bare_io_reader = self._io_reader = reader
        self._bare_io_writer = self._io_writer = writer

    async def connect_tls(
        self, uri: Any, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: float
    ) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_READ_SIZE)
        protocol = asyncio.StreamReaderProtocol(reader)
        hostname = uri if isinstance(uri, str) else uri.hostname
        plain: Any = self._io_writer
        starting = loop.start_tls(plain.transport, protocol, ssl_context, server_hostname=hostname)
        transport: Any = await asyncio.wait_for(starting, connect_timeout)
        self._io_reader = reader
        self._io_writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        self._secured = True

    def write(self, payload: bytes) -> None:
        if self._requires_tls and not self._secured:
            raise _NotEncrypted("TLS is asked for (a tls:// URL or a tls option), and the server offers none")
        plain: Any = self._io_writer
        plain.write(payload)

    async def read(self, buffer_size: int) -> bytes:
        reader: Any = self._io_reader
        return bytes(await reader.read(_READ_SIZE))

    async def drain(self) -> None:
        # Reading notices a lost connection too. Raised here it would stop nats-py in the middle of closing.
        with contextlib.suppress(ConnectionError):
            await super().drain()  # type: ignore[no-untyped-call]

    def at_eof(self) -> bool:
        return self._io_reader is None or bool(self._io_reader.at_eof())

    def abort(self) -> None:
        """Close at once: over a dead wire TLS would wait half a minute for the peer to say goodbye."""
        if self._io_writer is not None:
            self._io_writer.transport.abort()


class Inbox:
    """A subscription whose messages are collected in bulk, for one reader at a time.

    Everything published through it is answered to `<subject>.<number>`, so a status tells by its own subject which
    request it ends. `get` hands out what came, in the order of the wire.
    """

    def __init__(self, connection: Connection, subject: str) -> None:
        self.subject = subject
        self._connection = connection
        self._events: queue.SimpleQueue[Frames | Status | JetStreamError] = queue.SimpleQueue()
        self._published: set[str] = set()

    def publish(self, subject: str, payload: bytes, number: int) -> None:
        """Send a request whose answers come to this inbox; does not wait. Failures come out of `get`."""
        self._published.add(subject)
        self._connection._publish(self, subject, payload, f"{self.subject}.{number}")

    def get(self, timeout: float) -> Frames | Status | None:
        """The next run of messages or status; None when nothing came within `timeout` seconds.

        Raises `ConsumerLost` when the connection was cut, `PermissionDenied` when the server refused a request.
        """
        try:
            event = self._events.get(timeout=timeout) if timeout > 0 else self._events.get_nowait()
        except queue.Empty:
            return None
        if isinstance(event, JetStreamError):
            raise event
        return event

    def put(self, event: Frames | Status | JetStreamError) -> None:
        """Called by the connection, on its own thread."""
        self._events.put(event)

    def concerns(self, denied: str) -> str | None:
        """The subject of this inbox that the server's refusal of `denied` (in lower case) is about, or None."""
        known = (subject for subject in (*self._published, self.subject) if denied.startswith(subject.lower()))
        return next(known, None)

    def close(self) -> None:
        """Unsubscribe. What comes later is dropped."""
        self._connection._close_inbox(self)

    def __enter__(self) -> Inbox:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class Connection:
    """One connection, shared by everything in this process that has the same connection options.

    Made by `connect`. All methods block, and may be called from any thread but the connection's own. `reconnects`
    says how often the connection was lost and made again.
    """

    def __init__(self, options: ConnectionOptions, loop: asyncio.AbstractEventLoop) -> None:
        self.options = options
        self.prefix = options.api_prefix_resolved
        self.reconnects = 0
        self._loop = loop
        self._client = Client()
        self._scanner = Scanner()
        self._inboxes: dict[int, Inbox] = {}
        self._subscriptions: dict[int, Subscription] = {}
        self._waiting: dict[asyncio.Future[JetStreamError], str] = {}
        self._connected = asyncio.Event()
        self._refused: asyncio.Future[JetStreamError] = loop.create_future()
        self._last_error: BaseException | None = None
        self._deaf: PermissionDenied | None = None
        self._background: set[asyncio.Future[Any]] = set()
        library = getattr(self._client, _PARSER, None)
        self._transport: _BulkTransport | None = None
        self._in_bulk = library is not None and hasattr(library, "parse") and hasattr(library, "reset")
        if self._in_bulk:
            setattr(self._client, _PARSER, _BulkParser(library, self._scanner, self._deliver))
            if not options.servers[0].startswith("ws") and hasattr(self._client, _TRANSPORT):
                self._transport = _BulkTransport(options.requires_tls)
                setattr(self._client, _TRANSPORT, self._transport)
        else:
            warnings.warn(
                "this version of nats-py has no parser that can be replaced (tested: 2.16): reading is some ten times "
                "slower, and of repeated header names only the last value is seen",
                RuntimeWarning,
                stacklevel=2,
            )

    # What callers use

    @property
    def server_version(self) -> tuple[int, int, int]:
        """Version of the server this connection leads to."""
        version = self._client.connected_server_version
        return version.major, version.minor, version.patch

    @property
    def max_payload(self) -> int:
        """Largest message the server takes, header and payload, in bytes."""
        return int(self._client.max_payload)

    @property
    def usable(self) -> bool:
        """False once the client library has given the connection up."""
        return not self._client.is_closed

    def request(self, subject: str, payload: bytes, *, context: str, timeout: float | None = None) -> bytes:
        """Publish a request and return the payload of its reply.

        `context` says what is asked, as an infinitive without "to". Raises `RequestTimeout`, `NoResponders`,
        `PermissionDenied`, `ConnectionFailed`.
        """
        seconds = self.options.request_timeout if timeout is None else timeout
        try:
            return self._run(self._request(subject, payload, context, seconds), seconds + 5)
        except RequestTimeout:
            # A connection that has died without a word looks like a server that does not answer.
            self.check(_SIGN_OF_LIFE)
            raise

    def api(self, subject: str, body: bytes, *, context: str) -> dict[str, Any]:
        """A request to the JetStream API; the JSON object of its reply.

        Raises the `ApiError` of the server's answer, and what `request` raises.
        """
        return jsapi.reply(self.request(subject, body, context=context), context)

    def send(self, subject: str, payload: bytes, context: str) -> None:
        """Send a request whose outcome does not matter much; a failure is logged.

        If the connection is cut it is sent once more when it is back, if that does not take long.
        """

        async def carry_out(again: bool = True) -> None:
            try:
                await self._request(subject, payload, context, self.options.request_timeout)
            except ConnectionFailed as error:
                log.info("%s", error)
                if again:
                    await carry_out(again=False)
            except JetStreamError as error:
                log.info("%s", error)

        self._loop.call_soon_threadsafe(self._spawn, carry_out())

    def inbox(self) -> Inbox:
        """A new inbox; use it as a context manager."""
        inbox = Inbox(self, self._client.new_inbox())
        self._run(self._open_inbox(inbox), self.options.request_timeout)
        return inbox

    def check(self, timeout: float) -> None:
        """Ask the server for a sign of life; without one the connection is opened again.

        Raises `ConnectionFailed` when there was none.
        """

        async def ping() -> None:
            try:
                await self._client.flush(timeout=max(1, round(timeout)))
            except (nats.errors.Error, asyncio.TimeoutError, OSError) as error:
                if self._client.is_connected:
                    self._connected.clear()
                    transport = getattr(self._client, _TRANSPORT, None)
                    if isinstance(transport, _BulkTransport):
                        transport.abort()
                    await self._client.force_reconnect()
                raise ConnectionFailed(
                    f"the NATS server at {self.options.display_servers} gives no sign of life"
                ) from error

        self._run(ping(), timeout + 5)

    def close(self) -> None:
        """Close the connection; readers that still use it see it cut."""

        async def finish() -> None:
            if self._background and self._connected.is_set():
                await asyncio.wait(set(self._background), timeout=1)
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._client.close()

        with contextlib.suppress(JetStreamError):
            self._run(finish(), 4)

    # On the event loop's thread

    async def open(self, patience: float, find_file: Callable[[str], str]) -> None:
        """Connect within `patience` seconds, or raise what stands in the way."""
        arguments = connect_arguments(self.options, resolve=find_file)
        attempt = asyncio.ensure_future(
            self._client.connect(
                servers=list(self.options.servers),
                name="spark-jetstream",
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
                closed_cb=self._on_closed,
                connect_timeout=self.options.connect_timeout,  # type: ignore[arg-type]  # seconds; a float will do
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.25,  # type: ignore[arg-type]
                ping_interval=20,
                **arguments,
            )
        )
        try:
            either: set[asyncio.Future[Any]] = {attempt, self._refused}
            await asyncio.wait(either, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if self._refused.done():
                raise self._refused.result()
            if not attempt.done():
                raise ConnectionFailed(
                    f"no NATS server could be reached at {self.options.display_servers} within {patience:g} s "
                    f"(option servers){self._reason()}"
                )
            try:
                await attempt
            except (nats.errors.Error, OSError, ValueError, asyncio.TimeoutError) as error:
                raise ConnectionFailed(
                    f"cannot connect to {self.options.display_servers} (option servers): {_words(error)}"
                ) from None
            self._connected.set()
        except BaseException:
            attempt.cancel()
            with contextlib.suppress(asyncio.CancelledError, nats.errors.Error, OSError):
                await attempt
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._client.close()
            if self._transport is not None:
                self._transport.close()  # type: ignore[no-untyped-call]  # nats-py forgets that of a refused login
            raise

    async def wait_connected(self, patience: float) -> None:
        """Wait until nats-py has the connection back."""
        if self._connected.is_set():
            return
        try:
            await asyncio.wait_for(self._connected.wait(), patience)
        except asyncio.TimeoutError:
            raise ConnectionFailed(
                f"the connection to {self.options.display_servers} was lost and not made again within {patience:g} s"
                f"{self._reason()}"
            ) from None

    def _reason(self) -> str:
        return f": {_words(self._last_error)}" if self._last_error is not None else ""

    async def _request(self, subject: str, payload: bytes, context: str, seconds: float) -> bytes:
        await self.wait_connected(seconds)
        trouble: asyncio.Future[JetStreamError] = self._loop.create_future()
        if self._deaf is not None:
            trouble.set_result(self._deaf)
        self._waiting[trouble] = subject
        answer = asyncio.ensure_future(self._client.request(subject, payload, timeout=seconds))
        try:
            either: set[asyncio.Future[Any]] = {trouble, answer}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                found = trouble.result()
                said = f"cannot {context}: {found}"
                if isinstance(found, PermissionDenied):
                    raise PermissionDenied(said, subject=found.subject)
                raise ConnectionFailed(said)
            return bytes((await answer).data)
        except nats.errors.NoRespondersError:
            raise NoResponders(
                f"cannot {context}: nobody answers at {subject}: is JetStream enabled for this server and account, and "
                "are the options domain and apiPrefix right?"
            ) from None
        except (nats.errors.TimeoutError, asyncio.TimeoutError):
            raise jsapi.no_reply(context, seconds) from None
        except (nats.errors.Error, OSError) as error:
            raise ConnectionFailed(f"cannot {context}: {_words(error)}") from None
        finally:
            del self._waiting[trouble]
            trouble.cancel()
            answer.cancel()

    async def _open_inbox(self, inbox: Inbox) -> None:
        async def by_message(message: Msg) -> None:
            if not self._in_bulk:
                for event in _reframed(message):
                    inbox.put(event)

        try:
            subscription = await self._client.subscribe(f"{inbox.subject}.*", cb=by_message)
        except (nats.errors.Error, OSError) as error:
            raise ConnectionFailed(f"cannot subscribe to an inbox: {_words(error)}") from None
        sid = getattr(subscription, _SUBSCRIPTION_ID)
        self._inboxes[sid] = inbox
        self._subscriptions[sid] = subscription
        self._scanner.collect.add(sid)

    def _close_inbox(self, inbox: Inbox) -> None:
        async def unsubscribe() -> None:
            for sid in [sid for sid, each in self._inboxes.items() if each is inbox]:
                with contextlib.suppress(nats.errors.Error, OSError):
                    await self._subscriptions.pop(sid).unsubscribe()
                # What the server sent before it knew of this is still taken off the wire in bulk, and dropped.
                del self._inboxes[sid]
                self._scanner.collect.discard(sid)

        self._loop.call_soon_threadsafe(self._spawn, unsubscribe())

    def _publish(self, inbox: Inbox, subject: str, payload: bytes, reply: str) -> None:
        async def publish() -> None:
            try:
                await self._client.publish(subject, payload, reply=reply)
            except (nats.errors.Error, OSError) as error:
                inbox.put(ConsumerLost(f"a pull request could not be sent: {_words(error)}"))

        self._loop.call_soon_threadsafe(self._spawn, publish())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _deliver(self, event: Frames | Status) -> None:
        inbox = self._inboxes.get(event.sid)
        if inbox is not None:
            inbox.put(event)

    def _run(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        if threading.current_thread() is _background_thread():
            work.close()
            raise RuntimeError("this connection's own thread must not wait for it")
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(seconds)
        except (TimeoutError, concurrent.futures.TimeoutError):
            future.cancel()
            raise ConnectionFailed("the connection's thread did not answer in time") from None

    # Callbacks of nats-py

    async def _on_error(self, error: Exception) -> None:
        text = str(error)
        self._last_error = error
        denied = _DENIED.search(text)
        if denied is not None:
            self._on_denied(denied.group(1), denied.group(2).lower())
        elif isinstance(error, ssl.SSLCertVerificationError):
            self._refuse(
                UntrustedServer(
                    f"the certificate of {self.options.display_servers} is not trusted "
                    f"(options tlsCaFile, tlsHostname): {error.verify_message}"
                )
            )
        elif isinstance(error, _NotEncrypted):
            self._refuse(UntrustedServer(f"cannot connect to {self.options.display_servers}: {error}"))
        elif "authorization violation" in text.lower() or isinstance(error, nats.errors.AuthorizationError):
            self._refuse(
                AuthenticationFailed(
                    f"the NATS server at {self.options.display_servers} refused the credentials "
                    f"({self.options.authentication_options})"
                )
            )
        else:
            log.info("NATS connection: %s", _words(error))

    def _on_denied(self, action: str, subject: str) -> None:
        # The client library hands the subject over in lower case; what was asked for tells how it is written.
        inboxes = f"{self.options.inbox_prefix}.>"
        inbox_trouble = PermissionDenied(
            f"the account may not subscribe to {inboxes} (option inboxPrefix)", subject=inboxes
        )
        subscribing = subscribing_for_requests = action.lower() == "subscription"
        for future, asked in self._waiting.items():
            if not future.done() and (subscribing or subject == asked.lower()):
                own = PermissionDenied(f"the account may not publish to {asked}", subject=asked)
                future.set_result(inbox_trouble if subscribing else own)
        for inbox in self._inboxes.values():
            asked_there = inbox.concerns(subject)
            if asked_there is not None:
                own = PermissionDenied(f"the account may not publish to {asked_there}", subject=asked_there)
                inbox.put(inbox_trouble if subscribing else own)
                subscribing_for_requests = False
        if subscribing_for_requests:
            # nats-py does so once for all requests, and would let the next one wait for its reply in vain.
            self._deaf = inbox_trouble

    def _refuse(self, error: JetStreamError) -> None:
        if not self._refused.done():
            self._refused.set_result(error)

    async def _on_disconnected(self) -> None:
        self._connected.clear()
        self._deaf = None
        cut = f"the connection to {self.options.display_servers} was cut"
        for future in self._waiting:
            if not future.done():
                future.set_result(ConnectionFailed(cut))
        for inbox in self._inboxes.values():
            inbox.put(ConsumerLost(cut))

    async def _on_reconnected(self) -> None:
        self._last_error = None
        self.reconnects += 1
        self._connected.set()

    async def _on_closed(self) -> None:
        await self._on_disconnected()


def _reframed(message: Msg) -> list[Frames | Status]:
    """A message as nats-py read it, put back into a frame: used where its parser cannot be replaced."""
    lines = [b"NATS/1.0"]
    headers = dict(message.headers or {})
    if not message.reply and not message.data and "Status" in headers:
        lines = [f"NATS/1.0 {headers.pop('Status')} {headers.pop('Description', '')}".rstrip().encode()]
    lines += [f"{name}: {value}".encode() for name, value in headers.items()]
    head = b"\r\n".join(lines) + b"\r\n\r\n" if len(lines) > 1 or b" " in lines[0] else b""
    reply = f" {message.reply}" if message.reply else ""
    sizes = f"{len(head)} {len(head) + len(message.data)}" if head else f"{len(message.data)}"
    line = f"{'HMSG' if head else 'MSG'} {message.subject} 1{reply} {sizes}\r\n"
    scanner = Scanner()
    scanner.collect = {1}
    events = scanner.feed(line.encode() + head + message.data + b"\r\n")
    return [event for event in events if not isinstance(event, bytes)]


def _words(error: BaseException | None) -> str:
    """An error's own words, or its kind when it has none."""
    text = str(error).removeprefix("nats: ").strip()
    return text or type(error).__name__


def retrying(work: Callable[[], T], seconds: float) -> T:
    """What `work` returns, once it succeeds.

    Errors that may pass (a connection cut, no reply, an election) are tried again for so many seconds, and raised
    when they have passed; others at once.
    """
    deadline = Deadline(seconds)
    pauses = itertools.chain(_RETRY_PAUSES, itertools.repeat(_RETRY_PAUSES[-1]))
    while True:
        try:
            return work()
        except JetStreamError as error:
            if not error.retriable or deadline.expired:
                raise
            log.info("trying again: %s", error)
            threading.Event().wait(deadline.within(next(pauses)))


# One loop and one pool a process.

_lock = threading.RLock()
_pool: dict[ConnectionOptions, Connection] = {}
_opening: dict[ConnectionOptions, Future[Connection]] = {}
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None


def _background_thread() -> threading.Thread | None:
    return _thread


def _event_loop() -> asyncio.AbstractEventLoop:
    global _loop, _thread  # noqa: PLW0603  # the process has one; a fork resets it
    if _loop is None or _thread is None or not _thread.is_alive():
        _loop = asyncio.new_event_loop()
        _thread = threading.Thread(target=_loop.run_forever, name="spark-jetstream", daemon=True)
        _thread.start()
    return _loop


def _as_given(path: str) -> str:
    return path


def connect(
    options: ConnectionOptions, *, patience: float | None = None, find_file: Callable[[str], str] = _as_given
) -> Connection:
    """The process's connection for these options, opened if need be.

    Waits up to `patience` seconds (option connectTimeout if None) for one that was lost, and for a new one at least
    as long as one attempt may take (connectTimeout). `find_file` says where on this node a file named by an option
    is. Raises `ConnectionFailed`, `AuthenticationFailed`, `OptionError`.
    """
    seconds = options.connect_timeout if patience is None else patience
    with _lock:
        known = _pool.get(options)
        opening = _opening.get(options)
        if opening is None and (known is None or not known.usable):
            known = None
            seconds = max(seconds, options.connect_timeout)
            loop = _event_loop()

            async def make() -> Connection:
                connection = Connection(options, loop)
                await connection.open(seconds, find_file)
                return connection

            opening = _opening[options] = asyncio.run_coroutine_threadsafe(make(), loop)
    # Not under the lock: others may want a server that is up.
    if opening is None:
        assert known is not None
        known._run(known.wait_connected(seconds), seconds + 5)
        return known
    try:
        _pool[options] = connection = opening.result(seconds + 10)
    except concurrent.futures.TimeoutError:
        opening.cancel()
        raise ConnectionFailed("the connection's thread did not answer in time") from None
    finally:
        with _lock:
            if _opening.get(options) is opening:
                del _opening[options]
    return connection


def close_all() -> None:
    """Close every connection of this process; the next `connect` opens new ones."""
    with _lock:
        for connection in _pool.values():
            connection.close()
        _pool.clear()


def _forget() -> None:
    """In a forked child: the parent's sockets and thread are not ours, and are left alone."""
    global _loop, _thread, _lock  # noqa: PLW0603
    _lock = threading.RLock()
    _pool.clear()
    _opening.clear()
    _loop = _thread = None


os.register_at_fork(after_in_child=_forget)
atexit.register(close_all)


__all__ = ["Connection", "Inbox", "close_all", "connect", "retrying"]
