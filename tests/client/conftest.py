"""Shared by tests of connections: an event loop whose time is over after a failed attempt to
connect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from spark_jetstream.client import login, pool
from tests.support.reading import wait_until


@pytest.fixture
def no_second_attempt(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[None]:
    """The time to connect is over once an attempt has failed: what a second one would meet depends
    on the machine.

    The test has an event loop of its own, so that no connection of another test moves the clock, or
    lives by it.
    """
    monkeypatch.setattr(pool, "_loop", None)
    loop, ahead = pool._event_loop(), 0.0
    now = loop.time

    class Clock(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            nonlocal ahead
            if asyncio._get_running_loop() is loop:
                ahead = 3600.0

    async def end() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        loop.stop()

    clock = Clock()
    monkeypatch.setattr(loop, "time", lambda: now() + ahead)
    caplog.set_level(logging.INFO, login.log.name)
    login.log.addHandler(clock)
    yield
    login.log.removeHandler(clock)
    asyncio.run_coroutine_threadsafe(end(), loop)
    wait_until(lambda: not loop.is_running(), "the end of the loop")
    loop.close()
