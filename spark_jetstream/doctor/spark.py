"""Checks of Java, Python and a local Spark on this machine."""

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
from spark_jetstream.doctor import child, sail
from spark_jetstream.doctor.findings import (
    Finding,
    failed,
    ok,
    unknown,
    version_of,
    warning,
    within,
)
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.options.servers import address
from spark_jetstream.options.values import revealed
from spark_jetstream.protocol.units import counted

_SET_JAVA_HOME = "export JAVA_HOME=$(python -m spark_jetstream.java)"
_ALL_JAVAS = (4, 2)  # the first Spark that starts on any Java from 17 on
_START_TIMEOUT = 60.0  # seconds; importing pyspark and pyarrow takes one or two
_ADMISSION_CONTROL = (4, 2)  # the first Spark with admission control for Python sources
#: Options with a key that signs the login.
_SIGNING = {"credentialsFile", "credentialsSecret", "nkeySeedFile", "nkeySeedSecret"}
_NO_PROGRAM = "the program does not exist"
_SPARK_TIMEOUT = 300.0  # seconds; half a minute on a busy machine
_run = partial(subprocess.run, capture_output=True, text=True, errors="replace", check=False)
_ERROR_LINE = re.compile(
    r"^(?:\S*\.)?\w*(?:Error|Exception|UnsupportedClassVersion)\w*: .+$",
    re.MULTILINE,
)


def check_java(environ: Mapping[str, str], pyspark: str | None) -> Iterator[Finding]:
    """Check the Java that Spark starts: that of ``JAVA_HOME``, else ``java`` on the ``PATH``.

    ``pyspark`` is the version of PySpark, None if it is not known.
    """
    if remote := environ.get("SPARK_REMOTE"):
        # Its parameters, such as a token, follow the address.
        place = address(remote).partition(";")[0]
        yield ok("java", f"not needed here: Spark runs elsewhere (SPARK_REMOTE={place})")
        return
    if home := environ.get("JAVA_HOME"):
        yield _check_java_program(Path(home, "bin", "java"), f"JAVA_HOME={home}", pyspark)
        return
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is None:
        text = "JAVA_HOME is not set, and there is no java on the PATH"
        yield failed("java", text, _java_advice())
        return
    yield _check_java_program(Path(on_path), f"{on_path} (on the PATH)", pyspark)


def _java_advice() -> str:
    """Return how to get a Java that Spark runs on."""
    if java.bundled_java() is not None:
        return _SET_JAVA_HOME
    install = f"install Java {java.MINIMUM_VERSION} or newer and set JAVA_HOME"
    return f"{install}, or pip install 'spark-jetstream[java]' and {_SET_JAVA_HOME}"


def _check_java_program(program: Path, where: str, pyspark: str | None) -> Finding:
    _, version = java.probe(program)
    if version is None:
        return failed("java", f"{where}: {program} does not start", _java_advice())
    if version < java.MINIMUM_VERSION:
        text = f"{where} is Java {version}, and Spark 4 needs {java.MINIMUM_VERSION} or newer"
        return failed("java", text, _java_advice())
    old_spark = pyspark is not None and version_of(pyspark) < _ALL_JAVAS
    if old_spark and version > java.NEWEST_FOR_ALL_SPARKS:
        text = f"{where} is Java {version}, on which Spark {pyspark} does not start"
        versions = f"{java.MINIMUM_VERSION} to {java.NEWEST_FOR_ALL_SPARKS}"
        return failed("java", text, f"use Java {versions}, or Spark 4.2")
    if not java.has_vector_module(program):
        text = f"{where} is Java {version} without the module {java.VECTOR_MODULE}"
        return failed("java", text, _SET_JAVA_HOME)
    return ok("java", f"Java {version}, {where}")


@dataclass(frozen=True)
class Python:
    """A Python, the versions of distributions in it, and the error of importing the connector.

    Without an error it is ``""``.
    """

    version: str
    versions: Mapping[str, str]
    import_error: str


def this_python() -> Python:
    """Return the Python of this process."""
    return Python(**child.look_around())


def check_driver(mine: Python) -> Iterator[Finding]:
    """Check the Python of this process, its engine and its libraries."""
    yield ok("python", f"{mine.version}, {sys.executable}")
    if not sail.is_alone(mine.versions):
        yield _check_pyspark(mine)
    yield from sail.check_sail(mine.versions)
    yield from _check_libraries(mine)


