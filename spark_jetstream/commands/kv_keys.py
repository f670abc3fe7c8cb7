"""``spark-jetstream kv``: reading, writing and watching the keys of a bucket."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_jetstream.commands.arguments import DURATION, Force
from spark_jetstream.commands.buckets import Count, Deletes, UpdatesOnly, Wait, print_changes
from spark_jetstream.commands.framework import Run, alone, command
from spark_jetstream.commands.kv_arguments import BucketName, Filters, Key, OnlyAfter, Value, value_bytes
from spark_jetstream.commands.kv_text import entry_data, entry_text, print_entries
from spark_jetstream.commands.message_text import content_text
from spark_jetstream.units import Nanoseconds

keys = alone()

Ttl = Annotated[
    str | None,
    typer.Option("--ttl", metavar="DURATION", help="How long it stays; needs --limit-marker-ttl of the bucket."),
]
# A deletion is a revision like others, so nobody is asked.
Unasked = Annotated[bool, typer.Option("--force", "-f", hidden=True)]


# Reading


@command(keys, "get", example="kv get settings eu.colour --raw")
def get(
    run: Run,
    bucket: BucketName,
    key: Key,
    revision: Annotated[int | None, typer.Option(min=1, help="Its value at this revision.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print the value and nothing else.", show_default=False)] = False,
    direct: Annotated[
        bool,
        typer.Option("--direct", help="Let any server answer that has a copy; it may be behind.", show_default=False),
    ] = False,
) -> None:
    """The value of a key. One that was deleted, or never was, ends with 1."""
    entry = run.admin.kv.bucket(bucket).get(key, revision=revision, direct=direct)
    if raw:
        run.out.raw(entry.value)
        return
    run.out.text(f"{key} of bucket {bucket}, revision {entry.revision}, {entry.created}", style="bold")
    run.out.done(content_text(entry.value), **entry_data(entry))


@command(keys, "history", example="kv history settings eu.colour")
def history(run: Run, bucket: BucketName, key: Key) -> None:
    """All revisions of a key that the bucket keeps, deletions included."""
    print_entries(run, run.admin.kv.bucket(bucket).history(key), "")


@command(keys, "watch", example="kv watch settings 'eu.>' --updates-only")
def watch(
    run: Run,
    bucket: BucketName,
    filters: Filters = None,
    history: Annotated[
        bool, typer.Option("--history", help="Begin with all revisions that are kept.", show_default=False)
    ] = False,
    updates_only: UpdatesOnly = False,
    deletes: Deletes = True,
    count: Count = None,
    timeout: Wait = None,
) -> None:
    """The values of the keys, and then every change as it happens, a line each. Ends with Ctrl-C."""
    found = run.admin.kv.bucket(bucket).watch(
        *filters or (),
        history=history,
        updates_only=updates_only,
        include_deletes=deletes,
        timeout=None if timeout is None else timeout / 1e9,
    )
    print_changes(run, found, entry_text, data=entry_data, count=count, timeout=timeout)


# Writing


@command(keys, "put", example="kv put settings eu.colour blue")
def put(run: Run, bucket: BucketName, key: Key, value: Value = "-") -> None:
    """Give a key a value, whatever it had before."""
    revision = run.admin.kv.bucket(bucket).put(key, value_bytes(value))
    _stored(run, bucket, key, revision)


@command(keys, "create", example="kv create settings eu.colour blue")
def create(run: Run, bucket: BucketName, key: Key, value: Value = "-", ttl: Ttl = None) -> None:
    """Give a value to a key that has none; one that has ends with 1."""
    revision = run.admin.kv.bucket(bucket).create(key, value_bytes(value), ttl=ttl)
    _stored(run, bucket, key, revision)


@command(keys, "update", example="kv update settings eu.colour red --revision 7")
def update(
    run: Run,
    bucket: BucketName,
    key: Key,
    value: Value = "-",
    *,
    revision: Annotated[int, typer.Option(min=1, help="The key's latest revision; if it has another one, it stays.")],
) -> None:
    """Give a key a value unless somebody else was quicker, which ends with 1."""
    _stored(run, bucket, key, run.admin.kv.bucket(bucket).update(key, value_bytes(value), revision))


@command(keys, "revert", example="kv revert settings eu.colour 7")
def revert(
    run: Run,
    bucket: BucketName,
    key: Key,
    revision: Annotated[int, typer.Argument(min=1, help="The revision whose value is put once more.")],
) -> None:
    """Put the value once more that a key had at a revision."""
    _stored(run, bucket, key, run.admin.kv.bucket(bucket).revert(key, revision))


def _stored(run: Run, bucket: str, key: str, revision: int) -> None:
    run.out.done(f"key {key} of bucket {bucket} has revision {revision:,}", bucket=bucket, key=key, revision=revision)


# Removing


@command(keys, "del", example="kv del settings eu.colour")
def delete(run: Run, bucket: BucketName, key: Key, revision: OnlyAfter = None, force: Unasked = False) -> None:
    """Mark a key as deleted. What it had before stays as history, as far as the bucket keeps any."""
    found = run.admin.kv.bucket(bucket).delete(key, revision=revision)
    said = f"key {key} of bucket {bucket} was deleted, revision {found:,}"
    run.out.done(said, bucket=bucket, key=key, revision=found, deleted=True)


@command(keys, "purge", example="kv purge settings eu.colour")
def purge(
    run: Run, bucket: BucketName, key: Key, revision: OnlyAfter = None, ttl: Ttl = None, force: Force = False
) -> None:
    """Mark a key as purged, and remove all that it had before."""
    run.out.confirm(f"Purge key {key} of bucket {bucket}, with its history?", force=force)
    found = run.admin.kv.bucket(bucket).purge(key, revision=revision, ttl=ttl)
    said = f"key {key} of bucket {bucket} was purged, revision {found:,}"
    run.out.done(said, bucket=bucket, key=key, revision=found, purged=True)


@command(keys, "compact", example="kv compact settings --older-than 1d")
def compact(
    run: Run,
    bucket: BucketName,
    older_than: Annotated[
        Nanoseconds, typer.Option("--older-than", help="Leave marks that are younger than this.", **DURATION)
    ] = Nanoseconds.of("30m"),  # noqa: B008  # a constant
    force: Force = False,
) -> None:
    """Remove the marks of keys that were deleted or purged, and what these had before."""
    run.out.confirm(f"Remove the marks of deleted keys from bucket {bucket}, with their history?", force=force)
    found = run.admin.kv.bucket(bucket).purge_deletes(older_than)
    run.out.done(f"{found:,} keys were removed from bucket {bucket} for good", bucket=bucket, removed=found)
