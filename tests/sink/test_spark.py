"""Another client reads what was written, and writing is what Spark's users expect of it.

Tests in which Spark has no part call the writer alone, in this process, as Spark calls it.
"""

from __future__ import annotations

import datetime
import json
import logging
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from spark_jetstream.schema import COLUMN_NAMES, COLUMNS, arrow_schema
from spark_jetstream.sink.columns import SinkColumns
from spark_jetstream.sink.portions import record_batches
from spark_jetstream.sink.row_reading import rows_of
from spark_jetstream.testing import NatsServer
from tests.conftest import SparkLog
from tests.support.calls import ROWS, data_source, store, stored, writer_of
from tests.support.publish import Message, Publisher
from tests.support.queries import refusal, streaming
from tests.support.sinking import batch, forget, seen
from tests.support.sinking import rows as numbered
from tests.support.streams import MakeStream, Stream

LEVELS = ["at-least-once", "deduplicated", "exactly-once"]

MAX_PAYLOAD = 1024 * 1024
PAYLOADS = (
    b"MSG a 1 5\r\nhello\r\n",
    b"\r\nHPUB a 12 12\r\nNATS/1.0\r\n\r\n\r\n",
    b"PUB a 0\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b'{"stream":"T","seq":1}',
    b"-ERR 'Authorization Violation'\r\n",
    b"\r\n",
    b"\r",
    b"\n",
    b"",
    b"\0",
    b"\xff\xfe",
    bytes(range(256)),
    "Ключ 鍵 🔑".encode(),
)


def write(frame: DataFrame, s: Stream, mode: str = "append", **options: str) -> None:
    frame.write.format("jetstream").options(servers=s.url, **options).mode(mode).save()


def write_stream(
    frame: DataFrame,
    s: Stream,
    folder: Path,
    mode: str = "append",
    *,
    trigger: str = "availableNow",
    **options: str,
) -> list[dict[str, Any]]:
    """One run of a streaming query with `availableNow`, or another trigger; its progress."""
    writer = (
        frame.writeStream.format("jetstream").options(servers=s.url, **options).outputMode(mode)
    )
    query = writer.option("checkpointLocation", str(folder)).trigger(**{trigger: True}).start()
    query.awaitTermination()
    return [json.loads(progress.json) for progress in query.recentProgress]


def rows(spark: SparkSession, s: Stream, count: int, partitions: int = 1) -> DataFrame:
    """Rows that all differ."""
    ids = spark.range(0, count, 1, partitions)
    return ids.selectExpr(
        f"concat('{s.subject}.', id % 3) as subject", "concat('row ', id) as data"
    )


# Rows.


def put(s: Stream, frame: pa.RecordBatch, mode: str = "b", **options: object) -> None:
    """Write as a batch (mode b) or as a micro-batch (mode s), without Spark."""
    store(writer_of(mode, {"servers": s.url, **options}, frame.schema), [frame])


