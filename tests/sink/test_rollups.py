"""Schedules and roll-ups: which rows may be in flight together, and what is stored when a row
removes others.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from spark_jetstream.errors import DeliveryError, RowRefused
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.sink.id_reader import IdReader
from spark_jetstream.sink.rollups import Rollups
from spark_jetstream.sink.task import WriteTask
from spark_jetstream.testing import NatsServer
from tests.support.client import full
from tests.support.proxy import WireProxy, answer, is_answer
from tests.support.publish import Message, Publisher
from tests.support.reading import wait_until
from tests.support.sinking import Died, Sink, batch, forget, read_rows, seen, stored
from tests.support.streams import Stream

pytestmark = pytest.mark.usefixtures("no_connection_left", "quick_ledger")

NOW, LATER = "2020-01-01T00:00:00Z", "2100-01-01T00:00:00Z"
SECOND = 1_000_000_000
SCHEDULES, ROLLUPS = (
    ("data", "subject", "schedule", "schedule_target"),
    ("data", "subject", "rollup"),
)
Triples = Sequence[tuple[str, str, str | None]]


def made(server: NatsServer, admin: Publisher, **config: Any) -> Stream:
    wanted = {
        "storage": "memory",
        "duplicate_window": SECOND // 4,
        "allow_msg_schedules": True,
        **config,
    }
    return Stream(server.url, "S", admin, **wanted)


def sink(url: str, delivery: str, *columns: str, **options: object) -> Sink:
    made = Sink(url, delivery=delivery, stream="S", requestTimeout="2s", **options)
    return made.started(dict.fromkeys(("data", "subject", *columns)))


def rolled(rows: Triples) -> pa.RecordBatch:
    """Rows of payload, last token of the subject, and roll-up."""
    data, tokens, rollup = zip(*rows, strict=True)
    return batch(
        data=[text.encode() for text in data],
        subject=[f"s.{token}" for token in tokens],
        rollup=rollup,
    )


def delayed(rows: Triples) -> pa.RecordBatch:
    """Rows of payload, last token of the schedule's subject, and time; the server publishes them at
    `s.due`.
    """
    data, tokens, times = zip(*rows, strict=True)
    subjects = [f"s.wait.{token}" for token in tokens]
    texts = [text.encode() for text in data]
    return batch(
        data=texts, subject=subjects, schedule=times, schedule_target=["s.due"] * len(texts)
    )


def numbered(first: int, count: int, when: str = NOW) -> pa.RecordBatch:
    return delayed([(f"row {number}", str(number), when) for number in range(first, first + count)])


def expected(first: int, count: int) -> Counter[tuple[str, bytes]]:
    """Subject and payload of the messages that the server publishes for these rows, once each."""
    return Counter(("s.due", f"row {number}".encode()) for number in range(first, first + count))


def held(s: Stream) -> list[tuple[str, bytes]]:
    """Subject and payload of each message, in stream order."""
    return [(message.subject, message.data) for message in seen(s)]


def die(sink: Sink, *batches: pa.RecordBatch) -> None:
    """An attempt that ends in the middle, when all of these batches are stored: it asks for no more
    before that.
    """

    def some() -> Iterator[pa.RecordBatch]:
        yield from batches
        raise Died

    with pytest.raises(Died):
        sink.write(some(), names=batches[0].schema.names)


def published(s: Stream, waiting: int = 0) -> None:
    """Wait until the server has published all schedules but `waiting`."""

    def pending() -> int:
        state = s.publisher.api("STREAM.INFO.S", {"subjects_filter": "s.wait.>"})["state"]
        return len(state.get("subjects") or ())

    wait_until(lambda: pending() == waiting, f"{waiting} schedules are left")


# -- turns --

TURNS: dict[str, tuple[str, str, list[list[int]]]] = {
    "subjects that differ": ("abc", "sss", [[0, 1, 2]]),
    "a subject again": ("aba", "sss", [[0, 1], [2]]),
    "plain rows of one subject": ("aaaa", "----", [[0, 1, 2, 3]]),
    "plain rows around a roll-up": ("aaaaa", "--s--", [[0, 1], [2], [3, 4]]),
    "another subject does not wait": ("abab", "s-s-", [[0, 1, 3], [2]]),
    "all": ("abcab", "-s-A-", [[0, 1, 2], [3], [4]]),
    "all, first and last": ("abc", "A-A", [[0], [1], [2]]),
    "nothing but all": ("aa", "AA", [[0], [1]]),
    "none": ("", "", []),
}


@pytest.mark.parametrize(("subjects", "kinds", "turns"), TURNS.values(), ids=TURNS)
def test_rows_that_may_be_in_flight_together(
    subjects: str, kinds: str, turns: list[list[int]]
) -> None:
    rollup = [{"s": "sub", "A": "all", "-": None}[kind] for kind in kinds]
    rows = read_rows(data=[b"x"] * len(subjects), subject=list(subjects), rollup=rollup)
    assert [turn.tolist() for turn in Rollups(alone=False).turns(rows)] == turns
    if "A" not in kinds:
        # A schedule is a roll-up of its subject.
        times = [LATER if kind == "s" else None for kind in kinds]
        target = ["due"] * len(subjects)
        rows = read_rows(
            data=[b"x"] * len(subjects),
            subject=list(subjects),
            schedule=times,
            schedule_target=target,
        )
        assert [turn.tolist() for turn in Rollups(alone=False).turns(rows)] == turns


# -- the last row wins --

LAST: dict[str, tuple[Triples, Triples]] = {
    "sub": (
        [("1", "a", "sub"), ("2", "b", "sub"), ("3", "a", "sub"), ("4", "b", "sub")],
        [("3", "a", None), ("4", "b", None)],
    ),
    "sub among others": (
        [("1", "a", None), ("2", "a", "sub"), ("3", "a", None), ("4", "b", None)],
        [("2", "a", None), ("3", "a", None), ("4", "b", None)],
    ),
    "all": (
        [
            ("1", "a", None),
            ("2", "b", "all"),
            ("3", "a", None),
            ("4", "c", "all"),
            ("5", "a", None),
            ("6", "a", None),
        ],
        [("4", "c", None), ("5", "a", None), ("6", "a", None)],
    ),
    "all alone": ([("1", "a", "all"), ("2", "b", "all"), ("3", "c", "all")], [("3", "c", None)]),
}


def pairs(rows: Triples) -> list[tuple[str, bytes]]:
    return sorted((f"s.{token}", data.encode()) for data, token, _ in rows)


@pytest.mark.parametrize("delivery", ["at-least-once", "deduplicated"])
@pytest.mark.parametrize(("rows", "left"), LAST.values(), ids=LAST)
def test_a_roll_up_leaves_exactly_what_follows(
    server: NatsServer, admin: Publisher, rows: Triples, left: Triples, delivery: str
) -> None:
    """Also when the server has stored one of them without saying so: it is sent again, but before
    the rows after it.
    """
    s = made(server, admin, duplicate_window=120 * SECOND)
    said = json.dumps(
        {"error": {"code": 503, "err_code": 10008, "description": "no leader"}, "seq": 0}
    ).encode()
    with WireProxy(server.url) as proxy:
        through = sink(proxy.url, delivery, *ROLLUPS)
        for lost in range(len(rows)):
            s.purge()
            answers = itertools.count()

            def refuse_one(
                frame: bytes, lost: int = lost, answers: Iterator[int] = answers
            ) -> bytes:
                """Replace the answer to the row that is lost."""
                if is_answer(frame) and next(answers) == lost:
                    return answer(frame, said)
                return frame

            proxy.drop(refuse_one)
            task = WriteTask("q", lost, 0)
            for _ in range(2):
                report = through.write([rolled(rows)], task=task)
                assert (report.rows, report.stored) == (len(rows), len(rows))
                # A plain row may be there again.
                found = set(held(s)) if delivery == "at-least-once" else held(s)
                assert sorted(found) == pairs(left)


@pytest.mark.parametrize("kind", [*LAST, "schedules"])
def test_a_roll_up_whose_id_the_stream_has_forgotten(
    server: NatsServer, admin: Publisher, kind: str
) -> None:
    """It is stored again, and removes rows whose ids the stream still has: these are sent once
    more.

    A further attempt finds what that one has stored. A stream that has forgotten the id of the
    first row, and one that never had it, are the same to the sink.
    """
    s = made(server, admin, duplicate_window=120 * SECOND)
    if kind == "schedules":
        rows = [("1", "a", LATER), ("2", "b", LATER), ("3", "a", LATER), ("4", "a", LATER)]
        make, left, columns = delayed, [("2", "wait.b", None), ("4", "wait.a", None)], SCHEDULES
    else:
        (rows, left), make, columns = LAST[kind], rolled, ROLLUPS  # type: ignore[assignment]
    for missing in range(len(rows)):
        s.purge()
        task = WriteTask("q", missing, 0)
        through = sink(server.url, "deduplicated", *columns)
        through.write(
            [make(rows[missing + 1 :])] if rows[missing + 1 :] else [], task=task, names=columns
        )
        report = through.write([make(rows)], task=task)
        assert (report.stored, report.duplicates) == (len(rows), len(rows) - missing - 1)
        assert sorted(held(s)) == pairs(left)
        there = seen(s)
        report = through.write([make(rows)], task=task)
        assert (report.stored, report.duplicates) == (len(rows), len(rows))
        assert seen(s) == there


# -- what the server publishes --


def test_a_delayed_row(server: NatsServer, admin: Publisher) -> None:
    s = made(server, admin, allow_msg_ttl=True)
    row = batch(
        data=[b"x"],
        subject=["s.wait.1"],
        headers=[[("A", ["1", "2"]), ("Scheduled-Msg-Id", ["copied"])]],
        msg_id=["mine"],
        schedule=[NOW],
        schedule_target=["s.due"],
        schedule_ttl=["1h"],
    )
    sink(server.url, "deduplicated", *row.schema.names).write([row])
    published(s)
    (message,) = seen(s)
    assert (message.subject, message.data) == ("s.due", b"x")
    assert message.headers == {
        "A": ["1", "2"],
        "Scheduled-Msg-Id": ["mine"],
        "Nats-Scheduler": ["s.wait.1"],
        "Nats-Schedule-Next": ["purge"],
        "Nats-TTL": ["1h"],
    }


def test_a_repeated_row_with_source_time_zone_and_roll_up(
    server: NatsServer, admin: Publisher
) -> None:
    """Each second the last reading takes the place of the one before it."""
    s = made(server, admin)
    row = batch(
        data=[b"no reading yet"],
        subject=["s.wait.1"],
        schedule=["* * * * * *"],
        schedule_target=["s.due"],
        schedule_time_zone=["Europe/Berlin"],
        schedule_source=["s.reading"],
        schedule_rollup=["sub"],
    )
    sink(server.url, "deduplicated", *row.schema.names).write([row])
    # Without a message at the source the schedule's own is published.
    wait_until(lambda: ("s.due", b"no reading yet") in held(s), "the row")
    s.send(Message("s.reading", b"21 degrees"))
    wait_until(lambda: ("s.due", b"21 degrees") in held(s), "the reading")
    due = [message for message in seen(s) if message.subject == "s.due"]
    assert [message.data for message in due] == [b"21 degrees"]
    assert due[0].headers["Nats-Rollup"] == ["sub"]
    # The next time is in the zone of the schedule.
    assert not due[0].headers["Nats-Schedule-Next"][0].endswith("Z")


@pytest.mark.parametrize("delivery", [*full("at-least-once", "deduplicated"), "exactly-once"])
def test_a_repeated_row_goes_on_when_its_task_runs_again(
    server: NatsServer, admin: Publisher, delivery: str
) -> None:
    s = made(server, admin)
    through = sink(server.url, delivery, *SCHEDULES)
    row = delayed([("beat", "1", "@every 1s")])
    die(through, row)
    wait_until(lambda: ("s.due", b"beat") in held(s), "a heartbeat")
    forget(admin, "S", "s")
    assert through.write([row]).stored == 1
    beats = len(held(s))
    wait_until(lambda: len(held(s)) > beats, "another heartbeat")
    (schedule,) = [message for message in seen(s) if message.subject == "s.wait.1"]
    # With exactly-once it is the first one: the others have put it there anew, which begins the
    # second anew.
    assert (schedule.sequence == 1) is (delivery == "exactly-once")


@pytest.mark.parametrize("delivery", ["at-least-once", *full("deduplicated")])
def test_a_pending_row_is_published_once_however_often_it_is_stored(
    server: NatsServer, admin: Publisher, delivery: str
) -> None:
    s = made(server, admin)
    for _ in range(3):
        sink(server.url, delivery, *SCHEDULES).write([numbered(0, 10, LATER)])
        forget(admin, "S", "s")
    assert Counter(held(s)) == Counter(
        (f"s.wait.{number}", f"row {number}".encode()) for number in range(10)
    )


def test_a_row_that_was_published_is_published_again_outside_of_the_promise(
    server: NatsServer, admin: Publisher
) -> None:
    """Only exactly-once promises otherwise."""
    for delivery, window in (("at-least-once", 120 * SECOND), ("deduplicated", SECOND // 4)):
        s = made(server, admin, duplicate_window=window)
        for _ in range(2):
            sink(server.url, delivery, *SCHEDULES).write([numbered(0, 10)])
            published(s)
            if delivery == "deduplicated":
                forget(admin, "S", "s")
        assert Counter(held(s)) == expected(0, 10) + expected(0, 10)
        s.delete()


# -- once each --


@pytest.mark.parametrize("delivery", ["deduplicated", "exactly-once"])
def test_a_thousand_delayed_rows_are_published_once_each(
    server: NatsServer, admin: Publisher, delivery: str
) -> None:
    """A task has ended in the middle: some of its rows are published, some wait, and some were
    never sent.
    """
    s = made(
        server, admin, duplicate_window=SECOND // 4 if delivery == "exactly-once" else 120 * SECOND
    )
    through = sink(server.url, delivery, *SCHEDULES)
    waiting = numbered(300, 300, LATER)
    die(through, numbered(0, 300), waiting)
    published(s, waiting=300)
    if delivery == "exactly-once":
        forget(admin, "S", "s")
    report = through.write([numbered(0, 300), waiting, numbered(600, 700)])
    assert (report.rows, report.stored, report.duplicates) == (1300, 1300, 600)
    published(s, waiting=300)
    pending = Counter((f"s.wait.{number}", f"row {number}".encode()) for number in range(300, 600))
    assert Counter(held(s)) == expected(0, 300) + pending + expected(600, 700)
    assert through.write([numbered(0, 300), waiting, numbered(600, 700)]).duplicates == 1300
    assert s.state()["messages"] == 1300


def fire(admin: Publisher, number: int, message_id: str) -> None:
    """Do what the server does when the time of a row has come."""
    lines = [
        ("Scheduled-Msg-Id", message_id),
        ("Nats-Scheduler", f"s.wait.{number}"),
        ("Nats-Schedule-Next", "purge"),
    ]
    admin.publish([Message("s.due", f"row {number}".encode(), lines)])


def id_of(s: Stream, number: int) -> str:
    (schedule,) = [message for message in seen(s) if message.subject == f"s.wait.{number}"]
    return schedule.block.decode().partition("\r\nNats-Msg-Id: ")[2].partition("\r\n")[0]


def test_a_row_that_is_published_while_the_ledger_looks_for_it(
    server: NatsServer, admin: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its schedule goes before it was read, and its message comes after the end that the ledger
    reads to.
    """
    s = made(server, admin)
    through = sink(server.url, "exactly-once", *SCHEDULES)
    die(through, numbered(0, 10, LATER))
    forget(admin, "S", "s")
    ids = {number: id_of(s, number) for number in (0, 5, 9)}
    read, fired = IdReader.read, itertools.count()

    def late(self: IdReader, state: StreamSummary, *args: Any) -> None:
        if next(fired) == 0:
            for number, message_id in ids.items():
                fire(admin, number, message_id)
        read(self, state, *args)

    monkeypatch.setattr(IdReader, "read", late)
    report = through.write([numbered(0, 20, LATER)])
    assert (report.stored, report.duplicates) == (20, 10)
    assert sorted(held(s)) == sorted(
        ("s.due" if number in ids else f"s.wait.{number}", f"row {number}".encode())
        for number in range(20)
    )


