"""Messages of streams: publish one, read one or many, delete one.

Direct Get: ADR-31 "JetStream Direct Get".
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from spark_jetstream.admin.api import (
    Api,
    moment,
    positive,
    publish_subject,
    stream_name,
    subject_filter,
)
from spark_jetstream.admin.models.messages import DoneReply, MessageReply, PubAck, StoredMessage
from spark_jetstream.admin.models.streams import StreamInfo
from spark_jetstream.admin.streams import Streams
from spark_jetstream.admin.watch import BATCH, settings
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.client.inbox import Pairs
from spark_jetstream.errors import (
    ApiError,
    DataLossError,
    JetStreamError,
    MessageNotFound,
    NoResponders,
    OptionError,
    ProtocolError,
    RequestTimeout,
    ServerBusy,
    StreamNotFound,
)
from spark_jetstream.protocol import commands, jsapi
from spark_jetstream.protocol.direct_get import DirectBatch
from spark_jetstream.protocol.features import DIRECT_BATCHES, FIRST_SINCE, MESSAGES_SINCE
from spark_jetstream.protocol.jsapi import Endpoint
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.protocol.units import Timestamp, shown
from spark_jetstream.protocol.wire import parse_status
from spark_jetstream.streams.direct import AnswerRejected, read_direct, receive
from spark_jetstream.streams.lookup import nearest_subject, search_time
from spark_jetstream.streams.multi_last import (
    ANSWER_BYTES,
    MOST_SUBJECTS,
    TOO_MANY,
    take_answer,
)

log = logging.getLogger(__name__)

_ATTEMPTS = 3  # at an answer of which messages were lost
_GONE = frozenset({10043, 10057})
"""Error codes of a deletion, for a message that does not exist and for one that must stay."""
# The characters that the value of a header cannot have.
_NO_VALUE = re.compile(r"[\r\n\ud800-\udfff]")
_HEADER_BYTES = len("NATS/1.0\r\n\r\n")
# The prefix of the API of a domain, which is its second token.
_DOMAIN = re.compile(r"\$JS\.([^.]+)\.API")
_OTHER_STREAM = "stream {} was deleted, or created again, while it was read"
LOOK_TIME = 0.5
"""Seconds to wait for an answer about a stream: during an election no server answers."""


def publish(
    api: Api,
    subject: str,
    data: str | bytes,
    headers: Mapping[str, str] | None,
    *,
    look_time: float = LOOK_TIME,
) -> PubAck:
    """`JetStreamAdmin.publish`."""
    subject = publish_subject(subject)
    given: Mapping[Any, Any] = headers or {}
    for name, value in given.items():
        check_header(name, value)
    context = f"publish to {subject}"

    def look(seconds: float) -> None:
        at = jsapi.subject(api.connection.prefix, jsapi.STREAM_NAMES)
        request = jsapi.request_body(subject=subject)
        try:
            reply = api.connection.ask(at, request, context=context, timeout=seconds)
        except NoResponders:
            # The account has no JetStream.
            raise
        # A cluster in an election, or an account without permission,
        # does not answer. The publish itself then decides.
        except JetStreamError as error:
            log.info("cannot see whether a stream captures %s: %s", subject, error)
            return
        # The API of another account (option apiPrefix) may have other subjects than those that one
        # publishes to.
        if not reply.get("streams") and api.options.api_prefix is None:
            meant = nearest_subject(api.connect, subject)
            problem = f"cannot {context}: no stream captures this subject{meant}"
            raise StreamNotFound(problem, code=404, err_code=10059, description="")

    payload = octets(data, "data")
    ack = store(api, subject, payload, given, context, look, look_time=look_time)
    check_place(ack, api.connection.prefix, context)
    return ack


def check_header(name: Any, value: Any) -> None:
    """Raise `OptionError` for a header that a message cannot have."""
    has_name = commands.HEADER_NAME.fullmatch(str(name)) is not None
    has_value = isinstance(value, str) and not _NO_VALUE.search(value)
    if not (has_name and has_value):
        forms = "names are letters, digits and dashes, values one line in UTF-8"
        raise OptionError(f"header {shown(name)} is not possible: {forms}")


def store(
    api: Api,
    subject: str,
    data: bytes,
    headers: Mapping[str, str],
    context: str,
    look: Callable[[float], None],
    *,
    look_time: float = LOOK_TIME,
) -> PubAck:
    """Publish a message and return what confirms it.

    Without a confirmation ``look`` is called, with the seconds that it may take, at most
    ``look_time``. It raises when the stream does not exist. During an election the message is sent
    again for option ``requestTimeout``: nothing was stored then.
    """
    connection = api.connection
    check_size(connection, data, [*headers.items()], context)
    deadline = Deadline(api.options.request_timeout)
    backoff = Backoff()
    given = dict(headers) or None
    while True:
        try:
            payload = connection.request(subject, data, context=context, headers=given)
            return PubAck.from_server(jsapi.reply(payload, context), context)
        except RequestTimeout:
            # A stream, or another subscriber, got the message.
            look(look_time)
            raise
        # Either no stream captures the subject, or its
        # stream has no leader: `look` tells them apart.
        except NoResponders:
            look(deadline.within(look_time))
            if deadline.expired:
                raise
        # The server refused the message, so nothing is stored twice by sending it again.
        except ServerBusy:
            if deadline.expired:
                raise
        backoff.pause(deadline)


def check_size(connection: Connection, data: bytes, headers: Pairs, context: str) -> None:
    """Raise `JetStreamError` for a message that is larger than the server allows."""
    size = len(data) + (_HEADER_BYTES if headers else 0)
    for name, text in headers:
        size += len(f"{name}: {text}\r\n".encode())
    # The server closes the connection of a client that sends more, and with it ends the requests of
    # everything else that shares it.
    if size > connection.max_payload:
        most = f"{connection.max_payload:,} (its max_payload)"
        raise JetStreamError(
            f"cannot {context}: with its headers it has {size:,} bytes, and the server takes no "
            f"more than {most}",
        )


def check_place(ack: PubAck, prefix: str, context: str, stream: str = "") -> None:
    """Raise `JetStreamError` when another stream than ``stream`` has stored a message.

    A stream of another domain is another one too.
    """
    # The subject that one publishes to has no domain: streams of two domains may capture it
    # (`test_a_message_that_another_domain_has_stored`).
    domain = _DOMAIN.fullmatch(prefix)
    other_stream = bool(stream) and ack.stream != stream
    other_domain = domain is not None and ack.domain != domain[1]
    if not other_stream and not other_domain:
        return
    place = f"stream {ack.stream}"
    if ack.domain:
        place = f"{place} of domain {ack.domain}"
    wanted = stream
    if not wanted:
        # Without a stream only the domain can be another one.
        assert domain is not None
        wanted = f"a stream of domain {domain[1]}"
    raise JetStreamError(
        f"cannot {context}: {place} has stored it (sequence {ack.seq}), not {wanted}",
    )


def octets(value: Any, what: str) -> bytes:
    """Return a value as bytes; text as UTF-8.

    Raises `OptionError`, which calls it ``what``, for any other type.
    """
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise OptionError(f"{what}: the text cannot be written as UTF-8") from None
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise OptionError(f"{what} must be text or bytes, not {type(value).__name__}")


class Messages:
    """The messages of an account's streams; ``admin.messages``.

    The leader of the stream answers for single messages, and never lags. With ``direct`` they are
    read by Direct Get, for accounts that may do no more: any replica or mirror answers, which may
    lag. `NoResponders` is raised where the stream does not allow it (``allow_direct``).

    All methods raise what `Api` raises; `StreamNotFound` and `MessageNotFound` name what was asked
    for; `OptionError` for an argument that cannot be one.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._streams = Streams(api)

    def get(self, stream: str, sequence: int, *, direct: bool = False) -> StoredMessage:
        """Return the message with a sequence. Raises `MessageNotFound`."""
        return self._get(
            stream,
            jsapi.request_body(seq=positive(sequence)),
            f"get message {sequence} of",
            direct,
        )

    def last(self, stream: str, subject: str = ">", *, direct: bool = False) -> StoredMessage:
        """Return the last message on a subject (wildcards allowed). Raises `MessageNotFound`."""
        request = jsapi.request_body(last_by_subj=subject_filter(subject))
        context = f"get the last {subject} of"
        has_wildcards = not {"*", ">"}.isdisjoint(subject.split("."))
        if direct and not has_wildcards:
            # This endpoint has the subject in its own, so that permissions can name it.
            return self._get_directly(
                stream,
                b"",
                f"{context} stream {stream}",
                jsapi.DIRECT_GET_LAST,
                subject,
            )
        return self._get(stream, request, context, direct)

    def next(
        self,
        stream: str,
        subject: str = ">",
        sequence: int = 1,
        *,
        direct: bool = False,
    ) -> StoredMessage:
        """Return the first message on a subject (wildcards allowed) from a sequence on.

        Raises `MessageNotFound`.
        """
        request = jsapi.request_body(seq=positive(sequence), next_by_subj=subject_filter(subject))
        return self._get(
            stream,
            request,
            f"get the first {subject} from sequence {sequence} on of",
            direct,
        )

    def since(
        self,
        stream: str,
        time: Any,
        subject: str = ">",
        *,
        direct: bool = False,
    ) -> StoredMessage:
        """Return the first message on a subject (wildcards allowed) stored at a time or later.

        ``time`` is an aware `datetime`, text such as ``2026-03-01T12:00:00Z``, or nanoseconds since
        the epoch. Raises `MessageNotFound`, and `JetStreamError` where the server is older than
        2.11.
        """
        start = moment("time", time)
        context = f"get the first {subject} since {start} of"
        self._api.need(MESSAGES_SINCE.level, f"{context} stream {stream}")
        request = jsapi.request_body(start_time=start, next_by_subj=subject_filter(subject))
        # A server before 2.12 answers start_time with a wrong message in a stream with missing
        # sequences
        # (`test_a_server_before_2_12_is_not_asked_which_message_is_the_first_since_a_time`).
        if not self._finds_times():
            _, found = self._search(stream, start, subject, direct)
            if found is None:
                raise _refusal(stream, jsapi.NOT_FOUND, "", f"{context} stream {stream}")
            request = jsapi.request_body(seq=found[0], next_by_subj=subject)
        return self._get(stream, request, context, direct)

    def last_of_each(
        self, stream: str, *subject: str, sequence: int | None = None, time: Any = None
    ) -> list[StoredMessage]:
        """Return the last message of each subject (wildcards allowed) as of one moment.

        They have the order of the stream. The moment is now, or up to a sequence, or a time. Raises
        `NoResponders` when the stream does not allow Direct Get, `JetStreamError` when more than
        1,024 subjects match or the server is older than 2.11.
        """
        filters = [subject_filter(filter_) for filter_ in subject or (">",)]
        listed = ", ".join(filters)
        context = f"get the last message of each {listed} of stream {stream_name(stream)}"
        if sequence is not None and time is not None:
            raise OptionError(f"cannot {context}: sequence and time cannot be set together")
        limit: dict[str, Any] = {}
        if sequence is not None:
            limit = {"up_to_seq": positive(sequence)}
        if time is not None:
            limit = {"up_to_time": moment("time", time)}
        self._api.need(DIRECT_BATCHES.level, context)
        if time is not None and not self._finds_times():
            # The sequence stands for the time, which this server would read otherwise.
            end, _ = self._search(stream, limit["up_to_time"], ">", direct=True)
            # Nothing was stored before that time.
            if end == 1:
                return []
            limit = {"up_to_seq": end - 1}
        return self._last_or_again(stream, filters, limit, context)

    def _last_or_again(
        self, stream: str, filters: list[str], limit: dict[str, Any], context: str
    ) -> list[StoredMessage]:
        """Return the last messages; ask again when messages of an answer were lost."""
        # The server sends an answer without flow control, and does not repeat lost messages
        # (`test_an_answer_that_lacks_a_message_is_asked_for_again`).
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(AnswerRejected):
                return _last_of_each(self._api.connection, stream, filters, limit, context)
        return _last_of_each(self._api.connection, stream, filters, limit, context)

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
        """Return messages in order, up to the one that is the last when the iteration begins.

        Only messages on ``subject`` (wildcards allowed), from ``sequence`` on, stored at the time
        ``since`` or later, and at most ``count``. They are read in batches where the stream allows
        Direct Get, else one by one; ``direct`` insists on batches (True), or on single messages
        from the leader (False).

        Raises:
            DataLossError: The stream was deleted or created again.
            JetStreamError: ``direct`` is True, and the stream does not allow it or the server is
                older than 2.11.
        """
        first = positive(sequence)
        if since is not None:
            try:
                found = self.since(stream, since, subject or ">")
            except MessageNotFound:
                return
            first = max(first, found.seq)
        if count is not None and count < 1:
            return
        info = self._streams.load(stream)
        first = max(first, info.state.first_seq)
        # Messages that are stored from now on are not read: the iteration has an end.
        end = info.state.last_seq + 1
        if first >= end:
            return
        if self._in_batches_wanted(info, direct):
            messages = self._in_batches(info, subject, first, end, min(count or BATCH, BATCH))
        else:
            messages = self._one_by_one(info, subject, first, end)
        yield from itertools.islice(messages, count)

    def _in_batches_wanted(self, info: StreamInfo, direct: bool | None) -> bool:
        """Return whether a stream is read in batches.

        Raises `JetStreamError` if ``direct`` insists on it, and it is not possible.
        """
        batches = self._reads_batches()
        allowed = info.config.allow_direct and batches
        if direct and not allowed:
            needs = "(allow_direct, and server 2.11)"
            raise JetStreamError(f"stream {info.config.name} does not allow direct reads {needs}")
        return allowed and direct is not False

    def _reads_batches(self) -> bool:
        """Return whether the server answers a Direct Get for several messages."""
        # Behind a leaf node the JetStream that answers has another version than the server of the
        # connection. Level 0 of its API is that of servers before 2.11.
        return self._api.connection.can(DIRECT_BATCHES) and self._api.level() != 0

    def erase(self, stream: str, sequence: int) -> None:
        """Delete a message and overwrite it on the disk, as data protection may demand.

        Raises `MessageNotFound`.
        """
        self._delete(stream, sequence, {"seq": positive(sequence)}, "erase")

    def delete(self, stream: str, sequence: int) -> None:
        """Delete a message, without overwriting it on the disk, which is faster.

        Raises `MessageNotFound`.
        """
        self._delete(stream, sequence, {"seq": positive(sequence), "no_erase": True}, "delete")

    def _finds_times(self) -> bool:
        """Return whether the server surely finds the first message since a time."""
        return FIRST_SINCE.is_at(self._api.level() or 0)

    def _search(
        self,
        stream: str,
        start: Timestamp,
        subject: str,
        direct: bool,
    ) -> tuple[int, tuple[int, int] | None]:
        """Return what `search_time` does, of the whole stream."""

        def peek(sequence: int) -> tuple[int, int] | None:
            with contextlib.suppress(MessageNotFound):
                message = self.next(stream, subject, sequence, direct=direct)
                return message.seq, message.time.nanoseconds
            return None

        # Each step doubles the sequence, until a message is late enough.
        low = high = 1
        late = peek(high)
        while late is not None and late[1] < start.nanoseconds:
            # All messages up to this one are too old.
            low = late[0] + 1
            high = 2 * late[0]
            late = peek(high)
        end, found = search_time(peek, start.nanoseconds, low, high)
        return end, found or late

    def _get(self, stream: str, request: bytes, what: str, direct: bool = False) -> StoredMessage:
        context = f"{what} stream {stream}"
        if direct:
            return self._get_directly(stream, request, context, jsapi.DIRECT_GET)
        return self._api.reply(
            MessageReply,
            jsapi.MESSAGE_GET,
            request,
            context=context,
            stream=stream,
        ).message

    def _get_directly(
        self,
        stream: str,
        request: bytes,
        context: str,
        endpoint: Endpoint,
        subject: str = "",
    ) -> StoredMessage:
        connection = self._api.connection
        at = jsapi.subject(connection.prefix, endpoint, stream_name(stream), subject=subject)
        # A message has no reply subject here, by which an inbox tells messages from statuses.
        with connection.inbox(whole=True) as inbox:
            inbox.publish(at, request, 1)
            [(block, data)] = receive(connection, inbox, context).parts()
        try:
            return StoredMessage.from_direct(block, data, context)
        except ProtocolError:
            # A message cannot pass for a status: the server adds its own lines to a message.
            status = parse_status(block)
            if status is None or data:
                raise
        raise _refusal(stream, status.code, status.description, context)

    def _delete(self, stream: str, sequence: int, request: dict[str, Any], what: str) -> None:
        context = f"{what} message {sequence} of stream {stream}"
        try:
            self._api.do(DoneReply, jsapi.MESSAGE_DELETE, request, context=context, stream=stream)
        except ApiError as error:
            # The server uses these codes for other reasons too.
            if error.err_code in _GONE and not self._exists(stream, sequence):
                raise MessageNotFound(
                    f"cannot {context}: the message does not exist",
                    code=error.code,
                    err_code=error.err_code,
                    description=error.description,
                ) from error
            raise

    def _exists(self, stream: str, sequence: int) -> bool:
        try:
            self.get(stream, sequence)
        except MessageNotFound:
            return False
        return True

    def _one_by_one(
        self,
        info: StreamInfo,
        subject: str | None,
        first: int,
        end: int,
    ) -> Iterator[StoredMessage]:
        while first < end:
            message = self._next_of(info, subject or ">", first)
            if message is None or message.seq >= end:
                return
            yield message
            first = message.seq + 1

    def _next_of(self, info: StreamInfo, subject: str, sequence: int) -> StoredMessage | None:
        """Return the first message from a sequence on; None if there is none.

        Raises `DataLossError` if the stream is not that of ``info`` any more.
        """
        stream = info.config.name
        message = None
        try:
            with contextlib.suppress(MessageNotFound):
                message = self.next(stream, subject, sequence)
            # A stream that was created again has the same sequences, and only later messages.
            latest = info.state.last_ts.nanoseconds
            unsure = message is None or message.time.nanoseconds > latest
            if unsure and self._streams.load(stream).created != info.created:
                raise DataLossError(_OTHER_STREAM.format(stream))
        except StreamNotFound as error:
            raise DataLossError(_OTHER_STREAM.format(stream)) from error
        return message

    def _in_batches(
        self, info: StreamInfo, subject: str | None, first: int, end: int, batch: int
    ) -> Iterator[StoredMessage]:
        stream = info.config.name
        filters = () if subject is None else (subject_filter(subject),)
        part = SequenceRange(stream, first, end, None, info.created, filters)
        try:
            how = settings(self._api, batch)
            for messages in read_direct(self._api.connect, part, how, "spark-jetstream admin"):
                assert isinstance(messages, DirectBatch)  # only several filters are merged
                for block, data in messages.raw():
                    yield StoredMessage.from_direct(block, data, f"read stream {stream}")
        except DataLossError as error:
            # Without a consumer only the stream itself can be lost. The original text names options
            # of Spark.
            raise DataLossError(_OTHER_STREAM.format(stream)) from error


