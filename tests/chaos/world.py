"""Servers, load and a Spark job, and the faults that befall them."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_jetstream.client.pool import close_all
from spark_jetstream.testing import NatsCluster, NatsServer
from tests.chaos.model import violations
from tests.chaos.scenario import Fault, Query, Scenario
from tests.support.jobs import Job, kill
from tests.support.proxy import WireProxy
from tests.support.publish import Message, Publisher, Refused
from tests.support.reading import api, consumers, wait_until
from tests.support.sinking import stored

_PAUSE = 0.1  # seconds between two portions of load
_PORTION = 5  # messages for each stream
_SUBJECTS = 3
#: Seconds in which every query must go on after a fault.
LONGEST_RECOVERY = 300.0


class Load:
    """Publishes to streams until it is ended. A portion without an answer is sent again under the same message ids."""

    def __init__(self, urls: Sequence[str], streams: Sequence[str]) -> None:
        self._urls = itertools.cycle(urls)
        self._streams = streams
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self._portion = 0
        self._pending: dict[str, list[Message]] = {}
        self._turn = threading.RLock()
        self.sent: dict[str, dict[str, str]] = {name: {} for name in streams}
        self.stored: dict[str, dict[str, str]] = {name: {} for name in streams}
        self.sequences: dict[str, dict[str, int]] = {name: {} for name in streams}

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """While this lasts nothing is published, and the server has acknowledged all that was."""
        with self._turn:
            yield

    def _run(self) -> None:
        while not self._end.is_set():
            with contextlib.suppress(OSError, Refused), Publisher(next(self._urls)) as publisher:
                while not self._end.is_set():
                    self._publish(publisher)
                    self._end.wait(_PAUSE)
            self._end.wait(_PAUSE)

    def _publish(self, publisher: Publisher) -> None:
        if not self._pending:
            self._turn.acquire()
            self._portion += 1
            self._pending = {name: self._messages(name) for name in self._streams}
        for name in list(self._pending):
            sequences = publisher.publish(self._pending[name])
            messages = self._pending.pop(name)
            self.stored[name] |= {message.data.decode(): message.subject for message in messages}
            self.sequences[name] |= zip((message.data.decode() for message in messages), sequences, strict=True)
        self._turn.release()

    def _messages(self, stream: str) -> list[Message]:
        bodies = [f"{stream} {self._portion} {number}" for number in range(_PORTION)]
        messages = [
            Message(f"{stream}.{number % _SUBJECTS}", body.encode(), [("Nats-Msg-Id", body)])
            for number, body in enumerate(bodies)
        ]
        self.sent[stream] |= {message.data.decode(): message.subject for message in messages}
        return messages

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        self._thread.join()


def read_by(query: Query, messages: Mapping[str, Mapping[str, str]]) -> set[str]:
    """The messages that a query reads, of those by stream with their subjects."""
    return {body for name in query.streams for body, subject in messages[name].items() if query.reads(subject)}


def client_names(server: NatsServer) -> list[str]:
    """The names of the clients that a server has."""
    return [connection.get("name", "") for connection in server.monitor("/connz")["connections"]]


class World:
    """Everything that a scenario needs. The context manager starts it, and ends all that it started."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario = scenario
        self.applied: Counter[str] = Counter()
        self._folder = folder
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> World:
        with contextlib.ExitStack() as stack:
            queries = self.scenario.queries
            if self.scenario.servers == 1:
                self.server = stack.enter_context(NatsServer(http_monitor=True))
                self.proxy = stack.enter_context(WireProxy(self.server.url))
                self.servers, self._url = [self.server], self.proxy.url
            else:
                self.cluster = stack.enter_context(NatsCluster())
                self.servers, self._url = list(self.cluster.servers), self.cluster.url
            for query in queries:
                for name, config in query.configs(self.scenario.servers).items():
                    self._api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], **config})
            self.inputs = [name for query in queries for name in query.streams]
            self._start_job()
            stack.callback(self._kill_job)
            self.job.wait(self._all_held, "the consumers that hold messages", LONGEST_RECOVERY)
            if self.scenario.servers > 1:
                self.cluster.wait_ready()  # each replica of a stream knows its consumers
            self.load = stack.enter_context(Load([server.url for server in self.servers], self.inputs))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _all_held(self) -> bool:
        """Whether the consumers exist without which a stream keeps nothing."""
        held = [name for query in self.scenario.queries if query.source.config for name in query.streams]
        with contextlib.suppress(Refused):
            return all(self._api(f"CONSUMER.INFO.{name}.spark") for name in held)
        return False

    @property
    def _ask_url(self) -> str:
        """A server that runs and is not frozen."""
        return next(server.url for server in self.servers if server.running and not server.paused)

    def _api(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return api(self._ask_url, path, body)

    def _start_job(self) -> None:
        options = {query.name: query.options(self._url) for query in self.scenario.queries}
        # A task may fail as often as its worker is killed. The logs of a checkpoint keep all batches.
        conf = {
            "spark.master": "local[3,30]",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.streaming.minBatchesToRetain": "100000",
        }
        self.job = Job(self._folder, options, trigger={"processingTime": "0 seconds"}, conf=conf)

    def _kill_job(self) -> None:
        # Not a job that this was bound to: faults start others.
        self.job.kill()

    # Running

    def run(self, fault: Fault) -> None:
        """Let a fault happen, from its beginning to its end."""
        if fault.settled:
            self.goes_on()
        getattr(self, fault.name)(fault)
        self.applied[fault.name] += 1

    def goes_on(self) -> None:
        """Wait until each query has committed a batch more."""
        before = {query.name: self.job.latest(f"{query.name}/commits") for query in self.scenario.queries}
        self.job.wait(
            lambda: all(self.job.latest(f"{name}/commits") > last for name, last in before.items()),
            f"batches after {before}",
            LONGEST_RECOVERY,
        )

    def violations(self) -> list[str]:
        """End load and queries, and return what is wrong, in words."""
        self.goes_on()
        self.load.__exit__()
        result = self.job.finish()
        wrong = [fault for query in self.scenario.queries for fault in self._wrong(query, self._rows(query, result))]
        return wrong + self._left()

    def _wrong(self, query: Query, rows: Counter[str]) -> list[str]:
        """Return what is wrong with a query that has written these rows, in words."""
        kept, sent = read_by(query, self.load.stored), read_by(query, self.load.sent)
        failed = [f"failed by itself: {error}" for error in self.job.errors(query.name)]
        return [f"{query.name}: {fault}" for fault in failed + violations(kept, sent, rows, query.level)]

    def _rows(self, query: Query, result: dict[str, Any]) -> Counter[str]:
        if query.level is None:
            return Counter(row[2] for row in result[query.name]["rows"])
        return Counter(data.decode() for data in stored(self._ask_url, query.target))

    def _left(self) -> list[str]:
        """What the queries have left on the servers and on the machine."""
        self.job.kill()
        close_all()  # what this process has read the results with
        wrong = []
        for name in self.inputs:
            with contextlib.suppress(TimeoutError):
                # What a killed reader has left the server removes after 30 seconds.
                wait_until(lambda name=name: set(consumers(self._ask_url, name)) <= {"spark"}, "no consumer", 90)  # type: ignore[misc]
            if left := set(consumers(self._ask_url, name)) - {"spark"}:
                wrong.append(f"consumers are left on {name}: {sorted(left)}")
        for server in self.servers:
            with contextlib.suppress(TimeoutError):
                wait_until(lambda server=server: not client_names(server), "no client", 30)  # type: ignore[misc]
            if clients := client_names(server):
                wrong.append(f"connections are left: {clients}")
        return wrong

    # What befalls Spark

    def workers_killed(self, fault: Fault) -> None:
        """The Python processes that run tasks."""
        kill(self.job.workers())

    def planners_killed(self, fault: Fault) -> None:
        """The Python process that plans one of the queries: the query fails, and is started again."""
        planners = sorted(self.job.planners())
        kill(planners[fault.target % len(planners) :][:1] if planners else [])

    def driver_killed(self, fault: Fault) -> None:
        """All processes of the job, which is started again."""
        self.job.kill()
        self._start_job()

    # What befalls a server and the wire to it

    def server_killed(self, fault: Fault) -> None:
        self.server.kill()
        threading.Event().wait(fault.seconds)
        self.server.start()

    def server_frozen(self, fault: Fault) -> None:
        self.server.pause()
        threading.Event().wait(fault.seconds)
        self.server.resume()

    def wire_cut(self, fault: Fault) -> None:
        self.proxy.cut()

    def wire_cut_inside(self, fault: Fault) -> None:
        """After so many more bytes of the server, wherever that is in a frame."""
        done = self.proxy.cut_after(1 + fault.target * 997)
        self.job.wait(done.is_set, "the cut", LONGEST_RECOVERY)

    def wire_stalled(self, fault: Fault) -> None:
        self.proxy.stall()
        threading.Event().wait(fault.seconds)
        self.proxy.unstall()

    def wire_refused(self, fault: Fault) -> None:
        self.proxy.refuse()
        self.proxy.cut()
        threading.Event().wait(fault.seconds)
        self.proxy.accept()

    # What befalls a cluster

    def _suffers(self, fault: Fault) -> str:
        """The stream that a fault concerns."""
        names = [name for query in self.scenario.queries for name in query.configs(3)]
        return names[fault.target % len(names)]

    def _killed(self, index: int, fault: Fault) -> None:
        self.cluster.kill(index)
        threading.Event().wait(fault.seconds)
        self.cluster.restart(index)

    def leader_killed(self, fault: Fault) -> None:
        self._killed(self.cluster.leader_of(self._suffers(fault)), fault)

    def meta_leader_killed(self, fault: Fault) -> None:
        leader = self.servers[0].monitor("/jsz")["meta_cluster"]["leader"]
        self._killed([server.name for server in self.servers].index(leader), fault)

    def leader_frozen(self, fault: Fault) -> None:
        index = self.cluster.leader_of(self._suffers(fault))
        self.servers[index].pause()
        threading.Event().wait(fault.seconds)
        self.servers[index].resume()
        self.cluster.wait_ready()

    def leader_steps_down(self, fault: Fault) -> None:
        self._api(f"STREAM.LEADER.STEPDOWN.{self._suffers(fault)}")
        self.cluster.wait_ready()

    def replicas_changed(self, fault: Fault) -> None:
        """Three replicas become one, and three again."""
        name = self._suffers(fault)
        config = self._api(f"STREAM.INFO.{name}")["config"]
        for replicas in (1, 3):
            self._api(f"STREAM.UPDATE.{name}", {**config, "num_replicas": replicas})
            self.cluster.wait_ready()
