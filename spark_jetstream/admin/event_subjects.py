"""Which subjects to listen to for which events. Pure."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping

from spark_jetstream.admin.event_base import Event
from spark_jetstream.admin.event_models import EVENT_TYPES
from spark_jetstream.admin.fields import closest
from spark_jetstream.errors import OptionError
from spark_jetstream.subjects import common_subjects, subject_fault
from spark_jetstream.units import shown

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
            f"there is no kind of event {shown(wanted)}{closest(wanted, tuple(KINDS))}; there are {', '.join(KINDS)}"
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
