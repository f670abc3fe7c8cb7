"""Counters (ADR-49 "JetStream Distributed Counter CRDT"): their messages as rows. Pure.

A subject of a stream with `allow_msg_counter` is a counter. A client publishes an increment in
header `Nats-Incr`, and the server stores it with the counter's new value as JSON in place of the
payload: ``{"val":"5"}``. In a stream with sources it adds up the values of these, and notes each of
them in header `Nats-Counter-Sources`: ``{"ORDERS": {"orders.eu":"3"}}`` by stream and subject
there. Values have any number of digits.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol.arrow import as_arrow, microseconds, repeated, texts
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.protocol.json_text import json_object
from spark_jetstream.schema import COUNTER_COLUMNS, arrow_schema

INCREMENT = "Nats-Incr"
SOURCES = "Nats-Counter-Sources"
_PLAIN = r'^\{"val":"(?P<value>-?[0-9]+)"\}$'
_VALUE = re.compile(r"-?[0-9]+")
# A number of Python, and `pa.scalar`, would import pandas.
_FIRST = as_arrow(np.zeros(1, np.int64))[0]


def counter_value(stream: str, sequence: int, data: bytes) -> str:
    """Return the decimal digits of the value that the payload of a message holds.

    Raises `ProtocolError`, which names stream and sequence, for a payload that holds none.
    """
    try:
        value = json_object(data).get("val")
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise ValueError("holds no value of a counter")
    except ValueError as error:
        what = f"message {sequence} of stream {stream} is that of no counter: its payload {error}"
        raise ProtocolError(what) from None
    return value


def counter_sources(text: str) -> dict[str, dict[str, str]] | None:
    """Return the values of header `Nats-Counter-Sources` by stream and subject; else None.

    A server stores this header as a publisher gives it, so it may hold whatever there is.
    """
    try:
        streams = json_object(text)
    except ValueError:
        return None
    for values in streams.values():
        if not isinstance(values, dict):
            return None
        if not all(isinstance(value, str) for value in values.values()):
            return None
    return streams


def counter_batch(messages: MessageRun, *, stream: str, columns: Sequence[str]) -> pa.RecordBatch:
    """Return a row for each message of a stream of counters, with the named columns.

    The columns are those of `schema.COUNTER_COLUMNS`; `stream` is the value of the column of that
    name. `incr` is null without a header, `sources` also for a malformed one. Raises
    `ProtocolError` for a message that holds no value, if `value` is asked for.
    """
    schema = arrow_schema(columns, COUNTER_COLUMNS)
    # Two columns may need them.
    headers = functools.cache(messages.headers)
    column: dict[str, Callable[[], pa.Array]] = {
        "stream": functools.partial(repeated, stream, len(messages)),
        "subject": messages.subjects,
        "value": functools.partial(_values, messages, stream),
        "incr": lambda: _header(headers(), INCREMENT),
        "sources": lambda: _sources(headers()),
        "sequence": functools.partial(as_arrow, messages.sequences),
        "timestamp": lambda: microseconds(messages.timestamps()),
    }
    return pa.RecordBatch.from_arrays([column[name]() for name in columns], schema=schema)


def _values(messages: MessageRun, stream: str) -> pa.StringArray:
    payloads = messages.payloads()
    # Servers write the value in one form. Other JSON is read one by one.
    plain = pc.struct_field(pc.extract_regex(payloads, _PLAIN), [0])
    # The fast path: payloads as servers write them.
    if not plain.null_count:
        return plain.cast(pa.string())
    read = functools.partial(counter_value, stream)
    return texts(list(map(read, messages.sequences.tolist(), payloads.to_pylist())))


def _header(headers: pa.MapArray, name: str) -> pa.StringArray:
    """Return the first value of a header in each row, null without one."""
    return pc.list_element(pc.map_lookup(headers, repeated(name, 1)[0], "first"), _FIRST)


def _sources(headers: pa.MapArray) -> pa.MapArray:
    """Return `Nats-Counter-Sources` by stream and subject, null without that header."""
    kind = arrow_schema(["sources"], COUNTER_COLUMNS).field(0).type
    given = _header(headers, SOURCES)
    if given.null_count == len(given):
        return pa.nulls(len(given), kind)
    rows: list[dict[str, dict[str, str]] | None] = []
    streams: list[dict[str, str]] = []  # of all rows, one after the other
    values: list[str] = []  # of all streams, one after the other
    for text in given.to_pylist():
        row = None if text is None else counter_sources(text)
        rows.append(row)
        for subjects in (row or {}).values():
            streams.append(subjects)
            values += subjects.values()
    by_subject = _maps(kind.item_type, streams, texts(values))
    return _maps(kind, rows, by_subject)


def _maps(
    kind: pa.MapType, rows: Sequence[Mapping[str, object] | None], items: pa.Array
) -> pa.MapArray:
    """Return the maps as one array, null for None; `items` has the values of all rows."""
    sizes = [0]
    names: list[str] = []
    for row in rows:
        sizes.append(len(row or ()))
        names += row or ()
    absent = np.array([row is None for row in rows], np.bool_)
    return pa.MapArray.from_arrays(
        as_arrow(np.cumsum(sizes, dtype=np.int32)),
        texts(names),
        items,
        type=kind,
        mask=as_arrow(absent),
    )
