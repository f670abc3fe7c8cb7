"""Key-Value buckets: how one is set up, and what the server says of one (ADR-8, ADR-48). Pure.

A bucket is a stream with certain settings, those that the clients of NATS give it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from spark_jetstream.admin.amounts import Bytes, Nanoseconds, Timestamp
from spark_jetstream.admin.changing import asked_for
from spark_jetstream.admin.fields import Boolean, Choice, Size, Span, Whole
from spark_jetstream.admin.model import Model
from spark_jetstream.admin.stream_models import (
    INT32_MAX,
    Description,
    Metadata,
    Placement,
    Replicas,
    RePublish,
    StreamConfig,
    StreamSource,
    SubjectTransform,
)
from spark_jetstream.admin.stream_replies import StreamInfo
from spark_jetstream.errors import OptionError
from spark_jetstream.kv import STREAM_PREFIX, stream_name
from spark_jetstream.names import Identifier

MOST_HISTORY = 64
_ZERO = Nanoseconds(0)
_WINDOW = Nanoseconds.of("2m")
_UNLIMITED = "no limit"
_NAME = Identifier(252)


class BucketConfig(Model):
    """How a Key-Value bucket is set up."""

    history: Annotated[int, Whole(1, MOST_HISTORY)] = 1
    """How many revisions of each key are kept, 1 to 64."""
    ttl: Annotated[Nanoseconds, Span("100ms", zero="no limit")] = _ZERO
    """How long a revision stays, in nanoseconds; 0 for ever."""
    max_value_size: Annotated[Bytes, Size(1, INT32_MAX, unlimited=_UNLIMITED)] = Bytes(-1)
    """How many bytes a value may have, headers included; -1 for what the server allows."""
    max_bytes: Annotated[Bytes, Size(1, unlimited=_UNLIMITED)] = Bytes(-1)
    """How many bytes the bucket may have; -1 for any number. A full bucket takes nothing more."""
    storage: Annotated[str, Choice(("file", "memory"))] = "file"
    """Where it is kept. It can never change."""
    replicas: Replicas = 1
    """How many servers keep a copy, 1 to 5."""
    compression: Boolean = False
    """Compress what is on the disk (server 2.10)."""
    limit_marker_ttl: Annotated[Nanoseconds, Span("1s", zero="none")] = _ZERO
    """How long a marker stays, in nanoseconds, where a key expired, and allow a TTL for single keys; 0 for neither
    (server 2.11, ADR-48)."""
    description: Description = ""
    """For people; at most 4,096 bytes."""
    metadata: Metadata = Field(default_factory=dict)
    """Names and values for people and programs."""
    placement: Placement | None = None
    """Which servers may hold it."""
    republish: RePublish | None = None
    """Publish again, on other subjects, what was stored."""
    mirror: StreamSource | None = None
    """The bucket of which this is a copy. What is written to the copy goes to that bucket."""
    sources: tuple[StreamSource, ...] = ()
    """Buckets whose keys are copied into this one."""

    def faults(self) -> list[str]:
        alone = [name for name in ("sources", "limit_marker_ttl") if self.mirror and getattr(self, name)]
        return [f"a mirror cannot have {name}: remove that or mirror" for name in alone]


def bucket_name(name: object) -> str:
    """The name of a Key-Value bucket, or `OptionError`."""
    try:
        return _NAME.parse("bucket", name)
    except OptionError as error:
        said = str(error).removeprefix("option ")
    raise OptionError(said)


def stream_fields(
    bucket: str, config: BucketConfig | Mapping[str, Any] | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    """The configuration of a bucket's stream, as Go's client makes it. `OptionError` when it cannot be one.

    ``given`` is single fields, which win over ``config``. Of a mirror it says nothing about ``mirror_direct``.
    """
    taken = config if isinstance(config, BucketConfig) else _by_name(config or {})
    wanted = asked_for(BucketConfig, taken, _by_name(given), f"bucket {bucket}")
    fields: dict[str, Any] = {}
    for name in BucketConfig.model_fields:
        fields |= _stream_field(bucket, name, wanted)
    mirrored = wanted.mirror is not None
    return {
        **{name: value for name, value in fields.items() if value is not None},
        "name": stream_name(bucket),
        **({} if mirrored else {"subjects": (f"$KV.{bucket}.>",)}),
        "discard": "new",
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
    }


def stream_changes(bucket: str, actual: StreamConfig, given: Mapping[str, Any]) -> dict[str, Any]:
    """What changes of a bucket's fields change of its stream's. None takes a field back to its default. `OptionError`.

    Whether the server can do it is not looked at.
    """
    what = f"bucket {bucket}"
    wanted = BucketConfig.parse(_by_name(given), what)
    if actual.mirror is not None and "mirror" in given:
        raise OptionError(
            f"{what}: mirror cannot change: the keys of a mirror have the subjects that they have in its origin"
        )
    changes: dict[str, Any] = {}
    for name in given:
        changes |= _stream_field(bucket, name, wanted)
    if changes.get("subject_delete_marker_ttl", 1) == 0:
        del changes["allow_msg_ttl"]  # which cannot be taken back
    return changes


def _by_name(given: Mapping[str, Any]) -> dict[str, Any]:
    """The same, with buckets as sources that were given by name alone."""

    def source(value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    found = dict(given)
    if "mirror" in found:
        found["mirror"] = source(found["mirror"])
    if isinstance(found.get("sources"), (list, tuple)):
        found["sources"] = [source(each) for each in found["sources"]]
    return found


def _stream_field(bucket: str, name: str, config: BucketConfig) -> dict[str, Any]:
    """The fields of a stream that stand for one of a bucket."""
    value = getattr(config, name)
    if name == "ttl":
        return {"max_age": value, "duplicate_window": min(value or _WINDOW, _WINDOW)}
    if name == "compression":
        return {"compression": "s2" if value else "none"}
    if name == "limit_marker_ttl":
        return {"subject_delete_marker_ttl": value, "allow_msg_ttl": value > 0}
    if name == "mirror":
        return {"mirror": None if value is None else value.changed(name=_stream(value.name))}
    if name == "sources":
        return {"sources": tuple(_source(bucket, each) for each in value)}
    names = {"history": "max_msgs_per_subject", "max_value_size": "max_msg_size", "replicas": "num_replicas"}
    return {names.get(name, name): value}


def _stream(name: str) -> str:
    return name if name.startswith(STREAM_PREFIX) else stream_name(name)


def _source(bucket: str, source: StreamSource) -> StreamSource:
    """A source by its stream, whose keys become keys of this bucket, unless it says itself what becomes of them."""
    origin = _stream(source.name).removeprefix(STREAM_PREFIX)
    found = source.changed(name=stream_name(origin))
    # A bucket of the same name in another domain has the right subjects.
    if source.subject_transforms or source.filter_subject or (source.external is not None and origin == bucket):
        return found
    return found.changed(subject_transforms=(SubjectTransform(src=f"$KV.{origin}.>", dest=f"$KV.{bucket}.>"),))


@dataclass(frozen=True)
class BucketInfo:
    """A Key-Value bucket: how it is set up, and what it holds. ``stream`` is all that the server says."""

    stream: StreamInfo

    @property
    def bucket(self) -> str:
        """Its name."""
        return self.stream.config.name.removeprefix(STREAM_PREFIX)

    @property
    def values(self) -> int:
        """How many revisions it holds, of all keys together, deletions included."""
        return self.stream.state.messages

    @property
    def bytes(self) -> Bytes:
        """How many bytes it has."""
        return self.stream.state.bytes

    @property
    def created(self) -> Timestamp:
        """When it was created."""
        return self.stream.created

    @property
    def history(self) -> int:
        """How many revisions of each key are kept; -1 for any number."""
        return self.stream.config.max_msgs_per_subject

    @property
    def ttl(self) -> Nanoseconds:
        """How long a revision stays; 0 for ever."""
        return self.stream.config.max_age

    @property
    def max_value_size(self) -> Bytes:
        """How many bytes a value may have; -1 for what the server allows."""
        return self.stream.config.max_msg_size

    @property
    def max_bytes(self) -> Bytes:
        """How many bytes the bucket may have; -1 for any number."""
        return self.stream.config.max_bytes

    @property
    def storage(self) -> str:
        """``file`` or ``memory``."""
        return self.stream.config.storage

    @property
    def replicas(self) -> int:
        """How many servers keep a copy."""
        return self.stream.config.num_replicas or 1

    @property
    def compression(self) -> bool:
        """Whether what is on the disk is compressed."""
        return self.stream.config.compression != "none"

    @property
    def limit_marker_ttl(self) -> Nanoseconds:
        """How long a marker stays where a key expired; 0 for no markers."""
        return self.stream.config.subject_delete_marker_ttl

    @property
    def description(self) -> str:
        """For people."""
        return self.stream.config.description

    @property
    def metadata(self) -> dict[str, str]:
        """Names and values, without those of the server."""
        return self.stream.config.own_metadata

    @property
    def placement(self) -> Placement | None:
        """Which servers may hold it."""
        return self.stream.config.placement

    @property
    def republish(self) -> RePublish | None:
        """What is published again."""
        return self.stream.config.republish

    @property
    def mirror(self) -> StreamSource | None:
        """The bucket's stream of which this is a copy."""
        return self.stream.config.mirror

    @property
    def sources(self) -> tuple[StreamSource, ...]:
        """The buckets' streams that are copied into this one."""
        return self.stream.config.sources

    @property
    def sealed(self) -> bool:
        """Whether nothing can be written any more."""
        return self.stream.config.sealed
