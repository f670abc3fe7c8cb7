"""Runs of queries with the option durable, below Spark, and what the server says of their
consumers.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from spark_jetstream.client.requests import Requests
from spark_jetstream.options import SourceOptions
from spark_jetstream.protocol.features import CONSUMER_RESET
from spark_jetstream.protocol.stream import StreamSummary, stream_summary
from spark_jetstream.source.durable.progress import Progress
from spark_jetstream.source.interest_streams import LONG
from spark_jetstream.testing import NatsServer
from spark_jetstream.testing.process import poll
from tests.model.stream import look_at, present_in
from tests.support import client
from tests.support.publish import Message, Publisher, Refused
from tests.support.reading import options
from tests.support.streams import Stream
from tests.support.watched import WatchedConnection

Maker = Callable[..., Stream]
RETENTIONS = ("limits", "interest", "workqueue")
SECOND = 1_000_000_000
_NO_SUITABLE_PEERS = 10005


class Crash(BaseException):
    """The end of the process, as far as `Progress` can tell."""


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
        self.wire = WatchedConnection(options(url or stream.url, **given))
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


def take(stream: Stream, name: str, count: int) -> list[int]:
    """`client.take` from this stream."""
    return client.take(stream.url, stream.name, name, count)


def left(stream: Stream) -> list[int]:
    """The sequences that the stream still holds."""
    return sorted(present_in(look_at(stream.publisher.api, stream.name)))


@contextlib.contextmanager
def publishing(url: str, *subjects: str) -> Iterator[None]:
    """Store some thousand messages a second, at the subjects in turn, over another connection,
    until this is left.
    """
    with Publisher(url) as publisher:

        def publish() -> None:
            publisher.publish([Message(subject, b"more") for subject in subjects * 10])

        with repeated(publish, 0.005):
            yield


@contextlib.contextmanager
def repeated(act: Callable[[], None], pause: float) -> Iterator[None]:
    """Call a function again and again in a thread, with pauses of so many seconds, until this is
    left.
    """
    enough = threading.Event()

    def repeat() -> None:
        while not enough.wait(pause):
            act()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


@contextlib.contextmanager
def replicated(url: str) -> Iterator[Callable[..., Stream]]:
    """Makes streams with three replicas, and deletes them in the end.

    A cluster takes a server for offline for a moment after its start, and makes none then.
    """
    with contextlib.ExitStack() as stack:

        def make(retention: str = "interest") -> Stream:
            publisher = stack.enter_context(Publisher(url))

            def made() -> Stream | None:
                try:
                    return Stream(url, "S", publisher, retention=retention, num_replicas=3)
                except Refused as error:
                    if error.err_code != _NO_SUITABLE_PEERS:
                        raise
                    return None

            stream = poll(made, 60.0, lambda: TimeoutError("a server stays offline"))
            stack.callback(stream.delete)
            return stream

        yield make


def replica(server: NatsServer) -> tuple[int, int, list[str]]:
    """The first and the last sequence of the only stream on a server, and its consumers there; zeros
    without a stream.
    """
    page = server.monitor("/jsz?accounts=true&streams=true&consumers=true")
    for account in page.get("account_details", []):
        for stream in account.get("stream_detail", []):
            names = sorted(each["name"] for each in stream.get("consumer_detail", []))
            return stream["state"]["first_seq"], stream["state"]["last_seq"], names
    return 0, 0, []


def level_of(stream: Stream) -> int:
    """The API level of the stream's server; it says so itself since 2.11."""
    return int(stream.publisher.api("INFO").get("api", {}).get("level", 0))


def can_move(stream: Stream) -> bool:
    return CONSUMER_RESET.is_at(level_of(stream))
