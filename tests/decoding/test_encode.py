"""encode: payloads that the readers of `decode` read, and columns that do not fit a schema."""

from __future__ import annotations

import datetime
import json
import pickle
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_jetstream import decode, encode
from spark_jetstream.decoding.avro import AvroReader
from spark_jetstream.decoding.avro_writer import AvroWriter
from spark_jetstream.decoding.column_types import columns_of
from spark_jetstream.decoding.columns import PayloadReader, read_all
from spark_jetstream.decoding.descriptors import descriptor_of
from spark_jetstream.decoding.frames import frame_of, read_indexes, written_indexes
from spark_jetstream.decoding.payload_writer import PayloadWriter, write_all
from spark_jetstream.decoding.protobuf import ProtobufReader
from spark_jetstream.decoding.protobuf_writer import ProtobufWriter
from spark_jetstream.decoding.registry_client import RegistryClient, SchemaReference
from spark_jetstream.errors import JetStreamError, RegistryError, SchemaError
from tests.decoding.test_avro import DEFAULTS, KINDS, MILLIS, POINT, record, without_logical
from tests.decoding.test_protobuf import SHOP, full
from tests.support.protos import message_classes
from tests.support.registry import FakeRegistry, Fault


def written(writer: PayloadWriter, *rows: Any, kind: Any = None) -> list[bytes]:
    """Payloads, written as in a worker."""
    sent = pickle.loads(pickle.dumps(writer))
    payloads = write_all(sent, pa.array(rows, kind or writer.fields), b"")
    return payloads.to_pylist()  # type: ignore[no-any-return]


def read(reader: PayloadReader, payloads: list[bytes]) -> list[Any]:
    sent = pickle.loads(pickle.dumps(reader))
    array = read_all(sent, pa.array(payloads), pa.array([""] * len(payloads)))
    assert [row["error"] for row in array.to_pylist()] == [None] * len(payloads)
    return [row["value"] for row in array.to_pylist()]


@pytest.mark.parametrize(("kind", "arrow", "value", "expected"), KINDS)
def test_types_of_avro(kind: Any, arrow: str, value: Any, expected: Any) -> None:
    schema = record(("field", kind))
    writer = AvroWriter(schema, "argument schema")
    assert str(writer.fields) == f"struct<field: {arrow}>"
    payloads = written(writer, {"field": value})
    assert read(AvroReader({"": schema}), payloads) == [{"field": expected}]
    assert without_logical(kind) is not None


def test_defaults_and_nulls_of_avro() -> None:
    schema = record(("id", "long"), ("flag", "boolean"), ("at", ["null", POINT]))
    schema["fields"].append({"name": "c", "type": "string", "default": "x"})
    writer = AvroWriter(schema, "argument schema")
    assert [path for path in ("id", "flag", "c", "at.x") if writer.is_optional(path)] == ["c"]
    kind = pa.struct([field for field in writer.fields if field.name != "c"])
    (payload,) = written(writer, {"id": 1, "flag": True, "at": {"x": 2}}, kind=kind)
    assert read(AvroReader({"": schema}), [payload]) == [
        {"id": 1, "flag": True, "at": {"x": 2}, "c": "x"}
    ]
    # fastavro would write a null as false.
    for row in ({"id": 1, "flag": None, "c": "x"}, {"id": None, "flag": True, "c": "x"}):
        with pytest.raises(SchemaError, match=r"^a row cannot be written by argument schema \(Val"):
            written(writer, {"id": 0, "flag": True, "c": "x"}, row)


def test_microseconds_are_cut_off_milliseconds() -> None:
    schema = record(("at", MILLIS))
    then = datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, datetime.timezone.utc)
    payloads = written(AvroWriter(schema, "argument schema"), {"at": then})
    assert read(AvroReader({"": schema}), payloads) == [{"at": then.replace(microsecond=999000)}]


@pytest.mark.parametrize(("kind", "default", "value"), DEFAULTS)
def test_defaults_of_avro_are_written(kind: Any, default: Any, value: Any) -> None:
    schema = record(("id", "long"))
    schema["fields"].append({"name": "field", "type": kind, "default": default})
    without = pa.struct([("id", pa.int64())])
    payloads = written(AvroWriter(schema, "argument schema"), {"id": 1}, kind=without)
    assert read(AvroReader({"": schema}), payloads) == [{"id": 1, "field": value}]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> dict[str, type[Any]]:
    return message_classes(tmp_path_factory.mktemp("protos"), SHOP)


