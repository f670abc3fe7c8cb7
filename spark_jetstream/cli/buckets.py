"""Options and steps that the commands for Key-Value and for Object Store buckets share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from typer import Argument, BadParameter, Exit, Option

from spark_jetstream.cli.app import FAILED, Run
from spark_jetstream.cli.arguments import change, created, duration_option
from spark_jetstream.cli.output import listed, seconds, server_text
from spark_jetstream.protocol.units import Bytes, Nanoseconds

if TYPE_CHECKING:
    from spark_jetstream.admin.buckets import Buckets
    from spark_jetstream.admin.models.buckets import AnyBucketInfo

T = TypeVar("T")

COMMON_SETTINGS = (
    "description",
    "history",
    "ttl",
    "max_value_size",
    "max_bytes",
    "storage",
    "replicas",
    "compression",
)
NewBucket = Annotated[str, Argument(help="Name of the bucket.")]
UpdatesOnly = Annotated[bool, Option("--updates-only", help="Begin with the next change.")]
Deletes = Annotated[bool, Option("--deletes/--no-deletes", help="Show deletions, too.")]
# `islice` takes no larger number.
Count = Annotated[int | None, Option(min=1, max=sys.maxsize, help="End after this many.")]
_WAIT_HELP = "End after this long without a change; a failure with --count."
Wait = Annotated[Nanoseconds | None, duration_option("--wait", help=_WAIT_HELP)]


def show(
    run: Run,
    info: AnyBucketInfo,
    names: Iterable[str],
    more: Mapping[str, object],
    *,
    # JSON has the numbers, where people get words.
    data: Mapping[str, object],
) -> None:
    """Print settings, updated with ``more``, and the servers of the bucket; as JSON, ``data``."""
    from spark_jetstream.admin.models.streams import NO_LIMIT, replicas

    pairs = {name.replace("_", " "): listed(getattr(info, name)) for name in names}
    pairs |= {
        "ttl": info.ttl or NO_LIMIT,
        "max bytes": limit(info.max_bytes),
        "sealed": "yes" if info.sealed else "",
        "created": info.created,
        **more,
        "servers": ", ".join(map(server_text, replicas(info.stream.cluster))),
    }
    run.out.record(pairs, data=data, title=f"{info.kind.title} bucket {info.bucket}")


def limit(size: Bytes) -> object:
    """Return a limit for people; -1 is no limit."""
    from spark_jetstream.admin.models.streams import NO_LIMIT

    return NO_LIMIT if size < 0 else size


def create(run: Run, buckets: Buckets[Any, Any], bucket: str, fields: Mapping[str, Any]) -> Any:
    """Create a bucket, with a note if it existed already, and return its info."""
    load = partial(buckets.load, bucket)
    make = partial(buckets.create, bucket, fields)
    return created(run, _noun, load, make)


def _noun(info: AnyBucketInfo) -> str:
    return f"bucket {info.bucket}"


def edit(
    run: Run,
    buckets: Buckets[Any, Any],
    bucket: str,
    fields: Mapping[str, Any],
    *,
    force: bool,
    dry_run: bool,
) -> None:
    """Show the changes of the bucket's stream, ask, and change the bucket."""
    if not fields:
        raise BadParameter("say what to change: an option for each field, or --unset FIELD")
    # The differences are those of the bucket's stream, which the server changes.
    differences = buckets.plan(bucket, **fields)
    update = partial(buckets.update, bucket, **fields)
    change(run, {"bucket": bucket}, differences, update, force=force, dry_run=dry_run)


def remove(run: Run, buckets: Buckets[Any, Any], bucket: str, held: str, *, force: bool) -> None:
    """Ask, and delete a bucket. ``held`` names its contents."""
    run.out.confirm(f"Delete bucket {bucket} with {held}?", force=force)
    buckets.delete(bucket)
    run.out.done(f"bucket {bucket} was deleted", bucket=bucket, deleted=True)


def print_changes(
    run: Run,
    watch: Callable[..., Iterable[T | None]],
    line: Callable[[T], str],
    *,
    data: Callable[[T], Any],
    count: int | None,
    timeout: Nanoseconds | None,
) -> None:
    """Print a line for each change of a bucket, at most ``count``.

    The command ends with 1 after fewer.
    """
    # A watch yields None once, between the present state and the changes.
    changes = (change for change in watch(timeout=seconds(timeout)) if change is not None)
    seen = run.out.lines(islice(changes, count), line, data=data)
    if count is not None and seen < count:
        run.out.note(f"no change arrived for {timeout}, after {seen:,} of {count:,}")
        # A script that waits for a number of changes must notice that some did not come.
        raise Exit(FAILED)
