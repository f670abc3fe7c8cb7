"""Portions: the rows that are published together, cut from record batches or made of Python rows."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from spark_jetstream.protocol.arrow import lengths
from spark_jetstream.schema import TYPES
from spark_jetstream.sink.columns import Columns, plain_type

PORTION_ROWS = 2000
"""The most rows of a portion."""
PORTION_BYTES = 4 * 1024 * 1024
"""About the most bytes of a portion of several rows."""

_ARROW_TYPES = {**TYPES, "map<string,string>": pa.map_(pa.string(), pa.string())}


def portion_rows(max_in_flight: int) -> int:
    """Return the most rows of a portion, of which at least two are to be in flight."""
    return max(1, min(PORTION_ROWS, max_in_flight // 2))


def portions(batch: pa.RecordBatch, columns: Columns, most: int) -> Iterator[pa.RecordBatch]:
    """Yield slices of a batch with at most `most` rows and about 4 MB of payload.

    A larger row is a slice by itself.
    """
    data = columns.of(batch).get(columns.payload, pa.nulls(batch.num_rows, pa.binary()))
    ends = np.cumsum(lengths(data))
    # Headers and subjects count by their mean: they are seldom much larger in some rows than in
    # others. `nbytes` reads the first offset of an empty list, which the batches of Spark 4.0 do
    # not have: the process crashes.
    size = max(1, batch.get_total_buffer_size())
    most = max(1, min(most, PORTION_BYTES * batch.num_rows // size))
    at = 0
    while at < batch.num_rows:
        before = int(ends[at - 1]) if at else 0
        fitting = int(np.searchsorted(ends, before + PORTION_BYTES, side="right"))
        stop = min(at + most, max(fitting, at + 1), batch.num_rows)
        yield batch.slice(at, stop - at)
        at = stop


def record_batches(
    rows: Iterable[Sequence[Any]],
    fields: Sequence[tuple[str, str]],
    most: int = PORTION_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yield Python rows as record batches of at most `most` rows and about 4 MB.

    `fields` are names and Spark `simpleString` types.
    """
    names = [name for name, _ in fields]
    remaining = iter(rows)
    while portion := list(_fitting(itertools.islice(remaining, most))):
        columns = zip(*portion, strict=True)
        arrays = [
            _array(values, name, plain_type(kind))
            for (name, kind), values in zip(fields, columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, names=names)


def _array(values: Sequence[Any], name: str, kind: str) -> pa.Array:
    """Return the values of a column as Arrow. `kind` is its `plain_type`."""
    if kind.startswith("map"):
        values = [None if value is None else list(value.items()) for value in values]
    elif name == "schedule" and kind == "timestamp":
        # Spark makes a time in the zone of the process, without saying so.
        values = [None if value is None else _aware(value) for value in values]
    # A column of other integers has the type of its values.
    return pa.array(values, _ARROW_TYPES.get(kind))


def _aware(time: dt.datetime) -> dt.datetime:
    """Return a time with the zone of the process.

    In the years 1 and 9999, where Python may not be able to do that, return it with UTC.
    """
    try:
        return time.astimezone()
    except (OverflowError, ValueError):
        return time.replace(tzinfo=dt.timezone.utc)


def _fitting(rows: Iterator[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """Yield rows until they have `PORTION_BYTES` of text and bytes."""
    size = 0
    for row in rows:
        yield row
        size += sum(len(value) for value in row if isinstance(value, (str, bytes, bytearray)))
        if size >= PORTION_BYTES:
            return
