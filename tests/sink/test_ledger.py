"""Exactly once: what the ledger notes, what the next attempt makes of it, and what an attempt may
not do any more.
"""

from __future__ import annotations

import base64
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, cast

import pyarrow as pa
import pytest

from spark_jetstream.admin.ensure import Ensure, ensure_streams
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import connect
from spark_jetstream.errors import DeliveryError, OutageError, RowRefused, api_error
from spark_jetstream.options import SinkOptions
from spark_jetstream.sink import preflight
from spark_jetstream.sink.kinds.messages import MessageSink
from spark_jetstream.sink.ledger import BUCKET, FORGOTTEN, STREAM, Ledger
from spark_jetstream.sink.ledger_bucket import bucket_config
from spark_jetstream.sink.report import TaskReport
from spark_jetstream.sink.stream_warnings import check_interval
from spark_jetstream.sink.task import WriteTask
from spark_jetstream.testing import NatsServer
from tests.support.leaf import Linked
from tests.support.proxy import WireProxy
from tests.support.publish import Message, Publisher, Refused
from tests.support.reading import api, consumers, create, options, wait_until
from tests.support.sinking import (
    SECOND,
    WINDOW,
    Died,
    Sink,
    batch,
    dataset_of,
    die,
    forget,
    numbers,
    payload,
    rows,
    seen_in,
    sent_again,
    set_write_timing,
    stored,
)
from tests.support.streams import MakeStream, Stream

pytestmark = pytest.mark.usefixtures("no_connection_left", "quick_ledger")


def start(connect: Callable[[float], Connection], options: SinkOptions) -> None:
    """Check what options name before the first row."""
    dataset_of(options).start(connect)


def ensure(connect: Callable[[float], Connection], options: SinkOptions) -> None:
    """Do what ensureStream asks for, as the data source does."""
    asked = Ensure(
        options.connection, options.ensure_stream or "", options.ensure_stream_on_conflict, ("S",)
    )
    ensure_streams(asked, connect, str, remembered=options.streaming)


def change_times(monkeypatch: pytest.MonkeyPatch, **times: Any) -> None:
    """Let the ledger have other times, until the end of the test."""
    monkeypatch.setattr(MessageSink, "ledger_times", replace(MessageSink.ledger_times, **times))


def before_check(monkeypatch: pytest.MonkeyPatch, steps: list[Callable[[], object]]) -> None:
    """Let these happen, once each, when a task is about to check that it owns its entries.

    A step may be added at any time.
    """
    check = Ledger.check

    def slow(ledger: Ledger) -> None:
        while steps:
            steps.pop()()
        check(ledger)

    monkeypatch.setattr(Ledger, "check", slow)


@pytest.fixture
def sink(server: NatsServer, s: Stream) -> Sink:
    return Sink.exactly(server.url)


def entry(admin: Publisher) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(base64.b64decode(message(admin)["data"]))
    return found


def message(admin: Publisher, key: str = "q.0") -> dict[str, Any]:
    """The ledger's entry, as the server has it."""
    body = {"last_by_subj": f"$KV.{BUCKET}.{key}"}
    found: dict[str, Any] = admin.api(f"STREAM.MSG.GET.{STREAM}", body)["message"]
    return found


