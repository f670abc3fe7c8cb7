"""What an update can do: which fields the server never changes, and which changes cannot be undone. Pure.

Each row was tried on server 2.15.1. The error codes are 10052 and 10055 for streams, 10012 for consumers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_jetstream.admin.consumer_models import ConsumerConfig
from spark_jetstream.admin.model import Model
from spark_jetstream.admin.stream_models import StreamConfig

Case = Callable[[str, Any, Any], bool]


def _always(field: str, wanted: Any, actual: Any) -> bool:
    return True


def _off(field: str, wanted: Any, actual: Any) -> bool:
    return not wanted


def _on(field: str, wanted: Any, actual: Any) -> bool:
    return bool(wanted)


def _work_queue(field: str, wanted: Any, actual: Any) -> bool:
    return "workqueue" in (wanted, actual)


def _interest(field: str, wanted: Any, actual: Any) -> bool:
    return bool(wanted == "interest")


def _not_promoted(field: str, wanted: Any, actual: Any) -> bool:
    return field != "mirror" or wanted is not None


def _promoted(field: str, wanted: Any, actual: Any) -> bool:
    return not _not_promoted(field, wanted, actual)


def _turned(field: str, wanted: Any, actual: Any) -> bool:
    return bool(wanted) != bool(actual)


def _copied_anew(field: str, wanted: Any, actual: Any) -> bool:
    return field.rpartition(".")[2] in {"filter_subject", "subject_transforms"}


def _lower(field: str, wanted: Any, actual: Any) -> bool:
    return bool(wanted > 0 and (actual <= 0 or wanted < actual))


@dataclass(frozen=True)
class Rule:
    """Why a field is special, and in which cases: by the path, the wanted and the actual value of a difference."""

    reason: str
    applies: Case = _always


_NEVER = "it can never change"
_NOT_BACK = "it cannot be taken back"
_DELETES = "messages beyond it are deleted at once"

#: What the server refuses to change.
IMMUTABLE: Mapping[type[Model], Mapping[str, Rule]] = {
    StreamConfig: {
        "name": Rule("it can never change; copy the stream under the other name"),
        "storage": Rule(_NEVER),
        "retention": Rule("a work queue cannot become another stream, nor another stream a work queue", _work_queue),
        "mirror": Rule("a mirror can only be removed, which makes it a stream of its own", _not_promoted),
        "sealed": Rule(_NOT_BACK, _off),
        "deny_delete": Rule(_NOT_BACK, _off),
        "deny_purge": Rule(_NOT_BACK, _off),
        "allow_msg_ttl": Rule(_NOT_BACK, _off),
        "allow_msg_schedules": Rule(_NOT_BACK, _off),
        "allow_msg_counter": Rule(_NEVER),
        "persist_mode": Rule(_NEVER),
    },
    ConsumerConfig: {
        "name": Rule(_NEVER),
        "deliver_policy": Rule(_NEVER),
        "opt_start_seq": Rule("it can never change; reset the consumer to go to another sequence"),
        "opt_start_time": Rule(_NEVER),
        "ack_policy": Rule(_NEVER),
        "replay_policy": Rule(_NEVER),
        "max_waiting": Rule(_NEVER),
        "deliver_subject": Rule("a push consumer cannot become a pull consumer, nor the other way round", _turned),
        "idle_heartbeat": Rule(_NEVER),
        "flow_control": Rule(_NEVER),
        "mem_storage": Rule(_NEVER),
        "direct": Rule(_NEVER),
        "sourcing": Rule(_NEVER),
        "pause_until": Rule("an update leaves it as it is; pause or resume the consumer"),
    },
}

#: What changes lose, store twice, or can never undo.
RISKS: Mapping[type[Model], Mapping[str, Rule]] = {
    StreamConfig: {
        "retention": Rule("messages that no consumer waits for are deleted at once", _interest),
        "max_msgs": Rule(_DELETES, _lower),
        "max_bytes": Rule(_DELETES, _lower),
        "max_age": Rule(_DELETES, _lower),
        "max_msgs_per_subject": Rule(_DELETES, _lower),
        "no_ack": Rule("publishers no longer know whether a message was stored", _on),
        "mirror": Rule("it stops to follow its origin, and cannot become a mirror again", _promoted),
        "sources": Rule("what was copied already is copied once more, from its beginning", _copied_anew),
        "sealed": Rule(_NOT_BACK, _on),
        "deny_delete": Rule(_NOT_BACK, _on),
        "deny_purge": Rule(_NOT_BACK, _on),
        "allow_msg_ttl": Rule(_NOT_BACK, _on),
        "allow_msg_schedules": Rule(_NOT_BACK, _on),
    },
    ConsumerConfig: {
        "durable_name": Rule("without a durable name it is gone when nobody uses it for a while", _off),
    },
}

#: What the server chooses where nothing (or 0) is wanted, by its own limits, the stream's, or an origin's; and what
#: only counts for a new stream.
LEFT_TO_SERVER: Mapping[type[Model], frozenset[str]] = {
    StreamConfig: frozenset({"duplicate_window", "first_seq", "mirror_direct"}),
    ConsumerConfig: frozenset(
        {
            "ack_wait",
            "inactive_threshold",
            "max_ack_pending",
            "max_batch",
            "max_waiting",
            "pause_until",
            "priority_timeout",
        }
    ),
}
