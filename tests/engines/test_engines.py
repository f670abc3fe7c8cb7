"""Sail without Sail: which engine a process belongs to, and schemas in Arrow's form."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from types import ModuleType

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_type

from spark_jetstream.engines.running import SAIL, SPARK, running_engine
from spark_jetstream.errors import OptionError, SchemaError
from spark_jetstream.schema import (
    BUCKET_COLUMNS,
    COLUMNS,
    COUNTER_COLUMNS,
    DEAD_LETTER_COLUMNS,
    OBJECT_COLUMNS,
    TYPES,
    Column,
    arrow_schema,
    as_declared,
    declared_schema,
    spark_type,
)
from spark_jetstream.source.reader import JetStreamBatchReader
from tests.support.calls import ROWS, data_source

#: As Sail makes it of the DDL "headers map<string,array<string>>, timestamp timestamp".
GIVEN = pa.schema(
    [
        ("headers", pa.map_(pa.string(), pa.list_(pa.field("item", pa.string())))),
        ("timestamp", pa.timestamp("us", tz="Europe/Berlin")),
        pa.field("sequence", pa.int64(), nullable=False),
    ]
)


@pytest.fixture
def sail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pysail._native", ModuleType("pysail._native"))


def test_a_process_belongs_to_sail_if_it_has_loaded_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert running_engine() is SPARK
    monkeypatch.setitem(sys.modules, "pysail._native", ModuleType("pysail._native"))
    assert running_engine() is SAIL


# Types

KINDS: Sequence[pa.DataType] = [
    # Those of the columns.
    *TYPES.values(),
    pa.large_string(),
    pa.large_binary(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.date32(),
    pa.null(),
    pa.float32(),
    pa.float64(),
    pa.decimal128(20, 0),
    pa.timestamp("us", tz="Europe/Berlin"),
    pa.list_(pa.int64()),
    pa.struct([("a", pa.string()), ("b", pa.list_(pa.int8()))]),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_spark_calls_an_arrow_type_the_same(kind: pa.DataType) -> None:
    assert spark_type(kind) == from_arrow_type(kind).simpleString()


def test_types_that_spark_does_not_take_from_arrow() -> None:
    assert spark_type(pa.timestamp("us")) == "timestamp_ntz"
    assert spark_type(pa.string_view()) == "string"
    assert spark_type(pa.binary_view()) == "binary"
    assert spark_type(pa.uint8()) == "uint8"


# Schemas of reads

DATASETS: dict[str, tuple[dict[str, str], tuple[Column, ...]]] = {
    "messages": ({"stream": "S"}, COLUMNS),
    "keys": ({"bucket": "B", "history": "true"}, BUCKET_COLUMNS),
    "counters": ({"stream": "S", "counters": "true"}, COUNTER_COLUMNS),
    "objects": ({"objectBucket": "O"}, OBJECT_COLUMNS),
    "dead letters": ({"deadLettersOf": "S"}, DEAD_LETTER_COLUMNS),
    "unknown": ({}, COLUMNS),
}


@pytest.mark.parametrize(("options", "columns"), DATASETS.values(), ids=DATASETS)
@pytest.mark.usefixtures("sail")
def test_sail_gets_an_arrow_schema(options: dict[str, str], columns: tuple[Column, ...]) -> None:
    if not options:
        with pytest.raises(OptionError):
            data_source(options).schema()
        return
    schema = data_source(options).schema()
    names = [column.name for column in columns]
    assert schema.equals(arrow_schema(names, columns), check_metadata=True)
    # Sail gives the reader the schema that it got.
    given = SAIL.given_fields(schema)
    assert [field.spark for field in given] == [column.spark for column in columns]
    declared_schema(given, columns)


def test_spark_gets_ddl() -> None:
    assert isinstance(data_source({"stream": "S"}).schema(), str)


@pytest.mark.usefixtures("sail")
def test_a_batch_has_the_very_schema_that_sail_gives() -> None:
    reader = JetStreamBatchReader({"stream": "S"}, GIVEN)
    assert reader.columns == ("headers", "timestamp", "sequence")
    row = [{"headers": [("A", ["1", "2"])], "timestamp": 10, "sequence": 7}]
    batch = pa.RecordBatch.from_pylist(row, arrow_schema(reader.columns))
    made = as_declared(batch, reader.schema)
    # Equality of schemas overlooks the names inside of maps, which Sail compares.
    assert str(made.schema) == str(GIVEN)
    assert made.column(0).to_pylist() == batch.column(0).to_pylist()
    assert made.column(1).cast(pa.int64()).to_pylist() == [10]
    assert pickle.loads(pickle.dumps(reader)).schema.equals(reader.schema)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (pa.field("data", pa.string()), 'column "data" the type string, but it is binary'),
        (pa.field("timestamp", pa.timestamp("us")), "timestamp_ntz, but it is timestamp (in DDL"),
        (pa.field("payload", pa.binary()), 'there is no column "payload"'),
        (GIVEN.field("headers").with_nullable(False), 'column "headers" NOT NULL, but rows may'),
    ],
)
@pytest.mark.usefixtures("sail")
def test_a_schema_of_a_user_is_checked(field: pa.Field, message: str) -> None:
    reader = JetStreamBatchReader({"stream": "S"}, pa.schema([field]))
    with pytest.raises(SchemaError) as caught:
        _ = reader.columns
    assert message in str(caught.value)


def test_batches_of_spark_stay_as_they_are() -> None:
    names = [column.name for column in COLUMNS]
    reader = JetStreamBatchReader({"stream": "S"}, ROWS)
    batch = pa.RecordBatch.from_pylist([], arrow_schema(names))
    assert as_declared(batch, reader.schema) is batch


@pytest.mark.usefixtures("sail")
def test_columns_that_a_query_does_not_need_are_not_read() -> None:
    reader = JetStreamBatchReader({"stream": "S"}, arrow_schema(["subject", "sequence", "data"]))
    assert list(reader.columns) == ["subject", "sequence", "data"]
    reader.pruneColumns(arrow_schema(["sequence", "subject"]))
    assert list(reader.columns) == ["sequence", "subject"]
    assert reader.schema.equals(arrow_schema(["sequence", "subject"]))
    with pytest.raises(NotImplementedError):
        reader.pruneColumns(pa.schema([]))
    assert list(reader.columns) == ["sequence", "subject"]
