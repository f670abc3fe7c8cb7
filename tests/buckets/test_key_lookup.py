"""`KeyLookup` against the real server, over a wire that changes what servers say."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.buckets import key_lookup
from spark_jetstream.buckets.key_lookup import FOUND, KeyLookup
from spark_jetstream.client.connection import Connection
from spark_jetstream.errors import JetStreamError, OptionError, OutageError
from spark_jetstream.protocol.arrow import as_arrow, binary, microseconds, texts
from spark_jetstream.streams.lookup import last_message
from spark_jetstream.streams.multi_last import take_answer
from spark_jetstream.testing import NatsCluster
from tests.support.keyed import CONFIG, make_bucket, name_of
from tests.support.proxy import WireProxy
from tests.support.publish import Message, Publisher
from tests.support.reading import connecting, create
from tests.support.streams import MakeStream, Stream
from tests.support.wire import frame

Found = list[tuple[bytes, int] | None]


def lookup(url: str, bucket: str, **how: Any) -> KeyLookup:
    return KeyLookup(connecting(url), bucket, **{"retry_timeout": 30.0, **how})


def find(url: str, bucket: str, *keys: str | None, **how: Any) -> Found:
    """Value and revision of each key, as a task finds them."""
    found = lookup(url, bucket, **how).find(pa.array(keys, pa.string()))
    assert found.type == FOUND
    found.validate(full=True)
    return [row and (row["value"], row["revision"]) for row in found.to_pylist()]


@pytest.fixture
def prices(stream: MakeStream) -> Stream:
    """A bucket with one revision of each key: a, b and c, with the revisions 1 to 3."""
    made = make_bucket(stream, max_msgs_per_subject=1)
    put(made, a=b"1", b=b"2", c=b"3")
    return made


def put(bucket: Stream, **values: bytes) -> None:
    bucket.send(*(Message(f"$KV.{name_of(bucket)}.{key}", value) for key, value in values.items()))


def many(bucket: Stream, count: int, size: int = 10) -> list[str]:
    """Put keys, one revision each, in the order of their names; return these."""
    keys = [f"key.{number:05}" for number in range(count)]
    prefix = f"$KV.{name_of(bucket)}"
    bucket.send(*(Message(f"{prefix}.{key}", key.encode().ljust(size, b".")) for key in keys))
    return keys


# Values and keys


@pytest.mark.parametrize("leader", [False, True])
def test_each_row_gets_the_value_of_its_key(
    stream: MakeStream, admin: JetStreamAdmin, leader: bool
) -> None:
    made = make_bucket(stream)
    name = name_of(made)
    bucket = admin.kv.bucket(name)
    for key, value in (("a", b"old"), ("b.c", b""), ("gone", b"1"), ("purged", b"2"), ("a", b"1")):
        bucket.put(key, value)
    bucket.delete("gone")
    bucket.purge("purged")
    keys = ("a", None, "b.c", "gone", "a", "purged", "never", "b")
    found = find(made.url, name, *keys, leader=leader)
    assert found == [(b"1", 5), None, (b"", 2), None, (b"1", 5), None, None, None]


@pytest.mark.parametrize("leader", [False, True])
def test_the_time_is_that_of_the_value(prices: Stream, admin: JetStreamAdmin, leader: bool) -> None:
    bucket = admin.kv.bucket(name_of(prices))
    [found] = lookup(prices.url, name_of(prices), leader=leader).find(pa.array(["b"])).to_pylist()
    stored = bucket.get("b").created.nanoseconds // 1000
    epoch = datetime.datetime.fromtimestamp(0, datetime.timezone.utc)
    assert (found["updated"] - epoch) // datetime.timedelta(microseconds=1) == stored


@pytest.mark.parametrize(
    "key", ["", ".", "a.", ".a", "a..b", "a b", "*", ">", "a.*", "ä", "a\n", "a\x00", "a,b"]
)
def test_a_text_that_can_be_no_key_has_no_value(prices: Stream, key: str) -> None:
    assert find(prices.url, name_of(prices), key, "a", key) == [None, (b"1", 1), None]


def test_a_text_that_is_not_utf_8_has_no_value(prices: Stream) -> None:
    keys = pa.array([b"a", b"\xff", b"b"], pa.binary()).view(pa.string())
    found = lookup(prices.url, name_of(prices)).find(keys)
    assert [row and row["value"] for row in found.to_pylist()] == [b"1", None, b"2"]


def test_no_key_needs_no_request() -> None:
    def unreachable(patience: float) -> Any:
        raise AssertionError

    search = KeyLookup(unreachable, "b", 1.0)
    assert search.find(pa.array([], pa.string())).to_pylist() == []
    assert search.find(pa.array([None, "a b"], pa.string())).to_pylist() == [None, None]


def test_an_empty_bucket(stream: MakeStream, proxy: WireProxy) -> None:
    name = name_of(make_bucket(stream))
    assert find(proxy.url, name, "a", "b") == [None, None]
    # The leader says that there is no message: nothing else is asked.
    assert proxy.client_bytes.count(b"DIRECT.GET") == 0


def test_more_keys_than_one_request_has(prices: Stream, proxy: WireProxy) -> None:
    keys = many(prices, 2 * key_lookup.MOST_KEYS + 1)
    asked = [*reversed(keys), *keys, "never"]
    found = find(proxy.url, name_of(prices), *asked)
    assert [row and row[0].rstrip(b".").decode() for row in found] == [*asked[:-1], None]
    # Each key once, and three requests.
    assert proxy.client_bytes.count(b"multi_last") == 3
    assert proxy.client_bytes.count(f".{keys[7]}".encode()) == 1


def test_a_request_that_would_be_too_large(
    stream: MakeStream, proxy: WireProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_lookup, "_REQUEST_BYTES", 1000)
    bucket = make_bucket(stream)
    keys = many(bucket, 100)
    assert [row and row[1] for row in find(proxy.url, name_of(bucket), *keys)] == [*range(1, 101)]
    requests = re.findall(rb'"multi_last": \[(.*?)\]', proxy.client_bytes)
    assert max(map(len, requests)) < 1100
    assert len(requests) > 2


def test_more_values_than_one_answer_has(prices: Stream, proxy: WireProxy) -> None:
    keys = many(prices, 30, size=1_000_000)
    found = find(proxy.url, name_of(prices), *keys, "never")
    assert [row and row[1] for row in found] == [*range(4, 34), None]
    assert {len(row[0]) for row in found if row} == {1_000_000}
    # An answer ends after 8 MiB, and the next request names only the keys that it lacked.
    requests = re.findall(rb'"multi_last": \[(.*?)\]', proxy.client_bytes)
    assert [request.count(b"key.") for request in requests] == [30, 21, 12, 3]


def test_values_that_one_record_batch_cannot_hold(
    prices: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_lookup, "_MOST_BYTES", 4)
    assert len(find(prices.url, name_of(prices), *["a"] * 4)) == 4
    with pytest.raises(JetStreamError, match=r"have 5 bytes, more than the 4 .*maxRecordsPerBatch"):
        find(prices.url, name_of(prices), *["a"] * 5)


@pytest.mark.full
def test_values_of_several_answers_that_one_record_batch_cannot_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = 2**28
    value = np.zeros(size, np.uint8)  # takes no memory until it is written
    entries = key_lookup._Entries()
    for number in range(9):
        values = binary(1, np.array([0, size], np.int32), value)
        batch = [texts([f"k{number}"]), values, as_arrow(np.array([number + 1])), texts(["PUT"])]
        batch.append(microseconds(np.zeros(1, np.int64)))
        names = ["key", "value", "revision", "operation", "timestamp"]
        entries.add(pa.RecordBatch.from_arrays(batch, names))
    monkeypatch.setattr(KeyLookup, "_look_up", lambda *_: entries)
    search = KeyLookup(connecting("nats://127.0.0.1:1"), "b", 1.0)
    with pytest.raises(JetStreamError, match=r"have 2,415,919,104 bytes, more than the 2,147,"):
        search.find(pa.array([f"k{number}" for number in range(9)]))
    assert [row and row["revision"] for row in search.find(pa.array(["k8", "x"])).to_pylist()] == [
        9,
        None,
    ]


# Buckets that copy others


def test_a_mirror_has_the_keys_of_its_origin(prices: Stream, stream: MakeStream) -> None:
    copy = stream("KV_copy", **{**CONFIG, "subjects": None, "mirror": {"name": prices.name}})
    copy.wait_for(3)
    for leader in (False, True):
        assert find(copy.url, "copy", "a", "never", leader=leader) == [(b"1", 1), None]


@pytest.fixture
def origins(stream: MakeStream) -> tuple[Stream, Stream]:
    return make_bucket(stream), make_bucket(stream)


def copied(stream: MakeStream, *origins: Stream) -> Stream:
    """A bucket that collects those of others, whose subjects it keeps."""
    return make_bucket(stream, subjects=[], sources=[{"name": each.name} for each in origins])


def test_the_latest_of_a_key_that_comes_from_two_buckets(
    stream: MakeStream, origins: tuple[Stream, Stream]
) -> None:
    one, other = origins
    both = copied(stream, one, other)
    put(one, a=b"1", b=b"2")
    both.wait_for(2)
    put(other, a=b"3")
    both.wait_for(3)
    other.send(Message(f"$KV.{name_of(other)}.b", b"", [("KV-Operation", "DEL")]))
    both.wait_for(4)
    for leader in (False, True):
        assert find(both.url, name_of(both), "a", "b", leader=leader) == [(b"3", 3), None]


def test_more_subjects_of_keys_than_a_server_allows(
    stream: MakeStream, origins: tuple[Stream, Stream]
) -> None:
    one, other = origins
    both = copied(stream, one, other)
    keys = many(one, 600)
    both.wait_for(600)
    many(other, 600)
    both.wait_for(1200)
    found = find(both.url, name_of(both), *keys)
    assert [row and row[1] for row in found] == [*range(601, 1201)]


def test_values_of_two_buckets_that_one_answer_cannot_hold(
    stream: MakeStream, origins: tuple[Stream, Stream]
) -> None:
    """The first answer ends before the later values of its keys."""
    one, other = origins
    both = copied(stream, one, other)
    many(one, 12, size=1_000_000)
    both.wait_for(12)
    keys = many(other, 12, size=900_000)
    both.wait_for(24)
    found = find(both.url, name_of(both), *keys)
    assert [row and row[1] for row in found] == [*range(13, 25)]


# Servers and buckets without Direct Gets


def test_a_bucket_that_does_not_exist(prices: Stream) -> None:
    with pytest.raises(OptionError, match="there is no Key-Value bucket nowhere"):
        find(prices.url, "nowhere", "a")


def test_a_bucket_that_does_not_allow_direct_gets(stream: MakeStream) -> None:
    bucket = make_bucket(stream, allow_direct=False)
    put(bucket, a=b"1")
    said = (
        f"cannot look up keys of bucket {name_of(bucket)} by direct gets: its stream does not "
        f"allow them; run spark-jetstream stream edit {bucket.name} --allow-direct, or else"
    )
    with pytest.raises(JetStreamError, match=re.escape(said)):
        find(bucket.url, name_of(bucket), "a", instead=", or else")
    assert find(bucket.url, name_of(bucket), "a", "b", leader=True) == [(b"1", 1), None]


def test_a_server_before_2_11(prices: Stream, proxy: WireProxy) -> None:
    version = re.compile(rb'"version":"[^"]*"')
    proxy.drop(
        lambda whole: (
            version.sub(b'"version":"2.10.29"', whole) if whole.startswith(b"INFO") else whole
        )
    )
    said = "they need nats-server 2.11 or newer, and this is 2.10.29, or else"
    with pytest.raises(JetStreamError, match=re.escape(said)):
        find(proxy.url, name_of(prices), "a", instead=", or else")
    assert find(proxy.url, name_of(prices), "a", leader=True) == [(b"1", 1)]


def test_a_key_that_no_request_can_hold(prices: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "max_payload", 64)
    with pytest.raises(JetStreamError, match=r"a key has 33 bytes, .* no .* more than 32"):
        find(prices.url, name_of(prices), "k" * 33)
    assert find(prices.url, name_of(prices), "k" * 32) == [None]


# Answers that prove nothing


def asked(proxy: WireProxy) -> list[bytes]:
    """The subjects of each Direct Get that was sent."""
    return re.findall(rb'"multi_last": \[(.*?)\]', proxy.client_bytes)


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    assert len(old) == len(new)  # a frame says its length
    return lambda whole: whole.replace(old, new)


BEHIND = replaced(b"Nats-UpTo-Sequence: 3", b"Nats-UpTo-Sequence: 2")


def test_a_replica_that_lags(prices: Stream, proxy: WireProxy) -> None:
    proxy.replace_frames(b"Nats-UpTo-Sequence", 3, BEHIND)
    assert find(proxy.url, name_of(prices), "a", "never") == [(b"1", 1), None]
    assert len(asked(proxy)) == 4


def test_a_replica_that_never_catches_up(prices: Stream, proxy: WireProxy) -> None:
    proxy.drop(BEHIND)
    name = name_of(prices)
    with pytest.raises(OutageError) as caught:
        find(proxy.url, name, "a", retry_timeout=0.3, instead=", or else")
    assert str(caught.value) == (
        f"looking up keys of bucket {name} got no further for 0.3 s (option retryTimeout): a "
        f"server that answered has bucket {name} up to revision 2 (yet), and its leader had it up "
        "to 3; wait longer (option retryTimeout), or else"
    )


def test_a_repeated_request_asks_for_nothing_newer(prices: Stream, proxy: WireProxy) -> None:
    """A replica can catch up, however fast others write."""

    def lag(whole: bytes) -> bytes:
        if b"UpTo-Sequence: 3" in whole:
            put(prices, c=b"4")
        return BEHIND(whole).replace(b"UpTo-Sequence: 4", b"UpTo-Sequence: 3")

    proxy.drop(lag)
    name = name_of(prices)
    assert find(proxy.url, name, "a") == [(b"1", 1)]
    assert len(asked(proxy)) == 2
    # Another lookup begins later.
    with pytest.raises(OutageError, match=r"up to revision 3 .* up to 4"):
        find(proxy.url, name, "a", retry_timeout=0.0)


def test_a_mirror_that_answers(prices: Stream, proxy: WireProxy) -> None:
    name = prices.name.encode()
    mirror = replaced(b"Nats-Stream: " + name, b"Nats-Stream: " + b"M" * len(name))
    proxy.replace_frames(b"Nats-Stream: ", 2, mirror)
    assert find(proxy.url, name_of(prices), "a") == [(b"1", 1)]
    assert len(asked(proxy)) == 3


def test_a_mirror_that_answers_always(prices: Stream, proxy: WireProxy) -> None:
    """As one does that is nearer than the bucket."""
    name = prices.name.encode()
    proxy.drop(replaced(b"Nats-Stream: " + name, b"Nats-Stream: " + b"M" * len(name)))
    said = r"mirror M+ answers .*; wait longer \(option retryTimeout\), or else$"
    with pytest.raises(OutageError, match=said):
        find(proxy.url, name_of(prices), "a", retry_timeout=0.3, instead=", or else")


def test_keys_of_which_none_has_a_value(prices: Stream, proxy: WireProxy) -> None:
    """The answer names no revision, so the next request is about another key as well."""
    assert find(proxy.url, name_of(prices), "never", "x") == [None, None]
    first, second = asked(proxy)
    assert second == first + f', "$KV.{name_of(prices)}.c"'.encode()


def test_a_last_message_that_fills_an_answer(
    prices: Stream, proxy: WireProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that is written later has its message after that one, in another answer."""

    def last_and_put(*arguments: Any) -> Any:
        message = last_message(*arguments)
        put(prices, x=b"4")
        monkeypatch.setattr(key_lookup, "last_message", last_message)
        return message

    monkeypatch.setattr(key_lookup, "last_message", last_and_put)
    # Each answer has one message.
    monkeypatch.setattr(key_lookup, "ANSWER_BYTES", 1)
    name = name_of(prices)
    assert find(proxy.url, name, "never", "x") == [None, (b"4", 4)]
    assert [b'.c"' in each for each in asked(proxy)] == [False, True, False]


