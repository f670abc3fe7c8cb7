"""Replacements for parts of nats-py. The only module that relies on its private attributes and error texts.

docs/architecture.md says why ("Why nats-py's parser is replaced"). A workaround names the test that tries it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import re
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import nats.errors
from nats.aio.client import Client, __version__
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport, WebSocketTransport

from spark_jetstream.client.addresses import Addresses
from spark_jetstream.client.auth import Credentials, mistrust
from spark_jetstream.client.deadline import Deadline
from spark_jetstream.client.greeting import (
    Greeting,
    NotNats,
    answer_of,
    first_line,
    not_nats,
    plain_error,
)
from spark_jetstream.client.reasons import error_text
from spark_jetstream.client.socket_reader import SocketProtocol, SocketReader
from spark_jetstream.errors import (
    AuthenticationFailed,
    JetStreamError,
    ProtocolError,
    UntrustedServer,
    WrongServer,
)
from spark_jetstream.options import ConnectionOptions, advice
from spark_jetstream.protocol.incoming import Incoming
from spark_jetstream.protocol.server_info import checked_info
from spark_jetstream.protocol.wire import MAX_FRAME, ApiReply, Event, Frames, Scanner, Status

log = logging.getLogger(__name__)

RELEASES = "nats-py>=2.15,<2.17"
"""The releases that have all of `PARTS`; pyproject.toml names the same."""
PARTS = {
    "Client": "force_reconnect _ps.parse _ps.reset _transport _server_info _process_err _process_op_err _error_cb "
    "_connect_to_server _user_credentials _nkeys_seed_str _setup_nkeys_connect _user_jwt_cb _signature_cb "
    "_pongs _process_info _max_payload _process_pong _reading_task _ping_interval_task _flusher_task _pending "
    "_pending_data_size _server_pool _current_server",
    "Subscription": "_id",
    "TcpTransport": "_io_reader _io_writer",
    "WebSocketTransport": "_ws _client _using_tls _close_task",
}
"""What the connector needs of these classes. docs/architecture.md says for what ("What is private in nats-py")."""
TROUBLE = (AttributeError, LookupError, TypeError, ValueError)
"""What nats-py raises, beside its own errors, when a server sends what it does not know."""

_MOST_UNREAD = 2 << 20  # bytes
_LONG_LINE = f"the server sent a line of more than {_MOST_UNREAD:,} bytes, which is not NATS"
_GOODBYE = 2.0  # seconds to send what is buffered before a lost connection is given up
_LONGEST_WS_MESSAGE = 2 * MAX_FRAME
_REFUSED = re.compile(
    r"authorization violation|((?:user|account) authentication (?:expired|revoked))", re.IGNORECASE
)
_TOO_MANY = re.compile(r"maximum (account active )?connections exceeded", re.IGNORECASE)
_ALERT = re.compile(
    r"\[SSL: \w*alert[ _](unknown[ _]ca|[a-z_ ]*certificate[a-z_ ]*)", re.IGNORECASE
)
_NO_TLS = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"}
"""What OpenSSL calls an answer in plain text; the second since 3.2."""
_PLAIN = f"the server does not begin with TLS, which {advice.TLS_FIRST} or a wss:// URL asks for"
_DENIED = re.compile(
    r'permissions violation for (publish|subscription) to "([^"]*)"', re.IGNORECASE
)


class LastingClient(Client):
    """A client of nats-py with our own parser and transport. What malformed bytes of a server are goes to `complain`.

    Messages that `scanner` collects go to `deliver`. Each error of the server goes to nats-py's `error_cb`. The client
    connects again when the server ends its login, or has too many connections, where nats-py closes the connection for
    good: another server of the cluster may still accept it. Files with credentials, keys and certificates may have been
    renewed: each login but the first reads them again, with `read_login`, which returns arguments of
    nats-py. Raises `JetStreamError` if nats-py lacks one of `PARTS`.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        scanner: Scanner,
        deliver: Callable[[Frames | Status | ApiReply], None],
        complain: Callable[[ProtocolError], None],
        pace: Callable[[], float],
    ) -> None:
        _require("Client", Client())
        super().__init__()
        _require("Subscription", Subscription(self))
        self._scheme = options.servers[0].partition(":")[0]
        web = self._scheme in ("ws", "wss")
        parser = BulkParser(self._ps, scanner, deliver, complain)
        self._ps = parser  # type: ignore[assignment]
        self.wire = (
            CheckedWebSocket(parser.pass_on)
            if web
            else BulkTransport(options.requires_tls, pace, parser.pass_on)
        )
        _require("WebSocketTransport" if web else "TcpTransport", self.wire)
        self.read_login: Callable[[], dict[str, Any]] = dict
        self._transport = self.wire
        self.most_bytes = sys.maxsize
        """The largest message that the server accepts. The server tells the limit of the account after the login, so a
        greater one than before counts from the answer to a ping on."""
        self.ended = False  # nobody wants the connection any more
        self.attempted: Any = None  # the URL of the server of the last attempt, one of `servers`

    def send(self, frames: bytes | memoryview) -> Coroutine[Any, Any, None] | None:
        """Send frames now, and not through nats-py's buffer, which it sends over the next connection.

        Returns what must run to send them, if the transport does not do so by itself.
        """
        self.push()
        self.wire.write(frames)
        return None if isinstance(self.wire, BulkTransport) else _drain(self.wire)

    def push(self) -> None:
        """Send now what nats-py has buffered, before what goes past it: nats-py waits until a full wire takes more.

        For that, test_no_publish_overtakes_its_subscription and test_no_ping_overtakes_a_subscription.
        """
        if self._pending:
            self.wire.writelines(self._pending)
            self._pending, self._pending_data_size = [], 0

    def abort(self) -> None:
        """Close a connection over a dead wire, so that nats-py need not wait for the peer."""
        if isinstance(self.wire, BulkTransport):
            self.wire.abort()

    def fail_pings(self) -> None:
        """End the pings whose answers a cut has lost (test_a_ping_over_a_former_connection_cuts_no_other)."""
        for pong in self._pongs:
            if not pong.done():
                pong.set_exception(nats.errors.ConnectionClosedError())
                pong.exception()  # or asyncio complains about one that nobody awaits

    async def close(self) -> None:
        """Close the connection for good.

        nats-py forgets the wire of a refused login (test_a_wrong_login), and waits for a peer that takes nothing before
        it lets anybody know (test_a_closed_connection_is_gone_whatever_its_peer_takes).
        """
        self.ended = True
        if not self.is_connected:
            # A login that is not complete must not carry it: test_closing_during_a_login_sends_nothing_in_the_clear
            self._pending, self._pending_data_size = [], 0
        giving_up = asyncio.get_running_loop().call_later(_GOODBYE, self.abort)
        try:
            await super().close()
        finally:
            giving_up.cancel()
            self.wire.end()

    async def _connect_to_server(self, s: Any) -> None:
        if s.discovered and isinstance(self.wire, CheckedWebSocket):
            # nats-py makes nats:// URLs of those that a server announces: test_another_server_over_websocket
            s.uri = s.uri._replace(scheme=self._scheme)
        self.attempted = s.uri
        if self.is_reconnecting:
            # A login whose first ping had no answer has left them: test_a_login_that_is_not_confirmed_leaves_no_task
            for task in (self._reading_task, self._ping_interval_task, self._flusher_task):
                if task is not None:
                    task.cancel()
            # nats-py counts an error as a failed attempt: test_a_login_that_is_withdrawn_or_renewed
            login = self.read_login()
            self._user_credentials, self._nkeys_seed_str = (
                login.get("user_credentials"),
                login.get("nkeys_seed_str"),
            )
            if self._user_credentials or self._nkeys_seed_str:
                self._setup_nkeys_connect()
            if "tls" in login:
                self.options["tls"] = login["tls"]
        self._check_wanted()
        await super()._connect_to_server(s)
        self._check_wanted()

    def _setup_nkeys_connect(self) -> None:
        given: Any = self._user_credentials
        if isinstance(given, Credentials) and not given.has_seed:
            # nats-py would look for the seed: test_a_right_login
            self._user_jwt_cb = functools.partial(bytearray, given.jwt.encode())
            self._signature_cb = _no_signature
        else:
            super()._setup_nkeys_connect()

    def _check_wanted(self) -> None:
        """End the task that connects if nobody wants the connection any more.

        It was cancelled, but before Python 3.12 `asyncio.wait_for` loses a cancellation that comes together with its
        result (test_a_closed_connection_logs_in_no_more, test_an_attempt_that_is_given_up_ends).
        """
        if self.ended:
            self.wire.end()
            raise asyncio.CancelledError

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        await super()._process_info(info, initial_connection)
        if urls := info.get("connect_urls"):
            # nats-py tries each for ever: test_servers_that_have_left_a_cluster_are_forgotten
            self._server_pool = [
                known
                for known in self._server_pool
                if not known.discovered or known is self._current_server or known.uri.netloc in urls
            ]
        # nats-py leaves what changes after the login: test_the_limit_of_an_account_counts
        self._server_info = {**self._server_info, **info}
        self._max_payload = self._server_info["max_payload"]
        self.most_bytes = min(self.most_bytes, self._max_payload)

    async def _process_pong(self) -> None:
        if self._pongs and self._pongs[0].done():
            # nobody waits any more: test_the_answer_to_a_ping_that_was_given_up
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()
        self.most_bytes = self._max_payload

    async def _process_err(self, err_msg: str) -> None:
        if "permissions violation" in err_msg:  # the connection goes on
            await super()._process_err(err_msg)
            return
        text = err_msg.strip("'")
        error = nats.errors.Error(f"nats: {text}")
        await self._error_cb(error)
        if _REFUSED.search(text) or _TOO_MANY.fullmatch(text):
            # test_a_login_that_is_withdrawn_or_renewed, test_too_many_connections_may_pass
            await self._process_op_err(error)
        else:
            await super()._process_err(err_msg)
        self.abort()  # or what breaks next hides what the server said


