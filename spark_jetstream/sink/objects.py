"""One task of a write to an Object Store bucket: rows in, every object stored when it returns.

How an object is stored (JETSTREAM ADR-20), so that whoever is killed at whatever moment, readers see the old object or
the new one, and nothing stays behind for good:

1. Look at the meta message that the object has now, if any.
2. Note under which ids chunks of it may lie from now on: those of the version it replaces, the new ones, and those that
   an earlier note names, whose writers were killed or are still at it. The note is one message, written only in the
   place of the one that was read (`Nats-Expected-Last-Subject-Sequence`).
3. Store the chunks under a new id.
4. Store the meta message, only in the place of the one that was looked at. From here on the new object is what readers
   see, and no other writer who has noted ids before can store his any more.
5. Remove the chunks under all other ids of the note, then the note.

A task that is run again does all of this again: the object is the same in the end, and what an attempt before it has
left behind is in the note. An upload of which anything was refused, cut off, or not answered in time is given up as a
whole, and begun anew under another id.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import string
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from spark_jetstream.connection import Connection
from spark_jetstream.deadline import Backoff
from spark_jetstream.errors import (
    ConnectionFailed,
    JetStreamError,
    OutageError,
    PermissionDenied,
    RowRefused,
)
from spark_jetstream.lookup import StoredMessage
from spark_jetstream.objects import (
    ROLLUP_HEADER,
    ROLLUP_SUBJECT,
    ObjectMeta,
    chunk_subject,
    digest_text,
    meta_subject,
)
from spark_jetstream.options import SinkOptions
from spark_jetstream.sink.object_bucket import ObjectBucket
from spark_jetstream.sink.object_rows import (
    ObjectColumns,
    ObjectRow,
    chunk_size,
    chunks,
    note_body,
    note_subject,
    object_rows,
    read_note,
)
from spark_jetstream.sink.report import TaskReport
from spark_jetstream.sink.task import WriteTask
from spark_jetstream.sink.uploads import WRONG_SEQUENCE, Hope, NotStored, Uploads

log = logging.getLogger(__name__)

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_ROLLUP = f"{ROLLUP_HEADER}: {ROLLUP_SUBJECT}\r\n"
_NOTES = 20  # writers of one object at the same time, at most


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


@dataclass
class _Upload:
    """One try to store a row: its id, the note it stands in, and what is there already."""

    nuid: str
    replaced: str = ""
    note: int = 0
    noted: tuple[str, ...] = ()
    chunks: list[int] = field(default_factory=list)


class _Tries:
    """How often and for how long one object has been tried."""

    def __init__(self, options: SinkOptions) -> None:
        self._most = options.max_retries
        self._patience = options.connection.retry_timeout
        self._count = 0
        self._since: float | None = None
        self._backoff = Backoff()

    def left(self, hope: Hope) -> bool:
        """After a failure: whether there is to be another try. An outage may also last for `retryTimeout`."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        self._count += 1
        if hope is Hope.OUTAGE:
            return self._count <= self._most or now - self._since <= self._patience
        return hope is Hope.RETRY and self._count <= self._most

    def pause(self) -> None:
        self._backoff.pause()


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
        self._options = options
        self._where = where
        self._patience = options.connection.retry_timeout
        self.bucket = ObjectBucket(connect, options.object_bucket, self._patience)
        self._mapped = options.connection.api_prefix is not None
        self._uploads = Uploads(
            connect,
            self.bucket.stream,
            max_in_flight=options.max_in_flight,
            ack_timeout=options.ack_timeout,
            retry_timeout=self._patience,
            domain=options.connection.domain,
        )
        self._max_msg_size: int | None = None

    def __enter__(self) -> ObjectWriter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._uploads.__exit__(*exc_info)

    def write(self, row: ObjectRow) -> None:
        """Store an object; it takes the place of the one that has its name. Raises what `write_objects` does."""
        if row.fault is not None:
            raise self._refusal(row, NotStored(row.fault, Hope.NONE))
        try:
            first, last = self._store(row)
        except (RowRefused, OutageError):
            raise
        except JetStreamError as error:
            said = f"{self._what(row)}: {error}; {self._so_far()}"
            if error.retriable:
                raise OutageError(said) from None
            error.args = (said,)
            raise
        self.stored += 1
        self.size += len(row.content)
        known = self.streams.get(self.bucket.stream, (first, last))
        self.streams[self.bucket.stream] = min(known[0], first), max(known[1], last)

    # One object

    def _store(self, row: ObjectRow) -> tuple[int, int]:
        """Store an object, with as many uploads as it takes; the first and the last sequence of it."""
        tries = _Tries(self._options)
        gone: set[str] = set()
        while True:
            upload = _Upload("".join(secrets.choice(_ALPHABET) for _ in range(22)))
            try:
                return self._store_once(row, upload, tries)
            except NotStored as failure:
                self._recover(failure, row)
                again = tries.left(failure.hope)
                self._give_up(row, upload, failure, gone, forget=not again)
                if not again:
                    raise self._final(failure, row) from None
                log.info("%s is stored anew: %s", self._what(row), failure.why)
                tries.pause()

    def _store_once(self, row: ObjectRow, upload: _Upload, tries: _Tries) -> tuple[int, int]:
        subject, size = meta_subject(self.bucket.name, row.name), self._chunk_size()
        before = self.bucket.last(subject)
        upload.replaced = self.bucket.nuid_of(before)
        self._note(row, upload)
        digest = hashlib.sha256()

        def parts() -> Iterator[memoryview]:
            for part in chunks(row.content, size):
                digest.update(part)
                yield part

        upload.chunks = self._uploads.store(chunk_subject(self.bucket.name, upload.nuid), parts())
        meta = ObjectMeta(
            bucket=self.bucket.name,
            name=row.name,
            nuid=upload.nuid,
            size=len(row.content),
            chunks=len(upload.chunks),
            digest=digest_text(digest.digest()),
            headers=row.headers,
            max_chunk_size=size,
        )
        last = self._store_meta(row, upload, subject, before.sequence if before else 0, meta, tries)
        for nuid in upload.noted:
            if nuid != upload.nuid:
                self.bucket.remove(chunk_subject(self.bucket.name, nuid))
        self.bucket.remove(note_subject(self.bucket.name, row.name), upload.note)
        return upload.chunks[0] if upload.chunks else last, last

    def _note(self, row: ObjectRow, upload: _Upload) -> None:
        """Note what is to be removed unless it is the object: with what others have noted, and not over theirs."""
        subject = note_subject(self.bucket.name, row.name)
        earlier: StoredMessage | None = None
        known: tuple[str, ...] = ()
        for _ in range(_NOTES):
            upload.noted = tuple(dict.fromkeys([*known, *filter(None, [upload.replaced]), upload.nuid]))
            lines = _in_place_of(earlier.sequence if earlier else 0)
            try:
                (upload.note,) = self._uploads.store(subject, [note_body(upload.noted)], lines)
                break
            except NotStored as failure:
                if failure.err_code not in WRONG_SEQUENCE:
                    raise
            earlier = self.bucket.last(subject)
            known = read_note(earlier.data, subject) if earlier else ()
        else:
            why = "others write an object of this name at the same time"
            if self._options.connection.domain is not None:
                why += ", or another bucket of this name, in a domain that is nearer, answers"
            raise NotStored(why, Hope.RETRY, settled=True)
        if self._mapped:
            # Where an API prefix leads and where subjects lead need not be the same.
            found = self.bucket.last(subject)
            if found is None or found.sequence != upload.note:
                why = f"what is published to {subject} is stored elsewhere than where option apiPrefix leads"
                raise NotStored(why, Hope.NONE, settled=True)

    def _store_meta(
        self, row: ObjectRow, upload: _Upload, subject: str, expected: int, meta: ObjectMeta, tries: _Tries
    ) -> int:
        """Store the meta message in the place of the one that was looked at; its sequence.

        Without an answer it is sent until there is one: the same message is stored once, because of what it expects. As
        long as it may come to be stored its chunks have to stay.
        """
        in_doubt = False
        while True:
            try:
                (sequence,) = self._uploads.store(subject, [meta.to_json()], _in_place_of(expected))
                break
            except NotStored as failure:
                overtaken = failure.err_code in WRONG_SEQUENCE
                in_doubt = in_doubt or not failure.settled
                if not in_doubt and not overtaken:
                    raise
                self._recover(failure, row)
                found = self.bucket.last(subject)
                if found is not None and self.bucket.nuid_of(found) == upload.nuid:
                    sequence = found.sequence
                    break
                if overtaken:
                    raise
                if upload.chunks and not self._is_there(upload):
                    raise NotStored(f"stream {self.bucket.stream} has lost what it had stored", Hope.RETRY) from None
                if not tries.left(failure.hope):
                    raise self._final(failure, row) from None
                tries.pause()
        if upload.chunks and sequence <= upload.chunks[-1]:
            # A server that came back without what it had not written to its disk.
            raise NotStored(f"stream {self.bucket.stream} has lost what it had stored", Hope.RETRY, settled=True)
        return sequence

    def _is_there(self, upload: _Upload) -> bool:
        """Whether the last chunk of an upload is where the acknowledgement has said."""
        found = self.bucket.last(chunk_subject(self.bucket.name, upload.nuid))
        return found is not None and found.sequence == upload.chunks[-1]

    # After a failure

    def _recover(self, failure: NotStored, row: ObjectRow) -> None:
        try:
            self._uploads.resume(failure)
        except ConnectionFailed as error:
            raise OutageError(f"{self._what(row)} cannot be stored: {error}; {self._so_far()}") from None

    def _give_up(self, row: ObjectRow, upload: _Upload, failure: NotStored, gone: set[str], *, forget: bool) -> None:
        """Remove what an upload has stored, as far as that is possible now; what is left stands in the note.

        ``gone`` takes the ids under which nothing will ever lie again. With ``forget`` there will be no other upload:
        the note goes as well, unless it names more than those and the object as it is.
        """
        if not upload.note:
            return
        try:
            self.bucket.remove(chunk_subject(self.bucket.name, upload.nuid))
            if failure.settled:
                gone.add(upload.nuid)
            if forget and {*upload.noted} <= {upload.replaced, *gone}:
                self.bucket.remove(note_subject(self.bucket.name, row.name), upload.note)
        except JetStreamError as error:
            log.info("the chunks of an upload that was given up are not removed yet: %s", error)

    def _final(self, failure: NotStored, row: ObjectRow) -> JetStreamError:
        """The error for a row when there is to be no other try."""
        if failure.denied is not None:
            return failure.denied
        if failure.hope is Hope.OUTAGE:
            return OutageError(
                f"{self._what(row)} cannot be stored: {failure.why}, for {self._patience:g} s (option retryTimeout); "
                f"{self._so_far()}"
            )
        return self._refusal(row, failure)

    def _chunk_size(self) -> int:
        if self._max_msg_size is None:
            try:
                self._max_msg_size = self.bucket.state().max_msg_size
            except PermissionDenied as error:
                log.info("a limit of bucket %s is not looked at: %s", self.bucket.name, error)
                self._max_msg_size = -1
        head = len(self._uploads.head())
        size = chunk_size(self._uploads.max_payload, self._max_msg_size, head)
        if size < 1:
            raise NotStored(
                f"the server, or the bucket's stream, takes messages of so few bytes (max_payload "
                f"{self._uploads.max_payload}, max_msg_size {self._max_msg_size}) that no chunk fits",
                Hope.NONE,
                settled=True,
            )
        return size

    # Words

    def _what(self, row: ObjectRow) -> str:
        return f"row {row.number} of {self._where}, object {row.name[:200]!r} of bucket {self.bucket.name}"

    def _so_far(self) -> str:
        count = self.stored
        return f"{count} object{'s' if count != 1 else ''} of it {'are' if count != 1 else 'is'} stored already"

    def _refusal(self, row: ObjectRow, failure: NotStored) -> RowRefused:
        retried = ""
        if failure.hope is Hope.RETRY:
            retried = f", also after {self._options.max_retries} retries (option maxRetries)"
        return RowRefused(
            f"{self._what(row)} cannot be stored: {failure.why}{retried}; {self._so_far()}",
            number=row.number,
            subject=meta_subject(self.bucket.name, row.name),
            err_code=failure.err_code,
            stored=self.stored,
        )


def _in_place_of(sequence: int) -> bytes:
    """Header lines of a message that takes the place of this one, and of no other; 0 for none at all."""
    return f"{_ROLLUP}Nats-Expected-Last-Subject-Sequence: {sequence}\r\n".encode()
