"""From a message to an event. Pure; never fails.

Whatever somebody publishes where events are published comes out as an `Event`: a watch must not end because of it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any, TypeVar

from spark_jetstream.admin.event_base import Event, UnknownEvent
from spark_jetstream.admin.event_models import EVENT_TYPES
from spark_jetstream.admin.messages import StoredMessage
from spark_jetstream.errors import ProtocolError
from spark_jetstream.units import NEVER, Timestamp

E = TypeVar("E", bound=Event)

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_event(subject: str, data: bytes, received: Timestamp = NEVER) -> Event:
    """The event that a message is: of the class of its type, or a plain `Event` for a type that is not known here, or
    an `UnknownEvent` for a message that is no event at all.

    ``received`` is when it came, or was stored; it is the ``timestamp`` of an `UnknownEvent`.
    """
    try:
        body = _json_object(data)
        context = f"read an event on {subject}"
        kind = body.get("type")
        event = EVENT_TYPES.get(kind if isinstance(kind, str) else "", Event).from_server(body, context)
    except (ValueError, ProtocolError) as error:
        return _unknown(subject, data, received, str(error))
    return _with_origin(event, subject, data)


def stored_event(message: StoredMessage) -> Event:
    """The event that a message of a stream is which captures events (subjects ``$JS.EVENT.ADVISORY.>``)."""
    return parse_event(message.subject, message.data, message.time)


def _json_object(data: bytes) -> dict[str, Any]:
    """`ValueError` for anything else, and for what could not be written as JSON again."""
    try:
        body = json.loads(data, parse_constant=_refuse, parse_float=_finite)
        if _SURROGATE.search(data):
            json.dumps(body, ensure_ascii=False).encode()
    except (UnicodeError, RecursionError, ValueError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise ValueError("it is not a JSON object")
    return body


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no number")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:20]} is no number")
    return number


def _unknown(subject: str, data: bytes, received: Timestamp, reason: str) -> UnknownEvent:
    digest = hashlib.sha256(b"\0".join((subject.encode("utf-8", "surrogatepass"), received.encode(), data)))
    body = {
        "type": UnknownEvent.TYPE,
        "id": digest.hexdigest()[:32],
        "timestamp": received,
        "subject": subject,
        "data": data,
        "reason": reason.encode(errors="backslashreplace").decode(),
    }
    return _with_origin(UnknownEvent.from_server(body), subject, data)


def _with_origin(event: E, subject: str, data: bytes) -> E:
    event._published_on = subject
    event._raw = data
    return event
