"""Object Store buckets: list, create, change, seal, delete; the objects of one bucket.

ADR-20 "JetStream based Object Stores". If several writers store an object, the last one wins, and
none removes content that a meta message refers to. Clients that do not check what they replace,
such as nats-py, can write at the same time.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.buckets import Buckets
from spark_jetstream.admin.models.buckets import ObjectBucketConfig, fields_of
from spark_jetstream.admin.models.messages import StoredMessage
from spark_jetstream.admin.models.objects import (
    OBJECT_STORE,
    ObjectBucketInfo,
    ObjectInfo,
    object_name,
)
from spark_jetstream.admin.object_files import (
    Data,
    Progress,
    new_object,
    permissions,
    refuse_existing,
    using,
)
from spark_jetstream.admin.object_reader import ObjectReader
from spark_jetstream.admin.watch import LABEL, Begin, settings, watch
from spark_jetstream.buckets.object_store import ObjectUploads, new_nuid
from spark_jetstream.buckets.object_stream import ObjectStream, writing_fault
from spark_jetstream.buckets.objects import (
    ObjectLink,
    ObjectMeta,
    ObjectOptions,
    StoredObject,
    chunk_filter,
    chunk_subject,
    meta_filter,
    meta_subject,
    stored_objects,
)
from spark_jetstream.buckets.uploads import Disposition, ObjectNotStored, UploadSettings
from spark_jetstream.errors import ApiError, JetStreamError, OptionError, OutageError
from spark_jetstream.options.values import file_path
from spark_jetstream.protocol.conventions import DEFAULT_CHUNK_SIZE
from spark_jetstream.streams.latest import TablePart, read_table

_ATTEMPTS = 10  # at a meta message that others replace each time
_IN_FLIGHT = 1000  # messages; bytes are limited elsewhere
_RETRIES = 5
_FORMS = {
    "description": "text",
    "headers": "a mapping of names to lists of text",
    "metadata": "a mapping of text to text",
}


class ObjectBucket:
    """The objects of one bucket; ``admin.objects.bucket(name)``.

    The first method sends the first request.

    A name is any text of up to 2,048 bytes; ``/`` has no meaning. All methods raise what `Api`
    raises, and `StreamNotFound` when the bucket does not exist. They raise `MessageNotFound` for an
    object that does not exist or was deleted, and `OptionError` for an invalid argument.
    """

    def __init__(self, api: Api, bucket: str) -> None:
        self._api = api
        self._reader = ObjectReader(api, bucket)
        # An outage in the middle of a put is waited for. A server that was never reached is not,
        # as in all other requests of the administration.
        self._stream = ObjectStream(
            api.connect, self._reader.bucket, api.options.retry_timeout, first=0.0
        )

    @property
    def name(self) -> str:
        """The name of the bucket."""
        return self._reader.bucket

    def status(self) -> ObjectBucketInfo:
        """Return the configuration of the bucket and its size. Raises `StreamNotFound`."""
        return ObjectBucketInfo(self._reader.info())

    # Looking

    def list(self, *, deleted: bool = False) -> Iterator[ObjectInfo]:
        """Return all objects and links, in the order in which they were stored.

        With ``deleted`` deleted ones too. An object that exists all the time is returned exactly
        once, however often it is replaced meanwhile. Raises `StreamNotFound`, and `ProtocolError`
        for a meta message that is none.
        """
        info = self._reader.info()
        # Each name has a subject of its own, and the last meta message on it counts.
        part = TablePart(self._reader.stream, info.created, (self._reader.metas,))
        for messages in read_table(self._api.connect, part, settings(self._api), LABEL):
            for stored in stored_objects(messages, self.name):
                if deleted or not stored.meta.deleted:
                    yield ObjectInfo.of(stored)

    def info(self, name: str, *, deleted: bool = False) -> ObjectInfo:
        """Return an object, or a link itself; with ``deleted`` also a deleted one.

        Raises `MessageNotFound`.
        """
        if deleted:
            newest = self._reader.newest(object_name(name))
            if newest is not None:
                return ObjectInfo.of(newest)
        return ObjectInfo.of(self._reader.existing(object_name(name)))

    def watch(
        self, *, updates_only: bool = False, deleted: bool = True, timeout: float | None = None
    ) -> Iterator[ObjectInfo | None]:
        """Return the objects of the bucket, then None once, then every change; without an end.

        Closing the iterator ends it. ``updates_only`` begins with the None. After the None, it ends
        when no change arrives for ``timeout`` seconds.

        Raises:
            DataLossError: The bucket was deleted or created again, or a server lost data that it
                had.
            OutageError: The server was away for longer than option ``retryTimeout``.
        """
        reader = self._reader
        begin: Begin = "new" if updates_only else "latest"
        # The stream is looked up now, not when the first change is asked for.
        with OBJECT_STORE.naming(self.name, self._api.nearest):
            messages = watch(self._api, reader.stream, [reader.metas], begin, timeout=timeout)
        return self._changes_of(messages, deleted)

    def _changes_of(
        self,
        messages: Iterator[StoredMessage | None],
        deleted: bool,
    ) -> Iterator[ObjectInfo | None]:
        for message in messages:
            if message is None:
                yield None
                continue
            info = ObjectInfo.of(self._reader.stored(message))
            if deleted or not info.deleted:
                yield info

    # Reading

    def get(self, name: str) -> bytes:
        """Return the content of an object, or of the object that a link leads to.

        Raises `DataLossError` when number of chunks, size or SHA-256 are not those of the meta
        message.
        """
        content: list[memoryview] = []
        for _, chunks in self._reader.versions(name):
            # The chunks of a version that was replaced while
            # it was read are not part of the next one.
            content.clear()
            content.extend(chunks)
        return b"".join(content)

    def read(self, name: str) -> Iterator[bytes]:
        """Return the chunks of the content, in the memory of a few chunks.

        The chunks are the object once the iterator has ended without an error, and not before.

        Raises:
            DataLossError: After the last chunk: the object is damaged.
            JetStreamError: Another writer replaced the object meanwhile: read it again.
        """
        begun = False
        for _, chunks in self._reader.versions(name):
            # The first chunks of the old version are with the caller already.
            if begun:
                raise JetStreamError(
                    f"object {name!r} of bucket {self.name} was replaced while it was read: "
                    "the content so far is incomplete; read the object again"
                )
            for chunk in chunks:
                begun = True
                yield bytes(chunk)

    def get_file(
        self,
        name: str,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> ObjectInfo:
        """Write the content to a file; return the object.

        The file appears when all of the content is right. An existing file that is overwritten
        keeps its permissions. ``progress`` is called with the bytes written and their total.

        Raises:
            OptionError: The file exists, and ``overwrite`` is False; or ``path`` is a directory or
                a device.
            DataLossError: The object is damaged.
            JetStreamError: The file cannot be written.
        """
        target = Path(file_path("path", path))
        refuse_existing(target, overwrite)
        # Beside the target, so that `replace` stays on one file system.
        temporary = target.with_name(f".{secrets.token_hex(8)}.part")
        mode = permissions(target)
        try:
            with using(target, "write"), temporary.open("wb") as file:
                if mode is not None:
                    # Before the file has content that others could read.
                    temporary.chmod(mode)
                for version, chunks in self._reader.versions(name):
                    # Of a version that was replaced nothing stays.
                    file.seek(0)
                    file.truncate()
                    for chunk in chunks:
                        file.write(chunk)
                        if progress is not None:
                            progress(file.tell(), version.meta.size)
                file.flush()
                # The content is on the disk before it takes the place of the old file.
                os.fsync(file.fileno())
            refuse_existing(target, overwrite)
            with using(target, "write"):
                temporary.replace(target)
        finally:
            # Where the path cannot exist, `unlink` raises.
            if os.path.lexists(temporary):
                temporary.unlink(missing_ok=True)
        return ObjectInfo.of(version)

    # Writing

    def put(
        self,
        name: str,
        data: Data,
        *,
        chunk_size: int = DEFAULT_CHUNK_SIZE,
        description: str | None = None,
        headers: Mapping[str, Sequence[str]] | None = None,
        metadata: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> ObjectInfo:
        """Store an object, in place of the object or link that has its name; return it.

        Until all of it is stored readers see the old object. Chunks that were refused or cut off
        are sent again, unless ``data`` is an iterable, or a file that cannot seek back. After an
        error the old object stays, and the chunks of the new one are removed; after an
        `OutageError`, by the next put under this name. When only the last acknowledgement is
        missing, the error says so, and the object may be the new one.

        ``chunk_size`` is in bytes; the server and ``max_msg_size`` of the bucket may allow fewer.
        Each of the ``headers`` has one text or several. ``progress`` is called with the bytes sent
        and their total (0: not known).

        Raises:
            ApiError: The server refused the object.
            OutageError: The server was away for longer than option ``retryTimeout``.
        """
        # True is an `int` to Python.
        if type(chunk_size) is not int or chunk_size < 1:
            raise OptionError(
                f"chunk_size must be a whole number of bytes from 1 on, not {chunk_size!r}",
            )
        given = _given(description=description or None, headers=headers, metadata=metadata)
        wanted = new_object(object_name(name), data, progress, chunk_size=chunk_size, **given)
        with self._uploads(f"store object {name!r} in") as uploads:
            stored = uploads.store(wanted)
        return self._stored(stored.meta, stored.last)

    def put_file(
        self,
        path: str | os.PathLike[str],
        name: str | None = None,
        *,
        chunk_size: int = DEFAULT_CHUNK_SIZE,
        description: str | None = None,
        headers: Mapping[str, Sequence[str]] | None = None,
        metadata: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> ObjectInfo:
        """Store a file as `put` does, by default under its file name.

        Raises `OptionError` when the file cannot be opened, `JetStreamError` when it cannot be
        read.
        """
        source = Path(file_path("path", path))
        try:
            file = source.open("rb")
        except OSError as error:
            raise OptionError(
                f"cannot read {source}: {error.strerror or error}",
                option="path",
            ) from error
        with file, using(source, "read"):
            return self.put(
                source.name if name is None else name,
                file,
                chunk_size=chunk_size,
                description=description,
                headers=headers,
                metadata=metadata,
                progress=progress,
            )

    def delete(self, name: str) -> None:
        """Delete an object, or a link itself. Its meta message stays, marked as deleted.

        Raises `MessageNotFound`.
        """

        def gone(stored: StoredObject) -> ObjectMeta:
            # ADR-20: a deleted object is a meta message without size, chunks and digest.
            return stored.meta.model_copy(
                update={"deleted": True, "size": 0, "chunks": 0, "digest": ""},
            )

        before, _, _ = self._change(self._reader.existing, name, f"delete object {name!r} of", gone)
        # After the meta message: until then readers see the object, and need its content.
        self._remove_chunks(before)

    def update_meta(
        self,
        name: str,
        new_name: str | None = None,
        *,
        description: str | None = None,
        headers: Mapping[str, Sequence[str]] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        """Change an object's name, description, headers, metadata; return it.

        None leaves a field as it is, an empty value removes it. With another name, the object has
        both names for a moment. If the process is killed then, rename it once more before either
        name is put or deleted, for they share their content. If another writer puts an object under
        the old name in that moment, only this package leaves the content alone. Raises
        `OptionError` when an object with the new name exists.
        """
        given = _given(description=description, headers=headers, metadata=metadata)

        def change(stored: StoredObject, **more: Any) -> ObjectMeta:
            fields = {**given, **more}
            # An empty description is removed.
            if not fields.get("description", stored.meta.description):
                fields["description"] = None
            return stored.meta.model_copy(update=fields)

        if new_name is None or new_name == name:
            _, meta, sequence = self._change(
                self._reader.existing,
                name,
                f"change object {name!r} of",
                change,
            )
            return self._stored(meta, sequence)
        existing = self._reader.existing(object_name(name))
        return self._rename(existing, change(existing, name=object_name(new_name)))

    def link(self, name: str, to_bucket: str, to_name: str) -> ObjectInfo:
        """Store a link to an object of this or another bucket.

        The link leads to the object that has that name when the link is read.

        Raises:
            MessageNotFound: The object does not exist.
            OptionError: It is a link itself (readers follow only one), or ``name`` is the name of
                an object.
        """
        target = ObjectReader(self._api, to_bucket).existing(object_name(to_name))
        # Clients follow one link, so nobody could read this one.
        if target.meta.link is not None:
            raise OptionError(
                f"object {to_name!r} of bucket {to_bucket} is a link, and links to links are not "
                "followed"
            )
        return self._link(name, OBJECT_STORE.name(to_bucket), to_name)

    def link_bucket(self, name: str, to_bucket: str) -> ObjectInfo:
        """Store a link to a whole bucket, which has no content. Raises `OptionError` as `link`."""
        ObjectReader(self._api, to_bucket).info()
        return self._link(name, OBJECT_STORE.name(to_bucket), "")

    def _link(self, name: str, bucket: str, target: str) -> ObjectInfo:
        """Store a link to an object, or with an empty ``target`` to a bucket.

        The caller checks that it exists.
        """

        def link(before: StoredObject | None) -> ObjectMeta:
            # To replace an object by a link would remove its content.
            if before is not None and not before.meta.deleted and before.meta.link is None:
                raise self._taken(name, "delete it first, or choose another name for the link")
            options = ObjectOptions(link=ObjectLink(bucket=bucket, name=target))
            return ObjectMeta(bucket=self.name, name=name, nuid=new_nuid(), options=options)

        before, meta, sequence = self._change(
            self._reader.newest,
            name,
            f"store link {name!r} in",
            link,
        )
        # A deletion that was broken off may have left chunks.
        self._remove_chunks(before)
        return self._stored(meta, sequence)

    def _rename(self, existing: StoredObject, meta: ObjectMeta) -> ObjectInfo:
        """Give an object the name, and all else, of ``meta``.

        For a moment the object has both names.

        Raises `JetStreamError` when another writer replaces it under its old name in that moment;
        its old name stays.
        """
        old = existing.meta.name
        # Steps: the new name gets the meta message, the old one loses its own, then chunks that no
        # name needs are removed. A process that is killed in between leaves the object readable.
        there = self._reader.newest(meta.name)
        replaced = there
        if there is not None and meta.nuid and there.meta.nuid == meta.nuid:
            # An object with the same chunks was left by a rename that was interrupted.
            replaced = None
        if replaced is not None and not replaced.meta.deleted:
            raise self._taken(meta.name, "delete it first, or choose another name")
        with self._uploads(f"rename object {old!r} of") as uploads:
            # A writer that was killed while it replaced this object has noted that its chunks may
            # be removed. They must stay.
            uploads.disown(old, meta.nuid)
            sequence = uploads.store_meta(meta, _sequence_of(there))
            removed = self._remove_old_name(existing, meta.name)
            # Nothing was removed under the old name although it has a message: that is a newer one
            # (`test_replaced_at_the_moment_of_a_rename`).
            if not removed and self._reader.newest(old) is not None:
                # The other writer is about to remove the chunks
                # that it has replaced, which the new name needs.
                self._stream.remove(meta_subject(self.name, meta.name), sequence)
                kept = f"object {old!r} of bucket {self.name} keeps its name"
                raise JetStreamError(f"{kept}: another writer replaced it just now")
            # Once more: a put that began meanwhile may have noted the chunks again.
            uploads.disown(old, meta.nuid)
        self._remove_chunks(replaced)
        return self._stored(meta, sequence)

    def _remove_old_name(self, existing: StoredObject, new_name: str) -> int:
        """Remove the meta message under the old name; return how many messages were removed.

        Raises `OutageError` when the object may have both names.
        """
        old = existing.meta.name
        # Without retries: the number says whether the old name was still that of this object.
        once = ObjectStream(self._api.connect, self.name, 0.0)
        try:
            # Up to this sequence: a meta message that another writer stores meanwhile stays.
            return once.remove(meta_subject(self.name, old), existing.sequence)
        except JetStreamError as error:
            # The request was refused, so the old name is there for sure.
            if not error.retriable:
                raise
            raise OutageError(
                f"object {old!r} of bucket {self.name} has the name {new_name!r} now, and maybe "
                f"still its old one, too: {error}. Rename it once more before anything is put or "
                "deleted under either name: they share its content"
            ) from None

    @contextmanager
    def _uploads(self, what: str) -> Iterator[ObjectUploads]:
        """Open the uploads; errors begin with ``what``, an infinitive without "to"."""
        bucket = self.name
        if problem := writing_fault(self._stream.state(), bucket):
            raise JetStreamError(f"cannot {what} bucket {bucket}, which {problem}")
        upload_settings = UploadSettings(
            connection=self._api.options,
            max_in_flight=_IN_FLIGHT,
            ack_timeout=self._api.options.request_timeout,
            max_retries=_RETRIES,
            ack_option="requestTimeout",
            retries="",
        )
        try:
            with ObjectUploads(self._api.connect, self._stream, upload_settings) as uploads:
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
        """Store a meta message in place of the one that ``find`` returns.

        Returns the message before, the new one and its sequence. Tries again when another writer
        was faster.
        """
        object_name(name)
        # Each turn looks again, and changes the message that is stored by then.
        for _ in range(_ATTEMPTS):
            before = find(name)
            meta = change(before)
            # To store the same again would be a change for all that watch the bucket.
            if before is not None and before.meta == meta:
                return before, meta, before.sequence
            # With this sequence the server refuses the message if another writer was faster.
            sequence = _sequence_of(before)
            with self._uploads(what) as uploads:
                try:
                    return before, meta, uploads.store_meta(meta, sequence)
                except ObjectNotStored as failure:
                    if not failure.overtaken:
                        raise
        raise JetStreamError(
            f"object {name!r} of bucket {self.name} was replaced again each time before it "
            f"could be changed, {_ATTEMPTS} times"
        )

    def _remove_chunks(self, stored: StoredObject | None) -> None:
        if stored is not None and stored.meta.nuid:
            self._stream.remove(chunk_subject(self.name, stored.meta.nuid))

    def _stored(self, meta: ObjectMeta, sequence: int) -> ObjectInfo:
        """Return the stored object, with the server's time.

        The time is missing when another writer has replaced the object already.
        """
        subject = meta_subject(self.name, meta.name)
        # The acknowledgement has a sequence and no time.
        message = self._stream.message(sequence)
        time = message.time if message else 0
        return ObjectInfo.of(StoredObject(meta, subject, sequence, time))

    def _taken(self, name: str, advice: str) -> OptionError:
        return OptionError(
            f"bucket {self.name} has an object {name!r} already: {advice}",
            option="name",
        )


def _sequence_of(stored: StoredObject | None) -> int:
    """Return the sequence of a meta message; 0 if there is none."""
    return stored.sequence if stored else 0


def _error(text: str, failure: ObjectNotStored) -> JetStreamError:
    # Its class and its subject stay.
    if failure.denied is not None:
        failure.denied.args = (text,)
        return failure.denied
    if failure.disposition is Disposition.OUTAGE:
        return OutageError(text)
    if failure.err_code:
        return ApiError(text, code=0, err_code=failure.err_code, description=failure.why)
    return JetStreamError(text)


def _given(**fields: Any) -> dict[str, Any]:
    """Return fields as a meta message has them, without those that are None.

    Raises `OptionError` for one that is not of its form, or that UTF-8 cannot hold: no reader would
    take the message.
    """
    given: dict[str, Any] = {}
    for option, value in fields.items():
        if value is None:
            continue
        # The reader's own model checks the field, and JSON in UTF-8 refuses halves of surrogate
        # pairs: every reader would refuse the meta message, and the object could not be removed.
        try:
            meta = ObjectMeta.model_validate({"name": option, option: value})
            json.dumps(meta.model_dump(include={option}), ensure_ascii=False).encode()
        except ValueError:
            raise OptionError(
                f"{option} must be {_FORMS[option]}, in UTF-8",
                option=option,
            ) from None
        given[option] = getattr(meta, option)
    return given


class Objects(Buckets[ObjectBucketConfig, ObjectBucketInfo]):
    """The Object Store buckets of an account; ``admin.objects``.

    A configuration is an `ObjectBucketConfig`, a mapping, or single fields by name. The streams are
    those that the clients of NATS create. All methods raise what `Api` raises; `StreamNotFound`
    names the bucket.
    """

    _info = ObjectBucketInfo
    _config = ObjectBucketConfig
    # Clients set the discard policy of an Object Store bucket differently.
    _free = ("discard",)

    def bucket(self, name: str) -> ObjectBucket:
        """Return a bucket, to read and write its objects. No request is sent yet."""
        return ObjectBucket(self._api, name)

    def seal(self, bucket: str) -> None:
        """Forbid all changes of the objects of a bucket, forever. Raises `StreamNotFound`."""
        with self._stream(bucket) as stream:
            self._streams.seal(stream)

    def _new(self, name: str, wanted: ObjectBucketConfig) -> dict[str, Any]:
        given = fields_of(name, wanted, wanted.model_fields_set)
        return {**given, "subjects": (chunk_filter(name), meta_filter(name))}
