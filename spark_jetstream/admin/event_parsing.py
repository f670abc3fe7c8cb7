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

KINDS: Mapping[str, type[Event]] = {
    name.rpartition(".")[2]: model  # its type ends with the kind
    for name, model in EVENT_TYPES.items()
}
"""Model by the last part of its type, the name that users give."""

_ADVISORIES = "ADVISORY"
_METRICS = "METRIC"
_SYSTEM = "$SYS."  # begins the subjects of events that a server sends, not JetStream
_OF_STREAMS = "ADVISORY.STREAM.*.{stream}"
_OF_CONSUMERS = (
    f"{_ADVISORIES}.CONSUMER.*.{{stream}}.{{consumer}}",
    f"{_METRICS}.CONSUMER.*.{{stream}}.{{consumer}}",
)


def parse_event(subject: str, data: bytes, received: Timestamp = NEVER) -> Event:
    """Return the event of a message. It never raises.

    The class is that of the event's type, `Event` for a type that is not known, and `UnknownEvent`
    for a message that is not an event; its ``timestamp`` is ``received``.
    """
    try:
        body = json_object(data)
        kind = body.get("type")
        model = EVENT_TYPES.get(kind, Event) if isinstance(kind, str) else Event
        event = model.from_server(body, f"read an event on {subject}")
    # Any client may publish at these subjects, and no message may end a watch
    # (`test_malformed_event_data_does_not_end_a_watch`).
    except (ValueError, ProtocolError) as error:
        # The text of a `ValueError` of `json_object` lacks its subject.
        reason = f"it {error}" if isinstance(error, ValueError) else str(error)
        event = _unknown(subject, data, received, reason)
    event._published_on = subject
    event._raw = data
    return event


def stored_event(message: StoredMessage) -> Event:
    """Return the event of a message in a stream that captures events.

    The stream has the subjects ``$JS.EVENT.ADVISORY.>``.
    """
    return parse_event(message.subject, message.data, message.time)


def _unknown(subject: str, data: bytes, received: Timestamp, reason: str) -> UnknownEvent:
    parts = (subject.encode("utf-8", "surrogatepass"), received.encode(), data)
    digest = hashlib.sha256(b"\0".join(parts))
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
    """Return the subjects to subscribe to, as for `Events.watch`; no two of them overlap.

    Raises `OptionError`.
    """
    kinds = tuple(wanted)
    templates = _templates_of(kinds, prefix) or _default_templates(stream, consumer)
    kept = [template for template in templates if _is_allowed(template, advisories, metrics)]
    # A kind that is asked for by name must not be left out silently.
    if not kept or (kinds and len(kept) < len(templates)):
        raise OptionError(
            "nothing is left to watch: set advisories or metrics to true, as the kinds need",
        )
    if kinds:
        _check_names(kept, stream, consumer, prefix)
    subjects = [_subject(template, stream, consumer, prefix) for template in kept]
    return _without_overlap(subjects)


def _default_templates(stream: str | None, consumer: str | None) -> list[str]:
    """Return the subjects of all events that name the stream and the consumer, if given."""
    # Only subjects of consumers end with the names of stream and consumer.
    if consumer is not None:
        return list(_OF_CONSUMERS)
    if stream is not None:
        return [_OF_STREAMS, *_OF_CONSUMERS]
    return [f"{_ADVISORIES}.>", f"{_METRICS}.>"]


def _is_allowed(template: str, advisories: bool, metrics: bool) -> bool:
    first = template.partition(".")[0]
    if first == _ADVISORIES:
        return advisories
    if first == _METRICS:
        return metrics
    return True


def _check_names(
    templates: list[str],
    stream: str | None,
    consumer: str | None,
    prefix: str,
) -> None:
    """Raise `OptionError` if events cannot be limited to the stream or consumer."""
    for template in templates:
        for name, value in (("stream", stream), ("consumer", consumer)):
            if value is not None and f"{{{name}}}" not in template:
                events = f"events on {prefix}.{template}"
                raise OptionError(f"{events} name no {name}, so they cannot be limited to one")


def _subject(template: str, stream: str | None, consumer: str | None, prefix: str) -> str:
    """Return the full subject of a template, with wildcards for names that are not given."""
    # Not `str.format`: a subject of the user may have braces.
    subject = template.replace("{stream}", stream or "*").replace("{consumer}", consumer or "*")
    if subject.startswith(_SYSTEM):
        return subject.replace("{account}", "*")
    return f"{prefix}.{subject}"


def _templates_of(kinds: Iterable[str | type[Event]], prefix: str) -> list[str]:
    templates: list[str] = []
    for kind in kinds:
        templates += _templates(kind, prefix)
    return templates


def _templates(wanted: str | type[Event], prefix: str) -> tuple[str, ...]:
    """Return the subjects of a kind, without the prefix. Raises `OptionError`."""
    if not isinstance(wanted, str):
        if wanted.TYPE not in EVENT_TYPES:
            raise OptionError(f"{wanted.__name__} is not a kind of event that a server sends")
        return _subjects_of(wanted)
    model = EVENT_TYPES.get(wanted)
    # No kind has a dot in its name.
    if model is None and "." in wanted:
        return (_users_subject(wanted, prefix),)
    model = model or KINDS.get(wanted.strip().lower())
    if model is None:
        meant = hint(wanted, tuple(KINDS))
        raise OptionError(
            f"there is no kind of event {shown(wanted)}{meant}; there are {', '.join(KINDS)}",
        )
    return _subjects_of(model)


def _users_subject(wanted: str, prefix: str) -> str:
    """Return a subject that the user gives, without the prefix. Raises `OptionError`."""
    problem = subject_fault(wanted)
    if problem:
        raise OptionError(f"in {shown(wanted)} {problem}")
    # Nothing would ever come on another subject.
    if not wanted.startswith((f"{prefix}.", f"{_ADVISORIES}.", f"{_METRICS}.", _SYSTEM)):
        raise OptionError(
            f"events are published below {prefix}.{_ADVISORIES} and {prefix}.{_METRICS}, "
            f"not on {wanted} (option prefix)"
        )
    return wanted.removeprefix(f"{prefix}.")


def _subjects_of(model: type[Event]) -> tuple[str, ...]:
    # The latency of a service: the export of the account says on which subject it is published.
    if not model.SUBJECTS:
        raise OptionError(
            f"{model.__name__} is published on the subject that its export names, such as "
            "latency.a: give that in place of the kind, and its first token as prefix"
        )
    return model.SUBJECTS


def _without_overlap(subjects: list[str]) -> tuple[str, ...]:
    """Drop subjects that others cover.

    Raises `OptionError` for two that overlap without one covering the other.
    """
    # The server sends a message once for each subscription:
    # with two that overlap it would come twice.
    kept: list[str] = []
    for subject in subjects:
        shared = {other: common_subjects(other, subject) for other in kept}
        if subject in shared.values():
            # Another subject covers this one.
            continue
        for other, common in shared.items():
            if common not in (None, other):
                raise OptionError(
                    f"{other} and {subject} have subjects in common: ask for one that covers both",
                )
        # This subject covers the others that share anything with it.
        kept = [other for other in kept if shared[other] is None]
        kept.append(subject)
    return tuple(kept)
