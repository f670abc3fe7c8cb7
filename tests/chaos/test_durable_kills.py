"""Nothing leaves an interest stream or a work queue before Spark has committed it, whoever is killed, and whenever.

Two queries of one job copy such a stream each into Spark's transactional file sink while messages are published. What
plans them, what runs their tasks, the whole job and the server are killed again and again. At the moment of each kill
the job is frozen, and what is gone from the streams is held against what the sinks have by their logs, of the batches
that the checkpoints call committed.

The variable SPARK_JETSTREAM_KILLS asks for more kills than the suite has time for, at moments that chance chooses.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_jetstream.testing import NatsServer
from spark_jetstream.testing.process import poll
from tests.support.jobs import Job, kill
from tests.support.proxy import WireProxy
from tests.support.publish import Message, Publisher, Refused
from tests.support.reading import api, consumers, create, wait_until

log = logging.getLogger(__name__)

KILLS = int(os.environ.get("SPARK_JETSTREAM_KILLS", "0"))
SEED = 4
LIMIT = 40
STREAMS = {"HELD": "interest", "QUEUE": "workqueue"}
#: What lets go of messages, and what the server answers; what a task asks for messages; what takes a consumer over.
COMMIT = {"HELD": b"$JS.API.CONSUMER.RESET.HELD.", "QUEUE": b"$JS.API.STREAM.PURGE.QUEUE"}
ANSWER = {"HELD": b"consumer_reset_response", "QUEUE": b"stream_purge_response"}
READ = {"HELD": b"$JS.API.CONSUMER.MSG.NEXT.HELD.spark-", "QUEUE": b"$JS.API.DIRECT.GET.QUEUE"}
TAKE = {name: b"$JS.API.CONSUMER.CREATE.%s.spark " % name.encode() for name in STREAMS}

Reached = Callable[[], bool]


class Feed:
    """Publishes to the streams until it is ended, and remembers what the server said it has stored."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed")
        self._number = 0
        self.stored: dict[str, dict[int, list[object]]] = {name: {} for name in STREAMS}

    def _run(self) -> None:
        while not self._end.wait(0.1):
            with contextlib.suppress(OSError, Refused):  # the server is down
                self._publish()

    def _publish(self) -> None:
        with Publisher(self._url) as publisher:
            while not self._end.wait(0.1):
                for name in STREAMS:
                    some = [Message(f"{name}.{at % 3}", f"{self._number} {at}".encode()) for at in range(LIMIT // 4)]
                    for sequence, each in zip(publisher.publish(some), some, strict=True):
                        self.stored[name][sequence] = [sequence, each.subject, each.data.decode()]
                self._number += 1

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        self._thread.join()


class Strikes:
    """The job, and what befalls it."""

    def __init__(self, server: NatsServer, folder: Path) -> None:
        self.server = server
        self.chance = random.Random(SEED)
        self.proxies = {name: WireProxy(server.url) for name in STREAMS}
        self.done: Counter[str] = Counter()
        self.let_go: Counter[str] = Counter()
        self._folder = folder
        self.job = self._start()

    def _start(self) -> Job:
        options = {
            name: {
                "servers": proxy.url,
                "stream": name,
                "durable": "spark",
                "maxMessagesPerTrigger": str(LIMIT),
                "minPartitions": "2",
                "connectTimeout": "20s",
                "requestTimeout": "3s",
                "fetchTimeout": "2s",
            }
            for name, proxy in self.proxies.items()
        }
        conf = {"spark.sql.streaming.fileSink.log.deletion": "false", "spark.ui.showConsoleProgress": "false"}
        return Job(self._folder, options, trigger={"processingTime": "0 seconds"}, conf=conf)

    def start_again(self) -> None:
        """Another run of the job, on the same checkpoints."""
        self.job.kill()
        self.job = self._start()

    # When

    def any_time(self, _: str) -> Reached:
        """Chance says when."""
        at = time.monotonic() + self.chance.random() * 2
        return lambda: time.monotonic() >= at

    def batch_is_planned(self, name: str) -> Reached:
        """The first request of a plan, or of a new run, is on its way."""
        return self.proxies[name].stall_at(b"$JS.API.STREAM.INFO").is_set

    def batch_is_read(self, name: str) -> Reached:
        """A task has asked for messages (or, of a work queue, the planner how many there are)."""
        return self.proxies[name].stall_at(READ[name]).is_set

    def sink_has_it(self, name: str) -> Reached:
        """A batch is in the sink, and the query does not know yet."""
        return lambda: self.job.latest(f"rows/{name}") > self.job.latest(f"{name}/commits")

    def before_the_commit(self, name: str) -> Reached:
        """Spark has committed a batch, and the request that lets go of its messages is on its way."""
        return self.proxies[name].stall_at(COMMIT[name]).is_set

    def before_the_answer(self, name: str) -> Reached:
        """The server has let go of a batch's messages, and the answer is on its way."""
        reached = threading.Event()

        def lose(frame: bytes) -> bytes:
            if ANSWER[name] in frame:
                reached.set()
            return b"" if reached.is_set() else frame

        self.proxies[name].drop(lose)
        return reached.is_set

    def before_taking_over(self, name: str) -> Reached:
        """A new run, after one that was killed too, is about to take the consumer over."""
        reached = self.proxies[name].stall_at(TAKE[name])
        kill(self.job.planners())
        return reached.is_set

    # Who

    def planners(self) -> int:
        """Those who plan."""
        return kill(self.job.planners())

    def workers(self) -> int:
        """Those who plan, and those who run tasks."""
        return kill(self.job.planners()) + kill(self.job.workers())

    def everybody(self) -> int:
        killed = len(self.job.processes())
        self.job.kill()
        return killed

    def the_server(self) -> int:
        """The server, as if by kill -9; the job lives."""
        self.server.kill()
        return 1

    def strike(self, when: Callable[[str], Reached], who: Callable[[], int], *, late: bool = False) -> None:
        """Wait for the moment in one of the queries, and in the other if it is soon; look at the streams, and kill.

        What was held back on its way is lost, or comes `late`: when those who sent it are dead.
        """
        moments = {name: when(name) for name in STREAMS}
        what = f"{when.__name__}, {who.__name__}"
        while True:
            # A run that is only just starting has nobody yet to kill.
            self.job.wait(lambda: any(reached() for reached in moments.values()) and bool(self.job.planners()), what)
            with contextlib.suppress(TimeoutError):
                if when != self.sink_has_it:
                    self.job.wait(lambda: all(reached() for reached in moments.values()), what, timeout=1.5)
            with self.job.frozen():
                hit = [name for name, reached in moments.items() if reached() and self.job.planners()]
                if hit:
                    self.check(when, hit)
                    assert who() >= 1, f"{what}: {self.job.processes()}"
            if hit:
                break
        self.done[what] += 1
        for proxy in self.proxies.values():
            proxy.forget()
            proxy.drop(None)
            if not late:
                proxy.cut()
            proxy.unstall()
        if not self.server.running:
            self.server.start()
        if not self.job.running:
            self.start_again()

    def check(self, when: Callable[[str], Reached], hit: list[str]) -> None:
        """Nothing is gone that is not committed."""
        for name in STREAMS:
            committed, gone = self.job.committed(name), removed(self.server.url, name)
            assert gone <= committed, f"gone from {name}, and not committed: {sorted(gone - committed)}"
            if name in hit and when == self.before_the_commit:
                assert committed > gone, "the moment was missed"
            if name in hit and when == self.before_the_answer and committed == gone:
                self.let_go[name] += 1  # not always: the answer may have been for one who is dead

    def goes_on(self) -> None:
        """Wait until both queries have committed a batch more."""
        before = {name: self.job.latest(f"{name}/commits") for name in STREAMS}
        self.job.wait(
            lambda: all(self.job.latest(f"{name}/commits") > last for name, last in before.items()),
            f"batches after {before}",
        )

    def __enter__(self) -> Strikes:
        for proxy in self.proxies.values():
            proxy.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.job.kill()
        for proxy in self.proxies.values():
            proxy.close()


def removed(url: str, stream: str) -> set[int]:
    """The sequences that were in a stream, and are not any more."""
    state = api(url, f"STREAM.INFO.{stream}", {"deleted_details": True})["state"]
    gone = set(range(1, state["first_seq"] or state["last_seq"] + 1)) | set(state.get("deleted") or ())
    assert len(gone) == state["last_seq"] - state["messages"]
    return gone


@pytest.fixture
def server(server: NatsServer) -> NatsServer:
    """A server with both streams on disk."""
    for name, retention in STREAMS.items():
        create(server.url, name, retention=retention, allow_direct=True, storage="file")
    return server


@pytest.mark.full
@pytest.mark.timeout(600 + 60 * KILLS)
def test_kills_at_any_moment(server: NatsServer, tmp_path: Path) -> None:
    with Strikes(server, tmp_path / "job") as strikes:
        poll(
            lambda: all("spark" in consumers(server.url, name) for name in STREAMS) or None,
            180,
            lambda: TimeoutError(strikes.job.log),
        )
        with Feed(server.url) as feed:
            chosen = [
                (strikes.before_the_commit, strikes.planners, False),
                (strikes.before_taking_over, strikes.planners, False),
                (strikes.before_the_answer, strikes.planners, False),
                (strikes.batch_is_read, strikes.workers, False),
                (strikes.batch_is_planned, strikes.planners, False),
                (strikes.before_the_commit, strikes.the_server, False),
                (strikes.before_the_commit, strikes.planners, True),
                (strikes.any_time, strikes.planners, False),
                (strikes.sink_has_it, strikes.everybody, False),
                (strikes.before_the_answer, strikes.everybody, False),
                (strikes.before_the_commit, strikes.everybody, True),
            ]
            in_the_suite = len(chosen) - 2  # whole jobs take long to start
            few = [strikes.before_the_commit, strikes.before_the_answer, strikes.before_taking_over]
            for at in range(KILLS or in_the_suite):
                if at < len(chosen):
                    when, who, late = chosen[at]
                else:
                    when = strikes.chance.choice([*few, strikes.any_time, strikes.batch_is_read, strikes.sink_has_it])
                    who = strikes.chance.choice([strikes.planners] * 9 + [strikes.workers, strikes.everybody])
                    late = strikes.chance.random() < 0.5
                strikes.strike(when, who, late=late)
                log.info("%d: %s, %s", at + 1, when.__name__, who.__name__)
                if strikes.chance.random() < 0.3:
                    strikes.goes_on()
        found = strikes.job.finish()
    assert strikes.let_go, "the moment before the answer was missed"
    log.info("%s; failures: %s", strikes.done, Counter(name for name, _ in strikes.job.failures()))
    for name in STREAMS:
        state = api(server.url, f"STREAM.INFO.{name}")["state"]
        rows = found[name]["rows"]
        sequences = [row[0] for row in rows]
        assert len(sequences) == len(set(sequences)), "messages came twice"
        assert sequences == list(range(1, state["last_seq"] + 1)), "messages are missing"
        stored = feed.stored[name]
        assert len(stored) > 5 * LIMIT
        assert [row for row in rows if row[0] in stored] == list(stored.values())
        # What those who were killed have left holds messages until the server removes it, after a minute.
        for left in set(consumers(server.url, name)) - {"spark"}:
            api(server.url, f"CONSUMER.DELETE.{name}.{left}")
        position = api(server.url, f"CONSUMER.INFO.{name}.spark")["ack_floor"]["stream_seq"]
        assert position == state["last_seq"] or name == "QUEUE", "the last batch was not committed"
    wait_until(
        lambda: not any(api(server.url, f"STREAM.INFO.{name}")["state"]["messages"] for name in STREAMS),
        "the end of both streams",
    )
    assert strikes.job.errors() == [], "queries failed by themselves"
