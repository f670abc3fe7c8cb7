"""What cannot be written: one clear sentence, before any task starts where that is possible, and dead letters.

A case gives the columns of three rows as SQL over `id` (1, 2, 3), of which the second is the bad one. In columns,
options and sentences `<N>` stands for the test's stream and `<s>` for what its subjects begin with.
"""

from __future__ import annotations

import base64
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_jetstream.testing import NatsServer
from tests.conftest import SparkLog
from tests.support.publish import Message, Publisher
from tests.support.queries import refusal, wait_until
from tests.support.streams import Stream

PASSWORD = "right-pass-7f3a"
WRONG = "wrong-pass-91be"
LEDGER = "KV_spark_jetstream_ledger"
ACCOUNTS = f"""
accounts {{
  A {{ jetstream: enabled, users: [
    {{ user: ann, password: "{PASSWORD}" }}
    {{ user: writer, password: "{PASSWORD}", permissions: {{
        publish: {{ allow: [">"], deny: ["*.secret"] }}, subscribe: ["_INBOX.>"] }} }}
    {{ user: blind, password: "{PASSWORD}", permissions: {{ publish: ["*.*"], subscribe: ["_INBOX.>"] }} }}
    {{ user: deaf, password: "{PASSWORD}", permissions: {{ publish: [">"], subscribe: ["none"] }} }}
  ] }}
  B {{ jetstream: enabled, users: [
    {{ user: bob, password: "{PASSWORD}" }}
    {{ user: noledger, password: "{PASSWORD}", permissions: {{
        publish: {{ allow: [">"], deny: ["$JS.API.STREAM.CREATE.{LEDGER}"] }}, subscribe: ["_INBOX.>"] }} }}
  ] }}
}}
"""

#: Short times: what goes wrong here does so at once, or never gets better.
QUICK = {
    "connectTimeout": "2s",
    "requestTimeout": "2s",
    "retryTimeout": "2s",
    "ackTimeout": "2s",
    "maxRetries": "1",
}
SUBJECT = "concat('<s>.', id) as subject"
DATA = "concat('row ', id) as data"
PLAIN = (SUBJECT, DATA)
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Server(NamedTuple):
    """A server with the accounts A and B, and who looks after their streams."""

    url: str
    ann: Publisher
    bob: Publisher


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    secret = {"pass": PASSWORD}
    with (
        NatsServer(config=ACCOUNTS) as running,
        Publisher(running.url, user="ann", **secret) as ann,
        Publisher(running.url, user="bob", **secret) as bob,
    ):
        Stream(running.url, "ROWS", ann).fill(3)
        yield Server(running.url, ann, bob)


_used = iter(range(1, 1000))


@pytest.fixture
def make(server: Server) -> Iterator[Callable[..., Stream]]:
    """A function that makes a stream of the test's own, in account A unless told; gone after the test."""
    made: list[Stream] = []

    def make(account: Publisher = server.ann, **config: Any) -> Stream:
        made.append(Stream(server.url, f"F{next(_used)}", account, **config))
        return made[-1]

    yield make
    for each in made:
        if each.name in (each.publisher.api("STREAM.NAMES").get("streams") or []):
            each.delete()


def filled_in(text: str, s: Stream) -> str:
    """A text of a case with the names of the test's stream."""
    return text.replace("<N>", s.name).replace("<s>", s.subject)


def rows(spark: SparkSession, s: Stream, select: tuple[str, ...]) -> DataFrame:
    """Three rows in one partition."""
    return spark.range(1, 4, 1, 1).selectExpr(*(filled_in(each, s) for each in select))


def settings(s: Stream, options: Mapping[str, str]) -> dict[str, str]:
    """Options of the sink; ann's login unless they say otherwise."""
    login = {} if "token" in options else {"user": "ann", "password": PASSWORD}
    given = {"servers": s.url, **QUICK, **login, **options}
    return {name: filled_in(value, s) for name, value in given.items()}


def write(frame: DataFrame, s: Stream, options: Mapping[str, str], mode: str = "append") -> None:
    """A batch write."""
    frame.write.format("jetstream").options(**settings(s, options)).mode(mode).save()


def fail_as_batch(
    spark: SparkSession, s: Stream, select: tuple[str, ...], options: Mapping[str, str], *, early: bool
) -> BaseException:
    """What a batch write raises; `early`: nothing of it has reached a task."""
    group = f"write-{uuid.uuid4()}"
    spark.sparkContext.setJobGroup(group, "")
    with pytest.raises(AnalysisException if early else PythonException) as caught:
        write(rows(spark, s, select), s, options)
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup(group)
    assert len(jobs) == (0 if early else 1)
    return caught.value