def test_rows_that_are_published_in_an_outage(server: NatsServer, admin: Publisher) -> None:
    """The task has no answer for them when the connection is back, and the stream has forgotten
    their ids.
    """
    s = made(server, admin)
    with WireProxy(server.url) as proxy:
        through = sink(proxy.url, "exactly-once", *SCHEDULES, ackTimeout="30s")

        def batches() -> Iterator[pa.RecordBatch]:
            yield numbered(0, 50, LATER)
            proxy.drop(lambda frame: b"" if b'{"stream":"S"' in frame else frame)
            yield numbered(50, 50)

        def back() -> None:
            s.wait_for(100)
            published(s, waiting=50)
            forget(admin, "S", "s")
            proxy.cut()
            proxy.drop(None)

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(through.write, batches(), names=SCHEDULES)
            back()
            report = writing.result(60)
    assert (report.rows, report.stored) == (100, 100)
    waiting = Counter((f"s.wait.{number}", f"row {number}".encode()) for number in range(50))
    assert Counter(held(s)) == waiting + expected(50, 50)


@pytest.mark.parametrize(
    "limit", [{"max_age": 3600 * SECOND}, {"max_msgs": 1000}, {"max_bytes": 1_000_000}]
)
def test_a_stream_that_may_have_removed_a_published_row(
    server: NatsServer, admin: Publisher, limit: Mapping[str, int]
) -> None:
    """Nobody can tell whether the server has published the first messages, or a limit has removed
    them.
    """
    s = made(server, admin, **limit)
    through = sink(server.url, "exactly-once", *SCHEDULES)
    die(through, numbered(0, 10))
    published(s)
    with pytest.raises(
        DeliveryError, match="stream S has removed messages from sequence 1 to 10 since partition 0"
    ):
        through.write([numbered(0, 10)])
    assert Counter(held(s)) == expected(0, 10)


