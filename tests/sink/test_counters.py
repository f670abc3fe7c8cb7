"""Increments of counters (ADR-49): what is published, what is refused, and that each counts once."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_jetstream.client.connection import Connection
from spark_jetstream.errors import DeliveryError, OptionError, RowRefused, SchemaError
from spark_jetstream.sink.columns import SinkColumns
from spark_jetstream.sink.dead_letters import dead_letters
from spark_jetstream.sink.encode import encode
from spark_jetstream.sink.portions import record_batches
from spark_jetstream.sink.rows import RefusedRow
from spark_jetstream.sink.task import WriteTask
from tests.support.calls import writer_of
from tests.support.proxy import WireProxy
from tests.support.publish import Message
from tests.support.sinking import Sink, batch, die, forget, read, read_rows, seen
from tests.support.streams import MakeStream, Stream

pytestmark = pytest.mark.usefixtures("no_connection_left", "quick_ledger")

COUNTS: dict[str, Any] = {"allow_msg_counter": True}
QUARTER = 250_000_000  # ns
LEVELS = ["at-least-once", "deduplicated", "exactly-once"]
WHOLE_TYPES = ["string", "tinyint", "smallint", "int", "bigint", "decimal(1,0)", "decimal(38,0)"]


def values(s: Stream) -> dict[str, str]:
    """The counters by the last tokens of their subjects, as the server has them."""
    return {
        message.subject.rpartition(".")[2]: json.loads(message.data)["val"] for message in seen(s)
    }


def ones(s: Stream, first: int, count: int) -> pa.RecordBatch:
    """Increments of 1 at two subjects in turn, told apart by a header."""
    numbers = range(first, first + count)
    subjects = [f"{s.subject}.{'ab'[number % 2]}" for number in numbers]
    headers = [[("Row", [str(number)])] for number in numbers]
    return batch(subject=subjects, incr=["1"] * count, headers=headers)


def task(s: Stream, number: int = 1) -> WriteTask:
    """A task of a write of this stream's own: the ledger is shared."""
    return WriteTask(s.name, number, 0)


def later(s: Stream) -> None:
    """Wait until the stream has forgotten all message ids."""
    forget(s.publisher, s.name, s.subject, ("Nats-Incr", "1"))


@pytest.fixture
def s(stream: MakeStream) -> Stream:
    return stream(storage="memory", **COUNTS)


@pytest.fixture
def forgetful(stream: MakeStream) -> Stream:
    """A stream that soon forgets message ids."""
    return stream(storage="memory", duplicate_window=QUARTER, **COUNTS)


# -- columns and rows --


@pytest.mark.parametrize("kind", WHOLE_TYPES)
def test_a_column_of_any_whole_type(kind: str) -> None:
    columns = SinkColumns.check([("subject", "string"), ("incr", kind)])
    assert columns.names == ("subject", "incr")


@pytest.mark.parametrize("kind", ["double", "decimal(38,1)", "binary", "boolean"])
def test_a_column_of_another_type_is_an_error(kind: str) -> None:
    said = (
        f'column "incr" is of type {kind}, but must be string or tinyint or smallint or int or '
        "bigint or decimal(p,0)"
    )
    with pytest.raises(SchemaError, match=re.escape(said)):
        SinkColumns.check([("subject", "string"), ("incr", kind)])


def test_data_is_needed_without_increments() -> None:
    with pytest.raises(SchemaError, match='the DataFrame has no column "data"'):
        SinkColumns.check([("subject", "string")])
    with pytest.raises(SchemaError, match='the DataFrame has no column "subject"'):
        SinkColumns.check([("incr", "int")])


def test_the_header_is_the_first_line() -> None:
    headers = [[("A", ["1"])], None, [("Nats-Incr", ["9"])]]
    found = read_rows(
        subject=["c.a"] * 3, incr=["+5", "-003", None], headers=headers, data=[None, b"", b"x"]
    )
    assert found.faults == {}
    assert found.lines.to_pylist() == [b"Nats-Incr: +5\r\nA: 1\r\n", b"Nats-Incr: -003\r\n", b""]
    assert found.data.to_pylist() == [b"", b"", b"x"]


@pytest.mark.parametrize(
    ("kind", "given", "sent"),
    [
        (pa.int8(), -128, b"-128"),
        (pa.int64(), 2**63 - 1, b"9223372036854775807"),
        (pa.decimal128(38, 0), Decimal(-(10**38) + 1), b"-" + b"9" * 38),
        (pa.string(), "+" + "9" * 100, b"+" + b"9" * 100),
    ],
)
def test_a_number_of_any_size(kind: pa.DataType, given: Any, sent: bytes) -> None:
    found = read_rows("c.a", incr=pa.array([given, None], kind), data=[None, b""])
    assert found.lines.to_pylist() == [b"Nats-Incr: " + sent + b"\r\n", b""]
    assert found.faults == {}


