"""What a reader does, to try out permissions: everything that Spark's driver and executors would, without Spark."""

from __future__ import annotations

from functools import partial
from typing import Any

from pyspark.sql.types import BinaryType, StructField, StructType

from spark_jetstream.permissions import needed
from spark_jetstream.source.offsets import Offset
from spark_jetstream.source.reader import JetStreamBatchReader, JetStreamStreamReader
from tests.support import keyed
from tests.support.permissions import INBOX, Account, Work
from tests.support.reading import wait_until
from tests.support.sinking import Sink, batch

MESSAGES = 12
need = partial(needed, inbox_prefix=INBOX)


def column(name: str) -> StructType:
    return StructType([StructField(name, BinaryType())])


def read(account: Account, what: str = "data", **given: Any) -> int:
    """How many rows a batch read has: what Spark's driver and its executors do."""
    reader = JetStreamBatchReader({**account.login, **{key: str(value) for key, value in given.items()}}, column(what))
    return sum(len(found) for part in reader.partitions() for found in reader.read(part))


def nothing(account: Account) -> None:
    """Nothing is there before, and nothing comes."""


def follow(account: Account, what: str = "data", runs: int = 1, more: Work = nothing, **given: Any) -> int:
    """How many rows a streaming query has that begins, commits, and is started again from its checkpoint.

    `more` is what comes after each start.
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
            count += sum(len(found) for found in reader.read(part))
        reader.commit(at)
        assert latest(reader, at) == at  # where nothing is left to read, the commit is waited for
    return count


def latest(reader: JetStreamStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """Where the next micro-batch ends."""
    return reader.open_planner().latest(Offset.from_json(start), limited=True).to_json()


# -- reading a stream --


def made(account: Account, **config: Any) -> None:
    account.make("S", allow_direct=True, **config)


def filled(account: Account) -> None:
    made(account)
    fill(account)


def read_all_ways(account: Account, **given: Any) -> None:
    assert read(account, stream="S", **given) == MESSAGES
    assert read(account, stream="S", subjects="s.a", startingTimestamp="2020-01-01T00:00:00Z", **given) == 4
    assert read(account, stream="S", subjects="s.a,s.b", minPartitions=2, **given) == 8
    assert follow(account, stream="S", **given) == MESSAGES


def read_tidily(account: Account) -> None:
    read_all_ways(account)
    wait_until(lambda: not account.ask("CONSUMER.NAMES.S")["consumers"], "the readers' consumers are gone")


def read_untidily(account: Account) -> None:
    read_all_ways(account)
    left = account.ask("CONSUMER.LIST.S")["consumers"]
    assert left
    assert all(each["config"]["inactive_threshold"] == 30 * 10**9 for each in left)


def read_one_filter(account: Account) -> None:
    assert read(account, stream="S", subjects="s.a") == 4
    assert read(account, stream="S", subjects="s.a", startingTimestamp="2020-01-01T00:00:00Z") == 4


CREATE = "CONSUMER.CREATE.S.other"
CONSUMING = (
    CREATE,
    "CONSUMER.CREATE.S.other.a",
    "CONSUMER.DELETE.S.other",
    "CONSUMER.MSG.NEXT.S.other",
)


# -- keeping the position --


def state(account: Account, stream: str = "S") -> Any:
    found: Any = account.ask(f"STREAM.INFO.{stream}")
    return found["state"]


def fill(account: Account) -> None:
    account.fill(*(f"s.{'abc'[number % 3]}" for number in range(MESSAGES)))


def durable(account: Account, **given: Any) -> None:
    """Two runs: the position is made, moved, taken over, and moved again."""
    count = follow(account, "data", 2, fill, stream="S", durable="query", **given)
    assert count == 2 * MESSAGES // (3 if given.get("subjects") else 1)
    found: Any = account.ask("CONSUMER.INFO.S.query")
    assert found["num_pending"] == 0


def fill_all_but_one(account: Account) -> None:
    """The last message is gone: only the leader knows that nothing comes any more."""
    fill(account)
    account.ask("STREAM.MSG.DELETE.S", {"seq": state(account)["last_seq"]})


def queue(account: Account) -> None:
    assert follow(account, "data", 2, fill_all_but_one, stream="S", durable="query") == 2 * (MESSAGES - 1)
    assert state(account)["messages"] == 0


# -- buckets --


def bucket_kv(account: Account, history: int = 5) -> None:
    account.make("KV_b", **{**keyed.CONFIG, "subjects": ["$KV.b.>"], "max_msgs_per_subject": history})
    account.fill("$KV.b.x", "$KV.b.y.z", "$KV.b.x")


def read_kv(account: Account, **given: Any) -> None:
    for how, count in (({}, 2), ({"keys": "x"}, 1), ({"keys": "x,y.*"}, 2), ({"history": "true"}, 3)):
        assert read(account, "value", bucket="b", **how, **given) == count
    assert follow(account, "value", bucket="b", **given) == 3


def read_kv_directly(account: Account) -> None:
    for how, count in (({}, 2), ({"keys": "x"}, 1), ({"keys": "x,y.*"}, 2), ({"history": "true"}, 2)):
        assert read(account, "value", bucket="b", readWith="direct", **how) == count
    assert follow(account, "value", bucket="b", readWith="direct") == 2


def kv_keys(account: Account) -> None:
    assert read(account, "value", bucket="b", keys="x") == 1


def bucket_objects(account: Account) -> None:
    account.make("OBJ_b", subjects=["$O.b.C.>", "$O.b.M.>"], allow_rollup_hdrs=True, allow_direct=True)
    admin = Sink(account.admin, objectBucket="b")
    admin.write([batch(name=["one", "two"], content=[b"1" * 300_000, b"2"])])


def read_objects(account: Account, **given: Any) -> None:
    assert read(account, "content", objectBucket="b", **given) == 2
    assert read(account, "content", objectBucket="b", pathGlobFilter="one", **given) == 1
    assert follow(account, "content", objectBucket="b", **given) == 2
