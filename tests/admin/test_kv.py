"""Key-Value buckets on a real server: set up, changed, removed; keys read and written, beside
nats-py's client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from nats.js.api import KeyValueConfig
from nats.js.client import JetStreamContext
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError

from spark_jetstream.admin import BucketConfig, BucketInfo, Entry, JetStreamAdmin, StreamInfo
from spark_jetstream.admin.streams import Streams
from spark_jetstream.client.pool import close_all
from spark_jetstream.errors import (
    ApiError,
    JetStreamError,
    KeyNotFound,
    NoResponders,
    OptionError,
    StreamExists,
    StreamNotFound,
    WrongRevision,
)
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.streams.latest import read_table
from spark_jetstream.testing import NatsServer
from spark_jetstream.testing.process import poll
from tests.admin.conftest import MakeKv
from tests.support.client import ask
from tests.support.keyed import read_whole, table_of
from tests.support.leaf import Linked
from tests.support.proxy import WireProxy, answer
from tests.support.publish import Message, Publisher


def facts(entry: Entry) -> tuple[str, bytes, int, str]:
    return entry.key, entry.value, entry.revision, entry.operation


# -- creating, changing and listing buckets --


def test_a_bucket_is_set_up_as_the_clients_do_it(admin: JetStreamAdmin, name: str) -> None:
    info = admin.kv.create(
        name,
        history=7,
        ttl="90s",
        max_value_size="1k",
        max_bytes="1m",
        storage="memory",
        compression=False,
        limit_marker_ttl="1m",
        description="what colours are",
        metadata={"owner": "me"},
        republish={"src": f"$KV.{name}.>", "dest": "copies.>"},
    )
    config = info.stream.config.body()
    second = 1_000_000_000
    expected = {
        "name": f"KV_{name}",
        "subjects": [f"$KV.{name}.>"],
        "description": "what colours are",
        "max_msgs_per_subject": 7,
        "max_age": 90 * second,
        "duplicate_window": 90 * second,
        "max_msg_size": 1024,
        "max_bytes": 1024 * 1024,
        "storage": "memory",
        "allow_msg_ttl": True,
        "subject_delete_marker_ttl": 60 * second,
        "republish": {"src": f"$KV.{name}.>", "dest": "copies.>"},
        "metadata": {"owner": "me"},
    }
    assert {field: config.get(field) for field in expected} == expected
    assert (info.bucket, info.history, str(info.ttl), info.max_value_size) == (
        name,
        7,
        "1m30s",
        1024,
    )
    assert (info.max_bytes, info.storage, info.replicas, info.compression) == (
        1024 * 1024,
        "memory",
        1,
        False,
    )
    assert (str(info.limit_marker_ttl), info.description, info.metadata) == (
        "1m",
        "what colours are",
        {"owner": "me"},
    )
    assert (info.values, info.sealed, info.mirror, info.sources, info.placement) == (
        0,
        False,
        None,
        (),
        None,
    )
    assert info.republish is not None


def test_a_new_bucket_has_the_defaults_of_nats_py(
    nats_server: NatsServer, make: MakeKv, name: str
) -> None:
    make(history=1, ttl=None)

    async def work(js: JetStreamContext) -> dict[str, Any]:
        await js.create_key_value(bucket=f"{name}py", direct=True, storage="memory")
        configs = [
            (await js.stream_info(f"KV_{each}")).config.as_dict() for each in (name, f"{name}py")
        ]
        return {
            field: (configs[0].get(field), configs[1].get(field))
            for field in {**configs[0], **configs[1]}
            if configs[0].get(field) != configs[1].get(field)
        }

    # This client always allows a TTL of single messages, which Go's does with limit markers only.
    assert ask(nats_server.url, work).keys() == {"name", "subjects", "allow_msg_ttl", "metadata"}


def test_a_bucket_that_exists(admin: JetStreamAdmin, make: MakeKv, name: str) -> None:
    config = BucketConfig(history=5, storage="memory")
    make()
    assert admin.kv.create(name, config).history == 5
    assert admin.kv.load_or_create(name, config, history=5).bucket == name
    with pytest.raises(StreamExists, match=f"cannot create stream KV_{name}"):
        admin.kv.create(name, config, history=6)
    with pytest.raises(JetStreamError, match=r"max_msgs_per_subject: 5 -> 6"):
        admin.kv.load_or_create(name, config, history=6)
    assert admin.kv.load_or_create(f"{name}b", storage="memory").history == 1


def test_a_bucket_of_another_client_is_loaded(
    admin: JetStreamAdmin, nats_server: NatsServer, name: str
) -> None:
    """nats-py does not allow Direct Get, and allows a TTL of single messages: neither is an option
    of a bucket.
    """
    ask(
        nats_server.url,
        lambda js: js.create_key_value(bucket=name, history=3, ttl=60, storage="memory"),
    )
    assert admin.kv.load_or_create(
        name, history=3, ttl="60s", storage="memory"
    ).stream.config.allow_msg_ttl
    with pytest.raises(
        JetStreamError, match=r"asked for\): max_age: 1m -> 0s; max_msgs_per_subject: 3 -> 1; d"
    ):
        admin.kv.load_or_create(name, storage="memory")
    admin.kv.delete(name)


def test_buckets_are_listed(admin: JetStreamAdmin, make: MakeKv, name: str) -> None:
    make().put("a", "1")
    make("b", description="second")
    make("m", mirror=name, history=1)
    assert [each for each in admin.kv.names() if each.startswith(name)] == [
        name,
        f"{name}b",
        f"{name}m",
    ]
    found = {info.bucket: info for info in admin.kv.infos() if info.bucket.startswith(name)}
    assert list(found) == [name, f"{name}b", f"{name}m"]
    assert (found[name].values, found[f"{name}b"].description) == (1, "second")
    assert found[name].bytes > 0
    assert isinstance(found[name], BucketInfo)
    assert all(not each.startswith("KEPT") for each in admin.kv.names())


def test_a_bucket_is_changed(admin: JetStreamAdmin, make: MakeKv, name: str) -> None:
    bucket = make(limit_marker_ttl="1m", metadata={"a": "b"})
    assert [str(each) for each in admin.kv.plan(name, history=3)] == [
        "max_msgs_per_subject: 5 -> 3"
    ]
    assert bucket.status().history == 5
    found = admin.kv.update(
        name, history=3, ttl="30s", limit_marker_ttl=None, description="new", metadata=None
    )
    assert {each.field for each in found} == {
        "max_msgs_per_subject", "max_age", "duplicate_window", "subject_delete_marker_ttl", "description", "metadata.a",
    }  # fmt: skip
    info = bucket.status()
    assert (info.history, str(info.ttl), info.limit_marker_ttl, info.description) == (
        3,
        "30s",
        0,
        "new",
    )
    assert [each.field for each in admin.kv.update(name, ttl=None)] == [
        "max_age",
        "duplicate_window",
    ]
    assert admin.kv.update(name, history=3) == []
    sources = admin.kv.update(name, sources=[f"{name}b"])
    assert [each.field for each in sources] == ["sources"]


def test_changes_that_cannot_be(admin: JetStreamAdmin, make: MakeKv, name: str) -> None:
    make()
    make("m", mirror=name, history=1)
    cases: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (
            OptionError,
            rf'bucket {name}: there is no field "hist" \(did',
            lambda: admin.kv.update(name, hist=3),
        ),
        (
            OptionError,
            "history must be a whole number from 1 to 64",
            lambda: admin.kv.update(name, history=65),
        ),
        (
            JetStreamError,
            "storage: memory -> file .*never",
            lambda: admin.kv.update(name, storage="file"),
        ),
        (OptionError, "mirror cannot change", lambda: admin.kv.update(f"{name}m", mirror=None)),
        (
            StreamNotFound,
            f"no Key-Value bucket {name}zz",
            lambda: admin.kv.update(f"{name}zz", history=2),
        ),
        (StreamNotFound, f"no Key-Value bucket {name}zz", lambda: admin.kv.load(f"{name}zz")),
        (StreamNotFound, f"no Key-Value bucket {name}zz", lambda: admin.kv.delete(f"{name}zz")),
        (
            OptionError,
            'bucket must be 1 to 252 letters .*, not "a.b"',
            lambda: admin.kv.create("a.b"),
        ),
        (OptionError, 'ttl must be .*, not "soon"', lambda: admin.kv.create(name, ttl="soon")),
        (
            OptionError,
            "a mirror cannot have sources",
            lambda: admin.kv.create(name, mirror="a", sources=["b"]),
        ),
        (
            StreamNotFound,
            f"no Key-Value bucket {name}zz",
            lambda: admin.kv.create(f"{name}c", mirror=f"{name}zz"),
        ),
    ]
    for kind, said, work in cases:
        with pytest.raises(kind, match=said):
            work()
    assert admin.kv.delete(f"{name}zz", missing_ok=True) is False
    assert admin.kv.delete(f"{name}m") is True


# -- keys, read and written beside nats-py --


def test_a_bucket_reads_entries_that_nats_py_has_written(
    admin: JetStreamAdmin, nats_server: NatsServer, name: str
) -> None:
    async def work(js: JetStreamContext) -> None:
        kv = await js.create_key_value(KeyValueConfig(bucket=name, history=5, storage="memory"))  # type: ignore[arg-type]
        await kv.put("a.b", b"1")
        await kv.create("c", b"\xff")
        await kv.update("a.b", b"2", last=1)
        await kv.delete("c")
        await kv.put("d", b"")
        await kv.put("e", b"x")
        await kv.purge("e")

    ask(nats_server.url, work)
    bucket = admin.kv.bucket(name)
    assert facts(bucket.get("a.b")) == ("a.b", b"2", 3, "PUT")
    assert (bucket.get("a.b").text, bucket.get("a.b", revision=1).text) == ("2", "1")
    assert bucket.get("d").value == b""
    assert [facts(each) for each in bucket.history("c")] == [
        ("c", b"\xff", 2, "PUT"),
        ("c", b"", 4, "DELETE"),
    ]
    assert [facts(each) for each in bucket.history("e")] == [("e", b"", 7, "PURGE")]
    assert list(bucket.keys()) == ["a.b", "d"]
    assert list(bucket.keys("a.*", "c")) == ["a.b"]
    assert [facts(each) for each in bucket.entries(include_deletes=True)] == [
        ("a.b", b"2", 3, "PUT"), ("c", b"", 4, "DELETE"), ("d", b"", 5, "PUT"), ("e", b"", 7, "PURGE"),
    ]  # fmt: skip
    # This client leaves direct reads off.
    with pytest.raises(
        NoResponders, match=f"stream KV_{name}: does it exist, and is its allow_direct"
    ):
        bucket.get("d", direct=True)


def test_nats_py_reads_entries_that_a_bucket_has_written(
    nats_server: NatsServer, make: MakeKv, name: str
) -> None:
    bucket = make()
    assert bucket.put("a", "é") == 1
    assert bucket.create("b", b"\x00\xff") == 2
    assert bucket.update("a", "2", 1) == 3
    assert bucket.delete("b", revision=2) == 4
    assert bucket.put("c", b"x") == 5
    assert bucket.purge("c") == 6
    assert bucket.create("b", "again") == 7

    async def work(js: JetStreamContext) -> list[tuple[str, bytes | None, int | None, str | None]]:
        kv = await js.key_value(name)
        assert (await kv.get("a")).value == b"2"
        assert (await kv.get("a", revision=1)).value == "é".encode()
        with pytest.raises(KeyNotFoundError):
            await kv.get("c")
        with pytest.raises(KeyWrongLastSequenceError):
            await kv.create("b", b"x")
        return [
            (each.key, each.value, each.revision, each.operation)
            for each in await read_whole(lambda: kv.history("b"))
        ]

    assert ask(nats_server.url, work) == [
        ("b", b"\x00\xff", 2, None), ("b", b"", 4, "DEL"), ("b", b"again", 7, None),
    ]  # fmt: skip
    assert table_of(nats_server.url, name) == {"a": b"2", "b": b"again"}
    # However they are read they are the same.
    latest = [bucket.get("a"), bucket.get("b", direct=True)]
    assert list(bucket.entries()) == latest == [bucket.history(key)[-1] for key in "ab"]
    assert [each for each in bucket.watch("a", "b", timeout=0.1) if each] == latest


def test_keys_that_have_no_value(make: MakeKv, name: str) -> None:
    bucket = make()
    bucket.put("a", "1")
    bucket.delete("a")
    bucket.put("b", "2")
    bucket.purge("b")
    cases: list[tuple[Callable[[], object], str, tuple[str, str, int]]] = [
        (
            lambda: bucket.get("a"),
            f"get key a of bucket {name}: it was deleted at revision 2",
            ("a", "DELETE", 2),
        ),
        (
            lambda: bucket.get("b"),
            f"get key b of bucket {name}: it was purged at revision 4",
            ("b", "PURGE", 4),
        ),
        (lambda: bucket.get("b", direct=True), "it was purged at revision 4", ("b", "PURGE", 4)),
        (
            lambda: bucket.get("c"),
            f"get key c of bucket {name}: the key does not exist",
            ("c", "", 0),
        ),
        (lambda: bucket.get("c", direct=True), "the key does not exist", ("c", "", 0)),
        (
            lambda: bucket.get("a", revision=99),
            "at revision 99: the bucket does not have this revision",
            ("a", "", 0),
        ),
        (
            lambda: bucket.get("c", revision=1),
            "at revision 1: that is a revision of key a",
            ("c", "", 0),
        ),
        (lambda: bucket.get("a", revision=2), "it was deleted at revision 2", ("a", "DELETE", 2)),
        (lambda: bucket.history("c"), f"the history of key c of bucket {name}", ("c", "", 0)),
        (lambda: bucket.revert("a", 2), "it was deleted at revision 2", ("a", "DELETE", 2)),
    ]
    for work, said, (key, operation, revision) in cases:
        with pytest.raises(KeyNotFound, match=said) as caught:
            work()
        error = caught.value
        assert (error.bucket, error.key, error.operation, error.revision) == (
            name,
            key,
            operation,
            revision,
        )
        assert error.err_code == 10037


def test_revisions_that_are_not_the_latest(make: MakeKv, name: str) -> None:
    bucket = make()
    bucket.put("a", "1")
    cases: list[tuple[Callable[[], object], str, tuple[int, int]]] = [
        (lambda: bucket.update("a", "x", 9), f"key a of bucket {name}: revision 9 was expected, "
                                             "but it has re", (9, 1)),
        (lambda: bucket.update("z", "x", 9), "revision 9 was expected, but it has none", (9, 0)),
        (lambda: bucket.delete("a", revision=2), "delete key a .*: revision 2 was expected", (2, 1)),
        (lambda: bucket.purge("a", revision=2), "purge key a .*: revision 2 was expected", (2, 1)),
        (lambda: bucket.create("a", "x"), f"create key a of bucket {name}: it exists, with "
                                          "revision 1", (0, 1)),
    ]  # fmt: skip
    for work, said, (expected, found) in cases:
        with pytest.raises(WrongRevision, match=said) as caught:
            work()
        error = caught.value
        assert (error.bucket, error.expected, error.found) == (name, expected, found)
        assert error.err_code == 10071
    assert [facts(each) for each in bucket.history("a")] == [("a", b"1", 1, "PUT")]
    # A value is put once more.
    bucket.put("a", "2")
    assert bucket.revert("a", 1) == 3
    bucket.delete("a")
    assert bucket.revert("a", 2) == 5
    assert [each.value for each in bucket.history("a")] == [b"1", b"2", b"1", b"", b"2"]


def test_the_history_of_a_key_that_is_written_meanwhile(
    make: MakeKv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only revision goes after the lookup of the stream, and the new one follows the last
    sequence of that lookup.
    """
    bucket = make(history=1)
    bucket.put("a", "old")
    load = Streams.load

    def load_before_a_put(streams: Streams, name: str) -> StreamInfo:
        info = load(streams, name)
        monkeypatch.setattr(Streams, "load", load)
        bucket.put("a", "new")
        return info

    monkeypatch.setattr(Streams, "load", load_before_a_put)
    assert [facts(each) for each in bucket.history("a")] == [("a", b"new", 2, "PUT")]


