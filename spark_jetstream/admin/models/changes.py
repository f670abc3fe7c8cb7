"""What differs between two configurations, which differences an update can remove, and the change that does it. Pure.

An update replaces the whole configuration. A field that is not given therefore means its default: where the actual
one has another value, that is a difference. What the server fills in or implies by itself is none (`LEFT_TO_SERVER`).
`IMMUTABLE` says which fields the server never changes, `RISKS` which changes lose messages or are final. Each row was
tried on server 2.15.1 (error codes 10052 and 10055 for streams, 10012 for consumers).

Errors of functions that read what a user gives are one line, and begin with ``what``, such as ``stream ORDERS``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from spark_jetstream.admin.models.base import QUERY_METADATA, Model, complaint, readable
from spark_jetstream.admin.models.consumers import ONE_SECOND, ConsumerConfig
from spark_jetstream.admin.models.streams import ZERO, StreamConfig
from spark_jetstream.errors import OptionError
from spark_jetstream.protocol.units import NEVER, Timestamp, shown


def _off(field: str, wanted: Any, actual: Any) -> bool:
    return not wanted


def _on(field: str, wanted: Any, actual: Any) -> bool:
    return bool(wanted)


@dataclass(frozen=True)
class Rule:
    """Why a field is special, and in which cases: by the path, the wanted and the actual value of a difference."""

    reason: str
    applies: Callable[[str, Any, Any], bool] = lambda field, wanted, actual: True


_NEVER = Rule("it can never change")
_NOT_BACK = "it cannot be taken back"
_FINAL = ("sealed", "deny_delete", "deny_purge", "allow_msg_ttl", "allow_msg_schedules")
_LIMITING = ("max_msgs", "max_bytes", "max_age", "max_msgs_per_subject")

#: What the server refuses to change.
IMMUTABLE: Mapping[type[Model], Mapping[str, Rule]] = {
    StreamConfig: {
        "name": Rule("it can never change; copy the stream under the other name"),
        "retention": Rule(
            "a work queue cannot become another stream, nor another stream a work queue",
            lambda field, wanted, actual: "workqueue" in (wanted, actual),
        ),
        "mirror": Rule(
            "a mirror can only be removed, which makes it a stream of its own",
            lambda field, wanted, actual: field != "mirror" or wanted is not None,
        ),
        **dict.fromkeys(("storage", "allow_msg_counter", "persist_mode"), _NEVER),
        **dict.fromkeys(_FINAL, Rule(_NOT_BACK, _off)),
    },
    ConsumerConfig: {
        "opt_start_seq": Rule("it can never change; reset the consumer to go to another sequence"),
        "deliver_subject": Rule(
            "a push consumer cannot become a pull consumer, nor the other way round",
            lambda field, wanted, actual: bool(wanted) != bool(actual),
        ),
        "pause_until": Rule("an update leaves it as it is; pause or resume the consumer"),
        **dict.fromkeys(("name", "deliver_policy", "opt_start_time", "ack_policy", "replay_policy"), _NEVER),
        **dict.fromkeys(("max_waiting", "idle_heartbeat", "flow_control", "mem_storage"), _NEVER),
        **dict.fromkeys(("direct", "sourcing"), _NEVER),
    },
}

#: What changes lose, store twice, or can never undo.
RISKS: Mapping[type[Model], Mapping[str, Rule]] = {
    StreamConfig: {
        "retention": Rule(
            "messages that no consumer waits for are deleted at once",
            lambda field, wanted, actual: bool(wanted == "interest"),
        ),
        "no_ack": Rule("publishers no longer know whether a message was stored", _on),
        "mirror": Rule(
            "it stops to follow its origin, and cannot become a mirror again",
            lambda field, wanted, actual: field == "mirror" and wanted is None,
        ),
        "sources": Rule(
            "what was copied already is copied once more, from its beginning",
            lambda field, wanted, actual: field.endswith((".filter_subject", ".subject_transforms")),
        ),
        **dict.fromkeys(
            _LIMITING,
            Rule(
                "messages beyond it are deleted at once",
                lambda field, wanted, actual: bool(wanted > 0 and (actual <= 0 or wanted < actual)),
            ),
        ),
        **dict.fromkeys(_FINAL, Rule(_NOT_BACK, _on)),
    },
    ConsumerConfig: {"durable_name": Rule("without a durable name it is gone when nobody uses it for a while", _off)},
}

#: What the server chooses where nothing (or 0) is wanted, by its own limits, the stream's, or an origin's; and what
#: only counts for a new stream.
LEFT_TO_SERVER: Mapping[type[Model], frozenset[str]] = {
    StreamConfig: frozenset({"duplicate_window", "first_seq", "mirror_direct"}),
    ConsumerConfig: frozenset({"ack_wait", "inactive_threshold", "max_ack_pending", "max_batch", "max_waiting"})
    | {"pause_until", "priority_timeout"},
}

#: What a new one gets where the server has another default. An existing one keeps what it has where it is not set.
FOR_NEW: Mapping[type[Model], Mapping[str, Any]] = {StreamConfig: {"allow_direct": True}, ConsumerConfig: {}}

M = TypeVar("M", bound=Model)

#: Limits for which 0 and -1 mean the same. A server stores -1 for those of a stream, 0 for those of a pull.
_STREAM_LIMITS = ("max_consumers", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size")
_PULL_LIMITS = ("max_waiting", "max_batch", "max_bytes")
_UNORDERED = frozenset({"subjects", "filter_subjects", "tags", "sources"})
_PARTS = frozenset({"consumer_limits", "mirror", "placement", "republish", "sources", "subject_transform"})


@dataclass(frozen=True)
class Difference:
    """One field that is not as wanted; None means "absent".

    ``field`` is a path such as ``metadata.owner``. ``refused`` says why the server cannot change it, "" when it can.
    ``risk`` says what the change does beside that, or for ever, "" for nothing.
    """

    field: str
    wanted: Any
    actual: Any
    refused: str = ""
    risk: str = ""

    def __str__(self) -> str:
        return f"{self.field}: {readable(self.actual)} -> {readable(self.wanted)}"


def differences(wanted: Model, actual: Model, *, given_only: bool = False) -> list[Difference]:
    """Return the fields in which ``actual`` is not what ``wanted`` asks for, in the order of the documentation.

    Both are `StreamConfig` or both `ConsumerConfig`. ``given_only`` compares nothing but the fields that ``wanted``
    sets: whether the actual one does at least what is asked for. The order of subjects, filters, tags and sources does
    not count, nor how a time is written, nor fields that only a newer server knows unless ``wanted`` sets them.
    """
    kind = type(wanted)
    if kind is not type(actual) or kind not in LEFT_TO_SERVER:
        raise TypeError(f"a {kind.__name__} cannot be compared with a {type(actual).__name__}")
    want, have = effective(wanted), effective(actual)
    given = wanted.model_dump(exclude_unset=True) if given_only else None
    if given and "filter_subject" in given:
        given["filter_subjects"] = ()
    ignored = _servers_choice(kind, want) | _kept(wanted) | _kept(actual) | _moved(wanted) | _moved(actual)
    return [
        _judged(kind, field, _as_given(wanted, field, one), _as_given(actual, field, other))
        for name in want
        if name not in ignored and (given is None or name in given)
        for field, one, other in _compare(name, want[name], have.get(name), given and given[name])
    ]


def update_body(wanted: Model, actual: Model) -> dict[str, Any]:
    """Return the configuration to send so that ``actual`` becomes ``wanted``; what `differences` ignores stays.

    An update replaces everything, so what is left to the server is sent as it is, and so are fields of the whole
    configuration that only a newer server knows; those inside of a part stay when ``wanted`` is `changed` from it.
    """
    have = actual.body()
    if have.get("backoff"):
        have.pop("ack_wait", None)  # it only was the first of these
    kind, moved = type(wanted), _moved(actual)
    sent = {name: value for name, value in wanted.body().items() if name not in moved}
    for name in sorted((_servers_choice(kind, effective(wanted)) | _kept(wanted) | moved) & have.keys()):
        kept = {**sent, name: have[name]}
        # What does not fit to the rest any more is left to the server after all: a window longer than the new age.
        sent = kept if set(kind.from_server(kept).faults()) <= set(wanted.faults()) else sent
    # Without its marks, or with earlier ones, a running query takes the consumer for that of another run, and ends.
    marks = {key: value for key, value in getattr(actual, "metadata", {}).items() if key in QUERY_METADATA}
    if marks:
        sent = {**sent, "metadata": {**sent.get("metadata", {}), **marks}}
    return {**(actual.model_extra or {}), **sent}


def merged(wanted: M, actual: M) -> M:
    """Return ``actual`` with all that ``wanted`` sets. Raises `pydantic.ValidationError`.

    Of metadata and parts, such as a mirror, what is not set stays; also of sources, if they have the same names.
    """
    changes: dict[str, Any] = {}
    for name in wanted.model_fields_set:
        value, have = getattr(wanted, name), getattr(actual, name, None)
        if isinstance(value, dict) and isinstance(have, dict):
            value = {**have, **value}
        elif isinstance(value, Model) and isinstance(have, Model):
            value = merged(value, have)
        elif name == "sources" and have and [one.name for one in value] == [one.name for one in have]:
            value = tuple(merged(one, other) for one, other in zip(value, have, strict=True))
        changes[name] = value
    return actual.changed(**changes)


def effective(config: Model) -> dict[str, Any]:
    """Return the values by name, as the server takes them: with defaults, and with what they imply.

    A part, such as a mirror, is a dict of all its fields.
    """
    values = config.model_dump()
    if isinstance(config, StreamConfig):
        return values | _implied_by_stream(config, values)
    assert isinstance(config, ConsumerConfig)
    values.pop("filter_subject")
    return values | _implied_by_consumer(config)


def _servers_choice(kind: type[Model], want: dict[str, Any]) -> set[str]:
    """Return the fields that a configuration leaves to the server."""
    unset = {name for name in LEFT_TO_SERVER[kind] if not want[name]}
    return unset if want.get("mirror") else unset - {"mirror_direct"}


def _kept(config: Model) -> set[str]:
    """Return the fields of `FOR_NEW` that a configuration does not set: an existing asset keeps its own."""
    return FOR_NEW[type(config)].keys() - config.model_fields_set


def _moved(config: Model) -> set[str]:
    """Return the fields that a Spark query changes of its consumer: before 2.14 a commit makes it anew, further on."""
    marked = not QUERY_METADATA.isdisjoint(getattr(config, "metadata", ()))
    return {"deliver_policy", "opt_start_seq"} if marked else set()


def _implied_by_stream(config: StreamConfig, values: dict[str, Any]) -> dict[str, Any]:
    copies = config.mirror or config.sources
    marked, sealed = config.subject_delete_marker_ttl > 0, config.sealed
    placement, republish = values["placement"], values["republish"]
    return {
        "subjects": config.subjects or (() if copies else (config.name,)),
        "num_replicas": config.num_replicas or 1,
        "placement": placement if placement and any(placement.values()) else None,
        "republish": {**republish, "src": republish["src"] or ">"} if republish and republish["dest"] else None,
        "allow_msg_ttl": config.allow_msg_ttl or marked,
        "allow_rollup_hdrs": not sealed and (config.allow_rollup_hdrs or marked or config.allow_msg_schedules),
        "discard": "new" if sealed else config.discard,
        "max_age": ZERO if sealed else config.max_age,
        "deny_delete": config.deny_delete or sealed,
        "deny_purge": config.deny_purge or sealed,
        "metadata": config.own_metadata,
        **{name: getattr(config, name) or -1 for name in _STREAM_LIMITS},
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
        "max_deliver": config.max_deliver or -1,
        **{name: max(0, getattr(config, name)) for name in _PULL_LIMITS},
    }


def _compare(field: str, wanted: Any, actual: Any, given: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the path of each difference, with both values. In a part only the fields in ``given`` count; None: all."""
    if isinstance(wanted, dict) and isinstance(actual, dict):
        every = wanted if field.partition(".")[0] in _PARTS else {**wanted, **actual}
        names = every if given is None else given
        for name in names:
            yield from _compare(f"{field}.{name}", wanted.get(name), actual.get(name), given and given[name])
    elif _plain(field, wanted) == _plain(field, actual):
        return
    elif field == "sources" and _names(wanted) == _names(actual) != []:
        for at, (one, other) in enumerate(zip(wanted, actual, strict=True)):
            yield from _compare(f"{field}.{at}", one, other, given and given[at])
    else:
        yield field, wanted, actual


