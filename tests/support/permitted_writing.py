"""What a writer does, to try out permissions: everything that Spark's driver and executors would, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from spark_jetstream.datasource import JetStreamDataSource
from spark_jetstream.errors import OptionError, RowRefused
from spark_jetstream.sink.preflight import check_bucket, check_object_bucket, check_start
from spark_jetstream.sink.task import WriteTask
from tests.support import keyed
from tests.support.permissions import Account
from tests.support.permitted_reading import bucket_kv, made, state
from tests.support.reading import wait_until
from tests.support.sinking import Sink, batch, rows


def sink(account: Account, **given: Any) -> Sink:
    where = account.where
    return Sink(where.pop("url"), **{**where, **given})


def start(account: Account, **given: Any) -> None:
    """The look before the first row."""
    made = sink(account, **given)
    check_start(made.connect, made.options)


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
    """A row with an expected sequence, sent once more: the server refuses it before it looks at the id."""
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
    """First tries that fail when all is stored, and second tries that find it, with the last message removed."""
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
    """Something that a look at the stream shows."""
    found: Any = account.ask(f"STREAM.INFO.{stream}")
    account.ask(f"STREAM.UPDATE.{stream}", {**found["config"], "sealed": True, "deny_delete": True})


def kv_sink(account: Account, **given: Any) -> Sink:
    return sink(account, bucket="b", **given)


def kv_store(account: Account) -> None:
    done = kv_sink(account, deadLetterSubject="s.dead").write([keyed.puts(("x", b"1"), ("n..o", b"2"))])
    assert (done.stored, done.dead_letters) == (1, 1)


def kv_create(account: Account) -> None:
    """A key that was deleted is made again."""
    kv_sink(account).write([batch(key=["d"], value=[None], operation=["DELETE"])], WriteTask("q", 5, 0))
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
    made = kv_sink(account, maxInFlight=17, **given)  # what was looked at a moment ago is not looked at again
    check_bucket(made.connect, made.options)


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
        assert sink(account, objectBucket="b").write([batch(name=["two"], content=[content])]).stored == 1


def object_write(account: Account) -> None:
    object_store(account)
    seal(account, "OBJ_b")
    with pytest.raises(OptionError, match="b is sealed"):
        check_objects(account)


def object_write_unseen(account: Account) -> None:
    object_store(account)
    seal(account, "OBJ_b")
    check_objects(account)
    with pytest.raises(RowRefused, match="sealed"):
        object_store(account)


def check_objects(account: Account) -> None:
    check_object_bucket(account.connect, sink(account, objectBucket="b").options)


# -- streams on demand --


def ensured(account: Account, conflict: str = "error", **config: Any) -> None:
    described = {"subjects": ["s.>"], "storage": "memory", **config}
    options = {"stream": "S", "ensureStream": json.dumps(described), "ensureStreamOnConflict": conflict}
    schema = StructType([StructField("subject", StringType()), StructField("data", BinaryType())])
    JetStreamDataSource({**account.login, **options}).writer(schema, False)


def ensure(account: Account) -> None:
    ensured(account)
    ensured(account)
    assert state(account)["messages"] == 0


def ensure_update(account: Account) -> None:
    ensure(account)
    ensured(account, "update", max_msgs=5)
    found: Any = account.ask("STREAM.INFO.S")
    assert found["config"]["max_msgs"] == 5


def bucket_kv_beside_a_stream(account: Account) -> None:
    bucket_kv(account)
    made(account)
