"""Counters: their values, and increments. ADR-49 "JetStream Distributed Counter CRDT"."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from spark_jetstream.admin.api import Api, publish_subject, stream_name, subject_filter
from spark_jetstream.admin.messages import Messages, check_place, publish
from spark_jetstream.admin.models.messages import PubAck
from spark_jetstream.admin.streams import Streams
from spark_jetstream.admin.watch import LABEL, settings
from spark_jetstream.errors import JetStreamError, OptionError
from spark_jetstream.protocol.counters import INCREMENT, SOURCES, counter_sources, counter_value
from spark_jetstream.protocol.features import COUNTERS
from spark_jetstream.protocol.units import Timestamp, shown
from spark_jetstream.streams.latest import TablePart, read_table
from spark_jetstream.streams.lookup import nearest_subject


@dataclass(frozen=True)
class Counter:
    """A counter as its last message has it.

    ``value`` and ``incr``, the last increment, are decimal digits, of any number. ``sources`` are
    the values that a stream with sources adds up, by stream and subject there; empty for other
    streams.
    """

    stream: str
    subject: str
    seq: int
    time: Timestamp
    value: str
    incr: str
    sources: Mapping[str, Mapping[str, str]]


class Counters:
    """The counters of an account; ``admin.counters``.

    Counters are subjects of streams with ``allow_msg_counter``. Without ``stream`` a counter is
    that of the one stream that captures its subject; a stream that has its counters from sources
    may capture none. All methods raise what `Api` raises, `StreamNotFound`, and `OptionError` for
    an argument that cannot be one.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._streams = Streams(api)
        self._messages = Messages(api)

    def get(self, subject: str, *, stream: str | None = None) -> Counter:
        """Return a counter as the leader of its stream has it.

        Raises `MessageNotFound` if nothing was counted.
        """
        name = self._stream((publish_subject(subject),), stream)
        last = self._messages.last(name, subject)
        return _counter(name, last.subject, last.seq, last.time, last.headers, last.data)

    def list(self, *subjects: str, stream: str | None = None) -> Iterator[Counter]:
        """Return the counters of a stream, in the order of their last changes.

        With ``subjects`` (wildcards allowed), only counters that match. Each comes exactly once,
        however often it changes meanwhile. Raises `ProtocolError` for a message that is that of no
        counter.
        """
        filters = tuple(map(subject_filter, subjects))
        info = self._streams.load(self._stream(filters or (">",), stream))
        # Each subject is a counter, and its last message has the value.
        part = TablePart(info.config.name, info.created, filters)
        for messages in read_table(self._api.connect, part, settings(self._api), LABEL):
            # Five columns with an item for each message;
            # sequences and times (nanoseconds) are int64.
            rows = zip(
                messages.subjects().to_pylist(),
                messages.headers().to_pylist(),
                messages.payloads().to_pylist(),
                messages.sequences.tolist(),
                messages.timestamps().tolist(),
                strict=True,
            )
            for subject, headers, data, seq, time in rows:
                given = dict(headers or ())
                yield _counter(part.stream, subject, seq, Timestamp.of(time), given, data)

    def increment(self, subject: str, value: int | str = 1, *, stream: str | None = None) -> PubAck:
        """Add a number, or its decimal digits, to a counter.

        The result has the new value as ``val``.

        After `RequestTimeout` or `ConnectionFailed` it may be added or not. Raises `JetStreamError`
        if another stream than ``stream`` has counted, if the server is older than 2.12 or has
        stored the message and counted nothing, and what `JetStreamAdmin.publish` raises.
        """
        # Any number of digits: the server adds up integers of any size (ADR-49).
        if isinstance(value, bool) or not re.fullmatch("[+-]?[0-9]+", str(value)):
            raise OptionError(f"value must be an integer, not {shown(value)}")
        context = f"add to the counter {subject}"
        # A server before 2.12 ignores the header, and stores an empty message
        # (`test_a_server_that_does_not_count_is_noticed`).
        self._api.need(COUNTERS.level, context)
        ack = publish(self._api, subject, b"", {INCREMENT: str(value)})
        # Checked afterwards: the server refuses an increment with a header that names the stream.
        if stream is not None:
            check_place(ack, self._api.connection.prefix, context, stream)
        # The account may not ask for the level, or the stream counts nothing.
        if not ack.val:
            raise JetStreamError(
                f"cannot {context}: stream {ack.stream} has stored it (sequence {ack.seq}), "
                "and no value: it has no counters (allow_msg_counter)"
            )
        return ack

    def _stream(self, subjects: Sequence[str], stream: str | None) -> str:
        if stream is not None:
            return stream_name(stream)
        names: set[str] = set()
        # All subjects are looked at, so that no counter of another stream is missing without a word
        # (`test_counters_of_several_streams_are_not_listed_in_part`).
        for subject in subjects:
            names.update(self._streams.names(subject))
        if len(names) == 1:
            return names.pop()
        meant = ""
        if subjects and not names:
            meant = nearest_subject(self._api.connect, subjects[0])
        which = ", ".join(sorted(names)) or "no stream"
        captured = ", ".join(subjects)
        raise OptionError(f"stream: name the stream, for {which} captures {captured}{meant}")


def _counter(
    stream: str,
    subject: str,
    seq: int,
    time: Timestamp,
    headers: Mapping[str, Sequence[str]],
    data: bytes,
) -> Counter:
    value = counter_value(stream, seq, data)
    incr = _first(headers, INCREMENT)
    sources = counter_sources(_first(headers, SOURCES)) or {}
    return Counter(stream, subject, seq, time, value, incr, sources)


def _first(headers: Mapping[str, Sequence[str]], name: str) -> str:
    """Return the first value of a header; empty without one."""
    values = headers.get(name)
    return values[0] if values else ""
