"""Object Store buckets, written by nats-py and read back as rows, while others replace, delete and
damage the objects.

In each case an object has its row with just the bytes of one of its versions, or an error says
what is wrong.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest
from nats.js.object_store import ObjectStore

from spark_jetstream.buckets.objects import digest_text, meta_filter, meta_subject
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.requests import Connect
from spark_jetstream.errors import DataLossError, JetStreamError
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.protocol.conventions import DEFAULT_CHUNK_SIZE
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.source.advice import Read
from spark_jetstream.source.objects import LARGEST_CONTENT, ObjectGroup
from spark_jetstream.streams.direct import read_direct
from spark_jetstream.streams.pull import PullSettings, read_range
from spark_jetstream.testing import NatsServer
from tests.support.client import full
from tests.support.objects import ALL, SOME, Bucket, buckets, by_name, object_rows, rows_of
from tests.support.proxy import WireProxy
from tests.support.publish import Message, Publisher
from tests.support.reading import SETTINGS, connecting, consumers, wait_until

FORGIVING = replace(SETTINGS, fail_on_data_loss=False)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass
class Hooked:
    """Reads as `inner` does, and does something once in between: before message `at` of read number
    `call`.
    """

    action: Callable[[], None]
    call: int = 1
    at: int = 0
    inner: Read = read_range
    calls: int = 0
    done: bool = False

    def __call__(
        self, to: Connect, part: SequenceRange, settings: PullSettings, label: str
    ) -> Iterator[MessageRun]:
        self.calls += 1
        mine = self.calls == self.call
        if mine and self.at == 0:
            self._act()
        seen = 0
        for messages in self.inner(to, part, settings, label):
            seen += len(messages)
            yield messages
            if mine and not self.done and seen >= self.at:
                self._act()

    def _act(self) -> None:
        self.done = True
        self.action()


@pytest.fixture
def make(nats_server: NatsServer, publisher: Publisher) -> Iterator[Callable[[], Bucket]]:
    """Makes buckets on the shared server; gone after the test."""
    with buckets(nats_server.url, publisher) as new:
        yield new


@pytest.fixture
def bucket(make: Callable[[], Bucket]) -> Bucket:
    return make()


CONTENTS = {
    "empty": b"",
    "one byte": b"\x00",
    "line\r\nends": b"MSG a 1 1\r\n\r\n" * 3,
    "a/b/c.csv": random.Random(1).randbytes(DEFAULT_CHUNK_SIZE),
    "Ünïcödé ☃ *.>": random.Random(2).randbytes(DEFAULT_CHUNK_SIZE + 1),
    " ": random.Random(3).randbytes(5 * DEFAULT_CHUNK_SIZE - 7),
}


# Nothing goes wrong


def test_a_query_reads_objects_that_nats_py_has_written(bucket: Bucket) -> None:
    assert bucket.plan() == bucket.plan(direct=True) == bucket.plan("*") == []
    bucket.put(*CONTENTS.items())
    bucket.put(("headers", b"h"), headers={"A": ["1", "2"], "B": ["ü"]}, description="said")
    bucket.put(("small chunks", b"0123456789" * 500), chunk=999)
    bucket.put(("one byte", b"again"))
    bucket.put(("gone", b"gone"))
    bucket.delete("gone")
    assert bucket.plan("gone") == []

    async def written(store: ObjectStore) -> dict[str, ObjectStore.ObjectResult]:
        infos = await store.list(ignore_deletes=True)
        return {info.name: await store.get(info.name) for info in infos}

    results = bucket.nats(written)
    assert results.keys() == {*CONTENTS, "headers", "small chunks"}
    expected = {
        name: {
            "bucket": bucket.name,
            "name": name,
            "size": result.info.size,
            "chunks": result.info.chunks,
            "digest": result.info.digest,
            "headers": [("A", ["1", "2"]), ("B", ["ü"])] if name == "headers" else None,
            "modified": EPOCH + timedelta(microseconds=bucket.time(name) // 1000),
            "content": result.data,
        }
        for name, result in results.items()
    }
    assert expected["small chunks"]["chunks"] == 6
    assert expected["one byte"]["content"] == b"again"
    for read in (read_range, read_direct):
        rows = bucket.read(*bucket.plan(direct=read is read_direct), columns=ALL, read=read)
        assert {row["name"]: row for row in rows} == expected
        assert len(rows) == len(expected)
    wait_until(lambda: not consumers(bucket.url, bucket.stream), "the consumer's end")


def test_without_content_nothing_is_read_for_it(bucket: Bucket) -> None:
    bucket.put(("a", b"123"), ("b", b""))
    (group,) = bucket.plan()
    never = Hooked(lambda: None)
    rows = bucket.read(group, columns=ALL, content_off=True, read=never)
    assert [(row["name"], row["size"], row["content"]) for row in rows] == [
        ("a", 3, None),
        ("b", 0, None),
    ]
    assert bucket.read(group, columns=("size",), read=never) == [{"size": 3}, {"size": 0}]
    assert never.calls == 0


def test_one_consumer_reads_many_objects_whose_chunks_are_mixed(bucket: Bucket) -> None:
    contents = {f"o{at}": random.Random(at).randbytes(at * 50) for at in range(30)}
    queues = [bucket.frames(name, data, chunk=200) for name, data in contents.items()]
    shuffle, mixed = random.Random(7), []
    while queues:
        queue = shuffle.choice(queues)
        mixed.append(queue.pop(0))
        queues = [remaining for remaining in queues if remaining]
    bucket.publisher.publish(mixed)
    assert len(bucket.plan()) == 1
    assert len(bucket.plan(minPartitions=7)) >= 7
    groups = bucket.plan(maxMessagesPerPartition=3)
    assert max(len(group.objects) for group in groups) == 3
    assert bucket.contents(*groups) == contents
    for together, calls in ((1, 29), (500, 1), (25, 2)):
        counted = Hooked(lambda: None)
        assert bucket.contents(read=counted, together=together) == contents
        assert counted.calls == calls + 1  # the meta message of the empty object
    assert bucket.contents() == contents
    assert bucket.contents(*bucket.plan(direct=True), read=read_direct, together=7) == contents


def test_batches_are_bounded_by_their_content(bucket: Bucket) -> None:
    sizes = [400, 400, 300, 0, 5000, 10, 990, 1]
    contents = {f"o{at}": random.Random(at).randbytes(size) for at, size in enumerate(sizes)}
    bucket.publisher.publish([frame for item in contents.items() for frame in bucket.frames(*item)])
    (group,) = bucket.plan()
    reader = object_rows(bucket.connect, SETTINGS, bucket.options(), SOME, batch_bytes=1000)
    batches = list(reader.of_group(group))
    assert [batch.num_rows for batch in batches] == [2, 2, 1, 2, 1]
    assert {
        row["name"]: row["content"] for batch in batches for row in rows_of(batch, SOME)
    } == contents
    without = object_rows(
        bucket.connect, SETTINGS, bucket.options(contentOff=True), SOME, batch_rows=3
    )
    assert [batch.num_rows for batch in without.of_group(group)] == [3, 3, 2]


def test_a_mirror_of_a_bucket(bucket: Bucket, publisher: Publisher) -> None:
    bucket.put(("a", b"123"), ("b", b"4"))
    mirror = Bucket.__new__(Bucket)
    mirror.__dict__ |= {
        **bucket.__dict__,
        "name": f"{bucket.name}_COPY",
        "stream": f"{bucket.stream}_COPY",
    }
    config = {"name": mirror.stream, "mirror": {"name": bucket.stream}, "storage": "memory"}
    publisher.api(f"STREAM.CREATE.{mirror.stream}", config)
    try:
        wait_until(lambda: mirror.info()["state"]["messages"] == 4, "the mirror's messages")
        bucket.link("l", bucket.name, "a")
        wait_until(lambda: mirror.info()["state"]["messages"] == 5, "the link")
        bucket.delete("a")
        wait_until(lambda: [len(group.objects) for group in mirror.plan()] == [2], "the deletion")
        rows = mirror.read(columns=("bucket", "name", "content"), settings=FORGIVING)
        assert rows == [{"bucket": mirror.name, "name": "b", "content": b"4"}]
    finally:
        mirror.remove()


# Others write meanwhile


@pytest.fixture
def planned(bucket: Bucket) -> list[ObjectGroup]:
    """The plan for two objects, of which something befalls the first."""
    bucket.put(("a", b"old" * 1000), ("b", b"b"))
    return bucket.plan()


def purge_meta(bucket: Bucket) -> None:
    """Remove all up to the meta message of "a"."""
    info = bucket.publisher.api(
        f"STREAM.MSG.GET.{bucket.stream}", {"last_by_subj": meta_subject(bucket.name, "a")}
    )
    bucket.publisher.api(f"STREAM.PURGE.{bucket.stream}", {"seq": info["message"]["seq"] + 1})


def create_again(bucket: Bucket) -> None:
    bucket.remove()
    bucket.create()
    bucket.put(("a", b"other"))


def replace_by_link(bucket: Bucket) -> None:
    bucket.delete("a")
    bucket.link("a", bucket.name, "b")


#: A change to "a" after the plan, the content that "a" has then, and the data loss that is logged
#: or raised.
AFTER_THE_PLAN: dict[str, tuple[Callable[[Bucket], None], dict[str, bytes], str]] = {
    "replaced": (
        lambda bucket: bucket.put(("a", b"new" * 5000)),
        {"a": b"new" * 5000, "b": b"b"},
        "",
    ),
    "replaced by a link": (replace_by_link, {"a": b"b", "b": b"b"}, ""),
    "deleted": (
        lambda bucket: bucket.delete("a"),
        {"b": b"b"},
        "object 'a' was deleted while it was read",
    ),
    "purged": (
        purge_meta,
        {"b": b"b"},
        "LOSS object 'a' is gone: its meta message was purged, or has expired",
    ),
    "all deleted": (
        Bucket.remove,
        {},
        "LOSS object 'a': stream STREAM was deleted after this read was planned",
    ),
    "all created again": (
        create_again,
        {},
        "LOSS object 'a': stream STREAM was deleted and created again",
    ),
}


@pytest.mark.usefixtures("no_election")
@pytest.mark.parametrize(
    ("happens", "contents", "problem"), AFTER_THE_PLAN.values(), ids=AFTER_THE_PLAN
)
def test_after_the_plan(
    bucket: Bucket,
    planned: list[ObjectGroup],
    caplog: pytest.LogCaptureFixture,
    happens: Callable[[Bucket], None],
    contents: dict[str, bytes],
    problem: str,
) -> None:
    caplog.set_level(logging.INFO)
    happens(bucket)
    text = problem.removeprefix("LOSS ").replace("STREAM", bucket.stream)
    if text != problem:
        with pytest.raises(DataLossError, match=text):
            bucket.read(*planned)
    assert (
        bucket.contents(*planned, settings=FORGIVING if text != problem else SETTINGS) == contents
    )
    assert text in caplog.text


def point_elsewhere(bucket: Bucket) -> None:
    bucket.link("l", bucket.name, "t2")


def delete_link_and_target(bucket: Bucket) -> None:
    bucket.delete("l")
    bucket.delete("t")


#: A change to an empty object "e", or to a link "l" to "t", after the plan, and the content that
#: they have then.
AFTER_A_PLAN_WITHOUT_CHUNKS: dict[str, tuple[Callable[[Bucket], None], dict[str, bytes]]] = {
    "nothing": (lambda bucket: None, {"e": b"", "l": b"1"}),
    "empty one replaced": (
        lambda bucket: bucket.put(("e", b"new" * 1000)),
        {"e": b"new" * 1000, "l": b"1"},
    ),
    "empty one replaced by a link": (
        lambda bucket: bucket.link("e", bucket.name, "t2"),
        {"e": b"2", "l": b"1"},
    ),
    "empty one deleted": (lambda bucket: bucket.delete("e"), {"l": b"1"}),
    "link points elsewhere": (point_elsewhere, {"e": b"", "l": b"2"}),
    "link replaced by an object": (
        lambda bucket: bucket.store("l", b"own"),
        {"e": b"", "l": b"own"},
    ),
    "link deleted": (lambda bucket: bucket.delete("l"), {"e": b""}),
    "link and target deleted": (delete_link_and_target, {"e": b""}),
}


@pytest.mark.parametrize("read", [read_range, read_direct])
@pytest.mark.parametrize(
    ("happens", "contents"), AFTER_A_PLAN_WITHOUT_CHUNKS.values(), ids=AFTER_A_PLAN_WITHOUT_CHUNKS
)
def test_after_the_plan_of_objects_without_chunks(
    bucket: Bucket, happens: Callable[[Bucket], None], contents: dict[str, bytes], read: Read
) -> None:
    """Nothing that is read of them shows a change but their meta messages."""
    bucket.put(("t", b"1"), ("t2", b"2"), ("e", b""))
    bucket.link("l", bucket.name, "t")
    groups = bucket.plan("[el]")
    happens(bucket)
    assert bucket.contents(*groups, read=read) == contents


def test_an_object_without_chunks_that_was_purged_is_a_loss(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.put(("a", b""), ("b", b"b"), ("c", b""))
    groups = bucket.plan()
    purge_meta(bucket)
    with pytest.raises(
        DataLossError, match="object 'a' is gone: its meta message was purged, or has expired"
    ):
        bucket.read(*groups)
    assert bucket.contents(*groups, settings=FORGIVING) == {"b": b"b", "c": b""}
    assert "object 'a' is gone" in caplog.text


def test_an_object_without_chunks_that_was_replaced_comes_later(bucket: Bucket) -> None:
    feed = Feed(bucket)
    bucket.put(("t", b"t"), ("e", b""), ("gone", b""), ("empty", b""))
    bucket.link("l", bucket.name, "t")
    first = feed.cut()

    def change() -> None:
        bucket.put(("e", b"new"), ("l", b"own"))
        bucket.delete("gone")

    # Read 1: the meta messages. 2: those of objects without chunks.
    between = Hooked(change, call=2)
    assert feed.read(first, read=between, together=10) == {"t": b"t", "empty": b""}
    assert between.done
    assert feed.read(feed.cut()) == {"e": b"new", "l": b"own"}


CHUNKED = random.Random(4).randbytes(400_000)


@pytest.mark.parametrize("read", [read_range, read_direct])
@pytest.mark.parametrize("to", ["replace", "delete"])
def test_between_two_chunks(bucket: Bucket, to: str, read: Read) -> None:
    new = random.Random(5).randbytes(300_000)
    bucket.put(("a", CHUNKED), ("b", b"b"), chunk=10_000)
    groups = bucket.plan()

    def change() -> None:
        if to == "replace":
            bucket.put(("a", new), chunk=10_000)
        else:
            bucket.delete("a")

    # Two requests are under way at most, of the 40 chunks: what is left of them goes before it is
    # asked for.
    between = Hooked(change, at=1, inner=read)
    contents = bucket.contents(
        *groups, read=between, together=2, settings=replace(SETTINGS, batch=5, max_bytes=50_000)
    )
    assert between.done
    assert contents == {"b": b"b", **({"a": new} if to == "replace" else {})}


def test_replaced_again_while_the_new_version_is_read(
    bucket: Bucket, planned: list[ObjectGroup]
) -> None:
    bucket.put(("a", b"2" * 5000))
    # Read 1: the chunks of the plan. 2: the meta message. 3: the chunks of the new version.
    again = Hooked(lambda: bucket.put(("a", b"3" * 5000), headers={"N": ["1"]}), call=3)
    rows = bucket.read(*planned, columns=ALL, read=again, together=2)
    assert again.done
    assert {row["name"]: (row["size"], row["content"], row["headers"]) for row in rows} == {
        "a": (5000, b"3" * 5000, [("N", ["1"])]),
        "b": (1, b"b", None),
    }


def test_replaced_each_time_it_is_read(bucket: Bucket, planned: list[ObjectGroup]) -> None:
    def read(
        to: Connect, part: SequenceRange, settings: PullSettings, label: str
    ) -> Iterator[MessageRun]:
        if part.subjects[0].startswith(f"$O.{bucket.name}.C."):
            bucket.store("a", b"2")
            bucket.publisher.api(f"STREAM.PURGE.{bucket.stream}", {"filter": part.subjects[0]})
        yield from read_range(to, part, settings, label)

    with pytest.raises(
        JetStreamError, match="object 'a' was replaced again each time it was read, 3 times"
    ):
        bucket.contents(*planned, read=read, attempts=3)


@pytest.mark.parametrize("position", [1, 3_000, 150_000, 333_333])
def test_a_connection_cut_in_mid_content(bucket: Bucket, position: int) -> None:
    bucket.put(("a", CHUNKED), ("b", b"b"), chunk=10_000)
    groups = bucket.plan()
    with WireProxy(bucket.url) as proxy:
        through = connecting(proxy.url)
        through(5.0)
        cut = proxy.cut_after(position)
        assert bucket.read(*groups, connect=through) == [
            {"name": "a", "content": CHUNKED},
            {"name": "b", "content": b"b"},
        ]
        assert cut.is_set()
        through(5.0).close()


# Damage


#: Fields of the meta message of an object with 1000 bytes in 10 chunks, of which one may be gone,
#: and what is found wrong. All that can be wrong is in tests/buckets.
DAMAGES: dict[str, tuple[dict[str, Any], str]] = {
    "gone": ({}, "says 10 chunks, and there are 9"),
    "digest": ({"digest": digest_text(hashlib.sha256(b"other").digest())}, "another digest"),
    "larger": ({"size": 1001}, "says 1001 bytes, and its chunks hold 1000"),
    "no chunks": ({"nuid": ""}, "does not say where its chunks are"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_object(bucket: Bucket, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    fields, fault_text = DAMAGES[kind]
    bucket.put(("before", b"1" * 500))
    feed = Feed(bucket)
    sequences = bucket.publisher.publish(
        bucket.frames("broken", b"0123456789" * 100, chunk=100, **fields)
    )
    if kind == "gone":
        bucket.publisher.api(f"STREAM.MSG.DELETE.{bucket.stream}", {"seq": sequences[4]})
    bucket.link("link", bucket.name, "broken")
    bucket.put(("after", b"2" * 500))
    problem = f"bucket {bucket.name}, object '%s' is damaged: .*{fault_text}"
    part = feed.cut()
    for damaged in ("broken", "link"):
        with pytest.raises(
            DataLossError, match=f"{problem % damaged}.*set failOnDataLoss to false"
        ):
            bucket.read(*bucket.plan(damaged))
        with pytest.raises(DataLossError, match=problem % damaged):
            feed.read(part, glob=damaged)
    whole = {"before": b"1" * 500, "after": b"2" * 500}
    assert bucket.contents(settings=FORGIVING) == feed.read(part, FORGIVING) == whole
    assert re.search(f"{problem % 'broken'}.*it is left out", caplog.text)
    assert len(bucket.read(content_off=True)) == 4


class Replicated:
    """A connection to a server that says that each stream has three replicas."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def ask(self, subject: str, body: bytes, *, context: str, **given: Any) -> dict[str, Any]:
        reply = self._connection.ask(subject, body, context=context, **given)
        if "num_replicas" in reply.get("config", {}):
            reply["config"]["num_replicas"] = 3
        return reply


