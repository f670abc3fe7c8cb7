"""The measures and the verdict of `make soak`, and a short form of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.soak import (
    COMPARED,
    MEASURES,
    SETTLED,
    Row,
    SoakWorld,
    grown,
    head,
    line,
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
def test_what_has_not_grown(value: Callable[[int, str], float]) -> None:
    assert grown(rows(value)) == []


@pytest.mark.parametrize("leak", MEASURES)
def test_a_leak_is_found_by_its_measure(leak: str) -> None:
    each_minute = MEASURES[leak].bound / 40 + 0.1
    (found,) = grown(rows(lambda minute, name: 20 + (minute * each_minute if name == leak else 0)))
    assert found.startswith(f"{MEASURES[leak].of}: ")


def test_what_was_not_measured_is_no_success() -> None:
    some = rows(lambda minute, name: 20)
    assert grown([{**row} if minute < 50 else {} for minute, row in enumerate(some)]) == [
        f"{measure.of}: not measured" for measure in MEASURES.values()
    ]
    with pytest.raises(ValueError, match="10 rows are too few"):
        grown(some[: SETTLED + 2 * COMPARED - 1])


GROWING = """
import sys, threading
sys.stdout.write("."); sys.stdout.flush()
sys.stdin.read(1)
files = [open(__file__ if "__file__" in globals() else "/dev/null") for _ in range(10)]
data = bytearray(b"x" * (32 << 20))
for _ in range(3):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
sys.stdout.write("."); sys.stdout.flush()
sys.stdin.read(1)
"""


def test_what_a_process_takes_is_seen() -> None:
    command = [sys.executable, "-c", GROWING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.read(1)
        before = of_process(child.pid)
        child.stdin.write(b"\n")
        child.stdin.flush()
        child.stdout.read(1)
        after = of_process(child.pid)
        child.stdin.close()
    assert after["fds"] - before["fds"] == 10
    assert after["threads"] - before["threads"] == 3
    assert 31 < after["private"] - before["private"] < 40
    assert after["resident"] >= after["private"]


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_a_short_soak_measures_everything_and_loses_nothing(tmp_path: Path) -> None:
    world = SoakWorld(1, tmp_path / "job")
    with world:
        table = list(soak(world, 5, every=1))
        assert {what for what, _ in table} == {"driver", "planner", "workers", "server", "leader"}
        # The first collection of the new driver comes when it has run for some seconds.
        wait_until(lambda: look(world).keys() == MEASURES.keys(), "all measures")
        last = look(world)
        assert all(last.get(name) for name in MEASURES), last
        assert grown([last] * MINUTES) == []
        assert len(line(1, *table[0])) == len(head())
        assert world.violations() == [], world.job.log[-4000:]
        # Only the durable consumer is left; what a client takes now is seen.
        before = on_servers(world)
        assert (before["cons"], before["conns"]) == (1, 0)
        with Publisher(world.servers[0].url, name="leak") as publisher:
            config = {"name": "leak", "inactive_threshold": 10**12}
            publisher.api("CONSUMER.CREATE.A0.leak", {"stream_name": "A0", "config": config})
            after = on_servers(world)
        assert (after["cons"], after["conns"]) == (2, 1)
