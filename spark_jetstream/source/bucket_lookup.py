"""Buckets as the source reads them, on the driver: the stream of a bucket, and its filters.

The layouts are those of ADR-8 "JetStream based Key-Value Stores" and ADR-20 "JetStream based Object Stores".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spark_jetstream.client.requests import Connect, Requests
from spark_jetstream.errors import OptionError, StreamNotFound
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.stream import StreamState, stream_state


@dataclass(frozen=True)
class SourceBucket:
    """A bucket of the server: the state of its stream, and the subject filters of the read (empty: all)."""

    state: StreamState
    subjects: tuple[str, ...]


def find_bucket(requests: Requests, options: SourceOptions) -> SourceBucket:
    """Return the bucket that the options name, by one STREAM.INFO. Raises `OptionError` if there is none."""
    key_value = options.bucket is not None
    option, kind = ("bucket", "Key-Value bucket") if key_value else ("objectBucket", "Object Store bucket")
    stream = options.read_streams[0]
    name = options.named(stream)
    context = f"read {kind} {name} (option {option})"
    try:
        body = requests.ask(jsapi.STREAM_INFO, stream, context=context)
    except StreamNotFound:
        raise OptionError(f"there is no {kind} {name} (option {option}): no stream {stream}", option=option) from None
    state = stream_state(body, context)
    subjects = _subjects(body.get("config", {}), state, name, options.keys if key_value else None)
    if subjects is None:
        raise OptionError(f"stream {stream} is no {kind} (option {option}): read it with option stream", option=option)
    return SourceBucket(state, subjects)


def _subjects(
    config: dict[str, Any], state: StreamState, name: str, keys: Sequence[str] | None
) -> tuple[str, ...] | None:
    """Return the filters of a bucket, None if the stream is none. ``keys``: of a Key-Value bucket, empty for all."""
    begin = "$O" if keys is None else "$KV"
    mirrored = config.get("mirror") or {}
    if mirrored:
        is_bucket = str(mirrored.get("name", "")).startswith("OBJ_" if keys is None else "KV_")
    else:
        # A bucket that is filled from others may have no subjects of its own.
        own = all(subject.startswith(f"{begin}.{name}.") for subject in state.subjects)
        is_bucket = own and bool(state.subjects or config.get("sources"))
        is_bucket = is_bucket and (keys is None or state.max_msgs_per_subject > 0)
    if not is_bucket:
        return None
    # Messages from another bucket keep the subjects they have there, and that bucket may have them from a third one.
    prefix = f"{begin}.{'*' if mirrored or config.get('sources') else name}"
    return (f"{prefix}.M.>",) if keys is None else tuple(f"{prefix}.{key}" for key in keys)


def first_requests(connect: Connect, options: SourceOptions) -> Requests:
    """Return the requests to a server not reached before: it is more likely the wrong one than one that restarts."""
    return Requests(connect, min(options.connection.connect_timeout, options.connection.retry_timeout))
