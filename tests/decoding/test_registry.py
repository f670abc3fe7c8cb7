"""The schema registry: its answers, its outages, and payloads whose schemas it has."""

from __future__ import annotations

import base64
import io
import json
import pickle
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trustme
from fastavro import parse_schema, schemaless_writer
from google.protobuf import descriptor_pb2

from spark_jetstream import SchemaRegistry
from spark_jetstream.decoding.avro import RegisteredAvroReader
from spark_jetstream.decoding.columns import PayloadReader, read_all
from spark_jetstream.decoding.descriptors import descriptor_of, registered_descriptor
from spark_jetstream.decoding.protobuf import RegisteredProtobufReader
from spark_jetstream.decoding.registered import latest_of, registry_subject_of
from spark_jetstream.decoding.registry import registry_of
from spark_jetstream.decoding.registry_client import RegistryClient
from spark_jetstream.errors import OptionError, RegistryError, SchemaError
from tests.support.protos import message_classes
from tests.support.registry import HANG, FakeRegistry, Fault

FIELDS: list[dict[str, Any]] = [{"name": "id", "type": "long"}]
COUNTRY = {"name": "country", "type": "string", "default": "unknown"}
FIRST = {"type": "record", "name": "Order", "fields": FIELDS}
SECOND = {**FIRST, "fields": [*FIELDS, COUNTRY]}


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry().running() as running:
        yield running


