"""From what a user gives to a configuration, and to a change of one that is there. Pure.

`StreamConfig` and `ConsumerConfig` alike. Errors are one line each, and begin with ``what``, such as ``stream ORDERS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from spark_jetstream.admin.consumer_models import ConsumerConfig, ConsumerInfo
from spark_jetstream.admin.differences import Difference, differences
from spark_jetstream.admin.model import Model, complaint
from spark_jetstream.admin.stream_models import StreamConfig
from spark_jetstream.admin.stream_replies import StreamInfo
from spark_jetstream.errors import ApiError, JetStreamError, OptionError, PermissionDenied
from spark_jetstream.units import NEVER, shown

Info = TypeVar("Info", StreamInfo, ConsumerInfo)
M = TypeVar("M", bound=Model)


def named(
    kind: type[Model], name: object, config: object, fields: Mapping[str, Any], *names: str
) -> tuple[Any, Mapping[str, Any]]:
    """The arguments of ``create(name, config, **fields)``: the configuration, and the fields with the name.

    ``create(config, **fields)`` is the same without the name. ``names`` are the fields that the name stands for.
    `OptionError` when there are two configurations, or two names.
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
    """The configuration that ``config`` with ``fields`` in place of its own stands for; `OptionError` if it is none.

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
    try:
        return config.changed(**fields)
    except ValidationError as error:
        said = complaint(error)
    raise OptionError(f"{what}: {said}")


def target(actual: M, changes: object, fields: Mapping[str, Any], what: str) -> M:
    """What an update leads to: a model is all that is wanted, a mapping and ``fields`` are what is to change."""
    wanted = _configuration(type(actual), changes, what)
    if isinstance(wanted, Mapping):
        return changed(actual, {**wanted, **fields}, what)
    return asked_for(type(actual), wanted, fields, what)


def refuse_impossible(found: Sequence[Difference], what: str) -> None:
    """Raise `JetStreamError` with all changes that the server would refuse, and why."""
    refused = [f"{each} ({each.refused})" for each in found if each.refused]
    if refused:
        raise JetStreamError(f"cannot update {what}: {'; '.join(refused)}")


def refuse_difference(wanted: Model, actual: Model, what: str, *, given_only: bool) -> None:
    """Raise `JetStreamError` with all in which what is there is not as wanted."""
    found = differences(wanted, actual, given_only=given_only)
    if found:
        raise JetStreamError(f"{what} exists with another configuration (there -> asked for): {_listed(found)}")


def existing_instead(error: ApiError, wanted: Model, load: Callable[[], Info]) -> Info:
    """What exists, where ``error`` refused to create it and nothing about it differs.

    The server takes an empty list for another one than none, and so two texts of one time. Raises ``error`` where
    something differs; it then lists that, if the account may look.
    """
    try:
        existing = load()
    except (ApiError, PermissionDenied):
        raise error from None
    found = differences(wanted, existing.config)
    if not found and not differences(existing.config, wanted):
        return existing
    if found:
        error.args = (f"{error}; there -> asked for: {_listed(found)}", *error.args[1:])
    raise error


def confirm(wanted: Model, actual: Model, done: str) -> None:
    """Compare with what the server made of it. Raises `JetStreamError` when it left something out."""
    left = differences(wanted, actual)
    if left:
        raise JetStreamError(f"{done}, but the server has not taken all (there -> asked for): {_listed(left)}")


def _listed(found: Sequence[Difference]) -> str:
    return "; ".join(map(str, found))


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
    found = [
        (level, name)
        for name, level in SINCE[kind].items()
        if getattr(config, name) not in (kind.model_fields[name].get_default(call_default_factory=True), NEVER)
    ]
    if isinstance(config, ConsumerConfig):
        found += [(2, "priority_policy prioritized")] if config.priority_policy == "prioritized" else []
        found += [(4, "ack_policy flow_control")] if config.ack_policy == "flow_control" else []
    elif isinstance(config, StreamConfig):
        copies = [("mirror", config.mirror), *(("sources", each) for each in config.sources)]
        found += [(4, f"{name}.consumer") for name, each in copies if each is not None and each.consumer is not None]
    return sorted(found)
