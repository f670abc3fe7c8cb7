"""Jobs that a test starts, watches and kills, each in a session of processes of its own."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyspark

from spark_jetstream.java import ensure_java
from spark_jetstream.testing.process import poll

ROOT = Path(__file__).parents[2]

#: Most of the time of a short job goes into starting it: this takes a quarter off.
BRISK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.python.daemon.module": "tests.support.warm_daemon",
}

SWAPPED = "spark.test.swapped"
"""The setting by which a job knows that the second half of a union comes first."""

_END = 600.0  # seconds in which a job reads the rest: more than any machine needs

_Job = TypeVar("_Job", bound="Job")


class Job:
    """One run of `job`, with its output in `folder/log`. `__exit__` kills its processes.

    Its logs are ``<query>/offsets``, ``<query>/commits`` and ``rows/<query>``.
    """

    def __init__(
        self,
        folder: Path,
        options: Mapping[str, Any],
        *,
        trigger: dict[str, Any],
        conf: dict[str, str],
        environment: dict[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        folder.mkdir(exist_ok=True)
        # Python looks here first. To import pyspark from the archive that Spark gives it takes four
        # times as long.
        with contextlib.suppress(FileExistsError):
            (folder / "pyspark").symlink_to(Path(pyspark.__file__).parent)
        self._log = folder / "log"
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        work = {
            "folder": str(folder),
            "options": dict(options),
            "trigger": trigger,
            "conf": {"spark.master": "local[2]", **BRISK, **conf},
        }
        (folder / "work.json").write_text(
            json.dumps(work)
        )  # not on the command line: options may be secret
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("job.py"), folder / "work.json"],
                cwd=folder,
                env=job_environment(PYTHONPATH=str(ROOT), **(environment or {})),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        with self._log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode("utf-8", "replace")

    def processes(self) -> dict[int, str]:
        """The processes of the job by id, each with its command: driver, JVMs, Python workers."""
        commands: dict[int, str] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = path.read_text().rpartition(")")[2].split()
                if int(fields[3]) == self._process.pid and fields[0] != "Z":
                    command = path.with_name("cmdline").read_bytes().replace(b"\0", b" ")
                    commands[int(path.parent.name)] = command.decode("utf-8", "replace")
        return commands

    def workers(self) -> list[int]:
        """The executors' Python workers: what their daemon has forked."""
        daemons = [
            pid for pid, command in self.processes().items() if "daemon pyspark.worker" in command
        ]
        return [pid for pid in daemons if _parent(pid) in daemons]

    def drivers(self) -> list[int]:
        """The JVM of the driver."""
        return [pid for pid, command in self.processes().items() if "SparkSubmit" in command]

    def executors(self) -> list[int]:
        """The JVMs that run tasks, where these are not the driver's (``local-cluster``)."""
        return [
            pid
            for pid, command in self.processes().items()
            if "CoarseGrainedExecutorBackend" in command
        ]

    def latest(self, log: str) -> int:
        """Return the last batch in a log, -1 if there is none."""
        folder = (
            self.folder / log / "_spark_metadata"
            if log.startswith("rows")
            else self.checkpoint / log
        )
        return max((int(path.name.partition(".")[0]) for path in folder.glob("[0-9]*")), default=-1)

    def wait(self, check: Callable[[], bool], what: str, timeout: float = 120.0) -> None:
        """Wait until `check` is true; a job that ends before fails the test."""

        def seen() -> bool | None:
            if check():
                return True
            assert self._process.poll() is None, f"the job ended before {what}:\n{self.log[-4000:]}"
            return None

        poll(
            seen,
            timeout,
            lambda: TimeoutError(f"not seen within {timeout:g} s: {what}\n{self.log[-4000:]}"),
        )

    def kill(self) -> None:
        """SIGKILL for every process of the job, again until none is left."""

        def gone() -> bool | None:
            kill(self.processes())
            return True if not self.processes() else None

        poll(gone, 20, lambda: TimeoutError(f"still there: {self.processes()}"))
        self._process.wait()

    def planners(self) -> list[int]:
        """The Python processes that plan the queries' batches: Spark gives each source its own,
        while it runs.
        """
        return [
            pid
            for pid, command in self.processes().items()
            if "python_streaming_source_runner" in command
        ]

    def committed(self, name: str) -> set[int]:
        """The sequences in the sink of a query, of the batches that Spark has committed."""
        last = self.latest(f"{name}/commits")
        folder = self.folder / "rows" / name
        sequences: set[int] = set()
        for path in (folder / "_spark_metadata").glob("[0-9]*"):
            if int(path.name.partition(".")[0]) <= last:
                for line in path.read_text().splitlines()[1:]:
                    sequences |= _sequences(folder / json.loads(line)["path"].rpartition("/")[2])
        return sequences

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """While this lasts no process of the job does anything: first those that write stop, then
        those that plan.
        """
        commands = self.processes()
        stopped = sorted(commands, key=lambda pid: "java" not in commands[pid])
        kill(stopped, signal.SIGSTOP)
        try:
            yield
        finally:
            kill(stopped, signal.SIGCONT)

    def failures(self) -> list[tuple[str, str]]:
        path = self.folder / "failures"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(name, why) for name, why in map(json.loads, lines)]

    def errors(self, query: str | None = None, begin: int = 0) -> list[str]:
        """The errors of the data source that queries (or one) failed with, from the failure with
        number `begin` on.
        """
        failures = [why for name, why in self.failures()[begin:] if query in (None, name)]
        return [error for why in failures for error in re.findall(r"spark_jetstream\.\S+: .*", why)]

    def finish(self) -> dict[str, dict[str, list[str]]]:
        """Let the queries read to the end; the texts in the sink of each (`rows`), and of a batch
        read (`batch`).
        """
        (self.folder / "finish").touch()
        try:
            self._process.wait(_END)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the job did not end within {_END:g} s:\n{self.log[-4000:]}"
            ) from None
        path = self.folder / "result.json"
        assert path.exists(), self.log[-8000:]
        result: dict[str, dict[str, list[str]]] = json.loads(path.read_text())
        return result

    def __enter__(self: _Job) -> _Job:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()


