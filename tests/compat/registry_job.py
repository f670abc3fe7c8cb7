"""Payloads with a schema registry, on whichever Spark the environment has, as plain JSON."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_jetstream import decode, encode
from spark_jetstream.errors import OptionError
from tests.support.protos import message_classes
from tests.support.registry import FakeRegistry

FIELDS: list[dict[str, Any]] = [{"name": "id", "type": "long"}]
COUNTRY = {"name": "country", "type": "string", "default": "unknown"}
FIRST = {"type": "record", "name": "Order", "fields": FIELDS}
LAST = {**FIRST, "fields": [*FIELDS, COUNTRY]}
JSON_SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "country": {"type": "string"}},
    "required": ["id"],
}


def framed(schema_id: int, rest: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + rest


def decoded(
    spark: SparkSession, format: Any, schema: Any, payloads: list[bytes], **given: Any
) -> Any:
    """Rows of payloads in their order, or the refusal of an old Spark."""
    numbered = [(number, bytearray(payload)) for number, payload in enumerate(payloads)]
    frame = spark.createDataFrame(numbered, "n int, data binary")
    try:
        found = decode(frame, format, schema, **given)
    except OptionError as error:
        return str(error)
    columns = found.select("n", F.to_json("decoded"), "decode_error").orderBy("n")
    return [list(row)[1:] for row in columns.collect()]


def encoded(spark: SparkSession, format: Any, schema: Any, **given: Any) -> Any:
    """Rows that were encoded and decoded again, with their payloads."""
    frame = spark.createDataFrame(
        [(1, "de", "a"), (2, "fr", "b")], "id int, Country string, s string"
    )
    try:
        payloads = encode(frame, format, schema, **given)
        again = decode(payloads, format, **given)
    except OptionError as error:
        return str(error)
    assert again.columns == ["id", "Country", "s", "data", "decoded", "decode_error"]
    columns = again.select(F.hex("data"), F.to_json("decoded"), "decode_error").orderBy("id")
    return [list(row) for row in columns.collect()]


def by_registry(spark: SparkSession, folder: str) -> dict[str, Any]:
    proto = 'syntax = "proto3"; message Order { int64 id = 1; optional string country = 2; }'
    order = message_classes(Path(folder), proto)["Order"]
    with FakeRegistry().running() as registry:
        first = registry.add("orders-value", FIRST)
        last = registry.add("orders-value", LAST)
        text = base64.b64encode(order.DESCRIPTOR.file.serialized_pb).decode()
        message = registry.add("Order", text, "PROTOBUF")
        whole = registry.add("json", JSON_SCHEMA, "JSON")
        client = registry.client(user="me", password="hidden")
        avro = [framed(last, b"\4\4de"[:end]) for end in range(5)]
        payloads = [
            framed(first, b"\2"),
            *avro,
            framed(99, b"\2"),
            *(avro[0][:n] for n in range(5)),
        ]
        return {
            "avro": decoded(spark, "avro", None, payloads, registry=client, subject="orders"),
            "protobuf": decoded(
                spark,
                "protobuf",
                None,
                [
                    framed(message, b"\0" + order(id=1, country="de").SerializeToString()),
                    framed(message, b"\2\2"),
                ],
                registry=registry.url,
                registry_subject="Order",
            ),
            "json": decoded(
                spark,
                "json",
                None,
                [framed(whole, b'{"id": 1}'), framed(whole, b'{"country": "de"}'), b'{"id": 1}'],
                registry=client,
                registry_subject="json",
            ),
            "ddl": decoded(spark, "json", "id int", [framed(1, b'{"id": 1}')], registry=client),
            "encoded": [
                encoded(spark, format, schema, registry=client, registry_subject=name)
                for format, schema, name in (
                    ("avro", LAST, "orders-value"),
                    ("avro", None, "orders-value"),
                    ("protobuf", order, "Order"),
                    ("protobuf", None, "Order"),
                    ("json", JSON_SCHEMA, "json"),
                    ("json", None, "json"),
                )
            ],
            "requests": sorted({request.split("?")[0] for request in registry.requests}),
        }


FRAMELESS = "the payload does not begin with a zero byte and the version of a schema"
ENCODED = ['{"id":1,"country":"de"}', '{"id":2,"country":"fr"}']
PAYLOADS = [
    ["0000000002" + "02046465", "0000000002" + "04046672"],
    ["0000000003" + "00" + "080112026465", "0000000003" + "00" + "080212026672"],
    [framed(4, values.encode()).hex().upper() for values in ENCODED],
]
BY_REGISTRY: dict[str, Any] = {
    "avro": [
        ['{"id":1,"country":"unknown"}', None],
        *(
            [None, f"the payload is not one Avro record that fits the schema (EOFError: {end})"]
            for end in ("", "", "Expected 2 bytes, read 0", "Expected 2 bytes, read 1")
        ),
        ['{"id":2,"country":"de"}', None],
        [None, "the registry has no schema 99"],
        *[[None, FRAMELESS]] * 5,
    ],
    "protobuf": [
        ['{"id":1,"country":"de"}', None],
        [
            None,
            "the indexes [1] in front of the payload, with schema 3 of the registry, mean no "
            "message of that schema, not Order",
        ],
    ],
    "json": [['{"id":1}', None], [None, "the payload has no id"], [None, FRAMELESS]],
    "ddl": [['{"id":1}', None]],
    "encoded": [
        [[payload, values, None] for payload, values in zip(payloads, ENCODED, strict=True)]
        for payloads in PAYLOADS
        for _ in range(2)
    ],
}


def check_by_registry(result: dict[str, Any], *, newer: bool = True) -> None:
    asked = result.pop("requests")
    assert "GET /schemas/ids/99" in asked or not newer
    # Registering was not asked for.
    names = ("Order", "json", "orders-value") if newer else ("json",)
    posted = [request for request in asked if request.startswith("POST")]
    assert posted == [f"POST /subjects/{name}" for name in names]
    expected = BY_REGISTRY
    if not newer:
        refused = (
            "argument format must be json on Spark 4.0: Avro and Protobuf need Spark 4.1 or later"
        )
        json_rows = BY_REGISTRY["encoded"][4:]
        expected = {**BY_REGISTRY, "avro": refused, "protobuf": refused}
        expected["encoded"] = [refused] * 4 + json_rows
    assert result == expected
