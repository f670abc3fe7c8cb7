"""Streams that a batch reads as a table: the latest message of each subject."""

from __future__ import annotations

import time
from collections.abc import Sequence

from spark_jetstream.client.requests import Requests
from spark_jetstream.errors import OptionError
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.source.kinds.kind import Driver, ReadKind
from spark_jetstream.source.positions import (
    check_retention,
    read_use,
    warn_of_filters,
    warn_of_own_traffic,
)
from spark_jetstream.source.selection import Selection
from spark_jetstream.streams.latest import TablePart


def stream_tables(kind: ReadKind, driver: Driver, message: str) -> Sequence[TablePart]:
    """Return the tasks that read the tables of the streams that the options name or find.

    ``message`` as in `refuse_direct`. Raise what `table_part` and `refuse_direct`
    raise, and `StreamNotFound`.
    """
    with kind.suggesting(driver.connect):
        states = _states(kind, driver.requests)
    parts = []
    for state in states:
        parts.append(table_part(kind, state, kind.options.subjects))
        refuse_direct(kind, state, message)
    return parts


def _states(kind: ReadKind, requests: Requests) -> list[StreamSummary]:
    """Return the states of the streams to read, found ones in the order of their names."""
    options = kind.options
    names = options.streams
    if options.finds_streams:
        selection = Selection(options, requests, time.monotonic)
        selection.look(complete=True)
        names = tuple(sorted(selection.chosen))
    states = []
    for name in names:
        context = f"read stream {name} (option {options.chosen_by})"
        states.append(requests.stream(name, context))
    return states


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

    ``message`` is the name that the kind gives to a message: only a stream with one for each
    subject is read so.
    """
    if kind.options.read_with == "direct" and state.max_msgs_per_subject != 1:
        raise OptionError(
            f"option readWith cannot be direct for the current table of {state.name}, which keeps "
            f"more than one {message}: set readWith to consumer, or read all of them "
            "with history=true",
            option="readWith",
        )