def kill(processes: Collection[int], number: signal.Signals = signal.SIGKILL) -> int:
    """Send a signal to those of the processes that still exist; how many processes were given."""
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return len(processes)


def spark_home(folder: Path) -> dict[str, str]:
    """A home of Spark in a folder of ours: the workers of a local cluster keep their files in its
    folder `work`.
    """
    folder.mkdir(exist_ok=True)
    for part in Path(pyspark.__file__).parent.iterdir():
        if part.name != "work" and not (folder / part.name).exists():
            (folder / part.name).symlink_to(part)
    return {"SPARK_HOME": str(folder)}


def job_environment(**more: str) -> dict[str, str]:
    """The variables of a process with a Spark of its own."""
    given = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK", "PYTHONPATH"))
    }
    workers = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return {**given, **workers, "JAVA_HOME": ensure_java(), "SPARK_LOCAL_IP": "127.0.0.1", **more}


def run_python(
    *arguments: object,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    python: str | Path = sys.executable,
    given: str | None = None,
) -> str:
    """Run Python, which must end with 0; its standard output. `given` is its standard input."""
    return run_command([str(python), *map(str, arguments)], cwd=cwd, env=env, given=given)


def run_command(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    given: str | None = None,
) -> str:
    """The same for any program."""
    ran = subprocess.run(
        command, cwd=cwd, env=env, input=given, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def run_script(
    *arguments: object, folder: Path, python: str | Path = sys.executable, **environment: str
) -> dict[str, Any]:
    """Run Python in a folder of its own, where only what is installed is found; what it prints as
    JSON after RESULT.
    """
    variables = {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python), **environment}
    environ = job_environment(**variables)
    return printed_result(run_python(*arguments, cwd=folder, env=environ, python=python))


def printed_result(printed: str) -> dict[str, Any]:
    """The JSON that follows RESULT in the output of a script."""
    lines = [
        line.removeprefix("RESULT ") for line in printed.splitlines() if line.startswith("RESULT ")
    ]
    assert len(lines) == 1, printed
    result: dict[str, Any] = json.loads(lines[0])
    return result


def write_program(path: Path, *lines: str, interpreter: str = "/bin/sh") -> Path:
    """Write an executable script of these lines, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([f"#!{interpreter}", *lines, ""]))
    path.chmod(0o755)
    return path


@functools.cache
def _sequences(file: Path) -> frozenset[int]:
    return frozenset(json.loads(line)["sequence"] for line in file.read_text().splitlines())


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
