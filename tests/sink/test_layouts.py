"""A batch that comes again in other partitions: whatever the layout, each row is stored, and none
twice.
"""

from __future__ import annotations

import base64
import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from spark_jetstream.errors import DeliveryError
from spark_jetstream.permissions import needed
from spark_jetstream.sink.ledger import BUCKET, STREAM
from spark_jetstream.sink.publisher import Publisher as SinkPublisher
from spark_jetstream.sink.report import TaskReport
from spark_jetstream.sink.task import WriteTask
from tests.support.permissions import INBOX, Account, served
from tests.support.publish import Message, Publisher
from tests.support.sinking import (
    SECOND,
    Died,
    Sink,
    batch,
    batches_of,
    forget,
    seen,
    sent_again,
    with_subjects,
)
from tests.support.streams import MakeStream, Stream

pytestmark = pytest.mark.usefixtures("no_connection_left", "quick_ledger")

PLAIN = ("data", "subject")
ORIGIN = ("data", "subject", "stream", "sequence")

Layout = Sequence[Sequence[dict[str, Any]]]
"""The rows of each partition, by column."""


def row(data: str, **more: Any) -> dict[str, Any]:
    return {"data": data.encode(), "subject": "s.a", **more}


def layout(*parts: str, **more: Any) -> Layout:
    """Partitions of rows whose payloads are single letters."""
    return [[row(letter, **more) for letter in part] for part in parts]


