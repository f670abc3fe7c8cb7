"""A JetStream of a few lines, for answers that a real one gives once in a long while, or never.

    with FakeJetStream() as fake:
        fake.store(100)
        fake.direct = lambda request: fake.batch(request, up_to=50)     # a replica that lags
        ... connect(options(fake.url)) ...

It is a NATS server itself, down to the socket, and answers what readers and writers ask of its one
stream S.
"""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.protocol.units import rfc3339
from spark_jetstream.testing.process import LOOPBACK, PortLease
from tests.model.filters import contains, matches
from tests.support.wire import frame

CREATED = "2023-11-14T00:00:00Z"
_STORED = 1_700_000_000_000_000_000
_ANSWERED = _STORED + 10**15
_HELLO = (
    b'INFO {"server_id":"FAKE","server_name":"fake","version":"2.12.0","proto":1,"headers":true,'
    b'"max_payload":1048576,"jetstream":true,"client_id":1,"client_ip":"127.0.0.1"}\r\n'
)


class Answer(NamedTuple):
    """A message to the inbox of a request; with `late` to the inbox of the request before it."""

    head: bytes
    payload: bytes = b""
    late: bool = False


NOT_FOUND = Answer(b"NATS/1.0 404 Message Not Found\r\n\r\n")


def end_of_batch(pending: int, last: int) -> Answer:
    return Answer(
        b"NATS/1.0 204 EOB\r\nNats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n\r\n"
        % (pending, last)
    )


class Honest(NamedTuple):
    """The frames that an honest server sends, as they are.

    Where they answer a request, `sid`, `to` and `payload` say to whom and with what. `ended` is set
    when the test is over.
    """

    frames: bytes
    ended: threading.Event
    sid: bytes = b""
    to: bytes = b""
    payload: bytes = b""

    def saying(self, payload: bytes, head: bytes = b"", reply: bytes = b"") -> bytes:
        """A frame with another payload, for the same place."""
        return frame(self.to, self.sid.decode(), payload, head, reply)

    def changed(self, **fields: Any) -> bytes:
        """The same reply with other values at some places: ``state__last_seq=7``.

        An error stays as it is.
        """
        body = json.loads(self.payload)
        if "error" in body:
            return self.frames
        for path, value in fields.items():
            *above, last = path.split("__")
            place = body
            for name in above:
                place = place[name]
            place[last] = value
        return self.saying(json.dumps(body).encode())


Lie = Callable[[Honest], Iterable[bytes]]
Reply = Mapping[str, Any]
#: The reply of the API at a subject, or the function that makes it of the request.
Replies = Mapping[str, Reply | Callable[[dict[str, Any]], Reply | None]]


class HangUp(Exception):
    """Raised by a lie to end the connection."""


