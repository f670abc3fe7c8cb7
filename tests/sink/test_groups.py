"""Groups (column `atomic_group`): each is stored whole or not at all, whatever is cut, killed or
refused.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jetstream.client.pool import close_all
from spark_jetstream.errors import DeliveryError, OptionError, RowRefused, SchemaError
from spark_jetstream.protocol.arrow import binaries
from spark_jetstream.sink import grouped
from spark_jetstream.sink.columns import SinkColumns
from spark_jetstream.sink.encode import encode
from spark_jetstream.sink.grouped import Grouped
from spark_jetstream.sink.groups import sorted_out, whole_groups
from spark_jetstream.sink.known_groups import questions
from spark_jetstream.sink.row_reading import rows_of
from spark_jetstream.sink.rows import RefusedRow, Rows
from spark_jetstream.sink.sender import Sender
from spark_jetstream.sink.target import Target
from spark_jetstream.sink.task import TaskWriter, WriteTask
from spark_jetstream.sink.window import InFlight, Window
from spark_jetstream.testing import NatsCluster, NatsServer
from tests.support.calls import store, writer_of
from tests.support.proxy import WireProxy
from tests.support.publish import Publisher
from tests.support.queries import refusal
from tests.support.reading import wait_until
from tests.support.sinking import (
    TASK,
    Died,
    Sink,
    batch,
    batches_of,
    forget,
    pass_ack_timeout,
    read_rows,
    seen,
    seen_in,
)
from tests.support.streams import Stream

pytestmark = pytest.mark.usefixtures("no_connection_left", "quick_ledger")

SECOND = 1_000_000_000
LEVELS = ["at-least-once", "deduplicated", "exactly-once"]
COLUMNS = ("data", "subject", "atomic_group")


@pytest.fixture
def proxy(server: NatsServer) -> Iterator[WireProxy]:
    with WireProxy(server.url) as running:
        yield running


@pytest.fixture
def only_the_lost_is_late(monkeypatch: pytest.MonkeyPatch, proxy: WireProxy) -> None:
    """As `never_late`, which counts rows, for groups whose answers are lost one at a time."""
    known = 0

    def late(window: Window) -> list[InFlight]:
        nonlocal known
        groups = sum(int(flight.waiting.sum()) for flight in window.portions)
        if groups != 1 or proxy.dropped <= known:
            return []
        known = proxy.dropped
        return window.portions

    pass_ack_timeout(monkeypatch, late)


def made(server: NatsServer, admin: Publisher, **config: Any) -> Stream:
    return Stream(
        server.url, "S", admin, **{"duplicate_window": 120 * SECOND, "allow_atomic": True, **config}
    )


def sink(
    url: str, delivery: str = "deduplicated", columns: Sequence[str] = COLUMNS, **options: object
) -> Sink:
    return Sink(url, delivery=delivery, stream="S", **options).started(columns)


def rows(groups: Sequence[str | None], size: int = 0, **more: Any) -> pa.RecordBatch:
    """Row i, at one of three subjects, with group i."""
    numbers = range(len(groups))
    data = [f"row {number}".encode().ljust(size, b".") for number in numbers]
    subjects = more.pop("subject", [f"s.{number % 3}" for number in numbers])
    return batch(data=data, subject=subjects, atomic_group=groups, **more)


def scattered(groups: int, size: int, payload: int = 0) -> pa.RecordBatch:
    """Groups of `size` rows each, whose rows come in turn."""
    return rows([f"g{number % groups}" for number in range(groups * size)], payload)


def die_after(
    monkeypatch: pytest.MonkeyPatch, through: Sink, s: Stream, portions: int, given: pa.RecordBatch
) -> None:
    """End an attempt when `portions` portions of groups are stored."""

    def some(*args: Any) -> Iterator[Rows]:
        messages = 0
        for part in itertools.islice(whole_groups(*args), portions):
            yield part
            messages += len(part)
        s.wait_for(messages)
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(grouped, "whole_groups", some)
        with pytest.raises(Died):
            through.write([given])


# -- rows --


@pytest.mark.parametrize("other", ["incr", "schedule", "rollup"])
def test_columns_that_exclude_groups(other: str) -> None:
    names = [*COLUMNS, other, *(["schedule_target"] if other == "schedule" else [])]
    with pytest.raises(
        SchemaError, match=f'columns "atomic_group" and "{other}" cannot be used together'
    ):
        SinkColumns.check([(name, "string") for name in names])


def test_the_frames_of_two_groups() -> None:
    found = read_rows(
        data=[b"1", b"2", b"3"], subject=["s.a", "s.b", "s.c"], atomic_group=["x", "y", "x"]
    )
    (whole,) = whole_groups([found.take(np.array(at)) for at in ([0, 1], [2])], 100, 1000)
    refused, sent = sorted_out(whole, whole.number)
    assert refused == []
    frames = encode(sent, None, None, inbox="_INBOX.abc", first_number=7)
    first = (
        b"NATS/1.0\r\nAtomic-Group: x\r\nNats-Batch-Id: abc.7\r\nNats-Batch-Sequence: %d\r\n%b\r\n"
    )
    commit = b"Nats-Batch-Commit: 1\r\n"
    blocks = [
        first % (1, b""),
        first % (2, commit),
        (first % (1, commit)).replace(b": x", b": y").replace(b"7", b"8"),
    ]
    wanted = [
        b"HPUB %b _INBOX.abc.%d %d %d\r\n%b%b\r\n"
        % (at, number, len(block), len(block) + 1, block, data)
        for at, number, block, data in zip(
            (b"s.a", b"s.c", b"s.b"), (7, 7, 8), blocks, (b"1", b"3", b"2"), strict=True
        )
    ]
    assert [bytes(frames.frames(0, 1)), bytes(frames.frames(1, 2))] == [
        b"".join(wanted[:2]),
        wanted[2],
    ]
    assert frames.size.tolist() == [len(blocks[1]) + 1, len(blocks[2]) + 1]


@pytest.mark.parametrize("delivery", LEVELS)
def test_groups_whose_rows_come_in_turn(
    server: NatsServer, admin: Publisher, delivery: str
) -> None:
    s = made(server, admin)
    names = [None if number % 7 == 0 else f"g{number % 5}" for number in range(700)] + ["alone"]
    headers = [[("A", ["1"]), ("Atomic-Group", ["copied"]), ("Nats-Batch-Id", ["copied"])]] * len(
        names
    )
    report = sink(server.url, delivery, maxInFlight=200).write(
        [rows(names[:350]), rows(names)], names=COLUMNS
    )
    assert (report.rows, report.stored, report.duplicates) == (1051, 1051, 0)
    assert report.groups == {*(name.encode() for name in names if name)}
    messages = seen(s)
    sizes = Counter(name for name in names[:350] + names if name)
    assert batches_of(messages) == Counter(sizes.items())
    numbers = [
        int(message.data[4:])
        for message in messages
        if message.headers.get("Atomic-Group") == ["g3"]
    ]
    assert numbers == [number for number in (*range(350), *range(700)) if names[number] == "g3"]
    assert sum("Atomic-Group" not in message.headers for message in messages) == 50 + 100
    # A message that is written back is not part of its group any more, unless the column says so.
    sink(server.url, delivery).write([rows(names, headers=headers)], WriteTask("back", 0, 0))
    found = {tuple(message.headers.get("Atomic-Group", ())) for message in seen(s)[1051:]}
    assert found == {(), ("alone",), *((f"g{number}",) for number in range(5))}


def test_a_group_of_a_thousand_and_a_larger_one(server: NatsServer, admin: Publisher) -> None:
    s = made(server, admin, subjects=["s.>", "dead"])
    assert sink(server.url).write([rows(["most"] * 1000, 2000)]).stored == 1000
    assert batches_of(seen(s)) == {("most", 1000): 1}
    given = rows([*("more" for _ in range(1001)), "two", "two"])
    said = re.escape(
        "its group 'more' of 1,001 rows is stored whole or not at all: a group has at most 1,000 "
        "rows"
    )
    with WireProxy(server.url) as proxy:
        with pytest.raises(
            RowRefused, match=f"row 1 of partition 0 cannot be stored at subject 's.0': {said}"
        ):
            sink(proxy.url).write([given], WriteTask("q", 2, 0))
        close_all()
        assert b"Nats-Batch-Id" not in proxy.client_bytes
    report = sink(server.url, deadLetterSubject="dead").write([given], WriteTask("q", 3, 0))
    assert (report.stored, report.dead_letters) == (2, 1001)
    dead = [message for message in seen(s) if message.subject == "dead"]
    assert Counter(message.headers["Dead-Letter-Group"][0] for message in dead) == {"more": 1001}
    assert [message.data for message in dead] == [
        f"row {number}".encode() for number in range(1001)
    ]


# -- refused --


def test_a_row_that_can_never_be_stored_takes_its_group_along(
    server: NatsServer, admin: Publisher
) -> None:
    s = made(server, admin, subjects=["s.>", "dead"])
    given = rows(
        ["a", "b", "a", "b", "a", "no name", None],
        subject=["s.1", "s.2", "s..3", "s.4", "s.5", "s.6", "s..7"],
    )
    report = sink(server.url, deadLetterSubject="dead").write([given])
    assert (report.rows, report.stored, report.dead_letters) == (7, 2, 5)
    reasons = {
        message.data: message.headers["Dead-Letter-Reason"][0]
        for message in seen(s)
        if message.subject == "dead"
    }
    alone = "its subject 's..{}' has an empty token"
    group = f"its group 'a' of 3 rows is stored whole or not at all: row 3 of it: {alone.format(3)}"
    bad = "column atomic_group is empty or holds a blank or a control character"
    assert reasons == {
        **dict.fromkeys((b"row 0", b"row 2", b"row 4"), group),
        b"row 5": bad,
        b"row 6": alone.format(7),
    }


def test_a_name_that_is_not_utf8(server: NatsServer, admin: Publisher) -> None:
    """A server takes it as it is, and Spark has it in a column of text (a cast from binary)."""
    s = made(server, admin)
    group = pa.array([b"gr\xfcn"] * 2, pa.binary()).view(pa.string())
    good = batch(data=[b"1", b"2"], subject=["s.1", "s.2"], atomic_group=group)
    store(writer_of("b", {"servers": server.url, "stream": "S"}, good.schema), [good])
    assert s.state()["messages"] == 2
    bad = batch(data=[b"1", None], subject=["s.1", "s.2"], atomic_group=group)
    with pytest.raises(
        RowRefused, match=r"its group 'gr.n' of 2 rows is stored whole or not at all: row 2 of it"
    ):
        sink(server.url).write([bad])


#: What makes a server refuse the group "bad" with its error code, and a column or setting that is
#: to blame.
REFUSALS: dict[str, tuple[int, str, Mapping[str, Any], Mapping[str, Any]]] = {
    "expected sequence": (10071, "expected_last", {"expected_last_subject_sequence": [None, 99, None]}, {}),
    "TTL": (10166, "set allow_msg_ttl", {"ttl": ["1h", None, None]}, {}),
    "size": (10054, "max_msg_size", {"headers": [None, [("A", ["x" * 2000])], None]}, {"max_msg_size": 1000}),
    "headers": (10097, "64 KiB", {"headers": [None, [("A", ["x" * 70_000])], None]}, {}),
    "no stream": (503, "no stream captures", {"subject": ["s.1", "elsewhere", "s.2"]}, {}),
    "another stream": (10174, "a group is for one stream", {"subject": ["s.1", "kept", "s.2"]}, {}),
    "bytes": (10077, "bytes in stream S, and the stream keeps 1,000 at most", {
        "headers": [None, [("A", ["x" * 1000])], None]
    }, {"max_bytes": 1000, "discard": "new"}),
    "full": (10077, "max_msgs_per_subject", {"subject": ["s.1"] * 3}, {
        "max_msgs_per_subject": 2, "discard": "new", "discard_new_per_subject": True
    }),
}  # fmt: skip


@pytest.mark.parametrize(("code", "blamed", "columns", "config"), REFUSALS.values(), ids=REFUSALS)
def test_a_group_that_the_server_refuses(
    server: NatsServer,
    admin: Publisher,
    code: int,
    blamed: str,
    columns: Mapping[str, Any],
    config: Mapping[str, Any],
) -> None:
    s = made(server, admin, **config)
    dead = Stream(server.url, "DEAD", admin, subjects=["dead"])
    bad = rows(["bad"] * 3, **columns)
    others = {
        name: pa.nulls(3, bad.schema.field(name).type) for name in columns if name != "subject"
    }
    good = rows(["good", None, "good"], **others)
    through = sink(server.url, columns=bad.schema.names, deadLetterSubject="dead")
    report = through.write([bad, good.select(bad.schema.names)])
    assert (report.stored, report.dead_letters, batches_of(seen(s))) == (3, 3, {("good", 2): 1})
    s.purge()
    for message in seen(dead):
        assert message.headers["Dead-Letter-Error-Code"] == [str(code)]
        (reason,) = message.headers["Dead-Letter-Reason"]
        assert reason.startswith("its group 'bad' of 3 rows is stored whole or not at all: ")
        assert blamed in reason
    with pytest.raises(
        RowRefused, match="its group 'bad' of 3 rows is stored whole or not at all: "
    ) as caught:
        sink(server.url, "at-least-once", bad.schema.names).write([bad])
    assert (caught.value.err_code, caught.value.number, s.state()["messages"]) == (code, 1, 0)


def test_a_group_of_more_rows_than_its_stream_keeps_is_refused(
    server: NatsServer,
    admin: Publisher,
) -> None:
    s = made(server, admin, max_msgs=3, discard="new")
    dead = Stream(server.url, "DEAD", admin, subjects=["dead"])
    through = sink(server.url, maxRetries="0", deadLetterSubject="dead")
    report = through.write([rows(["bad"] * 4), rows(["good"] * 3)])
    assert (report.stored, report.dead_letters, batches_of(seen(s))) == (3, 4, {("good", 3): 1})
    (reason,) = seen(dead)[0].headers["Dead-Letter-Reason"]
    assert reason.endswith("(error 10077): it has 4 rows, and stream S keeps 3 at most")


@pytest.mark.parametrize("delivery", LEVELS)
def test_a_stream_without_room_for_a_group_stores_it_whole_later(
    server: NatsServer, admin: Publisher, delivery: str
) -> None:
    s = made(server, admin, max_msgs=5, discard="new")
    s.fill(3)
    through = sink(server.url, delivery, maxRetries="0")
    given = rows(["x"] * 3)
    with pytest.raises(RowRefused, match="the stream is full and discards what is new") as caught:
        through.write([given])
    assert (caught.value.err_code, s.state()["messages"]) == (10077, 3)
    s.purge()
    assert through.write([given]).stored == 3
    assert batches_of(seen(s)) == {("x", 3): 1}


@pytest.mark.parametrize("heard", [0, 1, 2, 3])
def test_a_row_that_no_stream_captures_takes_its_group_along_although_its_own_answer_is_late(
    server: NatsServer, admin: Publisher, proxy: WireProxy, heard: int
) -> None:
    """The stream then only says that the group is incomplete, after some answers to earlier tries."""
    s = made(server, admin)
    dead = Stream(server.url, "DEAD", admin, subjects=["dead"])
    answers = itertools.count()

    def late(frame: bytes) -> bytes:
        return b"" if b"NATS/1.0 503" in frame and next(answers) >= heard else frame

    proxy.drop(late)
    given = rows(["bad", "bad", "good"], subject=["elsewhere", "s.1", "s.2"])
    report = sink(proxy.url, maxRetries="1", deadLetterSubject="dead").write([given])
    assert (report.stored, report.dead_letters, batches_of(seen(s))) == (1, 2, {("good", 1): 1})
    assert [message.headers["Dead-Letter-Error-Code"] for message in seen(dead)] == [
        ["503"],
        ["503"],
    ]


def test_a_group_that_expects_the_sequence_of_its_own_row(
    server: NatsServer, admin: Publisher
) -> None:
    """A server answers this group as it answers one whose subject has a message under way.

    Nobody could tell one answer from the other.
    """
    s = made(server, admin)
    given = rows(
        ["a", "a", "b"], subject=["s.1", "s.1", "s.1"], expected_last_subject_sequence=[None, 1, 0]
    )
    through = sink(server.url, "at-least-once", given.schema.names)
    with pytest.raises(
        RowRefused,
        match=r"its group 'a' of 2 rows .*: row 2 of it: column expected_last_subject_seq",
    ):
        through.write([given])
    assert s.state()["messages"] == 0


def test_a_stream_that_does_not_take_groups(server: NatsServer, admin: Publisher) -> None:
    s = made(server, admin, allow_atomic=False)
    command = re.escape("set allow_atomic on it (spark-jetstream stream edit S --allow-atomic)")
    with pytest.raises(
        OptionError, match=f'option stream: S refuses column "atomic_group": {command}'
    ):
        sink(server.url)
    without = Sink(server.url, subject="s.a")
    with pytest.raises(
        OptionError, match='option stream must name the stream for column "atomic_group"'
    ):
        without.started(COLUMNS)
    s.update(allow_atomic=True)
    through = sink(server.url)
    s.update()
    with pytest.raises(
        RowRefused,
        match=r"its group 'g0' of 2 rows .* \(error 10174\): a subject of the group belongs to a "
        r"stream without",
    ):
        through.write([scattered(1, 2)])
    assert s.state()["messages"] == 0


def test_a_stream_that_the_account_cannot_see() -> None:
    # A server before 2.12 would store the rows one by one.
    rights = 'permissions: {publish: {deny: "$JS.API.STREAM.INFO.>"}}'
    config = (
        f"accounts {{ A {{ jetstream: enabled, users: [{{user: u, password: p, {rights}}}] }} }}"
    )
    denied = pytest.raises(
        DeliveryError, match='column "atomic_group" has to see the state of stream S'
    )
    with NatsServer(config=config) as closed, denied:
        sink(closed.url.replace("//", "//u:p@"))


# -- attempts --


@pytest.mark.usefixtures("only_the_lost_is_late")
@pytest.mark.parametrize("delivery", LEVELS)
def test_a_lost_answer_to_a_commit(
    server: NatsServer, admin: Publisher, proxy: WireProxy, delivery: str
) -> None:
    """Only at-least-once stores the group again, also when its first row expects a sequence."""
    s = made(server, admin)
    through = sink(proxy.url, delivery, ackTimeout="10m")
    proxy.drop_frames(b'"batch":')
    report = through.write([scattered(3, 4)])
    assert report.stored == 12
    assert sorted(batches_of(seen(s)).values()) == [1, 1, 2 if delivery == "at-least-once" else 1]
    proxy.drop_frames(b'"batch":')
    given = rows(["x", "x"], subject=["s.new", "s.other"], expected_last_subject_sequence=[0, None])
    s.purge()
    report = through.write([given], WriteTask("expected", 0, 0))
    assert (report.stored, batches_of(seen(s)), proxy.dropped) == (2, {("x", 2): 1}, 2)


@pytest.mark.parametrize("delivery", ["deduplicated", "exactly-once"])
def test_an_attempt_after_one_that_died(
    server: NatsServer, admin: Publisher, monkeypatch: pytest.MonkeyPatch, delivery: str
) -> None:
    """No group is stored twice: within the duplicate window, and with exactly-once after it."""
    s = made(
        server, admin, duplicate_window=SECOND // 4 if delivery == "exactly-once" else 120 * SECOND
    )
    through = sink(server.url, delivery, maxInFlight=20)
    given = scattered(6, 5)
    die_after(monkeypatch, through, s, 2, given)
    assert batches_of(seen(s)) == {
        (f"g{number}", 5): 1 for number in range(s.state()["messages"] // 5)
    }
    if delivery == "exactly-once":
        forget(admin, "S", "s")
    before = s.state()["messages"]
    report = through.write([given])
    assert (report.stored, report.duplicates) == (30, before)
    assert batches_of(seen(s)) == {(f"g{number}", 5): 1 for number in range(6)}
    assert through.write([given]).duplicates == 30
    assert s.state()["messages"] == 30
    if delivery == "deduplicated":
        # Equal rows in other places of the task, and in other groups: the ids are those of their
        # groups.
        s.purge()
        same = [
            batch(data=[b"="] * 4, subject=["s.a"] * 4, atomic_group=list(names))
            for names in ("xyxx", "xxyx")
        ]
        for attempt in same:
            assert through.write([attempt], WriteTask("same", 0, 0)).stored == 4
        assert batches_of(seen(s)) == {("x", 3): 1, ("y", 1): 1}


@pytest.mark.parametrize("delivery", LEVELS)
def test_message_ids_of_which_the_stream_has_some(
    server: NatsServer, admin: Publisher, monkeypatch: pytest.MonkeyPatch, delivery: str
) -> None:
    """The ids are the user's: a group of which one row is stored cannot be whole.

    The names begin alike as far as errors show them.
    """
    s = made(server, admin, subjects=["s.>", "dead"])
    a, b, c, d = (f"{'g' * 80}{letter}" for letter in "abcd")
    through = sink(server.url, delivery, deadLetterSubject="dead")
    first = rows([a, a], msg_id=["1", "2"])
    die_after(monkeypatch, through, s, 1, first)
    given = rows([b, b, c, c, d, d, a, a], msg_id=["3", "2", "4", "4", "5", "6", "1", "2"])
    report = through.write([given])
    assert (report.stored, report.duplicates, report.dead_letters) == (4, 2, 4)
    messages = seen(s)
    assert batches_of(messages) == {(a, 2): 1, (d, 2): 1}
    dead = {
        message.headers["Dead-Letter-Group"][0] for message in messages if message.subject == "dead"
    }
    assert dead == {b, c}


def forget_before_asking(monkeypatch: pytest.MonkeyPatch, admin: Publisher) -> None:
    """Let stream S forget all ids each time that the sink is about to ask for some of them."""
    settle = Grouped._settle_known

    def late(self: Grouped) -> None:
        if self._known:
            forget(admin, "S", "s")
        settle(self)

    monkeypatch.setattr(Grouped, "_settle_known", late)


def write_through_a_cut(
    server: NatsServer, s: Stream, before_cut: Callable[[], None] = lambda: None
) -> None:
    """Write four groups of three rows with exactly-once; all answers before the cut are lost."""
    with WireProxy(server.url) as proxy, ThreadPoolExecutor(1) as pool:
        through = sink(proxy.url, "exactly-once", ackTimeout="60s")
        proxy.drop(lambda frame: b"" if b'"batch":' in frame else frame)
        writing = pool.submit(through.write, [scattered(4, 3)])
        s.wait_for(12)
        before_cut()
        proxy.cut()
        proxy.drop(None)
        report = writing.result(60)
    assert (report.stored, report.duplicates) == (12, 12)
    assert batches_of(seen(s)) == {(f"g{number}", 3): 1 for number in range(4)}


def test_message_ids_that_the_stream_forgets_while_they_are_looked_for(
    server: NatsServer, admin: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group is sent again, as a row is after the duplicate window: it is no dead letter."""
    s = made(server, admin, subjects=["s.>", "dead"], duplicate_window=SECOND)
    forget_before_asking(monkeypatch, admin)
    through = sink(server.url, "deduplicated", deadLetterSubject="dead")
    for _ in range(2):
        assert through.write([rows(["g", "g"], msg_id=["1", "2"])]).stored == 2
    assert batches_of(seen(s)) == {("g", 2): 2}


