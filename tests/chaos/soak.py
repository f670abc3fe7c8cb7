"""An hour under load with a restart each minute: nothing is lost, nothing comes twice, and nothing
grows.

    make soak                                 an hour
    make soak SOAK_SECONDS=7200 SOAK_SEED=7   two hours, with another order of restarts

Two queries copy a stream each to another one, exactly once, on a cluster of three servers. Each
minute the run kills one of these, which starts again: a server, the leader of a stream, a majority
of the servers, the newest planner, or the newer half of the Python workers. A majority is down for
longer than `ackTimeout`. Once, in the middle, the run kills the whole job. The processes that are not
killed grow old, and show what restarts leave in them.

When all queries have gone on after a restart, the measures are taken until the minute ends. A row
has the least of each: a leak never goes away, and what a batch needs for a moment does.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.scenario import Fault, Query, Scenario
from tests.chaos.world import LEDGER, World
from tests.support.jobs import kill
from tests.support.reading import api, consumers

EVERY = 60.0  # seconds from one restart to the next
SETTLED = 5  # rows before those that the end is compared with
COMPARED = 3  # rows whose medians are compared
FEWEST = SETTLED + 2 * COMPARED
_LOOK = 3.0  # seconds between two looks at the measures
_DOWN = 3.0  # seconds that a server is down
MAJORITY_DOWN = 25.0  # seconds that two of three servers are down; `ackTimeout` is 10
_LONGEST = 180.0  # seconds until a killed planner is replaced
_HEAP = 1024  # MiB
VICTIMS = ("planner", "workers", "server", "leader", "majority")
#: How the names of threads begin that Spark starts and ends by the hundred: those of its block
#: manager end when they were idle for a minute, those of a task two seconds after the task.
_COMING_AND_GOING = ("block-manager-", "Worker Monitor ")
#: Spark's JVM keeps this thread, and a selector with its channel, for each planner process that it
#: ever started (`PythonWorkerFactory`).
_KEPT_THREAD = "Idle Worker Mon"
_KEPT_DESCRIPTORS = 3

#: All of the heap is resident from the start: what the JVM has beside it is what Spark and the
#: connector need, and not when the collector thinks that it must run. A full collection says what
#: of the heap is in use. Spark keeps no more of its history after minutes than after hours.
_CONF = {
    "spark.driver.memory": f"{_HEAP}m",
    "spark.cleaner.periodicGC.interval": "20s",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.sql.streaming.minBatchesToRetain": "100",
}
_JAVA = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms{_HEAP}m -XX:+AlwaysPreTouch -Xlog:gc:file="

Row = Mapping[str, float]
"""The measures by name. One that could not be taken is not there."""


@dataclass(frozen=True)
class Measure:
    """The unit of a column, and by how much its value may be larger at the end."""

    of: str
    bound: float


MEASURES = {
    "heap": Measure("MiB in use in the heap of the driver's JVM after a full collection", 16),
    "jvm": Measure("MiB of the driver's JVM beside its heap", 48),
    "jvm-fds": Measure("descriptors of the driver's JVM, without those kept for planners", 20),
    "jvm-thr": Measure("threads of the driver's JVM, without those kept for planners", 10),
    "plan": Measure("MiB that only the largest planner process has", 8),
    "plan-fds": Measure("descriptors of the planner process with the most", 2),
    "plan-thr": Measure("threads of the planner process with the most", 1),
    "planners": Measure("planner processes", 0),
    "work": Measure("MiB that only the largest Python worker has, whatever it does for Spark", 8),
    "work-fds": Measure("descriptors of the Python worker with the most", 2),
    "work-thr": Measure("threads of the Python worker with the most", 1),
    "procs": Measure("processes of the job", 3),
    "cons": Measure("consumers on the servers", 3),
    "conns": Measure("connections to the servers", 3),
    "subs": Measure("subscriptions of these connections", 12),
    "ledger": Measure("messages in the ledger of exactly-once", 2),
}


# Measuring


def in_use(log: str) -> float | None:
    """Return the MiB of the heap in use after the last full collection of a JVM's log, None if
    there was none.
    """
    found = re.findall(r"Pause Full.* \d+M->(\d+)M\(", log)
    return float(found[-1]) if found else None


def of_process(pid: int) -> dict[str, float]:
    """The MiB that only this process has, all that are resident, and the numbers of its descriptors
    and threads.

    Pages that a worker shares with the daemon that forked it are not its own. Threads that come and
    go are not counted, nor what Spark's JVM keeps for each planner process.
    """
    folder = Path("/proc", str(pid))
    rollup, status = (
        folder.joinpath("smaps_rollup").read_text(),
        folder.joinpath("status").read_text(),
    )
    names = []
    for path in folder.glob("task/*/comm"):
        with contextlib.suppress(OSError):  # the thread has ended
            names.append(path.read_text().rstrip("\n"))
    kept = sum(name.startswith(_KEPT_THREAD) for name in names)
    coming_and_going = sum(name.startswith(_COMING_AND_GOING) for name in names)
    return {
        "private": sum(int(size) for size in re.findall(r"Private_Dirty: +(\d+)", rollup)) / 1024,
        "resident": sum(int(size) for size in re.findall(r"VmRSS:\s+(\d+)", status)) / 1024,
        "fds": len(list(folder.joinpath("fd").iterdir())) - _KEPT_DESCRIPTORS * kept,
        "threads": len(names) - coming_and_going - kept,
    }


def _most(pids: Sequence[int]) -> dict[str, float]:
    """The largest of each measure of some processes; nothing if there are none."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            found.append(of_process(pid))
    return {name: max(each[name] for each in found) for name in found[0]} if found else {}


