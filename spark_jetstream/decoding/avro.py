"""Avro records, read by fastavro."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from spark_jetstream.decoding.columns import struct_of
from spark_jetstream.errors import SchemaError

try:
    from fastavro import parse_schema, schemaless_reader
    from fastavro.schema import SchemaParseException, expand_schema
except ImportError as error:
    raise ModuleNotFoundError(
        "decoding Avro needs fastavro: pip install 'spark-jetstream[avro]', on every node", name="fastavro"
    ) from error

_PRIMITIVE = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL: Mapping[Any, pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
"""The logical types that Spark has, decimals aside. A value of another one stays what it is without it."""
_DECIMAL = ("bytes", "fixed")
_WIDENED = ({"int": pa.int32(), "long": pa.int64()}, {"float": pa.float32(), "double": pa.float64()})
"""Unions of several types that Spark has a type for: the last one of each."""


class AvroReader:
    """Reads records of several versions of a schema as records of the last one (Avro 1.12, Schema Resolution).

    Raises `SchemaError` if a schema is not Avro's, is no record, has a type that Spark lacks, or a field's logical type
    differs between two versions: fastavro reads by the writer's.
    """

    expected = "one Avro record"

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._parsed: dict[str, Any] = {}
        logical: dict[str, tuple[str, str]] = {}  # of each field: the logical type, and in which version
        for version, schema in schemas.items():
            what = f"argument schema{version and f', version {version}'}"
            try:
                plain = _without_other_logical_types(
                    json.loads(schema if isinstance(schema, str) else json.dumps(schema))
                )
                self._parsed[version] = parse_schema(plain)
                whole: Any = expand_schema(plain)
            except (SchemaParseException, ValueError, TypeError, KeyError) as error:
                raise SchemaError(f"{what} is not a schema of Avro: {error}") from error
            if not isinstance(whole, dict) or whole.get("type") != "record":
                raise SchemaError(f"{what} is not a schema of Avro records")
            walk = _Walk(what)
            self.fields: pa.StructType = walk.arrow_type(whole, "")
            for field, kind in walk.logical.items():
                other, before = logical.setdefault(field, (kind, version))
                if kind != other:
                    raise SchemaError(f"{what}: field {field} is {kind}, and {other} in version {before}")
        self._last = version

    def read(self, payload: bytes, version: str) -> Mapping[str, Any]:
        """Return the fields of a record. Raises what fastavro raises, and `ValueError` for bytes after the record."""
        source = io.BytesIO(payload)
        resolved = None if version == self._last else self._parsed[self._last]
        record = schemaless_reader(source, self._parsed[version], resolved)
        if source.tell() < len(payload):
            raise ValueError("there are bytes after the record")
        return record  # type: ignore[return-value]  # the schema is that of a record


class _Walk:
    """One walk over a schema in which each name is replaced by what it names: the Arrow types of its fields."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.logical: dict[str, str] = {}  # of each field of a type that has logical types

    def arrow_type(self, schema: Any, field: str) -> pa.DataType:
        """Return the Arrow type of ``field``. Raises `SchemaError` if Spark has no such type."""
        if isinstance(schema, list):
            return self._union([one for one in schema if one not in ("null", {"type": "null"})], field)
        name = schema["type"] if isinstance(schema, dict) else schema
        if name == "record":
            named = {one["name"]: one["type"] for one in schema["fields"]}
            path = f"{field}." if field else ""
            kinds = {one: self.arrow_type(kind, f"{path}{one}") for one, kind in named.items()}
            return struct_of(f"{self.what}: field {field}" if field else self.what, kinds)
        if name == "array":
            return pa.list_(self.arrow_type(schema["items"], field))
        if name == "map":
            return pa.map_(pa.string(), self.arrow_type(schema["values"], field))
        if name not in _PRIMITIVE or (name == "fixed" and not schema["size"]):
            raise SchemaError(f"{self.what}: field {field} is {name}, for which Spark has no type")
        logical = schema.get("logicalType") if isinstance(schema, dict) else None
        self.logical[field] = logical or "without a logical type"
        if logical == "decimal":
            digits = schema.get("precision", 0)
            if not 1 <= digits <= 38:
                raise SchemaError(f"{self.what}: field {field} has {digits} digits: a decimal of Spark has 1 to 38")
            return pa.decimal128(digits, schema.get("scale", 0))
        return _LOGICAL.get((name, logical), _PRIMITIVE[name])

    def _union(self, kinds: list[Any], field: str) -> pa.DataType:
        if len(kinds) == 1:
            return self.arrow_type(kinds[0], field)
        for names in _WIDENED:
            if all(isinstance(kind, str) and kind in names for kind in kinds) and kinds:
                return list(names.values())[-1]
        raise SchemaError(f"{self.what}: field {field} is a union of several types, for which Spark has no type")


def _without_other_logical_types(schema: Any) -> Any:
    """Return a schema without the logical types that Spark lacks, as a UUID and the time of a day."""
    if isinstance(schema, list):
        return [_without_other_logical_types(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    name, logical = schema.get("type"), schema.get("logicalType")
    known = isinstance(name, str) and ((name, logical) in _LOGICAL or (logical == "decimal" and name in _DECIMAL))
    return {key: _without_other_logical_types(value) for key, value in schema.items() if key != "logicalType" or known}
