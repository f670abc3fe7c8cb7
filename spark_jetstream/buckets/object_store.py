"""Stores objects in an Object Store bucket and replaces their meta messages (ADR-20 "JetStream based Object Stores").

Whenever a writer is killed, readers see the old object or the new one, and no chunks stay for good. A writer:

1. Reads the meta message that the object has now, if any.
2. Notes under which ids chunks of the object may be from now on: the id of the version that it replaces, its new id,
   and the ids of an earlier note, whose writers were killed or still write. The note is one message, stored only in
   place of the note that the writer read (`Nats-Expected-Last-Subject-Sequence`).
3. Stores the chunks under the new id, and looks whether the first one is still there: the limits of the stream may
   have removed it, whose answers do not say so.
4. Stores the meta message, only in place of the one that it read. From here on readers see the new object, and another
   writer that noted its ids before cannot store its meta message.
5. Removes the chunks under all other ids of the note, then the note. If the note is gone, it looks whether its chunks
   are still there: where another object had the name and lost it in between, no sequence tells that.

An upload that was refused in part, cut off, or not answered in time is given up as a whole, and started again under
another id. docs/objects.md says what a killed writer leaves.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import secrets
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from spark_jetstream.buckets.kv import EXPECTED
from spark_jetstream.buckets.objects import (
    ObjectMeta,
    ObjectOptions,
    chunk_filter,
    chunk_subject,
    digest_text,
    meta_filter,
    meta_subject,
    stream_name,
)
from spark_jetstream.buckets.uploads import (
    Disposition,
    NotStored,
    ObjectNotStored,
    Uploads,
    UploadSettings,
)
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Backoff, Deadline
from spark_jetstream.client.requests import Connect, Requests, stream_info
from spark_jetstream.errors import (
    ConnectionFailed,
    JetStreamError,
    PermissionDenied,
    ProtocolError,
    StreamNotFound,
)
from spark_jetstream.options import advice
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.conventions import DEFAULT_CHUNK_SIZE, upload_note
from spark_jetstream.protocol.json_text import json_object
from spark_jetstream.protocol.stream import StreamSummary, subject_pattern
from spark_jetstream.streams.lookup import RawMessage, last_message, message, nearest_stream

log = logging.getLogger(__name__)

T = TypeVar("T")

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_TOKEN = re.compile(r"[^\s.*>]+")
_NOTES = 20  # writers of one object at the same time, at most


@dataclass(frozen=True, kw_only=True)
class NewObject:
    """An object to store. ``parts(size)`` makes the chunks, each of ``size`` bytes but the last one, none empty.

    It is called once for each upload, or once in all if not ``repeatable``. ``chunk_size`` is a wish: the server and
    the stream may allow less.
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
    """An object that was stored: its meta message, and the first and the last sequence of all its messages."""

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
        """Count a failure and return whether to try again. An outage may last as long as `retry_timeout`."""
        self._deadline = self._deadline or Deadline(self._settings.connection.retry_timeout)
        self._count += 1
        few = self._count <= self._settings.max_retries
        if disposition is Disposition.OUTAGE:
            return few or not self._deadline.expired
        return few and disposition is Disposition.RETRY


def new_nuid() -> str:
    """Return a fresh id for the chunks of an object."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(22))


def note_subject(bucket: str, name: str) -> str:
    """Return the subject of the note of an object's uploads, among the chunks, where no reader looks."""
    return chunk_subject(bucket, upload_note(name))


def note_body(nuids: Sequence[str]) -> bytes:
    """Return the payload of a note: all ids under which chunks of an object may be."""
    return json.dumps({"version": 1, "uploads": list(nuids)}).encode()


def read_note(data: bytes, subject: str) -> tuple[str, ...]:
    """Return the ids of a note; raise `ProtocolError` for another payload.

    A server leaves an empty message in place of one that expired (ADR-43 "JetStream Per-Message TTL").
    """
    if not data:
        return ()
    try:
        body = json_object(data)
        uploads = body["uploads"] if body["version"] == 1 else None
    except (ValueError, KeyError, TypeError, RecursionError):
        uploads = None
    # An id with a wildcard would match the chunks of other objects.
    if not isinstance(uploads, list) or not all(
        isinstance(nuid, str) and _TOKEN.fullmatch(nuid) for nuid in uploads
    ):
        raise ProtocolError(f"what is noted of uploads at {subject} cannot be read: {data[:120]!r}")
    return tuple(uploads)


