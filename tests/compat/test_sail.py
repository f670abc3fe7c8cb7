"""Sail, which has no JVM, reads and writes what was published, in one process and as a cluster."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import spark_jetstream
from spark_jetstream.testing import NatsServer
from tests.compat.test_compat import COUNT, SCHEMA, digest, filled
from tests.support.jobs import job_environment, run_python, run_script
from tests.support.pages import DEFAULT_URL, FOLDER, blocks
from tests.support.project import PYPROJECT, ROOT
from tests.support.publish import Message
from tests.support.sinking import seen
from tests.support.streams import Stream

__all__ = ["filled"]

VERSION = "0.7.2"
PAGE = ROOT / "docs" / "sail.md"
JOB = Path(__file__).with_name("sail_job.py")


def environment() -> dict[str, str]:
    """The environment of a script that runs on Sail, in the Python of the suite."""
    home = ROOT / ".spark" / f"sail-{VERSION}"
    assert (home / ".installed").is_file(), f"Sail {VERSION} is not there: run `make compat-sparks`"
    return {"PYTHONPATH": os.pathsep.join((str(home), str(ROOT)))}


def run(
    filled: Stream, target: Stream, folder: Path, python: Path, **environment: str
) -> dict[str, Any]:
    """Run `sail_job.py` and return its result."""
    arguments = (JOB, filled.url, filled.name, folder, target.name)
    return run_script(*arguments, folder=folder, python=python, **environment)


def check(result: dict[str, Any], filled: Stream, target: Stream, tries: int = 1) -> None:
    """Check that `sail_job.py` read all that was published, and the errors that it caught."""
    check_messages(result, filled)
    check_buckets(result["buckets"])
    check_writes(result["writes"], tries)
    assert result["copied"] == result["collected"] == 60_000
    counters = f"{target.name}_COUNTERS"
    assert result["counters"] == [[f"{counters}.0", "20"], [f"{counters}.1", "25"]]
    [letter] = result["dead letters"]
    given_up = f"{target.name}_GIVEN_UP"
    assert letter[:6] == [given_up, "c", "unreadable", "bad", "it is", False]
    assert result["files"] == {"written": 100, "saved": True}
    assert "only supports streaming data" in result["streaming"]["read"]
    assert "unsupported extension node for streaming" in result["streaming"]["written"]


def check_messages(result: dict[str, Any], filled: Stream) -> None:
    assert result["schema"] == SCHEMA
    for name in ("batch", "parts"):
        rows = result[name]
        assert rows["count"] == COUNT
        assert rows["sequences"] == list(range(1, COUNT + 1))
        assert rows["digest"] == digest(filled)
        assert rows["without_time"] == 0
    assert result["zones"] == [COUNT, COUNT // 3]
    assert result["strict"] == ["struct<data:binary,sequence:bigint>", COUNT]
    assert (result["filtered"], result["subjects"], result["path"]) == (10, COUNT // 2, COUNT)
    assert result["sql"] == [COUNT // 2, COUNT - 1]
    schema, count, refused = result["ntz"]
    assert (schema, count) == (SCHEMA, COUNT)
    assert "the type timestamp_ntz, but it is timestamp" in refused
    assert "OptionError: there is no option steam; did you mean stream" in result["misspelt"]
    assert "StreamNotFound: cannot read stream ABSENT" in result["absent"]
    assert 'SchemaError: the schema declares column "headers" NOT NULL' in result["not null"]


def check_buckets(buckets: dict[str, Any]) -> None:
    assert buckets["current"] == [[f"key.{number}", str(number + 10)] for number in range(10)]
    assert buckets["history"] == 20
    assert buckets["as of"] == [[f"key.{number}", str(number)] for number in range(10)]
    assert "option delivery cannot be deduplicated with bucket on Sail" in buckets["delivery"]
    assert buckets["objects"] == [[f"object.{number}", 300_000, 300_000] for number in range(3)]
    assert buckets["listed"] == [[f"object.{number}", True] for number in range(3)]


def check_writes(writes: dict[str, Any], tries: int) -> None:
    # How many rows are stored after the first write and after the second one.
    assert writes["plain"] == [COUNT, 2 * COUNT]
    assert writes["msg_id"] == writes["origin"] == [COUNT, COUNT]
    assert writes["content"] == [COUNT - 10, COUNT - 10]
    assert "option delivery cannot be deduplicated on Sail" in writes["default"]
    assert "option delivery cannot be exactly-once on Sail" in writes["exactly"]
    assert "DeliveryError: a row has no usable id of its own" in writes["null"]
    # Sail adds tasks after it has counted them. Their rows are stored when it notices, and a
    # cluster tries the job three times.
    assert "Invalid partition id 1 in write result (expected < 1)" in writes["unequal"]
    assert writes["unequal stored"] == 4 * tries
    assert 'mode "overwrite" is not possible' in writes["overwrite"]
    assert "row 1 of a task cannot be stored at subject 'nowhere.x'" in writes["refused"]
    assert 'SchemaError: the sink knows no column "extra"' in writes["column"]
    assert 'column "data" is of type int, but must be binary or string' in writes["types"]


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["local", "local-cluster"])
def test_every_kind_is_read_and_written(filled: Stream, mode: str, tmp_path: Path) -> None:
    target = Stream(filled.url, f"SAILED_{mode.replace('-', '_').upper()}", filled.publisher)
    python = Path(sys.executable)
    result = run(filled, target, tmp_path, python, SAIL_MODE=mode, **environment())
    # A cluster tries a write three times.
    check(result, filled, target, tries=3 if mode == "local-cluster" else 1)


def install_metadata(folder: Path) -> None:
    """Write the metadata of the package into a folder, where Sail finds its entry point."""
    installed = folder / f"spark_jetstream-{spark_jetstream.__version__}.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: spark-jetstream\nVersion: {spark_jetstream.__version__}\n"
    )
    for group, entries in PYPROJECT["project"]["entry-points"].items():
        with (installed / "entry_points.txt").open("a") as file:
            lines = (f"{name} = {value}\n" for name, value in entries.items())
            file.writelines([f"[{group}]\n", *lines])


def with_metadata(folder: Path) -> dict[str, str]:
    """The environment of a process that finds Sail, and the package by its metadata."""
    install_metadata(folder)
    variables = environment()
    return job_environment(PYTHONPATH=os.pathsep.join((str(folder), variables["PYTHONPATH"])))


@pytest.mark.full
@pytest.mark.timeout(300)
def test_the_program_of_the_page(tmp_path: Path) -> None:
    with NatsServer() as server:
        orders, shipped = Stream(server.url, "ORDERS"), Stream(server.url, "SHIPPED")
        payloads = [b'{"id": %d, "item": "tea"}' % number for number in range(3)]
        orders.send(*(Message("orders.new", payload) for payload in payloads))
        texts = {DEFAULT_URL: server.url, FOLDER: str(tmp_path)}
        program = tmp_path / "program.py"
        program.write_text("\n".join(block.replaced(texts) for block in blocks(PAGE, "python")))
        printed = run_python(program, env=with_metadata(tmp_path), cwd=tmp_path)
        assert re.search(r"orders\.new *\| *3 *\|", printed), printed
        assert sorted((item.subject, item.data) for item in seen(shipped)) == [
            ("shipped.tea", b"%d" % number) for number in range(3)
        ]
        assert pq.read_table(tmp_path / "orders.parquet").num_rows == 3
        shipped.publisher.close()
        orders.publisher.close()


@pytest.mark.full
@pytest.mark.timeout(300)
def test_the_doctor_reads_a_row(filled: Stream, tmp_path: Path) -> None:
    options = json.dumps({"servers": filled.url, "stream": filled.name})
    module = ("-m", "spark_jetstream.doctor.child", "row", "Sail")
    printed = run_python(*module, cwd=tmp_path, env=with_metadata(tmp_path), given=options)
    assert printed.splitlines()[-1] == "1"


def test_make_fetches_this_release() -> None:
    assert f"SAIL := sail-{VERSION}\n" in (ROOT / "Makefile").read_text()
