"""A Key-Value bucket as of a revision or time: each row is right, or the read fails and says what
is gone.

A model of the bucket knows all revisions that were ever stored, and so the table as of each of
them.
"""

from __future__ import annotations

import contextlib
import pickle
import random
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from spark_jetstream.buckets.stream import find_bucket
from spark_jetstream.errors import DataLossError, OptionError, PermissionDenied
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.source import as_of, probes
from spark_jetstream.source.kinds import past
from spark_jetstream.source.probes import ConsumerProbe
from spark_jetstream.streams.leader import look
from spark_jetstream.testing import NatsCluster
from tests.model.filters import matches
from tests.support import calls
from tests.support.calls import BUCKET_ROWS, data_source, rows_of
from tests.support.keyed import CONFIG, make_bucket, name_of
from tests.support.publish import Message, Publisher
from tests.support.reading import wait_until
from tests.support.streams import MakeStream, Stream, iso, nanoseconds

PURGE = {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}
#: A mortal one is put, and expires after a second.
HEADERS = {
    "PUT": {},
    "DELETE": {"KV-Operation": "DEL"},
    "PURGE": PURGE,
    "MORTAL": {"Nats-TTL": "1s"},
}

HOUR = 3_600_000_000_000  # nanoseconds

Table = dict[str, tuple[int, bytes]]


class Revision(NamedTuple):
    number: int
    key: str
    operation: str
    value: bytes


class Model:
    """A bucket, and all revisions that were ever stored in it."""

    def __init__(self, bucket: Stream) -> None:
        self.bucket = bucket
        self.revisions: list[Revision] = []

    def store(self, *changes: tuple[str, str]) -> int:
        """Store changes at once, pairs of key and operation; the last revision."""
        values = [
            f"{key} {place}".encode()
            for place, (key, _) in enumerate(changes, start=len(self.revisions))
        ]
        numbers = self.bucket.publisher.publish(
            Message(
                f"$KV.{name_of(self.bucket)}.{key}", value, [*HEADERS[operation].items()] or None
            )
            for value, (key, operation) in zip(values, changes, strict=True)
        )
        for number, value, (key, operation) in zip(numbers, values, changes, strict=True):
            self.revisions.append(Revision(number, key, operation.replace("MORTAL", "PUT"), value))
        return numbers[-1]

    def put(self, *keys: str) -> int:
        return self.store(*((key, "PUT") for key in keys))

    def delete(self, key: str) -> int:
        return self.store((key, "DELETE"))

    def purge(self, key: str) -> int:
        return self.store((key, "PURGE"))

    def clean(self, key: str) -> None:
        """Remove what is left of a deleted key, as the clients' PurgeDeletes does."""
        self.bucket.purge(filter=f"$KV.{name_of(self.bucket)}.{key}")

    def table(self, revision: int, keys: str = ">") -> Table:
        """The table as it was."""
        last = {each.key: each for each in self.revisions if each.number <= revision}
        return {
            key: (each.number, each.value)
            for key, each in last.items()
            if each.operation == "PUT" and matches(key, keys)
        }

    def kept(self) -> set[int]:
        """The revisions that the bucket still has."""
        return {
            row.revision for row in calls.rows(options(self.bucket, history="true"), BUCKET_ROWS)
        }

    def read(self, **given: object) -> Table:
        """The table that the connector reads; no key twice."""
        return as_table(calls.rows(options(self.bucket, **given), BUCKET_ROWS))

    def refused(self, **given: object) -> str:
        """The error of the connector."""
        with pytest.raises(OptionError) as caught:
            calls.rows(options(self.bucket, **given), BUCKET_ROWS)
        assert caught.value.option in given
        return str(caught.value)


def as_table(rows: list[Any]) -> Table:
    table = {row.key: (row.revision, row.value) for row in rows}
    assert len(table) == len(rows)
    assert all(row.operation == "PUT" for row in rows)
    return table


def options(bucket: Stream, **given: object) -> dict[str, str]:
    return {"servers": bucket.url, "bucket": name_of(bucket)} | {
        name: str(value) for name, value in given.items()
    }


