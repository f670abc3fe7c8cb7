"""The only lists of columns: of streams, counters, dead letters and buckets.

The Arrow types are those that Spark derives from the same columns
(`pyspark.sql.pandas.types.to_arrow_schema` with time zone UTC). The first batch that a reader
yields must equal that schema in names, types and nullability. All columns are nullable
unless a user's schema says otherwise. Nothing here imports pyspark.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from spark_jetstream.errors import SchemaError, closest


class Column(NamedTuple):
    """One column: its name, its Arrow type, and Spark's ``simpleString`` of the same type.

    ``has_nulls`` says whether a row may have null in it. Nothing inside a map or an array is null.
    """

    name: str
    arrow: pa.DataType
    spark: str
    has_nulls: bool = False


class GivenField(NamedTuple):
    """A field of a user's schema, with ``simpleString`` and ``jsonValue`` of its Spark type.

    ``arrow`` is the Arrow type that batches must have, where the engine names it.
    """

    name: str
    spark: str
    nullable: bool = True
    json: Any = None
    arrow: pa.DataType | None = None


#: Spark's types, and Arrow's. The field names inside a map are Spark's; pyarrow would call the last
#: one "item".
TYPES: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,array<string>>": pa.map_(
        pa.string(),
        pa.field("value", pa.list_(pa.field("element", pa.string()))),
    ),
    "map<string,map<string,string>>": pa.map_(pa.string(), pa.map_(pa.string(), pa.string())),
}


def _columns(text: str) -> tuple[Column, ...]:
    """Return the columns of names and types; a question mark says that a column has nulls."""
    columns = []
    for name, spark in map(str.split, text.split(", ")):
        columns.append(Column(name.removesuffix("?"), TYPES[spark], spark, name.endswith("?")))
    return tuple(columns)


COLUMNS = _columns(
    "stream string, subject string, sequence bigint, timestamp timestamp, "
    "headers? map<string,array<string>>, data binary"
)
# If the message is gone, only the columns of the advisory have values.
DEAD_LETTER_COLUMNS = _columns(
    "stream string, subject? string, sequence bigint, timestamp? timestamp, "
    "headers? map<string,array<string>>, data? binary, gone boolean, consumer string, kind string, "
    "reason? string, deliveries bigint, given_up timestamp, domain? string, msg_id? string"
)
BUCKET_COLUMNS = _columns(
    "bucket string, key string, value? binary, "  # null where the key was deleted or purged
    "revision bigint, operation string, timestamp timestamp"
)
# The current table has no row for a key that was deleted or purged, so each row has a value.
TABLE_COLUMNS = tuple(column._replace(has_nulls=False) for column in BUCKET_COLUMNS)
COUNTER_COLUMNS = _columns(
    "stream string, subject string, value string, incr? string, "
    "sources? map<string,map<string,string>>, sequence bigint, timestamp timestamp"
)
OBJECT_COLUMNS = _columns(
    "bucket string, name string, size bigint, chunks bigint, digest? string, modified timestamp, "
    "headers? map<string,array<string>>, content binary"
)
# With option contentOff.
LISTED_COLUMNS = (*OBJECT_COLUMNS[:-1], *_columns("content? binary"))

#: Arrow's names of types without parts, and Spark's.
_PLAIN: Mapping[str, str] = {
    **dict.fromkeys(("string", "large_string", "string_view"), "string"),
    **dict.fromkeys(("binary", "large_binary", "binary_view"), "binary"),
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "bool": "boolean",
    "date32[day]": "date",
    "null": "void",
}

#: Columns of other connectors (Kafka, Event Hubs, Kinesis, nats-spark-connector), in lower case,
#: and those here.
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
    # In DDL `timestamp` is another type where spark.sql.timestampType is TIMESTAMP_NTZ, and each
    # read would fail: test_schema.py, test_ddl_names_the_timestamp_that_no_setting_changes.
    kinds = {"timestamp": "timestamp_ltz"}
    return ", ".join(f"`{each.name}` {kinds.get(each.spark, each.spark)}" for each in columns)


def arrow_schema(names: Sequence[str], columns: Sequence[Column] = COLUMNS) -> pa.Schema:
    """Return the Arrow schema of the columns ``names``, in that order.

    Raises `SchemaError` for a name that is not among ``columns``.
    """
    chosen = [_column(name, columns) for name in names]
    return pa.schema([pa.field(column.name, column.arrow) for column in chosen])


def declared_schema(fields: Sequence[GivenField], columns: Sequence[Column] = COLUMNS) -> pa.Schema:
    """Return the Arrow schema of a user's schema, with the nullability that it declares.

    Raises `SchemaError` if there is no column, or one is unknown, given twice, of another type, or
    NOT NULL although rows may have null in it.
    """
    if not fields:
        raise SchemaError(f"the schema has no column; choose from {_names(columns)}")
    chosen: dict[str, pa.Field] = {}
    for field in fields:
        column = _column(field.name, columns)
        # A collation says how texts compare; the bytes are the same.
        if without_collations(field.spark) != column.spark:
            raise SchemaError(
                f'the schema gives column "{field.name}" the type {field.spark}, but it is '
                f"{column.spark}{zone_hint(field.spark)}"
            )
        # A schema of Spark may have a name twice.
        if field.name in chosen:
            raise SchemaError(f'the schema has column "{field.name}" twice')
        # Spark would fail in a task, with "Value at index is null", at the first message without
        # it.
        if column.has_nulls and not field.nullable:
            raise SchemaError(
                f'the schema declares column "{field.name}" NOT NULL, but rows may have null in '
                "it: leave NOT NULL out (nullable=True)"
            )
        # Since Spark 4.2 the first batch of a task must have the declared nullability, inside of
        # maps and arrays too: test_schema.py,
        # test_a_batch_has_the_nullability_that_the_schema_declares.
        kind = field.arrow
        if kind is None:
            kind = _declared_type(column.arrow, field.json)
        chosen[field.name] = pa.field(field.name, kind, nullable=field.nullable)
    return pa.schema(list(chosen.values()))


def as_declared(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with exactly the types of a schema of `declared_schema`."""
    # Most schemas declare no column NOT NULL. The names of inner fields count (`check_metadata`).
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    # On Spark the types differ only in names and nullability of inner fields, so no value is
    # copied. Another engine may have another time zone, or strings with larger offsets.
    arrays = [array.cast(kind) for array, kind in zip(batch.columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _declared_type(kind: pa.DataType, given: Any) -> pa.DataType:
    """Return an Arrow type with the inner nullability of Spark's ``jsonValue`` of that type."""
    if pa.types.is_map(kind) and given is not None:
        item = _declared_type(kind.item_type, given["valueType"])
        return pa.map_(kind.key_type, pa.field("value", item, nullable=given["valueContainsNull"]))
    if pa.types.is_list(kind) and given is not None:
        element = _declared_type(kind.value_type, given["elementType"])
        return pa.list_(pa.field("element", element, nullable=given["containsNull"]))
    return kind


def spark_type(kind: pa.DataType) -> str:
    """Return Spark's ``simpleString`` of an Arrow type, or Arrow's name of a type without one."""
    types = pa.types
    if types.is_map(kind):
        return f"map<{spark_type(kind.key_type)},{spark_type(kind.item_type)}>"
    if types.is_list(kind) or types.is_large_list(kind):
        return f"array<{spark_type(kind.value_type)}>"
    if types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{spark_type(field.type)}' for field in kind)}>"
    if types.is_timestamp(kind):
        return "timestamp" if kind.tz is not None else "timestamp_ntz"
    if types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _PLAIN.get(str(kind), str(kind))


def without_collations(spark: str) -> str:
    """Return a ``simpleString`` of Spark without collations, which only say how texts compare."""
    return re.sub(r"\bstring collate [\w.]+", "string", spark)


def plain_type(spark: str) -> str:
    """Return a ``simpleString`` of Spark with ``string`` for collated texts, char and varchar."""
    return re.sub(r"\b(var)?char\(\d+\)", "string", without_collations(spark))


def zone_hint(spark: str) -> str:
    """Return the end of an error about a type that the user may have called otherwise; or ""."""
    if spark != "timestamp_ntz":
        return ""
    return " (in DDL timestamp_ltz, where spark.sql.timestampType is TIMESTAMP_NTZ)"


def closest_column(name: str, known: Collection[str], cutoff: float = 0.6) -> str:
    """Return the column that another connector calls ``name``, or a similar one, or ""."""
    ours = _FOREIGN.get(name.lower())
    # A table of another kind has other columns: `data` is no column of a bucket.
    if ours is not None and ours in known:
        return ours
    return closest(name, known, cutoff)


def _column(name: str, columns: Sequence[Column]) -> Column:
    known = {column.name: column for column in columns}
    column = known.get(name)
    if column is None:
        # With 0.0 some column is always named: there are few, and the user meant one of them.
        nearest = closest_column(name, known, 0.0)
        hint = f'did you mean "{nearest}" (columns: {_names(columns)})'
        raise SchemaError(f'there is no column "{name}"; {hint}')
    return column


def _names(columns: Sequence[Column]) -> str:
    return ", ".join(column.name for column in columns)
