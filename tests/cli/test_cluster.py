"""``spark-jetstream cluster``: what the system account does with a cluster, and that no other
account can.
"""

from __future__ import annotations

from functools import partial

import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.errors import RequestTimeout
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
