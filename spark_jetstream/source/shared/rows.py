"""The rows of a micro-batch that the driver has fetched, and the parts of them that tasks hand out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_jetstream.protocol.arrow import IntArray, as_arrow, binaries, texts
from spark_jetstream.protocol.headers import decode_headers
from spark_jetstream.streams.lookup import RawMessage

MOST_BYTES = 32 << 20
"""Bytes that the rows of a task have at most, but for a single large row.

Spark refuses a task that is larger than ``spark.rpc.message.maxSize``, 128 MiB unless set
(CoarseGrainedSchedulerBackend, `launchTasks`).
"""


@dataclass(frozen=True)
class SharedRows:
    """The rows of one task, as an Arrow IPC stream: tasks do not ask the server for them."""

    width: int
    """The number of rows."""
    content: bytes

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        with pa.ipc.open_stream(self.content) as reader:
            yield from reader


@dataclass(frozen=True)
class FetchedRows:
    """Rows of one stream by sequence: ``sequences`` (n,) rise, and ``table`` has n rows."""

    sequences: IntArray
    table: pa.Table

    @classmethod
    def of(cls, sequences: Sequence[IntArray], batches: Sequence[pa.RecordBatch]) -> FetchedRows:
        """Return rows that were fetched in any order, one row for each sequence."""
        table = pa.Table.from_batches(batches)
        came = np.concatenate(sequences)
        # int64 (n,): where the first row of each sequence is.
        rising, order = np.unique(came, return_index=True)
        if not np.array_equal(came, rising):
            table = table.take(as_arrow(order))
        return cls(rising, table)

    def __len__(self) -> int:
        return len(self.sequences)

    def parts(self, least: int, most_rows: int) -> list[SharedRows]:
        """Cut the rows evenly into at least ``least`` parts of at most ``most_rows``, none empty.

        A part that is too large for a task is cut again.
        """
        count = max(-(-len(self) // most_rows), min(least, len(self)))
        parts: list[SharedRows] = []
        for number in range(count):
            begin = number * len(self) // count
            end = (number + 1) * len(self) // count
            parts += _parts(self.table.slice(begin, end - begin))
        return parts


def _parts(table: pa.Table) -> Iterator[SharedRows]:
    """Yield rows as one part, or as several that a task can take."""
    content = _packed(table)
    half = len(table) // 2
    if len(content) <= MOST_BYTES or not half:
        yield SharedRows(len(table), content)
        return
    yield from _parts(table.slice(0, half))
    yield from _parts(table.slice(half))


def _packed(table: pa.Table) -> bytes:
    """Return rows as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


class StoredRun:
    """Single messages of one stream, as its leader has them; implements `MessageRun`."""

    def __init__(self, messages: Sequence[RawMessage]) -> None:
        self._messages = messages
        self.sequences: IntArray = np.array([each.sequence for each in messages], np.int64)

    def __len__(self) -> int:
        return len(self._messages)

    def timestamps(self) -> IntArray:
        """When the server stored the messages, nanoseconds since the epoch, int64, length n."""
        return np.array([each.time for each in self._messages], np.int64)

    def subjects(self) -> pa.StringArray:
        """The subjects the messages were stored under."""
        return texts([each.subject for each in self._messages])

    def raw_subjects(self) -> pa.BinaryArray:
        """The same subjects as bytes."""
        return binaries([each.subject.encode() for each in self._messages])

    def headers(self) -> pa.MapArray:
        """The headers as map<string, list<string>>, null for a message without any."""
        blocks = [each.headers for each in self._messages]
        length = np.array([len(block) for block in blocks], np.int64)
        return decode_headers(b"".join(blocks), np.cumsum(length) - length, length)

    def payloads(self) -> pa.BinaryArray:
        """The payloads, byte for byte."""
        return binaries([each.data for each in self._messages])
