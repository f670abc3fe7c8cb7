"""What differs between two configurations, which differences an update can remove, and the change that does it. Pure.

An update replaces the whole configuration. A field that is not given therefore means its default: where the actual
one has another value, that is a difference. What the server fills in or implies by itself is none (`LEFT_TO_SERVER`).
`IMMUTABLE` says which fields the server never changes, `RISKS` which changes lose messages or are final. Each row was
tried on server 2.15.1 (error codes 10052 and 10055 for streams, 10012 for consumers).

Errors of functions that read what a user gives are one line, and begin with ``what``, such as ``stream ORDERS``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from spark_jetstream.admin.models.base import Model, complaint, readable
from spark_jetstream.admin.models.consumers import ONE_SECOND, ConsumerConfig, ConsumerInfo
from spark_jetstream.admin.models.streams import ZERO, RePublish, StreamConfig, StreamInfo
from spark_jetstream.errors import (
    ApiError,
    ConsumerNotFound,
    JetStreamError,
    OptionError,
    PermissionDenied,
    StreamExists,
    StreamNotFound,
)
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.units import NEVER, Timestamp, shown

Case = Callable[[str, Any, Any], bool]


def _off(field: str, wanted: Any, actual: Any) -> bool:
    return not wanted


def _on(field: str, wanted: Any, actual: Any) -> bool:
    return bool(wanted)


@dataclass(frozen=True)
class Rule:
    """Why a field is special, and in which cases: by the path, the wanted and the actual value of a difference."""

    reason: str
    applies: Case = lambda field, wanted, actual: True


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
    ConsumerConfig: {
        "durable_name": Rule("without a durable name it is gone when nobody uses it for a while", _off),
    },
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
    """The fields in which ``actual`` is not what ``wanted`` asks for, in the order of the documentation.

    Both are `StreamConfig` or both `ConsumerConfig`. ``given_only`` compares nothing but the fields that ``wanted``
    sets: whether the actual one does at least what is asked for. The order of subjects, filters, tags and sources does
    not count, nor how a time is written, nor fields that only a newer server knows unless ``wanted`` sets them.
    """
    kind = type(wanted)
    if kind is not type(actual) or kind not in LEFT_TO_SERVER:
        raise TypeError(f"a {kind.__name__} cannot be compared with a {type(actual).__name__}")
    want, have = effective(wanted), effective(actual)
    left = _left(kind, want) | _kept(wanted) | _kept(actual)
    given = {"filter_subjects" if name == "filter_subject" else name for name in wanted.model_fields_set}
    return [
        _judged(kind, *difference)
        for name in want
        if name not in left and (name in given or not given_only)
        for difference in _compare(name, want[name], have.get(name), given_only)
    ]


def creation_body(config: Model) -> dict[str, Any]:
    """What to send to create a stream or consumer."""
    return {**FOR_NEW[type(config)], **config.body()}


def update_body(wanted: Model, actual: Model) -> dict[str, Any]:
    """What to send to make ``actual`` into ``wanted``, and to leave alone what `differences` does not report.

    An update replaces everything, so what is left to the server is sent as it is, and so are fields of the whole
    configuration that only a newer server knows; those inside of a part stay when ``wanted`` is `changed` from it.
    """
    have = actual.body()
    if have.get("backoff"):
        have.pop("ack_wait", None)  # it only was the first of these
    sent = wanted
    for name in sorted((_left(type(wanted), effective(wanted)) | _kept(wanted)) & have.keys()):
        kept = type(wanted).from_server({**sent.body(), name: have[name]})
        # What does not fit to the rest any more is left to the server after all: a window longer than the new age.
        sent = kept if set(kept.faults()) <= set(wanted.faults()) else sent
    return {**(actual.model_extra or {}), **sent.body()}


def merged(wanted: M, actual: M) -> M:
    """Return ``actual`` with all that ``wanted`` sets, single metadata keys too. Raises `pydantic.ValidationError`."""
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
    assert isinstance(config, ConsumerConfig)
    values.pop("filter_subject")
    return values | _implied_by_consumer(config)


def _left(kind: type[Model], want: dict[str, Any]) -> set[str]:
    """The fields of `LEFT_TO_SERVER` that are left to it here."""
    left = {name for name in LEFT_TO_SERVER[kind] if not want[name]}
    return left if want.get("mirror") else left - {"mirror_direct"}


def _kept(config: Model) -> set[str]:
    """The fields of `FOR_NEW` that are not set."""
    return FOR_NEW[type(config)].keys() - config.model_fields_set


def _implied_by_stream(config: StreamConfig) -> dict[str, Any]:
    copies = config.mirror or config.sources
    marked, sealed = config.subject_delete_marker_ttl > 0, config.sealed
    return {
        "subjects": config.subjects or (() if copies else (config.name,)),
        "num_replicas": config.num_replicas or 1,
        "placement": config.placement if config.placement and any(_values(config.placement).values()) else None,
        "republish": config.republish if config.republish and config.republish.dest else None,
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
    elif field == "sources" and [source.name for source in wanted] == [source.name for source in actual]:
        for at, (one, other) in enumerate(zip(wanted, actual, strict=True)):
            yield from _compare(f"{field}.{at}", one, other, given_only)
    else:
        yield field, wanted, actual


def _values(model: Model) -> dict[str, Any]:
    values = {name: getattr(model, name) for name in model.field_names}
    return values | {"src": model.src or ">"} if isinstance(model, RePublish) else values


def _plain(field: str, value: Any) -> Any:
    """A value as something that can be compared: without what makes no difference."""
    if isinstance(value, Model):
        return {name: _plain(name, part) for name, part in _values(value).items()}
    if isinstance(value, tuple):
        plain = [_plain("", part) for part in value]
        if field.rpartition(".")[2] not in _UNORDERED:
            return plain
        return sorted(plain, key=lambda item: json.dumps(item, sort_keys=True, default=str))
    if isinstance(value, Timestamp):
        return None if value.never else value.nanoseconds or str(value)
    return value


def _judged(kind: type[Model], field: str, wanted: Any, actual: Any) -> Difference:
    refused, risk = (
        rule.reason if rule is not None and rule.applies(field, wanted, actual) else ""
        for rule in (rules[kind].get(field.partition(".")[0]) for rules in (IMMUTABLE, RISKS))
    )
    return Difference(field, wanted, actual, refused, risk)


Info = TypeVar("Info", StreamInfo, ConsumerInfo)


def named(
    kind: type[Model], name: object, config: object, fields: Mapping[str, Any], *names: str
) -> tuple[Any, Mapping[str, Any]]:
    """The configuration, and the fields with the name, of ``create(name, config, **fields)`` without or with a name.

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


