"""Spark plans a `load()` once: what later reads of the same frame, view or join see, and what
errors say then.

Tests of what Spark does fail when a release does something else, and say what can change then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, GreaterThan, InputPartition
from pyspark.sql.types import StructType

from spark_jetstream.admin import JetStreamAdmin
from spark_jetstream.errors import DataLossError
from spark_jetstream.testing import NatsServer
from tests.support.calls import BUCKET_ROWS, OBJECT_ROWS, ROWS, data_source

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
LOAD_AGAIN = (
    "; Spark plans a DataFrame or view once: if it was used before, call load() again (in a "
    "streaming query, in the function of foreachBatch)"
)


def test_predicates_of_one_read_are_those_of_all_reads(spark: SparkSession) -> None:
    """Why there is no option filterPushdown: a source that takes predicates gives wrong rows to
    other reads.
    """

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return "numbers"

        def schema(self) -> str:
            return "number bigint"

        def reader(self, schema: object) -> DataSourceReader:
            return Above()

    class Above(DataSourceReader):
        above = 0

        def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
            for predicate in filters:
                if isinstance(predicate, GreaterThan):
                    self.above = predicate.value
                else:
                    yield predicate

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(self.above)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            yield from ((number,) for number in range(partition.value + 1, 21))

    def load() -> DataFrame:
        return spark.read.format("numbers").load()

    spark.dataSource.register(Numbers)
    spark.conf.set(PUSHDOWN, "true")
    try:
        frame, other = load(), load()
        one_after_the_other = frame.where("number > 5").count(), frame.count()
        together = other.where("number > 5").union(other.where("number > 15")).count()
    finally:
        spark.conf.set(PUSHDOWN, "false")
    mended = (
        "Spark plans each read: sources can take predicates again once both are right, (15, 20) "
        "and 20"
    )
    assert one_after_the_other == (15, 15), mended
    assert together == 10, mended


#: The rows of `frame` at first, when it is read again after `change`, and when it is loaded again.
Found = dict[str, list[str]]
FIRST: Found = {
    "stream": ["0"],
    "table": ["a=0", "b=0"],
    "history": ["a=0", "b=0"],
    "objects": ["a=0", "b=0"],
    "listing": ["a=1", "b=1"],
}
AGAIN: Found = {**FIRST, "table": ["a=11", "c=1"], "objects": ["a=11"]}
LOADED_AGAIN: Found = {
    "stream": ["0", "1"],
    "table": ["a=11", "c=1"],
    "history": ["a=0", "a=11", "b=", "b=0", "c=1"],
    "objects": ["a=11", "c=1"],
    "listing": ["a=2", "c=1"],
}


@dataclass
class Things:
    """A stream S, and a bucket B of each kind, on a server of its own."""

    admin: JetStreamAdmin
    url: str

    def fill(self) -> None:
        """Make them, as in `FIRST`."""
        self.admin.streams.create({"name": "S", "subjects": ["s"]})
        self.admin.publish("s", b"0")
        self.admin.kv.create("B", history=5)
        self.admin.objects.create("B")
        for name in "ab":
            self.admin.kv.bucket("B").put(name, b"0")
            self.admin.objects.bucket("B").put(name, b"0")

    def change(self) -> None:
        """Replace a, delete b and add c."""
        self.admin.publish("s", b"1")
        for bucket in (self.admin.kv.bucket("B"), self.admin.objects.bucket("B")):
            bucket.put("a", b"11")
            bucket.put("c", b"1")
            bucket.delete("b")

    def frame(self, spark: SparkSession) -> DataFrame:
        """All of them, loaded now."""
        value = "key || '=' || coalesce(CAST(value AS STRING), '')"
        kinds: list[tuple[str, str, dict[str, str]]] = [
            ("stream", "CAST(data AS STRING)", {"stream": "S"}),
            ("table", value, {"bucket": "B"}),
            ("history", value, {"bucket": "B", "history": "true"}),
            ("objects", "name || '=' || CAST(content AS STRING)", {"objectBucket": "B"}),
            ("listing", "name || '=' || size", {"objectBucket": "B", "contentOff": "true"}),
        ]
        frames = [
            spark.read.format("jetstream")
            .options(servers=self.url, **options)
            .load()
            .selectExpr(f"'{kind}' AS kind", f"{text} AS text")
            for kind, text, options in kinds
        ]
        return reduce(DataFrame.union, frames)


def rows_in(frame: DataFrame) -> Found:
    """The rows of each kind in a frame, sorted."""
    rows = sorted((row["kind"], row["text"]) for row in frame.collect())
    return {kind: [text for of, text in rows if of == kind] for kind in FIRST}


@pytest.fixture
def things(no_connection_left: None) -> Iterator[Things]:
    with NatsServer() as server, JetStreamAdmin(servers=server.url) as admin:
        things = Things(admin, server.url)
        things.fill()
        yield things


def test_a_frame_that_is_read_again_keeps_its_first_plan(
    spark: SparkSession, things: Things, tmp_path: Path
) -> None:
    frame = things.frame(spark)
    assert rows_in(frame) == FIRST
    view = f"VIEW numbers USING jetstream OPTIONS (servers '{things.url}', stream 'S')"
    spark.sql(f"CREATE TEMPORARY {view}")
    assert spark.table("numbers").count() == 1

    # As the static side of a join: the first micro-batch changes everything.
    joined: list[Found] = []
    loaded: list[Found] = []

    def look(batch: DataFrame, _: int) -> None:
        joined.append(rows_in(batch))
        loaded.append(rows_in(things.frame(batch.sparkSession)))
        if len(joined) == 1:
            things.change()

    things.admin.streams.create({"name": "TICKS", "subjects": ["tick"]})
    for _ in range(2):
        things.admin.publish("tick", b"")
    ticks = spark.readStream.format("jetstream").options(
        servers=things.url, stream="TICKS", maxMessagesPerTrigger="1"
    )
    writer = ticks.load().crossJoin(frame).writeStream.foreachBatch(look)
    query = (
        writer.option("checkpointLocation", str(tmp_path / "joined"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    changed = (
        "Spark does not keep the first plan: docs/reading.md and the errors of tasks say that it "
        "does"
    )
    assert joined == [FIRST, AGAIN], changed
    assert loaded == [FIRST, LOADED_AGAIN]

    assert rows_in(frame) == AGAIN, changed
    assert rows_in(things.frame(spark)) == LOADED_AGAIN
    assert spark.table("numbers").count() == 1, changed
    spark.sql("REFRESH TABLE numbers")
    assert spark.table("numbers").count() == 1, changed
    spark.sql(f"CREATE OR REPLACE TEMPORARY {view}")
    assert spark.table("numbers").count() == 2


@pytest.mark.parametrize(
    ("options", "schema", "said"),
    [
        (
            {"stream": "S"},
            ROWS,
            "1 of 1 messages of stream S, sequences 1 to 1, were removed (expired, purged or ",
        ),
        ({"bucket": "B"}, BUCKET_ROWS, "after this read was planned; read it again"),
        (
            {"objectBucket": "B"},
            OBJECT_ROWS,
            "stream OBJ_B was deleted and created again after this read was planned",
        ),
    ],
)
def test_an_old_plan_whose_messages_are_gone(
    things: Things, options: dict[str, str], schema: StructType, said: str
) -> None:
    reader = data_source({"servers": things.url, **options}).reader(schema)
    parts = reader.partitions()
    things.admin.streams.purge("S")
    things.admin.kv.delete("B")
    things.admin.objects.delete("B")
    things.admin.kv.create("B")
    things.admin.objects.create("B")
    with pytest.raises(DataLossError) as raised:
        _ = [list(reader.read(part)) for part in parts]
    assert said in str(raised.value)
    assert str(raised.value).endswith(LOAD_AGAIN)
    reader = data_source({"servers": things.url, **options}).reader(schema)
    assert [list(reader.read(part)) for part in reader.partitions()] in ([], [[]])