def _no_signature(nonce: str) -> bytes:
    """Return what a login has for a signature with a JWT that is a bearer token."""
    return b""


def _require(owner: str, value: object) -> None:
    """Raise `JetStreamError` if an object of this class lacks one of its `PARTS`."""
    for part in PARTS[owner].split():
        try:
            attrgetter(part)(value)
        except AttributeError:
            raise JetStreamError(
                f"nats-py {__version__} has no {owner}.{part}, which spark-jetstream needs: pip install '{RELEASES}'"
            ) from None


def server_info(client: Client) -> dict[str, Any]:
    """Return the INFO that the server sent last."""
    return dict(client._server_info)


def number_of(subscription: Subscription) -> int:
    """Return the number of a subscription on the wire."""
    return subscription._id


async def _drain(transport: Any) -> None:
    # A lost connection is noticed where it is read. nats-py also sets to None what a WebSocket writes to.
    with contextlib.suppress(OSError, RuntimeError, AttributeError):
        await transport.drain()


@dataclass(eq=False)
class BulkParser:
    """Replaces nats-py's parser; has the same two methods. See `LastingClient`."""

    _library: Any
    _scanner: Scanner
    _deliver: Callable[[Frames | Status | ApiReply], None]
    _complain: Callable[[ProtocolError], None]

    def reset(self) -> None:
        """Forget what the library's parser knows; a half-received frame belongs to its connection."""
        self._library.reset()

    async def parse(self, incoming: Incoming) -> None:
        """Read what the server sent. After a `ProtocolError` nats-py connects anew, and readers start over."""
        try:
            events: list[Event] = self._scanner.read(incoming)
            for event in events:
                if isinstance(event, bytes):
                    await self.pass_on(event)
                else:
                    self._deliver(event)
        except ProtocolError as error:
            log.warning("closing the connection: %s", error)
            self._complain(error)
            raise nats.errors.ProtocolError() from error

    async def pass_on(self, frames: bytes) -> None:
        """Let nats-py read frames. Raises `ProtocolError` for malformed ones."""
        if frames.startswith(b"INFO"):
            frames = checked_info(frames)
        elif frames.startswith(b"-ERR"):
            frames = plain_error(frames)
        try:
            await self._library.parse(frames)
        except TROUBLE as error:
            raise ProtocolError(
                f"nats-py cannot read what the server sent: {error_text(error)}"
            ) from error


