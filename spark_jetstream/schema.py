"""The row of a stream: its columns, once, and what follows from them.

`COLUMNS` is the only list of them. The Arrow types are those that Spark derives from the same columns
(`pyspark.sql.pandas.types.to_arrow_schema` with time zone UTC), because the first batch that a reader
yields must equal that schema in names, types and nullability. All columns are nullable. Nothing here
imports pyspark.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from spark_jetstream.errors import SchemaError


class Column(NamedTuple):
    """One column: its name, its Arrow type, and Spark's ``simpleString`` of the same type."""

    name: str
    arrow: pa.DataType
    spark: str


# The field names inside the map (key, value, element) are Spark's; pyarrow would call the last one "item".
_HEADERS = pa.map_(pa.string(), pa.field("value", pa.list_(pa.field("element", pa.string()))))

COLUMNS: tuple[Column, ...] = (
    Column("stream", pa.string(), "string"),
    Column("subject", pa.string(), "string"),
    Column("sequence", pa.int64(), "bigint"),
    Column("timestamp", pa.timestamp("us", tz="UTC"), "timestamp"),
    Column("headers", _HEADERS, "map<string,array<string>>"),
    Column("data", pa.binary(), "binary"),
)

COLUMN_NAMES: tuple[str, ...] = tuple(column.name for column in COLUMNS)

#: All columns as Spark's DDL, for ``DataSource.schema()``.
SOURCE_DDL: str = ", ".join(f"`{column.name}` {column.spark}" for column in COLUMNS)

_BY_NAME = {column.name: column for column in COLUMNS}


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """The Arrow schema of the columns ``names``, in that order; `SchemaError` when one does not exist."""
    return pa.schema([pa.field(column.name, column.arrow) for column in map(_column, names)])


def select_columns(fields: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The column names of a schema that the user gave, checked.

    ``fields`` are (name, Spark ``simpleString`` type) pairs in the user's order. Raises `SchemaError` for
    an unknown column (naming the closest one), another type (naming both), a column given twice, and no
    column at all.
    """
    if not fields:
        raise SchemaError(f"the schema has no column; choose from {', '.join(COLUMN_NAMES)}")
    chosen: list[str] = []
    for name, spark in fields:
        column = _column(name)
        if spark != column.spark:
            raise SchemaError(f'the schema gives column "{name}" the type {spark}, but it is {column.spark}')
        if name in chosen:
            raise SchemaError(f'the schema has column "{name}" twice')
        chosen.append(name)
    return tuple(chosen)


def _column(name: str) -> Column:
    column = _BY_NAME.get(name)
    if column is None:
        closest = difflib.get_close_matches(name.lower(), COLUMN_NAMES, n=1, cutoff=0.0)[0]
        known = ", ".join(COLUMN_NAMES)
        raise SchemaError(f'there is no column "{name}"; did you mean "{closest}" (columns: {known})')
    return column
