"""One task of a write to an Object Store bucket: takes rows, and returns when every object is stored."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from spark_jetstream.buckets.object_content import chunks
from spark_jetstream.buckets.object_store import NewObject, ObjectUploads, StoredUpload
from spark_jetstream.buckets.object_stream import ObjectStream
from spark_jetstream.buckets.objects import meta_subject, name_fault
from spark_jetstream.buckets.uploads import Disposition, ObjectNotStored, UploadSettings
from spark_jetstream.client.requests import Connect
from spark_jetstream.errors import JetStreamError, OutageError, RowRefused
from spark_jetstream.options import SinkOptions
from spark_jetstream.sink.columns import BYTES, LEFT_OUT_TIME, MAPS, NUMBER, TEXT, Columns, Types
from spark_jetstream.sink.report import TaskReport, Totals
from spark_jetstream.sink.task import WriteTask

HINT = " (option objectBucket)"
"""The end of errors about an Object Store bucket."""


class ObjectColumns(Columns):
    """The columns of a DataFrame of objects."""

    accepted: ClassVar[Types] = {"name": TEXT, "content": BYTES, "headers": MAPS}
    ignored: ClassVar[Types] = {
        "bucket": TEXT,
        "size": NUMBER,
        "chunks": NUMBER,
        "digest": TEXT,
        "modified": LEFT_OUT_TIME,
    }
    required: ClassVar[Mapping[str, str]] = {
        "name": ", which holds the objects' names (string) (option objectBucket)",
        "content": ", which holds their bytes (binary or string) (option objectBucket)",
    }
    payload: ClassVar[str] = "content"


@dataclass(frozen=True)
class ObjectRow:
    """The object of one row. `number` counts the rows of the task from 1.

    `content` is a view of the record batch, not a copy. `problem` is why the row can never be
    stored, or None.
    """

    number: int
    name: str
    content: memoryview
    headers: Mapping[str, tuple[str, ...]]
    problem: str | None


def object_rows(
    batch: pa.RecordBatch, columns: ObjectColumns, first_number: int
) -> Iterator[ObjectRow]:
    """Yield the rows of a record batch whose columns `ObjectColumns.check` has checked."""
    given = columns.of(batch)
    names, contents, headers = given["name"], given["content"], given.get("headers")
    present = contents.is_valid().to_pylist()
    content, ends = _bytes_of(contents)
    for index in range(batch.num_rows):
        try:
            name = names[index].as_py()
            own_headers, wrong = _headers(None if headers is None else headers[index].as_py())
        except UnicodeDecodeError:
            name, own_headers, wrong = "?", {}, "its name, or one of its headers, is not UTF-8"
        if name:
            problem = name_fault(name) or wrong
        else:
            problem = "column name is null" if name is None else "column name is empty"
        if not present[index]:
            # The source leaves it out with contentOff.
            problem = (
                problem or "column content is null: an object without bytes is empty, not null"
            )
        part = content[ends[index] : ends[index + 1]]
        yield ObjectRow(first_number + index, name or "", part, own_headers, problem)


def _bytes_of(array: pa.Array) -> tuple[memoryview, list[int]]:
    """The buffer of a binary or string column, and the offsets of its values with the end of the last."""
    if not len(array):
        return memoryview(b""), [0]
    wide = array.cast(pa.large_binary())  # makes new offsets, and keeps the bytes
    _, offsets, data = wide.buffers()
    ends = np.frombuffer(offsets, np.int64, len(wide) + 1, 8 * wide.offset)
    # A null may have bytes all the same; its row is refused.
    return memoryview(data or b"").cast("B"), ends.tolist()


def _headers(
    entries: Sequence[tuple[str, str | Sequence[str | None] | None]] | None,
) -> tuple[dict[str, tuple[str, ...]], str | None]:
    """The headers of an object, and why they are invalid; null counts as no headers."""
    headers: dict[str, tuple[str, ...]] = {}
    for name, given in entries or ():
        values = (given,) if isinstance(given, str) else given
        if values is None or None in values:
            return {}, f"column headers holds null as a value of {name[:80]!r}"
        headers[name] = tuple(str(value) for value in values)
    return headers, None


def write_objects(
    batches: Iterable[pa.RecordBatch],
    connect: Connect,
    options: SinkOptions,
    columns: ObjectColumns,
    task: WriteTask,
) -> TaskReport:
    """Store all rows of a task as objects, in their order, and return what is stored.

    Raises `RowRefused`, `OutageError`, `PermissionDenied`, and `StreamNotFound` if the bucket does
    not exist.
    """
    assert options.object_bucket is not None
    begun, totals, count, size = time.monotonic(), Totals(), 0, 0
    settings = UploadSettings(
        connection=options.connection,
        max_in_flight=options.max_in_flight,
        ack_timeout=options.ack_timeout,
        max_retries=options.max_retries,
        ack_option="ackTimeout",
        retries=" (option maxRetries)",
    )
    bucket = ObjectStream(connect, options.object_bucket, options.connection.retry_timeout, HINT)
    with ObjectUploads(connect, bucket, settings) as uploads:
        for batch in batches:
            for row in object_rows(batch, columns, count + 1):
                stored = _store(uploads, row, task.part, totals)
                totals.stored += 1
                totals.note(bucket.name, stored.first, stored.last)
                size += len(row.content)
            count += batch.num_rows
    return TaskReport(
        partition=task.partition,
        rows=count,
        stored=totals.stored,
        streams=totals.streams,
        seconds=time.monotonic() - begun,
        size=size,
    )


def _store(uploads: ObjectUploads, row: ObjectRow, where: str, totals: Totals) -> StoredUpload:
    """Store an object in place of the one of the same name.

    Errors name its row, and how many objects are stored.
    """
    bucket = uploads.stream.bucket
    place = f"row {row.number} of {where}, object {row.name[:200]!r} of bucket {bucket}"
    already = totals.stored_already("object")
    wanted = NewObject(
        name=row.name, parts=lambda size: chunks(row.content, size), headers=row.headers
    )
    try:
        if row.problem is not None:
            raise ObjectNotStored(row.problem, Disposition.NONE)
        return uploads.store(wanted)
    except ObjectNotStored as failure:
        if failure.denied is not None:
            failure.denied.args = (f"{place}: {failure.denied}; {already}",)
            raise failure.denied from None
        text = f"{place} cannot be stored: {failure.why}; {already}"
        if failure.disposition is Disposition.OUTAGE:
            raise OutageError(text) from None
        subject = meta_subject(bucket, row.name)
        raise RowRefused(
            text,
            number=row.number,
            subject=subject,
            err_code=failure.err_code,
            stored=totals.stored,
        ) from None
    except JetStreamError as error:
        error.args = (f"{place}: {error}; {already}",)
        if error.retriable:
            raise OutageError(str(error)) from None
        raise