def fail_as_stream(
    spark: SparkSession, folder: Path, s: Stream, select: tuple[str, ...], options: Mapping[str, str], *, early: bool
) -> BaseException:
    """What a streaming query that gets the same three rows raises; `early` as for a batch."""
    login = {"user": "ann", "password": PASSWORD}
    source = spark.readStream.format("jetstream").options(servers=s.url, stream="ROWS", **login).load()
    frame = source.selectExpr("sequence as id").selectExpr(*(filled_in(each, s) for each in select))
    writer = frame.writeStream.format("jetstream").options(**settings(s, options))
    query = writer.option("checkpointLocation", str(folder / uuid.uuid4().hex)).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(60)
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup(str(query.runId))
    assert len(jobs) == (0 if early else 1)
    return caught.value


def fail(
    spark: SparkSession,
    folder: Path,
    mode: str,
    s: Stream,
    select: tuple[str, ...],
    options: Mapping[str, str],
    *,
    early: bool,
) -> tuple[str, str]:
    """Class and sentence of the failure, as a batch (mode b) or a streaming query (mode s). No secret shows."""
    failure = (
        fail_as_batch(spark, s, select, options, early=early)
        if mode == "b"
        else fail_as_stream(spark, folder, s, select, options, early=early)
    )
    assert PASSWORD not in str(failure)
    assert WRONG not in str(failure)
    return refusal(failure)


class Case(NamedTuple):
    """`sentence` is a pattern for all of it; `modes` holds b for batch, s for stream; `config` is the stream's."""

    kind: str
    sentence: str
    select: tuple[str, ...] = PLAIN
    options: Mapping[str, str] = NOTHING
    config: Mapping[str, Any] = NOTHING
    modes: str = "b"


# What is known before any task starts.

