"""A JetStream of a few lines, for answers to Direct Gets that a real one gives only once in a long while.

    with FakeJetStream(server.url) as fake:
        fake.store(100)
        fake.direct = lambda request: fake.batch(request, up_to=50)     # a replica that lags
        ... options(server.url, apiPrefix=fake.prefix) ...

It is an ordinary client of a NATS server, and answers STREAM.INFO, STREAM.MSG.GET and DIRECT.GET of one stream S under
an API prefix of its own.
"""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from spark_jetstream.streams import rfc3339, subject_pattern

CREATED = "2023-11-14T00:00:00Z"
_STORED = 1_700_000_000_000_000_000
_ANSWERED = _STORED + 10**15


class Answer(NamedTuple):
    """What is sent to the inbox of a request; with `late` of the one before it."""

    head: bytes
    payload: bytes = b""
    late: bool = False


NOT_FOUND = Answer(b"NATS/1.0 404 Message Not Found\r\n\r\n")


class FakeJetStream:
    """`messages` is what the leader has: sequence -> subject. `asked` lists the subjects of all requests and bodies.

    `direct` says what a Direct Get is answered with, `look` the reply to STREAM.INFO, `leader` that to STREAM.MSG.GET;
    tests put their own in place of them.
    """

    def __init__(self, url: str) -> None:
        self.prefix = "FAKE.API"
        self.messages: dict[int, str] = {}
        self.created = CREATED
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.direct: Callable[[dict[str, Any]], list[Answer]] = self.batch
        self.look: Callable[[], dict[str, Any]] = self.info
        self.leader: Callable[[dict[str, Any]], dict[str, Any]] = self.message
        self._before = b""
        where = urlsplit(url)
        self._socket = socket.create_connection((where.hostname or "127.0.0.1", where.port or 4222), timeout=20)
        self._file = self._socket.makefile("rb")
        hello = {"verbose": False, "pedantic": False, "headers": True}
        self._file.readline()
        self._socket.sendall(
            b"CONNECT %s\r\nSUB %s.> 1\r\nPING\r\n" % (json.dumps(hello).encode(), self.prefix.encode())
        )
        while self._file.readline() != b"PONG\r\n":
            continue
        self._socket.settimeout(None)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def store(self, count: int, subject: Callable[[int], str] = lambda _: "S.a") -> None:
        """Let the leader have `count` more messages; message n has the payload `n`."""
        first = max(self.messages, default=0) + 1
        self.messages.update({sequence: subject(sequence) for sequence in range(first, first + count)})

    def count(self, what: str) -> int:
        """How many requests there were, by a part of their subject."""
        return sum(what in subject for subject, _ in self.asked)

    # What it answers

    def info(self, **config: Any) -> dict[str, Any]:
        """The reply of STREAM.INFO."""
        state = {"messages": len(self.messages), "bytes": 0, "first_seq": 1, "last_seq": max(self.messages, default=0)}
        whole = {"name": "S", "retention": "limits", "allow_direct": True, **config}
        return {"config": whole, "created": self.created, "state": state, "ts": rfc3339(_ANSWERED)}

    def message(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply of STREAM.MSG.GET."""
        found = next(self._matching(request, max(self.messages, default=0)), None)
        if found is None:
            return {"error": {"code": 404, "err_code": 10037, "description": "no message found"}}
        data = base64.b64encode(b"%d" % found).decode()
        return {
            "message": {"subject": self.messages[found], "seq": found, "data": data, "time": rfc3339(_STORED + found)}
        }

    def batch(
        self,
        request: dict[str, Any],
        *,
        up_to: int | None = None,
        stream: str = "S",
        lacks: Callable[[int], bool] = lambda _: False,
    ) -> list[Answer]:
        """A batch from a store that has the messages up to a sequence, but for some."""
        last = max(self.messages, default=0) if up_to is None else up_to
        found = [sequence for sequence in self._matching(request, last) if not lacks(sequence)]
        if not found:
            return [NOT_FOUND]
        some = found[: request["batch"]]
        answers = [
            Answer(self._head(sequence, stream, len(found) - at - 1, some[at - 1] if at else 0), b"%d" % sequence)
            for at, sequence in enumerate(some)
        ]
        return [*answers, end_of_batch(len(found) - len(some), some[-1])]

    def _matching(self, request: dict[str, Any], last: int) -> Iterator[int]:
        pattern = subject_pattern([request.get("next_by_subj", ">")])
        for sequence in sorted(self.messages):
            if request.get("seq", 1) <= sequence <= last and pattern.fullmatch(self.messages[sequence]):
                yield sequence

    def _head(self, sequence: int, stream: str, pending: int, previous: int) -> bytes:
        return (
            f"NATS/1.0\r\nNats-Stream: {stream}\r\nNats-Subject: {self.messages[sequence]}\r\n"
            f"Nats-Sequence: {sequence}\r\nNats-Time-Stamp: {rfc3339(_STORED + sequence)}\r\n"
            f"Nats-Num-Pending: {pending}\r\n"
            f"Nats-Last-Sequence: {previous}\r\n\r\n"
        ).encode()

    # How

    def _serve(self) -> None:
        while line := self._file.readline():
            if line == b"PING\r\n":
                self._socket.sendall(b"PONG\r\n")
            elif line.startswith(b"MSG "):
                _, subject, _, reply, size = line.split()
                body = self._file.read(int(size) + 2)[:-2]
                self._answer(subject.decode().removeprefix(self.prefix + "."), json.loads(body or b"{}"), reply)

    def _answer(self, subject: str, request: dict[str, Any], reply: bytes) -> None:
        self.asked.append((subject, request))
        if subject == "DIRECT.GET.S":
            frames = [
                b"HPUB %s %d %d\r\n%s%s\r\n"
                % (self._before if late else reply, len(head), len(head) + len(payload), head, payload)
                for head, payload, late in self.direct(request)
            ]
            self._before = reply
        else:
            found = self.look() if subject == "STREAM.INFO.S" else self.leader(request)
            text = json.dumps(found).encode()
            frames = [b"PUB %s %d\r\n%s\r\n" % (reply, len(text), text)]
        self._socket.sendall(b"".join(frames))

    def __enter__(self) -> FakeJetStream:
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._file.close()
        self._socket.close()


def end_of_batch(pending: int, last: int) -> Answer:
    """The status that ends a batch."""
    return Answer(b"NATS/1.0 204 EOB\r\nNats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n\r\n" % (pending, last))
