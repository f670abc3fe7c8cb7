"""Predicates that the source applies itself in a batch read. Pure: comparisons and Python values in, plain data out.

A predicate is *pushed* when the server, or the bounds of the read, apply all of it; everything else is left to Spark.
The predicates of one read hold together (AND).
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol.subjects import common_subjects, subject_fault
from spark_jetstream.protocol.units import INT64_MAX
from spark_jetstream.protocol.wire import IntArray

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MICROSECOND = 1000  # ns

#: Columns that hold no null: a predicate that only asks for that is always true.
_NEVER_NULL = frozenset({"stream", "subject", "sequence", "timestamp", "bucket", "key", "revision", "operation"})


@dataclass(frozen=True)
class Pushdown:
    """What the pushed predicates leave of a batch read, everything at first.

    ``names`` are those of the streams (or of the bucket), None for all. ``filters`` are subject filters, or filters of
    keys for a bucket, that do not overlap; empty when nothing can match. Sequences ``[first, end)`` and times
    ``[since, until)`` in ns since the epoch are half-open. ``positions`` says whether sequences and times may be
    limited at all: the current table of a bucket consists of its latest revisions, whatever their sequences.
    """

    kind: str = "stream"
    positions: bool = True
    names: frozenset[str] | None = None
    filters: tuple[str, ...] = (">",)
    first: int = 1
    end: int = INT64_MAX
    since: int = -INT64_MAX
    until: int = INT64_MAX

    @classmethod
    def of(cls, options: SourceOptions) -> Pushdown:
        """Return all that the options ask for."""
        if options.bucket is not None:
            return cls(kind="bucket", positions=not options.table, filters=options.keys or (">",))
        return cls(filters=options.subjects or (">",))

    @property
    def timed(self) -> bool:
        """Whether rows must be filtered by their time."""
        return self.since > -INT64_MAX or self.until < INT64_MAX

    def reads(self, name: str) -> bool:
        """Whether anything of the stream or bucket of that name is left."""
        return bool(self.filters) and self.first < self.end and (self.names is None or name in self.names)

    def at(self, timestamps: IntArray) -> npt.NDArray[np.bool_]:
        """Return which of these times, in ns since the epoch, are left."""
        return (timestamps >= self.since) & (timestamps < self.until)

    def options(self, options: SourceOptions) -> SourceOptions:
        """Return the options of a source that reads just what matches `filters`."""
        own = options.keys if self.kind == "bucket" else options.subjects
        if self.filters == (own or (">",)):
            return options
        return options.model_copy(update={"keys" if self.kind == "bucket" else "subjects": self.filters})

    def and_not_null(self, column: str) -> Pushdown | None:
        """Push ``column IS NOT NULL``. Return None, here and below, when the predicate is left to Spark."""
        return self if column in _NEVER_NULL else None

    def and_among(self, column: str, values: Sequence[object]) -> Pushdown | None:
        """Push ``column IN values``, or ``column = value`` as one value."""
        if column == self.kind and all(isinstance(value, str) for value in values):
            names = frozenset(str(value) for value in values)
            return replace(self, names=names if self.names is None else self.names & names)
        if column == self._filtered and all(_literal(value) for value in values):
            return self._matching(sorted({str(value) for value in values}))
        if len(values) != 1:
            return None
        low = self.and_compared(column, ">=", values[0])
        return None if low is None else low.and_compared(column, "<=", values[0])

    def and_prefix(self, column: str, prefix: str) -> Pushdown | None:
        """Push ``column LIKE 'prefix%'``, if the prefix ends with a token."""
        if column != self._filtered or not prefix.endswith(".") or not _literal(prefix[:-1]):
            return None
        return self._matching([f"{prefix}>"])

    def and_compared(self, column: str, comparison: str, value: object) -> Pushdown | None:
        """Push ``column < value`` (or <=, >, >=)."""
        if not self.positions:
            return None
        numbered = "revision" if self.kind == "bucket" else "sequence"
        if column == numbered and isinstance(value, int) and not isinstance(value, bool):
            first, end = _bounds(comparison, value, 1)
            return replace(self, first=max(self.first, first), end=min(self.end, end))
        if column == "timestamp" and isinstance(value, datetime.datetime) and value.tzinfo is not None:
            micros = (value - _EPOCH) // datetime.timedelta(microseconds=1)
            # A row has whole microseconds, rounded down: each represents a thousand nanoseconds.
            since, until = _bounds(comparison, micros * _MICROSECOND, _MICROSECOND)
            return replace(self, since=max(self.since, since), until=min(self.until, until))
        return None

    @property
    def _filtered(self) -> str:
        return "key" if self.kind == "bucket" else "subject"

    def _matching(self, wanted: Sequence[str]) -> Pushdown:
        both = (common_subjects(mine, other) for mine in self.filters for other in wanted)
        return replace(self, filters=tuple(dict.fromkeys(subject for subject in both if subject is not None)))


def _bounds(comparison: str, value: int, step: int) -> tuple[int, int]:
    """Return the half-open range of what compares so with ``value``, which represents ``[value, value + step)``."""
    if comparison == ">":
        return value + step, INT64_MAX
    if comparison == ">=":
        return value, INT64_MAX
    return -INT64_MAX, value if comparison == "<" else value + step


def _literal(value: object) -> bool:
    """Whether this is a subject, or the beginning of one, that the server compares byte by byte."""
    # A subject that is no UTF-8 is shown with U+FFFD in it, and the server knows it by its bytes.
    return isinstance(value, str) and not subject_fault(value) and not {"*", ">", "�"} & set(value)
