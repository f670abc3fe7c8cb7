"""Buckets of either kind: list, create, change, delete. Each is a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.models.buckets import AnyBucketConfig, AnyBucketInfo
from spark_jetstream.admin.models.changes import Difference
from spark_jetstream.admin.streams import Streams

C = TypeVar("C", bound=AnyBucketConfig)
B = TypeVar("B", bound=AnyBucketInfo)


class Buckets(ABC, Generic[C, B]):
    """The buckets of one kind in an account, those of ``info``. All methods raise what `Api` raises; `StreamNotFound`
    names the bucket."""

    def __init__(self, api: Api, info: type[B]) -> None:
        self._api = api
        self._info = info
        self._kind = info.kind
        self._streams = Streams(api)

    # Looking

    def names(self) -> Iterator[str]:
        """The names of all buckets, sorted, page by page."""
        for name in self._streams.names():
            if name.startswith(self._kind.prefix):
                yield name.removeprefix(self._kind.prefix)

    def infos(self) -> Iterator[B]:
        """All buckets, sorted by name, page by page. `ServerBusy` at the end when servers did not answer for some."""
        for info in self._streams.infos():
            if info.config.name.startswith(self._kind.prefix):
                yield self._info(info)

    def load(self, bucket: str) -> B:
        """A bucket: how it is set up, and what it holds."""
        name = self._kind.name(bucket)
        with self._kind.naming(name):
            return self._info(self._streams.load(self._stream(name)))

    # Creating and changing

    def create(self, bucket: str, config: C | Mapping[str, Any] | None = None, /, **fields: Any) -> B:
        """Create a bucket. One that exists just so stays as it is; `StreamExists`, which lists the differences of its
        stream, for one that is different.

        `OptionError` when it cannot be, `JetStreamError` when the server is too old for something.
        """
        return self._info(self._streams.create(self._wanted(bucket, config, fields)))

    def load_or_create(self, bucket: str, config: C | Mapping[str, Any] | None = None, /, **fields: Any) -> B:
        """The bucket, created if there is none. `JetStreamError` that lists in what an existing one is different."""
        return self._info(self._streams.load_or_create(self._wanted(bucket, config, fields)))

    def plan(self, bucket: str, /, **changes: Any) -> list[Difference]:
        """What `update` with the same arguments would change. Nothing is changed."""
        name = self._kind.name(bucket)
        with self._kind.naming(name):
            return self._streams.plan(self._stream(name), self._changes(name, changes))

    def update(self, bucket: str, /, **changes: Any) -> list[Difference]:
        """Change a bucket, by fields of its configuration; returns what was changed of its stream, as `Streams.update`.

        None takes a field back to its default. What no longer fits, to a shorter ``ttl`` for example, is removed.
        """
        name = self._kind.name(bucket)
        with self._kind.naming(name):
            return self._streams.update(self._stream(name), self._changes(name, changes))

    def delete(self, bucket: str, *, missing_ok: bool = False) -> bool:
        """Delete a bucket with all that is in it; whether there was one. `StreamNotFound` without one, unless
        ``missing_ok``."""
        name = self._kind.name(bucket)
        with self._kind.naming(name):
            return self._streams.delete(self._stream(name), missing_ok=missing_ok)

    # Inside

    def _stream(self, bucket: str) -> str:
        return f"{self._kind.prefix}{bucket}"

    @abstractmethod
    def _wanted(self, bucket: str, config: C | Mapping[str, Any] | None, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration of a bucket's stream. `OptionError`."""

    @abstractmethod
    def _changes(self, bucket: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """What changes of a bucket's fields change of its stream's. `OptionError`."""
