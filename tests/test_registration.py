"""How `format("jetstream")` becomes known: by being installed, by `register`, over Spark Connect, in SQL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import pyspark_jetstream
import spark_jetstream
from spark_jetstream.datasource import JetStreamDataSource
from spark_jetstream.java import ensure_java
from tests.support import session_script
from tests.support.publish import Message
from tests.support.queries import plain, refusal, stored
from tests.support.streams import Stream

MakeStream = Callable[..., Stream]


def filled(stream: MakeStream) -> Stream:
    """A stream with ten messages, some with headers."""
    s = stream()
    s.fill(6)
    s.send(*(Message(f"{s.subject}.h", b"\r\n", [("A", "1"), ("A", "2")]) for _ in range(4)))
    return s


def run_session(mode: str, s: Stream, folder: Path, **environment: str) -> dict[str, Any]:
    """What `session_script` found, in a process that starts in an empty folder."""
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYTHONPATH"))}
    environ |= {
        "JAVA_HOME": ensure_java(),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # A Spark Connect server of a test listens on a free port.
        "SPARK_TESTING": "1",
        **environment,
    }
    ran = subprocess.run(
        [sys.executable, session_script.__file__, mode, s.url, s.name, str(folder)],
        cwd=elsewhere,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    result = folder / "result.json"
    assert result.is_file(), f"{ran.stdout}\n{ran.stderr}"
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def check_reading(result: dict[str, Any], s: Stream) -> None:
    """The parts that are the same however the source became known."""
    expected = [[row.subject, row.sequence, row.data.hex().upper(), row.headers] for row in s.rows()]
    assert result["registered"] == expected
    assert result["streamed"] == [[4, 4, 2], [[sequence, data] for _, sequence, data, _ in expected]]
    assert "there is no option startingofsets; did you mean startingOffsets" in result["refused"]


@pytest.mark.full
def test_spark_connect(stream: MakeStream, tmp_path: Path) -> None:
    s = filled(stream)
    result = run_session("connect", s, tmp_path)
    assert result["session"] == "pyspark.sql.connect.session"
    # Being installed is enough on the server too.
    assert result["discovered"] == result["registered"]
    check_reading(result, s)


def test_register_alone(stream: MakeStream, tmp_path: Path) -> None:
    """As where Spark does not look for data sources: a module without one stands before the installed one."""
    s = filled(stream)
    decoy = tmp_path / "decoy"
    decoy.mkdir()
    (decoy / "pyspark_jetstream.py").touch()
    result = run_session("classic", s, tmp_path, PYTHONPATH=str(decoy))
    assert result["session"] == "pyspark.sql.session"
    assert "DATA_SOURCE_NOT_FOUND" in result["discovered"]
    check_reading(result, s)


def test_the_module_that_spark_finds() -> None:
    assert pyspark_jetstream.DefaultSource is JetStreamDataSource
    assert JetStreamDataSource.name() == "jetstream"


def test_registering_what_is_known_already(spark: SparkSession, stream: MakeStream) -> None:
    s = filled(stream)
    again = spark.newSession()
    spark_jetstream.register(again)
    reader = again.read.format("jetstream").options(servers=s.url, stream=s.name)
    assert reader.load().count() == 10


@pytest.mark.parametrize("name", ["jetstream", "JetStream"])
def test_the_name_in_any_case(spark: SparkSession, stream: MakeStream, name: str) -> None:
    s = filled(stream)
    assert spark.read.format(name).options(servers=s.url, stream=s.name).load().count() == 10


def test_options_in_any_case(spark: SparkSession, stream: MakeStream) -> None:
    s = filled(stream)
    options = {"SERVERS": s.url, "Stream": s.name, "startingoffsets": json.dumps({s.name: 4})}
    assert spark.read.format("jetstream").options(**options).load().count() == 7


def test_a_temporary_view(spark: SparkSession, stream: MakeStream) -> None:
    s = filled(stream)
    view = f"view_of_{s.subject}"
    options = f"servers '{s.url}', stream '{s.name}', subjects '{s.subject}.h'"
    spark.sql(f"CREATE TEMPORARY VIEW {view} USING jetstream OPTIONS ({options})")
    try:
        assert stored(spark.table(view)) == s.rows(7, 8, 9, 10)
        values = spark.sql(f"SELECT sequence, value FROM {view} LATERAL VIEW explode(headers['A']) AS value")
        assert values.filter("sequence = 7").count() == 2
    finally:
        spark.catalog.dropTempView(view)


def test_a_temporary_view_with_columns(spark: SparkSession, stream: MakeStream) -> None:
    s = filled(stream)
    view = f"view_of_{s.subject}"
    options = f"servers '{s.url}', stream '{s.name}'"
    spark.sql(f"CREATE TEMPORARY VIEW {view} (data BINARY, sequence BIGINT) USING jetstream OPTIONS ({options})")
    try:
        found = spark.sql(f"SELECT * FROM {view} WHERE sequence > 8 ORDER BY sequence")
        assert found.columns == ["data", "sequence"]
        assert [(bytes(row["data"]), row["sequence"]) for row in plain(found).collect()] == [
            (b"\r\n", 9),
            (b"\r\n", 10),
        ]
    finally:
        spark.catalog.dropTempView(view)


def test_a_table_takes_its_options_when_it_is_read(spark: SparkSession, stream: MakeStream) -> None:
    """Spark (4.0 to 4.3) does not hand the options a table was made with on to the reader of a Python source."""
    s = filled(stream)
    table = f"table_of_{s.subject}"
    options = f"'servers' = '{s.url}', 'stream' = '{s.name}'"
    spark.sql(f"CREATE TABLE {table} USING jetstream OPTIONS ({options})")
    try:
        assert stored(spark.sql(f"SELECT * FROM {table} WITH ({options})")) == s.rows()
        assert stored(spark.read.options(servers=s.url, stream=s.name).table(table)) == s.rows()
        with pytest.raises(AnalysisException) as caught:
            spark.table(table).collect()
        assert refusal(caught.value) == (
            "OptionError",
            "option stream is required: the name of the stream to read (or bucket, or objectBucket)",
        )
    finally:
        spark.sql(f"DROP TABLE {table}")
