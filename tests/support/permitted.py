"""Readers and writers without Spark, to try out permissions.

They make all requests that Spark's driver and executors would.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructType

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.buckets.key_lookup import KeyLookup
from spark_jetstream.buckets.objects import ObjectMeta, meta_subject
from spark_jetstream.datasource import JetStreamDataSource
from spark_jetstream.errors import OptionError, RowRefused
from spark_jetstream.permissions import needed
from spark_jetstream.sink.task import WriteTask
from spark_jetstream.source.offsets import Offset
from spark_jetstream.source.reader import JetStreamStreamReader
from tests.support import keyed
from tests.support.calls import rows as rows_read
from tests.support.objects import link_to
from tests.support.permissions import INBOX, Account, Work
from tests.support.reading import wait_until
from tests.support.sinking import Sink, batch, rows

MESSAGES = 12
need = partial(needed, inbox_prefix=INBOX)


def column(name: str) -> StructType:
    return StructType().add(name, StringType() if name == "subject" else BinaryType())


def read(account: Account, what: str = "data", **given: Any) -> int:
    """How many rows a batch read has: what Spark's driver and its executors do."""
    return len(rows_read({**account.login, **given}, column(what)))


def nothing(account: Account) -> None:
    """Nothing is there before, and nothing comes."""


def follow(
    account: Account, what: str = "data", runs: int = 1, more: Work = nothing, **given: Any
) -> int:
    """How many rows a streaming query has that begins, commits, and is started again from its
    checkpoint.

    `more` is done after each start.
    """
    options = {**account.login, **{key: str(value) for key, value in given.items()}}
    at: dict[str, Any] | None = None
    count = 0
    for _ in range(runs):
        reader = JetStreamStreamReader(options, column(what))
        start = reader.initialOffset() if at is None else latest(reader, at)
        more(account)
        at = latest(reader, start)
        for part in reader.partitions(start, at):
            count += sum(map(len, reader.read(part)))
        reader.commit(at)
        assert latest(reader, at) == at  # where nothing is left to read, the commit is waited for
    return count


