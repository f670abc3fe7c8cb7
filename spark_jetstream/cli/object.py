"""``spark-jetstream object``: the commands about Object Store buckets and their objects."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from functools import partial
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, BadParameter, Option

from spark_jetstream.cli import buckets
from spark_jetstream.cli.app import Run, command, group
from spark_jetstream.cli.arguments import DryRun, Force, completion, size_option, with_fields
from spark_jetstream.cli.output import to_the_second
from spark_jetstream.errors import LAYOUT, MessageNotFound, printable
from spark_jetstream.protocol.conventions import DEFAULT_CHUNK_SIZE
from spark_jetstream.protocol.units import Bytes, counted, sized

if TYPE_CHECKING:
    from spark_jetstream.admin.client import JetStreamAdmin
    from spark_jetstream.admin.models.objects import ObjectBucketInfo, ObjectInfo


_SETTINGS = (
    "ttl",
    "max_bytes",
    "storage",
    "replicas",
    "compression",
    "description",
    "metadata",
    "placement",
)


def _bucket_data(info: ObjectBucketInfo) -> dict[str, Any]:
    names = ("bucket", "size", "created", "sealed", *_SETTINGS, "stream")
    return {name: getattr(info, name) for name in names}


def _print_bucket(run: Run, info: ObjectBucketInfo) -> None:
    buckets.show(run, info, _SETTINGS, {"size": sized(info.size)}, data=_bucket_data(info))


def _print_object(run: Run, info: ObjectInfo) -> None:
    # A link has size 0, and so has the mark of a deleted object. People would take either for an
    # empty object.
    has_content = info.link is None and not info.deleted
    pairs = {
        "": _kind(info),
        "description": printable(info.description, LAYOUT),
        "size": sized(info.size) if has_content else "",
        "chunks": info.chunks if has_content else "",
        "digest": info.digest,
        "modified": info.modified,
        "headers": {name: list(values) for name, values in info.headers.items()},
        "metadata": dict(info.metadata),
    }
    run.out.record(pairs, data=info.data(), title=f"{printable(info.name)} in bucket {info.bucket}")


def _object_text(info: ObjectInfo) -> str:
    kind = _kind(info)
    return f"{info.modified} {printable(info.name)}: {kind or counted(info.size, 'byte')}"


def _kind(info: ObjectInfo) -> str:
    """Return how an entry of a bucket is no object: a link, or deleted; "" for an object."""
    if info.deleted:
        return "deleted"
    if info.link is None:
        return ""
    bucket, name = info.link
    if name:
        return f"link to {printable(name)} of bucket {bucket}"
    return f"link to bucket {bucket}"


def _bucket_row(info: ObjectBucketInfo) -> dict[str, object]:
    return {
        "bucket": info.bucket,
        "description": info.description,
        "size": info.size,
        "storage": info.storage,
        "ttl": info.ttl or "",
        "created": to_the_second(info.created),
        "": "sealed" if info.sealed else "",
    }


def _object_row(info: ObjectInfo) -> dict[str, object]:
    return {
        "name": printable(info.name),
        "size": info.size,
        "modified": to_the_second(info.modified),
        "": _kind(info),
    }


def _bucket_names(admin: JetStreamAdmin, given: dict[str, Any]) -> Iterator[str]:
    return admin.objects.names()


def _object_names(admin: JetStreamAdmin, given: dict[str, Any]) -> Iterator[str]:
    for info in admin.objects.bucket(given.get("bucket", "")).list():
        yield info.name


bucket_argument = partial(Argument, autocompletion=completion(_bucket_names))
name_argument = partial(Argument, autocompletion=completion(_object_names))

BucketName = Annotated[str, bucket_argument(help="Name of the bucket.")]
ObjectName = Annotated[str, name_argument(help="Name of the object.")]
MaybeName = Annotated[str | None, name_argument(help="Name of an object.")]
Deleted = Annotated[bool, Option("--deleted", help="Also what is left of deleted objects.")]
Headers = Annotated[
    list[str] | None,
    Option("--header", "-H", metavar="'NAME: VALUE'", help="A header of the object."),
]
Metadata = Annotated[
    list[str] | None,
    Option("--metadata", metavar="NAME=VALUE", help="Metadata of the object."),
]
Description = Annotated[str | None, Option(help="For people.")]


def headers_of(given: list[str] | None) -> dict[str, list[str]] | None:
    """Return all values of each header of options; None without options, empty for ``''`` alone."""
    # None leaves the headers of an object alone, and an empty mapping removes them.
    if not given:
        return None
    headers: dict[str, list[str]] = {}
    for name, value in _pairs(given, ":", "--header", "'Name: value'"):
        # A header may have several values.
        headers.setdefault(name.strip(), []).append(value.strip())
    return headers


def metadata_of(given: list[str] | None) -> dict[str, str] | None:
    """Return the metadata of options; None without options, empty for ``''`` alone."""
    if not given:
        return None
    return dict(_pairs(given, "=", "--metadata", "name=value"))


def _pairs(given: list[str], separator: str, option: str, form: str) -> Iterator[tuple[str, str]]:
    # An empty option is the only way to say "none" on a command line.
    for text in filter(None, given):
        name, middle, value = text.partition(separator)
        if not middle or not name.strip():
            raise BadParameter(f"{text} is not {form}", param_hint=option)
        yield name, value


_STANDARD = "-"  # standard input, or output
_CHUNK = Bytes(DEFAULT_CHUNK_SIZE)


objects = group("object", "Object Store buckets: create, change, put, get, watch, remove.")

# Buckets, and listing and removing objects


@command(objects, "ls", example="object ls IMAGES")
def show_all(
    run: Run,
    bucket: Annotated[str | None, bucket_argument(help="A bucket, to list its objects.")] = None,
    deleted: Deleted = False,
) -> None:
    """List the buckets, or the objects and links of a bucket, sorted by name."""
    if bucket is None:
        infos = run.admin.objects.infos()
        empty = "there are no Object Store buckets"
        run.out.table(infos, _bucket_row, data=_bucket_data, empty=empty)
        return
    objects = run.admin.objects.bucket(bucket).list(deleted=deleted)
    # The bucket has them in the order in which they were stored.
    by_name = sorted(objects, key=attrgetter("name"))
    empty = f"bucket {bucket} has no objects"
    run.out.table(by_name, _object_row, data=methodcaller("data"), empty=empty)


@command(objects, "info", example="object info IMAGES cat.jpg")
def info(run: Run, bucket: BucketName, name: MaybeName = None, deleted: Deleted = False) -> None:
    """Show the configuration and the size of a bucket, or all that is known of an object.

    A link is not followed.
    """
    if name is None:
        _print_bucket(run, run.admin.objects.load(bucket))
    else:
        _print_object(run, run.admin.objects.bucket(bucket).info(name, deleted=deleted))


@command(objects, "add", example="object add IMAGES --ttl 30d --max-bytes 10g --replicas 3")
@with_fields("object", buckets.COMMON_SETTINGS, creates=True)
def add(run: Run, bucket: buckets.NewBucket, *, fields: dict[str, Any]) -> None:
    """Create a bucket.

    One that exists with this configuration stays as it is; one that is different is an error.
    """
    _print_bucket(run, buckets.create(run, run.admin.objects, bucket, fields))


@command(objects, "edit", example="object edit IMAGES --max-bytes 20g --unset ttl")
@with_fields("object", buckets.COMMON_SETTINGS, without=("storage",))
def edit(
    run: Run,
    bucket: BucketName,
    dry_run: DryRun = False,
    force: Force = False,
    *,
    fields: dict[str, Any],
) -> None:
    """Change a bucket, after showing what changes of its stream, and asking.

    Fields that you do not name stay as they are. A shorter ttl removes objects at once.
    """
    buckets.edit(run, run.admin.objects, bucket, fields, force=force, dry_run=dry_run)


@command(objects, "seal", example="object seal ARCHIVE")
def seal(run: Run, bucket: BucketName, force: Force = False) -> None:
    """Seal a bucket: nothing can be added or removed any more. This cannot be undone."""
    # A bucket that does not exist is an error before the question.
    run.admin.objects.load(bucket)
    run.out.confirm(f"Seal bucket {bucket}? That cannot be undone.", force=force)
    run.admin.objects.seal(bucket)
    run.out.done(f"bucket {bucket} is sealed", bucket=bucket, sealed=True)


@command(objects, "rm", example="object rm IMAGES cat.jpg")
def remove(run: Run, bucket: BucketName, name: MaybeName = None, force: Force = False) -> None:
    """Delete an object, or a link; without a name, the bucket with all its objects."""
    if name is None:
        size = run.admin.objects.load(bucket).size
        buckets.remove(
            run,
            run.admin.objects,
            bucket,
            f"{counted(size, 'byte')} in it",
            force=force,
        )
        return
    opened = run.admin.objects.bucket(bucket)
    # An object that does not exist is an error before the question.
    opened.info(name)
    run.out.confirm(f"Delete object {name} of bucket {bucket}?", force=force)
    opened.delete(name)
    run.out.done(
        f"object {name} of bucket {bucket} was deleted",
        bucket=bucket,
        name=name,
        deleted=True,
    )


# Objects


@command(objects, "get", example="object get IMAGES cat.jpg --output /tmp/cat.jpg")
def get(
    run: Run,
    bucket: BucketName,
    name: ObjectName,
    output: Annotated[
        str | None,
        Option(
            "--output",
            "-O",
            metavar="FILE",
            help="The file to write; - for standard output. Without it, its name is what follows "
            "the last / of NAME.",
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Write an object, or the target of a link, to a file. The file appears when all of it has come and is correct.

    The content on standard output is correct if the command ends with 0; discard it if the command
    ends with 1.
    """
    from spark_jetstream.options.values import file_path

    opened = run.admin.objects.bucket(bucket)
    # A file can appear at the end, whole and checked; a pipe cannot.
    if output == _STANDARD:
        if run.out.as_json:
            raise BadParameter(
                "standard output cannot hold the content and JSON",
                param_hint="--json",
            )
        # The content goes out before its digest is known: the exit code says whether it was right.
        for chunk in opened.read(name):
            run.out.raw(chunk)
        return
    file = _file_name(name) if output is None else file_path("--output", output)
    target = Path(file)
    # `lexists`: a link that leads nowhere would be replaced, too. A folder is refused by
    # `get_file`.
    if os.path.lexists(target) and not target.is_dir():
        run.out.confirm(f"Replace the file {target}?", force=force)
    with run.out.progress(target.name) as progress:
        info = opened.get_file(name, target, overwrite=True, progress=progress)
    sentence = f"object {name} of bucket {bucket}, {counted(info.size, 'byte')}, is in {target}"
    run.out.done(sentence, **info.data(), file=str(target))