def test_keys_values_and_revisions_that_cannot_be(
    admin: JetStreamAdmin, make: MakeKv, name: str
) -> None:
    bucket = make()
    for key in ("", "a b", "a..b", ".a", "a.", "a*", "ä", "a\n", "k" * 800):
        with pytest.raises(OptionError, match=r"key .* is not valid"):
            bucket.put(key, "x")
        with pytest.raises(OptionError, match=r"key .* is not valid"):
            bucket.get(key)
    wrong: Any = 5
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: bucket.get(wrong), "key .* is not valid: it is not a text"),
        (lambda: bucket.put("a", wrong), "a value must be text or bytes, not int"),
        (lambda: bucket.put("a", "\ud800"), "a value: the text cannot be"),
        (lambda: bucket.update("a", "x", 0), "revision must be a whole number from 1 on"),
        (lambda: bucket.get("a", revision=-1), "revision must be"),
        (lambda: bucket.create("a", "x", ttl="500ms"), "ttl must be a duration of whole seconds"),
        (lambda: bucket.create("a", "x", ttl="soon"), "ttl must be"),
        (lambda: bucket.create("a", "x", ttl="201y"), 'ttl must be .* 1s to 200y .*, not "201y"'),
        (lambda: bucket.purge("a", ttl="201y"), 'ttl must be .* from 1s to 200y .*, not "201y"'),
        (
            lambda: bucket.keys("a b"),
            "a filter of keys must be a key, possibly with .*: a character is not a letter",
        ),
        (
            lambda: bucket.entries("a.*", "*.b"),
            r'a filter of keys holds "a\.\*" and "\*\.b", which overlap',
        ),
        (lambda: bucket.watch(history=True, updates_only=True), "history and updates_only cannot"),
        (lambda: bucket.watch("*", "a"), r'holds "\*" and "a", which overlap'),
        (lambda: bucket.watch(timeout=0), "timeout must be a number of seconds above 0"),
        (lambda: bucket.purge_deletes("soon"), "older_than must be a duration"),
        (lambda: bucket.purge_deletes(-1), "older_than must be a duration"),
        (lambda: admin.kv.bucket("a b"), "bucket must be 1 to 252 letters"),
    ]
    for work, said in cases:
        with pytest.raises(OptionError, match=said):
            work()
    nowhere = admin.kv.bucket(f"{name}zz")
    for each in (
        lambda: nowhere.put("a", "x"),
        lambda: nowhere.get("a"),
        nowhere.keys,
        nowhere.watch,
    ):
        with pytest.raises(StreamNotFound, match=f"there is no Key-Value bucket {name}zz"):
            each()
    assert bucket.status().values == 0


