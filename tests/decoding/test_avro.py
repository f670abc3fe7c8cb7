"""Avro records: their types in Spark, several versions of a schema, and bytes that are no record."""

from __future__ import annotations

import datetime
import io
import json
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer

from spark_jetstream.decoding.avro import AvroReader
from spark_jetstream.decoding.columns import read_all
from spark_jetstream.errors import SchemaError


def record(*fields: tuple[str, Any], **more: Any) -> dict[str, Any]:
    """The schema of a record."""
    return {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": kind} for name, kind in fields],
        **more,
    }


def logical(kind: str, called: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": called, **more}


def written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    schemaless_writer(out, parse_schema(schema), value)
    return out.getvalue()


def read(reader: AvroReader, *payloads: bytes | None, version: str = "") -> list[dict[str, Any]]:
    """The rows of payloads, read together, each a `value` and an `error`."""
    array = read_all(
        reader, pa.array(payloads, pa.binary()), pa.array([version] * len(payloads), pa.string())
    )
    return array.to_pylist()  # type: ignore[no-any-return]


POINT = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}]}
THEN = datetime.datetime(2026, 3, 1, 12, 30, 0, 5000, datetime.timezone.utc)
LOCAL = THEN.replace(tzinfo=None)
#: Each with the type of its field in Arrow, a value, and what is read of it.
KINDS: list[tuple[Any, str, Any, Any]] = [
    ("boolean", "bool", True, True),
    ("int", "int32", -(2**31), -(2**31)),
    ("long", "int64", 2**63 - 1, 2**63 - 1),
    ("float", "float", 0.5, 0.5),
    ("double", "double", 0.1, 0.1),
    ("bytes", "binary", b"\xff\0", b"\xff\0"),
    ("string", "string", "ü\0", "ü\0"),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "string", "B", "B"),
    ({"type": "fixed", "name": "F", "size": 2}, "binary", b"\0\1", b"\0\1"),
    ({"type": "array", "items": POINT}, "list<item: struct<x: int32>>", [{"x": 1}], [{"x": 1}]),
    ({"type": "map", "values": ["null", "long"]}, "map<string, int64>", {"a": None}, [("a", None)]),
    (["null", "string"], "string", None, None),
    (["null", {"type": "array", "items": "int"}], "list<item: int32>", [1], [1]),
    (["null", "int", "long"], "int64", 2**40, 2**40),
    (["double", "float"], "double", 0.1, 0.1),
    (logical("int", "date"), "date32[day]", datetime.date(1, 1, 1), datetime.date(1, 1, 1)),
    (logical("long", "timestamp-millis"), "timestamp[us, tz=UTC]", THEN, THEN),
    (logical("long", "timestamp-micros"), "timestamp[us, tz=UTC]", THEN, THEN),
    (logical("long", "local-timestamp-millis"), "timestamp[us]", LOCAL, LOCAL),
    (logical("long", "local-timestamp-micros"), "timestamp[us]", LOCAL, LOCAL),
    (
        logical("bytes", "decimal", precision=38, scale=2),
        "decimal128(38, 2)",
        Decimal("-1.25"),
        Decimal("-1.25"),
    ),
    (logical("string", "uuid"), "string", "5d", "5d"),
    (logical("string", "decimal"), "string", "5d", "5d"),
    (logical("int", "time-millis"), "int32", 5, 5),
    (logical("long", "timestamp-nanos"), "int64", 5, 5),
]


def without_logical(kind: Any) -> Any:
    """The type by which a test writes: where fastavro would convert a value that the reader leaves
    as it is.
    """
    named = kind.get("logicalType") if isinstance(kind, dict) else None
    return kind["type"] if named in ("uuid", "time-millis", "timestamp-nanos") else kind


@pytest.mark.parametrize(("kind", "arrow", "value", "expected"), KINDS)
def test_types(kind: Any, arrow: str, value: Any, expected: Any) -> None:
    reader = AvroReader({"": json.dumps(record(("field", kind)))})
    assert str(reader.fields) == f"struct<field: {arrow}>"
    payload = written(record(("field", without_logical(kind))), {"field": value})
    assert read(reader, payload, None) == [
        {"value": {"field": expected}, "error": None},
        {"value": None, "error": None},
    ]


