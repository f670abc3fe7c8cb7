"""The ledger of delivery exactly-once: where each task began to write, and what it finished.

Its Key-Value bucket has one key for each partition of a write: `<query id>.<partition>`, or `w-<writeId>.<partition>`
for a batch write. Its value is JSON::

    {"version": 1, "batch": 12, "attempt": "<random>", "lease": 2.0, "done": false,
     "streams": {"ORDERS": {"created": "<time>", "next": 1001}}, "report": null}

`report` is a `TaskReport` once the task is done. `<query id>.batch` is an entry of the same form for the last batch
whose tasks are all done; its report is `{"tasks": 4}`.

docs/delivery.md ("How `exactly-once` outlives it") and docs/architecture.md ("Exactly once") have the rules. An attempt
owns the entry as long as the entry has its name. It reads the entry at least once in half a lease, and sends nothing
when it has not seen its name for a lease. What an attempt does with the entry of its task:

| the entry | step | what the attempt does | then |
|---|---|---|---|
| is missing, or of an earlier batch | `open` | writes its own, unless the batch is done | owns it |
| is another attempt's | `open` | writes its own, waits for the lease, reads what that one has stored | owns it |
| is done | `open` | takes its report, and compares the rows with it | stores nothing |
| is of a later batch | `open` | raises `DeliveryError` | fails |
| is its own | `begin` | notes where a stream ends before the first row goes there; looks for late rows | owns it |
| | `check` | reads the entry before it sends | owns it, or fails if another attempt has written |
| | `recall` | reads what the streams have stored, before it sends a row again | owns it |
| | `finish` | notes its report | has done the task |
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.client.requests import Connect, Requests, settled_info
from spark_jetstream.errors import DeliveryError, OutageError, StreamNotFound
from spark_jetstream.options import SinkOptions
from spark_jetstream.protocol.conventions import SCHEDULED_ID, ledger_label
from spark_jetstream.protocol.headers import decode_headers
from spark_jetstream.protocol.stream import SequenceRange, StreamSummary, subject_pattern
from spark_jetstream.protocol.wire import as_vector, binaries
from spark_jetstream.sink.ledger_entry import BUCKET, STREAM, Slot, TaskEntry
from spark_jetstream.sink.message_ids import MessageIds, WriteTask
from spark_jetstream.sink.report import TaskReport
from spark_jetstream.streams.lookup import next_message, streams_of
from spark_jetstream.streams.pull import PullSettings, read_range

__all__ = ["BUCKET", "FORGOTTEN", "REMEMBERED", "STREAM", "Ledger", "bucket_config", "note_batch", "refuse_unfit"]

log = logging.getLogger(__name__)

REMEMBERED = 30 * 86400.0
"""Seconds for which the ledger remembers a batch write with a writeId."""
FORGOTTEN = 86400.0
"""The same for one without, which cannot be run again."""

_LEASE = 2.0  # seconds
_STRAGGLERS = 60.0  # seconds for which a stream may still store what an earlier attempt has sent
_TRIES = 20
_ID_HEADERS = binaries([b"Nats-Msg-Id", SCHEDULED_ID.encode()])

_Places = dict[bytes, int]  # sequences in a stream by message id


class Ledger:
    """The entry of one task, seen by one attempt.

    `stored` maps streams to the message ids that earlier attempts have stored there, and some of this one's, and these
    to sequences. Methods raise `DeliveryError` if exactly-once is not possible, and what `Requests.call` raises. Five
    of the fifteen attributes are set once; the others say what the entry has, and what was looked for in which stream.
    """

    def __init__(self, connect: Connect, options: SinkOptions, task: WriteTask) -> None:
        self.stored: dict[str, _Places] = {}
        self._requests = Requests(connect, options.connection.retry_timeout)
        self._stream = options.stream
        self._task = task
        self._slot = Slot(self._requests, f"{task.write}.{task.partition}", task.expires)
        self._entry = TaskEntry(task.batch, secrets.token_hex(8), _LEASE)  # as this attempt writes it
        self._seen = 0.0  # when the entry was last asked for and had this attempt's name
        self._written = 0.0  # when this attempt last wrote it
        self._prefix = f"{task.prefix}.".encode()  # what the ids of the task's rows begin with
        self._scheduled = False  # whether rows may be schedules
        self._window = float("inf")  # the shortest duplicate window of the noted streams, in seconds
        self._patterns: dict[str, re.Pattern[str]] = {}  # the subjects of the noted streams
        self._taken_over = float("inf")  # when this attempt took the task over from another one
        self._looked = float("inf")  # when it last looked for what that one has stored
        self._scanned: dict[str, int] = {}  # up to which sequence of each stream it has looked

    def open(self, *, own_ids: bool, scheduled: bool = False) -> TaskReport | None:
        """Take the task over; return its report if it is done.

        `own_ids`: rows may have ids of the user's. `scheduled`: rows may be schedules, which the server removes.
        """
        if own_ids:
            self._prefix = b""
        self._scheduled = scheduled
        for _ in range(_TRIES):
            entry, self._slot.revision = self._slot.read()
            mine = TaskEntry(self._entry.batch, self._entry.attempt, self._entry.lease)
            taken = _of_batch(entry, self._task)
            if taken is None:
                finished = _of_batch(_batch_slot(self._requests, self._task).read()[0], self._task)
                if finished is not None:
                    raise self._other_rows("all tasks of the batch were done, and this partition was none of them")
            else:
                if taken.done and taken.report is not None:
                    report = TaskReport.from_json(taken.report)
                    return replace(report, duplicates=report.stored)
                mine.streams, mine.lease = taken.streams, taken.lease
            self._entry = mine
            if self._write():
                if taken is not None:
                    self._take_over()
                return None
        raise _fought_over(self._slot)

    def compare(self, finished: TaskReport, rows: int, made: MessageIds) -> None:
        """Raise `DeliveryError` if a run with so many rows, which `made` has got, is not the one of the report.

        The entries of older releases have no `content`, or no `own`: then these are not compared.
        """
        if rows != finished.rows:
            raise self._other_rows(f"it was done with {finished.rows} rows, and {rows} came now")
        if self._stream is not None and finished.streams and self._stream not in finished.streams:
            stored = f"they are in stream {', '.join(finished.streams)}"
            raise self._other_rows(f"{stored}, and option stream names {self._stream}")
        if finished.content not in (None, made.content) or finished.own not in (0, made.own):
            raise self._other_rows(f"it was done with {rows} rows, and as many came now, but not the same ones")

    def begin(self, subjects: pa.BinaryArray, stream: str | None) -> frozenset[bytes]:
        """Note the next sequence of `stream`, or of the streams that capture these subjects, unless it is noted.

        Return the subjects that no stream captures: the ledger could not find what is stored there later.
        """
        self._look_again()
        if stream is not None:
            if stream not in self._entry.streams:
                self._note([stream])
            return frozenset()
        names: list[str] = []
        lost: set[bytes] = set()
        for raw in pc.unique(subjects).to_pylist():
            subject = raw.decode("utf-8", "replace")
            if not any(pattern.fullmatch(subject) for pattern in self._patterns.values()):
                capturing = self._requests.call(partial(streams_of, subject=subject))
                names += capturing
                if not capturing:
                    lost.add(raw)
        if names:
            self._note(names)
        return frozenset(lost)

    def check(self) -> None:
        """Return if this attempt owns the task, and will own it for half a lease. Raise `DeliveryError` if not.

        An entry that expires is written again when half of its time is over.
        """
        lease, patience = self._entry.lease, self._requests.retry_timeout
        deadline, backoff = Deadline(patience), Backoff()
        while time.monotonic() - self._seen > lease / 2:
            if deadline.expired:
                raise OutageError(
                    f"bucket {BUCKET} gave no current answer within {lease / 2:g} s, for {patience:g} s (option "
                    "retryTimeout): nothing is sent without knowing that no other attempt has taken over"
                )
            asked = time.monotonic()
            entry, revision = self._slot.read()
            if revision < self._slot.revision:
                # A server that was just elected leader may not have applied this attempt's last write yet.
                backoff.pause(deadline)
                continue
            if entry is None or entry.attempt != self._entry.attempt:
                raise self._superseded()
            self._seen, self._slot.revision = asked, revision
        expires = self._task.expires
        if expires is not None and time.monotonic() - self._written > expires / 2 and not self._write():
            raise self._superseded()

    def place(
        self, stored: Mapping[str, _Places], message_id: bytes, raw_subject: bytes, stream: str | None
    ) -> tuple[str, int] | None:
        """Return stream and sequence of a row for `stream`, or for the one that captures its subject, if in `stored`.

        An id of the user's may be that of another row in another stream.
        """
        for name in (name for name, ids in stored.items() if message_id in ids):
            if not self._prefix:
                subject = raw_subject.decode("utf-8", "replace")
                if not (name == stream if stream else self._patterns[name].fullmatch(subject)):
                    continue
            return name, stored[name][message_id]
        return None

    def recall(
        self, age: float, after: Mapping[str, int], rows: Sequence[tuple[bytes, bytes, str | None]]
    ) -> list[tuple[str, int] | None]:
        """Return where each of these rows is stored, given by id, subject and stream as for `place`; None if it is not.

        It is None for all as long as the streams surely remember the ids: until `age`, the seconds since the rows were
        first sent, is half a window. `after` holds the last sequence of each stream that was known then; the rows can
        only be after it.
        """
        if age < self._window / 2:
            return [None] * len(rows)
        ids, stored = {message_id for message_id, _, _ in rows}, dict[str, _Places]()
        for name in self._entry.streams:
            self._stored_since(name, after.get(name, 0) + 1, ids.__contains__, stored.setdefault(name, {}))
        places = [self.place(stored, *row) for row in rows]
        count = sum(place is not None for place in places)
        log.info("ledger entry %s: %d of %d rows without an answer are stored", self._slot.key, count, len(rows))
        return places

    def finish(self, report: TaskReport, made: MessageIds) -> None:
        """Note that the task is done. Raise `DeliveryError` if earlier attempts have stored other rows as well.

        Their number is then part of the entry, so that no later run passes for the one that is done.
        """
        others = made.strangers(chain.from_iterable(self.stored.values()))
        noted = replace(report, rows=report.rows + others, stored=report.stored + others)
        self._entry.done, self._entry.report = True, noted.to_json()
        if not self._write():
            raise self._superseded()
        if others:
            raise self._other_rows(
                f"an earlier attempt has stored {others} rows that are not among the {report.rows} of this one"
            )

    # Taking over

    def _take_over(self) -> None:
        """Wait until the earlier attempt sends nothing more, then read what it has stored."""
        log.info(
            "ledger entry %s: another attempt has begun this task; waiting %g s", self._slot.key, self._entry.lease
        )
        threading.Event().wait(self._entry.lease)
        self._looked = self._taken_over = time.monotonic()
        for name in list(self._entry.streams):
            try:
                state, first = self._stored_since(name, 1, self._is_mine, self.stored.setdefault(name, {}))
            except StreamNotFound:
                log.warning("stream %s was deleted since, and what was stored in it is gone", name)
                del self._entry.streams[name], self.stored[name]
                continue
            self._entry.streams[name] = {"created": state.created, "next": first}
            self._scanned[name] = state.last_seq
            self._remember(state)
        log.info("ledger entry %s: %d rows are stored already", self._slot.key, sum(map(len, self.stored.values())))

    def _look_again(self) -> None:
        """Look for rows that the earlier attempt had in flight, before this one sends what streams may have forgotten.

        The last look is so late that no row can come after it.
        """
        now = time.monotonic()
        if now - self._looked < self._window / 2 or self._looked - self._taken_over > self._window + _STRAGGLERS:
            return
        self._looked = now
        for name, last in self._scanned.items():
            state, _ = self._stored_since(name, last + 1, self._is_mine, self.stored[name])
            self._scanned[name] = state.last_seq

    def _is_mine(self, message_id: bytes) -> bool:
        return message_id.startswith(self._prefix)

    def _stored_since(
        self, name: str, first: int, wanted: Callable[[bytes], bool], places: _Places
    ) -> tuple[StreamSummary, int]:
        """Add what is stored from the noted sequence on, or `first`; return the state and where reading began."""
        state = self._state(name)
        noted = self._entry.streams[name]
        first = max(first, int(noted["next"]))
        if state.created != noted["created"]:
            # The stream was deleted and made again: it has lost what was stored.
            first = 1
        elif state.first_kept > first and not (self._scheduled and state.max_age <= 0 and not state.evicts):
            raise DeliveryError(
                f"stream {name} has removed messages from sequence {first} to {state.first_kept - 1} since "
                f"partition {self._task.partition} of batch {self._entry.batch} was begun, so nobody can tell which of "
                "its rows are stored (option delivery): keep messages longer, or let this batch through with "
                "deduplicated"
            )
        self._read(state, first, wanted, places)
        if self._scheduled:
            # A schedule that was published meanwhile, before it was read, is gone: its message comes after the end.
            end, state = state.last_seq, self._state(name)
            self._read(state, end + 1, wanted, places)
        return state, first

    def _read(self, state: StreamSummary, at: int, wanted: Callable[[bytes], bool], places: _Places) -> None:
        """Add what is stored from sequence `at` to the last one of `state`."""
        name = state.name
        deadline = Deadline(self._requests.retry_timeout)
        while at <= state.last_seq:
            part = SequenceRange(name, at, state.last_seq + 1, None, state.created)
            at = self._scan(part, wanted, places) + 1
            if at > state.last_seq:
                break
            # The last messages were removed, or a replica that lags behind served the reader: only the leader knows.
            unread = self._requests.call(partial(next_message, stream=name, subject=">", sequence=at))
            if unread is None:
                break
            if deadline.expired:
                raise OutageError(
                    f"stream {name} cannot be read up to sequence {state.last_seq} within {deadline.seconds:g} s "
                    "(option retryTimeout): a replica lags behind"
                )
            at = unread.sequence

    def _scan(self, part: SequenceRange, wanted: Callable[[bytes], bool], stored: _Places) -> int:
        """Add the message ids of a range to `stored`. Return the last sequence that was read, or the one before it."""
        last_seen = part.first - 1
        settings = PullSettings(
            batch=20_000,
            max_bytes=8 * 1024 * 1024,
            expires=30.0,
            retry_timeout=self._requests.retry_timeout,
            fail_on_data_loss=False,
            headers_only=True,
        )
        for pulled in read_range(self._requests.connect, part, settings, ledger_label(self._entry.attempt)):
            last_seen = int(pulled.sequences[-1])
            frames = pulled.frames
            # As bytes: an id need not be UTF-8.
            entries = decode_headers(frames.data, frames.line_end, frames.head, raw=True)
            parents = pc.list_parent_indices(pa.ListArray.from_arrays(entries.offsets, entries.keys))
            chosen = pc.indices_nonzero(pc.is_in(entries.keys, value_set=_ID_HEADERS))
            rows = as_vector(parents.take(chosen))
            for row, values in zip(rows.tolist(), entries.items.take(chosen).to_pylist(), strict=True):
                for message_id in values:
                    if wanted(message_id):
                        stored[message_id] = int(pulled.sequences[row])
        return last_seen

    # Streams

    def _note(self, names: list[str]) -> None:
        for name in names:
            if name not in self._entry.streams:
                state = self._state(name)
                refuse_unfit(state)
                self._entry.streams[name] = {"created": state.created, "next": state.last_seq + 1}
                self._remember(state)
        if not self._write():
            raise self._superseded()

    def _remember(self, state: StreamSummary) -> None:
        self._window = min(self._window, state.duplicate_window)
        self._patterns[state.name] = subject_pattern(state.subjects)

    def _state(self, name: str) -> StreamSummary:
        context = f"read the state of stream {name}, which delivery exactly-once needs"
        state = self._requests.stream(name, context)
        # A server that led the stream before names an end that is too early.
        return state if state.followed else self._requests.call(partial(settled_info, name=name, context=context))

    # The entry

    def _write(self) -> bool:
        asked = time.monotonic()
        written = self._slot.write(self._entry)
        if written:
            self._seen = self._written = asked
        return written

    def _other_rows(self, why: str) -> DeliveryError:
        return _other_rows(self._task, f"partition {self._task.partition} of batch {self._task.batch}", why)

    def _superseded(self) -> DeliveryError:
        return DeliveryError(
            f"another attempt of partition {self._task.partition} of batch {self._entry.batch} has taken over; this "
            "one stores nothing more"
        )


def note_batch(connect: Connect, options: SinkOptions, task: WriteTask, tasks: int) -> None:
    """Note that the batch of `task`, whatever its partition, is stored by so many tasks.

    Raises `DeliveryError` if another number of tasks has stored it before, and what `Requests.call` raises.
    """
    slot = _batch_slot(Requests(connect, options.connection.retry_timeout), task)
    for _ in range(_TRIES):
        entry, slot.revision = slot.read()
        known = _of_batch(entry, task)
        if known is not None:
            before = (known.report or {}).get("tasks")
            if before != tasks:
                raise _other_rows(task, f"batch {task.batch}", f"it was done by {before} tasks, and now by {tasks}")
            return
        if slot.write(TaskEntry(task.batch, secrets.token_hex(8), _LEASE, True, report={"tasks": tasks})):
            return
    raise _fought_over(slot)


def _batch_slot(requests: Requests, task: WriteTask) -> Slot:
    return Slot(requests, f"{task.write}.batch", task.expires)


def _of_batch(entry: TaskEntry | None, task: WriteTask) -> TaskEntry | None:
    """Return the entry if it is of the task's batch, None if there is none or it is of an earlier batch."""
    if entry is None or entry.batch < task.batch:
        return None
    if entry.batch > task.batch:
        raise DeliveryError(
            f"batch {task.batch} of this query is written again, but batch {entry.batch} was begun already: is the "
            "query running twice, or from an older copy of its checkpoint?"
        )
    return entry