def test_a_put_that_a_bucket_refuses_is_an_error_with_the_reason(
    admin: JetStreamAdmin, make: MakeKv, name: str
) -> None:
    small, full = make("s", max_value_size=200), make("f", max_bytes=300)
    assert small.put("a", "x" * 200) == 1
    said = rf"put key a of bucket {name}s: .* larger than max_value_size of bucket {name}s"
    with pytest.raises(ApiError, match=said):
        small.put("a", "x" * 201)
    said = r"it has 3,000,\d+ bytes, and the server takes no more than 1,048,57"
    with pytest.raises(JetStreamError, match=said):
        small.put("a", "x" * 3_000_000)
    with pytest.raises(ApiError, match="a ttl needs limit_marker_ttl of bucket"):
        small.create("a", "x", ttl="5s")
    # A file store that is not full has the same code for a message of more than 32 MiB.
    large = ApiError("as it is", code=503, err_code=10077, description="message too large")
    assert str(small._refusal(large, "a", {}, "put key a")) == "as it is"
    full.put("a", "x" * 100)
    with pytest.raises(
        ApiError,
        match=rf"put key b of bucket {name}f: bucket {name}f takes nothing more: .*max_bytes",
    ):
        full.put("b", "x" * 300)
    admin.streams.seal(f"KV_{name}s")
    with pytest.raises(ApiError, match=f"bucket {name}s is sealed"):
        small.put("a", "x")
    assert small.status().sealed
    # A bucket that goes while somebody has it.
    admin.kv.delete(f"{name}f")
    with pytest.raises(
        StreamNotFound, match=f"put key a of bucket {name}f: there is no Key-Value bucket"
    ):
        full.put("a", "x")