class ObjectStream:
    """Requests to the stream of one bucket, each retried for ``patience`` seconds.

    ``hint`` ends the name of the bucket in errors: which option names it. Methods raise `StreamNotFound` when there is
    no such bucket, and what `Connection.api` raises.
    """

    def __init__(self, connect: Connect, bucket: str, patience: float, hint: str = "") -> None:
        self.bucket = bucket
        self.name = stream_name(bucket)
        self._requests = Requests(connect, patience)
        self._hint = hint

    def state(self) -> StreamSummary:
        """Return the state of the stream."""
        context = f"look at bucket {self.bucket}{self._hint}"
        return self._call(lambda connection: stream_info(connection, self.name, context))

    def last(self, subject: str) -> RawMessage | None:
        """Return the last message on a subject, None if there is none."""
        return self._call(lambda connection: last_message(connection, self.name, subject))

    def message(self, sequence: int) -> RawMessage | None:
        """Return the message at a sequence, None if there is none."""
        return self._call(lambda connection: message(connection, self.name, sequence))

    def remove(self, subject: str, last: int | None = None) -> int:
        """Remove all messages on a subject, or those up to a sequence, and return their number."""
        context = f"remove {subject} from bucket {self.bucket}"
        body = (
            jsapi.purge_subject_request(subject)
            if last is None
            else jsapi.purge_request(last + 1, subject)
        )

        def ask(connection: Connection) -> int:
            purge = jsapi.subject(connection.prefix, jsapi.STREAM_PURGE, self.name)
            reply = connection.api(purge, body, context=context)
            return int(jsapi.field(reply, "purged", int, context))

        return self._call(ask)

    def nuid_of(self, meta: RawMessage | None) -> str:
        """Return the id of the chunks of the object with this meta message; "" without one."""
        if meta is None or not meta.data:  # none, or it has expired
            return ""
        try:
            return ObjectMeta.from_json(meta.data, self.bucket).nuid
        except ProtocolError as error:
            log.warning("%s: it is replaced, and its chunks stay", error)
            return ""

    def _call(self, work: Callable[[Connection], T]) -> T:
        try:
            return self._requests.call(work)
        except StreamNotFound as error:
            hint = nearest_stream(
                self._requests.connect, [self.name], stream_name(""), options=bool(self._hint)
            )
            raise jsapi.reworded(
                error, f"there is no Object Store bucket {self.bucket}{self._hint}{hint}"
            ) from None


def writing_fault(state: StreamSummary, bucket: str) -> str:
    """Return why no object can be written to the bucket of a stream, "" if objects can."""
    captured = subject_pattern(state.subjects)
    if state.mirror:
        return "is a mirror, which nobody can write to: write to the bucket that it is a mirror of"
    if state.sealed:
        return "is sealed and takes no more objects"
    if state.no_ack:
        return "has no_ack set on its stream, so nothing says whether an object is stored"
    if state.deny_purge:
        return "has deny_purge set on its stream, so the chunks of what is replaced could never be removed"
    if not all(
        captured.fullmatch(subject.replace(">", "a"))
        for subject in (meta_filter(bucket), chunk_filter(bucket))
    ):
        return f"is no Object Store bucket: stream {state.name} captures {', '.join(state.subjects) or 'nothing'}"
    return ""


@dataclass
class _Upload:
    """One attempt to store an object: its id, its note, and what is stored already.

    ``spared`` are ids that the attempt leaves alone, whatever the note says. ``begun``: its content was read.
    ``offered``: its meta message was sent, so its chunks may belong to an object.
    """

    nuid: str
    spared: frozenset[str] = frozenset()
    replaced: str = ""
    note: int = 0
    noted: tuple[str, ...] = ()
    chunks: list[int] = field(default_factory=list)
    begun: bool = False
    offered: bool = False


