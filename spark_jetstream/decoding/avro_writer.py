"""Avro records, written by fastavro."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa

from spark_jetstream.decoding.avro import parsed_record, record_type
from spark_jetstream.decoding.avro_defaults import with_values_of_defaults
from spark_jetstream.decoding.avro_library import schemaless_writer, validate


class AvroWriter:
    """Writes rows as records of a schema.

    Raises `SchemaError` if the schema is not Avro's, is no record, or has a type that Spark lacks.
    """

    def __init__(self, schema: Any, where: str, referenced: Collection[str] = ()) -> None:
        parsed, record = parsed_record(schema, where, referenced)
        self.fields: pa.StructType = record_type(record, where)
        self._parsed = with_values_of_defaults(parsed, where)
        self._with_default = frozenset(_with_default(record, ""))

    def is_optional(self, path: str) -> bool:
        """Return whether a field has a default."""
        return path in self._with_default

    def write(self, row: Mapping[str, Any]) -> bytes:
        """Return a record. Raises what fastavro raises."""
        # The writer alone would store a null boolean as false.
        validate(row, self._parsed, raise_errors=True)
        out = io.BytesIO()
        schemaless_writer(out, self._parsed, row)
        return out.getvalue()


def _with_default(schema: Any, field: str) -> list[str]:
    """Return the paths of fields that have a default, of an expanded schema."""
    if isinstance(schema, list):
        return [path for kind in schema for path in _with_default(kind, field)]
    if not isinstance(schema, dict):
        return []
    if schema["type"] in ("array", "map"):
        return _with_default(schema["items" if schema["type"] == "array" else "values"], field)
    paths = []
    for member in schema.get("fields", ()):
        path = f"{field}.{member['name']}" if field else member["name"]
        if "default" in member:
            paths.append(path)
        paths += _with_default(member["type"], path)
    return paths
