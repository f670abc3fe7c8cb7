"""The only lists of the columns that rows of streams, counters, dead letters, Key-Value and Object Store buckets have.

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


#: Spark's types, and Arrow's. The field names inside a map are Spark's; pyarrow would call the last one "item".
TYPES: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,array<string>>": pa.map_(pa.string(), pa.field("value", pa.list_(pa.field("element", pa.string())))),
    "map<string,map<string,string>>": pa.map_(pa.string(), pa.map_(pa.string(), pa.string())),
}


def _columns(text: str) -> tuple[Column, ...]:
    return tuple(Column(name, TYPES[spark], spark) for name, spark in map(str.split, text.split(", ")))


COLUMNS = _columns(
    "stream string, subject string, sequence bigint, timestamp timestamp, headers map<string,array<string>>, "
    "data binary"
)
DEAD_LETTER_COLUMNS = COLUMNS + _columns(
    "gone boolean, consumer string, kind string, reason string, deliveries bigint, given_up timestamp, "
    "domain string, msg_id string"
)
BUCKET_COLUMNS = _columns(
    "bucket string, key string, value binary, revision bigint, operation string, timestamp timestamp"
)
COUNTER_COLUMNS = _columns(
    "stream string, subject string, value string, incr string, sources map<string,map<string,string>>, "
    "sequence bigint, timestamp timestamp"
)
OBJECT_COLUMNS = _columns(
    "bucket string, name string, size bigint, chunks bigint, digest string, modified timestamp, "
    "headers map<string,array<string>>, content binary"
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
