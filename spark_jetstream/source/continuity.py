"""Does the stream still hold what the offset says comes next?

Three things can have happened to a stream since the offset was written: it was deleted and created again, it
lost its tail (a power failure before the flush, a restore from a backup) and hands the same sequences out to
other messages, or messages that were never read have gone. None of them shows when one simply reads on.
"""

from __future__ import annotations

from spark_jetstream.errors import DataLossError
from spark_jetstream.source.offsets import StreamPosition
from spark_jetstream.streams import StreamState

_TAIL_CAUSE = "likely a power failure before the server flushed to disk, or a restore from a backup"


def earliest_position(state: StreamState) -> StreamPosition:
    """The position before the first message that the stream holds (or will hold, when it is empty)."""
    return _position_at(state, state.first_kept)


def latest_position(state: StreamState) -> StreamPosition:
    """The position behind the last message of the stream, whether that matches a filter or not."""
    return _position_at(state, max(state.last_seq + 1, state.first_kept))


def idle_position(position: StreamPosition, state: StreamState) -> StreamPosition | None:
    """Where to move a query whose filter matched nothing for long, or None while there is no need.

    The offset of a filtered query stays behind the last message that matched. If nothing matches for longer
    than the stream keeps messages, `check_continuity` can no longer tell a quiet subject from a loss. So once
    the position lies in the older half of a stream whose messages expire, move it to its end: that makes one
    batch without rows in a long time. Call it only when ``pending(position.next)`` was 0 and was asked after
    ``state``.
    """
    expires = state.has_age_or_size_limit or state.retention != "limits"
    if expires and position.next - state.first_kept < (state.last_seq + 1 - state.first_kept) // 2:
        return latest_position(state)
    return None


def check_continuity(
    position: StreamPosition,
    state: StreamState,
    *,
    fail: bool,
    filtered: bool,
    reread: int | None = None,
    resume: int | None = None,
    seen: int = 0,
    bucket: bool = False,
) -> tuple[StreamPosition, str | None]:
    """Compares a position with the stream: where to go on, and a sentence to log if something is missing.

    ``fail`` is ``failOnDataLoss``: a loss raises `DataLossError` instead. ``filtered``: the query has subject
    filters, so that it cannot be known whether any missing message matched.

    ``reread`` is the timestamp (ns) that the message at ``position.next - 1`` has now, None when it was not
    looked up or is gone; look it up when a query starts. ``resume`` is the sequence of the first message
    stored after ``position.last_timestamp``, None when not looked up: it finds the messages that took over
    the sequences of a lost tail. ``seen`` is the caller's memory: up to that sequence (exclusive) it already
    found that nothing matched.

    Without a loss the same position comes back. After one it is

    - of a stream created again: its first kept message;
    - of one that lost its tail: ``resume``, else ``last_seq + 1``, or ``next - 1`` if only ``reread`` gave it
      away;
    - of one whose next messages are gone: its first kept message.

    In the first two cases the position may go back. The batch that notices it ends at the returned position
    and reads nothing of the stream; the next batch starts there (see `plan.ranges_between`).

    On a keyed stream (`StreamState.keyed`) the missing messages were superseded by newer ones: that is no
    loss. ``bucket``: the stream is a bucket (JETSTREAM ADR-8, ADR-20), whose revisions also go by their TTL, and
    by purges that leave a message behind: no loss either, unless nothing at all is left of a bucket without TTL.
    """
    name, next_ = state.name, position.next
    if position.created != state.created:
        what = (
            f"stream {name} was deleted and created again (the offset belongs to the one created at"
            f" {position.created}, this one was created at {state.created}): whatever the old one held"
            f" from sequence {next_} on cannot be read"
        )
        return _lost(earliest_position(state), what, fail=fail, filtered=filtered)
    if state.last_seq < next_ - 1:
        what = (
            f"stream {name} lost its tail: it was read up to sequence {next_ - 1}, and now ends at"
            f" {state.last_seq} ({_TAIL_CAUSE})"
        )
        return _lost(_resumed(state, resume, state.last_seq + 1), what, fail=fail, filtered=filtered)
    if reread is not None and position.last_timestamp > 0 and reread != position.last_timestamp:
        what = (
            f"stream {name} lost its tail and gave its sequences to other messages: sequence {next_ - 1} was"
            f" read with timestamp {position.last_timestamp} ns, and has timestamp {reread} ns now"
            f" ({_TAIL_CAUSE})"
        )
        # The message at next-1 is another one: it was not read yet.
        return _lost(_resumed(state, resume, next_ - 1), what, fail=fail, filtered=filtered)
    # Superseding never takes the last message of a stream: one that is empty was purged, or all of it expired.
    by_design = (state.keyed or bucket) if state.messages > 0 else (bucket and state.expires)
    if max(next_, seen) < state.first_seq and not by_design:
        gone = state.first_seq - 1
        which = f"message {next_}" if gone == next_ else f"messages {next_} to {gone}"
        what = f"{which} of stream {name} went before being read ({_cause(state)})"
        return _lost(earliest_position(state), what, fail=fail, filtered=filtered)
    return position, None


def _position_at(state: StreamState, sequence: int) -> StreamPosition:
    # The message before the end is known; remembering its time lets a lost tail be noticed before anything
    # was read.
    timestamp = state.last_timestamp if sequence == state.last_seq + 1 else 0
    return StreamPosition(sequence, state.created, timestamp)


def _resumed(state: StreamState, resume: int | None, latest: int) -> StreamPosition:
    sequence = latest if resume is None else min(resume, latest)
    return _position_at(state, max(sequence, state.first_kept))


def _cause(state: StreamState) -> str:
    if state.retention != "limits":
        return f"its retention is {state.retention}: likely acknowledged by its consumers, or purged"
    if state.has_age_or_size_limit:
        return "likely expired or pushed out by the limits of the stream, or purged"
    return "likely purged or deleted"


def _lost(position: StreamPosition, what: str, *, fail: bool, filtered: bool) -> tuple[StreamPosition, str | None]:
    if filtered:
        what += "; it cannot be known whether any of the missing messages matched the filter"
    if fail:
        raise DataLossError(f"{what}; set failOnDataLoss=false to go on at sequence {position.next}")
    return position, f"{what}; failOnDataLoss is false, so reading goes on at sequence {position.next}"
