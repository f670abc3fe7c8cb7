"""The connections of this process, one for each set of options, on one event loop in a thread."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.limits import LIMITS, MemoryLimits
from spark_jetstream.client.timing import TIMING, Timing
from spark_jetstream.errors import ConnectionFailed
from spark_jetstream.options.connection import ConnectionOptions

timing: Timing = TIMING
"""The times of connections that are made from now on."""
limits: MemoryLimits = LIMITS
"""The limits of connections that are made from now on."""
_lock = threading.RLock()
_pool: dict[ConnectionOptions, Connection] = {}
_opening: dict[ConnectionOptions, Future[Connection]] = {}  # only these attempts add to the pool
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

    Waits up to `patience` seconds (`connect_timeout` if None) for one that was lost, and at least
    `connect_timeout` for a new one. So a job and a program outlast the start of a server. Unless
    servers may be `starting`, it does not wait for a new one once the ports of all have refused
    (`connect_at_once`). `find_file` says where on this node a file named by an option is. Raises
    `ConnectionFailed`, `AuthenticationFailed`, `OptionError`.
    """
    seconds = options.connect_timeout if patience is None else patience
    with _lock:
        known = _pool.get(options)
        opening = _opening.get(options)
        new = known is None or not known.usable
        mine = new and opening is None
        if new:
            seconds = max(seconds, options.connect_timeout)
        if mine:
            loop = _event_loop()

            async def make() -> Connection:
                # It puts the connection into the pool itself: who waits may have been interrupted.
                try:
                    connection = Connection(options, loop, timing, limits)
                    await connection.open(seconds, find_file, starting=starting)
                    with _lock:
                        if _opening.get(options) is opening:
                            _pool[options] = connection
                            return connection
                    await connection.end()
                    raise asyncio.CancelledError
                finally:
                    with _lock:
                        if _opening.get(options) is opening:
                            del _opening[options]

            opening = _opening[options] = asyncio.run_coroutine_threadsafe(make(), loop)
    # Not under the lock: others may want a server that is up.
    if opening is None:
        assert known is not None
        known.wait(seconds)
        return known
    return _opened(opening, options, seconds + timing.late, mine=mine)


def _opened(
    opening: Future[Connection], options: ConnectionOptions, seconds: float, *, mine: bool
) -> Connection:
    """Return the connection of an attempt, for which it waits; `mine`: the caller has begun the attempt."""
    try:
        return opening.result(seconds)
    except concurrent.futures.CancelledError:
        problem = "was closed while it was opened"
    except concurrent.futures.TimeoutError:
        problem = f"was not made within {seconds:g} s"
        # An attempt of another caller may have more time.
        if mine:
            opening.cancel()
    raise ConnectionFailed(f"the connection to {options.display_servers} {problem}")


def connect_at_once(options: ConnectionOptions) -> Connection:
    """Return the connection of a command: `connect`, but do not wait for a server to start.

    A person waits for the command, and can start the server. `connect_timeout` is for servers that
    do not answer.
    """
    return connect(options, starting=False)


def close_all() -> None:
    """Close every connection of this process, also those that are being opened.

    The next `connect` opens new ones.
    """
    with _lock:
        opening = [*_opening.values()]
        connections = [*_pool.values()]
        _opening.clear()
        _pool.clear()
    # Not under the lock, which the loop's thread takes.
    for each in opening:
        each.cancel()
    for connection in connections:
        connection.close()


def _forget() -> None:
    """In a forked child: the parent's sockets and thread are not ours, and are left alone."""
    global _loop, _lock  # noqa: PLW0603
    _lock = threading.RLock()
    _pool.clear()
    _opening.clear()
    _loop = None


os.register_at_fork(after_in_child=_forget)
atexit.register(close_all)
