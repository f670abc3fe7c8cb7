"""Servers, load and a Spark job that faults befall, and what must hold afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from spark_jetstream.client.pool import close_all
from spark_jetstream.protocol.conventions import LEDGER_BUCKET
from spark_jetstream.source.offsets import Offset, StreamPosition
from spark_jetstream.testing import NatsCluster, NatsServer
from tests.chaos import cluster_faults, server_faults, spark_faults
from tests.chaos.clients import OTHER, Clients
from tests.chaos.load import Load
from tests.chaos.model import (
    counted,
    last_of_each,
    unjustified,
    violations,
    whole_copies,
    whole_groups,
)
from tests.chaos.scenario import FILES, Fault, Layout, Query, Scenario
from tests.model.stream import look_at, present_in
from tests.support.jobs import BRISK, Job, spark_home
from tests.support.proxy import WireProxy
from tests.support.publish import Refused
from tests.support.reading import api, consumers, wait_until
from tests.support.sinking import with_subjects

#: Seconds in which every query must go on after a fault.
LONGEST_RECOVERY = 600.0
LEDGER = f"KV_{LEDGER_BUCKET}"
#: The nats-server with which servers begin, until a fault shuts them down; None for the one of this
#: environment.
OLDER = os.environ.get("CHAOS_SERVER")
_DURABLE = {"spark", OTHER}
"""The consumers that may be there in the end."""


def read_by(query: Query, messages: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The messages that a query reads, with their subjects; `messages` has all, by stream."""
    return {
        body: subject
        for name in query.streams
        for body, subject in messages[name].items()
        if query.reads(subject)
    }


def client_names(server: NatsServer) -> list[str]:
    """The names of the connector's clients that a server has; the suite's own have none."""
    return [
        connection["name"]
        for connection in server.monitor("/connz")["connections"]
        if "name" in connection
    ]


def function_of(fault: str) -> Callable[[World, Fault], None]:
    """The function that makes a fault happen, by its name."""
    modules = (spark_faults, server_faults, cluster_faults)
    function: Callable[[World, Fault], None] = next(
        getattr(each, fault) for each in modules if hasattr(each, fault)
    )
    return function


