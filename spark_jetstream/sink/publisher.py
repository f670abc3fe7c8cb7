"""Publish rows over one connection and read their acknowledgements, with a bounded window of rows in flight.

One thread does both. docs/architecture.md has the rules ("How rows are stored"), and docs/delivery.md what they mean
for the rows. The publisher collects rows that can never be stored; the caller decides what becomes of them.
"""

from __future__ import annotations

import logging
import time

import numpy as np
import pyarrow as pa

from spark_jetstream.client.deadline import Deadline
from spark_jetstream.client.requests import Connect
from spark_jetstream.errors import ConnectionFailed, JetStreamError, OutageError, PermissionDenied, RowRefused
from spark_jetstream.options import SinkOptions
from spark_jetstream.protocol.pub_ack import NO_STREAM, AckReader, Outcome, Refusal, StoredAcks, outcome, queue_is_full
from spark_jetstream.protocol.wire import Frames
from spark_jetstream.sink.encode import encode
from spark_jetstream.sink.kv import expected_revision
from spark_jetstream.sink.ledger import Ledger
from spark_jetstream.sink.report import Totals
from spark_jetstream.sink.rows import IntArray, RefusedRow, Rows
from spark_jetstream.sink.target import Target
from spark_jetstream.sink.window import InFlight, SharedReply
from spark_jetstream.streams.lookup import RawMessage, ReplyListeners, message, next_message, streams_of, why_silent

log = logging.getLogger(__name__)

MAX_BYTES_IN_FLIGHT = 32 * 1024 * 1024
_MANY = 1000  # answers that are read together
_LAST_ANSWERS = 2.0  # seconds to wait for answers before a failure is raised


