"""Dead letters: messages made of rows that can never be stored. Pure.

docs/writing.md has the headers of a dead letter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b

import numpy as np
import pyarrow as pa

from spark_jetstream.protocol.arrow import binaries, repeated
from spark_jetstream.protocol.conventions import DEAD_LETTER
from spark_jetstream.protocol.jsapi import LONGEST_NAME
from spark_jetstream.sink.commands import COMMAND_COLUMNS, SERVER_HEADERS
from spark_jetstream.sink.message_ids import MessageIds
from spark_jetstream.sink.rows import RefusedRow, Rows

_LONGEST = 1024  # bytes of a subject, a reason or an id; all of it is far below what a server takes
_MAX_HEADERS = 0xFFFF  # bytes of header that a server keeps (error 10097)
# Bytes of a dead letter: a stream with file storage keeps 32 MiB with the subject and what it adds
# (nats-server: server/filestore.go, rlBadThresh).
_LARGEST = 32 * 1024 * 1024 - 4096
# The driver may store a copy of a dead letter (`sink.batch_commit`), which has a number in its id
# and names the stream.
_MORE_IN_COPY = len(b".1000000000" + b"Nats-Expected-Stream: " + b"\r\n") + LONGEST_NAME
_AROUND = len(b"NATS/1.0\r\n") + len(b"\r\n")
#: Headers for the server, which columns asked for, and those of an earlier dead letter.
_LEFT_OUT = re.compile(SERVER_HEADERS.pattern + b"|" + DEAD_LETTER + b".*")
_OPERATION = b"KV-Operation: "
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")


def dead_letters(
    refused: Sequence[RefusedRow], subject: str, max_payload: int, identifier: MessageIds | None
) -> tuple[Rows, pa.BinaryArray | None]:
    """Return the dead letters of rows for a subject, and their ids, if `identifier` makes some.

    An id depends on the row alone, so that a task that runs again makes no second letter. Header
    and payload of each have at most `max_payload` bytes; 10 KiB are enough for the dead letter's
    own headers.
    """
    data: list[bytes] = []
    lines: list[bytes] = []
    ids: list[bytes] = []
    most = min(max_payload, _LARGEST)
    for row in refused:
        message_id = None if identifier is None else _id(row, identifier)
        block, payload = _letter(row, message_id, most)
        lines.append(block)
        data.append(payload)
        if message_id is not None:
            ids.append(message_id)
    rows = Rows(
        np.array([row.number for row in refused], np.int64),
        repeated(subject.encode(), len(refused)),
        binaries(data),
        binaries(lines),
        None,
    )
    return rows, binaries(ids) if identifier is not None else None


def _letter(row: RefusedRow, message_id: bytes | None, most: int) -> tuple[bytes, bytes]:
    """Return the header lines and the payload of a dead letter, which have at most `most` bytes."""
    kept = _kept_lines(row)
    own = [
        DEAD_LETTER + b"Subject: " + _one_line(row.raw_subject),
        DEAD_LETTER + b"Reason: " + _one_line(row.reason.encode()),
        DEAD_LETTER + b"Error-Code: %d" % row.err_code,
        *_commands(row, kept),
    ]
    payload = row.data
    cut = DEAD_LETTER + b"Size: %d" % len(payload)
    head = _AROUND + _size([*own, cut])
    if message_id is not None:
        # The encoder adds the line of the id.
        head += _size([b"Nats-Msg-Id: " + message_id]) + _MORE_IN_COPY
    # The reason must get through, so the row's own headers go first if not all of them fit.
    if head + _size(kept) > min(_MAX_HEADERS, most):
        kept = []
    room = max(most - head - _size(kept), 0)
    if len(payload) > room:
        own.append(cut)
        payload = payload[:room]
    return b"".join(line + b"\r\n" for line in [*kept, *own]), payload


def _kept_lines(row: RefusedRow) -> list[bytes]:
    """Return the row's own header lines that a dead letter may have."""
    kept = []
    for line in row.lines.split(b"\r\n"):
        name = line.partition(b":")[0]
        if line and not _LEFT_OUT.fullmatch(name):
            kept.append(line)
    return kept


def _commands(row: RefusedRow, kept: Sequence[bytes]) -> list[bytes]:
    """Return the header lines with what columns of a row ask the server for, and its group."""
    given = {}
    for header, column in COMMAND_COLUMNS.items():
        given[header.removeprefix(b"Nats-")] = row.command(column)
    given[b"Group"] = row.group
    operation = next((line for line in kept if line.startswith(_OPERATION)), _OPERATION)
    if operation != _OPERATION:
        # The row is an operation on a key: a roll-up is a part of PURGE, which the dead letter has.
        del given[b"Rollup"]
    lines = []
    for name, value in given.items():
        if value:
            lines.append(DEAD_LETTER + name + b": " + _one_line(value))
    return lines


def _id(row: RefusedRow, identifier: MessageIds) -> bytes:
    """Return the message id of a dead letter."""
    own = None if row.rows.msg_id is None else row.rows.msg_id[row.index].as_py()
    # A row with a fault was given no id by the sink, and has that of the user in each partition.
    message_id = row.message_id or own
    if message_id is not None and len(message_id) <= _LONGEST:
        if own is None or identifier.task.has_made(message_id):
            # The ledger finds it by this form (`sink.id_keys`). Rows of groups have made ids in the
            # column.
            return bytes(message_id + b".dead")
        # The user's id belongs to a stream, so a row for another one may have it, too.
        place = blake2b(row.raw_subject, digest_size=8).hexdigest().encode()
        return b".".join((message_id, place, b"dead"))
    # Not the row's own id: with it, the server would drop the row itself as a duplicate of its dead
    # letter.
    alone = replace(row.rows.take(np.array([row.index])), msg_id=None)
    if row.message_id is None:
        # Two rows that differ only in what cannot be stored, as null from no payload, differ in
        # their reasons.
        lines = row.lines + DEAD_LETTER + b"Reason: " + row.reason.encode()
        alone = replace(alone, lines=binaries([lines]))
    return bytes(identifier.ids(alone)[0].as_py())


def _size(lines: Sequence[bytes]) -> int:
    """Return the bytes of header lines with their line ends."""
    return sum(len(line) + 2 for line in lines)


def _one_line(text: bytes) -> bytes:
    """Return text that fits into a header, cut at the end of a character."""
    if len(text) > _LONGEST:
        text = text[:_LONGEST].decode("utf-8", "ignore").encode()
    # A line end would end the header, and the rest would be another one.
    return _CONTROL.sub(b" ", text)