SECOND = datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.timezone.utc)
MILLIS = logical("long", "timestamp-millis")
#: Each with a default as JSON has it, and its value.
DEFAULTS: list[tuple[Any, Any, Any]] = [
    (MILLIS, 1000, SECOND),
    (logical("long", "local-timestamp-millis"), 1000, SECOND.replace(tzinfo=None)),
    (logical("int", "date"), -1, datetime.date(1969, 12, 31)),
    (logical("bytes", "decimal", precision=4, scale=2), "\u00ff", Decimal("-0.01")),
    ("bytes", "\u00ff\u0000", b"\xff\0"),
    ({"type": "fixed", "name": "F", "size": 1}, "\u00ff", b"\xff"),
    (["bytes", "null"], "\u00ff", b"\xff"),
    (["null", MILLIS], None, None),
    ({"type": "array", "items": "bytes"}, ["\u00ff"], [b"\xff"]),
    ({"type": "map", "values": MILLIS}, {"a": 1000}, [("a", SECOND)]),
    (record(("at", MILLIS)) | {"name": "At"}, {"at": 1000}, {"at": SECOND}),
    ("double", "Infinity", float("inf")),
    ("float", 1, 1.0),
    ("string", "\u00ff", "\u00ff"),
]


@pytest.mark.parametrize(("kind", "default", "value"), DEFAULTS)
def test_defaults_are_values_of_their_types(kind: Any, default: Any, value: Any) -> None:
    first = record(("id", "long"))
    field = {"name": "field", "type": kind, "default": default}
    last = {**first, "fields": [*first["fields"], field]}
    reader = AvroReader({"1": first, "2": last})
    found = read(reader, written(first, {"id": 1}), version="1")
    assert found == [{"value": {"id": 1, "field": value}, "error": None}]


def test_a_type_that_is_used_twice_has_its_defaults_at_both_places() -> None:
    point = record(("x", "int"), name="Point")
    first = record(("a", point), ("b", "Point"))
    more = {"name": "t", "type": MILLIS, "default": 1000}
    last = record(("a", {**point, "fields": [*point["fields"], more]}), ("b", "Point"))
    payload = written(first, {"a": {"x": 1}, "b": {"x": 2}})
    (row,) = read(AvroReader({"1": first, "2": last}), payload, version="1")
    assert row["value"] == {"a": {"x": 1, "t": SECOND}, "b": {"x": 2, "t": SECOND}}


def test_a_default_that_its_type_does_not_have_is_refused() -> None:
    schema = record()
    schema["fields"] = [{"name": "field", "type": "bytes", "default": "\u0100"}]
    with pytest.raises(SchemaError, match=r"^argument schema has a default that its type does not"):
        AvroReader({"": schema})


#: As of a real stream: nested, with a name that is used twice.
ORDER = record(
    ("id", "long"),
    ("at", POINT),
    ("back", ["null", "Point"]),
    ("tags", {"type": "array", "items": "string"}),
)


def test_bytes_that_are_no_record_are_errors_of_their_rows() -> None:
    value = {"id": 2**40, "at": {"x": 1}, "back": {"x": -1}, "tags": ["new", "eu"]}
    payload = written(ORDER, value)
    cut = [payload[:end] for end in range(len(payload))]
    *faults, whole = read(AvroReader({"": ORDER}), *cut, payload + b"\0", payload)
    assert whole == {"value": value, "error": None}
    assert [fault["value"] for fault in faults] == [None] * len(faults)
    assert {fault["error"].split(" (")[0] for fault in faults} == {
        "the payload is not one Avro record that fits the schema"
    }
    assert faults[-1]["error"].endswith("(ValueError: there are bytes after the record)")


def test_any_bytes_are_a_record_or_an_error() -> None:
    chance = random.Random(1)
    payload = written(ORDER, {"id": 1, "at": {"x": 1}, "back": None, "tags": ["a" * 20] * 3})
    for _ in range(1000):
        changed = bytearray(payload)
        for at in chance.sample(range(len(changed)), 3):
            changed[at] = chance.randrange(256)
        (row,) = read(AvroReader({"": ORDER}), bytes(changed))
        assert (row["value"] is None) != (row["error"] is None)


def test_a_value_that_its_type_cannot_hold_fails_its_row_alone() -> None:
    rows = read(
        AvroReader({"": record(("n", "int"))}),
        b"\x02",
        written(record(("n", "long")), {"n": 2**31}),
    )
    assert [row["value"] for row in rows] == [{"n": 1}, None]
    assert "(ArrowInvalid: Value 2147483648 too large to fit" in rows[1]["error"]
    digits = AvroReader({"": record(("n", logical("bytes", "decimal", precision=2)))})
    assert read(digits, b"\x04\x27\x10")[0]["value"] is None  # 10000
    year = AvroReader({"": record(("n", logical("long", "timestamp-millis")))})
    assert "OverflowError" in read(year, written(record(("n", "long")), {"n": 2**60}))[0]["error"]


