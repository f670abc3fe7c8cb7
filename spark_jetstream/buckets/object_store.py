"""Objects stored in an Object Store bucket, and their meta messages replaced (JETSTREAM ADR-20).

How an object is stored, so that whoever is killed at whatever moment, readers see the old object or the new one, and
nothing stays behind for good:

1. Look at the meta message that the object has now, if any.
2. Note under which ids chunks of it may lie from now on: those of the version it replaces, the new ones, and those that
   an earlier note names, whose writers were killed or are still at it. The note is one message, written only in the
   place of the one that was read (`Nats-Expected-Last-Subject-Sequence`).
3. Store the chunks under a new id.
4. Store the meta message, only in the place of the one that was looked at. From here on the new object is what readers
   see, and no other writer who has noted ids before can store his any more.
5. Remove the chunks under all other ids of the note, then the note.

Who writes an object again does all of this again: it is the same in the end, and what an attempt before has left behind
is in the note. An upload of which anything was refused, cut off, or not answered in time is given up as a whole, and
begun anew under another id.

What is to be stored in an Object Store bucket, how often that is tried, and how it may end.

What is noted of the uploads of an object, so that nothing stays behind of those that were killed. Pure.

The note is one message beside the chunks; `object_uploads` says when it is written.

What is asked of an Object Store bucket's stream by those who write: state, messages, removal of them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import secrets
import string
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from spark_jetstream.buckets.object_content import chunk_size
from spark_jetstream.buckets.objects import (
    DEFAULT_CHUNK_SIZE,
    ROLLUP_HEADER,
    ROLLUP_SUBJECT,
    ObjectMeta,
    chunk_filter,
    chunk_subject,
    digest_text,
    meta_filter,
    meta_subject,
    stream_name,
)
from spark_jetstream.buckets.uploads import WRONG_SEQUENCE, Disposition, NotStored, Uploads
from spark_jetstream.client.connection import Connection
from spark_jetstream.client.deadline import Backoff
from spark_jetstream.client.requests import Connect, Requests, stream_info
from spark_jetstream.errors import ConnectionFailed, JetStreamError, PermissionDenied, ProtocolError, StreamNotFound
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.conventions import upload_note
from spark_jetstream.protocol.stream import StreamState, subject_pattern
from spark_jetstream.streams.lookup import StoredMessage, last_message

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase


class ObjectNotStored(Exception):
    """An object was not stored, and there is to be no other try. Who wrote it makes his own error of this.

    ``why`` ends a sentence. With the hope `OUTAGE` an outage lasted longer than `retryTimeout`; ``denied`` is the
    account's missing permission, and ``err_code`` the server's reason, 0 without one.
    """

    def __init__(
        self, why: str, hope: Disposition, *, err_code: int = 0, denied: PermissionDenied | None = None
    ) -> None:
        super().__init__(why)
        self.why = why
        self.hope = hope
        self.err_code = err_code
        self.denied = denied

    @property
    def overtaken(self) -> bool:
        """Whether another meta message is there than the one that was to be replaced."""
        return self.err_code in WRONG_SEQUENCE


@dataclass(frozen=True, kw_only=True)
class UploadSettings:
    """Times in seconds. ``mapped``: an API prefix leads to the bucket, which need not be where subjects lead.

    ``ack_option`` and ``retries`` are how errors speak of two settings.
    """

    max_in_flight: int
    ack_timeout: float
    retry_timeout: float
    max_retries: int
    domain: str | None
    mapped: bool
    ack_option: str
    retries: str


@dataclass(frozen=True, kw_only=True)
class NewObject:
    """What is to be stored. ``parts(size)`` makes the chunks, each of ``size`` bytes but the last one, none empty.

    It is called once for each upload, or once in all if not ``repeatable``. ``chunk_size`` is what is asked for; server
    and stream may allow less.
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
    """How often and for how long one object has been tried."""

    def __init__(self, settings: UploadSettings) -> None:
        self._most = settings.max_retries
        self._patience = settings.retry_timeout
        self._count = 0
        self._since: float | None = None
        self._backoff = Backoff()

    def left(self, hope: Disposition) -> bool:
        """After a failure: whether there is to be another try. An outage may also last for `retryTimeout`."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        self._count += 1
        if hope is Disposition.OUTAGE:
            return self._count <= self._most or now - self._since <= self._patience
        return hope is Disposition.RETRY and self._count <= self._most

    def pause(self) -> None:
        """Sleep before the next try."""
        self._backoff.pause()


def new_nuid() -> str:
    """A fresh id for the chunks of an object."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(22))


