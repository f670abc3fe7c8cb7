"""The tests of Spark's Kafka sink (connector/kafka-0-10-sql, branch master), done with this one.

A topic is a stream here, and a subject within it. A test has the name of its counterpart,
shortened. The table has the counterparts with another name. docs/migrating.md has the differences
for users.

```
KafkaSinkStreamingSuite, KafkaSinkMicroBatchStreamingSuite
  write to kafka with topic field, w/o it     test_topic_field_and_topic_option
  write data with valid schema, wrong types   test_write_data_with_bad_schema
  write to non-existing topic                 sink/test_failures.py test_known_before_any_task_starts
  sink progress is produced           sink/test_spark.py test_a_stream_says_what_it_has_stored_and_stores_nothing_twice
KafkaSinkBatchSuite
  partition column and partitioner            test_write_data_with_bad_schema: a stream has no partitions
  null topic field value                      sink/test_failures.py test_a_row_that_cannot_be_stored_is_named
  enforce analyzed plans                      test_write_to_kafka
KafkaWriterCustomMetricsSuite                 sink/test_outcomes.py test_reports_of_tasks_add_up
```

Without a counterpart: continuous processing, pools of producers, delegation tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jetstream.errors import OptionError, SchemaError
from tests.sink.test_spark import put, write, write_stream
from tests.support.calls import ADMISSION_CONTROL, stored, writer_of
from tests.support.publish import Message
from tests.support.queries import refusal, streaming
from tests.support.sinking import batch, rows, seen
from tests.support.streams import MakeStream

NOWHERE = "nats://127.0.0.1:1"
MODES = pytest.mark.parametrize("mode", ["b", "s"], ids=["batch", "streaming"])


@MODES
def test_topic_field_and_topic_option(stream: MakeStream, mode: str) -> None:
    """The option wins."""
    s = stream()
    put(s, batch(data=[b"1"], subject=[f"{s.subject}.column"]), mode)
    put(s, batch(data=[b"2"]), mode, subject=f"{s.subject}.option")
    put(s, batch(data=[b"3"], subject=["nowhere.at.all"]), mode, subject=f"{s.subject}.option")
    found = [(message.subject.removeprefix(f"{s.subject}."), message.data) for message in seen(s)]
    assert found == [("column", b"1"), ("option", b"2"), ("option", b"3")]


TEXT, BYTES, NUMBER = pa.string(), pa.binary(), pa.int32()


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"data": BYTES}, 'has no column "subject": add it, or set option subject'),
        ({"subject": TEXT}, 'no column "data"'),
        ({"data": BYTES, "subject": NUMBER}, 'column "subject" is of type int'),
        ({"data": NUMBER, "subject": TEXT}, 'column "data" is of type int'),
        ({"data": BYTES, "subject": TEXT, "headers": pa.map_(TEXT, BYTES)}, "map<string,binary>"),
        # Columns of Kafka's sink.
        ({"value": BYTES, "subject": TEXT}, 'no column "value"; did you mean "data"'),
        ({"data": BYTES, "topic": TEXT}, 'no column "topic"; did you mean "subject"'),
        ({"data": BYTES, "subject": TEXT, "key": BYTES}, 'no column "key"; did you mean "subject"'),
        ({"data": BYTES, "subject": TEXT, "partition": NUMBER}, 'no column "partition"'),
    ],
)
def test_write_data_with_bad_schema(columns: Mapping[str, pa.DataType], text: str) -> None:
    for mode in "bs":
        with pytest.raises(SchemaError) as caught:
            writer_of(mode, {"servers": NOWHERE}, pa.schema(list(columns.items())))
        assert text in str(caught.value)


@MODES
def test_exception_on_config_serializer(mode: str) -> None:
    """Options of Kafka's producer have no counterpart, and none is suggested for them."""
    for option, hint in (
        ("kafka.key.serializer", ""),
        ("kafka.value.serializer", ""),
        ("kafka.partitioner.class", ""),
        ("kafka.bootstrap.servers", "; did you mean servers"),
        ("topic", "; did you mean stream and subject"),
    ):
        with pytest.raises(OptionError) as caught:
            writer_of(
                mode,
                {"servers": NOWHERE, option: "foo"},
                pa.schema([("data", BYTES), ("subject", TEXT)]),
            )
        assert str(caught.value) == f"there is no option {option}{hint}"


@MODES
def test_write_big_data_with_small_producer_buffer(stream: MakeStream, mode: str) -> None:
    s = stream()
    put(s, rows(f"{s.subject}.a", 0, 300, size=15_000), mode, maxInFlight=1)
    assert [message.data.rstrip(b".") for message in seen(s)] == [
        b"row %d" % number for number in range(300)
    ]
    assert s.state()["messages"] == 300


