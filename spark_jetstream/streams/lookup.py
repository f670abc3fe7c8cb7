"""Reads single messages of a stream from its leader (STREAM.MSG.GET).

The leader has everything that it has acknowledged; a replica that answers a Direct Get may lag.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_jetstream.client.connection import Connection, Question
from spark_jetstream.client.requests import Connect, ask, stream_info
from spark_jetstream.errors import ApiError, JetStreamError, MessageNotFound, ProtocolError, closest
from spark_jetstream.options import advice
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.stream import reply_time
from spark_jetstream.protocol.units import rfc3339

log = logging.getLogger(__name__)

_MOMENT = 2.0  # seconds for what only makes an error clearer
_AT_ONCE = 16  # requests for messages that are under way at the same time
_SINGLE_AT_ONCE = 128  # those for messages by their sequences, which cost the server less
NAMES_PAGE = 1024
"""Names in a reply of STREAM.NAMES (nats-server: JSApiNamesLimit)."""
#: What streams are, by the beginning of their names (ADR-8, ADR-20).
_KINDS = {"KV_": "a Key-Value bucket", "OBJ_": "an Object Store bucket", "": "a stream"}


@dataclass(frozen=True)
class RawMessage:
    """A stored message.

    ``headers`` is its header block, ``b""`` without one; ``time`` is in ns since the epoch.
    """

    subject: str
    sequence: int
    headers: bytes
    data: bytes
    time: int

    @property
    def message_id(self) -> bytes:
        """The message id (`Nats-Msg-Id`); empty without one."""
        # As a server finds it (server/client.go, `sliceHeader`).
        match = re.search(rb"\r\nNats-Msg-Id: *(.*?)\r\n", self.headers, re.DOTALL)
        return match[1] if match is not None else b""


def last_message(
    connection: Connection, stream: str, subject: str, *, prefix: str | None = None
) -> RawMessage | None:
    """Return the last message of a stream on a subject, or None.

    ``prefix`` is the stream's, if not the connection's.

    All functions of this module raise what `Connection.api` raises.
    """
    context = f"get the last message of stream {stream} on {subject}"
    return _message(connection, stream, jsapi.request_body(last_by_subj=subject), context, prefix)


def next_message(
    connection: Connection, stream: str, subject: str, sequence: int, *, prefix: str | None = None
) -> RawMessage | None:
    """Return the first message on a subject (or filter) from a sequence on, or None."""
    context = f"get the message of stream {stream} on {subject} from sequence {sequence} on"
    return _message(
        connection, stream, jsapi.request_body(seq=sequence, next_by_subj=subject), context, prefix
    )


def next_sequence(
    connection: Connection, stream: str, subjects: Sequence[str], sequence: int
) -> int | None:
    """Return the sequence of the first message on one of the subjects from a sequence on.

    The subjects may be filters; without any, all messages count.
    """
    found = next_messages(connection, stream, subjects, sequence)
    return min((message.sequence for message in found), default=None)


def next_messages(
    connection: Connection, stream: str, subjects: Sequence[str], sequence: int
) -> list[RawMessage]:
    """Return the first message from a sequence on for each subject that has one.

    The subjects may be filters; without any, all messages count.
    """
    questions = [
        (f"get the message of stream {stream} on {subject} from sequence {sequence} on", subject)
        for subject in subjects or (">",)
    ]
    return _messages(connection, stream, questions, seq=sequence)


def first_messages(
    connection: Connection, stream: str, subjects: Sequence[str], nanoseconds: int
) -> list[RawMessage]:
    """Return the first message stored at a time (ns) or later for each subject that has one."""
    since = rfc3339(nanoseconds)
    questions = [
        (f"get the first message of stream {stream} on {subject} since {since}", subject)
        for subject in subjects or (">",)
    ]
    return _messages(connection, stream, questions, start_time=since)


def last_messages(connection: Connection, stream: str, subjects: Sequence[str]) -> list[RawMessage]:
    """Return the last message of each subject (or filter; none: of all) that has one."""
    questions = [
        (f"get the last message of stream {stream} on {subject}", subject)
        for subject in subjects or (">",)
    ]
    return _messages(connection, stream, questions)


def _messages(
    connection: Connection, stream: str, questions: Sequence[tuple[str, str]], **start: object
) -> list[RawMessage]:
    """Return a message for each subject that has one: the first from a start on, else the last one.

    ``questions`` has pairs of context and subject. A few requests are under way at a time, because
    a server may take a tenth of a second for each (a wildcard among many subjects). Requests
    without a reply are sent again after two seconds.
    """
    at = jsapi.subject(connection.prefix, jsapi.MESSAGE_GET, stream)
    by = "next_by_subj" if start else "last_by_subj"
    asked = [
        Question(at, context, jsapi.request_body(**start, **{by: subject}))
        for context, subject in questions
    ]
    return _answered(connection, asked, _AT_ONCE)


def _answered(connection: Connection, asked: Sequence[Question], at_once: int) -> list[RawMessage]:
    """Return the messages in the replies to requests of STREAM.MSG.GET, without those gone."""
    found: list[RawMessage] = []
    # The requests of a portion are under way together:
    # test_messages_of_several_filters_are_asked_for_together.
    for first in range(0, len(asked), at_once):
        some = asked[first : first + at_once]
        for (_, context, _), reply in zip(some, connection.ask_all(some), strict=True):
            if isinstance(reply, MessageNotFound):
                continue
            if isinstance(reply, ApiError):
                raise reply
            found.append(_stored(reply, context))
    return found


def search_time(
    peek: Callable[[int], tuple[int, int] | None], nanoseconds: int, low: int, high: int
) -> tuple[int, tuple[int, int] | None]:
    """Find where the messages stored at a time (ns) or later begin, by a binary search.

    ``peek`` returns sequence and timestamp (ns) of the first message from a sequence on, or None.
    All messages below ``low`` are earlier than the time, none from ``high`` on is. Returns the
    sequence from which on none is earlier, and what ``peek`` says of the first message there; None
    if that is ``high`` itself.
    """
    found = None
    while low < high:
        middle = (low + high) // 2
        message = peek(middle)
        if message is not None and message[1] < nanoseconds:
            # Sequences between `middle` and this message are gaps.
            low = message[0] + 1
        else:
            found, high = message or found, middle
    return low, found


def message(
    connection: Connection, stream: str, sequence: int, *, prefix: str | None = None
) -> RawMessage | None:
    """Return one message of a stream, or None when it is gone, as `last_message` does."""
    context = f"get message {sequence} of stream {stream}"
    return _message(connection, stream, jsapi.request_body(seq=sequence), context, prefix)


def messages(connection: Connection, stream: str, sequences: Sequence[int]) -> list[RawMessage]:
    """Return the messages of a stream with these sequences, in this order, without those gone."""
    at = jsapi.subject(connection.prefix, jsapi.MESSAGE_GET, stream)
    asked = []
    for sequence in sequences:
        context = f"get message {sequence} of stream {stream}"
        asked.append(Question(at, context, jsapi.request_body(seq=sequence)))
    return _answered(connection, asked, _SINGLE_AT_ONCE)


def _message(
    connection: Connection, stream: str, request: bytes, context: str, prefix: str | None = None
) -> RawMessage | None:
    try:
        body = ask(
            connection, jsapi.MESSAGE_GET, stream, body=request, context=context, prefix=prefix
        )
    except MessageNotFound:
        return None
    return _stored(body, context)


def _stored(body: Mapping[str, Any], context: str) -> RawMessage:
    """Return the message in a reply of STREAM.MSG.GET."""
    sequence = jsapi.whole(body, "message.seq", context, least=1)
    stored = body["message"]
    try:
        headers = base64.b64decode(stored.get("hdrs") or "", validate=True)
        data = base64.b64decode(stored.get("data") or "", validate=True)
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
    if not body.get("streams"):
        return []
    return [str(name) for name in jsapi.field(body, "streams", list, context)]


def nearest_stream(
    connect: Connect,
    missing: Sequence[str],
    prefix: str = "",
    *,
    options: bool = False,
    page_size: int = NAMES_PAGE,
) -> str:
    """Return the end of an error about a missing stream, which names the one that was meant; or "".

    The end is ``; did you mean NAME``, or ``; NAME is a Key-Value bucket`` where a stream of
    another kind has this name. With ``options`` the option of that kind follows. ``prefix`` begins
    the names of streams that are buckets, and is no part of theirs. An account that may not list
    its streams, or gets no answer in a moment, gets "". If the names fill a page (``page_size``),
    only that page is searched, and only for a stream of another kind.
    """
    if not missing:
        return ""
    known = _names_to_suggest(connect)
    is_all = len(known) < page_size
    # The first of several pages cannot show which name is missing.
    if not is_all and len(missing) > 1:
        return ""  # the next page may have that one
    gone = next((name for name in missing if name not in known), "")
    name = gone.removeprefix(prefix)
    if not name:
        return ""
    for kind in _KINDS:
        if f"{kind}{name}" in known:
            return _other_kind(f"{kind}{name}", prefix, options=options)
    return _similar(name, known, prefix) if is_all else ""


def _names_to_suggest(connect: Connect) -> list[str]:
    """Return the names of the account's streams, as many as one reply has; none if none comes in a moment."""
    try:
        connection = connect(_MOMENT)
        at = jsapi.subject(connection.prefix, jsapi.STREAM_NAMES)
        page = connection.ask(at, b"", context="list the streams", timeout=_MOMENT)
        return [str(name) for name in jsapi.field(page, "streams", list, "list the streams", [])]
    except JetStreamError as error:
        log.info("no name to suggest: %s", error)
        return []


