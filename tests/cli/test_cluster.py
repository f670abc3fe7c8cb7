"""``spark-jetstream cluster``: what the system account does with a cluster, and that no other
account can.
"""

from __future__ import annotations

from functools import partial

import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.client.connection import Connection
from spark_jetstream.errors import (
    ApiError,
    JetStreamError,
    OptionError,
    RequestTimeout,
    StreamNotFound,
)
from spark_jetstream.testing import NatsCluster, NatsServer
from spark_jetstream.testing.process import poll
from tests.cli.conftest import Command, refused
from tests.support.command import Ran, run_command, succeed

GROUP = ("cluster",)
ACCOUNTS = """
jetstream {}
system_account: SYS
accounts {
  SYS { users: [{ user: sys, password: "right-pass-51c0" }] }
  APP { jetstream: enabled, users: [{ user: app, password: "right-pass-51c0" }] }
}
"""
LOGIN = ("--password", "right-pass-51c0", "--user")


def test_leader_accounts_and_servers(no_connection_left: None) -> None:
    with NatsCluster(config=ACCOUNTS) as cluster:
        url = cluster.urls[0]

        def do(*line: object) -> Ran:
            return succeed(*GROUP, *line, *LOGIN, "sys", url=url)

        def leader(*, other_than: str = "") -> str:
            def look() -> str | None:
                name = str(cluster.servers[0].monitor("/jsz")["meta_cluster"].get("leader", ""))
                return name if name not in ("", other_than) else None

            return poll(look, 30, lambda: AssertionError("the cluster has no such leader"))

        first = leader()
        assert do("step-down", "--force").out == "the leader of the cluster steps down\n"
        leads = leader(other_than=first)
        while leads != first:  # servers that are busy may elect another one than the preferred one
            assert do("step-down", "--preferred", first, "--force", "--json").json == {
                "preferred": first
            }
            leads = leader(other_than=leads)
        streams = partial(succeed, "stream", url=url)
        streams("add", "S", "--num-replicas", 3, *LOGIN, "app")
        assert do("purge-account", "APP", "--force", "--json").json == {"account": "APP"}
        poll(
            lambda: not streams("names", *LOGIN, "app").out or None,
            30,
            lambda: AssertionError("streams are left"),
        )
        gone = next(index for index in (1, 2) if cluster.servers[index].name != first)
        cluster.kill(gone)
        name = cluster.servers[gone].name
        assert do("remove", name, "--force", "--json").json == {"removed": name}

        def smaller() -> bool | None:
            return cluster.servers[0].monitor("/jsz")["meta_cluster"]["cluster_size"] == 2 or None

        poll(smaller, 30, lambda: AssertionError("the server is not removed"))
        ran = run_command(*GROUP, "remove", "nobody", "--force", *LOGIN, "sys", url=url)
        refused(ran, 1, "cannot remove server nobody from the cluster")


def admins(cluster: NatsCluster, server: int = 0) -> tuple[JetStreamAdmin, JetStreamAdmin]:
    """Return an admin of the system account and one of the account APP, by one server of a cluster."""
    given = {"servers": cluster.urls[server], "password": "right-pass-51c0"}
    return JetStreamAdmin(user="sys", **given), JetStreamAdmin(user="app", **given)


def test_streams_leave_a_server(no_connection_left: None) -> None:
    with NatsCluster(config=ACCOUNTS) as cluster:
        url = cluster.urls[0]
        system, app = admins(cluster)
        app.streams.create("S", subjects="s", num_replicas=1)
        app.consumers.create("S", "c", durable_name="c")
        app.publish("s", b"x")

        def home(other_than: str = "") -> str:
            """The server of the stream and of its consumer."""

            def look() -> str | None:
                try:
                    found = {
                        each.server
                        for each in (*app.streams.replicas("S"), *app.consumers.replicas("S", "c"))
                    }
                except JetStreamError:
                    return None
                return found.pop() if len(found) == 1 and other_than not in found else None

            return poll(look, 30, lambda: AssertionError("the stream has no such server"))

        def settled() -> bool | None:
            cluster_of_stream = app.streams.load("S").cluster
            return (cluster_of_stream is not None and cluster_of_stream.desired is None) or None

        first = home()

        def do(*line: object) -> Ran:
            return succeed(*GROUP, *line, *LOGIN, "sys", url=url)

        assert do("evacuate", first, "--force", "--json").json == {"evacuated": first}
        second = home(other_than=first)
        # A stream that has moved refuses the next move until the server has noted the end.
        poll(settled, 30, lambda: AssertionError("the evacuation does not end"))
        with pytest.raises(ApiError, match="cannot evacuate server nobody: "):
            system.cluster.evacuate_server("nobody")
        moved = do("move-stream", "APP", "S", "--off", second, "--force", "--json").json
        assert moved == {"account": "APP", "stream": "S"}
        home(other_than=second)
        assert [message.data for message in app.messages.read("S")] == [b"x"]
        with pytest.raises(StreamNotFound, match="cannot move stream T of account APP: "):
            system.cluster.move_stream("APP", "T")
        with pytest.raises(ApiError, match="cannot move stream S of account APP: "):
            system.cluster.move_stream("APP", "S", server="nobody")
        with pytest.raises(ApiError, match="cannot move stream S of account APP: "):
            system.cluster.move_stream("APP", "S", tags=["nowhere"])

        poll(settled, 30, lambda: AssertionError("the move does not end"))
        with pytest.raises(ApiError, match="cannot cancel the change of stream S of account APP: "):
            system.cluster.cancel_move("APP", "S")


