"""What the driver decides for a query: where it starts, how far a micro-batch goes, and which ranges it is made of.

Knows nothing of Spark's classes: offsets come and go as `Offset`, limits as a yes or no. `reader.py` is the shell that
Spark talks to. State that lives here (what was verified, what was seen to match nothing, since when messages wait) is
only ever a short cut: a restarted driver plans the same batch from the same two offsets.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from spark_jetstream.connection import Connection
from spark_jetstream.errors import OptionError
from spark_jetstream.options import SourceOptions
from spark_jetstream.source.offsets import Offset, StreamPosition
from spark_jetstream.source.plan import (
    CachedProbe,
    admit,
    bytes_to_messages,
    check_continuity,
    earliest_position,
    idle_position,
    latest_position,
    limit_end,
    ranges_between,
    share,
    split,
)
from spark_jetstream.source.view import StreamView, refuse_work_queue
from spark_jetstream.streams import SequenceRange, StreamState, rfc3339

log = logging.getLogger(__name__)

_CLOCK_SKEW = 5_000_000_000  # ns that the clocks of the servers of a cluster may differ


class Driver:
    """Plans one query. `connect(patience)` gives the connection; raises what it, the server and the options say."""

    def __init__(
        self,
        options: SourceOptions,
        connect: Callable[[float], Connection],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options
        self._connect = connect
        self._clock = clock
        self._met = False
        self._views = {
            name: StreamView(self._connection, name, options.subjects, self._patience) for name in options.streams
        }
        self._verified: set[str] = set()
        self._known = (0, 0)
        self._warned: set[str] = set()
        self._seen: dict[tuple[str, str], int] = {}
        self._target: Offset | None = None
        self._waiting_since: float | None = None

    def _patience(self) -> float:
        """Seconds to try again: a server never met yet is more likely the wrong one than one that restarts."""
        connection = self.options.connection
        return connection.retry_timeout if self._met else min(connection.connect_timeout, connection.retry_timeout)

    def _connection(self) -> Connection:
        connection = self._connect(self._patience())
        if self._known != (id(connection), connection.reconnects):
            # A server that went away may have come back with a shorter stream: look at the last message again.
            self._known = (id(connection), connection.reconnects)
            self._verified.clear()
        return connection

    def _state(self, name: str) -> StreamState:
        state = self._views[name].state()
        self._met = True
        refuse_work_queue(state)
        if state.retention == "interest" and name not in self._warned:
            self._warned.add(name)
            log.warning(
                "stream %s keeps messages only as long as its consumers are interested, and nothing holds them for "
                "this query: those that all other consumers have acknowledged are gone before they are read",
                name,
            )
        return state

    # Positions

    def initial(self) -> Offset:
        """Where the query starts, by `startingTimestamp` or `startingOffsets`."""
        return Offset({name: self._starting_position(name, self._state(name)) for name in self._views})

    def _starting_position(self, name: str, state: StreamState) -> StreamPosition:
        options = self.options
        if options.starting_timestamp is not None:
            ahead = options.starting_timestamp - max(state.server_time, state.last_timestamp)
            if options.streaming and state.server_time and ahead > _CLOCK_SKEW:
                raise OptionError(
                    f"startingTimestamp lies in the future: the server's clock shows {rfc3339(state.server_time)}",
                    option="startingTimestamp",
                )
            found = self._views[name].first_after(options.starting_timestamp)
            return latest_position(state) if found is None else StreamPosition(found[0], state.created)
        starting = options.starting_offsets
        if isinstance(starting, str):
            return earliest_position(state) if starting == "earliest" else latest_position(state)
        sequence = dict(starting)[name]
        if sequence > max(state.last_seq + 1, state.first_kept):
            raise OptionError(
                f"startingOffsets begins stream {name} at sequence {sequence}, but its last message has sequence "
                f"{state.last_seq}",
                option="startingOffsets",
            )
        if sequence < state.first_kept:
            said = (
                f"startingOffsets begins stream {name} at sequence {sequence}, but the first message kept has sequence "
                f"{state.first_kept}"
            )
            if options.fail_on_data_loss:
                raise OptionError(f"{said}; set failOnDataLoss to false to begin there", option="startingOffsets")
            log.warning("%s: beginning there", said)
            return earliest_position(state)
        return StreamPosition(sequence, state.created)

    def _ending_position(self, name: str, state: StreamState, start: StreamPosition) -> StreamPosition:
        options = self.options
        if options.ending_timestamp is not None:
            found = self._views[name].first_after(options.ending_timestamp)
            end = latest_position(state).next if found is None else found[0]
            return StreamPosition(max(start.next, end), state.created)
        ending = options.ending_offsets
        if isinstance(ending, str):
            return latest_position(state)
        sequence = dict(ending)[name]
        if sequence > state.last_seq + 1:
            raise OptionError(
                f"endingOffsets ends stream {name} before sequence {sequence}, but its last message has sequence "
                f"{state.last_seq}",
                option="endingOffsets",
            )
        if sequence < start.next:
            raise OptionError(
                f"endingOffsets ends stream {name} before sequence {sequence}, but reading starts at sequence "
                f"{start.next}",
                option="endingOffsets",
            )
        return StreamPosition(sequence, state.created)

    # Streaming

    def prepare_available_now(self) -> None:
        """Remember what is there now: `Trigger.AvailableNow` reads up to here."""
        self._target = Offset({name: self._last_matching(name, self._state(name)) for name in self._views})

    def report_latest(self) -> Offset:
        """The end of each stream as the server knows it, for the query's progress."""
        return Offset({name: latest_position(self._state(name)) for name in self._views})

    def latest(self, start: Offset | None, *, limited: bool) -> Offset:
        """The end of the next micro-batch: `start` itself when there is nothing to read (yet).

        With `limited` the options per trigger apply. A `start` of None (Spark 4.0 and 4.1 do not say it, and ask
        for the first end before the start) reads everything there is.
        """
        if start is None:
            # Behind whatever was reached before: an offset must never go back.
            return self.report_latest()
        states = {name: self._state(name) for name in self._views}
        known = {name: self._continued(name, start, states[name]) for name in self._views}
        ends = {name: self._end(name, known[name], states[name]) for name in self._views}
        backlogs = {name: self._backlog(name, known[name], ends[name], states[name]) for name in self._views}
        moved = {name: position for name, position in known.items() if position != start.streams.get(name)}
        available = sum(backlogs.values())
        if moved or not self._admitted(available, limited):
            idle = {name: ends[name] for name in self._views if not backlogs[name] and ends[name] != known[name]}
            return Offset({**known, **({} if moved else idle)})
        self._waiting_since = None
        if limited:
            ends = self._within_limits(known, ends, backlogs, states)
        return Offset(ends)

    def _continued(self, name: str, start: Offset, state: StreamState) -> StreamPosition:
        """The position of `start` if the stream still goes on there; where to go on otherwise."""
        position = start.streams.get(name)
        if position is None:
            return self._starting_position(name, state)
        return self._checked(name, position, state)

    def _checked(self, name: str, position: StreamPosition, state: StreamState) -> StreamPosition:
        view = self._views[name]
        reread = resume = None
        if position.created == state.created and position.last_timestamp:
            if name not in self._verified and state.first_seq < position.next <= state.last_seq + 1:
                found = view.peek(position.next - 1)
                reread = found[1] if found is not None and found[0] == position.next - 1 else None
            if state.last_seq < position.next - 1 or (reread is not None and reread != position.last_timestamp):
                after = view.first_after(position.last_timestamp + 1)
                resume = None if after is None else after[0]
        going_on, missing = check_continuity(
            position,
            state,
            fail=self.options.fail_on_data_loss,
            filtered=bool(self.options.subjects),
            reread=reread,
            resume=resume,
            seen=self._seen_up_to(state),
        )
        if missing is not None:
            log.warning("%s", missing)
        self._verified.add(name)
        return going_on

    def _last_matching(self, name: str, state: StreamState) -> StreamPosition:
        """The position behind the last message that matches, so that other traffic makes no empty batches."""
        if not self.options.subjects:
            return latest_position(state)
        found = self._views[name].last()
        if found is None:
            return earliest_position(state)
        return StreamPosition(found[0] + 1, state.created, found[1])

    def _end(self, name: str, position: StreamPosition, state: StreamState) -> StreamPosition:
        """How far the stream could be read now; never before `position`."""
        if self._target is not None:
            target = self._target.streams[name]
            behind = target.created != position.created or target.next <= position.next
            return position if behind else target
        if state.last_seq < max(position.next, self._seen_up_to(state)):
            return position
        end = self._last_matching(name, state)
        if end.next > position.next:
            return end
        self._seen[name, state.created] = state.last_seq + 1
        return idle_position(position, state) or position

    def _seen_up_to(self, state: StreamState) -> int:
        """Below this sequence nothing that was not read matches; 0 when not known, or when the tail was lost since."""
        seen = self._seen.get((state.name, state.created), 0)
        return seen if seen <= state.last_seq + 1 else 0

    def _backlog(self, name: str, position: StreamPosition, end: StreamPosition, state: StreamState) -> int:
        """How many messages wait; only as exact as the limits need it."""
        options = self.options
        if end.next <= position.next:
            return 0
        first = max(position.next, state.first_kept)
        counted = options.max_messages_per_trigger or options.max_bytes_per_trigger or options.min_messages_per_trigger
        if self.options.subjects and end.next == state.last_seq + 1 and self._seen_up_to(state) == end.next:
            return 0
        if not counted or not (options.subjects or state.num_deleted):
            return max(0, end.next - first)
        # What is published meanwhile counts in the second and third answer: half of it came before the second.
        view = self._views[name]
        before, waiting, after = view.pending(end.next), view.pending(first), view.pending(end.next)
        return max(0, waiting - (before + after) // 2)

    def _admitted(self, available: int, limited: bool) -> bool:
        if available <= 0:
            self._waiting_since = None
            return False
        if self._waiting_since is None:
            self._waiting_since = self._clock()
        return admit(
            available,
            self.options.min_messages_per_trigger,
            self._clock() - self._waiting_since,
            self.options.max_trigger_delay,
            available_now=self._target is not None or not limited,
        )

    def _within_limits(
        self,
        known: dict[str, StreamPosition],
        ends: dict[str, StreamPosition],
        backlogs: dict[str, int],
        states: dict[str, StreamState],
    ) -> dict[str, StreamPosition]:
        options = self.options
        if not (options.max_messages_per_trigger or options.max_bytes_per_trigger):
            return ends
        shares = share(options.max_messages_per_trigger or sum(backlogs.values()), backlogs)
        if options.max_bytes_per_trigger:
            in_bytes = share(
                options.max_bytes_per_trigger,
                {name: self._bytes(backlogs[name], states[name]) for name in ends},
            )
            for name in ends:
                allowed = bytes_to_messages(in_bytes[name], states[name]) if in_bytes[name] else 0
                shares[name] = min(shares[name], allowed)
        limited: dict[str, StreamPosition] = {}
        for name, end in ends.items():
            if shares[name] == 0 or backlogs[name] <= shares[name]:
                limited[name] = end if backlogs[name] <= shares[name] else known[name]
                continue
            probe = CachedProbe(self._views[name])
            cut = limit_end(known[name].next, end.next, shares[name], probe, backlogs[name])
            limited[name] = end if cut.end == end.next else StreamPosition(cut.end, end.created, cut.last_timestamp)
        return limited

    @staticmethod
    def _bytes(messages: int, state: StreamState) -> int:
        return messages * state.bytes // state.messages if state.messages else messages

    # Ranges

    def ranges(
        self, start: Offset, end: Offset, states: Mapping[str, StreamState] | None = None
    ) -> list[SequenceRange]:
        """The tasks of a micro-batch: what lies between two offsets, the same messages whenever it is planned.

        `states` are those the offsets were made from, if that was just now; they are asked for otherwise.
        """
        pieces: list[SequenceRange] = []
        for whole in ranges_between(start, end, self.options.subjects):
            if whole.stream not in self._views:
                raise OptionError(
                    f"the checkpoint has a batch with stream {whole.stream}, which the option stream does not name",
                    option="stream",
                )
            state = self._state(whole.stream) if states is None else states[whole.stream]
            position = start.streams[whole.stream]
            if position.created == end.streams[whole.stream].created:
                position = self._checked(whole.stream, position, state)
                if position.created != whole.created or position.next >= whole.end:
                    continue
                pieces += self._split(replace(whole, first=max(whole.first, position.next)), state)
            else:
                pieces += self._split(whole, state)
        return pieces

    def _split(self, whole: SequenceRange, state: StreamState) -> list[SequenceRange]:
        options = self.options
        dense = not whole.subjects and state.num_deleted == 0 and whole.first >= state.first_kept
        dense = dense and whole.end <= state.last_seq + 1
        pieces = split(
            whole,
            max_messages=options.max_messages_per_partition,
            min_partitions=options.min_partitions,
            probe=None if dense else self._views[whole.stream],
            contiguous=dense,
        )
        # Messages that give way to newer ones on their subject are not lost: their number promises nothing.
        return [replace(piece, count=None) for piece in pieces] if state.max_msgs_per_subject > 0 else pieces

    def batch_ranges(self) -> list[SequenceRange]:
        """The tasks of a batch read."""
        states = {name: self._state(name) for name in self._views}
        start = Offset({name: self._starting_position(name, state) for name, state in states.items()})
        end = Offset({name: self._ending_position(name, state, start.streams[name]) for name, state in states.items()})
        return self.ranges(start, end, states)
