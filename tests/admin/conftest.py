"""Streams, consumers and buckets that are gone after a test; most are made by plain requests."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from spark_jetstream.admin import (
    Bucket,
    ConsumerConfig,
    ConsumerInfo,
    JetStreamAdmin,
    ObjectBucket,
    StreamConfig,
    StreamInfo,
)
from spark_jetstream.admin.api import Api as Requester
from spark_jetstream.admin.models.base import M
from spark_jetstream.protocol.conventions import DEFAULT_CHUNK_SIZE
from spark_jetstream.protocol.jsapi import Endpoint
from spark_jetstream.testing import NatsServer
from tests.admin.configs import ORIGIN, read
from tests.support import objects
from tests.support.publish import Message, Publisher

Api = Callable[..., dict[str, Any]]
Fill = Callable[..., None]
Make = Callable[..., str]
MakeKv = Callable[..., Bucket]

CHUNK = DEFAULT_CHUNK_SIZE

_numbers = itertools.count(1)


class Made(objects.Bucket):
    """A bucket: ``objects`` is what is tested, ``nats`` another client's view of it."""

    def __init__(self, admin: JetStreamAdmin, url: str, publisher: Publisher, name: str) -> None:
        self.admin = admin
        self.api = publisher.api
        self.objects: ObjectBucket = admin.objects.bucket(name)
        super().__init__(url, publisher, name)

    def create(self) -> None:
        self.admin.objects.create(self.name, storage="memory")

    def nats_info(self, name: str) -> Any:
        return self.nats(lambda store: store.get_info(name))

    def nats_get(self, *names: str) -> list[bytes]:
        """Contents as nats-py reads them; it verifies the digest, and waits for chunks that are
        missing.
        """

        async def work(store: Any) -> list[bytes]:
            return [(await asyncio.wait_for(store.get(name), 300)).data for name in names]

        return self.nats(work)

    def check(self) -> None:
        """Nothing lies in the bucket but objects and their chunks."""
        objects.assert_only_objects(self.api, self.name)


@pytest.fixture(scope="module")
def api(publisher: Publisher) -> Iterator[Api]:
    """Requests of the JetStream API, by their subject without its prefix.

    There is a stream `ORIGIN`.
    """
    publisher.api(
        f"STREAM.CREATE.{ORIGIN}", {"name": ORIGIN, "subjects": ["origin.>"], "allow_direct": True}
    )
    yield publisher.api
    publisher.api(f"STREAM.DELETE.{ORIGIN}")


@pytest.fixture
def denied(nats_server_factory: Callable[..., NatsServer]) -> Callable[..., dict[str, str]]:
    """A function that starts a server whose user may not publish to these subjects, and returns the
    user's login.
    """

    def start(*subjects: str) -> dict[str, str]:
        user = {"user": "u", "password": "p", "permissions": {"publish": {"deny": subjects}}}
        config = {"accounts": {"A": {"jetstream": "enabled", "users": [user]}}}
        server = nats_server_factory(config=json.dumps(config)[1:-1])
        return {"servers": server.url, "user": "u", "password": "p"}

    return start


def stream_config(api: Api, name: str) -> StreamConfig:
    """The configuration of a stream as the server has it."""
    return StreamInfo.from_server(api(f"STREAM.INFO.{name}")).config


def consumer_config(api: Api, consumer: str) -> ConsumerConfig:
    """The same of a consumer, ``STREAM.NAME``."""
    return ConsumerInfo.from_server(api(f"CONSUMER.INFO.{consumer}")).config


def update_consumer(api: Api, consumer: str, config: dict[str, Any]) -> None:
    """Update a consumer, ``STREAM.NAME``, to a configuration."""
    stream = consumer.partition(".")[0]
    api(
        f"CONSUMER.CREATE.{consumer}", {"stream_name": stream, "config": config, "action": "update"}
    )


