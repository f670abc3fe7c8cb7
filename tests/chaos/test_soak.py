"""The measures and the verdict of `make soak`, and a short form of it."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.chaos.soak import (
    MEASURES,
    SETTLED,
    VICTIMS,
    Row,
    SoakWorld,
    grown,
    look,
    of_process,
    on_servers,
    soak,
)
from tests.support.publish import Publisher
from tests.support.reading import wait_until

MINUTES = 60


def rows(value: Callable[[int, str], float]) -> list[Row]:
    return [{name: value(minute, name) for name in MEASURES} for minute in range(MINUTES)]


VERDICTS: dict[str, Callable[[int, str], float]] = {
    "stays within its bound": lambda minute, name: 20 + MEASURES[name].bound * (minute % 2),
    "young, then shrinks": lambda minute, name: 0 if minute < SETTLED else 500 - minute,
    "large for one minute": lambda minute, name: 1000 if minute == MINUTES - 2 else 20,
}


@pytest.mark.parametrize("value", VERDICTS.values(), ids=VERDICTS)
def test_a_measure_that_has_not_grown_passes(value: Callable[[int, str], float]) -> None:
    assert grown(rows(value)) == []


@pytest.mark.parametrize("leak", MEASURES)
def test_a_leak_is_found_by_its_measure(leak: str) -> None:
    each_minute = MEASURES[leak].bound / 40 + 0.1
    (found,) = grown(rows(lambda minute, name: 20 + (minute * each_minute if name == leak else 0)))
    assert found.startswith(f"{MEASURES[leak].of}: ")


def test_a_measure_without_values_fails() -> None:
    some = rows(lambda minute, name: 20)
    assert grown([{**row} if minute < 50 else {} for minute, row in enumerate(some)]) == [
        f"{measure.of}: not measured" for measure in MEASURES.values()
    ]


KEPT_AND_PASSING = {
    "one more of the connector": ("nats-client", 1, 0),
    "kept by Spark for a planner": ("Idle Worker Mon", 0, -3),
    "of Spark's block manager": ("block-manager-a", 0, 0),
    "of a task": ("Worker Monitor ", 0, 0),
}


def difference(name: str) -> tuple[float, float]:
    """How many more threads and descriptors this process has with a thread of this name."""
    named, measured = threading.Event(), threading.Event()

    def be_named() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
        named.set()
        measured.wait()

    thread = threading.Thread(target=be_named)
    before = of_process(os.getpid())
    thread.start()
    named.wait()
    after = of_process(os.getpid())
    measured.set()
    thread.join()
    return after["threads"] - before["threads"], after["fds"] - before["fds"]


def test_threads_and_descriptors_that_spark_keeps_are_not_counted() -> None:
    # In a process of its own: no thread of another test starts or ends in between.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        found = list(process.map(difference, [name for name, *_ in KEPT_AND_PASSING.values()]))
    assert found == [tuple(expected) for _, *expected in KEPT_AND_PASSING.values()]


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_a_short_soak_measures_everything_and_loses_nothing(tmp_path: Path) -> None:
    world = SoakWorld(1, tmp_path / "job", majority_down=5)
    with world:
        table = list(soak(world, 1 + len(VICTIMS), every=1))
        assert {what for what, _ in table} == {"driver", *VICTIMS}
        # The first collection of the new driver comes when it has run for some seconds.
        wait_until(lambda: look(world).keys() == MEASURES.keys(), "all measures")
        last = look(world)
        assert all(last.get(name) for name in MEASURES), last
        # A worker has few threads, and a JVM many: none is taken for the other.
        assert last["work-thr"] < 20 < last["jvm-thr"], last
        assert grown([last] * MINUTES) == []
        assert world.violations() == [], world.job.log[-4000:]
        # Only the durable consumer is left; what a client takes now is seen.
        before = on_servers(world)
        assert (before["cons"], before["conns"]) == (1, 0)
        with Publisher(world.servers[0].url, name="leak") as publisher:
            config = {"name": "leak", "inactive_threshold": 10**12}
            publisher.api("CONSUMER.CREATE.A0.leak", {"stream_name": "A0", "config": config})
            after = on_servers(world)
        assert (after["cons"], after["conns"]) == (2, 1)