def on_servers(world: World) -> dict[str, float]:
    """The connections and consumers of the connector's clients on the servers.

    They have names; what the suite itself asks with has none.
    """
    url = world.servers[0].url
    streams = api(url, "STREAM.NAMES").get("streams") or []
    connections = [
        each for server in world.servers for each in server.monitor("/connz")["connections"]
    ]
    clients = [each for each in connections if each.get("name")]
    ledger = (
        {"ledger": api(url, f"STREAM.INFO.{LEDGER}")["state"]["messages"]}
        if LEDGER in streams
        else {}
    )
    return {
        "cons": sum(len(consumers(url, name)) for name in streams),
        "conns": len(clients),
        "subs": sum(each["subscriptions"] for each in clients),
        **ledger,
    }


def look(world: SoakWorld) -> Row:
    """All measures, now."""
    processes, planners = world.job.processes(), world.job.planners()
    # Not only tasks run there: others check and commit what a query writes. The JVM names the
    # daemon's module too.
    workers = [pid for pid, command in processes.items() if "daemon pyspark." in command]
    jvm = _most([pid for pid, command in processes.items() if "SparkSubmit" in command])
    row = {"planners": float(len(planners)), "procs": float(len(processes)), **on_servers(world)}
    if jvm:
        row |= {"jvm": jvm["resident"] - _HEAP, "jvm-fds": jvm["fds"], "jvm-thr": jvm["threads"]}
    for name, pids in (("plan", planners), ("work", workers)):
        if most := _most(pids):
            row |= {
                name: most["private"],
                f"{name}-fds": most["fds"],
                f"{name}-thr": most["threads"],
            }
    heap = in_use(world.collections.read_text()) if world.collections.exists() else None
    return row if heap is None else {**row, "heap": heap}


def least(looks: Sequence[Row]) -> Row:
    """The least of each measure."""
    return {name: min(each[name] for each in looks if name in each) for name in set().union(*looks)}


# Judging


def grown(rows: Sequence[Row]) -> list[str]:
    """Return what is larger at the end than it was when all had settled by more than its bound, in
    words.

    There must be `FEWEST` rows.
    """
    assert len(rows) >= FEWEST
    wrong = []
    for name, measure in MEASURES.items():
        compared = (rows[SETTLED:][:COMPARED], rows[-COMPARED:])
        before, after = ([row[name] for row in some if name in row] for some in compared)
        if not before or not after:
            wrong.append(f"{measure.of}: not measured")
        elif (end := statistics.median(after)) > (
            begin := statistics.median(before)
        ) + measure.bound:
            wrong.append(
                f"{measure.of}: {begin:g} before and {end:g} at the end, which is more than "
                f"{measure.bound:g} more"
            )
    return wrong


# Running


