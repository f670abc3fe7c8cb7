"""Stores messages byte for byte: a blocking client of a few lines that sends exactly the frames it
is given.

A client library would not do: it refuses or rewrites headers with repeated names, odd header blocks
and subjects that a server takes without a word.
"""

from __future__ import annotations

import itertools
import json
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

T = TypeVar("T")

_WINDOW = 500  # messages sent before their acknowledgements are read
_SECONDS = 60.0
#: Requests that may be sent twice: a cluster loses what reaches it during an election. And after
#: how many seconds.
_REPEATED = re.compile(
    r"STREAM\.(CREATE|INFO|NAMES|MSG\.GET)\b|CONSUMER\.(CREATE|INFO|NAMES)\b|INFO$"
)
_AGAIN = 5.0
#: A server removes the folder of all streams with the last one, in the background, and may meet the
#: next one's.
_NO_STORE = 10049
_NOBODY = 503  # the status that a server answers with if nobody listens to a subject


class Message(NamedTuple):
    """A message to publish.

    `headers` are pairs in the order of the wire; `block` is a header block as it is. Bytes of a
    subject that are no UTF-8 are written as Python's surrogate escapes.
    """

    subject: str
    data: bytes = b""
    headers: Sequence[tuple[str, str]] | None = None
    block: bytes | None = None

    @property
    def head(self) -> bytes | None:
        """The header block on the wire; None for a message without one."""
        if self.block is not None or self.headers is None:
            return self.block
        return (
            b"NATS/1.0\r\n"
            + b"".join(f"{name}: {value}\r\n".encode() for name, value in self.headers)
            + b"\r\n"
        )

    @property
    def expected_headers(self) -> dict[str, list[str]] | None:
        """Return the headers as a reader gives them."""
        if self.headers is None:
            return None
        headers: dict[str, list[str]] = {}
        for name, value in self.headers:
            headers.setdefault(name, []).append(value)
        return headers

    def frame(self, reply: str = "") -> bytes:
        to = self.subject.encode("utf-8", "surrogateescape") + (
            b" " + reply.encode() if reply else b""
        )
        head = self.head
        if head is None:
            return b"PUB %s %d\r\n%s\r\n" % (to, len(self.data), self.data)
        return b"HPUB %s %d %d\r\n%s%s\r\n" % (
            to,
            len(head),
            len(head) + len(self.data),
            head,
            self.data,
        )


class Refused(Exception):
    """The server answered a publish or an API request with an error; `err_code` is JetStream's, 503
    or 0.
    """

    def __init__(self, text: object, err_code: int = 0) -> None:
        super().__init__(text)
        self.err_code = err_code


