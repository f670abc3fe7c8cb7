"""Object Store buckets: list, create, change, seal, delete (JETSTREAM ADR-20). Their objects: `ObjectBucket`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.changing import refuse_difference
from spark_jetstream.admin.differences import Difference
from spark_jetstream.admin.object_bucket import ObjectBucket
from spark_jetstream.admin.object_models import (
    STREAM_PREFIX,
    ObjectBucketConfig,
    ObjectBucketInfo,
    bucket_name,
    stream_changes,
    stream_fields,
)
from spark_jetstream.admin.object_place import ObjectPlace, naming
from spark_jetstream.admin.stream_models import StreamConfig
from spark_jetstream.admin.streams import Streams
from spark_jetstream.errors import StreamNotFound
from spark_jetstream.objects import stream_name

Config = ObjectBucketConfig | Mapping[str, Any]


class Objects:
    """The Object Store buckets of an account; ``admin.objects``.

    A bucket is set up by the fields of `ObjectBucketConfig`, each by its name, or a whole one, or a mapping. What is
    made is what the clients of NATS make. All methods raise what `Api` raises; `StreamNotFound` names the bucket.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._streams = Streams(api)

    # Looking

    def names(self) -> Iterator[str]:
        """The names of all buckets, sorted, page by page."""
        for name in self._streams.names():
            if name.startswith(STREAM_PREFIX):
                yield name.removeprefix(STREAM_PREFIX)

    def infos(self) -> Iterator[ObjectBucketInfo]:
        """All buckets, sorted by name, page by page. `ServerBusy` at the end when servers did not answer for some."""
        for info in self._streams.infos():
            if info.config.name.startswith(STREAM_PREFIX):
                yield ObjectBucketInfo(info)

    def load(self, bucket: str) -> ObjectBucketInfo:
        """A bucket: how it is set up, and what it holds."""
        return ObjectBucketInfo(ObjectPlace(self._api, bucket).info())

    def bucket(self, name: str) -> ObjectBucket:
        """The objects of a bucket. Nothing is asked of a server yet."""
        return ObjectBucket(self._api, name)

    # Creating and changing

    def create(self, bucket: str, config: Config | None = None, /, **fields: Any) -> ObjectBucketInfo:
        """Create a bucket. One that exists just so stays as it is; `StreamExists` for one that is different.

        `OptionError` when it cannot be, `JetStreamError` when the server is too old for something.
        """
        return ObjectBucketInfo(self._streams.create(stream_fields(bucket_name(bucket), config, fields)))

    def load_or_create(self, bucket: str, config: Config | None = None, /, **fields: Any) -> ObjectBucketInfo:
        """The bucket, created if there is none.

        `JetStreamError` that lists the differences when there is one that differs in something that is given here.
        """
        wanted = stream_fields(bucket_name(bucket), config, fields)
        try:
            found = self.load(bucket)
        except StreamNotFound:
            return ObjectBucketInfo(self._streams.load_or_create(wanted, given_only=True))
        what = f"bucket {bucket}"
        # What clients set differently does not matter to anybody: the subjects and rollups do.
        compared = {name: value for name, value in wanted.items() if name not in ("discard", "allow_direct")}
        refuse_difference(StreamConfig.parse(compared, what), found.stream.config, what, given_only=True)
        return found

    def plan(self, bucket: str, /, **changes: Any) -> list[Difference]:
        """What `update` with the same arguments would change. Nothing is changed."""
        with naming(bucket_name(bucket)):
            return self._streams.plan(stream_name(bucket), stream_changes(bucket, changes))

    def update(self, bucket: str, /, **changes: Any) -> list[Difference]:
        """Change a bucket, by fields of `ObjectBucketConfig`; returns what was changed of its stream.

        None takes a field back to its default. A shorter ``ttl`` removes objects. As `Streams.update` else.
        """
        with naming(bucket_name(bucket)):
            return self._streams.update(stream_name(bucket), stream_changes(bucket, changes))

    def seal(self, bucket: str) -> None:
        """Let nothing in and nothing out of a bucket, for ever."""
        with naming(bucket_name(bucket)):
            self._streams.seal(stream_name(bucket))

    def delete(self, bucket: str, *, missing_ok: bool = False) -> bool:
        """Delete a bucket and all of its objects; whether there was one. `StreamNotFound` without one, unless
        ``missing_ok``."""
        with naming(bucket_name(bucket)):
            return self._streams.delete(stream_name(bucket), missing_ok=missing_ok)
