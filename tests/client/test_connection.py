"""Connections against the real server: one for each set of options and process, and what becomes of
them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import os
import re
import socket
import ssl
import threading
import time
import types
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme

from spark_jetstream.client import deadline, nats_py, pool
from spark_jetstream.client.connection import Connection, Question
from spark_jetstream.client.greeting import NotEncrypted
from spark_jetstream.client.pool import close_all, connect
from spark_jetstream.client.requests import Requests, stream_info
from spark_jetstream.client.tcp import TcpWire
from spark_jetstream.client.wire import MOST_UNREAD
from spark_jetstream.errors import (
    ApiError,
    ConnectionFailed,
    ConsumerLost,
    JetStreamError,
    NoResponders,
    PermissionDenied,
    RequestTimeout,
    StreamNotFound,
)
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.stream import SequenceRange, StreamSummary
from spark_jetstream.protocol.wire import ApiReply
from spark_jetstream.testing import NatsServer
from spark_jetstream.testing.process import LOOPBACK, PortLease
from tests.support.client import forks, in_child, set_timing, tls_config, unowned_wire
from tests.support.proxy import WireProxy
from tests.support.publish import Message, Publisher
from tests.support.reading import (
    SETTINGS,
    create,
    fill,
    options,
    part_of,
    pulls,
    sequences,
    wait_until,
)

INFO = "$JS.API.INFO"
NOWHERE = "nats://127.0.0.1:1"  # nobody listens there


pytestmark = pytest.mark.usefixtures("no_connection_left")


def account(where: ConnectionOptions | str, patience: float = 0) -> dict[str, Any]:
    given = options(where) if isinstance(where, str) else where
    requests = Requests(lambda _: connect(given), patience)
    return requests.call(
        lambda connection: connection.api(INFO, b"", context="look at the account")
    )


def clients(server: NatsServer) -> int:
    return int(server.monitor("/connz")["num_connections"])


# The pool


def test_equal_options_share_a_connection_until_it_is_closed(server: NatsServer) -> None:
    first = connect(options(server.url))
    assert first.server_version >= (2, 12, 0)
    assert connect(options(server.url)) is first
    assert clients(server) == 1
    other = connect(options(server.url, inboxPrefix="_OTHER"))
    assert other is not first
    assert clients(server) == 2
    first.close()
    assert not first.usable
    second = connect(options(server.url))
    assert second is not first
    account(server.url)
    close_all()
    wait_until(lambda: clients(server) == 0, "the end of all connections")
    assert not other.usable
    assert not second.usable
    account(server.url)
    assert clients(server) == 1


def test_a_connection_that_was_closed_is_not_usable_whatever_the_client_library_says(
    server: NatsServer,
) -> None:
    connection = connect(options(server.url))
    connection.close()
    client = connection._login.client
    client._status = client.CONNECTED  # by a task that was connecting, and was cancelled too late
    assert not connection.usable


def test_close_all_lets_the_last_requests_through(server: NatsServer) -> None:
    create(server.url, "S")
    fill(server.url, "S", 10)
    for _ in range(5):
        sequences(pulls(server.url, part_of(server.url, "S")))
    close_all()
    with Publisher(server.url) as publisher:
        # The server may answer this connection before it reads the end of the other one. It deletes
        # consumers by itself after 30 seconds.
        wait_until(
            lambda: not publisher.api("CONSUMER.NAMES.S").get("consumers"),
            "the end of the consumers",
            20.0,
        )


def test_closing_cuts_a_reader_off(server: NatsServer) -> None:
    connection = connect(options(server.url))
    with connection.inbox() as inbox:
        connection.close()
        with pytest.raises(ConsumerLost, match="cut"):
            inbox.get(60)
    with connection.inbox() as late, pytest.raises(ConsumerLost, match="cannot subscribe to"):
        late.get(60)


def test_a_caller_that_stops_waiting_does_not_end_anothers_attempt(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_timing(monkeypatch, late=0.0)
    with WireProxy(server.url) as proxy, ThreadPoolExecutor(1) as threads:
        proxy.stall()
        given = options(proxy.url, connectTimeout="500ms")
        first = threads.submit(connect, given, patience=60.0)
        wait_until(lambda: given in pool._opening, "the attempt")
        with pytest.raises(ConnectionFailed, match=r"was not made within 0\.5 s"):
            connect(given, patience=0.1)
        proxy.unstall()
        assert first.result() is connect(given)


def test_an_attempt_that_does_not_end_is_given_up(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    given = options(server.url)
    with monkeypatch.context() as stuck:
        set_timing(stuck, late=0.0)
        stuck.setattr(Connection, "open", wait)
        with pytest.raises(ConnectionFailed, match="was not made within"):
            connect(options(server.url, connectTimeout="100ms"))
    wait_until(lambda: not pool._opening, "the end of the attempt")
    account(given)


@pytest.mark.parametrize("made", [True, False])
def test_an_interrupt_leaves_no_connection_that_nobody_closes(
    made: bool, server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = Future.result
    with WireProxy(server.url) as proxy:

        def interrupted(future: Future[Any], timeout: float | None = None) -> Any:
            if future in pool._opening.values():
                proxy.wait(lambda: proxy.open_connections == 1)
                raise KeyboardInterrupt
            return result(future, timeout)

        proxy.stall()
        given = options(proxy.url)
        with monkeypatch.context() as interrupting:
            interrupting.setattr(Future, "result", interrupted)
            with pytest.raises(KeyboardInterrupt):
                connect(given)
        if made:
            proxy.unstall()
            account(given)
        close_all()
        proxy.unstall()
        proxy.wait(lambda: proxy.open_connections == 0)
        assert not pool._pool


def test_close_all_ends_the_attempts(server: NatsServer) -> None:
    with WireProxy(server.url) as proxy, ThreadPoolExecutor(1) as threads:
        proxy.stall()
        given = options(proxy.url)
        opening = threads.submit(connect, given)
        proxy.wait(lambda: proxy.open_connections == 1)
        close_all()
        with pytest.raises(ConnectionFailed, match="was closed while it was opened"):
            opening.result()
        proxy.unstall()
        account(given)


def test_a_connection_that_is_made_while_all_are_closed(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, close, given = Connection.open, Connection.close, options(server.url)

    async def open_and_close_all(connection: Connection, *args: Any, **more: Any) -> None:
        await make(connection, *args, **more)
        close_all()

    with monkeypatch.context() as closing:
        closing.setattr(Connection, "open", open_and_close_all)
        with pytest.raises(ConnectionFailed, match="was closed while it was opened"):
            connect(given)
    wait_until(lambda: clients(server) == 0, "the end of the connection")
    others: list[Connection] = []

    def close_and_open(connection: Connection) -> None:
        others.append(connect(options(server.url, inboxPrefix="_OTHER")))
        close(connection)

    connect(given)
    with monkeypatch.context() as opening:
        opening.setattr(Connection, "close", close_and_open)
        close_all()
    assert others == [connect(options(server.url, inboxPrefix="_OTHER"))]


def test_a_thread_that_is_late_puts_nothing_over_a_newer_connection(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, newer, result = options(server.url), list[Connection](), Future.result

    def late(future: Future[Any], timeout: float | None = None) -> Any:
        found = result(future, timeout)
        if isinstance(found, Connection) and not newer:
            monkeypatch.undo()
            close_all()
            newer.append(connect(given))
        return found

    monkeypatch.setattr(Future, "result", late)
    assert not connect(given).usable
    assert [connect(given)] == newer


@forks
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_forked_child_has_a_connection_of_its_own(tls: bool, tmp_path: Path) -> None:
    with NatsServer(http_monitor=True, config=tls_config(tmp_path) if tls else None) as server:
        given = options(server.url, **({"tlsCaFile": str(tmp_path / "ca.pem")} if tls else {}))
        connection = connect(given)

        def work() -> tuple[int, int]:
            gc.collect()
            account(given)
            mine = connect(given)
            close_all()
            gc.collect()
            return os.getpid(), int(mine is not connection)

        pid, different = in_child(work)
        assert pid != os.getpid()
        assert different
        # The parent's connection was not touched by the end of the child's, nor by that of the
        # child.
        wait_until(lambda: clients(server) == 1, "the end of the child's connection")
        account(given)
        assert connect(given) is connection
        assert connection.reconnects == 0


@forks
@pytest.mark.parametrize(
    "place", [lambda work: work(), in_child], ids=["here", "in a forked child"]
)
def test_a_server_that_is_down_holds_nobody_up(
    server: NatsServer, place: Callable[[Any], Any]
) -> None:
    down = options(NOWHERE, connectTimeout="60s")
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(connect, down), threads.submit(connect, down)]
        wait_until(lambda: all(future.running() for future in waiting), "the other threads")
        assert place(lambda: account(server.url))
        assert not any(future.done() for future in waiting)

        def ended() -> bool:
            close_all()
            return all(future.done() for future in waiting)

        wait_until(ended, "the end of the attempts")
        for future in waiting:
            with pytest.raises(ConnectionFailed):
                future.result(60)


# Several threads, and none


def test_many_threads(server: NatsServer) -> None:
    create(server.url, "S")
    fill(server.url, "S", 2000)
    part = part_of(server.url, "S")

    def work(number: int) -> list[int]:
        account(server.url)
        first = 1 + 100 * number
        mine = replace(part, first=first, end=first + 500, count=500)
        return sequences(pulls(server.url, mine, replace(SETTINGS, batch=100)))

    with ThreadPoolExecutor(8) as threads:
        read = list(threads.map(work, range(16)))
    assert read == [list(range(1 + 100 * number, 501 + 100 * number)) for number in range(16)]
    assert clients(server) == 1


def test_inside_a_running_event_loop(server: NatsServer) -> None:
    create(server.url, "S")
    fill(server.url, "S", 100)

    async def notebook() -> list[int]:
        account(server.url)
        return sequences(pulls(server.url, part_of(server.url, "S")))

    assert asyncio.run(notebook()) == list(range(1, 101))


def test_its_own_thread_must_not_wait(server: NatsServer) -> None:
    connection = connect(options(server.url))

    async def work() -> None:
        connection.request(INFO, b"", context="look")

    waiting = asyncio.run_coroutine_threadsafe(work(), connection._loop.loop)
    with pytest.raises(RuntimeError, match="own thread"):
        waiting.result(60)


# No server, or the wrong one


def test_no_server() -> None:
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1 within 2 s \(option servers\): "):
        connect(options(NOWHERE, connectTimeout="2s"))
    with pytest.raises(ConnectionFailed, match="nowhere"):
        connect(options("nats://nowhere.invalid:4222", connectTimeout="500ms"))


def test_closed_ports_are_final_only_where_no_server_is_starting(server: NatsServer) -> None:
    with pytest.raises(
        ConnectionFailed, match=r"localhost:2 \(option servers\): the connection was refused"
    ):
        connect(options(f"{NOWHERE},nats://localhost:2", connectTimeout="1m"), starting=False)
    account(connect(options(f"{NOWHERE},{server.url}"), starting=False).options)
    with WireProxy(server.url) as silent:
        silent.stall()
        one = options(f"{NOWHERE},{silent.url}", connectTimeout="500ms")
        with pytest.raises(ConnectionFailed, match=r"within 0\.5 s"):
            connect(one, starting=False)


def test_another_server_is_found_while_the_first_is_silent(server: NatsServer) -> None:
    with WireProxy(server.url) as silent, WireProxy(server.url) as other:
        silent_only = options(silent.url, requestTimeout="1s", connectTimeout="10s")
        given = silent_only.model_copy(update={"servers": (silent.url, other.url)})
        connection = connect(given)
        first = silent if silent.open_connections else other
        first.stall()
        account(given, patience=60)
        assert connection.reconnects == 1


def test_servers_that_have_left_a_cluster_are_forgotten() -> None:
    """In an outage each of them would be tried.

    A server that is named, or connected, is not forgotten.
    """
    lease = PortLease()
    route = f"nats://{LOOPBACK}:{lease.port}"
    member = ("--cluster_name", "c", "--cluster")
    with NatsServer(jetstream=False, args=(*member, route)) as first:
        connection = connect(options(f"{first.url},nats://localhost:{first.port}"))

        def known() -> set[int | None]:
            return {server.port for server in connection._login.client.servers}

        with NatsServer(
            jetstream=False, args=(*member, f"nats://{LOOPBACK}:-1", "--routes", route)
        ) as second:
            wait_until(lambda: known() == {first.port, second.port}, "the other server")
        wait_until(lambda: known() == {first.port}, "its end")
        assert len(connection._login.client.servers) == 2
    lease.release()


# Requests


def test_requests(server: NatsServer) -> None:
    create(server.url, "S")
    connection = connect(options(server.url))
    assert json.loads(connection.request(INFO, b"", context="look"))["type"].endswith(
        "account_info_response"
    )
    with pytest.raises(
        StreamNotFound, match="cannot look at stream NOPE: stream not found"
    ) as caught:
        connection.api("$JS.API.STREAM.INFO.NOPE", b"", context="look at stream NOPE")
    assert (caught.value.code, caught.value.err_code) == (404, 10059)
    with pytest.raises(ApiError, match="cannot make it"):
        connection.api("$JS.API.STREAM.CREATE.T", b"{", context="make it")
    replies = [
        connection.request("S.a", b"x", context="store", headers={"Nats-Msg-Id": "1"})
        for _ in range(2)
    ]
    assert ["duplicate" in json.loads(reply) for reply in replies] == [False, True]
    said = r"cannot look: nobody answers at \$JS\.hub\.API\.INFO.*domain and apiPrefix"
    with pytest.raises(NoResponders, match=said):
        connection.request("$JS.hub.API.INFO", b"", context="look")


def test_no_reply(server: NatsServer) -> None:
    connection = connect(options(server.url))
    said = r"cannot look: no reply within 0\.3 s \(option requestTimeout\)"
    # The server says nothing at all to a request that it does not know.
    with pytest.raises(RequestTimeout, match=said):
        connection.request("$JS.API.NOTHING", b"", context="look", timeout=0.3)
    assert connection.reconnects == 0
    account(server.url)


def test_waiting_for_a_connection_is_part_of_a_request(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect(options(server.url))

    async def wait(_: float) -> None:
        later = types.SimpleNamespace(monotonic=lambda: time.monotonic() + 100)
        monkeypatch.setattr(deadline, "time", later)

    monkeypatch.setattr(connection._login, "wait", wait)
    with pytest.raises(RequestTimeout, match="no reply within 60 s"):
        connection.request("$JS.API.NOTHING", b"", context="look", timeout=60.0)


def test_a_question_without_an_answer_is_asked_again(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream without a leader gives no reply, and a request that was sent meanwhile is lost."""
    set_timing(monkeypatch, ask_again=0.1)
    with WireProxy(server.url) as proxy:
        connection = connect(options(proxy.url, requestTimeout="30s"))
        proxy.drop_frames(b"account_info_response", 2)
        assert "memory" in connection.ask(INFO, b"", context="look at the account")
        # The third one too is sent again if its reply is late.
        assert proxy.client_bytes.count(b"PUB $JS.API.INFO") >= 3
        # A request that may change something is sent once. Its reply is of another kind than those
        # that may still come.
        proxy.drop_frames(b"stream_names_response", 1)
        with pytest.raises(RequestTimeout):
            connection.request("$JS.API.STREAM.NAMES", b"", context="list the streams", timeout=0.5)
        assert proxy.client_bytes.count(b"PUB $JS.API.STREAM.NAMES") == 1


