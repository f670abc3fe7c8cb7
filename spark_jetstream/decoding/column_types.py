"""The columns of a frame as the fields of a schema: which are missing, and whether types fit."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StructField,
    StructType,
    VariantType,
)

from spark_jetstream.errors import SchemaError
from spark_jetstream.schema import plain_type

# A value of the first type is one of each of the others, without a loss.
_WIDER = {
    "tinyint": {"smallint", "int", "bigint", "float", "double"},
    "smallint": {"int", "bigint", "float", "double"},
    "int": {"bigint", "double"},
    "float": {"double"},
}


def columns_of(
    frame: StructType,
    fields: StructType,
    is_optional: Callable[[str], bool],
) -> StructType:
    """Return the fields of a schema for which a frame has columns, with the columns' own types.

    Columns that the schema does not have are left out; below the first level they are an error.
    ``is_optional`` says of the path of a field, with dots, whether it may be missing. Raises
    `SchemaError` if a column is missing or does not fit.
    """
    found = _members(frame, fields, is_optional, "")
    if not found.fields:
        listed = ", ".join(fields.names)
        raise SchemaError(f"argument df has no column for a field of argument schema ({listed})")
    return found


def with_names_of(column: DataType, field: DataType) -> DataType:
    """Return the type of a column that fits a field, with the names that the field's parts have.

    The parts keep the column's order: a cast goes by it.
    """
    if isinstance(column, StructType) and isinstance(field, StructType):
        parts = {part.name.lower(): part for part in field}
        renamed = StructType()
        for own in column:
            part = parts[own.name.lower()]
            renamed.add(part.name, with_names_of(own.dataType, part.dataType), own.nullable)
        return renamed
    if isinstance(column, ArrayType) and isinstance(field, ArrayType):
        item = with_names_of(column.elementType, field.elementType)
        return ArrayType(item, column.containsNull)
    if isinstance(column, MapType) and isinstance(field, MapType):
        key = with_names_of(column.keyType, field.keyType)
        value = with_names_of(column.valueType, field.valueType)
        return MapType(key, value, column.valueContainsNull)
    return column


def _members(
    frame: StructType,
    fields: StructType,
    is_optional: Callable[[str], bool],
    prefix: str,
) -> StructType:
    # To Spark names that differ only in case are one.
    columns = {column.name.lower(): column for column in frame}
    found = StructType()
    for field in fields:
        path = f"{prefix}{field.name}"
        column = columns.get(field.name.lower())
        if column is not None:
            kind = _fitting(column.dataType, field.dataType, is_optional, path)
            found.add(StructField(field.name, kind, field.nullable))
        elif not is_optional(path):
            listed = ", ".join(frame.names)
            raise SchemaError(
                f"argument df has no column {path}, which argument schema needs ({listed})",
            )
    return found


def _fitting(
    column: DataType,
    field: DataType,
    is_optional: Callable[[str], bool],
    path: str,
) -> DataType:
    """Return the type of a field without the parts that its column lacks."""
    if isinstance(field, StructType) and isinstance(column, StructType):
        _check_no_more_fields(column, field, path)
        return _members(column, field, is_optional, f"{path}.")
    if isinstance(field, ArrayType) and isinstance(column, ArrayType):
        item = _fitting(column.elementType, field.elementType, is_optional, path)
        return ArrayType(item, field.containsNull)
    if isinstance(field, MapType) and isinstance(column, MapType):
        key = _fitting(column.keyType, field.keyType, is_optional, path)
        value = _fitting(column.valueType, field.valueType, is_optional, path)
        return MapType(key, value, field.valueContainsNull)
    if not _fits(column, field):
        raise SchemaError(
            f"column {path} of argument df is {column.simpleString()}, and "
            f"{field.simpleString()} in argument schema: cast it",
        )
    return field


def _check_no_more_fields(column: StructType, field: StructType, path: str) -> None:
    more = {name.lower() for name in column.names} - {name.lower() for name in field.names}
    if more:
        raise SchemaError(
            f"column {path} of argument df has a field {min(more)}, which argument schema does "
            "not have: drop it",
        )


def _fits(column: DataType, field: DataType) -> bool:
    if isinstance(field, VariantType):
        # Any JSON.
        return True
    if isinstance(column, DecimalType) and isinstance(field, DecimalType):
        whole = column.precision - column.scale
        return whole <= field.precision - field.scale and column.scale <= field.scale
    own, other = plain_type(column.simpleString()), field.simpleString()
    return own == other or other in _WIDER.get(own, ())
