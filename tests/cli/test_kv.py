"""``spark-jetstream kv`` on a real server, and the commands for buckets that ``spark-jetstream
object`` has as well.
"""

from __future__ import annotations

import base64
from functools import partial

import pytest

from spark_jetstream.admin import Bucket, JetStreamAdmin
from spark_jetstream.testing import NatsServer
from spark_jetstream.testing.process import poll
from tests.cli.conftest import Command, refused
from tests.support.command import succeed
from tests.support.keyed import table_of


@pytest.fixture
def bucket(name: str, admin: JetStreamAdmin) -> Bucket:
    """A bucket with ``eu.colour`` (red, blue), ``bytes`` (no text), and ``gone``, which was
    deleted.
    """
    admin.kv.create(name, history=5, storage="memory", limit_marker_ttl="1s")
    made = admin.kv.bucket(name)
    for key, value in (
        ("eu.colour", b"red"),
        ("bytes", b"\xff\x00"),
        ("gone", b"x"),
        ("eu.colour", b"blue"),
    ):
        made.put(key, value)
    made.delete("gone")
    return made


def test_values_are_read(do: Command, run: Command, bucket: Bucket) -> None:
    name = bucket.name
    assert do("kv", "get", name, "eu.colour", "--raw").raw == b"blue"
    assert do("kv", "get", name, "bytes", "--raw", "--direct").raw == b"\xff\x00"
    assert do("kv", "get", name, "eu.colour", "--raw", "--revision", 1).raw == b"red"
    lines = do("kv", "get", name, "eu.colour").out.splitlines()
    assert lines[0].startswith(f"eu.colour of bucket {name}, revision 4, 2")
    assert lines[1:] == ["blue"]
    assert do("kv", "get", name, "bytes").out.splitlines()[1] == "(2 bytes that are not text)"
    printed = do("kv", "get", name, "bytes", "--json").json
    assert base64.b64decode(printed.pop("value")) == b"\xff\x00"
    assert printed.pop("created") == bucket.get("bytes").created
    assert printed == {
        "bucket": name,
        "key": "bytes",
        "revision": 2,
        "operation": "PUT",
        "encoding": "base64",
    }
    text = do("kv", "get", name, "eu.colour", "--json").json
    assert (text["value"], text["encoding"]) == ("blue", "utf-8")
    gone = f"spark-jetstream: cannot get key gone of bucket {name}: it was deleted at revision 5\n"
    refused(run("kv", "get", name, "gone"), 1, gone)


def test_keys_and_their_history_are_listed(do: Command, bucket: Bucket) -> None:
    name = bucket.name
    assert do("kv", "ls", name).out.splitlines() == ["bytes", "eu.colour"]
    assert do("kv", "ls", name, "eu.>", "gone", "--json").json == ["eu.colour"]
    heading, row, *_ = do("kv", "ls", name, "eu.*", "--verbose").rows
    assert heading == ["key", "revision", "operation", "created", "value"]
    assert (row[:3], row[-1]) == (["eu.colour", "4", "PUT"], "blue")
    nothing = do("kv", "ls", name, "us.>")
    assert (nothing.out, nothing.err) == ("", f"bucket {name} has no matching keys\n")
    printed = do("kv", "history", name, "gone", "--json").json
    revisions = [(item["revision"], item["operation"], item["value"]) for item in printed]
    assert revisions == [(3, "PUT", "x"), (5, "DELETE", None)]


def test_values_are_written(
    do: Command, run: Command, bucket: Bucket, nats_server: NatsServer
) -> None:
    name = bucket.name
    assert do("kv", "put", name, "a", "é", "--json").json == {
        "bucket": name,
        "key": "a",
        "revision": 6,
    }
    assert (
        do("kv", "put", name, "b", "-", stdin=b"\x00\n").out
        == f"key b of bucket {name} has revision 7\n"
    )
    assert do("kv", "put", name, "c", stdin=b"from here").code == 0
    succeed("--server", nats_server.url, "kv", "put", name, "--", "d", "-1")
    assert do("kv", "create", name, "gone", "again", "--json").json["revision"] == 10
    assert do("kv", "update", name, "a", "new", "--revision", 6, "--json").json["revision"] == 11
    assert do("kv", "revert", name, "eu.colour", 1).code == 0
    assert table_of(nats_server.url, name) == {
        "a": b"new", "b": b"\x00\n", "c": b"from here", "d": b"-1", "gone": b"again", "bytes": b"\xff\x00",
        "eu.colour": b"red",
    }  # fmt: skip
    for arguments, message in {
        (
            "create",
            name,
            "a",
            "x",
        ): f"cannot create key a of bucket {name}: it exists, with revision 11",
        (
            "update",
            name,
            "a",
            "x",
            "--revision",
            6,
        ): "revision 6 was expected, but it has revision 11",
        ("revert", name, "a", 1): "that is a revision of key eu.colour",
    }.items():
        refused(run("kv", *arguments), 1, message)


