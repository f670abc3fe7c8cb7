"""Dead letters: the messages that the consumers of a stream gave up."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pyarrow as pa

from spark_jetstream.client.requests import Connect
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.source.kinds.kind import Access, ReadKind, TaskInput
from spark_jetstream.streams.dead_letters import read_dead_letters
from spark_jetstream.streams.lookup import nearest_stream


class GivenUp(ReadKind):
    """The advisories about the stream of option deadLettersOf, each with its message."""

    def __init__(self, options: SourceOptions) -> None:
        """Take the options of a query."""
        super().__init__(options)
        assert options.dead_letters_of is not None
        self.stream = options.dead_letters_of

    def hint(self, connect: Connect, read: Collection[str]) -> str:
        """Return which stream may be meant, or the command that keeps its dead letters."""
        del read
        nearest = nearest_stream(connect, [self.stream])
        return nearest or f"; spark-jetstream dead-letters keep {self.stream} makes it"

    def needs_payloads(self, columns: Collection[str]) -> bool:
        """Whether payloads are needed: always, since the payload of an advisory is the row."""
        del columns
        return True

    def read(self, part: TaskInput, access: Access) -> Iterator[pa.RecordBatch]:
        """Yield a row for each advisory of a task. Raises what `read_dead_letters` raises."""
        advisories = _advisories(self.pull(part, access))
        yield from read_dead_letters(access.requests, self.stream, advisories, access.columns)


def _advisories(pulled: Iterator[MessageRun]) -> Iterator[tuple[int, bytes]]:
    """Yield sequence and payload of each message."""
    for messages in pulled:
        payloads = messages.payloads().to_pylist()
        yield from zip(messages.sequences.tolist(), payloads, strict=True)