def test_versions_are_read_as_the_last_one() -> None:
    first = record(("id", "int"), ("old", "string"))
    last = record(("id", "long"))
    last["fields"].append({"name": "country", "type": "string", "default": "unknown"})
    reader = AvroReader({"1": first, "2": last})
    assert read(reader, written(first, {"id": 1, "old": "x"}), version="1") == [
        {"value": {"id": 1, "country": "unknown"}, "error": None}
    ]
    assert (
        read(reader, written(last, {"id": 2, "country": "de"}), version="2")[0]["value"]["country"]
        == "de"
    )
    # A version that cannot be resolved says so in each of its rows.
    (row,) = read(AvroReader({"1": record(("id", "string")), "2": last}), b"\x02a", version="1")
    assert "SchemaResolutionError" in row["error"]


TIME, PLAIN = record(("at", logical("long", "timestamp-millis"))), record(("at", "long"))
RENAMED = {**TIME, "fields": [{**TIME["fields"][0], "name": "time", "aliases": ["at"]}]}


@pytest.mark.parametrize(
    ("schemas", "said"),
    [
        ({"": "no JSON"}, "argument schema is not a schema of Avro: "),
        ({"": "[1]"}, "argument schema is not a schema of Avro: "),
        ({"": record(("a", "Other"))}, "argument schema is not a schema of Avro: "),
        ({"": {"type": "record"}}, "argument schema is not a schema of Avro: "),
        ({"": object()}, "argument schema is not a schema of Avro: "),
        ({"": {"name": "R"}}, "argument schema is not a schema of Avro: "),
        (
            {"": record(("a", logical("bytes", "decimal", precision="x")))},
            "argument schema is not a schema of Avro: ",
        ),
        (
            {
                "": record(
                    ("a", logical("fixed", "decimal", name="F", size=2, precision=4, scale=5))
                )
            },
            "argument schema is not a schema of Avro: ",
        ),
        ({"": '"string"'}, "argument schema is not a schema of Avro records"),
        ({"": record()}, "argument schema has no field"),
        (
            {"1": record(("a", record(name="S")))},
            "argument schema, version 1: field a has no field",
        ),
        (
            {"": record(("a", "int"), ("A", "int"))},
            "argument schema: two of its fields have one name to Spark (a, A)",
        ),
        (
            {"": record(("a", ["null", "R"]))},
            "argument schema: field a is R, for which Spark has no type",
        ),
        (
            {"": record(("a", "null"))},
            "argument schema: field a is null, for which Spark has no type",
        ),
        (
            {"": record(("a", {"type": "array", "items": ["int", "string"]}))},
            "argument schema: field a is a union of several types, for which Spark has no type",
        ),
        (
            {"": record(("a", logical("bytes", "decimal", precision=39)))},
            "argument schema: field a has 39 digits: a decimal of Spark has 1 to 38",
        ),
        (
            {"": record(("a", logical("bytes", "decimal")))},
            "argument schema: field a has 0 digits: a decimal of Spark has 1 to 38",
        ),
        (
            {"1": PLAIN, "2": TIME},
            "argument schema, version 2: field at is timestamp-millis, and without a logical type "
            "in version 1",
        ),
        (
            {"1": PLAIN, "2": RENAMED},
            "argument schema, version 2: field at is timestamp-millis, and without a logical type "
            "in version 1",
        ),
    ],
)
def test_schemas_that_are_refused(schemas: dict[str, Any], said: str) -> None:
    with pytest.raises(SchemaError) as raised:
        AvroReader(schemas)
    assert str(raised.value).startswith(said)


def test_only_the_reader_s_aliases_count() -> None:
    """Avro 1.12, Aliases: those of the writer's schema rename nothing."""
    first = record()
    first["fields"] = [{"name": "at", "type": "long", "aliases": ["time"]}]
    field = {"name": "time", "type": MILLIS, "default": 1000}
    last = {**first, "fields": [field]}
    (row,) = read(AvroReader({"1": first, "2": last}), written(first, {"at": 5}), version="1")
    assert row == {"value": {"time": SECOND}, "error": None}