EARLY = {
    "unknown column": Case(
        "SchemaError",
        r'the sink knows no column "dta"; did you mean "data" \(columns: data, subject, .*\): drop it, or .*',
        (*PLAIN, "1 as dta"),
        modes="bs",
    ),
    "a column of another type": Case(
        "SchemaError", 'column "data" is of type bigint, but must be binary or string', (SUBJECT, "id as data")
    ),
    "headers of another type": Case(
        "SchemaError",
        r'column "headers" is of type map<string,int>, but must be map<string,array<string>> or map<string,string>',
        (*PLAIN, "map('A', 1) as headers"),
    ),
    "an expected sequence that is an int": Case(
        "SchemaError",
        'column "expected_last_subject_sequence" is of type int, but must be bigint',
        (*PLAIN, "0 as expected_last_subject_sequence"),
    ),
    "no data": Case("SchemaError", r'the DataFrame has no column "data", which holds the payload .*', (SUBJECT,)),
    "no subject": Case(
        "SchemaError", 'the DataFrame has no column "subject": add it, or set option subject', (DATA,), modes="bs"
    ),
    "unknown option": Case(
        "OptionError", "there is no option maxinflght; did you mean maxInFlight", options={"maxInFlght": "5"}
    ),
    "an option of the source": Case(
        "OptionError",
        "option startingOffsets belongs to the source and has no meaning for a sink",
        options={"startingOffsets": "earliest"},
        modes="bs",
    ),
    "filters of the source": Case(
        "OptionError", "option subjects belongs to the source .*; did you mean subject", options={"subjects": "a.>"}
    ),
    "a write id of a stream": Case(
        "OptionError",
        "option writeId has no meaning when writing a stream: .*",
        options={"writeId": "w"},
        modes="s",
    ),
    "a level that does not exist": Case(
        "OptionError",
        "option delivery must be .* or exactly-once; did you mean exactly-once",
        options={"delivery": "exactly_once"},
    ),
    "a subject with a wildcard": Case("OptionError", "option subject .*", options={"subject": "a.*"}),
    "no such stream": Case(
        "StreamNotFound", r"there is no stream NONE \(option stream\)", options={"stream": "NONE"}, modes="bs"
    ),
    "a mirror": Case(
        "OptionError",
        "option stream: <N> is a mirror, which nobody can publish to",
        options={"stream": "<N>"},
        config={"subjects": [], "mirror": {"name": "ROWS"}},
    ),
    "a sealed stream": Case(
        "OptionError",
        "option stream: <N> is sealed and takes no more messages",
        options={"stream": "<N>"},
        config={"sealed": True},
        modes="bs",
    ),
    "a stream that acknowledges nothing": Case(
        "OptionError",
        "option stream: <N> has no_ack set, so nothing says whether a row is stored",
        options={"stream": "<N>"},
        config={"no_ack": True},
    ),
    "a subject that no stream captures": Case(
        "OptionError",
        "option subject: no stream captures nowhere.a, so nothing would be stored",
        options={"subject": "nowhere.a"},
        modes="bs",
    ),
    "a subject that the stream does not capture": Case(
        "OptionError",
        r"option subject: stream <N> does not capture rows.a \(its subjects: <s>\.>\)",
        options={"subject": "rows.a", "stream": "<N>"},
    ),
    "dead letters that no stream captures": Case(
        "OptionError",
        "option deadLetterSubject: no stream captures nowhere.b, so nothing would be stored",
        options={"deadLetterSubject": "nowhere.b"},
        modes="bs",
    ),
    "exactly once into a work queue": Case(
        "DeliveryError",
        "delivery exactly-once is not possible with stream <N>: it has workqueue retention, .*; use deduplicated",
        options={"delivery": "exactly-once", "stream": "<N>"},
        config={"retention": "workqueue"},
        modes="bs",
    ),
    "exactly once into a stream with interest": Case(
        "DeliveryError",
        "delivery exactly-once is not possible with stream <N>: it has interest retention, .*; use deduplicated",
        options={"delivery": "exactly-once", "subject": "<s>.a"},
        config={"retention": "interest"},
    ),
    "exactly once into a stream that keeps the latest": Case(
        "DeliveryError",
        "delivery exactly-once is not possible with stream <N>: it keeps few messages of each subject "
        r"\(max_msgs_per_subject\), .*; use deduplicated",
        options={"delivery": "exactly-once", "stream": "<N>"},
        config={"max_msgs_per_subject": 1},
    ),
    "nobody listens": Case(
        "ConnectionFailed",
        r"no NATS server could be reached at nats://127.0.0.1:1 within 0.5 s \(option servers\): .*",
        options={"servers": "nats://127.0.0.1:1", "connectTimeout": "500ms", "retryTimeout": "500ms"},
        modes="bs",
    ),
    "wrong password": Case(
        "AuthenticationFailed",
        r"the NATS server at nats://127.0.0.1:\d+ refused the credentials \(options user and password\)",
        options={"password": WRONG},
        modes="bs",
    ),
    "wrong token": Case(
        "AuthenticationFailed",
        r"the NATS server at nats://127.0.0.1:\d+ refused the credentials \(option token\)",
        options={"token": WRONG},
    ),
    "may not have an inbox": Case(
        "PermissionDenied",
        r".*the account may not subscribe to _INBOX\.> \(option inboxPrefix\)",
        options={"user": "deaf", "stream": "<N>"},
    ),
    "exactly once without a look at the stream": Case(
        "DeliveryError",
        r"delivery exactly-once has to see the state of stream <N>: cannot read stream <N> \(option stream\): the "
        r"account may not publish to \$JS\.API\.STREAM\.INFO\.<N>",
        options={"user": "blind", "stream": "<N>", "delivery": "exactly-once"},
    ),
}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in EARLY.items()])
def test_known_before_any_task_starts(
    spark: SparkSession, make: Callable[..., Stream], tmp_path: Path, spark_log: SparkLog, case: Case
) -> None:
    s = make(**{name: value for name, value in case.config.items() if name != "sealed"})
    if case.config.get("sealed"):
        s.update(sealed=True)
    for mode in case.modes:
        kind, said = fail(spark, tmp_path, mode, s, case.select, case.options, early=True)
        assert kind == case.kind, said
        assert re.fullmatch(filled_in(case.sentence, s), said), said
    assert s.state()["messages"] == (3 if "mirror" in case.config else 0)
    for secret in (PASSWORD, WRONG):
        assert secret not in spark_log.text


def test_exactly_once_without_permission_to_make_the_ledger(
    spark: SparkSession, server: Server, make: Callable[..., Stream], tmp_path: Path
) -> None:
    s = make(server.bob)
    options = {"user": "noledger", "delivery": "exactly-once", "stream": "<N>"}
    for mode in "bs":
        kind, said = fail(spark, tmp_path, mode, s, PLAIN, options, early=True)
        assert kind == "DeliveryError"
        assert said == (
            "cannot make the ledger of delivery exactly-once, the Key-Value bucket spark_jetstream_ledger: the account "
            f"may not publish to $JS.API.STREAM.CREATE.{LEDGER}; make it beforehand, or set delivery to deduplicated"
        )
    # Made beforehand, by somebody who may.
    write(rows(spark, s, PLAIN), s, {**options, "user": "bob"})
    write(rows(spark, s, PLAIN), s, options)
    assert s.state()["messages"] == 6