# -- expiry and marks of deletions --


def test_keys_that_go_by_themselves_leave_a_mark(make: MakeKv) -> None:
    bucket = make(limit_marker_ttl="30s", history=1)
    bucket.put("kept", "1")
    assert bucket.create("n", "x", ttl="never") == 2
    # A second may be over before the next request: the watch begins before, and has the value.
    changes = bucket.watch("a", updates_only=True, timeout=60)
    assert next(changes) is None
    assert bucket.create("a", "x", ttl="1s") == 3
    bucket.purge("p", ttl="1s")
    there = next(changes)
    assert there is not None
    assert facts(there) == ("a", b"x", 3, "PUT")
    gone = next(changes)
    assert gone is not None
    assert (gone.key, gone.operation, gone.value) == ("a", "PURGE", b"")
    with pytest.raises(KeyNotFound, match=f"it was purged at revision {gone.revision}"):
        bucket.get("a")
    assert list(bucket.keys()) == ["kept", "n"]
    # A new value takes the place of the server's mark.
    with pytest.raises(
        OptionError, match=r"ttl must be at least limit_marker_ttl of bucket .* \(30s\)"
    ):
        make("h", limit_marker_ttl="30s").create("a", "x", ttl="1s")
    make("o", history=5, limit_marker_ttl="10m")
    mirror = make("m", mirror=f"{bucket.name}o")
    for work in (mirror.create, lambda key, _, ttl: mirror.purge(key, ttl=ttl)):
        with pytest.raises(
            OptionError, match=rf"limit_marker_ttl of bucket {bucket.name}o \(10m\)"
        ):
            work("a", "x", ttl="1s")
    assert mirror.create("a", "x", ttl="10m") == 1
    assert bucket.create("a", "y") > gone.revision
    assert bucket.get("a").value == b"y"


