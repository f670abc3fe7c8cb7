"""Measures what the source and the sink reach with a server, without Spark: their own code, in this process.

What was measured. Pure.

Reading a range as a task of the source does it: by a pull consumer, or by direct gets; to record batches.

Publishing as a task of the sink does it, and one message at a time.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.client.connection import Connection
from spark_jetstream.errors import JetStreamError
from spark_jetstream.options import SinkOptions
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.columns import Messages, record_batch
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.schema import COLUMN_NAMES
from spark_jetstream.sink.rows import SinkColumns
from spark_jetstream.sink.task import WriteTask, write_task
from spark_jetstream.streams.direct import read_direct
from spark_jetstream.streams.pull import PullSettings, read_range


@dataclass(frozen=True)
class Rate:
    """Messages that went through in some seconds. ``size`` is in bytes, payloads only."""

    what: str
    messages: int
    size: int
    seconds: float

    @property
    def messages_per_second(self) -> float:
        return self.messages / self.seconds

    @property
    def megabytes_per_second(self) -> float:
        """In units of 1,000,000 bytes."""
        return self.size / self.seconds / 1e6


@dataclass(frozen=True)
class Latencies:
    """How long single requests took, in seconds, the quickest first; at least one."""

    seconds: tuple[float, ...]

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latencies:
        """In any order. ValueError for none."""
        if not seconds:
            raise ValueError("nothing was measured")
        return cls(tuple(sorted(seconds)))

    def percentile(self, percent: float) -> float:
        """The time within which that many of a hundred were done (nearest rank)."""
        rank = -(-len(self.seconds) * percent // 100)
        return self.seconds[min(max(int(rank), 1), len(self.seconds)) - 1]


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


Tell = Callable[[int, int], None]
"""Called with what is done, and how much there is in all."""

_ROWS = 10_000  # of a record batch, as Spark hands them to a task
_COLUMNS = [("data", "binary"), ("subject", "string")]
_LETTERS = b'abcdefghijklmnopqrstuvwxyz {}":,0123456789'


def payload(size: int) -> bytes:
    """So many bytes that look like text, the same each time."""
    return bytes(random.Random(13).choices(_LETTERS, k=size))


def write(
    connect: Callable[[float], Connection],
    options: SinkOptions,
    subjects: list[str],
    count: int,
    data: bytes,
    tell: Tell = lambda done, total: None,
) -> Rate:
    """Write ``count`` rows by one task, to ``subjects`` in turn; until every row has its acknowledgement.

    Raises `JetStreamError` when something else was stored than that, and what `write_task` raises.
    """
    columns = SinkColumns.check(_COLUMNS, None)
    task = WriteTask(f"bench-{uuid.uuid4()}", 0, 0)
    began = time.perf_counter()
    report = write_task(_batches(subjects, count, data, tell), connect, options, columns, task)
    seconds = time.perf_counter() - began
    if report.stored != count:
        raise JetStreamError(f"{report.stored} of {count} rows were stored")
    return Rate(f"sink, {options.delivery}", count, count * len(data), seconds)


def _batches(subjects: list[str], count: int, data: bytes, tell: Tell) -> Iterator[pa.RecordBatch]:
    for first in range(0, count, _ROWS):
        rows = min(_ROWS, count - first)
        names = pa.array([subjects[number % len(subjects)] for number in range(first, first + rows)])
        yield pa.record_batch([pa.array([data] * rows, pa.binary()), names], names=[name for name, _ in _COLUMNS])
        tell(first + rows, count)


def latencies(
    connection: Connection, subject: str, count: int, data: bytes, tell: Tell = lambda done, total: None
) -> Latencies:
    """Publish ``count`` messages one after the other, each when the one before is acknowledged.

    Raises the `ApiError` of a refusal, and what `Connection.request` raises.
    """
    context = f"publish to {subject}"
    took = []
    for number in range(count):
        began = time.perf_counter()
        answer = connection.request(subject, data, context=context)
        took.append(time.perf_counter() - began)
        jsapi.reply(answer, context)
        tell(number + 1, count)
    return Latencies.of(took)