class FakeJetStream:
    """A NATS server with the stream S, which lies where `lies` says so.

    `messages` is what the stream's leader has: sequence -> subject. `asked` lists all requests:
    subject, body. `direct` says what a Direct Get is answered with, `look` the reply to
    STREAM.INFO, `leader` that to STREAM.MSG.GET; tests put their own in place of them. Nobody hears
    the next `unheard` pull requests. `lagging` has the last sequence that the replica of each of
    the next consumers has; later ones have all. `placed` has the servers of the next consumers,
    later ones do not say.

    With `replies` it stands for another server, such as one of years ago. It then answers these
    requests of the API, by their subjects. It keeps silent on others, and where the reply is None.

    `lies` has a lie for each stage that has one. A lie gets what an honest server sends, and yields
    what is sent in its place. The stages are:

    - ``hello``: what the server sends first
    - ``pong``: the answer to the first PING
    - the name of an API request: ``STREAM.INFO``, ``CONSUMER.CREATE``, ``CONSUMER.MSG.NEXT``,
      ``STREAM.MSG.GET``, ``DIRECT.GET``
    - ``publish``
    """

    def __init__(self, replies: Replies | None = None) -> None:
        self.replies = replies
        self.unheard = 0
        self.lagging: list[int] = []
        self.placed: list[str] = []
        self.messages: dict[int, str] = {}
        self.created = CREATED
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.direct: Callable[[dict[str, Any]], list[Answer]] = self.batch
        self.look: Callable[[], dict[str, Any]] = self.info
        self.leader: Callable[[dict[str, Any]], dict[str, Any]] = self.message
        self.lies: dict[str, Lie] = {}
        self.ended = threading.Event()
        self._lease = PortLease()
        self._listener = socket.create_server((LOOPBACK, self._lease.port))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._sockets: list[socket.socket] = []
        self._starts: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        self._delivered: dict[str, int] = {}
        self._filters: dict[str, str] = {}
        self._before = Honest(b"", self.ended)
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"nats://{LOOPBACK}:{self._lease.port}"

    def __enter__(self) -> FakeJetStream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        for wire in list(self._sockets):
            with suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(20)
        self._listener.close()
        for wire in self._sockets:
            wire.close()
        self._lease.release()

    def store(self, count: int, subject: Callable[[int], str] = lambda _: "S.a") -> None:
        """Let the leader have `count` more messages; message n has the payload `n`."""
        first = max(self.messages, default=0) + 1
        self.messages.update(
            {sequence: subject(sequence) for sequence in range(first, first + count)}
        )

    def count(self, what: str) -> int:
        """How many requests there were, by a part of their subject."""
        return sum(what in subject for subject, _ in self.asked)

    @property
    def subjects(self) -> list[str]:
        """The subjects of all requests."""
        return [subject for subject, _ in self.asked]

    # What it answers

    def info(self, **config: Any) -> dict[str, Any]:
        last = max(self.messages, default=0)
        state: dict[str, Any] = {
            "messages": len(self.messages),
            "bytes": 0,
            "first_seq": 1,
            "last_seq": last,
        }
        state |= {"last_ts": rfc3339(_STORED + last)} if last else {}
        whole = {"name": "S", "retention": "limits", "allow_direct": True, **config}
        return {"config": whole, "created": self.created, "state": state, "ts": rfc3339(_ANSWERED)}

    def message(self, request: dict[str, Any]) -> dict[str, Any]:
        last = request.get("last_by_subj")
        wanted = {"next_by_subj": last} if last else request
        matching = list(self._matching(wanted, max(self.messages, default=0)))
        if not matching:
            return {"error": {"code": 404, "err_code": 10037, "description": "no message found"}}
        sequence = matching[-1 if last else 0]
        data, time = base64.b64encode(b"%d" % sequence).decode(), rfc3339(_STORED + sequence)
        return {
            "message": {
                "subject": self.messages[sequence],
                "seq": sequence,
                "data": data,
                "time": time,
            }
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
        sequences = [sequence for sequence in self._matching(request, last) if not lacks(sequence)]
        if not sequences:
            return [NOT_FOUND]
        some = sequences[: request["batch"]]
        answers = [
            Answer(
                self._head(sequence, stream, len(sequences) - at - 1, some[at - 1] if at else 0),
                b"%d" % sequence,
            )
            for at, sequence in enumerate(some)
        ]
        return [*answers, end_of_batch(len(sequences) - len(some), some[-1])]

    def _matching(self, request: dict[str, Any], last: int) -> Iterator[int]:
        pattern = request.get("next_by_subj", ">")
        for sequence in sorted(self.messages):
            known = request.get("seq", 1) <= sequence <= last
            if known and contains(pattern, self.messages[sequence]):
                yield sequence

    def _head(self, sequence: int, stream: str, pending: int, previous: int) -> bytes:
        return (
            f"NATS/1.0\r\nNats-Stream: {stream}\r\nNats-Subject: {self.messages[sequence]}\r\n"
            f"Nats-Sequence: {sequence}\r\nNats-Time-Stamp: {rfc3339(_STORED + sequence)}\r\n"
            f"Nats-Num-Pending: {pending}\r\n"
            f"Nats-Last-Sequence: {previous}\r\n\r\n"
        ).encode()

    # How it talks

    def _accept(self) -> None:
        while not self.ended.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(connection)
            thread = threading.Thread(target=self._talk, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _talk(self, wire: socket.socket) -> None:
        # A client that has seen enough goes away in the middle of a lie.
        with suppress(OSError, HangUp, ValueError), wire.makefile("rb") as file:
            self._say(wire, "hello", Honest(_HELLO, self.ended))
            subscribed: dict[str, bytes] = {}
            pinged = False
            while line := file.readline():
                words = line.split() or [b""]  # an empty line ends a request of HTTP
                if words[0] == b"PING":
                    self._say(wire, "" if pinged else "pong", Honest(b"PONG\r\n", self.ended))
                    pinged = True
                elif words[0] == b"SUB":
                    subscribed[words[1].decode()] = words[-1]
                elif words[0] in (b"PUB", b"HPUB"):
                    content = file.read(int(words[-1]) + 2)[:-2]
                    body = content[int(words[-2]) :] if words[0] == b"HPUB" else content
                    reply = words[2] if len(words) == (5 if words[0] == b"HPUB" else 4) else b""
                    if reply:
                        self._respond(wire, words[1].decode(), body, reply, subscribed)
        with suppress(OSError):
            wire.shutdown(socket.SHUT_RDWR)

    def _say(self, wire: socket.socket, stage: str, honest: Honest) -> None:
        lie = self.lies.get(stage)
        for piece in [honest.frames] if lie is None else lie(honest):
            wire.sendall(piece)

    def _respond(
        self,
        wire: socket.socket,
        subject: str,
        body: bytes,
        reply: bytes,
        subscribed: dict[str, bytes],
    ) -> None:
        numbers = (
            number for pattern, number in subscribed.items() if contains(pattern, reply.decode())
        )
        sid = next(numbers, None)
        if sid is None:
            # nobody would hear the answer: the client asked before a cut, and sent it over the next
            # connection
            return
        plain = Honest(b"", self.ended, sid, reply)
        if not subject.startswith("$JS.API."):
            self.messages[max(self.messages, default=0) + 1] = subject
            payload = json.dumps(
                {"stream": "S", "seq": max(self.messages)}, separators=(",", ":")
            ).encode()
            self._say(
                wire, "publish", plain._replace(frames=plain.saying(payload), payload=payload)
            )
            return
        asked = subject.removeprefix("$JS.API.")
        request = json.loads(body) if body.startswith(b"{") else {}
        self.asked.append((asked, request))
        stage, _, _ = asked.partition(".S")
        if self.replies is not None:
            reply_to = self.replies.get(asked)
            given = reply_to(request) if callable(reply_to) else reply_to
            answers = [] if given is None else [self._json(plain, given)]
        elif stage == "CONSUMER.MSG.NEXT" and self.unheard:
            self.unheard -= 1
            answers = [(plain.saying(b"", b"NATS/1.0 503\r\n\r\n"), b"")]
        elif stage == "CONSUMER.MSG.NEXT":
            answers = list(self._deliver(asked.rpartition(".")[2], request, plain))
        elif stage == "DIRECT.GET":
            answers = [
                ((self._before if late else plain).saying(payload, head), payload)
                for head, payload, late in self.direct(request)
            ]
            self._before = plain
        else:
            answers = [self._json(plain, self._reply(stage, asked, request))]
        frames = b"".join(frame for frame, _ in answers)
        self._say(
            wire, stage, plain._replace(frames=frames, payload=answers[0][1] if answers else b"")
        )

    @staticmethod
    def _json(plain: Honest, reply: Reply) -> tuple[bytes, bytes]:
        payload = json.dumps(reply).encode()
        return plain.saying(payload), payload

    def _reply(self, stage: str, asked: str, request: dict[str, Any]) -> dict[str, Any]:
        if stage == "INFO":
            return {"api": {"level": 5}}
        if stage == "STREAM.INFO":
            return self.look()
        if stage == "STREAM.MSG.GET":
            return self.leader(request)
        if stage == "CONSUMER.CREATE":
            name, last = (
                request["config"]["name"],
                request["config"].get("deliver_policy") == "last",
            )
            self._ends[name] = (
                self.lagging.pop(0) if self.lagging else max(self.messages, default=0)
            )
            self._starts[name] = (
                self._ends[name] if last else request["config"].get("opt_start_seq", 1)
            )
            self._delivered[name] = 0
            filters = request["config"].get("filter_subjects") or [
                request["config"].get("filter_subject", ">")
            ]
            self._filters[name] = ",".join(filters)
            made = {
                "stream_name": "S",
                "name": name,
                "num_pending": len(self._due(name)),
                "created": self.created,
            }
            return made | (
                {"cluster": {"name": "test", "leader": self.placed.pop(0)}} if self.placed else {}
            )
        return {"success": True}

    def _due(self, name: str) -> list[int]:
        known = range(self._starts[name], self._ends[name] + 1)
        filters = self._filters[name]
        return sorted(
            each
            for each, subject in self.messages.items()
            if each in known and matches(subject, filters)
        )

    def _deliver(
        self, name: str, request: dict[str, Any], plain: Honest
    ) -> Iterator[tuple[bytes, bytes]]:
        due = self._due(name)
        for at, sequence in enumerate(due[: request["batch"]]):
            self._delivered[name] += 1
            self._starts[name] = sequence + 1
            reply = ack(sequence, self._delivered[name], len(due) - at - 1, _STORED + sequence)
            # A message keeps its subject, and comes by the subscription of the request.
            there, data = plain._replace(to=self.messages[sequence].encode()), b"%d" % sequence
            yield there.saying(data, reply=reply), data


def ack(sequence: int, delivery: int, pending: int, time: object = _STORED) -> bytes:
    """The reply subject of a message that a consumer of S delivers."""
    return f"$JS.ACK.S.c.1.{sequence}.{delivery}.{time}.{pending}".encode()


@contextmanager
def administered(
    replies: Replies, **options: str
) -> Iterator[tuple[FakeJetStream, JetStreamAdmin]]:
    """Give a server with these replies, and a `JetStreamAdmin` that asks it."""
    with FakeJetStream(replies) as fake, JetStreamAdmin(servers=fake.url, **options) as admin:
        yield fake, admin


def account(level: int) -> dict[str, Any]:
    """The reply of INFO of a server with this level of the API."""
    known = {"type": "io.nats.jetstream.api.v1.account_info_response", "api": {"level": level}}
    return known if level else {"api": {}}


def stream_info(config: Mapping[str, Any]) -> dict[str, Any]:
    """The reply of STREAM.INFO for an empty stream."""
    state = {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0}
    return {"config": config, "created": CREATED, "state": state}


def consumer_info(config: Mapping[str, Any]) -> dict[str, Any]:
    """The reply of CONSUMER.INFO for consumer c of stream S."""
    return {"stream_name": "S", "name": "c", "created": CREATED, "config": config}
