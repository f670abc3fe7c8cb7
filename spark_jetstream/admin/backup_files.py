"""Where a backup of a stream is kept: a directory, or a single tar file of what would be in it.

`Draft` writes one, under another name until it is complete. `opened` and `checked` read one.

What a backup of a stream consists of, and how much of it can be checked without a server. Pure.

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

import contextlib
import enum
import hashlib
import io
import json
import os
import secrets
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from spark_jetstream.admin.models.base import Model, complaint
from spark_jetstream.admin.models.fields import Boolean, Count, String, Time, Volume
from spark_jetstream.admin.models.streams import StreamConfig, StreamState
from spark_jetstream.errors import BackupError, OptionError, ProtocolError

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


class EntryKind(enum.Enum):
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

    def finish(self) -> EntryKind:
        """The data ends here; what it holds. `BackupError` when it was cut off, or is no backup."""
        if self._left or self._head or self.size <= len(_IDENTIFIER):
            raise BackupError(f"damaged backup: {self.where} is cut off at byte {self.size}")
        content = _first_content(bytes(self._start[len(_IDENTIFIER) :]))
        if content.startswith(_MAGIC):
            return EntryKind.ARCHIVE
        if _OLD_MAGIC in content:
            return EntryKind.TAR
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


SUFFIX = ".tar"
"""A target with this suffix becomes a single file."""

_BLOCK = tarfile.BLOCKSIZE
_PIECE = 1 << 20  # bytes read at a time
_SMALL = 64 << 20  # bytes: more than the JSON files of any backup


class Draft:
    """A backup that is being written; `target` is there once `complete` has returned, and not before.

    What is written before stands beside it, under a name that begins with a dot and ends with ``.part``. `OptionError`
    when there is something at `target` already, and `BackupError` when nothing can be written there.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.size = 0
        self._single = target.suffix == SUFFIX
        self._sum = hashlib.sha256()
        if not target.name:
            raise OptionError(f"target must be the path of a backup that is to be made, not {target}", option="target")
        self._temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        with _writing(target):
            _refuse_existing(target)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not self._single:
                self._temporary.mkdir()
            self._file: IO[bytes] = (self._temporary if self._single else self._temporary / DATA).open("xb")
            if self._single:
                # The size belongs into the header, and is not known yet. Until it is there, this is no tar file.
                self._file.write(bytes(_BLOCK))

    @property
    def sha256(self) -> str:
        """The checksum of what was written, in hexadecimal digits."""
        return self._sum.hexdigest()

    def write(self, data: bytes) -> None:
        """Go on with ``stream.tar.s2``."""
        with _writing(self.target):
            self._file.write(data)
        self._sum.update(data)
        self.size += len(data)

    def complete(self, others: Mapping[str, bytes]) -> None:
        """Add the other files, have all of it on the disk, and give it its name."""
        with _writing(self.target):
            if self._single:
                self._file.write(bytes(-self.size % _BLOCK))
                for name, content in others.items():
                    self._file.write(_header(name, len(content)) + content + bytes(-len(content) % _BLOCK))
                self._file.write(bytes(2 * _BLOCK))
                self._file.seek(0)
                self._file.write(_header(DATA, self.size))
            _close(self._file)
            if not self._single:
                for name, content in others.items():
                    file = (self._temporary / name).open("xb")
                    file.write(content)
                    _close(file)
                if self.target.is_dir():
                    self.target.rmdir()
            _refuse_existing(self.target)
            self._temporary.rename(self.target)

    def discard(self) -> None:
        """Remove what was written, unless it is complete."""
        self._file.close()
        if self._single:
            self._temporary.unlink(missing_ok=True)
        else:
            shutil.rmtree(self._temporary, ignore_errors=True)


@dataclass(frozen=True)
class Saved:
    """A backup that is open; its `data`, of `size` bytes, is not checked yet.

    `manifest` is None for a backup that another tool has made.
    """

    source: Path
    meta: Meta
    manifest: Manifest | None
    data: IO[bytes]
    size: int

    @property
    def data_path(self) -> Path:
        """Where the data is, for people."""
        return self.source / DATA


