"""Key-Value buckets: list, create, change, delete (ADR-8, ADR-48)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.buckets import Buckets
from spark_jetstream.admin.kv_bucket import Bucket
from spark_jetstream.admin.kv_models import KEY_VALUE, BucketConfig, BucketInfo, stream_changes, stream_fields


class KeyValue(Buckets[BucketConfig, BucketInfo]):
    """The Key-Value buckets of an account; ``admin.kv``.

    A bucket is set up by the fields of `BucketConfig`, each by its name, or a whole one, or a mapping; ``mirror`` and
    ``sources`` are named by bucket. What is made is what the clients of NATS make. All methods raise what `Api` raises;
    `StreamNotFound` names the bucket. A smaller ``history`` or a shorter ``ttl`` removes revisions.
    """

    def __init__(self, api: Api) -> None:
        super().__init__(api, BucketInfo)

    def bucket(self, name: str) -> Bucket:
        """A bucket's keys. Nothing is asked of a server yet."""
        return Bucket(self._api, name)

    # Inside

    def _changes(self, bucket: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        return stream_changes(bucket, self.load(bucket).stream.config, changes)

    def _wanted(
        self, bucket: str, config: BucketConfig | Mapping[str, Any] | None, fields: Mapping[str, Any]
    ) -> dict[str, Any]:
        wanted = stream_fields(KEY_VALUE.name(bucket), config, fields)
        mirror = wanted.get("mirror")
        if mirror is None:
            return wanted
        # The server does with `mirror_direct` what it sees the origin do, whatever is asked for.
        direct = True
        if mirror.external is None:
            origin = mirror.name.removeprefix(KEY_VALUE.prefix)
            with KEY_VALUE.naming(origin, f"create bucket {bucket} as its mirror"):
                direct = self._streams.load(mirror.name).config.allow_direct
        return {**wanted, "mirror_direct": direct}
