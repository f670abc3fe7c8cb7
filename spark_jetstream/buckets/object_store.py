"""Stores objects in an Object Store bucket (ADR-20 "JetStream based Object Stores").

Whenever a writer is killed, readers see the old object or the new one, and no chunks stay for good.
A writer:

1. Reads the meta message that the object has now, if any.
2. Notes under which ids chunks of the object may be from now on. They are the id of the version
   that it replaces, its new id, and the ids of an earlier note, whose writers were killed or still
   write. The note is one message, stored only in place of the note that the writer read
   (`Nats-Expected-Last-Subject-Sequence`).
3. Stores the chunks under the new id, and checks whether the stream still has the first one.
4. Stores the meta message, only in place of the one that it read. From here on readers see the new
   object, and another writer that noted its ids before cannot store its meta message.
5. Removes the chunks under all other ids of the note, then the note. If the note is gone, it checks
   whether the stream still has its chunks: no sequence shows that another object had the name and
   lost it in between.

The writer gives an upload up as a whole if it was refused in part, cut off, or not answered in
time. It starts again under another id. See docs/objects.md for the leftovers of a killed writer.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_jetstream.buckets.kv import EXPECTED
from spark_jetstream.buckets.object_stream import ObjectStream
from spark_jetstream.buckets.objects import (
    ObjectMeta,
    ObjectOptions,
    chunk_subject,
    digest_text,
    meta_subject,
)
from spark_jetstream.buckets.upload_notes import note_body, note_subject, read_note
from spark_jetstream.buckets.uploads import (
    Disposition,
    NotStored,
    ObjectNotStored,
    Uploads,
    UploadSettings,
)
from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.client.requests import Connect
from spark_jetstream.errors import ConnectionFailed, JetStreamError, PermissionDenied
from spark_jetstream.options import advice
from spark_jetstream.protocol.conventions import DEFAULT_CHUNK_SIZE

log = logging.getLogger(__name__)

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_NOTES = 20  # writers of one object at the same time, at most
_CROWDED = "others write an object of this name at the same time"


@dataclass(frozen=True, kw_only=True)
class NewObject:
    """An object to store.

    ``parts(size)`` makes the chunks, each of ``size`` bytes but the last one, none empty. It is
    called once for each upload, or once in all if not ``repeatable``. ``chunk_size`` is a wish: the
    server and the stream may allow less.
    """

    name: str
    parts: Callable[[int], Iterable[bytes | memoryview]]
    headers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    description: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    chunk_size: int = DEFAULT_CHUNK_SIZE
    repeatable: bool = True


@dataclass(frozen=True)
class StoredUpload:
    """An object that was stored: its meta message, and its first and last sequence."""

    meta: ObjectMeta
    first: int
    last: int


class Tries:
    """Counts the attempts to store one object, and their time."""

    def __init__(self, settings: UploadSettings) -> None:
        self.backoff = Backoff()
        self._settings = settings
        self._count = 0
        self._deadline: Deadline | None = None

    def again_after(self, disposition: Disposition) -> bool:
        """Count a failure and return whether to try again.

        An outage may last as long as `retry_timeout`.
        """
        self._deadline = self._deadline or Deadline(self._settings.connection.retry_timeout)
        self._count += 1
        few = self._count <= self._settings.max_retries
        if disposition is Disposition.OUTAGE:
            return few or not self._deadline.expired
        # `max_retries` bounds refusals; only an outage may last beyond it:
        # test_only_an_outage_may_last_beyond_the_retries.
        return few and disposition is Disposition.RETRY


def new_nuid() -> str:
    """Return a fresh id for the chunks of an object."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(22))


@dataclass
class _Upload:
    """One attempt to store an object: its id, its note, and what is stored already.

    ``spared`` are ids that the attempt leaves alone, whatever the note says. ``begun``: its content
    was read. ``offered``: its meta message was sent, so its chunks may belong to an object.
    """

    nuid: str
    spared: frozenset[str] = frozenset()
    replaced: str = ""
    note: int = 0
    noted: tuple[str, ...] = ()
    chunks: list[int] = field(default_factory=list)
    begun: bool = False
    offered: bool = False
    size: int = 0
    sha256: Any = field(default_factory=hashlib.sha256)

    def parts(self, wanted: NewObject, chunk_size: int) -> Iterator[bytes | memoryview]:
        """Yield the chunks of an object, and count and hash their bytes."""
        self.begun = True
        for part in wanted.parts(chunk_size):
            self.sha256.update(part)
            self.size += len(part)
            yield part