class TestEntry:
    def test_an_entry_has_the_streams_and_report_of_its_task(
        self, server: NatsServer, admin: Publisher, s: Stream
    ) -> None:
        s.fill(7)
        seen: list[dict[str, Any]] = []

        def batches() -> Iterator[pa.RecordBatch]:
            seen.append(entry(admin))
            yield rows("s.a", 0, 10)
            seen.append(entry(admin))

        report = Sink.exactly(server.url).write(batches(), task=WriteTask("q", 12, 0))
        done = entry(admin)
        created = admin.api("STREAM.INFO.S")["created"]
        plain = {
            "version": 2,
            "batch": 12,
            "run": "",
            "attempt": done["attempt"],
            "lease": 0.3,
            "done": False,
        }
        plain |= {"report": None}
        assert seen == [
            {**plain, "streams": {}},
            {**plain, "streams": {"S": {"created": created, "next": 8}}},
        ]
        assert done == {**seen[1], "done": True, "report": report.to_json()}
        assert (report.stored, report.duplicates, report.streams) == (10, 0, {"S": (8, 17)})

    def test_warns_once_of_a_query_that_had_another_level(
        self, caplog: pytest.LogCaptureFixture, s: Stream, sink: Sink
    ) -> None:
        """Batch 0 is the first one of a new query."""
        for batch_id, partition in ((0, 0), (1, 0)):
            sink.write([rows("s.a", 0, 1)], task=WriteTask("new", batch_id, partition))
        assert "another level" not in caplog.text
        for batch_id, partition in ((7, 0), (7, 1), (8, 0)):
            sink.write([rows("s.a", 0, 1)], task=WriteTask("old", batch_id, partition))
        assert caplog.text.count("batch 7 of old is its first one with delivery exactly-once") == 1
        assert caplog.text.count("another level") == 1

    def test_has_one_revision_and_expires_after_a_batch_write(
        self, admin: Publisher, s: Stream, sink: Sink
    ) -> None:
        # The entry of another batch is written over, whether that has ended or not.
        die(sink, s, rows("s.a", 0, 10), task=WriteTask("q", 0, 0))
        for number in (1, 2):
            report = sink.write([rows("s.a", 0, 10)], task=WriteTask("q", number, 0))
            assert (report.stored, report.duplicates) == (10, 0)
        assert numbers(s.url, "S") == [*range(10)] * 3
        assert entry(admin)["batch"] == 2
        assert admin.api(f"STREAM.INFO.{STREAM}", {"subjects_filter": ">"})["state"][
            "subjects"
        ] == {
            f"$KV.{BUCKET}.q.0": 1,
            f"$KV.{BUCKET}.q.batch": 1,
        }
        assert "Nats-TTL" not in base64.b64decode(message(admin)["hdrs"]).decode()
        sink.write([rows("s.a", 0, 10)], task=WriteTask("w-load", 0, 3, 3600.0))
        for key in ("w-load.3", "w-load.batch"):
            assert "Nats-TTL: 3600s\r\n" in base64.b64decode(message(admin, key)["hdrs"]).decode()

    def test_is_renewed_while_its_task_goes_on(
        self, admin: Publisher, s: Stream, sink: Sink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Or another attempt, and the task itself, would find none after a day.

        So is that of its batch.
        """
        passed, written = 0.0, list[tuple[int, int]]()
        change_times(monkeypatch, clock=lambda: time.monotonic() + passed)

        def batches() -> Iterator[pa.RecordBatch]:
            nonlocal passed
            for index in range(5):
                yield rows("s.a", 10 * index, 10)
                written.append(
                    (message(admin, "w-load.0")["seq"], message(admin, "w-load.batch")["seq"])
                )
                passed += 0.4 * FORGOTTEN

        sink.write(batches(), task=WriteTask("w-load", 0, 0, FORGOTTEN), names=("data", "subject"))
        for revisions in zip(*written, strict=True):
            first = revisions[0]
            assert revisions == (first, first, first + 2, first + 2, first + 4)
        assert numbers(s.url, "S") == list(range(50))

    def test_is_taken_over_right_after_it_was_renewed(
        self, s: Stream, sink: Sink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The attempt that has renewed it stores nothing more."""
        passed, late = 0.0, list[TaskReport]()
        task = WriteTask("w-load", 0, 0, FORGOTTEN)
        change_times(monkeypatch, clock=lambda: time.monotonic() + passed)
        renew = Ledger._write_or_fail

        def slow(ledger: Ledger) -> None:
            renew(ledger)
            if passed and not late:
                late.append(TaskReport(0))
                late.append(sink.write([rows("s.a", 0, 10)], task=task))

        monkeypatch.setattr(Ledger, "_write_or_fail", slow)

        def batches() -> Iterator[pa.RecordBatch]:
            nonlocal passed
            yield rows("s.a", 0, 10)
            s.wait_for(10)
            passed = 0.6 * FORGOTTEN
            yield rows("s.a", 10, 10)

        with pytest.raises(
            DeliveryError, match=r"another attempt of partition 0 .* has taken over"
        ):
            sink.write(batches(), task=task, names=("data", "subject"))
        assert late[1].duplicates == 10
        assert numbers(s.url, "S") == list(range(10))

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (b"{", "cannot be read"),
            # An attempt that waits for the end of such a lease never asks whether it still owns the
            # task.
            (
                b'{"version": 2, "batch": 1, "run": "", "attempt": "a", "lease": NaN}',
                "cannot be read",
            ),
            (
                b'{"version": 2, "batch": 1, "run": "", "attempt": "a", "lease": 1e300}',
                "cannot be read",
            ),
            (
                b'{"version": 3, "batch": 1, "more": 0}',
                "was written by a newer release of spark-jetstream",
            ),
            (b'{"version": 1, "batch": 5}', "batch 5 was begun already: is the query running"),
            (
                b'{"version": 2, "batch": 5, "run": "", "attempt": "a", "lease": 1}',
                "batch 5 was begun already: is the",
            ),
        ],
    )
    def test_an_unusable_entry_fails_the_write_and_stays(
        self, admin: Publisher, content: bytes, said: str, s: Stream, sink: Sink
    ) -> None:
        admin.publish([Message(f"$KV.{BUCKET}.q.0", content)])
        with pytest.raises(DeliveryError, match=said):
            sink.write([rows("s.a", 0, 10)], task=WriteTask("q", 1, 0))
        assert s.state()["messages"] == 0
        assert base64.b64decode(message(admin)["data"]) == content

    def test_a_deleted_entry_counts_as_no_entry(
        self, admin: Publisher, s: Stream, sink: Sink
    ) -> None:
        admin.publish([Message(f"$KV.{BUCKET}.q.0", b"", [("KV-Operation", "DEL")])])
        assert sink.write([rows("s.a", 0, 10)]).stored == 10
        assert entry(admin)["done"] is True

    @pytest.mark.parametrize(
        "lost", [1, 2, 3], ids=["taking the task", "noting the stream", "being done"]
    )
    def test_a_write_succeeds_if_the_answer_to_its_entry_is_lost(
        self, admin: Publisher, lost: int, s: Stream
    ) -> None:
        with WireProxy(s.url) as proxy:
            sink = Sink.exactly(proxy.url, requestTimeout="300ms")
            seen = 0

            def drop(frame: bytes) -> bytes:
                nonlocal seen
                if (
                    f'"stream":"{STREAM}"'.encode() in frame.replace(b" ", b"")
                    and b'"seq":' in frame
                ):
                    seen += 1
                    return b"" if seen == lost else frame
                return frame

            proxy.drop(drop)
            report = sink.write([rows("s.a", 0, 10)])
        assert seen >= lost
        assert (report.stored, report.duplicates) == (10, 0)
        assert entry(admin)["done"] is True
        assert numbers(s.url, "S") == list(range(10))


