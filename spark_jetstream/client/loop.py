"""The event loop of this process, which runs in a background thread, as one connection uses it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from spark_jetstream.errors import ConnectionFailed

T = TypeVar("T")


class Loop:
    """Made on the loop's thread. Other threads use `run` and `soon`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._thread = threading.current_thread()
        self._tasks: set[asyncio.Future[Any]] = (
            set()
        )  # what `start` began and has not ended: asyncio keeps none alive

    def run(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Return what `work` returns. Raises `ConnectionFailed` after `seconds`."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("this connection's own thread must not wait for it")
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(seconds)
        except (TimeoutError, concurrent.futures.TimeoutError):
            future.cancel()
            raise ConnectionFailed("the connection's thread did not answer in time") from None

    def soon(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function on the loop's thread; calls keep their order."""
        self.loop.call_soon_threadsafe(function, *arguments)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """On the loop's thread: begin `work`, and do not wait for it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self, seconds: float) -> None:
        """On the loop's thread: wait at most `seconds` until started tasks have ended."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=seconds)