@pytest.mark.parametrize("lies", [2, 3, 4])
def test_a_replica_that_lags_behind_is_asked_again(bucket: Bucket, lies: int) -> None:
    bucket.put(("a", b"123" * 1000))
    (group,) = bucket.plan()
    told = 0

    def read(
        to: Connect, part: SequenceRange, settings: PullSettings, label: str
    ) -> Iterator[MessageRun]:
        nonlocal told
        if part.subjects[0].startswith(f"$O.{bucket.name}.C.") and told < lies:
            told += 1
            raise DataLossError("no chunk is there yet")
        yield from read_range(to, part, settings, label)

    def to_cluster(patience: float) -> Any:
        return Replicated(bucket.connect(patience))

    if lies < 4:
        assert bucket.contents(group, connect=to_cluster, read=read) == {"a": b"123" * 1000}
    else:
        with pytest.raises(DataLossError, match="object 'a' is damaged"):
            bucket.read(group, connect=to_cluster, read=read)


def test_an_object_that_no_binary_column_can_hold(bucket: Bucket) -> None:
    bucket.put(("small", b"1"))
    bucket.store("huge", b"1", size=LARGEST_CONTENT + 1)
    groups = bucket.plan(contentOff=True)
    for use in (bucket.plan, partial(bucket.read, *groups)):
        with pytest.raises(
            JetStreamError, match=f"bucket {bucket.name}, object 'huge' has 2,147,483,648 bytes"
        ):
            use()
    assert bucket.contents(*bucket.plan("small")) == {"small": b"1"}