def test_several_streams_are_looked_at_in_one_go(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_timing(monkeypatch, ask_again=0.1)
    for number, name in enumerate("ABC"):
        create(server.url, name)
        fill(server.url, name, number + 1)
    with WireProxy(server.url) as proxy:
        requests = Requests(lambda patience: connect(options(proxy.url), patience=patience), 5)
        looks = {name: f"look at {name}" for name in "CAB"}
        proxy.drop_frames(b"stream_info_response", 1)
        found = requests.streams(looks)
        states = [state for state in found.values() if isinstance(state, StreamSummary)]
        assert [*found] == [state.name for state in states] == list("CAB")
        assert [state.messages for state in states] == [3, 1, 2]
        # One reply was lost; others are asked again if they are late.
        assert proxy.client_bytes.count(b"PUB $JS.API.STREAM.INFO") >= 4
        found = requests.streams({"A": "look at A", "NOPE": "look at NOPE"})
        assert [type(each) for each in found.values()] == [StreamSummary, StreamNotFound]
        assert str(found["NOPE"]).startswith("cannot look at NOPE: ")
        # A connection that is cut fails them all, and they are sent again.
        proxy.drop_frames(b"stream_info_response", 3)
        asked = proxy.client_bytes.count(b"PUB $JS.API.STREAM.INFO")
        with ThreadPoolExecutor(1) as threads:
            looked = threads.submit(requests.streams, looks)
            proxy.wait(lambda: proxy.client_bytes.count(b"PUB $JS.API.STREAM.INFO") >= asked + 3)
            proxy.cut()
            assert list(looked.result()) == list("CAB")


def test_errors_that_pass_are_tried_again(server: NatsServer) -> None:
    given, tries = options(server.url), []
    create(server.url, "S")
    fill(server.url, "S", 3)
    requests = Requests(lambda patience: connect(given, patience=patience), 2.0)

    def succeed_late(connection: Connection) -> StreamSummary:
        tries.append(connection)
        if len(tries) < 3:
            raise ConnectionFailed("cut")
        return stream_info(connection, "S")

    state = requests.stream("S")
    assert (state.name, state.messages, state.last_seq) == ("S", 3, 3)
    assert requests.call(succeed_late).created == state.created
    assert len(tries) == 3
    assert requests.ask(jsapi.STREAM_NAMES, context="list the streams")["streams"] == ["S"]

    def fail(subject: str) -> None:
        def work(connection: Connection) -> None:
            tries.append(connection)
            connection.api(subject, b"", context="look")

        tries.clear()
        requests.call(work)

    with pytest.raises(NoResponders):
        fail("$JS.hub.API.INFO")
    assert len(tries) > 1
    with pytest.raises(StreamNotFound):
        fail("$JS.API.STREAM.INFO.NOPE")
    assert len(tries) == 1
    with pytest.raises(StreamNotFound, match=r"^cannot count what is there: "):
        requests.stream("NOPE", "count what is there")


def test_a_request_whose_reply_nobody_reads(server: NatsServer) -> None:
    with Publisher(server.url) as publisher:
        publisher.api("STREAM.CREATE.S", {"name": "S"})
        connect(options(server.url)).post("$JS.API.STREAM.DELETE.S")
        wait_until(lambda: not publisher.api("STREAM.NAMES")["streams"], "the end of the stream")


def test_a_request_whose_reply_nobody_reads_and_that_fails(
    strict: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    connection = connect(options(strict.url, user="ann", password="a"))
    connection.post("$JS.API.STREAM.INFO.S")
    refusal = 'NATS connection: permissions violation for publish to "$js.api.stream.info.s"'
    wait_until(lambda: refusal in caplog.messages, "the refusal")
    connection.close()
    connection.post("$JS.API.STREAM.DELETE.S")
    wait_until(
        lambda: "cannot publish to $JS.API.STREAM.DELETE.S: connection closed" in caplog.text,
        "the failure",
    )


PERMISSIONS = """authorization {
    users: [{ user: ann, password: a, permissions: { publish: { deny: "$JS.API.STREAM.INFO.>" } } }
            { user: bob, password: b, permissions: { subscribe: { deny: "_INBOX.>" } } }
            { user: carl, password: c, permissions: { subscribe: { deny: "deliver.>" } } }
            { user: dora, password: d, permissions: { publish: { deny: "$JS.API.STREAM.INFO.ORDERS_EU" } } }]
}"""


@pytest.fixture
def strict() -> Iterator[NatsServer]:
    """Ann may not look at streams, Bob may not receive at `_INBOX`, Carl not at `deliver`; Dora not
    look at one.
    """
    with NatsServer(config=PERMISSIONS) as server:
        yield server


def denied(connection: Any, work: Callable[[Any], object]) -> PermissionDenied:
    """The refusal, which must not be waited for in vain: then the request gets no reply."""
    with pytest.raises(PermissionDenied) as caught:
        work(connection)
    return caught.value


def test_a_request_that_is_not_permitted(strict: NatsServer) -> None:
    connection = connect(options(strict.url, user="ann", password="a"))
    for _ in range(2):
        error = denied(
            connection,
            lambda its: its.api("$JS.API.STREAM.INFO.Sales", b"", context="look at Sales"),
        )
        assert error.subject == "$JS.API.STREAM.INFO.Sales"
        assert (
            str(error)
            == "cannot look at Sales: the account may not publish to $JS.API.STREAM.INFO.Sales"
        )
    looks = [
        Question(f"$JS.API.STREAM.INFO.{name}", f"look at {name}") for name in ("Sales", "Stock")
    ]
    assert str(denied(connection, lambda its: its.ask_all(looks))) == str(error)
    account(connection.options)


def test_an_inbox_that_is_not_permitted(strict: NatsServer) -> None:
    connection = connect(options(strict.url, user="bob", password="b"))
    # The client library subscribes once and never again: later requests must not wait in vain.
    for _ in range(3):
        error = denied(connection, lambda its: its.request(INFO, b"", context="look"))
        assert str(error.subject).lower().startswith("_inbox.")
        assert "option inboxPrefix" in str(error)
    with connection.inbox() as inbox:
        error = denied(inbox, lambda its: its.get(60))
        assert str(error.subject).lower().startswith("_inbox.")
    account(options(strict.url, user="bob", password="b", inboxPrefix="_BOB"))


def test_a_refused_publish_concerns_no_inbox_that_published_to_the_beginning_of_its_subject(
    strict: NatsServer,
) -> None:
    connection = connect(options(strict.url, user="dora", password="d"))
    with connection.inbox() as orders, connection.inbox() as others:
        orders.publish("$JS.API.STREAM.INFO.ORDERS", b"", 1)
        others.publish("$JS.API.STREAM.INFO.ORDERS_EU", b"", 1)
        error = denied(others, lambda its: its.get(60))
        assert error.subject == "$JS.API.STREAM.INFO.ORDERS_EU"
        assert isinstance(orders.receive(60, "1"), ApiReply)
        assert orders.receive(0) is None


def test_a_refused_subscription_that_was_closed_concerns_no_request(strict: NatsServer) -> None:
    with WireProxy(strict.url) as proxy:
        connection = connect(options(proxy.url, user="carl", password="c"))
        refused = proxy.awaiting(b"Permissions Violation")
        proxy.stall()
        connection.subscribe("deliver.x", "").close()
        wait_until(lambda: not connection._registry._open, "the end of the subscription")
        proxy.unstall()
        connection.check(10)
        assert refused.is_set()
        account(connection.options)


# Interruptions


def test_a_server_that_was_restarted_between_two_uses(server: NatsServer) -> None:
    account(server.url)
    connection = connect(options(server.url))
    server.kill()
    server.start()
    account(server.url, patience=60)
    assert connect(options(server.url)) is connection
    assert connection.reconnects == 1


def test_waiting_for_a_server_that_does_not_come_back(server: NatsServer) -> None:
    connection = connect(options(server.url))
    server.stop()
    wait_until(lambda: connection._login._closed_ports > 0, "an attempt to connect again")
    with pytest.raises(
        ConnectionFailed,
        match=r"lost and not made again within 0\.5 s: .*the connection was refused, nothing "
        r"listens there",
    ):
        connect(options(server.url), patience=0.5)


@pytest.mark.parametrize(
    "tls", [False, pytest.param(True, marks=pytest.mark.full)], ids=["plain", "tls"]
)
def test_a_wire_that_went_dead(tls: bool, tmp_path: Path) -> None:
    with (
        NatsServer(config=tls_config(tmp_path) if tls else None) as server,
        WireProxy(server.url) as proxy,
    ):
        ca = {"tlsCaFile": str(tmp_path / "ca.pem")} if tls else {}
        connection = connect(options(proxy.url, requestTimeout="500ms", connectTimeout="10s", **ca))
        before = proxy.connections
        proxy.stall()

        def mend() -> None:
            proxy.wait(lambda: proxy.connections > before)
            proxy.unstall()

        with ThreadPoolExecutor(1) as threads:
            mending = threads.submit(mend)
            with pytest.raises(ConnectionFailed, match="does not answer"):
                connection.request(INFO, b"", context="look")
            account(connection.options, patience=60)
            mending.result()
        assert connection.reconnects == 1


def test_a_ping_over_a_former_connection_cuts_no_other(server: NatsServer) -> None:
    with WireProxy(server.url) as proxy, ThreadPoolExecutor(1) as threads:
        connection = connect(options(proxy.url))
        proxy.stall()
        pinged = proxy.client_bytes.count(b"PING")
        checking = threads.submit(connection.check, 10)
        proxy.wait(lambda: proxy.client_bytes.count(b"PING") > pinged)
        proxy.cut()
        proxy.unstall()
        wait_until(lambda: connection.reconnects == 1, "the next connection")
        with pytest.raises(ConnectionFailed):
            checking.result()
        connection.wait(60)
        assert connection.reconnects == 1


def test_the_answer_to_a_ping_that_was_given_up(server: NatsServer) -> None:
    with WireProxy(server.url) as proxy:
        connection = connect(options(proxy.url))
        loop, pings = connection._loop.loop, connection._login.wire._pings
        proxy.stall()
        ping = asyncio.run_coroutine_threadsafe(connection._login.ping(60), loop)
        wait_until(lambda: bool(pings), "the ping")
        given_up = pings[-1]
        assert given_up is not None
        ping.cancel()  # what `Loop.run` does when its own time is over
        wait_until(given_up.cancelled, "the end of the ping")
        proxy.unstall()
        connection.check(10)
        assert connection.reconnects == 0


def test_nothing_is_confirmed_during_an_outage(server: NatsServer) -> None:
    with WireProxy(server.url) as proxy:
        connection = connect(options(proxy.url))
        listener = connection.listen(["heard"])
        proxy.refuse()
        proxy.cut()
        wait_until(lambda: connection._login._closed_ports > 0, "an attempt to connect again")
        for use in (
            connection.check,
            lambda: connection.listen(["more"]),
            lambda: listener.publish_confirmed("asked", b"", ()),
        ):
            with pytest.raises(
                ConnectionFailed,
                match=r"is down: .*the connection was refused, nothing listens there",
            ):
                use()


def test_a_message_that_a_cut_may_have_lost_is_not_confirmed(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WireProxy(server.url) as proxy, ThreadPoolExecutor(1) as threads:
        connection = connect(options(proxy.url))
        login, listener = connection._login, connection.listen(["heard"])
        ping = login.ping

        async def late(timeout: float) -> None:
            while not connection.reconnects:
                await asyncio.sleep(0.01)
            await ping(timeout)

        monkeypatch.setattr(login, "ping", late)
        reached = proxy.stall_at(b"PUB asked")
        confirming = threads.submit(listener.publish_confirmed, "asked", b"", ())
        assert reached.wait(60)
        proxy.cut()
        proxy.unstall()
        with pytest.raises(ConnectionFailed, match="the server may not have the message to asked"):
            confirming.result()
        assert proxy.client_bytes.count(b"PUB asked") == 1


def test_bytes_of_a_lost_connection_are_not_read_with_the_next(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    abort = TcpWire.abort
    with WireProxy(server.url) as proxy:
        connection = connect(options(proxy.url))
        with connection.inbox(replies=True) as inbox:
            (number,) = connection._registry._open

            def late(wire: TcpWire) -> None:
                """The beginning of a message comes in the turn of the loop in which the connection
                is given up.
                """
                reader = wire._reader
                if reader is not None:
                    beginning = b"MSG %s.1 %d 1000000\r\n" % (inbox.subject.encode(), number)
                    reader.incoming.add(beginning)
                    reader.came(0)
                abort(wire)

            monkeypatch.setattr(TcpWire, "abort", late)
            proxy.stall()
            with pytest.raises(ConnectionFailed):
                connection.check(1)
            proxy.cut()
            proxy.unstall()
            connection.wait(60)
            assert connection.reconnects == 1


def test_a_login_whose_first_ping_has_no_answer_is_given_up_and_leaves_no_task(
    server: NatsServer,
) -> None:
    pongs = itertools.count(1)
    with WireProxy(server.url) as proxy:
        connection = connect(options(proxy.url, requestTimeout="1s"))
        client, wire = connection._login.client, connection._login.wire
        # The first one is for the login, the next two are for the pings that follow it.
        proxy.drop(
            lambda frame: b"" if frame.startswith(b"PONG") and 1 < next(pongs) < 4 else frame
        )
        proxy.cut()
        wait_until(lambda: connection.reconnects == 2, "the second connection")
        connection.check(10)

        async def tasks() -> list[str]:
            every: list[Any] = [task.get_coro() for task in asyncio.all_tasks()]
            return sorted(
                work.__name__
                for work in every
                if work.cr_frame.f_locals.get("self") in (client, wire)
            )

        running = asyncio.run_coroutine_threadsafe(tasks(), connection._loop.loop).result(60)
        assert running == ["_flusher", "_ping_interval", "_read_loop", "_receive"]


def test_a_server_that_answers_no_ping_is_left(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_timing(monkeypatch, ping_interval=0.1)
    with WireProxy(server.url) as proxy:
        connection = connect(options(proxy.url))
        with connection.inbox() as inbox:
            proxy.stall()
            with pytest.raises(ConsumerLost, match="was cut"):
                inbox.get(60)
        proxy.unstall()
        connection.wait(60)


def test_an_error_for_which_the_server_closes_the_connection() -> None:
    with NatsServer(max_payload=65536) as server:
        first = connect(options(server.url))
        assert first.max_payload == 65536
        with pytest.raises(JetStreamError):
            first.request("too.large", bytes(65537), context="send too much")
        account(server.url)


def test_the_limit_of_an_account_counts() -> None:
    limited = (
        "accounts { A { limits { max_payload: 4096 }, users: [{ user: ann, password: a }] } "
        "}\nno_auth_user: ann"
    )
    with NatsServer(config=limited, max_payload=65536) as server, WireProxy(server.url) as proxy:
        late = b""

        def hold(frame: bytes) -> bytes:
            """Let the limit of the account come just before the answer to the next ping."""
            nonlocal late
            if b'"max_payload":4096' in frame:
                late = frame
                return b""
            answer, late = late + frame, b""
            return answer

        proxy.drop(hold)
        connection = connect(options(proxy.url))
        assert connection.max_payload == connection.server_info["max_payload"] == 4096
        proxy.cut()
        wait_until(
            lambda: connection.max_payload == 4096 and connection.reconnects == 1,
            "the next connection",
        )
        connection.check()
        assert connection.max_payload == connection.server_info["max_payload"] == 4096


@pytest.mark.parametrize("what", ["Connections", "Account Active Connections"])
def test_too_many_connections_may_pass(server: NatsServer, what: str) -> None:
    with WireProxy(server.url) as proxy:
        connection = connect(options(proxy.url))
        with connection.inbox() as inbox:
            proxy.replace_frames(
                b"PONG", 1, lambda frame: b"-ERR 'Maximum %s Exceeded'\r\n" % what.encode()
            )
            with pytest.raises(ConnectionFailed):
                connection.check()
            with pytest.raises(ConsumerLost, match=f"was cut: maximum {what.lower()} exceeded"):
                inbox.get(60)
        connection.wait(60)
        assert connection.reconnects == 1


def test_a_connection_that_is_given_up_for_an_error_says_what_the_server_said(
    server: NatsServer,
) -> None:
    with WireProxy(server.url) as proxy:
        connection = connect(options(proxy.url))
        with connection.inbox() as inbox:
            proxy.replace_frames(
                b"PONG", 1, lambda frame: b"-ERR 'Maximum Subscriptions Exceeded'\r\n" + frame
            )
            connection.check()
            with pytest.raises(ConsumerLost, match="was cut: maximum subscriptions exceeded"):
                inbox.get(60)
        with pytest.raises(ConnectionFailed, match="was closed: maximum subscriptions exceeded"):
            connection.wait(60)
        proxy.wait(lambda: proxy.open_connections == 0)


# TLS and WebSocket


ROWS = [Message("S.large", bytes([number]) * 700_000) for number in range(16)]
ROWS += [Message("S.small", str(number).encode()) for number in range(3000)]


@pytest.fixture
def loaded() -> Iterator[NatsServer]:
    """A server with 16 messages of 700 kB and 3,000 small ones, on disk, that can be restarted
    another way.
    """
    with NatsServer(websocket=True) as server:
        create(server.url, "S", storage="file")
        with Publisher(server.url) as publisher:
            publisher.publish(ROWS)
        yield server


def check_rows(given: ConnectionOptions, part: SequenceRange) -> None:
    """Read it all, and compare byte for byte."""
    read = list(pulls(given, part, replace(SETTINGS, max_bytes=8 << 20)))
    assert sequences(iter(read)) == list(range(1, len(ROWS) + 1))
    assert [data for pulled in read for data in pulled.payloads().to_pylist()] == [
        row.data for row in ROWS
    ]


def test_large_reads_over_tls(loaded: NatsServer, tmp_path: Path) -> None:
    part = part_of(loaded.url, "S")
    loaded.config = tls_config(tmp_path)
    loaded.restart()
    secure = options(loaded.url, tlsCaFile=str(tmp_path / "ca.pem"))
    check_rows(secure, part)
    wire = connect(secure)._login.wire
    assert isinstance(wire, TcpWire)
    assert wire._writer is not None
    assert isinstance(wire._writer.get_extra_info("ssl_object"), ssl.SSLObject)


def test_closing_during_a_login_sends_nothing_in_the_clear(tmp_path: Path) -> None:
    with NatsServer(config=tls_config(tmp_path)) as server, WireProxy(server.url) as proxy:
        connection = connect(options(proxy.url, tlsCaFile=str(tmp_path / "ca.pem")))
        login = connection._login
        with connection.inbox(replies=True):
            proxy.stall()
            proxy.cut()
            wait_until(lambda: not getattr(login.wire, "_secured", True), "the next connection")
            connection.post("private.subject")
            wait_until(lambda: bool(login._unsent), "what waits for the login")
            with pytest.raises(NotEncrypted):
                login.wire.writelines([b"PUB private.subject 0\r\n"])
            connection.close()
            assert not login._unsent
        proxy.unstall()
        proxy.wait(lambda: proxy.open_connections == 0)
    assert b"private" not in proxy.client_bytes


Connected = Callable[[], Awaitable[tuple[TcpWire, asyncio.Transport]]]


@contextlib.contextmanager
def tls_peer(serve: Callable[[ssl.SSLSocket], object]) -> Iterator[Connected]:
    """A function that makes an encrypted transport, and the plain one below it, to a peer that runs
    `serve`.
    """
    authority = trustme.CA()
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server_side)
    client_side = ssl.create_default_context()
    authority.configure_trust(client_side)

    def accept() -> None:
        with (
            listener.accept()[0] as plain,
            server_side.wrap_socket(plain, server_side=True) as encrypted,
        ):
            serve(encrypted)

    async def connected() -> tuple[TcpWire, asyncio.Transport]:
        url = f"tls://127.0.0.1:{listener.getsockname()[1]}"
        wire, uri = unowned_wire(url), urlsplit(url)
        await wire.connect(uri, 0, 60)
        assert wire._writer is not None
        plain: Any = wire._writer.transport
        await wire.connect_tls(uri, client_side, 0, 60)
        return wire, plain

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:
        accepted = threads.submit(accept)
        yield connected
        accepted.result()


def test_a_closed_connection_whose_peer_does_not_end_tls_is_left_to_itself() -> None:
    ended = threading.Event()

    async def close(connected: Connected) -> None:
        transport, plain = await connected()
        transport.close()
        del transport
        gc.collect()
        assert not plain.is_closing()
        plain.abort()
        await asyncio.sleep(0)

    with tls_peer(lambda _: ended.wait(60)) as connected:
        try:
            asyncio.run(close(connected))
        finally:
            ended.set()


def test_a_peer_that_sends_more_over_tls_than_is_read_must_wait() -> None:
    sent = 32 << 20

    def send(peer: ssl.SSLSocket) -> None:
        peer.sendall(bytes(sent))
        # It stays until the client has gone, or its goodbye would meet a closed socket.
        assert peer.recv(1) == b""

    async def read_late(connected: Connected) -> None:
        transport, plain = await connected()
        reader = transport._reader
        assert reader is not None
        try:
            while plain.is_reading() and len(reader.incoming) < sent:
                await asyncio.sleep(0.01)
            assert len(reader.incoming) < 2 * MOST_UNREAD
            read = 0
            while read < sent:
                incoming = await transport._more()
                assert incoming is not None
                read += len(incoming.rest())
        finally:
            transport.close()
            await transport.wait_closed()

    with tls_peer(send) as connected:
        asyncio.run(read_late(connected))


def test_reading_over_websocket(loaded: NatsServer) -> None:
    check_rows(options(loaded.websocket_url), part_of(loaded.url, "S"))


def test_another_server_over_websocket() -> None:
    lease = PortLease()
    route = f"nats://{LOOPBACK}:{lease.port}"
    with (
        NatsServer(
            websocket=True, jetstream=False, args=("--cluster", route, "--cluster_name", "web")
        ) as first,
        NatsServer(
            websocket=True,
            jetstream=False,
            http_monitor=True,
            args=("--cluster", f"nats://{LOOPBACK}:-1", "--cluster_name", "web", "--routes", route),
        ) as second,
    ):
        wait_until(lambda: second.monitor("/routez")["num_routes"] > 0, "the cluster")
        connection = connect(options(first.websocket_url))
        first.stop()
        wait_until(lambda: connection.reconnects == 1, "the login at the other server", 20.0)
        connection.check()
        assert clients(second) == 1
    lease.release()


# The client library's private parts


def test_private_names_of_the_client_library_stand_in_one_place() -> None:
    of_library = r"(?:_client|client|subscription|message)\.(_\w+)"
    module = Path(str(nats_py.__file__))
    others = [path for path in module.parent.glob("*.py") if path != module]
    assert [path.name for path in others if re.search(of_library, path.read_text())] == []
    used = set(re.findall(of_library, module.read_text()))
    assert used == {part for part in nats_py.PARTS if part.startswith("_")}


def test_a_client_library_without_a_part() -> None:
    wire = unowned_wire(NOWHERE)
    with pytest.raises(JetStreamError) as raised:
        nats_py.new_client(wire, (*nats_py.PARTS, "new"))
    assert type(raised.value) is JetStreamError
    assert str(raised.value) == (
        f"nats-py {version('nats-py')} has no Client.new, which spark-jetstream needs: "
        "pip install 'nats-py>=2.15,<2.17'"
    )
