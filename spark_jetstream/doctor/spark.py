"""Checks of Java and Python on this machine, and of a local Spark that reads through the connector."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from spark_jetstream import java
from spark_jetstream.doctor import child
from spark_jetstream.doctor.findings import Finding, failed, ok, unknown, version_of, warning, within
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.options.servers import address
from spark_jetstream.options.values import revealed
from spark_jetstream.protocol.units import counted

_SET_JAVA_HOME = "export JAVA_HOME=$(python -m spark_jetstream.java)"
_ALL_JAVAS = (4, 2)  # the first Spark that starts on any Java from 17 on
_START_TIMEOUT = 60.0  # seconds; importing pyspark and pyarrow takes one or two
_ADMISSION_CONTROL = (4, 2)  # the first Spark with admission control for Python sources
_NEEDED_PYTHON = {(4, 3): (3, 11)}  # Spark -> the oldest Python that it takes, where that is not 3.10
_NO_PROGRAM = "there is no such program"
_SPARK_TIMEOUT = 300.0  # seconds; half a minute on a busy machine
_run = partial(subprocess.run, capture_output=True, text=True, errors="replace", check=False)
_ERROR_LINE = re.compile(r"^(?:\S*\.)?\w*(?:Error|Exception|UnsupportedClassVersion)\w*: .+$", re.MULTILINE)


def check_java(environ: Mapping[str, str], pyspark: str | None) -> Iterator[Finding]:
    """Check the Java that Spark starts: that of ``JAVA_HOME``, else ``java`` on the ``PATH``.

    ``pyspark`` is the version of PySpark, None if it is not known.
    """
    check = "java"
    if remote := environ.get("SPARK_REMOTE"):
        # Its parameters, such as a token, follow the address.
        place = address(remote).partition(";")[0]
        yield ok(check, f"not needed here: Spark runs elsewhere (SPARK_REMOTE={place})")
        return
    extra = "pip install 'spark-jetstream[java]' and "
    install = f"install Java {java.MINIMUM_VERSION} or newer and set JAVA_HOME, or {extra}{_SET_JAVA_HOME}"
    advice = install if java.bundled_java() is None else _SET_JAVA_HOME
    given, on_path = environ.get("JAVA_HOME"), shutil.which("java", path=environ.get("PATH", ""))
    if not given and on_path is None:
        yield failed(check, "JAVA_HOME is not set, and there is no java on the PATH", advice)
        return
    program = Path(given, "bin", "java") if given else Path(str(on_path))
    where = f"JAVA_HOME={given}" if given else f"{program} (on the PATH)"
    _, version = java.probe(program)
    if version is None:
        yield failed(check, f"{where}: {program} does not start", advice)
    elif version < java.MINIMUM_VERSION:
        yield failed(check, f"{where} is Java {version}, and Spark 4 needs {java.MINIMUM_VERSION} or newer", advice)
    elif version > java.NEWEST_FOR_ALL_SPARKS and pyspark is not None and version_of(pyspark) < _ALL_JAVAS:
        text = f"{where} is Java {version}, on which Spark {pyspark} does not start"
        yield failed(check, text, f"use Java {java.MINIMUM_VERSION} to {java.NEWEST_FOR_ALL_SPARKS}, or Spark 4.2")
    elif not java.has_vector_module(program):
        yield failed(check, f"{where} is Java {version} without the module {java.VECTOR_MODULE}", _SET_JAVA_HOME)
    else:
        yield ok(check, f"Java {version}, {where}")


@dataclass(frozen=True)
class Python:
    """A Python: its version, those of distributions by name, and the error of importing the connector, or ``""``."""

    version: str
    versions: Mapping[str, str]
    import_error: str


def this_python() -> Python:
    """Return the Python of this process."""
    return Python(**child.look_around())


def check_driver(mine: Python) -> Iterator[Finding]:
    """Check the Python of this process and its libraries."""
    yield ok("python", f"{mine.version}, {sys.executable}")
    yield from _check_pyspark(mine)
    yield from _check_libraries(mine)


def _check_pyspark(mine: Python) -> Iterator[Finding]:
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
    elif numbers < _ADMISSION_CONTROL:
        text = f"{version} asks for no limits in the first batch of a streaming query: it reads all that is there"
        yield warning("pyspark", text, "start near the end (startingOffsets, startingTimestamp), or use Spark 4.2")
    else:
        yield ok("pyspark", version)


def _check_libraries(mine: Python) -> Iterator[Finding]:
    try:
        wanted = metadata.requires("spark-jetstream") or []
    except metadata.PackageNotFoundError:
        yield unknown("libraries", "spark-jetstream was not installed by pip: which versions it needs is not known")
        return
    fine = []
    for line in wanted:
        requirement = re.fullmatch(r"([\w.-]+)([^;]*)", line.strip())
        if requirement is None:  # of an extra
            continue
        name, range_ = requirement[1], requirement[2].strip()
        version = mine.versions.get(name)
        if version is None:
            yield failed(name, "is not installed in this Python", f"pip install '{name}{range_}'")
        elif not within(version, range_):
            yield failed(name, f"{version} is not in the range {range_}", f"pip install '{name}{range_}'")
        else:
            fine.append(f"{name} {version}")
    if fine:
        yield ok("libraries", ", ".join(fine))


def _check_format(mine: Python, workers: Finding, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check whether Spark finds the connector; ``workers`` is the finding about the Python of the workers."""
    check = 'format("jetstream")'
    runtime = environ.get("DATABRICKS_RUNTIME_VERSION")
    if importlib.util.find_spec("pyspark_jetstream") is None:
        advice = "pip install spark-jetstream puts it there; or call spark_jetstream.register(spark)"
        yield failed(check, "there is no module pyspark_jetstream, by which Spark finds it", advice)
    elif mine.import_error and "pyspark" in mine.versions:
        yield failed(check, f"pyspark_jetstream cannot be imported: {mine.import_error}", "mend what the error names")
    elif mine.import_error:
        yield unknown(check, "cannot be looked at without pyspark")
    elif runtime:
        yield ok(check, f"on Databricks Runtime {runtime}: call spark_jetstream.register(spark) in the notebook")
    elif workers.status == "failed":
        text = "Spark does not find it: the Python of the workers looks for it, and cannot load it"
        yield failed(check, text, workers.what_to_do)
    else:
        yield ok(check, "Spark finds it")


