"""Object Store buckets: list, create, change, seal, delete; and the objects of one bucket (`ObjectBucket`).

ADR-20 "JetStream based Object Stores".
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.buckets import Buckets
from spark_jetstream.admin.models.changes import refuse_difference
from spark_jetstream.admin.models.objects import (
    OBJECT_STORE,
    ObjectBucketConfig,
    ObjectBucketInfo,
    ObjectInfo,
    object_name,
    stream_changes,
    stream_fields,
)
from spark_jetstream.admin.models.streams import StreamConfig
from spark_jetstream.admin.object_reader import ObjectReader
from spark_jetstream.admin.object_writer import Data, ObjectWriter, Progress, described, new_object
from spark_jetstream.admin.watch import LABEL, Begin, settings, watch
from spark_jetstream.buckets.objects import DEFAULT_CHUNK_SIZE, StoredObject, stored_objects
from spark_jetstream.errors import JetStreamError, OptionError, StreamNotFound
from spark_jetstream.options.values import file_path
from spark_jetstream.streams.latest import TablePart, read_table

Config = ObjectBucketConfig | Mapping[str, Any]


class ObjectBucket:
    """The objects of one bucket; ``admin.objects.bucket(name)``. The first method sends the first request.

    A name is any text of up to 2,048 bytes; ``/`` has no meaning. All methods raise what `Api` raises; `StreamNotFound`
    when there is no such bucket; `MessageNotFound` for an object that does not exist or was deleted; `OptionError` for
    an argument that cannot be one.
    """

    def __init__(self, api: Api, bucket: str) -> None:
        self._api = api
        self._reader = ObjectReader(api, bucket)
        self._writer = ObjectWriter(api, self._reader)

    @property
    def name(self) -> str:
        """The name of the bucket."""
        return self._reader.bucket

    def status(self) -> ObjectBucketInfo:
        """Return the configuration of the bucket and its size. Raises `StreamNotFound`."""
        return ObjectBucketInfo(self._reader.info())

    # Looking

    def list(self, *, deleted: bool = False) -> Iterator[ObjectInfo]:
        """Return all objects and links, in the order in which they were stored; with ``deleted`` also deleted ones.

        An object that exists all the time is returned exactly once, however often it is replaced meanwhile. Raises
        `StreamNotFound`, and `ProtocolError` for a meta message that is none.
        """
        info = self._reader.info()
        part = TablePart(self._reader.stream, info.created, (self._reader.metas,))
        for messages in read_table(self._api.connect, part, settings(self._api), LABEL):
            for stored in stored_objects(messages, self.name):
                if deleted or not stored.meta.deleted:
                    yield ObjectInfo.of(stored)

    def info(self, name: str, *, deleted: bool = False) -> ObjectInfo:
        """Return an object, or a link without following it; with ``deleted`` also a deleted one.

        Raises `MessageNotFound`.
        """
        if deleted and (newest := self._reader.newest(object_name(name))) is not None:
            return ObjectInfo.of(newest)
        return ObjectInfo.of(self._reader.existing(object_name(name)))

    def watch(
        self, *, updates_only: bool = False, deleted: bool = True, timeout: float | None = None
    ) -> Iterator[ObjectInfo | None]:
        """Return the objects of the bucket, then None once, then every change; without an end.

        Closing the iterator ends it. ``updates_only`` begins with the None. After the None, it ends when no change came
        for ``timeout`` seconds.

        Raises:
            DataLossError: The bucket was deleted or created again, or a server lost data that it had.
            OutageError: The server was away for longer than option ``retryTimeout``.
        """
        reader = self._reader
        begin: Begin = "new" if updates_only else "latest"
        with OBJECT_STORE.naming(self.name):
            messages = watch(self._api, reader.stream, [reader.metas], begin, timeout=timeout)
        changes = (None if message is None else ObjectInfo.of(reader.stored(message)) for message in messages)
        return (change for change in changes if change is None or deleted or not change.deleted)

    # Reading

    def get(self, name: str) -> bytes:
        """Return the content of an object, or of the object that a link leads to.

        Raises `DataLossError` when number of chunks, size or SHA-256 are not those of the meta message.
        """
        content: list[memoryview] = []
        for chunk in self._reader.chunks(name, lambda _: content.clear()):
            content.append(chunk)
        return b"".join(content)

    def read(self, name: str) -> Iterator[bytes]:
        """Return the chunks of the content, for objects of any size: it needs the memory of a few chunks.

        The chunks are the object once the iterator has ended without an error, and not before.

        Raises:
            DataLossError: After the last chunk: the object is damaged.
            JetStreamError: Another writer replaced the object meanwhile: read it again.
        """
        begun = False

        def begin(_: StoredObject) -> None:
            if begun:
                raise JetStreamError(
                    f"object {name!r} of bucket {self.name} was replaced while it was read: what came is not all of "
                    "it, read it again"
                )

        for chunk in self._reader.chunks(name, begin):
            begun = True
            yield bytes(chunk)

    def get_file(
        self, name: str, path: str | os.PathLike[str], *, overwrite: bool = False, progress: Progress | None = None
    ) -> ObjectInfo:
        """Write the content to a file, which appears when all of the content is right; return the object.

        An existing file that is overwritten keeps its permissions. ``progress`` is called with the bytes written and
        their total.

        Raises:
            OptionError: The file exists, and ``overwrite`` is False; or ``path`` is a directory or a device.
            DataLossError: The object is damaged.
            JetStreamError: The file cannot be written.
        """
        target = Path(file_path("path", path))
        _refuse_existing(target, overwrite)
        temporary = target.with_name(f".{secrets.token_hex(8)}.part")
        mode = _mode(target)
        versions: list[StoredObject] = []

        def begin(version: StoredObject) -> None:
            versions.append(version)
            file.seek(0)
            file.truncate()

        try:
            with _using(target, "write"), temporary.open("wb") as file:
                if mode is not None:
                    # Before the file has content that others could read.
                    temporary.chmod(mode)
                for chunk in self._reader.chunks(name, begin):
                    file.write(chunk)
                    if progress is not None:
                        progress(file.tell(), versions[-1].meta.size)
                file.flush()
                os.fsync(file.fileno())
            _refuse_existing(target, overwrite)
            with _using(target, "write"):
                temporary.replace(target)
        finally:
            # Where the path cannot exist, `unlink` raises.
            if os.path.lexists(temporary):
                temporary.unlink(missing_ok=True)
        return ObjectInfo.of(versions[-1])

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

        Until all of it is stored readers see the old object. Chunks that were refused or cut off are sent again, unless
        ``data`` is an iterable, or a file that cannot seek back. After an error the old object stays, and the chunks of
        the new one are removed; after an `OutageError`, by the next put under this name. When only the last
        acknowledgement is missing, the error says so, and the object may be the new one.

        ``chunk_size`` is in bytes; the server and ``max_msg_size`` of the bucket may allow fewer. Each of the
        ``headers`` has one text or several. ``progress`` is called with the bytes sent and their total (0: not known).

        Raises:
            ApiError: The server refused the object.
            OutageError: The server was away for longer than option ``retryTimeout``.
        """
        if type(chunk_size) is not int or chunk_size < 1:
            raise OptionError(f"chunk_size must be a whole number of bytes from 1 on, not {chunk_size!r}")
        wanted = new_object(
            object_name(name),
            data,
            progress,
            chunk_size=chunk_size,
            description=description or None,
            headers=_headers(headers) or {},
            metadata=_metadata(metadata) or {},
        )
        return self._writer.put(wanted)

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

        Raises `OptionError` when the file cannot be opened, `JetStreamError` when it cannot be read.
        """
        source = Path(file_path("path", path))
        try:
            file = source.open("rb")
        except OSError as error:
            raise OptionError(f"cannot read {source}: {error.strerror or error}", option="path") from error
        with file, _using(source, "read"):
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
        """Delete an object, or a link (not what it leads to). Its meta message stays, and says that it was deleted.

        Raises `MessageNotFound`.
        """
        self._writer.delete(name)

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

        None leaves a field as it is, an empty value removes it. With another name, the object has both names for a
        moment. If another writer puts an object under the old name in that moment, only this package leaves the content
        alone. Raises `OptionError` when an object with the new name exists.
        """
        given = {"description": description, "headers": _headers(headers), "metadata": _metadata(metadata)}
        if new_name is None or new_name == name:
            return self._writer.describe(name, **given)
        existing = self._reader.existing(object_name(name))
        return self._writer.rename(existing, described(existing.meta, name=object_name(new_name), **given))

    def link(self, name: str, to_bucket: str, to_name: str) -> ObjectInfo:
        """Store a link to an object of this or another bucket; it leads to whatever has that name when it is read.

        Raises:
            MessageNotFound: There is no such object.
            OptionError: It is a link itself (readers follow only one), or ``name`` is the name of an object.
        """
        target = ObjectReader(self._api, to_bucket).existing(object_name(to_name))
        if target.meta.link is not None:
            raise OptionError(
                f"object {to_name!r} of bucket {to_bucket} is a link, and links to links are not followed"
            )
        return self._writer.link(name, OBJECT_STORE.name(to_bucket), to_name)

    def link_bucket(self, name: str, to_bucket: str) -> ObjectInfo:
        """Store a link to a whole bucket, which has no content. Raises what `link` raises."""
        ObjectReader(self._api, to_bucket).info()
        return self._writer.link(name, OBJECT_STORE.name(to_bucket), "")


