"""The table of logins, tried with real servers: at the start, and while something is read or
written.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import queue
import re
import select
import signal
import socket
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jetstream.admin import JetStreamAdmin, StreamConfig
from spark_jetstream.client.addresses import Addresses
from spark_jetstream.client.pool import close_all, connect
from spark_jetstream.client.requests import Requests
from spark_jetstream.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    JetStreamError,
    UntrustedServer,
)
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.testing import NatsServer
from spark_jetstream.testing.process import PortLease
from tests.client.logins import CHANGES, RIGHT, WAYS, WRONG_CASES, Case, Change, Kind, Realm
from tests.support.calls import reading, store, writer_of
from tests.support.client import set_timing
from tests.support.command import run_command, succeed
from tests.support.identities import user
from tests.support.jobs import Job
from tests.support.proxy import WireProxy
from tests.support.queries import available_now, batch, streaming
from tests.support.reading import QUICK, SETTINGS, pulls, wait_until
from tests.support.sinking import Sink, rows

pytestmark = [
    pytest.mark.usefixtures("no_connection_left"),
    pytest.mark.filterwarnings(
        "ignore:parameter 'timeout' of type 'float':DeprecationWarning"
    ),  # nats-py's
]

Ports = tuple[int, int]
Caplog = pytest.LogCaptureFixture
ACCOUNT = ("account", "info", "--json")
PATIENT = {"connectTimeout": "10m", "retryTimeout": "10m"}
"""What cannot pass by itself is not tried again for ten minutes."""


def made(kind: Kind, realm: Realm, leaving: ExitStack) -> tuple[NatsServer, Ports]:
    """A running server, and its ports for NATS and for WebSocket."""
    lease = PortLease()
    leaving.callback(lease.release)
    file = realm.folder / "server.conf"
    file.write_text(realm.config(kind, lease.port))
    # The server looks for it below the folder of its configuration.
    server = leaving.enter_context(NatsServer(config=f'include "{"../" * 30}{file}"'))
    return server, (server.port, lease.port)


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Realm:
    return Realm(tmp_path_factory.mktemp("realm"))


@pytest.fixture(scope="module")
def ports(realm: Realm) -> Iterator[Callable[[Kind], Ports]]:
    """A function that starts a server, once, and returns its ports."""
    known: dict[Kind, Ports] = {}
    with ExitStack() as leaving:

        def of(kind: Kind) -> Ports:
            if kind not in known:
                known[kind] = made(kind, realm, leaving)[1]
                # With what the cases look for, where one of the ways leads there.
                for way in [name for name, way in WAYS.items() if way.server == kind][:1]:
                    with JetStreamAdmin(**realm.options(way, {}, known[kind])) as admin:
                        admin.streams.create(
                            StreamConfig(name="S", subjects=("s.>",), storage="memory")
                        )
                        admin.publish("s.a", b"")
            return known[kind]

        yield of


def each_way(cases: tuple[Case, ...]) -> list[Any]:
    return [
        pytest.param(way, case, id=f"{way}: {case.what}") for case in cases for way in case.ways
    ]


def matches(said: str, says: str) -> bool:
    return re.fullmatch(re.escape(says).replace("…", ".*"), said) is not None


def check_error(error: JetStreamError, case: Case | Change) -> None:
    assert type(error) is case.error, error
    assert matches(str(error), case.says), error


def check_secrets(realm: Realm, *texts: str) -> None:
    assert [secret for secret in realm.secrets for text in texts if secret in text] == []


@pytest.mark.parametrize(("way", "case"), each_way(RIGHT))
def test_a_right_login(
    way: str, case: Case, realm: Realm, ports: Callable[[Kind], Ports], caplog: Caplog
) -> None:
    caplog.set_level(logging.DEBUG)
    given = realm.options(way, case.given, ports(WAYS[way].server._replace(**case.server)))
    with JetStreamAdmin(**given) as admin:
        admin.streams.create(StreamConfig(name="R", subjects=("r.>",), storage="memory"))
        write({**given, "stream": "R"}, "r.a", 3)
        assert [row.sequence for row in reading({**given, "stream": "R"})] == [1, 2, 3]
        admin.streams.delete("R")
        shown = repr(admin.options)
    command = succeed(*ACCOUNT, *(f"-o{name}={value}" for name, value in given.items()))
    assert command.json["limits"]
    check_secrets(realm, caplog.text, shown, command.out, command.err)


@pytest.mark.parametrize(("way", "case"), each_way(WRONG_CASES))
def test_a_wrong_login(
    way: str, case: Case, realm: Realm, ports: Callable[[Kind], Ports], caplog: Caplog
) -> None:
    """It is refused for good by the first answer: what cannot pass by itself would be tried again
    for ten minutes.
    """
    caplog.set_level(logging.DEBUG)
    texts = []
    for use in case.uses:
        given = realm.options(way, case.given, ports(WAYS[way].server._replace(**case.server)))
        with WireProxy(given["servers"]) as proxy:
            patient = {**given, **PATIENT, "servers": proxy.url, "stream": "S"}
            with pytest.raises(JetStreamError) as caught:
                attempt(use, patient)
        # A machine that stands still at that moment lets the client begin another attempt.
        assert proxy.connections <= 2 or not case.tried
        check_error(caught.value, case)
        if case.error is UntrustedServer:  # nothing is said in the clear
            texts.append(proxy.client_bytes.decode("latin-1"))
        texts += ["".join(traceback.format_exception(caught.value)), repr(caught.value)]
        if case.error in (AuthenticationFailed, UntrustedServer):
            command = run_command(*ACCOUNT, *(f"-o{name}={value}" for name, value in given.items()))
            assert (command.code, command.out) == (3, "")
            assert matches(command.err.removeprefix("spark-jetstream: ").rstrip("\n"), case.says), (
                command.err
            )
            texts.append(command.err)
    gc.collect()
    assert "Unclosed" not in caplog.text  # what aiohttp says of a session that is dropped
    check_secrets(realm, caplog.text, *texts)


@pytest.mark.full
def test_a_file_that_was_sent_with_the_job(
    spark: SparkSession, realm: Realm, ports: Callable[[Kind], Ports], tmp_path: Path
) -> None:
    given = realm.options("NKey", {}, ports(WAYS["NKey"].server))
    file = tmp_path / f"sent-{realm.me.public}.nk"
    file.write_text(realm.me.seed)
    spark.sparkContext.addFile(str(file))
    # The last is a path that it had where the job was submitted.
    for name in (file.name, f"/not/here/{file.name}"):
        assert batch(spark, given["servers"], "S", "data binary", nkeySeedFile=name).count() == 1
    frame = streaming(spark, given["servers"], "S", "data binary", nkeySeedFile=file.name)
    assert len(available_now(frame, tmp_path / "checkpoint").rows) == 1


def test_a_greeting_that_is_there_before_tls_begins(
    realm: Realm, ports: Callable[[Kind], Ports], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handshake after it would succeed, and the client wait for a greeting that was before it."""
    connect = Addresses.connect

    async def late(self: Addresses, uri: Any, seconds: float) -> tuple[socket.socket, float]:
        wire, patience = await connect(self, uri, seconds)
        while not select.select([wire], [], [], 0)[0]:
            await asyncio.sleep(0.01)
        return wire, patience

    monkeypatch.setattr(Addresses, "connect", late)
    given = realm.options("TLS first", {}, ports(WAYS["TLS first"].server._replace(first=False)))
    with pytest.raises(
        UntrustedServer, match="the server does not begin with TLS, which option tlsHandshakeFirst"
    ):
        attempt("r", {**given, **PATIENT, "stream": "S"})


