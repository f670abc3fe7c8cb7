"""Object Store buckets and objects, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from spark_jetstream.admin.object_infos import ObjectInfo
from spark_jetstream.admin.object_models import ObjectBucketConfig, ObjectBucketInfo
from spark_jetstream.commands.buckets import setting_data, setting_words
from spark_jetstream.commands.framework import Run
from spark_jetstream.commands.output import as_data
from spark_jetstream.commands.showing import to_the_second
from spark_jetstream.errors import LAYOUT, printable


def bucket_data(info: ObjectBucketInfo) -> dict[str, Any]:
    """A bucket as JSON: durations in nanoseconds, sizes in bytes; ``stream`` is all that the API says."""
    settings = setting_data(info, ObjectBucketConfig.model_fields)
    held = {"bucket": info.bucket, "size": info.size, "created": info.created, "sealed": info.sealed}
    return {**held, **settings, "stream": as_data(info.stream)}


def print_buckets(run: Run, found: Iterable[ObjectBucketInfo]) -> None:
    """A row for each; as JSON, `bucket_data`."""
    run.out.table(
        found,
        {
            "bucket": lambda info: info.bucket,
            "description": lambda info: info.description,
            "size": lambda info: info.size,
            "storage": lambda info: info.storage,
            "ttl": lambda info: info.ttl or "",
            "created": lambda info: to_the_second(info.created),
            "": lambda info: "sealed" if info.sealed else "",
        },
        data=bucket_data,
        empty="there are no Object Store buckets",
    )


def print_bucket(run: Run, info: ObjectBucketInfo) -> None:
    """How it is set up, and what it holds; as JSON, `bucket_data`."""
    pairs = setting_words(info, ObjectBucketConfig.model_fields, {"size": info.size})
    run.out.record(pairs, data=bucket_data(info), title=f"Object Store bucket {info.bucket}")


def print_objects(run: Run, found: Iterable[ObjectInfo], empty: str) -> None:
    """A row for each; as JSON, `ObjectInfo.data`."""
    run.out.table(
        found,
        {
            "name": lambda info: printable(info.name),
            "size": lambda info: info.size,
            "modified": lambda info: to_the_second(info.modified),
            "": _kind,
        },
        data=ObjectInfo.data,
        empty=empty,
    )


def print_object(run: Run, info: ObjectInfo) -> None:
    """All that is known of an object; as JSON, `ObjectInfo.data`."""
    content = info.link is None and not info.deleted
    pairs = {
        "": _kind(info),
        "description": printable(info.description, LAYOUT),
        "size": f"{int(info.size):,} bytes" if content else "",
        "chunks": f"{info.chunks:,}" if content else "",
        "digest": info.digest,
        "modified": info.modified,
        "headers": {name: list(values) for name, values in info.headers.items()},
        "metadata": dict(info.metadata),
    }
    run.out.record(pairs, data=info.data(), title=f"{printable(info.name)} in bucket {info.bucket}")


def object_text(info: ObjectInfo) -> str:
    """An object in a line."""
    kind = _kind(info)
    return f"{info.modified} {printable(info.name)}: {kind or f'{int(info.size):,} bytes'}"


def _kind(info: ObjectInfo) -> str:
    if info.deleted:
        return "deleted"
    if info.link is None:
        return ""
    bucket, name = info.link
    return f"link to {printable(name)} of bucket {bucket}" if name else f"link to bucket {bucket}"