class ObjectUploads:
    """Stores objects in one bucket, one after the other; a context manager.

    Methods raise `ObjectNotStored`, `PermissionDenied`, and what the methods of `ObjectStream` raise.
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
        """Store an object in place of the old one, which stays if making the content raises an error."""
        tries = Tries(self._settings)
        gone: set[str] = set()
        spared: set[str] = set()
        while True:
            upload = _Upload(new_nuid(), spared=frozenset(spared))
            try:
                return self._store_once(wanted, upload, tries)
            except NotStored as failure:
                self._recover(failure)
                if failure.overtaken:
                    # The writer that was faster removes its chunks, or the object has a new name and needs them.
                    spared.add(upload.replaced)
                once = upload.begun and not wanted.repeatable
                again = tries.again_after(failure.disposition) and not once
                self._give_up(wanted, upload, failure.settled, gone, forget=not again)
                if not again:
                    why = (
                        "; what its content is made of cannot be read a second time" if once else ""
                    )
                    raise self._final(failure, why) from None
                log.info(
                    "object %r of bucket %s is stored anew: %s",
                    wanted.name[:200],
                    self._bucket,
                    failure.why,
                )
                tries.backoff.pause()
            except BaseException as error:
                # Its content cannot be read, a permission is missing, or the user has pressed Ctrl-C.
                away = isinstance(error, ObjectNotStored) or (
                    isinstance(error, JetStreamError) and error.retriable
                )
                if not (away or upload.offered):
                    self._give_up(wanted, upload, self._uploads.settle(), gone, forget=True)
                raise

    def store_meta(self, meta: ObjectMeta, expected: int) -> int:
        """Store a meta message in place of the one with this sequence (0: none). See `ObjectNotStored.overtaken`."""
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
            noted = self.stream.last(subject)
            known = read_note(noted.data, subject) if noted else ()
            if noted is None or nuid not in known:
                return
            try:
                body = note_body([other for other in known if other != nuid])
                self._uploads.store(subject, [body], _in_place_of(noted.sequence))
            except NotStored as failure:
                self._recover(failure)
                if failure.disposition is Disposition.NONE:
                    raise self._final(failure) from None
        raise ObjectNotStored(
            "others write an object of this name at the same time", Disposition.RETRY
        )

    def _store_once(self, wanted: NewObject, upload: _Upload, tries: Tries) -> StoredUpload:
        subject, size = meta_subject(self._bucket, wanted.name), self._chunk_size(wanted.chunk_size)
        before = self.stream.last(subject)
        upload.replaced = self.stream.nuid_of(before)
        self._note(wanted, upload)
        digest, total = hashlib.sha256(), 0

        def parts() -> Iterator[bytes | memoryview]:
            nonlocal total
            upload.begun = True
            for part in wanted.parts(size):
                digest.update(part)
                total += len(part)
                yield part

        upload.chunks = self._uploads.store(chunk_subject(self._bucket, upload.nuid), parts())
        if len(upload.chunks) > 1 and self.stream.message(upload.chunks[0]) is None:
            raise NotStored(
                f"stream {self.stream.name} has not kept its first chunk: a limit has removed it "
                "(max_msgs_per_subject, max_age, max_msgs, max_bytes), the server has lost what it had stored, or "
                "another writer has stored an object of this name",
                Disposition.RETRY,
                settled=True,
            )
        meta = ObjectMeta(
            bucket=self._bucket,
            name=wanted.name,
            nuid=upload.nuid,
            size=total,
            chunks=len(upload.chunks),
            digest=digest_text(digest.digest()),
            headers=wanted.headers,
            description=wanted.description,
            metadata=wanted.metadata,
            options=ObjectOptions(max_chunk_size=size),
        )
        expected = before.sequence if before else 0
        upload.offered = True
        last = self._store_meta(subject, meta.to_json(), expected, tries, upload)
        if upload.chunks and last <= upload.chunks[-1]:
            # A server that came back without what it had not written to its disk.
            raise NotStored(
                f"stream {self.stream.name} has lost what it had stored",
                Disposition.RETRY,
                settled=True,
            )
        for nuid in upload.noted:
            if nuid != upload.nuid:
                self.stream.remove(chunk_subject(self._bucket, nuid))
        noted = self.stream.remove(note_subject(self._bucket, wanted.name), upload.note)
        if not noted and not self._is_there(upload):
            # Another writer took this note over, stored its object, and gave that another name.
            self.stream.remove(subject, last)
            raise NotStored(
                "another writer has removed its chunks", Disposition.RETRY, settled=True
            )
        return StoredUpload(meta, upload.chunks[0] if upload.chunks else last, last)

    def _note(self, wanted: NewObject, upload: _Upload) -> None:
        """Store the note with the ids of this upload and those of the notes of others."""
        subject = note_subject(self._bucket, wanted.name)
        earlier: RawMessage | None = None
        known: tuple[str, ...] = ()
        for _ in range(_NOTES):
            upload.noted = tuple(
                dict.fromkeys([*known, *filter(None, [upload.replaced]), upload.nuid])
            )
            lines = _in_place_of(earlier.sequence if earlier else 0)
            try:
                (upload.note,) = self._uploads.store(subject, [note_body(upload.noted)], lines)
                break
            except NotStored as failure:
                if not failure.overtaken:
                    raise
            earlier = self.stream.last(subject)
            noted = read_note(earlier.data, subject) if earlier else ()
            known = tuple(nuid for nuid in noted if nuid not in upload.spared)
        else:
            why = "others write an object of this name at the same time"
            if self._settings.connection.domain is not None:
                why += ", or another bucket of this name, in a domain that is nearer, answers"
            raise NotStored(why, Disposition.RETRY, settled=True)
        self._check_place(subject, upload.note)

    def _check_place(self, subject: str, sequence: int) -> None:
        """Raise `NotStored` when a message that was acknowledged is not in the bucket that the API leads to."""
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

    def _store_meta(
        self, subject: str, body: bytes, expected: int, tries: Tries, upload: _Upload | None = None
    ) -> int:
        """Store the meta message in place of the one that was read and return its sequence.

        Without an answer it is sent again until there is one: it is stored once, because of the sequence it expects.
        Its chunks must stay as long as it may still be stored. A refusal ends the `upload`, if there is one.
        """
        in_doubt = False
        while True:
            try:
                (sequence,) = self._uploads.store(subject, [body], _in_place_of(expected))
                return sequence
            except NotStored as failure:
                in_doubt = in_doubt or not failure.settled
                if upload is not None and not in_doubt and not failure.overtaken:
                    raise
                self._recover(failure)
                newest = self.stream.last(subject) if in_doubt or failure.overtaken else None
                if newest is not None and newest.sequence != expected and newest.data == body:
                    return newest.sequence
                if failure.overtaken:
                    # Perhaps by an earlier try of this very message, which `newest` does not show yet.
                    failure.settled = not in_doubt
                    raise
                if upload is not None and not self._is_there(upload):
                    raise NotStored(
                        f"stream {self.stream.name} has lost what it had stored", Disposition.RETRY
                    ) from None
                if not tries.again_after(failure.disposition):
                    raise self._final(failure) from None
                tries.backoff.pause()

    def _is_there(self, upload: _Upload) -> bool:
        """Whether the last chunk of an upload is at the sequence that its acknowledgement named."""
        if not upload.chunks:
            return True
        newest = self.stream.last(chunk_subject(self._bucket, upload.nuid))
        return newest is not None and newest.sequence == upload.chunks[-1]

    # After a failure

    def _recover(self, failure: NotStored) -> None:
        try:
            self._uploads.resume(failure)
        except ConnectionFailed as error:
            raise ObjectNotStored(str(error), Disposition.OUTAGE) from None

    def _give_up(
        self, wanted: NewObject, upload: _Upload, settled: bool, gone: set[str], *, forget: bool
    ) -> None:
        """Remove the chunks of an upload, as far as that is possible now; the note names what is left.

        ``settled``: no message of it can be stored any more; else its meta message, if that was sent, may need them.
        ``gone`` receives the ids that will never have chunks again. With ``forget`` no other upload follows: the note
        is removed as well, unless it names other ids than those and that of the present object.
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
        how_long = {
            Disposition.NONE: "",
            Disposition.RETRY: f", also after {self._settings.max_retries} retries{self._settings.retries}",
            Disposition.OUTAGE: f", for {self._settings.connection.retry_timeout:g} s {advice.RETRY_TIMEOUT}",
        }
        why = f"{failure.why}{more or how_long[failure.disposition]}"
        if failure.silent:
            why += f": {self._uploads.why_silent()}"
        return ObjectNotStored(
            why, failure.disposition, err_code=failure.err_code, denied=failure.denied
        )

    def _chunk_size(self, wanted: int) -> int:
        """Return `wanted`, or how many bytes fit into a message beside the header."""
        if self._max_msg_size is None:
            try:
                self._max_msg_size = self.stream.state().max_msg_size
            except PermissionDenied as error:
                log.info("a limit of bucket %s is not looked at: %s", self._bucket, error)
                self._max_msg_size = -1
        limits = [
            limit for limit in (self._uploads.max_payload, self._max_msg_size) if limit >= 0
        ]  # below 0: none
        size = min(wanted, min(limits) - len(self._uploads.head()))
        if size < 1:
            raise NotStored(
                f"the server, or the bucket's stream, takes messages of so few bytes (max_payload "
                f"{self._uploads.max_payload}, max_msg_size {self._max_msg_size}) that no chunk fits",
                Disposition.NONE,
                settled=True,
            )
        return size


def _in_place_of(sequence: int) -> bytes:
    """Return the header lines of a message that takes the place of only the one with this sequence; 0 for none."""
    return f"Nats-Rollup: sub\r\n{EXPECTED}: {sequence}\r\n".encode()
