"""Key-Value buckets and the revisions of their keys, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from spark_jetstream.admin.kv_entries import Entry
from spark_jetstream.admin.kv_models import BucketInfo
from spark_jetstream.commands.buckets import limit, setting_data, setting_words
from spark_jetstream.commands.framework import Run
from spark_jetstream.commands.message_text import content_data, content_text
from spark_jetstream.commands.output import as_data
from spark_jetstream.commands.showing import to_the_second
from spark_jetstream.kv import STREAM_PREFIX

_SETTINGS = (
    "description", "history", "ttl", "max_value_size", "max_bytes", "storage", "replicas", "compression",
    "limit_marker_ttl", "metadata", "placement", "republish", "mirror", "sources",
)  # fmt: skip


def bucket_data(info: BucketInfo) -> dict[str, Any]:
    """A bucket as JSON: durations in nanoseconds, sizes in bytes; ``stream`` is all that the API says."""
    counts = {"bucket": info.bucket, "values": info.values, "bytes": info.bytes, "created": info.created}
    return {**counts, **setting_data(info, _SETTINGS), "sealed": info.sealed, "stream": as_data(info.stream)}


def print_buckets(run: Run, found: Iterable[BucketInfo]) -> None:
    """A row for each; as JSON, `bucket_data`."""
    run.out.table(
        found,
        {
            "bucket": lambda info: info.bucket,
            "description": lambda info: info.description,
            "values": lambda info: info.values,
            "size": lambda info: info.bytes,
            "history": lambda info: info.history,
            "ttl": lambda info: info.ttl or "",
            "created": lambda info: to_the_second(info.created),
            "": _copies,
        },
        data=bucket_data,
        empty="there are no Key-Value buckets",
    )


def print_bucket(run: Run, info: BucketInfo) -> None:
    """How it is set up, and what it holds; as JSON, `bucket_data`."""
    more = {
        "max value size": limit(info.max_value_size),
        "limit marker ttl": info.limit_marker_ttl or "",
        "mirror": _copies(info) if info.mirror else "",
        "sources": "" if info.mirror else _copies(info),
        "values": f"{info.values:,}",
        "size": info.bytes,
    }
    pairs = setting_words(info, _SETTINGS, more)
    run.out.record(pairs, data=bucket_data(info), title=f"Key-Value bucket {info.bucket}")


def _copies(info: BucketInfo) -> str:
    found = [info.mirror] if info.mirror else info.sources
    names = ", ".join(each.name.removeprefix(STREAM_PREFIX) for each in found)
    return f"{'mirror of' if info.mirror else 'from'} {names}" if names else ""


def entry_data(entry: Entry) -> dict[str, Any]:
    """A revision as JSON: ``value`` is text where it is UTF-8, else base64, as ``encoding`` says; without a value in it
    both are null."""
    content: dict[str, Any] = content_data("value", entry.value) if entry.live else {"value": None, "encoding": None}
    return {
        "bucket": entry.bucket,
        "key": entry.key,
        "revision": entry.revision,
        "operation": entry.operation,
        "created": entry.created,
        **content,
    }


def entry_text(entry: Entry) -> str:
    """A revision in a line."""
    said = f"{entry.created} {entry.operation} {entry.key} (revision {entry.revision})"
    return f"{said}: {content_text(entry.value)}" if entry.live else said


def print_entries(run: Run, found: Iterable[Entry], empty: str) -> None:
    """A row for each revision; as JSON, `entry_data`."""
    run.out.table(
        found,
        {
            "key": lambda entry: entry.key,
            "revision": lambda entry: entry.revision,
            "operation": lambda entry: entry.operation,
            "created": lambda entry: to_the_second(entry.created),
            "value": lambda entry: content_text(entry.value) if entry.live else "",
        },
        data=entry_data,
        empty=empty,
    )