@pytest.mark.parametrize("delivery", LEVELS)
def test_payloads_arrive_byte_for_byte(stream: MakeStream, delivery: str) -> None:
    s = stream()
    large = bytes(range(256)) * (MAX_PAYLOAD // 256)
    # A message id and its name take less than 200 bytes.
    most = large if delivery == "at-least-once" else large[:-200]
    content = [(f"{s.subject}.{number}", data) for number, data in enumerate((*PAYLOADS, most))]
    content += [(f"{s.subject}.again", data) for data in PAYLOADS for _ in range(2)]
    subjects, data = (list(column) for column in zip(*content, strict=True))
    put(s, batch(subject=subjects, data=data), delivery=delivery)
    found = seen(s)
    assert [(message.subject, message.data) for message in found] == content
    assert all(message.lines == [] for message in found)
    ids = [message.block for message in found]
    assert (
        ids == [b""] * len(content)
        if delivery == "at-least-once"
        else len(set(ids)) == len(content)
    )


@pytest.mark.parametrize("delivery", LEVELS)
def test_message_ids_of_ones_own(
    stream: MakeStream, caplog: pytest.LogCaptureFixture, delivery: str
) -> None:
    caplog.set_level(logging.INFO)
    s = stream()
    a, b = f"{s.subject}.a", f"{s.subject}.b"
    frame = batch(
        subject=[a, a, b, b], data=[b"1", b"2", b"3", b"4"], msg_id=["id-1", "id-2", "id-1", None]
    )
    put(s, frame, delivery=delivery)
    found = seen(s)
    assert [message.data for message in found] == [b"1", b"2", b"4"]
    assert [message.lines for message in found] == [
        ["Nats-Msg-Id: id-1"],
        ["Nats-Msg-Id: id-2"],
        [],
    ]
    assert (found[2].block == b"") == (delivery == "at-least-once")
    assert re.search(
        rf"4 of 4 rows stored, 1 was stored already, {s.name} 1 to 3; 1 task, ", caplog.text
    )
    # Another write, the same ids: only the row without one is stored.
    put(s, frame, delivery=delivery)
    assert [message.data for message in seen(s)] == [b"1", b"2", b"4", b"4"]


SERVERS_OWN = {
    "Nats-Msg-Id",
    "Nats-TTL",
    "Nats-Rollup",
    "Nats-Stream-Source",
    "Nats-Expected-Stream",
}


@pytest.mark.parametrize("delivery", ["at-least-once", "deduplicated"])
def test_rows_are_written_back_as_they_were_read(
    stream: MakeStream, nats_server_factory: Callable[..., NatsServer], delivery: str
) -> None:
    first = stream(allow_msg_ttl=True, allow_rollup_hdrs=True)
    sourced = stream(
        subjects=[], sources=[{"name": first.name}], allow_msg_ttl=True, allow_rollup_hdrs=True
    )
    first.fill(3)
    first.send(
        Message(
            f"{first.subject}.r", b"rolled up", [("Nats-Rollup", "sub"), ("A", "1"), ("A", "2")]
        ),
        Message(f"{first.subject}.id", b"named", [("Nats-Msg-Id", "mine"), ("B", "")]),
        Message(f"{first.subject}.ttl", b"mortal", [("Nats-TTL", "1h")]),
        Message(
            f"{first.subject}.ttl",
            b"",
            [("Nats-Expected-Last-Subject-Sequence", "6"), ("Ключ", "値")],
        ),
        *(Message(f"{first.subject}.p", data) for data in PAYLOADS),
    )
    sourced.wait_for(first.state()["messages"])
    # The same stream on a server of its own: the rows go there just as they are.
    other = nats_server_factory()
    for origin in (first, sourced):
        before = stored(origin)
        assert any("Nats-Stream-Source" in (row.headers or {}) for row in before) == (
            origin is sourced
        )
        with Publisher(other.url) as publisher:
            # In memory: no files of the first one are in the way of the second.
            target = Stream(
                other.url, origin.name, publisher, subjects=[f"{first.subject}.>"], storage="memory"
            )
            reader: Any = data_source({"servers": origin.url, "stream": origin.name}).reader(ROWS)
            frames = [frame for part in reader.partitions() for frame in reader.read(part)]
            # The message of the roll-up would replace those before it; a copy is wanted here.
            options = {
                "servers": other.url,
                "delivery": delivery,
                "stream": origin.name,
                "serverHeaders": "drop",
            }
            store(writer_of("b", options, frames[0].schema), frames)
            after = stored(target)
            target.delete()
        own = SERVERS_OWN | {"Nats-Expected-Last-Subject-Sequence"}
        kept = [{k: v for k, v in (row.headers or {}).items() if k not in own} for row in before]
        found = [
            {k: v for k, v in (row.headers or {}).items() if k not in SERVERS_OWN} for row in after
        ]
        assert found == kept
        plain = [row._replace(headers=None, micros=0, sequence=0) for row in before]
        assert [row._replace(headers=None, micros=0, sequence=0) for row in after] == plain
        if delivery == "deduplicated":
            ids = [(row.headers or {})["Nats-Msg-Id"] for row in after]
            assert all(len(each) == 1 for each in ids)
            assert ["mine"] not in ids


# Running a write again.


def test_a_write_with_an_id_stores_nothing_twice(
    stream: MakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    s = stream()
    frame = numbered(f"{s.subject}.a", 0, 30)
    for _ in range(2):
        put(s, frame, writeId=f"load-{s.name}")
    assert s.state()["messages"] == 30
    assert (
        f"write load-{s.name}: 30 of 30 rows stored, 30 were stored already, {s.name} 1 to 30; 1 "
        "task" in caplog.text
    )
    put(s, frame, writeId=f"other-{s.name}")
    assert s.state()["messages"] == 60
    for _ in range(2):
        put(s, frame)
    assert s.state()["messages"] == 120


# Spark's ways to write.


@pytest.mark.full
def test_sql_inserts_into_a_table_and_a_temporary_view(
    spark: SparkSession, stream: MakeStream
) -> None:
    """As for reading, Spark hands on the options of the statement, not those that the table was
    made with.
    """
    s = stream()
    table = f"sink_{s.subject}"
    options = f"'servers' = '{s.url}', 'stream' = '{s.name}'"
    spark.sql(f"CREATE TABLE {table} USING jetstream OPTIONS ({options})")
    try:
        insert = f"INSERT INTO {table} WITH ({options})"
        spark.sql(f"{insert} BY NAME SELECT '{s.subject}.a' AS subject, X'00FF' AS data")
        spark.sql(
            f"{insert} SELECT 'any', '{s.subject}.b', 7L, now(), map('A', array('1', '2')), "
            "CAST('x' AS BINARY)"
        )
        frame = spark.createDataFrame(
            [(f"{s.subject}.c", bytearray(b"y"))], "subject string, data binary"
        )
        frame.writeTo(table).options(servers=s.url, stream=s.name).append()
        with pytest.raises(AnalysisException, match='mode "overwrite" is not possible') as caught:
            spark.sql(
                f"INSERT OVERWRITE {table} WITH ({options}) BY NAME SELECT '{s.subject}.a' AS "
                "subject, X'00' AS data"
            )
        assert refusal(caught.value)[0] == "OptionError"
        spark.sql(
            f"CREATE TEMPORARY VIEW {table}_view USING jetstream OPTIONS (servers '{s.url}', "
            f"stream '{s.name}')"
        )
        spark.sql(
            f"INSERT INTO {table}_view SELECT 'any', concat('{s.subject}.view.', subject), 1L, "
            f"now(), headers, data FROM {table}_view WHERE sequence = 2"
        )
    finally:
        spark.catalog.dropTempView(f"{table}_view")
        spark.sql(f"DROP TABLE {table}")
    assert [(m.subject, m.lines, m.data) for m in seen(s)] == [
        (f"{s.subject}.a", [], b"\x00\xff"),
        (f"{s.subject}.b", ["A: 1", "A: 2"], b"x"),
        (f"{s.subject}.c", [], b"y"),
        (f"{s.subject}.view.{s.subject}.b", ["A: 1", "A: 2"], b"x"),
    ]


# Streaming queries.


def test_a_stream_says_what_it_has_stored_and_stores_nothing_twice(
    spark: SparkSession, stream: MakeStream, tmp_path: Path, spark_log: SparkLog
) -> None:
    source = stream()
    one, two = targets = [stream(duplicate_window=200_000_000) for _ in range(2)]
    source.fill(10)
    frame = streaming(spark, source.url, source.name, maxMessagesPerTrigger=6).selectExpr(
        "data", f"if(sequence % 2 = 0, '{one.subject}.x', '{two.subject}.x') as subject"
    )
    progress = write_stream(frame, one, tmp_path, delivery="exactly-once")
    assert [each["sink"]["numOutputRows"] for each in progress] == [6, 4]
    query = progress[0]["id"].replace("-", "")[:16]
    names = sorted([one.name, two.name])  # T100 comes before T99

    def report(number: int, count: int, first: int, last: int, before: str = "") -> str:
        where = ", ".join(f"{name} {first} to {last}" for name in names)
        stored = f"{count} of {count} rows stored{before}, {where}"
        what = (
            rf"INFO spark_jetstream\.sink\.writer: jetstream sink, batch {number} of query {query}"
        )
        return rf"{what}: {stored}; 1 task, \d+\.\d s"

    spark_log.wait_for(report(0, 6, 1, 3))
    spark_log.wait_for(report(1, 4, 4, 5))
    assert "were stored already" not in spark_log.text
    # As after a crash between the last acknowledgement and Spark's own note that the batch is done.
    for target in targets:
        forget(target.publisher, target.name, target.subject)
    for name in ("1", ".1.crc"):
        (tmp_path / "commits" / name).unlink(missing_ok=True)
    write_stream(frame, one, tmp_path, delivery="exactly-once")
    spark_log.wait_for(report(1, 4, 4, 5, ", 4 were stored already"))
    assert [message.data for message in seen(one)] == [
        f"{source.name} a {n}".encode() for n in range(2, 11, 2)
    ]
    assert [message.data for message in seen(two)] == [
        f"{source.name} a {n}".encode() for n in range(1, 10, 2)
    ]


@pytest.mark.parametrize("way", ["the newest checkpoint", "this batch alone"])
def test_an_older_checkpoint_loses_no_row_and_stores_none_twice(
    spark: SparkSession, stream: MakeStream, tmp_path: Path, way: str
) -> None:
    """The last batch is planned anew and holds more rows, in other tasks: some of before, and one
    that is new.
    """
    source, target = stream(), stream(duplicate_window=200_000_000)
    checkpoint, newer = tmp_path / "checkpoint", tmp_path / "newer"
    frame = streaming(spark, source.url, source.name, "data binary", maxMessagesPerPartition=5)

    def run(delivery: str = "exactly-once", trigger: str = "availableNow") -> None:
        write_stream(
            frame,
            target,
            checkpoint,
            trigger=trigger,
            subject=f"{target.subject}.x",
            delivery=delivery,
        )

    for _ in range(2):
        source.fill(10)
        run()
    before = [message.data for message in seen(target)]
    forget(target.publisher, target.name, target.subject)
    shutil.copytree(checkpoint, newer)
    for log in ("offsets", "commits"):
        for name in ("1", ".1.crc"):
            (checkpoint / log / name).unlink(missing_ok=True)
    source.fill(2)
    with pytest.raises(
        StreamingQueryException, match=r"batch 1 of \w+ was written before with other"
    ):
        run()
    assert [message.data for message in seen(target)] == before
    assert len(before) == 20
    # The ways that the page of the error names.
    source.fill(3)
    of_source = once = [message.data for message in seen(source)]
    if way == "this batch alone":
        run("deduplicated", "once")
        assert not (checkpoint / "offsets" / "2").exists()
        assert {message.data for message in seen(target)} == set(of_source[:22])
        once = of_source[:10] + of_source[22:]  # rows of the batch may be there twice
    else:
        shutil.rmtree(checkpoint)
        newer.rename(checkpoint)
    run()
    there = Counter(message.data for message in seen(target))
    assert there.keys() == set(of_source)
    assert all(there[data] == 1 for data in once)


# Rows instead of Arrow, as Spark 4.0 hands them to the writer of a stream.


def test_rows_become_record_batches() -> None:
    now = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001 - as Spark hands it over
    full = Row(
        stream="S",
        subject="a",
        sequence=7,
        timestamp=now,
        headers={"A": ["1", "2"]},
        data=bytearray(b"\0\xff"),
    )
    empty = Row(stream=None, subject=None, sequence=None, timestamp=None, headers=None, data=None)
    (found,) = record_batches([full, empty], [(column.name, column.spark) for column in COLUMNS])
    assert found.schema == arrow_schema(COLUMN_NAMES)
    assert [column.to_pylist() for column in found.columns] == [
        ["S", None],
        ["a", None],
        [7, None],
        [now.replace(tzinfo=datetime.timezone.utc), None],
        [[("A", ["1", "2"])], None],
        [b"\0\xff", None],
    ]


def test_a_schedule_of_a_row_is_a_time_in_the_zone_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        fields = [("schedule", "timestamp")]
        rows = [(datetime.datetime.fromtimestamp(1_896_163_200),), (None,)]  # noqa: DTZ006
        (found,) = record_batches(rows, fields)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found.column(0).cast(pa.int64()).to_pylist() == [1_896_163_200_000_000, None]


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
@pytest.mark.parametrize("day", ["0001-01-01", "9999-12-31"])
def test_a_schedule_at_an_end_of_the_calendar_reaches_the_rows(
    monkeypatch: pytest.MonkeyPatch, day: str, zone: str
) -> None:
    midnight = datetime.datetime.fromisoformat(day)
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        (found,) = record_batches([(midnight,)], [("schedule", "timestamp")])
    finally:
        monkeypatch.undo()
        time.tzset()
    micros = found.column(0).cast(pa.int64())[0].as_py()
    # A day more or less makes no difference: no server can wait for it.
    expected = midnight.replace(tzinfo=datetime.timezone.utc).timestamp()
    assert abs(micros / 1e6 - expected) <= 86_400


def test_columns_of_rows_without_a_value_become_columns_of_their_type() -> None:
    fields = [
        ("data", "string collate UTF8_LCASE"),
        ("subject", "varchar(10)"),
        ("headers", "map<void,void>"),
        ("msg_id", "void"),
        ("expected_last_subject_sequence", "smallint"),
        ("incr", "decimal(5,0)"),
    ]
    empty = (None, None, None)
    (found,) = record_batches([("x", "a", {}, *empty), ("y", "b", None, *empty)], fields)
    columns = SinkColumns(tuple(name for name, _ in fields))
    rows = rows_of(found, columns, 1)
    assert (rows.data.to_pylist(), rows.subject.to_pylist()) == ([b"x", b"y"], [b"a", b"b"])
    assert (rows.lines.to_pylist(), rows.faults) == ([b"", b""], {})
    listed = [("data", "string"), ("headers", "map<string,array<void>>")]
    (found,) = record_batches([("x", {"A": [None]}), ("y", {"A": []})], listed)
    assert rows_of(found, SinkColumns(("data", "headers"), "a"), 1).faults.keys() == {0}


def test_rows_become_record_batches_of_a_bounded_size() -> None:
    fields = [("data", "string"), ("headers", "map<string,string>")]
    made = [(f"row {number}", {"N": str(number)}) for number in range(4500)]
    found = list(record_batches(made, fields))
    assert [each.num_rows for each in found] == [2000, 2000, 500]
    assert [
        (text, dict(headers))
        for each in found
        for text, headers in zip(*each.to_pydict().values(), strict=True)
    ] == made
    large: list[tuple[str, dict[str, str]]] = [
        (payload, {}) for payload in ("x" * 1_000_000, "y" * 3_500_000, "z")
    ]
    assert [each.num_rows for each in record_batches(large * 3, fields)] == [2, 3, 3, 1]
    # Objects come one at a time: many at once would need their memory.
    assert [each.num_rows for each in record_batches(made[:2], fields, 1)] == [1, 1]