def _headers(given: Mapping[str, Sequence[str]] | None) -> dict[str, tuple[str, ...]] | None:
    """Return headers; a single text is a list of one. Raises `OptionError` for anything but text."""
    if given is None:
        return None
    headers = {name: (values,) if isinstance(values, str) else tuple(values) for name, values in given.items()}
    if not all(isinstance(text, str) for name, values in headers.items() for text in (name, *values)):
        raise OptionError("headers must be a mapping of names to lists of text", option="headers")
    return headers


def _metadata(given: Mapping[str, str] | None) -> dict[str, str] | None:
    if given is None:
        return None
    if not all(isinstance(text, str) for pair in given.items() for text in pair):
        raise OptionError("metadata must be a mapping of text to text", option="metadata")
    return dict(given)


def _refuse_existing(target: Path, overwrite: bool) -> None:
    with _using(target, "write"):
        if target.exists() and not target.is_file():
            # Replacing a device such as /dev/null would break other programs.
            raise OptionError(f"{target} exists already, and is no file: choose another path", option="path")
        if os.path.lexists(target) and not overwrite:
            raise OptionError(
                f"{target} exists already: choose another file, or say that it may be replaced", option="path"
            )


def _mode(target: Path) -> int | None:
    """Return the permissions of an existing file; None without one, and for a link, which is replaced itself."""
    try:
        mode = target.lstat().st_mode
    except (OSError, ValueError):
        return None
    return stat.S_IMODE(mode) if stat.S_ISREG(mode) else None


