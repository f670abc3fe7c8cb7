"""The folder examples/: jobs run as they are, and the other files parse."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.java import ensure_java
from spark_jetstream.testing import NatsServer
from spark_jetstream.testing.process import poll
from tests.support.jobs import run_python
from tests.support.pages import DEFAULT_URL, FOLDER, ROOT

EXAMPLES = ROOT / "examples"
SUBJECTS = {"orders.de": 10, "orders.fr": 10}


@pytest.fixture
def url(nats_server_factory: Callable[..., NatsServer]) -> str:
    """A server with 20 orders of 10 to 200, and a stream for large ones."""
    server = nats_server_factory()
    with JetStreamAdmin(servers=server.url) as admin:
        admin.streams.create("ORDERS", subjects="orders.>")
        admin.streams.create("LARGE", subjects="large.>")
        for number in range(1, 21):
            data = json.dumps({"id": number, "amount": number * 10.0})
            admin.publish(f"orders.{'de' if number % 2 else 'fr'}", data)
    return server.url


def environment(folder: Path) -> dict[str, str]:
    """The variables of a user's shell in the environment that has this package.

    With `SPARK_TESTING` a server of Spark Connect listens on a free port: tests that run side by
    side start one each.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    java = {"JAVA_HOME": ensure_java(), "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
    return {
        **kept,
        **java,
        "PATH": path,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_TESTING": "1",
        "TMPDIR": str(folder),
    }


@pytest.mark.full
def test_the_script_copies_what_came_since_its_last_run(url: str, tmp_path: Path) -> None:
    arguments = ("--servers", url, "--stream", "ORDERS", "--to", tmp_path / "orders", "--once")
    for more in (0, 3):
        with JetStreamAdmin(servers=url) as admin:
            for _ in range(more):
                admin.publish("orders.it", "{}")
        run_python(
            EXAMPLES / "script" / "copy_orders.py",
            *arguments,
            cwd=tmp_path,
            env=environment(tmp_path),
        )
        sequences = pq.read_table(tmp_path / "orders", columns=["sequence"])["sequence"].to_pylist()
        assert sorted(sequences) == list(range(1, 21 + more))


@pytest.mark.full
@pytest.mark.parametrize("written", ["offsets", "commits"])
def test_ctrl_c_ends_the_script_with_one_line(written: str, url: str, tmp_path: Path) -> None:
    """In a micro-batch and after it. A terminal sends the signal to all processes, Spark's as well.

    `SparkContext.stop` interrupts the thread that sends a finished task's accumulators to Python
    (`EventLoop.stop`), the interrupt closes the channel (`PythonAccumulatorV2`), and Python prints
    the `EOFError`: the script must leave the stop to the JVM.
    """
    arguments = ("--servers", url, "--stream", "ORDERS", "--to", tmp_path / "orders")
    with subprocess.Popen(
        [sys.executable, EXAMPLES / "script" / "copy_orders.py", *arguments],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as script:
        try:
            batch = tmp_path / "orders-checkpoint" / written / "0"
            poll(
                lambda: batch.exists() or script.poll() is not None or None,
                120,
                lambda: TimeoutError(str(batch)),
            )
            os.killpg(script.pid, signal.SIGINT)
            out, err = script.communicate(timeout=120)
        finally:
            script.kill()
    assert (script.returncode, out) == (
        0,
        "stopped; the next run continues after the last micro-batch\n",
    )
    assert not re.search(r"Traceback|Exception|Error", err), err


@pytest.mark.full
def test_the_client_reads_over_spark_connect(url: str, tmp_path: Path) -> None:
    client = EXAMPLES / "connect" / "read_orders.py"
    printed = run_python(client, "local[1]", url, "ORDERS", cwd=tmp_path, env=environment(tmp_path))
    rows = [
        line.strip("|").split("|") for line in printed.splitlines() if line.startswith("|orders")
    ]
    assert {subject.strip(): int(count) for subject, count in rows} == SUBJECTS


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_pipeline_fills_its_table_and_its_sink_once(url: str, tmp_path: Path) -> None:
    project = tmp_path / "pipeline"
    shutil.copytree(EXAMPLES / "pipeline", project)
    specification = project / "spark-pipeline.yml"
    text = specification.read_text()
    assert DEFAULT_URL in text
    assert FOLDER in text
    specification.write_text(
        text.replace(DEFAULT_URL, url).replace(FOLDER, str(tmp_path / "storage"))
    )
    # As docs/pipelines.md says: Spark's default catalog forgets the tables, and the second run
    # would fail.
    catalog = "spark.sql.catalogImplementation=hive"
    command: list[str | Path] = [
        Path(sys.executable).with_name("spark-pipelines"),
        "run",
        "--conf",
        catalog,
    ]
    variables = {**environment(tmp_path), "PYSPARK_PYTHON": sys.executable}
    for run in (1, 2):
        ran = subprocess.run(
            command, cwd=project, env=variables, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        with JetStreamAdmin(servers=url) as admin:
            large = [json.loads(message.data) for message in admin.messages.read("LARGE")]
            if run == 1:
                admin.publish("orders.it", '{"id": 21, "amount": 210}')
        assert sorted(order["id"] for order in large) == list(range(10, 20 + run))
    table = pq.read_table(project / "spark-warehouse" / "orders", columns=["sequence"])
    assert sorted(table["sequence"].to_pylist()) == list(range(1, 22))
    # What it leaves in the user's folder the page names, and git ignores.
    left = {path.name for path in project.iterdir()} - {
        path.name for path in (EXAMPLES / "pipeline").iterdir()
    }
    assert left == {"spark-warehouse", "metastore_db", "derby.log"}
    page, ignored = (EXAMPLES.parent / name for name in ("docs/pipelines.md", ".gitignore"))
    for name in left:
        assert f"`{name}`" in page.read_text(encoding="utf-8")
        assert name in ignored.read_text(encoding="utf-8").replace("/\n", "\n").splitlines()


def test_the_files_that_nothing_here_can_run_parse() -> None:
    files = [path for path in EXAMPLES.rglob("*") if path.suffix in (".yml", ".yaml")]
    assert len(files) == 5
    for path in files:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
        assert documents
        assert all(isinstance(document, dict) for document in documents)
    for path in EXAMPLES.rglob("*.sh"):
        subprocess.run(["bash", "-n", path], check=True)
        assert os.access(path, os.X_OK)
    for path in EXAMPLES.rglob("*.py"):
        compile(path.read_text(encoding="utf-8"), str(path), "exec")
