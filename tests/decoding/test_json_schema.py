"""JSON Schemas as types of Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_jetstream.decoding.json_schema import struct_of_json_schema
from spark_jetstream.errors import SchemaError

REQUIRED = ["b", "c"]
PROPERTIES: dict[str, Any] = {
    "a": {"type": "integer"},
    "b": {"type": "number"},
    "c": {"type": ["string", "null"]},
    "d": {"oneOf": [{"type": "null"}, {"type": "boolean"}]},
    "e": {"type": "array", "items": {"$ref": "#/definitions/Item~1s"}},
    "f": {"type": "object", "additionalProperties": {"type": "integer"}},
    "g": {"type": "object"},
    "h": {"type": ["string", "integer"]},
    "i": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    "j": True,
    "k": {"enum": ["x", 1]},
    "l": {"type": "array"},
}
SCHEMA = {
    "type": "object",
    "properties": PROPERTIES,
    "required": REQUIRED,
    "definitions": {
        "Item/s": {"properties": {"n": {"type": "integer"}}, "required": ["n"]},
        "Loop": {"properties": {"more": {"$ref": "#/definitions/Loop"}}},
    },
}


def test_types() -> None:
    for schema in (SCHEMA, json.dumps(SCHEMA)):
        struct = struct_of_json_schema(schema, "argument schema")
        assert struct.simpleString() == (
            "struct<a:bigint,b:double,c:string,d:boolean,e:array<struct<n:bigint>>,"
            "f:map<string,bigint>,g:variant,h:variant,i:variant,j:variant,k:variant,l:variant>"
        )
        # A required value that may be null cannot be told from one that is missing.
        assert [field.name for field in struct if not field.nullable] == ["b"]
        assert not struct["e"].dataType.elementType["n"].nullable  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "argument schema is not a JSON Schema: Expecting property name"),
        ("[]", "argument schema is not a JSON Schema: it must be an object"),
        ('{"type": "string"}', "argument schema is not the JSON Schema of an object with properti"),
        ('{"type": "object"}', "argument schema is not the JSON Schema of an object with properti"),
        ('{"oneOf": 1}', "argument schema is not a JSON Schema: 1 is no list"),
        (
            {**SCHEMA, "properties": {"a": {"$ref": "#/definitions/Loop"}}},
            "argument schema: #/definitions/Loop refers to itself, for which Spark has no type",
        ),
        (
            {"properties": {"a": {"$ref": "#"}, "b": {"$ref": "#/none"}}},
            "argument schema: # refers to itself, for which Spark has no type",
        ),
        (
            {"properties": {"b": {"$ref": "#/none"}}},
            "argument schema: the reference #/none leads out of the schema: give argument schema ",
        ),
        (
            {"properties": {"b": {"$ref": "other.json"}}},
            "argument schema: the reference other.json leads out of the schema: give argument sch",
        ),
    ],
)
def test_schemas_that_are_refused(schema: Any, said: str) -> None:
    with pytest.raises(SchemaError) as raised:
        struct_of_json_schema(schema, "argument schema")
    assert str(raised.value).startswith(said)
