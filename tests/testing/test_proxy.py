"""The proxy by which other tests break the wire."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from spark_jetstream.testing import NatsServer
from tests.support.client import Raw
from tests.support.proxy import Frames, WireProxy

Dial = Callable[[], Raw]


@pytest.fixture
def proxy(server: NatsServer) -> Iterator[WireProxy]:
    """A wire to a server of the test's own: its clients hear everything."""
    with WireProxy(server.url) as running:
        yield running


@pytest.fixture
def dial(proxy: WireProxy) -> Iterator[Dial]:
    clients: list[Raw] = []

    def connect() -> Raw:
        clients.append(Raw(proxy.url))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


@pytest.fixture
def client(dial: Dial) -> Raw:
    client = dial()
    client.hello()
    return client


@pytest.mark.parametrize("count", [None, 0, 300_000])
def test_cuts_are_exact_and_new_connections_whole(proxy: WireProxy, client: Raw, dial: Dial, count: int | None) -> None:
    if count is None:
        second = dial()
        second.hello()
        proxy.cut()
        assert proxy.open_connections == 0
        assert client.rest() == second.rest() == b""
    else:
        done = proxy.cut_after(count)
        payload = os.urandom(500_000)
        client.echo(payload)
        assert client.rest() == (b"MSG a 1 500000\r\n" + payload)[:count]
        assert done.wait(60)
    again = dial()
    again.hello()
    again.echo(b"whole")
    assert again.message() == b"whole"


def test_bytes_of_a_client_are_cut_and_forwarded_in_pieces(proxy: WireProxy, client: Raw, dial: Dial) -> None:
    second = dial()
    second.hello()
    proxy.pieces(1, 0.0001)
    client.echo(b"bytes")
    assert client.message() == second.message() == b"bytes"
    proxy.pieces()
    done = proxy.cut_after(len(b"PUB a 5\r\nwh"), to="server")
    client.echo(b"whole")
    assert done.wait(60)
    assert client.rest() == second.rest() == b""
    again = dial()
    again.hello()
    again.echo(b"whole")
    assert again.message() == b"whole"


def test_stall_after_holds_back_what_follows_the_frames(proxy: WireProxy, client: Raw) -> None:
    reached = proxy.stall_after(b"MSG a 1", 2)
    for payload in (b"first", b"second"):
        client.echo(payload)
        assert client.message() == payload
    assert reached.wait(60)
    client.echo(b"third")
    assert client.quiet()
    proxy.unstall()
    assert client.message() == b"third"


def test_stall_holds_everything_and_unstall_delivers_it(proxy: WireProxy, client: Raw, dial: Dial) -> None:
    proxy.stall()
    client.echo(b"late")
    newcomer = dial()
    assert client.quiet()
    assert newcomer.quiet()
    assert proxy.client_bytes.endswith(b"late\r\n")
    proxy.unstall()
    assert client.message() == b"late"
    assert newcomer.hello().startswith(b"INFO")
    forgotten = proxy.stall_at(b"first")
    proxy.forget()
    client.echo(b"first")
    assert client.message() == b"first"
    assert not forgotten.is_set()
    reached = proxy.stall_at(b"second")
    client.echo(b"second")
    assert reached.wait(60)
    assert client.quiet()
    proxy.cut()  # of a stalled connection
    assert client.rest() == b""
    proxy.unstall()


def test_drop_rewrites_whole_frames(proxy: WireProxy, client: Raw) -> None:
    seen: list[bytes] = []

    def pattern(frame: bytes) -> bytes:
        seen.append(frame)
        return b"" if b"second" in frame else frame.replace(b"third", b"THIRD")

    proxy.drop(pattern)
    big = b"\r\nMSG a 1 5\r\n" + os.urandom(300_000)
    for payload in (b"first", b"second", b"third", big, b""):
        client.echo(payload)
    assert [client.message() for _ in range(4)] == [b"first", b"THIRD", big, b""]
    assert seen[3] == b"MSG a 1 %d\r\n%s\r\n" % (len(big), big)
    assert proxy.dropped == 1
    proxy.drop(None)
    client.echo(b"second")
    assert client.message() == b"second"
    proxy.drop_frames(b"MSG a 1", count=2)
    for number in range(4):
        client.echo(b"%d" % number)
    assert [client.message(), client.message()] == [b"2", b"3"]
    assert proxy.dropped == 3


def test_an_error_in_a_hook_reaches_the_test(server: NatsServer) -> None:
    def pattern(frame: bytes) -> bytes:
        raise LookupError(frame)

    proxy = WireProxy(server.url).start()
    proxy.drop(pattern)
    client = Raw(proxy.url)
    assert client.rest() == b""
    client.close()
    with pytest.raises(LookupError, match="INFO"):
        proxy.close()


FRAMES = (
    b"INFO {}\r\n",
    b"MSG a 1 5\r\nhe\r\no\r\n",
    b"PING\r\n",
    b"HMSG a 1 _INBOX.1 12 14\r\nNATS/1.0\r\n\r\nhi\r\n",
    b"MSG a 1 0\r\n\r\n",
    b"-ERR 'x'\r\n",
)


def test_frames_come_whole_however_they_are_cut() -> None:
    data = b"".join(FRAMES)
    for size in (1, 2, 3, 7, 1000):
        frames = Frames()
        seen: list[bytes] = []

        def hook(frame: bytes, seen: list[bytes] = seen) -> bytes:
            seen.append(frame)
            return frame

        out = [frames.feed(data[at : at + size], hook) for at in range(0, len(data), size)]
        assert tuple(seen) == FRAMES
        assert b"".join(out) == data
    # A hook that comes late begins with the next frame.
    ends = [len(b"".join(FRAMES[:count])) for count in range(len(FRAMES) + 1)]
    for cut in range(len(data) + 1):
        frames = Frames()
        assert frames.feed(data[:cut], None) == data[:cut]
        assert frames.feed(data[cut:], lambda _: b"") == data[cut : min(e for e in ends if e >= cut)]
    frames, noise = Frames(), b"\x17\x03\x03" * 30_000
    assert frames.feed(noise, lambda _: b"") == noise
    assert frames.feed(b"MSG a 1 0\r\n\r\n", lambda _: b"") == b"MSG a 1 0\r\n\r\n"
