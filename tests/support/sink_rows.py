"""Rows as the pure part of the sink sees them, made from Python values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from spark_jetstream.sink.rows import Rows, SinkColumns, rows_of

HEADERS = pa.map_(pa.string(), pa.list_(pa.string()))
TYPES: Mapping[str, pa.DataType] = {
    "data": pa.binary(),
    "subject": pa.string(),
    "headers": HEADERS,
    "msg_id": pa.string(),
    "ttl": pa.string(),
    "expected_last_subject_sequence": pa.int64(),
}


def batch_of(types: Mapping[str, pa.DataType] | None = None, /, **columns: Any) -> pa.RecordBatch:
    """A record batch of these columns (lists or arrays), with the types that Spark gives them, or others."""
    known = {**TYPES, **(types or {})}
    arrays = [
        values if isinstance(values, pa.Array) else pa.array(values, known[name]) for name, values in columns.items()
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def read(batch: pa.RecordBatch, option: str | None = None, *, first: int = 1) -> Rows:
    """Its rows; ``option`` is the option subject."""
    return rows_of(batch, SinkColumns(tuple((name, "") for name in batch.schema.names), option), first)


def rows(option: str | None = None, /, **columns: Any) -> Rows:
    """Rows of these columns."""
    return read(batch_of(**columns), option)
