"""Run `tests/compat/smoke.py` on each version of Spark, Python, nats-server and the libraries that is supported.

    python -m tools.matrix UV FOLDER [spark|python|server|libraries|client|sail|managed]

Each axis runs with the newest of the others. The oldest libraries run with the newest and with the
oldest Spark, and the libraries of a runtime with its Spark. The thin client (pyspark-client) runs
with a Spark Connect server. On Sail `sail_job.py` takes the place of `smoke.py`. The axis `managed`
takes away what managed runtimes take away (`run_managed` in `tools/matrix_jobs.py`).

UV makes an environment for each combination in FOLDER, where the next run finds it again. Without
an axis all of them run. The results go to the table of the page docs/compatibility.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.compat import test_sail
from tests.support.jobs import run_python
from tests.support.servers import server_version
from tools.environments import Environments, versions_script
from tools.matrix_jobs import (
    Job,
    holds,
    run_by_client,
    run_managed,
    run_on_sail,
    run_smoke,
)
from tools.version_table import PAGE, VersionTable, stamp

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

#: Prints the versions of an environment in the order of `COLUMNS`. The imported modules are then
#: compiled when workers start.
VERSIONS = (
    "import pyspark.sql.streaming.python_streaming_source_runner, pyspark.worker\n"
    "import spark_jetstream.datasource\n" + versions_script("pyspark", *LIBRARIES)
)
SAIL_VERSIONS = versions_script("pysail", *LIBRARIES)


@dataclass(frozen=True)
class Cell:
    """A combination of versions.

    `oldest` libraries are those that pyproject.toml begins with, `pins` are others. With `sail` the
    job runs on this Sail, and `spark` is its client.
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
    """Runs cells in environments of their versions."""

    def __init__(self, environments: Environments) -> None:
        self._environments = environments

    def run(self, cell: Cell) -> list[str]:
        """The row of the table for a cell."""
        python = self._environment(cell, "pyspark-client" if cell.sail else "pyspark")
        if python is None:
            return cell.not_run
        binary = self._environments.server(cell.server)
        names = SAIL_VERSIONS if cell.sail else VERSIONS
        number, spark, *libraries = json.loads(run_python("-c", names, python=python))
        server = server_version(binary)
        job = self._job(cell, python)
        passed = any(holds(job, binary) for _ in range(TRIES))
        if cell.sail:
            spark = engine(spark)
        result = PASSED if passed else FAILED
        return [cell.axis, number, spark, server, *libraries, result, *stamp()]

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
        name = f"python-{cell.python}-{spark}-{cell.spark}{cell.suffix}"
        packages = [f"{spark}=={cell.spark}.*", *cell.pins]
        if cell.sail:
            packages.append(f"pysail=={cell.sail}")
        return self._environments.python(name, cell.python, packages, oldest=cell.oldest)


TABLE = VersionTable(
    "matrix", COLUMNS, lambda: (cell.not_run for axis in AXES for cell in cells(axis))
)


def main() -> int:
    """Run the cells of the given axis, and return 1 if one has failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("uv", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("axis", nargs="?", choices=AXES)
    given = parser.parse_args()
    runner = Runner(Environments(given.uv, given.folder))
    failed = False
    for axis in [given.axis] if given.axis else AXES:
        for cell in cells(axis):
            row = runner.run(cell)
            print(*row, sep="  ", flush=True)
            failed |= FAILED in row
            PAGE.write_text(TABLE.put(PAGE.read_text(), row))
    return failed


if __name__ == "__main__":
    sys.exit(main())
