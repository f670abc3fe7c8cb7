"""Object Store buckets as a whole, administered on the real server: created, changed, sealed, deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_jetstream.admin import JetStreamAdmin, ObjectBucketConfig, StreamConfig
from spark_jetstream.errors import JetStreamError, OptionError, StreamExists, StreamNotFound
from tests.admin.object_buckets import Made


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
    assert (made.bucket, str(made.ttl), str(made.max_bytes), made.storage) == (name, "30d", "1GiB", "memory")
    assert (made.description, made.metadata, made.sealed, made.size) == ("for tests", {"owner": "me"}, False, 0)
    with pytest.raises(StreamExists):
        buckets.create(name, storage="memory")
    assert name in list(buckets.names())
    assert [info.created for info in buckets.infos() if info.bucket == name] == [made.created]

    assert [each.field for each in buckets.plan(name, ttl="60s", metadata=None)] == [
        "max_age", "duplicate_window", "metadata.owner",
    ]  # fmt: skip
    assert buckets.load(name).metadata == {"owner": "me"}
    # A server refuses to remember ids for longer than messages: two minutes, by default.
    buckets.update(name, ttl="60s", max_bytes=None, description="changed", compression=True)
    changed = buckets.load(name)
    assert (str(changed.ttl), changed.max_bytes, changed.description) == ("1m", -1, "changed")
    assert (changed.compression, changed.metadata, changed.placement, changed.replicas) == (
        True, {"owner": "me"}, None, 1,
    )  # fmt: skip

    assert buckets.load_or_create(name, ttl="60s").created == made.created
    with pytest.raises(JetStreamError, match=rf"bucket {name} exists with another configuration .*max_age: 1m -> 2m"):
        buckets.load_or_create(name, ttl="2m")
    assert buckets.delete(name) is True
    assert buckets.delete(name, missing_ok=True) is False
    assert buckets.load_or_create(name, storage="memory").created != made.created
    assert buckets.delete(name) is True


def test_a_bucket_of_another_client_is_loaded(admin: JetStreamAdmin, store: Made) -> None:
    """Whatever it sets differently: nobody reads or writes differently because of it."""
    store.api(f"STREAM.CREATE.OBJ_{store.name}_other", {
        "name": f"OBJ_{store.name}_other", "storage": "memory", "allow_rollup_hdrs": True, "discard": "old",
        "subjects": [f"$O.{store.name}_other.C.>", f"$O.{store.name}_other.M.>"],
    })  # fmt: skip
    assert admin.objects.load_or_create(f"{store.name}_other").stream.config.discard == "old"
    assert admin.objects.delete(f"{store.name}_other")


def test_wrong_buckets(admin: JetStreamAdmin) -> None:
    for name in ("", "a.b", "a*", "x" * 252, "a b"):
        with pytest.raises(OptionError, match="the name of a bucket must be 1 to 251 letters"):
            admin.objects.create(name)
        with pytest.raises(OptionError, match="the name of a bucket"):
            admin.objects.bucket(name)
        with pytest.raises(OptionError, match="the name of a bucket"):
            admin.objects.delete(name)
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
        with pytest.raises(JetStreamError, match=rf"cannot .* bucket {store.name}, which is sealed"):
            work()
    assert store.objects.get("a") == b"x"