def status(text: bytes) -> Callable[[bytes], bytes]:
    """A status in place of the end of an answer."""

    def say(whole: bytes) -> bytes:
        _, subject, sid, *_ = whole.split(b"\r\n", 1)[0].split()
        return frame(subject, sid.decode(), b"", b"NATS/1.0 %s\r\n\r\n" % text)

    return say


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_message_that_is_replaced_during_the_answer(
    prices: Stream, proxy: WireProxy, times: int
) -> None:
    """A server before 2.15 ends the answer then."""
    proxy.replace_frames(b"Nats-UpTo-Sequence", times, status(b"404 Message Not Found"))
    found = find(proxy.url, name_of(prices), "a", "b", "c")
    assert found == [(b"1", 1), (b"2", 2), (b"3", 3)]


@pytest.mark.parametrize("text", [b"500 huh", b"408 Bad Request"])
def test_a_status_that_is_not_known_is_no_end(
    prices: Stream, proxy: WireProxy, text: bytes
) -> None:
    proxy.replace_frames(b"Nats-UpTo-Sequence", 1, status(text))
    with pytest.raises(JetStreamError, match=f"refused a direct get.*: {text.decode()}"):
        find(proxy.url, name_of(prices), "a")


def lack_a(prices: Stream, proxy: WireProxy, then: Callable[[], object]) -> None:
    """Let the next answer lack the message of a. ``then`` is called before the answer ends."""
    subject = b"Nats-Subject: $KV.%s.a\r\n" % name_of(prices).encode()

    def without_a(whole: bytes) -> bytes:
        if subject in whole:
            return b""
        if b"Nats-UpTo-Sequence" in whole:
            proxy_has_done.append(True)
            then()
        return whole.replace(b"Nats-Last-Sequence: 1", b"Nats-Last-Sequence: 0")

    proxy_has_done: list[bool] = []
    proxy.drop(lambda whole: whole if proxy_has_done else without_a(whole))


