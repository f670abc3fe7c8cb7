"""What the tests of Object Store buckets share: a bucket of their own, and nats-py's view of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from nats.js.client import JetStreamContext

from spark_jetstream.admin import JetStreamAdmin, ObjectBucket
from spark_jetstream.buckets.objects import DEFAULT_CHUNK_SIZE
from tests.support.client import ask
from tests.support.objects import assert_only_objects
from tests.support.publish import Publisher

CHUNK = DEFAULT_CHUNK_SIZE
T = TypeVar("T")


class Made:
    """A bucket: ``objects`` is what is tested, ``nats`` another client's view of it."""

    def __init__(self, admin: JetStreamAdmin, url: str, name: str) -> None:
        self.admin = admin
        self.url = url
        self.name = name
        self.stream = f"OBJ_{name}"
        self.objects: ObjectBucket = admin.objects.bucket(name)
        admin.objects.create(name, storage="memory")

    def nats(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """What ``work`` does with nats-py's object store."""

        async def run(js: JetStreamContext) -> T:
            return await work(await js.object_store(self.name))

        return ask(self.url, run)

    def nats_get(self, *names: str) -> list[bytes]:
        """Contents as nats-py reads them; it verifies the digest, and waits for chunks that are missing."""

        async def work(store: Any) -> list[bytes]:
            return [(await asyncio.wait_for(store.get(name), 20)).data for name in names]

        return self.nats(work)

    def api(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """A request to the JetStream API that has nothing to do with what is tested."""
        with Publisher(self.url) as publisher:
            return publisher.api(path, body)

    def purge(self, subject: str, **how: int) -> None:
        """Remove messages behind everybody's back."""
        self.api(f"STREAM.PURGE.{self.stream}", {"filter": subject, **how})

    def check(self) -> None:
        """Nothing lies in the bucket but objects and their chunks."""
        assert_only_objects(self.api, self.name)
