"""Publishing as a task of the sink does it, and one message at a time."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator

import pyarrow as pa

from spark_jetstream import jsapi
from spark_jetstream.bench.figures import Latencies, Rate
from spark_jetstream.connection import Connection
from spark_jetstream.errors import JetStreamError
from spark_jetstream.options import SinkOptions
from spark_jetstream.sink.rows import SinkColumns
from spark_jetstream.sink.task import WriteTask, write_task

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