def test_a_key_that_is_written_during_the_answer(prices: Stream, proxy: WireProxy) -> None:
    """A server before 2.15 answers without it: its message is newer than the end of the answer."""
    lack_a(prices, proxy, lambda: put(prices, a=b"new"))
    found = find(proxy.url, name_of(prices), "a", "b", "never")
    assert found == [(b"new", 4), (b"2", 2), None]


def test_a_bucket_at_rest_needs_no_proof_for_each_key(prices: Stream, proxy: WireProxy) -> None:
    keys = [f"never.{number}" for number in range(300)]
    assert find(proxy.url, name_of(prices), "a", *keys) == [(b"1", 1), *[None] * 300]
    assert proxy.client_bytes.count(b"MSG.GET") == 0
    assert proxy.client_bytes.count(b"STREAM.INFO") == 2


def test_an_answer_that_loses_a_message(prices: Stream, proxy: WireProxy) -> None:
    proxy.drop_frames(b"Nats-Sequence: 2\r\n")
    found = find(proxy.url, name_of(prices), "a", "b", "c")
    assert found == [(b"1", 1), (b"2", 2), (b"3", 3)]
    assert len(asked(proxy)) == 2


# Outages


@pytest.mark.parametrize("leader", [False, True])
def test_a_wire_that_is_cut_in_the_middle(prices: Stream, proxy: WireProxy, leader: bool) -> None:
    keys = many(prices, 600, size=10_000)
    cut = proxy.cut_after(3_000_000)
    found = find(proxy.url, name_of(prices), *keys, "never", leader=leader)
    assert cut.is_set()
    assert [row and row[0].rstrip(b".").decode() for row in found] == [*keys, None]


