"""Writing below Spark: tasks of the sink as Spark would run them, and what the server has of their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import connect
from spark_jetstream.options import SinkOptions
from spark_jetstream.protocol.columns import headers, payloads
from spark_jetstream.sink.report import TaskReport
from spark_jetstream.sink.rows import SinkColumns
from spark_jetstream.sink.task import WriteTask, write_task
from tests.support.reading import QUICK, api, part_of, pulls

KINDS = {
    "data": ("binary", pa.binary()),
    "subject": ("string", pa.string()),
    "msg_id": ("string", pa.string()),
    "ttl": ("string", pa.string()),
    "expected_last_subject_sequence": ("bigint", pa.int64()),
    "headers": ("map<string,array<string>>", pa.map_(pa.string(), pa.list_(pa.string()))),
}


class Sink:
    """A sink with these options; each `write` is one attempt of one task, in a process that stays."""

    def __init__(self, url: str, **given: object) -> None:
        texts = {name: str(value) for name, value in given.items()}
        self.options = SinkOptions.from_spark({**QUICK, "servers": url, **texts}, streaming=True)

    def connect(self, patience: float) -> Connection:
        """The connection of this process with these options."""
        return connect(self.options.connection, patience=patience)

    def write(
        self,
        batches: Iterable[pa.RecordBatch],
        *,
        names: Iterable[str] = ("data", "subject"),
        task: WriteTask | None = None,
    ) -> TaskReport:
        """What one attempt of the task reports; columns `names` of the kinds in `KINDS`."""
        columns = SinkColumns.check([(name, KINDS[name][0]) for name in names], self.options.subject)
        return write_task(batches, self.connect, self.options, columns, task or WriteTask("q", 1, 0))


def batch(**columns: list[Any]) -> pa.RecordBatch:
    """A record batch of the sink's columns."""
    return pa.record_batch({name: pa.array(values, KINDS[name][1]) for name, values in columns.items()})


def rows(subject: str | Callable[[int], str], first: int, count: int, size: int = 0) -> pa.RecordBatch:
    """Rows `first` to `first + count - 1`: their numbers as text, filled up to `size` bytes, at these subjects."""
    numbers = range(first, first + count)
    at = subject if callable(subject) else lambda _: subject
    return batch(data=[payload(number, size) for number in numbers], subject=[at(number) for number in numbers])


def payload(number: int, size: int = 0) -> bytes:
    """The payload of row `number`."""
    return f"row {number}".encode().ljust(size, b".")


def numbers(url: str, stream: str) -> list[int]:
    """The numbers of the rows that a stream has, in stream order."""
    return [int(data.split(b".")[0][4:]) for data in stored(url, stream)]


def stored(url: str, stream: str) -> list[bytes]:
    """The payloads that a stream has, in stream order."""
    return [data for pulled in _pulled(url, stream) for data in payloads(pulled.frames).to_pylist()]


def stored_headers(url: str, stream: str) -> list[dict[str, list[str]]]:
    """The headers of what a stream has, in stream order."""
    return [dict(found or ()) for pulled in _pulled(url, stream) for found in headers(pulled.frames).to_pylist()]


def _pulled(url: str, stream: str) -> Iterator[Any]:
    state = api(url, f"STREAM.INFO.{stream}")["state"]
    if not state["messages"]:
        return iter(())
    return pulls(url, part_of(url, stream, max(1, state["first_seq"]), count=None))
