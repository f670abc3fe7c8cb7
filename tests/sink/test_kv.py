"""Rows for a Key-Value bucket: what another client then reads, and that the last row of a key wins
whatever fails.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jetstream.client.pool import close_all
from spark_jetstream.errors import OptionError, RowRefused, StreamNotFound
from spark_jetstream.protocol.pub_ack import Refusal
from spark_jetstream.sink import kv_task
from spark_jetstream.sink.kv import BucketColumns, rounds, rows_of
from spark_jetstream.sink.rows import RefusedRow, Rows
from spark_jetstream.sink.target import KeyBucket
from spark_jetstream.sink.task import WriteTask
from spark_jetstream.streams.lookup import RawMessage, last_message
from spark_jetstream.testing import NatsServer
from tests.support.calls import store, writer_of
from tests.support.keyed import CONFIG, history, make_bucket, name_of, puts, table
from tests.support.leaf import Linked
from tests.support.proxy import WireProxy, answer, is_answer
from tests.support.publish import Message, Publisher, Tap
from tests.support.reading import wait_until
from tests.support.sinking import Sink, batch, seen, stored
from tests.support.streams import MakeStream, Stream

# A connection to the proxy of one test would turn up at the next one that gets its port.
pytestmark = pytest.mark.usefixtures("no_connection_left")

LEVELS = ["at-least-once", "deduplicated"]
HOME = KeyBucket.of("b", "$JS.API")


# Rows, without a server.


def rows(**columns: list[Any]) -> Rows:
    made = batch(**columns)
    return rows_of(made, BucketColumns(tuple(made.schema.names)), "$KV.b.", 1)


DEL, PURGE = b"KV-Operation: DEL\r\n", b"KV-Operation: PURGE\r\nNats-Rollup: sub\r\n"


EXPECTED = b"Nats-Expected-Last-Subject-Sequence: %d\r\n"


def test_operations_revisions_and_lifetimes_become_headers() -> None:
    found = rows(
        key=["a.b"] * 7,
        value=[b"x", b"", b"z", None, b"is dropped", None, b"too"],
        operation=[None, "PUT", "put", "DELETE", "Delete", "PURGE", "purge"],
        expected_revision=[0, None, None, None, None, None, 7],
        ttl=[None, "5m", None, None, None, None, "never"],
    )
    assert found.faults == {}
    assert found.data.to_pylist() == [b"x", b"", b"z", b"", b"", b"", b""]
    lines = [
        EXPECTED % 0,
        b"Nats-TTL: 5m\r\n",
        b"",
        DEL,
        DEL,
        PURGE,
        PURGE + b"Nats-TTL: never\r\n" + EXPECTED % 7,
    ]
    assert found.lines.to_pylist() == lines
    assert set(found.subject.to_pylist()) == {b"$KV.b.a.b"}
    assert found.msg_id is None
    refused = [RefusedRow(found, at, None, "", 0) for at in range(7)]
    assert [row.expected for row in refused] == [0, None, None, None, None, None, 7]
    other = refused[-1].expecting(9)
    assert other.lines.to_pylist() == [lines[-1].replace(EXPECTED % 7, EXPECTED % 9)]
    assert RefusedRow(other, 0, None, "", 0).expected == 9


def test_columns_without_a_value_are_as_none() -> None:
    """Spark's type of `lit(None)` is void, and Arrow's null."""
    empty = pa.nulls(1)
    found = rows(key=["a"], value=[b"x"], operation=empty, expected_revision=empty, ttl=empty)
    assert (found.lines.to_pylist(), found.faults) == ([b""], {})
    BucketColumns.check([("key", "string"), ("value", "void"), ("operation", "string")])
    found = rows(key=["a", "b"], value=pa.nulls(2), operation=["DELETE", "PURGE"])
    assert (found.lines.to_pylist(), found.data.to_pylist()) == ([DEL, PURGE], [b"", b""])
    assert found.faults == {}


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "null key": ({"key": None}, "column key is null"),
    "empty key": ({"key": ""}, "in its key '' a token between the dots is empty"),
    "empty token": ({"key": "a..b"}, "in its key 'a..b' a token between the dots is empty"),
    "wildcard": ({"key": "a.*"}, "in its key 'a.*' a character is not a letter"),
    "line end": ({"key": "a\n"}, r"in its key 'a\n' a character is not a letter"),
    "umlaut": ({"key": "größe"}, "in its key 'größe' a character is not a letter"),
    "long": ({"key": "k" * 1019}, "its key has 1019 bytes, more than 1018"),
    "null value": (
        {"value": None},
        "column value is null, which only a row with operation DELETE or PURGE may be",
    ),
    "operation": (
        {"operation": "DEL"},
        "column operation is 'DEL', but must be PUT, DELETE or PURGE",
    ),
    "blank": (
        {"operation": " PUT"},
        "column operation is ' PUT', but must be PUT, DELETE or PURGE",
    ),
    "negative": ({"expected_revision": -1}, "column expected_revision is negative"),
    "ttl": ({"ttl": "5 m"}, "column ttl is empty or holds a blank"),
}


@pytest.mark.parametrize(("wrong", "reason"), FAULTS.values(), ids=FAULTS)
def test_rows_that_no_bucket_can_hold_are_set_apart(wrong: dict[str, Any], reason: str) -> None:
    longest = "k" * 1018
    good = {"key": longest, "value": b"x", "operation": None, "expected_revision": 1, "ttl": "1m"}
    columns = {name: [value, wrong.get(name, value)] for name, value in good.items()}
    found = rows(**columns)
    assert list(found.faults) == [1]
    assert found.faults[1].startswith(reason)
    assert found.data.to_pylist() == [b"x", b"" if "value" in wrong else b"x"]


@given(st.lists(st.sampled_from("abcdefgh"), max_size=40))
def test_rounds_hold_each_key_once_and_keep_its_order(keys: list[str]) -> None:
    found = [
        turn.tolist() for turn in rounds(pa.array([key.encode() for key in keys], pa.binary()))
    ]
    assert sorted(index for turn in found for index in turn) == list(range(len(keys)))
    for turn in found:
        assert len({keys[index] for index in turn}) == len(turn) > 0
    for key in set(keys):
        assert [i for turn in found for i in turn if keys[i] == key] == [
            i for i, k in enumerate(keys) if k == key
        ]
    assert len(found) == max((keys.count(key) for key in keys), default=0)


def test_a_key_of_a_mirror_is_stored_at_its_origin() -> None:
    far = KeyBucket.of("copy", "$JS.leaf.API", {"name": "KV_b", "external": {"api": "$JS.hub.API"}})
    assert (far.origin.write_prefix, far.api_prefix, far.stream) == (
        "$JS.hub.API.$KV.b.",
        "$JS.hub.API",
        "KV_b",
    )
    assert far.stored_at("$JS.hub.API.$KV.b.a.b") == "$KV.b.a.b"


REASONS = [
    (10071, "wrong last sequence", 12, "expected_revision is 12, and the key has another one"),
    (
        10077,
        "maximum bytes exceeded",
        None,
        "the bucket is full: raise its size (max_bytes of stream KV_b)",
    ),
    (10109, "invalid operation on sealed stream", None, "sealed bucket"),
    (10111, "rollup not permitted", None, "PURGE needs allow_rollup_hdrs on stream KV_b"),
]


@pytest.mark.parametrize(("err_code", "said", "expected", "reason"), REASONS)
def test_refusals_speak_of_buckets(
    err_code: int, said: str, expected: int | None, reason: str
) -> None:
    assert "nobody answers at $KV.b.>" in HOME.reason(Refusal(1, 503, 0, ""), None)
    found = HOME.reason(Refusal(1, 400, err_code, said), expected)
    assert found.startswith(f"{said} (error {err_code}): ")
    assert reason in found
    assert "subject" not in found


# What another client reads.


@pytest.fixture
def bucket(stream: MakeStream) -> Stream:
    return make_bucket(stream)


def sink_of(bucket: Stream, url: str = "", **given: object) -> Sink:
    """A sink for the bucket, perhaps by way of a proxy."""
    return Sink(url or bucket.url, bucket=name_of(bucket), **given)


@pytest.mark.parametrize("delivery", LEVELS)
def test_another_client_reads_the_history(bucket: Stream, delivery: str) -> None:
    operations = ["PUT", None, "delete", "PUT", "PURGE", "PUT", "PUT"]
    values = [b"1", b"2", None, b"3", None, b"4", b"4"]
    rows = batch(
        # What the source gives as well is passed over.
        bucket=["another"] * 10,
        revision=range(10),
        timestamp=range(10),
        key=["a"] * 7 + ["b/x=_-.1", "c", "c"],
        value=[*values, b"b", b"c", None],
        operation=[*operations, None, None, "DELETE"],
    )
    report = sink_of(bucket, delivery=delivery).write([rows])
    assert (report.rows, report.stored, report.duplicates, report.dead_letters) == (10, 10, 0, 0)
    assert report.streams == {bucket.name: (1, 10)}
    assert {b"\r\nNats-Msg-Id: " in message.block for message in seen(bucket)} == {
        delivery == "deduplicated"
    }
    # A purge drops what was before.
    assert history(bucket, "a") == [("a", b"", "PURGE"), ("a", b"4", "PUT"), ("a", b"4", "PUT")]
    assert history(bucket, "c") == [("c", b"c", "PUT"), ("c", b"", "DEL")]
    assert table(bucket) == {"a": b"4", "b/x=_-.1": b"b"}


WRONG = [
    (0, "expected_revision is 0, but the key has revision 2: read it again before changing it"),
    (1, "expected_revision is 1, and the key has revision 2: read it again before changing it"),
]


@pytest.mark.parametrize("delivery", LEVELS)
@pytest.mark.parametrize(("expected", "said"), WRONG)
def test_a_wrong_revision_fails_with_key_and_revision(
    bucket: Stream, delivery: str, expected: int, said: str
) -> None:
    sink = sink_of(bucket, delivery=delivery)
    sink.write([puts(("a.b", b"1"), ("a.b", b"2"))])
    rows = batch(key=["new", "a.b"], value=[b"x", b"y"], expected_revision=[0, expected])
    with pytest.raises(RowRefused) as raised:
        sink.write([rows], WriteTask("q", 2, 0))
    assert str(raised.value) == (
        f"row 2 of partition 0 cannot be stored under key 'a.b' of bucket {name_of(bucket)}: wrong "
        f"last sequence: 2 (error 10071): column {said}; 1 row of the task is stored"
    )
    assert (raised.value.number, raised.value.subject) == (2, f"$KV.{name_of(bucket)}.a.b")
    assert table(bucket) == {"a.b": b"2", "new": b"x"}


def test_rows_that_cannot_be_stored_become_dead_letters(bucket: Stream, stream: MakeStream) -> None:
    dead = stream(storage="memory")
    sink = sink_of(bucket, deadLetterSubject=f"{dead.subject}.row")
    rows = batch(
        key=["good", "a b", "good", "gone", "null", "odd"],
        value=[b"1", b"2", b"3", b"4", None, b"6"],
        operation=[None, None, None, "PURGE", None, "MOVE"],
        expected_revision=[None, None, 0, 99, None, None],
    )
    for _ in range(2):
        report = sink.write([rows])
        assert (report.rows, report.stored, report.dead_letters) == (6, 1, 5)
    assert table(bucket) == {"good": b"1"}
    letters = {
        letter.headers["Dead-Letter-Subject"][0].removeprefix(f"$KV.{name_of(bucket)}."): letter
        for letter in seen(dead)
    }
    expected = {
        "good": (b"3", "column expected_revision is 0, but the key has revision 1"),
        "gone": (b"", "column expected_revision is 99, and the key does not exist"),
        "a b": (b"2", "in its key 'a b' a character is not a letter"),
        "odd": (b"6", "column operation is 'MOVE', but must be PUT, DELETE or PURGE"),
        "null": (b"", "column value is null"),
    }
    assert letters.keys() == expected.keys()
    for key, (data, reason) in expected.items():
        assert letters[key].data == data
        assert reason in letters[key].headers["Dead-Letter-Reason"][0]
    assert letters["gone"].headers["KV-Operation"] == ["PURGE"]


@pytest.mark.parametrize("delivery", LEVELS)
@pytest.mark.parametrize("marker", ["DELETE", "PURGE"])
def test_creating_takes_the_place_of_a_marker(bucket: Stream, delivery: str, marker: str) -> None:
    sink = sink_of(bucket, delivery=delivery)
    sink.write(
        [batch(key=["a", "a", "b"], value=[b"1", None, b"1"], operation=[None, marker, None])]
    )
    rows = batch(key=["a", "c"], value=[b"2", b"1"], expected_revision=[0, 0])
    for attempt in range(2 if delivery == "deduplicated" else 1):
        report = sink.write([rows], WriteTask("q", 2, 0))
        assert (report.rows, report.stored, report.duplicates) == (2, 2, 2 * attempt)
        assert table(bucket) == {"a": b"2", "b": b"1", "c": b"1"}
    assert len(history(bucket, "a")) == (3 if marker == "DELETE" else 2)
    # Deleted and created in the same task.
    rows = batch(
        key=["a", "a"], value=[None, b"3"], operation=[marker, None], expected_revision=[None, 0]
    )
    assert sink.write([rows], WriteTask("q", 3, 0)).stored == 2
    assert table(bucket)["a"] == b"3"


def test_creating_takes_the_place_of_an_expired_key(stream: MakeStream) -> None:
    bucket = make_bucket(stream, allow_msg_ttl=True, subject_delete_marker_ttl=2_000_000_000)
    sink = sink_of(bucket)
    sink.write([batch(key=["a", "b"], value=[b"1", b"1"], ttl=["1s", None])])
    # nats-py takes the server's own marker for a value.
    wait_until(
        lambda: bool(bucket.state()["last_seq"] == 3),
        "the key expires, and a marker takes its place",
    )
    sink.write([batch(key=["a"], value=[b"2"], expected_revision=[0])], WriteTask("q", 2, 0))
    assert table(bucket) == {"a": b"2", "b": b"1"}


def test_creating_a_key_whose_value_is_nowhere_ends(stream: MakeStream) -> None:
    """The server says that the key has a value, and its subject has none: the stream stores under
    another one.
    """
    bucket = make_bucket(
        stream,
        "moved",
        subject_transform={"src": "$KV.moved.*", "dest": "$KV.moved.in.{{wildcard(1)}}"},
    )
    sink = sink_of(bucket, delivery="at-least-once", maxRetries=2)
    rows = batch(key=["a"], value=[b"1"], expected_revision=[0])
    sink.write([rows])
    with pytest.raises(
        RowRefused,
        match="row 1 of partition 0 cannot be stored under key 'a' of bucket moved: wrong last",
    ):
        sink.write([rows])


def test_a_deletion_cannot_expire_where_an_older_value_would_come_back(stream: MakeStream) -> None:
    put = batch(key=["a", "b", "c"], value=[b"1", b"1", b"1"])
    kinds = ["DELETE", "PURGE", "DELETE"]
    rows = batch(key=["a", "b", "c"], value=[None] * 3, operation=kinds, ttl=["1s", "1s", "never"])
    kept, last = (
        make_bucket(stream, allow_msg_ttl=True, max_msgs_per_subject=most) for most in (2, 1)
    )
    for bucket in (kept, last):
        sink_of(bucket).write([put])
    said = (
        r"under key 'a' of bucket .*: operation DELETE can have no ttl in a bucket that keeps "
        r"older revisions"
    )
    with pytest.raises(RowRefused, match=said):
        sink_of(kept).write([rows], WriteTask("q", 2, 0))
    assert table(kept) == {"a": b"1", "b": b"1", "c": b"1"}
    sink_of(kept).write([rows.slice(1)], WriteTask("q", 3, 0))
    sink_of(last).write([rows], WriteTask("q", 2, 0))
    buckets = kept, last
    wait_until(
        lambda: [each.state()["messages"] for each in buckets] == [3, 1],
        "the end of what has a ttl",
    )
    assert (table(kept), table(last)) == ({"a": b"1"}, {})


def test_values_that_the_bucket_refuses_are_named_by_their_keys(stream: MakeStream) -> None:
    bucket = make_bucket(stream, max_msg_size=100)
    sink = sink_of(bucket, delivery="at-least-once")
    said = (
        r"row 2 of partition 0 cannot be stored under key 'large' .*max_msg_size of stream "
        rf"{bucket.name}\)"
    )
    with pytest.raises(RowRefused, match=said):
        sink.write([puts(("small", b"x" * 100), ("large", b"x" * 101))])
    with pytest.raises(
        RowRefused, match=r"under key 'huge' .*the server takes 1048576 \(max_payload\)"
    ):
        sink.write([puts(("huge", b"x" * (1 << 20) + b"x"))])
    with pytest.raises(RowRefused, match=rf"key 'a' .* set allow_msg_ttl on stream {bucket.name} "):
        sink.write([batch(key=["a"], value=[b"1"], ttl=["5m"])])
    bucket.update(max_msg_size=-1, max_bytes=1000)
    room = f"in stream {bucket.name}, and the stream keeps 1,000 at most"
    said = rf"key 'large' .*: it takes 2,\d\d\d bytes {room}"
    with pytest.raises(RowRefused, match=said):
        sink_of(bucket, maxRetries=0).write([puts(("large", b"x" * 2000))])
    assert table(bucket) == {"small": b"x" * 100}


# What is known before the first row.


def test_a_bucket_that_takes_nothing(stream: MakeStream) -> None:
    sealed = make_bucket(stream, sealed=True)
    other = stream(name="KV_other", storage="memory")
    plain = stream(storage="memory")
    mirror = stream(
        name="KV_plainmirror", subjects=[], storage="memory", mirror={"name": plain.name}
    )
    first = make_bucket(stream)
    second = make_bucket(
        stream, subjects=[], mirror={"name": first.name}, discard="old", allow_rollup_hdrs=False
    )
    third = make_bucket(
        stream, subjects=[], mirror={"name": second.name}, discard="old", allow_rollup_hdrs=False
    )
    cases = {
        sealed: "is sealed and takes no more values",
        other: r"stream KV_other is no Key-Value bucket: it does not capture \$KV\.other\.> \(its "
        r"subjects: kv_",
        mirror: f"plainmirror is a mirror of stream {plain.name}, which is no Key-Value bucket",
        third: f"{name_of(third)} is a mirror of {name_of(second)}, which is a mirror as well",
    }
    for each, said in cases.items():
        with pytest.raises(OptionError, match=f"^option bucket: .*{said}") as raised:
            sink_of(each).write([puts(("a", b"1"))])
        assert raised.value.option == "bucket"


def test_a_dead_letter_is_no_key(bucket: Stream, stream: MakeStream) -> None:
    """A fault of a dead letter has nothing to do with the bucket."""
    dead = stream(storage="memory", max_msg_size=100)
    sink = sink_of(bucket, deadLetterSubject=f"{dead.subject}.row")
    with pytest.raises(RowRefused, match=rf"at subject '{dead.subject}.row'") as raised:
        sink.write([puts(("no key", b"1" * 200))])
    assert raised.value.err_code == 10054
    assert f"KV_{name_of(bucket)}" not in str(raised.value)


# The last row of a key wins.


def values(bucket: Stream) -> dict[str, list[int]]:
    """The numbers that each key of the stream has had, in the order of their revisions."""
    found: dict[str, list[int]] = {}
    for data in stored(bucket.url, bucket.name):
        key, _, number = data.decode().partition(" ")
        found.setdefault(key, []).append(int(number))
    return found


def numbered(first: int, count: int, keys: int) -> pa.RecordBatch:
    """Rows whose values say their key and count up; every key comes again after `keys` rows."""
    names = [f"k{number % keys}" for number in range(first, first + count)]
    return puts(*((name, f"{name} {first + at}".encode()) for at, name in enumerate(names)))


def assert_in_order(bucket: Stream, count: int, keys: int, once: bool) -> None:
    """Each key has all its numbers in their order; more than once only where nothing promises
    otherwise.
    """
    found = values(bucket)
    for key in range(keys):
        mine = found[f"k{key}"]
        assert all(one <= other for one, other in pairwise(mine)), (key, mine)
        wanted = list(range(key, count, keys))
        assert (mine if once else sorted(set(mine))) == wanted


@pytest.mark.usefixtures("never_late")
@pytest.mark.parametrize(
    ("delivery", "what"),
    [("at-least-once", "lost"), ("deduplicated", "lost"), ("at-least-once", "503")],
)
def test_order_when_answers_are_missing(
    proxy: WireProxy, bucket: Stream, delivery: str, what: str
) -> None:
    answers = itertools.count(1)
    done = 0

    def trouble(frame: bytes) -> bytes:
        """Now and then, and always in another place, an answer gets lost or says 503."""
        nonlocal done
        if done == 12 or not is_answer(frame) or next(answers) % 97 != 13:
            return frame
        done += 1
        return b"" if what == "lost" else answer(frame, b"", b"NATS/1.0 503\r\n\r\n")

    proxy.drop(trouble)
    sink = sink_of(bucket, proxy.url, delivery=delivery, ackTimeout="10m", maxRetries=20)
    report = sink.write(numbered(first, 400, 150) for first in range(0, 2000, 400))
    proxy.drop(None)
    assert done == 12
    assert (report.rows, report.stored) == (2000, 2000)
    assert_in_order(bucket, 2000, 150, once=delivery == "deduplicated")


def test_order_when_rows_are_not_stored_at_first(proxy: WireProxy, bucket: Stream) -> None:
    """Rows that the server refuses for the time being are sent again, after those that it stores at
    once.
    """
    full = proxy.awaiting(b"maximum bytes exceeded")

    def batches() -> Iterator[pa.RecordBatch]:
        yield numbered(0, 400, 400)
        assert full.wait(60)
        bucket.update(max_bytes=-1)
        yield numbered(400, 800, 400)

    bucket.update(max_bytes=20_000)
    assert sink_of(bucket, proxy.url).write(batches()).stored == 1200
    proxy.drop(None)
    assert_in_order(bucket, 1200, 400, once=True)


@pytest.mark.parametrize("delivery", LEVELS)
def test_order_when_the_wire_is_cut(proxy: WireProxy, bucket: Stream, delivery: str) -> None:
    cuts: list[threading.Event] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for index in range(8):
            if index % 4 == 1:
                cuts.append(proxy.cut_after(50 + 331 * index))
            yield numbered(index * 250, 250, 200)

    report = sink_of(bucket, proxy.url, delivery=delivery).write(batches())
    assert [cut.is_set() for cut in cuts] == [True] * 2
    assert report.stored == 2000
    assert_in_order(bucket, 2000, 200, once=delivery == "deduplicated")


def test_order_when_the_wire_stalls(proxy: WireProxy, bucket: Stream) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield numbered(0, 500, 100)
        proxy.stall()
        known = proxy.connections
        threading.Thread(target=end, args=(known,)).start()
        yield numbered(500, 500, 100)

    def end(known: int) -> None:
        proxy.wait(lambda: proxy.connections > known)
        proxy.unstall()

    assert sink_of(bucket, proxy.url, ackTimeout="1s").write(batches()).stored == 1000
    assert_in_order(bucket, 1000, 100, once=True)


@pytest.mark.usefixtures("never_late")
def test_a_key_that_is_created_over_a_marker_is_waited_for(
    proxy: WireProxy, bucket: Stream
) -> None:
    bucket.send(Message(f"$KV.{name_of(bucket)}.a", b"", [("KV-Operation", "DEL")]))

    def lose(frame: bytes) -> bytes:
        """The first answer to the row that takes the place of the marker, whose revision is 1."""
        sent = [each for each in proxy.client_bytes.split(b"HPUB ") if b"Sequence: 1\r\n" in each]
        return b"" if sent and sent[0].split(b" ")[1] in frame and not proxy.dropped else frame

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(key=["a"], value=[b"created"], expected_revision=[0])
        # No room for these before the first row has its answer.
        for number in range(4):
            yield batch(key=[f"k{number}"], value=[b""], expected_revision=[None])
        yield batch(key=["a"], value=[b"later"], expected_revision=[None])

    proxy.drop(lose)
    report = sink_of(bucket, proxy.url, ackTimeout="10m", maxInFlight=2).write(
        batches(), names=["key", "value", "expected_revision"]
    )
    proxy.drop(None)
    assert (report.stored, proxy.dropped) == (6, 1)
    assert table(bucket)["a"] == b"later"
    assert proxy.client_bytes.rfind(b"created") < proxy.client_bytes.find(b"later")


def test_a_key_that_another_client_creates_first(
    bucket: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes between the sink's look at the key's marker and the row that should take the
    marker's place.
    """
    subject = f"$KV.{name_of(bucket)}.a"
    bucket.send(Message(subject, b"", [("KV-Operation", "DEL")]))

    def too_late(*args: Any, **given: Any) -> RawMessage | None:
        last = last_message(*args, **given)
        if last is not None and last.sequence == 1:
            bucket.send(Message(subject, b"other"))
        return last

    monkeypatch.setattr(kv_task, "last_message", too_late)
    with pytest.raises(
        RowRefused, match="column expected_revision is 0, but the key has revision 2: read it again"
    ):
        sink_of(bucket).write([batch(key=["a"], value=[b"created"], expected_revision=[0])])
    assert table(bucket)["a"] == b"other"


