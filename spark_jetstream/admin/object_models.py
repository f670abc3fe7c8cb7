"""Object Store buckets: how one is set up, and what the server says of one (JETSTREAM ADR-20). Pure.

A bucket is a stream with certain settings, those that the clients of NATS give it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from spark_jetstream.admin.bucket_models import AnyBucketConfig, AnyBucketInfo, Kind, stream_field
from spark_jetstream.admin.changing import asked_for
from spark_jetstream.objects import chunk_filter, meta_filter, stream_name
from spark_jetstream.units import Bytes

OBJECT_STORE = Kind("Object Store", stream_name(""))


class ObjectBucketConfig(AnyBucketConfig):
    """How an Object Store bucket is set up."""


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
    return _stream_fields(ObjectBucketConfig.parse(given, f"bucket {bucket}"), given)


def _stream_fields(wanted: ObjectBucketConfig, names: Iterable[str]) -> dict[str, Any]:
    """The fields of a stream that stand for these of a bucket."""
    fields: dict[str, Any] = {}
    for name in names:
        fields |= stream_field(name, getattr(wanted, name))
    return fields


@dataclass(frozen=True)
class ObjectBucketInfo(AnyBucketInfo):
    """A bucket: how it is set up, and what it holds. ``stream`` is all that the server says.

    How many objects it has only a list of them says.
    """

    kind: ClassVar[Kind] = OBJECT_STORE

    @property
    def size(self) -> Bytes:
        """How many bytes it has, chunks, meta messages and headers together."""
        return self.stream.state.bytes