def test_overwriting_is_refused(spark: SparkSession, make: Callable[..., Stream]) -> None:
    s = make()
    with pytest.raises(AnalysisException) as caught:
        write(rows(spark, s, PLAIN), s, {}, "overwrite")
    assert refusal(caught.value) == (
        "OptionError",
        'mode "overwrite" is not possible: a stream is only ever added to; use mode "append", and purge the stream '
        "yourself if its messages shall go",
    )


@pytest.mark.parametrize("mode", ["errorifexists", "error", "default", "ignore"])
def test_spark_refuses_the_other_modes_and_names_the_one_to_take(
    spark: SparkSession, make: Callable[..., Stream], mode: str
) -> None:
    s = make()
    with pytest.raises(AnalysisException, match=r"UNSUPPORTED_DATA_SOURCE_SAVE_MODE.*use either the \"Append\""):
        write(rows(spark, s, PLAIN), s, {}, mode)
    writer = rows(spark, s, PLAIN).write.format("jetstream").options(**settings(s, {}))
    with pytest.raises(AnalysisException, match=r"UNSUPPORTED_DATA_SOURCE_SAVE_MODE.*use either the \"Append\""):
        writer.save()
    assert s.state()["messages"] == 0


# Rows that can never be stored, whatever is tried: the second of three.


class BadRow(NamedTuple):
    """`code`, `subject`, `data`, `size`: what a dead letter says and holds. `before`: subjects that have a message."""

    select: tuple[str, ...]
    reason: str
    code: int = 0
    config: Mapping[str, Any] = NOTHING
    options: Mapping[str, str] = NOTHING
    subject: str = "<s>.2"
    data: bytes = b"row 2"
    size: int | None = None
    before: tuple[str, ...] = ()


def second(bad: str, good: str) -> str:
    """The SQL of a column that is bad in the second row."""
    return f"if(id = 2, {bad}, {good})"


def in_column(name: str, bad: str, good: str) -> tuple[str, ...]:
    """Subject and data, and one more column."""
    return (*PLAIN, f"{second(bad, good)} as {name}")


def at_subject(bad: str) -> tuple[str, ...]:
    """Another subject in the second row."""
    good = "concat('<s>.', id)"
    return (f"{second(bad, good)} as subject", DATA)


def with_data(bad: str) -> tuple[str, ...]:
    """Other data in the second row."""
    good = "concat('row ', id)"
    return (SUBJECT, f"{second(bad, good)} as data")


