"""`LazyCommit`: commits that may outlast the call."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
from concurrent.futures import Future

from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.source.durable.progress import Progress

log = logging.getLogger(__name__)

WAIT = 0.008
"""Seconds that a commit may keep its caller.

An interest stream removes each message before it answers, so a commit takes longer the larger its
batch was.
"""


class LazyCommit:
    """A `Progress` whose commits may outlast the call; without a `Progress` nothing happens.

    Used by one thread. A commit that takes longer than `wait` continues in a thread. The next call
    of any method waits for it, and raises what it raised. All methods raise what `Progress` raises.
    """

    def __init__(self, progress: Progress | None, *, wait: float = WAIT) -> None:
        self._progress = progress
        self._wait = wait
        #: Streams that `Progress.open` was called for: once in a run.
        self._opened: set[str] = set()
        #: The commit in progress, until `settle` has waited for it.
        self._committing: Future[None] | None = None

    def open(self, state: StreamSummary, *, fresh: bool) -> bool:
        """Call `Progress.open`, the first time for each stream.

        Return whether this was the first time.
        """
        if self._progress is None or state.name in self._opened:
            return False
        self.settle()
        self._progress.open(state, fresh=fresh)
        self._opened.add(state.name)
        return True

    def hold(self, state: StreamSummary, done: int) -> None:
        """Make sure that the consumer exists and is this run's, for a query that goes on.

        Everything below sequence `done` is in Spark's sink.
        """
        if self._progress is not None and not self.open(state, fresh=False):
            self.settle()
            self._progress.check(state, done)

    def holds(self, state: StreamSummary, sequence: int) -> bool:
        """Return what `Progress.holds` returns; False without a position on the server."""
        return self._progress is not None and self._progress.holds(state, sequence)

    def commit(self, state: StreamSummary, next_sequence: int) -> None:
        """Call `Progress.commit` for a stream that was opened."""
        progress = self._progress
        if progress is None or state.name not in self._opened:
            return
        self.settle()
        committing = Future[None]()
        self._committing = committing

        def work() -> None:
            try:
                progress.commit(state, next_sequence)
            except BaseException as error:  # noqa: BLE001 - raised by `settle`
                committing.set_exception(error)
            else:
                committing.set_result(None)

        # The thread does not keep the process alive: the next run repeats what it leaves undone.
        threading.Thread(target=work, name="spark-jetstream-commit", daemon=True).start()
        # Short commits end within the call, so that their errors belong to it
        # (test_a_commit_that_fails_at_once_raises_at_once).
        concurrent.futures.wait([committing], self._wait)
        if committing.done():
            self.settle()
        else:
            committing.add_done_callback(_log_failure)

    def settle(self) -> None:
        """Wait for the commit in progress; raise what it raised."""
        committing = self._committing
        self._committing = None
        if committing is not None:
            committing.result()


def _log_failure(committing: Future[None]) -> None:
    """Log why a commit failed whose caller no longer waited.

    A query that ends now makes no call that would raise the error.
    """
    error = committing.exception()
    if error is not None:
        log.warning(
            "a commit on the server failed (option durable); the next run of the query repeats it: "
            "%s",
            error,
        )
