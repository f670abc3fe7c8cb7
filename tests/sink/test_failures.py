"""Rows that cannot be written: one clear sentence, before any task starts where that is possible,
and dead letters.

The writer is called in this process as Spark calls it; a few queries show that Spark hands on what
it says. A case gives columns of three rows, of which the second is the bad one. In columns, options
and sentences `<N>` stands for the test's stream and `<s>` for what its subjects begin with.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import close_all, connect
from spark_jetstream.errors import DeliveryError, JetStreamError, RowRefused, SchemaError
from spark_jetstream.options import SinkOptions
from spark_jetstream.sink.ledger_bucket import bucket_config
from spark_jetstream.testing import NatsServer
from spark_jetstream.testing.process import find_server_binary
from tests.conftest import SparkLog
from tests.support.calls import refusal_of, store, writer_of
from tests.support.command import succeed
from tests.support.proxy import WireProxy, answer, is_answer
from tests.support.publish import Message, Publisher
from tests.support.queries import refusal
from tests.support.reading import wait_until
from tests.support.sinking import Sink, batch, seen, set_write_timing
from tests.support.streams import MakeStream, Stream

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
Refusal = tuple[str, str]
NOTHING: Mapping[str, Any] = MappingProxyType({})
LISTS = pa.map_(pa.string(), pa.list_(pa.string()))
#: Words of the sentences, and options.
HERE, ONCE = {"stream": "<N>"}, {"delivery": "exactly-once"}
UNFIT, INSTEAD = "delivery exactly-once is not possible with stream <N>: it", ".*; use deduplicated"
CREDENTIALS = r"the NATS server at nats://127.0.0.1:\d+ refused the credentials"
ROW, AT, STORED = "row", "of partition 0 cannot be stored at subject", "of the task are stored"
DENIED = "the account may not publish to this subject"
MAY_NOT = "the account may not publish to"
NOT_SEEN = "delivery exactly-once has to see the state of stream <N>:"
TRIED = r"also after 1 retries \(option maxRetries\)"
TOO_MANY = (
    rf"the stream is full and discards what is new: raise its limits or set discard to old, {TRIED}"
)
NO_ACK = (
    rf"no acknowledgement within 0.2 s \(option ackTimeout\), {TRIED}: stream <N> has no_ack set, "
    r"so it gives none"
)
ACTS = "or set option serverHeaders to drop, which stores the rows without these headers"
#: Headers that the server acts on, with a value, and the column that asks for the same.
COMMANDS = {
    "Nats-Schedule": ("@at 2030-01-01T00:00:00Z", "schedule"), "Nats-Schedule-Target": ("a.b", "schedule_target"),
    "Nats-Schedule-TTL": ("5m", "schedule_ttl"),
    "Nats-Schedule-Time-Zone": ("UTC", "schedule_time_zone"), "Nats-Schedule-Source": ("a.b", "schedule_source"),
    "Nats-Schedule-Rollup": ("sub", "schedule_rollup"), "Nats-Rollup": ("sub", "rollup"), "Nats-Schedule-Next": ("purge", ""),
    "Nats-Scheduler": ("a.b", ""), "Nats-Incr": ("1", "incr"),
}  # fmt: skip
LATER, SCHEDULES = "2100-01-01T00:00:00Z", {"allow_msg_schedules": True}
#: The types of columns where they are others than in the tests of the sink, or unknown.
TYPES = {"data": pa.string(), "headers": pa.map_(pa.string(), pa.string()), "dta": pa.int64()}
GOOD: dict[str, list[Any]] = {
    "data": ["row 1", "row 2", "row 3"],
    "subject": ["<s>.1", "<s>.2", "<s>.3"],
    "headers": [{"A": "x"}] * 3,
    "msg_id": ["<s>-1", "<s>-2", "<s>-3"],
    "expected_last_subject_sequence": [0, 0, 0],
}


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
        Stream(running.url, "KV_prices", ann, subjects=["$KV.prices.>"])
        yield Server(running.url, ann, bob)
        close_all()


_used = iter(range(1, 1000))


@pytest.fixture
def make(server: Server) -> Iterator[MakeStream]:
    """A function that makes a stream of the test's own, in account A unless told; gone after the
    test.
    """
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


@pytest.fixture(autouse=True)
def no_secret_in_the_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No line that this process logs has a secret."""
    caplog.set_level(logging.INFO)
    yield
    assert PASSWORD not in caplog.text
    assert WRONG not in caplog.text


def rows(s: Stream, columns: Mapping[str, Any] = NOTHING) -> pa.RecordBatch:
    """Three good rows of data and subject, with other columns."""
    found = {name: GOOD[name] for name in ("data", "subject")} | dict(columns)
    for name, values in found.items():
        if isinstance(values, list):
            found[name] = [
                filled_in(value, s) if isinstance(value, str) else value for value in values
            ]
    return batch(TYPES, **found)


def settings(s: Stream, options: Mapping[str, str]) -> dict[str, str]:
    """Options of the sink; ann's login unless they say otherwise."""
    login = {} if "token" in options else {"user": "ann", "password": PASSWORD}
    given = {"servers": s.url, **QUICK, **login, **options}
    return {name: filled_in(value, s) for name, value in given.items()}


def second(name: str, bad: object) -> dict[str, list[Any]]:
    """A column that is bad in the second row."""
    first, _, third = GOOD[name]
    return {name: [first, bad, third]}


def scheduled(**bad: str) -> dict[str, list[Any]]:
    """Columns of schedules; the second row has something bad in one of them."""
    good = {"schedule": LATER, "schedule_target": "<s>.due"}
    return {name: [good.get(name), (good | bad)[name], good.get(name)] for name in good | bad}


def at(bad: str | None) -> dict[str, list[Any]]:
    """Another subject in the second row."""
    return second("subject", bad)


def write(s: Stream, options: Mapping[str, str], columns: Mapping[str, Any] = NOTHING) -> None:
    frame = rows(s, columns)
    store(writer_of("b", settings(s, options), frame.schema), [frame])


