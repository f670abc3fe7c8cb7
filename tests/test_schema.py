"""The columns of a row: what Spark derives from them, and what a user's schema may ask for."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_jetstream.errors import SchemaError
from spark_jetstream.schema import (
    BUCKET_COLUMNS,
    COLUMN_NAMES,
    COLUMNS,
    COUNTER_COLUMNS,
    DEAD_LETTER_COLUMNS,
    LISTED_COLUMNS,
    OBJECT_COLUMNS,
    TABLE_COLUMNS,
    Column,
    GivenField,
    arrow_schema,
    as_declared,
    ddl,
    declared_schema,
)

SPARK_TYPES: dict[str, DataType] = {
    "stream": StringType(),
    "subject": StringType(),
    "sequence": LongType(),
    "timestamp": TimestampType(),
    "headers": MapType(StringType(), ArrayType(StringType())),
    "data": BinaryType(),
}


@pytest.mark.parametrize("names", [COLUMN_NAMES, COLUMN_NAMES[::-1], ("headers",)], ids=",".join)
def test_the_arrow_schema_is_the_one_spark_expects(names: tuple[str, ...]) -> None:
    struct = StructType([StructField(name, SPARK_TYPES[name], nullable=True) for name in names])
    ours, sparks = arrow_schema(names), to_arrow_schema(struct, timezone="UTC")
    assert ours.equals(sparks, check_metadata=True)
    # Equality of list and map types overlooks the names of the fields inside them, which the text
    # shows.
    assert str(ours) == str(sparks)
    assert [field.nullable for field in ours] == [True] * len(names)


def test_the_sources_of_a_counter_are_as_spark_expects() -> None:
    sparks = to_arrow_schema(
        StructType().add("sources", MapType(StringType(), MapType(StringType(), StringType())))
    )
    assert str(arrow_schema(["sources"], COUNTER_COLUMNS)) == str(sparks)


def given(schema: StructType) -> list[GivenField]:
    """The fields of a schema as a reader takes them from Spark."""
    types = [(field.dataType.simpleString(), field.dataType.jsonValue()) for field in schema]
    return [
        GivenField(field.name, text, field.nullable, json)
        for field, (text, json) in zip(schema, types, strict=True)
    ]


def test_a_subset_in_any_order_is_kept_as_given() -> None:
    for names in (["sequence", "data"], ["data", "sequence"], list(COLUMN_NAMES)):
        schema = StructType([StructField(name, SPARK_TYPES[name]) for name in names])
        assert declared_schema(given(schema)).equals(arrow_schema(names))


def test_ddl_names_the_timestamp_that_no_setting_changes() -> None:
    assert "`timestamp` timestamp_ltz" in ddl(COLUMNS)
    assert "`modified` timestamp_ltz" in ddl(OBJECT_COLUMNS)


FULL_LIST = ArrayType(StringType(), containsNull=False)


@pytest.mark.parametrize(
    "field",
    [
        StructField("sequence", LongType(), nullable=False),
        StructField("headers", MapType(StringType(), FULL_LIST)),
        StructField("headers", MapType(StringType(), FULL_LIST, valueContainsNull=False)),
        StructField("subject", StringType("UTF8_LCASE"), nullable=False),
        StructField("headers", MapType(StringType(), ArrayType(StringType("UNICODE_CI")))),
    ],
    ids=lambda field: field.dataType.simpleString(),
)
def test_a_batch_has_the_nullability_that_the_schema_declares(field: StructField) -> None:
    schema = StructType([field])
    ours, sparks = declared_schema(given(schema)), to_arrow_schema(schema, timezone="UTC")
    assert ours.equals(sparks)
    assert str(ours) == str(sparks)
    values = {"sequence": [1, 2], "headers": [[("A", ["1", "2"])], None], "subject": ["a", "b"]}
    column = {field.name: values[field.name]}
    batch = pa.RecordBatch.from_pydict(column, schema=arrow_schema([field.name]))
    assert as_declared(batch, ours).schema.equals(sparks)
    assert as_declared(batch, ours).to_pydict() == batch.to_pydict()


#: For each kind of rows the columns in which a row may have null.
WITH_NULLS: dict[str, tuple[tuple[Column, ...], str]] = {
    "messages": (COLUMNS, "headers"),
    "counters": (COUNTER_COLUMNS, "incr sources"),
    "revisions": (BUCKET_COLUMNS, "value"),
    "table": (TABLE_COLUMNS, ""),
    "objects": (OBJECT_COLUMNS, "digest headers"),
    "contentOff": (LISTED_COLUMNS, "digest headers content"),
    "dead letters": (DEAD_LETTER_COLUMNS, "subject timestamp headers data reason domain msg_id"),
}


@pytest.mark.parametrize(("columns", "nulls"), WITH_NULLS.values(), ids=WITH_NULLS)
def test_a_column_that_may_have_null_refuses_not_null(
    columns: tuple[Column, ...], nulls: str
) -> None:
    fields = {each.name: GivenField(each.name, each.spark, nullable=False) for each in columns}
    for name in nulls.split():
        with pytest.raises(SchemaError, match=f'column "{name}" NOT NULL, but rows may have null'):
            declared_schema([fields.pop(name)], columns)
    assert not any(field.nullable for field in declared_schema(list(fields.values()), columns))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([("payload", "binary")], 'there is no column "payload"'),
        ([("seqence", "bigint")], 'there is no column "seqence"; did you mean "sequence"'),
        ([("offset", "bigint")], 'there is no column "offset"; did you mean "sequence"'),
        ([("Data", "binary")], 'there is no column "Data"; did you mean "data"'),
        ([("data", "string")], 'the schema gives column "data" the type string, but it is binary'),
        (
            [("sequence", "int")],
            'the schema gives column "sequence" the type int, but it is bigint',
        ),
        (
            [("subject", "char(9)")],
            'the schema gives column "subject" the type char(9), but it is string',
        ),
        (
            [("timestamp", "timestamp_ntz")],
            'the schema gives column "timestamp" the type timestamp_ntz, but it is timestamp '
            "(in DDL timestamp_ltz, where spark.sql.timestampType is TIMESTAMP_NTZ)",
        ),
        ([("data", "binary"), ("data", "binary")], 'the schema has column "data" twice'),
        ([], "the schema has no column; choose from stream, subject"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(fields: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        declared_schema([GivenField(name, spark) for name, spark in fields])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
