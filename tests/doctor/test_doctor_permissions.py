"""``spark-jetstream doctor`` and permissions: what it says of each line is true, and it sends one
request for all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from spark_jetstream.admin.models.streams import StreamSource
from spark_jetstream.client.pool import close_all, connect
from spark_jetstream.doctor.findings import Finding
from spark_jetstream.doctor.permissions import WHO_AM_I, Identity, Job, check_permissions, who_am_i
from spark_jetstream.doctor.servers import check_user
from spark_jetstream.options import ConnectionOptions
from spark_jetstream.permissions import Permission, user_config
from spark_jetstream.testing import NatsServer
from tests.support.command import Ran, run_command, succeed
from tests.support.identities import Operator, user
from tests.support.keyed import puts
from tests.support.publish import Publisher, Tap
from tests.support.reading import wait_until
from tests.support.sinking import Sink

CHOICES = {
    "read": "--stream S --for read --for direct",
    "filtered": "--stream S --for read --filter s.a",
    "durable": "--stream S --durable spark",
    "after": "--stream S --starting-consumer spark",
    "directly": "--stream S --durable spark --for direct",
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

    once = ("stream", "bucket", "object-bucket", "subject", "durable", "starting-consumer")
    stream, bucket, objects, subject, durable, after = (
        next(iter(given(option)), None) for option in once
    )
    job = Job(
        tuple(given("for")),
        stream,
        bucket,
        objects,
        subject,
        tuple(given("filter")),
        durable,
        after,
    )
    return job.completed().permissions(ConnectionOptions(), queue=name == "queue", old=False)


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    """A server with two users for each choice: one may do just that, the other has no more than an
    inbox.

    Further users lack a permission of "filtered" each, and are named like a part of its subject.
    All users may ask what they may do.
    """
    asking = Permission(WHO_AM_I, "the doctor")
    sets = {name: lines_of(name) for name in CHOICES}
    sets |= {
        f"{name}-bare": tuple(line for line in sets[name] if line.kind == "subscribe")
        for name in CHOICES
    }
    for part in ("CREATE", "DELETE", "INFO"):
        sets[part] = tuple(line for line in sets["filtered"] if part not in line.subject)
    users = [user_config(name, "pw", [*lines, asking]) for name, lines in sets.items()]
    text = "\n".join(["{ user: root, password: pw }", *users])
    with NatsServer(
        config=f"accounts {{ A {{ jetstream: enabled, users: [ {text} ] }} }}"
    ) as server:
        with root(server) as publisher:
            for name, config in STREAMS.items():
                publisher.api(
                    f"STREAM.CREATE.{name}", {"name": name, "storage": "memory", **config}
                )
            for stream, consumer in (("S", "paused"), ("S", "spark"), ("Q", "spark")):
                config = {"durable_name": consumer, "ack_policy": "explicit"}
                config |= {"pause_until": "2100-01-01T00:00:00Z"} if consumer == "paused" else {}
                publisher.api(
                    f"CONSUMER.CREATE.{stream}.{consumer}",
                    {"stream_name": stream, "config": config},
                )
            for subject in ROWS:
                publisher.request(subject, b"x")
        yield server
        close_all()


def root(server: NatsServer) -> Publisher:
    return Publisher(server.url.replace("//", "//root:pw@"))


def findings_of(
    lines: Iterable[Permission], server: NatsServer, **options: str
) -> dict[str, Finding]:
    """The findings about a user's permissions, by their subjects; or why they are not known."""
    connection = connect(ConnectionOptions.from_spark({"servers": server.url, **options}))
    identity = who_am_i(connection)
    if isinstance(identity, Finding):
        findings = [identity]
    else:
        findings = list(check_permissions(connection, identity, lines, clustered=False))
    close_all()
    return {finding.check: finding for finding in findings}


@pytest.mark.parametrize("name", CHOICES)
def test_each_permission_that_is_missing_is_named(server: NatsServer, name: str) -> None:
    lines = [line for line in lines_of(name) if line.when != "cluster"]
    findings = findings_of(lines_of(name), server, user=name, password="pw")
    assert {subject: finding.status for subject, finding in findings.items()} == {
        line.subject: "ok" for line in lines
    }
    findings = findings_of(lines_of(name), server, user=f"{name}-bare", password="pw")
    assert len(findings) == len(lines)
    for line in lines:
        finding = findings[line.subject]
        if line.kind == "subscribe":
            assert finding.status == "ok"
            continue
        assert f'"{line.subject}"' in finding.what_to_do
        assert finding.said.startswith("denied: ")
        assert finding.status == ("warning" if line.when or line.without else "failed")