BAD_ROWS = {
    "null data": BadRow(with_data("null"), "column data is null", data=b""),
    "null subject": BadRow(at_subject("null"), "column subject is null", subject=""),
    "empty subject": BadRow(at_subject("''"), "its subject is empty", subject=""),
    "a blank in the subject": BadRow(
        at_subject("'<s>.a b'"), "its subject '<s>.a b' holds a blank or a control character", subject="<s>.a b"
    ),
    "a line end in the subject": BadRow(
        at_subject(r"'<s>.a\r\nPUB <s>.b 1\r\nx'"),
        r"its subject '<s>.a\\r\\nPUB <s>.b 1\\r\\nx' holds a blank or a control character",
        subject="<s>.a  PUB <s>.b 1  x",
    ),
    "a wildcard": BadRow(at_subject("'<s>.*'"), r"its subject '<s>\.\*' has a wildcard", subject="<s>.*"),
    "an empty token": BadRow(at_subject("'<s>..a'"), "its subject '<s>..a' has an empty token", subject="<s>..a"),
    "a subject of the server": BadRow(
        at_subject("'$JS.API.INFO'"),
        r"its subject '\$JS.API.INFO' is one of the server's own",
        subject="$JS.API.INFO",
    ),
    "a header without a name": BadRow(
        in_column("headers", "map('', 'x')", "map('A', 'x')"),
        "column headers holds the name '', which is not possible",
    ),
    "a header with a colon in its name": BadRow(
        in_column("headers", "map('A: b', 'x')", "map('A', 'x')"),
        "column headers holds the name 'A: b', which is not possible",
    ),
    "a line end in a header": BadRow(
        in_column("headers", r"map('A', array('x\r\nB: y'))", "map('A', array('x'))"),
        "a value in column headers holds a line end",
    ),
    "a header that is null": BadRow(
        in_column("headers", "map('A', cast(null as string))", "map('A', 'x')"), "column headers holds a null value"
    ),
    "a blank in a message id": BadRow(
        in_column("msg_id", "'a b'", "concat('<s>-', id)"),
        "column msg_id is empty or holds a blank or a control character",
    ),
    "a negative sequence": BadRow(
        in_column("expected_last_subject_sequence", "-1L", "0L"),
        "column expected_last_subject_sequence is negative",
    ),
    "a subject that no stream captures": BadRow(
        at_subject("'nowhere.x'"), "no stream captures this subject", 503, subject="nowhere.x"
    ),
    "a subject of another stream": BadRow(
        at_subject("'rows.x'"),
        r"expected stream does not match \(error 10060\): another stream than the one in option stream captures this "
        "subject",
        10060,
        options={"stream": "<N>"},
        subject="rows.x",
    ),
    "above max_payload": BadRow(
        with_data("repeat('x', 1048576)"),
        r"header and payload have 10\d{5} bytes, and the server takes 1048576 \(max_payload\)",
        data=b"x" * 1048576,
        size=1048576,
    ),
    "above max_msg_size": BadRow(
        with_data("repeat('x', 2000)"),
        r"message size exceeds maximum allowed \(error 10054\): raise the stream's max_msg_size",
        10054,
        {"max_msg_size": 1000},
        data=b"x" * 2000,
    ),
    "headers above 64 KiB": BadRow(
        in_column("headers", "map('A', repeat('x', 65536))", "map('A', 'x')"),
        r"header size exceeds maximum allowed of 64k \(error 10097\): make column headers smaller: .*",
        10097,
    ),
    "wrong expected sequence": BadRow(
        in_column("expected_last_subject_sequence", "7L", "0L"),
        r"wrong last sequence: 0 \(error 10071\): column expected_last_subject_sequence names another message .*",
        10071,
    ),
    "a sequence that was right before": BadRow(
        in_column("expected_last_subject_sequence", "0L", "0L"),
        r"wrong last sequence: 1 \(error 10071\): column expected_last_subject_sequence names another message .*",
        10071,
        before=("<s>.2",),
    ),
    "a ttl where there is none": BadRow(
        in_column("ttl", "'1h'", "null"),
        r"per-message TTL is disabled \(error 10166\): set allow_msg_ttl on the stream, or drop column ttl",
        10166,
    ),
    "a ttl that is none": BadRow(
        in_column("ttl", "'soon'", "'1h'"),
        r"invalid per-message TTL \(error 10165\): column ttl takes a duration of at least one second, .*",
        10165,
        {"allow_msg_ttl": True},
    ),
    "a subject that is full": BadRow(
        PLAIN,
        r"maximum messages per subject exceeded \(error 10077\): raise the stream's max_msgs_per_subject",
        10077,
        {"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True},
        before=("<s>.2",),
    ),
}
BAD = [pytest.param(row, id=name) for name, row in BAD_ROWS.items()]


def prepare(s: Stream, bad: BadRow) -> None:
    """Store what has to be there before."""
    s.send(*(Message(filled_in(subject, s), b"before") for subject in bad.before))


def header_lists(block: bytes) -> dict[str, list[str]]:
    """Names and values of a header block."""
    found: dict[str, list[str]] = {}
    for line in block.decode().split("\r\n")[1:-2]:
        name, _, value = line.partition(": ")
        found.setdefault(name, []).append(value)
    return found


def messages_of(s: Stream) -> list[tuple[str, dict[str, list[str]], bytes]]:
    """Subject, headers and payload of all messages of a stream, by STREAM.MSG.GET."""
    found = []
    state = s.state()
    for sequence in range(max(1, state["first_seq"]), state["last_seq"] + 1):
        message = s.publisher.api(f"STREAM.MSG.GET.{s.name}", {"seq": sequence})["message"]
        block, data = (base64.b64decode(message.get(name, "")) for name in ("hdrs", "data"))
        found.append((message["subject"], header_lists(block), data))
    return found


def wait_for_line(spark_log: SparkLog, pattern: str) -> None:
    """Wait until a line of the log matches: what a Python process says takes a moment through the JVM."""
    wait_until(lambda: re.search(pattern, spark_log.text) is not None, pattern)


@pytest.mark.parametrize("bad", BAD)
def test_a_row_that_cannot_be_stored_is_named(
    spark: SparkSession, make: Callable[..., Stream], tmp_path: Path, bad: BadRow
) -> None:
    s = make(**bad.config)
    prepare(s, bad)
    kind, said = fail(spark, tmp_path, "b", s, bad.select, bad.options, early=False)
    assert kind == "RowRefused"
    before = re.escape("row 2 of partition 0 cannot be stored at subject ")
    found = re.fullmatch(rf"{before}('.*'|\".*\"): (.+); (\d+) rows? of it (?:is|are) stored already", said)
    assert found is not None, said
    subject, reason, stored = found.groups()
    assert re.fullmatch(filled_in(bad.reason, s), reason), said
    wanted = filled_in(bad.subject, s)
    # A line end shows as two characters in the sentence, and as two blanks in a dead letter.
    assert subject.strip("'").replace("\\r\\n", "  ") == wanted
    assert s.state()["messages"] - len(bad.before) == int(stored)
    assert int(stored) <= 2


@pytest.mark.parametrize("bad", BAD)
def test_dead_letters_tell_what_happened_and_all_else_is_stored(
    spark: SparkSession, make: Callable[..., Stream], spark_log: SparkLog, bad: BadRow
) -> None:
    s, dead = make(**bad.config), make()
    prepare(s, bad)
    options = {**bad.options, "deadLetterSubject": f"{dead.subject}.row", "writeId": s.subject}
    write(rows(spark, s, bad.select), s, options)
    stored = messages_of(s)[len(bad.before) :]
    assert [(subject, data) for subject, _, data in stored] == [
        (f"{s.subject}.1", b"row 1"),
        (f"{s.subject}.3", b"row 3"),
    ]
    ((subject, headers, data),) = messages_of(dead)
    assert subject == f"{dead.subject}.row"
    assert headers["Dead-Letter-Subject"] == [filled_in(bad.subject, s)]
    assert re.fullmatch(filled_in(bad.reason, s), headers["Dead-Letter-Reason"][0]), headers
    assert headers["Dead-Letter-Error-Code"] == [str(bad.code)]
    if bad.size is None:
        assert data == bad.data
        assert "Dead-Letter-Size" not in headers
    else:
        assert bad.data.startswith(data)
        assert bad.size - 8192 < len(data) < bad.size
        assert headers["Dead-Letter-Size"] == [str(bad.size)]
    wait_for_line(spark_log, rf"write {s.subject}: 2 of 3 rows stored, 1 dead letters?, {s.name} \d+ to \d+;")

    write(rows(spark, s, bad.select), s, options)
    assert len(messages_of(dead)) == 1
    assert len(messages_of(s)) == len(bad.before) + 2


def test_a_row_of_a_stream_that_cannot_be_stored_is_named(
    spark: SparkSession, make: Callable[..., Stream], tmp_path: Path, spark_log: SparkLog
) -> None:
    s, dead = make(), make()
    select = at_subject("'nowhere.x'")
    kind, said = fail(spark, tmp_path, "s", s, select, {}, early=False)
    assert kind == "RowRefused"
    found = re.fullmatch(
        r"row 2 of partition 0 cannot be stored at subject 'nowhere.x': no stream captures this subject; (\d) rows? of "
        r"it (?:is|are) stored already",
        said,
    )
    assert found is not None, said
    assert int(found[1]) == s.state()["messages"]
    wait_for_line(spark_log, r"jetstream sink, batch 0 of query .* failed; tasks that ended before it did have")

    login = {"user": "ann", "password": PASSWORD}
    source = spark.readStream.format("jetstream").options(servers=s.url, stream="ROWS", **login).load()
    frame = source.selectExpr("sequence as id").selectExpr(*(filled_in(each, s) for each in select))
    writer = frame.writeStream.format("jetstream").options(**settings(s, {"deadLetterSubject": f"{dead.subject}.row"}))
    query = writer.option("checkpointLocation", str(tmp_path / "dead")).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    ((_, headers, data),) = messages_of(dead)
    assert (headers["Dead-Letter-Subject"], data) == (["nowhere.x"], b"row 2")


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_dead_letters_of_the_other_levels(spark: SparkSession, make: Callable[..., Stream], delivery: str) -> None:
    s, dead = make(), make()
    once = delivery == "exactly-once"
    options = {"delivery": delivery, "deadLetterSubject": f"{dead.subject}.row"}
    if once:
        options["writeId"] = s.subject
    select = (*with_data("null"), "map('A', 'b', 'Nats-Rollup', 'sub') as headers")
    write(rows(spark, s, select), s, options)
    write(rows(spark, s, select), s, options)
    assert [data for _, _, data in messages_of(s)] == [b"row 1", b"row 3"] * (1 if once else 2)
    letters = messages_of(dead)
    assert len(letters) == (1 if once else 2)
    for _, headers, _ in letters:
        headers.pop("Nats-Msg-Id", None)
        assert headers == {
            "A": ["b"],
            "Dead-Letter-Subject": [f"{s.subject}.2"],
            "Dead-Letter-Reason": ["column data is null"],
            "Dead-Letter-Error-Code": ["0"],
        }


def test_a_dead_letter_that_is_refused_fails_the_task(
    spark: SparkSession, make: Callable[..., Stream], tmp_path: Path
) -> None:
    s, dead = make(), make(max_msg_size=10)
    kind, said = fail(
        spark, tmp_path, "b", s, with_data("null"), {"deadLetterSubject": f"{dead.subject}.row"}, early=False
    )
    assert kind == "RowRefused"
    assert re.fullmatch(
        rf"row 2 of partition 0 cannot be stored at subject '{dead.subject}.row': message size exceeds maximum allowed "
        r"\(error 10054\): raise the stream's max_msg_size; [02] rows of it are stored already",
        said,
    ), said
    assert f"; {s.state()['messages']} rows of it" in said


# What fails the task whether there are dead letters or not: no row is to blame.

WHOLE = {
    "a full stream": Case(
        "RowRefused",
        r"row 3 of partition 0 cannot be stored at subject '<s>.3': maximum messages exceeded \(error 10077\): the "
        r"stream is full and discards what is new: raise its limits or set discard to old, also after 1 retries "
        r"\(option maxRetries\); 2 rows of it are stored already",
        config={"max_msgs": 2, "discard": "new"},
        modes="bs",
    ),
    "a stream that is full of bytes": Case(
        "RowRefused",
        r"row 1 of partition 0 cannot be stored at subject '<s>.1': maximum bytes exceeded \(error 10077\): .*; "
        "0 rows of it are stored already",
        config={"max_bytes": 10, "discard": "new"},
    ),
    "a user that may not publish there": Case(
        "RowRefused",
        "row 2 of partition 0 cannot be stored at subject '<s>.secret': the account may not publish to this subject; "
        r"[12] rows? of it (is|are) stored already",
        at_subject("'<s>.secret'"),
        {"user": "writer"},
    ),
    "a user that may not publish there, with a stream": Case(
        "RowRefused",
        "row 1 of partition 0 cannot be stored at subject '<s>.secret': the account may not publish to this subject; "
        "0 rows of it are stored already",
        PLAIN,
        {"user": "writer", "stream": "<N>", "subject": "<s>.secret"},
        modes="bs",
    ),
    "a stream that acknowledges nothing": Case(
        "RowRefused",
        r"row 1 of partition 0 cannot be stored at subject '<s>.1': no acknowledgement within 0.5 s \(option "
        r"ackTimeout\), also after 1 retries \(option maxRetries\): a stream with no_ack gives none; 0 rows of it are "
        "stored already",
        options={"ackTimeout": "500ms"},
        config={"no_ack": True},
    ),
    "a sealed stream": Case(
        "RowRefused",
        r"row 1 of partition 0 cannot be stored at subject '<s>.1': invalid operation on sealed stream \(error 10109\)"
        r".*; 0 rows of it are stored already",
        config={"sealed": True},
    ),
    "exactly once into a work queue": Case(
        "DeliveryError",
        "delivery exactly-once is not possible with stream <N>: it has workqueue retention, .*; use deduplicated",
        options={"delivery": "exactly-once"},
        config={"retention": "workqueue"},
    ),
    "exactly once without a look at the stream": Case(
        "DeliveryError",
        r".*spark_jetstream_ledger.*|.*the account may not publish to \$JS\.API\..*",
        options={"delivery": "exactly-once", "user": "blind"},
    ),
}


@pytest.mark.parametrize("dead_letters", [False, True], ids=["without dead letters", "with dead letters"])
@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in WHOLE.items()])
def test_what_fails_the_whole_task(
    spark: SparkSession, make: Callable[..., Stream], tmp_path: Path, case: Case, dead_letters: bool
) -> None:
    s = make(**{name: value for name, value in case.config.items() if name != "sealed"})
    dead = make()
    if case.config.get("sealed"):
        s.update(sealed=True)
    options = {**case.options, **({"deadLetterSubject": f"{dead.subject}.row"} if dead_letters else {})}
    for mode in case.modes:
        early = case.kind == "DeliveryError" and options.get("user") == "blind"
        kind, said = fail(spark, tmp_path, mode, s, case.select, options, early=early)
        assert kind == case.kind, said
        assert re.fullmatch(filled_in(case.sentence, s), said), said
        if s.state()["messages"]:
            s.purge()
    assert messages_of(dead) == []