def test_different_keys_are_under_way_together(proxy: WireProxy, bucket: Stream) -> None:
    """No row waits for one of another key: all of them go out before the first answer comes."""
    held: list[bytes] = []

    def late(frame: bytes) -> bytes:
        if not is_answer(frame):
            return frame
        held.append(frame)
        if len(held) < 4000:
            return b""
        out = b"".join(held)
        held.clear()
        return out

    proxy.drop(late)
    report = sink_of(bucket, proxy.url, ackTimeout="10m").write([numbered(0, 4000, 4000)])
    proxy.drop(None)
    assert (report.stored, report.duplicates, held) == (4000, 0, [])
    assert len(values(bucket)) == 4000


# A task that is run again.


@pytest.mark.parametrize("delivery", LEVELS)
@pytest.mark.parametrize("stop", [1, 400])
def test_the_same_table_after_another_attempt(bucket: Stream, delivery: str, stop: int) -> None:
    sink = sink_of(bucket, delivery=delivery)
    rows = numbered(0, 1000, 150)

    def broken() -> Iterator[pa.RecordBatch]:
        yield rows.slice(0, stop)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        sink.write(broken())
    report = sink.write([rows])
    assert report.stored == 1000
    found = values(bucket)
    assert {key: numbers[-1] for key, numbers in found.items()} == {
        f"k{number % 150}": number for number in range(850, 1000)
    }
    if delivery == "deduplicated":
        assert_in_order(bucket, 1000, 150, once=True)