class SoakWorld(World):
    """Two queries, exactly once, on a cluster of three servers.

    `majority_down`: the seconds for which a majority is down.
    """

    def __init__(self, seed: int, folder: Path, majority_down: float = MAJORITY_DOWN) -> None:
        self._majority_down = majority_down
        queries = (Query("A", "consumer", "exactly-once"), Query("B", "durable", "exactly-once"))
        super().__init__(
            Scenario(seed=seed, servers=3, executors=False, queries=queries, faults=()), folder
        )
        self.collections = folder / "gc.log"
        """Where the driver's JVM writes down its garbage collections."""
        self.conf = {**_CONF, "spark.driver.extraJavaOptions": f"{_JAVA}{self.collections}"}

    def restart(self, what: str, number: int) -> None:
        """Kill one of several and let it start again; all queries have gone on when this returns."""
        if what == "planner":
            newest = sorted(self.job.planners())[-1:]
            kill(newest)
            # Its query may still end a batch that was planned before.
            queries = len(self.scenario.queries)
            self.job.wait(
                lambda: len(set(self.job.planners()).difference(newest)) == queries,
                "the new planner",
                _LONGEST,
            )
        elif what == "workers":
            workers = sorted(self.job.workers())
            kill(workers[len(workers) // 2 :])
        elif what == "server":
            self.cluster.kill(number % 3)
            threading.Event().wait(_DOWN)
            self.cluster.restart(number % 3)
        elif what == "majority":
            for index in (number % 3, (number + 1) % 3):
                self.cluster.kill(index)
            threading.Event().wait(self._majority_down)
            self.cluster.start()
        else:
            self.run(
                Fault(
                    {"leader": "leader_killed", "driver": "driver_killed"}[what],
                    _DOWN,
                    False,
                    number,
                )
            )
        self.goes_on()


def restarts(seed: int, rounds: int) -> Iterator[tuple[str, int]]:
    """The victim of each round, and which of several; the driver once, in the middle."""
    chance = random.Random(f"soak {seed}")
    turn: list[str] = []
    for number in range(rounds):
        turn = turn or chance.sample(VICTIMS, len(VICTIMS))
        yield ("driver" if number == rounds // 2 else turn.pop()), chance.randrange(100)


def soak(world: SoakWorld, rounds: int, *, every: float = EVERY) -> Iterator[tuple[str, Row]]:
    """Yield what was restarted and the measures after it: a row each `every` seconds, if all goes
    on by then.
    """
    world.goes_on()
    for what, number in restarts(world.scenario.seed, rounds):
        end = time.monotonic() + every
        world.restart(what, number)
        looks = [look(world)]
        while time.monotonic() < end:
            threading.Event().wait(_LOOK)
            looks.append(look(world))
        yield what, least(looks)


def line(number: object, restart: str, cells: Mapping[str, str]) -> str:
    """A line of the table; a measure that was not taken is a dash."""
    columns = (f"{cells.get(name, '-'):>{max(len(name), 4) + 1}}" for name in MEASURES)
    return f"{number!s:>4} {restart:<8}" + "".join(columns)


def main() -> None:
    seconds, seed = (
        float(os.environ.get("SOAK_SECONDS", "3600")),
        int(os.environ.get("SOAK_SEED", "1")),
    )
    rounds = int(seconds // EVERY)
    if rounds < FEWEST:
        raise SystemExit(
            f"SOAK_SECONDS is {seconds:g}, and must be at least {FEWEST * EVERY:g}: nothing can be "
            "compared"
        )
    table = Path(sys.argv[1])
    table.parent.mkdir(parents=True, exist_ok=True)

    with tempfile.TemporaryDirectory() as folder, table.open("w") as file:

        def say(text: str) -> None:
            print(text, flush=True)
            print(text, file=file, flush=True)

        say(
            f"seed {seed}: {rounds} "
            f"minutes\n\n{line('row', 'restart', {name: name for name in MEASURES})}"
        )
        world, rows = SoakWorld(seed, Path(folder, "job")), []
        with world:
            for what, row in soak(world, rounds):
                rows.append(row)
                say(line(len(rows), what, {name: f"{value:.0f}" for name, value in row.items()}))
            say("")
            for name, measure in MEASURES.items():
                say(f"{name:<9} {measure.of}; may grow by {measure.bound:g}")
            wrong = [*grown(rows), *world.violations()]
            say(f"\n{sum(map(len, world.load.stored.values()))} messages")
        say(
            "\n".join(f"FAILED: {each}" for each in wrong)
            or "nothing grew, nothing was lost, nothing came twice"
        )
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