def _file_name(name: str) -> str:
    """Return the name of the file for an object, which must not lead out of the current folder."""
    last = name.rpartition("/")[2]
    # The name comes from the client that stored the object: test_objects.py,
    # test_no_name_leads_out_of_the_folder.
    if last in ("", ".", "..") or "\\" in last or "\0" in last:
        raise BadParameter(f"{name} cannot be the name of a file: give one", param_hint="--output")
    return last


@command(objects, "put", example="object put IMAGES cat.jpg --name animals/cat.jpg")
def put(
    run: Run,
    bucket: BucketName,
    file: Annotated[str, Argument(help="The file; - for standard input, which needs --name.")],
    name: Annotated[
        str | None,
        Option(help="The object's name; without it, that of the file."),
    ] = None,
    description: Description = None,
    headers: Headers = None,
    metadata: Metadata = None,
    chunk_size: Annotated[Bytes, size_option(help="Bytes of a message.")] = _CHUNK,
    force: Force = False,
) -> None:
    """Store a file as an object.

    Readers see the old one, if there is any, until all of the new one is stored.
    """
    from spark_jetstream.options.values import file_path

    if file == _STANDARD and name is None:
        raise BadParameter("an object from standard input needs a name", param_hint="--name")
    opened = run.admin.objects.bucket(bucket)
    chosen = name
    if chosen is None:
        chosen = Path(file_path("FILE", file)).name
    if not force:
        # There is none to replace.
        with contextlib.suppress(MessageNotFound):
            opened.info(chosen)
            run.out.confirm(f"Replace object {chosen} of bucket {bucket}?", force=force)
    store = partial(opened.put_file, file, chosen)
    if file == _STANDARD:
        store = partial(opened.put, chosen, sys.stdin.buffer)
    with run.out.progress(chosen) as progress:
        info = store(
            chunk_size=int(chunk_size),
            description=description,
            headers=headers_of(headers),
            metadata=metadata_of(metadata),
            progress=progress,
        )
    run.out.done(
        f"object {chosen} of bucket {bucket} has {counted(info.size, 'byte')}",
        **info.data(),
    )