class NotEncrypted(ConnectionRefusedError):
    """The server does not offer TLS, or not at once. An OSError, so that nats-py counts a failed attempt."""


class _Beginning:
    """The part of a transport that handles the beginning of a connection.

    `most` is the time in seconds for an attempt to connect and to log in, `patience` that for the greeting of a server.
    nats-py gives up later, and cannot say why. `learn` is called with each INFO that follows the greeting during the
    login.
    """

    most: float = math.inf
    patience: float = math.inf

    def __init__(self, learn: Callable[[bytes], Awaitable[None]]) -> None:
        super().__init__()
        self._learn = learn
        self._addresses = Addresses()

    def _begin(self, server: str, seconds: float) -> float:
        """Begin an attempt with a server (host:port), as long as nats-py allows; return the time for its greeting."""
        self._attempt = Deadline(min(seconds, self.most))
        self._greeting = Greeting(server, self._say, self._learn)
        return min(seconds, self.patience)

    async def _say(self, payload: bytes) -> None:
        """Send bytes now: what nats-py has buffered waits for the end of the login."""
        transport: Any = self
        transport.write(payload)
        await _drain(transport)


class BulkTransport(_Beginning, TcpTransport):
    """nats-py's TCP and TLS transport, which receives in place: reads of 32 KiB cost five times the CPU.

    With `requires_tls` it sends nothing before the connection is encrypted: nats-py would send credentials in plain
    text when a `tls://` server does not ask for TLS. It waits so many seconds between two reads as `pace` returns.
    """

    def __init__(
        self,
        requires_tls: bool,
        pace: Callable[[], float],
        learn: Callable[[bytes], Awaitable[None]],
    ) -> None:
        super().__init__(learn)
        self._requires_tls = requires_tls
        self.pace = pace
        self._last_read = 0.0  # when, on the monotonic clock: for the pace

    def __bool__(self) -> bool:
        return True  # or nats-py takes it for one that is missing, before it is connected

    async def connect(self, uri: Any, buffer_size: int, connect_timeout: float) -> None:
        """Open the connection, without TLS."""
        self.abort()  # nats-py leaves what a failed attempt has opened
        protocol = SocketProtocol(SocketReader(_MOST_UNREAD))
        patience = self._begin(uri.netloc, connect_timeout)
        wire, patience = await self._addresses.connect(uri, patience)
        self._at = uri.netloc, self._addresses.last[:2], patience
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: protocol, sock=wire
        )
        self._secured = False  # set by `connect_tls`: what TLS protects may be sent
        self._take_over(protocol, transport)

    async def connect_tls(
        self, uri: Any, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: float
    ) -> None:
        """Begin TLS over the open connection. Raises `NotEncrypted` if the server spoke first, where TLS should."""
        plain: Any = self._io_writer
        before: Any = self._io_reader
        protocol = SocketProtocol(SocketReader(_MOST_UNREAD), plain)
        hostname = uri if isinstance(uri, str) else uri.hostname

        async def start() -> asyncio.Transport | None:
            # In the task of `wait_for`, since a greeting may come before it begins.
            if len(before.incoming) and not self._greeting.greeted:
                raise NotEncrypted(_PLAIN)
            loop = asyncio.get_running_loop()
            return await loop.start_tls(
                plain.transport, protocol, ssl_context, server_hostname=hostname
            )

        patience = self._attempt.left if self._greeting.greeted else self._at[-1]
        try:
            transport: Any = await asyncio.wait_for(start(), patience)
        except BaseException:
            self.abort()
            self._io_reader = self._io_writer = None  # nobody tells the plain connection of its end
            raise
        protocol.connection_made(transport)
        self._take_over(protocol, transport)
        self._secured = True

    def _take_over(self, protocol: SocketProtocol, transport: asyncio.WriteTransport) -> None:
        """Read and write with these from now on."""
        self._io_reader: Any = protocol.reader
        self._io_writer = asyncio.StreamWriter(
            transport, protocol, None, asyncio.get_running_loop()
        )

    def write(self, payload: bytes | memoryview) -> None:
        """Buffer bytes to send. Raises `NotEncrypted` when TLS is required and has not begun."""
        if self._requires_tls and not self._secured:
            raise NotEncrypted(
                "TLS is asked for (a tls:// URL or a tls option), and the server offers none"
            )
        plain: Any = self._io_writer
        plain.write(payload)

    def writelines(self, payload: list[bytes]) -> None:
        """Buffer all of these as `write` does."""
        self.write(b"".join(payload))

    async def read(self, buffer_size: int) -> Incoming:  # type: ignore[override]  # for `BulkParser`
        """Return what the server has sent."""
        reader: Any = self._io_reader
        if (pace := self.pace()) and (early := self._last_read + pace - time.monotonic()) > 0:
            await asyncio.sleep(early)
        incoming: Incoming = await reader.read()
        self._last_read = time.monotonic()
        return incoming

    async def readline(self) -> bytes:
        """Return a line of the greeting."""
        reader: Any = self._io_reader
        plain = not self._secured
        try:
            if self._greeting.greeted:
                return await self._greeting.login(reader.readline, self._attempt.left)
            line = self._greeting.check(
                await first_line(reader, *self._at, plain=plain), plain=plain
            )
        except ValueError as error:  # for a line of more than `_MOST_UNREAD` bytes
            raise NotNats(_LONG_LINE) from error
        self._addresses.greeted()
        return line

    async def drain(self) -> None:
        """Wait until the buffer has room."""
        # Reading notices a lost connection too. Raised here it would stop nats-py in the middle of closing:
        # test_a_wire_that_went_dead.
        with contextlib.suppress(ConnectionError):
            await super().drain()  # type: ignore[no-untyped-call]

    def at_eof(self) -> bool:
        """Whether the server has closed the connection."""
        return self._io_reader is None or bool(self._io_reader.at_eof())

    async def wait_closed(self) -> None:
        """Wait until the buffer is sent, at most four seconds: a peer that reads nothing must not block the client.

        For that, test_closing_does_not_wait_for_a_peer_that_takes_nothing.
        """
        closing = asyncio.ensure_future(super().wait_closed())  # type: ignore[no-untyped-call]
        # asyncio complains on standard error about a task whose exception was not retrieved.
        closing.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            await asyncio.wait([closing], timeout=_GOODBYE)
            if not closing.done():
                self.abort()
                await asyncio.wait([closing], timeout=_GOODBYE)
        finally:
            closing.cancel()
        if closing.done():
            closing.result()

    def abort(self) -> None:
        """Close at once: over a dead wire TLS would wait half a minute for the peer to say goodbye."""
        if self._io_writer is not None:
            self._io_writer.transport.abort()

    end = abort


