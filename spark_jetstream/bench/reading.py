"""Reading a range as a task of the source does it: by a pull consumer, or by direct gets; to record batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pyarrow.compute as pc

from spark_jetstream.bench.figures import Rate
from spark_jetstream.columns import Messages, record_batch
from spark_jetstream.connection import Connection
from spark_jetstream.direct import read_direct
from spark_jetstream.errors import JetStreamError
from spark_jetstream.pulling import PullSettings, read_range
from spark_jetstream.schema import COLUMN_NAMES
from spark_jetstream.streams import SequenceRange

Read = Callable[[SequenceRange], Iterator[Messages]]


def by_consumer(connect: Callable[[float], Connection], settings: PullSettings) -> Read:
    """What reads a range with a pull consumer."""
    return lambda part: read_range(connect, part, settings, "bench")


def by_direct_gets(connect: Callable[[float], Connection], settings: PullSettings) -> Read:
    """What reads a range with direct gets."""
    return lambda part: read_direct(connect, part, settings, "bench")


def read(
    what: str, reader: Read, part: SequenceRange, tell: Callable[[int, int], None] = lambda done, total: None
) -> Rate:
    """Read a range, all columns decoded. `JetStreamError` when other messages come than ``part.count`` says."""
    rows = size = 0
    began = time.perf_counter()
    for run in reader(part):
        batch = record_batch(run, stream=part.stream, columns=COLUMN_NAMES)
        rows += batch.num_rows
        size += pc.sum(pc.binary_length(batch.column("data"))).as_py() or 0
        tell(rows, part.count or part.width)
    seconds = time.perf_counter() - began
    if part.count is not None and rows != part.count:
        raise JetStreamError(f"{rows} of {part.count} messages of stream {part.stream} came")
    return Rate(what, rows, size, seconds)
