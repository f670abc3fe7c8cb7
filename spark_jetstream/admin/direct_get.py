"""Messages by direct gets (ADR-31): whichever replica, or mirror, comes first answers, and may be behind."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_jetstream import jsapi
from spark_jetstream.admin.messages import StoredMessage
from spark_jetstream.connection import Connection
from spark_jetstream.direct import AnswerRejected
from spark_jetstream.errors import JetStreamError, MessageNotFound, NoResponders, ProtocolError
from spark_jetstream.inbox import Inbox
from spark_jetstream.wire import Frames

_STATUS = re.compile(rb"NATS/1\.0 (\d{3})(?: ([^\r\n]*))?\r\n((?:[^\r\n]+\r\n)*)\r\n")
_PLACE = re.compile(rb"\r\nNats-Num-Pending: (\d{1,20})\r\nNats-Last-Sequence: (\d{1,20})\r\n\r\n\Z")
_UP_TO = re.compile(rb"^Nats-UpTo-Sequence: (\d{1,20})\r$", re.MULTILINE)
_PENDING = re.compile(rb"^Nats-Num-Pending: (\d{1,20})\r$", re.MULTILINE)
_MOST_SUBJECTS = 1024
_TOO_MANY = 413
_ATTEMPTS = 3
_BYTES = 8 * 1024 * 1024  # of one answer: the server sends it without waiting for anybody


@dataclass(frozen=True)
class _Ending:
    """The status that ends an answer, and its header lines."""

    code: int
    description: str
    lines: bytes


def get_directly(connection: Connection, stream: str, subject: str, request: bytes, context: str) -> StoredMessage:
    """The message that answers a direct get at ``subject``.

    Raises `MessageNotFound`, `NoResponders` when the stream does not allow it, `PermissionDenied`, `RequestTimeout`.
    """
    with connection.inbox(whole=True) as inbox:
        inbox.publish(subject, request, 1)
        found, ending = _take(connection, inbox, context)
    if ending is not None:
        raise _refusal(stream, ending, context)
    return found[0]


def last_of_each(
    connection: Connection, stream: str, filters: Sequence[str], limit: Mapping[str, Any], context: str
) -> list[StoredMessage]:
    """The last message of each subject that matches a filter, as of one moment; in the order of the stream.

    ``limit`` is ``up_to_seq`` or ``up_to_time``, or empty. Asked for again when messages of an answer were lost on the
    way. Raises as `get_directly`, and `JetStreamError` for more than 1,024 subjects.
    """
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(AnswerRejected):
            return _last_of_each(connection, stream, filters, limit, context)
    return _last_of_each(connection, stream, filters, limit, context)


def _last_of_each(
    connection: Connection, stream: str, filters: Sequence[str], limit: Mapping[str, Any], context: str
) -> list[StoredMessage]:
    subject = jsapi.direct_get(connection.prefix, stream)
    whole: list[StoredMessage] = []
    with connection.inbox(whole=True) as inbox:
        while True:
            body = {"multi_last": list(filters), "max_bytes": _BYTES, **limit}
            inbox.publish(subject, json.dumps(body).encode(), 1)
            answer: list[StoredMessage] = []
            chain = _Chain()
            ending = None
            while ending is None:
                found, ending = _take(connection, inbox, context, chain)
                answer += found
            whole += answer
            if ending.code == jsapi.NOT_FOUND and not answer:
                return whole
            if ending.code != jsapi.END_OF_BATCH:
                raise _refusal(stream, ending, context)
            up_to, pending = _UP_TO.search(ending.lines), _PENDING.search(ending.lines)
            if up_to is None or pending is None:
                raise ProtocolError(f"cannot {context}: the end of the answer does not say how far it goes")
            if not int(pending[1]) or not answer:
                return whole
            # The rest of what there was at the same moment.
            limit = {"up_to_seq": int(up_to[1]), "seq": answer[-1].seq + 1}


class _Chain:
    """Makes sure that no message of an answer is missing: each names the one before it, and how many come after it."""

    def __init__(self) -> None:
        self._last = 0
        self._left: int | None = None

    def add(self, sequence: int, block: bytes, context: str) -> None:
        """The next message; `AnswerRejected` when there should have been another one before it."""
        place = _PLACE.search(block)
        if place is None:
            raise ProtocolError(f"cannot {context}: a message does not say where in the answer it stands")
        left, previous = int(place[1]), int(place[2])
        if previous != self._last or (self._left is not None and left != self._left - 1):
            raise AnswerRejected(f"cannot {context}: messages of an answer were lost on the way")
        self._last, self._left = sequence, left


def _take(
    connection: Connection, inbox: Inbox, context: str, chain: _Chain | None = None
) -> tuple[list[StoredMessage], _Ending | None]:
    """What comes next of an answer: messages, and its end, if that is there."""
    seconds = connection.options.request_timeout
    event = inbox.get(seconds)
    if not isinstance(event, Frames):
        connection.check(2.0)
        raise jsapi.no_reply(context, seconds)
    found: list[StoredMessage] = []
    for start, head, size in zip(event.line_end, event.head, event.size, strict=True):
        block, data = event.data[start : start + head], event.data[start + head : start + size]
        try:
            found.append(StoredMessage.from_direct(block, data, context))
            if chain is not None:
                chain.add(found[-1].seq, block, context)
        except ProtocolError:
            # No message is taken for a status: it has the lines that the server adds.
            status = _STATUS.fullmatch(block)
            if status is None or data:
                raise
            return found, _Ending(int(status[1]), (status[2] or b"").decode("utf-8", "replace"), status[3])
    return found, None


def _refusal(stream: str, status: _Ending, context: str) -> JetStreamError:
    said = f"{status.code} {status.description}".strip()
    if status.code == jsapi.NOT_FOUND:
        return MessageNotFound(
            f"cannot {context}: the server that answered has no such message ({said})",
            code=status.code,
            err_code=0,
            description=status.description,
        )
    if status.code == jsapi.NO_RESPONDERS:
        return NoResponders(
            f"cannot {context}: nobody answers direct gets of stream {stream}: does it exist, and is its allow_direct "
            "set"
        )
    if status.code == _TOO_MANY:
        return JetStreamError(f"cannot {context}: more than {_MOST_SUBJECTS:,} subjects match, which a server refuses")
    return JetStreamError(f"cannot {context}: the server refused the direct get: {said}")