# Links


def test_links_to_objects(make: Callable[[], Bucket]) -> None:
    bucket, other = make(), make()
    bucket.put(("target", b"here"), headers={"T": ["1"]})
    other.put(("far/away", b"there" * 1000), chunk=1000)
    bucket.link("near", bucket.name, "target")
    bucket.link("far", other.name, "far/away")
    bucket.link("all of it", other.name, "")
    bucket.put(("last", b"last"))
    rows = {row["name"]: row for row in bucket.read(columns=ALL)}
    assert {name: row["content"] for name, row in rows.items()} == {
        "target": b"here",
        "near": b"here",
        "far": b"there" * 1000,
        "last": b"last",
    }
    assert (rows["far"]["size"], rows["far"]["chunks"], rows["far"]["bucket"]) == (
        5000,
        5,
        bucket.name,
    )
    assert rows["near"]["digest"] == rows["target"]["digest"]
    assert rows["near"]["headers"] is None
    assert rows["near"]["modified"] > rows["target"]["modified"]
    assert bucket.read(columns=("name", "size", "content"), content_off=True) == [
        {"name": name, "size": rows[name]["size"], "content": None}
        for name in ("target", "near", "far", "last")
    ]
    # Nothing of the target is asked for.
    never = Hooked(lambda: None)
    assert len(bucket.read(columns=("name", "modified", "headers"), read=never)) == 4
    assert never.calls == 0


