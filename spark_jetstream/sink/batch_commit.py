"""The end of a write on the driver: missing copies of equal rows, and the end in the ledger.

A task cannot see whether another one has an equal row. The driver can, by their claims
(`sink.claims`), and stores the copies that are missing. With delivery exactly-once it also compares
the stored messages of the batch with the rows of all tasks, if an earlier attempt or run may have
stored rows of it.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from spark_jetstream.client.requests import Connect, Requests
from spark_jetstream.errors import DeliveryError, PermissionDenied, StreamNotFound
from spark_jetstream.options import SinkOptions
from spark_jetstream.protocol.arrow import IntArray, binaries
from spark_jetstream.protocol.columns import Delivered
from spark_jetstream.protocol.conventions import SCHEDULED_ID, ledger_label
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.sink.claims import Subjects, merged
from spark_jetstream.sink.commands import INCREMENT
from spark_jetstream.sink.equal_rows import Balance, Missing, balance, claimed_twice
from spark_jetstream.sink.faults import shown_bytes
from spark_jetstream.sink.id_reader import IdReader
from spark_jetstream.sink.ledger import Ledger, LedgerTimes, other_rows
from spark_jetstream.sink.message_ids import COPIES, WriteTask
from spark_jetstream.sink.publisher import Publisher
from spark_jetstream.sink.report import TaskReport, Totals
from spark_jetstream.sink.rows import RefusedRow, Rows
from spark_jetstream.sink.stored_ids import StoredIds
from spark_jetstream.sink.target import Target
from spark_jetstream.sink.timing import WRITE_TIMING, WriteTiming
from spark_jetstream.streams.pull import PullSettings, read_range

log = logging.getLogger(__name__)

# Two wanted messages that are at most this far apart are read by one consumer, with those between.
_NEAR = 1000
# Copies that are published together.
_PORTION = 1000
_MADE = (b"Nats-Msg-Id:", b"Nats-Expected-Stream:", SCHEDULED_ID.encode() + b":")
"""Header lines that the sink makes for each message anew."""


@dataclass(frozen=True)
class BatchCommit:
    """Ends one batch, which goes to subjects.

    `task` is any task of it, and `columns` are the names of its columns. `repeatable` says whether
    a later run may write the batch again.
    """

    connect: Connect
    options: SinkOptions
    task: WriteTask
    columns: Sequence[str]
    repeatable: bool
    ledger_times: LedgerTimes
    timing: WriteTiming = WRITE_TIMING

    def finish(self, reports: Sequence[TaskReport]) -> int:
        """Store the missing copies of equal rows, and note in the ledger that the batch is done.

        Return how many copies were stored. Raises `DeliveryError` if several tasks had rows of one
        group, if the batch has stored other rows before, or if copies cannot be made. Raises
        `RowRefused` for a copy, and what `Requests.call` raises.
        """
        # Before the ledger notes that the batch is done: it fails again until the query is mended.
        _refuse_parted_groups(reports)
        if self.options.delivery == "exactly-once":
            return self._exactly_once(reports)
        return self._deduplicated(reports)

    # Deduplicated

    def _deduplicated(self, reports: Sequence[TaskReport]) -> int:
        claims = _claims(reports)
        contested = claimed_twice(claims)
        if not contested:
            return 0
        prefix = self.task.prefix.encode()
        requests = Requests(self.connect, self.options.connection.retry_timeout)
        reader = IdReader(requests, ledger_label(self.task.run))
        copies = 0
        for name in sorted(contested):
            try:
                state = requests.stream(name)
                stored = StoredIds(prefix, own=self._own_ids)
                first = int(claims[name].min())
                # Nobody claims messages after the last claim, so they are not read.
                last = min(int(claims[name].max()), state.last_seq)
                reader.read(replace(state, last_seq=last), first, stored)
                found = balance(stored, claims[name], prefix, numbered=True)
            except (PermissionDenied, StreamNotFound) as error:
                raise DeliveryError(
                    f"{_equal_in(name)}, and the driver cannot read them: {error}; {_REMEDY}"
                ) from None
            self._refuse_lost(name, found)
            copies += self._store(name, state.created, found.missing, {}, None)
        return copies

    # Exactly once

    def _exactly_once(self, reports: Sequence[TaskReport]) -> int:
        task = replace(self.task, partition=COPIES)
        ledger = Ledger(self.connect, self.options, task, self.ledger_times)
        entry = ledger.batch.join()
        if entry.done:
            self._compare(entry.report or {}, reports)
            return 0
        claims = _claims(reports)
        copies = 0
        strangers = 0
        resumed = bool(entry.earlier) or any(report.resumed for report in reports)
        if resumed or claimed_twice(claims):
            copies, strangers = self._reconcile(ledger, reports, claims)
        if self.repeatable:
            # A later run with the rows of this one fails as well, if others are stored.
            ledger.batch.finish(_noted(reports, strangers))
        if strangers:
            rows = sum(report.rows for report in reports)
            raise self._other_rows(
                f"{strangers} rows are stored that are not among the {rows} of this run"
            )
        return copies

    def _other_rows(self, why: str) -> DeliveryError:
        return other_rows(self.task, f"batch {self.task.batch}", why)

    def _compare(self, before: Mapping[str, object], reports: Sequence[TaskReport]) -> None:
        """Raise `DeliveryError` if the batch was done with other rows."""
        now = _noted(reports, 0)
        if now["rows"] != before.get("rows"):
            raise self._other_rows(
                f"it was done with {before.get('rows')} rows, and this attempt has {now['rows']}"
            )
        if any(now[name] != before.get(name) for name in ("content", "own")):
            raise self._other_rows(
                f"it was done with {now['rows']} rows, and this attempt has as many, but not the same ones"
            )

    def _reconcile(
        self, ledger: Ledger, reports: Sequence[TaskReport], claims: Mapping[str, IntArray]
    ) -> tuple[int, int]:
        """Store missing copies, and compare the messages of the batch with the rows of its tasks.

        Return how many copies were stored, and how many messages are rows of no task.
        """
        prefix = self.task.prefix.encode()
        copies = 0
        strangers = 0
        survey = ledger.survey(own_ids=self._own_ids, scheduled="schedule" in self.columns)
        for name, (created, stored) in survey.items():
            found = balance(
                stored,
                claims.get(name, np.zeros(0, np.int64)),
                prefix,
                numbered=self.options.message_ids == "position",
            )
            self._refuse_lost(name, found)
            strangers += found.strangers
            if found.doubled:
                log.warning(
                    "stream %s has %d rows of batch %d twice: they were on their way for longer "
                    "than it remembers message ids (duplicate_window)",
                    name,
                    found.doubled,
                    self.task.batch,
                )
            subjects: Subjects = {}
            for report in reports:
                subjects.update(report.subjects.get(name, {}))
            copies += self._store(name, created, found.missing, subjects, ledger)
        return copies, strangers

    @property
    def _own_ids(self) -> bool:
        return "msg_id" in self.columns

    def _refuse_lost(self, stream: str, found: Balance) -> None:
        # The removed message may be a row with an id of the user's, which needs no copy.
        if found.lost and not self._own_ids:
            raise DeliveryError(
                f"{_equal_in(stream)}, and it has removed {found.lost} of them before the driver "
                f"could store their copies; keep messages longer, or {_REMEDY}"
            )

    # Copies

    def _store(
        self,
        stream: str,
        created: str,
        missing: Sequence[Missing],
        subjects: Subjects,
        ledger: Ledger | None,
    ) -> int:
        """Store copies of messages of a stream, and return how many they are.

        They go to `subjects` if the stream renames messages.
        """
        if not missing:
            return 0
        requests = Requests(self.connect, self.options.connection.retry_timeout)
        renamed = requests.stream(stream).transforms
        ids: dict[int, list[bytes]] = {}
        for row in missing:
            if renamed:
                original = _original(row, subjects, stream)
            else:
                original = row.sequences[0]
            ids[original] = row.ids
        totals = Totals()
        target = Target(None, self.options.connection.domain)
        where = f"the equal rows of batch {self.task.batch}"
        sending = Publisher(self.connect, self.options, target, where, ledger, timing=self.timing)
        with sending as publisher:
            for sequences, originals in self._originals(stream, created, sorted(ids)):
                named = originals
                if renamed:
                    published_to = [subjects[sequence] for sequence in sequences]
                    named = replace(originals, subject=binaries(published_to))
                wanted = [ids.pop(sequence) for sequence in sequences]
                for copies, copy_ids in _copied(named, wanted):
                    publisher.publish(copies, copy_ids, stream, totals, any_stream=True)
                    _refuse(publisher, publisher.take_refused())
            _refuse(publisher, publisher.flush())
        # The stream had these messages when their rows were counted.
        if ids:
            raise DeliveryError(
                f"{_equal_in(stream)}, and it has removed {len(ids)} of them meanwhile; {_REMEDY}"
            )
        new = totals.stored - totals.duplicates
        log.info("stream %s has got %d copies of rows that several tasks have", stream, new)
        return new

    def _originals(
        self, stream: str, created: str, wanted: Sequence[int]
    ) -> Iterator[tuple[list[int], Rows]]:
        """Yield messages of a stream as the rows they were, with their sequences, which ascend."""
        settings = PullSettings(
            batch=_NEAR,
            max_bytes=8 * 1024 * 1024,
            expires=30.0,
            retry_timeout=self.options.connection.retry_timeout,
            fail_on_data_loss=False,
        )
        for first, last in _stretches(wanted):
            part = SequenceRange(stream, first, last + 1, None, created)
            for pulled in read_range(self.connect, part, settings, ledger_label(self.task.run)):
                chosen = np.flatnonzero(np.isin(pulled.sequences, wanted))
                if len(chosen):
                    yield pulled.sequences[chosen].tolist(), _as_rows(pulled[chosen])


_REMEDY = (
    "make the rows distinct, or drop column sequence, or set option messageIds to content, which "
    "stores equal rows once"
)


def _claims(reports: Sequence[TaskReport]) -> dict[str, IntArray]:
    """Return the claims of all tasks by stream, each as often as tasks have claimed it."""
    return merged(report.claims or {} for report in reports)


def _refuse_parted_groups(reports: Sequence[TaskReport]) -> None:
    """Raise `DeliveryError` for a group that several tasks had: each has stored its part."""
    tasks = Counter(name for report in reports for name in report.groups)
    for name, count in tasks.items():
        if count > 1:
            raise DeliveryError(
                f"partitions have stored group {shown_bytes(name)} in parts: write "
                "df.repartition('atomic_group')"
            )


def _equal_in(stream: str) -> str:
    return f"partitions of the batch have equal rows in stream {stream}"


def _original(row: Missing, subjects: Subjects, stream: str) -> int:
    """Return the message of a row whose subject is known."""
    for sequence in row.sequences:
        if sequence in subjects:
            return sequence
    raise DeliveryError(
        f"{_equal_in(stream)}, which stores rows under other subjects than theirs "
        f"(subject_transform), so no copies can be made of what it has; {_REMEDY}"
    )


def _refuse(publisher: Publisher, refused: Sequence[RefusedRow]) -> None:
    if refused:
        raise publisher.failure(refused[0])


def _noted(reports: Sequence[TaskReport], strangers: int) -> dict[str, Any]:
    """Return what the ledger keeps of a batch that is done."""
    streams = set[str]()
    rows = strangers
    content = 0
    own = 0
    for report in reports:
        streams.update(report.streams)
        rows += report.rows
        content += report.content or 0
        own += report.own
    # The order of tasks must not matter, so hashes are added up, modulo 2**64.
    return {
        "tasks": len(reports),
        "rows": rows,
        "content": f"{content % 2**64:016x}",
        "own": f"{own % 2**64:016x}",
        "streams": sorted(streams),
    }


def _stretches(sequences: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of sequences that are near to each other."""
    first = last = sequences[0]
    for sequence in sequences[1:]:
        if sequence - last > _NEAR:
            yield first, last
            first = sequence
        last = sequence
    yield first, last


def _as_rows(pulled: Delivered) -> Rows:
    """Return the rows that messages were, as the sink would publish them."""
    data = list[bytes]()
    lines = list[bytes]()
    for block, payload in pulled.frames.parts():
        kept = [line for line in block.split(b"\r\n")[1:] if line and not line.startswith(_MADE)]
        lines.append(b"".join(line + b"\r\n" for line in kept))
        # In place of an increment's empty payload the server stores the counter's value.
        counts = any(line.startswith(INCREMENT) for line in kept)
        data.append(b"" if counts else payload)
    numbers = np.arange(1, len(pulled) + 1)
    return Rows.of_messages(numbers, pulled.raw_subjects(), binaries(data), binaries(lines))


def _copied(
    originals: Rows, ids: Sequence[Sequence[bytes]]
) -> Iterator[tuple[Rows, pa.BinaryArray]]:
    """Yield each row as often as it has ids, with these ids, in portions of `_PORTION` rows."""
    row_of = np.repeat(np.arange(len(originals)), [len(some) for some in ids])
    flat = list(itertools.chain.from_iterable(ids))
    for at in range(0, len(flat), _PORTION):
        copies = originals.take(row_of[at : at + _PORTION])
        yield copies, binaries(flat[at : at + _PORTION])
