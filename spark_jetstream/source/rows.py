"""From one task's part of a read to its rows: which reader, and which rows are made of what it brings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa

from spark_jetstream.columns import Messages, record_batch
from spark_jetstream.connection import Connection
from spark_jetstream.direct import read_direct
from spark_jetstream.names import name_pattern
from spark_jetstream.pulling import PullSettings, read_range
from spark_jetstream.source.kv_rows import bucket_batch
from spark_jetstream.source.narrowing import Narrowed
from spark_jetstream.source.object_reading import read_object_range, read_objects
from spark_jetstream.source.objects import ObjectGroup
from spark_jetstream.source_options import SourceOptions
from spark_jetstream.streams import SequenceRange
from spark_jetstream.table import TablePart, read_table

#: What one task reads: a range of a stream, the objects of a group, or the latest revisions of a bucket.
Part = SequenceRange | ObjectGroup | TablePart


def read_part(
    connect: Callable[[float], Connection],
    part: Part,
    options: SourceOptions,
    columns: Sequence[str],
    label: str,
    narrowed: Narrowed | None = None,
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
    part: Part,
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
