"""Rows that are stored although no answer says so: found by their message ids, or by what stands in their place."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping

from spark_jetstream.client.connection import Connection
from spark_jetstream.errors import JetStreamError
from spark_jetstream.protocol.pub_ack import Outcome, Target
from spark_jetstream.sink.kv import expected_revision
from spark_jetstream.sink.window import InFlight, RefusedRow
from spark_jetstream.streams.lookup import StoredMessage, next_message, streams_of

log = logging.getLogger(__name__)

Recall = Callable[[float, Mapping[str, int], Collection[bytes]], Mapping[bytes, tuple[str, int]]]
"""``recall(age, after, ids)`` says which of these message ids are stored already, and where (stream and sequence).

They are ids of rows that were first sent ``age`` seconds ago, when the streams' last known sequences were ``after``.
"""


def settle_stored(flights: list[InFlight], recall: Recall) -> bool:
    """Count those waiting rows of ``flights`` as duplicates that ``recall`` finds; whether it finds any.

    Rows without a message id are left as they are. Raises what ``recall`` raises.
    """
    waiting: dict[bytes, list[tuple[InFlight, int]]] = {}
    for flight in flights:
        for index, message_id in flight.waiting_ids():
            waiting.setdefault(message_id, []).append((flight, index))
    if not waiting:
        return False
    names = set.intersection(*(set(flight.after) for flight in flights))
    after = {name: min(flight.after[name] for flight in flights) for name in names}
    age = time.monotonic() - min(flight.begun for flight in flights)
    found = recall(age, after, waiting.keys())
    for message_id, (stream, sequence) in found.items():
        for flight, index in waiting[message_id]:
            flight.settle_as_duplicate(index, stream, sequence)
    return bool(found)


def look(connection: Connection, target: Target, stream: str | None, flight: InFlight, index: int) -> Outcome | None:
    """What is to become of a row that was refused for its expected sequence, which a server checks before message ids.

    None when what took its place is this very row, from an earlier try: it counts as a duplicate then. Without a
    message id it is known by payload and headers, and looked for only if it was sent more than once. ``stream`` is the
    one that must store it, or None, and ``target`` says what its subject means. `RETRY` when nobody can be asked now.
    """
    row = flight.refusal(index, "", 0)
    if row.message_id is None and not flight.again[index]:
        return Outcome.REFUSED
    try:
        found = _earlier_try(connection, target, stream, row)
    except JetStreamError as error:
        log.info("cannot look at what took the place of a row: %s", error)
        return Outcome.RETRY if error.retriable else Outcome.REFUSED
    if found is None:
        return Outcome.REFUSED
    flight.settle_as_duplicate(index, *found)
    return None


def _earlier_try(connection: Connection, target: Target, stream: str | None, row: RefusedRow) -> tuple[str, int] | None:
    """Stream and sequence of the message that follows the expected one on the row's subject, if it is this row."""
    lines = bytes(row.rows.lines[row.index].as_py())
    expected = expected_revision(lines)
    if expected is None:
        return None
    subject = target.stored_at(row.subject)
    for name in [stream] if stream else streams_of(connection, row.subject):
        message = next_message(connection, name, subject, expected + 1, prefix=target.api_prefix)
        if message is not None and _is_row(message, row, lines):
            return name, message.sequence
    return None


def _is_row(message: StoredMessage, row: RefusedRow, lines: bytes) -> bool:
    headers = set(message.headers.split(b"\r\n"))
    if row.message_id is not None:
        return b"Nats-Msg-Id: " + row.message_id in headers
    return bool(message.data == row.rows.data[row.index].as_py()) and headers.issuperset(lines.split(b"\r\n"))
