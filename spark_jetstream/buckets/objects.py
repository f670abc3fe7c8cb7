"""The layout of an Object Store bucket (ADR-20 "JetStream based Object Stores"): names, subjects, meta messages. Pure.

The bucket `B` is the stream `OBJ_B`. Each object has one meta message, JSON, on a subject made of its name, where the
newest takes the place of all others (`Nats-Rollup: sub`); and its content in chunks, raw bytes in stream order, on a
subject made of a fresh id (`nuid`), so that a new version never mixes with the one it replaces.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from spark_jetstream.errors import ProtocolError
from spark_jetstream.protocol.columns import MessageRun

#: Bytes of a chunk by default.
DEFAULT_CHUNK_SIZE = 128 * 1024

#: The header of a meta message that removes all others on its subject.
ROLLUP_HEADER, ROLLUP_SUBJECT = "Nats-Rollup", "sub"

#: What Go's client writes as `mtime`. It is never read: the time of an object is that of its meta message.
_NO_TIME = "0001-01-01T00:00:00Z"

_LONGEST_NAME = 2048  # bytes; in base64 it has to leave room in the control line, which ends at 4 KiB
_DIGEST = "SHA-256="
_SHA256_BYTES = 32
_LARGEST = 2**63 - 1

_KNOWN = frozenset(
    {"bucket", "name", "nuid", "size", "chunks", "digest", "headers", "description", "metadata", "options", "deleted"}
    | {"mtime"}
)
_KNOWN_OPTIONS = frozenset({"link", "max_chunk_size"})

T = TypeVar("T")


def stream_name(bucket: str) -> str:
    """Return the name of the stream of a bucket."""
    return f"OBJ_{bucket}"


def meta_filter(bucket: str) -> str:
    """Return the filter of all meta messages of a bucket."""
    return f"$O.{bucket}.M.>"


def chunk_filter(bucket: str) -> str:
    """Return the filter of all chunks of a bucket."""
    return f"$O.{bucket}.C.>"


def meta_subject(bucket: str, name: str) -> str:
    """Return the subject of the meta message of an object: its name in URL-safe base64, with padding."""
    return f"$O.{bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def chunk_subject(bucket: str, nuid: str) -> str:
    """Return the subject of the chunks of one version of an object."""
    return f"$O.{bucket}.C.{nuid}"


def name_fault(name: str) -> str | None:
    """Return why an object cannot have a name (not an empty one), None when it can."""
    size = len(name.encode())
    return f"its name has {size} bytes, more than {_LONGEST_NAME}" if size > _LONGEST_NAME else None


def digest_text(sha256: bytes) -> str:
    """Return a SHA-256 (32 bytes) as meta messages have it: `SHA-256=` and URL-safe base64 with padding."""
    return _DIGEST + base64.urlsafe_b64encode(sha256).decode()


def digest_bytes(text: str) -> bytes:
    """Return the 32 bytes of a digest, padded or not; raise `ValueError` with a sentence if it is no SHA-256."""
    algorithm, encoded = text[: len(_DIGEST)], text[len(_DIGEST) :].rstrip("=")
    if algorithm.upper() != _DIGEST:
        raise ValueError(f"the digest {text[:64]!r} is not a SHA-256")
    plain = encoded.replace("+", "-").replace("/", "_")
    if re.fullmatch(r"[A-Za-z0-9_-]+", plain):
        try:
            digest = base64.urlsafe_b64decode(plain + "=" * (-len(plain) % 4))
        except binascii.Error:
            digest = b""
        if len(digest) == _SHA256_BYTES:
            return digest
    raise ValueError(f"the digest {text[:64]!r} is not {_SHA256_BYTES} bytes in base64")


@dataclass(frozen=True, kw_only=True)
class ObjectMeta:
    """What a meta message says of one object.

    `size` in bytes, and `chunks` is their number; `digest` is text as `digest_text` makes it, "" where there is none;
    `nuid` names the chunks (`chunk_subject`). `headers` and `metadata` are the user's, empty for none. `link` is
    (bucket, name) of the object that this name stands for, with an empty name for a link to a whole bucket; a link
    has no content of its own. Of a `deleted` object only the name is left. `max_chunk_size` is what its writer asked
    for, None where it did not say. `extra` and `extra_options` are fields that are not known here, kept for
    `to_json`.
    """

    bucket: str
    name: str
    nuid: str = ""
    size: int = 0
    chunks: int = 0
    digest: str = ""
    headers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    description: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    link: tuple[str, str] | None = None
    deleted: bool = False
    max_chunk_size: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    extra_options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: bytes, bucket: str) -> ObjectMeta:
        """The meta of a message. `ProtocolError` names the bucket. Who reads the content checks the digest."""
        body = _body(data, bucket)
        name = _Fields(body, bucket, "").get("name", _text, "")
        if not name:
            raise ProtocolError(f"bucket {bucket}: a meta message names no object")
        fields = _Fields(body, bucket, name)
        options = _Fields(fields.get("options", _mapping, {}), bucket, name, "options.")
        link = options.get("link", _mapping, None)
        target = None
        if link is not None:
            inner = _Fields(link, bucket, name, "options.link.")
            target = (inner.get("bucket", _token, ""), inner.get("name", _text, ""))
            if not target[0]:
                raise ProtocolError(f"bucket {bucket}: the meta message of object {name!r} links to no bucket")
        return cls(
            bucket=fields.get("bucket", _token, bucket) or bucket,
            name=name,
            nuid=fields.get("nuid", _token, ""),
            size=fields.get("size", _number, 0),
            chunks=fields.get("chunks", _number, 0),
            digest=fields.get("digest", _text, ""),
            headers=fields.get("headers", _lists, {}),
            description=fields.get("description", _text, None),
            metadata=fields.get("metadata", _texts, {}),
            link=target,
            deleted=fields.get("deleted", _flag, False),
            max_chunk_size=options.get("max_chunk_size", _number, None),
            extra=fields.others(_KNOWN),
            extra_options=options.others(_KNOWN_OPTIONS),
        )

    def to_json(self) -> bytes:
        """The payload of the meta message, as clients write it: what is not there is left out."""
        link = None if self.link is None else {"bucket": self.link[0], "name": self.link[1]}
        if link is not None and not link["name"]:
            del link["name"]
        options = {**self.extra_options, "link": link, "max_chunk_size": self.max_chunk_size}
        body: dict[str, Any] = {
            **self.extra,
            "name": self.name,
            "description": self.description,
            "headers": {name: list(values) for name, values in self.headers.items()} or None,
            "metadata": dict(self.metadata) or None,
            "options": {name: value for name, value in options.items() if value is not None} or None,
            "bucket": self.bucket,
            "nuid": self.nuid,
            "size": self.size,
            "mtime": _NO_TIME,
            "chunks": self.chunks,
            "digest": self.digest or None,
            "deleted": self.deleted or None,
        }
        return json.dumps({name: value for name, value in body.items() if value is not None}).encode()


def _body(data: bytes, bucket: str) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise ProtocolError(f"bucket {bucket}: a meta message is not JSON") from None
    if not isinstance(body, dict):
        raise ProtocolError(f"bucket {bucket}: a meta message is not a JSON object")
    return body


@dataclass(frozen=True)
class _Fields:
    """The fields of one JSON object of a meta message; `path` is its path. A null counts as missing."""

    body: Mapping[str, Any]
    bucket: str
    name: str
    path: str = ""

    def get(self, key: str, read: Callable[[Any], T], default: Any) -> T:
        """What `read` makes of a field; it raises `ValueError` for what cannot be meant."""
        value = self.body.get(key)
        if value is None:
            return default  # type: ignore[no-any-return]  # None where None is allowed
        try:
            return read(value)
        except ValueError:
            whose = f"of object {self.name!r} " if self.name else ""
            raise ProtocolError(
                f"bucket {self.bucket}: a meta message {whose}has no usable field {self.path}{key}"
            ) from None

    def others(self, known: frozenset[str]) -> dict[str, Any]:
        return {key: value for key, value in self.body.items() if key not in known}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    value.encode()  # UnicodeEncodeError, a ValueError: JSON can spell halves of surrogate pairs, UTF-8 cannot
    return value


def _token(value: Any) -> str:
    """Return a text that becomes one token of a subject: a wildcard would match the messages of other objects."""
    if re.search(r"[\s.*>]", _text(value)):
        raise ValueError
    return _text(value)


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
        raise ValueError
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError
    return value


def _texts(value: Any) -> dict[str, str]:
    return {_text(name): _text(text) for name, text in _mapping(value).items()}


def _lists(value: Any) -> dict[str, tuple[str, ...]]:
    lists = {}
    for name, values in _mapping(value).items():
        # Some writers give one text instead of a list of one.
        texts = [values] if isinstance(values, str) else values
        if not isinstance(texts, list):
            raise ValueError
        lists[_text(name)] = tuple(map(_text, texts))
    return lists


@dataclass(frozen=True)
class StoredObject:
    """A meta message with its subject, its stream sequence, and its timestamp in ns."""

    meta: ObjectMeta
    subject: str
    sequence: int
    timestamp: int

    @classmethod
    def read(cls, payload: bytes, bucket: str, subject: str, sequence: int, timestamp: int) -> StoredObject:
        """Return the object of a meta message; an empty payload is a deleted object. Raises `ProtocolError`.

        A server leaves an empty message in place of one that expired (ADR-43 "JetStream Per-Message TTL").
        """
        gone = ObjectMeta(bucket=bucket, name=subject, deleted=True)
        try:
            meta = ObjectMeta.from_json(payload, bucket) if payload else gone
        except ProtocolError as error:
            raise ProtocolError(f"{error} (sequence {sequence}, subject {subject})") from None
        return cls(meta, subject, sequence, timestamp)

    @property
    def origin(self) -> str:
        """The bucket in the subjects: another one than was asked for where the stream is a mirror."""
        return self.subject.split(".")[1]

    @property
    def readable(self) -> bool:
        """Whether there is a row for it: it is not deleted, and no link to a bucket, which is like a directory."""
        return not self.meta.deleted and (self.meta.link is None or bool(self.meta.link[1]))


def stored_objects(messages: MessageRun, bucket: str) -> Iterator[StoredObject]:
    """Yield the objects of meta messages, deleted objects and links to buckets included. Raises `ProtocolError`."""
    rows = zip(
        messages.payloads().to_pylist(),
        messages.subjects().to_pylist(),
        messages.sequences.tolist(),
        messages.timestamps().tolist(),
        strict=True,
    )
    for payload, subject, sequence, timestamp in rows:
        yield StoredObject.read(payload, bucket, subject, sequence, timestamp)
