"""Messages to events, and the subjects of events. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from spark_jetstream.admin.models.base import hint
from spark_jetstream.admin.models.events import EVENT_TYPES, Event, UnknownEvent
from spark_jetstream.admin.models.messages import StoredMessage
from spark_jetstream.errors import OptionError, ProtocolError
from spark_jetstream.protocol.json_text import json_object
from spark_jetstream.protocol.subjects import common_subjects, subject_fault
from spark_jetstream.protocol.units import NEVER, Timestamp, shown

PREFIX = "$JS.EVENT"
"""The beginning of the subjects of events."""

KINDS: Mapping[str, type[Event]] = {type.rpartition(".")[2]: model for type, model in EVENT_TYPES.items()}
"""Model by the last part of its type, the name that users give."""

_ADVISORIES, _METRICS = "ADVISORY", "METRIC"
_SYSTEM = "$SYS."
_OF_STREAMS = "ADVISORY.STREAM.*.{stream}"
_OF_CONSUMERS = tuple(f"{what}.CONSUMER.*.{{stream}}.{{consumer}}" for what in (_ADVISORIES, _METRICS))


def parse_event(subject: str, data: bytes, received: Timestamp = NEVER) -> Event:
    """Return the event of a message. It never raises: no message may end a watch.

    The class is that of the event's type, `Event` for a type that is not known, and `UnknownEvent` for a message that
    is not an event; its ``timestamp`` is ``received``.
    """
    try:
        body = json_object(data)
        kind = body.get("type")
        model = EVENT_TYPES.get(kind if isinstance(kind, str) else "", Event)
        event = model.from_server(body, f"read an event on {subject}")
    except (ValueError, ProtocolError) as error:
        event = _unknown(subject, data, received, f"it {error}" if isinstance(error, ValueError) else str(error))
    event._published_on = subject
    event._raw = data
    return event


def stored_event(message: StoredMessage) -> Event:
    """Return the event of a message in a stream that captures events (subjects ``$JS.EVENT.ADVISORY.>``)."""
    return parse_event(message.subject, message.data, message.time)


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
    return UnknownEvent.from_server(body)


def event_subjects(
    wanted: Iterable[str | type[Event]],
    *,
    advisories: bool,
    metrics: bool,
    stream: str | None,
    consumer: str | None,
    prefix: str,
) -> tuple[str, ...]:
    """Return the subjects to subscribe to, as for `Events.watch`; no two of them overlap. Raises `OptionError`."""
    kinds = tuple(wanted)
    templates = [template for kind in kinds for template in _templates(kind, prefix)]
    if not kinds:
        every = [_OF_STREAMS, *_OF_CONSUMERS] if stream is not None else [f"{_ADVISORIES}.>", f"{_METRICS}.>"]
        templates = every if consumer is None else list(_OF_CONSUMERS)
    allowed = {_ADVISORIES: advisories, _METRICS: metrics}
    kept = [template for template in templates if allowed.get(template.partition(".")[0], True)]
    if not kept or (kinds and len(kept) < len(templates)):
        raise OptionError("nothing is left to watch: set advisories or metrics to true, as the kinds need")
    given = {"stream": stream, "consumer": consumer}
    for template in kept if kinds else ():
        lacking = [name for name, value in given.items() if value is not None and f"{{{name}}}" not in template]
        if lacking:
            raise OptionError(f"events on {prefix}.{template} name no {lacking[0]}, so they cannot be limited to one")
    # Not `str.format`: a subject of the user may have braces.
    named = [template.replace("{stream}", stream or "*").replace("{consumer}", consumer or "*") for template in kept]
    full = [name.replace("{account}", "*") if name.startswith(_SYSTEM) else f"{prefix}.{name}" for name in named]
    return _without_overlap(full)


def _templates(wanted: str | type[Event], prefix: str) -> tuple[str, ...]:
    """Return the subjects of a kind, without the prefix."""
    if not isinstance(wanted, str):
        if wanted.TYPE not in EVENT_TYPES:
            raise OptionError(f"{wanted.__name__} is not a kind of event that a server sends")
    elif "." in wanted and wanted not in EVENT_TYPES:
        problem = subject_fault(wanted)
        if problem:
            raise OptionError(f"in {shown(wanted)} {problem}")
        if not wanted.startswith((f"{prefix}.", f"{_ADVISORIES}.", f"{_METRICS}.", _SYSTEM)):
            raise OptionError(
                f"events are published below {prefix}.{_ADVISORIES} and {prefix}.{_METRICS}, not on {wanted} "
                "(option prefix)"
            )
        return (wanted.removeprefix(f"{prefix}."),)
    model = EVENT_TYPES.get(wanted) or KINDS.get(wanted.strip().lower()) if isinstance(wanted, str) else wanted
    if model is None:
        raise OptionError(
            f"there is no kind of event {shown(wanted)}{hint(str(wanted), tuple(KINDS))}; there are {', '.join(KINDS)}"
        )
    if not model.SUBJECTS:
        raise OptionError(
            f"{model.__name__} is published on the subject that its export names, such as latency.a: give "
            "that in place of the kind, and its first token as prefix"
        )
    return model.SUBJECTS


def _without_overlap(subjects: list[str]) -> tuple[str, ...]:
    """Drop subjects that others cover. Raises `OptionError` for two that overlap without one covering the other."""
    kept: list[str] = []
    for subject in subjects:
        shared = {other: common_subjects(other, subject) for other in kept}
        if subject in shared.values():
            continue
        crossing = [other for other, common in shared.items() if common not in (None, other)]
        if crossing:
            raise OptionError(f"{crossing[0]} and {subject} have subjects in common: ask for one that covers both")
        kept = [*(other for other in kept if shared[other] is None), subject]
    return tuple(kept)
