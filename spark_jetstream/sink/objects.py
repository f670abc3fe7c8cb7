"""One task of a write to an Object Store bucket: rows in, every object stored when it returns.

How one object is stored is in `object_uploads`. A task that is run again stores all of its objects again: they are the
same in the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import pyarrow as pa

from spark_jetstream.connection import Connection
from spark_jetstream.errors import JetStreamError, OutageError, RowRefused
from spark_jetstream.new_objects import NewObject, ObjectNotStored, UploadSettings
from spark_jetstream.object_content import chunks
from spark_jetstream.object_stream import ObjectStream
from spark_jetstream.object_uploads import ObjectUploads
from spark_jetstream.objects import meta_subject
from spark_jetstream.options import SinkOptions
from spark_jetstream.sink.object_bucket import HINT
from spark_jetstream.sink.object_rows import ObjectColumns, ObjectRow, object_rows
from spark_jetstream.sink.report import TaskReport
from spark_jetstream.sink.task import WriteTask
from spark_jetstream.uploads import Hope


def write_objects(
    batches: Iterable[pa.RecordBatch],
    connect: Callable[[float], Connection],
    options: SinkOptions,
    columns: ObjectColumns,
    task: WriteTask,
) -> TaskReport:
    """Store all rows of a task as objects, in their order; what is stored.

    ``connect(patience)`` gives the connection. Raises `RowRefused` for a row that cannot be stored, `OutageError`,
    `PermissionDenied`, `StreamNotFound` when there is no such bucket.
    """
    begun = time.monotonic()
    with ObjectWriter(connect, options, f"partition {task.partition}") as writer:
        count = 0
        for batch in batches:
            for row in object_rows(batch, columns, count + 1):
                writer.write(row)
            count += batch.num_rows
        return TaskReport(
            partition=task.partition,
            rows=count,
            stored=writer.stored,
            streams=writer.streams,
            seconds=time.monotonic() - begun,
            size=writer.size,
        )


class ObjectWriter:
    """Stores objects, one after the other; use it as a context manager.

    ``where`` says which task it is. ``stored`` counts them, ``size`` is that of their contents in bytes, ``streams``
    are the first and last sequences.
    """

    def __init__(self, connect: Callable[[float], Connection], options: SinkOptions, where: str) -> None:
        assert options.object_bucket is not None
        self.stored = 0
        self.size = 0
        self.streams: dict[str, tuple[int, int]] = {}
        self._where = where
        patience = options.connection.retry_timeout
        settings = UploadSettings(
            max_in_flight=options.max_in_flight,
            ack_timeout=options.ack_timeout,
            retry_timeout=patience,
            max_retries=options.max_retries,
            domain=options.connection.domain,
            mapped=options.connection.api_prefix is not None,
            ack_option="ackTimeout",
            retries=" (option maxRetries)",
        )
        self.bucket = ObjectStream(connect, options.object_bucket, patience, HINT)
        self._uploads = ObjectUploads(connect, self.bucket, settings)

    def __enter__(self) -> ObjectWriter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._uploads.__exit__(*exc_info)

    def write(self, row: ObjectRow) -> None:
        """Store an object; it takes the place of the one that has its name. Raises what `write_objects` does."""
        if row.fault is not None:
            raise self._error(row, ObjectNotStored(row.fault, Hope.NONE))
        content = row.content
        wanted = NewObject(name=row.name, parts=lambda size: chunks(content, size), headers=row.headers)
        try:
            stored = self._uploads.store(wanted)
        except ObjectNotStored as failure:
            if failure.denied is not None:
                raise self._told(row, failure.denied) from None
            raise self._error(row, failure) from None
        except JetStreamError as error:
            if error.retriable:
                raise OutageError(self._said(row, f": {error}")) from None
            raise self._told(row, error) from None
        self.stored += 1
        self.size += len(row.content)
        known = self.streams.get(self.bucket.name, (stored.first, stored.last))
        self.streams[self.bucket.name] = min(known[0], stored.first), max(known[1], stored.last)

    # Words

    def _error(self, row: ObjectRow, failure: ObjectNotStored) -> JetStreamError:
        said = self._said(row, f" cannot be stored: {failure.why}")
        if failure.hope is Hope.OUTAGE:
            return OutageError(said)
        subject = meta_subject(self.bucket.bucket, row.name)
        return RowRefused(said, number=row.number, subject=subject, err_code=failure.err_code, stored=self.stored)

    def _told(self, row: ObjectRow, error: JetStreamError) -> JetStreamError:
        error.args = (self._said(row, f": {error}"),)
        return error

    def _said(self, row: ObjectRow, what: str) -> str:
        count = self.stored
        so_far = f"{count} object{'s' if count != 1 else ''} of it {'are' if count != 1 else 'is'} stored already"
        name, bucket = row.name[:200], self.bucket.bucket
        return f"row {row.number} of {self._where}, object {name!r} of bucket {bucket}{what}; {so_far}"
