"""Writes of objects: put, delete, link, rename, change the meta message (ADR-20 "JetStream based Object Stores").

A meta message is stored only if the one that the writer has read is still the latest. So of several writers the last
one wins, and no writer removes content that a meta message refers to. Clients without this check, such as nats-py, can
write at the same time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.messages import Messages
from spark_jetstream.admin.models.objects import OBJECT_STORE, ObjectInfo, object_name
from spark_jetstream.admin.object_reader import ObjectReader
from spark_jetstream.buckets.object_content import chunks
from spark_jetstream.buckets.object_store import (
    NewObject,
    ObjectNotStored,
    ObjectStream,
    ObjectUploads,
    new_nuid,
    writing_fault,
)
from spark_jetstream.buckets.objects import ObjectMeta, StoredObject, chunk_subject, meta_subject
from spark_jetstream.buckets.uploads import Disposition, UploadSettings
from spark_jetstream.errors import ApiError, JetStreamError, MessageNotFound, OptionError, OutageError
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.stream import stream_summary
from spark_jetstream.protocol.units import shown

_ATTEMPTS = 10  # at a meta message that others replace each time
_IN_FLIGHT = 1000  # messages; bytes are limited elsewhere
_RETRIES = 5


class ObjectWriter:
    """Writes to one bucket.

    Methods raise `ApiError` when the server refuses a message, `OutageError` when it was away for option
    ``retryTimeout``, another `JetStreamError` for another reason, and what `ObjectReader` and `ObjectStream` raise.
    """

    def __init__(self, api: Api, reader: ObjectReader) -> None:
        self._api = api
        self._reader = reader
        self._stream = ObjectStream(api.connect, reader.bucket, api.options.retry_timeout)

    def put(self, wanted: NewObject) -> ObjectInfo:
        """Store an object, in place of the one that has its name."""
        with self._uploads(f"store object {wanted.name!r} in") as uploads:
            stored = uploads.store(wanted)
        return self._done(stored.meta, stored.last)

    def delete(self, name: str) -> None:
        """Delete an object or a link. Raises `MessageNotFound`."""

        def gone(stored: StoredObject) -> ObjectMeta:
            return replace(stored.meta, deleted=True, size=0, chunks=0, digest="")

        before, _, _ = self._change(self._reader.existing, name, f"delete object {name!r} of", gone)
        self._remove_chunks(before)

    def link(self, name: str, bucket: str, target: str) -> ObjectInfo:
        """Store a link to an object, or with an empty ``target`` to a bucket; the caller checks that it exists."""

        def link(before: StoredObject | None) -> ObjectMeta:
            if before is not None and not before.meta.deleted and before.meta.link is None:
                raise self._taken(name, "delete it first, or choose another name for the link")
            return ObjectMeta(bucket=self._reader.bucket, name=name, nuid=new_nuid(), link=(bucket, target))

        before, meta, sequence = self._change(self._reader.newest, name, f"store link {name!r} in", link)
        self._remove_chunks(before)
        return self._done(meta, sequence)

    def describe(self, name: str, **fields: Any) -> ObjectInfo:
        """Change what the meta message says beside the content, as `described` does."""
        what = f"change object {name!r} of"
        _, meta, sequence = self._change(
            self._reader.existing, name, what, lambda stored: described(stored.meta, **fields)
        )
        return self._done(meta, sequence)

    def rename(self, existing: StoredObject, meta: ObjectMeta) -> ObjectInfo:
        """Give an object the name, and all else, of ``meta``. For a moment the object has both names.

        Raises `JetStreamError` when another writer replaces it under its old name in that moment; its old name stays.
        """
        old, bucket = existing.meta.name, self._reader.bucket
        there = self._reader.newest(meta.name)
        # An object with the same chunks was left by a rename that was interrupted.
        other = None if there is None or there.meta.nuid == meta.nuid else there
        if other is not None and not other.meta.deleted:
            raise self._taken(meta.name, "delete it first, or choose another name")
        with self._uploads(f"rename object {old!r} of") as uploads:
            # A writer that was killed while it replaced this object has noted that its chunks may be removed. They
            # must stay.
            uploads.disown(old, meta.nuid)
            sequence = uploads.store_meta(meta, there.sequence if there else 0)
            # Without retries: the number of removed messages says whether the old name was still that of this object.
            once = ObjectStream(self._api.connect, bucket, 0.0)
            try:
                removed = once.remove(meta_subject(bucket, old), existing.sequence)
            except JetStreamError as error:
                if not error.retriable:
                    raise
                raise OutageError(
                    f"object {old!r} of bucket {bucket} has the name {meta.name!r} now, and maybe still its old one, "
                    f"too: {error}. Rename it once more before anything is put or deleted under either name: they "
                    "share its content"
                ) from None
            if not removed and self._reader.newest(old) is not None:
                self._stream.remove(meta_subject(bucket, meta.name), sequence)
                raise JetStreamError(
                    f"object {old!r} of bucket {bucket} keeps its name: another writer replaced it just now"
                )
            uploads.disown(old, meta.nuid)
        self._remove_chunks(other)
        return self._done(meta, sequence)

    @contextmanager
    def _uploads(self, what: str) -> Iterator[ObjectUploads]:
        """Open the uploads; errors begin with ``what``, an infinitive without "to"."""
        bucket, options = self._reader.bucket, self._api.options
        context = f"look at stream {self._reader.stream}"
        with OBJECT_STORE.naming(bucket):
            info = self._api.ask(jsapi.STREAM_INFO, context=context, stream=self._reader.stream)
        problem = writing_fault(stream_summary(info, context), bucket)
        if problem:
            raise JetStreamError(f"cannot {what} bucket {bucket}, which {problem}")
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
            with OBJECT_STORE.naming(bucket), ObjectUploads(self._api.connect, self._stream, settings) as uploads:
                yield uploads
        except ObjectNotStored as failure:
            raise _error(f"cannot {what} bucket {bucket}: {failure.why}", failure) from None

    def _change(
        self,
        find: Callable[[str], StoredObject | None],
        name: str,
        what: str,
        change: Callable[[Any], ObjectMeta],
    ) -> tuple[StoredObject | None, ObjectMeta, int]:
        """Store a meta message in place of what ``find`` returns, until it is latest; return both and a sequence."""
        object_name(name)
        for _ in range(_ATTEMPTS):
            before = find(name)
            meta = change(before)
            if before is not None and before.meta == meta:
                return before, meta, before.sequence
            with self._uploads(what) as uploads:
                try:
                    return before, meta, uploads.store_meta(meta, before.sequence if before else 0)
                except ObjectNotStored as failure:
                    if not failure.overtaken:
                        raise
        raise JetStreamError(
            f"object {name!r} of bucket {self._reader.bucket} was replaced again each time before it could be changed, "
            f"{_ATTEMPTS} times"
        )

    def _remove_chunks(self, stored: StoredObject | None) -> None:
        if stored is not None and stored.meta.nuid:
            self._stream.remove(chunk_subject(self._reader.bucket, stored.meta.nuid))

    def _done(self, meta: ObjectMeta, sequence: int) -> ObjectInfo:
        """Return what was stored, with the server's time; without one when another writer has replaced it already."""
        subject = meta_subject(self._reader.bucket, meta.name)
        try:
            time = Messages(self._api).get(self._reader.stream, sequence).time.nanoseconds
        except MessageNotFound:
            time = 0
        return ObjectInfo.of(StoredObject(meta, subject, sequence, time))

    def _taken(self, name: str, advice: str) -> OptionError:
        return OptionError(f"bucket {self._reader.bucket} has an object {name!r} already: {advice}", option="name")