def _names(sources: Any) -> list[str]:
    """Return the names of sources; none for a field of a newer server that has their name."""
    return [source["name"] for source in sources] if isinstance(sources, tuple) else []


def _plain(field: str, value: Any) -> Any:
    """Return a value in a form that can be compared: without what makes no difference."""
    if isinstance(value, dict):
        return {name: _plain(name, part) for name, part in value.items()}
    if isinstance(value, tuple):
        plain = [_plain("", part) for part in value]
        unordered = field.rpartition(".")[2] in _UNORDERED
        return sorted(plain, key=lambda item: json.dumps(item, sort_keys=True, default=str)) if unordered else plain
    if isinstance(value, Timestamp):
        return None if value.never else value.nanoseconds or str(value)
    return value


def _as_given(config: Model, field: str, value: Any) -> Any:
    """Return a part, or parts, with the fields alone that the configuration sets; any other value as it is."""
    parts = value if isinstance(value, tuple) else (value,)
    if field.partition(".")[0] not in _PARTS or not any(isinstance(part, dict) for part in parts):
        return value
    part: Any = config.model_dump(exclude_unset=True)
    for name in field.split("."):
        part = part[int(name)] if isinstance(part, tuple) else part.get(name, {})
    return part


def _judged(kind: type[Model], field: str, wanted: Any, actual: Any) -> Difference:
    refused, risk = (
        rule.reason if rule is not None and rule.applies(field, wanted, actual) else ""
        for rule in (rules[kind].get(field.partition(".")[0]) for rules in (IMMUTABLE, RISKS))
    )
    return Difference(field, wanted, actual, refused, risk)


