"""Key-Value buckets: list, create, change, delete (ADR-8, ADR-48)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.differences import Difference
from spark_jetstream.admin.kv_bucket import Bucket
from spark_jetstream.admin.kv_models import BucketConfig, BucketInfo, bucket_name, stream_changes, stream_fields
from spark_jetstream.admin.kv_writing import load_bucket, no_bucket
from spark_jetstream.admin.streams import Streams
from spark_jetstream.errors import StreamNotFound
from spark_jetstream.kv import STREAM_PREFIX, stream_name

Config = BucketConfig | Mapping[str, Any]


class KeyValue:
    """The Key-Value buckets of an account; ``admin.kv``.

    A bucket is set up by the fields of `BucketConfig`, each by its name, or a whole one, or a mapping. What is made is
    what the clients of NATS make. All methods raise what `Api` raises; `StreamNotFound` names the bucket.
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

    def infos(self) -> Iterator[BucketInfo]:
        """All buckets, sorted by name, page by page. `ServerBusy` at the end when servers did not answer for some."""
        for info in self._streams.infos():
            if info.config.name.startswith(STREAM_PREFIX):
                yield BucketInfo(info)

    def load(self, bucket: str) -> BucketInfo:
        """A bucket: how it is set up, and what it holds."""
        return load_bucket(self._api, bucket_name(bucket))

    def bucket(self, name: str) -> Bucket:
        """A bucket's keys. Nothing is asked of a server yet."""
        return Bucket(self._api, name)

    # Creating and changing

    def create(self, bucket: str, config: Config | None = None, /, **fields: Any) -> BucketInfo:
        """Create a bucket. One that exists just so stays as it is; `StreamExists` for one that is different.

        ``mirror`` and ``sources`` are named by bucket. `OptionError` when it cannot be, `JetStreamError` when the
        server is too old for something.
        """
        return BucketInfo(self._streams.create(self._stream(bucket, config, fields)))

    def load_or_create(self, bucket: str, config: Config | None = None, /, **fields: Any) -> BucketInfo:
        """The bucket, created if there is none. `JetStreamError` that lists in what an existing one is different."""
        return BucketInfo(self._streams.load_or_create(self._stream(bucket, config, fields)))

    def plan(self, bucket: str, /, **changes: Any) -> list[Difference]:
        """What `update` with the same arguments would change. Nothing is changed."""
        return self._streams.plan(stream_name(bucket), self._changes(bucket, changes))

    def update(self, bucket: str, /, **changes: Any) -> list[Difference]:
        """Change a bucket, by fields of `BucketConfig`; returns what was changed of its stream, as `Streams.update`.

        None takes a field back to its default. A smaller ``history`` or a shorter ``ttl`` removes revisions.
        """
        return self._streams.update(stream_name(bucket), self._changes(bucket, changes))

    def delete(self, bucket: str, *, missing_ok: bool = False) -> bool:
        """Delete a bucket with all keys; whether there was one. `StreamNotFound` without one, unless ``missing_ok``."""
        try:
            return self._streams.delete(stream_name(bucket_name(bucket)), missing_ok=missing_ok)
        except StreamNotFound as error:
            raise no_bucket(bucket, f"delete bucket {bucket}", error) from None

    # Inside

    def _changes(self, bucket: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        return stream_changes(bucket, self.load(bucket).stream.config, changes)

    def _stream(self, bucket: str, config: Config | None, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration of a bucket's stream."""
        wanted = stream_fields(bucket_name(bucket), config, fields)
        mirror = wanted.get("mirror")
        if mirror is None:
            return wanted
        # The server does with `mirror_direct` what it sees the origin do, whatever is asked for.
        direct = True
        if mirror.external is None:
            try:
                direct = self._streams.load(mirror.name).config.allow_direct
            except StreamNotFound as error:
                origin = mirror.name.removeprefix(STREAM_PREFIX)
                raise no_bucket(origin, f"create bucket {bucket} as its mirror", error) from None
        return {**wanted, "mirror_direct": direct}
