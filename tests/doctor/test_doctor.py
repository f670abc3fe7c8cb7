"""``spark-jetstream doctor``: what it sees of servers, accounts and streams, and how it ends."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trustme

from spark_jetstream.admin import DEFAULT_CONSUMER, JetStreamAdmin
from spark_jetstream.client.pool import close_all
from spark_jetstream.doctor.checks import check_stream
from spark_jetstream.doctor.findings import Finding, within
from spark_jetstream.doctor.handover import check_handover
from spark_jetstream.doctor.permissions import Job
from spark_jetstream.doctor.servers import check_clock
from spark_jetstream.errors import ConsumerLimitReached, JetStreamNotEnabled
from spark_jetstream.testing import NatsCluster, NatsServer
from spark_jetstream.testing.process import LOOPBACK
from tests.support.client import tls_config
from tests.support.command import Ran, run_command, run_process, succeed
from tests.support.identities import Operator, user
from tests.support.keyed import make_bucket, name_of
from tests.support.publish import Publisher
from tests.support.reading import wait_until
from tests.support.streams import MakeStream

QUICK = ("-o", "connectTimeout=3s")


def by_check(ran: Ran) -> dict[str, dict[str, str]]:
    """The findings by what was looked at; servers without their URL."""
    return {
        item["check"].rpartition("//")[2].partition(" ")[2] or item["check"]: item
        for item in ran.json
    }


def look(url: str, *arguments: object) -> tuple[int, dict[str, dict[str, str]]]:
    """Return the exit code and the findings of the command, which does not check Spark."""
    ran = run_command("doctor", "--no-spark", "--json", *arguments, url=url)
    assert ran.err == ""
    return ran.code, by_check(ran)


def trouble(findings: dict[str, dict[str, str]]) -> dict[str, str]:
    """Return the findings that are failures or warnings. Each says what to do about it."""
    bad = {
        name: finding
        for name, finding in findings.items()
        if finding["status"] in ("failed", "warning")
    }
    assert all(item["what_to_do"] for item in bad.values())
    return {name: item["status"] for name, item in bad.items()}


def wrong(
    check: str,
    code: int,
    url: str,
    *arguments: object,
    status: str = "failed",
    text: str = "",
    advice: str = "",
) -> dict[str, dict[str, str]]:
    """All findings, when one of them is wrong: what it says, what it advises, and how the command
    ends.
    """
    ended, findings = look(url, *arguments)
    assert (ended, trouble(findings)) == (code, {check: status})
    assert text in findings[check]["said"]
    assert advice in findings[check]["what_to_do"]
    return findings


# Healthy


def test_a_healthy_server_has_no_trouble(nats_server: NatsServer, stream: MakeStream) -> None:
    orders = stream(allow_direct=True)
    purposes = [part for purpose in ("read", "direct", "write") for part in ("--for", purpose)]
    given = ("--stream", orders.name, "--subject", f"{orders.subject}.a", *purposes, "--strict")
    code, findings = look(nats_server.url, *given)
    assert (code, trouble(findings)) == (0, {})
    assert findings["servers"]["said"] == f"{nats_server.url} (command line)"
    assert findings["clock"]["said"] == "agrees with the server's"
    assert findings[f"$JS.API.STREAM.INFO.{orders.name}"]["status"] == "ok"
    ran = succeed("doctor", "--no-spark", *given, url=nats_server.url)
    assert f"Stream {orders.name}" in ran.out
    assert "0 failed, 0 warnings, 0 unknown" in ran.out
    assert "$JS.API" not in ran.out  # what is granted is counted, unless all is wanted
    assert (
        f"$JS.API.DIRECT.GET.{orders.name}: "
        in succeed("doctor", "--no-spark", *given, "-a", url=nats_server.url).out
    )


def test_a_consumer_to_share(nats_server: NatsServer, stream: MakeStream) -> None:
    """Whether it exists and has the right settings, and whether its stream is a work queue."""
    jobs = stream(retention="workqueue")
    given = ("--stream", jobs.name, "--share", "pool")
    url = nats_server.url
    advice = f"consumer add {jobs.name} pool --ack explicit --wait 5m --max-ack-pending 50000"
    wrong("share", 1, url, *given, text="pool", advice=advice)
    with JetStreamAdmin(servers=url) as admin:
        config: dict[str, Any] = {
            "durable_name": "pool",
            "ack_policy": "explicit",
            "max_ack_pending": 10_000,
        }
        admin.consumers.create(jobs.name, ack_wait="5m", **config)
        code, findings = look(url, *given)
        assert (code, trouble(findings)) == (0, {})
        assert findings["share"]["said"] == (
            "consumer pool gives messages to others after 300 s without a sign of life"
        )
        assert f"$JS.ACK.{jobs.name}.pool.>" in findings
        admin.consumers.update(jobs.name, "pool", max_deliver=3)
        caution = "gives a message up after 3 deliveries (max_deliver)"
        wrong("share", 0, url, *given, status="warning", text=caution, advice="edit consumer pool")
        admin.consumers.update(jobs.name, "pool", max_deliver=-1, ack_wait="10s")
        wrong("share", 1, url, *given, text="after less than 30 seconds", advice="change the")
        orders = stream()
        admin.consumers.create(orders.name, ack_wait="5m", **config)
    given = ("--stream", orders.name, "--share", "pool")
    wrong("retention", 1, url, *given, text="limits retention", advice="leave out option share")


def test_a_consumer_to_begin_after(nats_server: NatsServer, stream: MakeStream) -> None:
    """Whether it exists, where the query begins, its filter, and a work queue, which needs none."""
    orders = stream()
    orders.fill_in_turn(6, "ab")
    given = ("--stream", orders.name, "--starting-consumer", "c")
    wrong(
        "startingConsumer",
        1,
        nats_server.url,
        *given,
        text=f"look at consumer c of stream {orders.name}",
        advice=f"spark-jetstream consumer ls {orders.name}",
    )
    with JetStreamAdmin(servers=nats_server.url) as admin:
        admin.consumers.create(orders.name, DEFAULT_CONSUMER, durable_name="c")
        for delivery in admin.consumers.next(orders.name, "c", 4, ack="none"):
            if delivery.message.seq in (1, 3):
                admin.consumers.ack(delivery)
        code, findings = look(nats_server.url, *given)
        assert (code, trouble(findings)) == (0, {})
        assert findings["startingConsumer"]["said"] == (
            "the query begins at sequence 2: 2 messages never delivered; 3 messages between "
            "sequence 2 and 4 were delivered; 2 of them not acknowledged; all are read again"
        )
        assert f"$JS.API.CONSUMER.INFO.{orders.name}.c" in findings
        wrong(
            "startingConsumer",
            0,
            nats_server.url,
            *given,
            "--filter",
            f"{orders.subject}.a",
            status="warning",
            text=f"not all messages of {orders.subject}.> are read",
            advice="set option subjects",
        )
        queue = stream(retention="workqueue", allow_direct=True)
        admin.consumers.create(queue.name, DEFAULT_CONSUMER, durable_name="c")
    wrong(
        "startingConsumer",
        1,
        nats_server.url,
        "--stream",
        queue.name,
        "--for",
        "direct",
        "--starting-consumer",
        "c",
        text="a work queue hands over by itself",
        advice="delete the consumer",
    )


def test_a_consumer_that_goes_on_while_the_doctor_looks(
    nats_server: NatsServer, stream: MakeStream
) -> None:
    """It has received messages that were stored after the doctor looked at the stream."""
    orders = stream()
    orders.fill(2)
    job = Job(("read",), stream=orders.name)
    with JetStreamAdmin(servers=nats_server.url) as admin:
        admin.consumers.create(orders.name, DEFAULT_CONSUMER, durable_name="c")
        before = admin.streams.load(orders.name)
        orders.fill(3)
        assert len(admin.consumers.next(orders.name, "c", 5)) == 5
        (found,) = check_handover(admin, before, job, "c")
        assert (found.status, found.said) == (
            "ok",
            "the query begins at sequence 6: 0 messages never delivered; none is read again",
        )
        admin.consumers.create(
            orders.name,
            DEFAULT_CONSUMER,
            durable_name="ahead",
            deliver_policy="by_start_sequence",
            opt_start_seq=10,
        )
        (found,) = check_handover(admin, before, job, "ahead")
    assert found.status == "failed"
    assert found.said.endswith("at sequence 10, and the last message of the stream has sequence 5")


# Where options come from


def test_each_option_has_its_origin(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = tmp_path / "config" / "nats" / "context"
    contexts.mkdir(parents=True)
    (contexts / "here.json").write_text(
        json.dumps({"url": nats_server.url, "inbox_prefix": "_INBOX_c", "token": "t"})
    )
    monkeypatch.setenv("NATS_TIMEOUT", "7s")
    ran = succeed("doctor", "--no-spark", "--json", "--context", "here", "-o", "retryTimeout=3s")
    assert "_INBOX_c (context here)" in by_check(ran)["inboxPrefix"]["said"]
    text = {name: item["said"] for name, item in by_check(ran).items()}
    assert text["servers"] == f"{nats_server.url} (context here)"
    assert text["requestTimeout"] == "7.0 (variable NATS_TIMEOUT)"
    assert text["retryTimeout"] == "3.0 (command line)"
    assert text["token"] == "given, not shown (context here)"
    # A context by its variable loses to the other variables, one on the command line does not.
    monkeypatch.setenv("NATS_CONTEXT", "here")
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")
    ran = run_command("doctor", "--no-spark", "--json", *QUICK)
    assert (ran.code, by_check(ran)["servers"]["said"]) == (
        3,
        "nats://127.0.0.1:1 (variable NATS_URL)",
    )
    ran = succeed("doctor", "--no-spark", "--json", "--context", "here")
    assert by_check(ran)["servers"]["said"] == f"{nats_server.url} (context here)"


def test_a_missing_file_is_named_by_its_option(nats_server: NatsServer) -> None:
    creds = ("--creds", "nowhere.creds")
    wrong(
        "credentialsFile",
        3,
        nats_server.url,
        *creds,
        text='names the file "nowhere.creds", which is not here',
    )


@pytest.mark.parametrize(
    ("module", "package"), [("pyarrow", "pyarrow"), ("numpy", "numpy"), ("nats", "nats-py")]
)
def test_a_package_that_is_missing_is_a_finding(
    module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    ran = run_command("doctor", "--no-spark", "--json")
    assert ran.code == 1
    [finding] = ran.json
    assert (finding["section"], finding["check"], finding["status"]) == (
        "Packages",
        package,
        "failed",
    )
    assert finding["said"] == "is not installed in this Python, and the other checks need it"
    assert finding["what_to_do"] == f"pip install {package}"
    assert run_command("doctor", "--no-spark").out.splitlines()[0] == "Packages"


# Reaching servers


def test_an_unreachable_server_is_named_by_name_or_port() -> None:
    findings = wrong(
        "port",
        3,
        "nats://127.0.0.1:1",
        *QUICK,
        text="cannot be reached: the connection was refused, nothing listens there",
    )
    assert findings["login"]["status"] == "unknown"
    for name in ("nowhere.invalid", "ß" * 63):  # the second is too long in DNS, where it is ASCII
        wrong("name", 3, f"nats://{name}", *QUICK, text=f"{name} has no address")


def test_a_server_that_is_away_beside_others_is_a_warning(nats_server: NatsServer) -> None:
    given = ("doctor", "--no-spark", "--json", *QUICK)
    ran = run_command(*given, url=f"nats://127.0.0.1:1,{nats_server.url}")
    assert ran.code == 0
    assert [item["status"] for item in ran.json if item["check"] == "nats://127.0.0.1:1 port"] == [
        "warning"
    ]
    assert run_command(*given, "--strict", url=f"nats://127.0.0.1:1,{nats_server.url}").code == 1


def test_a_port_without_a_nats_server_is_told_apart(nats_server: NatsServer) -> None:
    monitor = nats_server.monitor_url.replace("http:", "nats:")
    wrong(
        "server",
        3,
        monitor,
        *QUICK,
        text=f"the monitoring of a nats-server, whose clients use port {nats_server.port}",
    )
    with socket.create_server((LOOPBACK, 0)) as liar, ThreadPoolExecutor(1) as pool:

        def greet(info: bytes) -> None:
            with liar.accept()[0] as wire:
                wire.sendall(b"INFO %s\r\n" % info)

        greeted = pool.submit(greet, b'{"version": "2.12.0", "max_payload": "much"}')
        url = f"nats://{LOOPBACK}:{liar.getsockname()[1]}"
        wrong("server", 3, url, *QUICK, text="has no usable max_payload")
        greeted.result()
        pool.submit(greet, b'{"version": "2.12.0", "max_payload": 9, "server_id": "S"}')
        assert look(url, *QUICK)[1]["server"]["said"] == "nats-server 2.12.0, max_payload 9"
    wrong("tls", 3, nats_server.url.replace("nats:", "tls:"), *QUICK, text="offers none")


# TLS


Tls = Callable[..., NatsServer]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secure(
    tmp_path: Path, authority: trustme.CA, nats_server_factory: Callable[..., NatsServer]
) -> Iterator[Tls]:
    """A function that starts a server with a certificate; its arguments are those of `tls_config`."""
    yield lambda **how: nats_server_factory(config=tls_config(tmp_path, authority=authority, **how))
    close_all()


def test_certificates_are_checked(secure: Tls, tmp_path: Path) -> None:
    """One that expires soon, one of an unknown authority, one without the name, one that has
    expired.
    """
    server = secure(days=20)
    ca = ("--tlsca", tmp_path / "ca.pem")
    wrong("tls", 0, server.url, *ca, status="warning", text="19 days", advice="renew")
    wrong("tls", 3, server.url, *QUICK, text="not trusted", advice="tlsCaFile")
    other = (*QUICK, *ca, "-o", "tlsHostname=nats.example.org")
    findings = wrong("tls", 3, server.url, *other, text="Hostname mismatch", advice="tlsHostname")
    assert "nats.example.org" not in str(findings)
    findings = wrong("tls", 3, secure(days=-1).url, *QUICK, *ca, text="expired")
    assert findings["tls"]["what_to_do"] == "renew the certificate of the server"


@pytest.mark.full
def test_libraries_say_nothing_of_their_own_about_tls(secure: Tls, tmp_path: Path) -> None:
    """One line when the certificate is not trusted, none when it is; also when the process ends."""
    server = secure()
    refused = run_process("stream", "names", "-s", server.url)
    assert (refused.returncode, refused.stderr.count("\n")) == (3, 1)
    assert "is not trusted (options tlsCaFile, tlsHostname)" in refused.stderr
    done = run_process("stream", "names", "-s", server.url, "--tlsca", tmp_path / "ca.pem")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_tls_first_and_client_certificates_are_needed_where_asked_for(
    secure: Tls, tmp_path: Path
) -> None:
    server = secure(more="handshake_first: true, verify: true")
    ca = ("--tlsca", tmp_path / "ca.pem")
    wrong(
        "server",
        3,
        server.url,
        *QUICK,
        *ca,
        text="says nothing; one that begins with TLS needs option tlsHandshakeFirst",
    )
    pem = tmp_path / "client.pem"
    code, findings = look(server.url, *QUICK, *ca, "--tlsfirst", "--tlscert", pem, "--tlskey", pem)
    assert (code, trouble(findings)) == (0, {})
    assert "the certificate is trusted" in findings["tls"]["said"]


# Accounts


@pytest.fixture(scope="module")
def accounts() -> Iterator[NatsServer]:
    """A server with an account that is nearly full, one without JetStream, and users with
    passwords.
    """
    limits = "jetstream: { max_file: 1M, max_mem: 1M, max_streams: 2 }"
    users = """users: [
      { user: ann, password: pw }
      { user: few, password: pw, permissions: {
          publish: { allow: ["$JS.API.STREAM.INFO.A"] }, subscribe: { allow: ["_INBOX.>"] } } }
      { user: deaf, password: pw, permissions: { subscribe: { deny: [">"] } } }
    ]"""
    text = (
        f"accounts {{ FULL {{ {limits}, {users} }}\nBARE {{ users: [{{ user: bob, password: pw }}] "
        f"}} }}"
    )
    with NatsServer(config=text) as server:
        yield server
        close_all()


def login(user: str, password: str = "pw") -> tuple[str, ...]:
    return "--user", user, "--password", password


def test_a_wrong_password_fails_the_login_and_is_not_shown(accounts: NatsServer) -> None:
    ran = run_command(
        "doctor", "--no-spark", "--json", *login("ann", "not-the-password"), url=accounts.url
    )
    assert (ran.code, trouble(by_check(ran))) == (3, {"login": "failed"})
    assert "option" in by_check(ran)["login"]["what_to_do"]
    assert "not-the-password" not in ran.out + ran.err
    wrong("login", 3, accounts.url, advice="set options user and password, or")


def test_an_account_without_jetstream_fails(accounts: NatsServer) -> None:
    wrong("jetstream", 1, accounts.url, *login("bob"), advice="account")
    findings = wrong(
        "jetstream", 1, accounts.url, *login("ann"), "--js-domain", "mars", "--stream", "A"
    )
    assert findings["jetstream"]["what_to_do"] == "correct option domain"


def test_a_nearly_reached_limit_is_a_warning(accounts: NatsServer) -> None:
    with Publisher(accounts.url.replace("//", "//ann:pw@")) as publisher:
        for name in ("A", "B"):
            body = {"name": name, "subjects": [name], "storage": "memory", "max_bytes": 500_000}
            publisher.api(f"STREAM.CREATE.{name}", body)
        wrong("limits", 0, accounts.url, *login("ann"), status="warning")
        _, findings = look(accounts.url, *login("few"), "--stream", "A")
        assert findings["limits"]["status"] == "unknown"
        # The clock of STREAM.INFO stands in for the one that this user may not ask for.
        assert findings["clock"]["status"] == "ok"
        for name in ("A", "B"):
            publisher.api(f"STREAM.DELETE.{name}")


def test_a_denied_inbox_fails_the_replies(accounts: NatsServer) -> None:
    code, findings = look(accounts.url, *login("deaf"), "--stream", "A")
    assert code == 1
    assert findings["replies"]["status"] == "failed"
    assert "inboxPrefix" in findings["replies"]["what_to_do"]
    assert findings["permissions"]["status"] == "unknown"
    assert findings["permissions"]["said"] == f"cannot be checked: {findings['replies']['said']}"


def test_a_clock_that_is_off_is_a_warning() -> None:
    now = 1_700_000_000_000_000_000
    for off, status, words in (
        (0, "ok", "agrees"),
        (60, "warning", "60 s behind"),
        (-7200, "warning", "7,200 s ahead"),
    ):
        finding = check_clock(now + off * 1_000_000_000, now, now)
        assert (finding.status, words in finding.said) == (status, True)


# Streams

_QUEUE = {"retention": "workqueue"}
_DURABLE = ["--durable", "d"]
_ROWS = ["--subject", "{subject}.a"]
CASES: dict[str, tuple[dict[str, Any], list[str], dict[str, str]]] = {
    "a work queue is not just read": ({**_QUEUE, "allow_direct": True}, [], {"retention": "failed"}),
    "a work queue needs no consumer but the durable one": (
        {**_QUEUE, "allow_direct": True, "max_consumers": 1}, _DURABLE, {},
    ),
    "a work queue needs direct gets": (_QUEUE, _DURABLE, {"allow_direct": "failed"}),
    "a work queue needs purges": (
        {**_QUEUE, "allow_direct": True, "deny_purge": True}, _DURABLE, {"deny_purge": "failed"},
    ),
    "interest needs a consumer before rows come": (
        {"retention": "interest"}, _ROWS, {"writing": "warning", "restarts": "warning"},
    ),
    "interest needs a durable": ({"retention": "interest"}, [], {"retention": "warning"}),
    "interest with one": ({"retention": "interest"}, _DURABLE, {}),
    "direct gets": ({}, ["--for", "direct"], {"allow_direct": "failed"}),
    "rows are welcome": ({}, ["--subject", "{subject}.>"], {}),
    "another subject": ({}, ["--subject", "elsewhere.a"], {"writing": "failed"}),
    "more subjects": ({"subjects": ["narrow.*"]}, ["--subject", "narrow.>"], {"writing": "failed"}),
    "no_ack": ({"no_ack": True}, _ROWS, {"writing": "failed"}),
    "a short memory": ({"duplicate_window": 1_000_000_000}, _ROWS, {"delivery": "warning"}),
    "ids that a restart loses": ({"max_msgs_per_subject": 1}, _ROWS, {"restarts": "warning"}),
    "acknowledged too early": ({"persist_mode": "async"}, _ROWS, {"writing": "warning"}),
    "exactly once, acknowledged too early": (
        {"persist_mode": "async"}, ["--for", "exactly-once", *_ROWS], {"writing": "warning", "delivery": "failed"},
    ),
    "its own replies": ({"subjects": ["own.>", "_INBOX.>"]}, [], {"subjects": "warning"}),
    "its own replies elsewhere": (
        {"subjects": ["own.>", "_INBOX.>"]}, ["-o", "inboxPrefix=_MINE"], {},
    ),
    "exactly once": ({"max_msgs_per_subject": 1}, ["--for", "exactly-once", *_ROWS], {"delivery": "failed"}),
}  # fmt: skip


def test_partitions_of_a_batch_may_change(nats_server: NatsServer, stream: MakeStream) -> None:
    made = stream()
    rows = ("--stream", made.name, "--subject", f"{made.subject}.a")
    _, findings = look(nats_server.url, *rows)
    assert "set messageIds to content" in findings["partitions"]["said"]
    _, findings = look(nats_server.url, *rows, "--for", "exactly-once")
    assert "partitions" not in findings


def test_a_stream_of_counters_takes_increments(nats_server: NatsServer, stream: MakeStream) -> None:
    made = stream(allow_msg_counter=True)
    code, findings = look(nats_server.url, "--stream", made.name, "--subject", f"{made.subject}.a")
    assert (code, findings["writing"]["said"]) == (
        0,
        f"takes increments (column incr) at {made.subject}.a",
    )


def test_the_memory_of_message_ids_does_not_matter_in_buckets(
    nats_server: NatsServer, stream: MakeStream
) -> None:
    """A row that is stored again gives its key the same value once more; delivery exactly-once is
    refused there.
    """
    bucket = make_bucket(stream, duplicate_window=1_000_000_000)
    assert trouble(look(nats_server.url, "--bucket", name_of(bucket), "--for", "write")[1]) == {}


def test_a_stream_that_the_job_makes_may_be_missing(nats_server: NatsServer) -> None:
    for purpose in ("ensure", "restore"):
        assert look(nats_server.url, "--stream", "NOWHERE", "--for", purpose)[0] == 0


def test_rows_may_go_to_a_subject_that_another_account_renames(
    nats_server_factory: Callable[..., NatsServer],
) -> None:
    """The stream's configuration does not say which of its subjects the renamed one is."""
    apis = '{ service: { account: OWNER, subject: "$JS.API.>" }, to: "OWNER.API.>" }'
    rows = '{ service: { account: OWNER, subject: "s.>" }, to: "theirs.>" }'
    server = nats_server_factory(
        config=f"""accounts {{
          OWNER {{ jetstream: enabled, users: [ {{ user: ann, password: pw }} ],
            exports: [ {{ service: "$JS.API.>", response_type: stream }}, {{ service: "s.>" }} ] }}
          GUEST {{ users: [ {{ user: bob, password: pw }} ], imports: [ {apis}, {rows} ] }} }}"""
    )
    with JetStreamAdmin(servers=server.url, user="ann", password="pw") as admin:
        admin.streams.create("S", subjects=["s.>"])
        given = ("--stream", "S", "--subject", "theirs.a", "-o", "apiPrefix=OWNER.API")
        code, findings = look(server.url, *login("bob"), *given)
        assert (code, findings["writing"]["said"]) == (0, "takes s.>")
    close_all()


