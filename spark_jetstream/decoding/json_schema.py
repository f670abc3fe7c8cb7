"""The type in Spark of a JSON Schema: a column for each property of an object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructType,
    VariantType,
)

from spark_jetstream.errors import SchemaError

_PRIMITIVE: Mapping[Any, DataType] = {
    "boolean": BooleanType(),
    "integer": LongType(),
    "number": DoubleType(),
    "string": StringType(),
}


def struct_of_json_schema(schema: Any, where: str) -> StructType:
    """Return the type of the objects that a JSON Schema describes.

    ``schema`` is its text, or what `json.loads` makes of it. Required properties that cannot be
    null are NOT NULL. A value that may have several types is VARIANT, any JSON. Raises
    `SchemaError` for text that is no JSON Schema, for another type than an object with properties,
    and for references to other files and to itself.
    """
    try:
        whole = json.loads(schema) if isinstance(schema, str) else schema
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"{where} is not a JSON Schema: {error}") from None
    if not isinstance(whole, dict):
        raise SchemaError(f"{where} is not a JSON Schema: it must be an object")
    try:
        kind, _ = _JsonSchemaTypes(whole, where).type_of(whole, ())
    except RecursionError:
        raise SchemaError(f"{where} has too many schemas within each other") from None
    if not isinstance(kind, StructType):
        raise SchemaError(f"{where} is not the JSON Schema of an object with properties")
    return kind


class _JsonSchemaTypes:
    """One reading of a schema, which its references look into."""

    def __init__(self, whole: Mapping[str, Any], where: str) -> None:
        self._whole = whole
        self._where = where

    def type_of(self, schema: Any, around: tuple[str, ...]) -> tuple[DataType, bool]:
        """Return the type of a value, and whether it may be null.

        ``around`` are the references that lead here.
        """
        # true is the schema of any value.
        if not isinstance(schema, dict):
            return VariantType(), True
        if "$ref" in schema:
            reference = schema["$ref"]
            if reference in around:
                problem = f"{reference} refers to itself, for which Spark has no type"
                raise SchemaError(f"{self._where}: {problem}")
            return self.type_of(self._referred(reference), (*around, reference))
        for combination in ("oneOf", "anyOf"):
            if combination in schema:
                return self._one_of(schema[combination], around)
        return self._plain(schema, around)

    def _one_of(self, choices: Any, around: tuple[str, ...]) -> tuple[DataType, bool]:
        """Return the type of a choice of schemas: that of the one beside null, or any."""
        if not isinstance(choices, list):
            raise SchemaError(f"{self._where} is not a JSON Schema: {choices!r} is no list")
        others = [choice for choice in choices if choice != {"type": "null"}]
        if len(others) != 1:
            return VariantType(), True
        kind, is_nullable = self.type_of(others[0], around)
        return kind, is_nullable or len(choices) > 1

    def _plain(
        self,
        schema: Mapping[str, Any],
        around: tuple[str, ...],
    ) -> tuple[DataType, bool]:
        """Return the type of a schema without references and choices."""
        # Many leave out the type of an object.
        given = schema.get("type", "object" if "properties" in schema else None)
        names = given if isinstance(given, list) else [given]
        others = [name for name in names if name != "null"]
        is_nullable = len(others) < len(names)
        kind = self._named(others[0], schema, around) if len(others) == 1 else None
        # A value of any type may be null.
        return (VariantType(), True) if kind is None else (kind, is_nullable)

    def _named(
        self, name: Any, schema: Mapping[str, Any], around: tuple[str, ...]
    ) -> DataType | None:
        """Return the type of a schema whose ``type`` has this name; None for values of any type."""
        if name == "object":
            return self._object(schema, around)
        if name == "array" and isinstance(schema.get("items"), dict):
            item, has_nulls = self.type_of(schema["items"], around)
            return ArrayType(item, has_nulls)
        return _PRIMITIVE.get(name) if isinstance(name, str) else None

    def _object(self, schema: Mapping[str, Any], around: tuple[str, ...]) -> DataType:
        properties = schema.get("properties")
        values = schema.get("additionalProperties")
        if properties and isinstance(properties, dict):
            required = schema.get("required")
            if not isinstance(required, list):
                required = []
            struct = StructType()
            for name, one in properties.items():
                kind, is_nullable = self.type_of(one, around)
                struct.add(name, kind, is_nullable or name not in required)
            return struct
        if isinstance(values, dict) and values:
            kind, has_nulls = self.type_of(values, around)
            return MapType(StringType(), kind, has_nulls)
        return VariantType()

    def _referred(self, reference: Any) -> Any:
        """Return the part of the schema that ``#/definitions/Item`` means."""
        found: Any = self._whole
        path, *names = str(reference).split("/")
        for name in names:
            # RFC 6901
            name = name.replace("~1", "/").replace("~0", "~")  # noqa: PLW2901
            found = found.get(name) if isinstance(found, dict) else None
        if path != "#" or found is None:
            raise SchemaError(
                f"{self._where}: the reference {reference} leads out of the schema: give argument "
                "schema as DDL text",
            )
        return found
