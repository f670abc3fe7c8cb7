"""The least permissions for administering: all are enough, and without any one of them something fails."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.admin.backup import backup
from spark_jetstream.errors import ApiError
from spark_jetstream.permissions import needed
from tests.support.permissions import INBOX, Account, Case, Trial, sampled

need = partial(needed, inbox_prefix=INBOX)


def admin(account: Account, **given: str) -> JetStreamAdmin:
    return JetStreamAdmin(**{**account.login, **given})


def full(account: Account) -> JetStreamAdmin:
    """As the admin, who may do everything."""
    return JetStreamAdmin(servers=account.admin)


def stream(account: Account) -> None:
    """S with two messages, and a consumer that has seen none of them."""
    account.make("S", allow_direct=True)
    account.fill("s.a", "s.b")
    full(account).consumers.create("S", durable_name="c", ack_policy="explicit")


def look_at_account(account: Account) -> None:
    assert admin(account).account.info().streams == 1


def look(account: Account) -> None:
    mine = admin(account)
    assert list(mine.streams.names()) == ["S"]
    assert [info.config.name for info in mine.streams.infos()] == ["S"]
    assert mine.streams.load("S").state.messages == 2
    assert dict(mine.streams.subjects("S")) == {"s.a": 1, "s.b": 1}
    assert list(mine.consumers.names("S")) == ["c"]
    assert [info.name for info in mine.consumers.infos("S")] == ["c"]
    assert mine.consumers.load("S", "c").num_pending == 2
    assert [(lag.pending, lag.age is not None) for lag in mine.lag()] == [(2, True)]


def in_a_cluster(work: Callable[[], None]) -> None:
    """Something that a single server refuses; before that it looks at the permissions."""
    with contextlib.suppress(ApiError):
        work()


def change_streams(account: Account) -> None:
    streams = admin(account).streams
    streams.create(name="S", subjects=["s.>"], storage="memory")
    account.fill("s.a")
    assert streams.purge("S") == 1
    assert streams.update("S", max_msgs=5)
    assert list(streams.names()) == ["S"]
    assert [info.config.max_msgs for info in streams.infos()] == [5]
    in_a_cluster(lambda: streams.step_down("S"))
    in_a_cluster(lambda: streams.remove_peer("S", "other"))
    assert streams.delete("S")


def change_consumers(account: Account) -> None:
    consumers = admin(account).consumers
    consumers.create("S", ack_policy="none")
    consumers.create("S", durable_name="d", ack_policy="explicit")
    consumers.create("S", durable_name="f", filter_subject="s.a")
    consumers.create("S", durable_form=True, durable_name="o", ack_policy="explicit")
    consumers.create(
        "S", durable_name="g", priority_groups=["g"], priority_policy="pinned_client", ack_policy="explicit"
    )
    assert len(list(consumers.names("S"))) == len(list(consumers.infos("S"))) == 6
    assert consumers.load("S", "d").num_pending == 2
    assert [each.message.seq for each in consumers.next("S", "d", 2)] == [1, 2]
    consumers.pause("S", "d", "2099-01-01T00:00:00Z")
    consumers.resume("S", "d")
    consumers.reset("S", "d", 1)
    consumers.unpin("S", "g", "g")
    in_a_cluster(lambda: consumers.step_down("S", "d"))
    assert consumers.delete("S", "d")


def messages(account: Account) -> None:
    mine = admin(account).messages
    assert mine.get("S", 1).subject == "s.a"
    assert mine.last("S", "s.b", direct=True).seq == 2
    assert [each.seq for each in mine.read("S")] == [1, 2]
    mine.erase("S", 1)


def back_up(account: Account) -> None:
    """By `admin.streams.backup`, but with a window that is smaller than the stream."""
    with tempfile.TemporaryDirectory() as folder:
        backup(account.connect(), "S", Path(folder) / "s.tar", chunk_size=65536, window_size=65536)


def large(account: Account) -> None:
    """More than one chunk, which is what an acknowledgement is for."""
    account.make("S", storage="file")
    account.fill(*(["s.a"] * 2), data=os.urandom(500_000))


def saved(account: Account) -> None:
    """Files of the test: what is restored is made in another way for each."""
    stream(account)
    full(account).streams.backup("S", archive(account))
    full(account).streams.delete("S")


def archive(account: Account) -> Path:
    return Path(tempfile.gettempdir()) / f"{account.login['user']}-{account.login['servers'].rpartition(':')[2]}.tar"


def restore(account: Account) -> None:
    """First one that fails when all was sent, so that the stream is there and has to be removed again."""

    def fail(done: int, total: int) -> None:
        if done == total:
            raise KeyError("enough")

    streams = admin(account).streams
    try:
        with pytest.raises(KeyError, match="enough"):
            streams.restore(archive(account), progress=fail)
        assert streams.restore(archive(account)).info.state.messages == 2
    finally:
        archive(account).unlink()


def key_value(account: Account) -> None:
    mine = admin(account).kv
    mine.create("b", history=3, storage="memory")
    assert list(mine.names()) == [info.bucket for info in mine.infos()] == ["b"]
    mine.update("b", history=5)
    bucket = mine.bucket("b")
    revision = bucket.put("x.y", "1")
    assert bucket.create("z", "2") == revision + 1
    assert bucket.get("x.y").value == bucket.get("x.y", revision=revision, direct=True).value == b"1"
    assert bucket.get("x.y", direct=True).value == b"1"
    assert sorted(bucket.keys()) == ["x.y", "z"]
    assert sorted(bucket.keys("x.*", "z")) == ["x.y", "z"]
    assert len(bucket.history("x.y")) == 1
    bucket.delete("z")
    assert bucket.purge_deletes("0s") == 1
    assert mine.delete("b")


def objects(account: Account) -> None:
    mine = admin(account).objects
    mine.create("b", storage="memory")
    assert list(mine.names()) == [info.bucket for info in mine.infos()] == ["b"]
    mine.update("b", description="now")
    bucket = mine.bucket("b")
    for content in (b"1", b"2" * 300_000):
        bucket.put("o", content)
    assert bucket.get("o") == b"2" * 300_000
    assert [info.name for info in bucket.list()] == ["o"]
    bucket.delete("o")
    assert mine.delete("b")


def hear(account: Account, of: str | None = None) -> None:
    with admin(account).events.watch(timeout=10, count=1, stream=of) as watch:
        full(account).consumers.create("S", durable_name="e")
        assert len(list(watch)) == 1


CHANGES = ("CREATE", "UPDATE", "DELETE", "PURGE")
CASES = [
    Case("admin-account", need("admin-account"), stream, look_at_account),
    Case("admin-look", need("admin-look", stream="S"), stream, look),
    Case(
        "admin-streams",
        need("admin-streams", stream="S"),
        lambda account: None,
        change_streams,
        may=tuple(
            f"STREAM.{verb}.S" for verb in ("CREATE", "UPDATE", "DELETE", "PURGE", "LEADER.STEPDOWN", "PEER.REMOVE")
        ),
    ),
    Case(
        "admin-consumers",
        need("admin-consumers", stream="S"),
        stream,
        change_consumers,
        may=(
            "CONSUMER.CREATE.S",
            "CONSUMER.CREATE.S.other.a",
            "CONSUMER.DURABLE.CREATE.S.other",
            *(
                f"CONSUMER.{verb}.S.other"
                for verb in ("CREATE", "DELETE", "RESET", "PAUSE", "UNPIN", "LEADER.STEPDOWN", "MSG.NEXT")
            ),
        ),
    ),
    Case("admin-messages", need("admin-messages", stream="S"), stream, messages, may=("STREAM.MSG.DELETE.S",)),
    Case("admin-backup", need("admin-backup", stream="S"), large, back_up, may=("STREAM.SNAPSHOT.S",)),
    Case(
        "admin-restore",
        need("admin-restore", stream="S"),
        saved,
        restore,
        may=("STREAM.RESTORE.S", "STREAM.DELETE.S"),
    ),
    Case(
        "admin-kv",
        need("admin-kv", bucket="b"),
        lambda account: None,
        key_value,
        {"CONSUMER.DELETE": key_value},
        stream="KV_b",
        may=(
            *(f"STREAM.{verb}.KV_b" for verb in CHANGES),
            *(f"CONSUMER.{verb}.KV_b.other" for verb in ("CREATE", "DELETE", "MSG.NEXT")),
            "$KV.b.k",
        ),
    ),
    Case(
        "admin-objects",
        need("admin-objects", bucket="b"),
        lambda account: None,
        objects,
        {"CONSUMER.DELETE": objects},
        stream="OBJ_b",
        may=(
            *(f"STREAM.{verb}.OBJ_b" for verb in CHANGES),
            *(f"CONSUMER.{verb}.OBJ_b.other" for verb in ("DELETE", "MSG.NEXT")),
            "$O.b.C.n",
            "$O.b.M.n",
        ),
    ),
    Case("admin-events", need("admin-events"), stream, hear),
    Case("admin-events of a stream", need("admin-events", stream="S"), stream, partial(hear, of="S")),
]


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_the_permissions_are_enough(name: str, trial: Trial) -> None:
    trial.run(name)


@pytest.mark.parametrize("name", sampled(CASES, "admin-account", "admin-messages"))
def test_each_permission_is_needed(name: str, trial: Trial) -> None:
    trial.run_without_each(name)
