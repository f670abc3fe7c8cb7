"""Buckets and streams watched without an end, on a real server: every change once, whatever breaks
in between.
"""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from spark_jetstream.admin import Entry, JetStreamAdmin
from spark_jetstream.admin.watch import LABEL
from spark_jetstream.errors import DataLossError, OutageError
from spark_jetstream.streams import pull
from spark_jetstream.streams.consumers import Created, create_reader
from spark_jetstream.testing import NatsCluster, NatsServer
from spark_jetstream.testing.process import poll
from tests.admin.conftest import MakeKv
from tests.support.client import full
from tests.support.proxy import WireProxy
from tests.support.publish import Message, Publisher
from tests.support.reading import QUICK, consumers, wait_until

pytestmark = pytest.mark.usefixtures("no_connection_left")


def facts(entry: Entry | None) -> tuple[str, bytes, int] | None:
    return None if entry is None else (entry.key, entry.value, entry.revision)


def revisions(found: Iterator[Entry | None], count: int) -> list[int]:
    return [entry.revision for entry in itertools.islice(found, count) if entry is not None]


# -- entries and changes --


def test_a_watch_yields_stored_entries_then_none_then_changes(
    make: MakeKv, nats_server: NatsServer
) -> None:
    bucket = make(history=64)
    for key, value in (("a", "1"), ("b.x", "1"), ("a", "2")):
        bucket.put(key, value)
    bucket.delete("b.x")
    found = bucket.watch()
    assert [facts(next(found)) for _ in range(3)] == [("a", b"2", 3), ("b.x", b"", 4), None]
    bucket.put("c", "1")
    bucket.put("a", "3")
    bucket.purge("a")
    changes = [next(found) for _ in range(3)]
    assert [facts(each) for each in changes] == [("c", b"1", 5), ("a", b"3", 6), ("a", b"", 7)]
    assert [each and each.operation for each in changes] == ["PUT", "PUT", "PURGE"]
    stream = f"KV_{bucket.name}"
    assert [name.startswith(LABEL) for name in consumers(nats_server.url, stream)] == [True]
    del found
    wait_until(lambda: not consumers(nats_server.url, stream), "the consumer's end")


def test_how_to_begin(make: MakeKv) -> None:
    bucket = make(history=64)
    for number in range(3):
        bucket.put("a", str(number))
    bucket.delete("b")
    bucket.put("c.d", "x")
    everything = [
        ("a", b"0", 1),
        ("a", b"1", 2),
        ("a", b"2", 3),
        ("b", b"", 4),
        ("c.d", b"x", 5),
        None,
    ]
    assert [facts(each) for each in bucket.watch(history=True, timeout=0.1)] == everything
    assert [facts(each) for each in bucket.watch(timeout=0.1)] == everything[2:]
    assert [facts(each) for each in bucket.watch(include_deletes=False, timeout=0.1)] == [
        ("a", b"2", 3), ("c.d", b"x", 5), None,
    ]  # fmt: skip
    assert [facts(each) for each in bucket.watch("a", "c.>", timeout=0.1)] == [
        ("a", b"2", 3),
        ("c.d", b"x", 5),
        None,
    ]
    assert list(bucket.watch("z", timeout=0.1)) == [None]
    # Changes count from the call on, not from the first look.
    found = itertools.islice(bucket.watch(updates_only=True, timeout=60), 3)
    bucket.put("a", "3")
    bucket.put("e", "x")
    assert [facts(each) for each in found] == [None, ("a", b"3", 6), ("e", b"x", 7)]


@pytest.mark.parametrize("history", [True, False])
def test_a_key_that_is_written_again_before_its_turn_comes_before_the_none(
    make: MakeKv, history: bool
) -> None:
    bucket = make(history=1)
    for key in "ab":
        bucket.put(key, "old")
    found = bucket.watch(history=history)
    changes = [("a", b"new", bucket.put("a", "new"))]
    came = [facts(next(found))]
    changes.append(("c", b"first", bucket.put("c", "first")))
    came += [facts(next(found)) for _ in range(3)]
    assert came == [("b", b"old", 2), *changes, None]
    # Nothing comes a second time.
    newer = bucket.put("a", "newer")
    assert facts(next(found)) == ("a", b"newer", newer)


