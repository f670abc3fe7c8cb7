"""Sender: sends the rows of one task, leaves out those that are stored, and gives up others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from spark_jetstream.client.requests import Connect
from spark_jetstream.options import SinkOptions
from spark_jetstream.protocol.arrow import IntArray, as_arrow
from spark_jetstream.protocol.pub_ack import NO_STREAM
from spark_jetstream.sink.claims import Claims
from spark_jetstream.sink.dead_letters import dead_letters
from spark_jetstream.sink.ledger import Ledger
from spark_jetstream.sink.message_ids import MessageIds, Scheme, WriteTask
from spark_jetstream.sink.portions import portion_rows
from spark_jetstream.sink.publisher import Publisher
from spark_jetstream.sink.report import Totals
from spark_jetstream.sink.rows import RefusedRow, Rows
from spark_jetstream.sink.target import Target
from spark_jetstream.sink.task_totals import TaskTotals
from spark_jetstream.sink.timing import WRITE_TIMING, WriteTiming
from spark_jetstream.sink.window import InFlight


class Sender:
    """Sends the rows of `task` to `target`. Orders (`sink.order`) say which, and when.

    `scheme` says what message ids consist of, None if there are none. `ledger` is the task's entry,
    with delivery exactly-once. Rows name `stream` as the only one that may store them, if it is
    given. `timing` is the publisher's.
    """

    def __init__(
        self,
        connect: Connect,
        options: SinkOptions,
        target: Target,
        task: WriteTask,
        scheme: Scheme | None,
        *,
        stream: str | None = None,
        ledger: Ledger | None = None,
        timing: WriteTiming = WRITE_TIMING,
    ) -> None:
        self.task = task
        self.stream = stream
        self.message_ids: MessageIds | None = None
        self._letter_ids: MessageIds | None = None
        if scheme is not None:
            self.message_ids = MessageIds(task, scheme)
            # A dead letter must not have the id of its row: the server would drop one of them.
            self._letter_ids = MessageIds(task, scheme, dead=True)
        self.totals = TaskTotals(_claims(scheme, ledger))
        self.publisher = Publisher(
            connect,
            options,
            target,
            task.part,
            ledger,
            totals=self.totals.stored,
            timing=timing,
        )
        #: The most rows that are to be published together.
        self.most = portion_rows(options.max_in_flight)
        self._dead_letter_subject = options.dead_letter_subject
        self._ledger = ledger
        self._clock = timing.clock
        #: When the ledger was last asked for rows of the task, on this clock.
        self._looked = 0.0

    # Rows

    def ids(self, rows: Rows) -> pa.BinaryArray | None:
        """Return the message ids of rows, None if no row has one."""
        if self.message_ids is None:
            return rows.msg_id
        return self.message_ids.ids(rows)

    def publish(
        self,
        rows: Rows,
        ids: pa.BinaryArray | None,
        *,
        may_share: bool = False,
        repeated: bool = False,
    ) -> InFlight:
        """Publish rows of the task. With `may_share` their sequences need not be known.

        `repeated`: they were published before, and the stream has forgotten their message ids.

        Raises what `Publisher.publish` raises.
        """
        if may_share and self.totals.claims is not None:
            # Of rows that share a reply subject nobody knows which ones a stream had stored before.
            may_share = not self.totals.claims.renaming
        return self.publisher.publish(
            rows,
            ids,
            self.stream,
            self.totals.stored,
            shared=may_share,
            looked=self._looked,
            repeated=repeated,
        )

    def publish_copies(self, rows: Rows, ids: pa.BinaryArray | None) -> InFlight:
        """Publish rows once more that are stored, and counted, already."""
        return self.publisher.publish(rows, ids, self.stream, self.totals.copies, any_stream=True)

    def without_stored(
        self, rows: Rows, ids: pa.BinaryArray | None, skipped: Totals
    ) -> tuple[Rows, pa.BinaryArray | None]:
        """Leave out the rows that an earlier attempt has stored, and count them as `skipped`.

        The ledger notes the streams of the others first. Rows that have none are refused.
        """
        self._looked = self._clock()
        return self._without_stored(rows, ids, self.stream, skipped)

    def _without_stored(
        self, rows: Rows, ids: pa.BinaryArray | None, stream: str | None, skipped: Totals
    ) -> tuple[Rows, pa.BinaryArray | None]:
        ledger = self._ledger
        if ledger is None or ids is None:
            return rows, ids
        # The ledger notes the next sequence of a stream before the first row goes there,
        # so that a later attempt knows from where on to look.
        lost = ledger.begin(rows.subject, stream)
        if lost:
            # No stream captures these subjects, so no stream can be noted for them.
            captured = np.array([subject not in lost for subject in rows.subject.to_pylist()])
            why = Target().no_stream
            self.refuse(
                [
                    RefusedRow(rows, at, ids[at].as_py(), why, NO_STREAM)
                    for at in np.flatnonzero(~captured).tolist()
                ]
            )
            kept = np.flatnonzero(captured)
            rows = rows.take(kept)
            ids = ids.take(as_arrow(kept))
        places = ledger.find(ids, rows.subject, stream)
        if not places:
            return rows, ids
        is_missing = np.ones(len(rows), np.bool_)
        for name, (indices, sequences) in places.items():
            skipped.note_duplicates(name, sequences, rows.subject.take(as_arrow(indices)))
            is_missing[indices] = False
        return taken(rows, ids, np.flatnonzero(is_missing))

    # Rows that can never be stored

    def refuse(self, rows: Sequence[RefusedRow]) -> None:
        """Add rows to those that the publisher has refused (`Order.settle`)."""
        self.publisher.refuse(rows)

    def give_up(self, refused: Sequence[RefusedRow]) -> None:
        """Publish rows as dead letters.

        Raises `RowRefused` without option `deadLetterSubject`, and for a dead letter itself.
        """
        subject = self._dead_letter_subject
        if subject is None or any(row.raw_subject == subject.encode() for row in refused):
            # A dead letter that cannot be stored would make another one, and so on.
            raise self.publisher.failure(refused[0])
        counted = self.totals.dead_letters
        # A portion can refuse thousands of rows at once (test_thousands_at_once).
        for at in range(0, len(refused), self.most):
            some = refused[at : at + self.most]
            letters, ids = dead_letters(some, subject, self.publisher.max_payload, self._letter_ids)
            # The stream of dead letters forgets message ids like any other.
            # `None`: dead letters may go to any stream.
            letters, ids = self._without_stored(letters, ids, None, counted)
            if len(letters):
                self.publisher.publish(letters, ids, None, counted, any_stream=True)

    @property
    def resumed(self) -> bool:
        """Whether an earlier attempt, or an earlier run of the batch, may have stored rows."""
        return self._ledger is not None and self._ledger.resumed


def _claims(scheme: Scheme | None, ledger: Ledger | None) -> Claims | None:
    """Return the claims of a task, None where each message is the row of one task."""
    claims = Claims()
    # Equal rows of two tasks have one id, and the server keeps one message for both. The driver
    # sees by the claims that a copy is missing.
    if ledger is not None:
        claims.renaming = ledger.renaming
        return claims
    return claims if scheme is not None and scheme.shared else None


def taken(
    rows: Rows, ids: pa.BinaryArray | None, at: IntArray
) -> tuple[Rows, pa.BinaryArray | None]:
    """Return the rows with these indices, and their message ids."""
    return rows.take(at), None if ids is None else ids.take(as_arrow(at))
