"""Objects of a bucket, put, deleted, linked, and described anew (JETSTREAM ADR-20).

Every meta message is stored only in the place of the one that was looked at. So of those who write an object at the
same time the last one wins, and nobody's content goes that is still spoken of. Clients that do not look so, nats-py
among them, are not held up by it.

What the content of an object can be put from: bytes, an iterable of them, a binary file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.messages import Messages
from spark_jetstream.admin.models.objects import OBJECT_STORE, ObjectInfo, object_name
from spark_jetstream.admin.object_reader import ObjectPlace
from spark_jetstream.buckets.object_content import chunks
from spark_jetstream.buckets.object_store import (
    NewObject,
    ObjectNotStored,
    ObjectStream,
    ObjectUploads,
    UploadSettings,
    new_nuid,
    writing_fault,
)
from spark_jetstream.buckets.objects import ObjectMeta, StoredObject, chunk_subject, meta_subject
from spark_jetstream.buckets.uploads import Disposition
from spark_jetstream.client.connection import Connection
from spark_jetstream.errors import ApiError, JetStreamError, MessageNotFound, OptionError, OutageError
from spark_jetstream.protocol.units import shown

_ATTEMPTS = 10  # at a meta message that others replace each time
_IN_FLIGHT = 1000  # messages; bytes are limited elsewhere
_RETRIES = 5


class ObjectWriting:
    """Writes to one bucket. Methods raise `JetStreamError` that says why something is not stored: `ApiError` with the
    server's code where it refused, `OutageError` when it was away for ``retryTimeout``; and what `ObjectPlace` and
    `ObjectStream` raise."""

    def __init__(self, api: Api, place: ObjectPlace) -> None:
        self._api = api
        self._place = place
        self._stream = ObjectStream(self._connect, place.bucket, api.options.retry_timeout)

    def put(self, wanted: NewObject) -> ObjectInfo:
        """Store an object in the place of what has its name."""
        with self._uploads(f"store object {wanted.name!r} in") as uploads:
            stored = uploads.store(wanted)
        return self._done(stored.meta, stored.last)

    def delete(self, name: str) -> None:
        """Delete an object, or a link; `MessageNotFound` when it is not there."""
        for _ in range(_ATTEMPTS):
            found = self._place.there(object_name(name))
            gone = replace(found.meta, deleted=True, size=0, chunks=0, digest="")
            if self._replace(found.sequence, gone, f"delete object {name!r} of") is None:
                continue
            self._remove_chunks(found.meta.nuid)
            return
        raise self._restless(name)

    def link(self, name: str, bucket: str, target: str) -> ObjectInfo:
        """Let a name stand for an object, or with an empty ``target`` for a whole bucket, which must be there."""
        meta = ObjectMeta(bucket=self._place.bucket, name=object_name(name), nuid=new_nuid(), link=(bucket, target))
        for _ in range(_ATTEMPTS):
            before = self._place.newest(name)
            if before is not None and not before.meta.deleted and before.meta.link is None:
                raise self._taken(name, "delete it first, or choose another name for the link")
            sequence = self._replace(before.sequence if before else 0, meta, f"store link {name!r} in")
            if sequence is not None:
                self._remove_chunks(before.meta.nuid if before else "")
                return self._done(meta, sequence)
        raise self._restless(name)

    def describe(
        self,
        name: str,
        description: str | None,
        headers: Mapping[str, Sequence[str]] | None,
        metadata: Mapping[str, str] | None,
    ) -> ObjectInfo:
        """Change what stands beside the content; what is None stays."""
        for _ in range(_ATTEMPTS):
            found = self._place.there(object_name(name))
            meta = described(found.meta, description, headers, metadata)
            if meta == found.meta:
                return ObjectInfo.of(found)
            sequence = self._replace(found.sequence, meta, f"change object {name!r} of")
            if sequence is not None:
                return self._done(meta, sequence)
        raise self._restless(name)

    def rename(self, found: StoredObject, meta: ObjectMeta) -> ObjectInfo:
        """Give an object the name, and whatever else, of ``meta``; it has both names for a moment.

        When it is replaced under its old name in that moment, that has no new name in the end: `JetStreamError`.
        """
        old, bucket = found.meta.name, self._place.bucket
        there = self._place.newest(meta.name)
        # One that has the same chunks is what a rename that was broken off has left.
        other = None if there is None or there.meta.nuid == meta.nuid else there.meta
        if other is not None and not other.deleted:
            raise self._taken(meta.name, "delete it first, or choose another name")
        with self._uploads(f"rename object {old!r} of") as uploads:
            # Who is killed while he replaces an object notes that its chunks may go. These are to stay.
            uploads.disown(old, meta.nuid)
            sequence = uploads.store_meta(meta, there.sequence if there else 0)
            # Not tried again: how many messages went says whether the old name was still that of this object.
            once = ObjectStream(self._connect, bucket, 0.0)
            try:
                removed = once.remove(meta_subject(bucket, old), found.sequence)
            except JetStreamError as error:
                if not error.retriable:
                    raise
                raise OutageError(
                    f"object {old!r} of bucket {bucket} has the name {meta.name!r} now, and maybe still its old one, "
                    f"too: {error}. Rename it once more before anything is put or deleted under either name: they "
                    "share its content"
                ) from None
            if not removed and self._place.newest(old) is not None:
                self._stream.remove(meta_subject(bucket, meta.name), sequence)
                raise JetStreamError(
                    f"object {old!r} of bucket {bucket} keeps its name: somebody else replaced it just now"
                )
            uploads.disown(old, meta.nuid)
        if other is not None:
            self._remove_chunks(other.nuid)
        return self._done(meta, sequence)

    # Parts of it

    def _connect(self, patience: float) -> Connection:
        return self._api.connection

    @contextmanager
    def _uploads(self, what: str) -> Iterator[ObjectUploads]:
        """What stores things; its failures become errors that begin with ``what``, an infinitive without "to"."""
        bucket, options = self._place.bucket, self._api.options
        fault = writing_fault(self._place.info().config, bucket)
        if fault:
            raise JetStreamError(f"cannot {what} bucket {bucket}, which {fault}")
        settings = UploadSettings(
            max_in_flight=_IN_FLIGHT,
            ack_timeout=options.request_timeout,
            retry_timeout=options.retry_timeout,
            max_retries=_RETRIES,
            domain=options.domain,
            mapped=options.api_prefix is not None,
            ack_option="requestTimeout",
            retries="",
        )
        try:
            with OBJECT_STORE.naming(bucket), ObjectUploads(self._connect, self._stream, settings) as uploads:
                yield uploads
        except ObjectNotStored as failure:
            raise _error(f"cannot {what} bucket {bucket}: {failure.why}", failure) from None

    def _replace(self, expected: int, meta: ObjectMeta, what: str) -> int | None:
        """Store a meta message in the place of one; its sequence, None when another one is there by now."""
        with self._uploads(what) as uploads:
            try:
                return uploads.store_meta(meta, expected)
            except ObjectNotStored as failure:
                if not failure.overtaken:
                    raise
                return None

    def _remove_chunks(self, nuid: str) -> None:
        if nuid:
            self._stream.remove(chunk_subject(self._place.bucket, nuid))

    def _done(self, meta: ObjectMeta, sequence: int) -> ObjectInfo:
        """What was stored, with the server's time; without one when somebody has replaced it already."""
        subject = meta_subject(self._place.bucket, meta.name)
        try:
            time = Messages(self._api).get(self._place.stream, sequence).time.nanoseconds
        except MessageNotFound:
            time = 0
        return ObjectInfo.of(StoredObject(meta, subject, sequence, time))

    def _taken(self, name: str, advice: str) -> OptionError:
        return OptionError(f"bucket {self._place.bucket} has an object {name!r} already: {advice}", option="name")

    def _restless(self, name: str) -> JetStreamError:
        return JetStreamError(
            f"object {name!r} of bucket {self._place.bucket} was replaced again each time before it could be changed, "
            f"{_ATTEMPTS} times"
        )


