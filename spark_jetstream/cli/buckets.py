"""What the commands for Key-Value and for Object Store buckets share: options, changing, removing, watching."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Annotated, Any, TypeVar

import typer

from spark_jetstream.admin.buckets import Buckets
from spark_jetstream.admin.models.base import Model
from spark_jetstream.admin.models.buckets import AnyBucketInfo
from spark_jetstream.admin.models.streams import replicas
from spark_jetstream.cli.app import FAILED, Run
from spark_jetstream.cli.arguments import DURATION, change
from spark_jetstream.cli.output import as_data
from spark_jetstream.cli.text import listed, server_words
from spark_jetstream.protocol.units import Bytes, Nanoseconds

T = TypeVar("T")

NewBucket = Annotated[str, typer.Argument(help="Name of the bucket.")]
UpdatesOnly = Annotated[bool, typer.Option("--updates-only", help="Begin with the next change.", show_default=False)]
Deletes = Annotated[bool, typer.Option("--deletes/--no-deletes", help="Show deletions, too.")]
Count = Annotated[int | None, typer.Option(min=1, help="End after so many.", show_default=False)]
Wait = Annotated[
    Nanoseconds | None,
    typer.Option("--wait", help="End when nothing came for so long; with --count that is a failure.", **DURATION),
]


def setting_data(info: AnyBucketInfo, names: Iterable[str]) -> dict[str, Any]:
    """These settings as JSON: durations in nanoseconds, sizes in bytes."""
    return {name: _plain(getattr(info, name)) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return as_data(value) if isinstance(value, Model) else value


def setting_words(info: AnyBucketInfo, names: Iterable[str], more: Mapping[str, object]) -> dict[str, object]:
    """These settings for people, with ``more`` over or behind them, and the servers that keep the bucket."""
    return {
        **{name.replace("_", " "): listed(getattr(info, name)) for name in names},
        "ttl": info.ttl or "none",
        "max bytes": limit(info.max_bytes),
        "sealed": "yes" if info.sealed else "",
        "created": info.created,
        **more,
        "servers": ", ".join(map(server_words, replicas(info.stream.cluster))),
    }


def limit(size: Bytes) -> object:
    """A limit for people; -1 stands for none."""
    return "no limit" if size < 0 else size


def edit_bucket(
    run: Run, buckets: Buckets[Any, Any], bucket: str, fields: Mapping[str, Any], *, force: bool, dry_run: bool
) -> None:
    """Change a bucket, after showing what changes of its stream, and asking."""
    if not fields:
        raise typer.BadParameter("say what to change: an option for each field, or --unset FIELD")
    change(
        run,
        f"bucket {bucket}",
        buckets.plan(bucket, **fields),
        lambda: buckets.update(bucket, **fields),
        data={"bucket": bucket},
        force=force,
        dry_run=dry_run,
    )


def remove_bucket(run: Run, buckets: Buckets[Any, Any], bucket: str, held: str, *, force: bool) -> None:
    """Delete a bucket after asking; ``held`` is what it holds, in words."""
    run.out.confirm(f"Delete bucket {bucket} with {held}?", force=force)
    buckets.delete(bucket)
    run.out.done(f"bucket {bucket} was deleted", bucket=bucket, deleted=True)


def print_changes(
    run: Run,
    found: Iterable[T | None],
    line: Callable[[T], str],
    *,
    data: Callable[[T], Any],
    count: int | None,
    timeout: Nanoseconds | None,
) -> None:
    """A line for each change of a bucket as it comes, at most ``count``. Ends with 1 when fewer came in time."""
    seen = 0

    def changes() -> Iterator[T]:
        nonlocal seen
        for each in islice((each for each in found if each is not None), count):
            seen += 1
            yield each

    run.out.lines(changes(), line, data=data)
    if count is not None and seen < count:
        run.out.note(f"nothing came for {timeout}, after {seen:,} of {count:,}")
        raise typer.Exit(FAILED)
