"""The data for an object's content, and the files that content is written to."""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from spark_jetstream.buckets.object_content import chunks
from spark_jetstream.buckets.object_store import NewObject
from spark_jetstream.errors import JetStreamError, OptionError
from spark_jetstream.protocol.units import shown

Progress = Callable[[int, int], None]


class BinaryFile(Protocol):
    """A file that was opened for reading bytes."""

    def read(self, size: int, /) -> bytes | None:
        """Read up to ``size`` bytes."""


Data = bytes | bytearray | memoryview | Iterable[bytes] | BinaryFile
"""The content of an object: bytes, pieces of any size, or a binary file, read from its position to
its end."""


def new_object(name: str, data: Data, progress: Progress | None = None, **fields: Any) -> NewObject:
    """Return the object to store; ``fields`` are other fields of `NewObject`.

    Raises `OptionError` for other data.

    The pieces of an iterable or a file are checked when they are read.
    """
    source: Any = data
    if isinstance(data, str):
        raise _wrong("text: encode it")
    if isinstance(data, (bytes, bytearray, memoryview)):
        source = io.BytesIO(data)
    is_file = hasattr(source, "read")
    if not (is_file or isinstance(source, Iterable)):
        raise _wrong(shown(type(source).__name__))
    repeatable = is_file and hasattr(source, "seekable") and bool(source.seekable())
    # The content can be read again after a refusal, and its size is known, if the file can seek.
    start = total = 0
    if repeatable:
        start = source.tell()
        total = max(0, source.seek(0, os.SEEK_END) - start)
        source.seek(start)

    def parts(size: int) -> Iterator[bytes | memoryview]:
        # A second attempt reads from where the first one began.
        if repeatable:
            source.seek(start)
        done = 0
        pieces = _pieces(source, size) if is_file else source
        for part in _regular(pieces, size):
            yield part
            done += len(part)
            if progress is not None:
                progress(done, total)

    return NewObject(name=name, parts=parts, repeatable=repeatable, **fields)


def _pieces(file: Any, size: int) -> Iterator[Any]:
    while True:
        piece = file.read(size)
        # A file in non-blocking mode returns None where it has no content yet.
        if piece is None:
            raise _wrong("a file that does not wait for its content")
        if not len(piece):
            return
        yield piece


def _regular(pieces: Iterable[Any], size: int) -> Iterator[bytes | memoryview]:
    """Return the bytes of ``pieces`` as pieces of the same size; the last one has the rest."""
    kept = bytearray()
    for piece in pieces:
        if not isinstance(piece, (bytes, bytearray, memoryview)):
            raise _wrong(f"made of {type(piece).__name__}")
        # The usual case, pieces of a file: they go out as they are, without a copy.
        if not kept and len(piece) == size and isinstance(piece, bytes):
            yield piece
            continue
        kept += piece
        # All whole pieces go out; the rest waits for the next ones.
        whole = len(kept) - len(kept) % size
        # A copy, because `kept` cannot shrink while a view of its memory exists.
        yield from chunks(memoryview(bytes(kept[:whole])), size)
        del kept[:whole]
    if kept:
        yield bytes(kept)


def _wrong(what: str) -> OptionError:
    expected = "bytes, an iterable of bytes, or a file opened as binary"
    return OptionError(f"the content of an object must be {expected}, not {what}", option="data")


def refuse_existing(target: Path, overwrite: bool) -> None:
    """Raise `OptionError` unless a file may be written there."""
    with using(target, "write"):
        if target.exists() and not target.is_file():
            # Replacing a device such as /dev/null would break other programs.
            raise OptionError(
                f"{target} exists already, and is not a file: choose another path",
                option="path",
            )
        # `lexists` also sees a link that leads nowhere.
        if os.path.lexists(target) and not overwrite:
            raise OptionError(
                f"{target} exists already: choose another file, or set overwrite",
                option="path",
            )


def permissions(target: Path) -> int | None:
    """Return the permissions of an existing file; None without one, and for a link, which is replaced itself."""
    try:
        mode = target.lstat().st_mode
    # There is no file, or a path with NUL, which has its error where the file is opened.
    except (OSError, ValueError):
        return None
    return stat.S_IMODE(mode) if stat.S_ISREG(mode) else None


@contextlib.contextmanager
def using(path: Path, what: str) -> Iterator[None]:
    """Raise `JetStreamError` for an `OSError` of a file.

    ``what`` is what cannot be done with it.
    """
    try:
        yield
    except OSError as error:
        raise JetStreamError(f"cannot {what} {path}: {error.strerror or error}") from error
