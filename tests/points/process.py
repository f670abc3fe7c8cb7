"""Processes of Spark that end when their wire says so, all of them in this one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest

from spark_jetstream.client.deadline import Backoff
from spark_jetstream.client.inbox import Inbox
from spark_jetstream.client.loop import Loop
from spark_jetstream.client.pool import close_all
from spark_jetstream.errors import JetStreamError
from spark_jetstream.sink import preflight, stream_warnings
from tests.points.wire import PointWire

#: The calls in which a process waits, or sends something.
_CALLS = (
    (Loop, "run"),
    (Inbox, "send"),
    (Inbox, "publish"),
    (Inbox, "receive"),
    (Inbox, "resume"),
    (Backoff, "pause"),
)


class Ended(BaseException):
    """The end of a process. No code of a process handles it."""


class Processes:
    """The processes that use one wire, one after the other.

    `dead` says whether the one that runs has ended: its next call raises `Ended`.
    """

    def __init__(self, wire: PointWire, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wire = wire
        self._runs = False
        for owner, method in _CALLS:
            monkeypatch.setattr(owner, method, self._mortal(getattr(owner, method)))

    @property
    def dead(self) -> bool:
        return self._runs and self.wire.dead

    @contextmanager
    def one(self) -> Iterator[None]:
        """Code in it is a process that has just started. It ends without an error."""
        for known in (preflight._checked, stream_warnings._warned):
            known.clear()
        self._runs = True
        try:
            yield
        except Ended:
            assert self.wire.dead
        except JetStreamError:
            # The end of the wire, seen by a thread that made none of the calls.
            if not self.wire.dead:
                raise
        finally:
            self._runs = False
            close_all()

    def _mortal(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            if self.dead:
                for given_work in filter(asyncio.iscoroutine, args):
                    given_work.close()
                raise Ended
            try:
                return function(*args, **given)
            except JetStreamError:
                if self.dead:
                    raise Ended from None
                raise

        return call
