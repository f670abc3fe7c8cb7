"""The files of a backup of a stream: `Draft` writes them, `opened` and `checked` read them.

A backup is a directory, or a single tar file of it, with the two files that ``nats stream backup``
writes, and a third one of this package, `Manifest`::

    backup.json            {"config": ..., "state": ...} of the stream when the backup began
    stream.tar.s2          the server's data, unchanged: an S2 stream
    spark_jetstream.json   sizes, and the checksums of the other two

An S2 stream is a chain of chunks; each begins with a byte for its kind and three bytes for its
length. Since server 2.15 the stream holds ``NATSARC1`` and the entries of an archive, before that a
tar file of the server. The checksum of a chunk is that of its uncompressed content, and Python
libraries read Snappy but not S2. So `Framing` follows the chain, which a damaged length or a cut
breaks. The SHA-256 of the manifest, and the server, find other damage.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import secrets
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from pydantic import ValidationError

from spark_jetstream.admin.models.base import Boolean, Count, Model, String, Time, Volume, complaint
from spark_jetstream.admin.models.streams import StreamConfig, StreamState
from spark_jetstream.errors import BackupError, OptionError, ProtocolError
from spark_jetstream.protocol.json_text import json_object

# The names of the files of a backup.
META = "backup.json"
DATA = "stream.tar.s2"
MANIFEST = "spark_jetstream.json"
NAMES = ((META,), (DATA, "stream.arc.s2"), (MANIFEST,))
"""The names that are read. Later tools name the data of server 2.15 otherwise (jsm.go,
backup.go)."""
VERSION = 1
"""The version of the manifest."""
SUFFIX = ".tar"
"""A target with this suffix becomes a single file."""

# An S2 stream begins with the identifier; the content of a stream's backup begins with a magic.
_IDENTIFIER = b"\xff\x06\x00\x00S2sTwO"
_MAGIC = b"NATSARC1"
_OLD_MAGIC = b"meta.inf"  # the first file of the tar that servers before 2.15 send
# Kinds of chunks: those with content, and a range of those that a reader may skip.
_COMPRESSED = 0x00
_PLAIN = 0x01
_FIRST_SKIPPABLE = 0x80
_LAST_SKIPPABLE = 0xFE
_HEAD = 4  # bytes: the kind of a chunk, and its length
_CHECKSUM = 4  # bytes at the beginning of a chunk with content
_LONGEST = (4 << 20) + (1 << 16)  # bytes of a chunk: S2 compresses 4 MiB at most
# Bytes from the beginning of the stream that have either magic: the identifier, the head and the
# checksum of the first chunk, and, of a compressed one, the length of its content and the tag of
# its first literal, five bytes at most each.
_PEEK = len(_IDENTIFIER) + _HEAD + _CHECKSUM + 2 * 5 + len(_MAGIC)
_BLOCK = tarfile.BLOCKSIZE
_PIECE = 1 << 20  # bytes read at a time
_SMALL = 64 << 20  # bytes: more than the JSON files of any backup
_HEADERS = 256 << 10  # bytes: more than the headers of the tar file of any backup


class Manifest(Model):
    """The description of a complete backup."""

    version: Count = VERSION
    """The version of this description."""
    stream: String
    """The stream that was saved."""
    server: String
    """The version of the server that sent it, such as ``2.15.1``."""
    time: Time
    """When the backup was complete."""
    consumers: Boolean
    """Whether the backup has the consumers."""
    chunks: Count
    """How many chunks the server sent."""
    data_bytes: Volume
    """The size of ``stream.tar.s2``, in bytes."""
    data_sha256: String
    """Its SHA-256, in hexadecimal digits."""
    meta_sha256: String
    """The SHA-256 of ``backup.json``, in hexadecimal digits."""

    @classmethod
    def from_json(cls, content: bytes, where: str) -> Manifest:
        """Read the file ``where``.

        Raises `BackupError` when it cannot be read, or has a later version.
        """
        given = _object(content, where)
        version = given.get("version")
        # Before the fields, which a later version may have changed.
        if isinstance(version, int) and version > VERSION:
            raise BackupError(
                f"{where} has version {version}, and this spark-jetstream knows {VERSION}: a newer "
                "one is needed"
            )
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise BackupError(f"damaged backup: {where}: {complaint(error)}") from None


class Framing:
    """Follows the chunks of an S2 stream, fed in pieces of any size. `size` counts the bytes.

    Errors name `where`.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.size = 0
        self._start = bytearray()  # the first bytes, up to `_PEEK`, for `finish`
        self._head = bytearray()  # the received bytes of the next head, fewer than `_HEAD`
        self._missing = len(_IDENTIFIER)  # bytes of the current chunk still to be received

    def feed(self, data: bytes) -> None:
        """Follow the next bytes. Raises `BackupError` where the chain breaks."""
        if len(self._start) < _PEEK:
            self._start += data[: _PEEK - len(self._start)]
            # Also while fewer bytes than the identifier have come.
            if not _IDENTIFIER.startswith(self._start[: len(_IDENTIFIER)]):
                raise BackupError(
                    f"damaged backup: {self.where} does not begin like S2-compressed data",
                )
        at = 0
        while at < len(data):
            at += self._step(data, at)
        self.size += len(data)

    def _step(self, data: bytes, at: int) -> int:
        """Follow the current chunk, or its head, from ``at`` on; return the number of bytes."""
        # Inside of a chunk: its content need not be looked at.
        if self._missing:
            count = min(self._missing, len(data) - at)
            self._missing -= count
            return count
        count = min(_HEAD - len(self._head), len(data) - at)
        self._head += data[at : at + count]
        if len(self._head) == _HEAD:
            self._missing = self._length(self.size + at + count)
            self._head.clear()
        return count

    def finish(self) -> bool:
        """Return whether the data is an archive of server 2.15 or later.

        Earlier servers sent a tar file. Raises `BackupError` when it is cut off, or is neither.
        """
        # A whole stream ends where a chunk ends, and has more than the identifier.
        if self._missing or self._head or self.size <= len(_IDENTIFIER):
            raise BackupError(f"damaged backup: {self.where} is cut off at byte {self.size}")
        # S2 replaces only content that came before, so the first bytes stand in the stream as they
        # are (`test_compressed_data_tells_what_it_is`).
        archive = _MAGIC in self._start
        if not archive and _OLD_MAGIC not in self._start:
            raise BackupError(
                f"{self.where} is not a backup of a stream: it does not begin like one",
            )
        return archive

    def _length(self, at: int) -> int:
        """Return the length of the chunk whose head ends at this byte."""
        kind = self._head[0]
        length = int.from_bytes(self._head[1:], "little")
        # A damaged length would lead into the middle of
        # another chunk, and from there to any length.
        has_content = kind in (_COMPRESSED, _PLAIN) and _CHECKSUM < length <= _LONGEST
        skippable = _FIRST_SKIPPABLE <= kind <= _LAST_SKIPPABLE
        if not has_content and not skippable:
            raise BackupError(
                f"damaged backup: {self.where} has no valid chunk at byte {at - _HEAD}",
            )
        return length