def test_changes_made_while_keys_are_listed_survive_the_consumer(
    admin: JetStreamAdmin, make: MakeKv, publisher: Publisher, nats_server: NatsServer
) -> None:
    bucket = make(history=64)
    publisher.publish(Message(f"$KV.{bucket.name}.k{at}", b"old") for at in range(3000))
    found = bucket.watch()
    assert revisions(found, 1) == [1]
    # Another list, made now, has the second of these only.
    changes = [bucket.put("k2999", "first"), bucket.put("k2999", "second"), bucket.delete("k2999")]
    for name in consumers(nats_server.url, f"KV_{bucket.name}"):
        admin.consumers.delete(f"KV_{bucket.name}", name)
    came = revisions(found, 3002)
    assert came == [*range(2, 3000), *changes]
    assert [bucket.put("k0", "new")] == revisions(found, 1)


def test_a_key_whose_newest_revision_goes_while_keys_are_listed_has_the_one_before(
    admin: JetStreamAdmin, publisher: Publisher, name: str
) -> None:
    stream, subjects = f"KV_{name}", f"$KV.{name}"
    config = {
        "name": stream,
        "subjects": [f"{subjects}.>"],
        "max_msgs_per_subject": 2,
        "storage": "memory",
    }
    publisher.api(f"STREAM.CREATE.{stream}", config)
    keys = ["late", *(f"k{at}" for at in range(3000)), "late", "more"]
    publisher.publish(Message(f"{subjects}.{key}", b"") for key in keys)
    found = admin.kv.bucket(name).watch(timeout=0.1)
    first = revisions(found, 1)
    publisher.api(f"STREAM.MSG.DELETE.{stream}", {"seq": 3002, "no_erase": True})
    assert [*first, *revisions(found, 3010)] == [*range(2, 3002), 3003, 1]


# -- outages and deletions --


def test_consumers_that_are_deleted_and_servers_that_restart(
    nats_server_factory: Callable[..., NatsServer],
) -> None:
    server = nats_server_factory()
    with JetStreamAdmin(servers=server.url, **QUICK) as admin:
        admin.kv.create("b", history=64)
        bucket = admin.kv.bucket("b")
        bucket.put("a", "0")
        found = bucket.watch(history=True)
        assert [facts(next(found)), next(found)] == [("a", b"0", 1), None]
        for consumer in admin.consumers.names("KV_b"):
            admin.consumers.delete("KV_b", consumer)
        bucket.put("a", "1")
        assert facts(next(found)) == ("a", b"1", 2)
        server.restart()
        put = poll(lambda: _put(server.url, "2"), 10, lambda: TimeoutError("the server"))
        assert facts(next(found)) == ("a", b"2", put)
        server.kill()
        server.start()
        put = poll(lambda: _put(server.url, "3"), 10, lambda: TimeoutError("the server"))
        assert facts(next(found)) == ("a", b"3", put)


def _put(url: str, value: str) -> int:
    with Publisher(url) as publisher:
        return publisher.publish([Message("$KV.b.a", value.encode())])[0]


@pytest.mark.parametrize("history", [True, *full(False)])
def test_every_change_comes_once_over_a_wire_that_is_cut(
    make: MakeKv, nats_server: NatsServer, publisher: Publisher, history: bool
) -> None:
    bucket = make(history=64)
    keys, count = 50, 2000

    def write(first: int, end: int) -> None:
        for start in range(first, end, 50):
            publisher.publish(
                Message(f"$KV.{bucket.name}.k{at % keys}", b"%d" % at)
                for at in range(start, start + 50)
            )

    with WireProxy(nats_server.url) as proxy, JetStreamAdmin(servers=proxy.url, **QUICK) as admin:
        write(0, keys)
        found = admin.kv.bucket(bucket.name).watch(history=history)
        first = revisions(found, keys)
        writer = threading.Thread(target=write, args=(keys, count))
        writer.start()
        came = list(first)
        while len(came) < count:
            if len(came) % 200 == 0:
                proxy.cut_after(20_000)
            came += revisions(found, 1)
        writer.join()
        assert came == list(range(1, count + 1))


