"""Where the objects of a bucket are: its stream, and the meta messages in it."""

from __future__ import annotations

import functools

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.object_models import OBJECT_STORE
from spark_jetstream.admin.stored import Messages
from spark_jetstream.admin.stream_replies import StreamInfo
from spark_jetstream.admin.streams import Streams
from spark_jetstream.errors import MessageNotFound
from spark_jetstream.objects import meta_filter, meta_subject, stream_name
from spark_jetstream.stored_objects import StoredObject


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
