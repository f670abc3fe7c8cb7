"""One task of a write: takes record batches, and returns when every row is stored."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from spark_jetstream.client.requests import Connect
from spark_jetstream.errors import DeliveryError, JetStreamError
from spark_jetstream.options import SinkOptions
from spark_jetstream.protocol.arrow import as_arrow, lengths
from spark_jetstream.protocol.pub_ack import NO_STREAM
from spark_jetstream.sink.claims import Claims
from spark_jetstream.sink.columns import Columns, SinkColumns
from spark_jetstream.sink.commands import COMMAND_COLUMNS, COMMANDS
from spark_jetstream.sink.dead_letters import dead_letters
from spark_jetstream.sink.groups import sorted_out, whole_groups
from spark_jetstream.sink.known_groups import KnownGroup, groups_of, questions
from spark_jetstream.sink.ledger import Ledger
from spark_jetstream.sink.message_ids import MessageIds, Scheme, WriteTask
from spark_jetstream.sink.publisher import Publisher
from spark_jetstream.sink.report import TaskReport, Totals
from spark_jetstream.sink.rollups import Rollups, ids_of_copies
from spark_jetstream.sink.row_reading import rows_of
from spark_jetstream.sink.rows import RefusedRow, Rows
from spark_jetstream.sink.target import Target

_HELD = 1 << 30  # bytes of rows with a group; an Arrow array holds less than twice as many
_KNOWN = 10201  # error code: the stream has one of the message ids of a group
_PORTION_ROWS = 2000
_PORTION_BYTES = 4 * 1024 * 1024


def write_task(
    batches: Iterable[pa.RecordBatch],
    connect: Connect,
    options: SinkOptions,
    columns: SinkColumns,
    task: WriteTask,
) -> TaskReport:
    """Store all rows of a task, and return what is stored.

    Raises `RowRefused` for a row without a `deadLetterSubject`, `OutageError`, `DeliveryError` if the task cannot keep
    what option delivery promises, and `JetStreamError` for another error that no retry can mend.
    """
    begun = time.monotonic()
    scheme = Scheme.of(options.delivery, options.message_ids, columns.names)
    target = Target(options.stream, options.connection.domain)
    if options.delivery != "exactly-once":
        return TaskWriter(connect, options, columns, task, target, scheme).run(batches, begun)
    assert scheme is not None
    ledger = Ledger(connect, options, task)
    finished = ledger.open(own_ids="msg_id" in columns.names, scheduled="schedule" in columns.names)
    if finished is not None:
        return _compared(batches, columns, ledger, finished, MessageIds(task, scheme))
    report = TaskWriter(connect, options, columns, task, target, scheme, ledger).run(batches, begun)
    ledger.finish(report)
    return report


def _compared(
    batches: Iterable[pa.RecordBatch],
    columns: SinkColumns,
    ledger: Ledger,
    finished: TaskReport,
    ids: MessageIds,
) -> TaskReport:
    """Return the report of a task whose rows are stored already, if these are its rows."""
    count = 0
    for batch in batches:
        for part in portions(batch, columns, _PORTION_ROWS):
            ids.add(rows_of(part, columns, 1))
            count += part.num_rows
    return ledger.compare(finished, count, ids)


class TaskWriter:
    """Writes the rows of one task to their subjects, thousands at a time, in no particular order.

    `scheme` says what message ids consist of, None if there are none. `ledger` is the task's entry, with delivery
    exactly-once. A subclass for another kind of target may replace `read`,
    `send`, `refused` and `finish`. Nine of the eighteen attributes are set once; the others are one account, of rows
    that end as stored, stored before, or dead letters, and of those that wait for their group.
    """

    def __init__(
        self,
        connect: Connect,
        options: SinkOptions,
        columns: Columns,
        task: WriteTask,
        target: Target,
        scheme: Scheme | None,
        ledger: Ledger | None = None,
    ) -> None:
        self.publisher = Publisher(connect, options, target, f"partition {task.partition}", ledger)
        self.message_ids = None if scheme is None else MessageIds(task, scheme)
        self._dead_letter_ids = None if scheme is None else MessageIds(task, scheme, dead=True)
        has_claims = ledger is not None or (scheme is not None and scheme.shared)
        self._claims = Claims() if has_claims else None
        self.publisher.totals.claims = self._claims
        if self._claims is not None and ledger is not None:
            self._claims.renaming = ledger.renaming
        self._options = options
        self._columns = columns
        self._task = task
        self._target = target
        self._ledger = ledger
        self._count = 0  # rows that were read
        self._skipped = Totals(
            claims=self._claims
        )  # rows that an earlier attempt has stored: the ledger says so
        self._dead = Totals(claims=self._claims)  # dead letters
        self._resent = (
            Totals()
        )  # second copies of rows that are counted already: only their sequences are reported
        rolling = not {"schedule", "rollup"}.isdisjoint(columns.names)
        self._rollups = Rollups(alone=ledger is not None) if rolling else None
        self._held: list[Rows] = []  # those that have a group
        self._held_bytes = 0  # of them
        self._groups: set[bytes] = set()  # all of these
        self._known: list[RefusedRow] = []  # the rows of groups that are stored, in part at least
        self._lost_ttl = False  # whether a TTL in column headers was left out

    def run(self, batches: Iterable[pa.RecordBatch], begun: float) -> TaskReport:
        """Store all rows, and return what is stored. `begun` is when the task began, on the monotonic clock."""
        with self.publisher:
            for batch in batches:
                for part in portions(batch, self._columns, self._most):
                    self._write(self.read(part, self._count + 1))
            for rows in (
                whole_groups(self._held, self._most, _PORTION_BYTES) if self._groups else ()
            ):
                self._send_groups(rows)
            self.finish()
            self._settle_known()
        totals = self.publisher.totals
        totals.note_all(self._skipped.streams)
        totals.note_all(self._resent.streams)
        done = totals.stored + self._skipped.stored + self._dead.stored
        if (
            done < self._count
        ):  # not "!=": a stored row that is sent once more may become a dead letter as well
            raise JetStreamError(
                f"of {self._count} rows only {done} count as stored or as dead letters: this is a bug of "
                "spark-jetstream, and the task does not count as done"
            )
        return TaskReport(
            partition=self._task.partition,
            rows=self._count,
            stored=totals.stored + self._skipped.stored,
            duplicates=totals.duplicates + self._skipped.duplicates,
            dead_letters=self._dead.stored,
            streams=dict(totals.streams),
            seconds=time.monotonic() - begun,
            lost_ttl=self._lost_ttl,
            content=None if self.message_ids is None else self.message_ids.content,
            own=0 if self.message_ids is None else self.message_ids.own,
            groups=frozenset(self._groups),
            claims={} if self._claims is None else self._claims.packed(),
            subjects={} if self._claims is None else self._claims.subjects,
            resumed=self._ledger is not None and self._ledger.resumed,
            partitioned=self.message_ids is not None and self.message_ids.partitioned,
        )

    # What depends on the kind of target

    def read(self, batch: pa.RecordBatch, first_number: int) -> Rows:
        """Return the rows of a record batch, numbered from `first_number`."""
        rows = rows_of(batch, self._columns, first_number)
        if self._options.server_headers == "error":
            self._lost_ttl |= b"Nats-TTL" in rows.left_out and "ttl" not in self._columns.names
            for name in filter(COMMANDS.fullmatch, rows.left_out):
                column = COMMAND_COLUMNS.get(name)
                instead = f"use column {column} instead" if column else "remove it from there"
                why = (
                    f"column headers holds {name.decode()}, on which the server would act: {instead}, or set option "
                    "serverHeaders to drop to store rows without such headers"
                )
                raise self.publisher.failure(RefusedRow(rows, rows.left_out[name], None, why, 0))
        if self._rollups is not None:
            self._rollups.check(rows)
        return rows

    def send(self, rows: Rows, ids: pa.BinaryArray | None) -> None:
        """Send rows without faults, with these message ids."""
        if self._rollups is not None:
            self._send_in_turn(self._rollups, self._rollups.named(rows, ids), ids)
        elif len(rows):
            # Of rows that share a reply subject nobody knows which ones a stream had stored before.
            shared = self._claims is None or not self._claims.renaming
            self.publisher.publish(
                rows, ids, self._target.stream, self.publisher.totals, shared=shared
            )
            self.dispose()

    def _send_in_turn(self, rollups: Rollups, rows: Rows, ids: pa.BinaryArray | None) -> None:
        """Send rows, and wait for their answers wherever one of them may remove another."""
        for at in rollups.turns(rows):
            turn, turn_ids = rows.take(at), None if ids is None else ids.take(as_arrow(at))
            counted = self.publisher.totals
            while len(turn):
                flight = self.publisher.publish(turn, turn_ids, self._target.stream, counted)
                self.finish()
                early, after = rollups.too_early(flight)
                turn, counted = turn.take(early), self._resent
                turn_ids = (
                    None
                    if turn_ids is None
                    else ids_of_copies(turn_ids.take(as_arrow(early)), after)
                )

    def _send_groups(self, rows: Rows) -> None:
        """Send the rows of whole groups."""
        rows = (
            rows if self.message_ids is None else replace(rows, msg_id=self.message_ids.ids(rows))
        )
        skipped = Totals(claims=self._claims)
        missing, _ = self._without_stored(rows, rows.msg_id, self._target.stream, skipped)
        refused, left = sorted_out(rows, missing.number)
        done = len(rows) - len(refused) - len(left)
        self._skipped.stored, self._skipped.duplicates = (
            self._skipped.stored + done,
            self._skipped.duplicates + done,
        )
        self._skipped.note_all(skipped.streams)
        self.dispose(refused)
        if len(left):
            self.publisher.publish(left, left.msg_id, self._target.stream, self.publisher.totals)
            self.dispose()
        self._settle_known()

    def _settle_known(self) -> None:
        """Find out what became of groups that the stream refused for a message id that it has."""
        while self._known:
            self.finish()
            known = self._known
            self._known = []
            flight = self.publisher.publish(*questions(known), self._target.stream, Totals())
            while self.publisher.flush():
                continue
            for group in groups_of(known, flight.sequences.tolist()):
                self._settle_known_group(group)
            self.finish()

    def _settle_known_group(self, group: KnownGroup) -> None:
        """Count a group as stored, give it up, or send it again if the stream has forgotten it meanwhile."""
        if group.has_none and not group.has_twins:
            again = group.to_send()
            self.publisher.publish(again, again.msg_id, self._target.stream, self.publisher.totals)
        elif group.has_all or (not group.has_none and self._is_group_stored(group)):
            for sequence in group.all_sequences():
                self.publisher.totals.note_duplicate(self._target.stream or "", sequence)
        else:
            # An id of the user's is that of another row, or of two rows of the group.
            self._give_up(group.rows)

    def _is_group_stored(self, group: KnownGroup) -> bool:
        """Whether a group of which the stream has some ids is there, and the window has ended for the others."""
        if self.message_ids is not None and group.has_made(self._task):
            return True
        for index, sequence in enumerate(group.all_sequences()):
            headers = self.publisher.headers_of(self._target.stream, sequence)
            if headers is None or not group.is_row(index, headers):
                return False
        return True

    def refused(self, refused: list[RefusedRow]) -> None:
        """Send rows that can never be stored to `deadLetterSubject`. Raise `RowRefused` if that is impossible."""
        self._known += [row for row in refused if row.err_code == _KNOWN]
        if others := [row for row in refused if row.err_code != _KNOWN]:
            self._give_up(others)

    def _give_up(self, refused: list[RefusedRow]) -> None:
        subject = self._options.dead_letter_subject
        if subject is None or any(row.raw_subject == subject.encode() for row in refused):
            raise self.publisher.failure(refused[0])
        for at in range(0, len(refused), self._most):
            some = refused[at : at + self._most]
            rows, ids = dead_letters(
                some, subject, self.publisher.max_payload, self._dead_letter_ids
            )
            rows, ids = self._without_stored(rows, ids, None, self._dead)
            if len(rows):
                self.publisher.publish(rows, ids, None, self._dead)

    def finish(self) -> None:
        """Wait until every row is stored or given up."""
        while refused := self.publisher.flush():
            self.dispose(refused)

    # The same for all

    @property
    def _most(self) -> int:
        return max(1, min(_PORTION_ROWS, self._options.max_in_flight // 2))

    def _write(self, rows: Rows) -> None:
        self._count += len(rows)
        if "atomic_group" in self._columns.names:
            names = rows.commands.group
            assert names is not None
            self._groups.update(names.drop_null().unique().to_pylist())
            named = rows.grouped
            grouped = rows.take(np.flatnonzero(named))
            self._held.append(grouped)
            self._held_bytes += grouped.data.nbytes + grouped.lines.nbytes
            if self._held_bytes > _HELD:
                raise DeliveryError(
                    "rows with an atomic_group have more than 1 GiB in a task: use more partitions"
                )
            rows = rows.take(np.flatnonzero(~named))
        if rows.faults:
            if self.message_ids is not None:
                self.message_ids.add(rows.take(np.array(sorted(rows.faults), np.int64)))
            self.dispose(
                [
                    RefusedRow(rows, index, None, reason, 0)
                    for index, reason in sorted(rows.faults.items())
                ]
            )
            rows = rows.take(
                np.array(
                    [index for index in range(len(rows)) if index not in rows.faults], np.int64
                )
            )
        ids = rows.msg_id if self.message_ids is None else self.message_ids.ids(rows)
        self.send(*self._without_stored(rows, ids, self._target.stream, self._skipped))

    def dispose(self, refused: list[RefusedRow] | None = None) -> None:
        """Give `refused` to `refused`, or all rows that the publisher has refused, and what it refuses meanwhile.

        Call after each `publish`. Not needed inside `refused`.
        """
        refused = self.publisher.take_refused() if refused is None else refused
        while refused:
            self.refused(refused)
            refused = self.publisher.take_refused()

    def _without_stored(
        self, rows: Rows, ids: pa.BinaryArray | None, stream: str | None, skipped: Totals
    ) -> tuple[Rows, pa.BinaryArray | None]:
        """Leave out the rows that an earlier attempt has stored. The ledger notes the streams of the others first."""
        ledger = self._ledger
        if ledger is None or ids is None:
            return rows, ids
        lost = ledger.begin(rows.subject, stream)
        if lost:
            captured = np.array([subject not in lost for subject in rows.subject.to_pylist()])
            refused = np.flatnonzero(~captured).tolist()
            self.dispose(
                [
                    RefusedRow(rows, at, ids[at].as_py(), Target().no_stream, NO_STREAM)
                    for at in refused
                ]
            )
            kept = np.flatnonzero(captured)
            rows, ids = rows.take(kept), ids.take(as_arrow(kept))
        places = ledger.find(ids, rows.subject, stream)
        if not places:
            return rows, ids
        missing = np.ones(len(rows), np.bool_)
        for name, (indices, sequences) in places.items():
            skipped.note_duplicates(name, sequences, rows.subject.take(as_arrow(indices)))
            missing[indices] = False
        kept = np.flatnonzero(missing)
        return rows.take(kept), ids.take(as_arrow(kept))


def portions(batch: pa.RecordBatch, columns: Columns, most: int) -> Iterator[pa.RecordBatch]:
    """Yield slices of a batch with at most `most` rows and about 4 MB of payload; a larger row is a slice by itself."""
    data = columns.of(batch).get(columns.payload, pa.nulls(batch.num_rows, pa.binary()))
    ends = np.cumsum(lengths(data))
    # Headers and subjects count by their mean: they are seldom much larger in some rows than in others.
    # `nbytes` reads the first offset of an empty list, which the batches of Spark 4.0 do not have: the process crashes.
    most = max(
        1, min(most, _PORTION_BYTES * batch.num_rows // max(1, batch.get_total_buffer_size()))
    )
    at = 0
    while at < batch.num_rows:
        before = int(ends[at - 1]) if at else 0
        fitting = int(np.searchsorted(ends, before + _PORTION_BYTES, side="right"))
        stop = min(at + most, max(fitting, at + 1), batch.num_rows)
        yield batch.slice(at, stop - at)
        at = stop


__all__ = ["TaskWriter", "WriteTask", "portions", "write_task"]
