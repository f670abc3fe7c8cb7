"""An Object Store bucket of a test's own: written by nats-py, or frame by frame; read below Spark."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import pickle
import random
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from nats.js import api as nats_api
from nats.js.client import JetStreamContext
from nats.js.object_store import ObjectStore

from spark_jetstream.buckets.objects import (
    ObjectLink,
    ObjectMeta,
    ObjectOptions,
    chunk_subject,
    digest_text,
    meta_filter,
    meta_subject,
    stream_name,
)
from spark_jetstream.client.requests import Connect
from spark_jetstream.options import SourceOptions
from spark_jetstream.protocol.conventions import DEFAULT_CHUNK_SIZE
from spark_jetstream.schema import OBJECT_COLUMNS, arrow_schema
from spark_jetstream.source.advice import Read
from spark_jetstream.source.object_reader import ObjectRows
from spark_jetstream.source.objects import ObjectGroup, plan_objects
from spark_jetstream.streams.latest import TablePart
from spark_jetstream.streams.pull import PullSettings
from tests.support.client import T, ask
from tests.support.publish import Message, Publisher
from tests.support.reading import SETTINGS, connecting
from tests.support.streams import nanoseconds

ALL = tuple(column.name for column in OBJECT_COLUMNS)
SOME = ("name", "content")
ROLLUP = [("Nats-Rollup", "sub")]

_numbers = itertools.count(1)


def content(name: str, version: int, size: int) -> bytes:
    """The bytes of one version of an object."""
    return random.Random(f"{name} {version}").randbytes(size)


def meta_of(bucket: str, name: str, nuid: str, chunks: Sequence[bytes]) -> ObjectMeta:
    """The meta message of an object with this content."""
    data = b"".join(chunks)
    digest = digest_text(hashlib.sha256(data).digest())
    return ObjectMeta(
        bucket=bucket, name=name, nuid=nuid, size=len(data), chunks=len(chunks), digest=digest
    )


def link_to(bucket: str, name: str) -> ObjectOptions:
    """The options of the meta message of a link."""
    return ObjectOptions(link=ObjectLink(bucket=bucket, name=name))


class Bucket:
    """A bucket of a test's own. `put` and `delete` are nats-py's."""

    def __init__(self, url: str, publisher: Publisher, name: str) -> None:
        self.url = url
        self.name = self.origin = name
        self.stream = stream_name(name)
        self.publisher = publisher
        self.create()

    def create(self) -> None:
        """Make the bucket, again after it was deleted, as nats-py makes it."""
        ask(self.url, lambda js: js.create_object_store(self.name))

    def remove(self) -> None:
        self.publisher.api(f"STREAM.DELETE.{self.stream}")

    def nats(self, work: Callable[[ObjectStore], Awaitable[T]]) -> T:
        """Return the result of ``work`` with nats-py's object store."""
        return in_store(self.url, self.name, work)

    def put(
        self, *objects: tuple[str, bytes], chunk: int = DEFAULT_CHUNK_SIZE, **meta: Any
    ) -> None:

        async def work(store: ObjectStore) -> None:
            for name, data in objects:
                how = nats_api.ObjectMetaOptions(max_chunk_size=chunk)
                await store.put(name, data, nats_api.ObjectMeta(options=how, **meta))

        self.nats(work)

    def delete(self, name: str) -> None:
        self.nats(lambda store: store.delete(name))

    def frames(
        self, name: str, data: bytes, chunk: int = DEFAULT_CHUNK_SIZE, **fields: Any
    ) -> list[Message]:
        """The chunks of an object and its meta message, as clients write them; `fields` makes it
        say something else.
        """
        nuid = secrets.token_hex(11)
        chunks = [data[at : at + chunk] for at in range(0, len(data), chunk)]
        meta = meta_of(self.name, name, nuid, chunks).model_copy(update=fields)
        messages = [Message(chunk_subject(self.name, nuid), part) for part in chunks]
        return [*messages, Message(meta_subject(self.name, name), meta.to_json(), ROLLUP)]

    def store(
        self, name: str, data: bytes = b"", chunk: int = DEFAULT_CHUNK_SIZE, **fields: Any
    ) -> None:
        """Store an object without a client library, whose old chunks stay where they are."""
        self.publisher.publish(self.frames(name, data, chunk, **fields))

    def link(self, name: str, bucket: str, target: str) -> None:
        self.store(name, options=link_to(bucket, target), digest="")

    def info(self) -> dict[str, Any]:
        return self.publisher.api(f"STREAM.INFO.{self.stream}")

    def time(self, name: str) -> int:
        """When the newest meta message of an object was stored, in ns."""
        newest = self.publisher.api(
            f"STREAM.MSG.GET.{self.stream}", {"last_by_subj": meta_subject(self.name, name)}
        )
        return nanoseconds(newest["message"]["time"])

    # Reading

    @property
    def connect(self) -> Connect:
        return connecting(self.url)

    def options(self, **given: object) -> SourceOptions:
        """Those of a batch read of this bucket."""
        named = {name: str(value) for name, value in given.items()}
        return SourceOptions.from_spark({"objectBucket": self.name, **named}, streaming=False)

    def plan(self, glob: str = "*", *, direct: bool = False, **given: object) -> list[ObjectGroup]:
        """The tasks of a batch read, as executors get them."""
        part = TablePart(self.stream, self.info()["created"], (meta_filter(self.origin),), direct)
        options = self.options(pathGlobFilter=glob, **given)
        groups = plan_objects(self.connect, part, SETTINGS, "test", options, SOME)
        copies: list[ObjectGroup] = pickle.loads(pickle.dumps(groups))
        return copies

    def read(
        self,
        *groups: ObjectGroup,
        columns: tuple[str, ...] = SOME,
        settings: PullSettings = SETTINGS,
        connect: Connect | None = None,
        content_off: bool = False,
        **how: Any,
    ) -> list[dict[str, Any]]:
        """The rows of these tasks, or of all objects that are there now."""
        rows = []
        options = self.options(contentOff=content_off)
        for group in groups or self.plan(contentOff=content_off):
            reader = object_rows(connect or self.connect, settings, options, columns, **how)
            for batch in reader.of_group(group):
                rows += rows_of(batch, columns)
        return rows

    def contents(self, *groups: ObjectGroup, **how: Any) -> dict[str, bytes]:
        return by_name(self.read(*groups, **how))


