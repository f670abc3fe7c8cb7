"""The current table of a bucket: the latest message of each subject, each subject exactly once.

Nothing stops others from writing during the read, and a subject that is written again loses the message that was to be
read. So a read has two parts. First what was there when it began, without what was overwritten before its turn. Then
everything stored since, up to a moment at which the stream held nothing more, and of that only subjects that did not
come yet. A subject that was there all the time comes once, in one of the two, by a message that was its latest at some
time during the read.

- Where each subject has one message only (`max_msgs_per_subject` 1), what was there is a plain range of sequences: it
  is read on from where an outage stopped it. Otherwise it is the list of a consumer that delivers `last_per_subject`.
- Subjects that came are remembered by hashes (`seen.py`): eight bytes of memory for each. Nothing else grows.
- A bucket that is deleted, or created again, is an error, whatever `failOnDataLoss` says: half a table is none.
- Where the stream ends a consumer says, however fast others write. With Direct Get an end is only known when nothing
  was overwritten for a moment: of a bucket with hot keys that never happens, and the read fails instead of guessing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from spark_jetstream import jsapi
from spark_jetstream.columns import Messages
from spark_jetstream.connection import Connection
from spark_jetstream.deadline import Deadline
from spark_jetstream.direct import read_direct
from spark_jetstream.errors import DataLossError, OptionError, OutageError, StreamNotFound
from spark_jetstream.latest import LEAST_BATCH, FollowingReader, LatestReader, StretchReader, followed
from spark_jetstream.lookup import next_message
from spark_jetstream.merging import Merged
from spark_jetstream.pool import retrying
from spark_jetstream.pulling import PullSettings
from spark_jetstream.seen import Seen, subject_hashes
from spark_jetstream.streams import SequenceRange, StreamState, stream_state


@dataclass(frozen=True)
class TablePart:
    """The latest message of each subject that one of the filters `subjects` matches (empty: of all).

    `created` is the stream's creation time as the server prints it. `direct`: read with Direct Get, not with consumers.
    Plain data that pickles.
    """

    stream: str
    created: str
    subjects: tuple[str, ...] = ()
    direct: bool = False


def read_table(
    connect: Callable[[float], Connection], part: TablePart, settings: PullSettings, label: str
) -> Iterator[Messages]:
    """The messages of `part`, deletions and purges included; runs in stream order, the later part behind the first.

    `connect(patience)` gives the connection, waiting up to so many seconds for it; `label` begins the consumers' names.
    Holds eight bytes of memory for each subject, beside a run of messages. Raises `DataLossError` when the stream is
    another one than that of `part`, `OptionError` (readWith) where Direct Get cannot tell the latest message of a
    subject, `OutageError`, and errors that no retry can mend as they are.
    """
    try:
        yield from _Table(connect, part, replace(settings, fail_on_data_loss=True), label).read()
    except DataLossError:
        raise DataLossError(
            f"stream {part.stream}, created at {part.created}, was deleted or created again while the latest messages "
            "of its subjects were read; read it again"
        ) from None


def check_direct(state: StreamState) -> None:
    """Raises `OptionError` when the latest messages of the stream's subjects cannot be had by Direct Get."""
    if state.max_msgs_per_subject != 1:
        raise OptionError(
            f"option readWith cannot be direct for the current table of {state.name}, which keeps more than one "
            "revision of a key: set readWith to consumer, or read all revisions with history=true",
            option="readWith",
        )


