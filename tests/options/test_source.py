"""Options from Spark to models: what is read, what is refused and in which words, and what never shows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr, ValidationError

from spark_jetstream.options import ConnectionOptions, SinkOptions, SourceOptions, options_markdown
from spark_jetstream.options.specs import AUTHENTICATION, EXCLUSIVE, SPARK_KEYS, OptionSpec
from tests.options.support import SECRET, assert_refused, check_identity, hides, secret_options

ROOT = Path(__file__).parents[2]


def source(streaming: bool = True, /, **options: object) -> SourceOptions:
    return SourceOptions.from_spark({"stream": "ORDERS", **options}, streaming=streaming)


def connection(**options: object) -> ConnectionOptions:
    return ConnectionOptions.from_spark(options)


# One text for each option that means something else than leaving it out, what must stand beside it, and its value.
SAMPLES: dict[str, tuple[str, dict[str, str], object]] = {
    "servers": ("tls://a:1,b", {}, ("tls://a:1", "nats://b")),
    "user": ("me", {"password": "x"}, "me"),
    "password": ("x", {"user": "me"}, SecretStr("x")),
    "token": ("x", {}, SecretStr("x")),
    "credentialsFile": ("/a.creds", {}, "/a.creds"),
    "credentialsSecret": ("x", {}, SecretStr("x")),
    "nkeySeedFile": ("/a.nk", {}, "/a.nk"),
    "nkeySeedSecret": ("x", {}, SecretStr("x")),
    "tlsCaFile": ("/ca.pem", {}, "/ca.pem"),
    "tlsCaPem": ("pem", {}, "pem"),
    "tlsCertFile": ("/c.pem", {"tlsKeySecret": "x"}, "/c.pem"),
    "tlsCertPem": ("pem", {"tlsKeyFile": "x"}, "pem"),
    "tlsKeyFile": ("/k.pem", {"tlsCertPem": "x"}, "/k.pem"),
    "tlsKeySecret": ("x", {"tlsCertFile": "x"}, SecretStr("x")),
    "tlsHostname": ("nats.example", {}, "nats.example"),
    "tlsHandshakeFirst": ("true", {}, True),
    "domain": ("hub", {}, "hub"),
    "apiPrefix": ("JSA.API.", {}, "JSA.API"),
    "inboxPrefix": ("_INBOX_me", {}, "_INBOX_me"),
    "connectTimeout": ("3s", {}, 3.0),
    "requestTimeout": ("1500ms", {}, 1.5),
    "retryTimeout": ("0s", {}, 0.0),
    "stream": ("A, B", {}, ("A", "B")),
    "subjects": ("a.*,b.>", {}, ("a.*", "b.>")),
    "startingOffsets": ('{"ORDERS": 1001}', {}, (("ORDERS", 1001),)),
    "startingTimestamp": ("2026-03-01T12:00:00Z", {}, 1_772_366_400_000_000_000),
    "endingOffsets": ('{"ORDERS": 2001}', {}, (("ORDERS", 2001),)),
    "endingTimestamp": ("1772366400000", {}, 1_772_366_400_000_000_000),
    "failOnDataLoss": ("false", {}, False),
    "maxMessagesPerTrigger": ("7", {}, 7),
    "maxBytesPerTrigger": ("1m", {}, 1 << 20),
    "minMessagesPerTrigger": ("7", {}, 7),
    "maxTriggerDelay": ("1m", {"minMessagesPerTrigger": "7"}, 60.0),
    "minPartitions": ("4", {}, 4),
    "maxMessagesPerPartition": ("5", {}, 5),
    "fetchBatch": ("100", {}, 100),
    "fetchMaxBytes": ("1m", {}, 1 << 20),
    "fetchTimeout": ("5s", {}, 5.0),
    "includeHeaders": ("false", {}, False),
    "readWith": ("Direct", {}, "direct"),
    "durable": ("spark-orders", {}, "spark-orders"),
    "filterPushdown": ("true", {}, True),
    "bucket": ("prices", {}, "prices"),
    "keys": ("eu.*, us.>", {"bucket": "b"}, ("eu.*", "us.>")),
    "history": ("true", {"bucket": "b"}, True),
    "objectBucket": ("files", {}, "files"),
    "pathGlobFilter": ("*.{csv,json}", {"objectBucket": "o"}, "*.{csv,json}"),
    "contentOff": ("true", {"objectBucket": "o"}, True),
    "ensureStream": ('{"subjects": ["a"]}', {}, '{"subjects": ["a"]}'),
    "ensureStreamOnConflict": ("Update", {"ensureStream": "streams.yaml"}, "update"),
}
BUCKETS = {"bucket", "objectBucket"}
BOTH_SIDES = {"stream", "ensureStream", "ensureStreamOnConflict", *BUCKETS}


def with_stream(*given: Mapping[str, str]) -> dict[str, str]:
    """These options, and a stream where none of them says what is read."""
    options = {name: value for each in given for name, value in each.items()}
    return options if BUCKETS & options.keys() else {"stream": "ORDERS", **options}


ALL = [spec for spec in (*ConnectionOptions.specs, *SourceOptions.specs) if spec.name != "context"]


@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.name)
@pytest.mark.parametrize("change", [str, str.lower], ids=["as written", "lower"])
def test_every_option_reaches_its_field_in_any_case(spec: OptionSpec, change: Any) -> None:
    text, beside, expected = SAMPLES[spec.name]
    given = {change(name): value for name, value in with_stream(beside, {spec.name: text}).items()}
    options = SourceOptions.from_spark(given, streaming=spec.only != "batch")
    model = options.connection if spec in ConnectionOptions.specs else options
    value = getattr(model, spec.field_name)
    assert value == expected
    assert type(value) is type(expected)
    assert type(model).model_fields[spec.field_name].get_default() != expected


def test_every_option_has_a_sample() -> None:
    assert set(SAMPLES) == {spec.name for spec in ALL}


def test_secret_options_have_names_that_spark_redacts() -> None:
    redacted = re.compile(r"(?i)secret|password|token|access[.]?key")  # spark.redaction.regex, Spark 4
    for spec in (*ALL, *SinkOptions.specs):
        assert spec.secret is bool(redacted.search(spec.name)), spec.name


def test_defaults() -> None:
    options = source()
    assert options.connection == ConnectionOptions()
    assert options.connection.servers == ("nats://127.0.0.1:4222",)
    assert options.connection.api_prefix_resolved == "$JS.API"
    assert (options.streaming, options.streams, options.subjects) == (True, ("ORDERS",), ())
    assert (options.starting_offsets, options.ending_offsets) == ("earliest", "latest")
    assert (options.fetch_batch, options.fetch_max_bytes, options.fetch_timeout) == (20000, 8 << 20, 30.0)
    assert options.max_trigger_delay == 900.0


@pytest.mark.parametrize(
    ("options", "prefix"),
    [({}, "$JS.API"), ({"domain": "hub"}, "$JS.hub.API"), ({"apiPrefix": "JSA.API."}, "JSA.API")],
)
def test_the_api_prefix(options: dict[str, str], prefix: str) -> None:
    assert connection(**options).api_prefix_resolved == prefix


@pytest.mark.parametrize(
    ("options", "required"),
    [
        ({}, False),
        ({"servers": "tls://a"}, True),
        ({"servers": "wss://a"}, True),
        ({"servers": "ws://a"}, False),
        ({"tlsCaFile": "/ca"}, True),
        ({"tlsHostname": "a"}, True),
        ({"tlsHandshakeFirst": "true"}, True),
        ({"tlsHandshakeFirst": "false"}, False),
    ],
)
def test_when_encryption_is_asked_for(options: dict[str, str], required: bool) -> None:
    assert connection(**options).requires_tls is required


def test_values_of_other_types_are_taken_as_their_text() -> None:
    options = source(maxMessagesPerTrigger=5, failOnDataLoss=False, subjects=None, token=SecretStr("x"))
    assert (options.max_messages_per_trigger, options.fail_on_data_loss, options.subjects) == (5, False, ())
    assert options.connection.token == SecretStr("x")


@pytest.mark.parametrize("streaming", [True, False])
def test_sparks_own_keys_pass(streaming: bool) -> None:
    given = dict.fromkeys(SPARK_KEYS, "x") | {"option.stream": "ORDERS", "checkpointLocation": "/c", "queryName": "q"}
    assert source(streaming, **given) == source(streaming)


def test_a_connection_leaves_the_options_of_sources_and_sinks_alone() -> None:
    options = {"stream": "ORDERS", "maxmessagespertrigger": "5", "delivery": "x", "durable": "d", "token": "t"}
    assert ConnectionOptions.from_spark(options) == connection(token="t")


def test_a_timestamp_wins_over_offsets_without_an_error() -> None:
    options = source(startingTimestamp="1772366400000", startingOffsets='{"ORDERS": 5}')
    assert options.starting_timestamp == 1_772_366_400_000_000_000
    assert source(False, startingTimestamp="1772366400000", endingOffsets='{"ORDERS": 5}').streams == ("ORDERS",)


def test_what_may_stand_together() -> None:
    assert source(False, startingOffsets='{"ORDERS": 5}', endingOffsets='{"ORDERS": 5}').ending_offsets
    assert source(minMessagesPerTrigger=5, maxMessagesPerTrigger=5).min_messages_per_trigger == 5
    assert source(readWith="Consumer").read_with == "consumer"
    assert source(False, filterPushdown="FALSE").filter_pushdown is False
    bucket = SourceOptions.from_spark({"bucket": "b", "startingOffsets": '{"b": 5}', "durable": "d"}, streaming=True)
    assert (bucket.read_streams, bucket.named("KV_b"), bucket.table) == (("KV_b",), "b", False)
    objects = SourceOptions.from_spark({"objectBucket": "o", "minPartitions": "2"}, streaming=False)
    assert (objects.read_streams, objects.named("OBJ_o"), objects.table) == (("OBJ_o",), "o", True)
    revisions = SourceOptions.from_spark(
        {"bucket": "b", "history": "true", "endingOffsets": '{"b": 5}'}, streaming=False
    )
    assert (revisions.table, source().table) == (False, False)
    assert connection(servers="wss://a", tlsCaFile="/ca").tls_ca_file == "/ca"
    assert connection(servers="nats://me:x@a") == connection(servers="nats://a", user="me", password="x")
    assert connection(servers="nats://t%40k@a,b") == connection(servers="nats://a,nats://b", token="t@k")


STREAM, BATCH = True, False
NONE = {"stream": None}
PEM = {"tlsCertPem": "x", "tlsKeySecret": "y"}

# Where it is used, the options beside stream=ORDERS, the option that the error is about, and words in it.
REFUSED: list[tuple[bool, Mapping[str, object], str, str]] = [
    # names
    (STREAM, {"maxmessagepertrigger": "5"}, "maxmessagepertrigger", "did you mean maxMessagesPerTrigger"),
    (STREAM, {"server": "a"}, "server", "did you mean servers"),
    (STREAM, {"header": "true"}, "header", "there is no option header; did you mean"),
    (STREAM, {"kafka.bootstrap.servers": "a"}, "kafka.bootstrap.servers", "did you mean servers"),
    (STREAM, {"Subjects": "a", "subjects": "b"}, "subjects", "is given twice"),
    (STREAM, {"subject": "a"}, "subject", "belongs to the sink and has no meaning for a source; did you mean subjects"),
    *(
        (streaming, {name.lower(): "x"}, name, "belongs to the sink")
        for name in (spec.name for spec in SinkOptions.specs if spec.name not in BOTH_SIDES)
        for streaming in (STREAM, BATCH)
    ),
    # streams that are made
    (STREAM, {"ensureStreamOnConflict": "update"}, "ensureStreamOnConflict", "has no meaning without ensureStream"),
    (STREAM, {"ensureStream": " "}, "ensureStream", "must not be empty"),
    (BATCH, {"ensureStream": "{}", "ensureStreamOnConflict": "replace"}, "ensureStreamOnConflict", "update or ignore"),
    (STREAM, {**NONE, "bucket": "b", "ensureStream": "{}"}, "ensureStream", "no meaning with bucket: a bucket is more"),
    (BATCH, {**NONE, "objectBucket": "o", "ensureStream": "{}"}, "ensureStream", "(spark-jetstream object add)"),
    # required
    (STREAM, {"stream": None}, "stream", "option stream is required: the name of the stream to read (or bucket"),
    # buckets
    (STREAM, {"bucket": "b"}, "stream", "options stream and bucket exclude each other"),
    (STREAM, {"objectBucket": "b"}, "stream", "options stream and objectBucket exclude each other"),
    (STREAM, {**NONE, "bucket": "b", "objectBucket": "o"}, "bucket", "exclude each other"),
    (STREAM, {**NONE, "bucket": "a.b"}, "bucket", "1 to 252 letters"),
    (STREAM, {**NONE, "bucket": "b", "subjects": "a"}, "subjects", "no meaning with bucket: use keys"),
    (STREAM, {**NONE, "bucket": "b", "includeHeaders": "false"}, "includeHeaders", "its rows have no headers"),
    (STREAM, {**NONE, "bucket": "b", "keys": "a b"}, "keys", "must be a key, possibly with * and >: there is"),
    (
        STREAM,
        {**NONE, "bucket": "b", "startingOffsets": '{"c": 5}'},
        "startingOffsets",
        'names bucket "c", which option',
    ),
    (STREAM, {**NONE, "bucket": "b", "history": "true"}, "history", "a stream has every revision as it comes"),
    (STREAM, {"keys": "a"}, "keys", "option keys has no meaning without bucket"),
    (BATCH, {"history": "true"}, "history", "option history has no meaning without bucket"),
    *(
        (BATCH, {**NONE, "bucket": "b", name: text}, name, "which is read as it is now; history=true")
        for name, text in {
            "startingOffsets": '{"b": 5}',
            "startingTimestamp": "0",
            "endingOffsets": '{"b": 5}',
            "endingTimestamp": "0",
            "minPartitions": "2",
            "maxMessagesPerPartition": "2",
        }.items()
    ),
    (STREAM, {**NONE, "objectBucket": "o", "subjects": "a"}, "subjects", "use pathGlobFilter"),
    (BATCH, {**NONE, "objectBucket": "o", "filterPushdown": "true"}, "filterPushdown", "use pathGlobFilter"),
    (BATCH, {**NONE, "objectBucket": "o", "endingTimestamp": "0"}, "endingTimestamp", "which is read as it is now"),
    (BATCH, {**NONE, "objectBucket": "o", "pathGlobFilter": "[a"}, "pathGlobFilter", "but a [ is not closed"),
    (BATCH, {"contentOff": "true"}, "contentOff", "option contentOff has no meaning without objectBucket"),
    (STREAM, {"pathGlobFilter": "*"}, "pathGlobFilter", "no meaning without objectBucket"),
    # other kinds of reading
    (STREAM, {"readWith": "pull"}, "readWith", "must be consumer or direct"),
    (STREAM, {"durable": "a.b"}, "durable", "without blanks, dots"),
    (STREAM, {"durable": ""}, "durable", "must be the name of a consumer"),
    (BATCH, {"durable": "d"}, "durable", "a batch keeps no position"),
    (STREAM, {"filterPushdown": "true"}, "filterPushdown", "when reading a stream: name what to read with stream"),
    (STREAM, {"stream": ""}, "stream", "must not be empty"),
    # where
    (STREAM, {"endingOffsets": "latest"}, "endingOffsets", "when reading a stream: stop the query"),
    (STREAM, {"endingTimestamp": "0"}, "endingTimestamp", "trigger(availableNow=True)"),
    (BATCH, {"maxMessagesPerTrigger": "5"}, "maxMessagesPerTrigger", "when reading a batch: bound a batch with"),
    (BATCH, {"maxBytesPerTrigger": "5"}, "maxBytesPerTrigger", "endingOffsets or endingTimestamp"),
    (BATCH, {"minMessagesPerTrigger": "5"}, "minMessagesPerTrigger", "a batch reads what is there"),
    (BATCH, {"maxTriggerDelay": "5s"}, "maxTriggerDelay", "a batch reads what is there"),
    (BATCH, {"startingOffsets": "latest"}, "startingOffsets", "cannot be latest when reading a batch"),
    # values
    (STREAM, {"stream": "X,A.B"}, "stream", "option stream (element 2) must be the name of a stream, without"),
    (STREAM, {"subjects": "a.>,a.b"}, "subjects", '"a.>" and "a.b", which overlap'),
    (STREAM, {"maxMessagesPerTrigger": "many"}, "maxMessagesPerTrigger", "a whole number from 1 to 2^63-1"),
    (STREAM, {"minPartitions": "0"}, "minPartitions", "from 1 to 100,000"),
    (STREAM, {"fetchBatch": "100001"}, "fetchBatch", "from 1 to 100,000"),
    (STREAM, {"fetchMaxBytes": "1k"}, "fetchMaxBytes", "from 64k to 512m"),
    (STREAM, {"fetchTimeout": "10ms"}, "fetchTimeout", "from 1s to 10m"),
    (STREAM, {"includeHeaders": "0"}, "includeHeaders", "true or false"),
    (STREAM, {"startingTimestamp": "2026-03-01T12:00:00"}, "startingTimestamp", "with its zone"),
    (STREAM, {"startingOffsets": "5"}, "startingOffsets", "earliest, latest or JSON"),
    (
        STREAM,
        {"startingOffsets": '{"OTHER": 5}'},
        "startingOffsets",
        'names stream "OTHER", which option stream does not',
    ),
    (
        STREAM,
        {"stream": "A,B", "startingOffsets": '{"A": 5}'},
        "startingOffsets",
        'gives no sequence for stream "B"',
    ),
    (BATCH, {"endingOffsets": '{"OTHER": 5}'}, "endingOffsets", "which option stream does not"),
    (BATCH, {"endingOffsets": "earliest"}, "endingOffsets", "must be latest or JSON"),
    (
        BATCH,
        {"startingOffsets": '{"ORDERS": 5}', "endingOffsets": '{"ORDERS": 4}'},
        "endingOffsets",
        'stops "ORDERS" before 4, but startingOffsets begins at 5',
    ),
    (BATCH, {"startingTimestamp": "1772366400001", "endingTimestamp": "1772366400000"}, "endingTimestamp", "is before"),
    (STREAM, {"servers": "nats://a,wss://b"}, "servers", "mixes"),
    (STREAM, {"servers": "nats://a:x"}, "servers", "URL number 1, in which the port"),
    (STREAM, {"domain": "a.b"}, "domain", "a name without dots"),
    (STREAM, {"inboxPrefix": "a.>"}, "inboxPrefix", "a subject prefix"),
    (STREAM, {"retryTimeout": "2d"}, "retryTimeout", "from 0s to 1d"),
    (STREAM, {"connectTimeout": "0s"}, "connectTimeout", "from 100ms to 10m"),
    (STREAM, {"requestTimeout": "0s"}, "requestTimeout", "from 100ms to 10m"),
    (STREAM, {"tlsHandshakeFirst": "maybe"}, "tlsHandshakeFirst", "true or false"),
    (STREAM, {"token": ""}, "token", "must not be empty"),
    # pairs
    (STREAM, {"domain": "a", "apiPrefix": "b"}, "domain", "options domain and apiPrefix exclude each other"),
    (BATCH, {"endingOffsets": "latest", "endingTimestamp": "0"}, "endingOffsets", "exclude each other"),
    (STREAM, {"tlsCaFile": "a", "tlsCaPem": "b"}, "tlsCaFile", "exclude each other"),
    (STREAM, {**PEM, "tlsCertFile": "a"}, "tlsCertFile", "exclude each other"),
    (STREAM, {**PEM, "tlsKeyFile": "a"}, "tlsKeyFile", "exclude each other"),
    (STREAM, {"credentialsFile": "a", "credentialsSecret": "b"}, "credentialsFile", "exclude each other"),
    (STREAM, {"nkeySeedFile": "a", "nkeySeedSecret": "b"}, "nkeySeedFile", "exclude each other"),
    (STREAM, {"tlsCertFile": "a"}, "tlsCertFile", "needs tlsKeyFile or tlsKeySecret beside it"),
    (STREAM, {"tlsKeySecret": "a"}, "tlsKeySecret", "needs tlsCertFile or tlsCertPem beside it"),
    (STREAM, {"user": "a"}, "user", "needs password beside it"),
    (STREAM, {"password": "a"}, "password", "needs user beside it"),
    (STREAM, {"user": "a", "password": "b", "token": "c"}, "user", "user and token are two kinds of authentication"),
    (STREAM, {"token": "c", "credentialsFile": "d"}, "token", "two kinds of authentication"),
    (STREAM, {"credentialsSecret": "c", "nkeySeedFile": "d"}, "credentialsSecret", "two kinds of authentication"),
    (STREAM, {"servers": "nats://u:p@a", "token": "c"}, "token", "two kinds of authentication"),
    (STREAM, {"servers": "nats://u:p@a", "user": "c", "password": "d"}, "user", "two kinds of authentication"),
    (
        STREAM,
        {"minMessagesPerTrigger": "6", "maxMessagesPerTrigger": "5"},
        "minMessagesPerTrigger",
        "(6) is larger than",
    ),
    (STREAM, {"maxTriggerDelay": "5s"}, "maxTriggerDelay", "without minMessagesPerTrigger"),
    (STREAM, {"servers": "ws://a", "tlsCaFile": "b"}, "tlsCaFile", "no effect with ws:// URLs"),
    (STREAM, {"servers": "wss://a", "tlsHostname": "b"}, "tlsHostname", "does not work with wss://"),
    (STREAM, {"servers": "wss://a", "tlsHandshakeFirst": "true"}, "tlsHandshakeFirst", "does not work with wss://"),
]


@pytest.mark.parametrize(("streaming", "options", "option", "words"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_is_refused(streaming: bool, options: Mapping[str, object], option: str, words: str) -> None:
    assert_refused(lambda: source(streaming, **options), option, words)


def test_every_pair_in_the_table_is_refused() -> None:
    tried = [set(options) for _, options, _, words in REFUSED if "exclude each other" in words]
    for pair in EXCLUSIVE:
        assert any(set(pair) <= options for options in tried), pair
    assert {name for names in AUTHENTICATION.values() for name in names} <= set(SAMPLES)


WRONG: list[Mapping[str, object]] = [
    *secret_options({"fetchBatch": "none"}, {"nonsense": "x"}, {"startingOffsets": '{"X": 1}'}),
    *secret_options({"domain": "a", "apiPrefix": "b"}),
    {"password": SECRET},
    {"token": SECRET, "user": "me", "password": SECRET},
    {"tlsKeySecret": SECRET},
    {"credentialsSecret": SECRET, "credentialsFile": "/a"},
    {"servers": f"nats://{SECRET}:{SECRET}@host:port"},
    {"servers": f"nats://{SECRET}:{SECRET}@host", "token": SECRET},
    {"servers": f"nats://{SECRET}@host", "fetchBatch": "none"},
    {"servers": f"nats://me:{SECRET}@host", "subjects": "a..b"},
    {"servers": f"nats://me:{SECRET}@host,nats://me:{SECRET}2@host"},
]


@pytest.mark.parametrize("options", WRONG, ids="+".join)
def test_no_error_holds_a_secret(options: Mapping[str, object]) -> None:
    hides(lambda: source(**options))


@pytest.mark.parametrize(
    "options",
    [
        {"user": SECRET, "password": SECRET},
        {"token": SECRET},
        {"credentialsSecret": SECRET},
        {"nkeySeedSecret": SECRET},
        {"tlsKeySecret": SECRET, "tlsCertFile": "/c"},
        {"servers": f"nats://{SECRET}:{SECRET}@host"},
        {"servers": f"nats://{SECRET}@host"},
    ],
    ids="+".join,
)
def test_no_text_of_a_model_holds_a_secret(options: dict[str, object]) -> None:
    model = source(**options)
    sink = SinkOptions.from_spark({"subject": "a", **options}, streaming=True)
    for shown in (model, model.connection, sink):
        for text in (repr(shown), str(shown), f"{shown}", shown.model_dump_json(exclude={"connection", "user"})):
            assert SECRET not in text
    assert SECRET not in model.connection.display_servers
    assert SECRET not in model.connection.authentication_options


def test_a_model_made_directly_is_checked_as_well() -> None:
    assert SourceOptions(streaming=True, streams=("A",), fetch_timeout=2.5).fetch_timeout == 2.5
    with pytest.raises(ValidationError) as caught:
        ConnectionOptions(password=SecretStr(SECRET), domain="a.b")
    assert SECRET not in str(caught.value)
    with pytest.raises(ValidationError, match="needs password beside it"):
        ConnectionOptions(user="me")
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        ConnectionOptions.model_validate({"nonsense": 1})


def test_authentication_is_described_by_names() -> None:
    assert connection().authentication_options == "no option for authentication is set"
    assert connection(token="x").authentication_options == "option token"
    assert connection(user="x", password="y").authentication_options == "options user and password"


def test_models_are_frozen_hashable_and_pickle() -> None:
    options = {"token": "x", "startingOffsets": '{"ORDERS": 1}', "subjects": "a", "tlsCaFile": "/ca"}
    check_identity(lambda **more: source(**{**options, **more}), token="y")
    assert {source(**options).connection: "pooled"}[source(**options).connection] == "pooled"
    written = {"token": "x", "subject": "a", "delivery": "exactly-once", "writeId": "w", "stream": "ORDERS"}
    check_identity(lambda **more: SinkOptions.from_spark({**written, **more}, streaming=False), token="y")


@pytest.mark.parametrize("model", [SourceOptions, SinkOptions])
def test_the_models_schema_can_be_made(model: type[BaseModel]) -> None:
    assert json.dumps(model.model_json_schema())


def test_the_reference_is_up_to_date() -> None:
    written = (ROOT / "docs" / "options.md").read_text("utf-8")
    assert written == options_markdown(), "run: python -m spark_jetstream.options > docs/options.md"