@pytest.mark.parametrize("case", CASES)
def test_a_stream_that_does_not_suit_the_job_is_named(
    nats_server: NatsServer, stream: MakeStream, publisher: Publisher, case: str
) -> None:
    config, arguments, expected = CASES[case]
    made = stream(**config)
    given = [item.format(subject=made.subject) for item in arguments]
    if "max_consumers" in config:
        consumer = {"durable_name": "d", "ack_policy": "explicit"}
        publisher.api(
            f"CONSUMER.CREATE.{made.name}.d", {"stream_name": made.name, "config": consumer}
        )
    code, findings = look(nats_server.url, "--stream", made.name, *given)
    assert trouble(findings) == {
        name.format(subject=made.subject): status for name, status in expected.items()
    }
    assert code == (1 if "failed" in trouble(findings).values() else 0)


def test_consumers_of_tasks_are_limited_by_the_tier_of_one_replica() -> None:
    """The replicas of the stream do not matter, nor do consumers with more replicas."""
    operator = Operator({"R1": 2, "R3": 1})
    with NatsCluster(config=operator.config) as cluster:
        login = {"servers": cluster.url, "credentialsSecret": operator.credentials(user())}
        with JetStreamAdmin(**login) as admin:

            def created() -> bool:
                # The leader of the cluster may not have enabled the account's JetStream yet.
                with contextlib.suppress(JetStreamNotEnabled):
                    admin.streams.create("S", num_replicas=3)
                    return True
                return False

            wait_until(created, "the stream")

            def consumers() -> Finding:
                given = (
                    admin.streams.load("S"),
                    Job(("read",), "S"),
                    admin.account.info(),
                    admin.options,
                )
                (finding,) = (
                    finding for finding in check_stream(*given) if finding.check == "consumers"
                )
                return finding

            admin.consumers.create("S", durable_name="durable")
            wait_until(
                lambda: admin.streams.load("S").state.consumer_count == 1,
                "the stream's leader knows it",
            )
            assert (consumers().status, consumers().said) == ("ok", "0 of 2 (max_consumers)")
            for name in ("a", "b"):
                admin.consumers.create("S", name, num_replicas=1, inactive_threshold="10m")
            with pytest.raises(ConsumerLimitReached):
                admin.consumers.create("S", "c", num_replicas=1, inactive_threshold="10m")
            wait_until(
                lambda: consumers().said.startswith("2 of 2 (max_consumers)"),
                "all servers know them",
            )
            assert consumers().status == "failed"
        close_all()