def test_a_server_that_is_away_fails_the_lookup(prices: Stream, proxy: WireProxy) -> None:
    assert find(proxy.url, name_of(prices), "a") == [(b"1", 1)]
    proxy.refuse()
    proxy.cut()
    with pytest.raises(OutageError, match=r"for 0\.2 s \(option retryTimeout\)"):
        find(proxy.url, name_of(prices), "a", "never", retry_timeout=0.2)


def replicated_bucket(cluster: NatsCluster, name: str, count: int) -> list[str]:
    """A bucket with three replicas and one revision of each key; return its keys."""
    config = {**CONFIG, "max_msgs_per_subject": 1, "storage": "file", "num_replicas": 3}
    create(cluster.url, f"KV_{name}", **{**config, "subjects": [f"$KV.{name}.>"]})
    cluster.wait_ready()
    keys = [f"key.{number:05}" for number in range(count)]
    write(cluster, name, keys, b"old")
    return keys


def write(cluster: NatsCluster, name: str, keys: list[str], value: bytes) -> None:
    with Publisher(cluster.urls[cluster.leader_of(f"KV_{name}")]) as publisher:
        publisher.publish(Message(f"$KV.{name}.{key}", value) for key in keys)


@pytest.mark.full
@pytest.mark.usefixtures("no_connection_left")
def test_a_leader_that_dies_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    with NatsCluster() as cluster:
        keys = replicated_bucket(cluster, "b", 3000)
        answers: list[int] = []

        def take_and_kill(*arguments: Any) -> Any:
            if len(answers) == 1:
                cluster.kill(cluster.leader_of("KV_b"))
            answers.append(1)
            return take_answer(*arguments)

        monkeypatch.setattr(key_lookup, "take_answer", take_and_kill)
        found = find(cluster.url, "b", *keys, "never", retry_timeout=60.0)
        assert found == [*[(b"old", number) for number in range(1, 3001)], None]
        assert len(answers) > 3


@pytest.mark.full
@pytest.mark.usefixtures("no_connection_left")
def test_a_server_that_has_to_catch_up() -> None:
    """A server that was restarted answers Direct Gets from what it has so far."""
    with NatsCluster() as cluster:
        keys = replicated_bucket(cluster, "b", 500)
        late = (cluster.leader_of("KV_b") + 1) % 3
        cluster.kill(late)
        # It may have led the metadata, and without that leader nothing can be asked.
        cluster.wait_ready()
        for _ in range(20):
            write(cluster, "b", keys, b"x" * 4000)
        write(cluster, "b", keys, b"new")
        with ThreadPoolExecutor(1) as pool:
            back = pool.submit(cluster.restart, late)
            while not back.done():
                found = find(cluster.url, "b", *keys, "never", retry_timeout=60.0)
                assert [row and row[0] for row in found] == [*[b"new"] * 500, None]
        back.result()
