"""Bad input: one clear sentence with the name of the option or stream, before any task starts, and no secret in it."""

from __future__ import annotations

import contextlib
import io
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_jetstream.options.specs import CONNECTION_OPTIONS
from spark_jetstream.testing import NatsServer
from tests.conftest import SparkLog
from tests.support.publish import Publisher
from tests.support.queries import Run, available_now, batch, refusal, start, stored, streaming
from tests.support.streams import Stream

MakeStream = Callable[..., Stream]

PASSWORD = "right-pass-7f3a"
WRONG = "wrong-pass-91be"
ACCOUNTS = f"""
accounts {{
  A {{ jetstream: enabled, users: [
    {{ user: ann, password: "{PASSWORD}" }}
    {{ user: planner, password: "{PASSWORD}", permissions: {{
        publish: ["$JS.API.STREAM.INFO.>"], subscribe: ["_INBOX.>"] }} }}
    {{ user: blind, password: "{PASSWORD}", permissions: {{ publish: ["none"], subscribe: ["_INBOX.>"] }} }}
    {{ user: deaf, password: "{PASSWORD}", permissions: {{ publish: [">"], subscribe: ["none"] }} }}
  ] }}
  B {{ jetstream: enabled, users: [{{ user: bob, password: "{PASSWORD}" }}] }}
  PLAIN {{ users: [{{ user: pat, password: "{PASSWORD}" }}] }}
}}
"""


class Server(NamedTuple):
    """A server with accounts, and the stream ORDERS (sequences 11 to 20 are kept) and others in account A."""

    url: str
    login: dict[str, str]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with NatsServer(config=ACCOUNTS) as running, Publisher(running.url, user="ann", **{"pass": PASSWORD}) as ann:
        orders = Stream(running.url, "ORDERS", ann)
        orders.fill(20)
        orders.purge(seq=11)
        Stream(running.url, "EMPTY", ann)
        Stream(running.url, "QUEUE", ann, retention="workqueue").fill(3)
        with Publisher(running.url, user="bob", **{"pass": PASSWORD}) as bob:
            Stream(running.url, "BOBS", bob).fill(3)
        yield Server(running.url, {"user": "ann", "password": PASSWORD})


def fail_as_batch(spark: SparkSession, url: str, stream: str, schema: str | None, **options: object) -> BaseException:
    """What reading a batch raises. Nothing of it has reached a task."""
    group = f"batch-{uuid.uuid4()}"
    spark.sparkContext.setJobGroup(group, "")
    with pytest.raises(AnalysisException) as caught:
        batch(spark, url, stream, schema, **options).collect()
    assert list(spark.sparkContext.statusTracker().getJobIdsForGroup(group)) == []
    return caught.value


def fail_as_stream(
    spark: SparkSession, folder: Path, url: str, stream: str, schema: str | None, **options: object
) -> BaseException:
    """What reading a stream raises. Nothing of it has reached a task."""
    groups: list[str] = []
    with pytest.raises((AnalysisException, StreamingQueryException)) as caught:  # noqa: PT012  # in load, or later
        query = start(streaming(spark, url, stream, schema, **options), folder, Run())
        groups.append(str(query.runId))
        query.awaitTermination(60)
    for group in groups:
        assert list(spark.sparkContext.statusTracker().getJobIdsForGroup(group)) == []
    return caught.value


def case(name: str, mode: str, kind: str, sentence: str, **options: object) -> Any:
    """`mode` holds b for batch, s for stream; `sentence` is a pattern for all of it."""
    return pytest.param(mode, kind, sentence, options, id=name)