def test_write_to_kafka(spark: SparkSession, stream: MakeStream) -> None:
    """Rows with headers; names of options and of the format in any case; and a plan that Spark has
    to analyze.
    """
    s = stream()
    headers = [
        {"a": ["b"]},
        {"c": ["d"], "e": ["f"]},
        {"g": ["h", "i"]},
        None,
        {"j": ["k", "l"], "m": ["n"]},
    ]
    made = [(f"{s.subject}.a", str(number), each) for number, each in enumerate(headers)]
    frame = spark.createDataFrame(
        made, "subject string, data string, headers map<string, array<string>>"
    ).coalesce(1)
    write(frame, s, mode="APPEND", delivery="at-least-once")
    assert [(row.subject, row.data.decode(), row.headers) for row in stored(s)] == made
    frame = spark.range(1, 1000).select(F.to_json(F.struct("*")).alias("data"))
    writer = frame.write.format("JetStream").options(SERVERS=s.url, Subject=f"{s.subject}.b")
    writer.mode("append").save(s.name)
    found = {row.data for row in stored(s, subjects=f"{s.subject}.b")}
    assert found == {b'{"id":%d}' % number for number in range(1, 1000)}
    frame.write.options(servers=s.url, subject=f"{s.subject}.c").save(
        format="jetstream", mode="append"
    )
    assert s.state()["messages"] == 5 + 999 + 999


def test_unsupported_save_modes(spark: SparkSession, stream: MakeStream) -> None:
    s = stream()
    frame = spark.createDataFrame([(f"{s.subject}.a", "1")], "subject string, data string")
    with pytest.raises(AnalysisException) as caught:
        write(frame, s, mode="overwrite")
    assert refusal(caught.value) == (
        "OptionError",
        'mode "overwrite" is not possible: a stream is only ever added to; use mode "append", and '
        "purge the stream "
        "first if you do not want its messages",
    )
    with pytest.raises(
        AnalysisException, match='mode "overwrite" is not possible: a bucket is only ever added to'
    ):
        write(frame, s, mode="overwrite", bucket="b")
    # Spark refuses the others by itself, and the one that it takes when none is named.
    for mode in ("errorifexists", "error", "default", "ignore", None):
        writer = frame.write.format("jetstream").options(servers=s.url)
        with pytest.raises(
            AnalysisException, match=r"UNSUPPORTED_DATA_SOURCE_SAVE_MODE.*use either the \"Append\""
        ):
            (writer if mode is None else writer.mode(mode)).save()
    assert s.state()["messages"] == 0


@pytest.mark.full
def test_aggregation_write_to_kafka(
    spark: SparkSession, stream: MakeStream, tmp_path: Path
) -> None:
    source, target = stream(), stream()
    times = [
        "2026-01-01T00:00:01",
        "2026-01-01T00:00:02",
        "2026-01-01T00:01:01",
        "2026-01-01T00:02:01",
    ]
    source.send(*(Message(f"{source.subject}.t", text.encode()) for text in times))
    events = streaming(spark, source.url, source.name, maxMessagesPerTrigger=2).selectExpr(
        "to_timestamp(cast(data as string)) as time"
    )
    counts = events.withWatermark("time", "1 second").groupBy(F.window("time", "1 minute")).count()
    told = counts.selectExpr(
        f"'{target.subject}.x' as subject",
        "concat(date_format(window.start, 'HH:mm'), ' ', count) as data",
    )

    # Not with Trigger.AvailableNow: before Spark 4.2 its one batch stores no result that the
    # watermark of its rows ends.
    writer = told.writeStream.format("jetstream").options(servers=target.url).outputMode("append")
    query = writer.option("checkpointLocation", str(tmp_path / "append")).start()
    query.processAllAvailable()
    query.stop()
    assert sorted(message.data for message in seen(target)) == [b"00:00 2", b"00:01 1"]

    target.purge()
    write_stream(told, target, tmp_path / "complete", mode="complete")
    # Each micro-batch stores the whole result once more.
    data = [message.data for message in seen(target)]
    assert sorted(data[-3:]) == [b"00:00 2", b"00:01 1", b"00:02 1"]
    assert data[:-3] == ([b"00:00 2"] if ADMISSION_CONTROL else [])

    before = target.state()["last_seq"]
    with pytest.raises(StreamingQueryException, match="jetstream does not support Update mode"):
        write_stream(told, target, tmp_path / "update", mode="update")
    assert target.state()["last_seq"] == before


@pytest.mark.full
def test_update_mode_by_foreach_batch(
    spark: SparkSession, stream: MakeStream, tmp_path: Path
) -> None:
    """Spark does not let a Python sink do this itself.

    With a `writeId` of query and batch nothing is stored twice.
    """
    source, target = stream(), stream()
    source.fill_in_turn(6, ["a", "b", "c"])
    counts = (
        streaming(spark, source.url, source.name, maxMessagesPerTrigger=4)
        .groupBy("subject")
        .count()
    )

    def take(frame: DataFrame, number: int) -> None:
        told = frame.selectExpr(
            f"'{target.subject}.x' as subject", "concat(subject, ' ', count) as data"
        ).coalesce(1)
        for _ in range(2):
            write(told, target, writeId=f"{target.name}-{number}")

    writer = (
        counts.writeStream.outputMode("update")
        .option("checkpointLocation", str(tmp_path))
        .foreachBatch(take)
    )
    writer.trigger(availableNow=True).start().awaitTermination()
    data = [message.data.decode().removeprefix(f"{source.subject}.") for message in seen(target)]
    batches = (
        [["a 2", "b 1", "c 1"], ["b 2", "c 2"]]
        if ADMISSION_CONTROL
        else [["a 2", "b 2", "c 2"], []]
    )
    assert [sorted(data[:3]), sorted(data[3:])] == batches
