"""The columns of a row: what Spark derives from them, and what a user's schema may ask for."""

from __future__ import annotations

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
from spark_jetstream.schema import COLUMN_NAMES, COLUMNS, COUNTER_COLUMNS, arrow_schema, select_columns

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
    # Equality of list and map types overlooks the names of the fields inside them, which the text shows.
    assert str(ours) == str(sparks)
    assert [field.nullable for field in ours] == [True] * len(names)


def test_the_sources_of_a_counter_are_as_spark_expects() -> None:
    sparks = to_arrow_schema(StructType().add("sources", MapType(StringType(), MapType(StringType(), StringType()))))
    assert str(arrow_schema(["sources"], COUNTER_COLUMNS)) == str(sparks)


def test_a_subset_in_any_order_is_kept_as_given() -> None:
    assert select_columns([("sequence", "bigint"), ("data", "binary")]) == ("sequence", "data")
    assert select_columns([("data", "binary"), ("sequence", "bigint")]) == ("data", "sequence")
    assert select_columns([(column.name, column.spark) for column in COLUMNS]) == COLUMN_NAMES


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([("payload", "binary")], 'there is no column "payload"'),
        ([("seqence", "bigint")], 'there is no column "seqence"; did you mean "sequence"'),
        ([("offset", "bigint")], 'there is no column "offset"; did you mean "sequence"'),
        ([("Data", "binary")], 'there is no column "Data"; did you mean "data"'),
        ([("data", "string")], 'the schema gives column "data" the type string, but it is binary'),
        ([("sequence", "int")], 'the schema gives column "sequence" the type int, but it is bigint'),
        ([("data", "binary"), ("data", "binary")], 'the schema has column "data" twice'),
        ([], "the schema has no column; choose from stream, subject"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(fields: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        select_columns(fields)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