def attempt(use: str, given: dict[str, str]) -> None:
    if use == "r":
        list(reading(given))
    else:
        write(given, "s.a", 1)


def write(given: dict[str, str], subject: str, count: int) -> None:
    table = rows(subject, 0, count)
    store(writer_of("b", given, table.schema), [table])


# While a query runs


COUNT = 300
REVOKED = "user authentication revoked"
RETRY = 90.0  # seconds of retryTimeout: far longer than a refusal may take to be reported


class Running:
    """A server, the options that log in there, and a stream S with messages."""

    def __init__(self, way: str, folder: Path, leaving: ExitStack) -> None:
        self._kind = WAYS[way].server
        self.realm = Realm(folder)
        self.server, self._ports = made(self._kind, self.realm, leaving)
        self.given = {
            **QUICK,
            **self.realm.options(way, {}, self._ports),
            "retryTimeout": f"{RETRY:g}s",
        }
        self.where = ConnectionOptions.from_spark(self.given)
        with JetStreamAdmin(**self.realm.options(way, {}, self._ports)) as admin:
            for name in "ST":
                admin.streams.create(StreamConfig(name=name, subjects=(f"{name.lower()}.>",)))
        write({**self.given, "stream": "S"}, "s.a", COUNT)
        close_all()

    def change(self, *, restart: bool = False) -> None:
        """Let the server know what has changed."""
        self.realm.write("server.conf", self.realm.config(self._kind, self._ports[1]))
        if restart:
            self.server.restart()
            return
        told = self.server.log.count("Reloaded server configuration")
        os.kill(self.server.pid, signal.SIGHUP)
        wait_until(
            lambda: self.server.log.count("Reloaded server configuration") > told, "a reload"
        )

    def ask(self, where: ConnectionOptions | None = None, stream: str = "S") -> dict[str, Any]:
        requests = Requests(lambda patience: connect(where or self.where, patience=patience), RETRY)
        return requests.ask(jsapi.STREAM_INFO, stream, context="ask")

    def inline(self) -> dict[str, str]:
        """The options with the client's certificate and key themselves."""
        return self.realm.options("mutual TLS", RIGHT[-2].given, self._ports)

    def count(self, stream: str) -> int:
        return int(self.ask(stream=stream)["state"]["messages"])


