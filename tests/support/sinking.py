"""Writing below Spark: tasks of the sink as Spark would run them, and what the server has of their
rows.
"""

from __future__ import annotations

import base64
import itertools
import math
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import connect
from spark_jetstream.options import SinkOptions
from spark_jetstream.sink.columns import SinkColumns
from spark_jetstream.sink.kinds.keys import KeySink
from spark_jetstream.sink.kinds.kind import SinkKind
from spark_jetstream.sink.kinds.messages import MessageSink
from spark_jetstream.sink.kinds.objects import ObjectSink
from spark_jetstream.sink.kinds.table import sink_kind
from spark_jetstream.sink.message_ids import WriteTask
from spark_jetstream.sink.publisher import Publisher as SinkPublisher
from spark_jetstream.sink.report import TaskReport
from spark_jetstream.sink.row_reading import rows_of
from spark_jetstream.sink.rows import Rows
from spark_jetstream.sink.window import InFlight, Window
from tests.support.publish import Message, Publisher, Refused
from tests.support.reading import QUICK, api, part_of, pulls, wait_until
from tests.support.streams import Stream

TEXT, BINARY, NUMBER = ("string", pa.string()), ("binary", pa.binary()), ("bigint", pa.int64())
HEADERS = pa.map_(pa.string(), pa.list_(pa.string()))
#: Spark's and Arrow's types of the columns of streams, Key-Value buckets and Object Store buckets.
KINDS: Mapping[str, tuple[str, pa.DataType]] = {
    **dict.fromkeys(
        ("subject", "msg_id", "ttl", "incr", "key", "operation", "bucket", "name", "stream"), TEXT
    ),
    **dict.fromkeys(
        (
            "schedule",
            "schedule_target",
            "schedule_ttl",
            "schedule_time_zone",
            "schedule_source",
            "schedule_rollup",
            "rollup",
            "atomic_group",
        ),
        TEXT,
    ),
    **dict.fromkeys(("data", "value", "content"), BINARY),
    **dict.fromkeys(
        ("expected_last_subject_sequence", "expected_revision", "revision", "sequence"), NUMBER
    ),
    "headers": ("map<string,array<string>>", HEADERS),
    "timestamp": ("timestamp", pa.timestamp("us", tz="UTC")),
}
#: The columns that rows must have.
REQUIRED: Mapping[type[SinkKind], tuple[str, str]] = {
    MessageSink: ("data", "subject"),
    KeySink: ("key", "value"),
    ObjectSink: ("name", "content"),
}
TASK = WriteTask("q", 1, 0)
SECOND = 1_000_000_000  # nanoseconds
WINDOW = SECOND // 4
"""The duplicate window of streams that soon forget message ids."""
_OWN_LINE = re.compile(
    r"Nats-Msg-Id: [\w-]+\.\d+(\.\d+)?\.[0-9a-f]{24}(\.\d+)?(\.after\d+)?|Nats-Expected-Stream: \w+"
)


class Sink:
    """A sink with these options; each `write` is one attempt of one task, in a process that stays."""

    def __init__(self, servers: str, **given: object) -> None:
        texts = {name: str(value) for name, value in given.items()}
        self.options = SinkOptions.from_spark(
            {**QUICK, "servers": servers, **texts}, streaming=True
        )

    def connect(self, patience: float) -> Connection:
        return connect(self.options.connection, patience=patience)

    @classmethod
    def exactly(cls, servers: str, **given: object) -> Sink:
        """A sink that stores each row once, and the ledger for it."""
        return cls(servers, **{"delivery": "exactly-once", **given}).started()

    def started(self, names: Iterable[str] | None = None) -> Sink:
        """The sink, after the checks before the first row; exactly-once has its ledger then."""
        dataset_of(self.options, names).start(self.connect)
        return self

    def write(
        self,
        batches: Iterable[pa.RecordBatch],
        task: WriteTask = TASK,
        *,
        names: Iterable[str] | None = None,
    ) -> TaskReport:
        """Return the report of one attempt of the task.

        A list of batches has its own columns, others those in `names`.
        """
        if names is None and isinstance(batches, list) and batches:
            names = batches[0].schema.names
        dataset = dataset_of(self.options, names)
        if self.options.bucket is not None:
            dataset.start(self.connect)
        return dataset.write(batches, self.connect, task)

    def commit(
        self,
        reports: Sequence[TaskReport],
        task: WriteTask = TASK,
        *,
        names: Iterable[str] = ("data", "subject"),
    ) -> int:
        """End a batch whose tasks have reported this, as the driver does.

        Return how many copies were stored.
        """
        repeatable = not task.write.startswith("w-once")
        dataset = dataset_of(self.options, names)
        return dataset.finish(self.connect, task, reports, repeatable=repeatable)