class World:
    """Everything that a scenario needs.

    The context manager starts it, and ends all that it started.
    """

    conf: Mapping[str, str] = MappingProxyType({})
    """What Spark is configured with beside what all scenarios need."""
    server: NatsServer  # these two in a scenario with one server
    proxy: WireProxy

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario = scenario
        self.applied: Counter[str] = Counter()
        self.changed: int | None = None
        """The number of the change of options that the queries have; None for none."""
        self.layout = Layout.of(scenario.seed)
        """What the next job makes partitions by."""
        self.configuration = folder.with_name("limits.conf")
        """What a single server reads as its configuration."""
        self._folder = folder
        # One runs the connections of a process as long as it lives.
        self._threads = {
            "spark-jetstream",
            "wire-proxy",
            "client",
            *(thread.name for thread in threading.enumerate()),
        }
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> World:
        with contextlib.ExitStack() as stack:
            queries = self.scenario.queries
            if self.scenario.servers == 1:
                self.configuration.write_text(server_faults.configuration())
                # The server looks for it below the folder of its configuration.
                config = f'include "{"../" * 30}{self.configuration}"'
                self.server = stack.enter_context(
                    NatsServer(http_monitor=True, config=config, binary=OLDER)
                )
                self.proxy = stack.enter_context(WireProxy(self.server.url))
                self.servers, self._url = [self.server], self.proxy.url
            else:
                self.cluster = stack.enter_context(
                    NatsCluster(
                        config=server_faults.GRACE, binary=OLDER, start_timeout=LONGEST_RECOVERY
                    )
                )
                self.servers, self._url = list(self.cluster.servers), self.cluster.url
            self.configs: dict[str, dict[str, Any]] = {}
            for query in queries:
                self.configs |= query.configs(self.scenario.servers)
            for name, settings in self.configs.items():
                self.api(f"STREAM.CREATE.{name}", {"name": name, **settings})
            self.inputs = [name for query in queries for name in query.streams]
            files = self._folder / "files"
            for name in self.inputs:
                if name.startswith(FILES):
                    (files / name).mkdir(parents=True)
            self.start_job()
            stack.callback(self._kill_job)
            self.wait(self._all_held, "the consumers that hold messages")
            if self.scenario.servers > 1:
                self.cluster.wait_ready()  # each replica of a stream knows its consumers
            self.load = stack.enter_context(
                Load([server.url for server in self.servers], self.inputs, files)
            )
            self.clients = stack.enter_context(Clients(self))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _all_held(self) -> bool:
        """Whether the consumers exist without which a stream keeps nothing."""
        held = [
            name for query in self.scenario.queries if query.source.held for name in query.streams
        ]
        with contextlib.suppress(Refused):
            return all(self.api(f"CONSUMER.INFO.{name}.spark") for name in held)
        return False

    @property
    def ask_url(self) -> str:
        """A server that runs and is not frozen."""
        return next(server.url for server in self.servers if server.running and not server.paused)

    def api(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return api(self.ask_url, path, body)

    def position(
        self, query: Query, log: str, batch: int | None = None
    ) -> Mapping[str, StreamPosition]:
        """How far a query has read its streams by the newest batch (or this one) of ``offsets`` or
        ``commits``.
        """
        folder = self.job.checkpoint / query.name / "offsets"
        number = self.job.latest(f"{query.name}/{log}") if batch is None else batch
        with contextlib.suppress(OSError, ValueError):  # not there yet, or damaged by a fault
            return Offset.from_json(
                json.loads((folder / str(number)).read_text().splitlines()[-1])
            ).streams
        return {}

    def start_job(self) -> None:
        options = {
            query.name: query.options(self._url, self.changed) for query in self.scenario.queries
        }
        temporary = self._folder.with_name("tmp")
        temporary.mkdir(exist_ok=True)
        # A task may fail as often as its worker is killed. What killed processes leave goes with
        # the folder. The logs of a checkpoint and of a sink keep all batches.
        conf = {
            **self.layout.conf(executors=self.scenario.executors),
            "spark.task.maxFailures": "30",
            "spark.deploy.maxExecutorRetries": "-1",
            "spark.sql.streaming.minBatchesToRetain": "100000",
            "spark.sql.streaming.fileSink.log.deletion": "false",
            "spark.local.dir": str(temporary),
            "spark.ui.showConsoleProgress": "false",
            # Spark matches the error of a function of `foreachBatch` with a regular expression that
            # overflows the stack (`StreamExecution.isInterruptionException`), and the query then
            # ends without an error.
            "spark.driver.extraJavaOptions": f"{BRISK['spark.driver.extraJavaOptions']} -Xss64m",
            **self.conf,
        }
        environment = {"TMPDIR": str(temporary)}
        if self.scenario.executors:
            environment |= spark_home(self._folder.with_name("home"))
        trigger = {"processingTime": "0 seconds"}
        self.job = Job(self._folder, options, trigger=trigger, conf=conf, environment=environment)

    def _kill_job(self) -> None:
        # Not a job that this was bound to: faults start others.
        self.job.kill()

    # Running

    def run(self, fault: Fault) -> None:
        """Let a fault happen, from its beginning to its end."""
        if fault.settled:
            self.goes_on()
            early = self._gone_early()
            assert early == [], f"{self.scenario}\n{early}"
        self.happen(fault)
        self.applied[fault.name] += 1

    def happen(self, fault: Fault) -> None:
        function_of(fault.name)(self, fault)

    def wait(self, check: Callable[[], bool], what: str) -> None:
        """Wait for what must come while the job runs."""
        self.job.wait(check, what, LONGEST_RECOVERY)

    def goes_on(self) -> None:
        """Wait until each query has committed a batch more."""
        before = {
            query.name: self.job.latest(f"{query.name}/commits") for query in self.scenario.queries
        }
        self.wait(
            lambda: all(self.job.latest(f"{name}/commits") > last for name, last in before.items()),
            f"batches after {before}",
        )

    # What must hold

    def violations(self) -> list[str]:
        """End load and queries, and return what is wrong, in words."""
        self.goes_on()
        self.clients.stay()
        self.load.finish()
        result = self.job.finish()
        wrong = [
            fault
            for query in self.scenario.queries
            for fault in self._wrong(query, self._rows(query, result))
        ]
        if not self.scenario.losing:
            other = [
                name
                for name, texts in result.items()
                if texts.get("batch", texts["rows"]) != texts["rows"]
            ]
            wrong += [f"{name}: a batch has other rows than the query" for name in other]
        return wrong + self._left()

    def _gone_early(self) -> list[str]:
        """The messages that a stream lost before their query had committed them, in words."""
        wrong = []
        # Without an answer now, the next look has one.
        with self.job.frozen(), contextlib.suppress(OSError, Refused):
            for query in self.scenario.queries:
                if query.source.held and query.level is None:
                    info = look_at(self.api, query.streams[0])
                    gone = {*range(1, info["state"]["last_seq"] + 1)} - present_in(info)
                    # Others take what it does not read.
                    gone &= self._sequences(query, query.streams[0])
                    if early := sorted(gone - self.job.committed(query.name)):
                        wrong.append(
                            f"{query.name}: gone before their commit: {early[:5]}, {len(early)} in "
                            "all"
                        )
        return wrong

    def _sequences(self, query: Query, name: str) -> set[int]:
        """The sequences of the messages of a stream that a query reads."""
        texts = self.load.stored[name]
        return {
            at for text, at in self.load.sequences[name].copy().items() if query.reads(texts[text])
        }

    def _wrong(self, query: Query, rows: Counter[str]) -> list[str]:
        """Return what is wrong with a query that has written these rows, in words."""
        kept, sent = read_by(query, self.load.stored), read_by(query, self.load.sent)
        if query.source.of == "objectBucket":
            kept = last_of_each(kept)
        failed = unjustified(self.job.errors(query.name), self.applied)
        wrong = [f"{query.name}: failed by itself: {error}" for error in failed]
        for dead in (False, True) if query.dead_letters else (False,):
            must, may = (
                [text for text in texts if query.dies(text) is dead] for texts in (kept, sent)
            )
            there = Counter(text for _, text in self._stored(query.dead)) if dead else rows
            found = violations(must, may, there, query.level)
            wrong += [f"{query.name}{', dead letters' if dead else ''}: {fault}" for fault in found]
        return wrong

    def _rows(self, query: Query, result: Mapping[str, Mapping[str, list[str]]]) -> Counter[str]:
        if query.level is None:
            return Counter(result[query.name]["rows"])
        # A query may make several rows of each message.
        return whole_copies(self.written(query), query.copies, exact=query.level != "at-least-once")

    def written(self, query: Query) -> Counter[str]:
        """How often each message is in the streams that a query writes to."""
        rows = [row for name in query.targets for row in self._stored(name)]
        if query.writes == "counters":
            prefix = f"{query.target}.row."
            last = {
                subject.removeprefix(prefix).replace(".", " "): json.loads(value)["val"]
                for subject, value in rows
            }
            return counted(last)
        texts = [text for _, text in rows]
        return Counter(texts) if query.rows.parts == 1 else whole_groups(texts, query.rows.parts)

    def _stored(self, stream: str) -> list[tuple[str, str]]:
        """The subjects and texts in a stream."""
        return [
            (subject, data.decode().rstrip("."))
            for subject, data in with_subjects(self.ask_url, stream)
        ]

    def _left(self) -> list[str]:
        """The processes, consumers and connections that the queries have left, in words."""
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: not self.job.processes(), "no process", 30)
        wrong = [f"a process is left: {command}" for command in self.job.processes().values()]
        self.job.kill()
        # A driver that is killed leaves the folder of its application to nobody, and the notes of
        # `first_time` in it.
        wrong += [
            f"a file is left: {path}"
            for path in self._folder.with_name("tmp").glob("**/spark-jetstream*")
            if not path.parent.name.startswith("userFiles-")
        ]
        close_all()  # what this process has read the results with
        wrong += [
            f"a thread is left: {each.name}"
            for each in threading.enumerate()
            if each.name not in self._threads
        ]
        wrong += [
            f"stream {name} is left" for name in self.streams() - self.configs.keys() - {LEDGER}
        ]
        for name in self.streams():
            with contextlib.suppress(TimeoutError):
                # What a killed reader has left the server removes after 30 seconds.
                wait_until(partial(self._no_passing_consumers, name), "no consumer", 90)
            if left := self._passing_consumers(name):
                wrong.append(f"consumers are left on {name}: {sorted(left)}")
        wrong += self._unread()
        wrong += [] if self.scenario.losing else self._untaken()
        for server in self.servers:
            with contextlib.suppress(TimeoutError):
                wait_until(lambda server=server: not client_names(server), "no client", 30)  # type: ignore[misc]
            if clients := client_names(server):
                wrong.append(f"connections are left: {clients}")
        return wrong

    def _passing_consumers(self, stream: str) -> set[str]:
        """The consumers of a stream that a task or a question has made."""
        return set(consumers(self.ask_url, stream)) - _DURABLE

    def _no_passing_consumers(self, stream: str) -> bool:
        return not self._passing_consumers(stream)

    def _unread(self) -> list[str]:
        """The streams that keep messages which their query has committed, in words."""
        held = [
            name for query in self.scenario.queries if query.source.held for name in query.streams
        ]

        def kept() -> dict[str, int]:
            return {
                name: kept
                for name in held
                if (kept := self.api(f"STREAM.INFO.{name}")["state"]["messages"])
            }

        with contextlib.suppress(TimeoutError):
            # Where leaders change while a message is acknowledged, it stays until the stream's
            # leader compares what its consumers need, which it does now and then
            # (`checkInterestState`, nats-server #5270 and #6673).
            wait_until(lambda: not kept(), "no message", 120)
        return [
            f"{count} messages are left on {name}, the first of them "
            f"{self.api(f'STREAM.MSG.GET.{name}', {'seq': 1, 'next_by_subj': '>'})}: "
            f"{look_at(self.api, name)}; "
            f"{self.api(f'CONSUMER.INFO.{name}.spark')}"
            for name, count in kept().items()
        ]

    def _untaken(self) -> list[str]:
        """The faults in the share that other clients have taken from work queues, in words."""
        wrong = []
        for query in self.scenario.queries:
            if query.shares:
                kept, sent = (
                    {
                        body
                        for body, subject in messages[query.streams[0]].items()
                        if not query.reads(subject)
                    }
                    for messages in (self.load.stored, self.load.sent)
                )
                taken = violations(kept, sent, self.clients.taken[query.name], "at-least-once")
                wrong += [f"{query.name}, what others took: {fault}" for fault in taken]
        return wrong

    def streams(self) -> set[str]:
        """The names of the streams that there are."""
        return set(self.api("STREAM.NAMES")["streams"])
