"""How `format("jetstream")` becomes known: by being installed, by `register`, in SQL."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import spark_jetstream
from spark_jetstream.options.specs import FORGOTTEN
from tests.support.jobs import ROOT, run_python, run_script, write_program
from tests.support.publish import Message
from tests.support.queries import refusal, stored
from tests.support.streams import MakeStream, Stream


def filled(stream: MakeStream) -> Stream:
    s = stream()
    s.fill(6)
    s.send(*(Message(f"{s.subject}.h", b"\r\n", [("A", "1"), ("A", "2")]) for _ in range(4)))
    return s


UNDISCOVERED = """
import json, sys
from pyspark.sql import SparkSession
import spark_jetstream
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
reader = spark.read.format("jetstream").options(servers=sys.argv[1], stream=sys.argv[2])
try:
    reader.load()
except Exception as error:
    refused = str(error)
spark_jetstream.register(spark)
print("RESULT", json.dumps({"refused": refused, "rows": reader.load().count()}))
spark.stop()
"""


@pytest.mark.full
def test_where_spark_does_not_look_for_data_sources(stream: MakeStream, tmp_path: Path) -> None:
    s = filled(stream)
    # A module without a data source stands before the installed one.
    (tmp_path / "pyspark_jetstream.py").touch()
    result = run_script(
        "-c", UNDISCOVERED, s.url, s.name, folder=tmp_path, PYTHONPATH=str(tmp_path)
    )
    assert "DATA_SOURCE_NOT_FOUND" in result["refused"]
    assert result["rows"] == 10


@pytest.mark.parametrize("work", [spark_jetstream.register, spark_jetstream.attach])
def test_a_spark_without_python_data_sources_is_refused_in_one_sentence(
    work: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.__version__", "3.5.7")
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource", None)
    with pytest.raises(ImportError) as caught:
        work(None)
    assert str(caught.value) == (
        "this Spark is 3.5.7, and Python data sources begin with Spark 4.0: use one of the "
        "versions in docs/compatibility.md"
    )


WORKERS = """
import json
from pyspark.sql import SparkSession
import spark_jetstream
from spark_jetstream.errors import WorkerPythonError
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    spark_jetstream.register(spark)
    refused = None
except WorkerPythonError as error:
    refused = str(error)
print("RESULT", json.dumps({"refused": refused}))
spark.stop()
"""


@pytest.mark.full
@pytest.mark.parametrize("has_it", [True, False])
def test_a_python_of_the_workers_that_is_another(has_it: bool, tmp_path: Path) -> None:
    """Raises one sentence if a worker cannot import the package; a Python with another path may
    have it.
    """
    # Without the site module a Python has no installed packages.
    python = write_program(
        tmp_path / "python3", f'exec {sys.executable} {"" if has_it else "-S"} "$@"'
    )
    refused = run_script("-c", WORKERS, folder=tmp_path, PYSPARK_PYTHON=str(python))["refused"]
    if has_it:
        assert refused is None
    else:
        assert re.fullmatch(
            rf"Spark's workers run {python}, which cannot use spark-jetstream "
            r"\(ModuleNotFoundError: .*\): set the "
            rf"environment variable PYSPARK_PYTHON to {sys.executable} before the Spark session "
            r"starts",
            refused,
        )


def hidden(folder: Path, name: str) -> Path:
    """A user's own script or package of this name, which leaves a file when it runs."""
    place = folder / name
    script = place / "__init__.py" if not place.suffix else place
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(f"open({str(folder / 'ran')!r}, 'w')")
    return place


#: The look-up of Spark's worker, without Spark.
LOOK_UP = """
import pyspark_jetstream
try:
    pyspark_jetstream.DefaultSource({"stream": "S"}).schema()
    print("fine")
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("name", ["spark_jetstream", "spark_jetstream.py", "nats", "pandas.py"])
def test_a_name_that_hides_a_package(name: str, tmp_path: Path) -> None:
    """Nothing of it runs, and the error says where it is: `python -c` looks into the working
    directory first.
    """
    place = hidden(tmp_path, name)
    needed = "the installed package" if name.startswith("spark") else "the package"
    said = run_python("-c", LOOK_UP, cwd=tmp_path)
    assert said.startswith(f"{place} hides {needed} {place.stem}"), said
    assert not (tmp_path / "ran").exists()


def test_names_that_hide_nothing(tmp_path: Path) -> None:
    """A folder that is no package, modules that somebody put in their place, and this package in an
    archive.
    """
    (tmp_path / "nats").mkdir()
    (tmp_path / "spark_jetstream").mkdir()
    assert run_python("-c", LOOK_UP, cwd=tmp_path) == "fine\n"
    stand_in = "import sys, types; sys.modules['aiohttp'] = types.ModuleType('aiohttp')"
    assert run_python("-c", f"{stand_in}\n{LOOK_UP}", cwd=tmp_path) == "fine\n"
    with zipfile.ZipFile(tmp_path / "sent.zip", "w") as archive:
        for path in [ROOT / "pyspark_jetstream.py", *ROOT.glob("spark_jetstream/**/*.py")]:
            archive.write(path, path.relative_to(ROOT))
    sent = (
        f"import sys; sys.path.insert(0, 'sent.zip')\n{LOOK_UP}\nassert '.zip' in "
        "pyspark_jetstream.__file__"
    )
    assert run_python("-c", sent, cwd=tmp_path) == "fine\n"


LIGHT = """
import sys, threading
import pyspark_jetstream
print(sorted({"pandas", "aiohttp.client"} & sys.modules.keys()))
import aiohttp
threads, found = [], set()
together = threading.Barrier(8)
def use():
    together.wait()
    found.add(aiohttp.ClientSession)