def indented(body: Mapping[str, Any]) -> bytes:
    """Return JSON for a file that people may read."""
    return json.dumps(body, indent=2, ensure_ascii=False).encode() + b"\n"


def _object(content: bytes, where: str) -> dict[str, Any]:
    try:
        return json_object(content)
    except ValueError as error:
        raise BackupError(f"damaged backup: {where} {error}") from None


class Draft:
    """A backup that is being written.

    `target` appears when `complete` returns, for its owner alone. Until then the files are beside
    it, under a name that begins with a dot and ends with ``.part``. Raises `OptionError` when
    `target` exists, and `BackupError` when nothing can be written there.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.size = 0
        self._single = target.suffix == SUFFIX
        self._sum = hashlib.sha256()
        if not target.name:
            raise OptionError(
                f"target must be the path of a new backup, not {target}",
                option="target",
            )
        # Beside the target, so that `rename` stays on one file system. The random part keeps two
        # backups of the same target apart.
        self._temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        with _writing(target):
            # Before the request: a taken target must not be noticed after all of the data.
            _refuse_existing(target)
            target.parent.mkdir(parents=True, exist_ok=True)
            file = self._temporary
            if not self._single:
                self._temporary.mkdir(mode=0o700)
                file = self._temporary / DATA
            # The owner alone may read it, from its first moment on.
            file.touch(mode=0o600, exist_ok=False)
            self._file: IO[bytes] = file.open("r+b")
            if self._single:
                # The header needs the size, which is not known yet. Until it is written, this is no
                # tar file.
                self._file.write(bytes(_BLOCK))

    @property
    def sha256(self) -> str:
        """The SHA-256 of the data written, in hexadecimal digits."""
        return self._sum.hexdigest()

    def write(self, data: bytes) -> None:
        """Write more of ``stream.tar.s2``."""
        with _writing(self.target):
            self._file.write(data)
        self._sum.update(data)
        self.size += len(data)

    def complete(self, others: Mapping[str, bytes]) -> None:
        """Add the other files, sync all to the disk, and rename it to `target`."""
        with _writing(self.target):
            if self._single:
                self._complete_tar(others)
            else:
                self._complete_folder(others)
            # Another program may have made it while the data was received
            # (`test_a_backup_never_overwrites_existing_files`).
            _refuse_existing(self.target)
            self._temporary.rename(self.target)

    def _complete_tar(self, others: Mapping[str, bytes]) -> None:
        self._pad(self.size)
        for name, content in others.items():
            self._file.write(_header(name, len(content)))
            self._file.write(content)
            self._pad(len(content))
        # Two empty blocks end a tar file.
        self._file.write(bytes(2 * _BLOCK))
        # The header comes last: without it the file is no tar file, so a cut one is never taken.
        self._file.seek(0)
        self._file.write(_header(DATA, self.size))
        _sync_and_close(self._file)

    def _pad(self, size: int) -> None:
        """Fill the last block of an entry of this size."""
        self._file.write(bytes(-size % _BLOCK))

    def _complete_folder(self, others: Mapping[str, bytes]) -> None:
        _sync_and_close(self._file)
        for name, content in others.items():
            file = (self._temporary / name).open("xb")
            file.write(content)
            _sync_and_close(file)
        # An empty directory may be the target.
        if self.target.is_dir():
            self.target.rmdir()

    def discard(self) -> None:
        """Remove the files, unless they are complete."""
        with contextlib.suppress(OSError):  # a full disk does not take what is buffered
            self._file.close()
        if self._single:
            self._temporary.unlink(missing_ok=True)
        else:
            # Best effort: this runs beside the error that is to be reported.
            shutil.rmtree(self._temporary, ignore_errors=True)


@contextmanager
def draft_folder(target: Path) -> Iterator[Path]:
    """Yield a folder for backups, which becomes `target` at the end.

    After an error it stays, as ``TARGET.part``. Its owner alone can read it.
    """
    part = target.with_name(f"{target.name}.part")
    with _writing(target):
        _refuse_existing(target)
        _refuse_existing(part)
        part.mkdir(mode=0o700, parents=True, exist_ok=True)
        # An error in the block keeps the folder: the backups in it are complete.
        yield part
        part.rename(target)


@dataclass(frozen=True)
class Saved:
    """An open backup.

    Its `data`, of `size` bytes, is not checked yet; `manifest` is None for one of another tool.

    `config` and `state` are those of the stream when the backup began.
    """

    source: Path
    config: StreamConfig
    state: StreamState
    manifest: Manifest | None
    data: IO[bytes]
    size: int


@contextmanager
def opened(source: Path) -> Iterator[Saved]:
    """Open the backup at `source`, a directory or a tar file, and check its descriptions.

    Raises `BackupError`, which names the file, when it is damaged or not a backup.
    """
    with contextlib.ExitStack() as stack:
        with _reading(source):
            meta_file, data, manifest_file = _files(source, stack)
            meta = _read_small(meta_file)
            description = _read_small(manifest_file)
            size = 0 if data is None else data.seek(0, io.SEEK_END)
        if meta_file is None:
            raise _incomplete(source, META)
        if data is None:
            raise _incomplete(source, DATA)
        # A backup of another tool has no manifest, and so no checksums.
        manifest = None
        if manifest_file is not None:
            manifest = Manifest.from_json(description, str(source / MANIFEST))
            # The description is small: it is compared at once, the data in `checked`.
            if hashlib.sha256(meta).hexdigest() != manifest.meta_sha256:
                raise BackupError(_differs(source / META))
        config, state = _described(meta, str(source / META))
        data.seek(0)
        yield Saved(source, config, state, manifest, data, size)


def _read_small(file: IO[bytes] | None) -> bytes:
    """Return the content of a JSON file; empty if it is missing."""
    return b"" if file is None else file.read(_SMALL)


def _incomplete(source: Path, name: str) -> BackupError:
    problem = f"{source / name} is missing, or no plain file"
    return BackupError(f"{problem}: {source} is not a backup of a stream, or not complete")


def _described(content: bytes, where: str) -> tuple[StreamConfig, StreamState]:
    """Return configuration and state of the stream in the file ``where``. Raises `BackupError`."""
    given = _object(content, where)
    config = given.get("config")
    state = given.get("state")
    if not (isinstance(config, dict) and isinstance(state, dict)):
        raise BackupError(f"damaged backup: {where} has no config or no state")
    context = f"read {where}"
    try:
        stream_config = StreamConfig.from_server(config, context)
        return stream_config, StreamState.from_server(state, context)
    # The models speak of a reply of the server; this is a file.
    except ProtocolError as error:
        raise BackupError(f"damaged backup: {error}") from None


def saved_name(source: Path) -> str:
    """Return the name of the stream whose backup is at `source`. Raises what `opened` raises."""
    with opened(source) as saved:
        return saved.config.name


def checked(saved: Saved, progress: Callable[[int, int], None] | None = None) -> bool:
    """Read all data, and leave the file at its beginning.

    Returns and raises what `Framing.finish` does.
    """
    where = saved.source / DATA
    framing = Framing(str(where))
    digest = hashlib.sha256()
    with _reading(where):
        while piece := saved.data.read(_PIECE):
            digest.update(piece)
            framing.feed(piece)
            if progress is not None:
                progress(framing.size, saved.size)
        saved.data.seek(0)
    archive = framing.finish()
    if saved.manifest is not None and saved.manifest.data_sha256 != digest.hexdigest():
        raise BackupError(_differs(where))
    return archive


def _differs(path: Path) -> str:
    difference = f"its SHA-256 differs from the one in {MANIFEST}"
    return f"damaged backup: {path} is not what was written ({difference})"


def _files(source: Path, stack: contextlib.ExitStack) -> list[IO[bytes] | None]:
    """Open the description, the data and the manifest, each None if it is missing."""
    if source.is_dir():
        return [_folder_file(source, names, stack) for names in NAMES]
    # To open a FIFO would wait for ever
    # (`test_opening_a_backup_refuses_special_files_without_waiting`).
    if not stat.S_ISREG(source.stat().st_mode):
        raise BackupError(f"cannot read the backup {source}: it is neither a directory nor a file")
    file = stack.enter_context(_TarSource(source))
    try:
        archive = stack.enter_context(tarfile.TarFile(fileobj=file))
        members = _plain_members(archive)
    except (ValueError, OverflowError, RecursionError) as error:
        # `tarfile` raises these for headers that it does not check.
        raise tarfile.ReadError(str(error)) from None
    # The headers are read. From here on it is content, of any size.
    file.allowed = None
    folder = _backup_folder(members, source)
    files: list[IO[bytes] | None] = []
    # The first name counts where a backup has both.
    for names in NAMES:
        paths = [folder / name for name in names]
        member = next((members[path] for path in paths if path in members), None)
        files.append(None if member is None else archive.extractfile(member))
    return files


def _folder_file(
    folder: Path,
    names: tuple[str, ...],
    stack: contextlib.ExitStack,
) -> IO[bytes] | None:
    """Open the first of these files that exists; return None if none does."""
    for name in names:
        path = folder / name
        if path.is_file():
            return stack.enter_context(path.open("rb"))
    return None


def _plain_members(archive: tarfile.TarFile) -> dict[PurePosixPath, tarfile.TarInfo]:
    """Return the files of a tar file, without links, devices and sparse files."""
    members = {}
    for member in archive:
        # A link may lead anywhere, and a sparse file may claim any size.
        if member.isfile() and not member.issparse():
            members[PurePosixPath(member.name)] = member
    return members


def _backup_folder(members: Iterable[PurePosixPath], source: Path) -> PurePosixPath:
    """Return the folder of the backup in a tar file. Raises `BackupError` for several backups."""
    # In a tar file that was made of the directory, its name is in front of the others.
    folders = sorted(path.parent for path in members if path.name == META)
    if len(folders) > 1:
        raise BackupError(
            f"{source} has several backups, as {folders[0]} and {folders[1]}: unpack it, and name "
            "one",
        )
    return folders[0] if folders else PurePosixPath()


class _TarSource(io.BufferedReader):
    """A tar file.

    While it is listed, no header can make `tarfile` read without end, or much at once.
    """

    def __init__(self, source: Path) -> None:
        super().__init__(io.FileIO(source))
        self.allowed: int | None = _HEADERS
        """How many bytes may still be read; None once it is listed."""

    def read(self, size: int | None = -1, /) -> bytes:
        if self.allowed is not None:
            # A header may claim to be of any length, or lead back to itself
            # (`test_crafted_single_files_are_refused`).
            if size is None or not 0 <= size <= self.allowed:
                raise tarfile.ReadError(f"its headers have more than {_HEADERS:,} bytes")
            self.allowed -= size
        return super().read(size)


def _header(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = size
    entry.mode = 0o600
    return entry.tobuf(tarfile.GNU_FORMAT)


def _sync_and_close(file: IO[bytes]) -> None:
    # All is on the disk before `rename` gives it the name of a complete backup.
    file.flush()
    os.fsync(file.fileno())
    file.close()


def _refuse_existing(target: Path) -> None:
    # An empty directory may have been made for the backup.
    empty = target.is_dir() and target.suffix != SUFFIX and not any(target.iterdir())
    # `lexists` also sees a link that leads nowhere.
    if os.path.lexists(target) and not empty:
        raise OptionError(
            f"{target} exists already: choose another target, or remove it",
            option="target",
        )


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
        raise BackupError(
            f"damaged backup: {source} is neither a directory nor a whole tar file ({error})",
        ) from error
    except OSError as error:
        raise BackupError(f"cannot read the backup {source}: {error.strerror or error}") from error
