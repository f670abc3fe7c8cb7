"""Buckets of a test's own, tasks that write to them, and what nats-py's Key-Value client reads there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
from nats.js.client import JetStreamContext
from nats.js.errors import NoKeysError

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import connect
from spark_jetstream.options import SinkOptions
from spark_jetstream.sink.kv import BucketColumns
from spark_jetstream.sink.kv_task import write_bucket
from spark_jetstream.sink.preflight import check_bucket
from spark_jetstream.sink.report import TaskReport
from spark_jetstream.sink.task import WriteTask
from tests.support.client import ask
from tests.support.reading import QUICK
from tests.support.streams import Stream

KINDS = {
    "key": ("string", pa.string()),
    "value": ("binary", pa.binary()),
    "operation": ("string", pa.string()),
    "expected_revision": ("bigint", pa.int64()),
    "ttl": ("string", pa.string()),
    "bucket": ("string", pa.string()),
    "revision": ("bigint", pa.int64()),
    "timestamp": ("timestamp", pa.timestamp("us", tz="UTC")),
}
#: What the clients give a bucket.
CONFIG: dict[str, Any] = {
    "max_msgs_per_subject": 64,
    "discard": "new",
    "allow_rollup_hdrs": True,
    "deny_delete": True,
    "allow_direct": True,
    "storage": "memory",
}
TASK = WriteTask("q", 1, 0)

_names = itertools.count(1)

Entry = tuple[str, bytes, str]


def make_bucket(stream: Callable[..., Stream], name: str = "", **config: Any) -> Stream:
    """The stream of a bucket, made by the fixture `stream`; 64 revisions of a key unless `config` says otherwise."""
    bucket = name or f"b{next(_names)}"
    mine = {**CONFIG, "subjects": [f"$KV.{bucket}.>"], **config}
    return stream(name=f"KV_{bucket}", **mine)


def name_of(bucket: Stream) -> str:
    """The name of the bucket, from its stream."""
    return bucket.name.removeprefix("KV_")


class KeyedSink:
    """A sink for a bucket with these options; each `write` is one attempt of one task, in a process that stays."""

    def __init__(self, url: str, bucket: Stream | str, **given: object) -> None:
        texts = {name: str(value) for name, value in given.items()}
        name = bucket if isinstance(bucket, str) else name_of(bucket)
        self.options = SinkOptions.from_spark({**QUICK, "servers": url, "bucket": name, **texts}, streaming=True)

    def connect(self, patience: float) -> Connection:
        """The connection of this process with these options."""
        return connect(self.options.connection, patience=patience)

    def write(self, batches: Iterable[pa.RecordBatch], task: WriteTask = TASK) -> TaskReport:
        """What one attempt of the task reports; all batches have the columns of the first."""
        remaining = iter(batches)
        first = next(remaining)
        columns = BucketColumns.check([(name, KINDS[name][0]) for name in first.schema.names])
        bucket = check_bucket(self.connect, self.options)
        return write_bucket(itertools.chain([first], remaining), self.connect, self.options, columns, bucket, task)


def batch(**columns: list[Any]) -> pa.RecordBatch:
    """A record batch of a bucket's columns."""
    return pa.record_batch({name: pa.array(values, KINDS[name][1]) for name, values in columns.items()})


def puts(*pairs: tuple[str, bytes | None]) -> pa.RecordBatch:
    """A record batch of keys and values."""
    return batch(key=[key for key, _ in pairs], value=[value for _, value in pairs])


def table(bucket: Stream) -> dict[str, bytes]:
    """The live keys with their values, as nats-py's Key-Value client reads them: its `keys`, and `get` of each."""
    return table_of(bucket.url, name_of(bucket))


def table_of(url: str, name: str) -> dict[str, bytes]:
    """The same of the bucket with this name."""

    async def work(js: JetStreamContext) -> dict[str, bytes]:
        kv = await js.key_value(name)
        try:
            keys = await kv.keys()
        except NoKeysError:
            return {}
        return {key: (await kv.get(key)).value or b"" for key in keys}

    return ask(url, work)


def history(bucket: Stream, key: str) -> list[Entry]:
    """All revisions of a key as nats-py reads them: key, value, and `PUT`, `DEL` or `PURGE`."""

    async def work(js: JetStreamContext) -> list[Entry]:
        entries = await (await js.key_value(name_of(bucket))).history(key)
        return [(entry.key, entry.value or b"", entry.operation or "PUT") for entry in entries]

    return ask(bucket.url, work)