@pytest.mark.parametrize(
    ("delivery", "late"), [("at-least-once", [0, 1, 0]), ("deduplicated", [0, 1])]
)
def test_an_id_keeps_a_late_copy_of_an_earlier_attempt_out(
    proxy: WireProxy, bucket: Stream, delivery: str, late: list[int]
) -> None:
    """Without ids a copy that was under way over another server takes the place of a later row."""
    rows = numbered(0, 2, 1)

    def broken() -> Iterator[pa.RecordBatch]:
        yield rows.slice(0, 1)
        assert held.wait(60)
        raise InterruptedError

    subject = f"$KV.{name_of(bucket)}.k0"
    held = proxy.stall_at(f"{subject} ".encode())
    with pytest.raises(InterruptedError):
        sink_of(bucket, proxy.url, delivery=delivery).write(broken(), names=rows.schema.names)
    assert sink_of(bucket, delivery=delivery).write([rows]).stored == 2
    assert values(bucket) == {"k0": [0, 1]}
    with Tap(bucket.url) as tap:
        proxy.unstall()
        wait_until(lambda: any(each.subject == subject for each in tap.heard()), "the copy")
    # The stream stores what comes after that in its turn.
    sink_of(bucket, delivery=delivery).write([puts(("k1", b"k1 0"))])
    assert values(bucket) == {"k0": late, "k1": [0]}