@pytest.mark.usefixtures("no_election")
@pytest.mark.parametrize("to", ["missing", "deleted", "bucket", "link"])
def test_links_that_lead_nowhere(bucket: Bucket, to: str, caplog: pytest.LogCaptureFixture) -> None:
    bucket.put(("a", b"a"))
    if to == "deleted":
        bucket.put(("x", b"x"))
        bucket.delete("x")
    if to == "link":
        bucket.link("x", bucket.name, "a")
    bucket.link("l", "NO_SUCH_BUCKET" if to == "bucket" else bucket.name, "x")
    said = {"bucket": "which cannot be read: .*stream not found", "link": "which is a link itself"}
    expected = (
        f"bucket {bucket.name}, object 'l' is a link to object 'x' of bucket "
        f".*{said.get(to, 'is not there')}"
    )
    groups = bucket.plan()
    with pytest.raises(DataLossError, match=expected):
        bucket.read(*groups)
    found = bucket.contents(*groups, settings=FORGIVING)
    assert found == {"a": b"a", **({"x": b"a"} if to == "link" else {})}
    assert re.search(expected, caplog.text)


class Former:
    """A connection to a server that is asked first for the state of a stream, and led it in former
    times.
    """

    def __init__(self, connection: Connection, stream: str, answers: list[dict[str, Any]]) -> None:
        self.asked = 0
        self._connection = connection
        self._stream = stream
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def ask(self, subject: str, body: bytes, *, context: str, **given: Any) -> dict[str, Any]:
        former: dict[str, Any] = {}
        if subject.endswith(f"STREAM.INFO.{self._stream}"):
            self.asked += 1
            former = self._answers.pop(0) if self._answers else {}
        reply = {**self._connection.ask(subject, body, context=context, **given), **former}
        return jsapi.reply(json.dumps(reply).encode(), context)


