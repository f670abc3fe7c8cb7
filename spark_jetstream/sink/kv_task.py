"""One task of a write to a Key-Value bucket: for each key the last row wins, whatever fails on the way.

- Of a key's rows each is sent only when the one before has its answer. A row that is sent again after a time-out or a
  cut could otherwise be stored after a later row of its key, for good. Rows of different keys are sent as those of a
  stream are, thousands at a time.
- An earlier attempt of the task may have stored rows whose message ids the stream still knows, while it has forgotten
  those of earlier rows: it would store the earlier ones again and drop the later ones as duplicates. A row that turns
  out to be stored before an earlier row of its key is sent once more, without an id.
- A row with expected revision 0 also takes the place of a delete or purge marker, as in the client libraries. One
  whose place a later row of the same task has taken, in an earlier attempt, counts as stored.

The revisions that the keys of a Key-Value bucket have got from one task. Pure.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from spark_jetstream.buckets.kv import WRONG_REVISION
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import retrying
from spark_jetstream.errors import JetStreamError
from spark_jetstream.options import SinkOptions
from spark_jetstream.sink.encode import own_lines, tails
from spark_jetstream.sink.kv import BucketColumns, KeyBucket, expected_revision, expecting, is_marker, rounds, rows_of
from spark_jetstream.sink.report import TaskReport
from spark_jetstream.sink.rows import IntArray, Rows
from spark_jetstream.sink.task import TaskWriter, WriteTask
from spark_jetstream.sink.window import InFlight, RefusedRow, Totals
from spark_jetstream.streams.lookup import StoredMessage, last_message

_FIRST_SLOTS = 1 << 12


class Revisions:
    """The latest revision that a task has got for each of its keys: one flat table of hashes, at most half full.

    Keeps 32 to 64 bytes for each key. Two keys that share 64 bits of hash share their revision.
    """

    def __init__(self) -> None:
        self._hashes: IntArray = np.zeros(_FIRST_SLOTS, np.int64)
        self._revisions: IntArray = np.zeros(_FIRST_SLOTS, np.int64)
        self._count = 0

    def get(self, hashes: IntArray) -> IntArray:
        """The revision of each of these keys, 0 where there is none. Hashes are those of `hashed`."""
        return self._revisions[self._slots(hashes)]

    def put(self, hashes: IntArray, revisions: IntArray) -> None:
        """Note the revisions of these keys, over those that there are. No key twice."""
        while 2 * (self._count + len(hashes)) > len(self._hashes):
            self._grow()
        self._insert(hashes, revisions)

    def _grow(self) -> None:
        kept = self._hashes != 0
        hashes, revisions = self._hashes[kept], self._revisions[kept]
        size = 2 * len(self._hashes)
        self._hashes, self._revisions, self._count = np.zeros(size, np.int64), np.zeros(size, np.int64), 0
        for first in range(0, len(hashes), _FIRST_SLOTS):  # in portions: what inserting needs besides stays small
            self._insert(hashes[first : first + _FIRST_SLOTS], revisions[first : first + _FIRST_SLOTS])

    def _insert(self, hashes: IntArray, revisions: IntArray) -> None:
        left = np.arange(len(hashes))
        while len(left):
            at = self._slots(hashes[left])
            self._count -= int(np.count_nonzero(self._hashes[at]))
            # Several keys may want one free slot: the last to write has it, the others look on.
            self._hashes[at] = hashes[left]
            won = self._hashes[at] == hashes[left]
            self._revisions[at[won]] = revisions[left[won]]
            self._count += int(np.count_nonzero(won))
            left = left[~won]

    def _slots(self, hashes: IntArray) -> IntArray:
        """Where each key stands, or the free slot where it would."""
        mask = len(self._hashes) - 1
        at: IntArray = hashes & mask
        open_ = np.arange(len(hashes))
        while len(open_):
            here = self._hashes[at[open_]]
            open_ = open_[(here != 0) & (here != hashes[open_])]
            at[open_] = (at[open_] + 1) & mask
        return at


def hashed(subjects: Iterable[bytes], count: int) -> IntArray:
    """Hashes of subjects, none of them 0; good in this process only."""
    found = np.fromiter(map(hash, subjects), np.int64, count)
    found[found == 0] = 1  # stands for a free slot
    return found


log = logging.getLogger(__name__)


def write_bucket(
    batches: Iterable[pa.RecordBatch],
    connect: Callable[[float], Connection],
    options: SinkOptions,
    columns: BucketColumns,
    bucket: KeyBucket,
    task: WriteTask,
) -> TaskReport:
    """Store all rows of a task in a bucket; what is stored.

    Takes and raises what `task.write_task` does.
    """
    return _KeyWriter(connect, options, columns, bucket, task).run(batches, time.monotonic())


@dataclass(frozen=True)
class _Sent:
    """Rows with the subjects of their keys, of which some may not have an answer yet."""

    flight: InFlight
    subjects: list[bytes]


class _KeyWriter(TaskWriter):
    def __init__(
        self,
        connect: Callable[[float], Connection],
        options: SinkOptions,
        columns: BucketColumns,
        bucket: KeyBucket,
        task: WriteTask,
    ) -> None:
        self.columns = columns
        self.bucket = bucket
        self.revisions = Revisions()
        self._connect = connect
        self._sent: list[_Sent] = []
        self._under_way: set[bytes] = set()  # subjects of what is sent
        self._once_more = Totals()  # rows that were counted when their first copy was found
        self._creating: dict[int, bytes] = {}  # header lines of rows that take the place of a marker, by row number
        super().__init__(connect, options, columns, task, stream=bucket.stream, target=bucket)

    def _read(self, part: pa.RecordBatch) -> Rows:
        return rows_of(part, self.columns, self.bucket, self.count + 1)

    def _publish(self, rows: Rows) -> None:
        ids = None if self.identifier is None else self.identifier.ids(rows, tails(rows))
        turns = list(rounds(rows.subject))
        # Where rows wait for each other, answers a few milliseconds late would be all that there is to wait for.
        self.publisher.pace(len(turns) == 1)
        for at in turns:
            whole = len(turns) == 1
            turn, turn_ids = (rows, ids) if whole else (rows.take(at), None if ids is None else ids.take(pa.array(at)))
            subjects = turn.subject.to_pylist()
            self._wait_for(subjects)
            self._send(turn, turn_ids, subjects, self.publisher.totals)

    def _finish(self) -> None:
        while self._sent:
            self.publisher.flush()
            self._land()
        super()._finish()

    def _report(self, seconds: float) -> TaskReport:
        for stream, (first, last) in self._once_more.streams.items():
            self.publisher.totals.note(stream, first, last)
        return super()._report(seconds)

    def _send(self, rows: Rows, ids: pa.BinaryArray | None, subjects: list[bytes], counted: Totals) -> None:
        flight = self.publisher.publish(rows, own_lines(ids, None), ids, counted)
        self._sent.append(_Sent(flight, subjects))
        self._under_way.update(subjects)

    def _wait_for(self, subjects: list[bytes]) -> None:
        """Return when no row with one of these subjects is under way."""
        self._land()
        while not self._under_way.isdisjoint(subjects):
            self.publisher.pace(False)
            self.publisher.flush()
            self._land()

    def _land(self) -> None:
        """Look at the rows that have their answers now; those that came too early are sent once more."""
        landed = [sent for sent in self._sent if not sent.flight.left]
        self._sent = [sent for sent in self._sent if sent.flight.left]
        if landed:
            # Not what has landed taken out: a key may be on its way once more, over a marker.
            self._under_way = set(itertools.chain.from_iterable(sent.subjects for sent in self._sent))
        for sent in landed if self.identifier is not None else ():
            flight = sent.flight
            keys = hashed(sent.subjects, len(sent.subjects))
            stored = flight.sequences > 0
            early = flight.known & stored
            if early.any():
                early &= flight.sequences < self.revisions.get(keys)
                stored &= ~early
            self.revisions.put(keys[stored], flight.sequences[stored])
            at = np.flatnonzero(early)
            if len(at):
                log.info("%d rows are stored in front of earlier rows of their keys: sent once more", len(at))
                self._send(flight.rows.take(at), None, [sent.subjects[index] for index in at], self._once_more)

    # Rows that expected another revision

    def _refused(self, refused: list[RefusedRow]) -> None:
        lost: list[RefusedRow] = []
        again: list[tuple[RefusedRow, int]] = []
        for row in refused:
            lines = self._creating.get(row.number) or bytes(row.rows.lines[row.index].as_py())
            if row.err_code not in WRONG_REVISION:
                lost.append(row)
                continue
            try:
                last = self._last(row)
            except JetStreamError as error:
                if error.retriable:
                    raise
                log.info("cannot see which revision a key has: %s", error)
                lost.append(row)
                continue
            if last is not None and self._is_stored(row, last):
                self._count(last.sequence)
            elif expected_revision(lines) == 0 and (last is None or is_marker(last.headers)):
                self._creating[row.number] = lines
                again.append((row, 0 if last is None else last.sequence))
            else:
                lost.append(_with_lines(row, lines))
        if lost:
            super()._refused(lost)
        for row, revision in again:
            # In the place of the marker.
            one = _with_lines(row, expecting(self._creating[row.number], revision))
            ids = None if row.message_id is None else pa.array([row.message_id], pa.binary())
            self._send(one.rows, ids, [_subject(row)], self.publisher.totals)

    def _last(self, row: RefusedRow) -> StoredMessage | None:
        """The latest revision of the row's key, markers included."""
        patience = self.options.connection.retry_timeout
        stream, subject = self.bucket.stream, self.bucket.stored_at(row.subject)

        def ask() -> StoredMessage | None:
            return last_message(self._connect(patience), stream, subject, prefix=self.bucket.api_prefix)

        return retrying(ask, patience)

    def _is_stored(self, row: RefusedRow, last: StoredMessage) -> bool:
        """Whether the latest revision is this row, or a later row of the task that an earlier attempt has stored."""
        if self.identifier is None or not last.message_id.startswith(self.identifier.prefix):
            return False
        reached = int(self.revisions.get(hashed([_subject(row)], 1))[0])
        return last.message_id == row.message_id or last.sequence > reached

    def _count(self, sequence: int) -> None:
        self.publisher.totals.note_duplicate(self.bucket.stream, sequence)


def _subject(row: RefusedRow) -> bytes:
    return bytes(row.rows.subject[row.index].as_py())


def _with_lines(row: RefusedRow, lines: bytes) -> RefusedRow:
    one = row.rows.take(np.array([row.index]))
    return replace(row, rows=replace(one, lines=pa.array([lines], pa.binary())), index=0)
