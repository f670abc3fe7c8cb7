"""`SharedPlanner`: plans a query that takes its messages from a shared consumer (option share).

It has the methods of `planner.Planner` that a streaming reader calls. docs/progress.md has what a
query guarantees, and these rules are behind it:

- The offset has the sequences of the reserved messages. A batch that comes again has what the
  stream still has of them, and never another message.
- The driver fetches the rows once, and the parts carry them: no task can find a message gone.
- A message is acknowledged once Spark says that its batch is in the sink: in `commit`, or in
  `latest`, which begins after a committed batch, and reserves nothing before.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spark_jetstream.client.requests import Connect, Requests
from spark_jetstream.errors import OptionError
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.source.continuity import latest_position
from spark_jetstream.source.kinds.shared import SharedMessages
from spark_jetstream.source.offsets import Offset, StreamPosition
from spark_jetstream.source.positions import check_retention, read_use
from spark_jetstream.source.shared.consumer import WAIT, SharedConsumer
from spark_jetstream.source.shared.held import Held, ack_prefix, plain_prefix
from spark_jetstream.source.shared.keeping import Keeping
from spark_jetstream.source.shared.replay import Replay
from spark_jetstream.source.shared.rows import FetchedRows, SharedRows, StoredRun

log = logging.getLogger(__name__)

_MORE_TRIES = 4  # to take messages that wait, before a query with `Trigger.AvailableNow` ends


@dataclass(frozen=True)
class _Batch:
    """The micro-batch that ends at an offset: its rows, None without any.

    ``read`` are the sequences that this run has seen, and may acknowledge.
    """

    end: Offset
    rows: FetchedRows | None
    read: Sequence[int]


class SharedPlanner:
    """Plans one query. All methods raise what the connection and the server raise, and `OptionError`.

    Rows have the named ``columns``. `latest` waits ``wait`` seconds for the first message. `close`
    ends the thread that keeps messages.
    """

    def __init__(
        self,
        options: SourceOptions,
        connect: Connect,
        columns: Sequence[str],
        *,
        wait: float = WAIT,
    ) -> None:
        self.options = options
        self._columns = columns
        self._kind = SharedMessages(options)
        self._stream = options.streams[0]
        self._requests = requests = Requests(
            connect, options.connection.retry_timeout, first=options.connection.connect_timeout
        )
        self._consumer = SharedConsumer(requests, options, wait)
        self._replay = Replay(requests, self._stream)
        self._keeping = Keeping(connect)
        # The batch that was planned last, and runs or will run.
        self._batch: _Batch | None = None
        # The offset up to which all messages are acknowledged.
        self._acknowledged: Offset | None = None
        # Messages that a query with `Trigger.AvailableNow` may still take; None for any number.
        self._left: int | None = None

    def close(self) -> None:
        """Send no more signs of life for reserved messages."""
        self._keeping.close()

    # Positions

    def initial(self) -> Offset:
        """Return an offset that holds no messages. Raises `OptionError` if a query cannot share."""
        look = self._consumer.look()
        state = self._checked_state()
        begin = StreamPosition(max(1, state.first_kept), state.created)
        held = Held(look.created, plain_prefix(self._stream, self._consumer_name))
        return Offset({self._stream: begin}, held={self._stream: held})

    @property
    def _consumer_name(self) -> str:
        assert self.options.share is not None
        return self.options.share

    def _checked_state(self) -> StreamSummary:
        """Return the state of the stream. Raises `OptionError` if it is no work queue."""
        state = self._requests.stream(self._stream, f"read stream {self._stream} (option stream)")
        check_retention(state, self.options, read_use(self.options))
        return state

    def report_latest(self) -> Offset:
        """Return the end of the stream, for the progress of the query."""
        return Offset({self._stream: latest_position(self._checked_state())})

    def prepare_available_now(self) -> None:
        """Fix how many messages a query with `Trigger.AvailableNow` takes: those of now."""
        look = self._consumer.look()
        self._left = look.undelivered + look.unacknowledged

    # Micro-batches

    def latest(self, start: Offset | None, *, limited: bool) -> Offset:
        """Reserve the messages of the next micro-batch, and return its end.

        Everything before ``start`` is in the sink: it is acknowledged first. The result is
        ``start`` itself if there is nothing to read. The limits apply also where they are not
        ``limited``: the driver holds a batch in memory.
        """
        del limited
        if start is None:
            raise OptionError(
                "option share needs Spark 4.2 or newer: an older Spark does not say which messages "
                "are committed; leave the option out, and set durable",
                option="share",
            )
        self._resume(start)
        # A reservation that no batch has run must stay as it is: its offset may be written.
        if self._batch is not None and self._batch.end != start:
            return self._batch.end
        self._acknowledge(start)
        most = self.options.shared_messages
        if self._left is not None:
            most = min(most, self._left)
        if not most:
            return start
        end = self._reserve(start, most)
        if self._left is None:
            return end
        # Without messages the query ends, and a busy server may have brought none in time.
        for _ in range(_MORE_TRIES):
            # A consumer that is full, or paused, delivers none.
            if end != start or not self._consumer.look().undelivered:
                break
            end = self._reserve(start, most)
        return end

    def _reserve(self, start: Offset, most: int) -> Offset:
        """Return the end of a batch of messages that are taken now, or ``start`` without any."""
        look = self._consumer.look()
        runs, delivered = self._consumer.take(most)
        if not runs:
            return start
        state = self._checked_state()
        # The consumer goes with its stream: if it is still the same one, so is the stream.
        if self._consumer.look().created != look.created:
            log.warning("stream %s or its consumer was created again meanwhile", self._stream)
            return start
        rows = self._rows(runs)
        sequences = rows.sequences.tolist()
        held = Held(look.created, ack_prefix(runs[0].acks.first()), tuple(sequences))
        time = max(_time_of(run, sequences[-1]) for run in runs)
        position = StreamPosition(sequences[-1] + 1, state.created, time)
        end = Offset({self._stream: position}, held={self._stream: held})
        self._batch = _Batch(end, rows, sequences)
        self._keeping.keep(held.ack_subjects(sequences), look.lapse, delivered)
        if self._left is not None:
            self._left = max(0, self._left - len(sequences))
        return end

    def ranges(self, start: Offset, end: Offset) -> list[SharedRows]:
        """Return the tasks of the micro-batch between two offsets, with their rows.

        A batch that another run of the query has reserved has the rows that the stream still has.
        """
        self._resume(start)
        self._resume(end)
        if start == end:
            return []
        if self._batch is None or self._batch.end != end:
            self._batch = self._again(end)
        rows = self._batch.rows
        if rows is None:
            return []
        # All rows, also with sequences that the start holds: a stream that was created again has
        # other messages there.
        options = self.options
        return rows.parts(options.min_partitions, options.max_messages_per_partition)

    def _again(self, end: Offset) -> _Batch:
        """Return a batch of another run with the messages that the stream still has."""
        position, held = end.streams[self._stream], end.held[self._stream]
        fault = self._requests.call(
            lambda connection: self._replay.fault(connection, position, held)
        )
        if fault:
            log.error("%s: the micro-batch runs without its messages", fault)
            return _Batch(end, None, ())
        look = self._consumer.look()
        # Before the read, which takes a while: the time of the messages may be almost up.
        self._keeping.keep(held.ack_subjects(held.sequences), look.lapse)
        found = self._replay.read(held)
        gone = len(held.sequences) - len(found)
        if gone:
            log.warning(
                "%d of %d messages of a micro-batch are no longer in stream %s: other clients of "
                "consumer %s have acknowledged them, or the stream's limits have removed them; the "
                "batch runs without them",
                gone,
                len(held.sequences),
                self._stream,
                self._consumer_name,
            )
        if not found:
            return _Batch(end, None, ())
        sequences = [each.sequence for each in found]
        self._keeping.keep(held.ack_subjects(sequences), look.lapse)
        return _Batch(end, self._rows([StoredRun(found)]), sequences)

    def _rows(self, runs: Sequence[MessageRun]) -> FetchedRows:
        batches = [self._kind.batch(run, self._stream, self._columns) for run in runs]
        return FetchedRows.of([run.sequences for run in runs], batches)

    # Acknowledgements

    def commit(self, end: Offset) -> None:
        """Acknowledge the messages of the batch that ends here: it is in the sink."""
        self._resume(end)
        self._acknowledge(end)

    def _acknowledge(self, offset: Offset) -> None:
        """Acknowledge the messages that an offset holds, once in a run."""
        if offset == self._acknowledged:
            return
        position, held = offset.streams[self._stream], offset.held[self._stream]
        sequences: Sequence[int] = held.sequences
        if self._batch is not None and self._batch.end == offset:
            # A message that a batch ran without is not acknowledged: another client may have it.
            sequences = self._batch.read
        if sequences:
            fault = self._consumer.acknowledge(
                held,
                sequences,
                lambda connection: self._replay.fault(connection, position, held),
            )
            if fault:
                log.warning("%s: the messages of a micro-batch are not acknowledged", fault)
        self._acknowledged = offset
        if self._batch is None or self._batch.end == offset:
            self._keeping.release()

    def _resume(self, offset: Offset) -> None:
        """Refuse the offset of another query."""
        # A query that has an offset has reached its server before: now it waits for an outage.
        self._requests.first = None
        if not offset.held:
            raise OptionError(
                "the checkpoint is that of a query without option share, which cannot be set "
                "later: start the query with a new checkpoint",
                option="share",
            )
        names = ", ".join(offset.held)
        if names != self._stream:
            raise OptionError(
                f"the checkpoint is of another query: it has {names}, and option stream names "
                f"{self._stream}; correct the option, or start the query with a new checkpoint",
                option="stream",
            )
        name = offset.held[self._stream].name
        if name != self._consumer_name:
            raise OptionError(
                f"the checkpoint is of a query that shares consumer {name}, and option share names "
                f"{self._consumer_name}; correct the option, or start the query with a new "
                "checkpoint",
                option="share",
            )


def _time_of(run: MessageRun, sequence: int) -> int:
    """Return when a message was stored, in ns since the epoch; 0 if the run does not have it."""
    at = np.flatnonzero(run.sequences == sequence)
    return int(run.timestamps()[at[0]]) if len(at) else 0
