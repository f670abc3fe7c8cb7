"""The settings of Key-Value and Object Store buckets, and what both have in common: names, state.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Generic, TypeVar, cast

from pydantic import Field

from spark_jetstream.admin.models.base import Boolean, Check, Model
from spark_jetstream.admin.models.streams import (
    INT32_MAX,
    NO_LIMIT,
    ZERO,
    Description,
    Metadata,
    Placement,
    Replicas,
    RePublish,
    StreamInfo,
    StreamSource,
    SubjectTransform,
)
from spark_jetstream.errors import OptionError, StreamNotFound
from spark_jetstream.options.names import Identifier
from spark_jetstream.options.values import Choice, Size, Span, Whole
from spark_jetstream.protocol import jsapi
from spark_jetstream.protocol.units import Bytes, Nanoseconds, Timestamp, shown

T = TypeVar("T")
Nearest = Callable[[str, str], str]
"""Returns the end of an error about a missing stream, for its name and the prefix of its kind."""

_WINDOW = Nanoseconds.of("2m")
_LONGEST = 255  # bytes of the name of a stream
_OTHER_NAMES = {
    "history": "max_msgs_per_subject",
    "max_value_size": "max_msg_size",
    "replicas": "num_replicas",
}


@dataclass(frozen=True)
class BucketLayout:
    """A kind of buckets: what it is called, and what the names of its streams begin with."""

    title: str
    prefix: str

    def name(self, bucket: object) -> str:
        """The name of a bucket.

        Raises `OptionError`: a dot or a wildcard makes another stream of it.
        """
        names = Identifier(_LONGEST - len(self.prefix))
        try:
            return str(names.parse("bucket", bucket))
        except OptionError:
            problem = f"the name of a bucket must be {names.expects}, not {shown(bucket)}"
        raise OptionError(problem, option="bucket")

    @contextmanager
    def naming(self, bucket: str, nearest: Nearest, context: str = "") -> Iterator[None]:
        """Let a `StreamNotFound` speak of the bucket.

        ``context`` is an infinitive that says what needs the bucket. ``nearest`` finds the bucket
        that may be meant.
        """
        try:
            yield
        except StreamNotFound as error:
            before = f"cannot {context}: " if context else ""
            text = (
                f"{before}there is no {self.title} bucket {bucket} (no stream "
                f"{self.prefix}{bucket})"
            )
            text += nearest(f"{self.prefix}{bucket}", self.prefix)
            raise jsapi.reworded(error, text) from None


class AnyBucketConfig(Model):
    """How a bucket of either kind is set up."""

    ttl: Annotated[Nanoseconds, Span("100ms", zero=NO_LIMIT)] = ZERO
    """How long what it holds stays, in nanoseconds; 0 for ever."""
    max_bytes: Annotated[Bytes, Size(1, unlimited=NO_LIMIT)] = Bytes(-1)
    """How many bytes the bucket may have; 0 or -1 for any number. A full bucket takes nothing
    more."""
    storage: Annotated[str, Choice(("file", "memory"))] = "file"
    """Where it is kept. It can never change."""
    replicas: Replicas = 1
    """How many servers keep a copy, 1 to 5."""
    compression: Boolean = False
    """Compress what is on the disk (server 2.10)."""
    description: Description = ""
    """A text for readers; at most 4,096 bytes."""
    metadata: Metadata = Field(default_factory=dict)
    """Names and values for people and programs."""
    placement: Placement | None = None
    """Which servers may hold it."""


class BucketConfig(AnyBucketConfig):
    """How a Key-Value bucket is set up (ADR-8, ADR-48)."""

    history: Annotated[int, Whole(1, 64)] = 1
    """How many revisions of each key are kept, 1 to 64."""
    max_value_size: Annotated[Bytes, Size(1, INT32_MAX, unlimited=NO_LIMIT)] = Bytes(-1)
    """How many bytes a value may have, headers included; 0 or -1 for what the server allows."""
    limit_marker_ttl: Annotated[Nanoseconds, Span("1s", "200y", zero="none")] = ZERO
    """How long a marker stays, in nanoseconds, where a key expired, and allow a TTL for single
    keys; 0 for neither (server 2.11, ADR-48)."""
    republish: RePublish | None = None
    """Publish again, on other subjects, what was stored."""
    mirror: StreamSource | None = None
    """The bucket of which this is a copy. Writes to the copy go to that bucket."""
    sources: tuple[StreamSource, ...] = ()
    """Buckets whose keys are copied into this one."""

    def _checks(self) -> Iterator[Check]:
        for name in ("sources", "limit_marker_ttl"):
            yield (
                self.mirror and getattr(self, name),
                f"a mirror cannot have {name}: remove that or mirror",
            )


class ObjectBucketConfig(AnyBucketConfig):
    """How an Object Store bucket is set up (ADR-20)."""


def fields_of(bucket: str, config: AnyBucketConfig, names: Iterable[str]) -> dict[str, Any]:
    """The fields of a stream that stand for these of its bucket.

    Other buckets are named by their streams.
    """
    fields: dict[str, Any] = {}
    for name in names:
        fields |= _fields_of_setting(bucket, name, getattr(config, name))
    return fields


def _fields_of_setting(bucket: str, name: str, value: Any) -> dict[str, Any]:
    """The fields of a stream that stand for one field of its bucket."""
    if name == "ttl":
        # A server refuses to remember message ids for longer than messages.
        return {"max_age": value, "duplicate_window": min(value or _WINDOW, _WINDOW)}
    if name == "compression":
        return {"compression": "s2" if value else "none"}
    if name == "limit_marker_ttl":
        marker: dict[str, Any] = {"subject_delete_marker_ttl": value}
        if value:
            # Markers need it. It cannot be taken back, so it is never set to false.
            marker["allow_msg_ttl"] = True
        return marker
    if name == "mirror":
        return {"mirror": _mirror_stream(value)}
    if name == "sources":
        sources = [_source(bucket, source) for source in value]
        return {"sources": tuple(sources)}
    return {_OTHER_NAMES.get(name, name): value}


def _mirror_stream(origin: StreamSource | None) -> StreamSource | None:
    """The origin of a mirror by its stream."""
    return None if origin is None else _of_bucket(origin)[0]


def _of_bucket(origin: StreamSource) -> tuple[StreamSource, str]:
    """An origin by its stream, and by its bucket: users may give either name."""
    # Help texts and completions need these models, and no Arrow.
    from spark_jetstream.buckets.kv import STREAM_PREFIX, stream_name  # noqa: PLC0415

    bucket = origin.name.removeprefix(STREAM_PREFIX)
    return origin.changed(name=stream_name(bucket)), bucket


def _source(bucket: str, source: StreamSource) -> StreamSource:
    """A source by its stream; its keys become keys of this bucket.

    A source that has transforms or a filter of its own keeps them.
    """
    named, origin = _of_bucket(source)
    # A bucket of the same name in another domain has the right subjects.
    same_name_elsewhere = source.external is not None and origin == bucket
    if source.subject_transforms or source.filter_subject or same_name_elsewhere:
        return named
    # Without it the keys would keep the subjects of the bucket that they come from.
    transform = SubjectTransform(src=f"$KV.{origin}.>", dest=f"$KV.{bucket}.>")
    return named.changed(subject_transforms=(transform,))


class FromStream(Generic[T]):
    """An attribute of a bucket that is one of its stream: ``path`` begins at the `StreamInfo`."""

    def __init__(self, path: str) -> None:
        self._get = attrgetter(f"stream.{path}")

    def __get__(self, info: object, owner: object = None) -> T:
        return cast(T, self if info is None else self._get(info))


@dataclass(frozen=True)
class AnyBucketInfo:
    """A bucket of either kind: how it is set up, and what it holds.

    ``stream`` is all that the server says.
    """

    kind: ClassVar[BucketLayout]

    stream: StreamInfo

    @property
    def bucket(self) -> str:
        """Its name."""
        return self.stream.config.name.removeprefix(self.kind.prefix)

    created = FromStream[Timestamp]("created")
    """When it was created."""
    ttl = FromStream[Nanoseconds]("config.max_age")
    """How long what it holds stays; 0 for ever."""
    max_bytes = FromStream[Bytes]("config.max_bytes")
    """How many bytes the bucket may have; -1 for any number."""
    storage = FromStream[str]("config.storage")
    """``file`` or ``memory``."""

    @property
    def replicas(self) -> int:
        """How many servers keep a copy."""
        return self.stream.config.num_replicas or 1

    @property
    def compression(self) -> bool:
        """Whether what is on the disk is compressed."""
        return self.stream.config.compression != "none"

    description = FromStream[str]("config.description")
    """For people."""
    metadata = FromStream[dict[str, str]]("config.own_metadata")
    """Names and values, without those of the server."""
    placement = FromStream[Placement | None]("config.placement")
    """Which servers may hold it."""
    sealed = FromStream[bool]("config.sealed")
    """Whether nothing can be written any more."""
