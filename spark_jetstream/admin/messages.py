"""Messages of streams: read one, read many, erase one.

Messages by direct gets (ADR-31): whichever replica, or mirror, comes first answers, and may be behind.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_jetstream.admin.api import Api, moment, positive, stream_name, subject_filter
from spark_jetstream.admin.models.messages import DoneReply, MessageReply, StoredMessage
from spark_jetstream.admin.models.streams import StreamInfo, confirm_done
from spark_jetstream.admin.streams import Streams
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.inbox import Inbox
from spark_jetstream.errors import (
    ApiError,
    DataLossError,
    JetStreamError,
    MessageNotFound,
    NoResponders,
    OptionError,
    ProtocolError,
)
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.direct_get import DirectBatch
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.protocol.wire import Frames
from spark_jetstream.streams.direct import OLDEST_SERVER, AnswerRejected, read_direct
from spark_jetstream.streams.pull import PullSettings

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
        connection.check()
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


_BATCH = 500
_BATCH_BYTES = 4 * 1024 * 1024
_GONE = frozenset({10043, 10057})
"""What the server answers to the deletion of a message that is not there, or must stay (error codes)."""


class Messages:
    """The messages of an account's streams; ``admin.messages``.

    Single messages come from the stream's leader, which is never behind. With ``direct`` whichever server comes first
    answers, which the stream must allow (``allow_direct``): a replica, or a mirror, that may lack what was stored just
    now. It is for accounts that may do no more than that. `NoResponders` when the stream does not allow it.

    All methods raise what `Api` raises; `MessageNotFound` says what was asked for.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._streams = Streams(api)

    def get(self, stream: str, sequence: int, *, direct: bool = False) -> StoredMessage:
        """The message with a sequence."""
        return self._get(stream, jsapi.message_request(positive(sequence)), f"get message {sequence} of", direct)

    def last(self, stream: str, subject: str = ">", *, direct: bool = False) -> StoredMessage:
        """The last message on a subject (wildcards allowed)."""
        request, context = jsapi.last_message_request(subject_filter(subject)), f"get the last {subject} of"
        if direct and not {"*", ">"} & set(subject.split(".")):
            # Permissions can name the subject then.
            return self._get_directly(stream, b"", f"{context} stream {stream}", jsapi.DIRECT_GET_LAST, subject)
        return self._get(stream, request, context, direct)

    def next(self, stream: str, subject: str = ">", sequence: int = 1, *, direct: bool = False) -> StoredMessage:
        """The first message on a subject (wildcards allowed) that has this sequence or a later one."""
        request = jsapi.next_message_request(subject_filter(subject), positive(sequence))
        return self._get(stream, request, f"get the first {subject} from sequence {sequence} on of", direct)

    def since(self, stream: str, time: Any, subject: str = ">", *, direct: bool = False) -> StoredMessage:
        """The first message on a subject (wildcards allowed) stored at a time or later.

        ``time``: an aware `datetime`, text such as ``2026-03-01T12:00:00Z``, or nanoseconds since the epoch. Needs
        server 2.11; `JetStreamError` with an older one.
        """
        start = moment("time", time)
        context = f"get the first {subject} since {start} of"
        self._api.need(1, f"{context} stream {stream}")
        return self._get(stream, jsapi.first_message_request(start, subject_filter(subject)), context, direct)

    def last_of_each(
        self, stream: str, *subject: str, sequence: int | None = None, time: Any = None
    ) -> list[StoredMessage]:
        """The last message of each subject that matches (wildcards allowed; all, if none is given), as of one moment:
        now, a sequence, or a time. In the order of the stream.

        By a direct get, which the stream must allow (`NoResponders`), and of server 2.11. `JetStreamError` for more
        than 1,024 subjects. The server that answers may lack what was stored just now.
        """
        filters = [subject_filter(each) for each in subject or (">",)]
        context = f"get the last message of each {', '.join(filters)} of stream {stream_name(stream)}"
        if sequence is not None and time is not None:
            raise OptionError(f"cannot {context}: sequence and time cannot be set together")
        limit: dict[str, Any] = {"up_to_seq": positive(sequence)} if sequence is not None else {}
        limit |= {"up_to_time": moment("time", time)} if time is not None else {}
        self._api.need(1, context)
        return last_of_each(self._api.connection, stream, filters, limit, context)

    def read(
        self,
        stream: str,
        subject: str | None = None,
        *,
        sequence: int = 1,
        since: Any = None,
        count: int | None = None,
        direct: bool | None = None,
    ) -> Iterator[StoredMessage]:
        """The messages from ``sequence`` or a time on, on one subject (wildcards allowed) or all, up to ``count``; in
        order, and no further than what is there when this begins. Nothing is acknowledged, no consumer is made.

        Read in batches where the stream allows direct reads (server 2.11), one by one where it does not; ``direct``
        insists on one of the two. To see each message once whatever happens, and in bulk, use Spark.
        """
        if since is not None:
            try:
                sequence = self.since(stream, since, subject or ">").seq
            except MessageNotFound:
                return
        if count is not None and count < 1:
            return
        info = self._streams.load(stream)
        first, end = max(positive(sequence), info.state.first_seq), info.state.last_seq + 1
        if first >= end:
            return
        # Behind a leaf node another server answers than the one that this connects to.
        batches = self._api.connection.server_version >= OLDEST_SERVER and self._api.level() != 0
        allowed = info.config.allow_direct and batches
        if direct and not allowed:
            raise JetStreamError(f"stream {stream} does not allow direct reads (allow_direct, and server 2.11)")
        if allowed and direct is not False:
            found = self._in_batches(info, subject, first, end, count or _BATCH)
        else:
            found = self._one_by_one(stream, subject, first, end)
        yield from itertools.islice(found, count)

    def erase(self, stream: str, sequence: int) -> None:
        """Delete a message and overwrite what was on the disk, as data protection may demand."""
        self._delete(stream, sequence, {"seq": positive(sequence)}, "erase")

    def delete(self, stream: str, sequence: int) -> None:
        """Delete a message, which is quicker; what was on the disk stays there until it is used for something else."""
        self._delete(stream, sequence, {"seq": positive(sequence), "no_erase": True}, "delete")

    def _get(self, stream: str, request: bytes, what: str, direct: bool = False) -> StoredMessage:
        context = f"{what} stream {stream}"
        if direct:
            return self._get_directly(stream, request, context, jsapi.DIRECT_GET)
        body = self._api.ask(jsapi.MESSAGE_GET, request, context=context, stream=stream_name(stream))
        return MessageReply.from_server(body, context).message

    def _get_directly(self, stream: str, request: bytes, context: str, form: str, subject: str = "") -> StoredMessage:
        connection = self._api.connection
        at = f"{connection.prefix}.{form.format(stream=stream_name(stream), subject=subject)}"
        return get_directly(connection, stream, at, request, context)

    def _delete(self, stream: str, sequence: int, request: dict[str, Any], what: str) -> None:
        context = f"{what} message {sequence} of stream {stream}"
        try:
            body = self._api.ask(jsapi.MESSAGE_DELETE, request, context=context, stream=stream_name(stream))
        except ApiError as error:
            # The server has the same code for other reasons.
            if error.err_code in _GONE and self._is_gone(stream, sequence):
                raise MessageNotFound(
                    f"cannot {context}: there is no such message",
                    code=error.code,
                    err_code=error.err_code,
                    description=error.description,
                ) from error
            raise
        confirm_done(DoneReply.from_server(body, context), context)

    def _is_gone(self, stream: str, sequence: int) -> bool:
        try:
            self.get(stream, sequence)
        except MessageNotFound:
            return True
        return False

    def _one_by_one(self, stream: str, subject: str | None, first: int, end: int) -> Iterator[StoredMessage]:
        while first < end:
            try:
                found = self.next(stream, subject or ">", first)
            except MessageNotFound:
                return
            if found.seq >= end:
                return
            yield found
            first = found.seq + 1

    def _in_batches(
        self, info: StreamInfo, subject: str | None, first: int, end: int, batch: int
    ) -> Iterator[StoredMessage]:
        stream = info.config.name
        filters = () if subject is None else (subject_filter(subject),)
        part = SequenceRange(stream, first, end, None, info.created, filters, direct=True)
        patience = self._api.options.retry_timeout
        settings = PullSettings(
            min(batch, _BATCH), _BATCH_BYTES, expires=30.0, retry_timeout=patience, fail_on_data_loss=True
        )
        try:
            for run in read_direct(lambda _: self._api.connection, part, settings, "spark-jetstream admin"):
                if not isinstance(run, DirectBatch):
                    raise TypeError("a direct read of one subject is answered with messages of one answer")
                for block, data in run.raw():
                    yield StoredMessage.from_direct(block, data, f"read stream {stream}")
        except DataLossError as error:
            # All that can be lost here is the stream itself; its words are about options of Spark's.
            raise DataLossError(f"stream {stream} was deleted, or created again, while it was read") from error
