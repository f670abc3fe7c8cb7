"""Differences of two configurations, and the update that removes them. Pure.

An update replaces the whole configuration. A field that is not given therefore means its default:
where the actual one has another value, that is a difference. A value that the server fills in or
implies by itself is none (`LEFT_TO_SERVER`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from spark_jetstream.admin.models.base import QUERY_METADATA, Model, readable
from spark_jetstream.admin.models.consumers import ONE_SECOND, ConsumerConfig
from spark_jetstream.admin.models.rules import FOR_NEW, IMMUTABLE, LEFT_TO_SERVER, RISKS, Rule
from spark_jetstream.admin.models.streams import ZERO, StreamConfig, StreamSource
from spark_jetstream.protocol.units import Timestamp

M = TypeVar("M", bound=Model)

#: Limits for which 0 and -1 mean the same. A server stores -1 for those of a stream, 0 for those of
#: a pull.
_STREAM_LIMITS = ("max_consumers", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size")
#: The values that a server gives a sealed stream.
_IMPLIED_BY_SEAL: Mapping[str, Any] = {
    "allow_rollup_hdrs": False,
    "discard": "new",
    "max_age": ZERO,
    "deny_delete": True,
    "deny_purge": True,
}
_PULL_LIMITS = ("max_waiting", "max_batch", "max_bytes")
#: Lists whose order does not count.
_UNORDERED = frozenset({"subjects", "filter_subjects", "tags", "sources"})
#: Fields that have fields themselves.
_PARTS = frozenset(
    {"consumer_limits", "mirror", "placement", "republish", "sources", "subject_transform"},
)


@dataclass(frozen=True)
class Difference:
    """One field that is not as wanted; None means "absent".

    ``field`` is a path such as ``metadata.owner``. ``refused`` says why the server cannot change
    it, "" when it can. ``risk`` says what the change does beside that, or for ever, "" for nothing.
    """

    field: str
    wanted: Any
    actual: Any
    refused: str = ""
    risk: str = ""

    def __str__(self) -> str:
        return f"{self.field}: {readable(self.actual)} -> {readable(self.wanted)}"


def differences(wanted: Model, actual: Model, *, given_only: bool = False) -> list[Difference]:
    """Return the fields in which ``actual`` is not what ``wanted`` asks for.

    They have the order of the documentation. Both are `StreamConfig` or both `ConsumerConfig`.
    ``given_only`` compares nothing but the fields that ``wanted`` sets: whether the actual one does
    at least what is asked for. The order of subjects, filters, tags and sources does not count, nor
    how a time is written, nor fields that only a newer server knows unless ``wanted`` sets them.
    """
    kind = type(wanted)
    if kind is not type(actual) or kind not in LEFT_TO_SERVER:
        other = type(actual).__name__
        raise TypeError(f"a {kind.__name__} cannot be compared with a {other}")
    want = effective(wanted)
    have = effective(actual)
    given = _given_fields(wanted) if given_only else None
    # Values that the server chooses, an existing one keeps, or a Spark query moves.
    ignored = _servers_choice(kind, want)
    for config in (wanted, actual):
        ignored |= _kept(config) | _moved(config)
    found = []
    for name in want:
        if name in ignored or (given is not None and name not in given):
            continue
        compared = _compare(name, want[name], have.get(name), _part_of(given, name))
        for field, want_value, have_value in compared:
            wanted_part = _as_given(wanted, field, want_value)
            actual_part = _as_given(actual, field, have_value)
            found.append(_judged(kind, field, wanted_part, actual_part))
    return found


def _given_fields(config: Model) -> dict[str, Any]:
    """Return the fields that a configuration sets, by the names that `effective` has for them."""
    given = config.model_dump(exclude_unset=True)
    # `effective` has both forms of filters under the name of the list.
    if "filter_subject" in given:
        given["filter_subjects"] = ()
    return given


def update_body(wanted: Model, actual: Model) -> dict[str, Any]:
    """Return the configuration to send so that ``actual`` becomes ``wanted``.

    Values that `differences` ignores stay. An update replaces everything, so values that are left
    to the server are sent as they are. Fields of the whole configuration that only a newer server
    knows are sent too. Fields inside of a part that only a newer server knows stay when ``wanted``
    is `changed` from ``actual``.
    """
    have = actual.body()
    if have.get("backoff"):
        # The server filled in the first time of the backoff.
        have.pop("ack_wait", None)
    kind = type(wanted)
    moved = _moved(actual)
    sent = {name: value for name, value in wanted.body().items() if name not in moved}
    # An update that left these fields out would reset them to their defaults
    # (`test_an_update_keeps_the_settings_that_the_server_has_chosen`).
    left = _servers_choice(kind, effective(wanted)) | _kept(wanted) | moved
    allowed = set(wanted.faults())
    for name in sorted(left & have.keys()):
        with_kept = {**sent, name: have[name]}
        # A value that does not fit to the rest any more is left to the server after all, such as a
        # duplicate window that is longer than the new age.
        if allowed.issuperset(kind.from_server(with_kept).faults()):
            sent = with_kept
    # Without its marks, or with earlier ones, a running query takes the consumer for that of
    # another run, and ends.
    metadata = getattr(actual, "metadata", {})
    marks = {key: value for key, value in metadata.items() if key in QUERY_METADATA}
    if marks:
        sent = {**sent, "metadata": {**sent.get("metadata", {}), **marks}}
    # An update without the fields of a newer server would reset them
    # (`test_an_update_keeps_what_only_a_newer_server_knows`).
    return {**(actual.model_extra or {}), **sent}


def merged(wanted: M, actual: M) -> M:
    """Return ``actual`` with all that ``wanted`` sets. Raises `pydantic.ValidationError`.

    Unset metadata keys, and unset fields of nested parts (a mirror; sources with the same names),
    keep their values.
    """
    changes: dict[str, Any] = {}
    for name in wanted.model_fields_set:
        changes[name] = _merged_value(name, getattr(wanted, name), getattr(actual, name, None))
    return actual.changed(**changes)


def _merged_value(name: str, value: Any, have: Any) -> Any:
    """Return the value of a field, with the parts of the existing one that it does not set."""
    if isinstance(value, dict) and isinstance(have, dict):
        return {**have, **value}
    if isinstance(value, Model) and isinstance(have, Model):
        return merged(value, have)
    # A source that lost its filter or its start would be copied once more from its beginning
    # (`test_merging_keeps_what_was_not_asked_for_of_sources`).
    if name == "sources" and have and _origin_names(value) == _origin_names(have):
        return tuple(merged(one, other) for one, other in zip(value, have, strict=True))
    return value


def _origin_names(sources: tuple[StreamSource, ...]) -> list[str]:
    return [source.name for source in sources]


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
    if not want.get("mirror"):
        # Only for a mirror the server chooses it.
        unset.discard("mirror_direct")
    return unset


def _kept(config: Model) -> set[str]:
    """Return the fields of `FOR_NEW` that a configuration does not set.

    An existing stream or consumer keeps its own values.
    """
    return FOR_NEW[type(config)].keys() - config.model_fields_set


def _moved(config: Model) -> set[str]:
    """Return the fields that a Spark query changes of its consumer."""
    # Before server 2.14, a commit creates the consumer again, with another start.
    marked = not QUERY_METADATA.isdisjoint(getattr(config, "metadata", ()))
    return {"deliver_policy", "opt_start_seq"} if marked else set()


def _implied_by_stream(config: StreamConfig, values: dict[str, Any]) -> dict[str, Any]:
    # Delete markers need messages with a time to live, and rollups; schedules need rollups.
    marked = config.subject_delete_marker_ttl > 0
    implied = {
        "subjects": _stored_subjects(config),
        # To the server 0 replicas are 1.
        "num_replicas": config.num_replicas or 1,
        "placement": _placement(values["placement"]),
        "republish": _republish(values["republish"]),
        "allow_msg_ttl": config.allow_msg_ttl or marked,
        "allow_rollup_hdrs": config.allow_rollup_hdrs or marked or config.allow_msg_schedules,
        "metadata": config.own_metadata,
    }
    for name in _STREAM_LIMITS:
        implied[name] = getattr(config, name) or -1
    if config.sealed:
        implied |= _IMPLIED_BY_SEAL
    return implied


def _stored_subjects(config: StreamConfig) -> tuple[str, ...]:
    """Return the subjects of a stream: its name, if it has none and copies no other stream."""
    if config.subjects or config.mirror or config.sources:
        return config.subjects
    return (config.name,)


def _placement(placement: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a placement; None for one that names no cluster and no tag."""
    return placement if placement and any(placement.values()) else None


