"""The least permissions for each purpose: all are enough, and without any one of them something
fails.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.admin.api import Api
from spark_jetstream.admin.backup import backup
from spark_jetstream.errors import ApiError
from spark_jetstream.permissions import Permission, merged
from spark_jetstream.protocol.features import CONSUMER_RESET
from spark_jetstream.source.durable import consumer_state
from tests.support import permitted as use
from tests.support.features import for_none
from tests.support.permissions import INBOX, Account, Case, Work, parameters
from tests.support.permitted import need

pytestmark = pytest.mark.usefixtures("quick_ledger")


def admin(account: Account) -> JetStreamAdmin:
    return JetStreamAdmin(**account.login)


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
    assert mine.consumers.handover("S", "c").first_message == 1
    assert [(lag.pending, lag.age is not None) for lag in mine.lag()] == [(2, True)]


def in_a_cluster(work: Callable[[], object]) -> None:
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
    in_a_cluster(lambda: streams.remove_peer("S", "other", evacuate=True))
    in_a_cluster(lambda: streams.cancel_move("S"))
    assert streams.delete("S")


def change_consumers(account: Account) -> None:
    consumers = admin(account).consumers
    consumers.create("S", ack_policy="none")
    consumers.create("S", durable_name="d", ack_policy="explicit")
    consumers.create("S", durable_name="f", filter_subject="s.a")
    consumers.create("S", durable_form=True, durable_name="o", ack_policy="explicit")
    consumers.create(
        "S",
        durable_name="g",
        priority_groups=["g"],
        priority_policy="pinned_client",
        ack_policy="explicit",
    )
    assert len(list(consumers.names("S"))) == len(list(consumers.infos("S"))) == 6
    assert consumers.load("S", "d").num_pending == 2
    assert [delivered.message.seq for delivered in consumers.next("S", "d", 2)] == [1, 2]
    consumers.pause("S", "d", "2099-01-01T00:00:00Z")
    consumers.resume("S", "d")
    consumers.reset("S", "d", 1)
    consumers.unpin("S", "g", "g")
    in_a_cluster(lambda: consumers.step_down("S", "d"))
    for evacuate in (False, True):
        in_a_cluster(partial(consumers.remove_peer, "S", "d", "n2", evacuate=evacuate))
    assert consumers.delete("S", "d")
    # The server waits for an answer in front of 2 MiB.
    account.fill(*(["s.a"] * 300), data=b"x" * 10_000)
    push: dict[str, Any] = {
        "deliver_subject": f"{INBOX}.push",
        "flow_control": True,
        "idle_heartbeat": "1s",
    }
    consumers.create("S", durable_name="p", ack_policy="none", **push)
    assert len(list(islice(consumers.receive("S", "p", timeout=30), 302))) == 302


def messages(account: Account) -> None:
    mine = admin(account).messages
    assert mine.get("S", 1).subject == "s.a"
    assert mine.last("S", "s.b", direct=True).seq == 2
    assert [message.seq for message in mine.read("S")] == [1, 2]
    mine.erase("S", 1)


def count(account: Account) -> None:
    mine = admin(account).counters
    assert [mine.increment("s.a").val, mine.increment("s.b", 5).val] == ["1", "5"]
    assert mine.get("s.a").value == "1"
    for filters in ((), ("s.a",), ("s.a", "s.b")):
        assert [found.subject for found in mine.list(*filters, stream="S")] == list(
            filters or ("s.a", "s.b")
        )


def scheduled(account: Account) -> None:
    """A stream with two schedules."""
    account.make("S", allow_msg_schedules=True)
    for subject in ("s.a", "s.b"):
        headers = {"Nats-Schedule": "@every 1h", "Nats-Schedule-Target": "s.due"}
        full(account).publish(subject, b"x", headers)


def schedules(account: Account) -> None:
    mine = admin(account).schedules
    for filters in ((), ("s.a",), ("s.a", "s.b")):
        found = {each.subject for each in mine.list("S", *filters)}
        assert found == set(filters or ("s.a", "s.b"))
    assert mine.get("S", "s.a").pattern == "@every 1h"
    assert mine.remove("S", "s.a").subject == "s.a"


def back_up(account: Account) -> None:
    """By `admin.streams.backup`, but with a window that is smaller than the stream."""
    with tempfile.TemporaryDirectory() as folder:
        backup(
            Api(account.connect().options),
            "S",
            Path(folder) / "s.tar",
            chunk_size=65536,
            window_size=65536,
        )


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
    return (
        Path(tempfile.gettempdir())
        / f"{account.login['user']}-{account.login['servers'].rpartition(':')[2]}.tar"
    )


def restore(account: Account) -> None:
    """First one that fails when all was sent, so that the stream is there and has to be removed
    again.
    """

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
    assert (
        bucket.get("x.y").value == bucket.get("x.y", revision=revision, direct=True).value == b"1"
    )
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
    with admin(account).events.watch(timeout=60, count=1, stream=of) as watch:
        full(account).consumers.create("S", durable_name="e")
        assert len(list(watch)) == 1


def follow(account: Account) -> None:
    assert [stream.stream for stream in admin(account).trace("s.a").streams] == ["S"]


def keeping(reading: str, position: str, *filters: str) -> tuple[Permission, ...]:
    """The lines for reading and for keeping the position."""
    durable = need(position, stream="S", durable="query", subjects=filters)
    return merged(need(reading, stream="S", subjects=filters), durable)


def case(
    name: str,
    prepare: Work,
    work: Work,
    fallbacks: Mapping[str, Work] | None = None,
    lines: tuple[Permission, ...] = (),
    **asked: Any,
) -> Case:
    """The case of the purpose that `name` begins with, of stream S unless another or a bucket is
    given.
    """
    asked = asked if "bucket" in asked else {"stream": "S", **asked}
    return Case(
        name, lines or need(name.partition(" ")[0], **asked), prepare, work, fallbacks or {}
    )


FILTERED = partial(use.durable, subjects="s.a")
DIRECTLY = partial(use.durable, readWith="direct")
INTEREST = partial(use.made, retention="interest")
#: A stream whose consumers have to show that they are in use.
WATCHFUL = partial(use.made, consumer_limits={"inactive_threshold": 60_000_000_000})
QUEUE = partial(WATCHFUL, retention="workqueue")
working = partial(keeping, "read-direct", "durable-queue")
CASES = [
    # Reading
    case("read", use.filled, use.read_tidily, {"CONSUMER.DELETE": use.read_untidily}),
    case("read one filter", use.filled, use.read_one_filter, subjects=["s.a"]),
    case("read counters", use.counters, use.read_counters),
    case(
        "dead-letters-read",
        use.dead_letters,
        use.read_dead_letters_tidily,
        {"CONSUMER.DELETE": use.read_dead_letters},
    ),
    case("read-direct", use.filled, partial(use.read_all_ways, readWith="direct")),
    case(
        "find-streams",
        use.filled,
        use.find,
        lines=merged(need("find-streams"), need("read-direct")),
    ),
    case(
        "starting-consumer",
        use.served,
        use.take_over,
        lines=merged(
            need("read-direct", stream="S"),
            need("starting-consumer", stream="S", durable="service"),
        ),
    ),
    case("durable", INTEREST, use.durable, lines=keeping("read", "durable")),
    case("durable with a filter", use.made, FILTERED, lines=keeping("read", "durable", "s.a")),
    case("durable with direct gets", WATCHFUL, DIRECTLY, lines=keeping("read-direct", "durable")),
    case("durable-old", INTEREST, use.durable, lines=keeping("read", "durable-old")),
    case(
        "durable-old with direct gets",
        WATCHFUL,
        DIRECTLY,
        lines=keeping("read-direct", "durable-old"),
    ),
    case("durable-queue", QUEUE, use.queue, lines=working()),
    case("durable-queue with a filter", QUEUE, FILTERED, lines=working("s.a")),
    case(
        "share",
        use.shared_queue,
        use.share,
        {"MSG.DELETE": partial(use.share, left=use.MESSAGES)},
        durable="c",
    ),
    case("kv-read", use.bucket_kv, use.read_kv, bucket="b"),
    case("kv-read one key", use.bucket_kv, use.kv_keys, bucket="b", subjects=["x"]),
    case(
        "kv-read-direct",
        partial(use.bucket_kv, history=1),
        partial(use.read_kv, revisions=2, readWith="direct"),
        bucket="b",
    ),
    case("kv-lookup", use.bucket_kv, use.lookup_kv, bucket="b"),
    case("kv-lookup-leader", use.bucket_kv, partial(use.lookup_kv, leader=True), bucket="b"),
    case("object-read", use.bucket_objects, use.read_objects, bucket="b"),
    case(
        "object-read-direct",
        use.bucket_objects,
        partial(use.read_objects, readWith="direct"),
        bucket="b",
    ),
    # Writing
    case(
        "write",
        use.made,
        use.write,
        {
            "STREAM.INFO": use.write_unseen,
            "STREAM.NAMES": use.write_without_names,
            "MSG.GET": use.write_without_looking,
        },
        subjects=["s.a", "s.e"],
        dead_letter="s.dead",
    ),
    case(
        "write at-least-once",
        use.made,
        lambda account: use.store(account, delivery="at-least-once"),
        lines=tuple(
            line for line in need("write", stream="S", subjects=["s.*"]) if not line.without
        ),
    ),
    case(
        "write-exactly-once",
        use.made,
        use.write_exactly_once,
        subjects=["s.a"],
        dead_letter="s.dead",
    ),
    case(
        "kv-write",
        use.bucket_kv_beside_a_stream,
        use.kv_write,
        {
            "INFO": use.kv_write_unseen,
            "NAMES": use.kv_write_without_names,
            "MSG.GET": use.kv_write_without_looking,
        },
        bucket="b",
        dead_letter="s.dead",
    ),
    case(
        "object-write",
        use.bucket_objects,
        use.object_write,
        {"STREAM.INFO": use.object_write_unseen},
        bucket="b",
    ),
    case("ensure-stream", use.nothing, use.ensure),
    case("ensure-stream-update", use.nothing, use.ensure_update),
    # Administering
    case("admin-account", stream, look_at_account),
    case("admin-look", stream, look),
    case("admin-streams", use.nothing, change_streams),
    case("admin-consumers", stream, change_consumers),
    case("admin-messages", stream, messages),
    case("admin-counters", use.counters, count, subjects=["s.a", "s.b"]),
    case("admin-schedules", scheduled, schedules),
    case("admin-backup", large, back_up),
    case("admin-restore", saved, restore),
    case("admin-kv", use.nothing, key_value, bucket="b"),
    case("admin-objects", use.nothing, objects, bucket="b"),
    case("admin-events", stream, hear, stream="*"),
    case("admin-trace", stream, follow, subjects=["s.a"]),
    case("admin-events of a stream", stream, partial(hear, of="S")),
]
QUICK = (
    "read",
    "durable",
    "kv-read-direct",
    "kv-lookup",
    "write",
    "ensure-stream",
    "admin-account",
    "admin-messages",
)


@pytest.fixture(autouse=True)
def server_before_2_14(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the cases of an old server believe that the server cannot reset consumers."""
    if "durable-old" in request.node.name:
        monkeypatch.setattr(consumer_state, "CONSUMER_RESET", for_none(CONSUMER_RESET))


@pytest.mark.parametrize("case", parameters(CASES))
def test_the_permissions_are_enough(case: Case) -> None:
    case.run()


@pytest.mark.parametrize("case", parameters(CASES, *QUICK))
def test_each_permission_is_needed(case: Case) -> None:
    case.run_without_each()
