"""The proxy by which other tests break the wire."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from spark_jetstream.testing import NatsServer
from tests.support.client import Raw, publish, stored
from tests.support.proxy import Frames, WireProxy


@pytest.fixture(scope="module")
def target() -> Iterator[NatsServer]:
    with NatsServer() as running:
        yield running


@pytest.fixture
def proxy(target: NatsServer) -> Iterator[WireProxy]:
    with WireProxy(target.url) as running:
        yield running


@pytest.fixture
def dial(proxy: WireProxy) -> Iterator[Callable[[], Raw]]:
    clients: list[Raw] = []

    def connect() -> Raw:
        clients.append(Raw(proxy.url))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


class TestProxy:
    def test_forwards_and_counts(self, proxy: WireProxy) -> None:
        publish(proxy.url, 3, stream="VIA")
        assert stored(proxy.url, "VIA") == 3
        assert proxy.connections == 2
        assert proxy.client_bytes.count(b"$JS.API.STREAM.INFO.VIA") == 1
        assert proxy.bytes_from_client == len(proxy.client_bytes)
        assert proxy.bytes_to_client > 500
        proxy.wait(lambda: proxy.open_connections == 0)

    def test_cut_closes_all_connections_and_accepts_new_ones(self, proxy: WireProxy, dial: Callable[[], Raw]) -> None:
        first, second = dial(), dial()
        first.hello()
        second.hello()
        proxy.cut()
        assert proxy.open_connections == 0
        assert first.rest() == second.rest() == b""
        dial().hello()
        assert proxy.connections == 3

    @pytest.mark.parametrize("count", [0, 1, 1000, 300_000])
    def test_cut_after_is_exact(self, proxy: WireProxy, dial: Callable[[], Raw], count: int) -> None:
        client = dial()
        client.hello()
        done = proxy.cut_after(count)
        payload = os.urandom(500_000)
        client.echo(payload)
        assert client.rest() == (b"MSG a 1 500000\r\n" + payload)[:count]
        assert done.wait(10)
        again = dial()
        again.hello()
        again.echo(b"whole")
        assert again.message() == b"whole"

    def test_stall_holds_everything_and_unstall_delivers_it(self, proxy: WireProxy, dial: Callable[[], Raw]) -> None:
        client = dial()
        client.hello()
        proxy.stall()
        client.echo(b"late")
        newcomer = dial()
        assert client.quiet()
        assert newcomer.quiet()
        assert proxy.client_bytes.endswith(b"late\r\n")
        proxy.unstall()
        assert client.message() == b"late"
        assert newcomer.hello().startswith(b"INFO")

    def test_a_stalled_connection_can_be_cut(self, proxy: WireProxy, dial: Callable[[], Raw]) -> None:
        client = dial()
        client.hello()
        proxy.stall()
        client.echo(b"lost")
        proxy.wait(lambda: b"lost" in proxy.client_bytes)
        proxy.cut()
        assert client.rest() == b""
        proxy.unstall()

    def test_stall_at_holds_back_what_was_waited_for(self, proxy: WireProxy, dial: Callable[[], Raw]) -> None:
        client = dial()
        client.hello()
        forgotten = proxy.stall_at(b"first")
        proxy.forget()
        client.echo(b"first")
        assert client.message() == b"first"
        assert not forgotten.is_set()
        reached = proxy.stall_at(b"second")
        client.echo(b"second")
        assert reached.wait(10)
        assert client.quiet()
        proxy.unstall()
        assert client.message() == b"second"

    def test_refuse_and_accept(self, proxy: WireProxy, dial: Callable[[], Raw]) -> None:
        client = dial()
        client.hello()
        proxy.refuse()
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            dial()
        client.ping()
        proxy.accept()
        dial().hello()

    def test_drop_rewrites_whole_frames(self, proxy: WireProxy, dial: Callable[[], Raw]) -> None:
        client = dial()
        client.hello()
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

    def test_drop_frames_drops_so_many_and_no_more(self, proxy: WireProxy, dial: Callable[[], Raw]) -> None:
        client = dial()
        client.hello()
        proxy.drop_frames(b"MSG a 1", count=2)
        for number in range(4):
            client.echo(b"%d" % number)
        assert [client.message(), client.message()] == [b"2", b"3"]
        assert proxy.dropped == 2

    def test_an_error_in_a_hook_reaches_the_test(self, target: NatsServer) -> None:
        def pattern(frame: bytes) -> bytes:
            raise LookupError(frame)

        proxy = WireProxy(target.url).start()
        proxy.drop(pattern)
        client = Raw(proxy.url)
        assert client.rest() == b""
        client.close()
        with pytest.raises(LookupError, match="INFO"):
            proxy.close()

    def test_a_server_that_is_down_ends_the_connection(self) -> None:
        with NatsServer() as server, WireProxy(server.url) as proxy:
            before = Raw(proxy.url)
            before.hello()
            server.kill()
            assert before.rest() == b""
            during = Raw(proxy.url)
            assert during.rest() == b""
            server.start()
            after = Raw(proxy.url)
            after.hello()
            for client in (before, during, after):
                client.close()

    def test_wait_gives_up(self, proxy: WireProxy) -> None:
        with pytest.raises(TimeoutError, match="0 of 0 connections open"):
            proxy.wait(lambda: False, timeout=0.05)

    def test_url_keeps_scheme_and_credentials_and_repr_does_not(self) -> None:
        proxy = WireProxy("ws://ann:s3cret@localhost:1234/path")
        port = proxy.url.rpartition(":")[2].removesuffix("/path")
        assert proxy.url == f"ws://ann:s3cret@127.0.0.1:{port}/path"
        assert "s3cret" not in repr(proxy)
        proxy.start().close()


class TestFrames:
    STREAM = (
        b"INFO {}\r\n",
        b"MSG a 1 5\r\nhe\r\no\r\n",
        b"PING\r\n",
        b"HMSG a 1 _INBOX.1 12 14\r\nNATS/1.0\r\n\r\nhi\r\n",
        b"MSG a 1 0\r\n\r\n",
        b"-ERR 'x'\r\n",
    )

    @pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
    def test_frames_come_whole_however_they_are_cut(self, size: int) -> None:
        frames, seen, data = Frames(), [], b"".join(self.STREAM)

        def hook(frame: bytes) -> bytes:
            seen.append(frame)
            return frame

        out = [frames.feed(data[at : at + size], hook) for at in range(0, len(data), size)]
        assert tuple(seen) == self.STREAM
        assert b"".join(out) == data

    def test_a_hook_that_comes_late_begins_with_the_next_frame(self) -> None:
        data = b"".join(self.STREAM)
        ends = [len(b"".join(self.STREAM[:count])) for count in range(len(self.STREAM) + 1)]
        for cut in range(len(data) + 1):
            frames = Frames()
            assert frames.feed(data[:cut], None) == data[:cut]
            assert frames.feed(data[cut:], lambda _: b"") == data[cut : min(e for e in ends if e >= cut)]

    def test_bytes_without_lines_are_passed_on(self) -> None:
        frames, noise = Frames(), b"\x17\x03\x03" * 30_000
        assert frames.feed(noise, lambda _: b"") == noise
        assert frames.feed(b"MSG a 1 0\r\n\r\n", lambda _: b"") == b"MSG a 1 0\r\n\r\n"