def refuse(
    mode: str, s: Stream, columns: Mapping[str, Any], options: Mapping[str, str], *, early: bool
) -> Refusal:
    """Class and sentence of what the writer of a batch (mode b) or of a micro-batch (mode s)
    raises.

    `early`: before any task starts. No secret shows.
    """
    frame = rows(s, columns)
    new = partial(writer_of, mode, settings(s, options), frame.schema)
    call = new if early else partial(store, new(), [frame])
    with pytest.raises(JetStreamError) as caught:
        call()
    assert PASSWORD not in str(caught.value)
    assert WRONG not in str(caught.value)
    return refusal_of(caught.value, in_task=not early)


class Case(NamedTuple):
    """`sentence` is a pattern for all of it; `modes` holds b for batch, s for stream; `config` is
    the stream's.
    """

    modes: str
    kind: str
    sentence: str
    options: Mapping[str, str] = NOTHING
    config: Mapping[str, Any] = NOTHING
    columns: Mapping[str, Any] = NOTHING


def name_of(case: Case | BadRow) -> str:
    return f"{case.sentence if isinstance(case, Case) else case.reason} {dict(case.config) or ''}"


# What is known before any task starts.

WRONG_PASSWORD = Case(
    "bs",
    "AuthenticationFailed",
    rf"{CREDENTIALS} \(options user and password\)",
    {"password": WRONG},
)
EARLY = [
    WRONG_PASSWORD,
    Case("bs", "SchemaError",
        r'the sink knows no column "dta"; did you mean "data" \(columns: data, subject, .*\): drop '
        r'it, or .*',
        columns={"dta": [1, 2, 3]}),
    Case("s", "OptionError", "option writeId has no meaning in a streaming query: .*", {"writeId": "w"}),
    Case("bs", "StreamNotFound", r"there is no stream NONE \(option stream\)", {"stream": "NONE"}),
    Case("bs", "StreamNotFound", r"there is no stream ROSW \(option stream\); did you mean ROWS", {"stream": "ROSW"}),
    Case("bs", "StreamNotFound",
        r"there is no stream prices \(option stream\); prices is a Key-Value bucket \(option "
        r"bucket\)",
        {"stream": "prices"}),
    Case("b", "OptionError", "option stream: <N> is a mirror, which nobody can publish to", HERE,
        {"subjects": [], "mirror": {"name": "ROWS"}}),
    Case("bs", "OptionError", "option stream: <N> is sealed and takes no more messages", HERE, {"sealed": True}),
    Case("b", "OptionError", "option stream: <N> has no_ack set, so nothing says whether a row is "
                             "stored", HERE,
        {"no_ack": True}),
    Case("bs", "OptionError", "option subject: no stream captures nowhere.a, so nothing would be "
                              "stored",
        {"subject": "nowhere.a"}),
    Case("bs", "OptionError",
        "option subject: no stream captures rosw.a, so nothing would be stored; did you mean "
        "rows.a",
        {"subject": "rosw.a"}),
    Case("b", "OptionError", r"option subject: stream <N> does not capture rows.a \(its subjects: "
                             r"<s>\.>\)",
        {"subject": "rows.a", "stream": "<N>"}),
    Case("bs", "OptionError", "option deadLetterSubject: no stream captures nowhere.b, so nothing "
                              "would be stored",
        {"deadLetterSubject": "nowhere.b"}),
    Case("bs", "DeliveryError", f"{UNFIT} has workqueue retention, {INSTEAD}", {**ONCE, **HERE},
        {"retention": "workqueue"}),
    Case("b", "DeliveryError", rf"{UNFIT} keeps few messages of each subject "
                               rf"\(max_msgs_per_subject\), {INSTEAD}",
        {**ONCE, **HERE}, {"max_msgs_per_subject": 1}),
    Case("bs", "DeliveryError", rf"{UNFIT} acknowledges rows before .* \(persist_mode async\), "
                                rf"{INSTEAD}",
        {**ONCE, **HERE}, {"persist_mode": "async"}),
    Case("bs", "DeliveryError",
        rf"{UNFIT[:-4]} \(option deadLetterSubject\): it has interest retention, {INSTEAD}",
        {**ONCE, "stream": "ROWS", "deadLetterSubject": "<s>.dead"}, {"retention": "interest"}),
    *(
        Case("bs", "OptionError",
            f'option stream must name the stream for column "{next(iter(columns))}"', columns=columns)
        for columns in (scheduled(), {"rollup": [None] * 3})
    ),
    Case("bs", "OptionError",
        r'option stream: <N> refuses column "schedule": set allow_msg_schedules on it '
        r'.*--allow-msg-schedules\)',
        HERE, {"allow_rollup_hdrs": True}, scheduled()),
    Case("bs", "OptionError",
        r'option stream: <N> refuses column "rollup": set allow_rollup_hdrs on it '
        r'.*--allow-rollup-hdrs\)',
        HERE, columns={"rollup": ["sub", None, None]}),
    Case("bs", "DeliveryError",
        'option delivery cannot be exactly-once with column "rollup": a roll-up removes the rows '
        'that .*; use dedup.*',
        {**ONCE, **HERE}, {"allow_rollup_hdrs": True}, {"rollup": ["sub", None, None]}),
    Case("bs", "SchemaError", 'column "schedule" cannot be used with option subject: .* replace '
                              'the one before it; .*',
        {**HERE, "subject": "<s>.x"}, SCHEDULES, scheduled()),
    Case("b", "DeliveryError",
        rf'column "schedule" has to see the state of stream <N>: .*{MAY_NOT} '
        r'\$JS\.API\.STREAM\.INFO\.<N>',
        {"user": "blind", "stream": "<N>"}, SCHEDULES, scheduled()),
    Case("b", "PermissionDenied", r".*the account may not subscribe to _INBOX\.> \(option "
                                  r"inboxPrefix\)",
        {"user": "deaf", "stream": "<N>"}),
    Case("b", "DeliveryError",
        rf"{NOT_SEEN} cannot read stream <N> \(option stream\): {MAY_NOT} "
        r"\$JS\.API\.STREAM\.INFO\.<N>",
        {"user": "blind", "stream": "<N>", "delivery": "exactly-once"}),
    Case("b", "DeliveryError",
        rf"cannot see the ledger of delivery exactly-once: .*{MAY_NOT} "
        rf"\$JS\.API\.STREAM\.INFO\.{LEDGER}",
        {"user": "blind", "delivery": "exactly-once"}),
]  # fmt: skip


