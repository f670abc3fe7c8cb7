"""Object Store buckets: list, create, change, seal, delete (JETSTREAM ADR-20). Their objects: `ObjectBucket`.

`ObjectBucket`: the objects of one bucket, to and from files.
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
from spark_jetstream.admin.models.messages import StoredMessage
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
from spark_jetstream.admin.object_reader import ObjectPlace, ObjectReading, Version
from spark_jetstream.admin.object_writer import Data, ObjectWriting, Progress, described, new_object
from spark_jetstream.admin.watch import LABEL, settings, watch
from spark_jetstream.buckets.objects import DEFAULT_CHUNK_SIZE, StoredObject, stored_objects
from spark_jetstream.errors import JetStreamError, OptionError, StreamNotFound
from spark_jetstream.options.values import file_path
from spark_jetstream.streams.latest import TablePart, read_table


class ObjectBucket:
    """The objects of one bucket; ``admin.objects.bucket(name)``. Nothing is asked of a server before a method is.

    Names are any text of up to 2,048 bytes; ``/`` means nothing in them. All methods raise `StreamNotFound` when there
    is no such bucket, and what `Api` raises; `MessageNotFound` for an object that is not there, or was deleted.
    """

    def __init__(self, api: Api, bucket: str) -> None:
        self._api = api
        self._place = ObjectPlace(api, bucket)
        self._reading = ObjectReading(api, self._place)
        self._writing = ObjectWriting(api, self._place)

    @property
    def name(self) -> str:
        """The bucket."""
        return self._place.bucket

    def status(self) -> ObjectBucketInfo:
        """The bucket: its configuration and its size."""
        return ObjectBucketInfo(self._place.info())

    # Looking

    def list(self, *, deleted: bool = False) -> Iterator[ObjectInfo]:
        """All objects and links, in the order in which they were stored; with ``deleted`` also what is left of others.

        An object that is there all the time comes once, however often it is replaced meanwhile.
        """
        info = self._place.info()
        part = TablePart(self._place.stream, info.created, (self._place.metas,))
        for messages in read_table(lambda _: self._api.connection, part, settings(self._api), LABEL):
            for stored in stored_objects(messages, self.name):
                if deleted or not stored.meta.deleted:
                    yield ObjectInfo.of(stored)

    def info(self, name: str, *, deleted: bool = False) -> ObjectInfo:
        """An object, or a link, which is not followed; with ``deleted`` also what is left of a deleted one."""
        if deleted:
            found = self._place.newest(object_name(name))
            if found is not None:
                return ObjectInfo.of(found)
        return ObjectInfo.of(self._place.there(object_name(name)))

    def watch(
        self, *, updates_only: bool = False, deleted: bool = True, timeout: float | None = None
    ) -> Iterator[ObjectInfo | None]:
        """Objects as they are put, described anew and, with ``deleted``, deleted; without an end.

        First those that are there (not with ``updates_only``), then None once, then each change as it is stored. Behind
        the None it ends when nothing came for ``timeout`` seconds; None for never. Closing the iterator ends it.
        `DataLossError` when the bucket is deleted meanwhile.
        """
        with OBJECT_STORE.naming(self.name):
            found = watch(
                self._api,
                self._place.stream,
                (self._place.metas,),
                start=None if updates_only else 1,
                latest=not updates_only,
                timeout=timeout,
            )
        return self._changes(found, deleted)

    def _changes(self, found: Iterator[StoredMessage | None], deleted: bool) -> Iterator[ObjectInfo | None]:
        for message in found:
            if message is None:
                yield None
                continue
            time = message.time.nanoseconds
            stored = StoredObject.read(message.data, self.name, message.subject, message.seq, time)
            if deleted or not stored.meta.deleted:
                yield ObjectInfo.of(stored)

    # Reading

    def get(self, name: str) -> bytes:
        """The content of an object, behind a link that of the object it leads to.

        `DataLossError` when it is damaged: number of chunks, size or SHA-256 are not those of its meta message.
        """
        return self._reading.whole(name, lambda version, content: b"".join(content))

    def read(self, name: str) -> Iterator[bytes]:
        """The content as it comes, for objects of any size: it needs the memory of a few chunks.

        What came is the object when the iterator has ended without an error, and not before: `DataLossError` comes
        behind the last chunk. `JetStreamError` when somebody has replaced the object meanwhile: read it again.
        """
        yield from self._reading.chunks(name)

    def get_file(
        self, name: str, path: str | os.PathLike[str], *, overwrite: bool = False, progress: Progress | None = None
    ) -> ObjectInfo:
        """Write the content to a file, which is there when all of it is right, and not before; what was written.

        Until then it stands beside it, under a name that begins with a dot and ends with ``.part``. `OptionError` when
        there is something at ``path``, unless ``overwrite``, and in any case when that is not a file but a directory or
        a device; `JetStreamError` when it cannot be written. A file that is overwritten keeps its permissions.
        ``progress`` gets the bytes that came and how many there are.
        """
        target = Path(file_path("path", path))
        _refuse_existing(target, overwrite)
        temporary = target.with_name(f".{secrets.token_hex(8)}.part")
        mode = _mode(target)

        def take(version: Version, content: Iterator[memoryview]) -> ObjectInfo:
            done = 0
            with _using(target, "write"), temporary.open("wb") as file:
                if mode is not None:
                    # Before there is anything to read.
                    temporary.chmod(mode)
                for chunk in content:
                    done += file.write(chunk)
                    if progress is not None:
                        progress(done, version.holder.meta.size)
                file.flush()
                os.fsync(file.fileno())
            return ObjectInfo.of(version.holder)

        try:
            info = self._reading.whole(name, take)
            _refuse_existing(target, overwrite)
            with _using(target, "write"):
                temporary.replace(target)
        finally:
            # Where it could not be made it cannot be removed either.
            if os.path.lexists(temporary):
                temporary.unlink(missing_ok=True)
        return info

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
        """Store an object; it takes the place of what has its name, a link too, with all that stood beside that.

        ``data`` is bytes, an iterable of bytes, or a file opened as binary. Chunks have ``chunk_size`` bytes, or what
        the server and the bucket's ``max_msg_size`` allow. Until all of it is stored readers see the old object. What
        was refused or cut off is tried again, except for an iterable or a file that cannot go back to its beginning.

        `JetStreamError` when it is not stored: the old object stays, and the chunks of the new one are removed. What
        ``data`` raises comes out as it is. After an `OutageError`, the next put under this name removes them. Should
        only the last acknowledgement be missing, its message says so, and the object may be the new one.
        """
        if type(chunk_size) is not int or chunk_size < 1:
            raise OptionError(f"chunk_size must be a whole number of bytes from 1 on, not {chunk_size!r}")
        wanted = new_object(
            object_name(name),
            data,
            progress,
            chunk_size=chunk_size,
            description=description or None,
            headers={} if headers is None else _headers(headers),
            metadata={} if metadata is None else _metadata(metadata),
        )
        return self._writing.put(wanted)

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
        """`put` a file, under its own name without the folders in front of it if no other is given.

        `OptionError` when it cannot be opened, `JetStreamError` when it cannot be read.
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
        """Delete an object, or a link (not what it leads to). Its name stays known as that of a deleted object."""
        self._writing.delete(name)

    def update_meta(
        self,
        name: str,
        new_name: str | None = None,
        *,
        description: str | None = None,
        headers: Mapping[str, Sequence[str]] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        """Change an object's name, description, headers, metadata. None leaves each as it is, an empty one removes it.

        `OptionError` when an object of the new name is there. For a moment an object has both names. Only writers who
        note what they do (this package's) leave its content alone when they put something under its old name in that
        moment.
        """
        given_headers = None if headers is None else _headers(headers)
        given_metadata = None if metadata is None else _metadata(metadata)
        if new_name is None or new_name == name:
            return self._writing.describe(name, description, given_headers, given_metadata)
        found = self._place.there(object_name(name))
        return self._writing.rename(
            found, described(found.meta, description, given_headers, given_metadata, name=object_name(new_name))
        )

    def link(self, name: str, to_bucket: str, to_name: str) -> ObjectInfo:
        """Let a name stand for an object of this or another bucket, whatever is put there later.

        It takes the place of another link, and not of an object (`OptionError`). `MessageNotFound` when there is no
        such object, `OptionError` when it is a link itself: readers follow one only.
        """
        target = ObjectPlace(self._api, to_bucket).there(object_name(to_name))
        if target.meta.link is not None:
            raise OptionError(
                f"object {to_name!r} of bucket {to_bucket} is a link, and links to links are not followed"
            )
        return self._writing.link(name, OBJECT_STORE.name(to_bucket), to_name)

    def link_bucket(self, name: str, to_bucket: str) -> ObjectInfo:
        """Let a name stand for a whole bucket. There is no content behind it; else as `link`."""
        ObjectPlace(self._api, to_bucket).info()
        return self._writing.link(name, OBJECT_STORE.name(to_bucket), "")


def _headers(given: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Headers, with one text standing for a list of one; `OptionError` for what is no text."""
    found = {name: (values,) if isinstance(values, str) else tuple(values) for name, values in given.items()}
    if not all(isinstance(each, str) for name, values in found.items() for each in (name, *values)):
        raise OptionError("headers must be a mapping of names to lists of text", option="headers")
    return found


def _metadata(given: Mapping[str, str]) -> dict[str, str]:
    if not all(isinstance(each, str) for pair in given.items() for each in pair):
        raise OptionError("metadata must be a mapping of text to text", option="metadata")
    return dict(given)


def _refuse_existing(target: Path, overwrite: bool) -> None:
    with _using(target, "write"):
        if target.exists() and not target.is_file():
            # To replace a device, /dev/null for example, would break other programs.
            raise OptionError(f"{target} exists already, and is no file: choose another path", option="path")
        if os.path.lexists(target) and not overwrite:
            raise OptionError(
                f"{target} exists already: choose another file, or say that it may be replaced", option="path"
            )


def _mode(target: Path) -> int | None:
    """The permissions of a file that is there; None for none, and for a link, which is replaced itself."""
    try:
        found = target.lstat().st_mode
    except (OSError, ValueError):
        return None
    return stat.S_IMODE(found) if stat.S_ISREG(found) else None


@contextlib.contextmanager
def _using(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise JetStreamError(f"cannot {what} {path}: {error.strerror or error}") from error


Config = ObjectBucketConfig | Mapping[str, Any]


class Objects(Buckets[ObjectBucketConfig, ObjectBucketInfo]):
    """The Object Store buckets of an account; ``admin.objects``.

    A bucket is set up by the fields of `ObjectBucketConfig`, each by its name, or a whole one, or a mapping. What is
    made is what the clients of NATS make. All methods raise what `Api` raises; `StreamNotFound` names the bucket. A
    shorter ``ttl`` removes objects.
    """

    def __init__(self, api: Api) -> None:
        super().__init__(api, ObjectBucketInfo)

    def bucket(self, name: str) -> ObjectBucket:
        """The objects of a bucket. Nothing is asked of a server yet."""
        return ObjectBucket(self._api, name)

    def load_or_create(self, bucket: str, config: Config | None = None, /, **fields: Any) -> ObjectBucketInfo:
        """The bucket, created if there is none.

        `JetStreamError` that lists the differences when there is one that differs in something that is given here.
        """
        wanted = self._wanted(bucket, config, fields)
        try:
            found = self.load(bucket)
        except StreamNotFound:
            return ObjectBucketInfo(self._streams.load_or_create(wanted, given_only=True))
        what = f"bucket {bucket}"
        # What clients set differently does not matter to anybody: the subjects and rollups do.
        compared = {name: value for name, value in wanted.items() if name not in ("discard", "allow_direct")}
        refuse_difference(StreamConfig.parse(compared, what), found.stream.config, what, given_only=True)
        return found

    def seal(self, bucket: str) -> None:
        """Let nothing in and nothing out of a bucket, for ever."""
        name = OBJECT_STORE.name(bucket)
        with OBJECT_STORE.naming(name):
            self._streams.seal(self._stream(name))

    # Inside

    def _wanted(self, bucket: str, config: Config | None, fields: Mapping[str, Any]) -> dict[str, Any]:
        return stream_fields(OBJECT_STORE.name(bucket), config, fields)

    def _changes(self, bucket: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        return stream_changes(bucket, changes)
