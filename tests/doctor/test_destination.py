"""``spark-jetstream doctor`` for a sink without option ``stream``: which stream stores its rows."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.admin import trace as tracing
from spark_jetstream.client.pool import close_all
from spark_jetstream.doctor.destination import find_destination
from spark_jetstream.errors import RequestTimeout
from spark_jetstream.protocol.features import MESSAGE_TRACES
from spark_jetstream.testing import NatsCluster, NatsServer
from spark_jetstream.testing.process import LOOPBACK, PortLease
from tests.doctor.test_doctor import login, look, trouble
from tests.support.command import run_command
from tests.support.features import for_none
from tests.support.leaf import Linked
from tests.support.reading import wait_until

CONFIG = """
accounts {
  SHOP {
    jetstream: enabled
    mappings: { "in.*": "renamed.$1" }
    exports: [{ stream: "both.>" }, { stream: "hidden.>" }]
    users: [
      { user: shop, password: pw }
      { user: writer, password: pw, permissions: {
        publish: { allow: ["orders.>", "$JS.API.>", "$SYS.REQ.USER.INFO"] }
      } }
      { user: stranger, password: pw, permissions: { publish: { deny: ["orders.>"] } } }
    ]
  }
  COPY {
    jetstream: enabled, users: [{ user: copy, password: pw }]
    imports: [
      { stream: { account: SHOP, subject: "both.>" }, allow_trace: true }
      { stream: { account: SHOP, subject: "hidden.>" } }
    ]
  }
}
"""
STREAMS: dict[str, dict[str, Any]] = {
    "ORDERS": {"subjects": ["orders.>"]},
    "RENAMED": {"subjects": ["renamed.>"]},
    "BOTH": {"subjects": ["both.>"]},
    "KEEPS": {"subjects": ["kept.>"], "retention": "interest"},
    "TRANSFORMED": {
        "subjects": ["moved.>"],
        "subject_transform": {"src": "moved.>", "dest": "there.>"},
    },
}


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer(config=CONFIG) as server:
        with JetStreamAdmin(servers=server.url, user="shop", password="pw") as shop:
            for name, config in STREAMS.items():
                shop.streams.create(name, storage="memory", **config)
        with JetStreamAdmin(servers=server.url, user="copy", password="pw") as copy:
            copy.streams.create("COPIES", subjects=["both.>", "hidden.>"], storage="memory")
        yield server
        close_all()


def destination(server: NatsServer, subject: str, user: str = "shop") -> tuple[str, str]:
    """Return status and text of the finding. Nothing is stored."""
    _, findings = look(server.url, *login(user), "--subject", subject)
    with JetStreamAdmin(servers=server.url, user="shop", password="pw") as shop:
        assert [info.state.messages for info in shop.streams.infos()] == [0] * len(STREAMS)
    finding = findings["destination"]
    return finding["status"], finding["said"]


@pytest.mark.parametrize(
    ("subject", "status", "text"),
    [
        ("orders.a", "ok", "ORDERS stores rows at orders.a"),
        ("in.a", "ok", "RENAMED stores rows at in.a as renamed.a"),
        ("moved.a", "ok", "TRANSFORMED stores rows at moved.a as there.a"),
        ("nowhere.a", "failed", "no stream stores a row at nowhere.a: writes fail, because nobody"),
        ("kept.a", "warning", "KEEPS acknowledges rows at kept.a and drops them"),
        ("hidden.a", "unknown", "not known: account COPY may do more with it"),
        ("orders.>", "unknown", "skipped: orders.> has wildcards"),
    ],
)
def test_a_subject_leads_to_a_stream(
    server: NatsServer, subject: str, status: str, text: str
) -> None:
    found, said = destination(server, subject)
    assert (found, said[: len(text)]) == (status, text)


def test_two_accounts_store_each_row(server: NatsServer) -> None:
    status, said = destination(server, "both.a")
    assert status == "warning"
    assert {*said.partition(" store each row at both.a")[0].split(" and ")} == {"BOTH", "COPIES"}
    assert "SHOP" in said
    assert "COPY" in said


def test_the_stream_is_checked_for_the_job(server: NatsServer) -> None:
    code, findings = look(server.url, *login("shop"), "--subject", "orders.a")
    assert (code, trouble(findings)) == (0, {})
    assert findings["writing"]["said"] == "takes orders.a"
    assert findings["$JS.API.STREAM.INFO.ORDERS"]["status"] == "ok"
    # The name that a mapping gives to rows is not the one that the job uses.
    code, findings = look(server.url, *login("shop"), "--subject", "in.a")
    assert (code, "writing" in findings) == (0, False)


def test_subscribers_alone_acknowledge_nothing(server: NatsServer) -> None:
    with (
        JetStreamAdmin(servers=server.url, user="shop", password="pw") as shop,
        shop.subscribe("heard.>"),
    ):
        assert destination(server, "heard.a") == (
            "failed",
            "no stream stores a row at heard.a, which has 1 subscriber: writes wait for an "
            "acknowledgement, and fail",
        )


@pytest.mark.parametrize(
    ("user", "reason"),
    [
        ("writer", "skipped: cannot trace orders.a: the account may not publish to _INBOX.>"),
        ("stranger", "skipped: cannot trace orders.a: the account may not publish to it"),
    ],
)
def test_a_missing_permission_is_no_failure(server: NatsServer, user: str, reason: str) -> None:
    status, said = destination(server, "orders.a", user)
    assert (status, said[: len(reason)]) == ("unknown", reason)


def test_an_older_server_is_no_failure(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "MESSAGE_TRACES", for_none(MESSAGE_TRACES))
    code, findings = look(server.url, *login("shop"), "--subject", "orders.a")
    assert (code, findings["destination"]["status"]) == (0, "unknown")
    assert findings["destination"]["said"].startswith("skipped: cannot trace orders.a: this needs")


def test_a_stream_without_a_leader_is_not_taken_for_none() -> None:
    with NatsCluster() as cluster:
        try:
            with JetStreamAdmin(servers=cluster.url) as admin:
                admin.streams.create("AWAY", subjects=["away.>"])
                cluster.kill(cluster.leader_of("AWAY"))
                cluster.wait_ready()
                found = find_destination(admin, "away.a", "").finding
            assert (found.status, found.said) == (
                "failed",
                "AWAY has no leader now: writes at away.a wait for one",
            )
        finally:
            close_all()


def test_clients_of_mqtt_get_no_trace() -> None:
    """A server would deliver it to them."""
    lease = PortLease()
    config = f'server_name: m\njetstream: enabled\nmqtt {{ listen: "{LOOPBACK}:{lease.port}" }}'
    with NatsServer(config=config) as server:
        try:
            with (
                socket.create_connection((LOOPBACK, lease.port), 60) as client,
                JetStreamAdmin(servers=server.url) as admin,
            ):
                # CONNECT as client "id", then SUBSCRIBE to a/b, with their answers (MQTT 3.1.1).
                client.sendall(b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x3c\x00\x02id")
                assert client.recv(4) == b"\x20\x02\x00\x00"
                client.sendall(b"\x82\x08\x00\x01\x00\x03a/b\x00")
                assert client.recv(5) == b"\x90\x03\x00\x01\x00"
                found = find_destination(admin, "a.b", "").finding
                assert found.said.startswith("skipped: the account has clients of MQTT")
                # The first message is this one: no trace came before it.
                with pytest.raises(RequestTimeout):
                    admin.request("a.b", b"after", timeout=0.05)
                assert client.recv(12).endswith(b"after")
        finally:
            close_all()
            lease.release()


def test_a_leaf_node_leads_to_a_stream_of_another_domain() -> None:
    with Linked() as linked:
        with (
            JetStreamAdmin(servers=linked.hub.url) as hub,
            JetStreamAdmin(servers=linked.leaf.url) as leaf,
        ):
            hub.streams.create("ORDERS", subjects=["orders.>"], storage="memory")
            wait_until(lambda: bool(leaf.trace("orders.a").streams), "the leaf node knows of it")
            found = find_destination(leaf, "orders.a", "leaf")
            assert found.finding.said == "ORDERS (domain hub) stores rows at orders.a"
            # The API of the connection is that of the other domain.
            assert found.stream is None
            assert find_destination(hub, "orders.a", "hub").stream == "ORDERS"
        close_all()


def test_rows_need_a_subject(nats_server: NatsServer) -> None:
    ran = run_command("doctor", "--no-spark", "--for", "write", url=nats_server.url)
    assert (ran.code, "--for write needs --subject" in ran.err) == (2, True)
