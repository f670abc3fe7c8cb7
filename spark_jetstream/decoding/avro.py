"""Avro records, read by fastavro."""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa

from spark_jetstream.decoding.avro_defaults import with_values_of_defaults
from spark_jetstream.decoding.avro_library import (
    SchemaParseException,
    parse_schema,
    schemaless_reader,
)
from spark_jetstream.decoding.columns import schema_argument, struct_of
from spark_jetstream.decoding.registry import SchemaRegistry
from spark_jetstream.decoding.registry_client import KINDS, RegisteredSchema, RegistryClient
from spark_jetstream.decoding.schemas_by_id import SchemasById
from spark_jetstream.errors import SchemaError

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
# The logical types that Spark has, decimals aside. A value of another one keeps its Avro type.
_LOGICAL: Mapping[Any, pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_DECIMAL = ("bytes", "fixed")
_NO_LOGICAL_TYPE = "without a logical type"
# Unions of these types have a type of Spark, which holds the values of all of them.
_WIDENED = (({"int", "long"}, pa.int64()), ({"float", "double"}, pa.float64()))


class AvroReader:
    """Reads records of several versions of a schema as records of the last one.

    The rules are those of Avro 1.12, Schema Resolution. Raises `SchemaError` if a schema is not
    Avro's, is no record, or has a type that Spark lacks. It is also raised if the logical type of a
    field differs between two versions, because fastavro reads by the writer's.
    """

    expected = "one Avro record"

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._parsed: dict[str, Any] = {}
        records: dict[str, Mapping[str, Any]] = {}
        for version, schema in schemas.items():
            where = schema_argument(version)
            self._parsed[version], records[version] = parsed_record(schema, where)
            self.fields: pa.StructType = record_type(records[version], where)
        # fastavro makes values by the logical type of the writer: all versions must have the same.
        last = _logical_types(records[version], aliases=True)
        for before, record in records.items():
            for field, written in _logical_types(record, aliases=False).items():
                wanted = last.get(field, written)
                if written != wanted:
                    types = f"field {field} is {_listed(wanted)}, and {_listed(written)}"
                    raise SchemaError(f"{where}: {types} in version {before}")
        self._last = version
        self._reader = with_values_of_defaults(self._parsed[version], where)

    def read(self, payload: bytes, version: str) -> Mapping[str, Any]:
        """Return the fields of a record.

        Raises what fastavro raises, and `ValueError` for bytes after the record.
        """
        # Records of the last version need no resolution.
        reader = None if version == self._last else self._reader
        return _record_of(payload, self._parsed[version], reader)


class RegisteredAvroReader:
    """Reads records whose schemas a registry has as records of one schema, the reader's.

    The rules are those of Avro 1.12, Schema Resolution. ``referenced`` has the schemas that the
    reader's refers to. Raises `SchemaError` as `AvroReader` does.
    """

    expected = "one Avro record"

    def __init__(
        self,
        registry: SchemaRegistry,
        schema: Any,
        referenced: Collection[str] = (),
    ) -> None:
        self._client = RegistryClient(registry)
        # Of each writer's schema: itself, and the one to resolve it to.
        self._writers: SchemasById[tuple[Any, Any]] = SchemasById(self._client, KINDS["avro"])
        where = schema_argument("")
        self._parsed, record = parsed_record(schema, where, referenced)
        self.fields: pa.StructType = record_type(record, where)
        self._reader = with_values_of_defaults(self._parsed, where)
        self._logical_types = _logical_types(record, aliases=True)

    def read(self, payload: bytes, version: str) -> Mapping[str, Any]:
        """Return the fields of a record that was written by the schema with the id ``version``.

        Raises what fastavro raises, `ValueError` for bytes after the record, `PayloadFault` for a
        schema that the registry does not have or that does not fit, and `RegistryError`.
        """
        writer, reader = self._writers.get(version, self._writer)
        return _record_of(payload, writer, reader)

    def _writer(self, schema: RegisteredSchema) -> tuple[Any, Any]:
        where = f"schema {schema.id} of the registry"
        others = [other.text for other in self._client.referenced(schema).values()]
        parsed, record = parsed_record(schema.text, where, others)
        # fastavro makes values by the logical type of the writer.
        for field, written in _logical_types(record, aliases=False).items():
            wanted = self._logical_types.get(field, written)
            if written != wanted:
                types = f"field {field} is {_listed(written)}, and {_listed(wanted)}"
                raise SchemaError(f"{where}: {types} in argument schema")
        # Records of the reader's schema need no resolution.
        return parsed, None if parsed == self._parsed else self._reader


def _record_of(payload: bytes, writer: Any, reader: Any) -> Mapping[str, Any]:
    """Return a record. Raises what fastavro raises, and `ValueError` for bytes after the record."""
    source = io.BytesIO(payload)
    record = schemaless_reader(source, writer, reader)
    if source.tell() < len(payload):
        raise ValueError("there are bytes after the record")
    return record  # type: ignore[return-value]  # the schema is that of a record


def parsed_record(
    schema: Any,
    where: str,
    referenced: Collection[str] = (),
) -> tuple[Any, dict[str, Any]]:
    """Return a schema as fastavro reads by it, and with each name replaced by the type it names.

    ``referenced`` are the texts of schemas whose names it uses, each after those whose names they
    use. Raises `SchemaError`.
    """
    names: dict[str, Any] = {}
    expanded_names: dict[str, Any] = {}
    try:
        for text in referenced:
            other = _without_other_logical_types(json.loads(text))
            parse_schema(other, names)
            parse_schema(other, expanded_names, expand=True)
        text = schema if isinstance(schema, str) else json.dumps(schema)
        plain = _without_other_logical_types(json.loads(text))
        parsed = parse_schema(plain, names)
        expanded: Any = parse_schema(plain, expanded_names, expand=True)
    except (
        SchemaParseException,
        ValueError,
        TypeError,
        KeyError,
        # A name is no text, or a schema is too deep.
        AttributeError,
        RecursionError,
    ) as error:
        raise SchemaError(f"{where} is not a schema of Avro: {error}") from error
    if not isinstance(expanded, dict) or expanded.get("type") != "record":
        raise SchemaError(f"{where} is not a schema of Avro records")
    return parsed, expanded


def _logical_types(record: Mapping[str, Any], *, aliases: bool) -> dict[str, set[str]]:
    """Return the logical types of the fields of an expanded schema, by their paths with dots.

    With ``aliases`` a field is there under its aliases, too: those of a reader's schema count. A
    union may have several types.
    """
    found: dict[str, set[str]] = {}
    pending: list[tuple[Any, str]] = [(record, "")]
    while pending:
        schema, field = pending.pop()
        if not isinstance(schema, list | dict):
            schema = {"type": schema}
        parts = _parts(schema, field, aliases=aliases)
        if parts is None:
            found.setdefault(field, set()).add(schema.get("logicalType") or _NO_LOGICAL_TYPE)
        else:
            pending += parts
    return found


def _parts(schema: Any, field: str, *, aliases: bool) -> list[tuple[Any, str]] | None:
    """Return the schemas within one, with the paths of their fields; None if it is primitive."""
    if isinstance(schema, list):
        return [(kind, field) for kind in schema if kind not in ("null", {"type": "null"})]
    if schema["type"] == "array":
        return [(schema["items"], field)]
    if schema["type"] == "map":
        return [(schema["values"], field)]
    if schema["type"] != "record":
        return None
    path = f"{field}." if field else ""
    return [
        (member["type"], f"{path}{name}")
        for member in schema["fields"]
        for name in _names(member, aliases=aliases)
    ]


def _names(member: Mapping[str, Any], *, aliases: bool) -> list[str]:
    """Return the name of a field, with its aliases if they count."""
    return [member["name"], *(member.get("aliases", ()) if aliases else ())]


def _listed(logical_types: set[str]) -> str:
    return " or ".join(sorted(logical_types))


def record_type(record: Mapping[str, Any], where: str) -> pa.StructType:
    """Return the Arrow type of an expanded schema. Raises `SchemaError` if Spark lacks it."""
    return _Walk(where).of_record(record)


class _Walk:
    """One walk over an expanded schema, for the Arrow types of its fields."""

    def __init__(self, where: str) -> None:
        self.where = where

    def of_record(self, record: Mapping[str, Any]) -> pa.StructType:
        """Return the Arrow type of the schema. Raises `SchemaError`."""
        try:
            return self.arrow_type(record, "")
        except SchemaError:
            raise
        # fastavro checks neither that a name is a text nor that a precision is a number.
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise SchemaError(f"{self.where} is not a schema of Avro: {error}") from error

    def arrow_type(self, schema: Any, field: str) -> pa.DataType:
        """Return the Arrow type of ``field``. Raises `SchemaError` if Spark lacks the type."""
        if isinstance(schema, list):
            return self._union(schema, field)
        if not isinstance(schema, dict):
            schema = {"type": schema}
        name = schema["type"]
        if name == "record":
            return self._record(schema, field)
        if name == "array":
            return pa.list_(self.arrow_type(schema["items"], field))
        if name == "map":
            return pa.map_(pa.string(), self.arrow_type(schema["values"], field))
        is_empty = name == "fixed" and not schema["size"]
        if name not in _PRIMITIVE or is_empty:
            raise SchemaError(f"{self.where}: field {field} is {name}, for which Spark has no type")
        return self._primitive(schema, field)

    def _record(self, schema: Mapping[str, Any], field: str) -> pa.StructType:
        # The schema itself is a record without a name: "".
        path = f"{field}." if field else ""
        kinds = {}
        for member in schema["fields"]:
            name = member["name"]
            kinds[name] = self.arrow_type(member["type"], f"{path}{name}")
        return struct_of(f"{self.where}: field {field}" if field else self.where, kinds)

    def _primitive(self, schema: Mapping[str, Any], field: str) -> pa.DataType:
        logical = schema.get("logicalType")
        if logical != "decimal":
            name = schema["type"]
            return _LOGICAL.get((name, logical), _PRIMITIVE[name])
        digits = schema.get("precision", 0)
        if not 1 <= digits <= 38:
            problem = f"field {field} has {digits} digits: a decimal of Spark has 1 to 38"
            raise SchemaError(f"{self.where}: {problem}")
        return pa.decimal128(digits, schema.get("scale", 0))

    def _union(self, schema: list[Any], field: str) -> pa.DataType:
        # All fields of Spark can be null.
        kinds = [kind for kind in schema if kind not in ("null", {"type": "null"})]
        if len(kinds) == 1:
            return self.arrow_type(kinds[0], field)
        if kinds and all(isinstance(kind, str) for kind in kinds):
            for names, widest in _WIDENED:
                if names.issuperset(kinds):
                    return widest
        raise SchemaError(
            f"{self.where}: field {field} is a union of several types, for which Spark has no type",
        )


def _without_other_logical_types(schema: Any) -> Any:
    """Return a schema without logical types that Spark lacks, such as UUID and time of day."""
    if isinstance(schema, list):
        return [_without_other_logical_types(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: _without_other_logical_types(value) for key, value in schema.items()}
    # fastavro would make objects of its values for which the Arrow type has no place.
    if not _has_spark_type(schema.get("type"), schema.get("logicalType")):
        plain.pop("logicalType", None)
    return plain


def _has_spark_type(name: Any, logical: Any) -> bool:
    """Return whether Spark has the logical type of an Avro type."""
    if not isinstance(name, str):
        return False
    if logical == "decimal":
        return name in _DECIMAL
    return (name, logical) in _LOGICAL
