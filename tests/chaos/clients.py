"""Other clients of the queries' streams: they take a part of a work queue, and delete and make streams.

They do so through all faults, so each request is made again until there is an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import nats.errors
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.client import JetStreamContext

from tests.chaos.load import SUBJECTS
from tests.chaos.scenario import Query
from tests.support.client import ask
from tests.support.publish import Refused

if TYPE_CHECKING:
    from tests.chaos.world import World

OTHER = "other"
"""The consumer that has the rest of a work queue."""
_STAYS = 4.0  # seconds that a stream is published to
_LOOK = 0.2  # seconds
_NOT_FOUND = 10059
#: What a request ends with while servers are down.
_OUTAGES = (OSError, Refused, StopIteration, asyncio.TimeoutError, nats.errors.Error)


async def _quiet(error: Exception) -> None:
    """nats-py would log each outage."""


class _Ended(Exception):
    """No stream is to go any more."""


class Clients:
    """The threads of the other clients; a context manager."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._end, self._stay = threading.Event(), threading.Event()
        queries = world.scenario.queries
        sharing = [query for query in queries if query.shares]
        works = [(self._take, query) for query in sharing]
        works += [(self._come_and_go, query) for query in queries if query.passing]
        self._threads = [
            threading.Thread(target=work, args=(query,), name="client") for work, query in works
        ]
        self.taken: dict[str, Counter[str]] = {query.name: Counter() for query in sharing}
        """The messages that others have taken from the work queue of a query."""
        self.returned = 0
        """How many streams were deleted and made again."""

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stay()
        self._end.set()
        for thread in self._threads:
            thread.join()

    def stay(self) -> None:
        """From now on no stream comes or goes."""
        self._stay.set()

    # The rest of a work queue

    def _take(self, query: Query) -> None:
        (name,) = query.streams
        filters = [
            f"{name}.{number}" for number in range(SUBJECTS) if not query.reads(f"{name}.{number}")
        ]
        config = ConsumerConfig(
            durable_name=OTHER, filter_subjects=filters, ack_policy=AckPolicy.EXPLICIT, ack_wait=5
        )

        async def take(js: JetStreamContext) -> None:
            await js.add_consumer(name, config)
            consumer = await js.pull_subscribe_bind(consumer=OTHER, stream=name)
            while not self._end.is_set():
                for message in await consumer.fetch(50, timeout=1):
                    self.taken[query.name][message.data.decode()] += 1
                    await message.ack_sync()

        while not self._end.wait(_LOOK):
            with contextlib.suppress(*_OUTAGES):
                ask(self._world.ask_url, take, error_cb=_quiet)

    # Streams that come and go

    def _come_and_go(self, query: Query) -> None:
        names = itertools.cycle(query.passing)
        with contextlib.suppress(_Ended):
            while not self._stay.wait(_STAYS):
                self._replace(query, next(names))
                self.returned += 1

    def _replace(self, query: Query, name: str) -> None:
        """Delete a stream that the query has read, and make it again when the query has forgotten
        it.
        """
        world = self._world

        def read() -> bool:
            position, state = (
                world.position(query, "commits").get(name),
                world.api(f"STREAM.INFO.{name}")["state"],
            )
            return position is not None and position.next > state["last_seq"]

        def delete() -> bool:
            try:
                return bool(world.api(f"STREAM.DELETE.{name}"))
            except Refused as error:
                return error.err_code == _NOT_FOUND  # the answer to an earlier request was lost

        def forgotten() -> bool:
            positions = world.position(query, "commits")
            return bool(positions) and name not in positions

        # A query that lags reads a stream to its end only when it gets nothing more from the
        # others.
        self._publish(query, ())
        self._until(read)
        self._until(delete)
        self._publish(query, {*query.streams} - {name})
        self._until(forgotten)
        self._until(
            lambda: world.api(f"STREAM.CREATE.{name}", {"name": name, **world.configs[name]})
        )
        self._publish(query, query.streams)

    def _publish(self, query: Query, names: Collection[str]) -> None:
        """Let the load publish to these streams of a query, and to no other one of it."""
        load = self._world.load
        with load.held():
            load.streams = [*(name for name in load.streams if name not in query.streams), *names]

    def _until(self, check: Callable[[], object]) -> None:
        """Wait until `check` is true. An outage is none of its answers."""
        while not self._stay.wait(_LOOK):
            with contextlib.suppress(*_OUTAGES):
                if check():
                    return
        raise _Ended