def _similar(name: str, streams: Sequence[str], prefix: str) -> str:
    """Return ``; did you mean NAME`` for the one of the streams that is most like a name, or ""."""
    likely = [each.removeprefix(prefix) for each in streams if each.startswith(prefix)]
    found = closest(name, likely)
    return f"; did you mean {found}" if found else ""


def _other_kind(stream: str, prefix: str, *, options: bool) -> str:
    """Return the end of an error about a name that a stream has, but without the prefix."""
    # "" is the last of the kinds, and every name begins with it.
    kind = next(each for each in _KINDS if stream.startswith(each))
    name = stream.removeprefix(kind)
    if kind == prefix:  # the stream of a bucket was given in place of the bucket
        return f"; did you mean {name}"
    named_by = f" ({advice.NAMED_BY[kind]})" if options else ""
    return f"; {name} is {_KINDS[kind]}{named_by}"


def nearest_subject(connect: Connect, subject: str) -> str:
    """Return ``; did you mean SUBJECT``, where no stream captures a subject; or "".

    An account that may not list its streams, or gets no answer in a moment, gets "".
    """
    context = "list the subjects of the streams"
    try:
        connection = connect(_MOMENT)
        at = jsapi.subject(connection.prefix, jsapi.STREAM_LIST)
        page = connection.ask(at, b"", context=context, timeout=_MOMENT)
        streams = jsapi.field(page, "streams", list, context, [])
        captured: list[str] = []
        for each in streams:
            captured += jsapi.field(each, "config.subjects", list, context, [])
    except JetStreamError as error:
        log.info("no subject to suggest: %s", error)
        return ""
    likely = [_filled(str(each), subject) for each in captured]
    found = closest(subject, filter(None, likely))
    return f"; did you mean {found}" if found else ""


