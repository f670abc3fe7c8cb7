"""``spark-jetstream kv``: the commands about Key-Value buckets and their keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from spark_jetstream.cli import buckets
from spark_jetstream.cli.app import Run, command, group
from spark_jetstream.cli.arguments import (
    DryRun,
    Force,
    Raw,
    completion,
    duration_option,
    whole_data,
    with_fields,
)
from spark_jetstream.cli.output import content_data, content_text, to_the_second, were
from spark_jetstream.protocol.units import Nanoseconds, counted, sized

if TYPE_CHECKING:
    from spark_jetstream.admin.client import JetStreamAdmin
    from spark_jetstream.admin.models.kv import BucketInfo, Entry

_SETTINGS = (
    "description", "history", "ttl", "max_value_size", "max_bytes", "storage", "replicas",
    "compression", "limit_marker_ttl", "metadata", "placement", "republish", "mirror", "sources",
)  # fmt: skip


def _bucket_data(info: BucketInfo) -> dict[str, Any]:
    names = ("bucket", "values", "bytes", "created", *_SETTINGS, "sealed", "stream")
    return {name: getattr(info, name) for name in names}


def _print_bucket(run: Run, info: BucketInfo) -> None:
    # A bucket has one or the other: a stream cannot be a mirror and have sources.
    origins = "mirror" if info.mirror else "sources"
    more = {
        "max value size": buckets.limit(info.max_value_size),
        "limit marker ttl": info.limit_marker_ttl or "",
        # In place of their values, which are configurations of streams.
        "mirror": "",
        "sources": "",
        origins: _copies(info),
        "revisions": info.values,
        "size": sized(info.bytes),
    }
    buckets.show(run, info, _SETTINGS, more, data=_bucket_data(info))


def _copies(info: BucketInfo) -> str:
    """Return the buckets whose keys a bucket copies."""
    from spark_jetstream.buckets.kv import STREAM_PREFIX

    if info.mirror:
        return f"mirror of {info.mirror.name.removeprefix(STREAM_PREFIX)}"
    names = ", ".join(origin.name.removeprefix(STREAM_PREFIX) for origin in info.sources)
    return f"from {names}" if names else ""


def _entry_data(entry: Entry) -> dict[str, Any]:
    """Return a revision for JSON. A deletion has neither ``value`` nor ``encoding``."""
    content: dict[str, Any] = {"value": None, "encoding": None}
    # A deletion has an empty value, which is not the value "".
    if entry.live:
        content = content_data("value", entry.value)
    return {
        "bucket": entry.bucket,
        "key": entry.key,
        "revision": entry.revision,
        "operation": entry.operation,
        "created": entry.created,
        **content,
    }


def _entry_text(entry: Entry) -> str:
    line = f"{entry.created} {entry.operation} {entry.key} (revision {entry.revision})"
    return f"{line}: {content_text(entry.value)}" if entry.live else line


def _entry_row(entry: Entry) -> dict[str, object]:
    return {
        "key": entry.key,
        "revision": entry.revision,
        "operation": entry.operation,
        "created": to_the_second(entry.created),
        "value": content_text(entry.value) if entry.live else "",
    }


def _print_entries(run: Run, entries: Iterable[Entry], empty: str) -> None:
    run.out.table(entries, _entry_row, data=_entry_data, empty=empty)


def _bucket_row(info: BucketInfo) -> dict[str, object]:
    return {
        "bucket": info.bucket,
        "description": info.description,
        "revisions": info.values,
        "size": info.bytes,
        "history": info.history,
        "ttl": info.ttl or "",
        "created": to_the_second(info.created),
        "": _copies(info),
    }


def _bucket_names(admin: JetStreamAdmin, given: dict[str, Any]) -> Iterator[str]:
    return admin.kv.names()


def _keys(admin: JetStreamAdmin, given: dict[str, Any]) -> Iterator[str]:
    return admin.kv.bucket(given.get("bucket", "")).keys()


bucket_argument = partial(Argument, autocompletion=completion(_bucket_names))
_complete_key = completion(_keys)

BucketName = Annotated[str, bucket_argument(help="Name of the bucket.")]
Key = Annotated[str, Argument(help="The key.", autocompletion=_complete_key)]
Filters = Annotated[
    list[str] | None,
    Argument(help="Only keys that match one of these; * is one token, > is the rest."),
]
Value = Annotated[
    str,
    Argument(
        help="The value; - for what standard input holds. Put it after --, if it begins with a "
        "dash.",
    ),
]
OnlyAfter = Annotated[
    int | None,
    Option("--revision", min=1, help="Only if this is the key's latest revision."),
]


Ttl = Annotated[
    str | None,
    Option(metavar="DURATION", help="How long it stays; needs --limit-marker-ttl of the bucket."),
]
# The default of PurgeDeletes in nats.go.
_YOUNG = Nanoseconds.of("30m")
# A deletion is a revision like others, so the command does not ask.
Unasked = Annotated[bool, Option("--force", "-f", hidden=True)]

kv = group("kv", "Key-Value buckets: create, change, read, write, watch, remove.")

# Buckets


@command(kv, "ls", example="kv ls settings 'eu.>' --verbose")
def show_all(
    run: Run,
    bucket: Annotated[str | None, bucket_argument(help="A bucket, to list its keys.")] = None,
    filters: Filters = None,
    verbose: Annotated[bool, Option("--verbose", "-v", help="Show the values, too.")] = False,
) -> None:
    """List the buckets, or the keys of a bucket that have a value, in the order in which they were written."""
    if bucket is None:
        infos = run.admin.kv.infos()
        empty = "there are no Key-Value buckets"
        run.out.table(infos, _bucket_row, data=_bucket_data, empty=empty)
        return
    empty = f"bucket {bucket} has no matching keys" if filters else f"bucket {bucket} has no keys"
    opened = run.admin.kv.bucket(bucket)
    if verbose:
        _print_entries(run, opened.entries(*filters or ()), empty)
    else:
        run.out.names(opened.keys(*filters or ()), empty)


@command(kv, "info", example="kv info settings")
def info(run: Run, bucket: BucketName) -> None:
    """Show the configuration of a bucket, and how much it holds."""
    _print_bucket(run, run.admin.kv.load(bucket))


@command(kv, "add", example="kv add settings --history 5 --ttl 30d --replicas 3")
@with_fields("kv", buckets.COMMON_SETTINGS, creates=True)
def add(run: Run, bucket: buckets.NewBucket, *, fields: dict[str, Any]) -> None:
    """Create a bucket.

    One that exists with this configuration stays as it is; one that is different is an error.
    """
    _print_bucket(run, buckets.create(run, run.admin.kv, bucket, fields))


@command(kv, "edit", example="kv edit settings --history 10 --unset ttl")
@with_fields("kv", buckets.COMMON_SETTINGS, without=("storage", "mirror"))
def edit(
    run: Run,
    bucket: BucketName,
    dry_run: DryRun = False,
    force: Force = False,
    *,
    fields: dict[str, Any],
) -> None:
    """Change a bucket, after showing what changes of its stream, and asking.

    Fields that you do not name stay as they are. A smaller history or a shorter ttl removes
    revisions at once.
    """
    buckets.edit(run, run.admin.kv, bucket, fields, force=force, dry_run=dry_run)


@command(kv, "rm", example="kv rm settings")
def remove(run: Run, bucket: BucketName, force: Force = False) -> None:
    """Delete a bucket with all its keys."""
    values = run.admin.kv.load(bucket).values
    buckets.remove(run, run.admin.kv, bucket, counted(values, "revision"), force=force)


# Keys


@command(kv, "get", example="kv get settings eu.colour --raw")
def get(
    run: Run,
    bucket: BucketName,
    key: Key,
    revision: Annotated[int | None, Option(min=1, help="Its value at this revision.")] = None,
    raw: Raw = False,
    direct: Annotated[
        bool, Option("--direct", help="Let any server answer that has a copy; it may be behind.")
    ] = False,
) -> None:
    """Print the value of a key. Ends with 1 if the key was deleted or never existed."""
    run.out.check_raw(raw)
    entry = run.admin.kv.bucket(bucket).get(key, revision=revision, direct=direct)
    if raw:
        run.out.raw(entry.value)
        return
    run.out.text(
        f"{key} of bucket {bucket}, revision {entry.revision}, {entry.created}",
        style="bold",
    )
    run.out.done(content_text(entry.value), **_entry_data(entry))


@command(kv, "history", example="kv history settings eu.colour")
def history(run: Run, bucket: BucketName, key: Key) -> None:
    """List all revisions of a key that the bucket keeps, deletions included."""
    _print_entries(run, run.admin.kv.bucket(bucket).history(key), "")


@command(kv, "watch", example="kv watch settings 'eu.>' --updates-only")
def watch(
    run: Run,
    bucket: BucketName,
    filters: Filters = None,
    history: Annotated[
        bool,
        Option("--history", help="Begin with all revisions that are kept."),
    ] = False,
    updates_only: buckets.UpdatesOnly = False,
    deletes: buckets.Deletes = True,
    count: buckets.Count = None,
    timeout: buckets.Wait = None,
) -> None:
    """Print the values of the keys, then every change as it happens, one a line.

    Ends with Ctrl-C.
    """
    opened = run.admin.kv.bucket(bucket)
    begin = partial(
        opened.watch,
        *filters or (),
        history=history,
        updates_only=updates_only,
        include_deletes=deletes,
    )
    buckets.print_changes(run, begin, _entry_text, data=_entry_data, count=count, timeout=timeout)


@command(kv, "put", example="kv put settings eu.colour blue")
def put(run: Run, bucket: BucketName, key: Key, value: Value = "-") -> None:
    """Store a value under a key, whatever it had before."""
    _done(run, bucket, key, run.admin.kv.bucket(bucket).put(key, whole_data(value)))


@command(kv, "create", example="kv create settings eu.colour blue")
def create(run: Run, bucket: BucketName, key: Key, value: Value = "-", ttl: Ttl = None) -> None:
    """Store a value under a key that has none. Ends with 1 if the key has one."""
    _done(run, bucket, key, run.admin.kv.bucket(bucket).create(key, whole_data(value), ttl=ttl))


@command(kv, "update", example="kv update settings eu.colour red --revision 7")
def update(
    run: Run,
    bucket: BucketName,
    key: Key,
    value: Value = "-",
    *,
    revision: Annotated[
        int,
        Option(min=1, help="The revision that must be the latest of the key."),
    ],
) -> None:
    """Store a value under a key if its latest revision is the given one.

    Ends with 1 if it is not.
    """
    _done(run, bucket, key, run.admin.kv.bucket(bucket).update(key, whole_data(value), revision))


@command(kv, "revert", example="kv revert settings eu.colour 7")
def revert(
    run: Run,
    bucket: BucketName,
    key: Key,
    revision: Annotated[int, Argument(min=1, help="The revision whose value is stored again.")],
) -> None:
    """Store the value again that a key had at a revision."""
    _done(run, bucket, key, run.admin.kv.bucket(bucket).revert(key, revision))


def _done(run: Run, bucket: str, key: str, revision: int, verb: str = "has", **more: bool) -> None:
    sentence = f"key {key} of bucket {bucket} {verb} revision {revision:,}"
    run.out.done(sentence, bucket=bucket, key=key, revision=revision, **more)


@command(kv, "del", example="kv del settings eu.colour")
def delete(
    run: Run,
    bucket: BucketName,
    key: Key,
    revision: OnlyAfter = None,
    force: Unasked = False,
) -> None:
    """Mark a key as deleted. Its earlier revisions stay, as far as the bucket keeps history."""
    deletion = run.admin.kv.bucket(bucket).delete(key, revision=revision)
    _done(run, bucket, key, deletion, "was deleted,", deleted=True)


@command(kv, "purge", example="kv purge settings eu.colour")
def purge(
    run: Run,
    bucket: BucketName,
    key: Key,
    revision: OnlyAfter = None,
    ttl: Ttl = None,
    force: Force = False,
) -> None:
    """Mark a key as purged, and remove its earlier revisions."""
    # A purge removes earlier values, which a deletion keeps.
    run.out.confirm(f"Purge key {key} of bucket {bucket}, with its history?", force=force)
    deletion = run.admin.kv.bucket(bucket).purge(key, revision=revision, ttl=ttl)
    _done(run, bucket, key, deletion, "was purged,", purged=True)


@command(kv, "compact", example="kv compact settings --older-than 1d")
def compact(
    run: Run,
    bucket: BucketName,
    older_than: Annotated[
        Nanoseconds,
        duration_option(help="Leave marks that are younger than this."),
    ] = _YOUNG,
    force: Force = False,
) -> None:
    """Remove the marks of deleted and purged keys, with the earlier revisions of these keys."""
    run.out.confirm(
        f"Remove the marks of deleted keys from bucket {bucket}, with their history?",
        force=force,
    )
    removed = run.admin.kv.bucket(bucket).purge_deletes(older_than)
    sentence = f"{counted(removed, 'key')} {were(removed)} removed from bucket {bucket} for good"
    run.out.done(sentence, bucket=bucket, removed=removed)
