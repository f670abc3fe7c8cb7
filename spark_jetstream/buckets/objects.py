"""The layout of an Object Store bucket (ADR-20 "JetStream based Object Stores"). Pure.

The bucket `B` is the stream `OBJ_B`. Each object has one meta message, JSON, on a subject made of
its name; the newest replaces all others (`Nats-Rollup: sub`). Its content is in chunks, raw bytes
in stream order, on a subject made of a fresh id (`nuid`). So a new version never mixes with the one
it replaces.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol.columns import MessageRun
from spark_jetstream.protocol.json_text import json_object
from spark_jetstream.protocol.units import INT64_MAX

#: What Go's client writes as `mtime`. It is never read: the time of an object is that of its meta
#: message.
_NO_TIME = "0001-01-01T00:00:00Z"

# Bytes; in base64 a name has to leave room in the control line, which ends at 4 KiB.
_LONGEST_NAME = 2048
_DIGEST = "SHA-256="
STREAM_PREFIX = "OBJ_"
_SHA256_BYTES = 32


def stream_name(bucket: str) -> str:
    """Return the name of the stream of a bucket."""
    return f"{STREAM_PREFIX}{bucket}"


def meta_filter(bucket: str) -> str:
    """Return the filter of all meta messages of a bucket."""
    return f"$O.{bucket}.M.>"


def chunk_filter(bucket: str) -> str:
    """Return the filter of all chunks of a bucket."""
    return f"$O.{bucket}.C.>"


def meta_subject(bucket: str, name: str) -> str:
    """Return the subject of an object's meta message: its name in URL-safe base64, with padding."""
    return f"$O.{bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def chunk_subject(bucket: str, nuid: str) -> str:
    """Return the subject of the chunks of one version of an object."""
    return f"$O.{bucket}.C.{nuid}"


def name_fault(name: str) -> str | None:
    """Return why an object cannot have a name (not an empty one), None when it can."""
    size = len(name.encode())
    if size <= _LONGEST_NAME:
        return None
    return f"its name has {size} bytes, more than {_LONGEST_NAME}"


def digest_text(sha256: bytes) -> str:
    """Return a SHA-256 (32 bytes) as meta messages have it.

    That is `SHA-256=` and URL-safe base64 with padding.
    """
    return _DIGEST + base64.urlsafe_b64encode(sha256).decode()


def digest_bytes(text: str) -> bytes:
    """Return the 32 bytes of a digest, padded or not.

    Raises `ValueError` with a sentence if it is no SHA-256.
    """
    algorithm, encoded = text[: len(_DIGEST)], text[len(_DIGEST) :].rstrip("=")
    if algorithm.upper() != _DIGEST:
        raise ValueError(f"the digest {text[:64]!r} is not a SHA-256")
    # Both alphabets of base64, with padding and without: test_digests.
    plain = encoded.replace("-", "+").replace("_", "/")
    try:
        digest = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except ValueError:
        digest = b""
    if len(digest) != _SHA256_BYTES:
        raise ValueError(f"the digest {text[:64]!r} is not {_SHA256_BYTES} bytes in base64")
    return digest


def _present(fields: Any) -> Any:
    """Return the fields of a JSON object that are not null: a null counts as missing."""
    if not isinstance(fields, dict):
        return fields
    return {name: value for name, value in fields.items() if value is not None}


def _values(given: Any) -> Any:
    """Return the values of a header as a tuple; some writers give one text in place of a list."""
    if isinstance(given, str):
        return (given,)
    return tuple(given) if isinstance(given, Sequence) else given


#: What becomes one token of a subject: a wildcard would match the messages of other objects.
_Token = Annotated[str, Field(pattern=r"^[^\s\x1c-\x1f.*>]*$")]
_Number = Annotated[int, Field(ge=0, le=INT64_MAX)]