def dataset_of(options: SinkOptions, names: Iterable[str] | None = None) -> SinkKind:
    """The dataset that options name, for rows with these columns, by default those that they must
    have.
    """
    kind = sink_kind(options.given())
    return kind(options, _fields(REQUIRED[kind] if names is None else names))


def set_write_timing(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """Give the writes of this process other times than those of `SinkKind.timing`, until the end of
    the test.
    """
    monkeypatch.setattr(SinkKind, "timing", replace(SinkKind.timing, **fields))


def pass_ack_timeout(
    monkeypatch: pytest.MonkeyPatch, late: Callable[[Window], Iterable[InFlight]]
) -> None:
    """Let `ackTimeout` pass for the portions in a window that `late` names, and for no others."""
    send_due = SinkPublisher._send_due

    def pass_by(self: SinkPublisher) -> None:
        for flight in late(self._window):
            flight.sent = -math.inf
        send_due(self)

    monkeypatch.setattr(SinkPublisher, "_send_due", pass_by)


def _fields(names: Iterable[str]) -> list[tuple[str, str]]:
    return [(name, KINDS[name][0]) for name in names]


def batch(types: Mapping[str, pa.DataType] | None = None, /, **columns: Any) -> pa.RecordBatch:
    """A record batch of these columns (lists or arrays), with the types that Spark gives them, or
    others.
    """
    types = types or {}
    arrays = [
        values
        if isinstance(values, pa.Array)
        else pa.array(values, types.get(name) or KINDS[name][1])
        for name, values in columns.items()
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def read(made: pa.RecordBatch, option: str | None = None, *, first: int = 1) -> Rows:
    """The rows of a record batch as the pure part of the sink sees them; `option` is the option
    subject.
    """
    return rows_of(made, SinkColumns(tuple(made.schema.names), option), first)


def read_rows(option: str | None = None, /, **columns: Any) -> Rows:
    return read(batch(**columns), option)


def rows(
    subject: str | Callable[[int], str], first: int, count: int, size: int = 0
) -> pa.RecordBatch:
    """Rows `first` to `first + count - 1`: their numbers as text, filled up to `size` bytes, at
    these subjects.
    """
    numbers = range(first, first + count)
    at = subject if callable(subject) else lambda _: subject
    return batch(
        data=[payload(number, size) for number in numbers],
        subject=[at(number) for number in numbers],
    )


def payload(number: int, size: int = 0) -> bytes:
    return f"row {number}".encode().ljust(size, b".")


def numbers(url: str, stream: str) -> list[int]:
    """The numbers of the rows that a stream has, in stream order."""
    return [int(data.split(b".")[0][4:]) for data in stored(url, stream)]


def stored(url: str, stream: str) -> list[bytes]:
    """The payloads that a stream has, in stream order."""
    return [data for _, data in with_subjects(url, stream)]


def with_subjects(url: str, stream: str) -> list[tuple[str, bytes]]:
    """The subjects and payloads that a stream has, in stream order."""
    state = api(url, f"STREAM.INFO.{stream}")["state"]
    if not state["messages"]:
        return []
    columns = (
        (messages.subjects().to_pylist(), messages.payloads().to_pylist())
        for messages in pulls(url, part_of(url, stream, max(1, state["first_seq"]), count=None))
    )
    return [pair for subjects, payloads in columns for pair in zip(subjects, payloads, strict=True)]


class Died(Exception):
    """Ends an attempt in the middle, as the end of its process would."""


def die(sink: Sink, stream: Stream, *batches: pa.RecordBatch, **given: Any) -> None:
    """An attempt that ends in the middle, when all of these batches are stored."""

    def some() -> Iterator[pa.RecordBatch]:
        before = stream.state()["messages"]
        yield from batches
        stream.wait_for(before + sum(batch.num_rows for batch in batches))
        raise Died

    with pytest.raises(Died):
        sink.write(some(), **given)


def forget(
    publisher: Publisher, stream: str, prefix: str | None = None, *headers: tuple[str, str]
) -> None:
    """Wait until a stream has forgotten its message ids: it takes one again at `<prefix>.probe`, by
    default its name's.

    Nothing is left of that but a gap. `headers` are what the stream demands of a message.
    """
    probe = message_with_id(f"{prefix or stream}.probe", *headers)
    await_forgotten(publisher, {stream: probe})
    publisher.api(f"STREAM.PURGE.{stream}", {"filter": probe.subject})


def message_with_id(subject: str, *headers: tuple[str, str]) -> Message:
    """A message with an id that no other message has."""
    return Message(subject, headers=[("Nats-Msg-Id", secrets.token_hex(8)), *headers])


def await_forgotten(
    publisher: Publisher,
    probes: Mapping[str, Message],
    looked: Callable[[str, int], object] = lambda stream, look: None,
) -> None:
    """Wait until streams have forgotten all ids: each takes its probe once more.

    `looked` is called with a stream that remembers its probe, and with the number of tries.
    """
    first = {stream: publisher.publish([probe]) for stream, probe in probes.items()}
    for stream, probe in probes.items():
        looks = itertools.count(1)

        def forgotten() -> bool:
            if publisher.publish([probe]) != first[stream]:  # noqa: B023
                return True
            looked(stream, next(looks))  # noqa: B023
            return False

        wait_until(forgotten, f"{stream} has forgotten its message ids")


class Seen(NamedTuple):
    """A message as the server keeps it: its header block and its payload, byte for byte."""

    sequence: int
    subject: str
    block: bytes
    data: bytes

    @property
    def lines(self) -> list[str]:
        """The header lines but those that the sink makes itself: its message id, and what option
        `stream` asks for.
        """
        return [
            line
            for line in self.block.decode().split("\r\n")[1:-2]
            if not _OWN_LINE.fullmatch(line)
        ]

    @property
    def headers(self) -> dict[str, list[str]]:
        """The same, each name with its values in their order."""
        headers: dict[str, list[str]] = {}
        for name, _, value in (line.partition(": ") for line in self.lines):
            headers.setdefault(name, []).append(value)
        return headers


def sent_again(seen: Seen) -> Message:
    """A row of the sink as it stayed in some buffer: the stream stores it once more if it has
    forgotten the id.
    """
    message_id = seen.block.decode().partition("Nats-Msg-Id: ")[2].partition("\r\n")[0]
    return Message(seen.subject, seen.data, [("Nats-Msg-Id", message_id)])


def seen(s: Stream) -> list[Seen]:
    """All messages of a stream, by STREAM.MSG.GET."""
    return seen_in(s.publisher, s.name)


def seen_in(publisher: Publisher, stream: str, known: Sequence[Seen] = ()) -> list[Seen]:
    """Return all messages of a stream; `known` are its first ones, which it still holds.

    The stream held all of them at one time. A message that replaces another one while they are read
    is at the end of the stream, where it would be missed.
    """
    for _ in range(100):
        before = publisher.api(f"STREAM.INFO.{stream}")["state"]
        messages = _read(publisher, stream, known, before["messages"])
        if publisher.api(f"STREAM.INFO.{stream}")["state"] == before:
            return messages
    raise AssertionError(f"stream {stream} changed during each of 100 reads")


def _read(publisher: Publisher, stream: str, known: Sequence[Seen], count: int) -> list[Seen]:
    """The first `count` messages of a stream, or fewer if some were removed meanwhile."""
    messages = list(known)
    while len(messages) < count:
        body = {"seq": messages[-1].sequence + 1 if messages else 1, "next_by_subj": ">"}
        try:
            message = publisher.api(f"STREAM.MSG.GET.{stream}", body)["message"]
        except Refused:
            break
        block, data = (base64.b64decode(message.get(name, "")) for name in ("hdrs", "data"))
        messages.append(Seen(message["seq"], message["subject"], block, data))
    return messages


def batches_of(messages: Sequence[Seen]) -> Counter[tuple[str, int]]:
    """How often each group is stored, by name and number of rows.

    A batch that is not whole fails.
    """
    found: Counter[tuple[str, int]] = Counter()
    left = [message for message in messages if "Nats-Batch-Id" in message.headers]
    while left:
        size = next(
            place for place, message in enumerate(left, 1) if "Nats-Batch-Commit" in message.headers
        )
        rows, left = left[:size], left[size:]
        assert [message.headers["Nats-Batch-Sequence"] for message in rows] == [
            [str(place + 1)] for place in range(size)
        ]
        assert rows[-1].sequence - rows[0].sequence == size - 1
        ((_, name),) = {
            (*message.headers["Nats-Batch-Id"], *message.headers["Atomic-Group"])
            for message in rows
        }
        found[name, size] += 1
    return found
