"""Reads CPU seconds, memory, threads and descriptors of processes from /proc."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(value) for value in fields[11:15]) / _TICK


def own_cpu_seconds(pid: int) -> float:
    """User and system time of a process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(value) for value in fields[11:13]) / _TICK


def children(pid: int) -> Iterator[int]:
    """All descendants of a process."""
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            own = (task / "children").read_text().split()
        except OSError:  # ended meanwhile
            continue
        for child in own:
            yield int(child)
            yield from children(int(child))


def command(pid: int) -> str:
    """The command line of a process, empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def peak_megabytes(pid: int) -> float:
    """The most memory a process ever held; 0 when it has ended."""
    return _megabytes(pid, "status", "VmHWM")


def resident_megabytes(pid: int) -> float:
    """The memory that a process holds; 0 when it has ended."""
    return _megabytes(pid, "status", "VmRSS")


def proportional_megabytes(pid: int) -> float:
    """The memory of a process, where a page that several share counts in parts; 0 when it has ended."""
    return _megabytes(pid, "smaps_rollup", "Pss:")


def threads(pid: int) -> int:
    """The threads of a process; 0 when it has ended."""
    return _entries(pid, "task")


def descriptors(pid: int) -> int:
    """The files and sockets that a process has open; 0 when it has ended."""
    return _entries(pid, "fd")


def _entries(pid: int, folder: str) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/{folder}"))
    except OSError:
        return 0


def _megabytes(pid: int, file: str, field: str) -> float:
    """Return a field of a file of the process; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(field)), 0.0)


class Cpu:
    """CPU seconds of servers, of Spark's JVM and those of its executors, and of its Python workers.

    They count from when it is made. Those of a worker that has ended do not count.
    """

    def __init__(self, jvm: int, *servers: int) -> None:
        self._servers = servers
        self._jvm = jvm
        self._before = {pid: cpu_seconds(pid) for pids in self._kinds() for pid in pids}

    def used(self) -> tuple[float, float, float]:
        """Seconds so far, in this order."""
        spent = (
            sum(cpu_seconds(pid) - self._before.get(pid, 0.0) for pid in pids)
            for pids in self._kinds()
        )
        servers, jvms, python = spent
        return servers, jvms, python

    def _kinds(self) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        return self._servers, [self._jvm, *_jvms(self._jvm)], python_workers(self._jvm)


class PeakMemory:
    """Watches Spark's Python workers while it is entered; `megabytes` is then the most that one of
    them ever held.
    """

    def __init__(self, jvm: int) -> None:
        self.megabytes = 0.0
        self._jvm = jvm
        self._finished = threading.Event()
        self._watcher = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._finished.wait(0.1):
            self.megabytes = max([self.megabytes, *map(peak_megabytes, python_workers(self._jvm))])

    def __enter__(self) -> PeakMemory:
        self._watcher.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._finished.set()
        self._watcher.join()


def spark_jvm() -> int:
    """The process id of the JVM that this process has started for Spark."""
    return next(iter(_jvms(os.getpid())))


def _jvms(pid: int) -> list[int]:
    return [child for child in children(pid) if command(child).split(" ")[0].endswith("java")]


def python_workers(pid: int) -> list[int]:
    """The Python processes below `pid` in which Spark runs tasks."""
    return [child for child in children(pid) if "pyspark.daemon" in command(child)]