@pytest.mark.parametrize("kind", WHOLE_TYPES)
def test_rows_of_python_that_older_releases_of_spark_hand_over(kind: str) -> None:
    one = "7" if kind == "string" else Decimal(7) if kind.startswith("decimal") else 7
    for values in ([one, None], [None, None]):
        given = [("c.a", value, b"") for value in values]
        [made] = record_batches(given, [("subject", "string"), ("incr", kind), ("data", "binary")])
        assert read(made).lines.to_pylist() == [
            b"Nats-Incr: 7\r\n" if value else b"" for value in values
        ]


@pytest.mark.parametrize(
    "text",
    ["", "+", "1\n", "1.5", "1e3", " 1", "1 ", "0x1", "1_000", "++1", "٣", "1\r\nNats-Rollup: all"],
)
def test_no_integer(text: str) -> None:
    found = read_rows("c.a", incr=["1", text])
    assert found.faults == {1: f"column incr is {text!r}, which is no integer"}
    assert found.lines.to_pylist() == [b"Nats-Incr: 1\r\n", b""]


def test_an_increment_with_data_ttl_expectation_or_rollup_is_a_fault() -> None:
    found = read_rows(
        "c.a",
        incr=["1", "1", "1", "1", "1", None, None],
        data=[b"x", None, b"", b"", b"", None, b"x"],
        ttl=[None, "5s", None, None, None, None, "5s"],
        expected_last_subject_sequence=[None, None, 0, None, None, None, 7],
        rollup=[None, None, None, "sub", None, None, "sub"],
    )
    assert found.faults == {
        **{
            row: f"it has column incr and column {name}: an increment of a counter can have no "
            f"{name}"
            for row, name in enumerate(["data", "ttl", "expected_last_subject_sequence", "rollup"])
        },
        5: "columns data and incr are null",
    }


def test_a_dead_letter_keeps_the_increment() -> None:
    found = read_rows("c.a", incr=["-7"], headers=[[("A", ["1"])]])
    letters, _ = dead_letters([RefusedRow(found, 0, None, "why", 10168)], "dead", 1 << 20, None)
    assert letters.lines.to_pylist() == [
        b"A: 1\r\nDead-Letter-Subject: c.a\r\nDead-Letter-Reason: why\r\nDead-Letter-Error-Code: 10168\r\n"
        b"Dead-Letter-Incr: -7\r\n"
    ]


@pytest.mark.parametrize("text", ["1.5", "1" + "x" * 900, "one\nNats-Rollup: all"])
def test_a_dead_letter_keeps_a_text_that_is_no_increment(text: str) -> None:
    found = read_rows("c.a", incr=["5", text]).take(np.array([1]))
    refused = RefusedRow(found, 0, None, found.faults[0], 0)
    letters, _ = dead_letters([refused], "dead", 1 << 20, None)
    (lines,) = letters.lines.to_pylist()
    assert lines.endswith(b"\r\nDead-Letter-Incr: %b\r\n" % text.replace("\n", " ").encode())


# -- with a server --


@pytest.mark.parametrize("delivery", LEVELS)
@pytest.mark.parametrize("named", [False, True])
def test_each_row_counts_once(s: Stream, delivery: str, named: bool) -> None:
    sink = Sink(
        s.url, delivery=delivery, maxInFlight=1000, **({"stream": s.name} if named else {})
    ).started()
    # The first rows show where the others go, which then share reply subjects.
    report = sink.write([ones(s, first, 500) for first in range(0, 2000, 500)], task(s))
    assert (report.stored, report.duplicates) == (2000, 0)
    more = batch(subject=[f"{s.subject}.a", f"{s.subject}.c"], incr=["-3", "+" + "9" * 50])
    assert sink.write([more], task(s, 2)).stored == 2
    assert values(s) == {"a": "997", "b": "1000", "c": "9" * 50}
    assert not any(b"Nats-Expected" in message.block for message in seen(s))


@pytest.mark.parametrize("delivery", ["deduplicated", "exactly-once"])
def test_a_task_that_runs_again(request: pytest.FixtureRequest, delivery: str) -> None:
    s: Stream = request.getfixturevalue("forgetful" if delivery == "exactly-once" else "s")
    sink = Sink(s.url, delivery=delivery).started()
    die(sink, s, ones(s, 0, 100), task=task(s), names=["subject", "incr", "headers"])
    if delivery == "exactly-once":
        # The server keeps the id of an increment among its headers, where the ledger finds it.
        later(s)
    for known in (100, 160):
        report = sink.write([ones(s, 0, 100), ones(s, 100, 60)], task(s))
        assert (report.stored, report.duplicates) == (160, known)
    assert values(s) == {"a": "80", "b": "80"}