class Publisher:
    """One connection. User info in `url` and the fields of `connect` go into CONNECT.

    `store` is the folder of the server's streams, or None. With it, `api` deletes a stream only
    when no files are left of an earlier one, and returns when the server has removed its files.

    The server removes files in the background. If it still does that when the next stream of that
    name is deleted, a third one begins with the messages of the second. `fileStore.Delete` in
    server/filestore.go moves the folder away unless the name is taken.
    """

    store: Path | None = None

    def __init__(self, url: str, prefix: str = "$JS.API", **connect: object) -> None:
        where = urlsplit(url)
        login = (
            {"user": unquote(where.username), "pass": unquote(where.password or "")}
            if where.username
            else {}
        )
        self._prefix = prefix
        self._socket = socket.create_connection(
            (where.hostname or "127.0.0.1", where.port or 4222), timeout=_SECONDS
        )
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb", 1 << 18)
        self._inbox = f"_INBOX.{secrets.token_hex(8)}"
        self._numbers = itertools.count(1)
        try:
            self._hello(login, connect)
        except BaseException:
            self.close()
            raise

    def _hello(self, login: Mapping[str, str], connect: Mapping[str, object]) -> None:
        hello = self._file.readline()
        if not hello:
            raise ConnectionResetError("the server closed the connection before its INFO")
        self.info: dict[str, Any] = json.loads(hello.removeprefix(b"INFO "))
        about = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            **login,
            **connect,
        }
        self._send(
            b"CONNECT %s\r\nSUB %s.* 1\r\nPING\r\n"
            % (json.dumps(about).encode(), self._inbox.encode())
        )
        while self._line() != b"PONG":
            continue

    def request(
        self, subject: str, payload: bytes = b"", headers: Sequence[tuple[str, str]] | None = None
    ) -> bytes:
        number = next(self._numbers)
        self._send(Message(subject, payload, headers).frame(f"{self._inbox}.{number}"))
        return self._replies([number])[0]

    def api(self, subject: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The reply of the JetStream API to a request at `subject`, which lacks the prefix."""
        path, payload = f"{self._prefix}.{subject}", json.dumps(body).encode() if body else b""
        self._await_removal(subject)
        ask = self._ask if _REPEATED.match(subject) else self.request
        reply = _in_time(_NO_STORE, lambda: _checked(ask(path, payload)))
        self._await_removal(subject)
        return reply

    def _await_removal(self, subject: str) -> None:
        if self.store is not None and subject.startswith("STREAM.DELETE."):
            while any(
                self.store.glob(f"jetstream/*/streams/.{subject.removeprefix('STREAM.DELETE.')}")
            ):
                time.sleep(0.001)

    def _ask(self, subject: str, payload: bytes) -> bytes:
        """The first reply to a request that is sent again until there is one."""
        deadline = time.monotonic() + _SECONDS
        self._socket.settimeout(_AGAIN)
        try:
            while True:
                try:
                    return self.request(subject, payload)
                except TimeoutError:
                    if time.monotonic() > deadline:
                        raise
                    self._file = self._socket.makefile(
                        "rb", 1 << 18
                    )  # the one that timed out reads no more
        finally:
            self._socket.settimeout(_SECONDS)

    def publish(self, messages: Iterable[Message]) -> list[int]:
        """Publish, and wait until all are stored; their sequences.

        The first message goes alone, and again as long as nobody answers. After an election, or
        after a stream is made, the server of this connection hears a moment later that another
        server listens to the stream's subjects.
        """
        sequences: list[int] = []
        remaining = iter(messages)
        if first := list(itertools.islice(remaining, 1)):
            sequences += _in_time(_NOBODY, lambda: self._window(first))
        while some := list(itertools.islice(remaining, _WINDOW)):
            sequences += self._window(some)
        return sequences

    def _window(self, messages: Sequence[Message]) -> list[int]:
        numbers = [next(self._numbers) for _ in messages]
        frames = zip(messages, numbers, strict=True)
        self._send(b"".join(message.frame(f"{self._inbox}.{number}") for message, number in frames))
        return [int(_checked(reply)["seq"]) for reply in self._replies(numbers)]

    def pour(self, frame: bytes, count: int, last: Message) -> int:
        """Publish the same frame `count` times without replies, then `last`; its sequence.

        Several times as quick as `publish`. Loses nothing as long as `count` stays far below what
        the server queues for a stream, 100,000 messages.
        """
        self._send(frame * count)
        return self.publish([last])[0]

    def post(self, message: Message, *, replies: bool = False) -> None:
        """Publish without waiting for anything.

        With `replies` this connection gets the replies, and passes over them.
        """
        reply = f"{self._inbox}.{next(self._numbers)}" if replies else ""
        self._send(message.frame(reply))

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def _line(self) -> bytes:
        line = self._file.readline()
        if not line or line.startswith(b"-ERR"):
            raise Refused(line.decode() or "the server closed the connection")
        if line == b"PING\r\n":
            self._send(b"PONG\r\n")
        return line.removesuffix(b"\r\n")

    def _replies(self, numbers: list[int]) -> list[bytes]:
        replies: dict[int, bytes] = dict.fromkeys(numbers, b"")
        missing = len(numbers)
        while missing:
            words = self._line().split(b" ")
            if words[0] in (b"MSG", b"HMSG"):
                head = int(words[-2]) if words[0] == b"HMSG" else 0
                body = self._file.read(int(words[-1]) + 2)[:-2]
                if body.startswith(b"NATS/1.0 503"):
                    raise Refused("nobody answers", _NOBODY)
                number = int(words[1].rpartition(b".")[2])
                if number in replies:  # not the late reply to a request that was sent again
                    replies[number] = body[head:]
                    missing -= 1
        return list(replies.values())


def _in_time(passing: int, work: Callable[[], T]) -> T:
    """Return the result of `work`, done again while it is refused with a code that passes soon."""
    deadline = time.monotonic() + _AGAIN
    while True:
        try:
            return work()
        except Refused as error:
            if error.err_code != passing or time.monotonic() > deadline:
                raise
        time.sleep(0.001)


def _checked(payload: bytes) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(payload)
    if "error" in body:
        raise Refused(body["error"]["description"], body["error"]["err_code"])
    return body


class Tap(Publisher):
    """A connection that hears what all clients of a server publish, requests of the API included."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._send(b"SUB > 2\r\n")
        self.heard()

    def __enter__(self) -> Tap:
        return self

    def heard(self) -> list[Message]:
        """Return the messages that were published since the last call; replies are left out."""
        self._send(b"PING\r\n")
        messages = []
        while (line := self._line()) != b"PONG":
            words = line.split(b" ")
            if words[0] in (b"MSG", b"HMSG"):
                head = int(words[-2]) if words[0] == b"HMSG" else 0
                body = self._file.read(int(words[-1]) + 2)[:-2]
                if not words[1].startswith(b"_INBOX."):
                    messages.append(
                        Message(words[1].decode(), body[head:], block=body[:head] or None)
                    )
        return messages
