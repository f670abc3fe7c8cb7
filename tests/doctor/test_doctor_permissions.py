"""``spark-jetstream doctor`` and permissions: what it says of each line is true, and looking changes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_jetstream.client.pool import close_all, connect
from spark_jetstream.doctor.permissions import Job, check_permissions
from spark_jetstream.doctor.report import Finding
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.permissions import Permission, user_config
from spark_jetstream.testing import NatsServer
from tests.support.command import Ran, run_command, succeed
from tests.support.publish import Publisher

CHOICES = {
    "read": "--stream S --for read --for direct",
    "filtered": "--stream S --for read --filter s.a",
    "durable": "--stream S --durable spark",
    "queue": "--stream Q --durable spark",
    "write": "--stream S --for exactly-once --subject s.a",
    "table": "--bucket b --for read --for write",
    "objects": "--object-bucket o --for read --for write",
    "admin": "--stream S --for administer --for backup --for restore --for ensure",
}
STREAMS: dict[str, dict[str, Any]] = {
    "S": {"subjects": ["s.>"], "allow_direct": True},
    "Q": {"subjects": ["q.>"], "retention": "workqueue", "allow_direct": True},
    "KV_b": {"subjects": ["$KV.b.>"], "allow_direct": True, "max_msgs_per_subject": 1},
    "OBJ_o": {"subjects": ["$O.o.C.>", "$O.o.M.>"], "allow_direct": True},
    "KV_spark_jetstream_ledger": {"subjects": ["$KV.spark_jetstream_ledger.>"]},
}
ROWS = ("s.a", "s.b", "q.a", "$KV.b.k", "$O.o.M.n", "$O.o.C.n")


def lines_of(name: str) -> tuple[Permission, ...]:
    def given(option: str) -> list[str]:
        return re.findall(rf"--{option} (\S+)", CHOICES[name])

    once = ("stream", "bucket", "object-bucket", "subject", "durable")
    stream, bucket, objects, subject, durable = (next(iter(given(option)), None) for option in once)
    job = Job.parse(stream, bucket, objects, given("for"), subject, given("filter"), durable)
    return job.permissions(ConnectionOptions(), queue=name == "queue", old=False)


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    """One with a user for each choice, who may do just that, and users who lack one line of it each."""
    users = ["{ user: root, password: pw }"]
    for name in CHOICES:
        lines = lines_of(name)
        users.append(user_config(name, "pw", lines))
        users += [
            user_config(f"{name}-{number}", "pw", [other for other in lines if other is not line])
            for number, line in enumerate(lines)
        ]
    text = f"accounts {{ A {{ jetstream: enabled, users: [\n{chr(10).join(users)}\n] }} }}"
    with NatsServer(config=text) as server, root(server) as publisher:
        for name, config in STREAMS.items():
            publisher.api(f"STREAM.CREATE.{name}", {"name": name, "storage": "memory", **config})
        for stream, consumer in (("S", "paused"), ("S", "spark"), ("Q", "spark")):
            config = {"durable_name": consumer, "ack_policy": "explicit"}
            config |= {"pause_until": "2100-01-01T00:00:00Z"} if consumer == "paused" else {}
            publisher.api(f"CONSUMER.CREATE.{stream}.{consumer}", {"stream_name": stream, "config": config})
        for subject in ROWS:
            publisher.request(subject, b"x")
        yield server
        close_all()


def root(server: NatsServer) -> Publisher:
    return Publisher(server.url.replace("//", "//root:pw@"))


def everything(server: NatsServer) -> str:
    """All that the server says of streams and consumers, without its clock."""
    with root(server) as publisher:
        found = {
            name: [
                publisher.api(f"STREAM.INFO.{name}", {"subjects_filter": ">", "deleted_details": True}),
                *publisher.api(f"CONSUMER.LIST.{name}")["consumers"],
            ]
            for name in sorted(publisher.api("STREAM.NAMES")["streams"])
        }
    for infos in found.values():
        for info in infos:
            info.pop("ts", None)
            info.pop("pause_remaining", None)
    return json.dumps(found, sort_keys=True)


def look(server: NatsServer, user: str, name: str) -> dict[str, Finding]:
    """The findings about a user's permissions, by their subjects."""
    options = ConnectionOptions.from_spark({"servers": server.url, "user": user, "password": "pw"})
    found = {each.check: each for each in check_permissions(connect(options), lines_of(name), clustered=False)}
    close_all()
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ("durable", "objects") else [pytest.mark.full]) for name in CHOICES]
)
def test_each_line_that_is_missing_is_found_and_no_other(server: NatsServer, name: str) -> None:
    before = everything(server)
    lines = [(number, line) for number, line in enumerate(lines_of(name)) if line.when != "cluster"]
    # A server that took half a request for whole would delete the stream.
    not_tried = {"$JS.API.STREAM.DELETE.S"}
    found = look(server, name, name)
    assert {subject: each.status for subject, each in found.items()} == {
        line.subject: "unknown" if line.subject in not_tried else "ok" for _, line in lines
    }
    for number, line in lines:
        if line.subject in not_tried:
            continue
        found = look(server, f"{name}-{number}", name)
        bads = [each for each in found.values() if each.status in ("failed", "warning")]
        assert len(bads) == 1, (line, found)
        bad = bads[0]
        assert bad.check == line.subject
        assert f'"{line.subject}"' in bad.what_to_do
        if line.kind == "subscribe":
            assert {each.status for each in found.values() if each is not bad} == {"unknown"}
            continue
        assert bad.said.startswith("denied: ")
        assert bad.status == ("warning" if line.when or line.without else "failed")
    assert everything(server) == before