NOT_FOUND = {"error": {"code": 404, "err_code": 10059, "description": "stream not found"}}
#: A stream that was deleted and created again since, of a leader that has heard nobody for long.
UNFOLLOWED = {
    "created": "2023-11-13T00:00:00Z",
    "cluster": {
        "name": "test",
        "leader": "A",
        "replicas": [{"name": "B", "current": True, "active": 140 * 10**9}],
    },
}


@pytest.mark.usefixtures("no_election")
@pytest.mark.parametrize("former", [NOT_FOUND, UNFOLLOWED])
def test_a_former_leader_of_a_linked_bucket_causes_no_loss(
    make: Callable[[], Bucket], former: dict[str, Any]
) -> None:
    bucket, far = make(), make()
    far.put(("t", b"there"))
    bucket.link("l", far.name, "t")
    connection: Any = Former(bucket.connect(5.0), far.stream, [former])
    assert bucket.contents(*bucket.plan(), connect=lambda _: connection) == {"l": b"there"}


@pytest.mark.usefixtures("no_election")
def test_a_bucket_that_is_not_there_is_waited_for_once(bucket: Bucket) -> None:
    for name in "xyz":
        bucket.link(name, "NO_SUCH_BUCKET", "t")
    connection: Any = Former(bucket.connect(5.0), "OBJ_NO_SUCH_BUCKET", [])
    assert bucket.contents(*bucket.plan(), connect=lambda _: connection, settings=FORGIVING) == {}
    assert connection.asked == 2