WITHOUT_SERVER = [
    case(
        "unknown option",
        "bs",
        "OptionError",
        "there is no option maxmessagepertriger; did you mean maxMessagesPerTrigger",
        maxMessagePerTriger=5,
    ),
    case("unknown option, far off", "b", "OptionError", r"there is no option steam; did you mean stream", steam="S"),
    case("no stream", "b", "OptionError", "option stream must name at least one stream", stream=""),
    case("a stream twice", "b", "OptionError", 'option stream names "S" twice', stream="S,T,S"),
    case(
        "a stream name with a dot",
        "b",
        "OptionError",
        "option stream is not valid: a stream name has no .*",
        stream="A.B",
    ),
    case(
        "not a number",
        "b",
        "OptionError",
        "option maxMessagesPerPartition must be .*",
        maxMessagesPerPartition="many",
    ),
    case("a fraction", "b", "OptionError", 'option minPartitions must be .*, not "1.5"', minPartitions=1.5),
    case(
        "neither true nor false",
        "b",
        "OptionError",
        "option failOnDataLoss must be .*",
        failOnDataLoss="maybe",
    ),
    case("not a duration", "b", "OptionError", "option retryTimeout must be .*", retryTimeout="soon"),
    case("not a size", "b", "OptionError", "option fetchMaxBytes must be .*", fetchMaxBytes="big"),
    case("not a time", "b", "OptionError", "option startingTimestamp must be .*", startingTimestamp="noon"),
    case(
        "a time without a zone",
        "b",
        "OptionError",
        'option startingTimestamp must be .*, not "2026-01-01T00:00:00"',
        startingTimestamp="2026-01-01T00:00:00",
    ),
    case("zero", "s", "OptionError", 'option maxMessagesPerTrigger must be .*, not "0"', maxMessagesPerTrigger=0),
    case("negative", "b", "OptionError", 'option fetchBatch must be .*, not "-1"', fetchBatch=-1),
    case("too large", "b", "OptionError", 'option fetchBatch must be .*, not "100001"', fetchBatch=100_001),
    case("too short", "b", "OptionError", 'option requestTimeout must be .*, not "1ms"', requestTimeout="1ms"),
    case("too small", "b", "OptionError", 'option fetchMaxBytes must be .*, not "1k"', fetchMaxBytes="1k"),
    case(
        "two prefixes",
        "b",
        "OptionError",
        "options domain and apiPrefix exclude each other",
        domain="d",
        apiPrefix="P.API",
    ),
    case(
        "two ends",
        "b",
        "OptionError",
        "options endingOffsets and endingTimestamp exclude each other",
        endingOffsets='{"S": 5}',
        endingTimestamp=1_770_000_000_000,
    ),
    case(
        "two authorities",
        "b",
        "OptionError",
        "options tlsCaFile and tlsCaPem exclude each other",
        tlsCaFile="/ca.pem",
        tlsCaPem="x",
    ),
    case(
        "two kinds of authentication",
        "b",
        "OptionError",
        "options user and token are two kinds of authentication",
        user="ann",
        password=PASSWORD,
        token=PASSWORD,
    ),
    case("half a login", "b", "OptionError", "option user needs password beside it", user="ann"),
    case("not JSON", "bs", "OptionError", "option startingOffsets is not valid JSON: .*", startingOffsets='{"S": 5'),
    case("another word", "b", "OptionError", "option startingOffsets must be .*", startingOffsets="soon"),
    case("a list", "b", "OptionError", "option startingOffsets must be an object .*", startingOffsets="[1]"),
    case(
        "a position of another stream",
        "b",
        "OptionError",
        'option startingOffsets names stream "T", which option stream does not',
        startingOffsets='{"S": 1, "T": 1}',
    ),
    case(
        "a stream without position",
        "s",
        "OptionError",
        'option startingOffsets gives no sequence for stream "T"',
        stream="S,T",
        startingOffsets='{"S": 1}',
    ),
    case("sequence 0", "b", "OptionError", "option startingOffsets must be .*, not .*0.*", startingOffsets='{"S": 0}'),
    case("a sequence as text", "b", "OptionError", "option startingOffsets must be .*", startingOffsets='{"S": "1"}'),
    case(
        "a batch of nothing",
        "b",
        "OptionError",
        "option startingOffsets cannot be latest when reading a batch: nothing would be read",
        startingOffsets="latest",
    ),
    case(
        "an end before the start",
        "b",
        "OptionError",
        'option endingOffsets stops "S" before 4, but startingOffsets begins at 5',
        startingOffsets='{"S": 5}',
        endingOffsets='{"S": 4}',
    ),
    case(
        "an end in time before the start",
        "b",
        "OptionError",
        "option endingTimestamp is before startingTimestamp",
        startingTimestamp=1_770_000_000_001,
        endingTimestamp=1_770_000_000_000,
    ),
    case(
        "seconds where milliseconds are meant",
        "b",
        "OptionError",
        r"option startingTimestamp must be in epoch milliseconds when it is a number \(is this seconds\?\), not .*",
        startingTimestamp=1_770_000_000,
    ),
    case(
        "an end of a stream",
        "s",
        "OptionError",
        "option endingOffsets has no meaning when reading a stream: .*",
        endingOffsets='{"S": 5}',
    ),
    case(
        "a trigger of a batch",
        "b",
        "OptionError",
        "option maxMessagesPerTrigger has no meaning when reading a batch: .*",
        maxMessagesPerTrigger=5,
    ),
    case(
        "a delay without a minimum",
        "s",
        "OptionError",
        "option maxTriggerDelay has no meaning without minMessagesPerTrigger",
        maxTriggerDelay="5s",
    ),
    case(
        "a minimum above the maximum",
        "s",
        "OptionError",
        r"option minMessagesPerTrigger \(9\) is larger than maxMessagesPerTrigger \(5\)",
        minMessagesPerTrigger=9,
        maxMessagesPerTrigger=5,
    ),
    case(
        "overlapping filters",
        "b",
        "OptionError",
        'option subjects holds "a.>" and "a.b", which overlap: .*',
        subjects="a.>,a.b",
    ),
    case("a malformed filter", "b", "OptionError", "option subjects holds a subject in which .*", subjects="a..b"),
    case(
        "an option of the sink", "b", "OptionError", "option delivery belongs to the sink .*", delivery="exactly-once"
    ),
    case("a bucket too", "b", "OptionError", "options stream and bucket exclude each other", bucket="b"),
    case("not a server", "b", "OptionError", "option servers holds URL number 1, in which .*", servers="http://a:1"),
    case(
        "a password cut by a comma",
        "b",
        "OptionError",
        r"option servers holds URL number 1, in which .* \(inside a URL, a password is percent-encoded\)",
        servers=f"nats://ann:{PASSWORD},{WRONG}@127.0.0.1:4222",
    ),
    case(
        "a missing file",
        "b",
        "OptionError",
        "option credentialsFile names a file that is not here .*",
        credentialsFile="/no/such.creds",
    ),
    case(
        "a missing context",
        "b",
        "OptionError",
        "option context: there is no context of this name in .*",
        context="nobody-has-this",
    ),
    case(
        "no seed",
        "b",
        "OptionError",
        "option nkeySeedSecret holds something else than an NKey seed",
        nkeySeedSecret=WRONG,
    ),
    case(
        "nobody listens",
        "bs",
        "ConnectionFailed",
        r"no NATS server could be reached at nats://127.0.0.1:1 within 0.5 s \(option servers\): .*",
        servers="nats://127.0.0.1:1",
        connectTimeout="500ms",
    ),
    case(
        "no such host",
        "b",
        "ConnectionFailed",
        r"no NATS server could be reached at nats://host.invalid within 0.5 s \(option servers\).*",
        servers="nats://host.invalid",
        connectTimeout="500ms",
    ),
]


