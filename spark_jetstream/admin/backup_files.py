"""Where a backup of a stream is kept: a directory, or a single tar file of what would be in it.

`Draft` writes one, under another name until it is complete. `opened` and `checked` read one.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import secrets
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from spark_jetstream.admin.archive import DATA, MANIFEST, META, Framing, Kind, Manifest, Meta
from spark_jetstream.errors import BackupError, OptionError

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


def checked(saved: Saved, progress: Callable[[int, int], None] | None = None) -> Kind:
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