def _check_pyspark(mine: Python) -> Finding:
    version = mine.versions.get("pyspark")
    if version is None:
        advice = "pip install 'spark-jetstream[spark]'"
        return failed("pyspark", "is not installed in this Python", advice)
    numbers = version_of(version)
    if numbers < (4,):
        return failed(
            "pyspark",
            f"{version} has no Python data sources",
            "pip install 'pyspark>=4.0'",
        )
    oldest = _oldest_python(numbers)
    if version_of(mine.version)[:2] < oldest:
        least = ".".join(map(str, oldest))
        text = f"{version} needs Python {least} or newer"
        return failed("pyspark", text, f"use Python {least} or Spark 4.2")
    if numbers < _ADMISSION_CONTROL:
        text = (
            f"{version} asks for no limits in the first batch of a streaming query: it reads all "
            "stored messages"
        )
        advice = "start near the end (startingOffsets, startingTimestamp), or use Spark 4.2"
        return warning("pyspark", text, advice)
    return ok("pyspark", version)


def _oldest_python(spark: tuple[int, ...]) -> tuple[int, int]:
    """Return the oldest Python that a version of Spark runs on."""
    if spark >= (4, 3):
        return 3, 11
    return 3, 10


def _check_libraries(mine: Python) -> Iterator[Finding]:
    try:
        wanted = metadata.requires("spark-jetstream") or []
    except metadata.PackageNotFoundError:
        text = "spark-jetstream was not installed by pip: which versions it needs is not known"
        yield unknown("libraries", text)
        return
    fine = []
    for line in wanted:
        requirement = re.fullmatch(r"([\w.-]+)([^;]*)", line.strip())
        if requirement is None:
            continue  # a condition follows it: only an extra needs it
        name = requirement[1]
        range_ = requirement[2].strip()
        version = mine.versions.get(name)
        advice = f"pip install '{name}{range_}'"
        if version is None:
            yield failed(name, "is not installed in this Python", advice)
        elif not within(version, range_):
            yield failed(name, f"{version} is not in the range {range_}", advice)
        else:
            fine.append(f"{name} {version}")
    if fine:
        yield ok("libraries", ", ".join(fine))


def _check_format(mine: Python, workers: Finding, environ: Mapping[str, str]) -> Finding:
    """Check whether Spark finds the connector.

    ``workers`` is the finding about the Python of the workers.
    """
    check = 'format("jetstream")'
    if importlib.util.find_spec("pyspark_jetstream") is None:
        text = "there is no module pyspark_jetstream, by which Spark finds it"
        advice = (
            "pip install spark-jetstream puts it there; or call spark_jetstream.register(spark)"
        )
        return failed(check, text, advice)
    if mine.import_error:
        if "pyspark" not in mine.versions:
            return unknown(check, "cannot be looked at without pyspark")
        text = f"pyspark_jetstream cannot be imported: {mine.import_error}"
        return failed(check, text, "mend what the error names")
    if runtime := environ.get("DATABRICKS_RUNTIME_VERSION"):
        # There Spark does not look for modules by itself.
        call = "call spark_jetstream.register(spark) in the notebook"
        return ok(check, f"on Databricks Runtime {runtime}: {call}")
    if workers.status == "failed":
        text = "Spark does not find it: the Python of the workers looks for it, and cannot load it"
        return failed(check, text, workers.what_to_do)
    return ok(check, "Spark finds it")


def check_extras(options: ConnectionOptions) -> Iterator[Finding]:
    """Check the optional libraries that connecting with these options needs."""
    signing = _SIGNING & options.given()
    if signing:
        yield _check_extra(min(signing), "nkeys", extra="nkeys")
    if options.servers[0].startswith("ws"):
        yield _check_extra("servers (ws://, wss://)", "aiohttp", extra="websocket")


def _check_extra(option: str, module: str, extra: str) -> Finding:
    if importlib.util.find_spec(module) is None:
        text = f"option {option} needs it, and it is not installed in this Python"
        return failed(module, text, f"pip install 'spark-jetstream[{extra}]', on every node")
    return ok(module, f"is installed, for option {option}")


