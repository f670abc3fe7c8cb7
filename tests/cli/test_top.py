"""``spark-jetstream top`` on a real server: tables, JSON, outages, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_jetstream.admin import DEFAULT_CONSUMER, JetStreamAdmin
from spark_jetstream.cli import top
from spark_jetstream.client.pool import close_all
from spark_jetstream.errors import ServerBusy
from spark_jetstream.protocol.conventions import RUN, SINCE
from spark_jetstream.testing import NatsCluster, NatsServer
from tests.cli.conftest import Command, refused
from tests.support.command import run_command, running
from tests.support.publish import Message, Publisher, Tap
from tests.support.reading import wait_until

GROUP = ("top",)
SINCE_WHEN = "2026-03-01T12:00:00.123456789Z"
QUICK = ("--interval", "100ms")
IMPATIENT = (*QUICK, "--timeout", "500ms", "-o", "connectTimeout=500ms")


@pytest.fixture
def stream(
    name: str, admin: JetStreamAdmin, publisher: Publisher, query_consumer: Callable[..., None]
) -> str:
    """Six messages, a consumer that has one of them, and that of a Spark query."""
    admin.streams.create(name, subjects=[name], storage="memory")
    publisher.publish(Message(name, b"%d" % at) for at in range(6))
    admin.consumers.create(name, DEFAULT_CONSUMER, durable_name="worker")
    admin.consumers.next(name, "worker", ack="none")
    query_consumer(name, "query", metadata={RUN: "r", SINCE: SINCE_WHEN})
    return name


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """A function that takes what happens between two looks of a command."""

    def between(work: Callable[[], object]) -> None:
        def wait(seconds: float) -> None:
            work()

        monkeypatch.setattr(top, "wait", wait)

    return between


def test_once_prints_two_tables(
    stream: str, run: Command, publisher: Publisher, busy: Callable[..., None]
) -> None:
    busy(lambda: publisher.publish(Message(stream, b"x") for _ in range(3)))
    ran = run(stream, "--once")
    assert (ran.code, ran.err) == (0, "")
    first, of_stream, _, second, query, worker = ran.rows
    assert first == ["stream", "messages", "bytes", "messages/s", "bytes/s", "consumers"]
    assert (of_stream[:2], of_stream[-1]) == ([stream, "9"], "2")
    rate = float(of_stream[-4 if of_stream[-2].isalpha() else -3].replace(",", ""))
    assert rate > 0
    assert " ".join(second) == "stream consumer pending waiting for ack redelivered messages/s"
    assert query[:5] == [stream, "query", "9", "0", "0"]
    assert query[-4:] == ["Spark", "query", "since", SINCE_WHEN]
    assert worker == [stream, "worker", "8", "1", "0", "0.00"]


def test_json_once_is_one_document(stream: str, run: Command) -> None:
    ran = run(stream, "--once", "--json", *QUICK)
    data = ran.json
    (of_stream,) = data["streams"]
    assert (of_stream["stream"], of_stream["messages"], of_stream["message_rate"]) == (stream, 6, 0)
    assert [row["consumer"] for row in data["consumers"]] == ["query", "worker"]
    assert data["consumers"][0]["spark_since"] == SINCE_WHEN
    assert data["all_streams"] == 1


def test_without_a_terminal_it_prints_once(stream: str, run: Command) -> None:
    ran = run(stream, *QUICK)
    assert (ran.code, ran.rows[1][:2]) == (0, [stream, "6"])


def test_json_goes_on_until_it_is_interrupted(
    stream: str, publisher: Publisher, nats_server: NatsServer
) -> None:
    line = ("top", stream, *QUICK, "--json", "--server", nats_server.url)
    with running(*line) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["streams"][0]["messages"] == 6
        publisher.publish([Message(stream)])
        while json.loads(process.stdout.readline())["streams"][0]["messages"] != 7:
            continue
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_rows_and_order_are_chosen(
    admin: JetStreamAdmin, name: str, publisher: Publisher, run: Command
) -> None:
    for at, count in enumerate((1, 3, 2)):
        admin.streams.create(f"{name}{at}", subjects=[f"{name}{at}"], storage="memory")
        publisher.publish(Message(f"{name}{at}", b"x" * 100 * (4 - count)) for _ in range(count))
    three = [f"{name}{at}" for at in range(3)]

    def order(*options: object) -> list[str]:
        data = run(*three, "--once", "--json", *QUICK, *options).json
        assert data["all_streams"] == 3
        return [row["stream"] for row in data["streams"]]

    assert order("--sort", "messages") == [three[1], three[2], three[0]]
    assert order("--sort", "name", "--rows", 2) == three[:2]
    # Nothing is written now: the stream that was written last comes first.
    assert order() == [three[2], three[1], three[0]]
    ran = run(*three, "--once", "--rows", 1, *QUICK)
    assert "and 2 streams more" in ran.out


def test_consumers_of_hidden_streams_are_not_asked_for(
    admin: JetStreamAdmin, name: str, nats_server: NatsServer, run: Command
) -> None:
    for at in range(3):
        admin.streams.create(f"{name}{at}", subjects=[f"{name}{at}"], storage="memory")
        admin.consumers.create(f"{name}{at}", DEFAULT_CONSUMER, durable_name="c")
    with Tap(nats_server.url) as tap:
        run("--once", *QUICK, "--sort", "consumers", "--rows", 1)
        asked = [
            message.subject for message in tap.heard() if message.subject.startswith("$JS.API.")
        ]
    assert asked.count("$JS.API.STREAM.LIST") == 2
    assert len([subject for subject in asked if ".CONSUMER.LIST." in subject]) == 2
    assert len(asked) == 4


def test_a_stream_that_goes_and_comes_back(
    admin: JetStreamAdmin, stream: str, run: Command, busy: Callable[..., None]
) -> None:
    def replace() -> None:
        admin.streams.delete(stream)
        admin.streams.create(stream, subjects=[stream], storage="memory")
        admin.publish(stream, b"")

    busy(replace)
    (row,) = run(stream, "--once", "--json").json["streams"]
    assert (row["messages"], row["message_rate"], row["byte_rate"]) == (1, None, None)
    busy(lambda: admin.streams.delete(stream))
    data = run(stream, "--once", "--json").json
    assert (data["streams"], data["consumers"]) == ([], [])
    refused(run(stream, "--once"), 1, f"cannot look at stream {stream}: stream not found")


def test_an_outage_is_noted_and_does_not_end_it(
    nats_server_factory: Callable[..., NatsServer],
) -> None:
    server = nats_server_factory()
    with running("top", "--json", *IMPATIENT, "--server", server.url) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["streams"] == []
        server.stop()
        assert re.match(r"no numbers since \d\d:\d\d:\d\d: ", process.stderr.readline())
        server.start()
        assert json.loads(process.stdout.readline())["streams"] == []
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def _listed(admin: JetStreamAdmin) -> list[str]:
    """Return the streams for which servers answer."""
    names = []
    with contextlib.suppress(ServerBusy):
        for info in admin.streams.infos():
            names.append(info.config.name)
    return names


def test_a_stream_without_a_leader_hides_no_other_one() -> None:
    with NatsCluster() as cluster:
        try:
            with JetStreamAdmin(servers=cluster.url) as admin:
                admin.streams.create("AWAY", subjects=["away"])
                admin.streams.create("HERE", subjects=["here"], num_replicas=3)
                cluster.kill(cluster.leader_of("AWAY"))
                cluster.wait_ready()
                # For some milliseconds after an election the servers may not hear the new leader.
                wait_until(lambda: _listed(admin) == ["HERE"], "the leader of HERE answers")
            ran = run_command("top", "--once", "--json", *QUICK, url=cluster.url)
            error = "cannot list the streams as a whole: no server answered for AWAY"
            assert (ran.code, ran.err) == (1, f"{error}\n")
            assert [row["stream"] for row in ran.json["streams"]] == ["HERE"]
            assert ran.json["unanswered"] == [error]
            assert ran.json["streams"][0]["message_rate"] == 0
            # Nothing at all is an error.
            with JetStreamAdmin(servers=cluster.url) as admin:
                admin.streams.delete("HERE")
            refused(run_command("top", "--once", *QUICK, url=cluster.url), 1, error)
        finally:
            close_all()


def test_no_server_at_the_beginning_ends_it_with_3() -> None:
    with running("top", "--once", "--server", "nats://127.0.0.1:1") as process:
        assert process.wait(60) == 3


def test_a_short_interval_is_refused(run: Command) -> None:
    refused(run("--interval", "10ms"), 2, "10ms is less than 100ms")


@pytest.fixture
def terminal() -> Iterator[Callable[..., Any]]:
    """A function that runs a command on a terminal of this many lines; its process and its output."""
    opened: list[tuple[int, subprocess.Popen[bytes]]] = []

    def run(lines: int, *arguments: object) -> tuple[subprocess.Popen[bytes], int]:
        ours, theirs = pty.openpty()
        size = {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": str(lines)}
        process = subprocess.Popen(
            [sys.executable, "-m", "spark_jetstream", *map(str, arguments)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, **size},
            start_new_session=True,
        )
        os.close(theirs)
        opened.append((ours, process))
        return process, ours

    yield run
    for ours, process in opened:
        process.kill()
        process.wait(60)
        os.close(ours)


def _read_until(ours: int, wanted: bytes, seen: bytes = b"") -> bytes:
    while wanted not in seen:
        seen += os.read(ours, 65536)
    return seen


def test_the_screen_is_refreshed_and_given_back(
    admin: JetStreamAdmin,
    name: str,
    nats_server: NatsServer,
    publisher: Publisher,
    terminal: Callable[..., Any],
) -> None:
    streams = [f"{name}{at:02}" for at in range(20)]
    for each in streams:
        admin.streams.create(each, subjects=[each], storage="memory")
    process, ours = terminal(
        16, "top", *streams, "--sort", "messages", *QUICK, "--server", nats_server.url
    )
    seen = _read_until(ours, b"and 16 streams more")
    assert b"\x1b[?1049h" in seen  # the other screen
    assert streams[3].encode() in seen
    assert streams[4].encode() not in seen
    publisher.publish([Message(streams[9])])
    _read_until(ours, streams[9].encode())
    process.send_signal(signal.SIGINT)
    _read_until(ours, b"\x1b[?1049l")
    assert process.wait(60) == 130
    close_all()


def test_the_screen_shows_an_outage(
    nats_server_factory: Callable[..., NatsServer], terminal: Callable[..., Any]
) -> None:
    server = nats_server_factory()
    with JetStreamAdmin(servers=server.url) as admin:
        admin.streams.create("KEPT", subjects=["kept"])
    process, ours = terminal(24, "top", *IMPATIENT, "--server", server.url)
    _read_until(ours, b"KEPT")
    server.stop()
    seen = _read_until(ours, b"no numbers since ")
    # The last numbers stay below the line of the outage.
    _read_until(ours, b"KEPT", seen[seen.index(b"no numbers since ") :])
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