class Publisher:
    """Publishes portions of rows; use it as a context manager.

    `where` names the task in error messages. `ledger` is the entry of the task, with delivery exactly-once.
    """

    def __init__(
        self, connect: Connect, options: SinkOptions, target: Target, where: str, ledger: Ledger | None = None
    ) -> None:
        self.totals = Totals()
        self._options = options
        self._retry_timeout = options.connection.retry_timeout
        self._target = target
        self._where = where
        self._ledger = ledger
        self._connection = connect(self._retry_timeout)
        self._inbox = self._connection.inbox(replies=True)
        self._acks = AckReader(self._inbox.subject)
        self._listeners: dict[str | None, ReplyListeners] = {}
        self._no_stream: set[tuple[str | None, str]] = set()  # subjects that no stream captures, by the last answers
        self._portions: list[InFlight] = []
        self._places: set[tuple[str, str]] = set()  # stream and domain of answers so far
        self._paced = True
        self._separate = options.max_retries == 0  # whether each row must have a reply subject of its own
        self._free: list[int] = []  # numbers that rows shared and that have all their answers
        self._last_known: dict[str, int] = {}
        self._next = 1
        self._answered = self._away = time.monotonic()
        self._failing = False
        self._refused: list[RefusedRow] = []

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._inbox.close()

    # What the task calls

    @property
    def max_payload(self) -> int:
        """The largest message that the server takes, header and payload, in bytes."""
        return self._connection.max_payload

    def publish(
        self, rows: Rows, ids: pa.BinaryArray | None, stream: str | None, counted: Totals, *, shared: bool = False
    ) -> InFlight:
        """Send rows as soon as the window has room for them. Return them in flight, where their answers will show.

        `ids` are their message ids. Only `stream` may store them, if it is given. `counted` counts them once they are
        stored. With `shared` they may have one reply subject, which is faster, and their sequences are not kept. Raises
        `RowRefused`, `OutageError`, `DeliveryError` if another attempt owns the task, and `JetStreamError`.
        """
        self._come_back()
        portion = self._portion(rows, ids, stream, counted, shared and not self._separate and len(self._places) == 1)
        while self._portions and not self._has_room(portion):
            self._receive(wait=True)
        if portion.left:
            portion.begun = time.monotonic()
            if not self._portions:
                self._answered = portion.begun
            self._portions.append(portion)
            self._send(portion, list(portion.runs()))
            self._receive(wait=False)
        self._away = time.monotonic()
        return portion

    def _portion(
        self, rows: Rows, ids: pa.BinaryArray | None, stream: str | None, counted: Totals, shared: bool
    ) -> InFlight:
        first = self._free.pop() if shared and self._free else self._reserve(1 if shared else len(rows))
        encoded = encode(rows, ids, stream, inbox=self._inbox.subject, first_number=first, shared=shared)
        portion = InFlight(rows, ids, stream, encoded, first, counted, dict(self._last_known))
        self._refused.extend(portion.refuse_large(self.max_payload))
        if shared:
            portion.shared = SharedReply(portion.left, next(iter(self._places)))
        return portion

    def _reserve(self, count: int) -> int:
        """Return the first of `count` numbers that were never used."""
        first = self._next
        self._next += count
        return first

    def take_refused(self) -> list[RefusedRow]:
        """Return the rows that can never be stored and were not returned before."""
        refused, self._refused = self._refused, []
        return refused

    def flush(self) -> list[RefusedRow]:
        """Wait until every row has its answer, or until the server refuses rows for good. Return the refused rows.

        All rows are stored when the result is empty. Raises what `publish` raises.
        """
        self._come_back()
        while self._portions and not self._refused:
            self._receive(wait=True)
        self._away = time.monotonic()
        return self.take_refused()

    def pace(self, many: bool) -> None:
        """Read answers by the thousand if so many are due, which is cheap, or (with `many` false) each at once."""
        self._paced = many

    def failure(self, row: RefusedRow) -> RowRefused:
        """Return the error for a row that makes its task fail. Waits a moment for answers to count what is stored."""
        self._await_last_answers()
        place = self._target.at(row.subject).place(row.subject)
        return RowRefused(
            f"{self._named(row)} cannot be stored {place}: {row.reason}; {self._stored_already()}",
            number=row.number,
            subject=row.subject,
            err_code=row.err_code,
            stored=self.totals.stored,
        )

    def _named(self, row: RefusedRow) -> str:
        return f"{self._target.noun} {row.number} of {self._where}"

    def _stored_already(self) -> str:
        return self.totals.stored_already(self._target.noun)

    def _come_back(self) -> None:
        """Do not count the time since the last call as an outage: the task was busy and read no answers."""
        self._answered += time.monotonic() - self._away

    def _await_last_answers(self) -> None:
        self._failing = True
        deadline = Deadline(_LAST_ANSWERS)
        while any(portion.left for portion in self._portions) and not deadline.expired:
            try:
                event = self._inbox.get(max(0.01, deadline.left))
            except PermissionDenied:
                continue
            except JetStreamError as error:
                log.info("while counting the stored rows: %s", error)
                return
            if event is None:
                return
            if isinstance(event, Frames):
                self._take(event)

    # Sending

    def _has_room(self, portion: InFlight) -> bool:
        rows = portion.left + sum(sent.left for sent in self._portions)
        size = portion.nbytes + sum(sent.nbytes for sent in self._portions)
        return rows <= self._options.max_in_flight and size <= MAX_BYTES_IN_FLIGHT

    def _send(self, portion: InFlight, ranges: list[tuple[int, int]]) -> None:
        if self._ledger is not None:
            self._ledger.check()
        first_time = not portion.sent
        portion.sent = time.monotonic()
        for first, last in ranges:
            portion.again[first:last] = not first_time
            self._inbox.send(portion.encoded.frames(first, last))

    def _resume(self, cut: ConnectionFailed) -> None:
        """Wait until the connection is back, and send everything again that has no answer."""
        log.info("%s; rows without an answer are sent again", cut)
        while True:
            left = self._answered + self._retry_timeout - time.monotonic()
            if left <= 0:
                # Also when each reconnect succeeds: the server may cut the connection because of what is sent.
                raise OutageError(
                    f"no answer for {self._retry_timeout:g} s (option retryTimeout) while writing: "
                    f"{cut}; {self._stored_already()}"
                )
            try:
                self._inbox.resume(left)
                break
            except ConnectionFailed as error:
                if not error.retriable:
                    raise
                if not self._connection.usable:
                    raise OutageError(f"cannot go on writing: {error}; {self._stored_already()}") from None
                cut = error
        self._prepare_again(self._portions)
        for portion in self._portions:
            portion.due.clear()
            if portion.left:
                self._send(portion, list(portion.runs()))

    def _give_own_numbers(self, portion: InFlight) -> None:
        """Let each row of a portion have a reply subject of its own. The shared one is not used again."""
        first = self._reserve(len(portion.rows))
        inbox = self._inbox.subject
        portion.separate(encode(portion.rows, portion.ids, portion.stream, inbox=inbox, first_number=first), first)

    def _prepare_again(self, portions: list[InFlight]) -> None:
        """Before rows are sent again: let each have a reply subject of its own, and leave out those that are stored."""
        for portion in portions:
            if portion.shared is not None:
                self._give_own_numbers(portion)
        self._leave_out_stored(portions)

    def _leave_out_stored(self, portions: list[InFlight]) -> None:
        """Count the rows as stored that the ledger finds: a stream forgets message ids."""
        if self._ledger is None:
            return
        waiting: dict[bytes, list[tuple[InFlight, int]]] = {}
        for portion in portions:
            for index, message_id in portion.waiting_ids():
                waiting.setdefault(message_id, []).append((portion, index))
        if not waiting:
            return
        names = set.intersection(*(set(portion.after) for portion in portions))
        after = {name: min(portion.after[name] for portion in portions) for name in names}
        age = time.monotonic() - min(portion.begun for portion in portions)
        places = self._ledger.recall(age, after, waiting.keys())
        for message_id, (stream, sequence) in places.items():
            for portion, index in waiting[message_id]:
                portion.settle_as_duplicate(index, stream, sequence)
        if places:
            self._answered = time.monotonic()

    # Answers

    def _receive(self, *, wait: bool) -> None:
        """Read the answers that have arrived; with `wait`, wait for an answer or until a retry is due."""
        self._inbox.paced = self._paced and sum(portion.left for portion in self._portions) >= _MANY
        try:
            event = self._inbox.get(self._patience() if wait else 0.0)
            while event is not None:
                if isinstance(event, Frames):
                    self._take(event)
                event = self._inbox.get(0.0)
        except PermissionDenied as denied:
            self._on_denied(denied)
        except ConnectionFailed as error:
            self._resume(error)
        self._portions = [portion for portion in self._portions if portion.left]
        self._resend_due()

    def _patience(self) -> float:
        now = time.monotonic()
        next_due = min((due for portion in self._portions for due in portion.due.values()), default=now + 1.0)
        timeout = min((portion.sent + self._options.ack_timeout for portion in self._portions), default=now + 1.0)
        return min(max(min(next_due, timeout) - now, 0.005), 1.0)

    def _take(self, frames: Frames) -> None:
        self._no_stream.clear()
        answers = self._acks.read(frames)
        for stored in answers.stored:
            self._on_stored(stored)
        for refusal in answers.refused:
            self._on_refusal(refusal)
        for portion in self._portions:
            if portion.shared is not None and portion.shared.complete:
                self._conclude(portion)

    def _on_stored(self, stored: StoredAcks) -> None:
        self._answered = time.monotonic()
        for portion in self._portions:
            inside = portion.answered_by(stored.numbers)
            if not inside.any():
                continue
            if portion.counted is self.totals:
                self._places.add((stored.stream, stored.domain))
            if portion.shared is not None:
                portion.take_shared(stored, inside)
                self._note(portion, stored.stream, stored.sequences[inside])
                continue
            at = stored.numbers[inside] - portion.first
            fresh = portion.waiting[at]
            at, sequences = at[fresh], stored.sequences[inside][fresh]
            if not len(at):
                continue
            misplaced = self._target.misplaced(stored, any_stream=portion.counted is not self.totals)
            if misplaced is not None:
                if self._failing:
                    continue
                self._fail(portion, int(at[0]), misplaced, 0)
            duplicate = stored.duplicate[inside][fresh]
            twice = at[duplicate & ~np.isin(sequences, portion.own)] if duplicate.any() else at[:0]
            portion.waiting[at] = False
            portion.sequences[at] = sequences
            portion.known[twice] = True
            left = int(np.count_nonzero(portion.waiting))
            portion.counted.stored += portion.left - left
            portion.counted.duplicates += len(np.unique(twice))
            portion.left = left
            if portion.due:
                portion.due = {index: due for index, due in portion.due.items() if portion.waiting[index]}
            self._note(portion, stored.stream, sequences)

    def _note(self, portion: InFlight, stream: str, sequences: IntArray) -> None:
        last = int(sequences.max())
        portion.counted.note(stream, int(sequences.min()), last)
        self._last_known[stream] = max(last, self._last_known.get(stream, 0))

    def _conclude(self, portion: InFlight) -> None:
        """Settle rows with a shared reply subject that all have answers, or find out which of them are stored."""
        shared = portion.shared
        assert shared is not None
        if shared.proof:
            portion.settle_shared()
            self._free.append(portion.first)
        elif not self._failing:
            log.info(
                "the answers do not prove that %d rows are stored: those that may not be are sent again", shared.rows
            )
            self._separate = True
            self._give_own_numbers(portion)
            if portion.ids is None or portion.ids.null_count:
                self._find_stored(portion, shared)
            portion.due.update(dict.fromkeys(np.flatnonzero(portion.waiting).tolist(), 0.0))

    def _find_stored(self, portion: InFlight, shared: SharedReply) -> None:
        """Settle the rows that are found as acknowledged messages. Without ids they would be stored again."""
        alike: dict[tuple[str, bytes], list[int]] = {}  # the rows of each subject and payload
        for index in np.flatnonzero(portion.waiting).tolist():
            subject = portion.row(index).subject
            content = self._target.at(subject).stored_at(subject), portion.rows.data[index].as_py()
            alike.setdefault(content, []).append(index)
        acknowledged = [
            (stream, sequence)
            for (stream, domain), sequences in shared.sequences().items()
            if self._target.stream in (None, stream) and self._target.domain in (None, domain)
            for sequence in sequences.tolist()
        ]
        for stream, sequence in acknowledged:
            try:
                found = message(self._connection, stream, sequence, prefix=self._target.api_prefix)
            except JetStreamError as error:
                log.info("cannot read an acknowledged message: %s", error)
                return
            if found is None:
                continue
            candidates = alike.get((found.subject, found.data), [])
            index = next((index for index in candidates if _is_row(found, portion.row(index))), None)
            if index is not None:
                candidates.remove(index)
                portion.settle(index)
                portion.counted.stored += 1

    def _on_refusal(self, refusal: Refusal) -> None:
        for portion in self._portions:
            index = refusal.number - portion.first
            if portion.shared is not None and not index:
                portion.shared.refused += 1
                portion.left -= 1
                return
            if portion.shared is None and 0 <= index < len(portion.rows) and portion.waiting[index]:
                break
        else:
            return
        if self._failing:
            portion.settle(index)
            return
        meaning: Outcome | None = outcome(refusal)
        if meaning is Outcome.LOOK:
            meaning = self._settle_expected(portion, index)
        if meaning is Outcome.RETRY:
            self._try_again(portion, index, refusal)
        elif meaning is not None:
            row = portion.refuse(index, self._reason(portion.row(index), refusal), refusal.err_code)
            if meaning is Outcome.FAIL:
                raise self.failure(row)
            self._refused.append(row)

    def _settle_expected(self, portion: InFlight, index: int) -> Outcome | None:
        """Return what to do about a row that the server refused because of its expected sequence; None if it is stored.

        The server checks the expected sequence before the message id, so the message at that place may be this very
        row, stored by an earlier try. The row then counts as a duplicate. A row without a message id is recognised by
        payload and headers, and looked for only if it was sent more than once.
        """
        row = portion.row(index)
        if row.message_id is None and not portion.again[index]:
            return Outcome.REFUSED
        try:
            place = self._earlier_try(row)
        except JetStreamError as error:
            log.info("cannot read the message at the expected sequence of a row: %s", error)
            return Outcome.RETRY if error.retriable else Outcome.REFUSED
        if place is None:
            return Outcome.REFUSED
        portion.settle_as_duplicate(index, *place)
        return None

    def _earlier_try(self, row: RefusedRow) -> tuple[str, int] | None:
        """Stream and sequence of the message that follows the expected one on the row's subject, if it is this row."""
        expected = expected_revision(row.lines)
        if expected is None:
            return None
        target = self._target
        for name in [target.stream] if target.stream else streams_of(self._connection, row.subject):
            found = next_message(
                self._connection, name, target.stored_at(row.subject), expected + 1, prefix=target.api_prefix
            )
            if found is not None and _is_row(found, row):
                return name, found.sequence
        return None

    def _reason(self, row: RefusedRow, refusal: Refusal) -> str:
        return self._target.at(row.subject).reason(refusal, row.lines)

    def _is_captured(self, target: Target, subject: str, *, too_long: bool) -> bool:
        """Whether a stream may capture a subject; no if the account may not ask and `retryTimeout` has passed."""
        if target.api_prefix not in self._listeners:
            self._listeners[target.api_prefix] = ReplyListeners(self._connection, target.api_prefix)
        listeners = self._listeners[target.api_prefix]
        place = target.api_prefix, subject
        if place not in self._no_stream and listeners.nobody(target.stored_at(subject)):
            self._no_stream.add(place)
        return place not in self._no_stream and not (too_long and not listeners.may_ask)

    def _try_again(self, portion: InFlight, index: int, refusal: Refusal) -> None:
        """Send the row again after a pause; give up after `maxRetries`.

        A stream without a leader, or with a full queue, may take `retryTimeout` without an answer.
        """
        tries = int(portion.tries[index])
        if tries >= self._options.max_retries:
            row = portion.row(index)
            target = self._target.at(row.subject)
            too_long = time.monotonic() - self._answered > self._retry_timeout
            if refusal.code == NO_STREAM and not refusal.err_code:
                if not self._is_captured(target, row.subject, too_long=too_long):
                    self._refused.append(portion.refuse(index, target.no_stream, NO_STREAM))
                    return
            elif not queue_is_full(refusal):
                why = f"{self._reason(row, refusal)}, also after {tries} retries (option maxRetries)"
                self._fail(portion, index, why, refusal.err_code)
            if too_long:
                asked = "" if refusal.err_code else f": {self._why_silent(portion, index)}"
                raise OutageError(
                    f"{self._named(row)} cannot be stored: {self._reason(row, refusal)} for "
                    f"{self._retry_timeout:g} s (option retryTimeout){asked}; {self._stored_already()}"
                )
        portion.postpone(index)

    def _on_denied(self, denied: PermissionDenied) -> None:
        if denied.subject is None or denied.subject.lower().startswith(self._inbox.subject.rpartition(".")[0].lower()):
            raise denied
        for portion in self._portions:
            for index in np.flatnonzero(portion.waiting).tolist():
                subject = portion.row(index).subject
                # A server that has the option's domain itself names the subject under which the stream stores it.
                if denied.subject.lower() in (subject.lower(), self._target.at(subject).stored_at(subject).lower()):
                    self._fail(portion, index, "the account may not publish to this subject", 0)

    def _resend_due(self) -> None:
        """Send the rows again whose retry is due, and those that got no answer within `ackTimeout`."""
        now = time.monotonic()
        for portion in list(self._portions):
            due = [index for index, at in portion.due.items() if at <= now]
            if due:
                self._prepare_again([portion])
                marked = np.zeros(len(portion.rows), np.bool_)
                marked[due] = True
                for index in due:
                    portion.due.pop(index, None)
                self._send(portion, list(portion.runs(marked & portion.waiting)))
            if portion.left and now - portion.sent > self._options.ack_timeout:
                self._on_timeout(portion)

    def _on_timeout(self, portion: InFlight) -> None:
        if portion.timeouts >= self._options.max_retries:
            index = int(np.flatnonzero(portion.waiting)[0])
            why = (
                f"no acknowledgement within {self._options.ack_timeout:g} s (option ackTimeout), also after "
                f"{self._options.max_retries} retries (option maxRetries): {self._why_silent(portion, index)}"
            )
            self._fail(portion, index, why, 0)
        portion.timeouts += 1
        try:
            self._connection.check()
        except ConnectionFailed as error:
            self._resume(error)
            return
        portion.due.clear()
        self._separate = True
        self._prepare_again([portion])
        if portion.left:
            self._send(portion, list(portion.runs()))

    def _why_silent(self, portion: InFlight, index: int) -> str:
        subject = portion.row(index).subject
        target = self._target.at(subject)
        stream = target.stream if portion.counted is self.totals else None
        seconds = time.monotonic() - portion.sent
        return why_silent(self._connection, target.stored_at(subject), seconds, stream, prefix=target.api_prefix)

    def _fail(self, portion: InFlight, index: int, why: str, err_code: int) -> None:
        raise self.failure(portion.refuse(index, why, err_code))


def _is_row(message: RawMessage, row: RefusedRow) -> bool:
    headers = set(message.headers.split(b"\r\n"))
    if row.message_id is not None:
        return b"Nats-Msg-Id: " + row.message_id in headers
    same_payload = bool(message.data == row.rows.data[row.index].as_py())
    return same_payload and headers.issuperset(row.lines.split(b"\r\n"))
