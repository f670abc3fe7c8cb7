"""Buckets of a test's own, rows for them, and what nats-py's Key-Value client reads there."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
from nats.js.client import JetStreamContext
from nats.js.errors import NoKeysError

from tests.support.client import T, ask
from tests.support.sinking import batch
from tests.support.streams import MakeStream, Stream

#: What the clients give a bucket.
CONFIG: dict[str, Any] = {
    "max_msgs_per_subject": 64,
    "discard": "new",
    "allow_rollup_hdrs": True,
    "deny_delete": True,
    "allow_direct": True,
    "storage": "memory",
}
_names = itertools.count(1)

Entry = tuple[str, bytes, str]


def make_bucket(stream: MakeStream, name: str = "", **config: Any) -> Stream:
    """The stream of a bucket, made by the fixture `stream`; 64 revisions of a key unless `config`
    says otherwise.
    """
    bucket = name or f"b{next(_names)}"
    mine = {**CONFIG, "subjects": [f"$KV.{bucket}.>"], **config}
    return stream(name=f"KV_{bucket}", **mine)


def name_of(bucket: Stream) -> str:
    return bucket.name.removeprefix("KV_")


def puts(*pairs: tuple[str, bytes | None]) -> pa.RecordBatch:
    return batch(key=[key for key, _ in pairs], value=[value for _, value in pairs])


def table(bucket: Stream) -> dict[str, bytes]:
    """The live keys with their values, as nats-py's Key-Value client reads them: its `keys`, and
    `get` of each.
    """
    return table_of(bucket.url, name_of(bucket))


def table_of(url: str, name: str) -> dict[str, bytes]:
    """The same of the bucket with this name."""

    async def work(js: JetStreamContext) -> dict[str, bytes]:
        kv = await js.key_value(name)
        keys = await read_whole(kv.keys)
        return {key: (await kv.get(key)).value or b"" for key in keys}

    return ask(url, work)


async def read_whole(read: Callable[[], Awaitable[list[T]]]) -> list[T]:
    """Return all that nats-py reads, or an empty list where there is nothing.

    nats-py finds nothing if the server's messages arrive before its count, and its callback runs
    after it. So the read is repeated.
    """
    for _ in range(20):
        with contextlib.suppress(NoKeysError):
            return await read()
    return []


def history(bucket: Stream, key: str) -> list[Entry]:
    """All revisions of a key as nats-py reads them: key, value, and `PUT`, `DEL` or `PURGE`."""

    async def work(js: JetStreamContext) -> list[Entry]:
        kv = await js.key_value(name_of(bucket))
        entries = await read_whole(lambda: kv.history(key))
        return [(entry.key, entry.value or b"", entry.operation or "PUT") for entry in entries]

    return ask(bucket.url, work)