def test_the_servers_own_limit_of_consumers_is_no_failure() -> None:
    """No server tells it."""
    config = "jetstream { limits { default_max_consumers: 1 } }"
    with NatsServer(config=config) as server, JetStreamAdmin(servers=server.url) as admin:
        for name, most in (("DEFAULT", -1), ("OWN", 2)):
            admin.streams.create(name, subjects=name.lower(), max_consumers=most)
            admin.consumers.create(name, durable_name="a")
        with pytest.raises(ConsumerLimitReached):
            admin.consumers.create("DEFAULT", durable_name="b")
        admin.consumers.create("OWN", durable_name="b")

        def consumers(name: str, count: int | None = None) -> Finding:
            info = admin.streams.load(name)
            if count is not None:
                state = info.state.model_copy(update={"consumer_count": count})
                info = info.model_copy(update={"state": state})
            given = info, Job(("read",), name), admin.account.info(), admin.options
            (found,) = (each for each in check_stream(*given) if each.check == "consumers")
            return found

        assert consumers("OWN").status == "failed"
        few, many = consumers("DEFAULT"), consumers("DEFAULT", 1000)
        assert (few.status, many.status) == ("ok", "warning")
        assert few.said == "1 of 1,000 (default_max_consumers of a server that sets no other)"
    close_all()


