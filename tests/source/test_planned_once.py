"""Spark plans a `load()` once: what later reads of the same frame see.

Tests of what Spark does fail when a release does something else, and say what can change then.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, GreaterThan, InputPartition

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def test_predicates_of_one_read_are_those_of_all_reads(spark: SparkSession) -> None:
    """Why there is no option filterPushdown: a source that takes predicates gives wrong rows to other reads."""

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
    mended = "Spark plans each read: sources can take predicates again once both are right, (15, 20) and 20"
    assert one_after_the_other == (15, 15), mended
    assert together == 10, mended
