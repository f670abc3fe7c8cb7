"""Runs of queries with the option durable, below Spark, and what the server says of their
consumers.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from nats.js.client import JetStreamContext

from spark_jetstream.client.connection import Connection, Question
from spark_jetstream.client.pool import connect
from spark_jetstream.client.requests import Requests
from spark_jetstream.errors import PermissionDenied
from spark_jetstream.options import SourceOptions
from spark_jetstream.protocol.features import CONSUMER_RESET
from spark_jetstream.protocol.stream import StreamSummary, stream_summary
from spark_jetstream.source.durable.progress import Progress
from spark_jetstream.source.interest_streams import LONG
from tests.support.client import ask
from tests.support.publish import Message, Publisher
from tests.support.reading import options
from tests.support.streams import Stream

Maker = Callable[..., Stream]
RETENTIONS = ("limits", "interest", "workqueue")
SECOND = 1_000_000_000


class Crash(BaseException):
    """The end of the process, as far as `Progress` can tell."""


class Wire:
    """The process's connection, which notes what is asked for.

    `before` and `after` a request anything may happen.
    """

    def __init__(self, url: str, **given: str) -> None:
        self.url = url
        self.given = given
        self.subjects: list[str] = []
        self.before: Callable[[str], None] = lambda subject: None
        self.after: Callable[[str], None] = lambda subject: None

    def __call__(self, seconds: float) -> Connection:
        return cast(Connection, self)

    @property
    def real(self) -> Connection:
        return connect(options(self.url, **self.given), patience=10.0)

    def api(self, subject: str, body: bytes, *, context: str, **_: Any) -> dict[str, Any]:
        self.subjects.append(subject.removeprefix("$JS.API."))
        self.before(self.subjects[-1])
        reply = self.real.api(subject, body, context=context)
        self.after(self.subjects[-1])
        return reply

    ask = api

    def ask_all(self, questions: Sequence[Question], **given: Any) -> Any:
        asked = [question.subject.removeprefix("$JS.API.") for question in questions]
        for subject in asked:
            self.subjects.append(subject)
            self.before(subject)
        replies = self.real.ask_all(questions, **given)
        for subject in asked:
            self.after(subject)
        return replies

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def deny(self, request: str) -> None:
        """Refuse requests whose subjects begin so, as for an account that may not publish there."""

        def refuse(subject: str) -> None:
            if subject.startswith(request):
                raise PermissionDenied("not allowed", subject=subject)

        self.before = refuse

    def asked(self, work: Callable[[], None]) -> list[str]:
        """Return the first two words of each request that `work` makes."""
        before = len(self.subjects)
        work()
        return [".".join(subject.split(".")[:2]) for subject in self.subjects[before:]]


class Run:
    """A run of a query on a stream: `Progress`, told each time what the stream is now. `wire` is
    its connection.

    Other URLs than the stream's have another login, or lead elsewhere; `given` are connection
    options. An interest stream of more than `longest` sequences is a long one. Other runs are
    `suspended` for that many seconds at most.
    """

    def __init__(
        self,
        stream: Stream,
        *filters: str,
        url: str = "",
        fail: bool = True,
        patience: float = 15.0,
        longest: int = LONG,
        suspended: float = 0.0,
        **given: str,
    ) -> None:
        self.stream = stream
        self.wire = Wire(url or stream.url, **given)
        query = {"stream": stream.name, "durable": "query", "failOnDataLoss": str(fail)}
        query |= {"subjects": ",".join(filters)} if filters else {}
        self.progress = Progress(
            Requests(self.wire, patience),
            SourceOptions.from_spark(query, streaming=True),
            longest=longest,
            suspended=suspended,
        )

    def open(self, *, fresh: bool = True) -> Run:
        self.progress.open(state_of(self.stream), fresh=fresh)
        return self

    def begin(self, messages: int, *, committed: int = 0) -> Run:
        """Open it, store `messages` messages, and commit if `committed` says up to where."""
        self.open()
        self.stream.fill(messages)
        if committed:
            self.commit(committed)
        return self

    def check(self, done: int = 0) -> None:
        self.progress.check(state_of(self.stream), done)

    def commit(self, sequence: int) -> None:
        self.progress.commit(state_of(self.stream), sequence)

    def move(self, sequence: int) -> None:
        """A check and a commit, as for a micro-batch."""
        self.check()
        self.commit(sequence)

    def both(self, sequence: int) -> list[Callable[[], None]]:
        return [self.check, lambda: self.commit(sequence)]

    def held(self, committed: int, end: int) -> bool:
        """Whether a stream that goes up to `end` has lost nothing from `committed` on, nor anything
        in between.
        """
        first, last, messages = kept(self.stream)
        return first <= committed and last == end - 1 and messages == end - first


def state_of(stream: Stream) -> StreamSummary:
    return stream_summary(stream.publisher.api(f"STREAM.INFO.{stream.name}"), "look")


def consumer(stream: Stream, name: str = "query") -> dict[str, Any]:
    return stream.publisher.api(f"CONSUMER.INFO.{stream.name}.{name}")


def consumers(stream: Stream) -> list[str]:
    return list(stream.publisher.api(f"CONSUMER.NAMES.{stream.name}").get("consumers") or [])


def position(stream: Stream) -> int:
    """The first sequence that is not committed."""
    return int(consumer(stream)["delivered"]["stream_seq"]) + 1


def pending(stream: Stream, name: str = "query") -> int:
    """How many messages are not committed."""
    return int(consumer(stream, name)["num_pending"])


def kept(stream: Stream) -> tuple[int, int, int]:
    state = stream.state()
    return state["first_seq"], state["last_seq"], state["messages"]


def make_consumer(stream: Stream, name: str = "query", **config: Any) -> dict[str, Any]:
    wanted = {"durable_name": name, "ack_policy": "explicit", **config}
    body = {"stream_name": stream.name, "config": wanted}
    return stream.publisher.api(f"CONSUMER.CREATE.{stream.name}.{name}", body)


def delete_consumer(stream: Stream, name: str = "query") -> None:
    stream.publisher.api(f"CONSUMER.DELETE.{stream.name}.{name}")


def take(stream: Stream, name: str, count: int) -> None:
    """Let an application pull messages and acknowledge them."""

    async def work(js: JetStreamContext) -> None:
        subscription = await js.pull_subscribe_bind(consumer=name, stream=stream.name)
        for message in await subscription.fetch(count, timeout=60):
            await message.ack_sync(timeout=60)
        await subscription.unsubscribe()

    ask(stream.url, work)


def left(stream: Stream) -> list[int]:
    """The sequences that the stream still holds."""
    state = stream.publisher.api(f"STREAM.INFO.{stream.name}", {"deleted_details": True})["state"]
    gone = set(state.get("deleted") or ())
    return [
        sequence
        for sequence in range(state["first_seq"], state["last_seq"] + 1)
        if sequence not in gone
    ]


@contextlib.contextmanager
def publishing(url: str, *subjects: str) -> Iterator[None]:
    """Store some thousand messages a second, at the subjects in turn, over another connection,
    until this is left.
    """
    enough = threading.Event()

    def publish() -> None:
        with Publisher(url) as publisher:
            while not enough.wait(0.005):
                publisher.publish([Message(subject, b"more") for subject in subjects * 10])

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def level_of(stream: Stream) -> int:
    """The API level of the stream's server; it says so itself since 2.11."""
    return int(stream.publisher.api("INFO").get("api", {}).get("level", 0))


def can_move(stream: Stream) -> bool:
    return CONSUMER_RESET.is_at(level_of(stream))