def test_exactly_once_stores_no_group_again_that_the_stream_forgets_meanwhile(
    server: NatsServer, admin: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream refuses the second try for its ids, and has forgotten them when it is asked."""
    s = made(server, admin, duplicate_window=2 * SECOND)
    forget_before_asking(monkeypatch, admin)
    write_through_a_cut(server, s)


@pytest.mark.parametrize("own", [False, True], ids=["ids of the sink", "ids of the user"])
def test_a_group_is_stored_of_whose_ids_the_stream_forgets_some_while_they_are_looked_for(
    server: NatsServer, admin: Publisher, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """The window ends between its messages: it is neither sent again nor given up."""
    s = made(server, admin, subjects=["s.>", "dead"])
    through = sink(server.url, "deduplicated", deadLetterSubject="dead")
    given = rows(["g"] * 3, msg_id=["1", "2", "3"]) if own else rows(["g"] * 3)
    assert through.write([given]).stored == 3

    def late(known: Sequence[RefusedRow]) -> tuple[Rows, pa.BinaryArray]:
        """The first id is one that the stream does not know, as one that it has forgotten."""
        asked, ids = questions(known)
        return asked, binaries([b"forgotten", *ids.to_pylist()[1:]])

    monkeypatch.setattr(grouped, "questions", late)
    report = through.write([given])
    assert (report.stored, report.duplicates, report.dead_letters) == (3, 3, 0)
    assert report.streams == {"S": (1, 3)}
    assert batches_of(seen(s)) == {("g", 3): 1}
    if own:
        # The same name and one id of that group, but another group: it can never be whole.
        report = through.write([rows(["g"] * 3, msg_id=["8", "2", "9"])])
        assert (report.stored, report.dead_letters) == (0, 3)
        assert batches_of(seen(s)) == {("g", 3): 1}


def test_a_group_is_stored_of_which_a_server_has_lost_an_id(
    nats_server_factory: Callable[..., NatsServer],
) -> None:
    """When it starts again it takes the ids from the messages that it still has."""
    own_server = nats_server_factory()
    given = rows(["g"] * 3)
    with Publisher(own_server.url) as publisher:
        s = made(own_server, publisher)
        through = sink(own_server.url, "deduplicated")
        through.write([given])
        s.remove(1)
    own_server.stop()
    close_all()
    own_server.start()
    report = through.write([given])
    assert (report.stored, report.duplicates, report.streams) == (3, 3, {"S": (1, 3)})
    with Publisher(own_server.url) as publisher:
        assert [each.sequence for each in seen_in(publisher, "S")] == [2, 3]
    close_all()


@pytest.mark.parametrize("seed", range(12))
def test_cuts_at_any_byte(server: NatsServer, admin: Publisher, seed: int) -> None:
    """The connection breaks in the middle of what is sent or answered, again and again."""
    delivery = LEVELS[seed % 3]
    s, random_one = made(server, admin), random.Random(seed)
    given = scattered(20, 6, 300)
    with WireProxy(server.url) as proxy:
        through = sink(proxy.url, delivery, maxInFlight=60, maxRetries=50)
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(through.write, [given])
            for _ in range(6):
                to, most = random_one.choice((("server", 15_000), ("clients", 1500)))
                cut = proxy.cut_after(random_one.randrange(1, most), to=to)
                wait_until(lambda: cut.is_set() or writing.done(), "a cut")  # noqa: B023
            report = writing.result(60)
    assert (report.rows, report.stored) == (120, 120)
    found = batches_of(seen(s))
    assert found.keys() == {(f"g{number}", 6) for number in range(20)}
    assert delivery == "at-least-once" or set(found.values()) == {1}


def test_an_outage_longer_than_the_duplicate_window(server: NatsServer, admin: Publisher) -> None:
    """The answers are lost, and the stream has forgotten the message ids: the ledger finds the
    groups.
    """
    s = made(server, admin, duplicate_window=SECOND // 4)
    write_through_a_cut(server, s, functools.partial(forget, admin, "S", "s"))


def test_a_task_with_too_many_bytes_in_groups(server: NatsServer, admin: Publisher) -> None:
    s = made(server, admin)
    through = sink(server.url, "at-least-once")
    columns = SinkColumns(COLUMNS, None)
    sender = Sender(through.connect, through.options, Target("S"), TASK, None, stream="S")
    read = functools.partial(rows_of, columns=columns)
    writer = TaskWriter(sender, Grouped(sender, most_held=10_000), columns, read)
    with pytest.raises(
        DeliveryError,
        match="rows with an atomic_group have more than 1 GiB in a task: use more part",
    ):
        writer.run([scattered(2, 4, 2000)], 0.0)
    assert s.state()["messages"] == 0


def test_more_groups_than_a_stream_has_room_for(server: NatsServer, admin: Publisher) -> None:
    """It takes 50 batches at a time; the group waits for one of them to end."""
    s = made(server, admin)
    for number in range(50):
        admin.request(
            "s.half", b"", [("Nats-Batch-Id", f"b{number}"), ("Nats-Batch-Sequence", "1")]
        )
    with WireProxy(server.url) as proxy:
        through = sink(proxy.url, maxRetries=0)
        full_one = proxy.awaiting(b'"err_code":10210')
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(through.write, [scattered(2, 3)])
            assert full_one.wait(60)
            end = [
                ("Nats-Batch-Id", "b0"),
                ("Nats-Batch-Sequence", "2"),
                ("Nats-Batch-Commit", "1"),
            ]
            assert json.loads(admin.request("s.half", b"", end))["count"] == 2
            assert writing.result(60).stored == 6
    assert batches_of([message for message in seen(s) if message.subject != "s.half"]) == {
        ("g0", 3): 1,
        ("g1", 3): 1,
    }


@pytest.mark.full
def test_a_leader_that_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    with NatsCluster() as cluster, Publisher(cluster.servers[0].url) as admin:
        Stream(cluster.url, "S", admin, num_replicas=3, allow_atomic=True)

        def some(*args: Any) -> Iterator[Rows]:
            for number, part in enumerate(whole_groups(*args)):
                yield part
                if number == 20:
                    cluster.kill(cluster.leader_of("S"))

        monkeypatch.setattr(grouped, "whole_groups", some)
        through = sink(",".join(cluster.urls), maxInFlight=100, maxRetries=100, ackTimeout="2s")
        report = through.write([scattered(300, 10, 200)])
        assert (report.rows, report.stored) == (3000, 3000)
        with Publisher(next(one.url for one in cluster.servers if one.running)) as left:
            assert batches_of(seen_in(left, "S")) == {
                (f"g{number}", 10): 1 for number in range(300)
            }


# -- Spark --


def test_a_group_in_two_partitions(
    spark: SparkSession, nats_server: NatsServer, publisher: Publisher
) -> None:
    s = Stream(nats_server.url, "GROUPS", publisher, allow_atomic=True)
    frame = spark.range(0, 1000, 1, 4).selectExpr(
        "concat('groups.', id) as subject",
        "cast(id as string) as data",
        "concat('order ', id % 90) as name",
    )
    frame = frame.selectExpr("subject", "data", "replace(name, ' ', '-') as atomic_group")
    writer = frame.write.format("jetstream").options(servers=s.url, stream="GROUPS").mode("append")
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's class depends on its release
        writer.save()
    kind, text = refusal(caught.value)
    said = (
        r"partitions have stored group 'order-\d+' in parts: write df.repartition\('atomic_group'\)"
    )
    assert kind == "DeliveryError"
    assert re.fullmatch(said, text)
    s.purge()
    frame.repartition("atomic_group").write.format("jetstream").options(
        servers=s.url, stream="GROUPS"
    ).mode("append").save()
    sizes = Counter(f"order-{number % 90}" for number in range(1000))
    assert batches_of(seen(s)) == Counter(sizes.items())