@pytest.mark.parametrize("case", EARLY, ids=name_of)
def test_known_before_any_task_starts(make: MakeStream, case: Case) -> None:
    s = make(**case.config)
    for mode in case.modes:
        kind, said = refuse(mode, s, case.columns, case.options, early=True)
        assert kind == case.kind, said
        assert re.fullmatch(filled_in(case.sentence, s), said), said
    s.wait_for(3 if "mirror" in case.config else 0)


def test_exactly_once_without_permission_to_make_the_ledger(
    server: Server, make: MakeStream
) -> None:
    s = make(server.bob)
    options = {"user": "noledger", "delivery": "exactly-once", "stream": "<N>"}
    for mode in "bs":
        kind, said = refuse(mode, s, NOTHING, options, early=True)
        assert kind == "DeliveryError"
        assert said == (
            "cannot make the ledger of delivery exactly-once, the Key-Value bucket "
            "spark_jetstream_ledger: the account may not publish to "
            f"$JS.API.STREAM.CREATE.{LEDGER}; make it beforehand (spark-jetstream kv add "
            "spark_jetstream_ledger --replicas 1 --limit-marker-ttl 1s), or set delivery to "
            "deduplicated"
        )
    # Made beforehand, by somebody who may.
    write(s, {**options, "user": "bob"})
    write(s, options)
    assert s.state()["messages"] == 6


# Rows that can never be stored, whatever is tried: the second of three.


class BadRow(NamedTuple):
    """`code`, `subject`, `data`, `size`: what a dead letter says and holds.

    `before`: subjects that have a message.
    """

    columns: Mapping[str, Any]
    reason: str
    code: int = 0
    config: Mapping[str, Any] = NOTHING
    options: Mapping[str, str] = NOTHING
    subject: str = "<s>.2"
    data: bytes = b"row 2"
    size: int | None = None
    before: tuple[str, ...] = ()