def test_a_later_row_is_known_while_an_earlier_one_is_forgotten(bucket: Stream) -> None:
    """The window of message ids ends between two rows of a key: as the server sees it, only the
    first is new.
    """
    sink = sink_of(bucket)
    first, second = ("a", b"a 1"), ("a", b"a 2")
    sink.write([puts(second, ("b", b"b 1"))])
    report = sink.write([puts(first, second, ("b", b"b 1"))])
    assert (report.rows, report.stored, report.duplicates, report.dead_letters) == (3, 3, 2, 0)
    assert table(bucket) == {"a": b"a 2", "b": b"b 1"}
    assert values(bucket)["a"] == [2, 1, 2]
    assert report.streams == {bucket.name: (1, 4)}
    # The other way round there is nothing to mend.
    sink.write([puts(first)], WriteTask("q", 2, 0))
    report = sink.write([puts(first, second)], WriteTask("q", 2, 0))
    assert (report.stored, report.duplicates) == (2, 1)
    assert values(bucket)["a"] == [2, 1, 2, 1, 2]


@pytest.mark.parametrize("kept", [1, 64])
def test_revisions_in_a_task_that_is_run_again(stream: MakeStream, kept: int) -> None:
    bucket = make_bucket(stream, max_msgs_per_subject=kept)
    sink = sink_of(bucket)
    sink.write([puts(("old", b"1"))], WriteTask("q", 0, 0))
    rows = batch(
        key=["new", "old", "new", "gone", "gone", "gone"],
        value=[b"1", b"2", b"3", b"1", None, b"2"],
        operation=[None, None, None, None, "DELETE", None],
        expected_revision=[0, 1, None, 0, None, 0],
    )
    for attempt in range(3):
        report = sink.write([rows])
        assert (report.rows, report.stored, report.duplicates) == (6, 6, 6 * bool(attempt))
        assert table(bucket) == {"new": b"3", "old": b"2", "gone": b"2"}
    assert bucket.state()["last_seq"] == 7


