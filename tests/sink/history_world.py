"""Where a history of writes happens: a server behind wires that break, streams, and attempts that
count their steps.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
from pyspark import TaskContext

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.inbox import Inbox
from spark_jetstream.testing import NatsServer
from tests.sink.histories import LAST_WINS, REFUSED, SHORT, Content, Fault, Plan
from tests.support.keyed import CONFIG
from tests.support.proxy import WireProxy
from tests.support.publish import Message, Publisher
from tests.support.sinking import Died, Seen, await_forgotten, batches_of, message_with_id, seen_in

_here = threading.local()  # the attempt that runs in this thread
_ID = re.compile(
    r"Nats-Msg-Id: "
    r"(?:(id-[\w-]+)|([\w-]+\.\d+(?:\.\d+)?)(\.dead)?\.[0-9a-f]{24}(?:\.\d+)?)(?:\.[0-9a-f]{16})?(\.dead)?"
    r"(?:\.after\d+)?"
)
_OF_SERVER = ("Nats-Batch-", "Nats-Expected-Stream: ", "Scheduled-Msg-Id: ")


class Turns:
    """Lets one of several lanes go on at a time, in an order that a seed chooses."""

    def __init__(self, seed: int, weights: dict[Hashable, float]) -> None:
        self._random = Random(seed)
        self._weights = weights
        self._changed = threading.Condition()
        self._next()

    def _next(self) -> None:
        if self._weights:
            (self._now,) = self._random.choices(list(self._weights), list(self._weights.values()))

    def wait(self, lane: Hashable) -> None:
        """Give the turn to some lane, and wait for it."""
        with self._changed:
            if self._now == lane and self._random.random() < 0.3:
                self._next()
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._now == lane)

    def leave(self, lane: Hashable) -> None:
        with self._changed:
            del self._weights[lane]
            if self._now == lane:
                self._next()
            self._changed.notify_all()


class Attempt:
    """One attempt of a task, or of a commit. To the sink it is the context of Spark's task."""

    def __init__(
        self,
        plan: Plan,
        batch: int,
        partition: int,
        faults: Sequence[Fault],
        turn: Callable[[], None],
    ) -> None:
        names = ("sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id")
        self._properties = dict(zip(names, (plan.query, str(batch), "run"), strict=True))
        self._partition = partition
        self._faults = list(faults)
        self._turn = turn
        self.steps = 0

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return self._partition

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
        return self._properties.get(name)

    @contextmanager
    def running(self, world: World) -> Iterator[None]:
        """Code in it makes steps: it requests something, sends rows, or takes what has come."""

        def step() -> None:
            self._turn()
            self.steps += 1
            while self._faults and self._faults[0].step < self.steps:
                world.happen(self._faults.pop(0))

        _here.attempt, _here.step = self, step
        try:
            yield
        finally:
            _here.attempt = _here.step = None


