"""Every way to reach a server: who we are, and encryption."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from nats.aio.client import RawCredentials
from nats.js.client import JetStreamContext
from pyspark.sql import SparkSession

from spark_jetstream.client.pool import close_all
from spark_jetstream.errors import JetStreamError
from spark_jetstream.testing import NatsServer
from tests.conftest import SparkLog
from tests.support.calls import Query, reading, refusal_of, sequences
from tests.support.client import ask, tls_config
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
    try:
        return [row.data for row in reading({"servers": url, "stream": STREAM, "minPartitions": 2, **options})]
    finally:
        close_all()


def fail(url: str, **options: object) -> str:
    """The sentence that says why reading failed. What cannot pass by itself is not tried again for ten minutes."""
    with pytest.raises(JetStreamError) as caught:
        read(url, **{"connectTimeout": "10m", "retryTimeout": "10m", **options})
    assert SECRET not in f"{caught.value} {caught.value!r} {caught.value.__context__!r} {caught.value.__cause__!r}"
    return refusal_of(caught.value)[1]


# Who we are


def test_user_and_password(nats_server_factory: MakeServer) -> None:
    server = nats_server_factory(config=f'authorization {{ user: "ann", password: "{SECRET}@:/ ü" }}')
    fill(server.url, user="ann", password=f"{SECRET}@:/ ü")
    assert read(server.url, user="ann", password=f"{SECRET}@:/ ü") == DATA
    login = f"//ann:{SECRET}%40%3A%2F%20%C3%BC@"
    assert read(server.url.replace("//", login)) == DATA
    said = f"the NATS server at {server.url} refused the credentials (options user and password)"
    assert fail(server.url.replace("//", f"//ann:{SECRET}x@")) == said
    assert read(server.url.replace("//", login)) == DATA


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
    said = fail(server.url, credentialsSecret=Operator().credentials(me))
    assert re.fullmatch(r"the NATS server at \S+ refused the credentials \(option credentialsSecret\)", said), said


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


def test_a_context_of_the_command_line_tool(nats_server_factory: MakeServer, tmp_path: Path) -> None:
    server = nats_server_factory(config=f'authorization {{ user: "ann", password: "{SECRET}" }}')
    fill(server.url, user="ann", password=SECRET)
    file = tmp_path / "work.json"
    file.write_text(json.dumps({"url": server.url, "user": "ann", "password": SECRET}))
    assert sequences("b", {"stream": STREAM, "context": str(file)}) == [*range(1, len(DATA) + 1)]


# Encryption


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


def trusting(certificates: Path) -> ssl.SSLContext:
    """What the client library needs to publish."""
    return ssl.create_default_context(cafile=str(certificates / "ca.pem"))


@pytest.fixture(scope="module")
def tls_server(certificates: Path) -> Iterator[NatsServer]:
    with NatsServer(config=tls_config(certificates)) as server:
        fill(server.url, tls=trusting(certificates))
        yield server


@pytest.mark.parametrize("scheme", ["tls", "nats"])
def test_tls(tls_server: NatsServer, certificates: Path, scheme: str) -> None:
    url = f"{scheme}://127.0.0.1:{tls_server.port}"
    assert read(url, tlsCaFile=certificates / "ca.pem") == DATA
    assert read(url, tlsCaPem=(certificates / "ca.pem").read_text()) == DATA
    assert len(Query(url, STREAM, tlsCaFile=certificates / "ca.pem").run().rows) == len(DATA)


def test_an_authority_that_did_not_sign_the_server(tls_server: NatsServer, tmp_path: Path) -> None:
    sentence = re.escape(f"the certificate of {tls_server.url} is not trusted (options tlsCaFile, tlsHostname): ")
    other, file = trustme.CA().cert_pem, tmp_path / "other.pem"
    other.write_to_path(str(file))
    for options in ({"tlsCaFile": file}, {"tlsCaPem": other.bytes().decode()}, {}):
        said = fail(tls_server.url, **options)
        assert re.fullmatch(f"{sentence}.*", said), said


def test_the_name_in_the_certificate(nats_server_factory: MakeServer, tmp_path: Path) -> None:
    server = nats_server_factory(config=tls_config(tmp_path, name="nats.example"))
    fill(server.url, tls=trusting(tmp_path), tls_hostname="nats.example")
    assert read(server.url, tlsCaFile=tmp_path / "ca.pem", tlsHostname="nats.example") == DATA
    for options in ({}, {"tlsHostname": "other.example"}):
        said = fail(server.url, tlsCaFile=tmp_path / "ca.pem", **options)
        assert "is not trusted (options tlsCaFile, tlsHostname): " in said
