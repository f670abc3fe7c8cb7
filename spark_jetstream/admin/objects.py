"""Object Store buckets: list, create, change, seal, delete (JETSTREAM ADR-20). Their objects: `ObjectBucket`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.buckets import Buckets
from spark_jetstream.admin.changing import refuse_difference
from spark_jetstream.admin.object_bucket import ObjectBucket
from spark_jetstream.admin.object_models import (
    OBJECT_STORE,
    ObjectBucketConfig,
    ObjectBucketInfo,
    stream_changes,
    stream_fields,
)
from spark_jetstream.admin.stream_models import StreamConfig
from spark_jetstream.errors import StreamNotFound

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