@pytest.fixture
def model(stream: MakeStream) -> Callable[..., Model]:
    return lambda history=5, **config: Model(
        make_bucket(stream, max_msgs_per_subject=history, **config)
    )


Make = Callable[..., Model]


# Certain revisions


def test_every_revision_is_exact_while_all_are_kept(model: Make) -> None:
    bucket = model()
    bucket.put("a", "b.1", "b.2", "a")
    bucket.delete("b.1")
    bucket.put("b.1", "c")
    bucket.delete("a")
    for way in ("consumer", "direct", "auto"):
        for revision in range(1, 9):
            assert bucket.read(asOfRevision=revision, readWith=way) == bucket.table(revision)
            for keys in ("b.*", "b.2,c", ">"):
                found = bucket.read(asOfRevision=revision, readWith=way, keys=keys)
                assert found == bucket.table(revision, keys)


def test_as_many_keys_as_a_consumer_can_have(model: Make) -> None:
    """Together these names are larger than the regular expressions that Arrow takes."""
    names = [f"{number:03}.{'x' * 2000}" for number in range(375)]
    bucket = model()
    bucket.put(names[0], "other", names[-1], "a.b")
    bucket.delete(names[0])
    assert bucket.read(asOfRevision=4, keys=",".join(names)).keys() == {names[0], names[-1]}
    assert bucket.read(asOfRevision=5, keys=",".join([*names, "a.*"])).keys() == {names[-1], "a.b"}


def test_keys_that_are_no_utf8_are_told_apart(model: Make) -> None:
    bucket = model().bucket
    subjects = [f"$KV.{name_of(bucket)}.c.{octet}" for octet in ("\udcff", "\udcfe")]
    bucket.publisher.publish(Message(subject, b"%d" % at) for at, subject in enumerate(subjects))
    rows = calls.rows(options(bucket, asOfRevision=2), BUCKET_ROWS)
    assert [(row.key, row.value) for row in rows] == [("c.\ufffd", b"0"), ("c.\ufffd", b"1")]


def test_a_bucket_that_drops_old_revisions_is_exact_as_long_as_none_of_then_is_dropped(
    model: Make,
) -> None:
    bucket = model(3)
    bucket.put("hot", "hot", "s", "hot", "s", "a", "hot", "hot", "new")
    assert bucket.kept() == {3, 4, 5, 6, 7, 8, 9}
    for revision in range(5, 10):
        assert bucket.read(asOfRevision=revision) == bucket.table(revision)
        assert bucket.read(asOfRevision=revision, keys="new,s") == bucket.table(revision, "new,s")
    bucket.put("hot", "hot")
    assert "key hot has 3 later ones, and" in bucket.refused(asOfRevision=7)
    assert "a larger history (max_msgs_per_subject 3) keeps more" in bucket.refused(
        asOfRevision=7, keys="*"
    )
    # Other keys are certain if their revisions still exist.
    assert bucket.read(asOfRevision=7, keys="a,s") == bucket.table(7, "a,s")
    assert bucket.read(asOfRevision=7, keys="a,nothing") == bucket.table(7, "a")
    assert bucket.read(asOfRevision=8) == bucket.table(8)
    # Nothing shows that the history was 3 before: where it was 1, the key would look the same.
    bucket.put("s", "s")
    assert "key new has 1 later ones, and 1 are sure" in bucket.refused(asOfRevision=8)


def test_a_history_that_was_raised_later_does_not_hide_what_was_dropped_before(model: Make) -> None:
    bucket = model(1)
    bucket.put("a", "x", "x", "a")
    bucket.bucket.update(max_msgs_per_subject=5)
    assert "key a has 1 later ones, and 1 are sure to be kept" in bucket.refused(
        asOfRevision=3, keys="a"
    )
    bucket.put("x", "x")
    assert "1 are sure to be kept" in bucket.refused(asOfRevision=3)
    last = bucket.put("x")
    bucket.put("new", "new")
    assert bucket.read(asOfRevision=last) == bucket.table(last)
    # A history that becomes smaller takes old revisions of all keys at once, written or not.
    bucket.bucket.update(max_msgs_per_subject=2)
    assert bucket.kept() == {4, 6, 7, 8, 9}