def described(meta: ObjectMeta, **fields: Any) -> ObjectMeta:
    """Return a meta message with another description, headers, metadata or name; None leaves a field as it is."""
    changed = replace(meta, **{name: value for name, value in fields.items() if value is not None})
    return changed if changed.description else replace(changed, description=None)


def _error(text: str, failure: ObjectNotStored) -> JetStreamError:
    if failure.denied is not None:
        failure.denied.args = (text,)
        return failure.denied
    if failure.hope is Disposition.OUTAGE:
        return OutageError(text)
    if failure.err_code:
        return ApiError(text, code=0, err_code=failure.err_code, description=failure.why)
    return JetStreamError(text)


Progress = Callable[[int, int], None]


class BinaryFile(Protocol):
    """A file that was opened for reading bytes."""

    def read(self, size: int, /) -> bytes | None:
        """Read up to so many bytes."""


Data = bytes | bytearray | memoryview | Iterable[bytes] | BinaryFile
"""What content can be: bytes, pieces of any size, or a binary file, read from its position to its end."""

Parts = tuple[Callable[[int], Iterator[bytes | memoryview]], int, bool]
"""The function that makes chunks, their bytes in all (0: not known), and whether it can be called again."""


def new_object(name: str, data: Data, progress: Progress | None = None, **fields: Any) -> NewObject:
    """Return the object to store; ``fields`` are other fields of `NewObject`. Raises `OptionError` for other data.

    The pieces of an iterable or a file are checked when they are read.
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


def _parts(data: Any) -> Parts:
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


def _file_parts(file: Any) -> Parts:
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
    while True:
        piece = file.read(size)
        if piece is None:
            raise _wrong("a file that does not wait for its content")
        if not len(piece):
            return
        yield piece


def _regular(pieces: Iterable[Any], size: int) -> Iterator[bytes | memoryview]:
    """Return the bytes of ``pieces`` as pieces of the same size; the last one has the rest."""
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
    expected = "bytes, an iterable of bytes, or a file opened as binary"
    return OptionError(f"the content of an object must be {expected}, not {what}", option="data")
