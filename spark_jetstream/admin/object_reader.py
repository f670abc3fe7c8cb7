"""Meta messages and content of the objects of a bucket (ADR-20 "JetStream based Object Stores").

`buckets.content_reader` checks the content, and reads the new version of an object that was
replaced meanwhile. The stream's leader says which version an object has. So an object whose content
is wrong is damaged, and needs no second check.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NoReturn

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.messages import Messages
from spark_jetstream.admin.models.messages import StoredMessage
from spark_jetstream.admin.models.objects import OBJECT_STORE, object_name
from spark_jetstream.admin.models.streams import StreamInfo
from spark_jetstream.admin.streams import Streams
from spark_jetstream.admin.watch import LABEL, settings
from spark_jetstream.buckets.content_reader import BucketStream, ContentReader, ObjectVersion
from spark_jetstream.buckets.objects import StoredObject, meta_filter, meta_subject, stream_name
from spark_jetstream.errors import DataLossError, JetStreamError, MessageNotFound
from spark_jetstream.protocol.columns import Delivered
from spark_jetstream.protocol.stream import SequenceRange
from spark_jetstream.streams.pull import read_range

_BATCH = 32  # chunks of one request; two are under way


class ObjectReader:
    """Reads the objects of one bucket; ``stream`` is its stream.

    Methods raise `StreamNotFound` when the bucket does not exist, and what `Api` raises. Methods
    that read content also raise `MessageNotFound` when the object does not exist, `DataLossError`
    when it is damaged, and what `read_range` raises.
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
                # The leader answers, so this is never an older version of the object.
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
        # ADR-20: a deleted object keeps a meta message, marked as deleted.
        if newest is None or newest.meta.deleted:
            reason = why or ("it was deleted" if newest else "")
            more = f": {reason}" if reason else ""
            # The codes are those of a server that has no message.
            raise MessageNotFound(
                f"there is no object {name!r} in bucket {self.bucket}{more}",
                code=404,
                err_code=10037,
                description="no message found",
            )
        return newest

    def versions(self, name: str) -> Iterator[tuple[StoredObject, Iterator[memoryview]]]:
        """Yield the object that has the content of a name, and the chunks of its content.

        Another one follows when it was replaced meanwhile. The caller takes all chunks of each;
        those of the last one are the object once this iterator has ended without an error.
        """
        contents = ContentReader(
            self._read,
            lambda _: self._version(name),
            named=lambda _: self._what(name),
            lost=_damaged,
        )
        for reading in contents.readings([self._version(name)]):
            yield reading.versions[0].holder, (chunk for _, chunk in reading.chunks())

    def _version(self, name: str) -> ObjectVersion:
        """Return the object of a name, and the one that has its content now: another one for a link.

        Raises `JetStreamError` for a link that leads to no content.
        """
        listed = self.existing(object_name(name))
        reader = self
        holder = listed
        if listed.meta.link is not None:
            bucket, target = listed.meta.link
            # ADR-20: a link without a name leads to a whole bucket.
            if not target:
                link = f"{self._what(name)} is a link to the whole bucket {bucket}"
                raise JetStreamError(f"{link}, and has no content")
            link = f"{self._what(name)} is a link to object {target!r} of bucket {bucket}"
            if listed.leads_out_of(self.bucket):
                reader = ObjectReader(self._api, bucket)
            holder = reader.existing(target, link)
            # A link to a link may lead back to itself.
            if holder.meta.link is not None:
                raise JetStreamError(f"{link}, which is a link itself, and only one is followed")
        # With its creation time the reader notices a stream that was created again.
        return ObjectVersion(listed, holder, BucketStream(reader.stream, reader.info().created))

    def _read(self, part: SequenceRange) -> Iterator[Delivered]:
        return read_range(self._api.connect, part, settings(self._api, _BATCH), LABEL)

    def _what(self, name: str) -> str:
        return f"object {name!r} of bucket {self.bucket}"


def _damaged(text: str) -> NoReturn:
    raise DataLossError(text)