def test_an_earlier_row_of_the_task_is_no_excuse(bucket: Stream) -> None:
    """The revision that stands in the way is of the same task, but it is that of a row before."""
    sink = sink_of(bucket)
    rows = batch(key=["a", "a"], value=[b"1", b"2"], expected_revision=[None, 0])
    for _ in range(2):
        with pytest.raises(RowRefused, match=r"row 2 .*is 0, but the key has revision 1"):
            sink.write([rows])
    assert table(bucket) == {"a": b"1"}


@pytest.mark.usefixtures("never_late")
@pytest.mark.parametrize("delivery", LEVELS)
def test_a_created_key_whose_answer_was_lost(
    proxy: WireProxy, bucket: Stream, delivery: str
) -> None:
    bucket.send(Message(f"$KV.{name_of(bucket)}.a", b"", [("KV-Operation", "DEL")]))
    proxy.drop_frames(b'"seq":2')
    sink = sink_of(bucket, proxy.url, delivery=delivery, ackTimeout="10m")
    report = sink.write([batch(key=["a"], value=[b"x"], expected_revision=[0])])
    assert (report.stored, report.duplicates, proxy.dropped) == (1, 1, 1)
    assert history(bucket, "a") == [("a", b"", "DEL"), ("a", b"x", "PUT")]