@pytest.fixture
def make_stream(api: Api) -> Iterator[Make]:
    """A function that creates a stream by its configuration; its name."""
    made: list[str] = []

    def make(config: dict[str, Any]) -> str:
        name = str(config.get("name") or f"ADMIN{next(_numbers)}")
        subjects = {} if "mirror" in config else {"subjects": [f"{name.lower()}.>"]}
        api(f"STREAM.CREATE.{name}", {**subjects, **config, "name": name})
        made.append(name)
        return name

    yield make
    for name in made:
        api(f"STREAM.DELETE.{name}")


@pytest.fixture
def new_stream(name: str) -> Callable[[], str]:
    """A function that returns the name of a stream that does not exist; one of that name is gone
    after the test.
    """
    return lambda: f"{name}{next(_numbers)}"


@pytest.fixture
def make_consumer(api: Api, make_stream: Make) -> Make:
    """A function that creates a consumer by its configuration, on a stream of its own;
    ``STREAM.NAME``.
    """

    def make(config: dict[str, Any]) -> str:
        name = f"consumer{next(_numbers)}"
        stream = make_stream({"subjects": [f"{name}.>"]})
        named = {"durable_name": name, **config, "name": name}
        sent = {field: value for field, value in named.items() if value is not None}
        api(
            f"CONSUMER.CREATE.{stream}.{name}",
            {"stream_name": stream, "config": sent, "action": "create"},
        )
        return f"{stream}.{name}"

    return make


@contextmanager
def knowing_admin(url: str) -> Iterator[JetStreamAdmin]:
    """An administrator of a server; the models must know and keep every field of all replies."""

    def reply(
        self: Requester,
        model: type[M],
        endpoint: Endpoint,
        body: Any = None,
        *,
        context: str,
        **names: str,
    ) -> M:
        return read(model, self.ask(endpoint, body, context=context, **names), context)

    with pytest.MonkeyPatch.context() as patch, JetStreamAdmin(servers=url) as admin:
        patch.setattr(Requester, "reply", reply)
        yield admin


@pytest.fixture
def admin(nats_server: NatsServer) -> Iterator[JetStreamAdmin]:
    """Administers the shared server."""
    with knowing_admin(nats_server.url) as admin:
        yield admin


@pytest.fixture
def name(publisher: Publisher) -> Iterator[str]:
    """A name for a stream or a bucket; what has it, or begins with it, is gone after the test."""
    chosen = f"NAMED{next(_numbers)}x"
    yield chosen
    for stream in publisher.api("STREAM.NAMES").get("streams") or []:
        if chosen in stream:  # of a bucket as well
            publisher.api(f"STREAM.DELETE.{stream}")


@pytest.fixture
def fill(publisher: Publisher) -> Fill:
    """A function that stores messages at ``subject.0`` to ``subject.N`` in turn, with their numbers
    from 0.
    """

    def store(subject: str, count: int, subjects: int = 1) -> None:
        publisher.publish(Message(f"{subject}.{at % subjects}", b"%d" % at) for at in range(count))

    return store


@pytest.fixture
def make(admin: JetStreamAdmin, name: str) -> MakeKv:
    """A function that creates a bucket in memory, five revisions of each key unless the fields say
    otherwise.
    """

    def create(suffix: str = "", **fields: Any) -> Bucket:
        given = {"history": 5, "storage": "memory", **fields}
        return admin.kv.bucket(admin.kv.create(name + suffix, given).bucket)

    return create


@pytest.fixture
def make_store(
    nats_server: NatsServer, admin: JetStreamAdmin, publisher: Publisher, name: str
) -> Callable[[], Made]:
    """A function that makes Object Store buckets on the shared server; gone after the test."""
    return lambda: Made(admin, nats_server.url, publisher, f"{name}{next(_numbers)}")


@pytest.fixture
def store(make_store: Callable[[], Made]) -> Made:
    return make_store()