def test_a_purge_removes_what_its_key_had(model: Make) -> None:
    bucket = model()
    bucket.put("a", "b")
    bucket.delete("b")
    bucket.purge("a")
    bucket.put("a", "a")
    assert "key a was purged, or has expired, by revision 4" in bucket.refused(asOfRevision=3)
    assert bucket.read(asOfRevision=3, keys="b") == {}
    assert bucket.read(asOfRevision=2, keys="b") == bucket.table(2, "b")
    for revision in (4, 5, 6):
        assert bucket.read(asOfRevision=revision) == bucket.table(revision)
    # The earlier revisions of a key that begins with a purge are unknown.
    bucket.purge("new")
    assert "key new was purged" in bucket.refused(asOfRevision=6)


def test_a_deletion_that_was_cleaned_up_hides_no_key(model: Make) -> None:
    bucket = model(2)
    then = bucket.put("q.z", "hot", "hot", "hot", "q.y")
    now = bucket.delete("q.z")
    bucket.clean("q.z")
    for keys in (">", "q.*", "q.z", "q.z,q.y"):
        assert "maybe the deletion of a key" in bucket.refused(asOfRevision=then, keys=keys)
    assert bucket.read(asOfRevision=then, keys="q.y,hot") == bucket.table(then, "q.y,hot")
    assert bucket.read(asOfRevision=now) == bucket.table(now)
    bucket.put("q.z")
    assert "maybe the deletion of a key" in bucket.refused(asOfRevision=then, keys="q.z")


def test_nothing_is_known_of_a_bucket_that_was_purged(model: Make) -> None:
    bucket = model()
    then = bucket.put("a", "b")
    bucket.bucket.purge()
    assert "none up to it is left" in bucket.refused(asOfRevision=then)
    bucket.put("b")
    assert "none up to it is left" in bucket.refused(asOfRevision=then, keys="a")
    assert "key b has 1 later ones" in bucket.refused(asOfRevision=then)
    assert bucket.read(asOfRevision=3, keys="b") == bucket.table(3, "b")


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"deny_delete": False}, "lets single ones be removed"),
        ({"discard": "old", "max_msgs": 100}, "have expired, or were evicted"),
        ({"allow_msg_ttl": True}, "have expired, or were evicted"),
    ],
)
def test_where_revisions_vanish_without_a_trace_all_must_be_there(
    model: Make, config: dict[str, Any], why: str
) -> None:
    bucket = model(2, **config)
    bucket.put("hot", "a", "hot")
    assert bucket.read(asOfRevision=2) == bucket.table(2)
    bucket.put("hot")
    assert why in bucket.refused(asOfRevision=3)
    if "max_msgs" in config:
        assert bucket.read(asOfRevision=3, keys="hot,a") == bucket.table(3)
    else:
        assert bucket.read(asOfRevision=2, keys="a") == bucket.table(2, "a")


def test_a_read_fails_if_revisions_may_have_expired(model: Make) -> None:
    bucket = model(max_age=1_000_000_000)
    bucket.put("a")
    wait_until(lambda: bucket.bucket.state()["messages"] == 0, "the end of a revision")
    assert "have expired" in bucket.refused(asOfRevision=1)
    # Whether this one is still there, or not.
    last = bucket.put("b")
    assert "have expired" in bucket.refused(asOfRevision=last)
    # A server removes the oldest first. A bucket that was restored says nothing of what had expired
    # before.
    young = model(2, max_age=HOUR)
    young.put("a", "hot", "hot", "hot", "a", "a")
    assert "have expired" in young.refused(asOfRevision=6)
    young.put("new")
    assert "have expired" in young.refused(asOfRevision=6, keys="new")
    bucket = model(2, max_age=HOUR)
    bucket.put("a", "hot", "hot", "hot")
    assert bucket.read(asOfRevision=4) == bucket.table(4)