def asked_for(
    kind: type[M], config: object, fields: Mapping[str, Any], what: str, newer: Callable[[], bool] | None = None
) -> M:
    """The configuration that results from ``config`` with ``fields`` in place of its own; `OptionError` if it is none.

    ``newer`` as for `Model.parse`.
    """
    given = _configuration(kind, config, what)
    if isinstance(given, Mapping):
        return kind.parse({**given, **fields}, what, newer)
    return changed(given, fields, what) if fields else given


def _configuration(kind: type[M], given: object, what: str) -> M | Mapping[str, Any]:
    """What a user gives as a configuration, which may be all that a server says of a stream or consumer."""
    if isinstance(given, Model):
        given = getattr(given, "config", given)
    elif isinstance(given, Mapping):
        given = own_configuration(given)
    if given is None or isinstance(given, (kind, Mapping)):
        return given or {}
    raise OptionError(f"{what}: a {kind.__name__} or a mapping is needed, not {_shown(given)}")


def own_configuration(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration in what STREAM.INFO or CONSUMER.INFO says; another mapping as it is."""
    config = given.get("config")
    return config if isinstance(config, Mapping) else given


def _shown(given: object) -> str:
    """A value of the wrong type, in words."""
    return shown(given) if isinstance(given, (str, int, float)) else f"a {type(given).__name__}"


def changed(config: M, fields: Mapping[str, Any], what: str) -> M:
    """A copy with these fields, each replaced as a whole; None takes one back to its default. `OptionError`."""
    reset = {name: value for name, value in FOR_NEW.get(type(config), {}).items() if fields.get(name, value) is None}
    try:
        return config.changed(**{**fields, **reset})
    except ValidationError as error:
        raise OptionError(f"{what}: {complaint(error)}") from None


def planned(actual: M, changes: object, fields: Mapping[str, Any], what: str) -> tuple[M, list[Difference]]:
    """What an update leads to, and what it changes.

    A model in ``changes`` is all that is wanted; a mapping and ``fields`` are what is to change.
    """
    wanted = _configuration(type(actual), changes, what)
    if isinstance(wanted, Mapping):
        target = changed(actual, {**wanted, **fields}, what)
    else:
        target = asked_for(type(actual), wanted, fields, what)
    return target, differences(target, actual)


def refuse_impossible(changes: Sequence[Difference], what: str) -> None:
    """Raise `JetStreamError` with all changes that the server would refuse, and why."""
    refused = [f"{change} ({change.refused})" for change in changes if change.refused]
    if refused:
        raise JetStreamError(f"cannot update {what}: {'; '.join(refused)}")


def load_or_create(
    wanted: Model, what: str, load: Callable[[], Info], create: Callable[[], Info], *, given_only: bool
) -> Info:
    """Return what exists, else what ``create`` makes. Raises `JetStreamError` when what exists differs."""
    try:
        info = load()
    except (StreamNotFound, ConsumerNotFound):
        try:
            return create()
        except ApiError as error:
            if not already_exists(error):
                raise
            # Another client was faster.
            info = load()
    refuse_difference(wanted, info.config, what, given_only=given_only)
    return info


def refuse_difference(wanted: Model, actual: Model, what: str, *, given_only: bool) -> None:
    """Raise `JetStreamError` with all in which what is there is not as wanted."""
    differing = differences(wanted, actual, given_only=given_only)
    if differing:
        raise JetStreamError(f"{what} exists with another configuration (there -> asked for): {_listed(differing)}")


def already_exists(error: ApiError) -> bool:
    """Whether the server refused to create a stream or consumer because one of that name exists."""
    return isinstance(error, StreamExists) or error.err_code == jsapi.CONSUMER_EXISTS


def existing_instead(error: ApiError, wanted: Model, load: Callable[[], Info]) -> Info:
    """What exists, where the server refused to create it and nothing differs: to it, an empty list is not none.

    Raises ``error`` where something differs; it then lists that, if the account may look.
    """
    try:
        existing = load()
    except (ApiError, PermissionDenied):
        raise error from None
    differing = differences(wanted, existing.config)
    if differing:
        error.args = (f"{error}; there -> asked for: {_listed(differing)}", *error.args[1:])
    elif not differences(existing.config, wanted):
        return existing
    raise error


def confirm(wanted: Model, actual: Model, done: str) -> None:
    """Compare with what the server made of it. Raises `JetStreamError` when it left something out."""
    left = differences(wanted, actual)
    if left:
        raise JetStreamError(f"{done}, but the server has not taken all (there -> asked for): {_listed(left)}")


def _listed(differing: Sequence[Difference]) -> str:
    return "; ".join(map(str, differing))


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
    """What a configuration has that not every supported server knows: (API level, in words); the newest last."""
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
