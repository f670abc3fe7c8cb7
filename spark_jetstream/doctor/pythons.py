"""The Python of this process and that of Spark's workers: versions, and whether the connector is there."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from spark_jetstream.doctor import look_around
from spark_jetstream.doctor.findings import Finding, failed, ok, unknown, version_of, warning, within
from spark_jetstream.options.connection import ConnectionOptions

_START_TIMEOUT = 60.0  # seconds; importing pyspark and pyarrow takes one or two
_LIMITS = (4, 2)  # the first Spark with admission control for Python sources
_NEEDED_PYTHON = {(4, 3): (3, 11)}  # Spark -> the oldest Python that it takes, where that is not 3.10


@dataclass(frozen=True)
class Python:
    """What a Python has: its version, versions of distributions by name, and why it cannot import the connector (empty
    where it can)."""

    version: str
    versions: Mapping[str, str]
    fault: str


def this_python() -> Python:
    """The Python of this process."""
    return _python(look_around.look_around())


def _python(found: Mapping[str, object]) -> Python:
    versions = found["versions"]
    assert isinstance(versions, dict)
    return Python(str(found["python"]), versions, str(found["format"]))


def check_driver(mine: Python, environ: Mapping[str, str]) -> Iterator[Finding]:
    """The Python of this process, the libraries in it, and whether Spark sees the connector there."""
    yield ok("python", f"{mine.version}, {sys.executable}")
    yield from _spark(mine)
    yield from _libraries(mine)
    yield from _format(mine, environ)


def _spark(mine: Python) -> Iterator[Finding]:
    version = mine.versions.get("pyspark")
    if version is None:
        yield failed("pyspark", "is not installed in this Python", "pip install 'spark-jetstream[spark]'")
        return
    numbers = version_of(version)
    oldest = next((least for spark, least in _NEEDED_PYTHON.items() if numbers >= spark), (3, 10))
    if numbers < (4,):
        yield failed("pyspark", f"{version} has no Python data sources", "pip install 'pyspark>=4.0'")
    elif version_of(mine.version)[:2] < oldest:
        least = ".".join(map(str, oldest))
        yield failed("pyspark", f"{version} needs Python {least} or newer", f"use Python {least} or Spark 4.2")
    elif numbers < _LIMITS:
        said = f"{version} asks for no limits in the first batch of a query: it reads all that is there"
        yield warning("pyspark", said, "start near the end (startingOffsets, startingTimestamp), or use Spark 4.2")
    else:
        yield ok("pyspark", version)


def _libraries(mine: Python) -> Iterator[Finding]:
    try:
        wanted = metadata.requires("spark-jetstream") or []
    except metadata.PackageNotFoundError:
        yield unknown("libraries", "spark-jetstream was not installed by pip: which versions it needs is not known")
        return
    fine = []
    for line in wanted:
        found = re.fullmatch(r"([\w.-]+)([^;]*)", line.strip())
        if found is None:  # of an extra
            continue
        name, range_ = found[1], found[2].strip()
        version = mine.versions.get(name)
        if version is None:
            yield failed(name, "is not installed in this Python", f"pip install '{name}{range_}'")
        elif not within(version, range_):
            yield failed(name, f"{version} is not in the range {range_}", f"pip install '{name}{range_}'")
        else:
            fine.append(f"{name} {version}")
    if fine:
        yield ok("libraries", ", ".join(fine))


def _format(mine: Python, environ: Mapping[str, str]) -> Iterator[Finding]:
    check = 'format("jetstream")'
    runtime = environ.get("DATABRICKS_RUNTIME_VERSION")
    if importlib.util.find_spec("pyspark_jetstream") is None:
        advice = "pip install spark-jetstream puts it there; or call spark_jetstream.register(spark)"
        yield failed(check, "there is no module pyspark_jetstream, by which Spark finds it", advice)
    elif mine.fault and "pyspark" in mine.versions:
        yield failed(check, f"pyspark_jetstream cannot be imported: {mine.fault}", "mend what the error names")
    elif mine.fault:
        yield unknown(check, "cannot be looked at without pyspark")
    elif runtime:
        yield ok(check, f"on Databricks Runtime {runtime}: call spark_jetstream.register(spark) in the notebook")
    else:
        yield ok(check, "Spark finds it")


def check_extras(options: ConnectionOptions) -> Iterator[Finding]:
    """The optional libraries that connecting with these options needs."""
    signing = {"credentialsFile", "credentialsSecret", "nkeySeedFile", "nkeySeedSecret"} & options.given()
    needed = [(min(signing), "nkeys", "nkeys")] if signing else []
    if options.servers[0].startswith("ws"):
        needed.append(("servers (ws://, wss://)", "aiohttp", "websocket"))
    for option, module, extra in needed:
        if importlib.util.find_spec(module) is None:
            said = f"option {option} needs it, and it is not installed in this Python"
            yield failed(module, said, f"pip install 'spark-jetstream[{extra}]', on every node")
        else:
            yield ok(module, f"is there, for option {option}")


def check_workers(mine: Python, environ: Mapping[str, str]) -> Iterator[Finding]:
    """The Python that Spark's workers on this machine run: ``PYSPARK_PYTHON``, else ``python3`` on the ``PATH``.

    Executors on other machines cannot be looked at from here; they need the same.
    """
    check = "python of the workers"
    given = environ.get("PYSPARK_PYTHON")
    name = given or "python3"
    where = f"PYSPARK_PYTHON={given}" if given else "python3 on the PATH (PYSPARK_PYTHON is not set)"
    set_it = f"export PYSPARK_PYTHON={sys.executable}"
    path = shutil.which(name, path=environ.get("PATH", ""))
    if path is None:
        yield failed(check, f"{where}: there is no such program", set_it)
        return
    theirs = _ask(path, environ)
    if isinstance(theirs, str):
        yield failed(check, f"{where}: {theirs}", set_it)
        return
    yield from _compare(mine, theirs, where, set_it)
    yield from _driver_python(theirs, environ)


def _ask(path: str, environ: Mapping[str, str]) -> Python | str:
    """What another Python has, or why it does not say."""
    command = [path, str(Path(look_around.__file__))]
    try:
        # Elsewhere, so that it finds nothing just because it lies in the current folder.
        with tempfile.TemporaryDirectory() as folder:
            ran = subprocess.run(
                command,
                cwd=folder,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_START_TIMEOUT,
                check=False,
            )
    except OSError as error:
        return f"does not start: {(error.strerror or 'unknown reason').lower()}"
    except subprocess.TimeoutExpired:
        return f"gave no answer in {_START_TIMEOUT:g} s"
    if ran.returncode:
        last = ran.stderr.strip().splitlines()[-1:] or ["nothing said"]
        return f"ended with {ran.returncode}: {last[0]}"
    try:
        return _python(json.loads(ran.stdout))
    except (ValueError, KeyError, AssertionError):
        return "gave an answer that no Python gives"


def _compare(mine: Python, theirs: Python, where: str, set_it: str) -> Iterator[Finding]:
    check = "python of the workers"
    if version_of(theirs.version)[:2] != version_of(mine.version)[:2]:
        yield failed(check, f"{where} is {theirs.version}, and this is {mine.version}: Spark refuses that", set_it)
        return
    if theirs.fault:
        said = f"{where} cannot import the connector: {theirs.fault}"
        yield failed(check, said, f"{set_it}, or install spark-jetstream there")
        return
    differing = [
        f"{name} {theirs.versions.get(name, 'missing')} (here {mine.versions.get(name, 'missing')})"
        for name in ("spark-jetstream", "pyspark", "pyarrow", "nats-py", "pandas")
        if theirs.versions.get(name) != mine.versions.get(name)
    ]
    if differing:
        yield warning(check, f"{where} has other versions: {', '.join(differing)}", set_it)
        return
    yield ok(check, f"{theirs.version}, {where}; with spark-jetstream {theirs.versions.get('spark-jetstream', '')}")


def _driver_python(theirs: Python, environ: Mapping[str, str]) -> Iterator[Finding]:
    """What ``pyspark`` and ``spark-submit`` start for the driver."""
    given = environ.get("PYSPARK_DRIVER_PYTHON")
    if not given:
        return
    check = "PYSPARK_DRIVER_PYTHON"
    advice = f"unset {check}, or export {check}={sys.executable}"
    path = shutil.which(given, path=environ.get("PATH", ""))
    found = _ask(path, environ) if path is not None else "there is no such program"
    if isinstance(found, str):
        # Often it is a notebook's command, which runs no script.
        status = failed if path is None else warning
        yield status(check, f"{given}: {found}", advice)
    elif version_of(found.version)[:2] != version_of(theirs.version)[:2]:
        yield failed(check, f"{given} is {found.version}, and the workers have {theirs.version}", advice)
    else:
        yield ok(check, f"{found.version}, {given}")