def object_rows(
    connect: Connect,
    settings: PullSettings,
    options: SourceOptions,
    columns: tuple[str, ...],
    read: Read | None = None,
    together: int = 1,
    **how: Any,
) -> ObjectRows:
    """Return the reader of a task.

    With `read`, it reads `together` objects at once by that function, in place of its own.
    """
    if read is not None:
        how.update(read=read, together=together)
    return ObjectRows(connect, settings, "test", options, columns, **how)


def in_store(url: str, bucket: str, work: Callable[[ObjectStore], Awaitable[T]]) -> T:
    """Return the result of `work` with nats-py's object store of this name."""

    async def run(js: JetStreamContext) -> T:
        return await work(await js.object_store(bucket))

    return ask(url, run)


def by_name(rows: list[dict[str, Any]]) -> dict[str, bytes]:
    """Name and content of each row; no name may come twice."""
    contents = {row["name"]: row["content"] for row in rows}
    assert len(contents) == len(rows)
    return contents


def assert_only_objects(api: Callable[..., dict[str, Any]], bucket: str) -> None:
    """Nothing is in a bucket but objects: meta messages, and as many chunks as they say."""
    stream = stream_name(bucket)
    state = api(f"STREAM.INFO.{stream}", {"subjects_filter": ">"})["state"]
    counts = dict(state.get("subjects") or {})
    expected = {}
    for subject in counts:
        if subject.startswith(f"$O.{bucket}.M."):
            last = api(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})["message"]
            meta = json.loads(base64.b64decode(last["data"]))
            expected[subject] = 1
            if meta["chunks"]:
                expected[chunk_subject(bucket, meta["nuid"])] = meta["chunks"]
    assert counts == expected


def rows_of(batch: pa.RecordBatch, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    """The rows of a batch with just the schema that Spark was promised."""
    assert batch.schema.equals(arrow_schema(columns, OBJECT_COLUMNS), check_metadata=True)
    batch.validate(full=True)
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


@contextmanager
def buckets(url: str, publisher: Publisher) -> Iterator[Callable[[], Bucket]]:
    """A function that makes buckets on a server, each with a name of its own; gone at the end."""
    made: list[Bucket] = []

    def new() -> Bucket:
        made.append(Bucket(url, publisher, f"B{next(_numbers)}_{secrets.token_hex(2)}"))
        return made[-1]

    yield new
    names = publisher.api("STREAM.NAMES").get("streams") or []
    for bucket in made:
        if bucket.stream in names:
            bucket.remove()
