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
from tests.support import calls
from tests.support.publish import Message
from tests.support.queries import batch, stored
from tests.support.streams import MakeStream, Stored

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


#: Predicates, what of them the scan does, what is left to Spark, and the suffixes and sequences that they leave.
PREDICATES: list[tuple[str, list[str], str, Callable[[str, int], bool]]] = [
    ("sequence BETWEEN 5 AND 9", ["GreaterThanOrEqual", "LessThanOrEqual"], "", lambda _, sequence: 5 <= sequence <= 9),
    ("subject IN ('SUBJECT.eu.a', 'SUBJECT.us.b')", ["In("], "", lambda suffix, _: suffix in {"eu.a", "us.b"}),
    (
        "subject LIKE 'SUBJECT.eu.%' AND sequence <= 12",
        ["StringStartsWith", "LessThanOrEqual"],
        "",
        lambda suffix, sequence: suffix.startswith("eu.") and sequence <= 12,
    ),
    ("stream = 'NAME' AND sequence < 4", ["EqualTo", "LessThan"], "", lambda _, sequence: sequence < 4),
    ("sequence < 9 AND subject = 'nothing.like.it'", ["EqualTo"], "", lambda *_: False),
    ("subject LIKE 'SUBJECT.e%'", [], "StartsWith", lambda suffix, _: suffix.startswith("e")),
    ("sequence % 2 = 0", [], "% 2", lambda _, sequence: sequence % 2 == 0),
    (
        "sequence = 3 OR subject = 'SUBJECT.eu.a'",
        [],
        " OR ",
        lambda suffix, sequence: sequence == 3 or suffix == "eu.a",
    ),
    (
        "subject = 'SUBJECT.eu.a' AND length(data) > 0 AND sequence > 4 AND subject <> 'x'",
        ["EqualTo", "GreaterThan"],
        "length",
        lambda suffix, sequence: suffix == "eu.a" and sequence > 4,
    ),
]


def test_what_the_server_does(pushing: SparkSession, stream: MakeStream) -> None:
    s = stream(allow_direct=True)
    s.fill_in_turn(20, ["eu.a", "eu.b", "us.a", "us.b"])
    rows = s.rows()
    readings = [batch(pushing, s.url, s.name, filterPushdown="true", readWith=way) for way in ("consumer", "direct")]
    for number, (predicates, words, left, matches) in enumerate(PREDICATES):
        frame = readings[number % 2].where(predicates.replace("SUBJECT", s.subject).replace("NAME", s.name))
        scan, above = pushed(frame)
        assert all(word in scan for word in words), scan
        assert (left in above) if left else above == "", above
        expected = [row for row in rows if matches(row.subject.removeprefix(f"{s.subject}."), row.sequence)]
        assert stored(frame) == expected, predicates
    eighth, fifteenth = rows[7].micros, rows[14].micros
    bounds: list[tuple[str, Callable[[int], bool]]] = [
        (
            f"> timestamp_micros({eighth}) AND timestamp <= timestamp_micros({fifteenth})",
            lambda time: eighth < time <= fifteenth,
        ),
        (f"= timestamp_micros({eighth})", lambda time: time == eighth),
    ]
    for comparison, within in bounds:
        frame = readings[0].where(f"timestamp {comparison}")
        assert pushed(frame)[1] == ""
        assert stored(frame) == [row for row in rows if within(row.micros)]
    # Without the option Spark filters.
    assert pushed(batch(pushing, s.url, s.name).where("sequence > 1"))[1]


def test_predicates_narrow_what_the_options_say(pushing: SparkSession, stream: MakeStream) -> None:
    one, other = stream(), stream()
    for s in (one, other):
        s.fill_in_turn(20, ["a", "b", "c.d"])
    given = {
        "subjects": f"{one.subject}.*,{other.subject}.*",
        "startingOffsets": f'{{"{one.name}": 3, "{other.name}": 5}}',
        "endingOffsets": f'{{"{one.name}": 19, "{other.name}": 15}}',
    }
    rows = calls.stored(one, stream=f"{one.name},{other.name}", **given)
    a, b = f"{one.subject}.a", f"{other.subject}.b"
    reading = batch(pushing, one.url, f"{one.name},{other.name}", filterPushdown="true", **given)
    narrowed: list[tuple[str, Callable[[Stored], bool]]] = [
        (f"stream = '{one.name}' AND sequence < 10", lambda row: row.stream == one.name and row.sequence < 10),
        (f"subject LIKE '{one.subject}.%'", lambda row: row.stream == one.name),
        (f"subject = '{one.subject}.c.d'", lambda _: False),
        (f"subject IN ('{a}', '{b}') AND sequence > 6", lambda row: row.subject in (a, b) and row.sequence > 6),
    ]
    for predicates, matches in narrowed:
        frame = reading.where(predicates)
        assert pushed(frame)[1] == ""
        assert stored(frame) == [row for row in rows if matches(row)]


def test_a_hundred_messages_of_many_are_all_that_is_read(
    pushing: SparkSession, stream: MakeStream, nats_server: NatsServer
) -> None:
    s = stream(storage="memory")
    total, frame = 200_000, b"PUB %s.many 3\r\nabc\r\n" % s.subject.encode()
    for _ in range(4):
        s.publisher.pour(frame, total // 4 - 1, Message(f"{s.subject}.last", b"abc"))
    for text in ("sequence > 123400 AND sequence <= 123500", f"subject = '{s.subject}.last' AND sequence > 0"):
        reading = batch(pushing, s.url, s.name, "subject string, sequence bigint", filterPushdown="true").where(text)
        before = nats_server.monitor("/varz")["out_msgs"]
        rows = [row["sequence"] for row in reading.collect()]
        sent = nats_server.monitor("/varz")["out_msgs"] - before
        assert rows in (list(range(123_401, 123_501)), [total // 4 * part for part in (1, 2, 3, 4)])
        assert len(rows) <= sent < len(rows) + 60


def test_without_sparks_setting_the_error_names_it(spark: SparkSession, stream: MakeStream) -> None:
    s = stream()
    with pytest.raises(AnalysisException, match=ENABLED):
        batch(spark, s.url, s.name, filterPushdown="true").where("sequence > 1").collect()
