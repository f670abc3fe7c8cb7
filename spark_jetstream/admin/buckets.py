"""Buckets of either kind: list, create, change, delete. A bucket is a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from spark_jetstream.admin.api import Api
from spark_jetstream.admin.assets import refuse_difference
from spark_jetstream.admin.models.asked import parse_user
from spark_jetstream.admin.models.buckets import AnyBucketConfig, AnyBucketInfo, fields_of
from spark_jetstream.admin.models.changes import Difference
from spark_jetstream.admin.models.streams import StreamConfig
from spark_jetstream.admin.streams import Streams

C = TypeVar("C", bound=AnyBucketConfig)
B = TypeVar("B", bound=AnyBucketInfo)


class Buckets(ABC, Generic[C, B]):
    """The buckets of one kind in an account.

    All methods raise what `Api` raises; `StreamNotFound` names the bucket.
    """

    _info: type[B]
    _config: type[C]
    _free: tuple[str, ...]
    """Fields of a stream that clients set differently, and with whose values all of them work."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._kind = self._info.kind
        self._streams = Streams(api)

    # Looking

    def names(self) -> Iterator[str]:
        """Return the names of all buckets, sorted, page by page."""
        for name in self._streams.names():
            # STREAM.NAMES takes a subject, and no prefix of names. A mirror has no subjects.
            if name.startswith(self._kind.prefix):
                yield name.removeprefix(self._kind.prefix)

    def infos(self) -> Iterator[B]:
        """Return all buckets, sorted by name, page by page.

        Raises `ServerBusy` at the end when some are missing.
        """
        for info in self._streams.infos():
            if info.config.name.startswith(self._kind.prefix):
                yield self._info(info)

    def load(self, bucket: str) -> B:
        """Return the configuration of a bucket and its size. Raises `StreamNotFound`."""
        with self._stream(bucket) as stream:
            return self._info(self._streams.load(stream))

    # Creating and changing

    def create(
        self,
        bucket: str,
        config: C | Mapping[str, Any] | None = None,
        /,
        **fields: Any,
    ) -> B:
        """Create a bucket; one that exists with the same configuration stays as it is.

        Raises:
            OptionError: The configuration is not possible.
            StreamExists: The bucket exists with another configuration; the error lists the
                differences of its stream.
            JetStreamError: The server is too old for a field, or ignored one.
        """
        return self._info(self._streams.create(self._wanted(bucket, config, fields)))

    def load_or_create(
        self,
        bucket: str,
        config: C | Mapping[str, Any] | None = None,
        /,
        **fields: Any,
    ) -> B:
        """Return the bucket; create it if there is none.

        Raises `JetStreamError`, which lists the differences, when an existing one is different: an
        Object Store bucket in a field that is given here, a Key-Value bucket in any field. Fields
        that clients set differently are accepted.
        """
        wanted = self._wanted(bucket, config, fields)
        what = f"bucket {bucket}"
        info = self._streams.load_or_create(wanted, any_config=True)
        # Fields that clients set differently do not count
        # (`test_a_bucket_of_another_client_is_loaded`).
        compared = StreamConfig.parse(
            {name: value for name, value in wanted.items() if name not in self._free},
            what,
        )
        refuse_difference(compared, info.config, what, given_only=True)
        return self._info(info)

    def plan(self, bucket: str, /, **changes: Any) -> list[Difference]:
        """Return what `update` with the same arguments would change.

        Raises `OptionError`, `StreamNotFound`.
        """
        with self._stream(bucket) as stream:
            return self._streams.plan(stream, self._changes(bucket, changes))

    def update(self, bucket: str, /, **changes: Any) -> list[Difference]:
        """Change fields of a bucket's configuration; return what was changed of its stream.

        None sets the default.

        The server removes everything that the new limits exclude, such as messages older than
        ``ttl``, and revisions beyond ``history``.

        Raises:
            OptionError: A value is not possible.
            JetStreamError: The server cannot do all of it: nothing was changed. Or it has ignored a
                field.
        """
        with self._stream(bucket) as stream:
            return self._streams.update(stream, self._changes(bucket, changes))

    def delete(self, bucket: str, *, missing_ok: bool = False) -> bool:
        """Delete a bucket; return whether there was one.

        Raises `StreamNotFound` unless ``missing_ok``.
        """
        with self._stream(bucket) as stream:
            return self._streams.delete(stream, missing_ok=missing_ok)

    @contextmanager
    def _stream(self, bucket: str) -> Iterator[str]:
        """Yield the name of a bucket's stream; a `StreamNotFound` raised inside names the bucket."""
        name = self._kind.name(bucket)
        with self._kind.naming(name, self._api.nearest):
            yield f"{self._kind.prefix}{name}"

    def _wanted(
        self,
        bucket: str,
        config: C | Mapping[str, Any] | None,
        fields: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return the configuration of a bucket's stream, as Go's client makes it.

        Raises `OptionError`.
        """
        name = self._kind.name(bucket)
        wanted = parse_user(self._config, config, fields, f"bucket {name}")
        stream = f"{self._kind.prefix}{name}"
        # A full bucket refuses new messages. A purge of a key, and each
        # meta message, rolls up its subject (ADR-8, ADR-20).
        return {
            **self._new(name, wanted),
            "name": stream,
            "discard": "new",
            "allow_rollup_hdrs": True,
        }

    def _changes(self, bucket: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the changes of the stream for changes of the bucket. Raises `OptionError`."""
        return fields_of(bucket, self._config.parse(changes, f"bucket {bucket}"), changes)

    @abstractmethod
    def _new(self, name: str, wanted: C) -> dict[str, Any]:
        """Return the fields of a new bucket's stream that those of the other kind do not have."""
