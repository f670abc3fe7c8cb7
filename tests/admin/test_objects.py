"""Object Store buckets and their objects, administered on the real server; nats-py sees the same,
both ways.
"""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.js.errors import ObjectNotFoundError

from spark_jetstream.admin import JetStreamAdmin, ObjectBucketConfig, ObjectInfo, StreamConfig
from spark_jetstream.buckets.objects import ObjectMeta, meta_subject
from spark_jetstream.errors import (
    JetStreamError,
    MessageNotFound,
    OptionError,
    ProtocolError,
    StreamNotFound,
)
from tests.admin.conftest import CHUNK, Made
from tests.support.leaf import Linked
from tests.support.objects import content, link_to
from tests.support.publish import Message, Publisher
from tests.support.reading import QUICK

NAMES = [
    "a",
    "a/b/c.txt",
    "mit Leerzeichen",
    "鍵/🔑",
    ".hidden",
    "*",
    ">",
    "..",
    " ",
    "\n",
    "x" * 2048,
]


def names(found: Iterator[ObjectInfo]) -> list[str]:
    return [info.name for info in found]


# -- objects, read and written beside nats-py --


def test_sizes(store: Made) -> None:
    """nats-py reads objects that this client puts, and the other way round, with chunks of any size."""
    wanted = {f"{size}": content("a", 1, size) for size in (0, 1, CHUNK, CHUNK + 1)}
    for name, data in wanted.items():
        for chunk in (1000, CHUNK, 300_000):
            put = store.objects.put(name, data, chunk_size=chunk)
            assert (put.size, put.chunks) == (len(data), -(-len(data) // chunk))
            assert store.objects.get(name) == data
    assert dict(zip(wanted, store.nats_get(*wanted), strict=True)) == wanted
    store.check()
    store.put(*wanted.items())
    for name, data in wanted.items():
        assert store.objects.get(name) == b"".join(store.objects.read(name)) == data
    store.check()


def test_a_large_object_to_and_from_a_file(store: Made, tmp_path: Path) -> None:
    data = content("large", 1, 5_000_001)
    (tmp_path / "large.bin").write_bytes(data)
    sent: list[tuple[int, int]] = []
    came: list[tuple[int, int]] = []
    put = store.objects.put_file(tmp_path / "large.bin", progress=lambda *how: sent.append(how))
    assert (put.name, put.size, put.chunks) == ("large.bin", len(data), 39)
    got = store.objects.get_file(
        "large.bin", tmp_path / "copy", progress=lambda *how: came.append(how)
    )
    assert (tmp_path / "copy").read_bytes() == data
    assert got == put == store.objects.info("large.bin")
    for progress in (sent, came):
        assert progress == sorted(progress)
        assert (len(progress), progress[-1]) == (39, (len(data), len(data)))
    assert store.nats_get("large.bin") == [data]
    store.check()


def test_put_accepts_bytes_iterables_and_files_as_content(store: Made) -> None:
    data = content("a", 1, 300_000)

    class Slow(io.RawIOBase):
        """Gives less than it is asked for, and cannot go back."""

        def __init__(self) -> None:
            self._rest = data

        def read(self, size: int = -1, /) -> bytes:
            piece, self._rest = self._rest[:7777], self._rest[7777:]
            return piece

    pieces = [data[at : at + 99_999] for at in range(0, len(data), 99_999)]
    sources: dict[str, Any] = {
        "bytearray": bytearray(data),
        "memoryview": memoryview(data).cast("H"),
        "list": pieces,
        "generator": (bytearray(piece) for piece in [b"", *pieces, b""]),
        "exact": iter([data[:CHUNK], data[CHUNK : 2 * CHUNK], data[2 * CHUNK :]]),
        "file": io.BytesIO(data),
        "slow": Slow(),
    }
    for name, source in sources.items():
        assert store.objects.put(name, source).chunks == 3
        assert store.objects.get(name) == data, name
    begun = io.BytesIO(data)
    begun.seek(100_000)
    assert store.objects.put("rest", begun).size == 200_000
    assert store.objects.get("rest") == data[100_000:]
    assert store.objects.put("empty", iter([])).chunks == 0
    store.check()


@pytest.mark.parametrize(
    "data",
    ["text", ["text"], [1], 7, None, io.StringIO("text")],
    ids=lambda data: type(data).__name__,
)
def test_put_refuses_content_that_is_not_bytes(store: Made, data: Any) -> None:
    store.objects.put("a", b"old")
    with pytest.raises(OptionError, match="the content of an object must be bytes"):
        store.objects.put("a", data)
    assert store.objects.get("a") == b"old"
    store.check()


def test_names(store: Made) -> None:
    for name in NAMES:
        store.objects.put(name, name.encode())
    assert names(store.objects.list()) == NAMES
    assert [store.objects.get(name) for name in NAMES] == [name.encode() for name in NAMES]
    assert store.nats_get(*NAMES) == [name.encode() for name in NAMES]
    works: list[Callable[[Any], object]] = [
        store.objects.get,
        store.objects.info,
        store.objects.delete,
    ]
    works.append(lambda name: store.objects.put(name, b"x"))
    for wrong, said in (
        ("", "not empty"),
        ("é" * 1025, "2050 bytes"),
        ("\ud800", "UTF-8"),
        (None, "must be text"),
    ):
        for work in works:
            with pytest.raises(OptionError, match=said):
                work(wrong)


def test_put_and_update_meta_store_description_headers_and_metadata(store: Made) -> None:
    headers = {"Content-Type": ["text/plain"], "ü: \r\n": ["1", "2"]}
    put = store.objects.put(
        "a",
        b"x",
        description="words",
        headers={**headers, "One": "1"},
        metadata={"k": "v"},
        chunk_size=100,
    )
    assert put == store.objects.info("a")
    assert put.headers == {"Content-Type": ("text/plain",), "ü: \r\n": ("1", "2"), "One": ("1",)}
    assert (put.description, put.metadata, put.max_chunk_size, put.link) == (
        "words",
        {"k": "v"},
        100,
        None,
    )
    assert put.modified.nanoseconds > 0
    assert json.loads(json.dumps(put.data()))["headers"] == {**headers, "One": ["1"]}
    seen = store.nats_info("a")
    assert (seen.description, seen.headers, seen.digest) == (
        "words",
        {**headers, "One": ["1"]},
        put.digest,
    )
    assert (seen.nuid, seen.size, seen.chunks, seen.options.max_chunk_size) == (put.nuid, 1, 1, 100)

    changed = store.objects.update_meta("a", description="", headers={}, metadata={"k": "w"})
    assert (changed.description, changed.headers, changed.metadata) == ("", {}, {"k": "w"})
    assert (changed.nuid, changed.digest) == (put.nuid, put.digest)
    assert (
        store.objects.update_meta("a", description="", metadata={"k": "w"}) == changed
    )  # nothing to do
    assert (store.nats_info("a").headers, store.nats_get("a")) == (None, [b"x"])
    no_headers: tuple[Any, ...] = ({"a": [1]}, {"a": 1}, ["a"], "a")
    for wrong in (
        *({"headers": given} for given in no_headers),
        *({"metadata": given} for given in no_headers),
    ):
        with pytest.raises(OptionError, match="must be a mapping"):
            store.objects.update_meta("a", **wrong)
        with pytest.raises(OptionError, match="must be a mapping"):
            store.objects.put("a", b"y", **wrong)
    half = "caf\udce9"
    texts: list[dict[str, Any]] = [{"description": half}, {"description": 5}, {"description": [""]}]
    texts += [
        {"headers": {half: ["1"]}},
        {"headers": {"a": ["1", half]}},
        {"metadata": {half: "1"}},
    ]
    texts += [{"metadata": {"a": half}}]
    for wrong in texts:
        with pytest.raises(OptionError, match=f"{next(iter(wrong))} must be .*text"):
            store.objects.update_meta("a", **wrong)
        with pytest.raises(OptionError, match=f"{next(iter(wrong))} must be .*text"):
            store.objects.put("a", b"y", **wrong)
    assert [*store.objects.list()] == [changed]
    said = rf"cannot store object 'b' in bucket {store.name}: .*takes 1048576 \(max_p"
    with pytest.raises(JetStreamError, match=said):
        store.objects.put("b", b"x", description="y" * 2**20)
    store.check()


def test_a_meta_message_that_is_none(store: Made, publisher: Publisher) -> None:
    publisher.publish([Message(meta_subject(store.name, "a"), b"{")])
    for work in (lambda: store.objects.get("a"), lambda: list(store.objects.list())):
        with pytest.raises(ProtocolError, match=f"bucket {store.name}: a meta message is not JSON"):
            work()


def test_deletions(store: Made) -> None:
    for name in ("a", "b", "c"):
        store.objects.put(name, content(name, 1, 2 * CHUNK))
    store.objects.delete("a")
    with pytest.raises(ObjectNotFoundError):
        store.nats_info("a")
    store.delete("b")
    assert names(store.objects.list()) == ["c"]
    left = {info.name: info for info in store.objects.list(deleted=True)}
    assert [
        (each.deleted, each.size, each.chunks, each.digest) for each in (left["a"], left["b"])
    ] == 2 * [(True, 0, 0, "")]
    for name in ("a", "b", "never"):
        for work in (store.objects.info, store.objects.get, store.objects.delete):
            with pytest.raises(
                MessageNotFound, match=rf"there is no object '{name}' in bucket {store.name}"
            ):
                work(name)
        with pytest.raises(MessageNotFound):
            list(store.objects.read(name))
        with pytest.raises(MessageNotFound):
            store.objects.update_meta(name, "d")
    assert store.objects.info("a", deleted=True) == left["a"]
    with pytest.raises(MessageNotFound):
        store.objects.info("never", deleted=True)
    store.check()
    store.objects.put("a", b"again")
    assert store.objects.get("a") == b"again"


# -- names and links --


def test_renaming(store: Made) -> None:
    data = content("a", 1, 2 * CHUNK)
    put = store.objects.put("a", data, headers={"H": ["1"]})
    renamed = store.objects.update_meta("a", "b/c", description="moved")
    assert (renamed.name, renamed.nuid, renamed.headers, renamed.description) == (
        "b/c", put.nuid, {"H": ("1",)}, "moved",
    )  # fmt: skip
    assert (names(store.objects.list(deleted=True)), store.objects.get("b/c")) == (["b/c"], data)
    assert store.nats_get("b/c") == [data]
    store.check()
    store.objects.put("a", b"other")
    with pytest.raises(OptionError, match=rf"bucket {store.name} has an object 'a' already"):
        store.objects.update_meta("b/c", "a")
    assert (store.objects.get("a"), store.objects.get("b/c")) == (b"other", data)
    store.objects.delete("a")
    store.objects.update_meta("b/c", "a")
    assert (names(store.objects.list(deleted=True)), store.objects.get("a")) == (["a"], data)
    store.check()


def test_a_rename_that_was_broken_off_is_finished(store: Made, publisher: Publisher) -> None:
    data = content("a", 1, 2 * CHUNK)
    store.objects.put("a", data)
    last = store.admin.messages.last(store.stream, meta_subject(store.name, "a"))
    both = ObjectMeta.from_json(last.data, store.name).model_copy(update={"name": "b"})
    publisher.publish([Message(meta_subject(store.name, "b"), both.to_json())])
    assert store.objects.get("a") == store.objects.get("b") == data
    store.objects.update_meta("a", "b")
    assert (names(store.objects.list()), store.objects.get("b")) == (["b"], data)
    store.check()


def test_links(make_store: Callable[[], Made]) -> None:
    store, other = make_store(), make_store()
    data = content("a", 1, 2 * CHUNK)
    other.objects.put("target", data)
    made = store.objects.link("best", other.name, "target")
    assert (made.link, made.size, made) == ((other.name, "target"), 0, store.objects.info("best"))
    assert store.objects.get("best") == b"".join(store.objects.read("best")) == data
    assert store.nats_get("best") == [data]
    other.objects.put("target", b"new")
    assert store.objects.get("best") == b"new"

    store.objects.link_bucket("all", other.name)
    assert store.objects.info("all").link == (other.name, "")
    with pytest.raises(
        JetStreamError, match=rf"is a link to the whole bucket {other.name}, and has no content"
    ):
        store.objects.get("all")
    store.objects.link("all", other.name, "target")  # a link may be replaced
    with pytest.raises(OptionError, match="is a link, and links to links are not followed"):
        store.objects.link("second", store.name, "best")
    with pytest.raises(MessageNotFound, match=rf"no object 'nothing' in bucket {other.name}"):
        store.objects.link("second", other.name, "nothing")
    with pytest.raises(StreamNotFound, match="no Object Store bucket nowhere"):
        store.objects.link_bucket("second", "nowhere")
    store.objects.put("object", b"x")
    with pytest.raises(OptionError, match="has an object 'object' already"):
        store.objects.link("object", other.name, "target")
    store.objects.delete("object")
    store.objects.link("object", other.name, "target")
    store.objects.delete("object")
    assert other.objects.get("target") == b"new"
    store.objects.update_meta("best", "better")
    assert store.objects.get("better") == b"new"
    for name in (
        "one",
        "two",
    ):  # their writer gave neither an id, so the same id does not make them the same
        store.store(name, options=link_to(other.name, name), digest="", nuid="")
    with pytest.raises(OptionError, match="has an object 'two' already"):
        store.objects.update_meta("one", "two")
    store.objects.put("better", b"no link any more")
    assert (store.objects.get("better"), store.objects.info("better").link) == (
        b"no link any more",
        None,
    )
    other.objects.delete("target")
    with pytest.raises(
        MessageNotFound, match=rf"no object 'target' in bucket {other.name}: object 'all' of bucket"
    ):
        store.objects.get("all")
    store.check()


# -- watching changes --


def test_watching(store: Made) -> None:
    store.objects.put("a", b"1")
    store.objects.put("b", b"1")
    store.objects.delete("b")

    def seen(found: Iterator[ObjectInfo | None]) -> list[Any]:
        return [info and (info.name, int(info.size), info.deleted) for info in found]

    assert seen(store.objects.watch(timeout=0.2)) == [("a", 1, False), ("b", 0, True), None]
    assert seen(store.objects.watch(timeout=0.2, deleted=False)) == [("a", 1, False), None]
    changes = store.objects.watch(updates_only=True, timeout=60)
    assert next(changes) is None
    store.objects.put("c", content("c", 1, 2 * CHUNK))
    assert seen(itertools.islice(changes, 1)) == [("c", 2 * CHUNK, False)]
    store.objects.update_meta("c", "d")
    assert seen(itertools.islice(changes, 1)) == [("d", 2 * CHUNK, False)]
    store.objects.delete("d")
    assert seen(itertools.islice(changes, 1)) == [("d", 0, True)]


# -- mirrors and other domains --


def test_a_mirror_is_read(store: Made) -> None:
    data = content("a", 1, 2 * CHUNK)
    store.objects.put("a", data)
    store.objects.link("l", store.name, "a")
    copy = f"{store.name}_copy"
    store.admin.streams.create(name=f"OBJ_{copy}", storage="memory", mirror={"name": store.stream})
    there = store.admin.objects.bucket(copy)
    try:
        changes = (info.name for info in there.watch(timeout=60) if info is not None)
        assert list(itertools.islice(changes, 2)) == ["a", "l"]
        assert (names(there.list()), there.get("a"), there.get("l")) == (["a", "l"], data, data)
        with pytest.raises(JetStreamError, match=r"is a mirror, which nobody can write to"):
            there.put("b", b"x")
    finally:
        store.admin.objects.delete(copy)


def test_a_bucket_in_another_domain() -> None:
    """Subjects know no domain: a bucket of the same name that is nearer must not pass for the one
    that is meant.
    """
    with (
        Linked() as linked,
        JetStreamAdmin(servers=linked.hub.url, domain="leaf", **QUICK) as admin,
    ):
        data = content("a", 1, 3 * CHUNK)
        admin.objects.create("FAR", storage="memory")
        there = admin.objects.bucket("FAR")
        there.put("a", data)
        there.link("l", "FAR", "a")
        there.update_meta("a", "b")
        assert names(there.list()) == ["l", "b"]
        assert there.get("b") == data
        there.delete("l")
        with JetStreamAdmin(servers=linked.leaf.url) as near:
            assert near.objects.bucket("FAR").get("b") == data
            assert [info.name for info in near.objects.bucket("FAR").list()] == ["b"]
        with JetStreamAdmin(servers=linked.hub.url) as hub:
            hub.objects.create("TWICE", storage="memory")
        with pytest.raises(StreamNotFound):
            admin.objects.bucket("TWICE").put("a", b"x")


# -- buckets as a whole --


def test_a_bucket_is_what_the_clients_make(admin: JetStreamAdmin, store: Made) -> None:
    """The configuration of Go's client: what it does not set has the server's default."""
    made = store.admin.objects.load(store.name).stream.config
    wanted = StreamConfig.parse(
        {
            "name": f"OBJ_{store.name}",
            "subjects": [f"$O.{store.name}.C.>", f"$O.{store.name}.M.>"],
            "storage": "memory",
            "discard": "new",
            "allow_rollup_hdrs": True,
            "allow_direct": True,
        },
        "what Go's client asks for",
    )
    assert admin.streams.plan(made.name, wanted) == []


def test_the_life_of_a_bucket(admin: JetStreamAdmin, store: Made) -> None:
    buckets, name = admin.objects, f"{store.name}_life"
    given: dict[str, Any] = {
        "ttl": "30d", "max_bytes": "1g", "storage": "memory", "description": "for tests", "metadata": {"owner": "me"},
    }  # fmt: skip
    made = buckets.create(name, given)
    assert buckets.create(name, ObjectBucketConfig.parse(given, "x")).created == made.created
    assert (str(made.ttl), str(made.max_bytes), made.sealed, made.size) == ("30d", "1GiB", False, 0)
    assert name in list(buckets.names())
    plan = [each.field for each in buckets.plan(name, ttl="60s", metadata=None)]
    assert plan == ["max_age", "duplicate_window", "metadata.owner"]
    # A server refuses to remember ids for longer than messages: two minutes, by default.
    buckets.update(name, ttl="60s", max_bytes=None, description="changed", compression=True)
    changed = buckets.load(name)
    assert (str(changed.ttl), changed.max_bytes, changed.description) == ("1m", -1, "changed")
    assert (changed.compression, changed.metadata, changed.placement, changed.replicas) == (
        True, {"owner": "me"}, None, 1,
    )  # fmt: skip

    assert buckets.load_or_create(name, ttl="60s").created == made.created
    with pytest.raises(
        JetStreamError,
        match=rf"bucket {name} exists with another configuration .*max_age: 1m -> 2m",
    ):
        buckets.load_or_create(name, ttl="2m")
    assert buckets.delete(name) is True
    assert buckets.delete(name, missing_ok=True) is False
    assert buckets.load_or_create(name, storage="memory").created != made.created


def test_a_bucket_of_another_client_is_loaded(admin: JetStreamAdmin, store: Made) -> None:
    """Its other settings change nothing for readers and writers."""
    store.api(f"STREAM.CREATE.OBJ_{store.name}_other", {
        "name": f"OBJ_{store.name}_other", "storage": "memory", "allow_rollup_hdrs": True, "discard": "old",
        "subjects": [f"$O.{store.name}_other.C.>", f"$O.{store.name}_other.M.>"],
    })  # fmt: skip
    assert admin.objects.load_or_create(f"{store.name}_other").stream.config.discard == "old"
    assert admin.objects.delete(f"{store.name}_other")


def test_wrong_buckets(admin: JetStreamAdmin) -> None:
    works: list[Callable[[str], object]] = [
        admin.objects.create,
        admin.objects.bucket,
        admin.objects.delete,
    ]
    for name, work in itertools.product(("", "a.b", "a*", "x" * 252, "a b"), works):
        with pytest.raises(OptionError, match="the name of a bucket must be 1 to 251 letters"):
            work(name)
    with pytest.raises(OptionError, match=r'bucket B: there is no field "tll" .did you mean ttl'):
        admin.objects.create("B", tll="1d")
    with pytest.raises(OptionError, match=r"bucket B: .*no field"):
        admin.objects.update("B", tll=None)


def test_a_bucket_that_is_missing(admin: JetStreamAdmin, tmp_path: Path) -> None:
    there, said = admin.objects.bucket("nowhere"), "there is no Object Store bucket nowhere"
    for work in (
        there.status,
        lambda: list(there.list()),
        lambda: there.info("a"),
        lambda: there.get("a"),
        lambda: list(there.read("a")),
        lambda: there.get_file("a", tmp_path / "a"),
        lambda: there.put("a", b"x"),
        lambda: there.delete("a"),
        lambda: there.update_meta("a", "b"),
        lambda: there.link_bucket("a", "nowhere"),
        there.watch,
        lambda: admin.objects.load("nowhere"),
        lambda: admin.objects.update("nowhere", ttl="1d"),
        lambda: admin.objects.seal("nowhere"),
        lambda: admin.objects.delete("nowhere"),
    ):
        with pytest.raises(StreamNotFound, match=said):
            work()


def test_a_sealed_bucket(store: Made) -> None:
    store.objects.put("a", b"x")
    store.admin.objects.seal(store.name)
    assert store.objects.status().sealed
    for work in (
        lambda: store.objects.put("a", b"y"),
        lambda: store.objects.delete("a"),
        lambda: store.objects.update_meta("a", description="x"),
        lambda: store.objects.update_meta("a", "b"),
        lambda: store.objects.link_bucket("l", store.name),
    ):
        with pytest.raises(
            JetStreamError, match=rf"cannot .* bucket {store.name}, which is sealed"
        ):
            work()
    assert store.objects.get("a") == b"x"
