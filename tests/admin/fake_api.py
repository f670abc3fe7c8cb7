"""A JetStream API that answers a few subjects, and like a real one says nothing on those that it
does not know.

    with administered(server.url, {"INFO": {...}}) as (fake, admin): ...

It stands for servers that cannot be had here: those of years ago, and those that answer only for a
part.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.admin.api import Api
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import connect
from spark_jetstream.options import ConnectionOptions
from tests.support.client import Raw

Reply = Mapping[str, Any]
Answer = Reply | Callable[[dict[str, Any]], Reply | None]
MADE = "2026-01-01T00:00:00Z"


def account(level: int) -> dict[str, Any]:
    """The reply of INFO of a server with this level of the API."""
    return (
        {"type": "io.nats.jetstream.api.v1.account_info_response", "api": {"level": level}}
        if level
        else {"api": {}}
    )


def stream_info(config: Mapping[str, Any]) -> dict[str, Any]:
    """The reply of STREAM.INFO for an empty stream."""
    state = {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0}
    return {"config": config, "created": MADE, "state": state}


def consumer_info(config: Mapping[str, Any]) -> dict[str, Any]:
    """The reply of CONSUMER.INFO for consumer c of stream S."""
    return {"stream_name": "S", "name": "c", "created": MADE, "config": config}


class FakeApi(Raw):
    """`answers`: subject without prefix -> the reply, or what makes it of the request (None: it
    keeps silent). `asked` has the subjects."""

    prefix = "FAKE.API"

    def __init__(self, url: str, answers: Mapping[str, Answer]) -> None:
        super().__init__(url)
        self.answers = answers
        self.asked: list[str] = []
        self.hello(f"{self.prefix}.>")
        self.sock.settimeout(None)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while line := self.file.readline():
            if line == b"PING\r\n":
                self.send(b"PONG\r\n")
            elif line.startswith(b"MSG "):
                _, subject, _, reply, size = line.split()
                body = json.loads(self.file.read(int(size) + 2)[:-2] or b"{}")
                self._answer(subject.decode().removeprefix(self.prefix + "."), body, reply)

    def _answer(self, subject: str, request: dict[str, Any], reply: bytes) -> None:
        self.asked.append(subject)
        answer = self.answers.get(subject)
        body = answer(request) if callable(answer) else answer
        if body is not None:
            text = json.dumps(body).encode()
            self.send(b"PUB %s %d\r\n%s\r\n" % (reply, len(text), text))

    def __enter__(self) -> FakeApi:
        return self

    def __exit__(self, *exception: object) -> None:
        self.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self.close()


@contextmanager
def administered(
    url: str, answers: Mapping[str, Answer], **options: str
) -> Iterator[tuple[FakeApi, JetStreamAdmin]]:
    """Give a `FakeApi` with these answers, and a `JetStreamAdmin` that asks it."""
    with (
        FakeApi(url, answers) as fake,
        JetStreamAdmin(servers=url, apiPrefix=fake.prefix, **options) as admin,
    ):
        yield fake, admin


class Meddler:
    """A connection with a function that is called before each request; it may return another body."""

    def __init__(
        self, connection: Connection, meddle: Callable[[str, bytes], bytes | None]
    ) -> None:
        self.prefix = connection.prefix
        self.asked: list[str] = []
        self._connection = connection
        self._meddle = meddle

    def api(
        self, subject: str, body: bytes, *, context: str, timeout: float | None = None
    ) -> dict[str, Any]:
        self.asked.append(subject.removeprefix("$JS.API.STREAM."))
        return self._connection.api(subject, self._meddle(subject, body) or body, context=context)

    ask = api


def meddled(options: ConnectionOptions, meddle: Callable[[str, bytes], bytes | None]) -> Api:
    """Return an `Api` whose requests pass a `Meddler` with this function."""
    return Api(options, cast("Connection", Meddler(connect(options), meddle)))