# -- what exactly-once refuses, and why --


def test_exactly_once_has_one_row_for_each_subject_of_a_schedule(
    server: NatsServer, admin: Publisher
) -> None:
    s = made(server, admin)
    through = sink(server.url, "exactly-once", *SCHEDULES, deadLetterSubject="s.dead")
    rows = [
        ("1", "a", LATER),
        ("2", "b", None),
        ("3", "b", None),
        ("4", "a", LATER),
        ("5", "b", LATER),
        ("6", "a", None),
    ]
    report = through.write([delayed(rows[:2]), delayed(rows[2:])])
    assert (report.stored, report.dead_letters) == (3, 3)
    assert sorted(held(s)) == [
        *(("s.dead", data) for data in (b"4", b"5", b"6")),
        ("s.wait.a", b"1"),
        ("s.wait.b", b"2"),
        ("s.wait.b", b"3"),
    ]
    reasons = {
        message.headers["Dead-Letter-Reason"][0]
        for message in seen(s)
        if message.subject == "s.dead"
    }
    (reason,) = reasons
    assert reason.startswith(
        "an earlier row of the task has its subject: with delivery exactly-once a schedule"
    )
    assert reason.endswith(
        "give each schedule its own subject (column subject), or set delivery to deduplicated"
    )
    # A row that is not stored anyway does not count.
    s.purge()
    bad = batch(
        data=[None, b"x"],
        subject=["s.wait.c"] * 2,
        schedule=[LATER] * 2,
        schedule_target=["s.due"] * 2,
    )
    report = through.write([bad], task=WriteTask("q", 2, 0))
    assert (report.stored, report.dead_letters) == (1, 1)


