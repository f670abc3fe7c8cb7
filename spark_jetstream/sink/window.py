"""Rows in flight: which of them lack an answer, and what the answers prove.

Pure: no socket, no clock.

`sink.publisher` has the states of a row as a table. Times are seconds of the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_jetstream.protocol.arrow import BoolArray, IntArray, as_arrow
from spark_jetstream.protocol.pub_ack import Refusal, StoredAcks
from spark_jetstream.sink.encode import Encoded, encode
from spark_jetstream.sink.groups import of_group
from spark_jetstream.sink.report import Totals
from spark_jetstream.sink.rows import RefusedRow, Rows
from spark_jetstream.sink.target import Target

# The frames of rows without an answer stay in memory until then: they may have to be sent again.
MAX_BYTES_IN_FLIGHT = 32 * 1024 * 1024


@dataclass(frozen=True)
class Portion:
    """Rows that are published together, with arguments of `Publisher.publish`.

    The target's stream must store the rows, or with `any_stream` any stream: that is for dead
    letters and second copies. `looked` is when the ledger was last asked whether the rows are
    stored, or when the publisher got them. `after` maps streams to the last sequence that was known
    then: this attempt can only store the rows after it. If the rows are in groups (`Rows.ends`), an
    index is that of a group, which is sent and answered as one row. `repeated`: this attempt has
    sent the rows before, in another portion.
    """

    rows: Rows
    ids: pa.BinaryArray | None
    stream: str | None
    counted: Totals
    any_stream: bool
    looked: float
    after: Mapping[str, int]
    repeated: bool = False

    @cached_property
    def sizes(self) -> IntArray:
        """How many rows each index is for."""
        if self.rows.ends is None:
            return np.ones(len(self.rows), np.int64)
        return np.diff(self.rows.ends, prepend=0)

    def members(self, index: int, why: str = "", err_code: int = 0) -> list[RefusedRow]:
        """Return the row or group with this index, row by row, and why it is not stored."""
        at = range(index, index + 1)
        if self.rows.ends is not None:
            end = int(self.rows.ends[index])
            at = range(end - int(self.sizes[index]), end)
            why = of_group(self.rows, at, why)
        members = []
        for row in at:
            message_id = None if self.ids is None else self.ids[row].as_py()
            members.append(RefusedRow(self.rows, row, message_id, why, err_code))
        return members


class SharedReplies:
    """The answers to rows that have one reply subject: they say how many are stored, but not which.

    They prove that all `rows` rows are stored if their number is `rows`, and all are good, of
    stream and domain `place`, and each of a message of its own. `after` is that of the rows'
    `Portion`.
    """

    def __init__(self, rows: int, place: tuple[str, str], after: Mapping[str, int]) -> None:
        self.rows = rows
        self.place = place
        self._after = after
        self.stored = 0  # good answers, duplicates among them
        self.duplicates = 0  # good answers to rows that the stream had stored before
        self.refused = 0  # answers that a row is not stored; `InFlight` counts them
        #: Sequences of the new messages by stream and domain.
        self._fresh: dict[tuple[str, str], list[IntArray]] = {}
        #: Sequences of messages that the stream had stored before.
        self._known: list[IntArray] = []

    def take(self, stored: StoredAcks, mine: BoolArray) -> tuple[int, int]:
        """Take the marked answers. Return how many they are, and how many are duplicates."""
        known = mine & stored.duplicate
        count = int(np.count_nonzero(mine))
        duplicates = int(np.count_nonzero(known))
        self.stored += count
        self.duplicates += duplicates
        # A leader that was frozen may answer after its successor, when the next portion has the
        # subject.
        is_later = stored.sequences > self._after.get(stored.stream, 0)
        # Messages up to the last one that was known are those of earlier rows
        # (test_a_late_answer_to_rows_that_had_the_subject_before_proves_nothing).
        new = mine & ~known & is_later
        self._fresh.setdefault((stored.stream, stored.domain), []).append(stored.sequences[new])
        self._known.append(stored.sequences[known])
        return count, duplicates

    def claimed(self) -> IntArray:
        """Return the messages that the rows are, if the answers prove that all are stored."""
        return np.concatenate([*self._fresh.get(self.place, ()), *self._known])

    @property
    def proof(self) -> bool:
        """Whether all rows are stored."""
        if self.refused or self.stored != self.rows:
            return False
        fresh = self.sequences()
        # Streams of two domains may capture a subject, and both answer one row.
        # So any answer of another place spoils the proof, even if there are no others
        # (test_two_answers_to_some_rows_prove_nothing).
        if list(fresh) != [self.place]:
            return False
        # Two answers to one row name the same message. Duplicates may do so as well:
        # rows with one message id are one message.
        return len(np.unique(fresh[self.place])) == self.rows - self.duplicates

    def sequences(self) -> dict[tuple[str, str], IntArray]:
        """Return the new messages that the answers name, by stream and domain."""
        return {place: np.concatenate(sequences) for place, sequences in self._fresh.items()}


class InFlight:
    """A portion in flight, whose fields only its own methods write.

    Its rows share one reply subject, or row i has that of number `frames.first` + i. Rows with more
    than `most` bytes are never sent. `place` is the stream and domain that must answer rows that
    share.
    """

    def __init__(
        self, portion: Portion, frames: Encoded, most: int, place: tuple[str, str] | None
    ) -> None:
        count = len(portion.sizes)
        self.portion = portion
        #: The rows as they are sent; replaced when rows that shared a subject get their own.
        self.frames = frames
        #: Rows without an answer; while rows share, all that were sent.
        self.waiting: BoolArray = frames.size <= most
        self.unanswered = int(portion.sizes[self.waiting].sum())  # rows less answers
        #: Answers while the rows shared.
        self.replies: SharedReplies | None = None
        if place is not None:
            self.replies = SharedReplies(self.unanswered, place, portion.after)
        #: When the ledger was last asked which of the rows are stored. A row that is stored since
        #: has an id that the stream remembers at least until a duplicate window after this time.
        self.looked = portion.looked
        self.sent = 0.0  # when rows were last sent; 0.0 before the first time
        self.timeouts = 0  # how often no answer came within `ackTimeout`
        self.again: BoolArray = np.zeros(count, np.bool_)  # rows that were sent more than once
        #: Refusals of each row for the time being.
        self.tries: npt.NDArray[np.int32] = np.zeros(count, np.int32)
        #: When rows are to be sent again: after a refusal, or after `separate`.
        self.due: dict[int, float] = {}
        #: As which message each row is stored; 0 while unknown.
        self.sequences: IntArray = np.zeros(count, np.int64)
        self.known: BoolArray = np.zeros(count, np.bool_)  # rows that an earlier attempt has stored

    def sending(self, now: float, rows: Sequence[int] | None = None) -> list[memoryview]:
        """Note that the rows without an answer, or these of them, are sent. Return their frames."""
        chosen = self.waiting
        if rows is not None:
            chosen = np.zeros(len(self.waiting), np.bool_)
            chosen[rows] = self.waiting[rows]
        # `sent` is 0.0 before the first time. A row without an id is looked up in the stream only
        # if it is in `again` (`Recovery.settle_in_place`).
        if self.sent:
            self.again |= chosen
        self.sent = now
        self._keep_due(~chosen)
        # Runs of neighbours go out together: each begins and ends where `chosen` changes.
        padded = np.concatenate(([False], chosen, [False]))
        edges = np.flatnonzero(np.diff(padded.astype(np.int8)))
        return [self.frames.frames(first, last) for first, last in edges.reshape(-1, 2).tolist()]

    def _keep_due(self, which: BoolArray) -> None:
        """Forget when rows are to be sent again, but for these."""
        self.due = {index: due for index, due in self.due.items() if which[index]}

    def separate(self, frames: Encoded) -> None:
        """Go on with these frames, which give each row its own number. All rows are due at once.

        Answers so far count no more.
        """
        assert self.replies is not None
        # `take_shared` has counted these answers. They do not say which rows they are for,
        # so each row counts again when it has an answer of its own.
        self.portion.counted.stored -= self.replies.stored
        self.portion.counted.duplicates -= self.replies.duplicates
        self.frames = frames
        self.due = dict.fromkeys(np.flatnonzero(self.waiting).tolist(), 0.0)
        self.unanswered = int(np.count_nonzero(self.waiting))

    def postpone(self, index: int, due: float) -> None:
        """Schedule a refused row to be sent again."""
        self.due[index] = due
        self.tries[index] += 1

    def note_timeout(self) -> None:
        """Count one more wait of `ackTimeout` without an answer."""
        self.timeouts += 1

    def take_shared(self, stored: StoredAcks, mine: BoolArray) -> None:
        """Take the marked answers to the shared reply subject."""
        assert self.replies is not None
        count, duplicates = self.replies.take(stored, mine)
        self.portion.counted.stored += count
        self.portion.counted.duplicates += duplicates
        self.unanswered -= count
        sequences = stored.sequences[mine]
        self.portion.counted.note(stored.stream, int(sequences.min()), int(sequences.max()))

    def take(self, stored: StoredAcks, mine: BoolArray) -> None:
        """Take the marked answers, the first ones to their rows."""
        counted = self.portion.counted
        sizes = self.portion.sizes
        # `at` and `sequences` (int64) have one value for each answer: the index of its row,
        # or group, and the message that stores it. The message of a group is its last one.
        at = stored.numbers[mine] - self.frames.first
        sequences = stored.sequences[mine]
        # Rows that an earlier attempt has stored: a message of the first try is none of those.
        twice = at[:0]
        if stored.duplicate[mine].any():
            twice = at[stored.duplicate[mine] & ~np.isin(sequences, self._own_sequences())]
        # A late acknowledgement also settles a row that was refused before,
        # and is due to be sent again.
        self.waiting[at] = False
        self._keep_due(self.waiting)
        self.sequences[at] = sequences
        self.known[twice] = True
        self._claim_known(stored.stream, twice)
        # Two answers to one row count once, so the rows are counted by what `waiting` loses
        # (test_answers_after_it_count_once).
        before = self.unanswered
        self.unanswered = int(sizes[self.waiting].sum())
        counted.stored += before - self.unanswered
        counted.duplicates += len(np.unique(twice))
        # The messages of a group follow each other, and its answer names the last one.
        first = int((sequences - sizes[at]).min()) + 1
        counted.note(stored.stream, first, int(sequences.max()))
        # A row may have two answers, of which the first one counts.
        answered, where = np.unique(at, return_index=True)
        counted.claim(stored.stream, _ending_at(sequences[where], sizes[answered]))

    def _claim_known(self, stream: str, at: IntArray) -> None:
        if self.portion.rows.ends is None:
            subjects = self.portion.rows.subject.take(as_arrow(at))
            self.portion.counted.claim_known(stream, self.sequences[at], subjects)

    def _own_sequences(self) -> IntArray:
        """Return the messages of the first try: no earlier attempt has stored these."""
        own = {} if self.replies is None else self.replies.sequences()
        return np.concatenate([self.sequences[:0], *own.values()])

    def awaits(self, index: int) -> bool:
        """Whether a refusal counts for a row with this index, if there is one.

        A row that is due was refused: the server also refuses the rest of an atomic batch.
        """
        if not 0 <= index < len(self.waiting):
            return False
        return bool(self.waiting[index]) and index not in self.due

    def refuse_shared(self) -> None:
        """Count an answer to the shared reply subject that says that some row is not stored."""
        assert self.replies is not None
        self.replies.refused += 1
        self.unanswered -= 1

    def settle(self, index: int) -> None:
        """Mark a row as one that needs no answer any more."""
        if self.waiting[index]:
            self.waiting[index] = False
            self.due.pop(index, None)
            self.unanswered -= int(self.portion.sizes[index])

    def settle_as_duplicate(self, index: int, stream: str, sequence: int) -> None:
        """Count a row without an acknowledgement as stored, as this message of a stream."""
        self.settle(index)
        self.sequences[index] = sequence
        self.portion.counted.note_duplicate(stream, sequence, int(self.portion.sizes[index]))
        # A row that expects a sequence is refused because of its first copy,
        # which this attempt has stored (test_one_refused_row_among_others_that_expect_a_sequence).
        if sequence in self._own_sequences():
            self.portion.counted.duplicates -= 1
        else:
            self.known[index] = True
        self._claim_known(stream, np.array([index]))

    def refuse(self, index: int, why: str, err_code: int = 0) -> list[RefusedRow]:
        """Settle a row or a group. Return its rows with the reason why they can never be stored."""
        self.settle(index)
        return self.portion.members(index, why, err_code)


def _ending_at(last: IntArray, sizes: IntArray) -> IntArray:
    """Return the sequences of groups of messages, given the last one and the size of each."""
    # Without groups, which is the usual case, each row is its last message.
    if (sizes == 1).all():
        return last
    # For each message: the last sequence of its group, less the messages of all groups up to that
    # one. The place among all messages, counted from 1, is added to it.
    before = np.repeat(last - np.cumsum(sizes), sizes)
    return before + np.arange(1, int(sizes.sum()) + 1)


class Window:
    """The portions in flight, of at most `most` rows and `MAX_BYTES_IN_FLIGHT`, and their numbers.

    Reply subjects are `<inbox>.<number>`. Portions share one if all answers so far named one stream
    and domain: rows of two streams prove nothing together. `may_share` is false from the first
    answers that prove nothing on. With `names_stream` the rows say which stream must store them,
    where it is given.
    """

    def __init__(
        self, inbox: str, most: int, *, may_share: bool, names_stream: bool = True
    ) -> None:
        self.portions: list[InFlight] = []  # oldest first; the publisher adds to it
        #: Rows that can never be stored, until the caller takes them.
        self.refused: list[RefusedRow] = []
        self.may_share = may_share  # the publisher sets it to false after a silence
        self._inbox = inbox
        self._most = most
        self._names_stream = names_stream
        #: Stream and domain of all answers so far to rows that the target must store.
        self._places: set[tuple[str, str]] = set()
        self._next = 1  # the first number that was never used
        #: Numbers that portions shared, with all their answers: used again.
        self._free: list[int] = []

    def prepare(self, portion: Portion, max_payload: int, *, shared: bool) -> InFlight:
        """Return a portion ready to be sent. With `shared` rows share a reply subject, if they may.

        Rows with more than `max_payload` bytes are refused.
        """
        # A reply subject for each row overflows the server's cache of 1,024 subjects,
        # which costs a fifth to a quarter of its speed. Before the first answer no place is known
        # that could prove anything.
        shared = shared and self.may_share and len(self._places) == 1
        place = next(iter(self._places)) if shared else None
        flight = InFlight(portion, self._frames(portion, shared=shared), max_payload, place)
        # The server closes the connection for a message of more than `max_payload` bytes
        # (test_a_row_that_is_larger_than_the_account_may_send_is_named).
        for index in np.flatnonzero(~flight.waiting).tolist():
            size = int(flight.frames.size[index])
            why = (
                f"header and payload have {size} bytes, and the server takes {max_payload} "
                "(max_payload)"
            )
            self.refused += portion.members(index, why)
        return flight

    def _frames(self, portion: Portion, *, shared: bool = False) -> Encoded:
        # The stream answers each row once, so a shared number is free again
        # when all its answers are there. A number of a single row is never used again:
        # a late answer would count for another row.
        if shared and self._free:
            first = self._free.pop()
        else:
            first = self._next
            self._next += 1 if shared else len(portion.sizes)
        # A mirror on a server before 2.11.6 stops for good at a message with `Nats-Expected-Stream`
        # (test_a_server_whose_mirrors_stop_at_the_name_of_a_stream). Answers alone then tell the
        # stream.
        stream = portion.stream if self._names_stream else None
        return encode(
            portion.rows, portion.ids, stream, inbox=self._inbox, first_number=first, shared=shared
        )

    @property
    def unanswered(self) -> int:
        """How many rows have no answer yet."""
        return sum(flight.unanswered for flight in self.portions)

    def has_room(self, flight: InFlight) -> bool:
        """Whether a portion may be in flight as well. With nothing in flight it always may."""
        size = sum(int(sent.frames.bounds[-1]) for sent in (flight, *self.portions))
        fits = flight.unanswered + self.unanswered <= self._most and size <= MAX_BYTES_IN_FLIGHT
        # A portion with more bytes than the window would wait for ever.
        return fits or not self.portions

    def patience(self, now: float, ack_timeout: float) -> float:
        """Return how long to wait: until a row is due, or a portion had none for `ack_timeout`.

        At least 5 ms, and at most a second.
        """
        earliest = now + 1.0
        for flight in self.portions:
            earliest = min([earliest, flight.sent + ack_timeout, *flight.due.values()])
        return max(earliest - now, 0.005)

    def separate(self, flight: InFlight) -> None:
        """Give each row of a portion a reply subject of its own, if they share one.

        That one is not used again.
        """
        if flight.frames.shared:
            flight.separate(self._frames(flight.portion))

    def take(self, stored: StoredAcks, target: Target) -> RefusedRow | None:
        """Count the rows as stored that these answers are for.

        Return a row that is not stored by the target.
        """
        for flight in self.portions:
            # `at` (int64) has the index of the row of each answer in this portion.
            # Answers to other portions are below 0 or behind the last row.
            at = stored.numbers - flight.frames.first
            numbers = 1 if flight.frames.shared else len(flight.waiting)
            mine = (at >= 0) & (at < numbers)
            if not mine.any():
                continue
            # Dead letters and second copies may go to other streams,
            # which says nothing of the rows.
            if not flight.portion.any_stream:
                self._places.add((stored.stream, stored.domain))
            if flight.frames.shared:
                flight.take_shared(stored, mine)
                continue
            mine[mine] = flight.waiting[at[mine]]  # only the first answers to their rows
            if not mine.any():
                continue
            misplaced = target.misplaced(stored, any_stream=flight.portion.any_stream)
            if misplaced is not None:
                return flight.refuse(int(at[mine][0]), misplaced)[0]
            flight.take(stored, mine)
        return None

    def take_refusals(self, refusals: Iterable[Refusal]) -> Iterator[tuple[InFlight, int, Refusal]]:
        """Yield the rows that are refused, by portion and index.

        A refusal of rows that share is only counted.
        """
        for refusal in refusals:
            for flight in self.portions:
                index = refusal.number - flight.frames.first
                if flight.frames.shared:
                    if index == 0:
                        flight.refuse_shared()
                        break
                # A group has several answers to one try. Those after the first refusal are passed
                # over.
                elif flight.awaits(index):
                    yield flight, index, refusal
                    break

    def conclude(self) -> list[InFlight]:
        """Drop portions that share a reply subject, if the answers prove that all rows are stored.

        Return those of which all answers are there and prove nothing: their rows have subjects of
        their own from now on, as have those of later portions.
        """
        unproven = []
        for flight in list(self.portions):
            # `unanswered` may fall below 0: a row may have two answers.
            if not flight.frames.shared or flight.replies is None or flight.unanswered > 0:
                continue
            if flight.replies.proof:
                stream, _ = flight.replies.place
                flight.portion.counted.claim(stream, flight.replies.claimed())
                self.portions.remove(flight)
                self._free.append(flight.frames.first)
            else:
                self.may_share = False
                self.separate(flight)
                unproven.append(flight)
        return unproven

    def drop_answered(self) -> None:
        """Drop the portions of which every row has its answer."""
        self.portions = [flight for flight in self.portions if flight.unanswered]