class _Table:
    def __init__(
        self, connect: Callable[[float], Connection], part: TablePart, settings: PullSettings, label: str
    ) -> None:
        self.connect = connect
        self.part = part
        self.settings = settings
        self.label = label

    def read(self) -> Iterator[Messages]:
        begun = time.monotonic()
        seen = Seen()
        state, replicas = self._look()
        whole = self._range(state.first_kept, max(state.last_seq + 1, state.first_kept))
        last = whole.first - 1
        for messages in self._present(whole, state, replicas):
            seen.add(subject_hashes(messages.subjects()))
            last = int(messages.sequences[-1])
            yield messages
        # Who needs longer for what was written meanwhile than for everything before it is slower than the writers.
        patience = Deadline(time.monotonic() - begun + self.settings.retry_timeout)
        for messages in self._stored_since(whole.end if self.part.direct else last + 1):
            if patience.expired:
                raise OutageError(
                    f"stream {self.part.stream} was written to faster than it could be read: what was stored during "
                    f"the read of its latest messages took more than {patience.seconds:.3g} s (option retryTimeout; "
                    "readWith=consumer and a larger fetchBatch are faster)"
                )
            rows = seen.take_new(subject_hashes(messages.subjects()))
            if len(rows):
                yield Merged((messages,), rows, messages.sequences[rows])

    def _present(self, whole: SequenceRange, state: StreamState, replicas: int) -> Iterator[Messages]:
        """What was there, in stream order, each subject once at most."""
        if self.part.direct:
            check_direct(state)
            return read_direct(self.connect, whole, self.settings, self.label)
        if state.max_msgs_per_subject == 1:
            return StretchReader(
                self.connect, whole, self.settings, self.label, replicas=replicas, known=state.last_seq
            ).read()
        whole = replace(whole, subjects=whole.subjects or (">",))
        return LatestReader(self.connect, whole, self.settings, self.label).read()

    def _stored_since(self, first: int) -> Iterator[Messages]:
        """All messages from a sequence on, up to a moment when there were no more."""
        if self.part.direct:
            yield from self._stored_since_by_direct_get(first)
            return
        state, replicas = self._look()
        yield from FollowingReader(
            self.connect,
            followed(self._range(first, first)),
            self.settings,
            self.label,
            replicas=replicas,
            known=state.last_seq,
        ).read()

    def _stored_since_by_direct_get(self, first: int) -> Iterator[Messages]:
        # Range by range: done when none of the messages of one had gone, or when the leader knows of none behind it.
        settings = replace(self.settings, batch=max(self.settings.batch, LEAST_BATCH))
        while True:
            end = self._look()[0].last_seq + 1
            if end <= first:
                return
            count = 0
            for messages in read_direct(self.connect, self._range(first, end), settings, self.label):
                count += len(messages)
                yield messages
            if count == end - first or not self._any_from(end):
                return
            first = end

    def _any_from(self, sequence: int) -> bool:
        """Whether the leader has a message that matches from there on."""
        deadline = Deadline(self.settings.retry_timeout)

        def ask() -> bool:
            connection = self.connect(deadline.left)
            filters = self.part.subjects or (">",)
            return any(next_message(connection, self.part.stream, each, sequence) is not None for each in filters)

        return retrying(ask, self.settings.retry_timeout)

    def _look(self) -> tuple[StreamState, int]:
        """The stream's state and the number of its replicas. `DataLossError` if it is another one."""
        name = self.part.stream
        context = f"look at stream {name}"
        deadline = Deadline(self.settings.retry_timeout)

        def ask() -> tuple[StreamState, int]:
            connection = self.connect(deadline.left)
            body = connection.ask(jsapi.stream_info(connection.prefix, name), b"", context=context)
            return stream_state(body, context), int(jsapi.field(body, "config.num_replicas", int, context))

        try:
            state, replicas = retrying(ask, self.settings.retry_timeout)
        except StreamNotFound:
            raise DataLossError(f"stream {name} was deleted") from None
        if state.created != self.part.created:
            raise DataLossError(f"stream {name} was deleted and created again at {state.created}")
        return state, replicas

    def _range(self, first: int, end: int) -> SequenceRange:
        part = self.part
        return SequenceRange(part.stream, first, end, None, part.created, part.subjects, part.direct)


__all__ = ["TablePart", "check_direct", "read_table"]
