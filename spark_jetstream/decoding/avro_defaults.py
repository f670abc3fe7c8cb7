"""Defaults of Avro fields as values: fastavro leaves them as the JSON of the schema has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spark_jetstream.decoding.avro_library import LOGICAL_READERS
from spark_jetstream.errors import SchemaError


def with_values_of_defaults(parsed: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a schema that `fastavro.parse_schema` made, with values in place of the defaults.

    A default of bytes is bytes then, and one of a logical type is a date, a time or a decimal
    (Avro 1.12, Complex Types, Records). Raises `SchemaError` for a default that its type does not
    have.
    """
    names: Mapping[str, Any] = parsed["__named_schemas"]
    try:
        converted: dict[str, Any] = _converted(parsed, names)
        converted["__named_schemas"] = {name: _converted(one, names) for name, one in names.items()}
    # A decimal of too many digits is an ArithmeticError, and so is a date out of range.
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
        raise SchemaError(
            f"{where} has a default that its type does not have: {error}",
        ) from None
    return converted


def _converted(schema: Any, names: Mapping[str, Any]) -> Any:
    """Return a schema whose fields have values as their defaults."""
    if isinstance(schema, list):
        return [_converted(one, names) for one in schema]
    if not isinstance(schema, dict):
        return schema
    converted = dict(schema)
    for part in ("items", "values"):
        if part in schema:
            converted[part] = _converted(schema[part], names)
    if "fields" in schema:
        converted["fields"] = [_converted_field(field, names) for field in schema["fields"]]
    return converted


def _converted_field(field: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    converted = {**field, "type": _converted(field["type"], names)}
    if "default" in field:
        converted["default"] = _value(field["type"], field["default"], names)
    return converted


def _value(schema: Any, default: Any, names: Mapping[str, Any]) -> Any:
    """Return the value of a default of a schema."""
    if isinstance(schema, list):
        return None if default is None else _value(_beside_null(schema), default, names)
    if isinstance(schema, str):
        schema = names.get(schema, {"type": schema})
    kind = schema["type"]
    if kind == "array":
        return [_value(schema["items"], item, names) for item in default]
    if kind == "map":
        return {key: _value(schema["values"], item, names) for key, item in default.items()}
    if kind == "record":
        return _record(schema, default, names)
    return _primitive(schema, default)


def _beside_null(union: Sequence[Any]) -> Any:
    """Return the first type of a union that is not null.

    A union that Spark has is of one type beside null, or of numbers.
    """
    return next(one for one in union if one not in ("null", {"type": "null"}))


def _record(
    schema: Mapping[str, Any], default: Mapping[str, Any], names: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a record by its default, in which a field that has a default of its own may be missing."""
    record = {}
    for field in schema["fields"]:
        name = field["name"]
        given = default[name] if name in default else field["default"]
        record[name] = _value(field["type"], given, names)
    return record


def _primitive(schema: dict[str, Any], default: Any) -> Any:
    kind = schema["type"]
    if kind in ("bytes", "fixed"):
        # The code points 0 to 255 stand for bytes.
        default = default.encode("latin-1")
    elif kind in ("float", "double"):
        # JSON has no NaN: a text stands for it.
        default = float(default)
    read = LOGICAL_READERS.get(f"{kind}-{schema.get('logicalType')}")
    return default if read is None else read(default, schema, schema)