@contextlib.contextmanager
def _using(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise JetStreamError(f"cannot {what} {path}: {error.strerror or error}") from error


class Objects(Buckets[ObjectBucketConfig, ObjectBucketInfo]):
    """The Object Store buckets of an account; ``admin.objects``.

    A configuration is an `ObjectBucketConfig`, a mapping, or single fields by name. The streams are those that the
    clients of NATS create. A shorter ``ttl`` removes objects. All methods raise what `Api` raises; `StreamNotFound`
    names the bucket.
    """

    _info = ObjectBucketInfo

    def bucket(self, name: str) -> ObjectBucket:
        """Return a bucket, to read and write its objects. No request is sent yet."""
        return ObjectBucket(self._api, name)

    def load_or_create(self, bucket: str, config: Config | None = None, /, **fields: Any) -> ObjectBucketInfo:
        """Return the bucket; create it if there is none. Raises `JetStreamError` when a field given here differs."""
        wanted = self._wanted(bucket, config, fields)
        try:
            info = self.load(bucket)
        except StreamNotFound:
            return ObjectBucketInfo(self._streams.load_or_create(wanted, given_only=True))
        what = f"bucket {bucket}"
        # Clients set these two differently, and work with either; subjects and rollups must be the same.
        compared = {name: value for name, value in wanted.items() if name not in ("discard", "allow_direct")}
        refuse_difference(StreamConfig.parse(compared, what), info.stream.config, what, given_only=True)
        return info

    def seal(self, bucket: str) -> None:
        """Forbid all changes of the objects of a bucket, forever. Raises `StreamNotFound`."""
        with self._stream(bucket) as stream:
            self._streams.seal(stream)

    def _wanted(self, bucket: str, config: Config | None, fields: Mapping[str, Any]) -> dict[str, Any]:
        return stream_fields(OBJECT_STORE.name(bucket), config, fields)

    def _changes(self, bucket: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        return stream_changes(bucket, changes)
