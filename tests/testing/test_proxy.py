"""The proxy that breaks the wires of other tests leaves none of its own open."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from urllib.parse import urlsplit

from tests.support.proxy import WireProxy


def test_a_connection_that_comes_as_the_port_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        proxy = WireProxy(f"nats://127.0.0.1:{silent.getsockname()[1]}").start()
        held, goes_on = threading.Event(), threading.Event()

        def hold() -> None:
            held.set()
            goes_on.wait()

        proxy._loop.call_soon_threadsafe(hold)
        # A loop that begins its turn later may cancel the connection's callback before it was
        # called.
        assert held.wait(60)
        port = urlsplit(proxy.url).port
        with socket.create_connection(("127.0.0.1", port or 0)):
            assert proxy._listener is not None
            # The kernel may know of the connection later than its client does.
            assert select.select(proxy._listener.sockets, [], [], 60)[0]
            # The loop takes up both in the same turn: the connection, and what closes the port.
            refused = asyncio.run_coroutine_threadsafe(proxy._refuse(), proxy._loop)
            goes_on.set()
            refused.result()
            assert proxy.connections == 1
        proxy.close()