def test_exactly_once_refuses_roll_ups(server: NatsServer, admin: Publisher) -> None:
    s = made(server, admin)
    refused = r'option delivery cannot be exactly-once with column "rollup": .*; use deduplicated'
    with pytest.raises(DeliveryError, match=refused):
        sink(server.url, "exactly-once", *ROLLUPS)
    # Why: a second attempt does not find the rows that a later one has removed.
    through = sink(server.url, "exactly-once")
    rows = [("1", "a", "sub"), ("2", "a", "sub"), ("3", "b", None)]
    s.send(Message("s.before"))
    die(through, rolled(rows[:2]))
    assert held(s) == [("s.before", b""), ("s.a", b"2")]
    forget(admin, "S", "s")
    through.write([rolled(rows)])
    assert held(s) == [
        ("s.before", b""),
        ("s.a", b"1"),
        ("s.b", b"3"),
    ]  # row 2, the last one of its subject, is lost


def test_exactly_once_refuses_roll_ups_of_schedules(server: NatsServer, admin: Publisher) -> None:
    made(server, admin)
    refused = (
        'option delivery cannot be exactly-once with column "schedule_rollup": .*; use deduplicated'
    )
    with pytest.raises(DeliveryError, match=refused):
        sink(server.url, "exactly-once", *SCHEDULES, "schedule_rollup")


