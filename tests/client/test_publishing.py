"""Publishing in bulk over a connection: frames out and acknowledgements in, each frame once,
whatever is cut.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import types
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlparse

import pytest

from spark_jetstream.client import tcp
from spark_jetstream.client.addresses import Addresses
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.inbox import Inbox
from spark_jetstream.client.pool import connect
from spark_jetstream.errors import ConnectionFailed, JetStreamError, PermissionDenied
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.protocol.wire import Frames
from spark_jetstream.testing import NatsServer
from spark_jetstream.testing.process import LOOPBACK
from tests.support.client import set_limits, stored, tls_config, unowned_wire
from tests.support.proxy import WireProxy
from tests.support.publish import Message
from tests.support.reading import create, options, wait_until
from tests.support.wire import answers

SECONDS = 60.0
E = TypeVar("E", bound=JetStreamError)


pytestmark = pytest.mark.usefixtures("no_connection_left")


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """A server with a stream S, whose subjects are `S.>`; it listens for WebSockets too."""
    with NatsServer(websocket=True) as running:
        create(running.url, "S")
        yield running


@pytest.fixture
def proxy(server: NatsServer) -> Iterator[WireProxy]:
    """A proxy between the connection and the server."""
    with WireProxy(server.url) as running:
        yield running


def frames(
    inbox: Inbox, first: int, end: int, subject: str = "S.a", text: str = "row"
) -> list[bytes]:
    """The frames of the publishes `first` to `end` - 1."""
    messages = (
        (number, Message(subject, f"{text}-{number}.".encode())) for number in range(first, end)
    )
    return [message.frame(f"{inbox.subject}.{number}") for number, message in messages]


def replies(inbox: Inbox, count: int) -> dict[int, tuple[bytes, bytes]]:
    """The next `count` answers: header and payload by number, in the order of their arrival."""
    found: dict[int, tuple[bytes, bytes]] = {}
    deadline = time.monotonic() + SECONDS
    while len(found) < count:
        event = inbox.get(deadline - time.monotonic())
        assert isinstance(event, Frames), f"{len(found)} of {count} answers"
        for subject, head, payload, _ in answers(event):
            place, _, number = subject.decode().rpartition(".")
            assert place == inbox.subject
            assert int(number) not in found
            found[int(number)] = head, payload
    return found


def sequences(inbox: Inbox, count: int) -> dict[int, int]:
    """The sequences in the next `count` acknowledgements, by number."""
    return {
        number: json.loads(payload)["seq"] for number, (_, payload) in replies(inbox, count).items()
    }


def replies_until(inbox: Inbox, last: int) -> list[int]:
    """The numbers that are answered, up to the one that is `last`."""
    found: list[int] = []
    while last not in found:
        found += replies(inbox, 1)
    return found


def error(inbox: Inbox, kind: type[E]) -> E:
    """The error that comes next, which must be of this kind; acknowledgements before it are
    dropped.
    """
    deadline = time.monotonic() + SECONDS
    try:
        while time.monotonic() < deadline:
            inbox.get(deadline - time.monotonic())
    except kind as found:
        return found
    raise TimeoutError("no error came")


def check_publishing(given: ConnectionOptions) -> None:
    """Many frames in portions of all kinds, in order."""
    with connect(given).inbox(replies=True) as inbox:
        every = frames(inbox, 1, 3001)
        inbox.send(b"".join(every[:1000]))
        inbox.resume(0)  # nothing was cut
        inbox.send(memoryview(b"".join(every[1000:2000])))
        for frame in every[2000:2500]:
            inbox.send(frame)
        inbox.send(every[2500:])
        assert sequences(inbox, 3000) == {number: number for number in range(1, 3001)}
        # A message of 700 kB, which no socket takes at once, between small ones.
        large = Message("S.a", bytes(700_000)).frame(f"{inbox.subject}.3002")
        inbox.send([*frames(inbox, 3001, 3002), large, *frames(inbox, 3003, 3004)])
        assert sequences(inbox, 3) == {number: number for number in range(3001, 3004)}


@pytest.mark.filterwarnings(
    "ignore:parameter 'timeout' of type 'float' is deprecated:DeprecationWarning"
)  # nats-py
@pytest.mark.parametrize("url", ["url", "websocket_url"])
def test_acknowledgements(server: NatsServer, url: str) -> None:
    check_publishing(options(getattr(server, url)))


def test_acknowledgements_over_tls(tmp_path: Path) -> None:
    with NatsServer(config=tls_config(tmp_path)) as server:
        secure = options(server.url, tlsCaFile=str(tmp_path / "ca.pem"))
        body = b'{"name":"S","subjects":["S.>"],"storage":"memory"}'
        connect(secure).api("$JS.API.STREAM.CREATE.S", body, context="create S")
        check_publishing(secure)


def test_two_inboxes_and_requests_on_one_connection(server: NatsServer) -> None:
    connection = connect(options(server.url))
    with connection.inbox(replies=True) as one, connection.inbox(replies=True) as other:
        one.send(frames(one, 1, 1001))
        other.send(frames(other, 1, 1001))
        assert (
            connection.api("$JS.API.STREAM.INFO.S", b"", context="look at S")["config"]["name"]
            == "S"
        )
        assert sorted([*sequences(one, 1000).values(), *sequences(other, 1000).values()]) == list(
            range(1, 2001)
        )
    with connection.inbox() as reading, pytest.raises(ValueError, match="replies=True"):
        reading.send(b"")


def test_reads_keep_the_shortest_pace_that_an_inbox_asks_for(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> Coroutine[Any, Any, None]:
        pauses.append(seconds)
        return asyncio.sleep(0)

    monkeypatch.setattr(tcp, "asyncio", types.SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    connection = connect(options(server.url))
    with connection.inbox(replies=True) as inbox, connection.inbox() as other, connection.inbox():
        for number in range(1, 101):  # one row at a time is not held up
            inbox.send(frames(inbox, number, number + 1))
            assert sequences(inbox, 1) == {number: number}
        assert pauses == []
        inbox.pace, other.pace = 7200.0, 3600.0
        # The first of these answers may come to a read that began before.
        for number in (101, 102):
            inbox.send(frames(inbox, number, number + 1))
            assert sequences(inbox, 1) == {number: number}
        assert {round(seconds, -3) for seconds in pauses} == {4000.0}


PERMISSIONS = """
authorization { users: [{ user: ann, password: a, permissions: { publish: { deny: ["S.Secret", "$JS.API.INFO"] } } }] }
"""


def test_a_publish_that_is_not_permitted() -> None:
    with NatsServer(config=PERMISSIONS) as server:
        connection = connect(options(server.url, user="ann", password="a"))
        create(server.url.replace("//", "//ann:a@"), "S")
        with connection.inbox(replies=True) as inbox:
            inbox.send(frames(inbox, 1, 2) + frames(inbox, 2, 3, "S.Secret") + frames(inbox, 3, 4))
            found = error(inbox, PermissionDenied)
            assert found.subject == "s.secret"
            assert str(found) == "the account may not publish to s.secret"
            # The connection goes on.
            inbox.send(frames(inbox, 4, 5))
            assert replies_until(inbox, 4)
            # The inbox may ask about another message that the connection publishes.
            with pytest.raises(PermissionDenied):
                connection.request("$JS.API.INFO", b"", context="look")
            found = error(inbox, PermissionDenied)
            assert found.subject == "$js.api.info"


# Interruptions


def test_a_cut_and_what_comes_after_it(server: NatsServer, proxy: WireProxy) -> None:
    connection = connect(options(proxy.url))
    with connection.inbox(replies=True) as inbox:
        inbox.send(frames(inbox, 1, 101))
        assert len(sequences(inbox, 100)) == 100
        proxy.refuse()
        proxy.cut()
        found = error(inbox, ConnectionFailed)
        assert "cut" in str(found)
        inbox.send(frames(inbox, 101, 102, text="down"))
        error(inbox, ConnectionFailed)
        with pytest.raises(ConnectionFailed, match=r"lost and not made again within 0\.2 s"):
            inbox.resume(0.2)
        proxy.accept()
        connection.wait(SECONDS)
        # It is up again, but this inbox does not know that yet.
        inbox.send(frames(inbox, 102, 103, text="unaware"))
        inbox.send(frames(inbox, 103, 104, text="unaware"))
        assert "nothing was sent" in str(error(inbox, ConnectionFailed))
        inbox.resume(SECONDS)
        # The second one's error is about the past.
        inbox.send(frames(inbox, 104, 304))
        assert sorted(sequences(inbox, 200)) == list(range(104, 304))
        assert inbox.get(0) is None
    assert b"down-" not in proxy.client_bytes
    assert b"unaware-" not in proxy.client_bytes
    assert stored(server.url) == 300


def test_frames_sent_during_an_outage_do_not_fill_an_inbox(
    proxy: WireProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_limits(monkeypatch, inbox=5 << 20)
    connection = connect(options(proxy.url))
    with connection.inbox(replies=True) as inbox:
        for reconnects in (1, 2):
            proxy.cut()
            wait_until(lambda: connection.reconnects == reconnects, "the next connection")  # noqa: B023
            for _ in range(3000):
                inbox.send(b"PUB S.a 0\r\n\r\n")
            inbox.resume(SECONDS)
        inbox.send(frames(inbox, 2, 3))
        assert sequences(inbox, 1) == {2: 1}


def test_answers_from_before_the_cut_are_kept(proxy: WireProxy) -> None:
    connection = connect(options(proxy.url))
    with connection.inbox(replies=True) as inbox:
        inbox.send(frames(inbox, 1, 2))
        wait_until(lambda: not inbox._events.empty(), "the acknowledgement")
        proxy.cut()
        wait_until(lambda: connection.reconnects > 0, "the next connection")
        inbox.resume(SECONDS)
        inbox.send(frames(inbox, 2, 3))
        assert sequences(inbox, 2) == {1: 1, 2: 2}


@pytest.mark.parametrize(
    "after", [1, *(pytest.param(after, marks=pytest.mark.full) for after in (0, 5_000, 20_011))]
)
def test_each_frame_is_sent_at_most_once_and_never_after_the_cut(
    server: NatsServer, proxy: WireProxy, after: int
) -> None:
    connection = connect(options(proxy.url))
    with connection.inbox(replies=True) as inbox:
        cut = proxy.cut_after(after) if after else None
        number = 1
        while cut is not None and not cut.is_set() and number < 200_000:
            inbox.send(frames(inbox, number, number + 100))
            number += 100
        if cut is None:
            proxy.cut()
        # Some of these find the connection lost, some find it being made, some find it made.
        while connection.reconnects == 0 and number < 2_000_000:
            inbox.send(frames(inbox, number, number + 1))
            number += 1
            # One turn of the loop that makes the connection, which these would keep from running.
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), connection._loop.loop).result(
                SECONDS
            )
        inbox.send(frames(inbox, number, number + 1))
        error(inbox, ConnectionFailed)
        inbox.resume(SECONDS)
        inbox.send(frames(inbox, number + 1, number + 2, text="again"))
        late = {*replies_until(inbox, number + 1)} - {number + 1}
    sent = proxy.client_bytes
    second = sent.index(b"CONNECT ", sent.index(b"CONNECT ") + 1)
    assert b"row-" not in sent[second:]
    assert sent.count(b"again-%d." % (number + 1)) == 1
    rows = [line for line in sent.split(b"\r\n") if line.startswith(b"row-")]
    assert len(set(rows)) == len(rows)
    # The server may answer over the second connection what came over the first one.
    assert {b"row-%d" % each for each in late} <= {row.partition(b".")[0] for row in rows}
    assert stored(server.url) <= len(rows) + 1


def test_a_wire_that_takes_nothing(proxy: WireProxy) -> None:
    connection = connect(options(proxy.url))
    with connection.inbox(replies=True) as inbox:
        proxy.stall()
        inbox.send(
            frames(inbox, 1, 2)[0] + Message("S.a", bytes(900_000)).frame() * 30
        )  # does not wait
        with pytest.raises(ConnectionFailed, match="does not answer"):
            connection.check(0.5)
        proxy.cut()
        proxy.unstall()
        error(inbox, ConnectionFailed)
        inbox.resume(SECONDS)
        inbox.send(frames(inbox, 2, 3))
        assert sorted(sequences(inbox, 1)) == [2]


def test_closing_does_not_wait_for_a_peer_that_takes_nothing() -> None:
    async def work(port: int) -> None:
        url = f"nats://{LOOPBACK}:{port}"
        wire = unowned_wire(url)
        await wire.connect(urlparse(url), 0, 5)
        wire.write(bytes(50_000_000))
        wire.close()
        await asyncio.wait_for(wire.wait_closed(), SECONDS)

    with socket.create_server((LOOPBACK, 0)) as silent:
        asyncio.run(work(silent.getsockname()[1]))


@contextmanager
def full_wire(proxy: WireProxy) -> Iterator[tuple[Connection, Inbox]]:
    """A connection whose wire takes nothing now, and an inbox of it."""
    connection = connect(options(proxy.url))
    with connection.inbox(replies=True) as busy:
        proxy.stall()
        busy.send(Message("S.a", bytes(900_000)).frame() * 30)
        connection.post("S.b")
        yield connection, busy


def test_no_publish_overtakes_its_subscription(proxy: WireProxy) -> None:
    """Or nobody would hear most of the acknowledgements."""
    with full_wire(proxy) as (connection, _), connection.inbox(replies=True) as late:
        late.send(
            [
                Message("S.a", bytes(10_000)).frame(f"{late.subject}.{number}")
                for number in range(500)
            ]
        )
        connection._loop.run(asyncio.sleep(0), SECONDS)  # it was sent
        proxy.unstall()
        assert {*replies(late, 500)} == {*range(500)}


def test_no_ping_overtakes_a_subscription(proxy: WireProxy) -> None:
    """Its answer says that the server has the subscription."""
    with full_wire(proxy) as (connection, _), ThreadPoolExecutor(1) as threads:
        listening = threads.submit(connection.listen, ["heard"])
        wait_until(lambda: bool(connection._login.wire._pings), "the ping")
        proxy.unstall()
        assert listening.result().denied is None
        assert proxy.client_bytes.index(b"SUB heard") < proxy.client_bytes.rindex(b"PING\r\n")


def test_a_closed_connection_is_gone_whatever_its_peer_takes(proxy: WireProxy) -> None:
    with full_wire(proxy) as (connection, inbox):
        connection.post("S.b")  # waits behind the rows
        connection.close()
        error(inbox, ConnectionFailed)
        assert not connection._login._unsent
        proxy.unstall()
        proxy.wait(lambda: proxy.open_connections == 0)


@pytest.fixture
def lost_cancellations(monkeypatch: pytest.MonkeyPatch) -> Callable[[], threading.Event]:
    """Makes each attempt to connect wait until it is cancelled, and then fail; the event is set
    when one waits.

    So `asyncio.wait_for` does before Python 3.12 when a cancellation and an error come together.
    """

    def begin() -> threading.Event:
        connecting = threading.Event()

        async def refused(*_: object, **__: object) -> None:
            connecting.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            raise ConnectionRefusedError

        monkeypatch.setattr(Addresses, "connect", refused)
        return connecting

    return begin


def test_a_closed_connection_logs_in_no_more(
    proxy: WireProxy, lost_cancellations: Callable[[], threading.Event]
) -> None:
    connection = connect(options(proxy.url))
    connecting = lost_cancellations()
    proxy.cut()
    assert connecting.wait(60)
    again = connection._login.client._reconnection_task
    connection.close()
    wait_until(lambda: again is not None and again.done(), "the end of the last attempt")


def test_an_attempt_that_is_given_up_ends(
    server: NatsServer, lost_cancellations: Callable[[], threading.Event]
) -> None:
    lost_cancellations()
    with pytest.raises(
        ConnectionFailed,
        match=r"no NATS server could be reached at .* within 1 s \(option servers\)",
    ):
        connect(options(server.url, connectTimeout="1s"))


def test_a_connection_that_was_closed_for_good(server: NatsServer) -> None:
    connection = connect(options(server.url))
    with connection.inbox(replies=True) as inbox:
        connection.close()
        error(inbox, ConnectionFailed)
        inbox.send(frames(inbox, 1, 2))
        error(inbox, ConnectionFailed)
        with pytest.raises(ConnectionFailed, match="was closed"):
            inbox.resume(SECONDS)
        assert not connection.usable
