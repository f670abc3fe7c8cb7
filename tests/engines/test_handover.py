"""Batches for Sail: few, in order, and in memory that no Python object owns."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pyarrow as pa
import pytest

from spark_jetstream.engines.handover import few_batches
from spark_jetstream.engines.running import SAIL, SPARK
from spark_jetstream.schema import arrow_schema, as_declared

KIND = pa.map_(pa.string(), pa.list_(pa.field("item", pa.string())))
SCHEMA = pa.schema([("number", pa.int64()), ("data", pa.binary()), ("headers", KIND)])
#: The room of Sail's channel.
ROOM = 16


def batch(number: int, size: int = 1000) -> pa.RecordBatch:
    headers = None if number % 2 else [("A", [str(number)])]
    row = {"number": number, "data": b"x" * size, "headers": headers}
    return pa.RecordBatch.from_pylist([row], SCHEMA)


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_the_rows_stay_as_they_are(count: int) -> None:
    batches = [batch(number) for number in range(count)]
    made = list(few_batches(batches, first=2000))
    assert len(made) <= min(count, ROOM)
    for each in made:
        assert str(each.schema) == str(SCHEMA)
    rows = [row for each in made for row in each.to_pylist()]
    assert rows == [row for each in batches for row in each.to_pylist()]


def test_names_inside_of_maps_stay_those_of_the_schema() -> None:
    column = arrow_schema(["headers"])
    row = pa.RecordBatch.from_pylist([{"headers": [("A", ["1"])]}], column)
    wanted = pa.schema([("headers", KIND)])
    for count in (1, 2):
        [made] = few_batches([as_declared(row, wanted)] * count)
        assert str(made.schema) == str(wanted) != str(column)
        assert made.num_rows == count


def test_each_batch_has_twice_the_bytes_of_the_one_before() -> None:
    made = few_batches([batch(number) for number in range(200)], first=2000, largest=30_000)
    sizes = [each.num_rows for each in made]
    assert sizes[:4] == [2, 4, 8, 16]
    assert max(sizes) == 30


def test_rows_come_before_all_are_read() -> None:
    numbers = iter(range(100))
    made = few_batches((batch(number) for number in numbers), first=2000)
    assert next(made).num_rows == 2
    assert next(numbers) == 2


@pytest.mark.parametrize("count", [1, 2])
def test_no_python_object_owns_the_memory(count: int) -> None:
    owner = np.zeros(1000, np.int64)
    column = pa.Array.from_buffers(pa.int64(), len(owner), [None, pa.py_buffer(owner)])
    watched = weakref.ref(owner)
    [made] = few_batches([pa.record_batch({"number": column})] * count)
    del owner, column
    gc.collect()
    assert watched() is None
    assert made.num_rows == 1000 * count


def test_spark_gets_the_batches_themselves() -> None:
    given = iter([batch(1)])
    assert SPARK.hand_over(given) is given
    [made] = SAIL.hand_over(iter([batch(1)]))
    assert made.equals(batch(1))
