"""``spark-jetstream doctor`` and this machine: Java, Python, versions, and a Spark that does not
start.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from spark_jetstream.admin import JetStreamAdmin, StreamInfo
from spark_jetstream.doctor import sail, spark
from spark_jetstream.doctor.checks import Examination, _reading
from spark_jetstream.doctor.findings import Finding
from spark_jetstream.doctor.permissions import Job
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.testing import NatsServer
from tests.support.calls import sequences
from tests.support.command import run_command
from tests.support.jobs import ROOT, write_program
from tests.support.project import PYPROJECT
from tests.support.streams import MakeStream
from tests.test_java import fake_java


def java(environ: Mapping[str, str], pyspark: str) -> Finding:
    (finding,) = spark.check_java(environ, pyspark)
    assert (
        finding.status == "ok" or "JAVA_HOME" in finding.what_to_do or "Java" in finding.what_to_do
    )
    return finding


# Java


def test_a_java_that_spark_does_not_start_on_fails(tmp_path: Path) -> None:
    good, old, new = (
        fake_java(tmp_path / version, version) for version in ("17.0.15", "11.0.2", "25")
    )
    bare = fake_java(tmp_path / "bare", "21", vector=False)
    here, path = {"JAVA_HOME": str(good)}, {"PATH": str(good / "bin")}
    fine: list[tuple[dict[str, str], str]] = [
        (here, "4.3.0"),
        (path, "4.3.0"),
        ({"JAVA_HOME": str(new)}, "4.3.0"),
    ]
    for environ, pyspark in [*fine, ({"SPARK_REMOTE": "sc://far"}, "4.3.0")]:
        assert java(environ, pyspark).status == "ok"
    for environ, pyspark, text in (
        ({"JAVA_HOME": str(old), **path}, "4.3.0", "Java 11"),
        ({"JAVA_HOME": str(new)}, "4.1.4", "Spark 4.1.4 does not start"),
        ({"JAVA_HOME": str(bare)}, "4.3.0", "jdk.incubator.vector"),
        ({"PATH": str(tmp_path)}, "4.3.0", "JAVA_HOME is not set"),
        ({"JAVA_HOME": str(tmp_path)}, "4.3.0", "does not start"),
    ):
        finding = java(environ, pyspark)
        assert (finding.status, text in finding.said) == ("failed", True)


def test_the_doctor_hides_the_parameters_of_a_spark_remote_address() -> None:
    for parameters in ("/;token=s3cret;user_id=ann", ";token=s3cret", "/s3cret"):
        assert java({"SPARK_REMOTE": f"sc://far:443{parameters}"}, "4.3.0").said.endswith(
            "(SPARK_REMOTE=sc://far:443)"
        )


# Python

MINE = spark.Python("3.11.7", {"pyspark": "4.3.0", "pyarrow": "18.0.0", "nats-py": "2.16.0"}, "")


def script(path: Path, does: object) -> str:
    """A program that answers as a Python would, or does what a text says."""
    text = does if isinstance(does, str) else f"echo {json.dumps(json.dumps(does))}"
    return str(write_program(path, text))


def workers(python: str, **more: str) -> list[Finding]:
    findings = list(
        spark.check_workers(MINE, {"PYSPARK_PYTHON": python, "PATH": "/usr/bin:/bin", **more})
    )
    assert all(item.status == "ok" or sys.executable in item.what_to_do for item in findings)
    return findings


def answer(version: str = "3.11.2", import_error: str = "", **versions: str) -> dict[str, object]:
    names = {name.replace("_", "-"): value for name, value in versions.items()}
    return {
        "version": version,
        "versions": {**MINE.versions, **names},
        "import_error": import_error,
    }


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("echo 'Bad: thing' >&2; exit 3", "ended with 3: Bad: thing"),
        ("echo hello", "printed something unexpected"),
        (answer("3.10.1"), "is 3.10.1, and this is 3.11.7"),
        (
            answer(import_error="ModuleNotFoundError: no spark_jetstream"),
            "cannot import the connector",
        ),
        (
            answer(nats_py="2.9.0", pandas="2.2.0"),
            "nats-py 2.9.0 (here 2.16.0), pandas 2.2.0 (here missing)",
        ),
        (answer(), "3.11.2"),
        (None, "the program does not exist"),
    ],
)
def test_a_python_of_the_workers_must_have_the_connector(
    code: Any, text: str, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    finding, form = workers(str(python) if code is None else script(python, code))
    expected = {
        "3.11.2": "ok",
        "nats-py 2.9.0 (here 2.16.0), pandas 2.2.0 (here missing)": "warning",
    }
    assert (finding.status, text in finding.said) == (expected.get(text, "failed"), True)
    # Spark looks for the format with that Python.
    assert (form.check, form.status) == (
        'format("jetstream")',
        "failed" if finding.status == "failed" else "ok",
    )


def test_the_python_of_the_driver_must_be_that_of_the_workers(tmp_path: Path) -> None:
    good = script(tmp_path / "good", answer())
    script(tmp_path / "older", answer("3.12.1"))
    script(tmp_path / "jupyter", "exit 1")
    for name, status in (
        ("none", "failed"),
        ("good", "ok"),
        ("older", "failed"),
        ("jupyter", "warning"),
    ):
        findings = workers(good, PYSPARK_DRIVER_PYTHON=str(tmp_path / name))
        assert [item.status for item in findings] == ["ok", "ok", status]


@pytest.mark.parametrize(
    ("python", "pyspark", "status"),
    [
        ("3.11.0", "4.3.0", "ok"),
        ("3.10.9", "4.3.0", "failed"),
        ("3.10.9", "4.2.1", "ok"),
        ("3.11.0", "4.0.5", "warning"),
    ],
)
def test_a_spark_must_suit_the_python(python: str, pyspark: str, status: str) -> None:
    driver = spark.Python(python, {"pyspark": pyspark}, "")
    (finding,) = [finding for finding in spark.check_driver(driver) if finding.check == "pyspark"]
    assert finding.status == status


def test_a_library_out_of_its_range_fails() -> None:
    versions = {**spark.this_python().versions, "nats-py": "3.0.0", "pyarrow": "12.0"}
    del versions["numpy"]
    findings = {
        finding.check: finding
        for finding in spark.check_driver(spark.Python("3.11.0", versions, ""))
    }
    assert [findings[name].status for name in ("nats-py", "pyarrow", "numpy")] == ["failed"] * 3
    assert findings["nats-py"].what_to_do == "pip install 'nats-py<2.17,>=2.15'"
    assert "pydantic" in findings["libraries"].said


@pytest.mark.parametrize(
    ("versions", "status", "text"),
    [
        ({"pysail": "0.7.2", "pyspark-client": "4.2.0"}, "ok", "0.7.2, with client 4.2.0"),
        ({"pysail": "0.8.0", "pyspark-client": "4.2.0"}, "warning", "0.8.0 was not tested"),
        ({"pysail": "0.7.2"}, "failed", "0.7.2 has no client"),
    ],
)
def test_sail_takes_the_place_of_spark(
    versions: dict[str, str], status: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = {
        finding.check: finding
        for finding in spark.check_driver(spark.Python("3.11.0", versions, ""))
    }
    assert "pyspark" not in findings
    assert (findings["pysail"].status, text in findings["pysail"].said) == (status, True)

    mine = spark.Python("3.11.0", versions, "")
    monkeypatch.setattr(spark, "this_python", lambda: mine)
    machine = Examination({}, {}, Job(("read",), "S"), None)
    checks = [finding.check for finding in machine._machine()]
    assert {"python", "pysail", 'format("jetstream") on Sail'} <= set(checks)
    assert not {"java", "pyspark", "python of the workers"} & set(checks)


def test_spark_and_sail_may_be_beside_each_other() -> None:
    versions = {"pysail": "0.7.2", "pyspark": "4.3.0"}
    checks = [item.check for item in spark.check_driver(spark.Python("3.11.0", versions, ""))]
    assert {"pyspark", "pysail"} <= set(checks)
    assert list(sail.check_sail({"pyspark": "4.3.0"})) == []


def test_sail_finds_the_format_by_the_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"pysail": "0.7.2", "pyspark-client": "4.2.0"}
    declared = PYPROJECT["project"]["entry-points"]["pysail.datasources"]
    [(name, value)] = declared.items()
    entry = metadata.EntryPoint(name, value, "pysail.datasources")
    assert entry.load().name() == name == "jetstream"
    for entries, status in (([entry], "ok"), ([], "failed")):
        monkeypatch.setattr(metadata, "entry_points", lambda group, found=entries: found)
        _, form = sail.check_sail(versions)
        assert form.status == status


def test_spark_must_find_the_format(tmp_path: Path) -> None:
    python = script(tmp_path / "python", answer())
    _, form = workers(python, DATABRICKS_RUNTIME_VERSION="17.3")
    assert "spark_jetstream.register(spark)" in form.said
    broken = replace(MINE, import_error="ImportError: no")
    _, form = spark.check_workers(broken, {"PYSPARK_PYTHON": python, "PATH": "/usr/bin:/bin"})
    assert "cannot be imported: ImportError: no" in form.said


def test_a_script_that_hides_a_package_is_named_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doctor looks for modules where a worker does, and does not run them."""
    (tmp_path / "nats.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    environ = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    findings = list(spark.check_workers(MINE, environ))
    assert [item.status for item in findings] == ["failed", "failed"]
    assert (
        f"cannot import the connector: ImportError: {tmp_path}/nats.py hides the package nats"
        in findings[0].said
    )
    assert [item.what_to_do for item in findings] == ["do what the error says"] * 2
    assert not (tmp_path / "ran").exists()


def test_an_option_names_the_library_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = ConnectionOptions.from_spark({"nkeySeedFile": "user.nk"})
    assert [finding.status for finding in spark.check_extras(seed)] == ["ok"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (finding,) = spark.check_extras(seed)
    assert (finding.status, "nkeySeedFile" in finding.said) == ("failed", True)
    (finding,) = spark.check_extras(ConnectionOptions.from_spark({"servers": "ws://a"}))
    assert "[websocket]" in finding.what_to_do
    assert list(spark.check_extras(ConnectionOptions())) == []


# All of it


def test_the_machine_that_runs_the_tests_is_in_order(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "17", "17.0.15")))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    ran = run_command("doctor", "--json", url=nats_server.url)
    printed = {item["check"]: item["status"] for item in ran.json}
    expected = (
        "java",
        "python",
        "pyspark",
        "libraries",
        "python of the workers",
        'format("jetstream")',
    )
    assert [printed[name] for name in expected] == ["ok"] * 6
    assert ran.code == 0