@pytest.mark.usefixtures("no_election")
def test_a_bucket_that_was_deleted_is_looked_for_once(bucket: Bucket) -> None:
    """However many of its objects were planned."""
    asked = []
    for names in ("x", "abcdefgh"):
        bucket.put(*((name, name.encode() * 10) for name in names))
        groups = bucket.plan()
        bucket.remove()
        connection: Any = Former(bucket.connect(5.0), bucket.stream, [])
        assert (
            bucket.contents(
                *groups, connect=lambda _, connection=connection: connection, settings=FORGIVING
            )
            == {}
        )
        asked.append(connection.asked)
        bucket.create()
    assert asked[0] == asked[1]


def test_the_target_of_a_link_is_replaced(bucket: Bucket) -> None:
    bucket.put(("t", b"old" * 1000))
    bucket.link("l", bucket.name, "t")
    groups = bucket.plan("l")
    # Read 1: the link's meta message. 2: the target's. 3: its chunks.
    change = Hooked(lambda: bucket.put(("t", b"new")), call=3)
    assert bucket.contents(*groups, read=change) == {"l": b"new"}
    assert change.done


@pytest.mark.parametrize("content_off", [False, True])
@pytest.mark.parametrize("to", ["nothing", "t2"])
def test_a_link_changes_before_its_target_is_looked_for(
    bucket: Bucket, to: str, content_off: bool
) -> None:
    bucket.put(("t", b"1"), ("t2", b"22"))
    bucket.link("l", bucket.name, "t")
    groups = bucket.plan("l")

    def change() -> None:
        if to == "t2":
            bucket.link("l", bucket.name, "t2")
        else:
            bucket.delete("l")
        bucket.delete("t")

    # Without content read 1 is that of the target's meta message: the list is the planned one.
    between = Hooked(change, call=1 if content_off else 2)
    rows = bucket.read(
        *groups, columns=("name", "size", "content"), content_off=content_off, read=between
    )
    assert between.done
    content = None if content_off else b"22"
    assert rows == ([{"name": "l", "size": 2, "content": content}] if to == "t2" else [])


