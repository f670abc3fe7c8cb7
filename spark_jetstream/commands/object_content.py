"""``spark-jetstream object``: objects to and from files, what stands beside their content, and links."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from spark_jetstream.admin.object_bucket import ObjectBucket
from spark_jetstream.admin.object_infos import ObjectInfo
from spark_jetstream.commands.arguments import Force
from spark_jetstream.commands.buckets import Count, Deletes, UpdatesOnly, Wait, print_changes
from spark_jetstream.commands.framework import Run, alone, command
from spark_jetstream.commands.object_arguments import (
    BucketName,
    Description,
    Headers,
    Metadata,
    ObjectName,
    headers_of,
    metadata_of,
)
from spark_jetstream.commands.object_text import object_text, print_object
from spark_jetstream.errors import MessageNotFound
from spark_jetstream.objects import DEFAULT_CHUNK_SIZE
from spark_jetstream.units import Bytes
from spark_jetstream.values import file_path

content = alone()

_STANDARD = "-"  # standard input, or output
_CHUNK = Bytes(DEFAULT_CHUNK_SIZE)


def _size(text: str | Bytes) -> Bytes:
    try:
        return Bytes.of(text)
    except ValueError:
        raise typer.BadParameter(f"{text} is no size such as 64k or 131072") from None


@command(content, "get", example="object get IMAGES cat.jpg --output /tmp/cat.jpg")
def get(
    run: Run,
    bucket: BucketName,
    name: ObjectName,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-O",
            metavar="FILE",
            help="Where to write it; - for standard output. Without it, a file named like what is behind the last /.",
            show_default=False,
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Write an object, or what a link leads to, to a file, which is there when all of it has come and is right.

    On standard output it is right when this ends with 0; with 1 what was written is to be thrown away.
    """
    found = run.admin.objects.bucket(bucket)
    if output == _STANDARD:
        if run.out.as_json:
            raise typer.BadParameter("standard output cannot have the content and JSON", param_hint="--json")
        for chunk in found.read(name):
            run.out.raw(chunk)
        return
    target = Path(_file_name(name) if output is None else file_path("--output", output))
    if os.path.lexists(target) and not target.is_dir():
        run.out.confirm(f"Replace the file {target}?", force=force)
    with run.out.progress(target.name) as progress:
        info = found.get_file(name, target, overwrite=True, progress=progress)
    said = f"object {name} of bucket {bucket}, {int(info.size):,} bytes, is in {target}"
    run.out.done(said, **info.data(), file=str(target))


def _file_name(name: str) -> str:
    """The file for an object when none is given: nothing that leads out of this folder."""
    last = name.rpartition("/")[2]
    if last in ("", ".", "..") or any(each in last for each in "\\\0"):
        raise typer.BadParameter(f"{name} makes no name for a file: give one", param_hint="--output")
    return last


@command(content, "put", example="object put IMAGES cat.jpg --name animals/cat.jpg")
def put(
    run: Run,
    bucket: BucketName,
    file: Annotated[str, typer.Argument(help="The file; - for standard input, which needs --name.")],
    name: Annotated[str | None, typer.Option(help="The object's name; without it, that of the file.")] = None,
    description: Description = None,
    headers: Headers = None,
    metadata: Metadata = None,
    chunk_size: Annotated[Bytes, typer.Option(parser=_size, metavar="SIZE", help="Bytes of a message.")] = _CHUNK,
    force: Force = False,
) -> None:
    """Store a file as an object. Readers see the old one, if there is any, until all of the new one is stored."""
    if file == _STANDARD and name is None:
        raise typer.BadParameter("what comes from standard input needs a name", param_hint="--name")
    there = run.admin.objects.bucket(bucket)
    chosen = Path(file_path("FILE", file)).name if name is None else name
    if not force and _has(there, chosen):
        run.out.confirm(f"Replace object {chosen} of bucket {bucket}?", force=force)
    store = partial(there.put, chosen, sys.stdin.buffer) if file == _STANDARD else partial(there.put_file, file, chosen)
    with run.out.progress(chosen) as progress:
        info = store(
            chunk_size=int(chunk_size),
            description=description,
            headers=headers_of(headers),
            metadata=metadata_of(metadata),
            progress=progress,
        )
    run.out.done(f"object {chosen} of bucket {bucket} has {int(info.size):,} bytes", **info.data())


def _has(bucket: ObjectBucket, name: str) -> bool:
    try:
        bucket.info(name)
    except MessageNotFound:
        return False
    return True


@command(content, "describe", example="object describe IMAGES cat.jpg --rename tom.jpg --description 'the cat'")
def describe(
    run: Run,
    bucket: BucketName,
    name: ObjectName,
    rename: Annotated[str | None, typer.Option(metavar="NAME", help="Its new name.", show_default=False)] = None,
    description: Description = None,
    headers: Headers = None,
    metadata: Metadata = None,
) -> None:
    """Change the name of an object, or what stands beside its content. What you do not name stays as it is.

    All headers, and all metadata, are replaced together; an empty one removes them.
    """
    if (rename, description, headers, metadata) == (None, None, None, None):
        raise typer.BadParameter("say what to change: --rename, --description, --header or --metadata")
    changed = run.admin.objects.bucket(bucket).update_meta(
        name, rename, description=description, headers=headers_of(headers), metadata=metadata_of(metadata)
    )
    print_object(run, changed)


@command(content, "link", example="object link IMAGES best.jpg ARCHIVE 2026/cat.jpg")
def link(
    run: Run,
    bucket: BucketName,
    name: Annotated[str, typer.Argument(help="Name of the link.")],
    to_bucket: Annotated[str, typer.Argument(help="The bucket that it leads to.")],
    to_name: Annotated[str | None, typer.Argument(help="The object; without one, the whole bucket.")] = None,
) -> None:
    """Let a name stand for an object, or for a whole bucket. It may take the place of another link."""
    there = run.admin.objects.bucket(bucket)
    made = there.link_bucket(name, to_bucket) if to_name is None else there.link(name, to_bucket, to_name)
    print_object(run, made)


@command(content, "watch", example="object watch IMAGES --updates-only")
def watch(
    run: Run,
    bucket: BucketName,
    updates_only: UpdatesOnly = False,
    deletes: Deletes = True,
    count: Count = None,
    timeout: Wait = None,
) -> None:
    """The objects, and then every one that is put, changed or deleted, as it happens, a line each. Ends with Ctrl-C."""
    found = run.admin.objects.bucket(bucket).watch(
        updates_only=updates_only, deleted=deletes, timeout=None if timeout is None else timeout / 1e9
    )
    print_changes(run, found, object_text, data=ObjectInfo.data, count=count, timeout=timeout)