def test_a_stream_that_is_deleted_while_rows_are_written(spark: SparkSession, make: Callable[..., Stream]) -> None:
    s = make()
    frame = spark.range(0, 400_000, 1, 1).selectExpr(f"concat('{s.subject}.', id % 7) as subject", DATA)
    seen: list[int] = []

    def delete() -> None:
        wait_until(lambda: bool(s.state()["messages"]), "the first rows are stored")
        seen.append(s.state()["messages"])
        s.delete()

    deleting = threading.Thread(target=delete)
    deleting.start()
    with pytest.raises(PythonException) as caught:
        write(frame, s, {"maxInFlight": "200"})
    deleting.join(60)
    kind, said = refusal(caught.value)
    assert kind == "RowRefused"
    found = re.fullmatch(
        rf"row (\d+) of partition 0 cannot be stored at subject '{s.subject}\.\d': no stream captures this subject; "
        r"(\d+) rows of it are stored already",
        said,
    )
    assert found is not None, said
    assert seen[0] <= int(found[2]) < 400_000
    # A window of rows is under way, and the first of them without an answer is named.
    assert int(found[1]) <= int(found[2]) + 200


def test_a_user_who_may_only_publish(spark: SparkSession, make: Callable[..., Stream], tmp_path: Path) -> None:
    """What cannot be looked at is not checked: the rows themselves tell."""
    s = make()
    for options in ({}, {"stream": "<N>"}, {"subject": "<s>.x", "stream": "<N>"}, {"subject": "<s>.x"}):
        write(rows(spark, s, PLAIN), s, {"user": "blind", **options})
    assert s.state()["messages"] == 12
    kind, said = fail(spark, tmp_path, "b", s, at_subject("'nowhere.x'"), {"user": "blind"}, early=False)
    assert kind == "RowRefused"
    assert said.startswith("row 2 of partition 0 cannot be stored at subject 'nowhere.x': no stream captures this subj")