@pytest.mark.usefixtures("no_election")
@pytest.mark.parametrize("again", [False, True])
def test_a_bucket_that_is_deleted_or_created_again(
    again: bool, admin: JetStreamAdmin, make: MakeKv
) -> None:
    bucket = make(history=64)
    found = bucket.watch()
    assert next(found) is None
    admin.kv.delete(bucket.name)
    if again:
        admin.kv.create(bucket.name, storage="memory")
    with pytest.raises(
        DataLossError, match=f"stream KV_{bucket.name} was deleted, or created again, while it was"
    ):
        next(found)


def test_a_server_that_comes_back_without_what_it_had(
    nats_server_factory: Callable[..., NatsServer],
) -> None:
    server = nats_server_factory()
    with JetStreamAdmin(servers=server.url, **QUICK) as admin:
        admin.kv.create("b", history=64)
        bucket = admin.kv.bucket("b")
        for number in range(3):
            bucket.put("a", f"{number}")
        watched = [bucket.watch(), bucket.watch(updates_only=True)]
        assert [revisions(watched[0], 2), next(watched[1])] == [[3], None]
        server.stop()
        (messages,) = server.store_dir.glob("**/streams/KV_b/msgs")
        shutil.rmtree(messages)
        server.start()
        # Sequences are given away a second time, those of what came among them.
        assert [bucket.put(f"new{number}", "x") for number in range(5)] == [1, 2, 3, 4, 5]
        for found in watched:
            with pytest.raises(DataLossError, match="a server restarted without messages"):
                next(found)


def test_a_server_that_stays_away(nats_server_factory: Callable[..., NatsServer]) -> None:
    server = nats_server_factory()
    with JetStreamAdmin(servers=server.url, connectTimeout="2s", retryTimeout="500ms") as admin:
        admin.kv.create("b")
        found = admin.kv.bucket("b").watch()
        assert next(found) is None
        server.stop()
        with pytest.raises(
            OutageError,
            match=r"watching stream KV_b at sequence 1 got no further for 0\.5 s .*retryT",
        ):
            next(found)


@pytest.mark.full
def test_leaders_that_step_down(nats_cluster: NatsCluster) -> None:
    with JetStreamAdmin(servers=nats_cluster.url, requestTimeout="20s") as admin:
        admin.kv.create("moved", history=64, replicas=3)
        bucket = admin.kv.bucket("moved")
        found = bucket.watch()
        came, put = [], []

        def moved(before: int) -> bool | None:
            return nats_cluster.leader_of("KV_moved") != before or None

        assert next(found) is None
        for number in range(3):
            put.append(bucket.put("a", f"{number}"))
            before = nats_cluster.leader_of("KV_moved")
            admin.streams.step_down("KV_moved")
            # A message to a leader that steps down may be lost without an error for its writer.
            poll(partial(moved, before), 60, TimeoutError)
            put.append(bucket.put("b", f"{number}"))
            came += revisions(found, 2)
        assert came == put
        assert [each.value for each in bucket.history("b")] == [b"0", b"1", b"2"]

        def keys() -> set[str] | None:
            with suppress(OutageError):  # a replica lags: the bucket must be read again
                return set(bucket.keys())
            return None

        assert poll(keys, 60, TimeoutError) == {"a", "b"}
        admin.kv.delete("moved")


def test_a_replica_that_is_behind(
    nats_cluster: NatsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = itertools.count()

    def behind(*args: Any, **kwargs: Any) -> Created:
        made = create_reader(*args, **kwargs)
        return made._replace(pending=0) if next(asked) == 0 else made

    with JetStreamAdmin(servers=nats_cluster.url, requestTimeout="20s") as admin:
        admin.kv.create("behind", history=64, replicas=3)
        bucket = admin.kv.bucket("behind")
        put = [bucket.put("a", "1"), bucket.put("a", "2")]
        bucket.put("b", "1")
        monkeypatch.setattr(pull, "create_reader", behind)
        assert [each.revision for each in bucket.history("a")] == put
        assert next(asked) >= 1
        asked = itertools.count()
        assert revisions(bucket.watch(), 3) == [2, 3]
        admin.kv.delete("behind")
