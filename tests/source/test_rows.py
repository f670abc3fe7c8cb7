"""Row for row what was published, whatever it looks like; the columns a schema asks for and no
others.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from tests.support import calls
from tests.support.calls import ROWS, Query, data_source
from tests.support.proxy import WireProxy
from tests.support.publish import Message
from tests.support.queries import batch, stored
from tests.support.reading import wait_until
from tests.support.streams import MakeStream

pytestmark = pytest.mark.usefixtures("no_connection_left")


PROTOCOL_TEXT = (
    b"MSG a 1 5\r\nhello\r\n",
    b"\r\nMSG a 1 $JS.ACK.S.c.1.1.1.1.1 5\r\nhello\r\n",
    b"NATS/1.0 404 No Messages\r\n\r\n",
    b"-ERR 'Authorization Violation'\r\n",
    b"\r\n\r\n",
    b"",
    bytes(range(256)),
)

HEADERS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("A", "1"), ("A", "2"), ("B", "x"), ("A", "3")),
    (("Empty", ""), ("Empty", "")),
    (("Status", "404"), ("Description", "No Messages")),
    (
        ("Nats-Sequence", "1"),
        ("Nats-Stream", "other"),
        ("Nats-Subject", "elsewhere"),
        ("Nats-Time-Stamp", "now"),
    ),
    (("case", "1"), ("Case", "2"), ("CASE", "3")),
    (("Ключ", "значение"), ("鍵", "値")),
    tuple((f"K{number % 7}", f"v{number}") for number in range(40)),
)


def test_payloads_of_one_megabyte(stream: MakeStream) -> None:
    s = stream()
    largest = s.publisher.info["max_payload"]
    assert largest == 1 << 20
    noise = random.Random(1).randbytes(largest)
    lines = (b"MSG a 1 5\r\nhello\r\n" * (largest // 17))[:largest]
    s.send(
        Message(f"{s.subject}.a", noise),
        Message(f"{s.subject}.a"),
        Message(f"{s.subject}.b", lines),
    )
    s.send(Message(f"{s.subject}.c", noise[: largest - 100], [("A", "x" * 40), ("A", "")]))
    s.fill(3)
    assert calls.stored(s) == s.rows()
    # More than the 64 KiB of one pull request: the connector has to ask for more by itself.
    assert calls.stored(s, fetchMaxBytes="64k", fetchBatch=1, fetchTimeout="1s") == s.rows()
    assert calls.stored(s, fetchMaxBytes="512m", fetchBatch=100_000, fetchTimeout="10m") == s.rows()


def test_subjects_outside_of_ascii_and_such_that_are_not_text(stream: MakeStream) -> None:
    s = stream()
    subjects = ["Grüße.Öl", "注文.東京", "😀.🚀", "ñ", "a-b_c$d", "x" * 200]
    s.send(*(Message(f"{s.subject}.{subject}", subject.encode()) for subject in subjects))
    assert calls.stored(s) == s.rows()
    assert calls.stored(s, subjects=f"{s.subject}.注文.*,{s.subject}.😀.🚀") == s.rows(2, 3)
    s.send(Message(f"{s.subject}.\udcff\udcfe.a", b"1"))
    last = calls.stored(s)[-1]
    assert (last.subject, last.data) == (f"{s.subject}.��.a", b"1")


@pytest.mark.parametrize(
    "config",
    [
        {"storage": "memory"},
        {"allow_direct": True, "discard": "new", "max_msgs": 1000},
        # Beyond what a float holds exactly.
        {"first_seq": 2**53 + 1},
        {"name": "Straße-注文_1"},
        {"subject_transform": {"src": ">", "dest": "moved.>"}},
    ],
    ids=lambda config: next(iter(config)),
)
def test_streams_of_every_kind(stream: MakeStream, config: dict[str, object]) -> None:
    s = stream(**config)
    first = int(str(config.get("first_seq", 1)))
    assert calls.stored(s) == []
    for _ in range(3):
        s.fill(10)
    s.remove(first, first + 5, first + 6, first + 20, first + 29)
    expected = s.rows()
    if "subject_transform" in config:
        expected = [row._replace(subject=f"moved.{row.subject}") for row in expected]
    assert len(expected) == 25
    assert expected[0].sequence == first + 1
    assert calls.stored(s, maxMessagesPerPartition=8) == expected
    run = Query(s.url, s.name, maxMessagesPerTrigger=14).run()
    assert run.counts == [14, 11]
    assert run.stored == expected


@pytest.mark.parametrize("partition", [None, InputPartition(None)], ids=["4.0", "4.2"])
def test_a_batch_without_tasks(stream: MakeStream, partition: InputPartition | None) -> None:
    """Spark runs a task of its own then, without a partition before Spark 4.2."""
    s = stream()
    reader: Any = data_source({"servers": s.url, "stream": s.name}).reader(ROWS)
    assert reader.partitions() == []
    assert list(reader.read(partition)) == []


def test_a_subset_of_the_columns_in_any_order(stream: MakeStream) -> None:
    s = stream()
    s.fill(3)
    s.send(
        Message(f"{s.subject}.h", b"", [("A", "1"), ("A", "2")]),
        Message(f"{s.subject}.h", b"x", [("B", "")]),
    )
    expected = s.rows()
    for names in (
        ["data", "sequence"],
        ["timestamp", "stream"],
        ["subject", "headers", "sequence"],
        ["data", "headers", "timestamp", "sequence", "subject", "stream"],
    ):
        schema = StructType([ROWS[name] for name in names])
        rows = calls.rows({"servers": s.url, "stream": s.name}, schema)
        fields = ["micros" if name == "timestamp" else name for name in names]
        assert [tuple(row) for row in rows] == [
            tuple(getattr(row, name) for name in fields) for row in expected
        ]


def test_columns_that_need_no_payload_do_not_fetch_any(stream: MakeStream) -> None:
    s = stream()
    count, size = 40, 50_000
    s.send(
        *(Message(f"{s.subject}.a", b"x" * size, [("A", str(number))]) for number in range(count))
    )
    with WireProxy(s.url) as proxy:

        def fetched(schema: str) -> int:
            before = proxy.bytes_to_client
            columns = StructType([ROWS[name] for name in schema.split(", ")])
            assert len(calls.rows({"servers": proxy.url, "stream": s.name}, columns)) == count
            return proxy.bytes_to_client - before

        assert fetched("sequence") < count * size // 10
        assert fetched("stream, subject, timestamp") < count * size // 10
        before = proxy.bytes_to_client
        fetched("sequence, data")
        # The proxy counts what it has sent a moment later than the client may have it.
        proxy.wait(lambda: proxy.bytes_to_client - before > count * size)


def test_headers_can_be_left_out(stream: MakeStream) -> None:
    s = stream()
    s.send(Message(f"{s.subject}.a", b"x", [("A", "1")]), Message(f"{s.subject}.a", b"y"))
    assert calls.stored(s, includeHeaders="false") == [
        row._replace(headers=None) for row in s.rows()
    ]
    only = StructType([ROWS["headers"], ROWS["sequence"]])
    rows = calls.rows({"servers": s.url, "stream": s.name, "includeHeaders": "FALSE"}, only)
    assert [tuple(row) for row in rows] == [(None, 1), (None, 2)]


def test_thousands_of_messages_of_all_sizes(spark: SparkSession, stream: MakeStream) -> None:
    s = stream()
    chance = random.Random(7)
    for number in range(3000):
        size = chance.choice((0, 1, 17, 200, 200, 200, 2000, 9000))
        data = (
            chance.choice(PROTOCOL_TEXT) * (1 + size // 40)
            if number % 5 == 0
            else chance.randbytes(size)
        )
        headers = chance.choice(HEADERS) if number % 3 == 0 else None
        s.messages[number + 1] = Message(
            f"{s.subject}.{chance.choice('abc')}.{number % 13}", data, headers
        )
    assert s.publisher.publish(s.messages.values()) == list(s.messages)
    frame = batch(spark, s.url, s.name, fetchBatch=200, maxMessagesPerPartition=800)
    assert stored(frame) == s.rows()
    assert frame.schema.simpleString() == (
        "struct<stream:string,subject:string,sequence:bigint,timestamp:timestamp,"
        "headers:map<string,array<string>>,data:binary>"
    )
    assert all(column.nullable for column in frame.schema.fields)


def test_no_consumer_is_left_behind(spark: SparkSession, stream: MakeStream) -> None:
    s = stream()
    s.fill(500)
    assert len(calls.stored(s, subjects=f"{s.subject}.a", minPartitions=3)) == 500
    # A task that is not read to its end.
    assert len(batch(spark, s.url, s.name, fetchBatch=5).limit(7).collect()) == 7
    wait_until(lambda: s.state()["consumer_count"] == 0, "the consumers are gone")


def test_subject_filters(stream: MakeStream) -> None:
    s = stream()
    s.fill_in_turn(40, ["a.x", "a.y", "b.x", "b.y.z"])
    for subjects, chosen in (
        ("NAME.a.x", {"a.x"}),
        ("NAME.*.x", {"a.x", "b.x"}),
        ("NAME.b.>", {"b.x", "b.y.z"}),
        (">", {"a.x", "a.y", "b.x", "b.y.z"}),
        ("NAME.a.x,NAME.b.>", {"a.x", "b.x", "b.y.z"}),
        ("NAME.*.*.z,NAME.a.*", {"a.x", "a.y", "b.y.z"}),
        ("NAME.none", set()),
        ("elsewhere.>", set()),
    ):
        expected = [row for row in s.rows() if row.subject.removeprefix(f"{s.subject}.") in chosen]
        assert calls.stored(s, subjects=subjects.replace("NAME", s.subject)) == expected
