"""Reads dead letters: the messages that consumers of a stream gave up, by the advisories of the server that are kept.

An advisory (nats-server: server/consumer.go, `notifyDeliveryExceeded`, `processTerm`) has the sequence of the message.
This may be gone, or another have its sequence: where the stream was created again since, or has lost its end.
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
from spark_jetstream.protocol.stream import reply_time
from spark_jetstream.protocol.units import parse_time
from spark_jetstream.schema import DEAD_LETTER_COLUMNS, arrow_schema
from spark_jetstream.streams.direct import CLOCK_SKEW
from spark_jetstream.streams.lookup import message

_REMOVE = "remove it (spark-jetstream stream delete-msg)"
_AT_ONCE = 64  # messages in memory


def read_dead_letters(
    requests: Requests, stream: str, advisories: Iterable[tuple[int, bytes]], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the dead letters of `stream`, with the named columns of `DEAD_LETTER_COLUMNS`, in the order of advisories.

    `advisories` are sequences and payloads in the stream that keeps them. The leader of `stream` is asked for each
    message, if a column needs it. Raises `ProtocolError` for a payload that is no advisory about `stream`, and what
    `Requests.call` raises.
    """
    rows = starmap(partial(_advised, stream), advisories)
    while some := list(islice(rows, _AT_ONCE)):
        if not {*columns} <= some[0].keys():
            requests.call(partial(_add_messages, stream, some))
        yield pa.RecordBatch.from_pylist(some, schema=arrow_schema(columns, DEAD_LETTER_COLUMNS))


def _advised(stream: str, number: int, advisory: bytes) -> dict[str, Any]:
    context = f"take message {number} of stream {dead_letter_stream(stream)} for an advisory about stream {stream}"
    try:
        body = json_object(advisory)
    except ValueError as fault:
        raise ProtocolError(f"cannot {context}: it {fault}; {_REMOVE}") from None
    kind = str(body.get("type")).rpartition(".")[2]
    given_up = reply_time(body, "timestamp", context, what="it") // 1000
    texts = {name: jsapi.field(body, name, str, context, "") or None for name in ("consumer", "reason", "domain")}
    known = kind in ("max_deliver", "terminated") and body.get("stream") == stream and given_up and texts["consumer"]
    if not known:
        raise ProtocolError(f"cannot {context}: it is none; {_REMOVE}")
    sequence, deliveries = (
        jsapi.whole(body, name, context, least=1, what="it") for name in ("stream_seq", "deliveries")
    )
    row = {"stream": stream, "sequence": sequence, "kind": kind, "deliveries": deliveries, "given_up": given_up}
    return row | texts


def _add_messages(stream: str, rows: list[dict[str, Any]], connection: Connection, settled: bool = False) -> None:
    """Add to rows what concerns the message. `settled`: no leader of former times answers."""
    found = [message(connection, stream, row["sequence"]) for row in rows]
    state = stream_info(connection, stream)  # later than the messages: none of them is of a later stream
    created = parse_time(state.created) // 1000
    ahead = any(row["given_up"] >= created and row["sequence"] > state.last_seq for row in rows)
    if ahead and state.clustered and not settled:
        settled_info(connection, stream, f"read the dead letters of stream {stream}")
        _add_messages(stream, rows, connection, settled=True)
        return
    for row, stored in zip(rows, found, strict=True):
        other = (row["domain"] or "") != state.domain or row["given_up"] < created  # a stream of the same name
        row["gone"] = stored is None or other or row["given_up"] < (stored.time - CLOCK_SKEW) // 1000
        if stored is not None and not row["gone"]:
            row["subject"], row["timestamp"], row["data"] = stored.subject, stored.time // 1000, stored.data
            row["headers"] = [*block_headers(stored.headers).items()] or None
            row["msg_id"] = f"dead-letter.{stream}.{stored.sequence}.{stored.time}"