def test_the_command_ends_as_the_permissions_are(server: NatsServer) -> None:
    subjects = [line.subject for line in lines_of("filtered")]

    def run(user: str) -> Ran:
        login = ("--user", user, "--password", "pw")
        return run_command("doctor", "--no-spark", *CHOICES["filtered"].split(), *login, url=server.url)

    assert run("filtered").code == 0
    ran = run(f"filtered-{subjects.index('$JS.API.CONSUMER.CREATE.S.*.s.a')}")
    assert ran.code == 1
    assert 'publish { allow: ["$JS.API.CONSUMER.CREATE.S.*.s.a"] }' in ran.out
    # It can do without this one.
    ran = run(f"filtered-{subjects.index('$JS.API.CONSUMER.DELETE.S.*')}")
    assert ran.code == 0
    assert "idle for 30 seconds" in ran.out
    ran = run(f"filtered-{subjects.index('$JS.API.STREAM.INFO.S')}")
    assert ran.code == 1
    assert "see the permissions below" in ran.out


def test_looking_behind_a_domain_stores_nothing(nats_server_factory: Callable[..., NatsServer]) -> None:
    """Keys of buckets stand behind the prefix of the API there, as requests do."""
    server = nats_server_factory(config="jetstream { domain: hub }")
    names = ("S", "KV_b", "KV_spark_jetstream_ledger")
    with Publisher(server.url) as publisher:
        for name in names:
            publisher.api(f"STREAM.CREATE.{name}", {"name": name, "storage": "memory", **STREAMS[name]})
        for name in ("table", "write"):
            succeed("doctor", "--no-spark", *CHOICES[name].split(), "--js-domain", "hub", url=server.url)
        assert [publisher.api(f"STREAM.INFO.{name}")["state"]["messages"] for name in names] == [0, 0, 0]


def test_a_ledger_that_the_first_write_will_make(nats_server_factory: Callable[..., NatsServer]) -> None:
    server = nats_server_factory(config="jetstream { domain: hub }")
    given = ("doctor", "--no-spark", *CHOICES["write"].split())
    ledger = "KV_spark_jetstream_ledger"
    with Publisher(server.url) as publisher:
        publisher.api("STREAM.CREATE.S", {"name": "S", **STREAMS["S"]})
        for prefix in ((), ("--js-domain", "hub")):
            succeed(*given, "--strict", *prefix, url=server.url)
        assert publisher.api("STREAM.NAMES")["streams"] == ["S"]
        # One that is there must take its entries.
        publisher.api(f"STREAM.CREATE.{ledger}", {"name": ledger, "subjects": ["elsewhere"]})
        ran = run_command(*given, url=server.url)
    assert (ran.code, ran.out.count("no stream captures it")) == (1, 1)


def test_who_may_do_all_changes_nothing_by_looking(server: NatsServer) -> None:
    before = everything(server)
    for line in CHOICES.values():
        succeed("doctor", "--no-spark", *line.split(), "--user", "root", "--password", "pw", url=server.url)
    assert everything(server) == before
    assert '"paused": true' in before