def test_types_of_protobuf(shop: dict[str, type[Any]]) -> None:
    order = shop["shop.Order"]
    reader = ProtobufReader({"": order}, indexed=False)
    rows = read(reader, [full(order).SerializeToString(), b""])
    writer = ProtobufWriter(descriptor_of(order, None, ""), "argument schema")
    assert writer.fields == reader.fields
    payloads = written(writer, *rows)
    assert read(reader, payloads) == rows
    assert order.FromString(payloads[0]).by[7].n == 4
    empty = written(writer, dict.fromkeys(rows[0]), {"item": {}, "state": "9"})
    assert read(reader, empty)[0] == rows[1]
    assert [read(reader, empty)[1][name] for name in ("item", "state")] == [
        {"n": 0, "by": []},
        "9",
    ]
    timed = ProtobufWriter(descriptor_of(shop["shop.Timed"], None, ""), "argument schema")
    then = datetime.datetime(2026, 3, 1, tzinfo=datetime.timezone.utc)
    assert read(
        ProtobufReader({"": shop["shop.Timed"]}, indexed=False), written(timed, {"at": {"a": then}})
    ) == [{"at": [("a", then)]}]


def test_keys_of_maps_of_protobuf(tmp_path: Path) -> None:
    text = """
    syntax = "proto3";
    message Maps {
      message Item { int32 n = 1; }
      map<uint64, string> a = 1; map<fixed64, Item> b = 2; map<bool, int32> c = 3;
      map<uint32, uint64> d = 4; map<string, double> e = 5; map<sint64, bytes> f = 6;
    }
    """
    maps = message_classes(tmp_path, text)["Maps"]
    writer = ProtobufWriter(descriptor_of(maps, None, ""), "argument schema")
    most = Decimal(2**64 - 1)
    row = {
        "a": [(most, "x")],
        "b": [(most, {"n": 1})],
        "c": [(True, 2)],
        "d": [(2**32 - 1, most)],
        "e": [("", 0.5)],
        "f": [(-(2**63), b"")],
    }
    assert read(ProtobufReader({"": maps}, indexed=False), written(writer, row)) == [row]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"c": -1}, "ValueError: "),
        ({"d": Decimal(2) ** 64}, "ValueError: "),
        ({"state": "LOST"}, "ValueError: 'LOST' is no name of shop.State (NEW, SENT)"),
        ({"tags": [None]}, "TypeError: "),
        ({"items": [None]}, "TypeError: an item of field shop.Order.items is null"),
        ({"by": {1: None}}, "TypeError: an item of field shop.Order.ByEntry.value is null"),
        (
            {"first": "x", "second": 0},
            "ValueError: first and second are fields of oneof one, and neither is null",
        ),
    ],
)
def test_rows_that_are_no_message(
    shop: dict[str, type[Any]], row: dict[str, Any], said: str
) -> None:
    writer = ProtobufWriter(descriptor_of(shop["shop.Order"], None, ""), "argument schema")
    with pytest.raises(SchemaError) as raised:
        written(writer, {"a": 1}, row)
    assert str(raised.value).startswith(f"a row cannot be written by argument schema ({said}")


@pytest.mark.parametrize("indexes", [[0], [1], [0, 0], [1, 0], [63], [64], [300, 2, 8191]])
def test_indexes_of_messages(indexes: list[int]) -> None:
    payload = written_indexes(indexes)
    assert read_indexes(payload + b"rest") == (indexes, len(payload))
    assert frame_of(258) == b"\0\0\0\1\2"


def struct(text: str) -> StructType:
    found = StructType.fromDDL(text)
    assert isinstance(found, StructType)
    return found


FITTING = (
    "a bigint, b struct<x double, y string>, c array<struct<n int>>, d map<string, decimal(9,2)>"
)


def test_columns_that_fit(spark: SparkSession) -> None:
    fields = struct(f"{FITTING}, e timestamp")
    frame = struct(
        "A int, b struct<X float>, c array<struct<n smallint>>, d map<string, decimal(8,1)>, z date"
    )
    found = columns_of(frame, fields, lambda path: path in ("b.y", "e"))
    assert found.simpleString() == (
        "struct<a:bigint,b:struct<x:double>,c:array<struct<n:int>>,d:map<string,decimal(9,2)>>"
    )


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        ("z int", "argument df has no column a, which argument schema needs (z)"),
        ("a string", "column a of argument df is string, and bigint in argument schema: cast it"),
        ("a double", "column a of argument df is double, and bigint in argument schema: cast it"),
        ("a bigint, b struct<x double>", "argument df has no column b.y, which argument schema n"),
        (
            "a bigint, b struct<x double, y string, more int>",
            "column b of argument df has a field more, which argument schema does not have: drop",
        ),
        (
            "a int, b struct<x double, y string>, c array<int>",
            "column c of argument df is int, and struct<n:int> in argument schema: cast it",
        ),
        (
            "a int, b struct<x double, y string>, c array<struct<n int>>, d map<string, decimal(9,3)>",
            "column d of argument df is decimal(9,3), and decimal(9,2) in argument schema: cast it",
        ),
    ],
)
def test_columns_that_do_not_fit(spark: SparkSession, frame: str, said: str) -> None:
    with pytest.raises(SchemaError) as raised:
        columns_of(struct(frame), struct(FITTING), lambda path: False)
    assert str(raised.value).startswith(said)


