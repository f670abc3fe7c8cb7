"""Reads single messages of a stream from its leader (STREAM.MSG.GET).

The leader has everything that it has acknowledged; a replica that answers a Direct Get may lag.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.requests import Connect, ask, stream_info
from spark_jetstream.errors import JetStreamError, MessageNotFound, ProtocolError, closest
from spark_jetstream.options import advice
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.stream import reply_time
from spark_jetstream.protocol.units import rfc3339

log = logging.getLogger(__name__)

_MOMENT = 2.0  # seconds for what only makes an error clearer
_PAGE = 1024  # names in a reply of STREAM.NAMES (nats-server: JSApiNamesLimit)


@dataclass(frozen=True)
class RawMessage:
    """A stored message. ``headers`` is its header block, ``b""`` without one; ``time`` is in ns since the epoch."""

    subject: str
    sequence: int
    headers: bytes
    data: bytes
    time: int

    @property
    def message_id(self) -> bytes:
        """The message id (`Nats-Msg-Id`), where a server finds it (server/client.go, `sliceHeader`); empty without."""
        match = re.search(rb"\r\nNats-Msg-Id: *(.*?)\r\n", self.headers, re.DOTALL)
        return match[1] if match is not None else b""


def last_message(connection: Connection, stream: str, subject: str, *, prefix: str | None = None) -> RawMessage | None:
    """Return the last message of a stream on a subject, or None. ``prefix`` is the stream's, if not the connection's.

    All functions of this module raise what `Connection.api` raises.
    """
    context = f"get the last message of stream {stream} on {subject}"
    return _message(connection, stream, jsapi.request_body(last_by_subj=subject), context, prefix)


def next_message(
    connection: Connection, stream: str, subject: str, sequence: int, *, prefix: str | None = None
) -> RawMessage | None:
    """Return the first message on a subject (or filter) from a sequence on, or None, as `last_message` does."""
    context = f"get the message of stream {stream} on {subject} from sequence {sequence} on"
    return _message(connection, stream, jsapi.request_body(seq=sequence, next_by_subj=subject), context, prefix)


def next_sequence(connection: Connection, stream: str, subjects: Sequence[str], sequence: int) -> int | None:
    """Return the sequence of the first message on one of the subjects (or filters; none: all) from a sequence on."""
    following = (next_message(connection, stream, subject, sequence) for subject in subjects or (">",))
    return min((message.sequence for message in following if message is not None), default=None)


def first_message(connection: Connection, stream: str, subject: str, nanoseconds: int) -> RawMessage | None:
    """Return the first message on a subject (or filter) stored at a time (ns) or later, or None."""
    time_text = rfc3339(nanoseconds)
    context = f"get the first message of stream {stream} on {subject} since {time_text}"
    return _message(connection, stream, jsapi.request_body(start_time=time_text, next_by_subj=subject), context)


def search_time(
    peek: Callable[[int], tuple[int, int] | None], nanoseconds: int, low: int, high: int
) -> tuple[int, tuple[int, int] | None]:
    """Find where the messages stored at a time (ns) or later begin, between two sequences, by a binary search.

    ``peek`` returns sequence and timestamp (ns) of the first message from a sequence on, or None. All messages below
    ``low`` are earlier than the time, none from ``high`` on is. Returns the sequence from which on none is earlier, and
    what ``peek`` says of the first message there; None if that is ``high`` itself.
    """
    found = None
    while low < high:
        middle = (low + high) // 2
        message = peek(middle)
        if message is not None and message[1] < nanoseconds:
            low = message[0] + 1
        else:
            found, high = message or found, middle
    return low, found


def message(connection: Connection, stream: str, sequence: int, *, prefix: str | None = None) -> RawMessage | None:
    """Return one message of a stream, or None when it is gone, as `last_message` does."""
    context = f"get message {sequence} of stream {stream}"
    return _message(connection, stream, jsapi.request_body(seq=sequence), context, prefix)


def _message(
    connection: Connection, stream: str, request: bytes, context: str, prefix: str | None = None
) -> RawMessage | None:
    try:
        body = ask(connection, jsapi.MESSAGE_GET, stream, body=request, context=context, prefix=prefix)
    except MessageNotFound:
        return None
    sequence = jsapi.whole(body, "message.seq", context, least=1)
    stored = body["message"]
    try:
        headers, data = (base64.b64decode(stored.get(name) or "", validate=True) for name in ("hdrs", "data"))
    except (ValueError, TypeError):
        raise ProtocolError(f"cannot {context}: the server's reply is not base64") from None
    subject = jsapi.field(body, "message.subject", str, context)
    return RawMessage(subject, sequence, headers, data, reply_time(body, "message.time", context))


def streams_of(
    connection: Connection, subject: str, hint: str = advice.STREAM, *, prefix: str | None = None
) -> list[str]:
    """Return the streams that capture a subject (STREAM.NAMES); errors end with ``hint``."""
    context = f"find the stream that captures {subject}{hint}"
    request = jsapi.request_body(subject=subject)
    body = ask(connection, jsapi.STREAM_NAMES, body=request, context=context, prefix=prefix)
    return [str(name) for name in jsapi.field(body, "streams", list, context)] if body.get("streams") else []


def nearest_stream(connect: Connect, missing: Sequence[str], prefix: str = "") -> str:
    """Return ``; did you mean NAME``, the end of an error that one of some streams does not exist; or "".

    ``prefix`` begins the names of streams that are buckets, and is no part of theirs. An account that may not list its
    streams, or gets no answer in a moment, or has more than one page of them, gets "".
    """
    try:
        connection = connect(_MOMENT)
        at = jsapi.subject(connection.prefix, jsapi.STREAM_NAMES)
        page = connection.ask(at, b"", context="list the streams", timeout=_MOMENT)
        known = [str(name) for name in jsapi.field(page, "streams", list, "list the streams", [])]
    except JetStreamError as error:
        log.info("no name to suggest: %s", error)
        return ""
    gone = next((name for name in missing if name not in known), "")
    likely = [name.removeprefix(prefix) for name in known if name.startswith(prefix)]
    found = closest(gone.removeprefix(prefix), likely) if len(known) < _PAGE else ""
    return f"; did you mean {found}" if found else ""


def why_silent(
    connection: Connection, subject: str, seconds: float, stream: str | None = None, *, prefix: str | None = None
) -> str:
    """Return why nothing published to ``subject`` was acknowledged for so many seconds, as far as the server says.

    ``stream`` is the one that should have stored it, None for the one that captures the subject. A server that cannot
    write to its disk says so in its log alone: it answers requests as before (seen with 2.15.1).
    """
    try:
        names = [stream] if stream else streams_of(connection, subject, "", prefix=prefix)
        if not names:
            return "no stream captures this subject"
        state = stream_info(connection, names[0], prefix=prefix)
    except JetStreamError as error:
        return f"the server does not say why: {error}"
    stream, last = f"stream {state.name}", state.last_seq
    if state.no_ack:
        return f"{stream} has no_ack set, so it gives none"
    if state.server_time and state.last_timestamp > state.server_time - seconds * 1e9:
        return f"{stream} stores messages (the last one is {last}), so it is slow, or its answers get lost"
    return (
        f"{stream} answers requests and stores nothing (its last message is {last}): its server cannot write (a full "
        "disk; its log says so), or what is published does not reach it"
    )
