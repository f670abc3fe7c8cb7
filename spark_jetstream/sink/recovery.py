"""Asks the server about rows without a good answer: whether they are stored all the same."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from spark_jetstream.buckets.kv import last_revision
from spark_jetstream.client.connection import Connection
from spark_jetstream.errors import JetStreamError
from spark_jetstream.protocol.arrow import as_arrow
from spark_jetstream.protocol.pub_ack import Outcome, Refusal
from spark_jetstream.sink.commands import INCREMENT
from spark_jetstream.sink.ledger import Ledger
from spark_jetstream.sink.listeners import Listeners
from spark_jetstream.sink.room import is_about_room, why_too_large
from spark_jetstream.sink.rows import RefusedRow
from spark_jetstream.sink.target import Target
from spark_jetstream.sink.window import InFlight
from spark_jetstream.streams.lookup import RawMessage, message, next_message

log = logging.getLogger(__name__)

# Each message is one request. docs/delivery.md states the limit.
_MOST_OF_SUBJECT = 100  # messages of a full subject among which a row is looked for


class Recovery:
    """Looks for the rows of one task.

    `ledger` is the entry of the task, with delivery exactly-once.

    `listeners` know which streams capture subjects. `clock` is that of `WriteTiming`.
    """

    def __init__(
        self,
        connection: Connection,
        target: Target,
        listeners: Listeners,
        ledger: Ledger | None,
        clock: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._target = target
        self._listeners = listeners
        self._ledger = ledger
        self._clock = clock

    def check_owner(self) -> None:
        """Raise `DeliveryError` if another attempt has taken over.

        To be called before each sending.
        """
        if self._ledger is not None:
            self._ledger.check()

    # Rows without an answer

    def doubtful(self, flights: Sequence[InFlight]) -> list[InFlight]:
        """Return the portions with rows that a stream may have, without knowing their ids any more.

        To be called before each sending. `settle_noted` ends the doubt.
        """
        ledger = self._ledger
        if ledger is None:
            return []
        now = self._clock()
        doubtful = []
        for flight in flights:
            # A row that no attempt has sent before is not stored.
            was_sent = flight.sent > 0 or flight.portion.repeated or ledger.resumed
            if was_sent and flight.unanswered and not ledger.remembers(now - flight.looked):
                doubtful.append(flight)
        return doubtful

    def settle_noted(self, flights: Sequence[InFlight]) -> bool:
        """Settle the rows that the ledger finds in the streams; return whether there are any."""
        assert self._ledger is not None
        looked = self._clock()
        waiting: list[tuple[InFlight, int]] = []
        rows: list[tuple[bytes, bytes, str | None]] = []
        for flight in flights:
            indices, named = _named_rows(flight)
            waiting += [(flight, index) for index in indices]
            rows += named
        # The portions are in the order of the first sending, so the ledger looks at messages
        # from the first one on.
        places = self._ledger.recall(flights[0].portion.after, rows)
        for (flight, index), place in zip(waiting, places, strict=True):
            if place is not None:
                flight.settle_as_duplicate(index, *place)
        for flight in flights:
            flight.looked = looked
        return any(places)

    def settle_acknowledged(self, flight: InFlight) -> None:
        """Settle the rows whose messages are named by answers to their shared reply subject."""
        alike = self._rows_by_content(flight)
        # Without ids the server would store each of these rows a second time.
        # One request for each acknowledged message tells which rows are stored.
        for stream, sequence in self._acknowledged(flight):
            try:
                stored = message(self._connection, stream, sequence, prefix=self._target.api_prefix)
            except JetStreamError as error:
                # The account may not read the stream, or the stream does not answer.
                # The rows are sent again: some may be stored twice, and none is missing
                # (test_refusals_of_rows_that_nobody_can_read_again).
                log.info("cannot read an acknowledged message: %s", error)
                return
            # The message was removed since, so no row can be recognised by it.
            if stored is None:
                continue
            candidates = alike.get((stored.subject, _payload(stored)), [])
            for index in candidates:
                if _is_row(stored, flight.portion.members(index)[-1]):
                    # Equal rows have a message each, so a message settles one of them.
                    candidates.remove(index)
                    flight.settle(index)
                    flight.portion.counted.stored += 1
                    break

    def _rows_by_content(self, flight: InFlight) -> dict[tuple[str, bytes], list[int]]:
        """Return the rows without an answer, by the subject as it is stored, and payload."""
        alike: dict[tuple[str, bytes], list[int]] = {}
        for index in np.flatnonzero(flight.waiting).tolist():
            row = flight.portion.members(index)[-1]
            content = (self._target.at(row.subject).stored_at(row.subject), row.data)
            alike.setdefault(content, []).append(index)
        return alike

    def _acknowledged(self, flight: InFlight) -> list[tuple[str, int]]:
        """Return the messages of the target that answers to a shared reply subject name."""
        assert flight.replies is not None
        messages = []
        for (stream, domain), sequences in flight.replies.sequences().items():
            if self._target.stream not in (None, stream):
                continue
            if self._target.domain not in (None, domain):
                continue
            messages += [(stream, sequence) for sequence in sequences.tolist()]
        return messages

    # Refused rows

    def settle_in_place(self, flight: InFlight, index: int, refusal: Refusal) -> Outcome | None:
        """Return what to do about a row refused for what its subject has; None if that is the row.

        The message in the way may be this very row, stored by an earlier try. The row then counts
        as a duplicate.
        """
        # The server compares an expected sequence before it looks at the message id, and a full
        # subject (`discard_new_per_subject`) refuses each row whose id the stream has forgotten.
        rows = flight.portion.members(index)
        # A group is stored whole or not at all, so one row tells of all.
        # Only an expected sequence leads to the one message that can be in its way.
        row = next((row for row in rows if row.expected is not None), rows[0])
        # Without an id a row is recognised by payload and headers, which another writer's message
        # may have as well. So the row must have been sent before
        # (test_a_row_that_was_sent_once_is_not_looked_for).
        is_recognised = row.message_id is not None or flight.again[index]
        tells_of_all = len(rows) == 1 or row.expected is not None
        if not (is_recognised and tells_of_all):
            return Outcome.REFUSED
        # The refusal names the last message of the subject, if it is about an expected sequence.
        last = last_revision(refusal.description)
        try:
            place = self._place_of(row, self._streams_of(flight, row.subject), last)
        except JetStreamError as error:
            # An error that passes, as in an election, leaves the question open.
            # Without permission to read the stream nobody can answer it.
            log.info("cannot read what is stored in the place of a row: %s", error)
            return Outcome.RETRY if error.retriable else Outcome.REFUSED
        if place is None:
            return Outcome.REFUSED
        stream, sequence = place
        # The messages of a group follow each other, and its last one stands for it.
        flight.settle_as_duplicate(index, stream, sequence + rows[-1].index - row.index)
        return None

    def _place_of(
        self, row: RefusedRow, streams: Sequence[str], last: int | None
    ) -> tuple[str, int] | None:
        """Return the stream and the sequence at which a row is stored, None if it is in none.

        `last` is the last message of its subject, where the server has named it.
        """
        for stream in streams:
            for stored in self._in_the_way(stream, row, last):
                if _is_row(stored, row):
                    return stream, stored.sequence
        return None

    def _streams_of(self, flight: InFlight, subject: str) -> list[str]:
        """Return the streams that may store a row: the target's, or those that capture it."""
        # A dead letter may go to another stream than the rows: a full subject refuses it
        # if an earlier attempt has stored it.
        target = self._target.at(subject)
        if target.stream and not flight.portion.any_stream:
            return [target.stream]
        return self._listeners.capturing(target, subject)

    def _in_the_way(self, stream: str, row: RefusedRow, last: int | None) -> Iterator[RawMessage]:
        """Yield the message after the sequence that a row expects, or the first of its subject.

        Before these comes the `last` one of the subject, if the server has named it: most often it
        is the row.
        """
        target = self._target.at(row.subject)
        subject = target.stored_at(row.subject)
        prefix = target.api_prefix
        # A subject need not be UTF-8, and then no request of the API, which is JSON,
        # can name it (test_a_row_is_known_again_at_a_subject_that_is_not_utf8).
        # This request has the sequence alone.
        if last:
            named = message(self._connection, stream, last, prefix=prefix)
        else:
            named = None
        if named is not None:
            yield named
            subject = named.subject  # another one if the stream transforms subjects
        if row.expected is None:
            at = 1
            most = _MOST_OF_SUBJECT
        else:
            # If the row is stored, it is the first message of its subject after the expected one.
            at = row.expected + 1
            most = 1
        for _ in range(most):
            stored = next_message(self._connection, stream, subject, at, prefix=prefix)
            if stored is None:
                return
            yield stored
            at = stored.sequence + 1

    def why_too_large(self, flight: InFlight, index: int, refusal: Refusal) -> str | None:
        """Return why a row that found no room has none in an empty stream either.

        None if it may have room there, or where the account cannot see the limits.
        """
        if not is_about_room(refusal):
            return None
        subject = flight.portion.members(index)[0].subject
        prefix = self._target.at(subject).api_prefix
        try:
            streams = self._streams_of(flight, subject)
            return why_too_large(self._connection, streams, flight, index, refusal, prefix)
        except JetStreamError as error:
            # The account may not see the stream, or the API does not answer.
            # The refusal then stands as the server gave it.
            log.info("cannot see whether a row is too large: %s", error)
        return None

    def headers_of(self, stream: str | None, sequence: int) -> bytes | None:
        """Return the header block of a message, None if it is gone or may not be read."""
        if stream is None:
            return None
        try:
            stored = message(self._connection, stream, sequence, prefix=self._target.api_prefix)
        except JetStreamError as error:
            log.info("cannot read a message of a group: %s", error)
            return None
        return None if stored is None else stored.headers


