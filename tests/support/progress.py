"""Runs of queries with the option durable, below Spark, and what the server says of their consumers."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

from nats.js.client import JetStreamContext

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import connect
from spark_jetstream.client.requests import Requests
from spark_jetstream.protocol.stream import StreamState, stream_state
from spark_jetstream.source.durable import RESET_LEVEL
from spark_jetstream.source.progress import Progress
from spark_jetstream.testing import NatsServer
from tests.support.client import ask
from tests.support.publish import Message, Publisher, Refused
from tests.support.reading import api, options, wait_until
from tests.support.streams import Stream

Maker = Callable[..., Stream]
RETENTIONS = ("limits", "interest", "workqueue")
SECOND = 1_000_000_000


class Crash(BaseException):
    """The end of the process, as far as `Progress` can tell."""


class Wire:
    """The process's connection, which notes what is asked for. `before` and `after` a request anything may happen."""

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

    def api(self, subject: str, body: bytes, *, context: str) -> dict[str, Any]:
        self.subjects.append(subject.removeprefix("$JS.API."))
        self.before(self.subjects[-1])
        reply = self.real.api(subject, body, context=context)
        self.after(self.subjects[-1])
        return reply

    ask = api

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def asked(self, work: Callable[[], None]) -> list[str]:
        """What `work` asks for: the first two words of each request."""
        before = len(self.subjects)
        work()
        return [".".join(subject.split(".")[:2]) for subject in self.subjects[before:]]


def run_of(
    where: str | Wire, *filters: str, durable: str = "query", fail: bool = True, patience: float = 15.0
) -> Progress:
    """A run of a query."""
    wire = Wire(where) if isinstance(where, str) else where
    return Progress(Requests(wire, patience), durable, filters, fail_on_data_loss=fail)


def state_of(url: str, name: str) -> StreamState:
    return stream_state(api(url, f"STREAM.INFO.{name}"), "look")


def consumer(url: str, stream: str, name: str = "query") -> dict[str, Any]:
    return api(url, f"CONSUMER.INFO.{stream}.{name}")


def position(url: str, stream: str, name: str = "query") -> int:
    """The first sequence that is not committed."""
    return int(consumer(url, stream, name)["delivered"]["stream_seq"]) + 1


def kept(stream: Stream) -> tuple[int, int, int]:
    """First and last sequence, and the number of messages."""
    state = stream.state()
    return state["first_seq"], state["last_seq"], state["messages"]


def make_consumer(url: str, stream: str, name: str = "query", **config: Any) -> dict[str, Any]:
    wanted = {"durable_name": name, "ack_policy": "explicit", **config}
    return api(url, f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": wanted})


def take(url: str, stream: str, name: str, count: int) -> None:
    """Let an application pull messages and acknowledge them."""

    async def work(js: JetStreamContext) -> None:
        subscription = await js.pull_subscribe_bind(consumer=name, stream=stream)
        for message in await subscription.fetch(count, timeout=5):
            await message.ack_sync()
        await subscription.unsubscribe()

    ask(url, work)


def stored(stream: Stream) -> list[int]:
    """The sequences that are still there."""

    def there(sequence: int) -> bool:
        try:
            stream.publisher.api(f"STREAM.MSG.GET.{stream.name}", {"seq": sequence})
        except Refused as error:
            if error.err_code != 10037:
                raise
            return False
        return True

    return [sequence for sequence in sorted(stream.messages) if there(sequence)]


def wait_for_more(stream: Stream, position: int) -> None:
    """Wait until ten messages and more have come from this position on."""
    wait_until(lambda: stream.state()["last_seq"] > position + 10, "more messages")


@contextlib.contextmanager
def publishing(stream: Stream, suffixes: str) -> Iterator[None]:
    """Two threads store messages, one at a time, over connections of their own, until the block ends."""
    enough = threading.Event()

    def publish() -> None:
        with Publisher(stream.url) as publisher:
            for number in itertools.count():
                if enough.is_set():
                    return
                suffix = suffixes[number % len(suffixes)]
                publisher.publish([Message(f"{stream.subject}.{suffix}", str(number).encode())])

    threads = [threading.Thread(target=publish) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        enough.set()
        for thread in threads:
            thread.join()


def level_of(server: NatsServer) -> int:
    """The API level of the server; it says so itself since 2.11."""
    return int(api(server.url, "INFO").get("api", {}).get("level", 0))


def can_move(server: NatsServer) -> bool:
    """Whether the server can move consumers."""
    return level_of(server) >= RESET_LEVEL


def both(run: Progress, state: StreamState, sequence: int) -> list[Callable[[], None]]:
    """A check, and a commit."""
    return [lambda: run.check(state), lambda: run.commit(state, sequence)]