def test_a_query_that_reads_by_direct_gets_needs_no_consumers_for_its_tasks(
    server: NatsServer,
) -> None:
    given = (*CHOICES["directly"].split(), "--user", "directly", "--password", "pw")
    assert "0 failed, 0 warnings" in succeed("doctor", "--no-spark", *given, url=server.url).out


def test_rows_for_a_mirror_of_a_bucket_go_to_its_origin(
    nats_server_factory: Callable[..., NatsServer],
) -> None:
    job = Job(("write",), bucket="m")
    lines = job.permissions(
        ConnectionOptions(), queue=False, old=False, mirror=StreamSource(name="KV_b")
    )
    asking = [
        Permission(subject, "the doctor") for subject in (WHO_AM_I, "$JS.API.STREAM.INFO.KV_m")
    ]
    users = f"{{ user: root, password: pw }}\n{user_config('ann', 'pw', [*lines, *asking])}"
    server = nats_server_factory(
        config=f"accounts {{ A {{ jetstream: enabled, users: [ {users} ] }} }}"
    )
    with root(server) as publisher:
        for name, config in (("KV_b", STREAMS["KV_b"]), ("KV_m", {"mirror": {"name": "KV_b"}})):
            publisher.api(f"STREAM.CREATE.{name}", {"name": name, "storage": "memory", **config})
        wait_until(
            lambda: publisher.api("STREAM.INFO.KV_m")["mirror"]["active"] >= 0,
            "the mirror hears of its origin",
        )
    login = {"user": "ann", "password": "pw"}
    assert Sink(server.url, **login, bucket="m").write([puts(("x", b"1"))]).stored == 1
    given = ("--bucket", "m", "--for", "write", "--user", "ann", "--password", "pw")
    ran = succeed("doctor", "--no-spark", *given, url=server.url)
    assert "0 failed, 0 warnings" in ran.out
    assert "writing: is a mirror: rows go to KV_b" in ran.out
    close_all()


def test_the_command_ends_as_the_permissions_are(server: NatsServer) -> None:
    def run(user: str) -> Ran:
        login = ("--user", user, "--password", "pw")
        return run_command(
            "doctor", "--no-spark", *CHOICES["filtered"].split(), *login, url=server.url
        )

    assert run("filtered").code == 0
    ran = run("CREATE")
    assert ran.code == 1
    assert 'publish { allow: ["$JS.API.CONSUMER.CREATE.S.*.s.a"] }' in ran.out
    ran = run("DELETE")  # it can do without this one
    assert ran.code == 0
    assert "idle for 30 seconds" in ran.out
    ran = run("INFO")
    assert ran.code == 1
    assert "see the permissions below" in ran.out


NEEDED = (
    Permission("_INBOX.>", "answers", kind="subscribe"),
    Permission("$JS.API.STREAM.INFO.S", "state"),
    Permission("$JS.API.CONSUMER.DELETE.S.*", "when done", without="consumers stay"),
    Permission("$JS.API.STREAM.PURGE.S", "a commit"),
    Permission("s.>", "the rows"),
)
RIGHTS: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {
    "default": ("", {}),
    "wildcards": (
        'publish: { allow: ["$JS.API.*.INFO.>", "$JS.API.STREAM.>", "*.API.CONSUMER.*.S.*", '
        '"$SYS.REQ.>", ">"] }', {}
    ),
    "inboxes of two tokens": ('subscribe: { allow: ["_INBOX.*.*"] }', {}),
    "queue groups": ('subscribe: { allow: ["_INBOX.>", "> q"], deny: ["_INBOX.*.* q"] }', {}),
    "a part of the rows": (
        'publish: { allow: ["$SYS.>", "$JS.API.>", "s.*"] }',
        {"s.>": ("failed", 'allow it: publish { allow: ["s.>"] }')},
    ),
    "denials": (
        'publish: { deny: ["$JS.API.STREAM.PURGE.*", "$JS.*.CONSUMER.DELETE.>", "s.secret"] }',
        {
            "$JS.API.STREAM.PURGE.S": ("failed", "do not deny $JS.API.STREAM.PURGE.*"),
            "$JS.API.CONSUMER.DELETE.S.*": ("warning", "do not deny $JS.*.CONSUMER.DELETE.>"),
            "s.>": ("warning", "do not deny s.secret"),
        },
    ),
    "denied although allowed": (
        'publish: { allow: [">"], deny: ["s.>"] }', {"s.>": ("failed", "do not deny s.>")},
    ),
    "may not ask": (
        'publish: { deny: ["$SYS.>"] }',
        {
            "account": (
                "unknown", 'to have permissions checked, allow it: publish { allow: '
                           '["$SYS.REQ.USER.INFO"] }',
            ),
        },
    ),
}  # fmt: skip


