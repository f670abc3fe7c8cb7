"""The login of a connection: made, refused, cut, and made again. On the event loop's thread.

A connection is in one of four states. nats-py makes the attempts, and its callbacks move the
connection on:

| state   | while                | ends with                                                       |
|---------|----------------------|-----------------------------------------------------------------|
| opening | `open` waits         | a login: up; a final reason, or no login in time: ended         |
| up      | `Login.is_up`        | a cut, or no answer to `ping`: down; a lasting error: ended     |
| down    | nats-py tries again  | a login: up, `reconnects` is one more; a final reason: ended    |
| ended   | `Login.closed`       | nothing; the pool opens another connection                      |

Final is a refusal by each server, once refusals have lasted `Timing.refused_for`. A server that is
down may accept the login. Before the first login a refusal by each that is up is final at once,
unless the caller waits for the end of an outage. An answer that is not NATS is a refusal; but a
proxy for WebSocket gives one while the server behind it is away, so a caller that waits goes on.
Where no server is starting, closed ports or unknown hosts of all servers are final as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

import nats.errors

from spark_jetstream.client import refusals
from spark_jetstream.client.auth import connect_arguments, login_fields
from spark_jetstream.client.deadline import Deadline, share
from spark_jetstream.client.loop import Loop
from spark_jetstream.client.nats_py import new_client
from spark_jetstream.client.reasons import error_text, nowhere
from spark_jetstream.client.server import ServerState
from spark_jetstream.client.server_pool import ServerPool
from spark_jetstream.client.tcp import TcpWire
from spark_jetstream.client.timing import Timing
from spark_jetstream.client.websocket import WebSocketWire
from spark_jetstream.client.wire import Wire
from spark_jetstream.errors import ConnectionFailed, JetStreamError, ProtocolError, WrongServer
from spark_jetstream.options import advice
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.protocol import commands
from spark_jetstream.protocol.conventions import CONNECTION
from spark_jetstream.protocol.jsapi import DEFAULT_PREFIX
from spark_jetstream.protocol.wire import ApiReply, Frames, Scanner, Status

log = logging.getLogger(__name__)

_MOST_UNSENT = 2 << 20  # bytes that may wait for the end of an outage
_OURS = ("user_credentials", "nkeys_seed_str")
"""Arguments of a login that the wire adds: files may be renewed, and nats-py reads them once."""
_TROUBLE = (nats.errors.Error, OSError, asyncio.TimeoutError)
"""The errors of nats-py for an attempt to connect."""


class Subscriptions(Protocol):
    """The subscriptions of a connection, as its login sees them."""

    scanner: Scanner

    def deliver(self, event: Frames | Status | ApiReply) -> None:
        """Hand on what the scanner has read."""

    def pace(self) -> float:
        """Return the seconds between two reads."""

    def renew(self) -> bytes:
        """Return the lines that subscribe over a new connection."""

    def put_cut(self, message: str) -> None:
        """Hear that the connection was cut."""


class Login:
    """The login of one connection: its client, its wire, and what has failed since the last login.

    `serve` completes it: the subscriptions know their login too.
    """

    def __init__(self, options: ConnectionOptions, timing: Timing, loop: Loop) -> None:
        self.options = options
        self.timing = timing
        self.server = ServerState()
        self.reconnects = 0  # logins but the first
        self.attempted: Any = None  # the URL of the server of the last attempt
        self.wire: Wire
        self._loop = loop
        self._subscriptions: Subscriptions
        self._denied: Callable[[bool, str], None]
        self._given: dict[str, Any] = {}  # the arguments of the last attempt
        self._read_files: Callable[[], dict[str, Any]] = dict
        # Before the first login `open` says when an error is final.
        self._tolerance = timing.refused_for  # seconds that refusals must have lasted
        self._starting = True  # whether closed ports may be those of servers that start
        # Set by a login, cleared by a cut; nats-py knows of a cut before it calls back.
        self._logged_in = False
        self._ended = False  # nobody wants the connection any more
        # Why no login can succeed any more.
        self._final: asyncio.Future[JetStreamError] = loop.loop.create_future()
        # The first refusal of each server since the last login.
        self._refusals: dict[Any, tuple[float, JetStreamError]] = {}
        # Attempts in a row to reach a port where nothing listens, or a host that is unknown.
        self._closed_ports = 0
        # Since the last login: the reason in errors about the connection.
        self._last_error: Exception | None = None
        self._unsent: list[bytes] = []  # published during an outage

    def serve(self, subscriptions: Subscriptions, denied: Callable[[bool, str], None]) -> None:
        """Serve these subscriptions. To be called once, before `open`.

        `denied` is called with whether the server refuses a publish (or else a subscription), and
        with its subject in lower case.
        """
        self._subscriptions = subscriptions
        self._denied = denied
        scanner, deliver = subscriptions.scanner, subscriptions.deliver
        if self._over_websocket:
            self.wire = WebSocketWire(self, scanner, deliver)
        else:
            self.wire = TcpWire(self.options, self, scanner, deliver, subscriptions.pace)
        self.client = new_client(self.wire)
        self._servers = ServerPool(self.options.servers, self.client)

    @property
    def _over_websocket(self) -> bool:
        return self.options.servers[0].startswith("ws")

    @property
    def closed(self) -> bool:
        """Whether the connection was closed, or nats-py has given it up."""
        return self._ended or self.client.is_closed

    @property
    def is_up(self) -> bool:
        """Whether requests can be sent."""
        return self._logged_in and self.client.is_connected

    async def open(
        self, patience: float, find_file: Callable[[str], str], *, starting: bool
    ) -> None:
        """Connect within `patience` seconds, or raise why it is not possible: `Connection.open`."""
        seconds = self.options.connect_timeout
        self._starting = starting
        if patience <= seconds:  # the caller does not wait for the end of an outage
            self._tolerance = 0.0
        # An attempt leaves time for its error. A silent server also leaves time for the others. One
        # that has greeted has the whole time, because an authorization callout may take some.
        part = self.timing.attempt_share
        self.wire.most = part * seconds
        self.wire.patience = part * share(seconds, len(self.options.servers))
        self._read_files = functools.partial(connect_arguments, self.options, resolve=find_file)
        self._given = self._read_files()
        login_fields(self._given, "")  # raises for a missing library before a server is asked
        attempt = asyncio.ensure_future(self._connect(seconds))
        try:
            either: set[asyncio.Future[Any]] = {attempt, self._final}
            await asyncio.wait(either, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if self._final.done():
                raise self._final.result()
            if not attempt.done():
                servers = self.options.display_servers
                raise ConnectionFailed(
                    f"no NATS server could be reached at {servers} within {patience:g} s "
                    f"{advice.SERVERS}{self._reason()}"
                )
            try:
                await attempt
            except _TROUBLE as error:
                servers = f"{self.options.display_servers} {advice.SERVERS}"
                raise ConnectionFailed(
                    f"cannot connect to {servers}: {error_text(error)}"
                ) from None
            self._accepted()
            # Before the first message: a row that the account may not send has the connection
            # closed for good (test_the_limit_of_an_account_counts).
            await self._learn_limit()
        except BaseException:
            self._ended = True
            attempt.cancel()
            with contextlib.suppress(asyncio.CancelledError, *_TROUBLE):
                await attempt
            await self.close()
            raise

    async def _connect(self, seconds: float) -> None:
        """Let nats-py try until a server has accepted the login."""
        given = {name: value for name, value in self._given.items() if name not in _OURS}
        await self.client.connect(
            servers=list(self.options.servers),
            name=CONNECTION,
            connect_timeout=seconds,  # type: ignore[arg-type]  # a float will do
            # Without a limit: `_on_refused` and the caller's patience end the attempts.
            max_reconnect_attempts=-1,
            reconnect_time_wait=self.timing.between_attempts,  # type: ignore[arg-type]
            ping_interval=self.timing.ping_interval,  # type: ignore[arg-type]
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
            closed_cb=self._on_disconnected,
            **given,
        )

    async def close(self) -> None:
        """Close the connection for good.

        nats-py forgets the wire of a refused login (test_a_wrong_login), and waits for a peer that
        takes nothing before it lets anybody know
        (test_a_closed_connection_is_gone_whatever_its_peer_takes).
        """
        self._ended = True
        self._unsent.clear()
        goodbye = self.timing.goodbye
        giving_up = asyncio.get_running_loop().call_later(goodbye, self.wire.abort)
        # nats-py waits for a task of its own, which it may have cancelled.
        with contextlib.suppress(nats.errors.Error, OSError, asyncio.CancelledError):
            try:
                await self.client.close()
            finally:
                giving_up.cancel()
                self.wire.end()

    async def wait(self, patience: float) -> None:
        """Wait until the connection is up. Raises `ConnectionFailed` after `patience` seconds."""
        deadline = Deadline(patience)
        connection = f"the connection to {self.options.display_servers}"
        while not self.is_up:
            if self._final.done():
                # Several threads may wait,
                # and Python adds each traceback to the error that is raised.
                raise copy.copy(self._final.result())
            if self.client.is_closed:
                raise ConnectionFailed(f"{connection} was closed{self._reason()}")
            if deadline.expired:
                raise ConnectionFailed(
                    f"{connection} was lost and not made again within {patience:g} s"
                    f"{self._reason()}"
                )
            await asyncio.sleep(deadline.within(self.timing.look_again))

    async def ping(self, timeout: float) -> None:
        """Ping the server; open the connection again without an answer in time.

        With the answer the server has all that was published before, and all subscriptions. Raises
        `ConnectionFailed` without an answer, at a cut, which concerns no later connection, and at
        once while the connection is down.
        """
        if not self.is_up:
            raise ConnectionFailed(
                f"the connection to {self.options.display_servers} is down{self._reason()}"
            )
        try:
            # A busy machine may need a second, however short the caller's time is.
            await self.wire.ping(max(1.0, timeout))
        except _TROUBLE as error:
            if self.is_up:
                self._logged_in = False
                self.wire.abort()
                # The wire was aborted first:
                # over a dead one TLS would wait half a minute for the peer's goodbye.
                await self.client.force_reconnect()
            raise ConnectionFailed(
                f"the NATS server at {self.options.display_servers} does not answer"
            ) from error

    def publish(
        self, subject: str, payload: bytes, reply: str = "", headers: commands.Pairs = ()
    ) -> None:
        """Publish a message, which waits for the next login while the connection is down.

        Raises `ValueError` for a subject or header that no server accepts, and an error of nats-py
        for a message that is too large or a connection that was closed.
        """
        frame = commands.publish(subject, payload, reply, headers)
        # After a login the server tells its own limit, and only later that of the account.
        if len(payload) > self.server.most_bytes:
            raise nats.errors.MaxPayloadError
        if self.is_up:
            self.wire.send(frame)
        elif self.closed:
            raise nats.errors.ConnectionClosedError
        elif sum(map(len, self._unsent)) + len(frame) > _MOST_UNSENT:
            raise nats.errors.OutboundBufferLimitError
        else:
            self._unsent.append(frame)

    async def _learn_limit(self) -> None:
        """Ping the server: the answer comes after the limit of the account."""
        with contextlib.suppress(ConnectionFailed):
            await self.ping(self.options.request_timeout)

    def spellings(self, subject: str) -> tuple[str, ...]:
        """Return the names that the server may have for a published subject.

        It takes its own domain out first.
        """
        rest = subject.removeprefix(f"{self.options.api_prefix_resolved}.")
        if self.options.domain is None or rest == subject:
            return (subject,)
        if rest.startswith("$KV."):
            return subject, rest
        return subject, f"{DEFAULT_PREFIX}.{rest}"

    def _reason(self) -> str:
        for _, refusal in self._refusals.values():  # which says more than a server that is down
            return f": {refusal}"
        if self._last_error is None:
            return ""
        return f": {self._refusal(self._last_error) or error_text(self._last_error)}"

    def _refusal(self, error: Exception) -> JetStreamError | None:
        """Return the error for a refused connection that an error stands for, if it does."""
        return refusals.refusal(error, self.options, self._given, self.server.info)

    def _accepted(self) -> None:
        self._last_error = None
        self._refusals.clear()
        self._tolerance = self.timing.refused_for
        self._starting = True
        self._logged_in = True

    # Called by the wire: see `wire.Owner`

    def begin(self, uri: Any) -> dict[str, Any]:
        """Note an attempt to log in; return who logs in."""
        self.attempted = uri
        self.check_wanted()
        if self.client.is_reconnecting:
            # Files with credentials, keys and certificates may have been renewed. nats-py counts an
            # error as a failed attempt: test_a_login_that_is_withdrawn_or_renewed.
            self._given = self._read_files()
        return self._given

    def check_wanted(self) -> None:
        """End the task that connects if nobody wants the connection any more.

        It was cancelled, but before Python 3.12 `asyncio.wait_for` loses a cancellation that comes
        together with its result (test_a_closed_connection_logs_in_no_more,
        test_an_attempt_that_is_given_up_ends).
        """
        if self._ended:
            self.wire.end()
            raise asyncio.CancelledError

    def greet(self, info: dict[str, Any]) -> None:
        """Note the first INFO of a connection."""
        self.server.greet(info)
        self._servers.learn(info, self.attempted)

    def learn(self, info: dict[str, Any]) -> None:
        """Note another INFO."""
        self.server.learn(info)
        self._servers.learn(info, self.attempted)

    def confirm(self) -> None:
        """Note that the server has answered a ping."""
        self.server.confirm()

    def complain(self, error: ProtocolError) -> None:
        """Note that the server's bytes are malformed; the connection is cut next."""
        self._last_error = error

    def hear(self, text: str) -> bool:
        """Note an error that the server sent; return whether the connection goes on.

        The client connects again when the server ends its login, or has too many connections:
        another server of the cluster may still accept it.
        """
        self._note_error(nats.errors.Error(f"nats: {text}"))
        if refusals.ends_nothing(text):
            return True
        # Other errors end the connection for good:
        # a row that is too large would end the next one as well.
        if not refusals.may_pass(text):
            self._loop.start(self.close())
        return False

    # Callbacks of nats-py

    async def _on_error(self, error: Exception) -> None:
        self._note_error(error)

    async def _on_disconnected(self) -> None:
        self._logged_in = False
        servers = self.options.display_servers
        self._subscriptions.put_cut(f"the connection to {servers} was cut{self._reason()}")

    async def _on_reconnected(self) -> None:
        self.reconnects += 1
        # In this order: what was published may be answered at a subscription.
        if frames := b"".join((self._subscriptions.renew(), *self._unsent)):
            self.wire.send(frames)
        self._unsent.clear()
        self._accepted()
        # The server tells the limit of the account after the login;
        # until then the lower one counts.
        self._loop.start(self._learn_limit())

    # Errors that end the login for good

    def _note_error(self, error: Exception) -> None:
        """Note why an attempt has failed or the connection ends, and what the server refuses."""
        self._last_error = error
        refusal = self._refusal(error)
        if refusal is None:
            log.info("NATS connection: %s", error_text(error))
        else:
            self._on_refused(refusal)
        if denied := refusals.denied(str(error)):
            self._denied(*denied)
        self._count_closed_port(nowhere(error))

    def _count_closed_port(self, closed: str) -> None:
        """Count an attempt that has found no server, for the reason `closed`; "" begins anew."""
        if not closed:
            self._closed_ports = 0
            return
        self._closed_ports += 1
        # In a row: each server was tried since the last other failure.
        each = self._closed_ports >= len(self.client.servers)
        if each and not self._starting and not self._final.done():
            servers = self.options.display_servers
            self._final.set_result(
                ConnectionFailed(
                    f"no NATS server could be reached at {servers} {advice.SERVERS}: {closed}"
                )
            )

    def _on_refused(self, refusal: JetStreamError) -> None:
        """Count a refused login.

        The first one of a server counts: it may say that the server ended a login, and why.
        """
        log.info("%s", refusal)
        if self._tolerance and self._over_websocket and isinstance(refusal, WrongServer):
            # A proxy answers with any status while the server behind it is away.
            return
        again = self.attempted in self._refusals
        self._refusals.setdefault(self.attempted, (time.monotonic(), refusal))
        began, first = next(iter(self._refusals.values()))
        # A caller that does not wait for outages need not hear from servers that are down; each was
        # tried between two attempts at this one.
        enough = again and not self._tolerance
        # By server, not by number: one that refuses twice says nothing of another that restarts
        # (test_a_server_that_refuses_while_the_other_is_down_stops_nobody).
        by_each = self._refusals.keys() >= {*self.client.servers}
        lasted = time.monotonic() - began >= self._tolerance
        if self._final.done() or not lasted or not (by_each or enough):
            return
        self._final.set_result(first)
        # Or nats-py would log in four times a second without end. The next `connect` opens a new
        # connection.
        self._loop.start(self.close())