def test_schemas_are_registered_only_if_asked_to(tmp_path: Path) -> None:
    schema = json.dumps(record(("id", "long")))
    with FakeRegistry().running() as registry:
        client = RegistryClient(registry.client())
        for _ in range(2):
            with pytest.raises(SchemaError) as raised:
                client.id_and_version("orders-value", "AVRO", schema, (), register=False)
            assert str(raised.value) == (
                f"argument registry: {registry.url} does not have argument schema under subject "
                "orders-value: register it (register=True), or leave out argument schema to write "
                "by the latest version"
            )
            registry.add("orders-value", record(("other", "long")))
        found = client.id_and_version("orders-value", "AVRO", schema, (), register=True)
        assert found == (2, 2)
        assert client.id_and_version("orders-value", "AVRO", schema, (), register=False) == (2, 2)
        references = (SchemaReference("a", "b", 1),)
        assert client.id_and_version("x", "AVRO", schema, references, register=True)[0] == 3
        assert registry.schemas[3]["references"] == [{"name": "a", "subject": "b", "version": 1}]
        for fault, kind, said in (
            (
                Fault(409, b'{"error_code": 409, "message": "incompatible"}'),
                SchemaError,
                "argument register: URL refuses the schema for subject s: incompatible",
            ),
            (
                Fault(422, b'{"error_code": 42201, "message": "invalid"}'),
                SchemaError,
                "argument register: URL refuses the schema for subject s: invalid",
            ),
            (Fault(200, b"{}"), RegistryError, "argument registry: URL answers the request /subje"),
            (Fault(503), RegistryError, "argument registry: URL did not answer the request /subje"),
        ):
            registry.faults = [fault]
            with pytest.raises(JetStreamError) as failed:
                client.id_and_version("s", "AVRO", schema, (), register=True)
            assert type(failed.value) is kind
            assert str(failed.value).startswith(said.replace("URL", registry.url))


@pytest.mark.parametrize(
    ("format", "schema", "given", "said"),
    [
        ("xml", "a int", {}, "argument format must be json, avro or protobuf, but it is 'xml'"),
        ("json", None, {}, "argument schema is missing"),
        ("json", "a int", {"column": "A"}, "argument df has a column A already: rename or drop it"),
        (
            "json",
            "a int",
            {"subject": "s"},
            "arguments subject, registry_subject and register need",
        ),
        ("json", "a int", {"register": True}, "arguments subject, registry_subject and register n"),
        ("json", "b int", {}, "argument df has no column for a field of argument schema (b)"),
        ("json", "a int, b int NOT NULL", {}, "argument df has no column b, which argument schem"),
        ("json", "a int", {"registry": "http://a"}, "argument registry needs subject or registry_"),
        (
            "json",
            None,
            {"registry": "http://a", "subject": "s", "register": True},
            "argument register needs argument schema",
        ),
        (
            "json",
            "a bigint",
            {"registry": "http://a", "subject": "s"},
            "argument schema must be a JSON Schema where argument registry is given",
        ),
        # The columns are looked at before the registry is asked.
        (
            "avro",
            record(("a", "string")),
            {"registry": "http://a", "subject": "s"},
            "column a of argument df is int, and string in argument schema: cast it",
        ),
    ],
)
def test_what_cannot_be_encoded(
    spark: SparkSession, format: Any, schema: Any, given: dict[str, Any], said: str
) -> None:
    frame = spark.createDataFrame([], "a int")
    with pytest.raises(ValueError, match=f"^{re.escape(said)}") as raised:
        encode(frame, format, schema, **given)
    assert isinstance(raised.value, JetStreamError)