def test_marks_of_deletions_are_removed(make: MakeKv) -> None:
    bucket = make()
    for key in ("a", "b", "c"):
        bucket.put(key, "1")
        bucket.put(key, "2")
    bucket.delete("a")
    bucket.purge("b")
    # All are young: the history goes, the marks stay.
    assert bucket.purge_deletes("1h") == 0
    assert [facts(each)[2:] for each in bucket.history("a")] == [(7, "DELETE")]
    assert bucket.purge_deletes(0) == 2
    with pytest.raises(KeyNotFound, match="the key does not exist"):
        bucket.get("a")
    assert [facts(each) for each in bucket.watch(history=True, timeout=0.1) if each] == [
        ("c", b"1", 5, "PUT"), ("c", b"2", 6, "PUT"),
    ]  # fmt: skip
    assert bucket.purge_deletes() == 0


def test_a_mark_whose_subject_matches_others_stays(
    make: MakeKv, publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    """A server stores a mark at this subject if somebody publishes it, and purging the subject
    would purge the others.
    """
    bucket = make()
    for key in ("a.b", "live"):
        bucket.put(key, "1")
    subjects = [f"$KV.{bucket.name}.{wildcard}" for wildcard in ("*", ">", "a.*")]
    publisher.publish(Message(subject, b"", [("KV-Operation", "DEL")]) for subject in subjects)
    bucket.delete("gone")
    assert bucket.purge_deletes(0) == 1
    assert list(bucket.keys()) == ["a.b", "live"]
    for sequence, subject in enumerate(subjects, 3):
        assert f"message {sequence} of bucket {bucket.name} on {subject} stays" in caplog.text


def test_a_value_that_is_put_while_marks_are_removed_stays(
    make: MakeKv, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = make()
    for key in ("a", "b"):
        bucket.put(key, "1")
        bucket.delete(key)

    def slowly(*args: Any) -> Iterator[MessageRun]:
        runs = list(read_table(*args))
        bucket.put("a", "new")
        yield from runs

    monkeypatch.setattr("spark_jetstream.admin.kv.read_table", slowly)
    assert bucket.purge_deletes(0) == 2
    monkeypatch.undo()
    assert [facts(each) for each in bucket.history("a")] == [("a", b"new", 5, "PUT")]
    assert list(bucket.keys()) == ["a"]


# -- mirrors, other streams, other domains --


def test_a_mirror_reads_from_itself_and_writes_to_its_origin(
    admin: JetStreamAdmin, make: MakeKv, name: str
) -> None:
    origin, mirror = make("o"), make("m", mirror=f"{name}o")
    info = mirror.status()
    assert info.mirror is not None
    assert (info.mirror.name, info.stream.config.mirror_direct) == (f"KV_{name}o", True)
    assert mirror.put("a", "1") == 1
    assert mirror.create("b", "1") == 2
    assert mirror.delete("b") == 3
    assert mirror.create("b", "2") == 4
    assert mirror.update("a", "3", 1) == 5
    assert [facts(each) for each in origin.entries()] == [
        ("b", b"2", 4, "PUT"),
        ("a", b"3", 5, "PUT"),
    ]
    poll(lambda: mirror.status().values == 5 or None, 60, lambda: TimeoutError("the mirror"))
    assert [facts(each) for each in mirror.entries()] == [
        ("b", b"2", 4, "PUT"),
        ("a", b"3", 5, "PUT"),
    ]
    assert list(mirror.keys("a")) == ["a"]
    assert mirror.get("a").value == b"3"
    assert [each.revision for each in mirror.history("b")] == [2, 3, 4]
    origin.delete("a")
    poll(lambda: mirror.status().values == 6 or None, 60, lambda: TimeoutError("the mirror"))
    assert (mirror.purge_deletes(0), mirror.purge_deletes(0)) == (
        1,
        0,
    )  # the mirror still has the mark
    admin.streams.create(name=f"KV_{name}odd", mirror={"name": "KEPT"}, storage="memory")
    with pytest.raises(
        OptionError, match=f"{name}odd is a mirror of stream KEPT, which is no Key-Value bucket"
    ):
        admin.kv.bucket(f"{name}odd").put("a", "x")


def test_keys_that_come_from_other_buckets(admin: JetStreamAdmin, make: MakeKv, name: str) -> None:
    one, two = make("1"), make("2")
    one.put("a", "1")
    two.put("b", "2")
    both = make("b", sources=[f"{name}1", {"name": f"KV_{name}2"}])
    transforms = {each.name: each.subject_transforms for each in both.status().sources}
    assert {
        source: [(each.src, each.dest) for each in found] for source, found in transforms.items()
    } == {f"KV_{name}{at}": [(f"$KV.{name}{at}.>", f"$KV.{name}b.>")] for at in (1, 2)}
    poll(lambda: both.status().values == 2 or None, 60, lambda: TimeoutError("the sources"))
    assert {each.key: each.value for each in both.entries()} == {"a": b"1", "b": b"2"}
    assert both.get("b").value == b"2"
    both.put("a", "own")
    assert {each.key: each.value for each in both.entries()} == {"a": b"own", "b": b"2"}
    # Made by somebody who rewrites no subjects: the keys keep those of their buckets.
    admin.streams.create(
        name=f"KV_{name}p", subjects=[f"$KV.{name}p.>"], sources=[{"name": f"KV_{name}1"}], max_msgs_per_subject=5,
        storage="memory",
    )  # fmt: skip
    plain = admin.kv.bucket(f"{name}p")
    poll(lambda: plain.status().values == 1 or None, 60, lambda: TimeoutError("the source"))
    assert plain.get("a").value == b"1"
    plain.put("a", "own")
    plain.put("c", "own")
    assert [(each.key, each.value) for each in plain.entries()] == [("a", b"own"), ("c", b"own")]


def test_a_put_that_another_stream_stores_is_an_error(
    admin: JetStreamAdmin, proxy: WireProxy, name: str
) -> None:
    for stream, key in ((f"KV_{name}", "a"), (f"KV_{name}other", "b")):
        admin.streams.create(
            name=stream, subjects=[f"$KV.{name}.{key}"], max_msgs_per_subject=5, storage="memory"
        )
    bucket = admin.kv.bucket(name)
    assert bucket.put("a", "1") == 1
    with pytest.raises(
        JetStreamError,
        match=rf"put key b .*: stream KV_{name}other has stored it .*, not KV_{name}$",
    ):
        bucket.put("b", "1")

    acknowledged = [
        (b'{"stream":"ELSE","seq":7}', r"stream ELSE has stored it \(sequence 7\), not KV_"),
        (b'{"stream":"KV_%b","seq":7,"duplicate":true}' % name.encode(), "took it for a duplicate"),
    ]
    with JetStreamAdmin(servers=proxy.url) as other:
        for body, said in acknowledged:
            proxy.replace_frames(b'{"stream":"KV_', 1, partial(answer, body=body))
            with pytest.raises(JetStreamError, match=said):
                other.kv.bucket(name).put("a", "1")


def test_buckets_behind_a_domain() -> None:
    with Linked() as linked:
        with (
            JetStreamAdmin(servers=linked.leaf.url, domain="hub") as far,
            JetStreamAdmin(servers=linked.leaf.url) as near,
        ):
            far.kv.create("b", history=5, storage="memory", limit_marker_ttl="10m")
            bucket = far.kv.bucket("b")
            assert bucket.put("a", "1") == 1
            assert bucket.delete("a") == 2
            assert bucket.create("a", "2") == 3
            assert bucket.get("a").value == b"2"
            assert [each.revision for each in bucket.history("a")] == [1, 2, 3]
            with pytest.raises(
                WrongRevision, match="revision 1 was expected, but it has revision 3"
            ):
                bucket.update("a", "x", 1)
            with pytest.raises(StreamNotFound, match="no Key-Value bucket b "):
                near.kv.bucket("b").put("a", "x")
            # A mirror here of the bucket there.
            near.kv.create(
                "copy",
                history=5,
                storage="memory",
                mirror={"name": "b", "external": {"api": "$JS.hub.API"}},
            )
            copy = near.kv.bucket("copy")
            with pytest.raises(OptionError, match=r"limit_marker_ttl of bucket b \(10m\)"):
                copy.create("c", "3", ttl="1s")
            assert copy.put("c", "3") == 4
            assert copy.purge("c") == 5
            assert copy.create("c", "4") == 6
            poll(
                lambda: copy.status().stream.state.last_seq == 6 or None,
                60,
                lambda: TimeoutError("the mirror"),
            )
            assert {each.key: each.value for each in copy.entries()} == {"a": b"2", "c": b"4"}
            bucket.delete("a")
            poll(
                lambda: copy.status().stream.state.last_seq == 7 or None,
                60,
                lambda: TimeoutError("the mirror"),
            )
            # The marks are removed where they were written.
            assert copy.purge_deletes(0) == 1
            assert [each.key for each in bucket.entries(include_deletes=True)] == ["c"]
        close_all()