def asking(running: Running) -> Iterator[object]:
    """The planner's requests; there is no end of them."""
    while True:
        yield running.ask()


def pulling(running: Running) -> Iterator[object]:
    """A task that reads."""
    part = SequenceRange(
        stream="S", first=1, end=COUNT + 1, count=COUNT, created=running.ask()["created"]
    )
    found: list[int] = []
    for messages in pulls(running.where, part, replace(SETTINGS, batch=10, retry_timeout=RETRY)):
        found += messages.sequences.tolist()
        yield None
    assert found == list(range(1, COUNT + 1))


def publishing(running: Running) -> Iterator[object]:
    """A task that writes two batches, each once it is asked for."""
    events: queue.Queue[object] = queue.Queue()
    go_on = threading.Semaphore(0)

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(2):
            go_on.acquire()
            yield rows("s.a", number, 1)
            events.put(None)

    sink = Sink(**running.given, maxInFlight=1)
    with ThreadPoolExecutor(1) as one:
        task = one.submit(sink.write, batches())
        task.add_done_callback(lambda _: events.put(None))
        try:
            for _ in range(2):
                go_on.release()
                event = events.get()
                if task.done():
                    break
                yield event
        finally:
            go_on.release(2)
        task.result()
    assert running.count("S") == COUNT + 2


USES = {"r": pulling, "w": publishing, "a": asking}


def begun(running: Running, change: Change, use: str, caplog: Caplog) -> Iterator[object]:
    """The events of a use after the first one.

    A JWT that expires by itself lives long enough for that.
    """
    for lifetime in (2.0 * 2**number for number in range(8)):
        if change.step is None:
            running.realm.write("right.creds", running.realm.operator.credentials(user(), lifetime))
        events = USES[use](running)
        try:
            next(events)
            return events
        except AuthenticationFailed:
            assert change.step is None
            caplog.clear()
    raise AssertionError("never begun")


@pytest.mark.parametrize(
    ("use", "change"),
    [
        pytest.param(
            use,
            change,
            id=f"{change.way}: {change.what}, {use}",
            marks=[] if quick else pytest.mark.full,
        )
        for number, change in enumerate(CHANGES)
        for place, use in enumerate(change.uses)
        for quick in [change.step is not None and number % len(change.uses) == place]
    ],
)
def test_a_login_that_is_withdrawn_or_renewed(
    use: str, change: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Caplog
) -> None:
    """It is no outage, which would last as long as retryTimeout."""
    set_timing(monkeypatch, refused_for=0.3)
    caplog.set_level(logging.DEBUG)
    with ExitStack() as leaving:
        running = Running(change.way, tmp_path, leaving)
        events = begun(running, change, use, caplog)
        if change.step is None:
            wait_until(
                lambda: "refused the credentials" in caplog.text, "the end of the JWT", timeout=600
            )
        else:
            change.step(running.realm)
            running.change(restart=change.restart)
        if change.then is not None:
            wait_until(
                lambda: "option credentialsFile holds no user JWT" in caplog.text,
                "a login with what is there",
            )
            change.then(running.realm)
        if change.error is None:
            for _ in events:  # to the end, where it asserts that nothing was lost
                pass
        else:
            with pytest.raises(JetStreamError) as caught:
                list(events)
            check_error(caught.value, change)
            assert (REVOKED in str(caught.value)) == (REVOKED in caplog.text)
            check_secrets(running.realm, repr(caught.value))
        check_secrets(running.realm, caplog.text)


