"""One task of a write to a Key-Value bucket: the last row of each key wins, whatever fails on the way.

- The task sends a row only when the row before it with the same key has its answer: a row that is sent again after a
  timeout or a cut could otherwise be stored after a later one of its key, for good.
- The stream may have forgotten the message ids of an earlier attempt's first rows, and still know those of its later
  rows: it would store the first rows again and drop the later ones as duplicates. The task therefore sends a row once
  more, without an id, when it was stored before an earlier row of its key.
- A row with expected revision 0 also replaces a delete or purge marker, as in the client libraries: the task sends it
  again, and up to `maxRetries` times more while others change its key. If an earlier attempt has already stored a later
  row of the same key, the row counts as stored.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from spark_jetstream.buckets.kv import WRONG_REVISION
from spark_jetstream.client.requests import Connect, Requests
from spark_jetstream.errors import JetStreamError
from spark_jetstream.options import SinkOptions
from spark_jetstream.protocol.arrow import as_arrow, binaries
from spark_jetstream.protocol.hashing import HashMap, subject_hashes
from spark_jetstream.protocol.pub_ack import Refusal
from spark_jetstream.sink.kv import (
    BucketColumns,
    is_marker,
    rounds,
    rows_of,
)
from spark_jetstream.sink.message_ids import Scheme
from spark_jetstream.sink.report import TaskReport, Totals
from spark_jetstream.sink.rows import RefusedRow, Rows
from spark_jetstream.sink.target import KeyBucket
from spark_jetstream.sink.task import TaskWriter, WriteTask
from spark_jetstream.sink.window import InFlight
from spark_jetstream.streams.lookup import RawMessage, last_message

log = logging.getLogger(__name__)


def write_bucket(
    batches: Iterable[pa.RecordBatch],
    connect: Connect,
    options: SinkOptions,
    columns: BucketColumns,
    bucket: KeyBucket,
    task: WriteTask,
) -> TaskReport:
    """Store all rows of a task in a bucket, and return what is stored. Raises what `task.write_task` does."""
    return _KeyWriter(connect, options, columns, task, bucket).run(batches, time.monotonic())


class _KeyWriter(TaskWriter):
    """Writes the rows of one task to a bucket, the rows of each key one after the other."""

    def __init__(
        self,
        connect: Connect,
        options: SinkOptions,
        columns: BucketColumns,
        task: WriteTask,
        bucket: KeyBucket,
    ) -> None:
        # A key's last row wins, so the order of rows counts, which a partition keeps.
        scheme = None if options.delivery == "at-least-once" else Scheme()
        super().__init__(connect, options, columns, task, bucket, scheme)
        self._bucket = bucket
        self._requests = Requests(connect, options.connection.retry_timeout)
        self._revisions = HashMap()  # the latest revision of each key that the task has stored
        self._sent: list[
            tuple[InFlight, list[bytes]]
        ] = []  # rows in flight, with the subjects of their keys
        self._subjects_in_flight: set[bytes] = set()
        # How often each row that replaces a marker was sent again, by its number:
        self._creating: dict[int, int] = {}

    def read(self, batch: pa.RecordBatch, first_number: int) -> Rows:
        bucket = self._bucket
        return rows_of(
            batch, self._columns, bucket.origin.write_prefix, first_number, history=bucket.history
        )

    def send(self, rows: Rows, ids: pa.BinaryArray | None) -> None:
        turns = list(rounds(rows.subject))
        whole = len(turns) == 1
        # Rows that wait for each other need each answer at once: reading answers by the thousand is a few ms late.
        self.publisher.paced = whole
        for at in turns:
            turn, turn_ids = (
                (rows, ids)
                if whole
                else (rows.take(at), None if ids is None else ids.take(as_arrow(at)))
            )
            subjects = turn.subject.to_pylist()
            self._settle_answered()
            # No row with one of these subjects may be in flight.
            while not self._subjects_in_flight.isdisjoint(subjects):
                self.publisher.paced = False
                super().finish()
                self._settle_answered()
            self._publish(turn, turn_ids, subjects, self.publisher.totals)
            self.dispose()

    def finish(self) -> None:
        while self._sent:
            super().finish()
            self._settle_answered()
        super().finish()

    def _publish(
        self, rows: Rows, ids: pa.BinaryArray | None, subjects: list[bytes], counted: Totals
    ) -> None:
        self._sent.append((self.publisher.publish(rows, ids, None, counted), subjects))
        self._subjects_in_flight.update(subjects)

    def _settle_answered(self) -> None:
        """Note revisions of answered rows, and send early ones once more. The caller disposes or finishes."""
        answered = [(flight, subjects) for flight, subjects in self._sent if not flight.unanswered]
        self._sent = [(flight, subjects) for flight, subjects in self._sent if flight.unanswered]
        if answered:
            # Computed anew: a key of an answered row may be in flight again, to replace a marker.
            self._subjects_in_flight = set(
                itertools.chain.from_iterable(subjects for _, subjects in self._sent)
            )
        for flight, subjects in answered if self.message_ids is not None else ():
            keys = subject_hashes(flight.portion.rows.subject)
            stored = flight.sequences > 0
            early = flight.known & stored
            if early.any():
                early &= flight.sequences < self._revisions.get(keys)
                stored &= ~early
            self._revisions.put(keys[stored], flight.sequences[stored])
            at = np.flatnonzero(early)
            if len(at):
                log.info(
                    "%d rows are stored before earlier rows of their keys: they are sent once more",
                    len(at),
                )
                again = [subjects[index] for index in at]
                self._publish(flight.portion.rows.take(at), None, again, self._resent)

    def refused(self, refused: list[RefusedRow]) -> None:
        lost: list[RefusedRow] = []
        again: list[tuple[RefusedRow, int]] = []
        for row in refused:
            tries = self._creating.get(row.number, 0)
            if row.err_code != WRONG_REVISION:
                lost.append(row)
                continue
            try:
                last = self._last(row)
            except JetStreamError as error:
                if error.retriable:
                    raise
                log.info("cannot read the revision of a key: %s", error)
                lost.append(row)
                continue
            if last is not None and self._is_stored(row, last):
                self.publisher.totals.note_duplicate(self._bucket.origin.stream, last.sequence)
            elif self._may_create(row, tries, last):
                self._creating[row.number] = tries + 1
                again.append((row, 0 if last is None else last.sequence))
            elif tries:
                # The server has compared with the revision of a marker, which the row was not given.
                words = f"wrong last sequence: {0 if last is None else last.sequence}"
                why = self._bucket.reason(Refusal(row.number, 400, WRONG_REVISION, words), 0)
                lost.append(replace(row, reason=why))
            else:
                lost.append(row)
        if lost:
            super().refused(lost)
        for row, revision in again:
            ids = None if row.message_id is None else binaries([row.message_id])
            self._publish(row.expecting(revision), ids, [row.raw_subject], self.publisher.totals)

    def _may_create(self, row: RefusedRow, tries: int, last: RawMessage | None) -> bool:
        """Whether a row that was refused may be sent again, because its key has no value.

        The server refuses it each time where the bucket's stream stores keys under other subjects.
        """
        absent = last is None or is_marker(last.headers)
        creates = tries > 0 or row.expected == 0
        return absent and creates and tries <= self._options.max_retries

    def _last(self, row: RefusedRow) -> RawMessage | None:
        stream, subject = self._bucket.origin.stream, self._bucket.stored_at(row.subject)
        prefix = self._bucket.api_prefix
        return self._requests.call(
            lambda connection: last_message(connection, stream, subject, prefix=prefix)
        )

    def _is_stored(self, row: RefusedRow, last: RawMessage) -> bool:
        """Whether the latest revision is this row, or a later row of the task that an earlier attempt has stored."""
        if self.message_ids is None or not last.message_id.startswith(self.message_ids.prefix):
            return False
        latest = int(self._revisions.get(subject_hashes(row.rows.subject.slice(row.index, 1)))[0])
        return last.message_id == row.message_id or last.sequence > latest
