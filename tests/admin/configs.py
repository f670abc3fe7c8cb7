"""Configurations of every kind, as they are sent to a server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from spark_jetstream.admin.models.base import M, Model

SECOND = 1_000_000_000
ORIGIN = "ORIGIN"
"""A stream that mirrors and sources can copy; it takes ``origin.>`` and allows direct reads."""

EVERYTHING: dict[str, Any] = {
    "description": "all that can be set together",
    "subjects": ["everything.>", "all.*"],
    "retention": "limits",
    "max_consumers": 5,
    "max_msgs": 100,
    "max_bytes": 1_000_000,
    "max_age": 3600 * SECOND,
    "max_msgs_per_subject": 3,
    "max_msg_size": 1000,
    "discard": "new",
    "storage": "file",
    "num_replicas": 1,
    "no_ack": True,
    "duplicate_window": 60 * SECOND,
    "placement": {"cluster": "north", "tags": ["ssd", "eu"]},
    "sources": [
        {
            "name": "FAR",
            "opt_start_seq": 3,
            "filter_subject": "far.>",
            "external": {"api": "$JS.far.API", "deliver": "far.deliver"},
        },
        {
            "name": "NEAR",
            "opt_start_time": "2026-03-01T12:00:00.123456789+01:00",
            "subject_transforms": [
                {"src": "near.>", "dest": "n.>"},
                {"src": "by.*", "dest": "b.{{wildcard(1)}}"},
            ],
        },
        {"name": "QUEUE", "consumer": {"name": "copy", "deliver_subject": "copies.queue"}},
    ],
    "compression": "s2",
    "first_seq": 7,
    "subject_transform": {"src": "everything.>", "dest": "anything.>"},
    "republish": {"src": "anything.>", "dest": "again.>", "headers_only": True},
    "allow_direct": True,
    "discard_new_per_subject": True,
    "deny_delete": True,
    "allow_rollup_hdrs": True,
    "consumer_limits": {"inactive_threshold": 5 * SECOND, "max_ack_pending": 9},
    "allow_msg_ttl": True,
    "subject_delete_marker_ttl": 2 * SECOND,
    "allow_atomic": True,
    "allow_batched": True,
    "metadata": {"owner": "me", "team.name": "data"},
}

#: What a stream can be. Without subjects it gets some that begin with its name.
STREAMS: dict[str, dict[str, Any]] = {
    "default": {},
    "everything": EVERYTHING,
    "limits": {
        "max_msgs": 10,
        "max_bytes": 2**20,
        "max_age": SECOND,
        "duplicate_window": SECOND // 10,
    },
    "interest": {"retention": "interest"},
    "workqueue": {"retention": "workqueue", "discard": "new", "max_msgs": 1000},
    "memory": {"storage": "memory"},
    "compressed": {"compression": "s2"},
    "mirror": {"mirror": {"name": ORIGIN}},
    "filtered mirror": {
        "mirror": {"name": ORIGIN, "opt_start_seq": 4, "filter_subject": "origin.a"}
    },
    "mirror of another domain": {
        "mirror": {"name": "FAR", "external": {"api": "$JS.far.API"}},
        "mirror_direct": True,
    },
    "sources": {
        "subjects": [],
        "sources": [{"name": ORIGIN}, {"name": "NEAR", "filter_subject": "near.a"}],
    },
    "key-value bucket": {
        "name": "KV_admin",
        "subjects": ["$KV.admin.>"],
        "max_msgs_per_subject": 5,
        "discard": "new",
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
        "allow_msg_ttl": True,
        "subject_delete_marker_ttl": SECOND,
    },
    "object bucket": {
        "name": "OBJ_admin",
        "subjects": ["$O.admin.C.>", "$O.admin.M.>"],
        "discard": "new",
        "allow_rollup_hdrs": True,
        "allow_direct": True,
    },
    "counter": {"allow_msg_counter": True, "allow_direct": True},
    "schedules": {"allow_msg_schedules": True},
    "ttl": {"allow_msg_ttl": True},
    "atomic": {"allow_atomic": True},
    "batched": {"allow_batched": True},
    "confirmed early": {"persist_mode": "async"},
    "republish": {"republish": {"dest": "republished.>"}},
    "transform": {"subject_transform": {"src": "", "dest": "transformed.>"}},
    "placement": {"placement": {"tags": ["ssd"]}},
    "consumer limits": {"consumer_limits": {"max_ack_pending": 5}},
    "first sequence": {"first_seq": 2**64 - 1},
    "no acknowledgements": {"no_ack": True},
    "denied": {"deny_delete": True, "deny_purge": True},
}

#: What a consumer can be; all get a name.
CONSUMERS: dict[str, dict[str, Any]] = {
    "default": {},
    "everything of a pull consumer": {
        "description": "all that can be set together",
        "deliver_policy": "by_start_time",
        "opt_start_time": "2026-03-01T12:00:00.123456789+01:00",
        "ack_policy": "explicit",
        "max_deliver": 5,
        "backoff": [SECOND, 2 * SECOND],
        "filter_subjects": ["c.a", "c.b.*"],
        "replay_policy": "original",
        "sample_freq": "50%",
        "max_waiting": 9,
        "max_ack_pending": 99,
        "headers_only": True,
        "max_batch": 1000,
        "max_expires": 60 * SECOND,
        "max_bytes": 65536,
        "inactive_threshold": 3600 * SECOND,
        "num_replicas": 1,
        "mem_storage": True,
        "metadata": {"owner": "me"},
        "pause_until": "2036-03-01T12:00:00.123456789Z",
        "priority_groups": ["one"],
        "priority_policy": "pinned_client",
        "priority_timeout": 10 * SECOND,
    },
    "everything of a push consumer": {
        "ack_policy": "all",
        "ack_wait": 7 * SECOND,
        "max_ack_pending": -1,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": 5,
        "deliver_subject": "delivered",
        "deliver_group": "workers",
        "filter_subject": "c.>",
        "flow_control": True,
        "idle_heartbeat": 5 * SECOND,
        "rate_limit_bps": 10**6,
    },
    "ephemeral": {"durable_name": None},
    "last per subject": {
        "deliver_policy": "last_per_subject",
        "filter_subject": "c.>",
        "ack_policy": "none",
    },
    "overflow": {"priority_groups": ["a/b_c=-"], "priority_policy": "overflow"},
    "prioritized": {"priority_groups": ["one"], "priority_policy": "prioritized"},
    "copying in short": {"ack_policy": "flow_control", "deliver_subject": "copies"},
    "copying": {
        "ack_policy": "flow_control",
        "deliver_subject": "copies",
        "flow_control": True,
        "idle_heartbeat": SECOND,
        "max_ack_pending": 100,
    },
}


def read(model: type[M], said: Mapping[str, Any], context: str = "read the server's reply") -> M:
    """The model of a reply, which knows and keeps every field of it."""
    reply = model.from_server(said, context)
    assert [
        f"{type(part).__name__}.{name}" for part in parts(reply) for name in part.model_extra or {}
    ] == []
    sent = {name: value for name, value in said.items() if value is not None}
    assert reply.model_dump(mode="json", exclude_unset=True) == sent
    return reply


def parts(model: Model) -> Iterator[Model]:
    """A model, and all models in it."""
    yield model
    for name in type(model).model_fields:
        value = getattr(model, name)
        for part in (
            value.values()
            if isinstance(value, dict)
            else value
            if isinstance(value, tuple)
            else (value,)
        ):
            if isinstance(part, Model):
                yield from parts(part)
