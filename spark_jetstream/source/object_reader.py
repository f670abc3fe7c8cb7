"""The rows of an Object Store bucket, read on an executor (JETSTREAM ADR-20).

The content of an object is what its chunks hold, one after the other; it is copied once, from the wire to its place in
the column, and hashed on the way. The rules:

- The objects of one record batch are read by one consumer with a filter for each of them, and told apart by subject.
- A row comes only when number of chunks, bytes and SHA-256 are those of the meta message. When they are not, the meta
  message is read again: an object that was replaced is read in its new version, and one that was deleted has no row.
  One that is still the same is damaged, and one whose meta message is gone was not deleted by a client: this is data
  loss and is raised as such.
- A link to an object has the content of that object, followed once: a link to a link leads nowhere.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from spark_jetstream.buckets.object_content import Assembly
from spark_jetstream.buckets.objects import StoredObject, meta_subject, stored_objects, stream_name
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Backoff
from spark_jetstream.client.pool import retrying
from spark_jetstream.errors import DataLossError, JetStreamError, StreamNotFound
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.columns import Messages, integers, microseconds, repeated
from spark_jetstream.protocol.stream import SequenceRange, StreamState, stream_state
from spark_jetstream.schema import OBJECT_COLUMNS, arrow_schema
from spark_jetstream.source.objects import ObjectGroup, live_objects, refuse_large
from spark_jetstream.streams.pull import PullSettings, read_range

log = logging.getLogger(__name__)

#: Bytes of content in one record batch, unless a single object has more.
BATCH_BYTES = 64 * 1024 * 1024

#: Objects that one consumer reads: it costs as much as many filters, but the server compares each with all others.
TOGETHER = 500

_ROWS = 10_000  # of one record batch
_ATTEMPTS = 10  # at an object that is replaced each time it is read
_DOUBTS = 3  # at what one of several replicas says, which may lag behind the others

Connect = Callable[[float], Connection]
Read = Callable[[Connect, SequenceRange, PullSettings, str], Iterator[Messages]]


def read_objects(
    connect: Connect,
    group: ObjectGroup,
    settings: PullSettings,
    label: str,
    *,
    columns: Sequence[str],
    with_content: bool = True,
    read: Read = read_range,
    together: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """The objects of `group` as rows with just the named columns of `schema.OBJECT_COLUMNS`.

    `connect(patience)` gives the connection, waiting up to so many seconds for it; `label` begins the consumers'
    names. `read` reads a range of sequences: `pulling.read_range`, or another with its signature. `together` is how
    many objects it is asked for at once; by default `TOGETHER` of `read_range`, and one of others. Without content the
    column is null, and nothing is read for it. Raises `DataLossError` (with ``failOnDataLoss=false`` what is damaged or
    leads nowhere is logged and left out), `JetStreamError` for an object that no binary column can hold, and what
    `read` raises.
    """
    place = _Place(group.stream, group.created)
    how = _How(connect, read, settings, label, _filters(read, together))
    yield from _Reading(how, group.bucket, place, columns, with_content).rows(group.objects)


def read_object_range(
    connect: Connect,
    part: SequenceRange,
    settings: PullSettings,
    label: str,
    *,
    bucket: str,
    columns: Sequence[str],
    with_content: bool = True,
    pattern: re.Pattern[str] | None = None,
    read: Read = read_range,
    together: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """The objects whose meta messages lie in `part` and whose whole names `pattern` matches, as `read_objects` has it.

    `part.subjects` is the filter of the bucket's meta messages. A version of an object that is gone, because the
    object was deleted or replaced, has no row: that of a newer version is where its own meta message lies, behind this
    one in the stream. So whoever reads all ranges of a stream has the last version of each object once.
    """
    # Meta messages give way to newer ones: their number promises nothing.
    promised_none = replace(part, count=None)
    plain = replace(settings, headers_only=False)
    objects = live_objects(read(connect, promised_none, plain, label), bucket, pattern)
    place = _Place(part.stream, part.created)
    how = _How(connect, read, settings, label, _filters(read, together))
    yield from _Reading(how, bucket, place, columns, with_content, newer_later=True).rows(objects)


def _filters(read: Read, together: int | None) -> int:
    # Direct Gets have one filter each, so that several at once are only more to put together.
    return together or (TOGETHER if read is read_range else 1)


@dataclass(frozen=True)
class _How:
    connect: Connect
    read: Read
    settings: PullSettings
    label: str
    together: int

    def messages(self, part: SequenceRange) -> Iterator[Messages]:
        """What is in `part`. Raises `DataLossError` whatever the option says: what it means is seen here."""
        settings = replace(self.settings, headers_only=False, fail_on_data_loss=True)
        return self.read(self.connect, part, settings, self.label)


@dataclass(frozen=True)
class _Place:
    """A stream, and when it was created."""

    stream: str
    created: str


@dataclass(frozen=True)
class _Row:
    """An object as the bucket lists it, and the one that its content is of: another one if it is a link."""

    listed: StoredObject
    holder: StoredObject
    place: _Place


class _Reading:
    def __init__(
        self,
        how: _How,
        bucket: str,
        place: _Place,
        columns: Sequence[str],
        with_content: bool,
        *,
        newer_later: bool = False,
    ) -> None:
        self.how = how
        self.bucket = bucket
        self.place = place
        self.columns = columns
        self.schema = arrow_schema(columns, OBJECT_COLUMNS)
        self.with_content = with_content and "content" in columns
        self.follows_links = not {"size", "chunks", "digest", "content"}.isdisjoint(columns)
        self.newer_later = newer_later
        self.replicas: dict[str, int] = {}

    def rows(self, objects: Iterable[StoredObject]) -> Iterator[pa.RecordBatch]:
        """The rows of these objects, in batches."""
        for some in self._portions(objects):
            if self.with_content:
                yield from self._with_content(some)
            else:
                yield self._batch(some, None)

    def _portions(self, objects: Iterable[StoredObject]) -> Iterator[list[_Row]]:
        """The rows of each batch: of one stream where content is read."""
        rows: list[_Row] = []
        total = 0
        for stored in objects:
            row = self._row(stored)
            if row is None:
                continue
            size = row.holder.meta.size if self.with_content else 0
            elsewhere = self.with_content and bool(rows) and row.place != rows[0].place
            if rows and (len(rows) >= _ROWS or total + size > BATCH_BYTES or elsewhere):
                yield rows
                rows, total = [], 0
            rows.append(row)
            total += size
        if rows:
            yield rows

    # Content

    def _with_content(self, rows: list[_Row]) -> Iterator[pa.RecordBatch]:
        content, faults = self._assembled(rows)
        if not any(faults):
            yield self._batch(rows, content)
            return
        if not all(faults):
            whole = pa.array([fault is None for fault in faults])
            yield self._batch(rows, content).filter(whole)
        del content
        for row, fault in zip(rows, faults, strict=True):
            if fault is not None:
                yield from self._again(row, fault)

    def _assembled(self, rows: list[_Row]) -> tuple[pa.BinaryArray, list[str | None]]:
        """The content of each row, and what is wrong with it."""
        for row in rows:
            refuse_large(row.holder.meta, self.bucket)
        assembly = Assembly([(row.holder.meta, row.holder.origin) for row in rows])
        place = rows[0].place
        # The meta message of a version is stored behind its last chunk.
        end = max(row.holder.sequence for row in rows)
        for subjects, count in assembly.wanted(self.how.together):
            part = SequenceRange(place.stream, 1, end, count, place.created, subjects)
            try:
                for messages in self.how.messages(part):
                    assembly.add(messages)
            except DataLossError as error:
                log.info("reading bucket %s: %s", self.bucket, error)
        return assembly.column(), assembly.faults()

    def _again(self, row: _Row, fault: str) -> Iterator[pa.RecordBatch]:
        """The row of an object whose content could not be read as its meta message has it, if it has one."""
        name = f"bucket {self.bucket}, object {row.listed.meta.name!r}"
        doubts, backoff = _DOUBTS, Backoff(0.1)
        for _ in range(_ATTEMPTS):
            try:
                listed = self._newest(self.place, row.listed.subject)
            except DataLossError as error:
                self._lost(f"{name}: {error}")
                return
            if listed is None:
                self._lost(f"{name} is gone: its meta message was purged, or has expired")
                return
            if not listed.readable:
                log.info("%s was deleted while it was read", name)
                return
            if self.newer_later and listed.sequence != row.listed.sequence:
                log.info("%s was replaced before it was read, its new version comes later", name)
                return
            newer = self._row(listed)
            if newer is None:
                return
            if (newer.place, newer.holder.sequence) == (row.place, row.holder.sequence):
                if not doubts or self.replicas[row.place.stream] == 1:
                    self._lost(f"{name} is damaged: {fault}")
                    return
                doubts -= 1
                backoff.pause()
            row = newer
            content, faults = self._assembled([row])
            if faults[0] is None:
                yield self._batch([row], content)
                return
            fault = faults[0]
        raise JetStreamError(f"{name} was replaced again each time it was read, {_ATTEMPTS} times")

    def _lost(self, what: str) -> None:
        if self.how.settings.fail_on_data_loss:
            raise DataLossError(f"{what}; set failOnDataLoss to false to leave it out")
        log.warning("%s; it is left out", what)

    # Meta messages

    def _row(self, stored: StoredObject) -> _Row | None:
        """The row of an object; None for a link that leads nowhere, when that is allowed."""
        if stored.meta.link is None or not self.follows_links:
            return _Row(stored, stored, self.place)
        bucket, name = stored.meta.link
        whose = f"bucket {self.bucket}, object {stored.meta.name!r} is a link to object {name!r} of bucket {bucket}"
        try:
            if bucket in (self.bucket, stored.origin):
                place, origin = self.place, stored.origin
            else:
                place, origin = _Place(stream_name(bucket), self._state(stream_name(bucket)).created), bucket
            target = self._newest(place, meta_subject(origin, name))
        except (StreamNotFound, DataLossError) as error:
            self._lost(f"{whose}, which cannot be read: {error}")
            return None
        if target is None or target.meta.deleted:
            self._lost(f"{whose}, which is not there")
            return None
        if target.meta.link is not None:
            self._lost(f"{whose}, which is a link itself, and only one is followed")
            return None
        return _Row(stored, target, place)

    def _newest(self, place: _Place, subject: str) -> StoredObject | None:
        """The meta message on a subject, None when there is none.

        Raises `DataLossError` when the stream is not the one that was planned.
        """
        state = self._planned(place)
        newest = None
        part = SequenceRange(place.stream, 1, state.last_seq + 1, 1, place.created, (subject,))
        try:
            for messages in self.how.messages(part):
                for stored in stored_objects(messages, self.bucket):
                    newest = stored
        except DataLossError:
            self._planned(place)
        return newest

    def _planned(self, place: _Place) -> StreamState:
        """The state of a stream; `DataLossError` when it is gone, or was created again."""
        try:
            state = self._state(place.stream)
        except StreamNotFound:
            raise DataLossError(f"stream {place.stream} was deleted while it was read") from None
        if state.created != place.created:
            raise DataLossError(f"stream {place.stream} was deleted and created again while it was read")
        return state

    def _state(self, stream: str) -> StreamState:
        patience = self.how.settings.retry_timeout
        context = f"read stream {stream} (option objectBucket)"

        def ask() -> StreamState:
            connection = self.how.connect(patience)
            body = connection.ask(jsapi.stream_info(connection.prefix, stream), b"", context=context)
            self.replicas[stream] = int(jsapi.field(body, "config.num_replicas", int, context))
            return stream_state(body, context)

        return retrying(ask, patience)

    # Columns

    def _batch(self, rows: Sequence[_Row], content: pa.BinaryArray | None) -> pa.RecordBatch:
        arrays: list[pa.Array] = []
        for field in self.schema:
            if field.name == "bucket":
                arrays.append(repeated(self.bucket, len(rows)))
            elif field.name == "name":
                arrays.append(pa.array([row.listed.meta.name for row in rows], field.type))
            elif field.name == "modified":
                arrays.append(microseconds(np.array([row.listed.timestamp for row in rows], np.int64)))
            elif field.name == "headers":
                arrays.append(pa.array([list(row.listed.meta.headers.items()) or None for row in rows], field.type))
            elif field.name == "content":
                arrays.append(pa.nulls(len(rows), field.type) if content is None else content)
            elif field.name == "digest":
                arrays.append(pa.array([row.holder.meta.digest or None for row in rows], field.type))
            else:
                numbers = [getattr(row.holder.meta, field.name) for row in rows]
                arrays.append(integers(np.array(numbers, np.int64)))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
