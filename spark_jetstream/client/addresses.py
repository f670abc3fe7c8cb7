"""The addresses of a host: which one is tried first, and for how long."""

from __future__ import annotations

import asyncio
import functools
import socket
import time
from typing import Any

from spark_jetstream.client.deadline import Deadline, share
from spark_jetstream.client.reasons import NoAddress

Entry = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]
"""What `socket.getaddrinfo` says of an address; the last field is that of the socket."""


class Addresses:
    """The addresses of the servers of one connection.

    Those that brought no greeting when last tried are tried last. Nothing tells a dead address from
    a slow one before its time is over. So the addresses of a host share the time of an attempt to
    connect, and an address that accepts the connection and says nothing ends the attempt.
    """

    def __init__(self) -> None:
        # An address that has not greeted since -> when it was tried, on the monotonic clock.
        self._tried: dict[Any, float] = {}
        self.last: Any = None  # the address of the last try

    async def resolve(self, uri: Any, seconds: float) -> list[Entry]:
        """Return the addresses of a host, the best one first.

        Raises `OSError` and `asyncio.TimeoutError`.
        """
        of_host = functools.partial(
            socket.getaddrinfo, uri.hostname, uri.port, type=socket.SOCK_STREAM
        )
        try:
            # An address needs no thread of asyncio's executor, which would stay in each worker:
            # test_an_address_is_looked_up_without_a_thread.
            entries: Any = of_host(flags=socket.AI_NUMERICHOST)
        except socket.gaierror:  # a name, which a thread looks up
            resolving = asyncio.get_running_loop().run_in_executor(None, of_host)
            entries = await asyncio.wait_for(resolving, seconds)
        # The sort is stable: addresses that were never tried,
        # or have greeted, keep the resolver's order.
        return sorted(entries, key=lambda entry: self._tried.get(entry[-1], 0.0))

    async def connect(self, uri: Any, seconds: float) -> tuple[socket.socket, float]:
        """Return a socket that is connected to an address of a host.

        Also return the seconds in which its peer must greet. Raises `OSError` and
        `asyncio.TimeoutError`.
        """
        deadline = Deadline(seconds)
        failures: list[Exception] = []
        entries = await self.resolve(uri, seconds)
        while entries and not (failures and deadline.expired):
            patience = share(deadline.left, len(entries))
            try:
                return await self._connect(entries.pop(0), patience), patience
            except (OSError, asyncio.TimeoutError) as error:
                failures.append(error)
        if len(failures) == 1:
            raise failures[0]
        raise NoAddress(failures)

    async def connector(self, uri: Any, seconds: float) -> tuple[Any, float]:
        """Return a connector of aiohttp for one connection to a host.

        Also return the seconds in which its peer must greet. The connector tries the next address
        when one has not accepted for a quarter of a second. Raises what `connect` raises.
        """
        from aiohttp import TCPConnector  # noqa: PLC0415  # of the extra websocket
        from aiohttp.abc import AbstractResolver  # noqa: PLC0415

        entries = await self.resolve(uri, seconds)
        numeric = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV

        class Resolver(AbstractResolver):
            async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[Any]:
                common = {"hostname": host, "port": port, "flags": socket.AI_NUMERICHOST}
                return [
                    {
                        **common,
                        "host": socket.getnameinfo(address, numeric)[0],
                        "family": family,
                        "proto": protocol,
                    }
                    for family, _, protocol, _, address in entries
                ]

            async def close(self) -> None:
                pass

        self._try(entries[0][-1])
        return TCPConnector(resolver=Resolver(), use_dns_cache=False), share(seconds, len(entries))

    def greeted(self) -> None:
        """Note that the address that was tried last has greeted."""
        self._tried.pop(self.last, None)

    def _try(self, address: Any) -> None:
        self.last = address
        self._tried[address] = time.monotonic()

    async def _connect(self, entry: Entry, seconds: float) -> socket.socket:
        *kind, _, address = entry
        self._try(address)
        wire = socket.socket(*kind)
        try:
            wire.setblocking(False)
            await asyncio.wait_for(asyncio.get_running_loop().sock_connect(wire, address), seconds)
        except BaseException:
            wire.close()
            raise
        return wire