def test_a_server_that_refuses_for_a_moment_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_timing(monkeypatch, refused_for=600.0)
    with ExitStack() as leaving:
        running = Running("password", tmp_path, leaving)
        first = connect(running.where)
        users = running.realm.users.copy()
        running.realm.no_user()
        running.change(restart=True)
        running.server.wait_for_log("authentication error", timeout=60)
        running.realm.users = users
        running.change()
        assert running.ask()
        assert connect(running.where) is first


def test_one_of_two_servers_that_refuses_stops_nobody(tmp_path: Path) -> None:
    with ExitStack() as leaving:
        both = []
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            both.append(Running("password", tmp_path / name, leaving))
        where = ConnectionOptions.from_spark(
            {**both[0].given, "servers": ",".join(each.server.url for each in both)}
        )
        for running in both:
            users = running.realm.users.copy()
            running.realm.no_user()
            running.change()
            assert running.ask(where)
            close_all()  # and for a connection that is new
            assert running.ask(where)
            running.realm.users = users
            running.change()


def test_a_server_that_refuses_while_the_other_is_down_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Caplog
) -> None:
    """The other one may accept the credentials.

    A caller that does not wait for it is told of the refusal at once.
    """
    set_timing(monkeypatch, refused_for=0.1)
    caplog.set_level(logging.INFO)
    with ExitStack() as leaving:
        both = []
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            both.append(Running("password", tmp_path / name, leaving))
        refusing, down = both
        urls = ",".join(running.server.url for running in both)
        where = ConnectionOptions.from_spark({**down.given, "servers": urls})
        first = connect(where)
        down.server.stop()
        refusing.realm.no_user()
        refusing.change()
        known = caplog.text.count("refused the credentials")
        wait_until(
            lambda: caplog.text.count("refused the credentials") >= known + 4, "some refusals"
        )
        with pytest.raises(
            ConnectionFailed, match=r"lost and not made again within .*refused the credentials"
        ):
            first.wait(0.1)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(first.wait, 60)
            down.server.start()
            waiting.result()
        assert connect(where) is first
        down.server.stop()
        close_all()
        with pytest.raises(AuthenticationFailed):
            connect(where)


@pytest.mark.full
def test_spark_goes_on_with_renewed_credentials_and_shows_no_secret(tmp_path: Path) -> None:
    """A query from a server with a `.creds` file to a server with a password and a key that are
    options themselves.
    """
    with ExitStack() as leaving:
        for name in ("source", "sink", "events"):
            (tmp_path / name).mkdir()
        source = Running("credentials", tmp_path / "source", leaving)
        sink = Running("mutual TLS", tmp_path / "sink", leaving)
        to = {**sink.inline(), "stream": "T", "subject": "t.a"}
        options = {
            **source.given,
            "stream": "S",
            **{f"sink.{name}": value for name, value in to.items()},
        }
        conf = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": str(tmp_path / "events"),
            "spark.log.level": "DEBUG",
        }
        every = {"processingTime": "1 second"}
        job = leaving.enter_context(
            Job(tmp_path / "job", {"query": options}, trigger=every, conf=conf)
        )

        def stored(count: int) -> bool:
            time.sleep(0.5)  # the two cores are for Spark
            return sink.count("T") == count

        job.wait(lambda: stored(COUNT), "the first rows", 240)
        source.realm.renew_and_revoke()
        source.change()
        write({**source.given, "stream": "S"}, "s.a", COUNT)
        job.wait(lambda: stored(2 * COUNT), "the other rows", 240)
        texts = [*job.processes().values()]
        job.finish()
        assert job.errors() == []
        read, written = (
            Counter(row.data for row in reading({**given, "stream": stream}))
            for given, stream in ((source.given, "S"), (sink.given, "T"))
        )
        assert read == written
        paths = [*(tmp_path / "job").rglob("*"), *(tmp_path / "events").rglob("*")]
        texts += [
            path.read_text(errors="replace")
            for path in paths
            if path.is_file() and path.name != "work.json"
        ]
        for sign in (
            "DEBUG",
            "SparkListenerEnvironmentUpdate",
            "== Physical Plan ==",
            "numInputRows",
        ):
            assert any(sign in text for text in texts), sign
        for server in (source, sink):
            check_secrets(server.realm, *texts)
