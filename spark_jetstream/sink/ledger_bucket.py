"""The ledger's bucket: created when the first write starts, or refused if it may lose entries."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.requests import Requests
from spark_jetstream.errors import (
    ApiError,
    DeliveryError,
    PermissionDenied,
    ServerBusy,
    StreamExists,
    StreamNotFound,
)
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.features import MESSAGE_TTL
from spark_jetstream.protocol.stream import StreamSummary
from spark_jetstream.sink.ledger_entry import BUCKET, STREAM

log = logging.getLogger(__name__)

_MAX_BYTES_REQUIRED = 10113  # error code: streams of this account must have max_bytes
_LEDGER = "the ledger of delivery exactly-once"


def bucket_config(replicas: int) -> Mapping[str, Any]:
    """Return the configuration of the ledger's stream.

    It keeps one revision of each key, and only an entry's own TTL removes it.
    """
    return {
        "name": STREAM,
        "description": "spark-jetstream: which tasks of delivery exactly-once have begun, and "
        "where",
        "subjects": [f"$KV.{BUCKET}.>"],
        "max_msgs_per_subject": 1,
        "num_replicas": replicas,
        "storage": "file",
        "discard": "new",
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
        "allow_msg_ttl": True,
    }


def check_ledger(requests: Requests, replicas: int, *, streaming: bool) -> None:
    """Create the bucket of the ledger with this number of replicas, or check the one that exists.

    Raises `DeliveryError` if the account may not see or create it, and for a bucket that may lose
    entries.
    """
    knows_ttl = requests.can(MESSAGE_TTL)
    try:
        state = requests.stream(STREAM)
    except StreamNotFound:
        _create(requests, replicas, with_ttl=knows_ttl)
        return
    except PermissionDenied as error:
        raise DeliveryError(f"cannot see {_LEDGER}: {error}") from None
    # Entries of a batch write expire. A server that knows no TTL keeps them.
    fault = _fault(state, expires=knows_ttl and not streaming)
    if fault is not None:
        raise DeliveryError(f"{_LEDGER}, stream {STREAM}, {fault}")


def _create(requests: Requests, replicas: int, *, with_ttl: bool) -> None:
    try:
        requests.call(partial(_send, replicas=replicas))
    except StreamExists:
        log.info("another process has made %s at the same moment", BUCKET)
    except ServerBusy as error:
        raise DeliveryError(
            f"{error} (option retryTimeout); start the query when the cluster has {replicas} "
            "servers that can take a replica, or set delivery to deduplicated"
        ) from None
    except (ApiError, PermissionDenied) as error:
        bounded = isinstance(error, ApiError) and error.err_code == _MAX_BYTES_REQUIRED
        command = _command(replicas, with_ttl=with_ttl, bounded=bounded)
        raise DeliveryError(
            f"{error}; make it beforehand ({command}), or set delivery to deduplicated"
        ) from None


def _send(connection: Connection, replicas: int) -> None:
    subject = jsapi.subject(connection.prefix, jsapi.STREAM_CREATE, STREAM)
    request = jsapi.request_body(**bucket_config(replicas))
    connection.api(subject, request, context=f"make {_LEDGER}, the Key-Value bucket {BUCKET}")


def _fault(state: StreamSummary, *, expires: bool) -> str | None:
    """Return why the ledger's stream may lose entries, or refuses those that expire.

    None for a good one.
    """
    edit = f"spark-jetstream stream edit {STREAM}"
    if state.persist_mode == "async":
        crash = "a crash of its server loses what was noted"
        return f"has persist_mode async, so {crash}: create it again without"
    if state.max_age > 0:
        return f"forgets what was noted after its max_age: take that back ({edit} --max-age 0)"
    if state.evicts:
        change = f"{edit} --discard new"
        return f"drops the oldest entries at its limits: let it refuse new ones ({change})"
    if expires and not state.allow_msg_ttl:
        change = f"{edit} --allow-msg-ttl"
        return (
            "was made without allow_msg_ttl, and the entries of a batch write expire: set it "
            f"({change})"
        )
    return None


def _command(replicas: int, *, with_ttl: bool, bounded: bool) -> str:
    """Return the command that makes the ledger's bucket.

    `bounded`: the account demands a limit.
    """
    parts = [f"spark-jetstream kv add {BUCKET} --replicas {replicas}"]
    if with_ttl:
        parts.append("--limit-marker-ttl 1s")  # entries of batch writes expire
    if bounded:
        parts.append("--max-bytes 64m")
    return " ".join(parts)