class CheckedWebSocket(_Beginning, WebSocketTransport):
    """nats-py's WebSocket, which checks the greeting, and bounds what the server may send in one message."""

    def __bool__(self) -> bool:
        return True  # or nats-py puts one of its own in its place

    async def connect(self, uri: Any, buffer_size: int, connect_timeout: float) -> None:
        """Open the WebSocket, without TLS."""
        await self._open(uri, connect_timeout)

    async def connect_tls(
        self, uri: Any, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: float
    ) -> None:
        """Open the WebSocket with TLS."""
        if self._ws is None or self._ws.closed:
            await self._open(uri, connect_timeout, ssl=ssl_context)
        else:  # nats-py asks once more after INFO
            await super().connect_tls(uri, ssl_context, buffer_size, int(connect_timeout))

    async def _open(self, uri: Any, connect_timeout: float, **tls: ssl.SSLContext) -> None:
        from aiohttp import ClientResponseError, ClientSession  # noqa: PLC0415  # of the extra websocket

        if self._client is not None:
            await self._client.close()
        patience = self._begin(uri.netloc, connect_timeout)
        connector, self._most_quiet = await self._addresses.connector(uri, patience)
        session: Any = ClientSession(connector=connector)
        self._client = session
        opening = session.ws_connect(uri.geturl(), max_msg_size=_LONGEST_WS_MESSAGE, **tls)
        try:
            self._ws = await asyncio.wait_for(opening, self._most_quiet)
        except (
            ssl.SSLError
        ) as error:  # aiohttp's own, without what the one below it says of the certificate
            raise (error.__cause__ or error) from None
        except ClientResponseError as error:
            answer = b"" if tls else await answer_of((uri.hostname, uri.port), patience)
            status = (
                b"HTTP/1.1 %d" % error.status if error.headers else answer or error.message.encode()
            )
            raise not_nats(uri.netloc, status, answer, web=True) from None
        self._using_tls = bool(tls)
        self._incoming = Incoming()

    def close(self) -> None:
        """Close the WebSocket and its session."""

        async def end(*opened: Any) -> None:
            for each in filter(None, opened):
                await each.close()

        self._close_task = asyncio.ensure_future(end(self._ws, self._client))

    def end(self) -> None:
        """Close what nats-py has not closed."""
        session: Any = self._client
        if session is not None:
            self.close()

    async def readline(self) -> bytes:
        """Return a line of the greeting."""
        if self._greeting.greeted:
            return await self._greeting.login(self._line, self._attempt.left)
        line = self._greeting.check(await asyncio.wait_for(self._line(), self._most_quiet))
        self._addresses.greeted()
        return line

    async def _line(self) -> bytes:
        """Return the next line, which several messages may hold; at the end of the connection, what is left."""
        while (line := self._incoming.line()) is None:
            if len(self._incoming) > _MOST_UNREAD:
                raise NotNats(_LONG_LINE)
            message = await super().readline()  # type: ignore[no-untyped-call]
            if not message:
                return self._incoming.rest()
            self._incoming.add(message)
        return line

    async def read(self, buffer_size: int) -> Incoming:  # type: ignore[override]  # for `BulkParser`
        """Return what the server has sent, with the next WebSocket message."""
        if not self._incoming.ready:
            self._incoming.add(await super().readline())  # type: ignore[no-untyped-call]
        return self._incoming


