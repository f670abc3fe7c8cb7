"""The only lists of the columns that rows of streams, counters, Key-Value buckets and Object Store buckets have.

The Arrow types are those that Spark derives from the same columns (`pyspark.sql.pandas.types.to_arrow_schema` with time
zone UTC), because the first batch that a reader yields must equal that schema in names, types and nullability. All
columns are nullable. Nothing here imports pyspark.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from spark_jetstream.errors import SchemaError, closest


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

BUCKET_COLUMNS: tuple[Column, ...] = (
    Column("bucket", pa.string(), "string"),
    Column("key", pa.string(), "string"),
    Column("value", pa.binary(), "binary"),
    Column("revision", pa.int64(), "bigint"),
    Column("operation", pa.string(), "string"),
    Column("timestamp", pa.timestamp("us", tz="UTC"), "timestamp"),
)

COUNTER_COLUMNS: tuple[Column, ...] = (
    Column("stream", pa.string(), "string"),
    Column("subject", pa.string(), "string"),
    Column("value", pa.string(), "string"),
    Column("incr", pa.string(), "string"),
    Column("sources", pa.map_(pa.string(), pa.map_(pa.string(), pa.string())), "map<string,map<string,string>>"),
    Column("sequence", pa.int64(), "bigint"),
    Column("timestamp", pa.timestamp("us", tz="UTC"), "timestamp"),
)

OBJECT_COLUMNS: tuple[Column, ...] = (
    Column("bucket", pa.string(), "string"),
    Column("name", pa.string(), "string"),
    Column("size", pa.int64(), "bigint"),
    Column("chunks", pa.int64(), "bigint"),
    Column("digest", pa.string(), "string"),
    Column("modified", pa.timestamp("us", tz="UTC"), "timestamp"),
    Column("headers", _HEADERS, "map<string,array<string>>"),
    Column("content", pa.binary(), "binary"),
)

#: Columns of other connectors (Kafka, Event Hubs, Kinesis, nats-spark-connector), in lower case, and those here.
_FOREIGN: Mapping[str, str] = {
    "approximatearrivaltimestamp": "timestamp",
    "body": "data",
    "content": "data",
    "datetime": "timestamp",
    "enqueuedtime": "timestamp",
    "key": "subject",
    "offset": "sequence",
    "partitionkey": "subject",
    "payload": "data",
    "properties": "headers",
    "sequencenumber": "sequence",
    "streamseq": "sequence",
    "topic": "subject",
    "value": "data",
}

COLUMN_NAMES: tuple[str, ...] = tuple(column.name for column in COLUMNS)


def ddl(columns: Sequence[Column]) -> str:
    """Return the columns as Spark's DDL, for ``DataSource.schema()``."""
    return ", ".join(f"`{column.name}` {column.spark}" for column in columns)


def arrow_schema(names: Sequence[str], columns: Sequence[Column] = COLUMNS) -> pa.Schema:
    """The Arrow schema of the columns ``names``, in that order; `SchemaError` when one is not among ``columns``."""
    return pa.schema([pa.field(column.name, column.arrow) for column in (_column(name, columns) for name in names)])


def select_columns(fields: Sequence[tuple[str, str]], columns: Sequence[Column] = COLUMNS) -> tuple[str, ...]:
    """Return the names in a schema that the user gave: pairs of a name and Spark's ``simpleString`` of the type.

    Raises `SchemaError` if there is no column, or one is unknown, given twice, or of another type.
    """
    if not fields:
        raise SchemaError(f"the schema has no column; choose from {_names(columns)}")
    chosen: list[str] = []
    for name, spark in fields:
        column = _column(name, columns)
        if spark != column.spark:
            raise SchemaError(f'the schema gives column "{name}" the type {spark}, but it is {column.spark}')
        if name in chosen:
            raise SchemaError(f'the schema has column "{name}" twice')
        chosen.append(name)
    return tuple(chosen)


def closest_column(name: str, known: Collection[str], cutoff: float = 0.6) -> str:
    """Return the column that ``name`` stands for in another connector, or is most like; "" if there is none."""
    ours = _FOREIGN.get(name.lower(), "")
    return ours if ours in known else closest(name, known, cutoff)


def _column(name: str, columns: Sequence[Column]) -> Column:
    known = {column.name: column for column in columns}
    column = known.get(name)
    if column is None:
        nearest = closest_column(name, known, 0.0)
        raise SchemaError(f'there is no column "{name}"; did you mean "{nearest}" (columns: {_names(columns)})')
    return column


def _names(columns: Sequence[Column]) -> str:
    return ", ".join(column.name for column in columns)
