"""The stream of a range, and the first message of the range that its leader has."""

from __future__ import annotations

from collections.abc import Callable

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.requests import info_of, settled_info
from spark_jetstream.errors import ConsumerLost, DataLossError, StreamNotFound
from spark_jetstream.protocol.stream import SequenceRange, StreamSummary
from spark_jetstream.protocol.units import INT64_MAX


def look(
    connection: Connection, part: SequenceRange, first: int, *, settled: bool = False
) -> StreamSummary:
    """Return the stream's state now; with `settled` as a leader says it that a majority follows.

    Raises `DataLossError` unless the stream is the one that was planned, and what `settled_info`
    raises.
    """
    context = f"look at stream {part.stream}"
    try:
        state = info_of(connection, part.stream, part.created, context)
        # A server that was frozen answers as the leader it was, until it hears its successor.
        if settled and not state.followed:
            state = settled_info(connection, part.stream, context)
    except StreamNotFound as error:
        raise DataLossError(
            f"stream {part.stream} was deleted while sequences {first} to {part.end - 1} were "
            "to be read"
        ) from error
    if state.created != part.created:
        raise DataLossError(
            f"stream {part.stream} was deleted and created again (at {state.created}) while "
            f"sequences {first} to {part.end - 1} of the one created at {part.created} were to be "
            "read"
        )
    return state


def leader_has(
    connection: Connection,
    part: SequenceRange,
    ask: Callable[[], int | None],
    look_again: Callable[[], StreamSummary],
    *,
    followed: bool = False,
) -> int | None:
    """Return the first sequence of a range that its stream's leader has, from a position on.

    ``ask`` asks the leader for the first sequence from there on, in the range or after it. None:
    the leader has no message there. In a cluster a second answer must confirm None, after the
    stream's state was read again. The first answer may be that of a server which led before, unless
    ``ask`` has made sure that a majority ``followed`` it.

    If the stream ends within the range, a new leader may not have applied its log yet, or the tail
    is lost. The second answer then waits for `Timing.election`. Raises what ``ask``, ``look_again``
    and `settled_info` raise.
    """

    def within() -> int | None:
        sequence = ask()
        if sequence is None or sequence >= part.end:
            return None
        return sequence

    try:
        first = within()
        if first is not None:
            return first
        state = look_again()
        # A single server has no replica that lags, and no leader before it.
        if not state.clustered:
            return None
        # A range without an end (`INT64_MAX`) has no tail that could be missing.
        if state.last_seq + 1 < part.end < INT64_MAX:
            settled_info(connection, part.stream, f"look at stream {part.stream}")
        elif followed:
            return None
        return within()
    except StreamNotFound as error:
        look_again()
        raise ConsumerLost(f"{error}, which exists") from None
