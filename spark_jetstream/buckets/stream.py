"""The stream of a bucket, and what a read asks it for.

The layouts are those of ADR-8 and ADR-20.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from spark_jetstream.buckets.kv import STREAM_PREFIX
from spark_jetstream.buckets.objects import STREAM_PREFIX as OBJECT_PREFIX
from spark_jetstream.buckets.objects import meta_filter
from spark_jetstream.client.requests import Requests, settled_info
from spark_jetstream.errors import OptionError, StreamNotFound
from spark_jetstream.options import advice
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.stream import StreamSummary, stream_summary
from spark_jetstream.streams.lookup import nearest_stream


def find_bucket(
    requests: Requests, name: str, keys: Sequence[str] | None
) -> tuple[StreamSummary, tuple[str, ...]]:
    """Return the state of the stream of a bucket, and the subject filters of a read (empty: all).

    ``keys`` is as `bucket_filters` has it. Sends one STREAM.INFO, and more if a server answers that
    no majority follows. Raises `OptionError` if the bucket does not exist, and what `settled_info`
    raises.
    """
    if keys is None:
        prefix, kind = OBJECT_PREFIX, "Object Store bucket"
    else:
        prefix, kind = STREAM_PREFIX, "Key-Value bucket"
    stream = f"{prefix}{name}"
    named_by = f"({advice.NAMED_BY[prefix]})"
    option = advice.STREAM_OPTIONS[prefix]
    context = f"read {kind} {name} {named_by}"
    try:
        body = requests.ask(jsapi.STREAM_INFO, stream, context=context)
        state = stream_summary(body, context)
        if not state.followed:
            state = requests.call(partial(settled_info, name=stream, context=context))
    except StreamNotFound:
        hint = nearest_stream(requests.connect, [stream], prefix, options=True)
        text = f"there is no {kind} {name} {named_by}: no stream {stream}{hint}"
        raise OptionError(text, option=option) from None
    config = body.get("config", {})
    subjects = bucket_filters(config, state.subjects, state.max_msgs_per_subject, name, keys)
    if subjects is None:
        raise OptionError(
            f"stream {stream} is no {kind} {named_by}: read it with {advice.NAMED_BY['']}",
            option=option,
        )
    return state, subjects


def bucket_filters(
    config: Mapping[str, Any],
    subjects: Sequence[str],
    per_subject: int,
    name: str,
    keys: Sequence[str] | None,
) -> tuple[str, ...] | None:
    """Return the filters of a bucket, None if the stream is none.

    ``config`` needs ``mirror`` and ``sources``; ``per_subject`` is ``max_msgs_per_subject``.
    ``keys`` are those of a Key-Value bucket, empty for all; None for an Object Store bucket.
    """
    mirror = config.get("mirror") or {}
    # Messages of another bucket keep their subjects, and that bucket may have them from a third
    # one.
    bucket = "*" if mirror or config.get("sources") else name
    if keys is None:
        if not _is_filled_with(config, subjects, OBJECT_PREFIX, f"$O.{name}."):
            return None
        return (meta_filter(bucket),)
    keeps_keys = bool(mirror) or per_subject > 0
    if not keeps_keys or not _is_filled_with(config, subjects, STREAM_PREFIX, f"$KV.{name}."):
        return None
    return tuple([f"$KV.{bucket}.{key}" for key in keys])


def _is_filled_with(
    config: Mapping[str, Any], subjects: Sequence[str], prefix: str, begin: str
) -> bool:
    """Whether a stream has only messages of buckets of one kind.

    The names of their streams begin with ``prefix``, and the subjects of this one with ``begin``.
    """
    mirror = config.get("mirror") or {}
    if mirror:
        return str(mirror.get("name", "")).startswith(prefix)
    return _takes_only(subjects, begin, config)


def _takes_only(subjects: Sequence[str], begin: str, config: Mapping[str, Any]) -> bool:
    """Whether all messages of a stream have subjects that begin so, or those of other buckets."""
    if not subjects:
        # A bucket that is filled from others may have no subjects of its own.
        return bool(config.get("sources"))
    return all(subject.startswith(begin) for subject in subjects)
