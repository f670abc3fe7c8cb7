"""Measures the code of source and sink against a server in this process, without Spark."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.requests import Connect
from spark_jetstream.options import SinkOptions, SourceOptions
from spark_jetstream.options.connection import ConnectionOptions
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.columns import MessageRun, record_batch
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.schema import COLUMN_NAMES
from spark_jetstream.sink.columns import SinkColumns
from spark_jetstream.sink.task import WriteTask, write_task
from spark_jetstream.streams.pull import PullSettings


@dataclass(frozen=True)
class Rate:
    """Messages that were read or written. ``size`` is the sum of the payloads in bytes."""

    what: str
    messages: int
    size: int
    seconds: float

    @property
    def messages_per_second(self) -> float:
        """Messages divided by seconds."""
        return self.messages / self.seconds

    @property
    def megabytes_per_second(self) -> float:
        """Payloads in units of 1,000,000 bytes, divided by seconds."""
        return self.size / self.seconds / 1e6

    def data(self) -> dict[str, object]:
        """Return the rate for JSON."""
        return {
            "what": self.what,
            "messages": self.messages,
            "bytes": self.size,
            "seconds": self.seconds,
            "messages_per_second": self.messages_per_second,
            "megabytes_per_second": self.megabytes_per_second,
        }


Tell = Callable[[int, int], None]
"""Takes what is done and the total."""


def percentile(numbers: Sequence[float], percent: float) -> float:
    """Return a percentile (nearest rank) of at least one number, in any order."""
    rank = int(-(-len(numbers) * percent // 100))  # rounded up
    rank = min(max(rank, 1), len(numbers))
    return sorted(numbers)[rank - 1]


def _tell_nobody(done: int, total: int) -> None:
    pass


def read(
    what: str,
    runs: Iterator[MessageRun],
    part: SequenceRange,
    tell: Tell = _tell_nobody,
) -> Rate:
    """Read a range, all columns decoded. Raises what ``runs`` raise."""
    rows = 0
    size = 0
    began = time.perf_counter()
    for run in runs:
        batch = record_batch(run, stream=part.stream, columns=COLUMN_NAMES)
        rows += batch.num_rows
        # The sum of no rows is null.
        size += pc.sum(pc.binary_length(batch.column("data"))).as_py() or 0
        tell(rows, part.count or part.width)
    seconds = time.perf_counter() - began
    return Rate(what, rows, size, seconds)


_ROWS = 10_000  # of a record batch, as Spark hands them to a task
_COLUMNS = [("data", "binary"), ("subject", "string")]
_LETTERS = b'abcdefghijklmnopqrstuvwxyz {}":,0123456789'


def payload(size: int) -> bytes:
    """Return ``size`` bytes that look like text, the same each time."""
    return bytes(random.Random(13).choices(_LETTERS, k=size))


def pull_settings(connection: ConnectionOptions, stream: str, batch: int | None) -> PullSettings:
    """Return the settings that the source has with its defaults, or with this ``fetchBatch``.

    Raises `OptionError`.
    """
    given = {"stream": stream}
    if batch is not None:
        given["fetchBatch"] = str(batch)
    options = SourceOptions.from_spark(given, streaming=True)
    return PullSettings(
        options.fetch_batch,
        options.fetch_max_bytes,
        options.fetch_timeout,
        connection.retry_timeout,
        True,
    )


def write(
    connect: Connect,
    options: SinkOptions,
    subjects: list[str],
    count: int,
    data: bytes,
    tell: Tell,
) -> Rate:
    """Write ``count`` rows to ``subjects`` in turn, by one task; wait for all acknowledgements.

    Raises what `write_task` raises.
    """
    columns = SinkColumns.check(_COLUMNS, None)
    # The ids of messages depend on it. With that of an earlier run the server would drop the rows
    # as duplicates.
    task = WriteTask(f"bench-{uuid.uuid4()}", 0, 0)
    began = time.perf_counter()
    write_task(_batches(subjects, count, data, tell), connect, options, columns, task)
    seconds = time.perf_counter() - began
    return Rate(f"sink, {options.delivery}", count, count * len(data), seconds)


def _batches(subjects: list[str], count: int, data: bytes, tell: Tell) -> Iterator[pa.RecordBatch]:
    for first in range(0, count, _ROWS):
        rows = min(_ROWS, count - first)
        numbers = range(first, first + rows)
        payloads = pa.array([data] * rows, pa.binary())
        names = pa.array([subjects[number % len(subjects)] for number in numbers])
        yield pa.record_batch([payloads, names], names=[name for name, _ in _COLUMNS])
        tell(first + rows, count)


def latencies(
    connection: Connection,
    subject: str,
    count: int,
    data: bytes,
    tell: Tell,
) -> list[float]:
    """Return the seconds of each publish, which waits for the answer to the one before.

    Raises `JetStreamError`.
    """
    context = f"publish to {subject}"
    seconds = []
    for number in range(count):
        began = time.perf_counter()
        answer = connection.request(subject, data, context=context)
        seconds.append(time.perf_counter() - began)
        # A publish that no stream stores is an error, not a fast one: test_bench.py,
        # test_a_publish_that_nobody_stores_fails.
        jsapi.reply(answer, context)
        tell(number + 1, count)
    return seconds
