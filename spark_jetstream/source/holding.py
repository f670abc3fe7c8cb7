"""When the position on the server is opened, looked at and moved, so that a query does not wait for it."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from concurrent.futures import Future

from spark_jetstream.source.progress import Progress
from spark_jetstream.streams import StreamState

#: Seconds that a commit may keep its caller. An interest stream removes each message before it answers, so a commit
#: takes longer the larger its batch was.
WAIT = 0.008


class Holding:
    """The position of one run of a query on the server; without a `Progress` nothing happens.

    For one thread. A commit that takes longer than `WAIT` goes on behind the caller's back. The next call, whichever it
    is, waits for it, and raises what it raised. All methods raise what `Progress` raises.
    """

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._opened: set[str] = set()
        self._committing: Future[None] | None = None

    @property
    def wanted(self) -> bool:
        """Whether there is a position on the server."""
        return self._progress is not None

    def open(self, state: StreamState, *, fresh: bool) -> bool:
        """`Progress.open`, the first time for each stream; whether this was the first time."""
        if self._progress is None or state.name in self._opened:
            return False
        self.settle()
        self._progress.open(state, fresh=fresh)
        self._opened.add(state.name)
        return True

    def hold(self, state: StreamState) -> None:
        """Make sure that the position is there and ours, for a query that goes on."""
        if self._progress is not None and not self.open(state, fresh=False):
            self.settle()
            self._progress.check(state)

    def holds(self, state: StreamState, sequence: int) -> bool:
        """`Progress.holds`; False without a position on the server."""
        return self._progress is not None and self._progress.holds(state, sequence)

    def commit(self, state: StreamState, next_sequence: int) -> None:
        """`Progress.commit`, on a stream that was opened."""
        progress = self._progress
        if progress is None or state.name not in self._opened:
            return
        self.settle()
        self._committing = _later(lambda: progress.commit(state, next_sequence))
        concurrent.futures.wait([self._committing], WAIT)
        if self._committing.done():
            self.settle()

    def settle(self) -> None:
        """Wait for the commit that is under way; raises what it raised."""
        committing, self._committing = self._committing, None
        if committing is not None:
            committing.result()


def _later(work: Callable[[], None]) -> Future[None]:
    """Do this in a thread that does not keep the process alive: what it leaves undone is caught up by the next run."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:  # raised where the result is asked for
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=run, name="spark-jetstream-commit", daemon=True).start()
    return future
