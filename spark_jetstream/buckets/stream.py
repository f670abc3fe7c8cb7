"""The stream of a bucket, and what a read asks it for. The layouts are those of ADR-8 and ADR-20."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from spark_jetstream.client.requests import Requests, settled_info
from spark_jetstream.errors import OptionError, StreamNotFound
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.stream import StreamSummary, stream_summary
from spark_jetstream.streams.lookup import nearest_stream


def find_bucket(
    requests: Requests, options: SourceOptions
) -> tuple[StreamSummary, tuple[str, ...]]:
    """Return the state of the stream of the options' bucket, and the subject filters of the read (empty: all).

    Sends one STREAM.INFO, and more if a server answers that no majority follows. Raises `OptionError` if there is no
    such bucket, and what `settled_info` raises.
    """
    key_value = options.bucket is not None
    option, kind = (
        ("bucket", "Key-Value bucket") if key_value else ("objectBucket", "Object Store bucket")
    )
    stream = options.read_streams[0]
    name = options.named(stream)
    context = f"read {kind} {name} (option {option})"
    try:
        body = requests.ask(jsapi.STREAM_INFO, stream, context=context)
        state = stream_summary(body, context)
        if not state.followed:
            state = requests.call(partial(settled_info, name=stream, context=context))
    except StreamNotFound:
        hint = nearest_stream(requests.connect, [stream], stream.removesuffix(name), options=True)
        text = f"there is no {kind} {name} (option {option}): no stream {stream}{hint}"
        raise OptionError(text, option=option) from None
    keys = options.keys if key_value else None
    subjects = bucket_filters(
        body.get("config", {}), state.subjects, state.max_msgs_per_subject, name, keys
    )
    if subjects is None:
        raise OptionError(
            f"stream {stream} is no {kind} (option {option}): read it with option stream",
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

    ``config`` needs ``mirror`` and ``sources``; ``per_subject`` is ``max_msgs_per_subject``. ``keys``: of a Key-Value
    bucket, empty for all, None for an Object Store bucket.
    """
    begin = "$O" if keys is None else "$KV"
    mirror = config.get("mirror") or {}
    if mirror:
        of_kind = "OBJ_" if keys is None else "KV_"
        is_bucket = str(mirror.get("name", "")).startswith(of_kind)
    else:
        keeps_keys = keys is None or per_subject > 0
        is_bucket = keeps_keys and _takes_only(subjects, f"{begin}.{name}.", config)
    if not is_bucket:
        return None
    # Messages from another bucket keep the subjects they have there, and that bucket may have them from a third one.
    bucket = "*" if mirror or config.get("sources") else name
    if keys is None:
        return (f"{begin}.{bucket}.M.>",)
    return tuple([f"{begin}.{bucket}.{key}" for key in keys])


def _takes_only(subjects: Sequence[str], begin: str, config: Mapping[str, Any]) -> bool:
    """Whether all messages of a stream have subjects that begin so, or those of other buckets."""
    if not subjects:
        # A bucket that is filled from others may have no subjects of its own.
        return bool(config.get("sources"))
    return all(subject.startswith(begin) for subject in subjects)
