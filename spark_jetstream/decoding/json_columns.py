"""JSON payloads, read by expressions of Spark."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from spark_jetstream.decoding.columns import Decoded, refuse_equal_names, schema_argument
from spark_jetstream.decoding.json_schema import struct_of_json_schema
from spark_jetstream.errors import SchemaError

# The fields of the object around a payload. No payload can know the second one.
_PAYLOAD = "payload"
_END = uuid.uuid4().hex


def decoded(schemas: Mapping[str, Any], payload: Column, version: Column) -> Decoded:
    """Return how to decode payloads of several versions to the fields of all of them.

    Raises `SchemaError` if a schema does not parse, or two versions do not agree on a field.
    """
    structs = {name: struct_of(schema_argument(name), schema) for name, schema in schemas.items()}
    fields = _all_fields(structs)
    text = payload.cast("string")
    parsed_columns = []
    values = []
    faults = []
    for number, (name, struct) in enumerate(structs.items()):
        is_mine = version.isin(name)
        parsed_columns.append(F.when(is_mine, _parsed(text, struct)).alias(f"v{number}"))
        # The next step refers to the result of the first one.
        parsed = F.col("decoded")[f"v{number}"]
        values.append(F.when(is_mine, _value(parsed, struct, fields)))
        faults.append(F.when(is_mine, _fault(parsed, text, struct)))
    return Decoded(
        first=F.struct(*parsed_columns),
        value=F.coalesce(*values),
        fault=F.coalesce(*faults),
    )


def is_json_schema(schema: Any) -> bool:
    """Return whether an argument is a JSON Schema, as text or parsed, rather than a type of Spark."""
    if isinstance(schema, str):
        return schema.lstrip().startswith("{")
    return isinstance(schema, Mapping) and not {"type", "properties", "$ref"}.isdisjoint(schema)


def struct_of(where: str, schema: Any) -> StructType:
    """Return the type of DDL text, a type or a JSON Schema. Raises `SchemaError`."""
    if is_json_schema(schema):
        schema = struct_of_json_schema(schema, where)
    try:
        found = DataType.fromDDL(schema) if isinstance(schema, str) else schema
    except PySparkException as error:
        first_line = str(error).strip().splitlines()[0]
        raise SchemaError(f"{where}: {first_line}") from None
    if not isinstance(found, StructType) or not found.fields:
        raise SchemaError(f"{where}: {schema!r} is neither DDL text nor a StructType with fields")
    refuse_equal_names(where, found.names)
    return found


def _all_fields(schemas: Mapping[str, StructType]) -> dict[str, DataType]:
    """Return the types of the fields of all versions, by name."""
    fields: dict[str, DataType] = {}
    names: dict[str, str] = {}
    for version, schema in schemas.items():
        for field in schema:
            name = names.setdefault(field.name.lower(), field.name)
            if name != field.name:
                both = f"field {field.name} in version {version} and field {name}"
                raise SchemaError(f"argument schema: {both} have one name to Spark")
            # Nullability may differ: each row is checked by the schema of its own version.
            own = field.dataType.simpleString()
            other = fields.setdefault(field.name, field.dataType).simpleString()
            if own != other:
                types = f"field {field.name} is {other}, and {own} in version {version}"
                raise SchemaError(f"argument schema: {types}: give it one type, such as string")
    return fields


def _around(text: Column) -> Column:
    # `from_json` ignores text after the first object. Another object around it has to end where
    # the first one ends.
    return F.concat(F.lit(f'{{"{_PAYLOAD}":'), text, F.lit(f',"{_END}":true}}'))


def _parsed(text: Column, schema: StructType) -> Column:
    # `from_json` puts the text into the field `bad` if it cannot read it by the schema.
    whole = StructType().add(_PAYLOAD, schema).add("bad", "string")
    return F.from_json(_around(text), whole, {"columnNameOfCorruptRecord": "bad"})


def _value(parsed: Column, schema: StructType, fields: Mapping[str, DataType]) -> Column:
    """Return a struct of the fields of all versions."""
    columns = []
    for name, kind in fields.items():
        if name in schema.names:
            own = parsed[_PAYLOAD][name]
        else:
            own = F.lit(None).cast(kind)
        columns.append(own.alias(name))
    return F.struct(*columns)


def _fault(parsed: Column, text: Column, schema: StructType) -> Column:
    """Return the fault of a payload, null without one."""

    def fault(whole: Column) -> Column:
        # A text like {"a":1},"b":2 would make fields of the object around it.
        keys = F.json_object_keys(_around(text))
        is_one = F.coalesce(keys == F.array(F.lit(_PAYLOAD), F.lit(_END)), F.lit(False))
        bad = whole[_PAYLOAD].isNull() | whole["bad"].isNotNull() | ~is_one
        return F.coalesce(
            F.when(~F.is_valid_utf8(text), "the payload is not UTF-8"),
            F.when(bad, "the payload is not one JSON object that fits the schema"),
            *missing(whole[_PAYLOAD], schema, ""),
        )

    # A filter on the error, which Spark moves in front of both steps, parses once this way.
    return F.transform(F.array(parsed), fault)[0]


def missing(value: Column, kind: DataType, path: str) -> list[Column]:
    """Return errors.

    One that is not null names a field that a value lacks though its type calls it NOT NULL. Or the
    field has a null among its items, which its type does not allow. ``path`` ends with a dot.
    """
    if isinstance(kind, MapType):
        items = ArrayType(kind.valueType, kind.valueContainsNull)
        return missing(F.map_values(value), items, path)
    if isinstance(kind, ArrayType):
        errors_of_items = _missing_in_items(value, kind.elementType, path)
        if kind.containsNull:
            return errors_of_items
        has_null = F.exists(value, F.isnull)
        return [F.when(has_null, f"the payload has a null in {path[:-1]}"), *errors_of_items]
    if not isinstance(kind, StructType):
        return []
    errors: list[Column] = []
    for field in kind:
        item = value[field.name]
        name = f"{path}{field.name}"
        if not field.nullable:
            is_missing = value.isNotNull() & item.isNull()
            errors.append(F.when(is_missing, f"the payload has no {name}"))
        errors += missing(item, field.dataType, f"{name}.")
    return errors


def required_fields(kind: DataType, path: str = "") -> set[str]:
    """Return the paths of the fields that a type calls NOT NULL, with dots."""
    if isinstance(kind, MapType):
        return required_fields(kind.valueType, path)
    if isinstance(kind, ArrayType):
        return required_fields(kind.elementType, path)
    found: set[str] = set()
    if isinstance(kind, StructType):
        for field in kind:
            name = f"{path}.{field.name}" if path else field.name
            found |= required_fields(field.dataType, name)
            if not field.nullable:
                found.add(name)
    return found


def _missing_in_items(array: Column, kind: DataType, path: str) -> list[Column]:
    """Return the error of the first item that lacks a field; none if no field is NOT NULL."""

    def error_of(item: Column) -> Column:
        return F.coalesce(*missing(item, kind, path))

    if not missing(array, kind, path):
        return []
    errors = F.filter(F.transform(array, error_of), F.isnotnull)
    return [F.get(errors, 0)]
