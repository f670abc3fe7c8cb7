"""Tables of fields: which changes a server refuses, which have a risk, which it chooses.

Each row was tried on server 2.15.1 (error codes 10052 and 10055 for streams, 10012 for consumers).
Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spark_jetstream.admin.models.base import Model
from spark_jetstream.admin.models.consumers import ConsumerConfig
from spark_jetstream.admin.models.streams import StreamConfig
from spark_jetstream.protocol.units import NEVER

# The cases of rules: each gets the path, the wanted and the actual value of a difference.


def _always(field: str, wanted: Any, actual: Any) -> bool:
    return True


def _off(field: str, wanted: Any, actual: Any) -> bool:
    return not wanted


def _on(field: str, wanted: Any, actual: Any) -> bool:
    return bool(wanted)


def _only_one_is_set(field: str, wanted: Any, actual: Any) -> bool:
    return bool(wanted) != bool(actual)


def _lower_limit(field: str, wanted: Any, actual: Any) -> bool:
    # 0 and -1 stand for no limit.
    unlimited_before = actual <= 0
    return bool(wanted > 0 and (unlimited_before or wanted < actual))


def _to_or_from_work_queue(field: str, wanted: Any, actual: Any) -> bool:
    return "workqueue" in (wanted, actual)


def _to_interest(field: str, wanted: Any, actual: Any) -> bool:
    return bool(wanted == "interest")


def _mirror_removed(field: str, wanted: Any, actual: Any) -> bool:
    return field == "mirror" and wanted is None


def _mirror_changed(field: str, wanted: Any, actual: Any) -> bool:
    return not _mirror_removed(field, wanted, actual)


def _other_messages_of_source(field: str, wanted: Any, actual: Any) -> bool:
    return field.endswith((".filter_subject", ".subject_transforms"))


@dataclass(frozen=True)
class Rule:
    """Why a field is special, and in which cases.

    ``applies`` gets the path, the wanted and the actual value of a difference.
    """

    reason: str
    applies: Callable[[str, Any, Any], bool] = _always


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
            _to_or_from_work_queue,
        ),
        "mirror": Rule(
            "a mirror can only be removed, which makes it a stream of its own",
            _mirror_changed,
        ),
        **dict.fromkeys(("storage", "allow_msg_counter", "persist_mode"), _NEVER),
        **dict.fromkeys(_FINAL, Rule(_NOT_BACK, _off)),
    },
    ConsumerConfig: {
        "opt_start_seq": Rule("it can never change; reset the consumer to go to another sequence"),
        "deliver_subject": Rule(
            "a push consumer cannot become a pull consumer, nor the other way round",
            _only_one_is_set,
        ),
        # The server ignores it in an update (`test_an_update_never_pauses_or_resumes`).
        "pause_until": Rule("an update leaves it as it is; pause or resume the consumer"),
        **dict.fromkeys(
            ("name", "deliver_policy", "opt_start_time", "ack_policy", "replay_policy"),
            _NEVER,
        ),
        **dict.fromkeys(("max_waiting", "idle_heartbeat", "flow_control", "mem_storage"), _NEVER),
        **dict.fromkeys(("direct", "sourcing"), _NEVER),
    },
}

#: What changes lose, store twice, or can never undo.
RISKS: Mapping[type[Model], Mapping[str, Rule]] = {
    StreamConfig: {
        # The server does so without asking (`test_a_change_with_a_risk_deletes_messages`).
        "retention": Rule(
            "messages that no consumer waits for are deleted at once",
            _to_interest,
        ),
        "no_ack": Rule("publishers no longer know whether a message was stored", _on),
        "mirror": Rule(
            "it stops to follow its origin, and cannot become a mirror again",
            _mirror_removed,
        ),
        # To the server a source with another filter is another source
        # (`test_a_source_with_another_filter_is_copied_once_more`).
        "sources": Rule(
            "what was copied already is copied once more, from its beginning",
            _other_messages_of_source,
        ),
        **dict.fromkeys(
            _LIMITING,
            Rule(
                "messages beyond it are deleted at once",
                _lower_limit,
            ),
        ),
        **dict.fromkeys(_FINAL, Rule(_NOT_BACK, _on)),
    },
    ConsumerConfig: {
        "durable_name": Rule(
            "without a durable name it is gone when nobody uses it for a while",
            _off,
        ),
    },
}

#: What the server chooses where nothing (or 0) is wanted, by its own limits, the stream's, or an
#: origin's; and what only counts for a new stream.
LEFT_TO_SERVER: Mapping[type[Model], frozenset[str]] = {
    # An existing stream ignores first_seq (`test_the_first_sequence_only_counts_for_a_new_stream`).
    StreamConfig: frozenset({"duplicate_window", "first_seq", "mirror_direct"}),
    ConsumerConfig: frozenset(
        {"ack_wait", "inactive_threshold", "max_ack_pending", "max_batch", "max_waiting"},
    )
    | {"pause_until", "priority_timeout"},
}

#: What a new one gets where the server has another default. An existing one keeps what it has where
#: it is not set.
FOR_NEW: Mapping[type[Model], Mapping[str, Any]] = {
    # As `nats stream add` does it. Existing streams keep their own value, so that a program that
    # created its stream without the field finds no difference.
    StreamConfig: {"allow_direct": True},
    ConsumerConfig: {},
}

#: Fields that not every supported server knows -> the API level from which on one does. An older
#: one refuses them, or, before 2.12, leaves them out without a word.
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
    ConsumerConfig: {
        "pause_until": 1,
        "priority_groups": 1,
        "priority_policy": 1,
        "priority_timeout": 1,
    },
}


def needed(config: Model) -> list[tuple[int, str]]:
    """Return the parts of a configuration that old servers do not know: (API level, name).

    The newest come last.
    """
    kind = type(config)
    needs: list[tuple[int, str]] = []
    for name, level in SINCE[kind].items():
        default = kind.model_fields[name].get_default(call_default_factory=True)
        # A server writes the year 1 where there is no pause.
        if getattr(config, name) not in (default, NEVER):
            needs.append((level, name))
    if isinstance(config, ConsumerConfig):
        needs += _needed_by_policies(config)
    elif isinstance(config, StreamConfig):
        needs += _needed_by_origins(config)
    return sorted(needs)


def _needed_by_policies(config: ConsumerConfig) -> Iterator[tuple[int, str]]:
    if config.priority_policy == "prioritized":
        yield 2, "priority_policy prioritized"
    if config.ack_policy == "flow_control":
        yield 4, "ack_policy flow_control"


def _needed_by_origins(config: StreamConfig) -> Iterator[tuple[int, str]]:
    if config.mirror is not None and config.mirror.consumer:
        yield 4, "mirror.consumer"
    for source in config.sources:
        if source.consumer:
            yield 4, "sources.consumer"
