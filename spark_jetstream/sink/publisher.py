"""Publisher of rows: sends them, reads acknowledgements, and words the error of a row that fails.

It has one connection and a limited number of rows in flight, and one thread sends and reads.
`Window` knows which rows lack an answer. `SharedReplies` knows when answers that name no row prove
that all are stored. `Recovery` asks the server about rows without a good answer.
docs/architecture.md has the reasons ("How rows are stored"), and docs/delivery.md the consequences
for the rows.

A portion is sent when `Window` has room for it. Its rows share one reply subject, or each has its
own:

| a row is | what happens | then the row is, or the task |
|---|---|---|
| too large for the server | `publish` | refused |
| in flight, shared subject | all answers have arrived and prove that all rows are stored | stored |
| | all answers have arrived and prove nothing | stored, if they have no id and the stream has their messages; else due at once |
| in flight, own subject | an acknowledgement of the stream and domain that must store it | stored |
| | an acknowledgement of another one | fails |
| | a refusal that may pass | due after a pause; after `maxRetries` it fails (1) (2) |
| | a refusal for what its subject has | stored, if the message there is this row; else refused |
| | a refusal of this row | refused |
| | a refusal of all rows; no permission | fails |
| in flight, either | no answer within `ackTimeout` | sent again; after `maxRetries` it fails (1) |
| | a cut | sent again; after `retryTimeout` without an answer it fails |
| due | its time | in flight, sent again |
| | a late acknowledgement | stored |

(1) A row is refused if its subject has no stream, also if the subject has another subscriber and
the server cannot say so. It is not refused while a stream of the task does not answer: a mapping of
subjects may bring the row there.

(2) A row that is larger than all that its stream, or the account, may keep is refused. A stream
that has no leader, or whose leader has decided nothing (`pub_ack.is_undecided`), may take
`retryTimeout`.

Before rows are sent again each gets a reply subject of its own, and with delivery exactly-once
those that the ledger finds are stored. The caller decides what becomes of refused rows
(`take_refused`). After an error a task is over.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from spark_jetstream.client.deadline import Deadline
from spark_jetstream.client.requests import Connect
from spark_jetstream.errors import (
    ConnectionFailed,
    JetStreamError,
    OutageError,
    PermissionDenied,
    RowRefused,
)
from spark_jetstream.options import SinkOptions
from spark_jetstream.protocol.features import EXPECTED_STREAM_PASSES_MIRRORS
from spark_jetstream.protocol.pub_ack import (
    NO_STREAM,
    AckReader,
    Outcome,
    Refusal,
    RefusalCode,
    is_undecided,
    outcome,
)
from spark_jetstream.protocol.wire import Frames
from spark_jetstream.sink.ledger import Ledger
from spark_jetstream.sink.listeners import Listeners
from spark_jetstream.sink.recovery import Recovery
from spark_jetstream.sink.report import Totals
from spark_jetstream.sink.rows import RefusedRow, Rows
from spark_jetstream.sink.target import Target
from spark_jetstream.sink.timing import WRITE_TIMING, WriteTiming
from spark_jetstream.sink.window import InFlight, Portion, Window

log = logging.getLogger(__name__)

_MANY = 1000  # answers in flight from which on they are read together
_PACE = 0.008  # seconds between two such reads: some thousand answers at full speed
# How often streams are searched for the same rows before these are sent: one that forgets message
# ids faster than that is known as well as it can be.
_LOOKS = 5


class Publisher:
    """Publishes portions of rows; use it as a context manager.

    `where` names the task in error messages. `ledger` is the entry of the task, with delivery
    exactly-once. `totals` counts the rows of the task that are stored. `timing` has its clock, too.
    """

    def __init__(
        self,
        connect: Connect,
        options: SinkOptions,
        target: Target,
        where: str,
        ledger: Ledger | None = None,
        *,
        totals: Totals | None = None,
        timing: WriteTiming = WRITE_TIMING,
    ) -> None:
        #: The rows of the task that are stored.
        self.totals = Totals() if totals is None else totals
        #: Whether answers may be read by the thousand; the task needs some of them at once.
        self.paced = True
        self._options = options
        self._target = target
        self._where = where
        self._timing = timing
        self._clock = timing.clock
        self._connection = connect(options.connection.retry_timeout)
        self._inbox = self._connection.inbox(replies=True)
        self._acks = AckReader(self._inbox.subject)
        self._window = Window(
            self._inbox.subject,
            options.max_in_flight,
            # Rows that share a reply subject may have to be sent again, which `maxRetries` 0 rules
            # out.
            may_share=options.max_retries > 0,
            names_stream=self._connection.can(EXPECTED_STREAM_PASSES_MIRRORS),
        )
        self._listeners = Listeners(self._connection, target, timing)
        self._recovery = Recovery(self._connection, target, self._listeners, ledger, timing.clock)
        #: When the last answer came, or the first row of all in flight was sent.
        self._answered = self._clock()
        #: When the last call of the task ended: the time from then on is no outage.
        self._away = self._answered

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
        self,
        rows: Rows,
        ids: pa.BinaryArray | None,
        stream: str | None,
        counted: Totals,
        *,
        any_stream: bool = False,
        shared: bool = False,
        looked: float | None = None,
        repeated: bool = False,
    ) -> InFlight:
        """Send rows as soon as the window has room for them.

        Return them in flight, where their answers will show.

        `ids` are their message ids. The rows name `stream` as the only one that may store them, if
        it is given. The stream of the target must store them, or with `any_stream` any stream.
        `counted` counts them once they are stored. With `shared` they may have one reply subject,
        which is faster, and their sequences are not kept. `looked` is when the ledger was asked
        whether they are stored, if it was, on the clock of `timing`. `repeated`: they were
        published before, and the stream has forgotten their message ids.

        Raises `RowRefused`, `OutageError`, `DeliveryError` if another attempt owns the task, and
        `JetStreamError`.
        """
        # Spark may take longer for the next batch than an outage may last.
        # This time is no outage (test_a_cut_that_ends_before_the_next_rows_is_no_outage).
        self._answered += self._clock() - self._away
        # New messages of these rows come after the last message of each stream that is known
        # so far. A late answer to earlier rows names a message up to there.
        after = {name: last for name, (_, last) in self.totals.streams.items()}
        if looked is None:
            looked = self._clock()
        if repeated:
            # They may be stored as any message since the task began.
            after = {}
            looked = -math.inf
        portion = Portion(
            rows,
            ids,
            stream,
            counted,
            any_stream=any_stream,
            looked=looked,
            after=after,
            repeated=repeated,
        )
        flight = self._window.prepare(portion, self.max_payload, shared=shared)
        while not self._window.has_room(flight):
            self._receive(wait=True)
        if flight.unanswered:
            # With nothing in flight no answer was due, so an outage can only begin now.
            if not self._window.portions:
                self._answered = self._clock()
            self._window.portions.append(flight)
            self._send([flight])
            self._receive(wait=False)
        self._away = self._clock()
        return flight

    def refuse(self, rows: Iterable[RefusedRow]) -> None:
        """Add rows to those that can never be stored."""
        self._window.refused += rows

    def take_refused(self) -> list[RefusedRow]:
        """Return the rows that can never be stored and were not returned before."""
        refused = self._window.refused
        self._window.refused = []
        return refused

    def wait(self) -> bool:
        """Wait until every row has its answer, or until rows are refused for good.

        Return whether some are.

        All rows are stored when none is. Raises what `publish` raises.
        """
        self._answered += self._clock() - self._away
        while self._window.portions and not self._window.refused:
            self._receive(wait=True)
        self._away = self._clock()
        return bool(self._window.refused)

    def flush(self) -> list[RefusedRow]:
        """As `wait`, and return the refused rows."""
        self.wait()
        return self.take_refused()

    def headers_of(self, stream: str | None, sequence: int) -> bytes | None:
        """Return the header block of a message, None if it is gone or may not be read."""
        return self._recovery.headers_of(stream, sequence)

    def failure(self, row: RefusedRow) -> RowRefused:
        """Return the error for a row that makes its task fail.

        Waits a moment for answers to count what is stored.
        """
        stored = self._count_last_answers()
        noun = self._target.noun
        place = self._target.at(row.subject).place(row.subject)
        return RowRefused(
            f"{noun} {row.number} of {self._where} cannot be stored {place}: {row.reason}; "
            f"{self.totals.stored_already(noun)}",
            number=row.number,
            subject=row.subject,
            err_code=row.err_code,
            stored=stored,
        )

    def _outage(self, text: str) -> OutageError:
        return OutageError(f"{text}; {self.totals.stored_already(self._target.noun)}")

    def _count_last_answers(self) -> int:
        """Wait a moment for the missing answers, and return how many rows are stored.

        Nothing may be sent after it.
        """
        deadline = Deadline(self._timing.last_answers)
        while self._window.unanswered > 0 and not deadline.expired:
            try:
                event = self._inbox.get(max(0.01, deadline.left))
            # The server has denied one subject. Answers to other rows may still come.
            except PermissionDenied:
                continue
            # The connection was cut. Answers that the cut overtook are not counted,
            # so the count is at most the number of stored rows.
            except JetStreamError as error:
                log.info("while counting the stored rows: %s", error)
                break
            # No answer came within the time that was left.
            if not isinstance(event, Frames):
                break
            answers = self._acks.read(event)
            for stored in answers.stored:
                self._window.take(stored, self._target)
            for flight, index, _ in self._window.take_refusals(answers.refused):
                flight.settle(index)
        return self.totals.stored

    # Sending

    def _send(self, flights: list[InFlight], rows: list[int] | None = None) -> None:
        """Send rows without an answer, or these of them, unless they are stored already."""
        for at, flight in enumerate(flights):
            self._prepare(flights[at:])
            if flight.unanswered:
                for frames in flight.sending(self._clock(), rows):
                    self._inbox.send(frames)

    def _prepare(self, flights: list[InFlight]) -> None:
        """Wait until no other attempt sends these rows, and leave out those that are stored."""
        # Another attempt that takes over waits until this one must have stopped sending, and then
        # looks up the stored rows. It would not see a row that is sent later
        # (test_tasks_of_a_run_that_has_lost_its_batch_store_nothing_more).
        self._recovery.check_owner()
        for _ in range(_LOOKS):
            doubtful = self._recovery.doubtful(flights)
            if not doubtful:
                return
            for flight in doubtful:
                self._window.separate(flight)
            # A row that the ledger finds counts as an answer.
            if self._recovery.settle_noted(doubtful):
                self._answered = self._clock()
            # In an outage either question takes longer than the answer to the other one holds, so
            # both are asked until both answers are current
            # (test_longer_than_the_stream_remembers_before_the_ledger_answers).
            self._recovery.check_owner()

    def _send_again(self, flights: list[InFlight], rows: list[int] | None = None) -> None:
        """Send rows without an answer again, or these of them, unless they are stored already."""
        for flight in flights:
            # Answers at a shared subject do not say which rows they are for,
            # and an answer to the first try would count for the second one.
            self._window.separate(flight)
        self._send(flights, rows)

    def _send_due(self) -> None:
        """Send rows again whose time has come, and those that got no answer within `ackTimeout`."""
        now = self._clock()
        for flight in list(self._window.portions):
            due = [index for index, at in flight.due.items() if at <= now]
            if due:
                self._send_again([flight], due)
            if flight.unanswered and now - flight.sent > self._options.ack_timeout:
                self._on_timeout(flight)

    def _on_timeout(self, flight: InFlight) -> None:
        if flight.timeouts >= self._options.max_retries:
            self._on_last_timeout(flight)
            return
        flight.note_timeout()
        try:
            # A dead connection looks like a stream that does not answer. A ping tells them apart.
            self._connection.check()
        except ConnectionFailed as error:
            self._resume(error)
            return
        # A portion that shares loses all its answers when one is missing. After a silence this
        # would happen to each later portion again.
        self._window.may_share = False
        self._send_again([flight])

    def _on_last_timeout(self, flight: InFlight) -> None:
        """Refuse the rows whose subjects no stream captures.

        Raise `RowRefused` if there is another one.
        """
        for index in np.flatnonzero(flight.waiting).tolist():
            # A subscriber that is no stream keeps the server from saying that no stream captures a
            # subject. No try is left, so it counts which streams have leaders now.
            if self._refuse_uncaptured(flight, index, since=math.inf):
                continue
            silence = self._listeners.why_silent(flight, index, self._clock())
            why = (
                f"no acknowledgement within {self._options.ack_timeout:g} s (option ackTimeout), "
                f"also after {self._options.max_retries} retries (option maxRetries): {silence}"
            )
            raise self.failure(flight.refuse(index, why)[0])

    def _resume(self, cut: ConnectionFailed) -> None:
        """Wait until the connection is back, and send everything again that has no answer."""
        log.info("%s; rows without an answer are sent again", cut)
        patience = self._options.connection.retry_timeout
        while True:
            seconds = self._answered + patience - self._clock()
            if seconds <= 0:
                # Also when each reconnect succeeds: the server may cut the connection because of
                # what is sent.
                raise self._outage(
                    f"no answer for {patience:g} s (option retryTimeout) while writing: {cut}"
                )
            try:
                self._inbox.resume(seconds)
                break
            except ConnectionFailed as error:
                if not error.retriable:
                    raise
                # The client library has given the connection up: each further attempt would fail
                # at once (test_by_a_server_that_takes_less_than_before).
                if not self._connection.usable:
                    raise self._outage(f"cannot go on writing: {error}") from None
                cut = error
        self._send_again(self._window.portions)

    # Answers

    def _receive(self, *, wait: bool) -> None:
        """Read the answers received so far. With `wait`, wait for one, or until a row is due."""
        # With few answers in flight a pause between reads would only delay the rows that wait
        # for them.
        if self.paced and self._window.unanswered >= _MANY:
            self._inbox.pace = _PACE
        else:
            self._inbox.pace = 0.0
        patience = self._window.patience(self._clock(), self._options.ack_timeout) if wait else 0.0
        try:
            event = self._inbox.get(patience)
            while isinstance(event, Frames):
                self._take(event)
                event = self._inbox.get(0.0)
        except PermissionDenied as denied:
            self._on_denied(denied)
        except ConnectionFailed as error:
            self._resume(error)
        # Answers come first: a late acknowledgement settles a row that is due to be sent again.
        self._window.drop_answered()
        self._send_due()

    def _take(self, frames: Frames) -> None:
        answers = self._acks.read(frames)
        # A stream may be made while rows are in flight, so the API is asked anew,
        # but only once for each read of answers: a portion of thousands of rows may be
        # at one subject without a stream (test_is_asked_once_for_many_rows_and_again_later).
        self._listeners.note_answers({(stored.stream, stored.domain) for stored in answers.stored})
        for stored in answers.stored:
            self._answered = self._clock()
            misplaced = self._window.take(stored, self._target)
            if misplaced is not None:
                raise self.failure(misplaced)
        for flight, index, refusal in self._window.take_refusals(answers.refused):
            self._on_refusal(flight, index, refusal)
        for flight in self._window.conclude():
            log.info(
                "the answers do not prove that all rows are stored: those that may not be are sent "
                "again"
            )
            if flight.portion.ids is None or flight.portion.ids.null_count:
                # Without its id a row would be stored twice.
                self._recovery.settle_acknowledged(flight)

    def _on_refusal(self, flight: InFlight, index: int, refusal: Refusal) -> None:
        meaning: Outcome | None = outcome(refusal)
        # An earlier try of this very row may be in its way. The row is then stored,
        # and `meaning` is None.
        if meaning is Outcome.LOOK:
            meaning = self._recovery.settle_in_place(flight, index, refusal)
        if meaning is None:
            return
        # An election, a full queue or a full stream may pass.
        if meaning is Outcome.RETRY and flight.tries[index] < self._options.max_retries:
            flight.postpone(index, self._clock() + self._pause(flight, index))
            return
        row = flight.portion.members(index)[-1]
        reason = self._target.at(row.subject).reason(refusal, row.expected)
        if meaning is Outcome.RETRY:
            self._after_retries(flight, index, refusal, reason)
        elif meaning is Outcome.FAIL:
            raise self.failure(flight.refuse(index, reason, refusal.err_code)[0])
        else:
            self._window.refused += flight.refuse(index, reason, refusal.err_code)

    def _after_retries(self, flight: InFlight, index: int, refusal: Refusal, reason: str) -> None:
        """Give a row up after `maxRetries`, or send it again after a pause.

        A stream that has no leader, or whose leader has decided nothing, may take `retryTimeout`.
        """
        # Each attempt of the task would fail at a row that an empty stream has no room for either.
        # It is refused for good, so that it can become a dead letter.
        too_large = self._recovery.why_too_large(flight, index, refusal)
        if too_large is not None:
            self._window.refused += flight.refuse(index, too_large, refusal.err_code)
            return
        now = self._clock()
        # The time counts from the last answer to any row: a stream whose queue is full still stores
        # others (test_a_full_queue_fails_no_task_while_rows_are_stored).
        too_long = now - self._answered > self._options.connection.retry_timeout
        is_unheard = refusal.code == NO_STREAM and not refusal.err_code
        # In a group the server answers the row that no stream captures with status 503,
        # and the last row with 10176. A late 10176 may hide the 503 of the next try.
        may_be_uncaptured = is_unheard or refusal.err_code == RefusalCode.BATCH_INCOMPLETE
        may_pass = is_unheard or is_undecided(refusal)
        # A stream may have been away when the row was sent, so the row is sent once more. For a row
        # that is not, it counts which streams have leaders now.
        since = flight.sent if may_pass else math.inf
        if may_be_uncaptured and self._refuse_uncaptured(
            flight, index, since=since, too_long=too_long
        ):
            return
        if not may_pass:
            why = f"{reason}, also after {flight.tries[index]} retries (option maxRetries)"
            raise self.failure(flight.refuse(index, why, refusal.err_code)[0])
        if too_long:
            raise self._unavailable(flight, index, refusal, reason)
        flight.postpone(index, self._clock() + self._pause(flight, index))

    def _pause(self, flight: InFlight, index: int) -> float:
        """Return the seconds before the next retry of a row."""
        pauses = self._timing.pauses
        return pauses[min(int(flight.tries[index]), len(pauses) - 1)]

    def _unavailable(
        self, flight: InFlight, index: int, refusal: Refusal, reason: str
    ) -> OutageError:
        """Return the error for a row that the server has put off for too long."""
        # A status names no cause, so the error adds the state of the stream.
        silence = ""
        if not refusal.err_code:
            silence = f": {self._listeners.why_silent(flight, index, self._clock())}"
        number = flight.portion.members(index)[-1].number
        return self._outage(
            f"{self._target.noun} {number} of {self._where} cannot be stored: {reason} for "
            f"{self._options.connection.retry_timeout:g} s (option retryTimeout){silence}"
        )

    def _refuse_uncaptured(
        self, flight: InFlight, index: int, *, since: float, too_long: bool = False
    ) -> bool:
        """Refuse a row if no stream captures its subject. Return whether that is so.

        The streams must have had leaders `since` this time, or one may have been away.
        """
        for subject in dict.fromkeys(row.subject for row in flight.portion.members(index)):
            if self._listeners.nobody_listens(subject, since, too_long=too_long):
                why = self._target.at(subject).no_stream
                self._window.refused += flight.refuse(index, why, NO_STREAM)
                return True
        return False

    def _on_denied(self, denied: PermissionDenied) -> None:
        """Raise the error of a row whose subject is denied, or of the inbox.

        Another subject is not the task's.
        """
        if denied.subject is None:
            raise denied
        subject = denied.subject.lower()
        # The server has denied the inboxes of the account, so no answer can ever arrive.
        # `denied.subject` is in lower case (`client.refusals`).
        inboxes = self._inbox.subject.rpartition(".")[0].lower()
        if subject.startswith(inboxes):
            raise denied
        # Tasks of one worker share a connection, and hear of each denied publish.
        for flight in self._window.portions:
            for index in np.flatnonzero(flight.waiting).tolist():
                if subject in self._subjects_of(flight, index):
                    why = "the account may not publish to this subject"
                    raise self.failure(flight.refuse(index, why)[0])

    def _subjects_of(self, flight: InFlight, index: int) -> set[str]:
        """Return the subjects, in lower case, that a server may name for a row or a group."""
        subjects = set()
        for row in flight.portion.members(index):
            subjects.add(row.subject.lower())
            # A server that has the option's domain itself names the subject under which the stream
            # stores the row.
            subjects.add(self._target.at(row.subject).stored_at(row.subject).lower())
        return subjects