def test_exactly_once_when_answers_are_lost_for_longer_than_ids_last(
    forgetful: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    s = forgetful
    caplog.set_level("INFO")
    with WireProxy(s.url) as proxy:
        sink = Sink(proxy.url, delivery="exactly-once", ackTimeout="1s", maxRetries=100).started()
        proxy.drop_frames(f'{{"stream":"{s.name}","seq":'.encode(), 5)
        report = sink.write([ones(s, 0, 1000)], task(s))
    assert report.stored == 1000
    assert values(s) == {"a": "500", "b": "500"}
    found = re.findall(r"(\d+) of \d+ rows without an answer are stored", caplog.text)
    assert sum(map(int, found)) >= 5


@pytest.mark.parametrize("payload", [b"x", b""])
@pytest.mark.parametrize("delivery", LEVELS)
def test_a_row_without_an_increment_is_refused_and_the_others_count_once(
    s: Stream, stream: MakeStream, delivery: str, payload: bytes
) -> None:
    # Its refusal is an answer to rows that share a reply subject, so the sink has to find out which
    # are stored.
    dead = stream(storage="memory")
    sink = Sink(
        s.url, delivery=delivery, maxInFlight=1000, deadLetterSubject=f"{dead.subject}.a"
    ).started()
    subjects = [f"{s.subject}.{'ab'[number % 2]}" for number in range(2500)]
    increments: list[str | None] = ["1"] * 2500
    increments[2200] = None
    payloads = [None if increment else payload for increment in increments]
    report = sink.write([batch(subject=subjects, incr=increments, data=payloads)], task(s))
    assert (report.stored, report.dead_letters) == (2499, 1)
    assert values(s) == {"a": "1249", "b": "1250"}
    [letter] = seen(dead)
    assert letter.data == payload
    assert letter.headers["Dead-Letter-Reason"] == [
        "message counter increment is missing (error 10169): the stream holds counters "
        "(allow_msg_counter): give each row a value in column incr"
    ]


def test_an_increment_for_a_stream_without_counters(stream: MakeStream) -> None:
    plain = stream(storage="memory")
    with pytest.raises(
        RowRefused, match=r"error 10168\): counters need a stream made with allow_msg_counter"
    ) as refused:
        Sink(plain.url, delivery="at-least-once").write([ones(plain, 0, 1)], task(plain))
    assert refused.value.err_code == 10168
    assert seen(plain) == []


def test_a_write_that_names_such_a_stream_fails_at_its_start(stream: MakeStream) -> None:
    plain = stream(storage="memory")
    columns = pa.schema({"subject": pa.string(), "incr": pa.int64()})
    said = (
        f'option stream: {plain.name} refuses column "incr": it was made without allow_msg_counter'
    )
    for given in ({"stream": plain.name}, {"subject": f"{plain.subject}.a"}):
        with pytest.raises(OptionError, match=said):
            writer_of("b", {"servers": plain.url, **given}, columns)


def test_an_increment_that_another_stream_has_counted_fails_the_task(
    s: Stream, stream: MakeStream
) -> None:
    other = stream(storage="memory", **COUNTS)
    with pytest.raises(RowRefused, match=f"stream {s.name} stored it, not {other.name} "):
        Sink(s.url, stream=other.name).write([ones(s, 0, 1)], task(s))


def test_a_broken_counter(s: Stream) -> None:
    s.publisher.publish(
        [Message(f"{s.subject}.a", headers=[("Nats-Incr", "1"), ("Nats-Counter-Sources", "{")])]
    )
    with pytest.raises(
        RowRefused, match=r"error 10172\): the last message on this subject is broken: delete it"
    ):
        Sink(s.url).write([ones(s, 0, 1)], task(s))
    s.remove(1)
    assert Sink(s.url).write([ones(s, 0, 1)], task(s, 2)).stored == 1
    assert values(s) == {"a": "1"}


def test_exactly_once_refuses_a_stream_that_keeps_the_last_value_only(stream: MakeStream) -> None:
    s = stream(storage="memory", max_msgs_per_subject=1, **COUNTS)
    with pytest.raises(DeliveryError, match="keeps few messages of each subject"):
        Sink(s.url, delivery="exactly-once").started().write([ones(s, 0, 2)], task(s))
    assert seen(s) == []


def test_a_server_that_has_no_counters(s: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "server_version", (2, 11, 9))
    columns = pa.schema({"subject": pa.string(), "incr": pa.int64()})
    for mode in "bs":
        with pytest.raises(
            SchemaError, match=r'column "incr" needs nats-server 2\.12, and this one is 2\.11\.9'
        ):
            writer_of(mode, {"servers": s.url}, columns)
        writer_of(
            mode, {"servers": s.url}, pa.schema({"subject": pa.string(), "data": pa.string()})
        )


@pytest.mark.parametrize("ids", [None, pa.array([b"1", b"2", None, None], pa.binary())])
def test_an_increment_does_not_name_the_stream(ids: pa.BinaryArray | None) -> None:
    found = read_rows("c.a", incr=["1", None, "1", None], data=[None, b"x", None, b"y"])
    named = encode(found, ids, "S", inbox="_INBOX.x", first_number=1)
    blocks = [bytes(named.frames(at, at + 1)).partition(b"NATS/1.0\r\n")[2] for at in range(4)]
    expected, counting = b"Nats-Expected-Stream: S\r\n", b"Nats-Incr: 1\r\n"
    first, second = (b"", b"") if ids is None else (b"Nats-Msg-Id: 1\r\n", b"Nats-Msg-Id: 2\r\n")
    assert blocks == [
        first + counting + b"\r\n\r\n",
        expected + second + b"\r\nx\r\n",
        counting + b"\r\n\r\n",
        expected + b"\r\ny\r\n",
    ]
