"""Every way to reach a server: who we are, encryption, WebSocket, prefixes, few permissions."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme
from nats.aio.client import RawCredentials
from nats.js.client import JetStreamContext
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StructType

from spark_jetstream.client.pool import close_all
from spark_jetstream.errors import JetStreamError
from spark_jetstream.testing import NatsServer
from tests.conftest import SparkLog
from tests.support.calls import Query, data_source, refusal_of, sequences
from tests.support.client import ask
from tests.support.identities import Operator, user
from tests.support.queries import available_now, batch, streaming

MakeServer = Callable[..., NatsServer]

STREAM = "GUARDED"
DATA = [f"message {number}".encode() for number in range(1, 8)]
SECRET = "s3cret-never-shown"


def fill(url: str, **login: Any) -> None:
    """Store the messages, through the client library: only the ways in are what this is about."""

    async def work(js: JetStreamContext) -> None:
        await js.add_stream(name=STREAM, subjects=["guarded.>"])
        for number, data in enumerate(DATA):
            await js.publish(f"guarded.{'ab'[number % 2]}", data)

    ask(url, work, **login)


def read(url: str, **options: object) -> list[bytes]:
    """The payloads, read by two tasks."""
    source = data_source({"servers": url, "stream": STREAM, "minPartitions": 2, **options})
    try:
        reader: Any = source.reader(StructType().add("data", BinaryType()))
        return [
            data for part in reader.partitions() for rows in reader.read(part) for data in rows.column(0).to_pylist()
        ]
    finally:
        close_all()


def fail(url: str, **options: object) -> str:
    """The sentence that says why reading failed. What cannot pass by itself is not tried again for a minute."""
    with pytest.raises(JetStreamError) as caught:
        read(url, **{"connectTimeout": "60s", "retryTimeout": "60s", **options})
    assert SECRET not in str(caught.value)
    return refusal_of(caught.value)[1]


# Who we are


def test_user_and_password(nats_server_factory: MakeServer) -> None:
    server = nats_server_factory(config=f'authorization {{ user: "ann", password: "{SECRET}@:/ ü" }}')
    fill(server.url, user="ann", password=f"{SECRET}@:/ ü")
    assert read(server.url, user="ann", password=f"{SECRET}@:/ ü") == DATA
    login = f"//ann:{SECRET}%40%3A%2F%20%C3%BC@"
    assert read(server.url.replace("//", login)) == DATA
    refused = f"the NATS server at {server.url} refused the credentials (options user and password)"
    assert fail(server.url, user="ann", password=f"{SECRET}x") == refused
    assert fail(server.url.replace("//", f"//ann:{SECRET}x@")) == refused


def test_token(nats_server_factory: MakeServer) -> None:
    server = nats_server_factory(config=f'authorization {{ token: "{SECRET}" }}')
    fill(server.url, token=SECRET)
    assert read(server.url, token=SECRET) == DATA
    assert read(server.url.replace("//", f"//{SECRET}@")) == DATA


def test_nkey(nats_server_factory: MakeServer, tmp_path: Path) -> None:
    me, other = user(), user()
    server = nats_server_factory(config=f"authorization {{ users: [ {{ nkey: {me.public} }} ] }}")
    fill(server.url, nkeys_seed_str=me.seed)
    (tmp_path / "me.nk").write_text(me.seed)
    assert read(server.url, nkeySeedFile=tmp_path / "me.nk") == DATA
    assert read(server.url, nkeySeedSecret=me.seed) == DATA
    said = fail(server.url, nkeySeedSecret=other.seed)
    assert re.fullmatch(r"the NATS server at \S+ refused the credentials \(option nkeySeedSecret\)", said), said


def test_credentials(nats_server_factory: MakeServer, tmp_path: Path) -> None:
    operator, me = Operator(), user()
    server = nats_server_factory(config=operator.config)
    content = operator.credentials(me)
    fill(server.url, user_credentials=RawCredentials(content))
    file = tmp_path / "me.creds"
    file.write_text(content)
    assert read(server.url, credentialsFile=file) == DATA
    assert read(server.url, credentialsSecret=content) == DATA
    # Those of another operator.
    message = fail(server.url, credentialsSecret=Operator().credentials(me))
    assert re.fullmatch(r"the NATS server at \S+ refused the credentials \(option credentialsSecret\)", message), (
        message
    )


@pytest.mark.full
def test_credentials_are_in_no_log_and_no_checkpoint(
    spark: SparkSession, nats_server_factory: MakeServer, tmp_path: Path, spark_log: SparkLog
) -> None:
    operator, me = Operator(), user()
    server = nats_server_factory(config=operator.config)
    content = operator.credentials(me)
    fill(server.url, user_credentials=RawCredentials(content))
    frame = streaming(spark, server.url, STREAM, "data binary", credentialsSecret=content, maxMessagesPerTrigger=4)
    assert [bytes(row["data"]) for row in available_now(frame, tmp_path / "checkpoint").rows] == DATA
    for path in (tmp_path / "checkpoint").rglob("*"):
        assert not path.is_file() or me.seed.encode() not in path.read_bytes()
    assert me.seed not in spark_log.text


@pytest.mark.full
def test_a_file_that_was_sent_with_the_job(
    spark: SparkSession, nats_server_factory: MakeServer, tmp_path: Path
) -> None:
    me = user()
    server = nats_server_factory(config=f"authorization {{ users: [ {{ nkey: {me.public} }} ] }}")
    fill(server.url, nkeys_seed_str=me.seed)
    file = tmp_path / f"sent-{me.public}.nk"
    file.write_text(me.seed)
    spark.sparkContext.addFile(str(file))
    # The last is a path that it had where the job was submitted.
    for name in (file.name, f"/not/here/{file.name}"):
        frame = batch(spark, server.url, STREAM, "data binary", minPartitions=2, nkeySeedFile=name)
        assert [bytes(row["data"]) for row in frame.collect()] == DATA
    frame = streaming(spark, server.url, STREAM, "data binary", nkeySeedFile=file.name)
    assert len(available_now(frame, tmp_path / "checkpoint").rows) == len(DATA)


@pytest.mark.parametrize("how", ["path", "beside"])
def test_a_context_of_the_command_line_tool(nats_server_factory: MakeServer, tmp_path: Path, how: str) -> None:
    server = nats_server_factory(config=f'authorization {{ user: "ann", password: "{SECRET}" }}')
    fill(server.url, user="ann", password=SECRET)
    context = {"url": server.url, "user": "ann", "password": SECRET}
    beside: dict[str, str] = {}
    if how == "beside":
        # What is given as an option wins.
        context["url"] = "nats://127.0.0.1:1"
        beside["servers"] = server.url
    file = tmp_path / "work.json"
    file.write_text(json.dumps(context))
    assert sequences("b", {"stream": STREAM, "context": str(file), **beside}) == [*range(1, len(DATA) + 1)]


# Encryption


class Certificates(NamedTuple):
    """Files of an authority and of what it signed, and of an authority that nobody asked."""

    ca: Path
    other_ca: Path
    server: Path
    server_key: Path
    named: Path
    named_key: Path
    client: Path
    client_key: Path

    def tls(self, *more: str, named: bool = False) -> str:
        """The server's `tls` block."""
        cert, key = (self.named, self.named_key) if named else (self.server, self.server_key)
        return "\n".join(["tls {", f'cert_file: "{cert}"', f'key_file: "{key}"', *more, "}"])

    def context(self, client: bool = False) -> ssl.SSLContext:
        """What the client library needs to publish."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if client:
            context.load_cert_chain(self.client, self.client_key)
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("certificates")
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    other.cert_pem.write_to_path(folder / "other.pem")
    for name, host in (("server", "127.0.0.1"), ("named", "nats.example"), ("client", "client.example")):
        issued = authority.issue_cert(host)
        issued.private_key_pem.write_to_path(folder / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
    names = ["ca.pem", "other.pem", "server.pem", "server.key", "named.pem", "named.key", "client.pem", "client.key"]
    return Certificates(*(folder / name for name in names))


@pytest.fixture(scope="module")
def tls_server(certificates: Certificates) -> Iterator[NatsServer]:
    with NatsServer(config=certificates.tls()) as server:
        fill(server.url, tls=certificates.context())
        yield server


@pytest.mark.parametrize("scheme", ["tls", "nats"])
def test_tls(tls_server: NatsServer, certificates: Certificates, scheme: str) -> None:
    url = f"{scheme}://127.0.0.1:{tls_server.port}"
    assert read(url, tlsCaFile=certificates.ca) == DATA
    assert read(url, tlsCaPem=certificates.ca.read_text()) == DATA
    assert len(Query(url, STREAM, tlsCaFile=certificates.ca).run().rows) == len(DATA)


def test_an_authority_that_did_not_sign_the_server(tls_server: NatsServer, certificates: Certificates) -> None:
    url = f"tls://127.0.0.1:{tls_server.port}"
    sentence = re.escape(f"the certificate of {url} is not trusted (options tlsCaFile, tlsHostname): ") + ".*"
    for options in ({"tlsCaFile": certificates.other_ca}, {"tlsCaPem": certificates.other_ca.read_text()}, {}):
        said = fail(url, **options)
        assert re.fullmatch(sentence, said), said


def test_the_name_in_the_certificate(nats_server_factory: MakeServer, certificates: Certificates) -> None:
    server = nats_server_factory(config=certificates.tls(named=True))
    fill(server.url, tls=certificates.context(), tls_hostname="nats.example")
    assert read(server.url, tlsCaFile=certificates.ca, tlsHostname="nats.example") == DATA
    for options in ({}, {"tlsHostname": "other.example"}):
        said = fail(server.url, tlsCaFile=certificates.ca, **options)
        assert "is not trusted (options tlsCaFile, tlsHostname): " in said


def test_a_certificate_of_the_client(nats_server_factory: MakeServer, certificates: Certificates) -> None:
    server = nats_server_factory(config=certificates.tls(f'ca_file: "{certificates.ca}"', "verify: true"))
    fill(server.url, tls=certificates.context(client=True))
    files = {"tlsCertFile": certificates.client, "tlsKeyFile": certificates.client_key}
    assert read(server.url, tlsCaFile=certificates.ca, **files) == DATA
    inline = {"tlsCertPem": certificates.client.read_text(), "tlsKeySecret": certificates.client_key.read_text()}
    assert read(server.url, tlsCaPem=certificates.ca.read_text(), **inline) == DATA
    said = fail(server.url, tlsCaFile=certificates.ca)
    demanded = "demands a client certificate (options tlsCertFile and tlsKeyFile)"
    assert said == f"the NATS server at {server.url} {demanded}"


def test_tls_before_the_server_says_hello(nats_server_factory: MakeServer, certificates: Certificates) -> None:
    server = nats_server_factory(config=certificates.tls("handshake_first: true"))
    fill(server.url, tls=certificates.context(), tls_handshake_first=True)
    assert read(server.url, tlsCaFile=certificates.ca, tlsHandshakeFirst="true") == DATA


def test_websocket(nats_server_factory: MakeServer) -> None:
    server = nats_server_factory(websocket=True)
    fill(server.url)
    assert read(server.websocket_url) == DATA
    assert Query(server.websocket_url, STREAM, maxMessagesPerTrigger=4).run().counts == [4, 3]


# Where JetStream is


def test_domain(nats_server_factory: MakeServer) -> None:
    server = nats_server_factory(config="jetstream { domain: hub }")
    fill(server.url)
    assert read(server.url, domain="hub") == DATA
    assert read(server.url) == DATA
    assert "nobody answers at $JS.leaf.API.STREAM.INFO.GUARDED" in fail(
        server.url, domain="leaf", connectTimeout="500ms"
    )


def test_the_jetstream_of_another_account(nats_server_factory: MakeServer) -> None:
    server = nats_server_factory(
        config=f"""accounts {{
          OWNER {{ jetstream: enabled, users: [{{ user: owner, password: "{SECRET}" }}],
            exports: [{{ service: "$JS.API.>", response_type: stream }}] }}
          GUEST {{ users: [{{ user: guest, password: "{SECRET}" }}],
            imports: [{{ service: {{ account: OWNER, subject: "$JS.API.>" }}, to: "JSA.API.>" }}] }}
        }}"""
    )
    fill(server.url, user="owner", password=SECRET)
    login = {"user": "guest", "password": SECRET}
    assert read(server.url, apiPrefix="JSA.API", **login) == DATA
    assert read(server.url, apiPrefix="JSA.API.", subjects="guarded.b", **login) == DATA[1::2]
    query = Query(server.url, STREAM, apiPrefix="JSA.API", maxMessagesPerTrigger=3, **login)
    assert [row["data"] for row in query.run().rows] == DATA
    assert "cannot read stream GUARDED (option stream)" in fail(server.url, connectTimeout="500ms", **login)


# Permissions


def users(**permissions: str) -> str:
    """An account with JetStream and these users, all with the same password."""
    entries = "\n".join(
        f'{{ user: {name}, password: "{SECRET}", permissions: {{ {text} }} }}' for name, text in permissions.items()
    )
    admin = f'{{ user: admin, password: "{SECRET}" }}'
    return f"accounts {{ A {{ jetstream: enabled, users: [\n{admin}\n{entries}\n] }} }}"


def test_a_user_with_an_inbox_of_its_own(nats_server_factory: MakeServer) -> None:
    server = nats_server_factory(config=users(ann='publish: "$JS.API.>", subscribe: "_INBOX_ann.>"'))
    fill(server.url, user="admin", password=SECRET)
    login = {"user": "ann", "password": SECRET}
    assert read(server.url, inboxPrefix="_INBOX_ann", **login) == DATA
    said = fail(server.url, **login)
    assert re.fullmatch(
        r"cannot read stream GUARDED \(option stream\): the account may not subscribe to _INBOX\.> "
        r"\(option inboxPrefix\)",
        said,
    ), said


LEAST = [
    "STREAM.INFO.GUARDED",
    "CONSUMER.CREATE.GUARDED.*",
    "CONSUMER.CREATE.GUARDED.*.>",
    "CONSUMER.MSG.NEXT.GUARDED.*",
]


def test_a_reader_needs_four_permissions(nats_server_factory: MakeServer) -> None:
    allowed = json.dumps([f"$JS.API.{subject}" for subject in LEAST])
    server = nats_server_factory(config=users(reader=f'publish: {allowed}, subscribe: "_INBOX.>"'))
    fill(server.url, user="admin", password=SECRET)
    login = {"user": "reader", "password": SECRET}
    assert read(server.url, **login) == DATA
    assert read(server.url, subjects="guarded.b", **login) == DATA[1::2]
    assert read(server.url, subjects="guarded.b,guarded.c", **login) == DATA[1::2]
    assert read(server.url, startingTimestamp="2020-01-01T00:00:00Z", **login) == DATA
    assert read(server.url, endingOffsets=json.dumps({STREAM: 4}), maxMessagesPerPartition=1, **login) == DATA[:3]
    options = {"maxMessagesPerTrigger": 2, "subjects": "*.a", **login}
    run = Query(server.url, STREAM, **options).run()
    assert run.counts == [2, 2]
    assert [row["data"] for row in run.rows] == DATA[::2]


def test_a_reader_of_one_subject_needs_no_more_than_that(nats_server_factory: MakeServer) -> None:
    subjects = ["STREAM.INFO.GUARDED", "CONSUMER.CREATE.GUARDED.*.guarded.a", "CONSUMER.MSG.NEXT.GUARDED.*"]
    allowed = json.dumps([f"$JS.API.{subject}" for subject in subjects])
    server = nats_server_factory(config=users(reader=f'publish: {allowed}, subscribe: "_INBOX.>"'))
    fill(server.url, user="admin", password=SECRET)
    login = {"user": "reader", "password": SECRET}
    assert read(server.url, subjects="guarded.a", **login) == DATA[::2]
    said = fail(server.url, subjects="guarded.b", **login)
    assert re.fullmatch(
        r"cannot create a consumer on stream GUARDED: the account may not publish to "
        r"\$JS\.API\.CONSUMER\.CREATE\.GUARDED\.\S+\.guarded\.b",
        said,
    ), said
