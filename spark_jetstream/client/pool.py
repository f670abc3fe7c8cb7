"""The connections of this process: one event loop in a background thread, one connection for each set of options."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future

from spark_jetstream.client.connection import Connection
from spark_jetstream.errors import ConnectionFailed
from spark_jetstream.options import ConnectionOptions

_lock = threading.RLock()
_pool: dict[ConnectionOptions, Connection] = {}
_opening: dict[ConnectionOptions, Future[Connection]] = {}
_loop: asyncio.AbstractEventLoop | None = None


def _event_loop() -> asyncio.AbstractEventLoop:
    global _loop  # noqa: PLW0603  # the process has one; a fork resets it
    if _loop is None:
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="spark-jetstream", daemon=True).start()
        _loop = loop
    return _loop


def connect(
    options: ConnectionOptions,
    *,
    patience: float | None = None,
    find_file: Callable[[str], str] = str,
    starting: bool = True,
) -> Connection:
    """The process's connection for these options, opened if need be.

    Waits up to `patience` seconds (`connect_timeout` if None) for one that was lost, and at least `connect_timeout` for
    a new one. Unless servers may be `starting`, it does not wait for a new one once the ports of all have refused.
    `find_file` says where on this node a file named by an option is. Raises `ConnectionFailed`, `AuthenticationFailed`,
    `OptionError`.
    """
    seconds = options.connect_timeout if patience is None else patience
    with _lock:
        known = _pool.get(options)
        opening = _opening.get(options)
        if opening is None and (known is None or not known.usable):
            seconds = max(seconds, options.connect_timeout)
            loop = _event_loop()

            async def make() -> Connection:
                connection = Connection(options, loop)
                await connection.open(seconds, find_file, starting=starting)
                return connection

            opening = _opening[options] = asyncio.run_coroutine_threadsafe(make(), loop)
    # Not under the lock: others may want a server that is up.
    if opening is None:
        assert known is not None
        known.wait(seconds)
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
    global _loop, _lock  # noqa: PLW0603
    _lock = threading.RLock()
    _pool.clear()
    _opening.clear()
    _loop = None


os.register_at_fork(after_in_child=_forget)
atexit.register(close_all)