def test_a_spark_that_does_not_start_fails_with_its_error(tmp_path: Path) -> None:
    options = ConnectionOptions.from_spark(
        {"servers": "nats://127.0.0.1:1", "user": "a", "password": "not-shown"}
    )
    environ = {**os.environ, "JAVA_HOME": str(tmp_path)}
    (finding,) = spark.check_spark(options, {"stream": "S"}, environ, "Spark")
    assert finding.status == "failed"
    assert "JAVA" in finding.said
    assert "not-shown" not in str(finding)


@pytest.mark.parametrize(
    "config", [{}, {"retention": "workqueue", "allow_direct": True}], ids=["limits", "workqueue"]
)
def test_a_local_spark_reads_what_is_left_of_the_end(
    nats_server: NatsServer, stream: MakeStream, config: dict[str, Any]
) -> None:
    """All that was there may be gone, also after the doctor looked at the stream."""
    orders = stream(**config)

    def read(info: StreamInfo) -> list[int]:
        return sequences(
            "b", {"servers": nats_server.url, **_reading(Job(("read",), orders.name), info)}
        )

    with JetStreamAdmin(servers=nats_server.url) as admin:
        assert read(admin.streams.load(orders.name)) == []
        orders.fill(3)
        info = admin.streams.load(orders.name)
        assert read(info) == [3]
        orders.purge()
        assert read(admin.streams.load(orders.name)) == []
        orders.fill(2)
        orders.purge(keep=1)
        assert read(info) == [5]


@pytest.mark.full
@pytest.mark.parametrize(("purged", "said"), [(False, "read 1 row "), (True, "read 0 rows ")])
def test_a_local_spark_reads_a_row(
    nats_server: NatsServer,
    stream: MakeStream,
    monkeypatch: pytest.MonkeyPatch,
    purged: bool,
    said: str,
) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")  # where the machine's jobs run
    orders = stream()
    orders.fill(3)
    if purged:
        orders.purge()
    ran = run_command("doctor", "--spark", "--json", "--stream", orders.name, url=nats_server.url)
    (finding,) = [item for item in ran.json if item["check"] == "local Spark"]
    assert (finding["status"], said in finding["said"]) == ("ok", True), finding