def test_exactly_once_refuses_a_row_that_is_published_once_from_a_source(
    server: NatsServer, admin: Publisher
) -> None:
    s = made(server, admin)
    names = (*SCHEDULES, "schedule_source")
    through = sink(server.url, "exactly-once", *names, deadLetterSubject="s.dead")
    row = batch(
        data=[b"once", b"again and again", b"not copied", b"after a blank"],
        subject=["s.wait.1", "s.wait.2", "s.wait.3", "s.wait.4"],
        # Servers pass over the blanks before the value of a header.
        schedule=[LATER, "@every 1h", LATER, f" @at {LATER}"],
        schedule_target=["s.due"] * 4,
        schedule_source=["s.reading", "s.reading", None, "s.reading"],
    )
    report = through.write([row], names=names)
    assert (report.stored, report.dead_letters) == (2, 2)
    letter, other = [message for message in seen(s) if message.subject == "s.dead"]
    assert (letter.data, other.data) == (b"once", b"after a blank")
    assert letter.headers["Dead-Letter-Schedule-Source"] == ["s.reading"]
    (reason,) = letter.headers["Dead-Letter-Reason"]
    assert reason.startswith(
        "with delivery exactly-once a schedule that does not repeat can have no column schedule_"
    )
    # Why: the message of such a schedule does not name its row.
    s.purge()
    s.send(Message("s.reading", b"21 degrees"))
    given = {name: row.column(name).slice(2, 1) for name in names}
    given["schedule"] = [f" @at {NOW}"]
    given["schedule_source"] = ["s.reading"]
    sink(server.url, "deduplicated", *names).write([batch(**given)], names=names)
    published(s)
    (copy,) = [message for message in seen(s) if message.subject == "s.due"]
    assert copy.data == b"21 degrees"
    assert "Scheduled-Msg-Id" not in copy.headers


def test_a_schedule_in_a_second_stream_is_refused(server: NatsServer, admin: Publisher) -> None:
    made(server, admin)
    row = batch(data=[b"x"], subject=["s.wait"], schedule=[NOW], schedule_target=["kept"])
    with pytest.raises(
        RowRefused,
        match=r"\(error 10190\): column schedule_target must be another subject of the sam",
    ):
        sink(server.url, "deduplicated", *SCHEDULES).write([row])
    assert stored(server.url, "S") == []