def count_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let attempts know of their steps."""

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **given: Any) -> Any:
            step = getattr(_here, "step", None)
            if step is not None:
                step()
            return function(*args, **given)

        return call

    for owner, method in ((Connection, "request"), (Inbox, "send"), (Inbox, "receive")):
        monkeypatch.setattr(owner, method, counted(getattr(owner, method)))
    monkeypatch.setattr(TaskContext, "get", lambda: getattr(_here, "attempt", None))


class World:
    """The streams of a plan on a server, and two wires to it, of which the first is in use."""

    def __init__(self, server: NatsServer, wires: Sequence[WireProxy], plan: Plan) -> None:
        self.wires = list(wires)
        self._server = server
        self._plan = plan
        self._lock = threading.RLock()  # of the server and of `_admin`
        self._admin = Publisher(server.url)
        self._timers: list[threading.Timer] = []
        self._limited = False
        self._seen: dict[str, list[Seen]] = {}  # what was stored the last time
        for name, config in plan.streams.items():
            more = {**CONFIG, "subjects": [f"$KV.{name[3:]}.>"]} if name.startswith("KV_") else {}
            self._admin.api(
                f"STREAM.CREATE.{name}",
                {"name": name, "subjects": [f"{name.lower()}.>"], **more, **config},
            )
            if (
                not more
            ):  # the first message stays, so that none is missing before those of an attempt
                self._admin.publish([self._message(name, "kept")])

    def _message(self, stream: str, subject: str) -> Message:
        counts = self._plan.streams[stream].get("allow_msg_counter")
        return message_with_id(
            f"{stream.lower()}.{subject}", *([("Nats-Incr", "0")] if counts else [])
        )

    def happen(self, fault: Fault) -> None:
        wire, what, amount = self.wires[0], fault.what, fault.amount
        if what == "die":
            if amount % 2:
                wire.cut()
            raise Died
        if (
            what == "die late"
        ):  # what it has sent comes when later attempts are at work, on the other wire
            wire.stall()
            self.wires.reverse()
            self.wires[0].unstall()
            raise Died
        if what == "cut":
            wire.cut()
        elif what in ("cut to server", "cut to clients"):
            wire.cut_after(amount, to=what.removeprefix("cut to "))
        elif what == "lose acks":
            r = Random(amount)
            rate = r.choice([0.1, 0.5, 1.0])
            wire.replace_frames(
                b'{"stream":"', amount % 8 + 1, lambda ack: b"" if r.random() < rate else ack
            )
        elif what == "hold":
            wire.stall()
            self._timers.append(threading.Timer(0.05 + amount % 8 / 10, wire.unstall))
            self._timers[-1].start()
        elif what == "restart":
            with self._lock:
                self._server.kill()
                self._server.start()
                self._admin.close()
                self._admin = Publisher(self._server.url)
        elif what == "outage":
            wire.refuse()
            wire.cut()
            self._forget()
            wire.drop(None)
            wire.accept()
        elif what == "deaf":
            wire.replace_frames(
                b'{"stream":"%b"' % self._plan.main.encode(), 1 << 60, lambda ack: b""
            )
        elif what == "full":
            self._limit(amount % 10)

    def _forget(self) -> None:
        """Wait until streams with a short window have forgotten all message ids."""
        short = [
            name
            for name, config in self._plan.streams.items()
            if config["duplicate_window"] == SHORT
        ]
        with self._lock:
            probes = {name: self._message(name, "probe") for name in short if not self._limited}
            await_forgotten(self._admin, probes)

    def _limit(self, room: int | None) -> None:
        """Let the main stream have room for `room` messages more, or for any number (None).

        It can hold the largest group: a group for which there is never any room is a dead letter.
        """
        name = self._plan.main
        with self._lock:
            info = self._admin.api(f"STREAM.INFO.{name}")
            change = {"max_msgs": -1, "discard": self._plan.streams[name].get("discard", "old")}
            if room is not None:
                most = max(info["state"]["messages"] + room, self._plan.largest_group)
                change = {"max_msgs": most, "discard": "new"}
            self._admin.api(f"STREAM.UPDATE.{name}", {**info["config"], **change})
            self._limited = room is not None

    def calm(self) -> None:
        """End all that has happened."""
        for timer in self._timers:
            timer.join()
        self._timers.clear()
        for wire in self.wires:
            wire.unstall()
            wire.drop(None)
            wire.cut_after(1 << 60)
        if self._limited:
            self._limit(None)

    def stored(self) -> list[tuple[Content, int]]:
        """Return the messages that the streams hold, with their sequences.

        Groups are whole, and counters have added up.
        """
        with self._lock:
            for name in self._plan.streams:
                known = (
                    [] if self._plan.kind in (*LAST_WINS, "schedules") else self._seen.get(name, [])
                )
                self._seen[name] = seen_in(self._admin, name, known)
        found = []
        for name, messages in self._seen.items():
            batches_of(messages)
            sums: dict[str, int] = {}
            for message in messages:
                if increment := message.headers.get("Nats-Incr"):
                    sums[message.subject] = sums.get(message.subject, 0) + int(increment[0])
                    assert message.data == b'{"val":"%d"}' % sums[message.subject]
                if not message.subject.endswith((".kept", ".probe")):
                    found.append((self._content(name, message), message.sequence))
        return found

    def _content(self, stream: str, seen: Seen) -> Content:
        lines, data = [], seen.data
        for line in seen.block.decode().split("\r\n")[1:-2]:
            shown = [line]
            if made := _ID.fullmatch(line):
                own, prefix, *dead = made.groups()
                prefix = (
                    prefix
                    if self._plan.repeatable or own
                    else re.sub(r"w-[0-9a-f]{16}", "w-once", prefix)
                )
                shown = (
                    [f"id of {own or prefix}, dead"]
                    if any(dead)
                    else [line]
                    if own
                    else [f"id of {prefix}"]
                )
                shown = [] if self._plan.kind in LAST_WINS else shown
            elif line.startswith("Dead-Letter-Reason: "):
                why = (why for why, refused in REFUSED.items() if re.search(refused.pattern, line))
                shown = [f"Dead-Letter-Reason: {next(why, line)}"]
            elif line.startswith("Dead-Letter-Size: "):
                assert data[:1_000_000] == b"y" * 1_000_000
                data = b"cut"
            elif line.startswith("Nats-Incr: "):
                data = b"counted"
            lines += [] if line.startswith(_OF_SERVER) else shown
        return Content(stream, seen.subject, tuple(sorted(lines)), data)

    def close(self) -> None:
        for name in self._plan.streams:
            self._admin.api(f"STREAM.DELETE.{name}")
        self._admin.close()