_TOKEN = re.compile(r"[^\s.*>]+")


def note_subject(bucket: str, name: str) -> str:
    """Where it is noted which uploads of an object have begun; among the chunks, where no reader looks."""
    return chunk_subject(bucket, upload_note(name))


def note_body(nuids: Sequence[str]) -> bytes:
    """The note: all ids under which chunks of an object may lie, except those that were removed."""
    return json.dumps({"version": 1, "uploads": list(nuids)}).encode()


def read_note(data: bytes, subject: str) -> tuple[str, ...]:
    """The ids of a note; `ProtocolError` when it is none."""
    try:
        body = json.loads(data)
        uploads = body["uploads"] if body["version"] == 1 else None
    except (ValueError, KeyError, TypeError):
        uploads = None
    # An id with a wildcard in it would stand for the chunks of others.
    if not isinstance(uploads, list) or not all(isinstance(each, str) and _TOKEN.fullmatch(each) for each in uploads):
        raise ProtocolError(f"what is noted of uploads at {subject} cannot be read: {data[:120]!r}")
    return tuple(uploads)


log = logging.getLogger(__name__)

T = TypeVar("T")


class ObjectStream:
    """The stream of one bucket; whatever may pass is tried again for ``patience`` seconds.

    ``hint`` ends what errors say of the bucket: which option names it. Methods raise `StreamNotFound` when there is no
    such bucket, and what `Connection.api` raises.
    """

    def __init__(self, connect: Connect, bucket: str, patience: float, hint: str = "") -> None:
        self.bucket = bucket
        self.name = stream_name(bucket)
        self._requests = Requests(connect, patience)
        self._hint = hint

    def state(self) -> StreamState:
        """What the stream says of itself."""
        context = f"look at bucket {self.bucket}{self._hint}"
        return self._call(lambda connection: stream_info(connection, self.name, context))

    def last(self, subject: str) -> StoredMessage | None:
        """The last message on a subject."""
        return self._call(lambda connection: last_message(connection, self.name, subject))

    def remove(self, subject: str, last: int | None = None) -> int:
        """Remove all messages on a subject, or those up to a sequence; how many that were."""
        context = f"remove {subject} from bucket {self.bucket}"
        body = jsapi.purge_subject_request(subject) if last is None else jsapi.purge_request(last + 1, subject)

        def ask(connection: Connection) -> int:
            reply = connection.api(jsapi.stream_purge(connection.prefix, self.name), body, context=context)
            return int(jsapi.field(reply, "purged", int, context))

        return self._call(ask)

    def nuid_of(self, meta: StoredMessage | None) -> str:
        """Where the chunks of the object with this meta message lie; "" for none."""
        if meta is None:
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
            raise StreamNotFound(
                f"there is no Object Store bucket {self.bucket}{self._hint}",
                code=error.code,
                err_code=error.err_code,
                description=error.description,
            ) from None


class Settings(Protocol):
    """What a stream says of itself, or how it is set up."""

    @property
    def name(self) -> str: ...
    @property
    def subjects(self) -> tuple[str, ...]: ...
    @property
    def mirror(self) -> object: ...
    @property
    def sealed(self) -> bool: ...
    @property
    def no_ack(self) -> bool: ...
    @property
    def deny_purge(self) -> bool: ...


def writing_fault(state: Settings, bucket: str) -> str:
    """Why no object can be written to the bucket that a stream is, or ""."""
    captured = subject_pattern(state.subjects)
    if state.mirror:
        return "is a mirror, which nobody can write to: write to the bucket that it is a mirror of"
    if state.sealed:
        return "is sealed and takes no more objects"
    if state.no_ack:
        return "has no_ack set on its stream, so nothing says whether an object is stored"
    if state.deny_purge:
        return "has deny_purge set on its stream, so the chunks of what is replaced could never be removed"
    if not all(captured.fullmatch(each.replace(">", "a")) for each in (meta_filter(bucket), chunk_filter(bucket))):
        return f"is no Object Store bucket: stream {state.name} captures {', '.join(state.subjects) or 'nothing'}"
    return ""


_ROLLUP = f"{ROLLUP_HEADER}: {ROLLUP_SUBJECT}\r\n"
_NOTES = 20  # writers of one object at the same time, at most