def test_a_missing_full_sealed_or_mirrored_stream_fails(
    nats_server: NatsServer, stream: MakeStream, publisher: Publisher
) -> None:
    for option, name, text in (
        ("--stream", "NOWHERE", "NOWHERE"),
        ("--bucket", "nowhere", "KV_nowhere"),
    ):
        code, findings = look(nats_server.url, option, name)
        assert (code, findings["stream"]["status"]) == (1, "failed")
        assert text in findings["stream"]["said"]

    full = stream(max_msgs=10, discard="new", max_consumers=1)
    full.fill(9)
    given = ("--stream", full.name, "--for", "read", "--subject", f"{full.subject}.a")
    assert trouble(look(nats_server.url, *given)[1]) == {}
    full.fill(1)
    publisher.api(
        f"CONSUMER.CREATE.{full.name}.c",
        {"stream_name": full.name, "config": {"durable_name": "c"}},
    )
    code, findings = look(nats_server.url, *given)
    assert (code, trouble(findings)) == (1, {"room": "failed", "consumers": "failed"})
    assert "max_consumers" in findings["consumers"]["what_to_do"]

    sealed = stream()
    sealed.update(sealed=True)
    code, findings = look(
        nats_server.url, "--stream", sealed.name, "--subject", f"{sealed.subject}.a"
    )
    assert (code, findings["writing"]["status"]) == (1, "failed")
    assert "sealed" in findings["writing"]["said"]

    origin = stream()
    mirror = stream(subjects=None, mirror={"name": origin.name})
    findings = look(nats_server.url, "--stream", mirror.name, "--for", "read")[1]
    assert f"of {origin.name}, 0 messages behind" in findings["mirror"]["said"]
    code, findings = look(
        nats_server.url, "--stream", mirror.name, "--subject", f"{origin.subject}.a"
    )
    assert code == 1
    assert findings["writing"]["what_to_do"] == f"write to {origin.name}"


# Small things


def test_a_version_is_in_its_range_or_not() -> None:
    inside = (
        ("2.16.0", "<2.17,>=2.16"),
        ("18.0", ">=18.0.0"),
        ("3.0.0rc1", ">=3"),
        ("3.0.0rc1", ">2"),
        ("4.0", ""),
    )
    outside = (("2.17", "<2.17,>=2.16"), ("2.9", ">=2.16"), ("18.0.1", "==18"), ("2.0", "<=1.9"))
    assert [pair for pair in inside if not within(*pair)] == []
    assert [pair for pair in outside if within(*pair)] == []
    with pytest.raises(ValueError, match="~=1"):
        within("1", "~=1")
