"""Health checks: the thresholds as a table, and each check against real servers, as a command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from spark_jetstream.admin import ConsumerInfo, JetStreamAdmin, StreamInfo
from spark_jetstream.errors import OptionError
from spark_jetstream.monitoring.checks import OK, WARNING, check_consumer, check_stream
from spark_jetstream.testing import NatsCluster, NatsServer
from tests.cli.conftest import refused
from tests.support.command import run_command
from tests.support.identities import Operator, user
from tests.support.pages import ROOT
from tests.support.publish import Message, Publisher
from tests.support.reading import wait_until

SLOW = "--connect-warn 1h --connect-critical 1h --rtt-critical 1h --req-warn 1h --req-critical 1h"
SYSTEM = "accounts { $SYS { users: [{ user: sys, password: pw }] } }"
SECOND = 1_000_000_000
STREAM: dict[str, Any] = {
    "config": {"name": "S", "metadata": {}},
    "created": "2026-03-01T11:00:00Z",
    "ts": "2026-03-01T12:00:00Z",
    "state": {"messages": 5, "bytes": 9, "first_seq": 1, "last_seq": 5, "num_subjects": 3},
    "sources": [
        {"name": "A", "lag": 10, "active": SECOND},
        {"name": "B", "lag": 200, "active": -1},
    ],
    "cluster": {
        "leader": "n1",
        "replicas": [{"name": "n2"}, {"name": "n3", "lag": 7, "active": 2 * SECOND}],
    },
}
CONSUMER: dict[str, Any] = {
    "stream_name": "S",
    "name": "c",
    "created": "2026-03-01T11:00:00Z",
    "ts": "2026-03-01T12:00:00Z",
    "config": {"priority_policy": "pinned_client", "priority_groups": ["a", "b"]},
    "delivered": {"last_active": "2026-03-01T11:59:30Z"},
    "num_ack_pending": 4,
    "num_waiting": 1,
    "num_pending": 1000,
    "num_redelivered": 2,
    "priority_groups": [{"group": "a", "pinned_client_id": "x"}, {"group": "b"}],
}


def wrong_with_stream(changes: dict[str, Any], thresholds: dict[str, Any]) -> list[str]:
    info = StreamInfo.from_server({**STREAM, **changes})
    admin: Any = SimpleNamespace(streams=SimpleNamespace(load=lambda name: info))
    return [
        finding.text
        for finding in check_stream(admin, "S", **thresholds).findings
        if finding.status != OK
    ]


STREAM_THRESHOLDS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    # A lower limit is reached, not passed; 0 is one, -1 is none.
    ({"msgs_critical": 5}, ["messages: 5, critical if 5 or less"]),
    ({"msgs_critical": 4, "msgs_warn": 5}, ["messages: 5, warning if 5 or less"]),
    ({"msgs_critical": 4, "msgs_warn": -1}, []),
    ({"msgs_critical": 5, "msgs_warn": 5}, ["messages: 5, critical if 5 or less"]),
    # An upper one, since the critical threshold is above the other.
    ({"msgs_critical": 6, "msgs_warn": 5}, ["messages: 5, warning if 5 or more"]),
    ({"msgs_critical": "5", "msgs_warn": "4"}, ["messages: 5, critical if 5 or more"]),
    ({"subjects_warn": 3}, ["subjects: 3, warning if 3 or more"]),
    ({"subjects_critical": 4}, []),
    ({"subjects_critical": 0}, []),
    ({"subjects_critical": 3, "subjects_warn": 4}, ["subjects: 3, critical if 3 or less"]),
    ({"subjects_critical": 0, "subjects_warn": 3}, ["subjects: 3, warning if 3 or less"]),
    ({"min_sources": 3}, ["sources: 2, critical if less than 3"]),
    ({"max_sources": 1}, ["sources: 2, critical if more than 1"]),
    ({"min_sources": 2, "max_sources": 2}, []),
    # The worst of several counts.
    ({"lag_critical": 200}, ["lag of B: 200, critical if 200 or more"]),
    ({"lag_critical": 201, "lag_warn": 11}, ["lag of B: 200, warning if 11 or more"]),
    ({"lag_critical": 0, "lag_warn": -1}, []),
    # A source that was never seen is as old as the stream.
    ({"seen_critical": "1h"}, ["active of B: 1h, critical if 1h or more"]),
    ({"seen_critical": "61m"}, []),
    ({"peer_expect": 2}, ["peers: 3, critical if not 2"]),
    ({"peer_expect": 3}, []),
    ({"peer_lag_critical": 7}, ["peer lag of n3: 7, critical if 7 or more"]),
    ({"peer_lag_critical": 8}, []),
    (
        {"peer_seen_warn": "2s", "peer_seen_critical": "3s"},
        ["peer active of n3: 2s, warning if 2s or more"],
    ),
]


@pytest.mark.parametrize(("thresholds", "wrong"), STREAM_THRESHOLDS)
def test_the_thresholds_of_a_stream(thresholds: dict[str, Any], wrong: list[str]) -> None:
    assert wrong_with_stream({}, thresholds) == wrong
    # From metadata they mean the same, and count unless the caller has others.
    metadata = {
        f"io.nats.monitor.{name.replace('_', '-')}": str(value)
        for name, value in thresholds.items()
    }
    described = {
        "config": {"name": "S", "metadata": {**metadata, "io.nats.monitor.enabled": "true"}}
    }
    assert wrong_with_stream(described, {}) == wrong
    assert (
        wrong_with_stream(
            described, dict.fromkeys(thresholds, 0) | {"msgs_critical": -1, "msgs_warn": -1}
        )
        == []
    )


def test_the_worst_of_several_sources_with_one_name_counts() -> None:
    """Sources with one name differ in their filters or domains."""
    first, last = (
        {"name": "A", "lag": 200, "active": 9 * SECOND},
        {"name": "A", "lag": 0, "active": SECOND},
    )
    wrong = ["lag of A: 200, critical if 100 or more", "active of A: 9s, critical if 5s or more"]
    for sources in ([first, last], [last, first]):
        assert (
            wrong_with_stream({"sources": sources}, {"lag_critical": 100, "seen_critical": "5s"})
            == wrong
        )


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        (
            {"cluster": {"replicas": [{"name": "n2", "offline": True}]}},
            ["there is no leader", "n2 is offline"],
        ),
        (
            {"sources": [{"name": "A", "error": {"description": "stream not found"}}]},
            ["A: stream not found"],
        ),
        (
            {"config": {"name": "S", "metadata": {"io.nats.monitor.lag-critical": "many"}}},
            ['io.nats.monitor.lag-critical must be a whole number from -1 to 2^63-1, not "many"'],
        ),
    ],
)
def test_faults_of_a_stream_are_reported_without_thresholds(
    changes: dict[str, Any], wrong: list[str]
) -> None:
    assert wrong_with_stream(changes, {}) == wrong


@pytest.mark.parametrize(
    ("thresholds", "wrong"),
    [
        ({}, []),
        ({"outstanding_ack_critical": 4}, ["ack pending: 4, critical if 4 or more"]),
        (
            {"waiting_critical": 2, "unprocessed_warn": 1000},
            ["pending: 1,000, warning if 1,000 or more"],
        ),
        ({"redelivery_critical": 2}, ["redelivered: 2, critical if 2 or more"]),
        ({"last_delivery_critical": "30s"}, ["last delivery: 30s, critical if 30s or more"]),
        ({"last_delivery_critical": 30.5}, []),
        ({"last_ack_warn": "1h"}, ["last ack: never, warning if 1h or more"]),
        ({"pinned": True}, ["1 of 2 priority groups have a pinned client"]),
        (
            {"metadata": {"io.nats.monitor.pinned": "true"}},
            ["1 of 2 priority groups have a pinned client"],
        ),
    ],
)
def test_the_thresholds_of_a_consumer(thresholds: dict[str, Any], wrong: list[str]) -> None:
    config = {**CONSUMER["config"], "metadata": thresholds.get("metadata", {})}
    info = ConsumerInfo.from_server({**CONSUMER, "config": config})
    admin: Any = SimpleNamespace(consumers=SimpleNamespace(load=lambda stream, name: info))
    result = check_consumer(
        admin, "S", "c", **{at: value for at, value in thresholds.items() if at != "metadata"}
    )
    assert [finding.text for finding in result.findings if finding.status != OK] == wrong


def test_a_threshold_that_does_not_exist_or_is_none() -> None:
    with pytest.raises(
        OptionError, match=r"^check stream has no threshold lag_critcal; did you mean lag_critical$"
    ):
        check_stream(JetStreamAdmin(), "S", lag_critcal=1)
    with pytest.raises(OptionError, match=r"^seen_warn must be a duration from 0s .*, not "):
        check_stream(JetStreamAdmin(), "S", seen_warn="5")


# -- as commands, with real servers --


@pytest.fixture(scope="module")
def shop() -> Iterator[NatsServer]:
    """A server with what the page of the guide checks."""
    with (
        NatsServer() as server,
        JetStreamAdmin(servers=server.url) as admin,
        Publisher(server.url) as publisher,
    ):
        admin.streams.create(
            name="ORDERS", subjects=["orders.>"], metadata={"io.nats.monitor.msgs-critical": "2"}
        )
        publisher.publish(Message(f"orders.{at}", b"x") for at in range(3))
        admin.consumers.create("ORDERS", durable_name="billing", ack_policy="explicit")
        admin.streams.create(name="COPY", mirror={"name": "ORDERS"})
        admin.kv.create("prices")
        admin.kv.bucket("prices").put("tea", "1")
        wait_until(lambda: admin.streams.load("COPY").state.messages == 3, "the mirror copies")
        yield server


@pytest.fixture
def check(shop: NatsServer) -> Callable[..., Any]:
    return partial(run_command, "check", url=shop.url)


def test_checks_of_a_server(check: Callable[..., Any]) -> None:
    for line, code, text in (
        (f"connection {SLOW} --rtt-warn 1h", 0, "OK        request time: "),
        (f"conn {SLOW} --rtt-warn 1us", 1, ", warning if 1us or more\n"),
        (
            "conn -o connectTimeout=5m --server nats://127.0.0.1:1",
            2,
            "CRITICAL  no NATS server could be reached at ",
        ),
        ("stream --stream ORDERS", 0, "OK        messages: 3\n"),
        (
            "stream --stream ORDERS --msgs-critical 3",
            2,
            "CRITICAL  messages: 3, critical if 3 or less\n",
        ),
        (
            "stream --stream COPY --lag-critical 1 --seen-critical 1h --peer-expect 1",
            0,
            "OK        lag of ORDERS: 0\n",
        ),
        ("stream --stream NONE", 2, "CRITICAL  cannot look at stream NONE: stream not found"),
        ("stream --stream A.B", 3, "UNKNOWN   stream must be "),
        (
            "consumer --stream ORDERS --consumer billing --unprocessed-critical 4",
            0,
            "OK        pending: 3\n",
        ),
        (
            "consumer --stream ORDERS --consumer billing --unprocessed-critical 3",
            2,
            "pending: 3, critical if 3 or m",
        ),
        (
            "consumer --stream ORDERS --consumer billing --last-ack-warn 1h --json",
            1,
            '"last ack: never, warning if 1h',
        ),
        (
            "kv --bucket prices --key tea --values-warn 1 --values-critical 2",
            1,
            "values: 1, warning if 1 or more\n",
        ),
        (
            "kv --bucket prices --key coffee",
            2,
            "CRITICAL  cannot get key coffee of bucket prices: the key does not exist",
        ),
        (
            "meta --expect 1",
            3,
            "UNKNOWN   cannot look at the meta group: log in to the system account\n",
        ),
    ):
        ran = check(*shlex.split(line), **({"url": None} if "--server" in line else {}))
        assert (ran.code, ran.err) == (code, ""), line
        assert text in ran.out, ran.out


def test_formats(check: Callable[..., Any]) -> None:
    line = ("stream", "--stream", "ORDERS", "--msgs-warn", 3, "--msgs-critical", 0)
    data = check(*line, "--json").json
    assert data == check(*line, "--format", "json").json
    assert (data["check"], data["item"], data["status"], len(data["findings"])) == (
        "stream",
        "ORDERS",
        WARNING,
        4,
    )
    assert data["findings"][0] == {
        "status": WARNING,
        "text": "messages: 3, warning if 3 or less",
        "name": "messages",
        "value": 3,
        "unit": "",
        "thresholds": {"msgs_warn": 3, "msgs_critical": 0},
    }
    ran = check(*line, "--format", "nagios")
    numbers = "messages=3 subjects=3 sources=0 peers=1"
    assert (ran.code, ran.out) == (
        1,
        f"WARNING stream ORDERS: messages: 3, warning if 3 or less | {numbers}\n",
    )
    ran = check(*line, "--format", "prometheus", "--namespace", "nats")
    samples = [
        sample for family in text_string_to_metric_families(ran.out) for sample in family.samples
    ]
    values = {sample.name.removeprefix("nats_stream_"): sample.value for sample in samples}
    assert values == {"messages": 3, "subjects": 3, "sources": 0, "peers": 1, "status_code": 1}
    assert (ran.code, {sample.labels["item"] for sample in samples}) == (0, {"ORDERS"})
    for wrong, text in (
        ("--json --format nagios", "--json and --format nagios contradict each other"),
        ("--lag-critical x", 'lag_critical must be a whole number from -1 to 2^63-1, not "x"'),
    ):
        refused(check("stream", "--stream", "ORDERS", *wrong.split()), 2, text)


def test_credentials(tmp_path: Path) -> None:
    operator, who = Operator(), user()
    for name, lifetime in {"week": 7 * 86_400, "ended": -60, "endless": None}.items():
        (tmp_path / f"{name}.creds").write_text(operator.credentials(who, lifetime))
    (tmp_path / "odd.creds").write_text(re.sub(r"\.[\w-]+\.", ".odd.", operator.credentials(who)))
    for line, code, text in (
        ("week.creds", 0, "OK        expiry: "),
        ("week.creds --validity-warn 8d --validity-critical 1d", 1, "warning if 8d or less"),
        ("week.creds --validity-warn 8d --validity-critical 8d", 2, "critical if 8d or less"),
        ("ended.creds", 2, "CRITICAL  the JWT has expired"),
        ("endless.creds", 2, "CRITICAL  the JWT never expires"),
        ("endless.creds --no-require-expiry --validity-critical 1d", 0, ": OK"),
        ("odd.creds", 3, "UNKNOWN   the credentials hold a JWT that cannot be read\n"),
        ("gone.creds", 3, "UNKNOWN   option credentialsFile names the file "),
    ):
        ran = run_command("check", "credential", "--credential", *shlex.split(f"{tmp_path}/{line}"))
        assert (ran.code, ran.err) == (code, ""), line
        assert text in ran.out


def test_a_cluster() -> None:
    """Its replicas, and its meta group, which only a user of the system account sees."""
    with NatsCluster(config=SYSTEM) as cluster, JetStreamAdmin(servers=cluster.url) as admin:
        admin.streams.create(name="THREE", subjects=["three"], num_replicas=3)
        login = (
            "--user",
            "sys",
            "--password",
            "pw",
            "--seen-critical",
            "1h",
            "--lag-critical",
            1000,
        )
        check = partial(run_command, "check", url=cluster.url)
        wait_until(
            lambda: check("meta", "--expect", 3, *login).code == 0,
            "all servers of the meta group are current",
        )
        assert "peers: 3, critical if not 5\n" in check("meta", "--expect", 5, *login).out
        stream = ("stream", "--stream", "THREE", "--peer-seen-critical", "1h", "--peer-expect")
        # Its leader hears of the other servers by itself, maybe later than the leader of the meta
        # group.
        wait_until(
            lambda: check(*stream, 3).code == 0, "the leader of the stream knows all servers"
        )
        assert check(*stream, 2).code == 2
        lost = cluster.servers[(cluster.leader_of("THREE") + 1) % 3]
        lost.stop()
        wait_until(
            lambda: f"CRITICAL  {lost.name} is offline\n" in check(*stream, 3).out,
            "the leader notices",
        )


def test_a_server_of_no_cluster_has_no_meta_group() -> None:
    with NatsServer(config=SYSTEM) as server:
        ran = run_command(
            "check", "meta", "--expect", 1, "--user", "sys", "--password", "pw", url=server.url
        )
    assert ran.code == 2
    assert ran.out.splitlines()[1:] == [
        "  CRITICAL  the server is in no cluster, and has no meta group"
    ]


def test_the_lines_of_the_guide(check: Callable[..., Any], tmp_path: Path) -> None:
    """Each line runs as it stands, up to a redirection."""
    (tmp_path / "spark.creds").write_text(Operator().credentials(user(), 7 * 86_400))
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8").replace("\\\n", "")
    lines = re.findall(r"^spark-jetstream check ([^>\n]*)", page, re.MULTILINE)
    assert len(lines) > 5
    for line in lines:
        ran = check(*shlex.split(line.replace("/etc/nats/", f"{tmp_path}/")))
        assert ran.err == "", line
        assert ran.code == (3 if line.startswith("meta") else 0) or line.startswith("connection"), (
            ran.out
        )
