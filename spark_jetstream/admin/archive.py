"""What a backup of a stream consists of, and how much of it can be checked without a server. Pure.

A backup is what ``nats stream backup`` writes too, two files::

    backup.json     {"config": ..., "state": ...} as the server said them when the backup began
    stream.tar.s2   what the server sent, as it came: an S2 stream

and a third one of our own, `Manifest`, with the checksums of both.

An S2 stream is a chain of chunks, each a byte for its kind and three for its length. Since server 2.15 it holds
``NATSARC1`` and entries behind it (backup and restore, version 2), before that a tar file of the server's own. The
checksum of a chunk is that of its uncompressed content, and S2 goes beyond Snappy, which Python libraries can read: so
`Framing` follows the chain, which a damaged length or a cut breaks, and leaves the rest to the SHA-256 of the manifest
and to the server, which checks the chunks and refuses an archive without its last entry.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from spark_jetstream.admin.fields import Boolean, Count, String, Time, Volume
from spark_jetstream.admin.model import Model, complaint
from spark_jetstream.admin.stream_models import StreamConfig
from spark_jetstream.admin.stream_replies import StreamState
from spark_jetstream.errors import BackupError, ProtocolError

META, DATA, MANIFEST = "backup.json", "stream.tar.s2", "spark_jetstream.json"
"""The names of the files of a backup."""
VERSION = 1
"""Of the manifest."""

_IDENTIFIER = b"\xff\x06\x00\x00S2sTwO"
_MAGIC = b"NATSARC1"
_OLD_MAGIC = b"meta.inf"  # the first file of the tar that servers before 2.15 send
_COMPRESSED, _PLAIN = 0x00, 0x01
_FIRST_SKIPPABLE, _LAST_SKIPPABLE = 0x80, 0xFE
_CHECKSUM = 4  # bytes at the beginning of a chunk with content
_LONGEST = (4 << 20) + (1 << 16)  # bytes of a chunk: S2 compresses 4 MiB at most
_PEEK = 256  # bytes kept from the beginning of the stream


class Kind(enum.Enum):
    """What the S2 stream of a backup holds."""

    ARCHIVE = "an archive of server 2.15 or later"
    TAR = "a tar file of a server before 2.15"


class Manifest(Model):
    """What is known of a backup when it is complete."""

    version: Count = VERSION
    """Of this description."""
    stream: String
    """The stream that was saved."""
    server: String
    """The version of the server that it was saved over, such as ``2.15.1``."""
    time: Time
    """When it was complete."""
    consumers: Boolean
    """Whether consumers are in it."""
    chunks: Count
    """How many chunks the server sent."""
    data_bytes: Volume
    """The size of ``stream.tar.s2``, in bytes."""
    data_sha256: String
    """Its SHA-256, in hexadecimal digits."""
    meta_sha256: String
    """The SHA-256 of ``backup.json``, in hexadecimal digits."""

    def to_json(self) -> bytes:
        """As it is written."""
        return indented(self.model_dump(mode="json"))

    @classmethod
    def from_json(cls, content: bytes, where: str) -> Manifest:
        """As it was written to ``where``. `BackupError` when it cannot be read, or is of a later version."""
        given = _object(content, where)
        version = given.get("version")
        if isinstance(version, int) and version > VERSION:
            raise BackupError(
                f"{where} has version {version}, and this spark-jetstream knows {VERSION}: a newer one is needed"
            )
        try:
            found = cls.model_validate(given)
        except ValidationError as error:
            said = complaint(error)
        else:
            if found.version == VERSION:
                return found
            said = f"there is no version {found.version}"
        raise BackupError(f"damaged backup: {where}: {said}")


@dataclass(frozen=True)
class Meta:
    """How a stream was set up, and what it held, when its backup began."""

    config: StreamConfig
    state: StreamState

    @classmethod
    def from_json(cls, content: bytes, where: str) -> Meta:
        """What ``backup.json`` says, read from ``where``. `BackupError` when it cannot be read."""
        given = _object(content, where)
        parts = [given.get(name) for name in ("config", "state")]
        if not all(isinstance(part, Mapping) for part in parts):
            raise BackupError(f"damaged backup: {where} has no config or no state")
        config, state = ({**part} for part in parts if isinstance(part, Mapping))
        try:
            return cls(StreamConfig.from_server(config, f"read {where}"), StreamState.from_server(state))
        except ProtocolError as error:
            raise BackupError(f"damaged backup: {where}: {error}") from None


class Framing:
    """Follows the chunks of an S2 stream that is fed in pieces of any size; keeps none of it.

    `where` is named by the errors. `size` counts bytes.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.size = 0
        self._start = bytearray()
        self._head = bytearray()
        self._left = len(_IDENTIFIER)

    def feed(self, data: bytes) -> None:
        """Go on. `BackupError` where the chain breaks."""
        if len(self._start) < _PEEK:
            self._start += data[: _PEEK - len(self._start)]
            if not _IDENTIFIER.startswith(self._start[: len(_IDENTIFIER)]):
                raise BackupError(f"damaged backup: {self.where} does not begin like S2-compressed data")
        at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
            else:
                step = min(4 - len(self._head), len(data) - at)
                self._head += data[at : at + step]
                if len(self._head) == 4:
                    self._left = self._length(self.size + at + step)
                    self._head.clear()
            at += step
        self.size += len(data)

    def finish(self) -> Kind:
        """The data ends here; what it holds. `BackupError` when it was cut off, or is no backup."""
        if self._left or self._head or self.size <= len(_IDENTIFIER):
            raise BackupError(f"damaged backup: {self.where} is cut off at byte {self.size}")
        content = _first_content(bytes(self._start[len(_IDENTIFIER) :]))
        if content.startswith(_MAGIC):
            return Kind.ARCHIVE
        if _OLD_MAGIC in content:
            return Kind.TAR
        raise BackupError(f"{self.where} is not a backup of a stream: it does not begin like one")

    def _length(self, at: int) -> int:
        """Of the chunk whose head was read; it begins at this byte."""
        kind, length = self._head[0], int.from_bytes(self._head[1:], "little")
        content = kind in (_COMPRESSED, _PLAIN) and _CHECKSUM < length <= _LONGEST
        if not (content or _FIRST_SKIPPABLE <= kind <= _LAST_SKIPPABLE):
            raise BackupError(f"damaged backup: {self.where} has no valid chunk at byte {at - 4}")
        return length


