"""Streams in SQL: views of an account, schemas of payloads, paths, tables of the catalog."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import spark_jetstream
from spark_jetstream.admin import JetStreamAdmin, StoredMessage
from spark_jetstream.errors import OptionError
from spark_jetstream.sql import _sample, payload_columns, view_names
from spark_jetstream.testing import NatsServer
from tests.compat import sql_job
from tests.compat.registry_job import check_by_registry
from tests.compat.test_compat import CONNECT, environment
from tests.decoding.test_decode import check_decoded, check_read_by_libraries, check_variants
from tests.lookups.test_lookup import check_looked_up
from tests.support.jobs import ROOT, run_python, run_script
from tests.support.publish import Message
from tests.support.streams import MakeStream


@pytest.mark.parametrize(
    ("stream", "prefix", "view"),
    [
        ("ORDERS", "", "orders"),
        ("KV_Config", "", "kv_config"),
        ("eu-log", "", "eu_log"),
        ("Bücher$1", "", "b_cher_1"),
        ("2024", "", "_2024"),
        ("2024", "x", "x2024"),
        ("ORDERS", "EU-", "eu_orders"),
    ],
)
def test_the_name_of_a_view(stream: str, prefix: str, view: str) -> None:
    assert view_names([stream], prefix) == {view: stream}


@pytest.mark.parametrize(
    ("streams", "said"),
    [
        (
            ["a-b", "a_b"],
            "streams a-b and a_b would both be view a_b: attach them one by one, with another "
            "prefix each",
        ),
        (["ORDERS", "orders"], "streams ORDERS and orders would both be view orders"),
        (["A,B"], "stream A,B cannot be read: to option stream a comma stands between two names"),
    ],
)
def test_streams_that_cannot_have_a_view(streams: list[str], said: str) -> None:
    with pytest.raises(OptionError) as raised:
        view_names(streams, "")
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize(
    ("fields", "columns"),
    [
        (["id", "amount"], ["id", "amount"]),
        (["Data", "id"], ["payload_Data", "id"]),
        (["ID", "id"], ["ID", "payload_id"]),
        (["data", "payload_data"], ["payload_data", "payload_payload_data"]),
    ],
)
def test_the_columns_of_a_payload(fields: list[str], columns: list[str]) -> None:
    assert payload_columns(fields, ["subject", "data"]) == columns


def test_a_sample_has_as_many_messages_as_there_are(
    nats_server: NatsServer, stream: MakeStream
) -> None:
    """Also where most sequences are gone, as in a bucket with a key that changes all the time."""
    made = stream(max_msgs_per_subject=1)
    keys = [*"abc", *["c"] * 100]
    made.send(
        *(
            Message(f"{made.subject}.{key}", json.dumps({key: at}).encode())
            for at, key in enumerate(keys)
        )
    )
    with JetStreamAdmin(servers=nats_server.url) as admin:
        info = admin.streams.load(made.name)
        assert _sample(admin, info, 10) == ['{"a": 0}', '{"b": 1}', '{"c": 102}']
        assert _sample(admin, info, 1) == ['{"c": 102}']
        assert _sample(admin, info, 0) == []
        with pytest.raises(OptionError, match=r"^sample must be a whole number from 0 to"):
            _sample(admin, info, -1)


def test_arguments_of_another_type() -> None:
    nothing: Any = None
    texts: Any = ["A", "B"]
    with pytest.raises(OptionError, match=r"^streams must be a pattern of names"):
        spark_jetstream.attach(nothing, texts)
    with pytest.raises(
        OptionError, match=r"^argument version must be a column, such as .*, not 'v'$"
    ):
        spark_jetstream.decode(nothing, "json", {"v": "a int"}, version="v")  # type: ignore[arg-type]


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "one by one"])
def test_a_sample_has_the_last_messages_and_reads_few_others(
    nats_server: NatsServer, stream: MakeStream, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    made = stream(max_msgs_per_subject=1, allow_direct=direct)
    keys = [*map(str, range(300)), *["hot"] * 200, "300"]
    made.send(
        *(
            Message(f"{made.subject}.{key}", json.dumps({"n": at}).encode())
            for at, key in enumerate(keys)
        )
    )
    read = []
    with JetStreamAdmin(servers=nats_server.url) as admin:
        real = admin.messages.read

        def watched(*what: Any, **named: Any) -> Iterator[StoredMessage]:
            for message in real(*what, **named):
                read.append(message.seq)
                yield message

        monkeypatch.setattr(admin.messages, "read", watched)
        info = admin.streams.load(made.name)
        assert _sample(admin, info, 20) == [
            json.dumps({"n": at}) for at in (*range(282, 300), 499, 500)
        ]
        assert len(read) < 150
        read.clear()
        monkeypatch.setattr("spark_jetstream.sql._SAMPLE_BYTES", 95)  # the tenth goes beyond it
        assert _sample(admin, info, 20) == [
            json.dumps({"n": at}) for at in (*range(292, 300), 499, 500)
        ]
        assert len(read) < 150


def test_the_package_does_not_import_pyspark() -> None:
    """Until `attach` or `schema_of` is used."""
    script = (
        "import sys, spark_jetstream; print('pyspark' in sys.modules, "
        "spark_jetstream.attach.__module__)"
    )
    assert run_python("-c", script) == "False spark_jetstream.sql\n"
    with pytest.raises(AttributeError, match="has no attribute 'detach'"):
        _ = spark_jetstream.detach


COLUMNS = ["stream", "subject", "sequence", "timestamp", "headers", "data"]
VIEWS = ["_2024", "broken", "kept", "kv_config", "kv_no", "large", "obj_files", "orders"]
ANOTHER = "stream ORDERS: there is another table or view {}; attach it with another prefix"
NO_STREAM = (
    "cannot look at stream ORDRES: stream not found (code 404, error 10059); did you mean ORDERS"
)
ATTACHED = {
    "attached": [
        ["_2024", "stream", "2024", []],
        ["kv_config", "bucket", "CONFIG", ["on"]],
        ["kv_no", "stream", "KV_no", []],
        ["obj_files", "objectBucket", "FILES", []],
        ["orders", "stream", "ORDERS", ["ID", "payload_id", "item", "payload_timestamp"]],
        ["eu_log", "stream", "eu-log", []],
    ],
    "orders": [[1, 1, "noon", None, 2], [2, 2, None, 3, None], [6, 4, None, None, None]],
    "config": [["a", True]],
    "files": [["f", 5]],
    "log": [["eu-log", "plain"]],
    "empty": COLUMNS,
    "some": [
        ["orders", "stream", "ORDERS", ["ID", "payload_id", "item", "new", "payload_timestamp"]]
    ],
    # A view of another pattern stays, also where its stream is gone; so do views that others made
    # of one.
    "after some": sorted([*VIEWS, "eu_log"]),
    "after all": sorted([*VIEWS, "returns"]),
    "refreshed": [[4, None], [5, 6]],
    "prefixed": [["my_orders", "stream", "ORDERS", []]],
    "in its place": True,
    "errors": [
        ANOTHER.format("their_orders"),
        ANOTHER.format("orders"),
        ANOTHER.format("a_b").replace("ORDERS", "a-b"),
        'streams must be a pattern of names with *, ?, [a-z] and {a,b}, not "ORD[", because a [ is '
        "not closed",
        "there is no option strem",
        NO_STREAM,
        "the last 1000 messages of stream 2024 hold no field of a JSON object",
        NO_STREAM,
    ],
    "schema": "struct<ID:bigint,id:bigint,item:struct<n:bigint>,new:bigint,timestamp:string>",
    "schema of the last": "struct<id:bigint,new:bigint>",
}
#: Of the errors of paths.
PATHS = [
    "stream not found (code 404, error 10059); did you mean ORDERS",
    "load() takes one path, the name of a stream: write several streams as one text, "
    'load("ORDERS,RETURNS")',
    "option bucket and the path of load() exclude each other: the path is the name of a stream",
    "another stream than the one in option stream captures this subject",
]


def check_attached(result: dict[str, Any], *, plans_once: bool) -> None:
    """Spark 4.0 plans a view at each use, later ones keep the plan of the first."""
    assert result == {**ATTACHED, "planned again": 6 if plans_once else 7}


def check_paths(result: dict[str, Any]) -> None:
    assert result["copies"] == [[1, "1"], [2, "1"]]
    assert result["both"] == 3
    assert [said in error for said, error in zip(PATHS, result["errors"], strict=True)] == [
        True
    ] * len(PATHS), result


def check_tables(result: dict[str, Any], *, keeps_frame: bool, has_stream: bool) -> None:
    """A frame of a table is planned once on a classic Spark after 4.0 alone.

    Spark 4.0 knows no STREAM(...).
    """
    reads = ("with", "path", "read.table", "view of text", "view of a frame", "frame")
    assert result["first"] == dict.fromkeys(reads, 1)
    assert result["second"] == {**dict.fromkeys(reads, 2), "frame": 1 if keeps_frame else 2}
    assert result["rows"] == [[1, "1"], [2, "2"], [3, "3"], [4, "3"]]
    assert result["keyed"] == [["a", "1"]]
    assert 'mode "overwrite" is not possible' in result["overwrite"]
    assert "option stream is required" in result["forgotten"]
    assert (result["readStream.table"], result["after toTable"], result["streaming view"]) == (
        4,
        8,
        8,
    )
    told = [result[name] for name in ("STREAM t WITH", "STREAM(t) WITH", "STREAM(view)")]
    failures = ["PARSE_SYNTAX_ERROR", "PARSE_SYNTAX_ERROR", "UNRESOLVED_COLUMN.WITHOUT_SUGGESTION"]
    assert told == ([8, 8, 8] if has_stream else failures)


def test_an_attached_view(spark: SparkSession, stream: MakeStream) -> None:
    s = stream()
    s.send(
        Message(f"{s.subject}.a", b'{"n": 1, "data": "x"}'), Message(f"{s.subject}.b", b"no JSON")
    )
    session = spark.newSession()
    made = spark_jetstream.attach(session, s.name, servers=s.url)
    assert made == [(s.subject, "stream", s.name, ("payload_data", "n"))]
    found = session.sql(
        f"SELECT sequence, n, payload_data FROM {s.subject} ORDER BY sequence"
    ).collect()
    assert [tuple(row) for row in found] == [(1, 1, "x"), (2, None, None)]


@pytest.mark.full
def test_views_of_an_account(spark: SparkSession, server: NatsServer) -> None:
    result = sql_job.attached(spark.newSession(), server.url)
    check_attached(json.loads(json.dumps(result)), plans_once=True)


@pytest.mark.full
def test_paths(spark: SparkSession, server: NatsServer, tmp_path: Path) -> None:
    check_paths(sql_job.paths(spark.newSession(), server.url, str(tmp_path)))


@pytest.mark.full
def test_tables(spark: SparkSession, server: NatsServer, tmp_path: Path) -> None:
    check_tables(
        sql_job.tables(spark.newSession(), server.url, str(tmp_path)),
        keeps_frame=True,
        has_stream=True,
    )


@pytest.mark.full
@pytest.mark.parametrize("version", [CONNECT, "4.0.5"])
def test_other_sparks(server: NatsServer, version: str, tmp_path: Path) -> None:
    settings = environment(version)
    path = os.pathsep.join(filter(None, [settings.get("PYTHONPATH"), str(ROOT)]))
    job = Path(sql_job.__file__)
    arguments = ("connect" if version == CONNECT else "classic", server.url, tmp_path)
    result = run_script(job, *arguments, folder=tmp_path, **{**settings, "PYTHONPATH": path})
    newer = not result["spark"].startswith("4.0.")
    check_attached(result["attached"], plans_once=newer)
    check_paths(result["paths"])
    check_decoded(result["decoded"])
    check_variants(result["variants"], has_colon=newer)
    check_read_by_libraries(result["by libraries"], newer=newer)
    check_looked_up(result["looked up"], newer=newer)
    check_by_registry(result["by registry"], newer=newer)
    check_tables(result["tables"], keeps_frame=newer and version != CONNECT, has_stream=newer)
