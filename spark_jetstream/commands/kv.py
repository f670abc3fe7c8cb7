"""``spark-jetstream kv``: Key-Value buckets; what is done with their keys is in ``kv_keys``."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from spark_jetstream.admin.kv_models import BucketConfig
from spark_jetstream.commands.applying import DryRun, created
from spark_jetstream.commands.arguments import Force
from spark_jetstream.commands.buckets import NewBucket, edit_bucket, remove_bucket
from spark_jetstream.commands.fields import with_fields
from spark_jetstream.commands.framework import Run, command, group
from spark_jetstream.commands.kv_arguments import BucketName, Filters, complete_bucket
from spark_jetstream.commands.kv_keys import keys
from spark_jetstream.commands.kv_text import print_bucket, print_buckets, print_entries
from spark_jetstream.commands.showing import print_names

kv = group("kv", "Key-Value buckets: create, change, read, write, watch, remove.")


@command(kv, "ls", example="kv ls settings 'eu.>' --verbose")
def show_all(
    run: Run,
    bucket: Annotated[
        str | None, typer.Argument(help="A bucket, to list its keys.", autocompletion=complete_bucket)
    ] = None,
    filters: Filters = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the values, too.", show_default=False)] = False,
) -> None:
    """The buckets; or the keys of one that have a value, in the order in which they were written."""
    if bucket is None:
        print_buckets(run, run.admin.kv.infos())
        return
    empty = f"bucket {bucket} has no such keys" if filters else f"bucket {bucket} has no keys"
    found = run.admin.kv.bucket(bucket)
    if verbose:
        print_entries(run, found.entries(*filters or ()), empty)
    else:
        print_names(run, found.keys(*filters or ()), empty)


@command(kv, "info", example="kv info settings")
def info(run: Run, bucket: BucketName) -> None:
    """How a bucket is set up, and what it holds."""
    print_bucket(run, run.admin.kv.load(bucket))


@command(kv, "add", example="kv add settings --history 5 --ttl 30d --replicas 3")
@with_fields(BucketConfig)
def add(run: Run, bucket: NewBucket, *, fields: dict[str, Any]) -> None:
    """Create a bucket. One that exists with this configuration stays as it is; one that is different is an error."""
    buckets = run.admin.kv
    make = partial(buckets.create, bucket, fields)
    print_bucket(run, created(run, f"bucket {bucket}", partial(buckets.load, bucket), make))


@command(kv, "edit", example="kv edit settings --history 10 --unset ttl")
@with_fields(BucketConfig, without=("storage", "mirror"), unset=True)
def edit(
    run: Run, bucket: BucketName, dry_run: DryRun = False, force: Force = False, *, fields: dict[str, Any]
) -> None:
    """Change a bucket, after showing what changes of its stream, and asking.

    What you do not name stays as it is. A smaller history or a shorter ttl removes revisions at once.
    """
    edit_bucket(run, run.admin.kv, bucket, fields, force=force, dry_run=dry_run)


@command(kv, "rm", example="kv rm settings")
def remove(run: Run, bucket: BucketName, force: Force = False) -> None:
    """Delete a bucket with all its keys."""
    found = run.admin.kv.load(bucket)
    remove_bucket(run, run.admin.kv, bucket, f"{found.values:,} values", force=force)


kv.add_typer(keys)
