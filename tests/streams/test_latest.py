"""The current table of a bucket, read below Spark from the real server, while it is written to and
broken.

In each case the read has each key exactly once, by a revision that was its latest at some time
during the read.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from spark_jetstream.buckets.kv import bucket_batch
from spark_jetstream.buckets.stream import find_bucket
from spark_jetstream.client.deadline import Deadline
from spark_jetstream.client.requests import Requests
from spark_jetstream.errors import DataLossError, JetStreamError, OptionError, OutageError
from spark_jetstream.options import SourceOptions
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.protocol.stream import SequenceRange, StreamSummary
from spark_jetstream.streams import latest
from spark_jetstream.streams.latest import TablePart, read_table
from spark_jetstream.streams.pull import PullSettings
from spark_jetstream.testing import NatsCluster, NatsServer
from tests.support.client import full
from tests.support.fake_jetstream import CREATED, FakeJetStream, Honest
from tests.support.keyed import make_bucket, name_of
from tests.support.proxy import WireProxy
from tests.support.publish import Message, Publisher
from tests.support.reading import QUICK, SETTINGS, connecting, consumers, wait_until
from tests.support.streams import MakeStream, Stream

KEYS = 2000
SMALL = replace(SETTINGS, batch=100)
DELETED = {"KV-Operation": "DEL"}
PURGED = {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}

pytestmark = pytest.mark.usefixtures("no_connection_left")


#: With one revision of each key, by consumers and by direct gets; with several, by consumers alone.
KINDS = pytest.mark.parametrize(("history", "direct"), [(1, False), (1, True), (3, False)])


class Row(NamedTuple):
    key: str
    revision: int
    value: bytes | None
    operation: str


def put(
    bucket: Stream, key: str, value: bytes = b"", headers: dict[str, str] | None = None
) -> Message:
    return Message(
        f"$KV.{name_of(bucket)}.{key}", value, None if headers is None else list(headers.items())
    )


def fill(bucket: Stream, keys: int = KEYS, rounds: int = 1) -> None:
    """Put each of `keys` keys `rounds` times; the last value of key i is `<rounds - 1>.<i>`."""
    bucket.publisher.publish(
        put(bucket, f"k.{i}", b"%d.%d" % (n, i)) for n in range(rounds) for i in range(keys)
    )


def read(
    bucket: Stream,
    settings: PullSettings = SETTINGS,
    *filters: str,
    url: str = "",
    direct: bool = False,
) -> Iterator[MessageRun]:
    subjects = tuple(f"$KV.{name_of(bucket)}.{each}" for each in filters)
    part = TablePart(
        bucket.name, bucket.publisher.api(f"STREAM.INFO.{bucket.name}")["created"], subjects, direct
    )
    return read_part(url or bucket.url, part, settings)


def read_part(url: str, part: TablePart, settings: PullSettings = SETTINGS) -> Iterator[MessageRun]:
    return read_table(connecting(url), part, settings, "test")


def rows(messages: Iterator[MessageRun]) -> list[Row]:
    columns = list(Row._fields)
    return [
        Row(**row)
        for run in messages
        for row in bucket_batch(run, bucket="", columns=columns).to_pylist()
    ]


def values(found: list[Row]) -> dict[str, bytes | None]:
    """The value of each key, which must be in `found` once."""
    assert len({row.key for row in found}) == len(found)
    return {row.key: row.value for row in found}


def expected(rounds: int, keys: int = KEYS) -> dict[str, bytes | None]:
    return {f"k.{i}": b"%d.%d" % (rounds - 1, i) for i in range(keys)}


# Nothing goes wrong


@KINDS
def test_the_latest_revision_of_each_key(stream: MakeStream, history: int, direct: bool) -> None:
    bucket = make_bucket(stream, max_msgs_per_subject=history)
    fill(bucket, rounds=7)
    bucket.publisher.publish(
        [
            put(bucket, "k.1", b"", DELETED),
            put(bucket, "k.2", b"", PURGED),
            put(bucket, "k.1", b"again"),
        ]
    )
    found = rows(read(bucket, direct=direct))
    assert values(found) == {**expected(7), "k.1": b"again", "k.2": None}
    assert [row for row in found if row.operation != "PUT"] == [
        Row("k.2", 7 * KEYS + 2, None, "PURGE")
    ]
    assert [row.revision for row in found] == sorted(row.revision for row in found)
    wait_until(lambda: not consumers(bucket.url, bucket.name), "the consumers' end")


@KINDS
def test_filters_of_keys(stream: MakeStream, history: int, direct: bool) -> None:
    bucket = make_bucket(stream, max_msgs_per_subject=history)
    assert rows(read(bucket, direct=direct)) == []
    fill(bucket, 50, rounds=3)
    bucket.publisher.publish(
        [put(bucket, "other.1", b"x"), put(bucket, "other.2", b"y"), put(bucket, "more", b"z")]
    )
    assert values(rows(read(bucket, SETTINGS, "k.*", direct=direct))) == expected(3, 50)
    assert values(rows(read(bucket, SETTINGS, "k.7", "other.>", direct=direct))) == {
        "k.7": b"2.7",
        "other.1": b"x",
        "other.2": b"y",
    }
    assert rows(read(bucket, SETTINGS, "none", direct=direct)) == []
    bucket.purge()
    assert rows(read(bucket, direct=direct)) == []
    bucket.publisher.publish([put(bucket, "k", b"1")])
    assert values(rows(read(bucket, direct=direct))) == {"k": b"1"}


def test_a_bucket_of_several_revisions_cannot_be_read_directly(stream: MakeStream) -> None:
    bucket = make_bucket(stream, max_msgs_per_subject=2)
    with pytest.raises(JetStreamError, match=f"stream {bucket.name} keeps more than one message"):
        rows(read(bucket, direct=True))


# Others write


@KINDS
def test_a_key_written_again_before_its_turn_is_read_once(
    stream: MakeStream, history: int, direct: bool
) -> None:
    bucket = make_bucket(stream, max_msgs_per_subject=history)
    fill(bucket, rounds=history)
    messages = read(bucket, SMALL, direct=direct)
    first = rows(iter([next(messages)]))
    assert len(first) < KEYS / 2
    # The old revisions of all keys go; one key is deleted, one is purged, one is new.
    bucket.publisher.publish(
        put(bucket, f"k.{i}", b"new.%d.%d" % (n, i)) for n in range(history) for i in range(KEYS)
    )
    deleted, purged = (
        put(bucket, f"k.{KEYS - 1}", b"", DELETED),
        put(bucket, f"k.{KEYS - 2}", b"", PURGED),
    )
    bucket.publisher.publish([deleted, purged, put(bucket, "added", b"1")])
    found = first + rows(messages)
    values(found)
    assert {row.key for row in found} == {*expected(1), "added"}
    came = {row.key for row in first}
    for row in found[len(first) :]:
        assert row.key not in came
        if row.key not in ("added", f"k.{KEYS - 1}", f"k.{KEYS - 2}"):
            assert row.value in (b"%d.%s" % (history - 1, row.key[2:].encode()), *(
                b"new.%d.%s" % (n, row.key[2:].encode()) for n in range(history)
            ))  # fmt: skip
    assert values(found)[f"k.{KEYS - 2}"] is None
    assert any(row.value is not None and row.value.startswith(b"new") for row in found)


@pytest.mark.parametrize("history", [1, 3])
def test_keys_that_go_during_the_read(stream: MakeStream, history: int) -> None:
    bucket = make_bucket(stream, max_msgs_per_subject=history)
    fill(bucket, rounds=history)
    messages = read(bucket, SMALL)
    first = rows(iter([next(messages)]))
    # No message takes the place of these: a consumer that has them on its list waits.
    for i in range(KEYS // 2, KEYS, 50):
        bucket.purge(filter=f"$KV.{name_of(bucket)}.k.{i}")
    found = values(first + rows(messages))
    gone = {f"k.{i}" for i in range(KEYS // 2, KEYS, 50)}
    assert found == {key: value for key, value in expected(history).items() if key not in gone}


@KINDS
def test_keys_that_are_no_utf8_are_told_apart(
    stream: MakeStream, history: int, direct: bool
) -> None:
    """Although a row has the same text for both of them."""
    bucket = make_bucket(stream, max_msgs_per_subject=history)
    bucket.publisher.publish([put(bucket, "c.\udcff", b"first")])
    fill(bucket)
    bucket.publisher.publish([put(bucket, "c.\udcfe", b"old")])
    messages = read(bucket, SMALL, direct=direct)
    first = rows(iter([next(messages)]))
    bucket.publisher.publish([put(bucket, "c.\udcfe", b"new")] * history)
    found = first + rows(messages)
    assert [row.value for row in found if row.key == "c.\ufffd"] == [b"first", b"new"]


@pytest.mark.parametrize("rest", [[], ["more"], ["more", "k.1"]], ids=len)
def test_a_key_whose_newest_revision_goes_during_the_read_has_the_one_before(
    stream: MakeStream, rest: list[str]
) -> None:
    """The reader is past that one.

    Only if nothing follows does the consumer wait for what it had on its list.
    """
    bucket = make_bucket(stream, max_msgs_per_subject=3, deny_delete=False)
    bucket.publisher.publish([put(bucket, "late", b"before")])
    fill(bucket)
    newest = bucket.publisher.publish(
        [put(bucket, "late", b"after"), put(bucket, "late", b"later")]
    )
    bucket.publisher.publish(put(bucket, key, b"rest") for key in rest[:1])
    messages = read(bucket, SMALL)
    first = rows(iter([next(messages)]))
    bucket.remove(*newest)
    bucket.publisher.publish(put(bucket, key, b"rest") for key in rest[1:])
    found = first + rows(messages)
    assert values(found) == {**expected(1), "late": b"before", **dict.fromkeys(rest[:1], b"rest")}
    assert Row("late", 1, b"before", "PUT") in found
    wait_until(lambda: not consumers(bucket.url, bucket.name), "the consumers' end")


@pytest.mark.parametrize(
    "settings", [SMALL, *full(replace(SETTINGS, batch=7))], ids=["batches", "small batches"]
)
@pytest.mark.parametrize(("history", "direct"), [(1, False), (1, True), (20, False)])
def test_writers_at_work(
    stream: MakeStream, history: int, direct: bool, settings: PullSettings
) -> None:
    """The writers store messages after the first ones of each read, and more during the rest."""
    bucket = make_bucket(stream, max_msgs_per_subject=history)
    fill(bucket, 500, rounds=history)
    stop = threading.Event()
    turns = threading.Semaphore(2)
    written: list[list[tuple[int, str]]] = [[], []]

    def write(number: int) -> None:
        chance = random.Random(number)
        with Publisher(bucket.url) as publisher:
            while not stop.is_set():
                # A few keys are much hotter than all others.
                keys = [f"k.{int(500 * chance.random() ** 4)}" for _ in range(20)]
                sequences = publisher.publish([put(bucket, key, b"w") for key in keys])
                written[number] += zip(sequences, keys, strict=True)
                # Direct gets find no end of a stream that is written to without a pause, and say
                # so.
                if direct:
                    turns.acquire()

    def wait_for_more(last: int) -> None:
        wait_until(lambda: int(bucket.state()["last_seq"]) > last, "a writer")

    def read_beside_writers() -> Iterator[MessageRun]:
        for at, run in enumerate(read(bucket, settings, direct=direct)):
            last = int(bucket.state()["last_seq"])
            if at < 20:
                turns.release(2)
            if at == 0:
                wait_for_more(last)
            yield run

    reads: list[tuple[int, list[Row], int]] = []
    with ThreadPoolExecutor(2) as pool:
        writing = [pool.submit(write, number) for number in range(2)]
        try:
            wait_until(lambda: all(written), "both writers")
            for _ in range(3):
                begun = int(bucket.state()["last_seq"])
                found = rows(read_beside_writers())
                reads.append((begun, found, int(bucket.state()["last_seq"])))
        finally:
            stop.set()
            turns.release(2)
    for each in writing:
        each.result()
    revisions: dict[str, list[int]] = {}
    first = [(n * 500 + i + 1, f"k.{i}") for n in range(history) for i in range(500)]
    for sequence, key in sorted([*first, *written[0], *written[1]]):
        revisions.setdefault(key, []).append(sequence)
    for begun, found, ended in reads:
        assert values(found).keys() == revisions.keys()
        for row in found:
            at = revisions[row.key].index(row.revision)
            later = revisions[row.key][at + 1 :]
            assert row.revision <= ended
            assert not later or later[0] > begun, f"{row} was overwritten before the read began"
        assert begun < ended


def test_a_reader_slower_than_the_writers_says_so(
    stream: MakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Over(Deadline):
        expired = property(lambda _: True)

    bucket = make_bucket(stream, max_msgs_per_subject=1)
    fill(bucket, 10)
    messages = read(bucket)
    came = 0
    while came < 10:  # most often at once
        came += len(next(messages))
    fill(bucket, 10)
    monkeypatch.setattr(latest, "Deadline", Over)
    with pytest.raises(
        OutageError, match=f"{bucket.name} was written to faster than it could be read"
    ):
        rows(messages)


# Something breaks


def test_a_replica_that_lags_has_messages_that_were_replaced() -> None:
    """The leader says that newer ones are missing. The read has those too, and so the subject twice."""
    with FakeJetStream() as fake:
        fake.store(100, lambda sequence: "S.twice" if sequence in {50, 90} else f"S.{sequence}")
        fake.look = lambda: fake.info(max_msgs_per_subject=1, num_replicas=3)
        fake.lagging = [60]
        fake.leader = lambda request: (fake.messages.pop(50, None), fake.message(request))[1]
        with pytest.raises(
            OutageError, match="stream S was read from a replica that lags: it still had"
        ):
            list(read_part(fake.url, TablePart("S", CREATED)))


@pytest.mark.parametrize("history", [1, 3])
def test_a_replica_that_lags_where_the_leader_cannot_be_asked(history: int) -> None:
    """A message stored before the read is delivered late and replaces one that the read has."""
    denial = b"-ERR 'Permissions Violation for Publish to \"$JS.API.STREAM.MSG.GET.S\"'\r\n"
    with FakeJetStream() as fake:
        fake.store(100, lambda sequence: "S.twice" if sequence in {50, 90} else f"S.{sequence}")
        fake.look = lambda: fake.info(max_msgs_per_subject=history, num_replicas=3)
        fake.lagging = [60] * (3 if history == 1 else 1)  # as many as must agree
        fake.lies = {"STREAM.MSG.GET": lambda _: [denial]}
        with pytest.raises(
            OutageError, match="stream S was read from a replica that lags: it still had"
        ):
            list(read_part(fake.url, TablePart("S", CREATED)))


@pytest.mark.parametrize("again", [False, True])
def test_reading_each_subjects_last_message_from_a_lagging_replica_misses_none(
    again: bool,
) -> None:
    """A newer message of a subject is no reason to fail, even if another one replaces it before its
    turn.
    """

    def replace_first(request: dict[str, Any]) -> dict[str, Any]:
        fake.messages.pop(50, None)
        if again and fake.messages.pop(90, ""):
            fake.store(1, lambda _: "S.twice")
        return fake.message(request)

    with FakeJetStream() as fake:
        fake.store(100, lambda sequence: "S.twice" if sequence in {50, 90} else f"S.{sequence}")
        fake.look = lambda: fake.info(num_replicas=3)
        fake.lagging = [60]
        fake.leader = replace_first
        runs = read_table(
            connecting(fake.url), TablePart("S", CREATED), SETTINGS, "test", rolled_up=True
        )
        came = [sequence for run in runs for sequence in run.sequences.tolist()]
    assert came == ([*range(1, 90), *range(91, 102)] if again else [*range(1, 101)])


def test_messages_that_are_counted_and_never_delivered() -> None:
    """Each new consumer counts one and delivers none: that is an outage, also without an error of
    the server.
    """
    with FakeJetStream() as fake:
        fake.store(10)

        def created(honest: Honest) -> list[bytes]:
            if fake.count("CONSUMER.CREATE") > 100:  # a read that goes on and on ends here
                fake.messages.clear()
            return [honest.changed(num_pending=min(1, len(fake.messages)))]

        fake.lies["CONSUMER.CREATE"] = created
        fake.lies["CONSUMER.MSG.NEXT"] = lambda honest: [
            honest.saying(b"", b"NATS/1.0 404 No Messages\r\n\r\n")
        ]
        part = SequenceRange("S", 1, latest.END, None, CREATED)
        messages = latest.read_to_end(
            connecting(fake.url), part, replace(SETTINGS, retry_timeout=1.0), "test"
        )
        with pytest.raises(
            OutageError,
            match=r"got no further .* the server counts messages that it does not deliver",
        ):
            list(messages)


@pytest.mark.parametrize("history", [1, 3])
def test_a_consumer_deleted_half_way(stream: MakeStream, history: int) -> None:
    bucket = make_bucket(stream, max_msgs_per_subject=history)
    fill(bucket, rounds=history)
    found: list[Row] = []
    deleted = 0
    for run in read(bucket, SMALL):
        found += rows(iter([run]))
        if deleted < 3 and len(found) > KEYS * (deleted + 1) / 5:
            for name in consumers(bucket.url, bucket.name):
                bucket.publisher.api(f"CONSUMER.DELETE.{bucket.name}.{name}")
            bucket.publisher.publish([put(bucket, f"k.{KEYS - 1 - deleted}", b"again")])
            deleted += 1
    assert deleted == 3
    again = {f"k.{KEYS - 1 - i}" for i in range(3)}
    seen = values(found)
    assert {key: value for key, value in seen.items() if key not in again} == {
        key: value for key, value in expected(history).items() if key not in again
    }
    assert {seen[key] for key in again} <= {b"again", *(expected(history)[key] for key in again)}


@pytest.mark.parametrize("history", [1, 3])
@pytest.mark.parametrize("position", [20_000, *full(1, 2_000, 60_000, 100_000)])
def test_a_connection_cut_half_way(stream: MakeStream, history: int, position: int) -> None:
    bucket = make_bucket(stream, max_msgs_per_subject=history)
    fill(bucket, rounds=history)
    with WireProxy(bucket.url) as proxy:
        list(read(bucket, SETTINGS, "k.1", url=proxy.url))  # the connection is there
        cut = proxy.cut_after(position)
        assert values(rows(read(bucket, SETTINGS, url=proxy.url))) == expected(history)
        assert cut.is_set()


@pytest.mark.parametrize("history", [1, 3])
def test_a_server_killed_half_way(history: int) -> None:
    with NatsServer() as server, Publisher(server.url) as publisher:
        bucket = Stream(
            server.url,
            "KV_b",
            publisher,
            subjects=["$KV.b.>"],
            max_msgs_per_subject=history,
            storage="file",
        )
        fill(bucket, rounds=history)
        messages = read(bucket, SMALL)
        first = rows(iter([next(messages)]))
        server.kill()
        server.restart()
        assert values(first + rows(messages)) == expected(history)


@KINDS
@pytest.mark.parametrize("before", [True, False], ids=["before the read", "half way"])
def test_a_bucket_deleted(stream: MakeStream, history: int, direct: bool, before: bool) -> None:
    bucket = make_bucket(stream, max_msgs_per_subject=history)
    for again in (False, True):
        fill(bucket, rounds=history)
        messages = read(
            bucket, replace(SMALL, fail_on_data_loss=False, retry_timeout=5.0), direct=direct
        )
        if not before:
            next(messages)
        bucket.delete()
        if again:
            bucket.create()
            fill(bucket, rounds=history)
        with pytest.raises(
            DataLossError,
            match=f"stream {bucket.name}, created at .*, was deleted or created again",
        ):
            rows(messages)
        if not again:
            bucket.create()


@pytest.mark.full
def test_a_leader_that_moves(nats_cluster: NatsCluster) -> None:
    with Publisher(nats_cluster.urls[0]) as publisher:
        bucket = Stream(
            nats_cluster.url.partition(",")[0],
            "KV_moving",
            publisher,
            subjects=["$KV.moving.>"],
            max_msgs_per_subject=3,
            num_replicas=3,
        )
        fill(bucket, rounds=3)
        nats_cluster.wait_ready()  # a read from a replica that lags fails, and says so
        for keys in ((), ("k.*",), ("k.7", "k.8")):
            messages = read(bucket, SMALL, *keys)
            found = rows(iter([next(messages)]))
            for name in consumers(bucket.url, bucket.name):
                publisher.api(f"CONSUMER.DELETE.{bucket.name}.{name}")
            publisher.api(f"STREAM.LEADER.STEPDOWN.{bucket.name}")
            nats_cluster.leader_of(bucket.name)
            all_keys = expected(3)
            wanted = {
                key: all_keys[key] for key in (keys if keys and "*" not in keys[0] else all_keys)
            }
            assert values(found + rows(messages)) == wanted
        bucket.delete()


# The stream behind a bucket


def found_bucket(url: str, **given: str) -> tuple[StreamSummary, tuple[str, ...]]:
    parsed = SourceOptions.from_spark({**QUICK, "servers": url, **given}, streaming=False)
    name = parsed.named(parsed.read_streams[0])
    keys = None if parsed.bucket is None else parsed.keys
    return find_bucket(Requests(connecting(parsed.connection), 1.0), name, keys)


def test_a_bucket_filled_from_others_has_their_subjects(
    stream: MakeStream, nats_server: NatsServer
) -> None:
    origin = make_bucket(stream, max_msgs_per_subject=1)
    other = make_bucket(stream, max_msgs_per_subject=1)
    origin.publisher.publish(
        [put(origin, "a.1", b"1"), put(origin, "b", b"2"), put(other, "a.2", b"3")]
    )
    sources = [{"name": origin.name}, {"name": other.name}]
    copies: tuple[tuple[str, dict[str, object], list[str]], ...] = (
        ("mirrored", {"mirror": {"name": origin.name}, "max_msgs_per_subject": 1}, ["a.1"]),
        # A mirror of a mirror still has the subjects of the first.
        ("twice", {"mirror": {"name": "KV_mirrored"}}, ["a.1"]),
        ("sourced", {"sources": sources, "max_msgs_per_subject": 1}, ["a.1", "a.2"]),
    )
    for name, config, keys in copies:
        stream(name=f"KV_{name}", subjects=None, **config).wait_for(1 + len(keys))
        state, subjects = found_bucket(nats_server.url, bucket=name, keys="a.*")
        assert subjects == ("$KV.*.a.*",)
        part = TablePart(state.name, state.created, subjects)
        assert sorted(row.key for row in rows(read_part(nats_server.url, part))) == keys


NO_BUCKETS: list[tuple[str, dict[str, object]]] = [
    ("bucket", {"name": "KV_no", "subjects": ["no.>"], "max_msgs_per_subject": 1}),
    ("bucket", {"name": "KV_no", "subjects": ["$KV.no.>", "orders"], "max_msgs_per_subject": 1}),
    ("bucket", {"name": "KV_no", "subjects": ["$KV.other.>"], "max_msgs_per_subject": 1}),
    ("bucket", {"name": "KV_no", "subjects": ["$KV.no.>"]}),
    ("bucket", {"name": "KV_no", "subjects": None, "mirror": {"name": "KEPT"}}),
    ("objectBucket", {"name": "OBJ_no", "subjects": ["$KV.no.>"]}),
]


@pytest.mark.parametrize(("option", "config"), NO_BUCKETS, ids=str)
def test_a_stream_that_is_no_bucket(
    stream: MakeStream, nats_server: NatsServer, option: str, config: dict[str, object]
) -> None:
    stream(**config)
    kind = "Key-Value bucket" if option == "bucket" else "Object Store bucket"
    with pytest.raises(
        OptionError, match=rf"stream {config['name']} is no {kind} \(option {option}\)"
    ):
        found_bucket(nats_server.url, **{option: "no"})
