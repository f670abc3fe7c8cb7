"""A blocking connection to NATS, over nats-py on the event loop of a background thread (`pool`)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import copy
import functools
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from spark_jetstream.client import nats_py
from spark_jetstream.client.auth import connect_arguments
from spark_jetstream.client.deadline import Deadline
from spark_jetstream.client.inbox import Inbox
from spark_jetstream.client.nats_py import BulkTransport, error_text
from spark_jetstream.client.subscription import Listener
from spark_jetstream.errors import (
    ApiError,
    ConnectionFailed,
    ConsumerLost,
    JetStreamError,
    NoResponders,
    PermissionDenied,
    ProtocolError,
    RequestTimeout,
)
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.conventions import CONNECTION
from spark_jetstream.protocol.wire import ApiReply, Frames, Scanner, Status

log = logging.getLogger(__name__)

T = TypeVar("T")

SIGN_OF_LIFE = 2.0
"""Seconds that a server has to answer a ping."""
ASK_AGAIN = 2.0
"""Seconds until a request without a reply is sent again."""
_LOOK_AGAIN = 0.01  # seconds
_REFUSED_FOR = 5.0  # seconds; a server that restarts, or reloads its configuration, refuses logins for less


class Connection:
    """One connection, shared by everything in this process that has the same connection options.

    Made by `pool.connect`, on the loop's thread. All methods block, and may be called from any thread but that one.
    `reconnects` says how often the connection was lost and made again.
    """

    def __init__(self, options: ConnectionOptions, loop: asyncio.AbstractEventLoop) -> None:
        self.options = options
        self.prefix = options.api_prefix_resolved
        self.reconnects = 0
        self._loop = loop
        self._thread = threading.current_thread()
        self._client = nats_py.LastingClient()
        self._scanner = Scanner()
        self._inboxes: dict[int, Inbox] = {}
        self._subscriptions: dict[int, Subscription] = {}
        self._waiting: dict[asyncio.Future[JetStreamError], str] = {}
        self._connected = asyncio.Event()
        self._refused: asyncio.Future[JetStreamError] = loop.create_future()
        self._refusals: list[tuple[float, JetStreamError]] = []  # in a row
        self._starting = True
        self._closed_ports = 0  # refused in a row
        self._tolerance = 0.0
        self._last_error: Exception | None = None
        self._deaf: PermissionDenied | None = None
        self._background: set[asyncio.Future[Any]] = set()
        self._transport = nats_py.replace_parts(
            self._client, options, self._scanner, self._deliver, self._complain, self._is_paced
        )

    # What callers use

    @property
    def server_version(self) -> tuple[int, int, int]:
        """The version of the server."""
        version = self._client.connected_server_version
        return version.major, version.minor, version.patch

    @property
    def max_payload(self) -> int:
        """The largest message that the server accepts, header and payload, in bytes."""
        return int(self._client.max_payload)

    @property
    def usable(self) -> bool:
        """False once the client library has given the connection up."""
        return not self._client.is_closed

    def request(
        self,
        subject: str,
        payload: bytes,
        *,
        context: str,
        timeout: float | None = None,
        headers: dict[str, str] | None = None,
        every: float | None = None,
    ) -> bytes:
        """Publish a request and return the payload of its reply.

        `context` is what is asked, as an infinitive without "to"; errors repeat it. `timeout` is option requestTimeout
        if None. A request that changes nothing on the server may be sent again after `every` seconds. Raises
        `RequestTimeout`, `NoResponders` if no subscriber has the subject, `PermissionDenied`, and `ConnectionFailed`.
        """
        seconds = self.options.request_timeout if timeout is None else timeout
        try:
            return self._run(self._request(subject, payload, context, seconds, headers, every), seconds + 5)
        except RequestTimeout:
            # A dead connection looks like a server that does not answer.
            self.check()
            raise

    def api(self, subject: str, body: bytes, *, context: str) -> dict[str, Any]:
        """Send a request to the JetStream API; return its reply. Raises `ApiError`, and what `request` raises."""
        return jsapi.reply(self.request(subject, body, context=context), context)

    def ask(self, subject: str, body: bytes, *, context: str, timeout: float | None = None) -> dict[str, Any]:
        """Send a request that changes nothing on the server, and return the JSON object of its reply.

        A stream without a leader does not reply, and its requests are lost. So the request is sent again every 2
        seconds within `timeout` (option requestTimeout if None), and the first reply counts. Raises what `api` raises.
        """
        return jsapi.reply(self.request(subject, body, context=context, timeout=timeout, every=ASK_AGAIN), context)

    def ask_all(self, subjects: Mapping[str, str]) -> list[dict[str, Any] | ApiError]:
        """Send requests without a body, subject -> context, in one go; return the replies in that order.

        Each is sent as `ask` sends one. An error that the API answers with is returned. Raises anything else that `ask`
        raises for the first that fails.
        """
        seconds = self.options.request_timeout

        async def gather() -> list[bytes | BaseException]:
            sent = (self._request(each, b"", context, seconds, every=ASK_AGAIN) for each, context in subjects.items())
            return await asyncio.gather(*sent, return_exceptions=True)

        replies: list[dict[str, Any] | ApiError] = []
        for payload, context in zip(self._run(gather(), seconds + 5), subjects.values(), strict=True):
            if isinstance(payload, RequestTimeout):
                self.check()
            if isinstance(payload, BaseException):
                raise payload
            try:
                replies.append(jsapi.reply(payload, context))
            except ApiError as error:
                replies.append(error)
        return replies

    def post(self, subject: str, payload: bytes = b"") -> None:
        """Publish a request whose reply nobody reads; does not wait. A cut may lose it, and a failure is logged."""

        async def publish() -> None:
            try:
                await self._client.publish(subject, payload)
            except (nats.errors.Error, OSError) as error:
                log.info("cannot publish to %s: %s", subject, error_text(error))

        self._loop.call_soon_threadsafe(self._spawn, publish())

    def inbox(self, replies: bool = False, *, whole: bool = False, paced: bool = True, token: str = "*") -> Inbox:
        """Return a new inbox, with `replies` for replies to what it sends (`paced`: many, some milliseconds late).

        With `replies` it waits for the subscription, since `Inbox.send` goes past the client library's buffer. Without,
        it does not wait: a failure comes out of `Inbox.get`. `whole` is for Direct Get, whose messages have no reply
        subject. `token` is the last one of the subject: a server that looks for a subscriber of one subject does not
        see a wildcard (snapshots begin two seconds later).
        """
        inbox = Inbox(self, self._client.new_inbox(), replies, whole, paced)
        subject = f"{inbox.subject}.{token}"

        async def subscribe() -> None:
            try:
                await self._subscribe(inbox, subject)
            except ConnectionFailed as error:
                inbox.put_cut(str(error))

        if replies:
            self._run(self._subscribe(inbox, subject), self.options.request_timeout)
        else:
            self._loop.call_soon_threadsafe(self._spawn, subscribe())
        return inbox

    def listen(self, subjects: Sequence[str]) -> Listener:
        """Subscribe to these subjects, with wildcards; the listener has all messages from the return of this call on.

        A message that matches two of them comes twice. Raises `PermissionDenied` and `ConnectionFailed`.
        """
        listener = Listener(self, subjects)
        try:
            for subject in listener.subjects:
                self._run(self._subscribe(listener, subject), self.options.request_timeout)
            self.check(self.options.request_timeout)
            if listener.denied is not None:
                raise listener.denied
        except BaseException:
            listener.close()
            raise
        return listener

    def check(self, timeout: float = SIGN_OF_LIFE) -> None:
        """Ping the server; without an answer in time, open the connection again and raise `ConnectionFailed`."""

        async def ping() -> None:
            try:
                await self._client.flush(timeout=max(1, round(timeout)))
            except (nats.errors.Error, asyncio.TimeoutError, OSError) as error:
                if self._client.is_connected:
                    self._connected.clear()
                    if isinstance(self._transport, BulkTransport):
                        self._transport.abort()
                    await self._client.force_reconnect()
                raise ConnectionFailed(
                    f"the NATS server at {self.options.display_servers} gives no sign of life"
                ) from error

        self._run(ping(), timeout + 5)

    def wait(self, patience: float) -> None:
        """Wait until the connection is up. Raises `ConnectionFailed` after `patience` seconds."""
        if self._is_up:
            return
        self._run(self._wait_connected(patience), patience + 5)

    def close(self) -> None:
        """Close the connection; readers that still use it see it cut."""

        async def finish() -> None:
            if self._background and self._connected.is_set():
                await asyncio.wait(set(self._background), timeout=1)
            await self._give_up()

        with contextlib.suppress(JetStreamError):
            self._run(finish(), 4)

    # What inboxes use

    def publish_for(self, inbox: Inbox, subject: str, payload: bytes, reply: str) -> None:
        """`Inbox.publish`."""

        async def publish() -> None:
            try:
                await self._client.publish(subject, payload, reply=reply)
            except (nats.errors.Error, OSError) as error:
                inbox.put(ConsumerLost(f"a pull request could not be sent: {error_text(error)}"))

        self._loop.call_soon_threadsafe(self._spawn, publish())

    def write_for(self, inbox: Inbox, frames: bytes | memoryview, generation: int) -> None:
        """`Inbox.send`."""
        self._loop.call_soon_threadsafe(self._write, inbox, frames, generation)

    def resume(self, inbox: Inbox, patience: float) -> None:
        """`Inbox.resume`."""

        async def adopt() -> None:
            await self._wait_connected(patience)
            inbox.adopt(self.reconnects)

        self._run(adopt(), patience + 5)

    def spellings(self, subject: str) -> tuple[str, ...]:
        """Return the names that the server may have for a published subject: it takes its own domain out first."""
        rest = subject.removeprefix(f"{self.prefix}.")
        if self.options.domain is None or rest == subject:
            return (subject,)
        return subject, rest if rest.startswith("$KV.") else f"{jsapi.DEFAULT_PREFIX}.{rest}"

    def close_inbox(self, inbox: Inbox) -> None:
        """`Inbox.close`."""

        async def unsubscribe() -> None:
            for sid in [sid for sid, other in self._inboxes.items() if other is inbox]:
                with contextlib.suppress(nats.errors.Error, OSError):
                    await self._subscriptions.pop(sid).unsubscribe()
                # The scanner still reads, and drops, what the server has sent before.
                del self._inboxes[sid]
                self._scanner.collect.discard(sid)
                self._scanner.whole.discard(sid)

        self._loop.call_soon_threadsafe(self._spawn, unsubscribe())

    # On the event loop's thread

    async def open(self, patience: float, find_file: Callable[[str], str], *, starting: bool = True) -> None:
        """Connect within `patience` seconds, or raise why that is not possible.

        A caller that waits longer than `connectTimeout` waits for the end of an outage, in which servers may refuse
        logins as well. Unless servers may be `starting`, `ConnectionFailed` is raised once the ports of all refuse.
        """
        self._starting = starting
        self._tolerance = _REFUSED_FOR if patience > self.options.connect_timeout else 0.0
        self._client.read_login = functools.partial(connect_arguments, self.options, resolve=find_file)
        attempt = asyncio.ensure_future(
            self._client.connect(
                servers=list(self.options.servers),
                name=CONNECTION,
                connect_timeout=self.options.connect_timeout,  # type: ignore[arg-type]  # seconds; a float will do
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.25,  # type: ignore[arg-type]
                ping_interval=20,
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
                closed_cb=self._on_disconnected,
                **self._client.read_login(),
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
            except (nats.errors.Error, OSError, asyncio.TimeoutError, *nats_py.TROUBLE) as error:
                raise ConnectionFailed(
                    f"cannot connect to {self.options.display_servers} (option servers): {error_text(error)}"
                ) from None
            self._accepted()
        except BaseException:
            attempt.cancel()
            with contextlib.suppress(asyncio.CancelledError, nats.errors.Error, OSError, *nats_py.TROUBLE):
                await attempt
            await self._give_up()
            self._transport.close()  # nats-py forgets that of a refused login
            raise

    async def _give_up(self) -> None:
        # nats-py waits for a task of its own, which it may have cancelled.
        with contextlib.suppress(nats.errors.Error, OSError, asyncio.CancelledError):
            await self._client.close()

    @property
    def _is_up(self) -> bool:
        # nats-py knows of a loss before it calls back.
        return self._connected.is_set() and self._client.is_connected

    async def _wait_connected(self, patience: float) -> None:
        deadline = Deadline(patience)
        while not self._is_up:
            if self._refused.done():
                raise copy.copy(self._refused.result())
            if not self.usable:
                raise ConnectionFailed(f"the connection to {self.options.display_servers} was closed{self._reason()}")
            if deadline.expired:
                raise ConnectionFailed(
                    f"the connection to {self.options.display_servers} was lost and not made again within "
                    f"{patience:g} s{self._reason()}"
                )
            await asyncio.sleep(deadline.within(_LOOK_AGAIN))

    def _reason(self) -> str:
        if self._last_error is None:
            return ""
        return f": {nats_py.refusal(self._last_error, self._client, self.options) or error_text(self._last_error)}"

    async def _request(
        self,
        subject: str,
        payload: bytes,
        context: str,
        seconds: float,
        headers: dict[str, str] | None = None,
        every: float | None = None,
    ) -> bytes:
        await self._wait_connected(seconds)
        trouble: asyncio.Future[JetStreamError] = self._loop.create_future()
        if self._deaf is not None:
            trouble.set_result(self._deaf)
        self._waiting[trouble] = subject
        deadline = Deadline(seconds)
        answers: list[asyncio.Future[Msg]] = []
        try:
            while True:
                sent = self._client.request(subject, payload, timeout=max(0.001, deadline.left), headers=headers)
                answers.append(asyncio.ensure_future(sent))
                either: set[asyncio.Future[Any]] = {trouble, *answers}
                await asyncio.wait(either, timeout=every, return_when=asyncio.FIRST_COMPLETED)
                answer = next((future for future in answers if future.done()), None)
                if answer is not None:
                    return bytes(answer.result().data)
                if trouble.done():
                    failure = trouble.result()
                    text = f"cannot {context}: {failure}"
                    if isinstance(failure, PermissionDenied):
                        raise PermissionDenied(text, subject=failure.subject)
                    raise ConnectionFailed(text)
        except nats.errors.NoRespondersError:
            raise NoResponders(
                f"cannot {context}: nobody answers at {subject}: is JetStream enabled for this server and account, and "
                "are the options domain and apiPrefix right?"
            ) from None
        except (nats.errors.TimeoutError, asyncio.TimeoutError):
            raise jsapi.no_reply(context, seconds) from None
        except (nats.errors.Error, OSError) as error:
            raise ConnectionFailed(f"cannot {context}: {error_text(error)}") from None
        finally:
            del self._waiting[trouble]
            trouble.cancel()
            for future in answers:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # retrieved, so that asyncio does not log it

    async def _subscribe(self, inbox: Inbox, subject: str) -> None:
        async def drop(message: Msg) -> None:
            """What came before the scanner knew the subscription."""

        try:
            subscription = await self._client.subscribe(subject, cb=drop)
        except (nats.errors.Error, OSError) as error:
            raise ConnectionFailed(f"cannot subscribe to {subject}: {error_text(error)}") from None
        sid = nats_py.number_of(subscription)
        self._inboxes[sid] = inbox
        self._subscriptions[sid] = subscription
        self._scanner.collect.add(sid)
        if inbox.whole:
            self._scanner.whole.add(sid)

    def _is_paced(self) -> bool:
        return any(inbox.paced for inbox in self._inboxes.values())

    def _write(self, inbox: Inbox, frames: bytes | memoryview, generation: int) -> None:
        # Not through nats-py's buffer, which nats-py sends over the next connection.
        if self._is_up and generation == self.reconnects:
            self._transport.write(frames)
            if not isinstance(self._transport, BulkTransport):
                self._spawn(nats_py.drain(self._transport))
        else:
            inbox.put_cut(f"the connection to {self.options.display_servers} was cut, nothing was sent")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _deliver(self, event: Frames | Status | ApiReply) -> None:
        inbox = self._inboxes.get(event.sid)
        if inbox is not None:
            inbox.put(event)

    def _run(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("this connection's own thread must not wait for it")
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(seconds)
        except (TimeoutError, concurrent.futures.TimeoutError):
            future.cancel()
            raise ConnectionFailed("the connection's thread did not answer in time") from None

    def _complain(self, error: ProtocolError) -> None:
        """Note that the server's bytes are malformed; the connection is cut next."""
        self._last_error = error

    # Callbacks of nats-py

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error
        denied = nats_py.denied(error)
        refusal = nats_py.refusal(error, self._client, self.options)
        self._closed_ports = self._closed_ports + 1 if nats_py.port_refused(error) else 0
        if refusal is None:
            log.info("NATS connection: %s", error_text(error))
        else:
            self._on_refused(refusal)
        if denied is not None:
            self._on_denied(*denied)
        if not self._starting and not self._refused.done() and self._closed_ports >= len(self._client.servers):
            self._refused.set_result(
                ConnectionFailed(
                    f"no NATS server could be reached at {self.options.display_servers} (option servers): "
                    "the connection was refused, nothing listens there"
                )
            )

    def _on_refused(self, refusal: JetStreamError) -> None:
        """Count a refused login. It is final once each server has refused, for `_tolerance` seconds.

        The first one counts: it may say that the server ended a login, and why.
        """
        log.info("%s", refusal)
        self._refusals.append((time.monotonic(), refusal))
        began, first = self._refusals[0]
        lasted = time.monotonic() - began
        if self._refused.done() or len(self._refusals) < len(self._client.servers) or lasted < self._tolerance:
            return
        self._refused.set_result(first)
        # Or nats-py would log in four times a second without end. The next `connect` opens a new connection.
        self._spawn(self._client.close())

    def _accepted(self) -> None:
        self._last_error = None
        self._refusals.clear()
        self._tolerance = _REFUSED_FOR
        self._starting = True
        self._connected.set()

    def _on_denied(self, publishing: bool, subject: str) -> None:
        # nats-py gives the subject in lower case; the request has its spelling.
        inboxes = f"{self.options.inbox_prefix}.>"
        trouble = PermissionDenied(f"the account may not subscribe to {inboxes} (option inboxPrefix)", subject=inboxes)
        listeners = [inbox for inbox in self._inboxes.values() if isinstance(inbox, Listener)]
        # Each listener must be told, so the list comes first.
        told = [listener.put_denied(publishing, subject, trouble) for listener in listeners]
        if any(told):
            return  # requests and inboxes are not affected
        for future, asked in self._waiting.items():
            named = next((name for name in self.spellings(asked) if name.lower() == subject), None)
            if not future.done() and (not publishing or named is not None):
                own = PermissionDenied(f"the account may not publish to {named}", subject=named)
                future.set_result(own if publishing else trouble)
        told = [inbox.put_denied(publishing, subject, trouble) for inbox in self._inboxes.values()]
        if not publishing and not any(told):
            # nats-py subscribes once for all requests: the next one would wait in vain for its reply.
            self._deaf = trouble

    async def _on_disconnected(self) -> None:
        self._connected.clear()
        self._deaf = None
        cut = f"the connection to {self.options.display_servers} was cut{self._reason()}"
        for future in self._waiting:
            if not future.done():
                future.set_result(ConnectionFailed(cut))
        for inbox in self._inboxes.values():
            inbox.put_cut(cut)

    async def _on_reconnected(self) -> None:
        self.reconnects += 1
        self._accepted()
