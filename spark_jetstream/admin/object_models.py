"""Object Store buckets: how one is set up, and what the server says of one (JETSTREAM ADR-20). Pure.

A bucket is a stream with certain settings, those that the clients of NATS give it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from spark_jetstream.admin.amounts import Bytes, Nanoseconds, Timestamp
from spark_jetstream.admin.changing import asked_for
from spark_jetstream.admin.fields import Boolean, Choice, Size, Span
from spark_jetstream.admin.model import Model
from spark_jetstream.admin.stream_models import Description, Metadata, Placement, Replicas
from spark_jetstream.admin.stream_replies import StreamInfo
from spark_jetstream.errors import OptionError
from spark_jetstream.names import Identifier
from spark_jetstream.objects import chunk_filter, meta_filter, stream_name
from spark_jetstream.values import shown

STREAM_PREFIX = stream_name("")
"""What the names of buckets' streams begin with."""

_ZERO = Nanoseconds(0)
_WINDOW = Nanoseconds.of("2m")
_UNLIMITED = "no limit"
_NAME = Identifier(251)
_OTHER_NAMES = {"replicas": "num_replicas"}


class ObjectBucketConfig(Model):
    """How an Object Store bucket is set up."""

    ttl: Annotated[Nanoseconds, Span("100ms", zero="no limit")] = _ZERO
    """How long an object stays, in nanoseconds; 0 for ever."""
    max_bytes: Annotated[Bytes, Size(1, unlimited=_UNLIMITED)] = Bytes(-1)
    """How many bytes the bucket may have; -1 for any number. A full bucket takes nothing more."""
    storage: Annotated[str, Choice(("file", "memory"))] = "file"
    """Where it is kept. It can never change."""
    replicas: Replicas = 1
    """How many servers keep a copy, 1 to 5."""
    compression: Boolean = False
    """Compress what is on the disk (server 2.10)."""
    description: Description = ""
    """For people; at most 4,096 bytes."""
    metadata: Metadata = Field(default_factory=dict)
    """Names and values for people and programs."""
    placement: Placement | None = None
    """Which servers may hold it."""


def bucket_name(name: object) -> str:
    """The name of a bucket, or `OptionError`: with a dot or a wildcard it would be another stream."""
    try:
        return _NAME.parse("bucket", name)
    except OptionError:
        said = f"the name of a bucket must be {_NAME.expects}, not {shown(name)}"
    raise OptionError(said, option="bucket")


def stream_fields(
    bucket: str, config: ObjectBucketConfig | Mapping[str, Any] | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    """The configuration of a bucket's stream, as Go's client makes it. `OptionError` when it cannot be one.

    ``given`` is single fields, which win over ``config``.
    """
    wanted = asked_for(ObjectBucketConfig, config, given, f"bucket {bucket}")
    return {
        **_stream_fields(wanted, wanted.model_fields_set),
        "name": stream_name(bucket),
        "subjects": (chunk_filter(bucket), meta_filter(bucket)),
        "discard": "new",
        "allow_rollup_hdrs": True,
        "allow_direct": True,
    }


def stream_changes(bucket: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What changes of a bucket's fields change of its stream's. None takes a field back to its default. `OptionError`.

    Whether the server can do it is not looked at.
    """
    what = f"bucket {bucket}"
    ObjectBucketConfig.parse(dict.fromkeys(given), what)  # names that are given as None, too
    wanted = ObjectBucketConfig.parse({name: value for name, value in given.items() if value is not None}, what)
    return _stream_fields(wanted, given)


def _stream_fields(wanted: ObjectBucketConfig, names: Any) -> dict[str, Any]:
    """The fields of a stream that stand for these of a bucket."""
    fields: dict[str, Any] = {}
    for name in ObjectBucketConfig.model_fields:
        if name not in names:
            continue
        value = getattr(wanted, name)
        if name == "ttl":
            # A server refuses to remember message ids for longer than messages.
            fields |= {"max_age": value, "duplicate_window": min(value or _WINDOW, _WINDOW)}
        elif name == "compression":
            fields[name] = "s2" if value else "none"
        else:
            fields[_OTHER_NAMES.get(name, name)] = value
    return fields


@dataclass(frozen=True)
class ObjectBucketInfo:
    """A bucket: how it is set up, and what it holds. ``stream`` is all that the server says.

    How many objects it has only a list of them says.
    """

    stream: StreamInfo

    @property
    def bucket(self) -> str:
        """Its name."""
        return self.stream.config.name.removeprefix(STREAM_PREFIX)

    @property
    def size(self) -> Bytes:
        """How many bytes it has, chunks, meta messages and headers together."""
        return self.stream.state.bytes

    @property
    def created(self) -> Timestamp:
        """When it was created."""
        return self.stream.created

    @property
    def ttl(self) -> Nanoseconds:
        """How long an object stays; 0 for ever."""
        return self.stream.config.max_age

    @property
    def max_bytes(self) -> Bytes:
        """How many bytes it may have; -1 for any number."""
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
    def sealed(self) -> bool:
        """Whether nothing can be written any more."""
        return self.stream.config.sealed