def _last_of_each(
    connection: Connection,
    stream: str,
    filters: Sequence[str],
    limit: Mapping[str, Any],
    context: str,
) -> list[StoredMessage]:
    """Return the last messages; ``limit`` is ``up_to_seq``, ``up_to_time`` or empty.

    Raises what `take_answer` raises.
    """
    subject = jsapi.subject(connection.prefix, jsapi.DIRECT_GET, stream)
    messages: list[StoredMessage] = []
    with connection.inbox(whole=True) as inbox:
        while True:
            body = jsapi.request_body(multi_last=filters, max_bytes=ANSWER_BYTES, **limit)
            inbox.publish(subject, body, 1)
            runs, end = take_answer(connection, inbox, context)
            answer = _stored_messages(runs, context)
            messages += answer
            # Nothing matches any more. A batch that finds nothing ends with 404, without an end of
            # batch.
            if end.code == jsapi.NOT_FOUND and not answer:
                return messages
            if end.code != jsapi.END_OF_BATCH:
                raise _refusal(stream, end.code, end.description, context)
            if end.up_to is None or end.pending is None:
                raise ProtocolError(
                    f"cannot {context}: the end of the answer does not say how far it goes",
                )
            # A server that says that more is pending, and sends nothing, would be asked for ever.
            if not end.pending or not answer:
                return messages
            # The next request asks for the rest as of the same moment.
            limit = {"up_to_seq": end.up_to, "seq": answer[-1].seq + 1}


def _stored_messages(runs: Iterable[DirectBatch], context: str) -> list[StoredMessage]:
    messages = []
    for run in runs:
        for block, data in run.raw():
            messages.append(StoredMessage.from_direct(block, data, context))
    return messages


def _refusal(stream: str, code: int, description: str, context: str) -> JetStreamError:
    status = f"{code} {description}".strip()
    if code == jsapi.NOT_FOUND:
        return MessageNotFound(
            f"cannot {context}: the server that answered does not have this message ({status})",
            code=code,
            err_code=0,
            description=description,
        )
    # No server listens at the subject of a stream that does not exist, or lacks allow_direct.
    if code == jsapi.NO_RESPONDERS:
        return NoResponders(
            f"cannot {context}: nobody answers direct gets of stream {stream}: "
            "does it exist, and is its allow_direct set"
        )
    if code == TOO_MANY:
        reason = f"more than {MOST_SUBJECTS:,} subjects match, which a server refuses"
        return JetStreamError(f"cannot {context}: {reason}")
    return JetStreamError(f"cannot {context}: the server refused the direct get: {status}")