def _named_rows(flight: InFlight) -> tuple[list[int], list[tuple[bytes, bytes, str | None]]]:
    """Return the indices of rows without an answer, and the id, subject and stream of each.

    The last row of a group stands for it. Rows without ids are in no ledger.
    """
    portion = flight.portion
    if portion.ids is None:
        return [], []
    at = np.flatnonzero(flight.waiting)
    # The server acknowledges a group with the sequence of its last message.
    last = as_arrow(at if portion.rows.ends is None else portion.rows.ends[at] - 1)
    ids = portion.ids.take(last).to_pylist()
    subjects = portion.rows.subject.take(last).to_pylist()
    named = [(*pair, portion.stream) for pair in zip(ids, subjects, strict=True)]
    return at.tolist(), named


def _is_row(stored: RawMessage, row: RefusedRow) -> bool:
    """Whether a message is a row, by its id, or else by payload and headers."""
    headers = set(stored.headers.split(b"\r\n"))
    # Headers are compared line by line: the stored message also has lines that the encoder adds.
    if row.message_id is not None:
        return b"Nats-Msg-Id: " + row.message_id in headers
    # A counter refuses a row without an increment, which may have no payload either.
    payload = stored.data if row.command("incr") is None else _payload(stored)
    return payload == row.data and headers.issuperset(row.lines.split(b"\r\n"))


def _payload(stored: RawMessage) -> bytes:
    """Return what was published.

    In place of an increment's empty payload the server stores the counter's value.
    """
    return b"" if b"\r\n" + INCREMENT in stored.headers else stored.data
