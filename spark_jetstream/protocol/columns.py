"""Turns frames of a pull consumer into Arrow columns, in bulk. Pure.

The subject of a message is in the control line, its sequence and time are in the reply subject
(`ack_subject`), and header and payload follow the line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol import ack_subject
from spark_jetstream.protocol.arrow import IntArray, as_arrow, gather, microseconds, repeated
from spark_jetstream.protocol.headers import HEADERS_TYPE, decode_headers, to_text
from spark_jetstream.protocol.vectors import begins_with, parse_unsigned
from spark_jetstream.protocol.wire import Frames
from spark_jetstream.schema import arrow_schema


class Acks:
    """The numbers in the reply subjects of `frames`, read on demand.

    Raises `ProtocolError` for an unknown form.
    """

    def __init__(self, frames: Frames) -> None:
        self._lines = frames.lines
        self._separators = frames.separators
        self._reply = frames.reply
        self._dots = dots = frames.reply_dots
        version1 = dots == ack_subject.V1_DOTS
        # bool (n,): a newer server may add tokens at the end of the second form.
        known = version1 | (dots >= ack_subject.V2_DOTS)
        if not (known.all() and self._have_prefix(frames)):
            raise ProtocolError(
                "the reply subject of a message is not that of a JetStream consumer"
            )
        # The second form has two more tokens in front of those that are read here.
        self._shift = frames.reply + np.where(version1, 0, 2)

    def _have_prefix(self, frames: Frames) -> bool:
        # A space is in front of the reply subject.
        start = self._separators[frames.reply] + 1
        return bool(begins_with(self._lines, start, ack_subject.PREFIX.encode()).all())

    def _token(self, number: int) -> IntArray:
        """Return a token of the first form, of all messages, as numbers."""
        at = self._shift + number
        value, good = parse_unsigned(
            self._lines, self._separators[at] + 1, self._separators[at + 1]
        )
        if not good.all():
            raise ProtocolError(ack_subject.NO_NUMBER)
        return value

    def first(self) -> str:
        """The reply subject of the first message."""
        begin = self._separators[self._reply[0]] + 1
        end = self._separators[self._reply[0] + self._dots[0] + 1]
        return self._lines[begin:end].tobytes().decode("utf-8", "replace")

    def sequences(self) -> IntArray:
        """Stream sequences, int64, length n."""
        return self._token(ack_subject.STREAM_SEQUENCE)

    def timestamps(self) -> IntArray:
        """When the server stored the messages, nanoseconds since the epoch, int64, length n."""
        return self._token(ack_subject.TIMESTAMP)

    def consumer_sequences(self) -> tuple[int, int]:
        """The consumer sequence of the first and of the last message."""
        # Two of them tell a hole in the run: the numbers rise by one (`PullSession._delivered`).
        first = self._number(0, ack_subject.CONSUMER_SEQUENCE)
        last = self._number(-1, ack_subject.CONSUMER_SEQUENCE)
        return first, last

    def pending(self) -> int:
        """How many messages the consumer still had to deliver after the last of these."""
        return self._number(-1, ack_subject.PENDING)

    def _number(self, index: int, token: int) -> int:
        """A token of one message: by numpy it would take twenty times as long."""
        at = self._shift[index] + token
        digits = self._lines[self._separators[at] + 1 : self._separators[at + 1]]
        return ack_subject.ack_number(digits.tobytes())


class MessageRun(Protocol):
    """A run of n >= 1 messages of one stream, in stream order; its columns are made on demand."""

    @property
    def sequences(self) -> IntArray:
        """Stream sequences, ascending, int64, length n."""

    def __len__(self) -> int: ...

    def timestamps(self) -> IntArray:
        """When the server stored the messages, nanoseconds since the epoch, int64, length n."""

    def subjects(self) -> pa.StringArray:
        """The subjects the messages were stored under; bytes that are not UTF-8 become U+FFFD."""

    def raw_subjects(self) -> pa.BinaryArray:
        """The same subjects, byte for byte."""

    def headers(self) -> pa.MapArray:
        """The headers as map<string, list<string>>, null for a message without any."""

    def payloads(self) -> pa.BinaryArray:
        """The payloads, byte for byte."""


@dataclass(frozen=True)
class Delivered:
    """Messages that a pull consumer delivered; implements `MessageRun`."""

    frames: Frames
    acks: Acks
    sequences: IntArray

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, part: slice | IntArray) -> Delivered:
        """The messages of a slice with step 1, or of ascending indices."""
        inner = self.frames[part]
        return Delivered(inner, Acks(inner), self.sequences[part])

    def timestamps(self) -> IntArray:
        return self.acks.timestamps()

    def subjects(self) -> pa.StringArray:
        return to_text(self.raw_subjects())

    def raw_subjects(self) -> pa.BinaryArray:
        frames = self.frames
        return gather(frames.lines, frames.subject_start, frames.subject_end)

    def headers(self) -> pa.MapArray:
        return decode_headers(self.frames.data, self.frames.line_end, self.frames.head)

    def payloads(self) -> pa.BinaryArray:
        return self.frames.payloads()


def record_batch(
    messages: MessageRun, *, stream: str, columns: Sequence[str], with_headers: bool = True
) -> pa.RecordBatch:
    """Return the rows of messages, in stream order, with the named columns of `schema.COLUMNS`."""
    schema = arrow_schema(columns)
    # Only the columns that are asked for are made.
    values: dict[str, Callable[[], pa.Array]] = {
        "stream": partial(repeated, stream, len(messages)),
        "subject": messages.subjects,
        "sequence": partial(as_arrow, messages.sequences),
        "timestamp": lambda: microseconds(messages.timestamps()),
        "headers": messages.headers,
        "data": messages.payloads,
    }
    if not with_headers:
        values["headers"] = partial(pa.nulls, len(messages), HEADERS_TYPE)
    return pa.RecordBatch.from_arrays([values[name]() for name in columns], schema=schema)