def test_wildcards_allow_and_denials_deny(nats_server_factory: Callable[..., NatsServer]) -> None:
    users = [
        f'{{ user: "{name}", password: pw, permissions: {{ {rights} }} }}'
        for name, (rights, _) in RIGHTS.items()
    ]
    server = nats_server_factory(
        config=f"accounts {{ A {{ jetstream: enabled, users: [{', '.join(users)}] }} }}"
    )
    for name, (_, expected) in RIGHTS.items():
        findings = findings_of(NEEDED, server, user=name, password="pw")
        trouble = {
            subject: (it.status, it.what_to_do)
            for subject, it in findings.items()
            if it.status != "ok"
        }
        assert trouble == expected, name
        assert len(findings) == (1 if "account" in expected else len(NEEDED)), name
        if name == "denials":
            assert findings["s.>"].said == "denied in part: the rows"


def test_permissions_that_the_server_does_not_list_are_unknown(
    nats_server_factory: Callable[..., NatsServer],
) -> None:
    elsewhere = (
        'accounts { A { users: [{ user: a, password: pw }], mappings: { "$SYS.REQ.USER.INFO": '
        '"nobody" } } }'
    )
    (finding,) = findings_of(
        NEEDED, nats_server_factory(config=elsewhere), user="a", password="pw"
    ).values()
    assert (finding.check, finding.status) == ("account", "unknown")
    assert finding.said.startswith("the server does not say: cannot ask who I am: ")


def test_the_rights_of_a_jwt_count(nats_server_factory: Callable[..., NatsServer]) -> None:
    operator, who = Operator(), user()
    pub = {"allow": ["$JS.API.>", "$SYS.REQ.USER.INFO", "s.>"], "deny": ["$JS.*.STREAM.PURGE.S"]}
    server = nats_server_factory(config=operator.config)
    findings = findings_of(NEEDED, server, credentialsSecret=operator.credentials(who, pub=pub))
    trouble = {
        subject: finding.status for subject, finding in findings.items() if finding.status != "ok"
    }
    assert trouble == {"$JS.API.STREAM.PURGE.S": "failed"}


def test_credentials_that_expire_soon_are_named_by_their_option(
    nats_server_factory: Callable[..., NatsServer],
) -> None:
    operator = Operator()
    server = nats_server_factory(config=operator.config)
    bearer = operator.credentials(user(), 3600, bearer_token=True).splitlines()[1]
    options = ConnectionOptions.from_spark({"servers": server.url, "jwtSecret": bearer})
    identity = who_am_i(connect(options))
    assert isinstance(identity, Identity)
    findings = {each.check: each for each in check_user(identity, 0, options)}
    close_all()
    found = findings["credentials"]
    assert (found.status, found.what_to_do) == ("warning", "renew them (option jwtSecret)")


def test_a_server_takes_its_own_domain_out_of_a_subject(
    nats_server_factory: Callable[..., NatsServer],
) -> None:
    plain, own = (
        f'{{ user: {name}, password: pw, permissions: {{ publish: ["$SYS.>", "{api}", "$KV.>"] }} '
        f"}}"
        for name, api in (("plain", "$JS.API.>"), ("own", "$JS.hub.API.>"))
    )
    text = (
        f"jetstream: {{ domain: hub }}, accounts: {{ A: {{ jetstream: enabled, users: [{plain}, "
        f"{own}] }} }}"
    )
    server = nats_server_factory(config=text)
    lines = (
        Permission("$JS.hub.API.STREAM.INFO.S", "state"),
        Permission("$JS.hub.API.$KV.b.>", "rows"),
    )
    for name, statuses in (("plain", ["ok", "ok"]), ("own", ["failed", "ok"])):
        findings = [*findings_of(lines, server, user=name, password="pw", domain="hub").values()]
        assert [finding.status for finding in findings] == statuses
    assert findings[0].what_to_do == 'allow it: publish { allow: ["$JS.API.STREAM.INFO.S"] }'


@pytest.mark.parametrize("name", CHOICES)
def test_the_doctor_publishes_nothing_but_questions(server: NatsServer, name: str) -> None:
    login = ("--user", "root", "--password", "pw")
    with Tap(server.url.replace("//", "//root:pw@")) as tap:
        succeed("doctor", "--no-spark", "--strict", *CHOICES[name].split(), *login, url=server.url)
        asked = {message.subject for message in tap.heard()} - {
            "$JS.EVENT.ADVISORY.API"
        }  # the server's own
    stream = next(stream for stream in STREAMS if f"$JS.API.STREAM.INFO.{stream}" in asked)
    questions = {"$JS.API.INFO", f"$JS.API.STREAM.INFO.{stream}"}
    if name == "after":
        questions.add(f"$JS.API.CONSUMER.INFO.{stream}.spark")
    assert asked - {WHO_AM_I} == questions