for _ in range(8):
    threads.append(threading.Thread(target=use))
    threads[-1].start()
for thread in threads:
    thread.join()
import aiohttp as again
print(len(found), again.ClientSession in found, sys.modules["aiohttp"] is again)
"""


def test_a_worker_imports_only_what_it_uses() -> None:
    """Each worker of Spark imports the package.

    The stand-in for aiohttp gives aiohttp's names, to any number of threads.
    """
    assert run_python("-c", LIGHT) == "[]\n1 True True\n"


HIDDEN = """
import json, os, sys
from pyspark.sql import SparkSession
sys.path.remove("")  # the workers alone look there
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
said = []
for known in (lambda: None, lambda: __import__("spark_jetstream").register(spark)):
    known()
    try:
        spark.read.format("jetstream").option("stream", "S").load()
    except Exception as error:
        said.append(str(error))
print("RESULT", json.dumps({"said": said}))
spark.stop()
"""


@pytest.mark.full
def test_spark_says_what_hides_a_package(tmp_path: Path) -> None:
    """Whether the format is found or registered: a script that starts Spark would be started by
    each worker.
    """
    place = hidden(tmp_path, "nats.py")
    said = run_script("-c", HIDDEN, folder=tmp_path, PYTHONPATH=str(ROOT))["said"]
    sentence = (
        f"ImportError: {place} hides the package nats, which spark-jetstream needs: give it "
        "another name"
    )
    assert [sentence in each for each in said] == [True, True], said
    assert not (tmp_path / "ran").exists()


#: What a Spark from before 4.0.0 lacks, such as that of Databricks Runtime 15.4; its tasks write
#: rows.
BEFORE_4_0_0 = """
import sys
from pyspark import TaskContext
from pyspark.sql import Row, datasource
from pyspark.sql.types import ArrayType, MapType, StringType, StructType
del datasource.DataSourceArrowWriter, datasource.DataSourceStreamArrowWriter
from pyspark_jetstream import DefaultSource
values = MapType(StringType(), ArrayType(StringType()))
schema = StructType().add("data", "binary").add("subject", "string").add("headers", values)
writer = DefaultSource({"servers": sys.argv[1], "stream": sys.argv[2]}).writer(schema, False)
assert isinstance(writer, datasource.DataSourceWriter)
context = TaskContext._getOrCreate()
context._partitionId, context._localProperties = 0, {}
headers = [None, {"A": ["1", "2"]}]
rows = (Row(data=b"%d" % n, subject=sys.argv[3], headers=headers[n % 2]) for n in range(5000))
writer.commit([writer.write(rows)])
"""


def test_a_spark_before_4_0_0_reads_and_writes_too(stream: MakeStream) -> None:
    s = stream()
    run_python("-c", BEFORE_4_0_0, s.url, s.name, f"{s.subject}.a")
    assert s.state()["messages"] == 5000
    found = s.publisher.api(f"STREAM.MSG.GET.{s.name}", {"seq": 5000})["message"]
    assert b64decode(found["data"]) == b"4999"
    assert b"\r\nA: 1\r\nA: 2\r\n" in b64decode(found["hdrs"])


def test_known_already_and_names_in_any_case(spark: SparkSession, stream: MakeStream) -> None:
    s = filled(stream)
    options = {"SERVERS": s.url, "Stream": s.name, "startingoffsets": json.dumps({s.name: 4})}
    again = spark.newSession()
    spark_jetstream.register(again)
    for session, name in ((again, "jetstream"), (spark, "JetStream")):
        assert session.read.format(name).options(**options).load().count() == 7


def test_temporary_views(spark: SparkSession, stream: MakeStream) -> None:
    s = filled(stream)
    view = f"view_of_{s.subject}"
    using = f"USING jetstream OPTIONS (servers '{s.url}', stream '{s.name}'"
    spark.sql(f"CREATE TEMPORARY VIEW {view} {using}, subjects '{s.subject}.h')")
    spark.sql(f"CREATE TEMPORARY VIEW {view}_2 (data BINARY, sequence BIGINT) {using})")
    try:
        assert stored(spark.table(view)) == s.rows(7, 8, 9, 10)
        values = spark.sql(
            f"SELECT sequence, value FROM {view} LATERAL VIEW explode(headers['A']) AS value"
        )
        assert values.filter("sequence = 7").count() == 2
        found = spark.sql(f"SELECT * FROM {view}_2 WHERE sequence > 8 ORDER BY sequence")
        assert found.columns == ["data", "sequence"]
        assert [tuple(row) for row in found.collect()] == [(b"\r\n", 9), (b"\r\n", 10)]
    finally:
        spark.catalog.dropTempView(view)
        spark.catalog.dropTempView(f"{view}_2")


def test_a_table_takes_its_options_when_it_is_read(spark: SparkSession, stream: MakeStream) -> None:
    """Spark (4.0 to 4.3) does not hand the options a table was made with on to the reader of a
    Python source.
    """
    s = filled(stream)
    table = f"table_of_{s.subject}"
    options = f"'servers' = '{s.url}', 'stream' = '{s.name}'"
    spark.sql(f"CREATE TABLE {table} USING jetstream OPTIONS ({options})")
    try:
        assert stored(spark.sql(f"SELECT * FROM {table} WITH ({options})")) == s.rows()
        assert stored(spark.read.options(servers=s.url, stream=s.name).table(table)) == s.rows()
        with pytest.raises(AnalysisException) as caught:
            spark.table(table).collect()
        assert refusal(caught.value) == ("OptionError", FORGOTTEN)
    finally:
        spark.sql(f"DROP TABLE {table}")
