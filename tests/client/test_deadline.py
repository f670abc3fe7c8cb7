"""Deadlines and pauses."""

from __future__ import annotations

import time

import pytest

from spark_jetstream.client.deadline import Backoff, Deadline, share


def test_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    far, gone = Deadline(60), Deadline(0)
    assert (far.expired, far.left, far.seconds, far.within(5), far.within(100)) == (
        False,
        60,
        60,
        5,
        60,
    )
    assert (gone.expired, gone.left, gone.within(5)) == (True, 0, 0)
    monkeypatch.setattr(time, "monotonic", lambda: 1059.0)
    assert (far.expired, far.left, far.within(5)) == (False, 1, 1)
    monkeypatch.setattr(time, "monotonic", lambda: 1060.0)
    assert (far.expired, far.left) == (True, 0)


def test_each_of_several_attempts_has_two_seconds_if_there_are_as_many() -> None:
    assert [share(10, count) for count in (1, 2, 4, 20)] == [10, 5, 2.5, 2]
    assert share(1, 3) == 1


@pytest.mark.parametrize(
    ("backoff", "pauses"),
    [
        (Backoff(), [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]),
        (Backoff(at_once=True), [0.0, 0.05, 0.1, 0.2]),
        (Backoff(0.1, 0.3), [0.1, 0.2, 0.3, 0.3]),
        (Backoff(2.0), [1.0, 1.0]),
    ],
    ids=["default", "at once", "given", "most"],
)
def test_pauses_grow_and_begin_anew(
    monkeypatch: pytest.MonkeyPatch, backoff: Backoff, pauses: list[float]
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    for _ in range(2):
        for _ in pauses:
            backoff.pause()
        backoff.reset()
    assert slept == pytest.approx(pauses * 2)


def test_a_pause_ends_with_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    monkeypatch.setattr(time, "sleep", slept.append)
    backoff = Backoff(0.1, 30.0)
    for seconds in (30, 30, 0.3):
        backoff.pause(Deadline(seconds))
    assert slept == pytest.approx([0.1, 0.2, 0.3])