def check_workers(mine: Python, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check the Python of Spark's workers on this machine, and the connector in it.

    It is ``PYSPARK_PYTHON``, else ``python3`` on the ``PATH``.
    """
    given = environ.get("PYSPARK_PYTHON")
    where = (
        f"PYSPARK_PYTHON={given}" if given else "python3 on the PATH (PYSPARK_PYTHON is not set)"
    )
    theirs = _ask(given or "python3", environ)
    finding = _compare_pythons(mine, theirs, where)
    yield finding
    yield _check_format(mine, finding, environ)
    if isinstance(theirs, Python):
        yield from _check_driver_python(theirs, environ)


def _ask(program: str, environ: Mapping[str, str]) -> Python | str:
    """Run `child.look_around` in another Python. Return what it has, or why that is not known."""
    # The environment is that of the job, which may have another PATH than this process.
    path = shutil.which(program, path=environ.get("PATH", ""))
    if path is None:
        return _NO_PROGRAM
    try:
        ran = _run(
            [path, child.__file__],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            timeout=_START_TIMEOUT,
        )
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
    check = "python of the workers"
    set_it = f"export PYSPARK_PYTHON={sys.executable}"
    if isinstance(theirs, str):
        return failed(check, f"{where}: {theirs}", set_it)
    if version_of(theirs.version)[:2] != version_of(mine.version)[:2]:
        text = f"{where} is {theirs.version}, and this is {mine.version}: Spark refuses that"
        return failed(check, text, set_it)
    if theirs.import_error:
        text = f"{where} cannot import the connector: {theirs.import_error}"
        if " hides " in theirs.import_error:  # as `spark_jetstream` says of a script with its name
            return failed(check, text, "do what the error says")
        return failed(check, text, f"{set_it}, or install spark-jetstream there")
    differing = _differing_versions(mine, theirs)
    if differing:
        return warning(check, f"{where} has other versions: {', '.join(differing)}", set_it)
    connector = theirs.versions.get("spark-jetstream", "")
    return ok(check, f"{theirs.version}, {where}; with spark-jetstream {connector}")


def _differing_versions(mine: Python, theirs: Python) -> list[str]:
    differing = []
    for name in ("spark-jetstream", "pyspark", "pyarrow", "nats-py", "pandas"):
        here = mine.versions.get(name, "missing")
        there = theirs.versions.get(name, "missing")
        if here != there:
            differing.append(f"{name} {there} (here {here})")
    return differing


def _check_driver_python(theirs: Python, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check the Python that ``pyspark`` and ``spark-submit`` start for the driver."""
    given = environ.get("PYSPARK_DRIVER_PYTHON")
    if not given:
        return
    check = "PYSPARK_DRIVER_PYTHON"
    advice = f"unset {check}, or export {check}={sys.executable}"
    driver = _ask(given, environ)
    if driver == _NO_PROGRAM:
        yield failed(check, f"{given}: {driver}", advice)
    elif isinstance(driver, str):
        # Often it is a notebook's command, which runs no script.
        yield warning(check, f"{given}: {driver}", advice)
    elif version_of(driver.version)[:2] != version_of(theirs.version)[:2]:
        yield failed(
            check,
            f"{given} is {driver.version}, and the workers have {theirs.version}",
            advice,
        )
    else:
        yield ok(check, f"{driver.version}, {given}")


def check_spark(
    connection: ConnectionOptions,
    reading: Mapping[str, str],
    environ: Mapping[str, str],
    engine: str,
) -> Iterator[Finding]:
    """Start a local engine in another process, and read one row with ``reading``.

    These are options of the source. ``engine`` is one of `sail.engine_of`.
    """
    check = f"local {engine}"
    options = SecretStr(json.dumps({**_job_options(connection), **reading}))
    began = time.monotonic()
    try:
        command = [sys.executable, "-m", "spark_jetstream.doctor.child", "row", engine]
        # Options go over standard input: all users of the machine can see a command line.
        given = options.get_secret_value()
        local = {name: value for name, value in environ.items() if name != "SPARK_REMOTE"}
        ran = _run(command, env=local, input=given, timeout=_SPARK_TIMEOUT)
    except subprocess.TimeoutExpired:
        text = f"no row arrived within {_SPARK_TIMEOUT:g} s"
        yield failed(check, text, f"see what is wrong above, and the log of {engine}")
        return
    seconds = time.monotonic() - began
    # Spark and Java may write lines before the last one.
    rows = ran.stdout.strip().rpartition("\n")[2]
    if ran.returncode or not rows.isdigit():
        advice = "see what is wrong above"
        if engine == "Spark":
            advice += "; start spark-shell to see all of it"
        yield failed(check, _spark_error(ran.stderr), advice)
        return
    read = f"{counted(int(rows), 'row')} of the stream's end"
    yield ok(check, f"started, and read {read}, in {seconds:.0f} s")


def _job_options(connection: ConnectionOptions) -> dict[str, Any]:
    """Return the options in the form in which a job gives them.

    Spark makes text of numbers and booleans.
    """
    given = connection.given()
    options = {}
    for spec in ConnectionOptions.specs:
        # The values of a context are among the options already.
        if spec.name in given and spec.name != "context":
            value = revealed(getattr(connection, spec.field_name))
            options[spec.name] = _job_option(value)
    return options


def _job_option(value: Any) -> Any:
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return f"{value * 1000:.0f}ms"
    return value


def _spark_error(stderr: str) -> str:
    """Return the line of Spark's and Java's output that names the error."""
    # A line of py4j only says that something else was raised.
    errors = [line for line in _ERROR_LINE.findall(stderr) if not line.startswith("py4j.")]
    lines = errors[-1:] or stderr.strip().splitlines()[-1:] or ["ended without a message"]
    return str(lines[0]).strip()[:500]