def test_limit_markers_tell_what_has_expired(model: Make) -> None:
    bucket = model(1, allow_msg_ttl=True, subject_delete_marker_ttl=HOUR)
    then = bucket.store(("b", "PUT"), ("b", "PUT"), ("a", "MORTAL"), ("b", "PUT"))
    wait_until(lambda: bucket.bucket.state()["last_seq"] > then, "the marker")
    assert "key a was purged, or has expired, by revision 5" in bucket.refused(asOfRevision=then)
    assert bucket.read(asOfRevision=then, keys="b") == bucket.table(then, "b")
    assert bucket.read(asOfRevision=then + 1) == bucket.table(then, "b")


def test_a_last_revision_that_expires_uncovers_none(model: Make) -> None:
    bucket = model(allow_msg_ttl=True, subject_delete_marker_ttl=HOUR // 3600)
    then = bucket.store(("a", "PUT"), ("b", "PUT"), ("a", "MORTAL"))
    # No marker: the one before counts again.
    wait_until(lambda: bucket.bucket.state()["messages"] == 2, "the end of a revision")
    assert bucket.bucket.state()["last_seq"] == then
    assert "one of key a may have expired by a TTL" in bucket.refused(asOfRevision=then)
    assert "one of key b may have expired by a TTL" in bucket.refused(asOfRevision=then, keys="b")
    assert bucket.read(asOfRevision=2) == bucket.table(2)


def test_a_revision_that_expires_between_others_uncovers_none(model: Make) -> None:
    # The server keeps each for as long as a marker, at least.
    bucket = model(allow_msg_ttl=True, subject_delete_marker_ttl=HOUR // 3600)
    bucket.store(("a", "PUT"), ("a", "MORTAL"), ("a", "PUT"), ("b", "PUT"))
    wait_until(lambda: bucket.bucket.state()["messages"] == 3, "the end of a revision")
    assert "one of key a may have expired by a TTL" in bucket.refused(asOfRevision=2)
    assert "one of key b may have expired by a TTL" in bucket.refused(asOfRevision=3, keys="b")
    for revision in (1, 3, 4):
        assert bucket.read(asOfRevision=revision, keys="a") == bucket.table(revision, "a")


# Times


def test_a_time_is_the_revision_before_the_first_one_stored_after_it(model: Make) -> None:
    bucket = model()
    for key in ("a", "b", "a"):
        bucket.put(key)
    times = [bucket.bucket.stored_time(revision) for revision in (1, 2, 3)]
    for way in ("consumer", "direct"):
        for revision, moment in enumerate(times, start=1):
            for at, expected in ((moment - 1, revision - 1), (moment, revision)):
                assert bucket.read(asOfTimestamp=iso(at), readWith=way) == bucket.table(expected)
    now = nanoseconds(bucket.bucket.publisher.api(f"STREAM.INFO.{bucket.bucket.name}")["ts"])
    assert bucket.read(asOfTimestamp=iso(now)) == bucket.table(3)
    assert "is not over by the server's clock" in bucket.refused(asOfTimestamp=iso(now + HOUR))
    assert "is before the bucket was created" in bucket.refused(asOfTimestamp=iso(now - HOUR))
    assert "is 4, but the last revision of bucket" in bucket.refused(asOfRevision=4)


def test_a_read_fails_if_a_missing_deletion_may_precede_its_time(model: Make) -> None:
    bucket = model(2)
    bucket.put("hot", "hot", "hot")
    last = bucket.put("z")
    then = bucket.bucket.stored_time(last)
    bucket.delete("z")
    bucket.clean("z")
    assert "maybe the deletion" in bucket.refused(asOfTimestamp=iso(then))
    bucket.put("y")
    assert "maybe the deletion" in bucket.refused(asOfTimestamp=iso(then))
    assert bucket.read(asOfRevision=5) == bucket.table(5)


# Changes during the read


def test_the_plan_fixes_the_revision(model: Make) -> None:
    bucket = model()
    last = bucket.put("a", "b")
    now = nanoseconds(bucket.bucket.publisher.api(f"STREAM.INFO.{bucket.bucket.name}")["ts"])
    for given in ({"asOfRevision": last}, {"asOfTimestamp": iso(now)}):
        reader: Any = data_source(options(bucket.bucket, **given)).reader(BUCKET_ROWS)
        parts = pickle.loads(pickle.dumps(reader.partitions()))
        for _ in range(2):
            bucket.put("a", "c")
            assert as_table(list(rows_of(reader, parts))) == bucket.table(last)
    bucket.bucket.delete()
    bucket.bucket.create()
    with pytest.raises(DataLossError, match="was deleted and created again"):
        list(rows_of(reader, parts))


def during(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object], **state: Any) -> None:
    """Work when a reader has read the headers of the past, before it asks for the stream's state;
    change that.
    """

    def looked(*args: Any, **more: Any) -> StreamSummary:
        work()
        return replace(look(*args, **more), **state)

    monkeypatch.setattr(as_of, "look", looked)


def test_revisions_that_are_removed_during_the_read(
    model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = model(3)
    bucket.put("a", "x", "b", "b", "b", "b")
    bucket.store(("c", "DELETE"))
    # Nothing of then is lost; but it is no more there when the rows are read.
    during(monkeypatch, lambda: bucket.put("x", "x", "x"))
    assert "1 of its revisions were removed while they were read" in bucket.refused(asOfRevision=7)
    during(monkeypatch, lambda: bucket.purge("c"))
    assert "1 of its revisions were removed while they were read" in bucket.refused(
        asOfRevision=7, keys="c"
    )


def test_with_replicas_the_leader_confirms_what_could_be_gone(
    model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = model(3)
    bucket.put("x", "b", "b", "b", "b", "x")
    during(monkeypatch, lambda: bucket.put("new"), num_replicas=3)
    assert bucket.read(asOfRevision=6) == bucket.table(6)
    monkeypatch.setattr(as_of, "message", lambda *_, **__: None)
    assert "revision 7 was removed while the table was read" in bucket.refused(asOfRevision=6)

    def denied(*_: Any, **__: Any) -> None:
        raise PermissionDenied("no", subject="$JS.API.STREAM.MSG.GET")

    # Then nobody knows whether a replica that lags has left something out.
    monkeypatch.setattr(as_of, "message", denied)
    with pytest.raises(PermissionDenied):
        bucket.read(asOfRevision=6, keys="x")


def test_with_replicas_the_leader_says_whether_a_time_is_later_than_all(
    model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer on a replica that lags does not know what was stored since, and the account may
    not ask the leader.
    """

    def replicated(*args: Any) -> tuple[StreamSummary, tuple[str, ...]]:
        state, subjects = find_bucket(*args)
        return replace(state, num_replicas=3), subjects

    def denied(*_: Any, **__: Any) -> None:
        raise PermissionDenied("no", subject="$JS.API.STREAM.MSG.GET")

    bucket = model()
    then = iso(bucket.bucket.stored_time(bucket.put("a")))
    bucket.put("a", "b")
    monkeypatch.setattr(past, "find_bucket", replicated)
    monkeypatch.setattr(ConsumerProbe, "first_after", lambda *_: None)
    assert bucket.read(asOfTimestamp=then) == bucket.table(1)
    monkeypatch.setattr(probes, "first_messages", denied)
    with pytest.raises(PermissionDenied):
        bucket.read(asOfTimestamp=then)


def test_others_write_meanwhile(model: Make) -> None:
    bucket = model(4)
    keys = [f"k{number}" for number in range(40)]
    last = bucket.put(*keys, *keys, *keys[:20])
    chance, ending = random.Random(11), threading.Event()

    def write() -> None:
        with Publisher(bucket.bucket.url) as publisher:
            while not ending.is_set():
                subjects = [f"$KV.{name_of(bucket.bucket)}.{key}" for key in chance.sample(keys, 5)]
                publisher.publish(Message(subject, b"other") for subject in subjects)

    with ThreadPoolExecutor() as pool:
        writing = pool.submit(write)
        try:
            for _ in range(10):
                with contextlib.suppress(OptionError):
                    assert bucket.read(asOfRevision=last) == bucket.table(last)
        finally:
            ending.set()
        writing.result()
    bucket.put(*keys[:1] * 4)
    assert "a larger history" in bucket.refused(asOfRevision=last)


def ends(cluster: NatsCluster, stream: str) -> list[int]:
    """The last sequence of a stream on each server, by its own word."""
    pages = [server.monitor("/jsz?accounts=true&streams=true") for server in cluster.servers]
    accounts = [account for page in pages for account in page.get("account_details") or ()]
    details = [detail for account in accounts for detail in account.get("stream_detail") or ()]
    return [int(detail["state"]["last_seq"]) for detail in details if detail["name"] == stream]


@pytest.mark.full
def test_a_bucket_with_replicas_whose_leader_moves(nats_cluster: NatsCluster) -> None:
    with Publisher(nats_cluster.urls[0]) as publisher:
        config = {
            **CONFIG,
            "subjects": ["$KV.past.>"],
            "max_msgs_per_subject": 3,
            "num_replicas": 3,
        }
        bucket = Model(Stream(nats_cluster.urls[0], "KV_past", publisher, **config))
        bucket.put("s", "s", "hot", "hot", "hot", "hot", "a", "new", "hot")
        for way in ("consumer", "direct"):
            for revision in (7, 8, 9):
                assert bucket.read(asOfRevision=revision, readWith=way) == bucket.table(revision)
            publisher.api("STREAM.LEADER.STEPDOWN.KV_past")
            nats_cluster.leader_of("KV_past")
        last = bucket.put("hot", "hot")
        # A replica that lags still has revision 6, and with it the whole table.
        wait_until(
            lambda: ends(nats_cluster, "KV_past") == [last] * 3, "the last revision on each server"
        )
        assert "key hot has 3 later ones, and" in bucket.refused(asOfRevision=7)
        assert bucket.read(asOfRevision=7, keys="s,a") == bucket.table(7, "s,a")
        bucket.bucket.delete()


# Copies


def test_a_mirror_that_lacks_revisions_proves_nothing(stream: MakeStream, model: Make) -> None:
    bucket = model(2)
    bucket.put("a", "b")
    mirror = stream(
        name=f"{bucket.bucket.name}_copy", subjects=None, mirror={"name": bucket.bucket.name}
    )
    mirror.wait_for(2)
    copy = Model(mirror)
    assert copy.read(asOfRevision=1) == bucket.table(1)
    assert copy.read(asOfTimestamp=iso(bucket.bucket.stored_time(1))) == bucket.table(1)
    assert "which may lag" in copy.refused(asOfTimestamp=iso(bucket.bucket.stored_time(2)))
    mirror.delete()
    bucket.put("a", "a", "c")
    mirror.create()
    mirror.wait_for(4)
    assert "this mirror lacks some" in copy.refused(asOfRevision=4)


# Against the model, at random


def may_refuse(model: Model, kept: set[int], revision: int, timed: bool, keys: str) -> bool:
    """Whether what the bucket has kept leaves a doubt about the table, by the rules of
    docs/buckets.md.
    """
    config = model.bucket.publisher.api(f"STREAM.INFO.{model.bucket.name}")["config"]
    ttl, marked = config.get("allow_msg_ttl", False), config.get("subject_delete_marker_ttl", 0) > 0
    last = model.bucket.state()["last_seq"]
    missing = sorted(set(range(1, last + 1)) - kept)
    # A revision that is missing next to a time may be from before or after it.
    split = max((number for number in kept if number <= revision), default=0) if timed else revision
    revision = (
        min((number for number in kept if number > revision), default=last + 1) - 1
        if timed
        else revision
    )
    if not missing or missing[0] > revision:
        return False
    complete = missing[-1] <= split
    of_key: dict[str, list[Revision]] = {}
    for each in model.revisions:
        if each.number in kept:
            of_key.setdefault(each.key, []).append(each)
    most = max(
        (sum(each.number <= revision for each in some) for some in of_key.values()), default=0
    )
    unseen = not set("*>").isdisjoint(keys)
    for key in of_key if unseen else keys.split(","):
        if not matches(key, keys):
            continue
        before = [each.number for each in of_key.get(key, []) if each.number <= revision]
        after = [each for each in of_key.get(key, []) if each.number > revision]
        if before:
            gap = bisect_right(missing, before[-1]) < bisect_right(missing, revision)
            if ttl and gap:
                return True
        elif after:
            if ttl or not complete or len(after) >= most or after[0].operation == "PURGE":
                return True
        else:
            unseen = True
    return unseen and (not complete or not most or (ttl and not marked))


@pytest.mark.parametrize(
    ("history", "config", "certain"),
    [
        (5, {}, {"all", "group", "listed", "recent"}),
        (5, {"allow_msg_ttl": True}, {"recent"}),
        (1, {"allow_msg_ttl": True, "subject_delete_marker_ttl": HOUR}, {"recent"}),
    ],
)
@pytest.mark.full
def test_ten_thousand_keys_at_random(
    model: Make, history: int, config: dict[str, Any], certain: set[str]
) -> None:
    chance, bucket = random.Random(5), model(history, **config)
    keys = [f"g{number % 50}.k{number}" for number in range(10_000)]
    marks: list[tuple[str, object, int]] = []

    def work(count: int, purges: float, some: list[str]) -> None:
        """Store changes, and note the time and the revision at which they end."""
        operations = chance.choices(
            ["PUT", "DELETE", "PURGE"], [0.85, 0.15 - purges, purges], k=count
        )
        last = bucket.store(*zip(chance.choices(some, k=count), operations, strict=True))
        ended = bucket.bucket.publisher.api(f"STREAM.INFO.{bucket.bucket.name}")["ts"]
        if bucket.bucket.state()["last_seq"] == last:  # no marker was stored before that time
            marks.append(("asOfTimestamp", ended, last))
        marks.append(("asOfRevision", last - chance.randrange(count // 2), 0))

    bucket.put(*chance.sample(keys, 9000))
    work(10, 0.0, keys[:9])
    work(20_000, 0.01, keys)
    for key in [each.key for each in bucket.revisions if each.operation == "DELETE"][:200:10]:
        if key not in bucket.table(bucket.revisions[-1].number):
            bucket.clean(key)
    work(200, 0.0, keys)
    mortal = set[int]()
    if config:
        bucket.store(*((key, "MORTAL") for key in chance.choices(keys, k=300)))
        mortal = {each.number for each in bucket.revisions[-300:]}
    for _ in range(4):
        work(500, 0.0, keys)
    work(3000, 0.0, keys[:500])
    work(200, 0.02, keys)
    work(100, 0.0, keys)
    if config:
        wait_until(lambda: not bucket.kept() & mortal, "the end of the mortal ones")
        own = {each.number for each in bucket.revisions}
        found = calls.rows(options(bucket.bucket, history="true"), BUCKET_ROWS)
        markers = [
            Revision(row.revision, row.key, row.operation, b"")
            for row in found
            if row.revision not in own
        ]
        assert bool(markers) == ("subject_delete_marker_ttl" in config)
        bucket.revisions = sorted([*bucket.revisions, *markers])
    kept, outcomes = bucket.kept(), Counter[tuple[str, bool]]()
    marks.append(("asOfRevision", bucket.bucket.state()["last_seq"], 0))
    for option, value, last in marks:
        revision = last or int(str(value))
        recent = {each.key for each in bucket.revisions if revision - 10 < each.number <= revision}
        listed = ",".join(chance.sample(keys, 20))
        for kind, some in {
            "all": ">",
            "group": "g7.*",
            "listed": listed,
            "recent": ",".join(recent),
        }.items():
            refusal = ""
            try:
                assert bucket.read(**{option: value, "keys": some}) == bucket.table(revision, some)
            except OptionError as error:
                refusal = str(error)
            assert not refusal or may_refuse(
                bucket, kept, revision, option == "asOfTimestamp", some
            ), refusal
            outcomes[kind, not refusal] += 1
    assert {kind for kind, right in outcomes if not right} == {"all", "group", "listed", "recent"}
    assert {kind for kind, right in outcomes if right} >= certain