def record(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    schemaless_writer(out, parse_schema(schema), value)
    return out.getvalue()


def read(reader: PayloadReader, *payloads: tuple[int, bytes]) -> list[dict[str, Any]]:
    """The rows of payloads with the ids of their schemas, read as in a worker that knows nothing."""
    sent = pickle.loads(pickle.dumps(reader))
    ids, rest = zip(*payloads, strict=True)
    array = read_all(
        sent, pa.array(rest, pa.binary()), pa.array([str(one) for one in ids], pa.string())
    )
    return array.to_pylist()  # type: ignore[no-any-return]


def file_text(message: type[Any]) -> str:
    """A file of Protobuf as the registry has it."""
    return base64.b64encode(message.DESCRIPTOR.file.serialized_pb).decode()


def test_versions_of_avro_are_read_by_one_schema(registry: FakeRegistry) -> None:
    first, second = registry.add("orders-value", FIRST), registry.add("orders-value", SECOND)
    payloads = [
        (first, record(FIRST, {"id": 1})),
        (second, record(SECOND, {"id": 2, "country": "de"})),
        (second, record(SECOND, {"id": 3, "country": "fr"})),
    ]
    newest = RegisteredAvroReader(registry.client(), SECOND)
    assert [row["value"] for row in read(newest, *payloads)] == [
        {"id": 1, "country": "unknown"},
        {"id": 2, "country": "de"},
        {"id": 3, "country": "fr"},
    ]
    # A reader may be older than the writers.
    oldest = RegisteredAvroReader(registry.client(), json.dumps(FIRST))
    assert [row["value"] for row in read(oldest, *payloads)] == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_a_process_asks_once_for_a_schema(registry: FakeRegistry) -> None:
    first = registry.add("orders-value", FIRST)
    reader = RegisteredAvroReader(registry.client(), FIRST)
    for number in range(3):  # tasks of one worker
        assert read(reader, (first, record(FIRST, {"id": number})))[0]["error"] is None
    assert registry.requests == [f"GET /schemas/ids/{first}?format=serialized"]
    # An id that is not there may be registered later: the next task asks again, a task once.
    other = (99, b"\2")
    assert [row["error"] for row in read(reader, other, other)] == [
        "the registry has no schema 99"
    ] * 2
    registry.schemas[99] = registry.schemas[first]
    assert read(reader, other)[0]["value"] == {"id": 1}
    assert registry.requests[1:] == ["GET /schemas/ids/99?format=serialized"] * 2


POINT = {"type": "record", "name": "Point", "namespace": "geo", "fields": FIELDS}
TIME = {"type": "long", "logicalType": "timestamp-millis"}


def test_schemas_of_avro_refer_to_others(registry: FakeRegistry) -> None:
    registry.add("geo.Point", POINT)
    whole = {
        "type": "record",
        "name": "Trip",
        "fields": [{"name": "a", "type": "geo.Point"}, {"name": "b", "type": "geo.Point"}],
    }
    references = [{"name": "geo.Point", "subject": "geo.Point", "version": 1}]
    trip = registry.add("trips-value", whole, references=references)
    client = RegistryClient(registry.client())
    latest = latest_of(client, "trips-value", "avro")
    texts = [one.text for one in client.referenced(latest).values()]
    reader = RegisteredAvroReader(registry.client(), latest.text, texts)
    assert str(reader.fields) == "struct<a: struct<id: int64>, b: struct<id: int64>>"
    assert read(reader, (trip, b"\2\4"))[0]["value"] == {"a": {"id": 1}, "b": {"id": 2}}


@pytest.mark.parametrize(
    ("written", "kind", "said"),
    [
        ("no JSON", "AVRO", "schema 1 of the registry is not a schema of Avro: "),
        ('{"type": "object"}', "JSON", "schema 1 of the registry is JSON"),
        (
            {**FIRST, "fields": [{"name": "time", "type": "long"}]},
            "AVRO",
            "schema 1 of the registry: field time is without a logical type, and "
            "timestamp-millis in argument schema",
        ),
        (
            {**FIRST, "fields": [{"name": "at", "type": "string"}]},
            "AVRO",
            "schema 1 of the registry: field at is without a logical type, and timestamp-millis",
        ),
        (
            {**FIRST, "name": "Other", "fields": [{"name": "at", "type": TIME}]},
            "AVRO",
            "the payload is not one Avro record that fits the schema (SchemaResolutionError: ",
        ),
    ],
)
def test_a_schema_that_does_not_fit_is_an_error_of_its_rows(
    registry: FakeRegistry, written: Any, kind: str, said: str
) -> None:
    registry.schemas[1] = {
        "schema": written if isinstance(written, str) else json.dumps(written),
        **({} if kind == "AVRO" else {"schemaType": kind}),
    }
    field = {"name": "at", "type": TIME, "aliases": ["time"]}
    reader = RegisteredAvroReader(registry.client(), {**FIRST, "fields": [field]})
    good = registry.add("good", {**FIRST, "fields": [field]})
    bad, whole = read(reader, (1, b"\2"), (good, b"\2"))
    assert bad["value"] is None
    assert bad["error"].startswith(said)
    assert whole["value"] is not None


def test_a_field_that_nobody_reads_may_have_any_type(registry: FakeRegistry) -> None:
    union = {"name": "u", "type": ["int", "string"]}
    schema = registry.add("orders-value", {**FIRST, "fields": [union, *FIELDS]})
    reader = RegisteredAvroReader(registry.client(), FIRST)
    assert read(reader, (schema, b"\2\2a\6"))[0]["value"] == {"id": 3}


SHOP = 'syntax = "proto3"; package shop; %s message Order { message Item { int32 n = 1; } %s }'


def test_versions_of_protobuf_are_read_by_field_numbers(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    first = message_classes(tmp_path, SHOP % ("", "int64 id = 1; string old = 2;"))
    # The message has another place in the newer file, which the indexes tell.
    more = "message Other { int64 id = 1; }"
    second = message_classes(tmp_path, SHOP % (more, "int64 id = 1; string country = 3;"))
    old = registry.add("orders-value", file_text(first["shop.Order"]), "PROTOBUF")
    new = registry.add("orders-value", file_text(second["shop.Order"]), "PROTOBUF")
    descriptor = descriptor_of(second["shop.Order"], None, "argument schema")
    reader = RegisteredProtobufReader(registry.client(), descriptor)
    rows = read(
        reader,
        (old, b"\0" + first["shop.Order"](id=1, old="x").SerializeToString()),
        (new, b"\2\2" + second["shop.Order"](id=2, country="de").SerializeToString()),
        (new, b"\0" + second["shop.Other"](id=3).SerializeToString()),
        (new, b"\2\6"),
        (new, b"\2"),
        (7, b"\0"),
    )
    assert [row["value"] for row in rows] == [
        {"id": 1, "country": ""},
        {"id": 2, "country": "de"},
        *[None] * 4,
    ]
    assert [row["error"] for row in rows[2:]] == [
        "the indexes [0] in front of the payload, with schema 2 of the registry, mean a message "
        "shop.Other, not shop.Order",
        "the indexes [3] in front of the payload, with schema 2 of the registry, mean no message "
        "of that schema, not shop.Order",
        "the payload is not one Protobuf message shop.Order that fits the schema (ValueError: no "
        "index of a message is in front)",
        "the registry has no schema 7",
    ]


def test_the_reader_s_schema_of_protobuf_comes_from_the_registry(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    text = """
    syntax = "proto3";
    package shop;
    import "google/protobuf/timestamp.proto";
    import "money.proto";
    message Order { Money amount = 1; google.protobuf.Timestamp at = 2; }
    message Last { int32 n = 1; message Inner { int32 m = 1; } }
    """
    (tmp_path / "money.proto").write_text(
        'syntax = "proto3"; package shop; message Money { int64 cents = 1; }'
    )
    order = message_classes(tmp_path, text)["shop.Order"]
    money = order.DESCRIPTOR.fields_by_name["amount"].message_type.file
    registry.add("money.proto", base64.b64encode(money.serialized_pb).decode(), "PROTOBUF")
    references = [{"name": "money.proto", "subject": "money.proto", "version": 1}]
    registry.add("orders-value", file_text(order), "PROTOBUF", references)
    client = RegistryClient(registry.client())
    latest = latest_of(client, "orders-value", "protobuf")
    others = client.referenced(latest)
    found = registered_descriptor(latest, others, None)
    reader = RegisteredProtobufReader(registry.client(), found)
    assert str(reader.fields) == "struct<amount: struct<cents: int64>, at: timestamp[us, tz=UTC]>"
    payload = order(amount={"cents": 5}).SerializeToString()
    assert read(reader, (latest.id, b"\0" + payload))[0]["value"] == {
        "amount": {"cents": 5},
        "at": None,
    }
    assert registered_descriptor(latest, others, "Inner").full_name == "shop.Last.Inner"
    with pytest.raises(SchemaError, match="there is no message 'Money' in schema 2 of the reg"):
        registered_descriptor(latest, others, "Money")
    with pytest.raises(SchemaError, match=r"^schema 2 of the registry imports money.proto, which"):
        registered_descriptor(latest, {}, None)
    broken = latest._replace(text="no Base64")
    with pytest.raises(RegistryError, match=r"^argument registry: it answers schema 2 without the"):
        registered_descriptor(broken, {}, None)


def test_a_registry_without_descriptors_fails_the_task(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    text = SHOP % ("", "int64 id = 1;")
    order = message_classes(tmp_path, text)["shop.Order"]
    schema = registry.add("orders-value", text, "PROTOBUF")
    reader = RegisteredProtobufReader(registry.client(), descriptor_of(order, None, ""))
    with pytest.raises(RegistryError) as raised:
        read(reader, (schema, b"\0" + order(id=1).SerializeToString()))
    assert str(raised.value) == (
        "argument registry: it answers schema 1 without the descriptor of a Protobuf file: its API "
        "must have format=serialized, as those of Confluent and Karapace do"
    )


def test_messages_of_a_descriptor_set(tmp_path: Path) -> None:
    order = message_classes(tmp_path, SHOP % ("message Item { int32 n = 1; }", "int64 id = 1;"))
    path = tmp_path / "some.desc"
    for schema in (path, str(path), path.read_bytes()):
        for name in ("shop.Order", "Order"):
            found = descriptor_of(schema, name, "argument schema")
            assert found.full_name == "shop.Order"
    assert descriptor_of(order["shop.Order"], "Order", "").full_name == "shop.Order"
    without_imports = descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())
    without_imports.file[0].dependency.append("money.proto")
    refused: list[tuple[Any, str | None, str]] = [
        (path, None, "argument message must name a message of argument schema: shop.Item, "),
        (path, "Ordre", "argument message: there is no message 'Ordre' in argument schema: shop."),
        (path, "Item", "argument message: several messages are called 'Item' in argument schema"),
        (tmp_path / "none", "Order", "argument schema: the descriptor set '"),
        (b"", "Order", "argument schema is no descriptor set: make one with protoc"),
        (b"\7", "Order", "argument schema is no descriptor set: make one with protoc"),
        (
            without_imports.SerializeToString(),
            "Order",
            "argument schema imports money.proto, which is missing: protoc --include_imports",
        ),
        (order["shop.Order"], "Item", "argument message is 'Item', but argument schema is the cl"),
        (7, "Order", "argument schema must be the class of a Protobuf message or a descriptor se"),
    ]
    for one, message, said in refused:
        with pytest.raises(SchemaError) as raised:
            descriptor_of(one, message, "argument schema")
        assert str(raised.value).startswith(said)


OK = Fault(200, json.dumps({"schema": json.dumps(FIRST)}).encode())


@pytest.mark.parametrize(
    "fault",
    [
        Fault(500),
        Fault(503, b"<html>no JSON</html>"),
        Fault(429),
        Fault(408),
        OK._replace(cut=3),
    ],
)
def test_an_outage_that_ends(registry: FakeRegistry, fault: Fault) -> None:
    schema = registry.add("orders-value", FIRST)
    registry.faults = [fault, fault]
    reader = RegisteredAvroReader(registry.client(retry_timeout=60), FIRST)
    assert read(reader, (schema, b"\2"))[0]["value"] == {"id": 1}
    assert len(registry.requests) == 3


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault(500), " did not answer the request /schemas/ids/1?format=serialized for 0 seconds (it answers 500): "),
        (HANG, " did not answer the request /schemas/ids/1?format=serialized for 0 seconds (no answer in time): "),
        (OK._replace(cut=1), "for 0 seconds (the answer was cut): "),
        (Fault(401, b"no"), " refuses the request /schemas/ids/1?format=serialized with 401: check user and password, or "),
        (Fault(403, b"no"), " refuses the request /schemas/ids/1?format=serialized with 403: check user and password, or "),
        (Fault(302, b"", (("Location", "http://127.0.0.1:9/"),)), " redirects with 302 to the request "),
        (Fault(200, b"<html>"), " answers 200 without JSON to the request "),
        (Fault(200, b"[" * 100_000), " answers 200 without JSON to the request "),
        (Fault(200, b"\xff"), " answers 200 without JSON to the request "),
        (Fault(200, b"[]"), " answers the request /schemas/ids/1?format=serialized with JSON that is no object"),
        (Fault(200, b"{}"), " with JSON without the text of a schema: "),
        (Fault(200, b'{"schema": 1}'), " with JSON without the text of a schema: "),
        (Fault(200, b'{"schema": "1", "references": 1}'), " with references of another form: "),
        (Fault(200, b'{"schema": "1", "references": [{"name": "a"}]}'), " with references of another form: "),
        # A server that is no registry knows no such path: no payload is to blame.
        (Fault(404, b"not found"), " answers 404 without JSON to the request "),
        (Fault(404, b'{"error_code": 404, "message": "HTTP 404"}'), " answers 404 (HTTP 404) to the request "),
        (Fault(404, b'{"error_code": 40401, "message": "x"}'), " with 404 (x): "),
        (Fault(400, b'{"error_code": 400, "message": "a\\u001bb"}'), r" answers 400 (a\x1bb) to the request "),
    ],
)  # fmt: skip
def test_what_is_no_answer_fails_the_task(registry: FakeRegistry, fault: Fault, said: str) -> None:
    registry.faults = [fault]
    timeout = 0.5 if fault is HANG else 60
    client = registry.client(user="me", password="hidden", timeout=timeout)
    with pytest.raises(RegistryError) as raised:
        read(RegisteredAvroReader(client, FIRST), (1, b"\2"))
    text = str(pickle.loads(pickle.dumps(raised.value)))
    assert text.startswith(f"argument registry: {registry.url} ")
    assert said in text
    assert "hidden" not in text