@pytest.mark.parametrize("read", [read_range, read_direct])
@pytest.mark.parametrize("name", ["l", "a"])
def test_a_meta_message_is_replaced_as_soon_as_the_state_of_the_stream_is_known(
    bucket: Bucket, planned: list[ObjectGroup], name: str, read: Read
) -> None:
    """The new one lies beyond what the stream had then, and the old one is gone."""
    bucket.link("l", bucket.name, "a")
    groups = bucket.plan("l") if name == "l" else planned
    bucket.put(("a", b"new" * 1000))
    # Read 1: the link's meta message, or the object's chunks, which are gone. 2: the meta message
    # of "a".
    change = Hooked(lambda: bucket.put(("a", b"newer")), call=2, inner=read)
    assert bucket.contents(*groups, read=change, together=2)[name] == b"newer"
    assert change.done


def test_a_link_to_a_mirror(make: Callable[[], Bucket], publisher: Publisher) -> None:
    """The messages of a mirror have the subjects of the bucket that it mirrors."""
    bucket, far = make(), make()
    far.put(("t", b"there" * 1000))
    mirror = f"{far.name}_COPY"
    config = {"name": f"OBJ_{mirror}", "mirror": {"name": far.stream}, "storage": "memory"}
    publisher.api(f"STREAM.CREATE.OBJ_{mirror}", config)
    try:
        copied = far.info()["state"]["messages"]
        wait_until(
            lambda: publisher.api(f"STREAM.INFO.OBJ_{mirror}")["state"]["messages"] == copied,
            "the mirror's messages",
        )
        bucket.link("l", mirror, "t")
        assert bucket.contents() == {"l": b"there" * 1000}
    finally:
        publisher.api(f"STREAM.DELETE.OBJ_{mirror}")


# The feed


