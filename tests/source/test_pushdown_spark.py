"""Predicates that the server takes over (option filterPushdown): the same rows, and only those are read."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from spark_jetstream.testing import NatsServer
from tests.support.publish import Message
from tests.support.queries import batch, refusal, stored
from tests.support.streams import Stream

MakeStream = Callable[..., Stream]

ENABLED = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    """A Spark that hands predicates over."""
    spark.conf.set(ENABLED, "true")
    yield spark
    spark.conf.set(ENABLED, "false")


def pushed(frame: DataFrame) -> tuple[str, str]:
    """What `explain` says that the scan does, and what is filtered above it ("" for nothing)."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        frame.explain("formatted")
    text = printed.getvalue()
    scan = re.search(r"^PushedFilters: \[(.*)\]$", text, re.MULTILINE)
    left = re.search(r"^Condition : (.*)$", text, re.MULTILINE)
    return "" if scan is None else scan[1], "" if left is None else left[1]


def times(s: Stream, sequence: int) -> str:
    """When a message was stored, to the microsecond, as SQL has it."""
    return f"timestamp_micros({s.stored_time(sequence) // 1000})"


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("sequence BETWEEN 5 AND 9", ["GreaterThanOrEqual", "LessThanOrEqual"]),
        ("subject IN ('SUBJECT.eu.a', 'SUBJECT.us.b')", ["In("]),
        ("subject LIKE 'SUBJECT.eu.%' AND sequence <= 12", ["StringStartsWith", "LessThanOrEqual"]),
        ("stream = 'NAME' AND sequence < 4", ["EqualTo", "LessThan"]),
        ("timestamp > TIME8 AND timestamp <= TIME15", ["GreaterThan", "LessThanOrEqual"]),
        ("timestamp = TIME8", ["EqualTo"]),
        ("sequence < 9 AND subject = 'nothing.like.it'", ["EqualTo"]),
    ],
)
def test_what_the_server_does(pushing: SparkSession, stream: MakeStream, condition: str, words: list[str]) -> None:
    s = stream()
    s.fill_in_turn(20, ["eu.a", "eu.b", "us.a", "us.b"])
    text = condition.replace("SUBJECT", s.subject).replace("NAME", s.name)
    for sequence in (8, 15):
        text = text.replace(f"TIME{sequence}", times(s, sequence))
    plain = batch(pushing, s.url, s.name).where(text)
    frame = batch(pushing, s.url, s.name, filterPushdown="true").where(text)
    scan, left = pushed(frame)
    assert all(word in scan for word in words), scan
    assert left == ""
    assert pushed(plain)[1]
    assert stored(frame) == stored(plain)


@pytest.mark.parametrize(
    "condition",
    [
        "subject LIKE 'SUBJECT.e%'",
        "sequence % 2 = 0",
        "sequence = 3 OR subject = 'SUBJECT.eu.a'",
    ],
)
def test_what_spark_does_itself(pushing: SparkSession, stream: MakeStream, condition: str) -> None:
    s = stream()
    s.fill_in_turn(12, ["eu.a", "eu.b", "us.a"])
    text = condition.replace("SUBJECT", s.subject)
    frame = batch(pushing, s.url, s.name, filterPushdown="true").where(text)
    assert pushed(frame)[1]
    assert stored(frame) == stored(batch(pushing, s.url, s.name).where(text))


def test_a_part_of_the_predicates(pushing: SparkSession, stream: MakeStream) -> None:
    s = stream()
    s.fill_in_turn(20, ["a", "b"])
    text = f"subject = '{s.subject}.a' AND length(data) > 0 AND sequence > 4 AND subject <> 'x'"
    frame = batch(pushing, s.url, s.name, filterPushdown="true").where(text)
    scan, left = pushed(frame)
    assert "EqualTo" in scan
    assert "GreaterThan" in scan
    assert "length" in left
    assert stored(frame) == stored(batch(pushing, s.url, s.name).where(text))
    assert [row.sequence for row in stored(frame)] == [5, 7, 9, 11, 13, 15, 17, 19]


def test_predicates_narrow_what_the_options_say(pushing: SparkSession, stream: MakeStream) -> None:
    one, other = stream(), stream()
    for s in (one, other):
        s.fill_in_turn(20, ["a", "b", "c.d"])
    names = f"{one.name},{other.name}"
    given = {
        "subjects": f"{one.subject}.*,{other.subject}.*",
        "startingOffsets": f'{{"{one.name}": 3, "{other.name}": 5}}',
        "endingOffsets": f'{{"{one.name}": 19, "{other.name}": 15}}',
    }
    for text in (
        f"stream = '{one.name}' AND sequence < 10",
        f"subject LIKE '{one.subject}.%'",
        f"subject = '{one.subject}.c.d'",
        f"subject IN ('{one.subject}.a', '{other.subject}.b') AND sequence > 6",
    ):
        frame = batch(pushing, one.url, names, filterPushdown="true", **given).where(text)
        assert pushed(frame)[1] == ""
        expected = stored(batch(pushing, one.url, names, **given).where(text))
        assert stored(frame) == expected


def test_direct_reads_too(pushing: SparkSession, stream: MakeStream) -> None:
    s = stream(allow_direct=True)
    s.fill_in_turn(50, ["a", "b"])
    text = f"subject = '{s.subject}.b' AND sequence > 20"
    frame = batch(pushing, s.url, s.name, filterPushdown="true", readWith="direct").where(text)
    assert pushed(frame)[1] == ""
    assert stored(frame) == stored(batch(pushing, s.url, s.name).where(text))


def test_a_hundred_messages_of_many_are_all_that_is_read(
    pushing: SparkSession, stream: MakeStream, nats_server: NatsServer
) -> None:
    s = stream(storage="memory")
    total, frame = 200_000, b"PUB %s.many 3\r\nabc\r\n" % s.subject.encode()
    for _ in range(4):
        s.publisher.pour(frame, total // 4 - 1, s_message(s))
    for text in ("sequence > 123400 AND sequence <= 123500", f"subject = '{s.subject}.last' AND sequence > 0"):
        reading = batch(pushing, s.url, s.name, "subject string, sequence bigint", filterPushdown="true").where(text)
        before = nats_server.monitor("/varz")["out_msgs"]
        rows = [row["sequence"] for row in reading.collect()]
        sent = nats_server.monitor("/varz")["out_msgs"] - before
        assert rows in (list(range(123_401, 123_501)), [total // 4 * part for part in (1, 2, 3, 4)])
        assert len(rows) <= sent < len(rows) + 60


def s_message(s: Stream) -> Message:
    """The last message of a pour, on a subject of its own."""
    return Message(f"{s.subject}.last", b"abc")


def test_without_sparks_setting_the_error_names_it(spark: SparkSession, stream: MakeStream) -> None:
    s = stream()
    s.fill(3)
    with pytest.raises(AnalysisException, match=ENABLED):
        batch(spark, s.url, s.name, filterPushdown="true").where("sequence > 1").collect()


def test_it_is_for_batches(spark: SparkSession, stream: MakeStream) -> None:
    s = stream()
    with pytest.raises(Exception, match="filterPushdown") as caught:
        spark.readStream.format("jetstream").options(
            servers=s.url, stream=s.name, filterPushdown="true"
        ).load().writeStream.format("noop").start().processAllAvailable()
    assert refusal(caught.value)[0] == "OptionError"
