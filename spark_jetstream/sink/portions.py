"""Portions: the rows that are published together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from spark_jetstream.protocol.arrow import lengths
from spark_jetstream.sink.columns import Columns

PORTION_ROWS = 2000
"""The most rows of a portion."""
PORTION_BYTES = 4 * 1024 * 1024
"""About the most bytes of a portion of several rows."""


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