def test_names_of_columns_differ_in_case(spark: SparkSession) -> None:
    frame = spark.sql("""
        SELECT 1 AS ID, struct('a' AS Y, 2 AS X) AS Part, array(struct(3 AS X)) AS Items,
        map('k', struct(4 AS X)) AS By
    """)
    parts = (
        "part struct<x int, y string>, items array<struct<x int>>, by map<string, struct<x int>>"
    )
    (row,) = encode(frame, "json", f"id int, {parts}").select("data").collect()
    assert json.loads(bytes(row["data"])) == {
        "id": 1,
        "part": {"x": 2, "y": "a"},
        "items": [{"x": 3}],
        "by": {"k": {"x": 4}},
    }
    # A field of another name would have its default.
    part = record(("x", "int"), name="Part")
    part["fields"].append({"name": "y", "type": "string", "default": "none"})
    schema = record(("id", "long"), ("part", part))
    (row,) = encode(frame, "avro", schema).select("data").collect()
    assert read(AvroReader({"": schema}), [bytes(row["data"])]) == [
        {"id": 1, "part": {"x": 2, "y": "a"}}
    ]


def test_times_of_json(spark: SparkSession) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    frame = session.sql("""
        SELECT timestamp'2026-10-25T01:30:00.123456Z' AS a, timestamp'1850-01-01T00:00:00Z' AS b,
        timestamp_ntz'1969-12-31 23:59:59.999999' AS c, date'1500-02-03' AS d
    """)
    schema = "a timestamp, b timestamp, c timestamp_ntz, d date"
    encoded = encode(frame, "json", schema)
    (row,) = encoded.select("data").collect()
    assert json.loads(bytes(row["data"])) == {
        "a": "2026-10-25T01:30:00.123456Z",
        "b": "1850-01-01T00:00:00.000000Z",
        "c": "1969-12-31T23:59:59.999999",
        "d": "1500-02-03",
    }
    same = decode(encoded, "json", schema).where("decoded = struct(a, b, c, d)")
    assert same.count() == 1


def test_items_of_json_that_are_null(spark: SparkSession) -> None:
    integers: dict[str, Any] = {"type": "integer"}
    items = {"type": "array", "items": integers}
    values = {"type": "object", "additionalProperties": integers}
    parts = {"type": "array", "items": {"properties": {"of": items}}}
    schema = {"properties": {"items": items, "values": values, "parts": parts}}
    payloads = ['{"items":[1,%s]}', '{"values":{"k":%s}}', '{"parts":[{"of":[]},{"of":[%s]}]}']
    with_nulls = spark.createDataFrame(
        [(one % number,) for one in payloads for number in ("2", "null")], "data string"
    )
    errors = decode(with_nulls, "json", schema).select("decode_error").collect()
    assert [row["decode_error"] for row in errors] == [
        *(None, "the payload has a null in items"),
        *(None, "the payload has a null in values"),
        *(None, "the payload has a null in parts.of"),
    ]
    rows = spark.sql("SELECT array(1, null) AS items")
    with pytest.raises(PySparkException, match="the payload has a null in items"):
        encode(rows, "json", schema).select("data").collect()


def test_rows_and_payloads(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(1, 4).select(
        "id",
        F.lit("x").alias("text"),
        F.expr("struct(id AS n, null AS m)").cast("struct<n bigint, m string>").alias("part"),
    )
    schema = "id bigint NOT NULL, text string, part struct<n bigint NOT NULL, m string>"
    encoded = encode(frame, "json", schema)
    assert [bytes(row["data"]) for row in encoded.orderBy("id").limit(1).collect()] == [
        b'{"id":1,"text":"x","part":{"n":1}}'
    ]
    assert decode(encoded, "json", schema).where("decode_error IS NOT NULL").count() == 0
    # A row with a null where the schema has none fails, and none is left out.
    for format, by in (("json", schema), ("avro", record(("id", "long")))):
        nulls = frame.selectExpr("nullif(id, 2) AS id", "text", "part")
        with pytest.raises(PySparkException, match="a row cannot be written by argument schema"):
            encode(nulls, format, by).select("data").collect()  # type: ignore[arg-type]
    money = message_classes(
        tmp_path, 'syntax = "proto3"; message Outer { int64 n = 1; message Item { int64 id = 1; } }'
    )["Outer"].Item
    with FakeRegistry().running() as registry:
        given = {"registry": registry.client(), "subject": "items"}
        registered = encode(frame, "protobuf", money, register=True, **given)  # type: ignore[arg-type]
        payloads = [bytes(row["data"]) for row in registered.orderBy("id").collect()]
        assert payloads == [b"\0\0\0\0\1\4\0\0\x08" + bytes([n]) for n in (1, 2, 3)]
        assert registry.subjects == {"items-value": [1]}
        again = decode(registered, "protobuf", money, registry=registry.url)
        assert [row["id"] for row in again.select("decoded.id").orderBy("id").collect()] == [
            1,
            2,
            3,
        ]