BAD_ROWS = [
    BadRow(second("data", None), "column data is null", data=b""),
    BadRow(at(None), "column subject is null", subject=""),
    BadRow(at("<s>.a\r\nPUB <s>.b 1\r\nx"),
        r"its subject '<s>.a\\r\\nPUB <s>.b 1\\r\\nx' holds a blank or a control character",
        subject="<s>.a  PUB <s>.b 1  x"),
    BadRow(second("headers", {"A: b": "x"}), "column headers holds the name 'A: b', which is not "
                                             "possible"),
    BadRow({"headers": pa.array([{"A": ["x"]}, {"A": ["x\r\nB: y"]}, {"A": ["x"]}], LISTS)},
        "a value in column headers holds a line end"),
    BadRow(at("nowhere.x"), "no stream captures this subject", 503, subject="nowhere.x"),
    BadRow(at("rows.x"),
        r"expected stream does not match \(error 10060\): another stream than the one in option "
        r"stream captures .*",
        10060, options=HERE, subject="rows.x"),
    BadRow(second("data", "x" * 1048576),
        r"header and payload have 10\d{5} bytes, and the server takes 1048576 \(max_payload\)", data=b"x" * 1048576,
        size=1048576),
    BadRow(second("data", "x" * 2000),
        r"message size exceeds maximum allowed \(error 10054\): raise the stream's max_msg_size", 10054,
        config={"max_msg_size": 1000}, data=b"x" * 2000),
    *(
        BadRow(second("data", "x" * 2000),
            r"maximum bytes exceeded \(error 10077\): it takes 2,\d\d\d bytes in stream <N>, and "
            "the stream keeps 1,500 at most",
            10077, config={"max_bytes": 1500, "discard": "new", "storage": storage},
            data=b"x" * 2000)
        for storage in ("file", "memory")
    ),
    BadRow(second("headers", {"A": "x" * 65536}),
        r"header size exceeds maximum allowed of 64k \(error 10097\): make column headers smaller: "
        r".*", 10097),
    BadRow(second("expected_last_subject_sequence", 7),
        r"wrong last sequence: 0 \(error 10071\): column expected_last_subject_sequence names "
        r"another message .*",
        10071),
    BadRow(second("expected_last_subject_sequence", 0),
        r"wrong last sequence: 1 \(error 10071\): column expected_last_subject_sequence names "
        r"another message .*",
        10071, before=("<s>.2",)),
    BadRow({"ttl": [None, "1h", None]},
        r"per-message TTL is disabled \(error 10166\): set allow_msg_ttl on the stream, or drop "
        r"column ttl or sch.*",
        10166),
    BadRow({"ttl": ["1h", "soon", "1h"]},
        r"invalid per-message TTL \(error 10165\): column ttl takes a duration of at least one "
        r"second, .*", 10165,
        config={"allow_msg_ttl": True}),
    BadRow({"ttl": ["1h", "2562047h", "1752000h"]},
        r"column ttl is '2562047h', more than 200 years \(1752000h\): a server's clock ends in .*",
        config={"allow_msg_ttl": True}),
    BadRow(scheduled(schedule_ttl="2562047h"), "column schedule_ttl is '2562047h', more than .*", 0,
        {**SCHEDULES, "allow_msg_ttl": True}, HERE),
    *(
        BadRow(scheduled(schedule=bad), f"column schedule is '{said}.*", 0, SCHEDULES, HERE)
        for bad, said in (
            ("2263-01-01T00:00:00Z", "@at 2263-01-01T00:00:00Z', a time that a server's clock"),
            ("@at 1000-01-01T00:00:00Z", "@at 1000-01-01T00:00:00Z', a time that a server's clock"),
            ("@every 2080000h", r"@every 2080000h', more than 200 years \(1752000h\), for which"),
        )
    ),
    *(
        BadRow(scheduled(**{name: bad}), rf"{said} \(error {code}\): {advice}.*", code, SCHEDULES, HERE)
        for name, bad, code, said, advice in (
            ("schedule", "tomorrow", 10189, "message schedules pattern is invalid", "column schedule takes a"),
            ("schedule", "2030-01-31T08:00:00", 10189, "message schedules pattern is invalid", "column schedule takes"),
            ("schedule", "@every 10ms", 10189, "message schedules pattern is invalid", "column schedule takes a time"),
            ("schedule_target", "<s>.2", 10190, "message schedules target is invalid", "column schedule_target must"),
            ("schedule_target", "<s>.*", 10190, "message schedules target is invalid", "column schedule_target must"),
            ("schedule_target", "no.x", 10190, "message schedules target is invalid", "column schedule_target must be"),
            ("schedule_ttl", "1ms", 10191, "message schedules invalid per-message TTL", "column schedule_ttl takes"),
            ("schedule_ttl", "1h", 10166, "per-message TTL is disabled", "set allow_msg_ttl .* or "
                                                                         "schedule_ttl"),
            ("schedule_source", "<s>.due", 10203, "message schedules source is invalid", "column schedule_source "),
            ("schedule_source", "<s>.2", 10203, "message schedules source is invalid", "column schedule_source must"),
            ("schedule_source", "<s>.*", 10203, "message schedules source is invalid", "column schedule_source must"),
            ("schedule_source", "no.x", 10203, "message schedules source is invalid", "column schedule_source must"),
            ("schedule_time_zone", "Mars/Olympus", 10223, "message schedules time zone is invalid",
                                                          "column schedule_time_zone takes"),
            ("schedule_time_zone", "Europe/Berlin", 10189, "message schedules pattern is invalid",
                                                           ".* takes neither @at nor @every"),
            ("rollup", "all", 10192, "message schedules invalid rollup", "column rollup must be "
                                                                         "sub or nu"),
        )
    ),
    BadRow(NOTHING, r"maximum messages per subject exceeded \(error 10077\): raise the stream's "
                    r"max_msgs_per_subject",
        10077, config={"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True},
        before=("<s>.2",)),
]  # fmt: skip


def messages_of(s: Stream) -> list[tuple[str, dict[str, list[str]], bytes]]:
    """Subject, headers and payload of all messages of a stream."""
    return [(message.subject, message.headers, message.data) for message in seen(s)]


@pytest.mark.parametrize("bad", BAD_ROWS, ids=name_of)
def test_a_row_that_cannot_be_stored_is_named(
    make: MakeStream, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, bad: BadRow
) -> None:
    """By the error of the task, and by the dead letter if there is a subject for it: all else is
    stored then.
    """
    # Each of these rows gets an answer, however late: the error counts what is stored.
    set_write_timing(monkeypatch, last_answers=60.0)
    failing, s, dead = make(**bad.config), make(**bad.config), make()
    for target in (failing, s):
        target.send(*(Message(filled_in(subject, target), b"before") for subject in bad.before))
    kind, said = refuse("b", failing, bad.columns, bad.options, early=False)
    assert kind == "RowRefused"
    before = re.escape("row 2 of partition 0 cannot be stored at subject ")
    found = re.fullmatch(
        rf"{before}('.*'|\".*\"): (.+); (\d+) rows? of the task (?:is|are) stored", said
    )
    assert found is not None, said
    subject, reason, count = found.groups()
    assert re.fullmatch(filled_in(bad.reason, failing), reason), said
    # A line end shows as two characters in the sentence, and as two blanks in a dead letter.
    assert subject.strip("'").replace("\\r\\n", "  ") == filled_in(bad.subject, failing)
    assert failing.state()["messages"] - len(bad.before) == int(count)
    assert int(count) <= 2

    options = {**bad.options, "deadLetterSubject": f"{dead.subject}.row", "writeId": s.subject}
    write(s, options, bad.columns)
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
    assert re.search(
        rf"write {s.subject}: 2 of 3 rows stored, 1 dead letters?, {s.name} \d+ to \d+;",
        caplog.text,
    )

    write(s, options, bad.columns)
    assert len(messages_of(dead)) == 1
    assert len(messages_of(s)) == len(bad.before) + 2


def test_a_row_that_is_larger_than_the_account_may_send_is_named() -> None:
    """The server tells the limit of the account after the login, and closes the connection for a
    larger message.
    """
    limits = "jetstream: enabled, limits { max_payload: 8192 }, users: [{ user: ann, password: a }]"
    config = f"accounts {{ A {{ {limits} }} }}\nno_auth_user: ann"
    with NatsServer(config=config) as server, Publisher(server.url) as publisher:
        s = Stream(server.url, "SMALL", publisher)
        options = {"servers": server.url, **QUICK}
        frame = batch(
            data=[b"x" * size for size in (1, 9000, 3)],
            subject=[f"small.{number}" for number in (1, 2, 3)],
        )
        with pytest.raises(
            RowRefused, match=r"row 2 .*'small\.2': .* the server takes 8192 \(max_payload\)"
        ):
            store(writer_of("b", options, frame.schema), [frame])
        s.purge()
        store(writer_of("b", {**options, "deadLetterSubject": "small.dead"}, frame.schema), [frame])
        assert {subject for subject, _, _ in messages_of(s)} == {"small.1", "small.3", "small.dead"}
        close_all()


def test_a_row_that_is_larger_than_the_account_may_keep_is_named() -> None:
    """The account has room for other rows."""
    limits = "jetstream: { max_file: 100k }, users: [{ user: ann, password: a }]"
    config = f"accounts {{ A {{ {limits} }} }}\nno_auth_user: ann"
    with NatsServer(config=config) as server, Publisher(server.url) as publisher:
        s = Stream(server.url, "SMALL", publisher)
        s.fill(1)
        options = {"servers": server.url, **QUICK}
        sizes, subjects = (1, 200_000, 3), [f"small.{number}" for number in (1, 2, 3)]
        frame = batch(data=[b"x" * size for size in sizes], subject=subjects)
        said = (
            r"row 2 .*'small\.2': resource limits exceeded for account \(error 10002\): it takes "
            r"200,\d\d\d bytes in stream SMALL, and the account keeps 100,000 at most"
        )
        with pytest.raises(RowRefused, match=said):
            store(writer_of("b", options, frame.schema), [frame])
        close_all()


def test_a_row_that_no_file_store_keeps_becomes_a_dead_letter_that_it_keeps() -> None:
    most = 32 * 1024 * 1024
    with NatsServer(max_payload=most + 8192) as server, Publisher(server.url) as publisher:
        s = Stream(server.url, "LARGE", publisher)
        options = {"servers": server.url, **QUICK, "deadLetterSubject": "large.dead"}
        frame = batch(data=[b"1", b"x" * most, b"3"], subject=["large.1", "large.2", "large.3"])
        store(writer_of("b", options, frame.schema), [frame])
        subjects = {subject: (headers, data) for subject, headers, data in messages_of(s)}
        assert subjects.keys() == {"large.1", "large.3", "large.dead"}
        headers, data = subjects["large.dead"]
        assert headers["Dead-Letter-Reason"] == [
            "message too large (error 10077): a stream with file storage keeps no message of more "
            "than 32 MiB: make the row smaller, or write to a stream with memory storage"
        ]
        assert headers["Dead-Letter-Size"] == [str(most)]
        assert most - 8192 < len(data) < most
        close_all()


# What fails the task: no row is to blame.

WHOLE = [
    Case("bs", "RowRefused",
        rf"{ROW} 3 {AT} '<s>.3': maximum messages exceeded \(error 10077\): {TOO_MANY}; 2 rows "
        rf"{STORED}",
        config={"max_msgs": 2, "discard": "new"}),
    Case("b", "RowRefused",
        rf"{ROW} 3 {AT} '<s>.3': maximum bytes exceeded \(error 10077\): {TOO_MANY}; 2 rows .*",
        {"delivery": "at-least-once"}, {"max_bytes": 100, "discard": "new"}),
    Case("bs", "RowRefused", f"{ROW} 1 {AT} '<s>.secret': {DENIED}; 0 rows {STORED}",
        {"user": "writer", "stream": "<N>", "subject": "<s>.secret"}),
    Case("b", "RowRefused", rf"{ROW} 1 {AT} '<s>.1': {NO_ACK}; 0 rows {STORED}", {"ackTimeout": "200ms"},
        {"no_ack": True}),
    Case("b", "RowRefused",
        rf"{ROW} 1 {AT} '<s>.1': invalid operation on sealed stream \(error 10109\).*; 0 rows "
        rf"{STORED}",
        config={"sealed": True}),
    Case("b", "DeliveryError", f"{UNFIT} has workqueue retention, {INSTEAD}", ONCE, {"retention": "workqueue"}),
    Case("b", "DeliveryError", rf"{UNFIT} acknowledges rows before .* \(persist_mode async\), "
                               rf"{INSTEAD}", ONCE,
        {"persist_mode": "async"}),
    *(
        Case("bs", "RowRefused",
            rf"{ROW} 2 {AT} '<s>.2': column headers holds {name}, on which the server would act: "
            rf"{f'use column {column} instead' if column else 'remove it from there'}; {ACTS}; 0 "
            rf"rows {STORED}",
            columns={"headers": [{"A": "x"}, {"B": "y", name: value}, {"Nats-Rollup": "all"}]})
        for name, (value, column) in COMMANDS.items()
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", WHOLE, ids=name_of)
def test_the_whole_task_fails_although_there_are_dead_letters(make: MakeStream, case: Case) -> None:
    s, dead = make(**case.config), make()
    options = {**case.options, "deadLetterSubject": f"{dead.subject}.row"}
    for mode in case.modes:
        kind, said = refuse(mode, s, case.columns, options, early=False)
        assert kind == case.kind, said
        assert re.fullmatch(filled_in(case.sentence, s), said), said
        if s.state()["messages"]:
            s.purge()
    assert messages_of(dead) == []


def test_a_server_that_cannot_write(tmp_path: Path) -> None:
    """Its files may not grow, as on a full disk: it stays silent about rows, and answers requests."""
    limited = tmp_path / "nats-server"
    limited.write_text(f'#!/bin/sh\nulimit -f 100\nexec "{find_server_binary()}" "$@"\n')
    limited.chmod(0o755)
    with NatsServer(binary=limited) as server, Publisher(server.url) as publisher:
        s = Stream(server.url, "FULL", publisher)
        Stream(server.url, "OBJ_full", publisher, subjects=["$O.full.>"], allow_rollup_hdrs=True)
        options = {"servers": server.url, **QUICK, "ackTimeout": "3s", "maxRetries": "1"}
        rows = batch(data=[b"x" * 20_000] * 20, subject=["full.a"] * 20)
        with pytest.raises(RowRefused) as refused:
            store(writer_of("b", options, rows.schema), [rows])
        assert "no_ack" not in str(refused.value)
        kept = s.state()["messages"]
        assert (
            f"stream FULL answers requests and stores nothing (its last message is {kept}): its "
            "server" in str(refused.value)
        )
        objects = batch(name=["a"], content=[b"x" * 400_000])
        with pytest.raises(
            RowRefused,
            match=r"stream OBJ_full answers requests and stores nothing .* \(a full disk",
        ):
            store(writer_of("b", options | {"objectBucket": "full"}, objects.schema), [objects])
        assert "critical write error" in server.log
        close_all()


def test_a_server_that_knows_no_ttl(make: MakeStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would store the rows for good."""
    monkeypatch.setattr(Connection, "server_version", (2, 10, 29))
    s = make()
    for mode in "bs":
        for names, options in (("data subject ttl", HERE), ("key value ttl", {"bucket": "prices"})):
            columns = pa.schema([(name, pa.string()) for name in names.split()])
            with pytest.raises(
                SchemaError,
                match=r'column "ttl" needs nats-server 2\.11, and this one is 2\.10\.29',
            ):
                writer_of(mode, settings(s, options), columns)


@pytest.mark.parametrize("column", ["schedule_time_zone", "schedule_source", "schedule_rollup"])
def test_a_server_that_ignores_settings_of_schedules(
    make: MakeStream, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    """It would store the rows with other schedules."""
    monkeypatch.setattr(Connection, "server_version", (2, 12, 8))
    s = make(**SCHEDULES)
    names = ("data", "subject", "schedule", "schedule_target", column)
    columns = pa.schema([(name, pa.string()) for name in names])
    for mode in "bs":
        with pytest.raises(
            SchemaError,
            match=rf'column "{column}" needs nats-server 2\.14, and this one is 2\.12\.8',
        ):
            writer_of(mode, settings(s, HERE), columns)


def test_columns_without_a_value_need_nothing_of_stream_and_server(
    make: MakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's type of `lit(None)` is void, and Arrow's null."""
    monkeypatch.setattr(Connection, "server_version", (2, 10, 29))
    for empty in (["ttl", "rollup", "schedule", "schedule_target"], ["incr"], ["atomic_group"]):
        for mode in "bs":
            s = make()
            given = dict.fromkeys(empty, pa.nulls(2))
            rows = batch(data=["x", "y"], subject=[f"{s.subject}.a"] * 2, **given)
            store(writer_of(mode, settings(s, {}), rows.schema), [rows])
            assert s.state()["messages"] == 2


def test_the_first_row_at_a_subject_that_is_denied_is_named_and_the_others_are_stored(
    make: MakeStream,
) -> None:
    s = make()
    subjects = ["<s>.secret" if number in (11, 20, 30) else "<s>.a" for number in range(1, 1001)]
    columns = {"data": ["x"] * 1000, "subject": subjects}
    left, held = 997, list[bytes]()

    def denials_last(frame: bytes) -> bytes:
        """The other rows have their answers first: those of denied rows never come, so nobody waits
        long for any.
        """
        nonlocal left
        if left and frame.startswith(b"-ERR"):
            held.append(frame)
            return b""
        left -= is_answer(frame)
        if left or not held:
            return frame
        out = b"".join((frame, *held))
        held.clear()
        return out

    with WireProxy(s.url) as proxy:
        proxy.drop(denials_last)
        options = {
            "servers": proxy.url,
            "user": "writer",
            "delivery": "at-least-once",
            "ackTimeout": "1m",
        }
        refused = refuse("b", s, columns, options, early=False)
        close_all()
    assert refused == (
        "RowRefused",
        f"{ROW} 11 {AT} '{s.subject}.secret': {DENIED}; 997 rows {STORED}",
    )
    assert s.state()["messages"] == 997


def test_a_user_who_may_only_publish(make: MakeStream, caplog: pytest.LogCaptureFixture) -> None:
    """A stream that the user may not look up is not checked before writing: its answers to the rows
    tell.
    """
    s = make()
    for options in ({}, HERE, {"subject": "<s>.x", "stream": "<N>"}, {"subject": "<s>.x"}):
        write(s, {"user": "blind", **options})
    assert s.state()["messages"] == 12
    assert "not checked before writing" in caplog.text
    kind, said = refuse(
        "b", s, at("nowhere.x"), {"user": "blind", "retryTimeout": "500ms"}, early=False
    )
    assert kind == "RowRefused"
    assert said.startswith(
        "row 2 of partition 0 cannot be stored at subject 'nowhere.x': no stream captures this subj"
    )


# Warnings.

SHORT = (
    "remembers message ids for 1 s (duplicate_window), less than the 2 s for which a row may be "
    "sent again (options retryTimeout, ackTimeout); after an outage a row may be stored twice; "
    "make the window longer, or set delivery to exactly-once"
)


@pytest.mark.parametrize("mode", ["b", "s"])
def test_an_election_at_the_start_ends_no_query(
    make: MakeStream, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    """Nobody can show the streams for longer than connecting may take; the rows wait as long as an
    outage may last.
    """
    s = make()
    error = {
        "code": 503,
        "err_code": 10008,
        "description": "JetStream system temporarily unavailable",
    }

    def leaderless(frame: bytes) -> bytes:
        shown = re.search(rb"io\.nats\.jetstream\.api\.v1\.stream_(info|names)_response", frame)
        return (
            answer(frame, json.dumps({"type": shown[0].decode(), "error": error}).encode())
            if shown
            else frame
        )

    frame = rows(s)
    with WireProxy(s.url) as proxy:
        proxy.drop(leaderless)
        options = settings(s, {**HERE, "deadLetterSubject": "<s>.dead", "connectTimeout": "300ms"})
        given = {**options, "servers": proxy.url}
        # The process has its connection, which a busy machine may not make in that time.
        connect(SinkOptions.from_spark(given, streaming=True).connection, patience=60)
        store(writer_of(mode, given, frame.schema), [frame])
        close_all()
    assert s.state()["messages"] == 3
    assert "not checked before writing: cannot read stream" in caplog.text


def test_a_short_duplicate_window_is_warned_of(
    make: MakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    s = make(duplicate_window=1_000_000_000)
    for options in (HERE, {"subject": "<s>.x"}):
        write(s, {**options, "ackTimeout": "1500ms", "maxRetries": "20"})
    assert caplog.text.count(f"stream {s.name} {SHORT}") == 2
    write(make(), HERE)
    for delivery in ("at-least-once", "exactly-once"):
        write(s, {"stream": "<N>", "delivery": delivery})
    assert caplog.text.count("remembers message ids") == 2


def test_micro_batches_further_apart_than_the_duplicate_window_are_warned_of(
    make: MakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    window_ns = 100_000_000
    s = make(duplicate_window=window_ns)
    frame = rows(s)
    for number in range(3):
        store(writer_of("s", settings(s, {}), frame.schema), [frame], number)
        wait_until(lambda: s.last_age() > window_ns, "the duplicate window has passed")
    window = (
        rf"micro-batches are [\d.]+ s apart, and stream {s.name} remembers message ids for 0.1 s "
        r"\(duplicate_window\)"
    )
    assert len(re.findall(window, caplog.text)) == 1


def test_a_stream_that_acknowledges_too_early_is_warned_of_once(
    make: MakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    s = make(persist_mode="async")
    for options in (HERE, {"subject": "<s>.x"}):
        write(s, options)
    early = "acknowledges rows before it has stored them (persist_mode async)"
    assert caplog.text.count(f"stream {s.name} {early}") == 1
    Stream(
        s.url,
        "KV_early",
        s.publisher,
        subjects=["$KV.early.>"],
        persist_mode="async",
        allow_rollup_hdrs=True,
    )
    Stream(
        s.url,
        "OBJ_early",
        s.publisher,
        subjects=["$O.early.>"],
        persist_mode="async",
        allow_rollup_hdrs=True,
    )
    options = {"servers": s.url, "user": "ann", "password": PASSWORD}
    writer_of("b", {**options, "bucket": "early"}, batch(key=["a"], value=[b"x"]).schema)
    writer_of("b", {**options, "objectBucket": "early"}, batch(name=["a"], content=[b"x"]).schema)
    assert [f"stream {name} {early}" in caplog.text for name in ("KV_early", "OBJ_early")] == [
        True,
        True,
    ]


def test_a_stream_that_acknowledges_and_drops_is_warned_of(
    make: MakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    s = make(retention="interest")
    dropping = (
        f"stream {s.name} keeps messages only for its consumers (retention interest) and has none"
    )
    for _ in range(2):
        write(s, HERE)
    assert (s.state()["messages"], caplog.text.count(dropping)) == (0, 1)
    held = make(retention="interest")
    config = {"durable_name": "c", "ack_policy": "explicit"}
    held.publisher.api(
        f"CONSUMER.CREATE.{held.name}.c", {"stream_name": held.name, "config": config}
    )
    write(held, HERE)
    assert held.state()["messages"] == 3
    assert f"stream {held.name} keeps messages only" not in caplog.text


@pytest.mark.parametrize(
    ("config", "columns", "said"),
    [
        ({"retention": "workqueue"}, {}, r"when they were acknowledged (retention workqueue)"),
        ({"retention": "interest"}, {}, r"when they were acknowledged (retention interest)"),
        (
            {"max_msgs_per_subject": 3},
            {},
            "when newer ones of their subject come (max_msgs_per_subject 3)",
        ),
        ({"max_age": 10**9, "duplicate_window": 10**9}, {}, ""),
        ({"max_age": 60 * 10**9, "duplicate_window": 60 * 10**9}, {}, ""),
        (
            {"allow_msg_schedules": True, "allow_msg_ttl": True},
            {"schedule": ["@every 1h"], "schedule_target": ["<s>.due"]},
            "of schedules when it has published them",
        ),
        ({"max_msgs": 10}, {}, ""),
    ],
)
def test_a_stream_whose_server_may_forget_ids_is_warned_of(
    make: MakeStream,
    caplog: pytest.LogCaptureFixture,
    config: dict[str, Any],
    columns: dict[str, Any],
    said: str,
) -> None:
    s = make(**config)
    given = {
        name: [value.replace("<s>", s.subject) for value in values]
        for name, values in columns.items()
    }
    schema = batch(data=[b"x"], subject=[f"{s.subject}.a"], **given).schema
    options = {"servers": s.url, "user": "ann", "password": PASSWORD, "stream": s.name}
    for level in ("at-least-once", "deduplicated", "deduplicated"):
        writer_of("b", {**options, "delivery": level}, schema)
    warning = (
        f"stream {s.name} removes messages {said}. Its server forgets their message ids when it "
        "restarts"
    )
    assert caplog.text.count(f"stream {s.name} removes messages") == (1 if said else 0)
    assert not said or warning in caplog.text


def test_a_server_that_restarts_forgets_the_ids_of_removed_messages(
    nats_server_factory: Callable[..., NatsServer],
) -> None:
    """docs/delivery.md says this of it; a server that keeps the ids must not go unnoticed."""
    server = nats_server_factory()
    with Publisher(server.url) as publisher:
        Stream(server.url, "KEPT", publisher)
        Stream(server.url, "LAST", publisher, max_msgs_per_subject=1)
    writers = [
        Sink(server.url, subject=f"{name.lower()}.a", stream=name) for name in ("KEPT", "LAST")
    ]
    rows = batch(data=[b"1", b"2"])
    for sink in writers:
        assert sink.write([rows]).duplicates == 0
    server.stop()
    close_all()
    server.start()
    assert [sink.write([rows]).duplicates for sink in writers] == [2, 1]
    close_all()


def test_a_stream_with_less_room_than_a_message_needs_is_warned_of(
    make: MakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    s = make(max_bytes=1000)
    dropping = (
        f"stream {s.name} keeps 1000 bytes (max_bytes), and takes messages of up to 1048576 bytes: "
        "it acknowledges a row for which it has no room, and drops it"
    )
    for _ in range(2):
        write(s, HERE, {"data": ["x" * 2000] * 3})
    assert (s.state()["messages"], caplog.text.count(dropping)) == (0, 1)
    write(make(max_bytes=1000, max_msg_size=900), HERE)
    write(make(max_bytes=1000, discard="new"), HERE)
    assert caplog.text.count("for which it has no room") == 1


def test_exactly_once_with_a_ledger_that_acknowledges_too_early() -> None:
    with NatsServer() as server, Publisher(server.url) as publisher:
        s = Stream(server.url, "PLAIN", publisher)
        Stream(
            server.url,
            LEDGER,
            publisher,
            subjects=["$KV.spark_jetstream_ledger.>"],
            persist_mode="async",
        )
        options = {"servers": server.url, "stream": s.name, **ONCE}
        with pytest.raises(
            DeliveryError, match=f"the ledger .*, stream {LEDGER}, has persist_mode async"
        ):
            writer_of("s", options, batch(data=[b"x"], subject=["plain.a"]).schema)
        close_all()


def test_exactly_once_names_the_command_for_a_ledger_where_streams_need_limits() -> None:
    """And takes the bucket that this command makes, for a batch write and for a query."""
    limits = "jetstream: { max_file: 1g, max_bytes_required: true }"
    users = "users: [{ user: ann, password: a }]"
    config = f"accounts {{ A {{ {limits}, {users} }} }}\nno_auth_user: ann"
    with NatsServer(config=config) as server, Publisher(server.url) as publisher:
        s = Stream(server.url, "PLAIN", publisher, max_bytes=1 << 20)
        options = {"servers": server.url, "stream": s.name, **ONCE}
        row = batch(data=[b"x"], subject=["plain.a"])
        with pytest.raises(DeliveryError) as raised:
            writer_of("b", options, row.schema)
        command = "kv add spark_jetstream_ledger --replicas 1 --limit-marker-ttl 1s --max-bytes 64m"
        assert str(raised.value) == (
            "cannot make the ledger of delivery exactly-once, the Key-Value bucket "
            "spark_jetstream_ledger: account requires a stream config to have max bytes set (code "
            f"400, error 10113); make it beforehand (spark-jetstream {command}), or set delivery "
            "to deduplicated"
        )
        succeed(*command.split(), url=server.url)
        for mode in "bs":
            store(writer_of(mode, options, row.schema), [row])
        assert s.state()["messages"] == 2
        assert publisher.api(f"STREAM.INFO.{LEDGER}")["state"]["messages"] > 0
        close_all()


FORGETS = "forgets what was noted after its max_age"
DROPS = "drops the oldest entries"
#: Settings with which a ledger that was made by hand would lose entries, and the change that helps.
UNFIT_LEDGERS = {
    "it expires": ({"max_age": 3_600_000_000_000}, FORGETS, "--max-age 0"),
    "it drops bytes": ({"max_bytes": 1 << 20, "discard": "old"}, DROPS, "--discard new"),
    "it drops messages": ({"max_msgs": 1000, "discard": "old"}, DROPS, "--discard new"),
}


@pytest.mark.parametrize(("config", "said", "change"), UNFIT_LEDGERS.values(), ids=UNFIT_LEDGERS)
def test_exactly_once_refuses_a_ledger_that_loses_entries(
    config: Mapping[str, Any],
    said: str,
    change: str,
) -> None:
    with NatsServer() as server, Publisher(server.url) as publisher:
        s = Stream(server.url, "PLAIN", publisher)
        publisher.api(f"STREAM.CREATE.{LEDGER}", {**bucket_config(1), **config})
        options = {"servers": server.url, "stream": s.name, **ONCE}
        row = batch(data=[b"x"], subject=["plain.a"])
        mend = f"spark-jetstream stream edit {LEDGER} {change}"
        for mode in "bs":
            with pytest.raises(DeliveryError, match=rf"stream {LEDGER}, {said}.*: .* \({mend}\)"):
                writer_of(mode, options, row.schema)
        succeed(*mend.split()[1:], "--force", url=server.url)
        store(writer_of("b", options, row.schema), [row])
        assert s.state()["messages"] == 1
        close_all()


def test_exactly_once_with_a_ledger_whose_entries_cannot_expire(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of a server before 2.11, or made by hand: the entries of a query do not expire, those of a
    batch write do.
    """
    with NatsServer() as server, Publisher(server.url) as publisher:
        s = Stream(server.url, "PLAIN", publisher)
        publisher.api(f"STREAM.CREATE.{LEDGER}", {**bucket_config(1), "allow_msg_ttl": False})
        options = {"servers": server.url, "stream": s.name, **ONCE}
        row = batch(data=[b"x"], subject=["plain.a"])
        store(writer_of("s", options, row.schema), [row])
        mend = f"spark-jetstream stream edit {LEDGER} --allow-msg-ttl"
        with pytest.raises(
            DeliveryError, match=rf"stream {LEDGER}, was made without allow_msg_ttl, .* \({mend}\)"
        ):
            writer_of("b", options, row.schema)
        with monkeypatch.context() as old:
            # Such a server takes no notice of a TTL.
            old.setattr(Connection, "server_version", (2, 10, 29))
            writer_of("b", {**options, "maxRetries": "1"}, row.schema)
        succeed(*mend.split()[1:], "--force", url=server.url)
        store(writer_of("b", options, row.schema), [row])
        assert s.state()["messages"] == 2
        close_all()


NO_TTL = "rows are stored without the Nats-TTL of their column headers"


def test_a_lost_ttl_is_one_warning_in_a_batch_write_and_in_a_run_of_a_query(
    make: MakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    s = make(allow_msg_ttl=True)
    headers = {"headers": [{"Nats-TTL": "1h"}] * 3}
    first, second = uuid.uuid4().hex, uuid.uuid4().hex
    for run, warnings in ((first, 1), (first, 1), (second, 2)):
        frame = rows(s, headers)
        options = settings(s, {"delivery": "at-least-once", "ackTimeout": "1m"})
        store(writer_of("s", options, frame.schema), [frame], run=run)
        assert caplog.text.count(NO_TTL) == warnings
    write(s, {}, headers)
    assert caplog.text.count(NO_TTL) == 3
    write(s, {"serverHeaders": "drop"}, headers)
    write(s, {}, headers | {"ttl": ["1h", None, None]})
    assert caplog.text.count(NO_TTL) == 3
    assert s.state()["messages"] == 18


# What Spark alone shows.


def frame_of(spark: SparkSession, s: Stream, *, bad: bool = False) -> DataFrame:
    """The good rows in one partition; `bad`: the second one has no data."""
    data = "if(id = 2, null, concat('row ', id))" if bad else "concat('row ', id)"
    return spark.range(1, 4, 1, 1).selectExpr(
        f"concat('{s.subject}.', id) as subject", f"{data} as data"
    )


def save(frame: DataFrame, s: Stream, options: Mapping[str, str]) -> None:
    frame.write.format("jetstream").options(**settings(s, options)).mode("append").save()


def test_spark_shows_the_error_of_the_driver(
    spark: SparkSession, make: MakeStream, spark_log: SparkLog
) -> None:
    s, group = make(), f"write-{uuid.uuid4()}"
    spark.sparkContext.setJobGroup(group, "")
    with pytest.raises(AnalysisException) as caught:
        save(frame_of(spark, s), s, WRONG_PASSWORD.options)
    # Nothing of it has reached a task.
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup(group)) == 0
    kind, said = refusal(caught.value)
    assert kind == WRONG_PASSWORD.kind, said
    assert re.fullmatch(WRONG_PASSWORD.sentence, said), said
    for secret in (PASSWORD, WRONG):
        assert secret not in str(caught.value)
        assert secret not in spark_log.text
    assert s.state()["messages"] == 0


def test_spark_shows_the_error_of_a_task_and_what_the_driver_logs(
    spark: SparkSession, make: MakeStream, spark_log: SparkLog
) -> None:
    s, dead = make(duplicate_window=1_000_000_000), make()
    with pytest.raises(PythonException) as caught:
        save(frame_of(spark, s, bad=True), s, HERE)
    spark_log.wait_for(
        r"jetstream sink, write \w+ failed; tasks that ended before it did have stored: 0 of 0 rows"
    )
    assert PASSWORD not in str(caught.value)
    stored = s.state()["messages"]
    kind, said = refusal(caught.value)
    assert kind == "RowRefused"
    assert re.fullmatch(
        rf"row 2 of partition 0 cannot be stored at subject '{s.subject}.2': column data is null; "
        rf"{stored} rows? of "
        "the task (?:is|are) stored",
        said,
    ), said
    # A row that is sent again after a second is stored twice.
    options = {
        "stream": "<N>",
        "deadLetterSubject": f"{dead.subject}.row",
        "writeId": s.subject,
        "ackTimeout": "1m",
    }
    save(frame_of(spark, s, bad=True), s, options)
    assert len(messages_of(s)) == stored + 2
    assert messages_of(dead)[0][1]["Dead-Letter-Subject"] == [f"{s.subject}.2"]
    spark_log.wait_for(
        rf"write {s.subject}: 2 of 3 rows stored, 1 dead letters?, {s.name} \d+ to \d+;"
    )
    spark_log.wait_for(re.escape(f"stream {s.name} {SHORT}"))