class Feed:
    """Reads a bucket range by range, as a streaming query does."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.next = 1
        self.rows: list[dict[str, Any]] = []

    def cut(self) -> SequenceRange:
        """Plan what was stored since the last time."""
        info, first = self.bucket.info(), self.next
        self.next = max(info["state"]["last_seq"] + 1, first)
        filters = (meta_filter(self.bucket.name),)
        return SequenceRange(self.bucket.stream, first, self.next, None, info["created"], filters)

    def read(
        self, part: SequenceRange, settings: PullSettings = SETTINGS, glob: str = "*", **how: Any
    ) -> dict[str, bytes]:
        columns = ("name", "modified", "content")
        options = self.bucket.options(pathGlobFilter=glob)
        reader = object_rows(self.bucket.connect, settings, options, columns, **how)
        rows = [row for batch in reader.of_range(part) for row in rows_of(batch, columns)]
        self.rows += rows
        return by_name(rows)


def test_a_version_that_was_replaced_comes_later(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    feed = Feed(bucket)
    bucket.put(("a", b"1" * 5000), ("b", b"2"), ("c", b"3" * 5000))
    first = feed.cut()
    # Read 1: the meta messages. 2: the chunks.

    def both() -> None:
        bucket.put(("a", b"new"))
        bucket.delete("c")

    change = Hooked(both, call=2)
    assert feed.read(first, read=change, together=10) == {"b": b"2"}
    assert change.done
    assert "object 'a' was replaced before it was read, its new version comes later" in caplog.text
    assert feed.read(feed.cut()) == {"a": b"new"}


def test_only_the_last_version_of_a_range_has_a_row(bucket: Bucket) -> None:
    """Everything is read before the first row: a copy of a bucket may keep meta messages that were
    replaced.
    """
    versions: list[tuple[str, bytes, bool]] = [
        ("a", b"1", False),
        ("gone", b"2", False),
        ("a", b"3", False),
    ]
    for name, data, deleted in (*versions, ("gone", b"", True)):
        frames = bucket.frames(name, data, deleted=deleted)
        bucket.publisher.publish(
            [Message(frame.subject, frame.data) for frame in frames]
        )  # without Nats-Rollup
    assert bucket.info()["state"]["messages"] == 7
    feed = Feed(bucket)
    assert feed.read(feed.cut()) == {"a": b"3"}
    for direct in (False, True):
        assert bucket.contents(*bucket.plan(direct=direct)) == {"a": b"3"}


@pytest.mark.parametrize("seed", [0, *full(1, 2, 3)])
def test_no_object_is_lost_and_none_doubled(bucket: Bucket, seed: int) -> None:
    """Objects come and go before, between and while ranges are read; each read is planned before it
    begins.
    """
    chance = random.Random(seed)
    names = [f"o{at}" for at in range(6)]
    versions: dict[str, list[bytes]] = {name: [] for name in names}
    live: dict[str, bytes] = {}
    purges: list[str] = []

    def write(number: int) -> None:
        """As clients do it: chunks, meta message, and then the old chunks go; sometimes later."""
        for _ in range(number):
            name = chance.choice(names)
            old = [subject for subject in purges if subject.startswith(f"{name}|")]
            if name in live and chance.random() < 0.2:
                bucket.store(name, deleted=True)
                del live[name]
            else:
                data = chance.randbytes(chance.choice([0, 10, 3000]))
                frames = bucket.frames(name, data, chunk=1000)
                bucket.publisher.publish(frames)
                live[name] = data
                versions[name].append(data)
                if data:
                    purges.append(f"{name}|{frames[0].subject}")
            for purge in old:
                purges.remove(purge)
                if chance.random() < 0.8:
                    bucket.publisher.api(
                        f"STREAM.PURGE.{bucket.stream}", {"filter": purge.partition("|")[2]}
                    )

    feed = Feed(bucket)
    for _ in range(12):
        write(chance.randrange(6))
        part = feed.cut()
        write(chance.randrange(4))
        during = Hooked(
            lambda: write(chance.randrange(4)), call=chance.randrange(1, 4), at=chance.randrange(3)
        )
        feed.read(part, read=during, together=chance.choice([1, 10]))
    feed.read(feed.cut())

    last = {row["name"]: row["content"] for row in feed.rows}
    assert {name: last[name] for name in live} == live
    # One row for each meta message at most, each with the bytes of one version, in the order they
    # were written.
    assert len({(row["name"], row["modified"]) for row in feed.rows}) == len(feed.rows)
    for name, written in versions.items():
        remaining = iter(written)
        assert all(row["content"] in remaining for row in feed.rows if row["name"] == name)
