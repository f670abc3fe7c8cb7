"""Advice about errors: the options of a source that help.

The layers that raise it know streams and no options.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from spark_jetstream.client.requests import Connect
from spark_jetstream.errors import ConsumerLimitReached, DataLossError, JetStreamError, OutageError
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.streams.direct import MirrorAnswered, read_auto, read_direct
from spark_jetstream.streams.pull import PullSettings, read_range

Read = Callable[[Connect, SequenceRange, PullSettings, str], Iterator[MessageRun]]
"""Reads a range, as `read_range` does."""


@contextlib.contextmanager
def advice() -> Iterator[None]:
    """Add to each error what the user can do about it."""
    try:
        yield
    except JetStreamError as error:
        advised = _advised(error)
        if advised is None:
            raise
        raise advised from error.__cause__


def _advised(error: JetStreamError) -> JetStreamError | None:
    """Return the error that says which option helps, None if none does."""
    if isinstance(error, MirrorAnswered) or isinstance(error.__cause__, MirrorAnswered):
        return type(error)(
            f"{error}: read the mirror itself (option stream), or set readWith to consumer"
        )
    if isinstance(error, OutageError) and error.__cause__ is None:
        # Of no failure, but of other writers (`read_table`).
        return OutageError(
            f"{error} (option retryTimeout; readWith=consumer and a larger fetchBatch are faster)"
        )
    if isinstance(error, ConsumerLimitReached):
        fewer = (
            "let fewer tasks read at the same time (a larger maxMessagesPerPartition, a smaller "
            "minPartitions)"
        )
        return jsapi.reworded(
            error, f"{error} (option retryTimeout); {fewer}, or raise the stream's max_consumers"
        )
    return None


def _reader(read: Read) -> Read:
    """Return a reader whose losses say how to accept them."""

    def advised(
        connect: Connect, part: SequenceRange, settings: PullSettings, label: str
    ) -> Iterator[MessageRun]:
        try:
            yield from read(connect, part, settings, label)
        except DataLossError as error:
            raise DataLossError(
                f"{error}; set failOnDataLoss to false to go on without them"
            ) from error.__cause__

    return advised


READERS = {
    "auto": _reader(read_auto),
    "consumer": _reader(read_range),
    "direct": _reader(read_direct),
}
"""How a range is read -> the function that does it."""
