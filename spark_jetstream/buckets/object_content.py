"""Cuts the content of objects into chunks, and checks and assembles chunks that were read. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
import pyarrow as pa

from spark_jetstream.buckets.objects import ObjectMeta, digest_bytes
from spark_jetstream.protocol.columns import Delivered, MessageRun


def chunks(content: memoryview, size: int) -> Iterator[memoryview]:
    """Yield the content in pieces of ``size`` bytes; the last one has the rest."""
    for at in range(0, len(content), size):
        yield content[at : at + size]


def chunk_views(messages: MessageRun) -> Iterator[memoryview]:
    """Yield the payload of each message, not copied where that can be."""
    if isinstance(messages, Delivered):
        frames = messages.frames
        data = memoryview(frames.data)
        # int (n,) each, byte positions in `data`:
        # a payload begins behind the header block of its frame.
        starts, ends = frames.line_end + frames.head, frames.line_end + frames.size
    else:
        payloads = messages.payloads()
        _, offsets, values = payloads.buffers()
        # int32 (n + 1,); an array that is a slice begins `offset` items later, of four bytes each.
        bounds = np.frombuffer(offsets, np.int32, len(payloads) + 1, 4 * payloads.offset)
        data = memoryview(b"" if values is None else values).cast("B")
        starts, ends = bounds[:-1], bounds[1:]
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        yield data[start:end]


class ContentCheck:
    """Compares the chunks of one object with its meta message.

    ``size`` counts their bytes, ``chunks`` their number.
    """

    def __init__(self, meta: ObjectMeta) -> None:
        self.meta = meta
        self.size = 0
        self.chunks = 0
        self._hash = hashlib.sha256()

    def add(self, chunk: bytes | memoryview) -> None:
        """Count the next chunk."""
        self.size += len(chunk)
        self.chunks += 1
        # A content that is too large is wrong whatever its digest is.
        if self.size <= self.meta.size:
            self._hash.update(chunk)

    def fault(self) -> str | None:
        """Return what is wrong; None if chunks, bytes and digest are as the meta message says."""
        meta = self.meta
        if meta.size and not meta.nuid:
            return "its meta message does not say where its chunks are"
        if self.chunks != meta.chunks:
            return f"its meta message says {meta.chunks} chunks, and there are {self.chunks}"
        if self.size != meta.size:
            return f"its meta message says {meta.size} bytes, and its chunks hold {self.size}"
        if not meta.size and not meta.digest:
            return None  # there is nothing to check
        try:
            expected = digest_bytes(meta.digest)
        except ValueError as error:
            return str(error)
        if self._hash.digest() != expected:
            return "its content has another digest than its meta message says"
        return None


class Assembly:
    """Copies each chunk once, to its object's place in the buffer that becomes the column.

    ``sizes`` are those of the objects, in bytes. They must have room in one Arrow column:
    2**31 - 1 bytes together.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        bounds = list(accumulate(sizes, initial=0))
        # int32 (n + 1,): the offsets of an Arrow binary array, hence at most 2**31 - 1 bytes.
        self._offsets = np.array(bounds, np.int32)
        self._buffer = np.empty(bounds[-1], np.uint8)
        self._view = self._buffer.data
        #: Where the next chunk of each object begins, and where the object ends.
        self._next = bounds[:-1]
        self._ends = bounds[1:]

    def add(self, index: int, chunk: bytes | memoryview) -> None:
        """Put the next chunk of an object; one that has no room is left out."""
        begin = self._next[index]
        end = begin + len(chunk)
        # Content that is larger than its meta message says is a fault,
        # which `ContentCheck` reports.
        if end <= self._ends[index]:
            self._view[begin:end] = chunk
            self._next[index] = end

    def column(self) -> pa.BinaryArray:
        """Return the contents, in the order of the objects; bytes not received are arbitrary."""
        buffers = [None, pa.py_buffer(self._offsets), pa.py_buffer(self._buffer)]
        return pa.Array.from_buffers(pa.binary(), len(self._ends), buffers)
