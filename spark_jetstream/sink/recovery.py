"""Find rows that were stored although their acknowledgement was lost, by message id or at the expected sequence."""

from __future__ import annotations

import logging
import time

from spark_jetstream.client.connection import Connection
from spark_jetstream.errors import JetStreamError
from spark_jetstream.protocol.pub_ack import Outcome
from spark_jetstream.sink.kv import expected_revision
from spark_jetstream.sink.ledger import Ledger
from spark_jetstream.sink.rows import RefusedRow
from spark_jetstream.sink.target import Target
from spark_jetstream.sink.window import InFlight
from spark_jetstream.streams.lookup import RawMessage, next_message, streams_of

log = logging.getLogger(__name__)


def settle_stored(portions: list[InFlight], ledger: Ledger) -> bool:
    """Count rows that `ledger` finds in the streams by their ids as duplicates; return whether there are any."""
    waiting: dict[bytes, list[tuple[InFlight, int]]] = {}
    for portion in portions:
        for index, message_id in portion.waiting_ids():
            waiting.setdefault(message_id, []).append((portion, index))
    if not waiting:
        return False
    names = set.intersection(*(set(portion.after) for portion in portions))
    after = {name: min(portion.after[name] for portion in portions) for name in names}
    age = time.monotonic() - min(portion.begun for portion in portions)
    places = ledger.recall(age, after, waiting.keys())
    for message_id, (stream, sequence) in places.items():
        for portion, index in waiting[message_id]:
            portion.settle_as_duplicate(index, stream, sequence)
    return bool(places)


def settle_expected(connection: Connection, target: Target, portion: InFlight, index: int) -> Outcome | None:
    """Return what to do about a row that the server refused because of its expected sequence; None if it is stored.

    The server checks the expected sequence before the message id, so the message at that place may be this very row,
    stored by an earlier try. The function then counts the row as a duplicate. A row without a message id is recognised
    by payload and headers, and looked for only if it was sent more than once. If the server cannot be asked now, the
    result is `Outcome.RETRY`.
    """
    row = portion.row(index)
    if row.message_id is None and not portion.again[index]:
        return Outcome.REFUSED
    try:
        place = _earlier_try(connection, target, row)
    except JetStreamError as error:
        log.info("cannot read the message at the expected sequence of a row: %s", error)
        return Outcome.RETRY if error.retriable else Outcome.REFUSED
    if place is None:
        return Outcome.REFUSED
    portion.settle_as_duplicate(index, *place)
    return None


def _earlier_try(connection: Connection, target: Target, row: RefusedRow) -> tuple[str, int] | None:
    """Stream and sequence of the message that follows the expected one on the row's subject, if it is this row."""
    expected = expected_revision(row.lines)
    if expected is None:
        return None
    subject = target.stored_at(row.subject)
    for name in [target.stream] if target.stream else streams_of(connection, row.subject):
        message = next_message(connection, name, subject, expected + 1, prefix=target.api_prefix)
        if message is not None and _is_row(message, row):
            return name, message.sequence
    return None


def _is_row(message: RawMessage, row: RefusedRow) -> bool:
    headers = set(message.headers.split(b"\r\n"))
    if row.message_id is not None:
        return b"Nats-Msg-Id: " + row.message_id in headers
    same_payload = bool(message.data == row.rows.data[row.index].as_py())
    return same_payload and headers.issuperset(row.lines.split(b"\r\n"))