class _Fields(BaseModel):
    """A JSON object of a meta message. It keeps fields that are not known here."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    _without_nulls = model_validator(mode="before")(staticmethod(_present))


class ObjectLink(_Fields):
    """The target of a link: an object, or with an empty name a whole bucket."""

    bucket: Annotated[_Token, Field(min_length=1)]
    name: str = ""


class ObjectOptions(_Fields):
    """How an object is stored; `max_chunk_size` is the wish of its writer, None without one."""

    link: ObjectLink | None = None
    max_chunk_size: _Number | None = None


class ObjectMeta(_Fields):
    """The fields of the meta message of one object.

    `size` is in bytes; `digest` is text as `digest_text` makes it, "" without one; `nuid` names the
    chunks (`chunk_subject`). `headers` and `metadata` are the user's. A link has no content of its
    own. A `deleted` object has only its name left.
    """

    bucket: _Token = ""
    name: str = Field(min_length=1)
    nuid: _Token = ""
    size: _Number = 0
    chunks: _Number = 0
    digest: str = ""
    headers: Mapping[str, Annotated[Sequence[str], BeforeValidator(_values)]] = {}
    description: str | None = None
    metadata: Mapping[str, str] = {}
    options: ObjectOptions = ObjectOptions()
    deleted: bool = False

    @property
    def link(self) -> tuple[str, str] | None:
        """The bucket and the name of what a link stands for, None for an object."""
        link = self.options.link
        return None if link is None else (link.bucket, link.name)

    @classmethod
    def from_json(cls, data: bytes, bucket: str) -> ObjectMeta:
        """Return the meta of a message; the digest is not checked. Raises `ProtocolError`."""
        try:
            body = json_object(data)
        except ValueError as error:
            raise ProtocolError(f"bucket {bucket}: a meta message {error}") from None
        body.pop("mtime", None)
        try:
            meta = cls.model_validate(body)
        except ValidationError as error:
            raise ProtocolError(f"bucket {bucket}: a meta message {_fault(body, error)}") from None
        # Another client may leave the bucket out:
        # test_metadata_keeps_unknown_fields_and_accepts_missing_ones.
        if meta.bucket:
            return meta
        return meta.model_copy(update={"bucket": bucket})

    def to_json(self) -> bytes:
        """Return the payload of the meta message, as clients write it."""
        always = {
            "bucket": self.bucket,
            "nuid": self.nuid,
            "size": self.size,
            "chunks": self.chunks,
            "mtime": _NO_TIME,
        }
        body = self.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        return json.dumps({**body, **always}).encode()


def _fault(body: Mapping[str, Any], error: ValidationError) -> str:
    """Return which field of a meta message is wrong, first of all its name."""
    paths = [problem["loc"] for problem in error.errors(include_url=False, include_input=False)]
    if ("name",) in paths:
        return "has no usable field name"
    path = paths[0]
    known = path if path[0] == "options" else path[:1]
    field_path = ".".join(str(part) for part in known)
    whose = f"of object {body['name']!r} " if body.get("name") else ""
    return f"{whose}has no usable field {field_path}"


@dataclass(frozen=True)
class StoredObject:
    """A meta message with its subject, its stream sequence, and its timestamp in ns."""

    meta: ObjectMeta
    subject: str
    sequence: int
    timestamp: int

    @classmethod
    def read(
        cls, payload: bytes, bucket: str, subject: str, sequence: int, timestamp: int
    ) -> StoredObject:
        """Return the object of a meta message; an empty payload is a deleted object.

        Raises `ProtocolError`. A server leaves an empty message in place of one that expired
        (ADR-43 "JetStream Per-Message TTL").
        """
        # Nothing else names an object whose meta message has expired.
        gone = ObjectMeta(bucket=bucket, name=subject, deleted=True)
        try:
            meta = ObjectMeta.from_json(payload, bucket) if payload else gone
        except ProtocolError as error:
            raise ProtocolError(f"{error} (sequence {sequence}, subject {subject})") from None
        return cls(meta, subject, sequence, timestamp)

    @property
    def origin(self) -> str:
        """The bucket in the subjects: another one than was asked for if the stream is a mirror."""
        return self.subject.split(".")[1]

    @property
    def readable(self) -> bool:
        """Whether it has a row: it is not deleted, and no link to a whole bucket."""
        if self.meta.deleted:
            return False
        # A link to a bucket has no name; it is like a directory.
        return self.meta.link is None or bool(self.meta.link[1])

    def leads_out_of(self, bucket: str) -> bool:
        """Whether this is a link to another stream than that of ``bucket``, which has the link."""
        link = self.meta.link
        # A mirror has the content of its origin, so links to the origin lead to the mirror.
        return link is not None and link[0] not in (bucket, self.origin)


def stored_objects(messages: MessageRun, bucket: str) -> Iterator[StoredObject]:
    """Yield the objects of meta messages, deleted objects and links to buckets included.

    Raises `ProtocolError`.
    """
    rows = zip(
        messages.payloads().to_pylist(),
        messages.subjects().to_pylist(),
        messages.sequences.tolist(),
        messages.timestamps().tolist(),
        strict=True,
    )
    for payload, subject, sequence, timestamp in rows:
        yield StoredObject.read(payload, bucket, subject, sequence, timestamp)