@contextmanager
def opened(source: Path) -> Iterator[Saved]:
    """The backup at `source`, a directory or a tar file, with its descriptions read and checked.

    `BackupError` when it is none, or is damaged; the message names the file.
    """
    with contextlib.ExitStack() as stack:
        with _reading(source):
            find = _in_directory(source, stack) if source.is_dir() else _in_tar(source, stack)
            meta_file, data, manifest_file = (find(name) for name in (META, DATA, MANIFEST))
            content, description = _small(meta_file), _small(manifest_file)
            size = 0 if data is None else data.seek(0, io.SEEK_END)
        if meta_file is None or data is None:
            missing = source / (META if meta_file is None else DATA)
            raise BackupError(f"{missing} is missing: {source} is not a backup of a stream, or not complete")
        manifest = None if manifest_file is None else Manifest.from_json(description, str(source / MANIFEST))
        if manifest is not None and hashlib.sha256(content).hexdigest() != manifest.meta_sha256:
            raise BackupError(_differs(source / META))
        meta = Meta.from_json(content, str(source / META))
        data.seek(0)
        yield Saved(source, meta, manifest, data, size)


def checked(saved: Saved, progress: Callable[[int, int], None] | None = None) -> EntryKind:
    """Read all data once, and say what it holds; it stands at its beginning again.

    Compares it with the manifest, where there is one, and follows its frames. `progress` gets the bytes read and
    their total. `BackupError` when it is damaged.
    """
    where = saved.data_path
    framing = Framing(str(where))
    digest = hashlib.sha256()
    with _reading(where):
        while piece := saved.data.read(_PIECE):
            digest.update(piece)
            framing.feed(piece)
            if progress is not None:
                progress(framing.size, saved.size)
        saved.data.seek(0)
    kind = framing.finish()
    if saved.manifest is not None and saved.manifest.data_sha256 != digest.hexdigest():
        raise BackupError(_differs(where))
    return kind


def _differs(path: Path) -> str:
    return f"damaged backup: {path} is not what was written (its SHA-256 differs from the one in {MANIFEST})"


def _in_directory(source: Path, stack: contextlib.ExitStack) -> Callable[[str], IO[bytes] | None]:
    def find(name: str) -> IO[bytes] | None:
        path = source / name
        return stack.enter_context(path.open("rb")) if path.is_file() else None

    return find


def _in_tar(source: Path, stack: contextlib.ExitStack) -> Callable[[str], IO[bytes] | None]:
    archive = stack.enter_context(tarfile.TarFile(source))
    # Who packs a directory into a tar file has its name in front of the others.
    members = {member.name.rpartition("/")[2]: member for member in archive.getmembers() if member.isfile()}

    def find(name: str) -> IO[bytes] | None:
        return archive.extractfile(members[name]) if name in members else None

    return find


def _small(file: IO[bytes] | None) -> bytes:
    return b"" if file is None else file.read(_SMALL)


def _header(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = size
    entry.mode = 0o644
    return entry.tobuf(tarfile.GNU_FORMAT)


def _close(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()


def _refuse_existing(target: Path) -> None:
    empty = target.is_dir() and target.suffix != SUFFIX and not any(target.iterdir())
    if os.path.lexists(target) and not empty:
        raise OptionError(f"{target} exists already: choose another target, or remove it", option="target")


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BackupError(f"cannot write the backup {target}: {error.strerror or error}") from error


@contextmanager
def _reading(source: Path) -> Iterator[None]:
    try:
        yield
    except tarfile.TarError as error:
        raise BackupError(f"damaged backup: {source} is neither a directory nor a whole tar file ({error})") from error
    except OSError as error:
        raise BackupError(f"cannot read the backup {source}: {error.strerror or error}") from error
