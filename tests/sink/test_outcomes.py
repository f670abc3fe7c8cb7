"""The outcome of rows: what a refusal means, dead letters, and the counts that are reported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from spark_jetstream.protocol.pub_ack import Outcome, Refusal, outcome
from spark_jetstream.sink.dead_letters import dead_letters
from spark_jetstream.sink.encode import encode
from spark_jetstream.sink.message_ids import MessageIds, WriteTask
from spark_jetstream.sink.report import BatchReport, TaskReport
from spark_jetstream.sink.rows import RefusedRow
from spark_jetstream.sink.target import Target
from tests.support.sinking import batch, read, read_rows

INBOX = "_INBOX.abcdef.7"

# -- what refusals mean --

#: All that nats-server 2.15 answers a publish with (server/stream.go, server/jetstream_batching.go
#: and server/jetstream_cluster.go), statuses of connections, and answers of other servers.
MEANINGS: list[tuple[int, int, str, Outcome, str]] = [
    (503, 0, "", Outcome.RETRY, "no stream captures this subject"),
    (429, 0, "Too Many Requests", Outcome.RETRY, "status 429 Too Many Requests"),
    (412, 0, "Required Api Level", Outcome.FAIL, "status 412 Required Api Level"),
    (400, 10070, "wrong last msg ID: x", Outcome.REFUSED, "wrong last msg ID: x"),
    (400, 10071, "wrong last sequence: 3", Outcome.LOOK, "column expected_last_subject_sequence"),
    (
        503,
        10077,
        "maximum messages per subject exceeded",
        Outcome.LOOK,
        "raise the stream's max_msgs_per_subject",
    ),
    (503, 10077, "maximum messages exceeded", Outcome.RETRY, "the stream is full and discards wha"),
    (503, 10077, "maximum bytes exceeded", Outcome.RETRY, "the stream is full and discards what i"),
    (503, 10077, "message too large", Outcome.REFUSED, "keeps no message of more than 32 MiB: mak"),
    (503, 10077, "store is closed", Outcome.RETRY, "store is closed (error 10077)"),
    (400, 10054, "message size exceeds maximum allowed", Outcome.REFUSED, "max_msg_size"),
    (400, 10060, "expected stream does not match", Outcome.REFUSED, "option stream"),
    (503, 10063, "expected stream sequence does not match", Outcome.FAIL, "does not match"),
    (400, 10097, "header size exceeds maximum allowed of 64k", Outcome.REFUSED, "make column head"),
    (400, 10109, "invalid operation on sealed stream", Outcome.FAIL, "write to another one"),
    (400, 10120, "no JetStream default or applicable tiered limit present", Outcome.FAIL, "no Jet"),
    (500, 10023, "insufficient resources", Outcome.RETRY, "raise the limits"),
    (500, 10028, "insufficient memory resources available", Outcome.RETRY, "raise the limits"),
    (500, 10009, "JetStream cluster can not handle request", Outcome.RETRY, "can not handle"),
    (503, 10163, "expected last sequence per subject temporarily unavailable", Outcome.RETRY, "te"),
    (400, 10165, "invalid per-message TTL", Outcome.REFUSED, "at least one second"),
    (400, 10166, "per-message TTL is disabled", Outcome.REFUSED, "set allow_msg_ttl"),
    (429, 10167, "too many requests", Outcome.RETRY, "too many requests"),
    (400, 10168, "message counters is disabled", Outcome.REFUSED, "allow_msg_counter"),
    (400, 10169, "message counter increment is missing", Outcome.REFUSED, "a value in column incr"),
    (400, 10172, "message counter is broken", Outcome.REFUSED, "delete it"),
    (400, 10174, "atomic publish is disabled", Outcome.REFUSED, "without allow_atomic"),
    (400, 10175, "atomic publish sequence is missing", Outcome.FAIL, "sequence is missing"),
    (400, 10176, "atomic publish batch is incomplete", Outcome.RETRY, "the subjects of all rows?"),
    (400, 10177, "atomic publish unsupported header used: A", Outcome.REFUSED, "header used: A"),
    (400, 10179, "atomic publish batch ID is invalid", Outcome.FAIL, "batch ID"),
    (400, 10189, "message schedules pattern is invalid", Outcome.REFUSED, "column schedule takes"),
    (400, 10190, "message schedules target is invalid", Outcome.REFUSED, "column schedule_target"),
    (400, 10191, "message schedules invalid per-message TTL", Outcome.REFUSED, "column schedule_t"),
    (400, 10192, "message schedules invalid rollup", Outcome.REFUSED, "column rollup must be sub"),
    (400, 10193, "missing sequence for expected last sequence per subject", Outcome.REFUSED, "mis"),
    (400, 10199, "atomic publish batch is too large: 1000", Outcome.REFUSED, "make the group smal"),
    (400, 10200, "atomic publish batch commit is invalid", Outcome.FAIL, "commit is invalid"),
    (400, 10201, "atomic publish batch contains duplicate message id", Outcome.REFUSED, "msg_id r"),
    (400, 10203, "message schedules source is invalid", Outcome.REFUSED, "column schedule_source"),
    (429, 10210, "atomic publish too many inflight", Outcome.RETRY, "too many inflight"),
    (400, 10212, "message schedules invalid scheduler", Outcome.REFUSED, "invalid scheduler"),
    (400, 10223, "message schedules time zone is invalid", Outcome.REFUSED, "schedule_time_zone"),
    (400, 10227, "message stream source header is not allowed", Outcome.REFUSED, "is not allowed"),
    (400, 10164, "wrong last sequence", Outcome.RETRY, "wrong last sequence"),
    (
        403,
        10111,
        "rollup not permitted",
        Outcome.REFUSED,
        "set allow_rollup_hdrs on the stream, or drop column",
    ),
    (
        400,
        10188,
        "message schedules is disabled",
        Outcome.REFUSED,
        "set allow_msg_schedules on the stream, or drop",
    ),
    (
        503,
        10008,
        "JetStream system temporarily unavailable",
        Outcome.RETRY,
        "temporarily unavailable",
    ),
    (503, 10118, "stream is offline", Outcome.RETRY, "stream is offline"),
    (409, 10158, "expected last msg ID in process", Outcome.RETRY, "in process"),
    (500, 10047, "insufficient storage resources available", Outcome.RETRY, "raise the limits"),
    (400, 10002, "resource limits exceeded for account", Outcome.RETRY, "raise the limits"),
    (503, 10039, "JetStream not enabled for account", Outcome.FAIL, "not enabled"),
    (400, 10170, "message counter has payload", Outcome.REFUSED, "leave column data null"),
    (
        400,
        10171,
        "message counter increment is invalid",
        Outcome.REFUSED,
        "column incr takes an integer, and allows",
    ),
    (400, 19999, "new in 3.0", Outcome.FAIL, "new in 3.0"),
]


@pytest.mark.parametrize(("code", "err_code", "words", "meaning", "said"), MEANINGS)
def test_each_refusal_means_one_thing_and_says_what_to_change(
    code: int, err_code: int, words: str, meaning: Outcome, said: str
) -> None:
    refusal = Refusal(1, code, err_code, words)
    assert outcome(refusal) is meaning
    text = Target().reason(refusal, None)
    assert said in text
    if err_code:
        assert text.startswith(f"{words} (error {err_code})")


# -- dead letters --


DEAD_PREFIX = "query.7.0.dead."


def letters_of(
    refused: Sequence[RefusedRow], max_payload: int = 1 << 20, *, with_ids: bool = True
) -> tuple[list[dict[str, list[str]]], list[bytes], list[bytes | None]]:
    """Headers, payloads and ids of the dead letters, which have to fit."""
    made = MessageIds(WriteTask("query", 7, 0), dead=True) if with_ids else None
    letters, ids = dead_letters(refused, "dead.orders", max_payload, made)
    assert letters.subject.to_pylist() == [b"dead.orders"] * len(refused)
    assert letters.number.tolist() == [int(row.rows.number[row.index]) for row in refused]
    assert letters.msg_id is None
    assert not letters.faults
    frames = encode(letters, ids, None, inbox=INBOX, first_number=1)
    assert (frames.size <= max_payload).all()
    assert (
        frames.size - np.array([len(data) for data in letters.data.to_pylist()]) <= 65_535
    ).all()
    found = []
    for lines in letters.lines.to_pylist():
        headers: dict[str, list[str]] = {}
        assert lines.endswith(b"\r\n")
        for line in lines[:-2].split(b"\r\n"):
            name, colon, value = line.decode("utf-8", "replace").partition(": ")
            assert name
            assert colon
            assert not set(value) & set("\r\n\x00")
            headers.setdefault(name, []).append(value)
        found.append(headers)
    return (
        found,
        letters.data.to_pylist(),
        [None] * len(letters) if ids is None else ids.to_pylist(),
    )


def test_a_dead_letter_has_the_row_and_what_happened() -> None:
    some = read_rows(
        data=[b"0", b"payload"],
        subject=["a", "orders.größe"],
        # What an earlier dead letter said is not said again.
        headers=[None, [("A", ["1", "2"]), ("Dead-Letter-Reason", ["old"]), ("B", ["x: y"])]],
        ttl=[None, "5s"],
        expected_last_subject_sequence=[None, 7],
    )
    [headers], [data], [letter_id] = letters_of(
        [RefusedRow(some, 1, b"q.1.0.abc", "wrong last sequence: 3", 10071)]
    )
    assert data == b"payload"
    assert letter_id == b"q.1.0.abc.dead"
    assert headers == {
        "A": ["1", "2"],
        "B": ["x: y"],
        "Dead-Letter-Subject": ["orders.größe"],
        "Dead-Letter-Reason": ["wrong last sequence: 3"],
        "Dead-Letter-Error-Code": ["10071"],
    }


@pytest.mark.parametrize("size", [0, 7_000, 8_192, 1_000_000])
@pytest.mark.parametrize("header", [0, 3_000, 8_100, 70_000])
@pytest.mark.parametrize("with_ids", [True, False])
def test_a_payload_is_cut_to_what_the_server_takes(size: int, header: int, with_ids: bool) -> None:
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    some = read_rows(data=[payload], subject=["a"], headers=[[("A", ["x" * header])]])
    refused = [RefusedRow(some, 0, b"an-id", "too large", 0)]
    [headers], [data], [letter_id] = letters_of(refused, 8_192, with_ids=with_ids)
    assert letter_id == (b"an-id.dead" if with_ids else None)
    assert payload.startswith(data)
    assert headers.get("Dead-Letter-Size") == ([str(size)] if len(data) < size else None)
    assert headers["Dead-Letter-Reason"] == ["too large"]
    assert ("A" in headers) == (header <= 3_000)
    if len(data) < size:
        # No more is cut than has to be.
        used = len(data) + sum(
            len(name) + len(value) + 4 for name, values in headers.items() for value in values
        )
        # A letter with an id has room for a copy: a number in the id, and a line with the name of
        # a stream, which has 255 bytes at most.
        room = len(".1000000000Nats-Expected-Stream: \r\n") + 255 if with_ids else 0
        assert used > 8_192 - room - 100


def test_headers_and_ids_that_are_too_large_for_a_server_do_not_stop_the_letter() -> None:
    own_id = "i" * 66_000
    some = read_rows(data=[b"x"], subject=["a"], headers=[[("A", ["x" * 65_500])]], msg_id=[own_id])
    refused = RefusedRow(
        some, 0, own_id.encode(), "header size exceeds maximum allowed of 64k", 10097
    )
    [headers], [data], [letter_id] = letters_of([refused])
    assert "A" not in headers
    assert headers["Dead-Letter-Error-Code"] == ["10097"]
    assert data == b"x"
    assert letter_id is not None
    assert letter_id.startswith(DEAD_PREFIX.encode())


def test_the_id_of_a_letter_has_the_subject_of_a_row_with_an_id_of_its_own() -> None:
    """A user's id may be used again at another subject; ids that the sink makes contain the
    subject.
    """
    identifier = MessageIds(WriteTask("q", 1, 0))
    some = read_rows(data=[b"x"] * 3, subject=["a", "b", "a"], msg_id=["own", "own", None])
    names = identifier.ids(some).to_pylist()
    *_, ids = letters_of([RefusedRow(some, at, names[at], "too large", 0) for at in range(3)])
    assert ids == [b"own.40f89e395b66422f.dead", b"own.8472c2e34d854f75.dead", names[2] + b".dead"]
    # Before they are sent, rows of groups get their ids into the column.
    made = MessageIds(WriteTask("query", 7, 0)).ids(read_rows(data=[b"x"], subject=["a"]))
    grouped = replace(read_rows(data=[b"x"], subject=["a"]), msg_id=made)
    *_, ids = letters_of([RefusedRow(grouped, 0, made[0].as_py(), "its group", 0)])
    assert ids == [made[0].as_py() + b".dead"]


def test_a_letter_keeps_what_columns_ask_the_server_for() -> None:
    """Also what is no schedule, no target and no roll-up."""
    asked: dict[str, list[str | None]] = {
        "schedule": ["@hourly", "@at 9999-01-01T00:00:00Z", None],
        "schedule_target": ["due", "a b", "due"],
        "schedule_ttl": ["5m", "9999999999", None],
        "schedule_time_zone": ["Europe/Berlin", "a b", "UTC"],
        "schedule_source": ["last", "", "last"],
        "schedule_rollup": ["sub", "all", "sub"],
        "rollup": ["sub", "some", "all"],
    }
    some = read_rows(data=[b"x"] * 3, subject=["a", "b", "c"], **asked)
    assert some.faults.keys() == {1}
    taken = [some.take(np.array([at])) for at in range(3)]
    letters, *_ = letters_of([RefusedRow(one, 0, None, "why", 0) for one in taken])
    names = [
        f"Dead-Letter-{name}"
        for name in (
            "Schedule",
            "Schedule-Target",
            "Schedule-TTL",
            "Schedule-Time-Zone",
            "Schedule-Source",
            "Schedule-Rollup",
            "Rollup",
        )
    ]
    assert [[headers.get(name) for name in names] for headers in letters] == [
        [["@hourly"], ["due"], ["5m"], ["Europe/Berlin"], ["last"], ["sub"], ["sub"]],
        [["@at 9999-01-01T00:00:00Z"], ["a b"], ["9999999999"], ["a b"], None, ["all"], ["some"]],
        [None, None, None, None, None, None, ["all"]],
    ]


def test_letters_of_rows_with_different_reasons_have_different_ids() -> None:
    """Null and nothing look alike in a letter, and rows may come in another order the next time."""
    some = read_rows(
        data=[b"x", b"x", b"", None, b"y", b"y"],
        subject=[None, "", "a.*", "a.*", "b", "b"],
        headers=[None, None, None, None, [("a:b", ["1"])], [("A", ["1\n"])]],
    )
    refused = [RefusedRow(some, index, None, why, 0) for index, why in sorted(some.faults.items())]
    assert len(refused) == 6
    *_, ids = letters_of(refused)
    assert len(set(ids)) == 6
    *_, again = letters_of(refused[::-1])
    assert again == ids[::-1]


def test_long_words_are_cut_between_characters() -> None:
    some = read_rows(data=[b"x"], subject=["ü" * 30_000])
    [headers], [data], _ = letters_of([RefusedRow(some, 0, None, "x" + "ß" * 5_000, 0)], 8_192)
    assert headers["Dead-Letter-Subject"] == ["ü" * 512]
    assert headers["Dead-Letter-Reason"] == ["x" + "ß" * 511]
    assert data == b"x"


BAD_ROWS: dict[str, list[Any]] = {
    "data": [None, b"1", b"2", b"3", b"4", b"5"],
    "subject": ["a", "a\r\nNats-Rollup: all", None, "d", "e", "f"],
    "headers": [
        [("A", ["1"])],
        None,
        [("A", ["x\r\n\r\nBody"]), ("B", ["2"])],
        [("A\r\nNats-Rollup", ["all"]), ("", ["x"])],
        None,
        None,
    ],
    "msg_id": ["good", "b", None, "d", "e\r\nNats-Rollup: all", ""],
}


def test_rows_that_could_not_even_be_sent_make_clean_letters() -> None:
    some = read_rows(**BAD_ROWS)
    assert sorted(some.faults) == list(range(6))
    refused = [RefusedRow(some, index, None, why, 0) for index, why in sorted(some.faults.items())]
    headers, data, ids = letters_of(refused)
    assert data == [b"", b"1", b"2", b"3", b"4", b"5"]
    known = {"A", "B", "Dead-Letter-Subject", "Dead-Letter-Reason", "Dead-Letter-Error-Code"}
    assert set().union(*headers) == known
    assert headers[0]["A"] == ["1"]
    assert headers[1]["Dead-Letter-Subject"] == ["a  Nats-Rollup: all"]
    assert headers[2]["Dead-Letter-Subject"] == [""]
    assert headers[2]["B"] == ["2"]
    # Not the row's own id: once put right, the row itself must not be taken for its letter.
    for own, each in zip([b"good", b"b", None, b"d", None, None], ids, strict=True):
        assert each is not None
        assert each.startswith(DEAD_PREFIX.encode() if own is None else own + b".")
        assert own is None or each.endswith(b".dead")
    assert len(set(ids)) == 6
    assert letters_of(refused[::-1])[2] == ids[::-1]
    # Rows that come again in other portions have the same letters.
    table = batch(**BAD_ROWS)
    apart = [read(table.slice(index, 1), first=index + 1) for index in range(6)]
    assert letters_of([RefusedRow(one, 0, None, one.faults[0], 0) for one in apart]) == (
        headers,
        data,
        ids,
    )


# -- reports --

REPORTS = [
    TaskReport(0, 1_000, 990, 5, 10, {"S": (5, 900), "T": (1, 3)}, 1.5),
    TaskReport(1, 500, 500, 0, 0, {"S": (2, 700)}, 2.25),
    TaskReport(2),
]


def test_reports_of_tasks_add_up() -> None:
    assert [
        TaskReport.from_json(json.loads(json.dumps(report.to_json()))) for report in REPORTS
    ] == REPORTS
    for reports in (REPORTS, reversed(REPORTS)):
        whole = BatchReport(reports)
        assert whole.streams == {"S": (2, 900), "T": (1, 3)}
        assert str(whole) == (
            "1,490 of 1,500 rows stored, 5 were stored already, 10 dead letters, S 2 to 900, T 1 "
            "to 3; 3 tasks, 2.2 s"
        )


def test_the_ledger_keeps_no_claims_that_are_too_large() -> None:
    report = TaskReport(0, 3, 3, claims={"S": [b"12", b"345"], "T": [b"6"]})
    for largest, kept in ((6, report.claims), (5, None)):
        stored = report.to_json(largest_claims=largest)
        assert TaskReport.from_json(stored) == replace(report, claims=kept)


def test_a_small_report_has_few_words() -> None:
    assert str(BatchReport([])) == "0 of 0 rows stored; 0 tasks, 0.0 s"
    assert str(BatchReport([TaskReport(0, 1, 0, 0, 1, {}, 0.04)])) == (
        "0 of 1 rows stored, 1 dead letter; 1 task, 0.0 s"
    )
