"""Buckets on the driver: what is read of one, and the tasks that a batch read of its current state is made of."""

from __future__ import annotations

from collections.abc import Callable

from spark_jetstream.connection import Connection
from spark_jetstream.names import name_pattern
from spark_jetstream.pulling import PullSettings
from spark_jetstream.source.buckets import Bucket, find_bucket
from spark_jetstream.source.narrowing import Narrowed
from spark_jetstream.source.object_listing import plan_objects
from spark_jetstream.source.objects import ObjectGroup
from spark_jetstream.source.retention import check_retention
from spark_jetstream.source_options import SourceOptions
from spark_jetstream.table import TablePart, check_direct

Connect = Callable[[float], Connection]


def with_subjects(connect: Connect, options: SourceOptions) -> SourceOptions:
    """The options of a read, with the subject filters that a bucket is read by; those of a stream as they are.

    Raises `OptionError` when there is no such bucket, and what `Connection.api` raises.
    """
    if options.streams:
        return options
    return options.model_copy(update={"subjects": _find(connect, options).subjects})


def table_parts(
    connect: Connect,
    options: SourceOptions,
    narrowed: Narrowed,
    settings: PullSettings,
    label: str,
    *,
    with_content: bool,
) -> list[TablePart] | list[ObjectGroup]:
    """The tasks of a batch read of a bucket as it is now: one for a table, several for objects.

    Raises what `with_subjects` raises, and `plan_objects`.
    """
    name = options.named(options.read_streams[0])
    if not narrowed.reads(name):
        return []
    bucket = _find(connect, options)
    check_retention(bucket.state, options)
    direct = options.read_with == "direct"
    part = TablePart(bucket.state.name, bucket.state.created, bucket.subjects, direct)
    if options.object_bucket is None:
        if direct:
            check_direct(bucket.state)
        return [part]
    return plan_objects(
        connect,
        part,
        settings,
        label,
        bucket=name,
        pattern=None if options.path_glob_filter is None else name_pattern(options.path_glob_filter),
        max_objects=options.max_messages_per_partition,
        min_groups=options.min_partitions,
        with_content=with_content,
    )


def _find(connect: Connect, options: SourceOptions) -> Bucket:
    # A server never met yet is more likely the wrong one than one that restarts.
    patience = min(options.connection.connect_timeout, options.connection.retry_timeout)
    return find_bucket(lambda: connect(patience), options, patience)
