"""Histories of writes that a seed makes, on a real server behind wires that break: see
docs/reliability.md.

A failure shows the seed and all attempts in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest

from spark_jetstream.client.pool import close_all
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.sink.ledger_streams import NotedStreams
from spark_jetstream.testing import NatsServer
from tests.sink.history import History
from tests.sink.history_plans import planned
from tests.sink.history_world import World, count_steps
from tests.support.proxy import WireProxy
from tests.support.publish import Message, Publisher
from tests.support.seeds import seeds
from tests.support.sinking import seen_in, set_write_timing

pytestmark = pytest.mark.usefixtures("no_connection_left", "quick_ledger")


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as running:
        yield running


@pytest.fixture
def run(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """A function that runs the history of a seed."""
    count_steps(monkeypatch)
    set_write_timing(monkeypatch, pauses=(0.02,), last_answers=0.5)
    add = NotedStreams.add

    def add_with_shorter_window(self: NotedStreams, state: StreamSummary) -> None:
        """No pause of this process lets a row come after the window, since the sink takes it for
        shorter.
        """
        add(self, state)
        if self.duplicate_window <= 60:
            self.duplicate_window = 0.25

    monkeypatch.setattr(NotedStreams, "add", add_with_shorter_window)
    with WireProxy(server.url) as one, WireProxy(server.url) as other:

        def run(seed: int) -> None:
            plan = planned(seed)
            world = World(server, [one, other], plan)
            history = History(world, plan)
            try:
                history.run()
            except Exception as error:
                world.calm()
                about = [
                    f"seed {seed}: {error}",
                    f"{plan.options}",
                    f"{plan.streams}",
                    *history.log,
                ]
                raise AssertionError("\n".join(about)) from error
            finally:
                world.close()
                close_all()

        yield run


@pytest.mark.parametrize("part", seeds(6, 20))
def test_the_streams_hold_what_was_said(run: Callable[[int], None], part: range) -> None:
    for seed in part:
        run(seed)


class Replacing(Publisher):
    """Lets messages come before the second read of one: a copy of `replaced`, which removes it, and
    others.
    """

    def __init__(self, url: str, replaced: Message, *others: Message) -> None:
        super().__init__(url)
        self._coming = [*others, replaced]
        self._reads = 0

    def api(self, subject: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        if subject.startswith("STREAM.MSG.GET."):
            self._reads += 1
            if self._reads == 2:
                self.publish(self._coming)
        return super().api(subject, body)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_no_message_is_missed_that_is_replaced_while_the_stream_is_read(
    server: NatsServer, count: int
) -> None:
    name = f"REPLACED{count}"
    replaced = Message(f"{name}.b", headers=[("Nats-Rollup", "sub")])
    others = [Message(f"{name}.c")] * count
    with closing(Replacing(server.url, replaced, *others)) as publisher:
        config = {"name": name, "subjects": [f"{name}.>"], "allow_rollup_hdrs": True}
        publisher.api(f"STREAM.CREATE.{name}", config)
        publisher.publish([Message(f"{name}.a"), replaced, Message(f"{name}.c")])
        found = [seen.subject.removeprefix(name) for seen in seen_in(publisher, name)]
        assert found == [".a", ".c", *[".c"] * count, ".b"]
        publisher.api(f"STREAM.DELETE.{name}")
