"""The stream behind a bucket, as the server has it: whether it is one, and the filters that read it.

The layouts are those of JETSTREAM ADR-8 (Key-Value) and ADR-20 (Object Store).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from spark_jetstream.client.connection import Connection
from spark_jetstream.client.pool import retrying
from spark_jetstream.errors import OptionError, StreamNotFound
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.stream import StreamState, stream_state


@dataclass(frozen=True)
class BucketKind:
    """A kind of bucket: the option that names one, what it is called, and how its stream and its subjects begin."""

    option: str
    words: str
    stream: str
    subjects: str


KEY_VALUE = BucketKind("bucket", "Key-Value bucket", "KV_", "$KV")
OBJECT_STORE = BucketKind("objectBucket", "Object Store bucket", "OBJ_", "$O")


@dataclass(frozen=True)
class SourceBucket:
    """A bucket of the server: the state of its stream, and the filters of what is to be read (empty: all of it)."""

    state: StreamState
    subjects: tuple[str, ...]


def find_bucket(connect: Callable[[], Connection], options: SourceOptions, patience: float) -> SourceBucket:
    """The bucket that the options name, by one STREAM.INFO.

    ``connect()`` gives the connection; for ``patience`` seconds errors that may pass are tried again. Raises
    `OptionError` (bucket or objectBucket) when there is no such bucket, or a stream of its name that is none, and what
    `Connection.api` raises. `ValueError`: the options name no bucket.
    """
    kind = KEY_VALUE if options.bucket is not None else OBJECT_STORE
    name = options.bucket or options.object_bucket
    if name is None:
        raise ValueError("the options name no bucket")
    stream = options.read_streams[0]
    context = f"read {kind.words} {name} (option {kind.option})"

    def ask() -> dict[str, Any]:
        connection = connect()
        return connection.ask(jsapi.stream_info(connection.prefix, stream), b"", context=context)

    try:
        body = retrying(ask, patience)
    except StreamNotFound:
        raise OptionError(
            f"there is no {kind.words} {name} (option {kind.option}): no stream {stream}", option=kind.option
        ) from None
    return read_bucket(body, kind, name, options.keys, context)


def read_bucket(body: dict[str, Any], kind: BucketKind, name: str, keys: Sequence[str], context: str) -> SourceBucket:
    """The bucket that a reply of STREAM.INFO describes; ``keys`` are the filters of keys, empty for all.

    `OptionError` when the stream is no bucket of that kind. Pure.
    """
    state = stream_state(body, context)
    config = body.get("config", {})
    mirrored = config.get("mirror") or {}
    if mirrored:
        is_bucket = str(mirrored.get("name", "")).startswith(kind.stream)
    else:
        # A bucket that is filled from others may have no subjects of its own.
        own = all(subject.startswith(f"{kind.subjects}.{name}.") for subject in state.subjects)
        is_bucket = own and bool(state.subjects or config.get("sources"))
    if not is_bucket or (kind is KEY_VALUE and state.max_msgs_per_subject <= 0 and not mirrored):
        raise OptionError(
            f"stream {state.name} is no {kind.words} (option {kind.option}): read it with option stream",
            option=kind.option,
        )
    # What comes from another bucket keeps the subjects it has there, which may come from a third one in turn.
    prefix = f"{kind.subjects}.{'*' if mirrored or config.get('sources') else name}"
    if kind is OBJECT_STORE:
        return SourceBucket(state, (f"{prefix}.M.>",))
    return SourceBucket(state, tuple(f"{prefix}.{key}" for key in keys))


__all__ = ["KEY_VALUE", "OBJECT_STORE", "BucketKind", "SourceBucket", "find_bucket", "read_bucket"]
