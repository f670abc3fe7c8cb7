"""Frames out, acknowledgements in: a window of publishes in flight, over one connection, from one thread.

The rules:

- A row is stored when its acknowledgement says so, and never before; `flush` returns when that is true of every row.
- At most `maxInFlight` rows, and a bounded number of bytes, are under way: a server drops what its queue cannot hold.
- What may pass (no answer within `ackTimeout`, no stream on the subject during an election, a full queue) is sent
  again, the very same frame with the same message id, at most `maxRetries` times and with growing pauses.
- After a cut everything that has no answer yet is sent again; an outage may last `retryTimeout`, counted from the last
  answer. A row that was stored although its answer got lost is stored once more, unless it has a message id.
- What is sent again after longer than a stream remembers message ids is looked up first, where `recall` can do that.
- A row that can never be stored goes where `refused` takes it, or fails the task.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from spark_jetstream.client.connection import Connection
from spark_jetstream.errors import ConnectionFailed, JetStreamError, OutageError, PermissionDenied, RowRefused
from spark_jetstream.protocol.pub_ack import (
    NO_STREAM,
    AckReader,
    Outcome,
    Refusal,
    StoredAcks,
    Target,
    outcome,
    queue_is_full,
)
from spark_jetstream.protocol.wire import Frames
from spark_jetstream.sink.encode import encode
from spark_jetstream.sink.recovery import Recall, look, settle_stored
from spark_jetstream.sink.rows import Rows
from spark_jetstream.sink.window import InFlight, RefusedRow, Totals
from spark_jetstream.streams.lookup import ReplyListeners

log = logging.getLogger(__name__)

MAX_BYTES_IN_FLIGHT = 32 * 1024 * 1024
_SETTLING = 2.0  # seconds for the answers to what was sent before a failure


@dataclass(frozen=True)
class PublishSettings:
    """How to publish; times in seconds. ``stream`` and ``domain`` are those that must store the rows, or None.

    ``target`` says what subjects mean, and ``where`` who publishes.
    """

    max_in_flight: int
    ack_timeout: float
    max_retries: int
    retry_timeout: float
    stream: str | None
    domain: str | None = None
    where: str = "this task"
    target: Target = field(default_factory=Target)

    def astray(self, stored: StoredAcks, *, any_stream: bool) -> str | None:
        """Why an answer does not count: something else than what the options name has stored the row.

        With ``any_stream`` the row may be in another stream, as dead letters are.
        """
        if self.domain is not None and stored.domain != self.domain:
            # A subject says no domain: the nearest stream that captures it takes the row.
            where = f"of domain {stored.domain}" if stored.domain else "without a domain"
            return f"stream {stored.stream} {where} stored it, not domain {self.domain} (option domain)"
        if self.stream is not None and stored.stream != self.stream and not any_stream:
            return f"stream {stored.stream} stored it, not {self.stream} (option {self.target.option})"
        return None


class Publisher:
    """Publishes portions of rows; use it as a context manager.

    ``connect(patience)`` gives the connection. ``refused`` is called with rows that can never be stored; it may
    `publish` something in their place, and raises if the task is to fail. ``before_sending`` is called each time before
    something goes out, and raises if nothing may any more. ``recall`` is asked before something is sent again.
    """

    def __init__(
        self,
        connect: Callable[[float], Connection],
        settings: PublishSettings,
        refused: Callable[[list[RefusedRow]], None],
        before_sending: Callable[[], None],
        recall: Recall | None = None,
    ) -> None:
        self.settings = settings
        self.totals = Totals()
        self._refused = refused
        self._before_sending = before_sending
        self._recall = recall
        self._connection = connect(settings.retry_timeout)
        self._inbox = self._connection.inbox(replies=True)
        self._acks = AckReader(self._inbox.subject)
        self._target = settings.target
        self._listeners: dict[str | None, ReplyListeners] = {}
        self._flights: list[InFlight] = []
        self._last_known: dict[str, int] = {}
        self._next = 1
        self._in_flight = 0
        self._bytes = 0
        self._answered = self._away = time.monotonic()
        self._failing = False
        self._rejected: list[RefusedRow] = []
        self._handing_over = False

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._inbox.close()

    # What the writer calls

    @property
    def max_payload(self) -> int:
        """Largest message the server takes, header and payload, in bytes."""
        return self._connection.max_payload

    def publish(self, rows: Rows, own: pa.BinaryArray | bytes, ids: pa.BinaryArray | None, counted: Totals) -> InFlight:
        """Send rows, as soon as the window has room for them; their answers are added to ``counted``.

        What is returned says later what became of them.
        ``own`` is that of `encode`, ``ids`` are the message ids in it. Raises what `refused` raises, `RowRefused`,
        `OutageError`, and errors that no retry can mend as they are.
        """
        if not self._handing_over:
            # While the writer waited for rows nobody looked for answers: that is no outage.
            self._answered += time.monotonic() - self._away
        encoded = encode(rows, own, inbox=self._inbox.subject, first_number=self._next)
        flight = InFlight(rows, ids, encoded, self._next, counted, dict(self._last_known))
        self._next += len(rows)
        self._rejected.extend(flight.refuse_large(self.max_payload))
        while self._flights and not self._has_room(flight):
            self._pump(wait=True)
        if flight.left:
            flight.begun = time.monotonic()
            if not self._flights:
                self._answered = flight.begun
            self._flights.append(flight)
            self._land()
            self._send(flight, list(flight.runs()))
            self._pump(wait=False)
        self._hand_over()
        self._away = time.monotonic()
        return flight

    def pace(self, many: bool) -> None:
        """Whether to read answers by the thousand, which is cheap, or each as soon as it is there."""
        self._inbox.pace(many)

    def flush(self) -> None:
        """Wait until every row has its answer."""
        self._answered += time.monotonic() - self._away
        while self._flights or self._rejected:
            if self._flights:
                self._pump(wait=True)
            self._hand_over()

    def _hand_over(self) -> None:
        """Give away the rows that can never be stored, all that there are; not from within itself."""
        if not self._rejected or self._handing_over:
            return
        self._handing_over = True
        try:
            while self._rejected:
                rows, self._rejected = self._rejected, []
                self._refused(rows)
        finally:
            self._handing_over = False

    def settle(self) -> None:
        """Wait a moment for the answers to what was sent before a failure, so that it can say what is stored."""
        self._failing = True
        end = time.monotonic() + _SETTLING
        self._land()
        while self._flights and time.monotonic() < end:
            try:
                event = self._inbox.get(max(0.01, end - time.monotonic()))
            except PermissionDenied:
                continue
            except JetStreamError as error:
                log.info("while counting what is stored: %s", error)
                return
            if event is None:
                return
            if isinstance(event, Frames):
                self._take(event)
            self._land()

    # Sending

    def _has_room(self, flight: InFlight) -> bool:
        rows, size = self._in_flight + flight.left, self._bytes + flight.nbytes
        return rows <= self.settings.max_in_flight and size <= MAX_BYTES_IN_FLIGHT

    def _send(self, flight: InFlight, ranges: list[tuple[int, int]]) -> None:
        self._before_sending()
        first_time = not flight.sent
        flight.sent = time.monotonic()
        for first, last in ranges:
            flight.again[first:last] = not first_time
            self._inbox.send(flight.encoded.frames(first, last))

    def _resume(self, cut: ConnectionFailed) -> None:
        """The connection was cut: wait for it, and send everything again that has no answer."""
        log.info("%s; what has no answer yet is sent again", cut)
        while True:
            left = self._answered + self.settings.retry_timeout - time.monotonic()
            if left <= 0:
                # Also when the connection comes back each time: it may be cut because of what is sent.
                raise OutageError(
                    f"no answer for {self.settings.retry_timeout:g} s (option retryTimeout) while writing: "
                    f"{cut}; {self._stored_so_far()}"
                )
            try:
                self._inbox.resume(left)
                break
            except ConnectionFailed as error:
                if not error.retriable or not self._connection.usable:
                    raise OutageError(f"cannot go on writing: {error}; {self._stored_so_far()}") from None
                cut = error
        self._leave_out_stored(self._flights)
        for flight in self._flights:
            flight.due.clear()
            if flight.left:
                self._send(flight, list(flight.runs()))

    def _leave_out_stored(self, flights: list[InFlight]) -> None:
        """Before rows are sent again: those that are stored and that the stream may no longer know count as stored."""
        if self._recall is not None and settle_stored(flights, self._recall):
            self._answered = time.monotonic()

    # Answers

    def _pump(self, *, wait: bool) -> None:
        """Take what has come; with ``wait``, wait for something to come or for something to be due."""
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
        self._land()
        self._look_after()

    def _patience(self) -> float:
        now = time.monotonic()
        next_due = min((due for flight in self._flights for due in flight.due.values()), default=now + 1.0)
        timeout = min((flight.sent + self.settings.ack_timeout for flight in self._flights), default=now + 1.0)
        return min(max(min(next_due, timeout) - now, 0.005), 1.0)

    def _take(self, frames: Frames) -> None:
        answers = self._acks.read(frames)
        for stored in answers.stored:
            self._on_stored(stored)
        for refusal in answers.refused:
            self._on_refusal(refusal)

    def _on_stored(self, stored: StoredAcks) -> None:
        self._answered = time.monotonic()
        for flight in self._flights:
            inside = (stored.numbers >= flight.first) & (stored.numbers < flight.first + len(flight.rows))
            if not inside.any():
                continue
            at = stored.numbers[inside] - flight.first
            fresh = flight.waiting[at]
            at, sequences = at[fresh], stored.sequences[inside][fresh]
            if not len(at):
                continue
            astray = self.settings.astray(stored, any_stream=flight.counted is not self.totals)
            if astray is not None:
                if self._failing:
                    continue
                self._fail(flight, int(at[0]), astray, 0)
            twice = at[stored.duplicate[inside][fresh]]
            flight.waiting[at] = False
            flight.sequences[at] = sequences
            flight.known[twice] = True
            left = int(np.count_nonzero(flight.waiting))
            flight.counted.stored += flight.left - left
            flight.counted.duplicates += len(np.unique(twice))
            flight.left = left
            if flight.due:
                flight.due = {index: due for index, due in flight.due.items() if flight.waiting[index]}
            flight.counted.note(stored.stream, int(sequences.min()), int(sequences.max()))
            self._last_known[stored.stream] = max(int(sequences.max()), self._last_known.get(stored.stream, 0))

    def _on_refusal(self, refusal: Refusal) -> None:
        for flight in self._flights:
            index = refusal.number - flight.first
            if 0 <= index < len(flight.rows) and flight.waiting[index]:
                break
        else:
            return
        if self._failing:
            flight.settle(index)
            return
        meaning: Outcome | None = outcome(refusal)
        if meaning is Outcome.LOOK:
            meaning = look(self._connection, self._target, self.settings.stream, flight, index)
        if meaning is None:
            return
        if meaning is Outcome.REFUSED:
            flight.settle(index)
            self._rejected.append(flight.refusal(index, self._reason(flight, index, refusal), refusal.err_code))
        elif meaning is Outcome.FAIL:
            self._fail(flight, index, self._reason(flight, index, refusal), refusal.err_code)
        else:
            self._try_again(flight, index, refusal)

    def _reason(self, flight: InFlight, index: int, refusal: Refusal) -> str:
        return self._at(flight, index).reason(refusal, bytes(flight.rows.lines[index].as_py()))

    def _at(self, flight: InFlight, index: int) -> Target:
        return self._target.at(flight.subject(index))

    def _nobody(self, target: Target, subject: str, *, too_long: bool) -> bool:
        """Whether no stream captures a subject; where that may not be asked, whether it was tried for long enough."""
        if target.api_prefix not in self._listeners:
            self._listeners[target.api_prefix] = ReplyListeners(self._connection, target.api_prefix)
        listeners = self._listeners[target.api_prefix]
        return listeners.nobody(target.stored_at(subject)) or (too_long and not listeners.may_ask)

    def _try_again(self, flight: InFlight, index: int, refusal: Refusal) -> None:
        """Send the row again after a pause; give up after `maxRetries`.

        A stream that lacks its leader, or has others' rows to store first, may take `retryTimeout` without an answer.
        """
        tries = int(flight.tries[index])
        if tries >= self.settings.max_retries:
            too_long = time.monotonic() - self._answered > self.settings.retry_timeout
            if refusal.code == NO_STREAM and not refusal.err_code:
                target = self._at(flight, index)
                if self._nobody(target, flight.subject(index), too_long=too_long):
                    flight.settle(index)
                    self._rejected.append(flight.refusal(index, target.nobody, NO_STREAM))
                    return
            elif not queue_is_full(refusal):
                said = self._reason(flight, index, refusal)
                why = f"{said}, also after {tries} retries (option maxRetries)"
                self._fail(flight, index, why, refusal.err_code)
            if too_long:
                said = self._reason(flight, index, refusal)
                raise OutageError(
                    f"row {int(flight.rows.number[index])} of {self.settings.where} cannot be stored: "
                    f"{said} for {self.settings.retry_timeout:g} s (option retryTimeout); "
                    f"{self._stored_so_far()}"
                )
        flight.postpone(index)

    def _on_denied(self, denied: PermissionDenied) -> None:
        if denied.subject is None or denied.subject.lower().startswith(self._inbox.subject.rpartition(".")[0].lower()):
            raise denied
        for flight in self._flights:
            for index in np.flatnonzero(flight.waiting).tolist():
                subject = flight.subject(index)
                # A server that has the option's domain itself names the subject as it is stored.
                if denied.subject.lower() in (subject.lower(), self._target.at(subject).stored_at(subject).lower()):
                    self._fail(flight, index, "the account may not publish to this subject", 0)

    def _land(self) -> None:
        """Forget the portions of which every row has its answer."""
        if any(not flight.left for flight in self._flights):
            self._flights = [flight for flight in self._flights if flight.left]
        self._in_flight = sum(flight.left for flight in self._flights)
        self._bytes = sum(flight.nbytes for flight in self._flights)

    def _look_after(self) -> None:
        """Send again what is due, and what got no answer in time."""
        now = time.monotonic()
        for flight in list(self._flights):
            due = sorted(index for index, at in flight.due.items() if at <= now)
            if due:
                self._leave_out_stored([flight])
                due = [index for index in due if flight.waiting[index]]
                for index in due:
                    del flight.due[index]
                self._send(flight, [(index, index + 1) for index in due])
            if now - flight.sent <= self.settings.ack_timeout or not flight.left:
                continue
            self._on_silence(flight)

    def _on_silence(self, flight: InFlight) -> None:
        if flight.silences >= self.settings.max_retries:
            index = int(np.flatnonzero(flight.waiting)[0])
            why = (
                f"no acknowledgement within {self.settings.ack_timeout:g} s (option ackTimeout), also after "
                f"{self.settings.max_retries} retries (option maxRetries): {self._at(flight, index).silence}"
            )
            self._fail(flight, index, why, 0)
        flight.silences += 1
        try:
            self._connection.check()
        except ConnectionFailed as error:
            self._resume(error)
            return
        flight.due.clear()
        self._leave_out_stored([flight])
        if flight.left:
            self._send(flight, list(flight.runs()))

    # Failing

    def _fail(self, flight: InFlight, index: int, why: str, err_code: int) -> None:
        flight.settle(index)
        raise self.failure(flight.refusal(index, why, err_code))

    def failure(self, row: RefusedRow) -> RowRefused:
        """The error for a row that fails its task; waits a moment for the answers to what was sent before."""
        self.settle()
        place = self._target.at(row.subject).place(row.subject)
        return RowRefused(
            f"row {row.number} of {self.settings.where} cannot be stored {place}: {row.reason}; "
            f"{self._stored_so_far()}",
            number=row.number,
            subject=row.subject,
            err_code=row.err_code,
            stored=self.totals.stored,
        )

    def _stored_so_far(self) -> str:
        count = self.totals.stored
        return f"{count} row{'s' if count != 1 else ''} of it {'are' if count != 1 else 'is'} stored already"


__all__ = ["PublishSettings", "Publisher", "RefusedRow", "Totals"]
