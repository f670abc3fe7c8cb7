"""JSON payloads, read by expressions of Spark."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from spark_jetstream.decoding.columns import Decoded
from spark_jetstream.errors import SchemaError

_PAYLOAD, _END = "payload", uuid.uuid4().hex
"""The fields of what is parsed: the payload, and one after it; no payload can know the second."""


def decoded(schemas: Mapping[str, Any], payload: Column, version: Column) -> Decoded:
    """Return what decodes payloads of several versions to the fields of all of them.

    Raises `SchemaError` if a schema does not parse, or two versions do not agree on a field.
    """
    structs = {name: _struct(f"argument schema{name and f', version {name}'}", one) for name, one in schemas.items()}
    text, fields = payload.cast("string"), _all_fields(structs)
    ours = [(version.isin(name), F.col("decoded")[f"v{n}"], one) for n, (name, one) in enumerate(structs.items())]
    return Decoded(
        first=F.struct(*(F.when(mine, _parsed(text, one)).alias(f"v{n}") for n, (mine, _, one) in enumerate(ours))),
        value=F.coalesce(*(F.when(mine, _value(parsed, one, fields)) for mine, parsed, one in ours)),
        fault=F.coalesce(*(F.when(mine, _fault(parsed, text, one)) for mine, parsed, one in ours)),
    )


def _struct(what: str, schema: Any) -> StructType:
    try:
        found = DataType.fromDDL(schema) if isinstance(schema, str) else schema
    except PySparkException as error:
        raise SchemaError(f"{what}: {str(error).strip().splitlines()[0]}") from None
    if not isinstance(found, StructType) or not found.fields:
        raise SchemaError(f"{what}: {schema!r} is neither DDL text nor a StructType with fields")
    if len({name.lower() for name in found.names}) < len(found.names):
        raise SchemaError(f"{what}: two of its fields have one name to Spark ({', '.join(found.names)})")
    return found


def _all_fields(schemas: Mapping[str, StructType]) -> dict[str, DataType]:
    """Return the types of the fields of all versions, by name."""
    fields: dict[str, DataType] = {}
    names: dict[str, str] = {}
    for version, schema in schemas.items():
        for field in schema:
            if (name := names.setdefault(field.name.lower(), field.name)) != field.name:
                both = f"field {field.name} in version {version} and field {name}"
                raise SchemaError(f"argument schema: {both} have one name to Spark")
            own, other = field.dataType.simpleString(), fields.setdefault(field.name, field.dataType).simpleString()
            if own != other:
                said = f"argument schema: field {field.name} is {other}, and {own} in version {version}"
                raise SchemaError(f"{said}: give it one type, such as string")
    return fields


def _around(text: Column) -> Column:
    # `from_json` ignores what follows the first object of a text. Another object around it has to end where it ends.
    return F.concat(F.lit(f'{{"{_PAYLOAD}":'), text, F.lit(f',"{_END}":true}}'))


def _parsed(text: Column, schema: StructType) -> Column:
    whole = StructType().add(_PAYLOAD, schema).add("bad", "string")
    return F.from_json(_around(text), whole, {"columnNameOfCorruptRecord": "bad"})


def _value(parsed: Column, schema: StructType, fields: Mapping[str, DataType]) -> Column:
    """Return a struct of the fields of all versions."""
    own = {name: parsed[_PAYLOAD][name] for name in schema.names}
    return F.struct(*(own.get(name, F.lit(None).cast(kind)).alias(name) for name, kind in fields.items()))


def _fault(parsed: Column, text: Column, schema: StructType) -> Column:
    """Return what is wrong with a payload, null if nothing is."""

    def fault(whole: Column) -> Column:
        # A text like {"a":1},"b":2 would make fields of the object around it.
        one = F.coalesce(F.json_object_keys(_around(text)) == F.array(F.lit(_PAYLOAD), F.lit(_END)), F.lit(False))
        bad = whole[_PAYLOAD].isNull() | whole["bad"].isNotNull() | ~one
        return F.coalesce(
            F.when(~F.is_valid_utf8(text), "the payload is not UTF-8"),
            F.when(bad, "the payload is not one JSON object that fits the schema"),
            *_missing(whole[_PAYLOAD], schema, ""),
        )

    # A filter on the error, which Spark moves in front of both steps, parses once this way.
    return F.transform(F.array(parsed), fault)[0]


def _missing(value: Column, kind: DataType, path: str) -> list[Column]:
    """Return errors. One that is not null names a field that a value lacks though its type calls it NOT NULL."""
    if isinstance(kind, MapType):
        return _missing(F.map_values(value), ArrayType(kind.valueType), path)
    errors: list[Column] = []
    if isinstance(kind, ArrayType) and _missing(value, kind.elementType, path):
        items = F.transform(value, lambda item: F.coalesce(*_missing(item, kind.elementType, path)))
        errors.append(F.get(F.filter(items, F.isnotnull), 0))
    for field in kind if isinstance(kind, StructType) else ():
        item, name = value[field.name], f"{path}{field.name}"
        if not field.nullable:
            errors.append(F.when(value.isNotNull() & item.isNull(), f"the payload has no {name}"))
        errors += _missing(item, field.dataType, f"{name}.")
    return errors
