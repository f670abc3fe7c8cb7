"""ReadKind: how one kind of dataset is planned and read; and the means that the reader gives it."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from spark_jetstream.client.requests import Connect, Requests
from spark_jetstream.errors import StreamNotFound
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.protocol.stream import SequenceRange, StreamSummary
from spark_jetstream.source.advice import READERS
from spark_jetstream.source.objects import ObjectGroup
from spark_jetstream.source.shared.rows import SharedRows
from spark_jetstream.streams.latest import TablePart, read_table
from spark_jetstream.streams.lookup import nearest_stream
from spark_jetstream.streams.pull import PullSettings

TaskInput = SequenceRange | ObjectGroup | TablePart | SharedRows
"""The input of one task.

It is a range of a stream, some objects, the latest message of each subject, or the rows that the
driver has fetched.
"""

_TOO_MUCH = (
    "if its log says Slow Consumer, a task asks for more at a time than the server's max_pending: "
    "set option fetchMaxBytes lower"
)


@dataclass(frozen=True)
class Access:
    """The means of one task, or of the driver.

    ``columns`` are the names of the columns that Spark wants, in this order. ``label`` begins the
    names of consumers.
    """

    requests: Requests
    columns: tuple[str, ...]
    label: str

    @property
    def connect(self) -> Connect:
        """Returns the connection of the process."""
        return self.requests.connect


@dataclass(frozen=True)
class Driver(Access):
    """The means of the driver in a batch read. ``plan_ranges`` plans it as a planner does."""

    plan_ranges: Callable[[], list[SequenceRange]]


class ReadKind(ABC):
    """The kind of data that a query reads, by its options, and the rows that it makes of them.

    Holds only options, and pickles.
    """

    chunked: ClassVar[bool] = False
    """Whether the bytes of a row are in messages that the filters of the read leave out."""
    replaces: ClassVar[bool] = False
    """Whether messages go by design when newer ones come, or when they expire: that is no loss."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    # On the driver

    def with_filters(self, requests: Requests) -> SourceOptions:
        """Return the options with the subject filters of the read.

        May ask for the stream; raises `OptionError`.
        """
        del requests
        return self.options

    def check(self, state: StreamSummary) -> None:
        """Raise `OptionError` if the stream cannot hold this kind of data."""
        del state

    def plan_batch(self, driver: Driver) -> Sequence[TaskInput]:
        """Return the tasks of a batch read. Raises what a planner raises."""
        return driver.plan_ranges()

    @contextlib.contextmanager
    def suggesting(self, connect: Connect, read: Collection[str] = ()) -> Iterator[None]:
        """Add what may be meant to the error that a stream does not exist.

        But not for the streams that the query has ``read``: they were deleted.
        """
        try:
            yield
        except StreamNotFound as error:
            hint = self.hint(connect, read)
            # Spark prints the trace of this process: that of the requests says no more.
            raise jsapi.reworded(error, f"{error}{hint}") from None

    def hint(self, connect: Connect, read: Collection[str]) -> str:
        """Return the end of the error that a stream does not exist, or ""."""
        new = [name for name in self.options.read_streams if name not in read]
        return nearest_stream(connect, new, options=True)

    # In a task

    @abstractmethod
    def read(self, part: TaskInput, access: Access) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task, with just the columns that Spark wants."""

    def pull(self, part: TaskInput, access: Access) -> Iterator[MessageRun]:
        """Yield the messages of a task. Raises what `read_range` and `read_table` raise."""
        settings = self.settings(access.columns)
        if isinstance(part, TablePart):
            return read_table(access.connect, part, settings, access.label)
        assert isinstance(part, SequenceRange)
        # By what the planner chose: a work queue is always read directly.
        return READERS[part.read_with](access.connect, part, settings, access.label)

    def settings(self, columns: Collection[str]) -> PullSettings:
        """Return how tasks pull messages for these columns."""
        options = self.options
        return PullSettings(
            batch=options.fetch_batch,
            max_bytes=options.fetch_max_bytes,
            expires=options.fetch_timeout,
            retry_timeout=options.connection.retry_timeout,
            fail_on_data_loss=options.fail_on_data_loss,
            headers_only=not self.needs_payloads(columns),
            too_much=_TOO_MUCH,
        )

    def needs_payloads(self, columns: Collection[str]) -> bool:
        """Whether messages must be pulled as they are for these columns.

        Without its payload a message has one header more, which a column of all headers would show.
        """
        return not {"data", "headers", "value"}.isdisjoint(columns)


class MessageKind(ReadKind):
    """A kind with at most one row for each message that a task pulls."""

    def read(self, part: TaskInput, access: Access) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the messages that a task pulls."""
        assert not isinstance(part, SharedRows)
        for messages in self.pull(part, access):
            batch = self.batch(messages, part.stream, access.columns)
            if len(batch):
                yield batch

    @abstractmethod
    def batch(self, messages: MessageRun, stream: str, columns: Sequence[str]) -> pa.RecordBatch:
        """Return the rows of some messages of a stream, with the named columns."""