@pytest.mark.parametrize(("mode", "kind", "sentence", "options"), WITHOUT_SERVER)
def test_wrong_options(
    spark: SparkSession,
    tmp_path: Path,
    spark_log: SparkLog,
    mode: str,
    kind: str,
    sentence: str,
    options: dict[str, Any],
) -> None:
    given = {"servers": "nats://127.0.0.1:1", "stream": "S", **options}
    url, name = given.pop("servers"), given.pop("stream")
    for each in mode:
        failure = (
            fail_as_batch(spark, url, name, None, **given)
            if each == "b"
            else fail_as_stream(spark, tmp_path, url, name, None, **given)
        )
        found, said = refusal(failure)
        assert found == kind
        assert re.fullmatch(sentence, said), said
        for secret in (PASSWORD, WRONG):
            assert secret not in str(failure)
            assert secret not in spark_log.text


def test_load_finds_what_is_wrong_either_way(spark: SparkSession) -> None:
    for reader in (spark.read, spark.readStream):
        with pytest.raises(AnalysisException) as caught:
            reader.format("jetstream").option("steam", "ORDERS").load()
        assert refusal(caught.value) == ("OptionError", "there is no option steam; did you mean stream")


def test_load_without_a_stream(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException) as caught:
        spark.read.format("jetstream").load()
    kind, sentence = refusal(caught.value)
    assert kind == "OptionError"
    assert sentence == "option stream is required: the name of the stream to read (or bucket, or objectBucket)"