def named(
    kind: type[Model], name: object, config: object, fields: Mapping[str, Any], *names: str
) -> tuple[Any, Mapping[str, Any]]:
    """Return the configuration, and the fields with the name, of ``create(name, config, **fields)``.

    ``names`` are the fields that the name sets. `OptionError` for two configurations, or two names.
    """
    if not isinstance(name, str):
        if config is not None:
            raise OptionError(f"the first of two arguments must be a name, not {_shown(name)}")
        if not (name is None or isinstance(name, (Model, Mapping))):
            raise OptionError(f"a name, a {kind.__name__} or a mapping is needed, not {_shown(name)}")
        return name, fields
    if fields.get("name") not in (None, name):
        raise OptionError(f"two names are given: {shown(name)}, and name={shown(fields['name'])}")
    return config, {**dict.fromkeys(names, name), **fields}


def parse_user(
    kind: type[M], config: object, fields: Mapping[str, Any], what: str, newer: Callable[[], bool] | None = None
) -> M:
    """Return the configuration that a user asks for: ``config``, with ``fields`` in place of its own. `OptionError`.

    ``newer`` as for `Model.parse`.
    """
    given = _configuration(kind, config, what)
    if isinstance(given, Mapping):
        return kind.parse({**given, **fields}, what, newer)
    return changed(given, fields, what) if fields else given


