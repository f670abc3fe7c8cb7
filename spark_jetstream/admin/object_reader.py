"""Meta messages and content of the objects of a bucket (ADR-20 "JetStream based Object Stores").

Content is right when the number of its chunks, its size and its SHA-256 are those of the meta
message. If they are not, the reader reads the meta message again: when the object was replaced
meanwhile, it reads the new version, otherwise the object is damaged. No content mixes two versions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.messages import Messages
from spark_jetstream.admin.models.messages import StoredMessage
from spark_jetstream.admin.models.objects import OBJECT_STORE, object_name
from spark_jetstream.admin.models.streams import StreamInfo
from spark_jetstream.admin.streams import Streams
from spark_jetstream.admin.watch import LABEL, settings
from spark_jetstream.buckets.object_content import ContentCheck, chunk_views
from spark_jetstream.buckets.objects import (
    StoredObject,
    chunk_subject,
    meta_filter,
    meta_subject,
    stream_name,
)
from spark_jetstream.errors import DataLossError, JetStreamError, MessageNotFound
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.streams.pull import read_range

_ATTEMPTS = 10  # at an object that is replaced each time it is read
_BATCH = 32  # chunks of one request; two are under way


class ObjectReader:
    """Reads the objects of one bucket; ``stream`` is its stream.

    Methods raise `StreamNotFound` when there is no bucket, and what `Api` raises; those that read
    content also `MessageNotFound` when there is no such object, `DataLossError` when it is damaged,
    and what `read_range` raises.
    """

    def __init__(self, api: Api, bucket: str) -> None:
        self.bucket = OBJECT_STORE.name(bucket)
        self.stream = stream_name(self.bucket)
        self._api = api

    def info(self) -> StreamInfo:
        """Return the configuration and state of the stream."""
        with OBJECT_STORE.naming(self.bucket, self._api.nearest):
            return Streams(self._api).load(self.stream)

    @functools.cached_property
    def origin(self) -> str:
        """The bucket in the subjects: ``*`` for a mirror, whose messages have the subjects of another bucket."""
        return "*" if self.info().config.mirror else self.bucket

    @property
    def metas(self) -> str:
        """The filter of all meta messages."""
        return meta_filter(self.origin)

    def newest(self, name: str) -> StoredObject | None:
        """Return the latest meta message of a name, a deletion too; None when there never was one."""
        try:
            with OBJECT_STORE.naming(self.bucket, self._api.nearest):
                message = Messages(self._api).last(self.stream, meta_subject(self.origin, name))
        except MessageNotFound:
            return None
        return self.stored(message)

    def stored(self, message: StoredMessage) -> StoredObject:
        """Return the object of a meta message. Raises `ProtocolError` when it is none."""
        return StoredObject.read(
            message.data,
            self.bucket,
            message.subject,
            message.seq,
            message.time.nanoseconds,
        )

    def existing(self, name: str, why: str = "") -> StoredObject:
        """Return the object or link of a name.

        Raises `MessageNotFound` if there is none; ``why`` goes into it.
        """
        newest = self.newest(name)
        if newest is None or newest.meta.deleted:
            reason = why or ("it was deleted" if newest else "")
            more = f": {reason}" if reason else ""
            raise MessageNotFound(
                f"there is no object {name!r} in bucket {self.bucket}{more}",
                code=404,
                err_code=10037,
                description="no message found",
            )
        return newest

    def chunks(self, name: str, begin: Callable[[StoredObject], None]) -> Iterator[memoryview]:
        """Return the chunks of the content.

        They are the object once the iterator has ended without an error.

        ``begin`` gets the object that has the content before its first chunk; and another when it
        was replaced.
        """
        version = self._version(name)
        for _ in range(_ATTEMPTS):
            holder, part = version
            begin(holder)
            problem = yield from self._content(holder, part)
            if problem is None:
                return
            newer = self._version(name)
            if newer == version:
                raise DataLossError(f"{self._what(name)} is damaged: {problem}")
            version = newer
        problem = f"was replaced again each time it was read, {_ATTEMPTS} times"
        raise JetStreamError(f"{self._what(name)} {problem}")

    def _version(self, name: str) -> tuple[StoredObject, SequenceRange]:
        """Resolve a link, and return the object that has the content of a name now, and the range of its chunks.

        Raises `JetStreamError` for a link that leads to no content.
        """
        listed = self.existing(object_name(name))
        reader = self
        holder = listed
        if listed.meta.link is not None:
            bucket, target = listed.meta.link
            if not target:
                link = f"{self._what(name)} is a link to the whole bucket {bucket}"
                raise JetStreamError(f"{link}, and has no content")
            link = f"{self._what(name)} is a link to object {target!r} of bucket {bucket}"
            # A mirror holds the content of its origin, so links to the origin lead to the mirror.
            if bucket not in (self.bucket, listed.origin):
                reader = ObjectReader(self._api, bucket)
            holder = reader.existing(target, link)
            if holder.meta.link is not None:
                raise JetStreamError(f"{link}, which is a link itself, and only one is followed")
        chunks = chunk_subject(holder.origin, holder.meta.nuid)
        part = SequenceRange(
            reader.stream,
            1,
            holder.sequence,  # the meta message of a version is stored after its last chunk
            holder.meta.chunks,
            reader.info().created,
            (chunks,),
        )
        return holder, part

    def _content(
        self,
        holder: StoredObject,
        part: SequenceRange,
    ) -> Generator[memoryview, None, str | None]:
        """Yield the chunks of an object, and return what is wrong with them; None if they are right."""
        meta = holder.meta
        check = ContentCheck(meta)
        if not meta.nuid or not (meta.size or meta.chunks):
            return check.fault()
        how = settings(self._api, _BATCH)
        try:
            for messages in read_range(self._api.connect, part, how, LABEL):
                for chunk in chunk_views(messages):
                    check.add(chunk)
                    yield chunk
        except DataLossError as error:
            return check.fault() or str(error)
        return check.fault()

    def _what(self, name: str) -> str:
        return f"object {name!r} of bucket {self.bucket}"