WITH_SERVER = [
    case(
        "missing stream",
        "bs",
        "StreamNotFound",
        r"cannot read stream NONE \(option stream\): stream not found .*",
        stream="NONE",
    ),
    case(
        "one of two streams missing",
        "b",
        "StreamNotFound",
        r"cannot read stream NONE \(option stream\): stream not found .*",
        stream="ORDERS,NONE",
    ),
    case(
        "a stream of another account",
        "bs",
        "StreamNotFound",
        r"cannot read stream BOBS \(option stream\): stream not found .*",
        stream="BOBS",
    ),
    case(
        "start beyond the end",
        "bs",
        "OptionError",
        "startingOffsets begins stream ORDERS at sequence 22, but its last message has sequence 20",
        startingOffsets='{"ORDERS": 22}',
    ),
    case(
        "start beyond the end of an empty stream",
        "b",
        "OptionError",
        "startingOffsets begins stream EMPTY at sequence 2, but .*",
        stream="EMPTY",
        startingOffsets='{"EMPTY": 2}',
    ),
    case(
        "start before the first kept message",
        "bs",
        "OptionError",
        "startingOffsets begins stream ORDERS at sequence 10, but the first message kept has sequence 11; set "
        "failOnDataLoss to false to begin there",
        startingOffsets='{"ORDERS": 10}',
    ),
    case(
        "start in the future",
        "s",
        "OptionError",
        r"startingTimestamp lies in the future: the server's clock shows 2\d\d\d-.*Z",
        startingTimestamp="2199-01-01T00:00:00Z",
    ),
    case(
        "end beyond the end",
        "b",
        "OptionError",
        "endingOffsets ends stream ORDERS before sequence 22, but its last message has sequence 20",
        endingOffsets='{"ORDERS": 22}',
    ),
    case(
        "end before what is kept",
        "b",
        "OptionError",
        "endingOffsets ends stream ORDERS before sequence 5, but reading starts at sequence 11",
        endingOffsets='{"ORDERS": 5}',
    ),
    case(
        "wrong password",
        "bs",
        "AuthenticationFailed",
        r"the NATS server at nats://127.0.0.1:\d+ refused the credentials \(options user and password\)",
        password=WRONG,
    ),
    case(
        "no login",
        "b",
        "AuthenticationFailed",
        r"the NATS server at nats://127.0.0.1:\d+ refused the credentials \(no option for authentication is set\)",
        user=None,
        password=None,
    ),
    case(
        "wrong token",
        "b",
        "AuthenticationFailed",
        r"the NATS server at nats://127.0.0.1:\d+ refused the credentials \(option token\)",
        user=None,
        password=None,
        token=WRONG,
    ),
    case(
        "may not look at the stream",
        "b",
        "PermissionDenied",
        r"cannot read stream ORDERS \(option stream\): the account may not publish to \$JS\.API\.STREAM\.INFO\.ORDERS",
        user="blind",
    ),
    case(
        "may not create consumers",
        "b",
        "PermissionDenied",
        r"cannot create a consumer on stream ORDERS: the account may not publish to .*",
        user="planner",
        subjects="orders.a",
    ),
    case(
        "may not have an inbox",
        "b",
        "PermissionDenied",
        r"cannot read stream ORDERS \(option stream\): the account may not subscribe to _INBOX\.> "
        r"\(option inboxPrefix\)",
        user="deaf",
    ),
    case(
        "an account without JetStream",
        "b",
        "JetStreamNotEnabled|NoResponders",
        r"cannot read stream ORDERS \(option stream\): .*",
        user="pat",
    ),
    case(
        "a domain that is not there",
        "b",
        "NoResponders",
        r"cannot read stream ORDERS \(option stream\): nobody answers at \$JS\.mars\.API\.STREAM\.INFO\.ORDERS: .* are "
        r"the options domain and apiPrefix right\?",
        domain="mars",
        connectTimeout="500ms",
    ),
    case(
        "a work queue",
        "s",
        "OptionError",
        "stream QUEUE has work-queue retention: reading it needs the option durable, .*",
        stream="QUEUE",
    ),
    case(
        "a work queue in a batch",
        "b",
        "OptionError",
        "stream QUEUE has work-queue retention: a batch can look at its messages with readWith=direct, .*",
        stream="QUEUE",
    ),
    case(
        "a work queue that does not allow Direct Get",
        "s",
        "OptionError",
        "stream QUEUE has work-queue retention, which is read with Direct Get, .* set allow_direct on the stream .*",
        stream="QUEUE",
        durable="d",
    ),
]