def _configuration(kind: type[M], given: object, what: str) -> M | Mapping[str, Any]:
    """Return what a user gives as a configuration; it may be in all that a server says of a stream or consumer."""
    if isinstance(given, Model):
        given = getattr(given, "config", given)
    elif isinstance(given, Mapping):
        given = own_configuration(given)
    if given is None or isinstance(given, (kind, Mapping)):
        return given or {}
    raise OptionError(f"{what}: a {kind.__name__} or a mapping is needed, not {_shown(given)}")


def own_configuration(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the configuration in what STREAM.INFO or CONSUMER.INFO says; another mapping as it is."""
    config = given.get("config")
    return config if isinstance(config, Mapping) else given


def _shown(given: object) -> str:
    """Return a value of the wrong type as text."""
    return shown(given) if isinstance(given, (str, int, float)) else f"a {type(given).__name__}"


def changed(config: M, fields: Mapping[str, Any], what: str) -> M:
    """Return a copy with these fields, each replaced as a whole; None means its default. Raises `OptionError`."""
    reset = {name: value for name, value in FOR_NEW.get(type(config), {}).items() if fields.get(name, value) is None}
    try:
        return config.changed(**{**fields, **reset})
    except ValidationError as error:
        raise OptionError(f"{what}: {complaint(error)}") from None


def planned(actual: M, changes: object, fields: Mapping[str, Any], what: str) -> tuple[M, list[Difference]]:
    """Return the configuration that an update leads to, and what it changes.

    A model in ``changes`` is the whole configuration; a mapping and ``fields`` are the fields to change.
    """
    given = _configuration(type(actual), changes, what)
    base, own = (actual, {**given, **fields}) if isinstance(given, Mapping) else (given, fields)
    target = changed(base, own, what)
    return target, differences(target, actual)


#: Fields that not every supported server knows -> the API level from which on one does. An older one refuses them, or,
#: before 2.12, leaves them out without a word.
SINCE: Mapping[type[Model], Mapping[str, int]] = {
    StreamConfig: {
        "allow_msg_ttl": 1,
        "subject_delete_marker_ttl": 1,
        "allow_msg_counter": 2,
        "allow_atomic": 2,
        "allow_msg_schedules": 2,
        "persist_mode": 2,
        "allow_batched": 4,
    },
    ConsumerConfig: {"pause_until": 1, "priority_groups": 1, "priority_policy": 1, "priority_timeout": 1},
}


def needed(config: Model) -> list[tuple[int, str]]:
    """Return what an old server does not know of a configuration: (API level, name); the newest last."""
    kind = type(config)
    needs = [
        (level, name)
        for name, level in SINCE[kind].items()
        if getattr(config, name) not in (kind.model_fields[name].get_default(call_default_factory=True), NEVER)
    ]
    if isinstance(config, ConsumerConfig):
        needs += [(2, "priority_policy prioritized")] if config.priority_policy == "prioritized" else []
        needs += [(4, "ack_policy flow_control")] if config.ack_policy == "flow_control" else []
    elif isinstance(config, StreamConfig):
        copies = [("mirror", config.mirror), *(("sources", source) for source in config.sources)]
        needs += [(4, f"{name}.consumer") for name, origin in copies if origin is not None and origin.consumer]
    return sorted(needs)
