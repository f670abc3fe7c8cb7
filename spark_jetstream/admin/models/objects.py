"""Object Store buckets and their objects (ADR-20 "JetStream based Object Stores"). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from spark_jetstream.admin.models.buckets import AnyBucketInfo, BucketLayout, FromStream
from spark_jetstream.buckets.objects import StoredObject, name_fault, stream_name
from spark_jetstream.errors import OptionError
from spark_jetstream.protocol.units import NEVER, Bytes, Timestamp, shown

OBJECT_STORE = BucketLayout("Object Store", stream_name(""))


@dataclass(frozen=True)
class ObjectBucketInfo(AnyBucketInfo):
    """A bucket: how it is set up, and what it holds. ``stream`` is all that the server says.

    How many objects it has only a list of them says.
    """

    kind: ClassVar[BucketLayout] = OBJECT_STORE

    size = FromStream[Bytes]("state.bytes")
    """How many bytes it has, chunks, meta messages and headers together."""


@dataclass(frozen=True, kw_only=True)
class ObjectInfo:
    """An object, a link, or what is left of an object that was deleted.

    ``size`` in bytes, ``chunks`` is the number of messages that hold it, ``digest`` its SHA-256 as
    the bucket has it (``SHA-256=`` and URL-safe base64). ``modified`` is when the server stored its
    meta message, and ``sequence`` where that lies in the bucket's stream. ``link`` is (bucket,
    name) of what this is a link to, with an empty name for a whole bucket; a link has no size of
    its own. ``nuid`` names its chunks: ``$O.<bucket>.C.<nuid>``.
    """

    bucket: str
    name: str
    size: Bytes
    chunks: int
    digest: str
    modified: Timestamp
    headers: Mapping[str, tuple[str, ...]]
    metadata: Mapping[str, str]
    description: str
    link: tuple[str, str] | None
    deleted: bool
    nuid: str
    max_chunk_size: int | None
    sequence: int

    @classmethod
    def of(cls, stored: StoredObject) -> ObjectInfo:
        """From a meta message; a time of 0 is not known, and becomes `NEVER`."""
        meta = stored.meta
        given = {}
        for field in fields(cls):
            if hasattr(meta, field.name):
                given[field.name] = getattr(meta, field.name)
        known = {
            "size": Bytes(meta.size),
            "description": meta.description or "",
            "max_chunk_size": meta.options.max_chunk_size,
            "modified": Timestamp.of(stored.timestamp) if stored.timestamp else NEVER,
            "sequence": stored.sequence,
        }
        return cls(**{**given, **known})

    def data(self) -> dict[str, Any]:
        """The same for JSON, without most of the fields that are empty."""
        link = None if self.link is None else {"bucket": self.link[0], "name": self.link[1]}
        values = {
            **asdict(self),
            "headers": {name: list(values) for name, values in self.headers.items()},
            "link": link,
        }
        kept = {"name", "size", "chunks", "bucket", "deleted"}
        data = {}
        for name, value in values.items():
            is_empty = value in (None, "", {})
            if name in kept or not is_empty:
                data[name] = value
        return data


def object_name(name: object) -> str:
    """The name of an object: any text but the empty one, of at most 2,048 bytes in UTF-8.

    Else `OptionError`.
    """
    if not isinstance(name, str) or not name:
        raise OptionError(
            f"the name of an object must be text that is not empty, not {shown(name)}",
            option="name",
        )
    try:
        problem = name_fault(name)
    except UnicodeEncodeError:
        problem = "its name is not text that UTF-8 can hold"
    if problem:
        raise OptionError(f"object {name[:80]!r} is not possible: {problem}", option="name")
    return name
