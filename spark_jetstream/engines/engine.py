"""Engine: what the connector asks about the engine that calls it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from spark_jetstream.schema import Column, GivenField

if TYPE_CHECKING:
    from pyspark import TaskContext


class Engine(ABC):
    """The form in which an engine gives and takes schemas, and how a task knows itself."""

    name: ClassVar[str]
    numbers_tasks: ClassVar[bool]
    """Whether a task, and each later attempt of it, knows the number of its partition."""

    @abstractmethod
    def declare(self, columns: Sequence[Column]) -> str | pa.Schema:
        """Return columns in the form that `DataSource.schema()` returns to the engine."""

    @abstractmethod
    def given_fields(self, schema: Any) -> list[GivenField]:
        """Return the fields of a schema that the engine has given to a reader."""

    @abstractmethod
    def given_types(self, schema: Any) -> list[tuple[str, str]]:
        """Return the columns of a schema that the engine has given to a writer.

        They are pairs of name and Spark `simpleString` type.
        """

    @abstractmethod
    def hand_over(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the rows of a task in batches that the engine can take."""

    @abstractmethod
    def task(self) -> TaskContext | None:
        """Return the running task, None outside of one and where the engine numbers no tasks."""
