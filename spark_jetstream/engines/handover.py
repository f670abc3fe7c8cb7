"""Batches that Sail takes without waiting: few of each task, and none in memory of Python objects.

A task of Sail (pysail 0.7.2) puts its batches into a channel with room for 16, and holds Python's
global lock while it waits for room. If room needs the lock, the process hangs for good. Python
objects that own memory need the lock to be freed. A sink, a UDF, other tasks of the source, and a
client in the same process need it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

_FIRST = 4 * 1024 * 1024
_LARGEST = 1024 * 1024 * 1024


def few_batches(
    batches: Iterable[pa.RecordBatch], first: int = _FIRST, largest: int = _LARGEST
) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in few batches, which Arrow's own memory holds.

    The first has about `first` bytes, each of the others twice the bytes of the one before it, up
    to `largest`. So 16 batches hold about 9 GB: the rows of any task but a very large one.
    """
    # A sequence in one size would need to know the size of all rows.
    wanted = first
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= wanted:
            copies = _copied(waiting)
            # The originals go before Sail makes the task wait.
            waiting = []
            yield from copies
            size = 0
            wanted = min(2 * wanted, largest)
    if waiting:
        yield from _copied(waiting)


def _copied(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the rows of batches as one, in new memory; as several above 2 GB of a column."""
    if len(batches) > 1:
        combined: list[pa.RecordBatch] = (
            pa.Table.from_batches(batches).combine_chunks().to_batches()
        )
        return combined
    # Arrow would return a single batch as it is.
    [batch] = batches
    return [pa.ipc.read_record_batch(batch.serialize(), batch.schema)]