def refusal(error: Exception, client: Client, options: ConnectionOptions) -> JetStreamError | None:
    """Return the error for a refused connection that an error of nats-py stands for; None when it is no refusal.

    TLS 1.3 completes on the client's side before the server has looked at the client's certificate: the server's
    refusal arrives as an alert, or as nothing but a broken connection when data is on its way.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return UntrustedServer(
            f"the certificate of {options.display_servers} is not trusted {advice.AUTHORITY}: "
            f"{mistrust(error, options)}"
        )
    plain = isinstance(error, ssl.SSLError) and error.reason in _NO_TLS
    if isinstance(error, NotEncrypted) or plain:
        return UntrustedServer(
            f"cannot connect to {options.display_servers}: {_PLAIN if plain else error}"
        )
    alert = (
        _ALERT.search(str(error)) if isinstance(error, OSError) else None
    )  # aiohttp has its own class
    if options.tls_cert_file is None and options.tls_cert_pem is None:
        asked = client._server_info.get("tls_verify")
        if alert or (asked and isinstance(error, (BrokenPipeError, ConnectionResetError))):
            return AuthenticationFailed(
                f"the NATS server at {options.display_servers} demands a client certificate {advice.CLIENT_CERTIFICATE}"
            )
    elif alert:
        return AuthenticationFailed(
            f"the NATS server at {options.display_servers} refused the client certificate {advice.CLIENT_CERTIFICATE}: "
            f"{alert[1].replace('_', ' ').lower()}"
        )
    if isinstance(error, NotNats) and error.final:
        return WrongServer(f"{error} {advice.SERVERS}")
    refused = _REFUSED.search(str(error))
    if isinstance(error, nats.errors.AuthorizationError) or refused:
        given: Any = client._user_credentials
        why = f": {refused[1].lower()}" if refused and refused[1] else ""
        return AuthenticationFailed(
            f"the NATS server at {options.display_servers} refused the credentials ({options.authentication_options})"
            f"{(given.ended if isinstance(given, Credentials) else '') or why}"
        )
    return None


def denied(error: Exception) -> tuple[bool, str] | None:
    """Return whether an error of nats-py is a refused publish (or else subscription), and its subject in lower case."""
    match = _DENIED.search(str(error))
    return None if match is None else (match[1].lower() == "publish", match[2].lower())
