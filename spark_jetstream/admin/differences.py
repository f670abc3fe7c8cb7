"""What is different between the configuration that somebody wants and the one that is there. Pure.

An update replaces the whole configuration, so a field that is not given stands for its default: where the actual one
has another value, that is a difference. What the server fills in or implies by itself is none (`LEFT_TO_SERVER`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from spark_jetstream.admin.consumer_models import ONE_SECOND, ConsumerConfig
from spark_jetstream.admin.model import Model
from spark_jetstream.admin.rendering import readable
from spark_jetstream.admin.rules import IMMUTABLE, LEFT_TO_SERVER, RISKS
from spark_jetstream.admin.stream_models import RePublish, StreamConfig
from spark_jetstream.units import Timestamp

M = TypeVar("M", bound=Model)

#: Limits for which 0 and -1 mean the same.
_LIMITS: Mapping[type[Model], tuple[str, ...]] = {
    StreamConfig: ("max_consumers", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size"),
    ConsumerConfig: ("max_deliver",),
}
_PULL_LIMITS = ("max_waiting", "max_batch", "max_bytes")
_UNORDERED = frozenset({"subjects", "filter_subjects", "tags", "sources"})


@dataclass(frozen=True)
class Difference:
    """One field that is not as wanted. ``field`` is a path such as ``mirror.filter_subject`` or ``metadata.owner``.

    None stands for "not there". ``refused`` says why the server cannot change it, "" when it can. ``risk`` says what
    the change does beside that, or for ever, "" for nothing.
    """

    field: str
    wanted: Any
    actual: Any
    refused: str = ""
    risk: str = ""

    def __str__(self) -> str:
        return f"{self.field}: {readable(self.actual)} -> {readable(self.wanted)}"


def differences(wanted: Model, actual: Model, *, given_only: bool = False) -> list[Difference]:
    """The fields in which ``actual`` is not what ``wanted`` asks for, in the order of the documentation.

    Both are `StreamConfig` or both `ConsumerConfig`. ``given_only`` compares nothing but the fields that ``wanted``
    sets: whether the actual one does at least what is asked for. The order of subjects, filters, tags and sources does
    not count, nor how a time is written, nor fields that only a newer server knows unless ``wanted`` sets them.
    """
    kind = type(wanted)
    if kind is not type(actual) or kind not in LEFT_TO_SERVER:
        raise TypeError(f"a {kind.__name__} cannot be compared with a {type(actual).__name__}")
    want, have = effective(wanted), effective(actual)
    left = _left(kind, want)
    names = [name for name in want if name not in left]
    if given_only:
        names = [name for name in names if name in _given(wanted)]
    found = []
    for name in names:
        for field, one, other in _compare(name, want[name], have.get(name), given_only):
            found.append(_judged(kind, Difference(field, one, other)))
    return found


def update_body(wanted: Model, actual: Model) -> dict[str, Any]:
    """What to send to make ``actual`` into ``wanted``, and to leave alone what `differences` does not report.

    An update replaces everything, so what is left to the server is sent as it is, and so are fields of the whole
    configuration that only a newer server knows; those inside of a part stay when ``wanted`` is `changed` from it.
    """
    have = actual.body()
    if have.get("backoff"):
        have.pop("ack_wait", None)  # it only was the first of these
    sent = wanted
    for name in sorted(_left(type(wanted), effective(wanted)) & have.keys()):
        kept = type(wanted).from_server({**sent.body(), name: have[name]})
        # What does not fit to the rest any more is left to the server after all: a window longer than the new age.
        sent = kept if set(kept.faults()) <= set(wanted.faults()) else sent
    return {**(actual.model_extra or {}), **sent.body()}


def merged(wanted: M, actual: M) -> M:
    """``actual`` with all that ``wanted`` sets, down to single keys of metadata: what to update to when nothing else is
    to change. With ``given_only`` there is no difference left to ``wanted``.

    `pydantic.ValidationError` when both do not fit together.
    """
    changes: dict[str, Any] = {}
    for name in wanted.model_fields_set:
        value, have = getattr(wanted, name), getattr(actual, name, None)
        if isinstance(value, dict) and isinstance(have, dict):
            value = {**have, **value}
        elif isinstance(value, Model) and isinstance(have, Model):
            value = merged(value, have)
        changes[name] = value
    if isinstance(wanted, ConsumerConfig) and changes.keys() & {"filter_subject", "filter_subjects"}:
        changes = {"filter_subject": None, "filter_subjects": None, **changes}
    return actual.changed(**changes)


def effective(config: Model) -> dict[str, Any]:
    """The values by name, as the server takes them: with the defaults that do not depend on it, and what they imply."""
    values = _values(config)
    if isinstance(config, StreamConfig):
        return values | _implied_by_stream(config)
    if isinstance(config, ConsumerConfig):
        values.pop("filter_subject")
        return values | _implied_by_consumer(config)
    return values


def _left(kind: type[Model], want: dict[str, Any]) -> set[str]:
    """The fields of `LEFT_TO_SERVER` that are left to it here."""
    left = {name for name in LEFT_TO_SERVER[kind] if not want[name]}
    return left if want.get("mirror") else left - {"mirror_direct"}


def _implied_by_stream(config: StreamConfig) -> dict[str, Any]:
    copies = config.mirror or config.sources
    marked, sealed = config.subject_delete_marker_ttl > 0, config.sealed
    return {
        "subjects": config.subjects or (() if copies else (config.name,)),
        "num_replicas": config.num_replicas or 1,
        "placement": config.placement if config.placement and any(_values(config.placement).values()) else None,
        "allow_msg_ttl": config.allow_msg_ttl or marked,
        "allow_rollup_hdrs": not sealed and (config.allow_rollup_hdrs or marked or config.allow_msg_schedules),
        "discard": "new" if sealed else config.discard,
        "max_age": type(config.max_age)(0) if sealed else config.max_age,
        "deny_delete": config.deny_delete or sealed,
        "deny_purge": config.deny_purge or sealed,
        "metadata": config.own_metadata,
        **_limits(config),
    }


def _implied_by_consumer(config: ConsumerConfig) -> dict[str, Any]:
    copying = config.ack_policy == "flow_control"
    return {
        "name": config.name or config.durable_name,
        "filter_subjects": config.filters,
        "ack_wait": [*config.backoff, config.ack_wait][0],
        "flow_control": config.flow_control or copying,
        "idle_heartbeat": ONE_SECOND if copying else config.idle_heartbeat,
        "metadata": config.own_metadata,
        "pause_until": None if config.pause_until is None or config.pause_until.never else config.pause_until,
        **_limits(config),
        **{name: type(value)(max(0, value)) for name in _PULL_LIMITS for value in (getattr(config, name),)},
    }


def _limits(config: Model) -> dict[str, Any]:
    """The limits that a server stores: it writes -1 where 0 was asked for."""
    found = {name: getattr(config, name) for name in _LIMITS[type(config)]}
    return {name: value or type(value)(-1) for name, value in found.items()}


def _given(config: Model) -> set[str]:
    """The fields that are set, by the names that `effective` has for them."""
    return {"filter_subjects" if name == "filter_subject" else name for name in config.model_fields_set}


def _compare(field: str, wanted: Any, actual: Any, given_only: bool) -> Iterator[tuple[str, Any, Any]]:
    if _plain(field, wanted) == _plain(field, actual):
        return
    if isinstance(wanted, Model) and isinstance(actual, Model):
        have = _values(actual)
        for name, value in _values(wanted).items():
            if not given_only or name in wanted.model_fields_set:
                yield from _compare(f"{field}.{name}", value, have.get(name), given_only)
    elif isinstance(wanted, dict) and isinstance(actual, dict):
        for name in {**wanted, **({} if given_only else actual)}:
            yield from _compare(f"{field}.{name}", wanted.get(name), actual.get(name), given_only)
    elif _alike(wanted, actual):
        for at, (one, other) in enumerate(zip(wanted, actual, strict=True)):
            yield from _compare(f"{field}.{at}", one, other, given_only)
    else:
        yield field, wanted, actual


def _values(model: Model) -> dict[str, Any]:
    values = {name: getattr(model, name) for name in model.field_names}
    return values | {"src": model.src or ">"} if isinstance(model, RePublish) else values


def _alike(wanted: Any, actual: Any) -> bool:
    """Whether these are lists of the same streams in the same order, so that one can be compared with the other."""
    if not (isinstance(wanted, tuple) and isinstance(actual, tuple) and len(wanted) == len(actual)):
        return False
    pairs = zip(wanted, actual, strict=True)
    return all(isinstance(one, Model) and getattr(one, "name", one) == getattr(two, "name", two) for one, two in pairs)


def _plain(field: str, value: Any) -> Any:
    """A value as something that can be compared: without what makes no difference."""
    if isinstance(value, Model):
        return {name: _plain(name, each) for name, each in _values(value).items()}
    if isinstance(value, tuple):
        plain = [_plain("", each) for each in value]
        return sorted(plain, key=_key) if field.rpartition(".")[2] in _UNORDERED else plain
    if isinstance(value, Timestamp):
        return None if value.never else value.nanoseconds or str(value)
    return value


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _judged(kind: type[Model], difference: Difference) -> Difference:
    root = difference.field.partition(".")[0]
    case = (difference.field, difference.wanted, difference.actual)
    refused, risk = IMMUTABLE[kind].get(root), RISKS[kind].get(root)
    return Difference(
        *case,
        refused=refused.reason if refused is not None and refused.applies(*case) else "",
        risk=risk.reason if risk is not None and risk.applies(*case) else "",
    )