@dataclass
class _Upload:
    """One try to store an object: its id, the note it stands in, and what is there already.

    ``spared`` are ids that are none of its business any more, whatever is noted. ``begun``: its content was asked for.
    ``offered``: its meta message was sent, and its chunks may be an object's.
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
    """Stores objects in one bucket, one after the other; use it as a context manager.

    All methods raise `ObjectNotStored`, what the methods of `ObjectStream` raise, and `PermissionDenied`.
    """

    def __init__(self, connect: Connect, stream: ObjectStream, settings: UploadSettings) -> None:
        self.stream = stream
        self._bucket = stream.bucket
        self._settings = settings
        self._uploads = Uploads(
            connect,
            stream.name,
            max_in_flight=settings.max_in_flight,
            ack_timeout=settings.ack_timeout,
            retry_timeout=settings.retry_timeout,
            domain=settings.domain,
            ack_option=settings.ack_option,
        )
        self._max_msg_size: int | None = None

    def __enter__(self) -> ObjectUploads:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._uploads.__exit__(*exc_info)

    def store(self, wanted: NewObject) -> StoredUpload:
        """Store an object, with as many uploads as it takes; it takes the place of the one that has its name.

        What making its content raises comes out as it is: the old object stays.
        """
        tries = Tries(self._settings)
        gone: set[str] = set()
        spared: set[str] = set()
        while True:
            upload = _Upload(new_nuid(), spared=frozenset(spared))
            try:
                return self._store_once(wanted, upload, tries)
            except NotStored as failure:
                self._recover(failure)
                if failure.err_code in WRONG_SEQUENCE:
                    # Whoever was quicker removes its chunks, or it has got another name and needs them.
                    spared.add(upload.replaced)
                once = upload.begun and not wanted.repeatable
                again = tries.left(failure.hope) and not once
                self._give_up(wanted, upload, failure.settled, gone, forget=not again)
                if not again:
                    why = "; what its content is made of cannot be read a second time" if once else ""
                    raise self._final(failure, why) from None
                log.info("object %r of bucket %s is stored anew: %s", wanted.name[:200], self._bucket, failure.why)
                tries.pause()
            except BaseException as error:
                # Its content cannot be had, something is forbidden, or somebody has pressed Ctrl-C.
                away = isinstance(error, ObjectNotStored) or (isinstance(error, JetStreamError) and error.retriable)
                if not (away or upload.offered):
                    self._give_up(wanted, upload, self._uploads.settle(), gone, forget=True)
                raise

    def store_meta(self, meta: ObjectMeta, expected: int) -> int:
        """Store a meta message in the place of the one with a sequence (0 for none at all); its own sequence.

        `ObjectNotStored.overtaken` when another one is there.
        """
        tries = Tries(self._settings)
        subject = meta_subject(self._bucket, meta.name)
        while True:
            try:
                sequence = self._store_meta(subject, meta.to_json(), expected, tries, lambda: True)
                self._check_place(subject, sequence)
                return sequence
            except NotStored as failure:
                self._recover(failure)
                if failure.err_code in WRONG_SEQUENCE or not tries.left(failure.hope):
                    raise self._final(failure) from None
                tries.pause()

    def disown(self, name: str, nuid: str) -> None:
        """Let the chunks under an id no longer be removed with what was noted of uploads of an object of this name."""
        subject = note_subject(self._bucket, name)
        for _ in range(_NOTES):
            noted = self.stream.last(subject)
            known = read_note(noted.data, subject) if noted else ()
            if noted is None or nuid not in known:
                return
            try:
                body = note_body([each for each in known if each != nuid])
                self._uploads.store(subject, [body], _in_place_of(noted.sequence))
            except NotStored as failure:
                self._recover(failure)
                if failure.hope is Disposition.NONE:
                    raise self._final(failure) from None
        raise ObjectNotStored("others write an object of this name at the same time", Disposition.RETRY)

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
            max_chunk_size=size,
        )
        expected = before.sequence if before else 0
        upload.offered = True
        last = self._store_meta(subject, meta.to_json(), expected, tries, lambda: self._is_there(upload))
        if upload.chunks and last <= upload.chunks[-1]:
            # A server that came back without what it had not written to its disk.
            raise NotStored(f"stream {self.stream.name} has lost what it had stored", Disposition.RETRY, settled=True)
        for nuid in upload.noted:
            if nuid != upload.nuid:
                self.stream.remove(chunk_subject(self._bucket, nuid))
        self.stream.remove(note_subject(self._bucket, wanted.name), upload.note)
        return StoredUpload(meta, upload.chunks[0] if upload.chunks else last, last)

    def _note(self, wanted: NewObject, upload: _Upload) -> None:
        """Note what is to be removed unless it is the object: with what others have noted, and not over theirs."""
        subject = note_subject(self._bucket, wanted.name)
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
            earlier = self.stream.last(subject)
            known = (
                tuple(each for each in read_note(earlier.data, subject) if each not in upload.spared) if earlier else ()
            )
        else:
            why = "others write an object of this name at the same time"
            if self._settings.domain is not None:
                why += ", or another bucket of this name, in a domain that is nearer, answers"
            raise NotStored(why, Disposition.RETRY, settled=True)
        self._check_place(subject, upload.note)

    def _check_place(self, subject: str, sequence: int) -> None:
        """Raise `NotStored` when a message that was acknowledged is not in the bucket that the API leads to."""
        if not self._settings.mapped:
            return
        # Where an API prefix leads and where subjects lead need not be the same.
        found = self.stream.last(subject)
        if found is None or found.sequence != sequence:
            why = f"what is published to {subject} is stored elsewhere than where option apiPrefix leads"
            raise NotStored(why, Disposition.NONE, settled=True)

    def _store_meta(
        self, subject: str, body: bytes, expected: int, tries: Tries, is_complete: Callable[[], bool]
    ) -> int:
        """Store the meta message in the place of the one that was looked at; its sequence.

        Without an answer it is sent until there is one: the same message is stored once, because of what it expects. As
        long as it may come to be stored its chunks have to stay.
        """
        in_doubt = False
        while True:
            try:
                (sequence,) = self._uploads.store(subject, [body], _in_place_of(expected))
                return sequence
            except NotStored as failure:
                overtaken = failure.err_code in WRONG_SEQUENCE
                in_doubt = in_doubt or not failure.settled
                if not in_doubt and not overtaken:
                    raise
                self._recover(failure)
                found = self.stream.last(subject)
                if found is not None and found.sequence != expected and found.data == body:
                    return found.sequence
                if overtaken:
                    raise
                if not is_complete():
                    raise NotStored(
                        f"stream {self.stream.name} has lost what it had stored", Disposition.RETRY
                    ) from None
                if not tries.left(failure.hope):
                    raise self._final(failure) from None
                tries.pause()

    def _is_there(self, upload: _Upload) -> bool:
        """Whether the last chunk of an upload is where the acknowledgement has said."""
        if not upload.chunks:
            return True
        found = self.stream.last(chunk_subject(self._bucket, upload.nuid))
        return found is not None and found.sequence == upload.chunks[-1]

    # After a failure

    def _recover(self, failure: NotStored) -> None:
        try:
            self._uploads.resume(failure)
        except ConnectionFailed as error:
            raise ObjectNotStored(str(error), Disposition.OUTAGE) from None

    def _give_up(self, wanted: NewObject, upload: _Upload, settled: bool, gone: set[str], *, forget: bool) -> None:
        """Remove what an upload has stored, as far as that is possible now; what is left stands in the note.

        ``settled``: nothing of it can come to be stored any more. ``gone`` takes the ids under which nothing will ever
        lie again. With ``forget`` there will be no other upload: the note goes as well, unless it names more than those
        and the object as it is.
        """
        if not upload.note:
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
        """The end of all tries."""
        how_long = more
        if failure.hope is Disposition.OUTAGE and not more:
            how_long = f", for {self._settings.retry_timeout:g} s (option retryTimeout)"
        elif failure.hope is Disposition.RETRY and not more:
            how_long = f", also after {self._settings.max_retries} retries{self._settings.retries}"
        why = f"{failure.why}{how_long}"
        return ObjectNotStored(why, failure.hope, err_code=failure.err_code, denied=failure.denied)

    def _chunk_size(self, wanted: int) -> int:
        if self._max_msg_size is None:
            try:
                self._max_msg_size = self.stream.state().max_msg_size
            except PermissionDenied as error:
                log.info("a limit of bucket %s is not looked at: %s", self._bucket, error)
                self._max_msg_size = -1
        head = len(self._uploads.head())
        size = chunk_size(self._uploads.max_payload, self._max_msg_size, head, wanted)
        if size < 1:
            raise NotStored(
                f"the server, or the bucket's stream, takes messages of so few bytes (max_payload "
                f"{self._uploads.max_payload}, max_msg_size {self._max_msg_size}) that no chunk fits",
                Disposition.NONE,
                settled=True,
            )
        return size


def _in_place_of(sequence: int) -> bytes:
    """Header lines of a message that takes the place of this one, and of no other; 0 for none at all."""
    return f"{_ROLLUP}Nats-Expected-Last-Subject-Sequence: {sequence}\r\n".encode()