# Behind a domain, or in another account.


_ACCOUNTS = """
jetstream {}
accounts {
  A { jetstream: enabled, users: [{ user: a, password: x }],
      exports: [{ service: "$JS.API.>" }, { service: "$KV.b.>" }] }
  B { users: [{ user: b, password: x }], imports: [
      { service: { account: A, subject: "$JS.API.>" }, to: "JS.A.API.>" },
      { service: { account: A, subject: "$KV.b.>" }, to: "JS.A.API.$KV.b.>" } ] }
}
"""


def test_a_bucket_of_another_account(nats_server_factory: Callable[..., NatsServer]) -> None:
    server = nats_server_factory(config=_ACCOUNTS)
    config = {"name": "KV_b", "subjects": ["$KV.b.>"], "max_msgs_per_subject": 5}
    with Publisher(server.url.replace("//", "//a:x@")) as publisher:
        publisher.api("STREAM.CREATE.KV_b", config)
        publisher.api("STREAM.CREATE.KV_c", {**config, "name": "KV_c", "subjects": ["$KV.c.>"]})
        options = {"user": "b", "password": "x", "apiPrefix": "JS.A.API"}
        rows = batch(
            key=["a", "a"],
            value=[None, b"1"],
            operation=["DELETE", None],
            expected_revision=[None, 0],
        )
        assert Sink(server.url, bucket="b", **options).write([rows]).streams == {"KV_b": (1, 2)}
        # Not imported: its keys go to the other account's API, which says nothing to them.
        sink = Sink(server.url, bucket="c", **options, ackTimeout="200ms", maxRetries=1)
        said = (
            r"stream KV_c answers requests and stores nothing .*, or published messages do not "
            r"reach it; 0 rows"
        )
        with pytest.raises(RowRefused, match=said):
            sink.write([puts(("a", b"1"))])
    close_all()


