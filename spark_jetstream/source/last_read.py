"""`LastRead`: whether a stream still has the last message that the query has read of it."""

from __future__ import annotations

from collections.abc import Mapping

from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.source.continuity import Evidence
from spark_jetstream.source.offsets import StreamPosition
from spark_jetstream.source.probes import StreamProbe

# Nanoseconds. The server skips what no consumer of an interest stream wants, and takes the time of
# that, with which the stream then ends, from a clock of tenths of a second (seen with 2.15.1:
# server/filestore.go, `SkipMsg`). So what was stored before may have a later time:
# test_the_time_of_a_skipped_message.
_COARSE = 300_000_000


class LastRead:
    """The last message read of one stream, which is looked up before each micro-batch.

    A stream that lost its tail has another message there, or none (docs/data-loss.md). A verified
    message is remembered, so that it is looked up only where it may have changed.
    """

    def __init__(self) -> None:
        # The position whose last message was looked up, and the state of the stream then.
        self._verified: tuple[StreamPosition, StreamSummary] | None = None

    def remember(self, position: StreamPosition, state: StreamSummary) -> None:
        """Remember that in this state the stream has the last message before a position."""
        self._verified = position, state

    def is_due(self, position: StreamPosition, state: StreamSummary, *, planned: bool) -> bool:
        """Whether the stream may have lost the message since it was looked up.

        With `planned` once is enough for each position: its batch was planned after that.
        """
        if position.created != state.created or position.last_timestamp == 0:
            return False
        if _end(state) == (position.next - 1, position.last_timestamp):
            # The state shows it, and there is nothing to read.
            self.remember(position, state)
            return False
        if self._verified is None or state.last_seq < position.next - 1:
            return True
        verified, then = self._verified
        if verified == position and (planned or _end(state) == _end(then)):
            return False
        # Within a term a stream cannot lose its end.
        return not state.term or state.term != then.term

    def will_be_due(self, position: StreamPosition, state: StreamSummary) -> bool:
        """Whether `is_due` will be true of the next state, as after each batch without a term."""
        if state.term or position.last_timestamp == 0:
            return False
        return self._verified is None or self._verified[0] != position


def look_up_last_read(
    probe: StreamProbe,
    state: StreamSummary,
    position: StreamPosition,
    known: Mapping[str, int | None],
) -> Evidence:
    """Return `Evidence.reread` and `Evidence.later` of a position.

    `known` has, by stream, the time of the last message read where it was looked up already, None
    if it is gone.
    """
    sequence = position.next - 1
    reread = known.get(state.name)
    if state.name not in known and state.first_seq <= sequence <= state.last_seq:
        reread = probe.stored_at(sequence)
    if reread == position.last_timestamp:
        return Evidence(reread=reread)
    later = probe.first_of_all_after(position.last_timestamp + 1)
    may_be_skipped = reread is None and sequence <= state.last_seq
    if later is not None and may_be_skipped and state.retention == "interest":
        certain = probe.first_of_all_after(position.last_timestamp + _COARSE)
        if certain is None or certain[0] >= position.next:
            later = None
    return Evidence(reread=reread, later=later)


def _end(state: StreamSummary) -> tuple[int, int]:
    """Return sequence and time of the last message."""
    return state.last_seq, state.last_timestamp