def check_extras(options: ConnectionOptions) -> Iterator[Finding]:
    """Check the optional libraries that connecting with these options needs."""
    signing = {"credentialsFile", "credentialsSecret", "nkeySeedFile", "nkeySeedSecret"} & options.given()
    needed = [(min(signing), "nkeys", "nkeys")] if signing else []
    if options.servers[0].startswith("ws"):
        needed.append(("servers (ws://, wss://)", "aiohttp", "websocket"))
    for option, module, extra in needed:
        if importlib.util.find_spec(module) is None:
            text = f"option {option} needs it, and it is not installed in this Python"
            yield failed(module, text, f"pip install 'spark-jetstream[{extra}]', on every node")
        else:
            yield ok(module, f"is there, for option {option}")


def check_workers(mine: Python, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check the Python of Spark's workers on this machine, and whether Spark finds the connector in it.

    It is ``PYSPARK_PYTHON``, else ``python3`` on the ``PATH``.
    """
    given = environ.get("PYSPARK_PYTHON")
    where = f"PYSPARK_PYTHON={given}" if given else "python3 on the PATH (PYSPARK_PYTHON is not set)"
    theirs = _ask(given or "python3", environ)
    finding = _compare_pythons(mine, theirs, where)
    yield finding
    yield from _check_format(mine, finding, environ)
    if isinstance(theirs, Python):
        yield from _check_driver_python(theirs, environ)


def _ask(program: str, environ: Mapping[str, str]) -> Python | str:
    """Run `child.look_around` in another Python. Return what it has, or why that is not known."""
    path = shutil.which(program, path=environ.get("PATH", ""))
    if path is None:
        return _NO_PROGRAM
    try:
        ran = _run([path, child.__file__], env=dict(environ), stdin=subprocess.DEVNULL, timeout=_START_TIMEOUT)
    except OSError as error:
        return f"does not start: {(error.strerror or 'unknown reason').lower()}"
    except subprocess.TimeoutExpired:
        return f"gave no answer in {_START_TIMEOUT:g} s"
    if ran.returncode:
        last = ran.stderr.strip().splitlines()[-1:] or ["no message"]
        return f"ended with {ran.returncode}: {last[0]}"
    try:
        return Python(**json.loads(ran.stdout))
    except (ValueError, TypeError):
        return "printed something unexpected"


def _compare_pythons(mine: Python, theirs: Python | str, where: str) -> Finding:
    check, set_it = "python of the workers", f"export PYSPARK_PYTHON={sys.executable}"
    if isinstance(theirs, str):
        return failed(check, f"{where}: {theirs}", set_it)
    if version_of(theirs.version)[:2] != version_of(mine.version)[:2]:
        return failed(check, f"{where} is {theirs.version}, and this is {mine.version}: Spark refuses that", set_it)
    if theirs.import_error:
        text = f"{where} cannot import the connector: {theirs.import_error}"
        hidden = " hides " in theirs.import_error
        return failed(
            check, text, "do what the error says" if hidden else f"{set_it}, or install spark-jetstream there"
        )
    differing = [
        f"{name} {theirs.versions.get(name, 'missing')} (here {mine.versions.get(name, 'missing')})"
        for name in ("spark-jetstream", "pyspark", "pyarrow", "nats-py", "pandas")
        if theirs.versions.get(name) != mine.versions.get(name)
    ]
    if differing:
        return warning(check, f"{where} has other versions: {', '.join(differing)}", set_it)
    return ok(check, f"{theirs.version}, {where}; with spark-jetstream {theirs.versions.get('spark-jetstream', '')}")


def _check_driver_python(theirs: Python, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check the Python that ``pyspark`` and ``spark-submit`` start for the driver."""
    given = environ.get("PYSPARK_DRIVER_PYTHON")
    if not given:
        return
    check = "PYSPARK_DRIVER_PYTHON"
    advice = f"unset {check}, or export {check}={sys.executable}"
    driver = _ask(given, environ)
    if isinstance(driver, str):
        # Often it is a notebook's command, which runs no script.
        status = failed if driver == _NO_PROGRAM else warning
        yield status(check, f"{given}: {driver}", advice)
    elif version_of(driver.version)[:2] != version_of(theirs.version)[:2]:
        yield failed(check, f"{given} is {driver.version}, and the workers have {theirs.version}", advice)
    else:
        yield ok(check, f"{driver.version}, {given}")


def check_spark(
    connection: ConnectionOptions, reading: Mapping[str, str], environ: Mapping[str, str]
) -> Iterator[Finding]:
    """Start a local Spark in another process, and read one row with ``reading`` (options of the source)."""
    options = SecretStr(json.dumps({**_job_options(connection), **reading}))
    began = time.monotonic()
    try:
        # Options go over standard input: all users of the machine can see a command line.
        command = [sys.executable, "-m", "spark_jetstream.doctor.child", "row"]
        given = options.get_secret_value()
        local = {name: value for name, value in environ.items() if name != "SPARK_REMOTE"}
        ran = _run(command, env=local, input=given, timeout=_SPARK_TIMEOUT)
    except subprocess.TimeoutExpired:
        text = f"no row came within {_SPARK_TIMEOUT:g} s"
        yield failed("local Spark", text, "see what is wrong above; Spark's own log knows more")
        return
    seconds = time.monotonic() - began
    rows = ran.stdout.strip().rpartition("\n")[2]
    if ran.returncode or not rows.isdigit():
        advice = "see what is wrong above; start spark-shell to see all of it"
        yield failed("local Spark", _spark_error(ran.stderr), advice)
        return
    yield ok("local Spark", f"started, and read {counted(int(rows), 'row')} of the stream's end, in {seconds:.0f} s")


def _job_options(connection: ConnectionOptions) -> dict[str, Any]:
    """Return the options in the form in which a job gives them. Spark makes text of numbers and booleans."""
    given = connection.given()
    return {
        spec.name: _job_option(revealed(getattr(connection, spec.field_name)))
        for spec in ConnectionOptions.specs
        if spec.name in given and spec.name != "context"
    }


def _job_option(value: Any) -> Any:
    if isinstance(value, tuple):
        return ",".join(value)
    return f"{value * 1000:.0f}ms" if isinstance(value, float) else value


def _spark_error(stderr: str) -> str:
    """Return the line of Spark's and Java's output that names the error."""
    # A line of py4j only says that something else was raised.
    errors = [line for line in _ERROR_LINE.findall(stderr) if not line.startswith("py4j.")]
    lines = errors[-1:] or stderr.strip().splitlines()[-1:] or ["ended without a message"]
    return str(lines[0]).strip()[:500]