def indented(body: Mapping[str, Any]) -> bytes:
    """JSON for files that people may read."""
    return json.dumps(body, indent=2, ensure_ascii=False).encode() + b"\n"


def _object(content: bytes, where: str) -> dict[str, Any]:
    try:
        body = json.loads(content)
    except ValueError:
        raise BackupError(f"damaged backup: {where} is not JSON") from None
    if not isinstance(body, dict):
        raise BackupError(f"damaged backup: {where} is not a JSON object")
    return body


def _first_content(chunk: bytes) -> bytes:
    """What the content of the first chunk begins with: all there is of it, or its first literal.

    A compressed block is its length as a varint, then literals and references to what came before. There is nothing
    to refer to at its beginning.
    """
    kind, body = chunk[0], chunk[4 + _CHECKSUM :]
    if kind == _PLAIN:
        return body
    tag_at = next((at for at, byte in enumerate(body) if byte < 0x80), len(body)) + 1
    tag = body[tag_at] if tag_at < len(body) else 0xFF
    if kind != _COMPRESSED or tag & 3:
        return b""
    longer = max(0, (tag >> 2) - 59)  # bytes that hold the length of a long literal
    begin = tag_at + 1 + longer
    length = int.from_bytes(body[tag_at + 1 : begin], "little") + 1 if longer else (tag >> 2) + 1
    return body[begin : begin + length]
