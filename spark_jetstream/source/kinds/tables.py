"""Streams that a batch reads as a table: the latest message of each subject."""

from __future__ import annotations

from spark_jetstream.errors import OptionError
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.source.kinds.kind import ReadKind
from spark_jetstream.source.positions import (
    check_retention,
    read_use,
    warn_of_filters,
    warn_of_own_traffic,
)
from spark_jetstream.streams.latest import TablePart


def table_part(kind: ReadKind, state: StreamSummary, subjects: tuple[str, ...]) -> TablePart:
    """Return the task that reads the table of a stream.

    Raise `OptionError` if it cannot be read.
    """
    options = kind.options
    kind.check(state)
    check_retention(state, options, read_use(options))
    warn_of_filters(state, options)
    warn_of_own_traffic(state, options)
    return TablePart(state.name, state.created, subjects, options.read_with == "direct")


def refuse_direct(kind: ReadKind, state: StreamSummary, message: str) -> None:
    """Raise `OptionError` if the current table is to be read with Direct Gets, and cannot be.

    ``message`` is what the kind calls one: only a stream with one for each subject is read so.
    """
    if kind.options.read_with == "direct" and state.max_msgs_per_subject != 1:
        raise OptionError(
            f"option readWith cannot be direct for the current table of {state.name}, which keeps "
            f"more than one {message}: set readWith to consumer, or read all of them with "
            "history=true",
            option="readWith",
        )
