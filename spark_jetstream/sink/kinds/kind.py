"""SinkKind: what a write does differently for each kind of dataset."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import pyarrow as pa

from spark_jetstream.client.requests import Connect
from spark_jetstream.options import SinkOptions
from spark_jetstream.sink.message_ids import WriteTask
from spark_jetstream.sink.portions import PORTION_ROWS
from spark_jetstream.sink.report import TaskReport
from spark_jetstream.sink.timing import WRITE_TIMING, WriteTiming

Fields = Sequence[tuple[str, str]]
"""The columns of a DataFrame: pairs of name and Spark `simpleString` type."""


class SinkKind(ABC):
    """The dataset of one write, with the options and the checked columns of the write.

    `start` and the methods about the end of a batch run on the driver. Spark sends the object to
    the tasks as `start` has left it, and `write` runs there. A method that a kind does not define
    does nothing.
    """

    option: ClassVar[str]
    """The option that names the dataset."""
    noun: ClassVar[str] = "bucket"
    """The name of the dataset in errors."""
    batch_rows: ClassVar[int] = PORTION_ROWS
    """The most rows of a record batch, where Spark hands over Python rows."""
    timing: ClassVar[WriteTiming] = WRITE_TIMING
    """How long checks hold, and how long rows and failures wait."""

    def __init__(self, options: SinkOptions) -> None:
        """Take the options. A kind takes the columns as well, and raises `SchemaError` for them."""
        self.options = options

    def refuse_ids_of_partitions(self, engine: str) -> None:  # noqa: B027 - objects have no ids
        """Raise `OptionError` if message ids, or the ledger, need the number of each task.

        `engine` is the name of the engine, which does not give it.
        """

    @abstractmethod
    def start(self, connect: Connect) -> None:
        """Check the dataset before the first row. Raises what `preflight.check_start` does."""

    @abstractmethod
    def write(
        self, batches: Iterable[pa.RecordBatch], connect: Connect, task: WriteTask
    ) -> TaskReport:
        """Store all rows of a task, and return what is stored.

        Raises `RowRefused`, `OutageError`, `DeliveryError`, and `JetStreamError` for another error
        that no retry can mend.
        """

    def finish(
        self,
        connect: Connect,
        task: WriteTask,
        reports: Sequence[TaskReport],
        *,
        repeatable: bool,
    ) -> int:
        """Store what the tasks of a batch have left to the driver. Return how many rows that were.

        `task` is any task of the batch. `repeatable` says whether a later run may write the batch
        again.
        """
        return 0

    def warn_of_interval(  # noqa: B027 - buckets have nothing to warn of
        self,
        connect: Connect,
        query: str,
        batch: int,
        streams: Mapping[str, tuple[int, int]],
    ) -> None:
        """Warn of micro-batches that are further apart than the dataset remembers message ids.

        `query` is the id of the query in message ids. `streams` has the first and last sequence of
        micro-batch `batch` in each stream.
        """

    def depends_on_layout(self) -> bool:
        """Whether all rows have their partition in their message ids."""
        return False