def described(
    meta: ObjectMeta,
    description: str | None,
    headers: Mapping[str, Sequence[str]] | None,
    metadata: Mapping[str, str] | None,
    name: str | None = None,
) -> ObjectMeta:
    """The same with another description, headers, metadata, name; what is None stays."""
    given = {"description": description, "headers": headers, "metadata": metadata, "name": name}
    changed = replace(meta, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    return changed if changed.description else replace(changed, description=None)


def _error(said: str, failure: ObjectNotStored) -> JetStreamError:
    if failure.denied is not None:
        failure.denied.args = (said,)
        return failure.denied
    if failure.hope is Disposition.OUTAGE:
        return OutageError(said)
    if failure.err_code:
        return ApiError(said, code=0, err_code=failure.err_code, description=failure.why)
    return JetStreamError(said)


Progress = Callable[[int, int], None]


class BinaryFile(Protocol):
    """A file that was opened for reading bytes."""

    def read(self, size: int, /) -> bytes | None: ...


Data = bytes | bytearray | memoryview | Iterable[bytes] | BinaryFile
"""What content can be: bytes, pieces of any size, or a binary file, read from where it stands to its end."""


def new_object(name: str, data: Data, progress: Progress | None = None, **fields: Any) -> NewObject:
    """What is to be stored: ``fields`` are others of `NewObject`.

    ``progress`` gets the bytes that went out and how many there are, 0 when that is not known. `OptionError` for data
    that is none; what comes out of an iterable or a file is checked when it comes.
    """
    parts, total, repeatable = _parts(data)

    def counted(size: int) -> Iterator[bytes | memoryview]:
        done = 0
        for part in parts(size):
            yield part
            done += len(part)
            if progress is not None:
                progress(done, total)

    return NewObject(name=name, parts=counted, repeatable=repeatable, **fields)


def _parts(data: Any) -> tuple[Callable[[int], Iterator[bytes | memoryview]], int, bool]:
    """What makes chunks, how many bytes they are in all, and whether it can be done again."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        view = memoryview(data).cast("B")
        return lambda size: chunks(view, size), len(view), True
    if isinstance(data, str):
        raise _wrong("text: encode it")
    if hasattr(data, "read"):
        return _file_parts(data)
    if isinstance(data, Iterable):
        return lambda size: _regular(data, size), 0, False
    raise _wrong(shown(type(data).__name__))


def _file_parts(file: Any) -> tuple[Callable[[int], Iterator[bytes | memoryview]], int, bool]:
    start = total = 0
    repeatable = bool(hasattr(file, "seekable") and file.seekable())
    if repeatable:
        start = file.tell()
        total = max(0, file.seek(0, os.SEEK_END) - start)
        file.seek(start)

    def parts(size: int) -> Iterator[bytes | memoryview]:
        if repeatable:
            file.seek(start)
        return _regular(_pieces(file, size), size)

    return parts, total, repeatable


def _pieces(file: Any, size: int) -> Iterator[Any]:
    """What a file gives, up to its end."""
    while True:
        piece = file.read(size)
        if piece is None:
            raise _wrong("a file that does not wait for its content")
        if not len(piece):
            return
        yield piece


def _regular(pieces: Iterable[Any], size: int) -> Iterator[bytes | memoryview]:
    """Pieces of any size, as pieces of the same size; the last one has what is left."""
    kept = bytearray()
    for piece in pieces:
        if not isinstance(piece, (bytes, bytearray, memoryview)):
            raise _wrong(f"made of {type(piece).__name__}")
        if not kept and len(piece) == size and isinstance(piece, bytes):
            yield piece
            continue
        kept += piece
        whole = len(kept) - len(kept) % size
        if whole:
            ready = memoryview(bytes(kept[:whole]))
            kept = kept[whole:]
            yield from chunks(ready, size)
    if kept:
        yield bytes(kept)


def _wrong(what: str) -> OptionError:
    said = f"the content of an object must be bytes, an iterable of bytes, or a file opened as binary, not {what}"
    return OptionError(said, option="data")