class ObjectUploads:
    """Stores objects in one bucket, one after the other; a context manager.

    Methods raise `ObjectNotStored`, `PermissionDenied`, and what the methods of `ObjectStream`
    raise.
    """

    def __init__(self, connect: Connect, stream: ObjectStream, settings: UploadSettings) -> None:
        self.stream = stream
        self._bucket = stream.bucket
        self._settings = settings
        self._uploads = Uploads(connect, stream.name, settings)
        self._max_msg_size: int | None = None

    def __enter__(self) -> ObjectUploads:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._uploads.close()

    def store(self, wanted: NewObject) -> StoredUpload:
        """Store an object in place of the old one, which stays if an error ends the content."""
        tries = Tries(self._settings)
        # Ids of this object that will never have chunks again: a note of these alone may go.
        gone: set[str] = set()
        # Ids that a faster writer may need, so that no note of this writer has them removed.
        spared: set[str] = set()
        while True:
            upload = _Upload(new_nuid(), spared=frozenset(spared))
            try:
                return self._store_once(wanted, upload, tries)
            except NotStored as failure:
                self._recover(failure)
                if failure.overtaken:
                    # The writer that was faster removes its chunks, or the object has a new name
                    # and needs them.
                    spared.add(upload.replaced)
                self._prepare_another(wanted, upload, failure, tries, gone)
                tries.backoff.pause()
            except BaseException as error:
                # Its content cannot be read, a permission is missing, or the user has pressed
                # Ctrl-C.
                # The chunks stay if the server is away,
                # and if the meta message that names them may be stored.
                if not (_is_outage(error) or upload.offered):
                    self._give_up(wanted, upload, self._uploads.settle(), gone, forget=True)
                raise

    def store_meta(self, meta: ObjectMeta, expected: int) -> int:
        """Store a meta message in place of the one with this sequence (0: none).

        See `ObjectNotStored.overtaken`.
        """
        subject = meta_subject(self._bucket, meta.name)
        try:
            sequence = self._store_meta(subject, meta.to_json(), expected, Tries(self._settings))
            self._check_place(subject, sequence)
            return sequence
        except NotStored as failure:
            raise self._final(failure) from None

    def disown(self, name: str, nuid: str) -> None:
        """Take an id out of the note of an object's uploads, so that nothing removes its chunks."""
        subject = note_subject(self._bucket, name)
        for _ in range(_NOTES):
            sequence, noted = self._noted(subject)
            if nuid not in noted:
                return
            body = note_body([other for other in noted if other != nuid])
            try:
                self._uploads.store(subject, [body], _in_place_of(sequence))
            except NotStored as failure:
                self._recover(failure)
                if failure.disposition is Disposition.NONE:
                    raise self._final(failure) from None
        raise ObjectNotStored(_CROWDED, Disposition.RETRY)

    # One upload

    def _store_once(self, wanted: NewObject, upload: _Upload, tries: Tries) -> StoredUpload:
        """Make one attempt, by the steps at the head of this module."""
        subject = meta_subject(self._bucket, wanted.name)
        size = self._chunk_size(wanted.chunk_size)
        # The note follows this look,
        # so it has the id of the version that the meta message replaces.
        before = self.stream.last(subject)
        upload.replaced = self.stream.nuid_of(before)
        # Before the first chunk: if this writer is killed, the next writer of the name finds its
        # chunks.
        self._note(wanted, upload)
        self._store_chunks(wanted, upload, size)
        meta = ObjectMeta(
            bucket=self._bucket,
            name=wanted.name,
            nuid=upload.nuid,
            size=upload.size,
            chunks=len(upload.chunks),
            digest=digest_text(upload.sha256.digest()),
            headers=wanted.headers,
            description=wanted.description,
            metadata=wanted.metadata,
            options=ObjectOptions(max_chunk_size=size),
        )
        expected = before.sequence if before else 0
        # An error from here on may leave the meta message stored, so its chunks must stay.
        upload.offered = True
        last = self._store_meta(subject, meta.to_json(), expected, tries, upload)
        if upload.chunks and last <= upload.chunks[-1]:
            # A server that came back without what it had not written to its disk.
            raise self._lost_messages(settled=True)
        self._remove_replaced(wanted, upload, subject, last)
        first = upload.chunks[0] if upload.chunks else last
        return StoredUpload(meta, first, last)

    def _note(self, wanted: NewObject, upload: _Upload) -> None:
        """Store the note with the ids of this upload and those of the notes of others."""
        subject = note_subject(self._bucket, wanted.name)
        sequence = 0
        others: list[str] = []
        for _ in range(_NOTES):
            # `dict.fromkeys` drops repeated ids and keeps their order.
            own = [upload.replaced, upload.nuid] if upload.replaced else [upload.nuid]
            upload.noted = tuple(dict.fromkeys([*others, *own]))
            body = note_body(upload.noted)
            try:
                (upload.note,) = self._uploads.store(subject, [body], _in_place_of(sequence))
            except NotStored as failure:
                # The note of another writer is in the way: the next try has the ids of both.
                if not failure.overtaken:
                    raise
            else:
                self._check_place(subject, upload.note)
                return
            sequence, noted = self._noted(subject)
            others = [nuid for nuid in noted if nuid not in upload.spared]
        why = _CROWDED
        if self._settings.connection.domain is not None:
            why += ", or another bucket of this name, in a domain that is nearer, answers"
        raise NotStored(why, Disposition.RETRY, settled=True)

    def _noted(self, subject: str) -> tuple[int, tuple[str, ...]]:
        """Return the sequence of the note on a subject, and its ids; 0 and none without a note."""
        note = self.stream.last(subject)
        if note is None:
            return 0, ()
        return note.sequence, read_note(note.data, subject)

    def _store_chunks(self, wanted: NewObject, upload: _Upload, size: int) -> None:
        """Store the content, and check that the stream still has its beginning."""
        subject = chunk_subject(self._bucket, upload.nuid)
        upload.chunks = self._uploads.store(subject, upload.parts(wanted, size))
        # The limits of a stream remove messages that it has acknowledged, and no answer says so.
        if len(upload.chunks) > 1 and self.stream.message(upload.chunks[0]) is None:
            raise NotStored(
                f"stream {self.stream.name} has not kept its first chunk: a limit removed it "
                "(max_msgs_per_subject, max_age, max_msgs, max_bytes), the server lost stored "
                "messages, or another writer stored an object of this name",
                Disposition.RETRY,
                settled=True,
            )

    def _store_meta(
        self, subject: str, body: bytes, expected: int, tries: Tries, upload: _Upload | None = None
    ) -> int:
        """Store the meta message in place of the one that was read and return its sequence.

        Without an answer it is sent again until there is one: it is stored once, because of the
        sequence it expects. Its chunks must stay as long as it may still be stored. A refusal ends
        the `upload`, if there is one.
        """
        in_doubt = False
        while True:
            try:
                (sequence,) = self._uploads.store(subject, [body], _in_place_of(expected))
                return sequence
            except NotStored as failure:
                in_doubt = in_doubt or not failure.settled
                # A refused sequence may be that of an earlier copy of this message,
                # which was stored.
                look = in_doubt or failure.overtaken
                if upload is not None and not look:
                    raise
                self._recover(failure)
                stored = self._stored_since(subject, body, expected) if look else None
                if stored is not None:
                    return stored
                if failure.overtaken:
                    # Perhaps by an earlier try of this very message, which no look shows yet.
                    failure.settled = not in_doubt
                    raise
                self._require_another_try(failure, tries, upload)
                tries.backoff.pause()

    def _require_another_try(
        self, failure: NotStored, tries: Tries, upload: _Upload | None
    ) -> None:
        """Raise why a meta message is not sent again: its chunks are gone, or no try is left."""
        if upload is not None and not self._is_there(upload):
            raise self._lost_messages(settled=False) from None
        if not tries.again_after(failure.disposition):
            raise self._final(failure) from None

    def _stored_since(self, subject: str, body: bytes, expected: int) -> int | None:
        """Return the sequence of a message that was stored although no answer said so, or None."""
        newest = self.stream.last(subject)
        if newest is None or newest.sequence == expected or newest.data != body:
            return None
        return newest.sequence

    def _remove_replaced(self, wanted: NewObject, upload: _Upload, subject: str, last: int) -> None:
        """Remove the chunks under all other ids of the note, and the note.

        The meta message is the one on ``subject`` at sequence ``last``.
        """
        # The meta message is stored, so readers no longer need the chunks of other ids.
        for nuid in upload.noted:
            if nuid != upload.nuid:
                self.stream.remove(chunk_subject(self._bucket, nuid))
        noted = self.stream.remove(note_subject(self._bucket, wanted.name), upload.note)
        if not noted and not self._is_there(upload):
            # Another writer took this note over, stored its object, and gave that another name.
            # The meta message names chunks that are gone: readers would find a damaged object
            # (test_a_name_that_was_taken_and_given_up_before_a_put_ends).
            self.stream.remove(subject, last)
            raise NotStored(
                "another writer has removed its chunks", Disposition.RETRY, settled=True
            )

    def _check_place(self, subject: str, sequence: int) -> None:
        """Raise `NotStored` for an acknowledged message that is not where the API leads."""
        # An API prefix and the subjects may lead to different streams.
        if self._settings.connection.api_prefix is None:
            return
        newest = self.stream.last(subject)
        if newest is None or newest.sequence != sequence:
            why = (
                f"what is published to {subject} is stored elsewhere than where "
                f"{advice.API_PREFIX} leads"
            )
            raise NotStored(why, Disposition.NONE, settled=True)

    def _is_there(self, upload: _Upload) -> bool:
        """Whether the last chunk of an upload is at the sequence that its acknowledgement named."""
        if not upload.chunks:
            return True
        # In a stream that has lost its end the last chunk is gone, or was an earlier one.
        newest = self.stream.last(chunk_subject(self._bucket, upload.nuid))
        return newest is not None and newest.sequence == upload.chunks[-1]

    def _lost_messages(self, *, settled: bool) -> NotStored:
        why = f"stream {self.stream.name} has lost what it had stored"
        return NotStored(why, Disposition.RETRY, settled=settled)

    # After a failure

    def _recover(self, failure: NotStored) -> None:
        try:
            self._uploads.resume(failure)
        except ConnectionFailed as error:
            raise ObjectNotStored(str(error), Disposition.OUTAGE) from None

    def _prepare_another(
        self,
        wanted: NewObject,
        upload: _Upload,
        failure: NotStored,
        tries: Tries,
        gone: set[str],
    ) -> None:
        """Give an upload up. Raise `ObjectNotStored` if no other one follows."""
        # Such content is gone once it was read: another upload would store less.
        once = upload.begun and not wanted.repeatable
        again = tries.again_after(failure.disposition) and not once
        self._give_up(wanted, upload, failure.settled, gone, forget=not again)
        if not again:
            why = "; what its content is made of cannot be read a second time" if once else ""
            raise self._final(failure, why) from None
        log.info(
            "object %r of bucket %s is stored anew: %s",
            wanted.name[:200],
            self._bucket,
            failure.why,
        )

    def _give_up(
        self, wanted: NewObject, upload: _Upload, settled: bool, gone: set[str], *, forget: bool
    ) -> None:
        """Remove the chunks of an upload, as far as that is possible now; the note names the rest.

        ``settled``: no message of it can be stored any more; else its meta message, if that was
        sent, may need them. ``gone`` receives the ids that will never have chunks again. With
        ``forget`` no other upload follows: the note is removed as well, unless it names other ids
        than those and that of the present object.
        """
        if not upload.note or (upload.offered and not settled):
            return
        try:
            self.stream.remove(chunk_subject(self._bucket, upload.nuid))
            if settled:
                gone.add(upload.nuid)
            if forget and {*upload.noted} <= {upload.replaced, *gone}:
                self.stream.remove(note_subject(self._bucket, wanted.name), upload.note)
        except JetStreamError as error:
            log.info("the chunks of an upload that was given up are not removed yet: %s", error)

    def _final(self, failure: NotStored, more: str = "") -> ObjectNotStored:
        why = f"{failure.why}{more or self._how_long(failure.disposition)}"
        if failure.silent:
            why += f": {self._uploads.why_silent()}"
        return ObjectNotStored(
            why, failure.disposition, err_code=failure.err_code, denied=failure.denied
        )

    def _how_long(self, disposition: Disposition) -> str:
        """Return how long the writer has tried, as the end of a sentence."""
        if disposition is Disposition.RETRY:
            settings = self._settings
            return f", also after {settings.max_retries} retries{settings.retries}"
        if disposition is Disposition.OUTAGE:
            return f", for {self._settings.connection.retry_timeout:g} s {advice.RETRY_TIMEOUT}"
        return ""

    def _chunk_size(self, wanted: int) -> int:
        """Return `wanted`, or how many bytes fit into a message beside the header."""
        if self._max_msg_size is None:
            try:
                self._max_msg_size = self.stream.state().max_msg_size
            except PermissionDenied as error:
                log.info("a limit of bucket %s is not looked at: %s", self._bucket, error)
                # No limit is known: the server refuses a chunk that is too large.
                self._max_msg_size = -1
        max_payload = self._uploads.max_payload
        limits = [limit for limit in (max_payload, self._max_msg_size) if limit >= 0]  # < 0: none
        size = min(wanted, min(limits) - len(self._uploads.head()))
        if size < 1:
            raise NotStored(
                "the server, or the bucket's stream, takes messages of so few bytes (max_payload "
                f"{max_payload}, max_msg_size {self._max_msg_size}) that no chunk fits",
                Disposition.NONE,
                settled=True,
            )
        return size


def _is_outage(error: BaseException) -> bool:
    """Whether an upload ended because the server was away."""
    if isinstance(error, ObjectNotStored):
        return True
    return isinstance(error, JetStreamError) and error.retriable


def _in_place_of(sequence: int) -> bytes:
    """Return the header lines of a message that replaces only the one with a sequence (0: none)."""
    # A message with another sequence is refused, and rolls nothing up.
    return f"Nats-Rollup: sub\r\n{EXPECTED}: {sequence}\r\n".encode()