def latest(reader: JetStreamStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return reader.open_planner().latest(Offset.from_json(start), limited=True).to_json()


# -- reading a stream --


def made(account: Account, **config: Any) -> None:
    account.make("S", allow_direct=True, **config)


def filled(account: Account) -> None:
    made(account)
    fill(account)


def read_all_ways(account: Account, **given: Any) -> None:
    assert read(account, stream="S", **given) == MESSAGES
    assert (
        read(account, stream="S", subjects="s.a", startingTimestamp="2020-01-01T00:00:00Z", **given)
        == 4
    )
    assert read(account, stream="S", subjects="s.a,s.b", minPartitions=2, **given) == 8
    assert follow(account, stream="S", **given) == MESSAGES


def read_tidily(account: Account) -> None:
    read_all_ways(account)
    wait_until(
        lambda: not account.ask("CONSUMER.NAMES.S")["consumers"], "the readers' consumers are gone"
    )


def read_untidily(account: Account) -> None:
    read_all_ways(account)
    staying = account.ask("CONSUMER.LIST.S")["consumers"]
    assert staying
    assert all(consumer["config"]["inactive_threshold"] == 30 * 10**9 for consumer in staying)


def counters(account: Account) -> None:
    account.make("S", allow_msg_counter=True, allow_direct=True)


def read_counters(account: Account) -> None:
    """Read counters that the admin writes first."""
    written = batch(subject=["s.a", "s.b", "s.a"], incr=["1", "2", "3"])
    assert Sink(account.admin).write([written]).stored == 3
    for how, count in (
        ({}, 2),
        ({"subjects": "s.a"}, 1),
        ({"subjects": "s.a,s.b"}, 2),
        ({"history": "true"}, 3),
    ):
        assert read(account, "subject", stream="S", counters="true", **how) == count
    assert follow(account, "subject", stream="S", counters="true") == 3


def dead_letters(account: Account) -> None:
    """As the admin: S, and that a consumer has given up its first message."""
    filled(account)
    with JetStreamAdmin(servers=account.admin) as admin:
        admin.streams.keep_dead_letters("S")
        admin.consumers.create("S", durable_name="c", ack_policy="explicit")
        admin.consumers.next("S", "c", ack="term")
        wait_until(lambda: admin.streams.load("S_DEAD_LETTERS").state.messages == 1, "the advisory")


def read_dead_letters(account: Account) -> None:
    assert read(account, deadLettersOf="S") == 1


def read_dead_letters_tidily(account: Account) -> None:
    read_dead_letters(account)
    wait_until(
        lambda: not account.ask("CONSUMER.NAMES.S_DEAD_LETTERS")["consumers"],
        "the reader's consumer is gone",
    )


def read_one_filter(account: Account) -> None:
    assert read(account, stream="S", subjects="s.a") == 4
    assert read(account, stream="S", subjects="s.a", startingTimestamp="2020-01-01T00:00:00Z") == 4


def find(account: Account) -> None:
    config = {
        "name": "S",
        "subjects": ["s.>"],
        "allow_direct": True,
        "storage": "memory",
        "metadata": {"team": "shop"},
    }
    account.ask("STREAM.UPDATE.S", config)
    for given in ({"streamPattern": "S*"}, {"streamMetadata": "team=shop"}):
        options: dict[str, Any] = {"readWith": "direct", **given}
        assert read(account, **options) == follow(account, **options) == MESSAGES


def served(account: Account) -> None:
    """As the admin: a consumer that has acknowledged the first four messages."""
    filled(account)
    with JetStreamAdmin(servers=account.admin) as admin:
        admin.consumers.create("S", durable_name="service", ack_policy="explicit")
        admin.consumers.next("S", "service", 4)


def take_over(account: Account) -> None:
    given = {"stream": "S", "startingConsumer": "service", "readWith": "direct"}
    assert read(account, **given) == MESSAGES - 4
    # The last s.a is looked for at the leader.
    assert read(account, subjects="s.a", endingTimestamp="2100-01-01T00:00:00Z", **given) == 2
    reader = JetStreamStreamReader({**account.login, **given}, column("data"))
    start = reader.initialOffset()
    assert latest(reader, start) == start  # the first micro-batch only stores the position
    parts = reader.partitions(start, latest(reader, start))
    assert sum(len(rows) for part in parts for rows in reader.read(part)) == MESSAGES - 4


# -- keeping the position --


def state(account: Account, stream: str = "S") -> Any:
    return account.ask(f"STREAM.INFO.{stream}")["state"]


def fill(account: Account) -> None:
    account.fill(*(f"s.{'abc'[number % 3]}" for number in range(MESSAGES)))


def durable(account: Account, **given: Any) -> None:
    """Two runs: the position is made, moved, taken over, and moved again."""
    count = follow(account, "data", 2, fill, stream="S", durable="query", **given)
    assert count == 2 * MESSAGES // (3 if given.get("subjects") else 1)
    assert account.ask("CONSUMER.INFO.S.query")["num_pending"] == 0


def fill_all_but_one(account: Account) -> None:
    """The last message is gone: only the leader knows that nothing comes any more."""
    fill(account)
    account.ask("STREAM.MSG.DELETE.S", {"seq": state(account)["last_seq"]})


def queue(account: Account) -> None:
    assert follow(account, "data", 2, fill_all_but_one, stream="S", durable="query") == 2 * (
        MESSAGES - 1
    )
    assert state(account)["messages"] == 0


def shared_queue(account: Account) -> None:
    account.make("S", retention="workqueue")
    share_consumer(account)


def share_consumer(account: Account) -> None:
    config = {"durable_name": "c", "name": "c", "ack_policy": "explicit"}
    account.ask("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})


def share(account: Account, left: int = 0) -> None:
    """Two runs, and a commit after the consumer was created again."""
    assert follow(account, "data", 2, fill, stream="S", share="c") == 2 * MESSAGES
    assert state(account)["messages"] == 0
    fill(account)
    reader = JetStreamStreamReader({**account.login, "stream": "S", "share": "c"}, column("data"))
    at = latest(reader, reader.initialOffset())
    account.ask("CONSUMER.DELETE.S.c")
    share_consumer(account)
    reader.commit(at)
    assert state(account)["messages"] == left


# -- buckets --


def bucket_kv(account: Account, history: int = 5) -> None:
    account.make(
        "KV_b", **{**keyed.CONFIG, "subjects": ["$KV.b.>"], "max_msgs_per_subject": history}
    )
    account.fill("$KV.b.x", "$KV.b.y.z", "$KV.b.x")


def read_kv(account: Account, revisions: int = 3, **given: Any) -> None:
    past = {"asOfRevision": 3, "keys": "x"}
    for how, count in (
        ({}, 2),
        ({"keys": "x"}, 1),
        ({"keys": "x,y.*"}, 2),
        ({"history": "true"}, revisions),
        (past, 1),
    ):
        assert read(account, "value", bucket="b", **how, **given) == count
    assert follow(account, "value", bucket="b", **given) == revisions


def lookup_kv(account: Account, *, leader: bool = False) -> None:
    search = KeyLookup(account.connect, "b", 4.0, leader=leader)
    for keys, count in ((["x", "y.z", "never"], 2), (["never"], 0)):
        assert len(search.find(pa.array(keys)).drop_null()) == count


def kv_keys(account: Account) -> None:
    assert read(account, "value", bucket="b", keys="x") == 1


def bucket_objects(account: Account) -> None:
    account.make(
        "OBJ_b", subjects=["$O.b.C.>", "$O.b.M.>"], allow_rollup_hdrs=True, allow_direct=True
    )
    admin = Sink(account.admin, objectBucket="b")
    admin.write([batch(name=["one", "two"], content=[b"1" * 300_000, b"2"])])
    # The target of a link is looked up, as is an object that was replaced before it was read.
    link = ObjectMeta(bucket="b", name="link", options=link_to("b", "two"))
    account.fill(meta_subject("b", "link"), data=link.to_json())


def read_objects(account: Account, **given: Any) -> None:
    assert read(account, "content", objectBucket="b", **given) == 3
    assert read(account, "content", objectBucket="b", pathGlobFilter="one", **given) == 1
    assert follow(account, "content", objectBucket="b", **given) == 3


# -- writing --


def sink(account: Account, **given: Any) -> Sink:
    return Sink(**{**account.login, **given})


def start(account: Account, **given: Any) -> None:
    """The checks before the first row."""
    sink(account, **given).started()


EXPECTING = batch(data=[b"1"], subject=["s.e"], expected_last_subject_sequence=[0])
EXPECTED = ("data", "subject", "expected_last_subject_sequence")
REFUSED = batch(data=[b"1"], subject=["s..a"])


def store(account: Account, **given: Any) -> None:
    start(account, stream="S", deadLetterSubject="s.dead", **given)
    made = sink(account, stream="S", deadLetterSubject="s.dead", **given)
    assert made.write([rows("s.a", 0, 1)]).stored == 1
    assert made.write([REFUSED], task=WriteTask("q", 2, 0)).dead_letters == 1


def write(account: Account, **given: Any) -> None:
    store(account, **given)
    with pytest.raises(OptionError, match=r"stream S does not capture a\.b"):
        start(account, stream="S", subject="a.b", **given)
    with pytest.raises(OptionError, match="no stream captures c"):
        start(account, stream="S", deadLetterSubject="c", **given)
    write_again(account)


def write_again(account: Account) -> None:
    """A row with an expected sequence, sent once more: the server refuses it before it looks at the
    id.
    """
    for duplicates in (0, 1):
        done = sink(account, stream="S").write([EXPECTING], names=EXPECTED)
        assert done.duplicates == duplicates


def write_unseen(account: Account) -> None:
    store(account)
    start(account, stream="S", subject="a.b")
    with pytest.raises(RowRefused, match="may not publish"):
        sink(account, stream="S", subject="a.b").write([batch(data=[b"1"])], names=["data"])


def write_without_names(account: Account) -> None:
    store(account)
    start(account, stream="S", deadLetterSubject="c")


def write_without_looking(account: Account) -> None:
    store(account)
    with pytest.raises(RowRefused, match="wrong last sequence"):
        write_again(account)


def write_exactly_once(account: Account) -> None:
    """First tries that fail when all is stored, and second tries that find it, with the last
    message removed.
    """
    store(account, delivery="exactly-once")
    for number, given in enumerate(({"stream": "S"}, {})):
        made = sink(account, delivery="exactly-once", deadLetterSubject="s.dead", **given)
        task = WriteTask("q", 3 + number, 0)
        with pytest.raises(ValueError, match="killed"):
            made.write(broken(), task=task)
        wait_until(partial(holds, account, 1 + 1 + 5 + number * 9), "all that was sent is stored")
        account.ask("STREAM.MSG.DELETE.S", {"seq": state(account)["last_seq"]})
        done = made.write([rows("s.a", 10, 5), rows("s.a", 15, 5)], task=task)
        assert (done.stored, done.duplicates) == (10, 5)


def holds(account: Account, messages: int) -> bool:
    return bool(state(account)["messages"] == messages)


def broken() -> Iterator[Any]:
    yield rows("s.a", 10, 5)
    raise ValueError("killed")


def seal(account: Account, stream: str) -> None:
    """Seal a stream; STREAM.INFO shows that."""
    config = account.ask(f"STREAM.INFO.{stream}")["config"]
    account.ask(f"STREAM.UPDATE.{stream}", {**config, "sealed": True, "deny_delete": True})


def kv_sink(account: Account, **given: Any) -> Sink:
    return sink(account, bucket="b", **given)


def kv_store(account: Account) -> None:
    done = kv_sink(account, deadLetterSubject="s.dead").write(
        [keyed.puts(("x", b"1"), ("n..o", b"2"))]
    )
    assert (done.stored, done.dead_letters) == (1, 1)


def kv_create(account: Account) -> None:
    """A key that was deleted is made again."""
    kv_sink(account).write(
        [batch(key=["d"], value=[None], operation=["DELETE"])], WriteTask("q", 5, 0)
    )
    made = batch(key=["d"], value=[b"1"], expected_revision=[0])
    assert kv_sink(account).write([made], WriteTask("q", 6, 0)).stored == 1


def kv_write(account: Account) -> None:
    kv_store(account)
    kv_create(account)
    with pytest.raises(OptionError, match="no stream captures c"):
        check_kv(account, deadLetterSubject="c")
    seal(account, "KV_b")
    with pytest.raises(OptionError, match="b is sealed"):
        check_kv(account)


def check_kv(account: Account, **given: Any) -> None:
    start(
        account, bucket="b", maxInFlight=17, **given
    )  # the checks of other options are not those of a moment ago


def kv_write_unseen(account: Account) -> None:
    kv_store(account)
    kv_create(account)
    seal(account, "KV_b")
    check_kv(account)
    with pytest.raises(RowRefused, match="sealed"):
        kv_sink(account, maxRetries=0, maxInFlight=17).write([keyed.puts(("x", b"1"))])


def kv_write_without_names(account: Account) -> None:
    kv_store(account)
    check_kv(account, deadLetterSubject="c")


def kv_write_without_looking(account: Account) -> None:
    kv_store(account)
    with pytest.raises(RowRefused, match="revision"):
        kv_create(account)


def object_store(account: Account) -> None:
    for content in (b"1", b"2" * 300_000):
        assert (
            sink(account, objectBucket="b").write([batch(name=["two"], content=[content])]).stored
            == 1
        )


def object_write(account: Account) -> None:
    object_store(account)
    seal(account, "OBJ_b")
    with pytest.raises(OptionError, match="b is sealed"):
        start(account, objectBucket="b")


def object_write_unseen(account: Account) -> None:
    object_store(account)
    seal(account, "OBJ_b")
    start(account, objectBucket="b")
    with pytest.raises(RowRefused, match="sealed"):
        object_store(account)


# -- streams on demand --


def ensured(account: Account, conflict: str = "error", **config: Any) -> None:
    described = {"subjects": ["s.>"], "storage": "memory", **config}
    options = {
        "stream": "S",
        "ensureStream": json.dumps(described),
        "ensureStreamOnConflict": conflict,
    }
    JetStreamDataSource({**account.login, **options}).writer(
        column("data").add("subject", StringType()), False
    )


def ensure(account: Account) -> None:
    ensured(account)
    ensured(account)
    assert state(account)["messages"] == 0


def ensure_update(account: Account) -> None:
    ensure(account)
    ensured(account, "update", max_msgs=5)
    assert account.ask("STREAM.INFO.S")["config"]["max_msgs"] == 5


def bucket_kv_beside_a_stream(account: Account) -> None:
    bucket_kv(account)
    made(account)