def frame(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> pa.RecordBatch:
    return batch(**{name: [each.get(name) for each in rows] for name in names})


class Job:
    """One run of a batch: what Spark does for it, on the same or another cluster."""

    def __init__(
        self,
        sink: Sink,
        run: str,
        parts: Layout,
        names: Sequence[str] = PLAIN,
        *,
        write: str = "q",
        number: int = 1,
    ) -> None:
        self.sink = sink
        self.parts = parts
        self.names = names
        self._run = run
        self._write = write
        self._number = number

    def task(self, partition: int = 0) -> WriteTask:
        return WriteTask(self._write, self._number, partition, run=self._run)

    def write(self, partition: int) -> TaskReport:
        return self.sink.write([frame(self.parts[partition], self.names)], self.task(partition))

    def die(self, partition: int, after: int, stream: Stream, *, known: int = 0) -> None:
        """Store the first rows of a partition, then end as a process that is killed.

        The stream has the ids of `known` of them, from equal rows of another partition.
        """
        before = stream.state()["messages"]

        def some() -> Iterator[pa.RecordBatch]:
            yield frame(self.parts[partition][:after], self.names)
            stream.wait_for(before + after - known)
            raise Died

        with pytest.raises(Died):
            self.sink.write(some(), self.task(partition), names=self.names)

    def tasks(self) -> list[TaskReport]:
        return [self.write(partition) for partition in range(len(self.parts))]

    def commit(self, reports: Sequence[TaskReport]) -> int:
        return self.sink.commit(reports, self.task(), names=self.names)

    def finish(self) -> int:
        """Do all of it. Return how many rows the driver has stored."""
        return self.commit(self.tasks())


def payloads(stream: Stream) -> str:
    """The payloads that a stream has, as one text in the order of the alphabet."""
    return "".join(sorted(data.decode() for _, data in with_subjects(stream.url, stream.name)))


def ids(stream: Stream) -> list[str]:
    return [
        each.block.decode().partition("Nats-Msg-Id: ")[2].partition("\r\n")[0]
        for each in seen(stream)
    ]


def remove_claims(admin: Publisher, key: str) -> None:
    """Let the ledger's entry of a task that is done be as after too many rows for it."""
    subject = f"$KV.{BUCKET}.{key}"
    message = admin.api(f"STREAM.MSG.GET.{STREAM}", {"last_by_subj": subject})["message"]
    entry = json.loads(base64.b64decode(message["data"]))
    assert entry["report"]["claims"]
    entry["report"]["claims"] = None
    admin.publish([Message(subject, json.dumps(entry).encode())])


class TestExactlyOnce:
    @pytest.mark.parametrize("later", [False, True], ids=["within the window", "after the window"])
    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (("abcd", "efgh"), ("aceg", "bd", "fh")),
            (("abcd", "efgh"), ("abcdefgh",)),
            (("abcdefgh",), ("h", "g", "fedc", "ba", "")),
            # Equal rows in one partition, which come to be in several, and the other way round.
            (("aaaab", "bbbcc"), ("ab", "ab", "abc", "abc")),
            (("aab", "aab", "aab"), ("aaabbb", "aaa")),
        ],
    )
    def test_a_batch_that_died_is_stored_once_in_another_layout(
        self, admin: Publisher, before: Sequence[str], after: Sequence[str], later: bool, s: Stream
    ) -> None:
        sink = Sink.exactly(s.url)
        first = Job(sink, "1", layout(*before))
        first.write(0)
        if len(before) > 1:
            equal = Counter(before[0]) & Counter(before[1][:2])
            first.die(1, 2, s, known=equal.total())
        if later:
            forget(admin, "S", "s")
        Job(sink, "2", layout(*after)).finish()
        assert payloads(s) == "".join(sorted("".join(before)))

    def test_a_batch_that_is_killed_again_and_again_is_stored_once(
        self, admin: Publisher, s: Stream
    ) -> None:
        sink = Sink.exactly(s.url)
        Job(sink, "1", layout("aab", "abc", "cde")).die(1, 2, s)
        forget(admin, "S", "s")
        second = Job(sink, "2", layout("aaabb", "ccde"))
        second.write(0)
        forget(admin, "S", "s")
        third = Job(sink, "3", layout("abcde", "abc", "a"))
        reports = third.tasks()
        forget(admin, "S", "s")
        # The driver has died before its commit: another one does all of it again.
        assert len(reports) == 3
        last = Job(sink, "4", layout("a", "abcde", "abc"))
        last.finish()
        assert payloads(s) == "aaabbccde"
        assert len(set(ids(s))) == 9

    @pytest.mark.parametrize("later", [False, True], ids=["within the window", "after the window"])
    def test_equal_rows_of_partitions_are_all_stored(
        self, admin: Publisher, later: bool, s: Stream
    ) -> None:
        job = Job(Sink.exactly(s.url), "1", layout("aab", "abb", "aaa"))
        reports = [job.write(0)]
        if later:
            # What the stream has forgotten it stores again, with the same id: that is the row of
            # another task.
            forget(admin, "S", "s")
        reports += [job.write(1), job.write(2)]
        before = len(payloads(s))
        assert job.commit(reports) == 9 - before
        assert payloads(s) == "aaaaaabbb"

    @pytest.mark.parametrize("after", [("aaaa",), ("aaa", "a"), ("aa", "aa")])
    def test_rows_that_were_stored_with_one_id_are_not_stored_again_in_one_task(
        self, admin: Publisher, after: Sequence[str], s: Stream
    ) -> None:
        """Their tasks were further apart than the duplicate window."""
        sink = Sink.exactly(s.url)
        first = Job(sink, "1", layout("a", "a", "a", "a"))
        for partition in range(3):
            first.write(partition)
            forget(admin, "S", "s")
        assert (payloads(s), len(set(ids(s)))) == ("aaa", 1)
        Job(sink, "2", layout(*after)).finish()
        assert payloads(s) == "aaaa"

    def test_a_commit_that_died_among_its_copies_is_repeated(
        self, admin: Publisher, s: Stream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sink = Sink.exactly(s.url)
        job = Job(sink, "1", layout("aaa", "aaab", "aaa"))
        reports = job.tasks()

        def die(self: SinkPublisher) -> None:
            s.wait_for(10)
            raise Died

        with monkeypatch.context() as patch:
            patch.setattr(SinkPublisher, "flush", die)
            with pytest.raises(Died):
                job.commit(reports)
        s.remove(6, 8)  # as if it had sent only some of them
        forget(admin, "S", "s")
        Job(sink, "2", layout("aaaaa", "aaa", "ab")).finish()
        assert payloads(s) == "aaaaaaaaab"
        assert len(set(ids(s))) == 10

    def test_rows_of_a_killed_run_that_arrive_late_are_not_stored_twice(
        self, admin: Publisher, s: Stream
    ) -> None:
        """They come after the second run has looked, and before it sends what the stream has
        forgotten by then.
        """
        sink = Sink.exactly(s.url)
        Job(sink, "1", layout("ab", "cd")).write(0)
        late = seen(s)[1]
        s.remove(2)
        forget(admin, "S", "s")
        second = Job(sink, "2", layout("acd", "b"))
        first = second.write(0)

        def batches() -> Iterator[pa.RecordBatch]:
            admin.publish([sent_again(late)])
            forget(admin, "S", "s")
            yield frame(second.parts[1], PLAIN)

        report = sink.write(batches(), second.task(1), names=PLAIN)
        assert report.duplicates == 1
        second.commit([first, report])
        assert payloads(s) == "abcd"

    def test_tasks_of_a_run_that_has_lost_its_batch_store_nothing_more(self, s: Stream) -> None:
        """Also those whose partition the new run does not have, and the driver."""
        sink, other = Sink.exactly(s.url), Sink.exactly(s.url, connectTimeout="4s")
        paused, go_on = threading.Event(), threading.Event()
        first = Job(sink, "1", layout("ab", "cd", "efgh"))
        reports = [first.write(0)]

        def batches() -> Iterator[pa.RecordBatch]:
            yield frame(first.parts[2][:2], PLAIN)
            s.wait_for(4)
            paused.set()
            assert go_on.wait(60)
            yield frame(first.parts[2][2:], PLAIN)

        said = "another run has taken batch 1 of q over; this one stores nothing more"
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(sink.write, batches(), first.task(2), names=PLAIN)
            assert paused.wait(30)
            second = Job(other, "2", layout("abcdefgh"))
            others = second.tasks()
            go_on.set()
            with pytest.raises(DeliveryError, match=said):
                writing.result(60)
        for step in (lambda: first.commit(reports), lambda: first.write(1)):
            with pytest.raises(DeliveryError, match=said):
                step()
        second.commit(others)
        assert payloads(s) == "abcdefgh"

    def test_counters_have_each_increment_once(self, make: MakeStream, admin: Publisher) -> None:
        s = make("C", allow_msg_counter=True)
        sink = Sink.exactly(s.url, stream="C")
        names = ("incr", "subject")
        one = {"incr": "1", "subject": "c.total"}
        first = Job(sink, "1", [[one] * 4, [one] * 3, [one] * 5], names)
        first.write(0)
        first.die(2, 5, s, known=4)
        forget(admin, "C", "c", ("Nats-Incr", "0"))
        Job(sink, "2", [[one] * 2, [one] * 10], names).finish()
        assert seen(s)[-1].data == b'{"val":"12"}'
        assert len(seen(s)) == 12

    def test_groups_move_as_a_whole(self, make: MakeStream, admin: Publisher) -> None:
        s = make("G", allow_atomic=True)
        sink = Sink.exactly(s.url, stream="G")
        names = ("data", "subject", "atomic_group")
        one, two, three = (
            [
                {"data": letter.encode(), "subject": "g.a", "atomic_group": name}
                for letter in letters
            ]
            for name, letters in (("one", "aab"), ("two", "aab"), ("three", "ac"))
        )
        plain = {"data": b"a", "subject": "g.a"}
        first = Job(sink, "1", [[*one, plain], [*two, plain], three], names)
        first.write(1)
        forget(admin, "G", "g")
        second = Job(sink, "2", [[plain], [*two, *three, plain], one], names)
        second.write(0)
        Job(sink, "3", [[*three, plain, *one, *two], [plain]], names).finish()
        assert batches_of(seen(s)) == {("one", 3): 1, ("two", 3): 1, ("three", 2): 1}
        assert payloads(s) == "aaaaaaabbc"

    def test_a_group_in_parts_fails_each_time(self, make: MakeStream, s: Stream) -> None:
        """Each has stored its part, and no later run passes for one that has stored it whole."""
        make("G", allow_atomic=True)
        sink = Sink.exactly(s.url, stream="G")
        part = [{"data": b"1", "subject": "g.a", "atomic_group": "one"}]
        for run in ("1", "2", "2"):
            job = Job(sink, run, [part, part], ("data", "subject", "atomic_group"))
            with pytest.raises(
                DeliveryError, match=r"have stored group 'one' in parts: write df.repartition"
            ):
                job.finish()

    def test_equal_schedules_and_guarded_rows_count_once(self, make: MakeStream) -> None:
        """The second schedule replaces an equal one, and the second row expects what the first has
        changed.
        """
        s = make("P", allow_msg_schedules=True, allow_msg_ttl=True, duplicate_window=120 * SECOND)
        sink = Sink.exactly(s.url, stream="P")
        later = {"schedule": "@at 2199-01-01T00:00:00Z", "schedule_target": "p.due"}
        timed = {"data": b"x", "subject": "p.at", **later}
        job = Job(sink, "1", [[timed], [timed]], ("data", "subject", "schedule", "schedule_target"))
        assert job.finish() == 0
        guarded = {"data": b"x", "subject": "p.once", "expected_last_subject_sequence": 0}
        names = ("data", "subject", "expected_last_subject_sequence")
        again = Job(sink, "1", [[guarded], [guarded]], names, number=2)
        assert again.finish() == 0
        assert [each.subject for each in seen(s)] == ["p.at", "p.once"]

    def test_equal_dead_letters_are_all_stored(self, make: MakeStream) -> None:
        s, dead = make(), make("DEAD", duplicate_window=120 * SECOND)
        sink = Sink.exactly(s.url, deadLetterSubject="dead.row")
        bad: dict[str, Any] = {"data": None, "subject": "s.a"}
        empty, wrong = row("", subject="s.a"), row("", subject="s.a b")
        far = row("x", subject="nowhere")
        parts = [[bad, far, wrong], [bad, empty, far], [bad, bad]]
        assert Job(sink, "1", parts).finish() == 3
        assert Job(sink, "2", [[*parts[0], *parts[1]], parts[2]]).finish() == 0
        reasons = Counter(each.headers["Dead-Letter-Reason"][0] for each in seen(dead))
        assert sorted(reasons.values()) == [1, 2, 4]
        assert payloads(s) == ""

    def test_equal_dead_letters_that_are_cut_are_all_stored(self, make: MakeStream) -> None:
        """The driver's copy has a longer id, and names its stream."""
        s, dead = make(), make("DEAD", duplicate_window=120 * SECOND)
        sink = Sink.exactly(s.url, deadLetterSubject="dead.row")
        large = {"data": b"x" * 1_050_000, "subject": "s.a"}
        assert Job(sink, "1", [[large], [large], [large]]).finish() == 2
        letters = seen(dead)
        assert {each.headers["Dead-Letter-Size"][0] for each in letters} == {"1050000"}
        assert len(letters) == 3
        assert Job(sink, "2", [[large, large, large]]).finish() == 0

    def test_dead_letters_of_a_group_are_found_after_the_window(
        self, make: MakeStream, admin: Publisher
    ) -> None:
        s, dead = make(allow_atomic=True), make("DEAD")
        sink = Sink.exactly(s.url, stream="S", deadLetterSubject="dead.row")
        names = (*PLAIN, "atomic_group")
        group = [row("a", atomic_group="g"), row("b", subject="s.a b", atomic_group="g")]
        Job(sink, "1", [group], names).write(0)
        forget(admin, "DEAD", "dead")
        assert Job(sink, "2", [group[::-1]], names).finish() == 0
        assert payloads(dead) == "ab"

    @pytest.mark.parametrize("delivery", ["deduplicated", "exactly-once"])
    def test_dead_letters_of_rows_with_ids_of_users_are_stored_once(
        self, make: MakeStream, delivery: str
    ) -> None:
        s, dead = make(), make("DEAD", duplicate_window=120 * SECOND)
        sink = Sink(s.url, delivery=delivery, deadLetterSubject="dead.row").started()
        bad = [row("a", subject="s.a b", msg_id="1"), row("b", subject="s.a b", msg_id="2")]
        other = {"data": None, "subject": "s.a", "msg_id": "3"}
        names = (*PLAIN, "msg_id")
        Job(sink, "1", [bad, [other]], names).tasks()
        assert Job(sink, "2", [[other, bad[1]], [bad[0]], [bad[0]]], names).finish() == 0
        assert payloads(dead) == "ab"
        assert len(seen(dead)) == 3

    def test_copies_go_where_a_stream_renames_them(
        self, make: MakeStream, admin: Publisher
    ) -> None:
        s = make(
            subject_transform={"src": "s.*", "dest": "s.moved.{{wildcard(1)}}"},
            duplicate_window=120 * SECOND,
        )
        parts = [[row("a"), row("b")], [row("a", subject="s.b"), row("a")], [row("a"), row("c")]]
        assert Job(Sink.exactly(s.url), "1", parts).finish() == 2
        assert Job(Sink.exactly(s.url), "2", [[*parts[0], *parts[1]], parts[2]]).finish() == 0
        wanted = Counter(
            {
                ("s.moved.a", b"a"): 3,
                ("s.moved.b", b"a"): 1,
                ("s.moved.a", b"b"): 1,
                ("s.moved.a", b"c"): 1,
            }
        )
        assert Counter(with_subjects(s.url, "S")) == wanted

    def test_equal_rows_in_several_streams_are_told_apart(self, make: MakeStream) -> None:
        s, t = make(duplicate_window=120 * SECOND), make("T", duplicate_window=120 * SECOND)
        part = [row("a"), row("a", subject="t.a")]
        assert Job(Sink.exactly(s.url), "1", [part, part]).finish() == 2
        assert (payloads(s), payloads(t)) == ("aa", "aa")

    def test_a_batch_that_is_done_is_not_looked_for(self, admin: Publisher, s: Stream) -> None:
        """Its messages may have gone since."""
        sink = Sink.exactly(s.url)
        Job(sink, "1", layout("aab", "cde")).finish()
        s.purge(seq=4)
        assert Job(sink, "2", layout("abcde", "a")).finish() == 0
        with pytest.raises(
            DeliveryError,
            match=r"batch 1 of q was written before .*with 6 rows, and this attempt has 5",
        ):
            Job(sink, "3", layout("abcde")).finish()
        assert payloads(s) == "cde"

    def test_rows_that_are_added_to_a_batch_are_stored(self, admin: Publisher, s: Stream) -> None:
        """A batch that is planned anew, because the checkpoint has lost its end, has rows up to the
        present end.
        """
        sink = Sink.exactly(s.url)
        Job(sink, "1", layout("abc", "def")).write(0)
        forget(admin, "S", "s")
        assert Job(sink, "2", layout("abcd", "efgh")).finish() == 0
        assert payloads(s) == "abcdefgh"

    def test_rows_that_a_later_run_does_not_have_are_an_error(
        self, admin: Publisher, s: Stream
    ) -> None:
        sink = Sink.exactly(s.url)
        Job(sink, "1", layout("abc", "def")).tasks()
        said = "2 rows are stored that are not among the 5 of this run"
        with pytest.raises(
            DeliveryError,
            match=f"batch 1 of q was written before with other rows .{said}.*once=True",
        ):
            Job(sink, "2", layout("abx", "de")).finish()
        # No later run passes for the right one.
        with pytest.raises(DeliveryError, match="it was done with 7 rows, and this attempt has 5"):
            Job(sink, "3", layout("abx", "de")).finish()
        assert payloads(s) == "abcdefx"

    def test_a_stream_that_was_made_again_gets_all_rows(self, s: Stream) -> None:
        sink = Sink.exactly(s.url)
        first = Job(sink, "1", layout("abc", "def"))
        first.tasks()
        s.delete()
        s.create()
        assert Job(sink, "2", layout("abcde", "f")).finish() == 0
        assert payloads(s) == "abcdef"

    def test_rows_of_different_messages_need_no_copies(self, make: MakeStream) -> None:
        s = make(duplicate_window=120 * SECOND)
        parts = [
            [row("a", stream="SRC", sequence=part * 2 + n) for n in (1, 2)] for part in range(3)
        ]
        assert Job(Sink.exactly(s.url), "1", parts, ORIGIN).finish() == 0
        moved = [[each for part in parts for each in part]]
        assert Job(Sink.exactly(s.url), "2", moved, ORIGIN).finish() == 0
        assert payloads(s) == "aaaaaa"

    def test_equal_rows_count_once_if_only_content_counts(
        self, make: MakeStream, admin: Publisher
    ) -> None:
        s = make(duplicate_window=120 * SECOND)
        sink = Sink.exactly(s.url, messageIds="content")
        first = Job(
            sink,
            "1",
            [[row("a", stream="SRC", sequence=1), row("b")], [row("a", stream="SRC", sequence=2)]],
            ORIGIN,
        )
        first.write(0)
        assert (
            Job(
                sink, "2", [[row("b")], [row("a"), row("a")], [row("a"), row("c")]], ORIGIN
            ).finish()
            == 0
        )
        assert payloads(s) == "abc"

    def test_a_write_that_nobody_can_repeat_stores_equal_rows(self, make: MakeStream) -> None:
        """A batch write without `writeId`: the ledger notes no end of it."""
        s = make(duplicate_window=120 * SECOND)
        job = Job(Sink.exactly(s.url), "1", layout("ab", "ab"), write="w-once")
        assert job.finish() == 2
        assert payloads(s) == "aabb"
        assert job.finish() == 0, "its tasks are done, and the copies are there"
        assert payloads(s) == "aabb"

    def test_an_equal_row_that_is_gone_is_an_error(self, make: MakeStream) -> None:
        s = make(duplicate_window=120 * SECOND)
        job = Job(Sink.exactly(s.url), "1", layout("ab", "ab"))
        reports = job.tasks()
        s.remove(1)
        said = (
            "equal rows in stream S, and it has removed 1 of them before the driver could store "
            "their copies; keep"
        )
        with pytest.raises(DeliveryError, match=said):
            job.commit(reports)

    def test_a_task_without_claims_in_the_ledger_looks_its_rows_up(
        self, make: MakeStream, admin: Publisher
    ) -> None:
        """It had ended, with too many rows for the ledger, and runs again in the same job."""
        s = make(duplicate_window=120 * SECOND)
        job = Job(Sink.exactly(s.url), "1", layout("ab", "ab"))
        job.write(1)
        remove_claims(admin, "q.1")
        assert job.finish() == 2
        assert payloads(s) == "aabb"
        assert job.finish() == 0
        assert payloads(s) == "aabb"

    def test_a_task_that_ended_runs_again_where_the_stream_has_other_subjects(
        self, make: MakeStream
    ) -> None:
        """The ledger keeps claims, but not the subjects of known rows in a stream with a subject
        transform.
        """
        s = make(duplicate_window=120 * SECOND, subject_transform={"src": "s.>", "dest": "moved.>"})
        job = Job(Sink.exactly(s.url), "1", layout("ab", "bc"))
        job.write(0)
        job.write(0)
        job.write(1)
        assert job.finish() == 1
        assert payloads(s) == "abbc"


class TestDeduplicated:
    PARTS: ClassVar[Layout] = [
        [row("a", stream="SRC", sequence=part * 2 + n) for n in (1, 2)] for part in range(3)
    ]

    @pytest.fixture
    def s(self, make: MakeStream) -> Stream:
        return make(duplicate_window=120 * SECOND)

    def test_rows_that_name_their_message_are_stored_once_in_each_layout(self, s: Stream) -> None:
        sink = Sink(s.url)
        Job(sink, "1", self.PARTS, ORIGIN).die(1, 1, s)
        moved = [[each for part in self.PARTS for each in part][at::2] for at in range(2)]
        second = Job(sink, "2", moved, ORIGIN)
        assert second.finish() == 0
        assert payloads(s) == "aaaaaa"
        assert not any(report.partitioned for report in second.tasks())

    def test_the_same_row_of_one_message_is_stored_for_each_partition(self, s: Stream) -> None:
        """As a union of a stream with itself has it."""
        sink = Sink(s.url)
        one, two = self.PARTS[0]
        assert Job(sink, "1", [[one, two], [one], [one]], ORIGIN).finish() == 2
        assert Job(sink, "2", [[one, two, one], [one]], ORIGIN).finish() == 0
        assert payloads(s) == "aaaa"

    def test_equal_rows_that_the_driver_may_not_read_are_an_error(self) -> None:
        """It names the way to store them."""
        account = Account()
        with served({account: needed("write", stream="S", subjects=["s.>"], inbox_prefix=INBOX)}):
            account.make("S", duplicate_window=120 * SECOND)
            given = dict(account.login)
            sink = Sink(given.pop("servers"), **given)
            job = Job(sink, "1", [self.PARTS[0], self.PARTS[0]], ORIGIN)
            with pytest.raises(
                DeliveryError,
                match=r"equal rows in stream S, and the driver cannot read them.*drop column seq",
            ):
                job.finish()

    def test_equal_rows_have_no_copies_where_a_stream_renames_them(self, make: MakeStream) -> None:
        s = make(duplicate_window=120 * SECOND, subject_transform={"src": "s.>", "dest": "moved.>"})
        job = Job(Sink(s.url), "1", [self.PARTS[0], self.PARTS[0]], ORIGIN)
        with pytest.raises(
            DeliveryError, match=r"equal rows in stream S, which stores .*subject_transform"
        ):
            job.finish()
        assert payloads(s) == "aa"

    def test_other_rows_have_the_partition_in_their_ids(self, s: Stream) -> None:
        sink = Sink(s.url)
        first, second = (
            Job(sink, str(run), parts)
            for run, parts in enumerate([layout("aa", "a"), layout("aaa")])
        )
        assert first.finish() == 0
        assert payloads(s) == "aaa"
        assert all(report.partitioned for report in second.tasks())
        assert payloads(s) == "aaaa", "one of them was in the other partition"

    def test_ids_of_content_are_the_same_in_each_layout(self, s: Stream) -> None:
        sink = Sink(s.url, messageIds="content")
        Job(sink, "1", layout("abc", "def")).die(0, 2, s)
        assert Job(sink, "2", layout("a", "bcdef")).finish() == 0
        assert payloads(s) == "abcdef"
        assert Job(sink, "3", layout("aab", "cdeffa")).finish() == 0
        assert payloads(s) == "abcdef"
