"""From a message to an event. Pure; never fails.

Whatever somebody publishes where events are published comes out as an `Event`: a watch must not end because of it.

Which subjects to listen to for which events. Pure.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import string
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from spark_jetstream.admin.models.events import EVENT_TYPES, Event, UnknownEvent
from spark_jetstream.admin.models.fields import hint
from spark_jetstream.admin.models.messages import StoredMessage
from spark_jetstream.errors import OptionError, ProtocolError
from spark_jetstream.protocol.subjects import common_subjects, subject_fault
from spark_jetstream.protocol.units import NEVER, Timestamp, shown

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


PREFIX = "$JS.EVENT"
"""What the subjects of events begin with."""

KINDS: Mapping[str, type[Event]] = {type.rpartition(".")[2]: model for type, model in EVENT_TYPES.items()}
"""The last part of each type, which is how people name it -> its model."""

_ADVISORIES, _METRICS = "ADVISORY", "METRIC"
_OF_STREAMS = "ADVISORY.STREAM.*.{stream}"
_OF_CONSUMERS = tuple(f"{what}.CONSUMER.*.{{stream}}.{{consumer}}" for what in (_ADVISORIES, _METRICS))


def event_subjects(
    wanted: Iterable[str | type[Event]],
    *,
    advisories: bool,
    metrics: bool,
    stream: str | None,
    consumer: str | None,
    prefix: str,
) -> tuple[str, ...]:
    """The subjects, of which no two have anything in common: an event comes once.

    ``wanted`` are kinds, models, or subjects as they are; without any, all. A kind that does not name a stream, or a
    consumer, cannot be asked for together with one. `OptionError` for what does not exist or fit together.
    """
    kinds = tuple(wanted)
    templates = [each for one in kinds for each in _templates(one, prefix)]
    if not kinds:
        templates = _all(stream is not None, consumer is not None)
    allowed = {_ADVISORIES: advisories, _METRICS: metrics}
    kept = [each for each in templates if allowed.get(each.partition(".")[0], True)]
    if not kept or (kinds and len(kept) < len(templates)):
        raise OptionError("neither advisories nor metrics are wanted, or not those of the kinds that are")
    given = {"stream": stream, "consumer": consumer}
    for each in kept if kinds else ():
        lacking = [name for name, value in given.items() if value is not None and name not in _fields(each)]
        if lacking:
            raise OptionError(
                f"events on {prefix}.{each} cannot be chosen by {lacking[0]}: they name none, or not in their subject"
            )
    names = {name: value or "*" for name, value in given.items()}
    return _apart([_placed(each, names, prefix) for each in kept])


def _all(of_stream: bool, of_consumer: bool) -> list[str]:
    if of_consumer:
        return list(_OF_CONSUMERS)
    return [_OF_STREAMS, *_OF_CONSUMERS] if of_stream else [f"{_ADVISORIES}.>", f"{_METRICS}.>"]


def _templates(wanted: str | type[Event], prefix: str) -> tuple[str, ...]:
    """Subjects without the prefix, unless they are somewhere else."""
    if not isinstance(wanted, str):
        if wanted.TYPE not in EVENT_TYPES:
            raise OptionError(f"{wanted.__name__} is no kind of event that a server sends")
        return wanted.SUBJECTS
    if "." in wanted and wanted not in EVENT_TYPES:
        fault = subject_fault(wanted)
        if fault:
            raise OptionError(f"in {shown(wanted)} {fault}")
        if not wanted.startswith((f"{prefix}.", f"{_ADVISORIES}.", f"{_METRICS}.")):
            raise OptionError(
                f"events are published below {prefix}.{_ADVISORIES} and {prefix}.{_METRICS}, not on {wanted} "
                "(option prefix)"
            )
        return (wanted.removeprefix(f"{prefix}."),)
    model = EVENT_TYPES.get(wanted) or KINDS.get(wanted.strip().lower())
    if model is None:
        raise OptionError(
            f"there is no kind of event {shown(wanted)}{hint(wanted, tuple(KINDS))}; there are {', '.join(KINDS)}"
        )
    return model.SUBJECTS


def _fields(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


def _placed(template: str, names: Mapping[str, str], prefix: str) -> str:
    # A subject that was given as it is may hold braces.
    for name, value in names.items():
        template = template.replace(f"{{{name}}}", value)
    return f"{prefix}.{template}"


def _apart(subjects: list[str]) -> tuple[str, ...]:
    """Without those that others cover. `OptionError` for two that share some subjects and differ in others."""
    found: list[str] = []
    for each in subjects:
        shared = {one: common_subjects(one, each) for one in found}
        if each in shared.values():
            continue
        crossing = [one for one, common in shared.items() if common not in (None, one)]
        if crossing:
            raise OptionError(f"{crossing[0]} and {each} have subjects in common: ask for one that covers both")
        found = [*(one for one in found if shared[one] is None), each]
    return tuple(found)