@command(
    objects,
    "describe",
    example="object describe IMAGES cat.jpg --rename tom.jpg --description 'the cat'",
)
def describe(
    run: Run,
    bucket: BucketName,
    name: ObjectName,
    rename: Annotated[str | None, Option(metavar="NAME", help="Its new name.")] = None,
    description: Description = None,
    headers: Headers = None,
    metadata: Metadata = None,
) -> None:
    """Change the name, description, headers or metadata of an object. Fields that you do not name stay as they are.

    Headers and metadata are each replaced as a whole; an empty one removes them.
    """
    if (rename, description, headers, metadata) == (None, None, None, None):
        raise BadParameter("say what to change: --rename, --description, --header or --metadata")
    changed = run.admin.objects.bucket(bucket).update_meta(
        name,
        rename,
        description=description,
        headers=headers_of(headers),
        metadata=metadata_of(metadata),
    )
    _print_object(run, changed)


@command(objects, "link", example="object link IMAGES best.jpg ARCHIVE 2026/cat.jpg")
def link(
    run: Run,
    bucket: BucketName,
    name: Annotated[str, Argument(help="Name of the link.")],
    to_bucket: Annotated[str, Argument(help="The bucket that it leads to.")],
    to_name: Annotated[
        str | None,
        Argument(help="The object; without one, the whole bucket."),
    ] = None,
) -> None:
    """Store a link: a name for an object, or for a whole bucket. It may replace another link."""
    opened = run.admin.objects.bucket(bucket)
    if to_name is None:
        _print_object(run, opened.link_bucket(name, to_bucket))
    else:
        _print_object(run, opened.link(name, to_bucket, to_name))


@command(objects, "watch", example="object watch IMAGES --updates-only")
def watch(
    run: Run,
    bucket: BucketName,
    updates_only: buckets.UpdatesOnly = False,
    deletes: buckets.Deletes = True,
    count: buckets.Count = None,
    timeout: buckets.Wait = None,
) -> None:
    """Print the objects, then every object that is put, changed or deleted, one a line.

    Ends with Ctrl-C.
    """
    from spark_jetstream.admin.models.objects import ObjectInfo

    begin = partial(
        run.admin.objects.bucket(bucket).watch,
        updates_only=updates_only,
        deleted=deletes,
    )
    buckets.print_changes(
        run,
        begin,
        _object_text,
        data=ObjectInfo.data,
        count=count,
        timeout=timeout,
    )
