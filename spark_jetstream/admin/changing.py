"""From what a user gives to a configuration, and to a change of one that is there. Pure.

`StreamConfig` and `ConsumerConfig` alike. Errors are one line each, and begin with ``what``, such as ``stream ORDERS``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from spark_jetstream.admin.consumer_models import ConsumerConfig
from spark_jetstream.admin.differences import Difference, differences
from spark_jetstream.admin.model import Model, complaint
from spark_jetstream.admin.stream_models import StreamConfig
from spark_jetstream.errors import JetStreamError, OptionError

M = TypeVar("M", bound=Model)


def asked_for(kind: type[M], config: Model | Mapping[str, Any] | None, fields: Mapping[str, Any], what: str) -> M:
    """The configuration that ``config`` with ``fields`` in place of its own stands for; `OptionError` if it is none."""
    if isinstance(config, kind):
        return changed(config, fields, what) if fields else config
    if isinstance(config, Model):
        raise OptionError(f"{what}: a {kind.__name__} or a mapping is needed, not a {type(config).__name__}")
    return kind.parse({**(config or {}), **fields}, what)


def changed(config: M, fields: Mapping[str, Any], what: str) -> M:
    """A copy with these fields, each replaced as a whole; None takes one back to its default. `OptionError`."""
    try:
        return config.changed(**fields)
    except ValidationError as error:
        said = complaint(error)
    raise OptionError(f"{what}: {said}")


def target(actual: M, changes: Model | Mapping[str, Any] | None, fields: Mapping[str, Any], what: str) -> M:
    """What an update leads to: a model is all that is wanted, a mapping and ``fields`` are what is to change."""
    if isinstance(changes, Model):
        return asked_for(type(actual), changes, fields, what)
    return changed(actual, {**(changes or {}), **fields}, what)


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
        if getattr(config, name) != kind.model_fields[name].get_default(call_default_factory=True)
    ]
    if isinstance(config, ConsumerConfig):
        found += [(2, "priority_policy prioritized")] if config.priority_policy == "prioritized" else []
        found += [(4, "ack_policy flow_control")] if config.ack_policy == "flow_control" else []
    elif isinstance(config, StreamConfig):
        copies = [("mirror", config.mirror), *(("sources", each) for each in config.sources)]
        found += [(4, f"{name}.consumer") for name, each in copies if each is not None and each.consumer is not None]
    return sorted(found)
