"""The rows of one task, on an executor: chooses the reader of its messages, and what makes rows of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from spark_jetstream.client.requests import Connect
from spark_jetstream.options.names import name_pattern
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol.columns import Messages, record_batch
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.source.kv import bucket_batch
from spark_jetstream.source.object_reader import read_object_range, read_objects
from spark_jetstream.source.objects import ObjectGroup
from spark_jetstream.source.pushdown import Pushdown
from spark_jetstream.streams.direct import read_direct
from spark_jetstream.streams.latest import TablePart, read_table
from spark_jetstream.streams.pull import PullSettings, read_range

#: What one task reads: a range of a stream, the objects of a group, or the latest revisions of a bucket.
TaskInput = SequenceRange | ObjectGroup | TablePart


def read_part(
    connect: Connect,
    part: TaskInput,
    options: SourceOptions,
    columns: Sequence[str],
    label: str,
    pushdown: Pushdown | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read the rows of a task as record batches with just the named columns. Raises what the readers raise.

    Args:
        connect: Returns the connection of the process.
        part: What the task reads.
        options: Of the source.
        columns: The columns of the rows.
        label: The beginning of the names of consumers.
        pushdown: What predicates leave of a batch.
    """
    settings = pull_settings(options, columns)
    if options.object_bucket is not None:
        yield from _objects(connect, part, options, columns, label, settings)
        return
    if isinstance(part, TablePart):
        pulled: Iterator[Messages] = read_table(connect, part, settings, label)
    elif isinstance(part, SequenceRange):
        pulled = (read_direct if part.direct else read_range)(connect, part, settings, label)
    else:
        raise TypeError(f"a task of a stream or a bucket, not {type(part).__name__}")
    for messages in pulled:
        if options.bucket is not None:
            batch = bucket_batch(messages, bucket=options.bucket, columns=columns, live_only=options.table)
        else:
            batch = record_batch(messages, columns=columns, with_headers=options.include_headers, stream=part.stream)
        if pushdown is not None and pushdown.timed:
            batch = batch.filter(pa.array(pushdown.at(messages.timestamps())))
        if len(batch):
            yield batch


def pull_settings(options: SourceOptions, columns: Sequence[str]) -> PullSettings:
    """Return the settings of a reader for the named columns."""
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
    connect: Connect,
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
