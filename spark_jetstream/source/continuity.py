"""Finds out whether the stream still holds the messages that follow an offset. Pure.

The stream may have been deleted and created again, may have lost its tail, and may have removed
unread messages. docs/data-loss.md says what each means; tests/source/test_gaps.py produces each
case.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.protocol.units import parse_time, rfc3339
from spark_jetstream.source.offsets import StreamPosition

_TAIL_CAUSE = "likely a power failure before the server flushed to disk, or a restore from a backup"


class Removal(enum.Enum):
    """Whether the limits of a stream can have removed a message from a position on."""

    EXCLUDED = "no limit reaches that far"
    UNKNOWN = "a limit can have reached that far before"
    POSSIBLE = "a limit reaches that far now"


@dataclass(frozen=True)
class Evidence:
    """The facts about the messages around a position, besides the state of the stream.

    ``reread`` is the timestamp (ns) that the message at sequence ``next - 1`` has now; None when it
    was not looked up, or was not found. ``later`` is sequence and timestamp of the first message
    that was stored after the position's ``last_timestamp``; None when it was not looked up, or
    there is none. ``matched_up_to``: below this sequence the query has read everything that matches
    its filter; 0 when that is not known. ``held`` is `Progress.holds` of the position: only the
    stream's limits can have removed a message that the query must read.
    """

    reread: int | None = None
    later: tuple[int, int] | None = None
    matched_up_to: int = 0
    held: bool = False


def earliest_position(state: StreamSummary) -> StreamPosition:
    """Return the position before the first message that the stream holds.

    Before the next one that it stores, when it is empty.
    """
    return _position_at(state, state.first_kept)


def latest_position(state: StreamSummary) -> StreamPosition:
    """Return the position after the last message of the stream, which no filter need match."""
    return _position_at(state, max(state.last_seq + 1, state.first_kept))


def idle_position(
    position: StreamPosition, state: StreamSummary, *, held: bool
) -> StreamPosition | None:
    """Return where to move a query whose filter matched nothing for long; None without a need.

    If nothing matches for longer than the stream keeps messages, `check_continuity` can no longer
    tell a quiet subject from a loss. So the position moves to the end of the stream before that:

    - once it is in the older half of a stream whose messages are removed by limits or by
      acknowledgements;
    - with a consumer that holds what matches (``held``, as in `Evidence`), once limits have come
      half as far.

    The caller must have found no match from ``position.next`` on, after it fetched ``state``.
    """
    if held and state.retention != "limits":
        far = _removal(position, state, share=2) is Removal.POSSIBLE
    else:
        far = _removes_old(state) and _is_in_older_half(position, state)
    end = latest_position(state)
    return end if far and end != position else None


def _removes_old(state: StreamSummary) -> bool:
    """Whether the stream removes old messages, by a limit or when they are acknowledged."""
    if state.retention != "limits" or state.expires:
        return True
    return state.max_msgs > 0 or state.max_bytes > 0


def _is_in_older_half(position: StreamPosition, state: StreamSummary) -> bool:
    """Whether a position is in the older half of the sequences that the stream spans."""
    spanned = state.last_seq + 1 - state.first_kept
    return position.next - state.first_kept < spanned // 2


def contradicts(position: StreamPosition, state: StreamSummary) -> bool:
    """Whether the state is of another stream, or ends before the position.

    Either there is a loss, or a former leader has answered.
    """
    return position.created != state.created or state.last_seq < position.next - 1


def check_continuity(
    position: StreamPosition,
    state: StreamSummary,
    evidence: Evidence,
    *,
    filtered: bool,
    bucket: bool = False,
) -> tuple[StreamPosition, str | None]:
    """Compare a position with the stream as it is now, and with `evidence`.

    ``filtered``: the query has subject filters. ``bucket``: the stream is a bucket (ADR-8
    "JetStream based Key-Value Stores", ADR-20 "JetStream based Object Stores"). Its expired and
    purged revisions are no loss, unless nothing at all is left of a bucket without TTL. A state
    that `contradicts` the position must be that of the stream's leader.

    Returns the position to continue at, and a sentence if something is missing. Without a loss it
    is the same position, with a sentence only where a loss cannot be excluded. After a loss it is

    - of a stream created again: its first kept message;
    - of one that lost its tail: the first message stored since, else ``last_seq + 1``, or
      ``next - 1`` if only ``evidence.reread`` shows the loss;
    - of one whose next messages are gone: its first kept message.

    In the first two cases the position may go back (see `ranges.ranges_between`).
    """
    if position.created != state.created:
        what = (
            f"stream {state.name} was deleted and created again (the offset belongs to the one "
            f"created at {position.created}, this one was created at {state.created}); messages "
            f"of the old one from sequence {position.next} on cannot be read"
        )
        return _lost(earliest_position(state), what, filtered=filtered)
    tail = _lost_tail(position, state, evidence)
    if tail is not None:
        what, latest = tail
        sequence = latest if evidence.later is None else min(evidence.later[0], latest)
        following = _position_at(state, max(sequence, state.first_kept))
        return _lost(following, f"{what} ({_TAIL_CAUSE})", filtered=filtered)
    if max(position.next, evidence.matched_up_to) >= state.first_seq:
        return position, None
    if _goes_by_design(position, state, bucket=bucket):
        return position, None
    return _gone(position, state, evidence, filtered=filtered)


def _gone(
    position: StreamPosition, state: StreamSummary, evidence: Evidence, *, filtered: bool
) -> tuple[StreamPosition, str | None]:
    """Return what `check_continuity` does where the messages after a position are gone."""
    last = state.first_seq - 1
    which = f"messages {position.next} to {last}"
    if last == position.next:
        which = f"message {position.next}"
    # The stream may then have removed only messages that the query need not read.
    selective = filtered or state.replaces
    if selective and evidence.held and state.retention != "limits":
        removal = _removal(position, state)
        if removal is Removal.EXCLUDED:
            return position, None
        if removal is Removal.UNKNOWN:
            return position, (
                f"{which} of stream {state.name} are gone. The consumer of this query (option "
                "durable) held the matching ones, and they were not purged; whether a limit of the "
                f"stream ({_limits(state)}) removed any cannot be known; reading goes on"
            )
    what = f"{which} of stream {state.name} went before being read ({_cause(state)})"
    return _lost(earliest_position(state), what, filtered=filtered)


def _lost_tail(
    position: StreamPosition, state: StreamSummary, evidence: Evidence
) -> tuple[str, int] | None:
    """Return what shows that the stream lost its tail, and the last sequence to continue at.

    None if nothing does.
    """
    name = state.name
    last = position.next - 1
    read_at = position.last_timestamp
    if state.last_seq < last:
        what = (
            f"stream {name} lost its tail: it was read up to sequence {last}, and now ends at "
            f"{state.last_seq}"
        )
        return what, state.last_seq + 1
    if read_at in (0, evidence.reread):
        # The same message is there. An earlier one may still be newer, where clocks of leaders
        # differ.
        return None
    reused = (
        f"stream {name} lost its tail and gave its sequences to other messages: sequence {last} "
        "was read with"
    )
    if evidence.reread is not None:
        # The message at next-1 is another one, which was not read yet.
        what = f"{reused} timestamp {read_at} ns, and has timestamp {evidence.reread} ns now"
        return what, last
    if evidence.later is None:
        return None
    sequence, stored_at = evidence.later
    # If the stream ends with an older message, its clock was set back, and times say nothing about
    # sequences.
    if sequence <= last and stored_at <= state.last_timestamp:
        what = (
            f"{reused} time {rfc3339(read_at)}, and sequence {sequence} has time "
            f"{rfc3339(stored_at)}"
        )
        return what, sequence
    return None


def _goes_by_design(position: StreamPosition, state: StreamSummary, *, bucket: bool) -> bool:
    """Whether the messages before the first one are no loss: newer ones replaced them."""
    if state.messages == 0:
        # Superseding never takes the last message of a stream: one that is empty was purged, or all
        # of it expired.
        return bucket and state.expires
    if bucket:
        return True
    replaced = state.retention == "limits" and state.replaces
    return replaced and _removal(position, state) is Removal.EXCLUDED


def _removal(position: StreamPosition, state: StreamSummary, share: int = 1) -> Removal:
    """Return whether the limits of the stream can have removed a message from a position on.

    ``share`` is the factor by which the limits are taken to be tighter. docs/data-loss.md gives the
    reasons ("Limits").
    """
    if _reaches_by_age(position, state, share):
        return Removal.POSSIBLE
    reached = Removal.EXCLUDED
    if state.allow_msg_ttl:
        reached = Removal.UNKNOWN
    if not state.evicts:
        return reached
    # The limits that can have reached the position; each did so only while the stream was full.
    stored = state.last_seq + 1 - position.next
    if 0 < state.max_msgs < stored * share:
        reached = Removal.UNKNOWN
        if state.messages * share >= state.max_msgs:
            return Removal.POSSIBLE
    if state.max_bytes > 0:
        reached = Removal.UNKNOWN
        # By bytes a stream counts as full from nine tenths on.
        if state.bytes * share * 10 >= state.max_bytes * 9:
            return Removal.POSSIBLE
    return reached


def _reaches_by_age(position: StreamPosition, state: StreamSummary, share: int) -> bool:
    """Whether a message from a position on can be older than the stream keeps messages."""
    if state.max_age <= 0:
        return False
    # The server did not say its time.
    if state.server_time == 0:
        return True
    oldest = position.last_timestamp or parse_time(state.created)
    return (state.server_time - oldest) * share >= state.max_age


def _limits(state: StreamSummary) -> str:
    limits = {
        "max_age": state.max_age > 0,
        "max_msgs": state.evicts and state.max_msgs > 0,
        "max_bytes": state.evicts and state.max_bytes > 0,
        "allow_msg_ttl": state.allow_msg_ttl,
    }
    return ", ".join(name for name, given in limits.items() if given)


def _position_at(state: StreamSummary, sequence: int) -> StreamPosition:
    # The time of the message before the end shows a lost tail before anything was read.
    timestamp = state.last_timestamp if sequence == state.last_seq + 1 else 0
    return StreamPosition(sequence, state.created, timestamp)


def _cause(state: StreamSummary) -> str:
    if state.retention != "limits":
        return (
            f"its retention is {state.retention}: likely acknowledged by its consumers, or purged"
        )
    if _limits(state):
        return "likely expired or pushed out by the limits of the stream, or purged"
    return "likely purged or deleted"


def _lost(position: StreamPosition, what: str, *, filtered: bool) -> tuple[StreamPosition, str]:
    if filtered:
        what += "; it cannot be known whether any of the missing messages matched the filter"
    return position, what
