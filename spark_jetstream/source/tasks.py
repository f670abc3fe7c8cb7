"""From one task's part of a read to its rows: which reader, and which rows are made of what it brings.

Buckets on the driver: what is read of one, and the tasks that a batch read of its current state is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa

from spark_jetstream.client.connection import Connection
from spark_jetstream.options.names import name_pattern
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol.columns import Messages, record_batch
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.source.bucket_lookup import SourceBucket, find_bucket
from spark_jetstream.source.kv import bucket_batch
from spark_jetstream.source.object_reader import read_object_range, read_objects
from spark_jetstream.source.objects import ObjectGroup, plan_objects
from spark_jetstream.source.pushdown import Pushdown
from spark_jetstream.source.retention import check_retention
from spark_jetstream.streams.direct import read_direct
from spark_jetstream.streams.latest import TablePart, check_direct, read_table
from spark_jetstream.streams.pull import PullSettings, read_range

#: What one task reads: a range of a stream, the objects of a group, or the latest revisions of a bucket.
TaskInput = SequenceRange | ObjectGroup | TablePart


def read_part(
    connect: Callable[[float], Connection],
    part: TaskInput,
    options: SourceOptions,
    columns: Sequence[str],
    label: str,
    narrowed: Pushdown | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a task as record batches with just the named columns. Runs on an executor.

    ``connect(patience)`` gives the connection; ``label`` begins the names of consumers. Raises what the readers raise.
    """
    settings = pull_settings(options, columns)
    if options.object_bucket is not None:
        yield from _objects(connect, part, options, columns, label, settings)
        return
    make = partial(record_batch, columns=columns, with_headers=options.include_headers)
    if isinstance(part, TablePart):
        found: Iterator[Messages] = read_table(connect, part, settings, label)
    elif isinstance(part, SequenceRange):
        found = (read_direct if part.direct else read_range)(connect, part, settings, label)
    else:
        raise TypeError(f"a task of a stream or a bucket, not {type(part).__name__}")
    for messages in found:
        if options.bucket is not None:
            batch = bucket_batch(messages, bucket=options.bucket, columns=columns, live_only=options.table)
        else:
            batch = make(messages, stream=part.stream)
        if narrowed is not None and narrowed.timed:
            batch = batch.filter(pa.array(narrowed.at(messages.timestamps())))
        if len(batch):
            yield batch


def pull_settings(options: SourceOptions, columns: Sequence[str]) -> PullSettings:
    """How messages are read for the named columns."""
    needed = {"data", "headers"} if options.streams else {"value"}
    return PullSettings(
        batch=options.fetch_batch,
        max_bytes=options.fetch_max_bytes,
        expires=options.fetch_timeout,
        retry_timeout=options.connection.retry_timeout,
        fail_on_data_loss=options.fail_on_data_loss,
        # An object is described by the payload of a message.
        headers_only=options.object_bucket is None and not needed & set(columns),
    )


def _objects(
    connect: Callable[[float], Connection],
    part: TaskInput,
    options: SourceOptions,
    columns: Sequence[str],
    label: str,
    settings: PullSettings,
) -> Iterator[pa.RecordBatch]:
    with_content = not options.content_off
    read = read_direct if options.read_with == "direct" else read_range
    if isinstance(part, ObjectGroup):
        yield from read_objects(connect, part, settings, label, columns=columns, with_content=with_content, read=read)
    elif isinstance(part, SequenceRange):
        glob = options.path_glob_filter
        yield from read_object_range(
            connect,
            part,
            settings,
            label,
            bucket=options.named(part.stream),
            columns=columns,
            with_content=with_content,
            pattern=None if glob is None else name_pattern(glob),
            read=read,
        )
    else:
        raise TypeError(f"a task of an object bucket, not {type(part).__name__}")


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
    narrowed: Pushdown,
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


def _find(connect: Connect, options: SourceOptions) -> SourceBucket:
    # A server never met yet is more likely the wrong one than one that restarts.
    patience = min(options.connection.connect_timeout, options.connection.retry_timeout)
    return find_bucket(lambda: connect(patience), options, patience)
