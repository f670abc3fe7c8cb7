"""A JetStream API that answers a few subjects, and like a real one says nothing on those that it does not know.

    with FakeApi(server.url, {"INFO": {...}}) as fake:
        JetStreamAdmin(servers=server.url, apiPrefix=fake.prefix)

It stands for servers that cannot be had here: those of years ago, and those that answer only for a part.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from spark_jetstream.admin import JetStreamAdmin

Reply = Mapping[str, Any]
Answer = Reply | Callable[[dict[str, Any]], Reply | None]


def account(level: int) -> dict[str, Any]:
    """The reply of INFO of a server with this level of the API."""
    return {"type": "io.nats.jetstream.api.v1.account_info_response", "api": {"level": level}} if level else {"api": {}}


class FakeApi:
    """`answers`: subject without prefix -> the reply, or what makes it of the request (None: it keeps silent). `asked`
    has the subjects."""

    def __init__(self, url: str, answers: Mapping[str, Answer]) -> None:
        self.prefix = "FAKE.API"
        self.answers = answers
        self.asked: list[str] = []
        where = urlsplit(url)
        self._socket = socket.create_connection((where.hostname or "127.0.0.1", where.port or 4222), timeout=20)
        self._file = self._socket.makefile("rb")
        self._file.readline()
        hello = b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n'
        self._socket.sendall(hello + b"SUB %s.> 1\r\nPING\r\n" % self.prefix.encode())
        while self._file.readline() != b"PONG\r\n":
            continue
        self._socket.settimeout(None)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while line := self._file.readline():
            if line == b"PING\r\n":
                self._socket.sendall(b"PONG\r\n")
            elif line.startswith(b"MSG "):
                _, subject, _, reply, size = line.split()
                body = json.loads(self._file.read(int(size) + 2)[:-2] or b"{}")
                self._reply(subject.decode().removeprefix(self.prefix + "."), body, reply)

    def _reply(self, subject: str, body: dict[str, Any], reply: bytes) -> None:
        self.asked.append(subject)
        answer = self.answers.get(subject)
        said = answer(body) if callable(answer) else answer
        if said is not None:
            text = json.dumps(said).encode()
            self._socket.sendall(b"PUB %s %d\r\n%s\r\n" % (reply, len(text), text))

    def __enter__(self) -> FakeApi:
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._file.close()
        self._socket.close()


@contextmanager
def administered(url: str, answers: Mapping[str, Answer], **options: str) -> Iterator[tuple[FakeApi, JetStreamAdmin]]:
    """Such an API, and what administers it."""
    with FakeApi(url, answers) as fake, JetStreamAdmin(servers=url, apiPrefix=fake.prefix, **options) as admin:
        yield fake, admin