@pytest.mark.parametrize(("mode", "kind", "sentence", "options"), WITH_SERVER)
def test_what_the_server_does_not_have_or_allow(
    spark: SparkSession,
    server: Server,
    tmp_path: Path,
    spark_log: SparkLog,
    mode: str,
    kind: str,
    sentence: str,
    options: dict[str, Any],
) -> None:
    given = {key: value for key, value in {**server.login, **options}.items() if value is not None}
    name = given.pop("stream", "ORDERS")
    for each in mode:
        failure = (
            fail_as_batch(spark, server.url, name, None, **given)
            if each == "b"
            else fail_as_stream(spark, tmp_path, server.url, name, None, **given)
        )
        found, said = refusal(failure)
        assert re.fullmatch(kind, found), (found, said)
        assert re.fullmatch(sentence, said), said
        for secret in (PASSWORD, WRONG):
            assert secret not in str(failure)
            assert secret not in spark_log.text


def test_a_start_before_the_first_kept_message_can_be_accepted(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    options = {**server.login, "failOnDataLoss": "false", "startingOffsets": '{"ORDERS": 3}'}
    assert [row.sequence for row in stored(batch(spark, server.url, "ORDERS", **options))] == list(range(11, 21))
    assert available_now(streaming(spark, server.url, "ORDERS", **options), tmp_path).sequences == list(range(11, 21))


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("sequence bigint, dta binary", 'there is no column "dta"; did you mean "data" .*'),
        ("key string", 'there is no column "key"; did you mean .*'),
        ("sequence int", 'the schema gives column "sequence" the type int, but it is bigint'),
        ("data string", 'the schema gives column "data" the type string, but it is binary'),
        (
            "headers map<string,string>",
            'the schema gives column "headers" the type map<string,string>, but it is map<string,array<string>>',
        ),
        ("timestamp timestamp_ntz", 'the schema gives column "timestamp" the type timestamp_ntz, but it is timestamp'),
    ],
)
def test_a_schema_that_is_not_a_subset(spark: SparkSession, server: Server, schema: str, sentence: str) -> None:
    kind, said = refusal(fail_as_batch(spark, server.url, "ORDERS", schema, **server.login))
    assert kind == "SchemaError"
    assert re.fullmatch(sentence, said), said


