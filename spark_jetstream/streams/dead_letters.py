"""Reads dead letters: the messages that consumers gave up, by the advisories that a stream keeps.

An advisory (nats-server: server/consumer.go, `notifyDeliveryExceeded`, `processTerm`) has the
sequence of the message. This may be gone, or another have its sequence: where the stream was
created again since, or has lost its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, starmap
from typing import Any

import pyarrow as pa

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.requests import Requests, settled_info, stream_info
from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.conventions import dead_letter_stream
from spark_jetstream.protocol.headers import block_headers
from spark_jetstream.protocol.json_text import json_object
from spark_jetstream.protocol.stream import StreamSummary, reply_time
from spark_jetstream.protocol.units import parse_time
from spark_jetstream.schema import DEAD_LETTER_COLUMNS, arrow_schema
from spark_jetstream.streams.direct import CLOCK_SKEW
from spark_jetstream.streams.lookup import RawMessage, message

_REMOVE = "remove it (spark-jetstream stream delete-msg)"
_AT_ONCE = 64  # messages in memory


def read_dead_letters(
    requests: Requests, stream: str, advisories: Iterable[tuple[int, bytes]], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the dead letters of `stream` as rows with the named columns of `DEAD_LETTER_COLUMNS`.

    They have the order of `advisories`, which are sequences and payloads in the stream that keeps
    them. The leader of `stream` is asked for each message, if a column needs it. Raises
    `ProtocolError` for a payload that is no advisory about `stream`, and what `Requests.call`
    raises.
    """
    rows = starmap(partial(_advised, stream), advisories)
    while some := list(islice(rows, _AT_ONCE)):
        # The columns of an advisory need no request to the leader.
        if not {*columns} <= some[0].keys():
            requests.call(partial(_add_messages, stream, some))
        yield pa.RecordBatch.from_pylist(some, schema=arrow_schema(columns, DEAD_LETTER_COLUMNS))


def _advised(stream: str, number: int, advisory: bytes) -> dict[str, Any]:
    """Return the columns of the advisory with a sequence: all that need no message."""
    kept_in = dead_letter_stream(stream)
    context = f"take message {number} of stream {kept_in} for an advisory about stream {stream}"
    try:
        body = json_object(advisory)
    except ValueError as fault:
        raise ProtocolError(f"cannot {context}: it {fault}; {_REMOVE}") from None
    # The type is `io.nats.jetstream.advisory.v1.KIND`.
    kind = str(body.get("type")).rpartition(".")[2]
    # Nanoseconds to the microseconds of Spark's timestamps.
    given_up = reply_time(body, "timestamp", context, what="it") // 1000
    texts: dict[str, str | None] = {}
    for name in ("consumer", "reason", "domain"):
        texts[name] = jsapi.field(body, name, str, context, "") or None
    of_stream = kind in ("max_deliver", "terminated") and body.get("stream") == stream
    if not of_stream or not given_up or not texts["consumer"]:
        raise ProtocolError(f"cannot {context}: it is none; {_REMOVE}")
    return {
        "stream": stream,
        "sequence": jsapi.whole(body, "stream_seq", context, least=1, what="it"),
        "kind": kind,
        "deliveries": jsapi.whole(body, "deliveries", context, least=1, what="it"),
        "given_up": given_up,
        **texts,
    }


def _add_messages(stream: str, rows: list[dict[str, Any]], connection: Connection) -> None:
    """Add the columns of the messages to rows."""
    found, state = _read_messages(stream, rows, connection)
    if state.clustered and _knows_too_little(state, rows):
        # The answers may be those of a leader of former times.
        settled_info(connection, stream, f"read the dead letters of stream {stream}")
        found, state = _read_messages(stream, rows, connection)
    created = _created(state)
    for row, stored in zip(rows, found, strict=True):
        if stored is None or not _is_given_up(row, stored, state.domain, created):
            # The other columns of the message stay null.
            row["gone"] = True
            continue
        row["gone"] = False
        row["subject"] = stored.subject
        row["timestamp"] = stored.time // 1000
        row["data"] = stored.data
        row["headers"] = [*block_headers(stored.headers).items()] or None
        # No random part: the server recognises a message that is replayed twice as a duplicate.
        row["msg_id"] = f"dead-letter.{stream}.{stored.sequence}.{stored.time}"


def _read_messages(
    stream: str, rows: list[dict[str, Any]], connection: Connection
) -> tuple[list[RawMessage | None], StreamSummary]:
    """Return the message of each row, None if it is gone, and the state of the stream then."""
    found = [message(connection, stream, row["sequence"]) for row in rows]
    # Later than the messages, so none of them is of a later stream.
    return found, stream_info(connection, stream)


def _created(state: StreamSummary) -> int:
    """Return when a stream was created, in µs."""
    return parse_time(state.created) // 1000


def _knows_too_little(state: StreamSummary, rows: list[dict[str, Any]]) -> bool:
    """Whether a message was given up that the stream, by its state, has not stored yet."""
    created = _created(state)
    return any(row["given_up"] >= created and row["sequence"] > state.last_seq for row in rows)


def _is_given_up(row: dict[str, Any], stored: RawMessage, domain: str, created: int) -> bool:
    """Whether the message at the sequence of a row is the one that was given up.

    ``domain`` is that of the stream, which was ``created`` then (µs).
    """
    # A consumer of another stream with the same name may have given the message up.
    same_domain = (row["domain"] or "") == domain
    same_stream = same_domain and row["given_up"] >= created
    return same_stream and _was_stored_before(stored, row["given_up"])


def _was_stored_before(stored: RawMessage, given_up: int) -> bool:
    """Whether a message is older than the time (µs) at which it was given up.

    A later one took its sequence, after the stream had lost its tail.
    """
    return given_up >= (stored.time - CLOCK_SKEW) // 1000