def _other_rows(task: WriteTask, what: str, why: str) -> DeliveryError:
    if task.expires is None:
        cause = (
            "the batch was planned anew, because its checkpoint is older or has lost its newest files, or the query "
            "makes other rows or partitions each time, as with rand() and uuid(). Go on with the newest checkpoint, "
            "or run this batch alone (trigger(once=True))"
        )
    else:
        cause = "a write that runs again must have the same rows in the same partitions. Take another writeId, or write"
    return DeliveryError(
        f"{what} of {task.write} was written before with other rows ({why}): {cause} "
        "with deduplicated (option delivery), which loses no row but may store rows twice"
    )


def _fought_over(slot: Slot) -> DeliveryError:
    return DeliveryError(f"ledger entry {slot.key} of bucket {BUCKET} has two writers: is the query running twice?")


def refuse_unfit(state: StreamSummary, hint: str = "") -> None:
    """Raise `DeliveryError` for a stream that can lose or remove acknowledged rows before their batch is committed.

    `hint` follows the name of the stream in the error.
    """
    why = None
    if state.retention != "limits":
        why = f"it has {state.retention} retention, and what was consumed can no longer be found"
    elif state.max_msgs_per_subject > 0:
        why = "it keeps few messages of each subject (max_msgs_per_subject), and older ones can no longer be found"
    elif state.persist_mode == "async":
        why = "it acknowledges rows before it has stored them (persist_mode async), and a crash loses them"
    if why is not None:
        what = f"delivery exactly-once is not possible with stream {state.name}{hint}"
        raise DeliveryError(f"{what}: {why}; use deduplicated")


def bucket_config(replicas: int) -> Mapping[str, Any]:
    """Return the configuration of the ledger's stream: one revision of each key, and no expiry but an entry's own."""
    return {
        "name": STREAM,
        "description": "spark-jetstream: which tasks of delivery exactly-once have begun, and where",
        "subjects": [f"$KV.{BUCKET}.>"],
        "max_msgs_per_subject": 1,
        "num_replicas": replicas,
        "storage": "file",
        "discard": "new",
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
        "allow_msg_ttl": True,
    }