def test_a_schema_of_a_stream_that_is_not_a_subset(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    failure = fail_as_stream(spark, tmp_path, server.url, "ORDERS", "sequence bigint, key string", **server.login)
    assert refusal(failure)[0] == "SchemaError"
    assert 'there is no column "key"' in refusal(failure)[1]


def test_secrets_show_nowhere(spark: SparkSession, server: Server, tmp_path: Path, spark_log: SparkLog) -> None:
    frame = streaming(spark, server.url, "ORDERS", maxMessagesPerTrigger=6, **server.login)
    plans, progress = run_and_look(frame, tmp_path)
    table = batch(spark, server.url, "ORDERS", **server.login)
    assert table.count() == 10
    plans += [plan_of(frame), plan_of(table)]
    for text in (*plans, *progress, repr(table), repr(frame), spark_log.text):
        assert PASSWORD not in text


def test_a_password_in_a_url_shows_where_spark_shows_options(
    spark: SparkSession, server: Server, tmp_path: Path, spark_log: SparkLog
) -> None:
    """Spark prints the options of a streaming frame that is not started yet, and hides those that a pattern names."""
    url = server.url.replace("//", f"//ann:{PASSWORD}@")
    frame = streaming(spark, url, "ORDERS")
    plans, progress = run_and_look(frame, tmp_path)
    table = batch(spark, url, "ORDERS")
    assert table.count() == 10
    for text in (*plans, *progress, plan_of(table), repr(table), repr(frame), spark_log.text):
        assert PASSWORD not in text
    assert PASSWORD in plan_of(frame)
    pattern = spark.conf.get("spark.sql.redaction.options.regex")
    spark.conf.set("spark.sql.redaction.options.regex", f"{pattern}|(?i)servers")
    try:
        assert PASSWORD not in plan_of(streaming(spark, url, "ORDERS"))
    finally:
        spark.conf.set("spark.sql.redaction.options.regex", str(pattern))


SECRETS = [spec.name for spec in CONNECTION_OPTIONS if spec.secret]


@pytest.mark.parametrize("name", SECRETS)
def test_spark_hides_every_secret_option(spark: SparkSession, name: str) -> None:
    """Its own pattern (`spark.redaction.regex`) matches their names."""
    beside = {"password": {"user": "ann"}, "tlsKeySecret": {"tlsCertFile": "/cert.pem"}}.get(name, {})
    plan = plan_of(streaming(spark, "nats://127.0.0.1:1", "ORDERS", **{name: PASSWORD}, **beside))
    assert "ORDERS" in plan
    assert PASSWORD not in plan


def plan_of(frame: DataFrame) -> str:
    """What `explain(extended=True)` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        frame.explain(extended=True)
    return printed.getvalue()


def run_and_look(frame: DataFrame, folder: Path) -> tuple[list[str], list[str]]:
    """Run a query over ORDERS; its plans and its progress. Checks that no file of its checkpoint has the secret."""
    run = Run()
    query = start(frame, folder, run)
    run.wait_for(10, query)
    query.processAllAvailable()
    plans = [str(query._jsq.explainInternal(True)), str(query._jsq)]
    progress = [each.json for each in query.recentProgress]
    query.stop()
    assert any("ORDERS" in each for each in progress)
    written = [each for each in folder.rglob("*") if each.is_file()]
    assert any(b"ORDERS" in each.read_bytes() for each in written)
    for each in written:
        assert PASSWORD.encode() not in each.read_bytes()
    return plans, progress
