"""Writes rows to a Key-Value bucket: those of one key go one after the other, and the last wins.

- The task sends a row only when the row before it with the same key has its answer.
- It sends a row once more, without an id, when the row was stored before an earlier row of its key.
- A row with expected revision 0 also replaces a delete or purge marker, as in the client libraries.
  The task sends it again, and up to `maxRetries` times more while others change its key. If an
  earlier attempt has already stored a later row of the same key, the row counts as stored.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_jetstream.buckets.kv import WRONG_REVISION
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.requests import Connect, Requests
from spark_jetstream.errors import JetStreamError
from spark_jetstream.options import SinkOptions
from spark_jetstream.protocol.arrow import binaries
from spark_jetstream.protocol.hashing import HashMap, subject_hashes
from spark_jetstream.protocol.pub_ack import Refusal
from spark_jetstream.sink.kv import BucketColumns, is_marker, rounds, rows_of
from spark_jetstream.sink.message_ids import Scheme, WriteTask
from spark_jetstream.sink.order import Order
from spark_jetstream.sink.report import TaskReport
from spark_jetstream.sink.rows import RefusedRow, Rows
from spark_jetstream.sink.sender import Sender, taken
from spark_jetstream.sink.target import KeyBucket
from spark_jetstream.sink.task import TaskWriter
from spark_jetstream.sink.timing import WRITE_TIMING, WriteTiming
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
    *,
    timing: WriteTiming = WRITE_TIMING,
) -> TaskReport:
    """Store all rows of a task in a bucket, and return what is stored.

    Raises what `task.write_task` does.
    """
    begun = time.monotonic()
    # A key's last row wins, so the order of rows counts, which a partition keeps.
    scheme = None if options.delivery == "at-least-once" else Scheme()
    sender = Sender(connect, options, bucket, task, scheme, timing=timing)
    requests = Requests(connect, options.connection.retry_timeout)
    order = ByKey(sender, bucket, requests, options.max_retries)
    read = functools.partial(
        rows_of,
        columns=columns,
        prefix=bucket.origin.write_prefix,
        history=bucket.history,
    )
    return TaskWriter(sender, order, columns, read).run(batches, begun)


class _Sent(NamedTuple):
    """Rows in flight, and the subjects of their keys."""

    flight: InFlight
    subjects: list[bytes]


class ByKey(Order):
    """Sends the rows of each key one after the other."""

    def __init__(
        self, sender: Sender, bucket: KeyBucket, requests: Requests, max_retries: int
    ) -> None:
        super().__init__(sender)
        self._bucket = bucket
        self._requests = requests
        self._max_retries = max_retries
        self._revisions = HashMap()  # the latest revision of each key that the task has stored
        self._sent: list[_Sent] = []
        self._subjects_in_flight: set[bytes] = set()
        # How often each row that replaces a marker was sent again, by its number.
        self._creating: dict[int, int] = {}

    def send(self, rows: Rows, ids: pa.BinaryArray | None) -> None:
        """Send rows, those of a key one after the other."""
        turns = list(rounds(rows.subject))
        # Rows that wait for each other need each answer at once: reading answers by the thousand is
        # a few ms late.
        self.sender.publisher.paced = len(turns) == 1
        if len(turns) == 1:
            self._send_turn(rows, ids)
            return
        for at in turns:
            self._send_turn(*taken(rows, ids, at))

    def _send_turn(self, rows: Rows, ids: pa.BinaryArray | None) -> None:
        """Send rows of different keys when no row of these keys is in flight any more."""
        subjects = rows.subject.to_pylist()
        self._note_answers()
        # A row that is sent again after a timeout or a cut could otherwise be stored
        # after a later one of its key, for good (test_order_when_the_wire_is_cut).
        while not self._subjects_in_flight.isdisjoint(subjects):
            # Rows that wait for single answers are not to wait for the next read as well.
            self.sender.publisher.paced = False
            self.wait()
            self._note_answers()
        self._note_sent(self.sender.publish(rows, ids), subjects)
        self.settle()

    def finish(self) -> None:
        """Wait until every row is stored or given up, also those that are sent once more."""
        # Answers may show rows that must be sent once more, and these have answers of their own.
        while self._sent:
            self.wait()
            self._note_answers()
        self.wait()

    def _note_sent(self, flight: InFlight, subjects: list[bytes]) -> None:
        self._sent.append(_Sent(flight, subjects))
        self._subjects_in_flight.update(subjects)

    def _note_answers(self) -> None:
        """Note revisions of answered rows, and send early ones once more.

        The caller settles or waits.
        """
        answered = [sent for sent in self._sent if not sent.flight.unanswered]
        if not answered:
            return
        self._sent = [sent for sent in self._sent if sent.flight.unanswered]
        # Computed anew: a key of an answered row may be in flight again, to replace a marker.
        self._subjects_in_flight = set()
        for sent in self._sent:
            self._subjects_in_flight.update(sent.subjects)
        # Without message ids no stream drops a row as a duplicate.
        if self.sender.message_ids is not None:
            for sent in answered:
                self._note_revisions(sent)

    def _note_revisions(self, sent: _Sent) -> None:
        flight = sent.flight
        rows = flight.portion.rows
        keys = subject_hashes(rows.subject)
        # All vectors have one value for each row of the portion. A sequence of 0 means
        # that the row was refused.
        is_stored = flight.sequences > 0
        # The stream may have forgotten the id of a key's first row, and still know
        # that of a later one. It then stores the first row again, and drops the later one
        # as a duplicate (test_a_later_row_is_known_while_an_earlier_one_is_forgotten).
        is_early = flight.known & is_stored
        if is_early.any():
            is_early &= flight.sequences < self._revisions.get(keys)
        noted = is_stored & ~is_early
        self._revisions.put(keys[noted], flight.sequences[noted])
        early = np.flatnonzero(is_early)
        if len(early):
            log.info(
                "%d rows are stored before earlier rows of their keys: they are sent once more",
                len(early),
            )
            # The stream would drop the copy as a duplicate if it had its id.
            again = self.sender.publish_copies(rows.take(early), None)
            self._note_sent(again, [sent.subjects[index] for index in early])

    # Refused rows

    def handle_refused(self, rows: Sequence[RefusedRow]) -> None:
        """Send rows again that may replace a marker.

        Give up the others that are not stored already.
        """
        lost: list[RefusedRow] = []
        again: list[tuple[RefusedRow, int]] = []  # with the revision to expect
        for row in rows:
            # Only a wrong revision may be that of a marker, or of the row itself.
            if row.err_code != WRONG_REVISION:
                lost.append(row)
                continue
            is_read, last = self._last(row)
            if not is_read:
                lost.append(row)
            elif last is not None and self._is_stored(row, last):
                stream = self._bucket.origin.stream
                self.sender.totals.stored.note_duplicate(stream, last.sequence)
            elif self._may_create(row, last):
                # The server compares with the revision of the marker, so the row expects
                # that one now.
                self._creating[row.number] = self._tries(row) + 1
                again.append((row, _revision(last)))
            else:
                lost.append(self._explained(row, last))
        if lost:
            self.sender.give_up(lost)
        for row, revision in again:
            ids = None if row.message_id is None else binaries([row.message_id])
            flight = self.sender.publish(row.expecting(revision), ids)
            self._note_sent(flight, [row.raw_subject])

    def _tries(self, row: RefusedRow) -> int:
        """Return how often a row was sent again to replace a marker."""
        return self._creating.get(row.number, 0)

    def _may_create(self, row: RefusedRow, last: RawMessage | None) -> bool:
        """Whether a row that was refused may be sent again, because its key has no value.

        The server refuses it each time where the bucket's stream stores keys under other subjects.
        """
        tries = self._tries(row)
        # A row that was sent again expects the revision of the marker now.
        creates = tries > 0 or row.expected == 0
        # A bucket whose stream rewrites subjects has no value where the task looks,
        # and refuses the row each time. Without a limit the task would not end
        # (test_creating_a_key_whose_value_is_nowhere_ends).
        is_absent = last is None or is_marker(last.headers)
        return is_absent and creates and tries <= self._max_retries

    def _explained(self, row: RefusedRow, last: RawMessage | None) -> RefusedRow:
        """Return a row to give up, with a reason that speaks of the revision that the user gave."""
        if not self._tries(row):
            return row
        # The server has compared with the revision of a marker, which the row was not given.
        words = f"wrong last sequence: {_revision(last)}"
        refusal = Refusal(row.number, 400, WRONG_REVISION, words)
        return replace(row, reason=self._bucket.reason(refusal, 0))

    def _last(self, row: RefusedRow) -> tuple[bool, RawMessage | None]:
        """Return whether the account may read the key of a row, and its latest revision or marker.

        Raises the error of a server that may answer later.
        """
        bucket = self._bucket
        subject = bucket.stored_at(row.subject)

        def ask(connection: Connection) -> RawMessage | None:
            return last_message(connection, bucket.origin.stream, subject, prefix=bucket.api_prefix)

        try:
            return True, self._requests.call(ask)
        except JetStreamError as error:
            if error.retriable:
                raise
            # Without the right to read the bucket the row is given up as the server has refused it.
            log.info("cannot read the revision of a key: %s", error)
            return False, None

    def _is_stored(self, row: RefusedRow, last: RawMessage) -> bool:
        """Whether the latest revision is this row, or a later one of an earlier attempt."""
        ids = self.sender.message_ids
        if ids is None or not last.message_id.startswith(ids.prefix):
            return False
        # A revision up to `latest` is an earlier row of this task,
        # which excuses nothing (test_an_earlier_row_of_the_task_is_no_excuse).
        latest = int(self._revisions.get(subject_hashes(row.rows.subject.slice(row.index, 1)))[0])
        return last.message_id == row.message_id or last.sequence > latest


def _revision(last: RawMessage | None) -> int:
    """Return the revision of the latest message of a key, 0 if it has none."""
    return 0 if last is None else last.sequence
