"""Rows that can never be stored, as messages for those who look after them. Pure.

A dead letter has the row's payload and headers, and says in headers of its own what happened: `Dead-Letter-Subject`
(where the row should have gone), `Dead-Letter-Reason`, `Dead-Letter-Error-Code` (the server's code, or 0), and
`Dead-Letter-Size` when the payload had to be cut, with its real size in bytes. Headers for which there is no room are
left out, all of them: the reason has to get through.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_jetstream.sink.encode import tails
from spark_jetstream.sink.message_ids import MessageIds
from spark_jetstream.sink.rows import Rows

_LONGEST = 1024  # bytes of a subject, a reason or an id; all of it is far below what a server takes
_MAX_HEADERS = 0xFFFF  # bytes of header that a server keeps (error 10097)
_AROUND = len(b"NATS/1.0\r\n") + len(b"\r\n")
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")


class Refused(Protocol):
    """What `publish.RefusedRow` has."""

    @property
    def rows(self) -> Rows: ...
    @property
    def index(self) -> int: ...
    @property
    def message_id(self) -> bytes | None: ...
    @property
    def reason(self) -> str: ...
    @property
    def err_code(self) -> int: ...


def dead_letters(
    refused: Sequence[Refused], subject: str, max_payload: int, identifier: MessageIds | None
) -> tuple[Rows, pa.BinaryArray | None]:
    """The dead letters of refused rows for ``subject``, and their message ids when there is an ``identifier``.

    Each has at most ``max_payload`` bytes, with its id, as long as that leaves room for what happened (4 KiB will do).
    An id depends on the row alone, so that a task that is run again makes no second letter.
    """
    numbers, data, lines, ids = [], [], [], []
    for row in refused:
        payload = bytes(row.rows.data[row.index].as_py())
        own = [
            b"Dead-Letter-Subject: " + _one_line(row.rows.subject[row.index].as_py()),
            b"Dead-Letter-Reason: " + _one_line(row.reason.encode()),
            b"Dead-Letter-Error-Code: %d" % row.err_code,
        ]
        cut = b"Dead-Letter-Size: %d" % len(payload)
        kept = _own_headers(bytes(row.rows.lines[row.index].as_py()))
        fixed = [*own, cut]
        if identifier is not None:
            ids.append(_id(row, identifier))
            fixed.append(b"Nats-Msg-Id: " + ids[-1])
        head = _AROUND + _size(fixed)
        if head + _size(kept) > min(_MAX_HEADERS, max_payload):
            kept = []
        room = max(max_payload - head - _size(kept), 0)
        if len(payload) > room:
            own.append(cut)
            payload = payload[:room]
        numbers.append(int(row.rows.number[row.index]))
        data.append(payload)
        lines.append(b"".join(line + b"\r\n" for line in [*kept, *own]))
    rows = Rows(
        np.array(numbers, np.int64),
        pa.array([subject.encode()] * len(refused), pa.binary()),
        pa.array(data, pa.binary()),
        pa.array(lines, pa.binary()),
        None,
    )
    return rows, pa.array(ids, pa.binary()) if identifier is not None else None


def _id(row: Refused, identifier: MessageIds) -> bytes:
    if row.message_id is not None and len(row.message_id) <= _LONGEST:
        return row.message_id + b".dead"
    # Never the row's own id as it is: the letter must not stand in the way of the row itself.
    alone = replace(row.rows.take(np.array([row.index])), msg_id=None)
    return bytes(identifier.ids(alone, tails(alone))[0].as_py())


def _own_headers(lines: bytes) -> list[bytes]:
    """The row's header lines without what is meant for the server, and what an earlier dead letter said."""
    return [line for line in lines.split(b"\r\n") if line and not line.startswith((b"Nats-", b"Dead-Letter-"))]


def _size(lines: Sequence[bytes]) -> int:
    return sum(len(line) + 2 for line in lines)


def _one_line(text: bytes) -> bytes:
    """Text that a header can hold; where it is cut, no character is cut in two."""
    if len(text) > _LONGEST:
        text = text[:_LONGEST].decode("utf-8", "ignore").encode()
    return _CONTROL.sub(b" ", text)
