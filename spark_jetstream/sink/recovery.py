"""Asks the server about rows without a good answer: whether they are stored all the same, and if not, why."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence, Set

import numpy as np

from spark_jetstream.buckets.kv import last_revision
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.requests import ask, stream_info
from spark_jetstream.errors import JetStreamError, PermissionDenied
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.arrow import as_arrow
from spark_jetstream.protocol.pub_ack import ACCOUNT_IS_FULL, Outcome, Refusal, is_full
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.sink.commands import INCREMENT
from spark_jetstream.sink.ledger import Ledger
from spark_jetstream.sink.rows import RefusedRow
from spark_jetstream.sink.target import Target
from spark_jetstream.sink.window import InFlight
from spark_jetstream.streams.lookup import RawMessage, message, next_message, streams_of, why_silent

log = logging.getLogger(__name__)

_VALID = 1.0  # seconds for which an answer about a subject, or a failed request, is valid
_AROUND_IN_FILE = 30
_AROUND_IN_MEMORY = 16
_MOST_OF_SUBJECT = 100  # messages of a full subject among which a row is looked for


class Recovery:
    """Looks for the rows of one task. `ledger` is the entry of the task, with delivery exactly-once."""

    def __init__(self, connection: Connection, target: Target, ledger: Ledger | None) -> None:
        self._connection = connection
        self._target = target
        self._ledger = ledger
        self._streams: set[tuple[str, str]] = (
            set()
        )  # that have answered, each with its domain, "" for none
        self._led = (
            float("-inf"),
            float("-inf"),
        )  # from when until when these had leaders, as far as known
        # What the JetStream API says of subjects, by API prefix and subject:
        self._no_stream: set[tuple[str | None, str]] = (
            set()
        )  # no stream captures it; emptied with new answers
        self._in_doubt: dict[
            tuple[str | None, str], float
        ] = {}  # when it named a stream, or proved nothing
        self._failed: dict[
            str | None, tuple[float, bool]
        ] = {}  # when it gave no answer, and whether it may be asked

    def check_owner(self) -> None:
        """Raise `DeliveryError` if another attempt has taken over. To be called before each sending."""
        if self._ledger is not None:
            self._ledger.check()

    def settle_noted(self, flights: Sequence[InFlight], now: float) -> bool:
        """Settle the rows that the ledger finds in the streams; return whether there are any.

        To be called before rows are sent again: a stream forgets message ids. `flights` is in the order of the first
        sending, so what the streams had before the first one holds for all.
        """
        if self._ledger is None:
            return False
        waiting: list[tuple[InFlight, int]] = []
        rows: list[tuple[bytes, bytes, str | None]] = []
        for flight in flights:
            portion = flight.portion
            if portion.ids is not None:
                at = np.flatnonzero(flight.waiting)
                last = as_arrow(at if portion.rows.ends is None else portion.rows.ends[at] - 1)
                ids, subjects = (
                    column.take(last).to_pylist() for column in (portion.ids, portion.rows.subject)
                )
                waiting += [(flight, index) for index in at.tolist()]
                rows += [(*named, portion.stream) for named in zip(ids, subjects, strict=True)]
        if not waiting:
            return False
        oldest = flights[0].portion
        places = self._ledger.recall(now - oldest.begun, oldest.after, rows)
        for (flight, index), place in zip(waiting, places, strict=True):
            if place is not None:
                flight.settle_as_duplicate(index, *place)
        return any(places)

    def settle_acknowledged(self, flight: InFlight) -> None:
        """Settle the rows that are the messages named by the answers to the reply subject that they shared."""
        assert flight.replies is not None
        alike: dict[tuple[str, bytes], list[int]] = {}  # the rows of each subject and payload
        for index in np.flatnonzero(flight.waiting).tolist():
            row = flight.portion.members(index)[-1]
            content = self._target.at(row.subject).stored_at(row.subject), row.data
            alike.setdefault(content, []).append(index)
        acknowledged = [
            (stream, sequence)
            for (stream, domain), sequences in flight.replies.sequences().items()
            if self._target.stream in (None, stream) and self._target.domain in (None, domain)
            for sequence in sequences.tolist()
        ]
        for stream, sequence in acknowledged:
            try:
                stored = message(self._connection, stream, sequence, prefix=self._target.api_prefix)
            except JetStreamError as error:
                log.info("cannot read an acknowledged message: %s", error)
                return
            if stored is None:
                continue
            candidates = alike.get((stored.subject, _payload(stored)), [])
            index = next(
                (
                    index
                    for index in candidates
                    if _is_row(stored, flight.portion.members(index)[-1])
                ),
                None,
            )
            if index is not None:
                candidates.remove(index)
                flight.settle(index)
                flight.portion.counted.stored += 1

    def settle_in_place(self, flight: InFlight, index: int, refusal: Refusal) -> Outcome | None:
        """Return what to do about a row that the server refused for what its subject has; None if the row is there.

        The server compares an expected sequence before it looks at the message id, and a full subject
        (`discard_new_per_subject`) refuses each row whose id the stream has forgotten. So the message in the way may be
        this very row, stored by an earlier try. The row then counts as a duplicate. A row without a message id is
        recognised by payload and headers, and looked for only if it was sent more than once. Of a group only a row that
        expects a sequence is looked for, and tells of all.
        """
        rows = flight.portion.members(index)
        row = next((row for row in rows if row.expected is not None), rows[0])
        alone = len(rows) == 1 or row.expected is not None
        if not alone or (row.message_id is None and not flight.again[index]):
            return Outcome.REFUSED
        target = self._target.at(row.subject)
        stream = None if flight.portion.any_stream else target.stream
        try:
            for name in [stream] if stream else self._capturing(target, row.subject):
                for stored in self._in_the_way(name, row, last_revision(refusal.description)):
                    if _is_row(stored, row):
                        flight.settle_as_duplicate(
                            index, name, stored.sequence + rows[-1].index - row.index
                        )
                        return None
        except JetStreamError as error:
            log.info("cannot read what is stored in the place of a row: %s", error)
            return Outcome.RETRY if error.retriable else Outcome.REFUSED
        return Outcome.REFUSED

    def headers_of(self, stream: str | None, sequence: int) -> bytes | None:
        """Return the header block of a message; None if it is gone, or if the account may not read it."""
        if stream is None:
            return None
        try:
            stored = message(self._connection, stream, sequence, prefix=self._target.api_prefix)
        except JetStreamError as error:
            log.info("cannot read a message of a group: %s", error)
            return None
        return None if stored is None else stored.headers

    def why_too_large(self, flight: InFlight, index: int, refusal: Refusal) -> str | None:
        """Return why a row that found no room has none in an empty stream either.

        None if it may have room there, or where the account cannot see the limits.
        """
        by_account = refusal.err_code == ACCOUNT_IS_FULL
        if not by_account and not is_full(refusal.err_code, refusal.description):
            return None
        row = flight.portion.members(index)[0]
        target = self._target.at(row.subject)
        stream = None if flight.portion.any_stream else target.stream
        try:
            names = [stream] if stream else self._capturing(target, row.subject)
            for name in names:
                state = stream_info(self._connection, name, prefix=target.api_prefix)
                room = self._account_room(state, target) if by_account else state.max_bytes
                owner = "the account" if by_account else "the stream"
                why = _why_too_large(flight, index, state, owner, room)
                if why is not None:
                    return f"{refusal.description} (error {refusal.err_code}): {why}"
        except JetStreamError as error:
            log.info("cannot see whether a row is too large: %s", error)
        return None

    def _account_room(self, state: StreamSummary, target: Target) -> int:
        """Return the bytes that the account may keep in streams of this kind; <= 0 for no limit."""
        context = "read the limits of the account"
        info = ask(self._connection, jsapi.ACCOUNT_INFO, context=context, prefix=target.api_prefix)
        replicas = max(1, state.num_replicas)
        kind = "max_memory" if state.storage == "memory" else "max_storage"
        tier = jsapi.field(info, f"tiers.R{replicas}.limits.{kind}", int, context, 0)
        if tier:
            return tier
        # Other than in a tier, each replica of a message counts.
        return jsapi.field(info, f"limits.{kind}", int, context, 0) // replicas

    def _in_the_way(self, stream: str, row: RefusedRow, last: int | None) -> Iterator[RawMessage]:
        """Yield the message after the sequence that a row expects, or the first ones of its subject.

        Before these comes the `last` one of the subject, if the server has named it: most often it is the row.
        """
        target = self._target.at(row.subject)
        subject, expected = target.stored_at(row.subject), row.expected
        prefix = target.api_prefix
        named = message(self._connection, stream, last, prefix=prefix) if last else None
        if named is not None:
            yield named
            subject = named.subject  # another one if the stream transforms subjects
        at, most = (1, _MOST_OF_SUBJECT) if expected is None else (expected + 1, 1)
        for _ in range(most):
            stored = next_message(self._connection, stream, subject, at, prefix=prefix)
            if stored is None:
                return
            yield stored
            at = stored.sequence + 1

    def _capturing(self, target: Target, subject: str) -> list[str]:
        return streams_of(self._connection, target.stored_at(subject), prefix=target.api_prefix)

    def note_answers(self, streams: Set[tuple[str, str]]) -> None:
        """Forget which subjects no stream captures: the server has sent new answers, from these streams and domains."""
        self._no_stream.clear()
        self._streams |= streams

    def nobody_listens(self, subject: str, sent: float, *, too_long: bool) -> bool:
        """Whether no stream captures the subject of a row that was `sent` then; asks at most once a second.

        If the account may not ask, no stream does once it takes `too_long`. Rows that went to another domain find no
        stream when its link is gone, and the server then knows only the streams of its own domain. Nor does it name a
        stream that a mapping brings rows to: so the streams of the task must have had leaders when the row was sent.
        """
        target, now = self._target.at(subject), time.monotonic()
        prefix = target.api_prefix
        place = prefix, subject
        failed, may_ask = self._failed.get(prefix, (float("-inf"), True))
        if (
            place not in self._no_stream
            and now - max(failed, self._in_doubt.get(place, failed)) >= _VALID
        ):
            try:
                if self._capturing(target, subject) or not self._had_leaders(sent, prefix):
                    self._in_doubt = {
                        known: at for known, at in self._in_doubt.items() if now - at < _VALID
                    }
                    self._in_doubt[place] = time.monotonic()
                else:
                    self._no_stream.add(place)
            except JetStreamError as error:
                # An election, most likely: the API, or a stream, has no leader either.
                log.info("%s", error)
                may_ask = not isinstance(error, PermissionDenied)
                self._failed[prefix] = time.monotonic(), may_ask
        near = {"", self._connection.server_info.get("domain")}
        if prefix is None and any(domain not in near for _, domain in self._streams):
            return False  # rows went over the link of a leaf node
        return place in self._no_stream or (too_long and not may_ask)

    def _had_leaders(self, at: float, prefix: str | None) -> bool:
        """Whether the streams that have answered, and the target's, had leaders at this time.

        A stream that the account may not see, or that is gone, is left out. Raises the error of one that does not
        answer at once.
        """
        first, last = self._led
        if at > last:
            self._led = float("inf"), float("-inf")
            for name in {name for name, _ in self._streams} | ({self._target.stream or ""} - {""}):
                try:
                    stream_info(self._connection, name, prefix=prefix, timeout=_VALID)
                except JetStreamError as error:
                    if error.retriable:
                        raise
            now = time.monotonic()
            first = min(first, now)
            self._led = first, now
        return first <= at

    def why_silent(self, flight: InFlight, index: int, now: float) -> str:
        """Return why a row got no answer, as far as the server says."""
        subject = flight.portion.members(index)[-1].subject
        target = self._target.at(subject)
        stream = None if flight.portion.any_stream else target.stream
        return why_silent(
            self._connection,
            target.stored_at(subject),
            now - flight.sent,
            stream,
            prefix=target.api_prefix,
        )


def _why_too_large(
    flight: InFlight,
    index: int,
    state: StreamSummary,
    owner: str,
    room: int,
) -> str | None:
    """Return why a row, or a group, is too large for a stream whose `owner` may keep `room` bytes.

    `room` <= 0 means no limit.
    """
    rows = flight.portion.members(index)
    if 0 < state.max_msgs < len(rows):
        most = f"stream {state.name} keeps {state.max_msgs:,} at most"
        return f"it has {len(rows):,} rows, and {most}"
    # What the server counts for a message beside its content (nats-server: fileStoreMsgSizeRaw).
    around = _AROUND_IN_MEMORY if state.storage == "memory" else _AROUND_IN_FILE
    size = sum(len(row.raw_subject) + len(row.lines) + len(row.data) + around for row in rows)
    if len(rows) == 1:
        size = int(flight.frames.size[index]) + len(rows[0].raw_subject) + around
    if not 0 < room < size:
        return None
    return f"it takes {size:,} bytes in stream {state.name}, and {owner} keeps {room:,} at most"


def _is_row(stored: RawMessage, row: RefusedRow) -> bool:
    headers = set(stored.headers.split(b"\r\n"))
    if row.message_id is not None:
        return b"Nats-Msg-Id: " + row.message_id in headers
    # Only for an increment: a counter refuses a row without one, which may have no payload either.
    same = _payload(stored) if row.increment is not None else stored.data
    return same == row.data and headers.issuperset(row.lines.split(b"\r\n"))


def _payload(stored: RawMessage) -> bytes:
    """Return what was published. In place of an increment's empty payload the server stores the counter's value."""
    return b"" if b"\r\n" + INCREMENT in stored.headers else stored.data