def test_a_registry_that_is_down() -> None:
    with socket.socket() as bound:
        # Nothing listens here, and no other program can take the port.
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        reader = RegisteredAvroReader(SchemaRegistry(url, retry_timeout=0), FIRST)
        with pytest.raises(RegistryError) as raised:
            read(reader, (1, b"\2"))
    assert str(raised.value) == (
        f"argument registry: {url} did not answer the request "
        "/schemas/ids/1?format=serialized for 0 seconds (the connection was refused, nothing "
        "listens there): start the task again when it does, or raise retry_timeout of "
        "SchemaRegistry"
    )


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("http://registry..example", None),
        ("http://registry.example", "http:me:hidden"),
        ("http://registry.example", "http://me:hidden@proxy:hidden"),
    ],
)
def test_an_address_without_a_server_fails_the_task(
    monkeypatch: pytest.MonkeyPatch, url: str, proxy: str | None
) -> None:
    for name in ("http_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    if proxy is not None:
        monkeypatch.setenv("http_proxy", proxy)
    client = SchemaRegistry(url, retry_timeout=0)
    with pytest.raises(RegistryError) as raised:
        read(RegisteredAvroReader(client, FIRST), (1, b"\2"))
    assert str(raised.value) == (
        f"argument registry: no request can be sent to {url}: check the URL, and the proxies of "
        "the environment (http_proxy, https_proxy)"
    )
    # A traceback would show the text of a cause.
    assert raised.value.__suppress_context__


def test_logins() -> None:
    basic = "Basic " + base64.b64encode("me:pä:ss".encode()).decode()
    for login, given in (
        (basic, {"user": "me", "password": "pä:ss"}),
        ("Bearer a.b-c", {"token": "a.b-c"}),
    ):
        with FakeRegistry(login).running() as registry:
            schema = registry.add("orders-value", FIRST)
            reader = RegisteredAvroReader(registry.client(**given), FIRST)
            assert read(reader, (schema, b"\2"))[0]["value"] == {"id": 1}
            assert registry.headers["Accept"].startswith("application/vnd.schemaregistry.v1+json")
    with FakeRegistry(basic).running() as registry:
        schema = registry.add("orders-value", FIRST)
        url = registry.url.replace("//", "//me:p%C3%A4%3Ass@")
        shown = SchemaRegistry(url)
        assert read(RegisteredAvroReader(shown, FIRST), (schema, b"\2"))[0]["value"] == {"id": 1}
        assert repr(shown) == f"SchemaRegistry('{registry.url}')"
        # Another login has its own answers.
        with pytest.raises(RegistryError, match=" with 401: check user and password, or token"):
            read(RegisteredAvroReader(registry.client(), FIRST), (schema, b"\2"))


def test_certificates(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with FakeRegistry(context=context).running() as registry:
        schema = registry.add("orders-value", FIRST)
        trusting = registry.client(ca_file=tmp_path / "ca.pem")
        # The workers get the certificates themselves.
        (tmp_path / "ca.pem").unlink()
        assert read(RegisteredAvroReader(trusting, FIRST), (schema, b"\2"))[0]["value"]
        with pytest.raises(RegistryError) as raised:
            read(RegisteredAvroReader(registry.client(retry_timeout=60), FIRST), (schema, b"\2"))
        assert str(raised.value).startswith(
            f"argument registry: {registry.url}: the certificate is not trusted: "
        )
        assert str(raised.value).endswith(": give ca_file of SchemaRegistry")


@pytest.mark.parametrize(
    ("url", "given", "said"),
    [
        ("registry:8081", {}, "argument url of SchemaRegistry must be the URL of one server, such"),
        (
            "ftp://registry",
            {},
            "argument url of SchemaRegistry must be the URL of one server, such",
        ),
        ("https://", {}, "argument url of SchemaRegistry must be the URL of one server, such as"),
        ("https://a,https://b", {}, "argument url of SchemaRegistry must be the URL of one server"),
        ("https://a:x", {}, "argument url of SchemaRegistry must be the URL of one server, such"),
        ("https://a b", {}, "argument url of SchemaRegistry must be the URL of one server, such"),
        ("https://a?x=hidden", {}, "argument url of SchemaRegistry has a part after ? or #, which"),
        (
            "https://u:hidden@a",
            {"user": "u"},
            "argument url of SchemaRegistry has a login, and user or password is given, too",
        ),
        ("https://a", {"user": "u"}, "argument user of SchemaRegistry and password belong togeth"),
        ("https://a", {"password": "hidden"}, "argument user of SchemaRegistry and password belo"),
        (
            "https://a",
            {"user": "u:v", "password": "hidden"},
            "argument user of SchemaRegistry has a colon, which HTTP Basic does not allow",
        ),
        (
            "https://a",
            {"token": "hidden", "user": "u"},
            "argument token of SchemaRegistry excludes user and password",
        ),
        ("https://a", {"token": "hidden\r\n"}, "argument token of SchemaRegistry has a character"),
        ("https://a", {"token": ""}, "argument token of SchemaRegistry has a character that no to"),
        ("https://a", {"ca_file": "/none"}, "argument ca_file of SchemaRegistry must name a PEM "),
        ("https://a", {"ca_file": __file__}, "argument ca_file of SchemaRegistry must name a PEM"),
        ("https://a", {"timeout": 0}, "argument timeout of SchemaRegistry must be more than 0 sec"),
        ("https://a", {"timeout": "1"}, "argument timeout of SchemaRegistry must be a number of s"),
        ("https://a", {"retry_timeout": -1}, "argument retry_timeout of SchemaRegistry must be a "),
    ],
)
def test_registries_that_are_refused(url: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError) as raised:
        SchemaRegistry(url, **given)
    assert str(raised.value).startswith(said)
    assert "hidden" not in str(raised.value)


def test_a_url_stands_for_a_registry() -> None:
    assert registry_of("https://a/path/") == SchemaRegistry("https://a/path")
    with pytest.raises(OptionError, match=r"^argument registry must be a URL or a SchemaRegistry"):
        registry_of(7)


def test_subjects_of_the_registry(registry: FakeRegistry) -> None:
    assert registry_subject_of("orders.eu", None) == "orders.eu-value"
    assert registry_subject_of(None, "shop.Order") == "shop.Order"
    assert registry_subject_of(None, None) is None
    for given, said in (
        (("orders", "orders-value"), "arguments subject and registry_subject exclude each other"),
        (("orders.*", None), "argument subject must be a subject of NATS without wildcards, not"),
        (("orders.>", None), "argument subject must be a subject of NATS without wildcards, not"),
        (("", None), "argument subject must be a subject of NATS without wildcards, not ''"),
        ((None, ""), "argument registry_subject is empty"),
    ):
        with pytest.raises(OptionError) as raised:
            registry_subject_of(*given)
        assert str(raised.value).startswith(said)
    client = RegistryClient(registry.client())
    registry.add("a/b c", FIRST)
    registry.add("a/b c", SECOND)
    assert client.latest("a/b c").text == json.dumps(SECOND)
    assert registry.requests[0] == "GET /subjects/a%2Fb%20c/versions/latest"
    with pytest.raises(SchemaError) as raised_for:
        client.latest("orders-value")
    assert str(raised_for.value) == (
        f"argument registry: {registry.url} has no subject orders-value with version latest: "
        "register a schema, or give the right registry_subject"
    )
    with pytest.raises(SchemaError, match=r"^argument format is json, but the schema of subject a"):
        latest_of(client, "a/b c", "json")
    registry.subjects["lost"] = [1]
    registry.faults = [Fault(200, b'{"id": 77}')]
    with pytest.raises(SchemaError, match="has the schema 77 in version latest, which http"):
        client.latest("lost")
    registry.faults = [Fault(200, b'{"id": true}')]
    with pytest.raises(RegistryError, match="with JSON without an id"):
        client.latest("lost")
