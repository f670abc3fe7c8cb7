"""Room: whether a row is larger than all that its stream, or the account, may keep."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.requests import ask, stream_info
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.pub_ack import Refusal, RefusalCode, is_full
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.sink.window import InFlight

log = logging.getLogger(__name__)

# What the server counts for a message beside its content (nats-server: fileStoreMsgSizeRaw).
_AROUND_IN_FILE = 30
_AROUND_IN_MEMORY = 16


def is_about_room(refusal: Refusal) -> bool:
    """Whether the server refused a row because it found no room."""
    by_account = refusal.err_code == RefusalCode.ACCOUNT_FULL
    return by_account or is_full(refusal.err_code, refusal.description)


def why_too_large(
    connection: Connection,
    streams: Sequence[str],
    flight: InFlight,
    index: int,
    refusal: Refusal,
    prefix: str | None,
) -> str | None:
    """Return why a row, or a group, that found no room has none in an empty stream either.

    None if it may have room there. Raises what `Connection.api` raises.
    """
    by_account = refusal.err_code == RefusalCode.ACCOUNT_FULL
    for name in streams:
        state = stream_info(connection, name, prefix=prefix)
        if by_account:
            owner = "the account"
            room = _account_room(connection, state, prefix)
        else:
            owner = "the stream"
            room = state.max_bytes
        why = _why_too_large(flight, index, state, owner, room)
        if why is not None:
            return f"{refusal.description} (error {refusal.err_code}): {why}"
    return None


def _account_room(connection: Connection, state: StreamSummary, prefix: str | None) -> int:
    """Return the bytes that the account may keep in streams of this kind; <= 0 for no limit."""
    context = "read the limits of the account"
    info = ask(connection, jsapi.ACCOUNT_INFO, context=context, prefix=prefix)
    replicas = max(1, state.num_replicas)
    kind = "max_memory" if state.storage == "memory" else "max_storage"
    # An account may have limits for each number of replicas, and then none for all.
    tier = jsapi.field(info, f"tiers.R{replicas}.limits.{kind}", int, context, 0)
    if tier:
        return tier
    # Other than in a tier, each replica of a message counts.
    return jsapi.field(info, f"limits.{kind}", int, context, 0) // replicas


def _why_too_large(
    flight: InFlight, index: int, state: StreamSummary, owner: str, room: int
) -> str | None:
    """Return why a row, or a group, is too large for a stream whose `owner` may keep `room` bytes.

    `room` <= 0 means no limit.
    """
    rows = flight.portion.members(index)
    # A group is stored whole, so a stream that keeps fewer messages never has room for it
    # (test_a_group_of_more_rows_than_its_stream_keeps_is_refused).
    if 0 < state.max_msgs < len(rows):
        most = f"stream {state.name} keeps {state.max_msgs:,} at most"
        return f"it has {len(rows):,} rows, and {most}"
    around = _AROUND_IN_MEMORY if state.storage == "memory" else _AROUND_IN_FILE
    if len(rows) == 1:
        size = int(flight.frames.size[index]) + len(rows[0].raw_subject) + around
    else:
        size = sum(len(row.raw_subject) + len(row.lines) + len(row.data) + around for row in rows)
    if not 0 < room < size:
        return None
    return f"it takes {size:,} bytes in stream {state.name}, and {owner} keeps {room:,} at most"