class TestTakingOver:
    @pytest.mark.parametrize(
        ("own", "later", "named"),
        [(False, False, True), (False, True, False), (True, False, False), (True, True, True)],
        ids=["computed ids", "computed, after the window", "own ids", "own, after the window"],
    )
    def test_leaves_out_what_is_stored(
        self, admin: Publisher, own: bool, later: bool, named: bool, s: Stream
    ) -> None:
        s.fill(5)
        sink = Sink.exactly(s.url, **({"stream": "S"} if named else {}))
        names = ("data", "subject", "msg_id") if own else ("data", "subject")

        def some(first: int, count: int) -> pa.RecordBatch:
            plain = rows("s.a", first, count)
            if not own:
                return plain
            # Every third row has none of its own.
            ids = [
                f"mine-{number}" if number % 3 else None for number in range(first, first + count)
            ]
            return plain.append_column("msg_id", pa.array(ids))

        die(sink, s, some(0, 300), some(300, 200), names=names)
        if later:
            forget(admin, s.name, s.subject)
        # One more dies: the third finds what both have stored.
        die(sink, s, some(500, 100), names=names)
        report = sink.write([some(0, 1000)], names=names)
        assert (report.rows, report.stored, report.duplicates) == (1000, 1000, 600)
        data = [each for each in stored(s.url, "S") if each.startswith(b"row")]
        assert data == [payload(number) for number in range(1000)]
        # Deleting one is not waited for, neither here nor there.
        wait_until(lambda: consumers(s.url, "S") == [], "no consumer is left")
        assert entry(admin)["streams"]["S"]["next"] == 6

    def test_knows_ids_that_are_not_utf8(self, admin: Publisher, s: Stream) -> None:
        """A server takes them as they are, and Spark has them in a column of text (a cast from
        binary).
        """
        ids = [b"gr\xfcn-%d" % number for number in range(20)]
        given = batch(
            data=[b"x"] * 20,
            subject=["s.a"] * 20,
            msg_id=pa.array(ids, pa.binary()).view(pa.string()),
        )
        sink = Sink.exactly(s.url)
        die(sink, s, given.slice(0, 15), names=given.schema.names)
        forget(admin, "S", "s")
        report = sink.write([given])
        assert (report.stored, report.duplicates) == (20, 15)
        assert s.state()["messages"] == 20

    def test_looks_into_each_stream(
        self, server: NatsServer, admin: Publisher, make: MakeStream
    ) -> None:
        streams = [make(name) for name in ("S", "T", "U")]
        sink = Sink.exactly(server.url)

        def at(number: int) -> str:
            return f"{'stu'[number % 3]}.{number % 5}"

        def first() -> Iterator[pa.RecordBatch]:
            # Stream U comes into it only later.
            yield rows("s.a", 1000, 10)
            yield rows(at, 0, 190)
            wait_until(lambda: sum(each.state()["messages"] for each in streams) == 200, "stored")
            raise Died

        with pytest.raises(Died):
            sink.write(first())
        for each in streams:
            forget(admin, each.name, each.subject)
        report = sink.write([rows("s.a", 1000, 10), rows(at, 0, 900)])
        assert (report.stored, report.duplicates) == (910, 200)
        found = sorted(number for each in streams for number in numbers(server.url, each.name))
        assert found == [*range(900), *range(1000, 1010)]
        assert set(report.streams) == {"S", "T", "U"}

    def test_stores_a_row_whose_id_another_stream_has(
        self, admin: Publisher, make: MakeStream
    ) -> None:
        """As of the messages that one order makes for two streams."""
        s, t = make("S"), make("T")
        sink = Sink.exactly(s.url)
        first, second = (
            batch(data=[payload(0)], subject=[f"{each.subject}.a"], msg_id=["mine"])
            for each in (s, t)
        )
        die(sink, s, first, names=first.schema.names)

        def again() -> Iterator[pa.RecordBatch]:
            yield from (first, second)
            t.wait_for(1)
            for each in (s, t):
                forget(admin, each.name, each.subject)
            raise Died

        with pytest.raises(Died):
            sink.write(again(), names=first.schema.names)
        report = sink.write([first, second])
        assert (report.stored, report.duplicates, report.streams) == (
            2,
            2,
            {"S": (1, 1), "T": (1, 1)},
        )
        assert (s.state()["messages"], t.state()["messages"]) == (1, 1)

    def test_leaves_out_dead_letters(
        self, server: NatsServer, admin: Publisher, make: MakeStream
    ) -> None:
        s, dead = make(max_msg_size=150), make("DEAD")
        sink = Sink.exactly(server.url, deadLetterSubject="dead.row")
        data = batch(
            data=[payload(number, 300 if number % 4 == 0 else 0) for number in range(100)],
            subject=["no good" if number % 10 == 1 else "s.a" for number in range(100)],
        )
        good = [number for number in range(100) if number % 4 and number % 10 != 1]

        def first() -> Iterator[pa.RecordBatch]:
            yield data
            s.wait_for(len(good))
            # Room in the window makes the task look for answers, and for what was refused.
            wait_until(lambda: dead.state()["messages"] >= 10, "the rows with a fault")
            yield rows("s.a", 0, 0)
            raise Died

        with pytest.raises(Died):
            sink.write(first())
        forget(admin, s.name, s.subject)
        forget(admin, dead.name, dead.subject)
        for _ in range(2):
            report = sink.write([data])
            assert (report.rows, report.stored, report.dead_letters) == (
                100,
                len(good),
                100 - len(good),
            )
        assert numbers(server.url, "S") == good
        assert sorted(numbers(server.url, "DEAD")) == sorted(set(range(100)) - set(good))

    def test_waits_for_the_lease(self, admin: Publisher, s: Stream, sink: Sink) -> None:
        die(sink, s, rows("s.a", 0, 10))
        before = entry(admin)["attempt"]

        def batches() -> Iterator[pa.RecordBatch]:
            assert entry(admin)["attempt"] != before
            yield rows("s.a", 0, 10)

        assert sink.write(batches()).seconds >= MessageSink.ledger_times.lease

    def test_finds_what_the_other_had_under_way(
        self, admin: Publisher, s: Stream, sink: Sink
    ) -> None:
        """Rows of the first attempt that are stored after the second has looked are found by
        looking again.
        """
        die(sink, s, rows("s.a", 0, 10))
        late = seen_in(admin, "S")[9]
        # As if the last row had stayed in some buffer, and the stream had never seen it.
        s.remove(10)
        forget(admin, s.name, s.subject)

        def second() -> Iterator[pa.RecordBatch]:
            yield rows("s.a", 0, 9)
            admin.publish([sent_again(late)])
            forget(admin, s.name, s.subject)
            yield rows("s.a", 9, 10)

        report = sink.write(second())
        assert (report.stored, report.duplicates) == (19, 10)
        assert numbers(s.url, "S") == list(range(19))

    def test_finds_what_comes_while_the_ledger_does_not_answer(
        self, admin: Publisher, s: Stream, sink: Sink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A row of the first attempt is stored, and its id forgotten, after the second has looked
        and before it may send.
        """
        die(sink, s, rows("s.a", 0, 10))
        late = seen_in(admin, "S")[9]
        s.remove(10)
        forget(admin, s.name, s.subject)

        def arrive() -> None:
            admin.publish([sent_again(late)])
            forget(admin, s.name, s.subject)

        before_check(monkeypatch, [arrive])
        report = sink.write([rows("s.a", 0, 10)])
        assert (report.stored, report.duplicates) == (10, 10)
        assert numbers(s.url, "S") == list(range(10))

    def test_finds_what_the_other_had_under_way_when_its_own_rows_are_long_in_coming(
        self, admin: Publisher, s: Stream, sink: Sink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It has not looked again by the time at which the streams may have forgotten the ids of
        late rows.
        """
        passed = 0.0
        change_times(monkeypatch, clock=lambda: time.monotonic() + passed)
        die(sink, s, rows("s.a", 0, 10))
        late = seen_in(admin, "S")[9]
        s.remove(10)
        forget(admin, s.name, s.subject)

        def second() -> Iterator[pa.RecordBatch]:
            nonlocal passed
            admin.publish([sent_again(late)])
            forget(admin, s.name, s.subject)
            passed = WINDOW / SECOND + MessageSink.ledger_times.stragglers + 1.0
            yield rows("s.a", 0, 10)

        report = sink.write(second(), names=("data", "subject"))
        assert (report.stored, report.duplicates) == (10, 10)
        assert numbers(s.url, "S") == list(range(10))

    def test_taking_over_a_recreated_stream_stores_each_row_once(
        self, server: NatsServer, admin: Publisher, s: Stream, sink: Sink
    ) -> None:
        s.fill(100)
        die(sink, s, rows("s.a", 0, 10))
        s.delete()
        s.create()
        die(sink, s, rows("s.a", 0, 20))
        forget(admin, s.name, s.subject)
        report = sink.write([rows("s.a", 0, 30)])
        assert (report.stored, report.duplicates) == (30, 20)
        assert numbers(server.url, "S") == list(range(30))

    def test_taking_over_after_its_stream_was_deleted_stores_all_rows(
        self, caplog: pytest.LogCaptureFixture, s: Stream, sink: Sink
    ) -> None:
        die(sink, s, rows("s.a", 0, 10))
        s.delete()
        create(s.url, "T", subjects=["s.>"])
        report = sink.write([rows("s.a", 0, 30)])
        assert (report.stored, report.duplicates, report.streams) == (30, 0, {"T": (1, 30)})
        assert "stream S was deleted since" in caplog.text

    def test_taking_over_fails_if_the_stream_has_removed_messages(
        self, server: NatsServer, s: Stream, sink: Sink
    ) -> None:
        die(sink, s, rows("s.a", 0, 10))
        s.update(max_msgs=5)
        with pytest.raises(
            DeliveryError,
            match="stream S has removed messages from sequence 1 to 5 since partition 0",
        ):
            sink.write([rows("s.a", 0, 30)])
        assert numbers(server.url, "S") == [5, 6, 7, 8, 9]


class TestOtherRows:
    """A batch that comes again with other rows: none is lost in silence, and none that could be
    there is stored.
    """

    COLUMNS: ClassVar[dict[str, list[Any]]] = {
        "data": [b"0", b"1", b"1", b"3", b"4"],
        "subject": ["s.a", "s.a", "s.a", "no good", "s.a"],
        "msg_id": [None, None, None, None, "mine"],
    }
    SAME = range(5)

    @pytest.mark.parametrize(
        ("picked", "changed", "said"),
        [
            ([4, 2, 3, 1, 0], {}, ""),
            ([*SAME, 1], {}, r"it was done with 5 rows, and this attempt has 6"),
            ([0, 1, 3, 4], {}, r"it was done with 5 rows, and this attempt has 4"),
            ([], {}, r"it was done with 5 rows, and this attempt has 0"),
            ([0, 0, 1, 3, 4], {}, "not the same ones"),
            (SAME, {"data": [b"0", b"1", b"1", b"other", b"4"]}, "not the same ones"),
            (SAME, {"msg_id": [None, None, None, None, "yours"]}, "not the same ones"),
            (SAME, {"subject": ["s.b", "s.a", "s.a", "no good", "s.a"]}, "not the same ones"),
            (SAME, {"subject": ["s.a", "s.a", "s.a", "no good", "s.b"]}, "not the same ones"),
            (SAME, {"data": [b"0", b"1", b"1", b"3", b"the id counts, not this"]}, ""),
        ],
        ids=[
            "order",
            "more",
            "fewer",
            "none",
            "more equal ones",
            "dead letter",
            "own id",
            "subject",
            "subject of an id",
            "beside an id",
        ],
    )
    def test_a_done_task_accepts_equal_rows_and_refuses_other_rows(
        self,
        admin: Publisher,
        picked: Sequence[int],
        changed: dict[str, list[Any]],
        said: str,
        s: Stream,
    ) -> None:
        sink = Sink.exactly(s.url, deadLetterSubject="s.dead")
        first = sink.write([batch(**self.COLUMNS)])
        assert (first.rows, first.stored, first.duplicates, first.dead_letters) == (5, 4, 0, 1)
        before, noted = seen_in(admin, "S"), entry(admin)
        forget(admin, s.name, s.subject)
        columns = self.COLUMNS | changed
        again = [
            batch(**{name: [values[row] for row in picked] for name, values in columns.items()})
        ]
        if said:
            with pytest.raises(
                DeliveryError, match=f"partition 0 of batch 1 of q was written before .*{said}"
            ):
                sink.write(again)
        else:
            second = sink.write(again)
            assert (second.rows, second.stored, second.duplicates, second.dead_letters) == (
                5,
                4,
                4,
                1,
            )
            assert second.streams == first.streams
        assert seen_in(admin, "S") == before
        assert entry(admin) == noted

    @pytest.mark.parametrize("key", ["q.0", "q.batch"])
    def test_a_batch_that_an_older_format_began_cannot_be_written(
        self, admin: Publisher, key: str, s: Stream, sink: Sink
    ) -> None:
        """The message ids of that release had the partition in them, so nobody can look its rows
        up.
        """
        admin.publish(
            [
                Message(
                    f"$KV.{BUCKET}.{key}",
                    b'{"version": 1, "batch": 1, "attempt": "a", "lease": 2.0}',
                )
            ]
        )
        with pytest.raises(
            DeliveryError, match="batch 1 of q was begun by an earlier release of spark-jetstream"
        ):
            sink.write([rows("s.a", 0, 10)])
        assert s.state()["messages"] == 0
        assert sink.write([rows("s.a", 0, 10)], WriteTask("q", 2, 0)).stored == 10

    def test_rows_for_another_target_with_the_same_write_id_are_refused(
        self, server: NatsServer, make: MakeStream
    ) -> None:
        """Two writes of the same rows to two targets must not have the same `writeId`."""
        s, t = make("S"), make("T")
        task, again = (
            WriteTask("w-load", 0, 0, 3600.0),
            [batch(data=[b"0", b"1"], msg_id=["mine", "yours"])],
        )
        assert Sink.exactly(server.url, subject="s.a").write(again, task).stored == 2
        with pytest.raises(
            DeliveryError,
            match=r"this attempt has as many, but not the same ones.* Take another writeId",
        ):
            Sink.exactly(server.url, subject="t.a").write(again, task)
        assert (s.state()["messages"], t.state()["messages"]) == (2, 0)

    def test_rows_for_another_stream_are_refused(
        self, server: NatsServer, make: MakeStream
    ) -> None:
        """The rows are the same, and their subject is that of another stream now."""
        s = make("S")
        nothing = WriteTask("q", 1, 1)
        for target in ("S", "S", "T"):
            if target == "T":
                s.delete()
                create(server.url, "T", subjects=["s.>"])
            sink = Sink.exactly(server.url, stream=target)
            assert sink.write([rows("s.a", 0, 0)], nothing).stored == 0
            if target == "S":
                assert sink.write([rows("s.a", 0, 10)]).stored == 10
        with pytest.raises(DeliveryError, match="they are in stream S, and option stream names T"):
            sink.write([rows("s.a", 0, 10)])

    def test_rows_that_differ_from_an_unfinished_task_fail_the_commit(
        self, admin: Publisher, s: Stream, sink: Sink
    ) -> None:
        die(sink, s, rows("s.a", 0, 10))
        forget(admin, s.name, s.subject)
        reports = [sink.write([rows("s.a", 4, 11)])]
        said = (
            "batch 1 of q was written before .*4 rows are stored that are not among the 11 of this "
            "run"
        )
        with pytest.raises(DeliveryError, match=said):
            sink.commit(reports)
        # It is too late to store nothing, but not to say so each time, and once is enough.
        for run, (first, count) in enumerate([(4, 11), (0, 15), (3, 15)]):
            task = WriteTask("q", 1, 0, run=f"run-{run}")
            reports = [sink.write([rows("s.a", first, count)], task)]
            with pytest.raises(
                DeliveryError,
                match=f"15 rows, and this attempt has {'as many' if count == 15 else count}",
            ):
                sink.commit(reports, task)
        assert numbers(s.url, "S") == list(range(15))

    def test_late_rows_of_the_first_attempt_fail_the_commit(
        self, admin: Publisher, s: Stream, sink: Sink
    ) -> None:
        """Rows that the first attempt stores after the lookup of the second one count as well, and
        the second attempt's own rows do not.
        """
        die(sink, s, rows("s.a", 0, 10))
        late = seen_in(admin, "S")[8:]
        s.remove(9, 10)
        forget(admin, s.name, s.subject)

        def second() -> Iterator[pa.RecordBatch]:
            yield rows("s.a", 0, 8)
            admin.publish(map(sent_again, late))
            forget(admin, s.name, s.subject)
            yield rows("s.a", 9, 10)

        reports = [sink.write(second())]
        with pytest.raises(
            DeliveryError, match="1 rows are stored that are not among the 18 of this run"
        ):
            sink.commit(reports)
        assert sorted(numbers(s.url, "S")) == list(range(19))

    def test_a_dead_letter_that_is_stored_the_next_time(self, make: MakeStream) -> None:
        s, dead = make(max_msg_size=100), make("DEAD")
        sink = Sink.exactly(s.url, deadLetterSubject="dead.row")
        long = rows("s.a", 0, 1, size=100)
        sent: list[int] = []

        def first() -> Iterator[pa.RecordBatch]:
            yield long
            yield rows("s.a", 1, 10)
            s.wait_for(10)
            # The sink handles refusals when it has more rows to send.
            for number in itertools.count(11):
                sent.append(number)
                yield rows("s.a", number, 1)
                if dead.state()["messages"]:
                    raise Died

        with pytest.raises(Died):
            sink.write(first())
        more = sent[-1]  # which may be stored later than now
        s.update(max_msg_size=1000)
        assert sink.write([long, rows("s.a", 1, more)]).stored == more + 1

    def test_a_done_batch_accepts_only_the_same_number_of_rows(
        self, admin: Publisher, s: Stream, sink: Sink
    ) -> None:
        reports = [
            sink.write([rows("s.a", 10 * part, 10)], WriteTask("q", 7, part, run="1"))
            for part in range(2)
        ]
        assert sink.commit(reports, WriteTask("q", 7, 0, run="1")) == 0
        found = json.loads(base64.b64decode(message(admin, "q.batch")["data"]))
        assert (
            found["batch"],
            found["done"],
            found["report"]["tasks"],
            found["report"]["rows"],
        ) == (7, True, 2, 20)
        # Another run may have the rows in other partitions, and nothing is looked for: the driver
        # compares the sums.
        forget(admin, s.name, s.subject)
        s.remove(1)
        for run, (count, said) in enumerate(
            [
                (20, ""),
                (19, "with 20 rows, and this attempt has 19"),
                (21, "20 rows, and this attempt has 21"),
            ]
        ):
            task = WriteTask("q", 7, 3, run=f"again-{run}")
            report = sink.write([rows("s.a", 0, count)], task)
            assert (report.rows, report.stored, report.duplicates) == (count, count, count)
            if said:
                with pytest.raises(
                    DeliveryError,
                    match=f"batch 7 of q was written before .*{said}.* run this batch",
                ):
                    sink.commit([report], task)
            else:
                assert sink.commit([report], task) == 0
        assert numbers(s.url, "S") == list(range(1, 20))

    def test_an_older_batch_is_refused_once_a_newer_one_began(
        self, admin: Publisher, s: Stream, sink: Sink
    ) -> None:
        sink.commit([sink.write([rows("s.a", 0, 10)], WriteTask("q", 7, 0))], WriteTask("q", 7, 0))
        for older in (
            lambda: sink.write([rows("s.a", 20, 10)], WriteTask("q", 6, 2)),
            lambda: sink.commit([TaskReport(0, 10)], WriteTask("q", 6, 0)),
        ):
            with pytest.raises(
                DeliveryError, match="batch 6 of this query is written again, but batch 7 was begun"
            ):
                older()
        assert numbers(s.url, "S") == list(range(10))
        assert sink.write([rows("s.a", 20, 10)], WriteTask("q", 8, 2)).stored == 10

    def test_a_done_batch_write_refuses_other_rows_and_proposes_another_write_id(
        self, admin: Publisher, s: Stream, sink: Sink
    ) -> None:
        task, again = WriteTask("w-load", 0, 0, 3600.0, "1"), WriteTask("w-load", 0, 0, 3600.0, "2")
        sink.commit([sink.write([rows("s.a", 0, 10)], task)], task)
        assert (
            "Nats-TTL: 3600s\r\n"
            in base64.b64decode(message(admin, "w-load.batch")["hdrs"]).decode()
        )
        report = sink.write([rows("s.a", 0, 1)], again)
        with pytest.raises(
            DeliveryError, match=r"of w-load was written .* another writeId, or write with dedup"
        ):
            sink.commit([report], again)


class TestFence:
    @pytest.mark.parametrize("when", ["all answered", "rows without an answer", "all sent"])
    def test_an_attempt_that_was_taken_over_stores_nothing_more(
        self, server: NatsServer, when: str, s: Stream
    ) -> None:
        with WireProxy(server.url) as proxy:
            slow, quick = Sink.exactly(proxy.url, ackTimeout="30s"), Sink.exactly(server.url)
            paused, go_on = threading.Event(), threading.Event()

            def batches() -> Iterator[pa.RecordBatch]:
                yield rows("s.a", 0, 100)
                s.wait_for(100)
                if when == "rows without an answer":
                    proxy.stall_at(b"HPUB s.a ")  # not a question to the ledger before them
                    yield rows("s.a", 100, 100)
                paused.set()
                assert go_on.wait(60)
                if when != "all sent":
                    yield rows("s.a", 200, 100)

            with ThreadPoolExecutor(1) as pool:
                first = pool.submit(slow.write, batches())
                try:
                    assert paused.wait(30)
                    report = quick.write([rows("s.a", 0, 300)])
                finally:
                    proxy.drop(None)
                    proxy.cut()
                    proxy.unstall()
                    go_on.set()
                with pytest.raises(
                    DeliveryError, match="another attempt of partition 0 of batch 1 has taken over"
                ):
                    first.result(60)
        assert report.stored == 300
        assert sorted(numbers(server.url, "S")) == list(range(300))

    def test_an_attempt_of_an_earlier_batch_stores_nothing_more(
        self, server: NatsServer, s: Stream
    ) -> None:
        sink, other = Sink.exactly(server.url), Sink.exactly(server.url, connectTimeout="4s")

        def batches() -> Iterator[pa.RecordBatch]:
            yield rows("s.a", 0, 10)
            assert other.write([rows("s.a", 0, 10)], task=WriteTask("q", 1, 0)).stored == 10
            assert other.write([rows("s.a", 10, 10)], task=WriteTask("q", 2, 0)).stored == 10
            yield rows("s.a", 10, 10)

        with pytest.raises(DeliveryError, match="another attempt"):
            sink.write(batches(), task=WriteTask("q", 1, 0))
        assert numbers(server.url, "S") == list(range(20))

    def test_a_ledger_that_is_too_slow(
        self, server: NatsServer, monkeypatch: pytest.MonkeyPatch, s: Stream
    ) -> None:
        """Without knowing that it owns the task an attempt sends nothing, and it does not ask for
        ever.
        """
        change_times(monkeypatch, lease=1e-9)
        with pytest.raises(
            OutageError, match=f"bucket {BUCKET} gave no current answer within 5e-10 s, for 0.5 s"
        ):
            Sink.exactly(server.url, retryTimeout="500ms").write([rows("s.a", 0, 10)])
        assert s.state()["messages"] == 0


class Election:
    """A connection, and what a cluster may answer in place of its server while the ledger's leader
    changes.

    ``refused`` is how many writes after the first are refused, because an earlier try of them is
    not stored yet. ``outdated`` is how many questions are answered with the entry as it was before
    the last write.
    """

    def __init__(self, connection: Connection, refused: int = 0, outdated: int = 0) -> None:
        self._connection = connection
        self.refused, self.outdated = refused, outdated
        self._answers: dict[bytes, dict[str, Any]] = {}
        self._writes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def request(self, subject: str, body: bytes, **given: Any) -> bytes:
        self._writes += subject.startswith(f"$KV.{BUCKET}.")
        if self._writes > 1 and self.refused:
            self.refused -= 1
            error = {"code": 400, "err_code": 10164, "description": "wrong last sequence"}
            return json.dumps({"error": error, "stream": STREAM, "seq": 0}).encode()
        return self._connection.request(subject, body, **given)

    def ask(self, subject: str, body: bytes, **given: Any) -> dict[str, Any]:
        if not subject.endswith(f"STREAM.MSG.GET.{STREAM}"):
            return self._connection.ask(subject, body, **given)
        if self.outdated and body in self._answers:
            self.outdated -= 1
            return self._answers[body]
        answer = self._connection.ask(subject, body, **given)
        self._answers.setdefault(body, answer)
        return answer


class TestElection:
    """Answers of a cluster that is busy with itself do not mean that another attempt has the task."""

    def attempt(
        self, server: NatsServer, election: Election, batches: Iterable[pa.RecordBatch]
    ) -> TaskReport:
        """The report of a task whose ledger answers as `election`; the batch before it was
        written without trouble.
        """
        sink = Sink.exactly(server.url)
        sink.write([rows("s.a", 0, 10)], task=WriteTask("q", 1, 0))
        sink.connect = lambda patience: cast(Connection, election)  # type: ignore[method-assign]
        return sink.write(batches, task=WriteTask("q", 2, 0))

    def test_an_entry_whose_write_is_under_way(self, server: NatsServer, s: Stream) -> None:
        election = Election(connect(options(server.url)), refused=2)
        assert self.attempt(server, election, [rows("s.a", 10, 10)]).stored == 10
        assert election.refused == 0
        assert numbers(server.url, "S") == list(range(20))

    def test_a_leader_that_has_not_caught_up(
        self, server: NatsServer, monkeypatch: pytest.MonkeyPatch, s: Stream
    ) -> None:
        change_times(monkeypatch, lease=0.05)
        election = Election(connect(options(server.url)), outdated=2)

        def batches() -> Iterator[pa.RecordBatch]:
            for number in itertools.count(10):
                yield rows("s.a", number, 1)
                if not election.outdated:
                    return

        report = self.attempt(server, election, batches())
        assert numbers(server.url, "S") == list(range(10 + report.stored))


class TestOutage:
    def test_one_of_two_rows_with_the_same_id_is_lost(
        self, server: NatsServer, admin: Publisher, make: MakeStream
    ) -> None:
        """The id that stream S has is not that of the row for stream T."""
        s, t = make("S"), make("T")
        with WireProxy(server.url) as proxy:

            def batches() -> Iterator[pa.RecordBatch]:
                answered = {each.name: threading.Event() for each in (s, t)}

                def look(frame: bytes) -> bytes:
                    for name, event in answered.items():
                        if f'{{"stream":"{name}"'.encode() in frame:
                            event.set()
                    return frame

                proxy.drop(look)
                yield batch(data=[b"1", b"1"], subject=["s.a", "t.a"], msg_id=["x", "y"])
                for event in answered.values():
                    assert event.wait(60)
                proxy.drop(lambda frame: b"" if b'{"stream":"' in frame else frame)
                yield batch(data=[b"2", b"2"], subject=["s.a", "t.a"], msg_id=["mine", "mine"])
                for each in (s, t):
                    each.wait_for(2)
                t.remove(2)  # as if it had never come
                for each in (s, t):
                    forget(admin, each.name, each.subject)
                proxy.drop(None)
                proxy.cut()

            report = Sink.exactly(proxy.url, ackTimeout="30s").write(
                batches(), names=["data", "subject", "msg_id"]
            )
        assert (report.stored, report.duplicates) == (4, 1)
        assert (s.state()["messages"], t.state()["messages"]) == (2, 2)

    @pytest.mark.parametrize("how", ["cut", "silence"])
    def test_longer_than_the_stream_remembers(
        self, server: NatsServer, admin: Publisher, how: str, s: Stream
    ) -> None:
        """The sink looks rows up before it sends them again: the stream has forgotten their ids by then."""
        with WireProxy(server.url) as proxy:
            sink = Sink.exactly(
                proxy.url, ackTimeout="1s" if how == "silence" else "30s", stream="S"
            )

            def batches() -> Iterator[pa.RecordBatch]:
                yield rows("s.a", 0, 500)
                s.wait_for(500)
                proxy.drop(lambda frame: b"" if b'{"stream":"S"' in frame else frame)
                yield rows("s.a", 500, 500)
                s.wait_for(1000)
                forget(admin, s.name, s.subject)
                if how == "cut":
                    proxy.cut()
                    proxy.drop(None)
                yield rows("s.a", 1000, 500)

            report = sink.write(batches())
        assert (report.rows, report.stored) == (1500, 1500)
        assert report.duplicates >= 500
        assert sorted(numbers(server.url, "S")) == list(range(1500))

    def test_longer_than_the_stream_remembers_before_the_ledger_answers(
        self,
        server: NatsServer,
        admin: Publisher,
        make: MakeStream,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The connection is back at once, and the question who owns the task takes its time."""
        s = make(duplicate_window=2 * SECOND)
        steps = list[Callable[[], object]]()
        before_check(monkeypatch, steps)
        with WireProxy(server.url) as proxy:
            sink = Sink.exactly(proxy.url, ackTimeout="30s", stream="S")

            def batches() -> Iterator[pa.RecordBatch]:
                proxy.drop(lambda frame: b"" if b'{"stream":"S"' in frame else frame)
                yield rows("s.a", 0, 500)
                s.wait_for(500)
                steps.append(partial(forget, admin, s.name, s.subject))
                proxy.cut()
                proxy.drop(None)

            report = sink.write(batches(), names=("data", "subject"))
        assert not steps
        assert (report.rows, report.stored, report.duplicates) == (500, 500, 500)
        assert numbers(server.url, "S") == list(range(500))

    def test_a_stream_that_is_made_while_nobody_listens(
        self, server: NatsServer, make: MakeStream, s: Stream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Rows for a subject without a stream are refused at once: nobody could find them again."""
        set_write_timing(monkeypatch, last_answers=20.0)  # all come
        with WireProxy(server.url) as proxy:
            with pytest.raises(
                RowRefused, match=r"row 11 .* 't\.a': no stream captures this subject; 10 rows"
            ):
                Sink.exactly(proxy.url).write([rows("s.a", 0, 10), rows("t.a", 10, 10)])
            assert proxy.client_bytes.count(b"PUB s.a") == 10
            assert b"PUB t.a" not in proxy.client_bytes
        t = make("T")
        assert t.state()["messages"] == 0
        report = Sink.exactly(server.url).write([rows("s.a", 0, 10), rows("t.a", 10, 10)])
        assert (report.stored, report.duplicates) == (20, 10)
        assert numbers(server.url, "S") == list(range(10))
        assert s.state()["last_seq"] == 10

    def test_without_the_bucket(self, admin: Publisher, s: Stream, sink: Sink) -> None:
        admin.api(f"STREAM.DELETE.{STREAM}")
        with pytest.raises(
            DeliveryError, match=f"needs the Key-Value bucket {BUCKET}, which does not exist"
        ):
            sink.write([rows("s.a", 0, 10)])
        assert s.state()["messages"] == 0


class TestStart:
    def test_makes_the_ledger_once(self, server: NatsServer, admin: Publisher, s: Stream) -> None:
        sink = Sink.exactly(server.url, stream="S")
        config = admin.api(f"STREAM.INFO.{STREAM}")["config"]
        wanted = dict(bucket_config(1))
        assert {name: config[name] for name in wanted} == wanted
        sink.write([rows("s.a", 0, 1)])
        sink.started()
        preflight._checked.clear()
        sink.started()
        assert entry(admin)["done"] is True

    def test_is_remembered(self, server: NatsServer, s: Stream) -> None:
        with WireProxy(server.url) as proxy:
            sink = Sink.exactly(proxy.url, stream="S")
            asked = proxy.client_bytes.count(b"$JS.API.")
            assert asked > 0
            for _ in range(5):
                sink.started()
            assert proxy.client_bytes.count(b"$JS.API.") == asked
            Sink.exactly(proxy.url, stream="S", maxRetries=3)
            assert proxy.client_bytes.count(b"$JS.API.") > asked

    def test_is_remembered_from_one_write_of_foreach_batch_to_the_next(
        self, s: Stream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each has a `writeId` of its own.

        In an outage the next one waits as a micro-batch does.
        """
        asked: list[float] = []

        def check(write_id: str) -> None:
            times = {"connectTimeout": "7s", "retryTimeout": "77s"}
            given = SinkOptions.from_spark(
                {"servers": s.url, "stream": "S", "writeId": write_id, **times}, streaming=False
            )

            def reached(patience: float) -> Connection:
                asked.append(patience)
                return connect(given.connection, patience=patience)

            start(reached, given)

        check("batch-1")
        assert set(asked) == {7.0}
        asked.clear()
        check("batch-2")
        assert asked == []
        set_write_timing(monkeypatch, check_holds=0.0)
        check("batch-3")
        assert set(asked) == {77.0}
        assert len(preflight._checked) == 1

    @pytest.mark.parametrize("streaming", [True, False])
    @pytest.mark.parametrize(
        ("look", "given"),
        [
            (start, {}),
            (start, {"bucket": "prices"}),
            (start, {"objectBucket": "files"}),
            (ensure, {"ensureStream": "{}", "stream": "S"}),
        ],
    )
    def test_waits_as_long_as_an_outage_may_last_where_a_query_may_have_begun(
        self, look: Callable[..., object], given: dict[str, str], streaming: bool
    ) -> None:
        """Every micro-batch may be planned by a new process, in the middle of an outage."""
        asked: list[float] = []

        def away(patience: float) -> Connection:
            asked.append(patience)
            raise OutageError("away")

        times = {"connectTimeout": "7s", "retryTimeout": "77s", "servers": "nats://127.0.0.1:9"}
        with pytest.raises(OutageError):
            look(away, SinkOptions.from_spark({**times, **given}, streaming=streaming))
        assert asked == [77.0 if streaming else 7.0]

    def test_waits_for_a_domain_whose_link_is_gone(self) -> None:
        """A micro-batch may begin in an outage; nobody answers then, as if the domain did not
        exist.
        """
        with Linked() as linked, WireProxy(linked.leaf.url) as proxy:
            create(linked.hub.url, "FAR")
            sink = Sink(
                proxy.url, stream="FAR", domain="hub", connectTimeout="300ms", retryTimeout="60s"
            )
            linked.cut()
            with ThreadPoolExecutor(1) as pool:
                starting = pool.submit(sink.started)
                # More questions than `connectTimeout` allows.
                wait_until(
                    lambda: starting.done() or proxy.client_bytes.count(b"STREAM.INFO.FAR") >= 8,
                    "the sink asks again and again",
                )
                linked.mend()
                starting.result(60)

    def test_makes_no_ledger_for_a_stream_that_is_refused(
        self, admin: Publisher, make: MakeStream
    ) -> None:
        s = make(retention="workqueue")
        with pytest.raises(DeliveryError, match="it has workqueue retention"):
            Sink.exactly(s.url, stream="S")
        with pytest.raises(Refused) as missing:
            entry(admin)
        assert missing.value.err_code == 10059

    def test_warns_of_batches_that_are_far_apart(
        self, make: MakeStream, caplog: pytest.LogCaptureFixture
    ) -> None:
        s = make(duplicate_window=SECOND // 10)
        sink = Sink(s.url)
        for message_id in ("q.3.0.a", "q.4.0.b", "other.4.0.c", "q.5.0.d"):
            s.send(Message(f"{s.subject}.a", b"", [("Nats-Msg-Id", message_id)]))
            wait_until(lambda: s.last_age() > SECOND // 5, "the message is old")
        # A longer window, the first batch of all, another writer in between, and a stream that is
        # gone say nothing.
        s.update(duplicate_window=60 * SECOND)
        check_interval(sink.connect, sink.options, "q", 4, {"S": (2, 2)})
        s.update()
        for batch_number, streams in (
            (0, {"S": (2, 2)}),
            (5, {"S": (4, 4)}),
            (4, {"GONE": (2, 3)}),
        ):
            check_interval(sink.connect, sink.options, "q", batch_number, streams)
        assert "apart" not in caplog.text
        for _ in range(2):
            check_interval(sink.connect, sink.options, "q", 4, {"S": (2, 2)})
        assert (
            caplog.text.count(
                "apart, and stream S remembers message ids for 0.1 s (duplicate_window)"
            )
            == 1
        )


class Placing:
    """A connection whose server cannot place the replicas of a stream for a number of requests."""

    def __init__(self, connection: Connection, refusals: int) -> None:
        self._connection = connection
        self.refusals = refusals

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def api(self, subject: str, request: bytes, *, context: str) -> dict[str, Any]:
        if ".STREAM.CREATE." in subject and self.refusals:
            self.refusals -= 1
            # As a cluster answers whose leader has not heard of a server since its own start.
            reasons = "no suitable peers for placement, peer offline"
            raise api_error({"code": 400, "err_code": 10005, "description": reasons}, context)
        return self._connection.api(subject, request, context=context)


class TestAClusterThatCannotPlaceTheLedger:
    """A server of the cluster restarts while the first query with exactly-once begins."""

    def test_a_start_waits_until_the_replicas_can_be_placed(self, s: Stream) -> None:
        given = SinkOptions.from_spark(
            {"servers": s.url, "stream": "S", "delivery": "exactly-once"}, streaming=True
        )
        placing = Placing(connect(given.connection, patience=30), 2)
        start(lambda _: cast("Connection", placing), given)
        assert placing.refusals == 0
        assert api(s.url, f"STREAM.INFO.KV_{BUCKET}")["config"]["name"] == STREAM

    def test_a_start_fails_after_the_retry_timeout(self, s: Stream) -> None:
        given = SinkOptions.from_spark(
            {"servers": s.url, "stream": "S", "delivery": "exactly-once", "retryTimeout": "1s"},
            streaming=True,
        )
        placing = Placing(connect(given.connection, patience=30), 1000)
        with pytest.raises(
            DeliveryError,
            match=r"no suitable peers for placement.* \(option retryTimeout\); start the query when the "
            "cluster has 1 servers that can take a replica, or set delivery to deduplicated",
        ):
            start(lambda _: cast("Connection", placing), given)
