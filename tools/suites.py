"""Run the suites of Spark's Kafka source and of faults on other versions, and while servers are updated.

    python -m tools.suites UV FOLDER [spark|python|server|libraries|update] [--suite "like Kafka"]

Each axis runs with the newest of the others, in environments that `tools.environments` makes. The
newest combination is the one of `make test-all`. On the axis `update` a cluster begins with an
older nats-server, and its servers are replaced one by one while others fail. Without an axis all of
them run, some six minutes for each row. With `--suite` only this suite runs, and the others of its
rows count as not run. The results go to the table "suites" of the page docs/compatibility.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from packaging.requirements import Requirement

from tests.compat.test_compat import java_for_all
from tests.support.jobs import run_python
from tests.support.project import PYPROJECT, ROOT
from tests.support.servers import server_version
from tools.environments import Environments, versions_script
from tools.matrix import SERVERS, SPARKS
from tools.version_table import PAGE, VersionTable, stamp

_FAULTS = "tests/chaos/test_faults.py::test_nothing_is_lost_and_nothing_comes_twice"
_CLUSTER = "faults, a cluster"
#: The name of each suite, with its tests. Seed 0 and seed -1 are the fixed scenarios, seed -2 the
#: one of an update.
SUITES = {
    "like Kafka": ("tests/source/test_like_kafka.py", "tests/sink/test_like_kafka.py"),
    "faults, one server": tuple(f"{_FAULTS}[seed-{seed}]" for seed in (0, -1, 1)),
    _CLUSTER: (f"{_FAULTS}[seed-2]",),
}
UPDATE = (f"{_FAULTS}[seed--2]",)
#: As many as seeds 1 and 2 have.
FAULTS = "14"

AXES = ("spark", "python", "server", "libraries", "update")
LIBRARIES = ("pyarrow", "numpy", "pydantic")
COLUMNS = ("axis", "Python", "Spark", "nats-server", *LIBRARIES, *SUITES, "on", "commit")
PASSED, NOT_RUN = "passed", "not run here"

_VERSIONS = versions_script("pyspark", *LIBRARIES)


@dataclass(frozen=True)
class Combination:
    """Versions that run together. With `older` the servers of a cluster begin with this version."""

    axis: str
    python: str = "3.13"
    spark: str = SPARKS[-1]
    server: str = SERVERS[-1]
    oldest: bool = False
    older: str = ""

    @property
    def name(self) -> str:
        """The name of its environment. Each nats-server has one, because tests take the server from there."""
        oldest = "-oldest" if self.oldest else ""
        return f"suites-{self.python}-{self.spark}-{self.server}{oldest}"

    @property
    def not_run(self) -> list[str]:
        """The row of the table when it has not run."""
        server = f"{self.older} to {self.server}" if self.older else self.server
        libraries = ["" for _ in LIBRARIES]
        results = [NOT_RUN for _ in SUITES]
        return [self.axis, self.python, self.spark, server, *libraries, *results, "", ""]


COMBINATIONS = (
    *(Combination("spark", spark=spark) for spark in SPARKS[:-1]),
    # Spark 4.3 does not know Python 3.10.
    Combination("python", python="3.10", spark="4.2"),
    Combination("python", python="3.12"),
    Combination("python", python="3.13"),
    *(Combination("server", server=server) for server in SERVERS[:-1]),
    Combination("libraries", python="3.11", oldest=True),
    *(Combination("update", older=older) for older in SERVERS[:-1]),
)
TABLE = VersionTable("suites", COLUMNS, lambda: (each.not_run for each in COMBINATIONS))


class Runner:
    """Runs suites in environments of their versions."""

    def __init__(self, environments: Environments) -> None:
        self._environments = environments

    def row(self, combination: Combination, suites: Collection[str]) -> list[str]:
        """Run these suites of a combination, and return its row of the table."""
        packages = [f"pyspark=={combination.spark}.*", *test_packages()]
        python = self._environments.python(
            combination.name, combination.python, packages, oldest=combination.oldest
        )
        if python is None:
            return combination.not_run
        binary = self._environments.server(combination.server)
        _put_beside(python, binary)
        number, spark, *libraries = json.loads(run_python("-c", _VERSIONS, python=python))
        server = server_version(binary)
        if combination.older:
            older = self._environments.server(combination.older)
            server = f"{server_version(older)} to {server}"
            results = ["", "", run(python, UPDATE, CHAOS_SERVER=str(older))]
        else:
            results = [
                run(python, tests) if name in suites else NOT_RUN for name, tests in SUITES.items()
            ]
        return [combination.axis, number, spark, server, *libraries, *results, *stamp()]


def test_packages() -> Iterator[str]:
    """The requirements of the suites beside this project and Spark."""
    yield from (
        requirement
        for requirement in PYPROJECT["dependency-groups"]["test"]
        if Requirement(requirement).name != "pyspark"
    )
    yield from PYPROJECT["project"]["optional-dependencies"]["testing"][1:]


def _put_beside(python: Path, binary: Path) -> None:
    """Let the tests of this Python start this nats-server: they look beside Python first."""
    place = python.with_name("nats-server")
    place.unlink(missing_ok=True)
    place.hardlink_to(binary)


def run(python: Path, tests: tuple[str, ...], **environment: str) -> str:
    """Run these tests in the environment of this Python, and return the text of the table's cell.

    The output of tests that fail is printed.
    """
    own = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), str(python))
    java = {"JAVA_HOME": java_for_all(), "SPARK_LOCAL_IP": "127.0.0.1"}
    variables = {**os.environ, **own, **java, "CHAOS_FAULTS": FAULTS, **environment}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            str(python),
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--junitxml={report}",
        ]
        printed = subprocess.run(
            [*command, *tests],
            cwd=ROOT,
            env=variables,
            check=False,
            capture_output=True,
            text=True,
        )
        if not report.exists():
            raise SystemExit(printed.stdout + printed.stderr)
        (suite,) = ElementTree.parse(report).iter("testsuite")
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    failed = counts["failures"] + counts["errors"]
    if failed:
        print(printed.stdout, file=sys.stderr)
        return f"{failed} of {counts['tests']} failed"
    return f"{PASSED}, {counts['skipped']} not possible" if counts["skipped"] else PASSED


def main() -> int:
    """Run the combinations of the given axis, and return 1 if a test of one has failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("uv", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("axis", nargs="?", choices=AXES)
    parser.add_argument("--suite", choices=SUITES)
    given = parser.parse_args()
    suites = SUITES if given.suite is None else (given.suite,)
    runner = Runner(Environments(given.uv, given.folder))
    failed = False
    for combination in COMBINATIONS:
        # An update has faults of a cluster alone.
        has_suite = not combination.older or _CLUSTER in suites
        if has_suite and given.axis in (None, combination.axis):
            row = runner.row(combination, suites)
            print(*row, sep="  ", flush=True)
            failed |= any(cell.endswith(" failed") for cell in row)
            PAGE.write_text(TABLE.put(PAGE.read_text(), row))
    return failed


if __name__ == "__main__":
    sys.exit(main())