def test_keys_are_removed(do: Command, run: Command, bucket: Bucket) -> None:
    name = bucket.name
    assert run("kv", "del", name, "bytes", "--revision", 1, "--force").code == 1
    deleted = do("kv", "del", name, "bytes", "--revision", 2, "--json").json
    assert deleted == {"bucket": name, "key": "bytes", "revision": 6, "deleted": True}
    assert do("kv", "purge", name, "eu.colour", "--force", "--json").json["revision"] == 7
    assert [entry.operation for entry in bucket.history("eu.colour")] == ["PURGE"]
    assert do("kv", "compact", name, "--force", "--json").json == {"bucket": name, "removed": 0}
    output = do("kv", "compact", name, "--older-than", "0", "--force").out
    assert output == f"3 keys were removed from bucket {name} for good\n"
    assert bucket.status().values == 0
    do("kv", "create", name, "short", "x", "--ttl", "1s")
    do("kv", "purge", name, "other", "--ttl", "1s", "--force")
    poll(lambda: list(bucket.entries()) == [] or None, 60, lambda: TimeoutError("the value's end"))


def test_changes_are_watched(do: Command, run: Command, bucket: Bucket) -> None:
    name = bucket.name
    printed = do("kv", "watch", name, "--wait", "100ms", "--json").objects
    assert [(item["key"], item["operation"], item["value"]) for item in printed] == [
        ("bytes", "PUT", "/wA="), ("eu.colour", "PUT", "blue"), ("gone", "DELETE", None),
    ]  # fmt: skip
    printed = do("kv", "watch", name, "--history", "--count", 4, "--json").objects
    assert [item["revision"] for item in printed] == [1, 2, 3, 4]
    (line,) = do("kv", "watch", name, "eu.>", "--count", 1).out.splitlines()
    assert line.endswith(" PUT eu.colour (revision 4): blue")
    assert len(do("kv", "watch", name, "--no-deletes", "--wait", "100ms").out.splitlines()) == 2
    nothing = run("kv", "watch", name, "--updates-only", "--count", 1, "--wait", "100ms")
    refused(nothing, 1, "no change arrived for 100ms, after 0 of 1\n")


# -- buckets of both kinds --


@pytest.mark.parametrize("kv", [True, False], ids=["kv", "object"])
def test_a_bucket_is_made_shown_changed_and_removed(
    kv: bool, do: Command, run: Command, name: str
) -> None:
    group, title = ("kv", "Key-Value") if kv else ("object", "Object Store")
    bucket, attempt = partial(do, group), partial(run, group)
    options: tuple[str, ...] = (
        "--storage",
        "memory",
        "--description",
        "what colours are",
        "--metadata",
        "owner=me",
    )
    options += ("--history", "3", "--max-value-size", "1k") if kv else ()
    add = ("add", name, *options, "--ttl", "1h")
    made = bucket(*add, "--json").json
    assert (made["bucket"], made["ttl"], made["metadata"]) == (name, 3600 * 10**9, {"owner": "me"})
    assert (
        {"history": 3, "max_value_size": 1024} if kv else {"max_bytes": -1}
    ).items() <= made.items()
    assert made["stream"]["config"]["name"] == f"{'KV' if kv else 'OBJ'}_{name}"
    assert bucket(*add).err == f"bucket {name} already exists, unchanged\n"
    refused(
        attempt("add", name, *options, "--json"), 1, "; there -> asked for: max_age: 1h -> 0s\n"
    )
    lines = [" ".join(row) for row in bucket("info", name).rows]
    assert lines[0] == f"{title} bucket {name}"
    shown = {
        "ttl 1h",
        "max bytes no limit",
        "metadata owner=me",
        *(["history 3", "max value size 1KiB"] if kv else []),
    }
    assert shown <= {*lines}
    listed = {entry["bucket"]: entry for entry in bucket("ls", "--json").json}
    assert (listed[name]["description"], listed[name]["created"]) == (
        "what colours are",
        made["created"],
    )
    row = ["0", "0B", "3", "1h"] if kv else ["0B", "memory", "1h"]
    assert [name, "what", "colours", "are", *row] in [
        entry[: 4 + len(row)] for entry in bucket("ls").rows
    ]
    # Changing it
    edit = ("edit", name, "--ttl", "2h", "--unset", "metadata")
    assert attempt(*edit).code == 2  # nobody is there to say yes
    assert bucket(*edit, "--dry-run", "--json").json["changed"] is False
    changed = bucket(*edit, "--force", "--json").json
    assert {"max_age", "metadata.owner"} == {item["field"] for item in changed["differences"]}
    info = bucket("info", name, "--json").json
    assert (info["ttl"], info["metadata"]) == (7200 * 10**9, {})
    if kv:
        copy = bucket("add", f"{name}copy", "--mirror", name, "--storage", "memory", "--json").json
        assert copy["mirror"]["name"] == f"KV_{name}"
        assert f"mirror of {name}" in bucket("info", f"{name}copy").out
    else:
        assert bucket("seal", name, "--force", "--json").json == {"bucket": name, "sealed": True}
        assert "sealed" in bucket("ls").out
    # Its end
    assert bucket("rm", name, "--force", "--json").json == {"bucket": name, "deleted": True}
    assert attempt("info", name).code == 1