# Warnings.


def test_a_short_duplicate_window_is_warned_of(
    spark: SparkSession, make: Callable[..., Stream], spark_log: SparkLog
) -> None:
    s = make(duplicate_window=1_000_000_000)
    for options in ({"stream": "<N>"}, {"subject": "<s>.x"}):
        write(rows(spark, s, PLAIN), s, {**options, "ackTimeout": "1500ms"})
    warning = (
        f"stream {s.name} remembers message ids for 1 s (duplicate_window), less than the 2 s for which a row may be "
        "sent again (options retryTimeout, ackTimeout): after an outage a row may be stored twice; make the window "
        "longer or set delivery to exactly-once"
    )
    wait_until(lambda: spark_log.text.count(warning) == 2, warning)
    long = make()
    write(rows(spark, long, PLAIN), long, {"stream": "<N>"})
    write(rows(spark, s, PLAIN), s, {"stream": "<N>", "delivery": "at-least-once"})
    assert spark_log.text.count("remembers message ids") == 2


def test_micro_batches_further_apart_than_the_duplicate_window_are_warned_of(
    spark: SparkSession, server: Server, make: Callable[..., Stream], tmp_path: Path, spark_log: SparkLog
) -> None:
    source, s = make(), make(duplicate_window=100_000_000)
    login = {"user": "ann", "password": PASSWORD}
    frame = spark.readStream.format("jetstream").options(servers=server.url, stream=source.name, **login).load()
    frame = frame.selectExpr("data", f"'{s.subject}.x' as subject")
    writer = frame.writeStream.format("jetstream").options(**settings(s, {}))
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        for count in range(1, 5):
            source.fill(1)
            wait_until(lambda count=count: s.state()["messages"] == count, f"{count} rows are stored")  # type: ignore[misc]
            query.processAllAvailable()
    finally:
        query.stop()
    wait_for_line(
        spark_log,
        rf"micro-batches are [\d.]+ s apart, and stream {s.name} remembers message ids for 0.1 s \(duplicate_window\)",
    )
