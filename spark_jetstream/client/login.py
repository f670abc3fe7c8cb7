"""The login of a connection: made, refused, cut, and made again. Everything here runs on the event loop's thread.

A connection is in one of four states. nats-py makes the attempts, and what it calls back moves the connection on:

| state   | what holds then      | what ends it                                                               |
|---------|----------------------|----------------------------------------------------------------------------|
| opening | `open` waits         | a login: up; a reason that is final, or no login in time: ended            |
| up      | `Login.is_up`        | a cut, or no answer to `ping`: down; an error that will not pass: ended    |
| down    | nats-py tries on     | a login: up, and `reconnects` is one more; a reason that is final: ended   |
| ended   | `client.is_closed`   | nothing; the pool opens another connection                                 |

Final is a refusal by each server, once refusals have lasted `_REFUSED_FOR` seconds: a server that restarts, or reloads
its configuration, refuses logins for less. A server that is down may accept the login. Before the first login a refusal
by each that is up is final at once, unless the caller waits for the end of an outage. An answer that is not NATS is a
refusal; but a proxy for WebSocket gives one while the server behind it is away, so a caller that waits goes on. Where
no server is starting, closed ports or unknown hosts of all servers are final as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import logging
import time
from collections.abc import Callable
from typing import Any

import nats.errors

from spark_jetstream.client import nats_py
from spark_jetstream.client.auth import connect_arguments
from spark_jetstream.client.deadline import Deadline, share
from spark_jetstream.client.loop import Loop
from spark_jetstream.client.nats_py import LastingClient
from spark_jetstream.client.reasons import error_text, nowhere
from spark_jetstream.errors import ConnectionFailed, JetStreamError, ProtocolError, WrongServer
from spark_jetstream.options import ConnectionOptions, advice
from spark_jetstream.protocol.conventions import CONNECTION
from spark_jetstream.protocol.jsapi import DEFAULT_PREFIX

log = logging.getLogger(__name__)

_LOOK_AGAIN = 0.01  # seconds
_REFUSED_FOR = 5.0  # seconds
_SHARE = 0.9  # of `connect_timeout` for an attempt


class Login:
    """The login of one client.

    `cut` is called with the reason when the connection is lost; `denied` with whether a publish (or else a
    subscription) is not permitted, and with its subject in lower case. Of its thirteen attributes five are given, and
    the others are one account: of the logins, and of what has failed since the last one.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        loop: Loop,
        cut: Callable[[str], None],
        denied: Callable[[bool, str], None],
    ) -> None:
        self.options = options
        self.client: LastingClient  # set once, by `Connection`
        self.reconnects = 0  # logins but the first
        self._loop = loop
        self._cut = cut
        self._denied = denied
        # What is final: `open` says so for the time before the first login.
        self._tolerance = _REFUSED_FOR  # seconds that refusals must have lasted
        self._starting = True  # whether closed ports may be those of servers that start
        self._logged_in = (
            False  # set by a login, cleared by a cut; nats-py knows of a cut before it calls back
        )
        self._final: asyncio.Future[JetStreamError] = (
            loop.loop.create_future()
        )  # why no login can succeed any more
        self._refusals: dict[
            Any, tuple[float, JetStreamError]
        ] = {}  # of each server, the first since the last login
        self._closed_ports = (
            0  # attempts in a row to reach a port where nothing listens, or a host that is unknown
        )
        self._last_error: Exception | None = (
            None  # since the last login: the reason in errors about the connection
        )

    @property
    def is_up(self) -> bool:
        """Whether requests can be sent."""
        return self._logged_in and self.client.is_connected

    async def open(
        self, patience: float, find_file: Callable[[str], str], *, starting: bool
    ) -> None:
        """Connect within `patience` seconds, or raise why that is not possible: see `Connection.open`."""
        seconds = self.options.connect_timeout
        self._starting = starting
        if patience <= seconds:  # the caller does not wait for the end of an outage
            self._tolerance = 0.0
        # An attempt leaves time for its error. A silent server also leaves time for the others. One that has greeted
        # has the whole time, because an authorization callout may take some.
        self.client.wire.most = _SHARE * seconds
        self.client.wire.patience = _SHARE * share(seconds, len(self.options.servers))
        self.client.read_login = functools.partial(
            connect_arguments, self.options, resolve=find_file
        )
        attempt = asyncio.ensure_future(
            self.client.connect(
                servers=list(self.options.servers),
                name=CONNECTION,
                connect_timeout=seconds,  # type: ignore[arg-type]  # a float will do
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.25,  # type: ignore[arg-type]
                ping_interval=20,
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
                closed_cb=self._on_disconnected,
                **self.client.read_login(),
            )
        )
        try:
            either: set[asyncio.Future[Any]] = {attempt, self._final}
            await asyncio.wait(either, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if self._final.done():
                raise self._final.result()
            if not attempt.done():
                raise ConnectionFailed(
                    f"no NATS server could be reached at {self.options.display_servers} within {patience:g} s "
                    f"{advice.SERVERS}{self._reason()}"
                )
            try:
                await attempt
            except (nats.errors.Error, OSError, asyncio.TimeoutError, *nats_py.TROUBLE) as error:
                raise ConnectionFailed(
                    f"cannot connect to {self.options.display_servers} {advice.SERVERS}: {error_text(error)}"
                ) from None
            self._accepted()
            await self._learn_limit()
        except BaseException:
            self.client.ended = True
            attempt.cancel()
            with contextlib.suppress(
                asyncio.CancelledError, nats.errors.Error, OSError, *nats_py.TROUBLE
            ):
                await attempt
            await self.close()
            raise

    async def close(self) -> None:
        """Close the connection for good."""
        # nats-py waits for a task of its own, which it may have cancelled.
        with contextlib.suppress(nats.errors.Error, OSError, asyncio.CancelledError):
            await self.client.close()

    async def wait(self, patience: float) -> None:
        """Wait until the connection is up. Raises `ConnectionFailed` after `patience` seconds."""
        deadline = Deadline(patience)
        while not self.is_up:
            if self._final.done():
                raise copy.copy(self._final.result())
            if self.client.is_closed:
                raise ConnectionFailed(
                    f"the connection to {self.options.display_servers} was closed{self._reason()}"
                )
            if deadline.expired:
                raise ConnectionFailed(
                    f"the connection to {self.options.display_servers} was lost and not made again within "
                    f"{patience:g} s{self._reason()}"
                )
            await asyncio.sleep(deadline.within(_LOOK_AGAIN))

    async def ping(self, timeout: float) -> None:
        """Ping the server; without an answer in time, open the connection again and raise `ConnectionFailed`.

        With the answer the server has all that was published before, and all subscriptions. Raises the error at once
        while the connection is down, and at a cut, which concerns no later connection.
        """
        if not self.is_up:
            raise ConnectionFailed(
                f"the connection to {self.options.display_servers} is down{self._reason()}"
            )
        try:
            self.client.push()
            # Not `flush`, which may send nothing: test_nothing_is_confirmed_during_an_outage
            await self.client.rtt(timeout=max(1, round(timeout)))
        except (nats.errors.Error, asyncio.TimeoutError, OSError) as error:
            if self.is_up:
                self._logged_in = False
                self.client.abort()
                await self.client.force_reconnect()
            raise ConnectionFailed(
                f"the NATS server at {self.options.display_servers} does not answer"
            ) from error

    async def _learn_limit(self) -> None:
        """Ping the server: its answer comes after the limit of the account (`LastingClient.most_bytes`)."""
        with contextlib.suppress(ConnectionFailed):
            await self.ping(self.options.request_timeout)

    def spellings(self, subject: str) -> tuple[str, ...]:
        """Return the names that the server may have for a published subject: it takes its own domain out first."""
        rest = subject.removeprefix(f"{self.options.api_prefix_resolved}.")
        if self.options.domain is None or rest == subject:
            return (subject,)
        return subject, rest if rest.startswith("$KV.") else f"{DEFAULT_PREFIX}.{rest}"

    def complain(self, error: ProtocolError) -> None:
        """Note that the server's bytes are malformed; the connection is cut next."""
        self._last_error = error

    def _reason(self) -> str:
        for _, refusal in self._refusals.values():  # which says more than a server that is down
            return f": {refusal}"
        if self._last_error is None:
            return ""
        return f": {nats_py.refusal(self._last_error, self.client, self.options) or error_text(self._last_error)}"

    def _accepted(self) -> None:
        self._last_error = None
        self._refusals.clear()
        self._tolerance, self._starting = _REFUSED_FOR, True
        self._logged_in = True

    # Callbacks of nats-py

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error
        refusal = nats_py.refusal(error, self.client, self.options)
        if refusal is None:
            log.info("NATS connection: %s", error_text(error))
        else:
            self._on_refused(refusal)
        if denied := nats_py.denied(error):
            self._denied(*denied)
        closed = nowhere(error)
        self._closed_ports = self._closed_ports + 1 if closed else 0
        if (
            not self._starting
            and not self._final.done()
            and self._closed_ports >= len(self.client.servers)
        ):
            self._final.set_result(
                ConnectionFailed(
                    f"no NATS server could be reached at {self.options.display_servers} {advice.SERVERS}: {closed}"
                )
            )

    def _on_refused(self, refusal: JetStreamError) -> None:
        """Count a refused login. The first one counts: it may say that the server ended a login, and why."""
        log.info("%s", refusal)
        if (
            self._tolerance
            and isinstance(refusal, WrongServer)
            and self.options.servers[0].startswith("ws")
        ):
            return  # a proxy for WebSocket answers with any status while the server behind it is away
        again = self.client.attempted in self._refusals
        self._refusals.setdefault(self.client.attempted, (time.monotonic(), refusal))
        began, first = next(iter(self._refusals.values()))
        # Who waits for no outage needs no answer of a server that is down: it had its turn between two of this one.
        by_each = self._refusals.keys() >= {*self.client.servers} or (again and not self._tolerance)
        if self._final.done() or not by_each or time.monotonic() - began < self._tolerance:
            return
        self._final.set_result(first)
        # Or nats-py would log in four times a second without end. The next `connect` opens a new connection.
        self._loop.start(self.close())

    async def _on_disconnected(self) -> None:
        self._logged_in = False
        self.client.fail_pings()
        self._cut(f"the connection to {self.options.display_servers} was cut{self._reason()}")

    async def _on_reconnected(self) -> None:
        self.reconnects += 1
        self._accepted()
        self._loop.start(self._learn_limit())