def _republish(republish: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return how messages are published again; None if it names no destination."""
    # A server creates a stream with an empty destination as one without `republish`.
    if not republish or not republish["dest"]:
        return None
    return {**republish, "src": republish["src"] or ">"}


def _implied_by_consumer(config: ConsumerConfig) -> dict[str, Any]:
    # The server turns flow_control and a heartbeat of one second on for ack_policy flow_control.
    copying = config.ack_policy == "flow_control"
    paused = config.pause_until is not None and not config.pause_until.never
    implied = {
        "name": config.name or config.durable_name,
        "filter_subjects": config.filters,
        # The server takes the first time of `backoff` for `ack_wait`, whatever is sent.
        "ack_wait": config.backoff[0] if config.backoff else config.ack_wait,
        "flow_control": config.flow_control or copying,
        "idle_heartbeat": ONE_SECOND if copying else config.idle_heartbeat,
        "metadata": config.own_metadata,
        "pause_until": config.pause_until if paused else None,
        "max_deliver": config.max_deliver or -1,
    }
    for name in _PULL_LIMITS:
        implied[name] = max(0, getattr(config, name))
    return implied


def _compare(field: str, wanted: Any, actual: Any, given: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the path of each difference, with both values.

    In a part only the fields in ``given`` count; None: all.
    """
    if isinstance(wanted, dict) and isinstance(actual, dict):
        yield from _compare_parts(field, wanted, actual, given)
        return
    if _plain(field, wanted) == _plain(field, actual):
        return
    # Sources alone are a list of parts with names.
    names = _names(wanted) if field == "sources" else []
    if names and names == _names(actual):
        # The origins are the same: only single fields of them differ.
        for at, (one, other) in enumerate(zip(wanted, actual, strict=True)):
            yield from _compare(f"{field}.{at}", one, other, _part_of(given, at))
        return
    yield field, wanted, actual


def _compare_parts(
    field: str, wanted: dict[str, Any], actual: dict[str, Any], given: Any
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the differences of two mappings: of two parts with fields, or of metadata with keys."""
    names = given
    if given is None:
        # A part of the server may have fields that only a newer server knows; metadata has any key.
        is_part = field.partition(".")[0] in _PARTS
        names = wanted if is_part else {**wanted, **actual}
    for name in names:
        path = f"{field}.{name}"
        yield from _compare(path, wanted.get(name), actual.get(name), _part_of(given, name))


def _part_of(given: Any, key: Any) -> Any:
    """Return the given fields of a part; None where all fields count."""
    return None if given is None else given[key]


def _names(sources: Any) -> list[str]:
    """Return the names of sources; none for a field of a newer server that has their name."""
    if isinstance(sources, tuple):
        return [source["name"] for source in sources]
    return []


def _plain(field: str, value: Any) -> Any:
    """Return a value in a form that can be compared: without what makes no difference."""
    if isinstance(value, dict):
        return {name: _plain(name, part) for name, part in value.items()}
    if isinstance(value, tuple):
        plain = [_plain("", part) for part in value]
        # The order of these does not count.
        if field.rpartition(".")[2] in _UNORDERED:
            plain.sort(key=_sort_key)
        return plain
    if isinstance(value, Timestamp):
        # The same time may be written in several ways. Beyond the years 1970 to 2262 it has no
        # nanoseconds (0), and its text counts
        # (`test_times_that_no_number_stands_for_differ`).
        return None if value.never else value.nanoseconds or str(value)
    return value


def _sort_key(item: Any) -> str:
    return json.dumps(item, sort_keys=True, default=str)


def _as_given(config: Model, field: str, value: Any) -> Any:
    """Return a part, or parts, with only the fields that the configuration sets.

    Any other value is returned as it is.
    """
    parts = value if isinstance(value, tuple) else (value,)
    if field.partition(".")[0] not in _PARTS or not any(isinstance(part, dict) for part in parts):
        return value
    part: Any = config.model_dump(exclude_unset=True)
    for name in field.split("."):
        # In a path, a source is named by its number.
        part = part[int(name)] if isinstance(part, tuple) else part.get(name, {})
    return part


def _judged(kind: type[Model], field: str, wanted: Any, actual: Any) -> Difference:
    refused = _reason(IMMUTABLE[kind], field, wanted, actual)
    risk = _reason(RISKS[kind], field, wanted, actual)
    return Difference(field, wanted, actual, refused, risk)


def _reason(rules: Mapping[str, Rule], field: str, wanted: Any, actual: Any) -> str:
    """Return the reason of the rule that applies to a difference; "" if none applies."""
    rule = rules.get(field.partition(".")[0])
    if rule is None or not rule.applies(field, wanted, actual):
        return ""
    return rule.reason