def test_buckets_behind_a_domain(nats_server: NatsServer) -> None:
    with Linked() as linked:
        for domain in ("hub", "leaf"):
            here = Stream(
                linked.server(domain).url,
                f"KV_{domain}",
                **{**CONFIG, "subjects": [f"$KV.{domain}.>"]},
            )
            for url in (linked.server(domain).url, linked.other(domain).url):
                sink = Sink(url, bucket=domain, domain=domain)
                task = WriteTask(url.rpartition(":")[2], 1, 0)
                rows = batch(
                    key=["a.b", "a.b", "c", "c"],
                    value=[b"1", url.encode(), None, b"new"],
                    operation=[None, None, "DELETE", None],
                    expected_revision=[None, None, None, 0],
                )
                assert sink.write([rows], task).streams.keys() == {here.name}
                assert table(here) == {"a.b": url.encode(), "c": b"new"}
                with pytest.raises(
                    RowRefused, match=r"under key 'c' of bucket .* column expected_revision is 1, "
                ):
                    sink.write(
                        [batch(key=["c"], value=[b"x"], expected_revision=[1])],
                        WriteTask("z", 1, 0),
                    )
            here.publisher.close()
        # A mirror at the leaf of a bucket at the hub: writes go over to the hub.
        mirror = {"name": "KV_hub", "external": {"api": "$JS.hub.API", "deliver": ""}}
        with Publisher(linked.leaf.url) as publisher:
            publisher.api(
                "STREAM.CREATE.KV_copy",
                {"name": "KV_copy", "mirror": mirror, "max_msgs_per_subject": 5},
            )
            rows = batch(key=["m", "m", "m"], value=[b"1", None, b"2"], operation=[None, "PURGE", None],
                         expected_revision=[0, None, 0])  # fmt: skip
            report = Sink(linked.leaf.url, bucket="copy").write([rows])
            assert (report.stored, list(report.streams)) == (3, ["KV_hub"])
            last = publisher.api
            wait_until(
                lambda: bool(
                    last("STREAM.INFO.KV_copy")["state"]["last_seq"] == report.streams["KV_hub"][1]
                ),
                "the mirror has it",
            )
        with pytest.raises(
            StreamNotFound, match=r"^there is no Key-Value bucket leaf \(option bucket\)"
        ):
            Sink(linked.hub.url, bucket="leaf").write([puts(("a", b"1"))])
    close_all()


def test_a_micro_batch_that_is_written_again(bucket: Stream) -> None:
    """As when the driver was killed before Spark noted its end."""
    options = {"servers": bucket.url, "bucket": name_of(bucket)}
    for number, first, count in ((0, 0, 500), (1, 500, 400), (1, 500, 400)):
        frame = puts(
            *((f"k.{row % 300}", str(row).encode()) for row in range(first, first + count))
        )
        store(writer_of("s", options, frame.schema), [frame], number)
    assert table(bucket) == {f"k.{row % 300}": str(row).encode() for row in range(600, 900)}
    assert bucket.state()["last_seq"] == 900
