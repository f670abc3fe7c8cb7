"""``spark-jetstream object``: Object Store buckets; what is done with single objects is in ``object_content``."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from spark_jetstream.admin.object_models import ObjectBucketConfig
from spark_jetstream.commands.applying import DryRun, created
from spark_jetstream.commands.arguments import Force
from spark_jetstream.commands.buckets import NewBucket, edit_bucket, remove_bucket
from spark_jetstream.commands.fields import with_fields
from spark_jetstream.commands.framework import Run, command, group
from spark_jetstream.commands.object_arguments import BucketName, Deleted, MaybeName, complete_bucket
from spark_jetstream.commands.object_content import content
from spark_jetstream.commands.object_text import print_bucket, print_buckets, print_object, print_objects

objects = group("object", "Object Store buckets: create, change, put and get files, watch, remove.")


@command(objects, "ls", example="object ls IMAGES")
def show_all(
    run: Run,
    bucket: Annotated[
        str | None, typer.Argument(help="A bucket, to list its objects.", autocompletion=complete_bucket)
    ] = None,
    deleted: Deleted = False,
) -> None:
    """The buckets; or the objects and links of one, sorted by name."""
    if bucket is None:
        print_buckets(run, run.admin.objects.infos())
        return
    found = sorted(run.admin.objects.bucket(bucket).list(deleted=deleted), key=lambda info: info.name)
    print_objects(run, found, f"bucket {bucket} has no objects")


@command(objects, "info", example="object info IMAGES cat.jpg")
def info(run: Run, bucket: BucketName, name: MaybeName = None, deleted: Deleted = False) -> None:
    """How a bucket is set up, and its size; or all that is known of an object. A link is not followed."""
    if name is None:
        print_bucket(run, run.admin.objects.load(bucket))
    else:
        print_object(run, run.admin.objects.bucket(bucket).info(name, deleted=deleted))


@command(objects, "add", example="object add IMAGES --ttl 30d --max-bytes 10g --replicas 3")
@with_fields(ObjectBucketConfig)
def add(run: Run, bucket: NewBucket, *, fields: dict[str, Any]) -> None:
    """Create a bucket. One that exists with this configuration stays as it is; one that is different is an error."""
    buckets = run.admin.objects
    make = partial(buckets.create, bucket, fields)
    print_bucket(run, created(run, f"bucket {bucket}", partial(buckets.load, bucket), make))


@command(objects, "edit", example="object edit IMAGES --max-bytes 20g --unset ttl")
@with_fields(ObjectBucketConfig, without=("storage",), unset=True)
def edit(
    run: Run, bucket: BucketName, dry_run: DryRun = False, force: Force = False, *, fields: dict[str, Any]
) -> None:
    """Change a bucket, after showing what changes of its stream, and asking.

    What you do not name stays as it is. A shorter ttl removes objects at once.
    """
    edit_bucket(run, run.admin.objects, bucket, fields, force=force, dry_run=dry_run)


@command(objects, "seal", example="object seal ARCHIVE")
def seal(run: Run, bucket: BucketName, force: Force = False) -> None:
    """Let nothing in and nothing out of a bucket, for ever."""
    run.admin.objects.load(bucket)
    run.out.confirm(f"Seal bucket {bucket}? That cannot be undone.", force=force)
    run.admin.objects.seal(bucket)
    run.out.done(f"bucket {bucket} is sealed", bucket=bucket, sealed=True)


@command(objects, "rm", example="object rm IMAGES cat.jpg")
def remove(run: Run, bucket: BucketName, name: MaybeName = None, force: Force = False) -> None:
    """Delete an object, or a link; without a name, the bucket with all its objects."""
    if name is None:
        found = run.admin.objects.load(bucket)
        remove_bucket(run, run.admin.objects, bucket, f"{int(found.size):,} bytes in it", force=force)
        return
    there = run.admin.objects.bucket(bucket)
    there.info(name)
    run.out.confirm(f"Delete object {name} of bucket {bucket}?", force=force)
    there.delete(name)
    run.out.done(f"object {name} of bucket {bucket} was deleted", bucket=bucket, name=name, deleted=True)


objects.add_typer(content)
