"""When the position on the server is opened, looked at and moved: a commit keeps its caller only for a moment."""

from __future__ import annotations

import threading
import time
from typing import cast

import pytest

from spark_jetstream.errors import JetStreamError
from spark_jetstream.protocol.stream import StreamState
from spark_jetstream.source.progress import WAIT, LazyCommit, Progress
from tests.support.reading import wait_until


def state(name: str = "S") -> StreamState:
    return StreamState(name, "2026-02-03T04:05:06Z", 1, 9, 9, 99, 0, 1, "interest", 0, False, False)


class Slow:
    """In place of `Progress`: notes the calls, and lets commits wait until `go` is set."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.go = threading.Event()
        self.fault: Exception | None = None

    def open(self, state: StreamState, *, fresh: bool) -> None:
        self.calls.append(f"open {state.name} {fresh}")

    def check(self, state: StreamState) -> None:
        self.calls.append(f"check {state.name}")

    def commit(self, state: StreamState, next_sequence: int) -> None:
        assert self.go.wait(20)
        self.calls.append(f"commit {state.name} {next_sequence}")
        if self.fault is not None:
            raise self.fault


@pytest.fixture
def slow() -> Slow:
    return Slow()


def holding(slow: Slow) -> LazyCommit:
    return LazyCommit(cast(Progress, slow))


def test_a_stream_is_opened_once_and_checked_after_that(slow: Slow) -> None:
    held = holding(slow)
    assert held.open(state(), fresh=True)
    assert not held.open(state(), fresh=True)
    held.hold(state())
    held.hold(state("T"))
    held.hold(state("T"))
    assert slow.calls == ["open S True", "check S", "open T False", "check T"]


def test_nothing_is_committed_on_a_stream_that_was_not_opened(slow: Slow) -> None:
    slow.go.set()
    held = holding(slow)
    held.commit(state(), 5)
    held.settle()
    assert slow.calls == []


def test_a_commit_that_takes_long_does_not_keep_its_caller(slow: Slow) -> None:
    held = holding(slow)
    held.open(state(), fresh=True)
    begun = time.monotonic()
    held.commit(state(), 5)
    assert time.monotonic() - begun < 10  # it waits for 20 s, and the caller for some milliseconds
    assert WAIT < 0.01
    assert slow.calls == ["open S True"]
    threading.Timer(0.05, slow.go.set).start()
    held.hold(state())
    assert slow.calls == ["open S True", "commit S 5", "check S"]


def test_what_went_wrong_is_raised_by_the_next_call(slow: Slow) -> None:
    held = holding(slow)
    held.open(state(), fresh=True)
    slow.fault = JetStreamError("another run has it")
    held.commit(state(), 5)
    slow.go.set()
    with pytest.raises(JetStreamError, match="another run has it"):
        held.hold(state())
    slow.fault = None
    held.commit(state(), 6)
    held.settle()
    assert slow.calls[-1] == "commit S 6"


def test_what_goes_wrong_at_once_is_raised_at_once(slow: Slow) -> None:
    held = holding(slow)
    held.open(state(), fresh=True)
    slow.fault = JetStreamError("another run has it")
    slow.go.set()
    failed: list[bool] = []

    def commits() -> bool:
        # On a busy machine the thread may begin too late for the first of them.
        try:
            held.commit(state(), 5)
        except JetStreamError:
            failed.append(True)
        return bool(failed)

    wait_until(commits, "the error of a commit")


def test_commits_come_one_after_the_other(slow: Slow) -> None:
    held = holding(slow)
    held.open(state(), fresh=True)
    held.open(state("T"), fresh=True)
    held.commit(state(), 5)
    threading.Timer(0.05, slow.go.set).start()
    held.commit(state("T"), 7)
    held.settle()
    assert slow.calls[2:] == ["commit S 5", "commit T 7"]


def test_without_a_durable_nothing_happens() -> None:
    held = LazyCommit(None)
    assert not held.wanted
    assert not held.open(state(), fresh=True)
    held.hold(state())
    held.commit(state(), 5)
    held.settle()