def _filled(pattern: str, subject: str) -> str:
    """Return a subject that a stream captures, with the tokens of another one for its wildcards.

    "" unless the other tokens are like those of the subject: what it has in the place of wildcards
    says nothing.
    """
    given = subject.split(".")
    tokens = pattern.split(".")
    literal: list[str] = []
    own: list[str] = []
    rest = tokens[-1] == ">"
    if len(tokens) > len(given) or (len(tokens) < len(given) and not rest):
        return ""
    filled = given.copy()
    for at, token in enumerate(tokens):
        if token not in ("*", ">"):
            filled[at] = token
            literal.append(token)
            own.append(given[at])
    if closest(".".join(own), [".".join(literal)]):
        return ".".join(filled)
    return ""


def why_silent(
    connection: Connection,
    subject: str,
    seconds: float,
    stream: str | None = None,
    *,
    prefix: str | None = None,
) -> str:
    """Return why nothing published to ``subject`` was acknowledged for ``seconds``.

    ``stream`` is the one that should have stored it, None for the one that captures the subject. A
    server that cannot write to its disk says so in its log alone: it answers requests as before
    (seen with 2.15.1).
    """
    try:
        names = [stream] if stream else streams_of(connection, subject, "", prefix=prefix)
        if not names:
            return "no stream captures this subject"
        state = stream_info(connection, names[0], prefix=prefix)
    except JetStreamError as error:
        return f"the server does not say why: {error}"
    if state.no_ack:
        return f"stream {state.name} has no_ack set, so it gives none"
    # Servers that do not say their time (0) cannot show that nothing was stored meanwhile.
    if state.server_time and state.last_timestamp > state.server_time - seconds * 1e9:
        return (
            f"stream {state.name} stores messages (the last one is {state.last_seq}), so it is "
            "slow, or its answers get lost"
        )
    return (
        f"stream {state.name} answers requests and stores nothing (its last message is "
        f"{state.last_seq}): its server cannot write (a full disk: see its log), or published "
        "messages do not reach it"
    )
