"""Reads the rows of an Object Store bucket on an executor (ADR-20 "JetStream based Object Stores").

Content is copied once, from the wire to the column, and hashed at the same time. The rules:

- One consumer with a filter for each object reads the objects of a record batch; subjects tell them
  apart.
- `ContentReader` checks the content, and reads the new version of an object that was replaced. One
  that was deleted has no row, and one whose meta message is gone was not deleted by a client
  (docs/objects.md, "Checks of an object").
- Links and objects without content have no chunks that could show a change: their meta messages are
  read again first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import pyarrow as pa

from spark_jetstream.buckets.content_reader import (
    ATTEMPTS,
    BucketStream,
    ContentReader,
    ObjectVersion,
    Reading,
)
from spark_jetstream.buckets.object_content import Assembly
from spark_jetstream.buckets.objects import StoredObject, meta_subject, stored_objects, stream_name
from spark_jetstream.client.requests import Connect, Requests, info_of
from spark_jetstream.errors import DataLossError, StreamNotFound
from spark_jetstream.options.source import SourceOptions
from spark_jetstream.protocol.arrow import repeated
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.protocol.stream import SequenceRange, StreamSummary
from spark_jetstream.schema import OBJECT_COLUMNS, arrow_schema
from spark_jetstream.source.advice import READERS, Read
from spark_jetstream.source.objects import ObjectGroup, live_objects, reads_content, refuse_large
from spark_jetstream.streams.latest import END
from spark_jetstream.streams.pull import PullSettings

log = logging.getLogger(__name__)

BATCH_BYTES = 64 * 1024 * 1024
"""Bytes of content in one record batch, unless a single object has more."""
BATCH_ROWS = 10_000
"""Rows of one record batch."""

#: Objects that one consumer reads. More save consumers, but the server compares each filter with
#: all others.
TOGETHER = 500


class ObjectRows:
    """Reads objects of the options' bucket as rows, for a task.

    The rows have just the named columns of `schema.OBJECT_COLUMNS`. `label` begins the consumers'
    names. Methods raise `DataLossError` for a damaged object or dangling link (logged with
    ``failOnDataLoss=false``), `JetStreamError` for one too large for a binary column, and the
    errors of `read`. All attributes but `replicas`, `missing`, `stream` and `newer_later` are set
    once.
    """

    def __init__(
        self,
        connect: Connect,
        settings: PullSettings,
        label: str,
        options: SourceOptions,
        columns: Sequence[str],
        *,
        read: Read | None = None,
        together: int | None = None,
        attempts: int = ATTEMPTS,
        batch_bytes: int = BATCH_BYTES,
        batch_rows: int = BATCH_ROWS,
    ) -> None:
        """Read as the options say, or by ``read`` with up to ``together`` objects at once.

        A record batch has at most ``batch_rows`` rows, and ``batch_bytes`` bytes of content unless
        a single object has more.
        """
        direct = options.read_with == "direct"
        self.connect = connect
        self.options = options
        self.read = read or READERS["direct" if direct else "consumer"]
        # What a loss of messages means is decided here, whatever the option says.
        self.settings = replace(settings, headers_only=False, fail_on_data_loss=True)
        self.fail_on_data_loss = settings.fail_on_data_loss
        self.label = label
        # Direct Gets have one filter each: several at once only have to be put together.
        self.together = together or (1 if direct else TOGETHER)
        self.batch_bytes = batch_bytes
        self.batch_rows = batch_rows
        self.bucket = options.named(options.read_streams[0])
        self.schema = arrow_schema(columns, OBJECT_COLUMNS)
        self.with_content = reads_content(options, columns)
        self.follows_links = not {"size", "chunks", "digest", "content"}.isdisjoint(columns)
        self.replicas: dict[str, int] = {}
        #: What to say of streams that are gone: all objects, and many links, may be there, and a
        #: look takes `Timing.election`.
        self.missing: dict[BucketStream, str] = {}
        self.requests = Requests(connect, settings.retry_timeout)
        self.contents = ContentReader(
            self._read_part,
            self._newer,
            named=lambda row: self._name(row.listed),
            lost=self._lost,
            may_lag=self._may_lag,
            together=self.together,
            attempts=attempts,
        )

    def of_group(self, group: ObjectGroup) -> Iterator[pa.RecordBatch]:
        """Read the objects of a group."""
        return self._rows(
            BucketStream(group.stream, group.created), group.objects, newer_later=False
        )

    def of_range(self, part: SequenceRange) -> Iterator[pa.RecordBatch]:
        """Read the objects with meta messages in `part`.

        `part.subjects` is the filter of the bucket's meta messages. The reader reads all of the
        range before it yields the first row, because a later message may replace the first. A
        version that was replaced or deleted has no row (docs/objects.md, "A streaming query over
        objects").
        """
        # Newer meta messages replace older ones, so that their number may be smaller than planned.
        uncounted = replace(part, count=None)
        settings = replace(self.settings, fail_on_data_loss=self.fail_on_data_loss)
        metas = self.read(self.connect, uncounted, settings, self.label)
        objects = live_objects(metas, self.bucket, self.options.path_glob_filter)
        yield from self._rows(BucketStream(part.stream, part.created), objects, newer_later=True)

    def _rows(
        self, stream: BucketStream, objects: Sequence[StoredObject], *, newer_later: bool
    ) -> Iterator[pa.RecordBatch]:
        """Read objects of `stream`.

        `newer_later`: a newer version of an object has a row of its own, later.
        """
        self.stream = stream
        self.newer_later = newer_later
        if not self.with_content:
            for rows in self._portions(objects):
                yield self._batch(rows, None)
            return
        for rows in self._portions(self._renewed(objects)):
            yield from self._with_content(rows)

    def _portions(self, objects: Iterable[StoredObject]) -> Iterator[list[ObjectVersion]]:
        """Return the rows of each batch, which have one stream where content is read."""
        rows: list[ObjectVersion] = []
        total = 0
        for stored in objects:
            row = self._row(stored)
            if row is None:
                continue
            size = row.holder.meta.size if self.with_content else 0
            if rows and self._is_full(rows, total + size, row):
                yield rows
                rows = []
                total = 0
            rows.append(row)
            total += size
        if rows:
            yield rows

    def _is_full(self, rows: Sequence[ObjectVersion], total: int, following: ObjectVersion) -> bool:
        """Whether a batch ends before the next row, with which it would have `total` bytes."""
        if len(rows) >= self.batch_rows or total > self.batch_bytes:
            return True
        return self.with_content and following.stream != rows[0].stream

    # Content

    def _with_content(self, rows: list[ObjectVersion]) -> Iterator[pa.RecordBatch]:
        for reading in self.contents.readings(rows):
            yield from self._whole(reading)

    def _whole(self, reading: Reading) -> Iterator[pa.RecordBatch]:
        """Read contents, and yield the rows of the objects whose content is right, if any is."""
        metas = [row.holder.meta for row in reading.versions]
        for meta in metas:
            refuse_large(meta, self.bucket)
        assembly = Assembly([meta.size for meta in metas])
        for index, chunk in reading.chunks():
            assembly.add(index, chunk)
        whole = [fault is None for fault in reading.faults()]
        if all(whole):
            yield self._batch(reading.versions, assembly.column())
        elif any(whole):
            yield self._batch(reading.versions, assembly.column()).filter(pa.array(whole))

    def _read_part(self, part: SequenceRange) -> Iterator[MessageRun]:
        return self.read(self.connect, part, self.settings, self.label)

    def _newer(self, row: ObjectVersion) -> ObjectVersion | None:
        """Return the row that an object has now, None if it has none, or gets it later."""
        listed = self._current([row.listed])[row.listed.subject]
        return None if listed is None else self._row(listed)

    def _may_lag(self, row: ObjectVersion) -> bool:
        """Whether the server that returned the meta message of a row may lack a newer one."""
        return self.replicas[row.stream.name] != 1

    def _name(self, stored: StoredObject) -> str:
        return f"bucket {self.bucket}, object {stored.meta.name[:200]!r}"

    def _lost(self, what: str) -> None:
        if self.fail_on_data_loss:
            raise DataLossError(f"{what}; set failOnDataLoss to false to leave it out")
        log.warning("%s; it is left out", what)

    # Meta messages

    def _row(self, stored: StoredObject) -> ObjectVersion | None:
        """Return the row of an object.

        It has none if it is a link that leads nowhere, when that is allowed, or that was deleted or
        replaced since it was read.
        """
        if stored.meta.link is None or not self.follows_links:
            return ObjectVersion(stored, stored, self.stream)
        bucket, name = stored.meta.link
        found = self._followed(stored, bucket, name)
        if isinstance(found, ObjectVersion):
            return found
        # The link may have gone before its target.
        listed = self._current([stored])[stored.subject]
        if listed is None:
            return None
        if listed.sequence != stored.sequence:
            return self._row(listed)
        self._lost(
            f"{self._name(stored)} is a link to object {name!r} of bucket {bucket}, which {found}"
        )
        return None

    def _followed(self, link: StoredObject, bucket: str, name: str) -> ObjectVersion | str:
        """Return the row of a link to an object of a bucket, or why it has none."""
        stream = self.stream
        origin = link.origin
        try:
            if link.leads_out_of(self.bucket):
                state = self._linked(stream_name(bucket))
                stream = BucketStream(state.name, state.created)
                # A mirror has the subjects of the bucket that it mirrors.
                origin = "*" if state.mirror else bucket
            newest = self._newest(stream, [meta_subject(origin, name)])
        except DataLossError as error:
            return f"cannot be read: {error}"
        target = next(iter(newest.values()), None)
        if target is None or target.meta.deleted:
            return "is not there"
        if target.meta.link is not None:
            return "is a link itself, and only one is followed"
        return ObjectVersion(link, target, stream)

    def _linked(self, name: str) -> StreamSummary:
        """Return the state of the stream of another bucket.

        Raise `DataLossError` when there is none.
        """
        context = f"read stream {name} (option objectBucket)"
        linked = BucketStream(name, "")
        if linked not in self.missing:
            try:
                return self.requests.call(lambda to: info_of(to, name, None, context))
            except StreamNotFound as error:
                self.missing[linked] = str(error)
        raise DataLossError(self.missing[linked])

    def _renewed(self, objects: Sequence[StoredObject]) -> list[StoredObject]:
        """Return the objects that have rows.

        Links, and objects without content, are as they are now.
        """
        bare = [stored for stored in objects if not _shows_changes(stored)]
        current: dict[str, StoredObject | None] = {}
        for at in range(0, len(bare), self.together):
            current |= self._current(bare[at : at + self.together])
        renewed = []
        for stored in objects:
            now = current.get(stored.subject, stored)
            if now is not None:
                renewed.append(now)
        return renewed

    def _current(self, objects: Sequence[StoredObject]) -> dict[str, StoredObject | None]:
        """Return the object that each subject of these objects has now.

        It is None for an object that has no row, or gets one later.
        """
        current: dict[str, StoredObject | None] = {}
        for stored in objects:
            current[stored.subject] = None
        try:
            newest = self._newest(self.stream, list(current))
        except DataLossError as error:
            for stored in objects:
                self._lost(f"{self._name(stored)}: {error}")
            return current
        for stored in objects:
            listed = newest.get(stored.subject)
            if listed is None:
                self._lost(
                    f"{self._name(stored)} is gone: its meta message was purged, or has expired"
                )
            elif not listed.readable:
                log.info("%s was deleted while it was read", self._name(stored))
            elif self.newer_later and listed.sequence != stored.sequence:
                log.info(
                    "%s was replaced before it was read, its new version comes later",
                    self._name(stored),
                )
            else:
                current[stored.subject] = listed
        return current

    def _newest(self, stream: BucketStream, subjects: Sequence[str]) -> dict[str, StoredObject]:
        """Return the meta message on each of the subjects that has one.

        Raise what `_planned` raises.
        """
        self._planned(stream)
        newest: dict[str, StoredObject] = {}
        # Without an end: one that is stored from now on has already removed the one before it.
        part = SequenceRange(stream.name, 1, END, len(subjects), stream.created, tuple(subjects))
        try:
            for messages in self.read(self.connect, part, self.settings, self.label):
                for stored in stored_objects(messages, self.bucket):
                    newest[stored.subject] = stored
        except DataLossError:
            self._planned(stream)
        return newest

    def _planned(self, stream: BucketStream) -> None:
        """Note how many replicas a stream has.

        Raise `DataLossError` when it is gone, or was created again.
        """
        name = stream.name
        created = stream.created
        context = f"read stream {name} (option objectBucket)"
        lost = self.missing.get(stream)
        if lost is None:
            try:
                state = self.requests.call(lambda to: info_of(to, name, created, context))
                if state.created == created:
                    self.replicas[name] = state.num_replicas
                    return
                lost = f"stream {name} was deleted and created again after this read was planned"
            except StreamNotFound:
                lost = f"stream {name} was deleted after this read was planned"
        self.missing[stream] = lost
        raise DataLossError(lost)

    # Columns

    def _batch(
        self, rows: Sequence[ObjectVersion], content: pa.BinaryArray | None
    ) -> pa.RecordBatch:
        columns = [self._column(field, rows, content) for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _column(
        self, field: pa.Field, rows: Sequence[ObjectVersion], content: pa.BinaryArray | None
    ) -> pa.Array:
        if field.name == "bucket":
            return repeated(self.bucket, len(rows))
        if field.name == "content":
            if content is None:
                return pa.nulls(len(rows), field.type)
            return content
        value = _VALUES[field.name]
        return pa.array([value(row) for row in rows], field.type)


def _shows_changes(stored: StoredObject) -> bool:
    """Whether an object has chunks, which show that it was replaced while it was read."""
    if stored.meta.link:
        return False
    return bool(stored.meta.size or stored.meta.chunks)


def _digest(row: ObjectVersion) -> str | None:
    return row.holder.meta.digest or None


def _modified(row: ObjectVersion) -> int:
    """Return when the bucket got an object, in microseconds."""
    return row.listed.timestamp // 1000


def _headers(row: ObjectVersion) -> list[tuple[str, Sequence[str]]] | None:
    return list(row.listed.meta.headers.items()) or None


#: The value of a row in each column, except for `bucket` and `content`. Of a link, the size and the
#: digest are those of the object that it leads to.
_VALUES: Mapping[str, Callable[[ObjectVersion], Any]] = {
    "name": attrgetter("listed.meta.name"),
    "size": attrgetter("holder.meta.size"),
    "chunks": attrgetter("holder.meta.chunks"),
    "digest": _digest,
    "modified": _modified,
    "headers": _headers,
}
