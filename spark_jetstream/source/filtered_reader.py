"""The batch reader that takes predicates from Spark (option filterPushdown; pyspark.sql.datasource, Spark 4.1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from spark_jetstream.source.narrowing import Narrowed
from spark_jetstream.source.reader import JetStreamBatchReader

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

try:
    from pyspark.sql.datasource import (
        EqualNullSafe,
        EqualTo,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        IsNotNull,
        LessThan,
        LessThanOrEqual,
        StringStartsWith,
    )

    PUSHDOWN = True  # of predicates
except ImportError:  # Spark 4.0
    PUSHDOWN = False


_SIGNS = {"LessThan": "<", "LessThanOrEqual": "<=", "GreaterThan": ">", "GreaterThanOrEqual": ">="}


class FilteredBatchReader(JetStreamBatchReader):
    """`spark.read.format("jetstream").option("filterPushdown", "true")`.

    A class of its own because Spark refuses any reader that has `pushFilters` unless
    `spark.sql.python.filterPushdown.enabled` is true.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what the server can do, and hand back the rest."""
        return list(self._left(filters))

    def _left(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        for each in filters:
            narrowed = _pushed(self.narrowed, each)
            if narrowed is None:
                yield each
            else:
                self.narrowed = narrowed


def _pushed(so_far: Narrowed, predicate: Filter) -> Narrowed | None:
    attribute: tuple[str, ...] = getattr(predicate, "attribute", ())
    if len(attribute) != 1:
        return None
    column = attribute[0]
    if isinstance(predicate, IsNotNull):
        return so_far.and_not_null(column)
    if isinstance(predicate, (EqualTo, EqualNullSafe)):
        return so_far.and_among(column, [predicate.value])
    if isinstance(predicate, In):
        return so_far.and_among(column, predicate.value)
    if isinstance(predicate, StringStartsWith):
        return so_far.and_prefix(column, predicate.value)
    if isinstance(predicate, (LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual)):
        return so_far.and_compared(column, _SIGNS[type(predicate).__name__], predicate.value)
    return None
