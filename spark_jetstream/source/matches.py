"""Planning's memory of one stream: its last matching message, and ranges without a match."""

from __future__ import annotations

from typing import NamedTuple

from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.protocol.units import INT64_MAX
from spark_jetstream.source.offsets import StreamPosition
from spark_jetstream.source.probes import StreamProbe

# Nanoseconds for which it counts that a replica, which may lag, has found nothing.
_DOUBTED = 5_000_000_000


class LastMatch:
    """The last message that matches, looked for once in each state of the stream."""

    def __init__(self) -> None:
        #: The position after the message that was found last; sequence 1 if none was.
        self.position = StreamPosition(1, "none")
        # Creation and end of the stream for which that counts, and until when, by the server's
        # clock.
        self._found_in = ("", 0)
        self._counts_until = 0

    def find(self, state: StreamSummary, probe: StreamProbe) -> StreamPosition:
        """Return the position after the last message that matches; sequence 1 if none does."""
        same_stream = self._found_in == (state.created, state.last_seq)
        if not same_stream or state.server_time >= self._counts_until:
            sequence, stored_at = probe.last() or (0, 0)
            self.position = StreamPosition(sequence + 1, state.created, stored_at)
            self._found_in = (state.created, state.last_seq)
            if probe.certain:
                self._counts_until = INT64_MAX
            else:
                self._counts_until = state.server_time + _DOUBTED
        return self.position

    def forget(self) -> None:
        """Look for the message again, also in the same state."""
        self._found_in = ("", 0)
        self._counts_until = 0


class _UnmatchedRange(NamedTuple):
    """In a stream, created at that time, nothing matches from `first` to below `end`."""

    created: str
    first: int
    end: int


class UnmatchedRanges:
    """Where nothing matches: after the position, and after the end that was found last."""

    def __init__(self) -> None:
        self._ranges: list[_UnmatchedRange] = []

    def replace(self, created: str, first: int, end: int) -> None:
        """Forget all ranges but one, of the stream that was created at that time."""
        self._ranges = [_UnmatchedRange(created, first, end)]

    def add(self, position: StreamPosition, last_match: int, state: StreamSummary) -> None:
        """Add the end of the stream, behind the sequence `last_match`.

        One range that covers `position` stays, because a batch that ends at `last_match` still
        begins at the position. A range stays true after its messages are gone, also when the whole
        batch is gone.
        """
        lasting = max(last_match, state.first_kept + 1)
        kept: list[_UnmatchedRange] = []
        for known in self._ranges:
            if known.first <= position.next and known.end < lasting:
                kept = [known]
        end = _UnmatchedRange(state.created, last_match, max(last_match, state.last_seq + 1))
        self._ranges = [*kept, end]

    def up_to(self, position: StreamPosition, state: StreamSummary) -> int:
        """Return `Evidence.matched_up_to` of a position; 0 when the tail was lost since."""
        up_to = 0
        for known in self._ranges:
            covers = known.created == state.created and known.first <= position.next
            if covers and known.end <= state.last_seq + 1:
                up_to = max(up_to, known.end)
        return up_to