def test_a_last_replica_stays_if_no_other_server_can_take_it(no_connection_left: None) -> None:
    with NatsCluster(config=ACCOUNTS) as cluster:
        system, app = admins(cluster)
        app.streams.create("S", subjects="s", num_replicas=3)
        app.publish("s", b"x")
        names = {str(server.name) for server in cluster.servers}

        def left(servers: set[str]) -> bool | None:
            try:
                return {each.server for each in app.streams.replicas("S")} == servers or None
            except JetStreamError:
                return None

        for name in sorted(names):
            system.cluster.evacuate_server(name)
            names = names - {name} or {name}
            poll(partial(left, names), 30, lambda: AssertionError("the replica stays elsewhere"))
        assert [message.data for message in app.messages.read("S")] == [b"x"]


def test_a_change_of_another_account_is_taken_back(no_connection_left: None) -> None:
    """It cannot end while one of the servers does not answer."""
    with NatsCluster(config=ACCOUNTS) as cluster:
        _, app = admins(cluster)
        app.streams.create("S", subjects="s", num_replicas=1)
        leader = app.streams.replicas("S")[0].server
        meta = str(cluster.servers[0].monitor("/jsz")["meta_cluster"]["leader"])
        place = next(
            index
            for index, server in enumerate(cluster.servers)
            if server.name not in (leader, meta)
        )
        up = next(index for index in range(3) if index != place)
        _, app = admins(cluster, up)
        cluster.servers[place].pause()
        try:
            app.streams.update("S", num_replicas=3)
            line = ("cancel-move", "APP", "S", "--force", "--json", *LOGIN, "sys")
            printed = succeed(*GROUP, *line, url=cluster.urls[up]).json
            assert printed == {"account": "APP", "stream": "S", "cancelled": True}
        finally:
            cluster.servers[place].resume()
        assert app.streams.load("S").config.num_replicas == 1


def test_a_cluster_that_has_lost_most_of_its_servers_is_rescued(no_connection_left: None) -> None:
    with NatsCluster(config=ACCOUNTS) as cluster:
        url = cluster.urls[0]
        system, app = admins(cluster)
        app.streams.create("S", subjects="s", num_replicas=3)
        with pytest.raises(
            JetStreamError, match=r"cannot let 1 servers decide: .*rescue not applied"
        ):
            system.cluster.rescue(1)
        with pytest.raises(OptionError, match="quorum must be at least 1, not 0"):
            system.cluster.rescue(0)
        for gone in (1, 2):
            cluster.kill(gone)

        def leaderless() -> bool | None:
            return not cluster.servers[0].monitor("/jsz")["meta_cluster"].get("leader") or None

        poll(leaderless, 60, lambda: AssertionError("the leader stays"))
        ran = run_command(
            *GROUP, "evacuate", "n", "--force", *LOGIN, "sys", "--timeout", "1s", url=url
        )
        refused(ran, 3, "; a server only answers the system account of a cluster that has a leader")

        def rescued() -> list[dict[str, object]] | None:
            # Until the server notices that the leader is gone, it refuses.
            ran = run_command(*GROUP, "rescue", 1, "--force", "--json", *LOGIN, "sys", url=url)
            return ran.json if ran.code == 0 else None

        (reply,) = poll(rescued, 60, lambda: AssertionError("the server lets no fewer decide"))
        assert reply["server"] == cluster.servers[0].name
        assert (reply["prev_quorum"], reply["new_quorum"]) == (2, 1)

        def removed(name: str) -> bool | None:
            ran = run_command(*GROUP, "remove", name, "--force", *LOGIN, "sys", url=url)
            return ran.code == 0 or None

        for gone in (1, 2):
            name = str(cluster.servers[gone].name)
            poll(partial(removed, name), 60, lambda: AssertionError("the server stays"))
        state = cluster.servers[0].monitor("/jsz")["meta_cluster"]
        assert (state["leader"], state["cluster_size"]) == (cluster.servers[0].name, 1)


def test_an_old_server_is_asked_for_nothing_that_it_does_not_know(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "server_version", (2, 14, 7))
    admin = JetStreamAdmin(servers=nats_server.url, requestTimeout="1s")
    said = r"this needs nats-server 2\.15 or newer, and this one is 2\.14\.7"
    with pytest.raises(JetStreamError, match=f"cannot evacuate server n: {said}"):
        admin.cluster.evacuate_server("n")
    with pytest.raises(JetStreamError, match=f"cannot let 1 servers decide: {said}"):
        admin.cluster.rescue(1)


def test_other_accounts_get_no_answer(nats_server: NatsServer, run: Command) -> None:
    said = r"no reply within 1 s .*; a server only answers the system account of a cluster"
    admin = JetStreamAdmin(servers=nats_server.url, requestTimeout="1s")
    with pytest.raises(
        RequestTimeout, match=f"cannot let the leader of the cluster step down: {said}"
    ):
        admin.cluster.step_down()
    ran = run("purge-account", "APP", "--force", "--timeout", "1s")
    refused(ran, 3, "cannot delete the streams of account APP: ", "only answers the system account")
    refused(
        run("remove", "n"), 2, "Remove server n, and all that only it keeps? There is no terminal"
    )
