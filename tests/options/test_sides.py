"""Options from Spark to models: what is read, what is refused and in which words, and what never
shows.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from spark_jetstream.errors import OptionError
from spark_jetstream.options import ConnectionOptions, SinkOptions, SourceOptions
from spark_jetstream.options.names import (
    CommaList,
    ConsumerNames,
    Identifier,
    KeyFilter,
    Name,
    NamePattern,
    Pair,
    Positions,
    Prefix,
    PublishSubject,
    Subject,
)
from spark_jetstream.options.servers import Servers
from spark_jetstream.options.specs import EXCLUSIVE, SPARK_KEYS, Options, OptionSpec
from spark_jetstream.options.values import (
    Choice,
    Flag,
    Kind,
    Seconds,
    Secret,
    Size,
    Text,
    Time,
    Whole,
)
from spark_jetstream.schema import COUNTER_COLUMNS, DEAD_LETTER_COLUMNS
from spark_jetstream.sink.faults import subject_fault

SECRET = "hunter2-never-shown"
STREAM, BATCH = True, False


def source(streaming: bool = True, /, **options: object) -> SourceOptions:
    return SourceOptions.from_spark({"stream": "ORDERS", **options}, streaming=streaming)


def sink(streaming: bool = True, /, **options: object) -> SinkOptions:
    return SinkOptions.from_spark(options, streaming=streaming)


def connection(**options: object) -> ConnectionOptions:
    return ConnectionOptions.from_spark(options)


# One text for each option that means something else than leaving it out, what must stand beside it,
# and its value.
PLAIN = (
    "credentialsFile",
    "jwtFile",
    "nkeySeedFile",
    "tlsCaFile",
    "tlsCaPem",
    "tlsHostname",
    "domain",
    "inboxPrefix",
    "durable",
)
SOURCE_SAMPLES: dict[str, tuple[str, dict[str, str], object]] = {
    **{name: (f"my-{name}", {}, f"my-{name}") for name in (*PLAIN, "bucket", "objectBucket")},
    **{
        name: ("x", {}, SecretStr("x"))
        for name in ("token", "credentialsSecret", "jwtSecret", "nkeySeedSecret")
    },
    "servers": ("tls://a:1,b", {}, ("tls://a:1", "nats://b")),
    "user": ("me", {"password": "x"}, "me"),
    "password": ("x", {"user": "me"}, SecretStr("x")),
    "tlsCertFile": ("/c.pem", {"tlsKeySecret": "x"}, "/c.pem"),
    "tlsCertPem": ("pem", {"tlsKeyFile": "x"}, "pem"),
    "tlsKeyFile": ("/k.pem", {"tlsCertPem": "x"}, "/k.pem"),
    "tlsKeySecret": ("x", {"tlsCertFile": "x"}, SecretStr("x")),
    "tlsHandshakeFirst": ("true", {}, True),
    "apiPrefix": ("JSA.API.", {}, "JSA.API"),
    "connectTimeout": ("3s", {}, 3.0),
    "requestTimeout": ("1500ms", {}, 1.5),
    "retryTimeout": ("0s", {}, 0.0),
    "stream": ("A, B", {}, ("A", "B")),
    "streamPattern": ("ORDERS_*", {}, "ORDERS_*"),
    "streamMetadata": ("team=shop, tier=a=b,x=", {}, ("team=shop", "tier=a=b", "x=")),
    "subjects": ("a.*,b.>", {}, ("a.*", "b.>")),
    "startingOffsets": ('{"ORDERS": 1001}', {}, (("ORDERS", 1001),)),
    "startingTimestamp": ("2026-03-01T12:00:00Z", {}, 1_772_366_400_000_000_000),
    "startingConsumer": ('{"ORDERS": "billing"}', {}, (("ORDERS", "billing"),)),
    "share": ("pool", {}, "pool"),
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
    "counters": ("true", {}, True),
    "deadLettersOf": ("ORDERS", {}, "ORDERS"),
    "keys": ("eu.*, us.>", {"bucket": "b"}, ("eu.*", "us.>")),
    "history": ("true", {"bucket": "b"}, True),
    "asOfRevision": ("5", {"bucket": "b"}, 5),
    "asOfTimestamp": ("1772366400000", {"bucket": "b"}, 1_772_366_400_000_000_000),
    "pathGlobFilter": ("*.{csv,json}", {"objectBucket": "o"}, "*.{csv,json}"),
    "contentOff": ("true", {"objectBucket": "o"}, True),
    "ensureStream": ('{"subjects": ["a"]}', {}, '{"subjects": ["a"]}'),
    "ensureStreamOnConflict": ("Update", {"ensureStream": "streams.yaml"}, "update"),
}
SINK_SAMPLES: dict[str, tuple[str, dict[str, str], object]] = {
    "subject": ("orders.new", {}, "orders.new"),
    "stream": ("ORDERS", {}, "ORDERS"),
    "delivery": ("Exactly-Once", {}, "exactly-once"),
    "maxInFlight": ("7", {}, 7),
    "ackTimeout": ("1500ms", {}, 1.5),
    "maxRetries": ("0", {}, 0),
    "deadLetterSubject": ("orders.refused", {}, "orders.refused"),
    "serverHeaders": ("Drop", {}, "drop"),
    "messageIds": ("Content", {}, "content"),
    "writeId": ("load_2026-03-01", {}, "load_2026-03-01"),
    "bucket": ("prices", {}, "prices"),
    "objectBucket": ("files", {}, "files"),
    "ensureStream": ("streams.yaml", {}, "streams.yaml"),
    "ensureStreamOnConflict": ("Ignore", {"ensureStream": "{}"}, "ignore"),
}
BUCKETS = {"bucket", "objectBucket"}
FOUND = {"streamPattern", "streamMetadata", "deadLettersOf"}
BOTH_SIDES = {"stream", "ensureStream", "ensureStreamOnConflict", *BUCKETS}


SOURCE_SPECS = [
    spec for spec in (*ConnectionOptions.specs, *SourceOptions.specs) if spec.name != "context"
]


def check_sample(model: Options, spec: OptionSpec, expected: object) -> None:
    value = getattr(model, spec.field_name)
    assert value == expected
    assert type(value) is type(expected)
    assert type(model).model_fields[spec.field_name].get_default() != expected


@pytest.mark.parametrize("spec", SOURCE_SPECS, ids=lambda spec: spec.name)
@pytest.mark.parametrize("change", [str, str.lower], ids=["as written", "lower"])
def test_every_option_of_a_source_reaches_its_field_in_any_case(
    spec: OptionSpec, change: Any
) -> None:
    text, beside, expected = SOURCE_SAMPLES[spec.name]
    given = {**beside, spec.name: text}
    named = {} if (BUCKETS | FOUND) & given.keys() else {"stream": "ORDERS"}
    options = SourceOptions.from_spark(
        {change(name): value for name, value in {**named, **given}.items()},
        streaming=spec.only != "batch",
    )
    check_sample(options.connection if spec in ConnectionOptions.specs else options, spec, expected)


@pytest.mark.parametrize("spec", SinkOptions.specs, ids=lambda spec: spec.name)
@pytest.mark.parametrize("change", [str, str.upper], ids=["as written", "upper"])
def test_every_option_of_a_sink_reaches_its_field_in_any_case(
    spec: OptionSpec, change: Any
) -> None:
    text, beside, expected = SINK_SAMPLES[spec.name]
    check_sample(sink(spec.only != "batch", **beside, **{change(spec.name): text}), spec, expected)


def test_secret_options_have_names_that_spark_redacts() -> None:
    redacted = re.compile(
        r"(?i)secret|password|token|access[.]?key"
    )  # spark.redaction.regex, Spark 4
    for spec in (*SOURCE_SPECS, *SinkOptions.specs):
        assert spec.secret is bool(redacted.search(spec.name)), spec.name


def test_without_options_every_field_has_its_default() -> None:
    # tests/compat/formats/interface.json has the defaults.
    assert source() == SourceOptions(streaming=True, streams=("ORDERS",))
    for streaming in (STREAM, BATCH):
        assert sink(streaming) == SinkOptions(streaming=streaming)
    assert source().connection == sink().connection == ConnectionOptions()


@pytest.mark.parametrize("streaming", [STREAM, BATCH])
def test_sparks_own_keys_pass(streaming: bool) -> None:
    # A path beside a location is a table's folder.
    keys = SPARK_KEYS.keys() - {"paths"}
    given_by_spark = dict.fromkeys(keys, "x") | {"checkpointLocation": "/c", "queryName": "q"}
    assert source(streaming, **given_by_spark, **{"option.stream": "ORDERS"}) == source(streaming)
    assert sink(streaming, **given_by_spark, **{"option.subject": "a"}) == sink(streaming)


@pytest.mark.parametrize("streaming", [STREAM, BATCH])
def test_a_path_is_option_stream(streaming: bool) -> None:
    assert source(streaming, stream=None, path="ORDERS") == source(streaming)
    assert source(streaming, stream=None, Path="A,B").streams == ("A", "B")
    assert sink(streaming, path="ORDERS") == sink(streaming, stream="ORDERS")


@pytest.mark.parametrize("streaming", [STREAM, BATCH])
def test_a_source_without_any_option_says_that_spark_forgets_those_of_a_table(
    streaming: bool,
) -> None:
    forgets = "no option was given; Spark forgets the options of CREATE TABLE"
    for options in (
        {},
        {"provider": "jetstream", "owner": "me"},
        {"path": "/warehouse/t", "location": "/warehouse/t"},
    ):
        with pytest.raises(OptionError, match=r"^option stream is required: ") as caught:
            SourceOptions.from_spark(options, streaming=streaming)
        assert forgets in str(caught.value)
        for way in ('read.format("jetstream").option(', "CREATE TEMPORARY VIEW ", " WITH ("):
            assert way in str(caught.value)
    with pytest.raises(OptionError, match=r"^option stream is required: ") as caught:
        SourceOptions.from_spark({"servers": "nats://a"}, streaming=streaming)
    assert forgets not in str(caught.value)


def test_values_of_other_types_are_taken_as_their_text() -> None:
    options = source(
        maxMessagesPerTrigger=5, failOnDataLoss=False, subjects=None, token=SecretStr("x")
    )
    assert (options.max_messages_per_trigger, options.fail_on_data_loss, options.subjects) == (
        5,
        False,
        (),
    )
    assert options.connection.token == SecretStr("x")
    written = sink(BATCH, maxRetries=0, subject=None, writeId=20260301)
    assert (written.max_retries, written.subject, written.write_id) == (0, None, "20260301")


def test_connection_options_determine_the_api_prefix_and_tls() -> None:
    for options, prefix in (
        ({}, "$JS.API"),
        ({"domain": "hub"}, "$JS.hub.API"),
        ({"apiPrefix": "J.API."}, "J.API"),
    ):
        assert connection(**options).api_prefix_resolved == prefix
    encrypted = {"tlsCaFile": "/ca", "tlsHostname": "a", "tlsHandshakeFirst": "true"}
    for options in (
        {"servers": "tls://a"},
        {"servers": "wss://a"},
        *({name: encrypted[name]} for name in encrypted),
    ):
        assert connection(**options).requires_tls
    for options in ({}, {"servers": "ws://a"}, {"tlsHandshakeFirst": "false"}):
        assert not connection(**options).requires_tls


def test_a_connection_leaves_the_options_of_sources_and_sinks_alone() -> None:
    options = {
        "stream": "ORDERS",
        "maxmessagespertrigger": "5",
        "delivery": "x",
        "durable": "d",
        "token": "t",
    }
    assert ConnectionOptions.from_spark(options) == connection(token="t")


def test_a_timestamp_wins_over_offsets_without_an_error() -> None:
    options = source(startingTimestamp="1772366400000", startingOffsets='{"ORDERS": 5}')
    assert options.starting_timestamp == 1_772_366_400_000_000_000
    assert source(
        False, startingTimestamp="1772366400000", endingOffsets='{"ORDERS": 5}'
    ).streams == ("ORDERS",)


def test_options_that_do_not_conflict_are_accepted_together() -> None:
    assert source(
        False, startingOffsets='{"ORDERS": 5}', endingOffsets='{"ORDERS": 5}'
    ).ending_offsets
    assert source(minMessagesPerTrigger=5, maxMessagesPerTrigger=5).min_messages_per_trigger == 5
    assert source(readWith="Consumer").read_with == "consumer"
    bucket = SourceOptions.from_spark(
        {"bucket": "b", "startingOffsets": '{"b": 5}', "durable": "d"}, streaming=True
    )
    assert (bucket.read_streams, bucket.named("KV_b"), bucket.table) == (("KV_b",), "b", False)
    objects = SourceOptions.from_spark({"objectBucket": "o", "minPartitions": "2"}, streaming=False)
    assert (objects.read_streams, objects.named("OBJ_o"), objects.table) == (("OBJ_o",), "o", True)
    revisions = source(BATCH, stream=None, bucket="b", history="true", endingOffsets='{"b": 5}')
    assert (revisions.table, source().table) == (False, False)
    assert [source(each, counters="true").table for each in (BATCH, STREAM)] == [True, False]
    changes = source(BATCH, counters="true", history="true", endingOffsets='{"ORDERS": 5}')
    assert (changes.table, changes.row_columns) == (False, COUNTER_COLUMNS)
    letters = source(BATCH, stream=None, deadLettersOf="ORDERS", endingTimestamp="1772366400000")
    assert (letters.read_streams, letters.row_columns) == (
        ("ORDERS_DEAD_LETTERS",),
        DEAD_LETTER_COLUMNS,
    )
    assert connection(servers="wss://a", tlsCaFile="/ca").tls_ca_file == "/ca"
    assert not connection(servers="ws://a", tlsHandshakeFirst="false").requires_tls
    assert connection(servers="nats://me:x@a") == connection(
        servers="nats://a", user="me", password="x"
    )
    assert connection(servers="nats://t%40k@a,b") == connection(
        servers="nats://a,nats://b", token="t@k"
    )


def test_the_connection_comes_along(tmp_path: Path) -> None:
    options = sink(servers="nats://me:x@a", subject="a", requestTimeout="3s")
    assert options.connection == connection(
        servers="a", user="me", password="x", requesttimeout="3s"
    )
    context = tmp_path / "production.json"
    context.write_text(
        json.dumps({"url": "nats://b:4333", "token": SECRET, "jetstream_domain": "hub"})
    )
    options = sink(context=str(context), domain="leaf")
    assert (options.connection.servers, options.connection.domain) == (("nats://b:4333",), "leaf")
    assert options.connection.token == SecretStr(SECRET)


NONE = {"stream": None}


def both(one: str, other: str) -> dict[str, object]:
    """Two options with a value each, and what must stand beside the first."""
    values = {name: SOURCE_SAMPLES[name][0] for name in (one, other)}
    beside = SOURCE_SAMPLES[one][1]
    return {**(NONE if {one, *beside} & (FOUND | BUCKETS) else {}), **beside, **values}


# Where it is used, the options beside stream=ORDERS, the option that the error is about, and words
# in it.
REFUSED_BY_SOURCE: list[tuple[bool, Mapping[str, object], str, str]] = [
    # names
    (
        STREAM,
        {"maxmessagepertrigger": "5"},
        "maxmessagepertrigger",
        "did you mean maxMessagesPerTrigger",
    ),
    (STREAM, {"server": "a"}, "server", "did you mean servers"),
    (STREAM, {"header": "true"}, "header", "there is no option header; did you mean"),
    (
        BATCH,
        {"filterpushdown": "false"},
        "filterPushdown",
        "there is no option filterPushdown any more: Spark keeps one plan for each load(), so a "
        "frame read with other predicates had wrong rows; choose the messages with subjects (of a "
        "bucket: keys), startingOffsets, endingOffsets, startingTimestamp and endingTimestamp",
    ),
    (
        STREAM,
        {"format": "json"},
        "format",
        "there is no option format: column data is the payload, byte for byte; functions such as "
        "from_json and to_json convert it",
    ),
    # names of other connectors, which Spark hands over in lower case;
    # tests/source/test_like_kafka.py has Kafka's
    *(
        (STREAM, {name.lower(): "a"}, name, f"there is no option {name}; did you mean {ours}")
        for name, ours in {
            "eventhubs.connectionString": "servers",
            "eventhubs.maxEventsPerTrigger": "maxMessagesPerTrigger",
            "streamName": "stream",
            "kinesis.executor.maxFetchRecordsPerShard": "maxMessagesPerPartition",
            "nats.host": "servers",
            "nats.num.listeners": "minPartitions",
            "nats.pull.subscription.stream.name": "stream",
            "nats.stream.subjects": "subjects",
            "nats.source.js.api-prefix": "apiPrefix",
            # Without a prefix, as other sources have them.
            "consumer": "durable",
            "maxFilesPerTrigger": "maxMessagesPerTrigger",
            "name": "stream",
            "url": "servers",
            "creds": "credentialsFile",
            "versionAsOf": "asOfRevision",
        }.items()
    ),
    (STREAM, {"exactlyOnce": "true"}, "exactlyOnce", "there is no option exactlyOnce"),
    (STREAM, {"Subjects": "a", "subjects": "b"}, "subjects", "is given twice"),
    (
        STREAM,
        {"subject": "a"},
        "subject",
        "belongs to the sink and has no meaning for a source; did you mean subjects",
    ),
    *(
        (streaming, {name.lower(): "x"}, name, "belongs to the sink")
        for name in (spec.name for spec in SinkOptions.specs if spec.name not in BOTH_SIDES)
        for streaming in (STREAM, BATCH)
    ),
    # streams that are made
    (
        STREAM,
        {"ensureStreamOnConflict": "update"},
        "ensureStreamOnConflict",
        "has no meaning without ensureStream",
    ),
    (STREAM, {"ensureStream": " "}, "ensureStream", "must not be empty"),
    (
        BATCH,
        {"ensureStream": "{}", "ensureStreamOnConflict": "replace"},
        "ensureStreamOnConflict",
        "update or ignore",
    ),
    (
        STREAM,
        {**NONE, "bucket": "b", "ensureStream": "{}"},
        "ensureStream",
        "no meaning with bucket: a bucket is more",
    ),
    (
        BATCH,
        {**NONE, "objectBucket": "o", "ensureStream": "{}"},
        "ensureStream",
        "(spark-jetstream object add)",
    ),
    (BATCH, {**NONE, "deadLettersOf": "A,B"}, "deadLettersOf", "must name one stream, not a list"),
    # buckets
    (
        STREAM,
        {**NONE, "bucket": "b", "subjects": "a"},
        "subjects",
        "no meaning with bucket: use keys",
    ),
    (
        STREAM,
        {**NONE, "bucket": "b", "includeHeaders": "false"},
        "includeHeaders",
        "its rows have no headers",
    ),
    (
        STREAM,
        {**NONE, "bucket": "b", "keys": "a b"},
        "keys",
        'must be a key, possibly with * and >, not "a b": a character',
    ),
    (
        STREAM,
        {**NONE, "bucket": "b", "startingOffsets": '{"c": 5}'},
        "startingOffsets",
        'names bucket "c", which',
    ),
    (
        STREAM,
        {**NONE, "bucket": "b", "history": "true"},
        "history",
        "a stream has every revision as it comes",
    ),
    (STREAM, {"keys": "a"}, "keys", "option keys has no meaning without bucket"),
    (
        BATCH,
        {"history": "true"},
        "history",
        "option history has no meaning without bucket or counters",
    ),
    (
        BATCH,
        {"history": "true", "counters": "false"},
        "history",
        "option history has no meaning without bucket or",
    ),
    # counters
    (
        STREAM,
        {**NONE, "bucket": "b", "counters": "true"},
        "counters",
        "no meaning with bucket: counters are in a str",
    ),
    (
        BATCH,
        {**NONE, "objectBucket": "o", "counters": "true"},
        "counters",
        "counters are in a stream",
    ),
    (
        STREAM,
        {"counters": "true", "includeHeaders": "true"},
        "includeHeaders",
        "with counters: its rows have no head",
    ),
    *(
        (
            BATCH,
            {"counters": "true", name: text},
            name,
            "a batch with counters, which is read as a whole; history=",
        )
        for name, text in (
            ("endingOffsets", '{"ORDERS": 5}'),
            ("startingTimestamp", "0"),
            ("minPartitions", "2"),
        )
    ),
    *(
        (streaming, {**where, name: "5000000000000"}, name, why)
        for name in ("asOfRevision", "asOfTimestamp")
        for streaming, where, why in (
            (
                STREAM,
                {**NONE, "bucket": "b"},
                "in a streaming query: read one as a batch, with spark.read",
            ),
            (BATCH, {}, f"option {name} has no meaning without bucket"),
            (BATCH, {**NONE, "objectBucket": "o"}, f"option {name} has no meaning without bucket"),
            (
                BATCH,
                {**NONE, "bucket": "b", "history": "true"},
                f"options history and {name} exclude each other",
            ),
        )
    ),
    (
        BATCH,
        {**NONE, "bucket": "b", "asOfRevision": "0"},
        "asOfRevision",
        "must be a whole number from 1",
    ),
    (
        BATCH,
        {**NONE, "bucket": "b", "asOfTimestamp": "2026-03-01T12:00:00"},
        "asOfTimestamp",
        "zone",
    ),
    *(
        (BATCH, {**NONE, "bucket": "b", name: text}, name, "which is read as a whole; history=true")
        for text, names in (
            ('{"b": 5}', ("startingOffsets", "endingOffsets")),
            ("0", ("startingTimestamp", "endingTimestamp")),
            ("2", ("minPartitions", "maxMessagesPerPartition")),
        )
        for name in names
    ),
    (STREAM, {**NONE, "objectBucket": "o", "subjects": "a"}, "subjects", "use pathGlobFilter"),
    (
        BATCH,
        {**NONE, "objectBucket": "o", "endingTimestamp": "0"},
        "endingTimestamp",
        "which is read as a whole",
    ),
    (
        BATCH,
        {**NONE, "objectBucket": "o", "pathGlobFilter": "[a"},
        "pathGlobFilter",
        "because a [ is not closed",
    ),
    (
        BATCH,
        {"contentOff": "true"},
        "contentOff",
        "option contentOff has no meaning without objectBucket",
    ),
    (STREAM, {"pathGlobFilter": "*"}, "pathGlobFilter", "no meaning without objectBucket"),
    # a consumer to begin after
    *(
        (STREAM, {"startingConsumer": text}, "startingConsumer", why)
        for text, why in (
            ("a.b", "must be the name of one consumer, without blanks, dots"),
            ("a,b", "must name one consumer, not a list"),
            ("{", "is not valid JSON"),
            ("{}", "names no stream in its JSON"),
            ('{"ORDERS": 5}', 'for stream "ORDERS" must be the name of one consumer'),
            ('{"ORDERS": "a b"}', 'for stream "ORDERS" must be the name of one consumer'),
            ('{"ORDERS": "a", "ORDERS": "b"}', 'names "ORDERS" twice'),
            ('{"OTHER": "a"}', 'names stream "OTHER", which option stream does not'),
        )
    ),
    (
        STREAM,
        {"stream": "A,B", "startingConsumer": '{"A": "a"}'},
        "startingConsumer",
        'gives no consumer for stream "B"',
    ),
    (
        BATCH,
        {"counters": "true", "startingConsumer": "a"},
        "startingConsumer",
        "a batch with counters, which is read as a whole",
    ),
    # a consumer to share
    (BATCH, {"share": "pool"}, "share", "a batch acknowledges nothing"),
    (STREAM, {"share": "a,b"}, "share", "must name one consumer, not a list"),
    (
        STREAM,
        {"stream": "A,B", "share": "pool"},
        "stream",
        "option share needs one stream, whose consumer it names; option stream names A, B",
    ),
    (
        STREAM,
        {"share": "pool", "maxMessagesPerTrigger": "1000001"},
        "maxMessagesPerTrigger",
        "option maxMessagesPerTrigger is at most 1000000 with share, not 1000001",
    ),
    # streams that are found
    (STREAM, {**NONE, "streamMetadata": "team"}, "streamMetadata", "must be key=value"),
    (
        STREAM,
        {**NONE, "streamMetadata": "a=b,=c"},
        "streamMetadata",
        "(element 2) must be key=value",
    ),
    (STREAM, {**NONE, "streamPattern": "[a"}, "streamPattern", "because a [ is not closed"),
    *(
        (
            BATCH,
            {**NONE, **found, name: '{"A": 5}'},
            name,
            f"{name} cannot name streams beside {kind}, which finds",
        )
        for kind, found in (
            ("streamPattern", {"streamPattern": "A*"}),
            ("streamMetadata", {"streamMetadata": "a=b"}),
        )
        for name in ("startingOffsets", "endingOffsets")
    ),
    # other kinds of reading
    (STREAM, {"durable": "a.b"}, "durable", "without blanks, dots"),
    (BATCH, {"durable": "d"}, "durable", "a batch keeps no position"),
    # where
    (
        BATCH,
        {"maxMessagesPerTrigger": "5"},
        "maxMessagesPerTrigger",
        "in a batch read: bound a batch with",
    ),
    (BATCH, {"maxBytesPerTrigger": "5"}, "maxBytesPerTrigger", "endingOffsets or endingTimestamp"),
    (BATCH, {"minMessagesPerTrigger": "5"}, "minMessagesPerTrigger", "a batch reads what is there"),
    (BATCH, {"maxTriggerDelay": "5s"}, "maxTriggerDelay", "a batch reads what is there"),
    # values
    (
        STREAM,
        {"stream": "X,A.B"},
        "stream",
        "option stream (element 2) must be the name of a stream, without",
    ),
    (
        BATCH,
        {"startingTimestamp": "1772366400001", "endingTimestamp": "1772366400000"},
        "endingTimestamp",
        "is before",
    ),
    # paths
    (
        BATCH,
        {**NONE, "paths": '["A", "B"]'},
        "stream",
        "load() takes one path, the name of a stream: write several",
    ),
    (
        STREAM,
        {**NONE, "path": "/data"},
        "stream",
        '/ or \\, not "/data" (it is the path of load())',
    ),
    *(
        (
            streaming,
            {**NONE, "path": "A", name: "a=b"},
            name,
            f"option {name} and the path of load() exclude each",
        )
        for name in (
            "stream",
            "streamPattern",
            "streamMetadata",
            "bucket",
            "objectBucket",
            "deadLettersOf",
        )
        for streaming in ((BATCH,) if name == "deadLettersOf" else (STREAM, BATCH))
    ),
    # pairs
    *(
        (
            {one, other}.isdisjoint({"endingOffsets", "asOfRevision", "deadLettersOf"}),
            both(one, other),
            one,
            f"options {one} and {other} exclude each other",
        )
        for one, other in EXCLUSIVE
    ),
    (STREAM, {"tlsCertFile": "a"}, "tlsCertFile", "needs tlsKeyFile or tlsKeySecret beside it"),
    (STREAM, {"tlsKeySecret": "a"}, "tlsKeySecret", "needs tlsCertFile or tlsCertPem beside it"),
    (STREAM, {"user": "a"}, "user", "needs password beside it"),
    (STREAM, {"password": "a"}, "password", "needs user beside it"),
    (
        STREAM,
        {"user": "a", "password": "b", "token": "c"},
        "user",
        "user and token are two kinds of authentication",
    ),
    (STREAM, {"token": "c", "credentialsFile": "d"}, "token", "two kinds of authentication"),
    (
        STREAM,
        {"credentialsSecret": "c", "nkeySeedFile": "d"},
        "credentialsSecret",
        "two kinds of authentication",
    ),
    (STREAM, {"servers": "nats://u:p@a", "token": "c"}, "token", "two kinds of authentication"),
    (
        STREAM,
        {"servers": "nats://u:p@a", "user": "c", "password": "d"},
        "user",
        "two kinds of authentication",
    ),
    (STREAM, {"maxTriggerDelay": "5s"}, "maxTriggerDelay", "without minMessagesPerTrigger"),
    (STREAM, {"servers": "ws://a", "tlsCaFile": "b"}, "tlsCaFile", "no effect with ws:// URLs"),
    (
        STREAM,
        {"servers": "wss://a,ws://b"},
        "servers",
        "mixes wss:// URLs with ws:// ones, which are not encrypted",
    ),
    (
        STREAM,
        {"servers": "ws://b,wss://a", "tlsCaFile": "b"},
        "servers",
        "mixes wss:// URLs with ws:// ones",
    ),
    *(
        (
            STREAM,
            {"servers": f"{scheme}://a", name: text},
            name,
            "does not work with ws:// and wss:// URLs",
        )
        for scheme in ("ws", "wss")
        for name, text in (("tlsHostname", "b"), ("tlsHandshakeFirst", "true"))
    ),
]

# The same for a sink.
REFUSED_BY_SINK: list[tuple[bool, Mapping[str, object], str, str]] = [
    # names
    (
        STREAM,
        {"maxinflights": "5"},
        "maxinflights",
        "there is no option maxinflights; did you mean maxInFlight",
    ),
    (BATCH, {"streams": "x"}, "streams", "did you mean stream"),
    (BATCH, {"topic": "x"}, "topic", "there is no option topic; did you mean stream and subject"),
    (BATCH, {"subscribe": "x"}, "subscribe", "there is no option subscribe; did you mean stream"),
    # paths
    (
        BATCH,
        {"path": "A,B"},
        "stream",
        'not a list (given: "A,B") (it is the path of save() or start())',
    ),
    (
        STREAM,
        {"path": "A", "bucket": "A"},
        "bucket",
        "option bucket and the path of save() or start() exclude each",
    ),
    # the source's
    (STREAM, {"Subjects": "a"}, "subjects", "has no meaning for a sink; did you mean subject"),
    *(
        (
            streaming,
            {spec.name.lower(): "x"},
            spec.name,
            "belongs to the source and has no meaning for a sink",
        )
        for spec in SourceOptions.specs
        if spec.name not in BOTH_SIDES
        for streaming in (STREAM, BATCH)
    ),
    # streams that are made
    (
        STREAM,
        {"ensureStreamOnConflict": "update"},
        "ensureStreamOnConflict",
        "has no meaning without ensureStream",
    ),
    (
        STREAM,
        {"bucket": "b", "ensureStream": "{}"},
        "ensureStream",
        "no meaning with bucket: a bucket is more than",
    ),
    (
        BATCH,
        {"objectBucket": "o", "ensureStream": "{}"},
        "ensureStream",
        "(spark-jetstream object add)",
    ),
    # buckets
    (STREAM, {"bucket": "b", "subject": "a"}, "subject", "no meaning with bucket: column key says"),
    (
        STREAM,
        {"bucket": "b", "stream": "KV_b"},
        "stream",
        "options stream and bucket exclude each other",
    ),
    (
        STREAM,
        {"bucket": "b", "delivery": "exactly-once"},
        "delivery",
        "cannot be exactly-once with bucket",
    ),
    (
        BATCH,
        {"objectBucket": "o", "subject": "a"},
        "subject",
        "column name says what an object is called",
    ),
    (
        BATCH,
        {"objectBucket": "o", "delivery": "deduplicated"},
        "delivery",
        "an object is replaced as a whole",
    ),
    (BATCH, {"objectBucket": "o", "writeId": "x"}, "writeId", "an object is replaced as a whole"),
    (BATCH, {"objectBucket": "o", "deadLetterSubject": "x"}, "deadLetterSubject", "fails the task"),
    (
        BATCH,
        {"bucket": "b", "serverHeaders": "drop"},
        "serverHeaders",
        "its rows have no column headers",
    ),
    (
        STREAM,
        {"objectBucket": "o", "serverHeaders": "drop"},
        "serverHeaders",
        "no headers of a message",
    ),
    # where
    (
        STREAM,
        {"writeId": "x"},
        "writeId",
        "in a streaming query: the query's own id and its batch numbers are used",
    ),
    # values
    (
        STREAM,
        {"subject": "a b"},
        "subject",
        'without blanks and wildcards, not "a b": there are blanks',
    ),
    (STREAM, {"deadLetterSubject": "a.>"}, "deadLetterSubject", "there is a wildcard"),
    # pairs
    (
        STREAM,
        {"subject": "a.b", "deadLetterSubject": " a.b"},
        "deadLetterSubject",
        'from subject, and both are "a.b"',
    ),
    (
        BATCH,
        {"delivery": "at-least-once", "writeId": "x"},
        "writeId",
        "no meaning with delivery at-least-once",
    ),
]


@pytest.mark.parametrize(
    ("make", "streaming", "options", "option", "words"),
    [*((source, *row) for row in REFUSED_BY_SOURCE), *((sink, *row) for row in REFUSED_BY_SINK)],
    ids=lambda value: getattr(value, "__name__", str(value)[:50]),
)
def test_a_wrong_option_is_a_one_sentence_error_that_names_it(
    make: Callable[..., object],
    streaming: bool,
    options: Mapping[str, object],
    option: str,
    words: str,
) -> None:
    with pytest.raises(OptionError) as caught:
        make(streaming, **options)
    message = str(caught.value)
    assert caught.value.option == option
    assert option in message
    assert words in message
    assert "\n" not in message
    # One sentence: no full stop inside of it or at its end, other than in what is quoted.
    assert not re.search(r"\.(\s|$)", re.sub(r'"[^"]*"', "", message).replace("...", ""))
    assert pickle.loads(pickle.dumps(caught.value)).option == option


#: A wrong value of each kind, and what the error repeats of it.
WRONG: dict[type[Kind], tuple[str, str]] = {
    Servers: ("nats://a,http://me:pw@b", '"http://b"'),
    Flag: ("yes", '"yes"'),
    Choice: ("maybe", '"maybe"'),
    Whole: ("many", '"many"'),
    Size: ("10 MBs", '"10 MBs"'),
    Seconds: ("soon", '"soon"'),
    Time: ("yesterday", '"yesterday"'),
    Name: ("a b", '"a b"'),
    Identifier: ("a b", '"a b"'),
    Prefix: ("a.*", '"a.*"'),
    PublishSubject: ("a..b", '"a..b"'),
    NamePattern: ("[a", '"[a"'),
    Positions: ("first", '"first"'),
    ConsumerNames: ("a b", '"a b"'),
}
WRONG_ELEMENTS: dict[type[Kind], tuple[str, str]] = {
    Name: (
        "GOOD,a b",
        '(element 2) must be the name of a stream, without blanks, dots, *, >, / or \\, not "a b"',
    ),
    Subject: ("good,a..b", '(element 2) must be a subject, possibly with * and >, not "a..b"'),
    KeyFilter: ("good,a b", '(element 2) must be a key, possibly with * and >, not "a b"'),
    Pair: ("a=b,c", '(element 2) must be key=value, not "c"'),
}


@pytest.mark.parametrize(
    ("model", "spec"),
    [
        (model, spec)
        for model in (ConnectionOptions, SourceOptions, SinkOptions)
        for spec in model.specs
    ],
    ids=lambda value: (
        getattr(value, "name", "") if isinstance(value, OptionSpec) else value.__name__
    ),
)
def test_an_error_repeats_the_wrong_value_of_each_option(
    model: type[Options], spec: OptionSpec
) -> None:
    if isinstance(spec.kind, (Text, Secret)):
        given, said = " ", "must not be empty"  # nothing else is wrong
    elif isinstance(spec.kind, CommaList):
        given, said = WRONG_ELEMENTS[type(spec.kind.element)]
    else:
        given, said = WRONG[type(spec.kind)]
    if spec.name == "context":
        said = 'a context cannot have the name ""'
    make: Any = model.from_spark  # type: ignore[attr-defined]
    kind_of_query = {} if model is ConnectionOptions else {"streaming": spec.only != "batch"}
    with pytest.raises(OptionError) as caught:
        make({spec.name.upper(): given}, **kind_of_query)
    assert str(caught.value).startswith(f"option {spec.name}")
    assert said in str(caught.value)
    assert caught.value.option == spec.name


@given(st.text(st.sampled_from("ab$JS.*>\t \x7f\xa0ö"), max_size=12))
@example("$SYS.a")
@example("$JS")
@example("ö" * 512)
@example("ö" * 512 + "a")
def test_an_option_takes_the_subjects_that_a_column_may_hold(subject: str) -> None:
    try:
        PublishSubject().parse("subject", f"x{subject}")
    except OptionError:
        taken = False
    else:
        taken = True
    # Blanks are stripped off an option, but not off a value of a column.
    assert taken is (subject_fault(f"x{subject}".strip().encode()) is None)


def test_a_model_made_directly_is_checked_as_well() -> None:
    assert SourceOptions(streaming=True, streams=("A",), fetch_timeout=2.5).fetch_timeout == 2.5
    assert SinkOptions(streaming=True, subject="a", ack_timeout=2.5).ack_timeout == 2.5
    with pytest.raises(ValidationError) as caught:
        ConnectionOptions(password=SecretStr(SECRET), domain="a.b")
    assert SECRET not in str(caught.value)
    with pytest.raises(ValidationError, match="needs password beside it"):
        ConnectionOptions(user="me")
    with pytest.raises(ValidationError, match="there is a wildcard"):
        SinkOptions(streaming=True, subject="a.>")
    with pytest.raises(ValidationError, match="must differ from subject"):
        SinkOptions(streaming=True, subject="a", dead_letter_subject="a")
    for model in (ConnectionOptions, SinkOptions):
        with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
            model.model_validate({"streaming": True, "subjects": 1})


def check_identity(make: Callable[..., Any], **change: object) -> None:
    """Models of equal options are equal, hash alike, pickle with their secrets, and cannot be
    changed.
    """
    model = make()
    for same in (make(), pickle.loads(pickle.dumps(model))):
        assert (same, hash(same), hash(same.connection)) == (
            model,
            hash(model),
            hash(model.connection),
        )
        assert same.connection.token.get_secret_value() == model.connection.token.get_secret_value()
    assert make(**change) != model
    with pytest.raises(ValidationError, match="frozen"):
        model.streaming = True


def test_models_are_frozen_hashable_and_pickle() -> None:
    options = {
        "token": "x",
        "startingOffsets": '{"ORDERS": 1}',
        "subjects": "a",
        "tlsCaFile": "/ca",
    }
    check_identity(lambda **more: source(**{**options, **more}), token="y")
    assert {source(**options).connection: "pooled"}[source(**options).connection] == "pooled"
    written = {
        "token": "x",
        "subject": "a",
        "delivery": "exactly-once",
        "writeId": "w",
        "stream": "ORDERS",
    }
    check_identity(
        lambda **more: SinkOptions.from_spark({**written, **more}, streaming=False), token="y"
    )
