"""The content of an object, read chunk by chunk and checked (JETSTREAM ADR-20).

Content is good only when all of it has come and the number of chunks, of bytes, and the SHA-256 are those of the meta
message. When they are not, the meta message is read again: an object that was replaced meanwhile is read in its new
version, one that is still the same is damaged. No content mixes two versions.

Where the objects of a bucket are: its stream, and the meta messages in it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.messages import Messages
from spark_jetstream.admin.models.objects import OBJECT_STORE, object_name
from spark_jetstream.admin.models.streams import StreamInfo
from spark_jetstream.admin.streams import Streams
from spark_jetstream.admin.watch import LABEL
from spark_jetstream.buckets.object_content import ContentCheck, chunk_views
from spark_jetstream.buckets.objects import StoredObject, chunk_subject, meta_filter, meta_subject, stream_name
from spark_jetstream.errors import DataLossError, JetStreamError, MessageNotFound
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.streams.pull import PullSettings, read_range


class ObjectPlace:
    """One bucket. All methods raise `StreamNotFound` when there is none, and what `Api` raises."""

    def __init__(self, api: Api, bucket: str) -> None:
        self.bucket = OBJECT_STORE.name(bucket)
        self.stream = stream_name(self.bucket)
        self._api = api

    def info(self) -> StreamInfo:
        """The stream behind the bucket."""
        with OBJECT_STORE.naming(self.bucket):
            return Streams(self._api).load(self.stream)

    @functools.cached_property
    def origin(self) -> str:
        """The bucket in the subjects: ``*`` where the stream is a mirror, which has those of another bucket."""
        return "*" if self.info().config.mirror else self.bucket

    @property
    def metas(self) -> str:
        """The filter of all meta messages."""
        return meta_filter(self.origin)

    def newest(self, name: str) -> StoredObject | None:
        """What the bucket has under a name, deleted or not; None when it has never had anything there.

        Raises `ProtocolError` when the meta message is none.
        """
        try:
            with OBJECT_STORE.naming(self.bucket):
                found = Messages(self._api).last(self.stream, meta_subject(self.origin, name))
        except MessageNotFound:
            return None
        return StoredObject.read(found.data, self.bucket, found.subject, found.seq, found.time.nanoseconds)

    def there(self, name: str) -> StoredObject:
        """What the bucket has under a name; `MessageNotFound` when there is nothing, or it was deleted."""
        found = self.newest(name)
        if found is None or found.meta.deleted:
            raise missing(self.bucket, name, "it was deleted" if found else "")
        return found


def missing(bucket: str, name: str, why: str = "") -> MessageNotFound:
    """The error for an object that is not there."""
    said = f"there is no object {name!r} in bucket {bucket}{f': {why}' if why else ''}"
    return MessageNotFound(said, code=404, err_code=10037, description="no message found")


T = TypeVar("T")

_ATTEMPTS = 10  # at an object that is replaced each time it is read
_BATCH = 32  # chunks of one request; two are under way
_BATCH_BYTES = 4 * 1024 * 1024
_EXPIRES = 30.0


@dataclass(frozen=True)
class Version:
    """An object to be read: what its name stands for, and the one that has the content, which is another one behind a
    link. ``stream`` is where that lies, ``created`` when that stream was created."""

    listed: StoredObject
    holder: StoredObject
    stream: str
    created: str


class _Unfit(Exception):
    """What came is not what the meta message says."""


class ObjectReading:
    """Reads the objects of one bucket. Methods raise `MessageNotFound` when there is no such object, `DataLossError`
    when it is damaged, and what `ObjectPlace` and `read_range` raise."""

    def __init__(self, api: Api, place: ObjectPlace) -> None:
        self._api = api
        self._place = place

    def chunks(self, name: str) -> Iterator[bytes]:
        """The content in pieces, as they lie in the bucket.

        An error at the end means that what came is not the object. `JetStreamError` when the object was replaced after
        a part of it was handed out: it has to be read again.
        """
        version = self.version(name)
        for _ in range(_ATTEMPTS):
            begun = False
            try:
                for chunk in self._content(version):
                    begun = True
                    yield bytes(chunk)
                return
            except _Unfit as fault:
                version = self._newer(version, fault)
                if begun:
                    raise JetStreamError(
                        f"{self._what(name)} was replaced while it was read: what came is not all of it, read it again"
                    ) from None
        raise self._restless(name)

    def whole(self, name: str, take: Callable[[Version, Iterator[memoryview]], T]) -> T:
        """What ``take`` makes of the content. It is called again, from the beginning, when the object was replaced.

        What it returns counts when it has taken all of the content; until then nothing is known to be right.
        """
        version = self.version(name)
        for _ in range(_ATTEMPTS):
            try:
                return take(version, self._content(version))
            except _Unfit as fault:
                version = self._newer(version, fault)
        raise self._restless(name)

    def version(self, name: str) -> Version:
        """What is to be read under a name now. `JetStreamError` for a link that leads to no content."""
        listed = self._place.there(object_name(name))
        place, holder = self._place, listed
        if listed.meta.link is not None:
            bucket, target = listed.meta.link
            if not target:
                raise JetStreamError(f"{self._what(name)} is a link to the whole bucket {bucket}, and has no content")
            whose = f"{self._what(name)} is a link to object {target!r} of bucket {bucket}"
            # In a mirror a link to its origin leads to the mirror, too.
            place = self._place if bucket in (self._place.bucket, listed.origin) else ObjectPlace(self._api, bucket)
            found = place.newest(target)
            if found is None or found.meta.deleted:
                raise missing(bucket, target, whose)
            if found.meta.link is not None:
                raise JetStreamError(f"{whose}, which is a link itself, and only one is followed")
            holder = found
        return Version(listed, holder, place.stream, place.info().created)

    def _content(self, version: Version) -> Iterator[memoryview]:
        """The chunks of a version; raises `_Unfit` behind the last one if they are not the object."""
        holder = version.holder
        meta, check = holder.meta, ContentCheck(holder.meta)
        if meta.nuid and (meta.size or meta.chunks):
            # The meta message of a version is stored behind its last chunk.
            subject = chunk_subject(holder.origin, meta.nuid)
            part = SequenceRange(version.stream, 1, holder.sequence, meta.chunks, version.created, (subject,))
            patience = self._api.options.retry_timeout
            settings = PullSettings(_BATCH, _BATCH_BYTES, _EXPIRES, patience, fail_on_data_loss=True)
            try:
                for messages in read_range(lambda _: self._api.connection, part, settings, LABEL):
                    for chunk in chunk_views(messages):
                        check.add(chunk)
                        yield chunk
            except DataLossError as error:
                raise _Unfit(check.fault() or str(error)) from None
        fault = check.fault()
        if fault is not None:
            raise _Unfit(fault)

    def _newer(self, version: Version, fault: _Unfit) -> Version:
        """The version that has taken the place of one that could not be read; `DataLossError` if there is none."""
        name = version.listed.meta.name
        newer = self.version(name)
        if (newer.stream, newer.created, newer.holder.sequence) == (
            version.stream,
            version.created,
            version.holder.sequence,
        ):
            raise DataLossError(f"{self._what(name)} is damaged: {fault}")
        return newer

    def _what(self, name: str) -> str:
        return f"object {name!r} of bucket {self._place.bucket}"

    def _restless(self, name: str) -> JetStreamError:
        return JetStreamError(f"{self._what(name)} was replaced again each time it was read, {_ATTEMPTS} times")
