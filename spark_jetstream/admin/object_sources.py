"""What the content of an object can be put from: bytes, an iterable of them, a binary file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from spark_jetstream.errors import OptionError
from spark_jetstream.new_objects import NewObject
from spark_jetstream.object_content import chunks
from spark_jetstream.units import shown

Progress = Callable[[int, int], None]


class BinaryFile(Protocol):
    """A file that was opened for reading bytes."""

    def read(self, size: int, /) -> bytes | None: ...


Data = bytes | bytearray | memoryview | Iterable[bytes] | BinaryFile
"""What content can be: bytes, pieces of any size, or a binary file, read from where it stands to its end."""


def new_object(name: str, data: Data, progress: Progress | None = None, **fields: Any) -> NewObject:
    """What is to be stored: ``fields`` are others of `NewObject`.

    ``progress`` gets the bytes that went out and how many there are, 0 when that is not known. `OptionError` for data
    that is none; what comes out of an iterable or a file is checked when it comes.
    """
    parts, total, repeatable = _parts(data)

    def counted(size: int) -> Iterator[bytes | memoryview]:
        done = 0
        for part in parts(size):
            yield part
            done += len(part)
            if progress is not None:
                progress(done, total)

    return NewObject(name=name, parts=counted, repeatable=repeatable, **fields)


def _parts(data: Any) -> tuple[Callable[[int], Iterator[bytes | memoryview]], int, bool]:
    """What makes chunks, how many bytes they are in all, and whether it can be done again."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        view = memoryview(data).cast("B")
        return lambda size: chunks(view, size), len(view), True
    if isinstance(data, str):
        raise _wrong("text: encode it")
    if hasattr(data, "read"):
        return _file_parts(data)
    if isinstance(data, Iterable):
        return lambda size: _regular(data, size), 0, False
    raise _wrong(shown(type(data).__name__))


def _file_parts(file: Any) -> tuple[Callable[[int], Iterator[bytes | memoryview]], int, bool]:
    start = total = 0
    repeatable = bool(hasattr(file, "seekable") and file.seekable())
    if repeatable:
        start = file.tell()
        total = max(0, file.seek(0, os.SEEK_END) - start)
        file.seek(start)

    def parts(size: int) -> Iterator[bytes | memoryview]:
        if repeatable:
            file.seek(start)
        return _regular(_pieces(file, size), size)

    return parts, total, repeatable


def _pieces(file: Any, size: int) -> Iterator[Any]:
    """What a file gives, up to its end."""
    while True:
        piece = file.read(size)
        if piece is None:
            raise _wrong("a file that does not wait for its content")
        if not len(piece):
            return
        yield piece


def _regular(pieces: Iterable[Any], size: int) -> Iterator[bytes | memoryview]:
    """Pieces of any size, as pieces of the same size; the last one has what is left."""
    kept = bytearray()
    for piece in pieces:
        if not isinstance(piece, (bytes, bytearray, memoryview)):
            raise _wrong(f"made of {type(piece).__name__}")
        if not kept and len(piece) == size and isinstance(piece, bytes):
            yield piece
            continue
        kept += piece
        whole = len(kept) - len(kept) % size
        if whole:
            ready = memoryview(bytes(kept[:whole]))
            kept = kept[whole:]
            yield from chunks(ready, size)
    if kept:
        yield bytes(kept)


def _wrong(what: str) -> OptionError:
    said = f"the content of an object must be bytes, an iterable of bytes, or a file opened as binary, not {what}"
    return OptionError(said, option="data")
